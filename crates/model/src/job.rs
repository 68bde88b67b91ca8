//! What a user submits: a job of task groups.

use std::{collections::BTreeMap, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::{
    constraint::{Affinity, Constraint, Spread},
    go_duration::GoDuration,
    ids::{JobId, JobKey, Namespace, StoreIndex, TimestampNs},
    network::Network,
    policy::{Disconnect, Migrate, Patience, Pick, Reschedule, Restart, Update},
    schema::{
        self, Described, Effect, Field, INT, Kind, Literal, Shape, Unset,
        opaque::{api, many, one, told},
    },
    service::Service,
    shared_list::SharedList,
    task::Task,
    task_blocks::{Consul, TaskSecret, Vault},
};
pub use crate::{map::Meta, policy::Scaling};

/// Namespace, region, pool and priority of a job that names none.
pub const DEFAULT_NAMESPACE: &str = "default";
/// See [`DEFAULT_NAMESPACE`].
pub const DEFAULT_REGION: &str = "global";
/// See [`DEFAULT_NAMESPACE`].
pub const DEFAULT_NODE_POOL: &str = "default";
/// See [`DEFAULT_NAMESPACE`].
pub const DEFAULT_PRIORITY: i32 = 50;

/// Kind of a job. On the wire: `service`, `batch`, `system`, `sysbatch`.
pub type JobType = String;

/// Status of a job. On the wire: `pending`, `running`, `dead`.
pub type JobStatus = String;

/// Job kinds.
pub mod job_type {
    /// Runs until stopped.
    pub const SERVICE: &str = "service";
    /// Runs until it has succeeded.
    pub const BATCH: &str = "batch";
    /// One on each node.
    pub const SYSTEM: &str = "system";
    /// One on each node, which ends.
    pub const SYSBATCH: &str = "sysbatch";

    /// One on each node (or at each provider), whatever becomes of it.
    #[must_use]
    pub fn everywhere(kind: &str) -> bool {
        matches!(kind, SYSTEM | SYSBATCH)
    }
    /// Its tasks end.
    #[must_use]
    pub fn finite(kind: &str) -> bool {
        matches!(kind, BATCH | SYSBATCH)
    }
}

/// Job states.
pub mod job_status {
    /// No allocation runs yet.
    pub const PENDING: &str = "pending";
    /// Has live allocations (or evaluations to come).
    pub const RUNNING: &str = "running";
    /// Stopped or complete.
    pub const DEAD: &str = "dead";
}

/// What jobs have besides their fields.
const OF_JOBS: &[Field] = &[
    Field {
        effect: Some(Effect::Replaces),
        ..told(one("vault", "#Vault", Vault::BLOCK), "Vault settings of all tasks.")
    },
    Field {
        effect: Some(Effect::Replaces),
        ..told(many("secret", "#Secrets", TaskSecret::BLOCK), "Secrets of all tasks.")
    },
    told(many("task", "#Tasks", Task::BLOCK), "A task that is a group of its own."),
    // Whose token has registered the job: for the servers to say, so that what a client sends is harmless.
    Field { client: Some(Literal::Text("")), ..api("NomadTokenID", Shape::Value(Kind::Text), Unset::Null) },
];

/// A job. Serde form: the `Job` object of Nomad's HTTP API.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Described)]
#[serde(default, rename_all = "PascalCase")]
#[job(extra = OF_JOBS)]
pub struct Job {
    /// Stopped by the user; kept until collected.
    #[job(api, null, client = false)]
    pub stop: bool,
    /// Region.
    #[job(null, default = DEFAULT_REGION, in_place)]
    pub region: String,
    /// Namespace of the job.
    #[job(null, default = DEFAULT_NAMESPACE, in_place)]
    pub namespace: Namespace,
    /// Id within the namespace.
    #[serde(rename = "ID")]
    #[job(null, client = "", says = "the label", in_place)]
    pub id: JobId,
    /// The job that dispatched or launched this one; empty otherwise.
    #[serde(rename = "ParentID")]
    #[job(api, null, client = "")]
    pub parent_id: String,
    /// Display name.
    #[job(null, says = "the id", in_place)]
    pub name: String,
    /// `service`, `batch`, `system` or `sysbatch`.
    #[serde(rename = "Type")]
    #[job(hcl = "type", null, default = job_type::SERVICE, in_place)]
    pub kind: JobType,
    /// From 1 to 100: who goes first when room is short.
    #[job(null, default = DEFAULT_PRIORITY, in_place)]
    pub priority: i32,
    /// Place all allocations of a group or none.
    #[job(null, client = false, in_place)]
    pub all_at_once: bool,
    /// Globs of the datacenters that the job may run in.
    #[job(server = ["*"], in_place)]
    pub datacenters: Vec<String>,
    /// Pool of nodes that the job may run in.
    #[job(null, server = DEFAULT_NODE_POOL, client = "", in_place)]
    pub node_pool: String,
    /// Rules that the nodes of all groups must meet.
    #[job(hcl = "constraint", in_place)]
    pub constraints: Vec<Constraint>,
    /// Nodes that all groups prefer or avoid.
    #[job(hcl = "affinity", replaces_local)]
    pub affinities: Vec<Affinity>,
    /// How all groups spread over the nodes.
    #[job(hcl = "spread", replaces_local)]
    pub spreads: Vec<Spread>,
    /// Tasks that are placed on one node together.
    #[job(hcl = "group")]
    pub task_groups: SharedList<TaskGroup>,
    /// Default update policy of the groups.
    #[job(in_place)]
    pub update: Option<Update>,
    /// Default reschedule policy of the groups.
    // Input only: merged into groups.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[job(in_place)]
    pub reschedule: Option<Reschedule>,
    /// Default migrate policy of the groups.
    // Input only: merged into groups.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[job(in_place)]
    pub migrate: Option<Migrate>,
    /// Several regions (Nomad Enterprise).
    #[job(shape = Shape::One(schema::opaque::MULTIREGION), in_place)]
    pub multiregion: Option<serde_json::Value>,
    /// Launch by the clock.
    #[job(in_place)]
    pub periodic: Option<Periodic>,
    /// Makes the job a template for dispatched children.
    #[job(hcl = "parameterized", in_place)]
    pub parameterized_job: Option<Parameterized>,
    /// True for a dispatched child.
    #[job(api)]
    pub dispatched: bool,
    /// The token of the dispatch, of which one child is made however often it is repeated; empty = none.
    #[job(api, null, kept)]
    pub dispatch_idempotency_token: String,
    /// Dispatch payload, base64 in JSON.
    #[job(api)]
    pub payload: Option<String>,
    /// Metadata that all tasks see.
    #[job(replaces)]
    pub meta: Meta,
    /// Deprecated token for Consul.
    #[job(null, client = "", in_place)]
    pub consul_token: String,
    /// Enterprise: refused.
    #[job(api, null, client = "")]
    pub consul_namespace: String,
    /// Deprecated token for Vault.
    #[job(null, client = "", in_place)]
    pub vault_token: String,
    /// Enterprise: refused.
    #[job(api, null, client = "")]
    pub vault_namespace: String,
    /// What the web UI shows with the job.
    #[serde(rename = "UI")]
    #[job(in_place)]
    pub ui: Option<JobUi>,
    /// See [`job_status`].
    #[job(api, null, client = "", kept)]
    pub status: JobStatus,
    /// Why it has that status.
    #[job(api, null, client = "", kept)]
    pub status_description: String,
    /// True when a deployment of this version has succeeded (or needed none).
    #[job(api, null, client = false, kept)]
    pub stable: bool,
    /// Grows with each changed registration, from 0.
    #[job(api, null, client = 0, kept)]
    pub version: u64,
    /// When this version was submitted.
    #[job(api, null, kept)]
    pub submit_time: TimestampNs,
    /// Name given to the version, if any.
    #[job(api, kept)]
    pub version_tag: Option<VersionTag>,
    /// Index of the first registration.
    #[job(api, null, client = 0, kept)]
    pub create_index: StoreIndex,
    /// Index of the last change, status included.
    #[job(api, null, client = 0, kept)]
    pub modify_index: StoreIndex,
    /// Index of the last change by a user.
    #[job(api, null, client = 0, kept)]
    pub job_modify_index: StoreIndex,
}

impl Job {
    /// The job's full name.
    #[must_use]
    pub fn key(&self) -> JobKey {
        JobKey { namespace: self.namespace.clone(), id: self.id.clone() }
    }
    /// The group of that name.
    #[must_use]
    pub fn group(&self, name: &str) -> Option<&TaskGroup> {
        self.task_groups.iter().find(|g| &*g.name == name)
    }
    /// True when the user has stopped it.
    #[must_use]
    pub fn stopped(&self) -> bool {
        self.stop
    }
}

/// A name for a job version.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, Described)]
#[serde(default, rename_all = "PascalCase")]
pub struct VersionTag {
    /// The name.
    #[job(api)]
    pub name: String,
    /// Free text.
    #[job(api)]
    pub description: String,
    /// When it was given.
    #[job(api)]
    pub tagged_time: TimestampNs,
}

/// What the web UI shows with a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, Described)]
#[serde(default, rename_all = "PascalCase")]
pub struct JobUi {
    /// Text about the job.
    pub description: String,
    /// Links to show.
    #[job(hcl = "link")]
    pub links: Vec<UiLink>,
}

/// A link that the web UI shows with a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, Described)]
#[serde(default)]
pub struct UiLink {
    /// Text of the link.
    #[serde(rename = "Label")]
    pub label: String,
    /// Address of the link.
    #[serde(rename = "URL", alias = "Url")]
    pub url: String,
}

/// Launches by the clock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, Described)]
#[serde(default, rename_all = "PascalCase")]
pub struct Periodic {
    /// False: no launches, and the block stays.
    #[job(default = true)]
    pub enabled: Option<bool>,
    /// One cron expression.
    #[job(hcl = "cron", default = "")]
    pub spec: Option<String>,
    /// Several cron expressions.
    #[job(hcl = "crons", client = [])]
    pub specs: Vec<String>,
    /// `cron`.
    #[job(api, default = "cron")]
    pub spec_type: Option<String>,
    /// No launch while the previous one runs.
    #[job(default = false)]
    pub prohibit_overlap: Option<bool>,
    /// Time zone of the expressions.
    #[job(default = "UTC")]
    pub time_zone: Option<String>,
}

/// What a dispatch may carry.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, Described)]
#[serde(default, rename_all = "PascalCase")]
pub struct Parameterized {
    /// `optional`, `required` or `forbidden`.
    #[job(server = "optional")]
    pub payload: String,
    /// Keys of metadata that a dispatch must give.
    pub meta_required: Vec<String>,
    /// Keys of metadata that a dispatch may give.
    pub meta_optional: Vec<String>,
}

/// Tasks that are placed on one node together.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Described)]
#[serde(default, rename_all = "PascalCase")]
#[job(decides)]
pub struct TaskGroup {
    /// Name, unique in the job.
    #[job(label, null, in_place)]
    pub name: Arc<str>,
    /// How many allocations run.
    #[job(says = "1, or `scaling.min`", in_place)]
    pub count: Option<i32>,
    /// Rules that its nodes must meet.
    #[job(hcl = "constraint", in_place)]
    pub constraints: Vec<Constraint>,
    /// Nodes that it prefers or avoids.
    #[job(hcl = "affinity", replaces_local)]
    pub affinities: Vec<Affinity>,
    /// How it spreads over the nodes.
    #[job(hcl = "spread", replaces_local)]
    pub spreads: Vec<Spread>,
    /// What a driver runs.
    #[job(hcl = "task", inside, by_hand)]
    pub tasks: Vec<Task>,
    /// Volumes by the name that tasks mount them with.
    #[job(hcl = "volume", replaces)]
    pub volumes: BTreeMap<String, VolumeRequest>,
    /// Restart policy of its tasks.
    #[serde(rename = "RestartPolicy")]
    #[job(inside)]
    pub restart: Option<Restart>,
    /// Reschedule policy.
    #[serde(rename = "ReschedulePolicy")]
    #[job(in_place)]
    pub reschedule: Option<Reschedule>,
    /// Disk that its tasks share.
    #[job(replaces_local)]
    pub ephemeral_disk: Option<EphemeralDisk>,
    /// Update policy.
    #[job(in_place)]
    pub update: Option<Update>,
    /// Migrate policy.
    #[job(in_place)]
    pub migrate: Option<Migrate>,
    /// What happens when the node is cut off.
    #[job(in_place)]
    pub disconnect: Option<Disconnect>,
    /// How long an allocation may take, restarts and hand-overs included, before it is ended; batch and sysbatch only.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[job(left_out, in_place)]
    pub max_run_duration: Option<GoDuration>,
    /// Its network; at most one.
    #[job(hcl = "network", replaces)]
    pub networks: Vec<Network>,
    /// Metadata that its tasks see.
    #[job(replaces, by_hand)]
    pub meta: Meta,
    /// Services of the group.
    #[job(hcl = "service", in_place)]
    pub services: Vec<Service>,
    /// Wait between the deregistration of its services and the stop of its tasks.
    #[job(in_place)]
    pub shutdown_delay: Option<GoDuration>,
    /// Deprecated: see `disconnect.stop_on_client_after`.
    #[job(in_place)]
    pub stop_after_client_disconnect: Option<GoDuration>,
    /// Deprecated: see `disconnect.lost_after`.
    #[job(in_place)]
    pub max_client_disconnect: Option<GoDuration>,
    /// Deprecated: see `disconnect.replace`.
    #[job(client = false, in_place)]
    pub prevent_reschedule_on_lost: Option<bool>,
    /// Bounds for the autoscaler.
    #[job(in_place)]
    pub scaling: Option<Scaling>,
    /// Consul settings.
    #[job(replaces)]
    pub consul: Option<Consul>,
    /// Vault settings of its tasks.
    // Input only: spread to the tasks.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[job(json = "#Vault", replaces, by_hand)]
    pub vault: Option<Vault>,
    /// Secrets of its tasks.
    // Input only: spread to the tasks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[job(hcl = "secret", json = "#Secrets", replaces, by_hand)]
    pub secrets: Vec<TaskSecret>,
}

impl TaskGroup {
    /// What holds while its node is cut off; None when its allocations are lost then.
    #[must_use]
    pub fn patience(&self) -> Option<Patience> {
        let own = self.disconnect.as_ref();
        let lost_after = own.and_then(|d| d.lost_after).or(self.max_client_disconnect).filter(|d| d.nanos() > 0);
        let replace = own.and_then(|d| d.replace).unwrap_or(self.prevent_reschedule_on_lost != Some(true));
        let pick = own.and_then(|d| d.reconcile.as_deref()).and_then(Pick::by_name).unwrap_or_default();
        (lost_after.is_some() || !replace).then_some(Patience { lost_after, replace, pick })
    }
    /// Whether its data follows an allocation to another node.
    #[must_use]
    pub fn migrates_data(&self) -> bool {
        self.ephemeral_disk.as_ref().is_some_and(|disk| disk.migrate == Some(true))
    }
    /// How long its nodes may be cut off before they stop its local tasks by themselves.
    #[must_use]
    pub fn stop_on_client_after(&self) -> Option<GoDuration> {
        let newer = self.disconnect.as_ref().and_then(|d| d.stop_on_client_after);
        newer.or(self.stop_after_client_disconnect).filter(|d| d.nanos() > 0)
    }
    /// The wanted number of allocations.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count.map_or(1, |c| u32::try_from(c).unwrap_or(0))
    }
    /// The task of that name.
    #[must_use]
    pub fn task(&self, name: &str) -> Option<&Task> {
        self.tasks.iter().find(|t| &*t.name == name)
    }
}

/// Disk that the tasks of a group share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Described)]
#[serde(default)]
#[job(filled)]
pub struct EphemeralDisk {
    /// Prefer the node of the previous allocation.
    #[serde(rename = "Sticky")]
    #[job(default = false)]
    pub sticky: Option<bool>,
    /// Copy the data from the previous node.
    #[serde(rename = "Migrate")]
    #[job(default = false)]
    pub migrate: Option<bool>,
    /// Size in MiB.
    #[serde(rename = "SizeMB")]
    #[job(hcl = "size", kind = INT, default = 300)]
    pub size_mb: Option<i64>,
}

/// A volume that a group asks for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Described)]
#[serde(default, rename_all = "PascalCase")]
pub struct VolumeRequest {
    /// Name within the group.
    #[job(label)]
    pub name: String,
    /// `host` or `csi`.
    #[serde(rename = "Type")]
    #[job(hcl = "type", server = "host")]
    pub kind: String,
    /// Name of the volume at the node, or its id at the CSI plugin.
    pub source: String,
    /// Tasks cannot write to it.
    pub read_only: bool,
    /// How it is used: one of the ways that the volume allows. Unset = the first that serves.
    pub access_mode: String,
    /// How it is attached: one of the ways that the volume allows. Unset = the first that serves.
    pub attachment_mode: String,
    /// CSI mount options.
    #[job(shape = Shape::One(schema::opaque::MOUNT_OPTIONS))]
    pub mount_options: Option<serde_json::Value>,
    /// One volume for each allocation: `source[0]`, `source[1]`, and so on.
    pub per_alloc: bool,
    /// Replacements go where a dynamic volume is that the group has had.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[job(left_out)]
    pub sticky: bool,
}

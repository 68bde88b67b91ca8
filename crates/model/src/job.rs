//! What a user submits: a job of task groups.

use std::{collections::BTreeMap, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::{
    constraint::{Affinity, Constraint, Spread},
    go_duration::GoDuration,
    ids::{JobId, JobKey, Namespace, StoreIndex, TimestampNs},
    network::Network,
    policy::{Disconnect, Migrate, Patience, Pick, Reschedule, Restart, Update},
    service::Service,
    task::{Consul, Task, Vault},
};

/// Free key and value pairs.
pub type Meta = BTreeMap<String, String>;

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

/// A job. Serde form: the `Job` object of Nomad's HTTP API.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct Job {
    /// Stopped by the user; kept until collected.
    pub stop: bool,
    /// Region.
    pub region: String,
    /// Namespace.
    pub namespace: Namespace,
    /// Id within the namespace.
    #[serde(rename = "ID")]
    pub id: JobId,
    /// The job that dispatched or launched this one; empty otherwise.
    #[serde(rename = "ParentID")]
    pub parent_id: String,
    /// Display name.
    pub name: String,
    /// Kind, see [`job_type`].
    #[serde(rename = "Type")]
    pub kind: JobType,
    /// 1..=100.
    pub priority: i32,
    /// Place all or nothing.
    pub all_at_once: bool,
    /// Globs of datacenters.
    pub datacenters: Vec<String>,
    /// Node pool.
    pub node_pool: String,
    /// Rules for all groups.
    pub constraints: Vec<Constraint>,
    /// Preferences for all groups.
    pub affinities: Vec<Affinity>,
    /// Spreads for all groups.
    pub spreads: Vec<Spread>,
    /// The groups.
    pub task_groups: Vec<TaskGroup>,
    /// Default update policy of the groups.
    pub update: Option<Update>,
    /// Default reschedule policy of the groups (input only: merged into groups).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reschedule: Option<Reschedule>,
    /// Default migrate policy of the groups (input only: merged into groups).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub migrate: Option<Migrate>,
    /// Enterprise: refused.
    pub multiregion: Option<serde_json::Value>,
    /// Launch by the clock.
    pub periodic: Option<Periodic>,
    /// A template for dispatched children.
    pub parameterized_job: Option<Parameterized>,
    /// True for a dispatched child.
    pub dispatched: bool,
    /// The token of the dispatch, of which one child is made however often it is repeated; empty = none.
    pub dispatch_idempotency_token: String,
    /// Dispatch payload, base64 in JSON.
    pub payload: Option<String>,
    /// Free metadata.
    pub meta: Meta,
    /// Deprecated.
    pub consul_token: String,
    /// Enterprise: refused.
    pub consul_namespace: String,
    /// Deprecated.
    pub vault_token: String,
    /// Enterprise: refused.
    pub vault_namespace: String,
    /// For the web UI.
    #[serde(rename = "UI")]
    pub ui: Option<JobUi>,
    /// See [`job_status`].
    pub status: JobStatus,
    /// Why it has that status.
    pub status_description: String,
    /// True when a deployment of this version has succeeded (or needed none).
    pub stable: bool,
    /// Grows with each changed registration, from 0.
    pub version: u64,
    /// When this version was submitted.
    pub submit_time: TimestampNs,
    /// Name given to the version, if any.
    pub version_tag: Option<VersionTag>,
    /// Index of the first registration.
    pub create_index: StoreIndex,
    /// Index of the last change, status included.
    pub modify_index: StoreIndex,
    /// Index of the last change by a user.
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
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct VersionTag {
    /// The name.
    pub name: String,
    /// Free text.
    pub description: String,
    /// When it was given.
    pub tagged_time: TimestampNs,
}

/// What the web UI shows with a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct JobUi {
    /// Free text.
    pub description: String,
    /// Links.
    pub links: Vec<UiLink>,
}

/// A link of [`JobUi`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct UiLink {
    /// Text.
    #[serde(rename = "Label")]
    pub label: String,
    /// Address.
    #[serde(rename = "URL", alias = "Url")]
    pub url: String,
}

/// Launch by the clock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct Periodic {
    /// Off without being removed.
    pub enabled: Option<bool>,
    /// One cron expression.
    pub spec: Option<String>,
    /// Several cron expressions.
    pub specs: Vec<String>,
    /// `cron`.
    pub spec_type: Option<String>,
    /// No launch while the previous one runs.
    pub prohibit_overlap: Option<bool>,
    /// Zone of the expressions.
    pub time_zone: Option<String>,
}

/// What a dispatch may carry.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct Parameterized {
    /// `optional`, `required` or `forbidden`.
    pub payload: String,
    /// Keys that a dispatch must give.
    pub meta_required: Vec<String>,
    /// Keys that a dispatch may give.
    pub meta_optional: Vec<String>,
}

/// Tasks that are placed on one node together.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct TaskGroup {
    /// Name, unique in the job.
    pub name: Arc<str>,
    /// How many allocations; filled by canonicalisation.
    pub count: Option<i32>,
    /// Rules.
    pub constraints: Vec<Constraint>,
    /// Preferences.
    pub affinities: Vec<Affinity>,
    /// Spreads.
    pub spreads: Vec<Spread>,
    /// The tasks.
    pub tasks: Vec<Task>,
    /// Volumes by the name that tasks mount them with.
    pub volumes: BTreeMap<String, VolumeRequest>,
    /// Restart policy.
    #[serde(rename = "RestartPolicy")]
    pub restart: Option<Restart>,
    /// Reschedule policy.
    #[serde(rename = "ReschedulePolicy")]
    pub reschedule: Option<Reschedule>,
    /// Disk shared by the tasks.
    pub ephemeral_disk: Option<EphemeralDisk>,
    /// Update policy.
    pub update: Option<Update>,
    /// Migrate policy.
    pub migrate: Option<Migrate>,
    /// Behaviour when the node is cut off.
    pub disconnect: Option<Disconnect>,
    /// Its allocations are ended after this long: refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_run_duration: Option<GoDuration>,
    /// Networks; at most one.
    pub networks: Vec<Network>,
    /// Free metadata.
    pub meta: Meta,
    /// Services of the group.
    pub services: Vec<Service>,
    /// Wait between deregistration and stop.
    pub shutdown_delay: Option<GoDuration>,
    /// Replaced by disconnect.
    pub stop_after_client_disconnect: Option<GoDuration>,
    /// Replaced by disconnect.
    pub max_client_disconnect: Option<GoDuration>,
    /// Replaced by disconnect.
    pub prevent_reschedule_on_lost: Option<bool>,
    /// Bounds for the autoscaler.
    pub scaling: Option<Scaling>,
    /// Consul settings.
    pub consul: Option<Consul>,
    /// Vault settings (input only: spread to the tasks).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vault: Option<Vault>,
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

/// Disk shared by the tasks of a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct EphemeralDisk {
    /// Prefer the node of the previous allocation.
    #[serde(rename = "Sticky")]
    pub sticky: Option<bool>,
    /// Copy the data from the previous node.
    #[serde(rename = "Migrate")]
    pub migrate: Option<bool>,
    /// MiB.
    #[serde(rename = "SizeMB")]
    pub size_mb: Option<i64>,
}

impl Default for EphemeralDisk {
    fn default() -> Self {
        Self { sticky: Some(false), migrate: Some(false), size_mb: Some(300) }
    }
}

/// A volume that a group asks for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct VolumeRequest {
    /// Name within the group.
    pub name: String,
    /// `host` or `csi`.
    #[serde(rename = "Type")]
    pub kind: String,
    /// Name at the node or the id at the CSI plugin.
    pub source: String,
    /// Mounted read-only.
    pub read_only: bool,
    /// CSI access mode.
    pub access_mode: String,
    /// CSI attachment mode.
    pub attachment_mode: String,
    /// CSI mount options.
    pub mount_options: Option<serde_json::Value>,
    /// One volume per allocation.
    pub per_alloc: bool,
    /// The group stays with the volume that it had: refused.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub sticky: bool,
}

/// Bounds for the autoscaler.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Scaling {
    /// Off without being removed.
    #[serde(rename = "Enabled")]
    pub enabled: Option<bool>,
    /// Lower bound.
    #[serde(rename = "Min")]
    pub min: Option<i64>,
    /// Upper bound.
    #[serde(rename = "Max")]
    pub max: Option<i64>,
    /// Free form.
    #[serde(rename = "Policy")]
    pub policy: Option<serde_json::Value>,
    /// `horizontal`, `vertical_cpu`, `vertical_mem`.
    #[serde(rename = "Type")]
    pub kind: String,
    /// Assigned by the servers.
    #[serde(rename = "ID")]
    pub id: String,
    /// Namespace, Job, Group, Task.
    #[serde(rename = "Target")]
    pub target: BTreeMap<String, String>,
    /// Index of the registration that has brought it; see [`crate::scaling`].
    #[serde(rename = "CreateIndex")]
    pub create_index: StoreIndex,
    /// Index of the registration that has changed it last.
    #[serde(rename = "ModifyIndex")]
    pub modify_index: StoreIndex,
}

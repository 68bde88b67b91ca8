//! An allocation: one group of a job placed on one node, with what became of it.
//!
//! ```text
//! desired:  run ──► stop | evict
//! client:   pending ─► running ─► complete | failed
//!              └───────────┴────► lost (node gone) | unknown (node cut off)
//! task:     pending ─► running ─► dead
//! ```

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{
    ids::{AllocId, DeploymentId, EvalId, IncarnationId, JobId, JobKey, Namespace, NodeId, StoreIndex, TimestampNs},
    job::Job,
    map::Map,
    metrics::AllocMetric,
    network::Dns,
    resources::AllocatedResources,
    service::{RemoteServices, ServiceEntry},
};

/// What the servers want.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DesiredStatus {
    /// It should run.
    #[default]
    Run,
    /// It should stop.
    Stop,
    /// It was displaced.
    Evict,
}

/// What the node has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClientStatus {
    /// Not started.
    #[default]
    Pending,
    /// At least one task runs.
    Running,
    /// Ended well.
    Complete,
    /// Ended badly.
    Failed,
    /// The node is gone.
    Lost,
    /// The node is cut off.
    Unknown,
}

impl ClientStatus {
    /// True when nothing more happens on the node.
    #[must_use]
    pub fn terminal(self) -> bool {
        matches!(self, Self::Complete | Self::Failed | Self::Lost)
    }
}

/// An allocation. Serde form: the `Allocation` object of the HTTP API without its `Job`, which the API layer adds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct Allocation {
    /// Id.
    #[serde(rename = "ID")]
    pub id: AllocId,
    /// Namespace of the job.
    pub namespace: Namespace,
    /// Evaluation that placed or last changed it.
    #[serde(rename = "EvalID")]
    pub eval_id: EvalId,
    /// `job.group[index]`.
    pub name: Arc<str>,
    /// Node.
    #[serde(rename = "NodeID")]
    pub node_id: NodeId,
    /// Name of the node.
    pub node_name: Arc<str>,
    /// Job.
    #[serde(rename = "JobID")]
    pub job_id: JobId,
    /// Version of the job that it runs.
    pub job_version: u64,
    /// The job in that version; shared between allocations, not part of the record.
    #[serde(skip)]
    pub job: Option<Arc<Job>>,
    /// Group.
    pub task_group: Arc<str>,
    /// What it got.
    #[serde(rename = "AllocatedResources")]
    pub resources: Arc<AllocatedResources>,
    /// Why it was placed there.
    pub metrics: Option<Arc<AllocMetric>>,
    /// What the servers want.
    pub desired_status: DesiredStatus,
    /// Why.
    pub desired_description: String,
    /// What should happen next.
    pub desired_transition: DesiredTransition,
    /// What the node has seen.
    pub client_status: ClientStatus,
    /// Details.
    pub client_description: String,
    /// By task name.
    pub task_states: Map<Arc<str>, TaskState>,
    /// Deployment that it belongs to.
    #[serde(rename = "DeploymentID")]
    pub deployment_id: DeploymentId,
    /// Its health in that deployment.
    pub deployment_status: Option<AllocDeploymentStatus>,
    /// The allocation that it replaces.
    pub previous_allocation: AllocId,
    /// The allocation that replaces it.
    pub next_allocation: AllocId,
    /// Evaluation that will reschedule it later.
    #[serde(rename = "FollowupEvalID")]
    pub followup_eval_id: EvalId,
    /// Earlier attempts.
    pub reschedule_tracker: Option<RescheduleTracker>,
    /// Network namespace as set up by the node.
    pub network_status: Option<NetworkStatus>,
    /// When its node was cut off and heard from again, oldest first.
    pub alloc_states: Vec<AllocStateChange>,
    /// Incarnations of its remote tasks, by task name.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub remote: Map<Arc<str>, IncarnationId>,
    /// Index of its creation.
    pub create_index: StoreIndex,
    /// Index of its last change.
    pub modify_index: StoreIndex,
    /// Index of the last change by the servers: what nodes compare.
    pub alloc_modify_index: StoreIndex,
    /// When it was created.
    pub create_time: TimestampNs,
    /// When it was last changed.
    pub modify_time: TimestampNs,
}

impl Allocation {
    /// The job's full name.
    #[must_use]
    pub fn job_key(&self) -> JobKey {
        JobKey { namespace: self.namespace.clone(), id: self.job_id.clone() }
    }
    /// The index in `job.group[index]`; 0 when the name is not of that form.
    #[must_use]
    pub fn index(&self) -> u32 {
        alloc_index(&self.name)
    }
    /// Stopped or evicted by the servers.
    #[must_use]
    pub fn server_terminal(&self) -> bool {
        self.desired_status != DesiredStatus::Run
    }
    /// Ended on its node.
    #[must_use]
    pub fn client_terminal(&self) -> bool {
        self.client_status.terminal()
    }
    /// Terminal for one side or the other: it no longer counts.
    #[must_use]
    pub fn terminal(&self) -> bool {
        self.server_terminal() || self.client_terminal()
    }
    /// True when it still takes room on its node.
    #[must_use]
    pub fn occupies(&self) -> bool {
        !self.client_terminal()
    }
    /// Its node was cut off at some time, and it was waited for.
    #[must_use]
    pub fn was_unknown(&self) -> bool {
        self.alloc_states.iter().any(|s| s.field == AllocStateChange::CLIENT_STATUS && s.value == AllocStateChange::UNKNOWN)
    }
    /// Health in its deployment, if decided.
    #[must_use]
    pub fn healthy(&self) -> Option<bool> {
        self.deployment_status.as_ref().and_then(|d| d.healthy)
    }
    /// All tasks ended and none failed.
    #[must_use]
    pub fn ran_successfully(&self) -> bool {
        !self.task_states.is_empty() && self.task_states.values().all(|t| t.state == TaskRunState::Dead && !t.failed)
    }
}

/// The name of an allocation.
#[must_use]
pub fn alloc_name(job: &str, group: &str, index: u32) -> String {
    format!("{job}.{group}[{index}]")
}

/// The index in an allocation's name; 0 when it has none.
#[must_use]
pub fn alloc_index(name: &str) -> u32 {
    name.rsplit_once('[').and_then(|(_, r)| r.strip_suffix(']')).and_then(|n| n.parse().ok()).unwrap_or(0)
}

/// What should happen to an allocation next.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct DesiredTransition {
    /// Move it off its node.
    pub migrate: Option<bool>,
    /// Reschedule it.
    pub reschedule: Option<bool>,
    /// Reschedule it whatever the policy says.
    pub force_reschedule: Option<bool>,
    /// Stop without shutdown_delay.
    pub no_shutdown_delay: Option<bool>,
}

/// Health of an allocation in its deployment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct AllocDeploymentStatus {
    /// None = not decided yet.
    pub healthy: Option<bool>,
    /// When it was decided, RFC 3339.
    #[serde(with = "go_time")]
    pub timestamp: String,
    /// It is a canary.
    pub canary: bool,
    /// Index of the last change.
    pub modify_index: StoreIndex,
}

/// A change of an allocation that says since when something holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct AllocStateChange {
    /// What has changed: [`AllocStateChange::CLIENT_STATUS`].
    pub field: String,
    /// To what.
    pub value: String,
    /// When, RFC 3339.
    #[serde(with = "go_time")]
    pub time: String,
}

impl AllocStateChange {
    /// Its client status.
    pub const CLIENT_STATUS: &str = "ClientStatus";
    /// The status of an allocation whose node is cut off.
    pub const UNKNOWN: &str = "unknown";
}

/// Earlier attempts of an allocation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct RescheduleTracker {
    /// Oldest first.
    pub events: Vec<RescheduleEvent>,
    /// Why the last attempt found no place.
    pub last_reschedule: String,
}

/// One earlier attempt.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RescheduleEvent {
    /// When.
    #[serde(rename = "RescheduleTime")]
    pub time: TimestampNs,
    /// The allocation that had failed.
    #[serde(rename = "PrevAllocID")]
    pub prev_alloc_id: AllocId,
    /// Its node.
    #[serde(rename = "PrevNodeID")]
    pub prev_node_id: NodeId,
    /// The pause before.
    #[serde(rename = "Delay")]
    pub delay: crate::go_duration::GoDuration,
}

/// Network namespace of an allocation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct NetworkStatus {
    /// Interface inside.
    pub interface_name: String,
    /// Address inside.
    pub address: String,
    /// Resolver.
    #[serde(rename = "DNS")]
    pub dns: Option<Dns>,
}

/// Phase of a task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TaskRunState {
    /// Not started.
    #[default]
    Pending,
    /// Started.
    Running,
    /// Ended for good.
    Dead,
}

/// State of a task as its node sees it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct TaskState {
    /// Phase.
    pub state: TaskRunState,
    /// It has failed.
    pub failed: bool,
    /// Restarts so far.
    pub restarts: u64,
    /// Last restart, RFC 3339; empty = never.
    #[serde(with = "go_time")]
    pub last_restart: String,
    /// Start of the current or last run, RFC 3339.
    #[serde(with = "go_time")]
    pub started_at: String,
    /// End of the last run, RFC 3339.
    #[serde(with = "go_time")]
    pub finished_at: String,
    /// The last ten events.
    pub events: Vec<TaskEvent>,
    /// Kept for API compatibility; the handle itself lives in the remote-task record.
    pub task_handle: Option<serde_json::Value>,
    /// Paused by a schedule (enterprise).
    pub paused: String,
}

/// Text times that Go writes as `0001-01-01T00:00:00Z` when unset; empty here. Typed clients refuse an empty text, and some of them null.
pub mod go_time {
    use serde::{Deserialize, Deserializer, Serializer};

    /// Go's zero time.
    pub const ZERO: &str = "0001-01-01T00:00:00Z";

    /// Writes Go's zero time for an unset one.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(t: &str, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(if t.is_empty() { ZERO } else { t })
    }

    /// Reads null and Go's zero time as unset.
    ///
    /// # Errors
    /// When the value is neither null nor text.
    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<String, D::Error> {
        let t = Option::<String>::deserialize(d)?.unwrap_or_default();
        Ok(if t == ZERO { String::new() } else { t })
    }
}

/// Something that happened to a task.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TaskEvent {
    /// Kind: Received, Task Setup, Started, Terminated, Restarting, Killing, Killed, Driver Failure …
    #[serde(rename = "Type")]
    pub kind: String,
    /// When.
    #[serde(rename = "Time")]
    pub time: TimestampNs,
    /// One line for people.
    #[serde(rename = "DisplayMessage")]
    pub display_message: String,
    /// Details by name (exit_code, signal, oom_killed, start_delay …).
    #[serde(rename = "Details")]
    pub details: Map<String, String>,
    /// Message of the driver or node.
    #[serde(rename = "Message")]
    pub message: String,
    /// The event makes the task failed.
    #[serde(rename = "FailsTask")]
    pub fails_task: bool,
    /// Exit code of a Terminated event.
    #[serde(rename = "ExitCode")]
    pub exit_code: i32,
    /// Signal of a Terminated event.
    #[serde(rename = "Signal")]
    pub signal: i32,
    /// Error of the driver.
    #[serde(rename = "DriverError")]
    pub driver_error: String,
    /// Why a restart was decided.
    #[serde(rename = "RestartReason")]
    pub restart_reason: String,
}

/// What a node reports about an allocation; the fields that belong to the node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct AllocClientUpdate {
    /// Id.
    #[serde(rename = "ID")]
    pub id: AllocId,
    /// Status.
    pub client_status: ClientStatus,
    /// Details.
    pub client_description: String,
    /// By task name.
    pub task_states: Map<Arc<str>, TaskState>,
    /// Health, when decided.
    pub deployment_status: Option<AllocDeploymentStatus>,
    /// Network, when set up.
    pub network_status: Option<NetworkStatus>,
    /// All services of the group and of local tasks; None = nothing is said about them.
    pub services: Option<Vec<ServiceEntry>>,
    /// Services of the remote tasks that the node manages now; nothing is said about others.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub remote_services: Map<Arc<str>, RemoteServices>,
}

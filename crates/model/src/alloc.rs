//! An allocation: one group of a job placed on one node, with what became of it.
//!
//! ```text
//! desired:  run ──► stop | evict
//! client:   pending ─► running ─► complete | failed
//!              └───────────┴────► lost (node gone) | unknown (node cut off)
//! task:     pending ─► running ─► dead
//! ```

use std::{
    ops::Deref,
    sync::{Arc, LazyLock},
};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{
    charge::RestartCharges,
    common::{Common, Kept, Table, Text},
    go_time::{self, GoTime},
    ids::{AllocId, DeploymentId, EvalId, IncarnationId, JobId, JobKey, Namespace, NodeId, StoreIndex, TimestampNs},
    job::Job,
    map::{Map, exact},
    metrics::AllocMetric,
    network::Dns,
    resources::AllocatedResources,
    service::{RemoteServices, ServiceEntry},
};

/// What an allocation and its tasks say of themselves when the group's `max_run_duration` has ended them: the text that
/// Nomad's clients and event readers know.
pub const MAX_RUN_EXCEEDED: &str = "allocation exceeded max_run_duration";

/// Detail of the events `Killing` and `Killed` of a task that its node has stopped without an order: no server had
/// answered the node for the group's `stop_on_client_after`.
pub const CUT_OFF: &str = "cut_off";

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
    pub desired_description: Text,
    /// What should happen next.
    pub desired_transition: DesiredTransition,
    /// What the node has seen.
    pub client_status: ClientStatus,
    /// Details.
    pub client_description: Text,
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
    pub reschedule_tracker: Option<Box<RescheduleTracker>>,
    /// Network namespace as set up by the node.
    pub network_status: Option<Box<NetworkStatus>>,
    /// When its node was cut off and heard from again, oldest first.
    pub alloc_states: Vec<AllocStateChange>,
    /// Incarnations of its remote tasks, by task name.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub remote: Map<Arc<str>, IncarnationId>,
    /// What it has displaced, or what has displaced it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preemption: Option<Box<Preemption>>,
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

/// An allocation's part in preemption: a job of higher priority got the room of others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct Preemption {
    /// The allocations that were displaced for it, all of its node.
    pub preempted_allocations: Vec<AllocId>,
    /// The allocation that it was displaced for; nil = it was not.
    pub preempted_by_allocation: AllocId,
}

impl Allocation {
    /// The allocations that were displaced for it.
    #[must_use]
    pub fn preempted(&self) -> &[AllocId] {
        self.preemption.as_ref().map_or(&[], |p| &p.preempted_allocations)
    }
    /// The allocation that it was displaced for; nil = it was not.
    #[must_use]
    pub fn preempted_by(&self) -> AllocId {
        self.preemption.as_ref().map_or(AllocId::NIL, |p| p.preempted_by_allocation)
    }
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
    /// The restarts that changed templates of its tasks ask for.
    pub fn rolling_restarts(&self) -> impl Iterator<Item = &RollingRestart> {
        self.task_states.values().filter_map(|task| task.rolling_restart.as_deref())
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
        self.alloc_states
            .iter()
            .any(|s| s.field == AllocStateChange::CLIENT_STATUS && s.value == AllocStateChange::UNKNOWN)
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
    /// The [turn](RollingRestart::turn) that has come; 0 = none has. One byte: a million allocations have it.
    #[serde(skip_serializing_if = "no_turn")]
    pub rolling_restart: u8,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it like this")]
fn no_turn(turn: &u8) -> bool {
    *turn == 0
}

/// The restart of a task whose template with `rolling` has changed. It waits for its turn among the allocations of its
/// group, and is over when the allocation is healthy with the new data.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct RollingRestart {
    /// The turn that it waits for: another one than the last that had come, 1 to 255.
    pub turn: u8,
    /// Digest of what the templates have rendered.
    pub data: String,
    /// When the template changed first, by the node's clock, Unix ns.
    pub asked: TimestampNs,
    /// When it changed last, by the node's clock, Unix ns.
    pub changed: TimestampNs,
    /// When its turn had come, by the node's clock, Unix ns; 0 = it waits.
    pub begun: TimestampNs,
    /// The allocation has not become healthy with the new data.
    pub unhealthy: bool,
}

/// Health of an allocation in its deployment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct AllocDeploymentStatus {
    /// None = not decided yet.
    pub healthy: Option<bool>,
    /// When it was decided.
    pub timestamp: GoTime,
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
    /// When.
    pub time: GoTime,
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
    /// IPv6 address inside, where there is one besides.
    #[serde(rename = "AddressIPv6")]
    pub address_ipv6: String,
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
    /// What has spent the attempts of its restart policy in the present interval. For a remote task the record of its
    /// slot tells.
    #[serde(skip_serializing_if = "RestartCharges::is_none")]
    pub restart_charges: RestartCharges,
    /// Last restart.
    #[serde(serialize_with = "go_time::or_null")]
    pub last_restart: GoTime,
    /// Start of the current or last run.
    #[serde(serialize_with = "go_time::or_null")]
    pub started_at: GoTime,
    /// End of the last run.
    #[serde(serialize_with = "go_time::or_null")]
    pub finished_at: GoTime,
    /// The restart that its changed templates ask for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rolling_restart: Option<Box<RollingRestart>>,
    /// The last ten events.
    #[serde(deserialize_with = "exact")]
    pub events: Vec<TaskEvent>,
    /// Kept for API compatibility; the handle itself lives in the remote-task record.
    pub task_handle: Option<Box<serde_json::Value>>,
    /// Paused by a schedule (enterprise).
    pub paused: Text,
}

/// Something that happened to a task. Serde form: one object, the time among what has happened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaskEvent {
    /// When.
    pub time: TimestampNs,
    /// What: the same happens to many tasks.
    pub what: Common<Happening>,
}

impl Deref for TaskEvent {
    type Target = Happening;

    fn deref(&self) -> &Happening {
        &self.what
    }
}

/// Content of an event, without its time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Happening {
    /// Kind: Received, Task Setup, Started, Terminated, Restarting, Killing, Killed, Driver Failure …
    pub kind: String,
    /// One line for people.
    pub display_message: String,
    /// Details by name (exit_code, signal, oom_killed, start_delay …).
    pub details: Map<String, String>,
    /// Message of the driver or node.
    pub message: String,
    /// The event makes the task failed.
    pub fails_task: bool,
    /// Exit code of a Terminated event.
    pub exit_code: i32,
    /// Signal of a Terminated event.
    pub signal: i32,
    /// Error of the driver.
    pub driver_error: String,
    /// Why a restart was decided.
    pub restart_reason: String,
}

impl Happening {
    /// The event of it.
    #[must_use]
    pub fn at(self, time: TimestampNs) -> TaskEvent {
        TaskEvent { time, what: self.into() }
    }
}

impl Kept for Happening {
    fn table() -> &'static Table<Self> {
        static HAPPENINGS: LazyLock<Table<Happening>> = LazyLock::new(Table::default);
        &HAPPENINGS
    }
}

/// A task event as it is written: with texts of its own when it is read, with those of the event when it is written.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct WrittenEvent<T, D> {
    #[serde(rename = "Type")]
    kind: T,
    #[serde(rename = "Time")]
    time: TimestampNs,
    #[serde(rename = "DisplayMessage")]
    display_message: T,
    #[serde(rename = "Details")]
    details: D,
    #[serde(rename = "Message")]
    message: T,
    #[serde(rename = "FailsTask")]
    fails_task: bool,
    #[serde(rename = "ExitCode")]
    exit_code: i32,
    #[serde(rename = "Signal")]
    signal: i32,
    #[serde(rename = "DriverError")]
    driver_error: T,
    #[serde(rename = "RestartReason")]
    restart_reason: T,
}

impl Serialize for TaskEvent {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let Happening {
            kind,
            display_message,
            details,
            message,
            fails_task,
            exit_code,
            signal,
            driver_error,
            restart_reason,
        } = &*self.what;
        WrittenEvent {
            kind,
            time: self.time,
            display_message,
            details,
            message,
            fails_task: *fails_task,
            exit_code: *exit_code,
            signal: *signal,
            driver_error,
            restart_reason,
        }
        .serialize(s)
    }
}

impl<'de> Deserialize<'de> for TaskEvent {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let read = WrittenEvent::<String, Map<String, String>>::deserialize(d)?;
        let WrittenEvent {
            kind,
            time,
            display_message,
            details,
            message,
            fails_task,
            exit_code,
            signal,
            driver_error,
            restart_reason,
        } = read;
        let what = Happening {
            kind,
            display_message,
            details,
            message,
            fails_task,
            exit_code,
            signal,
            driver_error,
            restart_reason,
        };
        Ok(what.at(time))
    }
}

/// A node's report about an allocation: the fields that the node owns.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct AllocClientUpdate {
    /// Id.
    #[serde(rename = "ID")]
    pub id: AllocId,
    /// Status.
    pub client_status: ClientStatus,
    /// Details.
    pub client_description: Text,
    /// By task name.
    pub task_states: Map<Arc<str>, TaskState>,
    /// Health, when decided.
    pub deployment_status: Option<AllocDeploymentStatus>,
    /// Network, when set up.
    pub network_status: Option<Box<NetworkStatus>>,
    /// All services of the group and of local tasks; None = nothing is said about them.
    pub services: Option<Vec<ServiceEntry>>,
    /// Services of the remote tasks that the node manages now; nothing is said about others.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub remote_services: Map<Arc<str>, RemoteServices>,
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVENT: &str = r#"{"Type":"Terminated","Time":5,"DisplayMessage":"Exit Code: 1","Details":{"exit_code":"1"},"Message":"m","FailsTask":true,"ExitCode":1,"Signal":9,"DriverError":"d","RestartReason":"r"}"#;

    #[test]
    fn events_are_written_as_one_object_and_kept_as_two() {
        let event: TaskEvent = serde_json::from_str(EVENT).unwrap();
        assert_eq!(serde_json::to_string(&event).unwrap(), EVENT);
        assert_eq!(
            (event.time, event.kind.as_str(), event.exit_code, event.details["exit_code"].as_str()),
            (5, "Terminated", 1, "1")
        );
        let later: TaskEvent = serde_json::from_str(&EVENT.replace("\"Time\":5", "\"Time\":6")).unwrap();
        assert!(std::ptr::eq(&*later.what, &*event.what) && later != event);
        assert_eq!(serde_json::from_str::<TaskEvent>("{}").unwrap(), TaskEvent::default());
        assert_eq!(size_of::<TaskEvent>(), 16);
    }

    #[test]
    fn states_of_tasks_keep_their_form() {
        let json = format!(
            r#"{{"State":"running","Failed":false,"Restarts":1,"LastRestart":null,"StartedAt":"2026-11-21T08:00:00.5Z","FinishedAt":null,"Events":[{EVENT}],"TaskHandle":{{"a":1}},"Paused":"p"}}"#
        );
        let state: TaskState = serde_json::from_str(&json).unwrap();
        assert_eq!(serde_json::to_string(&state).unwrap(), json);
        assert_eq!(state.events.capacity(), 1, "no room is kept for more");
        let zero = json.replace("null", "\"0001-01-01T00:00:00Z\"");
        assert_eq!(serde_json::from_str::<TaskState>(&zero).unwrap(), state, "as it was written before");
    }

    #[test]
    fn what_few_allocations_have_is_written_like_the_rest() {
        let parts = [
            r#""RescheduleTracker":{"Events":[],"LastReschedule":"no place"}"#,
            r#""NetworkStatus":{"InterfaceName":"eth0","Address":"10.0.0.2","AddressIPv6":"","DNS":null}"#,
            r#""AllocStates":[{"Field":"ClientStatus","Value":"unknown","Time":"2026-11-21T08:00:00Z"}]"#,
        ];
        let alloc: Allocation = serde_json::from_str(&format!("{{{}}}", parts.join(","))).unwrap();
        assert!(alloc.was_unknown());
        let written = serde_json::to_string(&alloc).unwrap();
        assert!(parts.iter().all(|part| written.contains(part)), "{written}");
        assert!(size_of::<Allocation>() <= 416, "{} bytes", size_of::<Allocation>());
    }
}

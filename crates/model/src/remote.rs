//! The record that the servers keep of each remote task: the heart of the project.
//!
//! A *slot* should have one running instance; an *incarnation* is one instance; the *manager* is the node that drives
//! it now; the *epoch* grows whenever management moves; the *lease* says how long a manager may act without hearing
//! from the servers. Transitions are in `lifecycle::remote`, one pure function used by servers, nodes, the model
//! checker and the simulator.
//!
//! ```text
//! observed:  Intended ─► Creating ─► Running ─► Exited ─► (acknowledged, record ends or a new incarnation follows)
//!                 └──────────┴──────────┴──► Unknown ─► back to any of them;  Gone = positively absent
//! desired:   Run ─► Stop (a tombstone: outlives job, allocation, collection and server restarts, until absence is
//! confirmed)
//! ```

use std::{
    collections::BTreeMap,
    sync::{Arc, LazyLock},
};

use serde::{Deserialize, Serialize};

use crate::{
    charge::RestartCharges,
    common::{Common, Kept, Table, Text},
    ids::{AllocId, IncarnationId, NodeId, SlotKey, SlotParts, StoreIndex, TimestampNs},
    map::{Map, exact},
};

/// Desired state of a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DesiredRemote {
    /// The incarnation should run.
    #[default]
    Run,
    /// The incarnation should be stopped and confirmed absent.
    Stop,
}

/// Observed state of an incarnation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "State", rename_all_fields = "PascalCase")]
pub enum Observed {
    /// Committed on the servers; the provider may or may not have been asked yet.
    #[default]
    Intended,
    /// The provider is at it.
    Creating,
    /// Alive.
    Running,
    /// Ended; the result is exact.
    Exited {
        /// Exit code.
        code: i32,
        /// Signal, 0 = none.
        signal: i32,
        /// The kernel killed it because it ran out of memory.
        oom_killed: bool,
        /// What the provider says about it.
        reason: Text,
        /// When.
        at: TimestampNs,
    },
    /// The provider has positively answered that there is no such instance.
    Gone,
    /// It could not be asked.
    Unknown {
        /// Since when.
        since: TimestampNs,
        /// Why.
        why: Text,
    },
}

impl RemoteTask {
    /// The name of the instance has been seen at the provider at least once.
    #[must_use]
    pub fn seen(&self) -> bool {
        self.handle.is_some() || self.started_at != 0
    }
    /// Seen at the provider, wanted, and not known to have ended: it counts for its job, whether or not a node
    /// manages it now.
    #[must_use]
    pub fn stands(&self) -> bool {
        self.desired == DesiredRemote::Run && self.seen() && !self.observed.ended()
    }
    /// Ended, counted, and the provider has let it go: the slot is free for what follows.
    #[must_use]
    pub fn settled(&self) -> bool {
        self.observed.ended()
            && self.exit_acknowledged
            && (self.forgotten || (self.observed == Observed::Gone && self.manager.is_none()))
    }
    /// When its `max_run_duration` is over; `None` = it has none, or it is not known when it began.
    #[must_use]
    pub fn deadline(&self) -> Option<TimestampNs> {
        let began = if self.began == 0 { self.started_at } else { self.began };
        let max = self.policy.max_run.filter(|_| began != 0)?;
        Some(began.saturating_add(max.nanos()))
    }
    /// True when a later manager must look for an existing instance before it creates.
    #[must_use]
    pub fn adopt(&self) -> bool {
        self.epoch != self.incarnation_epoch
    }
}

impl Observed {
    /// True when the instance certainly does not run (any more).
    #[must_use]
    pub fn ended(&self) -> bool {
        matches!(self, Self::Exited { .. } | Self::Gone)
    }
}

impl Observed {
    /// The exit result, when there is one. An instance that has vanished counts as ended without a result.
    #[must_use]
    pub fn exit(&self, now: TimestampNs) -> Option<RemoteExit> {
        match self {
            Self::Exited { code, signal, oom_killed, reason, at } => Some(RemoteExit {
                code: *code,
                signal: *signal,
                oom_killed: *oom_killed,
                reason: reason.clone(),
                at: *at,
                vanished: false,
            }),
            Self::Gone => Some(RemoteExit {
                reason: "the provider has no such instance any more and no result of it".into(),
                at: now,
                vanished: true,
                ..RemoteExit::default()
            }),
            Self::Intended | Self::Creating | Self::Running | Self::Unknown { .. } => None,
        }
    }
}

/// The driver's token to find an instance again. Opaque; at most [`MAX_HANDLE_BYTES`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct RemoteHandle {
    /// Version of the driver's format.
    pub schema: u32,
    /// Bytes, hexadecimal in JSON. Shared: a node keeps them in the order, in its own books and in its watch.
    #[serde(with = "hex_bytes")]
    pub data: Arc<[u8]>,
}

/// Upper bound of [`RemoteHandle::data`].
pub const MAX_HANDLE_BYTES: usize = 16 * 1024;

/// A driver's note about a create, stored before the driver sends it. The next manager of the slot uses it to repeat
/// the same create or to look for its instance. Opaque to everyone else; at most [`MAX_INTENT_BYTES`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteIntent(#[serde(with = "hex_bytes")] pub Vec<u8>);

/// Upper bound of [`RemoteIntent`].
pub const MAX_INTENT_BYTES: usize = 4 * 1024;

mod hex_bytes {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(b: &[u8], s: S) -> Result<S::Ok, S::Error> {
        let mut text = String::with_capacity(b.len() * 2);
        for byte in b {
            text.push(char::from_digit(u32::from(byte >> 4), 16).unwrap_or('0'));
            text.push(char::from_digit(u32::from(byte & 15), 16).unwrap_or('0'));
        }
        s.serialize_str(&text)
    }
    pub(super) fn deserialize<'de, D: Deserializer<'de>, T: From<Vec<u8>>>(d: D) -> Result<T, D::Error> {
        let text = String::deserialize(d)?;
        if text.len() % 2 != 0 || !text.is_ascii() {
            return Err(D::Error::custom("a handle must be an even number of hexadecimal digits"));
        }
        let mut bytes = Vec::with_capacity(text.len() / 2);
        for at in (0..text.len()).step_by(2) {
            bytes.push(u8::from_str_radix(&text[at..at + 2], 16).map_err(D::Error::custom)?);
        }
        Ok(bytes.into())
    }
}

/// How an instance ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct RemoteExit {
    /// Exit code.
    pub code: i32,
    /// Signal, 0 = none.
    pub signal: i32,
    /// The kernel killed it because it ran out of memory.
    pub oom_killed: bool,
    /// What the provider says about it.
    pub reason: Text,
    /// When.
    pub at: TimestampNs,
    /// The instance vanished: the provider has no result, the code is not to be trusted.
    pub vanished: bool,
}

impl RemoteExit {
    /// Ended by itself with code 0.
    #[must_use]
    pub fn successful(&self) -> bool {
        self.code == 0 && self.signal == 0 && !self.oom_killed && !self.vanished
    }
}

/// Consequence of an incarnation's state for the allocation's task. Decided on the servers, carried out by the node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "Kind", rename_all_fields = "PascalCase")]
pub enum RemoteVerdict {
    /// It goes on: the task's state follows the observation.
    #[default]
    Active,
    /// It has ended and a new incarnation starts at that time: the task is pending (restarting).
    Restarting {
        /// When, Unix ns.
        at: TimestampNs,
        /// Why.
        reason: Text,
    },
    /// It has ended well: the task is dead, not failed.
    Complete,
    /// It has ended and the restart policy gives up: the task is dead and failed.
    Failed {
        /// Why.
        reason: Text,
    },
    /// It was ended by order: the task is dead, not failed.
    Stopped,
}

impl RemoteVerdict {
    /// The task is dead: nothing follows in this slot for its allocation.
    #[must_use]
    pub fn final_for_task(&self) -> bool {
        matches!(self, Self::Complete | Self::Failed { .. } | Self::Stopped)
    }
}

/// The part of a job that governs restarts and stops of a remote task; changes in place.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct RemotePolicy {
    /// True: exit code 0 completes the task (batch); false: it is restarted (service).
    pub batch: bool,
    /// Restart policy of the task, canonical.
    pub restart: crate::policy::Restart,
    /// Signal for a stop; empty = the driver's default.
    pub kill_signal: String,
    /// Time between the signal and the kill.
    pub kill_timeout: crate::go_duration::GoDuration,
    /// The group's `max_run_duration`: how long after [`RemoteTask::began`] the servers have it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_run: Option<crate::go_duration::GoDuration>,
}

impl Kept for RemotePolicy {
    fn table() -> &'static Table<Self> {
        static POLICIES: LazyLock<Table<RemotePolicy>> = LazyLock::new(Table::default);
        &POLICIES
    }
}

impl RemotePolicy {
    /// The policy of a task.
    #[must_use]
    pub fn of(job: &crate::job::Job, group: &crate::job::TaskGroup, task: &crate::task::Task) -> Self {
        let batch = crate::job::job_type::finite(&job.kind);
        Self {
            batch,
            restart: task.restart.clone().unwrap_or_default(),
            kill_signal: task.kill_signal.clone(),
            kill_timeout: task.kill_timeout.unwrap_or(crate::go_duration::GoDuration::from_secs(5)),
            max_run: group.max_run_duration.filter(|max| max.nanos() > 0),
        }
    }
}

/// What should run in a slot, and who is to manage it: an allocation as the slot sees it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct RemoteWanted {
    /// Version of the job.
    pub job_version: u64,
    /// Hash of all that the provider sees.
    pub spec_hash: Text,
    /// Driver.
    pub driver: Text,
    /// Identity of the runtime that the node reaches.
    pub provider: Text,
    /// Restart and stop policy.
    pub policy: Common<RemotePolicy>,
    /// Node and allocation; None once that node is lost: the next allocation of the slot fills it.
    pub manager: Option<Manager>,
    /// The allocation that the record served last has ended by itself (complete or failed) and this one follows it (a
    /// reschedule): a new incarnation is asked for. False for allocations that replace a lost, migrated or stopped
    /// one: they adopt.
    pub previous_ended: bool,
    /// The restart counters of the record are kept (an ordered restart of the same specification).
    pub keep_counters: bool,
    /// When the allocation was created; 0 = unknown.
    #[serde(skip_serializing_if = "is_zero")]
    pub created_at: TimestampNs,
}

/// Who may act on an incarnation, and until when.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct Manager {
    /// Node.
    #[serde(rename = "NodeID")]
    pub node_id: NodeId,
    /// Allocation for which it manages; nil when it only executes a stop.
    #[serde(rename = "AllocID")]
    pub alloc_id: AllocId,
}

/// The record of a slot.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct RemoteTask {
    /// The slot.
    pub slot: SlotKey,
    /// Version of the job that the incarnation was made from.
    pub job_version: u64,
    /// Hash of all that the provider sees.
    pub spec_hash: Text,
    /// Driver of the task.
    pub driver: Text,
    /// The incarnation, fixed before the create.
    #[serde(rename = "IncarnationID")]
    pub incarnation: IncarnationId,
    /// Identity of the runtime; empty until the first manager is known.
    pub provider: Text,
    /// Wanted.
    pub desired: DesiredRemote,
    /// Grows whenever management moves; starts at 1.
    pub epoch: u64,
    /// Epoch under which this incarnation was committed. A later epoch means that an earlier manager may have created
    /// it.
    pub incarnation_epoch: u64,
    /// Allocation that the slot serves now, or served last.
    #[serde(rename = "AllocID")]
    pub alloc_id: AllocId,
    /// What of the job governs restarts and stops.
    pub policy: Common<RemotePolicy>,
    /// Manager of this epoch; None = unmanaged.
    pub manager: Option<Manager>,
    /// Since when it is unmanaged; 0 = it is managed.
    pub unmanaged_since: TimestampNs,
    /// A drain's next manager: it observes, and takes over when it has seen the instance (make before break).
    pub successor: Option<Manager>,
    /// The driver's handle; once written it is only ever replaced, never erased by an absent value.
    pub handle: Option<RemoteHandle>,
    /// What its driver keeps of the create, stored before that was sent; of the present incarnation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub intent: Option<Box<RemoteIntent>>,
    /// Last observation.
    pub observed: Observed,
    /// The exit result has been counted; only then may the provider forget it.
    pub exit_acknowledged: bool,
    /// The provider has let the ended instance go.
    pub forgotten: bool,
    /// What follows from the last exit: what the manager tells its allocation's task.
    pub verdict: RemoteVerdict,
    /// The result that was counted last, of this incarnation or the one before.
    pub result: Option<Box<RemoteExit>>,
    /// What follows in this slot once the present incarnation has confirmedly ended (a new specification, an ordered
    /// restart).
    pub next: Option<Box<RemoteWanted>>,
    /// Why `desired` is Stop.
    pub stop_reason: Text,
    /// Not empty: a check has found the instance unhealthy, and this is why it is stopped. Its end counts as a failure.
    pub unhealthy: Text,
    /// When the allocation was created for which the task first ran; 0 = unknown. Restarts and hand-overs do not change
    /// it, so [`RemotePolicy::max_run`] counts through them.
    #[serde(skip_serializing_if = "is_zero")]
    pub began: TimestampNs,
    /// [`RemotePolicy::max_run`] is over, and the instance is stopped for that. Its end completes the task.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub expired: bool,
    /// The provider's name for the instance, for people.
    pub provider_id: String,
    /// Attributes from the driver, for people ("pid" …).
    pub attributes: Map<Text, String>,
    /// Where the instance is reached.
    pub address: Text,
    /// Ports by label.
    pub port_map: Map<Text, i32>,
    /// When the instance started.
    pub started_at: TimestampNs,
    /// What the instance waits for while it is being created, in the provider's words ("ImagePullBackOff: …"); empty =
    /// the provider says nothing.
    pub waiting: Text,
    /// Restarts so far: they belong to the task, not to a node.
    pub restarts: u64,
    /// Start of the present restart interval; 0 = it begins with the next end.
    pub restart_window_start: TimestampNs,
    /// Restarts within it.
    pub restarts_in_window: u32,
    /// What has spent these attempts: it belongs to the task, not to a node.
    #[serde(skip_serializing_if = "RestartCharges::is_none")]
    pub restart_charges: RestartCharges,
    /// Hand-overs so far.
    pub handovers: u64,
    /// What happened and why, newest last, at most fifty.
    #[serde(deserialize_with = "exact")]
    pub history: Vec<RemoteEvent>,
    /// Index of its creation.
    pub create_index: StoreIndex,
    /// Index of its last change.
    pub modify_index: StoreIndex,
}

/// A change of a record, for people.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct RemoteEvent {
    /// When.
    pub time: TimestampNs,
    /// Epoch then.
    pub epoch: u64,
    /// What kind of change.
    pub kind: RemoteEventKind,
    /// The node that managed the task before, where that has changed; nil = none.
    #[serde(skip_serializing_if = "is_nil")]
    pub from: NodeId,
    /// The node that manages it from then on; nil = none.
    #[serde(skip_serializing_if = "is_nil")]
    pub to: NodeId,
    /// What and why.
    pub message: Text,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it like this")]
fn is_zero(time: &TimestampNs) -> bool {
    *time == 0
}

fn is_nil(id: &NodeId) -> bool {
    id.is_nil()
}

/// The kind of a [`RemoteEvent`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RemoteEventKind {
    /// Something else, as the message says.
    #[default]
    Note,
    /// An incarnation is committed, for its first manager.
    Began,
    /// Another node manages it, straight from the one before.
    Handover,
    /// A node manages it, after nobody did.
    Adopted,
    /// Nobody manages it.
    Unmanaged,
    /// It was ordered to stop.
    Stopping,
    /// Its manager has seen it in another state.
    Observed,
    /// Its manager cannot tell its state.
    Unknown,
    /// Its end is counted.
    Ended,
}

/// A node's role for a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RemoteRole {
    /// Create or get, observe, report; may mutate under the epoch.
    #[default]
    Manage,
    /// Observe and report only: the next manager of a drain.
    Observe,
    /// Stop it, confirm, report; no allocation is involved.
    Stop,
}

/// A server's order to a node about one slot.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct RemoteOrder {
    /// The slot.
    pub slot: SlotKey,
    /// What to do.
    pub role: RemoteRole,
    /// The incarnation.
    #[serde(rename = "IncarnationID")]
    pub incarnation: IncarnationId,
    /// Epoch under which the node may mutate.
    pub epoch: u64,
    /// Wanted.
    pub desired: DesiredRemote,
    /// Driver.
    pub driver: String,
    /// Identity of the runtime; empty = whichever the driver has.
    pub provider: String,
    /// Allocation for which the node manages; nil for a bare stop.
    #[serde(rename = "AllocID")]
    pub alloc_id: AllocId,
    /// Known handle.
    pub handle: Option<RemoteHandle>,
    /// What its driver keeps of the create, as the servers have stored it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub intent: Option<RemoteIntent>,
    /// True when an instance may already exist: adopt (find or observe) first.
    pub adopt: bool,
    /// The exit result is stored: the provider may forget the instance. Answered by a report with `Forgotten`.
    pub acknowledge: bool,
    /// What the node tells the allocation's task.
    pub verdict: RemoteVerdict,
    /// The group's `max_run_duration` is over: what `desired` stops, or `verdict` completes, ends for that.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub expired: bool,
    /// The exit result that led to the verdict.
    pub result: Option<RemoteExit>,
    /// Restarts so far.
    pub restarts: u64,
    /// Signal for a stop; empty = the driver's default.
    pub kill_signal: String,
    /// Time between the signal and the kill, nanoseconds.
    pub kill_timeout: crate::go_duration::GoDuration,
    /// That servers have given this order: see [`crate::proof`]. The node gives it back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proof: Option<Arc<str>>,
}

/// A node's report about one slot.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct RemoteReport {
    /// The slot.
    pub slot: SlotKey,
    /// The incarnation that it is about.
    #[serde(rename = "IncarnationID")]
    pub incarnation: IncarnationId,
    /// Epoch of the order that the node follows.
    pub epoch: u64,
    /// What that order wanted. "There is none" confirms a stop only when it was looked for under the order to stop.
    pub desired: DesiredRemote,
    /// Identity of the runtime.
    pub provider: String,
    /// Handle, when known; absence erases nothing.
    pub handle: Option<RemoteHandle>,
    /// What the driver is about to send with its create: to be stored before it does. Absence erases nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub intent: Option<RemoteIntent>,
    /// Observation.
    pub observed: Observed,
    /// The provider's name for the instance.
    pub provider_id: String,
    /// Attributes.
    pub attributes: Map<String, String>,
    /// Address.
    pub address: String,
    /// Ports.
    pub port_map: BTreeMap<String, i32>,
    /// Start of the instance.
    pub started_at: TimestampNs,
    /// What an instance that is being created waits for, in the provider's words.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub waiting: String,
    /// The provider has let the instance go after an acknowledgement (or has nothing to let go).
    pub forgotten: bool,
    /// Not 0: the provider has refused this node's epoch because it has accepted this higher one.
    pub stale_epoch: u64,
    /// Not empty: the provider has positively refused to create the instance and nothing was created; the text says
    /// why.
    pub refused: String,
    /// Not empty: a check of the running instance asks for its restart; the text says why.
    pub unhealthy: String,
}

/// An instance as a provider lists it for its owner, whether or not any record knows it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct RemoteInstance {
    /// The key that it was created with: an incarnation's id, when it was created by this release.
    pub key: String,
    /// The slot that it was created for, as text.
    pub slot: String,
    /// The cluster that it belongs to; empty = this one.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub owner: String,
    /// The highest epoch that the provider has accepted for it; 0 when it keeps none.
    pub epoch: u64,
    /// The driver's token for it.
    pub handle: Option<RemoteHandle>,
    /// What was seen.
    pub observed: Observed,
    /// The provider's name for it, for people.
    #[serde(rename = "ProviderID")]
    pub provider_id: String,
    /// Attributes, for people.
    pub attributes: Map<String, String>,
    /// Where it is reached.
    pub address: String,
    /// Ports by label.
    pub port_map: BTreeMap<String, i32>,
    /// When it started.
    pub started_at: TimestampNs,
}

impl RemoteInstance {
    /// Takes resources at the provider: anything but confirmed absence and a result that is only kept.
    #[must_use]
    pub fn alive(&self) -> bool {
        !self.observed.ended()
    }
}

/// An operator's order to adopt or stop an orphaned instance.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RemoteImport {
    /// The instance.
    pub instance: RemoteInstance,
    /// Its key as an incarnation.
    pub incarnation: IncarnationId,
    /// Driver that listed it.
    pub driver: String,
    /// Runtime that it lives in.
    pub provider: String,
    /// What it is taken for: what the job wants of the slot. None: it is to be stopped.
    pub as_wanted: Option<Box<RemoteWanted>>,
    /// Who and why, for people.
    pub why: String,
}

/// Guarantee of a remote task with its limits, derived from the features of its provider.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct Guarantee {
    /// The promise.
    pub level: GuaranteeLevel,
    /// There is exactly one instance, also after a create whose answer was lost and beside a manager that was replaced.
    pub exactly_one: bool,
    /// The provider refuses calls of a manager that was replaced.
    pub fenced: bool,
    /// The exit code is kept until the servers have it.
    pub exact_results: bool,
    /// Reason of the level, for people.
    pub reason: String,
    /// Limits of the guarantee, for people; empty if there are none.
    pub limits: Vec<String>,
}

/// Levels of [`Guarantee`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GuaranteeLevel {
    /// No node tells what the provider can do.
    #[default]
    Unknown,
    /// Only the plain driver protocol: a lost create answer may leave an orphaned instance that no sweep finds.
    HandleOnly,
    /// Neither keyed create nor search: after a lost create answer the task is held until a person decides.
    Held,
    /// Instances are found again by their key after a lost answer, but the provider may carry out a late call: one of a
    /// manager that was replaced, or a create whose instance has been stopped.
    Unfenced,
    /// Create is create-or-get by key, but the provider may carry out a late call, as with [`Self::Unfenced`].
    KeyedOnly,
    /// Instances are found again by their key after a lost answer; stale calls, and creates of a sealed key, are
    /// refused.
    ExactlyOneBySearch,
    /// Create is create-or-get by key; stale calls, and creates of a sealed key, are refused.
    ExactlyOne,
}

impl std::fmt::Display for GuaranteeLevel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Unknown => "unknown",
            Self::HandleOnly => "handle only",
            Self::Held => "held when in doubt",
            Self::Unfenced => "one by search, unfenced",
            Self::KeyedOnly => "one by key, unfenced",
            Self::ExactlyOneBySearch => "exactly one, by search",
            Self::ExactlyOne => "exactly one",
        })
    }
}

/// The slot of an allocation's task.
#[must_use]
pub fn slot_of(alloc: &crate::alloc::Allocation, task: &Arc<str>) -> SlotKey {
    let parts = SlotParts {
        namespace: alloc.namespace.clone(),
        job_id: alloc.job_id.clone(),
        group: alloc.task_group.clone(),
        index: alloc.index(),
        task: task.clone(),
    };
    parts.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_keep_their_form() {
        let json = concat!(
            r#"{"Slot":{"Namespace":"default","JobID":"j","Group":"g","Index":1,"Task":"t"},"JobVersion":1,"SpecHash":"h","Driver":"d","#,
            r#""IncarnationID":"","Provider":"p","Desired":"stop","Epoch":2,"IncarnationEpoch":1,"AllocID":"","#,
            r#""Policy":{"Batch":true,"Restart":{"Attempts":2,"Interval":1,"Delay":2,"Mode":"fail","RenderTemplates":false},"#,
            r#""KillSignal":"SIGINT","KillTimeout":5},"Manager":null,"UnmanagedSince":3,"Successor":null,"#,
            r#""Handle":{"Schema":1,"Data":"00ff"},"Observed":{"State":"Running"},"ExitAcknowledged":false,"Forgotten":false,"#,
            r#""Verdict":{"Kind":"Active"},"Result":{"Code":1,"Signal":0,"OomKilled":false,"Reason":"r","At":4,"Vanished":false},"#,
            r#""Next":null,"StopReason":"s","Unhealthy":"u","ProviderId":"i","Attributes":{"host":"far","pid":"7"},"Address":"a","#,
            r#""PortMap":{"http":80},"StartedAt":6,"Waiting":"w","Restarts":7,"RestartWindowStart":8,"RestartsInWindow":9,"Handovers":10,"#,
            r#""History":[{"Time":11,"Epoch":1,"Kind":"observed","Message":"running"}],"CreateIndex":12,"ModifyIndex":13}"#
        );
        let record: RemoteTask = serde_json::from_str(json).unwrap();
        assert_eq!(serde_json::to_string(&record).unwrap(), json);
        let older: RemoteTask = serde_json::from_str(&json.replace(r#""Waiting":"w","#, "")).unwrap();
        assert_eq!(older, RemoteTask { waiting: Text::default(), ..record.clone() }, "from before it was told");
        let older: RemoteTask = serde_json::from_str(&json.replace(r#""Kind":"observed","#, "")).unwrap();
        assert_eq!(older.history[0].kind, RemoteEventKind::Note, "from before events had kinds");
        assert_eq!((record.attributes.get("pid").map(String::as_str), record.port_map["http"]), (Some("7"), 80));
        let handle = record.handle.as_ref().unwrap();
        assert_eq!((&*handle.data, record.history.capacity()), ([0, 255].as_slice(), 1));
        let other = RemoteTask { policy: RemotePolicy::clone(&record.policy).into(), ..record.clone() };
        assert!(std::ptr::eq(&*other.policy, &*record.policy), "records of a job follow one policy");
        assert!(size_of::<RemoteTask>() <= 488, "{} bytes", size_of::<RemoteTask>());
    }

    #[test]
    fn what_was_seen_and_what_follows_keep_their_form() {
        for json in [
            r#"{"State":"Exited","Code":1,"Signal":2,"OomKilled":true,"Reason":"r","At":3}"#,
            r#"{"State":"Unknown","Since":4,"Why":"cut off"}"#,
            r#"{"State":"Gone"}"#,
        ] {
            assert_eq!(serde_json::to_string(&serde_json::from_str::<Observed>(json).unwrap()).unwrap(), json);
        }
        for json in [
            r#"{"Kind":"Restarting","At":5,"Reason":"r"}"#,
            r#"{"Kind":"Failed","Reason":"r"}"#,
            r#"{"Kind":"Stopped"}"#,
        ] {
            assert_eq!(serde_json::to_string(&serde_json::from_str::<RemoteVerdict>(json).unwrap()).unwrap(), json);
        }
    }
}

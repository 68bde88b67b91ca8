//! What of an allocation and its tasks must survive the agent.

use std::collections::BTreeMap;

use base64::{Engine, prelude::BASE64_STANDARD};
use lifecycle::{checks::CheckState, restart::Tracker};
use model::{AllocDeploymentStatus, Allocation, CheckStatus, TaskState, TimestampNs, network::DriverNetwork};
use serde::{Deserialize, Serialize};

use super::kept::Kept;

/// The allocation as the servers sent it, with what this node has found out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct AllocRecord {
    pub(crate) alloc: Kept<Allocation>,
    /// The servers have collected it: once it has stopped, everything goes.
    pub(crate) removed: bool,
    /// When the health watch of the present deployment began.
    pub(crate) watched_since: TimestampNs,
    /// Health as decided here.
    pub(crate) health: Option<AllocDeploymentStatus>,
    /// A task has made it unhealthy, and the tasks are told when those that end because of it have ended.
    pub(crate) unhealthy_untold: bool,
    /// When it ended; 0 = it has not.
    pub(crate) ended_at: TimestampNs,
    /// Checks of services that stand, by key. Written when something about a check changes, not with each run.
    pub(crate) checks: BTreeMap<String, CheckRecord>,
}

/// A check: an agent that starts again goes on where the last one was.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct CheckRecord {
    pub(crate) status: CheckStatus,
    pub(crate) since: TimestampNs,
    pub(crate) begun: TimestampNs,
    pub(crate) successes: u32,
    pub(crate) failures: u32,
    pub(crate) unhealthy: u32,
    /// What the run has found that brought the status about.
    pub(crate) run: CheckRun,
}

/// What a run of a check has found, for people.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct CheckRun {
    /// Status of the HTTP answer, exit code of the script.
    pub(crate) code: i32,
    pub(crate) output: String,
    /// When it ended.
    pub(crate) at: TimestampNs,
}

impl CheckRecord {
    pub(crate) fn of(state: CheckState, run: CheckRun) -> Self {
        let CheckState { status, since, begun, successes, failures, unhealthy } = state;
        Self { status, since, begun, successes, failures, unhealthy, run }
    }
    pub(crate) fn state(&self) -> CheckState {
        let Self { status, since, begun, successes, failures, unhealthy, .. } = *self;
        CheckState { status, since, begun, successes, failures, unhealthy }
    }
}

/// A local task.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct TaskRecord {
    pub(crate) state: TaskState,
    pub(crate) window_start: TimestampNs,
    pub(crate) in_window: u32,
    /// The present start: written before the driver is called.
    pub(crate) run: Option<Run>,
    /// When the next start is due; 0 = not waiting.
    pub(crate) restart_at: TimestampNs,
    /// Its last run had an address of its own: what is reached there is not there while it is started again.
    pub(crate) own_address: bool,
    /// Runs that have ended and that their driver could not free yet.
    pub(crate) owed: Vec<Run>,
}

/// One start of a task.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Run {
    /// `<alloc>/<task>/<8 hex>`, the driver's task id.
    pub(crate) id: String,
    /// The driver's handle with the whole configuration, protobuf; None = the start has not been confirmed.
    #[serde(with = "base64_bytes")]
    pub(crate) handle: Option<Vec<u8>>,
    /// Where the driver says that it is reached, if not on the node's address.
    pub(crate) network: Option<DriverNetwork>,
    /// It has ended and was counted; only freeing it at the driver is left.
    pub(crate) ended: bool,
    /// Nobody has seen its end: it may still run where this node cannot look.
    pub(crate) lost: bool,
}

impl TaskRecord {
    pub(crate) fn tracker(&self) -> Tracker {
        Tracker { window_start: self.window_start, in_window: self.in_window }
    }

    pub(crate) fn set_tracker(&mut self, tracker: Tracker) {
        self.window_start = tracker.window_start;
        self.in_window = tracker.in_window;
    }
}

mod base64_bytes {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    use super::{BASE64_STANDARD, Engine};

    #[allow(clippy::ref_option, reason = "serde calls it like this")]
    pub(super) fn serialize<S: Serializer>(bytes: &Option<Vec<u8>>, s: S) -> Result<S::Ok, S::Error> {
        match bytes {
            Some(bytes) => s.serialize_str(&BASE64_STANDARD.encode(bytes)),
            None => s.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Vec<u8>>, D::Error> {
        let text = Option::<String>::deserialize(d)?;
        text.map(|t| BASE64_STANDARD.decode(t).map_err(D::Error::custom)).transpose()
    }
}

//! What of an allocation and its tasks must survive the agent.

use std::collections::BTreeMap;

use base64::{Engine, prelude::BASE64_STANDARD};
use model::{AllocDeploymentStatus, Allocation, TaskState, TimestampNs, network::DriverNetwork};
use serde::{Deserialize, Serialize};

use super::kept::Kept;
use crate::{checks::CheckState, restart::Tracker};

/// The allocation as the servers sent it, with what this node has found out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AllocRecord {
    /// As the servers sent it.
    pub alloc: Kept<Allocation>,
    /// The servers have collected it: once it has stopped, everything goes.
    pub removed: bool,
    /// When the health watch of the present deployment began.
    pub watched_since: TimestampNs,
    /// Health as decided here.
    pub health: Option<AllocDeploymentStatus>,
    /// A task has made it unhealthy, and the tasks are told when those that end because of it have ended.
    pub unhealthy_untold: bool,
    /// When it ended; 0 = it has not.
    pub ended_at: TimestampNs,
    /// Checks of services that stand, by key. Written when something about a check changes, not with each run.
    pub checks: BTreeMap<String, CheckRecord>,
}

/// A check: an agent that starts again goes on where the last one was.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CheckRecord {
    /// The state to go on with.
    #[serde(flatten)]
    pub state: CheckState,
    /// What the run has found that brought the status about.
    pub run: CheckRun,
}

/// What a run of a check has found, for people.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CheckRun {
    /// Status of the HTTP answer, exit code of the script.
    pub code: i32,
    /// Its response or output, cut to a bounded length.
    pub output: String,
    /// When it ended.
    pub at: TimestampNs,
}

/// A local task.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TaskRecord {
    /// What the servers and people are told.
    pub state: TaskState,
    /// When the present interval of the restart policy began.
    pub window_start: TimestampNs,
    /// Attempts of the policy that it has spent in the interval.
    pub in_window: u32,
    /// The present start: written before the driver is called.
    pub run: Option<Run>,
    /// When the next start is due; 0 = not waiting.
    pub restart_at: TimestampNs,
    /// Its last run had an address of its own: what is reached there is not there while it is started again.
    pub own_address: bool,
    /// Runs that have ended and that their driver could not free yet.
    pub owed: Vec<Run>,
}

/// One start of a task.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Run {
    /// `<alloc>/<task>/<8 hex>`, the driver's task id.
    pub id: String,
    /// The driver's handle with the whole configuration, protobuf; None = the start has not been confirmed.
    #[serde(with = "base64_bytes")]
    pub handle: Option<Vec<u8>>,
    /// Where the driver says that it is reached, if not on the node's address.
    pub network: Option<DriverNetwork>,
    /// It has ended and was counted; only freeing it at the driver is left.
    pub ended: bool,
    /// Nobody has seen its end: it may still run where this node cannot look.
    pub lost: bool,
}

impl TaskRecord {
    /// The restart budget as [`crate::restart`] takes it.
    pub fn tracker(&self) -> Tracker {
        Tracker { window_start: self.window_start, in_window: self.in_window }
    }

    /// What is left of the restart budget after a decision.
    pub fn set_tracker(&mut self, tracker: Tracker) {
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

#[cfg(test)]
mod tests {
    use model::CheckStatus;

    use super::*;

    #[test]
    fn a_check_is_kept_as_one_object_as_in_former_releases() {
        let text =
            r#"{"status":"success","since":3,"begun":2,"successes":4,"failures":0,"unhealthy":0,"run":{"code":200,"output":"ok","at":5}}"#;
        let state = CheckState { status: CheckStatus::Success, since: 3, begun: 2, successes: 4, ..CheckState::default() };
        let record = CheckRecord { state, run: CheckRun { code: 200, output: "ok".to_owned(), at: 5 } };
        assert_eq!(serde_json::to_string(&record).expect("text"), text);
        assert_eq!(serde_json::from_str::<CheckRecord>(text).expect("a record"), record);
        assert_eq!(serde_json::from_str::<CheckRecord>("{}").expect("a record"), CheckRecord::default());
    }
}

//! The part of an allocation and its tasks that must survive the agent.

use std::{collections::BTreeMap, sync::Arc};

use base64::{Engine, prelude::BASE64_STANDARD};
use model::{AllocDeploymentStatus, Allocation, TaskState, TimestampNs, network::DriverNetwork};
use serde::{Deserialize, Serialize};

use super::kept::Kept;
use crate::{checks::CheckState, restart::Tracker};

/// The allocation as the servers sent it, and this node's findings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AllocRecord {
    /// As the servers sent it.
    pub alloc: Kept<Allocation>,
    /// That the servers have sent it, with the job that is stored beside it (`model::proof`); None = those of an
    /// earlier release have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proof: Option<Arc<str>>,
    /// The servers have collected it: once it has stopped, everything goes.
    pub removed: bool,
    /// When the health watch of the present deployment began.
    pub watched_since: TimestampNs,
    /// Health as this node decided it.
    pub health: Option<AllocDeploymentStatus>,
    /// A task has made it unhealthy. The tasks get the event when those that end because of it have ended.
    pub unhealthy_untold: bool,
    /// When it ended; 0 = it has not.
    pub ended_at: TimestampNs,
    /// Its group's `max_run_duration` was over before it had ended.
    pub expired: bool,
    /// Checks of registered services, by key. Written when a check's state changes, not at each run.
    pub checks: BTreeMap<String, CheckRecord>,
}

/// A check's state, with which a new agent continues.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CheckRecord {
    /// The state of the check.
    #[serde(flatten)]
    pub state: CheckState,
    /// The run behind the present status.
    pub run: CheckRun,
}

/// The result of a check's run, for people.
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
    /// The state that the servers and people see.
    pub state: TaskState,
    /// When the present interval of the restart policy began.
    pub window_start: TimestampNs,
    /// Attempts of the policy spent in the interval.
    pub in_window: u32,
    /// The present start, written before the call of the driver.
    pub run: Option<Run>,
    /// When the next start is due; 0 = not waiting.
    pub restart_at: TimestampNs,
    /// Its last run had an address of its own, which nobody can reach during a restart.
    pub own_address: bool,
    /// Runs that have ended, but that their driver could not free yet.
    pub owed: Vec<Run>,
}

/// One start of a task.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Run {
    /// `<alloc>/<task>/<8 hex>`, the driver's task id.
    pub id: String,
    /// The driver's handle with the whole configuration, protobuf; `None` = no confirmed start.
    #[serde(with = "base64_bytes")]
    pub handle: Option<Vec<u8>>,
    /// The address that the driver reports, if it is not the node's.
    pub network: Option<DriverNetwork>,
    /// It has ended and was counted; the driver still has to free it.
    pub ended: bool,
    /// Its end is unknown: it may still run where this node cannot look.
    pub lost: bool,
}

impl TaskRecord {
    /// The counters for [`crate::restart`].
    pub fn tracker(&self) -> Tracker {
        Tracker { window_start: self.window_start, in_window: self.in_window }
    }

    /// Stores the counters after a decision.
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
        let text = r#"{"status":"success","since":3,"begun":2,"successes":4,"failures":0,"unhealthy":0,"run":{"code":200,"output":"ok","at":5}}"#;
        let state =
            CheckState { status: CheckStatus::Success, since: 3, begun: 2, successes: 4, ..CheckState::default() };
        let record = CheckRecord { state, run: CheckRun { code: 200, output: "ok".to_owned(), at: 5 } };
        assert_eq!(serde_json::to_string(&record).expect("text"), text);
        assert_eq!(serde_json::from_str::<CheckRecord>(text).expect("a record"), record);
        assert_eq!(serde_json::from_str::<CheckRecord>("{}").expect("a record"), CheckRecord::default());
    }
}

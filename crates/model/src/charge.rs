//! What has spent the attempts of a restart policy. It is kept with the task, over hand-overs and agents, so that
//! people see where its budget went when the task's last events tell of other things.

use std::ops::Deref;

use serde::{Deserialize, Serialize};

use crate::{common::Text, ids::TimestampNs};

/// So many of the newest are kept, whatever a policy allows.
const KEPT: usize = 20;
/// A cause is at most so many bytes long.
const LENGTH: usize = 240;

/// One attempt, and the failure of the task that has spent it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct RestartCharge {
    /// When it was counted.
    pub time: TimestampNs,
    /// Exit code; 0 as well when it has not run.
    pub exit_code: i32,
    /// Signal, 0 = none.
    pub signal: i32,
    /// The kernel killed it because it ran out of memory.
    pub oom_killed: bool,
    /// The whole of it, for people.
    pub cause: Text,
}

impl RestartCharge {
    /// It has ended.
    #[must_use]
    pub fn exited(time: TimestampNs, exit_code: i32, signal: i32, oom_killed: bool, message: &str) -> Self {
        let mut cause =
            if signal == 0 { format!("exit code {exit_code}") } else { format!("killed by signal {signal}") };
        if oom_killed {
            cause.push_str(", out of memory");
        }
        if !message.is_empty() {
            cause.push_str(": ");
            cause.push_str(message);
        }
        Self { exit_code, signal, oom_killed, ..Self::because(time, &cause) }
    }

    /// It could not be started.
    #[must_use]
    pub fn not_started(time: TimestampNs, why: &str) -> Self {
        Self::because(time, &format!("not started: {why}"))
    }

    /// Whatever else counts as its failure.
    #[must_use]
    pub fn because(time: TimestampNs, cause: &str) -> Self {
        let end = (0..=cause.len().min(LENGTH)).rev().find(|at| cause.is_char_boundary(*at)).unwrap_or(0);
        Self { time, cause: cause[..end].into(), ..Self::default() }
    }
}

/// The charges of the present interval, oldest first: at most as many as the policy has attempts, and never more than
/// twenty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
#[allow(
    clippy::box_collection,
    reason = "there are thousands of records, and few have any: one word for those that have none"
)]
pub struct RestartCharges(Option<Box<Vec<RestartCharge>>>);

impl Deref for RestartCharges {
    type Target = [RestartCharge];

    fn deref(&self) -> &[RestartCharge] {
        self.0.as_deref().map_or(&[], Vec::as_slice)
    }
}

impl RestartCharges {
    /// One more.
    pub fn push(&mut self, charge: RestartCharge) {
        let surplus = (self.len() + 1).saturating_sub(KEPT);
        let kept = self.0.get_or_insert_default();
        kept.drain(..surplus);
        kept.reserve_exact(1);
        kept.push(charge);
    }

    /// Another interval begins.
    pub fn clear(&mut self) {
        self.0 = None;
    }

    /// There is none: what most tasks say of it, and leave out.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_says_what_has_happened_within_bounds() {
        for (charge, cause) in [
            (RestartCharge::exited(1, 3, 0, false, ""), "exit code 3"),
            (RestartCharge::exited(1, 137, 9, true, ""), "killed by signal 9, out of memory"),
            (RestartCharge::exited(1, -1, 0, false, "executor lost"), "exit code -1: executor lost"),
            (RestartCharge::not_started(1, "no such command"), "not started: no such command"),
        ] {
            assert_eq!(charge.cause, cause);
        }
        let long = RestartCharge::because(1, &"ü".repeat(1_000));
        assert!(long.cause.len() <= LENGTH && long.cause.ends_with('ü'));
    }

    #[test]
    fn the_newest_are_kept_and_written_as_a_list() {
        let mut charges = RestartCharges::default();
        for n in 0..50 {
            charges.push(RestartCharge::exited(n, 1, 0, false, ""));
        }
        assert_eq!((charges.len(), charges[0].time, charges[KEPT - 1].time), (KEPT, 30, 49));
        charges.clear();
        charges.push(RestartCharge::exited(4, 2, 0, false, "gone"));
        let json = r#"[{"Time":4,"ExitCode":2,"Signal":0,"OomKilled":false,"Cause":"exit code 2: gone"}]"#;
        assert_eq!(serde_json::to_string(&charges).unwrap(), json);
        assert_eq!(serde_json::from_str::<RestartCharges>(json).unwrap(), charges);
    }
}

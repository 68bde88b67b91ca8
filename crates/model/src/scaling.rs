//! Scaling of groups: the policies that jobs declare, as the servers number them, and the record of what was asked for.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    ids::{EvalId, StoreIndex, TimestampNs},
    job::{Job, Scaling, TaskGroup},
};

/// Scaling events that are kept for each group.
pub const EVENTS_KEPT: usize = 20;

/// What was asked of a group: a new count, or only a word about it. As `GET /v1/job/:id/scale` shows it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct ScalingEvent {
    /// When.
    pub time: TimestampNs,
    /// The new count; None = only the message.
    pub count: Option<i64>,
    /// The count before.
    pub previous_count: i64,
    /// Why.
    pub message: String,
    /// The message reports a failure.
    pub error: bool,
    /// Free metadata.
    pub meta: BTreeMap<String, serde_json::Value>,
    /// The evaluation that follows from it; None when nothing was to be scheduled.
    #[serde(rename = "EvalID")]
    pub eval_id: Option<EvalId>,
    /// Index of its commit.
    pub create_index: StoreIndex,
}

/// Puts an event before the others of its group, and lets go of the oldest.
pub fn record(events: &mut Vec<ScalingEvent>, event: ScalingEvent) {
    events.insert(0, event);
    events.truncate(EVENTS_KEPT);
}

/// Gives the policies of a job that is registered at `index` their ids and indexes. A policy keeps its id while its
/// group has one of the same type, and its `modify_index` while it says the same. What the client has sent for these
/// fields does not count.
pub fn number_policies(job: &mut Job, known: Option<&Job>, index: StoreIndex, mut new_id: impl FnMut() -> String) {
    for group in &mut job.task_groups {
        let TaskGroup { name, scaling: Some(policy), .. } = group else { continue };
        let before = known.and_then(|job| job.group(name)).and_then(|group| group.scaling.as_ref());
        let before = before.filter(|before| before.kind == policy.kind && !before.id.is_empty());
        policy.id = before.map_or_else(&mut new_id, |before| before.id.clone());
        policy.create_index = before.map_or(index, |before| before.create_index);
        policy.modify_index = before.map_or(index, |before| before.modify_index);
        if before.is_some_and(|before| before != policy) {
            policy.modify_index = index;
        }
    }
}

/// The policies of a job's groups.
pub fn policies(job: &Job) -> impl Iterator<Item = &Scaling> {
    job.task_groups.iter().filter_map(|group| group.scaling.as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(max: Option<i64>) -> Job {
        let scaling = max.map(|max| Scaling { max: Some(max), kind: "horizontal".into(), ..Scaling::default() });
        Job {
            task_groups: vec![TaskGroup { name: "g".into(), scaling, ..TaskGroup::default() }].into(),
            ..Job::default()
        }
    }

    fn numbers(job: &Job) -> Option<(&str, u64, u64)> {
        job.task_groups[0].scaling.as_ref().map(|s| (s.id.as_str(), s.create_index, s.modify_index))
    }

    #[test]
    fn a_policy_keeps_its_id_and_shows_when_it_has_changed() {
        let numbered = |max: Option<i64>, known: Option<&Job>, index: u64, id: &str| {
            let mut job = job(max);
            // What a client makes up does not count.
            if let Some(s) = &mut job.task_groups[0].scaling {
                (s.id, s.create_index) = ("forged".into(), 99);
            }
            number_policies(&mut job, known, index, || id.to_owned());
            job
        };
        let first = numbered(Some(5), None, 10, "a");
        assert_eq!(numbers(&first), Some(("a", 10, 10)));
        let same = numbered(Some(5), Some(&first), 11, "b");
        assert_eq!(numbers(&same), Some(("a", 10, 10)));
        let other = numbered(Some(6), Some(&same), 12, "c");
        assert_eq!(numbers(&other), Some(("a", 10, 12)));
        let gone = numbered(None, Some(&other), 13, "d");
        assert_eq!(numbers(&gone), None);
        assert_eq!(numbers(&numbered(Some(6), Some(&gone), 14, "e")), Some(("e", 14, 14)));
    }

    #[test]
    fn the_newest_events_are_kept() {
        let mut events = Vec::new();
        for time in 0..25 {
            record(&mut events, ScalingEvent { time, ..ScalingEvent::default() });
        }
        let times: Vec<i64> = events.iter().map(|e| e.time).collect();
        assert_eq!(times, (5..25).rev().collect::<Vec<_>>());
    }
}

//! An observation in one exact piece of memory.
//!
//! The poller keeps the last observation of each instance, and compares the next one with it. There are thousands that
//! hardly ever change. As a value of its own, one takes a dozen pieces of memory, and the node of a B-tree makes room
//! for eleven attributes: 540 bytes for one or two.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::remote::{InstanceState, Observation};
use crate::types::TaskExit;

/// The fields in writing. Written without names, and read by this process only: the order may change.
#[derive(Serialize, Deserialize)]
struct Fields<S, M, P> {
    key: S,
    exit_code: i32,
    signal: i32,
    oom_killed: bool,
    error: Option<S>,
    reason: S,
    started_at: Option<Result<Duration, Duration>>,
    finished_at: Option<Result<Duration, Duration>>,
    provider_id: S,
    address: S,
    port_map: P,
    attributes: M,
    epoch: u64,
}

/// Distance to the epoch; `Err` = before it.
fn distance(time: SystemTime) -> Result<Duration, Duration> {
    time.duration_since(UNIX_EPOCH).map_err(|before| before.duration())
}

fn time(distance: Result<Duration, Duration>) -> Option<SystemTime> {
    match distance {
        Ok(after) => UNIX_EPOCH.checked_add(after),
        Err(before) => UNIX_EPOCH.checked_sub(before),
    }
}

/// An observation that is kept.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Packed {
    state: InstanceState,
    rest: Box<[u8]>,
}

impl Packed {
    /// The state.
    pub(super) fn state(&self) -> InstanceState {
        self.state
    }

    /// Keeps this observation instead. False: it is the same, and nothing has changed. `buffer` is for reuse.
    pub(super) fn replace(last: &mut Option<Self>, seen: &Observation, buffer: &mut Vec<u8>) -> bool {
        buffer.clear();
        let fields = Fields {
            key: &*seen.key,
            exit_code: seen.exit.exit_code,
            signal: seen.exit.signal,
            oom_killed: seen.exit.oom_killed,
            error: seen.exit.error.as_deref(),
            reason: &*seen.reason,
            started_at: seen.started_at.map(distance),
            finished_at: seen.finished_at.map(distance),
            provider_id: &*seen.provider_id,
            address: &*seen.address,
            port_map: &seen.port_map,
            attributes: &seen.attributes,
            epoch: seen.epoch,
        };
        // Nothing of this fails in memory.
        let written = rmp_serde::encode::write(buffer, &fields).is_ok();
        if written && last.as_ref().is_some_and(|last| last.state == seen.state && *last.rest == **buffer) {
            return false;
        }
        *last = Some(Self { state: seen.state, rest: Box::from(&**buffer) });
        true
    }

    /// The observation.
    pub(super) fn observation(&self) -> Observation {
        type Owned = Fields<String, BTreeMap<String, String>, BTreeMap<String, i32>>;
        // What was written above can be read.
        let Ok(fields) = rmp_serde::from_slice::<Owned>(&self.rest) else { return Observation::default() };
        Observation {
            key: fields.key,
            state: self.state,
            exit: TaskExit {
                exit_code: fields.exit_code,
                signal: fields.signal,
                oom_killed: fields.oom_killed,
                error: fields.error,
            },
            reason: fields.reason,
            started_at: fields.started_at.and_then(time),
            finished_at: fields.finished_at.and_then(time),
            provider_id: fields.provider_id,
            address: fields.address,
            port_map: fields.port_map,
            attributes: fields.attributes,
            epoch: fields.epoch,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_comes_back_and_every_change_shows() {
        let full = Observation {
            key: "a key".into(),
            state: InstanceState::Exited,
            exit: TaskExit { exit_code: -1, signal: 9, oom_killed: true, error: Some("why".into()) },
            reason: "a reason".into(),
            started_at: UNIX_EPOCH.checked_sub(Duration::new(3, 5)),
            finished_at: UNIX_EPOCH.checked_add(Duration::new(1_800_000_000, 999_999_999)),
            provider_id: "job 7".into(),
            address: "10.0.0.1".into(),
            port_map: [("http".to_owned(), 80)].into(),
            attributes: [("a".to_owned(), "1".to_owned()), ("b".to_owned(), String::new())].into(),
            epoch: u64::MAX,
        };
        let none = Observation { exit: TaskExit { error: None, ..TaskExit::default() }, ..Observation::default() };
        let changed = |change: fn(&mut Observation)| {
            let mut one = full.clone();
            change(&mut one);
            one
        };
        let (mut last, mut buffer) = (None, Vec::new());
        for seen in [
            none,
            full.clone(),
            changed(|o| o.key.clear()),
            changed(|o| o.state = InstanceState::Gone),
            changed(|o| o.exit.exit_code = 1),
            changed(|o| o.exit.signal = 0),
            changed(|o| o.exit.oom_killed = false),
            changed(|o| o.exit.error = Some(String::new())),
            changed(|o| o.exit.error = None),
            changed(|o| o.reason.push('!')),
            changed(|o| o.started_at = None),
            changed(|o| o.finished_at = o.started_at),
            changed(|o| o.provider_id.clear()),
            changed(|o| o.address.clear()),
            changed(|o| o.port_map.extend([("http".to_owned(), 81)])),
            changed(|o| drop(o.attributes.remove("b"))),
            changed(|o| o.epoch = 0),
        ] {
            assert!(Packed::replace(&mut last, &seen, &mut buffer), "it has changed: {seen:?}");
            assert!(!Packed::replace(&mut last, &seen, &mut buffer), "it has not: {seen:?}");
            assert_eq!(last.as_ref().map(Packed::observation), Some(seen));
        }
    }
}

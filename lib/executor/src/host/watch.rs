//! Reports changes of instances.

use std::time::Duration;

use executor_proto::host::{HostObservation, HostState, host_reply::Body};

use super::call::Call;
use super::runtime::Runtime;
use super::wake::Wake;

/// Interval of looks without an event: some changes send none, such as the death of an executor.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// A look costs about twenty microseconds; this bounds all looks to a hundredth of a processor.
const EACH: Duration = Duration::from_millis(2);

/// Sends an observation of each key and then every change, until the call is cancelled.
pub(super) fn watch(runtime: &Runtime, keys: &[String], call: &Call) {
    let wake = Wake::new();
    let mut watched: Vec<(&String, Option<HostObservation>)> = keys.iter().map(|key| (key, None)).collect();
    for (key, _) in &watched {
        if let Ok((place, _)) = runtime.find(key) {
            wake.add(&place.state_dir());
        }
    }
    while !call.is_cancelled() {
        for (key, last) in &mut watched {
            if last.as_ref().is_some_and(|seen| seen.state() == HostState::Gone) {
                continue;
            }
            let now = runtime.look_or_unknown(key);
            if last.as_ref() != Some(&now) {
                *last = Some(now.clone());
                call.send(Body::Seen(now));
            }
        }
        wake.wait(LOOK_AGAIN.max(EACH * u32::try_from(watched.len()).unwrap_or(u32::MAX)));
    }
}

//! Translates the answers of drivers of the remote extension into the types of `lifecycle`.

use driver_host::{InstanceState, Observation, RemoteError, RemoteHandle as WireHandle, proto::build};
use host::clock::now_ns;
use lifecycle::remote::node::{Answer, Sighting};
use model::{
    Observed, TimestampNs,
    remote::{MAX_INTENT_BYTES, RemoteHandle, RemoteIntent},
};

/// A handle in the form for drivers.
#[must_use]
pub fn wire_handle(handle: &RemoteHandle) -> WireHandle {
    WireHandle { schema: handle.schema, data: handle.data.to_vec() }
}

pub(crate) fn model_handle(handle: WireHandle) -> RemoteHandle {
    RemoteHandle { schema: handle.schema, data: handle.data.into() }
}

fn nanos(t: Option<&driver_host::proto::Timestamp>) -> TimestampNs {
    build::system_time(t)
        .and_then(|t| t.duration_since(std::time::UNIX_EPOCH).ok())
        .and_then(|d| i64::try_from(d.as_nanos()).ok())
        .unwrap_or(0)
}

/// Characters of a text of an observation that are kept. Some come from where the task can write, and each goes into
/// a message to the servers and into their state.
const LONGEST_TEXT: usize = 4096;
/// Attributes of an observation that are kept.
const MOST_ATTRIBUTES: usize = 64;

fn short(text: &str) -> String {
    text.chars().take(LONGEST_TEXT).collect()
}

/// The sighting in a driver's observation. Longer texts are cut.
pub(crate) fn sighting(o: &Observation) -> Sighting {
    let observed = match o.state() {
        InstanceState::Unknown => Observed::Unknown { since: now_ns(), why: short(&o.reason).into() },
        InstanceState::Creating => Observed::Creating,
        InstanceState::Running => Observed::Running,
        InstanceState::Exited => Observed::Exited {
            code: o.exit_code,
            signal: o.signal,
            oom_killed: o.oom_killed,
            reason: short(&o.reason).into(),
            at: match nanos(o.finished_at.as_ref()) {
                0 => now_ns(),
                at => at,
            },
        },
        InstanceState::Gone => Observed::Gone,
    };
    let waiting = if observed == Observed::Creating { short(&o.reason) } else { String::new() };
    let attributes = o.attributes.iter().take(MOST_ATTRIBUTES);
    Sighting {
        observed,
        provider_id: short(&o.provider_id),
        attributes: attributes.map(|(name, value)| (short(name).as_str().into(), short(value))).collect(),
        address: short(&o.address),
        port_map: o.port_map.clone().into_iter().collect(),
        started_at: nanos(o.started_at.as_ref()),
        waiting,
    }
}

/// An instance with its handle, unless the handle is too large to keep.
pub(crate) fn bounded(handle: RemoteHandle, sighting: Sighting) -> Answer {
    if handle.data.len() > model::remote::MAX_HANDLE_BYTES {
        return Answer::CouldNotAsk(format!(
            "the driver's handle has {} bytes, at most {} are kept",
            handle.data.len(),
            model::remote::MAX_HANDLE_BYTES
        ));
    }
    Answer::Instance { handle, sighting: Box::new(sighting) }
}

pub(crate) fn instance(handle: RemoteHandle, observed: Option<&Observation>) -> Answer {
    match observed {
        Some(o) if o.state() == InstanceState::Unknown => Answer::CouldNotAsk(o.reason.clone()),
        Some(o) => bounded(handle, sighting(o)),
        None => Answer::CouldNotAsk("the driver answered without an observation".into()),
    }
}

/// The intent to store before a create, unless it is too large.
pub(crate) fn intended(intent: Vec<u8>) -> Answer {
    match intent.len() {
        0..=MAX_INTENT_BYTES => Answer::Intent(RemoteIntent(intent)),
        size => Answer::NotSent(format!(
            "the driver wants to have {size} bytes stored before it creates, at most {MAX_INTENT_BYTES} are kept"
        )),
    }
}

pub(crate) fn trouble(error: RemoteError) -> Answer {
    match error {
        RemoteError::Gone(_) => Answer::Absent,
        RemoteError::CouldNotAsk(why) => Answer::CouldNotAsk(why),
        RemoteError::WrongRequest(why) => Answer::WrongRequest(why),
        RemoteError::StaleEpoch { accepted, .. } => Answer::StaleEpoch { accepted: accepted.unwrap_or(0) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_driver_says_is_kept_in_short() {
        let long = "\u{1}".repeat(1 << 20);
        let mut seen = Observation { reason: long.clone(), provider_id: long.clone(), ..Observation::default() };
        seen.attributes = (0..100).map(|n| (format!("{n}{long}"), long.clone())).collect();
        seen.set_state(InstanceState::Exited);
        let kept = sighting(&seen);
        let Observed::Exited { reason, .. } = &kept.observed else { panic!("{:?}", kept.observed) };
        assert_eq!((reason.len(), kept.provider_id.len()), (LONGEST_TEXT, LONGEST_TEXT));
        assert_eq!(kept.attributes.len(), MOST_ATTRIBUTES);
        assert!(kept.attributes.iter().all(|(name, value)| name.len().max(value.len()) <= LONGEST_TEXT));
    }
}

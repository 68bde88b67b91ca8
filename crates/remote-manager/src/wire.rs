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

/// The sighting in a driver's observation.
pub(crate) fn sighting(o: &Observation) -> Sighting {
    let observed = match o.state() {
        InstanceState::Unknown => Observed::Unknown { since: now_ns(), why: o.reason.as_str().into() },
        InstanceState::Creating => Observed::Creating,
        InstanceState::Running => Observed::Running,
        InstanceState::Exited => Observed::Exited {
            code: o.exit_code,
            signal: o.signal,
            oom_killed: o.oom_killed,
            reason: o.reason.as_str().into(),
            at: match nanos(o.finished_at.as_ref()) {
                0 => now_ns(),
                at => at,
            },
        },
        InstanceState::Gone => Observed::Gone,
    };
    let waiting = if observed == Observed::Creating { o.reason.clone() } else { String::new() };
    Sighting {
        observed,
        provider_id: o.provider_id.clone(),
        attributes: o.attributes.iter().map(|(name, value)| (name.as_str().into(), value.clone())).collect(),
        address: o.address.clone(),
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

//! The one place where the server reads the clock and makes ids and seeds; what decides gets them as arguments.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub(crate) use control::{Boot, rfc3339};
use model::TimestampNs;
use state::State;
use uuid::Uuid;

/// Times of a former process count unless they are ahead by more: it must have had a wrong clock.
const AHEAD: Duration = Duration::from_hours(24);

/// Now on the boot clock.
pub(crate) fn boot_now() -> Boot {
    Boot::since(::clock::boot_now())
}

/// Nanoseconds since the Unix epoch, by a clock that is never set back: [`clock::Steady`](::clock::Steady). The times
/// of the state are of it, so waits for them must be as well.
pub(crate) fn now_ns() -> TimestampNs {
    ns(::clock::steady_now())
}

/// Nanoseconds since the Unix epoch, as the machine says: for what others compare with their own clocks.
pub(crate) fn time_of_day() -> TimestampNs {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, ns)
}

/// Goes on from the newest time of the state on which the server begins: the machine's clock may have been set back
/// since.
pub(crate) fn go_on_from(state: &State) {
    let newest = newest(state);
    let ahead = Duration::from_nanos(u64::try_from(newest - time_of_day()).unwrap_or(0));
    if ahead.is_zero() {
        return;
    }
    let of_the_state = rfc3339(newest);
    if ahead > AHEAD {
        tracing::warn!(
            of_the_state,
            ?ahead,
            "times of the state are far ahead of the machine's clock; is it right? \
            restarts and evaluations that wait for such times wait as long"
        );
        return;
    }
    tracing::warn!(
        of_the_state,
        ?ahead,
        "times of the state are ahead of the machine's clock; the server goes on from \
        them"
    );
    ::clock::reach(Duration::from_nanos(u64::try_from(newest).unwrap_or(0)));
}

/// The newest time that a commit has left in the state. Times of what waits do not count.
fn newest(state: &State) -> TimestampNs {
    let evals = state.evals().map(|eval| eval.modify_time);
    let allocs = state.allocs().map(|alloc| alloc.create_time);
    let remote = state.remote_tasks().flat_map(|r| r.history.iter().map(|event| event.time));
    let recovery = state.cluster().recovery.iter().map(|recovery| recovery.since);
    evals.chain(allocs).chain(remote).chain(recovery).max().unwrap_or(0)
}

/// A new id.
pub(crate) fn new_id<I: From<Uuid>>() -> I {
    I::from(Uuid::new_v4())
}

/// A new seed.
pub(crate) fn seed() -> u64 {
    Uuid::new_v4().as_u64_pair().0
}

/// A duration as the state's times count.
pub(crate) fn ns(d: Duration) -> TimestampNs {
    i64::try_from(d.as_nanos()).unwrap_or(i64::MAX)
}

/// A time zone of this machine's database, by its name.
pub(crate) fn zone(name: &str) -> Option<jiff::tz::TimeZone> {
    jiff::tz::TimeZone::get(name).ok()
}

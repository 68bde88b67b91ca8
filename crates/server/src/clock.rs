//! The one place where the server reads the clock and makes ids and seeds; what decides gets them as arguments.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub(crate) use control::{Boot, rfc3339};
use model::TimestampNs;
use uuid::Uuid;

/// Now on the boot clock.
pub(crate) fn boot_now() -> Boot {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Boot::since(Duration::new(u64::try_from(t.tv_sec).unwrap_or(0), u32::try_from(t.tv_nsec).unwrap_or(0)))
}

/// Nanoseconds since the Unix epoch.
pub(crate) fn now_ns() -> TimestampNs {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| i64::try_from(d.as_nanos()).unwrap_or(i64::MAX))
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

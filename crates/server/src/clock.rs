//! The one place where the server reads the clock and makes ids and seeds; what decides gets them as arguments.

use std::time::{SystemTime, UNIX_EPOCH};

use model::TimestampNs;
use uuid::Uuid;

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
pub(crate) fn ns(d: std::time::Duration) -> TimestampNs {
    i64::try_from(d.as_nanos()).unwrap_or(i64::MAX)
}

/// A time as texts of the API show it.
pub(crate) fn rfc3339(at: TimestampNs) -> String {
    jiff::Timestamp::from_nanosecond(i128::from(at)).map_or_else(|_| String::new(), |t| t.to_string())
}

//! The node's clock: every time that the node records comes from here.

use model::TimestampNs;

/// The wall clock in nanoseconds since the Unix epoch.
pub fn now_ns() -> TimestampNs {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

//! The node's clock: the one place where it is read for what is recorded.

use model::TimestampNs;

/// Unix ns.
pub fn now_ns() -> TimestampNs {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

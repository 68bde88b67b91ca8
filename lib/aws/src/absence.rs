//! When the absence of an instance counts.

use std::time::{Duration, SystemTime};

use driver_sdk::{InstanceState, Observation};

/// There is no instance of the key.
pub fn gone(key: &str) -> Observation {
    Observation { key: key.to_owned(), state: InstanceState::Gone, ..Observation::default() }
}

/// What to conclude from the service not knowing a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Absence {
    /// Nothing yet: what was just made may not be visible.
    TooEarly,
    /// Look for it in another way before anything is concluded.
    Search,
    /// There is none.
    Gone,
    /// Two answers contradict each other.
    Contradiction,
}

/// Decides about an instance that the service does not know. `found` is what a search by key has said, when one was
/// made.
pub fn absence(created: SystemTime, now: SystemTime, window: Duration, found: Option<bool>) -> Absence {
    // A clock that has gone back makes it younger, which is the safe side.
    let age = now.duration_since(created).unwrap_or_default();
    match found {
        _ if age < window => Absence::TooEarly,
        None => Absence::Search,
        Some(true) => Absence::Contradiction,
        Some(false) => Absence::Gone,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absence_counts_late_and_only_when_a_search_agrees() {
        let made = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        let window = Duration::from_secs(300);
        let at = |seconds: u64, found| absence(made, made + Duration::from_secs(seconds), window, found);
        for found in [None, Some(false), Some(true)] {
            assert_eq!(at(0, found), Absence::TooEarly);
            assert_eq!(at(299, found), Absence::TooEarly);
            assert_eq!(absence(made, made - Duration::from_secs(9), window, found), Absence::TooEarly);
        }
        assert_eq!(at(300, None), Absence::Search);
        assert_eq!(at(300, Some(false)), Absence::Gone);
        assert_eq!(at(9000, Some(true)), Absence::Contradiction);
    }
}

//! When the absence of an instance counts.

use std::collections::HashMap;
use std::time::{Duration, Instant, SystemTime};

use driver_sdk::{InstanceState, Observation};

/// Services list what has ended for about an hour; an entry that is older is of no use.
const REMEMBERED: Duration = Duration::from_secs(3 * 3600);

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

/// Ended instances that a listing shows and the service does not describe, by id, and since when this process knows.
#[derive(Debug, Default)]
pub struct Undescribed(HashMap<String, Instant>);

impl Undescribed {
    /// Whether the instance `id` may belong to any key: until `window` has passed since this process saw it first.
    /// After that it keeps no other key waiting.
    pub fn may_be_of_any_key(&mut self, id: &str, now: Instant, window: Duration) -> bool {
        self.0.retain(|_, since| now.duration_since(*since) < REMEMBERED);
        let since = *self.0.entry(id.to_owned()).or_insert(now);
        now.duration_since(since) < window
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_undescribed_instance_is_in_doubt_for_one_window() {
        let (begun, window) = (Instant::now(), Duration::from_secs(300));
        let mut undescribed = Undescribed::default();
        for (id, seconds, wanted) in
            [("a", 0, true), ("a", 299, true), ("b", 299, true), ("a", 300, false), ("b", 300, true)]
        {
            let now = begun + Duration::from_secs(seconds);
            assert_eq!(undescribed.may_be_of_any_key(id, now, window), wanted, "{id} after {seconds} s");
        }
        undescribed.may_be_of_any_key("c", begun + REMEMBERED + window, window);
        assert_eq!(undescribed.0.len(), 1, "old entries go");
    }

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

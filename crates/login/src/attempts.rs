//! Who has to wait after failed logins: each source may fail a few times at once, and then at a steady pace.
//!
//! An attempt counts as failed while it lasts. Whoever sends many at once gets no more of them than one after the
//! other.

use std::collections::HashMap;

/// Sources that are remembered; beyond, those that have the least to wait for are forgotten.
const REMEMBERED: usize = 10_000;

/// How often may be failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Failures at once.
    pub burst: u32,
    /// One failure is forgiven after so many milliseconds.
    pub forgiven_after: u64,
}

/// The pace of one source: 10 failures at once, and then 10 in a minute.
pub const OF_ONE: Pace = Pace { burst: 10, forgiven_after: 6_000 };
/// The pace of all sources together: 300 failures at once, and then 5 in a second.
pub const OF_ALL: Pace = Pace { burst: 300, forgiven_after: 200 };

/// The failures of each source. Time is in milliseconds of any clock that does not go back.
#[derive(Clone, Debug)]
pub struct Attempts {
    pace: Pace,
    /// When the last failure of a source is forgiven.
    clean_at: HashMap<String, u64>,
}

impl Attempts {
    /// Nobody has failed yet.
    #[must_use]
    pub fn at(pace: Pace) -> Self {
        Self { pace, clean_at: HashMap::new() }
    }

    /// Whether the source may try now; otherwise after how many whole seconds.
    ///
    /// # Errors
    /// The seconds to wait, at least one.
    pub fn may(&self, source: &str, now: u64) -> Result<(), u64> {
        let clean_at = self.clean_at.get(source).copied().unwrap_or(0);
        let spared = u64::from(self.pace.burst.saturating_sub(1)) * self.pace.forgiven_after;
        let allowed_from = clean_at.saturating_sub(spared);
        if allowed_from <= now { Ok(()) } else { Err((allowed_from - now).div_ceil(1000)) }
    }

    /// Counts a failure, or an attempt that may become one.
    pub fn failed(&mut self, source: &str, now: u64) {
        if self.clean_at.len() >= REMEMBERED && !self.clean_at.contains_key(source) {
            self.clean_at.retain(|_, clean_at| *clean_at > now);
            while self.clean_at.len() >= REMEMBERED {
                let least = self.clean_at.iter().min_by_key(|(_, clean_at)| **clean_at).map(|(key, _)| key.clone());
                let Some(least) = least else { break };
                self.clean_at.remove(&least);
            }
        }
        let clean_at = self.clean_at.entry(source.to_owned()).or_insert(now);
        *clean_at = (*clean_at).max(now) + self.pace.forgiven_after;
    }

    /// Takes one failure back: what was counted as one when it began has succeeded.
    pub fn succeeded(&mut self, source: &str) {
        if let Some(clean_at) = self.clean_at.get_mut(source) {
            *clean_at = clean_at.saturating_sub(self.pace.forgiven_after);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_failures_are_free_and_then_one_in_six_seconds() {
        let mut attempts = Attempts::at(OF_ONE);
        for _ in 0..OF_ONE.burst {
            assert_eq!(attempts.may("a", 5_000), Ok(()));
            attempts.failed("a", 5_000);
        }
        assert_eq!(attempts.may("a", 5_000), Err(6));
        assert_eq!(attempts.may("a", 10_500), Err(1), "a part of a second is a whole one");
        assert_eq!(attempts.may("a", 11_000), Ok(()));
        assert_eq!(attempts.may("b", 5_000), Ok(()), "nobody else waits");
        attempts.failed("a", 11_000);
        assert_eq!(attempts.may("a", 11_000), Err(6));
        assert_eq!(attempts.may("a", 1_000_000), Ok(()), "everything is forgiven in the end");
    }

    #[test]
    fn what_succeeds_is_not_counted() {
        let mut attempts = Attempts::at(OF_ONE);
        for i in 0..1_000 {
            assert_eq!(attempts.may("a", i), Ok(()), "{i}");
            attempts.failed("a", i);
            attempts.succeeded("a");
        }
        for _ in 0..OF_ONE.burst {
            attempts.failed("a", 2_000);
        }
        assert_eq!(attempts.may("a", 2_000), Err(6), "as many at once as one after the other");
        attempts.succeeded("a");
        assert_eq!(attempts.may("a", 2_000), Ok(()));
        attempts.succeeded("nobody");
    }

    #[test]
    fn sources_without_end_take_no_memory_without_end() {
        let mut attempts = Attempts::at(OF_ONE);
        for _ in 0..OF_ONE.burst {
            attempts.failed("first", 0);
        }
        for i in 0..REMEMBERED + 50 {
            attempts.failed(&format!("source {i}"), 0);
        }
        assert_eq!(attempts.clean_at.len(), REMEMBERED);
        assert!(attempts.may("first", 0).is_err(), "those who wait longest are remembered");
    }
}

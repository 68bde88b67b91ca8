//! Who has to wait after failed logins: each source may fail a few times at once, and then at a steady pace.

use std::collections::HashMap;

/// Failures of one source that cost no wait.
const BURST: u32 = 10;
/// One failure is forgiven after so many milliseconds.
const FORGIVEN_AFTER: u64 = 6_000;
/// Sources that are remembered; beyond, those that have the least to wait for are forgotten.
const REMEMBERED: usize = 10_000;

/// The failures of each source. Time is in milliseconds of any clock that does not go back.
#[derive(Clone, Debug, Default)]
pub struct Attempts {
    /// When the last failure of a source is forgiven.
    clean_at: HashMap<String, u64>,
}

impl Attempts {
    /// Whether the source may try now; otherwise after how many whole seconds.
    ///
    /// # Errors
    /// The seconds to wait, at least one.
    pub fn may(&self, source: &str, now: u64) -> Result<(), u64> {
        let clean_at = self.clean_at.get(source).copied().unwrap_or(0);
        let allowed_from = clean_at.saturating_sub(u64::from(BURST - 1) * FORGIVEN_AFTER);
        if allowed_from <= now { Ok(()) } else { Err((allowed_from - now).div_ceil(1000)) }
    }

    /// Counts a failure.
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
        *clean_at = (*clean_at).max(now) + FORGIVEN_AFTER;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_failures_are_free_and_then_one_in_six_seconds() {
        let mut attempts = Attempts::default();
        for _ in 0..BURST {
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
    fn sources_without_end_take_no_memory_without_end() {
        let mut attempts = Attempts::default();
        for _ in 0..BURST {
            attempts.failed("first", 0);
        }
        for i in 0..REMEMBERED + 50 {
            attempts.failed(&format!("source {i}"), 0);
        }
        assert_eq!(attempts.clean_at.len(), REMEMBERED);
        assert!(attempts.may("first", 0).is_err(), "those who wait longest are remembered");
    }
}

//! Delays between attempts.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

/// Doubling delays with a ceiling.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Backoff {
    /// Before the second attempt; the first one is immediate.
    pub(crate) first: Duration,
    /// Longest delay.
    pub(crate) max: Duration,
}

impl Backoff {
    /// The delay after `failures` failures in a row; `jitter` in 0..1 subtracts up to a quarter.
    pub(crate) fn delay(&self, failures: u32, jitter: f64) -> Duration {
        let Some(doublings) = failures.checked_sub(1) else {
            return Duration::ZERO;
        };
        let factor = 2f64.powi(doublings.min(30) as i32);
        let whole = self.first.mul_f64(factor).min(self.max);
        whole.mul_f64(1.0 - 0.25 * jitter.clamp(0.0, 1.0))
    }
}

/// Sixteen random hexadecimal digits: they distinguish launches and keep no secrets.
pub(crate) fn random() -> String {
    format!("{:016x}", RandomState::new().build_hasher().finish())
}

/// A number in 0..1, to spread the restarts of many nodes' plugins.
pub(crate) fn jitter() -> f64 {
    (RandomState::new().build_hasher().finish() >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_ceiling_and_jitter_only_shortens() {
        let backoff = Backoff { first: Duration::from_millis(500), max: Duration::from_secs(60) };
        let cases = [(0, 0), (1, 500), (2, 1000), (3, 2000), (7, 32_000), (8, 60_000), (4_000_000_000, 60_000)];
        for (failures, millis) in cases {
            assert_eq!(backoff.delay(failures, 0.0), Duration::from_millis(millis), "{failures}");
            assert_eq!(backoff.delay(failures, 1.0), Duration::from_millis(millis).mul_f64(0.75), "{failures}");
        }
        for _ in 0..100 {
            assert!((0.0..1.0).contains(&jitter()));
        }
    }
}

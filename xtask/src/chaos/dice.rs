//! What is drawn at random, from a seed that is printed.

use std::time::Duration;

/// The seed is the whole story of what is done, not of what the machine makes of it.
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }
    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
    pub(super) fn index(&mut self, n: usize) -> usize {
        usize::try_from(self.below(n as u64)).unwrap_or(0)
    }
    /// Mostly short, sometimes longer than any lease.
    pub(super) fn duration(&mut self, longest_ms: u64) -> Duration {
        let longest = if self.below(3) == 0 { longest_ms } else { longest_ms / 4 };
        Duration::from_millis(100 + self.below(longest))
    }
}

//! Instants on the boot clock, which no change of the time of day moves.

use std::time::Duration;

/// An instant on the boot clock, which continues while the machine sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Boot(Duration);

impl Boot {
    /// The instant this long after the machine's boot.
    #[must_use]
    pub fn since(boot: Duration) -> Self {
        Self(boot)
    }

    /// Time until `later`; zero when it has passed.
    #[must_use]
    pub fn until(self, later: Self) -> Duration {
        later.0.saturating_sub(self.0)
    }
}

impl std::ops::Add<Duration> for Boot {
    type Output = Self;
    fn add(self, d: Duration) -> Self {
        Self(self.0.saturating_add(d))
    }
}

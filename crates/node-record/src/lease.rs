//! The lease: how long this node may act for remote tasks without word from the servers.
//!
//! It runs on the boot clock, which continues while the machine sleeps. So a laptop or a paused guest finds its lease
//! gone when it wakes up. It counts from the moment at which the node *sent* the message that the server answered.

use std::time::Duration;

use tokio::sync::watch;

/// An instant on the boot clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BootInstant(Duration);

impl BootInstant {
    /// Now.
    #[must_use]
    pub fn now() -> Self {
        Self(clock::boot_now())
    }

    /// Time until `later`; zero when it has passed.
    #[must_use]
    pub fn until(self, later: Self) -> Duration {
        later.0.saturating_sub(self.0)
    }
}

impl std::ops::Add<Duration> for BootInstant {
    type Output = Self;
    fn add(self, d: Duration) -> Self {
        Self(self.0.saturating_add(d))
    }
}

/// The lease of this node; cheap to clone.
#[derive(Clone, Debug)]
pub struct Lease {
    until: watch::Sender<Option<BootInstant>>,
}

impl Default for Lease {
    fn default() -> Self {
        Self { until: watch::Sender::new(None) }
    }
}

impl Lease {
    /// Extends the lease: a server has answered the message sent at `sent`.
    pub fn granted(&self, sent: BootInstant, lease: Duration) {
        self.until.send_if_modified(|until| {
            let new = sent + lease;
            // Answers may arrive out of order; a late one never shortens the lease.
            let longer = until.is_none_or(|old| new > old);
            if longer {
                *until = Some(new);
            }
            longer
        });
    }

    /// When it runs out; `None` = never held.
    #[must_use]
    pub fn until(&self) -> Option<BootInstant> {
        *self.until.borrow()
    }

    /// Whether the node may act now.
    #[must_use]
    pub fn held(&self) -> bool {
        self.until().is_some_and(|until| BootInstant::now() < until)
    }

    /// Resolves when the lease is gone, at once if there is none. Cancel safe.
    pub async fn lost(&self) {
        let mut changes = self.until.subscribe();
        loop {
            let Some(until) = *changes.borrow_and_update() else {
                return;
            };
            let left = BootInstant::now().until(until);
            if left.is_zero() {
                return;
            }
            tokio::select! {
                () = tokio::time::sleep(left) => {}
                changed = changes.changed() => {
                    if changed.is_err() {
                        return;
                    }
                }
            }
        }
    }

    /// Resolves when the lease is held. Cancel safe.
    pub async fn regained(&self) {
        let mut changes = self.until.subscribe();
        while !self.held() {
            if changes.changed().await.is_err() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_lease_runs_out_counted_from_the_sending() {
        let lease = Lease::default();
        assert!(!lease.held());
        let sent = BootInstant::now();
        lease.granted(sent, Duration::from_secs(60));
        assert!(lease.held());
        lease.granted(sent, Duration::from_secs(1));
        assert_eq!(lease.until(), Some(sent + Duration::from_secs(60)), "a late answer does not shorten it");

        let short = Lease::default();
        let end = BootInstant::now() + Duration::from_millis(20);
        short.granted(BootInstant::now(), Duration::from_millis(20));
        assert!(short.held() || BootInstant::now() >= end);
        tokio::time::timeout(Duration::from_secs(60), short.lost()).await.expect("lost in time");
        assert!(!short.held());
        short.granted(sent, Duration::ZERO);
        assert!(!short.held());
        let waiting = short.clone();
        let regained = tokio::spawn(async move { waiting.regained().await });
        short.granted(BootInstant::now(), Duration::from_secs(9));
        tokio::time::timeout(Duration::from_secs(60), regained).await.expect("regained in time").expect("task");
    }
}

//! Timers of an allocation's loop. Most loops have one that is seldom due, such as the deadline of a health check: a
//! task of its own would be half of what a quiet loop costs.

use std::{pin::Pin, time::Duration};

use lifecycle::alloc::machine::Timer;
use tokio::time::{Instant, Sleep, sleep_until};

/// Timers that are not due yet.
#[derive(Default)]
pub(crate) struct Timers {
    waiting: Vec<(Instant, Timer)>,
    /// Until the first of them.
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Timers {
    /// Adds one that is due after that time.
    pub(crate) fn add(&mut self, after: Duration, timer: Timer) {
        let now = Instant::now();
        // A time that no clock reaches is far enough in a year.
        let at = now.checked_add(after).unwrap_or(now + Duration::from_secs(365 * 24 * 3600));
        self.waiting.reserve_exact(1);
        self.waiting.push((at, timer));
        self.sleep = None;
    }

    /// The next one, when it is due; waits for ever where there is none. Cancel safe.
    pub(crate) async fn next(&mut self) -> Timer {
        let first = self.waiting.iter().enumerate().min_by_key(|(_, (at, _))| *at).map(|(n, (at, _))| (n, *at));
        let Some((first, at)) = first else { return std::future::pending().await };
        self.sleep.get_or_insert_with(|| Box::pin(sleep_until(at))).await;
        self.sleep = None;
        let (_, timer) = self.waiting.remove(first);
        self.waiting.shrink_to_fit();
        timer
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn each_is_due_at_its_time_however_often_it_is_waited_for() {
        let mut timers = Timers::default();
        assert!(timers.next().now_or_never().is_none(), "there is none");
        let begun = Instant::now();
        let secs = Duration::from_secs;
        timers.add(secs(300), Timer::Deadline);
        timers.add(secs(10), Timer::Health);
        for _ in 0..5 {
            let gave_up = tokio::time::timeout(secs(1), timers.next()).await;
            assert!(gave_up.is_err(), "none is due yet");
        }
        timers.add(secs(1), Timer::GroupDelay);
        timers.add(Duration::MAX, Timer::Health);
        for (timer, at) in [(Timer::GroupDelay, secs(6)), (Timer::Health, secs(10)), (Timer::Deadline, secs(300))] {
            assert_eq!((timers.next().await, begun.elapsed().as_secs()), (timer, at.as_secs()));
        }
        assert!(tokio::time::timeout(secs(1000), timers.next()).await.is_err(), "that one never is");
    }
}

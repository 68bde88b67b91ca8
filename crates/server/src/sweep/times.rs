//! When which provider is swept: each has a time of its own, so one that cannot be listed costs the others no calls.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use super::{FIRST_SWEEP, Provider};

/// A sweep that failed is tried again after this time, for as long as incarnations may wait for it.
const RETRY: Duration = Duration::from_secs(5);
/// And after this time, once it has failed for longer.
const RETRY_LATER: Duration = Duration::from_secs(30);

/// How a sweep ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// All that is there was seen.
    Swept,
    /// All that is there was seen, and a sweep counts only from this time on.
    Early(Instant),
    /// It could not be listed, or in part only.
    Failed,
}

#[derive(Clone, Copy, Debug)]
struct Time {
    due: Instant,
    failing_since: Option<Instant>,
}

/// The next time of every provider.
#[derive(Debug)]
pub(super) struct Times {
    interval: Duration,
    of: HashMap<Provider, Time>,
}

impl Times {
    pub(super) fn new(interval: Duration) -> Self {
        Self { interval, of: HashMap::new() }
    }

    /// The provider is to be swept now; one that nobody has tried is.
    pub(super) fn is_due(&self, provider: &Provider, now: Instant) -> bool {
        self.of.get(provider).is_none_or(|time| time.due <= now)
    }

    /// Notes how the sweep of a provider ended that began at `began`.
    pub(super) fn note(&mut self, provider: &Provider, began: Instant, now: Instant, outcome: Outcome) {
        let before = self.of.get(provider).and_then(|time| time.failing_since);
        let (pause, failing_since) = match outcome {
            Outcome::Swept => (self.interval, None),
            Outcome::Early(counts_from) => (counts_from.saturating_duration_since(now).min(self.interval), None),
            Outcome::Failed => {
                let since = before.unwrap_or(began);
                let retry = if now.saturating_duration_since(since) < FIRST_SWEEP { RETRY } else { RETRY_LATER };
                (retry.min(self.interval), Some(since))
            }
        };
        self.of.insert(provider.clone(), Time { due: now + pause, failing_since });
    }

    /// Keeps the times of these providers only; gives the next one.
    pub(super) fn next(&mut self, now: Instant, there: impl Fn(&Provider) -> bool) -> Instant {
        self.of.retain(|provider, _| there(provider));
        self.of.values().map(|time| time.due).min().unwrap_or(now + self.interval)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_fails_has_times_of_its_own() {
        let secs = Duration::from_secs;
        let (start, hour) = (Instant::now(), secs(3600));
        let [good, bad, early] = ["good", "bad", "early"].map(|name| ("d".to_owned(), name.to_owned()));
        let mut times = Times::new(hour);
        assert!(times.is_due(&good, start), "nobody has tried it");
        times.note(&good, start, start, Outcome::Swept);
        times.note(&bad, start, start, Outcome::Failed);
        times.note(&early, start, start, Outcome::Early(start + secs(20)));
        assert_eq!(times.next(start, |_| true), start + RETRY);
        let due =
            |times: &Times, at: u64| [&good, &bad, &early].map(|provider| times.is_due(provider, start + secs(at)));
        assert_eq!(due(&times, 4), [false; 3]);
        assert_eq!(due(&times, 5), [false, true, false]);
        assert_eq!(due(&times, 20), [false, true, true]);
        // What fails for long holds nothing up any more.
        times.note(&bad, start + secs(55), start + secs(60), Outcome::Failed);
        assert_eq!(due(&times, 89), [false, false, true]);
        assert_eq!(due(&times, 90), [false, true, true]);
        // Once it succeeds, it is urgent again when it fails.
        times.note(&bad, start + secs(90), start + secs(90), Outcome::Swept);
        times.note(&bad, start + secs(100), start + secs(100), Outcome::Failed);
        assert!(times.is_due(&bad, start + secs(105)));
        // One that nobody reaches has none.
        assert_eq!(times.next(start, |provider| *provider == good), start + hour);
    }

    #[test]
    fn no_pause_is_longer_than_the_interval() {
        let (now, short) = (Instant::now(), Duration::from_secs(1));
        for outcome in [Outcome::Swept, Outcome::Early(now + Duration::from_secs(60)), Outcome::Failed] {
            let (mut times, provider) = (Times::new(short), Provider::default());
            times.note(&provider, now, now, outcome);
            assert_eq!(times.next(now, |_| true), now + short, "{outcome:?}");
        }
    }
}

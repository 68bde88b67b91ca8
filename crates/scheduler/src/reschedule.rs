//! When a new allocation may replace a failed one, and after which pause.
//!
//! The scheduler asks for each failed allocation that its job still wants.

use model::{GoDuration, Reschedule, TimestampNs, alloc::RescheduleTracker};

/// The policy's verdict on one failed allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// A replacement may be placed from that time on (at once if that has passed).
    At {
        /// The time, Unix ns.
        time: TimestampNs,
        /// The pause before it.
        delay: GoDuration,
    },
    /// No further attempt.
    Never {
        /// The reason, for people.
        reason: String,
    },
}

/// Decides on an allocation that failed at `failed_at`; `tracker` has its earlier attempts.
#[must_use]
pub fn next(policy: Option<&Reschedule>, tracker: Option<&RescheduleTracker>, failed_at: TimestampNs) -> Verdict {
    let Some(policy) = policy else {
        return Verdict::Never { reason: "the job kind is not rescheduled".to_owned() };
    };
    let unlimited = policy.unlimited();
    let attempts = u32::try_from(policy.attempts()).unwrap_or(0);
    if !unlimited && attempts == 0 {
        return Verdict::Never { reason: "the reschedule policy allows no attempts".to_owned() };
    }
    let delay = next_delay(policy, tracker, failed_at);
    if !unlimited {
        let interval = policy.interval();
        let used = attempts_in(tracker, failed_at, interval);
        if used >= attempts {
            return Verdict::Never {
                reason: format!("{used} of {attempts} reschedule attempts used in the last {interval}"),
            };
        }
        // A pause longer than the interval could never count within it: the policy then means "give up".
        if delay > interval {
            return Verdict::Never {
                reason: format!("the next pause of {delay} is longer than the interval of {interval}"),
            };
        }
    }
    Verdict::At { time: failed_at.saturating_add(delay.nanos()), delay }
}

/// Whether an attempt is left for an allocation that failed at `failed_at`, whatever its pause.
#[must_use]
pub fn eligible(policy: Option<&Reschedule>, tracker: Option<&RescheduleTracker>, failed_at: TimestampNs) -> bool {
    policy.is_some_and(|policy| {
        let attempts = u32::try_from(policy.attempts()).unwrap_or(0);
        policy.unlimited() || attempts_in(tracker, failed_at, policy.interval()) < attempts
    })
}

/// Attempts within `interval` before `now`.
#[must_use]
pub fn attempts_in(tracker: Option<&RescheduleTracker>, now: TimestampNs, interval: GoDuration) -> u32 {
    let since = now.saturating_sub(interval.nanos());
    let used = tracker.map_or(0, |t| t.events.iter().filter(|e| e.time > since).count());
    u32::try_from(used).unwrap_or(u32::MAX)
}

/// The pause before the next attempt. Exponential and fibonacci pauses grow from the tracker's last ones up to
/// `max_delay`. They begin again when the last replacement ran longer than its next pause would be.
#[must_use]
pub fn next_delay(policy: &Reschedule, tracker: Option<&RescheduleTracker>, failed_at: TimestampNs) -> GoDuration {
    let base = policy.delay();
    let events = tracker.map(|t| t.events.as_slice()).unwrap_or_default();
    let Some(last) = events.last() else { return base };
    let grown = match policy.delay_function().as_str() {
        "exponential" => GoDuration(last.delay.nanos().saturating_mul(2)),
        "fibonacci" => match events {
            [.., before, last] => {
                // At the ceiling two equal pauses would sum to more; a reset leaves a smaller one behind a larger one.
                let previous = if before.delay > last.delay { GoDuration::ZERO } else { before.delay };
                GoDuration(last.delay.nanos().saturating_add(previous.nanos()))
            }
            _ => base,
        },
        _ => return base,
    };
    let max = policy.max_delay();
    let bounded = if max > GoDuration::ZERO && grown > max { max } else { grown };
    let ran_for = failed_at.saturating_sub(last.time);
    if ran_for > bounded.nanos() && bounded > GoDuration::ZERO { base } else { bounded }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::alloc::RescheduleEvent;

    const S: i64 = 1_000_000_000;

    fn policy(function: &str, delay_s: i64, max_s: i64) -> Reschedule {
        Reschedule {
            attempts: Some(0),
            interval: Some(GoDuration::ZERO),
            delay: Some(GoDuration::from_secs(delay_s)),
            delay_function: Some(function.to_owned()),
            max_delay: Some(GoDuration::from_secs(max_s)),
            unlimited: Some(true),
        }
    }

    /// Fails again right after each replacement; returns the pauses in seconds.
    fn pauses(policy: &Reschedule, n: usize) -> Vec<i64> {
        let mut tracker = RescheduleTracker::default();
        let mut now = 1_000 * S;
        let mut out = Vec::new();
        for _ in 0..n {
            let Verdict::At { time, delay } = next(Some(policy), Some(&tracker), now) else { panic!("unlimited") };
            out.push(delay.nanos() / S);
            tracker.events.push(RescheduleEvent { time, delay, ..RescheduleEvent::default() });
            now = time + 1;
        }
        out
    }

    #[test]
    fn growth_of_the_pause() {
        assert_eq!(pauses(&policy("constant", 5, 3600), 4), [5, 5, 5, 5]);
        assert_eq!(pauses(&policy("exponential", 30, 3600), 9), [30, 60, 120, 240, 480, 960, 1920, 3600, 3600]);
        assert_eq!(pauses(&policy("fibonacci", 30, 200), 7), [30, 30, 60, 90, 150, 200, 200]);
    }

    #[test]
    fn the_pause_begins_again_after_a_long_run() {
        let tracker = RescheduleTracker {
            events: vec![RescheduleEvent {
                time: 1_000 * S,
                delay: GoDuration::from_secs(240),
                ..RescheduleEvent::default()
            }],
            ..RescheduleTracker::default()
        };
        let p = policy("exponential", 30, 3600);
        assert_eq!(next_delay(&p, Some(&tracker), 1_100 * S), GoDuration::from_secs(480));
        assert_eq!(next_delay(&p, Some(&tracker), 1_481 * S), GoDuration::from_secs(30));
    }

    #[test]
    fn attempts_within_the_interval() {
        let mut p = policy("constant", 5, 0);
        p.unlimited = Some(false);
        p.attempts = Some(1);
        p.interval = Some(GoDuration::from_secs(86_400));
        assert_eq!(next(Some(&p), None, 100 * S), Verdict::At { time: 105 * S, delay: GoDuration::from_secs(5) });
        let tracker = RescheduleTracker {
            events: vec![RescheduleEvent {
                time: 105 * S,
                delay: GoDuration::from_secs(5),
                ..RescheduleEvent::default()
            }],
            ..RescheduleTracker::default()
        };
        assert_eq!(
            next(Some(&p), Some(&tracker), 200 * S),
            Verdict::Never { reason: "1 of 1 reschedule attempts used in the last 24h0m0s".to_owned() }
        );
        assert!(
            matches!(next(Some(&p), Some(&tracker), 90_000 * S), Verdict::At { .. }),
            "a day later the attempt is free again"
        );
        assert!(!eligible(Some(&p), Some(&tracker), 200 * S) && eligible(Some(&p), Some(&tracker), 90_000 * S));
        p.attempts = Some(0);
        assert!(!eligible(Some(&p), None, 100 * S) && !eligible(None, None, 100 * S));
        assert!(matches!(next(Some(&p), None, 100 * S), Verdict::Never { .. }));
        assert!(matches!(next(None, None, 100 * S), Verdict::Never { .. }), "system jobs have no policy");
    }
}

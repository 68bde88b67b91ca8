//! The restart tracker: decides what follows the end of a task.
//!
//! ```text
//! end ─┬─ batch and successful ───────────────────────────► Complete
//!      ├─ attempts = 0 ───────────────────────────────────► Fail
//!      ├─ unrecoverable ──────────────────────────────────► Fail
//!      ├─ lost with its driver or its machine ────────────► Restart after delay + jitter, no attempt spent
//!      ├─ attempts left in the interval ──────────────────► Restart after delay + jitter
//!      └─ none left ─┬─ mode "fail" ──────────────────────► Fail
//!                    └─ mode "delay" ─────────────────────► Restart when the interval is over
//! ```
//!
//! A service task restarts whatever its exit code: it is supposed to run for ever. Without any attempts its end is a
//! failure, whatever its exit code, so that its group's reschedule policy applies.
//!
//! Only a failure of the task itself spends an attempt, and the tracker keeps the cause of each. A run lost with its
//! driver or its machine restarts after the policy's delay and spends nothing. Without any attempts it fails, as the
//! policy says.
//!
//! The first interval begins when the node receives the task. Each further one begins with the first end after the
//! interval before it.

use model::{GoDuration, Restart, RestartCharge, RestartCharges, TimestampNs};

/// Counters of one task. Store them with the task: they must survive the agent and, for remote tasks, the node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tracker {
    /// Start of the present interval; 0 = it begins with the next end.
    pub window_start: TimestampNs,
    /// Restarts within it.
    pub in_window: u32,
}

/// Why the task has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The workload has ended.
    Exited {
        /// Exit code 0, no signal, not out of memory.
        successful: bool,
    },
    /// The end is unknown and not the task's own failure: it was lost with its driver or machine, or a person has
    /// declared it gone.
    Lost,
    /// It could not be started; another attempt may help.
    StartFailed,
    /// It could not be started and no attempt will ever help (a bad configuration, a missing driver).
    Unrecoverable,
}

/// What follows the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Start again at that time.
    Restart {
        /// Start time, Unix ns.
        at: TimestampNs,
        /// The reason, for people.
        reason: String,
    },
    /// The task is done and has not failed.
    Complete,
    /// The task is done and has failed.
    Fail {
        /// The reason, for people.
        reason: String,
    },
}

impl Tracker {
    /// Decides and counts. `policy` is canonical (unset fields have the service defaults). `seed` varies the jitter: it
    /// adds up to a quarter of the delay, so that tasks that fail together do not return together.
    #[must_use]
    pub fn on_end(&mut self, policy: &Restart, batch: bool, end: End, now: TimestampNs, seed: u64) -> Decision {
        let successful = matches!(end, End::Exited { successful: true });
        if batch && successful {
            return Decision::Complete;
        }
        let attempts = u32::try_from(policy.attempts()).unwrap_or(0);
        if attempts == 0 {
            return Decision::Fail { reason: "Policy allows no restarts".to_owned() };
        }
        if end == End::Unrecoverable {
            return Decision::Fail { reason: "Error was unrecoverable".to_owned() };
        }
        if end == End::Lost {
            let at = now.saturating_add(jittered(policy.delay(), seed).nanos());
            return Decision::Restart { at, reason: "Not its own failure, no attempt is spent".to_owned() };
        }
        let interval = policy.interval().nanos();
        // A clock that was set back begins a new interval: the old one would last as long as the step.
        let window_over =
            self.window_start == 0 || now < self.window_start || now.saturating_sub(self.window_start) > interval;
        if window_over {
            *self = Self { window_start: now, in_window: 0 };
        }
        if self.in_window >= attempts {
            if policy.mode() == "delay" {
                // The interval is over then. The next one begins with the end of that start.
                let at = self.window_start.saturating_add(interval).max(now);
                return Decision::Restart { at, reason: "Exceeded allowed attempts, applying a delay".to_owned() };
            }
            return Decision::Fail {
                reason: format!(
                    "Exceeded allowed attempts {attempts} in interval {} and mode is \"fail\"",
                    policy.interval()
                ),
            };
        }
        self.in_window += 1;
        let delay = jittered(policy.delay(), seed ^ u64::from(self.in_window));
        Decision::Restart { at: now.saturating_add(delay.nanos()), reason: "Restart within policy".to_owned() }
    }

    /// Whether no start follows one that fails at `now`, by the policy, although another could help.
    #[must_use]
    pub fn is_spent(mut self, policy: &Restart, now: TimestampNs) -> bool {
        matches!(self.on_end(policy, false, End::StartFailed, now, 0), Decision::Fail { .. })
    }

    /// Keeps the cause when [`Tracker::on_end`] has spent an attempt; `before` is the tracker before. Drops the causes
    /// of a past interval.
    pub fn account(self, before: Self, charges: &mut RestartCharges, cause: impl FnOnce() -> RestartCharge) {
        let same = self.window_start == before.window_start;
        if !same {
            charges.clear();
        }
        if self.in_window > if same { before.in_window } else { 0 } {
            charges.push(cause());
        }
    }
}

/// The longest pause that [`Tracker::on_end`] can decide on. A later time comes from another clock.
#[must_use]
pub fn longest_pause(policy: &Restart) -> GoDuration {
    let delay = policy.delay().nanos();
    GoDuration(delay.saturating_add(delay / 4).max(policy.interval().nanos()))
}

/// `delay` plus up to a quarter of it, by the seed.
#[must_use]
pub fn jittered(delay: GoDuration, seed: u64) -> GoDuration {
    let quarter = u64::try_from(delay.nanos() / 4).unwrap_or(0);
    let extra = if quarter == 0 { 0 } else { mix(seed) % quarter };
    GoDuration(delay.nanos().saturating_add(i64::try_from(extra).unwrap_or(0)))
}

/// A well-mixed function of the seed (the finaliser of splitmix64).
#[must_use]
pub fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: i64 = 1_000_000_000;

    fn policy(attempts: i32, interval_s: i64, delay_s: i64, mode: &str) -> Restart {
        Restart {
            attempts: Some(attempts),
            interval: Some(GoDuration::from_secs(interval_s)),
            delay: Some(GoDuration::from_secs(delay_s)),
            mode: Some(mode.to_owned()),
            render_templates: Some(false),
        }
    }

    fn ended(d: &Decision) -> &'static str {
        match d {
            Decision::Restart { .. } => "restart",
            Decision::Complete => "complete",
            Decision::Fail { .. } => "fail",
        }
    }

    #[test]
    fn a_clock_that_was_set_back_neither_fails_nor_delays_a_task() {
        let hour = 3_600 * S;
        for mode in ["fail", "delay"] {
            let mut tracker = Tracker { window_start: 5 * hour, in_window: 2 };
            let policy = policy(2, 60, 1, mode);
            let Decision::Restart { at, .. } =
                tracker.on_end(&policy, false, End::Exited { successful: false }, hour, 1)
            else {
                panic!("{mode}: a restart is due");
            };
            assert!(at - hour <= longest_pause(&policy).nanos(), "{mode}: in {} s", (at - hour) / S);
        }
        assert_eq!(
            (longest_pause(&policy(2, 60, 1, "fail")).nanos(), longest_pause(&policy(2, 1, 8, "fail")).nanos()),
            (60 * S, 10 * S)
        );
    }

    #[test]
    fn first_decision_by_kind_of_job_and_end() {
        let ok = End::Exited { successful: true };
        let bad = End::Exited { successful: false };
        for (batch, attempts, end, expected) in [
            (true, 3, ok, "complete"),
            (true, 3, bad, "restart"),
            (true, 0, bad, "fail"),
            (false, 2, ok, "restart"),
            (false, 2, bad, "restart"),
            (false, 0, ok, "fail"),
            (false, 0, bad, "fail"),
            (false, 2, End::StartFailed, "restart"),
            (false, 2, End::Unrecoverable, "fail"),
            (true, 2, End::Unrecoverable, "fail"),
            (true, 2, End::Lost, "restart"),
            (false, 2, End::Lost, "restart"),
            (false, 0, End::Lost, "fail"),
        ] {
            let d = Tracker::default().on_end(&policy(attempts, 60, 1, "fail"), batch, end, 10 * S, 1);
            assert_eq!(ended(&d), expected, "batch {batch}, attempts {attempts}, {end:?}");
        }
    }

    #[test]
    fn the_first_interval_begins_with_the_task() {
        // Received at 100 s, each run takes 3 s and each pause 1 s: what is counted by the stock's intervals of 8 s.
        let p = policy(2, 8, 1, "fail");
        let mut t = Tracker { window_start: 100 * S, in_window: 0 };
        let decided: Vec<_> = [103, 107, 111, 115, 118]
            .iter()
            .map(|at| ended(&t.on_end(&p, false, End::Exited { successful: false }, at * S, 1)))
            .collect();
        assert_eq!(
            decided,
            ["restart", "restart", "restart", "restart", "fail"],
            "the second interval begins at 111 s"
        );
    }

    #[test]
    fn attempts_are_counted_within_the_interval_only() {
        let p = policy(2, 60, 1, "fail");
        let mut t = Tracker::default();
        let bad = End::Exited { successful: false };
        assert_eq!(ended(&t.on_end(&p, false, bad, 100 * S, 1)), "restart");
        assert_eq!(ended(&t.on_end(&p, false, bad, 110 * S, 1)), "restart");
        let third = t.on_end(&p, false, bad, 120 * S, 1);
        assert_eq!(
            third,
            Decision::Fail { reason: "Exceeded allowed attempts 2 in interval 1m0s and mode is \"fail\"".to_owned() }
        );
        // A new interval begins with the first end after the first one.
        assert_eq!(ended(&t.on_end(&p, false, bad, 160 * S, 1)), "fail");
        assert_eq!(ended(&t.on_end(&p, false, bad, 161 * S, 1)), "restart");
        assert_eq!(t.in_window, 1);
    }

    #[test]
    fn a_policy_is_spent_when_its_attempts_are_and_its_interval_still_runs() {
        for (attempts, mode, in_window, at, spent) in [
            (0, "fail", 0, 100, true),
            (0, "delay", 0, 100, true),
            (2, "fail", 0, 110, false),
            (2, "fail", 1, 110, false),
            (2, "fail", 2, 110, true),
            (2, "fail", 2, 160, true),
            (2, "fail", 2, 161, false),
            (2, "delay", 2, 110, false),
        ] {
            let t = Tracker { window_start: 100 * S, in_window };
            assert_eq!(
                t.is_spent(&policy(attempts, 60, 1, mode), at * S),
                spent,
                "{in_window} of {attempts} attempts, {mode}, {at} s"
            );
        }
        assert!(!Tracker::default().is_spent(&policy(1, 60, 1, "fail"), 100 * S));
    }

    #[test]
    fn only_its_own_failures_spend_attempts_and_each_keeps_its_cause() {
        let p = policy(2, 60, 1, "fail");
        let (mut t, mut charges) = (Tracker::default(), RestartCharges::default());
        let mut end = |end, at: i64, cause: &str| {
            let before = t;
            let decision = t.on_end(&p, false, end, at * S, 1);
            t.account(before, &mut charges, || RestartCharge::because(at, cause));
            assert_eq!(usize::try_from(t.in_window), Ok(charges.len()), "{cause}");
            (ended(&decision), charges.iter().map(|c| c.cause.to_string()).collect::<Vec<_>>().join(", "))
        };
        let bad = End::Exited { successful: false };
        for (what, at, cause, decision, charged) in [
            (End::Lost, 90, "lost", "restart", ""),
            (bad, 100, "a", "restart", "a"),
            (End::Lost, 105, "lost", "restart", "a"),
            (End::StartFailed, 110, "b", "restart", "a, b"),
            // No attempt is left: this end spends nothing.
            (bad, 120, "c", "fail", "a, b"),
            // A loss with its driver does not count as its failure.
            (End::Lost, 130, "lost", "restart", "a, b"),
            (End::Unrecoverable, 140, "d", "fail", "a, b"),
            // Another interval.
            (bad, 161, "e", "restart", "e"),
        ] {
            assert_eq!(end(what, at, cause), (decision, charged.to_owned()), "{what:?} at {at}");
        }
    }

    #[test]
    fn mode_delay_waits_for_the_interval_and_goes_on() {
        let p = policy(1, 60, 1, "delay");
        let mut t = Tracker::default();
        let bad = End::Exited { successful: false };
        assert_eq!(ended(&t.on_end(&p, false, bad, 100 * S, 1)), "restart");
        assert_eq!(
            t.on_end(&p, false, bad, 110 * S, 1),
            Decision::Restart { at: 160 * S, reason: "Exceeded allowed attempts, applying a delay".to_owned() }
        );
        // The next interval begins with the end of the start at 160 s, and has its own attempts.
        assert!(matches!(t.on_end(&p, false, bad, 170 * S, 1), Decision::Restart { at, .. } if at < 180 * S));
        assert_eq!(
            t.on_end(&p, false, bad, 180 * S, 1),
            Decision::Restart { at: 230 * S, reason: "Exceeded allowed attempts, applying a delay".to_owned() }
        );
    }

    #[test]
    fn jitter_adds_up_to_a_quarter_and_follows_the_seed() {
        let delay = GoDuration::from_secs(8);
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..200 {
            let d = jittered(delay, seed);
            assert!(d >= delay && d < GoDuration::from_secs(10), "seed {seed}: {d}");
            assert_eq!(d, jittered(delay, seed), "the same seed gives the same jitter");
            seen.insert(d.nanos());
        }
        assert!(seen.len() > 190, "seeds differ in their jitter");
        assert_eq!(jittered(GoDuration::ZERO, 7), GoDuration::ZERO);
    }
}

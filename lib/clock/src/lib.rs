//! Clocks that a change of the time of day does not set back: the boot clock, which leases run on because it goes on
//! while the machine sleeps, and the steady time of day.
//!
//! A simulation that runs servers and nodes on virtual time says here how its threads read them. The other clocks are
//! those of the standard library.

use std::{
    sync::{Mutex, OnceLock, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

static SIMULATED: OnceLock<Simulated> = OnceLock::new();
static STEADY: Mutex<Steady> = Mutex::new(Steady::new());

/// What a simulation says to its threads; None where the calling thread is in none.
#[derive(Clone, Copy, Debug)]
pub struct Simulated {
    /// Time since the machine has started.
    pub boot: fn() -> Option<Duration>,
    /// As [`Steady::at`] and [`Steady::reach`], of the simulation's own.
    pub steady: fn(day: Duration, boot: Duration, reach: Duration) -> Option<Duration>,
}

/// Time since the machine has started, with the time that it slept.
#[must_use]
pub fn boot_now() -> Duration {
    if let Some(now) = SIMULATED.get().and_then(|simulated| (simulated.boot)()) {
        return now;
    }
    let t = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(u64::try_from(t.tv_sec).unwrap_or(0), u32::try_from(t.tv_nsec).unwrap_or(0))
}

/// The steady time of day of this process, since the Unix epoch: see [`Steady`].
#[must_use]
pub fn steady_now() -> Duration {
    steady(Duration::ZERO)
}

/// Lets the steady time of day go on from there, if it is not as late yet: an earlier process has come that far.
pub fn reach(at: Duration) {
    let _ = steady(at);
}

fn steady(reach: Duration) -> Duration {
    let day = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let boot = boot_now();
    if let Some(now) = SIMULATED.get().and_then(|simulated| (simulated.steady)(day, boot, reach)) {
        return now;
    }
    let mut steady = STEADY.lock().unwrap_or_else(PoisonError::into_inner);
    steady.reach(reach, boot);
    steady.at(day, boot)
}

/// A time of day that is never set back. It follows the machine's time of day forward. When that is set back, it goes
/// on at the pace of the boot clock, slower by a sixteenth until the machine's has caught up. So a wait for one of its
/// times lasts at most a fifteenth longer than was meant.
#[derive(Debug, Default)]
pub struct Steady {
    last: Duration,
    /// On the boot clock, when it was so late.
    boot: Duration,
}

impl Steady {
    /// One that follows the machine's time of day from its first use on.
    #[must_use]
    pub const fn new() -> Self {
        Self { last: Duration::ZERO, boot: Duration::ZERO }
    }

    /// What it says when the machine's clocks say this.
    pub fn at(&mut self, day: Duration, boot: Duration) -> Duration {
        let gone = boot.saturating_sub(self.boot);
        self.last = day.max(self.last + (gone - gone / 16));
        self.boot = self.boot.max(boot);
        self.last
    }

    /// Goes on from there, if it is not as late yet.
    pub fn reach(&mut self, at: Duration, boot: Duration) {
        if at > self.last {
            (self.last, self.boot) = (at, self.boot.max(boot));
        }
    }
}

/// Asks the simulation first from now on. The first call counts.
pub fn simulate(simulated: Simulated) {
    let _ = SIMULATED.set(simulated);
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        static VIRTUAL: Cell<Option<Duration>> = const { Cell::new(None) };
    }

    #[test]
    fn a_simulated_thread_reads_its_own_time_and_the_others_that_of_the_machine() {
        simulate(Simulated { boot: || VIRTUAL.get(), steady: |_, _, _| None });
        let real = boot_now();
        assert!(real > Duration::ZERO && boot_now() >= real);
        VIRTUAL.set(Some(Duration::from_secs(7)));
        assert_eq!(boot_now(), Duration::from_secs(7));
        let elsewhere = std::thread::spawn(boot_now).join().expect("the other thread");
        assert!(elsewhere >= real, "another thread");
    }

    #[test]
    fn the_steady_time_of_day_goes_forward_with_the_machine_s_and_on_when_that_is_set_back() {
        let seconds = Duration::from_secs;
        let mut steady = Steady::new();
        for (day, boot, expected, why) in [
            (1_000, 10, 1_000, "the time of day"),
            (1_100, 110, 1_100, "and no sixteenth less"),
            (500, 126, 1_115, "set back: sixteen seconds are fifteen"),
            (500, 126, 1_115, "it stands while no time passes"),
            (1_000, 100, 1_115, "who has read the clocks earlier and comes later does not set it back"),
            (1_990, 1_726, 2_615, "sixteen hundred are fifteen hundred"),
            (9_000, 1_727, 9_000, "set forward, beyond what it says"),
        ] {
            let said = steady.at(seconds(day), seconds(boot));
            assert_eq!(said.as_secs(), expected, "{why}: {said:?}");
        }
    }

    #[test]
    fn the_steady_time_of_day_comes_back_to_the_machine_s() {
        let seconds = Duration::from_secs;
        let mut steady = Steady::new();
        assert_eq!(steady.at(seconds(10_000), seconds(0)), seconds(10_000));
        // A minute back: sixteen minutes later both say the same.
        assert!(steady.at(seconds(9_940 + 480), seconds(480)) > seconds(9_940 + 480));
        assert_eq!(steady.at(seconds(9_940 + 960), seconds(960)), seconds(9_940 + 960));
    }

    #[test]
    fn what_an_earlier_process_has_reached_is_reached() {
        let seconds = Duration::from_secs;
        let mut steady = Steady::new();
        steady.reach(seconds(2_000), seconds(50));
        assert_eq!(steady.at(seconds(1_000), seconds(50)), seconds(2_000));
        steady.reach(seconds(1_500), seconds(60));
        assert_eq!(steady.at(seconds(1_016), seconds(66)), seconds(2_015));
    }

    #[test]
    fn the_steady_time_of_day_is_the_machine_s_while_nobody_sets_that() {
        let day = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock that is set");
        let (first, second) = (steady_now(), steady_now());
        assert!(day <= first && first <= second, "{day:?} {first:?} {second:?}");
    }
}

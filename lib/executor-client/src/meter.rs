//! Computes rates from counters.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use crate::Stats;

/// Use of processors since the previous sample, in percent of one core.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CpuRate {
    /// In user mode.
    pub user: f64,
    /// In system mode.
    pub system: f64,
}

impl CpuRate {
    /// Both modes.
    pub fn total(&self) -> f64 {
        self.user + self.system
    }
}

/// Rates between two samples.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rates {
    /// The whole tree.
    pub total: CpuRate,
    /// Each process.
    pub by_pid: HashMap<i32, CpuRate>,
}

/// Keeps the previous sample of one workload.
#[derive(Debug, Default)]
pub struct Meter {
    last: Mutex<Option<Stats>>,
}

impl Meter {
    /// Rates since the previous call; zero on the first.
    pub fn rates(&self, now: &Stats) -> Rates {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let rates = last.as_ref().map(|last| between(last, now)).unwrap_or_default();
        *last = Some(now.clone());
        rates
    }
}

fn between(last: &Stats, now: &Stats) -> Rates {
    let elapsed = now.at_ns.saturating_sub(last.at_ns);
    let percent = |then: u64, now: u64| match elapsed {
        0 => 0.0,
        _ => now.saturating_sub(then) as f64 * 100.0 / elapsed as f64,
    };
    let by_pid = now.pids.iter().map(|p| {
        let then = last.pids.iter().find(|l| l.pid == p.pid).map_or((0, 0), |l| (l.user_ns, l.system_ns));
        (p.pid, CpuRate { user: percent(then.0, p.user_ns), system: percent(then.1, p.system_ns) })
    });
    Rates {
        total: CpuRate { user: percent(last.user_ns, now.user_ns), system: percent(last.system_ns, now.system_ns) },
        by_pid: by_pid.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PidStats;

    #[test]
    fn rates_are_of_the_time_between_two_samples() {
        let sample = |at_ns, user_ns, pids: &[(i32, u64)]| Stats {
            at_ns,
            user_ns,
            system_ns: user_ns / 2,
            pids: pids
                .iter()
                .map(|(pid, user_ns)| PidStats { pid: *pid, user_ns: *user_ns, ..Default::default() })
                .collect(),
            ..Default::default()
        };
        let meter = Meter::default();
        assert_eq!(meter.rates(&sample(1_000, 700, &[(1, 700)])), Rates::default());
        let rates = meter.rates(&sample(2_000, 1_200, &[(1, 900), (2, 300)]));
        assert_eq!((rates.total.user, rates.total.system), (50.0, 25.0));
        assert_eq!(rates.total.total(), 75.0);
        assert_eq!((rates.by_pid[&1].user, rates.by_pid[&2].user), (20.0, 30.0));
        assert_eq!(meter.rates(&sample(2_000, 9_000, &[])).total, CpuRate::default(), "no time, no rate");
    }
}

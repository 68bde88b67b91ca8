//! Measurements as hosts want them.

use std::time::{Duration, UNIX_EPOCH};

use driver_sdk::proto::base::ClientTopology;
use driver_sdk::{CpuUsage, MemoryUsage, TaskUsage, Usage};
use executor_client::{CpuRate, Meter, Stats};

/// What a host is told of an executor's sample, with rates since the one before. `core_mhz`: speed of one core where
/// the processes run.
#[must_use]
pub fn usage(stats: &Stats, meter: &Meter, core_mhz: f64) -> TaskUsage {
    let rates = meter.rates(stats);
    let cpu = |rate: CpuRate| CpuUsage {
        system_mode: Some(rate.system),
        user_mode: Some(rate.user),
        percent: Some(rate.total()),
        total_ticks: Some(rate.total() / 100.0 * core_mhz),
        ..CpuUsage::default()
    };
    let by_pid = stats.pids.iter().filter_map(|p| {
        let memory = MemoryUsage { rss: Some(p.rss), ..MemoryUsage::default() };
        let rate = rates.by_pid.get(&p.pid).copied().unwrap_or_default();
        Some((u32::try_from(p.pid).ok()?, Usage { cpu: cpu(rate), memory }))
    });
    TaskUsage {
        at: Some(UNIX_EPOCH + Duration::from_nanos(stats.at_ns)),
        total: Usage {
            cpu: CpuUsage {
                throttled_periods: Some(stats.throttled_periods),
                throttled_time: Some(stats.throttled_ns),
                ..cpu(rates.total)
            },
            memory: MemoryUsage {
                rss: Some(stats.rss),
                cache: stats.memory_cache,
                max_usage: stats.memory_peak,
                usage: stats.memory_usage,
                swap: stats.memory_swap,
                ..MemoryUsage::default()
            },
        },
        by_pid: by_pid.collect(),
    }
}

/// Speed of one core: as the host's topology says, else as the kernel does.
pub(crate) fn core_mhz(topology: Option<&ClientTopology>) -> f64 {
    let speeds: Vec<u64> = topology
        .iter()
        .flat_map(|t| &t.cores)
        .map(|c| [c.base_speed, c.max_speed, c.guess_speed].into_iter().find(|s| *s > 0).unwrap_or(0))
        .filter(|speed| *speed > 0)
        .collect();
    if !speeds.is_empty() {
        return speeds.iter().sum::<u64>() as f64 / speeds.len() as f64;
    }
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let mhz = cpuinfo.lines().find(|l| l.starts_with("cpu MHz")).and_then(|l| l.split(':').nth(1)?.trim().parse().ok());
    mhz.unwrap_or(1000.0)
}

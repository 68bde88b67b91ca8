//! Measurements as hosts want them.

use std::time::{Duration, UNIX_EPOCH};

use driver_sdk::{CpuUsage, MemoryUsage, TaskUsage, Usage};
use executor_client::{CpuRate, Meter, Stats};

/// One sample, with rates since the previous one.
pub(crate) fn usage(stats: &Stats, meter: &Meter, core_mhz: f64) -> TaskUsage {
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

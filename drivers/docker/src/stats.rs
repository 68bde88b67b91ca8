//! Resource use of a container.

use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use driver_sdk::{CpuUsage, MemoryUsage, TaskUsage, Usage};
use serde::Deserialize;

use crate::engine::types::time;
use crate::engine::{Api, Engine, EngineError, encode};

/// The engine's counters.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Sample {
    read: String,
    cpu_stats: Cpu,
    memory_stats: Memory,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Cpu {
    cpu_usage: CpuCounters,
    throttling_data: Throttling,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
struct CpuCounters {
    total_usage: u64,
    usage_in_usermode: u64,
    usage_in_kernelmode: u64,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
struct Throttling {
    throttled_periods: u64,
    throttled_time: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Memory {
    usage: Option<u64>,
    max_usage: Option<u64>,
    stats: Option<MemoryDetails>,
}

/// Names of both versions of cgroups.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
struct MemoryDetails {
    rss: Option<u64>,
    anon: Option<u64>,
    cache: Option<u64>,
    file: Option<u64>,
    swap: Option<u64>,
}

/// Asks the engine once.
pub(crate) async fn sample(engine: &Engine, container: &str) -> Result<Sample, EngineError> {
    // Without one-shot the engine waits for a second sample.
    let once = if engine.api().await? >= Api(1, 41) { "&one-shot=true" } else { "" };
    engine.get("measure the container", &format!("/containers/{}/stats?stream=false{once}", encode(container))).await
}

/// Remembers the previous sample, for rates.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    last: Mutex<Option<(SystemTime, CpuCounters)>>,
}

impl Meter {
    /// The sample with rates since the previous one; `None` when the container does not run.
    pub(crate) fn usage(&self, sample: &Sample, core_mhz: Option<f64>) -> Option<TaskUsage> {
        let at = time(&sample.read)?;
        let now = sample.cpu_stats.cpu_usage;
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner).replace((at, now));
        let elapsed =
            last.and_then(|(then, _)| at.duration_since(then).ok()).map(|d| d.as_nanos() as f64).filter(|e| *e > 0.0);
        let rate = |pick: fn(&CpuCounters) -> u64| match (&last, elapsed) {
            (Some((_, then)), Some(elapsed)) => pick(&now).saturating_sub(pick(then)) as f64 * 100.0 / elapsed,
            _ => 0.0,
        };
        let percent = rate(|c| c.total_usage);
        let details = sample.memory_stats.stats.unwrap_or_default();
        Some(TaskUsage {
            at: Some(at),
            total: Usage {
                cpu: CpuUsage {
                    system_mode: Some(rate(|c| c.usage_in_kernelmode)),
                    user_mode: Some(rate(|c| c.usage_in_usermode)),
                    percent: Some(percent),
                    total_ticks: core_mhz.map(|mhz| percent / 100.0 * mhz),
                    throttled_periods: Some(sample.cpu_stats.throttling_data.throttled_periods),
                    throttled_time: Some(sample.cpu_stats.throttling_data.throttled_time),
                },
                memory: MemoryUsage {
                    rss: details.rss.or(details.anon),
                    cache: details.cache.or(details.file),
                    swap: details.swap,
                    usage: sample.memory_stats.usage,
                    max_usage: sample.memory_stats.max_usage,
                    ..MemoryUsage::default()
                },
            },
            by_pid: Default::default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn at(seconds: u32, total: u64) -> Sample {
        let value = json!({
            "read": format!("2026-11-20T09:32:{seconds:02}Z"),
            "cpu_stats": {"cpu_usage": {"total_usage": total, "usage_in_usermode": total / 2,
                "usage_in_kernelmode": 0}},
            "memory_stats": {"usage": 5000, "stats": {"anon": 3000, "file": 1000, "something": 1}},
        });
        serde_json::from_value(value).expect("a sample")
    }

    #[test]
    fn rates_are_of_the_time_between_two_samples() {
        let meter = Meter::default();
        let first = meter.usage(&at(1, 1_000_000_000), Some(2000.0)).expect("runs");
        assert_eq!(
            (first.total.cpu.percent, first.total.memory.rss, first.total.memory.cache),
            (Some(0.0), Some(3000), Some(1000))
        );
        let second = meter.usage(&at(2, 1_500_000_000), Some(2000.0)).expect("runs");
        assert_eq!(
            (second.total.cpu.percent, second.total.cpu.user_mode, second.total.cpu.total_ticks),
            (Some(50.0), Some(25.0), Some(1000.0))
        );
    }

    #[test]
    fn a_container_that_does_not_run_has_none() {
        let stopped: Sample =
            serde_json::from_value(json!({"read": "0001-01-01T00:00:00Z", "memory_stats": {}})).expect("a sample");
        assert_eq!(Meter::default().usage(&stopped, None), None);
    }
}

//! Resource use of tasks, measured only while somebody asks.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use driver_host::{Driver, proto::driver as wire};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::{alloc::AllocView, handle::ClientHandle};

/// A stream of samples ends this long after the last question.
const KEEP: Duration = Duration::from_secs(10);
/// How long the first sample may take.
const FIRST: Duration = Duration::from_secs(2);

/// Open streams, by run.
#[derive(Clone, Default)]
pub(crate) struct TaskStatsCache {
    streams: Arc<Mutex<HashMap<String, Stream>>>,
}

struct Stream {
    newest: watch::Receiver<Option<wire::TaskStats>>,
    asked: Instant,
}

impl TaskStatsCache {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, Stream>> {
        self.streams.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// The newest sample of a run; opens a stream that stays for the questions that follow.
    pub(crate) async fn sample(&self, driver: &Driver, run: &str, interval: Duration) -> Option<wire::TaskStats> {
        let mut newest = {
            let mut streams = self.lock();
            match streams.get_mut(run) {
                Some(stream) if stream.newest.has_changed().is_ok() => {
                    stream.asked = Instant::now();
                    stream.newest.clone()
                }
                _ => {
                    let (sender, newest) = watch::channel(None);
                    streams.insert(run.to_owned(), Stream { newest: newest.clone(), asked: Instant::now() });
                    tokio::spawn(self.clone().follow(driver.clone(), run.to_owned(), interval, sender));
                    newest
                }
            }
        };
        let found = tokio::time::timeout(FIRST, newest.wait_for(Option::is_some)).await;
        found.ok()?.ok()?.clone()
    }

    async fn follow(
        self,
        driver: Driver,
        run: String,
        interval: Duration,
        sender: watch::Sender<Option<wire::TaskStats>>,
    ) {
        if let Ok(mut stream) = driver.stats(&run, interval) {
            loop {
                match tokio::time::timeout(KEEP, stream.next()).await {
                    Ok(Some(Ok(sample))) => drop(sender.send_replace(Some(sample))),
                    Ok(Some(Err(_)) | None) => break,
                    Err(_) => {}
                }
                if self.lock().get(&run).is_none_or(|s| s.asked.elapsed() > KEEP) {
                    break;
                }
            }
        }
        self.lock().remove(&run);
    }
}

/// The newest sample of a local task that runs.
pub(crate) async fn of_local(handle: &ClientHandle, view: &AllocView, task: &str) -> Option<wire::TaskStats> {
    let inner = &handle.inner;
    let run = view.runs.get(task)?;
    let driver = inner.drivers.now(&view.job.group(&view.alloc.task_group)?.task(task)?.driver)?;
    inner.task_stats.sample(&driver, run, inner.config.telemetry_interval).await
}

/// The API's form of a task's sample.
pub(crate) fn task_json(stats: &wire::TaskStats) -> Value {
    let at = driver_host::proto::build::system_time(stats.timestamp.as_ref())
        .and_then(|t| t.duration_since(std::time::UNIX_EPOCH).ok())
        .map_or(0, |d| d.as_nanos() as i64);
    let pids: serde_json::Map<String, Value> =
        stats.resource_usage_by_pid.iter().map(|(pid, usage)| (pid.clone(), usage_json(usage))).collect();
    json!({
        "ResourceUsage": usage_json(&stats.agg_resource_usage.clone().unwrap_or_default()),
        "Timestamp": at,
        "Pids": pids,
    })
}

/// The API's form of resource use.
pub(crate) fn usage_json(usage: &wire::TaskResourceUsage) -> Value {
    use wire::{cpu_usage::Fields as Cpu, memory_usage::Fields as Memory};
    let cpu = usage.cpu.clone().unwrap_or_default();
    let memory = usage.memory.clone().unwrap_or_default();
    let cpu_fields: Vec<&str> = cpu
        .measured_fields()
        .map(|f| match f {
            Cpu::SystemMode => "System Mode",
            Cpu::UserMode => "User Mode",
            Cpu::TotalTicks => "Total Ticks",
            Cpu::ThrottledPeriods => "Throttled Periods",
            Cpu::ThrottledTime => "Throttled Time",
            Cpu::Percent => "Percent",
        })
        .collect();
    let memory_fields: Vec<&str> = memory
        .measured_fields()
        .map(|f| match f {
            Memory::Rss => "RSS",
            Memory::Cache => "Cache",
            Memory::MaxUsage => "Max Usage",
            Memory::KernelUsage => "Kernel Usage",
            Memory::KernelMaxUsage => "Kernel Max Usage",
            Memory::Usage => "Usage",
            Memory::Swap => "Swap",
        })
        .collect();
    json!({
        "CpuStats": {
            "SystemMode": cpu.system_mode, "UserMode": cpu.user_mode, "TotalTicks": cpu.total_ticks,
            "ThrottledPeriods": cpu.throttled_periods,
            "ThrottledTime": cpu.throttled_time, "Percent": cpu.percent, "Measured": cpu_fields,
        },
        "MemoryStats": {
            "RSS": memory.rss, "Cache": memory.cache, "Swap": memory.swap, "MappedFile": 0, "Usage": memory.usage,
            "MaxUsage": memory.max_usage,
            "KernelUsage": memory.kernel_usage, "KernelMaxUsage": memory.kernel_max_usage, "Measured": memory_fields,
        },
        "DeviceStats": [],
    })
}

/// The sum over tasks.
pub(crate) fn sum<'a>(all: impl Iterator<Item = &'a wire::TaskStats>) -> wire::TaskResourceUsage {
    let mut total =
        wire::TaskResourceUsage { cpu: Some(wire::CpuUsage::default()), memory: Some(wire::MemoryUsage::default()) };
    for usage in all.filter_map(|s| s.agg_resource_usage.as_ref()) {
        if let (Some(to), Some(from)) = (total.cpu.as_mut(), usage.cpu.as_ref()) {
            to.system_mode += from.system_mode;
            to.user_mode += from.user_mode;
            to.total_ticks += from.total_ticks;
            to.throttled_periods += from.throttled_periods;
            to.throttled_time += from.throttled_time;
            to.percent += from.percent;
            to.measured_fields.clone_from(&from.measured_fields);
        }
        if let (Some(to), Some(from)) = (total.memory.as_mut(), usage.memory.as_ref()) {
            to.rss += from.rss;
            to.cache += from.cache;
            to.swap += from.swap;
            to.usage += from.usage;
            to.max_usage += from.max_usage;
            to.kernel_usage += from.kernel_usage;
            to.kernel_max_usage += from.kernel_max_usage;
            to.measured_fields.clone_from(&from.measured_fields);
        }
    }
    total
}

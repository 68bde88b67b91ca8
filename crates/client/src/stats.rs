//! Resource use of tasks and of the host, measured only while somebody asks.

use std::{
    collections::HashMap,
    fs,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use driver_host::{Driver, proto::driver as wire};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::{config::ClientConfig, fingerprint::meminfo};

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

    async fn follow(self, driver: Driver, run: String, interval: Duration, sender: watch::Sender<Option<wire::TaskStats>>) {
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
            "SystemMode": cpu.system_mode, "UserMode": cpu.user_mode, "TotalTicks": cpu.total_ticks, "ThrottledPeriods": cpu.throttled_periods,
            "ThrottledTime": cpu.throttled_time, "Percent": cpu.percent, "Measured": cpu_fields,
        },
        "MemoryStats": {
            "RSS": memory.rss, "Cache": memory.cache, "Swap": memory.swap, "MappedFile": 0, "Usage": memory.usage, "MaxUsage": memory.max_usage,
            "KernelUsage": memory.kernel_usage, "KernelMaxUsage": memory.kernel_max_usage, "Measured": memory_fields,
        },
        "DeviceStats": [],
    })
}

/// The sum over tasks.
pub(crate) fn sum<'a>(all: impl Iterator<Item = &'a wire::TaskStats>) -> wire::TaskResourceUsage {
    let mut total = wire::TaskResourceUsage { cpu: Some(wire::CpuUsage::default()), memory: Some(wire::MemoryUsage::default()) };
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

/// Jiffies of one processor: user, system, idle, all.
type Jiffies = (u64, u64, u64, u64);

/// Use of the host; percentages are since the last question, or since boot for the first one.
pub(crate) fn host(config: &ClientConfig, core_mhz: f64) -> Value {
    static LAST: Mutex<Option<Vec<(String, Jiffies)>>> = Mutex::new(None);
    let now = processors();
    let before = LAST.lock().unwrap_or_else(std::sync::PoisonError::into_inner).replace(now.clone()).unwrap_or_default();
    let mut ticks = 0.0;
    let cpu: Vec<Value> = now
        .iter()
        .map(|(name, (user, system, idle, all))| {
            let (u0, s0, i0, a0) = before.iter().find(|(n, _)| n == name).map_or((0, 0, 0, 0), |(_, j)| *j);
            let whole = all.saturating_sub(a0).max(1) as f64;
            let percent = |now: &u64, then: u64| 100.0 * now.saturating_sub(then) as f64 / whole;
            let idle = percent(idle, i0);
            let total = 100.0 - idle;
            ticks += total / 100.0 * core_mhz;
            json!({ "CPU": name, "User": percent(user, u0), "System": percent(system, s0), "Idle": idle, "TotalPercent": total, "Total": total,
                "TotalTicks": total / 100.0 * core_mhz })
        })
        .collect();
    let (total, free) = (meminfo("MemTotal").unwrap_or(0), meminfo("MemFree").unwrap_or(0));
    let available = meminfo("MemAvailable").unwrap_or(free);
    let disk = disk(&config.alloc_dir);
    let uptime = fs::read_to_string("/proc/uptime").ok().and_then(|t| t.split('.').next()?.parse::<u64>().ok()).unwrap_or(0);
    json!({
        "Timestamp": crate::context::now_ns(),
        "CPU": cpu,
        "Memory": { "Total": total, "Available": available, "Used": total.saturating_sub(available), "Free": free },
        "DiskStats": [disk.clone()],
        "AllocDirStats": disk,
        "DeviceStats": [],
        "Uptime": uptime,
        "CPUTicksConsumed": ticks,
    })
}

fn processors() -> Vec<(String, Jiffies)> {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    text.lines()
        .filter_map(|line| {
            let mut fields = line.split_whitespace();
            let name = fields.next().filter(|n| n.len() > 3 && n.starts_with("cpu"))?;
            let values: Vec<u64> = fields.filter_map(|f| f.parse().ok()).collect();
            let at = |i: usize| values.get(i).copied().unwrap_or(0);
            // user nice system idle iowait irq softirq steal; guest time is part of user.
            Some((name.to_owned(), (at(0) + at(1), at(2) + at(5) + at(6), at(3) + at(4), values.iter().take(8).sum())))
        })
        .collect()
}

fn disk(dir: &std::path::Path) -> Value {
    let Ok(s) = rustix::fs::statvfs(dir) else {
        return Value::Null;
    };
    let (size, available) = (s.f_blocks * s.f_frsize, s.f_bavail * s.f_frsize);
    let used = (s.f_blocks - s.f_bfree) * s.f_frsize;
    let percent = |part: u64, whole: u64| {
        if whole == 0 { 0.0 } else { 100.0 * part as f64 / whole as f64 }
    };
    json!({ "Device": dir.display().to_string(), "Mountpoint": dir.display().to_string(), "Size": size, "Used": used, "Available": available,
        "UsedPercent": percent(used, size), "InodesUsedPercent": percent(s.f_files.saturating_sub(s.f_ffree), s.f_files) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_has_processors_memory_and_a_disk() {
        let dir = tempfile::tempdir().expect("temp dir");
        let config = ClientConfig { alloc_dir: dir.path().to_owned(), ..ClientConfig::new(dir.path(), "n") };
        let first = host(&config, 1000.0);
        assert!(first["CPU"].as_array().is_some_and(|c| !c.is_empty()));
        assert!(first["Memory"]["Total"].as_u64() > first["Memory"]["Used"].as_u64());
        assert!(first["DiskStats"][0]["Size"].as_u64().is_some_and(|s| s > 0));
        assert!(first["Uptime"].as_u64().is_some_and(|u| u > 0));
    }
}

//! Resource use of this machine.

use std::{
    fs,
    path::Path,
    sync::Mutex,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::fingerprint::{meminfo, storage};

/// Jiffies of one processor: user, system, idle, all.
type Jiffies = (u64, u64, u64, u64);

/// The least time that percentages cover: whoever asks right after somebody else would hear of a few jiffies.
const SPAN: Duration = Duration::from_secs(1);

/// What was measured last, and before.
struct Samples {
    before: Vec<(String, Jiffies)>,
    last: Vec<(String, Jiffies)>,
    at: Instant,
}

/// Resource use of the host. Percentages cover the time since an earlier call, at least a second; those of the first
/// calls cover the time since boot.
pub fn host(alloc_dir: &Path, core_mhz: f64) -> Value {
    static SAMPLES: Mutex<Option<Samples>> = Mutex::new(None);
    let now = processors();
    let before = {
        let mut samples = SAMPLES.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let samples =
            samples.get_or_insert_with(|| Samples { before: Vec::new(), last: now.clone(), at: Instant::now() });
        if samples.at.elapsed() >= SPAN {
            samples.before = std::mem::replace(&mut samples.last, now.clone());
            samples.at = Instant::now();
        }
        samples.before.clone()
    };
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
            json!({ "CPU": name, "User": percent(user, u0), "System": percent(system, s0), "Idle": idle,
                "TotalPercent": total, "Total": total,
                "TotalTicks": total / 100.0 * core_mhz })
        })
        .collect();
    let (total, free) = (meminfo("MemTotal").unwrap_or(0), meminfo("MemFree").unwrap_or(0));
    let available = meminfo("MemAvailable").unwrap_or(free);
    let disk = disk(alloc_dir);
    let uptime =
        fs::read_to_string("/proc/uptime").ok().and_then(|t| t.split('.').next()?.parse::<u64>().ok()).unwrap_or(0);
    json!({
        "Timestamp": crate::clock::now_ns(),
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
            // /proc/stat: user nice system idle iowait irq softirq steal; guest time is part of user.
            Some((name.to_owned(), (at(0) + at(1), at(2) + at(5) + at(6), at(3) + at(4), values.iter().take(8).sum())))
        })
        .collect()
}

fn disk(dir: &Path) -> Value {
    let Ok(s) = rustix::fs::statvfs(dir) else {
        return Value::Null;
    };
    let (size, available) = (s.f_blocks * s.f_frsize, s.f_bavail * s.f_frsize);
    let used = (s.f_blocks - s.f_bfree) * s.f_frsize;
    let percent = |part: u64, whole: u64| {
        if whole == 0 { 0.0 } else { 100.0 * part as f64 / whole as f64 }
    };
    let named = || (dir.display().to_string(), dir.display().to_string());
    let (device, mount_point) = storage::volume_of(dir).unwrap_or_else(named);
    json!({ "Device": device, "Mountpoint": mount_point, "Size": size, "Used": used, "Available": available,
        "UsedPercent": percent(used, size),
        "InodesUsedPercent": percent(s.f_files.saturating_sub(s.f_ffree), s.f_files) })
}

/// Used bytes and inodes of the file system, in percent; zero when unreadable.
#[must_use]
pub fn disk_usage(dir: &Path) -> (f64, f64) {
    let Ok(stat) = rustix::fs::statvfs(dir) else {
        return (0.0, 0.0);
    };
    let percent = |free: u64, all: u64| {
        if all == 0 { 0.0 } else { 100.0 - 100.0 * free as f64 / all as f64 }
    };
    (percent(stat.f_bavail, stat.f_blocks), percent(stat.f_favail, stat.f_files))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_has_processors_memory_and_a_disk() {
        let dir = tempfile::tempdir().expect("temp dir");
        let first = host(dir.path(), 1000.0);
        assert!(first["CPU"].as_array().is_some_and(|c| !c.is_empty()));
        assert!(first["Memory"]["Total"].as_u64() > first["Memory"]["Used"].as_u64());
        assert!(first["DiskStats"][0]["Size"].as_u64().is_some_and(|s| s > 0));
        assert!(first["Uptime"].as_u64().is_some_and(|u| u > 0));
    }
}

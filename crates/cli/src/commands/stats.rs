//! Use of resources, of tasks and of hosts, as tables.

use api::shapes::{CpuStats, HostStats, MemoryStats, ResourceUsage};

use crate::output::{self, Table};

/// Prints what a host uses.
pub(crate) fn print_host(stats: &HostStats) {
    for (title, parts) in of_host(stats) {
        output::heading(title);
        for (i, rows) in parts.iter().enumerate() {
            if i > 0 {
                output::line("");
            }
            output::pairs(rows);
        }
    }
}

/// The memory that a task uses, in bytes: some drivers measure only what is resident.
pub(crate) fn memory_in_use(memory: &MemoryStats) -> u64 {
    if memory.usage > 0 { memory.usage } else { memory.rss }
}

/// What a task uses.
pub(crate) fn of_task(usage: &ResourceUsage) -> Vec<(&'static str, Table)> {
    let memory = usage
        .memory_stats
        .as_ref()
        .and_then(|m| table(&m.measured, |field| memory(m, field)))
        .map(|t| ("Memory Stats", t));
    let cpu =
        usage.cpu_stats.as_ref().and_then(|c| table(&c.measured, |field| cpu(c, field))).map(|t| ("CPU Stats", t));
    memory.into_iter().chain(cpu).collect()
}

/// The measured values under their names, in the order of those; none when nothing was measured.
fn table(measured: &[String], value: impl Fn(&str) -> Option<String>) -> Option<Table> {
    let mut names: Vec<&str> = measured.iter().map(String::as_str).collect();
    names.sort_unstable();
    let (names, values): (Vec<&str>, Vec<String>) = names.into_iter().filter_map(|n| Some((n, value(n)?))).unzip();
    if names.is_empty() {
        return None;
    }
    let mut table = Table::new(names);
    table.row(values);
    Some(table)
}

fn memory(m: &MemoryStats, field: &str) -> Option<String> {
    Some(output::size(match field {
        "RSS" => m.rss,
        "Cache" => m.cache,
        "Swap" => m.swap,
        "Mapped File" => m.mapped_file,
        "Usage" => m.usage,
        "Max Usage" => m.max_usage,
        "Kernel Usage" => m.kernel_usage,
        "Kernel Max Usage" => m.kernel_max_usage,
        _ => return None,
    }))
}

fn cpu(c: &CpuStats, field: &str) -> Option<String> {
    Some(match field {
        "Percent" => percent(c.percent),
        "System Mode" => percent(c.system_mode),
        "User Mode" => percent(c.user_mode),
        "Total Ticks" => format!("{:.0} MHz", c.total_ticks),
        "Throttled Periods" => c.throttled_periods.to_string(),
        "Throttled Time" => model::GoDuration(i64::try_from(c.throttled_time).unwrap_or(i64::MAX)).to_string(),
        _ => return None,
    })
}

fn percent(value: f64) -> String {
    format!("{value:.2}%")
}

/// The facts of one core, disk or memory.
type Facts = Vec<(&'static str, String)>;

fn of_host(stats: &HostStats) -> Vec<(&'static str, Vec<Facts>)> {
    let mut parts = Vec::new();
    let cores = stats.cpu.iter().map(|c| {
        vec![
            ("CPU", c.cpu.clone()),
            ("User", percent(c.user)),
            ("System", percent(c.system)),
            ("Idle", percent(c.idle)),
        ]
    });
    parts.push(("CPU Stats", cores.collect::<Vec<_>>()));
    let memory = stats.memory.iter().map(|m| {
        let values = [("Total", m.total), ("Available", m.available), ("Used", m.used), ("Free", m.free)];
        values.map(|(name, bytes)| (name, output::size(bytes))).to_vec()
    });
    parts.push(("Memory Stats", memory.collect()));
    let disks = stats.disk_stats.iter().map(|d| {
        vec![
            ("Device", d.device.clone()),
            ("MountPoint", d.mountpoint.clone()),
            ("Size", output::size(d.size)),
            ("Used", output::size(d.used)),
            ("Available", output::size(d.available)),
            ("Used Percent", percent(d.used_percent)),
            ("Inodes Percent", percent(d.inodes_used_percent)),
        ]
    });
    parts.push(("Disk Stats", disks.collect()));
    parts.retain(|(_, of)| !of.is_empty());
    parts
}

#[cfg(test)]
mod tests {
    use api::shapes::{HostStats, ResourceUsage};
    use serde_json::json;

    use super::{of_host, of_task};
    use crate::output;

    #[test]
    fn what_was_measured_is_a_table_and_nothing_else_is() {
        let task: ResourceUsage = serde_json::from_value(json!({
            "MemoryStats": {"RSS": 1, "Usage": 3_145_728, "Cache": 2048, "Swap": 7, "Measured": ["Usage", "Cache"]},
            "CpuStats": {"Percent": 12.345, "TotalTicks": 260.7, "ThrottledTime": 1_500_000_000,
                "Measured": ["Percent", "Throttled Time", "Total Ticks"]}
        }))
        .expect("stats");
        let shown: Vec<(&str, Vec<String>)> =
            of_task(&task).into_iter().map(|(title, t)| (title, t.render())).collect();
        assert_eq!(
            shown,
            [
                ("Memory Stats", vec!["Cache    Usage".to_owned(), "2.0 KiB  3.0 MiB".to_owned()]),
                (
                    "CPU Stats",
                    vec![
                        "Percent  Throttled Time  Total Ticks".to_owned(),
                        "12.35%   1.5s            261 MHz".to_owned()
                    ]
                ),
            ]
        );
        assert!(of_task(&ResourceUsage::default()).is_empty());
    }

    #[test]
    fn a_host_has_its_cores_memory_and_disks() {
        let host: HostStats = serde_json::from_value(json!({
            "CPU": [{"CPU": "cpu0", "User": 1.0, "System": 2.0, "Idle": 97.0}],
            "Memory": {"Total": 1024, "Available": 512, "Used": 512, "Free": 0},
            "DiskStats": [{"Device": "/d", "Mountpoint": "/m", "Size": 100, "Used": 50, "Available": 50,
                "UsedPercent": 50.0, "InodesUsedPercent": 1.0}]
        }))
        .expect("stats");
        let parts = of_host(&host);
        assert_eq!(
            parts.iter().map(|(title, _)| *title).collect::<Vec<_>>(),
            ["CPU Stats", "Memory Stats", "Disk Stats"]
        );
        let lines = |n: usize| output::pair_lines(&parts[n].1[0]);
        assert_eq!(lines(1), ["Total     = 1.0 KiB", "Available = 512 B", "Used      = 512 B", "Free      = 0 B"]);
        assert!(lines(2).contains(&"Used Percent   = 50.00%".to_owned()));
    }
}

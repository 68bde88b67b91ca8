//! Processors: how many, how fast, how they are grouped.

use std::{fs, path::Path};

use super::facts::{Core, Cpu, Facts, parse_ranges};
use node_config::ClientConfig;

fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

pub(super) fn look(config: &ClientConfig, facts: &mut Facts) {
    let root = Path::new("/sys/devices/system/cpu");
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        info.lines()
            .filter_map(|l| l.split_once(':'))
            .filter(|(k, _)| k.trim() == name)
            .map(|(_, v)| v.trim().to_owned())
            .collect::<Vec<_>>()
    };
    let seen: Vec<u64> = field("cpu MHz").iter().map(|v| v.parse::<f64>().unwrap_or(0.0) as u64).collect();
    let online = fs::read_to_string(root.join("online")).map(|t| parse_ranges(&t)).unwrap_or_default();
    let online = if online.is_empty() {
        let n = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        (0..u16::try_from(n).unwrap_or(1)).collect()
    } else {
        online
    };
    let mut numa_of = std::collections::BTreeMap::new();
    let mut numa_nodes = std::collections::BTreeMap::<u16, Vec<u16>>::new();
    if let Ok(entries) = fs::read_dir("/sys/devices/system/node") {
        for entry in entries.flatten() {
            let name = entry.file_name();
            let Some(id) = name.to_str().and_then(|n| n.strip_prefix("node")).and_then(|n| n.parse::<u16>().ok())
            else {
                continue;
            };
            let cores = fs::read_to_string(entry.path().join("cpulist")).map(|t| parse_ranges(&t)).unwrap_or_default();
            for core in &cores {
                numa_of.insert(*core, id);
            }
            numa_nodes.insert(id, cores);
        }
    }
    if numa_nodes.is_empty() {
        numa_nodes.insert(0, online.clone());
    }
    let cores: Vec<Core> = online
        .iter()
        .enumerate()
        .map(|(at, id)| {
            let dir = root.join(format!("cpu{id}"));
            Core {
                id: *id,
                numa: numa_of.get(id).copied().unwrap_or(0),
                socket: number(&dir.join("topology/physical_package_id"))
                    .and_then(|v| u16::try_from(v).ok())
                    .unwrap_or(0),
                // cpufreq reports kHz.
                base_mhz: number(&dir.join("cpufreq/base_frequency")).unwrap_or(0) / 1000,
                max_mhz: number(&dir.join("cpufreq/cpuinfo_max_freq")).unwrap_or(0) / 1000,
                seen_mhz: seen.get(at).copied().unwrap_or(0),
            }
        })
        .collect();
    // An agent that is bound to some cores offers no others.
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let own =
        status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).map(parse_ranges).unwrap_or_default();
    let enforced = crate::cgroup::host().enforces("cpuset");
    let kept: Vec<u16> = cores.iter().map(|c| c.id).filter(|id| config.reserved.cores.keep(*id)).collect();
    let reservable: Vec<u16> =
        cores.iter().map(|c| c.id).filter(|id| enforced && own.contains(id) && !kept.contains(id)).collect();
    let measured: u64 = cores.iter().map(Core::mhz).sum();
    // The operator's figure is what tasks can use, whatever cores provide it.
    let (total, withheld) = match config.cpu_total_compute {
        0 => (measured, cores.iter().filter(|c| kept.contains(&c.id)).map(Core::mhz).sum()),
        figure => (figure, 0),
    };
    let reserved_mhz = config.reserved.cpu + withheld;
    let usable = total.saturating_sub(reserved_mhz);

    let arch = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        other => other,
    };
    facts.set("cpu.arch", arch);
    facts.set("arch", arch);
    if let Some(model) = field("model name").first() {
        facts.set("cpu.modelname", model);
    }
    facts.set("cpu.numcores", cores.len());
    facts.set("cpu.reservablecores", reservable.len());
    facts.set("cpu.frequency", cores.iter().map(Core::mhz).max().unwrap_or(0));
    facts.set("cpu.totalcompute", total);
    facts.set("cpu.usablecompute", usable);
    facts.set("numa.node.count", numa_nodes.len());
    for (id, cores) in &numa_nodes {
        facts.set(format!("numa.node{id}.cores"), cores.iter().map(u16::to_string).collect::<Vec<_>>().join(","));
    }
    facts.resources.cpu.cpu_shares = total.cast_signed();
    facts.resources.cpu.total_cpu_cores = u16::try_from(cores.len()).unwrap_or(u16::MAX);
    facts.resources.cpu.reservable_cpu_cores.clone_from(&reservable);
    facts.cpu = Cpu { cores, reservable, kept, total_mhz: total, reserved_mhz };
}

#[cfg(test)]
mod tests {
    use super::*;
    use node_config::Cores;

    #[test]
    fn cores_that_the_operator_keeps_are_nobodys() {
        let dir = tempfile::tempdir().expect("temp dir");
        let mut config = ClientConfig::new(dir.path(), "n");
        let mut all = Facts::default();
        look(&config, &mut all);
        let first = all.cpu.cores[0].clone();
        for cores in [Cores::These(vec![first.id]), Cores::Others(all.cpu.cores[1..].iter().map(|c| c.id).collect())] {
            config.reserved.cores = cores;
            config.reserved.cpu = 5;
            config.cpu_total_compute = 0;
            let mut facts = Facts::default();
            look(&config, &mut facts);
            assert_eq!(facts.cpu.kept, [first.id]);
            let others: Vec<u16> = all.cpu.reservable.iter().copied().filter(|id| *id != first.id).collect();
            assert_eq!(facts.cpu.reservable, others);
            assert_eq!(facts.resources.cpu.reservable_cpu_cores, others);
            // The test reads the speeds anew, because they change.
            assert_eq!(facts.cpu.reserved_mhz, 5 + facts.cpu.cores[0].mhz());
            config.cpu_total_compute = 900;
            look(&config, &mut facts);
            assert_eq!((facts.cpu.reserved_mhz, &*facts.attributes["cpu.usablecompute"]), (5, "895"));
        }
    }

    #[test]
    fn the_operators_figure_wins() {
        let dir = tempfile::tempdir().expect("temp dir");
        let mut config = ClientConfig::new(dir.path(), "n");
        config.cpu_total_compute = 12_345;
        config.reserved.cpu = 345;
        let mut facts = Facts::default();
        look(&config, &mut facts);
        assert_eq!((facts.resources.cpu.cpu_shares, &*facts.attributes["cpu.usablecompute"]), (12_345, "12000"));
    }
}

//! Kernel, distribution, host name, signals, cgroups, memory.

use std::fs;

use node_config::ClientConfig;

use super::facts::Facts;
use crate::cgroup;

/// Names of the signals that tasks may be sent.
pub(crate) const SIGNALS: &[(&str, i32)] = &[
    ("SIGABRT", 6),
    ("SIGALRM", 14),
    ("SIGBUS", 7),
    ("SIGCHLD", 17),
    ("SIGCONT", 18),
    ("SIGFPE", 8),
    ("SIGHUP", 1),
    ("SIGILL", 4),
    ("SIGINT", 2),
    ("SIGIO", 29),
    ("SIGIOT", 6),
    ("SIGKILL", 9),
    ("SIGPIPE", 13),
    ("SIGPROF", 27),
    ("SIGQUIT", 3),
    ("SIGSEGV", 11),
    ("SIGSTOP", 19),
    ("SIGSYS", 31),
    ("SIGTERM", 15),
    ("SIGTRAP", 5),
    ("SIGTSTP", 20),
    ("SIGTTIN", 21),
    ("SIGTTOU", 22),
    ("SIGURG", 23),
    ("SIGUSR1", 10),
    ("SIGUSR2", 12),
    ("SIGWINCH", 28),
    ("SIGXCPU", 24),
    ("SIGXFSZ", 25),
];

pub(super) fn look(_: &ClientConfig, facts: &mut Facts) {
    let uname = rustix::system::uname();
    facts.set("kernel.name", uname.sysname().to_string_lossy().to_lowercase());
    facts.set("kernel.version", uname.release().to_string_lossy());
    facts.set("kernel.arch", uname.machine().to_string_lossy());
    facts.set("unique.hostname", uname.nodename().to_string_lossy());
    let release = fs::read_to_string("/etc/os-release")
        .or_else(|_| fs::read_to_string("/usr/lib/os-release"))
        .unwrap_or_default();
    let field = |name: &str| {
        release
            .lines()
            .filter_map(|l| l.split_once('='))
            .find(|(k, _)| *k == name)
            .map(|(_, v)| v.trim_matches('"').to_owned())
    };
    facts.set("os.name", field("ID").unwrap_or_else(|| "linux".into()));
    facts.set("os.version", field("VERSION_ID").unwrap_or_default());
    facts.set("os.signals", SIGNALS.iter().map(|(n, _)| *n).collect::<Vec<_>>().join(","));
    facts.set(
        "os.cgroups.version",
        match cgroup::mode() {
            cgroup::Mode::V2 => "2",
            cgroup::Mode::V1 => "1",
            cgroup::Mode::Off => "0",
        },
    );
    if let Ok(modules) = fs::read_to_string("/sys/kernel/security/lsm")
        && modules.split(',').any(|m| m.trim() == "landlock")
    {
        facts.set("kernel.landlock", "v1");
    }
}

pub(super) fn memory(config: &ClientConfig, facts: &mut Facts) {
    let bytes = if config.memory_total_mb > 0 { config.memory_total_mb << 20 } else { total_memory() };
    if bytes > 0 {
        facts.set("memory.totalbytes", bytes);
        facts.resources.memory.memory_mb = (bytes >> 20).cast_signed();
    }
}

/// `MemTotal` in bytes, 0 when it cannot be read.
fn total_memory() -> u64 {
    meminfo("MemTotal").unwrap_or(0)
}

/// A field of /proc/meminfo in bytes.
pub fn meminfo(name: &str) -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|l| l.strip_prefix(name).is_some_and(|r| r.starts_with(':')))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib << 10)
}

//! Which processes belong to a check: those that carry its mark in their environment, or work in its directory.

use std::path::Path;
use std::sync::OnceLock;

use rustix::process::{Pid, Signal, kill_process};

/// Variable with the mark of a check; the plugin inherits it, and tasks are given it.
pub(crate) const MARK: &str = "DROVER_CHECK_MARK";

/// A process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    pub(crate) command: String,
}

/// When a process was started, in clock ticks since boot.
fn began(pid: &str) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in the second field may hold anything, so fields count from its end.
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

/// Every other process that is not older than this one: what a check started is among them.
fn younger() -> impl Iterator<Item = u32> {
    static OWN: OnceLock<u64> = OnceLock::new();
    let own = *OWN.get_or_init(|| began("self").unwrap_or_default());
    let pid = std::process::id();
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(move |other| *other != pid && began(&other.to_string()).is_some_and(|at| at >= own))
}

/// Every living process whose environment has `NAME=value`, or which runs from, in or with arguments below `dir`.
pub(crate) fn belonging(mark: (&str, &str), dir: Option<&Path>) -> Vec<Process> {
    let entry = format!("{}={}", mark.0, mark.1);
    let mut found: Vec<Process> = younger().filter_map(|pid| belongs(pid, &entry, dir)).collect();
    found.sort_by_key(|process| process.pid);
    found
}

fn belongs(pid: u32, entry: &str, dir: Option<&Path>) -> Option<Process> {
    let proc = Path::new("/proc").join(pid.to_string());
    // Remains that nobody has waited for have neither.
    let command = std::fs::read(proc.join("cmdline")).ok().filter(|line| !line.is_empty())?;
    let environ = || std::fs::read(proc.join("environ")).unwrap_or_default();
    let marked = || environ().split(|byte| *byte == 0).any(|variable| variable == entry.as_bytes());
    let below = |dir: &Path| {
        let links = ["cwd", "exe"].map(|link| std::fs::read_link(proc.join(link)).unwrap_or_default());
        links.iter().any(|link| link.starts_with(dir))
            || String::from_utf8_lossy(&command).contains(&*dir.to_string_lossy())
    };
    if !marked() && !dir.is_some_and(below) {
        return None;
    }
    let text = String::from_utf8_lossy(&command).replace('\0', " ");
    Some(Process {
        pid: i32::try_from(pid).ok()?,
        command: text.chars().take(120).collect::<String>().trim().to_owned(),
    })
}

/// Every living process with this word among its arguments.
pub(crate) fn mentioning(word: &str) -> Vec<Process> {
    let process = |pid: u32| {
        let text = String::from_utf8_lossy(&std::fs::read(format!("/proc/{pid}/cmdline")).ok()?).replace('\0', " ");
        text.contains(word)
            .then(|| Process { pid: i32::try_from(pid).unwrap_or_default(), command: text.trim().to_owned() })
    };
    younger().filter_map(process).collect()
}

/// Ends them; they are ours, by mark or place.
pub(crate) fn kill(processes: &[Process]) {
    for pid in processes.iter().filter_map(|process| Pid::from_raw(process.pid)) {
        // It may have ended meanwhile.
        let _ = kill_process(pid, Signal::KILL);
    }
}

/// For texts about what was left.
pub(crate) fn names(processes: &[Process]) -> String {
    let names: Vec<String> = processes.iter().map(|process| format!("{} ({})", process.pid, process.command)).collect();
    names.join(", ")
}

/// The number of open descriptors and of threads.
pub(crate) fn usage(pid: u32) -> (usize, usize) {
    let count = |what: &str| std::fs::read_dir(format!("/proc/{pid}/{what}")).map_or(0, Iterator::count);
    (count("fd"), count("task"))
}

//! This machine: free ports, processes found by a directory that only they name, waiting with a bound.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result};
use rustix::process::Signal;
pub(crate) use testkit::free_ports;

use crate::workspace;

/// How long a check waits for what should happen soon.
pub(crate) const BOUND: Duration = Duration::from_secs(60);

/// Asks until the answer is there; an error is asked again, and told when the answer never comes.
pub(crate) fn until<T>(what: &str, bound: Duration, ask: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    testkit::try_until(what, bound, ask)
}

/// A seed that no run before is likely to have had; that of `DROVER_SEED` where it is set, as in CI, so that a run says
/// something of the change.
pub(crate) fn seed() -> u64 {
    if let Some(given) = std::env::var("DROVER_SEED").ok().and_then(|text| text.parse().ok()) {
        return given;
    }
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(1, |since| since.as_secs())
}

/// Cargo's target directory.
pub(crate) fn target_dir() -> PathBuf {
    let given = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace::root().join("target"), PathBuf::from);
    // Programs are started from directories of their own.
    std::path::absolute(&given).unwrap_or(given)
}

/// Where peers that were built or installed are kept, for all checkouts of this machine. Each name holds the version,
/// or a hash of the source; who changes how one is built changes its name, too.
pub(crate) fn peers() -> Result<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let dir = peers_by(set).unwrap_or_else(|| target_dir().join("peers"));
    let dir = std::path::absolute(&dir).unwrap_or(dir);
    fs::create_dir_all(&dir).with_context(|| format!("could not make the directory of peers {}", dir.display()))?;
    Ok(dir)
}

/// What the environment says of it: the place itself, or that of the user's caches.
fn peers_by(set: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    let caches = || set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")));
    set("DROVER_PEERS").or_else(|| caches().map(|caches| caches.join("drover-peers")))
}

/// Processes whose executable, working directory, command line or environment names `dir`: pid → command line.
pub(crate) fn processes_of(dir: &Path) -> BTreeMap<u32, String> {
    testkit::processes_of(dir)
        .into_iter()
        .filter_map(|(pid, command)| Some((u32::try_from(pid).ok()?, command)))
        .collect()
}

/// SIGKILL for one process of ours; it may have ended by itself.
pub(crate) fn kill(pid: u32) -> Result<()> {
    signal(pid, Signal::KILL)
}

/// A signal for one process of ours; it may have ended by itself.
pub(crate) fn signal(pid: u32, signal: Signal) -> Result<()> {
    testkit::try_signal(pid, signal).with_context(|| format!("process {pid} could not be told {signal:?}"))
}

/// All processes of the machine.
pub(crate) fn pids() -> impl Iterator<Item = u32> {
    testkit::pids().filter_map(|pid| u32::try_from(pid).ok())
}

/// Processes with this command line, words apart by a blank.
pub(crate) fn processes_like(command: &str) -> Vec<u32> {
    pids().filter(|pid| testkit::command_line(pid.cast_signed()) == command).collect()
}

/// SIGKILL for everything that lives in `dir`, until nothing of it is left.
pub(crate) fn end_all(dir: &Path) -> Result<()> {
    let left = testkit::end_everything_of(dir);
    anyhow::ensure!(left.is_empty(), "processes resist SIGKILL: {left:?}");
    Ok(())
}

/// Ends what lives in `dir` with its cgroups, unmounts what is mounted there, removes it.
pub(crate) fn remove(dir: &Path) {
    testkit::end_everything_of(dir);
    drop(fs::remove_dir_all(dir));
}

/// Unmounts what is mounted at `dir` and below, the last one first as they may lie in one another. True when nothing is
/// left.
pub(crate) fn unmount(dir: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
    let points = mounts
        .lines()
        .rev()
        .filter_map(|line| line.split(' ').nth(1))
        .filter(|point| Path::new(point).starts_with(dir));
    let unmounted =
        |point: &&str| Command::new("umount").arg(point).stderr(Stdio::null()).status().is_ok_and(|s| s.success());
    points.filter(|point| !unmounted(point)).count() == 0
}

/// The last lines of every log in a directory, for people.
pub(crate) fn ends_of_logs(dir: &Path) -> String {
    let mut text = String::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.path().extension().is_some_and(|extension| extension == "log") {
            let log = fs::read_to_string(entry.path()).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            let end = lines[lines.len().saturating_sub(15)..].join("\n");
            text.push_str(&format!("{}:\n{end}\n", entry.path().display()));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::peers_by;

    #[test]
    fn peers_are_where_the_environment_says_first() {
        let by = |given: &[(&str, &str)]| {
            peers_by(|name| given.iter().find(|(of, _)| *of == name).map(|(_, value)| PathBuf::from(value)))
        };
        let all = [("DROVER_PEERS", "/own"), ("XDG_CACHE_HOME", "/caches"), ("HOME", "/home/a")];
        assert_eq!(by(&all), Some("/own".into()));
        assert_eq!(by(&all[1..]), Some("/caches/drover-peers".into()));
        assert_eq!(by(&all[2..]), Some("/home/a/.cache/drover-peers".into()));
        assert_eq!(by(&[]), None);
    }
}

//! This machine: free ports, processes found by a directory that only they name, waiting with a bound.

use std::{
    collections::BTreeMap,
    fs,
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use rustix::{
    io::Errno,
    process::{Pid, Signal, kill_process},
};

use crate::{sweep, workspace};

/// Asks until the answer is there.
pub(crate) fn until<T>(what: &str, bound: Duration, mut ask: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let start = Instant::now();
    let mut last = None;
    while start.elapsed() < bound {
        match ask() {
            Ok(Some(value)) => return Ok(value),
            Ok(None) => {}
            Err(error) => last = Some(error),
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    bail!("{what} did not happen within {} s{}", bound.as_secs(), last.map(|e| format!(" ({e:#})")).unwrap_or_default())
}

/// Ports that were free a moment ago, all different.
pub(crate) fn free_ports<const N: usize>() -> Result<[u16; N]> {
    let listeners: Vec<TcpListener> = (0..N).map(|_| TcpListener::bind(("127.0.0.1", 0))).collect::<std::io::Result<_>>()?;
    let mut ports = [0; N];
    for (port, listener) in ports.iter_mut().zip(&listeners) {
        *port = listener.local_addr()?.port();
    }
    Ok(ports)
}

/// Cargo's target directory.
pub(crate) fn target_dir() -> PathBuf {
    let given = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace::root().join("target"), PathBuf::from);
    // Programs are started from directories of their own.
    std::path::absolute(&given).unwrap_or(given)
}

/// Processes whose executable, working directory, command line or environment names `dir`: pid → command line.
pub(crate) fn processes_of(dir: &Path) -> BTreeMap<u32, String> {
    sweep::processes_of(dir).into_iter().filter_map(|(pid, command)| Some((u32::try_from(pid).ok()?, command))).collect()
}

/// SIGKILL for one process of ours; it may have ended by itself.
pub(crate) fn kill(pid: u32) -> Result<()> {
    signal(pid, Signal::KILL)
}

/// A signal for one process of ours; it may have ended by itself.
pub(crate) fn signal(pid: u32, signal: Signal) -> Result<()> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).with_context(|| format!("{pid} is no process id"))?;
    match kill_process(pid, signal) {
        Err(error) if error != Errno::SRCH => Err(error.into()),
        _ => Ok(()),
    }
}

/// Processes with this command line, words apart by a blank.
pub(crate) fn processes_like(command: &str) -> Vec<u32> {
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let like = |pid: &u32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).trim_end_matches('\0').replace('\0', " ") == command
    };
    pids.filter(like).collect()
}

/// SIGKILL for everything that lives in `dir`, until nothing of it is left.
pub(crate) fn end_all(dir: &Path) -> Result<()> {
    let left = sweep::end_everything_of(dir);
    anyhow::ensure!(left.is_empty(), "processes resist SIGKILL: {left:?}");
    Ok(())
}

/// Ends what lives in `dir` with its cgroups, unmounts what is mounted there, removes it.
pub(crate) fn remove(dir: &Path) {
    sweep::end_everything_of(dir);
    unmount(dir);
    drop(fs::remove_dir_all(dir));
}

/// Unmounts what is mounted at `dir` and below, the last one first as they may lie in one another. True when nothing is left.
pub(crate) fn unmount(dir: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
    let points = mounts.lines().rev().filter_map(|line| line.split(' ').nth(1)).filter(|point| Path::new(point).starts_with(dir));
    let unmounted = |point: &&str| Command::new("umount").arg(point).stderr(Stdio::null()).status().is_ok_and(|s| s.success());
    points.filter(|point| !unmounted(point)).count() == 0
}

//! One cgroup: a directory with files of the kernel.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Gives a version 1 cpuset the cores and memory nodes of its ancestors: a new one is empty and accepts no process.
///
/// # Errors
/// When the kernel refuses.
pub fn inherit_cpuset(dir: &Path) -> io::Result<()> {
    let read = |dir: &Path, file: &str| std::fs::read_to_string(dir.join(file)).unwrap_or_default().trim().to_owned();
    for file in ["cpuset.cpus", "cpuset.mems"] {
        let empty: Vec<&Path> =
            dir.ancestors().take_while(|a| a.join(file).exists() && read(a, file).is_empty()).collect();
        for dir in empty.into_iter().rev() {
            let above = dir.parent().map(|parent| read(parent, file)).unwrap_or_default();
            write(dir, file, &above)?;
        }
    }
    Ok(())
}

/// Makes one new directory.
pub(crate) fn make(dir: &Path) -> io::Result<()> {
    // A left-over one has old counters, and some kernels kill a process cloned into a cgroup that was killed before.
    let _ = std::fs::remove_dir(dir);
    // The removal of the last workload's directory also removes an empty parent, which may happen in between.
    for _ in 0..8 {
        match std::fs::create_dir_all(dir) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            other => return other.map_err(|e| explain(e, "create cgroup", dir)),
        }
    }
    Err(explain(io::ErrorKind::NotFound.into(), "create cgroup", dir))
}

/// Enables controllers for children of `parent`; each ancestor must pass them on. Tries all and returns the first
/// refusal.
pub(crate) fn enable_controllers(parent: &Path) -> io::Result<()> {
    let mut chain: Vec<&Path> = parent.ancestors().take_while(|a| a.join("cgroup.subtree_control").exists()).collect();
    chain.reverse();
    let mut first = Ok(());
    for dir in chain {
        let enabled = std::fs::read_to_string(dir.join("cgroup.subtree_control"))?;
        let available = std::fs::read_to_string(dir.join("cgroup.controllers"))?;
        for controller in ["cpuset", "memory", "cpu", "pids"] {
            let has = |list: &str| list.split_ascii_whitespace().any(|c| c == controller);
            if has(&available) && !has(&enabled) {
                first = first.and(write(dir, "cgroup.subtree_control", &format!("+{controller}")));
            }
        }
    }
    first
}

/// Pids in `dir` and in all cgroups below it.
pub fn members_below(dir: &Path) -> Vec<i32> {
    let mut pids = Vec::new();
    visit(dir, &mut |dir| pids.extend(read_pids(dir).unwrap_or_default()));
    pids
}

/// Sends SIGKILL to every process in `dir` and below, so that no fork escapes. `dir` is of version 2, of the version 1
/// freezer, or of another version 1 hierarchy, where a fast fork loop may escape.
///
/// # Errors
/// When what was frozen for its end cannot be thawed.
pub fn kill_below(dir: &Path) -> io::Result<()> {
    if write(dir, "cgroup.kill", "1").is_ok() {
        return Ok(());
    }
    // Kernels before 5.14, and version 1: freeze everything while killing.
    let hold = |frozen: bool| {
        let files = [("cgroup.freeze", ["0", "1"]), ("freezer.state", ["THAWED", "FROZEN"])];
        let file = files.into_iter().find(|(file, _)| dir.join(file).exists());
        file.map_or(Ok(()), |(file, values)| write(dir, file, values[usize::from(frozen)]))
    };
    let _ = hold(true);
    for pid in members_below(dir) {
        if let Some(pid) = Pid::from_raw(pid) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
    hold(false)
}

/// Removes `dir` with those below it. They must have no processes; the kernel releases the last zombie a moment after
/// its parent has reaped it, and all of this waits for at most `patience`. What is not there counts as removed.
///
/// # Errors
/// The last refusal of the kernel, after everything was tried.
pub fn remove_below(dir: &Path, patience: Duration) -> io::Result<()> {
    let begun = Instant::now();
    let mut result = Ok(());
    visit(dir, &mut |dir| {
        loop {
            match std::fs::remove_dir(dir) {
                Err(e) if e.kind() == io::ErrorKind::ResourceBusy && begun.elapsed() < patience => {
                    std::thread::sleep(Duration::from_millis(2));
                }
                Err(e) if e.kind() != io::ErrorKind::NotFound => return result = Err(explain(e, "remove cgroup", dir)),
                _ => return,
            }
        }
    });
    result
}

/// Pids in `dir` itself; those of processes outside this pid namespace are 0 and left out.
pub(crate) fn read_pids(dir: &Path) -> io::Result<Vec<i32>> {
    match std::fs::read_to_string(dir.join("cgroup.procs")) {
        Ok(text) => Ok(text.lines().filter_map(|line| line.parse().ok()).filter(|pid| *pid > 0).collect()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(e) => Err(explain(e, "read members of cgroup", dir)),
    }
}

/// Calls `f` for all directories below `dir`, deepest first, then for `dir` itself.
fn visit(dir: &Path, f: &mut dyn FnMut(&Path)) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|t| t.is_dir()) {
            visit(&entry.path(), f);
        }
    }
    f(dir);
}

pub(crate) fn write(dir: &Path, file: &str, value: &str) -> io::Result<()> {
    let path = dir.join(file);
    OpenOptions::new()
        .write(true)
        .open(&path)
        .and_then(|mut f| f.write_all(value.as_bytes()))
        .map_err(|e| explain(e, &format!("write {value:?} to"), &path))
}

/// Adds the attempted operation to an error and keeps its kind.
pub(crate) fn explain(source: io::Error, doing: &str, path: &Path) -> io::Error {
    #[derive(Debug)]
    struct Explained {
        text: String,
        source: io::Error,
    }
    impl std::fmt::Display for Explained {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            write!(f, "{}: {}", self.text, self.source)
        }
    }
    impl std::error::Error for Explained {
        fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
            Some(&self.source)
        }
    }
    io::Error::new(source.kind(), Explained { text: format!("{doing} {}", path.display()), source })
}

/// The operating-system error number behind an error of this crate.
pub fn errno(error: &io::Error) -> Option<i32> {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(e) = cause {
        if let Some(number) = e.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error) {
            return Some(number);
        }
        cause = match e.downcast_ref::<io::Error>() {
            Some(io) => io.get_ref().map(|inner| inner as &(dyn std::error::Error + 'static)),
            None => e.source(),
        };
    }
    None
}

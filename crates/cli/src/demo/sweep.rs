//! Ends every process of a demo, found by what only they have: a path inside the demo's directory in their executable, command line, working directory
//! or environment. Workloads are children of executors that live there, so nothing of a demo is out of reach, and nothing else is in reach.

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

/// Name of the variable that the demo's agents get and hand down.
pub(crate) const MARK: &str = "DROVER_DEMO_DIR";

/// Processes of the demo in `dir`: pid → command line.
pub(crate) fn processes_of(dir: &Path) -> BTreeMap<i32, String> {
    let needle = dir.to_string_lossy().into_owned();
    let own = std::process::id();
    let mut found = BTreeMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse::<i32>().ok()) else {
            continue;
        };
        if u32::try_from(pid) == Ok(own) {
            continue;
        }
        let proc = entry.path();
        let text = |name: &str| String::from_utf8_lossy(&fs::read(proc.join(name)).unwrap_or_default()).replace('\0', " ");
        let link = |name: &str| fs::read_link(proc.join(name)).map(|p| p.to_string_lossy().into_owned()).unwrap_or_default();
        let command = text("cmdline");
        // A zombie has neither command line nor environment: it has ended already.
        let ours = command.contains(&needle)
            || link("exe").contains(&needle)
            || link("cwd").contains(&needle)
            || text("environ").contains(&needle);
        if ours {
            found.insert(pid, command.trim().to_owned());
        }
    }
    found
}

/// Sends SIGKILL until nothing is left, at most ten seconds long; returns what is still there.
pub(crate) async fn end_everything_of(dir: &Path) -> BTreeMap<i32, String> {
    let give_up = Instant::now() + Duration::from_secs(10);
    loop {
        let left = processes_of(dir);
        if left.is_empty() || Instant::now() > give_up {
            return left;
        }
        for pid in left.keys().filter_map(|p| Pid::from_raw(*p)) {
            // It may have ended in the meantime.
            let _ = kill_process(pid, Signal::KILL);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

//! Ends every process that belongs to a directory, found by what only they have: that path in their executable,
//! command line, working directory or environment. Workloads are children of executors that live there, so nothing is
//! out of reach, and nothing else is in reach. Their cgroups and mounts go with them.
//!
//! The demo and the kit of the tests (`lib/testkit`) share this file: what is shipped links no kit.

#![allow(unreachable_pub, reason = "the kit hands them on")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use sha2::{Digest as _, Sha256};

/// How long the end of all processes is waited for.
const PATIENCE: Duration = Duration::from_secs(15);

/// Processes that belong to `dir`: pid → command line.
pub fn processes_of(dir: &Path) -> BTreeMap<i32, String> {
    let needle = dir.to_string_lossy().into_owned();
    let own = std::process::id();
    let mut found = BTreeMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse::<i32>().ok()) else { continue };
        if u32::try_from(pid) == Ok(own) {
            continue;
        }
        let proc = entry.path();
        let text =
            |name: &str| String::from_utf8_lossy(&fs::read(proc.join(name)).unwrap_or_default()).replace('\0', " ");
        let link =
            |name: &str| fs::read_link(proc.join(name)).map(|p| p.to_string_lossy().into_owned()).unwrap_or_default();
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

/// Sends SIGKILL until nothing is left, for a bounded time, and removes the cgroups that executors made for what ran.
/// Returns what is still there.
pub fn end_everything_of(dir: &Path) -> BTreeMap<i32, String> {
    let give_up = Instant::now() + PATIENCE;
    let mut cgroups = BTreeSet::new();
    let mut killed = BTreeMap::new();
    let left = loop {
        let left = processes_of(dir);
        killed.extend(left.clone());
        if left.is_empty() || Instant::now() > give_up {
            break left;
        }
        for pid in left.keys() {
            cgroups.extend(cgroups_of(*pid));
        }
        for pid in left.keys().filter_map(|p| Pid::from_raw(*p)) {
            // It may have ended in the meantime.
            let _ = kill_process(pid, Signal::KILL);
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    cgroups.extend(without_processes(dir, &killed));
    for cgroup in &cgroups {
        // A group is busy until its last member has been reaped.
        while let Err(error) = fs::remove_dir(cgroup) {
            if error.kind() == std::io::ErrorKind::NotFound || Instant::now() > give_up {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        // The parent goes with its last child; others may still use it. That of Go drivers is made once, at the start
        // of an agent: it stays.
        if let Some(parent) = cgroup.parent().filter(|p| p.ends_with(OURS)) {
            let _ = fs::remove_dir(parent);
        }
    }
    unmount_below(dir);
    left
}

/// Takes away what is mounted below: secrets of tasks that nobody has ended in the usual way.
fn unmount_below(dir: &Path) {
    let info = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let points =
        info.lines().filter_map(|line| line.split(' ').nth(4)).map(Path::new).filter(|point| point.starts_with(dir));
    for point in points.collect::<Vec<_>>().into_iter().rev() {
        let _ = rustix::mount::unmount(point, rustix::mount::UnmountFlags::DETACH);
    }
}

/// Parent of the cgroups that executors make.
const OURS: &str = "drover";
/// Parent of those that hosts make for tasks of Go drivers.
const OF_GO_DRIVERS: &str = "nomad";

fn below(dir: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path())
}

/// The name that a node's plugin cgroups have after `plugin-`, by its data directory: as the node says it.
pub(crate) fn node_name(data: &Path) -> String {
    let digest = Sha256::digest(data.join("client").as_os_str().as_encoded_bytes());
    digest[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The allocation in a path of its directory, `…/alloc/ID/…`, of which a process knows.
fn alloc_in(command: &str) -> Option<&str> {
    let (_, rest) = command.split_once("/data/alloc/")?;
    rest.split(['/', ' ', '"']).next()
}

/// Cgroups of what belonged to `dir` and has ended before who would have removed them. No process leads to them, but
/// their names do: those of plugins name the node, those of tasks the allocation (`<alloc>.<task>` for Go drivers,
/// `task-<alloc>.<task>` for ours), and those of tests the directory. `killed` are commands of processes of `dir`: an
/// allocation's directory may be gone already.
fn without_processes(dir: &Path, killed: &BTreeMap<i32, String>) -> Vec<PathBuf> {
    // Of one agent, or of several in directories of their own.
    let nodes: Vec<PathBuf> = below(dir).flat_map(|entry| [entry.join("data"), entry]).collect();
    let ids = nodes.iter().flat_map(|data| below(&data.join("alloc")));
    let ids = ids.filter_map(|alloc| Some(alloc.file_name()?.to_str()?.to_owned()));
    let ids = ids.chain(killed.values().filter_map(|command| alloc_in(command)).map(str::to_owned));
    let plugins = nodes.iter().map(|data| format!("plugin-{}", node_name(data)));
    let owners: BTreeSet<String> = ids.flat_map(|id| [format!("task-{id}"), id]).chain(plugins).collect();
    // Only a name that nobody else has.
    let own_name = dir.file_name().and_then(|name| name.to_str()).filter(|name| name.starts_with(".tmp"));
    let own_name = own_name.map(|name| name.trim_start_matches('.'));
    let of_ours = |path: &PathBuf| {
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { return false };
        let owned = name.split_once('.').is_some_and(|(owner, _)| owners.contains(owner));
        owned || own_name.is_some_and(|own| name.contains(own))
    };
    let parents = hierarchies().into_iter().flat_map(|hierarchy| {
        [
            OURS,
            "nomad",
            "nomad/share",
            "nomad/reserve",
            "nomad.slice",
            "nomad.slice/share.slice",
            "nomad.slice/reserve.slice",
        ]
        .map(|parent| hierarchy.join(parent))
    });
    parents.flat_map(|parent| below(&parent).filter(of_ours).collect::<Vec<_>>()).collect()
}

/// Where parents of cgroups may be: the top of each hierarchy, and this process's own place in it.
fn hierarchies() -> BTreeSet<PathBuf> {
    let root = Path::new("/sys/fs/cgroup");
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let mut all: BTreeSet<PathBuf> = below(root).chain([root.to_owned()]).collect();
    for line in own.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        for hierarchy in if controllers.is_empty() { vec!["unified", ""] } else { vec![controllers] } {
            all.insert(root.join(hierarchy).join(path.trim_start_matches('/')));
        }
    }
    all
}

/// Directories of the tasks' cgroups that a process is in, in all hierarchies.
fn cgroups_of(pid: i32) -> Vec<PathBuf> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    text.lines()
        .filter_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            let (controllers, path) = (parts.next()?, parts.next()?.trim_start_matches('/'));
            let (above, _) = path.rsplit_once('/')?;
            if !Path::new(above).ends_with(OURS) && !Path::new(above).ends_with(OF_GO_DRIVERS) {
                return None;
            }
            let roots: &[&str] = if controllers.is_empty() { &["unified", ""] } else { &[controllers] };
            roots.iter().map(|root| Path::new("/sys/fs/cgroup").join(root).join(path)).find(|dir| dir.is_dir())
        })
        .collect()
}

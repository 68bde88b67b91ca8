//! The cgroups of one workload: create, limit, enter, kill, count, remove.
//!
//! A version 2 directory is the boundary where there is one: the executor clones the workload into it and kills it with
//! one write. On hybrid hosts the limits live in version 1 hierarchies. Entering one of those takes the kernel up to 15
//! ms (it waits for a grace period). So the workload begins in the version 2 directory alone, and [`gather`] brings all
//! of it into the limits meanwhile. A workload with a limit of processes enters everything before its first
//! instruction, because a fast fork loop would outrun the moves. On pure version 1 hosts every workload does so.

use std::ffi::OsStr;
use std::fmt::Display;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use executor_proto::{Cgroup, StateRecord, V1Path};

use crate::dir::{
    enable_controllers, errno, explain, inherit_cpuset, kill_below, make, members_below, read_pids, remove_below, write,
};

/// The directories of one workload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Paths {
    /// In a version 2 hierarchy.
    pub unified: Option<PathBuf>,
    /// In version 1 hierarchies, by controller.
    pub v1: Vec<(String, PathBuf)>,
}

impl Paths {
    /// The directories of a spec.
    pub fn of_spec(spec: &Cgroup) -> Paths {
        let path = |bytes: &[u8]| PathBuf::from(OsStr::from_bytes(bytes));
        Paths {
            unified: (!spec.unified.is_empty()).then(|| path(&spec.unified)),
            v1: spec.v1.iter().map(|v1| (v1.controller.clone(), path(&v1.path))).collect(),
        }
    }

    /// The directories of a record.
    pub fn of_record(record: &StateRecord) -> Paths {
        Paths {
            unified: (!record.cgroup.is_empty()).then(|| PathBuf::from(&record.cgroup)),
            v1: record.cgroup_v1.iter().map(|v1| (v1.controller.clone(), PathBuf::from(&v1.path))).collect(),
        }
    }

    /// The fields for a record.
    pub fn to_record(&self) -> (String, Vec<V1Path>) {
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let v1 = self.v1.iter().map(|(c, path)| V1Path { controller: c.clone(), path: text(path) }).collect();
        (self.unified.as_deref().map(text).unwrap_or_default(), v1)
    }

    /// Whether there is no cgroup at all.
    pub fn is_empty(&self) -> bool {
        self.unified.is_none() && self.v1.is_empty()
    }

    fn v1(&self, controller: &str) -> Option<&Path> {
        self.v1.iter().find(|(c, _)| c == controller).map(|(_, path)| path.as_path())
    }

    /// The directory that holds all members and that a kill reaches.
    fn boundary(&self) -> Option<&Path> {
        self.unified.as_deref().or_else(|| self.v1("freezer")).or_else(|| self.v1.first().map(|(_, p)| p.as_path()))
    }
}

/// Creates the directories and writes the limits.
///
/// # Errors
/// When a directory cannot be made, or the kernel refuses a limit. What was made stays for [`remove`].
pub fn create(spec: &Cgroup) -> io::Result<()> {
    let paths = Paths::of_spec(spec);
    if let Some(dir) = &paths.unified {
        make(dir)?;
        let limits = limits(spec, None);
        if let (Some((file, _)), Some(parent)) = (limits.first(), dir.parent())
            && paths.v1.is_empty()
            && !dir.join(file).exists()
        {
            enable_controllers(parent)?;
        }
        // Beside version 1 hierarchies, the version 2 one has no controllers.
        if paths.v1.is_empty() {
            for (file, value) in limits {
                write(dir, file, &value)?;
            }
        }
    }
    for (controller, dir) in &paths.v1 {
        make(dir)?;
        if controller == "cpuset" {
            inherit_cpuset(dir)?;
        }
        for (file, value) in limits(spec, Some(controller)) {
            write(dir, file, &value)?;
        }
    }
    Ok(())
}

/// Files and values of the limits in version 2, or in the version 1 hierarchy of a controller.
fn limits(spec: &Cgroup, v1: Option<&str>) -> Vec<(&'static str, String)> {
    let (memory, reserved, shares, pids) = (spec.memory_max, spec.memory_reservation, spec.cpu_shares, spec.pids_max);
    let (quota, cpus) = (spec.cpu_quota_us, spec.cpus.len() as u64);
    let period = if spec.cpu_period_us == 0 { 100_000 } else { spec.cpu_period_us };
    let quota_of_period = format!("{quota} {period}");
    // Where it is, whether it is limited (not 0), its file, its value.
    let all: [(Option<&str>, u64, &str, &dyn Display); 14] = [
        (None, memory, "memory.max", &memory),
        // A task is one unit: a partial survival of an out-of-memory kill helps nobody.
        (None, memory, "memory.oom.group", &1),
        (None, reserved, "memory.low", &reserved),
        (None, shares, "cpu.weight", &weight(shares)),
        (None, quota, "cpu.max", &quota_of_period),
        (None, pids, "pids.max", &pids),
        (None, cpus, "cpuset.cpus", &spec.cpus),
        (Some("memory"), memory, "memory.limit_in_bytes", &memory),
        (Some("memory"), reserved, "memory.soft_limit_in_bytes", &reserved),
        (Some("cpu"), shares, "cpu.shares", &shares.clamp(2, 262_144)),
        (Some("cpu"), quota, "cpu.cfs_period_us", &period),
        (Some("cpu"), quota, "cpu.cfs_quota_us", &quota),
        (Some("cpuset"), cpus, "cpuset.cpus", &spec.cpus),
        (Some("pids"), pids, "pids.max", &pids),
    ];
    let here = all.into_iter().filter(|(at, limited, ..)| *at == v1 && *limited > 0);
    here.map(|(_, _, file, value)| (file, value.to_string())).collect()
}

/// Version 2 weight (1…10000) of version 1 shares (2…262144).
fn weight(shares: u64) -> u64 {
    1 + (shares.clamp(2, 262_144) - 2) * 9999 / 262_142
}

/// Opens the version 2 directory for a clone into it.
///
/// # Errors
/// When the directory is not there, or cannot be opened.
pub fn open_unified(paths: &Paths) -> io::Result<Option<File>> {
    paths.unified.as_deref().map(|dir| File::open(dir).map_err(|e| explain(e, "open cgroup", dir))).transpose()
}

/// The `cgroup.procs` files that a workload enters itself before its first instruction. These are all files, if it
/// cannot be cloned into a cgroup or has a limit of processes.
///
/// # Errors
/// When a file cannot be opened for writing.
pub fn entries(paths: &Paths) -> io::Result<Vec<File>> {
    if paths.unified.is_some() && paths.v1("pids").is_none() {
        return Ok(Vec::new());
    }
    let open = |(_, dir): &(String, PathBuf)| {
        OpenOptions::new().write(true).open(dir.join("cgroup.procs")).map_err(|e| explain(e, "open cgroup", dir))
    };
    paths.v1.iter().map(open).collect()
}

/// Whether limits lie beside the version 2 directory, so that [`gather`] has work.
pub fn needs_gathering(paths: &Paths) -> bool {
    paths.unified.is_some() && !paths.v1.is_empty()
}

/// Brings every process of the version 2 directory into the version 1 ones beside it.
///
/// # Errors
/// When the processes cannot be listed, or one that lives cannot be moved.
pub fn gather(paths: &Paths) -> io::Result<()> {
    let Some(unified) = paths.unified.as_deref() else {
        return Ok(());
    };
    for (_, dir) in &paths.v1 {
        let mut moved: Vec<i32> = Vec::new();
        // A child of a moved process is born inside, so this ends. The bound covers a fork bomb without a limit of
        // processes: unmoved processes are still within the version 2 boundary.
        for _ in 0..100 {
            let missing: Vec<i32> = read_pids(unified)?.into_iter().filter(|pid| !moved.contains(pid)).collect();
            if missing.is_empty() {
                break;
            }
            let inside = read_pids(dir)?;
            for pid in missing {
                moved.push(pid);
                if inside.contains(&pid) {
                    continue;
                }
                match write(dir, "cgroup.procs", &pid.to_string()) {
                    // It has ended.
                    Err(e) if errno(&e) == Some(rustix::io::Errno::SRCH.raw_os_error()) => {}
                    other => other?,
                }
            }
        }
    }
    Ok(())
}

/// Binds a running workload to cores; false when it has ended. `boundary` is the cgroup with all its processes if `dir`
/// may not have them (yet).
pub(crate) fn bind_to_cores(dir: &Path, boundary: Option<&Path>, cpus: &str) -> io::Result<bool> {
    let runs = || boundary.unwrap_or(dir).exists();
    if !runs() {
        return Ok(false);
    }
    let bind = || {
        if let Some(boundary) = boundary {
            if !dir.exists() {
                make(dir)?;
            }
            inherit_cpuset(dir)?;
            write(dir, "cpuset.cpus", cpus)?;
            return gather(&Paths {
                unified: Some(boundary.to_owned()),
                v1: vec![("cpuset".to_owned(), dir.to_owned())],
            });
        }
        write(dir, "cpuset.cpus", cpus)
    };
    match bind() {
        // Whatever the error, the workload has ended.
        Err(_) if !runs() => Ok(false),
        done => done.map(|()| true),
    }
}

/// Pids inside, including cgroups that the workload made below.
pub fn members(paths: &Paths) -> Vec<i32> {
    paths.boundary().map(members_below).unwrap_or_default()
}

/// Whether any process is inside.
pub fn is_populated(paths: &Paths) -> bool {
    match paths.unified.as_deref().map(|dir| std::fs::read_to_string(dir.join("cgroup.events"))) {
        Some(Ok(events)) => keyed(&events, "populated") != Some(0),
        _ => !members(paths).is_empty(),
    }
}

/// Sends SIGKILL to every process inside, so that no fork escapes.
pub fn kill(paths: &Paths) {
    if let Some(boundary) = paths.boundary() {
        let _ = kill_below(boundary);
    }
}

/// Number of processes inside that the kernel has killed for lack of memory.
pub fn oom_kills(paths: &Paths) -> u64 {
    let counted = |dir: &Path, file: &str| {
        std::fs::read_to_string(dir.join(file)).ok().and_then(|text| keyed(&text, "oom_kill")).unwrap_or(0)
    };
    let v2 = paths.unified.as_deref().map_or(0, |dir| counted(dir, "memory.events"));
    v2 + paths.v1("memory").map_or(0, |dir| counted(dir, "memory.oom_control"))
}

/// Counters of the cgroups; `None` for those that the host lacks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// CPU time in user mode, in nanoseconds.
    pub user_ns: Option<u64>,
    /// CPU time in system mode, in nanoseconds.
    pub system_ns: Option<u64>,
    /// Memory charged, in bytes.
    pub memory_usage: Option<u64>,
    /// Peak of the memory charged, in bytes.
    pub memory_peak: Option<u64>,
    /// Page cache within it, in bytes.
    pub memory_cache: Option<u64>,
    /// Swap, in bytes.
    pub memory_swap: Option<u64>,
    /// Periods that used up the quota.
    pub throttled_periods: u64,
    /// Time lost in them, in nanoseconds.
    pub throttled_ns: u64,
}

/// Reads the counters.
pub fn counters(paths: &Paths) -> Counters {
    let mut counters = Counters::default();
    let text = |dir: &Path, file: &str| std::fs::read_to_string(dir.join(file)).ok();
    let number = |dir: &Path, file: &str| text(dir, file)?.trim().parse().ok();
    if let Some(dir) = &paths.unified {
        if let Some(cpu) = text(dir, "cpu.stat") {
            counters.user_ns = keyed(&cpu, "user_usec").map(|us| us * 1000);
            counters.system_ns = keyed(&cpu, "system_usec").map(|us| us * 1000);
            counters.throttled_periods = keyed(&cpu, "nr_throttled").unwrap_or(0);
            counters.throttled_ns = keyed(&cpu, "throttled_usec").unwrap_or(0) * 1000;
        }
        counters.memory_usage = number(dir, "memory.current");
        counters.memory_peak = number(dir, "memory.peak");
        counters.memory_swap = number(dir, "memory.swap.current");
        counters.memory_cache = text(dir, "memory.stat").and_then(|stat| keyed(&stat, "file"));
    }
    if let Some(dir) = paths.v1("memory") {
        counters.memory_usage = number(dir, "memory.usage_in_bytes");
        counters.memory_peak = number(dir, "memory.max_usage_in_bytes");
        if let Some(stat) = text(dir, "memory.stat") {
            counters.memory_cache = keyed(&stat, "total_cache");
            counters.memory_swap = keyed(&stat, "total_swap");
        }
    }
    if let Some(stat) = paths.v1("cpu").and_then(|dir| text(dir, "cpu.stat")) {
        counters.throttled_periods = keyed(&stat, "nr_throttled").unwrap_or(0);
        counters.throttled_ns = keyed(&stat, "throttled_time").unwrap_or(0);
    }
    counters
}

/// Removes the directories, with those that the workload made below them. They must have no processes. Also removes an
/// unused parent.
///
/// # Errors
/// When a directory cannot be removed, for processes in it say; the others are removed all the same.
pub fn remove(paths: &Paths) -> io::Result<()> {
    let mut result = Ok(());
    for dir in paths.unified.iter().chain(paths.v1.iter().map(|(_, dir)| dir)) {
        result = remove_below(dir, Duration::ZERO).and(result);
        if let Some(parent) = dir.parent() {
            let _ = std::fs::remove_dir(parent);
        }
    }
    result
}

/// Value of `key` in lines of `key value`.
fn keyed(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    /// A simulated hierarchy: its directories have the files of a kernel.
    struct Tree(tempfile::TempDir);

    impl Tree {
        fn new() -> Tree {
            Tree(tempfile::tempdir().unwrap())
        }

        fn dir(&self, path: &str, files: &[(&str, &str)]) -> PathBuf {
            let dir = self.0.path().join(path);
            std::fs::create_dir_all(&dir).unwrap();
            for (name, text) in files {
                std::fs::write(dir.join(name), text).unwrap();
            }
            dir
        }

        fn read(&self, path: &str) -> String {
            std::fs::read_to_string(self.0.path().join(path)).unwrap()
        }
    }

    fn spec(unified: Option<&Path>, v1: &[(&str, &Path)]) -> Cgroup {
        let bytes = |path: &Path| path.as_os_str().as_bytes().to_vec();
        Cgroup {
            unified: unified.map(bytes).unwrap_or_default(),
            v1: v1
                .iter()
                .map(|(c, path)| executor_proto::CgroupV1 { controller: (*c).into(), path: bytes(path) })
                .collect(),
            memory_max: 64 << 20,
            memory_reservation: 32 << 20,
            cpu_shares: 1024,
            cpu_quota_us: 50_000,
            pids_max: 10,
            cpus: "0-1".into(),
            ..Cgroup::default()
        }
    }

    const LIMITS_V2: [(&str, &str); 7] = [
        ("memory.max", ""),
        ("memory.oom.group", ""),
        ("memory.low", ""),
        ("cpu.weight", ""),
        ("cpu.max", ""),
        ("pids.max", ""),
        ("cpuset.cpus", ""),
    ];

    #[test]
    fn limits_of_version_2() {
        let tree = Tree::new();
        let dir = tree.dir("drover/t", &LIMITS_V2);
        create(&spec(Some(&dir), &[])).unwrap();
        let wanted = [
            ("memory.max", "67108864"),
            ("memory.oom.group", "1"),
            ("memory.low", "33554432"),
            ("cpu.weight", "39"),
            ("cpu.max", "50000 100000"),
            ("pids.max", "10"),
            ("cpuset.cpus", "0-1"),
        ];
        for (file, value) in wanted {
            assert_eq!(tree.read(&format!("drover/t/{file}")), value, "{file}");
        }
    }

    #[test]
    fn controllers_are_passed_on_from_the_top() {
        let tree = Tree::new();
        let top = tree.dir("", &[("cgroup.controllers", "cpuset cpu memory pids"), ("cgroup.subtree_control", "cpu")]);
        tree.dir("drover", &[("cgroup.controllers", "cpu memory pids"), ("cgroup.subtree_control", "memory pids")]);
        // Plain files keep the last write only: here the last missing controller.
        enable_controllers(&top.join("drover")).unwrap();
        assert!(tree.read("cgroup.subtree_control").starts_with("+pids"));
        assert!(tree.read("drover/cgroup.subtree_control").starts_with("+cpu"));
    }

    #[test]
    fn a_limit_that_cannot_be_set_is_an_error_that_names_it() {
        let tree = Tree::new();
        let dir = tree.dir("drover/t", &LIMITS_V2[1..]);
        let error = create(&spec(Some(&dir), &[])).unwrap_err();
        assert!(error.to_string().contains("memory.max"), "{error}");
        assert_eq!(errno(&error), Some(rustix::io::Errno::NOENT.raw_os_error()));
    }

    #[test]
    fn hybrid_hosts_limit_in_version_1_only() {
        let tree = Tree::new();
        let unified = tree.dir("unified/drover/t", &[("cgroup.procs", "")]);
        let memory = tree.dir("memory/drover/t", &[("memory.limit_in_bytes", ""), ("memory.soft_limit_in_bytes", "")]);
        let cpu = tree.dir("cpu/drover/t", &[("cpu.shares", ""), ("cpu.cfs_period_us", ""), ("cpu.cfs_quota_us", "")]);
        let spec = spec(Some(&unified), &[("memory", &memory), ("cpu", &cpu)]);
        create(&spec).unwrap();
        assert_eq!(tree.read("memory/drover/t/memory.limit_in_bytes"), "67108864");
        assert_eq!(tree.read("memory/drover/t/memory.soft_limit_in_bytes"), "33554432");
        assert_eq!(tree.read("cpu/drover/t/cpu.shares"), "1024");
        assert_eq!(tree.read("cpu/drover/t/cpu.cfs_quota_us"), "50000");
        // Members of the version 2 directory move to the others; members there already do not move again.
        std::fs::write(unified.join("cgroup.procs"), "11\n12\n").unwrap();
        std::fs::write(memory.join("cgroup.procs"), "11\n").unwrap();
        std::fs::write(cpu.join("cgroup.procs"), "11\n12\n").unwrap();
        let paths = Paths::of_spec(&spec);
        gather(&paths).unwrap();
        assert!(tree.read("memory/drover/t/cgroup.procs").starts_with("12"));
        assert_eq!(tree.read("cpu/drover/t/cgroup.procs"), "11\n12\n");
        assert!(entries(&paths).unwrap().is_empty());
    }

    #[test]
    fn a_limit_of_processes_is_entered_by_the_workload_itself() {
        let tree = Tree::new();
        let unified = tree.dir("unified/drover/t", &[("cgroup.procs", "")]);
        let memory = tree.dir("memory/drover/t", &[("cgroup.procs", "")]);
        let pids = tree.dir("pids/drover/t", &[("cgroup.procs", "")]);
        let paths = Paths::of_spec(&spec(Some(&unified), &[("memory", &memory), ("pids", &pids)]));
        for mut file in entries(&paths).unwrap() {
            file.write_all(b"0").unwrap();
        }
        assert_eq!(
            (tree.read("memory/drover/t/cgroup.procs"), tree.read("pids/drover/t/cgroup.procs")),
            ("0".into(), "0".into())
        );
        assert_eq!(tree.read("unified/drover/t/cgroup.procs"), "", "it is cloned into that one");
    }

    #[test]
    fn version_1_cpusets_take_over_what_is_above() {
        let tree = Tree::new();
        tree.dir("cpuset", &[("cpuset.cpus", "0-3\n"), ("cpuset.mems", "0\n")]);
        tree.dir("cpuset/drover", &[("cpuset.cpus", "\n"), ("cpuset.mems", "\n")]);
        let dir = tree.dir("cpuset/drover/t", &[("cpuset.cpus", "\n"), ("cpuset.mems", "\n")]);
        create(&spec(None, &[("cpuset", &dir)])).unwrap();
        // A shorter value leaves the rest of a longer one in a plain file.
        assert!(tree.read("cpuset/drover/cpuset.cpus").starts_with("0-3"));
        assert!(tree.read("cpuset/drover/t/cpuset.cpus").starts_with("0-1"));
        assert!(tree.read("cpuset/drover/t/cpuset.mems").starts_with('0'));
    }

    #[test]
    fn a_running_workload_is_bound_to_cores() {
        let tree = Tree::new();
        tree.dir("cpuset", &[("cpuset.cpus", "0-3\n"), ("cpuset.mems", "0\n")]);
        let dir = tree.dir("cpuset/t", &[("cpuset.cpus", "\n"), ("cpuset.mems", "\n"), ("cgroup.procs", "11\n")]);
        let boundary = tree.dir("unified/t", &[("cgroup.procs", "11\n12\n")]);
        assert!(bind_to_cores(&dir, Some(&boundary), "1,3").unwrap());
        assert!(tree.read("cpuset/t/cpuset.cpus").starts_with("1,3"));
        assert!(tree.read("cpuset/t/cpuset.mems").starts_with('0'));
        assert!(tree.read("cpuset/t/cgroup.procs").starts_with("12"), "who was not inside has been brought in");
        // Version 2, with all processes inside; and a workload that has ended.
        let v2 = tree.dir("v2/t", &[("cpuset.cpus", "")]);
        assert!(bind_to_cores(&v2, None, "2").unwrap());
        assert_eq!(tree.read("v2/t/cpuset.cpus"), "2");
        let gone = tree.0.path().join("unified/gone");
        assert!(!bind_to_cores(&tree.0.path().join("cpuset/gone"), Some(&gone), "1").unwrap());
        assert!(!tree.0.path().join("cpuset/gone").exists(), "nothing is made for it");
    }

    #[test]
    fn members_population_and_kills() {
        let tree = Tree::new();
        let dir = tree.dir(
            "drover/t",
            &[("cgroup.procs", "0\n1\n2\n"), ("cgroup.events", "populated 1\nfrozen 0\n"), ("cgroup.kill", "")],
        );
        tree.dir("drover/t/below/deeper", &[("cgroup.procs", "3\n")]);
        let paths = Paths { unified: Some(dir.clone()), v1: Vec::new() };
        let mut pids = members(&paths);
        pids.sort_unstable();
        assert_eq!(pids, [1, 2, 3]);
        assert!(is_populated(&paths));
        kill(&paths);
        assert_eq!(tree.read("drover/t/cgroup.kill"), "1");
        std::fs::write(dir.join("cgroup.events"), "populated 0\n").unwrap();
        assert!(!is_populated(&paths));
        std::fs::write(dir.join("memory.events"), "oom 3\noom_kill 2\n").unwrap();
        assert_eq!(oom_kills(&paths), 2);
        let absent = Paths { unified: Some(dir.join("nowhere")), v1: Vec::new() };
        assert!(!is_populated(&absent) && members(&absent).is_empty() && remove(&absent).is_ok());
    }

    #[test]
    fn counters_of_both_versions() {
        let tree = Tree::new();
        let v2 = tree.dir(
            "v2",
            &[
                ("cpu.stat", "usage_usec 30\nuser_usec 20\nsystem_usec 10\nnr_throttled 4\nthrottled_usec 7\n"),
                ("memory.current", "100\n"),
                ("memory.peak", "200\n"),
                ("memory.stat", "anon 1\nfile 50\n"),
            ],
        );
        let seen = counters(&Paths { unified: Some(v2.clone()), v1: Vec::new() });
        assert_eq!((seen.user_ns, seen.system_ns), (Some(20_000), Some(10_000)));
        assert_eq!((seen.throttled_periods, seen.throttled_ns), (4, 7_000));
        assert_eq!(
            (seen.memory_usage, seen.memory_peak, seen.memory_cache, seen.memory_swap),
            (Some(100), Some(200), Some(50), None)
        );
        let memory =
            tree.dir("memory", &[("memory.usage_in_bytes", "7\n"), ("memory.stat", "cache 1\ntotal_cache 3\n")]);
        let hybrid = Paths { unified: Some(v2), v1: vec![("memory".into(), memory)] };
        let seen = counters(&hybrid);
        assert_eq!((seen.memory_usage, seen.memory_cache, seen.user_ns), (Some(7), Some(3), Some(20_000)));
        assert_eq!(counters(&Paths::default()), Counters::default());
    }

    #[test]
    fn removal_takes_what_is_below_and_an_unused_parent() {
        let tree = Tree::new();
        let (a, b) = (tree.dir("drover/a/below", &[]), tree.dir("drover/b", &[]));
        let paths = |dir: &Path| Paths { unified: Some(dir.to_owned()), v1: Vec::new() };
        remove(&paths(a.parent().unwrap())).unwrap();
        assert!(!a.parent().unwrap().exists() && b.exists());
        remove(&paths(&b)).unwrap();
        assert!(!tree.0.path().join("drover").exists());
    }

    #[test]
    fn weights() {
        assert_eq!([0, 2, 1024, 262_144, u64::MAX].map(weight), [1, 1, 39, 10_000, 10_000]);
    }
}

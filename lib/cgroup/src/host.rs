//! The cgroups that this host offers to workloads.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use executor_proto::{Cgroup, CgroupV1};

use crate::dir::{enable_controllers, make};
use crate::hierarchy::{mounts, v1_path};
use crate::workload::bind_to_cores;

/// Directory that holds the workloads' cgroups.
const PARENT: &str = "drover";
/// Version 1 hierarchies that workloads use.
const V1_CONTROLLERS: [&str; 5] = ["memory", "cpu", "pids", "cpuset", "freezer"];

/// Limits of one workload; `None` and 0 mean no limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CgroupPolicy {
    /// Name of its directory; must be one path component.
    pub name: String,
    /// Hard memory limit in bytes.
    pub memory_max: Option<u64>,
    /// Memory to reclaim last, in bytes.
    pub memory_reservation: Option<u64>,
    /// CPU shares in the scale of version 1.
    pub cpu_shares: Option<u64>,
    /// CPU quota in µs of each 100 ms.
    pub cpu_quota_us: Option<u64>,
    /// Limit of processes and threads.
    pub pids_max: Option<u64>,
    /// Cores to run on, such as `0-3,7`.
    pub cpus: Option<String>,
}

/// The host's directories for workloads' cgroups.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CgroupHost {
    /// Parent in a version 2 hierarchy.
    unified: Option<PathBuf>,
    /// Parents in version 1 hierarchies, by controller.
    v1: BTreeMap<String, PathBuf>,
    /// Controllers that the version 2 hierarchy passes on.
    unified_controllers: Vec<String>,
}

/// How the host mounts cgroups, for people and node attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CgroupMode {
    /// Version 2 alone.
    V2,
    /// Version 1 controllers with a version 2 hierarchy beside them.
    Hybrid,
    /// Version 1 alone.
    V1,
    /// None usable: session and process tree are a workload's boundary, and limits are not enforced.
    Off,
}

impl CgroupMode {
    /// Name for attributes.
    pub fn name(self) -> &'static str {
        match self {
            CgroupMode::V2 => "v2",
            CgroupMode::Hybrid => "hybrid",
            CgroupMode::V1 => "v1",
            CgroupMode::Off => "off",
        }
    }
}

impl CgroupHost {
    /// Detects the cgroups of this host, and tries them.
    pub fn detect() -> CgroupHost {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let mut host = CgroupHost::parse(&read("/proc/self/mountinfo"), &read("/proc/self/cgroup"));
        let probe = |dir: &Path| -> Option<Vec<String>> {
            static NEXT: AtomicU64 = AtomicU64::new(0);
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let probe = dir.join(format!(".probe-{}-{number}", std::process::id()));
            make(&probe).ok()?;
            // A cgroup with processes in it, such as a container's topmost one, lists controllers but cannot pass them
            // on. So the controllers of a workload's own cgroup count.
            let _ = enable_controllers(dir);
            let controllers = std::fs::read_to_string(probe.join("cgroup.controllers")).unwrap_or_default();
            let _ = std::fs::remove_dir(&probe);
            let _ = std::fs::remove_dir(dir);
            Some(controllers.split_ascii_whitespace().map(str::to_owned).collect())
        };
        let usable = |dir: &PathBuf| probe(dir).is_some();
        let seen = host.unified.as_deref().and_then(probe);
        host.unified = host.unified.filter(|_| seen.is_some());
        host.unified_controllers = seen.unwrap_or_default();
        host.v1.retain(|_, dir| usable(dir));
        // Without a boundary to kill, limits would only leave directories behind.
        if host.unified.is_none() && !host.v1.contains_key("freezer") {
            return CgroupHost::default();
        }
        host
    }

    /// A host without cgroups, for a controller that must not use them.
    pub fn off() -> CgroupHost {
        CgroupHost::default()
    }

    /// Reads `/proc/self/mountinfo` and `/proc/self/cgroup`.
    ///
    /// In version 1 hierarchies workloads stay below the present cgroup, so the limits of this process also limit them.
    /// In version 2 a cgroup with processes cannot pass controllers on. So workloads go to the top of the visible
    /// hierarchy.
    fn parse(mountinfo: &str, own: &str) -> CgroupHost {
        let mut host = CgroupHost::default();
        for mount in mounts(mountinfo) {
            if mount.is_v2() && host.unified.is_none() {
                host.unified = Some(mount.point.join(PARENT));
            }
            for controller in V1_CONTROLLERS {
                if !mount.is_v1_of(controller) || host.v1.contains_key(controller) {
                    continue;
                }
                let path = v1_path(own, controller).unwrap_or("/");
                // In a container the mount may show only a part of the hierarchy.
                let path = path.strip_prefix(mount.root.trim_end_matches('/')).unwrap_or(path);
                let mut dir = mount.point.to_owned();
                // An agent may itself run below such a directory: workloads are siblings, not children.
                dir.extend(Path::new(path).iter().skip(1).take_while(|part| *part != PARENT));
                host.v1.insert(controller.to_owned(), dir.join(PARENT));
            }
        }
        host
    }

    /// Removes cgroups of workloads that have no process and are older than `age`: leftovers of a lost executor and
    /// record. A start makes and fills its cgroups within milliseconds, so this never removes those. Returns the number
    /// removed.
    pub fn sweep(&self, age: Duration) -> usize {
        let old = |dir: &std::fs::DirEntry| {
            let changed = dir.metadata().ok().filter(std::fs::Metadata::is_dir).and_then(|m| m.modified().ok());
            changed.and_then(|at| at.elapsed().ok()).is_some_and(|elapsed| elapsed >= age)
        };
        let all = self.parents().filter_map(|parent| std::fs::read_dir(parent).ok());
        // The kernel refuses to remove one with processes.
        all.flatten().flatten().filter(|dir| old(dir) && std::fs::remove_dir(dir.path()).is_ok()).count()
    }

    /// The directories that hold the workloads' cgroups, in all hierarchies.
    pub fn parents(&self) -> impl Iterator<Item = &Path> {
        self.unified.iter().chain(self.v1.values()).map(PathBuf::as_path)
    }

    /// The parent of workloads' cgroups in the hierarchy that binds to cores; `None` if there is none.
    fn cores_parent(&self) -> Option<&Path> {
        match self.mode() {
            CgroupMode::V2 => self.unified.as_deref().filter(|_| self.enforces("cpuset")),
            _ => self.v1.get("cpuset").map(PathBuf::as_path),
        }
    }

    /// Names of workloads' present cgroups, including those without processes.
    pub fn workloads(&self) -> Vec<String> {
        let boundary = self.unified.as_ref().or_else(|| self.v1.get("freezer"));
        let all = boundary.and_then(|parent| std::fs::read_dir(parent).ok()).into_iter().flatten().flatten();
        all.filter(|entry| entry.file_type().is_ok_and(|t| t.is_dir()))
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect()
    }

    /// Binds a running workload to these cores (`0-3,7`), with all present and future processes; false when there is no
    /// such workload. [`CgroupHost::sweep_cores`] removes what this makes in a version 1 hierarchy.
    ///
    /// # Errors
    /// [`Unsupported`](std::io::ErrorKind::Unsupported) without the controller cpuset; else when the kernel refuses
    /// the cores or a process. Processes may be bound in part; a repeated call binds the rest.
    pub fn confine(&self, name: &str, cpus: &str) -> std::io::Result<bool> {
        let Some(parent) = self.cores_parent() else {
            return Err(std::io::Error::new(
                std::io::ErrorKind::Unsupported,
                "this host has no cgroup controller cpuset",
            ));
        };
        let beside = self.boundary(name).filter(|_| self.mode() != CgroupMode::V2);
        bind_to_cores(&parent.join(name), beside.as_deref(), cpus)
    }

    /// Adds these cores to a running workload that was bound; leaves any other one alone and makes nothing for it. The
    /// reason: entering a version 1 hierarchy waits for every fork on the machine, and gathering an endlessly forking
    /// workload takes as long as it forks. False when there is no such workload.
    ///
    /// # Errors
    /// As [`CgroupHost::confine`].
    pub fn widen(&self, name: &str, cpus: &str) -> std::io::Result<bool> {
        let never_bound =
            self.mode() != CgroupMode::V2 && self.cores_parent().is_some_and(|parent| !parent.join(name).exists());
        if never_bound {
            return Ok(self.boundary(name).is_some_and(|boundary| boundary.exists()));
        }
        self.confine(name, cpus)
    }

    /// The cgroup with all processes of a workload.
    fn boundary(&self, name: &str) -> Option<PathBuf> {
        self.unified.as_ref().or_else(|| self.v1.get("freezer")).map(|parent| parent.join(name))
    }

    /// Removes the work of [`CgroupHost::confine`] for ended workloads. Returns the number of workloads still bound by
    /// a version 1 cgroup.
    pub fn sweep_cores(&self) -> usize {
        let (Some(parent), true) = (self.cores_parent(), self.mode() != CgroupMode::V2) else { return 0 };
        let running = self.workloads();
        let mut bound = 0;
        for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
            let name = entry.file_name();
            if !name.to_str().is_some_and(|name| name.starts_with("task-")) {
                continue;
            }
            // Its boundary is made first and removed first.
            let ended = name.to_str().is_some_and(|name| !running.iter().any(|r| r == name));
            if !ended || std::fs::remove_dir(entry.path()).is_err() {
                bound += 1;
            }
        }
        if bound == 0 {
            let _ = std::fs::remove_dir(parent);
        }
        bound
    }

    /// How cgroups are mounted here.
    pub fn mode(&self) -> CgroupMode {
        let limits = self.v1.keys().any(|c| c != "freezer");
        match (&self.unified, limits || self.v1.contains_key("freezer")) {
            (Some(_), false) => CgroupMode::V2,
            (Some(_), true) => CgroupMode::Hybrid,
            (None, true) => CgroupMode::V1,
            (None, false) => CgroupMode::Off,
        }
    }

    /// Whether the host can enforce limits of `controller` (`memory`, `cpu`, `pids`, `cpuset`).
    pub fn enforces(&self, controller: &str) -> bool {
        match self.mode() {
            CgroupMode::V2 => self.unified_controllers.iter().any(|c| c == controller),
            _ => self.v1.contains_key(controller),
        }
    }

    /// The directories and limits for one workload; `None` if the host has no cgroups. Omits limits that the host
    /// cannot enforce: ask [`CgroupHost::enforces`] where that matters.
    pub fn place(&self, policy: &CgroupPolicy) -> Option<Cgroup> {
        if self.mode() == CgroupMode::Off {
            return None;
        }
        let limit = |controller: &str, value: Option<u64>| value.filter(|_| self.enforces(controller)).unwrap_or(0);
        let mut cgroup = Cgroup {
            unified: self.unified.as_ref().map(|dir| bytes(&dir.join(&policy.name))).unwrap_or_default(),
            v1: Vec::new(),
            memory_max: limit("memory", policy.memory_max),
            memory_reservation: limit("memory", policy.memory_reservation),
            cpu_shares: limit("cpu", policy.cpu_shares),
            cpu_quota_us: limit("cpu", policy.cpu_quota_us),
            cpu_period_us: 0,
            pids_max: limit("pids", policy.pids_max),
            cpus: policy.cpus.clone().filter(|_| self.enforces("cpuset")).unwrap_or_default(),
        };
        // Entering a version 1 hierarchy costs time, so only those with a limit.
        let needed = |controller: &str| match controller {
            "memory" => cgroup.memory_max > 0 || cgroup.memory_reservation > 0,
            "cpu" => cgroup.cpu_shares > 0 || cgroup.cpu_quota_us > 0,
            "pids" => cgroup.pids_max > 0,
            "cpuset" => !cgroup.cpus.is_empty(),
            _ => self.unified.is_none(),
        };
        let v1 = self.v1.iter().filter(|(controller, _)| needed(controller));
        cgroup.v1 = v1
            .map(|(controller, dir)| CgroupV1 { controller: controller.clone(), path: bytes(&dir.join(&policy.name)) })
            .collect();
        Some(cgroup)
    }
}

fn bytes(path: &Path) -> Vec<u8> {
    path.as_os_str().as_bytes().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "\
24 20 0:22 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
25 24 0:23 / /sys/fs/cgroup/memory rw shared:1 - cgroup cgroup rw,memory
26 24 0:24 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
27 24 0:25 / /sys/fs/cgroup/freezer rw - cgroup cgroup rw,freezer
28 24 0:26 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw";

    #[test]
    fn hybrid_hosts_kill_by_v2_and_limit_by_v1() {
        let host = CgroupHost::parse(HYBRID, "4:memory:/service/x\n2:cpu,cpuacct:/\n0::/service\n");
        assert_eq!(host.mode(), CgroupMode::Hybrid);
        assert!(host.enforces("memory") && host.enforces("cpu") && !host.enforces("pids"));
        let policy =
            CgroupPolicy { name: "t".into(), memory_max: Some(1 << 20), pids_max: Some(5), ..Default::default() };
        let cgroup = host.place(&policy).unwrap();
        assert_eq!(cgroup.unified, b"/sys/fs/cgroup/unified/drover/t");
        let v1: Vec<_> = cgroup.v1.iter().map(|v| (v.controller.as_str(), v.path.as_slice())).collect();
        assert_eq!(v1, [("memory", &b"/sys/fs/cgroup/memory/service/x/drover/t"[..])]);
        assert_eq!((cgroup.memory_max, cgroup.pids_max), (1 << 20, 0));
    }

    #[test]
    fn an_agent_below_our_own_directory_does_not_nest() {
        let host = CgroupHost::parse(HYBRID, "4:memory:/a/drover/plugins\n");
        assert_eq!(host.v1["memory"], Path::new("/sys/fs/cgroup/memory/a/drover"));
    }

    #[test]
    fn a_container_sees_a_part_of_the_hierarchy() {
        let mounts = "25 24 0:23 /docker/abc /sys/fs/cgroup/freezer rw - cgroup cgroup rw,freezer";
        let host = CgroupHost::parse(mounts, "4:freezer:/docker/abc/inner\n");
        assert_eq!(host.v1["freezer"], Path::new("/sys/fs/cgroup/freezer/inner/drover"));
        assert_eq!(host.mode(), CgroupMode::V1);
        assert!(host.place(&CgroupPolicy { name: "t".into(), ..Default::default() }).unwrap().unified.is_empty());
    }

    #[test]
    fn old_and_empty_ones_are_swept() {
        let tree = tempfile::tempdir().unwrap();
        let (empty, used) = (tree.path().join("empty"), tree.path().join("used"));
        std::fs::create_dir_all(&empty).unwrap();
        std::fs::create_dir_all(used.join("what-keeps-a-made-up-one")).unwrap();
        std::fs::write(tree.path().join("cgroup.procs"), "").unwrap();
        let host = CgroupHost { unified: Some(tree.path().to_owned()), ..CgroupHost::default() };
        assert_eq!(host.sweep(Duration::from_secs(3600)), 0);
        assert_eq!(host.sweep(Duration::ZERO), 1);
        assert!(!empty.exists() && used.exists() && tree.path().join("cgroup.procs").exists());
    }

    #[test]
    fn only_who_was_bound_is_given_more_cores() {
        let tree = tempfile::tempdir().unwrap();
        let (unified, cpuset) = (tree.path().join("unified/drover"), tree.path().join("cpuset/drover"));
        let file = |dir: &Path, name: &str, text: &str| {
            std::fs::create_dir_all(dir).unwrap();
            std::fs::write(dir.join(name), text).unwrap();
        };
        file(&unified.join("t"), "cgroup.procs", "");
        let v1 = BTreeMap::from([("cpuset".to_owned(), cpuset.clone())]);
        let host = CgroupHost { unified: Some(unified), v1, ..CgroupHost::default() };
        assert!(!host.widen("absent", "0-3").unwrap());
        assert!(host.widen("t", "0-3").unwrap());
        assert!(!cpuset.join("t").exists(), "nothing is made, and nobody is moved");
        for name in ["cpuset.cpus", "cpuset.mems", "cgroup.procs"] {
            file(&cpuset, name, "0-7\n");
            file(&cpuset.join("t"), name, "1\n");
        }
        assert!(host.widen("t", "0-3").unwrap());
        assert_eq!(std::fs::read_to_string(cpuset.join("t/cpuset.cpus")).unwrap().trim_end(), "0-3");
    }

    #[test]
    fn v2_alone() {
        let mut host = CgroupHost::parse("28 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw", "0::/user.slice\n");
        host.unified_controllers = vec!["memory".into()];
        assert_eq!(host.mode(), CgroupMode::V2);
        assert!(host.enforces("memory") && !host.enforces("cpu"));
        let policy = CgroupPolicy { name: "t".into(), memory_max: Some(9), cpu_shares: Some(9), ..Default::default() };
        let cgroup = host.place(&policy).unwrap();
        assert_eq!(
            (cgroup.unified.as_slice(), cgroup.memory_max, cgroup.cpu_shares),
            (&b"/sys/fs/cgroup/drover/t"[..], 9, 0)
        );
        assert_eq!(CgroupHost::off().place(&policy), None);
    }
}

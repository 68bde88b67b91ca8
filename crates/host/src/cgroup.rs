//! The cgroups that drivers written for Nomad expect, and the end of processes that such drivers leave behind.
//!
//! Our own executor makes its own cgroups; these are for drivers that read the path from `cpuset_cgroup` or compute it
//! themselves.
//! ```text
//! v2   nomad.slice/{share,reserve}.slice/<alloc>.<task>.scope      nomad.slice/plugin-<node>.<plugin>.scope
//! v1   {freezer,memory,cpu}/nomad/<alloc>.<task>  cpuset/nomad/{share,reserve/<alloc>.<task>}
//!      freezer/nomad/plugin-<node>.<plugin>
//! ```

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::LazyLock,
    time::{Duration, Instant},
};

use ::cgroup::{CgroupHost, inherit_cpuset, kill_below, members_below, memberships, remove_below};
use model::AllocId;

use crate::cgroup_names;

/// Which hierarchy drivers use here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// One unified hierarchy.
    V2,
    /// One hierarchy per controller.
    V1,
    /// No hierarchy that this agent may write to.
    Off,
}

const ROOT: &str = "/sys/fs/cgroup";
const V1_CONTROLLERS: [&str; 3] = ["freezer", "memory", "cpu"];
const V2_CONTROLLERS: [&str; 5] = ["cpuset", "cpu", "io", "memory", "pids"];
/// How long members may take to end, and the kernel to let go of a cgroup.
const PATIENCE: Duration = Duration::from_secs(2);
/// statfs magic numbers of tmpfs and cgroup2.
const TMPFS: i64 = 0x0102_1994;
const CGROUP2: i64 = 0x6367_7270;

/// Cgroup hierarchies of this host, for our own executors. Found once per process, because the search makes
/// directories.
pub fn host() -> &'static CgroupHost {
    static HOST: LazyLock<CgroupHost> = LazyLock::new(CgroupHost::detect);
    &HOST
}

/// Detected once: hierarchies do not change under a running system.
#[must_use]
pub fn mode() -> Mode {
    static MODE: LazyLock<Mode> = LazyLock::new(detect);
    *MODE
}

fn detect() -> Mode {
    let root = rustix::process::geteuid().is_root();
    let Ok(stat) = rustix::fs::statfs(ROOT) else {
        return Mode::Off;
    };
    #[allow(clippy::unnecessary_cast, reason = "the field's width depends on the target")]
    match stat.f_type as i64 {
        TMPFS if root && V1_CONTROLLERS.iter().all(|c| Path::new(ROOT).join(c).join("tasks").exists()) => Mode::V1,
        CGROUP2 => {
            let available = fs::read_to_string(format!("{ROOT}/cgroup.controllers")).unwrap_or_default();
            let all = V2_CONTROLLERS.iter().all(|c| available.split_whitespace().any(|a| a == *c));
            if all && (root || owned(&Path::new(ROOT).join("nomad.slice"))) && passed_on() {
                Mode::V2
            } else {
                Mode::Off
            }
        }
        _ => Mode::Off,
    }
}

/// Whether the cgroups below the topmost one have controllers. A topmost cgroup with processes in it, as in a
/// container, cannot delegate them.
fn passed_on() -> bool {
    let file = Path::new(ROOT).join("cgroup.subtree_control");
    let enabled = fs::read_to_string(&file).unwrap_or_default();
    let all = V2_CONTROLLERS.iter().all(|c| enabled.split_whitespace().any(|e| e == *c));
    all || fs::write(&file, V2_CONTROLLERS.map(|c| format!("+{c}")).join(" ")).is_ok()
}

fn owned(path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    fs::metadata(path).is_ok_and(|m| m.uid() == rustix::process::geteuid().as_raw())
}

fn ensure_dir(path: &Path) -> io::Result<()> {
    match fs::create_dir(path) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

/// Makes the parents of all task cgroups. Several nodes on one machine share them.
///
/// # Errors
/// When the kernel refuses. Tasks of drivers that need these parents then fail at their start with the driver's own
/// message.
pub fn prepare() -> io::Result<()> {
    let root = Path::new(ROOT);
    match mode() {
        Mode::Off => Ok(()),
        Mode::V2 => {
            let slice = root.join("nomad.slice");
            let cpus = fs::read_to_string(root.join("cpuset.cpus.effective"))?;
            ensure_dir(&slice)?;
            for dir in [root, &slice] {
                fs::write(dir.join("cgroup.subtree_control"), "+cpuset +cpu +io +memory +pids")?;
            }
            for name in ["share.slice", "reserve.slice"] {
                let dir = slice.join(name);
                ensure_dir(&dir)?;
                fs::write(dir.join("cgroup.subtree_control"), "+cpuset +cpu +io +memory +pids")?;
                fs::write(dir.join("cpuset.cpus"), cpus.trim())?;
            }
            Ok(())
        }
        Mode::V1 => {
            for controller in V1_CONTROLLERS {
                ensure_dir(&root.join(controller).join("nomad"))?;
            }
            let top = root.join("cpuset");
            if !top.join("cpuset.cpus").exists() {
                return Ok(());
            }
            let nomad = top.join("nomad");
            ensure_dir(&nomad)?;
            fs::write(nomad.join("cgroup.clone_children"), "0")?;
            for name in ["share", "reserve"] {
                let dir = nomad.join(name);
                ensure_dir(&dir)?;
                inherit_cpuset(&dir)?;
            }
            Ok(())
        }
    }
}

/// Sets the cores that tasks without cores of their own share.
///
/// # Errors
/// When the kernel refuses.
pub fn share_cores(cpus: &str) -> io::Result<()> {
    let dir = match mode() {
        Mode::Off => return Ok(()),
        Mode::V2 => "nomad.slice/share.slice",
        Mode::V1 => "cpuset/nomad/share",
    };
    let file = Path::new(ROOT).join(dir).join("cpuset.cpus");
    if !file.exists() {
        return Ok(());
    }
    fs::write(&file, cpus).map_err(|e| io::Error::new(e.kind(), format!("write {cpus:?} to {}: {e}", file.display())))
}

/// The directories that hold the tasks' cgroups.
pub fn task_parents() -> Vec<PathBuf> {
    let root = Path::new(ROOT);
    match mode() {
        Mode::Off => Vec::new(),
        Mode::V2 => ["share.slice", "reserve.slice"].map(|name| root.join("nomad.slice").join(name)).to_vec(),
        Mode::V1 => V1_CONTROLLERS
            .iter()
            .map(|c| root.join(c).join("nomad"))
            .chain([root.join("cpuset/nomad/reserve")])
            .collect(),
    }
}

/// The parents that [`prepare`] would have to make now, from the top downwards.
pub fn missing_parents() -> Vec<PathBuf> {
    let root = Path::new(ROOT);
    let mut all = match mode() {
        Mode::Off => Vec::new(),
        Mode::V2 => vec![root.join("nomad.slice")],
        Mode::V1 => vec![root.join("cpuset/nomad"), root.join("cpuset/nomad/share")],
    };
    all.extend(task_parents());
    all.retain(|dir| !dir.exists());
    all
}

/// Removes parent cgroups that this node has made and that have no children left. Other nodes of the machine make
/// them again when they need them. Returns the removed ones.
pub fn remove_parents(made: Vec<PathBuf>) -> Vec<PathBuf> {
    let mut gone = made;
    // Children before their parents.
    gone.sort_by_key(|dir| std::cmp::Reverse(dir.components().count()));
    gone.retain(|dir| fs::remove_dir(dir).is_ok() || !dir.exists());
    gone
}

/// Kills the members of one cgroup and removes the cgroup with everything below. Blocking. Returns the number of
/// members killed.
///
/// # Errors
/// When a member resists SIGKILL or a directory cannot be removed. What is left can be destroyed by another call.
pub fn destroy_dir(dir: &Path) -> io::Result<usize> {
    let killed = kill_members(dir)?;
    remove_below(dir, PATIENCE).map(|()| killed)
}

/// The parent directory of plugin cgroups, and the suffix of their names.
fn plugin_parent() -> Option<(PathBuf, &'static str)> {
    match mode() {
        Mode::Off => None,
        Mode::V2 => Some((Path::new(ROOT).join("nomad.slice"), ".scope")),
        Mode::V1 => Some((Path::new(ROOT).join(V1_CONTROLLERS[0]).join("nomad"), "")),
    }
}

/// Makes the cgroup of a plugin and returns the file by which a process joins it; `None` without cgroups. It sets no
/// limits. The cgroup identifies what the plugin starts, even after a process has changed its parent, environment,
/// output and directory.
pub fn for_plugin(node: &str, plugin: &str) -> Option<PathBuf> {
    let (parent, end) = plugin_parent()?;
    let dir = parent.join(format!("{}{end}", cgroup_names::of_plugin(node, plugin)));
    let made = match ensure_dir(&dir) {
        // Another node of this machine has ended and has removed the empty parents.
        Err(e) if e.kind() == io::ErrorKind::NotFound => prepare().and_then(|()| ensure_dir(&dir)),
        other => other,
    };
    match made {
        Ok(()) => Some(dir.join("cgroup.procs")),
        Err(error) => {
            tracing::warn!(plugin, dir = %dir.display(), %error, "there is no cgroup for the plugin: what it starts \
                is known by other ways only");
            None
        }
    }
}

/// Removes the cgroups of a node's plugins; the kernel keeps those with processes.
pub fn remove_of_plugins(node: &[String]) {
    let Some((parent, _)) = plugin_parent() else { return };
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        if entry.file_name().to_str().is_some_and(|name| cgroup_names::plugin(name, node).is_some()) {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// The cgroups of one task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskCgroup {
    name: String,
    /// Numbers of the reserved cores, `0,2`; empty when the cores are shared.
    cores: String,
}

impl TaskCgroup {
    /// Names the cgroups; nothing is made yet.
    #[must_use]
    pub fn new(alloc: AllocId, task: &str, cores: &[u16]) -> Self {
        let cores = cores.iter().map(u16::to_string).collect::<Vec<_>>().join(",");
        Self { name: format!("{alloc}.{task}"), cores }
    }

    /// Path that drivers get as `cpuset_cgroup`; empty without cgroups.
    #[must_use]
    pub fn cpuset_path(&self) -> String {
        match (mode(), self.cores.is_empty()) {
            (Mode::V2, true) => format!("{ROOT}/nomad.slice/share.slice/{}.scope", self.name),
            (Mode::V2, false) => format!("{ROOT}/nomad.slice/reserve.slice/{}.scope", self.name),
            (Mode::V1, true) => format!("{ROOT}/cpuset/nomad/share"),
            (Mode::V1, false) => format!("{ROOT}/cpuset/nomad/reserve/{}", self.name),
            (Mode::Off, _) => String::new(),
        }
    }

    /// The parent that tasks see as `NOMAD_PARENT_CGROUP`; empty without cgroups.
    #[must_use]
    pub fn parent() -> &'static str {
        match mode() {
            Mode::V2 => "nomad.slice",
            Mode::V1 => "/nomad",
            Mode::Off => "",
        }
    }

    fn dirs(&self) -> Vec<PathBuf> {
        let root = Path::new(ROOT);
        match mode() {
            Mode::V2 => vec![PathBuf::from(self.cpuset_path())],
            Mode::V1 => {
                let mut dirs: Vec<PathBuf> =
                    V1_CONTROLLERS.iter().map(|c| root.join(c).join("nomad").join(&self.name)).collect();
                if !self.cores.is_empty() {
                    dirs.push(PathBuf::from(self.cpuset_path()));
                }
                dirs
            }
            Mode::Off => Vec::new(),
        }
    }

    /// Makes the cgroups. Idempotent.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn create(&self) -> io::Result<()> {
        for dir in self.dirs() {
            match ensure_dir(&dir) {
                // Another node of this machine has ended and has removed the empty parents.
                Err(e) if e.kind() == io::ErrorKind::NotFound => {
                    prepare()?;
                    ensure_dir(&dir)?;
                }
                other => other?,
            }
        }
        if !self.cores.is_empty() {
            let dir = PathBuf::from(self.cpuset_path());
            if dir.exists() {
                if mode() == Mode::V1 {
                    inherit_cpuset(&dir)?;
                }
                fs::write(dir.join("cpuset.cpus"), &self.cores)?;
            }
        }
        Ok(())
    }

    /// Moves a process into the cgroup, if it is in the cgroup of this agent or of a plugin of this node. A driver has
    /// put a process anywhere else on purpose. True if the process was moved.
    pub fn take_in(&self, pid: i32, node: &[String]) -> bool {
        let place = |who: &str| {
            let text = fs::read_to_string(format!("/proc/{who}/cgroup")).ok()?;
            let mut places = memberships(&text);
            let place = places.find(|(controllers, _)| match mode() {
                Mode::V2 => controllers.is_empty(),
                Mode::V1 => controllers.split(',').any(|c| c == V1_CONTROLLERS[0]),
                Mode::Off => false,
            });
            place.map(|(_, path)| path.to_owned())
        };
        let of_plugin =
            |place: &String| place.rsplit('/').next().is_some_and(|name| cgroup_names::plugin(name, node).is_some());
        let (here, there) = (place("self"), place(&pid.to_string()));
        here.is_some()
            && (there == here || there.as_ref().is_some_and(of_plugin))
            && self.dirs().first().is_some_and(|dir| fs::write(dir.join("cgroup.procs"), pid.to_string()).is_ok())
    }

    /// Kills every member but keeps the cgroups: leftovers of a driver must not run beside its successor. Returns the
    /// number of members killed.
    ///
    /// # Errors
    /// When members are still there after two seconds.
    pub fn kill_members(&self) -> io::Result<usize> {
        // A v1 controller directory that is already empty costs one read.
        self.dirs().iter().map(|dir| kill_members(dir)).sum()
    }

    /// As [`TaskCgroup::kill_members`], and removes the cgroups that a driver has made below: a container that failed
    /// to start leaves one.
    ///
    /// # Errors
    /// When members or cgroups remain.
    pub fn clear(&self) -> io::Result<usize> {
        let killed = self.kill_members()?;
        for dir in self.dirs() {
            for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
                if entry.file_type().is_ok_and(|t| t.is_dir()) {
                    remove_below(&entry.path(), PATIENCE)?;
                }
            }
        }
        Ok(killed)
    }

    /// Kills every member, then removes the cgroups. Blocking. Returns the number of members killed.
    ///
    /// # Errors
    /// When members or directories remain.
    pub fn destroy(&self) -> io::Result<usize> {
        // All members first: they may be in several hierarchies.
        let killed = self.kill_members()?;
        self.dirs().iter().try_fold(killed, |killed, dir| destroy_dir(dir).map(|more| killed + more))
    }
}

/// Kills every process in `dir` and below, and waits for their ends. Returns the number of processes killed.
fn kill_members(dir: &Path) -> io::Result<usize> {
    let count = members_below(dir).len();
    if count == 0 {
        return Ok(0);
    }
    let deadline = Instant::now() + PATIENCE;
    loop {
        kill_below(dir)?;
        let left = members_below(dir);
        if left.is_empty() {
            return Ok(count);
        }
        if Instant::now() > deadline {
            return Err(io::Error::other(format!(
                "{} processes in {} resist SIGKILL: {left:?}",
                left.len(),
                dir.display()
            )));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_killed_and_the_cgroups_removed() {
        if mode() == Mode::Off {
            skip::cannot("cgroups cannot be used here");
            return;
        }
        prepare().expect("parents");
        let group = TaskCgroup::new(AllocId(uuid::Uuid::new_v4()), "t", &[]);
        group.create().expect("create");
        group.create().expect("create is idempotent");
        let mut child = std::process::Command::new("sleep").arg("600").spawn().expect("sleep");
        let dir = group.dirs().remove(0);
        fs::write(dir.join("cgroup.procs"), child.id().to_string()).expect("move");
        let reaper = std::thread::spawn(move || child.wait().expect("wait"));
        assert_eq!(group.destroy().expect("destroy"), 1);
        assert!(!reaper.join().expect("join").success());
        assert!(group.dirs().iter().all(|d| !d.exists()));
        assert_eq!(group.destroy().expect("destroy is idempotent"), 0);
    }
}

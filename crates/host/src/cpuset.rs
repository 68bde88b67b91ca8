//! Exclusive cores of tasks (`resources.cores`), and how other tasks are kept off them.
//!
//! The servers assign the cores, and the driver binds the task that has them. All other tasks share the node's
//! remaining cores. When these change, [`CoreBinder::settle`] binds each running task to them through its own cgroup.
//! It works from the claims of the records and may be called at any time.
//!
//! ```text
//! tasks of our executors     <cpuset hierarchy>/drover/task-<run>
//! containers                 the engine's cgroup of the container, found by the task's processes
//! drivers written for Nomad  the cgroup of all that share cores (`cgroup.rs`)
//! ```

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, fs,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use ::cgroup::{Mount, memberships, mounts};
use lifecycle::cores::{divide, narrowed};
use model::Allocation;
use tokio::sync::{Mutex, Notify};

use crate::{
    cgroup, cgroup_names,
    fingerprint::Cpu,
    leftovers::{self, Places},
    owner::Owner,
};

/// How many more times the node tries to bind a run.
const ATTEMPTS: u32 = 3;
const PAUSE: Duration = Duration::from_millis(10);

/// How long the node waits before it tries again after a failed binding.
const AGAIN: Duration = Duration::from_secs(1);

/// What one pass records for the next.
#[derive(Debug)]
struct Bound {
    /// Some run may be bound. A new agent does not know, so it assumes so.
    any: bool,
    /// The processes that could not be kept off, as last logged.
    said: BTreeSet<String>,
}

impl Default for Bound {
    fn default() -> Self {
        Self { any: true, said: BTreeSet::new() }
    }
}

/// Marks, while it lives, that an allocation of this node has tasks with exclusive cores. Without any such mark,
/// `settle` has nothing to do.
#[derive(Debug)]
pub struct Reserving(Arc<AtomicUsize>);

impl Drop for Reserving {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A local task that is not dead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenant {
    /// Allocation and task.
    pub owner: Owner,
    /// Its exclusive cores; empty = it shares the remaining ones.
    pub cores: Vec<u16>,
    /// Cores that its driver's options name, as containers can (`cpuset_cpus`).
    pub wish: BTreeSet<u16>,
    /// Its starts that may still have processes, `<alloc>/<task>/<start>`.
    pub runs: Vec<String>,
}

fn list(cores: impl IntoIterator<Item = u16>) -> String {
    cores.into_iter().map(|core| core.to_string()).collect::<Vec<_>>().join(",")
}

/// Binds a run. `reserved`: some task has exclusive cores; otherwise only a run that is bound already needs a new
/// binding. A refusal may be temporary, because the cgroups above come and go with other workloads of the machine.
fn bind(run: &str, cpus: &str, reserved: bool) -> std::io::Result<bool> {
    let (host, name) = (cgroup::host(), cgroup_names::of_run(run));
    let once = || if reserved { host.confine(&name, cpus) } else { host.widen(&name, cpus) };
    let mut done = once();
    for _ in 0..ATTEMPTS {
        if done.is_ok() {
            break;
        }
        std::thread::sleep(PAUSE);
        done = once();
    }
    done
}

/// Keeps all other tasks off exclusive cores.
pub struct CoreBinder {
    places: Places,
    /// Cores that tasks may reserve.
    reservable: Vec<u16>,
    /// The operator reserves cores. They count as those of a task that never ends.
    kept: bool,
    /// There are drivers whose tasks have cgroups of their own.
    foreign: bool,
    tenants: Box<dyn Fn() -> Vec<Tenant> + Send + Sync>,
    /// Number of allocations whose tasks have exclusive cores.
    reserving: Arc<AtomicUsize>,
    bound: Mutex<Bound>,
    /// Signals a failed binding, for another attempt.
    unbound: Notify,
}

impl fmt::Debug for CoreBinder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CoreBinder")
            .field("reservable", &self.reservable)
            .field("bound", &self.bound)
            .finish_non_exhaustive()
    }
}

impl CoreBinder {
    /// `foreign`: there may be drivers whose tasks have cgroups of their own. `tenants` returns all local tasks of the
    /// node that are not dead, at each call.
    pub fn new(
        cpu: &Cpu,
        places: Places,
        foreign: bool,
        tenants: impl Fn() -> Vec<Tenant> + Send + Sync + 'static,
    ) -> Self {
        Self {
            places,
            reservable: cpu.reservable.clone(),
            kept: !cpu.kept.is_empty(),
            foreign,
            tenants: Box::new(tenants),
            reserving: Arc::default(),
            bound: Mutex::default(),
            unbound: Notify::new(),
        }
    }

    /// Counts an allocation that has tasks with exclusive cores; `None` for one whose tasks share their cores.
    #[must_use]
    pub fn reserving(&self, alloc: &Allocation) -> Option<Reserving> {
        let any = alloc.resources.tasks.values().any(|task| !task.cpu.reserved_cores.is_empty());
        any.then(|| {
            self.reserving.fetch_add(1, Ordering::SeqCst);
            Reserving(self.reserving.clone())
        })
    }

    /// Binds every task without exclusive cores to the remaining cores. Returns the processes that it could not bind,
    /// each with the reason. Cheap while no task has exclusive cores.
    #[expect(clippy::await_holding_invalid_type, reason = "two that bind the same tasks would undo each other")]
    pub async fn settle(&self) -> Vec<String> {
        let all = &self.reservable;
        if all.is_empty() {
            return Vec::new();
        }
        let mut bound = self.bound.lock().await;
        if self.reserving.load(Ordering::SeqCst) == 0 && !bound.any && !self.kept {
            return Vec::new();
        }
        let tenants = (self.tenants)();
        let (reserved, shared) = divide(all, tenants.iter().flat_map(|t| t.cores.iter().copied()));
        if reserved.is_empty() && !bound.any && !self.kept {
            return Vec::new();
        }
        let mut problems = Vec::new();
        if shared.is_empty() && tenants.iter().any(|t| t.cores.is_empty() && !t.runs.is_empty()) {
            problems.push("all cores of the node are given, so tasks without cores of their own share them".to_owned());
        }
        // A cgroup without a core accepts no process.
        let open: BTreeSet<u16> = if shared.is_empty() { all.iter().copied().collect() } else { shared };
        let sharing: Vec<Tenant> = tenants.into_iter().filter(|t| t.cores.is_empty() && !t.runs.is_empty()).collect();
        let any_reserved = self.kept || !reserved.is_empty();
        let (foreign, cpus) = (self.foreign, list(open.iter().copied()));
        let done = blocking::spawn(move || bind_all(sharing, &cpus, foreign, any_reserved)).await;
        let Ok((elsewhere, mut refused, left)) = done else { return problems };
        if !elsewhere.is_empty() {
            refused.extend(self.bind_containers(&elsewhere, &open).await);
        }
        if !refused.is_empty() {
            self.unbound.notify_one();
        }
        problems.extend(refused);
        bound.any = any_reserved || left > 0;
        let said: BTreeSet<String> = problems.iter().cloned().collect();
        for why in said.difference(&bound.said) {
            tracing::warn!(why, "not everybody is kept off cores that a task has for itself");
        }
        bound.said = said;
        problems
    }

    /// Resolves when a process could not be kept off exclusive cores. Cancel safe.
    pub async fn refused(&self) {
        self.unbound.notified().await;
    }

    /// As [`Self::settle`], a moment later: the refusal may have been temporary.
    pub async fn settle_again(&self) {
        tokio::time::sleep(AGAIN).await;
        self.settle().await;
    }

    /// Removes the bindings of ended runs. Cheap when there are none.
    #[expect(clippy::await_holding_invalid_type, reason = "nobody binds while what has bound is removed")]
    pub async fn sweep(&self) {
        let bound = self.bound.lock().await;
        if bound.any && !self.reservable.is_empty() {
            // The next sweep removes what remains.
            let _ = blocking::spawn(|| cgroup::host().sweep_cores()).await;
        }
    }

    /// Binds containers of an engine on this machine. Finds them by those of the task's processes that are visible
    /// here.
    async fn bind_containers(&self, tasks: &[Tenant], open: &BTreeSet<u16>) -> Vec<String> {
        let table = leftovers::table(Instant::now()).await;
        let mountinfo = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let mut dirs: BTreeMap<PathBuf, &Tenant> = BTreeMap::new();
        for seen in table.iter() {
            let Some(owner) = seen.owner(&self.places, true) else { continue };
            let Some(tenant) = tasks.iter().find(|tenant| tenant.owner == owner) else { continue };
            let text = fs::read_to_string(format!("/proc/{}/cgroup", seen.pid)).unwrap_or_default();
            dirs.extend(container_of(&text, &mountinfo).map(|dir| (dir, tenant)));
        }
        let bind = |(dir, tenant): (PathBuf, &Tenant)| match fs::write(
            dir.join("cpuset.cpus"),
            list(narrowed(&tenant.wish, open)),
        ) {
            Err(e) if dir.exists() => {
                let Owner { alloc, task } = &tenant.owner;
                Some(format!("task {task:?} of allocation {alloc}: write {}: {e}", dir.display()))
            }
            _ => None,
        };
        dirs.into_iter().filter_map(bind).collect()
    }
}

/// Binds the runs of tasks that share their cores. Blocking. Returns the tasks that run elsewhere, the refusals, and
/// the number of cgroups that are still bound.
fn bind_all(tasks: Vec<Tenant>, cpus: &str, foreign: bool, reserved: bool) -> (Vec<Tenant>, Vec<String>, usize) {
    let mut elsewhere = Vec::new();
    let mut problems = Vec::new();
    if foreign && let Err(e) = cgroup::share_cores(cpus) {
        problems.push(format!("tasks of drivers with cgroups of their own: {e}"));
    }
    for tenant in tasks {
        let mut found = false;
        for run in &tenant.runs {
            match bind(run, cpus, reserved) {
                Ok(is) => found |= is,
                Err(e) => {
                    problems.push(format!("task {:?} of allocation {}: {e}", tenant.owner.task, tenant.owner.alloc))
                }
            }
        }
        if !found {
            elsewhere.push(tenant);
        }
    }
    (elsewhere, problems, cgroup::host().sweep_cores())
}

/// The cgroup that binds a process in a container to cores: the directory named by the container's 64 digits.
fn container_of(cgroup: &str, mountinfo: &str) -> Option<PathBuf> {
    let find = |wanted: fn(&str) -> bool| memberships(cgroup).find(|(of, _)| wanted(of)).map(|(_, path)| path);
    let v1 = find(|controllers| controllers.split(',').any(|c| c == "cpuset"));
    let path = v1.or_else(|| find(str::is_empty))?;
    let is = |mount: &Mount<'_>| if v1.is_some() { mount.is_v1_of("cpuset") } else { mount.is_v2() };
    let mut dir = mounts(mountinfo).find(is)?.point.to_owned();
    for part in path.split('/').filter(|part| !part.is_empty()) {
        dir.push(part);
        let id = part.trim_end_matches(".scope").rsplit('-').next().unwrap_or(part);
        if id.len() == 64 && id.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Some(dir);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_are_known_by_their_cgroups() {
        let id = "0123456789abcdef".repeat(4);
        let v1 = "24 20 0:22 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n25 20 0:23 / /sys/fs/cgroup/memory \
            rw - cgroup cgroup rw,memory\n";
        let v2 = "24 20 0:22 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        let cases = [
            (
                format!("4:memory:/x\n3:cpuset:/docker/{id}\n0::/\n"),
                v1,
                Some(format!("/sys/fs/cgroup/cpuset/docker/{id}")),
            ),
            (format!("3:cpuset:/docker/{id}/inner\n"), v1, Some(format!("/sys/fs/cgroup/cpuset/docker/{id}"))),
            (
                format!("0::/system.slice/docker-{id}.scope\n"),
                v2,
                Some(format!("/sys/fs/cgroup/system.slice/docker-{id}.scope")),
            ),
            (
                format!("0::/machine.slice/libpod-{id}.scope/container\n"),
                v2,
                Some(format!("/sys/fs/cgroup/machine.slice/libpod-{id}.scope")),
            ),
            ("0::/user.slice/session-1.scope\n".to_owned(), v2, None),
            ("3:cpuset:/\n0::/\n".to_owned(), v1, None),
            (String::new(), v2, None),
        ];
        for (cgroup, mounts, expected) in cases {
            assert_eq!(container_of(&cgroup, mounts), expected.map(PathBuf::from), "{cgroup}");
        }
    }
}

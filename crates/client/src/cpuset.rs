//! Whole cores of tasks (`resources.cores`), and how everybody else is kept off them.
//!
//! The servers give the cores, the driver binds the task that has them. What is left of the node's cores is what all other tasks share: whenever that
//! changes, each of them is bound to it where it runs, by its own cgroup. [`settle`] does so from what the records claim, as often as anybody asks.
//!
//! ```text
//! tasks of our executors     <cpuset hierarchy>/drover/task-<run>
//! containers                 the engine's cgroup of the container, found by the task's processes
//! drivers written for Nomad  the cgroup of all that share cores (`cgroup.rs`)
//! ```

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc, LazyLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use executor_client::CgroupHost;
use model::Allocation;

use crate::{
    cgroup_names,
    context::NodeContext,
    fingerprint::parse_ranges,
    leftovers::{self, Owner},
    node,
};

/// What this host offers. Found once: looking makes directories, and hierarchies do not change under a running system.
pub(crate) fn host() -> &'static CgroupHost {
    static HOST: LazyLock<CgroupHost> = LazyLock::new(CgroupHost::detect);
    &HOST
}

/// Further attempts to bind a run.
const ATTEMPTS: u32 = 3;
const PAUSE: Duration = Duration::from_millis(10);

/// How long the node waits before it tries again to bind whom it could not.
pub(crate) const AGAIN: Duration = Duration::from_secs(1);

/// What one pass has left for the next.
#[derive(Debug)]
pub(crate) struct Bound {
    /// Somebody may be bound. A new agent does not know.
    any: bool,
    /// What is not kept off, as it was said last.
    said: BTreeSet<String>,
}

impl Default for Bound {
    fn default() -> Self {
        Self { any: true, said: BTreeSet::new() }
    }
}

/// Says, for as long as it lives, that an allocation of this node has tasks with cores for themselves: without any of them nobody has to look.
#[derive(Debug)]
pub(crate) struct Reserving(Arc<AtomicUsize>);

impl Reserving {
    /// `None` for an allocation whose tasks share their cores.
    pub(crate) fn of(ctx: &NodeContext, alloc: &Allocation) -> Option<Self> {
        let any = alloc.resources.tasks.values().any(|task| !task.cpu.reserved_cores.is_empty());
        any.then(|| {
            ctx.reserving.fetch_add(1, Ordering::SeqCst);
            Self(ctx.reserving.clone())
        })
    }
}

impl Drop for Reserving {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A local task that is not dead.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Tenant {
    owner: Owner,
    cores: Vec<u16>,
    /// Cores that its driver's options name, as containers' may (`cpuset_cpus`).
    wish: BTreeSet<u16>,
    runs: Vec<String>,
}

/// Who has which cores for himself, and what the others share: nothing is left when all are given.
fn divide(all: &[u16], tenants: &[Tenant]) -> (BTreeSet<u16>, BTreeSet<u16>) {
    let reserved: BTreeSet<u16> = tenants.iter().flat_map(|t| t.cores.iter().copied()).collect();
    let shared = all.iter().copied().filter(|core| !reserved.contains(core)).collect();
    (reserved, shared)
}

/// Where a container runs that has no cores of its own: where its options want it, as far as that is anybody's.
fn narrowed(wish: &BTreeSet<u16>, open: &BTreeSet<u16>) -> BTreeSet<u16> {
    let both: BTreeSet<u16> = wish.intersection(open).copied().collect();
    if both.is_empty() { open.clone() } else { both }
}

fn list(cores: impl IntoIterator<Item = u16>) -> String {
    cores.into_iter().map(|core| core.to_string()).collect::<Vec<_>>().join(",")
}

fn tenants(ctx: &NodeContext) -> Vec<Tenant> {
    let mut all = Vec::new();
    for (alloc, handle) in node::handles(&ctx.allocs) {
        let view = handle.view.borrow();
        for (task, holds) in view.claims.iter().filter(|(_, holds)| holds.alive) {
            let cores = view.alloc.resources.tasks.get(&**task).map(|t| t.cpu.reserved_cores.clone()).unwrap_or_default();
            let spec = view.job.group(&view.alloc.task_group).and_then(|group| group.task(task));
            let wish = spec.and_then(|spec| spec.config.get("cpuset_cpus")?.as_str()).map(parse_ranges).unwrap_or_default();
            all.push(Tenant {
                owner: Owner { alloc, task: task.to_string() },
                cores,
                wish: wish.into_iter().collect(),
                runs: holds.runs.clone(),
            });
        }
    }
    all
}

/// Binds a run; `reserved`: somebody has cores for himself, otherwise only who was bound has to be. Cgroups above it come and go with other workloads of
/// the machine, so a refusal may pass.
fn bind(run: &str, cpus: &str, reserved: bool) -> std::io::Result<bool> {
    let (host, name) = (host(), cgroup_names::of_run(run));
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

/// Binds every task without cores of its own to what is left of them. Answers with what could not be kept off, and why. Cheap when nobody has cores.
pub(crate) async fn settle(ctx: &Arc<NodeContext>) -> Vec<String> {
    let all = &ctx.cpu.reservable;
    if all.is_empty() {
        return Vec::new();
    }
    let mut bound = ctx.cores.lock().await;
    if ctx.reserving.load(Ordering::SeqCst) == 0 && !bound.any {
        return Vec::new();
    }
    let tenants = tenants(ctx);
    let (reserved, shared) = divide(all, &tenants);
    if reserved.is_empty() && !bound.any {
        return Vec::new();
    }
    let mut problems = Vec::new();
    if shared.is_empty() && tenants.iter().any(|t| t.cores.is_empty() && !t.runs.is_empty()) {
        problems.push("all cores of the node are given, so tasks without cores of their own share them".to_owned());
    }
    // A cgroup without a core would take nobody in.
    let open: BTreeSet<u16> = if shared.is_empty() { all.iter().copied().collect() } else { shared };
    let cpus = list(open.iter().copied());
    let sharing: Vec<Tenant> = tenants.into_iter().filter(|t| t.cores.is_empty() && !t.runs.is_empty()).collect();
    let (foreign, any_reserved) = (ctx.config.plugin_dir.is_some(), !reserved.is_empty());
    let (to_bind, on) = (sharing, cpus);
    let done = tokio::task::spawn_blocking(move || {
        let mut elsewhere = Vec::new();
        let mut problems = Vec::new();
        if foreign && let Err(e) = crate::cgroup::share_cores(&on) {
            problems.push(format!("tasks of drivers with cgroups of their own: {e}"));
        }
        for tenant in to_bind {
            let mut found = false;
            for run in &tenant.runs {
                match bind(run, &on, any_reserved) {
                    Ok(is) => found |= is,
                    Err(e) => problems.push(format!("task {:?} of allocation {}: {e}", tenant.owner.task, tenant.owner.alloc)),
                }
            }
            if !found {
                elsewhere.push(tenant);
            }
        }
        (elsewhere, problems, host().sweep_cores())
    });
    let Ok((elsewhere, refused, left)) = done.await else { return problems };
    let mut refused = refused;
    if !elsewhere.is_empty() {
        refused.extend(bind_containers(ctx, &elsewhere, &open).await);
    }
    if !refused.is_empty() {
        ctx.unbound.notify_one();
    }
    problems.extend(refused);
    bound.any = !reserved.is_empty() || left > 0;
    let said: BTreeSet<String> = problems.iter().cloned().collect();
    for why in said.difference(&bound.said) {
        tracing::warn!(why, "not everybody is kept off cores that a task has for itself");
    }
    bound.said = said;
    problems
}

/// Removes what has bound runs that are over. Cheap when nobody is bound.
pub(crate) async fn sweep(ctx: &NodeContext) {
    let bound = ctx.cores.lock().await;
    if bound.any && !ctx.cpu.reservable.is_empty() {
        // What stays goes with the next one.
        let _ = tokio::task::spawn_blocking(|| host().sweep_cores()).await;
    }
}

/// Containers of an engine on this machine: by the processes of the task that are seen here.
async fn bind_containers(ctx: &NodeContext, tasks: &[Tenant], open: &BTreeSet<u16>) -> Vec<String> {
    let table = leftovers::table(Instant::now()).await;
    let mountinfo = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mut dirs: BTreeMap<PathBuf, &Tenant> = BTreeMap::new();
    for seen in table.iter() {
        let Some(owner) = seen.owner(&ctx.places, true) else { continue };
        let Some(tenant) = tasks.iter().find(|tenant| tenant.owner == owner) else { continue };
        let text = fs::read_to_string(format!("/proc/{}/cgroup", seen.pid)).unwrap_or_default();
        dirs.extend(container_of(&text, &mountinfo).map(|dir| (dir, tenant)));
    }
    let bind = |(dir, tenant): (PathBuf, &Tenant)| match fs::write(dir.join("cpuset.cpus"), list(narrowed(&tenant.wish, open))) {
        Err(e) if dir.exists() => {
            let Owner { alloc, task } = &tenant.owner;
            Some(format!("task {task:?} of allocation {alloc}: write {}: {e}", dir.display()))
        }
        _ => None,
    };
    dirs.into_iter().filter_map(bind).collect()
}

/// Where a process in a container is bound to cores: the directory that is named by the container's 64 digits.
fn container_of(cgroup: &str, mountinfo: &str) -> Option<PathBuf> {
    let lines = || cgroup.lines().filter_map(|line| line.split_once(':')?.1.split_once(':'));
    let v1 = lines().find(|(controllers, _)| controllers.split(',').any(|c| c == "cpuset"));
    let (path, kind) = match v1 {
        Some((_, path)) => (path, "cgroup"),
        None => (lines().find(|(controllers, _)| controllers.is_empty())?.1, "cgroup2"),
    };
    let point = mountinfo.lines().find_map(|line| {
        let (mount, filesystem) = line.split_once(" - ")?;
        let mut filesystem = filesystem.split(' ');
        let is = filesystem.next()? == kind && (kind == "cgroup2" || filesystem.nth(1)?.split(',').any(|option| option == "cpuset"));
        is.then(|| mount.split(' ').nth(4)).flatten()
    })?;
    let mut dir = Path::new(point).to_owned();
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
    fn what_is_given_is_not_shared() {
        let tenant = |cores: &[u16]| Tenant {
            owner: Owner { alloc: model::AllocId(uuid::Uuid::from_u128(1)), task: "t".into() },
            cores: cores.to_vec(),
            wish: BTreeSet::new(),
            runs: Vec::new(),
        };
        for (given, reserved, shared) in [
            (vec![], "", "0,1,2,5"),
            (vec![tenant(&[])], "", "0,1,2,5"),
            (vec![tenant(&[1]), tenant(&[]), tenant(&[5, 0])], "0,1,5", "2"),
            (vec![tenant(&[0, 1, 2, 5])], "0,1,2,5", ""),
        ] {
            let (r, s) = divide(&[0, 1, 2, 5], &given);
            assert_eq!((list(r).as_str(), list(s).as_str()), (reserved, shared), "{given:?}");
        }
    }

    #[test]
    fn wishes_are_kept_as_far_as_they_can_be() {
        for (wish, open, expected) in
            [("", "0-3", "0,1,2,3"), ("1-2", "0-3", "1,2"), ("1-2", "0,2", "2"), ("1", "0,2", "0,2"), ("9", "0", "0")]
        {
            let set = |text: &str| parse_ranges(text).into_iter().collect::<BTreeSet<u16>>();
            assert_eq!(list(narrowed(&set(wish), &set(open))), expected, "{wish} of {open}");
        }
    }

    #[test]
    fn containers_are_known_by_their_cgroups() {
        let id = "0123456789abcdef".repeat(4);
        let v1 = "24 20 0:22 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n25 20 0:23 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
        let v2 = "24 20 0:22 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        let cases = [
            (format!("4:memory:/x\n3:cpuset:/docker/{id}\n0::/\n"), v1, Some(format!("/sys/fs/cgroup/cpuset/docker/{id}"))),
            (format!("3:cpuset:/docker/{id}/inner\n"), v1, Some(format!("/sys/fs/cgroup/cpuset/docker/{id}"))),
            (format!("0::/system.slice/docker-{id}.scope\n"), v2, Some(format!("/sys/fs/cgroup/system.slice/docker-{id}.scope"))),
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

//! What exists: thin readers of `/proc`, the cgroup hierarchies, the table of mounts and the node's own directories.

use std::{
    collections::{HashMap, HashSet},
    fs,
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
    sync::Arc,
    time::Instant,
};

use api::shapes::AuditKind as Kind;
use model::AllocId;

use super::{Belongs, Handle, Role, Thing};
use crate::{
    cgroup, cgroup_names,
    context::NodeContext,
    cpuset, dirs,
    leftovers::{self, Owner, Places, Seen},
    network, task_api,
};

/// Where network namespaces have names.
const NETNS: &str = "/run/netns";

/// Looks at everything. `known` are the allocations of this node, forgotten ones included: by them it knows cgroups as its own.
pub(super) async fn look(ctx: &Arc<NodeContext>, known: HashSet<AllocId>) -> Vec<Thing> {
    let table = leftovers::table(Instant::now()).await;
    let ctx = ctx.clone();
    let looked = tokio::task::spawn_blocking(move || {
        let mut known = known;
        known.extend(alloc_dirs(&ctx).into_iter().map(|(id, _)| id));
        let mut things = processes(&ctx, &table, &known);
        things.extend(cgroups(&known));
        things.extend(mounts(&ctx.places, &fs::read_to_string("/proc/self/mountinfo").unwrap_or_default()));
        things.extend(namespaces(Path::new(NETNS), &known));
        let networks = network::directories(&ctx.config.networks_dir());
        things.extend(networks.into_iter().filter_map(|(id, dir)| at_path(Kind::Netns, dir, Belongs::Network(id))));
        things.extend(plugin_files(&ctx));
        things.extend(directories(&ctx));
        things
    });
    looked.await.unwrap_or_default()
}

/// The same thing as long as device and inode are.
pub(super) fn identity_of(path: &Path) -> Option<String> {
    let meta = fs::symlink_metadata(path).ok()?;
    Some(format!("{}:{}:{}", meta.dev(), meta.ino(), path.display()))
}

fn at_path(kind: Kind, path: PathBuf, belongs: Belongs) -> Option<Thing> {
    let identity = identity_of(&path)?;
    Some(Thing { kind, identity, what: path.display().to_string(), belongs, handle: Handle::Path(path) })
}

fn entries(dir: &Path) -> impl Iterator<Item = (String, PathBuf)> {
    let all = fs::read_dir(dir).into_iter().flatten().flatten();
    all.filter_map(|entry| Some((entry.file_name().to_str()?.to_owned(), entry.path())))
}

/// Directories of allocations, whether anybody knows them or not. Only names of our own form are ours.
fn alloc_dirs(ctx: &NodeContext) -> Vec<(AllocId, PathBuf)> {
    let named = entries(&ctx.config.alloc_dir).filter_map(|(name, path)| Some((name.parse::<AllocId>().ok()?, path)));
    named.filter(|(id, path)| !id.is_nil() && path.is_dir()).collect()
}

/// State directories of executors: `<task dir>/private/executor/<start>`.
fn run_of(places: &Places, dir: &Path) -> Option<(Owner, String)> {
    let owner = places.task_of(dir)?;
    let (run, parent) = (dir.file_name()?.to_str()?.to_owned(), dir.parent()?);
    parent.ends_with("private/executor").then_some((owner, run))
}

/// Whose a process is, by what it says of itself.
fn own_words(seen: &Seen, places: &Places, known: &HashSet<AllocId>, marked: &HashMap<i32, driver_host::Marked>) -> Option<Belongs> {
    let other = |owner, run| Belongs::Run { owner, run, role: Role::Other };
    if let Some(dir) = &seen.state_dir {
        if let Some((owner, run)) = run_of(places, dir) {
            return Some(Belongs::Run { owner, run: Some(run), role: Role::Executor });
        }
        if dir.parent().is_some_and(|parent| places.collector_dirs.iter().any(|dir| dir == parent)) {
            return Some(Belongs::Collector(dir.file_name()?.to_str()?.to_owned()));
        }
    }
    let cgroup = || {
        let text = fs::read_to_string(format!("/proc/{}/cgroup", seen.pid)).ok()?;
        cgroup_names::names(&text).find_map(|name| {
            let (owner, run) = cgroup_names::owner(name)?;
            known.contains(&owner.alloc).then(|| other(owner, run))
        })
    };
    let marked = || marked.get(&seen.pid).map(|m| Belongs::Plugin { name: m.plugin.clone(), known: m.known });
    seen.owner(places, false).map(|owner| other(owner, None)).or_else(cgroup).or_else(marked)
}

fn processes(ctx: &NodeContext, table: &[Seen], known: &HashSet<AllocId>) -> Vec<Thing> {
    // Whoever is in a cgroup of ours is known by that.
    let others = table.iter().filter(|seen| !seen.confined).map(|seen| seen.pid.cast_unsigned());
    let marked: HashMap<i32, _> = ctx.drivers.host().marked(others).into_iter().map(|m| (m.pid, m)).collect();
    let told: HashMap<i32, Belongs> =
        table.iter().filter_map(|seen| Some((seen.pid, own_words(seen, &ctx.places, known, &marked)?))).collect();
    let parents: HashMap<i32, i32> = table.iter().map(|seen| (seen.pid, seen.parent)).collect();
    let me = std::process::id().cast_signed();
    let inherited = |pid: i32| -> Option<Belongs> {
        let mut at = pid;
        // A bound, because parents change while the table is read.
        for _ in 0..table.len() {
            if at == me {
                return Some(Belongs::Somebody("the agent"));
            }
            match told.get(&at) {
                Some(Belongs::Run { owner, run, .. }) => {
                    let role = if at == pid { role_of(&told, pid) } else { Role::Other };
                    return Some(Belongs::Run { owner: owner.clone(), run: run.clone(), role });
                }
                Some(found) => return Some(found.clone()),
                None => at = *parents.get(&at)?,
            }
        }
        None
    };
    let thing = |seen: &Seen| {
        let belongs = inherited(seen.pid)?;
        // What the agent runs for itself for a moment is not worth a line.
        if belongs == Belongs::Somebody("the agent") {
            return None;
        }
        let line: String = seen.line.chars().take(160).collect();
        Some(Thing {
            kind: Kind::Process,
            identity: format!("{}:{}", seen.pid, seen.start),
            what: format!("{} {line}", seen.pid),
            belongs,
            handle: Handle::Process { pid: seen.pid, start: seen.start },
        })
    };
    table.iter().filter_map(thing).collect()
}

fn role_of(told: &HashMap<i32, Belongs>, pid: i32) -> Role {
    match told.get(&pid) {
        Some(Belongs::Run { role, .. }) => *role,
        _ => Role::Other,
    }
}

fn cgroups(known: &HashSet<AllocId>) -> Vec<Thing> {
    let parents = cpuset::host().parents().map(Path::to_owned).chain(cgroup::task_parents());
    let mut things = Vec::new();
    for (name, path) in parents.flat_map(|parent| entries(&parent).collect::<Vec<_>>()) {
        let Some((owner, run)) = cgroup_names::owner(&name).filter(|(owner, _)| known.contains(&owner.alloc)) else { continue };
        let belongs = match run {
            Some(run) => Belongs::Run { owner, run: Some(run), role: Role::Other },
            None => Belongs::Fixture(owner),
        };
        things.extend(at_path(Kind::Cgroup, path, belongs).filter(|thing| matches!(&thing.handle, Handle::Path(p) if p.is_dir())));
    }
    things
}

/// Mounts below the directories of allocations, deepest first as they must be undone.
fn mounts(places: &Places, mountinfo: &str) -> Vec<Thing> {
    let mut found: Vec<(usize, Thing)> = dirs::mounts_below(&places.alloc_dirs, mountinfo)
        .into_iter()
        .filter_map(|(mount, point)| {
            let below = places.alloc_dirs.iter().find_map(|dir| point.strip_prefix(dir).ok())?;
            let mut names = below.components().map(|name| name.as_os_str().to_str());
            let alloc = names.next()??.parse().ok()?;
            let what = point.display().to_string();
            let depth = point.components().count();
            let belongs = match (names.next().flatten(), names.next().flatten(), names.next()) {
                (Some(task), Some("secrets"), None) => Belongs::Fixture(Owner { alloc, task: task.to_owned() }),
                _ => Belongs::Alloc(alloc),
            };
            Some((depth, Thing { kind: Kind::Mount, identity: format!("{mount}:{what}"), what, belongs, handle: Handle::Path(point) }))
        })
        .collect();
    found.sort_by_key(|(depth, _)| std::cmp::Reverse(*depth));
    found.into_iter().map(|(_, thing)| thing).collect()
}

/// Named network namespaces whose name holds the id of an allocation of this node.
fn namespaces(dir: &Path, known: &HashSet<AllocId>) -> Vec<Thing> {
    const ID: usize = 36;
    let of = |name: &str| -> Option<AllocId> {
        let ends = [name.get(..ID), name.len().checked_sub(ID).and_then(|from| name.get(from..))];
        ends.into_iter().flatten().find_map(|text| text.parse().ok())
    };
    entries(dir)
        .filter_map(|(name, path)| {
            let id = of(&name).filter(|id| known.contains(id))?;
            at_path(Kind::Netns, path, Belongs::Alloc(id))
        })
        .collect()
}

/// Sockets of plugins and of what they have started, and the pipes through which plugins talk.
fn plugin_files(ctx: &NodeContext) -> Vec<Thing> {
    let host = ctx.drivers.host();
    let bound: HashSet<PathBuf> = bound_sockets(&fs::read_to_string("/proc/net/unix").unwrap_or_default());
    let mut things: Vec<Thing> = entries(host.socket_dir())
        .filter(|(_, path)| fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_socket()))
        .filter_map(|(_, path)| {
            let belongs = match bound.contains(&path) {
                true => Belongs::Somebody("the process that listens on it"),
                false => Belongs::Nobody("nobody listens on it"),
            };
            at_path(Kind::Socket, path, belongs)
        })
        .collect();
    let names: HashSet<String> = host.plugin_names().into_iter().collect();
    let is_fifo = |path: &Path| fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_fifo());
    things.extend(entries(&ctx.config.plugin_state_dir()).filter(|(_, path)| is_fifo(path)).filter_map(|(name, path)| {
        let plugin = name.strip_suffix(".stdout").or_else(|| name.strip_suffix(".stderr"))?;
        let belongs = match names.contains(plugin) {
            true => Belongs::Somebody("its plugin"),
            false => Belongs::Nobody("no such plugin is configured"),
        };
        at_path(Kind::Fifo, path, belongs)
    }));
    things
}

/// Paths that sockets are bound to.
fn bound_sockets(unix: &str) -> HashSet<PathBuf> {
    unix.lines().skip(1).filter_map(|line| line.split_ascii_whitespace().nth(7)).map(PathBuf::from).collect()
}

/// Directories of allocations, executors and log collectors, the FIFOs of collected tasks, and the sockets through which tasks reach the HTTP API.
fn directories(ctx: &NodeContext) -> Vec<Thing> {
    let mut things = Vec::new();
    for (id, root) in alloc_dirs(ctx) {
        for (task, dir) in entries(&root).filter(|(name, path)| name != "alloc" && path.is_dir()) {
            for (run, state) in entries(&dir.join("private/executor")) {
                let role = if executor_client::is_live(&state) { Role::LiveState } else { Role::State };
                let belongs = Belongs::Run { owner: Owner { alloc: id, task: task.clone() }, run: Some(run), role };
                things.extend(at_path(Kind::Directory, state, belongs));
            }
            let socket = dir.join("secrets").join(task_api::NAME);
            if fs::symlink_metadata(&socket).is_ok_and(|m| m.file_type().is_socket()) {
                things.extend(at_path(Kind::Socket, socket, Belongs::Fixture(Owner { alloc: id, task: task.clone() })));
            }
        }
        for (name, path) in entries(&root.join("alloc/logs")) {
            let task = name.strip_prefix('.').and_then(|n| n.strip_suffix(".stdout.fifo").or_else(|| n.strip_suffix(".stderr.fifo")));
            if let Some(task) = task.filter(|_| fs::symlink_metadata(&path).is_ok_and(|m| m.file_type().is_fifo())) {
                let belongs = Belongs::Fixture(Owner { alloc: id, task: task.to_owned() });
                things.extend(at_path(Kind::Fifo, path, belongs));
            }
        }
        things.extend(at_path(Kind::Directory, root, Belongs::Alloc(id)));
    }
    let collectors = ctx.config.collectors_dir();
    things.extend(entries(&collectors).filter_map(|(name, path)| at_path(Kind::Directory, path, Belongs::Collector(name))));
    things
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "11111111-2222-3333-4444-555555555555";

    #[test]
    fn namespaces_and_sockets_are_known_by_their_names() {
        let dir = tempfile::tempdir().expect("temp dir");
        let known = HashSet::from([ID.parse().expect("uuid")]);
        for name in [format!("drover-{ID}"), ID.to_owned(), "eth".into(), "drover-66666666-2222-3333-4444-555555555555".into()] {
            fs::write(dir.path().join(name), "").expect("file");
        }
        assert_eq!(namespaces(dir.path(), &known).len(), 2);
        let unix = "Num       RefCount Protocol Flags    Type St Inode Path\n\
                    0000: 00000002 00000000 00010000 0001 01 42 /d/p/plugin1\n\
                    0000: 00000003 00000000 00000000 0001 03 43\n";
        assert_eq!(bound_sockets(unix), HashSet::from([PathBuf::from("/d/p/plugin1")]));
    }
}

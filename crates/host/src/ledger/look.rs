//! Readers of the items that exist: `/proc`, cgroup hierarchies, the mount table and the node's directories.

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

use node_config::ClientConfig;

use super::books::{Belongs, Handle, Role, Thing};
use crate::{
    cgroup, cgroup_names, dirs,
    leftovers::{self, Places, Seen},
    network,
    owner::Owner,
    secrets,
};

/// Where network namespaces have names.
const NETNS: &str = "/run/netns";

/// Access of the audit to the host's plugins.
pub trait Plugins: Send + Sync + 'static {
    /// Names of the configured plugins.
    fn names(&self) -> Vec<String>;
    /// Directory of the sockets of plugins and of their child processes, as the kernel spells it.
    fn socket_dir(&self) -> PathBuf;
    /// Those of these processes that carry the mark of a plugin, each with that plugin ([`Belongs::Plugin`]). Blocking.
    fn marked(&self, of: Vec<u32>) -> HashMap<i32, Belongs>;
}

/// Looks at everything. `known` are the allocations of this node, forgotten ones included: their ids identify this
/// node's cgroups.
pub async fn look(
    config: Arc<ClientConfig>,
    places: Places,
    plugins: Arc<impl Plugins>,
    known: HashSet<AllocId>,
) -> Vec<Thing> {
    let table = leftovers::table(Instant::now()).await;
    let looked = blocking::spawn(move || {
        let mut known = known;
        known.extend(alloc_dirs(&config).into_iter().map(|(id, _)| id));
        let mut things = processes(&*plugins, &places, &table, &known);
        things.extend(cgroups(&known));
        things.extend(mounts(&places, &fs::read_to_string("/proc/self/mountinfo").unwrap_or_default()));
        things.extend(namespaces(Path::new(NETNS), &known));
        let networks = network::record::directories(&config.networks_dir());
        things.extend(networks.into_iter().filter_map(|(id, dir)| at_path(Kind::Netns, dir, Belongs::Network(id))));
        things.extend(plugin_files(&config, &*plugins));
        things.extend(directories(&config));
        things
    });
    looked.await.unwrap_or_default()
}

/// Identity of the file at a path: device and inode. A later file at the same path has another one.
pub fn identity_of(path: &Path) -> Option<String> {
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

/// Directories of allocations, whether recorded or not. The node owns only names of its own form.
fn alloc_dirs(config: &ClientConfig) -> Vec<(AllocId, PathBuf)> {
    let named = entries(&config.alloc_dir).filter_map(|(name, path)| Some((name.parse::<AllocId>().ok()?, path)));
    named.filter(|(id, path)| !id.is_nil() && path.is_dir()).collect()
}

/// The task and start of an executor's state directory: `<task dir>/private/executor/<start>`.
fn run_of(places: &Places, dir: &Path) -> Option<(Owner, String)> {
    let owner = places.task_of(dir)?;
    let (run, parent) = (dir.file_name()?.to_str()?.to_owned(), dir.parent()?);
    parent.ends_with("private/executor").then_some((owner, run))
}

/// The owner of a process, by its own command line, environment and files.
fn own_words(
    seen: &Seen,
    places: &Places,
    known: &HashSet<AllocId>,
    marked: &HashMap<i32, Belongs>,
) -> Option<Belongs> {
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
    let marked = || marked.get(&seen.pid).cloned();
    seen.owner(places, false).map(|owner| other(owner, None)).or_else(cgroup).or_else(marked)
}

fn processes(plugins: &impl Plugins, places: &Places, table: &[Seen], known: &HashSet<AllocId>) -> Vec<Thing> {
    // The cgroup already identifies the confined ones.
    let others = table.iter().filter(|seen| !seen.confined).map(|seen| seen.pid.cast_unsigned()).collect();
    let marked = plugins.marked(others);
    let told: HashMap<i32, Belongs> =
        table.iter().filter_map(|seen| Some((seen.pid, own_words(seen, places, known, &marked)?))).collect();
    let parents: HashMap<i32, i32> = table.iter().map(|seen| (seen.pid, seen.parent)).collect();
    let keepers: HashSet<i32> = table.iter().filter(|seen| seen.keeper).map(|seen| seen.pid).collect();
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
                // An orphan that its plugin's keeper has adopted.
                Some(Belongs::Plugin { name, .. }) if at != pid && keepers.contains(&at) => {
                    return Some(Belongs::OfPlugin(cgroup_names::spelled(name)));
                }
                Some(found) => return Some(found.clone()),
                None => at = *parents.get(&at)?,
            }
        }
        None
    };
    let thing = |seen: &Seen| {
        // A process identified only by its plugin's cgroup serves one of the plugin's tasks; which one is unknown.
        let of_plugin = || {
            cgroup_names::plugin(seen.plugin_cgroup.as_deref()?, &places.node)
                .map(|name| Belongs::OfPlugin(name.to_owned()))
        };
        let belongs = inherited(seen.pid).or_else(of_plugin)?;
        // The agent's own short-lived child processes need no line.
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
    let parents = cgroup::host().parents().map(Path::to_owned).chain(cgroup::task_parents());
    let mut things = Vec::new();
    for (name, path) in parents.flat_map(|parent| entries(&parent).collect::<Vec<_>>()) {
        let Some((owner, run)) = cgroup_names::owner(&name).filter(|(owner, _)| known.contains(&owner.alloc)) else {
            continue;
        };
        let belongs = match run {
            Some(run) => Belongs::Run { owner, run: Some(run), role: Role::Other },
            None => Belongs::Fixture(owner),
        };
        things.extend(
            at_path(Kind::Cgroup, path, belongs).filter(|thing| matches!(&thing.handle, Handle::Path(p) if p.is_dir())),
        );
    }
    things
}

/// Mounts below the directories of allocations, deepest first: unmounting needs this order.
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
            Some((
                depth,
                Thing {
                    kind: Kind::Mount,
                    identity: format!("{mount}:{what}"),
                    what,
                    belongs,
                    handle: Handle::Path(point),
                },
            ))
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

/// Sockets of plugins and of their child processes, and the pipes through which plugins talk.
fn plugin_files(config: &ClientConfig, plugins: &impl Plugins) -> Vec<Thing> {
    let bound = processes::bound_sockets().unwrap_or_default();
    let mut things: Vec<Thing> = entries(&plugins.socket_dir())
        .filter(|(_, path)| fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_socket()))
        .filter_map(|(_, path)| {
            let belongs = match bound.contains(&path) {
                true => Belongs::Somebody("the process that listens on it"),
                false => Belongs::Nobody("nobody listens on it"),
            };
            at_path(Kind::Socket, path, belongs)
        })
        .collect();
    let names: HashSet<String> = plugins.names().into_iter().collect();
    let is_fifo = |path: &Path| fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_fifo());
    things.extend(entries(&config.plugin_state_dir()).filter(|(_, path)| is_fifo(path)).filter_map(|(name, path)| {
        let plugin = name.strip_suffix(".stdout").or_else(|| name.strip_suffix(".stderr"))?;
        let belongs = match names.contains(plugin) {
            true => Belongs::Somebody("its plugin"),
            false => Belongs::Nobody("no such plugin is configured"),
        };
        at_path(Kind::Fifo, path, belongs)
    }));
    things
}

/// Directories of allocations, executors and log collectors, the FIFOs of collected tasks, and the sockets through
/// which tasks reach the HTTP API.
fn directories(config: &ClientConfig) -> Vec<Thing> {
    let mut things = Vec::new();
    for (id, root) in alloc_dirs(config) {
        for (task, dir) in entries(&root).filter(|(name, path)| name != "alloc" && path.is_dir()) {
            for (run, state) in entries(&dir.join("private/executor")) {
                let role = if executor_client::is_live(&state) { Role::LiveState } else { Role::State };
                let belongs = Belongs::Run { owner: Owner { alloc: id, task: task.clone() }, run: Some(run), role };
                things.extend(at_path(Kind::Directory, state, belongs));
            }
            let socket = dir.join("secrets").join(secrets::API_SOCKET);
            if fs::symlink_metadata(&socket).is_ok_and(|m| m.file_type().is_socket()) {
                things.extend(at_path(Kind::Socket, socket, Belongs::Fixture(Owner { alloc: id, task: task.clone() })));
            }
        }
        for (name, path) in entries(&root.join("alloc/logs")) {
            let task = name
                .strip_prefix('.')
                .and_then(|n| n.strip_suffix(".stdout.fifo").or_else(|| n.strip_suffix(".stderr.fifo")));
            if let Some(task) = task.filter(|_| fs::symlink_metadata(&path).is_ok_and(|m| m.file_type().is_fifo())) {
                let belongs = Belongs::Fixture(Owner { alloc: id, task: task.to_owned() });
                things.extend(at_path(Kind::Fifo, path, belongs));
            }
        }
        things.extend(at_path(Kind::Directory, root, Belongs::Alloc(id)));
    }
    let collectors = config.collectors_dir();
    things.extend(
        entries(&collectors).filter_map(|(name, path)| at_path(Kind::Directory, path, Belongs::Collector(name))),
    );
    things
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "11111111-2222-3333-4444-555555555555";

    #[test]
    fn namespaces_are_known_by_their_names() {
        let dir = tempfile::tempdir().expect("temp dir");
        let known = HashSet::from([ID.parse().expect("uuid")]);
        for name in
            [format!("drover-{ID}"), ID.to_owned(), "eth".into(), "drover-66666666-2222-3333-4444-555555555555".into()]
        {
            fs::write(dir.path().join(name), "").expect("file");
        }
        assert_eq!(namespaces(dir.path(), &known).len(), 2);
    }
}

//! All plugins of a node.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::OsStr;
use std::fs::DirBuilder;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, PermissionsExt};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use driver_proto::handshake::SOCKET_PATH_MAX;
use tokio::sync::{broadcast, mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::driver::{Driver, Phase, Shared};
use crate::error::{LaunchError, StartHostError};
use crate::launches::Launches;
use crate::options::{HostOptions, PluginSpec, Timing};
use crate::process::find;
use crate::reattach::{self, Record};
use crate::reload::{Order, Reloaded};
use crate::scope::{self, Mark, Marked};
use crate::serves::{self, Serves};
use crate::session;
use crate::stderr::Tail;
use crate::supervisor::{Common, Supervisor, identify_process};
use crate::turns::Turns;
use crate::types::{DriverEvent, DriverFingerprint};

/// `/plugin` and the digits that plugins append.
const SOCKET_NAME_MAX: usize = 24;

/// The end of plugin processes at the end of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// They end in an orderly way. Their tasks continue.
    Stop,
    /// They continue, and the next host on the same state directory finds them again.
    LeaveRunning,
}

/// The order to end, with its kind.
#[derive(Debug, Clone, Default)]
pub(crate) struct EndingSignal {
    token: CancellationToken,
    how: Arc<OnceLock<Ending>>,
}

impl EndingSignal {
    /// Cancelled when the host ends.
    pub(crate) fn token(&self) -> &CancellationToken {
        &self.token
    }

    /// A host that is dropped without an order leaves its plugins to the next one.
    pub(crate) fn how(&self) -> Ending {
        self.how.get().copied().unwrap_or(Ending::LeaveRunning)
    }

    fn give(&self, how: Ending) {
        let _ = self.how.set(how);
        self.token.cancel();
    }
}

type Fingerprints = Arc<BTreeMap<String, DriverFingerprint>>;

/// The plugin of each driver, and the drivers' states.
#[derive(Debug)]
pub(crate) struct Registry {
    claims: Mutex<HashMap<String, Claim>>,
    fingerprints: watch::Sender<Fingerprints>,
}

#[derive(Debug)]
struct Claim {
    plugin: String,
    order: usize,
    version: semver::Version,
    shared: Arc<Shared>,
    displaced: CancellationToken,
    /// Number of processes so far, over all plugins: waiting for a newer one must work across a change of plugins.
    generation: u64,
}

/// The grant of a driver name to a plugin.
#[derive(Debug)]
pub(crate) struct Granted {
    pub(crate) shared: Arc<Shared>,
    /// Cancelled when another plugin takes over the driver.
    pub(crate) displaced: CancellationToken,
    /// The generation of this process.
    pub(crate) generation: u64,
}

impl Registry {
    fn claims(&self) -> MutexGuard<'_, HashMap<String, Claim>> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets a plugin claim a driver. The highest version wins, and among equals the last configured.
    pub(crate) fn claim(
        &self,
        plugin: &str,
        order: usize,
        driver: &str,
        version: &semver::Version,
        timing: &Timing,
    ) -> Result<Granted, LaunchError> {
        let mut claims = self.claims();
        let displaced = CancellationToken::new();
        let (shared, generation) = match claims.get_mut(driver) {
            Some(held) if held.plugin != plugin && (&held.version, held.order) > (version, order) => {
                return Err(LaunchError::Displaced {
                    driver: driver.to_owned(),
                    other: held.plugin.clone(),
                    version: held.version.to_string(),
                });
            }
            Some(held) => {
                if held.plugin != plugin {
                    held.displaced.cancel();
                }
                held.plugin = plugin.to_owned();
                held.order = order;
                held.version = version.clone();
                held.displaced = displaced.clone();
                held.generation += 1;
                (held.shared.clone(), held.generation)
            }
            None => {
                let shared = Arc::new(Shared {
                    driver: driver.to_owned(),
                    timing: timing.clone(),
                    phase: watch::Sender::new(Phase::Down { why: "its plugin is starting".into(), again: true }),
                    facts: watch::Sender::new(None),
                    starts: Turns::new(),
                    recoveries: Turns::new(),
                });
                let claim = Claim {
                    plugin: plugin.to_owned(),
                    order,
                    version: version.clone(),
                    shared: shared.clone(),
                    displaced: displaced.clone(),
                    generation: 1,
                };
                claims.insert(driver.to_owned(), claim);
                (shared, 1)
            }
        };
        drop(claims);
        // From now on the plugin appears under its driver's name, without a gap.
        self.fingerprints.send_if_modified(|map| {
            let own = plugin != driver && map.get(plugin).is_some_and(|f| f.plugin == plugin);
            if own {
                let map = Arc::make_mut(map);
                if let Some(known) = map.remove(plugin) {
                    map.entry(driver.to_owned()).or_insert(DriverFingerprint { settled: false, ..known });
                }
            }
            own
        });
        Ok(Granted { shared, displaced, generation })
    }

    /// Reserves a driver for the plugin that served it under a former agent, until that is up or another one wins
    /// against its version.
    fn keep_for(&self, plugin: &str, order: usize, served: &Serves, timing: &Timing) {
        if self.claim(plugin, order, &served.driver, &served.version(), timing).is_ok()
            && let Some(claim) = self.claims().get_mut(&served.driver)
        {
            // No process of this host yet.
            claim.generation = 0;
        }
    }

    /// A plugin is no longer configured: hides it and frees its driver for others.
    pub(crate) fn forget(&self, plugin: &str) {
        let mut claims = self.claims();
        let mut names = vec![plugin.to_owned()];
        for (driver, claim) in claims.iter_mut().filter(|(_, claim)| claim.plugin == plugin) {
            names.push(driver.clone());
            claim.plugin.clear();
            claim.version = semver::Version::new(0, 0, 0);
            claim
                .shared
                .phase
                .send_replace(Phase::Down { why: "its plugin is no longer configured".into(), again: false });
        }
        drop(claims);
        self.fingerprints.send_if_modified(|map| {
            let shown = |name: &String| map.get(name).is_some_and(|fingerprint| fingerprint.plugin == plugin);
            let gone: Vec<&String> = names.iter().filter(|name| shown(name)).collect();
            if gone.is_empty() {
                return false;
            }
            let map = Arc::make_mut(map);
            gone.into_iter().for_each(|name| drop(map.remove(name)));
            true
        });
    }

    /// The driver that a plugin serves.
    pub(crate) fn driver_of(&self, plugin: &str) -> Option<(String, Arc<Shared>)> {
        let claims = self.claims();
        claims
            .iter()
            .find(|(_, claim)| claim.plugin == plugin)
            .map(|(name, claim)| (name.clone(), claim.shared.clone()))
    }

    /// The plugin that serves a driver, and its version.
    pub(crate) fn holder(&self, driver: &str) -> (String, String) {
        let claims = self.claims();
        claims.get(driver).map(|claim| (claim.plugin.clone(), claim.version.to_string())).unwrap_or_default()
    }

    /// Runs `act` if the plugin serves the driver; false if it does not (any more).
    pub(crate) fn if_holder(&self, driver: &str, plugin: &str, act: impl FnOnce()) -> bool {
        let claims = self.claims();
        let holds = claims.get(driver).is_some_and(|claim| claim.plugin == plugin);
        if holds {
            act();
        }
        holds
    }

    fn shared(&self, driver: &str) -> Option<Arc<Shared>> {
        self.claims().get(driver).map(|claim| claim.shared.clone())
    }

    /// Changes the state of a driver; wakes watchers only on a real change.
    pub(crate) fn publish(&self, driver: &str, change: impl FnOnce(&mut DriverFingerprint)) {
        self.fingerprints.send_if_modified(|map| {
            let before = map.get(driver);
            let mut after = before.cloned().unwrap_or_default();
            change(&mut after);
            let changed = before != Some(&after);
            if changed {
                Arc::make_mut(map).insert(driver.to_owned(), after);
            }
            changed
        });
    }

    /// Publishes the state of a plugin that has not named its driver.
    pub(crate) fn publish_plugin(&self, plugin: &str, description: &str) {
        // Another plugin may serve a driver of this name; its state is shown.
        if self.claims().contains_key(plugin) {
            return;
        }
        self.publish(plugin, |fingerprint| {
            *fingerprint = DriverFingerprint {
                plugin: plugin.to_owned(),
                description: description.to_owned(),
                settled: true,
                ..DriverFingerprint::default()
            };
        });
    }
}

/// The plugins of a node. Dropping it without [`DriverHost::shutdown`] leaves the processes to the next host.
#[derive(Debug)]
pub struct DriverHost {
    common: Arc<Common>,
    plugins: Mutex<Plugins>,
    reloading: tokio::sync::Mutex<()>,
    supervisors: TaskTracker,
}

#[derive(Debug, Default)]
struct Plugins {
    by_name: HashMap<String, Plugin>,
    /// Counts plugins in configuration order.
    started: usize,
}

#[derive(Debug)]
struct Plugin {
    spec: PluginSpec,
    orders: mpsc::UnboundedSender<Order>,
    removed: CancellationToken,
    running: JoinHandle<()>,
}

impl DriverHost {
    /// Starts all plugins, in parallel and in the background; the fingerprint of a failed one has the reason. Must be
    /// called within a tokio runtime.
    ///
    /// # Errors
    /// When a directory cannot be made or has too long a path, or two plugins have one name. Nothing was started.
    pub fn start(options: HostOptions) -> Result<Self, StartHostError> {
        let HostOptions { plugins, socket_dir, state_dir, agent, timing, anew } = options;
        let socket_dir = prepare(&socket_dir)?;
        let state_dir = prepare(&state_dir)?;
        let (len, max) = (socket_dir.as_os_str().len(), SOCKET_PATH_MAX - SOCKET_NAME_MAX);
        if len > max {
            return Err(StartHostError::SocketDirTooLong { path: socket_dir, len, max });
        }
        let names = checked_names(&plugins)?;
        sweep_dead_sockets(&socket_dir);

        let fingerprints = plugins.iter().map(|spec| {
            let waiting = DriverFingerprint {
                plugin: spec.name.clone(),
                description: "the plugin is starting".into(),
                ..DriverFingerprint::default()
            };
            (spec.name.clone(), waiting)
        });
        let registry =
            Registry { claims: Mutex::default(), fingerprints: watch::Sender::new(Arc::new(fingerprints.collect())) };
        for (index, spec) in plugins.iter().enumerate() {
            if let Some(served) = serves::load(&state_dir, &spec.name) {
                registry.keep_for(&spec.name, index + 1, &served, &timing);
            }
        }
        let events = broadcast::channel(1024).0;
        let id = crate::backoff::random();
        let ending = EndingSignal::default();
        let launches = Launches::default();
        let common =
            Arc::new(Common { id, socket_dir, state_dir, agent, timing, anew, launches, registry, events, ending });
        let supervisors = TaskTracker::new();
        // Before any supervisor, also of a plugin that a reload adds, writes records of its own.
        let recorded = of_former_hosts(&common.state_dir, &names);
        supervisors.spawn(end_unwanted(common.clone(), names, recorded));
        let host = Self { common, plugins: Mutex::default(), reloading: tokio::sync::Mutex::default(), supervisors };
        for spec in plugins {
            host.supervise(spec, &mut host.plugins());
        }
        host.supervisors.close();
        Ok(host)
    }

    fn plugins(&self) -> MutexGuard<'_, Plugins> {
        self.plugins.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the supervisor of a plugin.
    fn supervise(&self, spec: PluginSpec, plugins: &mut Plugins) {
        let (orders, received) = mpsc::unbounded_channel();
        let removed = CancellationToken::new();
        plugins.started += 1;
        let supervisor = Supervisor {
            common: self.common.clone(),
            spec: spec.clone(),
            order: plugins.started,
            orders: received,
            removed: removed.clone(),
            launching: Mutex::default(),
            waiting: Vec::new(),
        };
        let running = self.supervisors.spawn(supervisor.run());
        plugins.by_name.insert(spec.name.clone(), Plugin { spec, orders, removed, running });
    }

    /// The driver of a name; `None` until its plugin has named it.
    pub fn driver(&self, name: &str) -> Option<Driver> {
        self.common.registry.shared(name).map(|shared| Driver { shared })
    }

    /// Waits for the driver of a name until its plugin has named it; `None` after the limit.
    pub async fn wait_driver(&self, name: &str, limit: Duration) -> Option<Driver> {
        let mut fingerprints = self.fingerprints();
        let found = async {
            loop {
                fingerprints.mark_unchanged();
                if let Some(driver) = self.driver(name) {
                    return driver;
                }
                if fingerprints.changed().await.is_err() {
                    return std::future::pending().await;
                }
            }
        };
        tokio::time::timeout(limit, found).await.ok()
    }

    /// The state of each driver, by driver name; of a plugin that never came up, by its file name.
    pub fn fingerprints(&self) -> watch::Receiver<Fingerprints> {
        self.common.registry.fingerprints.subscribe()
    }

    /// Drivers' events about tasks. A reader that falls far behind loses the oldest.
    pub fn events(&self) -> broadcast::Receiver<DriverEvent> {
        self.common.events.subscribe()
    }

    /// Reloads the plugins in their present configuration. Replaces a changed one once the new one is known to come up.
    /// Starts new ones, ends removed ones, and retries failed ones at once. Does not touch tasks; the node recovers
    /// each with the new process. Returns when all that is done. One reload runs at a time.
    ///
    /// # Errors
    /// When two plugins have one name. Nothing was changed.
    #[expect(clippy::await_holding_invalid_type, reason = "one reload runs at a time")]
    pub async fn reload(&self, plugins: Vec<PluginSpec>) -> Result<BTreeMap<String, Reloaded>, StartHostError> {
        let names = checked_names(&plugins)?;
        let _one = self.reloading.lock().await;
        let removed: Vec<(String, Plugin)> =
            self.plugins().by_name.extract_if(|name, _| !names.contains(name)).collect();
        let mut done = BTreeMap::new();
        for (name, plugin) in removed {
            plugin.removed.cancel();
            // Its records use the name, which may be reused.
            let _ = plugin.running.await;
            done.insert(name, Reloaded::Ended);
        }
        let answers: Vec<_> = {
            let mut known = self.plugins();
            plugins.into_iter().map(|spec| (spec.name.clone(), self.order(spec, false, &mut known))).collect()
        };
        for (name, answer) in answers {
            // An order stays unanswered only when the host ends.
            done.insert(name, answer.await.unwrap_or_else(|_| Reloaded::Failed(LaunchError::Ending.to_string())));
        }
        Ok(done)
    }

    /// Replaces the process of one plugin, changed or not; `None` if there is no such plugin.
    pub async fn restart(&self, plugin: &str) -> Option<Reloaded> {
        let answer = {
            let mut known = self.plugins();
            let spec = known.by_name.get(plugin)?.spec.clone();
            self.order(spec, true, &mut known)
        };
        Some(answer.await.unwrap_or_else(|_| Reloaded::Failed(LaunchError::Ending.to_string())))
    }

    fn order(&self, spec: PluginSpec, force: bool, known: &mut Plugins) -> oneshot::Receiver<Reloaded> {
        let (reply, answer) = oneshot::channel();
        if !known.by_name.contains_key(&spec.name) {
            self.common.registry.publish_plugin(&spec.name, "the plugin is starting");
            self.supervise(spec.clone(), known);
            // Its first attempt answers.
            if let Some(plugin) = known.by_name.get(&spec.name) {
                let _ = plugin.orders.send(Order { spec, force: false, reply, fresh: true });
            }
        } else if let Some(plugin) = known.by_name.get_mut(&spec.name) {
            plugin.spec = spec.clone();
            let _ = plugin.orders.send(Order { spec, force, reply, fresh: false });
        }
        answer
    }

    /// Names of the plugins, built-in ones included.
    pub fn plugin_names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.plugins().by_name.keys().cloned().collect();
        names.sort();
        names
    }

    /// Those of these processes that carry the mark of this node's plugins, for the node's books; without processes
    /// that hang. Blocking: inspects them all.
    pub fn marked(&self, of: impl IntoIterator<Item = u32>) -> Vec<Marked> {
        let dir = &self.common.state_dir;
        let recorded: HashSet<u32> = reattach::recorded(dir)
            .iter()
            .filter_map(|plugin| Some(identify_process(&reattach::load(dir, plugin)?)?.pid))
            .collect();
        let in_hand = |pid, mark: &Mark| self.common.launches.has(mark) || recorded.contains(&pid);
        scope::marked(of, &self.common.socket_dir, in_hand)
    }

    /// Directory of the sockets of plugins and their executors, as the kernel spells it.
    pub fn socket_dir(&self) -> &Path {
        &self.common.socket_dir
    }

    /// Ends the host. Returns when every plugin process has ended or is left alone, as ordered.
    pub async fn shutdown(&self, how: Ending) {
        self.common.ending.give(how);
        self.supervisors.wait().await;
    }
}

impl Drop for DriverHost {
    fn drop(&mut self) {
        self.common.ending.token.cancel();
    }
}

fn checked_names(plugins: &[PluginSpec]) -> Result<HashSet<String>, StartHostError> {
    let mut names = HashSet::new();
    for spec in plugins {
        let usable = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if spec.name.is_empty() || spec.name.starts_with('.') || !spec.name.chars().all(usable) {
            return Err(StartHostError::BadPluginName(spec.name.clone()));
        }
        if !names.insert(spec.name.clone()) {
            return Err(StartHostError::DuplicatePlugin(spec.name.clone()));
        }
    }
    Ok(names)
}

fn prepare(path: &Path) -> Result<std::path::PathBuf, StartHostError> {
    let failed = |source| StartHostError::Directory { path: path.to_owned(), source };
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700)).map_err(failed)?;
    path.canonicalize().map_err(failed)
}

/// Removes sockets without a process, left by killed plugins and executors. A socket that is bound but does not listen
/// yet belongs to a starting process.
pub(crate) fn sweep_dead_sockets(dir: &Path) {
    let entries: Vec<_> = std::fs::read_dir(dir).into_iter().flatten().flatten().collect();
    if entries.is_empty() {
        return;
    }
    // Read after the directory, so that no live owner of a listed socket is missing.
    let Ok(bound) = processes::bound_sockets() else { return };
    // By its random name alone, because the path may have another spelling.
    let bound: HashSet<&OsStr> = bound.iter().filter_map(|path| path.file_name()).collect();
    for entry in entries {
        let is_socket = entry.file_type().is_ok_and(|kind| kind.is_socket());
        if is_socket && !bound.contains(&*entry.file_name()) && nobody_listens(&entry.path()) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Connects without blocking: a listener may be alive and too busy to accept.
pub(crate) fn nobody_listens(path: &Path) -> bool {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let Ok(socket) = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None) else {
        return false;
    };
    SocketAddrUnix::new(path)
        .and_then(|address| connect(&socket, &address))
        .is_err_and(|error| error == rustix::io::Errno::CONNREFUSED)
}

/// The processes that former hosts have recorded. Of plugins that are no longer configured, records that name no
/// process are removed.
fn of_former_hosts(state_dir: &Path, wanted: &HashSet<String>) -> Vec<Record> {
    for plugin in serves::recorded(state_dir).iter().filter(|plugin| !wanted.contains(*plugin)) {
        serves::remove(state_dir, plugin);
    }
    let record = |plugin: &String| {
        let record = reattach::load(state_dir, plugin);
        if record.is_none() && !wanted.contains(plugin) {
            reattach::remove(state_dir, plugin);
        }
        record
    };
    reattach::recorded(state_dir).iter().filter_map(record).collect()
}

/// Ends processes of plugins that are no longer configured, and plugin processes of former hosts without a record.
/// Their mark proves their owner even if every record is lost.
async fn end_unwanted(common: Arc<Common>, wanted: HashSet<String>, recorded: Vec<Record>) {
    let grace = common.timing.stop_grace;
    let mut kept = HashSet::new();
    for record in recorded {
        let process = identify_process(&record);
        if wanted.contains(&record.plugin) {
            kept.extend(process.map(|process| process.pid));
            continue;
        }
        if let Some(process) = process {
            tracing::info!(plugin = record.plugin, pid = process.pid, "ending a plugin that is no longer configured");
            let channel = session::connect(&record.address(), &process, grace).await.ok();
            session::stop(channel.as_ref(), &process, grace).await;
        }
        // A reload may have added a plugin of this name meanwhile.
        if reattach::load(&common.state_dir, &record.plugin).as_ref() == Some(&record) {
            reattach::remove(&common.state_dir, &record.plugin);
        }
    }
    let dir = common.socket_dir.clone();
    let found = blocking::spawn(move || scope::plugins(&dir)).await.unwrap_or_default();
    for stray in found.into_iter().filter(|found| found.mark.host != common.id && !kept.contains(&found.pid)) {
        let Ok(Some(process)) = find(stray.pid, stray.birth, Tail::default()) else { continue };
        tracing::warn!(
            plugin = stray.mark.plugin,
            pid = stray.pid,
            "ending a plugin process of a former agent that no record names"
        );
        process.terminate();
        process.ended_within(grace).await;
        // For an ended process this only removes what it has left behind.
        session::stop(None, &process, grace).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registry() -> Registry {
        Registry { claims: Mutex::default(), fingerprints: watch::Sender::default() }
    }

    #[test]
    fn the_highest_version_serves_a_driver_and_the_last_configured_of_equals() {
        let timing = Timing::default();
        let version = |text: &str| semver::Version::parse(text).expect("version");
        let registry = registry();
        let claim = |plugin: &str, order, v: &str| registry.claim(plugin, order, "d", &version(v), &timing);
        let first = claim("a", 0, "1.0.0").expect("first");
        let refused = claim("b", 1, "0.9.0").expect_err("lower");
        assert!(refused.to_string().contains("\"a\"") && !refused.retryable(), "{refused}");
        assert!(!first.displaced.is_cancelled());
        let second = claim("c", 2, "1.0.0").expect("last of equals");
        assert!(first.displaced.is_cancelled() && Arc::ptr_eq(&first.shared, &second.shared));
        assert!(claim("a", 0, "1.0.0").is_err());
        let third = claim("c", 2, "1.0.0").expect("the same plugin again, after a restart");
        assert!(!second.displaced.is_cancelled());
        assert_eq!((first.generation, second.generation, third.generation), (1, 2, 3));
        assert_eq!(registry.holder("d"), ("c".into(), "1.0.0".into()));
    }

    #[test]
    fn a_plugin_is_shown_at_every_moment() {
        let registry = registry();
        registry.publish("file", |f| f.plugin = "file".into());
        let version = semver::Version::new(1, 0, 0);
        registry.claim("file", 0, "driver", &version, &Timing::default()).expect("granted");
        let all = registry.fingerprints.borrow().clone();
        assert_eq!(all.keys().collect::<Vec<_>>(), ["driver"]);
        assert!(!all["driver"].settled);
    }

    #[test]
    fn only_sockets_without_a_listener_are_swept() {
        let dir = tempfile::tempdir().expect("directory");
        let dir = dir.path();
        // Drawn by chance, as those of plugins are: nobody else on this machine has a socket of this name.
        let drawn = crate::backoff::random();
        let plugin = |n: u32| dir.join(format!("plugin{n}-{drawn}"));
        let live = std::os::unix::net::UnixListener::bind(plugin(1)).expect("binds");
        drop(std::os::unix::net::UnixListener::bind(plugin(2)).expect("binds"));
        std::fs::write(plugin(3), "").expect("writes");
        let left = || (1..=4).filter(|n| plugin(*n).exists()).collect::<Vec<_>>();
        let bound = {
            use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, bind, socket};
            let socket = socket(AddressFamily::UNIX, SocketType::STREAM, None).expect("socket");
            bind(&socket, &SocketAddrUnix::new(plugin(4)).expect("address")).expect("binds");
            socket
        };
        assert_eq!(left(), [1, 2, 3, 4]);
        sweep_dead_sockets(dir);
        assert_eq!(left(), [1, 3, 4], "of the fourth, someone is about to listen");
        drop(bound);
        sweep_dead_sockets(dir);
        assert_eq!(left(), [1, 3]);
        drop(live);
    }

    #[test]
    fn watchers_are_woken_by_changes_only() {
        let registry = registry();
        registry.publish("d", |f| f.healthy = true);
        let mut seen = registry.fingerprints.subscribe();
        seen.mark_unchanged();
        registry.publish("d", |f| f.healthy = true);
        assert!(!seen.has_changed().expect("sender lives"));
        registry.publish("d", |f| f.healthy = false);
        assert!(seen.has_changed().expect("sender lives"));
    }
}

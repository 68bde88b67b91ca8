//! The drivers of this node: which plugins run, and what they add to the node.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use api::node_rpc::DriverSchema;
use driver_host::{
    AgentConfig, Core, Device, Driver, DriverFingerprint, DriverHost, Ending, HostOptions, PluginBlock, PluginSpec,
    Reloaded, Topology, Within, discover,
};
use host::{
    cgroup,
    fingerprint::Facts,
    ledger::{Belongs, Plugins},
};
use model::{
    Map,
    node::{Attributes, DriverInfo, Node, RemoteProvider},
};
use node_config::{ClientConfig, PluginCommand, PluginSettings};

use crate::offers;

/// Largest schema, and largest sum of schemas, that the servers get, in bytes. The node alone checks the rest.
const SCHEMA_BYTES_MAX: usize = 64 * 1024;
const SCHEMAS_MAX: usize = 64;

/// How long to wait for an absent driver, and then between attempts.
const RARELY: Duration = Duration::from_secs(60);

/// Why a reload of plugins failed.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// No plugin or driver has that name.
    #[error("{0}")]
    Unknown(String),
    /// The plugins cannot run as they are configured.
    #[error("{0}")]
    Refused(String),
    /// The search for plugins failed.
    #[error("{0}")]
    Failed(String),
}

fn unavailable(driver: &Driver, else_why: &str) -> String {
    let why = driver.unavailable().unwrap_or_else(|| else_why.to_owned());
    format!("driver {:?} is not available: {why}", driver.name())
}

/// The plugin host with this node's rules about allowed drivers.
pub struct Drivers {
    host: DriverHost,
    config: Arc<ClientConfig>,
    configured: Mutex<ConfiguredPlugins>,
    /// Built-in plugins that run within this process.
    within: BTreeMap<String, Within>,
    allowed: Vec<String>,
    denied: Vec<String>,
}

impl Drivers {
    /// Starts every plugin in the background. Must be called within a runtime. Keeps the plugin processes of a former
    /// agent, except those of the drivers in `unconfirmed`. Those in `within` get no process.
    ///
    /// # Errors
    /// When the directory of plugins cannot be read, or the plugins cannot run as they are configured.
    pub fn start(
        config: &Arc<ClientConfig>,
        facts: &Facts,
        unconfirmed: BTreeSet<String>,
        within: BTreeMap<String, Within>,
    ) -> Result<Self, String> {
        let allowed = list(&config.driver_allowlist, config, "driver.allowlist");
        let denied = list(&config.driver_denylist, config, "driver.denylist");
        let configured = ConfiguredPlugins::of(config);
        let mut options = HostOptions::new(Vec::new(), config.plugin_socket_dir(), config.plugin_state_dir());
        options.plugins = plugins(config, &configured, &within, &allowed, &denied)?;
        options.agent = AgentConfig {
            port_min: config.plugin_ports.0,
            port_max: config.plugin_ports.1,
            topology: topology(config, facts),
        };
        options.anew = unconfirmed;
        let host = DriverHost::start(options).map_err(|e| e.to_string())?;
        Ok(Self { host, config: config.clone(), configured: Mutex::new(configured), within, allowed, denied })
    }

    /// Reloads the plugins as they are configured now; `configured` replaces the earlier configuration. Returns the
    /// outcome of each plugin.
    ///
    /// # Errors
    /// When it replaced nothing, with the reason.
    pub async fn reload(
        &self,
        configured: Option<ConfiguredPlugins>,
    ) -> Result<BTreeMap<String, Reloaded>, ReloadError> {
        let specs = {
            let mut known = self.configured.lock().unwrap_or_else(PoisonError::into_inner);
            let wanted = configured.unwrap_or_else(|| known.clone());
            let specs = plugins(&self.config, &wanted, &self.within, &self.allowed, &self.denied)
                .map_err(ReloadError::Failed)?;
            *known = wanted;
            specs
        };
        self.host.reload(specs).await.map_err(|e| ReloadError::Refused(e.to_string()))
    }

    /// Replaces the process of one plugin, changed or not. `name` is the plugin's or its driver's.
    ///
    /// # Errors
    /// When no plugin has that name.
    pub async fn restart(&self, name: &str) -> Result<BTreeMap<String, Reloaded>, ReloadError> {
        let by_driver = self.host.fingerprints().borrow().get(name).map(|f| f.plugin.clone());
        let plugin = by_driver.unwrap_or_else(|| name.to_owned());
        match self.host.restart(&plugin).await {
            Some(done) => Ok(BTreeMap::from([(plugin, done)])),
            None => Err(ReloadError::Unknown(format!(
                "no plugin or driver is called {name:?}; there are {}",
                self.host.plugin_names().join(", ")
            ))),
        }
    }

    fn usable(&self, name: &str) -> bool {
        (self.allowed.is_empty() || self.allowed.iter().any(|a| a == name)) && !self.denied.iter().any(|d| d == name)
    }

    /// The driver of that name, if its plugin is ready now or becomes so within `limit`. Cancel safe.
    ///
    /// # Errors
    /// Why there is none, for people.
    pub async fn get(&self, name: &str, limit: Duration) -> Result<Driver, String> {
        if !self.usable(name) {
            return Err(format!("driver {name:?} is not allowed on this node by its configuration"));
        }
        match self.host.driver(name) {
            Some(driver) => Ok(driver),
            None => self
                .host
                .wait_driver(name, limit)
                .await
                .ok_or_else(|| format!("driver {name:?} is not present on this node")),
        }
    }

    /// As [`Drivers::get`], without waiting.
    pub fn now(&self, name: &str) -> Option<Driver> {
        self.usable(name).then(|| self.host.driver(name)).flatten()
    }

    /// The driver, whether its plugin takes calls now or not.
    pub(crate) async fn at_all(&self, name: &str) -> Result<Driver, String> {
        self.get(name, self.config.patience.driver).await
    }

    /// The driver, if its plugin takes calls now or within this node's patience (`patience.driver`).
    ///
    /// # Errors
    /// Why it does not, for people.
    pub async fn in_time(&self, name: &str) -> Result<Driver, String> {
        let driver = self.at_all(name).await?;
        self.ready(&driver, 0).await.map(|()| driver)
    }

    /// Sends a signal to a run.
    ///
    /// # Errors
    /// Why the signal was not sent, for people.
    pub async fn signal(&self, name: &str, run: &str, signal: &str) -> Result<(), String> {
        let driver = self.at_all(name).await?;
        driver.signal_task(run, signal).await.map_err(|e| e.to_string())
    }

    /// Waits without a limit: the record of a run goes only after its driver has answered.
    pub async fn for_ever(&self, name: &str) -> Driver {
        loop {
            if let Ok(driver) = self.get(name, RARELY).await {
                driver.wait_ready(0).await;
                return driver;
            }
            // The configuration does not allow this driver now. Ask again rarely: the next start may allow it.
            tokio::time::sleep(RARELY).await;
        }
    }

    /// Waits for a process of the plugin that is newer than `generation`; an error says why none came in time.
    ///
    /// # Errors
    /// Why there is none: the last failure of the plugin, as a sentence.
    pub async fn ready(&self, driver: &Driver, generation: u64) -> Result<(), String> {
        let ready = tokio::time::timeout(self.config.patience.driver, driver.wait_ready(generation)).await;
        ready.map(drop).map_err(|_| unavailable(driver, "its plugin does not come up"))
    }

    /// As [`Drivers::ready`], and longer (`patience.again`) where the plugin is between two processes.
    ///
    /// # Errors
    /// As [`Drivers::ready`].
    pub async fn back(&self, driver: &Driver, generation: u64) -> Result<(), String> {
        let patience = &self.config.patience;
        let mut wait = std::pin::pin!(driver.wait_ready(generation));
        let mut there = tokio::time::timeout(patience.driver, &mut wait).await.is_ok();
        if !there && driver.comes_back() && driver.generation() > 0 {
            there = tokio::time::timeout(patience.again.saturating_sub(patience.driver), wait).await.is_ok();
        }
        if there { Ok(()) } else { Err(unavailable(driver, "its plugin does not answer")) }
    }

    /// Whether the driver comes with the agent. Such drivers make their own cgroups.
    pub(crate) fn is_builtin(&self, name: &str) -> bool {
        self.configured.lock().unwrap_or_else(PoisonError::into_inner).is_builtin(name)
    }

    /// The plugin that serves a driver, once one has declared it.
    pub fn plugin_of(&self, driver: &str) -> Option<String> {
        self.host.fingerprints().borrow().get(driver).map(|f| f.plugin.clone())
    }

    /// The host of the plugins, with all of them.
    pub fn host(&self) -> &DriverHost {
        &self.host
    }

    /// The provider that a remote driver has declared, or the plain protocol's weaker set if the driver lacks the
    /// extension.
    pub fn provider(&self, name: &str) -> Option<RemoteProvider> {
        self.host.fingerprints().borrow().get(name).and_then(provider)
    }

    /// The device plugin that offers a group of this node, by the group's id; `None` = none does (any more).
    pub(crate) fn device(&self, group: &str) -> Option<Device> {
        let fingerprints = self.host.fingerprints().borrow().clone();
        let name = offers::offered_by(&fingerprints, group)?;
        self.host.device(name)
    }

    /// How long a plugin that is between two processes may take.
    pub(crate) fn patience(&self) -> Duration {
        self.config.patience.driver
    }

    /// Ends the plugin processes. Tasks continue.
    pub async fn shutdown(&self) {
        self.host.shutdown(Ending::Stop).await;
        cgroup::remove_of_plugins(&self.config.names_on_this_machine());
    }

    /// The known schemas of the drivers, as the servers get them. A driver that is down keeps its schema.
    pub fn schemas(&self, fingerprints: &BTreeMap<String, DriverFingerprint>) -> Vec<DriverSchema> {
        let usable = fingerprints.iter().filter(|(name, f)| f.devices.is_none() && self.usable(name));
        let told = usable.filter_map(|(name, f)| {
            let schema_json = serde_json::to_vec(&self.host.driver(name)?.task_config_document()?).ok()?;
            if schema_json.len() > SCHEMA_BYTES_MAX {
                tracing::debug!(
                    driver = name,
                    bytes = schema_json.len(),
                    "a schema is too large to be told to the servers"
                );
                return None;
            }
            Some(DriverSchema { driver: name.clone(), version: f.version.clone(), schema_json })
        });
        told.take(SCHEMAS_MAX).collect()
    }

    /// Puts the drivers' fingerprints into the node. True when anything has changed.
    pub fn merge(&self, fingerprints: &BTreeMap<String, DriverFingerprint>, node: &mut Node) -> bool {
        let mut drivers = Map::new();
        let mut attributes: Attributes = node
            .attributes
            .iter()
            .filter(|(k, _)| !k.starts_with("driver."))
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect();
        let mut devices = Vec::new();
        for (name, f) in fingerprints {
            if let Some(groups) = &f.devices {
                offers::offer(name, groups, &mut devices);
                continue;
            }
            if !self.usable(name) {
                continue;
            }
            let mut info = DriverInfo {
                attributes: f.attributes.iter().map(|(k, v)| (k.as_str().into(), v.as_str().into())).collect(),
                detected: f.detected,
                healthy: f.healthy,
                health_description: f.description.clone(),
                update_time: String::new(),
                remote: provider(f),
            };
            if f.detected {
                info.attributes.insert(format!("driver.{name}").into(), "1".into());
                attributes.insert(format!("driver.{name}").into(), "1".into());
            }
            attributes.extend(
                f.attributes.iter().filter(|(_, v)| !v.is_empty()).map(|(k, v)| (k.as_str().into(), v.as_str().into())),
            );
            // Keep the time of an unchanged answer, so that a periodic fingerprint does not change the node.
            match node.drivers.get(name) {
                Some(old) if (DriverInfo { update_time: String::new(), ..old.clone() }) == info => {
                    info.update_time.clone_from(&old.update_time)
                }
                _ => info.update_time = jiff::Timestamp::now().to_string(),
            }
            drivers.insert(name.clone(), info);
        }
        let changed = node.drivers != drivers || node.attributes != attributes || node.resources.devices != devices;
        node.resources.devices = devices;
        node.drivers = drivers;
        node.attributes = attributes;
        changed
    }
}

impl Plugins for Drivers {
    fn names(&self) -> Vec<String> {
        self.host().plugin_names()
    }

    fn socket_dir(&self) -> PathBuf {
        self.host().socket_dir().to_owned()
    }

    fn marked(&self, of: Vec<u32>) -> HashMap<i32, Belongs> {
        let marked = self.host().marked(of).into_iter();
        marked.map(|m| (m.pid, Belongs::Plugin { name: m.plugin, known: m.known })).collect()
    }
}

fn provider(f: &DriverFingerprint) -> Option<RemoteProvider> {
    let no_signals = f.capabilities.as_ref().is_some_and(|c| !c.send_signals);
    match &f.remote {
        Some(d) => Some(RemoteProvider {
            provider: d.provider.clone(),
            keyed_create: d.keyed_create,
            find: d.find,
            list: d.list,
            list_owners: d.list_owners,
            conditional_writes: d.conditional_writes,
            retained_exit_results: d.retained_exit_results,
            seal: d.seal,
            plain_protocol: false,
            no_files: !d.file_upload,
            refresh: d.refresh,
            volumes: d.volumes,
            no_signals,
            handle_schema_min: d.handle_schema_min,
            handle_schema_max: d.handle_schema_max,
            pool_cpu: d.pool_cpu_mhz,
            pool_memory_mb: d.pool_memory_mib,
            stale_seconds: d.stale_seconds,
        }),
        // The driver's name stands for the provider: a driver without the extension tells no better one.
        None if f.capabilities.as_ref().is_some_and(|c| c.remote_tasks) => Some(RemoteProvider {
            provider: format!("plain:{}", f.plugin),
            plain_protocol: true,
            no_files: true,
            no_signals,
            ..RemoteProvider::default()
        }),
        None => None,
    }
}

/// The plugins that the operator configures, which may change while the node runs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ConfiguredPlugins {
    /// Drivers that come with the agent.
    pub builtin: Vec<PluginCommand>,
    /// Directory of external plugins.
    pub dir: Option<PathBuf>,
    /// `plugin` blocks by name.
    pub blocks: BTreeMap<String, PluginSettings>,
}

impl ConfiguredPlugins {
    /// The configuration of a node at its start.
    #[must_use]
    pub fn of(config: &ClientConfig) -> Self {
        Self { builtin: config.builtin_drivers.clone(), dir: config.plugin_dir.clone(), blocks: config.plugins.clone() }
    }

    fn is_builtin(&self, name: &str) -> bool {
        self.builtin.iter().any(|b| b.name == name)
    }
}

/// All plugins to run: built-in ones, and the files of the directory that have a block.
fn plugins(
    config: &ClientConfig,
    wanted: &ConfiguredPlugins,
    within: &BTreeMap<String, Within>,
    allowed: &[String],
    denied: &[String],
) -> Result<Vec<PluginSpec>, String> {
    let usable =
        |name: &str| (allowed.is_empty() || allowed.iter().any(|a| a == name)) && !denied.iter().any(|d| d == name);
    let mut specs: Vec<PluginSpec> = wanted
        .builtin
        .iter()
        .filter(|p| usable(&p.name))
        .map(|p| PluginSpec { within: within.get(&p.name).cloned(), ..builtin(p, config, wanted.blocks.get(&p.name)) })
        .collect();
    let external = wanted.blocks.iter().filter(|(name, _)| !wanted.is_builtin(name));
    let blocks: BTreeMap<String, PluginBlock> = external
        .map(|(name, s)| (name.clone(), PluginBlock { args: s.args.clone(), config: s.config.clone() }))
        .collect();
    let unreadable = |e| format!("read {}: {e}", wanted.dir.as_deref().unwrap_or(Path::new("plugin_dir")).display());
    let (found, notes) = discover(wanted.dir.as_deref(), &blocks).map_err(unreadable)?;
    for note in notes {
        tracing::warn!("{note}");
    }
    let node = config.name_on_this_machine();
    specs.extend(found.into_iter().map(|spec| {
        let procs = cgroup::for_plugin(&node, &spec.name);
        let keeper = if procs.is_none() { keeper(config) } else { None };
        PluginSpec { procs, keeper, ..spec }
    }));
    Ok(specs)
}

/// The keeper program for plugins without a cgroup: it adopts the orphans of what they start.
fn keeper(config: &ClientConfig) -> Option<PathBuf> {
    let installed = executor_client::install(&config.executors_dir());
    installed
        .inspect_err(|error| {
            tracing::warn!(%error, "what plugins start is not kept below them: orphans of theirs are known by \
                other ways only")
        })
        .ok()
}

fn list(given: &[String], config: &ClientConfig, option: &str) -> Vec<String> {
    let mut all = given.to_vec();
    if let Some(text) = config.options.get(option) {
        all.extend(text.split(',').map(|t| t.trim().to_owned()).filter(|t| !t.is_empty()));
    }
    all
}

fn builtin(plugin: &PluginCommand, config: &ClientConfig, settings: Option<&PluginSettings>) -> PluginSpec {
    let mut args = plugin.args.clone();
    args.extend(settings.map(|s| s.args.clone()).unwrap_or_default());
    PluginSpec {
        name: plugin.name.clone(),
        command: plugin.program.clone(),
        args,
        config: settings.and_then(|s| s.config.clone()),
        builtin: true,
        // Drivers and log collectors share one copy of the executor, which outlives all of them.
        env: BTreeMap::from([("DROVER_EXECUTOR_DIR".to_owned(), config.executors_dir().display().to_string())]),
        // Its executors put their workloads into cgroups of their own.
        procs: None,
        keeper: None,
        within: None,
    }
}

fn topology(config: &ClientConfig, facts: &Facts) -> Topology {
    Topology {
        cores: facts
            .cpu
            .cores
            .iter()
            .map(|c| Core {
                id: u32::from(c.id),
                socket: u32::from(c.socket),
                node: u32::from(c.numa),
                efficiency: false,
                disabled: facts.cpu.kept.contains(&c.id),
                base_mhz: c.base_mhz,
                max_mhz: c.max_mhz,
                guess_mhz: c.mhz(),
            })
            .collect(),
        distances: Vec::new(),
        override_total_mhz: config.cpu_total_compute,
        override_withheld_mhz: config.reserved.cpu,
    }
}

//! The drivers of this node: which plugins are run, and what they tell about themselves as part of the node.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use driver_host::{
    AgentConfig, Core, Driver, DriverFingerprint, DriverHost, Ending, HostOptions, PluginBlock, PluginSpec, Reloaded, Topology, discover,
};
use model::{
    Map,
    node::{Attributes, DriverInfo, Node, RemoteProvider},
};

use crate::{
    config::{ClientConfig, PluginCommand, PluginSettings},
    error::{RequestError, StartError},
    fingerprint::Facts,
};

/// The plugin host with this node's rules about which drivers may be used.
pub(crate) struct Drivers {
    host: DriverHost,
    config: Arc<ClientConfig>,
    configured: Mutex<ConfiguredPlugins>,
    allowed: Vec<String>,
    denied: Vec<String>,
}

impl Drivers {
    /// Starts every plugin in the background. Must be called within a runtime.
    pub(crate) fn start(config: &Arc<ClientConfig>, facts: &Facts) -> Result<Self, StartError> {
        let allowed = list(&config.driver_allowlist, config, "driver.allowlist");
        let denied = list(&config.driver_denylist, config, "driver.denylist");
        let configured = ConfiguredPlugins::of(config);
        let mut options = HostOptions::new(Vec::new(), config.plugin_socket_dir(), config.plugin_state_dir());
        options.plugins = plugins(config, &configured, &allowed, &denied).map_err(StartError::Drivers)?;
        options.agent = AgentConfig { port_min: config.plugin_ports.0, port_max: config.plugin_ports.1, topology: topology(config, facts) };
        let host = DriverHost::start(options).map_err(|e| StartError::Drivers(e.to_string()))?;
        Ok(Self { host, config: config.clone(), configured: Mutex::new(configured), allowed, denied })
    }

    /// Looks at the plugins again, as they are configured now; `configured` replaces what was configured before.
    pub(crate) async fn reload(&self, configured: Option<ConfiguredPlugins>) -> Result<BTreeMap<String, Reloaded>, RequestError> {
        let specs = {
            let mut known = self.configured.lock().unwrap_or_else(PoisonError::into_inner);
            let wanted = configured.unwrap_or_else(|| known.clone());
            let specs = plugins(&self.config, &wanted, &self.allowed, &self.denied).map_err(RequestError::Failed)?;
            *known = wanted;
            specs
        };
        self.host.reload(specs).await.map_err(|e| RequestError::Invalid(e.to_string()))
    }

    /// Replaces the process of one plugin, named by itself or by its driver, whether it has changed or not.
    pub(crate) async fn restart(&self, name: &str) -> Result<BTreeMap<String, Reloaded>, RequestError> {
        let by_driver = self.host.fingerprints().borrow().get(name).map(|f| f.plugin.clone());
        let plugin = by_driver.unwrap_or_else(|| name.to_owned());
        match self.host.restart(&plugin).await {
            Some(done) => Ok(BTreeMap::from([(plugin, done)])),
            None => Err(RequestError::NotFound(format!(
                "no plugin or driver is called {name:?}; there are {}",
                self.host.plugin_names().join(", ")
            ))),
        }
    }

    fn usable(&self, name: &str) -> bool {
        (self.allowed.is_empty() || self.allowed.iter().any(|a| a == name)) && !self.denied.iter().any(|d| d == name)
    }

    /// The driver of that name, when its plugin is there or comes within `limit`.
    pub(crate) async fn get(&self, name: &str, limit: Duration) -> Result<Driver, String> {
        if !self.usable(name) {
            return Err(format!("driver {name:?} is not allowed on this node by its configuration"));
        }
        match self.host.driver(name) {
            Some(driver) => Ok(driver),
            None => self.host.wait_driver(name, limit).await.ok_or_else(|| format!("driver {name:?} is not present on this node")),
        }
    }

    /// As [`Drivers::get`], without waiting.
    pub(crate) fn now(&self, name: &str) -> Option<Driver> {
        self.usable(name).then(|| self.host.driver(name)).flatten()
    }

    /// Whether the driver comes with the agent. Such drivers make their own cgroups.
    pub(crate) fn is_builtin(&self, name: &str) -> bool {
        self.configured.lock().unwrap_or_else(PoisonError::into_inner).is_builtin(name)
    }

    pub(crate) fn host(&self) -> &DriverHost {
        &self.host
    }

    /// What a remote driver has declared; the plain protocol's weaker set when it knows no extension.
    pub(crate) fn provider(&self, name: &str) -> Option<RemoteProvider> {
        self.host.fingerprints().borrow().get(name).and_then(provider)
    }

    /// Ends the plugin processes; tasks go on.
    pub(crate) async fn shutdown(&self) {
        self.host.shutdown(Ending::Stop).await;
    }

    /// Puts what is known of the drivers into the node. True when anything has changed.
    pub(crate) fn merge(&self, fingerprints: &BTreeMap<String, DriverFingerprint>, node: &mut Node) -> bool {
        let mut drivers = Map::new();
        let mut attributes: Attributes =
            node.attributes.iter().filter(|(k, _)| !k.starts_with("driver.")).map(|(k, v)| (k.clone(), v.clone())).collect();
        for (name, f) in fingerprints {
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
            attributes.extend(f.attributes.iter().filter(|(_, v)| !v.is_empty()).map(|(k, v)| (k.as_str().into(), v.as_str().into())));
            // The time of an unchanged answer stays, so that a periodic fingerprint is no change of the node.
            match node.drivers.get(name) {
                Some(old) if (DriverInfo { update_time: String::new(), ..old.clone() }) == info => {
                    info.update_time.clone_from(&old.update_time)
                }
                _ => info.update_time = jiff::Timestamp::now().to_string(),
            }
            drivers.insert(name.clone(), info);
        }
        let changed = node.drivers != drivers || node.attributes != attributes;
        node.drivers = drivers;
        node.attributes = attributes;
        changed
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
        }),
        // The driver's name stands for the runtime: nothing better is known of a driver without the extension.
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

/// What the operator wants to be run, which may change while the node runs.
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
    /// What a node is configured with at its start.
    #[must_use]
    pub fn of(config: &ClientConfig) -> Self {
        Self { builtin: config.builtin_drivers.clone(), dir: config.plugin_dir.clone(), blocks: config.plugins.clone() }
    }

    fn is_builtin(&self, name: &str) -> bool {
        self.builtin.iter().any(|b| b.name == name)
    }
}

/// All plugins to run: built-in ones, and the files of the directory that have a block.
fn plugins(config: &ClientConfig, wanted: &ConfiguredPlugins, allowed: &[String], denied: &[String]) -> Result<Vec<PluginSpec>, String> {
    let usable = |name: &str| (allowed.is_empty() || allowed.iter().any(|a| a == name)) && !denied.iter().any(|d| d == name);
    let mut specs: Vec<PluginSpec> =
        wanted.builtin.iter().filter(|p| usable(&p.name)).map(|p| builtin(p, config, wanted.blocks.get(&p.name))).collect();
    let external = wanted.blocks.iter().filter(|(name, _)| !wanted.is_builtin(name));
    let blocks: BTreeMap<String, PluginBlock> =
        external.map(|(name, s)| (name.clone(), PluginBlock { args: s.args.clone(), config: s.config.clone() })).collect();
    let unreadable = |e| format!("read {}: {e}", wanted.dir.as_deref().unwrap_or(Path::new("plugin_dir")).display());
    let (found, notes) = discover(wanted.dir.as_deref(), &blocks).map_err(unreadable)?;
    for note in notes {
        tracing::warn!("{note}");
    }
    specs.extend(found);
    Ok(specs)
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
        // One copy of the executor for drivers and log collectors; it outlives all of them.
        env: BTreeMap::from([("DROVER_EXECUTOR_DIR".to_owned(), config.state_dir.join("bin").display().to_string())]),
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
                disabled: false,
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

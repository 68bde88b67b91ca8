//! What the agent tells the node at its start. Text has been parsed and checked by the agent's configuration; here are values only.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use model::node::HostVolume;

/// Settings of a node.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// Where the node keeps its identity, its records and the sockets of plugins. Created with mode 0700.
    pub state_dir: PathBuf,
    /// Where allocations have their directories.
    pub alloc_dir: PathBuf,
    /// Name of the node; unique by habit, the host name by default.
    pub node_name: String,
    /// Region.
    pub region: String,
    /// Datacenter.
    pub datacenter: String,
    /// Node pool; `default` when the operator names none.
    pub node_pool: String,
    /// Node class; may be empty.
    pub node_class: String,
    /// Free metadata that jobs constrain on.
    pub meta: BTreeMap<String, String>,
    /// Servers' node RPC addresses, `host:port`, tried in turn.
    pub servers: Vec<String>,
    /// Address of this agent's HTTP API as other agents and people reach it, `host:port`; empty = not reachable.
    pub http_addr: String,
    /// Interface whose addresses tasks get; empty = the one of the default route, or loopback.
    pub network_interface: String,
    /// Further networks that ports may name with `host_network`.
    pub host_networks: BTreeMap<String, HostNetwork>,
    /// Networks of groups that are not connected as their host is.
    pub network: NetworkConfig,
    /// What the node keeps for itself.
    pub reserved: Reserved,
    /// Total MHz instead of what was measured; 0 = measured.
    pub cpu_total_compute: u64,
    /// Total MiB instead of what was measured; 0 = measured.
    pub memory_total_mb: u64,
    /// Total MiB of disk instead of what was measured; 0 = measured.
    pub disk_total_mb: u64,
    /// Directories that jobs may mount, by name.
    pub host_volumes: BTreeMap<String, HostVolume>,
    /// Drivers that come with this binary: name and the command that serves them.
    pub builtin_drivers: Vec<PluginCommand>,
    /// Directory of further plugins; only files with a block in `plugins` are run.
    pub plugin_dir: Option<PathBuf>,
    /// Operator's settings of plugins, by file name or built-in driver name.
    pub plugins: BTreeMap<String, PluginSettings>,
    /// Drivers that may be used; empty = all.
    pub driver_allowlist: Vec<String>,
    /// Drivers that may not be used.
    pub driver_denylist: Vec<String>,
    /// Free options with Nomad's names; those that the node knows are listed at [`KNOWN_OPTIONS`], the agent's configuration takes others out and says so.
    pub options: BTreeMap<String, String>,
    /// How artifacts are fetched.
    pub artifacts: ArtifactConfig,
    /// How templates are rendered.
    pub templates: TemplateConfig,
    /// Collection of allocations that have ended.
    pub gc: GcConfig,
    /// How often resource use is sampled where somebody asks for a series.
    pub telemetry_interval: Duration,
    /// Longest kill_timeout that a job gets.
    pub max_kill_timeout: Duration,
    /// Ports given dynamically, inclusive.
    pub dynamic_ports: (u16, u16),
    /// Remote tasks that this node manages at most; 0 = no limit.
    pub remote_sessions: u32,
    /// No commands are run in tasks for people.
    pub disable_remote_exec: bool,
    /// The node comes ineligible, when the servers do not know it yet.
    pub default_ineligible: bool,
    /// Ports given to plugins that cannot listen on unix sockets, inclusive.
    pub plugin_ports: (u16, u16),
    /// How long drivers are waited for.
    pub patience: Patience,
    /// Stop local tasks when the node is stopped for good (`leave_on_terminate` and dev agents). Remote instances are never touched.
    pub stop_tasks_on_stop: bool,
    /// Version of this build, as nodes show it.
    pub version: String,
    /// Version of the system that we are compatible with, told as `nomad.version`.
    pub nomad_version: String,
}

/// How long drivers are waited for before the node does without them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Patience {
    /// A plugin that is coming up.
    pub driver: Duration,
    /// Pauses before further attempts to stop a task whose driver refuses; then it is destroyed.
    pub stop: Vec<Duration>,
    /// Pauses of a driver that could not free an ended task: the first, and the longest. They double.
    pub owed: (Duration, Duration),
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            driver: Duration::from_secs(20),
            stop: [5, 20, 80, 120, 120].map(Duration::from_secs).to_vec(),
            owed: (Duration::from_secs(5), Duration::from_secs(300)),
        }
    }
}

/// Options that the node understands.
pub const KNOWN_OPTIONS: &[&str] =
    &["driver.allowlist", "driver.denylist", "env.denylist", "user.denylist", "user.checked_drivers", "fingerprint.denylist"];

/// A network of the host, by which jobs choose addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostNetwork {
    /// Only addresses inside this range; empty = any.
    pub cidr: String,
    /// Only this interface; empty = any.
    pub interface: String,
    /// Ports that are not given out, as ranges.
    pub reserved_ports: String,
}

/// Networks of groups that are not connected as their host is: CNI plugins, and the bridge that they make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkConfig {
    /// Directories of CNI plugins, the first that has one counts.
    pub cni_path: Vec<PathBuf>,
    /// Directory of the operator's networks, for mode `cni/NAME`.
    pub cni_config_dir: PathBuf,
    /// The bridge of mode `bridge`; also the name of its network.
    pub bridge_name: String,
    /// Addresses of mode `bridge`, IPv4 as `a.b.c.d/n`.
    pub bridge_subnet: String,
    /// A namespace reaches itself by the host's ports.
    pub bridge_hairpin: bool,
}

impl Default for NetworkConfig {
    fn default() -> Self {
        Self {
            cni_path: vec!["/opt/cni/bin".into()],
            cni_config_dir: "/opt/cni/config".into(),
            bridge_name: "nomad".into(),
            bridge_subnet: "172.26.64.0/20".into(),
            bridge_hairpin: false,
        }
    }
}

/// What a node keeps for itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reserved {
    /// MHz.
    pub cpu: u64,
    /// MiB.
    pub memory_mb: u64,
    /// MiB.
    pub disk_mb: u64,
    /// Ports, as ranges such as `22,80,8500-8600`.
    pub ports: String,
}

/// A plugin that comes with the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginCommand {
    /// Name of the driver.
    pub name: String,
    /// Program.
    pub program: PathBuf,
    /// Arguments.
    pub args: Vec<String>,
}

/// The operator's `plugin "x" { … }` block.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PluginSettings {
    /// Arguments of the plugin.
    pub args: Vec<String>,
    /// `config { … }` without a schema, blocks as lists of maps; None = no block.
    pub config: Option<serde_json::Value>,
}

/// How artifacts are fetched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArtifactConfig {
    /// Program and arguments that serve one fetch, see [`artifact::serve`]; `None` = artifacts cannot be fetched.
    pub program: Option<PluginCommand>,
    /// Bounds of a fetch.
    pub limits: artifact::Limits,
    /// Keep the fetching process to the directories that it needs, where the kernel can.
    pub isolate: bool,
    /// Further paths that it may use; directories among them that may be read are what `file` sources may name.
    pub extra_paths: Vec<artifact::ExtraPath>,
    /// Variables of the agent that it gets.
    pub environment: Vec<String>,
}

impl Default for ArtifactConfig {
    fn default() -> Self {
        Self { program: None, limits: artifact::Limits::default(), isolate: true, extra_paths: Vec::new(), environment: Vec::new() }
    }
}

/// How templates are rendered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TemplateConfig {
    /// Functions that templates may not call.
    pub function_denylist: Vec<String>,
    /// The function `file` reads whatever the agent may read.
    pub disable_file_sandbox: bool,
    /// How often missing data and files that templates have read are looked at.
    pub poll: Duration,
    /// Quiet time after a change and longest wait, for templates that do not say.
    pub wait: (Duration, Duration),
    /// Least quiet time and longest wait of any template that waits; `None` = as the job says.
    pub wait_bounds: (Option<Duration>, Option<Duration>),
}

impl Default for TemplateConfig {
    fn default() -> Self {
        Self {
            function_denylist: ["plugin", "writeToFile"].map(str::to_owned).to_vec(),
            disable_file_sandbox: false,
            poll: Duration::from_secs(3),
            wait: (Duration::ZERO, Duration::ZERO),
            wait_bounds: (None, None),
        }
    }
}

/// When ended allocations lose their directories.
#[derive(Clone, Debug, PartialEq)]
pub struct GcConfig {
    /// How often the node looks.
    pub interval: Duration,
    /// Percent of used disk at which ended allocations are collected.
    pub disk_usage_threshold: f64,
    /// Percent of used inodes at which ended allocations are collected.
    pub inode_usage_threshold: f64,
    /// Allocations, ended ones included, above which ended ones are collected.
    pub max_allocs: usize,
}

impl Default for GcConfig {
    fn default() -> Self {
        Self { interval: Duration::from_secs(60), disk_usage_threshold: 80.0, inode_usage_threshold: 70.0, max_allocs: 50 }
    }
}

impl ClientConfig {
    /// Defaults as Nomad documents them, for a node that keeps everything below `data_dir`.
    #[must_use]
    pub fn new(data_dir: &std::path::Path, node_name: impl Into<String>) -> Self {
        Self {
            state_dir: data_dir.join("client"),
            alloc_dir: data_dir.join("alloc"),
            node_name: node_name.into(),
            region: "global".into(),
            datacenter: "dc1".into(),
            node_pool: "default".into(),
            node_class: String::new(),
            meta: BTreeMap::new(),
            servers: Vec::new(),
            http_addr: String::new(),
            network_interface: String::new(),
            host_networks: BTreeMap::new(),
            network: NetworkConfig::default(),
            reserved: Reserved::default(),
            cpu_total_compute: 0,
            memory_total_mb: 0,
            disk_total_mb: 0,
            host_volumes: BTreeMap::new(),
            builtin_drivers: Vec::new(),
            plugin_dir: None,
            plugins: BTreeMap::new(),
            driver_allowlist: Vec::new(),
            driver_denylist: Vec::new(),
            options: BTreeMap::new(),
            artifacts: ArtifactConfig::default(),
            templates: TemplateConfig::default(),
            gc: GcConfig::default(),
            telemetry_interval: Duration::from_secs(1),
            max_kill_timeout: Duration::from_secs(30),
            dynamic_ports: (20_000, 32_000),
            remote_sessions: 0,
            disable_remote_exec: false,
            default_ineligible: false,
            plugin_ports: (14_000, 14_512),
            patience: Patience::default(),
            stop_tasks_on_stop: false,
            version: env!("CARGO_PKG_VERSION").into(),
            nomad_version: "1.9.7".into(),
        }
    }

    /// Directory for the sockets of plugins and executors. It outlives the agent: running tasks are reached through it.
    #[must_use]
    pub fn run_dir(&self) -> PathBuf {
        self.state_dir.join("run")
    }

    /// Where plugins and their executors listen. Their environment names it, so it also tells whose they are.
    #[must_use]
    pub fn plugin_socket_dir(&self) -> PathBuf {
        self.run_dir().join("p")
    }

    /// What is remembered of plugins.
    #[must_use]
    pub fn plugin_state_dir(&self) -> PathBuf {
        self.state_dir.join("plugins")
    }

    /// Where log collectors have their state directories.
    #[must_use]
    pub fn collectors_dir(&self) -> PathBuf {
        self.run_dir().join("c")
    }

    /// Where the network namespaces of allocations are named.
    #[must_use]
    pub fn networks_dir(&self) -> PathBuf {
        self.state_dir.join("networks")
    }

    /// Names of options that this node does not know; the caller refuses them.
    #[must_use]
    pub fn unknown_options(&self) -> Vec<&str> {
        self.options.keys().map(String::as_str).filter(|k| !KNOWN_OPTIONS.contains(k)).collect()
    }
}

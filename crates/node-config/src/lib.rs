//! Settings of the node, parsed and checked by the agent.

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash, Hasher},
    os::unix::ffi::OsStrExt,
    path::PathBuf,
    time::Duration,
};

use model::node::HostVolume;
use sha2::{Digest, Sha256};

/// Settings of a node.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// Where the node keeps its identity, its records and the sockets of plugins. Created with mode 0700.
    pub state_dir: PathBuf,
    /// Directory of the allocations.
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
    /// Join secret that the node shows the servers.
    pub join: JoinWith,
    /// Introduction token that a new node shows the servers.
    pub introduction: IntroduceWith,
    /// Address of this agent's HTTP API as other agents and people reach it, `host:port`; empty = not reachable.
    pub http_addr: String,
    /// Certificates of this agent; None = no TLS.
    pub tls: Option<tls::Agent>,
    /// Interface whose addresses tasks get; empty = the one of the default route, or loopback.
    pub network_interface: String,
    /// Further networks that ports may name with `host_network`.
    pub host_networks: BTreeMap<String, HostNetwork>,
    /// Settings of the network modes `bridge` and `cni/NAME`.
    pub network: NetworkConfig,
    /// Resources that the node reserves for itself.
    pub reserved: Reserved,
    /// Total MHz instead of what was measured; 0 = measured.
    pub cpu_total_compute: u64,
    /// Total MiB instead of what was measured; 0 = measured.
    pub memory_total_mb: u64,
    /// Total MiB of disk instead of the measured value; 0 = measured.
    pub disk_total_mb: u64,
    /// MiB of disk for allocations instead of the measured free space; 0 = measured.
    pub disk_free_mb: u64,
    /// Largest number of allocations on the node; 0 = no limit.
    pub max_allocs: u32,
    /// The node's address and those of its networks are IPv6 where there are both.
    pub prefer_ipv6: bool,
    /// Directories that jobs may mount, by name.
    pub host_volumes: BTreeMap<String, HostVolume>,
    /// Directory of the volumes that plugins make.
    pub host_volumes_dir: PathBuf,
    /// Directory of executables that make host volumes.
    pub host_volume_plugin_dir: PathBuf,
    /// The servers forget the node's dynamic volumes when they forget the node.
    pub gc_volumes: bool,
    /// Drivers that come with this binary: name and the command that serves them.
    pub builtin_drivers: Vec<PluginCommand>,
    /// Directory of executables that the node asks for things; those for secrets are in `secrets` below it.
    pub common_plugin_dir: PathBuf,
    /// Directory of further plugins; only files with a block in `plugins` are run.
    pub plugin_dir: Option<PathBuf>,
    /// Operator's settings of plugins, by file name or built-in driver name.
    pub plugins: BTreeMap<String, PluginSettings>,
    /// Drivers that may be used; empty = all.
    pub driver_allowlist: Vec<String>,
    /// Drivers that may not be used.
    pub driver_denylist: Vec<String>,
    /// Free options with Nomad's names. The node reads those in [`KNOWN_OPTIONS`]; the agent's configuration removes
    /// others with a log line.
    pub options: BTreeMap<String, String>,
    /// How artifacts are fetched.
    pub artifacts: ArtifactConfig,
    /// How templates are rendered.
    pub templates: TemplateConfig,
    /// Where tasks get tokens and secrets from; None = this node has no Vault.
    pub vault: Option<vault::Vault>,
    /// Collection of allocations that have ended.
    pub gc: GcConfig,
    /// Time between two samples of resource usage.
    pub telemetry_interval: Duration,
    /// Tell in the metrics what the machine does.
    pub publish_node_metrics: bool,
    /// Tell in the metrics what each task does.
    pub publish_allocation_metrics: bool,
    /// Upper bound of a job's `kill_timeout`.
    pub max_kill_timeout: Duration,
    /// Range of dynamic ports, inclusive.
    pub dynamic_ports: (u16, u16),
    /// Largest number of remote tasks that this node manages; 0 = no limit.
    pub remote_sessions: u32,
    /// Refuse `alloc exec`.
    pub disable_remote_exec: bool,
    /// Register a new node as ineligible for scheduling.
    pub default_ineligible: bool,
    /// Ports given to plugins that cannot listen on unix sockets, inclusive.
    pub plugin_ports: (u16, u16),
    /// Time limits for drivers.
    pub patience: Patience,
    /// Stop local tasks when the node is stopped for good (`leave_on_terminate` and dev agents). Remote instances are
    /// never touched.
    pub stop_tasks_on_stop: bool,
    /// Version of this build, as nodes show it.
    pub version: String,
    /// Version of the system that we are compatible with, told as `nomad.version`.
    pub nomad_version: String,
}

/// The join secret that a node shows its servers.
#[derive(Clone, Default, PartialEq, Eq)]
pub enum JoinWith {
    /// Nothing.
    #[default]
    Nothing,
    /// This secret.
    Secret(String),
    /// The content of this file, read at each connection.
    File(PathBuf),
}

impl std::fmt::Debug for JoinWith {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Nothing => f.write_str("nothing"),
            Self::Secret(_) => f.write_str("<redacted>"),
            Self::File(path) => write!(f, "{}", path.display()),
        }
    }
}

impl JoinWith {
    /// The credential for a connection.
    ///
    /// # Errors
    /// When the file cannot be read; the text names the setting.
    pub fn credential(&self) -> Result<Option<String>, String> {
        let text = match self {
            Self::Nothing => return Ok(None),
            Self::Secret(text) => text.clone(),
            Self::File(path) => {
                std::fs::read_to_string(path).map_err(|e| format!("drover.join_secret_file {}: {e}", path.display()))?
            }
        };
        Ok(Some(format!("Bearer {}", text.trim())))
    }
}

/// The introduction token that a new node shows its servers.
#[derive(Clone, Default, PartialEq, Eq)]
pub enum IntroduceWith {
    /// The content of [`ClientConfig::introduction_file`], where it exists.
    #[default]
    File,
    /// This token.
    Token(String),
}

impl std::fmt::Debug for IntroduceWith {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::File => "file",
            Self::Token(_) => "<redacted>",
        })
    }
}

/// How long the node waits for others: its drivers, servers, readers of output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Patience {
    /// How long the node waits for a plugin at its start.
    pub driver: Duration,
    /// How long a start of a task waits for a plugin that is being restarted: longer than the longest pause between
    /// two of its processes.
    pub again: Duration,
    /// Pauses before further attempts to stop a task whose driver refuses; then it is destroyed.
    pub stop: Vec<Duration>,
    /// Pauses of a driver that could not free an ended task: the first, and the longest. They double.
    pub owed: (Duration, Duration),
    /// The allocation that shows the output of a remote task of the plain protocol; then the node reads it by itself.
    pub output: Duration,
    /// How long a new node waits for its drivers before it registers: a server that hears of the node first would find
    /// no place for a job that is registered at once. A stock node waits for up to 50 s.
    pub registration: Duration,
    /// How long final states may take to reach a server when the agent stops.
    pub flush: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            driver: Duration::from_secs(20),
            again: Duration::from_secs(90),
            stop: [5, 20, 80, 120, 120].map(Duration::from_secs).to_vec(),
            owed: (Duration::from_secs(5), Duration::from_secs(300)),
            output: Duration::from_secs(5),
            registration: Duration::from_secs(3),
            flush: Duration::from_secs(2),
        }
    }
}

/// Options that the node understands.
pub const KNOWN_OPTIONS: &[&str] = &[
    "driver.allowlist",
    "driver.denylist",
    "driver.raw_exec.enable",
    "env.denylist",
    "user.denylist",
    "user.checked_drivers",
    "fingerprint.denylist",
];

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
    /// IPv6 addresses besides, as `fd00::/64`; empty = none.
    pub bridge_subnet_ipv6: String,
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
            bridge_subnet_ipv6: String::new(),
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
    /// Which cores no task may run on.
    pub cores: Cores,
}

/// Which cores no task may run on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Cores {
    /// Tasks may run on all of them.
    #[default]
    None,
    /// On these (`reserved.cores`).
    These(Vec<u16>),
    /// On all but these (`reservable_cores`).
    Others(Vec<u16>),
}

impl Cores {
    /// Whether a core is kept from tasks.
    #[must_use]
    pub fn keep(&self, core: u16) -> bool {
        match self {
            Self::None => false,
            Self::These(kept) => kept.contains(&core),
            Self::Others(open) => !open.contains(&core),
        }
    }
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
        Self {
            program: None,
            limits: artifact::Limits::default(),
            isolate: true,
            extra_paths: Vec::new(),
            environment: Vec::new(),
        }
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
    /// Longest time for which a secret of Vault without a lease is kept unread.
    pub secrets_unread: Duration,
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
            secrets_unread: Duration::from_secs(300),
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
        Self {
            interval: Duration::from_secs(60),
            disk_usage_threshold: 80.0,
            inode_usage_threshold: 70.0,
            max_allocs: 50,
        }
    }
}

impl ClientConfig {
    /// Defaults as Nomad documents them, for a node that keeps everything below `data_dir`.
    #[must_use]
    pub fn new(data_dir: &std::path::Path, node_name: impl Into<String>) -> Self {
        Self {
            state_dir: data_dir.join("client"),
            alloc_dir: data_dir.join("alloc"),
            common_plugin_dir: data_dir.join("common_plugins"),
            host_volumes_dir: data_dir.join("host_volumes"),
            host_volume_plugin_dir: data_dir.join("host_volume_plugins"),
            node_name: node_name.into(),
            region: "global".into(),
            datacenter: "dc1".into(),
            node_pool: "default".into(),
            node_class: String::new(),
            meta: BTreeMap::new(),
            servers: Vec::new(),
            join: JoinWith::Nothing,
            introduction: IntroduceWith::File,
            http_addr: String::new(),
            tls: None,
            network_interface: String::new(),
            host_networks: BTreeMap::new(),
            network: NetworkConfig::default(),
            reserved: Reserved::default(),
            cpu_total_compute: 0,
            memory_total_mb: 0,
            disk_total_mb: 0,
            disk_free_mb: 0,
            max_allocs: 0,
            prefer_ipv6: false,
            host_volumes: BTreeMap::new(),
            gc_volumes: false,
            builtin_drivers: Vec::new(),
            plugin_dir: None,
            plugins: BTreeMap::new(),
            driver_allowlist: Vec::new(),
            driver_denylist: Vec::new(),
            options: BTreeMap::new(),
            artifacts: ArtifactConfig::default(),
            templates: TemplateConfig::default(),
            vault: None,
            gc: GcConfig::default(),
            telemetry_interval: Duration::from_secs(1),
            publish_node_metrics: false,
            publish_allocation_metrics: false,
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

    /// Whether this agent's HTTP API is served over TLS.
    #[must_use]
    pub fn serves_https(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.settings().http)
    }

    /// Where the introduction token of a new node may lie. The node removes the file once it has its identity.
    #[must_use]
    pub fn introduction_file(&self) -> PathBuf {
        self.state_dir.join("intro_token.jwt")
    }

    /// Directory for the sockets of plugins and executors. It outlives the agent: running tasks are reached through it.
    #[must_use]
    pub fn run_dir(&self) -> PathBuf {
        self.state_dir.join("run")
    }

    /// Tells this node from others of its machine, in names that have room for little.
    pub fn name_on_this_machine(&self) -> String {
        let digest = Sha256::digest(self.state_dir.as_os_str().as_bytes());
        digest[..8].iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The names by which things of this node are known: [`Self::name_on_this_machine`], and the one that former
    /// releases gave. What stands under that one is found and removed, and nothing is made under it. (Its hash is not
    /// the same in every release of Rust; that is why it was given up.)
    pub fn names_on_this_machine(&self) -> [String; 2] {
        let mut hasher = DefaultHasher::new();
        self.state_dir.hash(&mut hasher);
        [self.name_on_this_machine(), format!("{:016x}", hasher.finish())]
    }

    /// Where plugins and their executors listen. Their environment names it, so it also tells whose they are.
    #[must_use]
    pub fn plugin_socket_dir(&self) -> PathBuf {
        self.run_dir().join("p")
    }

    /// Directory of the installed executor programs.
    #[must_use]
    pub fn executors_dir(&self) -> PathBuf {
        self.state_dir.join("bin")
    }

    /// Directory of the plugins' records.
    #[must_use]
    pub fn plugin_state_dir(&self) -> PathBuf {
        self.state_dir.join("plugins")
    }

    /// Directory of the executables that have secrets of tasks.
    #[must_use]
    pub fn secrets_dir(&self) -> PathBuf {
        self.common_plugin_dir.join("secrets")
    }

    /// Where the locks of volumes are.
    #[must_use]
    pub fn volume_locks_dir(&self) -> PathBuf {
        self.state_dir.join("volume_locks")
    }

    /// Where log collectors have their state directories.
    #[must_use]
    pub fn collectors_dir(&self) -> PathBuf {
        self.run_dir().join("c")
    }

    /// Directory of the names of network namespaces.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_has_the_same_name_whatever_it_was_built_with() {
        let config = ClientConfig::new(std::path::Path::new("/var/lib/drover"), "n");
        let [now, former] = config.names_on_this_machine();
        assert_eq!((&*now, config.state_dir.to_str()), ("e84c04e9c587e4d3", Some("/var/lib/drover/client")));
        assert!(former.len() == 16 && former != now, "{former}");
    }
}

//! Plain values that cross the traits.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use driver_proto::driver;

/// Who the plugin is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PluginInfo {
    /// The driver name that jobs use.
    pub name: String,
    /// Version of the plugin (`1.2.3`); among plugins of one name the highest wins.
    pub version: String,
}

impl PluginInfo {
    /// A name and a version.
    pub fn new(name: impl Into<String>, version: impl Into<String>) -> Self {
        Self { name: name.into(), version: version.into() }
    }
}

/// What the node tells a plugin about itself; absent while a configuration is only being checked.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct AgentConfig {
    /// Lower bound of the ports that the node hands out for plugin listeners.
    pub port_min: u32,
    /// Upper bound of those ports.
    pub port_max: u32,
    /// The node's processors.
    pub topology: Option<driver_proto::base::ClientTopology>,
}

/// How a task sees the file system; decides which paths its environment names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FsIsolation {
    /// The host's paths.
    #[default]
    None,
    /// A chroot below the task directory.
    Chroot,
    /// An image of its own.
    Image,
    /// The host's paths, narrowed by the kernel.
    Unveil,
}

/// Kinds of network a task can be given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum NetworkMode {
    /// The host's network.
    Host,
    /// One namespace for the group.
    Group,
    /// A namespace per task.
    Task,
    /// No network.
    None,
}

/// What a driver offers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Capabilities {
    /// `signal_task` works.
    pub send_signals: bool,
    /// `exec_task` and `exec_streaming` work.
    pub exec: bool,
    /// How tasks see the file system.
    pub fs_isolation: FsIsolation,
    /// Supported network kinds; the host's network is always possible.
    pub network_modes: Vec<NetworkMode>,
    /// The driver creates the group's network itself.
    pub must_create_network: bool,
    /// Volumes cannot be mounted.
    pub no_mounts: bool,
    /// Tasks live outside the node and survive it.
    pub remote_tasks: bool,
    /// The driver captures and rotates logs itself, by the policy in `TaskConfig.drover_log`.
    pub disable_log_collection: bool,
    /// The driver can run tasks under users that exist only for them.
    pub dynamic_workload_users: bool,
}

/// Whether the driver can run tasks here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Health {
    /// What the driver needs is not installed here.
    Undetected,
    /// It is there and does not work.
    Unhealthy,
    /// It works.
    #[default]
    Healthy,
}

/// One look at the driver's own state.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Fingerprint {
    /// Whether tasks can run.
    pub health: Health,
    /// Why (not).
    pub description: String,
    /// Node attributes, by convention named `driver.<name>.…`. An attribute that is no longer sent disappears.
    pub attributes: BTreeMap<String, String>,
}

impl Fingerprint {
    /// Works, without attributes.
    pub fn healthy() -> Self {
        Self { health: Health::Healthy, description: "Healthy".into(), attributes: BTreeMap::new() }
    }

    /// Present and not working.
    pub fn unhealthy(why: impl Into<String>) -> Self {
        Self { health: Health::Unhealthy, description: why.into(), attributes: BTreeMap::new() }
    }

    /// Not present.
    pub fn undetected(why: impl Into<String>) -> Self {
        Self { health: Health::Undetected, description: why.into(), attributes: BTreeMap::new() }
    }

    /// Adds an attribute.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, value: impl ToString) -> Self {
        self.attributes.insert(name.into(), value.to_string());
        self
    }
}

/// Address of a task that differs from its node's.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NetworkOverride {
    /// Port label → port.
    pub port_map: BTreeMap<String, i32>,
    /// IP address.
    pub address: String,
    /// Services advertise this address by default.
    pub auto_advertise: bool,
}

impl From<NetworkOverride> for driver::NetworkOverride {
    fn from(value: NetworkOverride) -> Self {
        Self { port_map: value.port_map, addr: value.address, auto_advertise: value.auto_advertise }
    }
}

/// A started task.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Started {
    /// What `recover_task` needs to find it again; make it with [`crate::handle::encode`]. Kept by the host, no secrets.
    pub driver_state: Vec<u8>,
    /// Version of `driver_state`'s layout, at least 1.
    pub version: u16,
    /// Where the task is reached, if not on the node's address.
    pub network: Option<NetworkOverride>,
}

/// How a task ended.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TaskExit {
    /// Exit code; 128 + n after signal n; -1 when nobody can know it any more.
    pub exit_code: i32,
    /// The signal that ended it, or 0.
    pub signal: i32,
    /// The kernel ended it for want of memory.
    pub oom_killed: bool,
    /// Something went wrong besides; a non-empty text makes the exit a failure.
    pub error: Option<String>,
}

impl TaskExit {
    /// Ended by itself.
    pub fn code(exit_code: i32) -> Self {
        Self { exit_code, ..Self::default() }
    }

    /// Ended by a signal.
    pub fn signal(signal: i32) -> Self {
        Self { exit_code: 128 + signal, signal, ..Self::default() }
    }
}

impl From<&TaskExit> for driver::ExitResult {
    fn from(exit: &TaskExit) -> Self {
        Self { exit_code: exit.exit_code, signal: exit.signal, oom_killed: exit.oom_killed }
    }
}

/// A stop order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StopTask {
    /// `SIGTERM`…; empty = the driver's default; [`crate::DETACH_SIGNAL`] = stop managing, do not stop the task.
    pub signal: String,
    /// How long to wait between the signal and killing the whole tree.
    pub timeout: Duration,
}

/// Whether a task runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TaskStatus {
    /// Cannot be said now.
    #[default]
    Unknown,
    /// Runs.
    Running,
    /// Has ended and was not destroyed yet.
    Exited,
}

/// What `inspect_task` reports.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Inspection {
    /// Task id.
    pub id: String,
    /// Task name.
    pub name: String,
    /// Whether it runs.
    pub status: TaskStatus,
    /// When it started.
    pub started_at: Option<SystemTime>,
    /// When it ended.
    pub completed_at: Option<SystemTime>,
    /// How it ended.
    pub exit: Option<TaskExit>,
    /// Facts for people.
    pub attributes: BTreeMap<String, String>,
    /// Where the task is reached.
    pub network: Option<NetworkOverride>,
}

/// Output of a finished command inside a task.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ExecOutput {
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error.
    pub stderr: Vec<u8>,
    /// How the command ended.
    pub exit: TaskExit,
}

/// Processor use; what was not measured stays `None`.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct CpuUsage {
    /// Kernel mode, percent of one core.
    pub system_mode: Option<f64>,
    /// User mode, percent of one core.
    pub user_mode: Option<f64>,
    /// MHz.
    pub total_ticks: Option<f64>,
    /// Periods in which the task was held back.
    pub throttled_periods: Option<u64>,
    /// Time held back, nanoseconds.
    pub throttled_time: Option<u64>,
    /// 100 = one full core.
    pub percent: Option<f64>,
}

/// Memory use in bytes; what was not measured stays `None`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MemoryUsage {
    /// Resident set.
    pub rss: Option<u64>,
    /// Page cache.
    pub cache: Option<u64>,
    /// Peak of `usage`.
    pub max_usage: Option<u64>,
    /// Kernel memory.
    pub kernel_usage: Option<u64>,
    /// Peak of kernel memory.
    pub kernel_max_usage: Option<u64>,
    /// All that is charged.
    pub usage: Option<u64>,
    /// Swap.
    pub swap: Option<u64>,
}

/// Resource use of one process or of a whole task.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Usage {
    /// Processor.
    pub cpu: CpuUsage,
    /// Memory.
    pub memory: MemoryUsage,
}

/// One sample of a task's resource use.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TaskUsage {
    /// When it was taken; now, if absent.
    pub at: Option<SystemTime>,
    /// The task as a whole.
    pub total: Usage,
    /// By process id.
    pub by_pid: BTreeMap<u32, Usage>,
}

//! Values in the calls of the driver traits.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

pub use driver_proto::values::{
    Capabilities, ExecOutput, FsIsolation, Inspection, NetworkMode, NetworkOverride, TaskExit, TaskStatus,
};

/// Identity of the plugin.
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

/// Facts about the node; absent while a host only checks a configuration.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct AgentConfig {
    /// Lower bound of the ports that the node hands out for plugin listeners.
    pub port_min: u32,
    /// Upper bound of those ports.
    pub port_max: u32,
    /// The node's processors.
    pub topology: Option<driver_proto::base::ClientTopology>,
}

/// Whether the driver can run tasks here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Health {
    /// The driver's requirements are not installed here.
    Undetected,
    /// It is installed, but does not work.
    Unhealthy,
    /// It works.
    #[default]
    Healthy,
}

/// Health and attributes of the driver.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Fingerprint {
    /// Whether tasks can run.
    pub health: Health,
    /// Reason, for people.
    pub description: String,
    /// Node attributes, by convention named `driver.<name>.…`. An attribute that is no longer sent disappears.
    pub attributes: BTreeMap<String, String>,
}

impl Fingerprint {
    /// A healthy fingerprint without attributes.
    pub fn healthy() -> Self {
        Self { health: Health::Healthy, description: "Healthy".into(), attributes: BTreeMap::new() }
    }

    /// An unhealthy fingerprint with its reason.
    pub fn unhealthy(why: impl Into<String>) -> Self {
        Self { health: Health::Unhealthy, description: why.into(), attributes: BTreeMap::new() }
    }

    /// An undetected driver with the reason.
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

/// A started task.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Started {
    /// The state for `recover_task`; make it with [`crate::handle::encode`]. The host stores it: no secrets.
    pub driver_state: Vec<u8>,
    /// Version of `driver_state`'s layout, at least 1.
    pub version: u16,
    /// Address of the task, if it differs from the node's.
    pub network: Option<NetworkOverride>,
}

/// A stop order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StopTask {
    /// `SIGTERM`…; empty = the driver's default; [`crate::DETACH_SIGNAL`] = stop managing, do not stop the task.
    pub signal: String,
    /// How long to wait between the signal and killing the whole tree.
    pub timeout: Duration,
}

/// Processor use; unmeasured values are `None`.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct CpuUsage {
    /// Kernel mode, percent of one core.
    pub system_mode: Option<f64>,
    /// User mode, percent of one core.
    pub user_mode: Option<f64>,
    /// CPU use in MHz.
    pub total_ticks: Option<f64>,
    /// Periods in which the kernel throttled the task.
    pub throttled_periods: Option<u64>,
    /// Throttled time in nanoseconds.
    pub throttled_time: Option<u64>,
    /// 100 = one full core.
    pub percent: Option<f64>,
}

/// Memory use in bytes; unmeasured values are `None`.
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
    /// All memory charged to the task.
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

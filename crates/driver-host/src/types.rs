//! What calls answer, in the node's words.

use std::collections::BTreeMap;
use std::time::SystemTime;

use driver_proto::driver::{self, DriverCapabilities, TaskHandle};
use driver_proto::{build, remote};
use prost::Message;

/// How tasks of a driver see the file system.
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
    /// Signals can be sent.
    pub send_signals: bool,
    /// Commands can be run beside a task.
    pub exec: bool,
    /// How tasks see the file system.
    pub fs_isolation: FsIsolation,
    /// Supported networks; the host's is always possible.
    pub network_modes: Vec<NetworkMode>,
    /// The driver creates the group's network.
    pub must_create_network: bool,
    /// Volumes cannot be mounted.
    pub no_mounts: bool,
    /// Tasks live outside the node.
    pub remote_tasks: bool,
    /// The driver captures logs itself: no fifos, no collector.
    pub disable_log_collection: bool,
    /// Tasks can run under users that exist only for them.
    pub dynamic_workload_users: bool,
}

impl From<DriverCapabilities> for Capabilities {
    fn from(wire: DriverCapabilities) -> Self {
        use driver::driver_capabilities::{FsIsolation as Fs, MountConfigs};
        use driver::network_isolation_spec::NetworkIsolationMode as Mode;
        // A value that this host does not know is treated as the least demanding one.
        let fs_isolation = match wire.fs_isolation() {
            Fs::None => FsIsolation::None,
            Fs::Chroot => FsIsolation::Chroot,
            Fs::Image => FsIsolation::Image,
            Fs::Unveil => FsIsolation::Unveil,
        };
        let known = |mode: &i32| match Mode::try_from(*mode).ok()? {
            Mode::Host => Some(NetworkMode::Host),
            Mode::Group => Some(NetworkMode::Group),
            Mode::Task => Some(NetworkMode::Task),
            Mode::None => Some(NetworkMode::None),
        };
        Self {
            send_signals: wire.send_signals,
            exec: wire.exec,
            fs_isolation,
            network_modes: wire.network_isolation_modes.iter().filter_map(known).collect(),
            must_create_network: wire.must_create_network,
            no_mounts: wire.mount_configs() == MountConfigs::NoMounts,
            remote_tasks: wire.remote_tasks,
            disable_log_collection: wire.disable_log_collection,
            dynamic_workload_users: wire.dynamic_workload_users,
        }
    }
}

/// Which runtime a remote driver reaches and what it has there.
pub type Description = remote::DescribeResponse;

/// The newest known state of a driver, or of a plugin that never said which driver it is.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct DriverFingerprint {
    /// The plugin's file name.
    pub plugin: String,
    /// The plugin's version.
    pub version: String,
    /// What the driver needs is present.
    pub detected: bool,
    /// Tasks can run.
    pub healthy: bool,
    /// The present process has sent a fingerprint, or the plugin has failed: this is no longer the blank beginning.
    pub settled: bool,
    /// Why (not).
    pub description: String,
    /// Node attributes.
    pub attributes: BTreeMap<String, String>,
    /// What it offers; absent until the plugin has run once.
    pub capabilities: Option<Capabilities>,
    /// Present when the plugin serves the remote extension.
    pub remote: Option<Description>,
    /// The running process.
    pub pid: Option<u32>,
    /// Grows with each process; see [`crate::Driver::generation`].
    pub generation: u64,
}

/// Something that a driver reports about a task.
#[derive(Debug, Clone, PartialEq)]
pub struct DriverEvent {
    /// Driver name.
    pub driver: String,
    /// Task id.
    pub task_id: String,
    /// Allocation id.
    pub alloc_id: String,
    /// Task name.
    pub task_name: String,
    /// When.
    pub at: Option<SystemTime>,
    /// What.
    pub message: String,
    /// Details.
    pub annotations: BTreeMap<String, String>,
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

impl From<driver::NetworkOverride> for NetworkOverride {
    fn from(wire: driver::NetworkOverride) -> Self {
        Self { port_map: wire.port_map, address: wire.addr, auto_advertise: wire.auto_advertise }
    }
}

/// A started task.
#[derive(Debug, Clone, PartialEq)]
pub struct Started {
    /// How the driver finds it again; persist it before the task counts as started ([`handle_to_bytes`]).
    pub handle: TaskHandle,
    /// Where the task is reached, if not on the node's address.
    pub network: Option<NetworkOverride>,
}

/// A handle for the node's own storage, complete with the task's configuration.
pub fn handle_to_bytes(handle: &TaskHandle) -> Vec<u8> {
    handle.encode_to_vec()
}

/// A handle from the node's own storage; `None` if it is damaged.
pub fn handle_from_bytes(bytes: &[u8]) -> Option<TaskHandle> {
    TaskHandle::decode(bytes).ok()
}

/// How a task ended.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TaskExit {
    /// Exit code; 128 + n after signal n; -1 when nobody can know it.
    pub exit_code: i32,
    /// The signal that ended it, or 0.
    pub signal: i32,
    /// The kernel ended it for want of memory.
    pub oom_killed: bool,
    /// Something went wrong besides.
    pub error: Option<String>,
}

impl TaskExit {
    /// Exit code 0 and nothing else went wrong.
    pub fn successful(&self) -> bool {
        self.exit_code == 0 && self.signal == 0 && !self.oom_killed && self.error.is_none()
    }
}

impl From<driver::ExitResult> for TaskExit {
    fn from(wire: driver::ExitResult) -> Self {
        Self { exit_code: wire.exit_code, signal: wire.signal, oom_killed: wire.oom_killed, error: None }
    }
}

/// Whether a task runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TaskStatus {
    /// The driver cannot say.
    #[default]
    Unknown,
    /// Runs.
    Running,
    /// Has ended.
    Exited,
}

/// A driver's report on a task.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Inspection {
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
    /// Where it is reached.
    pub network: Option<NetworkOverride>,
}

impl From<driver::InspectTaskResponse> for Inspection {
    fn from(wire: driver::InspectTaskResponse) -> Self {
        let task = wire.task.unwrap_or_default();
        let status = match task.state() {
            driver::TaskState::Unknown => TaskStatus::Unknown,
            driver::TaskState::Running => TaskStatus::Running,
            driver::TaskState::Exited => TaskStatus::Exited,
        };
        Self {
            status,
            started_at: build::system_time(task.started_at.as_ref()),
            completed_at: build::system_time(task.completed_at.as_ref()),
            // Some drivers send an empty result for tasks that run.
            exit: (status == TaskStatus::Exited).then(|| task.result.unwrap_or_default().into()),
            attributes: wire.driver.unwrap_or_default().attributes,
            network: wire.network_override.map(Into::into),
        }
    }
}

/// Output of a finished command beside a task.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ExecResult {
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error.
    pub stderr: Vec<u8>,
    /// How it ended.
    pub exit: TaskExit,
}

//! What both sides of the driver protocol say of tasks and drivers, without the sub-messages that only the wire needs:
//! drivers answer with these values, hosts read them.

use std::collections::BTreeMap;
use std::time::SystemTime;

pub use crate::driver::TaskState as TaskStatus;
pub use crate::driver::driver_capabilities::FsIsolation;
pub use crate::driver::network_isolation_spec::NetworkIsolationMode as NetworkMode;

use crate::driver::driver_capabilities::MountConfigs;
use crate::{build, driver};

/// Capabilities of a driver.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Capabilities {
    /// Signals can be sent.
    pub send_signals: bool,
    /// Commands can be run beside a task.
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

impl From<driver::DriverCapabilities> for Capabilities {
    fn from(wire: driver::DriverCapabilities) -> Self {
        Self {
            send_signals: wire.send_signals,
            exec: wire.exec,
            // A value that this side does not know is taken for the least demanding one.
            fs_isolation: wire.fs_isolation(),
            network_modes: wire
                .network_isolation_modes
                .iter()
                .filter_map(|mode| NetworkMode::try_from(*mode).ok())
                .collect(),
            must_create_network: wire.must_create_network,
            no_mounts: wire.mount_configs() == MountConfigs::NoMounts,
            remote_tasks: wire.remote_tasks,
            disable_log_collection: wire.disable_log_collection,
            dynamic_workload_users: wire.dynamic_workload_users,
        }
    }
}

impl From<Capabilities> for driver::DriverCapabilities {
    fn from(own: Capabilities) -> Self {
        let mounts = if own.no_mounts { MountConfigs::NoMounts } else { MountConfigs::AnyMounts };
        Self {
            send_signals: own.send_signals,
            exec: own.exec,
            fs_isolation: own.fs_isolation as i32,
            network_isolation_modes: own.network_modes.into_iter().map(|mode| mode as i32).collect(),
            must_create_network: own.must_create_network,
            mount_configs: mounts as i32,
            remote_tasks: own.remote_tasks,
            disable_log_collection: own.disable_log_collection,
            dynamic_workload_users: own.dynamic_workload_users,
        }
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

impl From<driver::NetworkOverride> for NetworkOverride {
    fn from(wire: driver::NetworkOverride) -> Self {
        Self { port_map: wire.port_map, address: wire.addr, auto_advertise: wire.auto_advertise }
    }
}

impl From<NetworkOverride> for driver::NetworkOverride {
    fn from(value: NetworkOverride) -> Self {
        Self { port_map: value.port_map, addr: value.address, auto_advertise: value.auto_advertise }
    }
}

/// How a task ended.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TaskExit {
    /// Exit code; 128 + n after signal n; -1 if it is lost.
    pub exit_code: i32,
    /// The signal that ended it, or 0.
    pub signal: i32,
    /// The kernel killed it because it ran out of memory.
    pub oom_killed: bool,
    /// Another error; a non-empty text makes the exit a failure.
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

impl From<&TaskExit> for driver::ExitResult {
    fn from(exit: &TaskExit) -> Self {
        Self { exit_code: exit.exit_code, signal: exit.signal, oom_killed: exit.oom_killed }
    }
}

/// A driver's report on a task.
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
    /// Address of the task.
    pub network: Option<NetworkOverride>,
}

impl From<driver::InspectTaskResponse> for Inspection {
    fn from(wire: driver::InspectTaskResponse) -> Self {
        let task = wire.task.unwrap_or_default();
        let status = task.state();
        Self {
            started_at: build::system_time(task.started_at.as_ref()),
            completed_at: build::system_time(task.completed_at.as_ref()),
            // Some drivers send an empty result for tasks that run.
            exit: (status == TaskStatus::Exited).then(|| task.result.unwrap_or_default().into()),
            id: task.id,
            name: task.name,
            status,
            attributes: wire.driver.unwrap_or_default().attributes,
            network: wire.network_override.map(Into::into),
        }
    }
}

impl From<Inspection> for driver::InspectTaskResponse {
    fn from(seen: Inspection) -> Self {
        let status = driver::TaskStatus {
            id: seen.id,
            name: seen.name,
            state: seen.status as i32,
            started_at: Some(build::timestamp(seen.started_at)),
            completed_at: Some(build::timestamp(seen.completed_at)),
            result: seen.exit.as_ref().map(Into::into),
        };
        build::inspect_response(status, seen.attributes, seen.network.map(Into::into))
    }
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

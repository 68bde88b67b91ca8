//! Answers of calls, in the node's types.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use driver_proto::driver::TaskHandle;
use driver_proto::remote;
pub use driver_proto::values::{
    Capabilities, ExecOutput as ExecResult, FsIsolation, Inspection, NetworkMode, NetworkOverride, TaskExit, TaskStatus,
};
use prost::Message;

/// A remote driver's provider and its facts.
pub type Description = remote::DescribeResponse;

/// The newest known state of a driver, or of a plugin that never named its driver.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct DriverFingerprint {
    /// The plugin's file name.
    pub plugin: String,
    /// The plugin's version.
    pub version: String,
    /// The driver's requirements are present.
    pub detected: bool,
    /// Tasks can run.
    pub healthy: bool,
    /// The present process has sent a fingerprint, or the plugin has failed; false only at the beginning.
    pub settled: bool,
    /// The reason of the state.
    pub description: String,
    /// Node attributes.
    pub attributes: BTreeMap<String, String>,
    /// The driver's capabilities; `None` until the plugin has run once.
    pub capabilities: Option<Capabilities>,
    /// `Some` if the plugin serves the remote extension.
    pub remote: Option<Description>,
    /// Pid of the running process.
    pub pid: Option<u32>,
    /// Grows with each process; see [`crate::Driver::generation`].
    pub generation: u64,
    /// What a device plugin offers; `None` for drivers. While its plugin is down each instance is unhealthy.
    pub devices: Option<Arc<Vec<DeviceGroup>>>,
}

/// Devices of a node that are alike.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct DeviceGroup {
    /// Who makes them.
    pub vendor: String,
    /// What they are: `gpu`, `fpga`.
    pub kind: String,
    /// The model.
    pub name: String,
    /// The devices.
    pub instances: Vec<DeviceInstance>,
    /// Properties of each of them.
    pub attributes: BTreeMap<String, driver_proto::structs::Attribute>,
}

/// A device.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct DeviceInstance {
    /// Its id, unique within the group.
    pub id: String,
    /// Tasks can use it.
    pub healthy: bool,
    /// Why they cannot.
    pub health_description: String,
    /// Address on the PCI bus; empty = unknown.
    pub pci_bus_id: String,
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

/// A started task.
#[derive(Debug, Clone, PartialEq)]
pub struct Started {
    /// Handle to find it again; store it before the task counts as started ([`handle_to_bytes`]).
    pub handle: TaskHandle,
    /// Address of the task, if it differs from the node's.
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

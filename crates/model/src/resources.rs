//! Resources: asked for by tasks, offered by nodes, given to allocations. CPU in MHz, memory and disk in MiB.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::constraint::{Affinity, Constraint};
use crate::map::Map;
use crate::network::{AllocatedPort, Network};
use crate::schema::{COUNT, Described, INT};

/// What a task asks for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Described)]
#[serde(default)]
#[job(decides)]
pub struct Resources {
    /// Processor share in MHz.
    #[serde(rename = "CPU")]
    #[job(kind = INT, says = "100, or 0 with `cores`", replaces)]
    pub cpu: Option<i64>,
    /// Whole cores, instead of MHz.
    #[serde(rename = "Cores")]
    #[job(kind = INT, default = 0, replaces)]
    pub cores: Option<i64>,
    /// Reserved memory in MiB.
    #[serde(rename = "MemoryMB")]
    #[job(hcl = "memory", kind = INT, default = 300, replaces)]
    pub memory_mb: Option<i64>,
    /// Memory in MiB that it may use when memory oversubscription is on.
    #[serde(rename = "MemoryMaxMB")]
    #[job(hcl = "memory_max", kind = INT, server = 0, replaces)]
    pub memory_max_mb: Option<i64>,
    /// Deprecated: see `ephemeral_disk`.
    #[serde(rename = "DiskMB")]
    #[job(hcl = "disk", kind = INT, server = 0, in_place)]
    pub disk_mb: Option<i64>,
    /// Deprecated, without effect in Nomad.
    #[serde(rename = "IOPS")]
    #[job(kind = INT, server = 0, in_place)]
    pub iops: Option<i64>,
    /// Deprecated networks of tasks.
    #[serde(rename = "Networks")]
    #[job(hcl = "network", replaces)]
    pub networks: Vec<Network>,
    /// Devices.
    #[serde(rename = "Devices")]
    #[job(hcl = "device", replaces)]
    pub devices: Vec<RequestedDevice>,
    /// NUMA placement (Nomad Enterprise).
    #[serde(rename = "NUMA")]
    #[job(replaces)]
    pub numa: Option<Numa>,
    /// Size of the secrets directory in MiB.
    #[serde(rename = "SecretsMB")]
    #[job(hcl = "secrets", kind = INT, server = 0, replaces_local)]
    pub secrets_mb: Option<i64>,
}

/// How close the cores of a task are to each other.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, Described)]
#[serde(default, rename_all = "PascalCase")]
pub struct Numa {
    /// `none`, `prefer` or `require`.
    #[job(default = "none")]
    pub affinity: String,
    /// Devices that are to be close.
    pub devices: Vec<String>,
}

/// A device that a task asks for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Described)]
#[serde(default, rename_all = "PascalCase")]
pub struct RequestedDevice {
    /// `type`, `vendor/type` or `vendor/type/name`.
    #[job(label)]
    pub name: String,
    /// How many.
    #[job(kind = COUNT, default = 1)]
    pub count: Option<u64>,
    /// Rules that the device must meet.
    #[job(hcl = "constraint")]
    pub constraints: Vec<Constraint>,
    /// Devices that it prefers or avoids.
    #[job(hcl = "affinity")]
    pub affinities: Vec<Affinity>,
}

/// What a node has.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeResources {
    /// Processor.
    #[serde(rename = "Cpu")]
    pub cpu: NodeCpu,
    /// Memory.
    #[serde(rename = "Memory")]
    pub memory: NodeMemory,
    /// Disk.
    #[serde(rename = "Disk")]
    pub disk: NodeDisk,
    /// Host networks (legacy list: one entry per interface).
    #[serde(rename = "Networks")]
    pub networks: Vec<Network>,
    /// Host networks with aliases and addresses.
    #[serde(rename = "NodeNetworks")]
    pub node_networks: Vec<NodeNetwork>,
    /// Lowest port given dynamically.
    #[serde(rename = "MinDynamicPort")]
    pub min_dynamic_port: i32,
    /// Highest port given dynamically.
    #[serde(rename = "MaxDynamicPort")]
    pub max_dynamic_port: i32,
    /// Remote tasks that it manages at most; 0 = no limit.
    #[serde(rename = "RemoteSessions", skip_serializing_if = "crate::resources::is_zero")]
    pub remote_sessions: u32,
    /// What its device plugins offer.
    #[serde(rename = "Devices", deserialize_with = "crate::resources::nothing_is_none")]
    pub devices: Vec<NodeDevices>,
}

/// Devices of a node that are alike.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct NodeDevices {
    /// Who makes them.
    pub vendor: String,
    /// What they are: `gpu`, `fpga`.
    #[serde(rename = "Type")]
    pub kind: String,
    /// The model.
    pub name: String,
    /// The devices.
    pub instances: Vec<NodeDevice>,
    /// Properties of each of them.
    pub attributes: Map<String, DeviceAttribute>,
}

impl NodeDevices {
    /// `vendor/type/name`.
    #[must_use]
    pub fn id(&self) -> String {
        format!("{}/{}/{}", self.vendor, self.kind, self.name)
    }
}

/// A device of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct NodeDevice {
    /// Unique within its group.
    #[serde(rename = "ID")]
    pub id: String,
    /// It is given out. Tasks that have it keep it when it is no longer.
    pub healthy: bool,
    /// Why it is not.
    pub health_description: String,
    /// Where it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub locality: Option<DeviceLocality>,
}

/// Where a device is in its machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct DeviceLocality {
    /// Its address on the PCI bus.
    #[serde(rename = "PciBusID")]
    pub pci_bus_id: String,
}

/// A property of a device: one value, numbers with a unit where they have one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct DeviceAttribute {
    /// A number with decimals.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub float: Option<f64>,
    /// A whole number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub int: Option<i64>,
    /// Text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub string: Option<String>,
    /// Yes or no.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bool: Option<bool>,
    /// Of a number: `MiB`, `MHz`, `W`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub unit: String,
}

impl std::fmt::Display for DeviceAttribute {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self { float: Some(number), .. } => write!(f, "{number}")?,
            Self { int: Some(number), .. } => write!(f, "{number}")?,
            Self { bool: Some(yes), .. } => write!(f, "{yes}")?,
            Self { string, .. } => f.write_str(string.as_deref().unwrap_or_default())?,
        }
        if self.unit.is_empty() { Ok(()) } else { write!(f, " {}", self.unit) }
    }
}

/// Processor of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct NodeCpu {
    /// Total MHz.
    pub cpu_shares: i64,
    /// Number of cores.
    pub total_cpu_cores: u16,
    /// Cores that may be reserved by tasks.
    pub reservable_cpu_cores: Vec<u16>,
}

/// Memory of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeMemory {
    /// MiB.
    #[serde(rename = "MemoryMB")]
    pub memory_mb: i64,
}

/// Disk of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeDisk {
    /// MiB.
    #[serde(rename = "DiskMB")]
    pub disk_mb: i64,
}

/// A host network interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct NodeNetwork {
    /// Always `host` here.
    pub mode: String,
    /// Interface name.
    pub device: String,
    /// Hardware address.
    pub mac_address: String,
    /// Mbit/s.
    pub speed: i64,
    /// Addresses with the host networks they belong to.
    pub addresses: Vec<NodeAddress>,
}

/// An address of a host network interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct NodeAddress {
    /// `ipv4` or `ipv6`.
    pub family: String,
    /// Host network name; `default` unless configured.
    pub alias: String,
    /// The address.
    pub address: String,
    /// Ports that are not given out, as ranges.
    pub reserved_ports: String,
    /// Gateway.
    pub gateway: String,
}

/// What a node keeps for itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct NodeReserved {
    /// Processor.
    pub cpu: ReservedCpu,
    /// Memory.
    pub memory: NodeMemory,
    /// Disk.
    pub disk: NodeDisk,
    /// Ports.
    pub networks: ReservedPorts,
}

/// Reserved processor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct ReservedCpu {
    /// MHz.
    pub cpu_shares: i64,
}

/// Reserved ports.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct ReservedPorts {
    /// Ranges such as `22,80,8500-8600`.
    pub reserved_host_ports: String,
}

/// What an allocation got.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct AllocatedResources {
    /// By task name.
    pub tasks: Map<Arc<str>, AllocatedTask>,
    /// Of the group as a whole.
    pub shared: AllocatedShared,
}

/// What a task of an allocation got. Remote tasks cost their node nothing here; see `remote`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct AllocatedTask {
    /// Processor.
    pub cpu: AllocatedCpu,
    /// Memory.
    pub memory: AllocatedMemory,
    /// Deprecated task-level networks.
    pub networks: Vec<Network>,
    /// Devices that are its own while it runs.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::resources::nothing_is_none")]
    pub devices: Vec<AllocatedDevices>,
    /// True when a remote driver runs the task: it is packed against the provider's pool and costs the node a session
    /// only.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub remote: bool,
}

/// Devices given to a task, of one group of its node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct AllocatedDevices {
    /// Of the group.
    pub vendor: String,
    /// Of the group.
    #[serde(rename = "Type")]
    pub kind: String,
    /// Of the group.
    pub name: String,
    /// Those of it that are the task's.
    #[serde(rename = "DeviceIDs")]
    pub device_ids: Vec<String>,
}

impl AllocatedDevices {
    /// `vendor/type/name`.
    #[must_use]
    pub fn id(&self) -> String {
        format!("{}/{}/{}", self.vendor, self.kind, self.name)
    }
}

/// Processor given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct AllocatedCpu {
    /// MHz.
    pub cpu_shares: i64,
    /// Reserved cores.
    pub reserved_cores: Vec<u16>,
}

/// Memory given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AllocatedMemory {
    /// MiB that are reserved.
    #[serde(rename = "MemoryMB")]
    pub memory_mb: i64,
    /// MiB at most; 0 = memory_mb.
    #[serde(rename = "MemoryMaxMB")]
    pub memory_max_mb: i64,
}

/// What the group as a whole got.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AllocatedShared {
    /// MiB of disk.
    #[serde(rename = "DiskMB")]
    pub disk_mb: i64,
    /// Group networks with chosen ports.
    #[serde(rename = "Networks")]
    pub networks: Vec<Network>,
    /// All ports, flat.
    #[serde(rename = "Ports")]
    pub ports: Vec<AllocatedPort>,
}

/// A sum of resources that nodes are packed by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// MHz.
    pub cpu: i64,
    /// MiB reserved.
    pub memory_mb: i64,
    /// MiB of disk.
    pub disk_mb: i64,
}

/// Clients written in Go say null for an empty list.
pub(crate) fn nothing_is_none<'de, D: serde::Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    Ok(Option::<Vec<T>>::deserialize(deserializer)?.unwrap_or_default())
}

/// Left out of JSON.
pub(crate) fn is_zero(n: &u32) -> bool {
    *n == 0
}

impl AllocatedResources {
    /// Sessions of its node that the allocation takes: one for each remote task.
    #[must_use]
    pub fn sessions(&self) -> u32 {
        u32::try_from(self.tasks.values().filter(|t| t.remote).count()).unwrap_or(u32::MAX)
    }
    /// What the allocation takes from its node (remote tasks take nothing).
    #[must_use]
    pub fn usage(&self) -> Usage {
        let mut u = Usage { disk_mb: self.shared.disk_mb, ..Usage::default() };
        for t in self.tasks.values().filter(|t| !t.remote) {
            u.cpu += t.cpu.cpu_shares;
            u.memory_mb += t.memory.memory_mb;
        }
        u
    }
}

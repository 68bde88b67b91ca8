//! Networks and ports: what a group asks for and what an allocation got.

use serde::{Deserialize, Serialize};

use crate::schema::Described;

/// A port asked for, or given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, Described)]
#[serde(default, rename_all = "PascalCase")]
pub struct Port {
    /// Name by which the job refers to it.
    #[job(label)]
    pub label: String,
    /// Port on the host; 0 = the scheduler chooses.
    #[job(hcl = "static")]
    pub value: i32,
    /// Port inside the allocation's network namespace; 0 = the same as on the host, -1 = the chosen one.
    pub to: i32,
    /// Name of the host network.
    #[job(server = "default")]
    pub host_network: String,
    /// The static port may be taken already (shared by `SO_REUSEPORT`).
    pub ignore_collision: bool,
}

/// The network of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, Described)]
#[serde(default, rename_all = "PascalCase")]
pub struct Network {
    /// `host`, `bridge`, `none` or `cni/NAME`.
    #[job(says = "host")]
    pub mode: String,
    /// Deprecated name of a device.
    pub device: String,
    /// Deprecated address range.
    #[serde(rename = "CIDR")]
    pub cidr: String,
    /// Address of the host network; the scheduler gives it.
    #[serde(rename = "IP")]
    pub ip: String,
    /// Host name inside the namespace.
    pub hostname: String,
    /// Deprecated bandwidth.
    #[serde(rename = "MBits")]
    pub mbits: Option<i32>,
    /// Resolver settings.
    #[serde(rename = "DNS")]
    pub dns: Option<Dns>,
    /// Ports with a fixed number.
    pub reserved_ports: Vec<Port>,
    /// Ports; those without `static` the scheduler chooses.
    #[job(hcl = "port")]
    pub dynamic_ports: Vec<Port>,
    /// Arguments for the CNI plugins.
    #[serde(rename = "CNI")]
    pub cni: Option<Cni>,
}

/// Resolver settings of a network namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, Described)]
#[serde(default, rename_all = "PascalCase")]
pub struct Dns {
    /// Name servers.
    pub servers: Vec<String>,
    /// Search domains.
    pub searches: Vec<String>,
    /// Resolver options.
    pub options: Vec<String>,
}

/// Arguments for CNI plugins.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, Described)]
#[serde(default, rename_all = "PascalCase")]
pub struct Cni {
    /// Names and values that plugins get as `CNI_ARGS`.
    pub args: std::collections::BTreeMap<String, String>,
}

/// Where a task is reached when that is not its node's address: what its driver or remote runtime says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct DriverNetwork {
    /// IP address or name.
    pub address: String,
    /// Ports by label.
    pub port_map: std::collections::BTreeMap<String, i32>,
    /// Services advertise it unless they say otherwise.
    pub auto_advertise: bool,
}

/// A port as an allocation got it, flat over all networks (AllocatedResources.Shared.Ports).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct AllocatedPort {
    /// Label of the port.
    pub label: String,
    /// Port on the host.
    pub value: i32,
    /// Port inside the namespace.
    pub to: i32,
    /// Address of the host network.
    #[serde(rename = "HostIP")]
    pub host_ip: String,
    /// The static port may be shared.
    pub ignore_collision: bool,
}

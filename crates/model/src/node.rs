//! A node: a machine that runs or manages tasks.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{
    go_duration::GoDuration,
    ids::{NodeId, StoreIndex, TimestampNs, VolumeId},
    map::Map,
    resources::{NodeReserved, NodeResources},
    secret::Secret,
};

/// Fingerprinted facts by name. Names and most values are the same on many nodes and may share their memory; see
/// [`Node::share`].
pub type Attributes = Map<Arc<str>, Arc<str>>;

/// Liveness of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeStatus {
    /// Registered, not heard from yet.
    #[default]
    Initializing,
    /// Holds a lease.
    Ready,
    /// Its lease has run out.
    Down,
    /// Cut off, and its job asks for patience.
    Disconnected,
}

/// May new allocations be placed there?
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Eligibility {
    /// Yes.
    #[default]
    Eligible,
    /// No.
    Ineligible,
}

/// A node. Serde form: the `Node` object of the HTTP API; `SecretID` is left out by the API layer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Node {
    /// Id, fixed by the node itself at its first start.
    #[serde(rename = "ID")]
    pub id: NodeId,
    /// Proof of identity.
    #[serde(rename = "SecretID")]
    pub secret_id: Secret,
    /// Datacenter.
    #[serde(rename = "Datacenter")]
    pub datacenter: String,
    /// Unique name, the host name by default.
    #[serde(rename = "Name")]
    pub name: Arc<str>,
    /// Address of its HTTP API, as `host:port`; empty when clients cannot reach it.
    #[serde(rename = "HTTPAddr")]
    pub http_addr: String,
    /// HTTPAddr speaks TLS.
    #[serde(rename = "TLSEnabled")]
    pub tls_enabled: bool,
    /// Fingerprinted facts.
    #[serde(rename = "Attributes")]
    pub attributes: Attributes,
    /// What it has.
    #[serde(rename = "NodeResources")]
    pub resources: NodeResources,
    /// What it keeps for itself.
    #[serde(rename = "ReservedResources")]
    pub reserved: NodeReserved,
    /// External links.
    #[serde(rename = "Links")]
    pub links: Map<String, String>,
    /// Free metadata.
    #[serde(rename = "Meta")]
    pub meta: Attributes,
    /// Class.
    #[serde(rename = "NodeClass")]
    pub class: String,
    /// Pool.
    #[serde(rename = "NodePool")]
    pub pool: String,
    /// Hash of all that makes nodes interchangeable for feasibility.
    #[serde(rename = "ComputedClass")]
    pub computed_class: String,
    /// A drain that is under way.
    #[serde(rename = "DrainStrategy")]
    pub drain: Option<DrainStrategy>,
    /// Result of the last drain.
    #[serde(rename = "LastDrain")]
    pub last_drain: Option<serde_json::Value>,
    /// May allocations be placed?
    #[serde(rename = "SchedulingEligibility")]
    pub eligibility: Eligibility,
    /// Liveness.
    #[serde(rename = "Status")]
    pub status: NodeStatus,
    /// Why it has that status.
    #[serde(rename = "StatusDescription")]
    pub status_description: String,
    /// When the status last changed, Unix seconds.
    #[serde(rename = "StatusUpdatedAt")]
    pub status_updated_at: i64,
    /// The last ten events.
    #[serde(rename = "Events")]
    pub events: Vec<NodeEvent>,
    /// Drivers by name.
    #[serde(rename = "Drivers")]
    pub drivers: Map<String, DriverInfo>,
    /// Host volumes by name.
    #[serde(rename = "HostVolumes")]
    pub host_volumes: Map<String, HostVolume>,
    /// The servers forget its dynamic volumes with it.
    #[serde(rename = "GCVolumesOnNodeGC", skip_serializing_if = "std::ops::Not::not")]
    pub gc_volumes: bool,
    /// Host networks by name.
    #[serde(rename = "HostNetworks")]
    pub host_networks: Map<String, serde_json::Value>,
    /// Allocations that it takes at most; 0 = no limit.
    #[serde(rename = "NodeMaxAllocs", skip_serializing_if = "crate::resources::is_zero")]
    pub max_allocs: u32,
    /// Index of the registration.
    #[serde(rename = "CreateIndex")]
    pub create_index: StoreIndex,
    /// Index of the last change.
    #[serde(rename = "ModifyIndex")]
    pub modify_index: StoreIndex,
}

impl Node {
    /// True when the scheduler may place on it.
    #[must_use]
    pub fn ready(&self) -> bool {
        self.status == NodeStatus::Ready && self.drain.is_none() && self.eligibility == Eligibility::Eligible
    }

    /// Lets equal attributes of both nodes share their memory. Nodes of a fleet are much alike, and most of a node's
    /// record is its attributes.
    pub fn share(&mut self, other: &Self) {
        share(&mut self.attributes, &other.attributes);
        for (name, driver) in self.drivers.iter_mut() {
            if let Some(other) = other.drivers.get(name) {
                share(&mut driver.attributes, &other.attributes);
            }
        }
    }
}

fn share(own: &mut Attributes, others: &Attributes) {
    // Entries of a map keep their order when a key is replaced by an equal one.
    let shared = std::mem::take(own).into_iter().map(|(name, value)| match others.get_key_value(&name) {
        Some((other_name, other)) => (other_name.clone(), if *other == value { other.clone() } else { value }),
        None => (name, value),
    });
    *own = shared.collect();
}

/// State of a driver on a node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct DriverInfo {
    /// Its attributes.
    pub attributes: Attributes,
    /// The runtime is there.
    pub detected: bool,
    /// It works.
    pub healthy: bool,
    /// Why not.
    pub health_description: String,
    /// When this was last observed, RFC 3339.
    #[serde(with = "crate::go_time::text")]
    pub update_time: String,
    /// Set for drivers whose tasks live in a remote runtime.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote: Option<RemoteProvider>,
}

/// What a remote driver has declared about its runtime (remote-tasks: `describe`).
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct RemoteProvider {
    /// Identity of the runtime: a placement constraint for every later manager.
    pub provider: String,
    /// Create is create-or-get by key.
    pub keyed_create: bool,
    /// Instances are found by key.
    pub find: bool,
    /// Instances are listed by owner.
    pub list: bool,
    /// Those of every owner are listed, when a person asks.
    pub list_owners: bool,
    /// The provider refuses stale epochs.
    pub conditional_writes: bool,
    /// Exit results stay until acknowledged.
    pub retained_exit_results: bool,
    /// A key can be sealed: a create with it is refused from then on, even one that was sent before. Lets a stop be
    /// confirmed although a create may still be on its way.
    pub seal: bool,
    /// Only the plain driver protocol is known: weaker guarantee.
    pub plain_protocol: bool,
    /// No files reach the runtime: neither templates nor a dispatch payload.
    pub no_files: bool,
    /// Files of an instance that runs can be renewed: tokens with an end.
    pub refresh: bool,
    /// Volumes of the runtime are mounted by name; those of a node never are.
    pub volumes: bool,
    /// Instances cannot be sent a signal of choice.
    pub no_signals: bool,
    /// Lowest readable handle schema.
    pub handle_schema_min: u32,
    /// Highest readable handle schema.
    pub handle_schema_max: u32,
    /// Capacity in MHz, 0 = not declared.
    #[serde(rename = "PoolCPU")]
    pub pool_cpu: u64,
    /// Capacity in MiB, 0 = not declared.
    #[serde(rename = "PoolMemoryMB")]
    pub pool_memory_mb: u64,
    /// How long, in seconds, what was created may still be missing in what the provider shows.
    #[serde(skip_serializing_if = "at_once")]
    pub stale_seconds: u64,
}

fn at_once(seconds: &u64) -> bool {
    *seconds == 0
}

/// A directory that the operator offers to jobs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct HostVolume {
    /// Name.
    pub name: String,
    /// Path on the node.
    pub path: String,
    /// Only readable.
    pub read_only: bool,
    /// The dynamic volume that it is; nil = the operator offers it in the node's configuration.
    #[serde(rename = "ID", skip_serializing_if = "configured")]
    pub id: VolumeId,
}

fn configured(id: &VolumeId) -> bool {
    id.is_nil()
}

/// Something that happened to a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct NodeEvent {
    /// What.
    pub message: String,
    /// Which part saw it.
    pub subsystem: String,
    /// Details.
    pub details: Map<String, String>,
    /// When, RFC 3339.
    #[serde(with = "crate::go_time::text")]
    pub timestamp: String,
    /// Index.
    pub create_index: StoreIndex,
}

/// Settings of a drain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct DrainSpec {
    /// Time until the rest is forced; 0 = none, negative = force now.
    pub deadline: GoDuration,
    /// Leave system jobs alone.
    pub ignore_system_jobs: bool,
}

/// A drain that is under way.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct DrainStrategy {
    /// See [`DrainSpec`].
    pub deadline: GoDuration,
    /// Leave system jobs alone.
    pub ignore_system_jobs: bool,
    /// When the rest is forced, RFC 3339; Go's zero time when there is no deadline.
    pub force_deadline: String,
    /// When it started, RFC 3339.
    pub started_at: String,
    /// The same instant for deciding, Unix ns; 0 = none.
    #[serde(rename = "ForceDeadlineNs")]
    pub force_deadline_ns: TimestampNs,
}

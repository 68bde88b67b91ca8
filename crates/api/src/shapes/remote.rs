//! Remote tasks: `GET /v1/remote/tasks`, `GET /v1/remote/task/:slot`, and beside the jobs and allocations that they
//! belong to.

use std::sync::Arc;

pub use model::remote::{Guarantee, GuaranteeLevel};
use model::{NodeId, RemoteInstance, RemoteTask, StoreIndex, TimestampNs};
use serde::{Deserialize, Serialize};

use crate::With;

/// A record as the API shows it.
pub type RemoteTaskView = With<Arc<RemoteTask>, RemoteExtra>;

/// Fields that the API adds to a record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct RemoteExtra {
    /// The slot as text, `namespace/job.group[index]/task`: the name in paths.
    pub slot_name: String,
    /// Name of the managing node; empty = unmanaged.
    pub manager_name: String,
    /// No node manages it.
    pub unmanaged: bool,
    /// Guarantee of this task, derived from the features of its provider.
    pub guarantee: Guarantee,
}

/// `GET /v1/remote/unbound`: what the last sweep of a provider has found there that no record knows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct RemoteSweep {
    /// Driver.
    pub driver: String,
    /// Identity of the runtime.
    pub provider: String,
    /// The node that was asked; nil = no ready node reaches it.
    #[serde(rename = "NodeID")]
    pub node_id: NodeId,
    /// When it was last tried, Unix ns.
    pub at: TimestampNs,
    /// Why it could not be asked the last time; empty = it was. What is below is from the last time that it was.
    pub error: String,
    /// Instances of this cluster.
    pub instances: usize,
    /// Orphaned instances, without handles: only drivers read those.
    pub unbound: Vec<RemoteInstance>,
    /// Instances of other clusters, each with its owner, when they were asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<RemoteInstance>,
    /// Why those are not known, or not all of them.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub others_error: String,
}

/// `PUT /v1/remote/unbound/KEY/adopt`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct RemoteAdopted {
    /// Index of the change.
    pub index: StoreIndex,
    /// No job wants the slot yet: it is kept free for the instance until the servers start again, and nothing else
    /// has happened.
    pub kept: bool,
}

//! Remote tasks: `GET /v1/remote/tasks`, `GET /v1/remote/task/:slot`, and beside the jobs and allocations that they belong to.

use std::sync::Arc;

pub use model::remote::{Guarantee, GuaranteeLevel};
use model::{NodeId, RemoteInstance, RemoteTask, TimestampNs};
use serde::{Deserialize, Serialize};

use crate::With;

/// A record as the API shows it.
pub type RemoteTaskView = With<Arc<RemoteTask>, RemoteExtra>;

/// What the API adds to a record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct RemoteExtra {
    /// The slot as text, `namespace/job.group[index]/task`: the name in paths.
    pub slot_name: String,
    /// Name of the managing node; empty = unmanaged.
    pub manager_name: String,
    /// Nobody manages it at present.
    pub unmanaged: bool,
    /// What is promised of this task, from what its provider can do.
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
    /// Those that no record knows. Handles are left out: they are the drivers' business.
    pub unbound: Vec<RemoteInstance>,
}

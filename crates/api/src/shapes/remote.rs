//! Remote tasks: `GET /v1/remote/tasks`, `GET /v1/remote/task/:slot`, and beside the jobs and allocations that they belong to.

use std::sync::Arc;

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

/// What is promised of a remote task, and why not more.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct Guarantee {
    /// The promise.
    pub level: GuaranteeLevel,
    /// A create whose answer was lost ends with exactly one instance.
    pub exactly_one: bool,
    /// The provider refuses calls of a manager that was replaced.
    pub fenced: bool,
    /// The exit code is kept until the servers have it.
    pub exact_results: bool,
    /// In words.
    pub reason: String,
}

/// Levels of [`Guarantee`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GuaranteeLevel {
    /// No node tells what the provider can do.
    #[default]
    Unknown,
    /// Only the plain driver protocol: a lost create answer may leave an instance that nobody knows.
    HandleOnly,
    /// Neither keyed create nor search: after a lost create answer the task is held until a person decides.
    Held,
    /// Instances are found again by their key after a lost answer.
    ExactlyOneBySearch,
    /// Create is create-or-get by key.
    ExactlyOne,
}

//! `/v1/client/audit`: the books of a node.

use std::collections::BTreeMap;

use model::{AllocId, NodeId, TimestampNs};
use serde::{Deserialize, Serialize};

/// The audit of a node: items that exist compared with items that its records claim. GET reads it, PUT also ends
/// unclaimed items.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct NodeAudit {
    /// The node.
    #[serde(rename = "NodeID")]
    pub node_id: NodeId,
    /// When the node looked, Unix ns.
    pub timestamp: TimestampNs,
    /// Nothing is unclaimed and nothing missing.
    pub balanced: bool,
    /// One line for each thing.
    pub findings: Vec<AuditFinding>,
    /// What was done, when a sweep was asked for.
    pub swept: Vec<AuditSwept>,
    /// Things that sweeps have ended or removed since the agent's start, by kind.
    pub ended: BTreeMap<AuditKind, u64>,
}

/// One line of the books.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct AuditFinding {
    /// What kind of thing.
    pub kind: AuditKind,
    /// How it stands.
    pub status: AuditStatus,
    /// The thing.
    pub what: String,
    /// Its allocation; nil without one.
    #[serde(rename = "AllocID")]
    pub alloc_id: AllocId,
    /// Its task; may be empty.
    pub task: String,
    /// Claimant, or the reason why there is none.
    pub reason: String,
}

/// One thing that a sweep has dealt with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct AuditSwept {
    /// What kind of thing.
    pub kind: AuditKind,
    /// The thing.
    pub what: String,
    /// Why it is still there; empty when it is gone.
    pub error: String,
}

/// Kinds of things that the books cover.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AuditKind {
    /// Workloads, executors, log collectors, plugins.
    #[default]
    Process,
    /// Of a task.
    Cgroup,
    /// Below the directory of an allocation.
    Mount,
    /// A network namespace.
    Netns,
    /// Of a plugin.
    Socket,
    /// Between a task and its log collector.
    Fifo,
    /// Of an allocation, an executor or a log collector.
    Directory,
}

impl AuditKind {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::Process, Self::Cgroup, Self::Mount, Self::Netns, Self::Socket, Self::Fifo, Self::Directory];

    /// As in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Process => "process",
            Self::Cgroup => "cgroup",
            Self::Mount => "mount",
            Self::Netns => "netns",
            Self::Socket => "socket",
            Self::Fifo => "fifo",
            Self::Directory => "directory",
        }
    }
}

/// How a thing stands in the books.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AuditStatus {
    /// It exists and a record claims it.
    #[default]
    Claimed,
    /// Unclaimed or missing at the last look, not yet at the one before: perhaps it is just coming or going.
    Pending,
    /// It exists and no record claims it.
    Unclaimed,
    /// A record claims it and it does not exist.
    Missing,
}

impl AuditStatus {
    /// As in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Claimed => "claimed",
            Self::Pending => "pending",
            Self::Unclaimed => "unclaimed",
            Self::Missing => "missing",
        }
    }
}

//! Why an allocation is where it is, and why it is not elsewhere.

use std::{collections::BTreeMap, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::{common::Text, ids::NodeId, map::Map};

/// Metrics of one placement: what the scheduler considered.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct AllocMetric {
    /// Nodes considered.
    pub nodes_evaluated: i64,
    /// Nodes that broke a rule.
    pub nodes_filtered: i64,
    /// Nodes in the pool.
    pub nodes_in_pool: i64,
    /// Nodes available by datacenter.
    pub nodes_available: Map<String, i64>,
    /// Filtered, by class.
    pub class_filtered: Map<String, i64>,
    /// Filtered, by the rule that was broken.
    pub constraint_filtered: Map<String, i64>,
    /// Nodes without room.
    pub nodes_exhausted: i64,
    /// Without room, by class.
    pub class_exhausted: Map<String, i64>,
    /// Without room, by resource.
    pub dimension_exhausted: Map<String, i64>,
    /// Quotas exhausted.
    pub quota_exhausted: Vec<String>,
    /// By task: what could not be given.
    pub resources_exhausted: BTreeMap<String, serde_json::Value>,
    /// Legacy scores.
    pub scores: BTreeMap<String, f64>,
    /// The best nodes and how they scored.
    pub score_meta_data: Vec<NodeScore>,
    /// Time it took, nanoseconds.
    pub allocation_time: i64,
    /// Some of the nodes that could not be chosen, with what they lack. Nomad has no such field.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nodes_left_out: Vec<NodeLeftOut>,
    /// Further placements of the group that failed for the same reason.
    pub coalesced_failures: i64,
}

/// A node that could not be chosen.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct NodeLeftOut {
    /// Node.
    #[serde(rename = "NodeID")]
    pub node_id: NodeId,
    /// Its name.
    pub name: Arc<str>,
    /// The rule that it breaks, or the resource that it lacks.
    pub reason: String,
    /// It meets the rules and has no room.
    pub exhausted: bool,
}

/// The score of one node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeScore {
    /// Node.
    #[serde(rename = "NodeID")]
    pub node_id: NodeId,
    /// Parts by name (binpack, job-anti-affinity, node-affinity, allocation-spread …).
    #[serde(rename = "Scores")]
    pub scores: Map<Text, f64>,
    /// Their mean.
    #[serde(rename = "NormScore")]
    pub norm_score: f64,
}

//! Nodes, node pools, operator settings, search, events.

use std::{collections::BTreeMap, sync::Arc};

use model::{
    AllocId, AllocMetric, ClusterId, DrainSpec, Eligibility, EvalId, GenerationId, GoDuration, JobId, Map, Namespace,
    Node, NodeId, NodeStatus, SchedulerConfig, Secret, StoreIndex, TimestampNs,
    node::{Attributes, DriverInfo, HostVolume},
    resources::{NodeReserved, NodeResources},
};
use serde::{Deserialize, Serialize};

use crate::With;

/// A row of `GET /v1/nodes`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct NodeListStub {
    /// Host part of the HTTP address.
    pub address: String,
    /// Id.
    #[serde(rename = "ID")]
    pub id: NodeId,
    /// Only with `os=true`: `os.name`.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub attributes: Attributes,
    /// Datacenter.
    pub datacenter: String,
    /// Name.
    pub name: Arc<str>,
    /// Pool.
    pub node_pool: String,
    /// Class.
    pub node_class: String,
    /// Version of its agent.
    pub version: String,
    /// A drain is under way.
    pub drain: bool,
    /// May allocations be placed?
    pub scheduling_eligibility: Eligibility,
    /// Liveness.
    pub status: NodeStatus,
    /// Why.
    pub status_description: String,
    /// By name.
    pub drivers: Map<String, DriverInfo>,
    /// By name.
    pub host_volumes: Map<String, HostVolume>,
    /// Only with `resources=true`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_resources: Option<NodeResources>,
    /// Only with `resources=true`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reserved_resources: Option<NodeReserved>,
    /// Result of the last drain.
    pub last_drain: Option<serde_json::Value>,
    /// Index of the registration.
    pub create_index: StoreIndex,
    /// Index of the last change.
    pub modify_index: StoreIndex,
}

/// `GET /v1/node/:id`.
pub type NodeDetail = With<Node, NodeExtra>;

/// Fields that the API adds to a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct NodeExtra {
    /// A drain is under way (legacy).
    pub drain: bool,
}

/// A node as the API shows it: without its secret.
#[must_use]
pub fn node_detail(node: &Node) -> NodeDetail {
    let drain = node.drain.is_some();
    With::new(Node { secret_id: Secret::none(), ..node.clone() }, NodeExtra { drain })
}

/// `PUT /v1/node/:id/drain`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct NodeDrainRequest {
    /// Node.
    #[serde(rename = "NodeID")]
    pub node_id: String,
    /// Settings of the drain; null ends it.
    pub drain_spec: Option<DrainSpec>,
    /// Usable again after the end of the drain.
    pub mark_eligible: bool,
    /// Free metadata.
    pub meta: BTreeMap<String, String>,
    /// Leaves a node that drains as it is; the answer is that of a drain that has begun. Ours: a node asks so for its
    /// own drain, which does not change what a person has ordered.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub only_if_not_draining: bool,
}

/// `PUT /v1/node/:id/eligibility`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct NodeEligibilityRequest {
    /// Node.
    #[serde(rename = "NodeID")]
    pub node_id: String,
    /// `eligible` or `ineligible`.
    pub eligibility: String,
}

/// The answer to a change of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct NodeUpdateResponse {
    /// Evaluations that follow.
    #[serde(rename = "EvalIDs")]
    pub eval_ids: Vec<EvalId>,
    /// Their index.
    pub eval_create_index: StoreIndex,
    /// Index of the node.
    pub node_modify_index: StoreIndex,
    /// Index of the commit.
    pub index: StoreIndex,
}

/// `GET /v1/operator/scheduler/configuration`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct SchedulerConfigResponse {
    /// The settings.
    pub scheduler_config: SchedulerConfig,
    /// Index that was looked at.
    pub index: StoreIndex,
    /// Age of the answer, nanoseconds.
    pub last_contact: i64,
    /// There is a leader.
    pub known_leader: bool,
    /// Always empty.
    pub next_token: String,
}

/// The answer to changing the settings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct SchedulerConfigUpdate {
    /// False when `cas` did not match.
    pub updated: bool,
    /// Index of the commit.
    pub index: StoreIndex,
}

/// `GET /v1/operator/raft/configuration`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct RaftConfiguration {
    /// Index of the configuration.
    pub index: StoreIndex,
    /// The servers.
    pub servers: Vec<RaftServer>,
}

/// Whether the servers recover a state that is from the past, and what they wait for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct RecoveryView {
    /// Identity of the cluster.
    #[serde(rename = "ClusterID")]
    pub cluster_id: ClusterId,
    /// The present generation of the servers' state.
    #[serde(rename = "GenerationID")]
    pub generation: GenerationId,
    /// They recover; what follows says nothing otherwise.
    pub recovering: bool,
    /// What the servers wait for, as a sentence.
    pub waits_for: String,
    /// Why.
    pub cause: String,
    /// Since when, Unix ns.
    pub since: TimestampNs,
    /// Only an operator can end it.
    pub by_hand: bool,
    /// Nodes that have told what they have.
    pub answered: Vec<RecoveryNode>,
    /// Nodes that have not.
    pub waiting_for: Vec<RecoveryNode>,
    /// Connected nodes that say to have what nothing proves; an operator decides on each.
    pub unproven: Vec<RecoveryClaims>,
    /// Providers that have not been asked what they have, with the reason.
    pub unswept: Vec<String>,
    /// Instances of remote tasks that no record knows.
    pub unbound: Vec<String>,
}

/// A node of [`RecoveryView`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct RecoveryNode {
    /// Id.
    #[serde(rename = "ID")]
    pub id: NodeId,
    /// Name.
    pub name: String,
}

/// What a node of [`RecoveryView`] says to have and nothing proves.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct RecoveryClaims {
    /// Id of the node.
    #[serde(rename = "ID")]
    pub id: NodeId,
    /// Its name.
    pub name: String,
    /// Where it connects from.
    pub address: String,
    /// Number of allocations.
    pub allocations: usize,
    /// Number of remote tasks.
    pub remote_tasks: usize,
    /// Number of host volumes.
    pub host_volumes: usize,
    /// A few of them.
    pub examples: Vec<String>,
    /// Why there is no proof.
    pub reasons: Vec<String>,
}

/// A server of [`RaftConfiguration`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct RaftServer {
    /// Id.
    #[serde(rename = "ID")]
    pub id: String,
    /// Name.
    pub node: String,
    /// RPC address.
    pub address: String,
    /// It leads.
    pub leader: bool,
    /// It has a vote.
    pub voter: bool,
    /// Protocol version.
    pub raft_protocol: String,
}

/// `GET /v1/operator/autopilot/health`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct OperatorHealth {
    /// All servers and the store are well.
    pub healthy: bool,
    /// So many servers may be lost, and so many members of the store, before nobody can lead.
    pub failure_tolerance: i64,
    /// Ids of the servers: any of them may lead.
    pub voters: Vec<String>,
    /// Id of the server that leads.
    pub leader: String,
    /// The servers.
    pub servers: Vec<ServerHealth>,
    /// Where they keep their state; a stock server has no such field.
    pub store: StoreHealth,
}

/// A server of [`OperatorHealth`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct ServerHealth {
    /// Id.
    #[serde(rename = "ID")]
    pub id: String,
    /// Name with the region.
    pub name: String,
    /// RPC address.
    pub address: String,
    /// `alive`, or `failed` when it has not shown for a while that it lives.
    pub serf_status: String,
    /// Release; empty where it is not known.
    pub version: String,
    /// It leads.
    pub leader: bool,
    /// How long ago it has shown that it lives, as a duration of Go; empty where that could not be found out.
    pub last_contact: String,
    /// Always 0: there are no terms.
    pub last_term: u64,
    /// Index of the state of the server that was asked: all servers share one state, and one that takes over goes on
    /// from the last batch.
    pub last_index: StoreIndex,
    /// It is well.
    pub healthy: bool,
    /// It may lead.
    pub voter: bool,
    /// Since when it runs, RFC 3339; Go's zero time where that is not known.
    pub stable_since: String,
}

/// The store of the servers, in [`OperatorHealth`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct StoreHealth {
    /// `etcd`, `sqlite`, or `memory` of a development agent.
    pub kind: String,
    /// It is well, and so is each of its members.
    pub healthy: bool,
    /// Why it could not be asked.
    pub error: String,
    /// Format of the state that the leader writes: the newest that all servers read. 0 = not known, or no etcd.
    pub format: u32,
    /// Members of etcd.
    pub members: Vec<StoreMember>,
}

/// A member of etcd, in [`StoreHealth`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct StoreMember {
    /// etcd's id of it, in hexadecimal digits.
    #[serde(rename = "ID")]
    pub id: String,
    /// Name.
    pub name: String,
    /// Address for clients.
    pub address: String,
    /// It leads the others.
    pub leader: bool,
    /// It has a vote.
    pub voter: bool,
    /// Release.
    pub version: String,
    /// Bytes of its database.
    pub size: u64,
    /// Bytes of them in use.
    pub in_use: u64,
    /// It answers, knows a leader and reports no error.
    pub healthy: bool,
    /// Why it is not well.
    pub error: String,
}

/// The answer to a transfer of leadership.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct LeadershipTransfer {
    /// The server that led.
    pub from: ServerAddress,
    /// The server that leads next; empty where that is not known.
    pub to: ServerAddress,
    /// Nothing changes: it leads already.
    pub noop: bool,
    /// Always null.
    pub err: Option<String>,
}

/// A server of [`LeadershipTransfer`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct ServerAddress {
    /// Id.
    #[serde(rename = "ID")]
    pub id: String,
    /// RPC address.
    pub address: String,
}

/// `PUT /v1/search` and `/v1/search/fuzzy`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct SearchRequest {
    /// Beginning of ids.
    pub prefix: String,
    /// Part of names (fuzzy).
    pub text: String,
    /// Kind of object, or `all`.
    pub context: String,
}

/// The answer to a prefix search.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct SearchResponse {
    /// Ids by kind; null when none.
    pub matches: BTreeMap<String, Option<Vec<String>>>,
    /// Kinds of which there are more.
    pub truncations: BTreeMap<String, bool>,
    /// Index that was looked at.
    pub index: StoreIndex,
    /// Age of the answer.
    pub last_contact: i64,
    /// There is a leader.
    pub known_leader: bool,
    /// Always empty.
    pub next_token: String,
}

/// The answer to a fuzzy search.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct FuzzySearchResponse {
    /// Finds by kind.
    pub matches: BTreeMap<String, Vec<FuzzyMatch>>,
    /// Kinds of which there are more.
    pub truncations: BTreeMap<String, bool>,
    /// Index that was looked at.
    pub index: StoreIndex,
    /// Age of the answer.
    pub last_contact: i64,
    /// There is a leader.
    pub known_leader: bool,
    /// Always empty.
    pub next_token: String,
}

/// A find of a fuzzy search.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(default)]
pub struct FuzzyMatch {
    /// What was found.
    #[serde(rename = "ID")]
    pub id: String,
    /// Where: namespace, job, group …
    #[serde(rename = "Scope")]
    pub scope: Vec<String>,
}

/// A line of `GET /v1/event/stream`; `{}` is a heartbeat.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct EventBatch {
    /// Index of the commit.
    pub index: StoreIndex,
    /// What happened.
    pub events: Vec<Event>,
}

/// An event.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct Event {
    /// Job, Evaluation, Allocation, Deployment, Node, RemoteTask.
    pub topic: String,
    /// What happened, such as `JobRegistered`.
    #[serde(rename = "Type")]
    pub kind: String,
    /// Id of the object.
    pub key: String,
    /// Its namespace.
    pub namespace: String,
    /// Further names under which a filter finds it.
    pub filter_keys: Vec<String>,
    /// Index of the commit.
    pub index: StoreIndex,
    /// The object under the name of its kind.
    pub payload: serde_json::Value,
}

/// `PUT /v1/client/drivers/reload`: what became of each plugin.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct DriverReload {
    /// By the plugin's file name, or the name of a built-in driver.
    pub plugins: BTreeMap<String, PluginReload>,
}

/// One plugin of a reload.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct PluginReload {
    /// What was done.
    pub outcome: ReloadOutcome,
    /// Why, where something could not be done.
    pub description: String,
}

/// Outcome of a reload for one plugin. Tasks keep running in every case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReloadOutcome {
    /// Nothing has changed, nothing was done.
    #[default]
    Unchanged,
    /// A new process serves the driver.
    Replaced,
    /// It is new and runs.
    Started,
    /// It is no longer configured and was ended.
    Ended,
    /// It did not run and does now.
    Recovered,
    /// The new configuration cannot be used; the old process keeps running.
    Kept,
    /// It does not run.
    Failed,
}

/// `GET /v1/node/:id/preview`: what would become of a node's allocations.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct NodePreview {
    /// Node.
    #[serde(rename = "NodeID")]
    pub node_id: NodeId,
    /// What would happen: `drain` or `lost`.
    pub event: String,
    /// For `lost`: how long after the last sign of life it counts as lost, at the latest.
    pub after: GoDuration,
    /// Its allocations that the caller may see.
    pub allocs: Vec<PreviewedAlloc>,
}

/// An allocation in a [`NodePreview`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct PreviewedAlloc {
    /// Id.
    #[serde(rename = "ID")]
    pub id: AllocId,
    /// Namespace.
    pub namespace: Namespace,
    /// Job.
    #[serde(rename = "JobID")]
    pub job_id: JobId,
    /// Group.
    pub task_group: String,
    /// Name.
    pub name: String,
    /// `handed over` and `unmanaged`: it only manages remote tasks, which go on. `moved`, `waits` and `ends`: its tasks
    /// are interrupted. `stays`: nothing happens to it.
    pub fate: String,
    /// The node that takes over; nil = none.
    #[serde(rename = "NextNodeID")]
    pub next_node_id: NodeId,
    /// Its name.
    pub next_node_name: String,
    /// Why there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<AllocMetric>,
}

//! The agent about itself: health, members, metrics.

use std::collections::BTreeMap;

use model::go_duration::GoDuration;
use serde::{Deserialize, Serialize};

/// `GET /v1/agent/self`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AgentSelf {
    /// Settings in Go's field names, secrets as `<redacted>`.
    pub config: serde_json::Value,
    /// The server as a member.
    pub member: Member,
    /// Numbers by group.
    pub stats: BTreeMap<String, BTreeMap<String, String>>,
}

/// A server as the others see it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct Member {
    /// `name.region`.
    pub name: String,
    /// Host.
    pub addr: String,
    /// Port of the membership protocol; ours is the RPC port.
    pub port: u16,
    /// role, region, dc, build, id …
    pub tags: BTreeMap<String, String>,
    /// `alive`.
    pub status: String,
    /// Protocol versions.
    pub protocol_min: u8,
    /// Protocol versions.
    pub protocol_max: u8,
    /// Protocol versions.
    pub protocol_cur: u8,
    /// Protocol versions.
    pub delegate_min: u8,
    /// Protocol versions.
    pub delegate_max: u8,
    /// Protocol versions.
    pub delegate_cur: u8,
}

/// `GET /v1/agent/members`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Members {
    /// The server that answers.
    #[serde(rename = "ServerName")]
    pub server_name: String,
    /// Its region.
    #[serde(rename = "ServerRegion")]
    pub server_region: String,
    /// Its datacenter.
    #[serde(rename = "ServerDC")]
    pub server_dc: String,
    /// All servers.
    #[serde(rename = "Members")]
    pub members: Vec<Member>,
}

/// `GET /v1/agent/health`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Health {
    /// The server part, when there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<HealthPart>,
    /// The node part, when there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client: Option<HealthPart>,
}

/// Health of a part of the agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HealthPart {
    /// It works.
    pub ok: bool,
    /// `ok`, or why not.
    pub message: String,
    /// State of each server loop, and since when. A stock agent does not send it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub loops: Vec<LoopHealth>,
    /// Events that an operator should know of. A stock agent does not send them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// What the cluster looked like at one time: `GET /v1/metrics/trends` has the last hour of them. A stock server has
/// none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct Trend {
    /// When, in Unix nanoseconds.
    pub time: i64,
    /// Nodes that are ready; what is used and the totals are theirs.
    pub nodes_ready: u64,
    /// Allocations that run.
    pub allocs_running: u64,
    /// MHz that allocations have on their nodes.
    pub cpu_used: i64,
    /// MHz that there are for them.
    pub cpu_total: i64,
    /// MiB that allocations have on their nodes.
    #[serde(rename = "MemoryUsedMB")]
    pub memory_used_mb: i64,
    /// MiB that there are for them.
    #[serde(rename = "MemoryTotalMB")]
    pub memory_total_mb: i64,
    /// Allocations that jobs want and that could not be placed.
    pub queued: u64,
    /// Allocations placed since the point before.
    pub placed: u64,
    /// Remote tasks that got another manager since the point before.
    pub hand_overs: u64,
    /// Remote tasks without a manager.
    pub unmanaged: u64,
}

/// State of a server loop.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LoopHealth {
    /// Its name, as in ARCHITECTURE.md.
    pub name: String,
    /// What the loop works on or waits for.
    pub status: String,
    /// How often it has begun or ended something since the start.
    pub turns: u64,
    /// Milliseconds since it last did.
    pub last_progress_ms: u64,
}

/// `GET /v1/metrics`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct Metrics {
    /// `2026-01-02 15:04:05 +0000 UTC`.
    pub timestamp: String,
    /// Values.
    pub gauges: Vec<Gauge>,
    /// Plain points.
    pub points: Vec<serde_json::Value>,
    /// Counters.
    pub counters: Vec<Sampled>,
    /// Distributions.
    pub samples: Vec<Sampled>,
}

/// A value.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct Gauge {
    /// Name.
    pub name: String,
    /// Value.
    pub value: f64,
    /// Labels.
    pub labels: BTreeMap<String, String>,
}

/// A counter or distribution over an interval.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct Sampled {
    /// Name.
    pub name: String,
    /// How many.
    pub count: u64,
    /// Per second.
    pub rate: f64,
    /// Sum.
    pub sum: f64,
    /// Smallest.
    pub min: f64,
    /// Largest.
    pub max: f64,
    /// Mean.
    pub mean: f64,
    /// Spread.
    pub stddev: f64,
    /// Labels.
    pub labels: BTreeMap<String, String>,
}

/// `GET /v1/node/pools`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct NodePoolView {
    /// Name.
    pub name: String,
    /// Free text.
    pub description: String,
    /// Free metadata.
    pub meta: BTreeMap<String, String>,
    /// How long an identity of its nodes is valid, in nanoseconds; 0 = the servers' default.
    #[serde(rename = "NodeIdentityTTL", skip_serializing_if = "unset")]
    pub node_identity_ttl: GoDuration,
    /// Overrides of the scheduler's settings.
    pub scheduler_configuration: Option<serde_json::Value>,
    /// Null, as for all pools that are built in.
    pub hash: Option<String>,
    /// Index of its creation.
    pub create_index: u64,
    /// Index of its last change.
    pub modify_index: u64,
}

fn unset(ttl: &GoDuration) -> bool {
    ttl.nanos() == 0
}

/// `GET /v1/agent/features`: what this release has, for clients that hide what it has not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct AgentFeatures {
    /// Release of the agent.
    pub version: String,
    /// Requests need rights.
    #[serde(rename = "ACL")]
    pub acl: bool,
    /// Metrics come in Prometheus' format as well.
    pub prometheus: bool,
    /// Commands tell where the page of what they show is.
    #[serde(rename = "CLIHints")]
    pub cli_hints: bool,
    /// This agent reads the past beyond the last hour from a Prometheus.
    pub history: bool,
    /// The web UI is served.
    #[serde(rename = "UI")]
    pub ui: bool,
    /// Endpoints that answer only with the reason why they are not there, as `METHOD PATH`.
    pub refused: Vec<String>,
}

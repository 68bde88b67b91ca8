//! Records of the servers that nodes never see: namespaces, node pools, submissions, summaries.

use std::{collections::BTreeMap, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::{
    go_duration::GoDuration,
    ids::{JobId, Namespace, StoreIndex},
    job::Meta,
    map::Map,
    resources::AllocatedResources,
    scaling::ScalingEvent,
};

/// A namespace.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct NamespaceRecord {
    /// Name.
    pub name: Namespace,
    /// Free text.
    pub description: String,
    /// Enterprise.
    pub quota: String,
    /// Which drivers and networks jobs may use; None = all.
    pub capabilities: Option<NamespaceCapabilities>,
    /// Enterprise.
    pub node_pool_configuration: Option<serde_json::Value>,
    /// Enterprise.
    pub vault_configuration: Option<serde_json::Value>,
    /// Enterprise.
    pub consul_configuration: Option<serde_json::Value>,
    /// What its jobs may use together; None = as much as there is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<NamespaceLimits>,
    /// Claims of every workload identity in it, with their values, which may hold placeholders.
    pub required_extra_claims: Meta,
    /// Claims that an identity gets by naming them in `extra_claims`.
    pub optional_extra_claims: Meta,
    /// Free metadata.
    pub meta: Meta,
    /// Index of its creation.
    pub create_index: StoreIndex,
    /// Index of its last change.
    pub modify_index: StoreIndex,
}

/// What jobs of a namespace may use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct NamespaceCapabilities {
    /// Only these drivers, when not empty.
    pub enabled_task_drivers: Vec<String>,
    /// None of these drivers.
    pub disabled_task_drivers: Vec<String>,
    /// Only these network modes, when not empty.
    pub enabled_network_modes: Vec<String>,
    /// None of these network modes.
    pub disabled_network_modes: Vec<String>,
}

/// What the jobs of a namespace may use together. Drover's own; None = no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NamespaceLimits {
    /// Allocations that are to run.
    #[serde(rename = "Allocations")]
    pub allocations: Option<i64>,
    /// MHz of their tasks, remote ones too.
    #[serde(rename = "CPU")]
    pub cpu: Option<i64>,
    /// MiB of memory of their tasks, remote ones too.
    #[serde(rename = "MemoryMB")]
    pub memory_mb: Option<i64>,
    /// Remote tasks.
    #[serde(rename = "RemoteTasks")]
    pub remote_tasks: Option<i64>,
}

/// What the allocations of a namespace use that are to run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NamespaceUse {
    /// Their number.
    #[serde(rename = "Allocations")]
    pub allocations: i64,
    /// MHz.
    #[serde(rename = "CPU")]
    pub cpu: i64,
    /// MiB.
    #[serde(rename = "MemoryMB")]
    pub memory_mb: i64,
    /// Remote tasks among theirs.
    #[serde(rename = "RemoteTasks")]
    pub remote_tasks: i64,
}

impl NamespaceUse {
    /// What one allocation uses.
    #[must_use]
    pub fn of(resources: &AllocatedResources) -> Self {
        let mut sum = Self { allocations: 1, ..Self::default() };
        for task in resources.tasks.values() {
            sum.cpu = sum.cpu.saturating_add(task.cpu.cpu_shares);
            sum.memory_mb = sum.memory_mb.saturating_add(task.memory.memory_mb);
            sum.remote_tasks = sum.remote_tasks.saturating_add(i64::from(task.remote));
        }
        sum
    }

    /// The sum of this and `times` that; less of it where that is negative.
    #[must_use]
    pub fn plus(self, other: &Self, times: i64) -> Self {
        let sum = |a: i64, b: i64| a.saturating_add(b.saturating_mul(times));
        Self {
            allocations: sum(self.allocations, other.allocations),
            cpu: sum(self.cpu, other.cpu),
            memory_mb: sum(self.memory_mb, other.memory_mb),
            remote_tasks: sum(self.remote_tasks, other.remote_tasks),
        }
    }
}

impl NamespaceLimits {
    /// Each limit that is set: what it limits, its unit with a blank before it, the limit, and that part of two uses.
    pub fn each(
        &self,
        a: &NamespaceUse,
        b: &NamespaceUse,
    ) -> impl Iterator<Item = (&'static str, &'static str, i64, (i64, i64))> {
        let rows = [
            ("allocations", "", self.allocations, (a.allocations, b.allocations)),
            ("cpu", " MHz", self.cpu, (a.cpu, b.cpu)),
            ("memory", " MiB", self.memory_mb, (a.memory_mb, b.memory_mb)),
            ("remote_tasks", "", self.remote_tasks, (a.remote_tasks, b.remote_tasks)),
        ];
        rows.into_iter().filter_map(|(what, unit, limit, uses)| Some((what, unit, limit?, uses)))
    }
}

/// A duration as text, where empty text is 0, or as a number.
fn empty_is_zero<'de, D: serde::Deserializer<'de>>(d: D) -> Result<GoDuration, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Written {
        Text(String),
        Duration(GoDuration),
    }
    match Written::deserialize(d)? {
        Written::Text(text) if text.is_empty() => Ok(GoDuration::ZERO),
        Written::Text(text) => text.parse().map_err(serde::de::Error::custom),
        Written::Duration(duration) => Ok(duration),
    }
}

/// A node pool.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct NodePool {
    /// Name.
    pub name: Arc<str>,
    /// Free text.
    pub description: String,
    /// Free metadata.
    pub meta: Meta,
    /// How long an identity of its nodes is valid; 0 = the servers' default. The Go client of Nomad 2.0 writes 0 as
    /// empty text.
    #[serde(rename = "NodeIdentityTTL", deserialize_with = "empty_is_zero")]
    pub node_identity_ttl: GoDuration,
    /// Overrides of the cluster's scheduler settings.
    pub scheduler_configuration: Option<NodePoolScheduler>,
    /// Index of its creation.
    pub create_index: StoreIndex,
    /// Index of its last change.
    pub modify_index: StoreIndex,
}

/// Overrides of the cluster's scheduler settings for one pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct NodePoolScheduler {
    /// `binpack`, `spread`, or empty for the cluster's.
    pub scheduler_algorithm: String,
    /// None = the cluster's.
    pub memory_oversubscription_enabled: Option<bool>,
}

/// The text that a job version was registered from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct Submission {
    /// The text.
    pub source: String,
    /// `hcl2` or `json`.
    pub format: String,
    /// Variables given as flags.
    pub variable_flags: BTreeMap<String, String>,
    /// Text of variable files.
    pub variables: String,
    /// Namespace of the job.
    pub namespace: Namespace,
    /// Job.
    #[serde(rename = "JobID")]
    pub job_id: JobId,
    /// Version.
    pub version: u64,
    /// JobModifyIndex of the version.
    pub job_modify_index: StoreIndex,
}

/// What was asked of the counts of a job's groups.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct JobScalingEvents {
    /// Namespace of the job.
    pub namespace: Namespace,
    /// Job.
    #[serde(rename = "JobID")]
    pub job_id: JobId,
    /// By group, the newest first; [`EVENTS_KEPT`](crate::scaling::EVENTS_KEPT) of each.
    pub events: BTreeMap<Arc<str>, Vec<ScalingEvent>>,
    /// Index of the last one.
    pub modify_index: StoreIndex,
}

/// Counts of a job's allocations by group. Ended allocations stay counted after they are collected.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct JobSummary {
    /// Job.
    #[serde(rename = "JobID")]
    pub job_id: JobId,
    /// Namespace of the job.
    pub namespace: Namespace,
    /// By group.
    pub summary: Map<Arc<str>, GroupSummary>,
    /// Launched and dispatched jobs, for their parent.
    pub children: Option<JobChildren>,
    /// The launch of a periodic job that was made or left out last; Unix seconds. For the servers alone.
    #[serde(skip_serializing_if = "is_zero")]
    pub last_launch: i64,
    /// Index of its creation.
    pub create_index: StoreIndex,
    /// Index of its last change.
    pub modify_index: StoreIndex,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &i64) -> bool {
    *number == 0
}

/// Counts of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct GroupSummary {
    /// Wait for room.
    pub queued: i64,
    /// Ended well.
    pub complete: i64,
    /// Ended badly.
    pub failed: i64,
    /// Run.
    pub running: i64,
    /// Placed, not running yet.
    pub starting: i64,
    /// On nodes that are gone.
    pub lost: i64,
    /// On nodes that are cut off.
    pub unknown: i64,
}

/// Counts of launched and dispatched jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct JobChildren {
    /// Not running yet.
    pub pending: i64,
    /// Run.
    pub running: i64,
    /// Ended.
    pub dead: i64,
}

//! Policies that a group (or job, or task) declares and the scheduler or node follows. Fields are `Option` so that an
//! inner block can be merged over an outer one; after canonicalisation all of them are set.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    go_duration::GoDuration,
    ids::StoreIndex,
    schema::{Described, Field, Kind, Shape, Unset, opaque::api},
};

/// How a new job version replaces the running one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, Described)]
#[serde(default, rename_all = "PascalCase")]
#[job(policy)]
pub struct Update {
    /// Accepted for old job files: the health of allocations sets the pace.
    #[job(default = "30s")]
    pub stagger: Option<GoDuration>,
    /// Allocations replaced at once; 0 replaces all at once, without a deployment.
    #[job(default = 1)]
    pub max_parallel: Option<i32>,
    /// `checks`, `task_states` or `manual`.
    #[job(default = "checks")]
    pub health_check: Option<String>,
    /// How long an allocation must stay healthy before it counts.
    #[job(default = "10s")]
    pub min_healthy_time: Option<GoDuration>,
    /// By when an allocation must have become healthy.
    #[job(default = "5m")]
    pub healthy_deadline: Option<GoDuration>,
    /// By when the deployment must have made progress.
    #[job(default = "10m")]
    pub progress_deadline: Option<GoDuration>,
    /// Return to the last stable version when the deployment fails.
    #[job(default = false)]
    pub auto_revert: Option<bool>,
    /// Promote canaries when all are healthy.
    #[job(default = false)]
    pub auto_promote: Option<bool>,
    /// Number of canaries; for a system job the percentage of the replaced allocations that are canaries.
    #[job(default = 0)]
    pub canary: Option<i32>,
}

/// What the node does when a task ends by itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, Described)]
#[serde(default, rename_all = "PascalCase")]
#[job(policy, decides)]
pub struct Restart {
    /// Restarts within the interval.
    #[job(default = 2, says = "2; 3 for batch and sysbatch jobs", in_place)]
    pub attempts: Option<i32>,
    /// Window in which attempts are counted.
    #[job(default = "30m", says = "30m; 24h for batch and sysbatch jobs", in_place)]
    pub interval: Option<GoDuration>,
    /// Pause before a restart; up to a quarter is added as jitter.
    #[job(default = "15s", in_place)]
    pub delay: Option<GoDuration>,
    /// `fail` or `delay`: what happens when attempts are used up.
    #[job(default = "fail", in_place)]
    pub mode: Option<String>,
    /// Render templates again on each restart.
    #[job(default = false, replaces_local)]
    pub render_templates: Option<bool>,
}

/// What the servers do when an allocation has failed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, Described)]
#[serde(default, rename_all = "PascalCase")]
#[job(policy)]
pub struct Reschedule {
    /// New allocations within the interval.
    #[job(default = 0, says = "0; 1 for batch jobs")]
    pub attempts: Option<i32>,
    /// Window in which attempts are counted.
    #[job(default = "0s", says = "0s; 24h for batch jobs")]
    pub interval: Option<GoDuration>,
    /// Pause before the first.
    #[job(default = "30s", says = "30s; 5s for batch jobs")]
    pub delay: Option<GoDuration>,
    /// `constant`, `exponential` or `fibonacci`.
    #[job(default = "exponential", says = "exponential; constant for batch jobs")]
    pub delay_function: Option<String>,
    /// Upper bound of the pause.
    #[job(default = "1h", says = "1h; 0s for batch jobs")]
    pub max_delay: Option<GoDuration>,
    /// Never give up.
    #[job(default = true, says = "true; false for batch jobs")]
    pub unlimited: Option<bool>,
}

/// How allocations leave a draining node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, Described)]
#[serde(default, rename_all = "PascalCase")]
#[job(policy)]
pub struct Migrate {
    /// Allocations of the group migrated at once.
    #[job(default = 1)]
    pub max_parallel: Option<i32>,
    /// `checks` or `task_states`.
    #[job(default = "checks")]
    pub health_check: Option<String>,
    /// How long the replacement must be healthy.
    #[job(default = "10s")]
    pub min_healthy_time: Option<GoDuration>,
    /// By when it must be healthy.
    #[job(default = "5m")]
    pub healthy_deadline: Option<GoDuration>,
}

/// What happens to allocations of a node that cannot be reached.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Described)]
#[serde(default, rename_all = "PascalCase")]
pub struct Disconnect {
    /// How long an allocation may stay unknown before it is lost.
    pub lost_after: Option<GoDuration>,
    /// How long the node waits before it stops the allocation itself.
    pub stop_on_client_after: Option<GoDuration>,
    /// Place a replacement meanwhile.
    #[job(default = true)]
    pub replace: Option<bool>,
    /// Which one stays on return: `keep_original`, `keep_replacement`, `best_score` or `longest_running`.
    #[job(default = "best_score")]
    pub reconcile: Option<String>,
}

/// What holds for a group while its node is cut off, whichever way its job says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// After this the allocation is lost; None = it is waited for as long as it takes.
    pub lost_after: Option<GoDuration>,
    /// It is replaced meanwhile.
    pub replace: bool,
    /// Which one stays when it comes back.
    pub pick: Pick,
}

/// Which of two allocations stays when the one that was cut off comes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pick {
    /// The one that was cut off.
    KeepOriginal,
    /// The one that was placed meanwhile.
    KeepReplacement,
    /// The one whose node had the better score.
    #[default]
    BestScore,
    /// The one that has run for longer.
    LongestRunning,
}

impl Pick {
    /// By the name that jobs use.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        Some(match name {
            "keep_original" => Self::KeepOriginal,
            "keep_replacement" => Self::KeepReplacement,
            "best_score" | "" => Self::BestScore,
            "longest_running" => Self::LongestRunning,
            _ => return None,
        })
    }
}

/// What scaling policies have besides their fields.
const OF_SCALING: &[Field] = &[api("Namespace", Shape::Value(Kind::Text), Unset::Text)];

/// Bounds for an autoscaler.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Described)]
#[serde(default)]
#[job(extra = OF_SCALING)]
pub struct Scaling {
    /// False: no scaling, and the block stays.
    #[serde(rename = "Enabled")]
    #[job(default = true)]
    pub enabled: Option<bool>,
    /// Lower bound.
    #[serde(rename = "Min")]
    #[job(says = "`count`")]
    pub min: Option<i64>,
    /// Upper bound.
    #[serde(rename = "Max")]
    pub max: Option<i64>,
    /// What the autoscaler reads.
    #[serde(rename = "Policy")]
    pub policy: Option<serde_json::Value>,
    /// `horizontal`, `vertical_cpu` or `vertical_mem`.
    #[serde(rename = "Type")]
    #[job(hcl = "type", says = "that of its place")]
    pub kind: String,
    /// Assigned by the servers.
    #[serde(rename = "ID")]
    #[job(api)]
    pub id: String,
    /// Namespace, Job, Group, Task.
    #[serde(rename = "Target")]
    #[job(api)]
    pub target: BTreeMap<String, String>,
    /// Index of the registration that has brought it; see [`crate::scaling`].
    #[serde(rename = "CreateIndex")]
    #[job(api)]
    pub create_index: StoreIndex,
    /// Index of the registration that has changed it last.
    #[serde(rename = "ModifyIndex")]
    #[job(api)]
    pub modify_index: StoreIndex,
}

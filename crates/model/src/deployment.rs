//! A deployment: the roll-out of one job version.
//!
//! ```text
//! running ─► successful | failed | cancelled        running ◄─► paused
//! ```

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{
    go_duration::GoDuration,
    ids::{AllocId, DeploymentId, JobId, JobKey, Namespace, StoreIndex, TimestampNs},
    map::Map,
};

/// Status of a deployment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeploymentStatus {
    /// Under way.
    #[default]
    Running,
    /// Held by a user.
    Paused,
    /// All healthy.
    Successful,
    /// Unhealthy allocations or a missed deadline.
    Failed,
    /// Superseded by a newer version or a stop.
    Cancelled,
    /// Waits for another region (enterprise; never set here).
    Blocked,
    /// Being unblocked (enterprise; never set here).
    Unblocking,
    /// Just created (multi-region; never set here).
    Initializing,
    /// Waits for other regions (enterprise; never set here).
    Pending,
}

impl DeploymentStatus {
    /// Still able to change.
    #[must_use]
    pub fn active(self) -> bool {
        matches!(
            self,
            Self::Running | Self::Paused | Self::Blocked | Self::Unblocking | Self::Initializing | Self::Pending
        )
    }
}

/// A deployment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Deployment {
    /// Id.
    #[serde(rename = "ID")]
    pub id: DeploymentId,
    /// Namespace of the job.
    #[serde(rename = "Namespace")]
    pub namespace: Namespace,
    /// Job.
    #[serde(rename = "JobID")]
    pub job_id: JobId,
    /// Version that is rolled out.
    #[serde(rename = "JobVersion")]
    pub job_version: u64,
    /// ModifyIndex of the job at creation.
    #[serde(rename = "JobModifyIndex")]
    pub job_modify_index: StoreIndex,
    /// JobModifyIndex (specification) of the job at creation.
    #[serde(rename = "JobSpecModifyIndex")]
    pub job_spec_modify_index: StoreIndex,
    /// CreateIndex of the job.
    #[serde(rename = "JobCreateIndex")]
    pub job_create_index: StoreIndex,
    /// Enterprise.
    #[serde(rename = "IsMultiregion")]
    pub is_multiregion: bool,
    /// By group.
    #[serde(rename = "TaskGroups")]
    pub groups: Map<Arc<str>, DeploymentGroup>,
    /// Status.
    #[serde(rename = "Status")]
    pub status: DeploymentStatus,
    /// Why.
    #[serde(rename = "StatusDescription")]
    pub status_description: String,
    /// Priority of its evaluations.
    #[serde(rename = "EvalPriority")]
    pub eval_priority: i32,
    /// Index of its creation.
    #[serde(rename = "CreateIndex")]
    pub create_index: StoreIndex,
    /// Index of its last change.
    #[serde(rename = "ModifyIndex")]
    pub modify_index: StoreIndex,
    /// When it was created.
    #[serde(rename = "CreateTime")]
    pub create_time: TimestampNs,
    /// When it was last changed.
    #[serde(rename = "ModifyTime")]
    pub modify_time: TimestampNs,
}

impl Deployment {
    /// What its description says while canaries wait to be promoted; None when there are none.
    #[must_use]
    pub fn awaited_promotion(&self) -> Option<&'static str> {
        let mut waiting = self.groups.values().filter(|g| g.desired_canaries > 0 && !g.promoted).peekable();
        waiting.peek()?;
        let by_itself = waiting.all(|g| g.auto_promote);
        Some(if by_itself {
            "Deployment is running pending automatic promotion"
        } else {
            "Deployment is running but requires manual promotion"
        })
    }

    /// The job's full name.
    #[must_use]
    pub fn job_key(&self) -> JobKey {
        JobKey { namespace: self.namespace.clone(), id: self.job_id.clone() }
    }
}

/// Progress of one group.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct DeploymentGroup {
    /// Return to the stable version on failure.
    pub auto_revert: bool,
    /// Promote when all canaries are healthy.
    pub auto_promote: bool,
    /// By when progress must be made, from the last progress.
    pub progress_deadline: GoDuration,
    /// That instant, RFC 3339; Go's zero time when there is none.
    #[serde(with = "crate::go_time::text")]
    pub require_progress_by: String,
    /// The same instant for deciding, Unix ns; 0 = none.
    #[serde(rename = "RequireProgressByNs")]
    pub require_progress_by_ns: TimestampNs,
    /// Canaries are promoted.
    pub promoted: bool,
    /// Canaries placed.
    pub placed_canaries: Vec<AllocId>,
    /// Canaries wanted.
    pub desired_canaries: i32,
    /// Allocations wanted.
    pub desired_total: i32,
    /// Allocations placed.
    pub placed_allocs: i32,
    /// Of these healthy.
    pub healthy_allocs: i32,
    /// Of these unhealthy.
    pub unhealthy_allocs: i32,
}

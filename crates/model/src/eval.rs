//! An evaluation: a reason to schedule.
//!
//! ```text
//! pending ─► complete | failed | canceled
//!    └─────► blocked (no room) ─► pending (room appears) | canceled (superseded)
//! ```

use std::{collections::BTreeMap, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::{
    ids::{DeploymentId, EvalId, JobId, JobKey, Namespace, NodeId, StoreIndex, TimestampNs},
    job::JobType,
    map::Map,
    metrics::AllocMetric,
};

/// Status of an evaluation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EvalStatus {
    /// To be worked on.
    #[default]
    Pending,
    /// Waits for room.
    Blocked,
    /// Done.
    Complete,
    /// Given up after too many attempts.
    Failed,
    /// Superseded.
    #[serde(rename = "canceled")]
    Canceled,
}

impl EvalStatus {
    /// Nothing more happens.
    #[must_use]
    pub fn terminal(self) -> bool {
        matches!(self, Self::Complete | Self::Failed | Self::Canceled)
    }
}

/// Trigger of an evaluation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Trigger {
    /// A job was registered.
    #[default]
    JobRegister,
    /// A job was stopped.
    JobDeregister,
    /// A periodic launch.
    PeriodicJob,
    /// A node is draining.
    NodeDrain,
    /// A node changed.
    NodeUpdate,
    /// A user stopped an allocation.
    AllocStop,
    /// Scheduled by an operator.
    Scheduled,
    /// The next batch of a rolling update.
    RollingUpdate,
    /// A deployment changed.
    DeploymentWatcher,
    /// Failed allocations are rescheduled later.
    FailedFollowUp,
    /// Plans did not fit too often.
    MaxPlanAttempts,
    /// An allocation failed. Records of before call it otherwise.
    #[serde(alias = "retry-failed-alloc")]
    AllocFailure,
    /// Queued allocations were waiting.
    QueuedAllocs,
    /// A preemption.
    Preemption,
    /// A job was scaled.
    JobScaling,
    /// A node timed out or came back.
    MaxDisconnectTimeout,
    /// A node came back.
    Reconnect,
    /// A remote task changed.
    RemoteTask,
}

/// An evaluation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Evaluation {
    /// Id.
    #[serde(rename = "ID")]
    pub id: EvalId,
    /// Namespace of the job.
    #[serde(rename = "Namespace")]
    pub namespace: Namespace,
    /// Priority of the job.
    #[serde(rename = "Priority")]
    pub priority: i32,
    /// Kind of the job.
    #[serde(rename = "Type")]
    pub kind: JobType,
    /// What caused it.
    #[serde(rename = "TriggeredBy")]
    pub trigger: Trigger,
    /// Job.
    #[serde(rename = "JobID")]
    pub job_id: JobId,
    /// Index of the job when it was created.
    #[serde(rename = "JobModifyIndex")]
    pub job_modify_index: StoreIndex,
    /// Node, for node triggers.
    #[serde(rename = "NodeID")]
    pub node_id: NodeId,
    /// Index of the node.
    #[serde(rename = "NodeModifyIndex")]
    pub node_modify_index: StoreIndex,
    /// Deployment, for deployment triggers.
    #[serde(rename = "DeploymentID")]
    pub deployment_id: DeploymentId,
    /// Status.
    #[serde(rename = "Status")]
    pub status: EvalStatus,
    /// Why.
    #[serde(rename = "StatusDescription")]
    pub status_description: String,
    /// Not before this time, Unix ns; 0 = at once.
    #[serde(rename = "WaitUntilNs")]
    pub wait_until: TimestampNs,
    /// Follows.
    #[serde(rename = "NextEval")]
    pub next_eval: EvalId,
    /// Precedes.
    #[serde(rename = "PreviousEval")]
    pub previous_eval: EvalId,
    /// The blocked evaluation that holds what found no room.
    #[serde(rename = "BlockedEval")]
    pub blocked_eval: EvalId,
    /// Why groups found no room.
    #[serde(rename = "FailedTGAllocs")]
    pub failed_groups: BTreeMap<Arc<str>, AllocMetric>,
    /// The namespace whose limits leave no room; empty = another reason.
    #[serde(rename = "QuotaLimitReached", skip_serializing_if = "Namespace::is_empty")]
    pub limit_reached: Namespace,
    /// Classes that were feasible or not, for waking.
    #[serde(rename = "ClassEligibility")]
    pub class_eligibility: BTreeMap<String, bool>,
    /// Rules depend on unique attributes: any node may wake it.
    #[serde(rename = "EscapedComputedClass")]
    pub escaped_computed_class: bool,
    /// Annotations were asked for (dry run).
    #[serde(rename = "AnnotatePlan")]
    pub annotate_plan: bool,
    /// Allocations of each group that wait for room.
    #[serde(rename = "QueuedAllocations")]
    pub queued: Map<Arc<str>, i64>,
    /// Index of the snapshot that was scheduled on.
    #[serde(rename = "SnapshotIndex")]
    pub snapshot_index: StoreIndex,
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

impl Evaluation {
    /// The job's full name.
    #[must_use]
    pub fn job_key(&self) -> JobKey {
        JobKey { namespace: self.namespace.clone(), id: self.job_id.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_trigger_of_failed_allocations_has_its_name_on_the_wire_and_is_read_under_its_old_one() {
        assert_eq!(serde_json::to_string(&Trigger::AllocFailure).unwrap(), r#""alloc-failure""#);
        assert_eq!(serde_json::from_str::<Trigger>(r#""retry-failed-alloc""#).unwrap(), Trigger::AllocFailure);
    }
}

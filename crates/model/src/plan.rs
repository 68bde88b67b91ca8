//! A plan: what a scheduler proposes, and what of it was committed.

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    alloc::{Allocation, ClientStatus},
    deployment::{Deployment, DeploymentStatus},
    eval::Evaluation,
    ids::{AllocId, DeploymentId, EvalId, NodeId, StoreIndex},
    job::Job,
    map::Map,
    metrics::AllocMetric,
};

/// A change to an existing allocation that the plan stops.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedStop {
    /// The allocation.
    pub id: AllocId,
    /// Where it is.
    pub node_id: NodeId,
    /// Why, for people.
    pub description: String,
    /// Set when the servers know better than the node (lost, unknown).
    pub client_status: Option<ClientStatus>,
    /// Evaluation that will reschedule it.
    pub followup_eval_id: EvalId,
    /// The allocation of the same plan that it is displaced for; nil = it is stopped.
    pub preempted_by: AllocId,
}

/// A proposal. The applier commits what still fits, or nothing of it when `all_at_once`.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Evaluation that it answers.
    pub eval_id: EvalId,
    /// Priority of the job.
    pub priority: i32,
    /// All or nothing.
    pub all_at_once: bool,
    /// The job as it was scheduled; None when it is gone.
    pub job: Option<Arc<Job>>,
    /// Allocations to stop.
    pub stops: Vec<PlannedStop>,
    /// New allocations, and existing ones updated in place (same id), grouped by node for checking.
    pub placements: BTreeMap<NodeId, Vec<Allocation>>,
    /// Existing allocations with changed server-side fields that need no fit check (follow-up evaluation, health,
    /// in-place stop marks).
    pub attribute_updates: Vec<Allocation>,
    /// A new deployment, or the existing one with changed totals.
    pub deployment: Option<Deployment>,
    /// Status changes of deployments.
    pub deployment_updates: Vec<DeploymentUpdate>,
    /// Index of the snapshot that was scheduled on.
    pub snapshot_index: StoreIndex,
}

impl Plan {
    /// Nothing to commit.
    #[must_use]
    pub fn is_no_op(&self) -> bool {
        self.stops.is_empty()
            && self.placements.is_empty()
            && self.attribute_updates.is_empty()
            && self.deployment.is_none()
            && self.deployment_updates.is_empty()
    }
}

/// A status change of a deployment.
#[derive(Clone, Debug, PartialEq)]
pub struct DeploymentUpdate {
    /// Deployment.
    pub id: DeploymentId,
    /// New status.
    pub status: DeploymentStatus,
    /// Why.
    pub description: String,
}

/// The committed part of a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlanResult {
    /// Index of the commit; 0 when nothing was committed.
    pub index: StoreIndex,
    /// Nodes whose placements no longer fitted, with the reason.
    pub refused: BTreeMap<NodeId, String>,
    /// When something was refused: schedule again on a snapshot at least this new.
    pub refresh_index: StoreIndex,
}

/// Everything that one scheduling run decided.
#[derive(Clone, Debug, Default)]
pub struct Decision {
    /// What to commit.
    pub plan: Plan,
    /// Evaluations to create: blocked, follow-up, next batch.
    pub new_evals: Vec<Evaluation>,
    /// Groups that found no room, with the reasons.
    pub failed_groups: BTreeMap<Arc<str>, AllocMetric>,
    /// Allocations of each group still to be placed.
    pub queued: Map<Arc<str>, i64>,
    /// One evaluation for each job that loses allocations to this plan: to be created with the part of the plan that
    /// displaces them.
    pub displaced: Vec<Evaluation>,
    /// What would be done, by group (dry run).
    pub annotations: BTreeMap<Arc<str>, DesiredUpdates>,
}

/// Counts for `job plan`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct DesiredUpdates {
    /// Left alone.
    pub ignore: u64,
    /// Placed.
    pub place: u64,
    /// Migrated.
    pub migrate: u64,
    /// Stopped.
    pub stop: u64,
    /// Updated in place.
    pub in_place_update: u64,
    /// Replaced.
    pub destructive_update: u64,
    /// Canaries.
    pub canary: u64,
    /// Displaced.
    pub preemptions: u64,
    /// Disconnected.
    pub disconnect: u64,
    /// Reconnected.
    pub reconnect: u64,
    /// Rescheduled at once.
    pub reschedule_now: u64,
    /// Rescheduled later.
    pub reschedule_later: u64,
}

//! What may change: the only way to alter a [`State`](crate::State).

use std::sync::Arc;

use model::{
    alloc::{AllocClientUpdate, Allocation, DesiredTransition},
    deployment::Deployment,
    eval::Evaluation,
    ids::{AllocId, DeploymentId, EvalId, JobKey, NodeId, SlotKey, StoreIndex},
    job::{Job, VersionTag},
    node::{DrainStrategy, Eligibility, Node, NodeEvent, NodeStatus},
    plan::{DeploymentUpdate, Plan},
    records::{NamespaceRecord, NodePool, Submission},
    remote::RemoteTask,
    scaling::ScalingEvent,
    scheduler_config::SchedulerConfig,
};

use crate::lineage::ClusterMeta;

/// Changes that are committed together, at one index.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// What must hold; when anything of it does not, nothing is changed.
    pub expect: Vec<Expect>,
    /// The changes, in order.
    pub changes: Vec<Change>,
    /// It is a step of the recovery itself, see [`Batch::waits_for_recovery`].
    pub recovers: bool,
}

impl Batch {
    /// A batch without conditions.
    #[must_use]
    pub fn new(changes: Vec<Change>) -> Self {
        Self { changes, ..Self::default() }
    }
    /// Adds a condition.
    #[must_use]
    pub fn expecting(mut self, expect: Expect) -> Self {
        self.expect.push(expect);
        self
    }
    /// Adds a change.
    pub fn push(&mut self, change: Change) -> &mut Self {
        self.changes.push(change);
        self
    }
    /// Whether anything of it must wait while the servers recover a state that may be from the past: nothing is created, stopped, moved, collected or
    /// counted as lost on the word of such a state. What nodes say of themselves is always taken, and so is the wish for an evaluation, which
    /// nobody works on before the end.
    #[must_use]
    pub fn waits_for_recovery(&self) -> bool {
        let taken = |change: &Change| {
            matches!(
                change,
                Change::RegisterNode(_)
                    | Change::NodeStatus { .. }
                    | Change::NodeEvents(..)
                    | Change::UpdateAllocsFromClient(_)
                    | Change::UpsertEvals(_)
                    | Change::PutNodePool(_)
                    | Change::SetClusterMeta(_)
            )
        };
        !self.recovers && !self.changes.iter().all(taken)
    }
    /// Nothing to change.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }
}

impl From<Change> for Batch {
    fn from(change: Change) -> Self {
        Self::new(vec![change])
    }
}

impl From<Vec<Change>> for Batch {
    fn from(changes: Vec<Change>) -> Self {
        Self::new(changes)
    }
}

/// A condition that is checked against the state that the batch is applied to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expect {
    /// The job's `job_modify_index`; 0 = there is no such job.
    JobModifyIndex(JobKey, StoreIndex),
    /// The job exists.
    JobExists(JobKey),
    /// The node exists.
    NodeExists(NodeId),
    /// The node's `modify_index`; 0 = there is no such node.
    NodeModifyIndex(NodeId, StoreIndex),
    /// The deployment exists and can still change.
    DeploymentActive(DeploymentId),
    /// The remote task's `modify_index`; 0 = there is no record of the slot.
    RemoteModifyIndex(SlotKey, StoreIndex),
    /// The scheduler settings' `modify_index`.
    SchedulerConfigIndex(StoreIndex),
}

/// Why a batch was refused. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApplyError {
    /// A condition does not hold.
    #[error("the change was made for {expected}, but found {found}; read it again and retry")]
    Conflict {
        /// What was expected.
        expected: String,
        /// What was there.
        found: String,
        /// The condition.
        expect: Box<Expect>,
    },
    /// Indexes only grow.
    #[error("cannot apply a batch at index {given}: the state is at {current} already")]
    StaleIndex {
        /// Index of the batch.
        given: StoreIndex,
        /// Index of the state.
        current: StoreIndex,
    },
}

/// One change. Objects that a change names but that do not exist are passed over: what is gone needs no change.
#[derive(Clone, Debug)]
pub enum Change {
    /// A node registers: facts come from the node; drain, eligibility, events, status time and indexes stay the servers'. The computed class is filled in.
    RegisterNode(Box<Node>),
    /// Status of a node.
    NodeStatus {
        /// Node.
        id: NodeId,
        /// New status.
        status: NodeStatus,
        /// Why.
        description: String,
        /// Put on record.
        event: Option<NodeEvent>,
    },
    /// Start, change or end a drain.
    NodeDrain {
        /// Node.
        id: NodeId,
        /// The drain; None ends it.
        drain: Option<DrainStrategy>,
        /// With `drain: None`: may be placed on again. A drain always makes the node ineligible.
        mark_eligible: bool,
        /// What to show as the last drain.
        last_drain: Option<serde_json::Value>,
        /// Put on record.
        event: Option<NodeEvent>,
    },
    /// May be placed on, or not.
    NodeEligibility {
        /// Node.
        id: NodeId,
        /// New eligibility.
        eligibility: Eligibility,
        /// Put on record.
        event: Option<NodeEvent>,
    },
    /// Facts of a node's drivers and attributes change between registrations.
    NodeEvents(NodeId, Vec<NodeEvent>),
    /// Forget a node.
    DeleteNode(NodeId),

    /// A user registers a job (canonical). The version is decided here: same specification = same version, anything else the next one.
    UpsertJob {
        /// The job; version, indexes, status and stability are filled in.
        job: Box<Job>,
        /// Source text.
        submission: Option<Box<Submission>>,
    },
    /// A user stops a job: a new version with `stop` set.
    StopJob(JobKey),
    /// Forget a job with its versions, submissions, summary, and allocations that have ended; the others go when they end.
    DeleteJob(JobKey),
    /// Whether a version is known to be good.
    JobStability {
        /// Job.
        key: JobKey,
        /// Version.
        version: u64,
        /// Known to be good.
        stable: bool,
    },
    /// Name a version, or take its name away. Tagged versions are kept.
    JobVersionTag {
        /// Job.
        key: JobKey,
        /// Version.
        version: u64,
        /// The name.
        tag: Option<VersionTag>,
    },
    /// Put on record what was asked of a group's count.
    RecordScaling {
        /// Job.
        key: JobKey,
        /// Group.
        group: Arc<str>,
        /// The event; its index is filled in.
        event: Box<ScalingEvent>,
    },

    /// Create or change evaluations. A completed one settles the queued counts of its job.
    UpsertEvals(Vec<Evaluation>),
    /// Forget evaluations.
    DeleteEvals(Vec<EvalId>),

    /// Commit a plan (what is left of it after verification).
    ApplyPlan(Box<Plan>),
    /// What a node reports; only the fields that belong to the node change.
    UpdateAllocsFromClient(Vec<AllocClientUpdate>),
    /// What should happen next to allocations; given fields are set, absent ones stay.
    AllocTransitions(Vec<(AllocId, DesiredTransition)>),
    /// Write allocations as they are (indexes aside). For restoring and for tests; schedulers use plans.
    UpsertAllocs(Vec<Allocation>),
    /// Forget allocations.
    DeleteAllocs(Vec<AllocId>),

    /// Create or replace a deployment.
    UpsertDeployment(Box<Deployment>),
    /// Status of a deployment. Success marks the job version stable.
    DeploymentStatus(DeploymentUpdate),
    /// Health of allocations as an operator or watcher has decided it.
    DeploymentHealth {
        /// Deployment.
        id: DeploymentId,
        /// These are healthy.
        healthy: Vec<AllocId>,
        /// These are not.
        unhealthy: Vec<AllocId>,
    },
    /// Canaries of a deployment are taken for good: they count like all others from now on.
    DeploymentPromotion {
        /// Deployment.
        id: DeploymentId,
        /// Of these groups; None = of all.
        groups: Option<Vec<Arc<str>>>,
    },
    /// Progress is due one progress deadline from now in each group that has begun: a pause has ended.
    DeploymentProgress(DeploymentId),
    /// Forget deployments.
    DeleteDeployments(Vec<DeploymentId>),

    /// Write the record of a slot.
    PutRemoteTask(Box<RemoteTask>),
    /// The slot is done with.
    DeleteRemoteTask(SlotKey),

    /// Forget a registration of a service; its node makes it again with its next report, if it still stands.
    DeleteService(Arc<str>),

    /// Create or change a namespace.
    PutNamespace(NamespaceRecord),
    /// Forget a namespace; the built-in one stays.
    DeleteNamespace(model::ids::Namespace),
    /// Create or change a node pool.
    PutNodePool(NodePool),
    /// Forget a node pool; built-in ones stay.
    DeleteNodePool(Arc<str>),
    /// Scheduler settings.
    SetSchedulerConfig(SchedulerConfig),
    /// What the cluster is.
    SetClusterMeta(Box<ClusterMeta>),
    /// A node's copy of a job is kept for the allocations that run it, with version and indexes as they are there, unless that version is known.
    RecoverJob {
        /// The copy.
        job: Arc<Job>,
        /// It also becomes what is wanted now, when it is newer than what is known of the job: a version that this state has lost, or a job that it has
        /// lost altogether.
        current: bool,
    },
}

//! The possible changes: the only way to alter a [`State`](crate::State).

use std::sync::Arc;

use model::{
    acl::{AclPolicy, AclRole, AclToken, OneTimeToken},
    acl_login::{AclAuthMethod, AclBindingRule},
    alloc::{AllocClientUpdate, Allocation, DesiredTransition},
    deployment::Deployment,
    eval::Evaluation,
    ids::{AllocId, ClaimId, DeploymentId, EvalId, JobKey, NodeId, SlotKey, StoreIndex, VolumeId},
    job::{Job, VersionTag},
    node::{DrainStrategy, Eligibility, Node, NodeEvent, NodeStatus},
    plan::{DeploymentUpdate, Plan},
    records::{NamespaceRecord, NodePool, Submission},
    remote::RemoteTask,
    scaling::ScalingEvent,
    scheduler_config::SchedulerConfig,
    signing::SigningKey,
    variables::{Variable, VariableKey},
    volume::{DynamicVolume, VolumeClaim},
};
use uuid::Uuid;

use crate::lineage::ClusterMeta;

/// Changes committed together, at one index.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// Conditions; if one does not hold, nothing changes.
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
    /// Whether any change must wait during a recovery of a state from the past. On such a state nothing is created,
    /// stopped, moved, collected or counted as lost. Nodes' reports on themselves always pass. So do signing keys,
    /// variables, access control (a leaked token must be revocable), and new evaluations, which nobody processes before
    /// the end.
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
                    | Change::PutSigningKey(_)
                    | Change::DeleteSigningKey(_)
                    | Change::PutAclPolicy(_)
                    | Change::DeleteAclPolicy(_)
                    | Change::PutAclToken(_)
                    | Change::DeleteAclToken(_)
                    | Change::PutAclRole(_)
                    | Change::DeleteAclRole(_)
                    | Change::PutAclAuthMethod(_)
                    | Change::DeleteAclAuthMethod(_)
                    | Change::PutAclBindingRule(_)
                    | Change::DeleteAclBindingRule(_)
                    | Change::PutOneTimeToken(_)
                    | Change::DeleteOneTimeToken(_)
                    | Change::AclBootstrapped
                    | Change::PutVariable(_)
                    | Change::DeleteVariable(_)
                    | Change::ResealVariable { .. }
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

/// A condition on the state under the batch.
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
        /// The expected value.
        expected: String,
        /// The actual value.
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

/// One change. Objects that do not exist are skipped: they need no change.
#[derive(Clone, Debug)]
pub enum Change {
    /// A node registers. Facts come from the node; drain, eligibility, events, status time and indexes stay the
    /// servers'. The computed class is filled in.
    RegisterNode(Box<Node>),
    /// Status of a node.
    NodeStatus {
        /// Node.
        id: NodeId,
        /// New status.
        status: NodeStatus,
        /// The reason.
        description: String,
        /// An event for the node's record.
        event: Option<NodeEvent>,
    },
    /// Start, change or end a drain.
    NodeDrain {
        /// Node.
        id: NodeId,
        /// The drain; `None` ends it.
        drain: Option<DrainStrategy>,
        /// With `drain: None`: make the node eligible. A drain always makes it ineligible.
        mark_eligible: bool,
        /// What to show as the last drain.
        last_drain: Option<serde_json::Value>,
        /// An event for the node's record.
        event: Option<NodeEvent>,
    },
    /// Sets whether the scheduler may use the node.
    NodeEligibility {
        /// Node.
        id: NodeId,
        /// New eligibility.
        eligibility: Eligibility,
        /// An event for the node's record.
        event: Option<NodeEvent>,
    },
    /// Events for a node's record.
    NodeEvents(NodeId, Vec<NodeEvent>),
    /// Forget a node.
    DeleteNode(NodeId),

    /// A user registers a job (canonical). The same specification keeps the version; any other gets the next one.
    UpsertJob {
        /// The job; version, indexes, status and stability are filled in.
        job: Box<Job>,
        /// Source text.
        submission: Option<Box<Submission>>,
    },
    /// A user stops a job: a new version with `stop` set.
    StopJob(JobKey),
    /// Deletes a job with its versions, submissions, summary, and ended allocations; the others go when they end.
    DeleteJob(JobKey),
    /// Marks a version as stable or not.
    JobStability {
        /// Job.
        key: JobKey,
        /// Version.
        version: u64,
        /// Whether it is stable.
        stable: bool,
    },
    /// Tags a version, or removes the tag. Tagged versions are kept.
    JobVersionTag {
        /// Job.
        key: JobKey,
        /// Version.
        version: u64,
        /// The tag.
        tag: Option<VersionTag>,
    },
    /// Records a scaling event of a group.
    RecordScaling {
        /// Job.
        key: JobKey,
        /// Group.
        group: Arc<str>,
        /// The event; its index is filled in.
        event: Box<ScalingEvent>,
    },

    /// Records that a launch of a periodic job was made or left out.
    RecordLaunch {
        /// Job.
        key: JobKey,
        /// The launch; Unix seconds.
        at: i64,
    },

    /// Create or change evaluations. A completed one settles the queued counts of its job.
    UpsertEvals(Vec<Evaluation>),
    /// Forget evaluations.
    DeleteEvals(Vec<EvalId>),

    /// Commit a plan, as left by its verification.
    ApplyPlan(Box<Plan>),
    /// A node's report; only the node's own fields change.
    UpdateAllocsFromClient(Vec<AllocClientUpdate>),
    /// Desired transitions of allocations; given fields are set, absent ones stay.
    AllocTransitions(Vec<(AllocId, DesiredTransition)>),
    /// Write allocations as they are (except indexes). For restores and tests; schedulers use plans.
    UpsertAllocs(Vec<Allocation>),
    /// Forget allocations.
    DeleteAllocs(Vec<AllocId>),

    /// Create or replace a deployment.
    UpsertDeployment(Box<Deployment>),
    /// Status of a deployment. Success marks the job version stable.
    DeploymentStatus(DeploymentUpdate),
    /// Health of allocations as an operator or the watcher has decided it.
    DeploymentHealth {
        /// Deployment.
        id: DeploymentId,
        /// These are healthy.
        healthy: Vec<AllocId>,
        /// These are not.
        unhealthy: Vec<AllocId>,
    },
    /// Promotes canaries of a deployment: they count like all others from now on.
    DeploymentPromotion {
        /// Deployment.
        id: DeploymentId,
        /// Groups to promote; `None` = all.
        groups: Option<Vec<Arc<str>>>,
    },
    /// After a pause: progress is due one progress deadline from now in each group that has begun.
    DeploymentProgress(DeploymentId),
    /// Forget deployments.
    DeleteDeployments(Vec<DeploymentId>),

    /// Write the record of a slot.
    PutRemoteTask(Box<RemoteTask>),
    /// Delete the record of a slot.
    DeleteRemoteTask(SlotKey),

    /// Delete a registration of a service; its node's next report makes it again if it still stands.
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
    /// Set identity and lineage of the cluster.
    SetClusterMeta(Box<ClusterMeta>),
    /// Create or change a signing key. One that was made elsewhere keeps its create index, which this state has to
    /// have reached; 0 = it is new.
    PutSigningKey(Box<SigningKey>),
    /// Forget a signing key.
    DeleteSigningKey(Uuid),
    /// Create or change a policy; its hash is filled in.
    PutAclPolicy(Box<AclPolicy>),
    /// Forget a policy. Roles and tokens that name it keep the name, as with one that never was.
    DeleteAclPolicy(Arc<str>),
    /// Create or change a token; its hash is filled in.
    PutAclToken(Box<AclToken>),
    /// Forget a token, with what would be exchanged for it.
    DeleteAclToken(Arc<str>),
    /// Create or change a role; its hash is filled in. Tokens follow a new name.
    PutAclRole(Box<AclRole>),
    /// Forget a role. Its tokens lose the link.
    DeleteAclRole(Arc<str>),
    /// Create or change a method to log in; its hash is filled in.
    PutAclAuthMethod(Box<AclAuthMethod>),
    /// Forget a method to log in, with its binding rules.
    DeleteAclAuthMethod(Arc<str>),
    /// Create or change a binding rule; its hash is filled in.
    PutAclBindingRule(Box<AclBindingRule>),
    /// Forget a binding rule.
    DeleteAclBindingRule(Arc<str>),
    /// Make a one-time token.
    PutOneTimeToken(Box<OneTimeToken>),
    /// Forget a one-time token, by the SHA-256 of its secret.
    DeleteOneTimeToken([u8; 32]),
    /// A first management token was made: the index of this batch is the next reset index.
    AclBootstrapped,
    /// Create or change a dynamic host volume; its indexes and times are filled in.
    PutVolume(Box<DynamicVolume>),
    /// Forget a dynamic host volume, with the claims on it.
    DeleteVolume(VolumeId),
    /// Create or change a claim on a volume; its indexes are filled in.
    PutVolumeClaim(Box<VolumeClaim>),
    /// Forget a claim on a volume.
    DeleteVolumeClaim(ClaimId),
    /// Create or change a variable; its indexes and times are filled in.
    PutVariable(Box<Variable>),
    /// Forget a variable.
    DeleteVariable(VariableKey),
    /// The same items encrypted with another key. Nothing else of the variable changes, its indexes included.
    ResealVariable {
        /// Variable.
        key: VariableKey,
        /// The key that has encrypted it now.
        key_id: Uuid,
        /// The encrypted items.
        data: String,
    },
    /// Keeps a node's copy of a job for the allocations that run it, with its version and indexes, unless that version
    /// is known.
    RecoverJob {
        /// The copy.
        job: Arc<Job>,
        /// Also make it the current version if it is newer than the known one: this state has lost that version, or the
        /// whole job.
        current: bool,
    },
}

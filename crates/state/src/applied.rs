//! The changes of a batch: the source of events, watches and durable rows.

use std::sync::Arc;

use model::{
    acl::{AclPolicy, AclRole, AclToken, OneTimeToken},
    acl_login::{AclAuthMethod, AclBindingRule},
    alloc::Allocation,
    deployment::Deployment,
    eval::Evaluation,
    ids::{JobKey, StoreIndex, TimestampNs},
    job::{Job, TaskGroup, VolumeRequest},
    node::Node,
    records::{JobScalingEvents, JobSummary, NamespaceRecord, NodePool, Submission},
    remote::RemoteTask,
    scheduler_config::SchedulerConfig,
    service::ServiceRegistration,
    signing::SigningKey,
    variables::Variable,
    volume::{DynamicVolume, VolumeClaim, host_requests},
};

use crate::{
    format::{DEVICES, Format, LIMITS, MAX_RUN, PREEMPTION, SECRETS, VOLUMES},
    lineage::ClusterMeta,
    table::{Table, TableSet},
};

/// The changes of a batch, in order. An object may appear more than once.
#[derive(Clone, Debug, Default)]
pub struct AppliedSet {
    /// Index of the batch.
    pub index: StoreIndex,
    /// Time of the batch.
    pub now: TimestampNs,
    /// Tables whose index is now `index`.
    pub tables: TableSet,
    /// The changed objects.
    pub changes: Vec<Changed>,
    /// Ids of shared values that appeared or disappeared: they have rows but no watchers.
    pub(crate) shared: Vec<u64>,
}

impl AppliedSet {
    /// Nothing was changed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }
    /// The format that its rows need: a server that reads no higher one does not know their table, or would ignore a
    /// part of them that counts.
    #[must_use]
    pub fn format(&self) -> Format {
        let rows = self.changes.iter().filter(|changed| !changed.deleted).map(|changed| changed.object.since());
        rows.max().unwrap_or(1).max(self.tables.since())
    }
    pub(crate) fn put(&mut self, cause: Cause, object: Object) {
        self.tables.insert(object.table());
        self.changes.push(Changed { cause, object, deleted: false });
    }
    pub(crate) fn delete(&mut self, cause: Cause, object: Object) {
        self.tables.insert(object.table());
        self.changes.push(Changed { cause, object, deleted: true });
    }
}

/// One changed object.
#[derive(Clone, Debug)]
pub struct Changed {
    /// Why it changed.
    pub cause: Cause,
    /// Its present form; its last one when `deleted`.
    pub object: Object,
    /// It is gone.
    pub deleted: bool,
}

/// An object of any table.
#[derive(Clone, Debug)]
pub enum Object {
    /// Node.
    Node(Arc<Node>),
    /// Job, newest version.
    Job(Arc<Job>),
    /// A version of a job.
    JobVersion(Arc<Job>),
    /// A version kept for the allocations that run it.
    RetainedJob(Arc<Job>),
    /// Source text of a job version.
    Submission(Arc<Submission>),
    /// Counts of a job's allocations.
    Summary(Arc<JobSummary>),
    /// The scaling events of a job.
    ScalingEvents(Arc<JobScalingEvents>),
    /// Evaluation.
    Eval(Arc<Evaluation>),
    /// Allocation.
    Alloc(Arc<Allocation>),
    /// Deployment.
    Deployment(Arc<Deployment>),
    /// Remote task.
    RemoteTask(Arc<RemoteTask>),
    /// Registration of a service.
    Service(Arc<ServiceRegistration>),
    /// Namespace.
    Namespace(Arc<NamespaceRecord>),
    /// Node pool.
    NodePool(Arc<NodePool>),
    /// Scheduler settings.
    SchedulerConfig(Arc<SchedulerConfig>),
    /// Identity and lineage of the cluster.
    ClusterMeta(Arc<ClusterMeta>),
    /// Signing key.
    SigningKey(Arc<SigningKey>),
    /// Policy.
    AclPolicy(Arc<AclPolicy>),
    /// Token, with its secret.
    AclToken(Arc<AclToken>),
    /// Role.
    AclRole(Arc<AclRole>),
    /// Method to log in, with its secrets.
    AclAuthMethod(Arc<AclAuthMethod>),
    /// Binding rule.
    AclBindingRule(Arc<AclBindingRule>),
    /// One-time token, with its secret.
    OneTimeToken(Arc<OneTimeToken>),
    /// Variable.
    Variable(Arc<Variable>),
    /// Dynamic host volume.
    Volume(Arc<DynamicVolume>),
    /// A claim on one.
    VolumeClaim(Arc<VolumeClaim>),
}

impl Object {
    /// Its table.
    #[must_use]
    pub fn table(&self) -> Table {
        match self {
            Self::Node(_) => Table::Nodes,
            Self::Job(_) => Table::Jobs,
            Self::JobVersion(_) => Table::JobVersions,
            Self::RetainedJob(_) => Table::RetainedJobs,
            Self::Submission(_) => Table::JobSubmissions,
            Self::Summary(_) => Table::JobSummaries,
            Self::ScalingEvents(_) => Table::ScalingEvents,
            Self::Eval(_) => Table::Evals,
            Self::Alloc(_) => Table::Allocs,
            Self::Deployment(_) => Table::Deployments,
            Self::RemoteTask(_) => Table::RemoteTasks,
            Self::Service(_) => Table::Services,
            Self::Namespace(_) => Table::Namespaces,
            Self::NodePool(_) => Table::NodePools,
            Self::SchedulerConfig(_) => Table::SchedulerConfig,
            Self::ClusterMeta(_) => Table::Meta,
            Self::SigningKey(_) => Table::SigningKeys,
            Self::AclPolicy(_) => Table::AclPolicies,
            Self::AclToken(_) => Table::AclTokens,
            Self::AclRole(_) => Table::AclRoles,
            Self::AclAuthMethod(_) => Table::AclAuthMethods,
            Self::AclBindingRule(_) => Table::AclBindingRules,
            Self::OneTimeToken(_) => Table::AclOneTimeTokens,
            Self::Variable(_) => Table::Variables,
            Self::Volume(_) => Table::Volumes,
            Self::VolumeClaim(_) => Table::VolumeClaims,
        }
    }
    /// The format that its row needs, beyond that of its table.
    fn since(&self) -> Format {
        match self {
            Self::Namespace(namespace) if namespace.limits.is_some() => LIMITS,
            Self::Alloc(alloc) if alloc.preemption.is_some() => PREEMPTION,
            // What allocations and remote tasks have of both follows from a job.
            Self::Job(job) => of_job(job),
            _ => 1,
        }
    }
    /// The job that it belongs to.
    #[must_use]
    pub fn job_key(&self) -> Option<JobKey> {
        match self {
            Self::Job(j) | Self::JobVersion(j) | Self::RetainedJob(j) => Some(j.key()),
            Self::Submission(s) => Some(JobKey { namespace: s.namespace.clone(), id: s.job_id.clone() }),
            Self::Summary(s) => Some(JobKey { namespace: s.namespace.clone(), id: s.job_id.clone() }),
            Self::ScalingEvents(e) => Some(JobKey { namespace: e.namespace.clone(), id: e.job_id.clone() }),
            Self::Eval(e) => Some(e.job_key()),
            Self::Alloc(a) => Some(a.job_key()),
            Self::Deployment(d) => Some(d.job_key()),
            Self::RemoteTask(r) => Some(r.slot.job()),
            Self::Service(s) => Some(s.job_key()),
            Self::VolumeClaim(c) => Some(c.job_key()),
            Self::Node(_)
            | Self::Namespace(_)
            | Self::NodePool(_)
            | Self::SchedulerConfig(_)
            | Self::ClusterMeta(_)
            | Self::SigningKey(_)
            | Self::AclPolicy(_)
            | Self::AclToken(_)
            | Self::AclRole(_)
            | Self::AclAuthMethod(_)
            | Self::AclBindingRule(_)
            | Self::OneTimeToken(_)
            | Self::Variable(_)
            | Self::Volume(_) => None,
        }
    }
}

macro_rules! causes {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Why an object changed; for most the `Type` of the event that people see.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum Cause { $($(#[$doc])* $name,)* }
        impl Cause {
            /// Its name.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)* }
            }
            /// The one of that name.
            #[must_use]
            pub fn from_name(name: &str) -> Option<Self> {
                [$(Self::$name,)*].into_iter().find(|cause| cause.as_str() == name)
            }
        }
    };
}

causes! {
    /// A node has registered.
    NodeRegistration,
    /// A node is forgotten.
    NodeDeregistration,
    /// A node's eligibility has changed.
    NodeEligibility,
    /// A node's drain has changed.
    NodeDrain,
    /// A node's status or record has changed.
    NodeStreamEvent,
    /// A job was registered, or its status has changed.
    JobRegistered,
    /// A job was stopped or forgotten.
    JobDeregistered,
    /// An evaluation was created or changed.
    EvaluationUpdated,
    /// An allocation was placed.
    AllocationCreated,
    /// An allocation was changed by its node or in place.
    AllocationUpdated,
    /// The servers want something else of an allocation.
    AllocationUpdateDesiredStatus,
    /// A plan was committed.
    PlanResult,
    /// A deployment has changed.
    DeploymentStatusUpdate,
    /// Health in a deployment has changed.
    DeploymentAllocHealth,
    /// Canaries of a deployment were promoted.
    DeploymentPromotion,
    /// A remote task has changed.
    RemoteTaskUpdated,
    /// A service has another place, or one has changed.
    ServiceRegistration,
    /// A service has a place less.
    ServiceDeregistration,
    /// A node pool was created or changed.
    NodePoolUpserted,
    /// A node pool is gone.
    NodePoolDeleted,
    /// A namespace was created or changed.
    NamespaceUpserted,
    /// A namespace is gone.
    NamespaceDeleted,
    /// A policy was created or changed.
    ACLPolicyUpserted,
    /// A policy is gone.
    ACLPolicyDeleted,
    /// A token was created or changed.
    ACLTokenUpserted,
    /// A token is gone.
    ACLTokenDeleted,
    /// A role was created or changed.
    ACLRoleUpserted,
    /// A role is gone.
    ACLRoleDeleted,
    /// A method to log in was created or changed.
    ACLAuthMethodUpserted,
    /// A method to log in is gone.
    ACLAuthMethodDeleted,
    /// A binding rule was created or changed.
    ACLBindingRuleUpserted,
    /// A binding rule is gone.
    ACLBindingRuleDeleted,
    /// A dynamic host volume was created or changed.
    HostVolumeRegistered,
    /// A dynamic host volume is gone.
    HostVolumeDeleted,
    /// Settings have changed.
    SettingsUpdated,
    /// The state is from the past and is recovered from now on, or a server goes on with that after its start.
    RecoveryStarted,
    /// It is recovered: decisions are made again.
    RecoveryEnded,
    /// Collected as no longer needed.
    Collected,
    /// Follows from another change (counts, versions).
    Derived,
}

/// The format that servers have to read for a job to mean to all of them what it says.
fn of_job(job: &Job) -> Format {
    let asks = |group: &TaskGroup| group.tasks.iter().any(|task| !task.resources.devices.is_empty());
    let of_group = |group: &TaskGroup| {
        let devices = if asks(group) { DEVICES } else { 1 };
        let ends = if group.max_run_duration.is_some() { MAX_RUN } else { 1 };
        let secrets = if group.tasks.iter().any(|task| !task.secrets.is_empty()) { SECRETS } else { 1 };
        let dynamic =
            |v: &VolumeRequest| v.sticky || v.per_alloc || !v.access_mode.is_empty() || !v.attachment_mode.is_empty();
        let volumes = if host_requests(group).any(dynamic) { VOLUMES } else { 1 };
        devices.max(ends).max(secrets).max(volumes)
    };
    job.task_groups.iter().map(of_group).max().unwrap_or(1)
}

//! What the server is asked to change, and what it answers: the typed shapes of the write API. Transports translate to and from these.

use std::{collections::BTreeMap, sync::Arc};

use model::{
    AllocId, AllocMetric, DeploymentId, DrainSpec, EvalId, Evaluation, Job, JobKey, NodeId, SchedulerConfig, StoreIndex, TimestampNs,
    diff::JobDiff, plan::DesiredUpdates,
};

/// Registers a job or a new version of it.
#[derive(Clone, Debug, Default)]
pub struct RegisterJob {
    /// The job as submitted.
    pub job: Job,
    /// Demand that the job is at this JobModifyIndex; 0 = that it does not exist.
    pub enforce_index: Option<StoreIndex>,
    /// Keep the counts of groups that exist already.
    pub preserve_counts: bool,
    /// Keep the resources of tasks that exist already.
    pub preserve_resources: bool,
    /// Priority of the evaluation; None = the job's.
    pub eval_priority: Option<i32>,
    /// The source text, kept beside the version.
    pub submission: Option<Submission>,
}

/// The source text of a job.
pub use state::Submission;

/// The answer to a request that makes an evaluation.
#[derive(Clone, Debug, Default)]
pub struct EvalCreated {
    /// The evaluation; nil when none was needed.
    pub eval_id: EvalId,
    /// Its index; 0 when none was needed.
    pub eval_create_index: StoreIndex,
    /// Index of the job's specification.
    pub job_modify_index: StoreIndex,
    /// Index of the commit.
    pub index: StoreIndex,
    /// Things that work but deserve a look.
    pub warnings: Vec<String>,
}

/// Stops a job.
#[derive(Clone, Debug)]
pub struct DeregisterJob {
    /// The job.
    pub key: JobKey,
    /// Forget it at once. Remote tasks are stopped all the same: their tombstones stay.
    pub purge: bool,
    /// Priority of the evaluation; None = the job's.
    pub eval_priority: Option<i32>,
    /// Stop without shutdown_delay.
    pub no_shutdown_delay: bool,
}

/// Makes a job of a parameterized one.
#[derive(Clone, Debug, Default)]
pub struct DispatchJob {
    /// The parameterized job.
    pub key: JobKey,
    /// What its child gets.
    pub dispatch: model::dispatch::Dispatch,
}

/// The job that a dispatch has made, now or before with the same token.
#[derive(Clone, Debug, Default)]
pub struct Dispatched {
    /// Its id.
    pub job_id: model::JobId,
    /// Index of its registration.
    pub job_create_index: StoreIndex,
    /// The evaluation; nil when it was there before.
    pub eval_id: EvalId,
    /// Its index; 0 when it was there before.
    pub eval_create_index: StoreIndex,
    /// Index of the commit.
    pub index: StoreIndex,
}

/// Changes the count of a group.
#[derive(Clone, Debug, Default)]
pub struct ScaleJob {
    /// The job.
    pub key: JobKey,
    /// The group.
    pub group: String,
    /// New count; None records the message only.
    pub count: Option<i64>,
    /// Why.
    pub message: String,
    /// The message reports a failure: nothing is changed.
    pub error: bool,
    /// Free metadata of the scaling event.
    pub meta: BTreeMap<String, serde_json::Value>,
    /// Demand that the job is at this JobModifyIndex when its count is changed.
    pub job_modify_index: Option<StoreIndex>,
}

/// A dry run of a registration.
#[derive(Clone, Debug, Default)]
pub struct PlanJob {
    /// The job as it would be submitted.
    pub job: Job,
    /// Compare with the registered version.
    pub diff: bool,
}

/// What a registration would do.
#[derive(Clone, Debug, Default)]
pub struct PlanPreview {
    /// Counts by group.
    pub desired_updates: BTreeMap<Arc<str>, DesiredUpdates>,
    /// Groups that would find no room.
    pub failed_groups: BTreeMap<Arc<str>, AllocMetric>,
    /// Index of the registered job; 0 = it is new.
    pub job_modify_index: StoreIndex,
    /// Evaluations that would follow.
    pub created_evals: Vec<Evaluation>,
    /// The difference, when it was asked for.
    pub diff: Option<JobDiff>,
    /// Things that work but deserve a look.
    pub warnings: Vec<String>,
    /// Index of the snapshot that was looked at.
    pub index: StoreIndex,
}

/// The verdict on a job without registering it.
#[derive(Clone, Debug, Default)]
pub struct JobVerdict {
    /// The job with every default filled in.
    pub job: Job,
    /// Each rule that it breaks, one to a line.
    pub errors: Vec<String>,
    /// The same as one text; empty when it is valid.
    pub error: String,
    /// Things that work but deserve a look.
    pub warnings: Vec<String>,
}

/// Starts, changes or ends a drain.
#[derive(Clone, Debug)]
pub struct DrainNode {
    /// The node.
    pub node_id: NodeId,
    /// What to do; None ends the drain.
    pub spec: Option<DrainSpec>,
    /// After the end of the drain the node may be used again at once.
    pub mark_eligible: bool,
    /// Free metadata, kept in LastDrain.
    pub meta: BTreeMap<String, String>,
}

/// The answer to a change of a node.
#[derive(Clone, Debug, Default)]
pub struct NodeChanged {
    /// Evaluations that follow.
    pub eval_ids: Vec<EvalId>,
    /// Their index; 0 = none.
    pub eval_create_index: StoreIndex,
    /// Index of the node.
    pub node_modify_index: StoreIndex,
    /// Index of the commit.
    pub index: StoreIndex,
}

/// The answer to a change of a deployment.
#[derive(Clone, Debug, Default)]
pub struct DeploymentChanged {
    /// Evaluation that follows; nil = none.
    pub eval_id: EvalId,
    /// Its index.
    pub eval_create_index: StoreIndex,
    /// Index of the deployment.
    pub deployment_modify_index: StoreIndex,
    /// Version that the job was returned to.
    pub reverted_job_version: Option<u64>,
    /// Index of the commit.
    pub index: StoreIndex,
}

/// Health as a person sees it.
#[derive(Clone, Debug, Default)]
pub struct SetHealth {
    /// The deployment.
    pub deployment_id: DeploymentId,
    /// Healthy ones.
    pub healthy: Vec<AllocId>,
    /// Unhealthy ones.
    pub unhealthy: Vec<AllocId>,
}

/// Changes the scheduler's settings.
#[derive(Clone, Debug)]
pub struct SetSchedulerConfig {
    /// The new settings.
    pub config: SchedulerConfig,
    /// Only when the settings are at this ModifyIndex.
    pub cas: Option<StoreIndex>,
}

/// The answer to [`SetSchedulerConfig`].
#[derive(Clone, Copy, Debug, Default)]
pub struct SchedulerConfigSet {
    /// False when `cas` did not match.
    pub updated: bool,
    /// Index of the commit, or of the settings when nothing was changed.
    pub index: StoreIndex,
}

/// What a collection removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Collected {
    /// Evaluations.
    pub evals: usize,
    /// Allocations.
    pub allocs: usize,
    /// Jobs.
    pub jobs: usize,
    /// Deployments.
    pub deployments: usize,
    /// Nodes.
    pub nodes: usize,
}

/// Numbers about the server at work, for metrics and `agent-info`.
#[derive(Clone, Debug, Default)]
pub struct ServerStats {
    /// Evaluations ready to be handed out, by scheduler type.
    pub broker_ready: BTreeMap<String, usize>,
    /// Evaluations that workers hold.
    pub broker_unacked: usize,
    /// Evaluations that wait for another one of the same job.
    pub broker_pending: usize,
    /// Evaluations that wait for their time.
    pub broker_waiting: usize,
    /// Evaluations that wait for room.
    pub blocked_evals: usize,
    /// Open node sessions.
    pub sessions: usize,
    /// Plans committed since the start.
    pub plans_committed: u64,
    /// Plans of which a part was refused.
    pub plans_partial: u64,
    /// Allocations and remote tasks that node sessions have looked at since the start, to see whether their node knows them as they are.
    pub session_looks: u64,
    /// Slots that the supervision of remote tasks has looked at since the start.
    pub slot_looks: u64,
    /// Batches that were made durable since the start.
    pub commits: u64,
    /// fsyncs that this took.
    pub syncs: u64,
    /// Bytes that this wrote.
    pub bytes_written: u64,
    /// When the server started.
    pub started_at: TimestampNs,
}

//! Jobs: lists, registration, plans, versions, scaling, dispatch, evaluations.

use std::{collections::BTreeMap, sync::Arc};

use model::{
    AllocMetric, EvalId, Evaluation, Job, JobId, Namespace, StoreIndex, TimestampNs, diff::JobDiff, job::Meta,
    plan::DesiredUpdates, records::JobSummary, scaling::ScalingEvent,
};
use serde::{Deserialize, Serialize};

use super::{AllocListStub, RemoteTaskView};
use crate::With;

/// A row of `GET /v1/jobs`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct JobListStub {
    /// Id.
    #[serde(rename = "ID")]
    pub id: JobId,
    /// The job that launched it.
    #[serde(rename = "ParentID")]
    pub parent_id: String,
    /// Display name.
    pub name: String,
    /// Namespace.
    pub namespace: Namespace,
    /// Globs of datacenters.
    pub datacenters: Vec<String>,
    /// Node pool.
    pub node_pool: String,
    /// Kind.
    #[serde(rename = "Type")]
    pub kind: String,
    /// Priority.
    pub priority: i32,
    /// Launched by the clock.
    pub periodic: bool,
    /// A template for dispatched jobs.
    pub parameterized_job: bool,
    /// Stopped by the user.
    pub stop: bool,
    /// Status.
    pub status: String,
    /// Why.
    pub status_description: String,
    /// Counts.
    pub job_summary: Option<JobSummary>,
    /// Version.
    pub version: u64,
    /// Index of the first registration.
    pub create_index: StoreIndex,
    /// Index of the last change.
    pub modify_index: StoreIndex,
    /// Index of the last change by a user.
    pub job_modify_index: StoreIndex,
    /// When it was submitted.
    pub submit_time: TimestampNs,
    /// Only when asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub meta: Option<Meta>,
    /// Remote tasks that no node manages now (ours; left out when there is none).
    #[serde(skip_serializing_if = "is_zero")]
    pub unmanaged: u32,
    /// Its deployment has not ended (ours; left out when there is none).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub deploying: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the form that serde asks for")]
fn is_zero(n: &u32) -> bool {
    *n == 0
}

/// `GET /v1/job/:id`.
pub type JobDetail = With<Arc<Job>, JobExtra>;

/// Fields that the API adds to a job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct JobExtra {
    /// The records of its remote tasks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub remote_tasks: Vec<RemoteTaskView>,
}

/// `PUT /v1/jobs`, `PUT /v1/job/:id`. Region, Namespace and SecretID of the body are history: query parameters and
/// headers say these.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct JobRegisterRequest {
    /// The job.
    pub job: Option<Job>,
    /// The job must be at `job_modify_index`.
    pub enforce_index: bool,
    /// See `enforce_index`; 0 = it must not exist.
    pub job_modify_index: StoreIndex,
    /// Enterprise; without effect.
    pub policy_override: bool,
    /// Keep the counts of groups that exist.
    pub preserve_counts: bool,
    /// Keep the resources of tasks that exist.
    pub preserve_resources: bool,
    /// Priority of the evaluation; 0 = the job's.
    pub eval_priority: i32,
    /// The source text.
    pub submission: Option<JobSubmission>,
}

/// The source text of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct JobSubmission {
    /// The text.
    pub source: String,
    /// `hcl2` or `json`.
    pub format: String,
    /// Variables given as flags.
    pub variable_flags: BTreeMap<String, String>,
    /// Text of variable files.
    pub variables: String,
}

/// The answer to a registration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct JobRegisterResponse {
    /// The evaluation; empty when none was needed.
    #[serde(rename = "EvalID")]
    pub eval_id: EvalId,
    /// Its index.
    pub eval_create_index: StoreIndex,
    /// Index of the job's specification.
    pub job_modify_index: StoreIndex,
    /// Things that work but deserve a look.
    pub warnings: String,
    /// Index of the commit.
    pub index: StoreIndex,
    /// Always 0 on writes.
    pub last_contact: i64,
    /// Always false on writes.
    pub known_leader: bool,
    /// Always empty on writes.
    pub next_token: String,
}

/// The answer to a launch that a person asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct PeriodicForceResponse {
    /// The evaluation of the child.
    #[serde(rename = "EvalID")]
    pub eval_id: EvalId,
    /// Its index.
    pub eval_create_index: StoreIndex,
    /// Index of the commit.
    pub index: StoreIndex,
}

/// The answer to a deregistration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct JobDeregisterResponse {
    /// The evaluation; empty when none was needed.
    #[serde(rename = "EvalID")]
    pub eval_id: EvalId,
    /// Its index.
    pub eval_create_index: StoreIndex,
    /// Index of the job's specification.
    pub job_modify_index: StoreIndex,
    /// Always empty: volumes are released by the nodes.
    #[serde(rename = "VolumeEvalID")]
    pub volume_eval_id: String,
    /// Always 0.
    pub volume_eval_index: StoreIndex,
    /// Index of the commit.
    pub index: StoreIndex,
    /// Always 0 on writes.
    pub last_contact: i64,
    /// Always false on writes.
    pub known_leader: bool,
    /// Always empty on writes.
    pub next_token: String,
}

/// `PUT /v1/job/:id/plan`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct JobPlanRequest {
    /// The job.
    pub job: Option<Job>,
    /// Compare with the registered version.
    pub diff: bool,
    /// Enterprise; without effect.
    pub policy_override: bool,
}

/// The answer to a plan.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct JobPlanResponse {
    /// What would be done.
    pub annotations: Option<PlanAnnotations>,
    /// Groups that would find no room.
    #[serde(rename = "FailedTGAllocs")]
    pub failed_tg_allocs: BTreeMap<Arc<str>, AllocMetric>,
    /// Next launch of a periodic job.
    pub next_periodic_launch: Option<String>,
    /// Index of the registered job; 0 = it is new.
    pub job_modify_index: StoreIndex,
    /// Evaluations that would follow.
    pub created_evals: Vec<EvalDetail>,
    /// The difference, when asked for.
    pub diff: Option<JobDiff>,
    /// Things that work but deserve a look.
    pub warnings: String,
    /// Index that was looked at.
    pub index: StoreIndex,
}

/// Effects of a plan.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PlanAnnotations {
    /// Counts by group.
    #[serde(rename = "DesiredTGUpdates")]
    pub desired_tg_updates: BTreeMap<Arc<str>, DesiredUpdates>,
    /// Allocations that would be displaced.
    #[serde(rename = "PreemptedAllocs")]
    pub preempted_allocs: Vec<AllocListStub>,
}

/// `PUT /v1/jobs/parse`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobParseRequest {
    /// The text.
    #[serde(rename = "JobHCL")]
    pub job_hcl: String,
    /// Text of a variable file.
    #[serde(rename = "Variables")]
    pub variables: String,
    /// Fill in the defaults.
    #[serde(rename = "Canonicalize")]
    pub canonicalize: bool,
    /// Refused: the old language.
    #[serde(rename = "HCLv1", alias = "hclv1")]
    pub hcl_v1: bool,
}

/// `PUT /v1/validate/job`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct JobValidateRequest {
    /// The job.
    pub job: Option<Job>,
}

/// The verdict on a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct JobValidateResponse {
    /// Driver configurations are checked on the nodes, not here.
    pub driver_config_validated: bool,
    /// Each rule that it breaks.
    pub validation_errors: Vec<String>,
    /// All of them as one text; empty for a valid job.
    pub error: String,
    /// Things that work but deserve a look.
    pub warnings: String,
}

/// `PUT /v1/job/:id/evaluate`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct JobEvaluateRequest {
    /// Must be the job of the path, when given.
    #[serde(rename = "JobID")]
    pub job_id: String,
    /// Options.
    pub eval_options: EvalOptions,
}

/// Options of [`JobEvaluateRequest`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct EvalOptions {
    /// Also replace failed allocations without a reschedule attempt left.
    pub force_reschedule: bool,
}

/// `GET /v1/job/:id/versions`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct JobVersions {
    /// Newest first.
    pub versions: Vec<Arc<Job>>,
    /// Differences between neighbours, when asked for.
    pub diffs: Vec<JobDiff>,
}

/// `PUT /v1/job/:id/revert`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct JobRevertRequest {
    /// Job.
    #[serde(rename = "JobID")]
    pub job_id: String,
    /// Version to return to.
    pub job_version: u64,
    /// The current version must be this one.
    pub enforce_prior_version: Option<u64>,
}

/// `PUT /v1/job/:id/stable`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct JobStabilityRequest {
    /// Job.
    #[serde(rename = "JobID")]
    pub job_id: String,
    /// Version.
    pub job_version: u64,
    /// Is it stable?
    pub stable: bool,
}

/// `PUT /v1/job/:id/versions/:name/tag`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct JobTagRequest {
    /// Version.
    pub version: u64,
    /// The newest version instead; `version` is 0 then.
    pub latest: bool,
    /// Free text.
    pub description: String,
}

/// Answer to a [`JobTagRequest`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct JobTagResponse {
    /// Name.
    pub name: String,
    /// Free text.
    pub description: String,
    /// When the version got it.
    pub tagged_time: TimestampNs,
}

/// `DELETE /v1/evaluations`: one or the other.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct EvalDeleteRequest {
    /// These; all of them or none.
    #[serde(rename = "EvalIDs")]
    pub eval_ids: Vec<String>,
    /// Those that pass the filter, but for what is still needed.
    pub filter: String,
}

/// Answer to an [`EvalDeleteRequest`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct EvalDeleteResponse {
    /// How many are gone.
    pub count: usize,
    /// Index of the last commit.
    pub index: StoreIndex,
}

/// Answer with nothing but an index.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct IndexResponse {
    /// Index of the commit.
    pub index: StoreIndex,
}

/// `PUT /v1/job/:id/scale`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct ScaleRequest {
    /// `Job` and `Group`.
    pub target: BTreeMap<String, String>,
    /// New count; none = the message only.
    pub count: Option<i64>,
    /// Why.
    pub message: String,
    /// The message reports a failure; nothing is changed.
    pub error: bool,
    /// Free metadata.
    pub meta: BTreeMap<String, serde_json::Value>,
    /// Enterprise; without effect.
    pub policy_override: bool,
    /// The job must be at this index for its count to change; 0 = any.
    pub job_modify_index: StoreIndex,
}

/// A row of `GET /v1/scaling/policies`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct ScalingPolicyStub {
    /// Id, stable while its group has a policy of this type.
    #[serde(rename = "ID")]
    pub id: String,
    /// Off without being removed.
    pub enabled: bool,
    /// `horizontal`.
    #[serde(rename = "Type")]
    pub kind: String,
    /// Namespace, Job, Group.
    pub target: BTreeMap<String, String>,
    /// Index of the registration that has brought it.
    pub create_index: StoreIndex,
    /// Index of the registration that has changed it last.
    pub modify_index: StoreIndex,
}

/// `GET /v1/scaling/policy/:id`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct ScalingPolicyDetail {
    /// Id.
    #[serde(rename = "ID")]
    pub id: String,
    /// `horizontal`.
    #[serde(rename = "Type")]
    pub kind: String,
    /// Namespace, Job, Group.
    pub target: BTreeMap<String, String>,
    /// Policy for the autoscaler, in free form.
    pub policy: Option<serde_json::Value>,
    /// Lower bound.
    pub min: i64,
    /// Upper bound.
    pub max: i64,
    /// Off without being removed.
    pub enabled: bool,
    /// Index of the registration that has brought it.
    pub create_index: StoreIndex,
    /// Index of the registration that has changed it last.
    pub modify_index: StoreIndex,
}

/// `GET /v1/job/:id/scale`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct JobScaleStatus {
    /// Job.
    #[serde(rename = "JobID")]
    pub job_id: JobId,
    /// Namespace.
    pub namespace: Namespace,
    /// Index of the job's creation.
    pub job_create_index: StoreIndex,
    /// Index of the job's last change.
    pub job_modify_index: StoreIndex,
    /// Stopped by the user.
    pub job_stopped: bool,
    /// By group.
    pub task_groups: BTreeMap<Arc<str>, GroupScaleStatus>,
}

/// How a group stands.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct GroupScaleStatus {
    /// Wanted.
    pub desired: i64,
    /// Placed by the current version.
    pub placed: i64,
    /// Running.
    pub running: i64,
    /// Healthy in the deployment.
    pub healthy: i64,
    /// Unhealthy in the deployment.
    pub unhealthy: i64,
    /// Scaling events, the newest first.
    pub events: Vec<ScalingEvent>,
}

/// `PUT /v1/job/:id/dispatch`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct JobDispatchRequest {
    /// Payload.
    #[serde(with = "super::base64_bytes")]
    pub payload: Vec<u8>,
    /// Metadata.
    pub meta: Meta,
    /// Beginning of the child's id.
    pub id_prefix_template: String,
    /// Must be the job of the path, when given.
    #[serde(rename = "JobID")]
    pub job_id: String,
    /// The same token gives the same child. The query parameter `idempotency_token` wins.
    pub idempotency_token: String,
    /// Priority of the child; 0 = that of the job.
    pub priority: i32,
}

/// The answer to a dispatch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct JobDispatchResponse {
    /// The job that was made.
    #[serde(rename = "DispatchedJobID")]
    pub dispatched_job_id: String,
    /// Its evaluation; empty when the token had made it before.
    #[serde(rename = "EvalID")]
    pub eval_id: EvalId,
    /// Its index.
    pub eval_create_index: StoreIndex,
    /// Index of the job's registration.
    pub job_create_index: StoreIndex,
    /// Index of the commit.
    pub index: StoreIndex,
}

/// `GET /v1/evaluation/:id`, and rows of lists.
pub type EvalDetail = With<Arc<Evaluation>, EvalExtra>;

/// Fields that the API adds to an evaluation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct EvalExtra {
    /// Not before this time; Go's zero time = at once.
    pub wait_until: String,
    /// Evaluations of the same chain, when asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub related_evals: Option<Vec<EvalStub>>,
}

/// A related evaluation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct EvalStub {
    /// Id.
    #[serde(rename = "ID")]
    pub id: EvalId,
    /// Priority.
    pub priority: i32,
    /// Kind of the job.
    #[serde(rename = "Type")]
    pub kind: String,
    /// What caused it.
    pub triggered_by: model::Trigger,
    /// Namespace.
    pub namespace: Namespace,
    /// Job.
    #[serde(rename = "JobID")]
    pub job_id: JobId,
    /// Node.
    #[serde(rename = "NodeID")]
    pub node_id: model::NodeId,
    /// Deployment.
    #[serde(rename = "DeploymentID")]
    pub deployment_id: model::DeploymentId,
    /// Status.
    pub status: model::EvalStatus,
    /// Why.
    pub status_description: String,
    /// Not before this time.
    pub wait_until: String,
    /// Follows.
    pub next_eval: EvalId,
    /// Precedes.
    pub previous_eval: EvalId,
    /// Holds what found no room.
    pub blocked_eval: EvalId,
    /// Index of its creation.
    pub create_index: StoreIndex,
    /// Index of its last change.
    pub modify_index: StoreIndex,
    /// When it was created.
    pub create_time: TimestampNs,
    /// When it was last changed.
    pub modify_time: TimestampNs,
}

impl From<&Arc<Evaluation>> for EvalStub {
    fn from(e: &Arc<Evaluation>) -> Self {
        Self {
            id: e.id,
            priority: e.priority,
            kind: e.kind.clone(),
            triggered_by: e.trigger,
            namespace: e.namespace.clone(),
            job_id: e.job_id.clone(),
            node_id: e.node_id,
            deployment_id: e.deployment_id,
            status: e.status,
            status_description: e.status_description.clone(),
            wait_until: super::go_time(e.wait_until),
            next_eval: e.next_eval,
            previous_eval: e.previous_eval,
            blocked_eval: e.blocked_eval,
            create_index: e.create_index,
            modify_index: e.modify_index,
            create_time: e.create_time,
            modify_time: e.modify_time,
        }
    }
}

/// An evaluation as the API shows it.
#[must_use]
pub fn eval_detail(eval: &Arc<Evaluation>) -> EvalDetail {
    With::new(eval.clone(), EvalExtra { wait_until: super::go_time(eval.wait_until), related_evals: None })
}

/// A count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct Count {
    /// How many.
    pub count: usize,
}

//! `GET` and `PUT /v1/jobs/statuses`: how jobs are at one look, the one that changed last first.

use std::sync::Arc;

use model::{
    AllocId, Allocation, ClientStatus, Deployment, DeploymentId, DeploymentStatus, EvalId, Job, JobId, Namespace,
    NodeId, StoreIndex, TimestampNs,
};
use serde::{Deserialize, Serialize};

/// Which jobs a client asks for; without a body all that it may see.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct JobStatusesRequest {
    /// These jobs, of any namespace.
    pub jobs: Vec<NamedJob>,
    /// Also jobs that a periodic or a parameterized job has launched.
    pub include_children: bool,
}

/// The name of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NamedJob {
    /// Its id.
    #[serde(rename = "ID")]
    pub id: JobId,
    /// Its namespace; empty = `default`.
    #[serde(rename = "Namespace")]
    pub namespace: Namespace,
}

/// How a job is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct JobStatusRow {
    /// Id.
    #[serde(rename = "ID")]
    pub id: JobId,
    /// Namespace.
    pub namespace: Namespace,
    /// Display name.
    pub name: String,
    /// Kind.
    #[serde(rename = "Type")]
    pub kind: String,
    /// Node pool.
    pub node_pool: String,
    /// Globs of datacenters.
    pub datacenters: Vec<String>,
    /// Priority.
    pub priority: i32,
    /// Version.
    pub version: u64,
    /// When it was submitted.
    pub submit_time: TimestampNs,
    /// Index of its last change.
    pub modify_index: StoreIndex,
    /// Its allocations; none for a job that launches others.
    pub allocs: Vec<JobStatusAlloc>,
    /// How many allocations its groups ask for.
    pub group_count_sum: i64,
    /// The statuses of the jobs that it has launched; None = it launches none.
    pub child_statuses: Option<Vec<String>>,
    /// The job that launched it.
    #[serde(rename = "ParentID")]
    pub parent_id: String,
    /// Its newest deployment.
    pub latest_deployment: Option<JobStatusDeployment>,
    /// Stopped by the user.
    pub stop: bool,
    /// It comes from a pack, as its metadata says.
    pub is_pack: bool,
    /// Status.
    pub status: String,
}

/// An allocation in a [`JobStatusRow`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct JobStatusAlloc {
    /// Id.
    #[serde(rename = "ID")]
    pub id: AllocId,
    /// Group.
    pub group: Arc<str>,
    /// What its node says.
    pub client_status: ClientStatus,
    /// Node.
    #[serde(rename = "NodeID")]
    pub node_id: NodeId,
    /// Its part in a deployment.
    pub deployment_status: JobStatusHealth,
    /// The version of the job that it runs.
    pub job_version: u64,
    /// The evaluation that places it again later; nil = none.
    #[serde(rename = "FollowupEvalID")]
    pub followup_eval_id: EvalId,
    /// A task waits for its time. Always false: schedules of tasks are an enterprise feature.
    pub has_paused_task: bool,
}

/// An allocation's part in a deployment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct JobStatusHealth {
    /// It is a canary.
    pub canary: bool,
    /// Its health; None = not known yet.
    pub healthy: Option<bool>,
}

/// A deployment in a [`JobStatusRow`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct JobStatusDeployment {
    /// Id.
    #[serde(rename = "ID")]
    pub id: DeploymentId,
    /// It has not ended.
    pub is_active: bool,
    /// The version of the job that it brings.
    pub job_version: u64,
    /// Status.
    pub status: DeploymentStatus,
    /// Why.
    pub status_description: String,
    /// Every group that has canaries promotes them by itself.
    pub all_auto_promote: bool,
    /// It runs, and a group's canaries wait to be promoted.
    pub requires_promotion: bool,
}

impl From<&Allocation> for JobStatusAlloc {
    fn from(alloc: &Allocation) -> Self {
        let judged = alloc.deployment_status.as_ref();
        Self {
            id: alloc.id,
            group: alloc.task_group.clone(),
            client_status: alloc.client_status,
            node_id: alloc.node_id,
            deployment_status: JobStatusHealth {
                canary: judged.is_some_and(|d| d.canary),
                healthy: judged.and_then(|d| d.healthy),
            },
            job_version: alloc.job_version,
            followup_eval_id: alloc.followup_eval_id,
            has_paused_task: false,
        }
    }
}

impl JobStatusDeployment {
    /// The deployment at one look.
    #[must_use]
    pub fn new(deployment: &Deployment) -> Self {
        let running = deployment.status == DeploymentStatus::Running;
        let mut canaries = deployment.groups.values().filter(|group| group.desired_canaries > 0).peekable();
        let any = canaries.peek().is_some();
        Self {
            id: deployment.id,
            is_active: deployment.status.active(),
            job_version: deployment.job_version,
            status: deployment.status,
            status_description: deployment.status_description.clone(),
            all_auto_promote: running && any && canaries.all(|group| group.auto_promote),
            requires_promotion: running && deployment.awaited_promotion().is_some(),
        }
    }
}

impl JobStatusRow {
    /// The job's own part of the row.
    #[must_use]
    pub fn of(job: &Job) -> Self {
        Self {
            id: job.id.clone(),
            namespace: job.namespace.clone(),
            name: job.name.clone(),
            kind: job.kind.clone(),
            node_pool: job.node_pool.clone(),
            datacenters: job.datacenters.clone(),
            priority: job.priority,
            version: job.version,
            submit_time: job.submit_time,
            modify_index: job.modify_index,
            group_count_sum: job.task_groups.iter().map(|group| i64::from(group.count())).sum(),
            parent_id: job.parent_id.clone(),
            stop: job.stop,
            is_pack: job.meta.contains_key("pack.name"),
            status: job.status.clone(),
            ..Self::default()
        }
    }
}

//! Allocations and deployments.

use std::{collections::BTreeMap, sync::Arc};

use model::{
    AllocDeploymentStatus, AllocId, Allocation, ClientStatus, DesiredStatus, DesiredTransition, EvalId, Job, JobId,
    Map, Namespace, Network, NodeId, Resources, StoreIndex, TaskState, Text, TimestampNs, alloc::RescheduleTracker,
    resources::AllocatedResources,
};
use serde::{Deserialize, Serialize};

use super::RemoteTaskView;
use crate::With;

/// A row of `GET /v1/allocations`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct AllocListStub {
    /// Id.
    #[serde(rename = "ID")]
    pub id: AllocId,
    /// Evaluation that placed or last changed it.
    #[serde(rename = "EvalID")]
    pub eval_id: EvalId,
    /// `job.group[index]`.
    pub name: Arc<str>,
    /// Namespace.
    pub namespace: Namespace,
    /// Node.
    #[serde(rename = "NodeID")]
    pub node_id: NodeId,
    /// Name of the node.
    pub node_name: Arc<str>,
    /// Job.
    #[serde(rename = "JobID")]
    pub job_id: JobId,
    /// Kind of the job.
    pub job_type: String,
    /// Version of the job.
    pub job_version: u64,
    /// Group.
    pub task_group: Arc<str>,
    /// Only when asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allocated_resources: Option<Arc<AllocatedResources>>,
    /// What the servers want.
    pub desired_status: DesiredStatus,
    /// Why.
    pub desired_description: Text,
    /// What should happen next.
    pub desired_transition: DesiredTransition,
    /// What the node has seen.
    pub client_status: ClientStatus,
    /// Details.
    pub client_description: Text,
    /// By task.
    pub task_states: Map<Arc<str>, TaskState>,
    /// Its health in the deployment.
    pub deployment_status: Option<AllocDeploymentStatus>,
    /// Evaluation that will reschedule it.
    #[serde(rename = "FollowupEvalID")]
    pub followup_eval_id: EvalId,
    /// The allocation that replaces it.
    pub next_allocation: AllocId,
    /// Earlier attempts.
    pub reschedule_tracker: Option<Box<RescheduleTracker>>,
    /// Displaced for it.
    pub preempted_allocations: Vec<AllocId>,
    /// Displaced by.
    pub preempted_by_allocation: AllocId,
    /// Index of its creation.
    pub create_index: StoreIndex,
    /// Index of its last change.
    pub modify_index: StoreIndex,
    /// When it was created.
    pub create_time: TimestampNs,
    /// When it was last changed.
    pub modify_time: TimestampNs,
}

impl AllocListStub {
    /// The row of an allocation.
    #[must_use]
    pub fn new(a: &Allocation, resources: bool, task_states: bool) -> Self {
        Self {
            id: a.id,
            eval_id: a.eval_id,
            name: a.name.clone(),
            namespace: a.namespace.clone(),
            node_id: a.node_id,
            node_name: a.node_name.clone(),
            job_id: a.job_id.clone(),
            job_type: a.job.as_ref().map(|j| j.kind.clone()).unwrap_or_default(),
            job_version: a.job_version,
            task_group: a.task_group.clone(),
            allocated_resources: resources.then(|| a.resources.clone()),
            desired_status: a.desired_status,
            desired_description: a.desired_description.clone(),
            desired_transition: a.desired_transition.clone(),
            client_status: a.client_status,
            client_description: a.client_description.clone(),
            task_states: if task_states { a.task_states.clone() } else { Map::new() },
            deployment_status: a.deployment_status.clone(),
            followup_eval_id: a.followup_eval_id,
            next_allocation: a.next_allocation,
            reschedule_tracker: a.reschedule_tracker.clone(),
            preempted_allocations: a.preempted().to_vec(),
            preempted_by_allocation: a.preempted_by(),
            create_index: a.create_index,
            modify_index: a.modify_index,
            create_time: a.create_time,
            modify_time: a.modify_time,
        }
    }
}

/// `GET /v1/allocation/:id`.
pub type AllocDetail = With<Arc<Allocation>, AllocExtra>;

/// Fields that the API adds to an allocation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct AllocExtra {
    /// The job in the version that it runs.
    pub job: Option<Arc<Job>>,
    /// The sum of what it got, in the form before `AllocatedResources`: stock clients still print, and trip over,
    /// these three.
    pub resources: Resources,
    /// Resources of the group as a whole, in that form.
    pub shared_resources: Resources,
    /// Resources of each task, in that form.
    pub task_resources: BTreeMap<Arc<str>, Resources>,
    /// Displaced for it.
    pub preempted_allocations: Vec<AllocId>,
    /// Displaced by.
    pub preempted_by_allocation: AllocId,
    /// The records of its remote tasks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub remote_tasks: Vec<RemoteTaskView>,
}

impl AllocExtra {
    /// What is added to this allocation.
    #[must_use]
    pub fn new(a: &Allocation, remote_tasks: Vec<RemoteTaskView>) -> Self {
        let plain = |cpu: i64, memory_mb: i64, disk_mb: i64, networks: &[Network]| Resources {
            cpu: Some(cpu),
            cores: Some(0),
            memory_mb: Some(memory_mb),
            memory_max_mb: Some(0),
            disk_mb: Some(disk_mb),
            iops: Some(0),
            networks: networks.to_vec(),
            secrets_mb: Some(0),
            ..Resources::default()
        };
        let given = &a.resources;
        let (usage, shared) = (given.usage(), &given.shared);
        Self {
            job: a.job.clone(),
            resources: plain(usage.cpu, usage.memory_mb, usage.disk_mb, &shared.networks),
            shared_resources: plain(0, 0, shared.disk_mb, &shared.networks),
            task_resources: given
                .tasks
                .iter()
                .map(|(name, t)| (name.clone(), plain(t.cpu.cpu_shares, t.memory.memory_mb, 0, &t.networks)))
                .collect(),
            preempted_allocations: a.preempted().to_vec(),
            preempted_by_allocation: a.preempted_by(),
            remote_tasks,
        }
    }
}

/// The answer to stopping an allocation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct AllocStopResponse {
    /// The evaluation.
    #[serde(rename = "EvalID")]
    pub eval_id: EvalId,
    /// Index of the commit.
    pub index: StoreIndex,
}

/// `PUT /v1/client/allocation/:id/signal`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct AllocSignalRequest {
    /// Name of the signal.
    pub signal: String,
    /// Task; empty = all of them.
    pub task: String,
}

/// `PUT /v1/client/allocation/:id/restart`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct AllocRestartRequest {
    /// Task; empty = all that run.
    pub task_name: String,
    /// Include tasks that have ended.
    pub all_tasks: bool,
}

/// `PUT /v1/deployment/pause/:id`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct DeploymentPauseRequest {
    /// Deployment.
    #[serde(rename = "DeploymentID")]
    pub deployment_id: String,
    /// Hold it, or let it go on.
    pub pause: bool,
}

/// `PUT /v1/deployment/promote/:id`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct DeploymentPromoteRequest {
    /// Deployment.
    #[serde(rename = "DeploymentID")]
    pub deployment_id: String,
    /// All groups.
    pub all: bool,
    /// These groups.
    pub groups: Vec<String>,
}

/// `PUT /v1/deployment/allocation-health/:id`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeploymentHealthRequest {
    /// Deployment.
    #[serde(rename = "DeploymentID")]
    pub deployment_id: String,
    /// Healthy ones.
    #[serde(rename = "HealthyAllocationIDs")]
    pub healthy: Vec<AllocId>,
    /// Unhealthy ones.
    #[serde(rename = "UnhealthyAllocationIDs")]
    pub unhealthy: Vec<AllocId>,
}

/// The answer to a change of a deployment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct DeploymentUpdateResponse {
    /// Evaluation that follows.
    #[serde(rename = "EvalID")]
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

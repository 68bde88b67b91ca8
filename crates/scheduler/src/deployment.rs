//! Deployments of a job: the one of its version, and a new one. How they go on is decided by what kind of job it is:
//! `reconcile::rollout`, `system::rollout`.

use std::sync::Arc;

use model::{
    deployment::{Deployment, DeploymentGroup, DeploymentStatus},
    eval::Evaluation,
    ids::DeploymentId,
    job::Job,
    plan::DeploymentUpdate,
    policy::Update,
};
use state::State;

use crate::ids::Ids;

/// The deployment of the job's version, unless it has ended well; and the end of those of other versions.
pub(crate) fn find_deployment(state: &State, job: &Job) -> (Option<Arc<Deployment>>, Vec<DeploymentUpdate>) {
    let mut found: Option<Arc<Deployment>> = None;
    let mut cancelled = Vec::new();
    for d in state.deployments_by_job(&job.key()) {
        let current = d.job_create_index == job.create_index && d.job_version == job.version;
        if current {
            let ended_well = matches!(d.status, DeploymentStatus::Successful | DeploymentStatus::Cancelled);
            if !ended_well && found.as_ref().is_none_or(|o| o.create_index < d.create_index) {
                found = Some(d.clone());
            }
        } else if d.status.active() {
            cancelled.push(DeploymentUpdate {
                id: d.id,
                status: DeploymentStatus::Cancelled,
                description: "Cancelled due to newer version of job".into(),
            });
        }
    }
    (found, cancelled)
}

/// A deployment of the job's version, without groups yet.
pub(crate) fn new_deployment(job: &Job, eval: &Evaluation, ids: &mut Ids) -> Deployment {
    Deployment {
        id: DeploymentId(ids.uuid()),
        namespace: job.namespace.clone(),
        job_id: job.id.clone(),
        job_version: job.version,
        job_modify_index: job.modify_index,
        job_spec_modify_index: job.job_modify_index,
        job_create_index: job.create_index,
        status: DeploymentStatus::Running,
        status_description: "Deployment is running".into(),
        eval_priority: eval.priority,
        ..Deployment::default()
    }
}

/// A group of a new deployment. `total` is its number of allocations in this version at success.
pub(crate) fn new_group(update: &Update, total: usize, canaries: i32) -> DeploymentGroup {
    DeploymentGroup {
        auto_revert: update.auto_revert(),
        auto_promote: update.auto_promote(),
        progress_deadline: update.progress_deadline(),
        desired_canaries: canaries,
        desired_total: i32::try_from(total).unwrap_or(i32::MAX),
        ..DeploymentGroup::default()
    }
}

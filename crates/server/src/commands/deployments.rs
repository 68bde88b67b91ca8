//! Commands on deployments: hold, promote, fail, set health by hand.

use model::{AllocId, DeploymentId, DeploymentStatus, plan::DeploymentUpdate};
use state::{Batch, Change, State};

use crate::{
    commit::{Decided, Stamp},
    deployments::{UNHEALTHY, eval, fail, not_ready},
    error::{Kind, ServerError},
    handle::ServerHandle,
    requests::{DeploymentChanged, SetHealth},
};

/// The deployment, if it can still change.
fn active<'a>(state: &'a State, id: DeploymentId, verb: &'static str) -> Result<&'a model::Deployment, ServerError> {
    let d = state.deployment(id).ok_or_else(|| ServerError::not_found(Kind::Deployment, id))?;
    if d.status.active() { Ok(d) } else { Err(ServerError::TerminalDeployment { verb }) }
}

fn changed(state: &State, d: &model::Deployment, mut batch: Batch, evaluate: bool, stamp: Stamp) -> Decided<DeploymentChanged> {
    let mut answer = DeploymentChanged { deployment_modify_index: stamp.index, index: stamp.index, ..DeploymentChanged::default() };
    if evaluate && let Some(eval) = eval(state, d, stamp) {
        answer.eval_id = eval.id;
        answer.eval_create_index = stamp.index;
        batch.push(Change::UpsertEvals(vec![eval]));
    }
    Decided { batch, answer }
}

impl ServerHandle {
    /// Holds a deployment or lets it go on.
    ///
    /// # Errors
    /// When there is no such deployment or it has ended.
    pub async fn pause_deployment(&self, id: DeploymentId, pause: bool) -> Result<DeploymentChanged, ServerError> {
        self.shared
            .queue()
            .commit(move |state, stamp| {
                let d = active(state, id, if pause { "pause" } else { "resume" })?;
                let (status, description) = if pause {
                    (DeploymentStatus::Paused, "Deployment is paused")
                } else {
                    (DeploymentStatus::Running, "Deployment is running")
                };
                let mut batch = Batch::default();
                batch.push(Change::DeploymentStatus(DeploymentUpdate { id, status, description: description.to_owned() }));
                if !pause {
                    // The time of the pause does not count.
                    batch.push(Change::DeploymentProgress(id));
                }
                Ok(changed(state, d, batch, !pause, stamp))
            })
            .await
    }

    /// Fails a deployment; its job returns to the last stable version when it says so.
    ///
    /// # Errors
    /// When there is no such deployment or it has ended.
    pub async fn fail_deployment(&self, id: DeploymentId) -> Result<DeploymentChanged, ServerError> {
        self.shared
            .queue()
            .commit(move |state, stamp| {
                let d = active(state, id, "fail")?;
                let mut batch = Batch::default();
                let reverts = d.groups.values().any(|g| g.auto_revert);
                let reverted = fail(state, d, "Deployment marked as failed", reverts, &mut batch);
                let mut decided = changed(state, d, batch, true, stamp);
                decided.answer.reverted_job_version = reverted;
                Ok(decided)
            })
            .await
    }

    /// Promotes the canaries of these groups, or of all: from now on they are rolled out like any version.
    ///
    /// # Errors
    /// When there is no such deployment or group, it has ended, there is nothing to promote, or a canary is not healthy yet.
    pub async fn promote_deployment(&self, id: DeploymentId, groups: Option<Vec<String>>) -> Result<DeploymentChanged, ServerError> {
        self.shared
            .queue()
            .commit(move |state, stamp| {
                let d = active(state, id, "promote")?;
                let unknown = groups.iter().flatten().find(|name| !d.groups.contains_key(name.as_str()));
                if let Some(name) = unknown {
                    return Err(ServerError::InvalidArgument(format!("deployment {id} has no task group {name:?}")));
                }
                let named = |name: &str| groups.as_ref().is_none_or(|groups| groups.iter().any(|g| g == name));
                let waiting: Vec<_> = d.groups.iter().filter(|(name, g)| named(name) && g.desired_canaries > 0 && !g.promoted).collect();
                if waiting.is_empty() {
                    return Err(ServerError::Conflict("no canaries to promote".to_owned()));
                }
                let missing: Vec<String> = waiting.iter().filter_map(|(name, g)| not_ready(state, d, name, g)).collect();
                if !missing.is_empty() {
                    return Err(ServerError::Conflict(format!("cannot promote deployment {id}: {}", missing.join("; "))));
                }
                let groups = Some(waiting.into_iter().map(|(name, _)| name.clone()).collect());
                Ok(changed(state, d, Change::DeploymentPromotion { id, groups }.into(), true, stamp))
            })
            .await
    }

    /// Sets the health of allocations by hand.
    ///
    /// # Errors
    /// When there is no such deployment, it has ended, or an allocation is not part of it.
    pub async fn set_deployment_health(&self, request: SetHealth) -> Result<DeploymentChanged, ServerError> {
        self.shared
            .queue()
            .commit(move |state, stamp| {
                let SetHealth { deployment_id: id, healthy, unhealthy } = request;
                let d = active(state, id, "set health of allocations for a")?;
                if healthy.is_empty() && unhealthy.is_empty() {
                    return Err(ServerError::InvalidArgument("must specify at least one healthy/unhealthy allocation ID".to_owned()));
                }
                let foreign = |alloc: &&AllocId| state.alloc(**alloc).is_none_or(|a| a.deployment_id != id);
                if let Some(alloc) = healthy.iter().chain(&unhealthy).find(foreign) {
                    return Err(ServerError::InvalidArgument(format!("allocation {alloc} is not part of deployment {id}")));
                }
                // What a person has called unhealthy is not tried again: that is the end of the deployment.
                let ends = !unhealthy.is_empty();
                let group = |id: &AllocId| d.groups.get(&state.alloc(*id)?.task_group);
                let reverts = unhealthy.iter().filter_map(group).any(|g| g.auto_revert);
                let mut batch: Batch = Change::DeploymentHealth { id, healthy, unhealthy }.into();
                let reverted = if ends { fail(state, d, UNHEALTHY, reverts, &mut batch) } else { None };
                let mut decided = changed(state, d, batch, true, stamp);
                decided.answer.reverted_job_version = reverted;
                Ok(decided)
            })
            .await
    }
}

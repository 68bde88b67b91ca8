//! Orders for deployments: pause, promote, fail, set health manually.

use model::{AllocId, Deployment, DeploymentId, DeploymentStatus, EvalId, StoreIndex, plan::DeploymentUpdate};
use state::{Batch, Change, State};

use super::{UNHEALTHY, eval, fail, not_ready};
use crate::{Decided, Ids, Kind, Refused, Stamp};

/// The answer to a change of a deployment.
#[derive(Clone, Debug, Default)]
pub struct DeploymentChanged {
    /// Evaluation that follows; nil = none.
    pub eval_id: EvalId,
    /// Its index.
    pub eval_create_index: StoreIndex,
    /// Index of the deployment.
    pub deployment_modify_index: StoreIndex,
    /// Version to which the job was reverted.
    pub reverted_job_version: Option<u64>,
    /// Index of the commit.
    pub index: StoreIndex,
}

/// Health set by an operator.
#[derive(Clone, Debug, Default)]
pub struct SetHealth {
    /// The deployment.
    pub deployment_id: DeploymentId,
    /// Healthy allocations.
    pub healthy: Vec<AllocId>,
    /// Unhealthy allocations.
    pub unhealthy: Vec<AllocId>,
}

/// The deployment, if it can still change.
fn active<'a>(state: &'a State, id: DeploymentId, verb: &'static str) -> Result<&'a Deployment, Refused> {
    let d = state.deployment(id).ok_or_else(|| Refused::not_found(Kind::Deployment, id))?;
    if d.status.active() { Ok(d) } else { Err(Refused::TerminalDeployment { verb }) }
}

/// The change with an evaluation of the deployment's job, if there is one.
fn evaluated(
    state: &State,
    d: &Deployment,
    mut batch: Batch,
    stamp: Stamp,
    ids: &mut Ids<'_>,
) -> Decided<DeploymentChanged> {
    let mut answer =
        DeploymentChanged { deployment_modify_index: stamp.index, index: stamp.index, ..DeploymentChanged::default() };
    if let Some(eval) = eval(state, d, stamp, ids) {
        (answer.eval_id, answer.eval_create_index) = (eval.id, stamp.index);
        batch.push(Change::UpsertEvals(vec![eval]));
    }
    Decided { batch, answer }
}

/// Pauses or resumes a deployment.
///
/// # Errors
/// When there is no such deployment or it has ended.
pub fn pause(
    state: &State,
    id: DeploymentId,
    pause: bool,
    stamp: Stamp,
    ids: &mut Ids<'_>,
) -> Result<Decided<DeploymentChanged>, Refused> {
    let d = active(state, id, if pause { "pause" } else { "resume" })?;
    let becomes = |status, description: &str| {
        Change::DeploymentStatus(DeploymentUpdate { id, status, description: description.to_owned() })
    };
    if pause {
        let answer = DeploymentChanged {
            deployment_modify_index: stamp.index,
            index: stamp.index,
            ..DeploymentChanged::default()
        };
        return Ok(Decided { batch: becomes(DeploymentStatus::Paused, "Deployment is paused").into(), answer });
    }
    // The time of the pause does not count towards the deadline.
    let batch =
        vec![becomes(DeploymentStatus::Running, "Deployment is running"), Change::DeploymentProgress(id)].into();
    Ok(evaluated(state, d, batch, stamp, ids))
}

/// Fails a deployment; with `auto_revert`, its job returns to the last stable version.
///
/// # Errors
/// When there is no such deployment or it has ended.
pub fn give_up(
    state: &State,
    id: DeploymentId,
    stamp: Stamp,
    ids: &mut Ids<'_>,
) -> Result<Decided<DeploymentChanged>, Refused> {
    let d = active(state, id, "fail")?;
    let mut batch = Batch::default();
    let reverts = d.groups.values().any(|g| g.auto_revert);
    let reverted = fail(state, d, "Deployment marked as failed", reverts, &mut batch);
    let mut decided = evaluated(state, d, batch, stamp, ids);
    decided.answer.reverted_job_version = reverted;
    Ok(decided)
}

/// Promotes the canaries of these groups, or of all. From now on the version rolls out as usual.
///
/// # Errors
/// When there is no such deployment or group, it has ended, there is nothing to promote, or a canary is not healthy
/// yet.
pub fn promote(
    state: &State,
    id: DeploymentId,
    groups: Option<&[String]>,
    stamp: Stamp,
    ids: &mut Ids<'_>,
) -> Result<Decided<DeploymentChanged>, Refused> {
    let d = active(state, id, "promote")?;
    let unknown = groups.into_iter().flatten().find(|name| !d.groups.contains_key(name.as_str()));
    if let Some(name) = unknown {
        return Err(Refused::Invalid(format!("deployment {id} has no task group {name:?}")));
    }
    let named = |name: &str| groups.is_none_or(|groups| groups.iter().any(|g| g == name));
    let waiting: Vec<_> =
        d.groups.iter().filter(|(name, g)| named(name) && g.desired_canaries > 0 && !g.promoted).collect();
    if waiting.is_empty() {
        return Err(Refused::Conflict("no canaries to promote".to_owned()));
    }
    let missing: Vec<String> = waiting.iter().filter_map(|(name, g)| not_ready(state, d, name, g)).collect();
    if !missing.is_empty() {
        return Err(Refused::Conflict(format!("cannot promote deployment {id}: {}", missing.join("; "))));
    }
    let groups = groups.map(|names| names.iter().map(|name| name.as_str().into()).collect());
    Ok(evaluated(state, d, Change::DeploymentPromotion { id, groups }.into(), stamp, ids))
}

/// Sets the health of allocations manually.
///
/// # Errors
/// When there is no such deployment, it has ended, or an allocation is not part of it.
pub fn set_health(
    state: &State,
    request: SetHealth,
    stamp: Stamp,
    ids: &mut Ids<'_>,
) -> Result<Decided<DeploymentChanged>, Refused> {
    let SetHealth { deployment_id: id, healthy, unhealthy } = request;
    let d = active(state, id, "set health of allocations for a")?;
    if healthy.is_empty() && unhealthy.is_empty() {
        return Err(Refused::Invalid("must specify at least one healthy/unhealthy allocation ID".to_owned()));
    }
    let foreign = |alloc: &&AllocId| state.alloc(**alloc).is_none_or(|a| a.deployment_id != id);
    if let Some(alloc) = healthy.iter().chain(&unhealthy).find(foreign) {
        return Err(Refused::Invalid(format!("allocation {alloc} is not part of deployment {id}")));
    }
    // A person's verdict "unhealthy" allows no further attempt: it ends the deployment.
    let ends = !unhealthy.is_empty();
    let group = |id: &AllocId| d.groups.get(&state.alloc(*id)?.task_group);
    let reverts = unhealthy.iter().filter_map(group).any(|g| g.auto_revert);
    let mut batch: Batch = Change::DeploymentHealth { id, healthy, unhealthy }.into();
    let reverted = if ends { fail(state, d, UNHEALTHY, reverts, &mut batch) } else { None };
    let mut decided = evaluated(state, d, batch, stamp, ids);
    decided.answer.reverted_job_version = reverted;
    Ok(decided)
}

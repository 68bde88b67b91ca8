//! The deployment watcher: turns the health of allocations into the fate of deployments.
//!
//! Unhealthy allocations are replaced until progress is due. A missed deadline fails a deployment, and so does an unhealthy allocation where there
//! is no deadline or no attempt left; a group that has failed returns the job to its last stable version when it says so. Healthy canaries are
//! promoted when the job says so; when everything is healthy the deployment is successful, which marks the job version stable; in between, each
//! piece of news gets an evaluation that places the next batch. Whether there is news since the last evaluation is read from indexes, so that
//! nothing has to be remembered.

use std::{fmt::Write, sync::Arc, time::Duration};

use model::{
    AllocId, Deployment, DeploymentStatus, DesiredTransition, EvalStatus, Evaluation, Job, StoreIndex, TimestampNs, Trigger,
    deployment::DeploymentGroup, plan::DeploymentUpdate,
};
use state::{Batch, Change, State};

use crate::{
    clock::{new_id, now_ns},
    commit::{Decided, Stamp},
    shared::Shared,
};

/// What is said of a deployment that unhealthy allocations have ended.
pub(crate) const UNHEALTHY: &str = "Failed due to unhealthy allocations";

/// After a refused commit the deployments are looked at again this much later.
const RETRY: Duration = Duration::from_secs(1);

/// The loop: wakes when deployments, jobs or health change, and at deadlines.
pub(crate) async fn deployment_loop(shared: Arc<Shared>) {
    loop {
        let state = shared.queue().newest();
        let now = now_ns();
        let mut next = state.deployments().filter(|d| d.status == DeploymentStatus::Running).filter_map(|d| deadline(&state, d)).min();
        if !decide(&state, Stamp { index: 0, now }).is_empty() {
            let stored = shared.queue().commit(|state, stamp| Ok(Decided { batch: decide(state, stamp), answer: () })).await;
            if let Err(error) = stored {
                tracing::error!(error = %error, "watching deployments failed; trying again");
                next = Some(now_ns() + crate::clock::ns(RETRY));
            } else {
                continue;
            }
        }
        let timer = async {
            match next {
                Some(at) => tokio::time::sleep(Duration::from_nanos(u64::try_from(at - now_ns()).unwrap_or(0))).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = shared.deploy.notified() => {}
            () = timer => {}
            () = shared.stopping.cancelled() => return,
        }
    }
}

/// What is healthy now in a group of a deployment: canaries that are not promoted, and all.
fn healthy(state: &State, d: &Deployment, group: &str) -> (i32, i32) {
    let live = state.allocs_by_deployment(d.id).filter(|a| *a.task_group == *group && a.healthy() == Some(true) && !a.terminal());
    live.fold((0, 0), |(canaries, all), a| {
        let canary = a.deployment_status.as_ref().is_some_and(|s| s.canary);
        (canaries + i32::from(canary), all + 1)
    })
}

/// How many of a group have to be healthy before somebody else has to act, or it is complete.
fn needed(g: &DeploymentGroup) -> i32 {
    if tries(g) { g.desired_canaries } else { g.desired_total }
}

/// Its canaries wait for their promotion.
fn tries(g: &DeploymentGroup) -> bool {
    g.desired_canaries > 0 && !g.promoted
}

/// When progress of a group is due. The clock begins with its first placed allocation: what waits for room misses nothing.
fn due(state: &State, d: &Deployment, name: &str, g: &DeploymentGroup) -> Option<TimestampNs> {
    let at = Some(g.require_progress_by_ns).filter(|at| *at != 0 && g.placed_allocs > 0)?;
    (healthy(state, d, name).1 < needed(g)).then_some(at)
}

/// The next instant at which progress is due.
fn deadline(state: &State, d: &Deployment) -> Option<TimestampNs> {
    d.groups.iter().filter_map(|(name, g)| due(state, d, name, g)).min()
}

/// What becomes of the deployments.
pub(crate) fn decide(state: &State, stamp: Stamp) -> Batch {
    let mut batch = Batch::default();
    for d in state.deployments().filter(|d| d.status.active()) {
        match fate(state, d, stamp.now) {
            Fate::Nothing => continue,
            Fate::Next => {}
            Fate::Promote => drop(batch.push(Change::DeploymentPromotion { id: d.id, groups: None })),
            Fate::Replace(allocs) => {
                let again = DesiredTransition { reschedule: Some(true), ..DesiredTransition::default() };
                batch.push(Change::AllocTransitions(allocs.into_iter().map(|id| (id, again.clone())).collect()));
            }
            Fate::Fails { description, reverts } => drop(fail(state, d, description, reverts, &mut batch)),
            Fate::Ends(status, description) => {
                batch.push(Change::DeploymentStatus(DeploymentUpdate { id: d.id, status, description: description.to_owned() }));
                continue;
            }
        }
        batch.changes.extend(eval(state, d, stamp).map(|eval| Change::UpsertEvals(vec![eval])));
    }
    batch
}

/// Fails a deployment and returns its job to the last stable version, when it is to and there is one. Gives that version.
pub(crate) fn fail(state: &State, d: &Deployment, description: &str, reverts: bool, batch: &mut Batch) -> Option<u64> {
    let key = d.job_key();
    let mut description = description.to_owned();
    let mut back_to = None;
    let job = state.job(&key).filter(|job| job.create_index == d.job_create_index && job.version == d.job_version);
    if let Some(job) = job.filter(|_| reverts) {
        let stable =
            state.job_versions(&key).filter(|old| old.stable && !old.stop && old.version < job.version).max_by_key(|old| old.version);
        match stable {
            None => description += " - no stable job version to auto revert to",
            Some(old) if !model::updates::specification_changed(job, old) => {
                let _ =
                    write!(description, " - not rolling back to stable job version {} as current job has same specification", old.version);
            }
            Some(old) => {
                let _ = write!(description, " - rolling back to job version {}", old.version);
                let submission = state.job_submission(&key, old.version).map(|s| Box::new(state::Submission::clone(s)));
                batch.push(Change::UpsertJob { job: Box::new(Job::clone(old)), submission });
                back_to = Some(old.version);
            }
        }
    }
    batch.push(Change::DeploymentStatus(DeploymentUpdate { id: d.id, status: DeploymentStatus::Failed, description }));
    back_to
}

#[derive(Debug, PartialEq, Eq)]
enum Fate {
    Nothing,
    /// There is news that the scheduler has not seen.
    Next,
    /// All canaries are healthy, and the job does not want to be asked.
    Promote,
    /// These are unhealthy, and there is time for others in their place.
    Replace(Vec<AllocId>),
    Fails {
        description: &'static str,
        /// A group that has failed wants the last stable version back.
        reverts: bool,
    },
    Ends(DeploymentStatus, &'static str),
}

fn fate(state: &State, d: &Deployment, now: TimestampNs) -> Fate {
    let key = d.job_key();
    match state.job(&key).filter(|job| job.create_index == d.job_create_index) {
        None => return Fate::Ends(DeploymentStatus::Cancelled, "Cancelled because job is stopped"),
        Some(job) if job.stopped() => return Fate::Ends(DeploymentStatus::Cancelled, "Cancelled because job is stopped"),
        Some(job) if job.version > d.job_version => {
            return Fate::Ends(DeploymentStatus::Cancelled, "Cancelled due to newer version of job");
        }
        Some(_) => {}
    }
    if d.groups.values().any(|g| g.unhealthy_allocs > 0)
        && let Some(fate) = fate_of_unhealthy(state, d, now)
    {
        return fate;
    }
    if d.status == DeploymentStatus::Paused {
        return Fate::Nothing;
    }
    let complete = |(name, g): (&Arc<str>, &DeploymentGroup)| !tries(g) && healthy(state, d, name).1 >= g.desired_total;
    if !d.groups.is_empty() && d.groups.iter().all(complete) {
        return Fate::Ends(DeploymentStatus::Successful, "Deployment completed successfully");
    }
    let ready = |(name, g): (&Arc<str>, &DeploymentGroup)| g.auto_promote && healthy(state, d, name).0 >= g.desired_canaries;
    let mut waiting = d.groups.iter().filter(|(_, g)| tries(g)).peekable();
    if waiting.peek().is_some() && waiting.all(ready) {
        return Fate::Promote;
    }
    let late = |(name, g): &(&Arc<str>, &DeploymentGroup)| due(state, d, name, g).is_some_and(|at| at <= now);
    let mut late = d.groups.iter().filter(late).peekable();
    if late.peek().is_some() {
        return Fate::Fails { description: "Failed due to progress deadline", reverts: late.any(|(_, g)| g.auto_revert) };
    }
    let news: StoreIndex = state
        .allocs_by_deployment(d.id)
        .filter_map(|alloc| alloc.deployment_status.as_ref())
        .filter(|health| health.healthy == Some(true))
        .map(|health| health.modify_index)
        .max()
        .unwrap_or(0);
    let seen = state.evals_by_job(&key).map(|eval| eval.create_index).max().unwrap_or(0);
    if news > seen { Fate::Next } else { Fate::Nothing }
}

/// Unhealthy allocations end the deployment of a group without a progress deadline, and where no further attempt is left; elsewhere they are
/// replaced as their reschedule policy says, until progress is due.
fn fate_of_unhealthy(state: &State, d: &Deployment, now: TimestampNs) -> Option<Fate> {
    let job = state.job_version(&d.job_key(), d.job_version);
    let (mut again, mut ends, mut reverts) = (Vec::new(), false, false);
    for alloc in state.allocs_by_deployment(d.id).filter(|alloc| alloc.healthy() == Some(false)) {
        let Some(g) = d.groups.get(&alloc.task_group) else { continue };
        let policy = job.and_then(|job| job.group(&alloc.task_group)).and_then(|group| group.reschedule.as_ref());
        let attempts_left = scheduler::reschedule::eligible(policy, alloc.reschedule_tracker.as_deref(), now);
        if g.progress_deadline.nanos() <= 0 || !attempts_left {
            ends = true;
            reverts |= g.auto_revert;
        } else if alloc.desired_transition.reschedule != Some(true) {
            again.push(alloc.id);
        }
    }
    if ends {
        return Some(Fate::Fails { description: UNHEALTHY, reverts });
    }
    (!again.is_empty()).then_some(Fate::Replace(again))
}

/// Why the canaries of a group cannot be promoted yet.
pub(crate) fn not_ready(state: &State, d: &Deployment, name: &str, g: &DeploymentGroup) -> Option<String> {
    let (healthy, _) = healthy(state, d, name);
    (healthy < g.desired_canaries).then(|| format!("task group {name:?} has {healthy} of {} healthy canaries", g.desired_canaries))
}

/// An evaluation of the deployment's job.
pub(crate) fn eval(state: &State, d: &Deployment, stamp: Stamp) -> Option<Evaluation> {
    let job = state.job(&d.job_key())?;
    Some(Evaluation {
        id: new_id(),
        namespace: job.namespace.clone(),
        priority: job.priority,
        kind: job.kind.clone(),
        trigger: Trigger::DeploymentWatcher,
        job_id: job.id.clone(),
        job_modify_index: job.modify_index,
        deployment_id: d.id,
        status: EvalStatus::Pending,
        create_time: stamp.now,
        modify_time: stamp.now,
        ..Evaluation::default()
    })
}

#[cfg(test)]
mod tests;

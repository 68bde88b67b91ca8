//! The deployment watcher: turns the health of allocations into the fate of deployments.
//!
//! An unhealthy allocation or a missed deadline fails a deployment, and returns the job to its last stable version when it says so; healthy canaries
//! are promoted when the job says so; when everything is healthy the deployment is successful, which marks the job version stable; in between, each piece of news gets an evaluation that places the next batch. Whether there is news since the last evaluation is read
//! from indexes, so that nothing has to be remembered.

use std::{fmt::Write, sync::Arc, time::Duration};

use model::{
    Deployment, DeploymentStatus, EvalStatus, Evaluation, Job, StoreIndex, TimestampNs, Trigger, deployment::DeploymentGroup,
    plan::DeploymentUpdate,
};
use state::{Batch, Change, State};

use crate::{
    clock::{new_id, now_ns},
    commit::{Decided, Stamp},
    shared::Shared,
};

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

/// The next instant at which progress is due.
fn deadline(state: &State, d: &Deployment) -> Option<TimestampNs> {
    let due = |(name, g): (&Arc<str>, &DeploymentGroup)| {
        let at = Some(g.require_progress_by_ns).filter(|at| *at != 0)?;
        (healthy(state, d, name).1 < needed(g)).then_some(at)
    };
    d.groups.iter().filter_map(due).min()
}

/// What becomes of the deployments.
pub(crate) fn decide(state: &State, stamp: Stamp) -> Batch {
    let mut batch = Batch::default();
    for d in state.deployments().filter(|d| d.status.active()) {
        match fate(state, d, stamp.now) {
            Fate::Nothing => {}
            Fate::Next => batch.changes.extend(eval(state, d, stamp).map(|eval| Change::UpsertEvals(vec![eval]))),
            Fate::Promote => {
                batch.push(Change::DeploymentPromotion { id: d.id, groups: None });
                batch.changes.extend(eval(state, d, stamp).map(|eval| Change::UpsertEvals(vec![eval])));
            }
            Fate::Fails(description) => {
                fail(state, d, description, &mut batch);
                batch.changes.extend(eval(state, d, stamp).map(|eval| Change::UpsertEvals(vec![eval])));
            }
            Fate::Ends(status, description) => {
                batch.push(Change::DeploymentStatus(DeploymentUpdate { id: d.id, status, description: description.to_owned() }));
            }
        }
    }
    batch
}

/// Fails a deployment and returns its job to the last stable version, when it says so and there is one. Gives that version.
pub(crate) fn fail(state: &State, d: &Deployment, description: &str, batch: &mut Batch) -> Option<u64> {
    let key = d.job_key();
    let mut description = description.to_owned();
    let mut back_to = None;
    let job = state.job(&key).filter(|job| job.create_index == d.job_create_index && job.version == d.job_version);
    if let Some(job) = job.filter(|_| d.groups.values().any(|g| g.auto_revert)) {
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
    Fails(&'static str),
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
    if d.groups.values().any(|g| g.unhealthy_allocs > 0) {
        return Fate::Fails("Failed due to unhealthy allocations");
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
    if deadline(state, d).is_some_and(|at| at <= now) {
        return Fate::Fails("Failed due to progress deadline");
    }
    let news: StoreIndex = state
        .allocs_by_deployment(d.id)
        .filter_map(|alloc| alloc.deployment_status.as_ref())
        .filter(|health| health.healthy.is_some())
        .map(|health| health.modify_index)
        .max()
        .unwrap_or(0);
    let seen = state.evals_by_job(&key).map(|eval| eval.create_index).max().unwrap_or(0);
    if news > seen { Fate::Next } else { Fate::Nothing }
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

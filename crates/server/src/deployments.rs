//! The deployment watcher: turns the health of allocations into the fate of deployments.
//!
//! An unhealthy allocation or a missed deadline fails a deployment; when everything is healthy it is successful, which marks the job version
//! stable; in between, each piece of news gets an evaluation that places the next batch. Whether there is news since the last evaluation is read
//! from indexes, so that nothing has to be remembered.

use std::{sync::Arc, time::Duration};

use model::{Deployment, DeploymentStatus, EvalStatus, Evaluation, StoreIndex, TimestampNs, Trigger, plan::DeploymentUpdate};
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
        let mut next = state.deployments().filter(|d| d.status == DeploymentStatus::Running).filter_map(|d| deadline(d)).min();
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

/// The next instant at which progress is due.
fn deadline(d: &Deployment) -> Option<TimestampNs> {
    d.groups.values().filter(|g| g.healthy_allocs < g.desired_total).map(|g| g.require_progress_by_ns).filter(|at| *at != 0).min()
}

/// What becomes of the deployments.
pub(crate) fn decide(state: &State, stamp: Stamp) -> Batch {
    let mut batch = Batch::default();
    for d in state.deployments().filter(|d| d.status.active()) {
        match fate(state, d, stamp.now) {
            Fate::Nothing => {}
            Fate::Next => {
                if let Some(eval) = eval(state, d, stamp) {
                    batch.push(Change::UpsertEvals(vec![eval]));
                }
            }
            Fate::Ends(status, description) => {
                batch.push(Change::DeploymentStatus(DeploymentUpdate { id: d.id, status, description: description.to_owned() }));
                if status == DeploymentStatus::Failed
                    && let Some(eval) = eval(state, d, stamp)
                {
                    batch.push(Change::UpsertEvals(vec![eval]));
                }
            }
        }
    }
    batch
}

#[derive(Debug, PartialEq, Eq)]
enum Fate {
    Nothing,
    /// There is news that the scheduler has not seen.
    Next,
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
        return Fate::Ends(DeploymentStatus::Failed, "Failed due to unhealthy allocations");
    }
    if d.status == DeploymentStatus::Paused {
        return Fate::Nothing;
    }
    if !d.groups.is_empty() && d.groups.values().all(|g| g.healthy_allocs >= g.desired_total && (g.desired_canaries == 0 || g.promoted)) {
        return Fate::Ends(DeploymentStatus::Successful, "Deployment completed successfully");
    }
    if deadline(d).is_some_and(|at| at <= now) {
        return Fate::Ends(DeploymentStatus::Failed, "Failed due to progress deadline");
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

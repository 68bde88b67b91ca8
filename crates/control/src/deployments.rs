//! The deployment watcher: decides on deployments by the health of their allocations.
//!
//! - Unhealthy allocations are replaced until progress is due.
//! - A missed deadline fails a deployment. Without a deadline, or without attempts left, an unhealthy allocation does
//!   too.
//! - A failed group with `auto_revert` returns the job to its last stable version.
//! - Healthy canaries are promoted with `auto_promote`.
//! - When everything is healthy, the deployment is successful, and the job version becomes stable.
//! - In between, each change gets an evaluation that places the next batch.
//!
//! The watcher finds changes since the last evaluation by indexes. Its caller remembers which deployments may have
//! changed, and when time decides about one: a look costs what these deployments hold.

mod changed;
mod orders;

use std::{collections::BTreeSet, fmt::Write, sync::Arc};

use model::{
    AllocId, Deployment, DeploymentId, DeploymentStatus, DesiredTransition, EvalStatus, Evaluation, Job, StoreIndex,
    TimestampNs, Trigger, deployment::DeploymentGroup, plan::DeploymentUpdate,
};
use state::{Batch, Change, State};

use crate::{Decision, Ids, Stamp, pending};

pub use changed::Changed;
pub use orders::{DeploymentChanged, SetHealth, give_up, pause, promote, set_health};

/// Description of a deployment that unhealthy allocations have failed.
const UNHEALTHY: &str = "Failed due to unhealthy allocations";
/// Nanoseconds. An evaluation that rests for no longer looks soon enough: where plans contend, another one beside it
/// would contend as well.
const SOON: TimestampNs = 2_000_000_000;

/// Healthy allocations in a group of a deployment: canaries before promotion, and all. Reads each of its allocations:
/// ask the group's own counter first, which is never lower.
fn healthy(state: &State, d: &Deployment, group: &str) -> (i32, i32) {
    let live = state
        .allocs_by_deployment(d.id)
        .filter(|a| *a.task_group == *group && a.healthy() == Some(true) && !a.terminal());
    live.fold((0, 0), |(canaries, all), a| {
        let canary = a.deployment_status.as_ref().is_some_and(|s| s.canary);
        (canaries + i32::from(canary), all + 1)
    })
}

/// How many of a group must be healthy before a promotion or the end.
fn needed(g: &DeploymentGroup) -> i32 {
    if tries(g) { g.desired_canaries } else { g.desired_total }
}

/// Whether its canaries wait for promotion.
fn tries(g: &DeploymentGroup) -> bool {
    g.desired_canaries > 0 && !g.promoted
}

/// When progress of a group is due. The clock begins with its first placed allocation: waiting for room costs no time.
///
/// A group that has got there may wait for others, or for its promotion, for any time when one of it must leave its
/// node. The replacement has the full time, from its own placement on.
fn due(state: &State, d: &Deployment, name: &str, g: &DeploymentGroup) -> Option<TimestampNs> {
    let at = Some(g.require_progress_by_ns).filter(|at| *at != 0 && g.placed_allocs > 0)?;
    if g.healthy_allocs < needed(g) {
        return Some(at);
    }
    if healthy(state, d, name).1 >= needed(g) {
        return None;
    }
    let span = g.progress_deadline.nanos();
    let tried = || state.allocs_by_deployment(d.id).filter(|a| *a.task_group == *name && a.healthy() != Some(true));
    match tried().map(|a| a.create_time).filter(|placed| *placed > at - span).min() {
        Some(first) => Some(at.max(first + span)),
        None => tried().any(|a| !a.terminal()).then_some(at),
    }
}

/// The next instant at which progress of a deployment is due; `None` while time alone decides nothing about it.
#[must_use]
pub fn deadline(state: &State, id: DeploymentId) -> Option<TimestampNs> {
    let d = state.deployment(id).filter(|d| d.status == DeploymentStatus::Running)?;
    d.groups.iter().filter_map(|(name, g)| due(state, d, name, g)).min()
}

/// Decides on these deployments, as far as they are active: the next batch, a promotion, a replacement, an end.
pub fn decide(state: &State, deployments: &BTreeSet<DeploymentId>, stamp: Stamp, ids: &mut Ids<'_>) -> Decision {
    let mut decision =
        Decision { wake_at: deployments.iter().filter_map(|id| deadline(state, *id)).min(), ..Decision::default() };
    for d in deployments.iter().filter_map(|id| state.deployment(*id)).filter(|d| d.status.active()) {
        let fate = fate(state, d, stamp.now);
        let Some(why) = fate.reason() else { continue };
        decision.reasons.push(format!("deployment {} of job {}: {why}", d.id, d.job_key()));
        let batch = &mut decision.batch;
        match fate {
            Fate::Nothing => continue,
            Fate::Next => {}
            Fate::Promote => drop(batch.push(Change::DeploymentPromotion { id: d.id, groups: None })),
            Fate::Replace(allocs) => {
                let again = DesiredTransition { reschedule: Some(true), ..DesiredTransition::default() };
                batch.push(Change::AllocTransitions(allocs.into_iter().map(|id| (id, again.clone())).collect()));
            }
            Fate::Fails { description, reverts } => drop(fail(state, d, description, reverts, batch)),
            Fate::Ends(status, description) => {
                batch.push(Change::DeploymentStatus(DeploymentUpdate {
                    id: d.id,
                    status,
                    description: description.to_owned(),
                }));
                continue;
            }
        }
        batch.changes.extend(eval(state, d, stamp, ids).map(|eval| Change::UpsertEvals(vec![eval])));
    }
    decision
}

/// Fails a deployment. With `reverts`, returns its job to the last stable version, if there is one, and returns that
/// version.
fn fail(state: &State, d: &Deployment, description: &str, reverts: bool, batch: &mut Batch) -> Option<u64> {
    let key = d.job_key();
    let mut description = description.to_owned();
    let mut back_to = None;
    let job = state.job(&key).filter(|job| job.create_index == d.job_create_index && job.version == d.job_version);
    if let Some(job) = job.filter(|_| reverts) {
        let stable = state
            .job_versions(&key)
            .filter(|old| old.stable && !old.stop && old.version < job.version)
            .max_by_key(|old| old.version);
        match stable {
            None => description += " - no stable job version to auto revert to",
            Some(old) if !model::updates::specification_changed(job, old) => {
                let _ = write!(
                    description,
                    " - not rolling back to stable job version {} as current job has same specification",
                    old.version
                );
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
    /// There is a change that the scheduler has not seen.
    Next,
    /// All canaries are healthy, and the job has `auto_promote`.
    Promote,
    /// These are unhealthy, and time is left for replacements.
    Replace(Vec<AllocId>),
    Fails {
        description: &'static str,
        /// A failed group has `auto_revert`.
        reverts: bool,
    },
    Ends(DeploymentStatus, &'static str),
}

impl Fate {
    /// The reason for the decision; `None` when there is nothing to do.
    fn reason(&self) -> Option<String> {
        match self {
            Self::Nothing => None,
            Self::Next => Some("allocations have become healthy since its last evaluation".to_owned()),
            Self::Promote => Some("all canaries are healthy".to_owned()),
            Self::Replace(allocs) => Some(format!("{} unhealthy allocations are replaced", allocs.len())),
            Self::Fails { description, .. } | Self::Ends(_, description) => Some((*description).to_owned()),
        }
    }
}

fn fate(state: &State, d: &Deployment, now: TimestampNs) -> Fate {
    let key = d.job_key();
    match state.job(&key).filter(|job| job.create_index == d.job_create_index) {
        None => return Fate::Ends(DeploymentStatus::Cancelled, "Cancelled because job is stopped"),
        Some(job) if job.stopped() => {
            return Fate::Ends(DeploymentStatus::Cancelled, "Cancelled because job is stopped");
        }
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
    let complete = |(name, g): (&Arc<str>, &DeploymentGroup)| {
        !tries(g) && g.healthy_allocs >= g.desired_total && healthy(state, d, name).1 >= g.desired_total
    };
    if !d.groups.is_empty() && d.groups.iter().all(complete) {
        return Fate::Ends(DeploymentStatus::Successful, "Deployment completed successfully");
    }
    let ready = |(name, g): (&Arc<str>, &DeploymentGroup)| {
        g.auto_promote && g.healthy_allocs >= g.desired_canaries && healthy(state, d, name).0 >= g.desired_canaries
    };
    let mut waiting = d.groups.iter().filter(|(_, g)| tries(g)).peekable();
    if waiting.peek().is_some() && waiting.all(ready) {
        return Fate::Promote;
    }
    let late = |(name, g): &(&Arc<str>, &DeploymentGroup)| due(state, d, name, g).is_some_and(|at| at <= now);
    let mut late = d.groups.iter().filter(late).peekable();
    if late.peek().is_some() {
        return Fate::Fails {
            description: "Failed due to progress deadline",
            reverts: late.any(|(_, g)| g.auto_revert),
        };
    }
    let seen = state.evals_by_job(&key).map(|eval| looks_at(eval, now)).max().unwrap_or(0);
    // A deployment changes with the health of its allocations.
    let news = d.modify_index > seen
        && state
            .allocs_by_deployment(d.id)
            .filter_map(|alloc| alloc.deployment_status.as_ref())
            .any(|health| health.healthy == Some(true) && health.modify_index > seen);
    if news { Fate::Next } else { Fate::Nothing }
}

/// Up to which index an evaluation has seen the job's allocations, or will soon. One that waits for a time far away, or
/// for room, only knows what it was made from.
fn looks_at(eval: &Evaluation, now: TimestampNs) -> StoreIndex {
    match eval.status {
        EvalStatus::Complete | EvalStatus::Blocked => eval.snapshot_index,
        EvalStatus::Pending if eval.wait_until <= now + SOON => eval.create_index,
        EvalStatus::Pending | EvalStatus::Failed | EvalStatus::Canceled => 0,
    }
}

/// Unhealthy allocations end the deployment of a group without a progress deadline, and of one without attempts left.
/// In other groups their reschedule policy replaces them until progress is due.
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
fn not_ready(state: &State, d: &Deployment, name: &str, g: &DeploymentGroup) -> Option<String> {
    let (healthy, _) = healthy(state, d, name);
    (healthy < g.desired_canaries)
        .then(|| format!("task group {name:?} has {healthy} of {} healthy canaries", g.desired_canaries))
}

/// An evaluation of the deployment's job.
fn eval(state: &State, d: &Deployment, stamp: Stamp, ids: &mut Ids<'_>) -> Option<Evaluation> {
    let job = state.job(&d.job_key())?;
    Some(Evaluation { deployment_id: d.id, ..pending(job, Trigger::DeploymentWatcher, stamp, ids) })
}

#[cfg(test)]
mod tests;

//! Jobs that the clock launches: when each is due, what a launch makes, and what is left out.
//!
//! A launch is a commit: the child and the time of the launch become durable together. The child's id is the time that
//! the launch was due. So a server that repeats a launch, or takes over in the middle of one, finds the child.

use std::collections::{BTreeMap, BTreeSet};

use model::{
    Evaluation, Job, JobKey, TimestampNs, Trigger,
    job::job_status,
    periodic::{LAUNCH_SUFFIX, Schedule, Zones, child, child_id},
};
use state::{AppliedSet, Batch, Change, Object, State};

use crate::{
    Decided, Decision, Ids, Kind, Refused, Stamp,
    admission::check_references,
    jobs::{EvalCreated, eval_of, job_of},
};

const SECOND: TimestampNs = 1_000_000_000;

/// The launch after which a job's next one counts: its last, or the registration of this version.
fn since(state: &State, job: &Job) -> i64 {
    let last = state.job_summary(&job.key()).map_or(0, |summary| summary.last_launch);
    last.max(job.submit_time / SECOND)
}

/// When a job is launched next; Unix seconds. It may have passed: then the launch is due. None: the clock does not
/// launch it, or not any more.
#[must_use]
pub fn next(state: &State, key: &JobKey, zones: Zones) -> Option<i64> {
    let job = state.job(key)?;
    Schedule::of(job.launches()?, zones).ok()?.next(since(state, job))
}

/// The launch of a job that is planned to be registered now.
#[must_use]
pub fn next_of(job: &Job, now: TimestampNs, zones: Zones) -> Option<i64> {
    Schedule::of(job.launches()?, zones).ok()?.next(now / SECOND)
}

/// The jobs that the clock launches, by their next launch. Only for speed: all of it follows from the state.
#[derive(Clone, Debug)]
pub struct Upcoming {
    zones: Zones,
    next: BTreeMap<JobKey, i64>,
    by_time: BTreeSet<(i64, JobKey)>,
}

impl Upcoming {
    /// Knows no job yet.
    #[must_use]
    pub fn new(zones: Zones) -> Self {
        Self { zones, next: BTreeMap::new(), by_time: BTreeSet::new() }
    }

    /// The database of time zones that it uses.
    #[must_use]
    pub fn zones(&self) -> Zones {
        self.zones
    }

    /// Starts again from a state.
    pub fn fill(&mut self, state: &State) {
        (self.next, self.by_time) = Default::default();
        let keys: Vec<JobKey> = state.jobs().filter(|job| job.launches().is_some()).map(|job| job.key()).collect();
        self.look_again(state, &keys);
    }

    /// Follows an applied batch; returns whether the time of a job has changed.
    pub fn follow(&mut self, state: &State, applied: &AppliedSet) -> bool {
        let concerned = applied.changes.iter().filter_map(|change| match &change.object {
            Object::Job(job) => Some(job.key()),
            Object::Summary(summary) if summary.last_launch != 0 => {
                Some(JobKey::new(summary.namespace.clone(), summary.job_id.clone()))
            }
            _ => None,
        });
        let keys: Vec<JobKey> = concerned.collect();
        self.look_again(state, &keys)
    }

    /// Computes the times of these jobs anew; returns whether one has changed.
    pub fn look_again<'k>(&mut self, state: &State, keys: impl IntoIterator<Item = &'k JobKey>) -> bool {
        let mut changed = false;
        for key in keys {
            let now = next(state, key, self.zones);
            let before = match now {
                Some(at) => self.next.insert(key.clone(), at),
                None => self.next.remove(key),
            };
            if before == now {
                continue;
            }
            changed = true;
            if let Some(at) = before {
                self.by_time.remove(&(at, key.clone()));
            }
            self.by_time.extend(now.map(|at| (at, key.clone())));
        }
        changed
    }

    /// At most so many jobs that are due.
    #[must_use]
    pub fn due(&self, now: TimestampNs, most: usize) -> Vec<JobKey> {
        let due = self.by_time.iter().take_while(|(at, _)| *at <= now / SECOND);
        due.take(most).map(|(_, key)| key.clone()).collect()
    }

    /// When the next job is due.
    #[must_use]
    pub fn wake_at(&self) -> Option<TimestampNs> {
        self.by_time.first().map(|(at, _)| at.saturating_mul(SECOND))
    }
}

/// A child of the job that has not ended.
fn running<'s>(state: &'s State, parent: &'s Job) -> Option<&'s Job> {
    let beginning = format!("{}{LAUNCH_SUFFIX}", parent.id);
    let beginning = beginning.as_str();
    // The keys of a map in order: those of one parent follow each other.
    let from = JobKey::new(parent.namespace.clone(), beginning);
    let children = state.jobs_onward(Some(from), false).map(|job| &**job);
    let mut children =
        children.take_while(move |job| job.namespace == parent.namespace && job.id.as_str().starts_with(beginning));
    children.find(|job| job.parent_id == parent.id.as_str() && job.status != job_status::DEAD)
}

/// The changes that make a child.
fn made(
    state: &State,
    parent: &Job,
    seconds: i64,
    stamp: Stamp,
    ids: &mut Ids<'_>,
) -> Result<(Vec<Change>, Evaluation), Refused> {
    let mut job = child(parent, seconds);
    check_references(state, &job)?;
    model::scaling::number_policies(&mut job, None, stamp.index, || ids().to_string());
    let eval = eval_of(&job, Trigger::PeriodicJob, None, stamp, ids);
    let job = Box::new(Job { submit_time: stamp.now, ..job });
    Ok((vec![Change::UpsertJob { job, submission: None }, Change::UpsertEvals(vec![eval.clone()])], eval))
}

/// Launches those of the jobs that are due.
///
/// One that forbids overlap and still runs is left out, and so is one that the cluster cannot take: no later time makes
/// up for it. Of several missed launches only the latest is made.
#[must_use]
pub fn decide(state: &State, keys: &[JobKey], zones: Zones, stamp: Stamp, ids: &mut Ids<'_>) -> Decision {
    let mut decision = Decision::default();
    for key in keys {
        let Some(job) = state.job(key) else { continue };
        let Some(periodic) = job.launches() else { continue };
        let Ok(schedule) = Schedule::of(periodic, zones) else { continue };
        let Some(at) = schedule.due(since(state, job), stamp.now / SECOND) else { continue };
        let child_key = JobKey::new(key.namespace.clone(), child_id(job, at));
        let overlaps = || periodic.prohibit_overlap.unwrap_or_default().then(|| running(state, job)).flatten();
        let reason = if state.job(&child_key).is_some() {
            format!("{key}: its launch of {at} is there")
        } else if let Some(child) = overlaps() {
            format!("{key}: its launch of {at} is left out, since {} has not ended", child.id)
        } else {
            match made(state, job, at, stamp, ids) {
                Ok((changes, _)) => {
                    decision.batch.changes.extend(changes);
                    format!("{key}: launched as {}", child_key.id)
                }
                Err(error) => format!("{key}: its launch of {at} is left out: {error}"),
            }
        };
        decision.batch.push(Change::RecordLaunch { key: key.clone(), at });
        decision.reasons.push(reason);
    }
    decision
}

/// Launches a job now because a person asks for it, whatever runs. The times of the clock stay as they are.
///
/// # Errors
/// When there is no such job, the clock does not launch it, or it was launched in this second.
pub fn force(state: &State, key: &JobKey, stamp: Stamp, ids: &mut Ids<'_>) -> Result<Decided<EvalCreated>, Refused> {
    let job = job_of(state, key).map_err(|_| Refused::not_found(Kind::Job, key))?;
    if job.periodic.is_none() {
        return Err(Refused::Invalid(format!("can't force launch non-periodic job {:?}", key.id.as_str())));
    }
    if job.launches().is_none() {
        let why = match (job.stop, job.parameterized_job.is_some()) {
            (true, _) => "it is stopped",
            (_, true) => "it is parameterized: dispatch it, and force the job that this makes",
            _ => "it is disabled",
        };
        return Err(Refused::Invalid(format!("can't force launch periodic job {:?}: {why}", key.id.as_str())));
    }
    let at = stamp.now / SECOND;
    let id = child_id(job, at);
    if state.job(&JobKey::new(key.namespace.clone(), id.clone())).is_some() {
        return Err(Refused::Conflict(format!("job {id} was launched in this second: ask again")));
    }
    let (changes, eval) = made(state, job, at, stamp, ids)?;
    let answer = EvalCreated {
        eval_id: eval.id,
        eval_create_index: stamp.index,
        job_modify_index: stamp.index,
        index: stamp.index,
        ..EvalCreated::default()
    };
    Ok(Decided { batch: Batch::new(changes), answer })
}

#[cfg(test)]
mod tests;

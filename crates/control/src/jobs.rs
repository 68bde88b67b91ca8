//! Requests about jobs: register, stop, evaluate, revert, mark as stable, stop an allocation.

pub mod tags;

use std::sync::Arc;

use model::{AllocId, ClientStatus, DesiredTransition, EvalId, Evaluation, Job, JobKey, StoreIndex, Trigger};
use state::{Batch, Change, State, Submission};

use crate::{
    Decided, Ids, Kind, Refused, Stamp,
    admission::{self, Admitted, Rules, check_count, check_references},
    pending,
};

/// Registers a job or a new version of it.
#[derive(Clone, Debug, Default)]
pub struct RegisterJob {
    /// The job as submitted.
    pub job: Job,
    /// Require that the job is at this JobModifyIndex; 0 = that it does not exist.
    pub enforce_index: Option<StoreIndex>,
    /// Keep the counts of existing groups.
    pub preserve_counts: bool,
    /// Keep the resources of existing tasks.
    pub preserve_resources: bool,
    /// Priority of the evaluation; `None` = the job's.
    pub eval_priority: Option<i32>,
    /// The source text, kept beside the version.
    pub submission: Option<Submission>,
}

/// The answer to a request that makes an evaluation.
#[derive(Clone, Debug, Default)]
pub struct EvalCreated {
    /// The evaluation; nil when none was needed.
    pub eval_id: EvalId,
    /// Its index; 0 when none was needed.
    pub eval_create_index: StoreIndex,
    /// Index of the job's specification.
    pub job_modify_index: StoreIndex,
    /// Index of the commit.
    pub index: StoreIndex,
    /// Warnings.
    pub warnings: Vec<String>,
}

/// Stops a job.
#[derive(Clone, Debug)]
pub struct DeregisterJob {
    /// The job.
    pub key: JobKey,
    /// Forget it at once. Remote tasks still stop: their tombstones remain.
    pub purge: bool,
    /// Priority of the evaluation; `None` = the job's.
    pub eval_priority: Option<i32>,
    /// Skip `shutdown_delay`.
    pub no_shutdown_delay: bool,
}

/// A pending evaluation of a job in this commit.
pub(crate) fn eval_of(
    job: &Job,
    trigger: Trigger,
    priority: Option<i32>,
    stamp: Stamp,
    ids: &mut Ids<'_>,
) -> Evaluation {
    let priority = priority.unwrap_or(job.priority);
    Evaluation { priority, job_modify_index: stamp.index, ..pending(job, trigger, stamp, ids) }
}

/// A change of a job with its evaluation, and the answer that names it. A template (periodic or parameterized job) is
/// never scheduled itself.
pub(crate) fn evaluated(
    mut batch: Batch,
    eval: Evaluation,
    index: StoreIndex,
    template: bool,
    stamp: Stamp,
) -> Decided<EvalCreated> {
    let mut answer = EvalCreated { job_modify_index: index, index: stamp.index, ..EvalCreated::default() };
    if !template {
        (answer.eval_id, answer.eval_create_index) = (eval.id, stamp.index);
        batch.push(Change::UpsertEvals(vec![eval]));
    }
    Decided { batch, answer }
}

pub(crate) fn job_of<'a>(state: &'a State, key: &JobKey) -> Result<&'a Arc<Job>, Refused> {
    state.job(key).ok_or_else(|| Refused::not_found(Kind::Job, key))
}

fn no_version(key: &JobKey, version: u64) -> Refused {
    Refused::Invalid(format!("job {:?} in namespace {:?} at version {version} not found", key.id, key.namespace))
}

/// Refuses registrations, and everything equivalent, while they are switched off.
pub(crate) fn allowed_now(state: &State, key: &JobKey) -> Result<(), Refused> {
    if state.scheduler_config().reject_job_registration {
        Err(Refused::RegistrationDisabled(key.clone()))
    } else {
        Ok(())
    }
}

/// Refuses a request that requires another index of the job.
pub(crate) fn enforce(state: &State, key: &JobKey, expected: Option<StoreIndex>) -> Result<(), Refused> {
    let Some(expected) = expected else { return Ok(()) };
    match state.job(key).map(|job| job.job_modify_index) {
        None if expected == 0 => Ok(()),
        Some(actual) if actual == expected && expected != 0 => Ok(()),
        actual => Err(Refused::EnforceIndex { expected, actual }),
    }
}

/// Checks the priority of an evaluation.
///
/// # Errors
/// When it is out of bounds.
pub fn check_priority(asked: Option<i32>, highest: i32) -> Result<(), Refused> {
    match asked.filter(|priority| !(1..=highest).contains(priority)) {
        Some(priority) => {
            Err(Refused::Invalid(format!("evaluation priority {priority} is not between 1 and {highest}")))
        }
        None => Ok(()),
    }
}

/// Admits the request's job and returns the warnings.
///
/// # Errors
/// When the job breaks rules.
pub fn admit(request: RegisterJob, rules: &Rules<'_>) -> Result<(RegisterJob, Vec<String>), Refused> {
    let job = request.job;
    if job.dispatched || job.payload.is_some() {
        return Err(Refused::Invalid(format!(
            "job {} cannot be submitted with Dispatched or Payload: dispatch its parameterized job, or leave them out",
            job.id
        )));
    }
    let Admitted { job, warnings } = admission::admit(job, rules)?;
    Ok((RegisterJob { job, ..request }, warnings))
}

/// Drops a source text that is too large to keep, and returns the warning.
pub fn drop_large_source(request: &mut RegisterJob, largest: usize) -> Option<String> {
    let size = request.submission.as_ref().map(|submission| submission.source.len() + submission.variables.len());
    let size = size.filter(|size| *size > largest)?;
    request.submission = None;
    let (size, largest) = (size_text(size), size_text(largest));
    // Programs search for this text.
    Some(format!(
        "job source size of {size} exceeds maximum of {largest} and will be discarded (server.job_max_source_size)"
    ))
}

/// Keeps values that autoscalers have set: counts of existing groups and resources of existing tasks.
fn preserve(job: &mut Job, known: &Job, counts: bool, resources: bool) {
    for group in &mut job.task_groups {
        let Some(before) = known.group(&group.name) else { continue };
        if counts {
            group.count = before.count;
        }
        for task in group.tasks.iter_mut().filter(|_| resources) {
            if let Some(before) = before.task(&task.name) {
                task.resources.clone_from(&before.resources);
            }
        }
    }
}

/// Refuses a parent that is not the job's own. The tasks of a child are, for what they may read, tasks of its parent:
/// whoever could name one would read the variables of any job. A child that is read and registered again names its own.
pub(crate) fn check_parent(state: &State, job: &Job) -> Result<(), Refused> {
    let own = || state.job(&job.key()).is_some_and(|known| known.parent_id == job.parent_id);
    if job.parent_id.is_empty() || own() {
        return Ok(());
    }
    let start: String = job.parent_id.chars().take(64).collect();
    Err(Refused::Invalid(format!(
        "job {:?} has ParentID {start:?}, and no job of this id that was made from that one is registered: leave \
            ParentID out; the servers set it when they dispatch or launch a job",
        job.id
    )))
}

/// Registers an admitted job or a new version of it.
///
/// # Errors
/// When the state is not as the request requires, or the cluster cannot run the job.
pub fn register(
    state: &State,
    request: RegisterJob,
    most: u32,
    stamp: Stamp,
    ids: &mut Ids<'_>,
) -> Result<Decided<EvalCreated>, Refused> {
    let RegisterJob { mut job, enforce_index, preserve_counts, preserve_resources, eval_priority, submission } =
        request;
    let key = job.key();
    allowed_now(state, &key)?;
    enforce(state, &key, enforce_index)?;
    check_parent(state, &job)?;
    if let Some(known) = state.job(&key) {
        preserve(&mut job, known, preserve_counts, preserve_resources);
        check_count(&job, most)?;
    }
    put(state, job, (Trigger::JobRegister, eval_priority), submission, stamp, ids)
}

/// The common part of a registration, a scaling and a revert.
pub(crate) fn put(
    state: &State,
    mut job: Job,
    (trigger, priority): (Trigger, Option<i32>),
    submission: Option<Submission>,
    stamp: Stamp,
    ids: &mut Ids<'_>,
) -> Result<Decided<EvalCreated>, Refused> {
    check_references(state, &job)?;
    let known = state.job(&job.key());
    if let Some(known) = known
        && known.kind != job.kind
    {
        return Err(Refused::Conflict(format!(
            "cannot update job {} from type {:?} to {:?}: register it under another id, or purge it first",
            job.id, known.kind, job.kind
        )));
    }
    if let Some(known) = known {
        for (block, before, now) in [
            ("periodic", known.periodic.is_some(), job.periodic.is_some()),
            ("parameterized", known.parameterized_job.is_some(), job.parameterized_job.is_some()),
        ] {
            if before != now {
                let (from, to) = if now { ("without", "with") } else { ("with", "without") };
                return Err(Refused::Conflict(format!(
                    "cannot update job {} from one {from} a {block} block to one {to} it: register it under another \
                        id, or purge it first",
                    job.id
                )));
            }
        }
    }
    model::scaling::number_policies(&mut job, known.map(|job| &**job), stamp.index, || ids().to_string());
    let template = job.is_template();
    let same = known.filter(|known| !model::updates::specification_changed(known, &job));
    let job_modify_index = same.map_or(stamp.index, |known| known.job_modify_index);
    // Even without a change: it places missing allocations and replaces those stopped by an operator.
    let eval = Evaluation { job_modify_index, ..eval_of(&job, trigger, priority, stamp, ids) };
    // Fields that clients omit must not make the same specification look different.
    let job = same.map_or(job, |known| Job::clone(known));
    let batch = Change::UpsertJob { job: Box::new(job), submission: submission.map(Box::new) }.into();
    Ok(evaluated(batch, eval, job_modify_index, template, stamp))
}

/// Stops a job, and forgets it when purged.
///
/// # Errors
/// When the priority of the evaluation is out of bounds.
pub fn deregister(
    state: &State,
    request: DeregisterJob,
    highest: i32,
    stamp: Stamp,
    ids: &mut Ids<'_>,
) -> Result<Decided<EvalCreated>, Refused> {
    let DeregisterJob { key, purge, eval_priority, no_shutdown_delay } = request;
    check_priority(eval_priority, highest)?;
    let Some(job) = state.job(&key) else {
        // A stop of an absent job is done already; clients repeat it after a lost answer.
        let answer = EvalCreated { index: state.latest_index(), ..EvalCreated::default() };
        return Ok(Decided { batch: Batch::default(), answer });
    };
    let mut batch = Batch::default();
    if no_shutdown_delay {
        let hurry = DesiredTransition { no_shutdown_delay: Some(true), ..DesiredTransition::default() };
        let live = state.allocs_by_job(&key).filter(|alloc| !alloc.client_terminal());
        batch.push(Change::AllocTransitions(live.map(|alloc| (alloc.id, hurry.clone())).collect()));
    }
    let eval = eval_of(job, Trigger::JobDeregister, eval_priority, stamp, ids);
    batch.push(if purge { Change::DeleteJob(key) } else { Change::StopJob(key) });
    // What is stopped already stays as it is, with its index.
    let index = if job.stop && !purge { job.job_modify_index } else { stamp.index };
    // A template runs nothing; its children continue.
    Ok(evaluated(batch, eval, index, job.is_template(), stamp))
}

/// Schedules a job again; `force_reschedule` also replaces failed allocations before their time, or without attempts
/// left.
///
/// # Errors
/// When there is no such job, or it is never scheduled itself.
pub fn evaluate(
    state: &State,
    key: &JobKey,
    force_reschedule: bool,
    stamp: Stamp,
    ids: &mut Ids<'_>,
) -> Result<Decided<EvalCreated>, Refused> {
    let job = job_of(state, key)?;
    if job.is_template() {
        return Err(Refused::Invalid(format!("job {key} is a template: evaluate the jobs made from it")));
    }
    let mut batch = Batch::default();
    if force_reschedule {
        let force = DesiredTransition { force_reschedule: Some(true), ..DesiredTransition::default() };
        // Only the time is forced, not the policy: a group whose policy allows no attempt stays as it is. System jobs
        // have no policy.
        let rescheduled = |group: &str| {
            let policy = job.group(group).and_then(|group| group.reschedule.as_ref());
            policy.is_none_or(|policy| scheduler::reschedule::eligible(Some(policy), None, stamp.now))
        };
        let failed = state.allocs_by_job(key).filter(|alloc| {
            alloc.client_status == ClientStatus::Failed
                && alloc.next_allocation.is_nil()
                && rescheduled(&alloc.task_group)
        });
        batch.push(Change::AllocTransitions(failed.map(|alloc| (alloc.id, force.clone())).collect()));
    }
    let index = job.job_modify_index;
    let eval = Evaluation { job_modify_index: index, ..eval_of(job, Trigger::JobRegister, None, stamp, ids) };
    Ok(evaluated(batch, eval, index, false, stamp))
}

/// Registers an older version again as the newest one.
///
/// # Errors
/// When there is no such job or version, when it is the current one, or when `EnforceVersion` names another current
/// one.
pub fn revert(
    state: &State,
    key: &JobKey,
    (version, enforced): (u64, Option<u64>),
    rules: &Rules<'_>,
    stamp: Stamp,
    ids: &mut Ids<'_>,
) -> Result<Decided<EvalCreated>, Refused> {
    let current = job_of(state, key)?;
    if let Some(expected) = enforced.filter(|expected| *expected != current.version) {
        return Err(Refused::EnforceVersion { expected, actual: current.version });
    }
    if current.version == version {
        return Err(Refused::Invalid(format!("can't revert to current version of job {key}: {version}")));
    }
    let old = state.job_version(key, version).ok_or_else(|| no_version(key, version))?;
    let submission = state.job_submission(key, version).map(|submission| Submission::clone(submission));
    let Admitted { job, .. } = admission::admit(Job { stop: false, ..Job::clone(old) }, rules)?;
    put(state, job, (Trigger::JobRegister, None), submission, stamp, ids)
}

/// Marks a version as stable or not; returns the index.
///
/// # Errors
/// When there is no such job or version.
pub fn mark(
    state: &State,
    key: JobKey,
    version: u64,
    stable: bool,
    stamp: Stamp,
) -> Result<Decided<StoreIndex>, Refused> {
    job_of(state, &key)?;
    if state.job_version(&key, version).is_none() {
        return Err(no_version(&key, version));
    }
    Ok(Decided { batch: Change::JobStability { key, version, stable }.into(), answer: stamp.index })
}

/// Stops an allocation; its job gets another one. With `reschedule` that counts as an attempt of the policy, and the
/// scheduler prefers another node.
///
/// # Errors
/// When there is no such allocation.
pub fn stop_alloc(
    state: &State,
    id: AllocId,
    (no_shutdown_delay, reschedule): (bool, bool),
    stamp: Stamp,
    ids: &mut Ids<'_>,
) -> Result<Decided<EvalCreated>, Refused> {
    let alloc = state.alloc(id).ok_or_else(|| Refused::not_found(Kind::Alloc, id))?;
    let job = state.job(&alloc.job_key()).or(alloc.job.as_ref());
    let job = job.ok_or_else(|| Refused::not_found(Kind::Job, alloc.job_key()))?;
    let transition = DesiredTransition {
        migrate: Some(true),
        reschedule: reschedule.then_some(true),
        no_shutdown_delay: no_shutdown_delay.then_some(true),
        ..DesiredTransition::default()
    };
    let mut batch = Batch::default();
    if !alloc.terminal() {
        batch.push(Change::AllocTransitions(vec![(id, transition)]));
    }
    Ok(evaluated(batch, eval_of(job, Trigger::AllocStop, None, stamp, ids), job.job_modify_index, false, stamp))
}

/// Bytes for people, as `2.0 MB`.
fn size_text(bytes: usize) -> String {
    let (mut whole, mut tenths, mut unit) = (bytes, 0, "B");
    for next in ["kB", "MB", "GB"] {
        if whole < 1000 {
            break;
        }
        (whole, tenths, unit) = (whole / 1000, whole % 1000 / 100, next);
    }
    if unit == "B" || whole >= 10 { format!("{whole} {unit}") } else { format!("{whole}.{tenths} {unit}") }
}

#[cfg(test)]
mod tests;

//! Commands on jobs: register, stop, evaluate, revert, mark as stable.

use model::{Constraint, DesiredTransition, Job, JobKey, StoreIndex, Trigger, job::job_status};
use state::{ALL_NODE_POOL, Batch, Change, State};

use super::{created, eval_of, job_of};
use crate::{
    commit::{Decided, Stamp},
    config::ServerConfig,
    error::ServerError,
    handle::ServerHandle,
    remote,
    requests::{DeregisterJob, EvalCreated, JobVerdict, RegisterJob},
};

/// Largest specification and source text: every server keeps them in memory, for several versions.
const MAX_JOB_BYTES: usize = 8 * 1024 * 1024;
const MAX_SUBMISSION_BYTES: usize = 1024 * 1024;

/// A job that may be registered, with what deserves a look.
pub(super) struct Admitted {
    pub(super) job: Job,
    pub(super) warnings: Vec<String>,
}

/// Fills in the defaults, adds what follows from what the job uses, and checks it on its own.
pub(super) fn admit(mut job: Job, config: &ServerConfig) -> Result<Admitted, ServerError> {
    // These belong to the servers, whatever a client sends.
    job.status = job_status::PENDING.to_owned();
    job.status_description.clear();
    job.stable = false;
    job.version = 0;
    job.create_index = 0;
    job.modify_index = 0;
    job.job_modify_index = 0;
    job.submit_time = 0;
    job.version_tag = None;
    job.canonicalize();
    if job.region != config.region {
        return Err(ServerError::InvalidArgument(format!(
            "job {} is for region {:?}, this cluster is {:?}: change the job's region or send it to that cluster",
            job.id, job.region, config.region
        )));
    }
    add_implied_constraints(&mut job);
    let operands = scheduler::rule_mistakes(&job);
    let warnings = match model::validate::validate(&job) {
        Ok(warnings) if operands.0.is_empty() => warnings.0,
        Ok(_) => return Err(ServerError::InvalidJob(operands)),
        Err(mut errors) => {
            errors.0.extend(operands.0);
            return Err(ServerError::InvalidJob(errors));
        }
    };
    super::templates::check(&job).map_err(ServerError::InvalidJob)?;
    if job.priority > config.job_max_priority {
        return Err(ServerError::InvalidArgument(format!(
            "job {} has priority {}, the highest that this cluster allows is {}",
            job.id, job.priority, config.job_max_priority
        )));
    }
    let bytes = serde_json::to_vec(&job).map_or(0, |json| json.len());
    if bytes > MAX_JOB_BYTES {
        return Err(ServerError::InvalidArgument(format!(
            "job {} has {bytes} bytes, at most {MAX_JOB_BYTES} are allowed: fetch large files as artifacts instead of embedding them",
            job.id
        )));
    }
    Ok(Admitted { job, warnings })
}

/// A task that asks for a signal needs a node that knows it.
fn add_implied_constraints(job: &mut Job) {
    for group in &mut job.task_groups {
        let mut signals: Vec<&str> = Vec::new();
        for task in &group.tasks {
            signals.extend(Some(&*task.kill_signal).filter(|signal| !signal.is_empty()));
            let of_templates = task.templates.iter().filter(|template| template.change_mode.as_deref() == Some("signal"));
            signals.extend(of_templates.filter_map(|template| template.change_signal.as_deref()).filter(|signal| !signal.is_empty()));
        }
        if signals.is_empty() {
            continue;
        }
        signals.sort_unstable();
        signals.dedup();
        let implied = Constraint { left: "${attr.os.signals}".to_owned(), right: signals.join(","), operator: "set_contains".to_owned() };
        if !group.constraints.contains(&implied) {
            group.constraints.push(implied);
        }
    }
}

/// What a person should know of the job in this cluster, although it is accepted.
pub(super) fn cluster_warnings(state: &State, job: &Job) -> Vec<String> {
    let mut lines = remote::warnings(state, job);
    lines.extend(super::drivers::unknown(state, job));
    if !state.memory_oversubscribed(&job.node_pool) {
        let tasks = job.task_groups.iter().flat_map(|group| &group.tasks);
        let more: Vec<&str> = tasks.filter(|t| t.resources.memory_max_mb.is_some_and(|m| m != 0)).map(|t| &*t.name).collect();
        if !more.is_empty() {
            lines.push(format!(
                "memory_max of {} has no effect: memory oversubscription is off in this cluster (MemoryOversubscriptionEnabled of \
                 /v1/operator/scheduler/configuration, or of the node pool), so the limit is memory",
                more.join(", ")
            ));
        }
    }
    lines
}

/// Checks what a job refers to in the cluster.
pub(in crate::commands) fn check_references(state: &State, job: &Job) -> Result<(), ServerError> {
    if state.namespace(&job.namespace).is_none() {
        return Err(ServerError::InvalidArgument(format!("job {:?} is in nonexistent namespace {:?}", job.id, job.namespace)));
    }
    if state.node_pool(&job.node_pool).is_none() && job.node_pool != ALL_NODE_POOL {
        return Err(ServerError::InvalidArgument(format!("job {:?} is in nonexistent node pool {:?}", job.id, job.node_pool)));
    }
    let capabilities = state.namespace(&job.namespace).and_then(|namespace| namespace.capabilities.as_ref());
    if let Some(capabilities) = capabilities {
        let allowed = |driver: &String| {
            (capabilities.enabled_task_drivers.is_empty() || capabilities.enabled_task_drivers.contains(driver))
                && !capabilities.disabled_task_drivers.contains(driver)
        };
        let tasks = job.task_groups.iter().flat_map(|group| &group.tasks);
        let refused: Vec<&str> = tasks.filter(|task| !allowed(&task.driver)).map(|task| &*task.driver).collect();
        if !refused.is_empty() {
            return Err(ServerError::InvalidArgument(format!(
                "job {:?} uses drivers that the namespace {:?} does not allow: {}",
                job.id,
                job.namespace,
                refused.join(", ")
            )));
        }
    }
    let undeliverable = remote::undeliverable(state, job);
    if !undeliverable.is_empty() {
        return Err(ServerError::InvalidArgument(format!(
            "job {:?} cannot run where its tasks would: {}",
            job.id,
            undeliverable.join("; ")
        )));
    }
    Ok(())
}

fn no_version(key: &JobKey, version: u64) -> ServerError {
    ServerError::InvalidArgument(format!("job {:?} in namespace {:?} at version {version} not found", key.id, key.namespace))
}

/// The id of a new scaling policy.
pub(super) fn new_policy_id() -> String {
    crate::clock::new_id::<uuid::Uuid>().to_string()
}

/// Are registrations, and what amounts to one, allowed at present?
pub(super) fn allowed_now(state: &State, key: &JobKey) -> Result<(), ServerError> {
    if state.scheduler_config().reject_job_registration { Err(ServerError::RegistrationDisabled(key.clone())) } else { Ok(()) }
}

/// Does the request demand another index of the job?
pub(super) fn enforce(state: &State, key: &JobKey, expected: Option<StoreIndex>) -> Result<(), ServerError> {
    let Some(expected) = expected else { return Ok(()) };
    let actual = state.job(key).map(|job| job.job_modify_index);
    match actual {
        None if expected == 0 => Ok(()),
        Some(actual) if actual == expected && expected != 0 => Ok(()),
        actual => Err(ServerError::EnforceIndex { expected, actual }),
    }
}

/// Keeps what autoscalers have set: the counts of groups and the resources of tasks that exist.
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

/// Registers an admitted job: what a registration, a scaling and a revert have in common.
pub(super) fn register(
    state: &State,
    mut job: Job,
    trigger: Trigger,
    priority: Option<i32>,
    submission: Option<Box<state::Submission>>,
    stamp: Stamp,
) -> Result<Decided<EvalCreated>, ServerError> {
    check_references(state, &job)?;
    let known = state.job(&job.key());
    if let Some(known) = known
        && known.kind != job.kind
    {
        return Err(ServerError::Conflict(format!(
            "cannot update job {} from type {:?} to {:?}: register it under another id, or purge it first",
            job.id, known.kind, job.kind
        )));
    }
    model::scaling::number_policies(&mut job, known.map(|job| &**job), stamp.index, new_policy_id);
    let template = job.is_template();
    let unchanged = known.is_some_and(|known| !model::updates::specification_changed(known, &job));
    let job_modify_index = known.filter(|_| unchanged).map_or(stamp.index, |known| known.job_modify_index);
    // Also without a change: what is missing is placed, what was stopped by hand comes back.
    let mut eval = eval_of(&job, trigger, priority, stamp);
    eval.job_modify_index = job_modify_index;
    let answer = created(&eval, job_modify_index, stamp);
    let job = match known {
        // The same specification must not look different for what clients leave out.
        Some(known) if unchanged => Job::clone(known),
        _ => job,
    };
    let mut batch: Batch = Change::UpsertJob { job: Box::new(job), submission }.into();
    if template {
        // It is never scheduled itself.
        let answer = EvalCreated { eval_id: model::EvalId::NIL, eval_create_index: 0, ..answer };
        return Ok(Decided { batch, answer });
    }
    batch.push(Change::UpsertEvals(vec![eval]));
    Ok(Decided { batch, answer })
}

/// Every call answers after its commit is durable.
impl ServerHandle {
    /// Registers a job or a new version of it.
    ///
    /// # Errors
    /// When the job is invalid, uses what this release refuses, or the state is not as the request demands; nothing was changed then.
    pub async fn register_job(&self, request: RegisterJob) -> Result<EvalCreated, ServerError> {
        let RegisterJob { job, enforce_index, preserve_counts, preserve_resources, eval_priority, submission } = request;
        let config = self.config();
        if job.dispatched || job.payload.is_some() {
            return Err(ServerError::InvalidArgument(format!(
                "job {} cannot be submitted with Dispatched or Payload: dispatch its parameterized job, or leave them out",
                job.id
            )));
        }
        let Admitted { job, mut warnings } = admit(job, config)?;
        warnings.extend(cluster_warnings(&self.snapshot(), &job));
        if let Some(priority) = eval_priority
            && !(1..=config.job_max_priority).contains(&priority)
        {
            return Err(ServerError::InvalidArgument(format!(
                "evaluation priority {priority} is not between 1 and {}",
                config.job_max_priority
            )));
        }
        let submission = submission.map(Box::new).filter(|submission| {
            let kept = submission.source.len() + submission.variables.len() <= MAX_SUBMISSION_BYTES;
            if !kept {
                warnings.push(format!("the source text is not kept: it has more than {MAX_SUBMISSION_BYTES} bytes"));
            }
            kept
        });
        let mut answer = self
            .shared
            .queue()
            .commit(move |state, stamp| {
                let key = job.key();
                allowed_now(state, &key)?;
                enforce(state, &key, enforce_index)?;
                let mut job = job;
                if let Some(known) = state.job(&key) {
                    preserve(&mut job, known, preserve_counts, preserve_resources);
                }
                register(state, job, Trigger::JobRegister, eval_priority, submission, stamp)
            })
            .await?;
        answer.warnings = warnings;
        Ok(answer)
    }

    /// Checks a job without registering it; never fails for an invalid job.
    ///
    /// # Errors
    /// When the job is for another cluster.
    pub async fn validate_job(&self, job: Job) -> Result<JobVerdict, ServerError> {
        let mut canonical = job.clone();
        canonical.canonicalize();
        let mut verdict = JobVerdict { job: canonical, ..JobVerdict::default() };
        match admit(job, self.config()).and_then(|admitted| check_references(&self.snapshot(), &admitted.job).map(|()| admitted)) {
            Ok(Admitted { job, warnings }) => {
                verdict.warnings = warnings;
                verdict.warnings.extend(cluster_warnings(&self.snapshot(), &job));
                verdict.job = job;
            }
            Err(ServerError::InvalidJob(errors)) => {
                verdict.errors = errors.flat();
                verdict.error = errors.to_string();
            }
            Err(error) => {
                verdict.errors = vec![error.to_string()];
                verdict.error = error.to_string();
            }
        }
        Ok(verdict)
    }

    /// Stops a job, and forgets it when purged.
    ///
    /// # Errors
    /// When the priority of the evaluation is out of bounds.
    pub async fn deregister_job(&self, request: DeregisterJob) -> Result<EvalCreated, ServerError> {
        let highest = self.config().job_max_priority;
        self.shared
            .queue()
            .commit(move |state, stamp| {
                let DeregisterJob { key, purge, eval_priority, no_shutdown_delay } = request;
                if let Some(priority) = eval_priority.filter(|priority| !(1..=highest).contains(priority)) {
                    return Err(ServerError::InvalidArgument(format!("evaluation priority {priority} is not between 1 and {highest}")));
                }
                let Some(job) = state.job(&key) else {
                    // Stopping what is not there is done already; clients repeat it after a lost answer.
                    let answer = EvalCreated { index: state.latest_index(), ..EvalCreated::default() };
                    return Ok(Decided { batch: Batch::default(), answer });
                };
                let mut batch = Batch::default();
                if no_shutdown_delay {
                    let hurry = DesiredTransition { no_shutdown_delay: Some(true), ..DesiredTransition::default() };
                    let live = state.allocs_by_job(&key).filter(|alloc| !alloc.client_terminal());
                    batch.push(Change::AllocTransitions(live.map(|alloc| (alloc.id, hurry.clone())).collect()));
                }
                let template = job.is_template();
                let eval = eval_of(job, Trigger::JobDeregister, eval_priority, stamp);
                let answer = created(&eval, stamp.index, stamp);
                batch.push(if purge { Change::DeleteJob(key) } else { Change::StopJob(key) });
                if template {
                    // Nothing of it runs; the jobs made from it go on.
                    let answer = EvalCreated { eval_id: model::EvalId::NIL, eval_create_index: 0, ..answer };
                    return Ok(Decided { batch, answer });
                }
                batch.push(Change::UpsertEvals(vec![eval]));
                Ok(Decided { batch, answer })
            })
            .await
    }

    /// Schedules a job again; `force_reschedule` also replaces failed allocations before their time, or whose attempts are used up.
    ///
    /// # Errors
    /// When there is no such job, or it is one that is never scheduled itself.
    pub async fn evaluate_job(&self, key: JobKey, force_reschedule: bool) -> Result<EvalCreated, ServerError> {
        self.shared
            .queue()
            .commit(move |state, stamp| {
                let job = job_of(state, &key)?;
                if job.is_template() {
                    return Err(ServerError::InvalidArgument(format!("job {key} is a template: evaluate the jobs made from it")));
                }
                let mut batch = Batch::default();
                if force_reschedule {
                    let force = DesiredTransition { force_reschedule: Some(true), ..DesiredTransition::default() };
                    // Forced is the time, not the policy: a group whose policy allows no attempt stays as it is. System jobs have no policy.
                    let rescheduled = |group: &str| {
                        let policy = job.group(group).and_then(|group| group.reschedule.as_ref());
                        policy.is_none_or(|policy| scheduler::reschedule::eligible(Some(policy), None, stamp.now))
                    };
                    let failed = state.allocs_by_job(&key).filter(|alloc| {
                        alloc.client_status == model::ClientStatus::Failed
                            && alloc.next_allocation.is_nil()
                            && rescheduled(&alloc.task_group)
                    });
                    batch.push(Change::AllocTransitions(failed.map(|alloc| (alloc.id, force.clone())).collect()));
                }
                let mut eval = eval_of(job, Trigger::JobRegister, None, stamp);
                eval.job_modify_index = job.job_modify_index;
                let answer = created(&eval, job.job_modify_index, stamp);
                batch.push(Change::UpsertEvals(vec![eval]));
                Ok(Decided { batch, answer })
            })
            .await
    }

    /// Registers an older version again as the newest one.
    ///
    /// # Errors
    /// When there is no such job or version, it is the current one, or the current one is not the enforced one.
    pub async fn revert_job(&self, key: JobKey, version: u64, enforce_prior_version: Option<u64>) -> Result<EvalCreated, ServerError> {
        let config = self.config().clone();
        self.shared
            .queue()
            .commit(move |state, stamp| {
                let current = job_of(state, &key)?;
                if let Some(expected) = enforce_prior_version
                    && current.version != expected
                {
                    return Err(ServerError::EnforceVersion { expected, actual: current.version });
                }
                if current.version == version {
                    return Err(ServerError::InvalidArgument(format!("can't revert to current version of job {key}: {version}")));
                }
                let old = state.job_version(&key, version).ok_or_else(|| no_version(&key, version))?;
                let mut job = Job::clone(old);
                job.stop = false;
                let submission = state.job_submission(&key, version).map(|s| Box::new(state::Submission::clone(s)));
                let Admitted { job, .. } = admit(job, &config)?;
                register(state, job, Trigger::JobRegister, None, submission, stamp)
            })
            .await
    }

    /// Marks a version as stable or not.
    ///
    /// # Errors
    /// When there is no such job or version.
    pub async fn set_job_stability(&self, key: JobKey, version: u64, stable: bool) -> Result<StoreIndex, ServerError> {
        self.shared
            .queue()
            .commit(move |state, stamp| {
                job_of(state, &key)?;
                if state.job_version(&key, version).is_none() {
                    return Err(no_version(&key, version));
                }
                Ok(Decided { batch: Change::JobStability { key, version, stable }.into(), answer: stamp.index })
            })
            .await
    }
}

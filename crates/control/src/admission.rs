//! Admission: which jobs may register, with their defaults and warnings.

mod implied;
mod remote;
mod secrets;
mod templates;
mod vault;

use lifecycle::remote::Times;
use model::{
    Constraint, Job,
    job::job_status,
    periodic::{PeriodicError, Schedule, Zones},
    validate::Problem,
};
use scheduler::limits::never_fits;
use state::{ALL_NODE_POOL, State};

use crate::{Refused, admission::implied::imply, extra_claims, spaces};

pub use remote::undeliverable;
pub use vault::VaultRules;

/// Largest specification and source text in bytes: every server keeps them in memory, for several versions.
const MAX_JOB_BYTES: usize = 8 * 1024 * 1024;
/// Largest number of groups and tasks in a job: the defaults of each outweigh its text.
const MAX_PARTS: usize = 10_000;

/// Limits and defaults of the servers.
#[derive(Clone, Copy, Debug)]
pub struct Rules<'a> {
    /// The region of the servers.
    pub region: &'a str,
    /// Priority of a job that names none.
    pub default_priority: i32,
    /// Highest priority.
    pub max_priority: i32,
    /// Allocations that a job may ask for, over all its groups; 0 = no limit.
    pub max_count: u32,
    /// The time zones that jobs may name.
    pub zones: Zones,
    /// What tasks with a `vault` block get; `None` = Vault is off.
    pub vault: Option<&'a VaultRules>,
}

/// A job that may register, with its warnings.
#[derive(Clone, Debug)]
pub struct Admitted {
    /// The job as it is registered.
    pub job: Job,
    /// Warnings.
    pub warnings: Vec<String>,
}

/// Fills in the defaults, adds implied settings, and checks the job on its own.
///
/// # Errors
/// When the job breaks a rule, or asks for more than the servers allow.
pub fn admit(mut job: Job, rules: &Rules<'_>) -> Result<Admitted, Refused> {
    let parts: usize = job.task_groups.iter().map(|group| 1 + group.tasks.len()).sum();
    if parts > MAX_PARTS {
        return Err(Refused::TooLarge(format!(
            "job {} has {parts} groups and tasks, at most {MAX_PARTS} are allowed: use count, or split the job",
            job.id
        )));
    }
    // These fields belong to the servers, whatever a client sends.
    job.status = job_status::PENDING.to_owned();
    job.status_description.clear();
    job.stable = false;
    job.version = 0;
    job.create_index = 0;
    job.modify_index = 0;
    job.job_modify_index = 0;
    job.submit_time = 0;
    job.version_tag = None;
    if job.priority == 0 {
        job.priority = rules.default_priority;
    }
    job.canonicalize();
    if job.region != rules.region {
        return Err(Refused::Invalid(format!(
            "job {} is for region {:?}, this cluster is {:?}: change the job's region or send it to that cluster",
            job.id, job.region, rules.region
        )));
    }
    secrets::add(&mut job);
    let without_vault = vault::add(&mut job, rules.vault);
    add_implied_constraints(&mut job);
    let mut operands = scheduler::rule_mistakes(&job);
    let times = job.launches().map(|periodic| Schedule::of(periodic, rules.zones));
    // The other mistakes of the block are found without knowing any zone.
    if let Some(Err(error @ PeriodicError::Zone(_))) = times {
        operands.0.push(Problem::Text(error.to_string()));
    }
    let warnings = match model::validate::validate(&job) {
        Ok(warnings) if operands.0.is_empty() => warnings.0,
        Ok(_) => return Err(Refused::Job(operands)),
        Err(mut errors) => {
            errors.0.extend(operands.0);
            return Err(Refused::Job(errors));
        }
    };
    if !without_vault.0.is_empty() {
        return Err(Refused::Job(without_vault));
    }
    templates::check(&job).map_err(Refused::Job)?;
    if job.priority > rules.max_priority {
        return Err(Refused::Invalid(format!(
            "job {} has priority {}, the highest that this cluster allows is {}",
            job.id, job.priority, rules.max_priority
        )));
    }
    check_count(&job, rules.max_count)?;
    let bytes = serde_json::to_vec(&job).map_or(0, |json| json.len());
    if bytes > MAX_JOB_BYTES {
        return Err(Refused::TooLarge(format!(
            "job {} has {bytes} bytes, at most {MAX_JOB_BYTES} are allowed: fetch large files as artifacts instead of \
                embedding them",
            job.id
        )));
    }
    Ok(Admitted { job, warnings })
}

/// Checks how many allocations a job asks for. A stopped job may have any size.
///
/// # Errors
/// When it asks for more than `most`.
pub fn check_count(job: &Job, most: u32) -> Result<(), Refused> {
    if most == 0 || job.stop {
        return Ok(());
    }
    let refused = |what: String| {
        Err(Refused::Invalid(format!(
            "job {:?} {what}, at most {most} are allowed: lower it, split the job, or raise server.job_max_count",
            job.id
        )))
    };
    let total: u64 = job.task_groups.iter().map(|group| u64::from(group.count())).sum();
    if total > u64::from(most) {
        return refused(format!("asks for {total} allocations, the counts of its groups together"));
    }
    for group in &job.task_groups {
        let canaries = group.update.as_ref().map_or(0, model::policy::Update::canary);
        if i64::from(canaries) > i64::from(most) {
            return refused(format!("asks for {canaries} canaries in group {:?}", group.name));
        }
    }
    Ok(())
}

/// A task that asks for a signal needs a node that knows it.
fn add_implied_constraints(job: &mut Job) {
    for group in &mut job.task_groups {
        let mut signals: Vec<&str> = Vec::new();
        for task in &group.tasks {
            signals.extend(Some(&*task.kill_signal).filter(|signal| !signal.is_empty()));
            let of_templates =
                task.templates.iter().filter(|template| template.change_mode.as_deref() == Some("signal"));
            signals.extend(
                of_templates
                    .filter_map(|template| template.change_signal.as_deref())
                    .filter(|signal| !signal.is_empty()),
            );
            let of_vault = task.vault.iter().filter(|vault| vault.change_mode.as_deref() == Some("signal"));
            signals.extend(of_vault.filter_map(|vault| vault.change_signal.as_deref()).filter(|s| !s.is_empty()));
        }
        if signals.is_empty() {
            continue;
        }
        signals.sort_unstable();
        signals.dedup();
        let implied = Constraint {
            left: "${attr.os.signals}".to_owned(),
            right: signals.join(","),
            operator: "set_contains".to_owned(),
        };
        imply(group, implied);
    }
}

/// Warnings about an accepted job in this cluster.
#[must_use]
pub fn warnings(state: &State, job: &Job, times: &Times) -> Vec<String> {
    let mut lines = remote::warnings(state, job, times);
    if !state.memory_oversubscribed(&job.node_pool) {
        let tasks = job.task_groups.iter().flat_map(|group| &group.tasks);
        let more: Vec<&str> =
            tasks.filter(|t| t.resources.memory_max_mb.is_some_and(|m| m != 0)).map(|t| &*t.name).collect();
        if !more.is_empty() {
            lines.push(format!(
                "memory_max of {} has no effect: memory oversubscription is off in this cluster \
                    (MemoryOversubscriptionEnabled of \
                 /v1/operator/scheduler/configuration, or of the node pool), so the limit is memory",
                more.join(", ")
            ));
        }
    }
    lines
}

/// Checks the job's references to the cluster.
///
/// # Errors
/// When its namespace or node pool does not exist, or when the job asks for something that is forbidden or missing
/// there.
pub fn check_references(state: &State, job: &Job) -> Result<(), Refused> {
    let Some(namespace) = state.namespace(&job.namespace) else {
        let why = format!("job {:?} is in nonexistent namespace {:?}", job.id, job.namespace);
        return Err(Refused::several(&[why]));
    };
    if state.node_pool(&job.node_pool).is_none() && job.node_pool != ALL_NODE_POOL {
        return Err(Refused::Invalid(format!("job {:?} is in nonexistent node pool {:?}", job.id, job.node_pool)));
    }
    let mut beyond = spaces::beyond_capabilities(namespace, job);
    beyond.extend(extra_claims::unknown(namespace, job));
    let remote = |driver: &str| state.fleet().runtimes(driver).next().is_some();
    beyond.extend(
        never_fits(namespace, job, remote)
            .into_iter()
            .map(|why| format!("job {:?} can never run whole: {why}; lower its needs or raise the limit", job.id)),
    );
    if !beyond.is_empty() {
        return Err(Refused::several(&beyond));
    }
    let undeliverable = remote::undeliverable(state, job);
    if !undeliverable.is_empty() {
        return Err(Refused::Invalid(format!(
            "job {:?} cannot run where its tasks would: {}",
            job.id,
            undeliverable.join("; ")
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests;

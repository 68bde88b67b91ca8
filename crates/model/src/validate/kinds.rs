//! What jobs of a kind may not have: those that run on every node are not spread, preferred or counted.

use super::problems::{ValidationErrors, Warnings};
use crate::{
    job::{Job, TaskGroup, job_type},
    task::Task,
};

fn system(job: &Job) -> bool {
    job.kind == job_type::SYSTEM
}

pub(super) fn check_job(job: &Job, e: &mut ValidationErrors) {
    if !system(job) {
        return;
    }
    e.when(!job.affinities.is_empty(), || "System jobs may not have an affinity block".to_owned());
    e.when(!job.spreads.is_empty(), || "System jobs may not have a spread block".to_owned());
}

pub(super) fn check_group(job: &Job, g: &TaskGroup, e: &mut ValidationErrors) {
    // An allocation of theirs has no index of its own.
    let per_alloc = g.volumes.iter().filter(|(_, v)| v.per_alloc && (system(job) || job.kind == job_type::SYSBATCH));
    for (name, _) in per_alloc {
        e.text(format!("volume {name:?} cannot be per_alloc in a job of type {}", job.kind));
    }
    if !system(job) {
        return;
    }
    e.when(g.count.is_some_and(|c| c > 1), || {
        format!(
            "Count cannot exceed 1 with the system scheduler, which places one on each node; got {}",
            g.count.unwrap_or_default()
        )
    });
    e.when(!g.affinities.is_empty(), || "System jobs may not have an affinity block".to_owned());
    e.when(!g.spreads.is_empty(), || "System jobs may not have a spread block".to_owned());
    e.when(g.scaling.is_some(), || "Task groups with job type system do not support scaling blocks".to_owned());
}

pub(super) fn check_task(job: &Job, t: &Task, e: &mut ValidationErrors) {
    e.when(system(job) && !t.affinities.is_empty(), || "System jobs may not have an affinity block".to_owned());
}

/// Sysbatch jobs may have them, without effect.
pub(super) fn collect_warnings(job: &Job, w: &mut Warnings) {
    if job.kind != job_type::SYSBATCH {
        return;
    }
    let mut idle = Vec::new();
    let preferred = |t: &Task| !t.affinities.is_empty();
    if !job.affinities.is_empty()
        || job.task_groups.iter().any(|g| !g.affinities.is_empty() || g.tasks.iter().any(preferred))
    {
        idle.push("affinity");
    }
    if !job.spreads.is_empty() || job.task_groups.iter().any(|g| !g.spreads.is_empty()) {
        idle.push("spread");
    }
    if job.task_groups.iter().any(|g| g.count() > 1) {
        idle.push("a count above 1");
    }
    if !idle.is_empty() {
        w.0.push(format!("{} of a sysbatch job has no effect: it runs once on every node", idle.join(" and ")));
    }
}

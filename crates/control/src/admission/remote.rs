//! Warnings and refusals that concern a job's remote tasks and the providers that nodes reach.

use std::collections::{BTreeMap, BTreeSet};

use lifecycle::remote::{Times, guarantee_within, parts};
use model::{Job, remote::Guarantee, task::Task};
use state::State;

use crate::runtimes::{runs_on_a_node, usable};

/// Warnings about the job's remote tasks: a line for each driver whose provider leaves a gap.
pub(super) fn warnings(state: &State, job: &Job, times: &Times) -> Vec<String> {
    let mut tasks: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for task in job.task_groups.iter().flat_map(|group| &group.tasks) {
        tasks.entry(&task.driver).or_default().push(&task.name);
    }
    let mut lines = BTreeSet::new();
    let patient = |group: &&model::TaskGroup| group.patience().is_some() || group.stop_on_client_after().is_some();
    for group in job.task_groups.iter().filter(patient) {
        let far = |task: &&model::Task| state.fleet().runtimes(&task.driver).next().is_some();
        let far: Vec<&str> = group.tasks.iter().filter(far).map(|task| &*task.name).collect();
        if !far.is_empty() {
            lines.insert(format!(
                "group {:?}: what is said about disconnected nodes does not apply to remote tasks ({}): they run on, \
                    are managed by another \
                 node as soon as the lease of theirs has run out, and are never stopped or doubled for it",
                group.name,
                far.join(", ")
            ));
        }
    }
    if model::job::job_type::everywhere(&job.kind) {
        lines.extend(scheduler::mixed_groups(state, job).map(|group| {
            format!(
                "group {:?} is not placed on nodes where some of its tasks run on the node and others elsewhere: a \
                    job of type {:?} has one \
                 allocation on each node, or one at each provider; make two groups of it",
                group.name, job.kind
            )
        }));
    }
    for (driver, tasks) in &tasks {
        for provider in usable(state, driver) {
            let Guarantee { level, limits, .. } = guarantee_within(Some(provider), Some(times));
            if limits.is_empty() {
                continue;
            }
            lines.insert(format!(
                "remote tasks of driver {driver:?} ({}) at provider {:?} have the guarantee \"{level}\": {}",
                tasks.join(", "),
                provider.provider,
                limits.join("; ")
            ));
        }
    }
    lines.into_iter().collect()
}

/// The parts of the job's tasks that cannot reach their drivers' providers, as far as nodes have reported these. A
/// driver that also runs tasks on some node, or that reaches a provider without the gap, refuses nothing here.
#[must_use]
pub fn undeliverable(state: &State, job: &Job) -> Vec<String> {
    let tasks = job.task_groups.iter().flat_map(|group| &group.tasks);
    let refusals = |task: &Task| {
        // The provider with the fewest refusals decides.
        let least =
            usable(state, &task.driver).map(|provider| parts::undeliverable(task, provider)).min_by_key(Vec::len);
        // Checked only before a refusal, because there may be thousands of nodes.
        least.filter(|refused| !refused.is_empty() && !runs_on_a_node(state, &task.driver)).unwrap_or_default()
    };
    tasks.flat_map(refusals).collect()
}

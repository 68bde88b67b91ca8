//! The scenarios, by what they are about.

mod jobs;
mod nodes;
mod placement;
mod restarts;
mod services;
mod tasks;
mod updates;

use super::{
    job::Job,
    scenario::{Act, Look, Scenario, Step},
};

/// All of them.
pub(super) fn all() -> Vec<Scenario> {
    let all = [
        // Those on nodes of their own come first: there are few of these.
        nodes::scenarios(),
        placement::scenarios(),
        updates::scenarios(),
        restarts::scenarios(),
        tasks::scenarios(),
        services::scenarios(),
        jobs::scenarios(),
    ];
    all.into_iter().flatten().collect()
}

/// Registers a job.
fn run(job: Job) -> Step {
    Act::Run(job.hcl()).into()
}

/// Stops the job.
fn stop() -> Step {
    Act::Stop { purge: false }.into()
}

fn out(alloc: &'static str, task: &'static str) -> Look {
    Look::Log { alloc, task, stream: "stdout", sorted: false }
}

fn sorted_out(alloc: &'static str, task: &'static str) -> Look {
    Look::Log { alloc, task, stream: "stdout", sorted: true }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn scenarios_have_names_of_their_own_and_events_after_the_placement() {
        let mut names = BTreeSet::new();
        for scenario in all() {
            assert!(names.insert(scenario.name.clone()), "{} is there twice", scenario.name);
            assert!(scenario.steps.len() >= 2, "{} has no event", scenario.name);
        }
        assert!(names.len() >= 60, "there are {}", names.len());
    }
}

//! What is known of the drivers that a job names before a node is chosen.

use std::collections::BTreeSet;

use model::Job;
use state::State;

/// A task whose driver no node has waits until one does, which is seldom what was meant. No refusal: the node may be on its way.
pub(super) fn unknown(state: &State, job: &Job) -> Vec<String> {
    let known: BTreeSet<&str> =
        state.nodes().flat_map(|node| node.drivers.iter()).filter(|(_, driver)| driver.detected).map(|(name, _)| name.as_str()).collect();
    warnings(&known, job)
}

fn warnings(known: &BTreeSet<&str>, job: &Job) -> Vec<String> {
    if known.is_empty() {
        return Vec::new();
    }
    let tasks = job.task_groups.iter().flat_map(|group| &group.tasks).filter(|task| !known.contains(task.driver.as_str()));
    tasks
        .map(|task| {
            let driver = &task.driver;
            let meant =
                jobspec::nearest(driver, known.iter().copied()).map(|name| format!(" (did you mean {name:?}?)")).unwrap_or_default();
            let have = known.iter().copied().collect::<Vec<_>>().join(", ");
            format!("task {:?}: no node has the driver {driver:?}{meant}; it waits until one has. Nodes have {have}", &*task.name)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use model::{Task, TaskGroup};

    use super::*;

    #[test]
    fn a_driver_that_no_node_has_is_told_with_the_one_that_was_meant() {
        let job = |driver: &str| {
            let task = Task { name: "t".into(), driver: driver.into(), ..Task::default() };
            Job { task_groups: vec![TaskGroup { tasks: vec![task], ..TaskGroup::default() }], ..Job::default() }
        };
        let known: BTreeSet<&str> = ["docker", "exec", "raw_exec"].into();
        assert_eq!(
            warnings(&known, &job("raw-exec")),
            [
                "task \"t\": no node has the driver \"raw-exec\" (did you mean \"raw_exec\"?); it waits until one has. Nodes have docker, exec, raw_exec"
            ]
        );
        assert_eq!(
            warnings(&known, &job("podman")),
            ["task \"t\": no node has the driver \"podman\"; it waits until one has. Nodes have docker, exec, raw_exec"]
        );
        assert_eq!(warnings(&known, &job("exec")), Vec::<String>::new());
        assert_eq!(warnings(&BTreeSet::new(), &job("raw-exec")), Vec::<String>::new(), "without nodes nothing is known");
    }
}

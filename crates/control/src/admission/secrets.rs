//! Admission of tasks with secrets: nodes that can ask their providers.

use std::collections::BTreeSet;

use model::{Constraint, Job, secret_rules::attribute};

use super::implied::imply;

/// Gives groups whose tasks have secrets a constraint to nodes with each of the providers.
pub(super) fn add(job: &mut Job) {
    for group in &mut job.task_groups {
        let secrets = group.tasks.iter().flat_map(|task| &task.secrets);
        let providers: BTreeSet<String> = secrets.map(|secret| secret.provider.clone()).collect();
        for provider in providers {
            let has = Constraint {
                left: format!("${{attr.{}}}", attribute(&provider)),
                right: String::new(),
                operator: "is_set".to_owned(),
            };
            imply(group, has);
        }
    }
}

#[cfg(test)]
mod tests {
    use model::{Task, TaskGroup, task::TaskSecret};

    use super::*;

    #[test]
    fn each_provider_is_asked_of_the_node_once() {
        let secret = |provider: &str| TaskSecret { provider: provider.into(), ..TaskSecret::default() };
        let task = |secrets| Task { secrets, ..Task::default() };
        let tasks = vec![task(vec![secret("nomad"), secret("pass")]), task(vec![secret("nomad")])];
        let group = TaskGroup { tasks, ..TaskGroup::default() };
        let mut job = Job { task_groups: vec![group, TaskGroup::default()].into(), ..Job::default() };
        for _ in 0..2 {
            add(&mut job);
            let asked: Vec<&str> = job.task_groups[0].constraints.iter().map(|c| &*c.left).collect();
            assert_eq!(asked, ["${attr.plugins.secrets.nomad.version}", "${attr.plugins.secrets.pass.version}"]);
        }
        assert!(job.task_groups[1].constraints.is_empty());
    }
}

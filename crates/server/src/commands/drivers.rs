//! What is known of the drivers that a job names before a node is chosen.

use std::collections::BTreeSet;

use hcl_lang::hclspec::check_submission;
use model::{
    Job, NodeId, NodeStatus,
    validate::{Problem, ValidationErrors},
};
use state::State;

use crate::{handle::ServerHandle, schemas::DriverSchemas};

/// What the nodes' drivers say to the configurations of a job's tasks.
#[derive(Debug, Default, PartialEq)]
pub(super) struct DriverVerdict {
    /// What no node would take.
    pub(super) errors: ValidationErrors,
    /// The same where a ready node has the driver and has not told its schema; and what could not be checked.
    pub(super) warnings: Vec<String>,
    /// Every task was checked against all that is to be known.
    pub(super) complete: bool,
}

/// Who has a driver and may run tasks of it, without having told its schema.
pub(crate) fn untold(state: &State, driver: &str, told: &BTreeSet<NodeId>) -> bool {
    let has = |node: &model::Node| node.drivers.get(driver).is_some_and(|info| info.detected);
    state.nodes().any(|node| node.status == NodeStatus::Ready && !told.contains(&node.id) && has(node))
}

/// Checks the configuration of every task against the schemas of its driver: what one version of it takes is taken.
fn configurations(state: &State, schemas: &DriverSchemas, job: &Job) -> DriverVerdict {
    let mut verdict = DriverVerdict { complete: true, ..DriverVerdict::default() };
    for (group, task) in job.task_groups.iter().flat_map(|group| group.tasks.iter().map(move |task| (group, task))) {
        let driver = &task.driver;
        let known = schemas.of(driver);
        let told: BTreeSet<NodeId> = known.iter().flat_map(|schema| schema.versions.keys().copied()).collect();
        let untold = untold(state, driver, &told);
        verdict.complete &= !known.is_empty() && !untold;
        if known.is_empty() {
            // A driver that no node has is told elsewhere.
            if untold {
                verdict.warnings.push(format!(
                    "task {:?}: its configuration was not checked: no node has told the schema of the driver \
                        {driver:?}",
                    &*task.name
                ));
            }
            continue;
        }
        let config = serde_json::Value::Object(task.config.clone());
        let found = check_submission(known.iter().map(|schema| &*schema.checked), &config);
        for finding in found {
            let text = format!("task {:?}: the driver {driver:?} refuses {finding}", &*task.name);
            if untold {
                verdict.warnings.push(format!("{text}; a node that has not told its schema may take it"));
            } else {
                let prefix = format!("Task group {} validation failed", group.name);
                match verdict.errors.0.last_mut() {
                    Some(Problem::In { prefix: last, errors }) if *last == prefix => errors.0.push(Problem::Text(text)),
                    _ => verdict
                        .errors
                        .0
                        .push(Problem::In { prefix, errors: ValidationErrors(vec![Problem::Text(text)]) }),
                }
            }
        }
    }
    verdict
}

impl ServerHandle {
    /// The schemas of the cluster's drivers, as far as nodes have told them.
    #[must_use]
    pub fn driver_schemas(&self) -> Vec<api::shapes::DriverSchemas> {
        let state = self.snapshot();
        let schemas = &self.inner.schemas;
        let of = |driver: String| {
            let known = schemas.of(&driver);
            let told = known.iter().flat_map(|schema| schema.versions.keys().copied()).collect();
            api::shapes::DriverSchemas {
                complete: !untold(&state, &driver, &told),
                schemas: known
                    .iter()
                    .map(|schema| api::shapes::DriverSchema {
                        versions: schema.plugin_versions().iter().map(ToString::to_string).collect(),
                        nodes: schema.versions.len(),
                        schema: (*schema.document).clone(),
                    })
                    .collect(),
                driver,
            }
        };
        schemas.drivers().into_iter().map(of).collect()
    }

    /// Checks the configurations of a job's tasks. Expressions are evaluated, which is bounded work but too much for
    /// a thread that serves others.
    pub(super) async fn check_drivers(&self, job: &Job) -> DriverVerdict {
        let (schemas, state, job) = (self.inner.schemas.clone(), self.snapshot(), job.clone());
        let checked = blocking::spawn(move || configurations(&state, &schemas, &job)).await;
        checked.unwrap_or_else(|error| {
            tracing::error!(%error, "the check of a job's driver configurations broke off; the nodes check them");
            DriverVerdict::default()
        })
    }
}

/// A task whose driver no node has waits until one does, which is seldom what was meant. No refusal: the node may be
/// on its way.
pub(super) fn unknown(state: &State, job: &Job) -> Vec<String> {
    let has = |driver: &str| state.nodes().any(|node| node.drivers.get(driver).is_some_and(|info| info.detected));
    // Mostly one of the first nodes has it, and what all the others have need not be looked at.
    if job.task_groups.iter().flat_map(|group| &group.tasks).all(|task| has(&task.driver)) {
        return Vec::new();
    }
    let known: BTreeSet<&str> = state
        .nodes()
        .flat_map(|node| node.drivers.iter())
        .filter(|(_, driver)| driver.detected)
        .map(|(name, _)| name.as_str())
        .collect();
    warnings(&known, job)
}

fn warnings(known: &BTreeSet<&str>, job: &Job) -> Vec<String> {
    if known.is_empty() {
        return Vec::new();
    }
    let tasks =
        job.task_groups.iter().flat_map(|group| &group.tasks).filter(|task| !known.contains(task.driver.as_str()));
    tasks
        .map(|task| {
            let driver = &task.driver;
            let meant = jobspec::nearest(driver, known.iter().copied())
                .map(|name| format!(" (did you mean {name:?}?)"))
                .unwrap_or_default();
            let have = known.iter().copied().collect::<Vec<_>>().join(", ");
            format!(
                "task {:?}: no node has the driver {driver:?}{meant}; it waits until one has. Nodes have {have}",
                &*task.name
            )
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
            Job { task_groups: vec![TaskGroup { tasks: vec![task], ..TaskGroup::default() }].into(), ..Job::default() }
        };
        let known: BTreeSet<&str> = ["docker", "exec", "raw_exec"].into();
        assert_eq!(
            warnings(&known, &job("raw-exec")),
            ["task \"t\": no node has the driver \"raw-exec\" (did you mean \"raw_exec\"?); it waits until one \
                    has. Nodes have docker, exec, raw_exec"]
        );
        assert_eq!(
            warnings(&known, &job("podman")),
            ["task \"t\": no node has the driver \"podman\"; it waits until one has. Nodes have docker, exec, \
                    raw_exec"]
        );
        assert_eq!(warnings(&known, &job("exec")), Vec::<String>::new());
        assert_eq!(
            warnings(&BTreeSet::new(), &job("raw-exec")),
            Vec::<String>::new(),
            "without nodes nothing is known"
        );
    }
}

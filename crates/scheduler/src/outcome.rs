//! How an allocation of a finite job has ended. Its status does not tell: an allocation that was stopped is `complete`
//! as well.

use std::sync::Arc;

use model::{
    Map,
    alloc::{Allocation, CUT_OFF, ClientStatus, TaskEvent, TaskState},
};
use state::State;

use crate::remote;

/// Whether it has done its work: a drain or a person may have stopped it earlier. For remote tasks their records tell,
/// because a manager that lets go ends nothing.
pub(crate) fn done(state: &State, a: &Allocation) -> bool {
    a.ran_successfully() && remote::has_done_all(state, a) && !killed(a).any(|task| is_local(a, task))
}

fn is_local(a: &Allocation, task: &str) -> bool {
    a.resources.tasks.get(task).is_none_or(|t| !t.remote)
}

fn is_kill(kind: &str) -> bool {
    matches!(kind, "Killing" | "Killed")
}

/// Whether the work of a batch allocation stands: nothing of the same version takes its place.
pub(crate) fn stands(state: &State, a: &Allocation) -> bool {
    if a.server_terminal() || remote::has_remote(a) {
        return done(state, a);
    }
    a.client_status == ClientStatus::Complete && !stopped_by_node(a, &a.task_states)
}

/// Whether its node, cut off for `stop_on_client_after`, has stopped it without an order, as these states of its tasks
/// tell. Such an end is `complete`, and the work is not done.
///
/// Only the node's mark tells. The events alone do not: other ends look the same, and to guess wrong loses work or does
/// it twice. Nodes of an earlier release leave no mark. What they have stopped counts as done, as it did for them.
#[must_use]
pub fn stopped_by_node(a: &Allocation, tasks: &Map<Arc<str>, TaskState>) -> bool {
    // The job may have changed since, and with it the wish to be stopped.
    let Some(group) = a.job.as_ref().and_then(|job| job.group(&a.task_group)) else { return false };
    let main = |name: &str| group.task(name).is_some_and(|t| t.lifecycle.is_none());
    !a.server_terminal()
        && tasks.iter().any(|(name, task)| main(name) && is_local(a, name) && ended_cut_off(&task.events))
}

/// What begins a run, and what ends it or the wait for it.
const TURNS: [&str; 6] = ["Started", "Terminated", "Restarting", "Not Restarting", "Killing", "Killed"];

/// Whether a task, as these events tell, has ended because its node was cut off. After an announced end it may have run
/// on and ended by itself: under another agent, or because its node was heard again.
fn ended_cut_off(events: &[TaskEvent]) -> bool {
    let newest = events.iter().rev().find(|e| TURNS.contains(&e.kind.as_str()));
    newest.is_some_and(|e| is_kill(&e.kind) && e.details.contains_key(CUT_OFF))
}

/// Whether one of its main tasks was killed.
pub(crate) fn was_killed(a: &Allocation) -> bool {
    killed(a).next().is_some()
}

/// Its main tasks that were killed.
fn killed(a: &Allocation) -> impl Iterator<Item = &str> {
    let group = a.job.as_ref().and_then(|job| job.group(&a.task_group));
    let main = move |name: &str| group.and_then(|g| g.task(name)).is_none_or(|t| t.lifecycle.is_none());
    let tasks =
        a.task_states.iter().filter(move |(name, state)| main(name) && state.events.iter().any(|e| is_kill(&e.kind)));
    tasks.map(|(name, _)| &**name)
}

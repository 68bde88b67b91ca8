//! How an allocation of a finite job has ended. Its status does not tell: an allocation that was stopped is `complete`
//! as well.

use model::alloc::Allocation;
use state::State;

use crate::remote;

/// Whether it has done its work: a drain or a person may have stopped it earlier. For remote tasks their records tell,
/// because a manager that lets go ends nothing.
pub(crate) fn done(state: &State, a: &Allocation) -> bool {
    let local = |name: &str| a.resources.tasks.get(name).is_none_or(|t| !t.remote);
    a.ran_successfully() && remote::has_done_all(state, a) && !killed(a).any(local)
}

/// Whether one of its main tasks was killed.
pub(crate) fn was_killed(a: &Allocation) -> bool {
    killed(a).next().is_some()
}

/// Its main tasks that were killed.
fn killed(a: &Allocation) -> impl Iterator<Item = &str> {
    let group = a.job.as_ref().and_then(|job| job.group(&a.task_group));
    let main = move |name: &str| group.and_then(|g| g.task(name)).is_none_or(|t| t.lifecycle.is_none());
    let killed = |kind: &str| matches!(kind, "Killing" | "Killed");
    let tasks =
        a.task_states.iter().filter(move |(name, state)| main(name) && state.events.iter().any(|e| killed(&e.kind)));
    tasks.map(|(name, _)| &**name)
}

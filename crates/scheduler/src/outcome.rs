//! How an allocation of a job that is to end has ended. Its status does not say: what was ended politely is `complete` as well.

use model::alloc::Allocation;
use state::State;

use crate::remote;

/// Has it done its work? A drain or a person may have cut it short. Of remote tasks their records say so: a manager that lets go of one ends nothing.
pub(crate) fn done(state: &State, a: &Allocation) -> bool {
    let local = |name: &str| a.resources.tasks.get(name).is_none_or(|t| !t.remote);
    a.ran_successfully() && remote::has_done_all(state, a) && !killed(a).any(local)
}

/// One of its main tasks was ended instead of ending.
pub(crate) fn was_killed(a: &Allocation) -> bool {
    killed(a).next().is_some()
}

/// Its main tasks that were ended.
fn killed(a: &Allocation) -> impl Iterator<Item = &str> {
    let group = a.job.as_ref().and_then(|job| job.group(&a.task_group));
    let main = move |name: &str| group.and_then(|g| g.task(name)).is_none_or(|t| t.lifecycle.is_none());
    let killed = |kind: &str| matches!(kind, "Killing" | "Killed");
    let tasks = a.task_states.iter().filter(move |(name, state)| main(name) && state.events.iter().any(|e| killed(&e.kind)));
    tasks.map(|(name, _)| &**name)
}

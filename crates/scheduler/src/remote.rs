//! Remote tasks in placement: a live instance's requirements on its next manager, and what the new allocation takes
//! over.

use std::sync::Arc;

use model::{
    Map, Text,
    alloc::Allocation,
    ids::{IncarnationId, SlotKey, SlotParts},
    job::{Job, TaskGroup},
    node::Node,
    remote::{RemoteTask, RemoteVerdict, slot_of},
};
use state::State;

/// Whether any of its tasks is remote.
pub(crate) fn has_remote(a: &Allocation) -> bool {
    a.resources.tasks.values().any(|t| t.remote)
}

/// Whether all its tasks are remote: letting go of it stops nothing.
pub(crate) fn only_remote(a: &Allocation) -> bool {
    !a.resources.tasks.is_empty() && a.resources.tasks.values().all(|t| t.remote)
}

/// Whether its remote tasks have ended well under it. A node's report "dead" may also mean that it has let go of the
/// task.
pub(crate) fn has_done_all(state: &State, a: &Allocation) -> bool {
    a.resources.tasks.iter().filter(|(_, t)| t.remote).all(|(task, _)| match state.remote_task(&slot_of(a, task)) {
        Some(r) => r.alloc_id == a.id && r.verdict == RemoteVerdict::Complete,
        // No instance is known to live. A task that never started has not ended: its node was lost before the create.
        None => a.task_states.get(task).is_some_and(|t| !t.started_at.is_unset()),
    })
}

/// The requirements of one task's instance.
#[derive(Clone, Debug)]
pub(crate) struct Need {
    task: Arc<str>,
    driver: String,
    provider: Text,
    schema: Option<u32>,
}

impl Need {
    /// Whether the node can manage it. The error is the reason.
    pub(crate) fn met_by(&self, node: &Node) -> Result<(), String> {
        let remote = node.drivers.get(&self.driver).filter(|d| d.detected && d.healthy).and_then(|d| d.remote.as_ref());
        let Some(remote) = remote.filter(|r| r.provider == self.provider) else {
            return Err(format!(
                "remote task {:?} runs at provider {:?}, which driver {} does not reach",
                self.task, self.provider, self.driver
            ));
        };
        match self.schema {
            Some(s) if !(remote.handle_schema_min..=remote.handle_schema_max).contains(&s) => Err(format!(
                "remote task {:?} has a handle of schema {s}; driver {} reads {} to {}",
                self.task, self.driver, remote.handle_schema_min, remote.handle_schema_max
            )),
            _ => Ok(()),
        }
    }
}

/// Whether an instance exists or may exist: it decides which nodes can manage it.
fn binding(r: &RemoteTask) -> bool {
    !r.provider.is_empty() && !r.settled() && !r.observed.ended()
}

/// The requirements of the slots of one allocation name, and the incarnations that its allocation takes over.
pub(crate) fn slot(
    state: &State,
    job: &Job,
    group: &TaskGroup,
    index: u32,
    previous: Option<&Allocation>,
) -> (Vec<Need>, Map<Arc<str>, IncarnationId>) {
    let mut needs = Vec::new();
    let mut carried = Map::new();
    for task in &group.tasks {
        let key = SlotKey::from(SlotParts {
            namespace: job.namespace.clone(),
            job_id: job.id.clone(),
            group: group.name.clone(),
            index,
            task: task.name.clone(),
        });
        let record = state.remote_task(&key);
        if let Some(r) = record.filter(|r| binding(r) && r.driver == task.driver) {
            needs.push(Need {
                task: task.name.clone(),
                driver: task.driver.clone(),
                provider: r.provider.clone(),
                schema: r.handle.as_ref().map(|h| h.schema),
            });
        }
        let incarnation = match record {
            Some(r) => Some(r.incarnation).filter(|_| !r.settled()),
            None => previous.and_then(|p| p.remote.get(&task.name)).copied(),
        };
        if let Some(i) = incarnation.filter(|i| !i.is_nil()) {
            carried.insert(task.name.clone(), i);
        }
    }
    (needs, carried)
}

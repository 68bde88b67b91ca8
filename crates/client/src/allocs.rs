//! The loops of this node's allocations, as everybody else on the node sees them.

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError, RwLock},
};

use hooks::present::{End, Present};
use host::{cpuset::Tenant, fingerprint::parse_ranges, owner::Owner};
use model::{AllocId, Namespace, volume::uses};

use crate::alloc::{AllocHandle, AllocView};

/// Loops of this node's allocations, for readers outside the loop.
pub(crate) type Allocs = Arc<RwLock<HashMap<AllocId, AllocHandle>>>;

/// An allocation's loops, cloned out of the lock.
pub(crate) fn handles(allocs: &Allocs) -> Vec<(AllocId, AllocHandle)> {
    let map = allocs.read().unwrap_or_else(PoisonError::into_inner);
    map.iter().map(|(id, h)| (*id, h.clone())).collect()
}

/// Local tasks that are not dead, with the cores that they have or wish for.
pub(crate) fn tenants(allocs: &Allocs) -> Vec<Tenant> {
    let mut all = Vec::new();
    for (alloc, handle) in handles(allocs) {
        let view = handle.view.borrow();
        for (task, holds) in view.claims.iter().filter(|(_, holds)| holds.alive) {
            let cores =
                view.alloc.resources.tasks.get(&**task).map(|t| t.cpu.reserved_cores.clone()).unwrap_or_default();
            let spec = view.job.group(&view.alloc.task_group).and_then(|group| group.task(task));
            let wish =
                spec.and_then(|spec| spec.config.get("cpuset_cpus")?.as_str()).map(parse_ranges).unwrap_or_default();
            all.push(Tenant {
                owner: Owner { alloc, task: task.to_string() },
                cores,
                wish: wish.into_iter().collect(),
                runs: holds.runs.clone(),
            });
        }
    }
    all
}

/// One of them.
pub(crate) fn handle(allocs: &Allocs, id: AllocId) -> Option<AllocHandle> {
    allocs.read().unwrap_or_else(PoisonError::into_inner).get(&id).cloned()
}

/// Loops of this node's allocations, as hooks know them.
pub(crate) struct Here(pub(crate) Allocs);

impl Present for Here {
    fn end_of(&self, alloc: AllocId) -> Option<End> {
        let mut view = handle(&self.0, alloc)?.view;
        let over = view.borrow().over;
        let wait = async move {
            // A loop that has gone has nothing running either.
            let _ = view.wait_for(|view| view.over).await;
        };
        Some(End { over, wait: Box::pin(wait) })
    }

    fn holders(&self, devices: &[(String, String)], other_than: AllocId) -> Vec<(AllocId, End)> {
        self.others(other_than, |view| {
            let of = view.alloc.resources.tasks.values().filter(|t| !t.remote).flat_map(|t| &t.devices);
            of.flat_map(|d| d.device_ids.iter().map(|id| (d.id(), id.clone()))).any(|one| devices.contains(&one))
        })
    }

    fn writers(&self, namespace: &Namespace, volume: &str, other_than: AllocId) -> Vec<(AllocId, End)> {
        self.others(other_than, |view| {
            let alloc = &view.alloc;
            let group = view.job.group(&alloc.task_group).filter(|_| alloc.namespace == *namespace);
            group.and_then(|group| uses(group, alloc.index(), volume)) == Some(true)
        })
    }
}

impl Here {
    /// Other allocations of which that is true and that have not ended.
    fn others(&self, other_than: AllocId, is: impl Fn(&AllocView) -> bool) -> Vec<(AllocId, End)> {
        let others = handles(&self.0).into_iter().filter(|(id, handle)| *id != other_than && is(&handle.view.borrow()));
        others.filter_map(|(id, _)| Some((id, self.end_of(id).filter(|end| !end.over)?))).collect()
    }
}

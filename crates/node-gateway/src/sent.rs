//! What a node has been told of its allocations and remote tasks, and so what is to be said next.
//!
//! A node may have thousands of them and the cluster changes all the time: a session looks at what may have changed
//! and at nothing else. All of a node's is looked at once, when it is told everything.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use api::node_rpc::{Allocs, RemoteOrders, to_json};
use lifecycle::remote::order_for_node;
use model::{AllocId, Allocation, JobKey, NodeId, RemoteOrder, RemoteTask, SlotKey, StoreIndex};
use state::{AppliedSet, Object, State};

/// What of a node may be other than it has been told.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    allocs: BTreeSet<AllocId>,
    slots: BTreeSet<SlotKey>,
}

impl Changes {
    /// These as well.
    pub(crate) fn add(&mut self, more: Self) {
        self.allocs.extend(more.allocs);
        self.slots.extend(more.slots);
    }

    /// Takes at most so many out: slots only when no allocation is left, because an order refers to an allocation
    /// that the node was told of before.
    pub(crate) fn take_piece(&mut self, most: usize) -> Self {
        let allocs: BTreeSet<AllocId> = std::iter::from_fn(|| self.allocs.pop_first()).take(most).collect();
        let room = if self.allocs.is_empty() { most - allocs.len() } else { 0 };
        Self { allocs, slots: std::iter::from_fn(|| self.slots.pop_first()).take(room).collect() }
    }

    /// Nothing may be other.
    pub(crate) fn is_empty(&self) -> bool {
        self.allocs.is_empty() && self.slots.is_empty()
    }
}

/// The nodes that a commit has news for, and about what.
pub(crate) fn concerns(before: &State, applied: &AppliedSet) -> BTreeMap<NodeId, Changes> {
    let mut concerns: BTreeMap<NodeId, Changes> = BTreeMap::new();
    for change in &applied.changes {
        match &change.object {
            // What a node has reported itself is no news to it.
            Object::Alloc(alloc) if change.deleted || alloc.alloc_modify_index == applied.index => {
                concerns.entry(alloc.node_id).or_default().allocs.insert(alloc.id);
            }
            Object::RemoteTask(now) => {
                let before = before.remote_task(&now.slot);
                let managers = [before, Some(now).filter(|_| !change.deleted)];
                for manager in managers.into_iter().flatten().flat_map(|r| [r.manager, r.successor]).flatten() {
                    concerns.entry(manager.node_id).or_default().slots.insert(now.slot.clone());
                }
            }
            _ => {}
        }
    }
    concerns
}

/// What a node has been told.
pub(crate) struct Sent {
    node: NodeId,
    /// The version of each allocation that it has.
    allocs: HashMap<AllocId, StoreIndex>,
    jobs: HashSet<(JobKey, u64, StoreIndex)>,
    /// The record that each of its orders follows from: shared with the servers' state, where an order would be a copy.
    records: HashMap<SlotKey, Arc<RemoteTask>>,
    looks: u64,
}

/// What is to be said; None = nothing.
pub(crate) type News = (Option<Allocs>, Option<RemoteOrders>);

impl Sent {
    /// Nothing has been told.
    pub(crate) fn to(node: NodeId) -> Self {
        Self { node, allocs: HashMap::new(), jobs: HashSet::new(), records: HashMap::new(), looks: 0 }
    }

    /// How many allocations and records were looked at since it was last asked.
    pub(crate) fn take_looks(&mut self) -> u64 {
        std::mem::take(&mut self.looks)
    }

    /// Everything, whatever was said before. `again` names slots that the node reports about: those that are not its
    /// own are released.
    pub(crate) fn all(&mut self, state: &State, again: &BTreeSet<SlotKey>) -> News {
        self.allocs.clear();
        self.jobs.clear();
        let had = std::mem::take(&mut self.records);
        let index = state.latest_index();
        let mut allocs = Allocs { full: true, index, ..Allocs::default() };
        for alloc in state.allocs_by_node(self.node) {
            self.alloc(alloc, &mut allocs);
        }
        let mut orders = RemoteOrders { full: true, index, ..RemoteOrders::default() };
        for record in state.remote_tasks_by_node(self.node) {
            self.looks += 1;
            if let Some(order) = order_for_node(record, self.node) {
                orders.orders_json.push(to_json(&order));
                self.records.insert(order.slot, record.clone());
            }
        }
        let released: BTreeSet<&SlotKey> = had.keys().chain(again).filter(|slot| !self.records.contains_key(*slot)).collect();
        orders.released = released.into_iter().map(ToString::to_string).collect();
        (Some(allocs), Some(orders))
    }

    /// What is new among these. The orders of the slots in `again` are said in any case.
    pub(crate) fn changes(&mut self, state: &State, changes: &Changes, again: &BTreeSet<SlotKey>) -> News {
        let index = state.latest_index();
        let mut allocs = Allocs { index, ..Allocs::default() };
        for id in &changes.allocs {
            match state.alloc(*id).filter(|alloc| alloc.node_id == self.node) {
                Some(alloc) => self.alloc(alloc, &mut allocs),
                None => {
                    self.looks += 1;
                    if self.allocs.remove(id).is_some() {
                        allocs.removed.push(id.to_string());
                    }
                }
            }
        }
        let mut orders = RemoteOrders { index, ..RemoteOrders::default() };
        for slot in changes.slots.union(again) {
            self.looks += 1;
            let again = again.contains(slot);
            let now = state.remote_task(slot).and_then(|record| Some((record, order_for_node(record, self.node)?)));
            match now {
                Some((record, order)) => {
                    if again || self.order(slot).as_ref() != Some(&order) {
                        orders.orders_json.push(to_json(&order));
                    }
                    self.records.insert(order.slot, record.clone());
                }
                // It was told about it, or reports about it, and it is not its own (any more).
                None => {
                    if self.records.remove(slot).is_some() || again {
                        orders.released.push(slot.to_string());
                    }
                }
            }
        }
        let some = !allocs.allocs_json.is_empty() || !allocs.removed.is_empty();
        let ordered = !orders.orders_json.is_empty() || !orders.released.is_empty();
        (some.then_some(allocs), ordered.then_some(orders))
    }

    /// The order of a slot that the node has.
    fn order(&self, slot: &SlotKey) -> Option<RemoteOrder> {
        order_for_node(self.records.get(slot)?, self.node)
    }

    fn alloc(&mut self, alloc: &Arc<Allocation>, message: &mut Allocs) {
        self.looks += 1;
        if self.allocs.insert(alloc.id, alloc.alloc_modify_index) == Some(alloc.alloc_modify_index) {
            return;
        }
        if let Some(job) = &alloc.job
            && self.jobs.insert((job.key(), job.version, job.job_modify_index))
        {
            message.jobs_json.push(to_json(&**job));
        }
        // Why it was placed there is nothing that its node acts upon.
        message.allocs_json.push(to_json(&Allocation { metrics: None, ..(**alloc).clone() }));
        message.job_indexes.push(alloc.job.as_ref().map_or(0, |job| job.job_modify_index));
    }
}

#[cfg(test)]
mod tests;

//! What a node has been told of its allocations and remote tasks, and what follows from that.
//!
//! A node may have thousands of them, and the cluster changes all the time. So a session looks only at possible
//! changes. It looks at all of a node's objects once, for the full set.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use api::node_rpc::{Allocs, HostVolumes, PIECE_BYTES, Pieces, RemoteOrders, to_json};
use lifecycle::remote::order_for_node;
use model::{
    AllocId, Allocation, DynamicVolume, JobKey, Node, NodeId, RemoteOrder, RemoteTask, SlotKey, StoreIndex, VolumeId,
    proof::{self, Digest, MAC_BYTES, Point, Proof, Told},
};
use state::{AppliedSet, Object, State};
use uuid::Uuid;

/// Objects of a node that may differ from what it has been told.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    allocs: BTreeSet<AllocId>,
    slots: BTreeSet<SlotKey>,
    /// Its host volumes may have changed.
    volumes: bool,
}

impl Changes {
    /// Adds more changes.
    pub(crate) fn add(&mut self, more: Self) {
        self.allocs.extend(more.allocs);
        self.slots.extend(more.slots);
        self.volumes |= more.volumes;
    }

    /// Takes out at most `most`. Slots come only when no allocation is left, because an order refers to an allocation
    /// that the node must know.
    pub(crate) fn take_piece(&mut self, most: usize) -> Self {
        let allocs: BTreeSet<AllocId> = std::iter::from_fn(|| self.allocs.pop_first()).take(most).collect();
        let room = if self.allocs.is_empty() { most - allocs.len() } else { 0 };
        let slots = std::iter::from_fn(|| self.slots.pop_first()).take(room).collect();
        Self { allocs, slots, volumes: std::mem::take(&mut self.volumes) }
    }

    /// Whether there are no changes.
    pub(crate) fn is_empty(&self) -> bool {
        self.allocs.is_empty() && self.slots.is_empty() && !self.volumes
    }
}

/// The nodes that a commit concerns, with the possible changes of each.
pub(crate) fn concerns(before: &State, applied: &AppliedSet) -> BTreeMap<NodeId, Changes> {
    let mut concerns: BTreeMap<NodeId, Changes> = BTreeMap::new();
    for change in &applied.changes {
        match &change.object {
            // A node knows its own reports.
            Object::Alloc(alloc) if change.deleted || alloc.alloc_modify_index == applied.index => {
                concerns.entry(alloc.node_id).or_default().allocs.insert(alloc.id);
            }
            Object::Volume(volume) => concerns.entry(volume.node_id).or_default().volumes = true,
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

/// Makes the MAC of a statement under the present root key, which it names; None = there is none.
pub(crate) type Prove<'a> = dyn Fn(&[u8]) -> Option<(Uuid, [u8; MAC_BYTES])> + 'a;

/// Where news come from, and what proves them.
#[derive(Clone, Copy)]
pub(crate) struct Source<'a> {
    pub(crate) state: &'a State,
    pub(crate) prove: &'a Prove<'a>,
}

impl Source<'_> {
    /// That the node was told what the state has since that index.
    fn proof(&self, node: NodeId, index: StoreIndex, statement: impl FnOnce(Told) -> Vec<u8>) -> Option<String> {
        let meta = self.state.cluster();
        let at = Point { generation: meta.generation_of(index), index };
        let (key, mac) = (self.prove)(&statement(Told { cluster: meta.cluster_id, node, at }))?;
        Some(Proof { key, at, mac }.to_string())
    }
}

/// What a node has been told.
pub(crate) struct Sent {
    node: NodeId,
    /// It takes full sets in pieces.
    takes_pieces: bool,
    /// Version of each allocation that it has.
    allocs: HashMap<AllocId, StoreIndex>,
    /// The digest of each job as it was sent.
    jobs: HashMap<(JobKey, u64, StoreIndex), Digest>,
    /// The record behind each of its orders. Shared with the servers' state, where an order would be a copy.
    records: HashMap<SlotKey, Arc<RemoteTask>>,
    /// Revisions of the host volumes that it was told of; None = of none.
    volumes: Option<Vec<(VolumeId, StoreIndex)>>,
    looks: u64,
}

/// The next messages; none = nothing to say.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct News {
    /// First: allocations use them.
    pub(crate) volumes: Option<HostVolumes>,
    pub(crate) allocs: Vec<Allocs>,
    pub(crate) orders: Vec<RemoteOrders>,
}

impl Sent {
    /// A node that has been told nothing.
    pub(crate) fn to(node: NodeId, takes_pieces: bool) -> Self {
        let (allocs, jobs, records) = (HashMap::new(), HashMap::new(), HashMap::new());
        Self { node, takes_pieces, allocs, jobs, records, volumes: None, looks: 0 }
    }

    /// Number of allocations and records looked at since the last call.
    pub(crate) fn take_looks(&mut self) -> u64 {
        std::mem::take(&mut self.looks)
    }

    /// The full set, whatever was sent before. `again` names slots that the node reports about: those of other nodes
    /// are released.
    pub(crate) fn all(&mut self, source: Source<'_>, again: &BTreeSet<SlotKey>) -> News {
        let state = source.state;
        self.allocs.clear();
        self.jobs.clear();
        let had = std::mem::take(&mut self.records);
        let index = state.latest_index();
        let most = if self.takes_pieces { PIECE_BYTES } else { usize::MAX };
        let mut allocs = Pieces::<Allocs>::of(most);
        for alloc in state.allocs_by_node(self.node) {
            self.alloc(source, alloc, &mut allocs);
        }
        let mut orders = Pieces::<RemoteOrders>::of(most);
        for record in state.remote_tasks_by_node(self.node) {
            self.looks += 1;
            if let Some(order) = order_for_node(record, self.node) {
                self.tell_order(source, record, &order, &mut orders);
                self.records.insert(order.slot, record.clone());
            }
        }
        let released: BTreeSet<&SlotKey> =
            had.keys().chain(again).filter(|slot| !self.records.contains_key(*slot)).collect();
        let mark = |more| (true, more, index);
        let allocs = allocs.finish(|piece, more| (piece.full, piece.more, piece.index) = mark(more));
        let mut orders = orders.finish(|piece, more| (piece.full, piece.more, piece.index) = mark(more));
        // The node looks into the last one for them.
        if let Some(last) = orders.last_mut() {
            last.released = released.into_iter().map(ToString::to_string).collect();
        }
        self.volumes = None;
        News { volumes: self.told_volumes(source), allocs, orders }
    }

    /// The news among these changes. Always includes the orders of the slots in `again`.
    pub(crate) fn changes(&mut self, source: Source<'_>, changes: &Changes, again: &BTreeSet<SlotKey>) -> News {
        let state = source.state;
        let index = state.latest_index();
        // Each of these says something for itself, to any node.
        let mut allocs = Pieces::<Allocs>::of(PIECE_BYTES);
        for id in &changes.allocs {
            match state.alloc(*id).filter(|alloc| alloc.node_id == self.node) {
                Some(alloc) => self.alloc(source, alloc, &mut allocs),
                None => {
                    self.looks += 1;
                    if self.allocs.remove(id).is_some() {
                        let id = id.to_string();
                        allocs.with_room(id.len()).removed.push(id);
                    }
                }
            }
        }
        let mut orders = Pieces::<RemoteOrders>::of(PIECE_BYTES);
        for slot in changes.slots.union(again) {
            self.looks += 1;
            let again = again.contains(slot);
            let now = state.remote_task(slot).and_then(|record| Some((record, order_for_node(record, self.node)?)));
            match now {
                Some((record, order)) => {
                    if again || self.order(slot).as_ref() != Some(&order) {
                        self.tell_order(source, record, &order, &mut orders);
                    }
                    self.records.insert(order.slot, record.clone());
                }
                // The node had the order, or reports about the slot, and the slot is not its own (any more).
                None => {
                    if self.records.remove(slot).is_some() || again {
                        let slot = slot.to_string();
                        orders.with_room(slot.len()).released.push(slot);
                    }
                }
            }
        }
        let mut allocs = allocs.finish(|piece, _| piece.index = index);
        allocs.retain(|piece| !piece.allocs_json.is_empty() || !piece.removed.is_empty());
        let mut orders = orders.finish(|piece, _| piece.index = index);
        orders.retain(|piece| !piece.orders_json.is_empty() || !piece.released.is_empty());
        let volumes = if changes.volumes { self.told_volumes(source) } else { None };
        News { volumes, allocs, orders }
    }

    /// The node's host volumes, when it has to act on them: one has another revision than it was told of, or is gone.
    fn told_volumes(&mut self, source: Source<'_>) -> Option<HostVolumes> {
        let state = source.state;
        let revisions: Vec<_> = state.volumes_of(self.node).map(|volume| (volume.id, volume.revision)).collect();
        self.looks += revisions.len() as u64;
        let had = |node: &Arc<Node>| node.host_volumes.values().any(|volume| !volume.id.is_nil());
        let known = self.volumes.replace(revisions);
        let now = self.volumes.as_deref().unwrap_or_default();
        let told = match known {
            Some(known) => known != now,
            None => !now.is_empty() || state.node(self.node).is_some_and(had),
        };
        let proven = |volume: &Arc<DynamicVolume>| {
            let proof = source.proof(self.node, volume.revision, |told| proof::of_volume(told, volume));
            to_json(&DynamicVolume { proof: proof.map(Arc::from), ..DynamicVolume::clone(volume) })
        };
        told.then(|| HostVolumes {
            volumes_json: state.volumes_of(self.node).map(proven).collect(),
            index: state.latest_index(),
        })
    }

    /// The node's order for a slot.
    fn order(&self, slot: &SlotKey) -> Option<RemoteOrder> {
        order_for_node(self.records.get(slot)?, self.node)
    }

    fn tell_order(&self, of: Source<'_>, record: &RemoteTask, order: &RemoteOrder, to: &mut Pieces<RemoteOrders>) {
        let proof = of.proof(self.node, record.modify_index, |told| proof::of_order(told, order));
        let text = to_json(&RemoteOrder { proof: proof.map(Arc::from), ..order.clone() });
        to.with_room(text.len()).orders_json.push(text);
    }

    fn alloc(&mut self, source: Source<'_>, alloc: &Arc<Allocation>, to: &mut Pieces<Allocs>) {
        self.looks += 1;
        if self.allocs.insert(alloc.id, alloc.alloc_modify_index) == Some(alloc.alloc_modify_index) {
            return;
        }
        let mut first = None;
        let job = alloc.job.as_ref().map(|job| {
            *self.jobs.entry((job.key(), job.version, job.job_modify_index)).or_insert_with(|| {
                let text = to_json(&**job);
                let digest = proof::digest(&text);
                first = Some(text);
                digest
            })
        });
        let proof = job.and_then(|job| {
            source.proof(self.node, alloc.alloc_modify_index, |told| proof::of_alloc(told, alloc, &job))
        });
        // A node does not act on the reasons of a placement.
        let text = to_json(&Allocation { metrics: None, ..(**alloc).clone() });
        let message = to.with_room(text.len() + first.as_ref().map_or(0, Vec::len));
        message.jobs_json.extend(first);
        message.proofs.push(proof.unwrap_or_default());
        message.allocs_json.push(text);
        message.job_indexes.push(alloc.job.as_ref().map_or(0, |job| job.job_modify_index));
    }
}

#[cfg(test)]
mod tests;

//! Resources in use on each node, as the plan under way would leave them.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use model::{
    alloc::Allocation,
    ids::{AllocId, Namespace},
    volume::use_of,
};
use state::{Fleet, NodeSlot, NodeUse, PortSet, State};

use crate::{
    cores,
    devices::{self, Taken},
};

/// Resources in use on one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct InUse {
    pub(crate) cpu: i64,
    pub(crate) memory_mb: i64,
    pub(crate) disk_mb: i64,
    /// Number of remote tasks that the node manages.
    pub(crate) sessions: i64,
    pub(crate) allocs: i64,
}

const UNCHANGED: u32 = u32::MAX;

pub(crate) struct Overlay<'a> {
    state: &'a State,
    pub(crate) fleet: &'a Fleet,
    /// By slot: the place in `changed`, [`UNCHANGED`] for the nodes that the plan has not changed.
    places: Vec<u32>,
    changed: Vec<InUse>,
    /// The slots of those, in the same order.
    slots: Vec<NodeSlot>,
    /// Only of nodes that the plan has changed.
    ports: HashMap<NodeSlot, PortSet>,
    none: PortSet,
    /// Allocations that the plan stops, and cores that it grants.
    removed: HashSet<AllocId>,
    given_cores: HashMap<NodeSlot, Vec<u16>>,
    /// And devices.
    given_devices: HashMap<NodeSlot, Taken>,
    /// And allocations with host volumes.
    given_volumes: HashMap<NodeSlot, Vec<Allocation>>,
}

impl<'a> Overlay<'a> {
    pub(crate) fn new(state: &'a State) -> Self {
        let fleet = state.fleet();
        Self {
            state,
            fleet,
            places: vec![UNCHANGED; fleet.len()],
            changed: Vec::new(),
            slots: Vec::new(),
            ports: HashMap::new(),
            none: PortSet::default(),
            removed: HashSet::new(),
            given_cores: HashMap::new(),
            given_devices: HashMap::new(),
            given_volumes: HashMap::new(),
        }
    }

    /// Resources in use on a node. Plans change few nodes: a copy of all would cost more than the plan.
    pub(crate) fn taken(&self, slot: NodeSlot) -> InUse {
        let place = self.places[slot as usize];
        if place != UNCHANGED {
            return self.changed[place as usize];
        }
        let t = self.fleet.taken(slot);
        InUse {
            cpu: t.cpu,
            memory_mb: t.memory_mb,
            disk_mb: t.disk_mb,
            sessions: i64::from(t.sessions),
            allocs: i64::from(t.allocs),
        }
    }

    /// Whether the plan changes what is in use there.
    pub(crate) fn has_changed(&self, slot: NodeSlot) -> bool {
        self.places[slot as usize] != UNCHANGED
    }

    /// The slots where the plan changes what is in use.
    pub(crate) fn changed_slots(&self) -> impl Iterator<Item = NodeSlot> {
        self.slots.iter().copied()
    }

    fn taken_mut(&mut self, slot: NodeSlot) -> &mut InUse {
        if self.places[slot as usize] == UNCHANGED {
            self.changed.push(self.taken(slot));
            self.slots.push(slot);
            self.places[slot as usize] = u32::try_from(self.changed.len() - 1).unwrap_or(UNCHANGED);
        }
        &mut self.changed[self.places[slot as usize] as usize]
    }

    pub(crate) fn ports(&self, slot: NodeSlot) -> &PortSet {
        self.ports.get(&slot).or_else(|| self.fleet.ports(slot).map(|p| &**p)).unwrap_or(&self.none)
    }

    /// Whether the plan has changed the ports of that node.
    pub(crate) fn ports_touched(&self, slot: NodeSlot) -> bool {
        self.ports.contains_key(&slot)
    }

    fn change(&mut self, alloc: &Allocation, add: bool) -> Option<NodeSlot> {
        let slot = self.fleet.slot(alloc.node_id)?;
        let u = alloc.resources.usage();
        let sign = if add { 1 } else { -1 };
        let taken = self.taken_mut(slot);
        taken.cpu += sign * u.cpu;
        taken.memory_mb += sign * u.memory_mb;
        taken.disk_mb += sign * u.disk_mb;
        taken.sessions += sign * i64::from(alloc.resources.sessions());
        taken.allocs += sign;
        let shared = !alloc.resources.shared.ports.is_empty();
        if shared || alloc.resources.tasks.values().any(|t| !t.networks.is_empty()) {
            // NodeUse knows an allocation's ports; its sums do not matter here.
            let ports = self
                .ports
                .remove(&slot)
                .or_else(|| self.fleet.ports(slot).map(|p| PortSet::clone(p)))
                .unwrap_or_default();
            let mut u = NodeUse { ports: Arc::new(ports), ..NodeUse::default() };
            if add {
                u.add(alloc);
            } else {
                u.remove(alloc);
            }
            self.ports.insert(slot, Arc::unwrap_or_clone(u.ports));
        }
        Some(slot)
    }

    pub(crate) fn add(&mut self, alloc: &Allocation) -> Option<NodeSlot> {
        let slot = self.change(alloc, true)?;
        if !self.removed.remove(&alloc.id) {
            let given: Vec<u16> = cores::of(alloc).collect();
            if !given.is_empty() {
                self.given_cores.entry(slot).or_default().extend(given);
            }
            let mut given = devices::of(alloc).peekable();
            if given.peek().is_some() {
                self.given_devices.entry(slot).or_default().extend(given);
            }
        }
        Some(slot)
    }

    /// Removes an allocation that the snapshot counts.
    pub(crate) fn remove(&mut self, alloc: &Allocation) -> Option<NodeSlot> {
        self.removed.insert(alloc.id);
        self.change(alloc, false)
    }

    /// Whether the plan stops or displaces that allocation.
    pub(crate) fn has_removed(&self, id: AllocId) -> bool {
        self.removed.contains(&id)
    }

    /// Cores in use. Computed when a group requests cores, which is rare.
    pub(crate) fn cores(&self, slot: NodeSlot) -> BTreeSet<u16> {
        let Some(node) = self.fleet.node(slot) else { return BTreeSet::new() };
        let live = self.state.allocs_by_node(node.id).filter(|a| a.occupies() && !self.removed.contains(&a.id));
        let mut taken: BTreeSet<u16> = live.flat_map(|a| cores::of(a).collect::<Vec<_>>()).collect();
        taken.extend(self.given_cores.get(&slot).into_iter().flatten());
        taken
    }

    /// A new allocation may use dynamic host volumes.
    pub(crate) fn uses_volumes(&mut self, slot: NodeSlot, alloc: &Allocation) {
        self.given_volumes.entry(slot).or_default().push(alloc.clone());
    }

    /// The allocations that use a host volume of that namespace and name, and whether each writes to it. Computed when
    /// a group requests a dynamic one.
    pub(crate) fn volume_uses<'s>(
        &'s self,
        slot: NodeSlot,
        namespace: &'s Namespace,
        name: &'s str,
    ) -> impl Iterator<Item = (&'s Allocation, bool)> {
        let live = self.fleet.node(slot).into_iter().flat_map(|node| self.state.allocs_by_node(node.id));
        let live = live.filter(|a| a.occupies() && !self.removed.contains(&a.id)).map(|a| &**a);
        let given = self.given_volumes.get(&slot).into_iter().flatten();
        live.chain(given).filter_map(|alloc| Some((alloc, use_of(alloc, namespace, name)?)))
    }

    /// Devices in use. Computed when a group requests devices, which is rare.
    pub(crate) fn devices(&self, slot: NodeSlot) -> Taken {
        let Some(node) = self.fleet.node(slot) else { return Taken::new() };
        let live = self.state.allocs_by_node(node.id).filter(|a| a.occupies() && !self.removed.contains(&a.id));
        let mut taken: Taken = live.flat_map(|a| devices::of(a)).collect();
        taken.extend(self.given_devices.get(&slot).into_iter().flatten().cloned());
        taken
    }
}

#[cfg(test)]
mod tests {
    use model::{
        Map,
        alloc::{ClientStatus, DesiredStatus},
        ids::NodeId,
        node::Node,
        resources::{AllocatedCpu, AllocatedMemory, AllocatedResources, AllocatedShared, AllocatedTask},
    };
    use proptest::prelude::*;
    use state::Change;

    use super::{AllocId, Allocation, Arc, InUse, NodeUse, Overlay, State};

    const NODES: u128 = 4;

    fn node_id(n: u128) -> NodeId {
        NodeId(uuid::Uuid::from_u128(n + 1))
    }

    fn alloc(n: usize, (node, size, remote): (u128, i64, bool)) -> Allocation {
        let task = AllocatedTask {
            cpu: AllocatedCpu { cpu_shares: size, ..AllocatedCpu::default() },
            memory: AllocatedMemory { memory_mb: size * 2, ..AllocatedMemory::default() },
            remote,
            ..AllocatedTask::default()
        };
        let shared = AllocatedShared { disk_mb: size * 3, ..AllocatedShared::default() };
        Allocation {
            id: AllocId(uuid::Uuid::from_u128(n as u128 + 1)),
            node_id: node_id(node),
            desired_status: DesiredStatus::Run,
            client_status: ClientStatus::Running,
            resources: Arc::new(AllocatedResources { tasks: Map::from([(Arc::from("t"), task)]), shared }),
            ..Allocation::default()
        }
    }

    fn counted<'a>(live: impl Iterator<Item = &'a Allocation>) -> InUse {
        let mut all = NodeUse::default();
        live.for_each(|alloc| all.add(alloc));
        let NodeUse { cpu, memory_mb, disk_mb, allocs, sessions, .. } = all;
        InUse { cpu, memory_mb, disk_mb, sessions: i64::from(sessions), allocs: i64::from(allocs) }
    }

    proptest! {
        /// After any changes of a plan, each node has in use what its allocations take together.
        #[test]
        fn what_is_in_use_is_what_the_allocations_take(
            before in prop::collection::vec((0..NODES, 1..100_i64, any::<bool>()), 0..12),
            changes in prop::collection::vec(
                (prop::option::of(any::<prop::sample::Index>()), (0..NODES, 1..100_i64, any::<bool>())), 0..30),
        ) {
            let mut live: Vec<Allocation> = before.into_iter().enumerate().map(|(n, of)| alloc(n, of)).collect();
            let mut made = live.len();
            let node = |n| Change::RegisterNode(Box::new(Node { id: node_id(n), ..Node::default() }));
            let mut all: Vec<Change> = (0..NODES).map(node).collect();
            all.push(Change::UpsertAllocs(live.clone()));
            let mut state = State::new();
            state.apply(2, 0, all.into()).expect("no conditions");
            let mut overlay = Overlay::new(&state);
            for step in [None].into_iter().chain(changes.into_iter().map(Some)) {
                match step {
                    Some((Some(which), _)) if !live.is_empty() => {
                        let gone = live.swap_remove(which.index(live.len()));
                        prop_assert_eq!(overlay.remove(&gone), state.fleet().slot(gone.node_id));
                    }
                    Some((_, of)) => {
                        live.push(alloc(made, of));
                        made += 1;
                        prop_assert!(overlay.add(&live[live.len() - 1]).is_some());
                    }
                    None => {}
                }
                for id in (0..NODES).map(node_id) {
                    let slot = state.fleet().slot(id).expect("registered");
                    let counted = counted(live.iter().filter(|alloc| alloc.node_id == id));
                    prop_assert_eq!(overlay.taken(slot), counted);
                }
            }
        }
    }
}

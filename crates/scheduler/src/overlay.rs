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

pub(crate) struct Overlay<'a> {
    state: &'a State,
    pub(crate) fleet: &'a Fleet,
    pub(crate) cpu: Vec<i64>,
    pub(crate) memory_mb: Vec<i64>,
    pub(crate) disk_mb: Vec<i64>,
    /// Number of remote tasks that each node manages.
    pub(crate) sessions: Vec<i64>,
    pub(crate) allocs: Vec<i64>,
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
            cpu: fleet.all_taken().map(|t| t.cpu).collect(),
            memory_mb: fleet.all_taken().map(|t| t.memory_mb).collect(),
            disk_mb: fleet.all_taken().map(|t| t.disk_mb).collect(),
            sessions: fleet.all_taken().map(|t| i64::from(t.sessions)).collect(),
            allocs: fleet.all_taken().map(|t| i64::from(t.allocs)).collect(),
            ports: HashMap::new(),
            none: PortSet::default(),
            removed: HashSet::new(),
            given_cores: HashMap::new(),
            given_devices: HashMap::new(),
            given_volumes: HashMap::new(),
        }
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
        let i = slot as usize;
        let u = alloc.resources.usage();
        let sign = if add { 1 } else { -1 };
        self.cpu[i] += sign * u.cpu;
        self.memory_mb[i] += sign * u.memory_mb;
        self.disk_mb[i] += sign * u.disk_mb;
        self.sessions[i] += sign * i64::from(alloc.resources.sessions());
        self.allocs[i] += sign;
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

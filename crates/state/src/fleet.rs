//! Nodes as the scheduler reads them: one slot per node, one array per quantity, so that looking at all nodes is a walk over memory.
//!
//! The view belongs to the state and is kept up to date by every applied batch; nothing is rebuilt per evaluation. Static facts and use are
//! separate, since use changes with every plan and facts hardly ever: a plan copies three arrays of numbers at most.

use std::{collections::HashMap, sync::Arc};

use model::{alloc::Allocation, ids::NodeId, node::Node};

use crate::{
    class::computed_class,
    usage::{NodeUse, PortSet},
};

/// Position of a node in the arrays of a [`Fleet`]; stays while the node is registered.
pub type NodeSlot = u32;

/// Ports in ranges, both ends included.
pub type PortRanges = Vec<(u16, u16)>;

/// A network of a node that ports are given on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostNetwork {
    /// Name; `default` unless configured.
    pub alias: Box<str>,
    /// Address.
    pub ip: Box<str>,
    /// Ports never given out there.
    pub reserved_ports: PortRanges,
}

/// What a node can give, worked out once per registration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeCapacity {
    /// MHz without the reserved.
    pub cpu: i64,
    /// MiB without the reserved.
    pub memory_mb: i64,
    /// MiB without the reserved.
    pub disk_mb: i64,
    /// Ports that are never given out, on any address, as inclusive ranges.
    pub reserved_ports: PortRanges,
    /// Host networks.
    pub networks: Vec<HostNetwork>,
    /// Ports given dynamically, inclusive.
    pub dynamic_ports: (u16, u16),
}

/// Reads ranges such as `22,80,8500-8600`; parts that are not ports are passed over.
#[must_use]
pub fn parse_ports(text: &str) -> PortRanges {
    let one = |s: &str| s.trim().parse::<u16>().ok();
    text.split(',')
        .filter_map(|part| match part.split_once('-') {
            Some((a, b)) => one(a).zip(one(b)).filter(|(a, b)| a <= b),
            None => one(part).map(|p| (p, p)),
        })
        .collect()
}

/// The address of a node that names no networks.
fn fallback_address(node: &Node) -> Option<&str> {
    let listed = node.resources.networks.iter().map(|n| n.ip.as_str()).find(|ip| !ip.is_empty());
    listed
        .or_else(|| node.attributes.get("unique.network.ip-address").map(String::as_str))
        .or_else(|| node.http_addr.rsplit_once(':').map(|(host, _)| host.trim_matches(['[', ']'])))
        .filter(|ip| !ip.is_empty())
}

impl Facts {
    fn join_class(&mut self, name: Arc<str>) -> u32 {
        let id = match self.class_ids.get(&name) {
            Some(id) => *id,
            None => {
                let id = self.free_classes.pop().unwrap_or_else(|| {
                    self.class_names.push(name.clone());
                    self.class_nodes.push(0);
                    u32::try_from(self.class_names.len() - 1).unwrap_or(u32::MAX)
                });
                self.class_names[id as usize] = name.clone();
                self.class_ids.insert(name, id);
                id
            }
        };
        self.class_nodes[id as usize] += 1;
        id
    }

    fn leave_class(&mut self, id: u32) {
        let n = &mut self.class_nodes[id as usize];
        *n -= 1;
        if *n == 0 {
            self.class_ids.remove(&self.class_names[id as usize]);
            self.free_classes.push(id);
        }
    }
}

impl NodeCapacity {
    /// Of a node.
    #[must_use]
    pub fn of(node: &Node) -> Self {
        let (r, kept) = (&node.resources, &node.reserved);
        let mut networks: Vec<HostNetwork> = Vec::new();
        for a in r.node_networks.iter().flat_map(|n| &n.addresses) {
            let alias = if a.alias.is_empty() { "default" } else { &a.alias };
            networks.push(HostNetwork {
                alias: alias.into(),
                ip: a.address.as_str().into(),
                reserved_ports: parse_ports(&a.reserved_ports),
            });
        }
        if networks.is_empty()
            && let Some(ip) = fallback_address(node)
        {
            networks.push(HostNetwork { alias: "default".into(), ip: ip.into(), reserved_ports: PortRanges::new() });
        }
        let port = |p: i32, default: u16| u16::try_from(p).ok().filter(|p| *p > 0).unwrap_or(default);
        let low = port(r.min_dynamic_port, 20_000);
        Self {
            cpu: r.cpu.cpu_shares - kept.cpu.cpu_shares,
            memory_mb: r.memory.memory_mb - kept.memory.memory_mb,
            disk_mb: r.disk.disk_mb - kept.disk.disk_mb,
            reserved_ports: parse_ports(&kept.networks.reserved_host_ports),
            networks,
            dynamic_ports: (low, port(r.max_dynamic_port, 32_000).max(low)),
        }
    }
    /// The address of a host network; the empty name is `default`.
    #[must_use]
    pub fn address(&self, network: &str) -> Option<&str> {
        let network = if network.is_empty() { "default" } else { network };
        self.networks.iter().find(|n| *n.alias == *network).map(|n| &*n.ip)
    }
    /// A lower bound of the dynamic ports that can be given at the default address; 0 when there is none.
    fn dynamic_room(&self) -> u32 {
        let Some(ip) = self.address("") else { return 0 };
        let own = self.networks.iter().filter(|n| *n.ip == *ip).flat_map(|n| &n.reserved_ports);
        let reserved: u32 = self.reserved_ports.iter().chain(own).map(|(a, b)| u32::from(b - a) + 1).sum();
        let (low, high) = self.dynamic_ports;
        (u32::from(high - low) + 1).saturating_sub(reserved)
    }
    /// Is the port kept from allocations at the address?
    #[must_use]
    pub fn port_reserved(&self, ip: &str, port: u16) -> bool {
        let within = |ranges: &[(u16, u16)]| ranges.iter().any(|(a, b)| (*a..=*b).contains(&port));
        within(&self.reserved_ports) || self.networks.iter().any(|n| *n.ip == *ip && within(&n.reserved_ports))
    }
}

/// Facts of nodes by slot.
#[derive(Clone, Debug, Default)]
struct Facts {
    free: Vec<NodeSlot>,
    ready: Vec<bool>,
    class: Vec<u32>,
    class_names: Vec<Arc<str>>,
    class_ids: HashMap<Arc<str>, u32>,
    /// Nodes of each class; ids of classes without any are given again.
    class_nodes: Vec<u32>,
    free_classes: Vec<u32>,
    id_bits: Vec<u64>,
    cpu: Vec<i64>,
    memory_mb: Vec<i64>,
    disk_mb: Vec<i64>,
    dynamic_room: Vec<u32>,
}

/// What is taken, by slot.
#[derive(Clone, Debug, Default)]
struct Taken {
    cpu: Vec<i64>,
    memory_mb: Vec<i64>,
    disk_mb: Vec<i64>,
    allocs: Vec<u32>,
    ports: Vec<u32>,
}

/// The view of all nodes; see the module. Slots of forgotten nodes are empty: their node is None and they are never ready.
#[derive(Clone, Debug, Default)]
pub struct Fleet {
    slots: imbl::OrdMap<NodeId, NodeSlot>,
    /// With their capacity. Apart from the other facts: these are looked up one by one, and a registration must not copy them all.
    nodes: imbl::Vector<Option<(Arc<Node>, Arc<NodeCapacity>)>>,
    facts: Arc<Facts>,
    taken: Arc<Taken>,
    ports: imbl::Vector<Arc<PortSet>>,
}

impl Fleet {
    /// Number of slots, empty ones included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }
    /// No slot at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }
    /// The slot of a node.
    #[must_use]
    pub fn slot(&self, node: NodeId) -> Option<NodeSlot> {
        self.slots.get(&node).copied()
    }
    /// The node of a slot.
    #[must_use]
    pub fn node(&self, slot: NodeSlot) -> Option<&Arc<Node>> {
        self.nodes.get(slot as usize)?.as_ref().map(|(n, _)| n)
    }
    /// What the node of a slot can give.
    #[must_use]
    pub fn capacity(&self, slot: NodeSlot) -> Option<&Arc<NodeCapacity>> {
        self.nodes.get(slot as usize)?.as_ref().map(|(_, c)| c)
    }
    /// Bits of the node's id, by slot: to order nodes in a way that does not depend on when they came.
    #[must_use]
    pub fn id_bits(&self) -> &[u64] {
        &self.facts.id_bits
    }
    /// May be placed on, by slot.
    #[must_use]
    pub fn ready(&self) -> &[bool] {
        &self.facts.ready
    }
    /// Class by slot; names in [`Self::class_names`].
    #[must_use]
    pub fn class(&self) -> &[u32] {
        &self.facts.class
    }
    /// Names of classes by id. An id of which no node is left keeps its name until it is given again.
    #[must_use]
    pub fn class_names(&self) -> &[Arc<str>] {
        &self.facts.class_names
    }
    /// MHz that can be given, by slot.
    #[must_use]
    pub fn cpu(&self) -> &[i64] {
        &self.facts.cpu
    }
    /// MiB of memory that can be given, by slot.
    #[must_use]
    pub fn memory_mb(&self) -> &[i64] {
        &self.facts.memory_mb
    }
    /// MiB of disk that can be given, by slot.
    #[must_use]
    pub fn disk_mb(&self) -> &[i64] {
        &self.facts.disk_mb
    }
    /// Dynamic ports that can be given at the default address, by slot; 0 when it has none.
    #[must_use]
    pub fn dynamic_room(&self) -> &[u32] {
        &self.facts.dynamic_room
    }
    /// MHz taken, by slot.
    #[must_use]
    pub fn cpu_taken(&self) -> &[i64] {
        &self.taken.cpu
    }
    /// MiB of memory taken, by slot.
    #[must_use]
    pub fn memory_mb_taken(&self) -> &[i64] {
        &self.taken.memory_mb
    }
    /// MiB of disk taken, by slot.
    #[must_use]
    pub fn disk_mb_taken(&self) -> &[i64] {
        &self.taken.disk_mb
    }
    /// Ports taken of a slot.
    #[must_use]
    pub fn ports(&self, slot: NodeSlot) -> Option<&Arc<PortSet>> {
        self.ports.get(slot as usize)
    }
    /// How many ports are taken, by slot: most nodes have so many left that one need not look at which.
    #[must_use]
    pub fn port_count(&self) -> &[u32] {
        &self.taken.ports
    }
    /// Allocations that take room of a slot.
    #[must_use]
    pub fn usage_allocs(&self, slot: NodeSlot) -> u32 {
        self.taken.allocs.get(slot as usize).copied().unwrap_or(0)
    }
    /// All that is taken of a slot.
    #[must_use]
    pub fn usage(&self, slot: NodeSlot) -> NodeUse {
        let i = slot as usize;
        let t = &self.taken;
        if i >= t.cpu.len() {
            return NodeUse::default();
        }
        NodeUse {
            cpu: t.cpu[i],
            memory_mb: t.memory_mb[i],
            disk_mb: t.disk_mb[i],
            allocs: t.allocs[i],
            ports: self.ports(slot).cloned().unwrap_or_default(),
        }
    }

    /// Adds a node or takes over its changed facts. True when it is new.
    pub(crate) fn put_node(&mut self, node: &Arc<Node>) -> bool {
        let facts = Arc::make_mut(&mut self.facts);
        let class: Arc<str> =
            if node.computed_class.is_empty() { computed_class(node).into() } else { node.computed_class.as_str().into() };
        let capacity = NodeCapacity::of(node);
        let known = self.slots.get(&node.id).copied();
        let slot = known.or_else(|| facts.free.pop());
        let i = if let Some(s) = slot {
            s as usize
        } else {
            let taken = Arc::make_mut(&mut self.taken);
            self.nodes.push_back(None);
            facts.ready.push(false);
            facts.class.push(0);
            facts.id_bits.push(0);
            for v in [&mut facts.cpu, &mut facts.memory_mb, &mut facts.disk_mb, &mut taken.cpu, &mut taken.memory_mb, &mut taken.disk_mb] {
                v.push(0);
            }
            taken.allocs.push(0);
            taken.ports.push(0);
            facts.dynamic_room.push(0);
            self.ports.push_back(Arc::default());
            facts.ready.len() - 1
        };
        facts.ready[i] = node.ready();
        if known.is_some() {
            facts.leave_class(facts.class[i]);
        }
        facts.class[i] = facts.join_class(class);
        let (high, low) = node.id.0.as_u64_pair();
        facts.id_bits[i] = high ^ low;
        facts.cpu[i] = capacity.cpu;
        facts.memory_mb[i] = capacity.memory_mb;
        facts.disk_mb[i] = capacity.disk_mb;
        facts.dynamic_room[i] = capacity.dynamic_room();
        self.nodes.set(i, Some((node.clone(), Arc::new(capacity))));
        #[allow(clippy::cast_possible_truncation, reason = "slots are counted in u32 everywhere")]
        self.slots.insert(node.id, i as NodeSlot);
        known.is_none()
    }

    pub(crate) fn remove_node(&mut self, id: NodeId) {
        let facts = Arc::make_mut(&mut self.facts);
        let Some(slot) = self.slots.remove(&id) else { return };
        let i = slot as usize;
        self.nodes.set(i, None);
        facts.ready[i] = false;
        facts.leave_class(facts.class[i]);
        facts.free.push(slot);
        self.set(slot, NodeUse::default());
    }

    fn set(&mut self, slot: NodeSlot, u: NodeUse) {
        let i = slot as usize;
        let t = Arc::make_mut(&mut self.taken);
        (t.cpu[i], t.memory_mb[i], t.disk_mb[i], t.allocs[i]) = (u.cpu, u.memory_mb, u.disk_mb, u.allocs);
        t.ports[i] = u32::try_from(u.ports.len()).unwrap_or(u32::MAX);
        let same = self.ports.get(i).is_some_and(|p| Arc::ptr_eq(p, &u.ports));
        if !same {
            self.ports.set(i, u.ports);
        }
    }

    /// An allocation starts to take room. Allocations of nodes that are not registered take none until their node comes.
    pub(crate) fn take(&mut self, alloc: &Allocation) {
        let Some(slot) = self.slot(alloc.node_id) else { return };
        let mut u = self.usage(slot);
        u.add(alloc);
        self.set(slot, u);
    }

    /// An allocation takes no room any more.
    pub(crate) fn release(&mut self, alloc: &Allocation) {
        let Some(slot) = self.slot(alloc.node_id) else { return };
        let mut u = self.usage(slot);
        u.remove(alloc);
        self.set(slot, u);
    }
}

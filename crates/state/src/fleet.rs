//! Nodes as the scheduler reads them: one slot per node in arrays of small records, so that an iteration over all nodes
//! reads memory in order.
//!
//! The view belongs to the state, and every applied batch updates it; no evaluation rebuilds it. Snapshots share the
//! arrays in pieces. Many of them are alive while commits wait for the disk, and each must cost only its changes.
//! Static facts and use are separate, because use changes with every plan and facts hardly ever.

use std::sync::Arc;

use model::{alloc::Allocation, ids::NodeId, node::Node};

use crate::{
    class::computed_class,
    column::Column,
    runtimes::{Runtime, Runtimes},
    usage::{NodeUse, PortSet},
};

/// Position of a node in the arrays of a [`Fleet`]; fixed while the node is registered.
pub type NodeSlot = u32;

/// Ports in ranges, both ends included.
pub type PortRanges = Vec<(u16, u16)>;

/// A host network with assignable ports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostNetwork {
    /// Name; `default` unless configured.
    pub alias: Box<str>,
    /// Address.
    pub ip: Box<str>,
    /// Reserved ports, never assigned.
    pub reserved_ports: PortRanges,
}

/// Capacity of a node, computed at its registration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeCapacity {
    /// MHz, without the reserved part.
    pub cpu: i64,
    /// MiB, without the reserved part.
    pub memory_mb: i64,
    /// MiB, without the reserved part.
    pub disk_mb: i64,
    /// Ports reserved on every address, as inclusive ranges.
    pub reserved_ports: PortRanges,
    /// Host networks.
    pub networks: Vec<HostNetwork>,
    /// Range of dynamic ports, inclusive.
    pub dynamic_ports: (u16, u16),
    /// Limit of managed remote tasks; 0 = none.
    pub sessions: u32,
    /// Limit of allocations; 0 = none.
    pub max_allocs: u32,
}

/// Parses ranges such as `22,80,8500-8600`; skips parts that are not ports.
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

/// The address of a node without host networks.
fn fallback_address(node: &Node) -> Option<&str> {
    let listed = node.resources.networks.iter().map(|n| n.ip.as_str()).find(|ip| !ip.is_empty());
    listed
        .or_else(|| node.attributes.get("unique.network.ip-address").map(|ip| &**ip))
        .or_else(|| node.http_addr.rsplit_once(':').map(|(host, _)| host.trim_matches(['[', ']'])))
        .filter(|ip| !ip.is_empty())
}

impl NodeCapacity {
    /// The capacity of a node.
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
            sessions: r.remote_sessions,
            max_allocs: node.max_allocs,
        }
    }
    /// The address of a host network; the empty name is `default`.
    #[must_use]
    pub fn address(&self, network: &str) -> Option<&str> {
        let network = if network.is_empty() { "default" } else { network };
        self.networks.iter().find(|n| *n.alias == *network).map(|n| &*n.ip)
    }
    /// A lower bound of the free dynamic ports at the default address; 0 when there is none.
    fn dynamic_room(&self) -> u32 {
        let Some(ip) = self.address("") else { return 0 };
        let own = self.networks.iter().filter(|n| *n.ip == *ip).flat_map(|n| &n.reserved_ports);
        let reserved: u32 = self.reserved_ports.iter().chain(own).map(|(a, b)| u32::from(b - a) + 1).sum();
        let (low, high) = self.dynamic_ports;
        (u32::from(high - low) + 1).saturating_sub(reserved)
    }
    /// Whether the port is reserved at the address.
    #[must_use]
    pub fn port_reserved(&self, ip: &str, port: u16) -> bool {
        let within = |ranges: &[(u16, u16)]| ranges.iter().any(|(a, b)| (*a..=*b).contains(&port));
        within(&self.reserved_ports) || self.networks.iter().any(|n| *n.ip == *ip && within(&n.reserved_ports))
    }
}

/// Facts of a node for the scheduler, apart from its use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeFacts {
    /// Bits of the node's id: they order nodes independently of their arrival.
    pub id_bits: u64,
    /// Assignable MHz.
    pub cpu: i64,
    /// Assignable MiB of memory.
    pub memory_mb: i64,
    /// Assignable MiB of disk.
    pub disk_mb: i64,
    /// Assignable dynamic ports at the default address; 0 when it has none.
    pub dynamic_room: u32,
    /// Limit of managed remote tasks; 0 = none.
    pub sessions: u32,
    /// Limit of allocations; 0 = none.
    pub max_allocs: u32,
    /// Its class; see [`Fleet::class_name`].
    pub class: u32,
    /// Whether the scheduler may use it.
    pub ready: bool,
}

/// Resources in use on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeTaken {
    /// MHz.
    pub cpu: i64,
    /// MiB of memory.
    pub memory_mb: i64,
    /// MiB of disk.
    pub disk_mb: i64,
    /// Number of allocations with resources.
    pub allocs: u32,
    /// Number of their remote tasks.
    pub sessions: u32,
    /// Number of host ports: most nodes have enough left that the exact ports do not matter.
    pub ports: u32,
}

/// The computed classes of nodes, numbered.
#[derive(Clone, Debug, Default)]
struct Classes {
    ids: imbl::OrdMap<Arc<str>, u32>,
    by_id: Column<NodeClass>,
    free: imbl::Vector<u32>,
}

#[derive(Clone, Debug, Default)]
struct NodeClass {
    /// Kept until the number is reused.
    name: Arc<str>,
    nodes: u32,
    /// The slot that joined last; its node may have left since.
    newest: NodeSlot,
}

impl Classes {
    fn join(&mut self, name: Arc<str>, slot: NodeSlot) -> u32 {
        let id = match self.ids.get(&name) {
            Some(id) => *id,
            None => {
                let id = self
                    .free
                    .pop_back()
                    .unwrap_or_else(|| u32::try_from(self.by_id.push(Default::default())).unwrap_or(u32::MAX));
                if let Some(class) = self.by_id.get_mut(id as usize) {
                    class.name = name.clone();
                }
                self.ids.insert(name, id);
                id
            }
        };
        if let Some(class) = self.by_id.get_mut(id as usize) {
            class.nodes += 1;
            class.newest = slot;
        }
        id
    }

    fn leave(&mut self, id: u32) {
        let Some(class) = self.by_id.get_mut(id as usize) else { return };
        class.nodes -= 1;
        if class.nodes == 0 {
            self.ids.remove(&class.name);
            self.free.push_back(id);
        }
    }
}

/// The view of all nodes. Slots of deleted nodes are empty: their node is `None` and they are never ready.
#[derive(Clone, Debug, Default)]
pub struct Fleet {
    slots: imbl::OrdMap<NodeId, NodeSlot>,
    /// Slots of deleted nodes.
    free: imbl::Vector<NodeSlot>,
    /// Nodes with their capacity. Apart from the facts, because these are read one by one.
    nodes: Column<Option<(Arc<Node>, Arc<NodeCapacity>)>>,
    facts: Column<NodeFacts>,
    taken: Column<NodeTaken>,
    /// `None` for most nodes.
    ports: Column<Option<Arc<PortSet>>>,
    classes: Classes,
    pub(crate) runtimes: Runtimes,
}

impl Fleet {
    /// Number of slots, empty ones included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.facts.len()
    }
    /// Whether there is no slot.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
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
    /// The capacity of a slot's node.
    #[must_use]
    pub fn capacity(&self, slot: NodeSlot) -> Option<&Arc<NodeCapacity>> {
        self.nodes.get(slot as usize)?.as_ref().map(|(_, c)| c)
    }
    /// Facts of every slot, in order.
    pub fn all_facts(&self) -> impl Iterator<Item = &NodeFacts> {
        self.facts.iter()
    }
    /// Facts of a slot.
    ///
    /// # Panics
    /// When there is no such slot.
    #[must_use]
    pub fn facts(&self, slot: NodeSlot) -> &NodeFacts {
        &self.facts[slot as usize]
    }
    /// Number of class numbers, including those without nodes.
    #[must_use]
    pub fn class_count(&self) -> usize {
        self.classes.by_id.len()
    }
    /// The name of a class. A class without nodes keeps its name until its number is reused.
    #[must_use]
    pub fn class_name(&self, class: u32) -> Option<&Arc<str>> {
        self.classes.by_id.get(class as usize).map(|class| &class.name)
    }
    /// A node similar to those of a class: one of them, or else any.
    pub(crate) fn alike(&self, class: &str) -> Option<&Arc<Node>> {
        let of_class = self.classes.ids.get(class).and_then(|id| self.classes.by_id.get(*id as usize));
        of_class.and_then(|class| self.node(class.newest)).or_else(|| self.node(0))
    }
    /// The providers that nodes declare for a driver; none for a driver of local tasks.
    pub fn runtimes<'a>(&'a self, driver: &'a str) -> impl Iterator<Item = Runtime<'a>> {
        self.runtimes.of(driver)
    }
    /// Resources in use of a slot.
    ///
    /// # Panics
    /// When there is no such slot.
    #[must_use]
    pub fn taken(&self, slot: NodeSlot) -> &NodeTaken {
        &self.taken[slot as usize]
    }
    /// Ports in use on a slot.
    #[must_use]
    pub fn ports(&self, slot: NodeSlot) -> Option<&Arc<PortSet>> {
        self.ports.get(slot as usize)?.as_ref()
    }
    /// All resources in use on a slot.
    #[must_use]
    pub fn usage(&self, slot: NodeSlot) -> NodeUse {
        let Some(taken) = self.taken.get(slot as usize) else { return NodeUse::default() };
        let NodeTaken { cpu, memory_mb, disk_mb, allocs, sessions, ports: _ } = *taken;
        NodeUse { cpu, memory_mb, disk_mb, allocs, sessions, ports: self.ports(slot).cloned().unwrap_or_default() }
    }

    /// The slots where other resources are in use than `before`, in order; `None` where a node came, went or changed.
    #[must_use]
    pub fn taken_differently(&self, before: &Self) -> Option<Vec<NodeSlot>> {
        let node = |entry: &Option<(Arc<Node>, Arc<NodeCapacity>)>| entry.as_ref().map(|(node, _)| Arc::as_ptr(node));
        if self.len() != before.len() || self.nodes.differing(&before.nodes, |a, b| node(a) != node(b)).next().is_some()
        {
            return None;
        }
        let ports = |entry: &Option<Arc<PortSet>>| entry.as_ref().map(Arc::as_ptr);
        let mut slots: Vec<usize> = self.taken.differing(&before.taken, |a, b| a != b).collect();
        slots.extend(self.ports.differing(&before.ports, |a, b| ports(a) != ports(b)));
        slots.sort_unstable();
        slots.dedup();
        slots.into_iter().map(|slot| NodeSlot::try_from(slot).ok()).collect()
    }

    /// Adds a node or updates its facts. True when it is new.
    pub(crate) fn put_node(&mut self, node: &Arc<Node>) -> bool {
        let class: Arc<str> = if node.computed_class.is_empty() {
            computed_class(node).into()
        } else {
            node.computed_class.as_str().into()
        };
        let capacity = NodeCapacity::of(node);
        let known = self.slots.get(&node.id).copied();
        let slot = known.or_else(|| self.free.pop_back()).unwrap_or_else(|| {
            self.nodes.push(None);
            self.taken.push(NodeTaken::default());
            self.ports.push(None);
            NodeSlot::try_from(self.facts.push(NodeFacts::default())).unwrap_or(NodeSlot::MAX)
        });
        let i = slot as usize;
        let before = known.and_then(|_| self.facts.get(i)).map(|facts| facts.class);
        let class = match before {
            Some(id) if self.class_name(id) == Some(&class) => id,
            _ => {
                if let Some(id) = before {
                    self.classes.leave(id);
                }
                self.classes.join(class, slot)
            }
        };
        let (high, low) = node.id.0.as_u64_pair();
        let facts = NodeFacts {
            id_bits: high ^ low,
            cpu: capacity.cpu,
            memory_mb: capacity.memory_mb,
            disk_mb: capacity.disk_mb,
            dynamic_room: capacity.dynamic_room(),
            sessions: capacity.sessions,
            max_allocs: capacity.max_allocs,
            class,
            ready: node.ready(),
        };
        write(&mut self.facts, i, facts);
        // A change of a node's status does not change its capacity.
        let capacity = match self.capacity(slot) {
            Some(same) if **same == capacity => same.clone(),
            _ => Arc::new(capacity),
        };
        if let Some(before) = self.node(slot).cloned() {
            self.runtimes.leave(&before);
        }
        self.runtimes.join(node);
        write(&mut self.nodes, i, Some((node.clone(), capacity)));
        if known.is_none() {
            self.slots.insert(node.id, slot);
        }
        known.is_none()
    }

    pub(crate) fn remove_node(&mut self, id: NodeId) {
        let Some(slot) = self.slots.remove(&id) else { return };
        let i = slot as usize;
        if let Some(node) = self.node(slot).cloned() {
            self.runtimes.leave(&node);
        }
        write(&mut self.nodes, i, None);
        let class = self.facts.get_mut(i).map(|facts| {
            facts.ready = false;
            facts.class
        });
        if let Some(class) = class {
            self.classes.leave(class);
        }
        self.free.push_back(slot);
        self.set(slot, NodeUse::default());
    }

    fn set(&mut self, slot: NodeSlot, u: NodeUse) {
        let i = slot as usize;
        let NodeUse { cpu, memory_mb, disk_mb, allocs, sessions, ports } = u;
        let count = u32::try_from(ports.len()).unwrap_or(u32::MAX);
        write(&mut self.taken, i, NodeTaken { cpu, memory_mb, disk_mb, allocs, sessions, ports: count });
        let same = match self.ports(slot) {
            Some(own) => Arc::ptr_eq(own, &ports),
            None => count == 0,
        };
        if !same {
            write(&mut self.ports, i, (count > 0).then_some(ports));
        }
    }

    /// Adds the resources of an allocation. Those of an unregistered node count when it registers.
    pub(crate) fn take(&mut self, alloc: &Allocation) {
        let Some(slot) = self.slot(alloc.node_id) else { return };
        let mut u = self.usage(slot);
        u.add(alloc);
        self.set(slot, u);
    }

    /// Removes the resources of an allocation.
    pub(crate) fn release(&mut self, alloc: &Allocation) {
        let Some(slot) = self.slot(alloc.node_id) else { return };
        let mut u = self.usage(slot);
        u.remove(alloc);
        self.set(slot, u);
    }
}

fn write<T: Clone + Default>(column: &mut Column<T>, at: usize, value: T) {
    if let Some(entry) = column.get_mut(at) {
        *entry = value;
    }
}

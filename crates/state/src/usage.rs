//! Resources of a node in use by allocations: sums, and host ports.

use std::sync::Arc;

use model::alloc::Allocation;

/// Host ports in use, by address. A shareable port counts once for each user.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortSet {
    by_ip: Vec<(Box<str>, Vec<u16>)>,
}

impl PortSet {
    /// Whether the port is in use at the address.
    #[must_use]
    pub fn contains(&self, ip: &str, port: u16) -> bool {
        self.ports(ip).binary_search(&port).is_ok()
    }
    /// The ports in use at an address, ascending.
    #[must_use]
    pub fn ports(&self, ip: &str) -> &[u16] {
        self.by_ip.iter().find(|(i, _)| **i == *ip).map_or(&[], |(_, p)| p)
    }
    /// Number of ports in use, over all addresses.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_ip.iter().map(|(_, p)| p.len()).sum()
    }
    /// Whether no port is in use.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_ip.is_empty()
    }
    /// Takes a port; false when it was in use already (it is then counted once more).
    pub fn insert(&mut self, ip: &str, port: u16) -> bool {
        let at = match self.by_ip.iter().position(|(i, _)| **i == *ip) {
            Some(at) => at,
            None => {
                // Kept in order, so that equal contents are equal values.
                let at = self.by_ip.partition_point(|(i, _)| **i < *ip);
                self.by_ip.insert(at, (Box::from(ip), Vec::new()));
                at
            }
        };
        let ports = &mut self.by_ip[at].1;
        let found = ports.binary_search(&port);
        let (Ok(i) | Err(i)) = found;
        ports.insert(i, port);
        found.is_err()
    }
    /// Gives a port back.
    pub fn remove(&mut self, ip: &str, port: u16) {
        let Some(at) = self.by_ip.iter().position(|(i, _)| **i == *ip) else { return };
        if let Ok(i) = self.by_ip[at].1.binary_search(&port) {
            self.by_ip[at].1.remove(i);
        }
        if self.by_ip[at].1.is_empty() {
            self.by_ip.remove(at);
        }
    }
}

/// What is taken of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeUse {
    /// MHz.
    pub cpu: i64,
    /// MiB of memory.
    pub memory_mb: i64,
    /// MiB of disk.
    pub disk_mb: i64,
    /// Allocations that take room.
    pub allocs: u32,
    /// Remote tasks of theirs: each is a session.
    pub sessions: u32,
    /// Host ports.
    pub ports: Arc<PortSet>,
}

impl NodeUse {
    /// Adds what an allocation takes.
    pub fn add(&mut self, alloc: &Allocation) {
        self.change(alloc, 1);
        if host_ports(alloc).next().is_some() {
            let ports = Arc::make_mut(&mut self.ports);
            for (ip, port) in host_ports(alloc) {
                ports.insert(ip, port);
            }
        }
    }
    /// Takes it away again.
    pub fn remove(&mut self, alloc: &Allocation) {
        self.change(alloc, -1);
        if host_ports(alloc).next().is_some() {
            let ports = Arc::make_mut(&mut self.ports);
            for (ip, port) in host_ports(alloc) {
                ports.remove(ip, port);
            }
        }
    }
    fn change(&mut self, alloc: &Allocation, sign: i64) {
        let u = alloc.resources.usage();
        let sessions = alloc.resources.sessions();
        self.sessions =
            if sign > 0 { self.sessions.saturating_add(sessions) } else { self.sessions.saturating_sub(sessions) };
        self.cpu += sign * u.cpu;
        self.memory_mb += sign * u.memory_mb;
        self.disk_mb += sign * u.disk_mb;
        self.allocs = self.allocs.saturating_add_signed(if sign > 0 { 1 } else { -1 });
    }
}

/// The host ports of an allocation with their addresses. Ports of remote tasks are ports of another machine, but a
/// group's network is the node's.
pub(crate) fn host_ports(alloc: &Allocation) -> impl Iterator<Item = (&str, u16)> {
    let shared = alloc.resources.shared.ports.iter().map(|p| (p.host_ip.as_str(), p.value));
    let tasks = alloc.resources.tasks.values().filter(|t| !t.remote).flat_map(|t| &t.networks);
    let tasks = tasks.flat_map(|n| n.reserved_ports.iter().chain(&n.dynamic_ports).map(|p| (n.ip.as_str(), p.value)));
    shared.chain(tasks).filter_map(|(ip, p)| u16::try_from(p).ok().filter(|p| *p > 0).map(|p| (ip, p)))
}

//! Ports: which nodes can offer the ports that a group requests, and which numbers it gets.

use model::{
    job::TaskGroup,
    network::{AllocatedPort, Network, Port},
};
use state::{NodeCapacity, PortSet};

use crate::ids::Ids;

/// Random draws before a walk over the range: nearly always enough while less than nine tenths are taken.
const DRAWS: u32 = 32;

/// The networks with ports of a group and its tasks.
#[derive(Clone, Debug, Default)]
pub(crate) struct NetworkAsk {
    group: Vec<Network>,
    tasks: Vec<(std::sync::Arc<str>, Vec<Network>)>,
    fixed: Vec<Port>,
    dynamic: usize,
}

/// The granted networks.
#[derive(Clone, Debug, Default)]
pub(crate) struct NetworkGrant {
    pub(crate) networks: Vec<Network>,
    pub(crate) ports: Vec<AllocatedPort>,
    pub(crate) tasks: Vec<(std::sync::Arc<str>, Vec<Network>)>,
}

impl NetworkAsk {
    pub(crate) fn new(group: &TaskGroup) -> Self {
        let tasks: Vec<_> = group
            .tasks
            .iter()
            .filter(|t| !t.resources.networks.is_empty())
            .map(|t| (t.name.clone(), t.resources.networks.clone()))
            .collect();
        let mut ask = Self { group: group.networks.clone(), tasks, ..Self::default() };
        for n in ask.group.iter().chain(ask.tasks.iter().flat_map(|(_, n)| n)) {
            ask.fixed.extend(n.reserved_ports.iter().cloned());
            ask.dynamic += n.dynamic_ports.len();
        }
        ask
    }

    /// Whether the group requests no ports.
    pub(crate) fn is_empty(&self) -> bool {
        self.group.is_empty() && self.tasks.is_empty()
    }

    pub(crate) fn has_ports(&self) -> bool {
        !self.fixed.is_empty() || self.dynamic > 0
    }

    /// Number of dynamic ports if they are the only request: on the default network, none fixed.
    pub(crate) fn only_dynamic(&self) -> Option<u32> {
        let mut all = self.group.iter().chain(self.tasks.iter().flat_map(|(_, n)| n)).flat_map(|n| &n.dynamic_ports);
        let plain = self.fixed.is_empty() && all.all(|p| p.host_network.is_empty() || p.host_network == "default");
        plain.then(|| u32::try_from(self.dynamic).unwrap_or(u32::MAX))
    }

    /// The fixed ports that are asked for, with the node's addresses; None = the node itself has reserved one of them,
    /// or has no such address.
    pub(crate) fn fixed_at<'n>(&self, node: &'n NodeCapacity) -> Option<Vec<(&'n str, u16)>> {
        let wanted = self.fixed.iter().filter(|p| !p.ignore_collision);
        wanted
            .map(|p| {
                let (ip, port) = (node.address(&p.host_network)?, u16::try_from(p.value).ok()?);
                (!node.port_reserved(ip, port)).then_some((ip, port))
            })
            .collect()
    }

    /// Whether the node can grant everything. The error is the exhausted dimension.
    pub(crate) fn fits(&self, node: &NodeCapacity, taken: &PortSet) -> Result<(), String> {
        for p in &self.fixed {
            let Some(ip) = node.address(&p.host_network) else { return Err(no_address(&p.host_network)) };
            let value = u16::try_from(p.value).unwrap_or(0);
            if !p.ignore_collision && (taken.contains(ip, value) || node.port_reserved(ip, value)) {
                return Err(format!("network: reserved port collision {}={}", p.label, p.value));
            }
        }
        if self.dynamic > 0 {
            let Some(ip) = node.address("").or_else(|| node.networks.first().map(|n| &*n.ip)) else {
                return Err(no_address(""));
            };
            let (low, high) = node.dynamic_ports;
            let ports = taken.ports(ip);
            let used = ports.partition_point(|p| *p <= high) - ports.partition_point(|p| *p < low);
            if usize::from(high - low) + 1 < used + self.dynamic {
                return Err("network: dynamic port selection failed".to_owned());
            }
        }
        Ok(())
    }

    /// Grants the ports. The error is the exhausted dimension.
    pub(crate) fn grant(&self, node: &NodeCapacity, taken: &PortSet, ids: &mut Ids) -> Result<NetworkGrant, String> {
        let mut own = PortSet::default();
        let mut grant =
            NetworkGrant { networks: self.group.clone(), tasks: self.tasks.clone(), ..NetworkGrant::default() };
        for p in &self.fixed {
            if let (Some(ip), Ok(v)) = (node.address(&p.host_network), u16::try_from(p.value)) {
                own.insert(ip, v);
            }
        }
        for n in &mut grant.networks {
            fill(n, node, taken, &mut own, ids)?;
            for p in n.reserved_ports.iter().chain(&n.dynamic_ports) {
                let host_ip = node.address(&p.host_network).ok_or_else(|| no_address(&p.host_network))?.to_owned();
                grant.ports.push(AllocatedPort {
                    label: p.label.clone(),
                    value: p.value,
                    to: p.to,
                    host_ip,
                    ignore_collision: p.ignore_collision,
                });
            }
        }
        for n in grant.tasks.iter_mut().flat_map(|(_, n)| n) {
            fill(n, node, taken, &mut own, ids)?;
        }
        Ok(grant)
    }
}

fn no_address(network: &str) -> String {
    format!("network: no addresses available for {:?} network", if network.is_empty() { "default" } else { network })
}

/// Chooses the dynamic ports of one network.
fn fill(n: &mut Network, node: &NodeCapacity, taken: &PortSet, own: &mut PortSet, ids: &mut Ids) -> Result<(), String> {
    if let Some(ip) = node.address("").or_else(|| node.networks.first().map(|n| &*n.ip)) {
        ip.clone_into(&mut n.ip);
    }
    if n.mode.is_empty() {
        "host".clone_into(&mut n.mode);
    }
    for p in &mut n.dynamic_ports {
        let ip = node.address(&p.host_network).ok_or_else(|| no_address(&p.host_network))?;
        let port = choose(ip, node, taken, own, ids).ok_or("network: dynamic port selection failed")?;
        own.insert(ip, port);
        p.value = i32::from(port);
    }
    for p in n.reserved_ports.iter_mut().chain(&mut n.dynamic_ports) {
        // -1 requests the same number inside the namespace as outside.
        if p.to == -1 {
            p.to = p.value;
        }
    }
    Ok(())
}

fn choose(ip: &str, node: &NodeCapacity, taken: &PortSet, own: &PortSet, ids: &mut Ids) -> Option<u16> {
    let (low, high) = node.dynamic_ports;
    let span = u64::from(high - low) + 1;
    let free = |p: u16| !taken.contains(ip, p) && !own.contains(ip, p) && !node.port_reserved(ip, p);
    let mut start = 0;
    for _ in 0..DRAWS {
        start = ids.next() % span;
        #[allow(clippy::cast_possible_truncation, reason = "less than the span of the range, which is of u16")]
        let p = low + start as u16;
        if free(p) {
            return Some(p);
        }
    }
    #[allow(clippy::cast_possible_truncation, reason = "less than the span of the range, which is of u16")]
    (1..span).map(|i| low + ((start + i) % span) as u16).find(|p| free(*p))
}

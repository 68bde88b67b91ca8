//! Which nodes a group may run on, regardless of their load: datacenter, pool, drivers, volumes, networks, constraints.
//!
//! Computed once per computed class; only rules about unique attributes need each node.

use model::{
    Constraint,
    job::{Job, TaskGroup},
    node::Node,
};
use state::{ALL_NODE_POOL, State};

use crate::{
    devices::{DeviceAsks, Taken},
    rules::{Distinct, Rule, split},
    volumes::VolumeAsks,
};

/// A glob for names of datacenters; nearly always `*` or plain text.
enum Glob {
    Any,
    Name(String),
    Pattern(globset::GlobMatcher),
}

impl Glob {
    fn new(text: &str) -> Self {
        if text == "*" {
            return Self::Any;
        }
        if !text.contains(['*', '?', '[', '{', '\\']) {
            return Self::Name(text.to_owned());
        }
        // An invalid glob can still be a name.
        globset::Glob::new(text).map_or_else(|_| Self::Name(text.to_owned()), |g| Self::Pattern(g.compile_matcher()))
    }
    fn matches(&self, name: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Name(n) => n == name,
            Self::Pattern(p) => p.is_match(name),
        }
    }
}

/// Whether a node is in the scope of a job: in its pool and datacenter.
#[must_use]
pub fn in_scope(job: &Job, node: &Node) -> bool {
    let pool = job.node_pool.is_empty() || job.node_pool == ALL_NODE_POOL || job.node_pool == node.pool;
    pool && (job.datacenters.is_empty() || job.datacenters.iter().any(|d| Glob::new(d).matches(&node.datacenter)))
}

/// Whether a node meets constraints that are no part of a job. `distinct_hosts` and `distinct_property` do not count.
#[must_use]
pub fn meets(constraints: &[Constraint], node: &Node, region: &str) -> bool {
    let (rules, _) = split(constraints.iter().map(|constraint| (constraint, false)));
    rules.iter().all(|rule| rule.holds(node, region))
}

/// A group's requirements on a node, apart from resources.
pub(crate) struct GroupRules {
    region: String,
    pool: String,
    datacenters: Vec<Glob>,
    drivers: Vec<String>,
    pub(crate) volumes: VolumeAsks,
    csi: bool,
    modes: Vec<String>,
    host_networks: Vec<String>,
    /// Of each task that asks for some.
    pub(crate) devices: DeviceAsks,
    /// Rules with one answer per class, and other rules.
    rules: Vec<Rule>,
    unique: Vec<Rule>,
    pub(crate) distinct: Vec<Distinct>,
    affinities: Vec<(Rule, f64)>,
    affinity_total: f64,
    affinity_unique: bool,
    /// Fill nodes up (`binpack`) rather than balance them.
    pub(crate) binpack: bool,
    /// `memory_max` has an effect.
    pub(crate) oversubscribed: bool,
}

impl GroupRules {
    pub(crate) fn new(state: &State, job: &Job, group: &TaskGroup) -> Self {
        let tasks = || group.tasks.iter();
        let own = group.constraints.iter().chain(tasks().flat_map(|t| &t.constraints)).map(|c| (c, false));
        let (rules, distinct) = split(job.constraints.iter().map(|c| (c, true)).chain(own));
        let (unique, rules) = rules.into_iter().partition(Rule::unique);
        let affinities: Vec<_> = job
            .affinities
            .iter()
            .chain(&group.affinities)
            .chain(tasks().flat_map(|t| &t.affinities))
            .map(|a| (Rule::new(&a.left, &a.operator, &a.right), f64::from(a.weight)))
            .collect();
        let networks = || group.networks.iter().chain(tasks().flat_map(|t| &t.resources.networks));
        let mut host_networks: Vec<_> = networks()
            .flat_map(|n| n.reserved_ports.iter().chain(&n.dynamic_ports))
            .map(|p| p.host_network.clone())
            .filter(|h| !h.is_empty() && h != "default")
            .collect();
        host_networks.sort();
        host_networks.dedup();
        let mut drivers: Vec<_> = tasks().map(|t| t.driver.clone()).collect();
        drivers.sort();
        drivers.dedup();
        let pool_config = state.node_pool(&job.node_pool).and_then(|p| p.scheduler_configuration.as_ref());
        let algorithm = pool_config.map(|c| c.scheduler_algorithm.as_str()).filter(|a| !a.is_empty());
        Self {
            region: job.region.clone(),
            pool: job.node_pool.clone(),
            datacenters: job.datacenters.iter().map(|d| Glob::new(d)).collect(),
            drivers,
            volumes: VolumeAsks::new(state, job, group),
            csi: group.volumes.values().any(|v| v.kind == "csi"),
            modes: networks().map(|n| n.mode.clone()).filter(|m| !matches!(m.as_str(), "" | "host")).collect(),
            host_networks,
            devices: DeviceAsks::new(group),
            affinity_total: affinities.iter().map(|(_, w)| w.abs()).sum(),
            affinity_unique: affinities.iter().any(|(r, _)| r.unique()),
            affinities,
            rules,
            unique,
            distinct,
            oversubscribed: state.memory_oversubscribed(&job.node_pool),
            binpack: algorithm.unwrap_or(&state.scheduler_config().scheduler_algorithm) != "spread",
        }
    }

    /// Nodes outside the job's scope are not even counted.
    pub(crate) fn in_scope(&self, node: &Node) -> bool {
        let pool = self.pool.is_empty() || self.pool == ALL_NODE_POOL || self.pool == node.pool;
        pool && (self.datacenters.is_empty() || self.datacenters.iter().any(|d| d.matches(&node.datacenter)))
    }

    pub(crate) fn in_pool(&self, node: &Node) -> bool {
        self.pool.is_empty() || self.pool == ALL_NODE_POOL || self.pool == node.pool
    }

    /// Whether some rules need the node itself, not only its class.
    pub(crate) fn escaped(&self) -> bool {
        !self.unique.is_empty() || !self.devices.is_empty() || self.volumes.dynamic()
    }

    pub(crate) fn region(&self) -> &str {
        &self.region
    }

    /// Checks the rules that a class answers.
    pub(crate) fn class_meets(&self, node: &Node) -> Result<(), String> {
        for d in &self.drivers {
            if !node.drivers.get(d).is_some_and(|i| i.detected && i.healthy) {
                return Err(format!("missing drivers: {d}"));
            }
        }
        if self.csi {
            return Err("CSI volumes are not supported".to_owned());
        }
        self.volumes.class_meets(node)?;
        for mode in &self.modes {
            let offered = node.resources.networks.iter().any(|n| n.mode == *mode)
                || node.resources.node_networks.iter().any(|n| n.mode == *mode);
            if !offered {
                return Err(format!("missing network: mode {mode}"));
            }
        }
        for name in &self.host_networks {
            let addresses = || node.resources.node_networks.iter().flat_map(|n| &n.addresses);
            if !addresses().any(|a| a.alias == *name) {
                return Err(format!("missing host network {name:?}"));
            }
        }
        self.broken(&self.rules, node)
    }

    /// Checks the rules that need the node itself.
    pub(crate) fn unique_meets(&self, node: &Node) -> Result<(), String> {
        self.broken(&self.unique, node)?;
        self.volumes.node_meets(node)?;
        if self.devices.assign(node, &Taken::new()).is_none() {
            return Err("missing devices".to_owned());
        }
        Ok(())
    }

    /// Whether an allocation of the group may stay on that node: it has its devices, healthy or not.
    pub(crate) fn still_meets(&self, node: &Node) -> bool {
        self.in_scope(node) && self.class_meets(node).is_ok() && self.broken(&self.unique, node).is_ok()
    }

    fn broken(&self, rules: &[Rule], node: &Node) -> Result<(), String> {
        rules.iter().find(|r| !r.holds(node, &self.region)).map_or(Ok(()), |r| Err(r.text().to_owned()))
    }

    /// Checks all rules on one node.
    pub(crate) fn node_meets(&self, node: &Node) -> Result<(), String> {
        if !self.in_scope(node) {
            return Err("the node is not in the job's datacenters or node pool".to_owned());
        }
        self.class_meets(node)?;
        self.unique_meets(node)
    }

    /// Weight of the job's affinities to the node, -1..=1.
    pub(crate) fn affinity(&self, node: &Node) -> f64 {
        if self.affinity_total == 0.0 {
            return 0.0;
        }
        let met: f64 = self.affinities.iter().filter(|(r, _)| r.holds(node, &self.region)).map(|(_, w)| w).sum();
        met / self.affinity_total
    }

    pub(crate) fn has_affinities(&self) -> bool {
        !self.affinities.is_empty()
    }

    pub(crate) fn affinity_unique(&self) -> bool {
        self.affinity_unique
    }
}

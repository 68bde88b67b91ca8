//! Capacity of remote providers, shared by all nodes that reach them.

use std::collections::{HashMap, HashSet};

use model::{
    alloc::Allocation,
    ids::SlotKey,
    node::{Node, RemoteProvider},
    remote::slot_of,
};
use state::State;

/// MHz and MiB in use at each provider with a declared capacity.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pools {
    taken: HashMap<String, (i64, i64)>,
}

/// The need of one allocation at the providers that a node reaches.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct PoolAsk(Vec<(RemoteProvider, i64, i64)>);

impl PoolAsk {
    pub(crate) fn add(&mut self, provider: &RemoteProvider, cpu: i64, memory_mb: i64) {
        if provider.pool_cpu == 0 && provider.pool_memory_mb == 0 {
            return;
        }
        match self.0.iter_mut().find(|(p, ..)| p.provider == provider.provider) {
            Some((_, c, m)) => {
                *c += cpu;
                *m += memory_mb;
            }
            None => self.0.push((provider.clone(), cpu, memory_mb)),
        }
    }
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
    /// The need of an allocation on a node.
    pub(crate) fn of(alloc: &Allocation, node: &Node) -> Self {
        let mut ask = Self::default();
        for (name, t) in alloc.resources.tasks.iter().filter(|(_, t)| t.remote) {
            if let Some(p) = provider_of(alloc, node, name) {
                ask.add(p, t.cpu.cpu_shares, t.memory.memory_mb);
            }
        }
        ask
    }
}

fn provider_of<'a>(alloc: &Allocation, node: &'a Node, task: &str) -> Option<&'a RemoteProvider> {
    let driver = &alloc.job.as_ref()?.group(&alloc.task_group)?.task(task)?.driver;
    node.drivers.get(driver)?.remote.as_ref()
}

impl Pools {
    /// Present use: live allocations, and instances that have none at the moment.
    pub(crate) fn of(state: &State) -> Self {
        let mut pools = Self::default();
        let mut managed: HashSet<SlotKey> = HashSet::new();
        for a in state.allocs().filter(|a| !a.terminal()) {
            for (name, t) in a.resources.tasks.iter().filter(|(_, t)| t.remote) {
                let slot = slot_of(a, name);
                let known = state.node(a.node_id).and_then(|n| provider_of(a, n, name)).map(|p| p.provider.clone());
                let provider = known.or_else(|| state.remote_task(&slot).map(|r| r.provider.to_string()));
                if let Some(p) = provider {
                    pools.take(&p, t.cpu.cpu_shares, t.memory.memory_mb);
                }
                managed.insert(slot);
            }
        }
        for r in state.remote_tasks().filter(|r| !r.observed.ended() && !managed.contains(&r.slot)) {
            let job = state.job_version(&r.slot.job(), r.job_version);
            let task = job.and_then(|j| j.group(&r.slot.group)).and_then(|g| g.task(&r.slot.task));
            if let Some(t) = task {
                pools.take(&r.provider, t.resources.cpu.unwrap_or(0), t.resources.memory_mb.unwrap_or(0));
            }
        }
        pools
    }

    fn take(&mut self, provider: &str, cpu: i64, memory_mb: i64) {
        let t = self.taken.entry(provider.to_owned()).or_default();
        t.0 += cpu;
        t.1 += memory_mb;
    }

    /// Whether there is room. The error names the exhausted provider.
    pub(crate) fn fits(&self, ask: &PoolAsk) -> Result<(), String> {
        for (p, cpu, memory) in &ask.0 {
            let (c, m) = self.taken.get(&p.provider).copied().unwrap_or_default();
            let over = |taken: i64, ask: i64, capacity: u64| {
                capacity > 0 && taken + ask > i64::try_from(capacity).unwrap_or(i64::MAX)
            };
            if over(c, *cpu, p.pool_cpu) {
                return Err(format!("cpu of provider {}", p.provider));
            }
            if over(m, *memory, p.pool_memory_mb) {
                return Err(format!("memory of provider {}", p.provider));
            }
        }
        Ok(())
    }

    pub(crate) fn add(&mut self, ask: &PoolAsk) {
        for (p, c, m) in &ask.0 {
            self.take(&p.provider, *c, *m);
        }
    }

    pub(crate) fn remove(&mut self, ask: &PoolAsk) {
        for (p, c, m) in &ask.0 {
            self.take(&p.provider, -c, -m);
        }
    }
}

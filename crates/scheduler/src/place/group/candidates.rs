//! The nodes that could take a group: all of them are looked at, unless an earlier evaluation asked for the same.

use std::sync::Arc;

use model::{
    Map,
    metrics::AllocMetric,
    node::Node,
    resources::{AllocatedCpu, AllocatedMemory, AllocatedResources, AllocatedShared, AllocatedTask},
};

use super::{GroupPlacer, filtered};
use crate::{
    place::{
        class::{Ask, Class},
        context::Own,
        memory::{Remembered, Shape},
    },
    pools::{PoolAsk, Pools},
    rank::{Powers, Ranking},
};

impl GroupPlacer<'_, '_> {
    fn class_of(&self, node: &Node) -> Class {
        if !self.rules.in_scope(node) {
            return Class::OutOfScope;
        }
        if let Err(why) = self.rules.class_meets(node) {
            return Class::Filtered(why);
        }
        Class::Feasible { ask: self.ask(node), affinity: self.rules.affinity(node) }
    }

    fn ask(&self, node: &Node) -> Ask {
        let mut ask = Ask {
            cpu: 0,
            cores: 0,
            memory_mb: 0,
            disk_mb: 0,
            sessions: 0,
            remote: Vec::new(),
            pool: PoolAsk::default(),
            given: Arc::default(),
        };
        let mut tasks = Map::new();
        let oversubscribed = self.rules.oversubscribed;
        for t in &self.group.tasks {
            let r = &t.resources;
            let cores = r.cores.unwrap_or(0);
            let cpu = if cores > 0 { 0 } else { r.cpu.unwrap_or(0) };
            let memory = r.memory_mb.unwrap_or(0);
            let provider = node.drivers.get(&t.driver).and_then(|d| d.remote.as_ref());
            if let Some(p) = provider {
                ask.pool.add(p, cpu, memory);
                ask.sessions += 1;
            } else {
                ask.cpu += cpu;
                ask.cores += cores;
                ask.memory_mb += memory;
            }
            ask.remote.push(provider.is_some());
            let memory_max_mb = if oversubscribed { r.memory_max_mb.unwrap_or(0) } else { 0 };
            tasks.insert(
                t.name.clone(),
                AllocatedTask {
                    cpu: AllocatedCpu { cpu_shares: cpu, reserved_cores: Vec::new() },
                    memory: AllocatedMemory { memory_mb: memory, memory_max_mb },
                    networks: Vec::new(),
                    devices: Vec::new(),
                    remote: provider.is_some(),
                },
            );
        }
        if !ask.only_remote() {
            ask.disk_mb = self.group.ephemeral_disk.as_ref().and_then(|d| d.size_mb).unwrap_or(300);
        }
        ask.given = Arc::new(AllocatedResources {
            tasks,
            shared: AllocatedShared { disk_mb: ask.disk_mb, ..AllocatedShared::default() },
        });
        ask
    }

    /// Finds the candidates and their scores.
    pub(in crate::place) fn find_candidates(&mut self, salt: u64) {
        self.shape = self.shape();
        let remembered = self.shape.as_ref().and_then(|shape| self.memory.take(shape, self.overlay.fleet));
        match remembered {
            Some((remembered, changed)) => self.look_at_changed(remembered, changed, salt),
            None => self.look_at_all(salt),
        }
        if self.any_pool {
            self.pools = Some(Pools::of(self.cx.state));
        }
        self.buckets.refresh();
    }

    /// Leaves what it has found to evaluations to come.
    pub(in crate::place) fn end(mut self) {
        let Some(shape) = self.shape else { return };
        self.stale.extend_from_slice(self.ranking.touched());
        let remembered = Remembered {
            classes: self.classes,
            base: self.base,
            ranking: self.ranking,
            any_remote: self.any_remote,
            any_pool: self.any_pool,
            stale: self.stale,
        };
        self.memory.put(shape, self.overlay.fleet, remembered);
    }

    /// The slots where the job or the plan has a part in the score.
    fn own_slots(&self) -> Vec<u32> {
        self.job_use.slots().chain(self.overlay.changed_slots()).collect()
    }

    /// What the candidates depend on, if it is nothing but that, the nodes, and what is in use there.
    fn shape(&self) -> Option<Shape> {
        let local = !self.rules.escaped() && !self.rules.affinity_unique() && self.group.volumes.is_empty();
        let cores = self.group.tasks.iter().any(|task| task.resources.cores.unwrap_or(0) > 0);
        (local && !cores && self.buckets.plain()).then(|| Shape {
            job: self.cx.job.clone(),
            group: self.group.name.clone(),
            binpack: self.rules.binpack,
            oversubscribed: self.rules.oversubscribed,
        })
    }

    /// Takes over what an earlier evaluation has found. Looks at the nodes where other resources are in use than then,
    /// and at those where the job or the plan has a part in the score.
    fn look_at_changed(&mut self, remembered: Remembered, changed: Vec<u32>, salt: u64) {
        let Remembered { classes, base, ranking, any_remote, any_pool, stale } = remembered;
        (self.classes, self.base, self.ranking) = (classes, base, ranking);
        (self.any_remote, self.any_pool) = (any_remote, any_pool);
        let mut powers = Powers::default();
        for slot in changed.into_iter().chain(stale) {
            // Those that the plan changes follow.
            if let Some(i) = self.ranking.find(slot).filter(|_| !self.overlay.has_changed(slot)) {
                let (sum, parts, standing) = self.assess(slot, Own::default(), &mut powers);
                self.ranking.renew(i, sum, parts, standing);
            }
        }
        self.ranking = std::mem::take(&mut self.ranking).salted(salt);
        self.own_slots().into_iter().for_each(|slot| self.touch(slot));
    }

    /// Checks every node once.
    fn look_at_all(&mut self, salt: u64) {
        let fleet = self.overlay.fleet;
        let mut m = AllocMetric::default();
        let mut classes: Vec<Class> = (0..fleet.class_count()).map(|_| Class::Unknown).collect();
        // Facts by class, counted as nodes are met: (evaluated, filtered).
        let mut met = vec![0_i64; classes.len()];
        // A class's nodes share datacenter, pool and node class: one node represents all.
        let mut speaker: Vec<Option<u32>> = vec![None; classes.len()];
        for (slot, facts) in (0_u32..).zip(fleet.all_facts()).filter(|(_, facts)| facts.ready) {
            let c = facts.class as usize;
            met[c] += 1;
            if speaker[c].is_none() {
                speaker[c] = Some(slot);
                classes[c] = self.class_of(self.node(slot));
                if let Class::Feasible { ask, .. } = &classes[c] {
                    self.any_remote |= ask.remote.contains(&true);
                    self.any_pool |= !ask.pool.is_empty();
                }
            }
        }
        self.classes = classes.into();
        let own = self.job_use.on_all(&self.group.name, fleet.len());
        let mut powers = Powers::that_remember();
        let mut ranking = Ranking::new(fleet.len());
        for (slot, facts) in (0_u32..).zip(fleet.all_facts()).filter(|(_, facts)| facts.ready) {
            if !matches!(self.classes[facts.class as usize], Class::Feasible { .. }) {
                continue;
            }
            if self.rules.escaped()
                && let Err(why) = self.rules.unique_meets(self.node(slot))
            {
                filtered(&mut m, &self.node(slot).class, why, 1);
                continue;
            }
            let bucket = if self.buckets.plain() {
                0
            } else {
                let node = self.node(slot).clone();
                self.buckets.of(&node, self.rules.region())
            };
            let scored = self.assess(slot, own[slot as usize], &mut powers);
            ranking.add((slot, bucket, facts.class), facts.id_bits, scored);
        }
        for (c, slot) in speaker.iter().enumerate() {
            let Some(slot) = slot else { continue };
            let node = self.node(*slot);
            if self.rules.in_pool(node) {
                m.nodes_in_pool += met[c];
            }
            match &self.classes[c] {
                Class::Unknown | Class::OutOfScope => {}
                Class::Filtered(why) => {
                    *m.nodes_available.or_default(node.datacenter.clone()) += met[c];
                    m.nodes_evaluated += met[c];
                    filtered(&mut m, &node.class, why.clone(), met[c]);
                }
                Class::Feasible { .. } => {
                    *m.nodes_available.or_default(node.datacenter.clone()) += met[c];
                    m.nodes_evaluated += met[c];
                }
            }
        }
        self.base = m;
        self.ranking = ranking.salted(salt);
        self.stale = self.own_slots();
    }
}

//! States from the past: the servers' state is restored, emptied or another cluster's, or a node's directory is emptied
//! or older. The product decides what follows: the lineage of the state, the node's mark, the gate of the commit, what
//! is taken over, when it is over.

use std::collections::{BTreeMap, BTreeSet};

use lifecycle::{
    membership::{Meaning, Servers},
    remote::{
        Context,
        node::{self, Slot},
        order_for_node,
        recovered::{Known, MadeFrom, named_anew, of_each_slot, take_over},
        recovering::{Awaited, is_over},
    },
};
use model::{AllocId, ClusterId, DesiredRemote, GenerationId, IncarnationId, RemoteTask, SlotKey};
use state::{ClusterMeta, Mark};
use uuid::Uuid;

use super::{Alloc, AllocState, Fault, Job, Node, Records, Rule, Shared, ToNode, World, node_id, slot_key};

/// Everything that servers store.
#[derive(Clone, Debug)]
pub(crate) struct Backup {
    pub(super) records: Shared<Records>,
    pub(super) allocs: Shared<Vec<Alloc>>,
    pub(super) job: Job,
    pub(super) leased: Shared<BTreeSet<usize>>,
    pub(crate) meta: ClusterMeta,
    pub(crate) index: u64,
}

impl Backup {
    pub(super) fn incarnations(&self) -> impl Iterator<Item = IncarnationId> {
        self.records.values().map(|r| r.incarnation)
    }
}

impl Node {
    /// The newest that it has acted on.
    pub(crate) fn mark(&self) -> Mark {
        Mark { generation: self.member.generation, index: self.member.index }
    }
}

fn cluster(n: u128) -> ClusterId {
    ClusterId(Uuid::from_u128(0xc000 + n))
}

impl World {
    pub(super) fn new_generation(&mut self) -> GenerationId {
        self.generations += 1;
        GenerationId(Uuid::from_u128(0xe000 + self.generations))
    }

    /// The state of a new cluster.
    pub(super) fn found_cluster(&mut self) {
        let generation = self.new_generation();
        self.meta = ClusterMeta { cluster_id: cluster(1), ..ClusterMeta::default() }.into();
        self.meta.begin_generation(generation, self.index);
        self.new_cluster = true;
    }

    pub(super) fn stored(&self) -> Backup {
        Backup {
            records: self.records.clone(),
            allocs: self.allocs.clone(),
            job: self.job.clone(),
            leased: self.leased.clone(),
            meta: ClusterMeta::clone(&self.meta),
            index: self.index,
        }
    }

    pub(super) fn back_up(&mut self) {
        self.backup = Some(self.stored().into());
    }

    /// The servers end, and begin on that state.
    fn begin_on(&mut self, state: Backup) {
        self.end_sessions();
        self.begin(state);
    }

    /// A server begins on that state.
    pub(super) fn begin(&mut self, state: Backup) {
        let generation = self.new_generation();
        let Backup { records, allocs, job, leased, meta, index } = state;
        (self.records, self.allocs, self.job, self.leased, self.meta, self.index) =
            (records, allocs, job, leased, meta.into(), index);
        self.meta.begin_generation(generation, self.index);
        self.index += 1;
        self.unbound.clear();
        self.answered.clear();
        (self.swept, self.new_cluster) = (false, false);
        self.provider.instances.iter_mut().for_each(|i| i.older = true);
    }

    pub(super) fn restart_servers(&mut self) {
        let state = self.stored();
        self.begin_on(state);
    }

    pub(super) fn restore(&mut self) {
        if let Some(state) = self.backup.clone() {
            self.met.restores += 1;
            self.begin_on(Backup::clone(&state));
        }
    }

    /// An empty directory, with the identity of the cluster set in the configuration.
    pub(super) fn empty(&mut self) {
        self.met.restores += 1;
        let meta = ClusterMeta { cluster_id: cluster(1), began_empty: true, ..ClusterMeta::default() };
        let job = Job { version: 1, count: 0, stopped: false, known: false };
        self.begin_on(Backup {
            records: Shared::default(),
            allocs: Shared::default(),
            job,
            leased: Shared::default(),
            meta,
            index: 0,
        });
    }

    /// The directory of another cluster is in the place of the right one, until that is noticed.
    pub(super) fn swap(&mut self) {
        self.end_sessions();
        for node in &mut self.nodes {
            node.refused = false;
        }
        self.foreign = Some(self.stored().into());
    }

    pub(super) fn swap_back(&mut self) {
        if let Some(state) = self.foreign.take() {
            self.begin_on(Backup::clone(&state));
        }
    }

    fn end_sessions(&mut self) {
        for n in 0..self.nodes.len() {
            self.disconnect(n);
        }
    }

    /// The only agent of a node, or the one that had its session last, connects.
    pub(super) fn connect(&mut self, n: usize) {
        if self.nodes[n].former {
            self.disconnect(n);
        }
        let before = self.nodes[n].member;
        if self.foreign.is_some() {
            let servers = Servers {
                cluster: Some(cluster(2)),
                generation: Some(GenerationId(Uuid::from_u128(7))),
                ..Servers::default()
            };
            (self.nodes[n].up, self.nodes[n].refused) = (true, true);
            let meaning = match self.has(Fault::TakesEveryCluster) {
                true => Meaning::Follows,
                false => self.nodes[n].member.welcomed(&servers),
            };
            if !matches!(meaning, Meaning::Elsewhere(_)) || self.nodes[n].member != before {
                self.violation(
                    Rule::OneCluster,
                    format!("node {n} takes the servers of another cluster for its own: {meaning:?}"),
                );
            }
            return;
        }
        let mark = self.nodes[n].mark();
        if !self.meta.knows(mark, self.index) {
            let generation = self.new_generation();
            let begins = self.meta.recovery.is_none();
            let now = self.wall();
            self.meta.enter_recovery(generation, &format!("node {n} knows more"), mark.index, now);
            self.index += 1;
            if begins {
                self.met.recoveries += 1;
                self.swept = false;
                self.answered.clear();
                self.end_sessions();
            }
        }
        let recovering = self.meta.recovery.as_ref().map(|recovery| recovery.cause.clone()).unwrap_or_default();
        let servers = Servers {
            cluster: Some(self.meta.cluster_id),
            generation: Some(self.meta.generation),
            history_index: self.meta.history_of(mark.generation, self.index),
            recovering: &recovering,
        };
        let node = &mut *self.nodes[n];
        let meaning = node.member.welcomed(&servers);
        (node.up, node.session, node.lease) = (true, true, true);
        node.holds = matches!(meaning, Meaning::Holds(_));
        let holds = node.holds;
        self.leased.insert(n);
        self.all_slots(n, &node::Event::LeaseHeld);
        if holds {
            return;
        }
        for slot in self.in_order(self.records.keys().copied()) {
            self.server(slot, &lifecycle::remote::Event::LeaseGranted { node: node_id(n) });
        }
        // The full set of orders names what belongs to the node; anything else it lets go.
        for slot in self.in_order(self.nodes[n].slots.keys().copied()) {
            if self.records.get(&slot).is_none_or(|r| order_for_node(r, node_id(n)).is_none()) {
                self.send(n, ToNode::Released(slot_key(slot)));
            }
        }
        let node = &mut *self.nodes[n];
        let orders = node.inbox.iter().filter_map(|(_, message)| match message {
            ToNode::Order(order) => Some(order.slot.index),
            ToNode::Released(_) => None,
        });
        node.full_set = orders.collect();
        self.reconcile_all();
    }

    /// The node tells what it has.
    pub(super) fn tell(&mut self, n: usize) {
        let Some(recovery) = self.meta.recovery.clone() else { return };
        let mark = self.nodes[n].mark();
        if !self.meta.knows(mark, self.index) {
            self.allocations_of(n);
            let stored = self.nodes[n].disk.clone();
            let asleep = stored.iter().filter(|(slot, _)| !self.nodes[n].slots.contains_key(slot));
            let asleep: Vec<(u32, Slot)> = asleep.map(|(slot, stored)| (*slot, Slot::restore(stored))).collect();
            let awake: Vec<(u32, Slot)> = self.nodes[n].slots.iter().map(|(slot, s)| (*slot, s.clone())).collect();
            for (slot, s) in asleep.into_iter().chain(awake) {
                let order = s.known(&slot_key(slot));
                let version = self.versions.get(&order.alloc_id).copied();
                let made_from =
                    version.or(self.job.known.then_some(self.job.version)).map(|version| self.made_from(version));
                self.take(slot, &Known::of_order(&order, made_from, "its node".to_owned()));
            }
        }
        self.index += 1;
        self.answered.insert(n);
        let index = self.index;
        let node = &mut *self.nodes[n];
        node.member.told(recovery.generation, index);
        node.told = true;
    }

    /// Its allocations with their jobs. In the product `takeover::of_node` decides over whole states; here is what of
    /// it concerns slots.
    fn allocations_of(&mut self, n: usize) {
        let has = self.nodes[n].has.clone();
        for (id, slot) in &has {
            if self.allocs.iter().any(|a| a.id == *id) {
                continue;
            }
            let version = self.versions.get(id).copied().unwrap_or_default();
            self.allocs.push(Alloc {
                id: *id,
                slot: *slot,
                node: n,
                version,
                state: AllocState::Live,
                collected: false,
            });
            let job = &mut self.job;
            if !job.known || version > job.version {
                (job.version, job.stopped) = (version, false);
            }
            (job.known, job.count) = (true, job.count.max(slot + 1));
        }
        for a in
            self.allocs.iter_mut().filter(|a| a.node == n && a.state == AllocState::Live && !has.contains_key(&a.id))
        {
            a.state = AllocState::Gone;
        }
    }

    fn made_from(&self, version: u64) -> MadeFrom {
        MadeFrom { job_version: version, spec_hash: format!("hash-{version}").into(), policy: self.policy().into() }
    }

    fn take(&mut self, slot: u32, known: &Known) {
        let before = self.records.get(&slot).cloned();
        let cx = Context { now: self.wall(), fresh: IncarnationId::NIL, held: false };
        let Some(mut r) = take_over(&slot_key(slot), before.as_ref(), known, cx) else { return };
        self.spoil_taken_over(&mut r);
        if before.as_ref().is_some_and(|b| r.epoch < b.epoch) || r.epoch < known.epoch {
            self.violation(
                Rule::TakenOverAbove,
                format!("slot {slot} is taken over under epoch {}, known were {} and {before:?}", r.epoch, known.epoch),
            );
        }
        if r.desired == DesiredRemote::Stop && !self.stop_ordered.contains(&r.incarnation) {
            self.violation(
                Rule::RecoveryStopsNothing,
                format!("a recovery orders the stop of {}", r.incarnation.short()),
            );
        }
        self.met.taken_over += 1;
        self.records.insert(slot, r);
    }

    /// What the sweep has found and no record knows becomes its slot's.
    pub(super) fn bind(&mut self) {
        let candidates: Vec<(SlotKey, Known)> = self
            .unbound
            .iter()
            .filter_map(|(key, slot)| {
                let made_from = self.job.known.then(|| self.made_from(self.job.version));
                Some((slot_key(*slot), Known::of_instance(&self.listed(*key)?, *key, ("fake", "fake"), made_from)))
            })
            .collect();
        for (slot, known) in of_each_slot(candidates) {
            let slot = slot.index;
            self.take(slot, &known);
            if self.records.get(&slot).is_some_and(|r| r.incarnation == known.incarnation) {
                // A list does not say which version of the job it was made from: it is taken for the one that the job
                // has.
                self.assumed.insert(known.incarnation);
                self.unbound.remove(&known.incarnation);
            }
        }
    }

    /// What the recovery waits for.
    pub(super) fn awaited(&self) -> Awaited {
        Awaited {
            by_hand: self.meta.recovery.as_ref().is_some_and(|recovery| recovery.by_hand),
            nodes: self.leased.iter().filter(|n| !self.answered.contains(n)).count(),
            providers: usize::from(self.cfg.find && !self.swept),
            // The wait for unknown nodes is not played, and clocks may stand before 1970 here.
            not_before: i64::MIN,
        }
    }

    /// It ends by itself, or a person ends it when every node and provider has answered.
    pub(super) fn may_end(&self) -> bool {
        let all = || self.nodes.iter().enumerate().all(|(n, node)| node.dead || self.answered.contains(&n));
        if self.has(Fault::RecoveryGoesOn) {
            return false;
        }
        let awaited = self.awaited();
        self.meta.recovery.is_some()
            && (is_over(&awaited, self.wall()) || (awaited.by_hand && awaited.providers == 0 && all()))
    }

    pub(super) fn end_recovery(&mut self) {
        self.bind();
        let Some(floor) = self.meta.end_recovery(self.index) else { return };
        self.index = floor;
        self.met.ended += 1;
        let cx = Context { now: self.wall(), fresh: IncarnationId::NIL, held: false };
        let unseen: Vec<(u32, RemoteTask)> =
            self.records.iter().filter_map(|(slot, r)| Some((*slot, named_anew(r, cx)?))).collect();
        for (slot, record) in unseen {
            let before = self.records.get(&slot).cloned();
            self.commit(slot, before.as_ref(), record);
        }
        // The scheduler loses what is on nodes that are down, and keeps one allocation for each slot.
        let leased = &self.leased;
        for a in self.allocs.iter_mut().filter(|a| a.state == AllocState::Live && !leased.contains(&a.node)) {
            a.state = AllocState::Gone;
        }
        let mut newest: BTreeMap<u32, AllocId> = BTreeMap::new();
        for a in self.allocs.iter().filter(|a| a.state == AllocState::Live) {
            let id = newest.entry(a.slot).or_insert(a.id);
            *id = (*id).max(a.id);
        }
        for a in self.allocs.iter_mut().filter(|a| a.state == AllocState::Live && newest[&a.slot] != a.id) {
            a.state = AllocState::Gone;
        }
        self.end_sessions();
        // And stops what its job no longer wants.
        self.stop_allocs();
        self.reconcile_all();
    }

    /// The node's directory is gone: its agent comes back as another node.
    pub(super) fn empty_node(&mut self, n: usize) {
        self.crash(n);
        *self.nodes[n] = Node { dead: true, ..Node::default() };
        let instance = self.new_instance();
        self.nodes.push(Node { instance, ..Node::default() }.into());
    }

    pub(super) fn copy_disk(&mut self, n: usize) {
        let node = &mut *self.nodes[n];
        node.copy = Some(Box::new((node.disk.clone(), node.member, node.has.clone())));
    }

    /// The node's directory is the copy that was made before.
    pub(super) fn old_node(&mut self, n: usize) {
        self.crash(n);
        if let Some(copy) = self.nodes[n].copy.clone() {
            (self.nodes[n].disk, self.nodes[n].member, self.nodes[n].has) = *copy;
        }
    }
}

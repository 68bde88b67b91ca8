//! When two worlds are the same for all that may follow. Nodes are interchangeable, and slots are while the job treats
//! them alike, so worlds that differ in such names have one fingerprint. A step of one is a step of the other under the
//! names exchanged; where a step has an order of slots, both orders are steps: see [`super::Action::Downwards`].

use std::collections::BTreeSet;

use model::{IncarnationId, RemoteTask, RemoteVerdict, remote::RemoteRole};
use state::ClusterMeta;

use super::{
    Alloc, Backup, Instance, LATE, LEASE, MARGIN, Node, Pending, ToNode, World,
    digest::{Digest, Names, Sink},
    provider::key_of,
};

/// Times beyond it do not differ for what follows.
const CLOCK: i64 = LEASE + MARGIN;

impl World {
    /// Equal values mean equal futures and equal violations in them, up to names.
    pub(crate) fn fingerprint(&self) -> u128 {
        let slots = [false, true];
        slots[..if self.slots_are_alike() { 2 } else { 1 }]
            .iter()
            .flat_map(|swapped| self.namings_of_nodes(*swapped))
            .map(|names| self.digest(names))
            .min()
            .unwrap_or_default()
    }

    /// The same, with worlds told apart by names.
    pub(crate) fn fingerprint_by_names(&self) -> u128 {
        self.digest(Names::default())
    }

    /// Nothing that follows tells the first two slots apart.
    fn slots_are_alike(&self) -> bool {
        let treated_alike = |job: &super::Job| job.stopped || !job.known || job.count >= self.cfg.slots;
        let backup = self.backup.as_deref().filter(|_| self.left.restores > 0);
        let foreign = self.foreign.as_deref();
        let others = self.slow.iter().flat_map(|slow| slow.states()).chain(&self.former).map(|state| &**state);
        self.cfg.slots == 2
            && (self.left.stops == 0 || self.job.stopped)
            && self.cfg.budget.empties == 0
            && treated_alike(&self.job)
            && backup.into_iter().chain(foreign).chain(others).all(|state| treated_alike(&state.job))
            && !(self.cfg.budget.stops > 0 && self.cfg.budget.restores + self.cfg.budget.take_overs > 0)
    }

    /// The nodes in order of their digests; both orders of nodes that do not differ.
    fn namings_of_nodes(&self, slots_swapped: bool) -> impl Iterator<Item = Names> {
        let names = Names { slots_swapped, nodes_swapped: false };
        let (mut both, mut swapped) = (false, false);
        if self.nodes.len() == 2 && self.cfg.skew == 0 {
            let (a, b) = (self.nodes[0].digest(&names), self.nodes[1].digest(&names));
            (both, swapped) = (a == b, a > b);
        }
        [false, true]
            .into_iter()
            .filter(move |now| both || *now == swapped)
            .map(move |nodes_swapped| Names { nodes_swapped, ..names })
    }

    fn digest(&self, names: Names) -> u128 {
        let mut d = Sink::new(names);
        let past = self.cfg.budget.past();
        let heard = |node: &Node, leased: bool| {
            if node.session || !(node.lease || leased) { 0 } else { (self.now - node.heard).min(CLOCK) }
        };
        for n in (0..self.nodes.len()).map(|n| names.node(n)) {
            let (node, leased) = (&self.nodes[n], self.leased.contains(&n));
            d.digest(node.digest(&Names { nodes_swapped: false, ..names }));
            d.put(&(leased, self.answered.contains(&n), heard(node, leased)));
        }
        d.set(self.twins.iter().map(|(n, twin)| {
            let own = twin.digest(&Names { nodes_swapped: false, ..names });
            (names.node(*n), heard(twin, false), own as u64, (own >> 64) as u64).digest(&names)
        }));
        d.digest(self.records.digest(&names));
        d.set(self.records.iter().filter_map(|(slot, r)| {
            let times = self.times_of(r);
            (times != (0, 0)).then(|| (names.slot(*slot), times).digest(&names))
        }));
        d.put(&(&self.left, self.provider.unreachable, &self.job, self.swept, self.placed.values().sum::<u32>()));
        d.set(self.allocs.iter().enumerate().map(|(at, a)| {
            let before = self.allocs[..at].iter().filter(|b| b.slot == a.slot).count();
            (before, digest_of_alloc(a, names)).digest(&names)
        }));
        d.set(self.provider.instances.iter().map(|i| digest_of_instance(i, names)));
        d.values(self.unbound.keys());
        d.set(self.zombies.iter().map(|call| {
            let age =
                if past || !self.cfg.seal || !self.cfg.frozen { (self.now - call.since).min(LATE + 1) } else { 0 };
            (age, digest_of_call(call, names)).digest(&names)
        }));
        d.set(self.stragglers.iter().map(|(n, report)| (names.node(*n), report).digest(&names)));
        // What was ever done with a key matters while anybody may act on it again.
        d.set(self.keys().into_iter().map(|key| self.digest_of_key(key, names)));
        d.values(self.versions.iter());
        d.values(self.ends.iter().map(|(slot, ends)| (names.slot(*slot), ends)));
        d.values(self.places.iter().map(|(place, slot)| (place, names.slot(*slot))));
        d.values(self.collected.iter());
        d.values(self.ever_kept.iter());
        d.put(&(self.met.restores > 0, self.met.lost > 0, self.declared.is_empty()));
        d.put(&(self.meta.recovery.is_some(), self.foreign.is_some(), self.new_cluster));
        if let Some(backup) = self.backup.as_ref().filter(|_| self.left.restores > 0) {
            d.digest(backup.digest(&names));
        }
        if let Some(foreign) = &self.foreign {
            d.digest(foreign.digest(&names));
        }
        d.put(&(self.slow.is_some(), self.former.is_some()));
        if let Some(slow) = &self.slow {
            d.digest(slow.digest(&names));
        }
        if let Some(former) = &self.former {
            d.digest(former.digest(&names));
        }
        if self.took_over > 0 {
            d.put(&(self.now - self.took_over).min(CLOCK));
        }
        if past {
            self.lineage(&mut d, names);
        }
        d.finish()
    }

    /// What of a record's times is still to come: its restart, by the servers' wall clock, and whether its interval is
    /// over when that clock is set.
    fn times_of(&self, r: &RemoteTask) -> (i64, u8) {
        let now = self.wall();
        let at = match &r.verdict {
            RemoteVerdict::Restarting { at, .. } => (at - now).max(0),
            _ => 0,
        };
        let interval = r.policy.restart.interval().nanos();
        let window = match now - r.restart_window_start {
            _ if self.cfg.budget.clock_steps == 0 || r.restart_window_start == 0 => 0,
            since if since < 0 => 1,
            since if since <= interval => 2,
            _ => 3,
        };
        (at, window)
    }

    fn digest_of_key(&self, key: IncarnationId, names: Names) -> u128 {
        let since = |at: &i64| self.now - at;
        let sealed = self.provider.sealed.get(&key).map(|at| match self.is_sealed(key) {
            // Seals of those that keep no epochs end.
            true if !self.cfg.fenced => since(at).min(LATE) + 1,
            sealed => i64::from(sealed),
        });
        let believed = self.confirmed.get(&key).map(|at| if self.cfg.frozen { 0 } else { since(at).min(LATE + 1) });
        let told = (
            self.declared.contains(&key),
            self.assumed.contains(&key),
            self.stop_ordered.contains(&key),
            self.firsts.contains(&key),
        );
        (key, sealed, self.provider.accepted.get(&key), believed, told, self.version_of.get(&key)).digest(&names)
    }

    /// Which states of servers and nodes know of which others: indexes count by their order only.
    fn lineage(&self, d: &mut Sink, names: Names) {
        let agents =
            || (0..self.nodes.len()).map(|n| &self.nodes[names.node(n)]).chain(self.twins.iter().map(|(_, t)| t));
        let marks = agents().flat_map(|node| {
            let copy = node.copy.iter().map(|copy| copy.1.index);
            let inbox = node.inbox.iter().map(|(index, _)| *index);
            std::iter::once(node.member.index).chain(copy).chain(inbox)
        });
        let slow = || self.slow.iter();
        let states = [&self.backup, &self.foreign, &self.former].into_iter().flatten();
        let states: Vec<_> = states.chain(slow().flat_map(|slow| slow.states())).collect();
        let metas = || std::iter::once(&*self.meta).chain(states.iter().map(|state| &state.meta));
        let highest = |meta: &ClusterMeta| meta.recovery.as_ref().map(|recovery| recovery.highest).unwrap_or_default();
        let ends =
            metas().flat_map(|meta| meta.ancestors.iter().map(|a| a.until).chain([meta.forgotten, highest(meta)]));
        let latest = std::iter::once(self.index).chain(states.iter().map(|state| state.index));
        let waiting = slow().flat_map(|slow| slow.indexes());
        let indexes: Vec<u64> = marks.chain(ends).chain(latest).chain(waiting).collect();
        let known: BTreeSet<u64> = indexes.iter().copied().collect();
        let rank = |index: &u64| known.range(..index).count();
        d.put(&indexes.iter().map(rank).collect::<Vec<_>>());
        for meta in metas() {
            let ancestors: Vec<_> = meta.ancestors.iter().map(|a| a.generation).collect();
            let recovery = meta.recovery.as_ref().map(|r| (r.generation, r.by_hand));
            d.put(&(meta.generation, ancestors, meta.began_empty, recovery));
        }
    }

    /// The keys that a record, an instance, a call or a node's disk may bring up again.
    fn keys(&self) -> BTreeSet<IncarnationId> {
        let records = self.records.values().map(|r| r.incarnation);
        let backup = self.backup.iter().filter(|_| self.left.restores > 0).flat_map(|b| b.incarnations());
        let foreign = self.foreign.iter().chain(&self.former).flat_map(|b| b.incarnations());
        let slow = self.slow.iter().flat_map(|slow| slow.incarnations());
        let agents = || self.nodes.iter().chain(self.twins.iter().map(|(_, twin)| twin));
        let calls = agents().flat_map(|node| &node.calls).chain(self.zombies.iter()).map(|call| key_of(&call.call));
        let slots = agents()
            .flat_map(|node| node.slots.values())
            .filter_map(|slot| slot.order())
            .map(|order| order.incarnation);
        let inboxes = agents().flat_map(|node| &node.inbox).filter_map(|(_, message)| match message {
            ToNode::Order(order) => Some(order.incarnation),
            ToNode::Released(_) => None,
        });
        let disks = agents().flat_map(|node| node.disk.values()).filter_map(|stored| stored.attempted);
        let instances = self.provider.instances.iter().map(|i| i.key);
        let known = records.chain(backup).chain(foreign).chain(calls).chain(slots).chain(inboxes);
        known.chain(disks).chain(instances).chain(slow).collect()
    }
}

fn digest_of_alloc(a: &Alloc, names: Names) -> (u64, u64) {
    let of = (a.id, names.node(a.node), a.version, a.state as u8, a.collected).digest(&names);
    (of as u64, (of >> 64) as u64)
}

fn digest_of_instance(i: &Instance, names: Names) -> u128 {
    let life = (i.alive, i.code, i.shown, i.older && !i.shown, i.late, i.stray.is_some());
    (i.key, names.slot(i.slot), i.version, i.epoch, life).digest(&names)
}

fn digest_of_call(call: &Pending, names: Names) -> (u64, u64) {
    let late = call.since > 0;
    let of = (names.slot(call.slot), &call.call, call.version, call.alloc, &call.answer, late).digest(&names);
    (of as u64, (of >> 64) as u64)
}

impl Digest for Node {
    fn digest(&self, names: &Names) -> u128 {
        let mut d = Sink::new(*names);
        let slot = |slot: &u32| names.slot(*slot);
        d.put(&(self.up, self.session, self.lease, self.draining, self.holds, self.told, self.refused, self.dead));
        d.put(&self.former);
        d.values(self.slots.iter().map(|(of, s)| (slot(of), s)));
        d.values(self.disk.iter().map(|(of, stored)| (slot(of), stored)));
        d.values(self.has.keys());
        d.put(&(self.member.cluster, self.member.generation, self.member.lost));
        if let Some(copy) = &self.copy {
            let (disk, member, has) = &**copy;
            d.values(disk.iter().map(|(of, stored)| (slot(of), stored)));
            d.values(has.keys());
            d.put(&(member.cluster, member.generation, member.lost));
        }
        for set in [&self.full_set, &self.prepare, &self.retry, &self.watching] {
            d.values(set.iter().map(slot));
        }
        d.values(self.keep.iter().map(|(of, what)| (slot(of), what)));
        d.values(self.kept.iter());
        d.set(self.calls.iter().map(|call| digest_of_call(call, *names).digest(names)));
        d.word(self.inbox.len() as u64);
        for (_, message) in &self.inbox {
            put_message(&mut d, message);
        }
        d.put(&self.outbox);
        d.finish()
    }
}

pub(super) fn put_message(d: &mut Sink, message: &ToNode) {
    match message {
        ToNode::Order(order) => d.put(&(order.role != RemoteRole::Observe, order)),
        ToNode::Released(key) => d.put(&key),
    }
}

impl Digest for Backup {
    fn digest(&self, names: &Names) -> u128 {
        let mut d = Sink::new(*names);
        d.digest(self.records.digest(names));
        d.set(self.allocs.iter().enumerate().map(|(at, a)| {
            let before = self.allocs[..at].iter().filter(|b| b.slot == a.slot).count();
            (before, digest_of_alloc(a, *names)).digest(names)
        }));
        d.put(&self.job);
        d.values(self.leased.iter().map(|n| names.node(*n)));
        d.finish()
    }
}

/// The records of all slots.
impl Digest for super::Records {
    fn digest(&self, names: &Names) -> u128 {
        let mut d = Sink::new(*names);
        d.values(self.iter().map(|(slot, r)| (names.slot(*slot), r)));
        d.finish()
    }
}

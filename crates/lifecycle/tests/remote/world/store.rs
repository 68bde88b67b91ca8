//! Several servers over one store. One leads, and another takes over at any moment: it begins from what the store has.
//! The store may be slow: what the leader has decided then waits to be durable, and so does all that nodes would hear
//! of it. A take-over in between finds any part of it in the store. A former leader goes on until it learns of the
//! fence: what it has sent arrives late, it takes nodes in that look for servers, and the store refuses what it writes.

use lifecycle::{
    membership::{Meaning, Servers},
    remote::{Context, Effect, Event, node, order_for_node, transition},
};
use model::{IncarnationId, RemoteReport};

use super::{
    Backup, Fault, LEASE, MARGIN, Shared, ToNode, World,
    digest::{Digest, Names, Sink},
    fingerprint::put_message,
    node_id, slot_key,
};

/// So many transactions wait at most: what is decided later goes with the last one.
const TRANSACTIONS: usize = 2;

/// A message of servers: to which node, of which index.
type Message = (usize, u64, ToNode);

/// A commit, as far as the rules remember it: the incarnation, the version that it is of, whether it is to stop.
type Told = (IncarnationId, u64, bool);

/// What becomes durable together, and what follows from it then.
#[derive(Clone, Debug)]
struct Transaction {
    state: Shared<Backup>,
    messages: Vec<Message>,
    told: Vec<Told>,
}

/// A store that is slow.
#[derive(Clone, Debug)]
pub(super) struct SlowStore {
    durable: Shared<Backup>,
    waiting: Vec<Transaction>,
}

/// What the step at hand has decided, while the store is slow.
#[derive(Clone, Debug, Default)]
pub(super) struct Step {
    messages: Vec<Message>,
    told: Vec<Told>,
}

impl SlowStore {
    pub(super) fn states(&self) -> impl Iterator<Item = &Shared<Backup>> {
        std::iter::once(&self.durable).chain(self.waiting.iter().map(|transaction| &transaction.state))
    }

    /// Indexes of what waits to be sent.
    pub(super) fn indexes(&self) -> impl Iterator<Item = u64> {
        self.waiting.iter().flat_map(|transaction| &transaction.messages).map(|(_, index, _)| *index)
    }

    pub(super) fn incarnations(&self) -> impl Iterator<Item = IncarnationId> {
        let told = self.waiting.iter().flat_map(|transaction| &transaction.told).map(|(incarnation, ..)| *incarnation);
        self.states().flat_map(|state| state.incarnations()).chain(told)
    }

    pub(super) fn transactions(&self) -> usize {
        self.waiting.len()
    }
}

impl World {
    /// From here on what is decided is not durable at once.
    pub(super) fn slow_down(&mut self) {
        self.slow = Some(SlowStore { durable: self.stored().into(), waiting: Vec::new() }.into());
    }

    /// The rules remember what is durable.
    pub(super) fn remember(&mut self, told: Told) {
        if self.slow.is_some() {
            return self.step.told.push(told);
        }
        let (incarnation, version, stop) = told;
        if stop {
            self.stop_ordered.insert(incarnation);
        }
        self.version_of.entry(incarnation).or_insert(version);
    }

    /// Servers that recover tell a node nothing, and no server tells of what is not durable.
    pub(super) fn send(&mut self, n: usize, message: ToNode) {
        let message = (n, self.index, message);
        if self.slow.is_some() {
            return self.step.messages.push(message);
        }
        self.send_now(message);
    }

    fn send_now(&mut self, (n, index, message): Message) {
        let node = &mut *self.nodes[n];
        if node.session && !node.holds {
            node.inbox.push_back((index, message));
        }
    }

    /// The end of a step: what it has decided goes to a slow store.
    pub(super) fn hand_to_store(&mut self) {
        let Some(slow) = &self.slow else { return };
        let last = slow.waiting.last().map_or(&slow.durable, |transaction| &transaction.state);
        let news = self.index != last.index || self.job != last.job || *self.allocs != *last.allocs;
        let Step { mut messages, told } = std::mem::take(&mut self.step);
        if !news && slow.waiting.is_empty() || self.has(Fault::TellsBeforeDurable) {
            for message in std::mem::take(&mut messages) {
                self.send_now(message);
            }
        }
        if !news && messages.is_empty() {
            return;
        }
        let state: Shared<Backup> = self.stored().into();
        let Some(slow) = &mut self.slow else { return };
        let full = slow.waiting.len() >= TRANSACTIONS;
        match slow.waiting.last_mut() {
            Some(last) if !news => last.messages.extend(messages),
            Some(last) if full => {
                last.state = state;
                last.messages.extend(messages);
                last.told.extend(told);
            }
            _ => slow.waiting.push(Transaction { state, messages, told }),
        }
    }

    /// The first transaction that waits is durable, and nodes hear of it.
    pub(super) fn becomes_durable(&mut self) {
        let Some(mut slow) = self.slow.take() else { return };
        let first = (!slow.waiting.is_empty()).then(|| slow.waiting.remove(0));
        let Some(Transaction { state, messages, told }) = first else { return };
        told.into_iter().for_each(|told| self.remember(told));
        messages.into_iter().for_each(|message| self.send_now(message));
        if !slow.waiting.is_empty() {
            slow.durable = state;
            self.slow = Some(slow);
        }
    }

    /// Another server takes the fence, when so many of the transactions that wait are in the store.
    pub(super) fn take_over_with(&mut self, made: usize) {
        self.met.take_overs += 1;
        let (mut state, mut sent) = (self.stored(), Vec::new());
        let mut void = false;
        if let Some(slow) = self.slow.take() {
            state = Backup::clone(&slow.durable);
            for (i, transaction) in slow.waiting.iter().enumerate() {
                let Transaction { state: after, messages, told } = transaction.clone();
                if i < made {
                    told.into_iter().for_each(|told| self.remember(told));
                    state = Backup::clone(&after);
                }
                // The former leader may have had the answer, and may have told of it, by now.
                if i < made || self.has(Fault::DoubtIsYes) {
                    sent.extend(messages);
                }
                void |= i >= made;
            }
        }
        self.met.voided += u64::from(void);
        self.former_is(state.clone(), sent);
        self.begin(state);
        self.took_over = self.now;
        // What was only believed in a decision that is void did not happen.
        let own = self.records.values().filter(|r| void && !r.observed.ended()).map(|r| r.incarnation);
        for key in own.collect::<Vec<_>>() {
            self.confirmed.remove(&key);
            self.provider.instances.iter_mut().filter(|i| i.key == key).for_each(|i| i.stray = None);
        }
    }

    /// Another server takes the fence of a store that was restored to a state from before. A server that has followed
    /// knows of what was acknowledged since.
    pub(super) fn take_over_from_the_past(&mut self, knows: bool) {
        let Some(past) = self.backup.clone() else { return };
        (self.met.take_overs, self.met.restores) = (self.met.take_overs + 1, self.met.restores + 1);
        let (newest, acknowledged) = (self.stored(), self.index);
        self.former_is(newest, Vec::new());
        self.begin(Backup::clone(&past));
        self.took_over = self.now;
        if knows && acknowledged > past.index {
            let (generation, now) = (self.new_generation(), self.wall());
            self.meta.enter_recovery(generation, "the store has lost what was acknowledged", acknowledged, now);
            self.met.recoveries += 1;
        }
    }

    /// The sessions of whoever has led are those of a former leader. It can grant nothing from here on: its last word
    /// from the store is older, and a lease ends with that.
    fn former_is(&mut self, state: Backup, sent: Vec<Message>) {
        sent.into_iter().for_each(|message| self.send_now(message));
        let (now, admits) = (self.now, self.has(Fault::FenceAdmits));
        for node in self.nodes.iter_mut().filter(|node| node.session) {
            (node.session, node.former, node.heard) = (false, true, now);
            (node.holds, node.told) = (false, false);
            if !admits {
                // What it reports there comes to nothing.
                node.outbox.clear();
            }
        }
        if !admits {
            self.stragglers.clear();
        }
        self.former = (self.left.formers > 0 || admits).then(|| state.into());
    }

    /// When the servers take a node for lost. A new leader has heard nobody, and waits for all from its beginning.
    pub(super) fn waits_until(&self, n: usize) -> i64 {
        let heard = self.nodes[n].heard;
        if self.has(Fault::LeasesNotAwaited) && self.took_over > 0 && self.took_over >= heard {
            return self.now;
        }
        heard.max(self.took_over) + LEASE + MARGIN
    }

    /// When the lease of a node without a session of the leader ends by its own clock. A former leader prolongs none
    /// beyond what the store has confirmed.
    fn lease_until(&self, n: usize) -> i64 {
        let node = &self.nodes[n];
        if self.has(Fault::FormerLeaderGrants) && node.former { i64::MAX } else { node.heard + LEASE }
    }

    /// Whether the servers may take the node for lost next: what happens earlier comes first.
    pub(super) fn may_expire(&self, n: usize) -> bool {
        !self.nodes[n].lease || self.waits_until(n) < self.lease_until(n)
    }

    /// Whether a node that looks for servers may be taken in by the former leader. Nothing of that is written when the
    /// node is ready there and has acted on nothing newer; and the lease is what is left of the last word of the store.
    pub(super) fn former_takes(&self, n: usize) -> bool {
        let Some(former) = &self.former else { return false };
        former.leased.contains(&n)
            && self.now < self.took_over + LEASE
            && former.meta.knows(self.nodes[n].mark(), former.index)
    }

    /// The node connects to the former leader, and is told what that knows.
    pub(super) fn connect_to_former(&mut self, n: usize) {
        let Some(former) = self.former.clone() else { return };
        let generation = self.nodes[n].mark().generation;
        let recovering = former.meta.recovery.as_ref().map(|recovery| recovery.cause.clone()).unwrap_or_default();
        let servers = Servers {
            cluster: Some(former.meta.cluster_id),
            generation: Some(former.meta.generation),
            history_index: former.meta.history_of(generation, former.index),
            recovering: &recovering,
        };
        let heard = self.took_over;
        let node = &mut *self.nodes[n];
        let meaning = node.member.welcomed(&servers);
        (node.up, node.former, node.lease, node.heard) = (true, true, true, heard);
        self.all_slots(n, &node::Event::LeaseHeld);
        if meaning != Meaning::Follows {
            return;
        }
        let orders = self.in_order(former.records.keys().copied()).into_iter().filter_map(|slot| {
            let order = order_for_node(&former.records[&slot], node_id(n))?;
            Some((slot, ToNode::Order(Box::new(order))))
        });
        let orders: Vec<(u32, ToNode)> = orders.collect();
        let others = self.in_order(self.nodes[n].slots.keys().copied()).into_iter();
        let others: Vec<ToNode> = others
            .filter(|slot| orders.iter().all(|(of, _)| of != slot))
            .map(|slot| ToNode::Released(slot_key(slot)))
            .collect();
        let node = &mut *self.nodes[n];
        node.full_set = orders.iter().map(|(slot, _)| *slot).collect();
        let messages = orders.into_iter().map(|(_, message)| message).chain(others);
        node.inbox.extend(messages.map(|message| (former.index, message)));
    }

    /// A report comes to the former leader. Only a fence that admits it lets it be written.
    pub(super) fn former_hears(&mut self, n: usize, report: RemoteReport) {
        let Some(former) = self.former.clone().filter(|_| self.has(Fault::FenceAdmits)) else { return };
        let slot = report.slot.index;
        let cx = Context { now: self.wall(), fresh: IncarnationId::NIL, held: true };
        let event = Event::Report { from: node_id(n), report: Box::new(report) };
        for effect in transition(&slot_key(slot), former.records.get(&slot), &event, cx).effects {
            if let Effect::Commit(r) = effect {
                let before = self.records.get(&slot).cloned();
                self.commit(slot, before.as_ref(), *r);
            }
        }
    }
}

impl Digest for SlowStore {
    fn digest(&self, names: &Names) -> u128 {
        let mut d = Sink::new(*names);
        d.digest(self.durable.digest(names));
        d.word(self.waiting.len() as u64);
        for Transaction { state, messages, told } in &self.waiting {
            d.digest(state.digest(names));
            d.word(messages.len() as u64);
            for (n, _, message) in messages {
                d.put(&names.node(*n));
                put_message(&mut d, message);
            }
            d.values(told.iter());
        }
        d.finish()
    }
}

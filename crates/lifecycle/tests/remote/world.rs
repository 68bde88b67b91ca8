//! A small cluster: servers that follow `remote::transition`, nodes that follow `remote::node::transition`, and a
//! fake provider. Everything that may happen next is an [`Action`]; every invariant is checked as actions are
//! applied.

mod action;
mod agent;
mod checks;
mod config;
mod digest;
mod drive;
mod enabled;
mod fault;
mod fingerprint;
mod provider;
mod recovery;
mod rules;
mod servers;
mod shared;
mod store;
mod twins;

pub(crate) use action::Action;
pub(crate) use config::{Budget, Config, Met};
pub(crate) use fault::Fault;
use provider::key_of;
use recovery::Backup;
pub(crate) use rules::{Rule, Violation};
pub(crate) use servers::BESIDE;
use shared::Shared;
use store::{SlowStore, Step};

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    ops::{Deref, DerefMut},
};

use lifecycle::{
    membership::Member,
    remote::{
        Event, guarantee,
        node::{self, Answer, Call, Slot, Stored},
        reconcile::needs_executor,
        wake_at,
    },
};
use model::{
    AllocId, GoDuration, IncarnationId, NodeId, RemoteOrder, RemotePolicy, RemoteReport, RemoteTask, RemoteVerdict,
    Restart, SlotKey, SlotParts,
    remote::{Guarantee, Manager},
};
use serde::Serialize;
use state::ClusterMeta;
use uuid::Uuid;

pub(crate) const SECOND: i64 = 1_000_000_000;

/// How long a node may act without hearing from the servers, and how much longer these wait.
pub(crate) const LEASE: i64 = 30 * SECOND;
pub(crate) const MARGIN: i64 = 10 * SECOND;

/// So long after its caller has given up a call may take effect, but one of a manager that is frozen in it.
pub(crate) const LATE: i64 = 2 * (LEASE + MARGIN);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Instance {
    pub(crate) slot: u32,
    pub(crate) key: IncarnationId,
    pub(crate) version: u64,
    pub(crate) alive: bool,
    pub(crate) code: i32,
    pub(crate) epoch: u64,
    /// Searches find it.
    pub(crate) shown: bool,
    /// The servers have started since it was made.
    pub(crate) older: bool,
    /// It was made by a call that nobody waited for any more.
    pub(crate) late: bool,
    /// The servers take its incarnation for ended; since when it lives so.
    pub(crate) stray: Option<i64>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Provider {
    pub(crate) instances: Vec<Instance>,
    /// Keys that may not be created (again), and since when.
    sealed: BTreeMap<IncarnationId, i64>,
    pub(crate) accepted: BTreeMap<IncarnationId, u64>,
    /// While true every call ends with "could not ask" and nothing happens.
    pub(crate) unreachable: bool,
    pub(crate) creates: u64,
    pub(crate) stops: u64,
    /// Searches and observations.
    pub(crate) looks: u64,
    pub(crate) refused_stale: u64,
    /// A refusal does not say which epoch was accepted.
    pub(crate) names_no_epoch: bool,
    /// Every create is refused as wrong.
    pub(crate) refuse_creates: bool,
}

#[derive(Clone, Debug)]
pub(crate) enum ToNode {
    Order(Box<RemoteOrder>),
    Released(SlotKey),
}

#[derive(Clone, Debug)]
pub(crate) struct Pending {
    slot: u32,
    call: Call,
    version: u64,
    /// The allocation of the order that it was sent under.
    alloc: AllocId,
    answer: Option<Answer>,
    /// When its caller has given up, or has lost the lease under which it was sent.
    since: i64,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Node {
    pub(crate) up: bool,
    pub(crate) session: bool,
    /// Its session is one of a former leader.
    pub(crate) former: bool,
    pub(crate) lease: bool,
    pub(crate) draining: bool,
    pub(crate) slots: BTreeMap<u32, Slot>,
    disk: BTreeMap<u32, Stored>,
    /// What it remembers of its servers, and the allocations that it has, on the disk too.
    member: Member,
    has: BTreeMap<AllocId, u32>,
    /// The servers recover: it is told nothing. Whether it has told them what it has.
    pub(crate) holds: bool,
    told: bool,
    /// Slots of the session's full set of orders that have not come yet.
    full_set: BTreeSet<u32>,
    /// Which start of its agent this is; whether it was refused as somebody else's or as a second one.
    instance: u32,
    refused: bool,
    /// Its directory is gone, and with it this node.
    pub(crate) dead: bool,
    /// A copy of its disk from before.
    copy: Option<Box<Copied>>,
    /// When it was heard last, while it has no session.
    heard: i64,
    inbox: VecDeque<(u64, ToNode)>,
    outbox: VecDeque<RemoteReport>,
    calls: Vec<Pending>,
    prepare: BTreeSet<u32>,
    /// Output that is being fetched, and for which allocation.
    keep: BTreeMap<u32, (IncarnationId, AllocId)>,
    /// Output on the disk.
    pub(crate) kept: BTreeSet<(AllocId, IncarnationId)>,
    retry: BTreeSet<u32>,
    watching: BTreeSet<u32>,
}

/// A copy of a node's directory.
type Copied = (BTreeMap<u32, Stored>, Member, BTreeMap<AllocId, u32>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AllocState {
    Live,
    /// Stopped by the servers, or on a lost node.
    Gone,
    Failed,
    Complete,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Alloc {
    pub(crate) id: AllocId,
    pub(crate) slot: u32,
    pub(crate) node: usize,
    pub(crate) version: u64,
    pub(crate) state: AllocState,
    /// The servers and its node know it no more.
    pub(crate) collected: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Job {
    pub(crate) version: u64,
    pub(crate) count: u32,
    pub(crate) stopped: bool,
    /// The servers know it.
    pub(crate) known: bool,
}

/// The records of all slots.
#[derive(Clone, Debug, Default)]
pub(crate) struct Records(BTreeMap<u32, RemoteTask>);

impl Deref for Records {
    type Target = BTreeMap<u32, RemoteTask>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for Records {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) cfg: Shared<Config>,
    pub(crate) left: Budget,
    pub(crate) now: i64,
    /// How far the servers' wall clock is ahead.
    pub(crate) ahead: i64,
    /// Steps that go through slots do so from the last one on.
    downwards: bool,
    pub(crate) job: Job,
    pub(crate) records: Shared<Records>,
    pub(crate) allocs: Shared<Vec<Alloc>>,
    leased: Shared<BTreeSet<usize>>,
    pub(crate) nodes: Vec<Shared<Node>>,
    pub(crate) provider: Shared<Provider>,
    /// Calls that nobody waits for any more, or that were sent a second time by what is between.
    zombies: Shared<Vec<Pending>>,
    /// Reports of sessions that have ended, which the servers have not read yet.
    stragglers: Shared<Vec<(usize, RemoteReport)>>,
    /// How many incarnations each slot has had.
    begun: Shared<BTreeMap<u32, u32>>,
    /// Incarnations that the servers have ordered to stop.
    stop_ordered: Shared<BTreeSet<IncarnationId>>,
    /// Those that have ended by themselves.
    ended_itself: Shared<BTreeSet<IncarnationId>>,
    /// Keys of which a create was called the first one.
    firsts: Shared<BTreeSet<IncarnationId>>,
    version_of: Shared<BTreeMap<IncarnationId, u64>>,
    /// Real ends per slot, to compare with what was counted.
    ends: Shared<BTreeMap<u32, u64>>,
    pub(crate) evaluations: u64,
    pub(crate) violations: Vec<Violation>,
    pub(crate) met: Met,
    pub(crate) guarantee: Shared<Guarantee>,
    /// How many allocations each slot was ever given, and the version that each was of.
    placed: Shared<BTreeMap<u32, u32>>,
    versions: Shared<BTreeMap<AllocId, u64>>,
    /// Incarnations that the servers have taken for ended, and since when; those of a lost state as well.
    confirmed: Shared<BTreeMap<IncarnationId, i64>>,
    /// Those that a person has said to be gone.
    declared: Shared<BTreeSet<IncarnationId>>,
    /// Those that were found by a list, which does not say of which version they are.
    assumed: Shared<BTreeSet<IncarnationId>>,
    /// What the last sweep has found and no record knows.
    pub(crate) unbound: Shared<BTreeMap<IncarnationId, u32>>,
    pub(crate) swept: bool,
    new_cluster: bool,
    /// Output that was ever kept, and allocations that were ever collected; in a lost state, too.
    ever_kept: Shared<BTreeSet<(AllocId, IncarnationId)>>,
    collected: Shared<BTreeSet<AllocId>>,
    /// Tombstones that have places of their own, and the slots that they are of.
    places: Shared<BTreeMap<u32, u32>>,
    /// Where the servers' state comes from, and its index.
    pub(crate) meta: Shared<ClusterMeta>,
    index: u64,
    generations: u128,
    answered: Shared<BTreeSet<usize>>,
    backup: Option<Shared<Backup>>,
    /// Further agents with the identity of a node, which has not got its session; and how many starts of agents there
    /// were.
    pub(crate) twins: Vec<(usize, Shared<Node>)>,
    instances: u32,
    /// The servers' own state, while the one of another cluster is in its place.
    foreign: Option<Shared<Backup>>,
    /// The store, while it is slow, and what the step at hand hands to it.
    slow: Option<Shared<SlowStore>>,
    step: Step,
    /// What a former leader knows, while it takes nodes in; when another server has taken over from it, 0 = never.
    former: Option<Shared<Backup>>,
    took_over: i64,
}

/// Ids name their kind in the bits from the 28th on, and their node, or their slot and a number within it, below.
const NODES: u128 = 0x1;
const INCARNATIONS: u128 = 0x9;
const ALLOCS: u128 = 0xa;

pub(crate) fn node_id(n: usize) -> NodeId {
    NodeId(Uuid::from_u128(NODES << 28 | n as u128))
}

fn node_index(id: NodeId) -> usize {
    usize::try_from(id.0.as_u128() ^ NODES << 28).expect("a node of this world")
}

/// The n-th id of a slot. Those of one slot say nothing of what happened in another.
fn id_in(kind: u128, slot: u32, n: u32) -> Uuid {
    Uuid::from_u128(kind << 28 | u128::from(slot) << 16 | u128::from(n))
}

pub(crate) fn slot_key(slot: u32) -> SlotKey {
    let task = if slot < BESIDE { "t" } else { "t#" };
    SlotParts { namespace: "default".into(), job_id: "job".into(), group: "g".into(), index: slot, task: task.into() }
        .into()
}

fn promised(cfg: &Config) -> Guarantee {
    let g = guarantee(Some(&cfg.caps()));
    match cfg.fault {
        Some(Fault::PromisesTooMuch) => Guarantee { exactly_one: true, ..g },
        Some(Fault::SaysNoLimits) => Guarantee { limits: Vec::new(), ..g },
        _ => g,
    }
}

impl World {
    pub(crate) fn new(cfg: Config) -> Self {
        crate::mutations::begin();
        let mut w = Self {
            left: cfg.budget,
            now: SECOND,
            ahead: 0,
            downwards: false,
            job: Job { version: 1, count: cfg.slots, stopped: false, known: true },
            records: Shared::default(),
            allocs: Shared::default(),
            leased: Shared::default(),
            nodes: vec![Shared::default(); cfg.nodes],
            provider: Shared::default(),
            zombies: Shared::default(),
            stragglers: Shared::default(),
            begun: Shared::default(),
            stop_ordered: Shared::default(),
            ended_itself: Shared::default(),
            firsts: Shared::default(),
            version_of: Shared::default(),
            ends: Shared::default(),
            evaluations: 0,
            violations: Vec::new(),
            met: Met::default(),
            guarantee: promised(&cfg).into(),
            placed: Shared::default(),
            versions: Shared::default(),
            confirmed: Shared::default(),
            declared: Shared::default(),
            assumed: Shared::default(),
            unbound: Shared::default(),
            swept: false,
            new_cluster: true,
            ever_kept: Shared::default(),
            collected: Shared::default(),
            places: Shared::default(),
            meta: Shared::default(),
            index: 1,
            generations: 0,
            answered: Shared::default(),
            backup: None,
            twins: Vec::new(),
            instances: 0,
            foreign: None,
            slow: None,
            step: Step::default(),
            former: None,
            took_over: 0,
            cfg: cfg.into(),
        };
        w.found_cluster();
        for n in 0..w.nodes.len() {
            w.apply(&Action::Connect(n));
        }
        w
    }

    /// A node's own clock: even ones are ahead of the servers, odd ones behind, each more than the one before.
    fn clock_of(&self, n: usize) -> i64 {
        let by = self.cfg.skew * (n as i64 + 1);
        if n.is_multiple_of(2) { self.now + by } else { self.now - by }
    }

    /// The servers' wall clock.
    pub(crate) fn wall(&self) -> i64 {
        self.now + self.ahead
    }

    pub(crate) fn alive(&self, slot: u32) -> Vec<&Instance> {
        self.provider.instances.iter().filter(|i| i.slot == slot && i.alive).collect()
    }

    pub(crate) fn live_alloc(&self, slot: u32) -> Option<&Alloc> {
        self.allocs.iter().rev().find(|a| a.slot == slot && a.state == AllocState::Live)
    }

    fn policy(&self) -> RemotePolicy {
        RemotePolicy {
            batch: self.cfg.batch,
            restart: Restart {
                attempts: Some(self.cfg.restart_attempts),
                interval: Some(GoDuration::from_secs(86_400)),
                delay: Some(GoDuration::ZERO),
                mode: Some("fail".to_owned()),
                render_templates: Some(false),
            },
            kill_signal: String::new(),
            max_run: None,
            kill_timeout: GoDuration::from_secs(5),
        }
    }

    fn wanted_by_job(&self, slot: u32) -> Result<(), String> {
        if !self.job.known || slot >= BESIDE {
            Err("no job wants it".to_owned())
        } else if self.job.stopped {
            Err("the job was stopped".to_owned())
        } else if slot >= self.job.count {
            Err("the group was scaled down".to_owned())
        } else {
            Ok(())
        }
    }

    /// Does the slot need an allocation? The scheduler's view: none is live, or it is on a draining node, or of an
    /// old version.
    pub(crate) fn needs_place(&self, slot: u32) -> bool {
        if self.wanted_by_job(slot).is_err() {
            return false;
        }
        match self.live_alloc(slot) {
            None => !self.allocs.iter().rev().find(|a| a.slot == slot).is_some_and(|a| a.state == AllocState::Complete),
            Some(a) => a.version != self.job.version || self.nodes[a.node].draining,
        }
    }

    pub(crate) fn apply(&mut self, action: &Action) {
        match *action {
            Action::Connect(n) => self.connect(n),
            Action::Disconnect(n) => {
                self.left.partitions = self.left.partitions.saturating_sub(1);
                self.disconnect(n);
            }
            Action::Lapse(n) => {
                self.now = self.now.max(self.nodes[n].heard + LEASE);
                self.nodes[n].lease = false;
                if self.has(Fault::LeaseLastsForEver) {
                    return;
                }
                // From here on a call that is under way comes late, also when the node has a lease again by then.
                let now = self.now;
                for call in self.nodes[n].calls.iter_mut().filter(|call| call.answer.is_none() && call.since == 0) {
                    call.since = now;
                }
                self.all_slots(n, &node::Event::LeaseLost);
                while let Some(i) =
                    self.nodes[n].calls.iter().position(|c| !self.cfg.frozen && c.answer.is_none() && c.call.mutates())
                {
                    self.lose_answer(n, i);
                }
            }
            Action::Expire(n) => {
                self.now = self.now.max(self.waits_until(n));
                if self.nodes[n].lease {
                    self.violation(Rule::LostAfterLease, format!("node {n} is taken for lost and has its lease"));
                }
                self.index += 1;
                self.leased.remove(&n);
                for a in self.allocs.iter_mut().filter(|a| a.node == n && a.state == AllocState::Live) {
                    a.state = AllocState::Gone;
                }
                self.reconcile_all();
            }
            Action::Crash(n) => {
                self.left.crashes = self.left.crashes.saturating_sub(1);
                self.crash(n);
            }
            Action::ToNode(n) => self.deliver(n),
            Action::ToNodeTwice(n) => {
                self.left.doubles = self.left.doubles.saturating_sub(1);
                if let Some(first) = self.nodes[n].inbox.front().cloned() {
                    self.deliver(n);
                    self.nodes[n].inbox.push_front(first);
                }
            }
            Action::ToServers(n) => match self.nodes[n].outbox.pop_front() {
                Some(report) if self.nodes[n].former => self.former_hears(n, report),
                Some(report) => self.heard(n, report),
                None => {}
            },
            Action::ToServersTwice(n) => {
                self.left.doubles = self.left.doubles.saturating_sub(1);
                if let Some(first) = self.nodes[n].outbox.front().cloned() {
                    self.heard(n, first);
                }
            }
            Action::Straggle(n) => {
                self.left.stragglers = self.left.stragglers.saturating_sub(1);
                if let Some(report) = self.nodes[n].outbox.pop_front() {
                    self.stragglers.push((n, report));
                }
                self.disconnect(n);
            }
            Action::Straggler(i) => {
                let (n, report) = self.stragglers.remove(i);
                self.heard(n, report);
            }
            Action::Execute(n, i) => {
                let pending = self.nodes[n].calls[i].clone();
                // So is what was sent under an order that has been withdrawn since, where its stop can seal nothing.
                // The node may have yet to hear of that.
                let ordered = || self.nodes[n].slots.get(&pending.slot).is_some_and(|slot| slot.order().is_some());
                let manages = || {
                    let record = self.records.get(&pending.slot).filter(|r| r.incarnation == key_of(&pending.call));
                    record.and_then(|r| r.manager).is_some_and(|m| m.node_id == node_id(n))
                };
                let late = pending.since > 0 || !(self.cfg.seal || ordered() && manages());
                let answer = self.execute(&pending, late);
                if self.has(Fault::CarriesOutTwice) && matches!(pending.call, Call::Ensure { .. }) {
                    self.zombies.push(Pending { since: self.now, ..pending });
                }
                self.nodes[n].calls[i].answer = Some(answer);
            }
            Action::ExecuteTwice(n, i) => {
                self.left.doubles = self.left.doubles.saturating_sub(1);
                let again = Pending { since: self.now, ..self.nodes[n].calls[i].clone() };
                self.apply(&Action::Execute(n, i));
                self.zombies.push(again);
            }
            Action::Answer(n, i) => {
                let pending = self.nodes[n].calls.remove(i);
                let answer = pending.answer.unwrap_or(Answer::CouldNotAsk("nothing was asked".to_owned()));
                self.feed(n, pending.slot, &node::Event::Done(answer));
            }
            Action::LetGo(n, i) => {
                let pending = self.nodes[n].calls.remove(i);
                if let Call::Ensure { incarnation, first: true, .. } = pending.call {
                    self.firsts.remove(&incarnation);
                }
                self.feed(n, pending.slot, &node::Event::Done(Answer::NotSent("let go".to_owned())));
            }
            Action::LoseAnswer(n, i) => {
                self.left.lost_replies = self.left.lost_replies.saturating_sub(1);
                self.lose_answer(n, i);
            }
            Action::Late(i) => {
                let pending = self.zombies.remove(i);
                self.execute(&pending, true);
            }
            Action::Prepared(n, slot) => {
                self.nodes[n].prepare.remove(&slot);
                self.feed(n, slot, &node::Event::Prepared);
            }
            Action::Kept(n, slot) => {
                let Some((incarnation, alloc)) = self.nodes[n].keep.remove(&slot) else { return };
                // What the provider has forgotten, or nobody will read, is not there to be kept.
                let there = self.provider.instances.iter().any(|i| i.key == incarnation);
                let elsewhere = |a: &Alloc| a.id == alloc && (a.node != n || a.collected);
                if there && !self.allocs.iter().any(elsewhere) && !self.has(Fault::KeepsNoOutput) {
                    self.nodes[n].kept.insert((alloc, incarnation));
                    self.ever_kept.insert((alloc, incarnation));
                }
                self.feed(n, slot, &node::Event::Kept { incarnation, alloc_id: alloc });
            }
            Action::Retry(n, slot) => {
                self.nodes[n].retry.remove(&slot);
                self.feed(n, slot, &node::Event::Retry);
            }
            Action::Observe(n, slot) => {
                if let Some((incarnation, sighting)) = self.observation_of(&self.nodes[n], slot) {
                    self.feed(n, slot, &node::Event::Seen { incarnation, sighting: Box::new(sighting) });
                }
            }
            Action::Place(slot, n) => self.place(slot, n),
            Action::Executor(slot, n) if needs_executor(&self.records[&slot]) => {
                self.server(slot, &Event::CapableNode { node: node_id(n), provider: "fake".to_owned() });
            }
            Action::Executor(slot, n) => {
                self.server(slot, &Event::Finisher(Manager { node_id: node_id(n), alloc_id: AllocId::NIL }));
            }
            Action::AllocEnded(slot) => {
                let failed = matches!(self.records[&slot].verdict, RemoteVerdict::Failed { .. });
                let id = self.records[&slot].alloc_id;
                if let Some(a) = self.allocs.iter_mut().find(|a| a.id == id) {
                    a.state = if failed { AllocState::Failed } else { AllocState::Complete };
                }
                self.reconcile(slot);
            }
            Action::Exit(i) => {
                self.left.exits = self.left.exits.saturating_sub(1);
                let key = self.provider.instances[i].key;
                self.ended_itself.insert(key);
                self.exit(i, 3);
            }
            Action::Drain(n) => {
                self.left.drains = self.left.drains.saturating_sub(1);
                self.nodes[n].draining = true;
                self.spoil_drain(n);
                self.reconcile_all();
            }
            Action::ForceDrain(n) => {
                for slot in self.in_order(self.records.keys().copied()) {
                    self.server(slot, &Event::Drain { node: node_id(n), force: true });
                }
                for a in self.allocs.iter_mut().filter(|a| a.node == n && a.state == AllocState::Live) {
                    a.state = AllocState::Gone;
                }
                self.reconcile_all();
            }
            Action::Collect(slot) => {
                self.left.collects = self.left.collects.saturating_sub(1);
                for a in self.allocs.iter_mut().filter(|a| a.slot == slot && a.state != AllocState::Live) {
                    a.collected = true;
                    self.collected.insert(a.id);
                    self.nodes[a.node].kept.retain(|(alloc, _)| *alloc != a.id);
                    self.nodes[a.node].has.remove(&a.id);
                }
                self.reconcile(slot);
            }
            Action::StopJob => {
                self.left.stops = self.left.stops.saturating_sub(1);
                self.job.stopped = true;
                self.stop_allocs();
            }
            Action::ScaleDown => {
                self.left.stops = self.left.stops.saturating_sub(1);
                self.job.count -= 1;
                self.stop_allocs();
            }
            Action::UpdateJob => {
                self.left.updates = self.left.updates.saturating_sub(1);
                self.job.version += 1;
            }
            Action::RestartOrder(slot) => {
                self.left.restarts = self.left.restarts.saturating_sub(1);
                self.server(slot, &Event::Restart { why: "a person asks".to_owned() });
            }
            Action::Unhealthy(n, slot) => {
                self.left.unhealthy = self.left.unhealthy.saturating_sub(1);
                if let Some(incarnation) = self.nodes[n].slots.get(&slot).and_then(Slot::order).map(|o| o.incarnation) {
                    self.feed(n, slot, &node::Event::Unhealthy { incarnation, why: "its check fails".to_owned() });
                }
            }
            Action::Outage => {
                self.left.outages = self.left.outages.saturating_sub(1);
                self.provider.unreachable = true;
            }
            Action::Recover => self.provider.unreachable = false,
            Action::Tick(slot) => {
                let due = self.records.get(&slot).and_then(wake_at).unwrap_or(0);
                self.now += (due - self.wall()).max(0);
                self.server(slot, &Event::Tick);
            }
            Action::Show(i) => self.provider.instances[i].shown = true,
            Action::Forget(i) => {
                self.left.forgets = self.left.forgets.saturating_sub(1);
                let forgotten = self.provider.instances.remove(i);
                self.provider.accepted.remove(&forgotten.key);
            }
            Action::ClockStep(by) => {
                self.left.clock_steps = self.left.clock_steps.saturating_sub(1);
                self.ahead += by;
            }
            Action::Downwards(ref action) => {
                self.downwards = true;
                self.apply(action);
                self.downwards = false;
                return;
            }
            Action::Wait => {
                self.left.waits = self.left.waits.saturating_sub(1);
                self.now += LATE + SECOND;
                // What nobody is frozen in has taken effect or never will.
                if !self.has(Fault::CarriesOutLater) {
                    self.zombies.clear();
                }
            }
            Action::DeclareGone(slot) => {
                self.left.gones = self.left.gones.saturating_sub(1);
                self.declared.extend(self.records.get(&slot).map(|r| r.incarnation));
                // It counts as an end, whatever there is.
                *self.ends.entry(slot).or_default() += 1;
                self.server(slot, &Event::DeclareGone { why: "a person says so".to_owned() });
            }
            Action::Sweep => self.sweep_provider(),
            Action::StopUnbound(key) => self.stop_unbound(key),
            Action::RestartServers => {
                self.left.server_restarts = self.left.server_restarts.saturating_sub(1);
                self.restart_servers();
            }
            Action::BackUp => self.back_up(),
            Action::Restore => {
                self.left.restores = self.left.restores.saturating_sub(1);
                self.restore();
            }
            Action::Empty => {
                self.left.empties = self.left.empties.saturating_sub(1);
                self.empty();
            }
            Action::Swap => {
                self.left.swaps = self.left.swaps.saturating_sub(1);
                self.swap();
            }
            Action::SwapBack => self.swap_back(),
            Action::Slow => {
                self.left.slow = self.left.slow.saturating_sub(1);
                self.slow_down();
            }
            Action::Durable => self.becomes_durable(),
            Action::TakeOver(made) => {
                self.left.take_overs = self.left.take_overs.saturating_sub(1);
                self.take_over_with(made);
            }
            Action::TakeOverPast(knows) => {
                self.left.take_overs = self.left.take_overs.saturating_sub(1);
                self.left.restores = self.left.restores.saturating_sub(1);
                self.take_over_from_the_past(knows);
            }
            Action::LeaveFormer(n) => self.disconnect(n),
            Action::ConnectFormer(n) => {
                self.left.formers = self.left.formers.saturating_sub(1);
                self.connect_to_former(n);
            }
            Action::FormerEnds => self.former = None,
            Action::Tell(n) => self.tell(n),
            Action::EndRecovery => self.end_recovery(),
            Action::Excuse(n) => {
                self.leased.remove(&n);
            }
            Action::EmptyNode(n) => {
                self.left.node_resets = self.left.node_resets.saturating_sub(1);
                self.empty_node(n);
            }
            Action::CopyDisk(n) => self.copy_disk(n),
            Action::StartTwin(n) => {
                self.left.twins = self.left.twins.saturating_sub(1);
                self.start_twin(n);
            }
            Action::Twin(i, ref action) => self.of_twin(i, action),
            Action::OldNode(n) => {
                self.left.node_olds = self.left.node_olds.saturating_sub(1);
                self.old_node(n);
            }
        }
        self.hand_to_store();
        self.check();
    }

    pub(crate) fn disconnect(&mut self, n: usize) {
        let now = self.now;
        let node = &mut *self.nodes[n];
        if std::mem::replace(&mut node.session, false) {
            node.heard = now;
        }
        (node.former, node.holds, node.told) = (false, false, false);
        node.full_set.clear();
        node.inbox.clear();
        node.outbox.clear();
    }

    pub(crate) fn crash(&mut self, n: usize) {
        self.disconnect(n);
        let before = std::mem::take(&mut *self.nodes[n]);
        let Node { disk, kept, member, has, copy, draining, heard, dead, calls, .. } = before;
        if self.cfg.late_calls {
            let under_way = calls.into_iter().filter(|c| c.answer.is_none() && c.call.mutates());
            self.zombies.extend(under_way.map(|c| Pending { since: self.now, ..c }));
        }
        let instance = self.new_instance();
        *self.nodes[n] = Node { disk, kept, member, has, copy, draining, heard, dead, instance, ..Node::default() };
    }

    fn stop_allocs(&mut self) {
        for slot in self.in_order(0..self.cfg.slots) {
            if self.wanted_by_job(slot).is_err() {
                for a in self.allocs.iter_mut().filter(|a| a.slot == slot && a.state == AllocState::Live) {
                    a.state = AllocState::Gone;
                }
            }
            self.reconcile(slot);
        }
    }

    pub(crate) fn place(&mut self, slot: u32, n: usize) {
        for a in self.allocs.iter_mut().filter(|a| a.slot == slot && a.state == AllocState::Live) {
            a.state = AllocState::Gone;
        }
        self.index += 1;
        let placed = self.placed.entry(slot).or_default();
        *placed += 1;
        let (id, version) = (AllocId(id_in(ALLOCS, slot, *placed)), self.job.version);
        self.versions.insert(id, version);
        self.allocs.push(Alloc { id, slot, node: n, version, state: AllocState::Live, collected: false });
        self.reconcile(slot);
    }

    /// Slots as this step goes through them.
    fn in_order(&self, slots: impl Iterator<Item = u32>) -> Vec<u32> {
        let mut slots: Vec<u32> = slots.collect();
        if self.downwards {
            slots.reverse();
        }
        slots
    }

    /// A report comes to the servers.
    fn heard(&mut self, n: usize, report: RemoteReport) {
        let slot = report.slot.index;
        self.server(slot, &Event::Report { from: node_id(n), report: Box::new(report) });
        self.reconcile(slot);
    }

    fn reconcile_all(&mut self) {
        for slot in self.in_order(0..self.cfg.slots) {
            self.reconcile(slot);
        }
        for slot in self.records.keys().copied().filter(|slot| *slot >= self.cfg.slots).collect::<Vec<_>>() {
            self.reconcile(slot);
        }
    }
}

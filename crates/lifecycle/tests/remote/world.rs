//! A small cluster: servers that follow `remote::transition`, nodes that follow `remote::node::transition`, and a
//! fake provider. Everything that may happen next is an [`Action`]; every invariant is checked as actions are
//! applied.

mod action;
mod checks;
mod drive;
mod enabled;
mod fault;
mod provider;
mod recovery;
mod rules;
mod servers;
mod twins;

pub(crate) use action::Action;
pub(crate) use fault::Fault;
use recovery::Backup;
pub(crate) use rules::{Rule, Violation};
pub(crate) use servers::BESIDE;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use lifecycle::{
    membership::Member,
    remote::{
        Event, guarantee,
        node::{self, Answer, Call, Slot, Stored},
        wake_at,
    },
};
use model::{
    AllocId, GoDuration, IncarnationId, NodeId, RemoteOrder, RemotePolicy, RemoteReport, RemoteTask, RemoteVerdict, Restart, SlotKey,
    SlotParts,
    node::RemoteProvider,
    remote::{Guarantee, RemoteRole},
};
use state::ClusterMeta;
use uuid::Uuid;

pub(crate) const SECOND: i64 = 1_000_000_000;

/// How long a node may act without hearing from the servers, and how much longer these wait.
pub(crate) const LEASE: i64 = 30 * SECOND;
pub(crate) const MARGIN: i64 = 10 * SECOND;

/// So long after its caller has given up a call may take effect, but one of a manager that is frozen in it.
pub(crate) const LATE: i64 = 2 * (LEASE + MARGIN);

/// What the fake provider can do, and how bad the world is.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) nodes: usize,
    pub(crate) slots: u32,
    pub(crate) keyed: bool,
    pub(crate) find: bool,
    pub(crate) seal: bool,
    /// Calls under an epoch older than one that was accepted are refused.
    pub(crate) fenced: bool,
    /// A search does not show at once what was created.
    pub(crate) stale: bool,
    /// The driver knows the plain protocol only: an instance is found again by its handle.
    pub(crate) plain: bool,
    /// A manager may be frozen in a call beyond its lease. Otherwise its lease bounds the call.
    pub(crate) frozen: bool,
    /// A call whose caller has given up (crash, timeout) may still take effect at any later time.
    pub(crate) late_calls: bool,
    pub(crate) batch: bool,
    pub(crate) restart_attempts: i32,
    /// How many allocations the scheduler may place in all: what keeps the state space finite.
    pub(crate) placements: usize,
    /// How wrong clocks are, in nanoseconds: see [`World::clock_of`].
    pub(crate) skew: i64,
    pub(crate) budget: Budget,
    /// Something is done wrong.
    pub(crate) fault: Option<Fault>,
    /// After so many steps without faults a world is not expected to become quiet.
    pub(crate) steps: usize,
}

/// How often each thing may go wrong or be asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Budget {
    pub(crate) crashes: u32,
    pub(crate) partitions: u32,
    pub(crate) lost_replies: u32,
    pub(crate) exits: u32,
    pub(crate) drains: u32,
    pub(crate) stops: u32,
    pub(crate) updates: u32,
    pub(crate) restarts: u32,
    pub(crate) outages: u32,
    pub(crate) unhealthy: u32,
    pub(crate) collects: u32,
    pub(crate) gones: u32,
    pub(crate) waits: u32,
    pub(crate) server_restarts: u32,
    pub(crate) restores: u32,
    pub(crate) empties: u32,
    pub(crate) swaps: u32,
    pub(crate) node_resets: u32,
    pub(crate) node_olds: u32,
    pub(crate) twins: u32,
}

/// What a world has met, so that one that meets nothing is noticed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Met {
    /// Calls of replaced managers that took effect.
    pub(crate) stale_taken: u64,
    /// Instances that live although the servers take their incarnation for ended, and the longest time from that
    /// belief to their appearance.
    pub(crate) strays: u64,
    pub(crate) latest: i64,
    /// Steps with two live instances in a slot.
    pub(crate) doubled: u64,
    /// Incarnations that were not begun because of what a sweep has found, or has not looked for.
    pub(crate) held: u64,
    /// Slots that wait for a person in the end.
    pub(crate) waits_for_a_person: u64,
    pub(crate) restores: u64,
    pub(crate) recoveries: u64,
    pub(crate) ended: u64,
    pub(crate) taken_over: u64,
    pub(crate) refused_in_recovery: u64,
    /// Creates that were under way when the state was lost that knew of them, and came afterwards.
    pub(crate) lost: u64,
    /// Second agents of a node that were refused, and those that have got the session when the first one had none.
    pub(crate) rivals: u64,
    pub(crate) displaced: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            nodes: 2,
            slots: 1,
            keyed: true,
            find: true,
            seal: true,
            fenced: true,
            stale: false,
            plain: false,
            frozen: true,
            late_calls: true,
            batch: false,
            restart_attempts: 3,
            placements: usize::MAX,
            skew: 0,
            budget: Budget::default(),
            fault: None,
            steps: 20_000,
        }
    }
}

impl Config {
    pub(crate) fn caps(&self) -> RemoteProvider {
        RemoteProvider {
            plain_protocol: self.plain,
            provider: "fake".to_owned(),
            keyed_create: self.keyed,
            find: self.find,
            list: self.find,
            conditional_writes: self.fenced,
            retained_exit_results: true,
            seal: self.seal,
            ..RemoteProvider::default()
        }
    }
}

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

#[derive(Clone, Debug)]
pub(crate) struct Alloc {
    pub(crate) id: AllocId,
    pub(crate) slot: u32,
    pub(crate) node: usize,
    pub(crate) version: u64,
    pub(crate) state: AllocState,
    /// The servers and its node know it no more.
    pub(crate) collected: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) version: u64,
    pub(crate) count: u32,
    pub(crate) stopped: bool,
    /// The servers know it.
    pub(crate) known: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) cfg: Config,
    pub(crate) left: Budget,
    pub(crate) now: i64,
    pub(crate) job: Job,
    pub(crate) records: BTreeMap<u32, RemoteTask>,
    pub(crate) allocs: Vec<Alloc>,
    leased: BTreeSet<usize>,
    pub(crate) nodes: Vec<Node>,
    pub(crate) provider: Provider,
    zombies: Vec<Pending>,
    next_incarnation: u128,
    /// Incarnations that the servers have ordered to stop.
    stop_ordered: BTreeSet<IncarnationId>,
    /// Keys of which a create was called the first one.
    firsts: BTreeSet<IncarnationId>,
    version_of: BTreeMap<IncarnationId, u64>,
    /// Real ends per slot, to compare with what was counted.
    ends: BTreeMap<u32, u64>,
    pub(crate) evaluations: u64,
    pub(crate) violations: Vec<Violation>,
    pub(crate) met: Met,
    pub(crate) guarantee: Guarantee,
    /// Allocations that were ever placed, and the version that each was of.
    placed: usize,
    versions: BTreeMap<AllocId, u64>,
    /// Incarnations that the servers have taken for ended, and since when; those of a lost state as well.
    confirmed: BTreeMap<IncarnationId, i64>,
    /// Those that a person has said to be gone.
    declared: BTreeSet<IncarnationId>,
    /// Those that were found by a list, which does not say of which version they are.
    assumed: BTreeSet<IncarnationId>,
    /// What the last sweep has found and no record knows.
    pub(crate) unbound: BTreeMap<IncarnationId, u32>,
    pub(crate) swept: bool,
    new_cluster: bool,
    /// Output that was ever kept, and allocations that were ever collected; in a lost state, too.
    ever_kept: BTreeSet<(AllocId, IncarnationId)>,
    collected: BTreeSet<AllocId>,
    /// Tombstones that have places of their own, and the slots that they are of.
    places: BTreeMap<u32, u32>,
    /// Where the servers' state comes from, and its index.
    pub(crate) meta: ClusterMeta,
    index: u64,
    generations: u128,
    answered: BTreeSet<usize>,
    backup: Option<Box<Backup>>,
    /// Further agents with the identity of a node, which has not got its session; and how many starts of agents there
    /// were.
    pub(crate) twins: Vec<(usize, Node)>,
    instances: u32,
    /// The servers' own state, while the one of another cluster is in its place.
    foreign: Option<Box<Backup>>,
}

pub(crate) fn node_id(n: usize) -> NodeId {
    NodeId(Uuid::from_u128(0x1000 + n as u128))
}

fn node_index(id: NodeId) -> usize {
    usize::try_from(id.0.as_u128() - 0x1000).expect("a node of this world")
}

pub(crate) fn slot_key(slot: u32) -> SlotKey {
    let task = if slot < BESIDE { "t" } else { "t#" };
    SlotParts { namespace: "default".into(), job_id: "job".into(), group: "g".into(), index: slot, task: task.into() }.into()
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
        let mut w = Self {
            left: cfg.budget,
            now: SECOND,
            job: Job { version: 1, count: cfg.slots, stopped: false, known: true },
            records: BTreeMap::new(),
            allocs: Vec::new(),
            leased: BTreeSet::new(),
            nodes: vec![Node::default(); cfg.nodes],
            provider: Provider::default(),
            zombies: Vec::new(),
            next_incarnation: 1,
            stop_ordered: BTreeSet::new(),
            firsts: BTreeSet::new(),
            version_of: BTreeMap::new(),
            ends: BTreeMap::new(),
            evaluations: 0,
            violations: Vec::new(),
            met: Met::default(),
            guarantee: promised(&cfg),
            placed: 0,
            versions: BTreeMap::new(),
            confirmed: BTreeMap::new(),
            declared: BTreeSet::new(),
            assumed: BTreeSet::new(),
            unbound: BTreeMap::new(),
            swept: false,
            new_cluster: true,
            ever_kept: BTreeSet::new(),
            collected: BTreeSet::new(),
            places: BTreeMap::new(),
            meta: ClusterMeta::default(),
            index: 1,
            generations: 0,
            answered: BTreeSet::new(),
            backup: None,
            twins: Vec::new(),
            instances: 0,
            foreign: None,
            cfg,
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
                while let Some(i) = self.nodes[n].calls.iter().position(|c| !self.cfg.frozen && c.answer.is_none() && c.call.mutates()) {
                    self.lose_answer(n, i);
                }
            }
            Action::Expire(n) => {
                self.now = self.now.max(self.nodes[n].heard + LEASE + MARGIN);
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
            Action::ToServers(n) => {
                if let Some(report) = self.nodes[n].outbox.pop_front() {
                    let slot = report.slot.index;
                    self.server(slot, &Event::Report { from: node_id(n), report: Box::new(report) });
                    self.reconcile(slot);
                }
            }
            Action::Execute(n, i) => {
                let pending = self.nodes[n].calls[i].clone();
                // So is what was sent under an order that has been withdrawn since, where its stop can seal nothing.
                let ordered = || self.nodes[n].slots.get(&pending.slot).is_some_and(|slot| slot.order().is_some());
                let late = pending.since > 0 || (!self.cfg.seal && !ordered());
                let answer = self.execute(&pending, late);
                if self.has(Fault::CarriesOutTwice) && matches!(pending.call, Call::Ensure { .. }) {
                    self.zombies.push(Pending { since: self.now, ..pending });
                }
                self.nodes[n].calls[i].answer = Some(answer);
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
            Action::Executor(slot, n) => {
                self.server(slot, &Event::CapableNode { node: node_id(n), provider: "fake".to_owned() });
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
                self.exit(i, 3);
            }
            Action::Drain(n) => {
                self.left.drains = self.left.drains.saturating_sub(1);
                self.nodes[n].draining = true;
                self.spoil_drain(n);
                self.reconcile_all();
            }
            Action::ForceDrain(n) => {
                for slot in self.records.keys().copied().collect::<Vec<_>>() {
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
                self.now = self.now.max(self.records.get(&slot).and_then(wake_at).unwrap_or(0));
                self.server(slot, &Event::Tick);
            }
            Action::Show(i) => self.provider.instances[i].shown = true,
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
        self.check();
    }

    /// The caller has given up; the call may take effect still.
    fn lose_answer(&mut self, n: usize, i: usize) {
        let pending = self.nodes[n].calls.remove(i);
        let slot = pending.slot;
        if pending.answer.is_none() && pending.call.mutates() && self.cfg.late_calls {
            self.zombies.push(Pending { since: self.now, ..pending });
        }
        self.feed(n, slot, &node::Event::Done(Answer::CouldNotAsk("reply lost".to_owned())));
    }

    /// The next message comes to the node, which remembers what it acts on before it does.
    fn deliver(&mut self, n: usize) {
        let Some((index, message)) = self.nodes[n].inbox.pop_front() else { return };
        let node = &mut self.nodes[n];
        node.member.acts_on(index);
        match message {
            ToNode::Order(order) => {
                let slot = order.slot.index;
                node.has.retain(|_, of| *of != slot);
                if matches!(order.role, RemoteRole::Manage | RemoteRole::Observe) && !self.collected.contains(&order.alloc_id) {
                    node.has.insert(order.alloc_id, slot);
                }
                if node.full_set.remove(&slot) {
                    self.slot_of(n, slot).doubt_store();
                }
                self.feed(n, slot, &node::Event::Order(order));
            }
            ToNode::Released(key) => {
                node.has.retain(|_, of| *of != key.index);
                self.feed(n, key.index, &node::Event::Released);
            }
        }
    }

    pub(crate) fn disconnect(&mut self, n: usize) {
        let now = self.now;
        let node = &mut self.nodes[n];
        if std::mem::replace(&mut node.session, false) {
            node.heard = now;
        }
        (node.holds, node.told) = (false, false);
        node.full_set.clear();
        node.inbox.clear();
        node.outbox.clear();
    }

    pub(crate) fn crash(&mut self, n: usize) {
        self.disconnect(n);
        let before = std::mem::take(&mut self.nodes[n]);
        let Node { disk, kept, member, has, copy, draining, heard, dead, calls, .. } = before;
        if self.cfg.late_calls {
            let under_way = calls.into_iter().filter(|c| c.answer.is_none() && c.call.mutates());
            self.zombies.extend(under_way.map(|c| Pending { since: self.now, ..c }));
        }
        let instance = self.new_instance();
        self.nodes[n] = Node { disk, kept, member, has, copy, draining, heard, dead, instance, ..Node::default() };
    }

    fn stop_allocs(&mut self) {
        for slot in 0..self.cfg.slots {
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
        self.placed += 1;
        self.index += 1;
        let id = AllocId(Uuid::from_u128(self.placed as u128));
        self.versions.insert(id, self.job.version);
        self.allocs.push(Alloc { id, slot, node: n, version: self.job.version, state: AllocState::Live, collected: false });
        self.reconcile(slot);
    }

    fn reconcile_all(&mut self) {
        for slot in 0..self.cfg.slots {
            self.reconcile(slot);
        }
        for slot in self.records.keys().copied().filter(|slot| *slot >= self.cfg.slots).collect::<Vec<_>>() {
            self.reconcile(slot);
        }
    }

    fn all_slots(&mut self, n: usize, event: &node::Event) {
        for slot in self.nodes[n].slots.keys().copied().collect::<Vec<_>>() {
            self.feed(n, slot, event);
        }
    }

    /// The slot as the node has it, which may be what its disk has of it.
    fn slot_of(&mut self, n: usize, slot: u32) -> &mut Slot {
        if !self.nodes[n].slots.contains_key(&slot) {
            let mut restored = Slot::restore(&self.nodes[n].disk.get(&slot).cloned().unwrap_or_default());
            if self.nodes[n].lease {
                restored = node::transition(&slot_key(slot), &restored, &node::Event::LeaseHeld, &self.cfg.caps(), self.clock_of(n)).slot;
            }
            self.nodes[n].slots.insert(slot, restored);
        }
        self.nodes[n].slots.get_mut(&slot).expect("it is there now")
    }

    fn feed(&mut self, n: usize, slot: u32, event: &node::Event) {
        let before = self.slot_of(n, slot).clone();
        let mut step = node::transition(&slot_key(slot), &before, event, &self.cfg.caps(), self.clock_of(n));
        self.spoil_node(&mut step);
        let may_mutate = step.slot.may_mutate() && self.nodes[n].lease;
        let order = step.slot.order().cloned();
        self.nodes[n].slots.insert(slot, step.slot);
        for effect in step.effects {
            match effect {
                node::Effect::Persist => {
                    let stored = self.nodes[n].slots[&slot].stored();
                    self.nodes[n].disk.insert(slot, stored);
                }
                node::Effect::Prepare => {
                    self.nodes[n].prepare.insert(slot);
                }
                node::Effect::Call(call) => {
                    if call.mutates() && !may_mutate {
                        self.violation(
                            Rule::LeaseBeforeChange,
                            format!("rule 3: node {n} sends {call:?} without a lease and a confirmed order"),
                        );
                    }
                    if let Call::Ensure { incarnation, first: true, .. } = &call
                        && !self.firsts.insert(*incarnation)
                    {
                        self.violation(Rule::OneIsTheFirst, format!("two creates of {} are called the first one", incarnation.short()));
                    }
                    if self.nodes[n].calls.iter().any(|c| c.slot == slot) {
                        self.violation(Rule::OneCall, format!("node {n} has two calls of slot {slot} under way"));
                    }
                    let alloc = order.as_ref().map(|o| o.alloc_id).unwrap_or_default();
                    let version = self.versions.get(&alloc).copied().unwrap_or_default();
                    self.nodes[n].calls.push(Pending { slot, call, version, alloc, answer: None, since: 0 });
                }
                node::Effect::Keep { incarnation, alloc_id, .. } => {
                    self.nodes[n].keep.insert(slot, (incarnation, alloc_id));
                }
                node::Effect::Watch(_) => {
                    self.nodes[n].watching.insert(slot);
                }
                node::Effect::Report(report) => {
                    // What it says of slots waits for the session after the recovery.
                    if self.nodes[n].session && !self.nodes[n].holds {
                        self.nodes[n].outbox.push_back(*report);
                    }
                }
                node::Effect::LetGo => {
                    self.nodes[n].watching.remove(&slot);
                    self.nodes[n].retry.remove(&slot);
                    self.nodes[n].prepare.remove(&slot);
                    self.nodes[n].keep.remove(&slot);
                }
                node::Effect::RetryLater => {
                    self.nodes[n].retry.insert(slot);
                }
            }
        }
    }
}

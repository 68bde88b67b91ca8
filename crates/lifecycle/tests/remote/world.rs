//! A small cluster: servers that follow `remote::transition`, nodes that follow `remote::node::transition`, and a fake provider. Everything
//! that may happen next is an [`Action`]; every invariant is checked as actions are applied.

mod action;
mod drive;
mod provider;

pub(crate) use action::Action;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use lifecycle::remote::{
    Context, Effect, Event,
    node::{self, Answer, Call, Slot, Stored},
    order_for_node,
    reconcile::{SlotFacts, events_for, needs_executor},
    transition, wake_at,
};
use model::{
    AllocId, DesiredRemote, GoDuration, IncarnationId, NodeId, RemoteOrder, RemotePolicy, RemoteReport, RemoteTask, RemoteVerdict,
    RemoteWanted, Restart, SlotKey, SlotParts, node::RemoteProvider, remote::Manager,
};
use uuid::Uuid;

pub(crate) const SECOND: i64 = 1_000_000_000;

/// What the fake provider can do, and how bad the world is.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) nodes: usize,
    pub(crate) slots: u32,
    pub(crate) keyed: bool,
    pub(crate) find: bool,
    pub(crate) seal: bool,
    /// A call whose caller has given up (crash, timeout) may still take effect at any later time.
    pub(crate) late_calls: bool,
    pub(crate) batch: bool,
    pub(crate) restart_attempts: i32,
    /// How many allocations the scheduler may place in all: what keeps the state space finite.
    pub(crate) placements: usize,
    /// How wrong clocks are, in nanoseconds: see [`World::clock_of`].
    pub(crate) skew: i64,
    pub(crate) budget: Budget,
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
}

impl Default for Config {
    fn default() -> Self {
        Self {
            nodes: 2,
            slots: 1,
            keyed: true,
            find: true,
            seal: true,
            late_calls: true,
            batch: false,
            restart_attempts: 3,
            placements: usize::MAX,
            skew: 0,
            budget: Budget::default(),
        }
    }
}

impl Config {
    pub(crate) fn caps(&self) -> RemoteProvider {
        RemoteProvider {
            provider: "fake".to_owned(),
            keyed_create: self.keyed,
            find: self.find,
            list: self.find,
            conditional_writes: true,
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
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Provider {
    pub(crate) instances: Vec<Instance>,
    /// Keys that may never be created (again).
    sealed: BTreeSet<IncarnationId>,
    pub(crate) accepted: BTreeMap<IncarnationId, u64>,
    /// While true every call ends with "could not ask" and nothing happens.
    pub(crate) unreachable: bool,
    pub(crate) creates: u64,
    pub(crate) stops: u64,
    pub(crate) refused_stale: u64,
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
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Node {
    pub(crate) up: bool,
    pub(crate) session: bool,
    pub(crate) lease: bool,
    pub(crate) draining: bool,
    pub(crate) slots: BTreeMap<u32, Slot>,
    disk: BTreeMap<u32, Stored>,
    inbox: VecDeque<ToNode>,
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
    pub(crate) violations: Vec<String>,
}

pub(crate) fn node_id(n: usize) -> NodeId {
    NodeId(Uuid::from_u128(0x1000 + n as u128))
}

fn node_index(id: NodeId) -> usize {
    usize::try_from(id.0.as_u128() - 0x1000).expect("a node of this world")
}

pub(crate) fn slot_key(slot: u32) -> SlotKey {
    SlotParts { namespace: "default".into(), job_id: "job".into(), group: "g".into(), index: slot, task: "t".into() }.into()
}

impl World {
    pub(crate) fn new(cfg: Config) -> Self {
        let mut w = Self {
            left: cfg.budget,
            now: SECOND,
            job: Job { version: 1, count: cfg.slots, stopped: false },
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
            cfg,
        };
        for n in 0..w.nodes.len() {
            w.apply(&Action::Connect(n));
        }
        w
    }

    /// Equal texts mean equal futures; what is only told to people is left out.
    pub(crate) fn fingerprint(&self) -> String {
        let records: Vec<_> = self
            .records
            .values()
            .map(|r| {
                let mut r = r.clone();
                r.history.clear();
                r.handovers = 0;
                r
            })
            .collect();
        format!(
            "{:?}{:?}{:?}{:?}{:?}{:?}{:?}{:?}{:?}{:?}",
            self.left,
            self.provider.unreachable,
            self.job,
            records,
            self.allocs.iter().map(|a| (a.state, a.collected, (a.state == AllocState::Live).then_some(a))).collect::<Vec<_>>(),
            self.leased,
            self.nodes,
            self.provider.instances,
            self.provider.sealed,
            self.zombies
        )
    }

    /// A node's own clock: even ones are ahead of the servers, odd ones behind, each more than the one before.
    fn clock_of(&self, n: usize) -> i64 {
        let by = self.cfg.skew * (n as i64 + 1);
        if n.is_multiple_of(2) { self.now + by } else { self.now - by }
    }

    fn violation(&mut self, text: String) {
        self.violations.push(text);
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
        if self.job.stopped {
            Err("the job was stopped".to_owned())
        } else if slot >= self.job.count {
            Err("the group was scaled down".to_owned())
        } else {
            Ok(())
        }
    }

    /// Does the slot need an allocation? The scheduler's view: none is live, or it is on a draining node, or of an old version.
    pub(crate) fn needs_place(&self, slot: u32) -> bool {
        if self.wanted_by_job(slot).is_err() {
            return false;
        }
        match self.live_alloc(slot) {
            None => !self.allocs.iter().rev().find(|a| a.slot == slot).is_some_and(|a| a.state == AllocState::Complete),
            Some(a) => a.version != self.job.version || self.nodes[a.node].draining,
        }
    }

    pub(crate) fn enabled(&self) -> Vec<Action> {
        let mut out = Vec::new();
        let left = self.left;
        for (n, node) in self.nodes.iter().enumerate() {
            if !node.session {
                out.push(Action::Connect(n));
                if node.lease {
                    out.push(Action::Lapse(n));
                } else if self.leased.contains(&n) {
                    out.push(Action::Expire(n));
                }
            } else {
                if left.partitions > 0 {
                    out.push(Action::Disconnect(n));
                }
                if left.drains > 0 && !node.draining {
                    out.push(Action::Drain(n));
                }
            }
            if node.up && left.crashes > 0 {
                out.push(Action::Crash(n));
            }
            if node.draining && self.records.values().any(|r| r.manager.is_some_and(|m| m.node_id == node_id(n))) {
                out.push(Action::ForceDrain(n));
            }
            if !node.inbox.is_empty() {
                out.push(Action::ToNode(n));
            }
            if !node.outbox.is_empty() {
                out.push(Action::ToServers(n));
            }
            for (i, call) in node.calls.iter().enumerate() {
                match &call.answer {
                    None => out.push(Action::Execute(n, i)),
                    Some(_) => out.push(Action::Answer(n, i)),
                }
                let waits = call.answer.is_none() && matches!(call.call, Call::Ensure { .. });
                if waits && !node.slots.get(&call.slot).is_some_and(Slot::wants_create) {
                    out.push(Action::LetGo(n, i));
                }
                if left.lost_replies > 0 {
                    out.push(Action::LoseAnswer(n, i));
                }
            }
            out.extend(node.prepare.iter().map(|s| Action::Prepared(n, *s)));
            out.extend(node.keep.keys().map(|s| Action::Kept(n, *s)));
            out.extend(node.retry.iter().map(|s| Action::Retry(n, *s)));
            if left.unhealthy > 0 {
                out.extend(node.slots.iter().filter(|(_, s)| s.order().is_some()).map(|(s, _)| Action::Unhealthy(n, *s)));
            }
            out.extend(node.watching.iter().filter(|s| self.observation_for(n, **s).is_some()).map(|s| Action::Observe(n, *s)));
        }
        out.extend((0..self.zombies.len()).map(Action::Late));
        for slot in 0..self.cfg.slots {
            if self.needs_place(slot) && self.allocs.len() < self.cfg.placements {
                let ok = |n: &usize| self.leased.contains(n) && self.nodes[*n].session && !self.nodes[*n].draining;
                out.extend((0..self.nodes.len()).filter(ok).map(|n| Action::Place(slot, n)));
            }
            if let Some(r) = self.records.get(&slot) {
                if needs_executor(r) {
                    out.extend(
                        (0..self.nodes.len())
                            .filter(|n| self.nodes[*n].session && !self.nodes[*n].draining)
                            .map(|n| Action::Executor(slot, n)),
                    );
                }
                if matches!(r.verdict, RemoteVerdict::Complete | RemoteVerdict::Failed { .. })
                    && self.live_alloc(slot).is_some_and(|a| a.id == r.alloc_id && r.manager.is_some_and(|m| m.alloc_id == a.id))
                {
                    out.push(Action::AllocEnded(slot));
                }
                if wake_at(r).is_some() {
                    out.push(Action::Tick(slot));
                }
                if left.restarts > 0 {
                    out.push(Action::RestartOrder(slot));
                }
            }
        }
        if self.provider.unreachable {
            out.push(Action::Recover);
        } else if left.outages > 0 {
            out.push(Action::Outage);
        }
        if left.exits > 0 {
            out.extend((0..self.provider.instances.len()).filter(|i| self.provider.instances[*i].alive).map(Action::Exit));
        }
        if left.collects > 0 {
            let ended = |a: &&Alloc| a.state != AllocState::Live && !a.collected;
            out.extend(self.allocs.iter().filter(ended).map(|a| Action::Collect(a.slot)));
        }
        if left.stops > 0 && !self.job.stopped {
            out.push(Action::StopJob);
            if self.job.count > 1 {
                out.push(Action::ScaleDown);
            }
        }
        if left.updates > 0 && !self.job.stopped {
            out.push(Action::UpdateJob);
        }
        out
    }

    pub(crate) fn apply(&mut self, action: &Action) {
        match *action {
            Action::Connect(n) => self.connect(n),
            Action::Disconnect(n) => {
                self.left.partitions = self.left.partitions.saturating_sub(1);
                self.disconnect(n);
            }
            Action::Lapse(n) => {
                self.nodes[n].lease = false;
                self.all_slots(n, &node::Event::LeaseLost);
            }
            Action::Expire(n) => {
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
            Action::ToNode(n) => match self.nodes[n].inbox.pop_front() {
                Some(ToNode::Order(order)) => {
                    let slot = order.slot.index;
                    self.feed(n, slot, &node::Event::Order(order));
                }
                Some(ToNode::Released(key)) => self.feed(n, key.index, &node::Event::Released),
                None => {}
            },
            Action::ToServers(n) => {
                if let Some(report) = self.nodes[n].outbox.pop_front() {
                    let slot = report.slot.index;
                    self.server(slot, &Event::Report { from: node_id(n), report: Box::new(report) });
                    self.reconcile(slot);
                }
            }
            Action::Execute(n, i) => {
                let pending = self.nodes[n].calls[i].clone();
                let answer = self.execute(&pending);
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
                let pending = self.nodes[n].calls.remove(i);
                let slot = pending.slot;
                if pending.answer.is_none() && pending.call.mutates() && self.cfg.late_calls {
                    self.zombies.push(pending);
                }
                self.feed(n, slot, &node::Event::Done(Answer::CouldNotAsk("reply lost".to_owned())));
            }
            Action::Late(i) => {
                let pending = self.zombies.remove(i);
                self.execute(&pending);
            }
            Action::Prepared(n, slot) => {
                self.nodes[n].prepare.remove(&slot);
                self.feed(n, slot, &node::Event::Prepared);
            }
            Action::Kept(n, slot) => {
                let Some((incarnation, alloc)) = self.nodes[n].keep.remove(&slot) else { return };
                // What the provider has forgotten, or nobody will read, is not there to be kept.
                let there = self.provider.instances.iter().any(|i| i.key == incarnation);
                if there && self.allocs.iter().any(|a| a.id == alloc && a.node == n && !a.collected) {
                    self.nodes[n].kept.insert((alloc, incarnation));
                }
                self.feed(n, slot, &node::Event::Kept { incarnation, alloc_id: alloc });
            }
            Action::Retry(n, slot) => {
                self.nodes[n].retry.remove(&slot);
                self.feed(n, slot, &node::Event::Retry);
            }
            Action::Observe(n, slot) => {
                if let Some((incarnation, sighting)) = self.observation_for(n, slot) {
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
                    self.nodes[a.node].kept.retain(|(alloc, _)| *alloc != a.id);
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
        }
        self.check();
    }

    fn connect(&mut self, n: usize) {
        let node = &mut self.nodes[n];
        node.up = true;
        node.session = true;
        node.lease = true;
        self.leased.insert(n);
        self.all_slots(n, &node::Event::LeaseHeld);
        for slot in self.records.keys().copied().collect::<Vec<_>>() {
            self.server(slot, &Event::LeaseGranted { node: node_id(n) });
        }
        // The full set of orders names what belongs to the node; anything else it lets go.
        for slot in self.nodes[n].slots.keys().copied().collect::<Vec<_>>() {
            if self.records.get(&slot).is_none_or(|r| order_for_node(r, node_id(n)).is_none()) {
                self.nodes[n].inbox.push_back(ToNode::Released(slot_key(slot)));
            }
        }
        self.reconcile_all();
    }

    pub(crate) fn disconnect(&mut self, n: usize) {
        let node = &mut self.nodes[n];
        node.session = false;
        node.inbox.clear();
        node.outbox.clear();
    }

    pub(crate) fn crash(&mut self, n: usize) {
        self.disconnect(n);
        let disk = std::mem::take(&mut self.nodes[n].disk);
        let kept = std::mem::take(&mut self.nodes[n].kept);
        let draining = self.nodes[n].draining;
        let calls = std::mem::take(&mut self.nodes[n].calls);
        if self.cfg.late_calls {
            self.zombies.extend(calls.into_iter().filter(|c| c.answer.is_none() && c.call.mutates()));
        }
        self.nodes[n] = Node { disk, kept, draining, ..Node::default() };
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
        let id = AllocId(Uuid::from_u128(1 + self.allocs.len() as u128));
        self.allocs.push(Alloc { id, slot, node: n, version: self.job.version, state: AllocState::Live, collected: false });
        self.reconcile(slot);
    }

    fn reconcile_all(&mut self) {
        for slot in 0..self.cfg.slots {
            self.reconcile(slot);
        }
    }

    /// The servers' loop for one slot: facts from the snapshot, events, transitions.
    pub(crate) fn reconcile(&mut self, slot: u32) {
        let served = self.records.get(&slot).map(|r| r.alloc_id);
        let ended = |a: &Alloc| Some(a.id) == served && matches!(a.state, AllocState::Failed | AllocState::Complete);
        let wanted =
            self.live_alloc(slot).filter(|a| self.leased.contains(&a.node) && !self.nodes[a.node].draining).map(|a| RemoteWanted {
                job_version: a.version,
                spec_hash: format!("hash-{}", a.version).into(),
                driver: "fake".into(),
                provider: "fake".into(),
                policy: self.policy().into(),
                manager: Some(Manager { node_id: node_id(a.node), alloc_id: a.id }),
                previous_ended: self.allocs.iter().any(ended),
                keep_counters: false,
            });
        let leased = self.leased.clone();
        let draining: Vec<bool> = self.nodes.iter().map(|n| n.draining).collect();
        let live: Vec<AllocId> = self.allocs.iter().filter(|a| a.slot == slot && a.state == AllocState::Live).map(|a| a.id).collect();
        let finisher = || {
            let served = served?;
            match self.allocs.iter().find(|a| a.id == served && !a.collected) {
                Some(a) => leased.contains(&a.node).then(|| Manager { node_id: node_id(a.node), alloc_id: a.id }),
                None => {
                    let free = |n: &usize| self.nodes[*n].session && !self.nodes[*n].draining;
                    (0..self.nodes.len()).find(free).map(|n| Manager { node_id: node_id(n), alloc_id: AllocId::NIL })
                }
            }
        };
        let facts = SlotFacts {
            wanted,
            covered: self.wanted_by_job(slot),
            leased: &|n| leased.contains(&node_index(n)),
            draining: &|n| draining[node_index(n)].then_some(false),
            alloc_live: &|id| live.contains(&id),
            finisher: &finisher,
        };
        let events = events_for(self.records.get(&slot), &facts, self.now);
        for event in events {
            self.server(slot, &event);
        }
    }

    pub(crate) fn server(&mut self, slot: u32, event: &Event) {
        let fresh = IncarnationId(Uuid::from_u128(0x9000_0000 + self.next_incarnation));
        let before = self.records.get(&slot).cloned();
        let step = transition(&slot_key(slot), before.as_ref(), event, Context { now: self.now, fresh });
        for effect in step.effects {
            match effect {
                Effect::Commit(r) => self.commit(slot, before.as_ref(), *r),
                Effect::Delete(_) => {
                    let gone = self.records.remove(&slot);
                    if let Some(r) = gone
                        && self.provider.instances.iter().any(|i| i.key == r.incarnation && i.alive)
                        && !matches!(event, Event::Forget { .. })
                    {
                        self.violation(format!("I2: the record of slot {slot} was deleted while its instance lives"));
                    }
                }
                Effect::Order { node, order } => {
                    let n = node_index(node);
                    if self.nodes[n].session {
                        self.nodes[n].inbox.push_back(ToNode::Order(order));
                    }
                }
                Effect::Release { node, slot } => {
                    let n = node_index(node);
                    if self.nodes[n].session {
                        self.nodes[n].inbox.push_back(ToNode::Released(slot));
                    }
                }
                Effect::Evaluate { .. } => self.evaluations += 1,
            }
        }
        match (self.records.get(&slot), &step.record) {
            (a, b) if a == b.as_ref() => {}
            _ => self.violation(format!("the effects of {event:?} do not lead to the record that the step returns")),
        }
    }

    fn commit(&mut self, slot: u32, before: Option<&RemoteTask>, r: RemoteTask) {
        if let Some(b) = before {
            if r.epoch < b.epoch {
                self.violation(format!("the epoch of slot {slot} fell from {} to {}", b.epoch, r.epoch));
            }
            if r.manager.map(|m| m.node_id) != b.manager.map(|m| m.node_id) && r.manager.is_some() && r.epoch == b.epoch {
                self.violation(format!("the manager of slot {slot} changed within epoch {}", r.epoch));
            }
            if r.incarnation == b.incarnation {
                if b.handle.is_some() && r.handle.is_none() {
                    self.violation(format!("the handle of slot {slot} was erased"));
                }
                if b.exit_acknowledged && (r.restarts != b.restarts || (r.result != b.result)) {
                    self.violation(format!("the end of slot {slot} was counted twice"));
                }
            } else if self.provider.instances.iter().any(|i| i.key == b.incarnation && i.alive) {
                self.violation(format!("I1: slot {slot} goes on to a new incarnation while the old instance lives"));
            }
        }
        if r.desired == DesiredRemote::Stop || !r.unhealthy.is_empty() {
            self.stop_ordered.insert(r.incarnation);
        }
        self.version_of.insert(r.incarnation, r.job_version);
        if before.is_none_or(|b| b.incarnation != r.incarnation) {
            self.next_incarnation += 1;
        }
        let ends = self.ends.get(&slot).copied().unwrap_or(0);
        if r.restarts > ends {
            self.violation(format!("slot {slot} counts {} restarts after {ends} ends", r.restarts));
        }
        self.records.insert(slot, r);
    }

    fn all_slots(&mut self, n: usize, event: &node::Event) {
        for slot in self.nodes[n].slots.keys().copied().collect::<Vec<_>>() {
            self.feed(n, slot, event);
        }
    }

    fn feed(&mut self, n: usize, slot: u32, event: &node::Event) {
        if !self.nodes[n].slots.contains_key(&slot) {
            let mut restored = Slot::restore(&self.nodes[n].disk.get(&slot).cloned().unwrap_or_default());
            if self.nodes[n].lease {
                restored = node::transition(&slot_key(slot), &restored, &node::Event::LeaseHeld, &self.cfg.caps(), self.clock_of(n)).slot;
            }
            self.nodes[n].slots.insert(slot, restored);
        }
        let before = self.nodes[n].slots[&slot].clone();
        let step = node::transition(&slot_key(slot), &before, event, &self.cfg.caps(), self.clock_of(n));
        let may_mutate = step.slot.may_mutate();
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
                        self.violation(format!("rule 3: node {n} sends {call:?} without a lease and a confirmed order"));
                    }
                    if let Call::Ensure { incarnation, first: true, .. } = &call
                        && !self.firsts.insert(*incarnation)
                    {
                        self.violation(format!("two creates of {} are called the first one", incarnation.short()));
                    }
                    if self.nodes[n].calls.iter().any(|c| c.slot == slot) {
                        self.violation(format!("node {n} has two calls of slot {slot} under way"));
                    }
                    let alloc = order.as_ref().map(|o| o.alloc_id).unwrap_or_default();
                    let version = self.allocs.iter().find(|a| a.id == alloc).map_or(0, |a| a.version);
                    self.nodes[n].calls.push(Pending { slot, call, version, alloc, answer: None });
                }
                node::Effect::Keep { incarnation, alloc_id, .. } => {
                    self.nodes[n].keep.insert(slot, (incarnation, alloc_id));
                }
                node::Effect::Watch(_) => {
                    self.nodes[n].watching.insert(slot);
                }
                node::Effect::Report(report) => {
                    if self.nodes[n].session {
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

    fn check(&mut self) {
        let mut live = vec![0u32; self.cfg.slots as usize];
        for i in self.provider.instances.iter().filter(|i| i.alive) {
            live[i.slot as usize] += 1;
        }
        for (slot, n) in live.into_iter().enumerate().filter(|(_, n)| *n > 1) {
            self.violation(format!("I1: slot {slot} has {n} live instances"));
        }
    }

    /// I2, for a world in which nothing is left to happen.
    pub(crate) fn check_quiet(&mut self) {
        for slot in 0..self.cfg.slots {
            let live: Vec<u64> = self.alive(slot).iter().map(|i| i.version).collect();
            let last = self.allocs.iter().rev().find(|a| a.slot == slot).map(|a| a.state);
            let expected: Vec<u64> =
                if self.wanted_by_job(slot).is_err() || last == Some(AllocState::Complete) { Vec::new() } else { vec![self.job.version] };
            if live != expected {
                let record = self.records.get(&slot).cloned();
                self.violation(format!("I2: slot {slot} is quiet with live versions {live:?}, wanted {expected:?}; record {record:#?}"));
            }
            if let Some(i) = self.provider.instances.iter().find(|i| i.slot == slot && !i.alive) {
                let text = format!("I2: the ended instance {} stays at the provider: {:#?}", i.key.short(), self.records.get(&slot));
                self.violation(text);
            }
            if let Some(r) = self.records.get(&slot)
                && self.wanted_by_job(slot).is_err()
            {
                let text = format!("I2: a record of the unwanted slot {slot} remains: {r:#?}");
                self.violation(text);
            }
        }
    }
}

//! One simulated hour: plays a plan on one or two servers, nodes and a provider, and judges what comes of it.

mod pair;
mod past;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use model::{GoDuration, Job, JobKey, NodeId, NodeStatus, SlotKey, Task, TaskGroup, Update, node::DrainSpec};
use server::{
    ServerHandle,
    requests::{DeregisterJob, DrainNode, RegisterJob, ScaleJob},
};
use tokio::time::{Instant, sleep_until};

use self::{pair::Two, past::Past};
use crate::{
    agents::{Node, RunningServer},
    disk::Disk,
    history::History,
    launches::{self, Launches},
    machine::{Machine, mix},
    net,
    plan::{Action, NODES, Plan},
    provider::Provider,
    servers::{Doors, Process},
    truth::{SERVERS, Truth},
    wanted::{Ask, Wanted},
};

/// After the last step everything is mended, and this long later all must be as it was asked for.
const QUIET: Duration = Duration::from_secs(900);
/// Lease and margin of the default configuration.
const LEASE: Duration = Duration::from_secs(11);
/// Adopted so long after the lease has run out, when another node can.
const ADOPTED: Duration = Duration::from_secs(5);
/// Stopped within this time, when a node can.
const STOPPED: Duration = Duration::from_secs(10);
/// A new specification, or an end by itself, is made good within this time.
const MADE: Duration = Duration::from_secs(300);
/// A new leader may have to wait for nodes that the former one, which does not reach the store, keeps until it could
/// grant nothing that lasts.
const KEPT: Duration = Duration::from_secs(2);
/// One of two servers leads within this time, when one can.
const LED: Duration = Duration::from_secs(20);

type Shared<T> = Arc<Mutex<T>>;

fn lock<T>(shared: &Shared<T>) -> std::sync::MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is broken now, and since when nothing has been.
#[derive(Default)]
struct Troubles {
    open: BTreeMap<u64, &'static str>,
    next: u64,
    /// When the last one ended or something changed at once.
    last: Duration,
    /// Nodes that cannot act: killed or cut off.
    away: BTreeMap<usize, u32>,
}

/// What a slot has gone through, for the bounds.
#[derive(Default)]
struct Changes {
    job: BTreeMap<String, Duration>,
    exit: Duration,
}

pub(crate) struct World {
    begun: Instant,
    seed: u64,
    machine: Arc<Machine>,
    history: Arc<History>,
    wanted: Arc<Wanted>,
    provider: Arc<Provider>,
    disk: Arc<Disk>,
    nets: Vec<net::Server>,
    server: Option<RunningServer>,
    two: Option<Two>,
    past: Past,
    /// Where people ask.
    doors: Doors,
    nodes: Vec<Node>,
    troubles: Shared<Troubles>,
    changes: Shared<Changes>,
    managers: BTreeMap<SlotKey, Option<NodeId>>,
    launches: Launches,
    /// What is to be mended, when.
    mends: Vec<(Duration, Mend)>,
    bad: BTreeMap<(SlotKey, &'static str), Duration>,
}

/// The end of a fault.
enum Mend {
    Server(u64),
    Node(usize, u64),
    Partition(usize, u64),
    Provider(Vec<usize>, u64),
    Stops(u64),
    Disk(u64),
    /// Of two servers.
    Process(usize),
    Thaw(usize),
    CutStore(usize),
    CutNode(usize, usize),
    Store(u64, fn(&mut crate::truth::Faults)),
}

impl World {
    pub(crate) async fn new(plan: &Plan, machine: Arc<Machine>, history: Arc<History>, root: &std::path::Path) -> Self {
        let seed = plan.seed;
        let wanted = Arc::new(Wanted::default());
        let provider = Provider::new(seed, history.clone(), wanted.clone());
        let nodes = (0..NODES).map(|number| Node::new(number, root)).collect();
        let mut world = Self {
            begun: Instant::now(),
            seed,
            machine,
            history,
            wanted,
            provider,
            disk: Arc::default(),
            nets: vec![net::Server::default(); 1],
            server: None,
            two: None,
            past: Past::default(),
            doors: Doors::default(),
            nodes,
            troubles: Arc::default(),
            changes: Arc::default(),
            managers: BTreeMap::new(),
            launches: Launches::default(),
            mends: Vec::new(),
            bad: BTreeMap::new(),
        };
        if plan.two {
            world.nets = (0..SERVERS).map(|_| net::Server::default()).collect();
            let truth = Truth::new(seed, plan.flaw, world.history.clone());
            world.two = Some(Two::new(truth));
            // Both are on one machine as far as the time of day goes: it is not set back when one begins.
            world.machine.begin_server();
            (0..SERVERS).for_each(|server| world.start_process(server));
        } else {
            world.start_server().await;
        }
        for node in 0..NODES {
            world.start_node(node).await;
        }
        world
    }

    fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    fn draw(&mut self, below: u64) -> u64 {
        self.seed = mix(self.seed);
        self.seed % below
    }

    /// Plays the steps, mends everything, and waits until all has come to rest.
    pub(crate) async fn play(&mut self, plan: &Plan) {
        for step in &plan.steps {
            self.until(step.at).await;
            if self.history.violation().is_some() {
                return;
            }
            self.history.note(format!("{:?}", step.action));
            self.act(step.action.clone()).await;
        }
        let end = self.now().max(plan.time);
        self.until(end).await;
        while let Some(at) = self.mends.iter().map(|(at, _)| *at).max() {
            self.until(at).await;
            // Time stands still from then on.
            if self.history.violation().is_some() {
                return;
            }
        }
        for node in 0..NODES {
            self.drain(node, None);
        }
        self.until(self.now() + QUIET).await;
        self.judge_rest();
    }

    /// Lets time pass, and judges every second of it.
    async fn until(&mut self, at: Duration) {
        while self.now() < at && self.history.violation().is_none() {
            let due = self.mends.iter().map(|(due, _)| *due).min();
            let next = [Some(self.now() + Duration::from_secs(1)), Some(at), due].into_iter().flatten().min();
            let next = next.unwrap_or(at);
            sleep_until(self.begun + next).await;
            while let Some(n) = self.mends.iter().position(|(due, _)| *due <= self.now()) {
                let (_, mend) = self.mends.remove(n);
                self.mend(mend).await;
            }
            self.judge();
        }
    }

    fn trouble(&mut self, what: &'static str) -> u64 {
        let mut troubles = lock(&self.troubles);
        troubles.next += 1;
        let id = troubles.next;
        troubles.open.insert(id, what);
        id
    }

    fn over(&mut self, id: u64) {
        let now = self.now();
        let mut troubles = lock(&self.troubles);
        troubles.open.remove(&id);
        troubles.last = now;
    }

    fn disturbed(&mut self) {
        let now = self.now();
        lock(&self.troubles).last = now;
    }

    fn away(&mut self, node: usize, by: i32) {
        let mut troubles = lock(&self.troubles);
        let away = troubles.away.entry(node).or_default();
        *away = away.saturating_add_signed(by);
    }

    fn mend_in(&mut self, seconds: u64, mend: Mend) {
        self.mends.push((self.now() + Duration::from_secs(seconds), mend));
    }

    async fn start_server(&mut self) -> bool {
        let seed = self.draw(u64::MAX);
        self.machine.begin_server();
        match RunningServer::start(&self.disk, &self.nets[0], seed).await {
            Ok(server) => {
                self.doors.open(0, server.handle(), None);
                self.server = Some(server);
                self.history.note("the server runs");
                true
            }
            Err(error) => {
                self.history.note(format!("the server does not start: {error}"));
                false
            }
        }
    }

    async fn start_node(&mut self, node: usize) {
        let delay = Duration::from_micros(200 + self.draw(15_000));
        self.nodes[node].start(&self.nets, &self.provider, delay).await;
        self.history.note(format!("node {node} runs"));
    }

    async fn mend(&mut self, mend: Mend) {
        match mend {
            Mend::Server(id) => {
                if self.start_server().await {
                    self.over(id);
                } else {
                    self.mend_in(5, Mend::Server(id));
                }
            }
            Mend::Node(node, id) => {
                self.start_node(node).await;
                self.away(node, -1);
                self.over(id);
            }
            Mend::Partition(node, id) => {
                self.history.note(format!("the partition of node {node} ends"));
                self.nodes[node].set_hole(false);
                self.away(node, -1);
                self.over(id);
            }
            Mend::Provider(nodes, id) => {
                self.history.note("the provider is well again");
                nodes.into_iter().for_each(|node| self.provider.trouble(node, |trouble| *trouble = Default::default()));
                self.over(id);
            }
            Mend::Stops(id) => {
                self.provider.set_slow_stops(Duration::ZERO);
                self.over(id);
            }
            Mend::Disk(id) => {
                self.history.note("the disk has room again");
                self.disk.set_full(false);
                self.over(id);
            }
            Mend::Process(server) => {
                self.start_process(server);
                self.server_away(server, -1);
                self.disturbed();
            }
            Mend::Thaw(server) => {
                self.history.note(format!("server {server} goes on"));
                self.nets[server].set_frozen(false);
                self.truth(|truth| truth.set_way(server, |way| way.frozen = false));
                self.server_away(server, -1);
                self.disturbed();
            }
            Mend::CutStore(server) => {
                self.history.note(format!("server {server} reaches the store"));
                self.truth(|truth| truth.set_way(server, |way| way.cut = false));
                self.server_away(server, -1);
                self.disturbed();
            }
            Mend::CutNode(server, node) => {
                self.history.note(format!("server {server} and node {node} reach each other"));
                self.nets[server].set_cut(node, false);
                self.away(node, -1);
                self.disturbed();
            }
            Mend::Store(id, mend) => {
                self.history.note("the store is well again");
                self.truth(|truth| truth.set_faults(mend));
                let now = self.now();
                if let Some(two) = &mut self.two {
                    (two.store, two.led) = (two.store - 1, now);
                }
                self.over(id);
            }
        }
    }

    async fn act(&mut self, action: Action) {
        match action {
            Action::KillServer { down } if self.two.is_some() => {
                if let Some(server) = self.doors.leader() {
                    self.kill_process(server, down);
                }
            }
            Action::KillStandby { down } => {
                let leader = self.doors.leader();
                if let Some(server) = (0..SERVERS).find(|server| Some(*server) != leader) {
                    self.kill_process(server, down);
                }
            }
            Action::Freeze { time } => {
                let Some(server) = self.leader(|way| way.frozen) else { return };
                self.nets[server].set_frozen(true);
                self.truth(|truth| truth.set_way(server, |way| way.frozen = true));
                self.server_away(server, 1);
                self.disturbed();
                self.mend_in(time, Mend::Thaw(server));
            }
            Action::CutStore { time } => {
                let Some(server) = self.leader(|way| way.cut) else { return };
                self.truth(|truth| truth.set_way(server, |way| way.cut = true));
                self.server_away(server, 1);
                self.disturbed();
                self.mend_in(time, Mend::CutStore(server));
            }
            Action::CutNode { node, time } => {
                let Some(server) = self.doors.leader() else { return };
                self.nets[server].set_cut(node, true);
                self.away(node, 1);
                self.disturbed();
                self.mend_in(time, Mend::CutNode(server, node));
            }
            Action::SlowStore { time, by } => {
                let slow = Duration::from_millis(by);
                self.store_trouble(
                    time,
                    "store slow",
                    |faults| faults.slow = slow,
                    |faults| {
                        faults.slow = Duration::ZERO;
                    },
                );
            }
            Action::StoreOut { time } => {
                self.store_trouble(time, "store out", |faults| faults.out = true, |faults| faults.out = false);
            }
            Action::Doubt { time } => {
                self.store_trouble(time, "store in doubt", |faults| faults.doubt = true, |faults| faults.doubt = false);
            }
            Action::Copy => self.copy(),
            Action::Restore { time, down, bump } => self.restore(time, down, bump),
            Action::StepDown => {
                let leader = self.doors.leader();
                let process = self.two.as_ref().zip(leader).and_then(|(two, leader)| two.processes[leader].as_ref());
                process.into_iter().for_each(Process::make_room);
                self.disturbed();
            }
            Action::KillServer { down } => {
                let Some(server) = self.server.take() else { return };
                self.doors.shut(0);
                server.kill(&self.nets[0]);
                self.nodes.iter().for_each(Node::break_line);
                let id = self.trouble("no server");
                self.mend_in(down, Mend::Server(id));
            }
            Action::KillNode { node, down } => {
                if !self.nodes[node].runs() {
                    return;
                }
                self.nodes[node].kill();
                self.away(node, 1);
                self.disturbed();
                self.mend_in(down, Mend::Node(node, 0));
            }
            Action::Partition { node, time } => {
                self.nodes[node].set_hole(true);
                self.away(node, 1);
                self.disturbed();
                self.mend_in(time, Mend::Partition(node, 0));
            }
            Action::Break { node } => {
                self.nodes[node].break_line();
                self.disturbed();
            }
            Action::ProviderOut { node, time } => {
                self.provider_trouble(node, time, "provider out", |trouble| trouble.out = true);
            }
            Action::Deaf { node, time } => {
                self.provider_trouble(Some(node), time, "answers lost", |trouble| trouble.deaf = true);
            }
            Action::Throttle { time } => {
                self.provider_trouble(None, time, "throttled", |trouble| trouble.throttle = 3);
            }
            Action::Late { node, time, late } => {
                self.provider_trouble(Some(node), time, "calls late", |trouble| trouble.late = late);
                self.nodes[node].set_hole(true);
                self.away(node, 1);
                self.mend_in(time, Mend::Partition(node, 0));
                // Calls that are on their way when it ends still arrive late.
                let id = self.trouble("late calls arrive");
                self.mend_in(time + late, Mend::Stops(id));
            }
            Action::SlowStops { time, slow } => {
                self.provider.set_slow_stops(Duration::from_secs(slow));
                let id = self.trouble("slow stops");
                self.mend_in(time, Mend::Stops(0));
                // One that has begun before that is still slow.
                self.mend_in(time + slow, Mend::Stops(id));
            }
            Action::DiskFull { time } if self.two.is_some() => {
                self.store_trouble(time, "store full", |faults| faults.full = true, |faults| faults.full = false);
            }
            Action::DiskFull { time } => {
                self.disk.set_full(true);
                let id = self.trouble("disk full");
                self.mend_in(time, Mend::Disk(id));
            }
            Action::KillPlugin { node } => {
                self.nodes[node].kill_plugin();
                self.disturbed();
            }
            Action::Clock { by } => {
                self.machine.step_clock(by);
                self.launches.clock_set(self.now());
            }
            Action::Register { job, count, revise } => {
                let name = name(job);
                let known = self.wanted.now(&name);
                let ask = Ask {
                    count: count.unwrap_or(known.count.max(1)),
                    // One that was stopped begins a new life: a stop that was asked for is made, however late.
                    revision: known.revision + u32::from(revise || known.count == 0),
                };
                self.register(&name, ask);
            }
            Action::Scale { job, count } => {
                let name = name(job);
                let known = self.wanted.now(&name);
                if known.count == 0 {
                    return;
                }
                // As a registration with another count: an active deployment refuses to scale.
                let ask = Ask { count, ..known };
                self.ask(name.clone(), ask, move |server| {
                    let request = RegisterJob { job: far_job(&name, ask), ..RegisterJob::default() };
                    let key = JobKey::new("default", name.as_str());
                    let scale = ScaleJob { key, group: "g".into(), count: Some(count.into()), ..ScaleJob::default() };
                    async move {
                        match server.scale_job(scale).await {
                            Ok(_) => Ok(()),
                            Err(_) => server.register_job(request).await.map(drop),
                        }
                    }
                });
            }
            Action::Stop { job, purge } => {
                let name = name(job);
                if self.wanted.now(&name).count > 0 {
                    self.stop(&name, purge);
                }
            }
            Action::Drain { node, deadline } => self.drain(node, Some(deadline)),
            Action::Undrain { node } => self.drain(node, None),
            Action::Exit { nth, code } => {
                let now = self.now();
                lock(&self.changes).exit = now;
                self.provider.exits(nth, code);
            }
            Action::Collect => self.request(|server| async move { server.collect_garbage().await.map(drop) }),
            Action::Sweep => self.request(|server| async move {
                server.sweep_remote().await;
                Ok(())
            }),
        }
    }

    fn provider_trouble(
        &mut self,
        node: Option<usize>,
        time: u64,
        what: &'static str,
        change: impl Fn(&mut crate::provider::Trouble),
    ) {
        let nodes = node.map_or_else(|| (0..NODES).collect(), |node| vec![node]);
        nodes.iter().for_each(|node| self.provider.trouble(*node, &change));
        let id = self.trouble(what);
        self.mend_in(time, Mend::Provider(nodes, id));
    }

    /// One try, whatever comes of it.
    fn request<F, R>(&self, send: F)
    where
        F: FnOnce(ServerHandle) -> R,
        R: Future<Output = Result<(), server::ServerError>> + Send + 'static,
    {
        let Some(server) = self.doors.now() else { return };
        let sent = send(server);
        tokio::spawn(async move { tokio::time::timeout(Duration::from_secs(30), sent).await });
    }

    fn drain(&self, node: usize, deadline: Option<u64>) {
        let name = self.nodes[node].name.clone();
        self.request(move |server| async move {
            let found = server.snapshot().nodes().find(|node| *node.name == *name).map(|node| node.id);
            let Some(node_id) = found else { return Ok(()) };
            let spec = deadline.map(|deadline| DrainSpec {
                deadline: GoDuration::from_secs(i64::try_from(deadline).unwrap_or(60)),
                ..DrainSpec::default()
            });
            let request = DrainNode { node_id, mark_eligible: spec.is_none(), spec, meta: BTreeMap::new() };
            server.drain_node(request).await.map(drop)
        });
    }

    fn register(&self, name: &str, ask: Ask) -> bool {
        let job = far_job(name, ask);
        self.ask(name.to_owned(), ask, move |server| {
            let request = RegisterJob { job: job.clone(), ..RegisterJob::default() };
            async move { server.register_job(request).await.map(drop) }
        })
    }

    fn stop(&self, name: &str, purge: bool) -> bool {
        let key = JobKey::new("default", name);
        let ask = Ask { count: 0, ..self.wanted.now(name) };
        self.ask(name.to_owned(), ask, move |server| {
            let key = key.clone();
            let request = DeregisterJob { key: key.clone(), purge, eval_priority: None, no_shutdown_delay: false };
            async move {
                match server.deregister_job(request).await {
                    // Servers whose state is from the past may not know it.
                    Err(_) if server.snapshot().job(&key).is_none() => Ok(()),
                    answer => answer.map(drop),
                }
            }
        })
    }

    /// Asks for a job until the servers say that it counts, as a person would.
    fn ask<F, R>(&self, job: String, ask: Ask, send: F) -> bool
    where
        F: Fn(ServerHandle) -> R + Send + 'static,
        R: Future<Output = Result<(), server::ServerError>> + Send + 'static,
    {
        if !self.wanted.sends(&job, ask) {
            self.history.note(format!("{job}: an earlier request is under way"));
            return false;
        }
        let (wanted, history, doors, changes, begun) =
            (self.wanted.clone(), self.history.clone(), self.doors.clone(), self.changes.clone(), self.begun);
        tokio::spawn(async move {
            loop {
                if let Some((number, server)) = doors.answering().pop() {
                    match tokio::time::timeout(Duration::from_secs(20), send(server.clone())).await {
                        Ok(Ok(())) => {
                            // Whoever has the answer has the index that it tells.
                            let _ = doors.read(number, &server);
                            break;
                        }
                        Ok(Err(error)) => history.note(format!("{job}: refused: {error}")),
                        Err(_) => history.note(format!("{job}: no answer")),
                    }
                }
                tokio::time::sleep(Duration::from_secs(2)).await;
            }
            wanted.counts(&job);
            lock(&changes).job.insert(job.clone(), begun.elapsed());
            history.note(format!("{job}: {ask:?} counts"));
        });
        true
    }

    /// Judges that what was answered with success is there.
    fn judge_writes(&self, state: &state::State) {
        for (job, ask) in self.wanted.settled() {
            let found = state.job(&JobKey::new("default", job.as_str())).filter(|found| !found.stop);
            let group = found.and_then(|found| found.task_groups.first());
            let count = group.and_then(|group| group.count).unwrap_or(0);
            let revision = group.and_then(|group| group.tasks.first()?.env.get("REVISION"));
            let there = match ask.count {
                0 => found.is_none(),
                wanted => i32::try_from(wanted) == Ok(count) && revision == Some(&ask.revision.to_string()),
            };
            if !there {
                self.history.violated(format!(
                    "an acknowledged write is lost: {job} is to be {ask:?}, and has count {count}, revision \
                        {revision:?}"
                ));
            }
        }
    }

    /// Judges the launches of periodic jobs, registers those jobs, and stops what lasts.
    fn judge_launches(&mut self, state: &state::State, calm: Duration) {
        let now = self.now();
        let day = i64::try_from(clock::steady_now().as_secs()).unwrap_or(0);
        let looked = self.launches.look(state, day, now, calm);
        looked.wrong.iter().for_each(|what| self.history.violated(what));
        looked.new.iter().for_each(|id| self.history.note(format!("{id} is launched")));
        // A person tries again when nothing has come of it.
        if !now.as_secs().is_multiple_of(5) {
            return;
        }
        for job in launches::absent(state) {
            let request = RegisterJob { job, ..RegisterJob::default() };
            self.request(|server| async move { server.register_job(request).await.map(drop) });
        }
        for key in looked.stop {
            let request = DeregisterJob { key, purge: false, eval_priority: None, no_shutdown_delay: false };
            self.request(|server| async move { server.deregister_job(request).await.map(drop) });
        }
    }

    /// Judges this moment. A state that must not last is a violation once it has lasted for its bound, of which only
    /// time without trouble counts.
    fn judge(&mut self) {
        let leads = self.judge_leaders();
        let Some(server) = self.doors.present() else { return };
        let (state, now) = (server.snapshot(), self.now());
        self.judge_past(&server, &state);
        self.judge_writes(&state);
        for record in state.remote_tasks() {
            let manager = record.manager.as_ref().map(|manager| manager.node_id);
            if self.managers.insert(record.slot.clone(), manager) != Some(manager) {
                let by = manager.and_then(|id| state.node(id)).map_or("nobody", |node| &*node.name).to_owned();
                self.history.note(format!("{} is managed by {by}, epoch {}", record.slot, record.epoch));
            }
        }
        for node in state.nodes() {
            let agent = self.nodes.iter().find(|one| *one.name == *node.name);
            if node.status == NodeStatus::Down && agent.is_some_and(Node::holds_lease) && !self.past.says_down(node.id)
            {
                self.history.violated(format!("I3: the servers gave up {}, which holds its lease", node.name));
            }
        }
        let (calm_since, well) = {
            let troubles = lock(&self.troubles);
            let calm = if troubles.open.is_empty() { troubles.last } else { now };
            let well: Vec<&Node> = self
                .nodes
                .iter()
                .enumerate()
                .filter(|(_, node)| node.connected() && leads.as_ref().is_none_or(|leads| leads.0 == node.server()))
                .filter(|(n, _)| troubles.away.get(n).is_none_or(|away| *away == 0))
                .map(|(_, node)| node)
                .collect();
            (leads.as_ref().map_or(calm, |leads| calm.max(leads.1 + KEPT)), well)
        };
        let able: Vec<NodeId> = state
            .nodes()
            .filter(|node| well.iter().any(|one| *one.name == *node.name) && node.ready())
            .map(|node| node.id)
            .collect();
        let connected: Vec<NodeId> =
            state.nodes().filter(|node| well.iter().any(|one| *one.name == *node.name)).map(|node| node.id).collect();
        let mut bad = BTreeMap::new();
        let mut live: Vec<SlotKey> = Vec::new();
        for instance in self.provider.live() {
            let slot = &instance.slot;
            live.push(slot.clone());
            if !self.wanted.perhaps(slot, instance.revision) {
                let ask = self.wanted.now(slot.job_id.as_str());
                let (what, bound) = match slot.index < ask.count {
                    true => ("I2: an instance of an old revision lives", MADE),
                    false => ("I2: an instance that nobody wants lives", LEASE + STOPPED),
                };
                bad.insert((slot.clone(), what), bound);
            } else if !able.is_empty() {
                let manager = state.remote_task(slot).and_then(|record| record.manager.as_ref());
                if !manager.is_some_and(|manager| connected.contains(&manager.node_id)) {
                    bad.insert((slot.clone(), "an instance is not adopted"), LEASE + ADOPTED);
                }
            }
        }
        if !able.is_empty() {
            for (job, ask) in self.wanted.all() {
                for index in 0..ask.count {
                    let slot = slot(&job, index);
                    if self.wanted.surely(&slot, ask.revision) && !live.contains(&slot) {
                        bad.insert((slot, "I2: an instance that is wanted does not live"), MADE);
                    }
                }
            }
        }
        self.judge_launches(&state, calm_since);
        let changes = lock(&self.changes);
        let since = |slot: &SlotKey| {
            let job = changes.job.get(slot.job_id.as_str()).copied().unwrap_or_default();
            calm_since.max(job).max(if live.contains(slot) { Duration::ZERO } else { changes.exit })
        };
        let mut found = Vec::new();
        self.bad.retain(|what, _| bad.contains_key(what));
        for ((slot, what), bound) in bad {
            let first = *self.bad.entry((slot.clone(), what)).or_insert(now);
            let lasted = now.saturating_sub(first.max(since(&slot)));
            // What it looks at is a second old.
            if lasted > bound + Duration::from_secs(1) {
                found.push(format!("{what}: {slot}, for {} s of quiet", lasted.as_secs()));
            }
        }
        drop(changes);
        found.iter().for_each(|what| self.history.violated(what));
    }

    /// Everything has been mended for long: all must be exactly as it was asked for.
    fn judge_rest(&self) {
        let Some(server) = self.doors.now() else {
            return self.history.violated("no server runs at the end");
        };
        if self.wanted.open() {
            return self.history.violated("a request of a person was never answered");
        }
        let state = server.snapshot();
        let day = i64::try_from(clock::steady_now().as_secs()).unwrap_or(0);
        self.launches.rest(day).iter().for_each(|what| self.history.violated(what));
        let mut live: Vec<(SlotKey, u32)> =
            self.provider.live().into_iter().map(|live| (live.slot, live.revision)).collect();
        live.sort();
        let mut wanted: Vec<(SlotKey, u32)> = Vec::new();
        for (job, ask) in self.wanted.all() {
            wanted.extend((0..ask.count).map(|index| (slot(&job, index), ask.revision)));
        }
        wanted.sort();
        if live != wanted {
            self.history.violated(format!("I2: at the end {live:?} live, and {wanted:?} are wanted"));
        }
        for (slot, _) in &wanted {
            let record = state.remote_task(slot);
            if record.is_none_or(|record| record.manager.is_none() || record.observed != model::Observed::Running) {
                self.history.violated(format!("{slot} is not managed and running at the end: {record:?}"));
            }
        }
    }
}

fn name(job: usize) -> String {
    format!("job{job}")
}

fn slot(job: &str, index: u32) -> SlotKey {
    let parts = model::SlotParts {
        namespace: "default".into(),
        job_id: job.into(),
        group: "g".into(),
        index,
        task: "t".into(),
    };
    parts.into()
}

fn far_job(id: &str, ask: Ask) -> Job {
    let mut task = Task { name: "t".into(), driver: "far".to_owned(), ..Task::default() };
    task.env.insert("REVISION".to_owned(), ask.revision.to_string());
    (task.resources.cpu, task.resources.memory_mb) = (Some(10), Some(10));
    task.logs = Some(model::task::LogConfig { max_files: Some(1), max_file_size_mb: Some(1), ..Default::default() });
    let update = Update {
        min_healthy_time: Some(GoDuration::from_secs(2)),
        health_check: Some("task_states".to_owned()),
        max_parallel: Some(2),
        // Longer than any trouble: an update that has failed leaves the rest as it was, and is not what is asked for.
        healthy_deadline: Some(GoDuration::from_secs(2 * 3600)),
        progress_deadline: Some(GoDuration::from_secs(4 * 3600)),
        ..Update::default()
    };
    let restart = model::Restart {
        attempts: Some(100),
        interval: Some(GoDuration::from_secs(3600)),
        delay: Some(GoDuration::from_secs(5)),
        mode: Some("delay".to_owned()),
        ..Default::default()
    };
    let group = TaskGroup {
        name: "g".into(),
        count: i32::try_from(ask.count).ok(),
        tasks: vec![task],
        update: Some(update),
        restart: Some(restart),
        ephemeral_disk: Some(model::job::EphemeralDisk { size_mb: Some(10), ..Default::default() }),
        ..TaskGroup::default()
    };
    Job {
        id: id.into(),
        name: id.to_owned(),
        kind: "service".to_owned(),
        datacenters: vec!["dc1".to_owned()],
        task_groups: vec![group].into(),
        ..Job::default()
    }
}

//! The loop of one allocation: takes commands and results, asks the machine, writes records, then carries out effects.

use std::{
    collections::{BTreeMap, BTreeSet},
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use hooks::{
    checks::{self, Probe},
    network::{self, AllocNetwork, SharedNetwork, hook as shared_network},
    place::{Moved, TaskPlace},
    services,
};
use host::{clock::now_ns, cpuset::Reserving};
use lifecycle::{
    alloc::{
        events,
        inbox::{Deliver, Inbox, LoopEnded},
        kept::Kept,
        machine::{Effect, Event, Machine, Now, StartFailure},
        record::{AllocRecord, TaskRecord},
    },
    identities::renewed,
};
use model::{AllocClientUpdate, Allocation, CheckResult, Job, Map, TaskRunState, remote::slot_of};
use node_record::store::{StoredJob, Write};
use tokio::{
    sync::{oneshot, watch},
    task::JoinError,
    time::Sleep,
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use super::{
    cleaning::Cleaning,
    effects::Stopped,
    parts::Parts,
    queue::{self, queue},
    timers::Timers,
    works::Works,
};
use crate::{collection::Standing, error::RequestError, session::Placed};

/// How long an ending agent waits for what drivers are at.
const GRACE: Duration = Duration::from_secs(5);
/// After this long records that could not be written are tried again.
const RETRY_SAVE: Duration = Duration::from_secs(1);

/// What an allocation is told.
#[derive(Debug)]
pub(crate) enum AllocCommand {
    /// The servers have changed it.
    Changed(Placed),
    /// The servers prove anew that they have sent it, with its job as they wrote it this time.
    Proved(Arc<StoredJob>, Option<Arc<str>>),
    /// The servers have collected it.
    Removed,
    /// The node collects it, unless it has to stay.
    Collect,
    /// The servers have been heard.
    Contacted,
    /// The servers are to be told again what is known of it.
    Repeat,
    /// The agent ends for good: local tasks are stopped.
    StopLocal,
    /// No server is heard (true), or one is heard again.
    CutOff(bool),
    Restart {
        task: Option<String>,
        all: bool,
        reply: oneshot::Sender<Result<(), RequestError>>,
    },
    Signal {
        task: Option<String>,
        signal: String,
        reply: oneshot::Sender<Result<(), RequestError>>,
    },
    /// Something has come to pass that its state depends on.
    Event(Event),
}

/// The way to an allocation's loop.
#[derive(Clone, Debug)]
pub(crate) struct AllocCommands(queue::Sender<AllocCommand>);

impl AllocCommands {
    fn new() -> (Self, queue::Receiver<AllocCommand>) {
        let (commands, receiver) = queue();
        (Self(commands), receiver)
    }

    pub(crate) fn send(&self, command: AllocCommand) -> Result<(), LoopEnded> {
        self.0.send(command)
    }
}

impl Deliver for AllocCommands {
    fn deliver(&self, event: Event) -> Result<(), LoopEnded> {
        self.send(AllocCommand::Event(event))
    }
}

/// What others see of an allocation.
#[derive(Clone, Debug)]
pub(crate) struct AllocView {
    /// As the servers have sent it; what became of it here is in `update`.
    pub(crate) alloc: Arc<Allocation>,
    pub(crate) job: Arc<Job>,
    /// The job as the servers wrote it, and their proof that they have sent both.
    pub(crate) sent: (Arc<StoredJob>, Option<Arc<str>>),
    pub(crate) update: Arc<AllocClientUpdate>,
    /// Driver's ids of running tasks.
    pub(crate) runs: BTreeMap<Arc<str>, String>,
    /// What the local tasks claim, for the node's books.
    pub(crate) claims: BTreeMap<Arc<str>, Holds>,
    /// Its network namespace, if it has one.
    pub(crate) network: SharedNetwork,
    /// Tasks that live in a remote runtime.
    pub(crate) remote: Box<[Arc<str>]>,
    /// Those whose output may be collected here: they are not over, or what was made for it is being removed.
    pub(crate) collected: Box<[Arc<str>]>,
    /// Results of the checks of its services.
    pub(crate) checks: Vec<CheckResult>,
    /// Nothing is left to do here.
    pub(crate) over: bool,
    /// This agent has told the servers what is shown here, or is about to. Not so of what it has just restored.
    pub(crate) told: bool,
    /// When it ended, Unix ns.
    pub(crate) ended_at: i64,
}

/// What a local task may have on this node. Told before it comes to be, and until it is gone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Holds {
    /// Log collector, FIFOs, cgroups: what lasts from the first start to the end.
    pub(crate) alive: bool,
    /// Starts that may have processes.
    pub(crate) runs: Vec<String>,
}

/// How the node reaches an allocation's loop.
#[derive(Clone, Debug)]
pub(crate) struct AllocHandle {
    pub(crate) commands: AllocCommands,
    pub(crate) view: watch::Receiver<Arc<AllocView>>,
}

/// Where the output of a remote task goes.
enum Output {
    /// It is given a place.
    Placing(AbortOnDropHandle<()>),
    /// It has one, or needs none.
    Placed,
    /// The task is over for this allocation.
    Over,
}

/// The loop's own state. Of maps those that take no memory without an entry, or no more than for one.
pub(crate) struct AllocLoop {
    parts: Arc<Parts>,
    machine: Machine,
    stored_job: Arc<StoredJob>,
    commands: queue::Receiver<AllocCommand>,
    /// As hooks know the loop.
    inbox: Inbox,
    view: watch::Sender<Arc<AllocView>>,
    saved_alloc: Option<Kept<AllocRecord>>,
    saved_tasks: Map<Arc<str>, Kept<TaskRecord>>,
    held: Vec<Effect>,
    effects: Works<Option<Event>>,
    /// Work that nothing waits for but the removal of the directory.
    cleanups: Works<Arc<str>>,
    cleaning: Cleaning,
    exits: BTreeMap<String, CancellationToken>,
    /// By remote task.
    outputs: Map<Arc<str>, Output>,
    /// Starts under way; cancelled when they are no longer wanted.
    starts: BTreeMap<String, CancellationToken>,
    published: Option<Arc<AllocClientUpdate>>,
    timers: Timers,
    /// Services that people were told about.
    problems: BTreeMap<String, String>,
    checks: BTreeMap<String, checks::Running>,
    network: SharedNetwork,
    /// Runs that a former agent has started, while nobody has looked at their network.
    inherited: BTreeSet<String>,
    moved: Moved,
    /// Of its tasks with cores for themselves.
    reserving: Option<Reserving>,
    destroyed: bool,
}

/// A restored machine's records count as saved: only what changes is written.
pub(crate) struct Origin {
    pub(crate) record: AllocRecord,
    pub(crate) job: Arc<Job>,
    pub(crate) stored_job: Arc<StoredJob>,
    pub(crate) tasks: Vec<(Arc<str>, Kept<TaskRecord>)>,
}

/// Waits for the timer, and without one for ever. Cancel safe: the timer goes on.
async fn over(timer: Option<&mut Pin<Box<Sleep>>>) {
    match timer {
        Some(timer) => timer.await,
        None => std::future::pending().await,
    }
}

impl AllocLoop {
    /// Makes the loop and its handle; nothing happens before [`AllocLoop::run`]. Boxed: wherever it is moved to on
    /// its way into its task, that would keep room for all of it.
    pub(crate) fn new(parts: Arc<Parts>, origin: Origin) -> (Box<Self>, AllocHandle) {
        let Origin { record, job, stored_job, tasks } = origin;
        let max_kill = model::GoDuration::from(parts.max_kill_timeout);
        let restored = !tasks.is_empty();
        let saved_tasks = tasks.iter().cloned().collect();
        let inherited = tasks.iter().filter_map(|(_, record)| record.run.as_ref().map(|run| run.id.clone())).collect();
        let machine = Machine::new(record, job, tasks, max_kill);
        let saved_alloc = restored.then(|| machine.record().clone());
        let reserving = parts.cores.reserving(machine.alloc());
        let (to_loop, commands) = AllocCommands::new();
        let network = Arc::new(AllocNetwork::open(&parts.networks, machine.id()));
        let (view, seen) = watch::channel(Arc::new(view_of(&machine, &stored_job, &Cleaning::default(), &network)));
        let inbox = Inbox::new(to_loop.clone());
        let handle = AllocHandle { commands: to_loop, view: seen };
        let this = Box::new(Self {
            parts,
            machine,
            stored_job,
            commands,
            inbox,
            view,
            saved_alloc,
            saved_tasks,
            held: Vec::new(),
            effects: Works::default(),
            cleanups: Works::default(),
            cleaning: Cleaning::default(),
            exits: BTreeMap::new(),
            outputs: Map::new(),
            starts: BTreeMap::new(),
            published: None,
            timers: Timers::default(),
            problems: BTreeMap::new(),
            checks: BTreeMap::new(),
            network,
            inherited,
            moved: Moved::default(),
            reserving,
            destroyed: false,
        });
        (this, handle)
    }

    /// Runs until the allocation is destroyed (true) or the node stops (false: everything is left as it is).
    pub(crate) async fn run(mut self: Box<Self>) -> bool {
        self.register_remote();
        // What is done now and then is boxed, here and below: the state of a quiet loop is what thousands of
        // allocations cost.
        Box::pin(self.apply(Event::Begin)).await;
        let stop = self.parts.stop.clone();
        // Exists while something waits for being saved.
        let mut retry_save: Option<Pin<Box<Sleep>>> = None;
        while !self.destroyed {
            if self.held.is_empty() {
                retry_save = None;
            } else if retry_save.is_none() {
                retry_save = Some(Box::pin(tokio::time::sleep(RETRY_SAVE)));
            }
            // Every arm is cancel safe: a token, a queue, two sets of tasks, timers.
            tokio::select! {
                () = stop.cancelled() => {
                    Box::pin(self.finish()).await;
                    return false;
                }
                command = self.commands.recv() => Box::pin(self.command(command)).await,
                Some(done) = self.effects.join_next() => match done {
                    Ok(Some(event)) => Box::pin(self.apply(event)).await,
                    Ok(None) => {}
                    Err(error) => tracing::error!(alloc = %self.machine.id(), %error, "an effect broke off"),
                },
                Some(done) = self.cleanups.join_next() => self.cleaned(done),
                timer = self.timers.next() => Box::pin(self.apply(Event::Due(timer))).await,
                () = over(retry_save.as_mut()) => {
                    retry_save = None;
                    Box::pin(self.settle()).await;
                }
            }
        }
        true
    }

    /// What a driver is at is waited for, so that its handle is known to the next agent and nothing of an ended task
    /// stays; nothing else is begun.
    async fn finish(&mut self) {
        for start in self.cleaning.let_go() {
            // Interrupted by the end of the agent.
            self.start(start);
        }
        let limit = tokio::time::sleep(GRACE);
        tokio::pin!(limit);
        while self.machine.unsettled() || !self.cleanups.is_empty() {
            tokio::select! {
                () = &mut limit => return,
                Some(_) = self.cleanups.join_next() => {}
                Some(done) = self.effects.join_next() => {
                    let Ok(Some(event @ (Event::Started { .. } | Event::Freed { .. }))) = done else { continue };
                    let now = self.now();
                    let effects = self.machine.apply(event, now);
                    if self.parts.store.commit(self.changes()).await.is_err() {
                        return;
                    }
                    self.held = effects.into_iter().filter(|e| matches!(e, Effect::TaskOver { .. })).collect();
                    self.publish();
                    for over in std::mem::take(&mut self.held) {
                        self.perform(over).await;
                    }
                }
                else => return,
            }
        }
    }

    async fn command(&mut self, command: AllocCommand) {
        match command {
            AllocCommand::Changed(placed) => {
                self.reserving = self.parts.cores.reserving(&placed.alloc);
                self.stored_job = placed.stored;
                self.machine.prove(placed.proof);
                self.apply(Event::Changed(placed.alloc, placed.job)).await;
                self.register_remote();
            }
            AllocCommand::Proved(stored, proof) => {
                self.stored_job = stored;
                self.machine.prove(proof);
                self.settle().await;
            }
            AllocCommand::Removed => self.apply(Event::Removed).await,
            AllocCommand::Collect => {
                // Whoever sent this has looked a moment ago.
                let standing = Standing::of(&self.view.borrow());
                if standing.with(&self.parts.outbox, self.machine.id()).stays().is_none() && self.machine.over() {
                    self.apply(Event::Removed).await;
                }
            }
            AllocCommand::Contacted => {
                self.apply(Event::Contacted).await;
                self.repeat_services();
            }
            AllocCommand::Repeat => {
                if let Some(update) = self.published.clone() {
                    self.parts.outbox.alloc(update);
                }
            }
            AllocCommand::StopLocal => self.apply(Event::StopLocal).await,
            AllocCommand::CutOff(is) => self.apply(Event::CutOff(is)).await,
            AllocCommand::Event(event) => self.apply(event).await,
            AllocCommand::Restart { task, all, reply } => {
                let answer = self.restart(task.as_deref(), all).await;
                // The asker may have gone.
                let _ = reply.send(answer);
            }
            AllocCommand::Signal { task, signal, reply } => self.signal(task.as_deref(), &signal, reply).await,
        }
    }

    /// Remote tasks are driven by the remote loop; it is told what they are made of.
    fn register_remote(&self) {
        let alloc = self.machine.alloc().share();
        for (task, _) in self.machine.tasks().filter(|(t, _)| self.machine.is_remote_task(t)) {
            self.parts.remote.interest(remote_manager::Interest {
                slot: slot_of(&alloc, task),
                alloc: alloc.clone(),
                job: self.machine.job().clone(),
                task: task.clone(),
                inbox: self.inbox.clone(),
            });
        }
    }

    fn now(&self) -> Now {
        Now { time: now_ns(), seed: self.parts.seeds.next() }
    }

    async fn apply(&mut self, event: Event) {
        if let Event::Exited { run, .. } = &event
            && let Some(over) = self.exits.remove(run)
        {
            over.cancel();
        }
        if let Event::Started { run, .. } = &event {
            self.starts.remove(run);
        }
        let now = self.now();
        let effects = self.machine.apply(event, now);
        self.held.extend(effects);
        self.settle().await;
    }

    /// Writes what has changed, tells the servers, then does what was decided. Without the write nothing is done; it
    /// is tried again.
    async fn settle(&mut self) {
        let begin = std::time::Instant::now();
        let writes = self.changes();
        if !writes.is_empty() {
            if let Err(error) = self.parts.store.commit(writes).await {
                tracing::error!(alloc = %self.machine.id(), %error, "waiting with what follows until the records can \
                    be written");
                // Ends were ordered elsewhere and are ordered again after a crash. They do not wait: what fills the
                // disk can be stopped.
                let (ends, waits) = std::mem::take(&mut self.held).into_iter().partition(Effect::only_ends);
                self.held = waits;
                for effect in ends {
                    self.perform(effect).await;
                }
                return;
            }
            self.saved_alloc = Some(self.machine.record().clone());
            self.saved_tasks = self.machine.tasks().map(|(n, r)| (n.clone(), r.clone())).collect();
        } else if let Some(saved) = &self.saved_alloc {
            self.machine.saved(saved, &self.saved_tasks);
        }
        tracing::trace!(alloc = %self.machine.id(), took = ?begin.elapsed(), "records written");
        self.follow_outputs();
        self.publish();
        for effect in std::mem::take(&mut self.held) {
            self.perform(effect).await;
        }
        if self.machine.local_dead() && self.network.release() {
            let (networks, network) = (self.parts.networks.clone(), self.network.clone());
            self.clean(Arc::from(""), async move { shared_network::end(&networks, &network).await });
        }
    }

    /// The output of a remote task has its place as long as the task is not over for this allocation.
    fn follow_outputs(&mut self) {
        let remote = self.machine.tasks().filter(|(t, _)| self.machine.is_remote_task(t));
        let remote: Vec<(Arc<str>, bool)> =
            remote.map(|(t, record)| (t.clone(), record.state.state == TaskRunState::Dead)).collect();
        for (task, dead) in remote {
            match (self.outputs.get(&task), dead) {
                (None, false) => {
                    let (outputs, place) = (self.parts.outputs.clone(), self.place(&task));
                    // Boxed: of most of them only the handle is left in a moment.
                    let placed = tokio::spawn(Box::pin(async move { outputs.make_room(&place).await }));
                    self.outputs.insert(task, Output::Placing(AbortOnDropHandle::new(placed)));
                }
                // An agent before this one may have made it.
                (None | Some(Output::Placing(_) | Output::Placed), true) => {
                    let before = self.outputs.insert(task.clone(), Output::Over);
                    self.end_output(task, before);
                }
                // A handle keeps what its task was made of.
                (Some(Output::Placing(placing)), false) if placing.is_finished() => {
                    self.outputs.insert(task, Output::Placed);
                }
                (Some(Output::Placing(_) | Output::Placed), false) | (Some(Output::Over), _) => {}
            }
        }
    }

    fn end_output(&mut self, task: Arc<str>, before: Option<Output>) {
        let (outputs, place) = (self.parts.outputs.clone(), self.place(&task));
        self.clean(task, async move {
            if let Some(Output::Placing(placing)) = before {
                placing.abort();
                let _ = placing.await;
            }
            outputs.over(&place).await;
        });
    }

    fn clean(&mut self, task: Arc<str>, work: impl Future<Output = ()> + Send + 'static) {
        self.cleaning.begun(task.clone());
        self.cleanups.spawn(async move {
            work.await;
            task
        });
    }

    fn cleaned(&mut self, done: Result<Arc<str>, JoinError>) {
        let mut starts: Vec<Effect> = match done {
            Ok(task) => self.cleaning.ended(&task).into_iter().collect(),
            Err(error) => {
                tracing::error!(alloc = %self.machine.id(), %error, "a clean-up broke off");
                Vec::new()
            }
        };
        if self.cleanups.is_empty() {
            // Whose the one was that broke off is not known: none is under way any more.
            starts.extend(self.cleaning.none_left());
        }
        self.publish();
        let cores = self.parts.cores.clone();
        self.effects.spawn(async move {
            // What it had for itself is everybody's again.
            cores.settle().await;
            None
        });
        for start in starts {
            self.start(start);
        }
    }

    fn changes(&self) -> Vec<Write> {
        let id = self.machine.id().to_string();
        let mut writes = Vec::new();
        if self.saved_alloc.as_ref() != Some(self.machine.record()) {
            let record = serde_json::to_vec(self.machine.record()).unwrap_or_default();
            writes.push(Write::Alloc { id: id.clone(), job: self.stored_job.clone(), record });
        }
        for (task, record) in self.machine.tasks().filter(|(t, r)| self.saved_tasks.get(*t) != Some(r)) {
            let record = serde_json::to_vec(record).unwrap_or_default();
            writes.push(Write::Task { alloc: id.clone(), task: task.to_string(), record });
        }
        writes
    }

    fn publish(&mut self) {
        // Announced with the record that lets go of everything else, not a moment later.
        for effect in &self.held {
            if let Effect::TaskOver { task } = effect {
                self.cleaning.announce(task.clone());
            }
        }
        let mut view = view_of(&self.machine, &self.stored_job, &self.cleaning, &self.network);
        let group = self.machine.group();
        let network_status =
            Some(Box::new(network::reached(self.network.status(), view.alloc.network_status.as_deref(), group)));
        let mut standing = services::standing(&self.parts.env, &self.machine, network_status.as_deref());
        self.say_problems(&standing.problems);
        let mut update = AllocClientUpdate::clone(&view.update);
        self.reconcile_checks(std::mem::take(&mut standing.probes));
        standing.put_into(&mut update);
        update.network_status = network_status;
        // As it was told, where nothing has changed.
        let told = self.published.clone().filter(|told| **told == update);
        let news = told.is_none();
        let update = told.unwrap_or_else(|| Arc::new(update));
        view.update = update.clone();
        view.told = true;
        let shown = &self.view;
        let show = || drop(shown.send_replace(Arc::new(view)));
        if news {
            self.published = Some(update.clone());
            self.parts.outbox.alloc_shown(update, show);
        } else {
            show();
        }
    }

    /// Tells people once which services are not registered, and why.
    fn say_problems(&mut self, problems: &BTreeMap<String, String>) {
        if self.problems == *problems {
            return;
        }
        for (service, why) in problems.iter().filter(|(s, why)| self.problems.get(*s) != Some(why)) {
            tracing::warn!(alloc = %self.machine.id(), service, why, "a service is not as its job wants it");
            // Takes effect with the next event; the loop itself is the receiver and does not go away meanwhile.
            let _ = self.inbox.send(Event::ServiceProblem { service: service.clone(), why: why.clone() });
        }
        self.problems.clone_from(problems);
    }

    /// Brings the loops of the checks in line with what is to be checked.
    fn reconcile_checks(&mut self, mut wanted: BTreeMap<String, Probe>) {
        self.checks.retain(|key, running| wanted.get(key) == Some(&running.probe));
        wanted.retain(|key, _| !self.checks.contains_key(key));
        for (key, probe) in wanted {
            // A check that is known already (after a start of the agent) does not run in this instant, with all others.
            let known = self.machine.check_has_run(&key);
            let spread = u32::try_from(1 + self.parts.seeds.next() % 999).unwrap_or(1);
            let pause = if known { probe.interval * spread / 1000 } else { Duration::ZERO };
            let running = self.parts.checks.start(key.clone(), probe, pause, self.inbox.clone());
            self.checks.insert(key, running);
        }
    }

    /// Says again what of services has been said: the servers may have forgotten it while they took the node for lost.
    fn repeat_services(&mut self) {
        let said = |u: &Arc<AllocClientUpdate>| {
            u.services.as_ref().is_some_and(|s| !s.is_empty()) || !u.remote_services.is_empty()
        };
        if let Some(update) = self.published.clone().filter(said) {
            self.parts.outbox.alloc(update);
        }
    }

    fn place(&self, task: &Arc<str>) -> TaskPlace {
        let view = self.view.borrow();
        let inbox = self.inbox.clone();
        let (network, moved) = (self.network.clone(), self.moved.clone());
        let dirs = self.parts.env.dirs(view.alloc.id);
        let (alloc, job, task) = (view.alloc.clone(), view.job.clone(), task.clone());
        TaskPlace { alloc, job, task, dirs, inbox, network, moved, last_start: false }
    }

    /// Cancelled when the end of the run is known.
    fn over(&mut self, run: &str) -> CancellationToken {
        self.exits.entry(run.to_owned()).or_default().clone()
    }

    async fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::Start { ref task, ref run } => {
                // Also for whoever interrupts it while it waits.
                self.starts.insert(run.clone(), self.parts.stop.child_token());
                let task = task.clone();
                if let Some(start) = self.cleaning.wait(&task, effect) {
                    self.start(start);
                }
            }
            Effect::Recover { task, run, handle } => {
                let (runs, place) = (self.parts.runs.clone(), self.place(&task));
                let over = self.over(&run);
                self.effects.spawn(async move {
                    let result = over.run_until_cancelled(runs.recover(&place, &handle)).await?;
                    Some(Event::Recovered { task, run, result })
                });
            }
            Effect::Wait { task, run, handle } => {
                let (runs, place) = (self.parts.runs.clone(), self.place(&task));
                let over = self.over(&run);
                self.watch_data(&task, &run, &over);
                self.effects.spawn(async move {
                    let exit = over.run_until_cancelled(runs.wait(&place, &run, &handle)).await?;
                    Some(Event::Exited { task, run, exit })
                });
            }
            Effect::Stop { task, run, signal, timeout } => {
                let (runs, place) = (self.parts.runs.clone(), self.place(&task));
                let over = self.over(&run);
                self.effects.spawn(async move {
                    match over.run_until_cancelled(runs.stop(&place, &run, &signal, timeout)).await? {
                        Stopped::ByDriver => None,
                        Stopped::Refused(why) => Some(Event::StopFailed { task, run, why }),
                        Stopped::Contained(exit) => Some(Event::Exited { task, run, exit }),
                    }
                });
            }
            Effect::EndUnattended { task, run } => {
                let (runs, place) = (self.parts.runs.clone(), self.place(&task));
                let over = self.over(&run);
                self.effects.spawn(async move {
                    let exit = over.run_until_cancelled(runs.end_unattended(&place, &run)).await??;
                    Some(Event::Exited { task, run, exit })
                });
            }
            Effect::Free { task, run, handle, known, lost } => {
                let (runs, place) = (self.parts.runs.clone(), self.place(&task));
                self.effects.spawn(async move {
                    let owed = runs.free(&place, &run, handle.as_deref(), known, lost).await;
                    Some(Event::Freed { task, run, owed })
                });
            }
            Effect::Settle { task, run, handle } => {
                let (runs, place) = (self.parts.runs.clone(), self.place(&task));
                self.effects.spawn(async move {
                    runs.settle(&place, &run, handle.as_deref()).await;
                    Some(Event::Settled { task, run })
                });
            }
            Effect::TaskOver { task } => {
                let (runs, place) = (self.parts.runs.clone(), self.place(&task));
                self.clean(task, async move { runs.task_over(&place).await });
            }
            Effect::Unhealthy { task, incarnation, why } => {
                let slot = slot_of(self.machine.alloc(), &task);
                self.parts.remote.unhealthy(slot, incarnation, why);
            }
            Effect::Interrupt { run } => {
                if let Some(start) = self.starts.get(&run) {
                    start.cancel();
                }
            }
            Effect::Wake { at, timer } => {
                let wait = u64::try_from(at.saturating_sub(now_ns())).unwrap_or(0);
                self.timers.add(Duration::from_nanos(wait), timer);
            }
            Effect::Destroy => self.destroy().await,
        }
    }

    /// Carries out a start that nothing keeps back any more.
    fn start(&mut self, start: Effect) {
        let Effect::Start { task, run } = start else { return };
        let last_start = self.machine.is_last_start(&task, now_ns());
        let (starter, place) = (self.parts.starter.clone(), TaskPlace { last_start, ..self.place(&task) });
        let interrupted = self.starts.get(&run).cloned().unwrap_or_else(|| self.parts.stop.child_token());
        self.effects.spawn(async move {
            let result = match interrupted.is_cancelled() {
                true => Err(StartFailure::Interrupted),
                false => starter.start(&place, &run, &interrupted).await,
            };
            Some(Event::Started { task, run, result })
        });
    }

    /// Beside the wait for the end of a run; ends with it.
    fn watch_data(&mut self, task: &Arc<str>, run: &str, over: &CancellationToken) {
        if self.inherited.remove(run) && self.network.claimed() {
            let networks = self.parts.networks.clone();
            let (place, run, over) = (self.place(task), run.to_owned(), over.clone());
            self.effects.spawn(async move {
                over.run_until_cancelled(shared_network::watch(&networks, &place, &run)).await;
                None
            });
        }
        let Some(spec) = self.machine.group().and_then(|g| g.task(task)) else { return };
        let (templates, tokens, vault) = (!spec.templates.is_empty(), renewed(spec), spec.vault.is_some());
        if templates {
            let templates = self.parts.templates.clone();
            let (place, run, over) = (self.place(task), run.to_owned(), over.clone());
            self.effects.spawn(async move {
                over.run_until_cancelled(templates.watch(&place, &run)).await;
                None
            });
        }
        if vault {
            let vault = self.parts.vault.clone();
            let (place, run, over) = (self.place(task), run.to_owned(), over.clone());
            self.effects.spawn(async move {
                over.run_until_cancelled(vault.watch(&place, &run)).await;
                None
            });
        }
        if tokens {
            let identities = self.parts.identities.clone();
            let (place, run, over) = (self.place(task), run.to_owned(), over.clone());
            self.effects.spawn(async move {
                over.run_until_cancelled(identities.watch(&place, &run)).await;
                None
            });
        }
    }

    async fn destroy(&mut self) {
        // Remote tasks live on, without a place for their output here.
        for (task, output) in std::mem::take(&mut self.outputs) {
            if !matches!(output, Output::Over) {
                self.end_output(task, Some(output));
            }
        }
        // What is still being cleaned up uses the directory.
        while let Ok(Some(_)) = tokio::time::timeout(Duration::from_secs(15), self.cleanups.join_next()).await {}
        let place = self.place(&Arc::from(""));
        let id = self.machine.id();
        for (task, _) in self.machine.tasks().filter(|(t, _)| self.machine.is_remote_task(t)) {
            self.parts.remote.no_interest(slot_of(&place.alloc, task), id).await;
        }
        self.parts.runs.destroy(&place).await;
        if let Err(error) = self.parts.store.commit(vec![Write::Forget(id.to_string())]).await {
            tracing::error!(alloc = %id, %error, "the record of a collected allocation stays until the next start");
        }
        self.destroyed = true;
    }

    async fn restart(&mut self, task: Option<&str>, all: bool) -> Result<(), RequestError> {
        let tasks: Vec<Arc<str>> = match task {
            Some(name) => {
                if !self.machine.has_task(name) {
                    return Err(RequestError::Failed(format!("Could not find task named: {name}")));
                }
                if self.machine.is_remote_task(name) {
                    return Err(RequestError::Invalid(format!(
                        "task {name:?} lives in a remote runtime: restart it with `remote restart`, the servers \
                            order it"
                    )));
                }
                if self.machine.alive(name).is_none() && !all {
                    return Err(RequestError::Failed("Task not running".to_owned()));
                }
                vec![Arc::from(name)]
            }
            None => self.machine.tasks().map(|(n, _)| n.clone()).collect(),
        };
        let why = match (task, all) {
            (Some(_), _) => events::BY_USER,
            (None, false) => events::RUNNING_BY_USER,
            (None, true) => events::ALL_BY_USER,
        };
        self.apply(Event::RestartAsked { tasks, also_dead: all, why }).await;
        Ok(())
    }

    async fn signal(&mut self, task: Option<&str>, signal: &str, reply: oneshot::Sender<Result<(), RequestError>>) {
        if let Some(name) = task
            && !self.machine.has_task(name)
        {
            let _ = reply.send(Err(RequestError::Failed(format!("Could not find task named: {name}"))));
            return;
        }
        let wanted = |name: &str| task.is_none_or(|t| t == name);
        let running: Vec<(Arc<str>, Option<String>)> = self
            .machine
            .tasks()
            .filter(|(n, r)| wanted(n) && r.state.state == TaskRunState::Running)
            .map(|(n, _)| (n.clone(), self.machine.alive(n).map(|r| r.id.clone())))
            .collect();
        if running.is_empty() {
            let _ = reply.send(Err(RequestError::Failed("Task not running".to_owned())));
            return;
        }
        for (name, _) in &running {
            self.apply(Event::SignalAsked { task: name.clone(), signal: signal.to_owned() }).await;
        }
        let signal = signal.to_owned();
        let places: Vec<_> = running.into_iter().map(|(n, run)| (self.place(&n), run)).collect();
        let (drivers, remote) = (self.parts.runs.drivers.clone(), self.parts.remote.clone());
        self.effects.spawn(async move {
            let mut answer = Ok(());
            for (place, run) in places {
                let sent = match run {
                    Some(run) => drivers.signal(place.driver_name(), &run, &signal).await,
                    None => remote.signal(slot_of(&place.alloc, &place.task), &signal).await,
                };
                if let Err(why) = sent {
                    answer = Err(RequestError::Failed(format!("task {:?}: {why}", place.task)));
                }
            }
            let _ = reply.send(answer);
            None
        });
    }
}

fn holds(record: &TaskRecord, cleaning: bool) -> Holds {
    let runs: Vec<String> = record.run.iter().chain(&record.owed).map(|run| run.id.clone()).collect();
    let alive = cleaning || !runs.is_empty() || record.state.state != TaskRunState::Dead;
    Holds { alive, runs }
}

fn view_of(machine: &Machine, stored: &Arc<StoredJob>, cleaning: &Cleaning, network: &SharedNetwork) -> AllocView {
    AllocView {
        network: network.clone(),
        alloc: machine.alloc().share(),
        job: machine.job().clone(),
        sent: (stored.clone(), machine.record().proof.clone()),
        update: Arc::new(machine.update()),
        runs: machine.tasks().filter_map(|(n, _)| Some((n.clone(), machine.running(n)?.id.clone()))).collect(),
        claims: machine
            .tasks()
            .filter(|(n, _)| !machine.is_remote_task(n))
            .map(|(n, record)| (n.clone(), holds(record, cleaning.contains(n))))
            .collect(),
        remote: machine.tasks().map(|(n, _)| n).filter(|n| machine.is_remote_task(n)).cloned().collect(),
        collected: machine
            .tasks()
            .filter(|(n, record)| {
                machine.is_remote_task(n) && (record.state.state != TaskRunState::Dead || cleaning.contains(n))
            })
            .map(|(n, _)| n.clone())
            .collect(),
        checks: machine.check_results(),
        over: machine.over(),
        told: false,
        ended_at: machine.record().ended_at,
    }
}

//! Supervision of remote tasks: carries the pure transition function of `lifecycle::remote` over the snapshot.
//!
//! A slot is looked at when something that it depends on has changed (its record, an allocation of it, its job, a node that has to do with it,
//! the time of a restart). What is seen becomes events, events become changes of the record, and the sessions of the nodes derive their orders
//! from the published record: nothing here is remembered that a restart could lose. Everything that is only remembered for speed (which slots to
//! look at, when to wake) is filled again from the snapshot.

use std::{
    cell::LazyCell,
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::Ordering},
    time::Duration,
};

use lifecycle::remote::{
    Context, Effect, Event, Step, awaits_finisher, guarantee, parts,
    reconcile::{SlotFacts, events_for, needs_executor, slot_covered},
    transition, wake_at,
};
use model::{
    Allocation, ClientStatus, Deployment, DesiredStatus, EvalStatus, Evaluation, Job, JobKey, Node, NodeId, NodeStatus, RemoteImport,
    RemoteReport, RemoteTask, RemoteWanted, SlotKey, Text, TimestampNs, Trigger,
    node::RemoteProvider,
    remote::{Guarantee, Manager, RemotePolicy, slot_of},
    task::Task,
};
use state::{Batch, Change, Object, State};
use tokio::sync::{Notify, oneshot};

use crate::{
    clock::{new_id, now_ns},
    commit::{Commit, Decided, Stamp},
    error::{Kind, ServerError},
    shared::Shared,
    sweep::Sweeps,
};

/// After a refused commit everything is looked at again this much later.
const RETRY: Duration = Duration::from_secs(1);

/// What is to be looked at.
#[derive(Debug, Default)]
struct Dirty {
    all: bool,
    slots: BTreeSet<SlotKey>,
    jobs: BTreeSet<JobKey>,
    nodes: BTreeSet<NodeId>,
}

/// The signals of the loop.
#[derive(Debug, Default)]
pub(crate) struct Supervision {
    dirty: Mutex<Dirty>,
    wake: Notify,
}

/// Does this node run the task in a remote runtime?
fn provider_of<'a>(node: Option<&'a Arc<Node>>, driver: &str) -> Option<&'a str> {
    node?.drivers.get(driver)?.remote.as_ref().map(|remote| &*remote.provider)
}

/// What is promised of a remote task. The word of its manager comes first, then that of any node that reaches the provider.
pub(crate) fn guarantee_of(state: &State, record: &RemoteTask) -> Guarantee {
    let same = |declared: &&RemoteProvider| record.provider.is_empty() || declared.provider == record.provider;
    let manager = record.manager.as_ref().and_then(|m| state.node(m.node_id));
    let own = manager.and_then(|node| node.drivers.get(&*record.driver)?.remote.as_ref()).filter(same);
    guarantee(own.or_else(|| state.fleet().runtimes(&record.driver).map(|runtime| runtime.provider).find(same)))
}

/// What a person should know of the job's remote tasks before it is registered: a line for each driver whose provider leaves something open.
pub(crate) fn warnings(state: &State, job: &Job) -> Vec<String> {
    let mut tasks: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for task in job.task_groups.iter().flat_map(|group| &group.tasks) {
        tasks.entry(&task.driver).or_default().push(&task.name);
    }
    let mut lines = BTreeSet::new();
    let patient = |group: &&model::TaskGroup| group.patience().is_some() || group.stop_on_client_after().is_some();
    for group in job.task_groups.iter().filter(patient) {
        let far = |task: &&model::Task| state.fleet().runtimes(&task.driver).next().is_some();
        let far: Vec<&str> = group.tasks.iter().filter(far).map(|task| &*task.name).collect();
        if !far.is_empty() {
            lines.insert(format!(
                "group {:?}: what is said about disconnected nodes does not apply to remote tasks ({}): they run on, are managed by another \
                 node as soon as the lease of theirs has run out, and are never stopped or doubled for it",
                group.name,
                far.join(", ")
            ));
        }
    }
    if model::job::job_type::everywhere(&job.kind) {
        lines.extend(scheduler::mixed_groups(state, job).map(|group| {
            format!(
                "group {:?} is not placed on nodes where some of its tasks run on the node and others elsewhere: a job of type {:?} has one \
                 allocation on each node, or one at each provider; make two groups of it",
                group.name, job.kind
            )
        }));
    }
    for (driver, tasks) in &tasks {
        for provider in usable(state, driver) {
            let Guarantee { level, limits, .. } = guarantee(Some(provider));
            if limits.is_empty() {
                continue;
            }
            lines.insert(format!(
                "remote tasks of driver {driver:?} ({}) at provider {:?} have the guarantee \"{level}\": {}",
                tasks.join(", "),
                provider.provider,
                limits.join("; ")
            ));
        }
    }
    lines.into_iter().collect()
}

/// What the job's tasks ask for that cannot reach the runtimes of their drivers, as far as nodes have told of them. A driver that also runs tasks on
/// some node, or reaches a runtime that can have it, refuses nothing here.
pub(crate) fn undeliverable(state: &State, job: &Job) -> Vec<String> {
    let tasks = job.task_groups.iter().flat_map(|group| &group.tasks);
    let refusals = |task: &Task| {
        // The runtime that takes the most decides.
        let least = usable(state, &task.driver).map(|provider| parts::undeliverable(task, provider)).min_by_key(Vec::len);
        // Nodes are asked only when the task is about to be refused: they are thousands.
        least.filter(|refused| !refused.is_empty() && !runs_on_a_node(state, &task.driver)).unwrap_or_default()
    };
    tasks.flat_map(refusals).collect()
}

/// The runtimes of a driver that a ready node with a healthy one reaches.
fn usable<'a>(state: &'a State, driver: &'a str) -> impl Iterator<Item = &'a RemoteProvider> {
    state.fleet().runtimes(driver).filter(|runtime| runtime.usable).map(|runtime| runtime.provider)
}

/// Is there a ready node that runs tasks of the driver itself?
fn runs_on_a_node(state: &State, driver: &str) -> bool {
    let mut ready = state.nodes().filter(|node| node.status == NodeStatus::Ready);
    ready.any(|node| node.drivers.get(driver).is_some_and(|d| d.healthy && d.remote.is_none()))
}

/// The slots of an allocation's remote tasks.
pub(crate) fn slots_of<'a>(state: &'a State, alloc: &'a Allocation) -> impl Iterator<Item = SlotKey> + 'a {
    let node = state.node(alloc.node_id);
    let tasks = alloc.job.as_deref().and_then(|job| job.group(&alloc.task_group)).map(|group| &*group.tasks).unwrap_or_default();
    tasks.iter().filter_map(move |task| {
        let slot = slot_of(alloc, &task.name);
        (provider_of(node, &task.driver).is_some() || state.remote_task(&slot).is_some()).then_some(slot)
    })
}

/// Are all tasks of the allocation remote? Then moving it touches nothing but its management.
pub(crate) fn only_remote(state: &State, alloc: &Allocation) -> bool {
    let node = state.node(alloc.node_id);
    alloc
        .job
        .as_deref()
        .and_then(|job| job.group(&alloc.task_group))
        .is_some_and(|group| !group.tasks.is_empty() && group.tasks.iter().all(|task| provider_of(node, &task.driver).is_some()))
}

impl Supervision {
    fn lock(&self) -> MutexGuard<'_, Dirty> {
        self.dirty.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at everything again.
    pub(crate) fn fill(&self) {
        self.lock().all = true;
        self.wake.notify_one();
    }

    /// Follows an applied commit.
    pub(crate) fn follow(&self, commit: &Commit) {
        let mut dirty = self.lock();
        let mut some = false;
        for change in &commit.applied.changes {
            match &change.object {
                Object::RemoteTask(record) => some |= dirty.slots.insert(record.slot.clone()),
                Object::Alloc(alloc) => {
                    for slot in slots_of(&commit.state, alloc) {
                        some |= dirty.slots.insert(slot);
                    }
                }
                Object::Job(job) => {
                    let key = job.key();
                    if commit.state.remote_tasks_by_job(&key).next().is_some() {
                        some |= dirty.jobs.insert(key);
                    }
                }
                // Whether a canary is still tried. Progress alone, which each healthy allocation makes, says nothing about slots.
                Object::Deployment(d) if tries_otherwise(commit.before.deployment(d.id), d) => {
                    let key = d.job_key();
                    if commit.state.remote_tasks_by_job(&key).next().is_some() {
                        some |= dirty.jobs.insert(key);
                    }
                }
                Object::Eval(eval) if eval.status == EvalStatus::Blocked => {
                    let key = eval.job_key();
                    if commit.state.remote_tasks_by_job(&key).next().is_some() {
                        some |= dirty.jobs.insert(key);
                    }
                }
                Object::Node(node) => some |= dirty.nodes.insert(node.id),
                _ => {}
            }
        }
        drop(dirty);
        if some {
            self.wake.notify_one();
        }
    }
}

/// Is it another question now which slots the deployment's job wants? Its canaries may have become more, may have been promoted or given up.
fn tries_otherwise(before: Option<&Arc<Deployment>>, now: &Deployment) -> bool {
    let tries = |d: &Deployment| d.groups.values().any(|g| g.desired_canaries > 0 || !g.placed_canaries.is_empty());
    let Some(before) = before else { return true };
    before.status.active() != now.status.active() || before.job_version != now.job_version || tries(before) || tries(now)
}

impl Dirty {
    /// The slots behind the signals.
    fn resolve(self, state: &State) -> BTreeSet<SlotKey> {
        let mut slots = self.slots;
        if self.all {
            slots.extend(state.remote_tasks().map(|record| record.slot.clone()));
            slots.extend(state.allocs().filter(|alloc| !alloc.terminal()).flat_map(|alloc| slots_of(state, alloc)));
            return slots;
        }
        for key in &self.jobs {
            slots.extend(state.remote_tasks_by_job(key).map(|record| record.slot.clone()));
        }
        let mut manages = false;
        for id in &self.nodes {
            slots.extend(state.remote_tasks_by_node(*id).map(|record| record.slot.clone()));
            let Some(node) = state.node(*id) else { continue };
            if node.drivers.values().any(|driver| driver.remote.is_some()) {
                manages = true;
                slots.extend(state.allocs_by_node(*id).filter(|alloc| !alloc.terminal()).flat_map(|alloc| slots_of(state, alloc)));
            }
        }
        if manages {
            // One of them may be what tombstones have waited for, or have the allocation of what has ended.
            let waits = |record: &&Arc<RemoteTask>| needs_executor(record) || awaits_finisher(record);
            slots.extend(state.remote_tasks().filter(waits).map(|record| record.slot.clone()));
        }
        slots
    }
}

/// The loop: wakes on signals and at the times of restarts.
pub(crate) async fn supervision_loop(shared: Arc<Shared>) {
    let mut timers = Timers::default();
    loop {
        let next = timers.next().map(|at| Duration::from_nanos(u64::try_from(at - now_ns()).unwrap_or(0)));
        let timer = async {
            match next {
                Some(wait) => tokio::time::sleep(wait).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = shared.remote.wake.notified() => {}
            () = timer => {}
            () = shared.stopping.cancelled() => return,
        }
        let state = shared.queue().newest();
        let now = now_ns();
        let mut slots = std::mem::take(&mut *shared.remote.lock()).resolve(&state);
        slots.extend(timers.due(now));
        if slots.is_empty() {
            continue;
        }
        shared.counters.slot_looks.fetch_add(slots.len() as u64, Ordering::Relaxed);
        let looked_at = slots.clone();
        // Decided on the newest state at that moment, which may be newer than the one that the slots came from: then it wakes us again.
        let sweeps = shared.clone();
        let decided = shared.queue().commit(move |state, stamp| {
            let batch = reconcile(state, slots, stamp, &sweeps.sweeps);
            Ok(Decided { batch, answer: () })
        });
        let result = decided.await;
        if let Err(error) = result {
            tracing::error!(error = %error, "supervising remote tasks failed; trying again");
            tokio::time::sleep(RETRY).await;
            shared.remote.fill();
        }
        let state = shared.queue().newest();
        for slot in looked_at {
            timers.set(state.remote_task(&slot).and_then(|record| wake_at(record)), slot);
        }
    }
}

/// When slots are to be looked at again.
#[derive(Debug, Default)]
struct Timers {
    by_slot: HashMap<SlotKey, TimestampNs>,
    by_time: BTreeSet<(TimestampNs, SlotKey)>,
}

impl Timers {
    fn set(&mut self, at: Option<TimestampNs>, slot: SlotKey) {
        let before = match at {
            Some(at) => self.by_slot.insert(slot.clone(), at),
            None => self.by_slot.remove(&slot),
        };
        if before == at {
            return;
        }
        if let Some(before) = before {
            self.by_time.remove(&(before, slot.clone()));
        }
        if let Some(at) = at {
            self.by_time.insert((at, slot));
        }
    }

    fn next(&self) -> Option<TimestampNs> {
        self.by_time.first().map(|(at, _)| *at)
    }

    fn due(&self, now: TimestampNs) -> impl Iterator<Item = SlotKey> {
        self.by_time.iter().take_while(move |(at, _)| *at <= now).map(|(_, slot)| slot.clone())
    }
}

/// Records as they become while several events are fed, with what follows for jobs.
struct Feeder<'a> {
    state: &'a State,
    stamp: Stamp,
    records: BTreeMap<SlotKey, Option<RemoteTask>>,
    evaluate: BTreeMap<JobKey, bool>,
}

impl<'a> Feeder<'a> {
    fn new(state: &'a State, stamp: Stamp) -> Self {
        Self { state, stamp, records: BTreeMap::new(), evaluate: BTreeMap::new() }
    }

    fn record(&self, slot: &SlotKey) -> Option<&RemoteTask> {
        match self.records.get(slot) {
            Some(record) => record.as_ref(),
            None => self.state.remote_task(slot).map(|record| &**record),
        }
    }

    fn feed(&mut self, slot: &SlotKey, event: &Event) -> Step {
        let context = Context { now: self.stamp.now, fresh: new_id() };
        let step = transition(slot, self.record(slot), event, context);
        let mut changed = false;
        for effect in &step.effects {
            match effect {
                Effect::Commit(record) => {
                    changed = true;
                    self.records.insert(slot.clone(), Some((**record).clone()));
                }
                Effect::Delete(slot) => {
                    changed = true;
                    self.records.insert(slot.clone(), None);
                }
                Effect::Evaluate { job, why } => {
                    tracing::debug!(job = %job, why, "a remote task asks for an evaluation");
                    *self.evaluate.entry(job.clone()).or_default() |= changed;
                }
                // Sessions derive both from the published record.
                Effect::Order { .. } | Effect::Release { .. } => {}
            }
        }
        if changed {
            tracing::debug!(slot = %slot, reasons = ?step.reasons, "remote task changed");
        }
        step
    }

    fn into_batch(self) -> Batch {
        let mut batch = Batch::default();
        for (slot, record) in self.records {
            match record {
                Some(record) if self.state.remote_task(&slot).is_some_and(|before| **before == record) => {}
                Some(record) => {
                    batch.push(Change::PutRemoteTask(Box::new(record)));
                }
                None => {
                    batch.push(Change::DeleteRemoteTask(slot));
                }
            }
        }
        let evals: Vec<Evaluation> = self
            .evaluate
            .into_iter()
            .filter_map(|(key, changed)| {
                let job = self.state.job(&key).filter(|job| !job.stopped())?;
                // One that is still to be worked on sees this change; one that is blocked is woken by room, not by asking again.
                let open = |status| self.state.evals_by_job(&key).any(|eval| eval.status == status && eval.wait_until <= self.stamp.now);
                if open(EvalStatus::Pending) || (!changed && open(EvalStatus::Blocked)) {
                    return None;
                }
                Some(Evaluation {
                    id: new_id(),
                    namespace: job.namespace.clone(),
                    priority: job.priority,
                    kind: job.kind.clone(),
                    trigger: Trigger::RemoteTask,
                    job_id: job.id.clone(),
                    job_modify_index: job.modify_index,
                    status: EvalStatus::Pending,
                    create_time: self.stamp.now,
                    modify_time: self.stamp.now,
                    ..Evaluation::default()
                })
            })
            .collect();
        if !evals.is_empty() {
            batch.push(Change::UpsertEvals(evals));
        }
        batch
    }
}

/// What the snapshot asks of these slots.
pub(crate) fn reconcile(state: &State, slots: BTreeSet<SlotKey>, stamp: Stamp, sweeps: &Sweeps) -> Batch {
    let mut feeder = Feeder::new(state, stamp);
    let mut executors = Executors { state, queues: HashMap::new() };
    let mut jobs: BTreeMap<JobKey, Vec<SlotKey>> = BTreeMap::new();
    for slot in slots {
        jobs.entry(slot.job()).or_default().push(slot);
    }
    for (key, slots) in jobs {
        reconcile_job(&mut feeder, &key, &slots, sweeps, &mut executors);
    }
    feeder.into_batch()
}

/// The newest allocation in the slot's place that has not ended.
fn newest_live<'a>(state: &'a State, slot: &'a SlotKey) -> Option<&'a Arc<Allocation>> {
    let age = |alloc: &Arc<Allocation>| (alloc.create_index, alloc.create_time);
    state.live_allocs_at(slot).reduce(|newest, alloc| if age(alloc) > age(newest) { alloc } else { newest })
}

fn reconcile_job<'a>(feeder: &mut Feeder<'a>, key: &JobKey, slots: &[SlotKey], sweeps: &Sweeps, executors: &mut Executors<'a>) {
    let (state, now) = (feeder.state, feeder.stamp.now);
    let job = state.job(key);
    // What asks about the whole job is looked at once, and only if a slot asks: most slots have their allocation, and nothing else matters to them.
    let no_room = LazyCell::new(|| {
        let blocked = state.evals_by_job(key).filter(|eval| eval.status == EvalStatus::Blocked);
        let lacking =
            |eval: &'_ Arc<Evaluation>| eval.queued.iter().filter(|(_, queued)| **queued > 0).map(|(g, _)| g.clone()).collect::<Vec<_>>();
        blocked.flat_map(lacking).collect::<BTreeSet<Arc<str>>>()
    });
    let coverage = LazyCell::new(|| job.filter(|job| !job.stopped()).map(|job| scheduler::Coverage::of(state, job)));
    let covered = |slot: &SlotKey| match slot_covered(job.map(|job| &**job), slot) {
        // A job that has the task may want it in another slot than the index says.
        by_index if job.is_some_and(|j| j.group(&slot.group).is_some_and(|g| g.task(&slot.task).is_some())) => {
            coverage.as_ref().and_then(|coverage| coverage.covers(slot)).unwrap_or(by_index)
        }
        by_index => by_index,
    };
    let mut hashes = SpecHashes::new();
    let leased = |node: NodeId| state.node(node).is_some_and(|node| node.status == NodeStatus::Ready);
    let alloc_live = |id| state.alloc(id).is_some_and(|alloc| !alloc.terminal());
    for slot in slots {
        let wanted = newest_live(state, slot)
            .filter(|alloc| state.node(alloc.node_id).is_some_and(|node| node.status == NodeStatus::Ready && node.drain.is_none()))
            .and_then(|alloc| wanted_by(state, alloc, slot, feeder.record(slot), &mut hashes));
        // What may live already is not created once more.
        let wanted = wanted.filter(|w| {
            let hold = feeder.record(slot).is_none().then(|| sweeps.holds(slot, w, can_list(state, w))).flatten();
            if let Some(why) = &hold {
                tracing::warn!(slot = %slot, why, "a remote task is not created now");
            }
            hold.is_none()
        });
        // Want of room is said of a whole group; a slot that has its next place waits there for the successor to observe, whatever its siblings lack.
        let has_place = wanted.is_some() || feeder.record(slot).is_some_and(|record| record.successor.is_some());
        let draining = |node: NodeId| {
            let drain = state.node(node)?.drain.as_ref()?;
            let forced = drain.force_deadline_ns != 0 && drain.force_deadline_ns <= now;
            Some(forced || (!has_place && no_room.contains(&slot.group)))
        };
        // An allocation that wants the slot outweighs a job that does not: then nobody asks.
        let covered = if wanted.is_some() { Ok(()) } else { covered(slot) };
        let ended = feeder.record(slot).filter(|record| wanted.is_none() && awaits_finisher(record));
        let finisher = ended.and_then(|record| finisher(state, record, executors));
        let facts = SlotFacts { wanted, covered, leased: &leased, draining: &draining, alloc_live: &alloc_live, finisher: &|| finisher };
        for event in events_for(feeder.record(slot), &facts, now) {
            feeder.feed(slot, &event);
        }
        if let Some(record) = feeder.record(slot)
            && needs_executor(record)
            && let Some((node, provider)) = executors.next(record)
        {
            feeder.feed(slot, &Event::CapableNode { node, provider });
        }
    }
}

/// Can the node that is to create it list what its provider has?
fn can_list(state: &State, wanted: &RemoteWanted) -> bool {
    let node = wanted.manager.and_then(|m| state.node(m.node_id));
    node.and_then(|n| n.drivers.get(&*wanted.driver)).and_then(|d| d.remote.as_ref()).is_some_and(|p| p.list)
}

/// The batch that makes a record of an instance which had none.
pub(crate) fn import(state: &State, stamp: Stamp, slot: &SlotKey, import: RemoteImport) -> Result<Batch, ServerError> {
    let mut feeder = Feeder::new(state, stamp);
    let step = feeder.feed(slot, &Event::Import(Box::new(import)));
    let batch = feeder.into_batch();
    if batch.is_empty() {
        return Err(ServerError::Conflict(format!("remote task {slot}: {}", step.reasons.join("; "))));
    }
    Ok(batch)
}

/// Hashes of specifications by create index, version, group and task: many slots share one.
type SpecHashes = HashMap<(u64, u64, Arc<str>, Arc<str>), Text>;

/// What an allocation wants of a slot; None when its node does not run the task remotely.
fn wanted_by(
    state: &State,
    alloc: &Allocation,
    slot: &SlotKey,
    record: Option<&RemoteTask>,
    hashes: &mut SpecHashes,
) -> Option<RemoteWanted> {
    let job: &Job = alloc.job.as_deref()?;
    let group = job.group(&alloc.task_group)?;
    let task = group.task(&slot.task)?;
    let provider = provider_of(state.node(alloc.node_id), &task.driver)?;
    let spec_hash = hashes
        .entry((job.create_index, job.version, group.name.clone(), task.name.clone()))
        .or_insert_with(|| model::updates::spec_hash(job, group, task).into())
        .clone();
    // The allocation that the record served last, not the one that this one replaces: a replacement may itself have been lost before it served.
    let served = record.and_then(|record| state.alloc(record.alloc_id)).filter(|served| served.id != alloc.id);
    let previous_ended = served.is_some_and(|served| ended_by_itself(served, alloc));
    Some(RemoteWanted {
        job_version: job.version,
        spec_hash,
        driver: task.driver.as_str().into(),
        provider: provider.into(),
        policy: RemotePolicy::of(job, task).into(),
        manager: Some(Manager { node_id: alloc.node_id, alloc_id: alloc.id }),
        previous_ended,
        keep_counters: false,
    })
}

/// Has the previous allocation ended by itself? A scheduler marks a failed one as stopped when it replaces it, which is told apart from a stop
/// that came first by the record of the attempt.
fn ended_by_itself(previous: &Allocation, alloc: &Allocation) -> bool {
    match previous.client_status {
        ClientStatus::Complete => previous.desired_status == DesiredStatus::Run,
        ClientStatus::Failed => {
            previous.desired_status == DesiredStatus::Run
                || alloc.reschedule_tracker.as_ref().is_some_and(|t| t.events.iter().any(|e| e.prev_alloc_id == previous.id))
        }
        ClientStatus::Pending | ClientStatus::Running | ClientStatus::Lost | ClientStatus::Unknown => false,
    }
}

/// Who executes stops that nobody else executes: nodes that reach the provider, preferably not draining, with the fewest slots. Several stops are spread.
struct Executors<'a> {
    state: &'a State,
    /// By driver and provider; an empty provider is any.
    queues: HashMap<(Text, Text), BTreeSet<Rank>>,
}

/// Whether it drains, how many slots it has, which node: the first in order is the next.
type Rank = (bool, usize, NodeId);

impl Executors<'_> {
    /// The node that is to execute the stop of that record, with the provider that it reaches.
    fn next(&mut self, record: &RemoteTask) -> Option<(NodeId, String)> {
        let state = self.state;
        let queue = self.queues.entry((record.driver.clone(), record.provider.clone())).or_insert_with(|| {
            let capable = state.nodes().filter(|node| reached_from(node, record).is_some());
            capable.map(|node| (node.drain.is_some(), state.remote_tasks_by_node(node.id).count(), node.id)).collect()
        });
        let (drains, slots, node) = queue.pop_first()?;
        queue.insert((drains, slots + 1, node));
        Some((node, reached_from(state.node(node)?, record)?.provider.clone()))
    }
}

/// Who lets the provider forget an instance that has ended for good. Its output is kept where its allocation is; once that was collected nobody reads it.
fn finisher(state: &State, record: &RemoteTask, executors: &mut Executors<'_>) -> Option<Manager> {
    match state.alloc(record.alloc_id) {
        Some(alloc) => {
            let there = state.node(alloc.node_id).is_some_and(|node| reached_from(node, record).is_some());
            there.then_some(Manager { node_id: alloc.node_id, alloc_id: alloc.id })
        }
        None => executors.next(record).map(|(node_id, _)| Manager { node_id, ..Manager::default() }),
    }
}

/// The runtime of the record, if a node with a lease reaches it.
fn reached_from<'a>(node: &'a Node, record: &RemoteTask) -> Option<&'a RemoteProvider> {
    let driver = node.drivers.get(&*record.driver).filter(|driver| driver.healthy && node.status == NodeStatus::Ready)?;
    driver.remote.as_ref().filter(|remote| record.provider.is_empty() || remote.provider == record.provider)
}

/// Stores what a node reports about remote tasks: queued when this returns. The second part names the slots whose order (or release) the node is
/// to be told again.
pub(crate) fn store_reports(
    shared: &Arc<Shared>,
    from: NodeId,
    reports: Vec<RemoteReport>,
) -> (impl Future<Output = Result<(), ServerError>> + Send + 'static, oneshot::Receiver<Vec<SlotKey>>) {
    let (tx, resend) = oneshot::channel();
    let stored = shared.queue().queue_commit(move |state, stamp| {
        let mut feeder = Feeder::new(state, stamp);
        let mut again = Vec::new();
        for report in reports {
            let slot = report.slot.clone();
            let step = feeder.feed(&slot, &Event::Report { from, report: Box::new(report) });
            let changed = step.effects.iter().any(|effect| matches!(effect, Effect::Commit(_) | Effect::Delete(_)));
            let told = step.effects.iter().any(|effect| match effect {
                Effect::Order { node, .. } | Effect::Release { node, .. } => *node == from,
                Effect::Commit(_) | Effect::Delete(_) | Effect::Evaluate { .. } => false,
            });
            // With a changed record the session sees the difference itself.
            if told && !changed {
                again.push(slot);
            }
        }
        let _ = tx.send(again);
        Ok(Decided { batch: feeder.into_batch(), answer: () })
    });
    (async move { stored.await.map_err(|_| ServerError::ShuttingDown)? }, resend)
}

/// What a person orders for a slot.
pub(crate) async fn order(shared: &Arc<Shared>, slot: SlotKey, event: Event) -> Result<model::StoreIndex, ServerError> {
    shared
        .queue()
        .commit(move |state, stamp| {
            if state.remote_task(&slot).is_none() {
                return Err(ServerError::not_found(Kind::RemoteTask, &slot));
            }
            let mut feeder = Feeder::new(state, stamp);
            let step = feeder.feed(&slot, &event);
            let batch = feeder.into_batch();
            if batch.is_empty() {
                return Err(ServerError::Conflict(format!("remote task {slot}: {}", step.reasons.join("; "))));
            }
            Ok(Decided { batch, answer: stamp.index })
        })
        .await
}

#[cfg(test)]
mod tests;

//! Supervision of remote tasks: applies the pure transition function of `lifecycle::remote` to the snapshot.
//!
//! [`Signals`] selects a slot when something that it depends on has changed: its record, an allocation, its job, a
//! relevant node, or the time of a restart. Observations become events, and events become changes of the record. The
//! sessions of the nodes derive their orders from the published record. So nothing here is lost in a restart.

mod signals;

use std::{
    cell::{LazyCell, OnceCell},
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use lifecycle::remote::{
    Context, Effect, Event, Step, awaits_finisher, begins,
    reconcile::{SlotFacts, events_for, needs_executor, slot_covered},
    recovering::waits_for,
    transition,
};
use model::{
    Allocation, ClientStatus, DesiredStatus, EvalStatus, Evaluation, IncarnationId, Job, JobKey, NodeId, NodeStatus,
    RemoteReport, RemoteTask, RemoteWanted, SlotKey, Text, Trigger,
    remote::{Manager, RemotePolicy},
};
use state::{Batch, Change, State};

use crate::{
    Ids, Refused, Stamp, pending,
    runtimes::{can_list, provider_of, reached_from},
};

pub use signals::{Signals, Timers};

/// An incarnation about to begin, the slot's first or a later one.
#[derive(Clone, Copy, Debug)]
pub struct Beginning<'a> {
    /// Its slot.
    pub slot: &'a SlotKey,
    /// Its driver.
    pub driver: &'a str,
    /// The provider.
    pub provider: &'a str,
    /// The node that is to create it can list the provider's instances.
    pub can_list: bool,
    /// An instance of the slot is stopping on a person's order, beside its record.
    pub stopping: bool,
}

/// Why an incarnation must not begin now, if so: an orphaned instance may live.
pub type Held<'a> = dyn Fn(&Beginning<'_>) -> Option<String> + 'a;

/// A reason, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    /// No incarnation of the slot begins now.
    Held {
        /// The slot.
        slot: SlotKey,
        /// The reason.
        why: String,
    },
    /// A remote task asks for an evaluation of its job.
    Asks {
        /// The job.
        job: JobKey,
        /// The reason.
        why: String,
    },
    /// The record of a slot has changed.
    Changed {
        /// The slot.
        slot: SlotKey,
        /// The reason.
        reasons: Vec<String>,
    },
}

/// Decisions about remote tasks.
#[derive(Clone, Debug, Default)]
pub struct Supervised {
    /// The changes.
    pub batch: Batch,
    /// The reason.
    pub said: Vec<Said>,
}

/// Records during the feeding of several events, with the effects on jobs.
struct Feeder<'a> {
    state: &'a State,
    stamp: Stamp,
    ids: &'a mut Ids<'a>,
    held: &'a Held<'a>,
    /// Slots beside which an instance is stopping on a person's order; computed when an incarnation begins.
    stopping: OnceCell<BTreeSet<SlotKey>>,
    records: BTreeMap<SlotKey, Option<RemoteTask>>,
    evaluate: BTreeMap<JobKey, bool>,
    said: Vec<Said>,
}

impl<'a> Feeder<'a> {
    fn new(state: &'a State, stamp: Stamp, ids: &'a mut Ids<'a>, held: &'a Held<'a>) -> Self {
        let (stopping, records, evaluate) = (OnceCell::new(), BTreeMap::new(), BTreeMap::new());
        Self { state, stamp, ids, held, stopping, records, evaluate, said: Vec::new() }
    }

    fn record(&self, slot: &SlotKey) -> Option<&RemoteTask> {
        match self.records.get(slot) {
            Some(record) => record.as_ref(),
            None => self.state.remote_task(slot).map(|record| &**record),
        }
    }

    fn feed(&mut self, slot: &SlotKey, event: &Event) -> Step {
        let context = Context { now: self.stamp.now, fresh: IncarnationId((self.ids)()), held: false };
        let before = self.record(slot);
        let mut step = transition(slot, before, event, context);
        // This would create an instance: not while an orphaned one may live.
        let why = step.record.as_ref().filter(|after| begins(before, after)).and_then(|after| {
            let stopping = self
                .stopping
                .get_or_init(|| self.state.remote_tasks().filter_map(|r| waits_for(r)).collect())
                .contains(slot);
            let can_list = can_list(self.state, after);
            (self.held)(&Beginning { slot, driver: &after.driver, provider: &after.provider, can_list, stopping })
        });
        if let Some(why) = why {
            step = transition(slot, before, event, Context { held: true, ..context });
            self.said.push(Said::Held { slot: slot.clone(), why });
        }
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
                    self.said.push(Said::Asks { job: job.clone(), why: why.clone() });
                    *self.evaluate.entry(job.clone()).or_default() |= changed;
                }
                // Sessions derive both from the published record.
                Effect::Order { .. } | Effect::Release { .. } => {}
            }
        }
        if changed {
            self.said.push(Said::Changed { slot: slot.clone(), reasons: step.reasons.clone() });
        }
        step
    }

    fn end(self) -> Supervised {
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
                // A pending evaluation sees this change; a blocked one wakes by room, not by repetition.
                let open = |status| {
                    self.state.evals_by_job(&key).any(|eval| eval.status == status && eval.wait_until <= self.stamp.now)
                };
                if open(EvalStatus::Pending) || (!changed && open(EvalStatus::Blocked)) {
                    return None;
                }
                Some(pending(job, Trigger::RemoteTask, self.stamp, self.ids))
            })
            .collect();
        if !evals.is_empty() {
            batch.push(Change::UpsertEvals(evals));
        }
        Supervised { batch, said: self.said }
    }
}

/// Decides on these slots by the snapshot.
pub fn decide(state: &State, slots: BTreeSet<SlotKey>, stamp: Stamp, ids: &mut Ids<'_>, held: &Held<'_>) -> Supervised {
    let mut feeder = Feeder::new(state, stamp, ids, held);
    let mut executors = Executors { state, queues: HashMap::new() };
    let mut jobs: BTreeMap<JobKey, Vec<SlotKey>> = BTreeMap::new();
    for slot in slots {
        jobs.entry(slot.job()).or_default().push(slot);
    }
    for (key, slots) in jobs {
        reconcile_job(&mut feeder, &key, &slots, &mut executors);
    }
    feeder.end()
}

/// The slot's newest allocation that has not ended.
fn newest_live<'a>(state: &'a State, slot: &'a SlotKey) -> Option<&'a Arc<Allocation>> {
    let age = |alloc: &Arc<Allocation>| (alloc.create_index, alloc.create_time);
    state.live_allocs_at(slot).reduce(|newest, alloc| if age(alloc) > age(newest) { alloc } else { newest })
}

fn reconcile_job<'a>(feeder: &mut Feeder<'a>, key: &JobKey, slots: &[SlotKey], executors: &mut Executors<'a>) {
    let (state, now) = (feeder.state, feeder.stamp.now);
    let job = state.job(key);
    // Computed once, and only if a slot needs it: most slots have their allocation, and need nothing about the whole
    // job.
    let no_room = LazyCell::new(|| {
        let blocked = state.evals_by_job(key).filter(|eval| eval.status == EvalStatus::Blocked);
        let lacking = |eval: &'_ Arc<Evaluation>| {
            eval.queued.iter().filter(|(_, queued)| **queued > 0).map(|(g, _)| g.clone()).collect::<Vec<_>>()
        };
        blocked.flat_map(lacking).collect::<BTreeSet<Arc<str>>>()
    });
    let coverage = LazyCell::new(|| job.filter(|job| !job.stopped()).map(|job| scheduler::Coverage::of(state, job)));
    let covered = |slot: &SlotKey| match slot_covered(job.map(|job| &**job), slot) {
        // A job with the task may want it in another slot than the index says.
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
            .filter(|alloc| {
                state.node(alloc.node_id).is_some_and(|node| node.status == NodeStatus::Ready && node.drain.is_none())
            })
            .and_then(|alloc| wanted_by(state, alloc, slot, feeder.record(slot), &mut hashes));
        // *No room* concerns a whole group. A slot with a successor waits for the successor's observation, whatever its
        // siblings lack.
        let has_place = wanted.is_some() || feeder.record(slot).is_some_and(|record| record.successor.is_some());
        let draining = |node: NodeId| {
            let drain = state.node(node)?.drain.as_ref()?;
            let forced = drain.force_deadline_ns != 0 && drain.force_deadline_ns <= now;
            Some(forced || (!has_place && no_room.contains(&slot.group)))
        };
        // An allocation that wants the slot outweighs a job that does not.
        let covered = if wanted.is_some() { Ok(()) } else { covered(slot) };
        let ended = feeder.record(slot).filter(|record| wanted.is_none() && awaits_finisher(record));
        let finisher = ended.and_then(|record| finisher(state, record, executors));
        let facts = SlotFacts {
            wanted,
            covered,
            leased: &leased,
            draining: &draining,
            alloc_live: &alloc_live,
            finisher: &|| finisher,
        };
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

/// Hashes of specifications by create index, version, group and task: many slots share one.
type SpecHashes = HashMap<(u64, u64, Arc<str>, Arc<str>), Text>;

/// An allocation's wish for a slot; `None` when its node does not run the task remotely.
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
    // The allocation that the record last served, not the one that this one replaces: a replacement may be lost before
    // it served.
    let served = record.and_then(|record| state.alloc(record.alloc_id)).filter(|served| served.id != alloc.id);
    let previous_ended = served.is_some_and(|served| ended_by_itself(served, alloc));
    Some(RemoteWanted {
        job_version: job.version,
        spec_hash,
        driver: task.driver.as_str().into(),
        provider: provider.into(),
        policy: RemotePolicy::of(job, group, task).into(),
        manager: Some(Manager { node_id: alloc.node_id, alloc_id: alloc.id }),
        previous_ended,
        keep_counters: false,
        created_at: alloc.create_time,
    })
}

/// Whether the previous allocation has ended by itself. The scheduler marks a failed one as stopped when it replaces
/// it. The record of the attempt tells this apart from an earlier stop.
fn ended_by_itself(previous: &Allocation, alloc: &Allocation) -> bool {
    match previous.client_status {
        ClientStatus::Complete => previous.desired_status == DesiredStatus::Run,
        ClientStatus::Failed => {
            previous.desired_status == DesiredStatus::Run
                || alloc
                    .reschedule_tracker
                    .as_ref()
                    .is_some_and(|t| t.events.iter().any(|e| e.prev_alloc_id == previous.id))
        }
        ClientStatus::Pending | ClientStatus::Running | ClientStatus::Lost | ClientStatus::Unknown => false,
    }
}

/// Nodes that carry out orphaned stops: those that reach the provider, preferably not draining, with the fewest slots.
/// Spreads several stops.
struct Executors<'a> {
    state: &'a State,
    /// By driver and provider; an empty provider stands for any.
    queues: HashMap<(Text, Text), BTreeSet<Rank>>,
}

/// Whether it drains, its number of slots, its id: the first in order is next.
type Rank = (bool, usize, NodeId);

impl Executors<'_> {
    /// The node for the stop of that record, with the provider that it reaches.
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

/// The manager that makes the provider forget an instance that has ended for good. The output is kept with its
/// allocation; after that is collected, nobody reads it.
fn finisher(state: &State, record: &RemoteTask, executors: &mut Executors<'_>) -> Option<Manager> {
    match state.alloc(record.alloc_id) {
        Some(alloc) => {
            let there = state.node(alloc.node_id).is_some_and(|node| reached_from(node, record).is_some());
            there.then_some(Manager { node_id: alloc.node_id, alloc_id: alloc.id })
        }
        None => executors.next(record).map(|(node_id, _)| Manager { node_id, ..Manager::default() }),
    }
}

/// Applies a node's reports on remote tasks. Also returns the slots whose order (or release) the node needs again.
pub fn report(
    state: &State,
    from: NodeId,
    reports: Vec<RemoteReport>,
    stamp: Stamp,
    ids: &mut Ids<'_>,
    held: &Held<'_>,
) -> (Supervised, Vec<SlotKey>) {
    let mut feeder = Feeder::new(state, stamp, ids, held);
    let mut again = Vec::new();
    for report in reports {
        let slot = report.slot.clone();
        let step = feeder.feed(&slot, &Event::Report { from, report: Box::new(report) });
        let changed = step.effects.iter().any(|effect| matches!(effect, Effect::Commit(_) | Effect::Delete(_)));
        let told = step.effects.iter().any(|effect| match effect {
            Effect::Order { node, .. } | Effect::Release { node, .. } => *node == from,
            Effect::Commit(_) | Effect::Delete(_) | Effect::Evaluate { .. } => false,
        });
        // If the record changes, the session sees the difference itself.
        if told && !changed {
            again.push(slot);
        }
    }
    (feeder.end(), again)
}

/// Decides on an operator's order for a slot, or refuses it with the reason.
///
/// # Errors
/// Why the order cannot be carried out now. Nothing changes then.
pub fn order(
    state: &State,
    slot: &SlotKey,
    event: &Event,
    stamp: Stamp,
    ids: &mut Ids<'_>,
    held: &Held<'_>,
) -> (Supervised, Result<(), Refused>) {
    let mut feeder = Feeder::new(state, stamp, ids, held);
    let step = feeder.feed(slot, event);
    let supervised = feeder.end();
    let refused = || Refused::Conflict(format!("remote task {slot}: {}", step.reasons.join("; ")));
    let result = if supervised.batch.is_empty() { Err(refused()) } else { Ok(()) };
    (supervised, result)
}

#[cfg(test)]
mod tests;

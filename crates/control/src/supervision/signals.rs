//! Which slots need a look, and when. This memory only saves time; a snapshot refills it.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use lifecycle::remote::{awaits_finisher, reconcile::needs_executor, recovering::beside, wake_at};
use model::{Deployment, EvalStatus, JobKey, NodeId, RemoteTask, SlotKey, TimestampNs};
use state::{AppliedSet, Object, State};

use crate::runtimes::slots_of;

/// Interval of attempts for a held create.
const AGAIN: TimestampNs = 1_000_000_000;

/// Signals that slots need a look.
#[derive(Debug, Default)]
pub struct Signals {
    pub(super) all: bool,
    pub(super) slots: BTreeSet<SlotKey>,
    pub(super) jobs: BTreeSet<JobKey>,
    pub(super) nodes: BTreeSet<NodeId>,
}

impl Signals {
    /// Marks everything for a look.
    pub fn fill(&mut self) {
        self.all = true;
    }

    /// Follows an applied commit. True when it brings a new signal.
    pub fn follow(&mut self, before: &State, state: &State, applied: &AppliedSet) -> bool {
        let mut some = false;
        for change in &applied.changes {
            match &change.object {
                Object::RemoteTask(record) => {
                    some |= self.slots.insert(record.slot.clone());
                    // The slot itself may wait for it.
                    self.slots.extend(beside(record));
                }
                Object::Alloc(alloc) => {
                    for slot in slots_of(state, alloc) {
                        some |= self.slots.insert(slot);
                    }
                }
                Object::Job(job) => {
                    let key = job.key();
                    if state.remote_tasks_by_job(&key).next().is_some() {
                        some |= self.jobs.insert(key);
                    }
                }
                // Whether a canary is still tried. Mere progress, at each healthy allocation, does not concern slots.
                Object::Deployment(d) if tries_otherwise(before.deployment(d.id), d) => {
                    let key = d.job_key();
                    if state.remote_tasks_by_job(&key).next().is_some() {
                        some |= self.jobs.insert(key);
                    }
                }
                Object::Eval(eval) if eval.status == EvalStatus::Blocked => {
                    let key = eval.job_key();
                    if state.remote_tasks_by_job(&key).next().is_some() {
                        some |= self.jobs.insert(key);
                    }
                }
                Object::Node(node) => some |= self.nodes.insert(node.id),
                _ => {}
            }
        }
        some
    }

    /// The slots behind the signals.
    #[must_use]
    pub fn resolve(self, state: &State) -> BTreeSet<SlotKey> {
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
                slots.extend(
                    state
                        .allocs_by_node(*id)
                        .filter(|alloc| !alloc.terminal())
                        .flat_map(|alloc| slots_of(state, alloc)),
                );
            }
        }
        if manages {
            // One of them may be what tombstones wait for, or may have the allocation of an ended instance.
            let waits = |record: &&Arc<RemoteTask>| needs_executor(record) || awaits_finisher(record);
            slots.extend(state.remote_tasks().filter(waits).map(|record| record.slot.clone()));
        }
        slots
    }
}

/// Whether the deployment changes which slots its job wants: its canaries may have increased, or were promoted or given
/// up.
fn tries_otherwise(before: Option<&Arc<Deployment>>, now: &Deployment) -> bool {
    let tries = |d: &Deployment| d.groups.values().any(|g| g.desired_canaries > 0 || !g.placed_canaries.is_empty());
    let Some(before) = before else { return true };
    before.status.active() != now.status.active()
        || before.job_version != now.job_version
        || tries(before)
        || tries(now)
}

/// When slots need their next look.
#[derive(Debug, Default)]
pub struct Timers {
    by_slot: HashMap<SlotKey, TimestampNs>,
    by_time: BTreeSet<(TimestampNs, SlotKey)>,
}

impl Timers {
    /// Sets the next look at these slots from their records, after a look at `now`.
    pub fn looked(&mut self, state: &State, slots: impl IntoIterator<Item = SlotKey>, now: TimestampNs) {
        for slot in slots {
            // It is still due, so it was held: try again later.
            let at = state.remote_task(&slot).and_then(|record| wake_at(record));
            self.set(at.map(|at| if at <= now { now + AGAIN } else { at }), slot);
        }
    }

    pub(super) fn set(&mut self, at: Option<TimestampNs>, slot: SlotKey) {
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

    /// The earliest time.
    #[must_use]
    pub fn next(&self) -> Option<TimestampNs> {
        self.by_time.first().map(|(at, _)| *at)
    }

    /// The slots whose look is due.
    pub fn due(&self, now: TimestampNs) -> impl Iterator<Item = SlotKey> {
        self.by_time.iter().take_while(move |(at, _)| *at <= now).map(|(_, slot)| slot.clone())
    }
}

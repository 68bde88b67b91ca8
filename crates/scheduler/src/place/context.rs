//! Shared state of the placements of one evaluation: its subject, what it has taken so far, and the places of the job's
//! own allocations. The last serves anti-affinity, distinct hosts and spreads.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use model::{
    alloc::Allocation,
    eval::Evaluation,
    ids::{JobKey, TimestampNs},
    job::Job,
};
use state::State;

use super::rooms::Displaced;
use crate::{limits::Room, overlay::Overlay};

/// The classes of nodes that could take the blocked requests; a change there wakes the evaluation.
#[derive(Default)]
pub(crate) struct Blocked {
    pub(crate) classes: BTreeMap<String, bool>,
    pub(crate) escaped: bool,
    /// The limits of the namespace leave no room.
    pub(crate) limited: bool,
}

/// The subject of one evaluation.
#[derive(Clone, Copy)]
pub(crate) struct Context<'a> {
    pub(crate) state: &'a State,
    pub(crate) eval: &'a Evaluation,
    pub(crate) job: &'a Arc<Job>,
    pub(crate) now: TimestampNs,
    /// Where no node has room, allocations of jobs with a lower priority may be displaced.
    pub(crate) displaces: bool,
}

/// What the plan under way has taken so far.
pub(crate) struct Progress<'a> {
    pub(crate) overlay: Overlay<'a>,
    pub(crate) job_use: JobUse,
    /// None = the namespace has no limits.
    pub(crate) room: Option<Room>,
    pub(crate) displaced: Displaced,
}

/// Number of a snapshot's allocations by slot of their node.
pub(crate) type BySlot = HashMap<u32, u32>;

/// Whether the plan may count on the allocation.
pub(crate) fn counts(a: &Allocation) -> bool {
    !a.terminal()
}

/// Live allocations of a job by group and slot, as the plan under way would leave them.
#[derive(Default)]
pub(crate) struct JobUse {
    groups: HashMap<Arc<str>, BySlot>,
    job: BySlot,
}

impl JobUse {
    pub(crate) fn new(state: &State, key: &JobKey) -> Self {
        let mut u = Self::default();
        for a in state.allocs_by_job(key).filter(|a| counts(a)) {
            if let Some(slot) = state.fleet().slot(a.node_id) {
                u.add(&a.task_group, slot);
            }
        }
        u
    }
    pub(crate) fn add(&mut self, group: &Arc<str>, slot: u32) {
        *self.groups.entry(group.clone()).or_default().entry(slot).or_default() += 1;
        *self.job.entry(slot).or_default() += 1;
    }
    pub(crate) fn remove(&mut self, group: &str, slot: u32) {
        for map in self.groups.get_mut(group).into_iter().chain([&mut self.job]) {
            if let Some(n) = map.get_mut(&slot) {
                *n = n.saturating_sub(1);
            }
        }
    }
    /// Allocations of the group on that node.
    pub(crate) fn of_group(&self, group: &str, slot: u32) -> u32 {
        self.groups.get(group).and_then(|m| m.get(&slot)).copied().unwrap_or(0)
    }
    /// Allocations of the whole job on that node.
    pub(crate) fn of_job(&self, slot: u32) -> u32 {
        self.job.get(&slot).copied().unwrap_or(0)
    }
    /// All entries: group, slot, number.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Arc<str>, u32, u32)> {
        self.groups.iter().flat_map(|(g, m)| m.iter().map(move |(s, n)| (g, *s, *n)))
    }
}

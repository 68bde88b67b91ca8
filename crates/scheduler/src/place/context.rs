//! Where the job's own allocations are: for anti-affinity, distinct hosts, spreads.

use std::{collections::HashMap, sync::Arc};

use model::ids::JobKey;
use state::State;

use super::{BySlot, counts};

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
    /// Allocations of the group there.
    pub(crate) fn of_group(&self, group: &str, slot: u32) -> u32 {
        self.groups.get(group).and_then(|m| m.get(&slot)).copied().unwrap_or(0)
    }
    /// Allocations of the whole job there.
    pub(crate) fn of_job(&self, slot: u32) -> u32 {
        self.job.get(&slot).copied().unwrap_or(0)
    }
    /// All: group, slot, how many.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Arc<str>, u32, u32)> {
        self.groups.iter().flat_map(|(g, m)| m.iter().map(move |(s, n)| (g, *s, *n)))
    }
}

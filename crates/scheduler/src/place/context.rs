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

use super::{memory::Memory, rooms::Displaced};
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
pub(crate) struct Progress<'a, 'm> {
    pub(crate) overlay: Overlay<'a>,
    pub(crate) job_use: JobUse,
    /// None = the namespace has no limits.
    pub(crate) room: Option<Room>,
    pub(crate) displaced: Displaced,
    pub(crate) memory: &'m mut Memory,
}

/// Number of a snapshot's allocations by slot of their node.
pub(crate) type BySlot = HashMap<u32, u32>;

/// Number of live allocations of a job on one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Own {
    /// Those of the group under placement.
    pub(crate) group: u32,
    pub(crate) job: u32,
}

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
    /// Those on one node.
    pub(crate) fn on(&self, group: &str, slot: u32) -> Own {
        let of = |map: &BySlot| map.get(&slot).copied().unwrap_or(0);
        Own { group: self.groups.get(group).map_or(0, of), job: of(&self.job) }
    }
    /// Those on each of so many slots, in order. A pass over a fleet reads this: a look-up hashes.
    pub(crate) fn on_all(&self, group: &str, slots: usize) -> Vec<Own> {
        let mut all = vec![Own::default(); slots];
        for (slot, n) in self.groups.get(group).into_iter().flatten() {
            all[*slot as usize].group = *n;
        }
        for (slot, n) in &self.job {
            all[*slot as usize].job = *n;
        }
        all
    }
    /// The slots of the job's allocations, in no order; of some slots all have left.
    pub(crate) fn slots(&self) -> impl Iterator<Item = u32> {
        self.job.keys().copied()
    }
    /// All entries: group, slot, number.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Arc<str>, u32, u32)> {
        self.groups.iter().flat_map(|(g, m)| m.iter().map(move |(s, n)| (g, *s, *n)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::{JobUse, Own};

    proptest! {
        /// After any changes, the array and the look-ups both say what a count of the allocations says.
        #[test]
        fn both_readings_equal_a_count(
            changes in prop::collection::vec((any::<bool>(), 0..3_usize, 0..6_u32), 0..60),
        ) {
            let names: [Arc<str>; 3] = ["a".into(), "b".into(), "c".into()];
            let (mut job_use, mut live) = (JobUse::default(), Vec::new());
            for (remove, group, slot) in changes {
                // Only what is there goes.
                match live.iter().position(|known| remove && *known == (group, slot)) {
                    Some(at) => {
                        live.swap_remove(at);
                        job_use.remove(&names[group], slot);
                    }
                    None => {
                        live.push((group, slot));
                        job_use.add(&names[group], slot);
                    }
                }
                for (g, name) in names.iter().enumerate() {
                    let count = |slot: u32| Own {
                        group: u32::try_from(live.iter().filter(|known| **known == (g, slot)).count()).unwrap(),
                        job: u32::try_from(live.iter().filter(|(_, s)| *s == slot).count()).unwrap(),
                    };
                    let all = job_use.on_all(name, 6);
                    prop_assert_eq!(&all, &(0..6).map(count).collect::<Vec<_>>());
                    prop_assert_eq!(all, (0..6).map(|slot| job_use.on(name, slot)).collect::<Vec<_>>());
                }
            }
        }
    }
}

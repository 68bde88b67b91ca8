//! What evaluations have found out of a fleet, for those to come that ask the same of it.
//!
//! Most jobs of a fleet are alike: they differ in names, not in what they need. Between two evaluations few nodes get
//! or lose an allocation, so of ten thousand scores all but some are those of the evaluation before. A decision with a
//! memory is the decision without one.

use std::sync::Arc;

use model::{
    job::{Job, TaskGroup},
    metrics::AllocMetric,
};
use state::Fleet;

use super::class::Class;
use crate::rank::Ranking;

/// Shapes that are remembered. Each takes about 70 bytes for each node.
const SHAPES: usize = 4;

/// What one worker remembers between evaluations. It changes no decision, only how long it takes.
#[derive(Default)]
pub struct Memory {
    /// The one that was used last is the last.
    known: Vec<(Shape, Fleet, Remembered)>,
}

/// All that candidates depend on, apart from nodes and what is in use there.
pub(crate) struct Shape {
    pub(crate) job: Arc<Job>,
    pub(crate) group: Arc<str>,
    pub(crate) binpack: bool,
    pub(crate) oversubscribed: bool,
}

/// The candidates of a shape, as if the job had nothing yet and the plan were empty.
pub(crate) struct Remembered {
    pub(crate) classes: Arc<[Class]>,
    pub(crate) base: AllocMetric,
    pub(crate) ranking: Ranking,
    /// On some nodes, tasks of the group are remote.
    pub(crate) any_remote: bool,
    /// And take room that their provider has for all nodes together.
    pub(crate) any_pool: bool,
    /// Slots whose score is that of another moment or job.
    pub(crate) stale: Vec<u32>,
}

impl Memory {
    /// What is known of that shape, and the slots where other resources are in use than then.
    pub(crate) fn take(&mut self, shape: &Shape, fleet: &Fleet) -> Option<(Remembered, Vec<u32>)> {
        let at = self.known.iter().position(|(known, ..)| known.asks_the_same(shape))?;
        let (_, then, remembered) = self.known.remove(at);
        // Nodes that came, went or changed may belong to other classes, and change what is counted.
        let changed = fleet.taken_differently(&then)?;
        Some((remembered, changed))
    }

    pub(crate) fn put(&mut self, shape: Shape, fleet: &Fleet, remembered: Remembered) {
        if self.known.len() == SHAPES {
            self.known.remove(0);
        }
        self.known.push((shape, fleet.clone(), remembered));
    }
}

impl Shape {
    fn asks_the_same(&self, other: &Self) -> bool {
        let (a, b) = (&*self.job, &*other.job);
        let groups = self.job.group(&self.group).zip(other.job.group(&other.group));
        (self.binpack, self.oversubscribed) == (other.binpack, other.oversubscribed)
            && (&a.region, &a.node_pool, &a.datacenters) == (&b.region, &b.node_pool, &b.datacenters)
            && (&a.constraints, &a.affinities) == (&b.constraints, &b.affinities)
            && groups.is_some_and(|(a, b)| a_group_asks_the_same(a, b))
    }
}

fn a_group_asks_the_same(a: &TaskGroup, b: &TaskGroup) -> bool {
    let tasks = || a.tasks.iter().zip(&b.tasks);
    (&a.constraints, &a.affinities) == (&b.constraints, &b.affinities)
        && (&a.networks, &a.ephemeral_disk) == (&b.networks, &b.ephemeral_disk)
        && a.tasks.len() == b.tasks.len()
        && tasks().all(|(a, b)| {
            (&a.name, &a.driver, &a.resources) == (&b.name, &b.driver, &b.resources)
                && (&a.constraints, &a.affinities) == (&b.constraints, &b.affinities)
        })
}

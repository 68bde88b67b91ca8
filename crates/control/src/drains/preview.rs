//! What a drain, or the loss of a node, would do: the scheduler decides in a copy of the state. Nothing is waited for
//! there, so it shows where everything ends up, not in which order.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use model::{
    AllocMetric, Allocation, ClientStatus, DesiredTransition, DrainSpec, Evaluation, GoDuration, JobKey, NodeId,
    TimestampNs, Trigger,
};
use state::{Change, State};

use super::{DrainNode, is_system, order};
use crate::{Ids, Refused, Stamp, nodes, pending, runtimes::only_remote};

/// What happens to the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happens {
    /// It drains.
    Drain {
        /// System jobs stay.
        ignore_system_jobs: bool,
    },
    /// It is silent until its lease, with the margin, is over.
    Lost,
}

/// What becomes of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It only manages remote tasks: another node manages them, and they go on.
    HandedOver,
    /// The same, without a node that could: they go on without a manager, until there is one.
    Unmanaged,
    /// Its tasks end here and start on another node.
    Moved,
    /// Its tasks end here, and there is no room for them elsewhere now.
    Waits,
    /// Its tasks end here, and its job needs no others.
    Ends,
    /// Nothing: it stays, or is waited for.
    Stays,
}

/// An allocation of the node, and what becomes of it.
#[derive(Clone, Debug)]
pub struct Affected {
    /// The allocation as it is.
    pub alloc: Arc<Allocation>,
    /// What becomes of it.
    pub fate: Fate,
    /// The node that takes over.
    pub next: Option<NodeId>,
    /// Why there is none.
    pub failure: Option<AllocMetric>,
}

/// Computes what becomes of each allocation that lives on the node.
///
/// # Errors
/// When there is no such node, or the scheduler cannot decide.
pub fn preview(
    state: &State,
    node: NodeId,
    happens: Happens,
    (now, seed): (TimestampNs, u64),
    ids: &mut Ids<'_>,
) -> Result<Vec<Affected>, Refused> {
    nodes::node_of(state, node)?;
    let present: Vec<Arc<Allocation>> = state.allocs_by_node(node).filter(|alloc| !alloc.terminal()).cloned().collect();
    let mut imagined = Imagined { state: state.clone(), now };
    let stays = |alloc: &Allocation| matches!(happens, Happens::Drain { ignore_system_jobs: true }) && is_system(alloc);
    match happens {
        Happens::Drain { ignore_system_jobs } => {
            let spec = Some(DrainSpec { deadline: GoDuration::ZERO, ignore_system_jobs });
            let request = DrainNode { node_id: node, spec, mark_eligible: false, meta: BTreeMap::new() };
            let ordered = order(&imagined.state, request, imagined.stamp(), ids)?;
            imagined.apply(ordered.batch.changes)?;
            let migrate = DesiredTransition { migrate: Some(true), ..DesiredTransition::default() };
            let leaving = present.iter().filter(|alloc| !stays(alloc)).map(|alloc| (alloc.id, migrate.clone()));
            imagined.apply(vec![Change::AllocTransitions(leaving.collect())])?;
        }
        Happens::Lost => {
            let lost = nodes::lose(&imagined.state, &[node], imagined.stamp(), ids);
            imagined.apply(lost.batch.changes)?;
        }
    }
    let mut failures: BTreeMap<(JobKey, Arc<str>), AllocMetric> = BTreeMap::new();
    let mut decided: BTreeSet<JobKey> = BTreeSet::new();
    for alloc in present.iter().filter(|alloc| !stays(alloc)) {
        let key = alloc.job_key();
        if !decided.insert(key.clone()) {
            continue;
        }
        let Some(job) = imagined.state.job(&key).cloned() else { continue };
        let trigger = if happens == Happens::Lost { Trigger::NodeUpdate } else { Trigger::NodeDrain };
        let eval = Evaluation { node_id: node, ..pending(&job, trigger, imagined.stamp(), ids) };
        let failed = imagined.schedule(eval, seed)?;
        failures.extend(failed.into_iter().map(|(group, metric)| ((key.clone(), group), metric)));
    }
    let affected = |alloc: Arc<Allocation>| imagined.affected(state, alloc, &failures);
    Ok(present.into_iter().map(affected).collect())
}

/// The state as it would become.
struct Imagined {
    state: State,
    now: TimestampNs,
}

impl Imagined {
    fn stamp(&self) -> Stamp {
        Stamp { index: self.state.latest_index() + 1, now: self.now }
    }

    fn apply(&mut self, changes: Vec<Change>) -> Result<(), Refused> {
        let stamp = self.stamp();
        self.state.apply(stamp.index, stamp.now, changes.into()).map(drop).map_err(imagination)
    }

    fn schedule(&mut self, eval: Evaluation, seed: u64) -> Result<BTreeMap<Arc<str>, AllocMetric>, Refused> {
        self.apply(vec![Change::UpsertEvals(vec![eval.clone()])])?;
        let decision = scheduler::schedule(&self.state, &eval, self.now, seed);
        let decision = decision.map_err(imagination)?;
        self.apply(vec![Change::ApplyPlan(Box::new(decision.plan))])?;
        Ok(decision.failed_groups)
    }

    /// What has become of an allocation of the real state.
    fn affected(
        &self,
        before: &State,
        alloc: Arc<Allocation>,
        failures: &BTreeMap<(JobKey, Arc<str>), AllocMetric>,
    ) -> Affected {
        let now = self.state.alloc(alloc.id);
        let next = self.successor(&alloc);
        let ends = now.is_none_or(|now| now.terminal());
        let remote = only_remote(before, &alloc);
        let failure = || failures.get(&(alloc.job_key(), alloc.task_group.clone())).cloned();
        // One that has to leave and finds no room is left where it is, until the deadline.
        let waits = failure().is_some() && next.is_none();
        let waited_for = now.is_some_and(|now| now.client_status == ClientStatus::Unknown);
        let fate = match (next, remote) {
            (Some(_), true) => Fate::HandedOver,
            (Some(_), false) => Fate::Moved,
            (None, true) if waits || (ends && !is_system(&alloc)) => Fate::Unmanaged,
            (None, false) if waits => Fate::Waits,
            (None, _) if ends && !waited_for => Fate::Ends,
            (None, _) => Fate::Stays,
        };
        Affected { fate, next, failure: failure().filter(|_| next.is_none()), alloc }
    }

    /// The node of the allocation that follows this one.
    fn successor(&self, of: &Allocation) -> Option<NodeId> {
        let follows = |alloc: &&Arc<Allocation>| alloc.previous_allocation == of.id;
        self.state.allocs_by_job(&of.job_key()).find(follows).map(|next| next.node_id)
    }
}

fn imagination(error: impl std::fmt::Display) -> Refused {
    Refused::Invalid(format!("what would happen cannot be computed: {error}"))
}

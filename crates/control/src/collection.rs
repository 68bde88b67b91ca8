//! Garbage collection: removes old ended objects. It never collects records of remote tasks: a tombstone ends when
//! absence is confirmed.
//!
//! [`Aging`] remembers what a change may have made garbage and when it is old, so that a collection costs what has
//! ended.

mod aging;
pub mod by_hand;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use model::{
    AllocId, Allocation, DeploymentId, DesiredStatus, EvalId, EvalStatus, Job, JobKey, Node, NodeId, NodeStatus,
    TimestampNs,
    job::{job_status, job_type},
};
use state::{Batch, Change, State};

use crate::Decided;

pub use aging::Aging;

/// Age at which ended objects are collected, by kind.
#[derive(Clone, Copy, Debug)]
pub struct Ages {
    /// Evaluations with their allocations.
    pub eval: Duration,
    /// The same for batch jobs.
    pub batch_eval: Duration,
    /// Dead jobs.
    pub job: Duration,
    /// Ended deployments.
    pub deployment: Duration,
    /// Nodes that are down.
    pub node: Duration,
}

/// The time before which ended objects are old, by kind.
#[derive(Clone, Copy, Debug)]
pub struct Before {
    eval: TimestampNs,
    batch_eval: TimestampNs,
    job: TimestampNs,
    deployment: TimestampNs,
    node: TimestampNs,
}

impl Before {
    /// Every ended object counts as old.
    #[must_use]
    pub fn forced(now: TimestampNs) -> Self {
        Self { eval: now, batch_eval: now, job: now, deployment: now, node: now }
    }

    /// Objects count as old at their configured age.
    #[must_use]
    pub fn aged(ages: &Ages, now: TimestampNs) -> Self {
        let ago = |age: Duration| now - i64::try_from(age.as_nanos()).unwrap_or(i64::MAX);
        Self {
            eval: ago(ages.eval),
            batch_eval: ago(ages.batch_eval),
            job: ago(ages.job),
            deployment: ago(ages.deployment),
            node: ago(ages.node),
        }
    }
}

/// Number of collected objects by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Collected {
    /// Evaluations.
    pub evals: usize,
    /// Allocations.
    pub allocs: usize,
    /// Jobs.
    pub jobs: usize,
    /// Deployments.
    pub deployments: usize,
    /// Nodes.
    pub nodes: usize,
}

/// An object that may be garbage. What comes first in order is decided first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Candidate {
    /// A dead job.
    Job(JobKey),
    /// An ended evaluation with its allocations.
    Eval(EvalId),
    /// An ended deployment.
    Deployment(DeploymentId),
    /// A node that is down.
    Node(NodeId),
}

/// When a candidate that stays is worth another look, if nothing changes before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Later {
    /// What it waits for is rare, and ends by itself.
    Soon,
    /// At its age since this time.
    AgedSince(TimestampNs),
}

/// Collects every object that ended before the given times and that nothing needs any more.
#[must_use]
pub fn decide(state: &State, before: Before) -> Decided<Collected> {
    let all = state.jobs().map(|job| Candidate::Job(job.key()));
    let all = all.chain(state.evals().map(|eval| Candidate::Eval(eval.id)));
    let all = all.chain(state.deployments().map(|d| Candidate::Deployment(d.id)));
    let all = all.chain(state.nodes().map(|node| Candidate::Node(node.id)));
    decide_among(state, before, all).0
}

/// The same for these candidates, in their order. Also returns those that stay and when to look at them again. Whatever
/// else stays becomes garbage by a change only; see [`Aging`].
#[must_use]
pub fn decide_among(
    state: &State,
    before: Before,
    candidates: impl IntoIterator<Item = Candidate>,
) -> (Decided<Collected>, Vec<(Candidate, Later)>) {
    let (mut garbage, mut stay) = (Garbage::default(), Vec::new());
    for candidate in candidates {
        let later = match &candidate {
            Candidate::Job(key) => garbage.job(state, before, key),
            Candidate::Eval(id) => garbage.eval(state, before, *id),
            Candidate::Deployment(id) => garbage.deployment(state, before, *id),
            Candidate::Node(id) => garbage.node(state, before, *id),
        };
        stay.extend(later.map(|later| (candidate, later)));
    }
    (Decided { answer: garbage.count(), batch: garbage.into_batch() }, stay)
}

#[derive(Debug, Default)]
struct Garbage {
    evals: BTreeSet<EvalId>,
    allocs: BTreeSet<AllocId>,
    jobs: BTreeSet<JobKey>,
    deployments: BTreeSet<DeploymentId>,
    nodes: BTreeSet<NodeId>,
}

impl Garbage {
    /// Collects a job with all its objects or not at all: its versions and counts explain its allocations.
    fn job(&mut self, state: &State, before: Before, key: &JobKey) -> Option<Later> {
        let job = state.job(key).filter(|job| job.status == job_status::DEAD)?;
        if !job.stopped() && (!job_type::finite(&job.kind) || job.is_template()) {
            return None;
        }
        let allocs: Vec<_> = state.allocs_by_job(key).collect();
        let evals: Vec<_> = state.evals_by_job(key).collect();
        if !evals.iter().all(|eval| eval.status.terminal()) || !allocs.iter().all(|alloc| ended(state, alloc)) {
            return None;
        }
        let newest = allocs.iter().map(|a| a.modify_time).chain(evals.iter().map(|e| e.modify_time)).max().unwrap_or(0);
        let newest = newest.max(job.submit_time);
        if newest > before.job {
            return Some(Later::AgedSince(newest));
        }
        self.evals.extend(evals.iter().map(|eval| eval.id));
        self.allocs.extend(allocs.iter().map(|alloc| alloc.id));
        self.deployments.extend(state.deployments_by_job(key).map(|d| d.id));
        self.jobs.insert(key.clone());
        None
    }

    /// Collects an old evaluation if all its allocations may go with it. Old allocations of an evaluation that must
    /// stay go alone.
    fn eval(&mut self, state: &State, before: Before, id: EvalId) -> Option<Later> {
        let eval = state.eval(id).filter(|eval| eval.status.terminal() && !self.evals.contains(&id))?;
        let batch = job_type::finite(&eval.kind);
        let old = if batch { before.batch_eval } else { before.eval };
        if eval.modify_time > old {
            return Some(Later::AgedSince(eval.modify_time));
        }
        let job = state.job(&eval.job_key());
        // The allocations of a job of finite work record which work is done, as long as the job exists: another
        // evaluation of it may come, and for sysbatch another node. A job without any has its evaluations as its
        // record.
        let counts = |job: &&Arc<Job>| {
            let none = || state.allocs_by_job(&job.key()).next().is_none();
            !job.stopped() && (job.kind == job_type::SYSBATCH || none())
        };
        if batch && job.filter(counts).is_some() {
            return None;
        }
        let (mut all, mut later) = (true, None::<Later>);
        for alloc in state.allocs_by_eval(id) {
            let stays = match need(state, alloc) {
                Need::None if alloc.modify_time <= old => {
                    self.allocs.insert(alloc.id);
                    continue;
                }
                Need::None => Some(Later::AgedSince(alloc.modify_time)),
                Need::UntilFollowUp => Some(Later::Soon),
                Need::UntilChange => None,
            };
            all = false;
            later = later.into_iter().chain(stays).min();
        }
        if all {
            self.evals.insert(id);
        }
        later
    }

    fn deployment(&mut self, state: &State, before: Before, id: DeploymentId) -> Option<Later> {
        let d = state.deployment(id).filter(|d| !d.status.active())?;
        if d.modify_time > before.deployment {
            return Some(Later::AgedSince(d.modify_time));
        }
        if state.allocs_by_deployment(id).all(|alloc| alloc.terminal() || self.allocs.contains(&alloc.id)) {
            self.deployments.insert(id);
        }
        None
    }

    fn node(&mut self, state: &State, before: Before, id: NodeId) -> Option<Later> {
        let node = state.node(id).filter(|node| node.status == NodeStatus::Down)?;
        let since = down_since(node);
        if since > before.node {
            return Some(Later::AgedSince(since));
        }
        let empty = state.allocs_by_node(id).all(|alloc| ended(state, alloc) || self.allocs.contains(&alloc.id));
        if !empty || state.remote_tasks_by_node(id).next().is_some() {
            return Some(Later::Soon);
        }
        self.nodes.insert(id);
        None
    }

    fn count(&self) -> Collected {
        Collected {
            evals: self.evals.len(),
            allocs: self.allocs.len(),
            jobs: self.jobs.len(),
            deployments: self.deployments.len(),
            nodes: self.nodes.len(),
        }
    }

    fn into_batch(self) -> Batch {
        let mut batch = Batch::default();
        if !self.allocs.is_empty() {
            batch.push(Change::DeleteAllocs(self.allocs.into_iter().collect()));
        }
        if !self.evals.is_empty() {
            batch.push(Change::DeleteEvals(self.evals.into_iter().collect()));
        }
        if !self.deployments.is_empty() {
            batch.push(Change::DeleteDeployments(self.deployments.into_iter().collect()));
        }
        for key in self.jobs {
            batch.push(Change::DeleteJob(key));
        }
        for id in self.nodes {
            batch.push(Change::DeleteNode(id));
        }
        batch
    }
}

/// Whether it has ended: its node says so, or its node is gone for good.
fn ended(state: &State, alloc: &Allocation) -> bool {
    alloc.client_terminal() || (alloc.server_terminal() && state.node(alloc.node_id).is_none())
}

/// Since when a node is down.
fn down_since(node: &Node) -> TimestampNs {
    node.status_updated_at.saturating_mul(1_000_000_000)
}

/// For how long a later decision may depend on an allocation.
enum Need {
    /// It has ended, and none does.
    None,
    /// Until its follow-up evaluation has ended.
    UntilFollowUp,
    /// Until the allocation, its job or its node changes.
    UntilChange,
}

fn need(state: &State, alloc: &Allocation) -> Need {
    if !ended(state, alloc) {
        return Need::UntilChange;
    }
    let counts = |job: &&Arc<Job>| !job.stopped() && (job_type::finite(&job.kind) || job.status != job_status::DEAD);
    let Some(job) = state.job(&alloc.job_key()).filter(counts) else { return Need::None };
    if job_type::finite(&job.kind) {
        return Need::UntilChange;
    }
    // A failed, wanted allocation is about to be rescheduled, or explains why it is not.
    if alloc.desired_status == DesiredStatus::Run && alloc.next_allocation.is_nil() {
        return Need::UntilChange;
    }
    let awaits = !alloc.followup_eval_id.is_nil()
        && state.eval(alloc.followup_eval_id).is_some_and(|e| e.status == EvalStatus::Pending);
    if awaits { Need::UntilFollowUp } else { Need::None }
}

#[cfg(test)]
mod tests;

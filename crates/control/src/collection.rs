//! Garbage collection: removes old ended objects. It never collects records of remote tasks: a tombstone ends when
//! absence is confirmed.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use model::{
    AllocId, Allocation, DeploymentId, DesiredStatus, EvalId, EvalStatus, Job, JobKey, NodeId, NodeStatus, TimestampNs,
    job::{job_status, job_type},
};
use state::{Batch, Change, State};

use crate::Decided;

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

/// Collects every object that ended before the given times and that nothing needs any more.
#[must_use]
pub fn decide(state: &State, before: Before) -> Decided<Collected> {
    let garbage = Garbage::of(state, before);
    Decided { answer: garbage.count(), batch: garbage.into_batch() }
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
    fn of(state: &State, before: Before) -> Self {
        let mut garbage = Self::default();
        garbage.dead_jobs(state, before);
        garbage.ended_evals(state, before);
        garbage.ended_deployments(state, before);
        garbage.lost_nodes(state, before);
        garbage
    }

    /// Collects a job with all its objects or not at all: its versions and counts explain its allocations.
    fn dead_jobs(&mut self, state: &State, before: Before) {
        for job in state.jobs().filter(|job| job.status == job_status::DEAD) {
            let finite = job_type::finite(&job.kind);
            if !job.stopped() && (!finite || job.is_template()) {
                continue;
            }
            let key = job.key();
            let allocs: Vec<_> = state.allocs_by_job(&key).collect();
            let evals: Vec<_> = state.evals_by_job(&key).collect();
            let newest = allocs.iter().map(|a| a.modify_time).chain(evals.iter().map(|e| e.modify_time)).max().unwrap_or(0);
            let ended = evals.iter().all(|eval| eval.status.terminal()) && allocs.iter().all(|alloc| ended(state, alloc));
            if ended && newest.max(job.submit_time) <= before.job {
                self.evals.extend(evals.iter().map(|eval| eval.id));
                self.allocs.extend(allocs.iter().map(|alloc| alloc.id));
                self.deployments.extend(state.deployments_by_job(&key).map(|d| d.id));
                self.jobs.insert(key);
            }
        }
    }

    /// Collects an old evaluation if all its allocations may go with it. Old allocations of an evaluation that must
    /// stay go alone.
    fn ended_evals(&mut self, state: &State, before: Before) {
        for eval in state.evals().filter(|eval| eval.status.terminal()) {
            let batch = job_type::finite(&eval.kind);
            let old = if batch { before.batch_eval } else { before.eval };
            if eval.modify_time > old || self.evals.contains(&eval.id) {
                continue;
            }
            let job = state.job(&eval.job_key());
            // The allocations of an unfinished batch job record which work is done. Those of a sysbatch job do so as
            // long as the job exists, because a later node may need them.
            if batch && job.is_some_and(|job| !job.stopped() && (job.kind == job_type::SYSBATCH || job.status != job_status::DEAD)) {
                continue;
            }
            let mut all = true;
            for alloc in state.allocs_by_eval(eval.id) {
                if alloc.modify_time <= old && superfluous(state, alloc) {
                    self.allocs.insert(alloc.id);
                } else {
                    all = false;
                }
            }
            if all {
                self.evals.insert(eval.id);
            }
        }
    }

    fn ended_deployments(&mut self, state: &State, before: Before) {
        for d in state.deployments().filter(|d| !d.status.active() && d.modify_time <= before.deployment) {
            if state.allocs_by_deployment(d.id).all(|alloc| alloc.terminal() || self.allocs.contains(&alloc.id)) {
                self.deployments.insert(d.id);
            }
        }
    }

    fn lost_nodes(&mut self, state: &State, before: Before) {
        for node in state.nodes().filter(|node| node.status == NodeStatus::Down) {
            let since = node.status_updated_at.saturating_mul(1_000_000_000);
            let empty = state.allocs_by_node(node.id).all(|alloc| ended(state, alloc) || self.allocs.contains(&alloc.id));
            if since <= before.node && empty && state.remote_tasks_by_node(node.id).next().is_none() {
                self.nodes.insert(node.id);
            }
        }
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

/// Whether it has ended and no later decision depends on it.
fn superfluous(state: &State, alloc: &Arc<Allocation>) -> bool {
    if !ended(state, alloc) {
        return false;
    }
    let counts = |job: &&Arc<Job>| !job.stopped() && (job.kind == job_type::SYSBATCH || job.status != job_status::DEAD);
    let Some(job) = state.job(&alloc.job_key()).filter(counts) else { return true };
    if job_type::finite(&job.kind) {
        return false;
    }
    // A failed, wanted allocation is about to be rescheduled, or explains why it is not.
    let awaits = !alloc.followup_eval_id.is_nil() && state.eval(alloc.followup_eval_id).is_some_and(|e| e.status == EvalStatus::Pending);
    !awaits && (alloc.desired_status != DesiredStatus::Run || !alloc.next_allocation.is_nil())
}

#[cfg(test)]
mod tests;

//! The drainer: empties nodes that are to be emptied.
//!
//! Allocations of services leave in steps: no more than `migrate.max_parallel` of a group are away, or placed elsewhere without their health being
//! known. Batch jobs may finish until the deadline, system jobs leave last; what finds no other room leaves at the deadline all the same.
//! Allocations that only manage remote tasks move at once and all together: nothing of what they manage stops. [`decide`] is a function of the
//! snapshot; marking an allocation is all that it does, the scheduler moves it.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use model::{
    AllocId, Allocation, DesiredTransition, EvalId, EvalStatus, Evaluation, JobKey, Node, NodeId, Plan, TimestampNs, Trigger,
    job::job_type, plan::PlannedStop,
};
use scheduler::reconcile::why;
use state::{Batch, Change, Object, State, Table};
use tokio::sync::Notify;

use crate::{
    clock::{new_id, now_ns, ns, rfc3339},
    commit::{Commit, Decided, Stamp},
    nodes, remote,
    shared::Shared,
};

/// After a refused commit the drains are looked at again this much later.
const RETRY: Duration = Duration::from_secs(1);

/// Which nodes are to be emptied: remembered so that the changes of a large cluster without drains cost nothing here.
#[derive(Debug, Default)]
pub(crate) struct Drains {
    nodes: Mutex<BTreeSet<NodeId>>,
    wake: Notify,
}

impl Drains {
    fn lock(&self) -> MutexGuard<'_, BTreeSet<NodeId>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts again from a snapshot.
    pub(crate) fn fill(&self, state: &State) {
        *self.lock() = state.nodes().filter(|node| node.drain.is_some()).map(|node| node.id).collect();
        self.wake.notify_one();
    }

    /// Follows an applied commit.
    pub(crate) fn follow(&self, commit: &Commit) {
        let mut nodes = self.lock();
        if commit.applied.tables.contains(Table::Nodes) {
            for change in &commit.applied.changes {
                if let Object::Node(node) = &change.object {
                    if node.drain.is_some() && !change.deleted {
                        nodes.insert(node.id);
                    } else {
                        nodes.remove(&node.id);
                    }
                }
            }
        }
        if !nodes.is_empty() {
            self.wake.notify_one();
        }
    }
}

/// The loop: wakes when something changes while a node drains, and at deadlines.
pub(crate) async fn drain_loop(shared: Arc<Shared>) {
    loop {
        let state = shared.queue().newest();
        let nodes = shared.drains.lock().clone();
        let deadlines = nodes.iter().filter_map(|id| state.node(*id)?.drain.as_ref()).map(|drain| drain.force_deadline_ns);
        let mut next = deadlines.filter(|at| *at > now_ns()).min();
        let stamp = Stamp { index: 0, now: now_ns() };
        if !decide(&state, &nodes, stamp).is_empty() {
            let stored = shared.queue().commit(move |state, stamp| Ok(Decided { batch: decide(state, &nodes, stamp), answer: () })).await;
            match stored {
                Ok(()) => continue,
                Err(error) => {
                    tracing::error!(error = %error, "draining failed; trying again");
                    next = Some(now_ns() + ns(RETRY));
                }
            }
        }
        let timer = async {
            match next {
                Some(at) => tokio::time::sleep(Duration::from_nanos(u64::try_from(at - now_ns()).unwrap_or(0))).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = shared.drains.wake.notified() => {}
            () = timer => {}
            () = shared.stopping.cancelled() => return,
        }
    }
}

/// What the drains ask for now.
fn decide(state: &State, nodes: &BTreeSet<NodeId>, stamp: Stamp) -> Batch {
    let mut batch = Batch::default();
    let mut marks: BTreeMap<AllocId, JobKey> = BTreeMap::new();
    let mut stops: Vec<PlannedStop> = Vec::new();
    // How many more allocations of a group may leave, over all draining nodes.
    let mut budgets: HashMap<(JobKey, Arc<str>), usize> = HashMap::new();
    for node in nodes.iter().filter_map(|id| state.node(*id)) {
        let Some(drain) = &node.drain else { continue };
        let force = drain.force_deadline_ns != 0 && drain.force_deadline_ns <= stamp.now;
        let present: Vec<&Arc<Allocation>> = state.allocs_by_node(node.id).filter(|alloc| !alloc.client_terminal()).collect();
        let (system, others): (Vec<_>, Vec<_>) = present.into_iter().partition(|alloc| is_system(alloc));
        let system_stays = drain.ignore_system_jobs;
        if others.is_empty() && (system_stays || system.is_empty()) {
            complete(node, force, stamp, &mut batch);
            continue;
        }
        if force {
            let stuck = others.iter().filter(|alloc| found_no_room(state, alloc, stamp.now));
            stops.extend(stuck.map(|alloc| PlannedStop {
                id: alloc.id,
                node_id: node.id,
                description: why::MIGRATING.to_owned(),
                client_status: None,
                followup_eval_id: EvalId::NIL,
            }));
        }
        for alloc in &others {
            if may_leave(state, alloc, force, &mut budgets) {
                marks.insert(alloc.id, alloc.job_key());
            }
        }
        if !system_stays && (others.is_empty() || force) {
            marks.extend(system.iter().filter(|alloc| unmarked(alloc)).map(|alloc| (alloc.id, alloc.job_key())));
        }
    }
    if marks.is_empty() && stops.is_empty() {
        return batch;
    }
    let mut jobs: BTreeSet<JobKey> = marks.values().cloned().collect();
    jobs.extend(stops.iter().filter_map(|stop| state.alloc(stop.id)).map(|alloc| alloc.job_key()));
    let evals = jobs.iter().filter_map(|key| eval(state, key, stamp)).collect();
    let migrate = DesiredTransition { migrate: Some(true), ..DesiredTransition::default() };
    if !marks.is_empty() {
        batch.push(Change::AllocTransitions(marks.keys().map(|id| (*id, migrate.clone())).collect()));
    }
    if !stops.is_empty() {
        batch.push(Change::ApplyPlan(Box::new(Plan { stops, ..Plan::default() })));
    }
    batch.push(Change::UpsertEvals(evals));
    batch
}

fn is_system(alloc: &Allocation) -> bool {
    alloc.job.as_ref().is_some_and(|job| job_type::everywhere(&job.kind))
}

fn unmarked(alloc: &Allocation) -> bool {
    !alloc.terminal() && alloc.desired_transition.migrate != Some(true)
}

/// The scheduler was asked to move it and has left it where it is.
fn found_no_room(state: &State, alloc: &Allocation, now: TimestampNs) -> bool {
    let asked = !alloc.terminal() && alloc.desired_transition.migrate == Some(true);
    asked && !state.evals_by_job(&alloc.job_key()).any(|eval| eval.status == EvalStatus::Pending && eval.wait_until <= now)
}

fn may_leave(state: &State, alloc: &Allocation, force: bool, budgets: &mut HashMap<(JobKey, Arc<str>), usize>) -> bool {
    if !unmarked(alloc) {
        return false;
    }
    if force || remote::only_remote(state, alloc) {
        return true;
    }
    let Some(job) = state.job(&alloc.job_key()).filter(|job| !job.stopped()) else { return true };
    if job.kind == job_type::BATCH {
        return false;
    }
    let budget = budgets.entry((alloc.job_key(), alloc.task_group.clone())).or_insert_with(|| budget(state, alloc));
    let free = *budget > 0;
    *budget = budget.saturating_sub(1);
    free
}

/// How many of a group may be away at present.
fn budget(state: &State, of: &Allocation) -> usize {
    let Some(job) = state.job(&of.job_key()) else { return usize::MAX };
    let Some(group) = job.group(&of.task_group) else { return usize::MAX };
    let max_parallel = group.migrate.as_ref().map_or(1, |migrate| migrate.max_parallel());
    let max_parallel = usize::try_from(max_parallel).unwrap_or(1).max(1);
    let in_place =
        state.allocs_by_job(&of.job_key()).filter(|alloc| alloc.task_group == of.task_group && unmarked(alloc) && decided(alloc)).count();
    let away = (group.count() as usize).saturating_sub(in_place);
    max_parallel.saturating_sub(away)
}

/// Its node has watched it for as long as `migrate` says, and has come to a verdict. Running is not enough: the next one would leave before its
/// replacement serves. An unhealthy one holds up nobody for ever: that is what `healthy_deadline` is for.
fn decided(alloc: &Allocation) -> bool {
    alloc.healthy().is_some()
}

fn eval(state: &State, key: &JobKey, stamp: Stamp) -> Option<Evaluation> {
    let job = state.job(key).or_else(|| state.allocs_by_job(key).find_map(|alloc| alloc.job.as_ref()))?;
    Some(Evaluation {
        id: new_id(),
        namespace: job.namespace.clone(),
        priority: job.priority,
        kind: job.kind.clone(),
        trigger: Trigger::NodeDrain,
        job_id: job.id.clone(),
        job_modify_index: job.modify_index,
        status: EvalStatus::Pending,
        create_time: stamp.now,
        modify_time: stamp.now,
        ..Evaluation::default()
    })
}

fn complete(node: &Node, forced: bool, stamp: Stamp, batch: &mut Batch) {
    let message = if forced { "Node drain complete - deadline reached" } else { "Node drain complete" };
    batch.push(Change::NodeDrain {
        id: node.id,
        drain: None,
        mark_eligible: false,
        last_drain: Some(last_drain(node, "complete", stamp.now)),
        event: Some(nodes::event(message, "Drain", stamp)),
    });
}

/// What is shown of a drain once it has ended.
pub(crate) fn last_drain(node: &Node, status: &str, now: TimestampNs) -> serde_json::Value {
    let earlier = |name: &str| node.last_drain.as_ref().and_then(|d| d.get(name)).cloned();
    let started = earlier("StartedAt").filter(|_| node.drain.is_some()).unwrap_or_else(|| rfc3339(now).into());
    serde_json::json!({
        "StartedAt": started,
        "UpdatedAt": rfc3339(now),
        "Status": status,
        "AccessorID": "",
        "Meta": earlier("Meta").unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests;

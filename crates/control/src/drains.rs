//! Drains: how work leaves a draining node.
//!
//! - Allocations of services leave in steps. At most `migrate.max_parallel` of a group are away, or placed elsewhere
//!   with unknown health.
//! - Batch jobs may finish until the deadline, and system jobs leave last. At the deadline everything leaves, even
//!   without room elsewhere.
//! - Allocations that only manage remote tasks move at once, all together: none of their tasks stops.
//!
//! [`decide`] only marks allocations; the scheduler moves them.

pub mod preview;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use model::{
    AllocId, Allocation, DesiredTransition, DrainSpec, DrainStrategy, EvalId, EvalStatus, Evaluation, JobKey, Node,
    NodeId, Plan, TimestampNs, Trigger, job::job_type, plan::PlannedStop,
};
use scheduler::reconcile::why;
use state::{Batch, Change, State};

use crate::{
    Decided, Decision, Ids, Refused, Stamp,
    nodes::{self, NodeChanged},
    pending, rfc3339,
    runtimes::only_remote,
};

/// Starts, changes or ends a drain.
#[derive(Clone, Debug)]
pub struct DrainNode {
    /// The node.
    pub node_id: NodeId,
    /// Settings of the drain; `None` ends it.
    pub spec: Option<DrainSpec>,
    /// Make the node eligible at the end of the drain.
    pub mark_eligible: bool,
    /// User metadata, kept in LastDrain.
    pub meta: BTreeMap<String, String>,
}

impl DrainNode {
    /// The node's drain strategy; `None` when the drain ends.
    fn strategy(&self, node: &Node, now: TimestampNs) -> Option<DrainStrategy> {
        let spec = self.spec.as_ref()?;
        // Negative: at once. Zero: never.
        let force_deadline_ns = match spec.deadline.nanos() {
            0 => 0,
            ..0 => now,
            ns => now.saturating_add(ns),
        };
        Some(DrainStrategy {
            deadline: spec.deadline,
            ignore_system_jobs: spec.ignore_system_jobs,
            force_deadline: if force_deadline_ns == 0 { String::new() } else { rfc3339(force_deadline_ns) },
            started_at: node.drain.as_ref().map_or_else(|| rfc3339(now), |drain| drain.started_at.clone()),
            force_deadline_ns,
        })
    }
}

/// Starts, changes or ends a drain.
///
/// # Errors
/// When there is no such node.
pub fn order(
    state: &State,
    request: DrainNode,
    stamp: Stamp,
    ids: &mut Ids<'_>,
) -> Result<Decided<NodeChanged>, Refused> {
    let id = request.node_id;
    let node = nodes::node_of(state, id)?;
    let drain = request.strategy(node, stamp.now);
    let starts = drain.is_some();
    let (status, message) = match (starts, node.drain.is_some()) {
        (true, false) => ("draining", "Node drain strategy set"),
        (true, true) => ("draining", "Node drain strategy updated"),
        (false, _) => ("canceled", "Node drain strategy unset"),
    };
    // Without a drain there is nothing to cancel: the outcome of the last one stays on record.
    let last_drain = (starts || node.drain.is_some()).then(|| {
        let mut last = last_drain(node, status, stamp.now);
        if starts && let Some(fields) = last.as_object_mut() {
            fields.insert("Meta".to_owned(), serde_json::json!(request.meta));
        }
        last
    });
    let event = Some(nodes::event(message, "Drain", stamp));
    let batch = Change::NodeDrain { id, drain, mark_eligible: request.mark_eligible, last_drain, event }.into();
    let evals = if starts {
        // The drainer decides what leaves and when; managers of remote tasks need not wait for it.
        let remote = |alloc: &Allocation| alloc.resources.tasks.values().any(|task| task.remote);
        nodes::evals_where(state, id, Trigger::NodeDrain, stamp, ids, remote)
    } else {
        nodes::all_evals(state, id, stamp, ids)
    };
    let answer = NodeChanged { node_modify_index: stamp.index, index: stamp.index, ..NodeChanged::default() };
    Ok(nodes::followed(batch, answer, evals, stamp))
}

/// Decides which allocations leave the draining nodes now. Skips nodes that do not drain.
pub fn decide(state: &State, nodes: &BTreeSet<NodeId>, stamp: Stamp, ids: &mut Ids<'_>) -> Decision {
    let deadlines = nodes.iter().filter_map(|id| state.node(*id)?.drain.as_ref()).map(|drain| drain.force_deadline_ns);
    let wake_at = deadlines.filter(|at| *at > stamp.now).min();
    let (mut batch, mut reasons) = (Batch::default(), Vec::new());
    let mut marks: BTreeMap<AllocId, JobKey> = BTreeMap::new();
    let mut stops: Vec<PlannedStop> = Vec::new();
    // How many more allocations of each group may leave, over all draining nodes.
    let mut budgets: HashMap<(JobKey, Arc<str>), usize> = HashMap::new();
    for node in nodes.iter().filter_map(|id| state.node(*id)) {
        let Some(drain) = &node.drain else { continue };
        let force = drain.force_deadline_ns != 0 && drain.force_deadline_ns <= stamp.now;
        let present: Vec<&Arc<Allocation>> =
            state.allocs_by_node(node.id).filter(|alloc| !alloc.client_terminal()).collect();
        let (system, others): (Vec<_>, Vec<_>) = present.into_iter().partition(|alloc| is_system(alloc));
        let system_stays = drain.ignore_system_jobs;
        if others.is_empty() && (system_stays || system.is_empty()) {
            complete(node, force, stamp, &mut batch);
            reasons.push(format!("node {}: nothing that must leave is left", node.id));
            continue;
        }
        let (marked, stopped) = (marks.len(), stops.len());
        if force {
            let stuck = others.iter().filter(|alloc| found_no_room(state, alloc, stamp.now));
            stops.extend(stuck.map(|alloc| PlannedStop {
                id: alloc.id,
                node_id: node.id,
                description: why::MIGRATING.to_owned(),
                client_status: None,
                followup_eval_id: EvalId::NIL,
                preempted_by: AllocId::NIL,
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
        let (marked, stopped) = (marks.len() - marked, stops.len() - stopped);
        if marked + stopped > 0 {
            let when = if force { "its deadline has come" } else { "it drains" };
            reasons.push(format!(
                "node {}: {when}, {marked} allocations may leave, {stopped} without room elsewhere stop",
                node.id
            ));
        }
    }
    if marks.is_empty() && stops.is_empty() {
        return Decision { batch, wake_at, reasons };
    }
    let mut jobs: BTreeSet<JobKey> = marks.values().cloned().collect();
    jobs.extend(stops.iter().filter_map(|stop| state.alloc(stop.id)).map(|alloc| alloc.job_key()));
    let evals = jobs.iter().filter_map(|key| eval(state, key, stamp, ids)).collect();
    let migrate = DesiredTransition { migrate: Some(true), ..DesiredTransition::default() };
    if !marks.is_empty() {
        batch.push(Change::AllocTransitions(marks.keys().map(|id| (*id, migrate.clone())).collect()));
    }
    if !stops.is_empty() {
        batch.push(Change::ApplyPlan(Box::new(Plan { stops, ..Plan::default() })));
    }
    batch.push(Change::UpsertEvals(evals));
    Decision { batch, wake_at, reasons }
}

fn is_system(alloc: &Allocation) -> bool {
    alloc.job.as_ref().is_some_and(|job| job_type::everywhere(&job.kind))
}

fn unmarked(alloc: &Allocation) -> bool {
    !alloc.terminal() && alloc.desired_transition.migrate != Some(true)
}

/// Whether the scheduler, asked to move it, has left it where it is.
fn found_no_room(state: &State, alloc: &Allocation, now: TimestampNs) -> bool {
    let asked = !alloc.terminal() && alloc.desired_transition.migrate == Some(true);
    asked
        && !state
            .evals_by_job(&alloc.job_key())
            .any(|eval| eval.status == EvalStatus::Pending && eval.wait_until <= now)
}

fn may_leave(state: &State, alloc: &Allocation, force: bool, budgets: &mut HashMap<(JobKey, Arc<str>), usize>) -> bool {
    if !unmarked(alloc) {
        return false;
    }
    if force || only_remote(state, alloc) {
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

/// How many of a group may be away now.
fn budget(state: &State, of: &Allocation) -> usize {
    let Some(job) = state.job(&of.job_key()) else { return usize::MAX };
    let Some(group) = job.group(&of.task_group) else { return usize::MAX };
    let max_parallel = group.migrate.as_ref().map_or(1, |migrate| migrate.max_parallel());
    let max_parallel = usize::try_from(max_parallel).unwrap_or(1).max(1);
    let in_place = state
        .allocs_by_job(&of.job_key())
        .filter(|alloc| alloc.task_group == of.task_group && unmarked(alloc) && decided(alloc))
        .count();
    let away = (group.count() as usize).saturating_sub(in_place);
    max_parallel.saturating_sub(away)
}

/// Whether its node has watched it as `migrate` says and has decided on its health. Running is not enough: the next one
/// would leave before this replacement serves. An unhealthy one does not delay the drain for ever: `healthy_deadline`
/// ends that.
fn decided(alloc: &Allocation) -> bool {
    alloc.healthy().is_some()
}

fn eval(state: &State, key: &JobKey, stamp: Stamp, ids: &mut Ids<'_>) -> Option<Evaluation> {
    let job = state.job(key).or_else(|| state.allocs_by_job(key).find_map(|alloc| alloc.job.as_ref()))?;
    Some(pending(job, Trigger::NodeDrain, stamp, ids))
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

/// The record of a drain after its end.
fn last_drain(node: &Node, status: &str, now: TimestampNs) -> serde_json::Value {
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

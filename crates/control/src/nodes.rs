//! Decisions about nodes: registration, changed facts, readiness, loss.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use model::{
    Allocation, Eligibility, EvalId, Evaluation, Job, JobKey, Node, NodeId, NodeStatus, StoreIndex, Trigger,
    node::NodeEvent,
};
use state::{ALL_NODE_POOL, Batch, Change, NodePool, State};

use crate::{
    Decided, Ids, Kind, Refused, Stamp,
    introduction::{Enforcement, Registration, Shown, Verdict, judge},
    pending, rfc3339,
};

/// The earliest next look at a disconnected node, after the present one.
const WATCH: Duration = Duration::from_millis(100);

/// The next look at a disconnected node that is waited for without an end: its allocations may have ended, or their
/// jobs wait no more.
const ENDLESS: Duration = Duration::from_secs(300);

/// The answer to a change of a node.
#[derive(Clone, Debug, Default)]
pub struct NodeChanged {
    /// Evaluations that follow.
    pub eval_ids: Vec<EvalId>,
    /// Their index; 0 = none.
    pub eval_create_index: StoreIndex,
    /// Index of the node.
    pub node_modify_index: StoreIndex,
    /// Index of the commit.
    pub index: StoreIndex,
}

/// The node.
///
/// # Errors
/// When no node has that id.
pub fn node_of(state: &State, id: NodeId) -> Result<&Arc<Node>, Refused> {
    state.node(id).ok_or_else(|| Refused::not_found(Kind::Node, id))
}

/// A change of a node with its evaluations.
pub(crate) fn followed(
    mut batch: Batch,
    mut answer: NodeChanged,
    evals: Vec<Evaluation>,
    stamp: Stamp,
) -> Decided<NodeChanged> {
    if !evals.is_empty() {
        answer.eval_ids = evals.iter().map(|eval| eval.id).collect();
        (answer.eval_create_index, answer.index) = (stamp.index, stamp.index);
        batch.push(Change::UpsertEvals(evals));
    }
    Decided { batch, answer }
}

/// Sets whether a node is eligible for scheduling.
///
/// # Errors
/// When there is no such node, or it is draining and should become eligible.
pub fn set_eligibility(
    state: &State,
    id: NodeId,
    eligibility: Eligibility,
    stamp: Stamp,
    ids: &mut Ids<'_>,
) -> Result<Decided<NodeChanged>, Refused> {
    let node = node_of(state, id)?;
    let eligible = eligibility == Eligibility::Eligible;
    if node.drain.is_some() && eligible {
        return Err(Refused::Conflict(
            "can not set node's scheduling eligibility to eligible while it is draining".to_owned(),
        ));
    }
    if node.eligibility == eligibility {
        let answer =
            NodeChanged { node_modify_index: node.modify_index, index: state.latest_index(), ..NodeChanged::default() };
        return Ok(Decided { batch: Batch::default(), answer });
    }
    let can = if eligible { "eligible" } else { "ineligible" };
    let event = Some(event(format!("Node marked as {can} for scheduling"), "Cluster", stamp));
    let batch = Change::NodeEligibility { id, eligibility, event }.into();
    let evals = if eligible { system_evals(state, id, &[], &[], stamp, ids) } else { Vec::new() };
    let answer = NodeChanged { node_modify_index: stamp.index, index: stamp.index, ..NodeChanged::default() };
    Ok(followed(batch, answer, evals, stamp))
}

/// Deletes a node; its allocations are lost.
///
/// # Errors
/// When there is no such node.
pub fn purge(state: &State, id: NodeId, stamp: Stamp, ids: &mut Ids<'_>) -> Result<Decided<NodeChanged>, Refused> {
    node_of(state, id)?;
    let answer = NodeChanged { node_modify_index: stamp.index, index: stamp.index, ..NodeChanged::default() };
    Ok(followed(Change::DeleteNode(id).into(), answer, evals_of_loss(state, &[id], stamp, ids), stamp))
}

/// Makes an evaluation for every job with allocations on a node, and for every system job in its scope.
///
/// # Errors
/// When there is no such node.
pub fn evaluate(state: &State, id: NodeId, stamp: Stamp, ids: &mut Ids<'_>) -> Result<Decided<NodeChanged>, Refused> {
    let node_modify_index = node_of(state, id)?.modify_index;
    let answer = NodeChanged { node_modify_index, index: state.latest_index(), ..NodeChanged::default() };
    Ok(followed(Batch::default(), answer, all_evals(state, id, stamp, ids), stamp))
}

/// One evaluation for each job with allocations on the node, and for each system job in its scope.
pub(crate) fn all_evals(state: &State, node: NodeId, stamp: Stamp, ids: &mut Ids<'_>) -> Vec<Evaluation> {
    let mut evals = evals_for(state, node, Trigger::NodeUpdate, stamp, ids);
    evals.extend(system_evals(state, node, &[], &evals, stamp, ids));
    evals
}

/// An event on a node's record.
pub fn event(message: impl Into<String>, subsystem: &str, stamp: Stamp) -> NodeEvent {
    NodeEvent {
        message: message.into(),
        subsystem: subsystem.to_owned(),
        timestamp: rfc3339(stamp.now),
        ..NodeEvent::default()
    }
}

/// One evaluation for each job with a live allocation on the node.
pub fn evals_for(state: &State, node: NodeId, trigger: Trigger, stamp: Stamp, ids: &mut Ids<'_>) -> Vec<Evaluation> {
    evals_where(state, node, trigger, stamp, ids, |_| true)
}

/// The same for jobs with such an allocation there.
pub(crate) fn evals_where(
    state: &State,
    node: NodeId,
    trigger: Trigger,
    stamp: Stamp,
    ids: &mut Ids<'_>,
    concerns: impl Fn(&Allocation) -> bool,
) -> Vec<Evaluation> {
    let mut evals: BTreeMap<JobKey, Evaluation> = BTreeMap::new();
    for alloc in state.allocs_by_node(node).filter(|alloc| !alloc.client_terminal() && concerns(alloc)) {
        // Only its allocations still name a purged job.
        let Some(job) = state.job(&alloc.job_key()).or(alloc.job.as_ref()) else { continue };
        evals.entry(alloc.job_key()).or_insert_with(|| node_eval(job, node, trigger, stamp, ids));
    }
    evals.into_values().collect()
}

/// One evaluation of a job that a node causes.
fn node_eval(job: &Job, node: NodeId, trigger: Trigger, stamp: Stamp, ids: &mut Ids<'_>) -> Evaluation {
    Evaluation { node_id: node, node_modify_index: stamp.index, ..pending(job, trigger, stamp, ids) }
}

/// Evaluations of the system jobs that have work on a new or changed node. Leaves out jobs in `made`, and jobs without
/// the node's datacenter or pool: an evaluation also restarts what has failed on other nodes. `changes` are those of
/// the node in the same commit.
fn system_evals(
    state: &State,
    node: NodeId,
    changes: &[Change],
    made: &[Evaluation],
    stamp: Stamp,
    ids: &mut Ids<'_>,
) -> Vec<Evaluation> {
    let registered = changes.iter().rev().find_map(|change| match change {
        Change::RegisterNode(facts) if facts.id == node => Some(&**facts),
        _ => None,
    });
    let facts = registered.or_else(|| state.node(node).map(|node| &**node));
    let concerned = state.system_jobs().filter(|job| facts.is_none_or(|facts| scheduler::in_scope(job, facts)));
    let new = concerned.filter(|job| !made.iter().any(|eval| eval.job_id == job.id && eval.namespace == job.namespace));
    new.map(|job| node_eval(job, node, Trigger::NodeUpdate, stamp, ids)).collect()
}

/// Evaluations for lost nodes: of the jobs with live allocations there, and of the system jobs in their scope. Such a
/// job's failed allocations on other nodes restart at every change of the nodes, so also at this one.
fn evals_of_loss(state: &State, lost: &[NodeId], stamp: Stamp, ids: &mut Ids<'_>) -> Vec<Evaluation> {
    let mut evals: BTreeMap<JobKey, Evaluation> = BTreeMap::new();
    for id in lost {
        evals.extend(
            evals_for(state, *id, Trigger::NodeUpdate, stamp, ids).into_iter().map(|eval| (eval.job_key(), eval)),
        );
    }
    // Thousands of nodes may be lost at once, while system jobs are few.
    for job in state.system_jobs() {
        let of = lost.iter().find(|id| state.node(**id).is_some_and(|node| scheduler::in_scope(job, node)));
        if let Some(id) = of {
            evals.entry(job.key()).or_insert_with(|| node_eval(job, *id, Trigger::NodeUpdate, stamp, ids));
        }
    }
    evals.into_values().collect()
}

/// Checks that it is the node registered with this id, if one is.
///
/// # Errors
/// When the registered node has another secret.
pub fn has_its_secret(state: &State, node: &Node) -> Result<(), Refused> {
    if state.node(node.id).is_none_or(|known| known.secret_id == node.secret_id) {
        return Ok(());
    }
    Err(Refused::Invalid(format!(
        "node {} is registered with another secret: it is either another machine with a copied data directory (give \
            it its own), or \
         its secret was lost (remove the node from the servers first)",
        node.id
    )))
}

/// Decides by what a node shows whether it may register; see [`crate::introduction`].
#[must_use]
pub fn admits(state: &State, node: &Node, shown: &Shown, enforcement: Enforcement) -> Verdict {
    let known = state.node(node.id).is_some();
    judge(enforcement, shown, &Registration { id: node.id, name: &node.name, pool: pool_of(node), known })
}

/// The pool that the node belongs to.
fn pool_of(node: &Node) -> &str {
    if node.pool.is_empty() { state::DEFAULT_NODE_POOL } else { &node.pool }
}

/// Registers a node or updates its facts, and makes it ready.
///
/// # Errors
/// When the registered node has another secret, or it cannot join its pool.
pub fn register(state: &State, node: Node, stamp: Stamp, ids: &mut Ids<'_>) -> Result<Batch, Refused> {
    has_its_secret(state, &node)?;
    let mut batch = Batch::default();
    let id = node.id;
    update_facts(state, node, &mut batch)?;
    make_ready(state, id, stamp, ids, &mut batch);
    Ok(batch)
}

/// Updates the facts of a known node.
///
/// # Errors
/// When it cannot join its pool.
pub fn update(state: &State, node: Node, stamp: Stamp, ids: &mut Ids<'_>) -> Result<Batch, Refused> {
    let mut batch = Batch::default();
    let id = node.id;
    update_facts(state, node, &mut batch)?;
    if !batch.is_empty() {
        let evals = system_evals(state, id, &batch.changes, &[], stamp, ids);
        if !evals.is_empty() {
            batch.push(Change::UpsertEvals(evals));
        }
    }
    Ok(batch)
}

/// Writes the facts if they differ: a node that only comes back must not look changed.
fn update_facts(state: &State, mut node: Node, batch: &mut Batch) -> Result<(), Refused> {
    if node.pool == ALL_NODE_POOL {
        return Err(Refused::Invalid(format!(
            "node {} cannot join the node pool {ALL_NODE_POOL:?}, which holds every node; name another one in its \
                configuration",
            node.id
        )));
    }
    let pool = pool_of(&node);
    if state.node_pool(pool).is_none() {
        batch.push(Change::PutNodePool(NodePool { name: pool.into(), ..NodePool::default() }));
    }
    if let Some(known) = state.node(node.id) {
        let same = Node {
            computed_class: known.computed_class.clone(),
            drain: known.drain.clone(),
            last_drain: known.last_drain.clone(),
            eligibility: known.eligibility,
            status: known.status,
            status_description: known.status_description.clone(),
            status_updated_at: known.status_updated_at,
            events: known.events.clone(),
            create_index: known.create_index,
            modify_index: known.modify_index,
            ..node.clone()
        };
        if same == **known {
            return Ok(());
        }
        // The node owns its facts, the servers its status.
        node.status = known.status;
        node.status_description.clone_from(&known.status_description);
    }
    batch.push(Change::RegisterNode(Box::new(node)));
    Ok(())
}

/// Makes a node ready, if it is not.
pub fn make_ready(state: &State, id: NodeId, stamp: Stamp, ids: &mut Ids<'_>, batch: &mut Batch) {
    let before = state.node(id).map(|node| node.status);
    if before == Some(NodeStatus::Ready) {
        return;
    }
    let event = match before {
        // The registration itself is the event.
        None => None,
        Some(NodeStatus::Initializing) => Some(event("Node registered", "Cluster", stamp)),
        Some(_) => Some(event("Node re-registered", "Cluster", stamp)),
    };
    batch.push(Change::NodeStatus {
        id,
        status: NodeStatus::Ready,
        description: "the node holds a lease".to_owned(),
        event,
    });
    let mut evals = evals_for(state, id, Trigger::NodeUpdate, stamp, ids);
    evals.extend(system_evals(state, id, &batch.changes, &evals, stamp, ids));
    if !evals.is_empty() {
        batch.push(Change::UpsertEvals(evals));
    }
}

/// How much longer the servers wait for a silent node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// A full lease, as for a node that was heard just now.
    Lease,
    /// This long.
    For(Duration),
}

/// Result of the loss of nodes.
#[derive(Clone, Debug, Default)]
pub struct Loss {
    /// The changes.
    pub batch: Batch,
    /// Nodes that the servers keep waiting for.
    pub waits: Vec<(NodeId, Wait)>,
}

/// Marks nodes as down or disconnected. Their lease with its margin, or the wait for a disconnected node, is over.
#[must_use]
pub fn lose(state: &State, lost: &[NodeId], stamp: Stamp, ids: &mut Ids<'_>) -> Loss {
    let mut loss = Loss::default();
    if state.cluster().recovery.is_some() {
        // Nothing counts as lost meanwhile.
        loss.waits.extend(lost.iter().map(|id| (*id, Wait::Lease)));
        return loss;
    }
    let mut gone = Vec::new();
    for &id in lost {
        let Some(before) = state.node(id).map(|node| node.status).filter(|status| *status != NodeStatus::Down) else {
            continue;
        };
        let patience = scheduler::node_patience(state, id, stamp.now);
        if let Some(until) = patience {
            let left = |at| Duration::from_nanos(u64::try_from(at - stamp.now).unwrap_or(0)).max(WATCH);
            loss.waits.push((id, Wait::For(until.map_or(ENDLESS, left))));
            if before == NodeStatus::Disconnected {
                continue;
            }
        }
        let (status, description, message) = if patience.is_some() {
            let description = "the node was not heard from within its lease, and allocations on it are waited for";
            (NodeStatus::Disconnected, description, "Node disconnected: heartbeat missed")
        } else {
            (NodeStatus::Down, "the node was not heard from within its lease", "Node heartbeat missed")
        };
        let event = Some(event(message, "Cluster", stamp));
        loss.batch.push(Change::NodeStatus { id, status, description: description.to_owned(), event });
        gone.push(id);
    }
    let evals = evals_of_loss(state, &gone, stamp, ids);
    if !evals.is_empty() {
        loss.batch.push(Change::UpsertEvals(evals));
    }
    loss
}

#[cfg(test)]
mod tests;

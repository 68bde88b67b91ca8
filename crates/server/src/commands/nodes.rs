//! Commands on nodes: drain, eligibility, purge, evaluate.

use std::time::Duration;

use model::{Allocation, DrainStrategy, Eligibility, NodeId, NodeStatus, Trigger};
use state::{Batch, Change};

use crate::{
    clock::rfc3339,
    commit::Decided,
    drainer::last_drain,
    error::{Kind, ServerError},
    handle::ServerHandle,
    nodes::{evals_for, evals_where, event, system_evals},
    requests::{DrainNode, NodeChanged},
};

/// Has its lease run out?
fn without_lease(status: NodeStatus) -> bool {
    matches!(status, NodeStatus::Down | NodeStatus::Disconnected)
}

impl ServerHandle {
    /// Starts, changes or ends a drain.
    ///
    /// # Errors
    /// When there is no such node.
    pub async fn drain_node(&self, request: DrainNode) -> Result<NodeChanged, ServerError> {
        self.shared
            .queue()
            .commit(move |state, stamp| {
                let DrainNode { node_id: id, spec, mark_eligible, meta } = request;
                let node = state.node(id).ok_or_else(|| ServerError::not_found(Kind::Node, id))?;
                let mut answer = NodeChanged { node_modify_index: stamp.index, index: stamp.index, ..NodeChanged::default() };
                let starts = spec.is_some();
                let drain = spec.map(|spec| {
                    let deadline = spec.deadline.nanos();
                    let started = node.drain.as_ref().map_or_else(|| rfc3339(stamp.now), |drain| drain.started_at.clone());
                    // Negative: at once. Zero: never.
                    let force_deadline_ns = match deadline {
                        0 => 0,
                        ..0 => stamp.now,
                        ns => stamp.now.saturating_add(ns),
                    };
                    DrainStrategy {
                        deadline: spec.deadline,
                        ignore_system_jobs: spec.ignore_system_jobs,
                        force_deadline: if force_deadline_ns == 0 { String::new() } else { rfc3339(force_deadline_ns) },
                        started_at: started,
                        force_deadline_ns,
                    }
                });
                let (status, message) = match (starts, node.drain.is_some()) {
                    (true, false) => ("draining", "Node drain strategy set"),
                    (true, true) => ("draining", "Node drain strategy updated"),
                    (false, _) => ("canceled", "Node drain strategy unset"),
                };
                // Where no drain is under way there is nothing to cancel: what became of the last one stays on record.
                let last = (starts || node.drain.is_some()).then(|| {
                    let mut last = last_drain(node, status, stamp.now);
                    if starts && let Some(fields) = last.as_object_mut() {
                        fields.insert("Meta".to_owned(), serde_json::json!(meta));
                    }
                    last
                });
                let mut batch = Batch::default();
                batch.push(Change::NodeDrain { id, drain, mark_eligible, last_drain: last, event: Some(event(message, "Drain", stamp)) });
                let evals = if starts {
                    // The drainer says who leaves, and when; managers of remote tasks need not wait for it.
                    let remote = |alloc: &Allocation| alloc.resources.tasks.values().any(|task| task.remote);
                    evals_where(state, id, Trigger::NodeDrain, stamp, remote)
                } else {
                    let mut evals = evals_for(state, id, Trigger::NodeUpdate, stamp);
                    evals.extend(system_evals(state, id, &[], &evals, stamp));
                    evals
                };
                if !evals.is_empty() {
                    answer.eval_ids = evals.iter().map(|eval| eval.id).collect();
                    answer.eval_create_index = stamp.index;
                    batch.push(Change::UpsertEvals(evals));
                }
                Ok(Decided { batch, answer })
            })
            .await
    }

    /// Lets allocations be placed on a node or not.
    ///
    /// # Errors
    /// When there is no such node, or it is draining and is to become eligible.
    pub async fn set_node_eligibility(&self, id: NodeId, eligibility: Eligibility) -> Result<NodeChanged, ServerError> {
        self.shared
            .queue()
            .commit(move |state, stamp| {
                let node = state.node(id).ok_or_else(|| ServerError::not_found(Kind::Node, id))?;
                if node.drain.is_some() && eligibility == Eligibility::Eligible {
                    return Err(ServerError::Conflict(
                        "can not set node's scheduling eligibility to eligible while it is draining".to_owned(),
                    ));
                }
                let mut answer =
                    NodeChanged { node_modify_index: node.modify_index, index: state.latest_index(), ..NodeChanged::default() };
                if node.eligibility == eligibility {
                    return Ok(Decided { batch: Batch::default(), answer });
                }
                answer.node_modify_index = stamp.index;
                answer.index = stamp.index;
                let message = match eligibility {
                    Eligibility::Eligible => "Node marked as eligible for scheduling",
                    Eligibility::Ineligible => "Node marked as ineligible for scheduling",
                };
                let mut batch: Batch = Change::NodeEligibility { id, eligibility, event: Some(event(message, "Cluster", stamp)) }.into();
                let evals = system_evals(state, id, &[], &[], stamp);
                if eligibility == Eligibility::Eligible && !evals.is_empty() {
                    answer.eval_ids = evals.iter().map(|eval| eval.id).collect();
                    answer.eval_create_index = stamp.index;
                    batch.push(Change::UpsertEvals(evals));
                }
                Ok(Decided { batch, answer })
            })
            .await
    }

    /// Forgets a node; what ran there is lost. When the node still holds a lease, this waits until it has run out: what the node manages must not
    /// be given away before.
    ///
    /// # Errors
    /// When there is no such node.
    pub async fn purge_node(&self, id: NodeId) -> Result<NodeChanged, ServerError> {
        let holds_lease = {
            let state = self.snapshot();
            let node = state.node(id).ok_or_else(|| ServerError::not_found(Kind::Node, id))?;
            !without_lease(node.status) && state.remote_tasks_by_node(id).next().is_some()
        };
        if holds_lease {
            self.shared.sessions.end(id);
            let patience = self.shared.lease_wait() + Duration::from_secs(1);
            let down = |state: &state::State| state.node(id).is_none_or(|node| without_lease(node.status));
            if self.wait_until(patience, down).await.is_err() {
                return Err(ServerError::Conflict(format!(
                    "node {id} manages remote tasks and still renews its lease: stop its agent or drain it, then purge it"
                )));
            }
        }
        let answer = self
            .shared
            .queue()
            .commit(move |state, stamp| {
                if state.node(id).is_none() {
                    return Err(ServerError::not_found(Kind::Node, id));
                }
                let evals = evals_for(state, id, Trigger::NodeUpdate, stamp);
                let answer = NodeChanged {
                    eval_ids: evals.iter().map(|eval| eval.id).collect(),
                    eval_create_index: if evals.is_empty() { 0 } else { stamp.index },
                    node_modify_index: stamp.index,
                    index: stamp.index,
                };
                let mut batch = Batch::default();
                batch.push(Change::DeleteNode(id));
                if !evals.is_empty() {
                    batch.push(Change::UpsertEvals(evals));
                }
                Ok(Decided { batch, answer })
            })
            .await?;
        self.shared.leases.forget(id);
        Ok(answer)
    }

    /// Schedules every job that has to do with a node.
    ///
    /// # Errors
    /// When there is no such node.
    pub async fn evaluate_node(&self, id: NodeId) -> Result<NodeChanged, ServerError> {
        self.shared
            .queue()
            .commit(move |state, stamp| {
                let node = state.node(id).ok_or_else(|| ServerError::not_found(Kind::Node, id))?;
                let mut evals = evals_for(state, id, Trigger::NodeUpdate, stamp);
                evals.extend(system_evals(state, id, &[], &evals, stamp));
                let mut answer =
                    NodeChanged { node_modify_index: node.modify_index, index: state.latest_index(), ..NodeChanged::default() };
                let mut batch = Batch::default();
                if !evals.is_empty() {
                    answer.eval_ids = evals.iter().map(|eval| eval.id).collect();
                    answer.eval_create_index = stamp.index;
                    answer.index = stamp.index;
                    batch.push(Change::UpsertEvals(evals));
                }
                Ok(Decided { batch, answer })
            })
            .await
    }
}

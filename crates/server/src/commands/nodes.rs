//! Commands on nodes: drain, eligibility, purge, evaluate.

use std::{sync::Arc, time::Duration};

use control::{drains, nodes};
use model::{Eligibility, NodeId, NodeStatus};

use state::State;

use crate::{
    clock::{new_id, now_ns, seed},
    error::{Refused, ServerError},
    handle::ServerHandle,
    requests::{Affected, DrainNode, Happens, NodeChanged},
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
        self.decide(move |state, stamp, ids| drains::order(state, request, stamp, ids)).await
    }

    /// What a drain, or the loss of a node, would do to its allocations, with the state that it is computed from.
    ///
    /// # Errors
    /// When there is no such node, or the scheduler cannot decide.
    pub async fn preview_node(&self, id: NodeId, happens: Happens) -> Result<(Arc<State>, Vec<Affected>), ServerError> {
        let state = self.snapshot();
        let of = state.clone();
        // Scoring every node takes a while on large clusters.
        let decide = move || drains::preview::preview(&of, id, happens, (now_ns(), seed()), &mut new_id);
        let decided = blocking::spawn(decide).await;
        let found = decided.map_err(|why| ServerError::Internal { what: "the dry run", why: why.to_string() })?;
        Ok((state, found?))
    }

    /// Lets allocations be placed on a node or not.
    ///
    /// # Errors
    /// When there is no such node, or it is draining and is to become eligible.
    pub async fn set_node_eligibility(&self, id: NodeId, eligibility: Eligibility) -> Result<NodeChanged, ServerError> {
        self.decide(move |state, stamp, ids| nodes::set_eligibility(state, id, eligibility, stamp, ids)).await
    }

    /// Forgets a node; what ran there is lost. When the node still holds a lease, this waits until it has run out:
    /// what the node manages must not be given away before.
    ///
    /// # Errors
    /// When there is no such node.
    pub async fn purge_node(&self, id: NodeId) -> Result<NodeChanged, ServerError> {
        let holds_lease = {
            let state = self.snapshot();
            let node = nodes::node_of(&state, id)?;
            // It would come again at once, and in between another could take its name.
            if self.inner.sessions.has(id) {
                return Err(Refused::Connected { name: node.name.to_string() }.into());
            }
            !without_lease(node.status) && state.remote_tasks_by_node(id).next().is_some()
        };
        if holds_lease {
            self.inner.sessions.end(id);
            let patience = self.config().lease_wait() + Duration::from_secs(1);
            let down = |state: &state::State| state.node(id).is_none_or(|node| without_lease(node.status));
            if self.wait_until(patience, down).await.is_err() {
                return Err(ServerError::conflict(format!(
                    "node {id} manages remote tasks and still renews its lease: stop its agent or drain it, then \
                        purge it"
                )));
            }
        }
        let answer = self.decide(move |state, stamp, ids| nodes::purge(state, id, stamp, ids)).await?;
        self.inner.parts.leases.forget(id);
        Ok(answer)
    }

    /// Schedules every job that has to do with a node.
    ///
    /// # Errors
    /// When there is no such node.
    pub async fn evaluate_node(&self, id: NodeId) -> Result<NodeChanged, ServerError> {
        self.decide(move |state, stamp, ids| nodes::evaluate(state, id, stamp, ids)).await
    }
}

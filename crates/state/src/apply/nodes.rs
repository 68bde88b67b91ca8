//! Nodes: registration, status, drain, eligibility.

use std::sync::Arc;

use model::{
    ids::NodeId,
    node::{DrainStrategy, Eligibility, Node, NodeEvent, NodeStatus},
    records::NodePool,
};

use super::Applier;
use crate::{
    DEFAULT_NODE_POOL,
    applied::{Cause, Object},
    class::computed_class,
};

/// Events kept of a node.
const EVENTS_KEPT: usize = 10;

impl Applier<'_> {
    pub(super) fn register_node(&mut self, mut node: Node) {
        let mut event = None;
        if let Some(before) = self.state.nodes.get(&node.id) {
            node.create_index = before.create_index;
            node.drain.clone_from(&before.drain);
            node.last_drain.clone_from(&before.last_drain);
            node.eligibility = before.eligibility;
            node.events.clone_from(&before.events);
            if node.status == before.status {
                node.status_updated_at = before.status_updated_at;
            } else {
                node.status_updated_at = self.seconds();
                event = Some("Node re-registered");
            }
        } else {
            node.create_index = self.index;
            node.status_updated_at = self.seconds();
            node.events.clear();
            event = Some("Node registered");
        }
        if node.pool.is_empty() {
            DEFAULT_NODE_POOL.clone_into(&mut node.pool);
        }
        node.computed_class = computed_class(&node);
        if let Some(message) = event {
            let event = NodeEvent { message: message.into(), subsystem: "Cluster".into(), ..NodeEvent::default() };
            self.add_event(&mut node, Some(&event));
        }
        // A node may name a pool that does not exist; this makes it.
        if !self.state.pools.contains_key(node.pool.as_str()) {
            self.put_pool(&NodePool { name: node.pool.as_str().into(), ..NodePool::default() });
        }
        if let Some(other) = self.state.nodes.get(&node.id).or_else(|| self.state.fleet.alike(&node.computed_class)) {
            node.share(other);
        }
        self.put_node(node, Cause::NodeRegistration);
    }

    pub(super) fn node_status(&mut self, id: NodeId, status: NodeStatus, description: &str, event: Option<&NodeEvent>) {
        self.edit_node(id, Cause::NodeStreamEvent, event, |node, now| {
            if node.status != status {
                node.status_updated_at = now;
            }
            node.status = status;
            description.clone_into(&mut node.status_description);
        });
    }

    pub(super) fn node_drain(
        &mut self,
        id: NodeId,
        drain: Option<&DrainStrategy>,
        mark_eligible: bool,
        last_drain: Option<&serde_json::Value>,
        event: Option<&NodeEvent>,
    ) {
        self.edit_node(id, Cause::NodeDrain, event, |node, _| {
            node.drain = drain.cloned();
            if drain.is_some() {
                node.eligibility = Eligibility::Ineligible;
            } else if mark_eligible {
                node.eligibility = Eligibility::Eligible;
            }
            if let Some(last) = last_drain {
                node.last_drain = Some(last.clone());
            }
        });
    }

    pub(super) fn node_eligibility(&mut self, id: NodeId, eligibility: Eligibility, event: Option<&NodeEvent>) {
        self.edit_node(id, Cause::NodeEligibility, event, |node, _| node.eligibility = eligibility);
    }

    pub(super) fn node_events(&mut self, id: NodeId, events: &[NodeEvent]) {
        let Some(node) = self.state.nodes.get(&id) else { return };
        let mut node = Node::clone(node);
        for e in events {
            self.add_event(&mut node, Some(e));
        }
        self.put_node(node, Cause::NodeStreamEvent);
    }

    pub(super) fn delete_node(&mut self, id: NodeId) {
        if let Some(node) = self.state.nodes.remove(&id) {
            self.state.fleet.remove_node(id);
            self.delete_local_services_of_node(id);
            if node.gc_volumes {
                let volumes: Vec<_> = self.state.volumes_of(id).map(|volume| volume.id).collect();
                volumes.into_iter().for_each(|volume| self.delete_volume(volume));
            }
            self.set.delete(Cause::NodeDeregistration, Object::Node(node));
        }
    }

    fn edit_node(&mut self, id: NodeId, cause: Cause, event: Option<&NodeEvent>, edit: impl FnOnce(&mut Node, i64)) {
        let Some(node) = self.state.nodes.get(&id) else { return };
        let mut node = Node::clone(node);
        edit(&mut node, self.seconds());
        self.add_event(&mut node, event);
        self.put_node(node, cause);
    }

    fn add_event(&self, node: &mut Node, event: Option<&NodeEvent>) {
        let Some(event) = event else { return };
        let mut event = event.clone();
        event.create_index = self.index;
        if event.timestamp.is_empty() {
            event.timestamp = super::rfc3339(self.now);
        }
        node.events.push(event);
        let surplus = node.events.len().saturating_sub(EVENTS_KEPT);
        node.events.drain(..surplus);
    }

    fn put_node(&mut self, mut node: Node, cause: Cause) {
        node.modify_index = self.index;
        let node = Arc::new(node);
        if self.state.fleet.put_node(&node) {
            // Its allocations may have outlived an earlier registration.
            let allocs: Vec<_> = self.state.allocs_by_node(node.id).filter(|a| a.occupies()).cloned().collect();
            for a in allocs {
                self.state.fleet.take(&a);
            }
        }
        if node.status == NodeStatus::Down {
            self.delete_local_services_of_node(node.id);
        }
        self.state.nodes.insert(node.id, node.clone());
        self.set.put(cause, Object::Node(node));
    }

    fn seconds(&self) -> i64 {
        self.now.div_euclid(1_000_000_000)
    }
}

//! The drainer: carries out what `control::drains` decides.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use control::{Stamp, drains::decide};
use model::NodeId;
use state::{Object, State, Table};
use tokio::sync::Notify;

use crate::{
    clock::new_id,
    commit::{Commit, Decided},
    loops::{self, Loop},
    reconciler::part::{Look, Part, glance, told},
};

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

/// Wakes when something changes while a node drains, and at deadlines.
impl Part for Drains {
    type Work = BTreeSet<NodeId>;
    type Answer = ();
    const LOOP: &Loop = &loops::DRAINER;
    const WORK: &str = "draining nodes";
    const WAIT: &str = "a draining node that changes";
    const FAILED: &str = "draining";

    fn wake(&self) -> &Notify {
        &self.wake
    }

    fn look(self: &Arc<Self>, state: &State) -> Look<BTreeSet<NodeId>> {
        let nodes = self.lock().clone();
        let decision = decide(state, &nodes, glance(), &mut new_id);
        Look::at(nodes, &decision)
    }

    fn decide(&self, nodes: BTreeSet<NodeId>, state: &State, stamp: Stamp) -> Decided<()> {
        told::<Self>(decide(state, &nodes, stamp, &mut new_id))
    }

    fn fill(&self, state: &State) {
        *self.lock() = state.nodes().filter(|node| node.drain.is_some()).map(|node| node.id).collect();
        self.wake.notify_one();
    }
}

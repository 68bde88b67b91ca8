//! Nodes that say to have what nothing proves, while the servers recover. A person decides on each.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use control::takeover::Doubted;
use model::{GenerationId, NodeId};
use tokio::sync::{Notify, oneshot};

/// What a connected node says to have and nothing proves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unproven {
    /// The node.
    pub node: NodeId,
    /// Where it connects from.
    pub peer: Option<SocketAddr>,
    /// What it says to have.
    pub claims: Doubted,
}

/// What was decided on such a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// What it says is true.
    Accepted,
    /// The recovery ends without it.
    Ended,
}

/// The nodes that wait for a decision.
#[derive(Debug, Default)]
pub(super) struct Doubts(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// By node, with the number of the session: a later one has come in its place.
    waiting: BTreeMap<NodeId, (u64, Unproven, oneshot::Sender<Decision>)>,
    /// Who is believed in which recovery.
    accepted: (GenerationId, BTreeSet<NodeId>),
}

impl Doubts {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until it is decided on a node; `wake` hears that there is something to decide. Whoever gives up waiting,
    /// because the session ends, takes its claims back. None = a later session of the node waits in its place.
    pub(super) async fn decide(self: Arc<Self>, session: u64, unproven: Unproven, wake: &Notify) -> Option<Decision> {
        let (decide, decided) = oneshot::channel();
        let node = unproven.node;
        self.lock().waiting.insert(node, (session, unproven, decide));
        let _waits = Waits { doubts: self, node, session };
        wake.notify_one();
        decided.await.ok()
    }

    /// Those that wait.
    pub(super) fn all(&self) -> Vec<Unproven> {
        self.lock().waiting.values().map(|(_, unproven, _)| unproven.clone()).collect()
    }

    /// Whether a person believes the node in that recovery.
    pub(super) fn accepts(&self, recovery: GenerationId, node: NodeId) -> bool {
        let inner = self.lock();
        inner.accepted.0 == recovery && inner.accepted.1.contains(&node)
    }

    /// A person believes the node, in that recovery. False = it waits for no decision.
    pub(super) fn accept(&self, recovery: GenerationId, node: NodeId) -> bool {
        let mut inner = self.lock();
        let Some((_, _, decide)) = inner.waiting.remove(&node) else { return false };
        if inner.accepted.0 != recovery {
            inner.accepted = (recovery, BTreeSet::new());
        }
        inner.accepted.1.insert(node);
        // The session may have ended: its node says the same again in the next one.
        let _ = decide.send(Decision::Accepted);
        true
    }

    /// The recovery ends without what those say who wait. Returns them.
    pub(super) fn end(&self) -> Vec<NodeId> {
        let waiting = std::mem::take(&mut self.lock().waiting);
        let end = |(node, (_, _, decide)): (NodeId, (u64, Unproven, oneshot::Sender<Decision>))| {
            decide.send(Decision::Ended).is_ok().then_some(node)
        };
        waiting.into_iter().filter_map(end).collect()
    }
}

/// One that waits, until this is dropped.
struct Waits {
    doubts: Arc<Doubts>,
    node: NodeId,
    session: u64,
}

impl Drop for Waits {
    fn drop(&mut self) {
        let mut inner = self.doubts.lock();
        if inner.waiting.get(&self.node).is_some_and(|(session, ..)| *session == self.session) {
            inner.waiting.remove(&self.node);
        }
    }
}

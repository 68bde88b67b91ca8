//! Node leases: who has been heard from, and until when the servers wait.
//!
//! A node counts its lease from when it *sent* a message, the servers from when they received it and with a margin on top: when a lease runs out
//! here, the node has let go by its own clock before.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use model::NodeId;
use tokio::sync::Notify;

#[derive(Debug, Default)]
struct Inner {
    until: HashMap<NodeId, Instant>,
    /// Nodes that hold no lease: only the end of the wait for them is of interest.
    cut_off: HashSet<NodeId>,
    order: BTreeSet<(Instant, NodeId)>,
}

impl Inner {
    fn set(&mut self, node: NodeId, until: Instant) {
        if let Some(old) = self.until.insert(node, until) {
            self.order.remove(&(old, node));
        }
        self.order.insert((until, node));
    }
    fn remove(&mut self, node: NodeId) {
        self.cut_off.remove(&node);
        if let Some(old) = self.until.remove(&node) {
            self.order.remove(&(old, node));
        }
    }
}

/// The leases.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    inner: Mutex<Inner>,
    /// Told when the first to run out may have changed.
    pub(crate) changed: Notify,
}

impl Leases {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Grants a lease, new or again. For nodes that the state calls ready.
    pub(crate) fn grant(&self, node: NodeId, wait: Duration) {
        let mut inner = self.lock();
        let first = inner.order.is_empty();
        inner.cut_off.remove(&node);
        inner.set(node, Instant::now() + wait);
        drop(inner);
        if first {
            self.changed.notify_one();
        }
    }

    /// Waits for a node that is cut off: it holds no lease and cannot prolong one, and is named by [`Leases::expire`] when the wait is over.
    pub(crate) fn watch(&self, node: NodeId, wait: Duration) {
        let mut inner = self.lock();
        inner.cut_off.insert(node);
        inner.set(node, Instant::now() + wait);
        drop(inner);
        self.changed.notify_one();
    }

    /// Prolongs a lease. False when there is none (any more): the node must become ready first.
    pub(crate) fn renew(&self, node: NodeId, wait: Duration) -> bool {
        let mut inner = self.lock();
        let held = inner.until.contains_key(&node) && !inner.cut_off.contains(&node);
        if held {
            inner.set(node, Instant::now() + wait);
        }
        held
    }

    /// Nobody waits for this node any more.
    pub(crate) fn forget(&self, node: NodeId) {
        self.lock().remove(node);
    }

    /// Takes away the leases that have run out. `act` is called for them before any renewal can come in between; it must not wait. Returns when
    /// the next one runs out.
    pub(crate) fn expire(&self, now: Instant, act: impl FnOnce(Vec<NodeId>)) -> Option<Instant> {
        let mut inner = self.lock();
        let mut gone = Vec::new();
        while let Some((until, node)) = inner.order.first().copied() {
            if until > now {
                break;
            }
            inner.remove(node);
            gone.push(node);
        }
        if !gone.is_empty() {
            act(gone);
        }
        inner.order.first().map(|(until, _)| *until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    #[test]
    fn leases_run_out_in_order_unless_renewed() {
        let leases = Leases::default();
        let [a, b] = [1, 2].map(|n| NodeId(Uuid::from_u128(n)));
        leases.grant(a, Duration::from_secs(1));
        leases.grant(b, Duration::from_secs(2));
        assert!(leases.renew(a, Duration::from_secs(10)));
        let now = Instant::now();
        let mut gone = Vec::new();
        let next = leases.expire(now + Duration::from_secs(3), |nodes| gone = nodes);
        assert_eq!(gone, [b]);
        assert!(next.is_some_and(|next| next > now + Duration::from_secs(5)));
        assert!(!leases.renew(b, Duration::from_secs(10)), "a lease that has run out cannot be renewed");
        leases.watch(b, Duration::from_secs(1));
        assert!(!leases.renew(b, Duration::from_secs(10)), "nor can one that is only waited for");
        leases.expire(now + Duration::from_secs(4), |nodes| gone = nodes);
        assert_eq!(gone, [b]);
        leases.watch(b, Duration::from_secs(1));
        leases.grant(b, Duration::from_secs(1));
        assert!(leases.renew(b, Duration::from_secs(10)), "it was ready again");
    }
}

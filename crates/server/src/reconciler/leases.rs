//! Leases and the loss of nodes: keeps the table of `control::leases` by the clock, and commits what `control::nodes`
//! decides of lost nodes.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use control::{
    Stamp,
    leases::{self, Rules},
    nodes::{self, Wait},
};
use model::{NodeId, NodeStatus};
use state::{Batch, Change, State};
use tokio::sync::Notify;

use crate::{
    clock::{Boot, boot_now, new_id},
    commit::{CommitQueue, Decided},
    config::ServerConfig,
    loops::{self, Loop},
    published::Published,
    reconciler::part::{Look, Part, RETRY},
    runner::Runner,
};

/// The table, and when it is looked at.
#[derive(Debug)]
struct Held {
    table: leases::Leases,
    /// When the next look should be made at the latest; None before the first one.
    intended: Option<Boot>,
}

/// A node that a decision makes ready. To be dropped once that is stored or refused.
#[derive(Debug)]
pub(crate) struct Expected {
    leases: Arc<Leases>,
    node: NodeId,
}

impl Expected {
    /// It is stored: the node gets its lease.
    pub(crate) fn stored(self) {
        let Self { leases, node } = &self;
        let mut held = leases.lock();
        // Under the lock: who has taken the node for down, or removed it, forgets the lease after that is published.
        if leases.published.load_full().node(*node).is_some_and(|node| node.status == NodeStatus::Ready)
            && held.table.grant(*node, boot_now() + leases.rules.wait)
        {
            leases.changed.notify_one();
        }
    }
}

impl Drop for Expected {
    fn drop(&mut self) {
        self.leases.lock().table.expect_no_more(self.node);
    }
}

/// The leases.
#[derive(Debug)]
pub(crate) struct Leases {
    held: Mutex<Held>,
    /// Told when the first to run out may have changed.
    changed: Notify,
    rules: Rules,
    /// The longest time between two looks: often enough to notice that the server stood still.
    tick: Duration,
    queue: CommitQueue,
    published: Published,
    runner: Arc<Runner>,
}

impl Leases {
    pub(crate) fn new(config: &ServerConfig, queue: CommitQueue, published: Published, runner: Arc<Runner>) -> Self {
        let wait = config.lease_wait();
        Self {
            held: Mutex::new(Held { table: leases::Leases::default(), intended: None }),
            changed: Notify::new(),
            rules: Rules { wait, quiet: (config.heartbeat_interval * 2).min(wait), longest_gap: config.lease / 3 },
            tick: (config.heartbeat_interval / 4).clamp(Duration::from_millis(20), Duration::from_secs(1)),
            queue,
            published,
            runner,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Grants a lease, new or again. For nodes that the state calls ready.
    fn grant(&self, node: NodeId, wait: Duration) {
        if self.lock().table.grant(node, boot_now() + wait) {
            self.changed.notify_one();
        }
    }

    /// Waits for a node that is cut off.
    fn watch(&self, node: NodeId, wait: Duration) {
        self.lock().table.watch(node, boot_now() + wait);
        self.changed.notify_one();
    }

    /// A decision makes the node ready, and is not stored yet. Losses that were seen before no longer count: they
    /// would be decided after it. Nor is the node lost meanwhile, however late the disk is: a loss is decided at once,
    /// and would be stored right after the readiness.
    pub(crate) fn expect(self: &Arc<Self>, node: NodeId) -> Expected {
        self.lock().table.expect(node, boot_now() + self.rules.wait);
        self.changed.notify_one();
        Expected { leases: self.clone(), node }
    }

    /// Prolongs a lease. False when there is none (any more): the node must become ready first.
    pub(crate) fn renew(&self, node: NodeId, wait: Duration) -> bool {
        self.lock().table.renew(node, boot_now() + wait)
    }

    /// Nobody waits for this node any more.
    pub(crate) fn forget(&self, node: NodeId) {
        self.lock().table.forget(node);
    }

    /// Why leases were last given their time again, and how long ago.
    pub(crate) fn given_again(&self) -> Option<(Duration, String)> {
        self.lock().table.given_again().map(|(at, why)| (at.until(boot_now()), why.to_owned()))
    }

    /// Waits for a node as its status says.
    fn wait_for(&self, node: NodeId, status: NodeStatus, wait: Duration) {
        match status {
            NodeStatus::Down => {}
            NodeStatus::Disconnected => self.watch(node, wait),
            NodeStatus::Initializing | NodeStatus::Ready => self.grant(node, wait),
        }
    }

    /// Every node that is not down may hold a lease of an earlier server: it gets that time, and this besides, to come
    /// back.
    pub(crate) fn wait_for_all(&self, state: &State, grace: Duration) {
        for node in state.nodes() {
            self.wait_for(node.id, node.status, self.rules.wait + grace);
        }
    }

    /// Says to the nodes that would have been lost why they were not.
    fn tell(&self, spared: Vec<NodeId>, why: String) {
        if spared.is_empty() {
            return;
        }
        // It is told for people: a disk that refuses it has said so elsewhere.
        drop(self.queue.queue_commit(move |state, stamp| {
            let known = spared.into_iter().filter(|id| state.node(*id).is_some());
            let changes =
                known.map(|id| Change::NodeEvents(id, vec![nodes::event(why.clone(), "Cluster", stamp)])).collect();
            Ok(Decided { batch: Batch { changes, ..Batch::default() }, answer: () })
        }));
    }

    /// The leases of these nodes have run out, margin included. Queued at once: whatever a node says from now on is
    /// decided afterwards.
    fn lose(self: &Arc<Self>, lost: Vec<NodeId>) {
        tracing::warn!(nodes = ?lost, "leases ran out, or the wait for nodes that are cut off is over");
        let (own, of) = (self.clone(), lost.clone());
        let stored = self.queue.queue_commit(move |state, stamp| Ok(own.decide(of, state, stamp)));
        let own = self.clone();
        // The next look must not wait for the disk.
        self.runner.spawn(async move {
            if let Ok(Err(error)) = stored.await {
                tracing::error!(error = %error, "{} failed; trying again", Self::FAILED);
                let state = own.published.load_full();
                for node in lost.iter().filter_map(|id| state.node(*id)) {
                    own.wait_for(node.id, node.status, RETRY);
                }
            }
        });
    }
}

/// Wakes when the next lease runs out, and often enough to notice that the server stood still.
impl Part for Leases {
    type Work = Vec<NodeId>;
    type Answer = ();
    const LOOP: &Loop = &loops::LEASES;
    const IN_RECOVERY: bool = true;
    const WORK: &str = "leases";
    const WAIT: &str = "the next lease that runs out";
    const FAILED: &str = "storing the loss of nodes";

    fn wake(&self) -> &Notify {
        &self.changed
    }

    fn look(self: &Arc<Self>, _: &State) -> Look<Vec<NodeId>> {
        let mut held = self.lock();
        let now = boot_now();
        let gap = held.intended.map_or(Duration::ZERO, |intended| intended.until(now));
        let looked = held.table.look(now, gap, &self.rules);
        if !looked.gone.is_empty() {
            // Before any renewal can come in between.
            self.lose(looked.gone);
        }
        let wait = looked.next.map_or(self.tick, |next| now.until(next).min(self.tick)).max(Duration::from_millis(1));
        held.intended = Some(now + wait);
        drop(held);
        if let Some((why, spared)) = looked.spared {
            tracing::warn!(nodes = spared.len(), "{why}");
            self.tell(spared, why);
        }
        Look::Rest(Some(wait))
    }

    fn decide(&self, mut lost: Vec<NodeId>, state: &State, stamp: Stamp) -> Decided<()> {
        {
            // A node that has become ready since the look would be down for good while it renews its lease.
            let held = self.lock();
            lost.retain(|id| !held.table.knows(*id));
        }
        let loss = nodes::lose(state, &lost, stamp, &mut new_id);
        for (id, wait) in loss.waits {
            let wait = match wait {
                Wait::Lease => self.rules.wait,
                Wait::For(wait) => wait,
            };
            self.watch(id, wait);
        }
        Decided { batch: loss.batch, answer: () }
    }
}

#[cfg(test)]
mod tests {
    use model::Node;

    use super::*;

    #[test]
    fn a_node_that_is_ready_again_is_not_lost_by_what_was_seen_before() {
        let stamp = |index| Stamp { index, now: 1 };
        let node = Node {
            id: new_id(),
            name: "n".into(),
            datacenter: "dc1".into(),
            pool: "default".into(),
            ..Node::default()
        };
        let id = node.id;
        let mut state = State::default();
        let ready = nodes::register(&state, node, stamp(2), &mut new_id).expect("a node");
        state.apply(2, 1, ready).expect("applies");
        let state = Arc::new(state);
        let (queue, _queued) = CommitQueue::new(state.clone());
        let published = Published::new(state.clone());
        let runner = Arc::new(Runner::new(false, None));
        let leases = Arc::new(Leases::new(&ServerConfig::default(), queue, published, runner));

        let lost = || leases.decide(vec![id], &state, stamp(3)).batch;
        assert!(!lost().is_empty(), "nobody has heard from it");
        let expected = leases.expect(id);
        assert!(lost().is_empty(), "its registration was decided before, and its lease follows");
        assert!(!leases.renew(id, Duration::from_secs(1)), "not stored yet");
        expected.stored();
        assert!(lost().is_empty() && leases.renew(id, Duration::from_secs(1)));
        leases.forget(id);
        assert!(!lost().is_empty());
        // What was decided later is stored later: the lease that it gives is none of a node that is down.
        let again = leases.expect(id);
        leases.forget(id);
        assert!(lost().is_empty(), "it is about to be ready");
        let mut down = State::clone(&state);
        down.apply(3, 1, nodes::lose(&state, &[id], stamp(3), &mut new_id).batch).expect("applies");
        leases.published.set(Arc::new(down));
        again.stored();
        assert!(!leases.renew(id, Duration::from_secs(1)), "it must become ready first");
    }
}

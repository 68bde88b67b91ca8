//! What the loops and handles of one server share.

use std::{
    net::SocketAddr,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use model::{ClusterId, StoreIndex, TimestampNs};
use state::{Object, State, Table};
use store::{Store, StoreError};
use tokio::sync::{Notify, watch};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    blocked::Blocked,
    broker::Broker,
    commit::{Commit, CommitQueue, Observer},
    config::ServerConfig,
    drainer::Drains,
    events::EventLog,
    keyring::Keyring,
    leases::Leases,
    remote::Supervision,
    requests::ServerStats,
    rpc::{ClientUpdates, Sessions},
    sweep::Sweeps,
};

/// What the loops and handles of one server share. Each loop owns its part; the parts know nothing of each other but through commits.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: ServerConfig,
    pub(crate) cluster_id: ClusterId,
    pub(crate) rpc_addr: SocketAddr,
    pub(crate) started_at: TimestampNs,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) keyring: Keyring,
    pub(crate) published: Arc<ArcSwap<State>>,
    pub(crate) published_index: watch::Sender<StoreIndex>,
    pub(crate) events: Arc<EventLog>,
    pub(crate) stopping: CancellationToken,
    /// Why the process has to end.
    pub(crate) fatal: watch::Sender<Option<String>>,
    /// Everything that was spawned, to be waited for at the end.
    pub(crate) tasks: TaskTracker,
    pub(crate) broker: Broker,
    pub(crate) blocked: Blocked,
    pub(crate) leases: Leases,
    pub(crate) sessions: Sessions,
    pub(crate) updates: ClientUpdates,
    pub(crate) remote: Supervision,
    pub(crate) sweeps: Sweeps,
    pub(crate) drains: Drains,
    pub(crate) deploy: Notify,
    pub(crate) counters: Counters,
    /// Set right after the pipeline was started, which needs this object as its observer.
    pub(crate) queue: OnceLock<CommitQueue>,
}

/// Numbers since the start.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) plans: AtomicU64,
    pub(crate) partial: AtomicU64,
    /// Allocations and remote tasks that sessions have looked at.
    pub(crate) session_looks: AtomicU64,
    /// Slots that the supervision of remote tasks has looked at.
    pub(crate) slot_looks: AtomicU64,
}

impl Shared {
    /// The commit pipeline.
    pub(crate) fn queue(&self) -> &CommitQueue {
        self.queue.get().expect("the pipeline is started before anything that uses it")
    }

    /// How long the servers wait for a node: its lease and a margin.
    pub(crate) fn lease_wait(&self) -> Duration {
        self.config.lease + self.config.lease_margin
    }

    pub(crate) fn stats(&self) -> ServerStats {
        let store = self.store.stats();
        let mut stats = ServerStats {
            blocked_evals: self.blocked.len(),
            sessions: self.sessions.len(),
            plans_committed: self.counters.plans.load(Ordering::Relaxed),
            plans_partial: self.counters.partial.load(Ordering::Relaxed),
            session_looks: self.counters.session_looks.load(Ordering::Relaxed),
            slot_looks: self.counters.slot_looks.load(Ordering::Relaxed),
            commits: store.batches,
            syncs: store.transactions,
            bytes_written: store.bytes,
            started_at: self.started_at,
            ..ServerStats::default()
        };
        self.broker.stats(&mut stats);
        stats
    }
}

impl Observer for Shared {
    fn applied(&self, commit: &Commit) {
        let tables = commit.applied.tables;
        if tables.contains(Table::Evals) {
            self.broker.follow(commit.applied.changes.iter().filter_map(|change| match &change.object {
                Object::Eval(eval) => Some((eval, change.deleted)),
                _ => None,
            }));
        }
        if tables.contains(Table::SchedulerConfig) {
            self.broker.pause(commit.state.scheduler_config().pause_eval_broker);
        }
        self.blocked.follow(commit);
        self.remote.follow(commit);
        self.sweeps.follow(commit);
        self.drains.follow(commit);
        if tables.contains(Table::Deployments) || tables.contains(Table::Jobs) {
            self.deploy.notify_one();
        }
    }

    fn published(&self, commit: Arc<Commit>) {
        self.events.follow(&commit);
        self.sessions.follow(&commit);
        self.published_index.send_replace(commit.applied.index);
    }

    fn reset(&self, state: &Arc<State>) {
        self.broker.fill(state);
        self.blocked.fill(state);
        self.remote.fill();
        self.drains.fill(state);
        self.deploy.notify_one();
    }

    fn fatal(&self, error: &StoreError) {
        self.fatal.send_if_modified(|fatal| {
            let first = fatal.is_none();
            if first {
                *fatal = Some(error.to_string());
            }
            first
        });
    }
}

//! The cheap handle through which everything outside the loops uses a server: snapshots, waiting for change, events.
//! The write API is in `commands`.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use model::{ClusterId, StoreIndex, TimestampNs};
use node_gateway::join::JoinSecret;
use state::State;
use store::Store;
use tokio_util::sync::CancellationToken;

use crate::{
    commands::login::Logins,
    commit::CommitQueue,
    config::ServerConfig,
    disk::Disk,
    events::{EventFilter, EventLog, EventSubscription},
    introductions::Introductions,
    keyring::Keyring,
    parts::Parts,
    progress::Fault,
    published::Published,
    recovery::{Recovering, RecoveryStatus},
    requests::ServerStats,
    runner::Runner,
    samples::Samples,
    schemas::DriverSchemas,
    sessions::NodeSessions,
    sweep::sweeper::Sweeper,
    trends::Trends,
    watches::{Watched, Watches},
    worker::PlanCounts,
};

/// A server, as seen from the outside. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ServerHandle {
    pub(crate) inner: Arc<Inner>,
}

/// What requests from the outside reach. Only the handle and its commands hold it: the parts of a server hold what
/// they need of each other.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) config: ServerConfig,
    pub(crate) cluster_id: ClusterId,
    pub(crate) rpc_addr: SocketAddr,
    pub(crate) started_at: TimestampNs,
    /// What nodes show; None = nothing.
    pub(crate) join: Option<JoinSecret>,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) keyring: Arc<Keyring>,
    /// The root keys have been rotated.
    pub(crate) rotated: Arc<tokio::sync::Notify>,
    pub(crate) introductions: Arc<Introductions>,
    pub(crate) queue: CommitQueue,
    pub(crate) published: Published,
    pub(crate) events: Arc<EventLog>,
    pub(crate) schemas: Arc<DriverSchemas>,
    /// Blocking queries.
    pub(crate) watches: Arc<Watches>,
    pub(crate) disk: Arc<Disk>,
    pub(crate) sessions: Arc<dyn NodeSessions>,
    pub(crate) parts: Parts,
    pub(crate) sweeper: Arc<Sweeper>,
    pub(crate) recovering: Arc<Recovering>,
    pub(crate) runner: Arc<Runner>,
    pub(crate) samples: Arc<Samples>,
    pub(crate) trends: Arc<Trends>,
    pub(crate) plans: Arc<PlanCounts>,
    /// Handlers of the HTTP API that have panicked.
    pub(crate) handler_panics: AtomicU64,
    pub(crate) logins: Logins,
}

/// What servers differ in that lead, and that follow.
pub(crate) struct Given {
    pub(crate) cluster_id: ClusterId,
    pub(crate) rpc_addr: SocketAddr,
    pub(crate) started_at: TimestampNs,
    pub(crate) join: Option<JoinSecret>,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) keyring: Arc<Keyring>,
    pub(crate) queue: CommitQueue,
    pub(crate) published: Published,
    pub(crate) sessions: Arc<dyn NodeSessions>,
    pub(crate) parts: Parts,
    pub(crate) runner: Arc<Runner>,
}

impl Inner {
    /// Nothing runs yet.
    pub(crate) fn new(config: ServerConfig, given: Given) -> Self {
        let Given { cluster_id, rpc_addr, started_at, join, store, keyring, .. } = given;
        let Given { queue, published, sessions, parts, runner, .. } = given;
        let recovering = Recovering::new(
            (queue.clone(), published.clone(), store.clone()),
            keyring.clone(),
            parts.clone(),
            sessions.clone(),
            runner.clone(),
            started_at,
            config.unheard(),
        );
        let sweeper = Sweeper {
            sweeps: parts.sweeps.clone(),
            supervision: parts.supervision.clone(),
            queue: queue.clone(),
            sessions: sessions.clone(),
            cluster_id,
            interval: config.sweep_interval,
            runner: runner.clone(),
        };
        Self {
            cluster_id,
            rpc_addr,
            started_at,
            join,
            store,
            introductions: Arc::new(Introductions::new(config.introduction.enforcement)),
            keyring,
            rotated: Arc::default(),
            queue,
            published,
            events: Arc::new(EventLog::new(config.event_batches)),
            schemas: Arc::default(),
            watches: Arc::default(),
            disk: Arc::default(),
            sessions,
            parts,
            sweeper: Arc::new(sweeper),
            recovering: Arc::new(recovering),
            runner,
            samples: Arc::default(),
            trends: Arc::default(),
            plans: Arc::default(),
            handler_panics: AtomicU64::default(),
            logins: Logins::default(),
            config,
        }
    }
}

/// Reading.
impl ServerHandle {
    /// The newest durable state.
    #[must_use]
    pub fn snapshot(&self) -> Arc<State> {
        self.inner.published.load_full()
    }
    /// The settings that the server runs with.
    #[must_use]
    pub fn config(&self) -> &ServerConfig {
        &self.inner.config
    }
    /// Identity of the cluster; the owner tag at every provider.
    #[must_use]
    pub fn cluster_id(&self) -> ClusterId {
        self.inner.cluster_id
    }
    /// Where nodes reach the server.
    #[must_use]
    pub fn rpc_addr(&self) -> SocketAddr {
        self.inner.rpc_addr
    }
    /// What the recovery waits for that is under way; None = there is none.
    #[must_use]
    pub fn recovery_status(&self) -> Option<RecoveryStatus> {
        self.inner.recovering.status()
    }
    /// Cancelled when the server stops: long answers end then.
    #[must_use]
    pub fn stopping(&self) -> CancellationToken {
        self.inner.runner.stopping().clone()
    }
    /// Numbers about the server at work.
    #[must_use]
    pub fn stats(&self) -> ServerStats {
        let inner = &self.inner;
        let store = inner.store.stats();
        let (placed, hand_overs) = inner.trends.totals();
        let mut stats = ServerStats {
            blocked_evals: inner.parts.blocked.len(),
            sessions: inner.sessions.len(),
            plans_committed: inner.plans.committed.load(Ordering::Relaxed),
            plans_partial: inner.plans.partial.load(Ordering::Relaxed),
            session_looks: inner.sessions.looks(),
            watches_woken: inner.watches.woken(),
            slot_looks: inner.parts.supervision.looks.load(Ordering::Relaxed),
            handler_panics: inner.handler_panics.load(Ordering::Relaxed),
            introduction_violations: inner.introductions.violations(),
            placed,
            hand_overs,
            commits: store.batches,
            syncs: store.transactions,
            bytes_written: store.bytes,
            started_at: inner.started_at,
            samples: inner.samples.all(),
            ..ServerStats::default()
        };
        inner.parts.broker.stats(&mut stats);
        stats
    }

    /// The cluster over the last hour, oldest first; see [`api::shapes::Trend`].
    #[must_use]
    pub fn trends(&self) -> Vec<api::shapes::Trend> {
        self.inner.trends.all()
    }
    /// What each loop does, and since when.
    #[must_use]
    pub fn progress(&self) -> Vec<api::shapes::LoopHealth> {
        self.inner.runner.progress().health()
    }
    /// Why writes are refused, while they are.
    #[must_use]
    pub fn writes_refused(&self) -> Option<String> {
        self.inner.disk.why()
    }
    /// What nodes show before this server listens to them; None = nothing.
    #[must_use]
    pub fn join_secret(&self) -> Option<&JoinSecret> {
        self.inner.join.as_ref()
    }
    /// What has happened that a person should know of.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        let given_again =
            self.inner.parts.leases.given_again().map(|(ago, why)| format!("{} s ago: {why}", ago.as_secs()));
        let panics = self.stats().handler_panics;
        let panicked = (panics > 0).then(|| {
            format!(
                "{panics} requests to the HTTP API have met a defect since the start: the log has each as \"a \
                handler of the HTTP API has panicked\""
            )
        });
        given_again.into_iter().chain(panicked).collect()
    }
    /// Breaks a loop, for tests of what becomes of it; false when there is none of that name.
    #[doc(hidden)]
    #[must_use]
    pub fn break_loop(&self, name: &str, fault: Fault) -> bool {
        self.inner.runner.progress().put(name, fault)
    }

    /// A blocking query: waits until `index_of` (the index of the watched table or object) is above `min_index`, at
    /// most for `wait`, and gives the newest snapshot either way. `watched` says which changes may raise that index;
    /// no other commit wakes it. Returns at once when `min_index` is 0 or the server stops. Cancel safe.
    pub async fn wait_for(
        &self,
        min_index: StoreIndex,
        wait: Duration,
        watched: impl Fn(&State) -> Watched,
        index_of: impl Fn(&State) -> StoreIndex,
    ) -> Arc<State> {
        let mut state = self.snapshot();
        if min_index == 0 {
            return state;
        }
        let deadline = tokio::time::sleep(wait);
        tokio::pin!(deadline);
        loop {
            let watch = self.inner.watches.register(watched(&state));
            // Read after the registration: what comes later wakes it.
            state = self.snapshot();
            if index_of(&state) > min_index {
                return state;
            }
            if watched(&state) != watch.watched {
                continue;
            }
            tokio::select! {
                () = watch.changed() => {}
                () = &mut deadline => return self.snapshot(),
                () = self.inner.runner.stopping().cancelled() => return state,
            }
        }
    }

    /// Waits until the state meets a condition; the newest state as an error when it did not in time. Cancel safe.
    ///
    /// # Errors
    /// The newest snapshot when the time is up or the server stops.
    pub async fn wait_until(
        &self,
        wait: Duration,
        condition: impl Fn(&State) -> bool,
    ) -> Result<Arc<State>, Arc<State>> {
        let mut changed = self.inner.published.subscribe();
        let deadline = tokio::time::sleep(wait);
        tokio::pin!(deadline);
        loop {
            changed.mark_unchanged();
            let state = self.snapshot();
            if condition(&state) {
                return Ok(state);
            }
            tokio::select! {
                result = changed.changed() => if result.is_err() { return Err(state) },
                () = &mut deadline => return Err(self.snapshot()),
                () = self.inner.runner.stopping().cancelled() => return Err(state),
            }
        }
    }

    /// Subscribes to events from `index` on; 0 = all that is kept.
    #[must_use]
    pub fn subscribe(&self, filter: EventFilter, index: StoreIndex) -> EventSubscription {
        EventSubscription::new(self.inner.events.clone(), filter, index, self.inner.runner.stopping().clone())
    }
}

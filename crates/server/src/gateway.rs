//! The servers' side of the node gateway: what sessions ask for, and what is asked of them.

use std::{
    net::SocketAddr,
    sync::{Arc, OnceLock},
    time::Duration,
};

use api::node_rpc::{DriverSchemas as ToldSchemas, Inventory, RemoteListed};
use control::{Refused, nodes};
use futures::{FutureExt as _, future::BoxFuture};
use model::{AllocClientUpdate, GenerationId, Node, NodeId, RemoteReport, SlotKey, StoreIndex, TimestampNs, node::NodeEvent};
use node_gateway::{Backend, Claims, Farewell, Gateway, Limits, Sessions, Settings, Stored};
use state::{Batch, Change, Mark, State};
use tokio::sync::oneshot;
use uuid::Uuid;

use crate::{
    clock::{new_id, now_ns},
    commit::{Commit, CommitQueue, Decided, Stamp},
    error::{Kind, ServerError},
    handle::Inner,
    keyring::Keyring,
    loops::{self, Loop},
    progress::Turns,
    published::Published,
    reconciler::{Leases, Supervision},
    recovery::Recovering,
    runner::Runner,
    schemas::DriverSchemas,
    sessions::NodeSessions,
    sweep::Sweeps,
    updates::ClientUpdates,
};

impl NodeSessions for Sessions {
    fn follow(&self, commit: &Commit) {
        Self::follow(self, &commit.before, &commit.applied);
    }

    fn has(&self, node: NodeId) -> bool {
        Self::has(self, node)
    }

    fn len(&self) -> usize {
        Self::len(self)
    }

    fn looks(&self) -> u64 {
        Self::looks(self)
    }

    fn end(&self, node: NodeId) {
        Self::end(self, node);
    }

    fn end_all(&self) {
        Self::end_all(self);
    }

    fn list_remote<'a>(
        &'a self,
        node: NodeId,
        at: (&'a str, &'a str),
        page_token: String,
        all_owners: bool,
    ) -> BoxFuture<'a, Result<RemoteListed, String>> {
        Self::list_remote(self, node, at, page_token, all_owners).boxed()
    }
}

/// The gateway of a server, with the registry of its sessions.
pub(crate) fn compose(inner: &Inner, sessions: Arc<Sessions>) -> Arc<Gateway> {
    let config = &inner.config;
    let settings = Settings {
        cluster_id: inner.cluster_id,
        region: config.region.clone(),
        http_advertise: config.http_advertise.clone(),
        lease: config.lease,
        lease_wait: config.lease_wait(),
        heartbeat_interval: config.heartbeat_interval,
        join: inner.join.clone(),
        limits: Limits { per_client: config.rpc_conns_per_client, handshake: config.rpc_handshake },
    };
    let servers = Servers {
        published: inner.published.clone(),
        queue: inner.queue.clone(),
        updates: ClientUpdates::new(inner.queue.clone(), inner.runner.clone()),
        supervision: inner.parts.supervision.clone(),
        sweeps: inner.parts.sweeps.clone(),
        leases: inner.parts.leases.clone(),
        lease_wait: config.lease_wait(),
        schemas: inner.schemas.clone(),
        keyring: inner.keyring.clone(),
        recovering: inner.recovering.clone(),
        runner: inner.runner.clone(),
        connections: OnceLock::new(),
        messages: OnceLock::new(),
    };
    let stopping = inner.runner.stopping().clone();
    Arc::new(Gateway { settings, sessions, backend: Arc::new(servers), stopping })
}

/// What sessions ask the servers for.
#[derive(Debug)]
struct Servers {
    published: Published,
    queue: CommitQueue,
    updates: ClientUpdates,
    supervision: Arc<Supervision>,
    sweeps: Arc<Sweeps>,
    leases: Arc<Leases>,
    lease_wait: Duration,
    schemas: Arc<DriverSchemas>,
    keyring: Arc<Keyring>,
    recovering: Arc<Recovering>,
    runner: Arc<Runner>,
    connections: OnceLock<Arc<Turns>>,
    /// Of all sessions. Known from the first one on.
    messages: OnceLock<Arc<Turns>>,
}

impl Servers {
    fn turns<'a>(&self, known: &'a OnceLock<Arc<Turns>>, of: &'static Loop) -> &'a Turns {
        known.get_or_init(|| self.runner.turns(of))
    }

    /// Commits what is decided. Queued when this returns.
    fn commit(&self, decide: impl FnOnce(&State, Stamp) -> Result<Batch, ServerError> + Send + 'static) -> Stored<()> {
        let queued = self.queue.queue_commit(move |state, stamp| Ok(Decided { batch: decide(state, stamp)?, answer: () }));
        stored(queued.map(|result| result.unwrap_or(Err(ServerError::ShuttingDown))))
    }
}

/// A session that meets an error ends, and its node opens another.
fn ends(error: ServerError) -> Farewell {
    Farewell::retry(error.to_string())
}

/// What ends its session when it fails.
fn stored<T>(stored: impl Future<Output = Result<T, ServerError>> + Send + 'static) -> Stored<T> {
    stored.map(|result| result.map_err(ends)).boxed()
}

impl Backend for Servers {
    fn published(&self) -> Arc<State> {
        self.published.load_full()
    }

    fn now(&self) -> TimestampNs {
        now_ns()
    }

    fn new_id(&self) -> Uuid {
        new_id()
    }

    fn register(&self, node: Node) -> Stored<()> {
        let leases = self.leases.clone();
        let registered = self.queue.queue_commit(move |state, stamp| {
            let id = node.id;
            let batch = nodes::register(state, node, stamp, &mut new_id)?;
            leases.expect(id);
            Ok(Decided { batch, answer: () })
        });
        let refused = |error| match error {
            ServerError::Refused(Refused::Invalid(reason)) => Farewell::refuse(reason),
            other => ends(other),
        };
        registered.map(move |result| result.unwrap_or(Err(ServerError::ShuttingDown)).map_err(refused)).boxed()
    }

    fn update(&self, mut node: Node) -> Stored<()> {
        self.commit(move |state, stamp| {
            let known = state.node(node.id).ok_or_else(|| ServerError::not_found(Kind::Node, node.id))?;
            node.secret_id.clone_from(&known.secret_id);
            Ok(nodes::update(state, node, stamp, &mut new_id)?)
        })
    }

    /// Queued when this returns, so that it is decided after the loss.
    fn ready_again(&self, id: NodeId) -> Stored<()> {
        let leases = self.leases.clone();
        self.commit(move |state, stamp| {
            if state.node(id).is_none() {
                return Err(ServerError::not_found(Kind::Node, id));
            }
            let mut batch = Batch::default();
            nodes::make_ready(state, id, stamp, &mut new_id, &mut batch);
            leases.expect(id);
            Ok(batch)
        })
    }

    fn record_event(&self, node: NodeId, event: NodeEvent) -> Stored<()> {
        self.commit(move |_, _| Ok(Change::NodeEvents(node, vec![event]).into()))
    }

    fn store_updates(&self, node: NodeId, updates: Vec<AllocClientUpdate>) -> Stored<()> {
        stored(self.updates.store(node, updates))
    }

    fn store_reports(&self, node: NodeId, reports: Vec<RemoteReport>) -> (Stored<()>, oneshot::Receiver<Vec<SlotKey>>) {
        let (reported, resend) = self.supervision.report(node, reports);
        (stored(reported), resend)
    }

    fn grant(&self, node: NodeId) {
        self.leases.grant(node, self.lease_wait);
    }

    fn renew(&self, node: NodeId) -> bool {
        self.leases.renew(node, self.lease_wait)
    }

    fn reachable(&self, node: &Node) {
        self.sweeps.reachable(node);
    }

    fn driver_schemas(&self, node: NodeId, told: ToldSchemas) {
        self.schemas.told(node, told);
    }

    fn sign(&self, claims: &Claims<'_>) -> Result<String, String> {
        self.keyring.sign(claims).map_err(|error| error.to_string())
    }

    fn enter_recovery<'a>(&'a self, node: &'a Node, peer: Option<SocketAddr>, mark: Mark) -> BoxFuture<'a, Result<(), Farewell>> {
        self.recovering.enter(node, peer, mark).map(|entered| entered.map_err(ends)).boxed()
    }

    fn take_over(&self, node: NodeId, mark: Mark, lost: bool, pieces: Vec<Inventory>) -> Stored<Option<(GenerationId, StoreIndex)>> {
        stored(self.recovering.told(node, mark, lost, pieces))
    }

    fn has_answered(&self, recovery: GenerationId, node: NodeId) {
        self.recovering.has_answered(recovery, node);
    }

    fn spawn(&self, session: BoxFuture<'static, ()>) {
        self.runner.spawn_guarded(&loops::SESSION, session);
    }

    fn awaits_connection(&self) {
        self.turns(&self.connections, &loops::SESSIONS).waits("a connection of a node");
    }

    fn awaits_messages(&self) {
        // Reported only: one that stands still costs its node its lease, and the node opens another.
        self.turns(&self.messages, &loops::SESSION).waits("messages of nodes");
    }

    fn stumble(&self) {
        self.turns(&self.messages, &loops::SESSION).stumble();
    }
}

//! The servers' side of the node gateway: what sessions ask for, and what is asked of them.

use std::{
    net::SocketAddr,
    sync::{Arc, OnceLock},
    time::Duration,
};

use api::node_rpc::{DriverSchemas as ToldSchemas, RemoteListed};
use control::{Refused, introduction::Shown, nodes, sessions::SessionId, volumes};
use futures::{FutureExt as _, future::BoxFuture};
use model::{
    AllocClientUpdate, GenerationId, Node, NodeId, RemoteReport, SlotKey, StoreIndex, TimestampNs, VolumeReport,
    node::NodeEvent, proof::MAC_BYTES,
};
use node_gateway::{
    AllServers, Backend, Claims, Farewell, Gateway, NodeClaims, Said, Sessions, Settings, Stored, Verified,
};
use state::{Batch, Change, Mark, State};
use store::Store;
use tokio::sync::oneshot;
use uuid::Uuid;

use crate::{
    clock::{new_id, time_of_day},
    commit::{Commit, CommitQueue, Decided, Stamp},
    error::{Kind, ServerError},
    handle::Inner,
    introductions::{self, Introductions},
    keyring::{KeyState, Keyring},
    loops::{self, Loop},
    progress::Turns,
    published::Published,
    reconciler::{Expected, Leases, Supervision},
    recovery::Recovering,
    runner::Runner,
    schemas::DriverSchemas,
    session_order::SessionOrder,
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

/// The gateway of a server, with the registry of its sessions. `servers`: those that nodes are told of.
pub(crate) fn compose(inner: &Inner, sessions: Arc<Sessions>, servers: AllServers) -> Arc<Gateway> {
    let config = &inner.config;
    let settings = Settings {
        cluster_id: inner.cluster_id,
        region: config.region.clone(),
        http_advertise: config.http_advertise.clone(),
        lease_wait: config.lease_wait(),
        heartbeat_interval: config.heartbeat_interval,
        join: inner.join.clone(),
        vault_claims: config.vault.as_ref().map(|vault| vault.extra_claims.clone()).unwrap_or_default(),
        identity_ttl: config.introduction.identity_ttl,
        tls: config.tls.clone(),
        acl: config.acl.enabled,
        limits: config.rpc_limits(),
        servers,
    };
    let order = SessionOrder::default();
    let backend = Servers {
        published: inner.published.clone(),
        queue: inner.queue.clone(),
        updates: ClientUpdates::new(inner.queue.clone(), inner.runner.clone(), order.clone()),
        order,
        supervision: inner.parts.supervision.clone(),
        sweeps: inner.parts.sweeps.clone(),
        leases: inner.parts.leases.clone(),
        lease: config.lease,
        lease_wait: config.lease_wait(),
        store: inner.store.clone(),
        schemas: inner.schemas.clone(),
        keyring: inner.keyring.clone(),
        issuer: config.oidc_issuer.clone(),
        introductions: inner.introductions.clone(),
        recovering: inner.recovering.clone(),
        runner: inner.runner.clone(),
        connections: OnceLock::new(),
        messages: OnceLock::new(),
    };
    let stopping = inner.runner.stopping().clone();
    Arc::new(Gateway { settings, sessions, backend: Arc::new(backend), stopping })
}

/// The claims of a task's token with who issues it.
#[derive(serde::Serialize)]
struct Issued<'a> {
    #[serde(flatten)]
    claims: &'a Claims<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    iss: Option<&'a str>,
}

/// What sessions ask the servers for.
#[derive(Debug)]
struct Servers {
    published: Published,
    queue: CommitQueue,
    updates: ClientUpdates,
    order: SessionOrder,
    supervision: Arc<Supervision>,
    sweeps: Arc<Sweeps>,
    leases: Arc<Leases>,
    lease: Duration,
    lease_wait: Duration,
    store: Arc<dyn Store>,
    schemas: Arc<DriverSchemas>,
    keyring: Arc<Keyring>,
    /// `iss` of the tokens of tasks.
    issuer: Option<String>,
    introductions: Arc<Introductions>,
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

    /// Commits what makes a node ready, and grants its lease as soon as that is durable. Queued when this returns.
    fn make_ready(
        &self,
        node: NodeId,
        decide: impl FnOnce(&State, Stamp) -> Result<Batch, ServerError> + Send + 'static,
    ) -> impl Future<Output = Result<(), ServerError>> + Send + 'static {
        let leases = self.leases.clone();
        let queued = self.queue.queue_commit(move |state, stamp| {
            let batch = decide(state, stamp)?;
            Ok(Decided { batch, answer: leases.expect(node) })
        });
        let (tell, told) = oneshot::channel();
        // Not by the session: one that is held up by its node would hear of it when the node is lost again.
        self.runner.spawn(async move {
            let result = queued.await.unwrap_or(Err(ServerError::ShuttingDown)).map(Expected::stored);
            // The session may be gone; then the lease is not renewed.
            let _ = tell.send(result);
        });
        async move { told.await.unwrap_or(Err(ServerError::ShuttingDown)) }
    }

    /// Commits what is decided on the word of a session, if it is the node's present one. Queued when this returns.
    fn commit(
        &self,
        from: SessionId,
        decide: impl FnOnce(&State, Stamp) -> Result<Batch, ServerError> + Send + 'static,
    ) -> Stored<()> {
        let order = self.order.clone();
        let queued = self.queue.queue_commit(move |state, stamp| {
            order.check(from)?;
            Ok(Decided { batch: decide(state, stamp)?, answer: () })
        });
        stored(queued.map(|result| result.unwrap_or(Err(ServerError::ShuttingDown))))
    }
}

/// A session that meets an error ends, and its node opens another.
fn ends(error: ServerError) -> Farewell {
    Farewell::retry(error.to_string())
}

/// What a known node says of itself.
fn renewed(state: &State, mut node: Node, stamp: Stamp) -> Result<Batch, ServerError> {
    let known = state.node(node.id).ok_or_else(|| ServerError::not_found(Kind::Node, node.id))?;
    node.secret_id.clone_from(&known.secret_id);
    Ok(nodes::update(state, node, stamp, &mut new_id)?)
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
        time_of_day()
    }

    fn new_id(&self) -> Uuid {
        new_id()
    }

    fn admits(&self, node: &Node, shown: &Shown) -> Result<(), Farewell> {
        self.introductions.admits(&self.published.load_full(), node, shown).map_err(Farewell::refuse)
    }

    fn register(&self, node: Node, shown: Shown, from: SessionId) -> Stored<()> {
        let (introductions, order) = (self.introductions.clone(), self.order.clone());
        let registered = self.make_ready(node.id, move |state, stamp| {
            introductions.registers(state, &node, &shown).map_err(Refused::Invalid)?;
            let batch = nodes::register(state, node, stamp, &mut new_id)?;
            order.registers(from)?;
            Ok(batch)
        });
        let refused = |error| match error {
            ServerError::Refused(Refused::Invalid(reason)) => Farewell::refuse(reason),
            other => ends(other),
        };
        registered.map(move |result| result.map_err(refused)).boxed()
    }

    fn update(&self, node: Node, from: SessionId) -> Stored<()> {
        self.commit(from, move |state, stamp| renewed(state, node, stamp))
    }

    /// Queued when this returns, so that it is decided after the loss.
    fn ready_again(&self, from: SessionId) -> Stored<()> {
        let (order, id) = (self.order.clone(), from.node);
        stored(self.make_ready(id, move |state, stamp| {
            order.check(from)?;
            if state.node(id).is_none() {
                return Err(ServerError::not_found(Kind::Node, id));
            }
            let mut batch = Batch::default();
            nodes::make_ready(state, id, stamp, &mut new_id, &mut batch);
            Ok(batch)
        }))
    }

    fn record_event(&self, from: SessionId, event: NodeEvent) -> Stored<()> {
        self.commit(from, move |_, _| Ok(Change::NodeEvents(from.node, vec![event]).into()))
    }

    fn store_volumes(&self, from: SessionId, node: Option<Node>, reports: Vec<VolumeReport>) -> Stored<()> {
        self.commit(from, move |state, stamp| {
            let mut batch = match node {
                Some(node) => renewed(state, node, stamp)?,
                None => Batch::default(),
            };
            batch.changes.extend(volumes::report(state, from.node, &reports).changes);
            Ok(batch)
        })
    }

    fn store_updates(&self, from: SessionId, updates: Vec<AllocClientUpdate>) -> Stored<()> {
        stored(self.updates.store(from, updates))
    }

    fn store_reports(
        &self,
        from: SessionId,
        reports: Vec<RemoteReport>,
    ) -> (Stored<()>, oneshot::Receiver<Vec<SlotKey>>) {
        let (reported, resend) = self.supervision.report((from, self.order.clone()), reports);
        (stored(reported), resend)
    }

    fn lease(&self) -> Duration {
        let age = self.store.confirmed().map(|at| ::clock::boot_now().saturating_sub(at));
        self.lease.saturating_sub(age.unwrap_or_default())
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
        self.keyring.sign(&Issued { claims, iss: self.issuer.as_deref() }).map_err(|error| error.to_string())
    }

    fn prove(&self, statement: &[u8]) -> Option<(Uuid, [u8; MAC_BYTES])> {
        self.keyring.prove(statement)
    }

    fn sign_node(&self, claims: &NodeClaims) -> Result<String, String> {
        self.keyring.sign(claims).map_err(|error| error.to_string())
    }

    fn signing_key(&self) -> Option<Uuid> {
        self.keyring.keys().0.iter().find(|key| key.state == KeyState::Active).map(|key| key.id)
    }

    fn verify(&self, token: &str) -> Option<Verified> {
        let claims = self.keyring.verify(token)?;
        Some(Verified { key: introductions::key_of(token)?, claims })
    }

    fn enter_recovery<'a>(
        &'a self,
        node: &'a Node,
        peer: Option<SocketAddr>,
        mark: Mark,
    ) -> BoxFuture<'a, Result<(), Farewell>> {
        self.recovering.enter(node, peer, mark).map(|entered| entered.map_err(ends)).boxed()
    }

    fn take_over(&self, from: SessionId, said: Said) -> Stored<Option<(GenerationId, StoreIndex)>> {
        stored(self.recovering.told((from, self.order.clone()), said))
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

#[cfg(test)]
mod tests {
    use model::{AllocClientUpdate, AllocId};

    use super::*;
    use crate::{Server, ServerConfig};

    fn node(name: &str) -> Node {
        Node {
            id: NodeId(Uuid::from_u128(1)),
            name: name.into(),
            secret_id: "secret".into(),
            datacenter: "dc1".into(),
            ..Node::default()
        }
    }

    /// The servers, as sessions of one node use them, with a number for each session.
    async fn backend() -> (Server, Arc<dyn Backend>) {
        let server = Server::start(ServerConfig::default()).await.expect("the server starts");
        let gateway = compose(&server.handle().inner, Arc::default(), AllServers::default());
        (server, gateway.backend.clone())
    }

    fn session(number: u64) -> SessionId {
        SessionId { node: node("").id, number }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_a_former_session_says_takes_nothing_back_in_either_order() {
        let (server, backend) = backend().await;
        let name = || backend.published().node(node("").id).expect("registered").name.to_string();
        let shown = || Shown { joined: true, ..Shown::default() };
        let register = |name, number| backend.register(node(name), shown(), session(number));
        let said = || vec![AllocClientUpdate { id: AllocId(Uuid::from_u128(2)), ..AllocClientUpdate::default() }];
        register("first", 1).await.expect("registered");

        // The former session's word comes first: both are heard, and the later one stands.
        let (former, next) = (backend.update(node("former"), session(1)), register("next", 2));
        former.await.expect("it was the present one");
        next.await.expect("registered");
        assert_eq!(name(), "next");

        // It comes after the next session has registered: nothing of it is heard.
        let next = register("third", 3);
        let late = (
            backend.update(node("late"), session(2)),
            backend.store_updates(session(2), said()),
            backend.store_reports(session(2), Vec::new()).0,
            backend.record_event(session(2), NodeEvent::default()),
            backend.ready_again(session(2)),
        );
        let own = backend.store_updates(session(3), said());
        next.await.expect("registered");
        for refused in [late.0.await, late.1.await, late.2.await, late.3.await, late.4.await] {
            let farewell = refused.expect_err("of a former session");
            assert!(farewell.retry && farewell.reason.contains("another session"), "{}", farewell.reason);
        }
        own.await.expect("the present session is heard beside the late one");
        // Nor does a Hello that was on its way for long.
        assert!(register("late", 2).await.is_err_and(|farewell| farewell.retry));
        assert_eq!(name(), "third");
        backend.update(node("fourth"), session(3)).await.expect("the present session");
        assert_eq!(name(), "fourth");
        server.shutdown().await;
    }
}

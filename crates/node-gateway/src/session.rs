//! One node's session: registration, lease, allocations, orders, reports.
//!
//! ```text
//! Hello ─► identity checked, node registered and ready ─► Welcome (lease)
//!       ─► Allocs full ─► RemoteOrders full ─► changes …
//! Heartbeat renews the lease; without one the node goes down, session or not
//! ```
//!
//! The session owns the record of what it has sent. For all else it reads the published snapshot when it wakes, and
//! there only the possible changes. It queues reports in the order in which they came, and acknowledges them once they
//! are durable. Heartbeats do not wait for that.

use std::{
    collections::{HashMap, VecDeque},
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use api::node_rpc::{
    DriverSchemas, FromNode, FromNodeMessage, Goodbye, Heartbeat, HeartbeatAck, Hello, InventoryStored, ListRemote,
    PROTOCOLS, RemoteListed, ToNodeMessage, UpdatesStored, Welcome, agreed, from_json, spoken_by, versions,
};
use control::sessions::SessionId;
use futures::{FutureExt as _, StreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use model::{AllocClientUpdate, GenerationId, Node, NodeId, RemoteReport, StoreIndex, VolumeReport};
use state::{ClusterMeta, Mark};
use tokio::sync::oneshot;
use uuid::Uuid;

use crate::{
    backend::{Farewell, Said},
    credentials::{self, Credentials},
    gateway::Gateway,
    identities,
    inventory::InventorySoFar,
    messages::{Messages, Sender},
    node_claims::Term,
    registry::{Ask, SessionEntry},
    sent::{News, Sent, Source},
};

/// The server closes a connection that sends no Hello within this time.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);

/// A node that does not read within this time gets no goodbye: it sees the connection end.
const GOODBYE_TIMEOUT: Duration = Duration::from_secs(1);

/// Serves a session until either side ends it.
pub(crate) async fn run(
    gateway: Arc<Gateway>,
    mut from: Messages,
    to: Sender,
    peer: Option<SocketAddr>,
    credentials: Box<Credentials>,
) {
    let stopping = gateway.stopping.clone();
    let farewell = tokio::select! {
        farewell = meet(&gateway, &mut from, &to, peer, credentials) => farewell,
        () = stopping.cancelled() => Some(Farewell::retry("the server is stopping")),
    };
    if let Some(Farewell { reason, retry }) = farewell {
        // The node may be gone already.
        let goodbye = Box::pin(to.send(ToNodeMessage::Goodbye(Goodbye { reason, retry })));
        let _ = tokio::time::timeout(GOODBYE_TIMEOUT, goodbye).await;
    }
}

/// The session from Hello to its end.
async fn meet(
    gateway: &Arc<Gateway>,
    from: &mut Messages,
    to: &Sender,
    peer: Option<SocketAddr>,
    credentials: Box<Credentials>,
) -> Option<Farewell> {
    // Rare states are boxed, here and below: thousands of nodes pay for the state of a quiet session.
    let greeted = Box::pin(greet(gateway, from, to, peer, credentials)).await;
    let Greeted { node, entry, sent, mark, mark_lost, recovers, identity, servers } = match greeted {
        Err(farewell) => return Some(farewell),
        Ok(None) => return None,
        Ok(Some(greeted)) => greeted,
    };
    tracing::info!(node = %node, peer = ?peer, "session opened");
    // A drop in between must also remove the session from the registry.
    let _open = OpenSession { gateway, node, serial: entry.serial };
    let mut session = Session::new(gateway.clone(), node, entry, to.clone(), sent);
    (session.mark, session.mark_lost, session.recovers) = (mark, mark_lost, recovers);
    (session.identity, session.servers, session.peer) = (identity, servers, peer);
    let farewell = session.serve(from).await;
    tracing::info!(node = %node, reason = farewell.as_ref().map(|f| &*f.reason), "session closed");
    farewell
}

/// Removes the session from the registry at its end.
struct OpenSession<'a> {
    gateway: &'a Gateway,
    node: NodeId,
    serial: u64,
}

impl Drop for OpenSession<'_> {
    fn drop(&mut self) {
        self.gateway.sessions.close(self.node, self.serial);
    }
}

/// A node and its session.
struct Greeted {
    node: NodeId,
    entry: Arc<SessionEntry>,
    /// What it has been told: nothing yet.
    sent: Sent,
    /// The node's mark.
    mark: Mark,
    /// The node's mark is lost; `mark` is one that nobody knows.
    mark_lost: bool,
    /// The servers recover, or the mark is lost: the session asks the node and tells it nothing.
    recovers: bool,
    /// What the session keeps of the node's identity.
    identity: Option<Term>,
    /// The servers that the node was told of.
    servers: Vec<String>,
}

/// Why a session ends that the registry has ended.
const ENDED: &str = "the node has opened another session, or was removed from the servers";

/// What a node may be granted now. A server that may no longer lead lets go of a node as soon as a grant would end
/// before it asks again: it has time left to find the one that does lead, and to be heard before that gives it up.
fn lease(gateway: &Gateway) -> Result<Duration, Farewell> {
    let lease = gateway.backend.lease();
    if lease < gateway.settings.heartbeat_interval {
        return Err(Farewell::retry("this server cannot confirm that it still leads; another one may"));
    }
    Ok(lease)
}

/// Checks who the node is, registers it and opens its session. `None` = the connection ended before.
async fn greet(
    gateway: &Gateway,
    from: &mut Messages,
    to: &Sender,
    peer: Option<SocketAddr>,
    credentials: Box<Credentials>,
) -> Result<Option<Greeted>, Farewell> {
    let Credentials { shown, issued } = *credentials;
    let first = tokio::time::timeout(HELLO_TIMEOUT, from.message()).await.map_err(|_| {
        Farewell::retry(format!(
            "the session said nothing for {} s; its first message must be Hello",
            HELLO_TIMEOUT.as_secs()
        ))
    })?;
    let hello = match first {
        Ok(Some(FromNode { message: Some(FromNodeMessage::Hello(hello)) })) => hello,
        Ok(Some(_)) => return Err(Farewell::refuse("the first message of a session must be Hello")),
        Ok(None) | Err(_) => return Ok(None),
    };
    // First: what else it says may have another meaning in another version.
    let protocol = protocol(&hello)?;
    let (mark, mark_lost) = (belongs(gateway, &hello)?, hello.mark_lost);
    let (instance, takes_pieces) = (hello.instance.clone(), hello.takes_pieces);
    let node = check(gateway, hello)?;
    let id = node.id;
    if let Err(refused) = gateway.backend.admits(&node, &shown) {
        tracing::warn!(node = %id, name = &*node.name, peer = ?peer, why = refused.reason, "a node was refused");
        return Err(refused);
    }
    if let Some(rival) = gateway.sessions.rival(id, &instance, gateway.settings.lease_wait) {
        return Err(rivalled(id, &rival, gateway.settings.lease_wait));
    }
    if !mark_lost && claims_more(gateway, &node, mark)? {
        // First of all: from here on, the server decides nothing on a state from the past.
        gateway.backend.enter_recovery(&node, peer, mark).await?;
    }
    let session = gateway.sessions.next(id);
    // From here on it is ready and has its lease, before the Welcome.
    gateway.backend.register(node, shown, session).await?;
    let lease = lease(gateway)?;
    if let Some(rival) = gateway.sessions.rival(id, &instance, gateway.settings.lease_wait) {
        return Err(rivalled(id, &rival, gateway.settings.lease_wait));
    }
    // Each session reports them anew; a node that has gone back to an older release reports none.
    gateway.backend.driver_schemas(id, DriverSchemas::default());
    let entry = gateway.sessions.open(session, instance, peer);
    let state = gateway.backend.published();
    let meta = state.cluster();
    let registered = state.node(id);
    let (identity, token) =
        registered.map(|node| credentials::at_registration(gateway, node, issued.as_ref())).unwrap_or_default();
    let servers = gateway.settings.servers.now();
    let welcome = Welcome {
        cluster_id: gateway.settings.cluster_id.to_string(),
        lease_ms: millis(lease),
        heartbeat_interval_ms: millis(gateway.settings.heartbeat_interval),
        server_version: env!("CARGO_PKG_VERSION").to_owned(),
        http_addr: gateway.settings.http_advertise.clone(),
        http_tls: gateway.settings.tls.as_ref().is_some_and(|tls| tls.settings().http),
        generation: meta.generation.to_string(),
        history_index: meta.history_of(mark.generation, state.latest_index()),
        recovering: meta.recovery.as_ref().map(|recovery| recovery.cause.clone()).unwrap_or_default(),
        identity: token,
        servers: servers.clone(),
        protocol,
        acl: gateway.settings.acl,
    };
    let recovers = meta.recovery.is_some() || mark_lost;
    if let Some(node) = registered {
        gateway.backend.reachable(node);
    }
    let _ = to.send(ToNodeMessage::Welcome(welcome)).await;
    let sent = Sent::to(id, takes_pieces);
    Ok(Some(Greeted { node: id, entry, sent, mark, mark_lost, recovers, identity, servers }))
}

/// Whether it is a node of this cluster, and its mark.
fn belongs(gateway: &Gateway, hello: &Hello) -> Result<Mark, Farewell> {
    let own = gateway.settings.cluster_id;
    if !hello.cluster_id.is_empty() && hello.cluster_id.parse() != Ok(own) {
        return Err(Farewell::refuse(format!(
            "the node belongs to cluster {theirs}, this server to cluster {own}; the node keeps its tasks as they \
                are. The server's data \
             directory may be empty or another one: mount it, restore a backup, or set cluster_id = \"{theirs}\" in \
             the server block of a server \
             that begins with an empty directory, so that it takes the node's tasks over. To give the node to cluster \
             {own}, stop its agent and \
             delete its data directory",
            theirs = hello.cluster_id
        )));
    }
    if hello.mark_lost {
        // In doubt the node counts as having acted on a state that these servers do not know.
        return Ok(Mark { generation: gateway.backend.new_id().into(), index: StoreIndex::MAX });
    }
    let generation = if hello.generation.is_empty() {
        GenerationId::NIL
    } else {
        hello
            .generation
            .parse()
            .map_err(|_| Farewell::refuse(format!("the generation {:?} is not a UUID", hello.generation)))?
    };
    Ok(Mark { generation, index: hello.mark_index })
}

/// Whether the node has acted on a state that this history lacks. Refuses a claim without the node's secret, and a mark
/// that no node can have.
fn claims_more(gateway: &Gateway, node: &Node, mark: Mark) -> Result<bool, Farewell> {
    let state = gateway.backend.published();
    let latest = state.latest_index();
    if state.cluster().knows(mark, latest) {
        return Ok(false);
    }
    control::nodes::has_its_secret(&state, node).map_err(|refused| Farewell::refuse(refused.to_string()))?;
    if ClusterMeta::can_be(mark, latest) {
        return Ok(true);
    }
    Err(Farewell::refuse(format!(
        "the node says that it has acted on index {}, and the newest of these servers is {latest}: no node can have \
            seen so many. It keeps its tasks as \
         they are. Its data directory is damaged, or it is not what it seems to be",
        mark.index
    )))
}

/// Two agents have one identity: the first stays.
fn rivalled(node: NodeId, rival: &str, within: std::time::Duration) -> Farewell {
    Farewell::retry(format!(
        "another agent with the id of node {} is connected from {rival} and is heard: is the data directory of this \
            agent a copy of its? Give the \
         copy a directory of its own. When the other agent was killed and its connection hangs, this one is taken \
         within {} s",
        node.short(),
        within.as_secs().max(1)
    ))
}

/// The version of the protocol for the session.
fn protocol(hello: &Hello) -> Result<u32, Farewell> {
    let theirs = spoken_by(hello);
    agreed(&PROTOCOLS, &theirs).ok_or_else(|| {
        let (theirs, ours, own) = (versions(&theirs), versions(&PROTOCOLS), env!("CARGO_PKG_VERSION"));
        Farewell::refuse(format!(
            "the node speaks version {theirs} of the node protocol, this server (release {own}) version {ours}: run \
                releases on nodes and servers that have a version in common"
        ))
    })
}

/// Whether the server can talk to this node. Its secret is compared at registration.
fn check(gateway: &Gateway, hello: Hello) -> Result<Node, Farewell> {
    if hello.region != gateway.settings.region {
        return Err(Farewell::refuse(format!(
            "the node is configured for region {:?}, this server serves {:?}: change one of them",
            hello.region, gateway.settings.region
        )));
    }
    let mut node: Node =
        from_json("the node", &hello.node_json).map_err(|error| Farewell::refuse(error.to_string()))?;
    let id: NodeId = hello
        .node_id
        .parse()
        .map_err(|_| Farewell::refuse(format!("the node id {:?} is not a UUID", hello.node_id)))?;
    if id.is_nil() || node.id != id {
        return Err(Farewell::refuse(format!(
            "the session is for node {:?} but describes node {}",
            hello.node_id, node.id
        )));
    }
    if hello.secret_id.is_empty() {
        return Err(Farewell::refuse(
            "the node gives no secret; it makes one at its first start and keeps it in its data directory",
        ));
    }
    node.secret_id = hello.secret_id.into();
    Ok(node)
}

fn millis(d: Duration) -> u64 {
    u64::try_from(d.as_millis()).unwrap_or(u64::MAX)
}

/// The result of a queued write.
enum Stored {
    Updates { seq: u64, result: Result<(), Farewell> },
    Ready { seq: u64, result: Result<(), Farewell> },
    Node { result: Result<(), Farewell> },
    Inventory { result: Result<Option<(GenerationId, StoreIndex)>, Farewell> },
}

struct Session {
    gateway: Arc<Gateway>,
    node: NodeId,
    entry: Arc<SessionEntry>,
    to: Sender,
    sent: Sent,
    /// What is to be sent as the node takes it, in this order.
    unsaid: VecDeque<ToNodeMessage>,
    storing: FuturesUnordered<BoxFuture<'static, Stored>>,
    /// The askers of open questions, by number.
    asking: HashMap<u64, oneshot::Sender<RemoteListed>>,
    questions: u64,
    mark: Mark,
    /// The node's mark is lost.
    mark_lost: bool,
    /// The servers recover, or the node's mark is lost. The session tells the node nothing, and reports on remote tasks
    /// wait for the node's next session.
    recovers: bool,
    /// What is kept of the node's identity; None = it has none.
    identity: Option<Term>,
    /// The servers that the node was told of last.
    servers: Vec<String>,
    inventory: InventorySoFar,
    /// Where it connects from.
    peer: Option<SocketAddr>,
    /// The root key of the proofs that it was sent.
    proved_by: Option<Uuid>,
}

impl Session {
    fn new(gateway: Arc<Gateway>, node: NodeId, entry: Arc<SessionEntry>, to: Sender, sent: Sent) -> Self {
        // For health only: a session that stands still costs its node the lease, and the node opens another.
        gateway.backend.awaits_messages();
        Self {
            gateway,
            node,
            entry,
            to,
            sent,
            unsaid: VecDeque::new(),
            storing: FuturesUnordered::new(),
            asking: HashMap::new(),
            questions: 0,
            mark: Mark::default(),
            mark_lost: false,
            recovers: false,
            identity: None,
            servers: Vec::new(),
            inventory: InventorySoFar::default(),
            peer: None,
            proved_by: None,
        }
    }

    /// Runs until the stream ends (`None`) or the server ends it.
    async fn serve(&mut self, from: &mut Messages) -> Option<Farewell> {
        self.push(true);
        let (entry, queue) = (self.entry.clone(), self.to.queue.clone());
        let mut woken = false;
        loop {
            if entry.ended() {
                return Some(Farewell::retry(ENDED));
            }
            let all_said = self.unsaid.is_empty();
            if woken && all_said {
                woken = false;
                if Box::pin(self.news()).await.is_err() {
                    return None;
                }
                continue;
            }
            // Every arm is cancel safe: streams, notifications and the queue keep what was not taken. While the node is
            // told something long, it is heard, and its heartbeats are answered; all else waits, so that the node hears
            // of it after what came before.
            tokio::select! {
                biased;
                Some(stored) = self.storing.next(), if all_said && !self.storing.is_empty() => {
                    if let Err(farewell) = Box::pin(self.stored(stored)).await {
                        return farewell;
                    }
                }
                message = from.message() => match message {
                    Ok(Some(FromNode { message: Some(message) })) => {
                        entry.hears();
                        if let Err(farewell) = Box::pin(self.receive(message)).await {
                            return farewell;
                        }
                    }
                    // A message of a newer release.
                    Ok(Some(FromNode { message: None })) => {}
                    Ok(None) => return None,
                    Err(status) => {
                        tracing::debug!(node = %self.node, status = %status, "the session's stream broke");
                        return None;
                    }
                },
                // Half of the queue is left for answers. Nobody else fills it: the room stays.
                _ = queue.reserve_many(queue.max_capacity() / 2), if !all_said => {
                    if let Some(message) = self.unsaid.pop_front()
                        && self.send(message).await.is_err()
                    {
                        return None;
                    }
                }
                () = entry.wake.notified() => woken = true,
            }
        }
    }

    /// Tells the node what is new.
    async fn news(&mut self) -> Result<(), ()> {
        let questions = std::mem::take(&mut self.entry.told().questions);
        for Ask { question, answer } in questions {
            self.questions += 1;
            // Questions whose asker has given up.
            self.asking.retain(|_, waiting| !waiting.is_closed());
            self.asking.insert(self.questions, answer);
            self.send(ToNodeMessage::ListRemote(ListRemote { seq: self.questions, ..question })).await?;
        }
        self.push(false);
        Ok(())
    }

    /// `Ok(())` as long as the connection is open.
    async fn send(&mut self, message: ToNodeMessage) -> Result<(), ()> {
        self.to.send(message).await
    }

    fn id(&self) -> SessionId {
        SessionId { node: self.node, number: self.entry.serial }
    }

    async fn receive(&mut self, message: FromNodeMessage) -> Result<(), Option<Farewell>> {
        // It was on its way while the node opened the next session. What is decided on is checked again when it is.
        if self.entry.ended() {
            return Err(Some(Farewell::retry(ENDED)));
        }
        self.gateway.backend.stumble();
        let unreadable = |error: api::node_rpc::Unreadable| Some(Farewell::refuse(error.to_string()));
        match message {
            FromNodeMessage::Hello(_) => return Err(Some(Farewell::refuse("Hello came twice in one session"))),
            FromNodeMessage::Heartbeat(Heartbeat { seq, renew_identity }) => {
                if self.gateway.backend.renew(self.node) {
                    self.acknowledge_heartbeat(seq, renew_identity).await?;
                    let proven = self.recovers || self.proved_by == self.gateway.backend.signing_key();
                    if !proven && self.unsaid.is_empty() {
                        // Another root key signs: the one that its proofs were made under will be deleted some day.
                        self.push(true);
                    }
                } else {
                    // The node counted as lost. It must become ready before it may act again.
                    let ready = self.gateway.backend.ready_again(self.id());
                    self.storing.push(ready.map(move |result| Stored::Ready { seq, result }).boxed());
                }
            }
            FromNodeMessage::Node(update) => {
                let stored = self.gateway.backend.update(self.itself(&update.node_json)?, self.id());
                self.storing.push(stored.map(|result| Stored::Node { result }).boxed());
            }
            FromNodeMessage::AllocUpdates(updates) => {
                let parsed: Result<Vec<AllocClientUpdate>, _> =
                    updates.updates_json.iter().map(|json| from_json("an allocation's update", json)).collect();
                let stored = self.gateway.backend.store_updates(self.id(), parsed.map_err(unreadable)?);
                let seq = updates.seq;
                self.storing.push(stored.map(move |result| Stored::Updates { seq, result }).boxed());
            }
            // Not acknowledged: the newest report comes again in the next session, when the records are as new as the
            // node.
            FromNodeMessage::RemoteReports(_) if self.recovers => {}
            // Nobody has asked for it.
            FromNodeMessage::Inventory(_) if !self.recovers => {}
            FromNodeMessage::Inventory(piece) => {
                if let Some(pieces) = self.inventory.add(piece).map_err(|why| Some(Farewell::refuse(why)))? {
                    let said = Said { mark: self.mark, lost: self.mark_lost, peer: self.peer, pieces };
                    let told = self.gateway.backend.take_over(self.id(), said);
                    self.storing.push(told.map(|result| Stored::Inventory { result }).boxed());
                }
            }
            FromNodeMessage::RemoteReports(reports) => {
                let parsed: Result<Vec<RemoteReport>, _> =
                    reports.reports_json.iter().map(|json| from_json("a remote task's report", json)).collect();
                let (stored, resend) = self.gateway.backend.store_reports(self.id(), parsed.map_err(unreadable)?);
                let (seq, entry) = (reports.seq, self.entry.clone());
                let stored = async move {
                    let result = stored.await;
                    if let Ok(slots) = resend.await
                        && !slots.is_empty()
                    {
                        entry.resend(slots);
                    }
                    Stored::Updates { seq, result }
                };
                self.storing.push(stored.boxed());
            }
            FromNodeMessage::RemoteListed(listed) => {
                if let Some(waiting) = self.asking.remove(&listed.seq) {
                    // The asker may have given up.
                    let _ = waiting.send(listed);
                }
            }
            FromNodeMessage::HostVolumeReports(reports) => {
                let parsed: Result<Vec<VolumeReport>, _> =
                    reports.reports_json.iter().map(|json| from_json("a host volume's report", json)).collect();
                let node = match reports.node_json.is_empty() {
                    true => None,
                    false => Some(self.itself(&reports.node_json)?),
                };
                let stored = self.gateway.backend.store_volumes(self.id(), node, parsed.map_err(unreadable)?);
                self.storing.push(stored.map(|result| Stored::Node { result }).boxed());
            }
            FromNodeMessage::DriverSchemas(told) => self.gateway.backend.driver_schemas(self.node, told),
            FromNodeMessage::SignIdentities(ask) => {
                let answer = identities::sign(&self.gateway, self.node, ask);
                self.send(ToNodeMessage::IdentitiesSigned(answer)).await.map_err(|()| None)?;
            }
            FromNodeMessage::Event(event) => {
                let event = from_json("a node's event", &event.event_json).map_err(unreadable)?;
                let stored = self.gateway.backend.record_event(self.id(), event);
                self.storing.push(stored.map(|result| Stored::Node { result }).boxed());
            }
        }
        Ok(())
    }

    /// The node as it describes itself.
    fn itself(&self, node_json: &[u8]) -> Result<Node, Option<Farewell>> {
        let node: Node = from_json("the node", node_json).map_err(|error| Some(Farewell::refuse(error.to_string())))?;
        if node.id != self.node {
            let why = format!("the session of node {} describes node {}", self.node, node.id);
            return Err(Some(Farewell::refuse(why)));
        }
        Ok(node)
    }

    async fn stored(&mut self, stored: Stored) -> Result<(), Option<Farewell>> {
        match stored {
            Stored::Updates { seq, result: Ok(()) } => {
                let index = self.gateway.backend.published().latest_index();
                self.send(ToNodeMessage::UpdatesStored(UpdatesStored { seq, index })).await.map_err(|()| None)?;
            }
            Stored::Ready { seq, result: Ok(()) } => {
                self.acknowledge_heartbeat(seq, false).await?;
                // Everything anew: after the full set, the node reports again what its loss has removed (services).
                self.push(true);
            }
            Stored::Node { result: Ok(()) } | Stored::Inventory { result: Ok(None) } => {}
            Stored::Inventory { result: Ok(Some((generation, index))) } => {
                let stored = InventoryStored { generation: generation.to_string(), index };
                self.send(ToNodeMessage::InventoryStored(stored)).await.map_err(|()| None)?;
                self.gateway.backend.has_answered(generation, self.node);
            }
            Stored::Inventory { result: Err(error) } => return Err(Some(error)),
            // The node keeps unstored reports and sends them again in its next session.
            Stored::Updates { result: Err(error), .. }
            | Stored::Ready { result: Err(error), .. }
            | Stored::Node { result: Err(error) } => {
                return Err(Some(error));
            }
        }
        Ok(())
    }

    /// `renew` = the node asks for a new identity.
    async fn acknowledge_heartbeat(&mut self, seq: u64, renew: bool) -> Result<(), Option<Farewell>> {
        let lease = lease(&self.gateway).map_err(Some)?;
        let identity = self.renewed_identity(renew);
        let ack = HeartbeatAck { seq, lease_ms: millis(lease), identity, servers: self.new_servers() };
        self.send(ToNodeMessage::HeartbeatAck(ack)).await.map_err(|()| None)
    }

    /// The servers, when they are not those that the node was told of last, else none.
    fn new_servers(&mut self) -> Vec<String> {
        let servers = self.gateway.settings.servers.now();
        if servers == self.servers {
            return Vec::new();
        }
        self.servers.clone_from(&servers);
        servers
    }

    /// A new identity where the node needs one, else an empty text.
    fn renewed_identity(&mut self, asked: bool) -> String {
        let state = self.gateway.backend.published();
        let renewed =
            state.node(self.node).and_then(|node| credentials::renewed(&self.gateway, node, self.identity, asked));
        let Some((term, token)) = renewed else { return String::new() };
        self.identity = Some(term);
        token
    }

    /// Finds what the node lacks: of everything that belongs to it, or of one piece of possible changes. The loop sends
    /// it.
    fn push(&mut self, full: bool) {
        if self.recovers {
            return;
        }
        let (changed, again) = if full { self.entry.take_changes() } else { self.entry.take_piece() };
        // Read after the changes were taken: a change in between gets a second look.
        let state = self.gateway.backend.published();
        if full {
            self.proved_by = self.gateway.backend.signing_key();
        }
        let News { volumes, allocs, orders } = {
            let backend = &*self.gateway.backend;
            let source = Source { state: &state, prove: &|statement| backend.prove(statement) };
            if full { self.sent.all(source, &again) } else { self.sent.changes(source, &changed, &again) }
        };
        self.gateway.sessions.looked(self.sent.take_looks());
        self.unsaid.extend(volumes.map(ToNodeMessage::HostVolumes));
        self.unsaid.extend(allocs.into_iter().map(ToNodeMessage::Allocs));
        self.unsaid.extend(orders.into_iter().map(ToNodeMessage::RemoteOrders));
    }
}

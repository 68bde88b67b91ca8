//! One node's session: registration, lease, allocations, orders, reports.
//!
//! ```text
//! Hello ─► identity checked, node registered and ready ─► Welcome (lease) ─► Allocs full ─► RemoteOrders full ─► changes …
//!                                                              ▲ Heartbeat renews the lease; without one the node goes down, session or not
//! ```
//!
//! The session owns what it has sent; everything else it reads from the published snapshot when it is woken, of that only what may have changed. Reports are queued in the order in
//! which they came and acknowledged once they are durable, without holding up heartbeats meanwhile.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use api::node_rpc::{
    FromNode, FromNodeMessage, Goodbye, Heartbeat, HeartbeatAck, Hello, ListRemote, MAX_MESSAGE_BYTES, PROTOCOL, RemoteListed,
    ToNodeMessage, UpdatesStored, Welcome, from_json,
};
use futures::{FutureExt as _, StreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use model::{AllocClientUpdate, Node, NodeId, RemoteReport};
use tokio::sync::{mpsc, oneshot};

use super::{
    Ask, SessionEntry,
    messages::{Messages, framed},
    sent::Sent,
};
use crate::{error::ServerError, nodes, shared::Shared};

/// A connection that does not say who it is within this time is closed.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);

/// A node that does not read is not told goodbye: it will see the connection end.
const GOODBYE_TIMEOUT: Duration = Duration::from_secs(1);

/// Why a session ends from our side.
struct Farewell {
    reason: String,
    retry: bool,
}

impl Farewell {
    fn retry(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), retry: true }
    }
    fn refuse(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), retry: false }
    }
}

impl From<ServerError> for Farewell {
    fn from(error: ServerError) -> Self {
        Self::retry(error.to_string())
    }
}

/// Takes messages as the bytes that they are sent as.
pub(super) type Sender = mpsc::Sender<Box<[u8]>>;

async fn send(to: &Sender, message: ToNodeMessage) -> Result<(), ()> {
    let Some(bytes) = framed(message) else {
        tracing::error!(limit = MAX_MESSAGE_BYTES, "a message to a node is too large to be sent; its session ends");
        return Err(());
    };
    to.send(bytes).await.map_err(|_| ())
}

/// Serves a session until either side ends it.
pub(super) async fn run(shared: Arc<Shared>, mut from: Messages, to: Sender, peer: Option<SocketAddr>) {
    let stopping = shared.stopping.clone();
    let farewell = tokio::select! {
        farewell = meet(&shared, &mut from, &to, peer) => farewell,
        () = stopping.cancelled() => Some(Farewell::retry("the server is stopping")),
    };
    if let Some(Farewell { reason, retry }) = farewell {
        // The node may be gone already.
        let goodbye = Box::pin(send(&to, ToNodeMessage::Goodbye(Goodbye { reason, retry })));
        let _ = tokio::time::timeout(GOODBYE_TIMEOUT, goodbye).await;
    }
}

/// The session from Hello to its end.
async fn meet(shared: &Arc<Shared>, from: &mut Messages, to: &Sender, peer: Option<SocketAddr>) -> Option<Farewell> {
    // What is rare is boxed, here and below: the state of a quiet session is what thousands of nodes cost.
    let greeted = Box::pin(greet(shared, from, to)).await;
    let (node, entry) = match greeted {
        Err(farewell) => return Some(farewell),
        Ok(None) => return None,
        Ok(Some(greeted)) => greeted,
    };
    tracing::info!(node = %node, peer = ?peer, "session opened");
    // Also when this is dropped in the middle, the session must not stay in the registry.
    let _open = OpenSession { shared, node, serial: entry.serial };
    let mut session = Session::new(shared.clone(), node, entry, to.clone());
    let farewell = session.serve(from).await;
    tracing::info!(node = %node, reason = farewell.as_ref().map(|f| &*f.reason), "session closed");
    farewell
}

/// Takes the session out of the registry at its end.
struct OpenSession<'a> {
    shared: &'a Shared,
    node: NodeId,
    serial: u64,
}

impl Drop for OpenSession<'_> {
    fn drop(&mut self) {
        self.shared.sessions.close(self.node, self.serial);
    }
}

/// A node and its session.
type Greeted = (NodeId, Arc<SessionEntry>);

/// Checks who it is, registers it and opens its session. None = the connection ended before.
async fn greet(shared: &Arc<Shared>, from: &mut Messages, to: &Sender) -> Result<Option<Greeted>, Farewell> {
    let first = tokio::time::timeout(HELLO_TIMEOUT, from.message()).await.map_err(|_| {
        Farewell::retry(format!("the session said nothing for {} s; its first message must be Hello", HELLO_TIMEOUT.as_secs()))
    })?;
    let hello = match first {
        Ok(Some(FromNode { message: Some(FromNodeMessage::Hello(hello)) })) => hello,
        Ok(Some(_)) => return Err(Farewell::refuse("the first message of a session must be Hello")),
        Ok(None) | Err(_) => return Ok(None),
    };
    let node = check(shared, hello)?;
    let id = node.id;
    nodes::register(shared, node).await.map_err(|error| match error {
        ServerError::InvalidArgument(reason) => Farewell::refuse(reason),
        other => other.into(),
    })?;
    // Only a node that the state calls ready may hold a lease, and it is granted before it is told.
    shared.leases.grant(id, shared.lease_wait());
    let entry = shared.sessions.open(id);
    let welcome = Welcome {
        cluster_id: shared.cluster_id.to_string(),
        lease_ms: millis(shared.config.lease),
        heartbeat_interval_ms: millis(shared.config.heartbeat_interval),
        server_version: env!("CARGO_PKG_VERSION").to_owned(),
        http_addr: shared.config.http_advertise.clone(),
    };
    let _ = send(to, ToNodeMessage::Welcome(welcome)).await;
    Ok(Some((id, entry)))
}

/// Is this a node that we can talk to? Its secret is compared where it is registered.
fn check(shared: &Shared, hello: Hello) -> Result<Node, Farewell> {
    if hello.protocol != PROTOCOL {
        return Err(Farewell::refuse(format!(
            "the node speaks protocol {}, this server {PROTOCOL}: run releases that are not further apart",
            hello.protocol
        )));
    }
    if hello.region != shared.config.region {
        return Err(Farewell::refuse(format!(
            "the node is configured for region {:?}, this server serves {:?}: change one of them",
            hello.region, shared.config.region
        )));
    }
    let mut node: Node = from_json("the node", &hello.node_json).map_err(|error| Farewell::refuse(error.to_string()))?;
    let id: NodeId = hello.node_id.parse().map_err(|_| Farewell::refuse(format!("the node id {:?} is not a UUID", hello.node_id)))?;
    if id.is_nil() || node.id != id {
        return Err(Farewell::refuse(format!("the session is for node {:?} but describes node {}", hello.node_id, node.id)));
    }
    if hello.secret_id.is_empty() {
        return Err(Farewell::refuse("the node gives no secret; it makes one at its first start and keeps it in its data directory"));
    }
    node.secret_id = hello.secret_id;
    Ok(node)
}

fn millis(d: Duration) -> u64 {
    u64::try_from(d.as_millis()).unwrap_or(u64::MAX)
}

/// What has become of something that was queued for the disk.
enum Stored {
    Updates { seq: u64, result: Result<(), ServerError> },
    Ready { seq: u64, result: Result<(), ServerError> },
    Node { result: Result<(), ServerError> },
}

struct Session {
    shared: Arc<Shared>,
    node: NodeId,
    entry: Arc<SessionEntry>,
    to: Sender,
    sent: Sent,
    storing: FuturesUnordered<BoxFuture<'static, Stored>>,
    /// Who waits for the answer to which question.
    asking: HashMap<u64, oneshot::Sender<RemoteListed>>,
    questions: u64,
}

impl Session {
    fn new(shared: Arc<Shared>, node: NodeId, entry: Arc<SessionEntry>, to: Sender) -> Self {
        Self { shared, node, entry, to, sent: Sent::to(node), storing: FuturesUnordered::new(), asking: HashMap::new(), questions: 0 }
    }

    /// Runs until the stream ends (None) or we end it.
    async fn serve(&mut self, from: &mut Messages) -> Option<Farewell> {
        if Box::pin(self.push(true)).await.is_err() {
            return None;
        }
        let entry = self.entry.clone();
        loop {
            if entry.ended() {
                return Some(Farewell::retry("the node has opened another session, or was removed from the servers"));
            }
            // Every arm is cancel safe: streams and notifications keep what was not taken.
            tokio::select! {
                biased;
                Some(stored) = self.storing.next(), if !self.storing.is_empty() => {
                    if let Err(farewell) = Box::pin(self.stored(stored)).await {
                        return farewell;
                    }
                }
                message = from.message() => match message {
                    Ok(Some(FromNode { message: Some(message) })) => {
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
                () = entry.wake.notified() => {
                    if Box::pin(self.news()).await.is_err() {
                        return None;
                    }
                }
            }
        }
    }

    /// Tells the node what is new.
    async fn news(&mut self) -> Result<(), ()> {
        let questions = std::mem::take(&mut self.entry.told().questions);
        for Ask { question, answer } in questions {
            self.questions += 1;
            // Those whose asker has lost patience.
            self.asking.retain(|_, waiting| !waiting.is_closed());
            self.asking.insert(self.questions, answer);
            self.send(ToNodeMessage::ListRemote(ListRemote { seq: self.questions, ..question })).await?;
        }
        self.push(false).await
    }

    /// Ok(()) as long as the node can be reached.
    async fn send(&mut self, message: ToNodeMessage) -> Result<(), ()> {
        send(&self.to, message).await
    }

    async fn receive(&mut self, message: FromNodeMessage) -> Result<(), Option<Farewell>> {
        let unreadable = |error: api::node_rpc::Unreadable| Some(Farewell::refuse(error.to_string()));
        match message {
            FromNodeMessage::Hello(_) => return Err(Some(Farewell::refuse("Hello came twice in one session"))),
            FromNodeMessage::Heartbeat(Heartbeat { seq }) => {
                if self.shared.leases.renew(self.node, self.shared.lease_wait()) {
                    self.acknowledge_heartbeat(seq).await?;
                } else {
                    // It was taken for lost. It must be ready again before it may act again.
                    let ready = nodes::ready_again(&self.shared, self.node);
                    self.storing.push(ready.map(move |result| Stored::Ready { seq, result }).boxed());
                }
            }
            FromNodeMessage::Node(update) => {
                let node: Node = from_json("the node", &update.node_json).map_err(unreadable)?;
                if node.id != self.node {
                    return Err(Some(Farewell::refuse(format!("the session of node {} describes node {}", self.node, node.id))));
                }
                let stored = nodes::update(&self.shared, node);
                self.storing.push(stored.map(|result| Stored::Node { result }).boxed());
            }
            FromNodeMessage::AllocUpdates(updates) => {
                let parsed: Result<Vec<AllocClientUpdate>, _> =
                    updates.updates_json.iter().map(|json| from_json("an allocation's update", json)).collect();
                let stored = self.shared.store_client_updates(self.node, parsed.map_err(unreadable)?);
                let seq = updates.seq;
                self.storing.push(stored.map(move |result| Stored::Updates { seq, result }).boxed());
            }
            FromNodeMessage::RemoteReports(reports) => {
                let parsed: Result<Vec<RemoteReport>, _> =
                    reports.reports_json.iter().map(|json| from_json("a remote task's report", json)).collect();
                let (stored, resend) = crate::remote::store_reports(&self.shared, self.node, parsed.map_err(unreadable)?);
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
                    // The asker may have lost patience.
                    let _ = waiting.send(listed);
                }
            }
            FromNodeMessage::SignIdentities(ask) => {
                let answer = super::identities::sign(&self.shared, self.node, ask);
                self.send(ToNodeMessage::IdentitiesSigned(answer)).await.map_err(|()| None)?;
            }
            FromNodeMessage::Event(event) => {
                let event = from_json("a node's event", &event.event_json).map_err(unreadable)?;
                let stored = nodes::record_event(&self.shared, self.node, event);
                self.storing.push(stored.map(|result| Stored::Node { result }).boxed());
            }
        }
        Ok(())
    }

    async fn stored(&mut self, stored: Stored) -> Result<(), Option<Farewell>> {
        match stored {
            Stored::Updates { seq, result: Ok(()) } => {
                self.send(ToNodeMessage::UpdatesStored(UpdatesStored { seq })).await.map_err(|()| None)?;
            }
            Stored::Ready { seq, result: Ok(()) } => {
                self.shared.leases.grant(self.node, self.shared.lease_wait());
                self.acknowledge_heartbeat(seq).await?;
                // Everything anew: what the loss has taken (services) the node says again when it is told all that belongs to it.
                Box::pin(self.push(true)).await.map_err(|()| None)?;
            }
            Stored::Node { result: Ok(()) } => {}
            // The node keeps what was not stored and sends it again in its next session.
            Stored::Updates { result: Err(error), .. } | Stored::Ready { result: Err(error), .. } | Stored::Node { result: Err(error) } => {
                return Err(Some(error.into()));
            }
        }
        Ok(())
    }

    async fn acknowledge_heartbeat(&mut self, seq: u64) -> Result<(), Option<Farewell>> {
        let ack = HeartbeatAck { seq, lease_ms: millis(self.shared.config.lease) };
        self.send(ToNodeMessage::HeartbeatAck(ack)).await.map_err(|()| None)
    }

    /// Sends what the node does not have yet: of all that belongs to it, or of a piece of what may have changed since it was last told.
    async fn push(&mut self, full: bool) -> Result<(), ()> {
        let (changed, again) = if full { self.entry.take_changes() } else { self.entry.take_piece() };
        // Read after the changes were taken: what comes in between is looked at once more.
        let state = self.shared.published.load_full();
        let (allocs, orders) = if full { self.sent.all(&state, &again) } else { self.sent.changes(&state, &changed, &again) };
        self.shared.counters.session_looks.fetch_add(self.sent.take_looks(), Ordering::Relaxed);
        drop(state);
        if let Some(allocs) = allocs {
            self.send(ToNodeMessage::Allocs(allocs)).await?;
        }
        if let Some(orders) = orders {
            self.send(ToNodeMessage::RemoteOrders(orders)).await?;
        }
        Ok(())
    }
}

//! The session with a server: connect, say hello, keep the lease, carry messages both ways.
//!
//! ```text
//! connecting ──► hello sent ──► welcomed ──► lost ──► (next server, back-off) ──► connecting
//! ```
//! The session knows nothing of allocations; what arrives is decoded and handed on, what waits in the outbox is sent at
//! once.

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use api::node_rpc::{
    self, DriverSchema, DriverSchemas, FromNode, FromNodeMessage, Goodbye, Heartbeat, Hello, ListRemote, NodeUpdate,
    SignIdentities, ToNode, ToNodeMessage, node_service_client::NodeServiceClient,
};
use futures::future::BoxFuture;
use hooks::tokens::{self, AskTokens};
use hyper_util::rt::TokioIo;
use model::{AllocId, Allocation, ClusterId, DynamicVolume, Job, JobKey, Node, RemoteOrder};
use node_record::{
    lease::{BootInstant, Lease},
    membership::{Meaning, Membership, Ticket, WRITTEN_WITHIN},
    outbox::Outbox,
    servers::ToldServers,
    store::StoredJob,
};
use tokio::{
    io::DuplexStream,
    net::TcpStream,
    sync::{Notify, mpsc, watch},
};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{
    codec::CompressionEncoding,
    transport::{Channel, Endpoint, Uri},
};

use crate::{credentials::Credentials, heard::Heard, host_volumes::Told};

/// What a server says.
#[derive(Debug)]
pub(crate) enum FromServer {
    /// A session stands. With `inventory` the node holds: it says there what it has, and hears nothing else.
    Welcome { cluster: ClusterId, inventory: Option<mpsc::Sender<FromNode>> },
    /// Allocations; `full` = exactly these.
    Allocs { full: bool, allocs: Vec<Placed>, removed: Vec<AllocId> },
    /// Orders; `full` = exactly these.
    Orders { full: bool, orders: Vec<RemoteOrder>, released: Vec<String> },
    /// The dynamic host volumes of the node: exactly these. What becomes of them goes into this session.
    HostVolumes(Told),
    /// A question about a provider; its answer goes into this session.
    ListRemote { ask: ListRemote, answer: mpsc::Sender<FromNode> },
    /// The session is over.
    Lost,
}

/// An allocation with its job.
#[derive(Clone, Debug)]
pub(crate) struct Placed {
    pub(crate) alloc: Arc<Allocation>,
    pub(crate) job: Arc<Job>,
    pub(crate) stored: Arc<StoredJob>,
    /// That the servers have sent both.
    pub(crate) proof: Option<Arc<str>>,
}

/// State of the session, for people.
#[derive(Clone, Debug, Default)]
pub(crate) struct SessionStatus {
    pub(crate) server: String,
    /// Where that server answers HTTP, with `https://` where it does over TLS; empty = it did not say.
    pub(crate) http: String,
    pub(crate) connected: bool,
    pub(crate) lease: Duration,
    pub(crate) last_ack: Option<BootInstant>,
    pub(crate) last_error: String,
    /// Why nothing is started or stopped on the word of the servers; empty = their word counts.
    pub(crate) holds: String,
    /// Why no server is followed at all; empty = it is not so.
    pub(crate) elsewhere: String,
    /// Since when the oldest of the servers' lists and orders waits for the mark to be written.
    pub(crate) waits_since: Option<BootInstant>,
    /// The servers decide who may ask this node for something; as the last session told.
    pub(crate) acl: bool,
}

impl SessionStatus {
    /// Where the server answers HTTP, with `https://` where it does over TLS; empty when it does not say, None while
    /// none is heard.
    pub(crate) fn http_server(&self) -> Option<String> {
        self.connected.then(|| self.http.clone())
    }

    /// Why the servers' word does not count now; None = it does.
    pub(crate) fn disagrees(&self) -> Option<String> {
        let waits =
            self.waits_since.map(|since| since.until(BootInstant::now())).filter(|waited| *waited > WRITTEN_WITHIN);
        let waits = waits.map(|waited| {
            format!(
                "what the servers say waits for {} s: the disk of the node's data directory does not take the mark \
                    that must be written before",
                waited.as_secs()
            )
        });
        [&self.elsewhere, &self.holds].into_iter().find(|why| !why.is_empty()).cloned().or(waits)
    }
}

/// How a node reaches a server of that address, instead of over the network.
pub type Connect = Arc<dyn Fn(&str) -> BoxFuture<'static, std::io::Result<DuplexStream>> + Send + Sync>;

/// Everything that a session needs.
pub(crate) struct Session {
    pub(crate) region: String,
    pub(crate) credentials: Credentials,
    /// How servers are reached; None = over the network.
    pub(crate) connect: Option<Connect>,
    /// Certificates for the connection; None = it is plain.
    pub(crate) tls: Option<tls::Agent>,
    pub(crate) servers: watch::Receiver<Vec<String>>,
    /// Those that servers have told of.
    pub(crate) told: ToldServers,
    pub(crate) node: watch::Receiver<Arc<Node>>,
    /// Of the node's drivers.
    pub(crate) schemas: watch::Receiver<Arc<Vec<DriverSchema>>>,
    pub(crate) outbox: Arc<Outbox>,
    /// Tokens that tasks ask for; they wait here while there is no session.
    pub(crate) questions: mpsc::UnboundedReceiver<AskTokens>,
    pub(crate) lease: Lease,
    pub(crate) membership: Membership,
    pub(crate) to_node: mpsc::UnboundedSender<FromServer>,
    pub(crate) status: Arc<Mutex<SessionStatus>>,
    /// Somebody wants the session to start over, to get everything anew.
    pub(crate) reset: Arc<Notify>,
    pub(crate) stop: CancellationToken,
}

/// Why a session ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Ended {
    #[error("connect to {server}: {why}")]
    Connect { server: String, why: String },
    #[error("no answer from {0} within {1:?}")]
    Silent(String, Duration),
    #[error("{server} ended the session: {why}")]
    Closed { server: String, why: String },
    #[error("{server} refused the session: {why}")]
    Refused { server: String, why: String, retry: bool },
    #[error("{0}")]
    Elsewhere(String),
    #[error("{0}")]
    Unreadable(#[from] node_rpc::Unreadable),
    #[error("an allocation refers to version {version} of job {job}, which was not sent")]
    MissingJob { job: JobKey, version: u64 },
    #[error("{0} messages of {1} wait for the disk of this node's data directory: they are asked for anew")]
    DiskHangs(usize, String),
    #[error("the list of servers has changed")]
    ServersChanged,
    #[error("the lease was lost in between: all orders are asked for anew")]
    Reset,
    #[error("the node is stopping")]
    Stopping,
}

/// How long a server may take to answer before the next one is asked. Where there are several, one that hangs must not
/// cost the time that the leader waits for a node: the first tries are short. As many silences as there are servers
/// double it, for servers that are slow because there is much to do.
fn opening_patience(servers: usize, silences: u32) -> Duration {
    if servers < 2 {
        return CONNECT_TIMEOUT;
    }
    let doubled = silences / u32::try_from(servers).unwrap_or(u32::MAX);
    FIRST_OPENING.saturating_mul(1 << doubled.min(8)).min(CONNECT_TIMEOUT)
}

/// The pause after so many failures in a row. A round through all servers costs what one try at a single server does:
/// one leads, and the others may not reach it.
fn pause_after(servers: usize, failures: u32) -> Duration {
    let servers = u32::try_from(servers).unwrap_or(u32::MAX).max(1);
    BACKOFF_FIRST.saturating_mul(1 << (failures / servers).min(7)).min(BACKOFF_MAX) / servers
}

/// The pause after a server has refused this node, or the node the server. Neither changes its mind soon, but a person
/// who has restored the wrong directory may mend that at once. Servers wait longer than a lease before they give up a
/// node: after a third of the last one there is time left for the connection.
fn pause_after_refusal(last_lease: Duration) -> Duration {
    if last_lease.is_zero() { REFUSED_WITHOUT_LEASE } else { (last_lease / 3).clamp(REFUSED_LEAST, REFUSED_MOST) }
}

/// How long a server may leave a heartbeat unanswered before the session counts as dead.
///
/// A node that has no other server can only try the same one again. Where there are others, one of them leads soon,
/// and gives up nodes that it does not hear within a lease and its margin. The beat went out up to a third of the lease
/// after the last answer: after half a lease more there is time left for a round through the others.
fn silence_borne(servers: usize, interval: Duration, lease: Duration) -> Duration {
    if servers < 2 { (interval * 3).max(lease / 3) } else { (lease / 2).max(interval).max(FIRST_OPENING) }
}

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const FIRST_OPENING: Duration = Duration::from_secs(1);

/// A server that stops listening says why at once, or is gone.
const LAST_WORDS: Duration = Duration::from_secs(1);
const BACKOFF_FIRST: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(5);
/// Bounds of the pause after a refusal, and the pause of a node that no server has granted a lease yet.
const REFUSED_LEAST: Duration = Duration::from_secs(1);
const REFUSED_MOST: Duration = Duration::from_secs(30);
const REFUSED_WITHOUT_LEASE: Duration = BACKOFF_MAX;

/// Lists and orders that wait for the disk: beyond these the session begins anew, with whole lists.
const WAITING: usize = 1024;

/// A list or orders, until the mark that covers them is written.
struct Waiting {
    ticket: Ticket,
    since: BootInstant,
    message: ToNodeMessage,
}

impl Session {
    /// Runs until the node stops.
    pub(crate) async fn run(mut self) {
        let (mut failures, mut silences) = (0_u32, 0_u32);
        let mut turn = 0_usize;
        loop {
            let id = self.node.borrow().id;
            let servers = self.told.in_turn(id, &self.servers.borrow_and_update());
            if servers.is_empty() {
                tokio::select! {
                    () = self.stop.cancelled() => return,
                    changed = self.servers.changed() => {
                        if changed.is_err() {
                            return;
                        }
                        continue;
                    }
                }
            }
            let server = servers[turn % servers.len()].clone();
            let mut welcomed = false;
            let patience = opening_patience(servers.len(), silences);
            let ended = self.once(&server, servers.len(), patience, &mut welcomed).await;
            silences += u32::from(matches!(ended, Ended::Silent(..)));
            if welcomed {
                (failures, silences) = (0, 0);
                self.outbox.session_ended();
                if self.to_node.send(FromServer::Lost).is_err() {
                    return;
                }
            }
            let mut last_lease = Duration::ZERO;
            self.set_status(|s| {
                last_lease = s.lease;
                s.connected = false;
                s.waits_since = None;
                s.last_error = ended.to_string();
                s.elsewhere = match &ended {
                    Ended::Elsewhere(why) => why.clone(),
                    Ended::Refused { why, retry: false, .. } => format!("the server refuses this node: {why}"),
                    _ => String::new(),
                };
            });
            let pause = match &ended {
                Ended::Stopping => return,
                Ended::ServersChanged | Ended::Reset => Duration::ZERO,
                Ended::Refused { retry: false, .. } | Ended::Elsewhere(_) => pause_after_refusal(last_lease),
                _ => pause_after(servers.len(), failures),
            };
            // Nodes that lost the same server, or that it has refused, must not come back in step.
            let spread = uuid::Uuid::new_v4().as_u128() % 1000;
            let pause = pause.mul_f64(0.75 + 0.25 * spread as f64 / 1000.0);
            // Servers that answer "not me" are left behind at once; so is one that went away. A new list begins with
            // its first.
            turn = if matches!(ended, Ended::ServersChanged) { 0 } else { turn + 1 };
            failures = failures.saturating_add(1);
            match &ended {
                Ended::Elsewhere(_) | Ended::Refused { retry: false, .. } => {
                    tracing::error!(server, reason = %ended, retry_in = ?pause, "this node follows no server; its \
                        tasks are left as they are");
                }
                _ => tracing::warn!(server, reason = %ended, retry_in = ?pause, "no session with a server"),
            }
            tokio::select! {
                () = self.stop.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
                _ = self.servers.changed() => {}
            }
        }
    }

    /// Connects, over TLS where this agent has it.
    async fn dial(&self, endpoint: Endpoint, server: &str) -> Result<Channel, tonic::transport::Error> {
        if let Some(connect) = self.connect.clone() {
            let server = server.to_owned();
            let connector = tower::service_fn(move |_: Uri| {
                let connecting = connect(&server);
                async move { connecting.await.map(TokioIo::new) }
            });
            return endpoint.connect_with_connector(connector).await;
        }
        let Some(tls) = self.tls.clone() else { return endpoint.connect().await };
        let connector = tower::service_fn(move |uri: Uri| {
            let dialer = tls.dialer(tls::Peer::ServerRpc);
            async move {
                let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
                let stream = TcpStream::connect((host, uri.port_u16().unwrap_or_default())).await?;
                stream.set_nodelay(true)?;
                let stream = dialer.connect(stream, host).await;
                stream.map(TokioIo::new).map_err(|e| io::Error::other(tls::why(&e)))
            }
        });
        endpoint.connect_with_connector(connector).await
    }

    /// A server has told of all servers.
    fn takes(&self, servers: &[String]) {
        let Some(written) = self.told.take(servers) else { return };
        tracing::info!(servers = servers.join(","), "the node was told of these servers");
        tokio::spawn(async move {
            if let Err(error) = written.await {
                tracing::warn!(%error, "the servers that this node was told of were not written; after its next start \
                    it knows the former ones until it is told again");
            }
        });
    }

    fn set_status(&self, change: impl FnOnce(&mut SessionStatus)) {
        change(&mut self.status.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
    }

    async fn once(&mut self, server: &str, servers: usize, patience: Duration, welcomed: &mut bool) -> Ended {
        match self.talk(server, servers, patience, welcomed).await {
            Ok(never) => match never {},
            Err(ended) => ended,
        }
    }

    async fn talk(
        &mut self,
        server: &str,
        servers: usize,
        patience: Duration,
        welcomed: &mut bool,
    ) -> Result<std::convert::Infallible, Ended> {
        let connect = |why: String| Ended::Connect { server: server.to_owned(), why };
        let closed = |why: String| Ended::Closed { server: server.to_owned(), why };
        let endpoint = Endpoint::from_shared(format!("http://{server}"))
            .map_err(|e| connect(format!("not an address: {e}")))?
            .tcp_nodelay(true);
        let stop = self.stop.clone();
        let channel = tokio::select! {
            () = stop.cancelled() => return Err(Ended::Stopping),
            channel = tokio::time::timeout(patience, self.dial(endpoint, server)) => channel,
        };
        let silent = |_| Ended::Silent(server.to_owned(), patience);
        let channel = channel.map_err(silent)?.map_err(|e| connect(chain(&e)))?;
        let mut service = NodeServiceClient::new(channel)
            .max_decoding_message_size(node_rpc::MAX_MESSAGE_BYTES)
            .max_encoding_message_size(node_rpc::MAX_MESSAGE_BYTES)
            // A server that does not know how sends them as they are.
            .accept_compressed(CompressionEncoding::Gzip);

        let (out, outgoing) = mpsc::channel::<FromNode>(64);
        let node = self.node.borrow_and_update().clone();
        let mut hello = Hello {
            node_id: node.id.to_string(),
            secret_id: node.secret_id.reveal().to_owned(),
            node_json: node_rpc::to_json(&*node),
            region: self.region.clone(),
            protocol: *node_rpc::PROTOCOLS.start(),
            newest_protocol: *node_rpc::PROTOCOLS.end(),
            takes_pieces: true,
            ..Hello::default()
        };
        self.membership.introduce(&mut hello);
        // The lease counts from here: before the message can have left.
        let hello_sent = BootInstant::now();
        out.try_send(FromNodeMessage::Hello(hello).into()).map_err(|e| closed(e.to_string()))?;
        let mut request = tonic::Request::new(ReceiverStream::new(outgoing));
        self.credentials.show(request.metadata_mut()).map_err(connect)?;
        let opening = service.session(request);
        let opened = tokio::select! {
            () = stop.cancelled() => return Err(Ended::Stopping),
            opened = tokio::time::timeout(patience, opening) => opened,
        };
        let mut incoming = opened
            .map_err(silent)?
            .map_err(|s| match s.code() {
                tonic::Code::Unauthenticated => {
                    Ended::Refused { server: server.to_owned(), why: s.message().to_owned(), retry: false }
                }
                _ => closed(said(&s)),
            })?
            .into_inner();
        let first = tokio::select! {
            () = stop.cancelled() => return Err(Ended::Stopping),
            first = tokio::time::timeout(patience, incoming.message()) => first,
        };
        let first = first.map_err(silent)?.map_err(|s| closed(said(&s)))?;
        let welcome = match first.and_then(|m| m.message) {
            Some(ToNodeMessage::Welcome(w)) => w,
            Some(ToNodeMessage::Goodbye(g)) => return Err(refused(server, g)),
            Some(_) => return Err(closed("its first message was no welcome".into())),
            None => return Err(closed("it said nothing".into())),
        };
        let protocol = welcome.protocol.max(1);
        if !node_rpc::PROTOCOLS.contains(&protocol) {
            let ours = node_rpc::versions(&node_rpc::PROTOCOLS);
            let (theirs, own) = (&welcome.server_version, env!("CARGO_PKG_VERSION"));
            return Err(closed(format!(
                "its release {theirs} speaks version {protocol} of the node protocol, this node's release {own} \
                    version {ours}: run releases on nodes and servers that have a version in common"
            )));
        }
        // Before anything of it is acted upon, the lease included.
        let holds = match self.membership.welcomed(&welcome).await {
            Meaning::Follows => String::new(),
            Meaning::Holds(why) => why,
            Meaning::Elsewhere(why) => return Err(Ended::Elsewhere(why)),
        };
        if !holds.is_empty() {
            tracing::error!(
                server,
                why = holds,
                "this node holds: it starts and stops nothing on the servers' word, and tells them what it has"
            );
        }
        self.credentials.take(welcome.identity.clone());
        // Also none: a server that is alone, or of an earlier release, tells of no others.
        self.takes(&welcome.servers);
        let lease = Duration::from_millis(welcome.lease_ms);
        let interval = Duration::from_millis(welcome.heartbeat_interval_ms.max(10));
        self.lease.granted(hello_sent, lease);
        *welcomed = true;
        tracing::info!(server, version = welcome.server_version, lease_ms = welcome.lease_ms, "session with a server");
        self.set_status(|s| {
            *s = SessionStatus {
                server: server.to_owned(),
                http: match (welcome.http_addr.as_str(), welcome.http_tls) {
                    (address @ "", _) | (address, false) => address.to_owned(),
                    (address, true) => format!("https://{address}"),
                },
                connected: true,
                lease,
                last_ack: Some(BootInstant::now()),
                last_error: String::new(),
                holds: holds.clone(),
                elsewhere: String::new(),
                waits_since: None,
                acl: welcome.acl,
            };
        });
        let cluster = welcome.cluster_id.parse().unwrap_or(ClusterId::NIL);
        self.hand_on(FromServer::Welcome { cluster, inventory: (!holds.is_empty()).then(|| out.clone()) })?;
        self.schemas.mark_changed();

        let mut beats = BTreeMap::<u64, BootInstant>::new();
        let mut beat = 0_u64;
        let mut ticks = tokio::time::interval(interval);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        ticks.reset();
        let patience = silence_borne(servers, interval, lease);
        let mut heard = Heard::default();
        // Whoever waits is told of the end of the session by the end of this.
        let mut asking = BTreeMap::<u64, AskTokens>::new();
        let mut questions = 0_u64;
        // What ends or begins work, in order, each until the mark that covers it is written: an agent that starts after
        // a crash must not know less than what was done.
        let mut waiting = VecDeque::<Waiting>::new();
        let mut said_slow = false;
        loop {
            let ticket = waiting.front().map(|first| first.ticket);
            let unanswered = beats.first_key_value().map(|(_, sent)| sent.until(BootInstant::now()));
            let membership = self.membership.clone();
            // Every arm is cancel safe: channels, a timer, a notification that is kept, and a stream whose decoder
            // keeps partial messages.
            tokio::select! {
                () = self.stop.cancelled() => return Err(Ended::Stopping),
                _ = ticks.tick() => {
                    let slow = {
                        let status = self.status.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                        status.disagrees().filter(|_| !waiting.is_empty())
                    };
                    if let Some(why) = slow.as_ref().filter(|_| !said_slow) {
                        tracing::warn!(server, messages = waiting.len(), why, "nothing is started or stopped on the \
                            servers' word");
                    }
                    said_slow = slow.is_some();
                    beat += 1;
                    let sent = BootInstant::now();
                    // A full channel means that nothing leaves; the patience decides.
                    let heartbeat = Heartbeat { seq: beat, renew_identity: self.credentials.identity.wanted() };
                    if out.try_send(FromNodeMessage::Heartbeat(heartbeat).into()).is_ok() {
                        beats.insert(beat, sent);
                    }
                }
                () = tokio::time::sleep(patience.saturating_sub(unanswered.unwrap_or_default())),
                    if unanswered.is_some() => {
                    return Err(Ended::Silent(server.to_owned(), patience));
                }
                () = membership.written(ticket.unwrap_or_default()), if ticket.is_some() => {
                    while let Some(next) = waiting.pop_front_if(|next| Some(next.ticket) <= ticket) {
                        self.act_on(next.message, &mut heard, &out)?;
                    }
                    self.set_status(|s| s.waits_since = waiting.front().map(|first| first.since));
                }
                () = self.reset.notified() => {
                    // What is asked for anew is what is on its way.
                    if !heard.is_open() {
                        return Err(Ended::Reset);
                    }
                }
                () = self.outbox.ready() => {
                    for message in self.outbox.take() {
                        if let Err(ended) = give(&out, server, patience, message).await {
                            return Err(last_words(&mut incoming, server, ended).await);
                        }
                    }
                }
                Some(ask) = self.questions.recv() => {
                    // Those who have lost patience.
                    asking.retain(|_, waiting| !waiting.answer.is_closed());
                    if !ask.answer.is_closed() {
                        questions += 1;
                        let (alloc_id, task, identities) =
                            (ask.alloc.to_string(), ask.task.clone(), ask.identities.clone());
                        asking.insert(questions, ask);
                        let message =
                            FromNodeMessage::SignIdentities(SignIdentities { seq: questions, alloc_id, task,
                                identities });
                        if let Err(ended) = give(&out, server, patience, message.into()).await {
                            return Err(last_words(&mut incoming, server, ended).await);
                        }
                    }
                }
                changed = self.schemas.changed() => {
                    if changed.is_err() {
                        return Err(Ended::Stopping);
                    }
                    let message = schemas_message(&mut self.schemas);
                    if let Err(ended) = give(&out, server, patience, message).await {
                        return Err(last_words(&mut incoming, server, ended).await);
                    }
                }
                changed = self.node.changed() => {
                    if changed.is_err() {
                        return Err(Ended::Stopping);
                    }
                    // A driver is known with its schema.
                    if self.schemas.has_changed().unwrap_or_default() {
                        let message = schemas_message(&mut self.schemas);
                        if let Err(ended) = give(&out, server, patience, message).await {
                            return Err(last_words(&mut incoming, server, ended).await);
                        }
                    }
                    let node_json = node_rpc::to_json(&**self.node.borrow_and_update());
                    if let Err(ended) =
                        give(&out, server, patience, FromNodeMessage::Node(NodeUpdate { node_json }).into()).await {
                        return Err(last_words(&mut incoming, server, ended).await);
                    }
                }
                changed = self.servers.changed() => {
                    if changed.is_err() {
                        return Err(Ended::Stopping);
                    }
                    if !self.servers.borrow_and_update().iter().any(|s| s == server) {
                        return Err(Ended::ServersChanged);
                    }
                }
                message = incoming.message() => {
                    let message: Option<ToNode> = message.map_err(|s| closed(said(&s)))?;
                    let Some(message) = message else { return Err(closed("the stream has ended".into())) };
                    match message.message {
                        // A message of a newer release.
                        None => tracing::debug!(server, version = welcome.server_version, "a message that this \
                            release does not know was ignored"),
                        Some(ToNodeMessage::Goodbye(g)) => return Err(refused(server, g)),
                        Some(ToNodeMessage::HeartbeatAck(ack)) => {
                            self.credentials.take(ack.identity);
                            if !ack.servers.is_empty() {
                                self.takes(&ack.servers);
                            }
                            if let Some(sent) = beats.remove(&ack.seq) {
                                let lease = Duration::from_millis(ack.lease_ms);
                                self.lease.granted(sent, lease);
                                self.set_status(|s| {
                                    s.lease = lease;
                                    s.last_ack = Some(BootInstant::now());
                                });
                            }
                            beats.retain(|seq, _| *seq > ack.seq);
                        }
                        Some(ToNodeMessage::UpdatesStored(stored)) => {
                            if holds.is_empty() {
                                self.membership.acts_on(stored.index);
                            }
                            // Not before what has come earlier is acted on: that does not know of what is stored.
                            match waiting.back().map(|last| last.ticket) {
                                None => self.outbox.stored(stored.seq),
                                Some(ticket) => waiting.push_back(Waiting { ticket, since: BootInstant::now(),
                                    message: ToNodeMessage::UpdatesStored(stored) }),
                            }
                        }
                        Some(ToNodeMessage::InventoryStored(stored)) => {
                            if self.membership.told(&stored).await && welcome.recovering.is_empty() {
                                tracing::info!(server, "the servers have set the mark of this node anew, it \
                                    follows them");
                                return Err(Ended::Reset);
                            }
                            tracing::info!(server, "the servers have taken over what this node has; it goes on \
                                holding until they have all");
                        }
                        // Lists from the past, or of servers that do not know everything yet.
                        Some(ToNodeMessage::Allocs(_) | ToNodeMessage::RemoteOrders(_) | ToNodeMessage::HostVolumes(_))
                            if !holds.is_empty() => {}
                        Some(message @ (ToNodeMessage::Allocs(_) | ToNodeMessage::RemoteOrders(_)
                            | ToNodeMessage::HostVolumes(_))) => {
                            let index = match &message {
                                ToNodeMessage::Allocs(allocs) => allocs.index,
                                ToNodeMessage::RemoteOrders(orders) => orders.index,
                                ToNodeMessage::HostVolumes(volumes) => volumes.index,
                                _ => 0,
                            };
                            if waiting.len() >= WAITING {
                                return Err(Ended::DiskHangs(waiting.len(), server.to_owned()));
                            }
                            waiting.push_back(Waiting { ticket: self.membership.acts_on(index),
                                since: BootInstant::now(), message });
                            self.set_status(|s| s.waits_since = waiting.front().map(|first| first.since));
                        }
                        Some(ToNodeMessage::ListRemote(ask)) => self.hand_on(FromServer::ListRemote { ask,
                            answer: out.clone() })?,
                        Some(ToNodeMessage::IdentitiesSigned(signed)) => {
                            if let Some(ask) = asking.remove(&signed.seq) {
                                // The asker may have gone.
                                let _ = ask.answer.send(tokens::answered(signed));
                            }
                        }
                        Some(ToNodeMessage::Welcome(_)) => {}
                    }
                }
            }
        }
    }

    /// Hands on lists and orders whose mark is written.
    fn act_on(&self, message: ToNodeMessage, heard: &mut Heard, out: &mpsc::Sender<FromNode>) -> Result<(), Ended> {
        match message {
            ToNodeMessage::HostVolumes(told) => {
                let read = |json: &Vec<u8>| node_rpc::from_json::<DynamicVolume>("a host volume", json);
                let volumes = told.volumes_json.iter().map(read).collect::<Result<_, _>>()?;
                self.hand_on(FromServer::HostVolumes(Told { volumes, answer: out.clone() }))
            }
            ToNodeMessage::Allocs(allocs) => heard.allocs(allocs)?.map_or(Ok(()), |all| self.hand_on(all)),
            ToNodeMessage::RemoteOrders(orders) => heard.orders(orders)?.map_or(Ok(()), |all| self.hand_on(all)),
            ToNodeMessage::UpdatesStored(stored) => {
                self.outbox.stored(stored.seq);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn hand_on(&self, message: FromServer) -> Result<(), Ended> {
        self.to_node.send(message).map_err(|_| Ended::Stopping)
    }
}

/// What is to be said of the drivers' schemas; it has been said then.
fn schemas_message(schemas: &mut watch::Receiver<Arc<Vec<DriverSchema>>>) -> FromNode {
    let schemas = schemas.borrow_and_update().to_vec();
    FromNodeMessage::DriverSchemas(DriverSchemas { schemas }).into()
}

/// A server that takes nothing for so long is as good as gone: heartbeats wait in the same queue.
async fn give(out: &mpsc::Sender<FromNode>, server: &str, patience: Duration, message: FromNode) -> Result<(), Ended> {
    match tokio::time::timeout(patience, out.send(message)).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) => Err(Ended::Closed { server: server.to_owned(), why: "the stream is closed".into() }),
        Err(_) => Err(Ended::Silent(server.to_owned(), patience)),
    }
}

/// Why a server has stopped listening, when it has said so: its goodbye may still be on the way, and with it whether to
/// come back.
async fn last_words(incoming: &mut tonic::Streaming<ToNode>, server: &str, ended: Ended) -> Ended {
    let said = async {
        while let Ok(Some(message)) = incoming.message().await {
            if let Some(ToNodeMessage::Goodbye(goodbye)) = message.message {
                return Some(refused(server, goodbye));
            }
        }
        None
    };
    match ended {
        Ended::Closed { .. } => tokio::time::timeout(LAST_WORDS, said).await.ok().flatten().unwrap_or(ended),
        other => other,
    }
}

fn refused(server: &str, goodbye: Goodbye) -> Ended {
    Ended::Refused { server: server.to_owned(), why: goodbye.reason, retry: goodbye.retry }
}

/// What a call's failure says: the words of the server, or why the connection broke. A server refuses a node's
/// certificate only after the node believes that the TLS handshake is over.
fn said(status: &tonic::Status) -> String {
    std::error::Error::source(status).map_or_else(|| status.message().to_owned(), chain)
}

/// The whole chain: tonic's own text says only "transport error".
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        // Wrappers repeat what they wrap.
        let inner_text = inner.to_string();
        if !text.ends_with(&inner_text) {
            text.push_str(": ");
            text.push_str(&inner_text);
        }
        source = inner.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In the worst turn a node asks each of the others before the server that leads. What that takes must be less than
    /// a lease, or a new leader gives up nodes that are there.
    #[test]
    fn a_round_through_servers_that_hang_or_refuse_takes_less_than_the_shortest_lease() {
        let shortest = Duration::from_secs(10);
        for (servers, hang) in [(3, 1), (5, 1), (5, 2)] {
            // The leader needs up to 3 s; the connections are refused until then.
            let (mut waited, mut failures, mut silences) = (Duration::ZERO, 0, 0);
            while waited < Duration::from_secs(3) {
                waited += pause_after(servers, failures);
                failures += 1;
            }
            let before = waited;
            for turn in 0..servers {
                if turn < hang {
                    waited += opening_patience(servers, silences);
                    silences += 1;
                }
                waited += pause_after(servers, failures);
                failures += 1;
            }
            assert!(waited - before < shortest, "{servers} servers, {hang} of them hang: {:?}", waited - before);
        }
    }

    #[test]
    fn a_server_that_hangs_is_left_while_the_lease_lasts_where_there_is_another() {
        let (lease, interval) = (Duration::from_secs(12), Duration::from_secs(4));
        // The beat is sent one interval after the last answer; each of two others may hang, too.
        let left = lease - interval - silence_borne(3, interval, lease);
        assert!(left >= FIRST_OPENING * 2, "{left:?}");
        assert_eq!(silence_borne(1, interval, lease), lease, "there is no other");
        let short = Duration::from_millis(300);
        assert_eq!(silence_borne(3, short / 3, short), FIRST_OPENING, "a busy machine stands still for that");
    }

    #[test]
    fn tries_slow_down_where_nobody_answers() {
        assert_eq!([0, 1, 4, 7, 100].map(|failures| pause_after(1, failures).as_millis()), [50, 100, 800, 5000, 5000]);
        assert_eq!(
            [0, 2, 3, 21].map(|failures| pause_after(3, failures).as_micros()),
            [16_666, 16_666, 33_333, 1_666_666]
        );
        assert_eq!([0, 2, 3, 6, 100].map(|silences| opening_patience(3, silences).as_secs()), [1, 1, 2, 4, 5]);
        assert_eq!(opening_patience(1, 0), CONNECT_TIMEOUT, "there is no other");
    }

    #[test]
    fn a_refused_node_rests_for_a_third_of_its_last_lease_within_bounds() {
        let after = |lease| pause_after_refusal(Duration::from_millis(lease)).as_millis();
        // Leases: of fresh servers, of tests, of a server that may hardly lead any more, of large clusters.
        assert_eq!([10_000, 3000, 1, 60_000, 600_000].map(after), [3333, 1000, 1000, 20_000, 30_000]);
        assert_eq!(after(0), 5000, "no server has granted one");
    }
}

//! The node RPC: the service that nodes connect to, and the registry of their sessions.

mod identities;
mod messages;
mod sent;
mod session;
mod updates;

use std::{
    collections::{BTreeSet, HashMap},
    convert::Infallible,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use api::node_rpc::{ListRemote, RemoteListed, node_service_server::SERVICE_NAME};
use bytes::Bytes;
use futures::StreamExt as _;
use http::{HeaderValue, header::CONTENT_TYPE};
use http_body_util::StreamBody;
use hyper::body::Frame;
use messages::Messages;
use model::{NodeId, SlotKey};
use sent::Changes;
use state::Object;
use tokio::{
    net::TcpListener,
    sync::{Notify, oneshot},
};
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::{Status, body::Body, metadata::GRPC_CONTENT_TYPE, server::NamedService, transport::server::TcpConnectInfo};

use crate::{commit::Commit, shared::Shared};
pub(crate) use updates::ClientUpdates;

/// Messages to a node that may wait for its connection. A node that does not read gets its changes later, in larger pieces.
const QUEUED_MESSAGES: usize = 16;

/// Changes that one message tells of: a job of thousands is told in pieces as the node takes them, and not built up in memory at once.
const PIECE: usize = 128;

/// How long a node may take to list a page of a provider: its driver's call has a limit of its own.
const LIST_PATIENCE: Duration = Duration::from_secs(30);

/// A node that has been told goodbye lets go of its connection by itself; one that hangs is not waited for longer than this.
const LETTING_GO: Duration = Duration::from_secs(1);

/// What the rest of the server knows of an open session, and how it is told. Small, without channels of its own: there are thousands.
#[derive(Debug)]
pub(crate) struct SessionEntry {
    serial: u64,
    /// Something is new: allocations or orders of the node may have changed, there are questions, or the session is to end.
    wake: Notify,
    /// The session is to end; the reason goes to the node.
    ended: AtomicBool,
    told: Mutex<Told>,
}

/// What a session has been told and has not acted upon.
#[derive(Debug, Default)]
struct Told {
    changes: Changes,
    /// Slots whose order the node is to be told again.
    resend: BTreeSet<SlotKey>,
    /// Questions to the node.
    questions: Vec<Ask>,
}

impl SessionEntry {
    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.wake.notify_one();
    }

    fn ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    fn resend(&self, slots: impl IntoIterator<Item = SlotKey>) {
        self.told().resend.extend(slots);
        self.wake.notify_one();
    }

    fn changed(&self, changes: Changes) {
        self.told().changes.add(changes);
        self.wake.notify_one();
    }

    /// What may have changed, and the slots whose order is to be told again.
    fn take_changes(&self) -> (Changes, BTreeSet<SlotKey>) {
        let mut told = self.told();
        (std::mem::take(&mut told.changes), std::mem::take(&mut told.resend))
    }

    /// A piece of that; what is left wakes the session again.
    fn take_piece(&self) -> (Changes, BTreeSet<SlotKey>) {
        let mut told = self.told();
        let changes = told.changes.take_piece(PIECE);
        // With the last of the orders, which come after the allocations that they are for.
        if told.changes.is_empty() {
            return (changes, std::mem::take(&mut told.resend));
        }
        self.wake.notify_one();
        (changes, BTreeSet::new())
    }

    fn ask(&self, question: Ask) {
        self.told().questions.push(question);
        self.wake.notify_one();
    }
}

/// A question that a session carries to its node.
#[derive(Debug)]
struct Ask {
    question: ListRemote,
    answer: oneshot::Sender<RemoteListed>,
}

/// The open sessions, one per node.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    open: Mutex<HashMap<NodeId, Arc<SessionEntry>>>,
    serials: AtomicU64,
}

impl Sessions {
    fn lock(&self) -> MutexGuard<'_, HashMap<NodeId, Arc<SessionEntry>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a session and ends an older one of the same node.
    fn open(&self, node: NodeId) -> Arc<SessionEntry> {
        let entry = Arc::new(SessionEntry {
            serial: self.serials.fetch_add(1, Ordering::Relaxed),
            wake: Notify::new(),
            ended: AtomicBool::new(false),
            told: Mutex::default(),
        });
        if let Some(old) = self.lock().insert(node, entry.clone()) {
            old.end();
        }
        entry
    }

    /// Asks a node for one page of what this cluster has at a provider. The error says why there is no answer.
    pub(crate) async fn list_remote(&self, node: NodeId, driver: &str, provider: &str, page_token: String) -> Result<RemoteListed, String> {
        let question = ListRemote { seq: 0, driver: driver.to_owned(), provider: provider.to_owned(), page_token };
        let (answer, answered) = oneshot::channel();
        // The question goes with the entry, so an asker hears of the end of the session at once.
        match self.lock().get(&node) {
            Some(entry) => entry.ask(Ask { question, answer }),
            None => return Err(format!("node {} has no session", node.short())),
        }
        match tokio::time::timeout(LIST_PATIENCE, answered).await {
            Ok(Ok(page)) => Ok(page),
            Ok(Err(_)) => Err(format!("the session of node {} ended before it answered", node.short())),
            Err(_) => Err(format!("node {} did not answer within {} s", node.short(), LIST_PATIENCE.as_secs())),
        }
    }

    fn close(&self, node: NodeId, serial: u64) {
        let mut open = self.lock();
        if open.get(&node).is_some_and(|entry| entry.serial == serial) {
            open.remove(&node);
        }
    }

    /// Ends the session of a node, if it has one.
    pub(crate) fn end(&self, node: NodeId) {
        if let Some(entry) = self.lock().get(&node) {
            entry.end();
        }
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }

    /// Tells the sessions that a published commit concerns what of their nodes it may have changed.
    pub(crate) fn follow(&self, commit: &Commit) {
        let concerns = sent::concerns(commit);
        let gone = commit.applied.changes.iter().filter(|change| change.deleted).filter_map(|change| match &change.object {
            Object::Node(node) => Some(node.id),
            _ => None,
        });
        let end: Vec<NodeId> = gone.collect();
        if concerns.is_empty() && end.is_empty() {
            return;
        }
        let open = self.lock();
        for (node, changes) in concerns {
            if let Some(entry) = open.get(&node) {
                entry.changed(changes);
            }
        }
        for node in end {
            if let Some(entry) = open.get(&node) {
                entry.end();
            }
        }
    }
}

/// The service. Its one call is answered here and not by generated code, whose streams keep buffers; see [`messages`].
#[derive(Clone, Debug)]
struct Service {
    shared: Arc<Shared>,
}

impl NamedService for Service {
    const NAME: &'static str = SERVICE_NAME;
}

impl tower::Service<http::Request<Body>> for Service {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let path = request.uri().path();
        if path.strip_prefix('/').and_then(|path| path.strip_prefix(SERVICE_NAME)) != Some("/Session") {
            let refused = Status::unimplemented(format!("this server has no call {path}; the node probably runs a newer release"));
            return std::future::ready(Ok(refused.into_http()));
        }
        let peer = request.extensions().get::<TcpConnectInfo>().and_then(TcpConnectInfo::remote_addr);
        let (tx, rx) = tokio::sync::mpsc::channel::<Box<[u8]>>(QUEUED_MESSAGES);
        self.shared.tasks.spawn(session::run(self.shared.clone(), Messages::new(request.into_body()), tx, peer));
        let messages = ReceiverStream::new(rx).map(|message| Frame::data(Bytes::from(message)));
        let end =
            futures::stream::once(async { Frame::trailers([(Status::GRPC_STATUS, HeaderValue::from_static("0"))].into_iter().collect()) });
        let mut response = http::Response::new(Body::new(StreamBody::new(messages.chain(end).map(Ok::<_, Status>))));
        response.headers_mut().insert(CONTENT_TYPE, GRPC_CONTENT_TYPE);
        std::future::ready(Ok(response))
    }
}

/// Serves the node RPC until the server stops.
pub(crate) async fn serve(shared: Arc<Shared>, listener: TcpListener) {
    let stopping = shared.stopping.clone();
    // Accepted sockets keep Nagle's algorithm unless told otherwise, and an allocation must not wait for an acknowledgement.
    let incoming = tokio_stream::StreamExt::map(TcpListenerStream::new(listener), |socket| {
        if let Ok(socket) = &socket
            && let Err(error) = socket.set_nodelay(true)
        {
            tracing::debug!(error = %error, "a node's socket keeps Nagle's algorithm");
        }
        socket
    });
    let serving = tonic::transport::Server::builder()
        .http2_keepalive_interval(Some(Duration::from_secs(10)))
        .http2_keepalive_timeout(Some(Duration::from_secs(10)))
        .add_service(Service { shared })
        .serve_with_incoming_shutdown(incoming, stopping.cancelled());
    let left_behind = async {
        stopping.cancelled().await;
        tokio::time::sleep(LETTING_GO).await;
    };
    tokio::select! {
        served = serving => {
            if let Err(error) = served {
                tracing::error!(error = %error, "serving the node rpc failed");
            }
        }
        () = left_behind => tracing::debug!("some nodes have not let go of their connections"),
    }
}

//! Nodes of a server that does not lead: it passes their calls on to the one that does, byte by byte.
//!
//! ```text
//! node ── its connection ──► this server ── one connection for many nodes ──► the server that leads
//! ```
//! A relay decodes no message, keeps none, and never answers in the leader's place: it grants no lease and acknowledges
//! nothing. A node counts its lease from when *it* has sent the message that the leader answers. So the way through a
//! relay makes a lease shorter by the time that it takes, never longer, and what was proven of leases holds with relays
//! as without.
//!
//! Each direction is one HTTP/2 body that is read when the other side takes more. Nothing queues up in between beyond
//! the windows of the two connections. Both ends agree on windows so small that all streams of a shared connection fit
//! into its window ([`WINDOW`]): a node that reads nothing holds up nobody else.
//!
//! Without a leader, or when it is not reached, a call ends at once with `UNAVAILABLE` and the reason, and the node
//! asks the next server. A session ends in the same way when another server leads or the connection to the leader ends;
//! the node's lease is not touched by that. A leader that hangs is the node's to notice: it waits for the leader's
//! first message, here as there.
//!
//! [`RELAYED_HEADER`] tells the leader where the node is, for people who read its log. The leader believes it from
//! whoever shows the certificate of a server. Where there is no TLS it believes everybody: nothing is proven there. No
//! decision depends on it. A relay refuses calls that have it, so that none goes round in circles.

use std::{
    convert::Infallible,
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use api::node_rpc::{RELAYED_HEADER, node_service_server::SERVICE_NAME};
use bytes::Bytes;
use futures::{
    FutureExt as _,
    future::{BoxFuture, Shared},
};
use http::{HeaderMap, HeaderValue, Uri, uri::Authority};
use hyper::{
    body::{Frame, Incoming, SizeHint},
    client::conn::http2::{self, SendRequest},
};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::{Status, body::Body, server::NamedService};

use crate::{
    incoming::{self, Limits, Peer},
    serve::{KEEP_ALIVE, serve_calls},
};

/// Calls that a listener takes on one connection.
pub(crate) const STREAMS: u32 = 256;

/// Calls that a relay puts on one; calls that are ending have the other places. 10,000 nodes behind one server make 50
/// connections, of 100 that the leader takes from one address by default (`limits.rpc_max_conns_per_client`).
const PLACES: usize = 200;

/// What one side sends of a call before the other has read it, in bytes. Larger ones speed up long lists over far
/// connections; [`STREAMS`] of them are what a connection may hold in memory.
pub(crate) const WINDOW: u32 = 64 * 1024;

/// Calls that nodes give up on one connection before the leader has looked at them.
pub(crate) const GIVEN_UP: usize = 4096;

/// The leader is connected to within this time.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Why a call has no answer.
const NO_LEADER: &str = "this server does not lead and knows no server that does; another one may";
const TWICE: &str = "this server does not lead, and another server has passed the call on to it: servers do not agree \
    yet on who leads";
const ENDED: &str = "this server passes the session on no longer: another server leads now, or this one is stopping";

/// Where the node of a call is. The word of another server counts instead of the connection's address where the peer
/// may say it.
pub(crate) fn node_address(headers: &HeaderMap, peer: &Peer) -> Option<SocketAddr> {
    let told = || headers.get(RELAYED_HEADER)?.to_str().ok()?.parse().ok();
    if peer.passes_on { told().or(peer.address) } else { peer.address }
}

/// Passes calls of nodes on.
#[derive(Debug)]
pub struct Relay {
    limits: Limits,
    tls: Option<tls::Agent>,
    way: Mutex<Way>,
    sessions: AtomicUsize,
}

/// The way to the leader.
#[derive(Debug, Default)]
struct Way {
    leader: Option<Arc<Leader>>,
    /// It is known to lead now.
    leads: bool,
}

impl Relay {
    /// One with the limits and the certificates of the node RPC; without `tls`, or with `tls.rpc` off, connections are
    /// plain in both directions.
    #[must_use]
    pub fn new(limits: Limits, tls: Option<tls::Agent>) -> Self {
        Self { limits, tls, way: Mutex::default(), sessions: AtomicUsize::default() }
    }

    /// The server at this address, `host:port`, leads from now on; None = none is known. Sessions with another one end.
    /// While none is known those that stand go on, because the leader itself decides whether it may still answer.
    pub fn lead_to(&self, leader: Option<&str>) {
        let mut way = self.way();
        way.leads = leader.is_some();
        let Some(address) = leader.filter(|leader| way.leader.as_ref().is_none_or(|known| known.address != **leader))
        else {
            return;
        };
        let tls = self.tls.clone().filter(|tls| tls.settings().rpc);
        let next =
            Leader { address: address.to_owned(), tls, links: Mutex::default(), ended: CancellationToken::new() };
        if let Some(former) = way.leader.replace(Arc::new(next)) {
            former.ended.cancel();
        }
    }

    /// Sessions that are passed on now.
    #[must_use]
    pub fn sessions(&self) -> usize {
        self.sessions.load(Relaxed)
    }

    /// Serves nodes until `stop` is cancelled. [`Self::end`] ends their sessions. Must run inside a tokio runtime.
    pub async fn serve(self: Arc<Self>, listener: TcpListener, stop: CancellationToken) {
        let incoming = incoming::admitted(listener, self.limits, self.tls.clone(), stop.clone());
        serve_calls(Calls(self), incoming, stop).await;
    }

    /// Ends all sessions with the reason. No leader is known from now on.
    pub fn end(&self) {
        if let Some(leader) = std::mem::take(&mut *self.way()).leader {
            leader.ended.cancel();
        }
    }

    fn way(&self) -> MutexGuard<'_, Way> {
        self.way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes a call on.
    async fn pass_on(self: Arc<Self>, request: http::Request<Body>) -> Result<http::Response<Body>, Status> {
        let peer = request.extensions().get::<Peer>().cloned().unwrap_or_default();
        if let Some(why) = peer.refused {
            return Err(Status::unauthenticated(&*why));
        }
        if request.headers().contains_key(RELAYED_HEADER) {
            return Err(Status::unavailable(TWICE));
        }
        let leader = {
            let way = self.way();
            way.leader.clone().filter(|_| way.leads)
        };
        let leader = leader.ok_or_else(|| Status::unavailable(NO_LEADER))?;
        let unreached = |why: &dyn std::fmt::Display| {
            let at = &leader.address;
            Status::unavailable(format!(
                "this server does not lead and does not reach the one that does at {at}: {why}"
            ))
        };
        let ended = leader.ended.clone();
        let (mut link, place) = tokio::select! {
            place = leader.place() => place.map_err(|why| unreached(&why))?,
            () = ended.cancelled() => return Err(Status::unavailable(ENDED)),
        };
        let (mut head, body) = request.into_parts();
        let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
        head.uri = Uri::try_from(format!("http://{}{path}", leader.address)).map_err(|why| unreached(&why))?;
        head.extensions.clear();
        if let Some(address) = peer.address.and_then(|at| HeaderValue::try_from(at.to_string()).ok()) {
            head.headers.insert(RELAYED_HEADER, address);
        }
        let counted = Counted::one(&self);
        let answered = tokio::select! {
            answered = link.send_request(http::Request::from_parts(head, body)) => answered,
            () = ended.cancelled() => return Err(Status::unavailable(ENDED)),
        };
        let answer = answered.map_err(|error| unreached(&chain(&error)))?;
        let ended = Box::pin(ended.cancelled_owned());
        Ok(answer.map(|body| Body::new(Answer { body: Some(body), ended, _place: place, _counted: counted })))
    }
}

/// A session in the count; a drop takes it out.
#[derive(Debug)]
struct Counted(Arc<Relay>);

impl Counted {
    fn one(of: &Arc<Relay>) -> Self {
        of.sessions.fetch_add(1, Relaxed);
        Self(of.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.sessions.fetch_sub(1, Relaxed);
    }
}

/// The service: every call of nodes. Which ones there are is the leader's to know.
#[derive(Clone, Debug)]
struct Calls(Arc<Relay>);

impl NamedService for Calls {
    const NAME: &'static str = SERVICE_NAME;
}

impl tower::Service<http::Request<Body>> for Calls {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let relay = self.0.clone();
        async move { Ok(relay.pass_on(request).await.unwrap_or_else(Status::into_http)) }.boxed()
    }
}

/// What the leader answers, until it has ended or the leader is gone: then the node hears why.
struct Answer {
    body: Option<Incoming>,
    ended: Pin<Box<WaitForCancellationFutureOwned>>,
    _place: OwnedSemaphorePermit,
    _counted: Counted,
}

impl Answer {
    /// The end of the answer, for this reason.
    fn unavailable(&mut self, why: impl Into<String>) -> Frame<Bytes> {
        self.body = None;
        let mut trailers = HeaderMap::new();
        if Status::unavailable(why).add_header(&mut trailers).is_err() {
            trailers.insert(Status::GRPC_STATUS, HeaderValue::from(tonic::Code::Unavailable as i32));
        }
        Frame::trailers(trailers)
    }
}

impl hyper::body::Body for Answer {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        let Some(body) = &mut this.body else { return Poll::Ready(None) };
        if this.ended.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Some(Ok(this.unavailable(ENDED))));
        }
        Poll::Ready(match ready!(Pin::new(body).poll_frame(cx)) {
            Some(Ok(frame)) => Some(Ok(frame)),
            None => None,
            Some(Err(error)) => {
                let why = format!("the connection to the server that leads has ended: {}", chain(&error));
                Some(Ok(this.unavailable(why)))
            }
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Incoming::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map(Incoming::size_hint).unwrap_or_default()
    }
}

/// The server that leads, and the connections to it.
#[derive(Debug)]
struct Leader {
    address: String,
    tls: Option<tls::Agent>,
    links: Mutex<Links>,
    /// It leads no longer.
    ended: CancellationToken,
}

#[derive(Debug, Default)]
struct Links {
    open: Vec<Link>,
    /// The next one. Those who wait for it share it, and it is made also when they have gone.
    opening: Option<Opening>,
}

type Opening = Shared<BoxFuture<'static, Result<(), Arc<str>>>>;

#[derive(Debug)]
struct Link {
    send: SendRequest<Body>,
    places: Arc<Semaphore>,
}

impl Leader {
    /// A connection, and the place of one call on it. Cancel safe.
    ///
    /// # Errors
    /// Why the leader is not reached.
    async fn place(self: &Arc<Self>) -> Result<(SendRequest<Body>, OwnedSemaphorePermit), Arc<str>> {
        loop {
            let opening = {
                let mut links = self.links();
                links.open.retain(|link| !link.send.is_closed());
                let free = links
                    .open
                    .iter()
                    .find_map(|link| Some((link.send.clone(), link.places.clone().try_acquire_owned().ok()?)));
                if let Some(place) = free {
                    return Ok(place);
                }
                links.opening.get_or_insert_with(|| self.opening()).clone()
            };
            opening.await?;
        }
    }

    /// Makes one more connection.
    fn opening(self: &Arc<Self>) -> Opening {
        let leader = self.clone();
        let made = tokio::spawn(async move {
            let made = match tokio::time::timeout(CONNECT_TIMEOUT, leader.connect()).await {
                Ok(made) => made.map_err(|error| Arc::from(chain(&*error))),
                Err(_) => Err(format!("no connection within {} s", CONNECT_TIMEOUT.as_secs()).into()),
            };
            let mut links = leader.links();
            links.opening = None;
            links.open.push(made?);
            Ok(())
        });
        made.map(|made| made.unwrap_or_else(|error| Err(error.to_string().into()))).boxed().shared()
    }

    async fn connect(&self) -> Result<Link, Box<dyn std::error::Error + Send + Sync>> {
        let at: Authority = self.address.parse()?;
        let host = at.host().trim_matches(['[', ']']);
        let stream = TcpStream::connect((host, at.port_u16().unwrap_or_default())).await?;
        stream.set_nodelay(true)?;
        match &self.tls {
            None => self.begin(stream).await,
            Some(tls) => {
                let dialled = tls.dialer(tls::Peer::ServerRpc).connect(stream, host).await;
                self.begin(dialled.map_err(|error| io::Error::other(tls::why(&error)))?).await
            }
        }
    }

    async fn begin<T>(&self, stream: T) -> Result<Link, Box<dyn std::error::Error + Send + Sync>>
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (send, connection) = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .initial_max_send_streams(PLACES)
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOW * STREAMS)
            .keep_alive_interval(KEEP_ALIVE)
            .keep_alive_timeout(KEEP_ALIVE)
            .handshake(TokioIo::new(stream))
            .await?;
        let (ended, address) = (self.ended.clone(), self.address.clone());
        tokio::spawn(async move {
            tokio::select! {
                over = connection => if let Err(error) = over {
                    tracing::warn!(leader = address, error = chain(&error), "a connection that passes sessions of \
                        nodes on has ended");
                },
                () = ended.cancelled() => {}
            }
        });
        Ok(Link { send, places: Arc::new(Semaphore::new(PLACES)) })
    }

    fn links(&self) -> MutexGuard<'_, Links> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An error with its causes, each once.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        let inner_text = inner.to_string();
        if !text.ends_with(&inner_text) {
            text = format!("{text}: {inner_text}");
        }
        source = inner.source();
    }
    text
}

#[cfg(test)]
mod tests;

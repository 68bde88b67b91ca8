//! The connections over which a node passes requests on to its server: plain, or TLS with the certificates of the
//! agent.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll},
};

use api::client::Address;
use axum::body::{Body, HttpBody};
use bytes::Bytes as Data;
use http::Uri;
use hyper::{
    body::{Frame, SizeHint},
    rt::{Read, ReadBufCursor, Write},
};
use hyper_util::{
    client::legacy::{
        Client,
        connect::{Connected, Connection},
    },
    rt::{TokioExecutor, TokioIo},
};
use tls::Dialer;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};
use tower::util::BoxCloneSyncService;

/// A client that keeps its connections.
pub(crate) type ToServer = Client<BoxCloneSyncService<Uri, Io, io::Error>, Body>;

/// Makes the client.
pub(crate) fn client(tls: Option<Dialer>) -> ToServer {
    let connect = move |uri: Uri| {
        let tls = tls.clone();
        async move { dial(&uri, tls).await }
    };
    Client::builder(TokioExecutor::new()).build(BoxCloneSyncService::new(tower::service_fn(connect)))
}

async fn dial(uri: &Uri, tls: Option<Dialer>) -> io::Result<Io> {
    let origin = format!("{}://{}", uri.scheme_str().unwrap_or("http"), uri.authority().map_or("", |a| a.as_str()));
    let Address::Tcp { host, port, tls: wanted } = Address::parse(&origin).map_err(io::Error::other)? else {
        return Err(io::Error::other(format!("{origin} is no address of a server")));
    };
    let stream = TcpStream::connect((host.as_str(), port)).await?;
    stream.set_nodelay(true)?;
    if !wanted {
        return Ok(Io(TokioIo::new(Box::new(stream))));
    }
    let why =
        "the server is reached over TLS, and this agent has no certificates: set tls { rpc = true } with its files";
    let stream = tls.ok_or_else(|| io::Error::other(why))?.connect(stream, &host).await;
    stream.map(|stream| Io(TokioIo::new(Box::new(stream)))).map_err(|e| io::Error::other(tls::why(&e)))
}

trait Bytes: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Bytes for T {}

/// A connection to a server.
pub(crate) struct Io(TokioIo<Box<dyn Bytes>>);

impl Connection for Io {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl Read for Io {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl Write for Io {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

/// The body of a request that can be sent again while nothing of it has been read. Clones share it.
#[derive(Clone)]
pub(crate) struct Unsent(Arc<Slot>);

struct Slot {
    body: Mutex<Body>,
    begun: AtomicBool,
}

impl Unsent {
    pub(crate) fn new(body: Body) -> Self {
        Self(Arc::new(Slot { body: Mutex::new(body), begun: AtomicBool::new(false) }))
    }

    /// Whether a connection has begun to read it.
    pub(crate) fn begun(&self) -> bool {
        self.0.begun.load(Relaxed)
    }
}

impl HttpBody for Unsent {
    type Data = Data;
    type Error = axum::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Data>, axum::Error>>> {
        self.0.begun.store(true, Relaxed);
        let mut body = self.0.body.lock().unwrap_or_else(PoisonError::into_inner);
        Pin::new(&mut *body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.0.body.lock().unwrap_or_else(PoisonError::into_inner).is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.body.lock().unwrap_or_else(PoisonError::into_inner).size_hint()
    }
}

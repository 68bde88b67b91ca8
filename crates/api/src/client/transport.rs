//! Connections to agents over TCP and unix sockets, kept for reuse.

use std::{
    fmt, io,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::{
    body::Incoming,
    client::conn::http1::{self, SendRequest},
};
use hyper_util::rt::TokioIo;
use tls::Dialer;
use tokio::net::{TcpStream, UnixStream};

/// Body of requests.
pub type Body = Full<Bytes>;

/// Port of an agent when the address names none.
const DEFAULT_PORT: u16 = 4646;
/// Longest wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Idle connections kept per client.
const MAX_IDLE: usize = 16;

/// Where an agent listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// TCP.
    Tcp {
        /// Host name or IP address, without brackets.
        host: String,
        /// Port.
        port: u16,
        /// Over TLS.
        tls: bool,
    },
    /// Unix socket.
    Unix(PathBuf),
}

/// Why a text is not the address of an agent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// Another scheme.
    #[error("the address {0:?} is not of the form http://host:port, https://host:port or unix:///path")]
    Form(String),
    /// Not a port.
    #[error("the address {0:?} has no valid port")]
    Port(String),
}

impl Address {
    /// Reads `http://host:port`, `https://host:port`, `host:port` or `unix:///path`.
    ///
    /// # Errors
    /// When it is none of these.
    pub fn parse(text: &str) -> Result<Self, AddressError> {
        let form = || AddressError::Form(text.to_owned());
        if let Some(path) = text.strip_prefix("unix://") {
            return if path.is_empty() { Err(form()) } else { Ok(Self::Unix(path.into())) };
        }
        let (rest, tls) = match text.strip_prefix("https://") {
            Some(rest) => (rest, true),
            None => (text.strip_prefix("http://").unwrap_or(text), false),
        };
        let rest = rest.trim_end_matches('/');
        if rest.is_empty() || rest.contains("://") || rest.contains(['/', '?', '#', '@', ' ']) {
            return Err(form());
        }
        let (host, port) = if let Some(v6) = rest.strip_prefix('[') {
            let (host, after) = v6.split_once(']').ok_or_else(form)?;
            (host, after.strip_prefix(':'))
        } else {
            match rest.rsplit_once(':') {
                Some((host, port)) if !host.contains(':') => (host, Some(port)),
                Some(_) => return Err(form()),
                None => (rest, None),
            }
        };
        let port = match port {
            Some(p) => p.parse().map_err(|_| AddressError::Port(text.to_owned()))?,
            None => DEFAULT_PORT,
        };
        if host.is_empty() {
            return Err(form());
        }
        Ok(Self::Tcp { host: host.to_owned(), port, tls })
    }

    /// Value of the `Host` header.
    #[must_use]
    pub fn host(&self) -> String {
        match self {
            Self::Tcp { host, port, .. } if host.contains(':') => format!("[{host}]:{port}"),
            Self::Tcp { host, port, .. } => format!("{host}:{port}"),
            Self::Unix(_) => "127.0.0.1".to_owned(),
        }
    }

    /// Whether it is spoken to over TLS.
    #[must_use]
    pub fn tls(&self) -> bool {
        matches!(self, Self::Tcp { tls: true, .. })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { tls: true, .. } => write!(f, "https://{}", self.host()),
            Self::Tcp { .. } => write!(f, "http://{}", self.host()),
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
        }
    }
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The system refused.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Nothing answered.
    #[error("no answer within {} s", CONNECT_TIMEOUT.as_secs())]
    Timeout,
    /// It does not speak HTTP.
    #[error(transparent)]
    Http(#[from] hyper::Error),
    /// The TLS handshake failed.
    #[error("{}", tls::why(.0))]
    Tls(io::Error),
    /// There are no certificates for TLS.
    #[error(
        "it is reached over TLS, and this agent has no certificates: set tls.ca_file, tls.cert_file and tls.key_file"
    )]
    NoTls,
}

/// A connection that requests can be sent on, one after the other. Generic over the request's body, so that proxies
/// can pass bodies on.
#[derive(Debug)]
pub struct Connection<B = Body>(SendRequest<B>);

impl<B> Connection<B>
where
    B: hyper::body::Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    /// Dials an agent, with `tls` where the address asks for it. A task of the runtime moves the bytes until the
    /// connection is dropped.
    ///
    /// # Errors
    /// When there is no connection in ten seconds.
    pub async fn open(address: &Address, tls: Option<&Dialer>) -> Result<Self, ConnectError> {
        let dial = async {
            match address {
                Address::Tcp { host, port, tls: wanted } => {
                    let stream = TcpStream::connect((host.as_str(), *port)).await?;
                    stream.set_nodelay(true)?;
                    if !wanted {
                        return Self::over(TokioIo::new(stream)).await;
                    }
                    let stream = tls.ok_or(ConnectError::NoTls)?.connect(stream, host).await;
                    Self::over(TokioIo::new(stream.map_err(ConnectError::Tls)?)).await
                }
                Address::Unix(path) => Self::over(TokioIo::new(UnixStream::connect(path).await?)).await,
            }
        };
        tokio::time::timeout(CONNECT_TIMEOUT, dial).await.map_err(|_| ConnectError::Timeout)?
    }

    async fn over<T: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static>(io: T) -> Result<Self, ConnectError> {
        let (sender, connection) = http1::handshake(io).await?;
        // Ends by itself when the sender is dropped or the peer closes; errors reach the request that they hit.
        tokio::spawn(async move { connection.with_upgrades().await.ok() });
        Ok(Self(sender))
    }

    /// Sends a request.
    ///
    /// # Errors
    /// When the connection breaks.
    pub async fn send(&mut self, request: Request<B>) -> Result<Response<Incoming>, hyper::Error> {
        self.0.ready().await?;
        self.0.send_request(request).await
    }
}

/// Joins a client's connection to the one that another agent has just switched to another protocol (101): bytes pass
/// in both directions until either side ends. A task of the runtime does it.
pub fn tunnel(client: hyper::upgrade::OnUpgrade, response: &mut Response<Incoming>) {
    let there = hyper::upgrade::on(response);
    tokio::spawn(async move {
        if let (Ok(here), Ok(there)) = tokio::join!(client, there) {
            // How a session ended is said between its two ends.
            let _ = tokio::io::copy_bidirectional(&mut TokioIo::new(here), &mut TokioIo::new(there)).await;
        }
    });
}

/// Why a connection broke, for people. A server refuses a client's certificate only after the client believes that
/// the TLS handshake is over, so the reason comes with the first request.
#[must_use]
pub fn why(error: &hyper::Error) -> String {
    let mut source = std::error::Error::source(error);
    while let Some(inner) = source {
        if let Some(io) = inner.downcast_ref::<io::Error>()
            && io.get_ref().is_some_and(|inner| !inner.is::<io::Error>())
        {
            return tls::why(io);
        }
        source = inner.source();
    }
    error.to_string()
}

pub(super) enum SendError {
    Connect(ConnectError),
    Broken(hyper::Error),
}

/// Idle connections.
#[derive(Clone, Default)]
pub(super) struct Pool(Arc<Mutex<Vec<Connection<Body>>>>);

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pool")
    }
}

impl Pool {
    pub(super) fn put(&self, connection: Connection<Body>) {
        let mut idle = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !connection.0.is_closed() && idle.len() < MAX_IDLE {
            idle.push(connection);
        }
    }

    fn take(&self) -> Option<Connection<Body>> {
        let mut idle = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(connection) = idle.pop() {
            if !connection.0.is_closed() {
                return Some(connection);
            }
        }
        None
    }

    /// Sends a request over an idle connection, else over a new one. A request that an idle connection refused unsent
    /// is sent again.
    pub(super) async fn send(
        &self,
        address: &Address,
        tls: Option<&Dialer>,
        mut request: Request<Body>,
    ) -> Result<(Response<Incoming>, Connection<Body>), SendError> {
        while let Some(mut connection) = self.take() {
            if connection.0.ready().await.is_err() {
                continue;
            }
            match connection.0.try_send_request(request).await {
                Ok(response) => return Ok((response, connection)),
                Err(mut e) => match e.take_message() {
                    Some(unsent) => request = unsent,
                    None => return Err(SendError::Broken(e.into_error())),
                },
            }
        }
        let mut connection = Connection::open(address, tls).await.map_err(SendError::Connect)?;
        match connection.send(request).await {
            Ok(response) => Ok((response, connection)),
            Err(e) => Err(SendError::Broken(e)),
        }
    }
}

pub(super) async fn collect(body: Incoming) -> Result<Bytes, hyper::Error> {
    body.collect().await.map(http_body_util::Collected::to_bytes)
}

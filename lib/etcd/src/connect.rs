//! One endpoint: its address, and the connection to it while there is one.

use std::{
    io,
    sync::{Mutex, PoisonError, atomic::AtomicU64},
    time::Duration,
};

use http::Uri;
use hyper_util::rt::TokioIo;
use tls::Dialer;
use tokio::net::TcpStream;
use tonic::transport::{Channel, Endpoint};

use crate::Error;

/// A connection is made within this time or not at all.
const CONNECT: Duration = Duration::from_secs(1);
/// A connection with calls on it that is silent for so long is asked for a sign of life. etcd refuses clients that ask
/// more often than every 5 s (`--grpc-keepalive-min-time`).
const ASK_AFTER: Duration = Duration::from_secs(6);
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// One endpoint.
#[derive(Debug)]
pub(crate) struct Address {
    /// As the options have it.
    pub(crate) name: String,
    host: String,
    port: u16,
    tls: Option<Dialer>,
    channel: Mutex<Option<Channel>>,
    /// The newest of the calls that were answered here, by their numbers.
    pub(crate) answered: AtomicU64,
}

impl Address {
    /// Reads `http://HOST:PORT`, `https://HOST:PORT` or `HOST:PORT`.
    pub(crate) fn new(text: &str, dialer: Option<&Dialer>) -> Result<Self, Error> {
        let wrong = |why: &str| Error::Options(format!("the endpoint {text:?} of etcd {why}"));
        let whole = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
        let uri: Uri =
            whole.parse().map_err(|_| wrong("is no address; write http://HOST:PORT or https://HOST:PORT"))?;
        let tls = match uri.scheme_str() {
            Some("http") => None,
            Some("https") => Some(dialer.cloned().ok_or_else(|| wrong("needs the settings of TLS"))?),
            _ => return Err(wrong("must begin with http:// or https://")),
        };
        let host = uri.host().filter(|host| !host.is_empty()).ok_or_else(|| wrong("names no host"))?;
        if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
            return Err(wrong("has a path; etcd has none"));
        }
        Ok(Self {
            name: text.trim_end_matches('/').to_owned(),
            host: host.trim_matches(['[', ']']).to_owned(),
            port: uri.port_u16().unwrap_or(2379),
            tls,
            channel: Mutex::default(),
            answered: AtomicU64::new(0),
        })
    }

    /// The connection; a new one where there is none. Cancel safe.
    pub(crate) async fn channel(&self) -> Result<Channel, String> {
        if let Some(channel) = &*self.channel.lock().unwrap_or_else(PoisonError::into_inner) {
            return Ok(channel.clone());
        }
        let authority = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let endpoint = Endpoint::from_shared(format!("http://{authority}:{}", self.port))
            .map_err(|error| error.to_string())?
            .origin(format!("{scheme}://{authority}:{}", self.port).parse().map_err(|_| "no address".to_owned())?)
            .connect_timeout(CONNECT)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(ASK_AFTER)
            .keep_alive_timeout(ANSWER_WITHIN);
        let connecting = async {
            let Some(dialer) = self.tls.clone() else { return endpoint.connect().await };
            let connector = tower::service_fn(move |uri: Uri| {
                let dialer = dialer.clone();
                async move {
                    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
                    let stream = TcpStream::connect((host, uri.port_u16().unwrap_or_default())).await?;
                    stream.set_nodelay(true)?;
                    let stream = dialer.connect(stream, host).await;
                    stream.map(TokioIo::new).map_err(|e| io::Error::other(tls::why(&e)))
                }
            });
            endpoint.connect_with_connector(connector).await
        };
        let channel = match tokio::time::timeout(CONNECT, connecting).await {
            Ok(connected) => connected.map_err(|error| chain(&error))?,
            Err(_) => return Err(format!("no connection within {} s", CONNECT.as_secs())),
        };
        *self.channel.lock().unwrap_or_else(PoisonError::into_inner) = Some(channel.clone());
        Ok(channel)
    }

    /// Forgets the connection: the next call makes a new one.
    pub(crate) fn leave(&self) {
        self.channel.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut deepest = error;
    while let Some(source) = deepest.source() {
        deepest = source;
    }
    deepest.to_string()
}

//! Admission to the node RPC: a limited number of connections per address, each of which must begin in time with the
//! HTTP/2 preface, within TLS where the agent has it.

use std::{
    collections::HashMap,
    io,
    net::{IpAddr, SocketAddr},
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::mpsc,
};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::server::Connected;

/// The HTTP/2 connection preface (RFC 9113, section 3.4).
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Agents of one machine share one loopback address, and all of them are local.
const LOOPBACK_FACTOR: usize = 10;

/// Admitted connections in the queue.
const WAITING: usize = 64;

/// One log line per address in this time: a flood of refusals would hide everything else.
const SAID_AGAIN: Duration = Duration::from_secs(60);

/// Limits of the listener.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections of one address at a time, for loopback ten times as many; 0 = no limit.
    pub per_client: usize,
    /// Time limit for the TLS handshake and the HTTP/2 preface; `None` = no limit.
    pub handshake: Option<Duration>,
}

impl Limits {
    /// The limit of an address.
    fn most(self, client: IpAddr) -> usize {
        self.per_client.saturating_mul(if client.is_loopback() { LOOPBACK_FACTOR } else { 1 })
    }
}

/// Open connections by address.
#[derive(Clone, Debug, Default)]
struct Clients(Arc<Mutex<HashMap<IpAddr, usize>>>);

/// A counted connection; a drop releases its place.
#[derive(Debug)]
struct Place(Clients, IpAddr);

impl Clients {
    fn enter(&self, client: IpAddr, limits: Limits) -> Option<Place> {
        let client = client.to_canonical();
        let most = limits.most(client);
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = open.entry(client).or_default();
        if most > 0 && *count >= most {
            return None;
        }
        *count += 1;
        Some(Place(self.clone(), client))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = open.get_mut(&self.1) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.1);
            }
        }
    }
}

/// An admitted connection; reads return the bytes of the preface first.
#[derive(Debug)]
pub(crate) struct Admitted {
    io: Stream,
    peer: Peer,
    /// Bytes of the preface already returned.
    told: usize,
    _place: Place,
}

/// The node at the other end of a connection, or a server that passes calls of nodes on.
#[derive(Clone, Debug, Default)]
pub(crate) struct Peer {
    pub(crate) address: Option<SocketAddr>,
    /// Why nothing that it says counts; it hears this as the answer to its first call.
    pub(crate) refused: Option<Arc<str>>,
    /// It may say for which node it passes a call on: it has shown the certificate of a server. Without TLS everybody
    /// may, because there nothing that a peer says of itself is proven.
    pub(crate) passes_on: bool,
}

impl Connected for Admitted {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

/// The bytes of a connection.
#[derive(Debug)]
enum Stream {
    Plain(TcpStream),
    Tls(Box<tls::Stream<TcpStream>>),
}

impl AsyncRead for Stream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Plain(io) => Pin::new(io).poll_read(cx, buf),
            Self::Tls(io) => Pin::new(io).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match &mut *self {
            Self::Plain(io) => Pin::new(io).poll_write(cx, buf),
            Self::Tls(io) => Pin::new(io).poll_write(cx, buf),
        }
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Plain(io) => Pin::new(io).poll_flush(cx),
            Self::Tls(io) => Pin::new(io).poll_flush(cx),
        }
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Plain(io) => Pin::new(io).poll_shutdown(cx),
            Self::Tls(io) => Pin::new(io).poll_shutdown(cx),
        }
    }
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut *self {
            Self::Plain(io) => Pin::new(io).poll_write_vectored(cx, bufs),
            Self::Tls(io) => Pin::new(io).poll_write_vectored(cx, bufs),
        }
    }
    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(io) => io.is_write_vectored(),
            Self::Tls(io) => io.is_write_vectored(),
        }
    }
}

impl AsyncRead for Admitted {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let rest = &PREFACE[self.told..];
        if rest.is_empty() {
            return Pin::new(&mut self.io).poll_read(cx, buf);
        }
        let now = rest.len().min(buf.remaining());
        buf.put_slice(&rest[..now]);
        self.told += now;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Admitted {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, bufs)
    }
    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}

/// The admitted connections, until `stop` is cancelled.
pub(crate) fn admitted(
    listener: TcpListener,
    limits: Limits,
    tls: Option<tls::Agent>,
    stop: CancellationToken,
) -> ReceiverStream<io::Result<Admitted>> {
    let (tx, rx) = mpsc::channel(WAITING);
    tokio::spawn(async move {
        let ended = stop.clone();
        tokio::select! {
            () = accept(listener, limits, tls, tx, stop) => {}
            () = ended.cancelled() => {}
        }
    });
    ReceiverStream::new(rx)
}

async fn accept(
    listener: TcpListener,
    limits: Limits,
    tls: Option<tls::Agent>,
    tx: mpsc::Sender<io::Result<Admitted>>,
    stop: CancellationToken,
) {
    let clients = Clients::default();
    let (crowds, refusals) = (Said::default(), Said::default());
    loop {
        let (io, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of descriptors, or the peer has gone already: the next one may work.
                tracing::warn!(%error, "accepting a connection of the node rpc failed");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let Some(place) = clients.enter(peer.ip(), limits) else {
            if crowds.first(peer.ip()) {
                let (client, most) = (peer.ip(), limits.most(peer.ip().to_canonical()));
                tracing::warn!(%client, most, "more connections to the node rpc are closed: \
                    limits.rpc_max_conns_per_client");
            }
            continue;
        };
        // Accepted sockets use Nagle's algorithm by default, and an allocation must not wait for an acknowledgement.
        if let Err(error) = io.set_nodelay(true) {
            tracing::debug!(%error, "a node's socket keeps Nagle's algorithm");
        }
        let (tx, stop, tls, refusals) = (tx.clone(), stop.clone(), tls.clone(), refusals.clone());
        tokio::spawn(async move {
            let begun = tokio::select! {
                begun = begin(io, place, peer, limits.handshake, tls, refusals) => begun,
                () = stop.cancelled() => None,
            };
            if let Some(admitted) = begun {
                // The server has stopped: the connection ends with it.
                let _ = tx.send(Ok(admitted)).await;
            }
        });
    }
}

/// Addresses that a line of the log was about.
#[derive(Clone, Default)]
struct Said(Arc<Mutex<HashMap<IpAddr, tokio::time::Instant>>>);

impl Said {
    /// Whether nothing was said of the address for a while.
    fn first(&self, of: IpAddr) -> bool {
        let mut said = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        said.retain(|_, at| at.elapsed() < SAID_AGAIN);
        said.insert(of, tokio::time::Instant::now()).is_none()
    }
}

/// What a plain node hears from a server with TLS.
const PLAIN: &str = "this server takes connections over TLS only (tls.rpc = true) and the node's connection is plain: \
    set tls { rpc = true } with ca_file, cert_file and key_file on the node";

/// Waits for the handshake and the preface of a connection, and closes one that sends anything else or nothing.
async fn begin(
    io: TcpStream,
    place: Place,
    peer: SocketAddr,
    patience: Option<Duration>,
    tls: Option<tls::Agent>,
    refusals: Said,
) -> Option<Admitted> {
    let begun = async {
        let (mut io, refused, passes_on) = secured(io, peer, tls, &refusals).await?;
        let mut said = [0; PREFACE.len()];
        match io.read_exact(&mut said).await {
            Ok(_) if said == *PREFACE => {
                let peer = Peer { address: Some(peer), refused, passes_on };
                Some(Admitted { io, peer, told: 0, _place: place })
            }
            Ok(_) if said[0] == tls::HANDSHAKE => {
                if refusals.first(peer.ip()) {
                    tracing::warn!(%peer, "a node speaks TLS and this server's node rpc is plain: set tls.rpc at \
                        both ends or at neither");
                }
                None
            }
            Ok(_) => {
                tracing::debug!(%peer, "a connection to the node rpc does not speak HTTP/2");
                None
            }
            Err(error) => {
                tracing::debug!(%peer, %error, "a connection to the node rpc has ended before it began");
                None
            }
        }
    };
    let Some(patience) = patience else { return begun.await };
    tokio::time::timeout(patience, begun).await.unwrap_or_else(|_| {
        tracing::debug!(%peer, "a connection to the node rpc has not begun within limits.rpc_handshake_timeout");
        None
    })
}

/// The connection after the TLS handshake where this agent has TLS, why its node is refused, and whether it may pass
/// calls of nodes on.
async fn secured(
    io: TcpStream,
    peer: SocketAddr,
    tls: Option<tls::Agent>,
    refusals: &Said,
) -> Option<(Stream, Option<Arc<str>>, bool)> {
    let settings = tls.as_ref().map(tls::Agent::settings).filter(|settings| settings.rpc);
    let (Some(tls), Some(settings)) = (tls, settings) else { return Some((Stream::Plain(io), None, true)) };
    let mut first = [0];
    match io.peek(&mut first).await {
        Ok(1) if first[0] == tls::HANDSHAKE => {}
        Ok(1) if settings.rpc_upgrade_mode => return Some((Stream::Plain(io), None, false)),
        Ok(1) => {
            if refusals.first(peer.ip()) {
                tracing::warn!(%peer, "a plain connection to the node rpc was refused: tls.rpc is on");
            }
            return Some((Stream::Plain(io), Some(PLAIN.into()), false));
        }
        _ => return None,
    }
    match tls.accept_rpc(io, peer).await {
        Ok((io, Ok(tls::Member { server }))) => Some((Stream::Tls(Box::new(io)), None, server)),
        Ok((io, Err(tls::Refused(why)))) => {
            if refusals.first(peer.ip()) {
                tracing::warn!(%peer, why, "a node was refused");
            }
            Some((Stream::Tls(Box::new(io)), Some(why.into()), false))
        }
        Err(error) => {
            if refusals.first(peer.ip()) {
                tracing::warn!(%peer, why = tls::why(&error), "a TLS handshake of the node rpc failed");
            }
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_counted_by_address_and_come_back() {
        let clients = Clients::default();
        let limits = Limits { per_client: 2, handshake: None };
        let far: IpAddr = "192.0.2.1".parse().expect("an address");
        let held: Vec<Place> = (0..2).map(|_| clients.enter(far, limits).expect("a place")).collect();
        assert!(
            clients.enter("::ffff:192.0.2.1".parse().expect("an address"), limits).is_none(),
            "the same one in other words"
        );
        assert!(clients.enter("192.0.2.2".parse().expect("an address"), limits).is_some());
        assert!(clients.enter(far, Limits { per_client: 0, ..limits }).is_some(), "0 is no limit");
        drop(held);
        assert!(clients.enter(far, limits).is_some());
        assert!(clients.0.lock().expect("counts").is_empty());
        assert_eq!((limits.most(far), limits.most("127.0.0.9".parse().expect("an address"))), (2, 20));
    }
}

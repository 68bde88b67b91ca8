//! Admission to the node RPC: a limited number of connections per address, each of which must begin with the HTTP/2
//! preface in time.

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
use tonic::transport::server::{Connected, TcpConnectInfo};

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
    /// Time limit for the HTTP/2 preface; `None` = no limit.
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
    io: TcpStream,
    /// Bytes of the preface already returned.
    told: usize,
    _place: Place,
}

impl Connected for Admitted {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        self.io.connect_info()
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
    fn poll_write_vectored(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bufs: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, bufs)
    }
    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}

/// The admitted connections, until `stop` is cancelled.
pub(crate) fn admitted(listener: TcpListener, limits: Limits, stop: CancellationToken) -> ReceiverStream<io::Result<Admitted>> {
    let (tx, rx) = mpsc::channel(WAITING);
    tokio::spawn(async move {
        let ended = stop.clone();
        tokio::select! {
            () = accept(listener, limits, tx, stop) => {}
            () = ended.cancelled() => {}
        }
    });
    ReceiverStream::new(rx)
}

async fn accept(listener: TcpListener, limits: Limits, tx: mpsc::Sender<io::Result<Admitted>>, stop: CancellationToken) {
    let clients = Clients::default();
    let mut said: HashMap<IpAddr, tokio::time::Instant> = HashMap::new();
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
            said.retain(|_, at| at.elapsed() < SAID_AGAIN);
            if said.insert(peer.ip(), tokio::time::Instant::now()).is_none() {
                let (client, most) = (peer.ip(), limits.most(peer.ip().to_canonical()));
                tracing::warn!(%client, most, "more connections to the node rpc are closed: limits.rpc_max_conns_per_client");
            }
            continue;
        };
        // Accepted sockets use Nagle's algorithm by default, and an allocation must not wait for an acknowledgement.
        if let Err(error) = io.set_nodelay(true) {
            tracing::debug!(%error, "a node's socket keeps Nagle's algorithm");
        }
        let (tx, stop) = (tx.clone(), stop.clone());
        tokio::spawn(async move {
            let begun = tokio::select! {
                begun = begin(io, place, peer, limits.handshake) => begun,
                () = stop.cancelled() => None,
            };
            if let Some(admitted) = begun {
                // The server has stopped: the connection ends with it.
                let _ = tx.send(Ok(admitted)).await;
            }
        });
    }
}

/// Waits for the preface of a connection, and closes a connection that sends anything else or nothing.
async fn begin(mut io: TcpStream, place: Place, peer: SocketAddr, patience: Option<Duration>) -> Option<Admitted> {
    let mut said = [0; PREFACE.len()];
    let read = io.read_exact(&mut said);
    let read = match patience {
        Some(patience) => tokio::time::timeout(patience, read).await,
        None => Ok(read.await),
    };
    match read {
        Ok(Ok(_)) if said == *PREFACE => return Some(Admitted { io, told: 0, _place: place }),
        Ok(Ok(_)) => tracing::debug!(%peer, "a connection to the node rpc does not speak HTTP/2"),
        Ok(Err(error)) => tracing::debug!(%peer, %error, "a connection to the node rpc has ended before it began"),
        Err(_) => tracing::debug!(%peer, "a connection to the node rpc has not begun within limits.rpc_handshake_timeout"),
    }
    None
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
        assert!(clients.enter("::ffff:192.0.2.1".parse().expect("an address"), limits).is_none(), "the same one in other words");
        assert!(clients.enter("192.0.2.2".parse().expect("an address"), limits).is_some());
        assert!(clients.enter(far, Limits { per_client: 0, ..limits }).is_some(), "0 is no limit");
        drop(held);
        assert!(clients.enter(far, limits).is_some());
        assert!(clients.0.lock().expect("counts").is_empty());
        assert_eq!((limits.most(far), limits.most("127.0.0.9".parse().expect("an address"))), (2, 20));
    }
}

//! Listening: hyper's HTTP/1.1 with a limit of connections per client, and an orderly end.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    io::AsyncWriteExt,
    net::{TcpListener, TcpStream, UnixListener},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// Limits of a listener.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections of one client address at a time; 0 = as many as it likes.
    pub connections_per_client: usize,
    /// Time for the head of a request to arrive.
    pub header_read_timeout: Duration,
    /// Time that running requests get when the listener ends.
    pub shutdown_grace: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { connections_per_client: 100, header_read_timeout: Duration::from_secs(30), shutdown_grace: Duration::from_secs(2) }
    }
}

const TOO_MANY: &str = "Your IP is issuing too many concurrent connections, please rate limit your calls\n";

/// Open connections by client address.
#[derive(Clone, Default)]
struct Clients(Arc<Mutex<HashMap<IpAddr, usize>>>);

/// One connection; gives its place back when dropped.
struct Place(Clients, IpAddr);

impl Clients {
    fn enter(&self, ip: IpAddr, limit: usize) -> Option<Place> {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let n = open.entry(ip).or_insert(0);
        if limit > 0 && *n >= limit {
            return None;
        }
        *n += 1;
        Some(Place(self.clone(), ip))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(n) = open.get_mut(&self.1) {
            *n -= 1;
            if *n == 0 {
                open.remove(&self.1);
            }
        }
    }
}

/// Serves the router until `stop` is cancelled; then running requests get the limits' grace.
pub async fn serve(listener: TcpListener, router: Router, limits: Limits, stop: CancellationToken) {
    let clients = Clients::default();
    let tasks = TaskTracker::new();
    // Ends connections that outlive the grace.
    let kill = CancellationToken::new();
    loop {
        let (stream, peer) = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok(accepted) => accepted,
                Err(e) => {
                    // Out of descriptors, or the peer has gone already: the next one may work.
                    tracing::warn!(error = %e, "accepting an HTTP connection failed");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            },
            () = stop.cancelled() => break,
        };
        match clients.enter(peer.ip(), limits.connections_per_client) {
            Some(place) => {
                stream.set_nodelay(true).ok();
                tasks.spawn(connection(TokioIo::new(stream), router.clone(), limits, stop.clone(), kill.clone(), Some(place)));
            }
            None => {
                tasks.spawn(refuse(stream));
            }
        }
    }
    finish(&tasks, &kill, limits).await;
}

/// As [`serve`], on a unix socket, without a limit of connections.
pub async fn serve_unix(listener: UnixListener, router: Router, limits: Limits, stop: CancellationToken) {
    let tasks = TaskTracker::new();
    let kill = CancellationToken::new();
    loop {
        let stream = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(e) => {
                    tracing::warn!(error = %e, "accepting an HTTP connection failed");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            },
            () = stop.cancelled() => break,
        };
        tasks.spawn(connection(TokioIo::new(stream), router.clone(), limits, stop.clone(), kill.clone(), None));
    }
    drop(listener);
    finish(&tasks, &kill, limits).await;
}

async fn finish(tasks: &TaskTracker, kill: &CancellationToken, limits: Limits) {
    tasks.close();
    if tokio::time::timeout(limits.shutdown_grace, tasks.wait()).await.is_err() {
        kill.cancel();
        tasks.wait().await;
    }
}

async fn connection<T>(io: T, router: Router, limits: Limits, stop: CancellationToken, kill: CancellationToken, _place: Option<Place>)
where
    T: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
{
    let service = TowerToHyperService::new(router);
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_read_timeout)
        .serve_connection(io, service)
        .with_upgrades();
    let mut served = std::pin::pin!(served);
    let result = tokio::select! {
        result = served.as_mut() => result,
        () = kill.cancelled() => return,
        () = stop.cancelled() => {
            served.as_mut().graceful_shutdown();
            tokio::select! {
                result = served.as_mut() => result,
                () = kill.cancelled() => return,
            }
        }
    };
    if let Err(e) = result {
        // Clients that go away in the middle are an everyday thing.
        tracing::debug!(error = %e, "an HTTP connection ended early");
    }
}

async fn refuse(mut stream: TcpStream) {
    let answer = format!(
        "HTTP/1.1 429 Too Many Requests\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{TOO_MANY}",
        TOO_MANY.len()
    );
    let write = async {
        stream.write_all(answer.as_bytes()).await?;
        stream.shutdown().await
    };
    // A client that does not read its refusal is left alone.
    let _ = tokio::time::timeout(Duration::from_millis(500), write).await;
}

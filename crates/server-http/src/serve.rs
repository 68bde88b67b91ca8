//! Listening: hyper's HTTP/1.1 with a limit of connections per client, and an orderly end.

use std::{
    convert::Infallible,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::Duration,
};

use axum::{Router, body::Body, extract::Request};
use http::{HeaderValue, Response, StatusCode, header::CONTENT_TYPE};
use http_body_util::BodyExt as _;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream, UnixListener},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::ServiceExt as _;

use crate::{
    audit::Peer,
    connections::{Clients, Counted, Held, long, patient},
    limits::Limits,
    request::Sender,
};

/// How much of a request is read that is not looked at.
const UNREAD: u64 = 64 << 10;
const TOO_MANY: &str = "Your IP is issuing too many concurrent connections, please rate limit your calls\n";

/// Serves the router until `stop` is cancelled; then running requests get the limits' grace. With `tls` whose settings
/// say so, a connection must begin with a TLS handshake, and a plain one hears what is wrong.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    limits: Limits,
    tls: Option<tls::Agent>,
    stop: CancellationToken,
) {
    let tls = tls.filter(|tls| tls.settings().http);
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
        match clients.enter(peer.ip(), limits) {
            Some(held) => {
                stream.set_nodelay(true).ok();
                let (router, stop, kill, clients) = (router.clone(), stop.clone(), kill.clone(), clients.clone());
                match tls.clone() {
                    None => tasks.spawn(placed((stream, Some(peer)), router, limits, stop, kill, clients, held)),
                    Some(tls) => tasks.spawn(async move {
                        let place = held.1.clone();
                        let handshake = secured(stream, peer, limits, tls);
                        let secured = tokio::select! {
                            secured = handshake => secured,
                            () = place.close.cancelled() => None,
                            () = stop.cancelled() => None,
                        };
                        let Some(mut stream) = secured else { return };
                        // One whose client has lost its authority ends as if the agent stopped, by itself.
                        let (stop, kill) = (stop.child_token(), kill.child_token());
                        let lost = ends(stream.lost_authority(), stop.clone(), kill.clone(), limits);
                        tokio::select! {
                            () = placed((stream, Some(peer)), router, limits, stop, kill, clients, held) => {}
                            () = lost => {}
                        }
                    }),
                };
            }
            None if tls.is_some() => tracing::debug!(%peer, "a connection was closed: the client has too many"),
            None => {
                tasks.spawn(refuse(stream));
            }
        }
    }
    finish(&tasks, &kill, limits).await;
}

/// What a client hears that speaks plain HTTP where TLS is on.
const PLAIN: &str = "Client sent an HTTP request to an HTTPS server.\n";

/// The connection after its TLS handshake, within the time limit.
async fn secured(
    stream: TcpStream,
    peer: SocketAddr,
    limits: Limits,
    tls: tls::Agent,
) -> Option<tls::Stream<TcpStream>> {
    let handshake = async {
        let mut first = [0];
        match stream.peek(&mut first).await {
            Ok(1) if first[0] == tls::HANDSHAKE => {}
            Ok(1) => {
                tracing::debug!(%peer, "a client speaks plain HTTP where TLS is on");
                answer(stream, StatusCode::BAD_REQUEST, PLAIN).await;
                return None;
            }
            _ => return None,
        }
        match tls.accept_http(stream, peer).await {
            Ok(stream) => Some(stream),
            Err(error) => {
                tracing::debug!(%peer, why = tls::why(&error), "a TLS handshake of the HTTP API failed");
                None
            }
        }
    };
    let Some(patience) = limits.handshake_timeout else { return handshake.await };
    tokio::time::timeout(patience, handshake).await.unwrap_or_else(|_| {
        tracing::debug!(%peer, "a TLS handshake of the HTTP API took longer than limits.https_handshake_timeout");
        None
    })
}

/// All who reach a unix socket are one client.
const BEHIND_SOCKET: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// As [`serve`], on a unix socket, with the limits of one client.
pub async fn serve_unix(listener: UnixListener, router: Router, limits: Limits, stop: CancellationToken) {
    let clients = Clients::default();
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
        match clients.enter(BEHIND_SOCKET, limits) {
            Some(held) => drop(tasks.spawn(placed(
                (stream, None),
                router.clone(),
                limits,
                stop.clone(),
                kill.clone(),
                clients.clone(),
                held,
            ))),
            None => drop(tasks.spawn(refuse(stream))),
        }
    }
    drop(listener);
    finish(&tasks, &kill, limits).await;
}

/// Lets the running request of a connection have the limits' grace once that has happened.
async fn ends(happened: impl Future<Output = ()>, stop: CancellationToken, kill: CancellationToken, limits: Limits) {
    happened.await;
    stop.cancel();
    tokio::time::sleep(limits.shutdown_grace).await;
    kill.cancel();
    std::future::pending().await
}

async fn finish(tasks: &TaskTracker, kill: &CancellationToken, limits: Limits) {
    tasks.close();
    if tokio::time::timeout(limits.shutdown_grace, tasks.wait()).await.is_err() {
        kill.cancel();
        tasks.wait().await;
    }
}

/// A connection that has a place. While no request is in flight on it, it may be ended for somebody else.
async fn placed<T: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    (stream, peer): (T, Option<SocketAddr>),
    router: Router,
    limits: Limits,
    stop: CancellationToken,
    kill: CancellationToken,
    clients: Clients,
    held: Held,
) {
    let place = held.1.clone();
    let own = place.clone();
    let service = hyper::service::service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
        let (router, clients, place) = (router.clone(), clients.clone(), own.clone());
        async move {
            let mut request: Request = request.map(Body::new);
            request.extensions_mut().insert(Sender(place.client()));
            if let Some(peer) = peer {
                request.extensions_mut().insert(Peer(peer));
            }
            let Some(busy) = clients.begin(&place, long(&request), limits) else {
                return Ok::<_, Infallible>(too_many_streams());
            };
            place.is_patient(patient(&request));
            let response = match router.oneshot(request).await {
                Ok(response) => response,
                Err(never) => match never {},
            };
            if response.status() == StatusCode::SWITCHING_PROTOCOLS {
                busy.for_good();
                return Ok(response);
            }
            // In flight until the last of its body has left.
            Ok(response.map(|body| {
                Body::new(body.map_frame(move |frame| {
                    let _busy = &busy;
                    frame
                }))
            }))
        }
    });
    let io = TokioIo::new(Counted::new(stream, held, limits.write_stall_timeout));
    let served = connection(io, service, limits, stop, kill);
    let mut served = std::pin::pin!(served);
    tokio::select! {
        () = served.as_mut() => return,
        () = place.close.cancelled() => {}
    }
    // A request may have begun in the same moment: it is answered.
    if !place.idle() {
        served.await;
    }
}

fn too_many_streams() -> Response<Body> {
    let text = "Your IP has too many streams and blocking queries open; the connections that are left are for short \
        requests\n";
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

async fn connection<T, S>(io: T, service: S, limits: Limits, stop: CancellationToken, kill: CancellationToken)
where
    T: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
    S: hyper::service::Service<hyper::Request<hyper::body::Incoming>, Response = Response<Body>, Error = Infallible>,
{
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

async fn refuse(stream: impl AsyncRead + AsyncWrite + Unpin) {
    answer(stream, StatusCode::TOO_MANY_REQUESTS, TOO_MANY).await;
}

/// Answers without having read a request, and ends the connection.
async fn answer(mut stream: impl AsyncRead + AsyncWrite + Unpin, status: StatusCode, text: &str) {
    let answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {}\r\nConnection: \
            close\r\n\r\n{text}",
        text.len()
    );
    let write = async {
        stream.write_all(answer.as_bytes()).await?;
        stream.shutdown().await?;
        // With unread bytes the system would end the connection before the client has the answer.
        tokio::io::copy(&mut (&mut stream).take(UNREAD), &mut tokio::io::sink()).await
    };
    // A client that does not read its refusal is left alone.
    let _ = tokio::time::timeout(Duration::from_millis(500), write).await;
}

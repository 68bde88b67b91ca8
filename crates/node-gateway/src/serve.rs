//! The RPC service that nodes connect to.

use std::{
    convert::Infallible,
    io,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use api::node_rpc::node_service_server::SERVICE_NAME;
use bytes::Bytes;
use futures::{Stream, StreamExt as _};
use http::{HeaderValue, header::CONTENT_TYPE};
use http_body_util::StreamBody;
use hyper::body::Frame;
use tokio::{
    io::{AsyncRead, AsyncWrite, DuplexStream},
    net::TcpListener,
    sync::mpsc,
};
use tokio_stream::wrappers::{ReceiverStream, UnboundedReceiverStream};
use tokio_util::sync::CancellationToken;
use tonic::{Status, body::Body, metadata::GRPC_CONTENT_TYPE, server::NamedService, transport::server::Connected};

use crate::{
    credentials::Credentials,
    gateway::Gateway,
    incoming::{self, Peer},
    messages::{self, Messages, Sender},
    relay, session,
};

/// Messages to a node in the queue of its connection. A slow node gets its changes later, in larger pieces.
const QUEUED_MESSAGES: usize = 16;

/// After the goodbye a node closes its connection itself. The server waits for one that hangs at most this long.
const LETTING_GO: Duration = Duration::from_secs(1);

/// A peer that says nothing for so long is asked whether it lives, and has as long to answer.
pub(crate) const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// Connections that come from elsewhere than a listener: nodes in the same process.
pub type Connections = mpsc::UnboundedReceiver<DuplexStream>;

/// The service. It answers its one call itself, without generated code, whose streams keep buffers; see `messages`.
#[derive(Clone, Debug)]
struct Service {
    gateway: Arc<Gateway>,
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
            let refused = Status::unimplemented(format!(
                "this server has no call {path}; the node probably runs a newer release"
            ));
            return std::future::ready(Ok(refused.into_http()));
        }
        let peer = request.extensions().get::<Peer>().cloned().unwrap_or_default();
        if let Some(why) = peer.refused {
            return std::future::ready(Ok(Status::unauthenticated(&*why).into_http()));
        }
        let peer = relay::node_address(request.headers(), &peer);
        let credentials = match Credentials::of(&self.gateway, request.headers()) {
            Ok(credentials) => credentials,
            Err(why) => {
                tracing::warn!(peer = ?peer, "a node with neither this cluster's join secret nor a valid token was \
                    refused");
                return std::future::ready(Ok(Status::unauthenticated(why).into_http()));
            }
        };
        let (tx, rx) = tokio::sync::mpsc::channel::<Box<[u8]>>(QUEUED_MESSAGES);
        let backend = &self.gateway.backend;
        backend.awaits_connection();
        let to = Sender { queue: tx, compresses: messages::takes_compressed(request.headers()) };
        let compresses = to.compresses;
        let from = Messages::new(request.into_body());
        backend.spawn(Box::pin(session::run(self.gateway.clone(), from, to, peer, Box::new(credentials))));
        let messages = ReceiverStream::new(rx).map(|message| Frame::data(Bytes::from(message)));
        let end = futures::stream::once(async {
            Frame::trailers([(Status::GRPC_STATUS, HeaderValue::from_static("0"))].into_iter().collect())
        });
        let mut response = http::Response::new(Body::new(StreamBody::new(messages.chain(end).map(Ok::<_, Status>))));
        response.headers_mut().insert(CONTENT_TYPE, GRPC_CONTENT_TYPE);
        if compresses {
            // Of those messages whose header says so.
            response.headers_mut().insert("grpc-encoding", HeaderValue::from_static("gzip"));
        }
        std::future::ready(Ok(response))
    }
}

/// Serves the node RPC until the server stops.
pub async fn serve(gateway: Arc<Gateway>, listener: TcpListener) {
    let settings = &gateway.settings;
    let incoming = incoming::admitted(listener, settings.limits, settings.tls.clone(), gateway.stopping.clone());
    serve_incoming(gateway, incoming).await;
}

/// As [`serve`], on connections from elsewhere.
pub async fn serve_connections(gateway: Arc<Gateway>, connections: Connections) {
    serve_incoming(gateway, UnboundedReceiverStream::new(connections).map(Ok)).await;
}

async fn serve_incoming<I, IO>(gateway: Arc<Gateway>, incoming: I)
where
    I: Stream<Item = io::Result<IO>>,
    IO: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
{
    let stopping = gateway.stopping.clone();
    gateway.backend.awaits_connection();
    serve_calls(Service { gateway }, incoming, stopping).await;
}

/// Serves a service of nodes on these connections until `stopping` is cancelled. Connections that are not closed a
/// second later are dropped.
pub(crate) async fn serve_calls<S, I, IO>(service: S, incoming: I, stopping: CancellationToken)
where
    S: tower::Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible>,
    S: NamedService + Clone + Send + Sync + 'static,
    S::Future: Send + 'static,
    I: Stream<Item = io::Result<IO>>,
    IO: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
{
    let serving = tonic::transport::Server::builder()
        .http2_keepalive_interval(Some(KEEP_ALIVE))
        .http2_keepalive_timeout(Some(KEEP_ALIVE))
        // Sessions of one connection are those of many nodes where another server passes them on. One that is not read
        // must not hold up the others: together they fit into the window of the connection.
        .max_concurrent_streams(relay::STREAMS)
        .initial_stream_window_size(relay::WINDOW)
        .initial_connection_window_size(relay::WINDOW * relay::STREAMS)
        // While a server stands still, nodes behind another one come and go: no attack of that one.
        .http2_max_pending_accept_reset_streams(Some(relay::GIVEN_UP))
        .add_service(service)
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

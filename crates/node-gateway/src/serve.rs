//! The RPC service that nodes connect to.

use std::{
    convert::Infallible,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use api::node_rpc::node_service_server::SERVICE_NAME;
use bytes::Bytes;
use futures::StreamExt as _;
use http::{HeaderValue, header::CONTENT_TYPE};
use http_body_util::StreamBody;
use hyper::body::Frame;
use tokio::net::TcpListener;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, body::Body, metadata::GRPC_CONTENT_TYPE, server::NamedService, transport::server::TcpConnectInfo};

use crate::{gateway::Gateway, incoming, messages::Messages, session};

/// Messages to a node in the queue of its connection. A slow node gets its changes later, in larger pieces.
const QUEUED_MESSAGES: usize = 16;

/// After the goodbye a node closes its connection itself. The server waits for one that hangs at most this long.
const LETTING_GO: Duration = Duration::from_secs(1);

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
            let refused = Status::unimplemented(format!("this server has no call {path}; the node probably runs a newer release"));
            return std::future::ready(Ok(refused.into_http()));
        }
        let peer = request.extensions().get::<TcpConnectInfo>().and_then(TcpConnectInfo::remote_addr);
        if let Some(Err(why)) = self.gateway.settings.join.as_ref().map(|join| join.admit(request.headers())) {
            tracing::warn!(peer = ?peer, "a node without this cluster's join secret was refused");
            return std::future::ready(Ok(Status::unauthenticated(why).into_http()));
        }
        let (tx, rx) = tokio::sync::mpsc::channel::<Box<[u8]>>(QUEUED_MESSAGES);
        let backend = &self.gateway.backend;
        backend.awaits_connection();
        backend.spawn(Box::pin(session::run(self.gateway.clone(), Messages::new(request.into_body()), tx, peer)));
        let messages = ReceiverStream::new(rx).map(|message| Frame::data(Bytes::from(message)));
        let end =
            futures::stream::once(async { Frame::trailers([(Status::GRPC_STATUS, HeaderValue::from_static("0"))].into_iter().collect()) });
        let mut response = http::Response::new(Body::new(StreamBody::new(messages.chain(end).map(Ok::<_, Status>))));
        response.headers_mut().insert(CONTENT_TYPE, GRPC_CONTENT_TYPE);
        std::future::ready(Ok(response))
    }
}

/// Serves the node RPC until the server stops.
pub async fn serve(gateway: Arc<Gateway>, listener: TcpListener) {
    let stopping = gateway.stopping.clone();
    gateway.backend.awaits_connection();
    let incoming = incoming::admitted(listener, gateway.settings.limits, stopping.clone());
    let serving = tonic::transport::Server::builder()
        .http2_keepalive_interval(Some(Duration::from_secs(10)))
        .http2_keepalive_timeout(Some(Duration::from_secs(10)))
        .add_service(Service { gateway })
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

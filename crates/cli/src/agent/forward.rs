//! The HTTP API of an agent that is only a node: its own client endpoints, and everything else by the server that it talks to.

use std::sync::Arc;

use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    response::{IntoResponse, Response},
};
use client::ClientHandle;
use http::{StatusCode, Uri, header::HOST};
use hyper_util::{client::legacy::Client as HttpClient, client::legacy::connect::HttpConnector, rt::TokioExecutor};

struct Forward {
    node: ClientHandle,
    http: HttpClient<HttpConnector, Body>,
}

/// The router.
pub(crate) fn router(node: ClientHandle) -> Router {
    let state = Arc::new(Forward { node: node.clone(), http: HttpClient::builder(TokioExecutor::new()).build_http() });
    client::http::router(node).fallback_service(Router::new().fallback(forward).with_state(state))
}

fn refused(status: StatusCode, text: String) -> Response {
    (status, text).into_response()
}

async fn forward(State(state): State<Arc<Forward>>, mut request: Request) -> Response {
    let Some(server) = state.node.server_http() else {
        return refused(StatusCode::INTERNAL_SERVER_ERROR, "No cluster leader: this node has no session with a server now".into());
    };
    let path = request.uri().path_and_query().map_or("/", |p| p.as_str()).to_owned();
    let uri: Uri = match format!("http://{server}{path}").parse() {
        Ok(uri) => uri,
        Err(error) => {
            return refused(StatusCode::INTERNAL_SERVER_ERROR, format!("cannot forward to the server at {server:?}: {error}"));
        }
    };
    *request.uri_mut() = uri;
    request.headers_mut().remove(HOST);
    match state.http.request(request).await {
        Ok(response) => response.map(Body::new),
        Err(error) => refused(StatusCode::INTERNAL_SERVER_ERROR, format!("cannot reach the server at {server}: {error}")),
    }
}

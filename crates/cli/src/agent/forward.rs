//! The HTTP API of an agent that is only a node: its own client endpoints, and everything else by the server that it talks to, which knows the
//! node of every allocation.

use std::{collections::HashMap, sync::Arc};

use api::client::tunnel;
use axum::{
    Router,
    body::Body,
    extract::{Query, Request, State},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::get,
};
use client::ClientHandle;
use http::{
    StatusCode, Uri,
    header::{CONTENT_TYPE, HOST, UPGRADE},
};
use hyper_util::{client::legacy::Client as HttpClient, client::legacy::connect::HttpConnector, rt::TokioExecutor};
use model::AllocId;

struct Forward {
    node: ClientHandle,
    http: HttpClient<HttpConnector, Body>,
}

/// The router; `prometheus` says whether metrics are told in that format, too.
pub(crate) fn router(node: ClientHandle, prometheus: bool) -> Router {
    let state = Arc::new(Forward { node: node.clone(), http: HttpClient::builder(TokioExecutor::new()).build_http() });
    let measured = node.clone();
    // An agent's metrics are its own: whoever collects them asks every agent.
    let metrics = move |Query(query): Query<HashMap<String, String>>| async move {
        let format = query.get("format").map(String::as_str).unwrap_or_default();
        match server::http::metrics_of_node(measured.metrics(), format, prometheus) {
            Ok((kind, body)) => ([(CONTENT_TYPE, kind)], body).into_response(),
            Err((status, why)) => refused(status, why),
        }
    };
    client::http::router(node)
        .route("/v1/metrics", get(metrics))
        .layer(middleware::from_fn_with_state(state.clone(), elsewhere))
        .fallback_service(Router::new().fallback(forward).with_state(state))
}

/// The client endpoints of allocations that are not here.
async fn elsewhere(State(state): State<Arc<Forward>>, request: Request, next: Next) -> Response {
    match alloc_of(request.uri().path()) {
        Some(alloc) if !state.node.has_alloc(alloc) => forward(State(state), request).await,
        _ => next.run(request).await,
    }
}

/// The allocation that the path of a client endpoint names.
fn alloc_of(path: &str) -> Option<AllocId> {
    let rest = path.strip_prefix("/v1/client/")?;
    let mut parts = rest.split('/');
    match parts.next()? {
        "fs" => parts.nth(1)?.parse().ok(),
        "allocation" => parts.next()?.parse().ok(),
        _ => None,
    }
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
    let upgrade = request.extensions_mut().remove().filter(|_| request.headers().contains_key(UPGRADE));
    match state.http.request(request).await {
        Ok(mut response) => {
            if let Some(upgrade) = upgrade.filter(|_| response.status() == StatusCode::SWITCHING_PROTOCOLS) {
                tunnel(upgrade, &mut response);
                return response.map(|_| Body::empty());
            }
            response.map(Body::new)
        }
        Err(error) => refused(StatusCode::INTERNAL_SERVER_ERROR, format!("cannot reach the server at {server}: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::alloc_of;

    #[test]
    fn the_allocation_of_a_client_endpoint() {
        let id = "5c3c2f5a-9a3e-4b0e-8e55-0a6a3c1f2d11";
        for (path, found) in [
            (format!("/v1/client/fs/logs/{id}"), true),
            (format!("/v1/client/fs/ls/{id}"), true),
            (format!("/v1/client/allocation/{id}/exec"), true),
            ("/v1/client/allocation/nonsense/exec".to_owned(), false),
            ("/v1/client/stats".to_owned(), false),
            (format!("/v1/allocation/{id}"), false),
        ] {
            assert_eq!(alloc_of(&path).map(|a| a.to_string()), found.then(|| id.to_owned()), "{path}");
        }
    }
}

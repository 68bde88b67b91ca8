//! The HTTP API of an agent that is only a node: what is about this agent and its node is answered here, everything
//! else by the server that it talks to, which knows the node of every allocation and the address of every node.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use api::{
    client::tunnel,
    shapes::{AgentSelf, Health, HealthPart},
};
use axum::{
    Router,
    body::Body,
    extract::{Query, Request, State},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{get, put},
};
use client::ClientHandle;
use http::{
    HeaderName, HeaderValue, Method, StatusCode, Uri,
    header::{CONTENT_TYPE, HOST, ORIGIN, UPGRADE},
};
use hyper_util::{client::legacy::Client as HttpClient, client::legacy::connect::HttpConnector, rt::TokioExecutor};
use model::AllocId;
use serde_json::Value;
use server_http::{Guard, MonitorQuery};

/// On requests that a node has passed on: one that comes back was sent to the wrong address, and is not sent round
/// again.
const PASSED_ON: &str = "x-drover-passed-on";
/// Largest body that is looked into for the node that it names.
const BODY_MAX: usize = 1 << 20;

/// What the agent knows besides its node.
pub(crate) struct Front {
    /// Metrics are told in Prometheus' format, too.
    pub(crate) prometheus: bool,
    /// The agent's settings for `/v1/agent/self`.
    pub(crate) config: Value,
    /// Put on every answer.
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
    /// Whom the API answers.
    pub(crate) guard: Guard,
    /// Reads the configuration again.
    pub(crate) reload: server_http::Reload,
    /// What a person should know of who can reach this agent; None = nobody but this machine.
    pub(crate) exposed: Option<String>,
    /// Follows the agent's log.
    pub(crate) follow_log: server_http::FollowLog,
}

/// The agent's log, of this node unless another one or a server is named.
const MONITOR: &str = "/v1/agent/monitor";

struct Forward {
    node: ClientHandle,
    http: HttpClient<HttpConnector, Body>,
}

/// The router.
pub(crate) fn router(node: ClientHandle, front: Front) -> Router {
    let state = Arc::new(Forward { node: node.clone(), http: HttpClient::builder(TokioExecutor::new()).build_http() });
    let (measured, prometheus) = (node.clone(), front.prometheus);
    // An agent's metrics are its own: whoever collects them asks every agent.
    let metrics = move |Query(query): Query<HashMap<String, String>>| async move {
        let format = query.get("format").map(String::as_str).unwrap_or_default();
        match server_http::metrics_of_node(measured.metrics(), format, prometheus) {
            Ok((kind, body)) => ([(CONTENT_TYPE, kind)], body).into_response(),
            Err((status, why)) => refused(status, why),
        }
    };
    let (described, config) = (node.clone(), Arc::new(front.config));
    let agent_self = move || {
        let answer = about_itself(&described, &config);
        async move { axum::Json(answer) }
    };
    let asked = node.clone();
    let exposed = front.exposed;
    let health = move |Query(query): Query<HashMap<String, String>>| async move {
        let kind = query.get("type").map(String::as_str).unwrap_or_default();
        health(kind, asked.connected(), asked.lease_held(), asked.disagrees(), exposed)
    };
    let follow = front.follow_log;
    let monitor = move |uri: Uri| async move {
        let query = api::query::Query::parse(uri.query().unwrap_or_default()).map_err(|e| e.to_string());
        match query.and_then(|query| MonitorQuery::parse(&query)) {
            Err(why) => refused(StatusCode::BAD_REQUEST, why),
            Ok(asked) => asked.answer(&follow).unwrap_or_else(|why| refused(StatusCode::TOO_MANY_REQUESTS, why)),
        }
    };
    let known = node.clone();
    let servers = move || async move { axum::Json(known.servers()) };
    let again = front.reload;
    let reload = move || async move {
        match again().await {
            Ok(()) => StatusCode::OK.into_response(),
            Err(why) => refused(StatusCode::INTERNAL_SERVER_ERROR, why),
        }
    };
    let routes = client::http::router(node)
        .route("/v1/agent/reload", put(reload.clone()).post(reload))
        .route("/v1/metrics", get(metrics))
        .route("/v1/agent/self", get(agent_self))
        .route("/v1/agent/health", get(health))
        .route("/v1/agent/monitor", get(monitor))
        .route("/v1/agent/servers", get(servers))
        .layer(middleware::from_fn_with_state(state.clone(), elsewhere))
        .fallback_service(Router::new().fallback(forward).with_state(state));
    server_http::as_every_answer(routes, front.headers, front.guard)
}

/// `GET /v1/agent/self`: this agent, not the server that it talks to. It is no member of anything.
fn about_itself(node: &ClientHandle, config: &Value) -> AgentSelf {
    let mut client = node.stats();
    client.insert("node_id".to_owned(), node.node_id().to_string());
    AgentSelf { config: config.clone(), stats: BTreeMap::from([("client".to_owned(), client)]), ..AgentSelf::default() }
}

/// `GET /v1/agent/health`, from whether the node has its servers' lease and follows them.
fn health(kind: &str, connected: bool, lease: bool, disagrees: Option<String>, exposed: Option<String>) -> Response {
    let notes: Vec<String> = exposed.into_iter().collect();
    let part =
        |ok: bool, message: &str| Some(HealthPart { ok, message: message.to_owned(), notes: notes.clone(), ..HealthPart::default() });
    let client = match (disagrees, connected, lease) {
        (Some(why), ..) => part(false, &why),
        (None, true, true) => part(true, "ok"),
        (None, true, false) => part(false, "the node holds no lease"),
        (None, false, _) => part(false, "the node has no session with a server"),
    };
    let health = match kind {
        "" | "client" => Health { client, ..Health::default() },
        "server" => Health { server: part(false, "server not enabled"), ..Health::default() },
        _ => return refused(StatusCode::BAD_REQUEST, format!("unknown type {kind:?}: use server or client")),
    };
    let ok = health.server.iter().chain(&health.client).all(|part| part.ok);
    let status = if ok { StatusCode::OK } else { StatusCode::INTERNAL_SERVER_ERROR };
    (status, axum::Json(health)).into_response()
}

/// The client endpoints of allocations that are not here, and those of other nodes.
async fn elsewhere(State(state): State<Arc<Forward>>, request: Request, next: Next) -> Response {
    let path = request.uri().path();
    if let Some(alloc) = alloc_of(path) {
        return if state.node.has_alloc(alloc) { next.run(request).await } else { forward(State(state), request).await };
    }
    if path == MONITOR && names_a_server(request.uri().query().unwrap_or_default()) {
        return forward(State(state), request).await;
    }
    if !of_a_node(path) {
        return next.run(request).await;
    }
    let (request, named) = match named_node(request).await {
        Ok(found) => found,
        Err(why) => return refused(StatusCode::BAD_REQUEST, why),
    };
    let own = state.node.node_id().to_string();
    match named {
        Some(named) if !named.eq_ignore_ascii_case(&own) => {
            if request.headers().contains_key(PASSED_ON) {
                let why = format!("No path to node: the address that node {named} advertises is that of node {own}");
                return refused(StatusCode::INTERNAL_SERVER_ERROR, why);
            }
            forward(State(state), request).await
        }
        _ => next.run(request).await,
    }
}

/// Endpoints that mean a node as a whole.
fn of_a_node(path: &str) -> bool {
    path == MONITOR
        || ["stats", "gc", "metadata", "audit", "drivers/reload"].iter().any(|name| path.strip_prefix("/v1/client/") == Some(name))
}

/// Whose log is asked for; stock clients send the name also where it is empty.
fn names_a_server(query: &str) -> bool {
    api::query::Query::parse(query).is_ok_and(|query| !query.text("server_id").is_empty())
}

/// The node that a request names: in its query, or as a write of metadata does, in its body.
async fn named_node(request: Request) -> Result<(Request, Option<String>), String> {
    #[derive(Default, serde::Deserialize)]
    #[serde(default)]
    struct Target {
        #[serde(rename = "NodeID")]
        node_id: String,
    }
    let query = api::query::Query::parse(request.uri().query().unwrap_or_default()).map_err(|e| e.to_string())?;
    let named = query.text("node_id");
    if !named.is_empty() {
        let named = named.to_owned();
        return Ok((request, Some(named)));
    }
    if !request.uri().path().ends_with("/metadata") || request.method() == Method::GET {
        return Ok((request, None));
    }
    let (head, body) = request.into_parts();
    let bytes = axum::body::to_bytes(body, BODY_MAX).await.map_err(|e| format!("the request's body cannot be read: {e}"))?;
    // What cannot be read names nobody; the endpoint says what is wrong with it.
    let named = api::go_json::from_slice::<Target>(&bytes).map(|target| target.node_id).unwrap_or_default();
    Ok((Request::from_parts(head, Body::from(bytes)), Some(named).filter(|named| !named.is_empty())))
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
    // This agent has looked at where the request comes from; for the server it comes from here.
    for name in [HOST, ORIGIN, HeaderName::from_static("sec-fetch-site")] {
        request.headers_mut().remove(name);
    }
    request.headers_mut().insert(PASSED_ON, HeaderValue::from_static("1"));
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
    use axum::{body::Body, extract::Request};
    use http::StatusCode;

    use super::{alloc_of, health, named_node, names_a_server, of_a_node};

    #[tokio::test]
    async fn the_node_that_a_request_names() {
        for (method, uri, body, named) in [
            ("GET", "/v1/client/stats", "", None),
            ("GET", "/v1/client/stats?node_id=abc", "", Some("abc")),
            ("PUT", "/v1/client/metadata", r#"{"NodeID":"abc","Meta":{"k":"v"}}"#, Some("abc")),
            ("PUT", "/v1/client/metadata?node_id=q", r#"{"NodeID":"abc"}"#, Some("q")),
            ("PUT", "/v1/client/metadata", "nonsense", None),
            ("GET", "/v1/client/metadata", r#"{"NodeID":"abc"}"#, None),
            ("PUT", "/v1/client/gc", r#"{"NodeID":"abc"}"#, None),
        ] {
            let request = Request::builder().method(method).uri(uri).body(Body::from(body)).expect("a request");
            let (request, found) = named_node(request).await.expect("readable");
            assert_eq!(found.as_deref(), named, "{method} {uri} {body}");
            let kept = axum::body::to_bytes(request.into_body(), 1 << 20).await.expect("a body");
            assert_eq!(kept, body, "the body is passed on as it came");
        }
        assert!(names_a_server("node_id=&server_id=leader") && !names_a_server("node_id=&server_id="));
        assert!(of_a_node("/v1/client/drivers/reload") && !of_a_node("/v1/client/fs/ls/x") && !of_a_node("/v1/jobs"));
    }

    #[test]
    fn health_is_that_of_this_agent() {
        for (kind, connected, lease, status) in [
            ("", true, true, StatusCode::OK),
            ("client", true, true, StatusCode::OK),
            ("client", false, true, StatusCode::INTERNAL_SERVER_ERROR),
            ("", true, false, StatusCode::INTERNAL_SERVER_ERROR),
            ("server", true, true, StatusCode::INTERNAL_SERVER_ERROR),
            ("both", true, true, StatusCode::BAD_REQUEST),
        ] {
            assert_eq!(health(kind, connected, lease, None, None).status(), status, "{kind:?} {connected} {lease}");
        }
        let elsewhere = Some("this node belongs to another cluster".to_owned());
        assert_eq!(health("", true, true, elsewhere, None).status(), StatusCode::INTERNAL_SERVER_ERROR, "whose word does not count");
    }

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

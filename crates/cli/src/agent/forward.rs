//! The HTTP API of an agent that is only a node, or a server that does not lead: what is about this agent and its node
//! is answered here, everything else by the server that leads, which knows the node of every allocation and the address
//! of every node.

use std::{collections::HashMap, sync::Arc, time::Duration};

use api::{
    client::tunnel,
    pass,
    shapes::{AclCaller, AclExplainRequest, AclExplanation, AgentSelf, Health, HealthPart},
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
    HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri,
    header::{AUTHORIZATION, CONTENT_TYPE, HOST, ORIGIN, UPGRADE},
};
use hyper::body::Incoming;
use model::AllocId;
use serde_json::Value;
use server::Relay;
use server_http::{Audit, Guard, MonitorQuery};
use store::Member;
use tokio::{sync::watch, time::Instant};
use tower::ServiceExt as _;

use super::{
    follow_state::{Answers, Stale},
    to_server::{self, ToServer, Unsent},
};

/// On requests that an agent has passed on, how often: one that comes back was sent to the wrong address, and is not
/// sent round again.
const PASSED_ON: &str = "x-drover-passed-on";
/// From a node to a server that no longer leads, and from there to the one that does.
const PASSED_ON_MOST: u32 = 2;
/// Largest body that is looked into for the node that it names.
const BODY_MAX: usize = 1 << 20;

fn now_s() -> i64 {
    jiff::Timestamp::now().as_second()
}

/// What the agent knows besides its node.
pub(crate) struct Front {
    /// The agent's configuration says that the cluster has ACLs.
    pub(crate) acl: bool,
    /// Of a server that does not lead: who does. None = the agent is a node alone, whose session says it.
    pub(crate) leader: Option<watch::Receiver<Option<Member>>>,
    /// Of such a server: what passes sessions of nodes on.
    pub(crate) relay: Option<Arc<Relay>>,
    /// Certificates of the agent; None = no TLS.
    pub(crate) tls: Option<tls::Agent>,
    /// TLS to the shared store; None = it is plain, or there is none.
    pub(crate) store_tls: Option<tls::Service>,
    /// Metrics are told in Prometheus' format, too.
    pub(crate) prometheus: bool,
    /// The agent's settings for `/v1/agent/self`.
    pub(crate) config: Value,
    /// Put on every answer.
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
    /// Whom the API answers.
    pub(crate) guard: Guard,
    /// Who is told of the requests that are answered here.
    pub(crate) audit: Option<Audit>,
    /// Reads the configuration again.
    pub(crate) reload: server_http::Reload,
    /// What a person should know of who can reach this agent; None = nobody but this machine.
    pub(crate) exposed: Option<String>,
    /// Follows the agent's log.
    pub(crate) follow_log: server_http::FollowLog,
    /// What answers stale reads here.
    pub(crate) stale: Stale,
}

/// The agent's log, of this node unless another one or a server is named.
const MONITOR: &str = "/v1/agent/monitor";

/// While no server leads, while a node has no session, and while the server that led cannot be reached, the next one
/// is usually a matter of seconds: requests wait for it for so long. A stock agent holds them as long
/// (`RPCHoldTimeout`, read, not measured).
const HOLD: Duration = Duration::from_secs(5);
/// Between two looks for a node's session.
const LOOK: Duration = Duration::from_millis(20);
/// Between two attempts to send a request.
const AGAIN: Duration = Duration::from_millis(100);

/// What everybody may ask.
const OPEN: &[&str] = &["/v1/metrics", "/v1/agent/health"];

struct Forward {
    /// The agent's configuration says that the cluster has ACLs.
    acl: bool,
    node: Option<ClientHandle>,
    leader: Option<watch::Receiver<Option<Member>>>,
    http: ToServer,
    stale: Stale,
    /// How long a request waits for a server that takes it.
    hold: Duration,
}

impl Forward {
    /// The HTTP API of the server that leads. Waits for one until then. Cancel safe.
    async fn server(&self, until: Instant) -> Result<String, &'static str> {
        if let Some(leader) = &self.leader {
            let (mut leader, why) = (leader.clone(), "no server leads now");
            let leads = tokio::time::timeout_at(until, leader.wait_for(Option::is_some)).await;
            let leads = leads.map_err(|_| why)?.map_err(|_| why)?;
            return leads.as_ref().map(|leader| leader.http.clone()).ok_or(why);
        }
        let why = "this node has no session with a server now";
        let node = self.node.as_ref().ok_or(why)?;
        let session = async {
            loop {
                if let Some(server) = node.server_http() {
                    return server;
                }
                tokio::time::sleep(LOOK).await;
            }
        };
        tokio::time::timeout_at(until, session).await.map_err(|_| why)
    }
}

impl Forward {
    /// Whether requests need rights.
    fn acl(&self) -> bool {
        self.acl || self.node.as_ref().is_some_and(ClientHandle::acl)
    }

    /// Whether a server has decided this request; who sends it, as that server says. One of an earlier release says
    /// nothing of that.
    fn vouched(&self, request: &Request) -> Option<AclCaller> {
        let shown = |name| request.headers().get(name).and_then(|shown: &HeaderValue| shown.to_str().ok());
        let (node, pass) = (self.node.as_ref()?.node(), shown(pass::PASS)?);
        let (secret, now, method) = (node.secret_id.reveal(), now_s(), request.method());
        let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
        let caller = || pass::caller_of(secret, now, method, path, shown(pass::CALLER)?);
        pass::admits(secret, now, method, path, pass).then(|| caller().unwrap_or_default())
    }

    /// Has a request that names no node name this one, which is what its sender means.
    fn name_this_node(&self, request: &mut Request) -> Result<(), String> {
        let (uri, Some(node)) = (request.uri(), &self.node) else { return Ok(()) };
        if !of_a_node(uri.path()) || names_a_server(uri.query().unwrap_or_default()) {
            return Ok(());
        }
        let query = api::query::Query::parse(uri.query().unwrap_or_default()).map_err(|e| e.to_string())?;
        if !query.text("node_id").is_empty() {
            return Ok(());
        }
        let text = uri.to_string();
        let between = if uri.query().is_some() { '&' } else { '?' };
        *request.uri_mut() = format!("{text}{between}node_id={}", node.node_id())
            .parse()
            .map_err(|error| format!("the path cannot be read: {error}"))?;
        Ok(())
    }

    /// Asks the servers whether the sender of a request about this agent may send it, and who that is.
    async fn ask(self: Arc<Self>, method: Method, uri: Uri, headers: HeaderMap) -> Result<AclCaller, Box<Response>> {
        let path = uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
        let asked = AclExplainRequest { method: method.to_string(), path, token: String::new() };
        let body = api::go_json::to_vec(&asked, false).unwrap_or_default();
        let mut question = Request::new(Body::from(body));
        *question.method_mut() = Method::PUT;
        *question.uri_mut() = Uri::from_static("/v1/acl/explain");
        for name in [AUTHORIZATION, HeaderName::from_static("x-nomad-token")] {
            if let Some(value) = headers.get(&name) {
                question.headers_mut().insert(name, value.clone());
            }
        }
        let answer = forward(State(self), question).await;
        if !answer.status().is_success() {
            return Err(Box::new(answer));
        }
        let bytes = axum::body::to_bytes(answer.into_body(), BODY_MAX).await.unwrap_or_default();
        match api::go_json::from_slice::<AclExplanation>(&bytes) {
            Ok(said) if said.allowed => Ok(said.caller),
            _ => Err(Box::new(refused(StatusCode::FORBIDDEN, "Permission denied".to_owned()))),
        }
    }

    /// Resolves when this server leads no longer. Never for a node alone, whose session says it.
    async fn led_by_another(&self, server: &str) {
        let Some(mut leader) = self.leader.clone() else { return std::future::pending().await };
        let gone = leader.wait_for(|now| now.as_ref().is_none_or(|now| now.http != server)).await.is_ok();
        if !gone {
            std::future::pending::<()>().await;
        }
    }

    /// The answer of this server to a request.
    async fn sent(&self, server: &str, request: Request) -> Result<http::Response<Incoming>, Unanswered> {
        let answer = tokio::select! {
            answer = self.http.request(request) => answer,
            () = self.led_by_another(server) => {
                let why = "the server that led has not answered, and leads no longer".to_owned();
                return Err(Unanswered { why, had_no_effect: false });
            }
        };
        answer.map_err(|error| {
            let why = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
            let had_no_effect = error.is_connect();
            let what = if had_no_effect { "cannot be reached" } else { "has not answered" };
            Unanswered { why: format!("the server at {server} {what}: {why}"), had_no_effect }
        })
    }
}

/// The router.
pub(crate) fn router(node: Option<ClientHandle>, front: Front) -> Router {
    let (tls, store_tls) = (front.tls, front.store_tls);
    let dialer = tls.as_ref().map(|tls| tls.dialer(tls::Peer::Server));
    let leader = front.leader;
    let (http, stale) = (to_server::client(dialer), front.stale);
    let state =
        Arc::new(Forward { acl: front.acl, node: node.clone(), leader: leader.clone(), http, stale, hold: HOLD });
    let (measured, prometheus, relay) = (node.clone(), front.prometheus, front.relay);
    let (audit, counted) = (front.audit.clone(), front.audit);
    // An agent's metrics are its own: whoever collects them asks every agent.
    let metrics = move |Query(query): Query<HashMap<String, String>>| async move {
        let format = query.get("format").map(String::as_str).unwrap_or_default();
        let of_node = match &measured {
            Some(node) => node.metrics().await,
            None => Vec::new(),
        };
        let of_relay = relay.iter().map(|relay| server_http::metric_of_relay(relay.sessions()));
        let of_tls = server_http::metrics_of_tls(tls.as_ref(), store_tls.as_ref());
        let gauges = of_node.into_iter().chain(of_relay).chain(of_tls);
        let gauges = gauges.chain(server_http::metrics_of_audit(counted.as_ref())).collect();
        match server_http::metrics_of_node(gauges, format, prometheus) {
            Ok((kind, body)) => ([(CONTENT_TYPE, kind)], body).into_response(),
            Err((status, why)) => refused(status, why),
        }
    };
    let (described, config) = (node.clone(), Arc::new(front.config));
    let agent_self = move || {
        let answer = about_itself(described.as_ref(), &config);
        async move { axum::Json(answer) }
    };
    let asked = node.clone();
    let exposed = front.exposed;
    let health = move |Query(query): Query<HashMap<String, String>>| async move {
        let kind = query.get("type").map(String::as_str).unwrap_or_default();
        let server = leader.map(|leader| leader.borrow().is_some());
        let node = asked.map(|node| (node.connected(), node.lease_held(), node.disagrees()));
        health(kind, server, node, exposed)
    };
    let follow = front.follow_log;
    let monitor = move |uri: Uri| async move {
        let query = api::query::Query::parse(uri.query().unwrap_or_default()).map_err(|e| e.to_string());
        match query.and_then(|query| MonitorQuery::parse(&query)) {
            Err(why) => refused(StatusCode::BAD_REQUEST, why),
            Ok(asked) => asked.answer(&follow).unwrap_or_else(|why| refused(StatusCode::TOO_MANY_REQUESTS, why)),
        }
    };
    let known = state.clone();
    let servers = move || async move {
        let led = known.leader.as_ref().map(|leader| leader.borrow().iter().map(|leader| leader.rpc.clone()).collect());
        axum::Json(led.unwrap_or_else(|| known.node.as_ref().map(ClientHandle::servers).unwrap_or_default()))
    };
    let again = front.reload;
    let reload = move || async move {
        match again().await {
            Ok(()) => StatusCode::OK.into_response(),
            Err(why) => refused(StatusCode::INTERNAL_SERVER_ERROR, why),
        }
    };
    let routes = node
        .map_or_else(Router::new, client::http::router)
        .route("/v1/agent/reload", put(reload.clone()).post(reload))
        .route("/v1/metrics", get(metrics))
        .route("/v1/agent/self", get(agent_self))
        .route("/v1/agent/health", get(health))
        .route("/v1/agent/monitor", get(monitor))
        .route("/v1/agent/servers", get(servers));
    let routes = server_http::audited(routes, audit.clone())
        .layer(middleware::from_fn_with_state(state.clone(), elsewhere))
        .fallback_service(Router::new().fallback(forward).with_state(state));
    server_http::as_every_answer(routes, front.headers, front.guard, audit)
}

/// `GET /v1/agent/self`: this agent, not the server that it talks to. A node is no member of anything.
fn about_itself(node: Option<&ClientHandle>, config: &Value) -> AgentSelf {
    let client = node.map(|node| {
        let mut client = node.stats();
        client.insert("node_id".to_owned(), node.node_id().to_string());
        ("client".to_owned(), client)
    });
    AgentSelf { config: config.clone(), stats: client.into_iter().collect(), ..AgentSelf::default() }
}

/// `GET /v1/agent/health`: for a server that does not lead, whether another one does; for a node, whether it has a
/// session, its servers' lease, and follows them.
fn health(
    kind: &str,
    led: Option<bool>,
    node: Option<(bool, bool, Option<String>)>,
    exposed: Option<String>,
) -> Response {
    let notes: Vec<String> = exposed.into_iter().collect();
    let part = |ok: bool, message: &str| {
        Some(HealthPart { ok, message: message.to_owned(), notes: notes.clone(), ..HealthPart::default() })
    };
    let client = match &node {
        None => part(false, "client not enabled"),
        Some((.., Some(why))) => part(false, why),
        Some((true, true, None)) => part(true, "ok"),
        Some((true, false, None)) => part(false, "the node holds no lease"),
        Some((false, _, None)) => part(false, "the node has no session with a server"),
    };
    let server = match led {
        None => part(false, "server not enabled"),
        Some(true) => part(true, "ok"),
        Some(false) => part(false, "No cluster leader"),
    };
    let health = match kind {
        "" => Health { server: server.filter(|_| led.is_some()), client: client.filter(|_| node.is_some()) },
        "client" => Health { client, ..Health::default() },
        "server" => Health { server, ..Health::default() },
        _ => return refused(StatusCode::BAD_REQUEST, format!("unknown type {kind:?}: use server or client")),
    };
    let ok = health.server.iter().chain(&health.client).all(|part| part.ok);
    let status = if ok { StatusCode::OK } else { StatusCode::INTERNAL_SERVER_ERROR };
    (status, axum::Json(health)).into_response()
}

/// The client endpoints of allocations that are not here, those of other nodes, and where the cluster has ACLs all that
/// no server has decided.
async fn elsewhere(State(state): State<Arc<Forward>>, request: Request, next: Next) -> Response {
    if state.acl() {
        return decided(state, request, next).await;
    }
    here_or_elsewhere(state, request, next).await
}

/// Whoever may ask this agent is decided by the servers: they know tokens and policies.
async fn decided(state: Arc<Forward>, mut request: Request, next: Next) -> Response {
    let path = request.uri().path();
    if OPEN.contains(&path) {
        return here_or_elsewhere(state, request, next).await;
    }
    if path.starts_with("/v1/client/") || path == MONITOR {
        if let Some(caller) = state.vouched(&request) {
            request.extensions_mut().insert(caller);
            return next.run(request).await;
        }
        if let Err(why) = state.name_this_node(&mut request) {
            return refused(StatusCode::BAD_REQUEST, why);
        }
        return forward(State(state), request).await;
    }
    let (method, uri, headers) = (request.method().clone(), request.uri().clone(), request.headers().clone());
    match state.clone().ask(method, uri, headers).await {
        Ok(caller) => {
            request.extensions_mut().insert(caller);
            here_or_elsewhere(state, request, next).await
        }
        Err(answer) => *answer,
    }
}

async fn here_or_elsewhere(state: Arc<Forward>, request: Request, next: Next) -> Response {
    let path = request.uri().path();
    if let Some(alloc) = alloc_of(path) {
        return if state.node.as_ref().is_some_and(|node| node.has_alloc(alloc)) {
            next.run(request).await
        } else {
            forward(State(state), request).await
        };
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
    let Some(own) = state.node.as_ref().map(|node| node.node_id().to_string()) else {
        return forward(State(state), request).await;
    };
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
        || ["stats", "gc", "metadata", "audit", "drivers/reload", "identity", "identity/renew"]
            .iter()
            .any(|name| path.strip_prefix("/v1/client/") == Some(name))
}

/// Whose log is asked for; stock clients send the name also where it is empty.
fn names_a_server(query: &str) -> bool {
    api::query::Query::parse(query).is_ok_and(|query| !query.text("server_id").is_empty())
}

/// The node that a request names: in its query, or as writes of metadata and identities do, in its body.
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
    let in_body = ["/v1/client/metadata", "/v1/client/identity/renew"].contains(&request.uri().path());
    if !in_body || request.method() == Method::GET {
        return Ok((request, None));
    }
    let (head, body) = request.into_parts();
    let bytes =
        axum::body::to_bytes(body, BODY_MAX).await.map_err(|e| format!("the request's body cannot be read: {e}"))?;
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

/// The path and query of a request, without the wish for an answer that may be stale.
fn unstale(path: &str) -> String {
    let Some((path, query)) = path.split_once('?') else { return path.to_owned() };
    let names = |pair: &&str| api::query::Query::parse(pair).is_ok_and(|query| query.get("stale").is_some());
    let rest: Vec<&str> = query.split('&').filter(|pair| !names(pair)).collect();
    if rest.is_empty() { path.to_owned() } else { format!("{path}?{}", rest.join("&")) }
}

fn refused(status: StatusCode, text: String) -> Response {
    (status, text).into_response()
}

/// Has the server that leads answer a request. Sends it again only where that does no harm: it only reads, or it has
/// not reached the server.
async fn forward(State(state): State<Arc<Forward>>, mut request: Request) -> Response {
    let stale = match state.stale.answers(&request) {
        Answers::Here(here) => return here.oneshot(request).await.into_response(),
        Answers::Elsewhere(stale) => stale,
    };
    let passed_on = request.headers().get(PASSED_ON).and_then(|n| n.to_str().ok()?.parse().ok()).unwrap_or(0_u32);
    if passed_on >= PASSED_ON_MOST {
        let why = "No cluster leader: each server takes another one for it; try again";
        return refused(StatusCode::SERVICE_UNAVAILABLE, why.into());
    }
    let path = request.uri().path_and_query().map_or("/", |p| p.as_str());
    // A server that has no state yet asks whoever leads, who knows all that its clients have seen here: another server,
    // also one that has led, might know less.
    let path = if stale.is_some() && state.leader.is_some() { unstale(path) } else { path.to_owned() };
    // This agent has looked at where the request comes from; for the server it comes from here.
    for name in [HOST, ORIGIN, HeaderName::from_static("sec-fetch-site")] {
        request.headers_mut().remove(name);
    }
    request.headers_mut().insert(PASSED_ON, HeaderValue::from(passed_on + 1));
    let upgrade = request.extensions_mut().remove().filter(|_| request.headers().contains_key(UPGRADE));
    // A terminal may have begun before its answer was lost.
    let reads = request.method().is_safe() && upgrade.is_none();
    let (head, body) = request.into_parts();
    let (body, until) = (Unsent::new(body), Instant::now() + state.hold);
    let mut unanswered: Option<Unanswered> = None;
    loop {
        let server = match state.server(until).await {
            Ok(server) => server,
            Err(why) => {
                let nobody = || refused(StatusCode::SERVICE_UNAVAILABLE, format!("No cluster leader: {why}"));
                return unanswered.map_or_else(nobody, |failed| failed.told(reads));
            }
        };
        let base = if server.starts_with("https://") { server.clone() } else { format!("http://{server}") };
        let mut head = head.clone();
        head.uri = match format!("{base}{path}").parse() {
            Ok(uri) => uri,
            Err(error) => {
                let why = format!("cannot forward to the server at {server:?}: {error}");
                return refused(StatusCode::INTERNAL_SERVER_ERROR, why);
            }
        };
        let failed = match state.sent(&server, Request::from_parts(head, Body::new(body.clone()))).await {
            Ok(mut response) => {
                if let Some(stale) = stale {
                    stale.note(response.headers());
                }
                if let Some(upgrade) = upgrade.filter(|_| response.status() == StatusCode::SWITCHING_PROTOCOLS) {
                    tunnel(upgrade, &mut response);
                    return response.map(|_| Body::empty());
                }
                return response.map(Body::new);
            }
            Err(failed) => failed,
        };
        let again = !body.begun() && (reads || failed.had_no_effect);
        let next = Instant::now() + AGAIN;
        if !again || next >= until {
            return failed.told(reads);
        }
        unanswered = Some(failed);
        tokio::time::sleep_until(next).await;
    }
}

/// Why the server that led has not answered a request.
struct Unanswered {
    why: String,
    /// The request has not reached it.
    had_no_effect: bool,
}

impl Unanswered {
    /// Clients repeat what fails with more than 500: a write that may have had its effect does not.
    fn told(self, reads: bool) -> Response {
        let why = format!("No cluster leader: {}", self.why);
        if reads || self.had_no_effect {
            return refused(StatusCode::SERVICE_UNAVAILABLE, why);
        }
        let why = format!("{why}; it is not known whether the request had its effect");
        refused(StatusCode::INTERNAL_SERVER_ERROR, why)
    }
}

#[cfg(test)]
mod tests {
    use axum::{body::Body, extract::Request};
    use http::StatusCode;

    use std::{
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering::Relaxed},
        },
        time::Duration,
    };

    use axum::extract::State;
    use store::Member;
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
        sync::watch,
    };

    use super::{Forward, Stale, alloc_of, forward, health, named_node, names_a_server, of_a_node, to_server, unstale};

    #[tokio::test]
    async fn the_node_that_a_request_names() {
        for (method, uri, body, named) in [
            ("GET", "/v1/client/stats", "", None),
            ("GET", "/v1/client/stats?node_id=abc", "", Some("abc")),
            ("PUT", "/v1/client/metadata", r#"{"NodeID":"abc","Meta":{"k":"v"}}"#, Some("abc")),
            ("PUT", "/v1/client/metadata?node_id=q", r#"{"NodeID":"abc"}"#, Some("q")),
            ("PUT", "/v1/client/metadata", "nonsense", None),
            ("GET", "/v1/client/metadata", r#"{"NodeID":"abc"}"#, None),
            ("PUT", "/v1/client/identity/renew", r#"{"NodeID":"abc"}"#, Some("abc")),
            ("GET", "/v1/client/identity?node_id=abc", "", Some("abc")),
            ("PUT", "/v1/client/gc", r#"{"NodeID":"abc"}"#, None),
        ] {
            let request = Request::builder().method(method).uri(uri).body(Body::from(body)).expect("a request");
            let (request, found) = named_node(request).await.expect("readable");
            assert_eq!(found.as_deref(), named, "{method} {uri} {body}");
            let kept = axum::body::to_bytes(request.into_body(), 1 << 20).await.expect("a body");
            assert_eq!(kept, body, "the body is passed on as it came");
        }
        assert!(names_a_server("node_id=&server_id=leader") && !names_a_server("node_id=&server_id="));
        assert!(of_a_node("/v1/client/identity") && of_a_node("/v1/client/identity/renew"));
        assert!(of_a_node("/v1/client/drivers/reload") && !of_a_node("/v1/client/fs/ls/x") && !of_a_node("/v1/jobs"));
    }

    /// What is said of a request that a leader at this address does not answer.
    async fn unanswered(address: String, method: &str) -> (StatusCode, String) {
        passed_on(address, method, "/v1/jobs").await
    }

    /// The answer to a request that a server without the state passes on to a leader at this address.
    async fn passed_on(address: String, method: &str, path: &str) -> (StatusCode, String) {
        let (_tell, leader) = watch::channel(Some(leads(address)));
        passed_on_to(leader, Duration::from_millis(300), method, path, "").await
    }

    fn leads(address: String) -> Member {
        Member { id: "l".into(), name: "leader".into(), rpc: String::new(), http: address, ..Member::default() }
    }

    /// The answer to a request that waits so long for a leader that takes it.
    async fn passed_on_to(
        leader: watch::Receiver<Option<Member>>,
        hold: Duration,
        method: &str,
        path: &str,
        body: &'static str,
    ) -> (StatusCode, String) {
        let (http, stale) = (to_server::client(None), Stale::default());
        let state = Forward { acl: false, node: None, leader: Some(leader), http, stale, hold };
        let request = Request::builder().method(method).uri(path).body(Body::from(body)).expect("a request");
        let answer = forward(State(Arc::new(state)), request).await;
        let status = answer.status();
        let text = axum::body::to_bytes(answer.into_body(), 1 << 20).await.expect("a body");
        (status, String::from_utf8(text.into()).expect("text"))
    }

    #[tokio::test]
    async fn a_write_that_may_have_had_its_effect_is_told_from_one_that_had_none() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a listener");
        let address = listener.local_addr().expect("an address").to_string();
        let reads_and_closes = tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.expect("a connection");
                assert!(stream.read(&mut [0; 1024]).await.expect("a request") > 0);
            }
        });
        let (status, text) = unanswered(address.clone(), "PUT").await;
        assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR, "clients would repeat it: {text}");
        assert!(text.starts_with("No cluster leader") && text.contains("not known whether"), "{text}");
        let (status, text) = unanswered(address.clone(), "GET").await;
        assert!(status == StatusCode::SERVICE_UNAVAILABLE && !text.contains("effect"), "{status} {text}");
        reads_and_closes.abort();
        assert!(reads_and_closes.await.expect_err("it never ends by itself").is_cancelled());
        let (status, text) = unanswered(address, "PUT").await;
        assert!(status == StatusCode::SERVICE_UNAVAILABLE && text.contains("cannot be reached"), "{status} {text}");
    }

    #[tokio::test]
    async fn a_request_waits_for_the_next_leader_and_reaches_it_once() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a listener");
        let next = listener.local_addr().expect("an address").to_string();
        let seen = Arc::new(AtomicUsize::new(0));
        let counted = seen.clone();
        let answers = axum::Router::new().fallback(move |body: String| async move {
            counted.fetch_add(1, Relaxed);
            body
        });
        let served = tokio::spawn(async move { axum::serve(listener, answers).await });
        // Nobody listens here any more, as where a leader has just died.
        let closed = TcpListener::bind("127.0.0.1:0").await.expect("a listener");
        let dead = closed.local_addr().expect("an address").to_string();
        drop(closed);
        for (n, last) in [None, Some(leads(dead))].into_iter().enumerate() {
            let (tell, leader) = watch::channel(last);
            let minute = Duration::from_secs(60);
            let asked = tokio::spawn(passed_on_to(leader, minute, "PUT", "/v1/jobs", "a job"));
            tokio::time::sleep(Duration::from_millis(250)).await;
            assert!(!asked.is_finished(), "it waits");
            tell.send(Some(leads(next.clone()))).expect("who waits");
            let (status, text) = asked.await.expect("an answer");
            assert_eq!((status, &*text), (StatusCode::OK, "a job"));
            assert_eq!(seen.load(Relaxed), n + 1, "sent once");
        }
        served.abort();
        assert!(served.await.expect_err("it never ends by itself").is_cancelled());
        let (_tell, nobody) = watch::channel(None);
        let (status, text) = passed_on_to(nobody, Duration::from_millis(50), "PUT", "/v1/jobs", "a job").await;
        assert!(status == StatusCode::SERVICE_UNAVAILABLE && text.contains("no server leads now"), "{status} {text}");
    }

    #[tokio::test]
    async fn what_a_leader_did_not_answer_is_asked_again_if_it_only_reads() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a listener");
        let address = listener.local_addr().expect("an address").to_string();
        // It takes a request and dies. Whoever comes next is answered.
        let server = tokio::spawn(async move {
            for answer in [None, Some("HTTP/1.1 200 OK\r\ncontent-length: 4\r\nconnection: close\r\n\r\njobs")] {
                let (mut stream, _) = listener.accept().await.expect("a connection");
                assert!(stream.read(&mut [0; 1024]).await.expect("a request") > 0);
                if let Some(answer) = answer {
                    stream.write_all(answer.as_bytes()).await.expect("an answer");
                }
            }
        });
        let (_tell, leader) = watch::channel(Some(leads(address)));
        let (status, text) = passed_on_to(leader, Duration::from_secs(60), "GET", "/v1/jobs", "").await;
        assert_eq!((status, &*text), (StatusCode::OK, "jobs"));
        server.await.expect("both were asked");
    }

    #[tokio::test]
    async fn a_server_without_the_state_asks_for_no_stale_answer() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a listener");
        let address = listener.local_addr().expect("an address").to_string();
        let tells_the_path = axum::Router::new().fallback(|uri: http::Uri| async move { uri.to_string() });
        let leader = tokio::spawn(async move { axum::serve(listener, tells_the_path).await });
        for (asked, passed) in [
            ("/v1/jobs?stale", "/v1/jobs"),
            ("/v1/jobs?stale=true&index=7&wait=1s", "/v1/jobs?index=7&wait=1s"),
            ("/v1/jobs?prefix=stale&st%61le=1", "/v1/jobs?prefix=stale"),
            ("/v1/jobs?prefix=a%26stale", "/v1/jobs?prefix=a%26stale"),
            // The leader answers this one whatever it says.
            ("/v1/status/leader?stale", "/v1/status/leader?stale"),
        ] {
            let (status, path) = passed_on(address.clone(), "GET", asked).await;
            assert_eq!((status, &*path), (StatusCode::OK, passed), "{asked}");
        }
        leader.abort();
        assert!(leader.await.expect_err("it never ends by itself").is_cancelled());
        assert_eq!(unstale("/v1/jobs"), "/v1/jobs");
    }

    #[test]
    fn health_is_that_of_this_agent() {
        let node = |connected, lease| Some((connected, lease, None));
        for (kind, led, node, status) in [
            ("", None, node(true, true), StatusCode::OK),
            ("client", None, node(true, true), StatusCode::OK),
            ("client", None, node(false, true), StatusCode::INTERNAL_SERVER_ERROR),
            ("", None, node(true, false), StatusCode::INTERNAL_SERVER_ERROR),
            ("server", None, node(true, true), StatusCode::INTERNAL_SERVER_ERROR),
            ("both", None, node(true, true), StatusCode::BAD_REQUEST),
            ("", Some(true), None, StatusCode::OK),
            ("", Some(true), node(false, false), StatusCode::INTERNAL_SERVER_ERROR),
            ("server", Some(true), node(false, false), StatusCode::OK),
            ("server", Some(false), None, StatusCode::INTERNAL_SERVER_ERROR),
            ("client", Some(true), None, StatusCode::INTERNAL_SERVER_ERROR),
        ] {
            assert_eq!(health(kind, led, node.clone(), None).status(), status, "{kind:?} {led:?} {node:?}");
        }
        let elsewhere = Some("this node belongs to another cluster".to_owned());
        assert_eq!(
            health("", None, Some((true, true, elsewhere)), None).status(),
            StatusCode::INTERNAL_SERVER_ERROR,
            "whose word does not count"
        );
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

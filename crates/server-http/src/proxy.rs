//! Client endpoints: called when the node is in this process, else passed on to the node's own HTTP address,
//! streams in both directions.

use std::sync::{Arc, PoisonError};

use api::{
    client::{Address, Connection, tunnel, tunnel_behind, why},
    go_json, pass,
    shapes::AclCaller,
};
use axum::body::Body;
use http::{
    HeaderValue, Request, StatusCode,
    header::{ACCEPT_ENCODING, AUTHORIZATION, CONNECTION, CONTENT_ENCODING, HOST, ORIGIN, TRANSFER_ENCODING, UPGRADE},
};
use model::{Node, NodeId, NodeStatus, remote::slot_of};
use tower::ServiceExt as _;

use crate::{
    audit::Auth,
    caller::TOKEN,
    reply::{HttpError, Reply},
    request::{Ctx, uuid},
};

/// Endpoints of one allocation.
pub(crate) async fn by_alloc(ctx: Ctx) -> Result<Reply, HttpError> {
    let id = ctx.alloc_id("alloc")?;
    let state = ctx.server().snapshot();
    let alloc = state
        .alloc(id)
        .ok_or_else(|| HttpError::not_found(format_args!("Unknown allocation {:?}", ctx.param("alloc"))))?;
    let node_id = alloc.node_id;
    forward(ctx, node_id).await
}

/// The archive of an allocation's data. While its node is down nobody can have it, and whoever waits goes on without.
pub(crate) async fn archive(ctx: Ctx) -> Result<Reply, HttpError> {
    let id = ctx.alloc_id("alloc")?;
    let state = ctx.server().snapshot();
    let node = state.alloc(id).and_then(|alloc| state.node(alloc.node_id));
    let away = |node: &Node| match node.status {
        NodeStatus::Down => Some("is down"),
        _ if node.http_addr.is_empty() => Some("advertises no HTTP address"),
        _ => None,
    };
    if let Some((node, why)) = node.and_then(|node| away(node).map(|why| (node, why))) {
        return Err(HttpError::not_found(format_args!(
            "the data of allocation {} is on node {:?}, which {why}",
            id.short(),
            &*node.name
        )));
    }
    by_alloc(ctx).await
}

/// Restarts tasks of an allocation: its node those that live there, the servers those in remote runtimes, whose
/// instances they alone order.
pub(crate) async fn restart(ctx: Ctx) -> Result<Reply, HttpError> {
    #[derive(Default, serde::Deserialize)]
    #[serde(default, rename_all = "PascalCase")]
    struct Asked {
        task_name: String,
        all_tasks: bool,
    }
    let id = ctx.alloc_id("alloc")?;
    let state = ctx.server().snapshot();
    let alloc = state
        .alloc(id)
        .cloned()
        .ok_or_else(|| HttpError::not_found(format_args!("Unknown allocation {:?}", ctx.param("alloc"))))?;
    if !alloc.resources.tasks.values().any(|t| t.remote) {
        return forward(ctx, alloc.node_id).await;
    }
    let bytes = ctx.bytes().await?;
    let asked: Asked = if bytes.is_empty() {
        Asked::default()
    } else {
        go_json::from_slice(&bytes).map_err(|e| HttpError::bad_request(format_args!("Failed to decode body: {e}")))?
    };
    let ctx = ctx.with_body(Body::from(bytes));
    let wanted = |name: &str| asked.task_name.is_empty() || asked.task_name == name;
    let (remote, local): (Vec<_>, Vec<_>) =
        alloc.resources.tasks.iter().filter(|(name, _)| wanted(name)).partition(|(_, t)| t.remote);
    // What is wrong with the request is told by the node.
    if remote.is_empty() || (asked.all_tasks && !asked.task_name.is_empty()) {
        return forward(ctx, alloc.node_id).await;
    }
    if alloc.terminal() {
        return Err(HttpError::internal("Task not running"));
    }
    for (task, _) in remote {
        ctx.server().restart_remote(slot_of(&alloc, task)).await?;
    }
    if local.is_empty() {
        return ctx.plain(&serde_json::json!({}));
    }
    let text = ctx.uri.to_string();
    let uri = format!("{text}{}local=true", if text.contains('?') { '&' } else { '?' });
    let ctx = Ctx { uri: uri.parse().map_err(HttpError::internal)?, ..ctx };
    forward(ctx, alloc.node_id).await
}

/// The checks of an allocation under the path of newer clients: its node answers them.
pub(crate) async fn checks_of_alloc(mut ctx: Ctx) -> Result<Reply, HttpError> {
    let query = ctx.uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    let path = format!("/v1/client/allocation/{}/checks{query}", ctx.alloc_id("alloc")?);
    ctx.uri = path.parse().map_err(HttpError::internal)?;
    by_alloc(ctx).await
}

/// Endpoints of a node: `node_id`, else the node of this agent.
pub(crate) async fn by_node(ctx: Ctx) -> Result<Reply, HttpError> {
    let node_id = match (ctx.query.text("node_id"), &ctx.app.options.local) {
        ("", Some(local)) => local.node_id,
        ("", None) => {
            return Err(HttpError::bad_request("this agent runs no node: name one with node_id"));
        }
        (text, _) => NodeId(uuid(text, "node")?),
    };
    forward(ctx, node_id).await
}

/// Writes of a node that may name it in their body: its metadata, a new identity.
pub(crate) async fn named_in_body(ctx: Ctx) -> Result<Reply, HttpError> {
    #[derive(Default, serde::Deserialize)]
    #[serde(default)]
    struct Target {
        #[serde(rename = "NodeID")]
        node_id: String,
    }
    let bytes = ctx.bytes().await?;
    let named: Target = if bytes.is_empty() {
        Target::default()
    } else {
        go_json::from_slice(&bytes)
            .map_err(|e| HttpError::bad_request(format_args!("failed to decode the request's body: {e}")))?
    };
    let ctx = ctx.with_body(Body::from(bytes));
    if ctx.query.text("node_id").is_empty() && !named.node_id.is_empty() {
        let node_id = NodeId(uuid(&named.node_id, "node")?);
        ctx.about.says("node", node_id, "");
        return forward(ctx, node_id).await;
    }
    by_node(ctx).await
}

pub(crate) async fn forward(ctx: Ctx, node_id: NodeId) -> Result<Reply, HttpError> {
    let body = ctx.take_body();
    let Ctx { app, method, uri, mut headers, caller, gate, upgrade, .. } = ctx;
    let upgrade =
        upgrade.into_inner().unwrap_or_else(PoisonError::into_inner).filter(|_| headers.contains_key(UPGRADE));
    // What this side does for its client.
    headers.remove(ACCEPT_ENCODING);
    headers.remove(TRANSFER_ENCODING);
    if upgrade.is_none() {
        headers.remove(CONNECTION);
    }
    if let Some(local) = app.options.local.as_ref().filter(|l| l.node_id == node_id) {
        let mut request = Request::builder().method(method).uri(uri).body(body).map_err(HttpError::internal)?;
        *request.headers_mut() = headers;
        if let Some(upgrade) = upgrade {
            request.extensions_mut().insert(upgrade);
        }
        if let Some(gate) = gate {
            request.extensions_mut().insert(gate);
        }
        return match local.router.clone().oneshot(request).await {
            Ok(response) => Ok(Reply::foreign(response)),
            Err(never) => match never {},
        };
    }
    let node = app
        .server
        .snapshot()
        .node(node_id)
        .cloned()
        .ok_or_else(|| HttpError::not_found(format_args!("Unknown node {node_id}")))?;
    let address = address_of(&node)?;
    let dialer = app.options.tls.as_ref().map(|tls| tls.dialer(tls::Peer::Agent));
    let mut connection: Connection<Body> =
        Connection::open(&address, dialer.as_ref()).await.map_err(|e| no_path(&node, e))?;
    let path = uri.path_and_query().map_or("/", |p| p.as_str()).to_owned();
    let mut request = Request::builder().method(method).uri(path).body(body).map_err(HttpError::internal)?;
    *request.headers_mut() = headers;
    if let Some(known) = caller.known() {
        vouch(&mut request, &node, &Auth::from(known).into());
    }
    if let Ok(host) = HeaderValue::from_str(&address.host()) {
        request.headers_mut().insert(HOST, host);
    }
    // This agent has looked at where the request comes from; for the node it comes from here.
    for name in [ORIGIN, crate::guard::SITE] {
        request.headers_mut().remove(name);
    }
    let mut response = connection.send(request).await.map_err(|e| no_path(&node, why(&e)))?;
    if let Some(upgrade) = upgrade.filter(|_| response.status() == StatusCode::SWITCHING_PROTOCOLS) {
        match gate {
            None => tunnel(upgrade, &mut response),
            Some(gate) => tunnel_behind(gate, upgrade, &mut response),
        }
        return Ok(Reply::foreign(response.map(|_| Body::empty())));
    }
    let (mut head, body) = response.into_parts();
    for name in [CONNECTION, TRANSFER_ENCODING, CONTENT_ENCODING] {
        head.headers.remove(name);
    }
    // The connection must live as long as the body that comes over it.
    let keep = Arc::new(connection);
    let body = Body::new(http_body_util::BodyExt::map_frame(body, move |frame| {
        let _connection = &keep;
        frame
    }));
    Ok(Reply::foreign(http::Response::from_parts(head, body)))
}

/// Shows the node that this server has decided the request. Its sender's token has done its duty, and is not shown to
/// whoever answers at the node's address.
fn vouch(request: &mut Request<Body>, node: &Node, who: &AclCaller) {
    let (now, path) = (jiff::Timestamp::now().as_second(), request.uri().path_and_query().map_or("/", |p| p.as_str()));
    let pass = pass::pass(node.secret_id.reveal(), now, request.method(), path);
    let caller = pass::caller(node.secret_id.reveal(), now, request.method(), path, who);
    for name in [TOKEN, AUTHORIZATION, pass::PASS_NODE] {
        request.headers_mut().remove(name);
    }
    for (name, value) in [(pass::PASS, pass), (pass::CALLER, caller)] {
        if let Ok(value) = HeaderValue::from_str(&value) {
            request.headers_mut().insert(name, value);
        }
    }
}

fn address_of(node: &Node) -> Result<Address, HttpError> {
    if node.http_addr.is_empty() {
        return Err(HttpError::internal(format_args!(
            "No path to node: {} advertises no HTTP address; set advertise.http in its configuration",
            node.name
        )));
    }
    let scheme = if node.tls_enabled { "https" } else { "http" };
    Address::parse(&format!("{scheme}://{}", node.http_addr))
        .map_err(|e| HttpError::internal(format_args!("No path to node: {}: {e}", node.name)))
}

fn no_path(node: &Node, why: impl std::fmt::Display) -> HttpError {
    HttpError::new(
        StatusCode::INTERNAL_SERVER_ERROR,
        format_args!("No path to node: {} at {} does not answer: {why}", node.name, node.http_addr),
    )
}

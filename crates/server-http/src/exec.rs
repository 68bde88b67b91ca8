//! An exec session that cannot be: what is wrong is said in the web socket, where clients of such a session read it.

use std::{
    sync::{Arc, PoisonError},
    time::Duration,
};

use access::{Capability, Need};
use api::client::Gate;
use axum::extract::{
    FromRequestParts as _, WebSocketUpgrade,
    ws::{CloseFrame, Message, WebSocket, close_code},
};
use http::{Request, header::UPGRADE};

use model::Allocation;

use crate::{
    caller::{Caller, DENIED, Unchecked, token},
    proxy,
    reply::{HttpError, Reply},
    request::Ctx,
};

/// How long the person's end may take for what it says before and after the refusal.
const PATIENCE: Duration = Duration::from_secs(5);

/// Drivers whose tasks see all of their node.
const NOT_ISOLATED: &[&str] = &["raw_exec"];

/// Passes the session on to the allocation's node, or refuses it. Who may not hears it in the web socket, too.
pub(crate) async fn exec(ctx: Unchecked) -> Result<Reply, HttpError> {
    let said = ctx.said();
    let id = said.alloc_id("alloc")?;
    let state = said.server().snapshot();
    let alloc = state.alloc(id);
    let namespace = alloc.map_or_else(|| said.query.namespace(), |alloc| alloc.namespace.clone());
    let all_of = capabilities(alloc, said.query.text("task"));
    let may = move |caller: &Caller| caller.may(&Need::NamespaceAll { namespace: namespace.as_str(), all_of });
    if may(&said.caller) || !said.headers.contains_key(UPGRADE) {
        return passed_on(ctx.filtering(|caller| may(caller))?).await;
    }
    let by_message = said.query.flag("ws_handshake").unwrap_or_default() && token(&said.headers).is_empty();
    if !by_message || alloc.is_none() {
        return answer(ctx.into_refusal(), close_code::ERROR, DENIED.to_owned()).await;
    }
    let app = said.app.clone();
    let gate =
        Gate::new(move |token| Caller::of(app.authority.as_ref(), &app.server, token).is_ok_and(|caller| may(&caller)));
    passed_on(ctx.behind(gate)).await
}

/// What a command in this task needs: one that no driver keeps apart from its node is a command on the node.
fn capabilities(alloc: Option<&Arc<Allocation>>, task: &str) -> &'static [Capability] {
    const NODE: &[Capability] = &[Capability::AllocExec, Capability::AllocNodeExec];
    let group = alloc.and_then(|alloc| alloc.job.as_ref()?.group(&alloc.task_group));
    let mut tasks = group.into_iter().flat_map(|group| &group.tasks).filter(|t| task.is_empty() || *t.name == *task);
    if tasks.any(|t| NOT_ISOLATED.contains(&t.driver.as_str())) { NODE } else { &NODE[..1] }
}

async fn passed_on(ctx: Ctx) -> Result<Reply, HttpError> {
    let unknown = ctx.server().snapshot().alloc(ctx.alloc_id("alloc")?).is_none();
    if !unknown || !ctx.headers.contains_key(UPGRADE) {
        return proxy::by_alloc(ctx).await;
    }
    let why = format!("Unknown allocation {:?}", ctx.param("alloc"));
    answer(ctx, close_code::POLICY, why).await
}

/// Takes the session, and closes it with what is wrong.
async fn answer(ctx: Ctx, code: u16, why: String) -> Result<Reply, HttpError> {
    // Its first message is not what is wrong with it.
    let greeted = ctx.query.flag("ws_handshake").unwrap_or_default();
    let Ctx { method, uri, headers, upgrade, .. } = ctx;
    let mut request = Request::builder().method(method).uri(uri).body(()).map_err(HttpError::internal)?;
    *request.headers_mut() = headers;
    if let Some(upgrade) = upgrade.into_inner().unwrap_or_else(PoisonError::into_inner) {
        request.extensions_mut().insert(upgrade);
    }
    let (mut parts, ()) = request.into_parts();
    let socket = WebSocketUpgrade::from_request_parts(&mut parts, &()).await;
    let socket =
        socket.map_err(|rejection| HttpError::bad_request(format_args!("exec needs a websocket: {rejection}")))?;
    Ok(Reply::foreign(socket.on_upgrade(move |socket| refuse(socket, code, why, greeted))))
}

/// Reads until the other end has heard it: a connection that is dropped with input unread is reset, and what was
/// said last is lost with it.
async fn refuse(mut socket: WebSocket, code: u16, why: String, greeted: bool) {
    let said = async {
        if greeted && !matches!(socket.recv().await, Some(Ok(_))) {
            return;
        }
        let frame = CloseFrame { code, reason: why.into() };
        if socket.send(Message::Close(Some(frame))).await.is_ok() {
            while let Some(Ok(_)) = socket.recv().await {}
        }
    };
    // The person may have gone.
    let _ = tokio::time::timeout(PATIENCE, said).await;
}

//! An exec session that cannot be: what is wrong is said in the web socket, where clients of such a session read it.

use std::{
    fmt::Write as _,
    sync::{Arc, PoisonError},
    time::Duration,
};

use access::{Capability, Need};
use api::{client::Gate, query::percent_encode};
use axum::extract::{
    FromRequestParts as _, WebSocketUpgrade,
    ws::{CloseFrame, Message, WebSocket, close_code},
};
use http::{Request, header::UPGRADE};

use model::{AllocId, Allocation};

use crate::{
    caller::{Caller, DENIED, Unchecked, token},
    proxy,
    reply::{HttpError, Reply},
    request::{Ctx, uuid},
};

/// How long the person's end may take for what it says before and after the refusal.
const PATIENCE: Duration = Duration::from_secs(5);

/// The parameter that holds the job of which the allocation has to be.
const OF_JOB: &str = "job";

/// Drivers whose tasks see all of their node.
const NOT_ISOLATED: &[&str] = &["raw_exec"];

/// Passes the session on to the allocation's node, or refuses it. Who may not hears it in the web socket, too.
pub(crate) async fn exec(ctx: Unchecked) -> Result<Reply, HttpError> {
    let ctx = ctx.once()?;
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

/// A session of a command that the job gives a name: the node takes the command from the allocation's job.
pub(crate) async fn action(ctx: Unchecked) -> Result<Reply, HttpError> {
    let said = ctx.said();
    let asked = |name: &str| match said.query.text(name) {
        "" => Err(HttpError::bad_request(format_args!(
            "missing required parameter {name:?}: an action needs action, task and allocID"
        ))),
        text => Ok(text.to_owned()),
    };
    let parsed = || {
        let (name, task, alloc) = (asked("action")?, asked("task")?, asked("allocID")?);
        Ok((name, task, AllocId(uuid(&alloc, "alloc")?)))
    };
    let (name, task, id) = match parsed() {
        Ok(parsed) => parsed,
        Err(wrong) => {
            // What is wrong with a request is told to whoever may make such a one.
            let namespace = said.query.namespace();
            let any_of: &[Capability] = &[Capability::AllocExec];
            ctx.check(&Need::Namespace { namespace: namespace.as_str(), any_of })?;
            return Err(wrong);
        }
    };
    let mut path =
        format!("/v1/client/allocation/{id}/exec?action={}&task={}", percent_encode(&name), percent_encode(&task));
    for name in ["tty", "ws_handshake", "namespace"] {
        let value = said.query.text(name);
        if !value.is_empty() {
            let _ = write!(path, "&{name}={}", percent_encode(value));
        }
    }
    let job = said.param("id").to_owned();
    exec(ctx.renamed(&path, vec![("alloc", id.to_string()), (OF_JOB, job)])?).await
}

/// What a command in this task needs: one that no driver keeps apart from its node is a command on the node.
fn capabilities(alloc: Option<&Arc<Allocation>>, task: &str) -> &'static [Capability] {
    const NODE: &[Capability] = &[Capability::AllocExec, Capability::AllocNodeExec];
    let group = alloc.and_then(|alloc| alloc.job.as_ref()?.group(&alloc.task_group));
    let mut tasks = group.into_iter().flat_map(|group| &group.tasks).filter(|t| task.is_empty() || *t.name == *task);
    if tasks.any(|t| NOT_ISOLATED.contains(&t.driver.as_str())) { NODE } else { &NODE[..1] }
}

async fn passed_on(ctx: Ctx) -> Result<Reply, HttpError> {
    let (state, job) = (ctx.server().snapshot(), ctx.param(OF_JOB));
    let why = match state.alloc(ctx.alloc_id("alloc")?) {
        _ if !ctx.headers.contains_key(UPGRADE) => return proxy::by_alloc(ctx).await,
        Some(alloc) if job.is_empty() || alloc.job_id == job => return proxy::by_alloc(ctx).await,
        Some(_) => format!("Allocation {:?} is not one of job {job:?}", ctx.param("alloc")),
        None => format!("Unknown allocation {:?}", ctx.param("alloc")),
    };
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

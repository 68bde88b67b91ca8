//! An exec session that cannot be: what is wrong is said in the web socket, where clients of such a session read it.

use std::{sync::PoisonError, time::Duration};

use axum::extract::{
    FromRequestParts as _, WebSocketUpgrade,
    ws::{CloseFrame, Message, WebSocket, close_code},
};
use http::{Request, header::UPGRADE};

use crate::{
    proxy,
    reply::{HttpError, Reply},
    request::Ctx,
};

/// How long the person's end may take for what it says before and after the refusal.
const PATIENCE: Duration = Duration::from_secs(5);

/// Passes the session on to the allocation's node, or refuses it.
pub(crate) async fn exec(ctx: Ctx) -> Result<Reply, HttpError> {
    let unknown = ctx.server().snapshot().alloc(ctx.alloc_id("alloc")?).is_none();
    if !unknown || !ctx.headers.contains_key(UPGRADE) {
        return proxy::by_alloc(ctx).await;
    }
    let why = format!("Unknown allocation {:?}", ctx.param("alloc"));
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
    Ok(Reply::foreign(socket.on_upgrade(move |socket| refuse(socket, why, greeted))))
}

/// Reads until the other end has heard it: a connection that is dropped with input unread is reset, and what was
/// said last is lost with it.
async fn refuse(mut socket: WebSocket, why: String, greeted: bool) {
    let said = async {
        if greeted && !matches!(socket.recv().await, Some(Ok(_))) {
            return;
        }
        let frame = CloseFrame { code: close_code::POLICY, reason: why.into() };
        if socket.send(Message::Close(Some(frame))).await.is_ok() {
            while let Some(Ok(_)) = socket.recv().await {}
        }
    };
    // The person may have gone.
    let _ = tokio::time::timeout(PATIENCE, said).await;
}

//! The websocket of an exec session.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use http::{
    Method, Request, StatusCode,
    header::{CONNECTION, HOST, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_VERSION, UPGRADE},
};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{Message, handshake::derive_accept_key, protocol::Role},
};

use super::{Address, Body, ClientError, Connection, transport};
use crate::shapes::{ExecInput, ExecOutput};

/// A command that runs beside a task. Dropping it ends the command.
#[derive(Debug)]
pub struct ExecSocket(WebSocketStream<TokioIo<Upgraded>>);

impl ExecSocket {
    pub(super) async fn open(
        address: &Address,
        tls: Option<&tls::Dialer>,
        token: &str,
        uri: String,
    ) -> Result<Self, ClientError> {
        let method = Method::GET;
        let broken = |source| ClientError::Broken { method: Method::GET, path: uri.clone(), source };
        let key = STANDARD.encode(uuid::Uuid::new_v4().as_bytes());
        let mut request = Request::builder()
            .method(&method)
            .uri(&uri)
            .header(HOST, address.host())
            .header(CONNECTION, "Upgrade")
            .header(UPGRADE, "websocket")
            .header(SEC_WEBSOCKET_VERSION, "13")
            .header(SEC_WEBSOCKET_KEY, &key);
        if !token.is_empty() {
            request = request.header("x-nomad-token", token);
        }
        let request = request.body(Body::from(Bytes::new())).map_err(|source| ClientError::Invalid {
            method,
            path: uri.clone(),
            source,
        })?;
        let mut connection: Connection<Body> = Connection::open(address, tls)
            .await
            .map_err(|source| ClientError::Connect { address: address.to_string(), source })?;
        let response = connection.send(request).await.map_err(broken)?;
        let status = response.status();
        if status != StatusCode::SWITCHING_PROTOCOLS {
            let text = transport::collect(response.into_body()).await.map_err(broken)?;
            return Err(ClientError::Status { status, message: String::from_utf8_lossy(&text).trim_end().to_owned() });
        }
        if response
            .headers()
            .get(SEC_WEBSOCKET_ACCEPT)
            .is_none_or(|v| v.as_bytes() != derive_accept_key(key.as_bytes()).as_bytes())
        {
            return Err(ClientError::Closed("the agent's upgrade to a websocket does not answer this request".into()));
        }
        let upgraded = hyper::upgrade::on(response).await.map_err(broken)?;
        Ok(Self(WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Client, None).await))
    }

    /// Sends input. Waits while the other side does not read.
    ///
    /// # Errors
    /// When the connection broke.
    pub async fn send(&mut self, input: &ExecInput) -> Result<(), ClientError> {
        let text = serde_json::to_string(input).map_err(|e| ClientError::Closed(e.to_string()))?;
        self.0.send(Message::text(text)).await.map_err(|e| ClientError::Closed(format!("the exec session broke: {e}")))
    }

    /// The next output; None after an orderly end. Cancel safe.
    ///
    /// # Errors
    /// When the connection broke, or the agent closed it with a reason: the text is the agent's.
    pub async fn next(&mut self) -> Result<Option<ExecOutput>, ClientError> {
        loop {
            match self.0.next().await {
                Some(Ok(Message::Text(text))) => {
                    let output = serde_json::from_str(&text);
                    return output
                        .map(Some)
                        .map_err(|e| ClientError::Closed(format!("the agent's exec message makes no sense: {e}")));
                }
                Some(Ok(Message::Close(Some(frame)))) if !frame.reason.is_empty() => {
                    return Err(ClientError::Closed(frame.reason.to_string()));
                }
                None | Some(Ok(Message::Close(_))) => return Ok(None),
                // Pings are answered by the library.
                Some(Ok(_)) => {}
                Some(Err(e)) => return Err(ClientError::Closed(format!("the exec session broke: {e}"))),
            }
        }
    }
}

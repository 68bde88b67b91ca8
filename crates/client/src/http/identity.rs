//! `/v1/client/identity`: what the servers have signed about this node.

use api::shapes::NodeIdentity;
use axum::{extract::State, response::Response};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde_json::json;

use super::answer::{Query, json as answer};
use crate::{error::RequestError, handle::ClientHandle};

/// The claims of the node's identity, without the token: whoever has that is the node.
pub(super) async fn get(State(handle): State<ClientHandle>, query: Query) -> Result<Response, RequestError> {
    let none = || {
        RequestError::NotFound("the node has no identity yet: a server gives it one when the node registers".to_owned())
    };
    let token = handle.signed_identity().token().ok_or_else(none)?;
    let claims = claims_of(&token).ok_or_else(|| RequestError::Failed("the node's identity is damaged".to_owned()))?;
    Ok(answer(&NodeIdentity { claims }, query.pretty()))
}

/// The next heartbeat asks for a new one.
pub(super) async fn renew(State(handle): State<ClientHandle>) -> Response {
    handle.signed_identity().want();
    answer(&json!({}), false)
}

fn claims_of(token: &str) -> Option<serde_json::Map<String, serde_json::Value>> {
    let claims = token.split('.').nth(1)?;
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims).ok()?).ok()
}

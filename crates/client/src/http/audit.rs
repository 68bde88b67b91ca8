//! `/v1/client/audit`: the books of this node.

use axum::{extract::State, http::Method, response::Response};

use super::answer::{Query, json};
use crate::handle::ClientHandle;

/// GET looks, PUT also ends what nobody claims.
pub(super) async fn audit(State(handle): State<ClientHandle>, method: Method, query: Query) -> Response {
    json(&handle.audit(method != Method::GET).await, query.pretty())
}

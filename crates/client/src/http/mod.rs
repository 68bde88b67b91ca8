//! The client endpoints of the HTTP API (`/v1/client/…`), as a router that the agent's HTTP server mounts or calls.

use axum::Router;

use crate::client::ClientHandle;

/// Routes of all client endpoints that this node answers, with their full paths.
pub fn router(handle: ClientHandle) -> Router {
    Router::new().with_state(handle)
}

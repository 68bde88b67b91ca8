//! The client endpoints of the HTTP API (`/v1/client/…`), as a router that the agent's HTTP server mounts or calls.
//!
//! Errors are plain text with the status that existing clients expect. Files are never served under a type that a
//! browser would run.

mod allocs;
mod answer;
mod audit;
mod drivers;
mod exec;
mod files;
mod frames;
mod fs;
mod identity;
mod logs;
mod modes;
mod snapshot;

use axum::{
    Router,
    http::{HeaderValue, header},
    response::Response,
    routing::{any, get},
};

use crate::handle::ClientHandle;

/// Routes of all client endpoints that this node answers, with their full paths.
pub fn router(handle: ClientHandle) -> Router {
    Router::new()
        .route("/v1/client/fs/ls/{alloc}", get(fs::ls))
        .route("/v1/client/fs/stat/{alloc}", get(fs::stat))
        .route("/v1/client/fs/cat/{alloc}", get(fs::cat))
        .route("/v1/client/fs/readat/{alloc}", get(fs::readat))
        .route("/v1/client/fs/stream/{alloc}", get(fs::stream))
        .route("/v1/client/fs/logs/{alloc}", get(logs::logs))
        .route("/v1/client/allocation/{alloc}/stats", get(allocs::stats))
        .route("/v1/client/allocation/{alloc}/checks", get(allocs::checks))
        .route("/v1/client/allocation/{alloc}/signal", axum::routing::put(allocs::signal).post(allocs::signal))
        .route("/v1/client/allocation/{alloc}/restart", axum::routing::put(allocs::restart).post(allocs::restart))
        .route("/v1/client/allocation/{alloc}/gc", get(allocs::gc).put(allocs::gc).post(allocs::gc))
        .route("/v1/client/allocation/{alloc}/pause", any(allocs::pause))
        .route("/v1/client/allocation/{alloc}/exec", any(exec::exec))
        .route("/v1/client/allocation/{alloc}/snapshot", get(snapshot::snapshot))
        .route("/v1/client/audit", get(audit::audit).put(audit::audit).post(audit::audit))
        .route("/v1/client/drivers/reload", axum::routing::put(drivers::reload).post(drivers::reload))
        .route("/v1/client/gc", get(allocs::gc_all).put(allocs::gc_all).post(allocs::gc_all))
        .route("/v1/client/stats", get(allocs::host_stats))
        .route("/v1/client/identity", get(identity::get))
        .route("/v1/client/identity/renew", axum::routing::put(identity::renew).post(identity::renew))
        .route("/v1/client/metadata", get(allocs::metadata).put(allocs::change_metadata).post(allocs::change_metadata))
        .layer(axum::middleware::map_response(inert))
        .with_state(handle)
}

/// What tasks have written is shown by no browser as anything that runs: neither by its type, nor by a guess, nor with
/// the rights of this origin.
async fn inert(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static("default-src 'none'; sandbox"));
    response
}

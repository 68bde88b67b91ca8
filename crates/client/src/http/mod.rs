//! The client endpoints of the HTTP API (`/v1/client/…`), as a router that the agent's HTTP server mounts or calls.
//!
//! Errors are plain text with the status that existing clients expect. Files are never served under a type that a browser would run.

mod allocs;
mod audit;
mod drivers;
mod exec;
mod files;
mod frames;
mod fs;
mod logs;
mod modes;
mod snapshot;

use std::collections::BTreeMap;

use axum::{
    Router,
    body::Body,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::{any, get},
};
use model::AllocId;
use serde::Serialize;
#[cfg(test)]
pub(crate) use snapshot::write_tar;

use crate::{alloc::AllocHandle, client::ClientHandle, error::RequestError, node};

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
        .route("/v1/client/metadata", get(allocs::metadata).put(allocs::change_metadata).post(allocs::change_metadata))
        .with_state(handle)
}

impl IntoResponse for RequestError {
    fn into_response(self) -> Response {
        let status = match &self {
            Self::NotFound(_) => StatusCode::NOT_FOUND,
            Self::Invalid(_) => StatusCode::BAD_REQUEST,
            Self::Failed(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        text(status, self.to_string())
    }
}

/// A plain text answer.
pub(crate) fn text(status: StatusCode, body: impl Into<Body>) -> Response {
    (status, [(header::CONTENT_TYPE, "text/plain; charset=utf-8")], body.into()).into_response()
}

/// A JSON answer.
pub(crate) fn json(value: &impl Serialize, pretty: bool) -> Response {
    let bytes = if pretty { serde_json::to_vec_pretty(value) } else { serde_json::to_vec(value) };
    match bytes {
        Ok(bytes) => ([(header::CONTENT_TYPE, "application/json")], bytes).into_response(),
        Err(e) => text(StatusCode::INTERNAL_SERVER_ERROR, e.to_string()),
    }
}

/// Raw bytes of a file or log.
pub(crate) fn raw(body: Body) -> Response {
    ([(header::CONTENT_TYPE, "text/plain; charset=utf-8"), (header::X_CONTENT_TYPE_OPTIONS, "nosniff")], body).into_response()
}

/// Query parameters, the last of equal names winning.
#[derive(Clone, Debug, Default)]
pub(crate) struct Query(BTreeMap<String, String>);

impl<S: Send + Sync> axum::extract::FromRequestParts<S> for Query {
    type Rejection = Response;
    async fn from_request_parts(parts: &mut axum::http::request::Parts, _: &S) -> Result<Self, Response> {
        let query = axum::extract::Query::<Vec<(String, String)>>::try_from_uri(&parts.uri);
        query.map(|q| Self(q.0.into_iter().collect())).map_err(|e| text(StatusCode::BAD_REQUEST, e.to_string()))
    }
}

impl Query {
    pub(crate) fn get(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }

    /// Present and empty counts as true, as Go clients send it.
    pub(crate) fn flag(&self, name: &str) -> Result<bool, RequestError> {
        match self.0.get(name).map(String::as_str) {
            None => Ok(false),
            Some("" | "1" | "t" | "T" | "true" | "TRUE" | "True") => Ok(true),
            Some("0" | "f" | "F" | "false" | "FALSE" | "False") => Ok(false),
            Some(other) => Err(RequestError::Invalid(format!("Failed to parse value of {name:?} ({other:?}) as a bool"))),
        }
    }

    pub(crate) fn number(&self, name: &str) -> Result<Option<i64>, RequestError> {
        match self.get(name) {
            "" => Ok(None),
            text => text.parse().map(Some).map_err(|_| RequestError::Invalid(format!("error parsing {name}: {text:?} is not a number"))),
        }
    }

    pub(crate) fn pretty(&self) -> bool {
        self.0.get("pretty").is_some_and(|v| v != "0")
    }
}

/// The loop of an allocation by the id in the path.
pub(crate) fn find(handle: &ClientHandle, id: &str) -> Result<(AllocId, AllocHandle), RequestError> {
    let parsed: AllocId = id.parse().map_err(|_| RequestError::Invalid("must provide a valid alloc id".into()))?;
    if parsed.is_nil() {
        return Err(RequestError::Invalid("must provide a valid alloc id".into()));
    }
    node::handle(&handle.inner.allocs, parsed).map(|h| (parsed, h)).ok_or_else(|| RequestError::unknown_alloc(parsed))
}

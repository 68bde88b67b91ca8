//! What all endpoints share: the parameters of a request, the allocation that it is about, and the forms of an answer.

use axum::{
    body::Body,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use model::AllocId;
use serde::Serialize;

use crate::{alloc::AllocHandle, allocs, error::RequestError, handle::ClientHandle};

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
pub(super) fn text(status: StatusCode, body: impl Into<Body>) -> Response {
    (status, [(header::CONTENT_TYPE, "text/plain; charset=utf-8")], body.into()).into_response()
}

/// A JSON answer.
pub(super) fn json(value: &impl Serialize, pretty: bool) -> Response {
    let bytes = if pretty { serde_json::to_vec_pretty(value) } else { serde_json::to_vec(value) };
    match bytes {
        Ok(bytes) => ([(header::CONTENT_TYPE, "application/json")], bytes).into_response(),
        Err(e) => text(StatusCode::INTERNAL_SERVER_ERROR, e.to_string()),
    }
}

/// Raw bytes of a file or log.
pub(super) fn raw(body: Body) -> Response {
    ([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], body).into_response()
}

/// Query parameters, as the servers read them: what they have allowed is what is done here.
#[derive(Clone, Debug, Default)]
pub(super) struct Query(api::query::Query);

impl<S: Send + Sync> axum::extract::FromRequestParts<S> for Query {
    type Rejection = Response;
    async fn from_request_parts(parts: &mut axum::http::request::Parts, _: &S) -> Result<Self, Response> {
        let query = api::query::Query::parse(parts.uri.query().unwrap_or_default());
        query.map(Self).map_err(|e| text(StatusCode::BAD_REQUEST, e.to_string()))
    }
}

impl Query {
    pub(super) fn get(&self, name: &str) -> &str {
        self.0.text(name)
    }

    /// Present and empty counts as true, as Go clients send it.
    pub(super) fn flag(&self, name: &str) -> Result<bool, RequestError> {
        match self.0.get(name) {
            None => Ok(false),
            Some("" | "1" | "t" | "T" | "true" | "TRUE" | "True") => Ok(true),
            Some("0" | "f" | "F" | "false" | "FALSE" | "False") => Ok(false),
            Some(other) => {
                Err(RequestError::Invalid(format!("Failed to parse value of {name:?} ({other:?}) as a bool")))
            }
        }
    }

    pub(super) fn number(&self, name: &str) -> Result<Option<i64>, RequestError> {
        match self.get(name) {
            "" => Ok(None),
            text => text
                .parse()
                .map(Some)
                .map_err(|_| RequestError::Invalid(format!("error parsing {name}: {text:?} is not a number"))),
        }
    }

    pub(super) fn pretty(&self) -> bool {
        self.0.get("pretty").is_some_and(|v| v != "0")
    }
}

/// The loop of an allocation by the id in the path.
pub(super) fn find(handle: &ClientHandle, id: &str) -> Result<(AllocId, AllocHandle), RequestError> {
    let parsed: AllocId = id.parse().map_err(|_| RequestError::Invalid("must provide a valid alloc id".into()))?;
    if parsed.is_nil() {
        return Err(RequestError::Invalid("must provide a valid alloc id".into()));
    }
    allocs::handle(&handle.inner.allocs, parsed).map(|h| (parsed, h)).ok_or_else(|| RequestError::unknown_alloc(parsed))
}

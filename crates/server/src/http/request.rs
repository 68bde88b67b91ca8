//! A request on its way to its handler.

use std::sync::{Arc, Mutex, PoisonError};

use api::{
    go_json,
    query::{ListOptions, Query},
};
use axum::body::Body;
use http::{HeaderMap, Method, StatusCode, Uri};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use model::{AllocId, DeploymentId, EvalId, JobKey, NodeId};
use serde::{Serialize, de::DeserializeOwned};

use super::{
    App,
    reply::{HttpError, Reply},
};
use crate::handle::ServerHandle;

/// A request on its way to its handler.
pub(super) struct Ctx {
    pub(super) app: Arc<App>,
    pub(super) method: Method,
    pub(super) uri: Uri,
    pub(super) params: Vec<(&'static str, String)>,
    pub(super) query: Query,
    pub(super) headers: HeaderMap,
    /// Taken by whoever reads it. The lock makes a request shareable between threads, which a body is not.
    pub(super) body: Mutex<Body>,
    /// The connection after its upgrade, when the client asks for one.
    pub(super) upgrade: Mutex<Option<hyper::upgrade::OnUpgrade>>,
}

impl Ctx {
    pub(super) fn server(&self) -> &ServerHandle {
        &self.app.server
    }

    /// A part of the path.
    pub(super) fn param(&self, name: &str) -> &str {
        self.params.iter().find(|(n, _)| *n == name).map_or("", |(_, v)| v)
    }

    /// The job that the path and the namespace name.
    pub(super) fn job_key(&self) -> JobKey {
        JobKey::new(self.query.namespace(), self.param("id"))
    }

    pub(super) fn list_options(&self) -> Result<ListOptions, HttpError> {
        ListOptions::parse(&self.query).map_err(HttpError::bad_request)
    }

    /// The body, once.
    pub(super) fn take_body(&self) -> Body {
        std::mem::take(&mut *self.body.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The same request with another body.
    pub(super) fn with_body(self, body: Body) -> Self {
        Self { body: Mutex::new(body), ..self }
    }

    /// The whole body.
    pub(super) async fn bytes(&self) -> Result<bytes::Bytes, HttpError> {
        let limit = self.app.options.max_body_bytes;
        match Limited::new(self.take_body(), limit).collect().await {
            Ok(body) => Ok(body.to_bytes()),
            Err(e) if e.is::<LengthLimitError>() => Err(HttpError::new(
                StatusCode::PAYLOAD_TOO_LARGE,
                format_args!("the request's body is larger than the limit of {limit} bytes"),
            )),
            Err(e) => Err(HttpError::bad_request(format_args!("reading the request's body failed: {e}"))),
        }
    }

    /// The body as JSON.
    pub(super) async fn json<T: DeserializeOwned>(&self) -> Result<T, HttpError> {
        let bytes = self.bytes().await?;
        go_json::from_slice(&bytes).map_err(|e| HttpError::bad_request(format_args!("failed to decode the request's body: {e}")))
    }

    /// The body as JSON; none counts as an empty object.
    pub(super) async fn json_or_default<T: DeserializeOwned + Default>(&self) -> Result<T, HttpError> {
        let bytes = self.bytes().await?;
        match go_json::from_slice(&bytes) {
            Err(go_json::Error::Empty) => Ok(T::default()),
            other => other.map_err(|e| HttpError::bad_request(format_args!("failed to decode the request's body: {e}"))),
        }
    }

    pub(super) fn alloc_id(&self, name: &str) -> Result<AllocId, HttpError> {
        uuid(self.param(name), "alloc").map(AllocId)
    }
    pub(super) fn eval_id(&self, name: &str) -> Result<EvalId, HttpError> {
        uuid(self.param(name), "eval").map(EvalId)
    }
    pub(super) fn deployment_id(&self, name: &str) -> Result<DeploymentId, HttpError> {
        uuid(self.param(name), "deployment").map(DeploymentId)
    }
    pub(super) fn node_id(&self, name: &str) -> Result<NodeId, HttpError> {
        uuid(self.param(name), "node").map(NodeId)
    }

    /// An answer in JSON, without headers about the state.
    pub(super) fn plain<T: Serialize + ?Sized>(&self, value: &T) -> Result<Reply, HttpError> {
        Reply::json(value, self.query.pretty())
    }

    /// An answer to a read.
    pub(super) fn read<T: Serialize + ?Sized>(&self, index: u64, value: &T) -> Result<Reply, HttpError> {
        Ok(self.plain(value)?.read_at(index))
    }

    /// An answer to a write.
    pub(super) fn written<T: Serialize + ?Sized>(&self, index: u64, value: &T) -> Result<Reply, HttpError> {
        Ok(self.plain(value)?.written_at(index))
    }
}

/// A whole id.
pub(super) fn uuid(text: &str, kind: &str) -> Result<uuid::Uuid, HttpError> {
    let bad = |why: &str| HttpError::internal(format_args!("{kind} lookup failed: index error: {why}"));
    if text.len() != 36 {
        return Err(bad("UUID must be 36 characters"));
    }
    uuid::Uuid::try_parse(text).map_err(|e| bad(&format!("Invalid UUID: {e}")))
}

/// The beginning of an id: hexadecimal digits of even number, in the form that ids have.
pub(super) fn uuid_prefix(text: &str, kind: &str) -> Result<String, HttpError> {
    let bad = |why: String| HttpError::internal(format_args!("{kind} lookup failed: index error: {why}"));
    if text.len() > 36 {
        return Err(bad(format!("Invalid UUID length. UUID have 36 characters; got {}", text.len())));
    }
    let hyphens = text.matches('-').count();
    if hyphens > 4 {
        return Err(bad(format!("UUID should have maximum of 4 \"-\"; got {hyphens}")));
    }
    let digits: String = text.chars().filter(|c| *c != '-').collect();
    if !digits.len().is_multiple_of(2) {
        return Err(bad("Input (without hyphens) must be even length".to_owned()));
    }
    if let Some(c) = digits.chars().find(|c| !c.is_ascii_hexdigit()) {
        return Err(bad(format!("Invalid UUID: {c:?} is not a hexadecimal digit")));
    }
    Ok(hyphenated(&digits))
}

/// Puts the hyphens of an id into its first digits.
pub(super) fn hyphenated(digits: &str) -> String {
    let mut out = String::with_capacity(36);
    for (i, c) in digits.chars().enumerate() {
        if matches!(i, 8 | 12 | 16 | 20) {
            out.push('-');
        }
        out.push(c.to_ascii_lowercase());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_of_ids() {
        for (text, out) in
            [("", ""), ("AB", "ab"), ("abcdef01-2345", "abcdef01-2345"), ("abcdef0123", "abcdef01-23"), ("abcdef01-", "abcdef01")]
        {
            assert_eq!(uuid_prefix(text, "alloc").expect(text), out, "{text}");
        }
        for (text, message) in [
            ("abc", "alloc lookup failed: index error: Input (without hyphens) must be even length"),
            ("zz", "alloc lookup failed: index error: Invalid UUID: 'z' is not a hexadecimal digit"),
            ("------", "alloc lookup failed: index error: UUID should have maximum of 4 \"-\"; got 6"),
        ] {
            let error = uuid_prefix(text, "alloc").expect_err(text);
            assert_eq!((error.status().as_u16(), error.text()), (500, message));
        }
        assert!(uuid_prefix(&"a".repeat(38), "node").is_err());
    }
}

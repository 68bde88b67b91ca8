//! The engine's HTTP API, as far as this driver needs it.
//!
//! Calls are made directly rather than through a client crate: logs and terminals must arrive byte by byte, whatever
//! they hold, and an answer with a field that a later engine has changed must not hide the state of a container.

pub(crate) mod endpoint;
mod frames;
mod ssh;
pub(crate) mod types;

use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, Limited, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::upgrade::Upgraded;
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::config::TlsFiles;
use endpoint::{Connector, Endpoint};
pub(crate) use frames::{Demux, Stream};
use types::Version;

/// Longest wait for the beginning of an answer. Creating and removing containers on a busy disk takes its time.
const ANSWER_WITHIN: Duration = Duration::from_secs(120);
/// Longest wait for answers that only look.
const LOOK_WITHIN: Duration = Duration::from_secs(20);
/// Largest answer that is taken as one value.
const ANSWER_MAX: usize = 64 << 20;
/// The newest version of the API whose meaning is known here.
const NEWEST: Api = Api(1, 47);

/// A request's body.
pub(crate) type Body = UnsyncBoxBody<Bytes, io::Error>;

/// Version of the engine's API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Api(pub(crate) u32, pub(crate) u32);

impl Api {
    fn parse(text: &str) -> Option<Api> {
        let (major, minor) = text.split_once('.')?;
        Some(Api(major.parse().ok()?, minor.parse().ok()?))
    }
}

impl std::fmt::Display for Api {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

/// Why a call brought nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum EngineError {
    /// No connection, or one that broke: nothing is known.
    #[error("could not {doing}: the engine at {endpoint} cannot be reached: {why}")]
    Away {
        /// What was attempted.
        doing: String,
        /// Where.
        endpoint: String,
        /// Why.
        why: String,
    },
    /// The engine answered, and not with what was asked for.
    #[error("could not {doing}: the engine says: {message} (status {status})")]
    Refused {
        /// What was attempted.
        doing: String,
        /// HTTP status.
        status: u16,
        /// The engine's words.
        message: String,
    },
    /// The answer is none that an engine gives.
    #[error("could not {doing}: what answers at {endpoint} does not speak as an engine does: {why}")]
    Garbage {
        /// What was attempted.
        doing: String,
        /// Where.
        endpoint: String,
        /// What is wrong with it.
        why: String,
    },
}

impl EngineError {
    fn status(&self) -> Option<u16> {
        match self {
            EngineError::Refused { status, .. } => Some(*status),
            _ => None,
        }
    }

    /// There is no such object: a positive answer.
    pub(crate) fn is_absent(&self) -> bool {
        self.status() == Some(404)
    }

    /// The name is taken, or the object is not in the state that the call needs.
    pub(crate) fn is_conflict(&self) -> bool {
        self.status() == Some(409)
    }

    /// The engine refuses the request as such.
    pub(crate) fn is_wrong_request(&self) -> bool {
        self.status() == Some(400)
    }

    /// The engine itself has refused the call: it was there from its beginning to its end.
    pub(crate) fn is_answer(&self) -> bool {
        matches!(self, EngineError::Refused { status, .. } if !matches!(status, 502..=504))
    }

    /// Nothing was learned about the object of the call.
    pub(crate) fn is_away(&self) -> bool {
        !matches!(self, EngineError::Refused { status: ..500, .. })
    }
}

/// A client of one engine.
pub(crate) struct Engine {
    client: Client<Connector, Body>,
    connector: Connector,
    version: Mutex<Option<(Api, Version)>>,
}

/// Percent-encodes a value of a query or a part of a path.
pub(crate) fn encode(text: &str) -> String {
    use std::fmt::Write;
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => out.push(char::from(byte)),
            _ => {
                let _ = write!(out, "%{byte:02X}");
            }
        }
    }
    out
}

/// The `filters` of a listing: key → values.
pub(crate) fn filters(wanted: &[(&str, &str)]) -> String {
    let mut map: std::collections::BTreeMap<&str, Vec<&str>> = Default::default();
    for (key, value) in wanted {
        map.entry(key).or_default().push(value);
    }
    encode(&serde_json::to_string(&map).unwrap_or_default())
}

fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

/// A body that is read while it is sent.
pub(crate) fn streamed(stream: impl futures::Stream<Item = io::Result<Bytes>> + Send + 'static) -> Body {
    StreamBody::new(stream.map(|chunk| chunk.map(Frame::data))).boxed_unsync()
}

impl Engine {
    /// A client; connects with the first call.
    pub(crate) fn new(endpoint: Endpoint, tls: Option<&TlsFiles>, ssh_config: &str) -> Result<Engine, String> {
        let connector = Connector::new(endpoint, tls, ssh_config)?;
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(Duration::from_secs(60))
            .pool_max_idle_per_host(8)
            .build(connector.clone());
        Ok(Engine { client, connector, version: Mutex::default() })
    }

    /// Where the engine is.
    pub(crate) fn endpoint(&self) -> &Endpoint {
        self.connector.endpoint()
    }

    pub(crate) fn away(&self, doing: &str, why: impl ToString) -> EngineError {
        EngineError::Away { doing: doing.into(), endpoint: self.endpoint().to_string(), why: why.to_string() }
    }

    pub(crate) fn garbage(&self, doing: &str, why: impl ToString) -> EngineError {
        EngineError::Garbage { doing: doing.into(), endpoint: self.endpoint().to_string(), why: why.to_string() }
    }

    async fn send(
        &self,
        doing: &str,
        request: Request<Body>,
        within: Duration,
    ) -> Result<Response<Incoming>, EngineError> {
        let answer = match tokio::time::timeout(within, self.client.request(request)).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => return Err(self.away(doing, chain(&error))),
            Err(_) => return Err(self.away(doing, format!("no answer within {} s", within.as_secs()))),
        };
        let status = answer.status();
        if status.is_success() || status == StatusCode::SWITCHING_PROTOCOLS || status == StatusCode::NOT_MODIFIED {
            return Ok(answer);
        }
        let bytes = self.collect(doing, answer, within).await?;
        let message = match serde_json::from_slice::<Value>(&bytes) {
            Ok(value) => value["message"].as_str().map(str::to_owned).unwrap_or_else(|| value.to_string()),
            Err(_) => String::from_utf8_lossy(&bytes[..bytes.len().min(500)]).trim().to_owned(),
        };
        Err(EngineError::Refused { doing: doing.into(), status: status.as_u16(), message })
    }

    async fn collect(&self, doing: &str, answer: Response<Incoming>, within: Duration) -> Result<Bytes, EngineError> {
        let body = Limited::new(answer.into_body(), ANSWER_MAX).collect();
        match tokio::time::timeout(within, body).await {
            Ok(Ok(body)) => Ok(body.to_bytes()),
            Ok(Err(error)) => Err(self.away(doing, error)),
            Err(_) => Err(self.away(doing, format!("the answer did not end within {} s", within.as_secs()))),
        }
    }

    fn request(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Request<Body>, http::Error> {
        let mut builder =
            Request::builder().method(method).uri(format!("http://engine{path}")).header(http::header::HOST, "engine");
        if body.is_some() {
            builder = builder.header(http::header::CONTENT_TYPE, "application/json");
        }
        builder.body(full(body.map(Value::to_string).unwrap_or_default()))
    }

    fn parse<T: DeserializeOwned>(&self, doing: &str, bytes: &[u8]) -> Result<T, EngineError> {
        serde_json::from_slice(bytes).map_err(|e| self.garbage(doing, e))
    }

    /// What answers here, and in which version of the API we speak with it. Asked once per process and again after
    /// [`Engine::forget_version`].
    pub(crate) async fn version(&self) -> Result<(Api, Version), EngineError> {
        if let Some(known) = self.version.lock().unwrap_or_else(PoisonError::into_inner).clone() {
            return Ok(known);
        }
        let doing = "ask for its version";
        let request = self.request(Method::GET, "/version", None).map_err(|e| self.garbage(doing, e))?;
        let answer = self.send(doing, request, LOOK_WITHIN).await?;
        let bytes = self.collect(doing, answer, LOOK_WITHIN).await?;
        let version: Version = self.parse(doing, &bytes)?;
        let Some(newest) = Api::parse(&version.api_version) else {
            return Err(self.garbage(doing, format!("{:?} is not a version of the API", version.api_version)));
        };
        let oldest = Api::parse(&version.min_api_version).unwrap_or(Api(1, 12));
        let api = newest.min(NEWEST).max(oldest);
        *self.version.lock().unwrap_or_else(PoisonError::into_inner) = Some((api, version.clone()));
        Ok((api, version))
    }

    /// Another engine may answer from now on.
    pub(crate) fn forget_version(&self) {
        *self.version.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// The version of the API that calls use.
    pub(crate) async fn api(&self) -> Result<Api, EngineError> {
        Ok(self.version().await?.0)
    }

    async fn path(&self, path: &str) -> Result<String, EngineError> {
        Ok(format!("/v{}{path}", self.api().await?))
    }

    async fn call(
        &self,
        doing: &str,
        method: Method,
        path: &str,
        body: Option<&Value>,
        within: Duration,
    ) -> Result<Response<Incoming>, EngineError> {
        let path = self.path(path).await?;
        let request = self.request(method, &path, body).map_err(|e| self.garbage(doing, e))?;
        self.send(doing, request, within).await
    }

    /// GET, as a value.
    pub(crate) async fn get<T: DeserializeOwned>(&self, doing: &str, path: &str) -> Result<T, EngineError> {
        let answer = self.call(doing, Method::GET, path, None, LOOK_WITHIN).await?;
        let bytes = self.collect(doing, answer, LOOK_WITHIN).await?;
        self.parse(doing, &bytes)
    }

    /// GET, as a stream.
    pub(crate) async fn stream(&self, doing: &str, path: &str) -> Result<Incoming, EngineError> {
        Ok(self.call(doing, Method::GET, path, None, LOOK_WITHIN).await?.into_body())
    }

    /// POST whose answer is a value.
    pub(crate) async fn post<T: DeserializeOwned>(
        &self,
        doing: &str,
        path: &str,
        body: &Value,
    ) -> Result<T, EngineError> {
        let answer = self.call(doing, Method::POST, path, Some(body), ANSWER_WITHIN).await?;
        let bytes = self.collect(doing, answer, ANSWER_WITHIN).await?;
        self.parse(doing, &bytes)
    }

    /// POST of something whose answer does not matter.
    pub(crate) async fn tell(&self, doing: &str, path: &str, body: &Value) -> Result<(), EngineError> {
        let answer = self.call(doing, Method::POST, path, Some(body), ANSWER_WITHIN).await?;
        self.collect(doing, answer, ANSWER_WITHIN).await.map(drop)
    }

    /// POST whose answer does not matter. True when something was done, false when it was done before.
    pub(crate) async fn act(&self, doing: &str, path: &str) -> Result<bool, EngineError> {
        let answer = self.call(doing, Method::POST, path, None, ANSWER_WITHIN).await?;
        let status = answer.status();
        self.collect(doing, answer, ANSWER_WITHIN).await?;
        Ok(status != StatusCode::NOT_MODIFIED)
    }

    /// DELETE.
    pub(crate) async fn delete(&self, doing: &str, path: &str) -> Result<(), EngineError> {
        let answer = self.call(doing, Method::DELETE, path, None, ANSWER_WITHIN).await?;
        self.collect(doing, answer, ANSWER_WITHIN).await.map(drop)
    }

    /// Sends an archive; answers with the engine's stream of words about it. `header` goes along.
    pub(crate) async fn upload(
        &self,
        doing: &str,
        method: Method,
        path: &str,
        body: Option<Body>,
        header: Option<(&'static str, String)>,
        within: Duration,
    ) -> Result<Incoming, EngineError> {
        let path = self.path(path).await?;
        let mut builder =
            Request::builder().method(method).uri(format!("http://engine{path}")).header(http::header::HOST, "engine");
        if body.is_some() {
            builder = builder.header(http::header::CONTENT_TYPE, "application/x-tar");
        }
        if let Some((name, value)) = header {
            builder = builder.header(name, value);
        }
        let request = builder.body(body.unwrap_or_else(|| full(Bytes::new()))).map_err(|e| self.garbage(doing, e))?;
        Ok(self.send(doing, request, within).await?.into_body())
    }

    /// POST that turns the connection into a pipe to a process.
    pub(crate) async fn hijack(&self, doing: &str, path: &str, body: &Value) -> Result<TokioIo<Upgraded>, EngineError> {
        let path = self.path(path).await?;
        let mut request = self.request(Method::POST, &path, Some(body)).map_err(|e| self.garbage(doing, e))?;
        let headers = request.headers_mut();
        headers.insert(http::header::CONNECTION, http::HeaderValue::from_static("Upgrade"));
        headers.insert(http::header::UPGRADE, http::HeaderValue::from_static("tcp"));
        let answer = self.send(doing, request, LOOK_WITHIN).await?;
        let pipe = hyper::upgrade::on(answer).await.map_err(|e| self.away(doing, e))?;
        Ok(TokioIo::new(pipe))
    }
}

/// An error with what caused it: the outermost alone says only "client error".
fn chain(error: &dyn std::error::Error) -> String {
    let mut texts: Vec<String> = Vec::new();
    let mut next = Some(error);
    while let Some(error) = next {
        let text = error.to_string();
        if !texts.last().is_some_and(|last| last.contains(&text)) {
            texts.push(text);
        }
        next = error.source();
    }
    texts.join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_encoded() {
        assert_eq!(encode("a b/c:é"), "a%20b%2Fc%3A%C3%A9");
        assert_eq!(filters(&[("label", "a=b"), ("label", "c")]), encode(r#"{"label":["a=b","c"]}"#));
    }

    #[test]
    fn versions_have_an_order() {
        assert!(Api::parse("1.9") < Api::parse("1.41") && Api::parse("1").is_none() && Api::parse("x.y").is_none());
    }
}

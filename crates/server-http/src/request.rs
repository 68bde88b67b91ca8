//! A request on its way to its handler.

use std::{
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use api::{
    client::Gate,
    go_json,
    query::{ListOptions, Query},
};
use axum::body::Body;
use http::{HeaderMap, Method, StatusCode, Uri};
use model::{AllocId, DeploymentId, EvalId, JobKey, NodeId};
use serde::{Serialize, de::DeserializeOwned};
use server::{Answering, ServerHandle};
use tokio::sync::Semaphore;

use crate::{
    attempts::Failures,
    audit::About,
    authority::Authority,
    bodies::{Bodies, SMALL},
    caller::Caller,
    options::HttpOptions,
    reply::{HttpError, Reply},
};

/// How long a body may take to arrive.
const BODY_PATIENCE: Duration = Duration::from_secs(60);
/// Objects and lists in a body of JSON: each costs much more memory than the two bytes that it is written with.
const MAX_OBJECTS: usize = 100_000;
/// Values of any kind in it: each takes 32 bytes and more, whether it is written with one byte or with many.
const MAX_VALUES: usize = 1_000_000;

/// Counts the objects and lists of JSON, and the commas between values, without reading it.
fn counted(json: &[u8]) -> (usize, usize) {
    let (mut objects, mut commas, mut text, mut escaped) = (0, 0, false, false);
    for byte in json {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if text => escaped = true,
            b'"' => text = !text,
            b'{' | b'[' if !text => objects += 1,
            b',' if !text => commas += 1,
            _ => {}
        }
    }
    (objects, commas)
}

fn few_objects(json: &[u8]) -> Result<(), HttpError> {
    let (objects, commas) = counted(json);
    let (count, what, most) = match objects > MAX_OBJECTS {
        true => (objects, "objects and lists", MAX_OBJECTS),
        false if commas > MAX_VALUES => (commas, "values", MAX_VALUES),
        false => return Ok(()),
    };
    let text = format!("the request's body holds {count} {what}, at most {most} are read: split it");
    Err(HttpError::new(StatusCode::PAYLOAD_TOO_LARGE, text))
}

/// Everything that handlers share.
pub(crate) struct App {
    pub(crate) server: ServerHandle,
    pub(crate) options: HttpOptions,
    /// Knows tokens; None = there are no ACLs, and everybody may everything.
    pub(crate) authority: Option<Authority>,
    /// Turns to make lists in.
    pub(crate) readers: Arc<Semaphore>,
    /// Tells the server of each answer.
    pub(crate) answering: Answering,
    /// Failed attempts to log in.
    pub(crate) failures: Failures,
    /// Room for the bodies of requests.
    pub(crate) bodies: Bodies,
}

impl App {
    pub(crate) fn new(server: ServerHandle, options: HttpOptions) -> Self {
        let at_once = std::thread::available_parallelism().map_or(2, |n| n.get().max(2));
        let authority = server.config().acl.enabled.then(Authority::default);
        // One of the largest always finds room, when it waits.
        let bodies = Bodies::new(options.bodies_bytes.max(options.max_body_bytes));
        Self {
            answering: server.answering(),
            server,
            options,
            authority,
            readers: Arc::new(Semaphore::new(at_once)),
            failures: Failures::default(),
            bodies,
        }
    }
}

/// The address that a request comes from; of one that another agent has passed on, that agent's. Over a unix socket
/// it is unspecified.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sender(pub(crate) IpAddr);

/// A request on its way to its handler.
pub(crate) struct Ctx {
    pub(crate) app: Arc<App>,
    pub(crate) method: Method,
    pub(crate) uri: Uri,
    pub(crate) params: Vec<(&'static str, String)>,
    pub(crate) query: Query,
    pub(crate) headers: HeaderMap,
    /// Who sends it.
    pub(crate) caller: Caller,
    /// Where it comes from; None = from within this process.
    pub(crate) sender: Option<Sender>,
    /// Where its handler says which object it is about, for the audit log.
    pub(crate) about: About,
    /// Taken by whoever reads it. The lock makes a request shareable between threads, which a body is not.
    pub(crate) body: Mutex<Body>,
    /// Decides a session by its first message, which brings its token.
    pub(crate) gate: Option<Gate>,
    /// The connection after its upgrade, when the client asks for one.
    pub(crate) upgrade: Mutex<Option<hyper::upgrade::OnUpgrade>>,
}

impl Ctx {
    /// The same request without a body, for a handler that decides anew.
    pub(crate) fn once_more(&self) -> Self {
        Self {
            app: self.app.clone(),
            method: self.method.clone(),
            uri: self.uri.clone(),
            params: self.params.clone(),
            query: self.query.clone(),
            headers: self.headers.clone(),
            caller: self.caller.clone(),
            sender: self.sender,
            about: self.about.clone(),
            body: Mutex::default(),
            gate: None,
            upgrade: Mutex::default(),
        }
    }

    pub(crate) fn server(&self) -> &ServerHandle {
        &self.app.server
    }

    /// A part of the path.
    pub(crate) fn param(&self, name: &str) -> &str {
        self.params.iter().find(|(n, _)| *n == name).map_or("", |(_, v)| v)
    }

    /// The job that the path and the namespace name.
    pub(crate) fn job_key(&self) -> JobKey {
        JobKey::new(self.query.namespace(), self.param("id"))
    }

    pub(crate) fn list_options(&self) -> Result<ListOptions, HttpError> {
        ListOptions::parse(&self.query).map_err(HttpError::bad_request)
    }

    /// The body, once.
    pub(crate) fn take_body(&self) -> Body {
        std::mem::take(&mut *self.body.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The same request with another body.
    pub(crate) fn with_body(self, body: Body) -> Self {
        Self { body: Mutex::new(body), ..self }
    }

    /// The whole body. Of whoever may nothing, which only says who it is to log in, it is a small one.
    pub(crate) async fn bytes(&self) -> Result<bytes::Bytes, HttpError> {
        let limit = self.app.options.max_body_bytes;
        let limit = if self.caller.may_nothing() { limit.min(SMALL) } else { limit };
        let whole = tokio::time::timeout(BODY_PATIENCE, self.app.bodies.collect(self.take_body(), limit)).await;
        whole.unwrap_or_else(|_| {
            let waited = BODY_PATIENCE.as_secs();
            Err(HttpError::new(
                StatusCode::REQUEST_TIMEOUT,
                format_args!("the request's body was not complete after {waited} s"),
            ))
        })
    }

    /// The body as JSON.
    pub(crate) async fn json<T: DeserializeOwned>(&self) -> Result<T, HttpError> {
        decoded(&self.bytes().await?)
    }

    /// The body as JSON; none counts as an empty object.
    pub(crate) async fn json_or_default<T: DeserializeOwned + Default>(&self) -> Result<T, HttpError> {
        let bytes = self.bytes().await?;
        few_objects(&bytes)?;
        match go_json::from_slice(&bytes) {
            Err(go_json::Error::Empty) => Ok(T::default()),
            other => {
                other.map_err(|e| HttpError::bad_request(format_args!("failed to decode the request's body: {e}")))
            }
        }
    }

    pub(crate) fn alloc_id(&self, name: &str) -> Result<AllocId, HttpError> {
        uuid(self.param(name), "alloc").map(AllocId)
    }
    pub(crate) fn eval_id(&self, name: &str) -> Result<EvalId, HttpError> {
        uuid(self.param(name), "eval").map(EvalId)
    }
    pub(crate) fn deployment_id(&self, name: &str) -> Result<DeploymentId, HttpError> {
        uuid(self.param(name), "deployment").map(DeploymentId)
    }
    pub(crate) fn node_id(&self, name: &str) -> Result<NodeId, HttpError> {
        uuid(self.param(name), "node").map(NodeId)
    }

    /// An answer in JSON, without headers about the state.
    pub(crate) fn plain<T: Serialize + ?Sized>(&self, value: &T) -> Result<Reply, HttpError> {
        Reply::json(value, self.query.pretty())
    }

    /// An answer to a read.
    pub(crate) fn read<T: Serialize + ?Sized>(&self, index: u64, value: &T) -> Result<Reply, HttpError> {
        Ok(self.plain(value)?.read_at(index))
    }

    /// An answer to a write.
    pub(crate) fn written<T: Serialize + ?Sized>(&self, index: u64, value: &T) -> Result<Reply, HttpError> {
        Ok(self.plain(value)?.written_at(index))
    }
}

/// A body as JSON.
pub(crate) fn decoded<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, HttpError> {
    few_objects(bytes)?;
    go_json::from_slice(bytes)
        .map_err(|e| HttpError::bad_request(format_args!("failed to decode the request's body: {e}")))
}

/// A whole id.
pub(crate) fn uuid(text: &str, kind: &str) -> Result<uuid::Uuid, HttpError> {
    let bad = |why: &str| HttpError::internal(format_args!("{kind} lookup failed: index error: {why}"));
    if text.len() != 36 {
        return Err(bad("UUID must be 36 characters"));
    }
    uuid::Uuid::try_parse(text).map_err(|e| bad(&format!("Invalid UUID: {e}")))
}

/// The beginning of an id: hexadecimal digits of even number, in the form that ids have.
pub(crate) fn uuid_prefix(text: &str, kind: &str) -> Result<String, HttpError> {
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
pub(crate) fn hyphenated(digits: &str) -> String {
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
    fn objects_are_counted_where_they_are_objects() {
        assert_eq!(counted(br#"{"a":[{},{"b":"{[{\",{"}],"c":"\\"}"#), (4, 2));
        assert!(few_objects(&b"[".repeat(MAX_OBJECTS)).is_ok() && few_objects(&b"{".repeat(MAX_OBJECTS + 1)).is_err());
        assert_eq!(
            few_objects(&b"{".repeat(MAX_OBJECTS + 1)).map_err(|e| e.status()),
            Err(StatusCode::PAYLOAD_TOO_LARGE)
        );
    }

    #[test]
    fn values_are_counted_outside_of_texts() {
        let many = format!("[0{}]", ",0".repeat(MAX_VALUES + 1));
        assert_eq!(few_objects(many.as_bytes()).map_err(|e| e.status()), Err(StatusCode::PAYLOAD_TOO_LARGE));
        let text = format!("[\"{}\"]", ",".repeat(MAX_VALUES + 1));
        assert!(few_objects(text.as_bytes()).is_ok());
    }

    #[test]
    fn prefixes_of_ids() {
        for (text, out) in [
            ("", ""),
            ("AB", "ab"),
            ("abcdef01-2345", "abcdef01-2345"),
            ("abcdef0123", "abcdef01-23"),
            ("abcdef01-", "abcdef01"),
        ] {
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

//! An API server in memory: unique names, versions, conditional patches, finalizers, watches; and faults on order.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::State as Shared;
use axum::extract::ws::{Message, WebSocketUpgrade, rejection::WebSocketUpgradeRejection};
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use driver_sdk::config::Config;
use driver_sdk::{AgentConfig, Ensure, Observation, RemoteDriver as _, RemoteHandle, StopTask};
use kubernetes::Driver;
use serde_json::{Value, json};
use tokio::sync::Notify;

/// What comes instead of the server's own answer.
#[derive(Clone)]
pub(crate) enum Said {
    Status(u16, &'static str, &'static str),
    Text(u16, &'static str),
    /// Too many requests; after so many seconds the server would answer.
    Throttled(u32),
    /// A watch that never tells of anything, as behind a proxy whose other side has gone.
    Mute,
    /// The first half of the answer, then the end of the connection.
    Truncated,
    /// No answer at all.
    Silence,
    /// The answer of this moment, two seconds later.
    Late,
    /// The request takes effect twice, as behind a proxy that repeats it.
    Doubled,
    /// The request comes to the server only when nothing is held any more ([`Store::holds`]).
    Held,
}

/// What a command in a container does, and its session.
#[derive(Clone, Copy, Default, PartialEq)]
pub(crate) enum Shell {
    /// It ends at once, well.
    #[default]
    Ends,
    /// It says nothing, and the server answers pings.
    Quiet,
    /// It says something, then the connection breaks.
    Breaks,
    /// The server has died without a word: it takes nothing from the connection any more.
    Dead,
}

/// What refuses pods by the resources that they name.
#[derive(Clone, Copy, Default, PartialEq)]
pub(crate) enum Limits {
    #[default]
    Nothing,
    /// A quota of processors and memory, which is used up.
    Quota,
    /// A limit range with a least size, which it gives to pods that name none.
    Range,
    /// A policy that takes no pod.
    Policy,
}

/// A fault.
pub(crate) struct Fault {
    pub(crate) method: Method,
    /// A part of path and query.
    pub(crate) path: &'static str,
    pub(crate) said: Said,
    /// The request takes effect all the same.
    pub(crate) after: bool,
    pub(crate) times: usize,
}

/// What happens between a manager's look and its call.
pub(crate) type Meanwhile = Box<dyn FnOnce(&mut Store) + Send>;

/// What the server has.
#[derive(Default)]
pub(crate) struct Store {
    pub(crate) pods: BTreeMap<String, Value>,
    pub(crate) secrets: BTreeMap<String, Value>,
    pub(crate) cluster: String,
    /// Method, path and query of each call.
    pub(crate) calls: Vec<String>,
    /// Bodies of deletions.
    pub(crate) deletions: Vec<Value>,
    pub(crate) faults: Vec<Fault>,
    /// Before the next call of this method takes effect.
    pub(crate) meanwhile: Vec<(Method, Meanwhile)>,
    pub(crate) log: String,
    /// What the metrics API has measured, by pod; `None`: the cluster has none.
    pub(crate) measured: Option<BTreeMap<String, Value>>,
    /// Verb and resource of what the account may not do.
    pub(crate) denied: Vec<&'static str>,
    version: u64,
    uids: u64,
    events: Vec<(u64, &'static str, Value)>,
    /// Watches from older versions than this are refused.
    compacted: u64,
    /// Pods that were made, ever.
    pub(crate) made: usize,
    /// Watches end when it grows.
    cut: u64,
    pub(crate) shell: Shell,
    /// Sessions of commands that were opened, ever.
    pub(crate) sessions: usize,
    /// The only token that is accepted; any when it is empty.
    pub(crate) token: &'static str,
    /// What a webhook takes away from pods that are made, as JSON pointers.
    pub(crate) strips: Vec<&'static str>,
    /// Whom the server takes the account for.
    pub(crate) user: &'static str,
    pub(crate) limits: Limits,
    /// Requests with [`Said::Held`] are on their way.
    pub(crate) holds: bool,
}

/// The running server.
pub(crate) struct Api {
    pub(crate) store: Arc<Mutex<Store>>,
    changed: Arc<Notify>,
    port: u16,
    serving: Mutex<Option<tokio::task::JoinHandle<()>>>,
    dir: tempfile::TempDir,
}

fn failure(code: u16, reason: &str, message: &str, name: &str) -> (u16, Value) {
    let body = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason,
        "message": message, "details": {"name": name, "kind": "pods"}});
    (code, body)
}

/// Applies a JSON patch as far as the driver uses it.
fn patched(mut object: Value, operations: &[Value]) -> Option<Value> {
    for one in operations {
        let path = one["path"].as_str()?;
        let (parent, last) = path.rsplit_once('/')?;
        let last = last.replace("~1", "/");
        match one["op"].as_str()? {
            "test" => {
                if object.pointer(path)? != &one["value"] {
                    return None;
                }
            }
            "add" | "replace" => match object.pointer_mut(parent)? {
                Value::Object(fields) => {
                    if one["op"] == "replace" && !fields.contains_key(&last) {
                        return None;
                    }
                    fields.insert(last, one["value"].clone());
                }
                _ => return None,
            },
            "remove" => match object.pointer_mut(parent)? {
                Value::Array(items) => {
                    let at = last.parse::<usize>().ok().filter(|at| *at < items.len())?;
                    items.remove(at);
                }
                Value::Object(fields) => drop(fields.remove(&last)?),
                _ => return None,
            },
            _ => return None,
        }
    }
    Some(object)
}

fn selected(pod: &Value, selector: &str) -> bool {
    let labels = &pod["metadata"]["labels"];
    selector.split(',').filter(|s| !s.is_empty()).all(|one| match (one.strip_prefix('!'), one.split_once('=')) {
        (Some(name), _) => labels.get(name).is_none(),
        (None, Some((name, value))) => labels[name] == value,
        (None, None) => labels.get(one).is_some(),
    })
}

fn plain(text: &str) -> String {
    let (bytes, mut out, mut at) = (text.as_bytes(), Vec::new(), 0);
    while at < bytes.len() {
        if bytes[at] == b'%' {
            out.push(u8::from_str_radix(&text[at + 1..at + 3], 16).expect("hexadecimal"));
            at += 3;
        } else {
            out.push(bytes[at]);
            at += 1;
        }
    }
    String::from_utf8(out).expect("text")
}

impl Store {
    /// Records a change.
    pub(crate) fn put(&mut self, kind: &'static str, mut pod: Value) -> Value {
        self.version += 1;
        pod["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let name = pod["metadata"]["name"].as_str().expect("a name").to_owned();
        if kind == "DELETED" {
            self.pods.remove(&name);
        } else {
            self.pods.insert(name, pod.clone());
        }
        self.events.push((self.version, kind, pod.clone()));
        pod
    }

    /// Changes a pod as its kubelet would, or a person.
    pub(crate) fn change(&mut self, name: &str, change: impl FnOnce(&mut Value)) {
        let mut pod = self.pods.get(name).cloned().expect("a pod");
        change(&mut pod);
        self.put("MODIFIED", pod);
    }

    /// Events before now cannot be had any more.
    pub(crate) fn compact(&mut self) {
        self.compacted = self.version;
        self.events.clear();
    }

    fn admitted(&self, pod: &Value) -> Value {
        let mut pod = pod.clone();
        for part in &self.strips {
            *pod.pointer_mut(part).expect("it is there") = json!([]);
        }
        pod
    }

    /// Why the server refuses a pod, before it looks at its name.
    fn refuses(&self, pod: &Value) -> Option<&'static str> {
        let resources = &pod["spec"]["containers"][0]["resources"];
        let all = |is: fn(&Value) -> bool| {
            let of = |part: &str| ["cpu", "memory"].iter().all(|what| is(&resources[part][what]));
            of("requests") && of("limits")
        };
        let (named, nothing) = (all(Value::is_string), all(|amount| amount == "0"));
        match self.limits {
            Limits::Quota if !named => Some("failed quota: q: must specify limits.cpu for: task"),
            Limits::Quota if !nothing => Some("exceeded quota: q"),
            Limits::Range if nothing => Some("minimum memory usage per Container is 64Mi, but request is 0"),
            Limits::Policy => Some("violates PodSecurity"),
            _ => None,
        }
    }

    fn create(&mut self, body: &Value) -> (u16, Value) {
        let name = body["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        if let Some(why) = self.refuses(body) {
            return failure(403, "Forbidden", &format!("pods {name:?} is forbidden: {why}"), &name);
        }
        if self.pods.contains_key(&name) {
            return failure(409, "AlreadyExists", &format!("pods {name:?} already exists"), &name);
        }
        self.uids += 1;
        self.made += 1;
        let mut pod = self.admitted(body);
        pod["metadata"]["uid"] = json!(format!("uid-{}", self.uids));
        pod["metadata"]["namespace"] = json!("tasks");
        pod["status"] = json!({"phase": "Pending",
            "conditions": [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]});
        (201, self.put("ADDED", pod))
    }

    fn delete(&mut self, name: &str, body: &Value) -> (u16, Value) {
        self.deletions.push(body.clone());
        let Some(pod) = self.pods.get(name).cloned() else {
            return failure(404, "NotFound", "not found", name);
        };
        for field in ["uid", "resourceVersion"] {
            let wanted = &body["preconditions"][field];
            if !wanted.is_null() && wanted != &pod["metadata"][field] {
                return failure(409, "Conflict", "Precondition failed", name);
            }
        }
        let mut pod = pod;
        if pod["metadata"]["deletionTimestamp"].is_null() {
            pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        let kept = pod["metadata"]["finalizers"].as_array().is_some_and(|all| !all.is_empty());
        (200, self.put(if kept { "MODIFIED" } else { "DELETED" }, pod))
    }

    fn patch(&mut self, name: &str, body: &Value) -> (u16, Value) {
        let Some(pod) = self.pods.get(name).cloned() else {
            return failure(404, "NotFound", "not found", name);
        };
        let Some(now) = patched(pod, body.as_array().expect("operations")) else {
            return failure(422, "Invalid", "the server rejected our request due to an error in our request", name);
        };
        let held = now["metadata"]["finalizers"].as_array().is_some_and(|all| !all.is_empty());
        let goes = !now["metadata"]["deletionTimestamp"].is_null() && !held;
        (200, self.put(if goes { "DELETED" } else { "MODIFIED" }, now))
    }

    fn list(&self, query: &BTreeMap<String, String>) -> (u16, Value) {
        let selector = query.get("labelSelector").map_or("", String::as_str);
        let after = query.get("continue").cloned().unwrap_or_default();
        let limit: usize = query.get("limit").and_then(|l| l.parse().ok()).unwrap_or(usize::MAX);
        let mut rest = self.pods.iter().filter(|(name, pod)| **name > after && selected(pod, selector));
        let page: Vec<_> = rest.by_ref().take(limit).collect();
        let next = rest.next().and(page.last()).map(|(name, _)| (*name).clone()).unwrap_or_default();
        let items: Vec<&Value> = page.iter().map(|(_, pod)| *pod).collect();
        (
            200,
            json!({"kind": "PodList", "apiVersion": "v1",
            "metadata": {"resourceVersion": self.version.to_string(), "continue": next}, "items": items}),
        )
    }

    /// Writes a secret, which has versions like every object.
    fn put_secret(&mut self, name: &str, mut secret: Value) -> Value {
        self.version += 1;
        if secret["metadata"]["uid"].is_null() {
            secret["metadata"]["uid"] = json!(format!("secret-{}", self.version));
        }
        secret["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.secrets.insert(name.to_owned(), secret.clone());
        secret
    }

    fn secret(&mut self, method: &Method, name: &str, body: &Value) -> (u16, Value) {
        if method == Method::POST {
            let name = body["metadata"]["name"].as_str().unwrap_or_default();
            return match self.secrets.contains_key(name) {
                true => failure(409, "AlreadyExists", "already exists", name),
                false => (201, self.put_secret(name, body.clone())),
            };
        }
        let Some(standing) = self.secrets.get(name).cloned() else {
            return failure(404, "NotFound", "not found", name);
        };
        let conditions = if method == Method::PUT { &body["metadata"] } else { &body["preconditions"] };
        let holds = |field: &str| conditions[field].is_null() || conditions[field] == standing["metadata"][field];
        match method.as_str() {
            "PUT" | "DELETE" if !(holds("uid") && holds("resourceVersion")) => {
                failure(409, "Conflict", "the object has been modified", name)
            }
            "PUT" => {
                let mut now = body.clone();
                now["metadata"]["uid"] = standing["metadata"]["uid"].clone();
                (200, self.put_secret(name, now))
            }
            "DELETE" => {
                self.secrets.remove(name);
                (200, json!({"kind": "Status"}))
            }
            _ => (200, standing),
        }
    }

    fn answer(&mut self, method: &Method, path: &str, query: &BTreeMap<String, String>, body: &Value) -> (u16, Value) {
        let parts: Vec<&str> = path.split('/').filter(|p| !p.is_empty()).collect();
        let name = parts.get(5).copied().unwrap_or_default();
        if path == "/version" {
            return (200, json!({"gitVersion": "v1.34.3"}));
        }
        if path.ends_with("/selfsubjectreviews") {
            return (201, json!({"status": {"userInfo": {"username": self.user}}}));
        }
        if path.ends_with("/selfsubjectaccessreviews") {
            let of = |key: &str| body["spec"]["resourceAttributes"][key].as_str().unwrap_or_default();
            let asked = format!(
                "{} {}{}{}",
                of("verb"),
                of("resource"),
                if of("group").is_empty() { "" } else { "." },
                of("group")
            );
            return (201, json!({"status": {"allowed": !self.denied.contains(&asked.as_str())}}));
        }
        if parts.get(1) == Some(&"metrics.k8s.io") {
            let name = parts.get(6).copied().unwrap_or_default();
            return match &self.measured {
                None => failure(404, "NotFound", "the server could not find the requested resource", ""),
                Some(_) if name.is_empty() => (200, json!({"kind": "APIResourceList", "resources": []})),
                Some(all) => match all.get(name) {
                    Some(pod) => (200, pod.clone()),
                    None => failure(404, "NotFound", "not found", name),
                },
            };
        }
        if query.contains_key("dryRun") {
            return (201, self.admitted(body));
        }
        match (method.as_str(), parts.get(4).copied()) {
            ("GET", None) => {
                (200, json!({"kind": "Namespace", "metadata": {"name": "kube-system", "uid": self.cluster}}))
            }
            (_, Some("secrets")) => self.secret(method, name, body),
            ("POST", Some("pods")) => self.create(body),
            ("DELETE", Some("pods")) => self.delete(name, body),
            ("PATCH", Some("pods")) => self.patch(name, body),
            ("GET", Some("pods")) if name.is_empty() => self.list(query),
            ("GET", Some("pods")) => match self.pods.get(name) {
                Some(pod) => (200, pod.clone()),
                None => failure(404, "NotFound", &format!("pods {name:?} not found"), name),
            },
            _ => failure(404, "NotFound", "the server could not find the requested resource", ""),
        }
    }
}

fn written(code: u16, text: String) -> Response {
    (StatusCode::from_u16(code).expect("a status"), [("content-type", "application/json")], text).into_response()
}

/// What a kubelet gives of a log from a time on, of which it takes the whole seconds. A line that ends with `\` is a
/// part of a long one: the next line goes on with it.
fn logged(log: &str, since: Option<&str>) -> String {
    let second = |time: &str| time.parse::<jiff::Timestamp>().ok().map(jiff::Timestamp::as_second);
    let since = since.and_then(second);
    let (mut out, mut begins) = (String::new(), true);
    for line in log.split_inclusive('\n') {
        let part = line.strip_suffix("\\\n");
        let (time, text) = part.unwrap_or(line).split_once(' ').unwrap_or_default();
        let is_old = second(time).zip(since).is_some_and(|(time, since)| time < since);
        match begins || second(time).is_none() {
            _ if is_old => {}
            true => out += part.unwrap_or(line),
            false => out += text,
        }
        begins = part.is_none();
    }
    out
}

/// A watch: the events since a version, and what comes.
fn watching(api: Arc<Mutex<Store>>, changed: Arc<Notify>, query: BTreeMap<String, String>) -> Response {
    let from: u64 = query.get("resourceVersion").and_then(|v| v.parse().ok()).unwrap_or(0);
    let selector = query.get("labelSelector").cloned().unwrap_or_default();
    let cut = api.lock().expect("unpoisoned").cut;
    let stream = futures::stream::unfold((from, false), move |(at, over)| {
        let (api, changed, selector) = (api.clone(), changed.clone(), selector.clone());
        async move {
            if over {
                return None;
            }
            loop {
                let waiting = changed.notified();
                let mut waiting = std::pin::pin!(waiting);
                waiting.as_mut().enable();
                {
                    let store = api.lock().expect("unpoisoned");
                    if store.cut != cut {
                        return None;
                    }
                    if at < store.compacted {
                        let (_, status) = failure(410, "Expired", "too old resource version", "");
                        return Some((json!({"type": "ERROR", "object": status}), (at, true)));
                    }
                    let next = store.events.iter().find(|(version, ..)| *version > at).cloned();
                    if let Some((version, kind, pod)) = next {
                        // Out of the selection is a deletion to whoever watches it.
                        let kind = if selected(&pod, &selector) { kind } else { "DELETED" };
                        return Some((json!({"type": kind, "object": pod}), (version, false)));
                    }
                }
                waiting.await;
            }
        }
    });
    use futures::StreamExt as _;
    let lines = stream.map(|event| Ok::<_, std::convert::Infallible>(format!("{event}\n")));
    Response::new(Body::from_stream(lines))
}

/// A session of a command: goes on for as long as its shell is quiet.
fn commanding((api, changed): Both, upgrade: WebSocketUpgrade) -> Response {
    upgrade.protocols(["v5.channel.k8s.io"]).on_upgrade(async move |mut socket| {
        api.lock().expect("unpoisoned").sessions += 1;
        loop {
            let mut waiting = std::pin::pin!(changed.notified());
            waiting.as_mut().enable();
            let shell = api.lock().expect("unpoisoned").shell;
            match shell {
                Shell::Ends => break,
                Shell::Quiet => {}
                Shell::Breaks => {
                    let _ = socket.send(Message::Binary(b"\x01said".as_slice().into())).await;
                    return;
                }
                Shell::Dead => std::future::pending().await,
            }
            tokio::select! {
                () = waiting => {}
                // Reading answers pings.
                heard = socket.recv() => if !matches!(heard, Some(Ok(_))) { return },
            }
        }
        let _ = socket.send(Message::Binary(b"\x03{\"status\": \"Success\"}".as_slice().into())).await;
    })
}

type Both = (Arc<Mutex<Store>>, Arc<Notify>);

async fn serve(
    Shared((api, changed)): Shared<Both>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
    body: Bytes,
) -> Response {
    let query: BTreeMap<String, String> = uri
        .query()
        .unwrap_or_default()
        .split('&')
        .filter_map(|pair| pair.split_once('='))
        .map(|(name, value)| (name.to_owned(), plain(value)))
        .collect();
    let json: Value = serde_json::from_slice(&body).unwrap_or_default();
    let (said, after) = {
        let mut store = api.lock().expect("unpoisoned");
        store.calls.push(format!("{method} {uri}"));
        let bearer = headers.get("authorization").and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
        if !store.token.is_empty() && bearer != Some(store.token) {
            return written(401, failure(401, "Unauthorized", "Unauthorized", "").1.to_string());
        }
        if let Some(at) = store.meanwhile.iter().position(|(m, _)| *m == method) {
            let (_, happens) = store.meanwhile.remove(at);
            happens(&mut store);
        }
        let whole = uri.to_string();
        let fault = store.faults.iter_mut().find(|f| f.times > 0 && f.method == method && whole.contains(f.path));
        match fault {
            Some(fault) => {
                fault.times -= 1;
                (Some(fault.said.clone()), fault.after)
            }
            None => (None, true),
        }
    };
    if query.contains_key("watch") && said.is_none() {
        return watching(api, changed, query);
    }
    if let (Ok(upgrade), None) = (upgrade, &said) {
        return commanding((api, changed), upgrade);
    }
    if uri.path().ends_with("/log") && said.is_none() {
        let log = api.lock().expect("unpoisoned").log.clone();
        return written(200, logged(&log, query.get("sinceTime").map(String::as_str)));
    }
    while matches!(said, Some(Said::Held)) && api.lock().expect("unpoisoned").holds {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let answer = || api.lock().expect("unpoisoned").answer(&method, uri.path(), &query, &json);
    let mut own = if after { answer() } else { (200, json!({})) };
    if matches!(said, Some(Said::Doubled)) {
        own = answer();
    }
    changed.notify_waiters();
    match said {
        None | Some(Said::Doubled | Said::Held) => written(own.0, own.1.to_string()),
        Some(Said::Late) => {
            tokio::time::sleep(Duration::from_secs(2)).await;
            written(own.0, own.1.to_string())
        }
        Some(Said::Status(code, reason, message)) => written(code, failure(code, reason, message, "").1.to_string()),
        Some(Said::Text(code, text)) => written(code, text.to_owned()),
        // Plain text, as the server's own limits answer.
        Some(Said::Throttled(seconds)) => {
            let after = [("retry-after", seconds.to_string())];
            (StatusCode::TOO_MANY_REQUESTS, after, "Too many requests, please try again later.").into_response()
        }
        Some(Said::Mute) => {
            Response::new(Body::from_stream(futures::stream::pending::<Result<Bytes, std::convert::Infallible>>()))
        }
        Some(Said::Truncated) => {
            let text = own.1.to_string();
            written(own.0, text[..text.len() / 2].to_owned())
        }
        Some(Said::Silence) => {
            tokio::time::sleep(Duration::from_secs(3600)).await;
            written(500, String::new())
        }
    }
}

impl Api {
    pub(crate) async fn start() -> Api {
        let store = Store { cluster: "cluster-1".into(), ..Store::default() };
        let dir = tempfile::tempdir().expect("a directory");
        let api = Api {
            store: Arc::new(Mutex::new(store)),
            changed: Arc::default(),
            port: testkit::free_port(),
            serving: Mutex::default(),
            dir,
        };
        api.kubeconfig(&json!({"token": "t"}));
        api.come().await;
        api
    }

    /// Writes the kubeconfig, with these credentials.
    fn kubeconfig(&self, user: &Value) {
        let config = json!({"apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": format!("http://127.0.0.1:{}", self.port)}}],
            "users": [{"name": "u", "user": user}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "tasks"}}]});
        std::fs::write(self.dir.path().join("config"), config.to_string()).expect("written");
    }

    /// From now on managers read this token from a file, and the server accepts no other one.
    pub(crate) fn rotate(&self, token: &'static str) {
        let file = self.dir.path().join("token");
        std::fs::write(&file, token).expect("written");
        self.kubeconfig(&json!({"tokenFile": file}));
        self.store().token = token;
    }

    /// From now on the kubeconfig has this token, and the server accepts no other one.
    pub(crate) fn accept(&self, token: &'static str) {
        self.kubeconfig(&json!({"token": token}));
        self.store().token = token;
    }

    /// From now on the kubeconfig is that of another server.
    pub(crate) fn leads_to(&self, other: &Api) {
        std::fs::copy(other.dir.path().join("config"), self.dir.path().join("config")).expect("copied");
    }

    pub(crate) async fn come(&self) {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", self.port)).await.expect("bound");
        let router = axum::Router::new().fallback(serve).with_state((self.store.clone(), self.changed.clone()));
        let serving = tokio::spawn(async move { axum::serve(listener, router).await.expect("served") });
        *self.serving.lock().expect("unpoisoned") = Some(serving);
    }

    /// Goes away with all connections.
    pub(crate) async fn go(&self) {
        let serving = self.serving.lock().expect("unpoisoned").take();
        if let Some(serving) = serving {
            serving.abort();
            let _ = serving.await;
        }
        self.cut();
        // A connection that is kept is no other server: every call is refused from here on.
        let mut store = self.store();
        store.faults.clear();
        for method in [Method::GET, Method::POST, Method::PATCH, Method::DELETE] {
            store.faults.push(Fault {
                method,
                path: "",
                said: Said::Text(502, "away"),
                after: false,
                times: usize::MAX,
            });
        }
    }

    /// Ends all watches.
    pub(crate) fn cut(&self) {
        self.store().cut += 1;
        self.changed.notify_waiters();
    }

    pub(crate) fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock().expect("unpoisoned")
    }

    /// A change that watches see.
    pub(crate) fn change(&self, name: &str, change: impl FnOnce(&mut Value)) {
        self.store().change(name, change);
        self.changed.notify_waiters();
    }

    /// Watches look again.
    pub(crate) fn change_nothing(&self) {
        self.changed.notify_waiters();
    }

    pub(crate) fn say(&self, method: Method, path: &'static str, said: Said, after: bool, times: usize) {
        self.store().faults.push(Fault { method, path, said, after, times });
    }

    pub(crate) fn options(&self) -> Value {
        json!({"enabled": true, "kubeconfig": self.dir.path().join("config"), "request_timeout": "30s", "pulse": "1s"})
    }

    /// Of a manager whose requests are given up soon.
    pub(crate) fn impatient(&self) -> Value {
        let mut options = self.options();
        options["request_timeout"] = json!("4s");
        options
    }

    pub(crate) async fn manager_with(&self, options: Value) -> Result<Driver, driver_sdk::Error> {
        let driver = Driver::new();
        let config = Config::new(rmp_serde::to_vec(&options).expect("bytes"));
        driver.set_config(config, Some(AgentConfig::default())).await?;
        Ok(driver)
    }

    pub(crate) async fn manager(&self) -> Driver {
        self.manager_with(self.options()).await.expect("configured")
    }

    /// What a kubelet says of a pod that runs.
    pub(crate) fn runs(&self, name: &str) {
        self.change(name, |pod| {
            pod["spec"]["nodeName"] = json!("n1");
            pod["status"] = json!({"phase": "Running", "podIP": "10.0.0.9",
                "containerStatuses": [container(json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}}))]});
        });
    }

    /// What a kubelet says of a pod that has ended.
    pub(crate) fn ends(&self, name: &str, code: i32) {
        self.change(name, |pod| {
            pod["status"]["phase"] = json!(if code == 0 { "Succeeded" } else { "Failed" });
            let state =
                json!({"terminated": {"exitCode": code, "reason": "Error", "finishedAt": "2026-01-01T00:01:00Z"}});
            pod["status"]["containerStatuses"] = json!([container(state)]);
        });
    }
}

impl Drop for Api {
    fn drop(&mut self) {
        if let Some(serving) = self.serving.lock().expect("unpoisoned").take() {
            serving.abort();
        }
    }
}

/// Lets time pass in small steps, and whoever is due do its work in each.
pub(crate) async fn pass(time: Duration) {
    const STEP: Duration = Duration::from_secs(5);
    for _ in 0..time.as_secs() / STEP.as_secs() {
        tokio::time::pause();
        tokio::time::advance(STEP).await;
        tokio::time::resume();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Lets more time pass than anything may be silent, until this is there: what is silent may have begun late.
pub(crate) async fn after_silence<T>(mut awaited: impl AsyncFnMut() -> T) -> T {
    for _ in 0..10 {
        pass(Duration::from_secs(100)).await;
        if let Ok(there) = tokio::time::timeout(Duration::from_secs(5), awaited()).await {
            return there;
        }
    }
    panic!("the silence goes on");
}

pub(crate) fn container(state: Value) -> Value {
    json!({"name": "task", "image": "", "imageID": "", "ready": true, "restartCount": 0, "state": state})
}

pub(crate) fn ensure(key: &str, epoch: u64) -> Ensure {
    let options = json!({"image": "i", "command": "run", "grace_period": "5s"});
    let mut request = Ensure { key: key.into(), epoch, owner: "o".into(), slot: "s".into(), ..Ensure::default() };
    request.task.name = "t".into();
    request.task.env.insert("TOKEN".into(), "hidden".into());
    request.task.msgpack_driver_config = rmp_serde::to_vec(&options).expect("bytes");
    request
}

pub(crate) fn stop() -> StopTask {
    StopTask { signal: String::new(), timeout: Duration::from_secs(5) }
}

pub(crate) async fn look(driver: &Driver, handle: &RemoteHandle) -> Observation {
    driver.observe(std::slice::from_ref(handle)).await.expect("observed").remove(0)
}

//! An engine in memory behind a unix socket: containers, volumes, images, events, logs; and faults on order.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::UnixListener;
use tokio::sync::broadcast;
use tokio::task::JoinHandle;

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// A container.
#[derive(Clone, Default)]
pub(crate) struct Container {
    pub(crate) name: String,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) status: String,
    pub(crate) code: i64,
    /// Entries of the log: stream, time, text.
    pub(crate) log: Vec<(u8, u32, String)>,
    pub(crate) files: Vec<String>,
    /// It runs, and the engine, which was killed meanwhile, does not know.
    pub(crate) unseen: bool,
    /// It ends for want of memory, which the engine says only to who looks a second time.
    pub(crate) short_of_memory: bool,
    /// Looks since it has ended.
    pub(crate) looks: u32,
    pub(crate) error: String,
    /// When the engine starts it by itself.
    pub(crate) policy: String,
}

/// An answer instead of the engine's own.
pub(crate) struct Fault {
    method: Method,
    path: String,
    status: u16,
    body: String,
    /// Done all the same, but the answer is lost.
    after: bool,
    times: u32,
}

/// What the engine has.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) id: String,
    pub(crate) containers: BTreeMap<String, Container>,
    pub(crate) volumes: BTreeMap<String, BTreeMap<String, String>>,
    /// Method and path of each call.
    pub(crate) calls: Vec<String>,
    pub(crate) images: Vec<String>,
    /// Containers that were removed while they ran unseen.
    pub(crate) orphans: usize,
    pub(crate) faults: Vec<Fault>,
    next: u32,
    /// Before a start takes effect.
    pub(crate) before_upload: Option<fn(&mut State)>,
    /// When the next container has been made.
    pub(crate) after_create: Option<Box<dyn FnOnce() + Send>>,
}

/// A running fake.
pub(crate) struct Engine {
    dir: tempfile::TempDir,
    pub(crate) state: Arc<Mutex<State>>,
    events: broadcast::Sender<String>,
    serving: Mutex<Option<JoinHandle<()>>>,
}

impl Engine {
    /// An engine that does not listen yet.
    pub(crate) fn away() -> Engine {
        let state = State { id: "ENGINE-1".into(), images: vec!["busybox:1".into()], ..State::default() };
        Engine {
            dir: tempfile::tempdir().expect("a directory"),
            state: Arc::new(Mutex::new(state)),
            events: broadcast::channel(64).0,
            serving: Mutex::default(),
        }
    }

    pub(crate) fn start() -> Engine {
        let engine = Engine::away();
        engine.come();
        engine
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("s")
    }

    pub(crate) fn url(&self) -> String {
        format!("unix://{}", self.socket().display())
    }

    pub(crate) fn come(&self) {
        let _ = std::fs::remove_file(self.socket());
        let listener = UnixListener::bind(self.socket()).expect("bound");
        let (state, events) = (self.state.clone(), self.events.clone());
        let serving = tokio::spawn(async move {
            // Connections end with the engine.
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (state, events) = (state.clone(), events.clone());
                let service = hyper::service::service_fn(move |request| answer(state.clone(), events.clone(), request));
                connections.spawn(async move {
                    let _ = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
        });
        *self.serving.lock().unwrap() = Some(serving);
    }

    pub(crate) async fn go(&self) {
        let serving = self.serving.lock().unwrap().take();
        if let Some(serving) = serving {
            serving.abort();
            let _ = serving.await;
        }
        let _ = std::fs::remove_file(self.socket());
    }

    pub(crate) fn with<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.state.lock().unwrap())
    }

    /// The next calls to this method and path get this answer instead.
    pub(crate) fn fault(&self, method: &str, path: &str, status: u16, body: &str, times: u32) {
        let fault = Fault {
            method: method.parse().unwrap(),
            path: path.into(),
            status,
            body: body.into(),
            after: false,
            times,
        };
        self.with(|s| s.faults.push(fault));
    }

    /// The next call takes effect, and its answer is lost.
    pub(crate) fn lose_answer(&self, method: &str, path: &str) {
        let fault = Fault {
            method: method.parse().unwrap(),
            path: path.into(),
            status: 502,
            body: "lost".into(),
            after: true,
            times: 1,
        };
        self.with(|s| s.faults.push(fault));
    }

    /// How many calls there were to a method and path.
    pub(crate) fn calls(&self, method: &str, path: &str) -> usize {
        self.with(|s| {
            s.calls
                .iter()
                .filter(|c| c.split_once(' ').is_some_and(|(m, p)| m == method && p.starts_with(path)))
                .count()
        })
    }

    /// The only container: id and state.
    pub(crate) fn only(&self) -> (String, Container) {
        self.with(|s| {
            assert_eq!(s.containers.len(), 1, "containers: {:?}", s.containers.keys());
            s.containers.iter().next().map(|(id, c)| (id.clone(), c.clone())).unwrap()
        })
    }

    /// The container ends.
    pub(crate) fn end(&self, id: &str, code: i64) {
        self.with(|s| {
            let c = s.containers.get_mut(id).expect("a container");
            (c.status, c.code) = ("exited".into(), code);
        });
        let _ = self.events.send(json!({"Type": "container", "Action": "die", "Actor": {"ID": id}}).to_string() + "\n");
    }
}

/// Lets time pass in small steps, and whoever is due do its work in each.
pub(crate) async fn pass(time: Duration) {
    for _ in 0..time.as_secs() {
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(1)).await;
        tokio::time::resume();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn full(text: impl Into<Bytes>) -> Body {
    Full::new(text.into()).boxed_unsync()
}

fn reply(status: u16, value: Value) -> Response<Body> {
    Response::builder().status(status).header("content-type", "application/json").body(full(value.to_string())).unwrap()
}

fn refuse(status: u16, message: &str) -> Response<Body> {
    reply(status, json!({"message": message}))
}

fn decode(text: &str) -> String {
    let mut out = Vec::new();
    let mut bytes = text.bytes();
    while let Some(b) = bytes.next() {
        match b {
            b'%' => {
                let hex: String = [bytes.next(), bytes.next()].into_iter().flatten().map(char::from).collect();
                out.push(u8::from_str_radix(&hex, 16).unwrap_or(b'?'));
            }
            b => out.push(b),
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

fn query(text: &str, name: &str) -> String {
    let found = text.split('&').filter_map(|p| p.split_once('=')).find(|(k, _)| *k == name);
    found.map(|(_, v)| decode(v)).unwrap_or_default()
}

/// Whether labels satisfy the `label` filter.
fn matches(filters: &str, labels: &BTreeMap<String, String>) -> bool {
    let wanted: Value = serde_json::from_str(filters).unwrap_or_default();
    wanted["label"].as_array().into_iter().flatten().filter_map(Value::as_str).all(|w| match w.split_once('=') {
        Some((k, v)) => labels.get(k).is_some_and(|found| found == v),
        None => labels.contains_key(w),
    })
}

async fn answer(
    state: Arc<Mutex<State>>,
    events: broadcast::Sender<String>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let method = request.method().clone();
    let path = request.uri().path().to_owned();
    let path = path.strip_prefix("/v1.41").unwrap_or(&path).to_owned();
    let args = request.uri().query().unwrap_or_default().to_owned();
    let body = request.into_body().collect().await.map(|b| b.to_bytes()).unwrap_or_default();
    let mut lost = None;
    {
        let mut state = state.lock().unwrap();
        state.calls.push(format!("{method} {path}"));
        if let Some(at) = state.faults.iter().position(|f| f.method == method && path.starts_with(&f.path)) {
            let fault = &mut state.faults[at];
            fault.times -= 1;
            let made = Response::builder().status(fault.status).body(full(fault.body.clone())).unwrap();
            let after = fault.after;
            if fault.times == 0 {
                state.faults.remove(at);
            }
            if !after {
                return Ok(made);
            }
            lost = Some(made);
        }
    }
    let done = engine(&state, &events, &method, &path, &args, &body);
    Ok(lost.unwrap_or(done))
}

fn engine(
    state: &Mutex<State>,
    events: &broadcast::Sender<String>,
    method: &Method,
    path: &str,
    args: &str,
    body: &[u8],
) -> Response<Body> {
    let mut s = state.lock().unwrap();
    let parts: Vec<String> = path.trim_matches('/').split('/').map(decode).collect();
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    let value: Value = serde_json::from_slice(body).unwrap_or_default();
    let find = |s: &State, name: &str| {
        s.containers.iter().find(|(id, c)| *id == name || c.name == name).map(|(id, _)| id.clone())
    };
    match (method.as_str(), parts.as_slice()) {
        ("GET", ["version"]) => {
            reply(200, json!({"Version": "20.10", "ApiVersion": "1.41", "MinAPIVersion": "1.12", "Os": "linux"}))
        }
        ("GET", ["info"]) => reply(200, json!({"ID": s.id, "OSType": "linux", "Runtimes": {"runc": {}}})),
        ("GET", ["events"]) => {
            let stream = futures::stream::unfold(events.subscribe(), |mut events| async move {
                let text = events.recv().await.ok()?;
                Some((Ok(Frame::data(Bytes::from(text))), events))
            });
            Response::new(StreamBody::new(stream).boxed_unsync())
        }
        ("GET", ["images", name, "json"]) if s.images.iter().any(|i| i == name) => {
            reply(200, json!({"Id": format!("sha256:{name}")}))
        }
        ("GET", ["images", ..]) => refuse(404, "No such image"),
        ("POST", ["images", "create"]) => {
            let image = format!("{}:{}", query(args, "fromImage"), query(args, "tag"));
            s.images.push(image);
            Response::new(full("{\"status\":\"Pulling\"}\r\n{\"status\":\"Done\"}\r\n"))
        }
        ("POST", ["containers", "create"]) => {
            let name = query(args, "name");
            if find(&s, &name).is_some() {
                return refuse(409, &format!("Conflict. The container name {name:?} is already in use"));
            }
            s.next += 1;
            let id = format!("c{:063}", s.next);
            let labels = serde_json::from_value(value["Labels"].clone()).unwrap_or_default();
            s.containers
                .insert(id.clone(), Container { name, labels, status: "created".into(), ..Container::default() });
            if let Some(hook) = s.after_create.take() {
                hook();
            }
            reply(201, json!({"Id": id, "Warnings": []}))
        }
        ("GET", ["containers", "json"]) => {
            let filters = query(args, "filters");
            let all = s.containers.iter().filter(|(_, c)| matches(&filters, &c.labels));
            reply(
                200,
                all.map(|(id, c)| json!({"Id": id, "Labels": c.labels, "State": c.status, "Created": 1})).collect(),
            )
        }
        ("POST", ["volumes", "create"]) => {
            let labels: BTreeMap<String, String> = serde_json::from_value(value["Labels"].clone()).unwrap_or_default();
            let name = value["Name"].as_str().unwrap_or_default().to_owned();
            s.volumes.entry(name.clone()).or_insert(labels);
            reply(201, json!({"Name": name}))
        }
        ("GET", ["volumes"]) => {
            let filters = query(args, "filters");
            let all: Vec<Value> = s
                .volumes
                .iter()
                .filter(|(_, l)| matches(&filters, l))
                .map(|(n, l)| json!({"Name": n, "Labels": l, "CreatedAt": "2026-11-20T00:00:00Z"}))
                .collect();
            reply(200, json!({"Volumes": all}))
        }
        ("DELETE", ["volumes", name]) => match s.volumes.remove(*name) {
            Some(_) => Response::builder().status(204).body(full("")).unwrap(),
            None => refuse(404, "no such volume"),
        },
        (_, ["containers", name, rest @ ..]) => {
            let Some(id) = find(&s, name) else {
                return refuse(404, &format!("No such container: {name}"));
            };
            let hook = if rest == ["archive"] { s.before_upload.take() } else { None };
            if let Some(hook) = hook {
                hook(&mut s);
            }
            if rest == ["update"] {
                let policy = value["RestartPolicy"]["Name"].as_str().unwrap_or_default().to_owned();
                s.containers.entry(id).and_modify(|c| c.policy = policy);
                return reply(200, json!({"Warnings": []}));
            }
            container(&mut s, events, method.as_str(), &id, rest, args)
        }
        _ => refuse(404, "page not found"),
    }
}

fn container(
    s: &mut State,
    events: &broadcast::Sender<String>,
    method: &str,
    id: &str,
    rest: &[&str],
    args: &str,
) -> Response<Body> {
    let empty = |status: u16| Response::builder().status(status).body(full("")).unwrap();
    let c = s.containers.get_mut(id).expect("found before");
    let mut tell = false;
    let made = match (method, rest) {
        ("GET", ["json"]) => {
            c.looks += u32::from(c.status == "exited");
            reply(
                200,
                json!({"Id": id, "Name": format!("/{}", c.name), "Image": "sha256:x", "Created": "2026-11-20T00:00:00Z",
                   "State": {"Status": c.status, "Running": c.status == "running", "ExitCode": c.code, "Error": c.error,
                       "StartedAt": "2026-11-20T00:00:01Z",
                             "OOMKilled": c.short_of_memory && c.looks > 1},
                   "Config": {"Labels": c.labels, "Tty": false},
                   "HostConfig": {"NetworkMode": "default", "RestartPolicy": {"Name": c.policy}}}),
            )
        }
        ("POST", ["start"]) if c.status == "running" => empty(304),
        ("POST", ["start"]) if c.unseen => {
            (c.code, c.error) = (128, "id already in use".into());
            refuse(500, "id already in use")
        }
        ("POST", ["start"]) => {
            (c.status, tell) = ("running".into(), true);
            empty(204)
        }
        ("POST", ["kill"]) if c.status != "running" => refuse(409, "is not running"),
        ("POST", ["kill"]) if query(args, "signal") == "SIGNONE" => refuse(400, "Invalid signal: SIGNONE"),
        ("POST", ["kill"]) => {
            if matches!(query(args, "signal").as_str(), "SIGKILL" | "SIGTERM") {
                (c.status, c.code, tell) = ("exited".into(), 137, true);
            }
            empty(204)
        }
        ("PUT", ["archive"]) => {
            c.files.push(query(args, "path"));
            empty(200)
        }
        ("GET", ["logs"]) => {
            let since = query(args, "since");
            let nanos = since.split_once('.').and_then(|(_, n)| n.parse::<u32>().ok()).unwrap_or(0);
            let mut wire = Vec::new();
            for (stream, at, text) in c.log.iter().filter(|(stream, at, _)| {
                *at >= nanos && query(args, if *stream == 2 { "stderr" } else { "stdout" }) == "true"
            }) {
                let line = format!("2026-11-20T00:00:00.{at:09}Z {text}");
                wire.extend_from_slice(&[*stream, 0, 0, 0]);
                wire.extend_from_slice(&(line.len() as u32).to_be_bytes());
                wire.extend_from_slice(line.as_bytes());
            }
            Response::new(full(wire))
        }
        ("DELETE", []) => {
            s.orphans += usize::from(c.unseen);
            s.containers.remove(id);
            tell = true;
            empty(204)
        }
        _ => refuse(StatusCode::NOT_FOUND.as_u16(), "page not found"),
    };
    if tell {
        let _ = events.send(json!({"Type": "container", "Action": "x", "Actor": {"ID": id}}).to_string() + "\n");
    }
    made
}

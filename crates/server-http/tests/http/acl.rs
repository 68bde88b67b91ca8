//! Who may what, over the whole table of endpoints: each of them is asked by each kind of caller.

use std::{
    collections::{BTreeMap, HashMap},
    fmt::Write as _,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use access::Identity;
use api::client::{Address, Connection};
use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use serde_json::{Value, json};
use server_http::{HttpOptions, Limits, Records, TokenRights};
use state::State;

use crate::cluster::{Cluster, FakeNode, job, node};

const READ: &str = r#"
    namespace "default" { policy = "read" }
    node_pool "*" { policy = "read" }
    agent { policy = "read" }
    node { policy = "read" }
    operator { policy = "read" }
    plugin { policy = "read" }
"#;
const WRITE: &str = r#"
    namespace "default" { policy = "write" }
    node_pool "*" { policy = "write" }
    agent { policy = "write" }
    node { policy = "write" }
    operator { policy = "write" }
    plugin { policy = "write" }
"#;
const ELSEWHERE: &str = r#"namespace "elsewhere" { policy = "write" }"#;

/// Tokens and policies in memory. Until it is turned on, everybody is a manager.
#[derive(Default)]
struct Book {
    index: AtomicU64,
    tokens: Mutex<HashMap<String, TokenRights>>,
    policies: Mutex<BTreeMap<String, String>>,
    attached: Mutex<Vec<(Identity, String)>>,
}

impl Book {
    fn token(&self, secret: &str, rights: TokenRights) {
        self.tokens.lock().expect("lock").insert(secret.to_owned(), rights);
        self.index.fetch_add(1, Ordering::Relaxed);
    }

    fn policy(&self, name: &str, rules: &str) {
        self.policies.lock().expect("lock").insert(name.to_owned(), rules.to_owned());
        self.index.fetch_add(1, Ordering::Relaxed);
    }

    fn client(policies: &[&str]) -> TokenRights {
        TokenRights { policies: policies.iter().map(|p| (*p).to_owned()).collect(), ..TokenRights::default() }
    }
}

struct Shared(Arc<Book>);

impl Records for Shared {
    fn index(&self, _: &State) -> u64 {
        self.0.index.load(Ordering::Relaxed)
    }
    fn token(&self, _: &State, secret: &str) -> Option<TokenRights> {
        self.0.tokens.lock().expect("lock").get(secret).cloned()
    }
    fn rules(&self, _: &State, policy: &str) -> Option<String> {
        self.0.policies.lock().expect("lock").get(policy).cloned()
    }
    fn attached(&self, _: &State, task: &Identity) -> Vec<String> {
        let attached = self.0.attached.lock().expect("lock");
        attached.iter().filter(|(to, _)| to == task).map(|(_, policy)| policy.clone()).collect()
    }
}

const CALLERS: [&str; 8] = ["none", "unknown", "expired", "elsewhere", "read", "write", "management", "task"];

struct Guarded {
    c: Cluster,
    book: Arc<Book>,
    alloc: String,
    eval: String,
    deployment: String,
    identity: String,
    _node: FakeNode,
}

impl Guarded {
    /// A cluster with a running job, and then with ACLs.
    async fn start() -> Self {
        let book = Arc::new(Book::default());
        // Until there are tokens, as an open cluster.
        let open = Arc::new(AtomicU64::new(1));
        let (known, still_open) = (server_http::authority(Shared(book.clone())), open.clone());
        let manager = Arc::new(access::Access::management());
        let authority: server_http::Authority = Arc::new(move |server, token| {
            if still_open.load(Ordering::Relaxed) == 1 { Some(manager.clone()) } else { known(server, token) }
        });
        let options = HttpOptions { authority: Some(authority), ..HttpOptions::default() };
        let c = Cluster::with(options, Limits::default()).await;
        let node = FakeNode::join(&c, node("n")).await;
        let registered = c.register(&job("web", 1)).await;
        let running = |list: &Value| list[0]["ClientStatus"] == "running";
        let allocs = c.until("/v1/job/web/allocations", "running", running).await;
        let alloc = allocs[0]["ID"].as_str().expect("an id").to_owned();
        let deployments = c.get("/v1/job/web/deployments").await.json();
        let claims = json!({"nomad_allocation_id": alloc, "nomad_task": "server", "nomad_namespace": "default",
            "nomad_job_id": "web"});
        let identity = c.server.handle().keyring().sign(&claims).expect("signs");
        for (name, rules) in [("read", READ), ("write", WRITE), ("elsewhere", ELSEWHERE)] {
            book.policy(name, rules);
            book.token(name, Book::client(&[name]));
        }
        book.token("expired", TokenRights { expires: Some(1), ..Book::client(&["write"]) });
        book.token("management", TokenRights { management: true, ..TokenRights::default() });
        open.store(0, Ordering::Relaxed);
        Self {
            c,
            book,
            alloc,
            eval: registered["EvalID"].as_str().expect("an id").to_owned(),
            deployment: deployments[0]["ID"].as_str().unwrap_or("7f3b1f4e-0000-4000-8000-000000000000").to_owned(),
            identity,
            _node: node,
        }
    }

    /// Status and text of an answer; of a stream the status alone.
    async fn ask(&self, caller: &str, method: &str, path: &str, body: &Value) -> (StatusCode, String) {
        let address = Address::parse(&self.c.address).expect("address");
        let mut connection: Connection<Full<Bytes>> = Connection::open(&address, None).await.expect("connects");
        let mut request = Request::builder().method(method).uri(path).header("host", &self.c.address);
        let token = if caller == "task" { self.identity.as_str() } else { caller };
        if caller != "none" {
            request = request.header("x-nomad-token", token);
        }
        let body = Full::new(Bytes::from(body.to_string()));
        let response = connection.send(request.body(body).expect("request")).await.expect("answers");
        let status = response.status();
        let text = tokio::time::timeout(Duration::from_millis(300), response.into_body().collect()).await;
        let text = text.ok().and_then(Result::ok).map(|body| body.to_bytes().to_vec()).unwrap_or_default();
        (status, String::from_utf8_lossy(&text).into_owned())
    }

    /// A path of the pattern that names what there is.
    fn path(&self, pattern: &str) -> String {
        let part = |part: &str| match part.strip_prefix([':', '*']) {
            None => part.to_owned(),
            Some("alloc") => self.alloc.clone(),
            Some("slot") => "default/web.web[0]/server".to_owned(),
            Some("operation") => "ls".to_owned(),
            Some("id") if pattern.starts_with("/v1/allocation/") => self.alloc.clone(),
            Some("id") if pattern.starts_with("/v1/evaluation/") => self.eval.clone(),
            Some("id") if pattern.starts_with("/v1/deployment/") => self.deployment.clone(),
            Some("id") if pattern.starts_with("/v1/job/") => "web".to_owned(),
            Some("id" | "node") => "7f3b1f4e-0000-4000-8000-000000000000".to_owned(),
            Some("name") if pattern.starts_with("/v1/namespace/") || pattern.contains("/pool/") => "default".to_owned(),
            Some(_) => "x".to_owned(),
        };
        pattern.split('/').map(part).collect::<Vec<_>>().join("/")
    }
}

/// What a handler wants to read before it decides.
fn body_of(method: &str, pattern: &str) -> Value {
    let name = if pattern == "/v1/jobs" { "another" } else { "web" };
    match (method, pattern) {
        ("PUT", "/v1/jobs" | "/v1/job/*id" | "/v1/job/*id/plan" | "/v1/validate/job") => json!({"Job": job(name, 1)}),
        ("PUT", "/v1/search") => json!({"Prefix": "", "Context": "all"}),
        ("PUT", "/v1/search/fuzzy") => json!({"Text": "web", "Context": "all"}),
        ("PUT", "/v1/acl/explain") => json!({"Method": "GET", "Path": "/v1/jobs"}),
        _ => json!({}),
    }
}

/// One row for each method of each endpoint: who is not refused. It is written from the answers when it is wrong, for
/// whoever has changed it to look at.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_endpoint_refuses_whom_it_should() {
    let g = Guarded::start().await;
    let wanted = include_str!("acl_table.txt");
    let mut found = String::new();
    for endpoint in server_http::endpoints() {
        for verb in endpoint.verbs {
            let method = if verb.method == "any" { "GET" } else { verb.method };
            let mut path = g.path(endpoint.pattern);
            // The job stays, and with it the identity of its task.
            if (method, endpoint.pattern) == ("DELETE", "/v1/job/*id") || path.ends_with("/stop") {
                path = path.replace(&g.alloc, "7f3b1f4e-0000-4000-8000-000000000000").replace("/web", "/none");
            }
            let body = body_of(method, endpoint.pattern);
            let mut row = String::new();
            for caller in CALLERS {
                let (status, text) = g.ask(caller, method, &path, &body).await;
                let refused = status == StatusCode::FORBIDDEN;
                assert!(!refused || text.starts_with("Permission denied"), "{caller}: {method} {path}: {text}");
                row.push_str(if refused { "-" } else { &caller[..1] });
            }
            let _ = writeln!(found, "{row} {} {}", verb.method, endpoint.pattern);
        }
    }
    let missing: Vec<&str> = found.lines().filter(|row| !wanted.contains(&format!("{row}\n"))).collect();
    assert!(found == wanted, "these rows of acl_table.txt differ:\n{}\nthe whole table:\n{found}", missing.join("\n"));
    g.c.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_hold_what_the_caller_may_see_and_hide_the_rest() {
    let g = Guarded::start().await;
    let list = async |caller: &str, path: &str| {
        let (status, text) = g.ask(caller, "GET", path, &Value::Null).await;
        (status.as_u16(), serde_json::from_str::<Value>(&text).ok().and_then(|v| v.as_array().map(Vec::len)))
    };
    for path in ["/v1/jobs", "/v1/allocations", "/v1/evaluations", "/v1/deployments"] {
        assert_eq!(list("read", path).await.0, 200, "{path}");
        assert!(list("read", &format!("{path}?namespace=*")).await.1 >= Some(1), "{path}");
        assert_eq!(list("elsewhere", path).await.0, 403, "{path}");
        assert_eq!(list("elsewhere", &format!("{path}?namespace=*")).await, (200, Some(0)), "{path}");
        assert_eq!(list("none", &format!("{path}?namespace=*")).await.0, 403, "{path}");
    }
    assert_eq!(list("elsewhere", "/v1/namespaces").await, (200, Some(0)));
    assert_eq!(list("read", "/v1/namespaces").await, (200, Some(1)));
    // What is there and what is not are refused alike.
    for path in ["/v1/job/web", "/v1/job/none"] {
        let answer = g.ask("elsewhere", "GET", path, &Value::Null).await;
        assert_eq!(answer, (StatusCode::FORBIDDEN, "Permission denied".to_owned()), "{path}");
    }
    let count = g.ask("elsewhere", "GET", "/v1/evaluations/count?namespace=*", &Value::Null).await.1;
    assert_eq!(count, "{\"Count\":0}");
    let search = g.ask("elsewhere", "PUT", "/v1/search?namespace=*", &json!({"Prefix": "", "Context": "all"})).await;
    assert!(!search.1.contains("web"), "{search:?}");
    // The namespace of the job counts, not that of the query.
    let mut there = serde_json::to_value(job("web", 1)).expect("JSON");
    there["Namespace"] = json!("default");
    let put = g.ask("elsewhere", "PUT", "/v1/jobs", &json!({ "Job": there })).await;
    assert_eq!(put.0, StatusCode::FORBIDDEN);
    let nameless = g.ask("elsewhere", "PUT", "/v1/jobs", &json!({"Job": {"Name": "x"}})).await;
    assert_eq!(nameless.0, StatusCode::BAD_REQUEST, "a job without an id is told so before rights are looked at");
    g.c.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_of_a_policy_or_token_counts_with_the_next_request() {
    let g = Guarded::start().await;
    let status = async |caller: &str, path: &str| g.ask(caller, "GET", path, &Value::Null).await.0.as_u16();
    assert_eq!(status("read", "/v1/jobs").await, 200);
    g.book.policy("read", "namespace \"default\" { policy = \"deny\" }");
    assert_eq!(status("read", "/v1/jobs").await, 403);
    g.book.token("late", Book::client(&["write"]));
    assert_eq!(status("late", "/v1/jobs").await, 200);
    assert_eq!(status("none", "/v1/jobs").await, 403);
    g.book.policy("anonymous", READ);
    assert_eq!(status("none", "/v1/jobs").await, 200);
    assert_eq!(status("unknown", "/v1/jobs").await, 403, "a wrong token is not as good as none");
    g.book.token("late", TokenRights { expires: Some(1), ..Book::client(&["write"]) });
    assert_eq!(status("late", "/v1/jobs").await, 403);
    // The policy of a job is that of its tasks.
    assert_eq!(status("task", "/v1/job/web").await, 403);
    let task =
        Identity { namespace: "default".into(), job: "web".into(), group: "web".into(), task: Some("server".into()) };
    g.book.attached.lock().expect("lock").push((task, "write".to_owned()));
    assert_eq!(status("task", "/v1/job/web").await, 200);
    assert_eq!(status("task", "/v1/services?namespace=*").await, 200);
    let forged = g.identity.replacen('.', ".e", 1);
    assert_eq!(g.ask(&forged, "GET", "/v1/services", &Value::Null).await.0, StatusCode::FORBIDDEN);
    // The identity ends with its allocation.
    assert_eq!(g.ask("management", "DELETE", "/v1/job/web", &Value::Null).await.0, StatusCode::OK);
    let ended = async || {
        for _ in 0..200 {
            if status("task", "/v1/services").await == 403 {
                return true;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        false
    };
    assert!(ended().await, "the identity of a task outlives its allocation");
    g.c.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_rule_that_decides_is_explained() {
    let g = Guarded::start().await;
    let explain = async |caller: &str, question: Value| {
        let (status, text) = g.ask(caller, "PUT", "/v1/acl/explain", &question).await;
        (status.as_u16(), serde_json::from_str::<Value>(&text).unwrap_or(Value::String(text)))
    };
    let (status, said) = explain("read", json!({"Method": "DELETE", "Path": "/v1/job/web"})).await;
    assert_eq!((status, &said["Allowed"], &said["Endpoint"]), (200, &json!(false), &json!("/v1/job/*id")), "{said}");
    assert_eq!(said["Rules"][0]["Why"], "policy read: namespace \"default\" does not give it");
    let path = format!("/v1/allocation/{}", g.alloc);
    let other = json!({"Method": "GET", "Path": path, "Token": "elsewhere"});
    assert_eq!(explain("read", other.clone()).await.0, 403, "another's token");
    let (_, said) = explain("management", other).await;
    assert_eq!(said["Rules"][0]["Need"], "read-job in namespace \"default\"");
    let (_, said) = explain("management", json!({"Method": "GET", "Path": "/v1/nodes", "Token": "write"})).await;
    assert_eq!((&said["Allowed"], &said["Rules"][0]["Why"]), (&json!(true), &json!("policy write: node gives write")));
    assert_eq!(explain("management", json!({"Method": "GET", "Path": "/v1/nothing"})).await.0, 404);
    assert_eq!(explain("none", json!({"Method": "GET", "Path": "/v1/jobs"})).await.0, 403);
    g.c.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_exec_session_is_decided_by_its_token() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let g = Guarded::start().await;
    // What the other end says after the upgrade, and after this first message.
    let said = async |token: &str, query: &str, first: &str| {
        let mut stream = tokio::net::TcpStream::connect(&g.c.address).await.expect("connects");
        let shown = if token.is_empty() { String::new() } else { format!("x-nomad-token: {token}\r\n") };
        let request = format!(
            "GET /v1/client/allocation/{}/exec?command=%5B%22x%22%5D{query} HTTP/1.1\r\nhost: {}\r\n{shown}\
             connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n\
             sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
            g.alloc, g.c.address
        );
        stream.write_all(request.as_bytes()).await.expect("writes");
        if !first.is_empty() {
            let mut frame = vec![0x81, 0x80 | u8::try_from(first.len()).expect("short"), 0, 0, 0, 0];
            frame.extend_from_slice(first.as_bytes());
            stream.write_all(&frame).await.expect("writes");
        }
        let mut heard = vec![0; 4096];
        let mut text = String::new();
        while let Ok(Ok(n @ 1..)) = tokio::time::timeout(Duration::from_secs(2), stream.read(&mut heard)).await {
            text.push_str(&String::from_utf8_lossy(&heard[..n]));
            if text.contains("Permission denied") {
                break;
            }
        }
        text
    };
    let refused = said("read", "", "").await;
    assert!(refused.starts_with("HTTP/1.1 101") && refused.contains("Permission denied"), "{refused}");
    // The node of this cluster listens nowhere: who may hears that.
    let passed = said("write", "", "").await;
    assert!(passed.contains("No path to node"), "{passed}");
    let no_token = said("", "", "").await;
    assert!(no_token.contains("Permission denied"), "{no_token}");
    g.c.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_id_of_a_lock_is_shown_to_its_holder_and_to_managers() {
    let g = Guarded::start().await;
    let rules = |capabilities: &str| {
        format!("namespace \"default\" {{ variables {{ path \"*\" {{ capabilities = [{capabilities}] }} }} }}")
    };
    for (name, capabilities) in [("all", r#""read", "list", "write", "destroy""#), ("reader", r#""read", "list""#)] {
        g.book.policy(name, &rules(capabilities));
        g.book.token(name, Book::client(&[name]));
    }
    let lock = json!({"Items": {"k": "v"}, "Lock": {"ID": "opens-it"}});
    for operation in ["lock-acquire", "lock-renew", "lock-release"] {
        let (status, text) = g.ask("reader", "PUT", &format!("/v1/var/a?{operation}"), &lock).await;
        assert_eq!(status, StatusCode::FORBIDDEN, "{operation}: {text}");
    }
    let (status, text) = g.ask("all", "PUT", "/v1/var/a?lock-acquire", &lock).await;
    assert!(status == StatusCode::OK && text.contains("opens-it"), "{status} {text}");
    for path in ["/v1/var/a", "/v1/vars"] {
        for (caller, sees) in [("management", true), ("all", false), ("reader", false)] {
            let (status, text) = g.ask(caller, "GET", path, &json!(null)).await;
            assert!(status == StatusCode::OK && text.contains("opens-it") == sees, "{caller} {path}: {text}");
        }
    }
    let (status, text) = g.ask("all", "PUT", "/v1/var/a?cas=1", &lock).await;
    assert!(status == StatusCode::CONFLICT && !text.contains("opens-it"), "{status} {text}");
}

//! Who may what, over the whole table of endpoints: each of them is asked by each kind of caller.

use std::{collections::BTreeMap, fmt::Write as _, time::Duration};

use api::client::{Address, Connection};
use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use serde_json::{Value, json};
use server::{AclConfig, ServerConfig};
use server_http::{HttpOptions, Limits, LocalNode};

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

const CALLERS: [&str; 8] = ["none", "unknown", "expired", "elsewhere", "read", "write", "management", "task"];

/// The identity of the task of an allocation, for an audience; null = for none.
fn identity(c: &Cluster, alloc: &str, audience: &Value) -> String {
    let mut claims = json!({"nomad_allocation_id": alloc, "nomad_task": "server", "nomad_namespace": "default",
        "nomad_job_id": "web"});
    if !audience.is_null() {
        claims["aud"] = audience.clone();
    }
    c.server.handle().keyring().sign(&claims).expect("signs")
}

pub(crate) struct Guarded {
    pub(crate) c: Cluster,
    /// Secrets of the callers that have a token.
    secrets: BTreeMap<&'static str, String>,
    pub(crate) alloc: String,
    eval: String,
    deployment: String,
    _node: FakeNode,
}

impl Guarded {
    /// A cluster with ACLs and a running job.
    pub(crate) async fn start() -> Self {
        Self::with(HttpOptions::default()).await
    }

    async fn with(options: HttpOptions) -> Self {
        Self::of(options, node("n")).await
    }

    /// The same with this node.
    async fn of(options: HttpOptions, node: model::Node) -> Self {
        let acl = AclConfig { enabled: true, token_min_expiration: Duration::from_millis(1), ..AclConfig::default() };
        let config = ServerConfig { acl, ..ServerConfig::default() };
        let mut c = Cluster::of(config, options, Limits::default()).await;
        let first = c.done("/v1/acl/bootstrap", &json!({})).await;
        let management = first["SecretID"].as_str().expect("a secret").to_owned();
        c.show(&management);
        let node = FakeNode::join(&c, node).await;
        let registered = c.register(&job("web", 1)).await;
        let running = |list: &Value| list[0]["ClientStatus"] == "running";
        let allocs = c.until("/v1/job/web/allocations", "running", running).await;
        let alloc = allocs[0]["ID"].as_str().expect("an id").to_owned();
        let deployments = c.get("/v1/job/web/deployments").await.json();
        let identity = identity(&c, &alloc, &json!("nomadproject.io"));
        let unknown = "5c3c2f5a-9a3e-4b0e-8e55-0a6a3c1f2d11".to_owned();
        let secrets = BTreeMap::from([("management", management), ("unknown", unknown), ("task", identity)]);
        let mut g = Self {
            c,
            secrets,
            alloc,
            eval: registered["EvalID"].as_str().expect("an id").to_owned(),
            deployment: deployments[0]["ID"].as_str().unwrap_or("7f3b1f4e-0000-4000-8000-000000000000").to_owned(),
            _node: node,
        };
        for (name, rules) in [("read", READ), ("write", WRITE), ("elsewhere", ELSEWHERE)] {
            g.policy(name, rules, &Value::Null).await;
            g.token(name, name, "").await;
        }
        g.token("expired", "write", "1ms").await;
        tokio::time::sleep(Duration::from_millis(5)).await;
        g
    }

    /// Writes a policy. `job`: whose identities have it.
    async fn policy(&self, name: &str, rules: &str, job: &Value) {
        let policy = json!({"Name": name, "Rules": rules, "JobACL": job});
        self.c.done(&format!("/v1/acl/policy/{name}"), &policy).await;
    }

    /// Makes the token of a caller; its accessor.
    async fn token(&mut self, caller: &'static str, policy: &str, ttl: &str) -> String {
        let token = json!({"Name": caller, "Type": "client", "Policies": [policy], "ExpirationTTL": ttl});
        let made = self.c.done("/v1/acl/token", &token).await;
        self.secrets.insert(caller, made["SecretID"].as_str().expect("a secret").to_owned());
        made["AccessorID"].as_str().expect("an accessor").to_owned()
    }

    /// Status and text of an answer; of a stream the status alone.
    pub(crate) async fn ask(&self, caller: &str, method: &str, path: &str, body: &Value) -> (StatusCode, String) {
        let address = Address::parse(&self.c.address).expect("address");
        let mut connection: Connection<Full<Bytes>> = Connection::open(&address, None).await.expect("connects");
        let mut request = Request::builder().method(method).uri(path).header("host", &self.c.address);
        if caller != "none" {
            request = request.header("x-nomad-token", self.secrets.get(caller).map_or(caller, String::as_str));
        }
        let body = Full::new(Bytes::from(body.to_string()));
        let response = connection.send(request.body(body).expect("request")).await.expect("answers");
        let status = response.status();
        // A stream has no length, and no end that could be waited for.
        let whole = response.headers().contains_key("content-length");
        let patience = if whole { testkit::PATIENCE } else { Duration::from_millis(300) };
        let text = tokio::time::timeout(patience, response.into_body().collect()).await;
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
    let mut g = Guarded::start().await;
    let status =
        async |g: &Guarded, caller: &str, path: &str| g.ask(caller, "GET", path, &Value::Null).await.0.as_u16();
    assert_eq!(status(&g, "read", "/v1/jobs").await, 200);
    g.policy("read", "namespace \"default\" { policy = \"deny\" }", &Value::Null).await;
    assert_eq!(status(&g, "read", "/v1/jobs").await, 403);
    let late = g.token("late", "write", "").await;
    assert_eq!(status(&g, "late", "/v1/jobs").await, 200);
    assert_eq!(status(&g, "none", "/v1/jobs").await, 403);
    g.policy("anonymous", READ, &Value::Null).await;
    assert_eq!(status(&g, "none", "/v1/jobs").await, 200);
    assert_eq!(status(&g, "unknown", "/v1/jobs").await, 403, "a wrong token is not as good as none");
    // A token that changes its policies, by its role as well.
    let role = json!({"Name": "writers", "Policies": [{"Name": "write"}]});
    let role = g.c.done("/v1/acl/role", &role).await;
    let changed = json!({"AccessorID": late, "Type": "client", "Roles": [{"ID": role["ID"]}], "Policies": []});
    g.c.done(&format!("/v1/acl/token/{late}"), &changed).await;
    assert_eq!(status(&g, "late", "/v1/jobs").await, 200);
    let id = role["ID"].as_str().expect("an id");
    let narrowed = json!({"ID": id, "Name": "writers", "Policies": [{"Name": "elsewhere"}]});
    g.c.done(&format!("/v1/acl/role/{id}"), &narrowed).await;
    assert_eq!(status(&g, "late", "/v1/jobs").await, 403);
    let deleted = g.ask("management", "DELETE", &format!("/v1/acl/token/{late}"), &Value::Null).await;
    assert_eq!(deleted.0, StatusCode::OK, "{deleted:?}");
    assert_eq!(status(&g, "late", "/v1/namespaces").await, 403, "a token that is gone is a wrong one");
    // The policy of a job is that of its tasks.
    assert_eq!(status(&g, "task", "/v1/job/web").await, 403);
    for job in [
        json!({"Namespace": "default", "JobID": "other"}),
        json!({"Namespace": "default", "JobID": "web", "Group": "web", "Task": "another"}),
    ] {
        g.policy("attached", WRITE, &job).await;
        assert_eq!(status(&g, "task", "/v1/job/web").await, 403, "{job}");
    }
    for job in [
        json!({"Namespace": "default"}),
        json!({"Namespace": "default", "JobID": "web", "Group": "web", "Task": "server"}),
    ] {
        g.policy("attached", WRITE, &job).await;
        assert_eq!(status(&g, "task", "/v1/job/web").await, 200, "{job}");
    }
    assert_eq!(status(&g, "task", "/v1/services?namespace=*").await, 200);
    let forged = g.secrets["task"].replacen('.', ".e", 1);
    assert_eq!(g.ask(&forged, "GET", "/v1/services", &Value::Null).await.0, StatusCode::FORBIDDEN);
    // The identity ends with its allocation.
    assert_eq!(g.ask("management", "DELETE", "/v1/job/web", &Value::Null).await.0, StatusCode::OK);
    let ended = async || {
        for _ in 0..200 {
            if status(&g, "task", "/v1/services").await == 403 {
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
async fn a_query_that_waits_is_decided_by_what_holds_when_it_answers() {
    let g = Guarded::start().await;
    let index = g.c.get("/v1/jobs").await.header("x-nomad-index").to_owned();
    let path = format!("/v1/jobs?index={index}&wait=60s");
    let waiting = g.ask("read", "GET", &path, &Value::Null);
    let change = async {
        // The query waits by then; if not, it is decided at its begin, with the same result.
        tokio::time::sleep(Duration::from_millis(300)).await;
        g.policy("read", "namespace \"default\" { policy = \"deny\" }", &Value::Null).await;
        g.c.register(&job("secret-plans", 1)).await;
    };
    let ((status, text), ()) = tokio::join!(waiting, change);
    assert!(status == StatusCode::FORBIDDEN && !text.contains("secret-plans"), "{status} {text}");
    g.c.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_query_waits_once_however_its_index_is_written() {
    let g = Guarded::start().await;
    let path = "/v1/jobs?inde%78=999999999&wait=6s";
    let begun = std::time::Instant::now();
    let waiting = g.ask("read", "GET", path, &Value::Null);
    let change = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        g.policy("read", &READ.replace("agent { policy = \"read\" }", ""), &Value::Null).await;
    };
    let ((status, text), ()) = tokio::join!(waiting, change);
    let took = begun.elapsed();
    assert!(status == StatusCode::OK && took > Duration::from_secs(5), "it has waited: {status} {took:?} {text}");
    assert!(took < Duration::from_millis(11_500), "nobody judges a second wait: {took:?}");
    g.c.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_followed_log_ends_with_the_right_to_read_it() {
    use futures::{StreamExt as _, stream};
    let follow: server_http::FollowLog = std::sync::Arc::new(|_| {
        let lines = stream::iter(0..).then(|_: u32| async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            b"a line\n".to_vec()
        });
        Ok(lines.boxed())
    });
    let g = Guarded::with(HttpOptions { follow_log: Some(follow), ..HttpOptions::default() }).await;
    let address = Address::parse(&g.c.address).expect("address");
    let mut connection: Connection<Full<Bytes>> = Connection::open(&address, None).await.expect("connects");
    let request = Request::get("/v1/agent/monitor?plain=true").header("host", &g.c.address);
    let request = request.header("x-nomad-token", &g.secrets["read"]).body(Full::default()).expect("request");
    let response = connection.send(request).await.expect("answers");
    assert_eq!(response.status(), StatusCode::OK);
    let mut body = response.into_body();
    assert!(testkit::soon(body.frame()).await.is_some_and(|frame| frame.is_ok()), "lines come");
    g.policy("read", "agent { policy = \"deny\" }", &Value::Null).await;
    let ends = async { while body.frame().await.is_some_and(|frame| frame.is_ok()) {} };
    assert!(tokio::time::timeout(Duration::from_secs(15), ends).await.is_ok(), "it goes on without the right");
    g.c.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_of_a_node_end_with_the_right_to_read_them() {
    use axum::{Router, body::Body, routing::get};
    use futures::{StreamExt as _, future::join_all, stream};
    // A file that grows, and an archive of it.
    let grows = get(|| async {
        Body::from_stream(stream::repeat(()).then(|()| async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            Ok::<_, std::convert::Infallible>("more\n")
        }))
    });
    let router = Router::new()
        .route("/v1/client/fs/{operation}/{alloc}", grows.clone())
        .route("/v1/client/allocation/{alloc}/snapshot", grows);
    let n = node("n");
    let local = LocalNode { node_id: n.id, router, stats: None, metrics: None };
    let g = Guarded::of(HttpOptions { local: Some(local), ..HttpOptions::default() }, n).await;
    let address = Address::parse(&g.c.address).expect("address");
    let open = async |path: String| {
        let mut connection: Connection<Full<Bytes>> = Connection::open(&address, None).await.expect("connects");
        let request = Request::get(&path).header("host", &g.c.address).header("x-nomad-token", &g.secrets["write"]);
        let response = connection.send(request.body(Full::default()).expect("request")).await.expect("answers");
        assert_eq!(response.status(), StatusCode::OK, "{path}");
        let mut body = response.into_body();
        assert!(testkit::soon(body.frame()).await.is_some_and(|frame| frame.is_ok()), "{path}: something comes");
        (path, connection, body)
    };
    let id = &g.alloc;
    let opened = join_all([
        open(format!("/v1/client/fs/logs/{id}?task=server&type=stdout&follow=true")),
        open(format!("/v1/client/fs/cat/{id}?path=f")),
        open(format!("/v1/client/fs/readat/{id}?path=f&offset=0&limit=1000000")),
        open(format!("/v1/client/fs/c%61t/{id}?path=f")),
        open(format!("/v1/client/allocation/{id}/snapshot")),
    ]);
    let opened = opened.await;
    g.policy("write", "agent { policy = \"deny\" }", &Value::Null).await;
    for (path, _connection, mut body) in opened {
        let end = async {
            loop {
                match body.frame().await {
                    Some(Ok(_)) => {}
                    end => return end,
                }
            }
        };
        let end = tokio::time::timeout(Duration::from_secs(15), end).await;
        let end = end.unwrap_or_else(|_| panic!("{path} goes on without the right"));
        assert_eq!(end.is_some(), !path.contains("/logs/"), "{path}: a part is no whole: {end:?}");
    }
    g.c.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plan_names_displaced_allocations_of_namespaces_that_its_caller_reads() {
    let mut g = Guarded::start().await;
    let config = json!({"SchedulerAlgorithm": "binpack", "PreemptionConfig": {"ServiceSchedulerEnabled": true}});
    g.c.done("/v1/operator/scheduler/configuration", &config).await;
    g.c.done("/v1/namespace", &json!({"Name": "private"})).await;
    let sized = |id: &str, namespace: &str, priority: i32| {
        let mut job = serde_json::to_value(job(id, 1)).expect("JSON");
        (job["Namespace"], job["Priority"]) = (json!(namespace), json!(priority));
        job["TaskGroups"][0]["Tasks"][0]["Resources"]["CPU"] = json!(3500);
        json!({ "Job": job })
    };
    g.c.done("/v1/jobs", &sized("hidden", "private", 1)).await;
    let running = |list: &Value| list[0]["ClientStatus"] == "running";
    g.c.until("/v1/job/hidden/allocations?namespace=private", "running", running).await;
    g.policy("both", &format!("{WRITE} namespace \"private\" {{ policy = \"read\" }}"), &Value::Null).await;
    g.token("both", "both", "").await;
    for (caller, named) in [("management", 1), ("both", 1), ("write", 0)] {
        let (status, text) = g.ask(caller, "PUT", "/v1/job/big/plan", &sized("big", "default", 90)).await;
        let said: Value = serde_json::from_str(&text).unwrap_or_default();
        let listed = said["Annotations"]["PreemptedAllocs"].as_array().map_or(0, Vec::len);
        assert_eq!((status, listed), (StatusCode::OK, named), "{caller}: {text}");
        assert_eq!(said["Annotations"]["DesiredTGUpdates"]["web"]["Preemptions"], 1, "{caller}: all count: {text}");
    }
    g.c.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_identity_of_a_task_for_another_audience_is_no_token() {
    let g = Guarded::start().await;
    for (audience, wanted) in [
        (json!("nomadproject.io"), StatusCode::OK),
        (json!(["sts.amazonaws.com", "nomadproject.io"]), StatusCode::OK),
        (json!("sts.amazonaws.com"), StatusCode::FORBIDDEN),
        (json!(["a", "b"]), StatusCode::FORBIDDEN),
        (json!([]), StatusCode::FORBIDDEN),
        (Value::Null, StatusCode::FORBIDDEN),
    ] {
        let shown = identity(&g.c, &g.alloc, &audience);
        assert_eq!(g.ask(&shown, "GET", "/v1/services", &Value::Null).await.0, wanted, "{audience}");
    }
    g.c.end().await;
}

/// Whoever has no rights is told so before its body: it may take as long as it likes to send one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_may_nothing_is_refused_before_its_body_is_read() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let g = Guarded::start().await;
    for (method, path) in [("PUT", "/v1/jobs"), ("PUT", "/v1/var/a"), ("PUT", "/v1/search"), ("DELETE", "/v1/var/a")] {
        let mut stream = tokio::net::TcpStream::connect(&g.c.address).await.expect("connects");
        let head = format!("{method} {path} HTTP/1.1\r\nhost: {}\r\ncontent-length: 1000000\r\n\r\n", g.c.address);
        stream.write_all(head.as_bytes()).await.expect("writes");
        let mut heard = [0; 12];
        testkit::soon(stream.read_exact(&mut heard)).await.expect("an answer");
        assert_eq!(&heard, b"HTTP/1.1 403", "{method} {path}");
    }
    // What is open to all takes little of a stranger.
    let login = json!({"AuthMethodName": "x", "LoginToken": "x".repeat(66_000)});
    let (status, text) = g.ask("none", "PUT", "/v1/acl/login", &login).await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE, "{text}");
    // Nor may a body take room for as long as a query waits.
    let named = json!({"Jobs": [{"ID": "x".repeat(66_000), "Namespace": "default"}]});
    for (query, answer) in [("", StatusCode::OK), ("?index=1&wait=1ms", StatusCode::PAYLOAD_TOO_LARGE)] {
        let (status, text) = g.ask("read", "POST", &format!("/v1/jobs/statuses{query}"), &named).await;
        assert_eq!(status, answer, "{query}: {text}");
    }
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
    let other = json!({"Method": "GET", "Path": path, "Token": g.secrets["elsewhere"]});
    assert_eq!(explain("read", other.clone()).await.0, 403, "another's token");
    let (_, said) = explain("management", other).await;
    assert_eq!(said["Rules"][0]["Need"], "read-job in namespace \"default\"");
    let (_, said) =
        explain("management", json!({"Method": "GET", "Path": "/v1/nodes", "Token": g.secrets["write"]})).await;
    assert_eq!((&said["Allowed"], &said["Rules"][0]["Why"]), (&json!(true), &json!("policy write: node gives write")));
    assert_eq!(explain("management", json!({"Method": "GET", "Path": "/v1/nothing"})).await.0, 404);
    // Also who has no token hears why; a token that is none says nothing.
    let (status, said) = explain("none", json!({"Method": "GET", "Path": "/v1/jobs"})).await;
    assert_eq!(
        (status, &said["Allowed"], &said["Caller"]["Type"]),
        (200, &json!(false), &json!("anonymous")),
        "{said}"
    );
    // It learns nothing of what exists.
    g.c.done("/v1/namespace/secret", &json!({"Name": "secret"})).await;
    let mut hidden = serde_json::to_value(job("hidden", 1)).expect("JSON");
    hidden["Namespace"] = json!("secret");
    let made = g.c.put("/v1/jobs?namespace=secret", &json!({"Job": hidden})).await.json();
    let path = format!("/v1/evaluation/{}", made["EvalID"].as_str().expect("an evaluation"));
    let (_, said) = explain("none", json!({"Method": "GET", "Path": path})).await;
    assert_eq!(said["Rules"][0]["Need"], "read-job in namespace \"default\"", "{said}");
    g.policy("anonymous", "namespace \"default\" { policy = \"read\" }", &Value::Null).await;
    let (_, said) = explain("none", json!({"Method": "GET", "Path": "/v1/jobs"})).await;
    assert_eq!(said["Rules"][0]["Why"], "policy anonymous: namespace \"default\" gives list-jobs", "{said}");
    assert_eq!(explain("none", json!({"Method": "GET", "Path": "/v1/jobs", "Token": g.secrets["read"]})).await.0, 403);
    assert_eq!(explain("unknown", json!({"Method": "GET", "Path": "/v1/jobs"})).await.0, 403);
    g.c.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revert_mounts_no_volume_that_its_caller_may_not() {
    let mut g = Guarded::start().await;
    let mounts = |capability: &str| format!("{WRITE} host_volume \"data\" {{ capabilities = [\"{capability}\"] }}");
    for (name, capability) in [("reads", "mount-readonly"), ("mounts", "mount-readwrite")] {
        g.policy(name, &mounts(capability), &Value::Null).await;
        g.token(name, name, "").await;
    }
    for mounted in [true, false] {
        let mut job = serde_json::to_value(job("stateful", 1)).expect("JSON");
        if mounted {
            job["TaskGroups"][0]["Volumes"] = json!({"v": {"Name": "v", "Type": "host", "Source": "data"}});
        }
        g.c.register(&job).await;
    }
    let to = |version: u64| json!({"JobID": "stateful", "JobVersion": version});
    for (caller, version, wanted) in [("write", 0, 403), ("reads", 0, 403), ("mounts", 0, 200), ("write", 1, 200)] {
        let (status, text) = g.ask(caller, "PUT", "/v1/job/stateful/revert", &to(version)).await;
        assert_eq!(status.as_u16(), wanted, "{caller} {version}: {text}");
    }
    g.c.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_exec_session_is_decided_by_its_token() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let g = Guarded::start().await;
    // What the other end says after the upgrade, and after this first message.
    let said = async |token: &str, query: &str, first: &str| {
        let mut stream = tokio::net::TcpStream::connect(&g.c.address).await.expect("connects");
        let secret = g.secrets.get(token);
        let shown = secret.map(|secret| format!("x-nomad-token: {secret}\r\n")).unwrap_or_default();
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
        while let Ok(n @ 1..) = testkit::soon(stream.read(&mut heard)).await {
            text.push_str(&String::from_utf8_lossy(&heard[..n]));
            if ["Permission denied", "No path to node"].iter().any(|end| text.contains(end)) {
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
    let mut g = Guarded::start().await;
    let rules = |capabilities: &str| {
        format!("namespace \"default\" {{ variables {{ path \"*\" {{ capabilities = [{capabilities}] }} }} }}")
    };
    for (name, capabilities) in [("all", r#""read", "list", "write", "destroy""#), ("reader", r#""read", "list""#)] {
        g.policy(name, &rules(capabilities), &Value::Null).await;
        g.token(name, name, "").await;
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
    g.c.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_may_only_write_a_variable_reads_nothing_of_it_with_its_lock() {
    let mut g = Guarded::start().await;
    for (name, capabilities) in [("writer", r#""write""#), ("both", r#""read", "write""#)] {
        let rules =
            format!("namespace \"default\" {{ variables {{ path \"*\" {{ capabilities = [{capabilities}] }} }} }}");
        g.policy(name, &rules, &Value::Null).await;
        g.token(name, name, "").await;
    }
    let put = g.ask("management", "PUT", "/v1/var/db", &json!({"Items": {"password": "hunter2"}})).await;
    assert_eq!(put.0, StatusCode::OK, "{}", put.1);
    let id = json!({"Lock": {"ID": "mine"}});
    for operation in ["lock-acquire", "lock-acquire", "lock-renew", "lock-release"] {
        let (status, text) = g.ask("writer", "PUT", &format!("/v1/var/db?{operation}"), &id).await;
        assert!(status == StatusCode::OK && !text.contains("hunter2"), "{operation}: {status} {text}");
    }
    let (_, text) = g.ask("both", "PUT", "/v1/var/db?lock-acquire", &id).await;
    assert!(text.contains("hunter2"), "who may read sees the items: {text}");
    g.ask("both", "PUT", "/v1/var/db?lock-release", &id).await;
    let own = json!({"Lock": {"ID": "mine"}, "Items": {"k": "brought"}});
    let (status, text) = g.ask("writer", "PUT", "/v1/var/db?lock-acquire", &own).await;
    assert!(status == StatusCode::OK && text.contains("brought"), "its own items come back: {status} {text}");
    g.c.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_are_made_shown_and_exchanged() {
    let mut g = Guarded::start().await;
    let accessor = g.token("own", "write", "2h").await;
    let ask = async |caller: &str, method: &str, path: &str, body: Value| {
        let (status, text) = g.ask(caller, method, path, &body).await;
        (status.as_u16(), serde_json::from_str::<Value>(&text).unwrap_or(Value::String(text)))
    };
    // A second bootstrap, and secrets that are none.
    let (status, text) = ask("none", "PUT", "/v1/acl/bootstrap", json!({})).await;
    let text = text.as_str().expect("a text");
    assert!(status == 400 && text.starts_with("ACL bootstrap already done (reset index: "), "{status} {text}");
    // Lists have no secrets, and only managers read them.
    let (_, list) = ask("management", "GET", "/v1/acl/tokens", Value::Null).await;
    assert!(list.as_array().is_some_and(|list| list.len() == 6 && list.iter().all(|t| t.get("SecretID").is_none())));
    assert_eq!(ask("write", "GET", "/v1/acl/tokens", Value::Null).await.0, 403);
    // Pages of two, upwards and downwards, hold each of them once and in order.
    let accessors: Vec<&str> =
        list.as_array().expect("a list").iter().filter_map(|t| t["AccessorID"].as_str()).collect();
    for (reverse, whole) in [("", accessors.clone()), ("&reverse=true", accessors.iter().rev().copied().collect())] {
        let (mut found, mut next) = (Vec::new(), String::new());
        loop {
            let page = g.c.get(&format!("/v1/acl/tokens?per_page=2{reverse}&next_token={next}")).await;
            let rows = page.json();
            assert!(rows.as_array().is_some_and(|rows| (1..=2).contains(&rows.len())), "{rows}");
            let rows = rows.as_array().into_iter().flatten();
            found.extend(rows.map(|row| row["AccessorID"].as_str().expect("an accessor").to_owned()));
            page.header("x-nomad-nexttoken").clone_into(&mut next);
            if next.is_empty() {
                break;
            }
        }
        assert_eq!(found, whole, "{reverse}");
    }
    let one = ask("management", "GET", &format!("/v1/acl/tokens?prefix={}", &accessor[..8]), Value::Null).await.1;
    assert!(one.as_array().is_some_and(|one| one.len() == 1 && one[0]["AccessorID"] == json!(accessor)), "{one}");
    // Its owner reads a token, whoever else has none of it.
    let path = format!("/v1/acl/token/{accessor}");
    let (status, own) = ask("own", "GET", &path, Value::Null).await;
    assert_eq!((status, own["SecretID"].as_str()), (200, Some(&*g.secrets["own"])), "{own}");
    assert_eq!((own["ExpirationTTL"].as_str(), own["Policies"][0].as_str()), (Some("2h0m0s"), Some("write")));
    assert_eq!(ask("write", "GET", &path, Value::Null).await.0, 403);
    assert_eq!(ask("own", "GET", "/v1/acl/token/self", Value::Null).await.1["AccessorID"], json!(accessor));
    let (_, nobody) = ask("none", "GET", "/v1/acl/token/self", Value::Null).await;
    assert_eq!((&nobody["AccessorID"], &nobody["SecretID"]), (&json!("anonymous"), &json!("")));
    assert_eq!(ask("unknown", "GET", "/v1/acl/token/self", Value::Null).await.0, 403);
    // One's own policies, and those of others.
    let names = |list: &Value| {
        let names = list.as_array().map(|list| list.iter().map(|p| p["Name"].as_str().unwrap_or("?").to_owned()));
        names.map(Iterator::collect::<Vec<_>>).unwrap_or_default()
    };
    assert_eq!(names(&ask("own", "GET", "/v1/acl/policies", Value::Null).await.1), ["write"]);
    assert_eq!(names(&ask("own", "GET", "/v1/acl/policy/self", Value::Null).await.1), ["write"]);
    let all = ask("management", "GET", "/v1/acl/policies", Value::Null).await.1;
    assert_eq!(names(&all), ["elsewhere", "read", "write"]);
    assert_eq!(ask("own", "GET", "/v1/acl/policy/read", Value::Null).await.0, 403);
    let (_, policy) = ask("own", "GET", "/v1/acl/policy/write", Value::Null).await;
    assert_eq!(policy["RulesJSON"]["Namespaces"][0]["Name"], "default", "{policy}");
    // What is wrong with a policy is said.
    for (name, body, why) in [
        ("x", json!({"Name": "y"}), "ACL policy name does not match request path"),
        ("a_b", json!({"Name": "a_b"}), "policy 0 invalid: 1 error occurred:\n\t* invalid name 'a_b'\n\n"),
        ("x", json!({"Name": "x", "Rules": "agent { policy = \"full\" }"}), "failed to parse rules: "),
        ("x", json!({"Name": "x", "Rules": "foo { }"}), "Invalid or duplicate policy keys: foo"),
    ] {
        let (status, text) = ask("management", "PUT", &format!("/v1/acl/policy/{name}"), body).await;
        assert!(status == 400 && text.as_str().is_some_and(|text| text.contains(why)), "{why}: {status} {text}");
    }
    // A one-time token stands for its owner's, once.
    let (_, made) = ask("own", "PUT", "/v1/acl/token/onetime", json!({})).await;
    let secret = made["OneTimeToken"]["OneTimeSecretID"].clone();
    let exchange = json!({ "OneTimeSecretID": secret });
    let (status, exchanged) = ask("none", "PUT", "/v1/acl/token/onetime/exchange", exchange.clone()).await;
    assert_eq!((status, &exchanged["Token"]["SecretID"]), (200, &json!(g.secrets["own"])), "{exchanged}");
    assert_eq!(ask("none", "PUT", "/v1/acl/token/onetime/exchange", exchange).await.0, 403);
    assert_eq!(ask("none", "PUT", "/v1/acl/token/onetime", json!({})).await.0, 403, "nobody has a token");
    assert_eq!(ask("task", "PUT", "/v1/acl/token/onetime", json!({})).await.0, 403, "nor has a task");
    g.c.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_drains_itself_and_no_other() {
    let g = Guarded::start().await;
    let nodes = g.c.get("/v1/nodes").await.json();
    let id = nodes[0]["ID"].as_str().expect("an id");
    let sign = |id: &str, exp: i64| {
        let claims = json!({"aud": "nomadproject.io", "sub": format!("node:global:default:{id}:default"), "exp": exp,
            "nomad_node_id": id, "nomad_node_pool": "default"});
        g.c.server.handle().keyring().sign(&claims).expect("signs")
    };
    let other = "7f3b1f4e-0000-4000-8000-000000000000";
    let (own, late, foreign) = (sign(id, i64::MAX / 2), sign(id, 1), sign(other, i64::MAX / 2));
    let drain = json!({"DrainSpec": {"Deadline": 3_600_000_000_000_i64, "IgnoreSystemJobs": false}});
    let status = async |token: &str, method: &str, path: String| g.ask(token, method, &path, &drain).await.0.as_u16();
    for (token, named, wanted) in [
        (&late, id, 403),
        (&own, other, 403),
        // No node of the cluster.
        (&foreign, other, 403),
        (&foreign, id, 403),
        (&own, id, 200),
    ] {
        assert_eq!(status(token, "PUT", format!("/v1/node/{named}/drain")).await, wanted, "{token} {named}");
        assert_eq!(status(token, "GET", format!("/v1/node/{named}")).await, wanted, "{token} {named}");
    }
    for path in ["/v1/nodes", "/v1/jobs", "/v1/agent/self"] {
        assert_eq!(status(&own, "GET", path.to_owned()).await, 403, "{path}");
    }
    // It takes itself out of scheduling, and not back in: that would undo what an operator has ordered.
    let put = async |token: &str, what: &str, body: Value| {
        g.ask(token, "PUT", &format!("/v1/node/{id}/{what}"), &body).await.0.as_u16()
    };
    assert_eq!(put("write", "drain", json!({"DrainSpec": null, "MarkEligible": true})).await, 200);
    assert_eq!(put(&own, "eligibility", json!({"Eligibility": "ineligible"})).await, 200);
    assert_eq!(put(&own, "eligibility", json!({"Eligibility": "eligible"})).await, 403);
    assert_eq!(put(&own, "drain", json!({"DrainSpec": null, "MarkEligible": true})).await, 403);
    assert_eq!(put(&own, "evaluate", json!({})).await, 403);
    assert_eq!(put(&own, "purge", json!({})).await, 403);
    // A drain of an operator stays as it was ordered, and the node may wait for its end.
    let ordered = json!({"DrainSpec": {"Deadline": 3_600_000_000_000_i64, "IgnoreSystemJobs": false}});
    assert_eq!(put("write", "drain", ordered).await, 200);
    let before = g.c.get(&format!("/v1/node/{id}")).await.json();
    let never = json!({"DrainSpec": {"Deadline": 0, "IgnoreSystemJobs": true}});
    assert_eq!(put(&own, "drain", never).await, 200);
    let after = g.c.get(&format!("/v1/node/{id}")).await.json();
    assert_eq!(before["DrainStrategy"], after["DrainStrategy"]);
    let (_, text) = g.ask(&own, "PUT", "/v1/acl/explain", &json!({"Method": "GET", "Path": "/v1/jobs"})).await;
    let said: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((said["Caller"]["Type"].as_str(), said["Caller"]["Name"].as_str()), (Some("node"), Some(id)), "{said}");
    g.c.end().await;
}

/// What templates ask the servers for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_reads_the_variables_of_its_job_and_those_of_its_policies() {
    let g = Guarded::start().await;
    let own = ["nomad/jobs", "nomad/jobs/web", "nomad/jobs/web/web", "nomad/jobs/web/web/server"];
    let others = ["nomad/jobs/webs", "nomad/jobs/other", "nomad/jobs/web/other", "nomad/jobs/web/web/other", "db"];
    for path in own.into_iter().chain(others) {
        let put = g.ask("management", "PUT", &format!("/v1/var/{path}"), &json!({"Items": {"k": path}})).await;
        assert_eq!(put.0, StatusCode::OK, "{path}: {}", put.1);
    }
    for (paths, status) in [(&own[..], StatusCode::OK), (&others[..], StatusCode::FORBIDDEN)] {
        for path in paths {
            assert_eq!(g.ask("task", "GET", &format!("/v1/var/{path}"), &Value::Null).await.0, status, "{path}");
        }
    }
    let listed = async || {
        let (_, text) = g.ask("task", "GET", "/v1/vars", &Value::Null).await;
        let rows: Vec<Value> = serde_json::from_str(&text).expect("a list");
        rows.iter().map(|row| row["Path"].as_str().expect("a path").to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(listed().await, own);
    // A lock has a holder, which writes.
    let lock = g.ask("task", "PUT", "/v1/var/nomad/jobs/web?lock-acquire", &json!({})).await;
    assert_eq!(lock.0, StatusCode::FORBIDDEN, "{}", lock.1);
    let rules = r#"namespace "default" { variables { path "db" { capabilities = ["read", "write"] } } }"#;
    let job = json!({"Namespace": "default", "JobID": "web", "Group": "web", "Task": "server"});
    g.policy("db", rules, &job).await;
    let (status, text) = g.ask("task", "GET", "/v1/var/db", &Value::Null).await;
    assert!(status == StatusCode::OK && text.contains("\"k\":\"db\""), "{status} {text}");
    let (status, text) = g.ask("task", "PUT", "/v1/var/db?lock-acquire", &json!({})).await;
    assert!(status == StatusCode::OK && text.contains("\"ID\""), "its holder sees the id: {status} {text}");
    g.c.end().await;
}

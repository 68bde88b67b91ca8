//! The audit log, over the whole table of endpoints and at its edges.

use std::{collections::HashSet, time::Duration};

use api::client::{Address, Connection};
use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use serde_json::{Value, json};
use server::{AclConfig, ServerConfig};
use server_http::{Audit, Filter, Guarantee, HttpOptions, Limits, Order, Orders, Sink};

use crate::cluster::{Cluster, job};

/// Shown as a token, in queries, headers and bodies.
const CANARY: &str = "canary-5f1d9c";
const ID: &str = "7f3b1f4e-0000-4000-8000-000000000000";

/// A cluster whose events are kept in memory.
async fn audited(guarantee: Guarantee, filters: Vec<Filter>) -> (Cluster, Orders) {
    let (sink, orders) = Sink::new("memory", guarantee);
    let audit = Audit::new("192.0.2.1:4646".into(), filters, vec![sink]);
    let options = HttpOptions { audit: Some(audit), ..HttpOptions::default() };
    (Cluster::with(options, Limits::default()).await, orders)
}

/// The lines so far.
fn lines(orders: &mut Orders) -> Vec<String> {
    let mut lines = Vec::new();
    while let Ok(order) = orders.queue.try_recv() {
        let Order::Write(line, _) = order else { panic!("{order:?}") };
        lines.push(String::from_utf8(line.to_vec()).expect("text"));
    }
    lines
}

fn events(orders: &mut Orders) -> Vec<Value> {
    lines(orders).iter().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// Stage, method, path and status.
fn short(event: &Value) -> (String, String, String, Option<u64>) {
    let payload = &event["payload"];
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let request = &payload["request"];
    let status = payload["response"]["status_code"].as_u64();
    (text(&payload["stage"]), text(&request["operation"]), text(&request["endpoint"]), status)
}

fn path_of(pattern: &str) -> String {
    let part = |part: &str| match part.strip_prefix([':', '*']) {
        None => part.to_owned(),
        Some("slot") => "default/web.web[0]/server".to_owned(),
        Some("operation") => "ls".to_owned(),
        Some("id" | "alloc" | "node") if !pattern.starts_with("/v1/job/") => ID.to_owned(),
        Some(_) => "web".to_owned(),
    };
    pattern.split('/').map(part).collect::<Vec<_>>().join("/")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_endpoint_leaves_one_pair_and_no_secret() {
    let (c, mut orders) = audited(Guarantee::BestEffort, Vec::new()).await;
    let mut ids = HashSet::new();
    for endpoint in server_http::endpoints() {
        let path = path_of(endpoint.pattern);
        for method in endpoint.verbs.iter().map(|verb| if verb.method == "any" { "GET" } else { verb.method }) {
            let address = Address::parse(&c.address).expect("address");
            let mut connection: Connection<Full<Bytes>> = Connection::open(&address, None).await.expect("connects");
            let mut planted = job("web", 1);
            planted.meta.insert("secret".into(), CANARY.into());
            let body = json!({"Job": planted, "Items": {"password": CANARY}, "SecretID": CANARY,
                "OneTimeSecretID": CANARY, "LoginToken": CANARY, "Name": "web", "NodeID": ID});
            let uri = format!("{path}?namespace=default&token={CANARY}&ott={CANARY}&command=%5B%22{CANARY}%22%5D");
            let request = Request::builder().method(method).uri(uri).header("host", &c.address);
            let request = request.header("x-nomad-token", CANARY).header("authorization", format!("Bearer {CANARY}"));
            let request = request.body(Full::new(Bytes::from(body.to_string()))).expect("request");
            let response = connection.send(request).await.expect("answers");
            // Its answer leaves behind the second event. Streams are left alone.
            let (status, lines) = (response.status(), lines(&mut orders));
            let _ = tokio::time::timeout(Duration::from_millis(50), response.into_body().collect()).await;
            let text = lines.concat();
            assert!(!text.contains(CANARY), "{method} {path}: {text}");
            let events: Vec<Value> = lines.iter().map(|line| serde_json::from_str(line).expect("JSON")).collect();
            let found: Vec<_> = events.iter().map(short).collect();
            let event = |stage: &str, status| (stage.to_owned(), method.to_owned(), path.clone(), status);
            let pair = [event("OperationReceived", None), event("OperationComplete", Some(u64::from(status.as_u16())))];
            assert_eq!(found, pair, "{method} {path}");
            let id = |n: usize| events[n]["payload"]["request"]["id"].as_str().expect("an id").to_owned();
            assert_eq!(id(0), id(1), "{method} {path}");
            assert!(ids.insert(id(0)), "{method} {path}: the id of another request");
            let meta = &events[0]["payload"]["request"];
            assert!(meta["request_meta"]["remote_address"].as_str().is_some_and(|at| at.starts_with("127.0.0.1:")));
            assert_eq!(meta["node_meta"]["ip"], "192.0.2.1:4646");
        }
    }
    assert!(ids.len() > 100, "{}", ids.len());
    assert!(lines(&mut orders).is_empty(), "nothing comes after an answer");
    c.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_no_endpoint_answers_leaves_a_pair_too() {
    let (c, mut orders) = audited(Guarantee::BestEffort, Vec::new()).await;
    for (method, path, headers, status, error) in [
        (Method::GET, "/v1/nothing", &[][..], 404, Some("Not Found")),
        (Method::DELETE, "/v1/jobs", &[], 405, Some("Invalid method")),
        (Method::GET, "/v1//jobs", &[], 301, None),
        (Method::GET, "/v1/jobs?region=mars", &[], 500, Some("Internal Server Error")),
        (Method::PUT, "/v1/jobs", &[("origin", "http://evil.example")], 403, None),
    ] {
        let raw = c.send(method.clone(), path, headers, "{}").await;
        assert_eq!(raw.status.as_u16(), status, "{method} {path}");
        let events = events(&mut orders);
        assert_eq!(events.len(), 2, "{method} {path}");
        let response = &events[1]["payload"]["response"];
        assert_eq!(response["status_code"], status);
        if let Some(error) = error {
            assert_eq!(response["error"], error, "{method} {path}");
        }
    }
    c.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_object_that_only_the_body_names_is_told() {
    let (c, mut orders) = audited(Guarantee::BestEffort, Vec::new()).await;
    let mut refused = job("refused", 1);
    refused.task_groups.clear();
    for (path, body, object) in [
        ("/v1/jobs", json!({"Job": job("web", 1)}), json!({"type": "job", "id": "web", "namespace": "default"})),
        ("/v1/jobs", json!({"Job": refused}), json!({"type": "job", "id": "refused", "namespace": "default"})),
        ("/v1/namespace", json!({"Name": "prod"}), json!({"type": "namespace", "id": "prod"})),
        ("/v1/node/pools", json!({"Name": "gpu"}), json!({"type": "node_pool", "id": "gpu"})),
    ] {
        c.put(path, &body).await;
        let events = events(&mut orders);
        assert_eq!(events[0]["payload"]["request"]["object"], Value::Null, "the body is not read yet");
        assert_eq!(events[1]["payload"]["request"]["object"], object, "{path}");
    }
    c.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_of_access_control_are_named_and_their_secrets_are_not() {
    let (sink, mut orders) = Sink::new("memory", Guarantee::BestEffort);
    let audit = Audit::new("192.0.2.1:4646".into(), Vec::new(), vec![sink]);
    let options = HttpOptions { audit: Some(audit), ..HttpOptions::default() };
    let config = ServerConfig { acl: AclConfig { enabled: true, ..AclConfig::default() }, ..ServerConfig::default() };
    let c = Cluster::of(config, options, Limits::default()).await;
    let (mut root, mut secrets) = (String::new(), Vec::new());
    let method = json!({"Name": "sso", "Type": "OIDC", "TokenLocality": "local", "MaxTokenTTL": "1h",
        "Config": {"OIDCDiscoveryURL": "https://id.example.com", "OIDCClientID": "drover", "OIDCClientSecret": CANARY,
            "AllowedRedirectURIs": ["http://localhost:4649/oidc/callback"]}});
    let rule = json!({"AuthMethod": "sso", "BindType": "role", "BindName": "ops"});
    let nowhere = json!({"AuthMethod": "nowhere", "BindType": "role", "BindName": "ops"});
    let login = json!({"AuthMethodName": "sso", "LoginToken": CANARY});
    for (path, body, kind, id_is, name) in [
        ("bootstrap", json!({}), "acl_token", "AccessorID", "Bootstrap Token"),
        ("policy/read", json!({"Name": "read", "Rules": "node { policy = \"read\" }"}), "acl_policy", "read", ""),
        ("role", json!({"Name": "ops", "Policies": [{"Name": "read"}]}), "acl_role", "ID", "ops"),
        ("role", json!({"Name": "ops", "Policies": [{"Name": "read"}]}), "acl_role", "ops", ""),
        ("token", json!({"Name": "ann", "Type": "client", "Policies": ["read"]}), "acl_token", "AccessorID", "ann"),
        ("auth-method", method, "acl_auth_method", "sso", ""),
        ("binding-rule", rule, "acl_binding_rule", "ID", ""),
        ("binding-rule", nowhere, "acl_auth_method", "nowhere", ""),
        ("login", login, "acl_auth_method", "sso", ""),
        (
            "explain",
            json!({"Method": "GET", "Path": format!("/v1/jobs?token={CANARY}"), "Token": ""}),
            "request",
            "GET /v1/jobs",
            "",
        ),
    ] {
        let path = format!("/v1/acl/{path}");
        let raw = c.send(Method::PUT, &path, &[("x-nomad-token", &root)], body.to_string()).await;
        let answer: Value = serde_json::from_slice(&raw.body).unwrap_or_default();
        if let Some(secret) = answer["SecretID"].as_str() {
            secrets.push(secret.to_owned());
            root = secrets[0].clone();
        }
        let text = lines(&mut orders).concat();
        assert!(!text.contains(CANARY) && !secrets.iter().any(|secret| text.contains(secret)), "{text}");
        let events: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        let id = answer[id_is].as_str().unwrap_or(id_is);
        let mut object = json!({"type": kind, "id": id});
        if !name.is_empty() {
            object["name"] = name.into();
        }
        assert_eq!(events[1]["payload"]["request"]["object"], object, "{path}: {}", raw.text());
    }
    assert_eq!(secrets.len(), 2, "the first token and another one");
    c.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_filter_leaves_out_what_it_names() {
    let list = |items: &[&str]| items.iter().map(|i| (*i).to_owned()).collect::<Vec<_>>();
    let filters = vec![
        Filter { endpoints: list(&["/v1/metrics"]), stages: list(&["*"]), operations: list(&["*"]) },
        Filter { endpoints: list(&["*"]), stages: list(&["OperationReceived"]), operations: list(&["GET"]) },
    ];
    let (c, mut orders) = audited(Guarantee::BestEffort, filters).await;
    c.get("/v1/metrics").await;
    c.get("/v1/jobs").await;
    c.put("/v1/namespace", &json!({"Name": "prod"})).await;
    let found: Vec<_> = events(&mut orders).iter().map(|event| (short(event).0, short(event).2)).collect();
    let wanted = [
        ("OperationComplete", "/v1/jobs"),
        ("OperationReceived", "/v1/namespace"),
        ("OperationComplete", "/v1/namespace"),
    ];
    assert_eq!(found, wanted.map(|(stage, path)| (stage.to_owned(), path.to_owned())));
    c.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_audited_is_not_done() {
    let (c, mut orders) = audited(Guarantee::Enforced, Vec::new()).await;
    // Says of each event in turn what came of it.
    let mut answer = async |said: &[Result<(), &str>]| {
        for said in said {
            let order = tokio::time::timeout(Duration::from_secs(20), orders.queue.recv()).await.expect("in time");
            let Some(Order::Write(_, Some(done))) = order else { panic!("{order:?}") };
            done.send(said.map_err(str::to_owned)).expect("somebody waits");
        }
    };
    let body = json!({"Name": "prod"});
    let (raw, ()) = tokio::join!(c.put("/v1/namespace", &body), answer(&[Err("No space left on device")]));
    assert_eq!(raw.status, StatusCode::INTERNAL_SERVER_ERROR);
    let text = "the request was not carried out: its event could not be written to the audit log: sink \"memory\": No \
                space left on device";
    assert_eq!(raw.text(), text);
    let exists = || c.server.handle().snapshot().namespaces().any(|n| n.name.as_str() == "prod");
    assert!(!exists(), "it was carried out");
    let (raw, ()) = tokio::join!(c.put("/v1/namespace", &body), answer(&[Ok(()), Err("No space left on device")]));
    assert_eq!(raw.status, StatusCode::INTERNAL_SERVER_ERROR);
    assert!(raw.text().starts_with("the request was carried out (status 200), but its event"), "{}", raw.text());
    assert!(exists());
    let (raw, ()) = tokio::join!(c.get("/v1/namespaces"), answer(&[Ok(()), Ok(())]));
    assert_eq!(raw.status, StatusCode::OK);
    c.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_before_its_answer_ends_its_pair() {
    let (c, mut orders) = audited(Guarantee::BestEffort, Vec::new()).await;
    let index = c.get("/v1/jobs").await.header("x-nomad-index").to_owned();
    assert_eq!(lines(&mut orders).len(), 2);
    let path = format!("/v1/jobs?index={}&wait=60s", index.parse::<u64>().expect("a number").max(1));
    let mut events = Vec::new();
    // It leaves once the server has its request.
    let received = testkit::eventually("the request", || {
        events.extend(lines(&mut orders));
        !events.is_empty()
    });
    tokio::select! {
        raw = c.get(&path) => panic!("the query waits: {raw:?}"),
        () = received => {}
    }
    for _ in 0..200 {
        events.extend(lines(&mut orders));
        if events.len() == 2 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let last: Value = serde_json::from_str(events.last().expect("events")).expect("JSON");
    let response = &last["payload"]["response"];
    assert_eq!(response, &json!({"status_code": 0, "error": "the client closed the connection before the answer"}));
    assert_eq!(events.len(), 2);
    c.end().await;
}

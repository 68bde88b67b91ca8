//! Variables over HTTP: written, read, listed, checked and set, encrypted wherever they lie.

use http::{Method, StatusCode};
use model::variables::VariableKey;
use serde_json::{Value, json};
use server::{Server, ServerConfig};

use crate::cluster::Cluster;

/// A value that must not be seen but in a read of its variable.
const PLANTED: &str = "canary-6f1d2c";

fn items(value: &str) -> Value {
    json!({"Items": {"k": value}})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_variable_is_written_read_listed_and_deleted() {
    let c = Cluster::start().await;
    assert_eq!(
        (c.get("/v1/var/a/b").await.status, c.get("/v1/var/a/b").await.text()),
        (StatusCode::NOT_FOUND, "variable not found".to_owned())
    );
    let put = c.put("/v1/var/a/b", &items("1")).await;
    assert_eq!(put.status, StatusCode::OK, "{}", put.text());
    let written = put.json();
    assert_eq!(put.header("x-nomad-index"), written["ModifyIndex"].to_string());
    assert_eq!(
        (&written["Items"], &written["Path"], &written["Namespace"]),
        (&json!({"k": "1"}), &json!("a/b"), &json!("default"))
    );
    assert_eq!(c.get("/v1/var/a/b").await.json(), written);
    let again = c.put("/v1/var/a/b", &items("1")).await.json();
    assert!(again["ModifyIndex"].as_u64() > written["ModifyIndex"].as_u64(), "{again}");
    assert_eq!(again["CreateIndex"], written["CreateIndex"]);

    c.put("/v1/var/a/c", &items("2")).await;
    c.put("/v1/var/z", &items("3")).await;
    let paths = |list: Value| -> Vec<String> {
        list.as_array().expect("a list").iter().map(|v| v["Path"].as_str().expect("path").to_owned()).collect()
    };
    let list = c.get("/v1/vars").await.json();
    assert!(list[0].get("Items").is_none(), "{list}");
    assert_eq!(paths(list), ["a/b", "a/c", "z"]);
    let page = c.get("/v1/vars?prefix=a/&per_page=1").await;
    let token = page.header("x-nomad-nexttoken").to_owned();
    assert_eq!((paths(page.json()), &*token), (vec!["a/b".to_owned()], "default.a/c"));
    assert_eq!(paths(c.get(&format!("/v1/vars?prefix=a/&per_page=1&next_token={token}")).await.json()), ["a/c"]);
    assert_eq!(paths(c.get("/v1/vars?filter=Path==z").await.json()), ["z"]);

    // Who waits for the variable is woken by its change.
    let index = c.get("/v1/var/z").await.header("x-nomad-index").to_owned();
    let waiting = format!("/v1/var/z?index={index}&wait=60s");
    let four = items("4");
    let (changed, _) = tokio::join!(c.get(&waiting), c.put("/v1/var/z", &four));
    assert_eq!(changed.json()["Items"], json!({"k": "4"}));

    for _ in 0..2 {
        assert_eq!(c.send(Method::DELETE, "/v1/var/z", &[], "").await.status, StatusCode::NO_CONTENT);
    }
    assert_eq!(c.get("/v1/var/z").await.status, StatusCode::NOT_FOUND);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_and_set_answers_with_what_is_there() {
    let c = Cluster::start().await;
    let absent = c.put("/v1/var/a?cas=7", &items("1")).await;
    assert_eq!((absent.status, &absent.json()["ModifyIndex"]), (StatusCode::CONFLICT, &json!(0)));
    let first = c.put("/v1/var/a?cas=0", &items("1")).await.json();
    let index = first["ModifyIndex"].as_u64().expect("index");
    let conflict = c.put("/v1/var/a?cas=0", &items("2")).await;
    assert_eq!((conflict.status, conflict.json()), (StatusCode::CONFLICT, first));
    assert_eq!(c.put(&format!("/v1/var/a?cas={index}"), &items("2")).await.status, StatusCode::OK);
    let stale = c.send(Method::DELETE, &format!("/v1/var/a?cas={index}"), &[], "").await;
    assert_eq!(stale.status, StatusCode::CONFLICT);
    // Many writers that read the same index: one gets through.
    let index = c.get("/v1/var/a").await.json()["ModifyIndex"].as_u64().expect("index");
    let path = format!("/v1/var/a?cas={index}");
    let body = items("3");
    let all = futures::future::join_all((0..8).map(|_| c.put(&path, &body))).await;
    assert_eq!(all.iter().filter(|raw| raw.status == StatusCode::OK).count(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_requests_are_refused_with_the_rule() {
    let c = Cluster::start().await;
    let large = json!({"Items": {"k": "x".repeat(65_536)}});
    for (path, body, status, part) in [
        ("a.b", items("1"), 400, "invalid path \"a.b\""),
        ("nomad/x", items("1"), 400, "only paths at"),
        ("a", json!({}), 400, "variable missing required Items object"),
        ("a", large, 400, "64KiB"),
        ("a", json!({"Items": {"k": 1}}), 400, "string"),
        ("a?cas=x", items("1"), 400, "can not parse cas"),
        ("a?namespace=nope", items("1"), 400, "nonexistent namespace \"nope\""),
        ("a?namespace=*", items("1"), 400, "can not target wildcard"),
        ("a", json!({"Items": {"k": "1"}, "Lock": {"TTL": "15s"}}), 400, "should not contain lock definition"),
    ] {
        let raw = c.put(&format!("/v1/var/{path}"), &body).await;
        assert!(raw.status.as_u16() == status && raw.text().contains(part), "{path}: {} {}", raw.status, raw.text());
    }
    assert_eq!(c.get("/v1/vars?namespace=*").await.json(), json!([]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_rotation_encrypts_again_and_keys_in_use_stay() {
    let c = Cluster::start().await;
    for n in 0..150 {
        c.put(&format!("/v1/var/v/{n}"), &items(&n.to_string())).await;
    }
    let before = c.get("/v1/var/v/7").await.json();
    let old = c.get("/v1/operator/keyring/keys").await.json()[0]["KeyID"].as_str().expect("id").to_owned();
    c.put("/v1/operator/keyring/rotate", &Value::Null).await;
    let key = format!("/v1/operator/keyring/key/{old}?force=true");
    let refused = c.send(Method::DELETE, &key, &[], "").await;
    assert!(
        refused.status == 500 && refused.text().starts_with("root key in use, cannot delete"),
        "{}",
        refused.text()
    );
    c.put("/v1/operator/keyring/rotate?full", &Value::Null).await;
    testkit::poll("the old key is not needed", async || {
        c.send(Method::DELETE, &key, &[], "").await.status == StatusCode::OK
    })
    .await;
    assert_eq!(c.get("/v1/var/v/7").await.json(), before, "items and indexes are the same");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_variable_holds_is_seen_in_its_read_only() {
    let c = Cluster::start().await;
    c.put("/v1/var/nomad/jobs/web", &items(PLANTED)).await;
    assert!(c.get("/v1/var/nomad/jobs/web").await.text().contains(PLANTED));
    for path in [
        "/v1/vars",
        "/v1/vars?namespace=*",
        "/v1/operator/keyring/keys",
        "/v1/agent/self",
        "/v1/metrics",
        "/v1/search/fuzzy",
        "/v1/agent/health",
        "/.well-known/jwks.json",
    ] {
        let text = c.get(path).await.text();
        assert!(!text.contains(PLANTED) && !text.contains("canary"), "{path}: {text}");
    }
    let snapshot = c.get("/v1/operator/snapshot").await;
    assert_eq!(snapshot.status, StatusCode::OK);
    let shown = format!("{:?}", c.server.handle().snapshot());
    assert!(!shown.contains(PLANTED), "{shown}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn variables_survive_a_restart_encrypted_on_disk() {
    let dir = tempfile::tempdir().expect("dir");
    let config = || ServerConfig { data_dir: Some(dir.path().to_owned()), workers: 1, ..ServerConfig::default() };
    let server = Server::start(config()).await.expect("starts");
    let items = server::Items::from([("k".to_owned(), PLANTED.to_owned())]);
    let put = server.handle().put_variable(VariableKey::new("default", "a"), items.clone(), None, None).await;
    assert!(matches!(put, Ok(server::Written::Done(_))), "{put:?}");
    server.shutdown().await;
    for entry in std::fs::read_dir(dir.path()).expect("lists").flatten().filter(|e| e.path().is_file()) {
        let bytes = std::fs::read(entry.path()).expect("reads");
        assert!(!bytes.windows(PLANTED.len()).any(|part| part == PLANTED.as_bytes()), "{:?}", entry.path());
    }
    let server = Server::start(config()).await.expect("starts again");
    let state = server.handle().snapshot();
    let variable = state.variable(&VariableKey::new("default", "a")).expect("there");
    assert_eq!(server.handle().variable_items(variable).expect("opens"), items);
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn discovery_needs_an_issuer() {
    let c = Cluster::start().await;
    let raw = c.get("/.well-known/openid-configuration").await;
    assert!(raw.status == 404 && raw.text().starts_with("OIDC Discovery endpoint disabled"), "{}", raw.text());
}

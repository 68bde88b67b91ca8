//! Locks of variables over HTTP: who gets one, what the others are told, and when it ends.

use std::time::{Duration, Instant};

use http::{Method, StatusCode};
use model::{GoDuration, variables::VariableKey};
use serde_json::{Value, json};
use server::{Server, ServerConfig, Written};

use crate::cluster::Cluster;

async fn acquire(c: &Cluster, lock: Value) -> crate::cluster::Raw {
    c.put("/v1/var/a?lock-acquire", &json!({"Lock": lock})).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_is_acquired_renewed_and_released() {
    let c = Cluster::start().await;
    let made = c.put("/v1/var/a?lock-acquire", &json!({"Items": {"k": "1"}, "Lock": {"TTL": "20s"}})).await;
    assert_eq!(made.status, StatusCode::OK, "{}", made.text());
    let made = made.json();
    let id = made["Lock"]["ID"].as_str().expect("an id").to_owned();
    assert_eq!(
        (&made["Lock"], &made["Items"]),
        (&json!({"ID": id, "TTL": "20s", "LockDelay": "15s"}), &json!({"k": "1"}))
    );
    // Without access control everybody sees it.
    assert_eq!(c.get("/v1/var/a").await.json(), made);
    assert_eq!(c.get("/v1/vars").await.json()[0]["Lock"], made["Lock"]);

    // Nobody else gets it, writes or deletes; what they are told has nothing of it.
    let nothing = json!({"Namespace": "default", "Path": "a", "CreateIndex": 0, "ModifyIndex": 0, "CreateTime": 0,
        "ModifyTime": 0});
    for (path, body) in [
        ("a?lock-acquire", json!({})),
        ("a?lock-acquire", json!({"Lock": {"ID": "mine"}})),
        ("a?lock-release", json!({"Lock": {"ID": "mine"}})),
        ("a", json!({"Items": {"k": "2"}})),
        ("a", json!({"Items": {"k": "2"}, "Lock": {"ID": "mine"}})),
        ("a?cas=0", json!({"Items": {"k": "2"}})),
    ] {
        let raw = c.put(&format!("/v1/var/{path}"), &body).await;
        assert_eq!((raw.status, raw.json()), (StatusCode::CONFLICT, nothing.clone()), "{path}");
    }
    for (cas, body) in [("", ""), ("", r#"{"Lock": {"ID": "mine"}}"#), ("?cas=1", "")] {
        let raw = c.send(Method::DELETE, &format!("/v1/var/a{cas}"), &[], body).await;
        assert_eq!((raw.status, raw.json()), (StatusCode::CONFLICT, nothing.clone()), "{cas}");
    }

    // The holder renews it, which changes nothing, and writes.
    let renewed = c.put("/v1/var/a?lock-renew", &json!({"Lock": {"ID": id}})).await;
    let mut metadata = made.clone();
    metadata.as_object_mut().expect("an object").remove("Items");
    assert_eq!((renewed.status, renewed.json()), (StatusCode::OK, metadata));
    let own = json!({"Items": {"k": "2"}, "Lock": {"ID": id}});
    let written = c.done("/v1/var/a", &own).await;
    assert_eq!((&written["Items"], &written["Lock"]), (&json!({"k": "2"}), &made["Lock"]), "its times stay");
    let index = written["ModifyIndex"].as_u64().expect("an index");
    assert_eq!(c.put(&format!("/v1/var/a?cas={}", index - 1), &own).await.status, StatusCode::CONFLICT);
    c.done(&format!("/v1/var/a?cas={index}"), &own).await;
    // It gets its own lock again, with another time; without items those that there are stay.
    let again = c.done("/v1/var/a?lock-acquire", &json!({"Lock": {"ID": id, "TTL": 60_000_000_000_i64}})).await;
    assert_eq!((&again["Items"], &again["Lock"]["TTL"]), (&json!({"k": "2"}), &json!("1m0s")));

    let released = c.done("/v1/var/a?lock-release", &json!({"Lock": {"ID": id}, "Items": null})).await;
    assert!(released.get("Lock").is_none() && released.get("Items").is_none(), "{released}");
    assert!(released["ModifyIndex"].as_u64() > again["ModifyIndex"].as_u64(), "{released}");
    let read = c.get("/v1/var/a").await.json();
    assert_eq!((&read["Items"], read.get("Lock")), (&json!({"k": "2"}), None));
    // Who had it, knows that it is gone; the next one gets it at once, under the id of its choice.
    let late = c.put("/v1/var/a", &own).await;
    assert_eq!((late.status, late.text()), (StatusCode::CONFLICT, "variable doesn't hold a lock".to_owned()));
    assert_eq!(acquire(&c, json!({"ID": "mine"})).await.json()["Lock"]["ID"], "mine");
    let gone = c.send(Method::DELETE, "/v1/var/a", &[], r#"{"Lock": {"ID": "mine"}}"#).await;
    assert_eq!(gone.status, StatusCode::NO_CONTENT);
    // A variable may be there for its lock only.
    let made = acquire(&c, json!({})).await;
    assert_eq!((made.status, &made.json()["Items"]), (StatusCode::OK, &Value::Null), "{}", made.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_requests_about_locks_are_refused_with_the_rule() {
    let c = Cluster::start().await;
    c.done("/v1/var/free", &json!({"Items": {"k": "1"}})).await;
    c.done("/v1/var/held?lock-acquire", &json!({"Lock": {"ID": "one"}})).await;
    let lock = |lock: Value| json!({"Lock": lock});
    let one = || lock(json!({"ID": "one"}));
    for (path, body, status, text) in [
        ("free?lock-acquire", lock(json!({"TTL": "9s"})), 400, "TTL must be between 10 seconds and 24 hours"),
        ("free?lock-acquire", lock(json!({"TTL": "25h"})), 400, "TTL must be between 10 seconds and 24 hours"),
        ("free?lock-acquire", lock(json!({"LockDelay": "-1s"})), 400, "Lock delay and TTL must be positive"),
        ("free?lock-acquire", lock(json!({"TTL": "soon"})), 400, "invalid duration \"soon\""),
        ("free?lock-acquire&lock-renew", one(), 400, "multiple lock operations"),
        ("free?lock-acquire&cas=1", one(), 400, "CAS can't be used with lock operations"),
        ("a.b?lock-acquire", one(), 400, "invalid path \"a.b\""),
        ("free?lock-acquire&namespace=nope", one(), 400, "nonexistent namespace \"nope\""),
        ("free?lock-renew", json!({}), 500, "missing lock ID"),
        ("none?lock-renew", one(), 404, "variable doesn't exist"),
        ("free?lock-renew", one(), 409, "variable doesn't hold a lock"),
        ("held?lock-renew", lock(json!({"ID": "two"})), 409, "attempting to modify locked variable"),
        ("held?lock-release", json!({}), 400, "missing lock information"),
        (
            "held?lock-release",
            json!({"Items": {"k": "1"}, "Lock": {"ID": "one"}}),
            400,
            "lock release operation doesn't take variable items",
        ),
        ("none?lock-release", one(), 500, "variable doesn't exist"),
        ("free?lock-release", one(), 500, "variable doesn't hold a lock"),
        (
            "held",
            json!({"Items": {"k": "1"}, "Lock": {"ID": "one", "LockDelay": "1s"}}),
            400,
            "variable should not contain lock definition",
        ),
    ] {
        let raw = c.put(&format!("/v1/var/{path}"), &body).await;
        assert!(raw.status.as_u16() == status && raw.text().contains(text), "{path}: {} {}", raw.status, raw.text());
    }
    let raw = c.send(Method::DELETE, "/v1/var/held?lock-release", &[], "").await;
    assert!(raw.status == StatusCode::BAD_REQUEST && raw.text().contains("need the method PUT"), "{}", raw.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_one_gets_a_lock() {
    let c = Cluster::start().await;
    for round in 0..3 {
        let all = futures::future::join_all((0..8).map(|_| acquire(&c, json!({})))).await;
        let got: Vec<_> = all.iter().filter(|raw| raw.status == StatusCode::OK).collect();
        assert_eq!(got.len(), 1, "round {round}");
        let id = got[0].json()["Lock"]["ID"].clone();
        c.done("/v1/var/a?lock-release", &json!({"Lock": {"ID": id}})).await;
    }
}

/// The shortest lock that there is takes 20 s to end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_nobody_renews_ends() {
    let c = Cluster::start().await;
    let lock = json!({"TTL": "10s", "LockDelay": "6s", "ID": "one"});
    let since = Instant::now();
    let held = acquire(&c, lock.clone()).await.json();
    let waiting = format!("/v1/var/a?index={}&wait=60s", held["ModifyIndex"]);
    let freed = async {
        let freed = c.get(&waiting).await.json();
        (freed, since.elapsed())
    };
    let renewing = async {
        tokio::time::sleep(Duration::from_millis(20_200)).await;
        c.put("/v1/var/a?lock-renew", &json!({"Lock": {"ID": "one"}})).await
    };
    let ((freed, after), late) = tokio::join!(freed, renewing);
    assert_eq!(
        (late.status, late.text()),
        (StatusCode::CONFLICT, "attempting to modify locked variable".to_owned()),
        "in its delay"
    );
    assert!(freed.get("Lock").is_none(), "{freed}");
    assert!(after >= Duration::from_secs(26), "{after:?}");
    assert_eq!(acquire(&c, json!({"ID": "two"})).await.status, StatusCode::OK);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_outlives_its_server() {
    let dir = tempfile::tempdir().expect("dir");
    let config = || ServerConfig { data_dir: Some(dir.path().to_owned()), workers: 1, ..ServerConfig::default() };
    let key = VariableKey::new("default", "a");
    let take = async |server: &Server, id: &'static str| {
        let times = GoDuration::ZERO;
        server.handle().acquire_lock(key.clone(), None, Some(id), times, times).await.expect("an answer")
    };
    let server = Server::start(config()).await.expect("starts");
    assert!(matches!(take(&server, "one").await, Written::Done(_)));
    server.shutdown().await;
    let server = Server::start(config()).await.expect("starts again");
    assert_eq!(take(&server, "two").await, Written::Locked);
    let renewed = server.handle().renew_lock(&key, "one").expect("the holder is known");
    assert_eq!(renewed.lock.as_ref().map(|lock| lock.id.reveal()), Some("one"));
    let released = server.handle().release_lock(key.clone(), "one".to_owned()).await;
    assert!(matches!(released, Ok(Written::Done(_))), "{released:?}");
    assert!(matches!(take(&server, "two").await, Written::Done(_)));
    server.shutdown().await;
}

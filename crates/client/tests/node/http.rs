//! The client endpoints.

use axum::{body::Body, http::Request};
use client::Client;
use http_body_util::BodyExt;
use model::AllocId;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::fixture::{Rig, end, poll, task};

pub(crate) async fn get(node: &Client, path: &str) -> (u16, Vec<u8>) {
    let request = Request::get(path).body(Body::empty()).expect("request");
    let response = client::http::router(node.handle()).oneshot(request).await.expect("infallible");
    let status = response.status().as_u16();
    (status, response.into_body().collect().await.expect("body").to_bytes().to_vec())
}

/// The body of what is there.
pub(crate) async fn text(node: &Client, path: &str) -> String {
    let (status, body) = get(node, path).await;
    let body = String::from_utf8(body).expect("text");
    assert_eq!(status, 200, "{path}: {body}");
    body
}

pub(crate) async fn put(node: &Client, path: &str, body: Value) -> (u16, String) {
    let request = Request::put(path).body(Body::from(body.to_string())).expect("request");
    let response = client::http::router(node.handle()).oneshot(request).await.expect("infallible");
    let status = response.status().as_u16();
    (status, String::from_utf8_lossy(&response.into_body().collect().await.expect("body").to_bytes()).into_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_logs_stats_and_errors() {
    let (rig, node) = Rig::with("mock").await;
    let config = json!({"run_for": "1h", "stdout_string": "hello\n", "stderr_string": "oops\n", "memory_mb": 7,
            "cpu_percent": 3});
    let mut silent = task("silent", "mock", json!({"run_for": "1h"}));
    silent.logs = Some(model::task::LogConfig { disabled: Some(true), ..model::task::LogConfig::default() });
    silent.lifecycle = Some(model::task::Lifecycle { hook: "poststart".into(), sidecar: true });
    let (a, _) = rig.run("service", vec![task("t", "mock", config), silent]).await;
    let id = a.id;
    let follow = tokio::spawn({
        let router = client::http::router(node.handle());
        async move {
            let path = format!("/v1/client/fs/logs/{id}?task=t&type=stdout&follow=true");
            let response =
                router.oneshot(Request::get(path).body(Body::empty()).expect("request")).await.expect("infallible");
            let mut body = response.into_body();
            let mut seen = String::new();
            while let Some(Ok(frame)) = body.frame().await {
                seen.push_str(&String::from_utf8_lossy(frame.data_ref().map_or(&[], |d| &d[..])));
                if seen.contains("Data") {
                    return seen;
                }
            }
            seen
        }
    });
    let frame = testkit::soon(follow).await.expect("task");
    assert_eq!(frame.trim_start_matches("{}"), r#"{"Data":"aGVsbG8K","File":"alloc/logs/t.stdout.0","Offset":6}"#);
    // Each stream comes by a way of its own.
    let errors = async || text(&node, &format!("/v1/client/fs/logs/{id}?task=t&type=stderr&plain=true")).await;
    poll("the other stream", async || Some(errors().await).filter(|said| !said.is_empty())).await;
    assert_eq!(errors().await, "oops\n");
    assert_eq!(
        text(&node, &format!("/v1/client/fs/logs/{id}?task=t&type=stdout&plain=true&origin=end&offset=3")).await,
        "lo\n"
    );
    assert_eq!(text(&node, &format!("/v1/client/fs/cat/{id}?path=alloc/logs/t.stdout.0")).await, "hello\n");
    assert_eq!(
        text(&node, &format!("/v1/client/fs/readat/{id}?path=alloc/logs/t.stdout.0&offset=1&limit=3")).await,
        "ell"
    );
    let missing = text(&node, &format!("/v1/client/fs/cat/{id}?path=alloc/none")).await;
    assert!(missing.contains("alloc/none"), "{missing}");
    let list: Value =
        serde_json::from_str(&text(&node, &format!("/v1/client/fs/ls/{id}?path=/t")).await).expect("json");
    let names: Vec<&str> = list.as_array().expect("list").iter().filter_map(|v| v["Name"].as_str()).collect();
    assert_eq!(names, ["local", "private", "secrets", "tmp"]);
    assert_eq!(list[3]["FileMode"], "dtrwxrwxrwx");
    // An answer waits for the first sample for 2 s at most.
    poll("a sample", async || {
        let stats = text(&node, &format!("/v1/client/allocation/{id}/stats")).await;
        let stats: Value = serde_json::from_str(&stats).expect("json");
        stats["Tasks"]["t"]["ResourceUsage"]["MemoryStats"].is_object().then_some(()).ok_or(stats)
    })
    .await;
    let host: Value = serde_json::from_str(&text(&node, "/v1/client/stats").await).expect("json");
    assert!(host["Memory"]["Total"].as_u64().is_some_and(|t| t > 0));

    let other = AllocId(uuid::Uuid::new_v4());
    for (path, status, words) in [
        (format!("/v1/client/fs/logs/{id}?task=t"), 400, "must provide log type (stdout/stderr)"),
        (format!("/v1/client/fs/logs/{id}?type=stdout"), 400, "must provide task name"),
        (format!("/v1/client/fs/logs/{id}?task=x&type=stdout"), 400, "unknown task name \"x\""),
        (format!("/v1/client/fs/logs/{id}?task=t&type=stdout&origin=middle"), 400, "origin must be start or end"),
        (format!("/v1/client/fs/logs/{other}?task=t&type=stdout"), 404, "Unknown allocation"),
        ("/v1/client/fs/ls/nonsense?path=/".to_owned(), 400, "must provide a valid alloc id"),
        (format!("/v1/client/fs/stat/{id}?path=t/secrets/x"), 500, "Reading secret file prohibited"),
        (format!("/v1/client/fs/ls/{id}?path=../.."), 500, "Path escapes the alloc directory"),
        (format!("/v1/client/allocation/{id}/gc"), 500, "still runs"),
    ] {
        let (got, body) = get(&node, &path).await;
        let body = String::from_utf8_lossy(&body).into_owned();
        assert_eq!(got, status, "{path}: {body}");
        assert!(body.contains(words), "{path}: {body}");
    }
    assert_eq!(
        put(&node, &format!("/v1/client/allocation/{id}/signal"), json!({"Signal": "SIGHUP", "Task": "t"})).await.0,
        200
    );
    assert_eq!(put(&node, &format!("/v1/client/allocation/{id}/restart"), json!({"TaskName": "nobody"})).await.0, 500);
    assert_eq!(
        put(&node, &format!("/v1/client/allocation/{id}/signal"), json!({"Signal": "SIGHUP", "Task": "nobody"}))
            .await
            .0,
        500
    );
    let quiet =
        put(&node, &format!("/v1/client/allocation/{id}/signal"), json!({"signal": "SIGHUP", "task": "t"})).await;
    assert_eq!(quiet, (200, "{\"Index\":0}".to_owned()));
    let (status, body) = get(&node, &format!("/v1/client/fs/logs/{id}?task=silent&type=stdout")).await;
    let body = String::from_utf8_lossy(&body).into_owned();
    assert!(
        status == 404 && body.contains("log entry for task \"silent\" and log type \"stdout\" not found"),
        "{status} {body}"
    );
    let (status, body) = put(&node, "/v1/client/metadata", json!({"Meta": {"rack": "7"}})).await;
    assert_eq!(
        (status, serde_json::from_str::<Value>(&body).expect("json")["Dynamic"]["rack"].as_str()),
        (200, Some("7"))
    );
    let (status, body) = put(&node, "/v1/client/metadata", json!({"meta": {"Rack": "8", "gone": null}})).await;
    let dynamic = serde_json::from_str::<Value>(&body).expect("json")["Dynamic"].clone();
    assert_eq!(
        (status, dynamic["rack"].as_str(), dynamic["Rack"].as_str(), &dynamic["gone"]),
        (200, Some("7"), Some("8"), &Value::Null)
    );
    rig.server
        .heard("the new metadata", |h| {
            h.node.as_ref().filter(|n| n.meta.get("rack").is_some_and(|v| **v == *"7")).map(drop)
        })
        .await;
    end(&rig, node).await;
}

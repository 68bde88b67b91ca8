//! Answers that go on, and what is passed on to nodes.

use std::{convert::Infallible, time::Duration};

use api::RequestOptions;
use axum::{
    Router,
    body::Body,
    extract::Request,
    response::Response,
    routing::{get, put},
};
use bytes::Bytes;
use futures::stream;
use http::{Method, StatusCode};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use server_http::{HttpOptions, Limits, LocalNode};
use tokio::{net::TcpListener, sync::mpsc};
use tokio_stream::wrappers::ReceiverStream;

use crate::cluster::{Cluster, FakeNode, job, node};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_arrive_as_they_happen() {
    let options = HttpOptions { event_heartbeat: Duration::from_millis(100), ..HttpOptions::default() };
    let c = Cluster::with(options, Limits::default()).await;
    let open = |query: &str| {
        let (client, path) = (c.client.clone(), format!("/v1/event/stream?{query}"));
        async move { client.stream(&path, &RequestOptions::default()).await.map(|s| s.json::<Value>()) }
    };
    let mut all = open("").await.expect("stream");
    let mut one = open("topic=Job:second&topic=Node").await.expect("stream");
    let mut silent = open("topic=NodePool").await.expect("stream");
    assert_eq!(all.next().await.expect("line"), Some(json!({})), "a sign of life at once");
    c.register(&job("first", 0)).await;
    c.register(&job("second", 0)).await;
    let mut topics = Vec::new();
    while !topics.contains(&"second".to_owned()) {
        let batch = all.next().await.expect("line").expect("open");
        for event in batch["Events"].as_array().into_iter().flatten() {
            if event["Topic"] == "Job" {
                assert_eq!(
                    (&event["Type"], &event["Payload"]["Job"]["ID"]),
                    (&json!("JobRegistered"), &event["Key"]),
                    "{event}"
                );
                assert_eq!(event["Index"], batch["Index"]);
                topics.push(event["Key"].as_str().unwrap_or_default().to_owned());
            }
        }
    }
    assert_eq!(topics, ["first", "second"]);
    let batch = loop {
        let line = one.next().await.expect("line").expect("open");
        if line != json!({}) {
            break line;
        }
    };
    assert_eq!(batch["Events"][0]["Key"], "second", "{batch}");
    for _ in 0..3 {
        assert_eq!(silent.next().await.expect("line"), Some(json!({})), "only signs of life");
    }
    let mut unknown =
        open("topic=HostVolume&topic=Nonsense").await.expect("topics of other releases are waited for in vain");
    for _ in 0..3 {
        assert_eq!(unknown.next().await.expect("line"), Some(json!({})), "only signs of life");
    }
    assert!(open("index=x").await.is_err());
    c.end().await;
    // The end of the server is the end of the stream.
    while silent.next().await.is_ok_and(|line| line.is_some()) {}
}

/// What a node serves: a stream that is fed by the test, and an echo of what it was asked.
fn node_router(feed: mpsc::Receiver<Result<Bytes, Infallible>>) -> Router {
    let feed = std::sync::Arc::new(std::sync::Mutex::new(Some(feed)));
    let echo = |request: Request| async move {
        let (method, uri) = (request.method().to_string(), request.uri().to_string());
        let headers = format!("{:?}", request.headers().get("x-nomad-token"));
        let body = request.into_body().collect().await.map(|b| b.to_bytes()).unwrap_or_default();
        format!("{method} {uri} {headers} {}", String::from_utf8_lossy(&body))
    };
    Router::new()
        .route(
            "/v1/client/fs/logs/{alloc}",
            get(move || async move {
                let feed = feed.lock().expect("not poisoned").take().expect("one reader");
                Response::builder()
                    .header("content-type", "application/json")
                    .body(Body::from_stream(ReceiverStream::new(feed)))
                    .expect("response")
            }),
        )
        .route("/v1/client/allocation/{alloc}/signal", put(echo))
        .route("/v1/client/allocation/{alloc}/checks", get(echo))
        .route("/v1/client/stats", get(echo))
        .route("/v1/client/metadata", put(echo))
        .route("/v1/client/fs/cat/{alloc}", get(|| async { (StatusCode::NOT_FOUND, "no such file") }))
        .route(
            "/v1/client/fs/readat/{alloc}",
            get(|| async { Body::from_stream(stream::iter((0..1000).map(|_| Ok::<_, Infallible>(vec![7_u8; 4096])))) }),
        )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_come_without_objects_and_by_their_node() {
    let c = Cluster::start().await;
    let n = FakeNode::join(&c, node("one")).await;
    let path = format!("/v1/event/stream?topic=Allocation:{}&payload=none", n.id);
    let mut events = c.client.stream(&path, &RequestOptions::default()).await.expect("stream").json::<Value>();
    c.register(&job("web", 1)).await;
    let event = loop {
        let line = events.next().await.expect("line").expect("open");
        if line != json!({}) {
            break line["Events"][0].clone();
        }
    };
    assert_eq!((&event["Topic"], &event["Payload"]), (&json!("Allocation"), &Value::Null), "{event}");
    let keys = event["FilterKeys"].as_array().expect("keys");
    assert!(keys.contains(&json!("web")) && keys.contains(&json!(n.id)), "{event}");
    let wrong = c.get("/v1/event/stream?payload=some").await;
    assert_eq!(wrong.status, StatusCode::BAD_REQUEST, "{}", wrong.text());
    c.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_tells_what_it_refuses() {
    let c = Cluster::start().await;
    let features = c.get("/v1/agent/features").await.json();
    assert_eq!((&features["ACL"], &features["UI"]), (&json!(false), &json!(true)), "{features}");
    let refused: Vec<&str> = features["Refused"].as_array().expect("a list").iter().filter_map(Value::as_str).collect();
    assert!(refused.contains(&"PUT /v1/volumes") && !refused.contains(&"GET /v1/jobs/statuses"), "{refused:?}");
    for line in refused.iter().filter(|line| line.starts_with("GET") && !line.contains(':')) {
        let raw = c.get(line.trim_start_matches("GET ")).await;
        assert_ne!(raw.status, StatusCode::OK, "{line}: {}", raw.text());
    }
    c.end().await;
}

async fn exercise(c: &Cluster, alloc: &str, node_id: &str, feed: mpsc::Sender<Result<Bytes, Infallible>>) {
    // Frames pass one by one, while the answer is still open.
    let mut frames = c
        .client
        .stream(&format!("/v1/client/fs/logs/{alloc}?follow=true"), &RequestOptions::default())
        .await
        .expect("stream")
        .frames();
    for text in ["aGVs", "bG8="] {
        feed.send(Ok(Bytes::from(format!("{{\"Data\":\"{text}\"}}{{}}")))).await.expect("the node is asked");
        let frame = testkit::soon(frames.next()).await.expect("frame").expect("open");
        assert!(!frame.data.is_empty());
    }
    drop(feed);
    assert!(frames.next().await.expect("end").is_none());
    let raw = c
        .send(
            Method::PUT,
            &format!("/v1/client/allocation/{alloc}/signal?region=global"),
            &[("x-nomad-token", "t")],
            r#"{"Signal":"HUP"}"#,
        )
        .await;
    assert_eq!(
        raw.text(),
        format!("PUT /v1/client/allocation/{alloc}/signal?region=global Some(\"t\") {{\"Signal\":\"HUP\"}}")
    );
    let raw = c.get(&format!("/v1/allocation/{alloc}/checks?pretty")).await;
    assert_eq!(raw.text(), format!("GET /v1/client/allocation/{alloc}/checks?pretty None "));
    let raw = c.get(&format!("/v1/client/stats?node_id={node_id}")).await;
    assert_eq!(raw.text(), format!("GET /v1/client/stats?node_id={node_id} None "));
    let body = json!({"NodeID": node_id, "Meta": {"k": "v"}});
    assert_eq!(c.put("/v1/client/metadata", &body).await.text(), format!("PUT /v1/client/metadata None {body}"));
    let raw = c.get(&format!("/v1/client/fs/cat/{alloc}?path=x")).await;
    assert_eq!((raw.status, raw.text().as_str()), (StatusCode::NOT_FOUND, "no such file"));
    let raw = c.send(Method::GET, &format!("/v1/client/fs/readat/{alloc}"), &[("accept-encoding", "gzip")], "").await;
    assert_eq!(raw.header("content-encoding"), "gzip");
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(&raw.body[..]), &mut bytes).expect("gzip");
    assert_eq!(bytes.len(), 4_096_000);
}

async fn running_alloc(c: &Cluster) -> String {
    c.register(&job("web", 1)).await;
    let allocs = c.until("/v1/job/web/allocations", "running", |l| l[0]["ClientStatus"] == "running").await;
    allocs[0]["ID"].as_str().expect("id").to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_endpoints_are_passed_on_to_the_node() {
    let c = Cluster::start().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let mut n = node("far");
    n.http_addr = listener.local_addr().expect("address").to_string();
    let (feed, feeding) = mpsc::channel(4);
    let stop = tokio_util::sync::CancellationToken::new();
    let serving =
        tokio::spawn(server_http::serve(listener, node_router(feeding), Limits::default(), None, stop.clone()));
    let n = FakeNode::join(&c, n).await;
    let alloc = running_alloc(&c).await;
    exercise(&c, &alloc, &n.id.to_string(), feed).await;
    stop.cancel();
    serving.await.expect("the listener ends");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_endpoints_of_the_local_node_are_called() {
    let n = node("near");
    let (feed, feeding) = mpsc::channel(4);
    let local = LocalNode { node_id: n.id, router: node_router(feeding), stats: None, metrics: None };
    let c = Cluster::with(HttpOptions { local: Some(local), ..HttpOptions::default() }, Limits::default()).await;
    let n = FakeNode::join(&c, n).await;
    let alloc = running_alloc(&c).await;
    exercise(&c, &alloc, &n.id.to_string(), feed).await;
    // Without a node id the local node is meant.
    assert_eq!(c.get("/v1/client/stats").await.text(), "GET /v1/client/stats None ");
    assert_eq!(c.get("/v1/agent/self").await.json()["stats"]["client"]["node_id"], n.id.to_string());
    assert_eq!(c.get("/v1/agent/health").await.json()["client"]["ok"], true);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compressed_streams_are_flushed_with_each_line() {
    let c = Cluster::start().await;
    let address = api::client::Address::parse(&c.address).expect("address");
    let mut connection: api::client::Connection =
        api::client::Connection::open(&address, None).await.expect("connects");
    let request =
        http::Request::get("/v1/event/stream?topic=Job").header("host", "localhost").header("accept-encoding", "gzip");
    let response =
        connection.send(request.body(http_body_util::Full::default()).expect("request")).await.expect("answers");
    assert_eq!(response.headers().get("content-encoding").and_then(|v| v.to_str().ok()), Some("gzip"));
    let mut body = response.into_body();
    let mut decoder = flate2::write::GzDecoder::new(Vec::new());
    let mut read = async |wanted: &str| {
        while !String::from_utf8_lossy(decoder.get_ref()).contains(wanted) {
            let frame = testkit::soon(body.frame()).await.expect("open").expect("frame");
            std::io::Write::write_all(&mut decoder, frame.data_ref().expect("data")).expect("gzip");
            std::io::Write::flush(&mut decoder).expect("gzip");
        }
    };
    read("{}\n").await;
    c.register(&job("seen", 0)).await;
    read("\"Key\":\"seen\"").await;
}

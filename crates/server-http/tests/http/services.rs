//! Services over HTTP: lists, choices, filters, waiting, events, deletion.

use std::{sync::Arc, time::Duration};

use api::{RequestOptions, call};
use http::{Method, StatusCode};
use model::{Job, Service};
use serde_json::Value;

use crate::cluster::{Cluster, FakeNode, job, node};

fn with_services(id: &str, count: i32, names: &[&str]) -> Job {
    let mut job = job(id, count);
    let service = |name: &&str| Service {
        name: (*name).to_owned(),
        provider: "nomad".into(),
        tags: vec![format!("{name}-tag"), "all".into()],
        ..Service::default()
    };
    job.task_groups[0].services = names.iter().map(service).collect();
    job
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn services_are_listed_chosen_filtered_and_deleted() {
    let c = Cluster::start().await;
    assert_eq!(c.get("/v1/services").await.text(), "[]");
    assert_eq!(c.get("/v1/service/web").await.text(), "[]");
    let _node = FakeNode::join(&c, node("n1")).await;
    c.register(&with_services("shop", 3, &["web", "admin"])).await;
    let places = c.until("/v1/service/web", "registered", |v| v.as_array().is_some_and(|a| a.len() == 3)).await;
    let first = &places[0];
    for (field, value) in [
        ("ServiceName", "web"),
        ("Namespace", "default"),
        ("Datacenter", "dc1"),
        ("JobID", "shop"),
        ("Address", "10.1.2.3"),
    ] {
        assert_eq!(first[field], value, "{first}");
    }
    assert_eq!(first["Tags"], serde_json::json!(["web-tag", "all"]));
    let alloc = first["AllocID"].as_str().expect("id").to_owned();
    assert_eq!(first["ID"], format!("_nomad-task-{alloc}-group-web-web-"));

    let list = c.get("/v1/services").await.json();
    let expected = serde_json::json!([{"Namespace": "default", "Services": [
        {"ServiceName": "admin", "Tags": ["admin-tag", "all"]}, {"ServiceName": "web", "Tags": ["all", "web-tag"]}]}]);
    assert_eq!(list, expected);
    assert_eq!(c.get("/v1/services?namespace=*").await.json(), expected);
    assert_eq!(c.get("/v1/services?namespace=other").await.text(), "[]");
    assert_eq!(c.get("/v1/service/web?namespace=*").await.json().as_array().map(Vec::len), Some(3));
    let chosen = c.get("/v1/service/web?choose=2|key").await.json();
    assert_eq!(chosen.as_array().map(Vec::len), Some(2));
    assert_eq!(c.get("/v1/service/web?choose=2|key").await.json(), chosen);
    assert_eq!(c.get("/v1/service/web?choose=2").await.status, StatusCode::BAD_REQUEST);
    assert_eq!(c.get("/v1/service/web?filter=Port+==+8001").await.json().as_array().map(Vec::len), Some(1));
    assert_eq!(c.get("/v1/job/shop/services").await.json().as_array().map(Vec::len), Some(6));
    assert_eq!(c.get(&format!("/v1/allocation/{alloc}/services")).await.json().as_array().map(Vec::len), Some(2));
    assert_eq!(c.get("/v1/job/none/services").await.status, StatusCode::NOT_FOUND);

    let id = first["ID"].as_str().expect("id");
    assert_eq!(
        c.send(Method::DELETE, &format!("/v1/service/other/{id}"), &[], "").await.status,
        StatusCode::INTERNAL_SERVER_ERROR
    );
    let deleted = c.send(Method::DELETE, &format!("/v1/service/web/{id}"), &[], "").await;
    assert_eq!(deleted.status, StatusCode::OK, "{}", deleted.text());
    assert_eq!(c.get("/v1/service/web").await.json().as_array().map(Vec::len), Some(2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_waits_for_a_service_is_woken_by_that_service_only() {
    let c = Cluster::start().await;
    let _node = FakeNode::join(&c, node("n1")).await;
    c.register(&with_services("a", 1, &["web"])).await;
    c.until("/v1/service/web", "registered", |v| v.as_array().is_some_and(|a| a.len() == 1)).await;
    let index = c.client.call(call::service("web")).await.expect("places").meta.index;
    let client = Arc::new(c.client.clone());
    let waiting = {
        let client = client.clone();
        tokio::spawn(async move { client.call(call::service("web").after(index, Duration::from_secs(30))).await })
    };
    c.register(&with_services("b", 1, &["other"])).await;
    c.until("/v1/service/other", "registered", |v| v.as_array().is_some_and(|a| a.len() == 1)).await;
    assert_eq!(
        client.call(call::service("web")).await.expect("places").meta.index,
        index,
        "another service has changed"
    );
    assert!(!waiting.is_finished());
    let stopped = c.send(Method::DELETE, "/v1/job/a", &[], "").await;
    assert_eq!(stopped.status, StatusCode::OK);
    let answer = waiting.await.expect("no panic").expect("an answer");
    assert!(answer.value.is_empty() && answer.meta.index > index, "{answer:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn services_are_a_topic_of_the_event_stream() {
    let c = Cluster::start().await;
    let _node = FakeNode::join(&c, node("n1")).await;
    let mut stream = c
        .client
        .stream("/v1/event/stream", &RequestOptions::default().with("topic", "Service:web"))
        .await
        .expect("a stream")
        .json::<Value>();
    c.register(&with_services("shop", 1, &["web", "admin"])).await;
    c.until("/v1/service/web", "registered", |v| v.as_array().is_some_and(|a| a.len() == 1)).await;
    c.send(Method::DELETE, "/v1/job/shop", &[], "").await;
    let mut seen = Vec::new();
    while seen.len() < 2 {
        let batch = testkit::soon(stream.next()).await.expect("open").expect("JSON");
        for event in batch["Events"].as_array().into_iter().flatten() {
            assert_eq!(
                (&event["Topic"], &event["Payload"]["Service"]["ServiceName"]),
                (&"Service".into(), &"web".into()),
                "{event}"
            );
            seen.push(event["Type"].as_str().expect("type").to_owned());
        }
    }
    assert_eq!(seen, ["ServiceRegistration", "ServiceDeregistration"]);
}

//! Shapes and statuses of answers that clients compare with.

use std::{collections::BTreeSet, time::Duration};

use api::{ClientError, RequestOptions, shapes::ExecInput};
use http::{Method, StatusCode};
use serde_json::{Value, json};
use server::{SearchLimits, ServerConfig};
use server_http::{HttpOptions, Limits};

use crate::cluster::{Cluster, FakeNode, job, node};

fn keys(answer: &Value) -> BTreeSet<&str> {
    answer.as_object().map(|o| o.keys().map(String::as_str).collect()).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_answer_what_clients_know_and_no_more() {
    let c = Cluster::start().await;
    let register =
        ["EvalID", "EvalCreateIndex", "JobModifyIndex", "Warnings", "Index", "LastContact", "KnownLeader", "NextToken"];
    assert_eq!(keys(&c.register(&job("web", 1)).await), register.into());
    let deployment = c.until("/v1/job/web/deployment", "there", |d| d["ID"].is_string()).await;
    let deployment = deployment["ID"].as_str().expect("an id").to_owned();
    let running = |l: &Value| l.as_array().is_some_and(|l| l.iter().any(|a| a["ClientStatus"] == "running"));
    // Without a node it cannot end before it was seen.
    c.until("/v1/jobs", "deploying", |jobs| jobs[0]["Deploying"] == true).await;
    let n = FakeNode::join(&c, node("one")).await;
    let alloc =
        c.until("/v1/job/web/allocations", "running", running).await[0]["ID"].as_str().expect("an id").to_owned();
    c.until("/v1/job/web/deployment", "successful", |d| d["Status"] == "successful").await;
    assert!(c.get("/v1/jobs").await.json()[0].get("Deploying").is_none());

    let template = json!({
        "ID": "mail", "Type": "batch", "ParameterizedJob": {},
        "TaskGroups": [{"Name": "g", "Tasks": [{"Name": "t", "Driver": "mock"}]}],
    });
    c.register(&template).await;
    let scale = json!({"Target": {"Job": "web", "Group": "web"}, "Message": "x"});
    let deregister = [
        "EvalID",
        "EvalCreateIndex",
        "JobModifyIndex",
        "VolumeEvalID",
        "VolumeEvalIndex",
        "Index",
        "LastContact",
        "KnownLeader",
        "NextToken",
    ];
    let node_id = &n.id;
    for (method, path, body, expected) in [
        (Method::PUT, "/v1/job/web/evaluate".to_owned(), json!({"JobID": "web"}), &register[..]),
        (Method::PUT, "/v1/job/web/scale".to_owned(), scale, &register[..]),
        (Method::PUT, "/v1/job/web/stable".to_owned(), json!({"JobVersion": 0, "Stable": true}), &["Index"]),
        (
            Method::PUT,
            "/v1/job/mail/dispatch".to_owned(),
            json!({}),
            &["DispatchedJobID", "EvalID", "EvalCreateIndex", "JobCreateIndex", "Index"],
        ),
        (
            Method::PUT,
            "/v1/job/web/plan".to_owned(),
            json!({"Job": job("web", 1), "Diff": true}),
            &[
                "Annotations",
                "CreatedEvals",
                "Diff",
                "FailedTGAllocs",
                "Index",
                "JobModifyIndex",
                "NextPeriodicLaunch",
                "Warnings",
            ],
        ),
        (
            Method::PUT,
            format!("/v1/node/{node_id}/eligibility"),
            json!({"Eligibility": "ineligible"}),
            &["EvalIDs", "EvalCreateIndex", "NodeModifyIndex", "Index"],
        ),
        (
            Method::PUT,
            format!("/v1/node/{node_id}/drain"),
            json!({"DrainSpec": null, "MarkEligible": true}),
            &["EvalIDs", "EvalCreateIndex", "NodeModifyIndex", "Index"],
        ),
        (Method::PUT, format!("/v1/allocation/{alloc}/stop"), json!({}), &["EvalID", "Index"]),
        (Method::DELETE, "/v1/job/web".to_owned(), Value::Null, &deregister[..]),
    ] {
        let raw = c.send(method, &path, &[], body.to_string()).await;
        assert_eq!(raw.status, StatusCode::OK, "{path}: {}", raw.text());
        assert_eq!(keys(&raw.json()), expected.iter().copied().collect(), "{path}");
    }
    let raw =
        c.put(&format!("/v1/deployment/allocation-health/{deployment}"), &json!({"DeploymentID": deployment})).await;
    assert_eq!(raw.status, StatusCode::BAD_REQUEST);
    let states = c.get(&format!("/v1/allocation/{alloc}")).await.json()["TaskStates"]["server"].clone();
    assert!(
        states["StartedAt"].is_string() && states["FinishedAt"].is_null() && states["LastRestart"].is_null(),
        "{states}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_there_is_told_with_the_status_that_clients_know() {
    let c = Cluster::start().await;
    c.register(&job("web", 0)).await;
    for (method, path, body, status, text) in [
        (
            Method::PUT,
            "/v1/job/web/revert",
            json!({"JobVersion": 9}),
            500,
            "job \"web\" in namespace \"default\" at version 9 not found",
        ),
        (
            Method::PUT,
            "/v1/job/web/stable",
            json!({"JobVersion": 9}),
            500,
            "job \"web\" in namespace \"default\" at version 9 not found",
        ),
        (Method::PUT, "/v1/job/none/stable", json!({"JobVersion": 9}), 500, "job not found"),
        (Method::PUT, "/v1/job/none/revert", json!({"JobVersion": 9}), 500, "job not found"),
        (Method::PUT, "/v1/job/none/evaluate", json!({}), 500, "job not found"),
        (Method::GET, "/v1/job/web/versions?diffs=true&diff_version=9", Value::Null, 500, "version 9 not found"),
        (Method::GET, "/v1/job/none/versions", Value::Null, 404, "job versions not found"),
        (Method::DELETE, "/v1/service/none/none", Value::Null, 500, "service registration not found"),
        (
            Method::DELETE,
            "/v1/operator/raft/peer?address=1.1.1.1:1",
            Value::Null,
            400,
            "address \"1.1.1.1:1\" was not found in the Raft",
        ),
        (Method::DELETE, "/v1/operator/raft/peer?id=nobody", Value::Null, 500, "id \"nobody\" was not found"),
        (Method::GET, "/v1/event/stream?topic=a:b:c", Value::Null, 400, "Invalid key value pair"),
        (Method::PUT, "/v1/volumes", json!({}), 501, "not supported by this release: CSI volumes and plugins"),
        (
            Method::PUT,
            "/v1/agent/reload",
            json!({}),
            501,
            "not supported by this release: reloading the agent's configuration over HTTP",
        ),
        (
            Method::GET,
            "/v1/allocation/7f3b1f4e-0000-4000-8000-000000000000/checks",
            Value::Null,
            404,
            "Unknown allocation",
        ),
    ] {
        let raw = c.send(method, path, &[], body.to_string()).await;
        assert!(raw.status.as_u16() == status && raw.text().starts_with(text), "{path}: {} {}", raw.status, raw.text());
    }
    for path in ["/v1/volumes", "/v1/volumes?type=host", "/v1/volumes?type=csi", "/v1/plugins", "/v1/plugins?type=csi"]
    {
        let raw = c.get(path).await;
        assert_eq!((raw.status, raw.json()), (StatusCode::OK, json!([])), "{path}");
    }
}

/// Clients of an exec session read in the web socket what is wrong with it, and show that as it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_in_an_allocation_that_is_not_there_are_refused_in_the_web_socket() {
    let c = Cluster::start().await;
    let path = "/v1/client/allocation/7f3b1f4e-0000-4000-8000-000000000000/exec";
    let why = "Unknown allocation \"7f3b1f4e-0000-4000-8000-000000000000\"";
    let options = RequestOptions::default().with("task", "t").with("command", r#"["true"]"#);
    let mut socket = c.client.exec(path, &options).await.expect("a web socket");
    let error = socket.next().await.expect_err("a reason");
    assert!(matches!(&error, ClientError::Closed(told) if told == why), "{error:?}");
    // Who greets first is listened to first.
    let mut socket = c.client.exec(path, &options.with("ws_handshake", "true")).await.expect("a web socket");
    assert!(
        tokio::time::timeout(Duration::from_millis(200), socket.next()).await.is_err(),
        "the greeting is waited for"
    );
    socket.send(&ExecInput::default()).await.expect("sent");
    let error = socket.next().await.expect_err("a reason");
    assert!(matches!(&error, ClientError::Closed(told) if told == why), "{error:?}");
    // Without a web socket the status tells.
    let raw = c.get(path).await;
    assert_eq!((raw.status, raw.text().as_str()), (StatusCode::NOT_FOUND, why));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn searches_know_classes_and_policies_and_wait() {
    let c = Cluster::start().await;
    let _n = FakeNode::join(&c, node("one")).await;
    let web = json!({
        "ID": "web", "TaskGroups": [{
            "Name": "g", "Count": 0, "Scaling": {"Min": 0, "Max": 3},
            "Tasks": [{"Name": "t", "Driver": "java", "Config": {"class": "org.example.Main"}}],
        }],
    });
    let eval =
        c.put("/v1/jobs", &json!({"Job": web})).await.json()["EvalID"].as_str().expect("an evaluation").to_owned();
    // Its end changes the job once more.
    c.until(&format!("/v1/evaluation/{eval}"), "complete", |e| e["Status"] == "complete").await;
    let found = c.put("/v1/search/fuzzy", &json!({"Text": "example", "Context": "classes"})).await.json();
    assert_eq!(
        found["Matches"]["classes"],
        json!([{"ID": "org.example.Main", "Scope": ["default", "web", "g", "t"]}]),
        "{found}"
    );
    // The class of nodes is no such class.
    let found = c.put("/v1/search/fuzzy", &json!({"Text": "big", "Context": "all"})).await.json();
    assert_eq!(found["Matches"]["classes"], Value::Null, "{found}");
    let id = c.get("/v1/scaling/policies").await.json()[0]["ID"].as_str().expect("an id").to_owned();
    let found = c.put("/v1/search", &json!({"Prefix": id[..6], "Context": "scaling_policy"})).await.json();
    assert_eq!(found["Matches"], json!({"scaling_policy": [id]}));
    let found = c.put("/v1/search", &json!({"Prefix": "x", "Context": "host_volumes"})).await.json();
    assert_eq!(
        (&found["Matches"], &found["Truncations"]),
        (&json!({"host_volumes": null}), &json!({"host_volumes": false}))
    );

    // A search waits for changes of what it looks at, and of that only.
    let index = c.put("/v1/search", &json!({"Prefix": "w", "Context": "jobs"})).await.json()["Index"]
        .as_u64()
        .expect("an index");
    let path = format!("/v1/search?index={index}&wait=30s");
    let wanted = json!({"Prefix": "w", "Context": "jobs"});
    let waiting = c.put(&path, &wanted);
    tokio::pin!(waiting);
    assert!(tokio::time::timeout(Duration::from_millis(200), &mut waiting).await.is_err(), "nothing has changed");
    c.register(&job("wiki", 0)).await;
    let found = testkit::soon(waiting).await.json();
    assert_eq!(found["Matches"]["jobs"], json!(["web", "wiki"]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn searches_and_priorities_are_as_the_server_is_told() {
    let search = SearchLimits { results: 2, min_term: 3, ..SearchLimits::default() };
    let config = ServerConfig { search, job_default_priority: 60, ..ServerConfig::default() };
    let c = Cluster::of(config, HttpOptions::default(), Limits::default()).await;
    for name in ["web-1", "web-2", "web-3"] {
        c.register(&job(name, 0)).await;
    }
    let found = c.put("/v1/search/fuzzy", &json!({"Text": "web", "Context": "jobs"})).await.json();
    assert_eq!(
        (found["Matches"]["jobs"].as_array().map(Vec::len), &found["Truncations"]["jobs"]),
        (Some(2), &json!(true)),
        "{found}"
    );
    let short = c.put("/v1/search/fuzzy", &json!({"Text": "we", "Context": "jobs"})).await;
    assert!(short.text().contains("at least 3 characters, got 2"), "{}", short.text());
    // The number of finds of a search by the beginning of ids is another matter.
    let found = c.put("/v1/search", &json!({"Prefix": "we", "Context": "jobs"})).await.json();
    assert_eq!(found["Matches"]["jobs"].as_array().map(Vec::len), Some(3), "{found}");

    let bare =
        json!({"ID": "bare", "TaskGroups": [{"Name": "g", "Count": 0, "Tasks": [{"Name": "t", "Driver": "mock"}]}]});
    for (priority, expected) in [(Value::Null, 60), (json!(50), 50), (json!(0), 60)] {
        let mut asked = bare.clone();
        asked["Priority"] = priority.clone();
        c.register(&asked).await;
        assert_eq!(c.get("/v1/job/bare").await.json()["Priority"], expected, "{priority}");
    }
    c.end().await;

    let search = SearchLimits { fuzzy: false, ..SearchLimits::default() };
    let c = Cluster::of(ServerConfig { search, ..ServerConfig::default() }, HttpOptions::default(), Limits::default())
        .await;
    let refused = c.put("/v1/search/fuzzy", &json!({"Text": "web", "Context": "jobs"})).await;
    assert!(refused.text().starts_with("fuzzy search is not enabled"), "{}", refused.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_node_pools_are_events() {
    let c = Cluster::start().await;
    let options = RequestOptions::default().with("topic", "NodePool");
    let mut events = c.client.stream("/v1/event/stream", &options).await.expect("a stream").json::<Value>();
    let mut far = node("far");
    far.pool = "gpu".into();
    let _n = FakeNode::join(&c, far).await;
    let batch = loop {
        let line = testkit::soon(events.next()).await.expect("a line").expect("open");
        if line != json!({}) {
            break line;
        }
    };
    let event = &batch["Events"][0];
    assert_eq!(
        (&event["Topic"], &event["Type"], &event["Key"]),
        (&json!("NodePool"), &json!("NodePoolUpserted"), &json!("gpu"))
    );
    assert_eq!(event["Payload"]["NodePool"]["Name"], "gpu", "{event}");
}

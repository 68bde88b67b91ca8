//! What holds for every endpoint.

use std::io::Read as _;

use http::{Method, StatusCode};
use serde_json::json;
use server_http::{Guard, History, HttpOptions, Limits};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::cluster::{Cluster, job};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_panics_answers_by_name_and_is_counted() {
    let c = Cluster::start().await;
    let counted = async || {
        let metrics = c.get("/v1/metrics").await.json();
        let found = metrics["Counters"]
            .as_array()
            .and_then(|all| all.iter().find(|m| m["Name"] == "drover.http.panics").cloned());
        found.expect("the counter")["Count"].as_u64()
    };
    assert_eq!(counted().await, Some(0));
    assert!(c.server.handle().break_loop("http", server::Fault::Panic));
    let raw = c.get("/v1/job/web/allocations").await;
    assert_eq!(raw.status, StatusCode::INTERNAL_SERVER_ERROR);
    assert!(raw.text().contains("could not answer /v1/job/*id/allocations: the server has a defect"), "{}", raw.text());
    assert_eq!(
        (c.get("/v1/jobs").await.status, counted().await),
        (StatusCode::OK, Some(1)),
        "the next one is answered"
    );
    let health = c.get("/v1/agent/health").await.json();
    assert!(health["server"]["notes"][0].as_str().is_some_and(|note| note.contains("1 requests")), "{health}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn status_codes_and_headers() {
    let options = HttpOptions {
        response_headers: vec![("x-extra".parse().expect("name"), "yes".parse().expect("value"))],
        ..HttpOptions::default()
    };
    let c = Cluster::with(options, Limits::default()).await;
    for (method, path, status, text) in [
        (Method::GET, "/v1/nonsense", 404, ""),
        (Method::GET, "/v1/jobs/", 404, ""),
        (Method::DELETE, "/v1/jobs", 405, "Invalid method"),
        (Method::POST, "/v1/system/gc", 405, "Invalid method"),
        (Method::GET, "/v1/system/gc", 405, "Invalid method"),
        (Method::PATCH, "/v1/jobs", 405, "Invalid method"),
        (Method::GET, "/v1/jobs?index=x", 400, "Invalid index"),
        (Method::GET, "/v1/jobs?index=1&wait=soon", 400, "Invalid wait time"),
        (Method::GET, "/v1/jobs?stale=maybe", 400, "Failed to parse value of \"stale\" (maybe) as a bool"),
        (Method::GET, "/v1/jobs?region=mars", 500, "No path to region"),
        (Method::GET, "/v1/jobs?a=%zz", 400, "the query string is not valid percent-encoded UTF-8 near \"%zz\""),
        (Method::GET, "/v1/job/%ff", 400, "the path \"/v1/job/%ff\" is not valid percent-encoded UTF-8"),
        (
            Method::GET,
            "/v1/allocations?prefix=abc",
            500,
            "alloc lookup failed: index error: Input (without hyphens) must be even length",
        ),
        (Method::GET, "/v1/allocation/nope", 500, "alloc lookup failed: index error: UUID must be 36 characters"),
        (Method::GET, "/v1/node/nope", 500, "node lookup failed: index error: UUID must be 36 characters"),
        (Method::GET, "/v1/evaluation/nope", 500, "eval lookup failed: index error: UUID must be 36 characters"),
        (Method::GET, "/v1/deployment/nope", 500, "deployment lookup failed: index error: UUID must be 36 characters"),
        (Method::GET, "/v1/allocation/7f3b1f4e-0000-4000-8000-000000000000", 404, "alloc not found"),
        (Method::GET, "/v1/node/7f3b1f4e-0000-4000-8000-000000000000", 404, "node not found"),
        (Method::GET, "/v1/evaluation/7f3b1f4e-0000-4000-8000-000000000000", 404, "eval not found"),
        (Method::GET, "/v1/deployment/7f3b1f4e-0000-4000-8000-000000000000", 404, "deployment not found"),
        (Method::GET, "/v1/job/nope", 404, "job not found"),
        (Method::GET, "/v1/job/nope/versions", 404, "job versions not found"),
        (Method::GET, "/v1/job/nope/submission", 404, "job source not found"),
        (Method::GET, "/v1/job/nope/summary", 404, "job not found"),
        (Method::GET, "/v1/namespace/nope", 404, "Namespace not found"),
        (Method::GET, "/v1/node/pool/nope", 404, "node pool not found"),
        (Method::GET, "/v1/remote/task/default/j.g[0]/t", 404, "remote task not found"),
        (
            Method::GET,
            "/v1/remote/task/x",
            400,
            "\"x\" is not the name of a slot: it has the form namespace/job.group[index]/task",
        ),
        (Method::PUT, "/v1/job/nope/dispatch", 500, "parameterized job not found"),
        (Method::PUT, "/v1/job/nope/periodic/force", 404, "job not found"),
        (Method::GET, "/v1/acl/tokens", 400, "ACL support disabled"),
        (Method::PUT, "/v1/acl/bootstrap", 400, "ACL support disabled"),
        (Method::PUT, "/v1/acl/login", 400, "ACL support disabled"),
        (Method::GET, "/v1/acl/auth-methods", 400, "ACL support disabled"),
        (Method::GET, "/v1/quotas", 501, "Nomad Enterprise only endpoint"),
        (Method::GET, "/v1/sentinel/policies", 501, "Nomad Enterprise only endpoint"),
        (Method::GET, "/v1/recommendations", 501, "Nomad Enterprise only endpoint"),
        (Method::PUT, "/v1/operator/utilization", 501, "Nomad Enterprise only endpoint"),
        (Method::PUT, "/v1/client/identity/renew", 400, "this agent runs no node: name one with node_id"),
        (
            Method::GET,
            "/debug/pprof/heap",
            501,
            "not supported by this release: profiling over HTTP; use the system's profilers on the agent's process",
        ),
        (Method::GET, "/v1/operator/license", 204, ""),
        (
            Method::GET,
            "/.well-known/openid-configuration",
            404,
            "OIDC Discovery endpoint disabled: set server.oidc_issuer to enable it",
        ),
        (Method::GET, "/v1/client/stats", 400, "this agent runs no node: name one with node_id"),
        (
            Method::GET,
            "/v1/client/fs/ls/7f3b1f4e-0000-4000-8000-000000000000",
            404,
            "Unknown allocation \"7f3b1f4e-0000-4000-8000-000000000000\"",
        ),
        (Method::PUT, "/v1/client/allocation/7f3b1f4e-0000-4000-8000-000000000000/pause", 500, "Enterprise only"),
    ] {
        let raw = c.send(method.clone(), path, &[], "").await;
        assert_eq!((raw.status.as_u16(), raw.text().as_str()), (status, text), "{method} {path}");
        assert_eq!(raw.header("x-extra"), "yes", "{method} {path}");
        if !text.is_empty() {
            assert_eq!(raw.header("content-type"), "text/plain; charset=utf-8", "{method} {path}");
        }
    }
    for path in ["/v1/volumes/external", "/v1/agent/monitor", "/v1/agent/monitor/export", "/v1/agent/pprof/heap"] {
        let raw = c.get(path).await;
        assert_eq!(raw.status, StatusCode::NOT_IMPLEMENTED, "{path}");
        assert!(raw.text().starts_with("not supported by this release: "), "{path}: {}", raw.text());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_carry_the_index_and_redirects_are_clean() {
    let c = Cluster::start().await;
    for path in [
        "/v1/jobs",
        "/v1/allocations",
        "/v1/evaluations",
        "/v1/deployments",
        "/v1/nodes",
        "/v1/node/pools",
        "/v1/namespaces",
        "/v1/remote/tasks",
        "/v1/services",
        "/v1/service/x",
        "/v1/volumes?type=csi",
        "/v1/plugins?type=csi",
        "/v1/job/x/allocations",
        "/v1/job/x/evaluations",
        "/v1/jobs?namespace=nowhere",
        "/v1/jobs?stale=",
    ] {
        let raw = c.get(path).await;
        assert_eq!(raw.status, StatusCode::OK, "{path}: {}", raw.text());
        assert!(raw.json().is_array(), "{path}: {}", raw.text());
        // There has been no evaluation and no allocation.
        let least = u64::from(!path.contains("evaluations") && !path.contains("allocations"));
        assert!(raw.header("x-nomad-index").parse::<u64>().is_ok_and(|i| i >= least), "{path}: {:?}", raw.headers);
        assert_eq!((raw.header("x-nomad-knownleader"), raw.header("x-nomad-lastcontact")), ("true", "0"), "{path}");
        assert_eq!(raw.header("content-type"), "application/json", "{path}");
    }
    assert_eq!(c.get("/v1/jobs").await.text(), "[]");
    let raw = c.get("/v1/job/x/deployment").await;
    assert_eq!((raw.status, raw.text().as_str()), (StatusCode::OK, "null"));
    // A known kind that does not exist can be waited for.
    assert!(c.get("/v1/job/x").await.header("x-nomad-index").parse::<u64>().is_ok_and(|i| i > 0));

    for (path, status, to) in [
        ("/", 307, "/ui/"),
        ("/ui", 307, "/ui/"),
        ("/v1/job//scale?a=b", 301, "/v1/job/scale?a=b"),
        ("//v1/jobs", 301, "/v1/jobs"),
        ("/v1/../v1/jobs", 301, "/v1/jobs"),
    ] {
        let raw = c.get(path).await;
        assert_eq!((raw.status.as_u16(), raw.header("location")), (status, to), "{path}");
    }
    let ui = c.get("/ui/jobs").await;
    assert!(ui.text().contains("<div id=\"app\">"), "{}", ui.text());
    assert!(ui.header("content-security-policy").contains("trusted-types 'none'"));
    assert_eq!((ui.header("x-frame-options"), ui.header("x-content-type-options")), ("DENY", "nosniff"));
    let again = c.send(Method::GET, "/ui/remote", &[("if-none-match", ui.header("etag"))], "").await;
    assert_eq!(again.status, StatusCode::NOT_MODIFIED);
    let text = ui.text();
    let script = text.split('"').find(|part| part.ends_with("/app.js")).expect("the page names its script");
    let script = c.get(script).await;
    assert_eq!((script.status, script.header("content-type")), (StatusCode::OK, "text/javascript; charset=utf-8"));
    assert!(script.header("cache-control").contains("immutable"));
    assert_eq!(c.get("/ui/-/0000000000000000/app.js").await.status, StatusCode::NOT_FOUND);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pretty_gzip_and_other_origins() {
    let c = Cluster::start().await;
    assert_eq!(c.get("/v1/regions?pretty").await.text(), "[\n    \"global\"\n]\n");
    assert_eq!(c.get("/v1/regions?pretty=0").await.text(), "[\"global\"]");
    let raw = c.send(Method::GET, "/v1/namespaces", &[("accept-encoding", "deflate, gzip;q=0.5")], "").await;
    assert_eq!((raw.header("content-encoding"), raw.header("vary")), ("gzip", "Accept-Encoding"));
    let mut text = String::new();
    flate2::read::GzDecoder::new(&raw.body[..]).read_to_string(&mut text).expect("is gzip");
    assert!(text.starts_with("[{\"Name\":\"default\""), "{text}");
    let raw = c.send(Method::GET, "/v1/namespaces", &[("accept-encoding", "gzip;q=0")], "").await;
    assert_eq!(raw.header("content-encoding"), "");
    // No page of another origin may read an answer, unless the operator says so.
    for path in ["/v1/jobs", "/v1/client/stats", "/v1/client/metadata", "/v1/client/fs/cat/x"] {
        for method in [Method::GET, Method::OPTIONS] {
            let raw = c.send(method, path, &[("origin", "http://elsewhere")], "").await;
            assert_eq!(raw.header("access-control-allow-origin"), "", "{path}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_others_reach_says_so() {
    let exposed = Some("beyond loopback".to_owned());
    let c = Cluster::with(HttpOptions { exposed, ..HttpOptions::default() }, Limits::default()).await;
    let health = c.get("/v1/agent/health").await;
    assert_eq!(health.status, StatusCode::OK, "it is no failure");
    assert!(health.text().contains("beyond loopback"), "{}", health.text());
    assert_eq!(c.get("/v1/agent/members").await.json()["Members"][0]["Tags"]["exposed"], "beyond loopback");
    c.end().await;
    let c = Cluster::start().await;
    assert!(c.get("/v1/agent/members").await.json()["Members"][0]["Tags"]["exposed"].is_null());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_too_large_is_said_so() {
    let c = Cluster::start().await;
    // Small on the wire, large once its defaults are filled in.
    let groups: Vec<_> =
        (0..20_000).map(|n| json!({"Name": n.to_string(), "Tasks": [{"Name": "t", "Driver": "mock"}]})).collect();
    let raw = c
        .put("/v1/jobs", &json!({"Job": {"ID": "wide", "Type": "batch", "Datacenters": ["dc1"], "TaskGroups": groups}}))
        .await;
    assert!(
        raw.status == StatusCode::PAYLOAD_TOO_LARGE && raw.text().contains("40000 groups and tasks"),
        "{} {}",
        raw.status,
        raw.text()
    );
    let many = format!("{{\"Job\":{{\"TaskGroups\":[{}{{}}]}}}}", "{},".repeat(200_000));
    let raw = c.send(Method::PUT, "/v1/jobs", &[], many).await;
    assert!(
        raw.status == StatusCode::PAYLOAD_TOO_LARGE && raw.text().contains("at most 100000 are read"),
        "{} {}",
        raw.status,
        raw.text()
    );
    let mut large = job("large", 0);
    large.meta.insert("text".to_owned(), "x".repeat(9 << 20));
    let raw = c.put("/v1/jobs", &json!({"Job": large})).await;
    assert!(
        raw.status == StatusCode::PAYLOAD_TOO_LARGE && raw.text().contains("at most 8388608 are allowed"),
        "{} {}",
        raw.status,
        raw.text()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn web_pages_change_nothing() {
    let headers = vec![(
        "access-control-allow-origin".parse().expect("name"),
        "https://console.example.com".parse().expect("value"),
    )];
    let guard = Guard::new(["node-1"], &["drover.example.com".to_owned()], &headers);
    let c =
        Cluster::with(HttpOptions { guard, response_headers: headers, ..HttpOptions::default() }, Limits::default())
            .await;
    let body = json!({"Job": job("page", 0)}).to_string();
    let foreign = ("origin", "http://evil.example");
    let refused = [
        (Method::POST, "/v1/jobs", vec![foreign, ("content-type", "text/plain")]),
        (Method::PUT, "/v1/jobs", vec![("sec-fetch-site", "cross-site")]),
        (Method::DELETE, "/v1/job/page", vec![foreign]),
        (Method::GET, "/v1/client/gc", vec![("sec-fetch-site", "cross-site")]),
        (
            Method::GET,
            "/v1/client/allocation/7f3b1f4e-0000-4000-8000-000000000000/exec",
            vec![foreign, ("upgrade", "websocket")],
        ),
    ];
    for (method, path, headers) in refused {
        let raw = c.send(method, path, &headers, body.clone()).await;
        assert_eq!(raw.status, StatusCode::FORBIDDEN, "{path}: {}", raw.text());
        assert!(raw.text().contains("web page"), "{}", raw.text());
    }
    assert!(c.server.handle().snapshot().job(&model::JobKey::new("default", "page")).is_none(), "nothing was done");
    // A name that somebody has made resolve to this address is none of ours: neither for reads nor for writes.
    let speak = |host: &str| {
        let text = format!("GET /v1/jobs HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        let address = c.address.clone();
        async move {
            let mut stream = TcpStream::connect(address).await.expect("connects");
            stream.write_all(text.as_bytes()).await.expect("writes");
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.expect("answers");
            answer
        }
    };
    assert!(speak("evil.example:4646").await.starts_with("HTTP/1.1 403"));
    for own in ["localhost", "node-1:4646", "drover.example.com"] {
        assert!(speak(own).await.starts_with("HTTP/1.1 200"), "{own}");
    }
    // The origin that the operator trusts, its browser's question first; and whoever is no browser.
    let trusted = [("origin", "https://console.example.com"), ("sec-fetch-site", "cross-site")];
    let asked = c.send(Method::OPTIONS, "/v1/jobs", &trusted, "").await;
    assert_eq!((asked.status.as_u16(), asked.header("access-control-allow-methods")), (200, "GET, PUT, POST, DELETE"));
    assert_eq!(c.send(Method::POST, "/v1/jobs", &trusted, body.clone()).await.status, StatusCode::OK);
    assert_eq!(c.send(Method::POST, "/v1/jobs", &[], body).await.status, StatusCode::OK);
}

/// Bodies that do not end fill the room for large ones, and nothing else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies_that_arrive_have_a_bounded_room() {
    let options = HttpOptions { bodies_bytes: 1 << 20, max_body_bytes: 1 << 20, ..HttpOptions::default() };
    let c = Cluster::with(options, Limits::default()).await;
    let large = || " ".repeat(900_000);
    let hold = async || {
        let mut stream = TcpStream::connect(&c.address).await.expect("connects");
        let head = format!("PUT /v1/jobs HTTP/1.1\r\nHost: {}\r\nContent-Length: 900001\r\n\r\n", c.address);
        // One that is refused meanwhile may be closed already; that is seen below.
        drop(stream.write_all((head + &large()).as_bytes()).await);
        stream
    };
    let mut held = hold().await;
    // Larger than a small one and room in one piece: two that grow wait for each other, and either may be refused.
    let full = testkit::poll("the room is full", async || {
        // On a slow machine the probes may have taken its room from it: it was refused, or closed after that.
        let over = held.try_read(&mut [0]).map_err(|error| error.kind());
        if over != Err(std::io::ErrorKind::WouldBlock) {
            held = hold().await;
        }
        let raw = c.send(Method::PUT, "/v1/jobs", &[], " ".repeat(70_000)).await;
        (raw.status == StatusCode::SERVICE_UNAVAILABLE).then_some(raw)
    });
    let raw = full.await;
    assert!(raw.header("retry-after").parse::<u64>().is_ok_and(|after| after > 0), "{:?}", raw.headers);
    assert!(raw.text().contains("no room for the request's body"), "{}", raw.text());
    assert_eq!(c.put("/v1/jobs", &json!({})).await.status, StatusCode::BAD_REQUEST, "small ones always pass");
    drop(held);
    testkit::poll("the room comes back", async || {
        (c.send(Method::PUT, "/v1/jobs", &[], large()).await.status == StatusCode::BAD_REQUEST).then_some(())
    })
    .await;
    // Values cost many times what they are written with.
    let many = format!("{{\"x\":[0{}]}}", ",0".repeat(1_000_001));
    let raw = Cluster::start().await.send(Method::PUT, "/v1/jobs", &[], many).await;
    assert_eq!(raw.status, StatusCode::PAYLOAD_TOO_LARGE, "{}", raw.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn malformed_bodies_are_refused_with_the_place() {
    let options = HttpOptions { max_body_bytes: 20_000, ..HttpOptions::default() };
    let c = Cluster::with(options, Limits::default()).await;
    let id = "7f3b1f4e-0000-4000-8000-000000000000";
    let deep = "[".repeat(10_000);
    let valid = json!({"Job": job("x", 0)}).to_string();
    let large = "x".repeat(20_001);
    for (path, body, status, text) in [
        ("/v1/jobs", "", 400, "failed to decode the request's body: the body is empty, JSON was expected"),
        (
            "/v1/jobs",
            "{",
            400,
            "failed to decode the request's body: invalid JSON: EOF while parsing an object at line 1 column 1",
        ),
        ("/v1/jobs", "\u{0}\u{1}", 400, "failed to decode the request's body: invalid JSON: "),
        ("/v1/jobs", deep.as_str(), 400, "failed to decode the request's body: invalid JSON: recursion limit exceeded"),
        ("/v1/jobs", large.as_str(), 413, "the request's body is larger than the limit of 20000 bytes"),
        ("/v1/jobs", "[]", 400, "failed to decode the request's body: invalid type: sequence"),
        ("/v1/jobs", "null", 400, "Job must be specified"),
        ("/v1/jobs", "{}", 400, "Job must be specified"),
        ("/v1/jobs", r#"{"Job":{}}"#, 400, "Job ID hasn't been provided"),
        (
            "/v1/jobs",
            r#"{"Job":{"ID":"x","TaskGroups":[{"Name":"g","Count":"many"}]}}"#,
            400,
            "failed to decode the request's body: Job.TaskGroups[0].Count: invalid type: string \"many\", expected i32",
        ),
        (
            "/v1/jobs",
            r#"{"job":{"id":"x","taskgroups":[{"tasks":[{"killtimeout":"soon"}]}]}}"#,
            400,
            "failed to decode the request's body: Job.TaskGroups[0].Tasks[0].KillTimeout: invalid duration \"soon\"",
        ),
        ("/v1/jobs", r#"{"Job":{"ID":"x","Region":"mars"}}"#, 500, "No path to region"),
        ("/v1/jobs", r#"{"Job":{"ID":"x","Name":"x","Type":"service"}}"#, 500, ""),
        (
            "/v1/jobs?namespace=nowhere",
            valid.as_str(),
            500,
            "1 error occurred:\n\t* job \"x\" is in nonexistent namespace \"nowhere\"\n\n",
        ),
        ("/v1/job/y", r#"{"Job":{"ID":"x"}}"#, 400, "Job ID does not match name"),
        ("/v1/job/y/plan", r#"{"Job":{"ID":"x"}}"#, 400, "Job ID does not match name"),
        ("/v1/job/y/plan", "{}", 400, "Job must be specified"),
        ("/v1/validate/job", "{}", 400, "Job must be specified"),
        ("/v1/job/y/evaluate", r#"{"JobID":"x"}"#, 400, "Job ID does not match"),
        ("/v1/job/y/evaluate", "", 500, "job not found"),
        ("/v1/job/y/revert", "{}", 500, "job not found"),
        (
            "/v1/job/y/revert",
            r#"{"JobVersion":-1}"#,
            400,
            "failed to decode the request's body: JobVersion: invalid value: integer `-1`, expected u64",
        ),
        (
            "/v1/job/y/stable",
            r#"{"JobVersion":1.5}"#,
            400,
            "failed to decode the request's body: JobVersion: invalid type: floating point",
        ),
        ("/v1/job/y/scale", "{}", 400, "missing task group name for scaling action"),
        ("/v1/job/y/scale", r#"{"Target":{"Group":"g"},"Count":-1}"#, 400, "scaling action count can't be negative"),
        (
            "/v1/job/y/scale",
            r#"{"Target":{"Group":"g"},"Count":1,"Error":true}"#,
            400,
            "scaling action should not contain count if error is true",
        ),
        ("/v1/jobs/parse", "{}", 400, "Job spec is empty"),
        ("/v1/jobs/parse", r#"{"JobHCL":"job \"x\" {"}"#, 400, "Failed to parse job: "),
        ("/v1/jobs/parse", r#"{"JobHCL":"job \"x\" {}","HCLv1":true}"#, 501, "not supported by this release: HCLv1; "),
        ("/v1/search", r#"{"Context":"nonsense"}"#, 500, "context must be one of ["),
        ("/v1/search/fuzzy", r#"{"Text":"a"}"#, 500, "fuzzy search query must be at least 2 characters, got 1"),
        (
            "/v1/operator/scheduler/configuration",
            r#"{"SchedulerAlgorithm":"best"}"#,
            400,
            "invalid scheduler algorithm \"best\"",
        ),
        (
            &format!("/v1/node/{id}/drain"),
            "not json",
            400,
            "failed to decode the request's body: invalid JSON: expected ident",
        ),
        (
            &format!("/v1/node/{id}/drain"),
            r#"{"DrainSpec":{"Deadline":"later"}}"#,
            400,
            "failed to decode the request's body: DrainSpec.Deadline: ",
        ),
        (&format!("/v1/node/{id}/drain"), r#"{"NodeID":"other"}"#, 400, "Node ID does not match"),
        (&format!("/v1/node/{id}/drain"), r#"{"DrainSpec":null}"#, 404, "node not found"),
        (
            &format!("/v1/node/{id}/eligibility"),
            r#"{"Eligibility":"maybe"}"#,
            500,
            "invalid scheduling eligibility \"maybe\"",
        ),
        (&format!("/v1/deployment/pause/{id}"), "{}", 400, "DeploymentID must be specified"),
        (
            &format!("/v1/deployment/allocation-health/{id}"),
            &format!(r#"{{"DeploymentID":"{id}"}}"#),
            400,
            "must specify at least one",
        ),
        (
            &format!("/v1/deployment/allocation-health/{id}"),
            &format!(r#"{{"DeploymentID":"{id}","HealthyAllocationIDs":["x"]}}"#),
            400,
            "failed to decode the request's body: HealthyAllocationIDs[0]: invalid value: string \"x\", \
                expected a UUID",
        ),
        (&format!("/v1/deployment/fail/{id}"), "", 404, "deployment not found"),
        (&format!("/v1/allocation/{id}/stop"), "", 404, "alloc not found"),
    ] {
        let raw = c.send(Method::PUT, path, &[], body.to_owned()).await;
        let got = raw.text();
        assert!(
            raw.status.as_u16() == status && got.starts_with(text),
            "{path} {}: {} {got:?}",
            &body[..body.len().min(80)],
            raw.status
        );
    }
    for (filter, status, text) in [
        (
            "Status%20==",
            400,
            "failed to create result paginator: failed to read filter expression: 1:10 (9): no match found, expected: ",
        ),
        (
            "Status%20matches%20%22(%22",
            400,
            "failed to create result paginator: failed to read filter expression: failed to compile",
        ),
        ("Foo%20==%201", 200, "[]"),
    ] {
        let raw = c.get(&format!("/v1/jobs?filter={filter}")).await;
        assert!(
            raw.status.as_u16() == status && raw.text().starts_with(text),
            "{filter}: {} {}",
            raw.status,
            raw.text()
        );
    }
    c.register(&job("row", 0)).await;
    let raw = c.get("/v1/jobs?filter=Foo%20==%201").await;
    assert_eq!(
        (raw.status.as_u16(), raw.text().as_str()),
        (
            400,
            "failed to read result page: error finding value in datum: /Foo at part 0: couldn't find key: struct \
                field with name \"Foo\""
        )
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_client_has_so_many_connections_and_garbage_is_survived() {
    // Ten from this machine itself, of which eight may be streams.
    let c = Cluster::with(HttpOptions::default(), Limits { connections_per_client: 1, ..Limits::default() }).await;
    let ask = |path: &'static str| {
        let address = c.address.clone();
        async move {
            let mut stream = TcpStream::connect(address).await.expect("connects");
            let text = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
            stream.write_all(text.as_bytes()).await.expect("writes");
            let mut answer = [0; 12];
            stream.read_exact(&mut answer).await.expect("answers");
            (stream, String::from_utf8_lossy(&answer[9..]).into_owned())
        }
    };
    // Half a head is no request: whoever dribbles is as idle as who says nothing.
    let mut dribbling = TcpStream::connect(&c.address).await.expect("connects");
    dribbling.write_all(b"GET /v1/jobs HTTP/1.1\r\nHost:").await.expect("writes");
    let mut open = Vec::new();
    for n in 0..30 {
        let (stream, status) = ask("/v1/regions").await;
        assert_eq!(status, "200", "the {n}th: idle ones make room");
        open.push(stream);
    }
    let cut = |mut stream: TcpStream| async move {
        // Cut off in the middle, it may be reset.
        testkit::soon(stream.read_to_end(&mut Vec::new())).await.ok();
    };
    // Those that were idle for longest have made room.
    cut(dribbling).await;
    cut(open.remove(0)).await;
    let mut streams = Vec::new();
    for _ in 0..8 {
        let (stream, status) = ask("/v1/event/stream").await;
        assert_eq!(status, "200");
        streams.push(stream);
    }
    assert_eq!(ask("/v1/event/stream").await.1, "429", "streams leave a reserve");
    assert_eq!(ask("/v1/jobs?index=1&wait=1m").await.1, "429", "and so do queries that wait");
    for _ in 0..5 {
        assert_eq!(ask("/v1/jobs").await.1, "200", "nobody is locked out of short requests");
    }
    drop((open, streams));
    // The places come back once the server has seen the ends.
    for garbage in [
        &b"\x16\x03\x01\x02\x00nonsense\r\n\r\n"[..],
        b"GET\r\n\r\n",
        b"PUT /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{",
    ] {
        let answered = async {
            loop {
                let mut stream = TcpStream::connect(&c.address).await.expect("connects");
                if stream.write_all(garbage).await.is_err() {
                    continue;
                }
                stream.shutdown().await.ok();
                let mut answer = Vec::new();
                stream.read_to_end(&mut answer).await.ok();
                if !answer.starts_with(b"HTTP/1.1 429") {
                    return;
                }
            }
        };
        // A place becomes free.
        testkit::soon(answered).await;
    }
    testkit::poll("an answer, still", async || {
        c.client.get::<serde_json::Value>("/v1/regions").await.is_ok_and(|r| r == json!(["global"]))
    })
    .await;
}

/// What the tests of Nomad's Go client look at.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn corners_that_clients_know() {
    let c = Cluster::start().await;
    // Nothing has been written: there is no index yet.
    for path in ["/v1/allocations", "/v1/evaluations", "/v1/job/x/allocations"] {
        let raw = c.get(path).await;
        assert_eq!((raw.status, raw.header("x-nomad-index"), raw.json()), (StatusCode::OK, "0", json!([])), "{path}");
    }
    assert_eq!(c.get("/v1/node/nope/allocations").await.json(), json!([]));
    let raw = c.put("/v1/validate/job", &json!({"Job": {"Name": "x"}})).await;
    let errors = raw.json()["ValidationErrors"].clone();
    assert!(raw.status == StatusCode::OK && errors.to_string().contains("Missing job ID"), "{errors}");
    let raw = c.get("/v1/event/stream?topic=Evaluation:::*").await;
    assert_eq!(
        (raw.status, raw.text().contains("Invalid key value pair")),
        (StatusCode::BAD_REQUEST, true),
        "{}",
        raw.text()
    );
    let rotated = c.put("/v1/operator/keyring/rotate", &json!({})).await.json();
    assert_eq!((&rotated["Key"]["CreateIndex"], &rotated["Key"]["ModifyIndex"]), (&json!(0), &json!(0)), "{rotated}");
    assert!(rotated["Index"].as_u64().is_some_and(|index| index > 0), "{rotated}");
    let enabled = c.get("/v1/agent/schedulers").await.json()["schedulers"][0]["enabled_schedulers"].clone();
    assert_eq!(enabled, json!(["service", "batch", "system", "sysbatch"]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_web_ui_can_be_switched_off() {
    let served = Cluster::start().await;
    assert_eq!(served.get("/ui/").await.status, StatusCode::OK);
    let off = Cluster::with(HttpOptions { ui: false, ..HttpOptions::default() }, Limits::default()).await;
    for path in ["/ui", "/ui/", "/ui/jobs/x"] {
        let raw = off.get(path).await;
        assert!(raw.status == StatusCode::NOT_FOUND && raw.text().contains("switched off"), "{path}: {}", raw.text());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_hour_begins_with_the_server() {
    let c = Cluster::start().await;
    let points = testkit::poll("a point", async || {
        let points = c.get("/v1/metrics/trends").await.json();
        points.as_array().is_some_and(|all| !all.is_empty()).then_some(points)
    })
    .await;
    assert!(points[0]["Time"].as_i64() > Some(0) && points[0]["NodesReady"] == 0, "{points}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn longer_times_come_from_a_prometheus_that_answers() {
    let c = Cluster::start().await;
    let unknown = c.get("/v1/metrics/history").await;
    assert!(unknown.status == StatusCode::NOT_FOUND && unknown.text().contains("prometheus_url"), "{}", unknown.text());
    for seconds in ["59", "99999999", "x"] {
        let refused = c.get(&format!("/v1/metrics/history?seconds={seconds}")).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{seconds}: {}", refused.text());
    }
    // Nobody listens there.
    let history = Some(History::new("http://127.0.0.1:1/", None));
    let c = Cluster::with(HttpOptions { history, ..HttpOptions::default() }, Limits::default()).await;
    assert_eq!(c.get("/v1/agent/features").await.json()["History"], true);
    let away = c.get("/v1/metrics/history?seconds=3600").await;
    let told = away.text();
    assert!(away.status == StatusCode::BAD_GATEWAY, "{told}");
    assert!(told.contains("could not ask Prometheus at http://127.0.0.1:1: "), "{told}");
}

/// What the reference says of a refused endpoint is what its answer says.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_refused_endpoint_answers_with_the_reason_that_the_reference_has() {
    let c = Cluster::start().await;
    let mut seen = 0;
    for endpoint in server_http::endpoints() {
        let path = endpoint.pattern.split('/').map(|part| if part.starts_with([':', '*']) { "x" } else { part });
        let path = path.collect::<Vec<_>>().join("/");
        for verb in endpoint.verbs.iter().filter(|verb| verb.refused) {
            assert!(!verb.doc.is_empty(), "{path} has no reason");
            let method = if verb.method == "any" { "GET" } else { verb.method };
            let raw = c.send(method.parse().expect("a method"), &path, &[], "{}").await;
            let text = raw.text();
            let said = match verb.doc.split_once("; ") {
                Some(_) if raw.status == StatusCode::NOT_IMPLEMENTED => text.contains(verb.doc),
                _ if verb.doc.contains("Enterprise") => text.contains("Enterprise only"),
                _ if verb.doc.contains("licence") => raw.status == StatusCode::NO_CONTENT,
                // This agent has ACLs off, which is said first.
                _ => verb.doc.contains("access control") && text == "ACL support disabled",
            };
            assert!(said, "{method} {path}: {} {text}, but {}", raw.status, verb.doc);
            seen += 1;
        }
    }
    assert!(seen > 20, "only {seen} are refused");
}

//! Nodes, the agent, the operator's endpoints.

use http::{Method, StatusCode};
use model::{DriverInfo, node::RemoteProvider};
use serde_json::{Value, json};

use crate::cluster::{Cluster, FakeNode, Raw, job, node};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_and_drains() {
    let c = Cluster::start().await;
    let n = FakeNode::join(&c, node("one")).await;
    let list = c.get("/v1/nodes?resources=true&os=true").await.json();
    assert_eq!(
        (&list[0]["Name"], &list[0]["Address"], &list[0]["Version"], &list[0]["Attributes"], &list[0]["Drain"]),
        (&json!("one"), &json!("127.0.0.1"), &json!("1.9.7"), &json!({"os.name": "testos"}), &json!(false))
    );
    assert_eq!(list[0]["NodeResources"]["Cpu"]["CpuShares"], json!(4000));
    let plain = c.get("/v1/nodes").await.json();
    assert!(plain[0].get("NodeResources").is_none() && plain[0].get("Attributes").is_none());
    assert_eq!(c.get(&format!("/v1/nodes?prefix={}", &n.id.to_string()[..4])).await.json()[0]["Name"], "one");
    let full = c.get(&format!("/v1/node/{}", n.id)).await.json();
    assert_eq!(
        (&full["SecretID"], &full["Drain"], &full["HTTPAddr"]),
        (&json!(""), &json!(false), &json!("127.0.0.1:1"))
    );
    let secret = c.get("/v1/nodes?filter=SecretID%20is%20not%20empty").await.json();
    assert_eq!(secret, json!([]), "filters cannot probe secrets");

    let path = format!("/v1/node/{}", n.id);
    c.done(&format!("{path}/eligibility"), &json!({"NodeID": n.id, "Eligibility": "ineligible"})).await;
    assert_eq!(c.get(&path).await.json()["SchedulingEligibility"], "ineligible");
    let raw = c.put(&format!("{path}/eligibility"), &json!({"Eligibility": "eligible"})).await;
    assert!(raw.json()["NodeModifyIndex"].as_u64().is_some_and(|i| i > 0), "{}", raw.text());

    c.register(&job("web", 1)).await;
    c.until("/v1/job/web/allocations", "running", |l| l[0]["ClientStatus"] == "running").await;
    let allocs = c.get(&format!("{path}/allocations")).await.json();
    assert_eq!((&allocs[0]["JobID"], &allocs[0]["Job"]["ID"]), (&json!("web"), &json!("web")));
    let raw = c.put(&format!("{path}/evaluate"), &json!({})).await;
    assert!(raw.json()["EvalIDs"].as_array().is_some_and(|e| e.len() == 1), "{}", raw.text());
    c.done(
        &format!("{path}/drain"),
        &json!({"DrainSpec": {"Deadline": "1h", "IgnoreSystemJobs": false}, "Meta": {"why": "test"}}),
    )
    .await;
    // The only allocation has nowhere to go: the drain stays open, and is visible.
    let draining = c.get(&path).await.json();
    assert_eq!(
        (&draining["Drain"], &draining["SchedulingEligibility"]),
        (&json!(true), &json!("ineligible")),
        "{draining}"
    );
    assert_eq!(draining["DrainStrategy"]["Deadline"], json!(3_600_000_000_000_i64));
    c.done(&format!("{path}/drain"), &json!({"DrainSpec": null, "MarkEligible": true})).await;
    let after = c.get(&path).await.json();
    assert_eq!((&after["Drain"], &after["SchedulingEligibility"]), (&json!(false), &json!("eligible")));

    assert_eq!(c.get("/v1/node/pool/default/nodes").await.json().as_array().map(Vec::len), Some(1));
    assert_eq!(c.get("/v1/node/pool/all/nodes").await.json().as_array().map(Vec::len), Some(1));
    assert_eq!(c.get("/v1/node/pool/default/jobs").await.json()[0]["ID"], "web");
    let raw = c.put("/v1/search", &json!({"Prefix": n.id.to_string()[..7], "Context": "nodes"})).await;
    assert_eq!(raw.json()["Matches"]["nodes"], json!([n.id]));
    // The node advertises an address where nobody listens.
    let raw = c.get(&format!("/v1/client/stats?node_id={}", n.id)).await;
    assert!(
        raw.status == StatusCode::INTERNAL_SERVER_ERROR
            && raw.text().starts_with("No path to node: one at 127.0.0.1:1"),
        "{}",
        raw.text()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_drain_of_a_node_that_shuts_down_leaves_that_of_a_person_alone() {
    let c = Cluster::start().await;
    let n = FakeNode::join(&c, node("one")).await;
    let path = format!("/v1/node/{}", n.id);
    c.register(&job("web", 1)).await;
    c.until("/v1/job/web/allocations", "running", |l| l[0]["ClientStatus"] == "running").await;
    let drain = async |body: Value| {
        c.done(&format!("{path}/drain"), &body).await;
        c.get(&path).await.json()["DrainStrategy"].clone()
    };
    let spec = |hours: i64| json!({"Deadline": hours * 3_600_000_000_000, "IgnoreSystemJobs": false});
    let ordered = drain(json!({ "DrainSpec": spec(1) })).await;
    let own = json!({"DrainSpec": spec(2), "OnlyIfNotDraining": true});
    assert_eq!(drain(own.clone()).await, ordered, "it goes on as it was ordered");
    assert_eq!(drain(json!({"DrainSpec": null, "MarkEligible": true})).await, Value::Null);
    assert_eq!(drain(own).await["Deadline"], json!(2 * 3_600_000_000_000_i64), "without one it begins");
    c.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_agent_and_its_operator() {
    let c = Cluster::start().await;
    let rpc = c.server.handle().rpc_addr().to_string();
    for (path, answer) in [
        ("/v1/regions", json!(["global"])),
        ("/v1/status/leader", json!(rpc)),
        ("/v1/status/peers", json!([rpc])),
        ("/v1/agent/servers", json!([rpc])),
    ] {
        assert_eq!(c.get(path).await.json(), answer, "{path}");
    }
    let health = c.get("/v1/agent/health").await.json();
    assert_eq!(
        (&health["server"]["ok"], &health["server"]["message"], health.get("client")),
        (&json!(true), &json!("ok"), None)
    );
    let loops: Vec<_> =
        health["server"]["loops"].as_array().unwrap().iter().filter_map(|l| l["name"].as_str()).collect();
    for name in [
        "blocked",
        "broker",
        "collection",
        "commit",
        "deployments",
        "drainer",
        "leases",
        "store",
        "supervision",
        "sweep",
    ] {
        assert!(loops.contains(&name), "{name} tells nothing of its progress: {loops:?}");
    }
    assert!(
        health["server"]["loops"][0]["last_progress_ms"].is_u64() && health["server"]["loops"][0]["status"].is_string(),
        "{health}"
    );
    let raw = c.get("/v1/agent/health?type=client").await;
    assert_eq!(
        (raw.status.as_u16(), raw.text().as_str()),
        (500, r#"{"client":{"ok":false,"message":"client not enabled"}}"#)
    );
    let me = c.get("/v1/agent/self").await.json();
    assert_eq!((&me["member"]["Status"], &me["member"]["Tags"]["region"]), (&json!("alive"), &json!("global")));
    assert!(me["config"]["Version"]["Version"].is_string() && me["stats"]["raft"]["applied_index"].is_string(), "{me}");
    let members = c.get("/v1/agent/members").await.json();
    assert_eq!((&members["ServerRegion"], members["Members"].as_array().map(Vec::len)), (&json!("global"), Some(1)));
    let raw = c.put("/v1/agent/join?address=10.0.0.1", &Value::Null).await;
    assert_eq!((raw.status.as_u16(), &raw.json()["num_joined"]), (200, &json!(0)));
    c.done("/v1/agent/force-leave?node=unknown", &Value::Null).await;

    let raw = c.put("/v1/system/gc", &Value::Null).await;
    assert_eq!((raw.status.as_u16(), raw.text().as_str()), (200, ""));
    let config = c.get("/v1/operator/scheduler/configuration").await.json();
    assert_eq!(
        (&config["SchedulerConfig"]["SchedulerAlgorithm"], &config["KnownLeader"]),
        (&json!("binpack"), &json!(true))
    );
    let mut changed = config["SchedulerConfig"].clone();
    changed["SchedulerAlgorithm"] = json!("spread");
    let index = &config["SchedulerConfig"]["ModifyIndex"];
    let raw = c.put("/v1/operator/scheduler/configuration?cas=999999", &changed).await;
    assert_eq!(raw.json()["Updated"], json!(false), "{}", raw.text());
    let raw = c.put(&format!("/v1/operator/scheduler/configuration?cas={index}"), &changed).await;
    assert_eq!(raw.json()["Updated"], json!(true), "{}", raw.text());
    assert_eq!(
        c.get("/v1/operator/scheduler/configuration").await.json()["SchedulerConfig"]["SchedulerAlgorithm"],
        "spread"
    );
    let raft = c.get("/v1/operator/raft/configuration").await.json();
    assert_eq!((&raft["Servers"][0]["Leader"], &raft["Servers"][0]["Address"]), (&json!(true), &json!(rpc)));
    let health = c.get("/v1/operator/autopilot/health").await.json();
    assert_eq!((&health["Healthy"], &health["FailureTolerance"]), (&json!(true), &json!(0)), "{health}");
    let (alone, store) = (&health["Servers"][0], &health["Store"]);
    assert_eq!(
        (&alone["ID"], &alone["LastContact"], &health["Leader"]),
        (&raft["Servers"][0]["ID"], &json!("0s"), &alone["ID"])
    );
    assert!(alone["LastIndex"].as_u64() > Some(0) && alone["Version"].is_string(), "{health}");
    assert_eq!((&store["Kind"], &store["Healthy"], &store["Members"]), (&json!("memory"), &json!(true), &Value::Null));
    let raw = c.put("/v1/operator/raft/transfer-leadership", &Value::Null).await;
    assert_eq!((raw.status, raw.text().contains("is alone")), (StatusCode::NOT_IMPLEMENTED, true), "{}", raw.text());
    let raw = c.send(Method::DELETE, "/v1/operator/raft/peer?id=nobody", &[], "").await;
    assert_eq!(
        (raw.status.as_u16(), raw.text().as_str()),
        (500, "id \"nobody\" was not found in the Raft configuration")
    );
    assert_eq!(c.get("/v1/namespace/default").await.json()["Name"], "default");

    c.register(&job("measured", 0)).await;
    let metrics = c.get("/v1/metrics").await.json();
    assert!(
        metrics["Gauges"].as_array().is_some_and(|g| g.iter().any(|g| g["Name"] == "nomad.nomad.broker.total_ready")),
        "{metrics}"
    );
    assert!(["Points", "Counters", "Samples"].iter().all(|k| metrics[k].is_array()), "{metrics}");
    let sample = |metrics: &Value, name: &str| {
        metrics["Samples"].as_array().into_iter().flatten().find(|s| s["Name"] == name).cloned().unwrap_or_default()
    };
    // The end of the evaluation is measured right after it can be seen.
    let metrics = testkit::poll("a measured plan", async || {
        let metrics = c.get("/v1/metrics").await.json();
        if sample(&metrics, "nomad.nomad.plan.submit").is_object() { Ok(metrics) } else { Err(metrics) }
    })
    .await;
    let asked = sample(&metrics, "drover.http.request");
    assert!(
        asked["Count"].as_u64() > Some(0)
            && asked["Max"].as_f64() >= asked["Mean"].as_f64()
            && asked["Sum"].as_f64() > Some(0.0),
        "{metrics}"
    );
    assert!(sample(&metrics, "nomad.nomad.worker.invoke_scheduler.service")["Stddev"].is_number(), "{metrics}");
    assert!(sample(&metrics, "drover.store.commit")["Count"].as_u64() > Some(0), "{metrics}");
    let text = c.get("/v1/metrics?format=prometheus").await.text();
    assert!(text.contains("# TYPE nomad_nomad_broker_total_ready gauge\nnomad_nomad_broker_total_ready "), "{text}");
    assert!(text.contains("job=\"measured\""), "{text}");
    assert!(text.contains("# TYPE nomad_nomad_plan_submit summary\nnomad_nomad_plan_submit_sum "), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn remote_tasks_are_shown_with_what_is_promised() {
    let c = Cluster::start().await;
    let mut n = node("manager");
    let provider = RemoteProvider {
        provider: "fake:one".into(),
        keyed_create: true,
        find: true,
        list: true,
        retained_exit_results: true,
        handle_schema_min: 1,
        handle_schema_max: 1,
        ..RemoteProvider::default()
    };
    let driver = DriverInfo { detected: true, healthy: true, remote: Some(provider), ..DriverInfo::default() };
    n.drivers.insert("far".into(), driver);
    n.attributes.insert("driver.far".into(), "1".into());
    let n = FakeNode::join(&c, n).await;
    let mut far = job("far/job", 1);
    far.task_groups[0].tasks[0].driver = "far".into();
    c.register(&far).await;
    let list = c.until("/v1/remote/tasks", "managed", |l| l[0]["ManagerName"] == "manager").await;
    let slot = "default/far/job.web[0]/server";
    assert_eq!(
        (&list[0]["SlotName"], &list[0]["Epoch"], &list[0]["Unmanaged"]),
        (&json!(slot), &json!(1), &json!(false)),
        "{list}"
    );
    assert_eq!((&list[0]["Manager"]["NodeID"], &list[0]["UnmanagedSince"]), (&json!(n.id), &json!(0)));
    let jobs = c.get("/v1/jobs").await.json();
    assert!(jobs[0]["ID"] == "far/job" && jobs[0].get("Unmanaged").is_none(), "{jobs}");
    let guarantee = &list[0]["Guarantee"];
    assert_eq!(
        (&guarantee["Level"], &guarantee["ExactlyOne"], &guarantee["Fenced"]),
        (&json!("keyed-only"), &json!(false), &json!(false))
    );
    let one = c.get(&format!("/v1/remote/task/{slot}")).await;
    assert_eq!((one.status, &one.json()["Slot"]["JobID"]), (StatusCode::OK, &json!("far/job")));
    assert!(one.header("x-nomad-index").parse::<u64>().is_ok_and(|i| i > 0));
    for (query, found) in [
        ("job=far%2Fjob", 1),
        ("job=other", 0),
        ("namespace=other", 0),
        ("prefix=default/far", 1),
        ("filter=Guarantee.Level%20==%20%60keyed-only%60", 1),
        ("filter=Unmanaged%20==%20true", 0),
    ] {
        let list = c.get(&format!("/v1/remote/tasks?{query}")).await.json();
        assert_eq!(list.as_array().map(Vec::len), Some(found), "{query}: {list}");
    }
    assert_eq!(c.get("/v1/job/far/job").await.json()["RemoteTasks"][0]["SlotName"], slot);
    let allocs = c.get("/v1/job/far/job/allocations").await.json();
    let alloc = c.get(&format!("/v1/allocation/{}", allocs[0]["ID"].as_str().expect("id"))).await.json();
    assert_eq!(alloc["RemoteTasks"][0]["ManagerName"], "manager", "{alloc}");
    assert_eq!(alloc["Remote"]["server"], list[0]["IncarnationID"], "the instance that it has now: {alloc}");
    // What the provider leaves open is said before anything runs: this one refuses no stale epoch and seals no key.
    let limits = guarantee["Limits"].as_array().expect("a list");
    assert_eq!(limits.len(), 2, "{guarantee}");
    let plan = c.put("/v1/job/far%2Fjob/plan", &json!({"Job": far, "Diff": false})).await.json();
    let warnings = plan["Warnings"].as_str().unwrap_or_default();
    assert!(warnings.contains("driver \"far\" (server)") && warnings.contains("cannot refuse it"), "{plan}");
    // Verbs of people: refused with the reason where they make no sense, carried out where they do.
    for (verb, path) in
        [(Method::PUT, "/v1/remote/restart/"), (Method::PUT, "/v1/remote/gone/"), (Method::DELETE, "/v1/remote/task/")]
    {
        let raw = c.send(verb.clone(), &format!("{path}default/no.web[0]/server"), &[], "").await;
        assert_eq!(
            (raw.status, raw.text().as_str()),
            (StatusCode::NOT_FOUND, "remote task not found"),
            "{verb} {path}"
        );
    }
    let raw = c.send(Method::DELETE, &format!("/v1/remote/task/{slot}"), &[], "").await;
    assert!(raw.status == StatusCode::OK && raw.json()["Index"].as_u64().is_some_and(|i| i > 0), "{}", raw.text());
    let text = c.get("/v1/metrics?format=prometheus").await.text();
    assert!(text.contains("drover_remote_unmanaged 0\n"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn introduction_tokens_are_made_for_a_name_a_pool_and_a_time() {
    let c = Cluster::start().await;
    let path = "/v1/acl/identity/client-introduction-token";
    let made = |raw: Raw| {
        assert_eq!(raw.status, StatusCode::OK, "{}", raw.text());
        let token = raw.json()["JWT"].as_str().expect("a token").to_owned();
        let claims = c.server.handle().keyring().verify(&token).expect("signed");
        let life = claims["exp"].as_i64().expect("exp") - claims["iat"].as_i64().expect("iat");
        (claims["nomad_node_name"].clone(), claims["nomad_node_pool"].clone(), life)
    };
    // The servers' defaults, seconds rounded up; both forms of a time; the longest.
    for (body, name, pool, life) in [
        (json!({}), Value::Null, "default", 300),
        (json!({"NodeName": "n1", "NodePool": "gpu", "TTL": "10m"}), json!("n1"), "gpu", 600),
        (json!({"NodePool": "gpu", "TTL": 60_000_000_000_i64}), Value::Null, "gpu", 60),
        (json!({"TTL": "24h"}), Value::Null, "default", 1800),
    ] {
        let (named, into, lives) = made(c.put(path, &body).await);
        assert_eq!((named, into), (name, json!(pool)), "{body}");
        assert!((life..=life + 1).contains(&lives), "{body}: {lives}");
    }
    for (body, part) in [(json!({"NodePool": "all"}), "\"all\""), (json!({"TTL": "-1s"}), "TTL must not be below 0")] {
        let raw = c.put(path, &body).await;
        assert!(raw.status == StatusCode::BAD_REQUEST && raw.text().contains(part), "{body}: {}", raw.text());
    }
}

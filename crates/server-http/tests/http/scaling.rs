//! Scaling over HTTP: what is asked of counts, what stands in the record of it, and the policies that autoscalers read.

use http::StatusCode;
use serde_json::{Value, json};

use crate::cluster::{Cluster, FakeNode, node};

fn scalable(id: &str, kind: &str) -> Value {
    let scaling = json!({"Min": 1, "Max": 4, "Policy": {"cooldown": "1m"}});
    json!({
        "ID": id, "Name": id, "Type": kind, "Datacenters": ["dc1"],
        "TaskGroups": [{
            "Name": "web", "Count": 2, "Scaling": if kind == "system" { Value::Null } else { scaling },
            "Tasks": [{"Name": "server", "Driver": "mock", "Resources": {"CPU": 100, "MemoryMB": 64}}],
        }],
    })
}

fn ask(job: &str, more: Value) -> Value {
    let mut body = json!({"Target": {"Job": job, "Group": "web"}});
    if let (Value::Object(body), Value::Object(more)) = (&mut body, more) {
        body.extend(more);
    }
    body
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_request_is_put_on_record() {
    let c = Cluster::start().await;
    let _n = FakeNode::join(&c, node("one")).await;
    c.register(&scalable("web", "service")).await;
    c.until("/v1/job/web/deployment", "successful", |d| d["Status"] == "successful").await;
    let index = c.get("/v1/job/web").await.json()["JobModifyIndex"].as_u64().expect("an index");

    let text = c.put("/v1/job/web/scale", &ask("web", json!({"Message": "nothing to do", "Meta": {"cpu": 40}}))).await;
    assert_eq!((text.status, &text.json()["EvalID"]), (StatusCode::OK, &json!("")), "{}", text.text());
    let failed = c.put("/v1/job/web/scale", &ask("web", json!({"Message": "no metrics", "Error": true}))).await;
    assert_eq!(failed.status, StatusCode::OK, "{}", failed.text());
    let up =
        c.put("/v1/job/web/scale", &ask("web", json!({"Count": 3, "Message": "busy", "JobModifyIndex": index}))).await;
    assert_eq!(up.status, StatusCode::OK, "{}", up.text());

    let status = c.until("/v1/job/web/scale", "scaled", |s| s["TaskGroups"]["web"]["Running"] == 3).await;
    let events = status["TaskGroups"]["web"]["Events"].as_array().cloned().expect("events");
    let told: Vec<_> = events.iter().map(|e| (&e["Message"], &e["Count"], &e["PreviousCount"], &e["Error"])).collect();
    assert_eq!(
        told,
        [
            (&json!("busy"), &json!(3), &json!(2), &json!(false)),
            (&json!("no metrics"), &Value::Null, &json!(2), &json!(true)),
            (&json!("nothing to do"), &Value::Null, &json!(2), &json!(false)),
        ]
    );
    assert_eq!((&events[0]["EvalID"], &events[1]["EvalID"]), (&up.json()["EvalID"], &Value::Null));
    assert_eq!((&events[2]["Meta"], &events[0]["Meta"]), (&json!({"cpu": 40}), &Value::Null));
    assert!(
        events[0]["Time"].as_i64() > events[2]["Time"].as_i64() && events[0]["CreateIndex"] == up.json()["Index"],
        "{events:?}"
    );

    // What is refused, with the status that clients go by; nothing of it is put on record.
    c.until("/v1/job/web/deployment", "successful", |d| d["Status"] == "successful").await;
    for (body, status, why) in [
        (ask("web", json!({"Count": 2, "JobModifyIndex": index})), 500, "conflicting job modify index"),
        (ask("web", json!({"Count": 5})), 400, "greater than scaling policy maximum: 5 > 4"),
        (ask("web", json!({"Count": 0})), 400, "less than scaling policy minimum: 0 < 1"),
        (ask("web", json!({"Count": -1})), 400, "can't be negative"),
        (ask("web", json!({"Count": 1, "Error": true})), 400, "should not contain count"),
        (json!({"Target": {"Job": "web", "Group": "x"}, "Count": 1}), 400, "does not exist in job"),
        (ask("other", json!({"Count": 1})), 400, "did not match URL"),
    ] {
        let raw = c.put("/v1/job/web/scale", &body).await;
        assert!(raw.status.as_u16() == status && raw.text().contains(why), "{body}: {} {}", raw.status, raw.text());
    }
    assert_eq!(c.put("/v1/job/none/scale", &ask("none", json!({"Count": 1}))).await.status, StatusCode::NOT_FOUND);
    assert_eq!(
        c.get("/v1/job/web/scale").await.json()["TaskGroups"]["web"]["Events"].as_array().map(Vec::len),
        Some(3)
    );

    // With the job goes its record.
    c.send(http::Method::DELETE, "/v1/job/web?purge=true", &[], String::new()).await;
    c.register(&scalable("web", "service")).await;
    assert_eq!(c.get("/v1/job/web/scale").await.json()["TaskGroups"]["web"]["Events"], Value::Null);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rollout_holds_scaling_up_and_canaries_are_not_counted() {
    let c = Cluster::start().await;
    let _n = FakeNode::join(&c, node("one")).await;
    let mut web = scalable("web", "service");
    c.register(&web).await;
    c.until("/v1/job/web/deployment", "successful", |d| d["Status"] == "successful").await;
    web["TaskGroups"][0]["Update"] = json!({"Canary": 1});
    web["TaskGroups"][0]["Tasks"][0]["Env"] = json!({"v": "2"});
    c.register(&web).await;
    let three =
        |l: &Value| l.as_array().is_some_and(|l| l.iter().filter(|a| a["ClientStatus"] == "running").count() == 3);
    c.until("/v1/job/web/allocations", "a canary runs", three).await;
    let group = c.get("/v1/job/web/scale").await.json()["TaskGroups"]["web"].clone();
    assert_eq!((&group["Placed"], &group["Running"], &group["Healthy"]), (&json!(2), &json!(2), &json!(2)), "{group}");
    let raw = c.put("/v1/job/web/scale", &ask("web", json!({"Count": 3}))).await;
    assert_eq!((raw.status.as_u16(), raw.text().as_str()), (400, "job scaling blocked due to active deployment"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_of_every_node_are_switched_on_and_off() {
    let c = Cluster::start().await;
    let _n = FakeNode::join(&c, node("one")).await;
    let mut agent = scalable("agent", "system");
    agent["TaskGroups"][0]["Count"] = json!(1);
    c.register(&agent).await;
    let live = |l: &Value| l.as_array().map_or(0, |l| l.iter().filter(|a| a["DesiredStatus"] == "run").count());
    c.until("/v1/job/agent/allocations", "placed", |l| live(l) == 1).await;
    let raw = c.put("/v1/job/agent/scale", &ask("agent", json!({"Count": 2}))).await;
    assert!(raw.status == StatusCode::BAD_REQUEST && raw.text().contains("between 0 and 1"), "{}", raw.text());
    c.done("/v1/job/agent/scale", &ask("agent", json!({"Count": 0}))).await;
    c.until("/v1/job/agent/allocations", "off", |l| live(l) == 0).await;
    c.done("/v1/job/agent/scale", &ask("agent", json!({"Count": 1}))).await;
    c.until("/v1/job/agent/allocations", "on", |l| live(l) == 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn policies_are_listed_and_keep_their_ids() {
    let c = Cluster::start().await;
    assert_eq!(c.get("/v1/scaling/policies").await.json(), json!([]));
    let mut web = scalable("web", "service");
    for job in [&web, &scalable("batch", "batch")] {
        c.register(&job).await;
    }
    assert_eq!(c.get("/v1/scaling/policies").await.json().as_array().map(Vec::len), Some(2));
    let listed = c.get("/v1/scaling/policies?job=web&type=hori").await.json();
    let target = json!({"Namespace": "default", "Job": "web", "Group": "web"});
    assert_eq!((&listed[0]["Target"], &listed[0]["Enabled"], &listed[1]), (&target, &json!(true), &Value::Null));
    assert_eq!(c.get("/v1/scaling/policies?type=vertical").await.json(), json!([]));
    let path = format!("/v1/scaling/policy/{}", listed[0]["ID"].as_str().expect("an id"));
    let policy = c.get(&path).await.json();
    assert_eq!(
        (&policy["Type"], &policy["Min"], &policy["Max"], &policy["Policy"], &policy["Target"]),
        (&json!("horizontal"), &json!(1), &json!(4), &json!({"cooldown": "1m"}), &target)
    );
    // Another count is another version of the job with the same policy; other bounds are a changed one.
    web["TaskGroups"][0]["Count"] = json!(1);
    c.register(&web).await;
    assert_eq!(c.get(&path).await.json(), policy);
    assert_eq!(c.get("/v1/job/web").await.json()["Version"], 1);
    let plan = c.put("/v1/job/web/plan", &json!({"Job": web, "Diff": true})).await.json();
    assert_eq!(plan["Diff"]["Type"], "None", "{plan}");
    web["TaskGroups"][0]["Scaling"]["Max"] = json!(9);
    c.register(&web).await;
    let changed = c.get(&path).await.json();
    assert_eq!((&changed["Max"], &changed["CreateIndex"]), (&json!(9), &policy["CreateIndex"]));
    assert!(changed["ModifyIndex"].as_u64() > policy["ModifyIndex"].as_u64(), "{changed}");
    let raw = c.get("/v1/scaling/policy/none").await;
    assert_eq!((raw.status.as_u16(), raw.text().as_str()), (404, "policy not found"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn switched_off_registrations_stop_scaling_and_dispatch_too() {
    let c = Cluster::start().await;
    c.register(&scalable("web", "service")).await;
    let mut mail = scalable("mail", "batch");
    mail["ParameterizedJob"] = json!({});
    c.register(&mail).await;
    let settings = json!({"SchedulerAlgorithm": "binpack", "RejectJobRegistration": true});
    c.done("/v1/operator/scheduler/configuration", &settings).await;
    for (path, body) in [
        ("/v1/jobs", json!({"Job": scalable("new", "service")})),
        ("/v1/job/web/scale", ask("web", json!({"Count": 3}))),
        ("/v1/job/mail/dispatch", json!({})),
    ] {
        let raw = c.put(path, &body).await;
        assert!(
            raw.status == StatusCode::FORBIDDEN && raw.text().contains("disabled"),
            "{path}: {} {}",
            raw.status,
            raw.text()
        );
    }
    let raw = c.put("/v1/operator/scheduler/configuration", &json!({"NodeLimitForFeasibilityChecks": 5})).await;
    assert!(
        raw.status == StatusCode::BAD_REQUEST && raw.text().contains("NodeLimitForFeasibilityChecks"),
        "{}",
        raw.text()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_registration_may_keep_what_was_scaled() {
    let c = Cluster::start().await;
    let mut web = scalable("web", "service");
    c.register(&web).await;
    web["TaskGroups"][0]["Count"] = json!(4);
    web["TaskGroups"][0]["Tasks"][0]["Resources"]["CPU"] = json!(900);
    web["TaskGroups"][0]["Tasks"][0]["Env"] = json!({"v": "2"});
    c.done("/v1/jobs", &json!({"Job": web, "PreserveCounts": true, "PreserveResources": true})).await;
    let group = c.get("/v1/job/web").await.json()["TaskGroups"][0].clone();
    assert_eq!((&group["Count"], &group["Tasks"][0]["Resources"]["CPU"]), (&json!(2), &json!(100)));
    assert_eq!(group["Tasks"][0]["Env"], json!({"v": "2"}));
}

//! The life of a job as clients see it.

use std::time::{Duration, Instant};

use api::{RequestOptions, client::Answer};
use http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::cluster::{Cluster, FakeNode, job, node};

const JOB_FILE: &str = r#"
variable "count" { default = 1 }
job "from-file" {
  group "web" {
    count = var.count
    task "server" {
      driver = "mock"
      config { run_for = "1h" }
    }
  }
}
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn from_registration_to_purge() {
    let c = Cluster::start().await;
    let n = FakeNode::join(&c, node("one")).await;

    // Text → job → plan → registration.
    let parsed =
        c.done("/v1/jobs/parse", &json!({"JobHCL": JOB_FILE, "Variables": "count = 2", "Canonicalize": true})).await;
    assert_eq!(
        (&parsed["ID"], &parsed["TaskGroups"][0]["Count"], &parsed["Priority"]),
        (&json!("from-file"), &json!(2), &json!(50))
    );
    assert_eq!(parsed["TaskGroups"][0]["Consul"], json!({"Namespace": "", "Cluster": "default", "Partition": ""}));
    let plain = c.put("/v1/jobs/parse", &json!({"JobHCL": JOB_FILE, "Variables": "count = 2\nother = 3"})).await.json();
    assert_eq!(
        (&plain["Priority"], &plain["Datacenters"], &plain["TaskGroups"][0]["Consul"]),
        (&Value::Null, &Value::Null, &Value::Null)
    );
    let raw = c.put("/v1/validate/job", &json!({"Job": parsed})).await;
    assert_eq!((raw.status, &raw.json()["Error"]), (StatusCode::OK, &json!("")), "{}", raw.text());
    let raw = c.put("/v1/validate/job", &json!({"Job": {"ID": "x", "Type": "nonsense"}})).await;
    let verdict = raw.json();
    assert!(
        raw.status == StatusCode::OK && verdict["ValidationErrors"].as_array().is_some_and(|e| !e.is_empty()),
        "{verdict}"
    );
    assert!(verdict["Error"].as_str().is_some_and(|e| e.contains("error")), "{verdict}");
    let plan = c.done("/v1/job/from-file/plan", &json!({"Job": parsed, "Diff": true})).await;
    assert_eq!((&plan["JobModifyIndex"], &plan["Diff"]["Type"]), (&json!(0), &json!("Added")), "{plan}");
    assert_eq!(plan["Annotations"]["DesiredTGUpdates"]["web"]["Place"], json!(2), "{plan}");

    let body = json!({"Job": parsed, "EnforceIndex": true, "JobModifyIndex": 0,
        "Submission": {"Source": JOB_FILE, "Format": "hcl2"}});
    let raw = c.send(Method::POST, "/v1/jobs", &[], body.to_string()).await;
    assert_eq!(raw.status, StatusCode::OK, "{}", raw.text());
    let made = raw.json();
    assert_eq!(raw.header("x-nomad-index"), made["Index"].to_string());
    assert_eq!((raw.header("x-nomad-knownleader"), &made["Warnings"]), ("", &json!("")));
    assert_eq!(c.put("/v1/jobs", &body).await.status, StatusCode::INTERNAL_SERVER_ERROR, "the index is enforced");

    let eval_id = made["EvalID"].as_str().expect("an evaluation").to_owned();
    let eval =
        c.until(&format!("/v1/evaluation/{eval_id}?related=true"), "complete", |e| e["Status"] == "complete").await;
    assert_eq!((&eval["TriggeredBy"], &eval["WaitUntil"]), (&json!("job-register"), &json!("0001-01-01T00:00:00Z")));
    assert!(eval["RelatedEvals"].is_null() || eval["RelatedEvals"].is_array());
    assert_eq!(c.get(&format!("/v1/evaluation/{eval_id}/allocations")).await.json().as_array().map(Vec::len), Some(2));

    let running = |list: &Value| {
        list.as_array().is_some_and(|l| l.len() == 2 && l.iter().all(|a| a["ClientStatus"] == "running"))
    };
    let allocs = c.until("/v1/job/from-file/allocations", "running", running).await;
    assert_eq!((&allocs[0]["JobType"], &allocs[0]["NodeName"]), (&json!("service"), &json!("one")));
    assert_eq!(allocs[0]["TaskStates"]["server"]["State"], "running");
    for path in ["/v1/job/from-file/allocations?task_states=false", "/v1/allocations?task_states=false"] {
        assert_eq!(c.get(path).await.json()[0]["TaskStates"], Value::Null, "{path}");
    }
    // Ours: in pages, the last first where that is asked for.
    let answer = c.get("/v1/job/from-file/allocations?per_page=1&reverse=true").await;
    let next = answer.header("x-nomad-nexttoken").to_owned();
    assert_ne!(next, "", "there is another page");
    let rest = c.get(&format!("/v1/job/from-file/allocations?per_page=1&reverse=true&next_token={next}")).await;
    assert_eq!(rest.header("x-nomad-nexttoken"), "");
    let mut ids = [answer, rest].map(|page| page.json()[0]["ID"].clone());
    ids.reverse();
    let mut all = [&allocs[0]["ID"], &allocs[1]["ID"]].map(Clone::clone);
    all.sort_by_key(ToString::to_string);
    assert_eq!(ids, all, "of one evaluation: by id");
    let none = c.get("/v1/job/from-file/allocations?filter=ClientStatus==failed").await;
    assert_eq!(none.json(), json!([]));
    // Ours: of a node the rows alone.
    let rows = c.get(&format!("/v1/node/{}/allocations?stubs=true", n.id)).await.json();
    assert!(rows[0]["NodeName"] == "one" && rows[0]["Job"].is_null() && rows[0]["TaskStates"].is_null(), "{rows}");
    assert!(rows[0]["AllocatedResources"]["Tasks"]["server"].is_object(), "{rows}");
    assert!(c.get(&format!("/v1/node/{}/allocations", n.id)).await.json()[0]["Job"].is_object());
    let alloc_id = allocs[0]["ID"].as_str().expect("id").to_owned();
    let alloc = c.get(&format!("/v1/allocation/{alloc_id}")).await.json();
    assert_eq!((&alloc["Job"]["ID"], &alloc["NodeID"]), (&json!("from-file"), &json!(n.id)));
    assert_eq!(alloc["TaskStates"]["server"]["State"], "running");

    // Everything that is asked of a job.
    let got = c.get("/v1/job/from-file").await.json();
    assert_eq!((&got["Status"], &got["Version"], &got["Periodic"]), (&json!("running"), &json!(0), &Value::Null));
    assert_eq!(got["TaskGroups"][0]["RestartPolicy"]["Attempts"], json!(2), "defaults are filled in");
    let stub = c.get("/v1/jobs?prefix=from&meta=true").await.json();
    assert_eq!(
        (&stub[0]["ID"], &stub[0]["Periodic"], &stub[0]["ParameterizedJob"]),
        (&json!("from-file"), &json!(false), &json!(false))
    );
    assert_eq!(stub[0]["JobSummary"]["Summary"]["web"]["Running"], json!(2));
    assert_eq!(c.get("/v1/job/from-file/summary").await.json()["Summary"]["web"]["Running"], json!(2));
    assert_eq!(c.get("/v1/job/from-file/evaluations").await.json()[0]["JobID"], "from-file");
    assert_eq!(c.get("/v1/job/from-file/submission?version=0").await.json()["Source"], JOB_FILE);
    let deployment = c.until("/v1/job/from-file/deployment", "successful", |d| d["Status"] == "successful").await;
    let deployment_id = deployment["ID"].as_str().expect("id").to_owned();
    assert_eq!(
        c.get(&format!("/v1/deployment/allocations/{deployment_id}")).await.json().as_array().map(Vec::len),
        Some(2)
    );
    assert_eq!(
        c.get(&format!("/v1/deployments?prefix={}", &deployment_id[..8])).await.json()[0]["ID"],
        deployment_id.as_str()
    );
    for (verb, body, text) in [
        ("fail", json!({}), "can't fail terminal deployment"),
        ("pause", json!({"DeploymentID": deployment_id, "Pause": true}), "can't pause terminal deployment"),
    ] {
        let raw = c.put(&format!("/v1/deployment/{verb}/{deployment_id}"), &body).await;
        assert_eq!((raw.status.as_u16(), raw.text().as_str()), (500, text));
    }
    let scale = c.get("/v1/job/from-file/scale").await.json();
    assert_eq!(
        (&scale["TaskGroups"]["web"]["Desired"], &scale["TaskGroups"]["web"]["Running"]),
        (&json!(2), &json!(2))
    );
    let raw = c.put("/v1/job/from-file/dispatch", &json!({})).await;
    assert_eq!(
        (raw.status.as_u16(), raw.text().as_str()),
        (500, "Specified job \"from-file\" is not a parameterized job")
    );
    let raw = c.put("/v1/job/from-file/periodic/force", &json!({})).await;
    assert_eq!((raw.status.as_u16(), raw.text().as_str()), (500, "can't force launch non-periodic job \"from-file\""));

    // Writes.
    c.done(
        "/v1/job/from-file/scale",
        &json!({"Target": {"Job": "from-file", "Group": "web"}, "Count": 3, "Message": "more"}),
    )
    .await;
    c.until("/v1/job/from-file/allocations", "three", |l| {
        l.as_array().is_some_and(|l| l.iter().filter(|a| a["ClientStatus"] == "running").count() == 3)
    })
    .await;
    let versions = c.get("/v1/job/from-file/versions?diffs=true").await.json();
    assert_eq!(
        (versions["Versions"].as_array().map(Vec::len), versions["Diffs"].as_array().map(Vec::len)),
        (Some(2), Some(1)),
        "{versions}"
    );
    assert_eq!(versions["Diffs"][0]["Type"], "Edited");
    c.done("/v1/job/from-file/stable", &json!({"JobID": "from-file", "JobVersion": 0, "Stable": true})).await;
    let raw = c
        .put("/v1/job/from-file/revert", &json!({"JobID": "from-file", "JobVersion": 0, "EnforcePriorVersion": 9}))
        .await;
    assert_eq!(raw.status, StatusCode::INTERNAL_SERVER_ERROR, "{}", raw.text());
    let raw = c.put("/v1/job/from-file/revert", &json!({"JobID": "from-file", "JobVersion": 1})).await;
    assert_eq!(raw.status, StatusCode::INTERNAL_SERVER_ERROR, "it is the current version: {}", raw.text());
    c.done("/v1/job/from-file/revert", &json!({"JobID": "from-file", "JobVersion": 0})).await;
    c.done("/v1/job/from-file/evaluate", &json!({"JobID": "from-file", "EvalOptions": {"ForceReschedule": true}}))
        .await;
    let raw = c.send(Method::POST, &format!("/v1/allocation/{alloc_id}/stop"), &[], "").await;
    assert!(raw.status == StatusCode::OK && raw.json()["EvalID"].is_string(), "{}", raw.text());

    let raw = c
        .send(
            Method::DELETE,
            "/v1/job/from-file?purge=false&global=false&eval_priority=0&no_shutdown_delay=false",
            &[],
            "",
        )
        .await;
    assert_eq!(raw.status, StatusCode::OK, "{}", raw.text());
    c.until("/v1/job/from-file", "dead", |j| j["Status"] == "dead" && j["Stop"] == true).await;
    let raw = c.send(Method::DELETE, "/v1/job/from-file?purge=true", &[], "").await;
    assert_eq!(raw.status, StatusCode::OK, "{}", raw.text());
    assert_eq!(c.get("/v1/job/from-file").await.status, StatusCode::NOT_FOUND);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocking_queries_wake_and_time_out() {
    let c = Cluster::start().await;
    let index: u64 = c.get("/v1/jobs").await.header("x-nomad-index").parse().expect("index");
    let started = Instant::now();
    let waiting = {
        let client = c.client.clone();
        tokio::spawn(async move {
            client.query::<Value>("/v1/jobs", &RequestOptions::after(index, Duration::from_secs(60))).await
        })
    };
    // An object that does not exist yet is waited for as well.
    let missing: u64 = c.get("/v1/job/later").await.header("x-nomad-index").parse().expect("index");
    let appearing = {
        let client = c.client.clone();
        tokio::spawn(async move {
            client.query::<Value>("/v1/job/later", &RequestOptions::after(missing, Duration::from_secs(60))).await
        })
    };
    c.register(&job("later", 0)).await;
    let answer: Answer<Value> = waiting.await.expect("task").expect("answer");
    assert!(answer.meta.index > index && answer.value[0]["ID"] == "later", "{answer:?}");
    assert_eq!(appearing.await.expect("task").expect("answer").value["ID"], "later");
    assert!(started.elapsed() < Duration::from_secs(30));

    let index: u64 = c.get("/v1/nodes").await.header("x-nomad-index").parse().expect("index");
    let started = Instant::now();
    let raw = c.get(&format!("/v1/nodes?index={index}&wait=160ms")).await;
    assert_eq!(raw.header("x-nomad-index"), index.to_string(), "nothing changed: the same index");
    assert!(started.elapsed() >= Duration::from_millis(160));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_are_filtered_and_paged_and_ids_may_hold_anything() {
    let c = Cluster::start().await;
    for id in ["a", "b", "c/d", "c/d/plan", "e%g", "z"] {
        c.register(&job(id, 0)).await;
    }
    let ids = |v: &Value| -> Vec<String> {
        v.as_array().expect("list").iter().map(|j| j["ID"].as_str().expect("id").to_owned()).collect()
    };
    for (query, wanted, token) in [
        ("", vec!["a", "b", "c/d", "c/d/plan", "e%g", "z"], ""),
        ("per_page=2", vec!["a", "b"], "default.c/d"),
        ("per_page=2&next_token=default.c%2Fd", vec!["c/d", "c/d/plan"], "default.e%g"),
        ("per_page=2&next_token=default.zz", vec![], ""),
        ("reverse=true&per_page=1", vec!["z"], "default.e%g"),
        ("prefix=c/", vec!["c/d", "c/d/plan"], ""),
        ("filter=ID%20matches%20%60%5E%5Bab%5D%24%60", vec!["a", "b"], ""),
        ("filter=any%20TaskGroups%20as%20g%20%7Bg.Name%20==%20web%7D%20and%20ID%20==%20z", vec!["z"], ""),
        ("namespace=*&prefix=z", vec!["z"], ""),
        ("namespace=other", vec![], ""),
    ] {
        let raw = c.get(&format!("/v1/jobs?{query}")).await;
        assert_eq!(raw.status, StatusCode::OK, "{query}: {}", raw.text());
        assert_eq!(
            (ids(&raw.json()), raw.header("x-nomad-nexttoken")),
            (wanted.iter().map(ToString::to_string).collect(), token),
            "{query}"
        );
    }
    let all: Vec<Value> =
        c.client.query_all("/v1/jobs", &RequestOptions::default().with("per_page", 2)).await.expect("pages");
    assert_eq!(all.len(), 6);
    for (path, id) in [("/v1/job/c/d", "c/d"), ("/v1/job/c%2Fd", "c/d"), ("/v1/job/e%25g", "e%g")] {
        assert_eq!(c.get(path).await.json()["ID"], id, "{path}");
    }
    // The suffix decides: this is the job c/d with the endpoint plan.
    assert_eq!(c.get("/v1/job/c/d/plan").await.status, StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!(c.get("/v1/job/c/d/plan/summary").await.json()["JobID"], "c/d/plan");

    let raw = c.put("/v1/search", &json!({"Prefix": "c/", "Context": "jobs"})).await;
    assert_eq!(
        (&raw.json()["Matches"], &raw.json()["Truncations"]),
        (&json!({"jobs": ["c/d", "c/d/plan"]}), &json!({"jobs": false}))
    );
    let raw = c.put("/v1/search", &json!({"Prefix": "nothing", "Context": "all"})).await.json();
    assert!(raw["Matches"]["jobs"].is_null() && raw["Matches"].as_object().is_some_and(|m| m.len() == 12), "{raw}");
    let raw = c.put("/v1/search/fuzzy", &json!({"Text": "SERV", "Context": "tasks"})).await.json();
    assert_eq!(raw["Matches"]["tasks"][0], json!({"ID": "server", "Scope": ["default", "a", "web"]}), "{raw}");
    assert_eq!(raw["Matches"]["tasks"].as_array().map(Vec::len), Some(6));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_beyond_the_reservation_is_the_operators_to_allow() {
    let c = Cluster::start().await;
    let _n = FakeNode::join(&c, node("one")).await;
    let more = |id: &str| {
        let mut job = job(id, 1);
        job.task_groups[0].tasks[0].resources.memory_max_mb = Some(900);
        json!({"Job": job})
    };
    let given = async |id: &str| {
        let allocs = c
            .until(&format!("/v1/job/{id}/allocations"), "an allocation", |l| {
                l.as_array().is_some_and(|l| !l.is_empty())
            })
            .await;
        let id = allocs[0]["ID"].as_str().expect("an id").to_owned();
        let alloc = c.get(&format!("/v1/allocation/{id}")).await.json();
        alloc["AllocatedResources"]["Tasks"]
            .as_object()
            .and_then(|t| t.values().next())
            .map(|t| t["Memory"]["MemoryMaxMB"].clone())
    };
    let made = c.put("/v1/jobs", &more("off")).await.json();
    assert!(
        made["Warnings"].as_str().is_some_and(|w| w.contains("memory_max of") && w.contains("no effect")),
        "{made}"
    );
    assert_eq!(given("off").await, Some(json!(0)));
    let on = json!({"SchedulerAlgorithm": "binpack", "MemoryOversubscriptionEnabled": true});
    c.done("/v1/operator/scheduler/configuration", &on).await;
    let made = c.put("/v1/jobs", &more("on")).await.json();
    assert_eq!(made["Warnings"], "");
    assert_eq!(given("on").await, Some(json!(900)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_job_can_be_named_in_a_path() {
    let c = Cluster::start().await;
    for (id, path) in [("x/allocations", "x%2Fallocations"), ("x//y", "x%2F%2Fy"), ("a%b", "a%25b")] {
        c.put("/v1/jobs", &json!({"Job": job(id, 0)})).await;
        let raw = c.get(&format!("/v1/job/{path}")).await;
        assert!(raw.status == StatusCode::OK && raw.json()["ID"] == id, "{id}: {} {}", raw.status, raw.text());
        assert_eq!(c.get(&format!("/v1/job/{path}/allocations")).await.json(), json!([]), "{id}");
        let raw = c.send(Method::DELETE, &format!("/v1/job/{path}?purge=true"), &[], "").await;
        assert_eq!(raw.status, StatusCode::OK, "{id}: {}", raw.text());
        assert_eq!(c.get(&format!("/v1/job/{path}")).await.status, StatusCode::NOT_FOUND, "{id}");
    }
    for id in ["..", "a\u{0}b", "a\u{1b}[2J"] {
        let raw = c.put("/v1/jobs", &json!({"Job": job(id, 0)})).await;
        assert!(
            raw.status == StatusCode::INTERNAL_SERVER_ERROR && raw.text().contains("Job ID"),
            "{id:?}: {}",
            raw.text()
        );
    }
}

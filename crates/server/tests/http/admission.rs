//! What the servers make of jobs before they take them: refusals over HTTP that job files alone do not show.

use http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::cluster::{Cluster, FakeNode, job, node};

fn plain(id: &str) -> Value {
    json!({
        "ID": id, "Type": "service", "Datacenters": ["dc1"],
        "TaskGroups": [{"Name": "g", "Tasks": [{"Name": "t", "Driver": "mock", "Resources": {"CPU": 100, "MemoryMB": 64}}]}],
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_that_has_no_effect_is_taken_in_silence() {
    let c = Cluster::start().await;
    let cases: [(&str, Value, &str); 14] = [
        ("/TaskGroups/0/MaxRunDuration", json!(1_000_000_000), "max_run_duration is not supported"),
        ("/TaskGroups/0/Volumes", json!({"v": {"Type": "host", "Source": "s", "Sticky": true}}), "volume.sticky is not supported"),
        ("/TaskGroups/0/Tasks/0/Secrets", json!([{"Name": "s"}]), "secret is not supported"),
        ("/TaskGroups/0/Tasks/0/Identity", json!({"Name": "default", "ExtraClaims": ["c"]}), "identity.extra_claims is not supported"),
        ("/TaskGroups/0/Services", json!([{"Name": "s", "Provider": "nomad", "Kind": "k"}]), "kind is not supported"),
        ("/TaskGroups/0/Services", json!([{"Name": "s", "Provider": "nomad", "Cluster": "k"}]), "cluster is not supported"),
        ("/ConsulNamespace", json!("team"), "ConsulNamespace is not supported"),
        ("/VaultNamespace", json!("team"), "VaultNamespace is not supported"),
        ("/Constraints", json!([{"LTarget": "${attr.a}", "RTarget": "b"}]), "Missing constraint operand"),
        ("/Constraints", json!([{"LTarget": "${attr.a}", "RTarget": "(", "Operand": "regexp"}]), "failed to compile"),
        ("/Constraints", json!([{"LTarget": "${attr.a}", "RTarget": "zz", "Operand": "version"}]), "version constraint \"zz\" is invalid"),
        ("/Affinities", json!([{"LTarget": "${attr.a}", "RTarget": "~> 1.2", "Operand": "semver", "Weight": 1}]), "semver constraint"),
        ("/TaskGroups/0/Tasks/0/Resources/DiskMB", json!(5), "can't ask for disk resources"),
        ("/TaskGroups/0/Tasks/0/Resources/MemoryMaxMB", json!(-2), "MemoryMaxMB value (-2)"),
    ];
    for (place, value, why) in cases {
        let mut job = plain("web");
        let (parent, name) = place.rsplit_once('/').expect("a pointer");
        job.pointer_mut(parent).expect(parent)[name] = value;
        for (path, body) in [("/v1/jobs", json!({"Job": job})), ("/v1/job/web/plan", json!({"Job": job}))] {
            let raw = c.put(path, &body).await;
            assert!(raw.status == StatusCode::INTERNAL_SERVER_ERROR && raw.text().contains(why), "{place} {path}: {}", raw.text());
        }
        let verdict = c.put("/v1/validate/job", &json!({"Job": job})).await.json();
        assert!(verdict["Error"].as_str().is_some_and(|e| e.contains(why)), "{place}: {verdict}");
    }
    let mut everywhere = plain("all");
    everywhere["Type"] = json!("system");
    everywhere["TaskGroups"][0]["Scaling"] = json!({"Max": 1});
    let raw = c.put("/v1/jobs", &json!({"Job": everywhere})).await;
    assert_eq!((raw.status.as_u16(), raw.text().as_str()), (400, "Task groups with job type system do not support scaling blocks"));
    // Defaults that clients fill in are no use of the feature.
    let mut harmless = plain("harmless");
    harmless["NomadTokenID"] = json!("8a0e0c4e-2a35-4a4f-8b7b-1f6c3a6fd7a1");
    harmless["ConsulNamespace"] = json!("");
    harmless["TaskGroups"][0]["MaxRunDuration"] = json!(0);
    harmless["TaskGroups"][0]["Tasks"][0]["Resources"]["MemoryMaxMB"] = json!(-1);
    let raw = c.put("/v1/jobs", &json!({"Job": harmless})).await;
    assert!(raw.status == StatusCode::OK && raw.json()["Warnings"].as_str().is_some_and(|w| w.contains("memory_max of t has no effect")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_periodic_job_that_is_switched_off_waits() {
    let c = Cluster::start().await;
    let mut nightly = plain("nightly");
    nightly["Type"] = json!("batch");
    nightly["Periodic"] = json!({"Enabled": false, "Spec": "@daily"});
    let made = c.put("/v1/jobs", &json!({"Job": nightly})).await;
    assert_eq!((made.status, &made.json()["EvalID"]), (StatusCode::OK, &json!("")), "{}", made.text());
    let stub = c.get("/v1/jobs").await.json();
    assert_eq!((&stub[0]["Status"], &stub[0]["Periodic"]), (&json!("running"), &json!(true)));
    let raw = c.put("/v1/job/nightly/periodic/force", &json!({})).await;
    assert!(raw.status == StatusCode::INTERNAL_SERVER_ERROR && raw.text().contains("it is disabled"), "{}", raw.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_driver_that_no_node_has_is_told() {
    let c = Cluster::start().await;
    let _n = FakeNode::join(&c, node("one")).await;
    let mut web = plain("web");
    web["TaskGroups"][0]["Tasks"][0]["Driver"] = json!("mok");
    for path in ["/v1/validate/job", "/v1/job/web/plan", "/v1/jobs"] {
        let raw = c.put(path, &json!({"Job": web})).await;
        assert_eq!(raw.status, StatusCode::OK, "{path}: {}", raw.text());
        let warnings = raw.json()["Warnings"].as_str().unwrap_or_default().to_owned();
        assert!(warnings.contains("no node has the driver \"mok\" (did you mean \"mock\"?)"), "{path}: {warnings}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn priorities_of_evaluations_are_bounded() {
    let c = Cluster::start().await;
    c.register(&job("web", 0)).await;
    let stop = async |priority: &str| c.send(Method::DELETE, &format!("/v1/job/web?eval_priority={priority}"), &[], String::new()).await;
    let raw = stop("101").await;
    assert!(raw.status == StatusCode::INTERNAL_SERVER_ERROR && raw.text().contains("not between 1 and 100"), "{}", raw.text());
    assert_eq!(stop("-5").await.status, StatusCode::OK, "it is the job's own then");
    assert_eq!(stop("70").await.status, StatusCode::OK);
    let evals = c.get("/v1/job/web/evaluations").await.json();
    let priorities: Vec<_> = evals.as_array().expect("a list").iter().map(|e| e["Priority"].as_i64()).collect();
    assert_eq!(priorities, [Some(70), Some(50), Some(50)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_that_reschedules_is_an_attempt() {
    let c = Cluster::start().await;
    let _one = FakeNode::join(&c, node("one")).await;
    let _two = FakeNode::join(&c, node("two")).await;
    c.register(&job("web", 1)).await;
    let running = |l: &Value| l.as_array().is_some_and(|l| l.iter().any(|a| a["ClientStatus"] == "running"));
    let first = c.until("/v1/job/web/allocations", "running", running).await[0]["ID"].as_str().expect("an id").to_owned();
    assert_eq!(c.put(&format!("/v1/allocation/{first}/stop?reschedule=true"), &json!({})).await.status, StatusCode::OK);
    let replaced = |l: &Value| l.as_array().is_some_and(|l| l.iter().any(|a| a["ClientStatus"] == "running" && a["ID"] != first.as_str()));
    let list = c.until("/v1/job/web/allocations", "replaced", replaced).await;
    let of = |id: &str| list.as_array().and_then(|l| l.iter().find(|a| a["ID"] == id).cloned()).expect("listed");
    let second = list.as_array().and_then(|l| l.iter().find(|a| a["ID"] != first.as_str())).expect("another one");
    assert_eq!(second["RescheduleTracker"]["Events"][0]["PrevAllocID"], first.as_str(), "{second}");
    assert_ne!(second["NodeID"], of(&first)["NodeID"]);
}

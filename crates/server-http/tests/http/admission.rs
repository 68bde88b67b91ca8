//! What the servers make of jobs before they take them: refusals over HTTP that job files alone do not show.

use api::node_rpc::DriverSchema;
use http::{Method, StatusCode};
use serde_json::{Value, json};

use server::ServerConfig;
use server_http::{HttpOptions, Limits};

use crate::cluster::{Cluster, FakeNode, job, node};

fn plain(id: &str) -> Value {
    json!({
        "ID": id, "Type": "service", "Datacenters": ["dc1"],
        "TaskGroups": [{"Name": "g",
            "Tasks": [{"Name": "t", "Driver": "mock", "Resources": {"CPU": 100, "MemoryMB": 64}}]}],
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_that_has_no_effect_is_taken_in_silence() {
    let c = Cluster::start().await;
    let cases: [(&str, Value, &str); 15] = [
        (
            "/TaskGroups/0/MaxRunDuration",
            json!(1_000_000_000),
            "max_run_duration is for jobs of type batch and sysbatch, not service",
        ),
        ("/TaskGroups/0/MaxRunDuration", json!(-1), "max_run_duration must be greater than zero, not -1ns"),
        (
            "/TaskGroups/0/Volumes",
            json!({"v": {"Type": "host", "Source": "s", "Sticky": true, "PerAlloc": true}}),
            "volume \"v\" cannot be both sticky and per_alloc",
        ),
        ("/TaskGroups/0/Tasks/0/Secrets", json!([{"Name": "s", "Path": "p"}]), "secret \"s\": it has no provider"),
        (
            "/TaskGroups/0/Tasks/0/Identity",
            json!({"Name": "default", "ExtraClaims": ["c"]}),
            "namespace \"default\" has no optional claim \"c\"",
        ),
        ("/TaskGroups/0/Services", json!([{"Name": "s", "Provider": "nomad", "Kind": "k"}]), "kind is not supported"),
        (
            "/TaskGroups/0/Services",
            json!([{"Name": "s", "Provider": "nomad", "Cluster": "k"}]),
            "cluster is not supported",
        ),
        ("/ConsulNamespace", json!("team"), "ConsulNamespace is not supported"),
        ("/VaultNamespace", json!("team"), "VaultNamespace is not supported"),
        ("/Constraints", json!([{"LTarget": "${attr.a}", "RTarget": "b"}]), "Missing constraint operand"),
        ("/Constraints", json!([{"LTarget": "${attr.a}", "RTarget": "(", "Operand": "regexp"}]), "failed to compile"),
        (
            "/Constraints",
            json!([{"LTarget": "${attr.a}", "RTarget": "zz", "Operand": "version"}]),
            "version constraint \"zz\" is invalid",
        ),
        (
            "/Affinities",
            json!([{"LTarget": "${attr.a}", "RTarget": "~> 1.2", "Operand": "semver", "Weight": 1}]),
            "semver constraint",
        ),
        ("/TaskGroups/0/Tasks/0/Resources/DiskMB", json!(5), "can't ask for disk resources"),
        ("/TaskGroups/0/Tasks/0/Resources/MemoryMaxMB", json!(-2), "MemoryMaxMB value (-2)"),
    ];
    for (place, value, why) in cases {
        let mut job = plain("web");
        let (parent, name) = place.rsplit_once('/').expect("a pointer");
        job.pointer_mut(parent).expect(parent)[name] = value;
        for (path, body) in [("/v1/jobs", json!({"Job": job})), ("/v1/job/web/plan", json!({"Job": job}))] {
            let raw = c.put(path, &body).await;
            assert!(
                raw.status == StatusCode::INTERNAL_SERVER_ERROR && raw.text().contains(why),
                "{place} {path}: {}",
                raw.text()
            );
        }
        let verdict = c.put("/v1/validate/job", &json!({"Job": job})).await.json();
        assert!(verdict["Error"].as_str().is_some_and(|e| e.contains(why)), "{place}: {verdict}");
    }
    let mut everywhere = plain("all");
    everywhere["Type"] = json!("system");
    everywhere["TaskGroups"][0]["Scaling"] = json!({"Max": 1});
    let raw = c.put("/v1/jobs", &json!({"Job": everywhere})).await;
    assert_eq!(
        (raw.status.as_u16(), raw.text().as_str()),
        (400, "Task groups with job type system do not support scaling blocks")
    );
    // Defaults that clients fill in are no use of the feature.
    let mut harmless = plain("harmless");
    harmless["NomadTokenID"] = json!("8a0e0c4e-2a35-4a4f-8b7b-1f6c3a6fd7a1");
    harmless["ConsulNamespace"] = json!("");
    harmless["TaskGroups"][0]["Tasks"][0]["Resources"]["MemoryMaxMB"] = json!(-1);
    let raw = c.put("/v1/jobs", &json!({"Job": harmless})).await;
    assert!(
        raw.status == StatusCode::OK
            && raw.json()["Warnings"].as_str().is_some_and(|w| w.contains("memory_max of t has no effect"))
    );
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
async fn the_clock_launches_a_periodic_job() {
    let c = Cluster::start().await;
    let mut often = plain("often");
    often["Type"] = json!("batch");
    // Each second; nothing ends, as there is no node.
    often["Periodic"] = json!({"Specs": ["* * * * * * *"], "ProhibitOverlap": true, "TimeZone": "UTC"});
    let plan = c.put("/v1/job/often/plan", &json!({"Job": often})).await.json();
    assert!(plan["NextPeriodicLaunch"].as_str().is_some_and(|at| at.ends_with('Z')), "{plan}");
    let made = c.put("/v1/jobs", &json!({"Job": often})).await;
    assert_eq!((made.status, &made.json()["EvalID"]), (StatusCode::OK, &json!("")), "{}", made.text());
    let launches = "/v1/jobs?prefix=often/periodic-";
    let launched = c.until(launches, "launched", |jobs| jobs.get(0).is_some()).await;
    let child = &launched[0];
    assert_eq!(
        (&child["ParentID"], &child["Periodic"], &child["Status"]),
        (&json!("often"), &json!(false), &json!("pending"))
    );
    let evals = c.get(&format!("/v1/job/{}/evaluations", child["ID"].as_str().expect("an id"))).await.json();
    let first = evals.as_array().and_then(|evals| evals.last()).cloned().expect("an evaluation");
    assert_eq!(first["TriggeredBy"], "periodic-job");
    let parent = c.get("/v1/jobs").await.json();
    let parent = parent.as_array().and_then(|jobs| jobs.iter().find(|job| job["ID"] == "often")).cloned().expect("it");
    assert_eq!((&parent["Periodic"], &parent["JobSummary"]["Children"]["Pending"]), (&json!(true), &json!(1)));
    assert_eq!(parent["JobSummary"].get("LastLaunch"), None, "what the servers note is theirs");
    // It may not overlap, but a person may ask for more.
    let mut forced = c.put("/v1/job/often/periodic/force", &json!({})).await;
    while forced.text().contains("in this second") {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        forced = c.put("/v1/job/often/periodic/force", &json!({})).await;
    }
    assert_eq!((forced.status, forced.json()["EvalID"].as_str().map(str::len)), (StatusCode::OK, Some(36)));
    assert_eq!(c.get(launches).await.json().as_array().map(Vec::len), Some(2));
    let raw = c.put("/v1/job/often/evaluate", &json!({"JobID": "often"})).await;
    assert!(raw.text().contains("is a template"), "{}", raw.text());
    often["Periodic"]["TimeZone"] = json!("Mars/Base");
    let raw = c.put("/v1/jobs", &json!({"Job": often})).await;
    assert!(raw.status == StatusCode::BAD_REQUEST || raw.status == StatusCode::INTERNAL_SERVER_ERROR, "{}", raw.text());
    assert!(raw.text().contains("\"Mars/Base\" is not in the time zone database"), "{}", raw.text());
    often["Periodic"] = json!(null);
    let raw = c.put("/v1/jobs", &json!({"Job": often})).await;
    assert!(raw.text().contains("register it under another id"), "{}", raw.text());
    // Its children stay when it stops.
    let stopped = c.send(http::Method::DELETE, "/v1/job/often", &[], "").await;
    assert_eq!((stopped.status, c.get(launches).await.json().as_array().map(Vec::len)), (StatusCode::OK, Some(2)));
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
    let stop = async |priority: &str| {
        c.send(Method::DELETE, &format!("/v1/job/web?eval_priority={priority}"), &[], String::new()).await
    };
    let raw = stop("101").await;
    assert!(
        raw.status == StatusCode::INTERNAL_SERVER_ERROR && raw.text().contains("not between 1 and 100"),
        "{}",
        raw.text()
    );
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
    let first =
        c.until("/v1/job/web/allocations", "running", running).await[0]["ID"].as_str().expect("an id").to_owned();
    c.done(&format!("/v1/allocation/{first}/stop?reschedule=true"), &json!({})).await;
    let replaced = |l: &Value| {
        l.as_array().is_some_and(|l| l.iter().any(|a| a["ClientStatus"] == "running" && a["ID"] != first.as_str()))
    };
    let list = c.until("/v1/job/web/allocations", "replaced", replaced).await;
    let of = |id: &str| list.as_array().and_then(|l| l.iter().find(|a| a["ID"] == id).cloned()).expect("listed");
    let second = list.as_array().and_then(|l| l.iter().find(|a| a["ID"] != first.as_str())).expect("another one");
    assert_eq!(second["RescheduleTracker"]["Events"][0]["PrevAllocID"], first.as_str(), "{second}");
    assert_ne!(second["NodeID"], of(&first)["NodeID"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_count_beyond_the_limit_is_refused_at_every_door() {
    let c = Cluster::start().await;
    let mut web = plain("web");
    web["TaskGroups"][0]["Count"] = json!(1);
    c.register(&web).await;
    let mut huge = web.clone();
    let mut second = huge["TaskGroups"][0].clone();
    second["Name"] = json!("h");
    second["Count"] = json!(30_000);
    huge["TaskGroups"][0]["Count"] = json!(30_000);
    huge["TaskGroups"].as_array_mut().expect("groups").push(second);
    let scale = json!({"Count": 100_000_000, "Target": {"Group": "g"}});
    let doors =
        [("/v1/jobs", json!({"Job": huge})), ("/v1/job/web/plan", json!({"Job": huge})), ("/v1/job/web/scale", scale)];
    for (path, body) in doors {
        let raw = c.put(path, &body).await;
        let text = raw.text();
        assert!(
            raw.status == StatusCode::INTERNAL_SERVER_ERROR && text.contains("at most 50000 are allowed"),
            "{path}: {text}"
        );
    }
    let verdict = c.put("/v1/validate/job", &json!({"Job": huge})).await.json();
    assert!(verdict["Error"].as_str().is_some_and(|e| e.contains("asks for 60000 allocations")), "{verdict}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_stored_beyond_the_limit_is_neither_reverted_to_nor_dispatched() {
    let dir = tempfile::tempdir().expect("a directory");
    let of = |job_max_count| ServerConfig {
        data_dir: Some(dir.path().to_owned()),
        job_max_count,
        ..ServerConfig::default()
    };
    // As a release without a limit, or with a higher one, has stored them.
    let c = Cluster::of(of(0), HttpOptions::default(), Limits::default()).await;
    let mut web = plain("web");
    let mut template = plain("template");
    template["Type"] = json!("batch");
    template["ParameterizedJob"] = json!({"Payload": "optional"});
    for job in [&mut web, &mut template] {
        job["TaskGroups"][0]["Count"] = json!(100_000_000);
        c.register(&job).await;
    }
    web["TaskGroups"][0]["Count"] = json!(1);
    c.register(&web).await;
    c.end().await;

    let source = json!({"Source": "x".repeat(20), "Format": "hcl2"});
    let c = Cluster::of(ServerConfig { job_max_source_bytes: 10, ..of(20) }, HttpOptions::default(), Limits::default())
        .await;
    for (path, body) in [
        ("/v1/job/web/revert", json!({"JobID": "web", "JobVersion": 0})),
        ("/v1/job/template/dispatch", json!({})),
        ("/v1/job/web/scale", json!({"Count": 21, "Target": {"Group": "g"}})),
    ] {
        let raw = c.put(path, &body).await;
        assert!(
            raw.status == StatusCode::INTERNAL_SERVER_ERROR && raw.text().contains("at most 20 are allowed"),
            "{path}: {}",
            raw.text()
        );
    }
    assert_eq!(c.get("/v1/job/web").await.json()["TaskGroups"][0]["Count"], 1, "nothing has changed");
    let raw = c.put("/v1/jobs", &json!({"Job": web, "Submission": source})).await;
    assert!(
        raw.text().contains("exceeds maximum of 10 B and will be discarded (server.job_max_source_size)"),
        "{}",
        raw.text()
    );
    assert_eq!(c.get("/v1/job/web/submission?version=1").await.status, StatusCode::NOT_FOUND);
    c.end().await;

    // What the server is told to keep it keeps, beyond what it keeps when it is told nothing.
    let c = Cluster::of(
        ServerConfig { job_max_source_bytes: 2_000_000, ..of(20) },
        HttpOptions::default(),
        Limits::default(),
    )
    .await;
    let mut sourced = plain("sourced");
    for (version, size, kept, warning) in [
        (0, 1_500_000, StatusCode::OK, ""),
        (1, 2_000_001, StatusCode::NOT_FOUND, "job source size of 2.0 MB exceeds maximum of 2.0 MB"),
    ] {
        sourced["Priority"] = json!(50 + version);
        let source = json!({"Source": "x".repeat(size), "Format": "hcl2"});
        let raw = c.put("/v1/jobs", &json!({"Job": sourced, "Submission": source})).await;
        assert!(
            raw.text().contains(warning) && raw.text().contains("job source size") != warning.is_empty(),
            "{}",
            raw.text()
        );
        assert_eq!(c.get(&format!("/v1/job/sourced/submission?version={version}")).await.status, kept, "{version}");
    }
}

/// A schema of the driver of `plain` jobs, all of whose attributes are optional texts.
fn schema(version: &str, attributes: &[&str]) -> DriverSchema {
    let attribute =
        |name: &&str| ((*name).to_owned(), json!({"Kind": "attr", "Name": name, "Type": "string", "Required": false}));
    let document =
        json!({"Kind": "object", "Attributes": attributes.iter().map(attribute).collect::<serde_json::Map<_, _>>()});
    DriverSchema { driver: "mock".into(), version: version.into(), schema_json: document.to_string().into_bytes() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_configuration_that_no_version_of_the_driver_takes_is_refused() {
    let c = Cluster::start().await;
    let schemas = async || c.get("/v1/drivers/schemas").await.json();
    let configured = |config: Value| {
        let mut web = plain("web");
        web["TaskGroups"][0]["Tasks"][0]["Config"] = config;
        json!({"Job": web})
    };
    let paths = ["/v1/validate/job", "/v1/job/web/plan", "/v1/jobs"];

    let _one = FakeNode::with_schemas(&c, node("one"), vec![schema("1.0.0", &["command"])]).await;
    let typo = configured(json!({"comand": "${NOMAD_TASK_DIR}/a"}));
    for path in paths {
        let raw = c.put(path, &typo).await;
        assert!(raw.text().contains("refuses config.comand: Unknown attribute"), "{path}: {}", raw.text());
        assert_eq!(raw.status.is_success(), path == paths[0], "{path}");
    }
    let verdict = c.put(paths[0], &typo).await.json();
    let flat = "Task group g validation failed: task \"t\": the driver \"mock\" refuses config.comand: Unknown \
        attribute: \"comand\" is not expected \
                here (did you mean \"command\"?)";
    assert_eq!((&verdict["ValidationErrors"], &verdict["DriverConfigValidated"]), (&json!([flat]), &json!(true)));
    let fits = c.put(paths[0], &configured(json!({"command": "${NOMAD_TASK_DIR}/a"}))).await.json();
    assert_eq!(
        (&fits["Error"], &fits["Warnings"], &fits["DriverConfigValidated"]),
        (&json!(""), &json!(""), &json!(true))
    );

    // What another version takes is taken.
    let coloured = configured(json!({"command": "a", "colour": "red"}));
    assert_eq!(c.put("/v1/jobs", &coloured).await.status, StatusCode::INTERNAL_SERVER_ERROR);
    let two = FakeNode::with_schemas(&c, node("two"), vec![schema("1.10.0", &["command", "colour"])]).await;
    let list = schemas().await;
    assert_eq!(
        (&list[0]["Driver"], &list[0]["Complete"], &list[0]["Schemas"][0]["Versions"], &list[0]["Schemas"][0]["Nodes"]),
        (&json!("mock"), &json!(true), &json!(["1.10.0"]), &json!(1))
    );
    for path in paths {
        let raw = c.put(path, &coloured).await;
        assert!(
            raw.status == StatusCode::OK && raw.json()["Error"].as_str().is_none_or(str::is_empty),
            "{path}: {}",
            raw.text()
        );
    }
    assert_eq!(c.put("/v1/jobs", &typo).await.status, StatusCode::INTERNAL_SERVER_ERROR);

    // A node of an older release has the driver and tells nothing of it: it may take anything.
    let _three = FakeNode::with_schemas(&c, node("three"), Vec::new()).await;
    let raw = c.put("/v1/jobs", &typo).await;
    let warnings = raw.json()["Warnings"].as_str().unwrap_or_default().to_owned();
    assert!(raw.status == StatusCode::OK && warnings.contains("config.comand: Unknown attribute"), "{}", raw.text());
    assert_eq!(c.put(paths[0], &typo).await.json()["DriverConfigValidated"], false);

    // A node that is no more says nothing, either.
    let purge = format!("/v1/node/{}/purge", two.id);
    drop(two);
    testkit::poll("the end of its session", async || c.put(&purge, &json!({})).await.status == StatusCode::OK).await;
    assert_eq!(schemas().await[0]["Schemas"].as_array().map(Vec::len), Some(1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_configuration_that_was_not_checked_is_told() {
    let c = Cluster::start().await;
    let _n = FakeNode::with_schemas(&c, node("one"), Vec::new()).await;
    let verdict = c.put("/v1/validate/job", &json!({"Job": plain("web")})).await.json();
    let told = "its configuration was not checked: no node has told the schema of the driver \"mock\"";
    assert!(verdict["Warnings"].as_str().is_some_and(|w| w.contains(told)), "{verdict}");
    assert_eq!((&verdict["Error"], &verdict["DriverConfigValidated"]), (&json!(""), &json!(false)));
}

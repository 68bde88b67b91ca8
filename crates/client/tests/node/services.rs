//! Services and checks with real processes: what stands when, what checks say, what follows.

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use client::Client;
use model::{
    AllocClientUpdate, AllocId, Allocation, Check, CheckResult, CheckStatus, ClientStatus, DeploymentId, GoDuration,
    Job, Observed, Restart, Service, ServiceEntry, Task, TaskRunState, Update, network::AllocatedPort,
    service::CheckRestart,
};
use serde_json::json;

use crate::fixture::{Rig, alloc, bare, end, eventually, kinds, leave, managed, poll, restarts, sh, task};
use crate::http::get;

fn service(name: &str, port: &str) -> Service {
    Service {
        name: name.into(),
        provider: "nomad".into(),
        port_label: port.into(),
        address_mode: "auto".into(),
        ..Service::default()
    }
}

/// A check that runs often enough for a test.
fn check(kind: &str) -> Check {
    Check {
        name: kind.into(),
        kind: kind.into(),
        interval: GoDuration::from_millis(30),
        timeout: GoDuration::from_secs(10),
        on_update: "require_healthy".into(),
        ..Check::default()
    }
}

/// Passes while a file of the allocation is not there.
fn script(failing_file: &str) -> Check {
    let test = format!("if [ -e $NOMAD_ALLOC_DIR/data/{failing_file} ]; then echo it is there; exit 2; fi");
    Check { command: "/bin/sh".into(), args: vec!["-c".into(), test], ..check("script") }
}

/// An allocation of a group with services and a port `http`.
fn serving(tasks: Vec<Task>, services: Vec<Service>) -> (Allocation, Job) {
    let (mut a, mut job) = alloc("service", tasks);
    job.task_groups[0].services = services;
    with_port(&mut a);
    (a, job)
}

fn with_port(a: &mut Allocation) {
    let port =
        AllocatedPort { label: "http".into(), value: 20_123, host_ip: "127.0.0.1".into(), ..AllocatedPort::default() };
    Arc::make_mut(&mut a.resources).shared.ports = vec![port];
}

fn names(update: &AllocClientUpdate) -> Option<Vec<&str>> {
    update.services.as_ref().map(|s| s.iter().map(|e| &*e.name).collect())
}

fn stands(name: &'static str) -> impl Fn(&AllocClientUpdate) -> bool {
    move |u| names(u).is_some_and(|n| n.contains(&name))
}

fn data(rig: &Rig, id: AllocId, file: &str) -> PathBuf {
    rig.alloc_dir(id).join("alloc/data").join(file)
}

async fn checks(node: &Client, id: AllocId) -> Vec<CheckResult> {
    let (status, body) = get(node, &format!("/v1/client/allocation/{id}/checks")).await;
    if status == 404 {
        // The allocation has not reached the node yet.
        return Vec::new();
    }
    let by_id: std::collections::BTreeMap<String, CheckResult> = serde_json::from_slice(&body).expect("results");
    assert!(by_id.iter().all(|(id, r)| *id == r.id));
    by_id.into_values().collect()
}

/// Waits until the only check says so.
async fn said(node: &Client, id: AllocId, status: CheckStatus) -> CheckResult {
    poll(&format!("a check that says {status:?}"), async || match &checks(node, id).await[..] {
        [one] if one.status == status => Ok(one.clone()),
        other => Err(other.to_vec()),
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn services_stand_while_their_tasks_run_and_go_before_the_kill() {
    const DELAY: Duration = Duration::from_secs(3);
    let (rig, node) = Rig::with("raw_exec").await;
    let mut first = sh("first", "echo $$ > $NOMAD_ALLOC_DIR/data/pid; exec sleep 600");
    let mut own = service("own", "9000");
    own.tags = vec!["on-${node.unique.name}".into(), "${NOMAD_TASK_NAME}".into()];
    own.meta = [("job".to_owned(), "${NOMAD_JOB_ID}".to_owned())].into();
    first.services = vec![own];
    let second = sh("second", "while [ ! -e $NOMAD_ALLOC_DIR/data/go ]; do sleep 0.01; done; exec sleep 600");
    let (a, mut job) = serving(vec![first, second], vec![service("whole", "http"), service("lost", "none")]);
    job.task_groups[0].shutdown_delay = Some(GoDuration::from(DELAY));
    rig.server.place(&a, &job);
    let update = rig.server.alloc(a.id, "both services", |u| stands("own")(u) && stands("whole")(u)).await;
    let entries = update.services.clone().expect("known");
    let entry = |name: &str| entries.iter().find(|e| e.name == name).expect("registered").clone();
    assert_eq!(
        entry("whole"),
        ServiceEntry {
            suffix: "group-g-whole-http".into(),
            name: "whole".into(),
            address: "127.0.0.1".into(),
            port: 20_123,
            given_port: true,
            ..ServiceEntry::default()
        }
    );
    let own = entry("own");
    assert_eq!((&*own.suffix, own.port, own.given_port), ("first-own-9000", 9000, false));
    assert_eq!((own.tags, &*own.meta["job"]), (vec!["on-n1".to_owned(), "first".to_owned()], "job"));
    assert!(!own.address.is_empty(), "the node's address");
    assert_eq!(entries.len(), 2, "what has no port is not registered: {entries:?}");
    let told = |u: &AllocClientUpdate| {
        u.task_states["first"].events.iter().any(|e| e.display_message.contains("\"lost\" is not registered"))
    };
    rig.server.alloc(a.id, "the reason among the events", told).await;

    eventually("the pid", || data(&rig, a.id, "pid").exists()).await;
    let pid = std::fs::read_to_string(data(&rig, a.id, "pid")).expect("pid").trim().to_owned();
    let stopped = Instant::now();
    rig.server.stop_alloc(a.id);
    let update = rig.server.alloc(a.id, "no service", |u| names(u) == Some(vec![])).await;
    let runs = std::path::Path::new(&format!("/proc/{pid}")).exists();
    // Where this test was slower than the delay it may have ended.
    let late = stopped.elapsed() >= DELAY;
    let state = update.task_states["first"].state;
    assert!(late || state == TaskRunState::Running, "it runs on while its clients learn that it goes: {state:?}");
    assert!(late || runs);
    rig.server.status(a.id, ClientStatus::Complete).await;
    leave(&rig, node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_of_the_agent_changes_neither_services_nor_checks() {
    let (rig, node) = Rig::with("raw_exec").await;
    let mut web = service("web", "http");
    let mut slow = script("bad");
    slow.initial_status = "critical".into();
    // Too long for a second run within this test: what it says afterwards was remembered.
    slow.interval = GoDuration::from_secs(36_000);
    slow.task = "t".into();
    web.checks = vec![slow];
    let (a, job) = serving(vec![sh("t", "exec sleep 600")], vec![web]);
    rig.server.place(&a, &job);
    rig.server.alloc(a.id, "the service", stands("web")).await;
    let before = said(&node, a.id, CheckStatus::Success).await;
    drop(node);
    let from = rig.server.now().updates.len();
    let node = rig.start_again(rig.config()).await;
    rig.server.heard("the next report", |h| h.updates.get(from).filter(|u| u.id == a.id).map(drop)).await;
    eventually("the task to be recovered", || node.handle().running(a.id, "t")).await;
    assert_eq!(checks(&node, a.id).await, [before]);
    for update in &rig.server.now().updates[from..] {
        assert!(stands("web")(update), "it stood all the time: {update:?}");
    }
    end(&rig, node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_service_of_a_group_stays_while_its_task_is_started_again() {
    let (rig, node) = Rig::with("raw_exec").await;
    let mut t = sh(
        "t",
        "if [ -e $NOMAD_ALLOC_DIR/data/once ]; then exec sleep 600; fi; touch $NOMAD_ALLOC_DIR/data/once; exit 1",
    );
    // Longer than this test: the servers hear of the time in between, however late the node is with its reports.
    t.restart = Some(Restart { delay: Some(GoDuration::from_secs(600)), ..restarts(1) });
    t.services = vec![service("own", "9000")];
    let (a, job) = serving(vec![t], vec![service("whole", "http")]);
    rig.server.place(&a, &job);
    let again = |u: &AllocClientUpdate| u.task_states["t"].restarts == 1;
    rig.server.alloc(a.id, "the time in between", |u| again(u) && !stands("own")(u)).await;
    // Ends the pause, once the first run is freed; only what has been done is among the events.
    poll("the end of the pause", async || {
        node.handle().restart(a.id, None, false).await.expect("asked");
        let update = node.handle().alloc_update(a.id).expect("there");
        kinds(&update.task_states["t"]).contains(&"Restart Signaled")
    })
    .await;
    rig.server.alloc(a.id, "a second run", |u| again(u) && stands("own")(u)).await;
    let told: Vec<AllocClientUpdate> = rig.server.now().updates;
    let since = told.iter().position(|u| stands("whole")(u)).expect("registered");
    assert!(
        told[since..].iter().all(|u| stands("whole")(u)),
        "it never went: {:?}",
        told.iter().map(names).collect::<Vec<_>>()
    );
    assert!(told[since..].iter().any(|u| !stands("own")(u)), "that of the task did");
    end(&rig, node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failing_check_restarts_its_task_within_the_policy() {
    let (rig, node) = Rig::with("raw_exec").await;
    let mut t = sh("t", "exec sleep 600");
    t.restart = Some(restarts(1));
    let mut web = service("web", "http");
    web.checks = vec![script("bad")];
    web.check_restart = Some(CheckRestart { limit: 3, grace: Some(GoDuration::ZERO), ignore_warnings: false });
    t.services = vec![web];
    let (a, job) = serving(vec![t], Vec::new());
    rig.server.place(&a, &job);
    let good = said(&node, a.id, CheckStatus::Success).await;
    assert_eq!((&*good.service, &*good.check, &*good.task, &*good.mode), ("web", "script", "t", "healthiness"));
    std::fs::write(data(&rig, a.id, "bad"), "").expect("bad");
    let update = rig.server.alloc(a.id, "a restart", |u| u.task_states["t"].restarts == 1).await;
    let state = &update.task_states["t"];
    let why = state.events.iter().find(|e| e.kind == "Restart Signaled").expect("the reason").display_message.clone();
    assert!(why.contains("check \"script\" of service \"web\" was unhealthy 3 times in a row"), "{why}");
    assert!(kinds(state).windows(2).any(|w| w[0] == "Restart Signaled" && w[1] == "Terminated"), "{:?}", kinds(state));
    // The policy has one restart; the check goes on failing.
    let update = rig.server.status(a.id, ClientStatus::Failed).await;
    assert_eq!(update.task_states["t"].restarts, 1);
    assert_eq!(names(&update), Some(vec![]));
    leave(&rig, node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http_and_tcp_checks_follow_what_listens() {
    let (rig, node) = Rig::with("raw_exec").await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let port = listener.local_addr().expect("address").port();
    let health = Arc::new(std::sync::atomic::AtomicU16::new(503));
    let answers = health.clone();
    let served = axum::Router::new().route(
        "/health",
        axum::routing::get(move || {
            let status = answers.load(std::sync::atomic::Ordering::Relaxed);
            async move { (axum::http::StatusCode::from_u16(status).expect("status"), "so it is") }
        }),
    );
    let server = tokio::spawn(async move { axum::serve(listener, served).await.expect("serve") });
    let mut web = service("web", &port.to_string());
    web.checks = vec![Check { path: "/health".into(), method: "GET".into(), ..check("http") }, check("tcp")];
    let (a, job) = serving(vec![sh("t", "exec sleep 600")], vec![web]);
    rig.server.place(&a, &job);
    rig.server.alloc(a.id, "the service", stands("web")).await;
    let both = async |http: CheckStatus, tcp: CheckStatus| {
        poll(&format!("{http:?} and {tcp:?}"), async || {
            let mut now = checks(&node, a.id).await;
            now.sort_by(|a, b| a.check.cmp(&b.check));
            if now.iter().map(|c| c.status).eq([http, tcp]) { Ok(now) } else { Err(now) }
        })
        .await
    };
    let now = both(CheckStatus::Failure, CheckStatus::Success).await;
    assert_eq!((now[0].status_code, &*now[0].output, &*now[1].output), (503, "so it is", "nomad: tcp ok"));
    for (status, says) in [(200, CheckStatus::Success), (429, CheckStatus::Warning), (204, CheckStatus::Success)] {
        health.store(status, std::sync::atomic::Ordering::Relaxed);
        both(says, CheckStatus::Success).await;
    }
    server.abort();
    let now = both(CheckStatus::Failure, CheckStatus::Failure).await;
    assert!(now[1].output.starts_with("connect to "), "{now:?}");
    end(&rig, node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deployments_wait_for_checks_when_they_are_told_to() {
    let (rig, node) = Rig::with("raw_exec").await;
    let place = |health_check: &str, deadline_ms: i64| {
        let mut web = service("web", "http");
        let mut c = script("bad");
        c.task = "t".into();
        web.checks = vec![c];
        let begin = sh("t", "exec sleep 600");
        let (mut a, mut job) = serving(vec![begin], vec![web]);
        a.deployment_id = DeploymentId(uuid::Uuid::new_v4());
        job.task_groups[0].update = Some(Update {
            health_check: Some(health_check.into()),
            min_healthy_time: Some(GoDuration::from_millis(50)),
            healthy_deadline: Some(GoDuration::from_millis(deadline_ms)),
            ..Update::default()
        });
        let dir = data(&rig, a.id, "bad");
        std::fs::create_dir_all(dir.parent().expect("parent")).expect("directory");
        std::fs::write(dir, "").expect("bad");
        rig.server.place(&a, &job);
        a.id
    };
    let healthy = |id: AllocId, expected: bool| {
        let server = rig.server.clone();
        async move {
            let decided =
                move |u: &AllocClientUpdate| u.deployment_status.as_ref().and_then(|d| d.healthy) == Some(expected);
            server.alloc(id, &format!("healthy {expected}"), decided).await
        }
    };
    // They count, and never pass. Long enough for the task to be started on a busy machine.
    let c = place("checks", 15_000);
    // Checks do not count.
    let a = place("task_states", 60_000);
    healthy(a, true).await;
    // They do, and begin to pass.
    let b = place("checks", 60_000);
    said(&node, b, CheckStatus::Failure).await;
    assert!(rig.server.now().allocs.get(&b).is_none_or(|u| u.deployment_status.is_none()));
    std::fs::remove_file(data(&rig, b, "bad")).expect("better");
    healthy(b, true).await;
    let update = healthy(c, false).await;
    let why = update.task_states["t"]
        .events
        .iter()
        .find(|e| e.kind == "Alloc Unhealthy")
        .expect("the reason")
        .display_message
        .clone();
    assert!(why.contains("\"script\""), "{why}");
    end(&rig, node).await;
}

/// Only the manager speaks for a remote task, under its epoch; letting go says nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_manager_speaks_for_its_remote_task_under_its_epoch() {
    let (rig, node) = Rig::with("remote_exec").await;
    let mut t = task("t", "remote_exec", json!({"command": "/bin/sh", "args": ["-c", "exec sleep 600"]}));
    let mut far = service("far", "http");
    far.address = "far.example".into();
    let mut c = Check { command: "/bin/sh".into(), args: vec!["-c".into(), "echo fine".into()], ..check("script") };
    c.interval = GoDuration::from_millis(200);
    far.checks = vec![c];
    t.services = vec![far];
    let (mut a, job, mut order) = managed("service", t);
    with_port(&mut a);
    order.epoch = 7;
    let slot = order.slot.to_string();
    rig.server.order(&order);
    rig.server.place(&a, &job);
    rig.server.report(&slot, "a running instance", |r| r.observed == Observed::Running).await;
    let update = rig
        .server
        .alloc(a.id, "its service", |u| u.remote_services.get("t").is_some_and(|s| !s.entries.is_empty()))
        .await;
    let said_of = &update.remote_services["t"];
    assert_eq!((said_of.epoch, &*said_of.entries[0].address, said_of.entries[0].port), (7, "far.example", 20_123));
    assert!(said_of.entries[0].given_port, "the instance keeps the port that it was created with");
    assert_eq!(update.services, Some(vec![]), "nothing of it is local");
    let result = said(&node, a.id, CheckStatus::Success).await;
    assert_eq!(result.output.trim(), "fine", "scripts run beside the instance");

    // Another node manages it now: this one has nothing to say of it any more, not even that it is gone.
    rig.server.release(&slot);
    rig.server.stop_alloc(a.id);
    let update = rig.server.status(a.id, ClientStatus::Complete).await;
    assert!(update.remote_services.is_empty(), "{:?}", update.remote_services);

    rig.server.ends(bare(&order), 8).await;
    leave(&rig, node).await;
}

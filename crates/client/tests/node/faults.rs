//! Plugins and agents that die.

use std::time::Duration;

use client::Client;
use model::ClientStatus;
use serde_json::json;

use crate::fixture::{Rig, alloc, end, eventually, kinds, processes, task};

pub(crate) fn plugin_pids(rig: &Rig) -> Vec<i32> {
    // The plugins of this node are known by the socket directory in their environment.
    processes(rig.dir.path()).into_iter().filter(|(_, line)| line.contains("test_plugin")).map(|(pid, _)| pid).collect()
}

/// Kills a process that was there a moment ago: it may have ended by itself since.
pub(crate) fn kill(pid: i32) {
    testkit::try_signal(pid, rustix::process::Signal::KILL).expect("a process of ours");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_plugin_costs_no_task_anything() {
    let (rig, node) = Rig::with("mock").await;
    let (a, job_a) = alloc("service", vec![task("t", "mock", json!({"run_for": "1h"}))]);
    let (b, job_b) = alloc("batch", vec![task("t", "mock", json!({"run_for": "1500ms", "exit_code": 5}))]);
    rig.server.place(&a, &job_a);
    rig.server.place(&b, &job_b);
    rig.server.status(a.id, ClientStatus::Running).await;
    rig.server.started(b.id).await;
    let pids = plugin_pids(&rig);
    assert!(!pids.is_empty(), "the plugin of this node is found");
    pids.into_iter().for_each(kill);
    let update = rig.server.status(b.id, ClientStatus::Failed).await;
    assert_eq!(kinds(&update.task_states["t"]), ["Received", "Task Setup", "Started", "Terminated", "Not Restarting"]);
    assert_eq!(update.task_states["t"].events[3].exit_code, 5);
    let still = node.handle().alloc_update(a.id).expect("alloc");
    assert_eq!(kinds(&still.task_states["t"]), ["Received", "Task Setup", "Started"]);
    rig.server.stop_alloc(a.id);
    rig.server.status(a.id, ClientStatus::Complete).await;
    end(&rig, node).await;
    eventually("the plugins to be gone", || plugin_pids(&rig).is_empty()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_agent_on_the_same_directory_is_refused() {
    let rig = Rig::new().await;
    let node = rig.node().await;
    let refused = Client::start(rig.config()).await.err().expect("refused").to_string();
    assert!(refused.contains(&format!("pid {}", std::process::id())), "{refused}");
    end(&rig, node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_servers_have_collected_meanwhile_is_gone_after_a_restart() {
    let (rig, node) = Rig::with("mock").await;
    let (a, _) = rig.run("service", vec![task("t", "mock", json!({"run_for": "1h"}))]).await;
    node.stop().await;
    rig.server.collect(a.id);
    let orphan = rig.dir.path().join("alloc").join(uuid::Uuid::new_v4().to_string());
    std::fs::create_dir_all(orphan.join("t")).expect("orphan");
    let node = rig.node().await;
    assert!(!orphan.exists(), "a directory that no record claims is swept");
    eventually("the allocation to go", || !rig.alloc_dir(a.id).exists() && !node.handle().has_alloc(a.id)).await;
    end(&rig, node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_falls_silent_costs_the_session_and_nothing_else() {
    let rig = Rig::new().await;
    rig.server.lease(Duration::from_millis(300));
    let node = rig.node().await;
    let told = |heard: &crate::fixture::Heard| {
        heard.schemas.iter().flatten().any(|schema| schema.driver == "mock").then_some(())
    };
    // A session that begins late says in its first message that the driver is healthy; the schemas follow.
    rig.server.heard("the driver's schema", told).await;
    let (a, _) = rig.run("service", vec![task("t", "mock", json!({"run_for": "1h"}))]).await;
    let before = rig.server.now().sessions;
    rig.server.mute(true);
    rig.server
        .heard("another session, which is told the schemas again", |h| (h.sessions > before).then(|| told(h)).flatten())
        .await;
    rig.server.mute(false);
    let update = node.handle().alloc_update(a.id).expect("alloc");
    assert_eq!(update.client_status, ClientStatus::Running);
    rig.server.stop_alloc(a.id);
    rig.server.status(a.id, ClientStatus::Complete).await;
    end(&rig, node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_driver_that_dies_in_every_start_fails_its_task_only() {
    let (rig, node) = Rig::with("mock").await;
    rig.driver_ready("raw_exec").await;
    let (a, job_a) = alloc("batch", vec![task("t", "mock", json!({"run_for": "1h", "panic": ["start"]}))]);
    let (b, job_b) = alloc("batch", vec![task("t", "raw_exec", json!({"command": "/bin/true"}))]);
    rig.server.place(&a, &job_a);
    rig.server.place(&b, &job_b);
    rig.server.status(b.id, ClientStatus::Complete).await;
    let update = rig.server.status(a.id, ClientStatus::Failed).await;
    assert!(kinds(&update.task_states["t"]).contains(&"Driver Failure"), "{update:#?}");
    end(&rig, node).await;
}

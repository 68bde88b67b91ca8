//! Local tasks with the mock driver.

use model::{ClientStatus, TaskRunState};
use serde_json::json;

use crate::fixture::{Rig, alloc, end, eventually, kinds, restarts, task};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_task_completes_and_is_collected() {
    let rig = Rig::new().await;
    let node = rig.node().await;
    rig.driver_ready("mock").await;
    let (a, job) = alloc("batch", vec![task("t", "mock", json!({"run_for": "10ms"}))]);
    rig.server.place(&a, &job);
    let update = rig.server.status(a.id, ClientStatus::Complete).await;
    let state = &update.task_states["t"];
    assert_eq!(kinds(state), ["Received", "Task Setup", "Started", "Terminated"]);
    assert_eq!(state.state, TaskRunState::Dead);
    assert!(!state.failed && !state.started_at.is_empty() && !state.finished_at.is_empty());
    assert!(rig.alloc_dir(a.id).join("t/secrets").is_dir());
    rig.server.collect(a.id);
    eventually("the allocation to go", || !rig.alloc_dir(a.id).exists() && !node.handle().has_alloc(a.id)).await;
    end(&rig, node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exit_codes_signals_and_restarts_follow_the_policy() {
    let rig = Rig::new().await;
    let node = rig.node().await;
    rig.driver_ready("mock").await;
    let mut failing = task("t", "mock", json!({"run_for": "1ms", "exit_code": 3}));
    failing.restart = Some(restarts(2));
    let (a, job) = alloc("batch", vec![failing]);
    let (b, job_b) = alloc("batch", vec![task("t", "mock", json!({"run_for": "1ms", "exit_signal": 9, "exit_code": 137}))]);
    rig.server.place(&a, &job);
    rig.server.place(&b, &job_b);
    let update = rig.server.status(a.id, ClientStatus::Failed).await;
    let state = &update.task_states["t"];
    assert_eq!((state.restarts, state.failed), (2, true));
    let codes: Vec<i32> = state.events.iter().filter(|e| e.kind == "Terminated").map(|e| e.exit_code).collect();
    assert_eq!(codes, [3, 3, 3]);
    assert_eq!(kinds(state).last(), Some(&"Not Restarting"));
    let update = rig.server.status(b.id, ClientStatus::Failed).await;
    let ended = update.task_states["t"].events.iter().find(|e| e.kind == "Terminated").expect("terminated");
    assert_eq!((ended.exit_code, ended.signal), (137, 9));
    end(&rig, node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_configuration_and_a_refusing_driver_fail_the_task() {
    let rig = Rig::new().await;
    let node = rig.node().await;
    rig.driver_ready("mock").await;
    let (a, job_a) = alloc("service", vec![task("t", "mock", json!({"no_such_key": 1}))]);
    let (b, job_b) = alloc("service", vec![task("t", "mock", json!({"start_error": "no room"}))]);
    rig.server.place(&a, &job_a);
    rig.server.place(&b, &job_b);
    let update = rig.server.status(a.id, ClientStatus::Failed).await;
    assert!(kinds(&update.task_states["t"]).contains(&"Failed Validation"), "{update:#?}");
    let update = rig.server.status(b.id, ClientStatus::Failed).await;
    let failure = update.task_states["t"].events.iter().find(|e| e.kind == "Driver Failure").expect("driver failure");
    assert!(failure.driver_error.contains("no room"), "{failure:?}");
    end(&rig, node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_runs_until_it_is_stopped() {
    let rig = Rig::new().await;
    let node = rig.node().await;
    rig.driver_ready("mock").await;
    let (a, job) = alloc("service", vec![task("t", "mock", json!({"run_for": "1h"}))]);
    rig.server.place(&a, &job);
    rig.server.status(a.id, ClientStatus::Running).await;
    rig.server.stop_alloc(a.id);
    let update = rig.server.status(a.id, ClientStatus::Complete).await;
    let kinds = kinds(&update.task_states["t"]);
    assert_eq!(kinds, ["Received", "Task Setup", "Started", "Killing", "Terminated", "Killed"]);
    end(&rig, node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_live_through_a_restart_of_the_agent() {
    let rig = Rig::new().await;
    let node = rig.node().await;
    rig.driver_ready("mock").await;
    let (a, job_a) = alloc("service", vec![task("t", "mock", json!({"run_for": "1h"}))]);
    let (b, job_b) = alloc("batch", vec![task("t", "mock", json!({"run_for": "300ms", "exit_code": 7}))]);
    rig.server.place(&a, &job_a);
    rig.server.place(&b, &job_b);
    let before = rig.server.status(a.id, ClientStatus::Running).await;
    rig.server.status(b.id, ClientStatus::Running).await;
    let id = node.handle().node_id();
    node.stop().await;

    let node = rig.node().await;
    assert_eq!(node.handle().node_id(), id);
    let update = rig.server.status(b.id, ClientStatus::Failed).await;
    let ended = update.task_states["t"].events.iter().find(|e| e.kind == "Terminated").expect("terminated");
    assert_eq!(ended.exit_code, 7, "the end that was missed is reported");
    eventually("the service to be known again", || {
        node.handle().alloc_update(a.id).is_some_and(|u| u.client_status == ClientStatus::Running)
    })
    .await;
    let after = node.handle().alloc_update(a.id).expect("alloc");
    assert_eq!(after.task_states["t"].started_at, before.task_states["t"].started_at, "it was not started again");
    rig.server.stop_alloc(a.id);
    rig.server.status(a.id, ClientStatus::Complete).await;
    end(&rig, node).await;
}

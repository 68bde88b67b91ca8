//! Local tasks with the mock driver.

use model::{ClientStatus, GoDuration, TaskRunState};
use serde_json::json;

use crate::fixture::{Rig, alloc, end, eventually, kinds, restarts, task};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_task_completes_and_is_collected() {
    let (rig, node) = Rig::with("mock").await;
    let (a, _) = rig.place("batch", vec![task("t", "mock", json!({"run_for": "10ms"}))]);
    let update = rig.server.status(a.id, ClientStatus::Complete).await;
    let state = &update.task_states["t"];
    assert_eq!(kinds(state), ["Received", "Task Setup", "Started", "Terminated"]);
    assert_eq!(state.state, TaskRunState::Dead);
    assert!(!state.failed && !state.started_at.is_unset() && !state.finished_at.is_unset());
    assert!(rig.alloc_dir(a.id).join("t/secrets").is_dir());
    rig.server.collect(a.id);
    eventually("the allocation to go", || !rig.alloc_dir(a.id).exists() && !node.handle().has_alloc(a.id)).await;
    end(&rig, node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exit_codes_signals_and_restarts_follow_the_policy() {
    let (rig, node) = Rig::with("mock").await;
    let mut failing = task("t", "mock", json!({"run_for": "1ms", "exit_code": 3}));
    failing.restart = Some(restarts(2));
    let (a, job) = alloc("batch", vec![failing]);
    let (b, job_b) =
        alloc("batch", vec![task("t", "mock", json!({"run_for": "1ms", "exit_signal": 9, "exit_code": 137}))]);
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
    let (rig, node) = Rig::with("mock").await;
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
    let (rig, node) = Rig::with("mock").await;
    let (a, _) = rig.place("service", vec![task("t", "mock", json!({"run_for": "1h"}))]);
    let running = rig.server.status(a.id, ClientStatus::Running).await;
    assert_eq!(running.network_status, Some(Box::default()), "it is on the host's network");
    rig.server.stop_alloc(a.id);
    let update = rig.server.status(a.id, ClientStatus::Complete).await;
    let kinds = kinds(&update.task_states["t"]);
    assert_eq!(kinds, ["Received", "Task Setup", "Started", "Killing", "Terminated", "Killed"]);
    end(&rig, node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_live_through_a_restart_of_the_agent() {
    let (rig, node) = Rig::with("mock").await;
    let (a, job_a) = alloc("service", vec![task("t", "mock", json!({"run_for": "1h"}))]);
    let (b, job_b) = alloc("batch", vec![task("t", "mock", json!({"run_for": "300ms", "exit_code": 7}))]);
    rig.server.place(&a, &job_a);
    rig.server.place(&b, &job_b);
    let before = rig.server.status(a.id, ClientStatus::Running).await;
    rig.server.started(b.id).await;
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sticky_disk_goes_to_the_successor_when_its_predecessor_has_ended() {
    let (rig, node) = Rig::with("raw_exec").await;
    let script = "trap 'echo last >> $NOMAD_ALLOC_DIR/data/log; exit 0' INT TERM
        echo mine >> $NOMAD_TASK_DIR/log; echo begin >> $NOMAD_ALLOC_DIR/data/log
        while :; do sleep 0.05; done";
    let mut t = task("t", "raw_exec", json!({"command": "/bin/sh", "args": ["-c", script]}));
    // On a busy machine the shell may take a while to hear the signal.
    t.kill_timeout = Some(GoDuration::from_secs(30));
    let (a, mut job) = alloc("service", vec![t]);
    job.task_groups[0].ephemeral_disk = Some(model::job::EphemeralDisk { sticky: Some(true), ..Default::default() });
    rig.server.place(&a, &job);
    let data = |id| std::fs::read_to_string(rig.alloc_dir(id).join("alloc/data/log")).unwrap_or_default();
    eventually("the first run", || data(a.id) == "begin\n").await;
    let b = model::Allocation { id: model::AllocId(uuid::Uuid::new_v4()), previous_allocation: a.id, ..a.clone() };
    rig.server.place(&b, &job);
    rig.server
        .alloc(b.id, "the wait for the predecessor", |u| {
            format!("{:?}", u.task_states["t"].events).contains("Waiting for the previous")
        })
        .await;
    assert_eq!(data(b.id), "", "nothing is taken from what still runs");
    rig.server.stop_alloc(a.id);
    eventually("the data with the successor", || data(b.id) == "begin\nlast\nbegin\n").await;
    let own = std::fs::read_to_string(rig.alloc_dir(b.id).join("t/local/log")).expect("there");
    assert_eq!(own, "mine\nmine\n");
    assert!(!rig.alloc_dir(a.id).join("alloc/data").exists(), "moved, not copied");
    end(&rig, node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn host_volumes_reach_drivers_that_mount_and_are_refused_by_those_that_do_not() {
    let rig = Rig::new().await;
    let mut config = rig.config();
    let shared = rig.dir.path().join("shared");
    std::fs::create_dir(&shared).expect("dir");
    let volume = |path: &std::path::Path, read_only| model::node::HostVolume {
        name: "v".into(),
        path: path.display().to_string(),
        read_only,
        ..Default::default()
    };
    config.host_volumes =
        [("shared".into(), volume(&shared, false)), ("gone".into(), volume(&rig.dir.path().join("gone"), true))].into();
    let node = client::Client::start(config).await.expect("start");
    rig.driver_ready("mock").await;
    rig.driver_ready("raw_exec").await;
    let known = rig.server.heard("the node's volumes", |h| h.node.as_ref().map(|n| n.host_volumes.clone())).await;
    assert_eq!((known.len(), known["gone"].read_only), (2, true));
    let placed = |driver: &str, config, source: &str, name: &str| {
        let mut main = task("t", driver, config);
        let mount = model::task::VolumeMount {
            volume: Some(name.into()),
            destination: Some("/data".into()),
            ..Default::default()
        };
        main.volume_mounts = vec![mount];
        let (a, mut job) = alloc("batch", vec![main]);
        let request = model::job::VolumeRequest { kind: "host".into(), source: source.into(), ..Default::default() };
        job.task_groups[0].volumes = [("data".to_owned(), request)].into();
        rig.server.place(&a, &job);
        a.id
    };
    let fine = placed("mock", json!({"run_for": "1ms"}), "shared", "data");
    rig.server.status(fine, ClientStatus::Complete).await;
    for (driver, config, source, name, part) in [
        ("raw_exec", json!({"command": "/bin/true"}), "shared", "data", "mounts nothing into its tasks"),
        ("mock", json!({"run_for": "1ms"}), "gone", "data", "does not exist on this node"),
        ("mock", json!({"run_for": "1ms"}), "unknown", "data", "no host volume"),
        ("mock", json!({"run_for": "1ms"}), "shared", "other", "does not ask for"),
    ] {
        let id = placed(driver, config, source, name);
        let update = rig.server.status(id, ClientStatus::Failed).await;
        let text = format!("{:?}", update.task_states["t"].events);
        assert!(text.contains(part), "{part}: {text}");
    }
    end(&rig, node).await;
}

//! Order of a group's tasks, leaders, signals and restarts by people.

use model::{ClientStatus, Task, TaskRunState, TaskState, TimestampNs, task::Lifecycle};
use serde_json::json;

use crate::fixture::{Rig, alloc, end, eventually, kinds, sh, task};

fn hook(mut task: Task, hook: &str, sidecar: bool) -> Task {
    task.lifecycle = Some(Lifecycle { hook: hook.into(), sidecar });
    task
}

fn started(state: &TaskState) -> Option<TimestampNs> {
    assert!(!state.started_at.is_unset(), "{state:?}");
    state.started_at.ns()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hooks_run_in_their_order() {
    let (rig, node) = Rig::with("mock").await;
    rig.driver_ready("raw_exec").await;
    let run = |name: &str, time: &str| task(name, "mock", json!({"run_for": time}));
    // What comes after its start is not started any more when it has ended.
    let main = sh("main", "until [ -e $NOMAD_ALLOC_DIR/data/then ]; do sleep 0.01; done");
    let (a, _) = rig.place(
        "batch",
        vec![
            hook(run("after", "1ms"), "poststop", false),
            main,
            hook(run("before", "50ms"), "prestart", false),
            hook(run("side", "1h"), "prestart", true),
            hook(sh("then", "touch $NOMAD_ALLOC_DIR/data/then"), "poststart", false),
        ],
    );
    let update = rig.server.status(a.id, ClientStatus::Complete).await;
    let state = |n: &str| &update.task_states[n];
    assert!(state("before").finished_at.ns() <= started(state("main")), "{update:#?}");
    assert!(started(state("main")) <= started(state("then")));
    assert!(state("main").finished_at.ns() <= started(state("after")));
    assert!(kinds(state("side")).contains(&"Main Tasks Dead"));
    assert!(update.task_states.values().all(|s| s.state == TaskRunState::Dead && !s.failed));
    end(&rig, node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_leader_and_a_failed_sibling_end_the_others() {
    let (rig, node) = Rig::with("mock").await;
    let mut leader = task("leader", "mock", json!({"run_for": "50ms"}));
    leader.leader = true;
    let other = || task("other", "mock", json!({"run_for": "1h"}));
    let (a, job_a) = alloc("batch", vec![leader, other()]);
    let (b, job_b) = alloc("batch", vec![task("bad", "mock", json!({"run_for": "50ms", "exit_code": 1})), other()]);
    rig.server.place(&a, &job_a);
    rig.server.place(&b, &job_b);
    let update = rig.server.status(a.id, ClientStatus::Complete).await;
    assert!(kinds(&update.task_states["other"]).contains(&"Leader Task Dead"));
    let update = rig.server.status(b.id, ClientStatus::Failed).await;
    assert!(kinds(&update.task_states["other"]).contains(&"Sibling Task Failed"));
    assert!(!update.task_states["other"].failed && update.task_states["bad"].failed);
    end(&rig, node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn people_restart_and_signal() {
    let (rig, node) = Rig::with("mock").await;
    let (a, _) = rig.run("service", vec![task("t", "mock", json!({"run_for": "1h"}))]).await;
    let handle = node.handle();
    handle.signal(a.id, None, "SIGHUP").await.expect("signal");
    assert!(handle.signal(a.id, None, "SIGNONSENSE").await.is_err());
    assert!(handle.signal(a.id, Some("nobody"), "SIGHUP").await.is_err());
    handle.restart(a.id, Some("t"), false).await.expect("restart");
    let update = rig
        .server
        .alloc(a.id, "a second start", |u| {
            u.task_states["t"].restarts == 1 && u.task_states["t"].state == TaskRunState::Running
        })
        .await;
    let kinds = kinds(&update.task_states["t"]);
    assert_eq!(
        kinds,
        ["Received", "Task Setup", "Started", "Signaling", "Restart Signaled", "Terminated", "Restarting", "Started"]
    );
    assert!(handle.restart(a.id, Some("nobody"), false).await.is_err());
    // The same while the next agent is still to find its task again, and its driver to be connected.
    node.stop().await;
    let node = rig.node().await;
    let of_alloc = || node.handle().alloc_update(a.id);
    eventually("the allocation to be known", || of_alloc().is_some()).await;
    node.handle().restart(a.id, Some("t"), false).await.expect("restart");
    eventually("a third start", || {
        of_alloc()
            .is_some_and(|u| u.task_states["t"].restarts == 2 && u.task_states["t"].state == TaskRunState::Running)
    })
    .await;
    end(&rig, node).await;
}

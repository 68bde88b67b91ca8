//! The complete driver of the guide, and everything that every driver gets from the SDK.

use std::time::Duration;

use driver_sdk::proto::driver::{InspectTaskRequest, SignalTaskRequest, StartTaskRequest, TaskState};
use driver_sdk::proto::errors;
use driver_sdk::testing::Plugin;
use serde_json::json;

use crate::support::{Place, destroy, eventually, recover, start, stop, wait};

/// The task's own process: it runs the script, and its parent is none of the task's. The order of numbers tells
/// nothing, as they begin anew at some time.
async fn pid(plugin: &mut Plugin, task: &driver_sdk::TaskConfig, place: &Place) -> i32 {
    let request = InspectTaskRequest { task_id: task.id.clone() };
    let status = plugin.driver.inspect_task(request).await.expect("known").into_inner().task.expect("a task");
    assert_eq!((status.state(), status.result.is_some()), (TaskState::Running, true));
    let parent = |pid: i32| -> Option<i32> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
    };
    eventually("the task's own process", || {
        let running = place.workloads();
        let own = |pid: &i32| {
            testkit::command_line(*pid).contains("trap") && parent(*pid).is_some_and(|p| !running.contains(&p))
        };
        let own: Vec<i32> = running.iter().copied().filter(own).collect();
        <[i32; 1]>::try_from(own).map(|[pid]| pid)
    })
    .await
}

#[tokio::test]
async fn a_script_runs_with_its_logs_and_nothing_of_the_launch() {
    let place = Place::new();
    let mut plugin = place.plugin("script").await;
    let script = "echo out; echo err >&2; pwd; env; grep SigIgn /proc/self/status; exit 3";
    let task = place.task(&mut plugin, "1", &json!({ "script": script })).await;
    start(&mut plugin, &task).await;
    // Many wait for the same end, and some come afterwards.
    let early = futures::future::join_all((0..10).map(|_| wait(&plugin, &task))).await;
    let late = wait(&plugin, &task).await;
    for answer in early.into_iter().chain([late]) {
        let answer = answer.expect("ends");
        assert_eq!((answer.result.expect("result").exit_code, answer.err.as_str()), (3, ""));
    }
    let log = place.log("stdout");
    assert!(log.starts_with(&format!("out\n{}\n", place.path().join("a/alloc/task").display())), "{log}");
    assert_eq!(place.log("stderr"), "err\n");
    for part in ["COOKIE", "PLUGIN_"] {
        assert!(!log.contains(part), "{part} of the plugin's launch is in the task's environment: {log}");
    }
    let ignored = log.lines().find_map(|line| line.strip_prefix("SigIgn:")).expect("a line").trim();
    let ignored = u64::from_str_radix(ignored, 16).expect("a mask");
    assert_eq!(ignored & (1 << (13 - 1)), 0, "the task has the default for SIGPIPE");
    for _ in 0..2 {
        destroy(&mut plugin, &task, true).await.expect("idempotent");
    }
    let error = wait(&plugin, &task).await.expect_err("forgotten");
    assert_eq!((error.message(), errors::is_task_not_found(&error)), (errors::TASK_NOT_FOUND, true));
    assert!(place.log("stdout").starts_with("out\n"), "logs outlive the task");
}

#[tokio::test]
async fn a_task_outlives_its_plugin_and_is_stopped_as_a_whole() {
    let place = Place::new();
    let mut first = place.plugin("script").await;
    // One child in its own session, and one orphan.
    let script = "setsid sleep 1000 & (sleep 1000 &) ; trap 'echo asked; exit 5' TERM; while :; do sleep 0.05; done";
    let task = place.task(&mut first, "1", &json!({ "script": script })).await;
    let mut handle = start(&mut first, &task).await;
    eventually("all of it runs", || place.workloads().len() >= 3).await;
    let before = pid(&mut first, &task, &place).await;
    first.kill().await.expect("killed");

    let mut second = place.plugin("script").await;
    // After their own restart, hosts may have only the handle.
    handle.config.as_mut().expect("echoed").msgpack_driver_config.clear();
    for _ in 0..2 {
        recover(&mut second, &handle).await.expect("found again");
    }
    assert_eq!(pid(&mut second, &task, &place).await, before);
    assert!(destroy(&mut second, &task, false).await.is_err(), "it runs");

    // An orderly end of the plugin ends no task either.
    second.shut_down().await.expect("ends in time");
    let mut third = place.plugin("script").await;
    recover(&mut third, &handle).await.expect("found again");
    assert_eq!(pid(&mut third, &task, &place).await, before);
    // A repeated start, as after a crash during the first, makes no second workload.
    let mut fourth = place.plugin("script").await;
    start(&mut fourth, &task).await;
    assert_eq!(pid(&mut fourth, &task, &place).await, before);
    fourth.kill().await.expect("killed");

    stop(&mut third, &task, "SIGTERM", Duration::from_secs(10)).await.expect("stops");
    assert_eq!(place.workloads(), Vec::<i32>::new(), "stop returns after the death of all");
    let answer = wait(&third, &task).await.expect("ended").result.expect("result");
    assert_eq!((answer.exit_code, place.log("stdout").as_str()), (5, "asked\n"));
    destroy(&mut third, &task, true).await.expect("destroys");
}

#[tokio::test]
async fn what_ended_meanwhile_is_reported_and_never_run_again() {
    let place = Place::new();
    let mut first = place.plugin("script").await;
    let task = place.task(&mut first, "1", &json!({ "script": "echo once >>runs; exit 7" })).await;
    let handle = start(&mut first, &task).await;
    first.kill().await.expect("killed");
    eventually("it has ended", || place.workloads().is_empty()).await;

    let mut second = place.plugin("script").await;
    recover(&mut second, &handle).await.expect("known");
    assert_eq!(wait(&second, &task).await.expect("ended").result.expect("result").exit_code, 7);
    assert_eq!(std::fs::read_to_string(place.path().join("a/alloc/task/runs")).expect("ran"), "once\n");
    destroy(&mut second, &task, true).await.expect("destroys");

    for (version, state) in [(9, handle.driver_state.clone()), (1, b"junk".to_vec())] {
        let mut wrong = handle.clone();
        (wrong.version, wrong.driver_state) = (version, state);
        let error = recover(&mut second, &wrong).await.expect_err("unknown");
        assert!(error.message().contains("handle"), "{error:?}");
    }
    recover(&mut second, &handle).await.expect_err("it was destroyed");
}

#[tokio::test]
async fn a_stop_that_is_ignored_kills_and_signals_arrive() {
    let place = Place::new();
    let mut plugin = place.plugin("script").await;
    let script = "trap '' INT; trap 'echo usr1' USR1; echo ready; while :; do sleep 0.05; done";
    let task = place.task(&mut plugin, "1", &json!({ "script": script })).await;
    start(&mut plugin, &task).await;
    eventually("it is ready", || place.log("stdout") == "ready\n").await;
    let signal = |name: &str| SignalTaskRequest { task_id: task.id.clone(), signal: name.into() };
    plugin.driver.signal_task(signal("SIGUSR1")).await.expect("sent");
    eventually("it has heard", || place.log("stdout") == "ready\nusr1\n").await;
    let error = plugin.driver.signal_task(signal("SIGNONE")).await.expect_err("no signal");
    assert!(error.message().contains("SIGNONE"), "{error:?}");
    stop(&mut plugin, &task, "", Duration::from_millis(50)).await.expect("killed");
    let result = wait(&plugin, &task).await.expect("ended").result.expect("result");
    assert_eq!((result.exit_code, result.signal), (137, 9));
    destroy(&mut plugin, &task, true).await.expect("destroys");
}

#[tokio::test]
async fn a_start_that_cannot_work_leaves_nothing() {
    let place = Place::new();
    let mut plugin = place.plugin("script").await;
    let mut task = place.task(&mut plugin, "1", &json!({ "script": "true", "shell": "/no/such/shell" })).await;
    let request = StartTaskRequest { task: Some(task.clone()) };
    let error = plugin.driver.start_task(request).await.expect_err("no shell");
    assert!(error.message().contains("/no/such/shell"), "{error:?}");
    assert!(errors::is_task_not_found(&wait(&plugin, &task).await.expect_err("unknown")));
    task.msgpack_driver_config = b"\x81\xa6script\x01".to_vec();
    let error = plugin.driver.start_task(StartTaskRequest { task: Some(task) }).await.expect_err("no text");
    assert!(error.message().contains("script: "), "{error:?}");
    assert_eq!(place.workloads(), Vec::<i32>::new());
}

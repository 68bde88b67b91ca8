//! The local driver.

use std::time::Duration;

use driver_sdk::proto::driver::*;
use driver_sdk::proto::{build, errors};
use driver_sdk::testing::Plugin;
use serde_json::json;
use testkit::{eventually, soon};
use tonic::Status;

use crate::{launch, start, task};

async fn mock(dir: &tempfile::TempDir) -> Plugin {
    launch(env!("CARGO_BIN_EXE_drover-driver-mock"), dir.path()).await
}

fn dir() -> tempfile::TempDir {
    tempfile::tempdir().expect("temporary directory")
}

async fn wait(plugin: &Plugin, id: &str) -> Result<WaitTaskResponse, Status> {
    let mut driver = plugin.driver.clone();
    soon(driver.wait_task(WaitTaskRequest { task_id: id.into() })).await.map(|answer| answer.into_inner())
}

async fn stop(plugin: &Plugin, id: &str, timeout: Duration) -> Result<(), Status> {
    let mut driver = plugin.driver.clone();
    let request =
        StopTaskRequest { task_id: id.into(), timeout: Some(build::duration(timeout)), ..StopTaskRequest::default() };
    driver.stop_task(request).await.map(drop)
}

#[tokio::test]
async fn a_job_file_written_for_nomads_mock_driver_runs() {
    let dir = dir();
    let mut plugin = mock(&dir).await;
    let config = json!({
        "run_for": "50ms",
        "exit_code": 4,
        "exit_err_msg": "as asked",
        "start_block_for": "10ms",
        "start_error_recoverable": false,
        "kill_after": "1s",
        "signal_error": "no signals",
        "driver_ip": "10.1.2.3",
        "driver_advertise": true,
        "driver_port_map": "http:8080",
        "stdout_string": "out\n",
        "stdout_repeat": 2,
        "stdout_repeat_duration": "1ms",
        "stderr_string": "err\n",
        "exec_command": [{ "run_for": "1ms", "stdout_string": "hi", "stdout_repeat": 1, "stderr_string": "e",
            "stderr_repeat": 2,
            "stderr_repeat_duration": "1ms", "exit_code": 3 }],
    });
    let mut task = task(&mut plugin, "a/task/1", config).await;
    let log = |name: &str| dir.path().join(name).display().to_string();
    (task.stdout_path, task.stderr_path) = (log("out"), log("err"));
    for path in [&task.stdout_path, &task.stderr_path] {
        std::fs::write(path, "").expect("creates");
    }
    let answer =
        plugin.driver.start_task(StartTaskRequest { task: Some(task.clone()) }).await.expect("starts").into_inner();
    let network = answer.network_override.expect("an address");
    assert_eq!((network.addr.as_str(), network.port_map["http"], network.auto_advertise), ("10.1.2.3", 8080, true));
    let request = ExecTaskRequest {
        task_id: task.id.clone(),
        command: vec!["x".into()],
        timeout: Some(build::duration(Duration::from_secs(9))),
    };
    let executed = plugin.driver.exec_task(request).await.expect("runs").into_inner();
    assert_eq!((executed.stdout.as_slice(), executed.result.expect("result").exit_code), (b"hihi".as_slice(), 3));
    assert_eq!(executed.stderr.as_slice(), b"eee");
    let signal = SignalTaskRequest { task_id: task.id.clone(), signal: "SIGHUP".into() };
    assert_eq!(plugin.driver.signal_task(signal).await.expect_err("as asked").message(), "no signals");
    let ended = wait(&plugin, &task.id).await.expect("ends");
    assert_eq!((ended.result.expect("result").exit_code, ended.err.as_str()), (4, "as asked"));
    let written = || {
        Some(std::fs::read_to_string(dir.path().join("out")).expect("reads")).filter(|text| text == "out\nout\nout\n")
    };
    eventually("all of its output", written).await;
}

#[tokio::test]
async fn starts_fail_as_often_as_asked() {
    let dir = dir();
    let mut plugin = mock(&dir).await;
    let config = |recoverable: bool| {
        json!({ "start_error": "not yet", "start_error_recoverable": recoverable,
            "start_failures": 2 })
    };
    for (n, recoverable) in [(0, true), (1, true)] {
        let mut task = task(&mut plugin, &format!("a/task/{n}"), config(recoverable)).await;
        task.alloc_id = "a".into();
        let error = start(&plugin, &task).await.expect_err("fails");
        assert_eq!((error.message(), errors::recoverable(&error)), ("not yet", Some(true)));
    }
    let mut third = task(&mut plugin, "a/task/2", config(true)).await;
    third.alloc_id = "a".into();
    start(&plugin, &third).await.expect("starts");
    let other = task(&mut plugin, "b/task/0", config(false)).await;
    let error = start(&plugin, &other).await.expect_err("another allocation begins anew");
    assert_eq!(errors::recoverable(&error), None, "final");
}

#[tokio::test]
async fn crashes_of_the_plugin_are_counted_beyond_it() {
    let dir = dir();
    std::fs::create_dir_all(dir.path().join("alloc/task/private")).expect("creates");
    let config = json!({ "crash": ["start"], "start_failures": 2, "run_for": "1h" });
    let mut launches = 0;
    let (plugin, handle) = loop {
        let mut plugin = mock(&dir).await;
        launches += 1;
        let mut task = task(&mut plugin, "alloc/task/1", config.clone()).await;
        task.alloc_dir = dir.path().join("alloc").display().to_string();
        match start(&plugin, &task).await {
            Ok(handle) => break (plugin, handle),
            Err(_) => assert!(launches < 3, "it crashes for ever"),
        }
    };
    assert_eq!(launches, 3);
    let log = plugin.kill().await.expect("killed");
    assert!(!log.contains("the job asked for the end"), "the third start does not: {log}");

    // The task goes on without its driver and is found again.
    let mut next = mock(&dir).await;
    let request = RecoverTaskRequest { handle: Some(handle.clone()), ..RecoverTaskRequest::default() };
    next.driver.recover_task(request).await.expect("found");
    let id = handle.config.expect("echoed").id;
    stop(&next, &id, Duration::from_secs(1)).await.expect("stops");
    assert_eq!(wait(&next, &id).await.expect("ended").result.expect("result").exit_code, 0);
}

#[tokio::test]
async fn a_call_that_hangs_or_panics_is_alone_with_it() {
    let dir = dir();
    let mut plugin = mock(&dir).await;
    let hangs =
        task(&mut plugin, "a/hangs/1", json!({ "run_for": "1h", "hang": ["stop"], "panic": ["inspect"] })).await;
    let fine = task(&mut plugin, "a/fine/1", json!({ "run_for": "1h" })).await;
    for task in [&hangs, &fine] {
        start(&plugin, task).await.expect("starts");
    }
    let mut driver = plugin.driver.clone();
    let panic = driver.inspect_task(InspectTaskRequest { task_id: hangs.id.clone() }).await.expect_err("panics");
    assert!(panic.message().contains("panic in inspect"), "{panic:?}");
    let hanging = stop(&plugin, &hangs.id, Duration::ZERO);
    let other = soon(stop(&plugin, &fine.id, Duration::from_secs(1)));
    tokio::select! {
        biased;
        stopped = hanging => panic!("it has answered: {stopped:?}"),
        stopped = other => stopped.expect("stops"),
    }
    let misspelt = task(&mut plugin, "a/misspelt/1", json!({ "hang": ["stopp"] })).await;
    assert!(start(&plugin, &misspelt).await.expect_err("no such call").message().contains("\"stopp\" is no call"));
}

#[tokio::test]
async fn floods_and_samples_come_as_asked() {
    let dir = dir();
    let mut plugin = mock(&dir).await;
    let line = "x".repeat(1023) + "\n";
    let config = json!({
        "run_for": "1h", "stdout_string": line, "stdout_repeat": 4095, "log_lines": 5000, "events": 3,
        "cpu_percent": 12.5, "memory_mb": 7
    });
    let mut task = task(&mut plugin, "a/task/1", config).await;
    task.stdout_path = dir.path().join("out").display().to_string();
    std::fs::write(&task.stdout_path, "").expect("creates");
    let mut events = plugin.driver.task_events(TaskEventsRequest {}).await.expect("opens").into_inner();
    start(&plugin, &task).await.expect("starts");
    for n in 1..=3 {
        assert_eq!(soon(events.message()).await.expect("open").expect("one").message, format!("event {n} of 3"));
    }
    let request = TaskStatsRequest { task_id: task.id.clone(), ..TaskStatsRequest::default() };
    let mut samples = plugin.driver.task_stats(request).await.expect("opens").into_inner();
    let usage = soon(samples.message())
        .await
        .expect("open")
        .expect("at once")
        .stats
        .expect("stats")
        .agg_resource_usage
        .expect("usage");
    assert_eq!((usage.cpu.expect("cpu").percent, usage.memory.expect("memory").rss), (12.5, 7 << 20));
    eventually("the flood", || std::fs::metadata(&task.stdout_path).expect("exists").len() >= 4 << 20).await;
    let log = plugin.kill().await.expect("killed");
    assert!(log.contains("a log line that the job asked for"));
}

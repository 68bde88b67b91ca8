//! A task from start to end, and the driver's process dying under it.

use std::time::{Duration, Instant};

use driver_host::{CallError, ExecInput, ExecOutput, TaskStatus, handle_from_bytes, handle_to_bytes};
use rustix::process::Signal;
use serde_json::json;

use crate::support::{Fixture, fake, launched, signal, soon, task};

#[tokio::test(flavor = "multi_thread")]
async fn a_task_lives_and_ends_with_its_exit_code() {
    let (fixture, driver) = Fixture::mock().await;
    let seen = fixture.fingerprint("mock", |f| f.healthy).await;
    assert_eq!(seen.attributes["driver.mock"], "1");
    assert!(seen.attributes.contains_key("driver.mock.version") && seen.pid.is_some());
    let capabilities = driver.capabilities().expect("has run");
    assert!(capabilities.exec && capabilities.send_signals && !capabilities.remote_tasks);
    assert!(driver.remote().is_none() && seen.remote.is_none());

    let mut events = fixture.host.events();
    let config = json!({
        "run_for": "1h", "exit_code": 3, "events": 2, "memory_mb": 64, "cpu_percent": 12.5,
        "driver_ip": "10.0.0.7", "driver_port_map": "http:80 admin:81", "driver_advertise": true,
    });
    let task = task(&driver, &config);
    let started = soon(driver.start_task(task.clone())).await.expect("starts");
    let network = started.network.expect("has an address");
    assert_eq!((network.address.as_str(), network.port_map["admin"]), ("10.0.0.7", 81));
    assert!(started.handle.version >= 1);
    let kept = handle_from_bytes(&handle_to_bytes(&started.handle)).expect("round trip");
    assert_eq!(kept.config.as_ref().map(|c| c.id.as_str()), Some(task.id.as_str()));

    for n in 1..=2 {
        let event = soon(events.recv()).await.expect("event");
        assert_eq!((event.task_id.as_str(), event.message), (task.id.as_str(), format!("event {n} of 2")));
        assert!(event.at.is_some() && event.alloc_id == "alloc");
    }
    assert_eq!(soon(driver.inspect_task(&task.id)).await.expect("inspected").status, TaskStatus::Running);

    let mut stats = driver.stats(&task.id, Duration::from_millis(20)).expect("opens");
    for _ in 0..2 {
        let sample = soon(stats.next()).await.expect("a sample").expect("not an error");
        let usage = sample.agg_resource_usage.expect("usage");
        assert_eq!(usage.memory.map(|m| m.rss), Some(64 << 20));
        assert_eq!(usage.cpu.map(|c| c.percent), Some(12.5));
        assert!(sample.timestamp.is_some());
    }
    drop(stats);

    // Ten waits see the same end; one more after it sees it too.
    let waits: Vec<_> = (0..10)
        .map(|_| {
            let (driver, id) = (driver.clone(), task.id.clone());
            tokio::spawn(async move { driver.wait_task(&id).await })
        })
        .collect();
    soon(driver.stop_task(&task.id, "SIGTERM", Duration::from_secs(5))).await.expect("stops");
    for wait in waits {
        assert_eq!(soon(wait).await.expect("joined").expect("ended").exit_code, 3);
    }
    assert_eq!(soon(driver.wait_task(&task.id)).await.expect("ended").exit_code, 3);
    let inspected = soon(driver.inspect_task(&task.id)).await.expect("inspected");
    assert_eq!(inspected.status, TaskStatus::Exited);
    assert!(inspected.completed_at > inspected.started_at);

    soon(driver.destroy_task(&task.id, true)).await.expect("destroyed");
    soon(driver.destroy_task(&task.id, true)).await.expect("destroying is idempotent");
    let error = soon(driver.wait_task(&task.id)).await.expect_err("is gone");
    assert!(error.is_task_not_found(), "{error:?}");
    fixture.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stop_signal_and_exec_reach_the_task() {
    let (fixture, driver) = Fixture::mock().await;
    let id = async |config| {
        let task = task(&driver, &config);
        soon(driver.start_task(task.clone())).await.expect("starts");
        task.id
    };

    let obedient = id(json!({"run_for": "1h", "exit_code": 5})).await;
    soon(driver.stop_task(&obedient, "SIGTERM", Duration::from_secs(5))).await.expect("stops");
    assert_eq!(soon(driver.wait_task(&obedient)).await.expect("ended").exit_code, 5);

    let stubborn = id(json!({"run_for": "1h", "kill_after": "1h"})).await;
    soon(driver.stop_task(&stubborn, "", Duration::from_millis(50))).await.expect("is killed");
    let exit = soon(driver.wait_task(&stubborn)).await.expect("ended");
    assert_eq!((exit.exit_code, exit.signal), (137, 9));

    let odd = id(json!({"run_for": "1h", "signal_error": "no ears"})).await;
    let error = soon(driver.signal_task(&odd, "SIGHUP")).await.expect_err("refuses");
    assert_eq!(error.to_string(), "no ears");
    let result =
        soon(driver.exec_task(&odd, vec!["a".into(), "b".into()], Duration::from_secs(5))).await.expect("runs");
    assert_eq!((result.stdout.as_slice(), result.exit.exit_code), (b"a b".as_slice(), 0));

    let mut session = driver.exec_streaming(&odd, vec!["cat".into()], true).expect("opens");
    session.input.send(ExecInput::Resize { width: 80, height: 24 }).await.expect("sent");
    session.input.send(ExecInput::Heartbeat).await.expect("sent");
    session.input.send(ExecInput::Stdin(b"hello".to_vec())).await.expect("sent");
    let mut text = Vec::new();
    while text.len() < "[80x24]hello".len() {
        match soon(session.next()).await {
            Some(Ok(ExecOutput::Stdout(data))) => text.extend(data),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(text, b"[80x24]hello");
    session.input.send(ExecInput::CloseStdin).await.expect("sent");
    assert_eq!(soon(session.next()).await.expect("item").expect("fine"), ExecOutput::StdoutClosed);
    match soon(session.next()).await {
        Some(Ok(ExecOutput::Exited(exit))) => assert_eq!(exit.exit_code, 0),
        other => panic!("{other:?}"),
    }
    assert!(soon(session.next()).await.is_none());
    let mut unknown = driver.exec_streaming("nobody", vec![], false).expect("opens");
    let error = soon(unknown.next()).await.expect("an answer").expect_err("no such task");
    assert!(error.is_task_not_found(), "{error:?}");
    fixture.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_are_of_one_call_and_say_what_they_are() {
    let (fixture, driver) = Fixture::mock().await;
    let pid = fixture.fingerprint("mock", |f| f.healthy).await.pid;

    let start = async |config| soon(driver.start_task(task(&driver, &config))).await;
    let error = start(json!({"start_error": "no room", "start_error_recoverable": true})).await.expect_err("fails");
    assert!(error.recoverable() && error.to_string() == "no room", "{error:?}");
    let error = start(json!({"start_error": "bad image"})).await.expect_err("fails");
    assert!(!error.recoverable() && error.to_string() == "bad image", "{error:?}");
    let error = start(json!({"panic": ["start"]})).await.expect_err("panics");
    assert!(error.to_string().contains("panicked: the job asked for a panic"), "{error:?}");
    for config in [json!({"run_for": "soon"}), json!({"exit_code": 1.5})] {
        assert!(!start(config).await.expect_err("does not fit").recoverable());
    }
    let error = driver.encode_task_config(&json!({"run_four": "1s"}), &Default::default()).expect_err("unknown key");
    assert!(error.to_string().contains("run_four"), "{error}");

    // One call hangs, a hundred others are not held up by it.
    let hanging = tokio::spawn({
        let (driver, config) = (driver.clone(), task(&driver, &json!({"hang": ["start"]})));
        async move { driver.start_task(config).await }
    });
    for _ in 0..100 {
        start(json!({"run_for": "1h"})).await.expect("starts");
    }
    assert!(!hanging.is_finished());
    hanging.abort();
    assert_eq!(fixture.fingerprint("mock", |f| f.healthy).await.pid, pid, "the plugin was never replaced");
    fixture.finish().await;

    // It ends at its deadline.
    let fixture = Fixture::with(vec![fake("mock", &["mock"])], |options| {
        options.timing.start_task = Duration::from_millis(400);
    });
    let driver = fixture.driver("mock").await;
    let pid = fixture.fingerprint("mock", |f| f.healthy).await.pid;
    let error = soon(driver.start_task(task(&driver, &json!({"hang": ["start"]})))).await.expect_err("hangs");
    assert!(matches!(error, CallError::Timeout { call: "StartTask", .. }), "{error:?}");
    assert_eq!(fixture.fingerprint("mock", |f| f.healthy).await.pid, pid, "the plugin was never replaced");
    fixture.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_plugin_comes_back_and_its_tasks_are_recovered() {
    let (fixture, driver) = Fixture::mock().await;
    let first = fixture.fingerprint("mock", |f| f.healthy).await;
    let task = task(&driver, &json!({"run_for": "1h", "exit_code": 4}));
    let started = soon(driver.start_task(task.clone())).await.expect("starts");
    let mut stats = driver.stats(&task.id, Duration::from_secs(3600)).expect("opens");
    soon(stats.next()).await.expect("a sample").expect("fine");
    // The wait is under way once another call has been answered after it.
    let mut waiting = std::pin::pin!(soon(driver.wait_task(&task.id)));
    let inspected = tokio::select! {
        biased;
        ended = &mut waiting => panic!("{ended:?}"),
        inspected = soon(driver.inspect_task(&task.id)) => inspected.expect("inspected"),
    };

    let killed = Instant::now();
    signal(first.pid.expect("runs"), Signal::KILL);
    let error = waiting.await.expect_err("the plugin died");
    assert!(matches!(error, CallError::PluginGone { generation: 1, .. }), "{error:?}");
    assert!(error.recoverable() && error.is_plugin_gone());
    let error = soon(stats.next()).await.expect("an answer").expect_err("the plugin died");
    assert!(error.is_plugin_gone(), "{error:?}");

    assert_eq!(soon(driver.wait_ready(1)).await, 2);
    assert!(killed.elapsed() < Duration::from_secs(30), "relaunch took {:?}", killed.elapsed());
    let error = soon(driver.wait_task(&task.id)).await.expect_err("not known yet");
    assert!(error.is_task_not_found(), "{error:?}");
    soon(driver.recover_task(started.handle.clone())).await.expect("recovers");
    soon(driver.recover_task(started.handle)).await.expect("recovering is idempotent");
    let again = soon(driver.inspect_task(&task.id)).await.expect("inspected");
    assert!(
        again.started_at.is_some() && again.started_at == inspected.started_at,
        "the task's time went on: {again:?}"
    );
    soon(driver.stop_task(&task.id, "SIGTERM", Duration::from_secs(5))).await.expect("stops");
    assert_eq!(soon(driver.wait_task(&task.id)).await.expect("ended").exit_code, 4);
    let second = fixture.fingerprint("mock", |f| f.healthy && f.generation == 2).await;
    assert_ne!(first.pid, second.pid);
    fixture.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_that_keeps_dying_is_started_at_a_bounded_rate() {
    let (fixture, driver) = Fixture::mock().await;
    let began = Instant::now();
    for generation in 1..=5 {
        let config = task(&driver, &json!({"run_for": "1h", "plugin_exit_after": "1ms"}));
        let _ = soon(driver.start_task(config)).await;
        soon(driver.wait_ready(generation)).await;
    }
    // Each is started once, after 0, 100, 200, 400 and 800 ms, each up to a quarter less.
    assert!(began.elapsed() >= Duration::from_millis(1125), "{:?}", began.elapsed());
    assert_eq!(launched(fixture.dir.path()).len(), 6);
    fixture.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_that_hangs_is_replaced() {
    let fixture = Fixture::with(vec![fake("mock", &["mock"])], |options| {
        options.timing.watchdog_interval = Duration::from_millis(100);
        // Three in a row on a busy machine are a hang.
        options.timing.watchdog_deadline = Duration::from_secs(2);
    });
    let driver = fixture.driver("mock").await;
    let first = fixture.fingerprint("mock", |f| f.healthy).await.pid.expect("runs");
    let config = task(&driver, &json!({"run_for": "1h"}));
    let started = soon(driver.start_task(config.clone())).await.expect("starts");
    signal(first, Signal::STOP);
    let error = soon(driver.wait_task(&config.id)).await.expect_err("it is replaced");
    assert!(error.is_plugin_gone(), "{error:?}");
    soon(driver.wait_ready(1)).await;
    soon(driver.recover_task(started.handle)).await.expect("recovers");
    assert!(!crate::support::alive(first));
    // One that answers is left alone: many questions later it is still the same.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(driver.generation(), 2);
    fixture.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hundreds_of_open_calls_leave_room_for_one_more() {
    const TASKS: usize = 500;
    let (fixture, driver) = Fixture::mock().await;
    let mut ids = Vec::new();
    let mut open = Vec::new();
    for _ in 0..TASKS {
        let config = task(&driver, &json!({"run_for": "1h", "exit_code": 2}));
        soon(driver.start_task(config.clone())).await.expect("starts");
        let mut stats = driver.stats(&config.id, Duration::from_secs(3600)).expect("opens");
        soon(stats.next()).await.expect("a sample").expect("fine");
        let (waiting, id) = (driver.clone(), config.id.clone());
        open.push((stats, tokio::spawn(async move { waiting.wait_task(&id).await })));
        ids.push(config.id);
    }
    // 1,000 streams are open on one connection; a call more is answered all the same.
    soon(driver.inspect_task(&ids[0])).await.expect("inspected");
    for id in &ids {
        soon(driver.stop_task(id, "", Duration::from_secs(5))).await.expect("stops");
    }
    for (_, wait) in open {
        assert_eq!(soon(wait).await.expect("joined").expect("ended").exit_code, 2);
    }
    fixture.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_what_comes_with_the_agent_keeps_the_limit_of_open_files_that_the_agent_has_taken() {
    // As an agent does at its start, after somebody has given it one less than it may have.
    let resource = rustix::process::Resource::Nofile;
    let most = rustix::process::getrlimit(resource).maximum.unwrap_or(1 << 20).min(1 << 20);
    let given = rustix::process::Rlimit { current: Some(most - 1), maximum: Some(most) };
    rustix::process::setrlimit(resource, given).expect("lowered");
    open_files::raise();
    let builtin = Fixture::new(vec![driver_host::PluginSpec { builtin: true, ..fake("mock", &["mock"]) }]);
    let foreign = Fixture::new(vec![fake("mock", &["mock"])]);
    for (fixture, limit, told) in [(builtin, most, Some((most - 1).to_string())), (foreign, most - 1, None)] {
        let pid = fixture.fingerprint("mock", |f| f.healthy).await.pid.expect("runs");
        let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).expect("it runs");
        let row = limits.lines().find(|line| line.starts_with("Max open files")).expect("a row");
        assert_eq!(row.split_whitespace().nth(3), Some(&*limit.to_string()), "{row}");
        let environment = std::fs::read_to_string(fixture.dir.path().join("s/environment")).expect("noted");
        let variable = environment.lines().find_map(|line| line.strip_prefix("DROVER_OPEN_FILES="));
        assert_eq!(variable, told.as_deref());
        fixture.finish().await;
    }
}

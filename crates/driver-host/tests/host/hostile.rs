//! Answers that no driver should give, floods and hangs: a clear status on that plugin or call, and nothing on anyone
//! else.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use driver_host::proto::handshake;
use driver_host::{CallError, Driver, ExecInput, FsIsolation, NetworkMode, TaskStatus};
use serde_json::json;

use crate::support::{Fixture, eventually, fake, soon, task};

async fn raw(kinds: &str) -> (Fixture, Driver) {
    raw_within(kinds, None).await
}

/// With a limit for calls that some of its answers never meet.
async fn raw_within(kinds: &str, limit: Option<Duration>) -> (Fixture, Driver) {
    let fixture = Fixture::with(vec![fake("raw", &["raw", kinds])], |options| {
        options.timing.task_call = limit.unwrap_or(options.timing.task_call);
        options.timing.short_call = limit.unwrap_or(options.timing.short_call);
    });
    let driver = fixture.host.wait_driver("raw", testkit::PATIENCE).await.expect("comes up");
    soon(driver.wait_ready(0)).await;
    (fixture, driver)
}

async fn count(driver: &Driver, of: &str) -> i64 {
    let seen = soon(driver.inspect_task("counts")).await.expect("counts");
    seen.attributes[of].parse().expect("number")
}

async fn until_count(driver: &Driver, of: &str, expected: i64) {
    testkit::poll(&format!("{expected} {of}"), async || match count(driver, of).await {
        seen if seen == expected => Ok(()),
        seen => Err(seen),
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn handshakes_of_five_six_and_seven_fields_and_tcp_work() {
    for kinds in ["fine", "five-fields", "seven-fields", "tcp"] {
        let (fixture, driver) = raw(kinds).await;
        soon(driver.inspect_task("x")).await.expect(kinds);
        fixture.finish().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_is_started_with_exactly_the_variables_that_drivers_expect() {
    let (fixture, _driver) = raw("fine").await;
    let dir = fixture.dir.path().join("s");
    let dir = dir.canonicalize().expect("exists");
    let text = std::fs::read_to_string(dir.join("environment")).expect("written");
    let given: std::collections::BTreeMap<&str, &str> = text.lines().filter_map(|line| line.split_once('=')).collect();
    let agent: BTreeSet<String> = std::env::vars().map(|(name, _)| name).collect();
    let added: BTreeSet<&str> = given.keys().filter(|name| !agent.contains(**name)).copied().collect();
    let mut expected = BTreeSet::from([
        "NOMAD_PLUGIN_MAGIC_COOKIE",
        "PLUGIN_MIN_PORT",
        "PLUGIN_MAX_PORT",
        "PLUGIN_PROTOCOL_VERSIONS",
        "PLUGIN_UNIX_SOCKET_DIR",
        "TMPDIR",
        "DROVER_PLUGIN",
    ]);
    expected.retain(|name| !agent.contains(*name));
    assert_eq!(added, expected);
    let missing: Vec<&String> = agent.iter().filter(|name| !given.contains_key(name.as_str())).collect();
    assert!(missing.is_empty(), "the agent's environment is inherited: {missing:?}");
    let text = dir.to_string_lossy();
    assert_eq!(
        (given["PLUGIN_UNIX_SOCKET_DIR"], given["TMPDIR"], given["PLUGIN_PROTOCOL_VERSIONS"]),
        (&*text, &*text, "2")
    );
    assert_eq!(given[handshake::COOKIE_KEY], handshake::COOKIE_VALUE);
    fixture.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_without_headers_delay_nothing() {
    let began = Instant::now();
    let (fixture, driver) = raw("no-headers").await;
    fixture.fingerprint("raw", |f| f.healthy).await;
    assert!(began.elapsed() < Duration::from_secs(25), "no call has waited for its limit: {:?}", began.elapsed());
    soon(driver.inspect_task("x")).await.expect("answers");
    fixture.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_schemas_and_empty_answers_show_their_reason_and_harm_nobody() {
    let refused = [
        ("empty-info", "neither a driver nor a device plugin"),
        ("empty-config-schema", "schema"),
        ("deep-config-schema", "ConfigSchema"),
        ("deep-task-schema", "TaskConfigSchema"),
        ("init-fails", "no licence"),
    ];
    let mut plugins: Vec<_> = refused.iter().map(|(kind, _)| fake(kind, &["raw", kind])).collect();
    plugins.push(fake("mock", &["mock"]));
    let fixture = Fixture::with(plugins, |options| {
        options.timing.relaunch_first = Duration::from_secs(3600);
        options.timing.relaunch_max = Duration::from_secs(3600);
    });
    for (kind, text) in refused {
        let seen = fixture.fingerprint(kind, |f| f.settled).await;
        assert!(!seen.healthy && seen.description.contains(text), "{kind}: {}", seen.description);
        assert!(seen.description.len() < 10_000, "{kind}: {} bytes", seen.description.len());
    }
    let mock = fixture.driver("mock").await;
    soon(mock.start_task(task(&mock, &json!({"run_for": "1s"})))).await.expect("the good one works");
    fixture.finish().await;

    // A broken schema of tasks is the trouble of the tasks that need it.
    for kind in ["empty-task-schema", "deep-literal", "deep-type"] {
        let (fixture, driver) = raw(kind).await;
        let error = driver.encode_task_config(&json!({}), &Default::default()).expect_err("cannot be used").to_string();
        assert!(error.contains("the driver's own schema is not valid"), "{kind}: {error}");
        assert!(error.len() < 20_000, "{kind}: {} bytes", error.len());
        soon(driver.inspect_task("x")).await.expect("what runs goes on");
        fixture.finish().await;
    }

    let (fixture, driver) = raw("no-capabilities+empty-fingerprint+empty-network+odd-events").await;
    assert_eq!(driver.capabilities().expect("has run"), driver_host::Capabilities::default());
    let seen = fixture.fingerprint("raw", |f| f.settled).await;
    assert!(!seen.healthy && !seen.detected, "no health is not health: {seen:?}");
    assert_eq!(soon(driver.create_network("a", "h")).await.expect("an empty answer"), (None, false));
    fixture.finish().await;

    let (fixture, driver) = raw("network").await;
    let (spec, created) = soon(driver.create_network("a", "h")).await.expect("made");
    assert_eq!((spec.as_ref().map(|spec| spec.path.as_str()), created), (Some("/ns/a/h"), true));
    soon(driver.destroy_network("a", spec)).await.expect("removed by its namespace");
    let error = soon(driver.destroy_network("a", None)).await.expect_err("the driver's own words");
    assert!(error.to_string().contains("no namespace"), "{error}");
    fixture.finish().await;

    let (fixture, driver) = raw("fine").await;
    let error = soon(driver.create_network("a", "h")).await.expect_err("not offered");
    assert!(matches!(error, CallError::Unsupported { call: "CreateNetwork", .. }), "{error:?}");
    let capabilities = driver.capabilities().expect("has run");
    assert_eq!((capabilities.fs_isolation, capabilities.network_modes), (FsIsolation::None, vec![NetworkMode::Host]));
    fixture.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_ways_in_which_a_wait_can_end_are_told_apart() {
    let (fixture, driver) = raw("fine").await;
    let wait = async |id: &str| soon(driver.wait_task(id)).await;
    let ended = wait("ended").await.expect("an exit");
    assert_eq!((ended.exit_code, ended.error.as_deref()), (3, None));
    let badly = wait("ended-badly").await.expect("an exit");
    assert_eq!((badly.exit_code, badly.error.as_deref()), (3, Some("the log was lost")));
    let closed = wait("closed").await.expect("an exit");
    assert_eq!((closed.exit_code, closed.error.as_deref()), (-1, Some("channel closed")));
    assert!(matches!(wait("refused").await, Err(CallError::Failed { .. })));
    assert!(wait("gone").await.expect_err("unknown").is_task_not_found());
    assert!(matches!(wait("nothing").await, Err(CallError::BadAnswer { .. })));
    let pid = fixture.fingerprint("raw", |f| f.healthy).await.pid.expect("runs");
    let waiting = tokio::spawn({
        let driver = driver.clone();
        async move { driver.wait_task("for-ever").await }
    });
    until_count(&driver, "waits_open", 1).await;
    crate::support::signal(pid, rustix::process::Signal::KILL);
    assert!(soon(waiting).await.expect("joined").expect_err("the plugin died").is_plugin_gone());
    fixture.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn odd_values_and_oversized_messages_are_of_one_call() {
    let (fixture, driver) = raw("fine").await;
    let odd = soon(driver.inspect_task("odd")).await.expect("answers");
    assert_eq!((odd.status, odd.started_at, odd.exit), (TaskStatus::Unknown, None, None));
    let mut stats = driver.stats("odd", Duration::from_secs(1)).expect("opens");
    assert!(soon(stats.next()).await.expect("a sample").expect("fine").timestamp.is_none());
    assert!(soon(stats.next()).await.is_none());

    assert_eq!(soon(driver.inspect_task("mib:8")).await.expect("large and fine").attributes["a"].len(), 8 << 20);
    let error = soon(driver.inspect_task("mib:65")).await.expect_err("too large").to_string();
    assert!(error.contains("too large") && error.len() < 1000, "{error}");
    // Servers written in Go take 4 MiB, as this one does.
    let mut config = task(&driver, &json!({}));
    config.msgpack_driver_config = vec![0; 5 << 20];
    let error = soon(driver.start_task(config)).await.expect_err("too large");
    assert!(!error.recoverable() && error.to_string().contains("too large"), "{error}");
    soon(driver.inspect_task("x")).await.expect("the connection goes on");
    fixture.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stuck_call_of_one_task_delays_no_other() {
    let (fixture, driver) = raw_within("fine", Some(Duration::from_secs(3600))).await;
    let mut stuck: Vec<_> = (0..20)
        .map(|_| {
            let driver = driver.clone();
            tokio::spawn(async move { driver.stop_task("stuck", "", Duration::from_millis(100)).await })
        })
        .collect();
    stuck.push(tokio::spawn({
        let driver = driver.clone();
        async move { driver.signal_task("slow", "SIGHUP").await }
    }));
    for _ in 0..200 {
        soon(driver.stop_task("obedient", "", Duration::from_secs(5))).await.expect("stops");
    }
    assert!(stuck.iter().all(|call| !call.is_finished()));
    stuck.iter().for_each(tokio::task::JoinHandle::abort);
    fixture.finish().await;

    // It ends at its limit.
    let (fixture, driver) = raw_within("fine", Some(Duration::from_secs(1))).await;
    let stop = driver.stop_task("stuck", "", Duration::from_millis(100));
    let (stopped, signalled) = tokio::join!(soon(stop), soon(driver.signal_task("slow", "SIGHUP")));
    assert!(matches!(stopped, Err(CallError::Timeout { call: "StopTask", .. })), "{stopped:?}");
    assert!(matches!(signalled, Err(CallError::Timeout { call: "SignalTask", .. })), "{signalled:?}");
    assert_eq!(driver.generation(), 1, "a process that answers is not replaced");
    fixture.finish().await;
}

/// Leak path 19: what Go servers hold for a call that nobody waits for any more.
#[tokio::test(flavor = "multi_thread")]
async fn e4_19_abandoned_calls_are_cancelled_and_the_event_stream_is_opened_once() {
    let (fixture, driver) = raw("quiet-events").await;
    until_count(&driver, "events_open", 1).await;
    for _ in 0..20 {
        let session = driver.exec_streaming("for-ever", vec!["sh".into()], true).expect("opens");
        session.input.send(ExecInput::Stdin(b"x".to_vec())).await.expect("sent");
        until_count(&driver, "execs_open", 2).await;
        drop(session);
        until_count(&driver, "execs_open", 0).await;
    }
    let mut open = Vec::new();
    for _ in 0..20 {
        open.push(driver.stats("for-ever", Duration::from_secs(1)).expect("opens"));
    }
    until_count(&driver, "stats_open", 20).await;
    open.clear();
    until_count(&driver, "stats_open", 0).await;
    let waiting = tokio::spawn({
        let driver = driver.clone();
        async move { driver.wait_task("for-ever").await }
    });
    until_count(&driver, "waits_open", 1).await;
    waiting.abort();
    until_count(&driver, "waits_open", 0).await;
    assert_eq!(
        (count(&driver, "events").await, count(&driver, "events_open").await),
        (1, 1),
        "each cancelled one would stay in the plugin"
    );
    fixture.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn event_streams_that_end_at_once_are_reopened_slowly() {
    for kind in ["events-end", "fine"] {
        let began = Instant::now();
        let (fixture, driver) = raw(kind).await;
        testkit::poll("a third stream", async || count(&driver, "events").await >= 3).await;
        // After 1 and 2 seconds, each up to a quarter less.
        assert!(began.elapsed() >= Duration::from_millis(2000), "{kind}: {:?}", began.elapsed());
        fixture.finish().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_comes_over_the_stdio_service_is_drained() {
    let (fixture, _driver) = raw("stdio-floods").await;
    let done = fixture.dir.path().join("s/stdio.done");
    eventually("64 MiB are read", || done.exists()).await;
    fixture.finish().await;
}

//! Plugins that do everything wrong: a clear text on them, and nothing on anyone else.

use std::time::{Duration, Instant};

use driver_host::{CallError, DriverFingerprint, DriverHost, HostOptions, PluginSpec, TaskExit, TaskStatus};
use serde_json::json;

use crate::support::{Fixture, alive, eventually, fake, fake_plugin, launched, nothing_left, options, soon, task};

#[tokio::test(flavor = "multi_thread")]
async fn each_bad_plugin_shows_its_reason_and_the_good_one_works() {
    let long_path = format!("1|2|unix|/{}|grpc|", "x".repeat(200));
    let cases: Vec<(&str, Vec<&str>, &str)> = vec![
        ("junk", vec!["print", "hello world"], "\"hello world\""),
        ("core", vec!["print", "9|2|unix|/tmp/x|grpc|"], "base protocol"),
        ("version", vec!["print", "1|5|unix|/tmp/x|grpc|"], "driver protocol"),
        ("netrpc", vec!["print", "1|2|unix|/tmp/x|netrpc|"], "netrpc"),
        ("tls", vec!["print", "1|2|unix|/tmp/x|grpc|TUlJQg"], "TLS certificate"),
        ("path", vec!["print", &long_path], "107 bytes"),
        ("flood", vec!["flood-before"], "not a plugin handshake"),
        ("exit", vec!["exit"], "exit code 3"),
        ("stderr", vec!["exit"], "cannot find libmissing.so"),
        ("deaf", vec!["nobody-listens"], "cannot connect"),
        ("no-api", vec!["raw", "no-api"], "plugin API"),
        ("api-9", vec!["raw", "api-9"], "v9.9.9"),
        ("bad-version", vec!["raw", "bad-version"], "latest"),
        ("bad-config", vec!["raw", "bad-config"], "the region is not set"),
        ("no-task-schema", vec!["raw", "no-task-schema"], "no schema"),
    ];
    let mut plugins: Vec<PluginSpec> = cases.iter().map(|(name, args, _)| fake(name, args)).collect();
    plugins.push(PluginSpec { command: "/nonexistent/plugin".into(), ..fake("missing", &[]) });
    plugins.push(PluginSpec { command: "/".into(), ..fake("directory", &[]) });
    plugins.push(PluginSpec { config: Some(json!({"a": 1})), ..fake("unwanted-config", &["raw", "fine"]) });
    plugins.push(PluginSpec { config: Some(json!({"colour": 1})), ..fake("wrong-config", &["mock"]) });
    plugins.push(fake("mock", &["mock"]));
    let once = |options: &mut HostOptions| {
        options.timing.relaunch_first = Duration::from_secs(3600);
        options.timing.relaunch_max = Duration::from_secs(3600);
    };
    // Those that say nothing show their reason at a limit, which is short for nobody else.
    let silent = Fixture::with(vec![fake("silent", &["silent"])], |options| {
        once(options);
        options.timing.handshake = Duration::from_secs(2);
    });
    let hang = Fixture::with(vec![fake("hang", &["raw", "hang"])], |options| {
        once(options);
        options.timing.setup_call = Duration::from_secs(4);
    });
    let fixture = Fixture::with(plugins, once);
    let shows_its_reason = async |fixture: &Fixture, name: &str, text: &str| {
        let seen = fixture.fingerprint(name, |f| f.settled).await;
        assert!(!seen.healthy && !seen.detected && seen.pid.is_none(), "{name}: {seen:?}");
        assert!(seen.description.contains(text), "{name}: {}", seen.description);
        assert!(seen.description.len() < 10_000, "{name}: {} bytes", seen.description.len());
    };
    let texts = cases.iter().map(|(name, _, text)| (*name, *text)).chain([
        ("missing", "cannot start"),
        ("directory", "cannot start"),
        ("unwanted-config", "takes no configuration"),
        ("wrong-config", "colour"),
    ]);
    for (name, text) in texts {
        shows_its_reason(&fixture, name, text).await;
    }
    shows_its_reason(&silent, "silent", "did not send its handshake").await;
    shows_its_reason(&hang, "hang", "PluginInfo").await;
    silent.finish().await;
    hang.finish().await;
    let driver = fixture.driver("mock").await;
    soon(driver.start_task(task(&driver, &json!({"run_for": "1s"})))).await.expect("the good one works");
    // Only the good one runs: each refused process is gone already.
    eventually("the refused processes end", || {
        launched(fixture.dir.path()).into_iter().filter(|pid| alive(*pid)).count() == 1
    })
    .await;
    fixture.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn floods_and_odd_log_lines_hold_nothing_up() {
    let fixture = Fixture::new(vec![fake("mock", &["noisy"])]);
    let driver = fixture.driver("mock").await;
    let config = task(&driver, &json!({"run_for": "0s", "log_lines": 20_000}));
    soon(driver.start_task(config.clone())).await.expect("starts");
    assert_eq!(soon(driver.wait_task(&config.id)).await.expect("ends"), TaskExit::default());
    let done = fixture.dir.path().join("s/flood.done");
    eventually("10 MiB of standard output are read", || done.exists()).await;
    assert_eq!(driver.generation(), 1);
    fixture.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_without_their_parts_are_errors_or_filled() {
    let fixture = Fixture::new(vec![fake("raw", &["raw", "fine"])]);
    let driver = fixture.driver("raw").await;
    let config = task(&driver, &json!({}));
    let started = soon(driver.start_task(config.clone())).await.expect("starts");
    assert_eq!((started.handle.version, started.handle.config.map(|c| c.id)), (1, Some(config.id.clone())));
    let error = soon(driver.wait_task(&config.id)).await.expect_err("no result");
    assert!(matches!(error, CallError::BadAnswer { call: "WaitTask", .. }), "{error:?}");
    let exit = soon(driver.wait_task("closed")).await.expect("an end with an error");
    assert!(!exit.successful() && exit.error.as_deref() == Some("channel closed"), "{exit:?}");
    assert_eq!(soon(driver.inspect_task("x")).await.expect("empty").status, TaskStatus::Unknown);
    let error = soon(driver.exec_task("x", vec![], Duration::ZERO)).await.expect_err("no result");
    assert!(matches!(error, CallError::BadAnswer { call: "ExecTask", .. }), "{error:?}");
    let mut stats = driver.stats("x", Duration::from_secs(1)).expect("opens");
    assert!(soon(stats.next()).await.is_none());
    let mut exec = driver.exec_streaming("x", vec![], false).expect("opens");
    assert!(soon(exec.next()).await.is_some_and(|item| item.is_err()));
    let error = soon(driver.stop_task("x", "", Duration::ZERO)).await.expect_err("not there");
    assert!(matches!(error, CallError::Unsupported { call: "StopTask", .. }), "{error:?}");
    soon(driver.destroy_task("x", true)).await.expect("nothing to destroy is success");
    // No controller service: the process is killed after its grace.
    fixture.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_that_end_at_once_are_reopened_slowly() {
    let began = Instant::now();
    let fixture = Fixture::new(vec![fake("ends", &["raw", "fine"]), fake("wrong", &["raw", "wrong-enum"])]);
    // The first serves until the second is up, however long that takes. Its attributes are shown until the second
    // has sent a fingerprint.
    let calls = |f: &DriverFingerprint| f.attributes.get("calls").and_then(|n| n.parse::<u32>().ok()).unwrap_or(0);
    // A test that was not looking may miss the third.
    let third = |f: &DriverFingerprint| f.plugin == "wrong" && f.settled && calls(f) >= 3;
    let seen = fixture.fingerprint("raw", third).await;
    // The third comes after 1 and 2 seconds, each up to a quarter less.
    assert!(began.elapsed() >= Duration::from_millis(2200), "{:?}", began.elapsed());
    assert!(!seen.healthy && !seen.detected, "an unknown health is not health: {seen:?}");
    fixture.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failing_fingerprint_is_shown() {
    let fixture = Fixture::new(vec![fake("raw", &["raw", "fingerprint-fails"])]);
    let seen = fixture.fingerprint("raw", |f| f.settled).await;
    assert!(!seen.healthy && seen.description.contains("the runtime is on fire"), "{seen:?}");
    fixture.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_plugin_without_devices_says_so_and_takes_no_name_of_a_driver() {
    let fixture = Fixture::new(vec![fake("device", &["raw", "device"]), fake("driver", &["raw", "fine"])]);
    let seen = fixture.fingerprint("device/raw", |f| f.settled).await;
    assert!(!seen.healthy && seen.description.contains("Unimplemented"), "{seen:?}");
    assert_eq!(seen.devices.map(|groups| groups.len()), Some(0));
    let driver = fixture.driver("raw").await;
    soon(driver.start_task(task(&driver, &json!({})))).await.expect("the driver of that name works");
    let devices = fixture.host.device("device/raw").expect("it has named itself");
    let error = soon(devices.reserve(vec!["a".into()])).await.expect_err("there are none");
    assert!(matches!(error, CallError::Unsupported { call: "Reserve", .. }), "{error:?}");
    assert!(fixture.host.device("raw").is_none(), "a driver is no device plugin");
    fixture.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_higher_version_serves_the_driver() {
    let fixture = Fixture::new(vec![fake("old", &["versioned", "1.9.0"]), fake("new", &["versioned", "1.10.0"])]);
    let seen = fixture.fingerprint("versioned", |f| f.healthy && f.plugin == "new").await;
    assert_eq!(seen.version, "1.10.0");
    let refused = fixture.fingerprint("old", |f| f.settled).await;
    assert!(refused.description.contains("\"new\"") && refused.description.contains("1.10.0"), "{refused:?}");
    eventually("the lower one ends", || {
        launched(fixture.dir.path()).into_iter().filter(|pid| alive(*pid)).count() == 1
    })
    .await;
    let driver = fixture.driver("versioned").await;
    let error = soon(driver.start_task(task(&driver, &json!({})))).await.expect_err("has no tasks");
    assert!(matches!(error, CallError::Unsupported { .. }), "{error:?}");
    fixture.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_driver_waits_for_the_plugin_that_served_it_under_a_former_agent() {
    let fixture = Fixture::new(vec![fake("old", &["versioned", "1.9.0"]), fake("new", &["versioned", "1.10.0"])]);
    fixture.fingerprint("versioned", |f| f.healthy && f.plugin == "new").await;
    let Fixture { dir, host } = fixture;
    host.shutdown(driver_host::Ending::Stop).await;
    let late = PluginSpec {
        command: "/bin/sh".into(),
        args: ["-c", "sleep 1; exec \"$0\" versioned 1.10.0"]
            .map(str::to_owned)
            .into_iter()
            .chain([fake_plugin().display().to_string()])
            .collect(),
        ..fake("new", &[])
    };
    let host =
        DriverHost::start(options(dir.path(), vec![fake("old", &["versioned", "1.9.0"]), late])).expect("host starts");
    let fixture = Fixture { dir, host };
    let driver = fixture.host.driver("versioned").expect("is kept for the plugin that comes");
    soon(driver.wait_ready(0)).await;
    assert_eq!(fixture.fingerprint("versioned", |f| f.healthy).await.plugin, "new", "the first that serves it");
    fixture.fingerprint("old", |f| f.settled && f.description.contains("\"new\"")).await;
    // One that is not configured any more keeps nothing.
    let Fixture { dir, host } = fixture;
    host.shutdown(driver_host::Ending::Stop).await;
    let host = DriverHost::start(options(dir.path(), vec![fake("old", &["versioned", "1.9.0"])])).expect("host starts");
    let fixture = Fixture { dir, host };
    fixture.fingerprint("versioned", |f| f.healthy && f.plugin == "old").await;
    fixture.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_ends_during_a_launch_leaves_no_process() {
    let fixture = Fixture::new(vec![fake("silent", &["silent"])]);
    eventually("the process starts", || !launched(fixture.dir.path()).is_empty()).await;
    let began = Instant::now();
    fixture.host.shutdown(driver_host::Ending::LeaveRunning).await;
    assert!(began.elapsed() < Duration::from_secs(30), "it does not wait for the handshake");
    eventually("the process ends", || !launched(fixture.dir.path()).into_iter().any(alive)).await;
    nothing_left(fixture.dir.path());
}

#[tokio::test]
async fn unusable_directories_and_names_are_refused() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let start = |plugins, socket_dir: &str| {
        let options = HostOptions::new(plugins, dir.path().join(socket_dir), dir.path().join("state"));
        DriverHost::start(options).expect_err("refused").to_string()
    };
    assert!(start(vec![], &"x".repeat(100)).contains("choose a shorter one"));
    assert!(start(vec![fake("a", &[]), fake("a", &[])], "s").contains("two plugins"));
    for name in ["", "a/b", "..", "a b"] {
        assert!(start(vec![fake(name, &[])], "s").contains("cannot be the name"), "{name:?}");
    }
    std::fs::write(dir.path().join("file"), "").expect("write");
    assert!(start(vec![], "file/s").contains("cannot prepare"));
}

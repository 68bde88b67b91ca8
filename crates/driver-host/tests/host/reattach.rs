//! A plugin over a restart of the agent: kept when it is the very one, otherwise replaced, and strangers untouched.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use driver_host::{DriverHost, Ending, HostOptions, PluginSpec, Reloaded};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{Dir, Fixture, alive, eventually, fake, fake_plugin, launched, options, signal, soon, task};

/// Ends the host and leaves its plugins; then starts another on the same directories.
async fn restart(fixture: Fixture, plugins: Vec<PluginSpec>, meanwhile: impl FnOnce(&Path)) -> Fixture {
    let Fixture { dir, host } = fixture;
    host.shutdown(Ending::LeaveRunning).await;
    drop(host);
    meanwhile(dir.path());
    let host = DriverHost::start(options(dir.path(), plugins)).expect("host starts");
    Fixture { dir, host }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_may_be_at_a_start_which_nobody_has_confirmed_is_not_kept() {
    let (fixture, driver) = Fixture::mock().await;
    let before = fixture.fingerprint("mock", |f| f.healthy).await.pid.expect("runs");
    let hanging = task(&driver, &json!({"hang": ["start"]}));
    let start = tokio::spawn(async move { driver.start_task(hanging).await });
    let Fixture { dir, host } = fixture;
    host.shutdown(Ending::LeaveRunning).await;
    drop(host);
    start.abort();
    let mut options = options(dir.path(), vec![plugin()]);
    options.anew = ["mock".to_owned(), "other".to_owned()].into();
    let fixture = Fixture { dir, host: DriverHost::start(options).expect("host starts") };
    assert_ne!(fixture.fingerprint("mock", |f| f.healthy).await.pid, Some(before));
    assert!(!alive(before), "it has ended before the other one serves");
    fixture.finish().await;
}

fn plugin() -> PluginSpec {
    fake("mock", &["mock"])
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_process_is_kept_and_still_logs() {
    let (fixture, driver) = Fixture::mock().await;
    let before = fixture.fingerprint("mock", |f| f.healthy).await;
    let config = task(&driver, &json!({"run_for": "1500ms", "exit_code": 6}));
    let started = soon(driver.start_task(config.clone())).await.expect("starts");
    let fixture = restart(fixture, vec![plugin()], |_| ()).await;
    let driver = fixture.driver("mock").await;
    let after = fixture.fingerprint("mock", |f| f.healthy).await;
    assert_eq!(before.pid, after.pid);
    assert_eq!(launched(fixture.dir.path()).len(), 1);
    // Known to that process already; asking is harmless.
    soon(driver.recover_task(started.handle)).await.expect("recovers");
    assert_eq!(soon(driver.wait_task(&config.id)).await.expect("ended").exit_code, 6);
    // The log pipe is read again: this is more than it holds.
    let talkative = task(&driver, &json!({"run_for": "0s", "log_lines": 5000}));
    soon(driver.start_task(talkative)).await.expect("starts");
    // A reattached process that dies is noticed and replaced too.
    signal(after.pid.expect("runs"), Signal::KILL);
    assert_eq!(soon(driver.wait_ready(1)).await, 2);
    fixture.finish().await;
}

/// Nobody else's words tell that such a process is the plugin: its command line is another one.
#[tokio::test(flavor = "multi_thread")]
async fn a_script_that_becomes_another_program_is_known_as_the_plugin_before_and_after_a_restart() {
    let scripts = Dir::new("script");
    let script = scripts.path().join("wrapper");
    std::fs::write(&script, format!("#!/bin/sh\nexec {:?} mock\n", fake_plugin())).expect("written");
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).expect("executable");
    let spec = || PluginSpec { name: "mock".into(), command: script.clone(), ..PluginSpec::default() };
    let known = |fixture: &Fixture, pid: u32| {
        let marked = fixture.host.marked([pid]);
        marked.iter().map(|process| (process.plugin.clone(), process.known)).collect::<Vec<_>>()
    };
    let fixture = Fixture::new(vec![spec()]);
    let pid = fixture.fingerprint("mock", |f| f.healthy).await.pid.expect("runs");
    assert_eq!(known(&fixture, pid), [("mock".to_owned(), true)]);
    let fixture = restart(fixture, vec![spec()], |_| ()).await;
    assert_eq!(fixture.fingerprint("mock", |f| f.healthy).await.pid, Some(pid));
    assert_eq!(known(&fixture, pid), [("mock".to_owned(), true)]);
    // What an ended host has left is nobody's.
    let other = fake("other", &["mock"]);
    let Fixture { dir, host } = fixture;
    host.shutdown(Ending::LeaveRunning).await;
    let strange =
        DriverHost::start(HostOptions { state_dir: dir.path().join("new"), ..options(dir.path(), vec![other]) });
    let fixture = Fixture { dir, host: strange.expect("host starts") };
    assert_eq!(known(&fixture, pid), [("mock".to_owned(), false)]);
    signal(pid, Signal::KILL);
    fixture.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_that_died_meanwhile_is_started_anew() {
    let (fixture, _) = Fixture::mock().await;
    let before = fixture.fingerprint("mock", |f| f.healthy).await.pid.expect("runs");
    let fixture = restart(fixture, vec![plugin()], |_| {
        signal(before, Signal::KILL);
        while alive(before) {
            std::thread::yield_now();
        }
    })
    .await;
    fixture.driver("mock").await;
    assert_ne!(fixture.fingerprint("mock", |f| f.healthy).await.pid, Some(before));
    fixture.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_plugin_replaces_the_running_one() {
    let (fixture, _) = Fixture::mock().await;
    let before = fixture.fingerprint("mock", |f| f.healthy).await.pid.expect("runs");
    let changed = PluginSpec { config: Some(json!({"fs_isolation": "image"})), ..plugin() };
    let fixture = restart(fixture, vec![changed.clone()], |_| ()).await;
    let driver = fixture.driver("mock").await;
    let second = fixture.fingerprint("mock", |f| f.healthy).await.pid.expect("runs");
    assert!(second != before && !alive(before));
    assert_eq!(driver.capabilities().expect("has run").fs_isolation, driver_host::FsIsolation::Image);

    fixture.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_and_damaged_records_are_left_alone() {
    // A stranger that has got the number of the plugin; it ends with its pipe.
    let mut stranger = std::process::Command::new("cat")
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .spawn()
        .expect("cat starts");
    let record = |dir: &Path| dir.join("state/mock.reattach.json");
    let edit = |dir: &Path, change: &dyn Fn(&mut Value)| {
        let mut value: Value = serde_json::from_slice(&std::fs::read(record(dir)).expect("record")).expect("JSON");
        change(&mut value);
        std::fs::write(record(dir), value.to_string()).expect("write");
    };
    let stranger_pid = stranger.id();
    let changes: [&dyn Fn(&Path); 4] = [
        &|dir| edit(dir, &|value| value["pid"] = stranger_pid.into()),
        &|dir| edit(dir, &|value| value["boot_id"] = "another boot".into()),
        &|dir| edit(dir, &|value| value["pid"] = u32::MAX.into()),
        &|dir| std::fs::write(record(dir), b"{\"version\":").expect("write"),
    ];
    for change in changes {
        let (fixture, _) = Fixture::mock().await;
        let before = fixture.fingerprint("mock", |f| f.healthy).await.pid.expect("runs");
        let fixture = restart(fixture, vec![plugin()], change).await;
        fixture.driver("mock").await;
        assert_ne!(fixture.fingerprint("mock", |f| f.healthy).await.pid, Some(before));
        // No record proves it, its own environment does.
        eventually("the former process ends", || !alive(before)).await;
        fixture.finish().await;
    }
    assert!(stranger.try_wait().expect("asked").is_none(), "the stranger was killed");
    drop(stranger.stdin.take());
    stranger.wait().expect("ends");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_socket_of_someone_else_is_not_the_plugin() {
    let (fixture, _) = Fixture::mock().await;
    let before = fixture.fingerprint("mock", |f| f.healthy).await.pid.expect("runs");
    // The process is the right one and its address leads to nobody: it cannot be kept, and may be ended.
    let fixture = restart(fixture, vec![plugin()], |dir| {
        let path = dir.join("state/mock.reattach.json");
        let mut value: Value = serde_json::from_slice(&std::fs::read(&path).expect("record")).expect("JSON");
        value["addr"] = dir.join("s/nobody").to_string_lossy().into();
        std::fs::write(&path, value.to_string()).expect("write");
    })
    .await;
    fixture.driver("mock").await;
    assert!(!alive(before));
    fixture.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_that_is_no_longer_configured_is_ended() {
    let (fixture, _) = Fixture::mock().await;
    let before = fixture.fingerprint("mock", |f| f.healthy).await.pid.expect("runs");
    let fixture = restart(fixture, vec![], |_| ()).await;
    eventually("it ends", || !alive(before)).await;
    let record = fixture.dir.path().join("state/mock.reattach.json");
    eventually("its record goes", || !record.exists()).await;
    fixture.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_that_comes_while_an_unwanted_one_is_being_ended_keeps_its_records() {
    let (fixture, _) = Fixture::mock().await;
    let unwanted = fixture.fingerprint("mock", |f| f.healthy).await.pid.expect("runs");
    // It obeys nobody, so that its end takes a while.
    let fixture = restart(fixture, vec![], |_| signal(unwanted, Signal::STOP)).await;
    let late = fake("late", &["versioned", "1.0.0"]);
    assert_eq!(soon(fixture.host.reload(vec![late.clone()])).await.expect("is carried out")["late"], Reloaded::Started);
    let pid = fixture.fingerprint("versioned", |f| f.healthy).await.pid;
    // The end of a host waits for all that it has begun.
    let fixture = restart(fixture, vec![late], |dir| {
        assert!(!alive(unwanted));
        for record in ["late.reattach.json", "late.serves.json"] {
            assert!(dir.join("state").join(record).exists(), "{record}");
        }
    })
    .await;
    assert_eq!(fixture.fingerprint("versioned", |f| f.healthy).await.pid, pid);
    fixture.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_dies_during_a_launch_leaves_nothing_for_ever() {
    // A process that never shakes hands, and the record of it that a dead agent leaves.
    let fixture = Fixture::new(vec![fake("mock", &["silent"])]);
    let record = fixture.dir.path().join("state/mock.reattach.json");
    eventually("it is recorded", || record.exists()).await;
    let kept = std::fs::read(&record).expect("record");
    let (orphaned, _) = Fixture::mock().await;
    let before = orphaned.fingerprint("mock", |f| f.healthy).await.pid.expect("runs");
    let orphaned = restart(orphaned, vec![plugin()], |dir| {
        let path = dir.join("state/mock.reattach.json");
        let early: Value = serde_json::from_slice(&kept).expect("JSON");
        let mut value: Value = serde_json::from_slice(&std::fs::read(&path).expect("record")).expect("JSON");
        for key in ["driver", "network", "addr"] {
            assert_eq!(early[key], "", "nothing of it is known that early");
            value[key] = "".into();
        }
        std::fs::write(&path, value.to_string()).expect("write");
    })
    .await;
    orphaned.driver("mock").await;
    assert!(!alive(before), "a half-started process is ended");
    orphaned.finish().await;
    fixture.finish().await;
}

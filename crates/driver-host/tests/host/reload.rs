//! Plugins that change while the host runs, and what they leave behind.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use driver_host::{DriverHost, Ending, PluginSpec, Reloaded};
use rustix::process::Signal;
use serde_json::json;

use crate::support::{Fixture, alive, eventually, fake, fake_plugin, options, signal, soon, task, with_environment};

/// A plugin file that can be replaced: a script that becomes the fake.
fn script(dir: &Path, behaviour: &str) -> PathBuf {
    let path = dir.join("plugin.sh");
    let (text, draft) = (dir.join("text"), dir.join("draft"));
    std::fs::write(&text, format!("#!/bin/sh\nexec {} {behaviour}\n", fake_plugin().display())).expect("write");
    // This process never has it open for writing: a child of another test would inherit that until it executes its
    // own program, and the kernel executes no file that is open for writing.
    assert!(Command::new("cp").arg(&text).arg(&draft).status().expect("cp runs").success());
    std::fs::set_permissions(&draft, std::fs::Permissions::from_mode(0o755)).expect("mode");
    std::fs::rename(&draft, &path).expect("rename");
    path
}

fn scripted(path: &Path) -> PluginSpec {
    PluginSpec { name: "scripted".into(), command: path.into(), ..PluginSpec::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_file_is_taken_over_and_tasks_go_on() {
    let files = tempfile::tempdir().expect("temporary directory");
    let path = script(files.path(), "mock");
    let fixture = Fixture::new(vec![scripted(&path)]);
    let driver = fixture.driver("mock").await;
    let first = fixture.fingerprint("mock", |f| f.healthy).await.pid.expect("runs");
    let config = task(&driver, &json!({"run_for": "1h"}));
    let started = soon(driver.start_task(config.clone())).await.expect("starts");

    let reload = async |plugins| soon(fixture.host.reload(plugins)).await.expect("is carried out");
    let done = reload(vec![scripted(&path)]).await;
    assert_eq!(done["scripted"], Reloaded::Unchanged);
    assert_eq!((driver.generation(), alive(first)), (1, true));

    script(files.path(), "mock ");
    assert_eq!(reload(vec![scripted(&path)]).await["scripted"], Reloaded::Replaced);
    assert!(!alive(first) && driver.generation() == 2);
    soon(driver.recover_task(started.handle.clone())).await.expect("the task is known again");

    // What cannot serve does not cost the driver that does: a broken file, another driver, a wrong configuration.
    let second = fixture.fingerprint("mock", |f| f.healthy && f.generation == 2).await.pid.expect("runs");
    for (behaviour, why) in
        [("exit", "exit code 3"), ("versioned 9.0.0", "serves driver \"versioned\""), ("print junk", "junk")]
    {
        script(files.path(), behaviour);
        let done = reload(vec![scripted(&path)]).await;
        assert!(matches!(&done["scripted"], Reloaded::Kept(text) if text.contains(why)), "{behaviour}: {done:?}");
    }
    script(files.path(), "mock  ");
    let wrong = PluginSpec { config: Some(json!({"colour": 1})), ..scripted(&path) };
    let done = reload(vec![wrong]).await;
    assert!(matches!(&done["scripted"], Reloaded::Kept(text) if text.contains("colour")), "{done:?}");
    assert!(alive(second) && driver.is_ready() && driver.generation() == 2);
    soon(driver.inspect_task(&config.id)).await.expect("never stopped serving");

    let changed = PluginSpec { config: Some(json!({"fs_isolation": "image"})), ..scripted(&path) };
    assert_eq!(reload(vec![changed]).await["scripted"], Reloaded::Replaced);
    assert_eq!(driver.capabilities().expect("has run").fs_isolation, driver_host::FsIsolation::Image);
    // On request also without a change.
    assert_eq!(soon(fixture.host.restart("scripted")).await, Some(Reloaded::Replaced));
    assert_eq!((driver.generation(), soon(fixture.host.restart("other")).await), (4, None));
    fixture.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn plugins_come_and_go_and_failed_ones_get_another_attempt() {
    let files = tempfile::tempdir().expect("temporary directory");
    let path = script(files.path(), "exit");
    let fixture = Fixture::with(vec![scripted(&path)], |options| {
        options.timing.relaunch_first = Duration::from_secs(3600);
        options.timing.relaunch_max = Duration::from_secs(3600);
    });
    fixture.fingerprint("scripted", |f| f.settled).await;
    let reload = async |plugins| soon(fixture.host.reload(plugins)).await.expect("is carried out");
    let done = reload(vec![scripted(&path), fake("versioned", &["versioned", "1.0.0"])]).await;
    assert!(matches!(&done["scripted"], Reloaded::Failed(text) if text.contains("exit code 3")), "{done:?}");
    assert_eq!(done["versioned"], Reloaded::Started);
    fixture.driver("versioned").await;
    let pid = fixture.fingerprint("versioned", |f| f.healthy).await.pid.expect("runs");

    script(files.path(), "mock");
    let done = reload(vec![scripted(&path)]).await;
    assert_eq!((&done["scripted"], &done["versioned"]), (&Reloaded::Recovered, &Reloaded::Ended));
    assert!(!alive(pid));
    let shown = fixture.host.fingerprints().borrow().keys().cloned().collect::<Vec<_>>();
    assert_eq!(shown, ["mock"], "what is not configured is not shown");
    assert_eq!(fixture.host.plugin_names(), ["scripted"]);
    let old = fixture.host.driver("versioned").expect("handles stay valid");
    assert!(!old.is_ready());

    // A removed plugin no longer stands in the way of a lower version.
    assert_eq!(reload(vec![scripted(&path), fake("old", &["versioned", "0.1.0"])]).await["old"], Reloaded::Started);
    soon(old.wait_ready(1)).await;
    assert!(reload_refused(&fixture.host).await.contains("two plugins"));
    fixture.finish().await;
}

async fn reload_refused(host: &DriverHost) -> String {
    soon(host.reload(vec![fake("a", &[]), fake("a", &[])])).await.expect_err("refused").to_string()
}

fn helper_pids(dir: &Path) -> Vec<u32> {
    let text = std::fs::read_to_string(dir.join("s/helpers")).unwrap_or_default();
    text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

fn runs(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

#[tokio::test(flavor = "multi_thread")]
async fn helpers_end_with_their_plugin_and_executors_and_workloads_do_not() {
    for death in ["kill", "stop", "refused"] {
        let behaviour = if death == "refused" { "helpers-then-exit" } else { "helpers" };
        let fixture = Fixture::with(vec![fake("mock", &[behaviour])], |options| {
            options.timing.relaunch_first = Duration::from_secs(3600);
            options.timing.relaunch_max = Duration::from_secs(3600);
        });
        let dir = fixture.dir.path().to_owned();
        eventually("the helpers start", || helper_pids(&dir).len() == 4).await;
        let [helper, executor, workload, session] = helper_pids(&dir)[..] else { panic!("four") };
        match death {
            "kill" => {
                let seen = fixture.fingerprint("mock", |f| f.healthy).await;
                signal(seen.pid.expect("runs"), Signal::KILL);
            }
            "stop" => {
                fixture.driver("mock").await;
                fixture.host.shutdown(Ending::Stop).await;
            }
            _ => {
                fixture.fingerprint("mock", |f| f.settled).await;
            }
        }
        eventually("the helper ends", || !runs(helper)).await;
        for (what, pid) in [("executor", executor), ("workload", workload), ("process of another session", session)] {
            assert!(runs(pid), "{death}: the {what} must outlive the plugin");
        }
        fixture.host.shutdown(Ending::Stop).await;
        for pid in with_environment(&dir.to_string_lossy()) {
            // Helpers of a plugin that was started again may be ending.
            testkit::try_signal(pid, Signal::KILL).expect("ours");
        }
        eventually("nothing is left", || [executor, workload, session].into_iter().all(|pid| !runs(pid))).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_plugin_leaves_no_socket() {
    let (fixture, driver) = Fixture::mock().await;
    let sockets = || {
        let entries = std::fs::read_dir(fixture.dir.path().join("s")).expect("readable").flatten();
        entries
            .filter(|entry| entry.file_name().to_string_lossy().starts_with("plugin"))
            .map(|entry| entry.path())
            .collect::<Vec<_>>()
    };
    let before = sockets();
    assert_eq!(before.len(), 1);
    signal(fixture.fingerprint("mock", |f| f.healthy).await.pid.expect("runs"), Signal::KILL);
    soon(driver.wait_ready(1)).await;
    let after = sockets();
    assert!(after.len() == 1 && after != before, "{before:?} {after:?}");
    fixture.host.shutdown(Ending::Stop).await;
    assert!(sockets().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reattached_plugin_is_reloaded_like_any_other() {
    let files = tempfile::tempdir().expect("temporary directory");
    let path = script(files.path(), "mock");
    let fixture = Fixture::new(vec![scripted(&path)]);
    let before = fixture.fingerprint("mock", |f| f.healthy).await.pid;
    let Fixture { dir, host } = fixture;
    host.shutdown(Ending::LeaveRunning).await;
    drop(host);
    let host = DriverHost::start(options(dir.path(), vec![scripted(&path)])).expect("host starts");
    let fixture = Fixture { dir, host };
    assert_eq!(fixture.fingerprint("mock", |f| f.healthy).await.pid, before);
    assert_eq!(soon(fixture.host.reload(vec![scripted(&path)])).await.expect("done")["scripted"], Reloaded::Unchanged);
    script(files.path(), "mock ");
    assert_eq!(soon(fixture.host.reload(vec![scripted(&path)])).await.expect("done")["scripted"], Reloaded::Replaced);
    fixture.finish().await;
}

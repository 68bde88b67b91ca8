//! The driver `docker`.

use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::time::Duration;

use docker::Driver;
use driver_sdk::{Driver as _, Error, Health, StopTask, TaskConfig, TaskHandle, TaskStatus};
use serde_json::{Value, json};
use testkit::{eventually, poll, soon};

use super::{
    agent, config,
    fake::{Container, Engine},
    packed,
};

async fn driver(engine: &Engine) -> Driver {
    let driver = Driver::new();
    driver.set_config(config(engine, json!({})), agent()).await.expect("configured");
    driver
}

fn task(run: &str, options: Value) -> TaskConfig {
    TaskConfig {
        id: format!("a1/web/{run}"),
        name: "web".into(),
        alloc_id: "a1".into(),
        alloc_dir: "/nowhere/a1".into(),
        node_id: "n1".into(),
        msgpack_driver_config: packed(options),
        ..TaskConfig::default()
    }
}

fn plain(run: &str) -> TaskConfig {
    task(run, json!({"image": "busybox:1"}))
}

fn handle(task: &TaskConfig, started: driver_sdk::Started) -> TaskHandle {
    TaskHandle {
        version: started.version.into(),
        config: Some(task.clone()),
        driver_state: started.driver_state,
        ..TaskHandle::default()
    }
}

#[tokio::test]
async fn a_task_starts_ends_and_goes() {
    let engine = Engine::start();
    let driver = driver(&engine).await;
    driver.start_task(plain("r1")).await.expect("started");
    let (id, made) = engine.only();
    assert_eq!(
        (made.name.as_str(), made.status.as_str(), made.labels["drover.task_id"].as_str()),
        ("web-a1", "running", "a1/web/r1")
    );
    assert_eq!(driver.inspect_task("a1/web/r1").await.expect("seen").status, TaskStatus::Running);
    assert!(driver.destroy_task("a1/web/r1", false).await.is_err(), "it runs");
    engine.end(&id, 3);
    assert_eq!(driver.wait_task("a1/web/r1").await.expect("ended").exit_code, 3);
    driver.destroy_task("a1/web/r1", false).await.expect("destroyed");
    driver.destroy_task("a1/web/r1", false).await.expect("idempotent");
    assert!(engine.with(|s| s.containers.is_empty()));
    assert_eq!(driver.wait_task("a1/web/r1").await, Err(Error::TaskNotFound));
}

/// An engine hears of the end and of its reason by two ways.
#[tokio::test]
async fn the_reason_of_a_kill_is_waited_for() {
    let engine = Engine::start();
    let driver = driver(&engine).await;
    for (run, short_of_memory) in [("r1", true), ("r2", false)] {
        driver.start_task(plain(run)).await.expect("started");
        let (id, _) = engine.only();
        engine.with(|s| s.containers.get_mut(&id).expect("a container").short_of_memory = short_of_memory);
        engine.end(&id, 137);
        let task = format!("a1/web/{run}");
        let exit = driver.wait_task(&task).await.expect("ended");
        assert_eq!((exit.signal, exit.oom_killed), (9, short_of_memory));
        driver.destroy_task(&task, false).await.expect("destroyed");
    }
}

#[tokio::test]
async fn a_stop_signals_then_kills_and_survives_unknown_signals() {
    let engine = Engine::start();
    let driver = driver(&engine).await;
    for (run, signal) in [("r1", "SIGTERM"), ("r2", "SIGHUP"), ("r3", "SIGNONE"), ("r4", "")] {
        driver.start_task(plain(run)).await.expect("started");
        let id = format!("a1/web/{run}");
        driver
            .stop_task(&id, StopTask { signal: signal.into(), timeout: Duration::from_millis(50) })
            .await
            .expect(signal);
        assert_eq!(driver.wait_task(&id).await.expect("ended").signal, 9, "{signal}");
        assert!(matches!(driver.signal_task(&id, "SIGHUP").await, Err(Error::Failed(_))), "nobody is there to get it");
        driver.destroy_task(&id, false).await.expect("destroyed");
    }
}

#[tokio::test]
async fn an_engine_that_is_away_is_waited_for() {
    let engine = Engine::away();
    let driver = driver(&engine).await;
    let seen = driver.fingerprint().await;
    assert!(seen.health == Health::Undetected && seen.description.contains("cannot be reached"), "{seen:?}");
    assert!(matches!(driver.start_task(plain("r1")).await, Err(Error::Recoverable(_))));
    engine.come();
    poll("health", async || driver.fingerprint().await.health == Health::Healthy).await;
    let started = driver.start_task(plain("r1")).await.expect("started");
    let (id, _) = engine.only();

    engine.go().await;
    poll("a reason", async || driver.fingerprint().await.health == Health::Unhealthy).await;
    // Another process of the plugin, and the engine still away: the task is not lost.
    let second = self::driver(&engine).await;
    second.recover_task(handle(&plain("r1"), started)).await.expect("recovered");
    let waiting = second.wait_task("a1/web/r1");
    tokio::pin!(waiting);
    assert!(tokio::time::timeout(Duration::from_millis(200), &mut waiting).await.is_err(), "silence is no end");
    engine.come();
    engine.end(&id, 0);
    assert_eq!(soon(waiting).await.expect("ended").exit_code, 0);
}

#[tokio::test]
async fn what_is_not_an_engine_is_said_to_be_none() {
    let engine = Engine::start();
    engine.fault("GET", "/version", 200, "<html>hello</html>", 100);
    let driver = driver(&engine).await;
    let seen = driver.fingerprint().await;
    assert!(
        seen.health == Health::Undetected && seen.description.contains("does not speak as an engine does"),
        "{seen:?}"
    );
    let error = driver.start_task(plain("r1")).await.expect_err("no engine");
    assert!(matches!(error, Error::Recoverable(_)), "{error:?}");
    assert!(engine.with(|s| s.containers.is_empty()));
}

#[tokio::test]
async fn names_decide_who_is_first() {
    let engine = Engine::start();
    let driver = driver(&engine).await;
    let standing = |labels: &[(&str, &str)], status: &str| {
        let labels = labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        engine.with(|s| {
            s.containers.clear();
            s.containers.insert(
                "old".into(),
                Container { name: "web-a1".into(), labels, status: status.into(), ..Container::default() },
            );
        });
    };
    standing(&[], "running");
    let error = driver.start_task(plain("r1")).await.expect_err("a stranger").to_string();
    assert!(error.contains("web-a1") && error.contains("not ours"), "{error}");
    assert_eq!(engine.only().0, "old", "strangers are not touched");

    standing(&[("drover.task_id", "a1/web/r0")], "running");
    driver.start_task(plain("r1")).await.expect("started");
    assert_ne!(engine.only().0, "old", "what an earlier start has left goes");
    driver.destroy_task("a1/web/r1", true).await.expect("destroyed");

    standing(&[("drover.task_id", "a1/web/r2")], "created");
    driver.start_task(plain("r2")).await.expect("started");
    let (id, found) = engine.only();
    assert_eq!((id.as_str(), found.status.as_str()), ("old", "running"), "the same start finds its own");
}

#[tokio::test]
async fn failures_have_their_kind_and_leave_nothing() {
    let engine = Engine::start();
    let driver = driver(&engine).await;
    let cases: &[(&str, &str, u16, bool)] = &[
        ("POST", "/containers/create", 500, true),
        ("POST", "/containers/create", 400, false),
        ("POST", "/containers/c", 400, false),
        ("POST", "/containers/c", 500, true),
        ("GET", "/images", 500, true),
    ];
    for (method, path, status, recoverable) in cases {
        // The create call begins as the others do.
        if *path == "/containers/c" {
            engine.with(|s| s.images.push("busybox:1".into()));
            engine.fault(
                method,
                &format!(
                    "/containers/c{:063}/start",
                    engine.with(|s| s.calls.iter().filter(|c| c.contains("/start")).count() + 1)
                ),
                *status,
                "{\"message\":\"no\"}",
                1,
            );
        } else {
            engine.fault(method, path, *status, "{\"message\":\"no\"}", 1);
        }
        let error = driver.start_task(plain("r1")).await.expect_err("a fault");
        assert_eq!(matches!(error, Error::Recoverable(_)), *recoverable, "{method} {path} {status}: {error:?}");
        assert!(error.to_string().contains("no"), "{error}");
        assert!(engine.with(|s| s.containers.is_empty()), "{method} {path} {status} leaves a container");
    }
    driver.start_task(plain("r1")).await.expect("started after all that");
}

#[tokio::test]
async fn images_are_fetched_when_they_are_missing_and_again_when_they_vanish() {
    let engine = Engine::start();
    let driver = driver(&engine).await;
    driver.start_task(task("r1", json!({"image": "https://registry.io/a:1"}))).await.expect("pulled");
    assert!(engine.with(|s| s.images.contains(&"registry.io/a:1".into())));
    driver.destroy_task("a1/web/r1", true).await.expect("destroyed");
    engine.fault("POST", "/containers/create", 404, "{\"message\":\"No such image\"}", 1);
    driver.start_task(task("r2", json!({"image": "registry.io/a:1"}))).await.expect("started");
    assert_eq!(engine.calls("POST", "/images/create"), 1);
    driver.destroy_task("a1/web/r2", true).await.expect("destroyed");
    engine.fault("POST", "/images/create", 200, "{\"status\":\"x\"}\n{\"error\":\"manifest unknown\"}\n", 1);
    let error = driver
        .start_task(task("r3", json!({"image": "registry.io/b:1"})))
        .await
        .expect_err("no such image")
        .to_string();
    assert!(error.contains("manifest unknown"), "{error}");
}

#[tokio::test]
async fn a_start_that_was_cut_off_is_cleaned_up_by_its_label() {
    let engine = Engine::start();
    driver(&engine).await.start_task(plain("r1")).await.expect("started");
    // Nobody has heard of it: the plugin is another process now.
    let second = driver(&engine).await;
    second.destroy_task("a1/web/other", true).await.expect("nothing there");
    engine.only();
    second.destroy_task("a1/web/r1", true).await.expect("destroyed");
    assert!(engine.with(|s| s.containers.is_empty()));
}

#[tokio::test]
async fn logs_go_on_where_they_were_read_to() {
    let engine = Engine::start();
    let dir = tempfile::tempdir().expect("a directory");
    let fifo = dir.path().join("out.fifo");
    let made = std::process::Command::new("mkfifo").arg(&fifo).status().expect("mkfifo");
    assert!(made.success());
    let mut reader = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32)
        .open(&fifo)
        .expect("open");
    let mut text = String::new();
    let mut read = move |wanted: &str| {
        let mut buffer = [0; 4096];
        if let Ok(n) = reader.read(&mut buffer) {
            text.push_str(&String::from_utf8_lossy(&buffer[..n]));
        }
        assert!(wanted.starts_with(&text), "{text:?}");
        text == wanted
    };
    let mut config = plain("r1");
    config.alloc_dir = dir.path().join("a1").display().to_string();
    config.stdout_path = fifo.display().to_string();
    config.stderr_path = "/dev/null".into();
    std::fs::create_dir_all(dir.path().join("a1/web")).expect("a directory");
    let first = driver(&engine).await;
    let started = first.start_task(config.clone()).await.expect("started");
    let (id, _) = engine.only();
    // Two entries of one time; the second comes after the place was stored.
    engine.with(|s| s.containers.get_mut(&id).unwrap().log.extend([(1, 5, "one\n".into()), (2, 5, "err\n".into())]));
    eventually("the first line", || read("one\n")).await;
    let place = dir.path().join("a1/web/private").join(format!("docker-log-{}", &id[..12]));
    eventually("the stored place", || place.exists()).await;
    drop(first);
    engine.with(|s| s.containers.get_mut(&id).unwrap().log.extend([(1, 5, "two\n".into()), (1, 9, "three\n".into())]));
    let second = driver(&engine).await;
    second.recover_task(handle(&config, started)).await.expect("recovered");
    eventually("the rest", || read("one\ntwo\nthree\n")).await;
}

/// A former container of the task may run until the engine takes its name for the new one.
#[tokio::test]
async fn a_source_that_is_a_link_is_bound_by_no_engine() {
    let engine = Engine::start();
    let driver = driver(&engine).await;
    let dir = tempfile::tempdir().expect("a directory");
    let local = dir.path().join("a1/web/local");
    std::fs::create_dir_all(local.join("x")).expect("a directory");
    let replace = {
        let local = local.clone();
        move || {
            std::fs::remove_dir(local.join("x")).expect("removed");
            std::os::unix::fs::symlink("/", local.join("x")).expect("a link");
        }
    };
    let mut config = task("r1", json!({"image": "busybox:1", "volumes": ["local/x:/host"]}));
    config.alloc_dir = dir.path().join("a1").display().to_string();
    engine.with(|s| s.after_create = Some(Box::new(replace)));
    for made in [true, false] {
        engine.with(|s| s.calls.clear());
        let error = driver.start_task(config.clone()).await.expect_err("refused").to_string();
        assert!(error.contains("local/x is a link") && error.contains("config.volumes"), "{error}");
        let (calls, left) = engine.with(|s| (s.calls.join(" "), s.containers.len()));
        assert_eq!((calls.contains("/containers/create"), left), (made, 0), "{calls}");
        assert!(!calls.contains("/start"), "{calls}");
    }
    std::fs::remove_file(local.join("x")).expect("removed");
    // The engine makes it.
    driver.start_task(config).await.expect("started");
}

//! The driver `docker_remote`.

use std::time::Duration;

use docker::RemoteDriver;
use driver_sdk::{
    Bundle, BundleFile, Ensure, InstanceState, LogStream, LogsQuery, Lookup, Observation, RemoteDriver as _,
    RemoteError, StopTask, TaskConfig,
};
use serde_json::json;

use testkit::{poll, soon};

use super::{
    agent, config,
    fake::{Container, Engine, pass},
    packed,
};

async fn driver(engine: &Engine) -> RemoteDriver {
    let driver = RemoteDriver::new();
    driver.set_config(config(engine, json!({"provider": "lab"})), agent()).await.expect("configured");
    driver
}

fn request(epoch: u64) -> Ensure {
    Ensure {
        key: "k-1".into(),
        epoch,
        owner: "cluster".into(),
        slot: "default/job.g[0]/t".into(),
        task: TaskConfig {
            id: "a/t/1".into(),
            name: "t".into(),
            msgpack_driver_config: packed(json!({"image": "busybox:1"})),
            ..TaskConfig::default()
        },
        bundle: Bundle::new(vec![BundleFile { path: "local/f".into(), mode: 0o644, data: b"x".to_vec() }]),
        ..Ensure::default()
    }
}

fn kill() -> StopTask {
    StopTask { signal: "SIGKILL".into(), timeout: Duration::from_millis(10) }
}

#[tokio::test]
async fn one_key_is_one_container() {
    let engine = Engine::start();
    let (first, second) = (driver(&engine).await, driver(&engine).await);
    let made = first.ensure(request(1)).await.expect("made");
    assert!(made.created && made.observed.state == InstanceState::Running);
    let (id, container) = engine.only();
    assert_eq!(
        (container.name.as_str(), container.files.as_slice()),
        ("drover-k-1", &["/alloc", "/local", "/secrets"].map(str::to_owned)[..])
    );
    let again = second.ensure(request(2)).await.expect("got");
    assert!(!again.created && again.handle == made.handle && again.observed.epoch == 2);
    assert_eq!(engine.only().0, id);
    assert_eq!(first.describe().provider, "docker/lab");
    let (found, seen) = second.find("k-1", "cluster").await.expect("found");
    assert_eq!((found, seen.provider_id), (made.handle, id));
    assert!(matches!(second.find("k-1", "others").await, Err(RemoteError::WrongRequest(_))));
    assert!(matches!(second.find("k-2", "cluster").await, Err(RemoteError::Gone(_))));
    let page = second.list("cluster", "", 10).await.expect("listed");
    assert_eq!(
        (page.instances.len(), page.instances[0].slot.as_str(), page.instances[0].epoch),
        (1, "default/job.g[0]/t", 2)
    );
    assert!(second.list("others", "", 10).await.expect("listed").instances.is_empty());
    let of_all = second.list("", "", 10).await.expect("listed").instances;
    assert_eq!(of_all.iter().map(|i| i.owner.as_str()).collect::<Vec<_>>(), ["cluster"]);
}

#[tokio::test]
async fn lost_answers_and_dead_managers_make_no_second_one() {
    for (method, path) in
        [("POST", "/containers/create"), ("PUT", "/containers"), ("POST", "/containers/c"), ("POST", "/volumes/create")]
    {
        let engine = Engine::start();
        engine.lose_answer(method, path);
        let lost = driver(&engine).await.ensure(request(1)).await;
        assert!(matches!(lost, Err(RemoteError::CouldNotAsk(_))), "{method} {path}: {lost:?}");
        let got = driver(&engine).await.ensure(request(2)).await.unwrap_or_else(|e| panic!("{method} {path}: {e}"));
        assert_eq!(got.observed.state, InstanceState::Running, "{method} {path}");
        assert_eq!(engine.only().1.status, "running");
    }
}

#[tokio::test]
async fn what_another_call_has_started_meanwhile_is_not_started_once_more() {
    let engine = Engine::start();
    // While this manager brings the files, another one has started the container, and it has ended.
    engine.with(|s| {
        s.before_upload = Some(|s| s.containers.values_mut().for_each(|c| (c.status, c.code) = ("exited".into(), 3)))
    });
    let got = driver(&engine).await.ensure(request(2)).await.expect("got");
    assert_eq!((got.observed.state, got.observed.exit.exit_code), (InstanceState::Exited, 3));
    let (id, container) = engine.only();
    assert_eq!((container.status.as_str(), engine.calls("POST", &format!("/containers/{id}/start"))), ("exited", 0));
}

/// What an engine may have done when it is back after a restart, and what its next manager makes of it: one container,
/// started once.
#[tokio::test]
async fn an_engine_that_was_restarted_has_one_container_of_a_key() {
    type Meanwhile = fn(&mut Container);
    let cases: [(&str, Meanwhile, InstanceState, usize); 4] = [
        ("it runs on", |_| {}, InstanceState::Running, 1),
        ("it was made and never started", |c| c.status = "created".into(), InstanceState::Running, 2),
        ("it has ended with the engine", |c| (c.status, c.code) = ("exited".into(), 137), InstanceState::Exited, 1),
        (
            "it was started again by a policy that it was given",
            |c| c.policy = "always".into(),
            InstanceState::Running,
            1,
        ),
    ];
    for (case, meanwhile, wanted, starts) in cases {
        let engine = Engine::start();
        driver(&engine).await.ensure(request(1)).await.expect("made");
        engine.go().await;
        engine.with(|s| s.containers.values_mut().for_each(meanwhile));
        engine.come();
        let next = driver(&engine).await;
        let got = next.ensure(request(2)).await.unwrap_or_else(|e| panic!("{case}: {e}"));
        assert_eq!((got.created, got.observed.state), (false, wanted), "{case}");
        let (id, _) = engine.only();
        assert_eq!(engine.calls("POST", &format!("/containers/{id}/start")), starts, "{case}");
        // A stop is one for good: the engine does not start it again when it is restarted.
        next.stop(&got.handle, 2, kill()).await.expect("stopped");
        assert!(matches!(engine.only().1.policy.as_str(), "" | "no"), "{case}");
        next.acknowledge(&got.handle, 2).await.expect("acknowledged");
        assert!(engine.with(|s| s.containers.is_empty()), "{case}");
    }
}

/// The end was counted, and then the engine was restarted and has started the container by itself.
#[tokio::test]
async fn what_an_engine_starts_by_itself_after_its_end_goes_with_the_acknowledgement() {
    let engine = Engine::start();
    let driver = driver(&engine).await;
    let made = driver.ensure(request(1)).await.expect("made");
    engine.with(|s| s.containers.values_mut().for_each(|c| c.policy = "unless-stopped".into()));
    engine.end(&engine.only().0, 3);
    engine.with(|s| s.containers.values_mut().for_each(|c| c.status = "running".into()));
    engine.fault("DELETE", "/containers", 500, "{\"message\": \"device or resource busy\"}", 1);
    let busy = driver.acknowledge(&made.handle, 1).await.expect_err("the engine could not remove it");
    assert!(matches!(&busy, RemoteError::CouldNotAsk(why) if why.contains("busy")), "{busy}");
    driver.acknowledge(&made.handle, 1).await.expect("the next attempt goes on");
    assert!(engine.with(|s| s.containers.is_empty()), "two of one slot would live as soon as the next one is made");
    assert!(matches!(driver.ensure(request(1)).await, Err(RemoteError::Sealed(_))));
}

#[tokio::test]
async fn what_an_engine_has_lost_sight_of_is_neither_removed_nor_replaced() {
    let engine = Engine::start();
    let driver = driver(&engine).await;
    let made = driver.ensure(request(1)).await.expect("made");
    // Killed after the first instruction and before it has written that down; it is back.
    engine.with(|s| s.containers.values_mut().for_each(|c| (c.status, c.unseen) = ("created".into(), true)));
    let unseen = |answer: Result<(), RemoteError>| match answer {
        Err(RemoteError::CouldNotAsk(why)) => assert!(why.contains("lost sight") && why.contains("ctr "), "{why}"),
        other => panic!("{other:?}"),
    };
    unseen(driver.ensure(request(2)).await.map(drop));
    let seen = driver.observe(std::slice::from_ref(&made.handle)).await.expect("asked");
    assert_eq!(seen[0].state, InstanceState::Creating, "its manager goes on trying: {seen:?}");
    assert!(seen[0].reason.contains("lost sight"));
    unseen(driver.stop(&made.handle, 2, kill()).await.map(drop));
    // Ended by the operator, it is started by the next try.
    let again = Engine::start();
    let manager = self::driver(&again).await;
    manager.ensure(request(1)).await.expect("made");
    again.with(|s| s.containers.values_mut().for_each(|c| (c.status, c.unseen) = ("created".into(), true)));
    unseen(manager.ensure(request(1)).await.map(drop));
    again.with(|s| s.containers.values_mut().for_each(|c| c.unseen = false));
    assert_eq!(manager.ensure(request(1)).await.expect("started").observed.state, InstanceState::Running);
    driver.seal("k-1", 2, "cluster", b"").await.expect("sealed");
    unseen(driver.ensure(request(2)).await.map(drop));
    assert_eq!((engine.only().1.unseen, engine.with(|s| s.orphans)), (true, 0));
    // The operator has ended it.
    engine.with(|s| s.containers.values_mut().for_each(|c| c.unseen = false));
    let ended = driver.stop(&made.handle, 2, kill()).await.expect("stopped");
    assert_eq!(ended.state, InstanceState::Gone);
    assert!(engine.with(|s| s.containers.is_empty()));
}

#[tokio::test]
async fn what_nobody_has_started_is_taken_away_without_a_start() {
    let engine = Engine::start();
    let driver = driver(&engine).await;
    engine.fault("PUT", "/containers", 500, "no", 1);
    assert!(matches!(driver.ensure(request(1)).await, Err(RemoteError::CouldNotAsk(_))));
    let (handle, seen) = driver.find("k-1", "cluster").await.expect("found");
    assert_eq!(seen.state, InstanceState::Creating);
    let (id, _) = engine.only();
    assert_eq!(driver.stop(&handle, 1, kill()).await.expect("stopped").state, InstanceState::Gone);
    assert_eq!((engine.calls("POST", &format!("/containers/{id}/start")), engine.with(|s| s.containers.len())), (0, 0));
}

#[tokio::test]
async fn a_start_that_the_engine_has_refused_leaves_nothing_in_doubt() {
    let engine = Engine::start();
    let driver = driver(&engine).await;
    engine.fault("POST", "/containers/c0", 500, "{\"message\": \"port is already allocated\"}", 1);
    assert!(matches!(driver.ensure(request(1)).await, Err(RemoteError::CouldNotAsk(_))));
    let (handle, _) = driver.find("k-1", "cluster").await.expect("found");
    let (id, _) = engine.only();
    let starts = || engine.calls("POST", &format!("/containers/{id}/start"));
    assert_eq!(starts(), 1);
    assert_eq!(driver.stop(&handle, 1, kill()).await.expect("stopped").state, InstanceState::Gone);
    assert_eq!((starts(), engine.with(|s| s.containers.len())), (1, 0));
    // An answer that was lost does: the start may have had its effect.
    engine.fault("POST", "/containers/c0", 502, "lost", 1);
    assert!(matches!(driver.ensure(request(1)).await, Err(RemoteError::CouldNotAsk(_))));
    let (handle, _) = driver.find("k-1", "cluster").await.expect("found");
    let (id, _) = engine.only();
    assert_eq!(driver.stop(&handle, 1, kill()).await.expect("stopped").state, InstanceState::Gone);
    assert_eq!(engine.calls("POST", &format!("/containers/{id}/start")), 2);
}

#[tokio::test]
async fn stale_epochs_change_nothing() {
    let engine = Engine::start();
    let (old, new) = (driver(&engine).await, driver(&engine).await);
    let made = old.ensure(request(1)).await.expect("made");
    new.ensure(request(5)).await.expect("adopted");
    let stale = RemoteError::StaleEpoch { given: 1, accepted: 5 };
    assert_eq!(old.stop(&made.handle, 1, kill()).await, Err(stale.clone()));
    assert_eq!(old.signal(&made.handle, 1, "SIGKILL").await, Err(stale.clone()));
    assert_eq!(old.ensure(request(1)).await.map(|_| ()), Err(stale.clone()));
    assert_eq!(old.seal("k-1", 1, "cluster", b"").await.map(|_| ()), Err(stale.clone()));
    let (id, container) = engine.only();
    assert_eq!(container.status, "running");
    engine.end(&id, 4);
    assert_eq!(old.acknowledge(&made.handle, 1).await, Err(stale));
    let seen = new.observe(std::slice::from_ref(&made.handle)).await.expect("asked");
    assert_eq!((seen[0].state, seen[0].exit.exit_code, seen[0].epoch), (InstanceState::Exited, 4, 5));
}

#[tokio::test]
async fn a_sealed_key_creates_nothing() {
    let engine = Engine::start();
    let driver = driver(&engine).await;
    assert_eq!(driver.seal("k-1", 3, "cluster", b"").await, Ok(None));
    assert_eq!(driver.seal("k-1", 3, "cluster", b"").await, Ok(None), "idempotent");
    assert!(matches!(driver.ensure(request(3)).await, Err(RemoteError::Sealed(_))));
    assert!(matches!(driver.ensure(request(4)).await, Err(RemoteError::Sealed(_))));
    assert!(engine.with(|s| s.containers.is_empty()) && engine.calls("POST", "/containers/create") == 0);
}

#[tokio::test]
async fn a_seal_that_comes_during_a_create_wins_before_the_start() {
    let engine = Engine::start();
    let driver = driver(&engine).await;
    // The container is made and its files are on the way when the seal comes: the manager does not see it, so the seal
    // must have seen the container.
    driver.ensure(request(1)).await.expect("made");
    let sealed = driver.seal("k-1", 2, "cluster", b"").await.expect("sealed").expect("an instance");
    assert_eq!(sealed.1.state, InstanceState::Running);
    // Made, never started, then sealed: nobody starts it any more.
    engine.with(|s| s.containers.values_mut().for_each(|c| c.status = "created".into()));
    assert!(matches!(driver.ensure(request(2)).await, Err(RemoteError::Sealed(_))));
    assert!(engine.with(|s| s.containers.is_empty()));
}

#[tokio::test]
async fn an_end_is_kept_until_it_is_acknowledged_and_the_key_stays_sealed() {
    let engine = Engine::start();
    let driver = driver(&engine).await;
    let made = driver.ensure(request(1)).await.expect("made");
    assert!(matches!(driver.acknowledge(&made.handle, 1).await, Err(RemoteError::WrongRequest(_))), "it runs");
    let stopped = driver.stop(&made.handle, 1, kill()).await.expect("stopped");
    assert_eq!((stopped.state, stopped.exit.signal), (InstanceState::Exited, 9));
    assert_eq!(driver.stop(&made.handle, 1, kill()).await.expect("idempotent").state, InstanceState::Exited);
    driver.acknowledge(&made.handle, 1).await.expect("acknowledged");
    driver.acknowledge(&made.handle, 1).await.expect("idempotent");
    assert!(engine.with(|s| s.containers.is_empty()));
    assert_eq!(driver.observe(std::slice::from_ref(&made.handle)).await.expect("asked")[0].state, InstanceState::Gone);
    assert_eq!(driver.stop(&made.handle, 1, kill()).await.expect("gone").state, InstanceState::Gone);
    assert!(matches!(driver.ensure(request(2)).await, Err(RemoteError::Sealed(_))));
}

#[tokio::test]
async fn silence_and_strangers_say_nothing_about_an_instance() {
    let engine = Engine::start();
    let driver = driver(&engine).await;
    let made = driver.ensure(request(1)).await.expect("made");
    let handles = [made.handle];
    for (status, body) in [(500, "{\"message\":\"busy\"}"), (503, ""), (200, "garbage"), (403, "{\"message\":\"no\"}")]
    {
        engine.fault("GET", "/containers/json", status, body, 1);
        let seen = driver.observe(&handles).await;
        assert!(matches!(seen, Err(RemoteError::CouldNotAsk(_))), "{status}: {seen:?}");
    }
    // An empty engine at the same address is another one.
    engine.go().await;
    let seen = driver.observe(&handles).await;
    assert!(!matches!(&seen, Ok(all) if all[0].state == InstanceState::Gone), "{seen:?}");
    let kept = engine.with(|s| {
        s.id = "ENGINE-2".into();
        std::mem::take(&mut s.containers)
    });
    engine.come();
    poll("another engine", async || {
        matches!(driver.observe(&handles).await, Ok(all) if all[0].state == InstanceState::Unknown
            && all[0].reason.contains("ENGINE-2"))
    })
    .await;
    assert!(matches!(driver.stop(&handles[0], 1, kill()).await, Err(RemoteError::CouldNotAsk(_))));
    engine.go().await;
    engine.with(|s| (s.id, s.containers) = ("ENGINE-1".into(), kept));
    engine.come();
    poll(
        "the first engine again",
        async || matches!(driver.observe(&handles).await, Ok(all) if all[0].state == InstanceState::Running),
    )
    .await;
}

/// A create's answer is lost, and then the address leads to another engine: it has nothing of the key, and that says
/// nothing.
#[tokio::test]
async fn another_engine_under_the_address_gets_no_second_container_and_no_seal() {
    let engine = Engine::start();
    let manager = driver(&engine).await;
    let mut create = Ensure { first: true, ..request(1) };
    let intent = manager.intent(&create).await.expect("decided").expect("to be kept");
    create.intent = intent.clone();
    assert_eq!(manager.intent(&create).await, Ok(None), "it is kept already");
    engine.lose_answer("POST", "/containers/create");
    assert!(matches!(manager.ensure(create.clone()).await, Err(RemoteError::CouldNotAsk(_))));
    create.first = false;

    // Without a break of the connection that anybody could see.
    let (containers, volumes) = engine.with(|s| {
        s.id = "ENGINE-2".into();
        (std::mem::take(&mut s.containers), std::mem::take(&mut s.volumes))
    });
    let lookup =
        Lookup { key: "k-1".into(), owner: "cluster".into(), intent: intent.clone(), epoch: 1, create_follows: true };
    for (case, manager) in [("the same manager", &manager), ("another", &driver(&engine).await)] {
        let elsewhere = |answer: Result<(), RemoteError>| match answer {
            Err(RemoteError::CouldNotAsk(why)) => {
                assert!(why.contains("ENGINE-1") && why.contains("ENGINE-2"), "{case}: {why}");
            }
            other => panic!("{case}: {other:?}"),
        };
        elsewhere(manager.look_up(lookup.clone()).await.map(drop));
        elsewhere(manager.seal("k-1", 1, "cluster", &intent).await.map(drop));
        elsewhere(manager.intent(&create).await.map(drop));
        elsewhere(manager.ensure(create.clone()).await.map(drop));
        engine.with(|s| assert!(s.containers.is_empty() && s.volumes.is_empty(), "{case}: {:?}", s.volumes.keys()));
    }
    // What nobody has sent yet goes to the engine that answers.
    let unsent = Ensure { first: true, ..create.clone() };
    assert_ne!(manager.intent(&unsent).await.expect("decided").expect("another"), intent);

    engine.with(|s| (s.id, s.containers, s.volumes) = ("ENGINE-1".into(), containers, volumes));
    assert_eq!(manager.look_up(lookup).await.expect("found").1.state, InstanceState::Creating);
    let got = manager.ensure(create).await.expect("got");
    assert!(!got.created && engine.only().1.status == "running");
    manager.seal("k-1", 1, "cluster", &intent).await.expect("sealed").expect("it stands");
}

#[tokio::test]
async fn changes_are_pushed() {
    let engine = Engine::start();
    let driver = std::sync::Arc::new(driver(&engine).await);
    let made = driver.ensure(request(1)).await.expect("made");
    let (sink, mut pushed) = tokio::sync::mpsc::channel(16);
    let watching = {
        let (driver, handle) = (driver.clone(), made.handle.clone());
        tokio::spawn(async move { driver.watch(vec![handle], sink).await })
    };
    let next = async |pushed: &mut tokio::sync::mpsc::Receiver<Observation>| soon(pushed.recv()).await.expect("open");
    assert_eq!(next(&mut pushed).await.state, InstanceState::Running);
    engine.end(&engine.only().0, 6);
    let ended = next(&mut pushed).await;
    assert_eq!((ended.state, ended.exit.exit_code), (InstanceState::Exited, 6));
    drop(pushed);
    watching.await.expect("joined").expect("ended");
}

/// Away, or standing still: after a while nobody may read that its tasks run.
#[tokio::test]
async fn what_runs_at_a_silent_engine_is_unknown_until_it_answers() {
    for away in [true, false] {
        let engine = Engine::start();
        let driver = std::sync::Arc::new(driver(&engine).await);
        let made = driver.ensure(request(1)).await.expect("made");
        let ended = driver.ensure(Ensure { key: "k-2".into(), ..request(1) }).await.expect("made");
        engine.end(&ended.observed.provider_id, 3);
        let (sink, mut pushed) = tokio::sync::mpsc::channel(16);
        let watching = {
            let (driver, handles) = (driver.clone(), vec![made.handle.clone(), ended.handle.clone()]);
            tokio::spawn(async move { driver.watch(handles, sink).await })
        };
        let mut next = async || soon(pushed.recv()).await.expect("open");
        assert_eq!((next().await.state, next().await.state), (InstanceState::Running, InstanceState::Exited));

        if away {
            engine.go().await;
        } else {
            engine.fault("GET", "/containers", 500, "{\"message\": \"stands still\"}", u32::MAX);
        }
        pass(Duration::from_secs(20)).await;
        let unknown = next().await;
        assert_eq!((unknown.key.as_str(), unknown.state), ("k-1", InstanceState::Unknown), "away: {away}");
        assert!(!unknown.reason.is_empty());
        if away {
            engine.come();
        } else {
            engine.with(|s| s.faults.clear());
        }
        pass(Duration::from_secs(15)).await;
        let seen = next().await;
        assert_eq!((seen.key.as_str(), seen.state), ("k-1", InstanceState::Running), "away: {away}");
        watching.abort();
    }
}

#[tokio::test]
async fn logs_are_read_by_offset_and_from_the_end() {
    let engine = Engine::start();
    let driver = driver(&engine).await;
    let made = driver.ensure(request(1)).await.expect("made");
    let (id, _) = engine.only();
    engine.with(|s| {
        s.containers.get_mut(&id).unwrap().log.extend([
            (1, 1, "abc\n".into()),
            (2, 2, "err\n".into()),
            (1, 3, "def\n".into()),
        ])
    });
    engine.end(&id, 0);
    for (stream, offset, from_end, wanted) in [
        (LogStream::Stdout, 0, false, Some((0, "abc\ndef\n"))),
        (LogStream::Stdout, 2, false, Some((2, "c\ndef\n"))),
        (LogStream::Stdout, 3, true, Some((5, "ef\n"))),
        (LogStream::Stdout, 8, false, None),
        (LogStream::Stderr, 0, false, Some((0, "err\n"))),
    ] {
        for follow in [false, true] {
            let (sink, mut chunks) = tokio::sync::mpsc::channel(16);
            let query = LogsQuery { stream, offset, follow, from_end };
            driver.logs(&made.handle, query, sink).await.expect("read");
            let mut got: Option<(u64, String)> = None;
            while let Some(chunk) = chunks.recv().await {
                let all = got.get_or_insert((chunk.offset, String::new()));
                all.1.push_str(&String::from_utf8_lossy(&chunk.data));
            }
            assert_eq!(got, wanted.map(|(at, text)| (at, text.to_owned())), "{stream:?} {offset} {from_end} {follow}");
        }
    }
}

#[tokio::test]
async fn jobs_that_cannot_run_there_are_refused_before_anything_is_made() {
    let engine = Engine::start();
    let driver = driver(&engine).await;
    let refused = async |change: fn(&mut Ensure)| {
        let mut request = request(1);
        change(&mut request);
        let error = driver.ensure(request).await.expect_err("refused");
        assert!(matches!(error, RemoteError::WrongRequest(_)), "{error}");
        assert!(engine.with(|s| s.containers.is_empty()));
        error.to_string()
    };
    assert!(
        refused(|r| r.task.msgpack_driver_config = packed(json!({"image": "busybox:1", "volumes": ["x:/x"]})))
            .await
            .contains("volumes")
    );
    assert!(refused(|r| r.bundle.files[0].data = b"y".to_vec()).await.contains("digest"));
    assert!(
        refused(|r| r.bundle = Bundle::new(vec![BundleFile { path: "../x".into(), mode: 0, data: Vec::new() }]))
            .await
            .contains("../x")
    );
    let unix_without_a_name = RemoteDriver::new().set_config(config(&engine, json!({})), agent()).await;
    assert!(unix_without_a_name.expect_err("refused").to_string().contains("provider"));
}

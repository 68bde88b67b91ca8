//! A remote driver over its own service and, for other hosts, over the plain one.

use std::time::Duration;

use driver_host::{EnsureRequest, InstanceState, LogsQuery, RemoteError, SealRequest, TaskConfig};
use serde_json::json;

use crate::support::{Fixture, fake, signal, soon, task};

fn request(key: &str, epoch: u64, task: TaskConfig) -> EnsureRequest {
    EnsureRequest {
        key: key.into(),
        epoch,
        owner: "cluster".into(),
        slot: "default/job.group[0]/task".into(),
        task: Some(task),
        bundle: None,
        ..EnsureRequest::default()
    }
}

fn seal(key: &str, epoch: u64) -> SealRequest {
    SealRequest { key: key.into(), epoch, owner: "cluster".into(), ..SealRequest::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_four_answers_are_never_mixed_up() {
    let fixture = Fixture::new(vec![fake("remote", &["remote"])]);
    let driver = fixture.driver("remote").await;
    let seen = fixture.fingerprint("remote", |f| f.healthy).await;
    let description = seen.remote.expect("has the extension");
    assert!(description.provider == "memory" && description.keyed_create && !description.exec);
    assert!(seen.capabilities.expect("has run").remote_tasks);
    let remote = driver.remote().expect("has the extension");
    let config = task(&driver, &json!({}));

    let first = soon(remote.ensure(request("k1", 3, config.clone()))).await.expect("creates");
    assert!(first.created);
    let handle = first.handle.expect("a handle");
    let again = soon(remote.ensure(request("k1", 3, config.clone()))).await.expect("gets");
    assert!(!again.created && again.handle.as_ref() == Some(&handle));

    let failing = |how: &str| {
        let mut config = config.clone();
        config.env.insert("FAIL".into(), how.into());
        request("k2", 1, config)
    };
    let error = soon(remote.ensure(failing("ask"))).await.expect_err("throttled");
    assert!(matches!(error, RemoteError::CouldNotAsk(_)), "{error:?}");
    let error = soon(remote.ensure(failing("panic"))).await.expect_err("panics");
    assert!(matches!(error, RemoteError::CouldNotAsk(_)), "{error:?}");
    let error = soon(remote.ensure(failing("wrong"))).await.expect_err("refused");
    assert!(matches!(error, RemoteError::WrongRequest(_)), "{error:?}");
    let error = soon(remote.find("k2", "cluster")).await.expect_err("never created");
    assert!(matches!(error, RemoteError::Gone(_)), "{error:?}");
    assert_eq!(soon(remote.find("k1", "cluster")).await.expect("found").0, handle);
    assert!(soon(remote.find("k1", "another cluster")).await.is_err());
    assert_eq!(soon(remote.list("cluster", "", 0)).await.expect("listed").instances.len(), 1);

    let mut logs = remote
        .logs(handle.clone(), LogsQuery { stderr: false, offset: 4, follow: true, from_end: false })
        .expect("opens");
    let chunk = soon(logs.next()).await.expect("a chunk").expect("fine");
    assert_eq!((chunk.offset, chunk.data.as_slice()), (4, b"two\n".as_slice()));

    let mut watch = remote.watch(vec![handle.clone()]).expect("opens");
    assert_eq!(soon(watch.next()).await.expect("one").expect("fine").state(), InstanceState::Running);
    let error = soon(remote.stop(handle.clone(), 2, "SIGTERM", Duration::ZERO)).await.expect_err("stale");
    assert!(matches!(error, RemoteError::StaleEpoch { accepted: Some(3), .. }), "{error:?}");
    let stopped = soon(remote.stop(handle.clone(), 4, "SIGTERM", Duration::ZERO)).await.expect("stops");
    assert_eq!((stopped.state(), stopped.exit_code, stopped.epoch), (InstanceState::Exited, 143, 4));
    assert_eq!(soon(watch.next()).await.expect("one").expect("fine").state(), InstanceState::Exited);

    soon(remote.acknowledge(handle.clone(), 4)).await.expect("acknowledged");
    let error = soon(remote.signal(handle.clone(), 4, "SIGHUP")).await.expect_err("not offered");
    assert!(matches!(error, RemoteError::WrongRequest(_)), "{error:?}");
    let states = soon(remote.observe(vec![handle.clone(), handle.clone()])).await.expect("observed");
    assert!(states.len() == 2 && states.iter().all(|seen| seen.state() == InstanceState::Gone));

    // A dead plugin knows nothing; that must not look like an answer.
    signal(seen.pid.expect("runs"), rustix::process::Signal::KILL);
    let ended = async { while watch.next().await.expect("says why").is_ok() {} };
    soon(ended).await;
    soon(driver.wait_ready(1)).await;
    assert!(soon(remote.find("k1", "cluster")).await.is_err());
    fixture.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sealed_key_is_refused_by_name() {
    let fixture = Fixture::new(vec![fake("remote", &["remote"])]);
    let driver = fixture.driver("remote").await;
    assert!(fixture.fingerprint("remote", |f| f.healthy).await.remote.expect("has the extension").seal);
    let remote = driver.remote().expect("has the extension");
    let config = task(&driver, &json!({}));
    let ended = soon(remote.ensure(request("k1", 1, config.clone()))).await.expect("creates").handle.expect("a handle");
    soon(remote.stop(ended.clone(), 1, "SIGTERM", Duration::ZERO)).await.expect("stops");
    soon(remote.acknowledge(ended, 1)).await.expect("acknowledged");

    // A key that nothing was created with, one that is in use, one that was acknowledged.
    for _ in 0..2 {
        assert_eq!(soon(remote.seal(seal("late", 1))).await.expect("sealed"), None);
    }
    soon(remote.ensure(request("live", 1, config.clone()))).await.expect("creates");
    let (live, seen_live) = soon(remote.seal(seal("live", 2))).await.expect("sealed").expect("exists");
    assert_eq!((seen_live.state(), seen_live.epoch), (InstanceState::Running, 2));
    let same = soon(remote.ensure(request("live", 2, config.clone()))).await.expect("gets");
    assert!(!same.created && same.handle == Some(live));
    let error = soon(remote.seal(seal("live", 1))).await.expect_err("stale");
    assert!(matches!(error, RemoteError::StaleEpoch { accepted: Some(2), .. }), "{error:?}");
    for key in ["late", "k1"] {
        let error = soon(remote.ensure(request(key, 9, config.clone()))).await.expect_err("sealed");
        assert!(matches!(&error, RemoteError::WrongRequest(why) if why.contains("sealed")), "{error:?}");
    }
    let error = soon(remote.seal(seal("", 1))).await.expect_err("no key");
    assert!(matches!(error, RemoteError::WrongRequest(_)), "{error:?}");
    fixture.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_remote_driver_is_also_a_plain_one() {
    let fixture = Fixture::new(vec![fake("remote", &["remote"])]);
    let driver = fixture.driver("remote").await;
    let remote = driver.remote().expect("has the extension");
    let instances = async || soon(remote.list("plain-driver-protocol", "", 0)).await.expect("listed").instances.len();

    // Hosts name fifos; a driver that writes the logs itself takes the place of the files from them.
    let (fifo, log) = (fixture.dir.path().join(".task.stdout.fifo"), fixture.dir.path().join("task.stdout.0"));
    let config = TaskConfig { stdout_path: fifo.to_string_lossy().into(), ..task(&driver, &json!({})) };
    let started = soon(driver.start_task(config.clone())).await.expect("starts");
    assert_eq!(instances().await, 1);
    crate::support::eventually("the log is copied", || std::fs::read(&log).is_ok_and(|text| text == b"one\ntwo\n"))
        .await;

    // Letting go: the wait ends, the instance stays, forgetting it here does not touch it.
    let waiting = tokio::spawn({
        let (driver, id) = (driver.clone(), config.id.clone());
        async move { driver.wait_task(&id).await }
    });
    soon(driver.stop_task(&config.id, driver_host::DETACH_SIGNAL, Duration::ZERO)).await.expect("lets go");
    soon(waiting).await.expect("joined").expect("resolves");
    soon(driver.destroy_task(&config.id, true)).await.expect("forgets");
    assert_eq!(instances().await, 1);

    // Another manager adopts it by the handle, under a new task id.
    let mut handle = started.handle;
    let adopted = TaskConfig { id: "other/task/1".into(), ..config };
    handle.config = Some(adopted.clone());
    soon(driver.recover_task(handle)).await.expect("adopts");
    let inspected = soon(driver.inspect_task(&adopted.id)).await.expect("inspected");
    assert!(inspected.attributes["remote.provider_id"].starts_with("memory-"));
    soon(driver.stop_task(&adopted.id, "SIGTERM", Duration::ZERO)).await.expect("stops");
    assert_eq!(soon(driver.wait_task(&adopted.id)).await.expect("ended").exit_code, 143);
    assert_eq!(instances().await, 1, "the result is kept until it is acknowledged");
    soon(driver.destroy_task(&adopted.id, true)).await.expect("destroyed");
    assert_eq!(instances().await, 0);
    fixture.finish().await;
}

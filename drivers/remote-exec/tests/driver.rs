//! The remote driver trait with real processes; each `Driver` is one manager.

mod shared;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use driver_sdk::config::Config;
use driver_sdk::{
    AgentConfig, Bundle, BundleFile, Ensure, InstanceState, LogChunk, LogStream, LogsQuery, Observation,
    RemoteDriver as _, RemoteError, RemoteHandle,
};
use remote_exec::Driver;
use rustix::process::Signal;
use serde_json::json;
use shared::{now, observe, read_log};
use tempfile::TempDir;
use testkit::{poll, soon};
use tokio::sync::mpsc;

/// A runtime outside of every node.
struct World {
    dir: TempDir,
}

impl World {
    fn new() -> World {
        World { dir: tempfile::tempdir().unwrap() }
    }

    fn root(&self) -> PathBuf {
        self.dir.path().join("runtime")
    }

    async fn manager(&self) -> Driver {
        manager_of(&self.root()).await
    }

    fn key(&self, name: &str) -> String {
        shared::key(self.dir.path(), name)
    }

    fn ensure(&self, name: &str, epoch: u64, script: &str) -> Ensure {
        shared::ensure(self.dir.path(), name, epoch, &json!({ "command": "sh", "args": ["-c", script] }))
    }
}

/// Whatever a failing test leaves running ends with it.
impl Drop for World {
    fn drop(&mut self) {
        for instance in std::fs::read_dir(self.root().join("instances")).into_iter().flatten().flatten() {
            shared::end_workload(&instance.path().join("executor"));
        }
    }
}

async fn manager_of(root: &Path) -> Driver {
    let driver = Driver::new();
    driver.set_config(config(&[("root", root.to_str().unwrap())]), Some(AgentConfig::default())).await.unwrap();
    driver
}

fn config(fields: &[(&str, &str)]) -> Config {
    let map: BTreeMap<&str, &str> = fields.iter().copied().collect();
    Config::new(rmp_serde::to_vec(&map).unwrap())
}

#[tokio::test]
async fn managers_come_and_go_the_instance_stays() {
    let world = World::new();
    let first = world.manager().await;
    let script = "i=0; while :; do i=$((i+1)); echo line $i; sleep 0.01; done";
    let made = first.ensure(world.ensure("t", 1, script)).await.unwrap();
    assert!(made.created);
    assert_eq!((made.observed.state, made.observed.epoch), (InstanceState::Running, 1));
    let pid = made.observed.attributes["pid"].clone();
    drop(first);

    let second = world.manager().await;
    assert_eq!(second.describe().provider, world.manager().await.describe().provider);
    let again = second.ensure(world.ensure("t", 2, script)).await.unwrap();
    assert!(!again.created);
    assert_eq!((again.observed.attributes["pid"].clone(), again.observed.epoch), (pid.clone(), 2));
    assert_eq!(again.handle, made.handle);
    let (found, seen) = second.find(&world.key("t"), "cluster-1").await.unwrap();
    assert_eq!((found, seen.attributes["pid"].clone()), (made.handle.clone(), pid));
    assert!(matches!(second.find(&world.key("t"), "cluster-2").await, Err(RemoteError::WrongRequest(_))));
    assert!(matches!(second.find("absent", "cluster-1").await, Err(RemoteError::Gone(_))));

    // No line is missing and none is there twice, across managers.
    poll("there are some lines", async || read_log(&second, &made.handle, 0, false).await.1.lines().count() > 20).await;
    let (at, text) = read_log(&second, &made.handle, 0, false).await;
    assert_eq!(at, 0);
    for (n, line) in text.lines().enumerate() {
        assert!(format!("line {}", n + 1).starts_with(line), "{line} is number {n}");
    }
    let cut = text[..70].rfind('\n').unwrap() + 1;
    let (at, rest) = read_log(&second, &made.handle, cut as u64, false).await;
    assert_eq!(at, cut as u64);
    assert!(rest.starts_with(&text[cut..]));
    let stopped = second.stop(&made.handle, 2, now()).await.unwrap();
    assert_eq!((stopped.state, stopped.exit.signal), (InstanceState::Exited, 9));
    assert_eq!(second.stop(&made.handle, 2, now()).await.unwrap(), stopped, "a repeated stop says the same");
    let (at, tail) = read_log(&second, &made.handle, 5, true).await;
    assert_eq!(tail.len(), 5);
    assert!(at > 0);
}

#[tokio::test]
async fn many_managers_at_once_make_one_instance() {
    let world = World::new();
    let managers = futures::future::join_all((0..6).map(|_| world.manager())).await;
    let all = managers.iter().map(|m| m.ensure(world.ensure("t", 3, "echo started; exec sleep 1000")));
    let made = futures::future::join_all(all).await;
    let made: Vec<_> = made.into_iter().map(Result::unwrap).collect();
    assert_eq!(made.iter().filter(|m| m.created).count(), 1);
    let pids: std::collections::BTreeSet<_> = made.iter().map(|m| m.observed.attributes["pid"].clone()).collect();
    assert_eq!(pids.len(), 1);
    let handle = &made[0].handle;
    poll("it has spoken", async || !read_log(&managers[0], handle, 0, false).await.1.is_empty()).await;
    assert_eq!(read_log(&managers[1], handle, 0, false).await.1, "started\n");
    managers[0].stop(handle, 3, now()).await.unwrap();
    for manager in &managers {
        assert_eq!(observe(manager, handle).await.state, InstanceState::Exited);
    }
}

#[tokio::test]
async fn a_stale_manager_changes_nothing() {
    let world = World::new();
    let (old, new) = (world.manager().await, world.manager().await);
    let made = old.ensure(world.ensure("t", 4, "exec sleep 1000")).await.unwrap();
    new.ensure(world.ensure("t", 5, "exec sleep 1000")).await.unwrap();
    let stale = RemoteError::StaleEpoch { given: 4, accepted: 5 };
    assert_eq!(old.stop(&made.handle, 4, now()).await.unwrap_err(), stale);
    assert_eq!(old.signal(&made.handle, 4, "SIGTERM").await.unwrap_err(), stale);
    assert_eq!(old.ensure(world.ensure("t", 4, "exec sleep 1000")).await.unwrap_err(), stale);
    assert_eq!(observe(&old, &made.handle).await.state, InstanceState::Running, "looking is always allowed");
    assert!(matches!(new.acknowledge(&made.handle, 5).await, Err(RemoteError::WrongRequest(_))), "it still runs");
    new.stop(&made.handle, 5, now()).await.unwrap();
    assert_eq!(old.acknowledge(&made.handle, 4).await.unwrap_err(), stale);
    new.acknowledge(&made.handle, 5).await.unwrap();
    new.acknowledge(&made.handle, 5).await.unwrap();
    assert_eq!(observe(&old, &made.handle).await.state, InstanceState::Gone);
    // A call that was on its way when the instance was acknowledged must not bring it back.
    assert_eq!(old.ensure(world.ensure("t", 4, "exec sleep 1000")).await.unwrap_err(), stale);
    assert!(matches!(new.ensure(world.ensure("t", 5, "exec sleep 1000")).await, Err(RemoteError::Sealed(_))));
    assert!(new.list("cluster-1", "", 10).await.unwrap().instances.is_empty());
}

#[tokio::test]
async fn results_are_kept_until_acknowledged() {
    let world = World::new();
    let first = world.manager().await;
    let made = first.ensure(world.ensure("t", 1, "echo done; exit 3")).await.unwrap();
    drop(first);
    let second = world.manager().await;
    poll("it has ended", async || observe(&second, &made.handle).await.state == InstanceState::Exited).await;
    for manager in [&second, &world.manager().await] {
        let seen = observe(manager, &made.handle).await;
        assert_eq!((seen.exit.exit_code, seen.exit.signal, seen.exit.error), (3, 0, None));
        assert!(seen.finished_at >= seen.started_at);
    }
    let once_more = second.ensure(world.ensure("t", 2, "echo done; exit 3")).await.unwrap();
    assert_eq!((once_more.created, once_more.observed.state), (false, InstanceState::Exited));
    assert_eq!(read_log(&second, &made.handle, 0, false).await.1, "done\n", "it did not run again");
}

/// A channel that breaks ends its requests anywhere. The manager then hears that the instance is gone, and asks for it
/// never again.
#[tokio::test]
async fn an_acknowledgement_that_was_cut_off_leaves_no_files() {
    let world = World::new();
    let manager = world.manager().await;
    let dir = |name: &str| world.root().join("instances").join(world.key(name));
    for name in ["listed", "opened"] {
        let made = manager.ensure(world.ensure(name, 1, "exit 0")).await.unwrap();
        manager.stop(&made.handle, 1, now()).await.unwrap();
        let intent = std::fs::read(dir(name).join("instance.json")).unwrap();
        manager.acknowledge(&made.handle, 1).await.unwrap();
        // What is on disk right after the mark.
        std::fs::create_dir_all(dir(name).join("task/secrets")).unwrap();
        std::fs::write(dir(name).join("task/secrets/token"), "secret").unwrap();
        std::fs::write(dir(name).join("instance.json"), intent).unwrap();
        assert_eq!(left(&world, name), ["executor", "instance.json", "retired", "task"]);
        match name {
            "listed" => assert!(manager.list("cluster-1", "", 10).await.unwrap().instances.is_empty()),
            // The next channel.
            _ => drop(world.manager().await),
        }
        assert_eq!(left(&world, name), ["executor", "retired"], "{name}");
        is_sealed(manager.ensure(world.ensure(name, 2, "exit 0")).await);
    }
}

#[tokio::test]
async fn a_killed_executor_is_an_exit_with_the_reason() {
    let world = World::new();
    let manager = world.manager().await;
    let made = manager.ensure(world.ensure("t", 1, "exec sleep 1000")).await.unwrap();
    let (sink, mut changes) = mpsc::channel::<Observation>(4);
    let handles = vec![made.handle.clone()];
    let watching = async {
        assert_eq!(changes.recv().await.unwrap().state, InstanceState::Running);
        let pid: i32 = made.observed.attributes["executor_pid"].parse().unwrap();
        testkit::signal(pid, Signal::KILL);
        let seen = soon(changes.recv()).await.unwrap();
        assert_eq!((seen.state, seen.exit.exit_code), (InstanceState::Exited, -1));
        assert!(seen.reason.starts_with("executor lost"), "{}", seen.reason);
        drop(changes);
    };
    let (watch, ()) = tokio::join!(manager.watch(handles, sink), watching);
    watch.unwrap();
}

#[tokio::test]
async fn a_crash_between_intent_and_start_is_completed_or_stopped() {
    let world = World::new();
    let manager = world.manager().await;
    for name in ["a", "b"] {
        // What is on disk when a manager dies right after the intent.
        let dir = world.root().join("instances").join(world.key(name));
        std::fs::create_dir_all(dir.join("executor")).unwrap();
        let intent = serde_json::json!({
            "key": world.key(name), "owner": "cluster-1", "slot": "s", "task_name": name,
        });
        std::fs::write(dir.join("instance.json"), intent.to_string()).unwrap();
    }
    let (handle, seen) = manager.find(&world.key("a"), "cluster-1").await.unwrap();
    assert_eq!(seen.state, InstanceState::Creating);
    let made = manager.ensure(world.ensure("a", 1, "exec sleep 1000")).await.unwrap();
    assert_eq!((made.created, made.handle.clone()), (true, handle));
    manager.stop(&made.handle, 1, now()).await.unwrap();

    let (handle, _) = manager.find(&world.key("b"), "cluster-1").await.unwrap();
    let seen = manager.stop(&handle, 2, now()).await.unwrap();
    assert_eq!((seen.state, seen.reason.as_str()), (InstanceState::Exited, "stopped before it was started"));
    // The create that comes too late finds it ended.
    let late = manager.ensure(world.ensure("b", 2, "echo alive")).await.unwrap();
    assert_eq!((late.created, late.observed.state), (false, InstanceState::Exited));
    manager.acknowledge(&handle, 2).await.unwrap();
}

#[tokio::test]
async fn listing_is_by_owner_and_by_page() {
    let world = World::new();
    let manager = world.manager().await;
    let mut handles = Vec::new();
    for n in 0..5 {
        handles.push(manager.ensure(world.ensure(&format!("t{n}"), 1, "exit 0")).await.unwrap().handle);
    }
    let mut foreign = world.ensure("foreign", 1, "exit 0");
    foreign.owner = "cluster-2".into();
    manager.ensure(foreign.clone()).await.unwrap();
    foreign.owner = "cluster-1".into();
    assert!(matches!(manager.ensure(foreign).await, Err(RemoteError::WrongRequest(_))));
    let (mut token, mut seen) = (String::new(), Vec::new());
    loop {
        let page = manager.list("cluster-1", &token, 2).await.unwrap();
        assert!(page.instances.len() <= 2);
        seen.extend(page.instances.into_iter().map(|i| (i.key, i.slot, i.handle)));
        token = page.next_page_token;
        if token.is_empty() {
            break;
        }
    }
    let expected: Vec<_> = (0..5)
        .map(|n| (world.key(&format!("t{n}")), format!("default/job.group[0]/t{n}"), handles[n].clone()))
        .collect();
    assert_eq!(seen, expected);
    // Of every owner, each with its own: what has another one is stopped by its handle, like any other.
    let all = manager.list("", "", 10).await.unwrap().instances;
    let foreign: Vec<_> = all.iter().filter(|i| i.owner != "cluster-1").collect();
    assert_eq!((all.len(), foreign.len(), foreign[0].owner.as_str()), (6, 1, "cluster-2"));
    assert_eq!(foreign[0].key, world.key("foreign"));
    let stopped = manager.stop(&foreign[0].handle, foreign[0].epoch + 1, now()).await.unwrap();
    assert!(matches!(stopped.state, InstanceState::Exited), "{stopped:?}");
}

#[tokio::test]
async fn not_reaching_the_runtime_is_not_an_absence() {
    let world = World::new();
    let manager = world.manager().await;
    let made = manager.ensure(world.ensure("t", 1, "exec sleep 1000")).await.unwrap();
    let away = world.dir.path().join("away");
    std::fs::rename(world.root(), &away).unwrap();
    std::fs::create_dir_all(world.root().join("instances")).unwrap();
    let other = world.manager().await;
    for driver in [&manager, &other] {
        assert_eq!(observe(driver, &made.handle).await.state, InstanceState::Unknown);
        assert!(matches!(driver.stop(&made.handle, 1, now()).await, Err(RemoteError::CouldNotAsk(_))));
    }
    assert!(matches!(manager.find(&world.key("t"), "cluster-1").await, Err(RemoteError::CouldNotAsk(_))));
    assert!(matches!(manager.list("cluster-1", "", 10).await, Err(RemoteError::CouldNotAsk(_))));
    assert!(matches!(manager.ensure(world.ensure("u", 1, "exit 0")).await, Err(RemoteError::CouldNotAsk(_))));
    std::fs::remove_dir_all(world.root()).unwrap();
    std::fs::rename(&away, world.root()).unwrap();
    assert_eq!(observe(&manager, &made.handle).await.state, InstanceState::Running);
    manager.stop(&made.handle, 1, now()).await.unwrap();
}

#[tokio::test]
async fn the_task_finds_its_files_and_environment() {
    let world = World::new();
    let manager = world.manager().await;
    let mut request = world.ensure(
        "t",
        1,
        "cat local/data; local/tool; echo $A; cd $NOMAD_TASK_DIR && ls; test -d $NOMAD_SECRETS_DIR -a -d \
            $NOMAD_ALLOC_DIR/data",
    );
    request.task.env = [("A".to_owned(), "b".to_owned()), ("NOMAD_TASK_DIR".to_owned(), "/local".to_owned())].into();
    let file = |path: &str, mode: u32, text: &str| BundleFile { path: path.into(), mode, data: text.into() };
    request.bundle =
        Bundle::new(vec![file("local/data", 0o644, "data\n"), file("local/tool", 0o755, "#!/bin/sh\necho tool\n")]);
    let made = manager.ensure(request).await.unwrap();
    poll("it has ended", async || observe(&manager, &made.handle).await.state == InstanceState::Exited).await;
    assert_eq!(observe(&manager, &made.handle).await.exit.exit_code, 0);
    assert_eq!(read_log(&manager, &made.handle, 0, false).await.1, "data\ntool\nb\ndata\ntool\n");
    let mut bad = world.ensure("bad", 1, "exit 0");
    bad.bundle = Bundle::new(vec![file("../escape", 0o644, "")]);
    assert!(matches!(manager.ensure(bad).await, Err(RemoteError::WrongRequest(_))));
    let mut missing = world.ensure("missing", 1, "");
    missing.task.msgpack_driver_config = rmp_serde::to_vec(&BTreeMap::from([("command", "no-such-program")])).unwrap();
    assert!(matches!(manager.ensure(missing).await, Err(RemoteError::WrongRequest(_))));
}

fn secret(path: &str, word: &str) -> Bundle {
    Bundle::new(vec![BundleFile { path: path.into(), mode: 0o600, data: format!("{word}\n").repeat(5000).into() }])
}

/// The task reads its token all the time, whoever manages it and renews the file.
#[tokio::test]
async fn a_task_that_runs_sees_renewed_files_whole() {
    let world = World::new();
    let (first, second) = (world.manager().await, world.manager().await);
    let script = "while s=$(sort secrets/token | uniq -c | tr -s ' '); do case $s in ' 5000 a'|' 5000 b'|' 5000 c') \
        echo $s;; *) exit 9;; esac; done";
    let made =
        first.ensure(Ensure { bundle: secret("secrets/token", "a"), ..world.ensure("t", 1, script) }).await.unwrap();
    let task = made.observed.attributes["pid"].clone();
    for _ in 0..20 {
        first.refresh(&made.handle, 1, secret("secrets/token", "b")).await.unwrap();
        first.refresh(&made.handle, 1, secret("secrets/token", "a")).await.unwrap();
    }
    second.refresh(&made.handle, 2, secret("secrets/token", "c")).await.unwrap();
    let stale = first.refresh(&made.handle, 1, secret("secrets/token", "a")).await;
    assert!(matches!(stale, Err(RemoteError::StaleEpoch { given: 1, accepted: 2 })), "{stale:?}");
    poll("it has read the last one", async || read_log(&second, &made.handle, 0, false).await.1.ends_with("5000 c\n"))
        .await;
    let seen = observe(&second, &made.handle).await;
    assert_eq!((seen.state, seen.attributes["pid"].clone()), (InstanceState::Running, task));
    let file = std::fs::metadata(format!("/proc/{}/cwd/secrets/token", seen.attributes["pid"])).unwrap();
    assert_eq!(std::os::unix::fs::PermissionsExt::mode(&file.permissions()) & 0o7777, 0o600);

    // What the bundle is said to be it has to be, and it stays below the task's directory.
    let mut damaged = secret("secrets/token", "d");
    damaged.digest = "00".into();
    for wrong in [damaged, secret("../token", "d"), secret("/token", "d"), secret("secrets/../../token", "d")] {
        let refused = second.refresh(&made.handle, 2, wrong).await;
        assert!(matches!(refused, Err(RemoteError::WrongRequest(_))), "{refused:?}");
    }
    second.stop(&made.handle, 2, now()).await.unwrap();
    let ended = second.refresh(&made.handle, 2, secret("secrets/token", "d")).await;
    assert!(matches!(ended, Err(RemoteError::WrongRequest(_))), "{ended:?}");
    second.acknowledge(&made.handle, 2).await.unwrap();
    let gone = second.refresh(&made.handle, 2, secret("secrets/token", "d")).await;
    assert!(matches!(gone, Err(RemoteError::Gone(_))), "{gone:?}");
    assert_eq!(left(&world, "t").iter().filter(|name| *name == "task").count(), 0, "nothing was made anew");
}

#[tokio::test]
async fn following_goes_on_and_ends_with_the_listener() {
    let world = World::new();
    let manager = world.manager().await;
    let made = manager
        .ensure(world.ensure("t", 1, "for i in 1 2 3; do sleep 0.05; echo $i; done; exec sleep 1000"))
        .await
        .unwrap();
    let (sink, mut chunks) = mpsc::channel::<LogChunk>(4);
    let query = LogsQuery { stream: LogStream::Stdout, offset: 0, follow: true, from_end: false };
    let reading = async {
        let mut text = String::new();
        while text != "1\n2\n3\n" {
            let chunk = soon(chunks.recv()).await.unwrap();
            assert_eq!(chunk.offset, text.len() as u64);
            assert_eq!(chunk.file, "t.stdout.0");
            text.push_str(std::str::from_utf8(&chunk.data).unwrap());
        }
        drop(chunks);
    };
    let (followed, ()) = tokio::join!(manager.logs(&made.handle, query, sink), reading);
    followed.unwrap();
    // The kernel counts no memory of a process while it executes another program, as the shell does after its last
    // line.
    let memory = async || manager.stats(&made.handle).await.unwrap().unwrap().total.memory.rss.unwrap() > 0;
    poll("its memory is counted", memory).await;
    manager.signal(&made.handle, 1, "SIGTERM").await.unwrap();
    poll("the signal has ended it", async || observe(&manager, &made.handle).await.exit.signal == 15).await;
    assert!(matches!(manager.signal(&made.handle, 1, "SIGTERM").await, Err(RemoteError::WrongRequest(_))));
    assert_eq!(manager.stats(&made.handle).await, Ok(None));
}

#[tokio::test]
async fn configuration_is_checked_without_effects() {
    let world = World::new();
    let root = world.root();
    let driver = Driver::new();
    assert!(driver.set_config(config(&[("transport", "ssh")]), None).await.unwrap_err().to_string().contains("ssh"));
    driver.set_config(config(&[("root", root.to_str().unwrap())]), None).await.unwrap();
    assert!(!root.exists());
    assert_eq!(driver.fingerprint().await.health, driver_sdk::Health::Undetected);
    assert!(matches!(driver.find("x", "y").await, Err(RemoteError::CouldNotAsk(_))));
    let driver = world.manager().await;
    assert_eq!(driver.fingerprint().await.health, driver_sdk::Health::Healthy);
    let handle = RemoteHandle { schema: 99, data: Vec::new() };
    assert_eq!(observe(&driver, &handle).await.state, InstanceState::Unknown);
}

/// What is left of a key in the runtime's directory.
fn left(world: &World, name: &str) -> Vec<String> {
    let dir = world.root().join("instances").join(world.key(name));
    let mut names: Vec<String> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

fn is_sealed<T: std::fmt::Debug>(result: Result<T, RemoteError>) {
    assert!(matches!(result, Err(RemoteError::Sealed(_))), "{result:?}");
}

#[tokio::test]
async fn a_key_that_was_sealed_first_is_never_created() {
    let world = World::new();
    let (stopper, late) = (world.manager().await, world.manager().await);
    assert!(stopper.describe().seal);
    let key = world.key("t");
    assert_eq!(stopper.seal(&key, 2, "cluster-1", b"").await, Ok(None));
    assert_eq!(left(&world, "t"), ["executor", "retired"]);
    assert_eq!(stopper.seal(&key, 2, "cluster-1", b"").await, Ok(None), "twice is once");
    let stale = RemoteError::StaleEpoch { given: 1, accepted: 2 };
    assert_eq!(stopper.seal(&key, 1, "cluster-1", b"").await.unwrap_err(), stale);

    let mark = world.dir.path().join("started");
    let script = format!("touch {}", mark.display());
    assert_eq!(late.ensure(world.ensure("t", 1, &script)).await.unwrap_err(), stale);
    is_sealed(late.ensure(world.ensure("t", 2, &script)).await);
    is_sealed(late.ensure(world.ensure("t", 3, &script)).await);
    // The driver's restart.
    drop((stopper, late));
    let restarted = world.manager().await;
    is_sealed(restarted.ensure(world.ensure("t", 3, &script)).await);
    assert!(matches!(restarted.find(&key, "cluster-1").await, Err(RemoteError::Gone(_))));
    assert!(restarted.list("cluster-1", "", 10).await.unwrap().instances.is_empty());
    assert_eq!(left(&world, "t"), ["executor", "retired"]);
    assert!(!mark.exists());

    // An acknowledged key is sealed, and sealing it says so.
    let made = restarted.ensure(world.ensure("done", 1, "exit 0")).await.unwrap();
    restarted.stop(&made.handle, 1, now()).await.unwrap();
    restarted.acknowledge(&made.handle, 1).await.unwrap();
    is_sealed(restarted.ensure(world.ensure("done", 2, "exit 0")).await);
    assert_eq!(restarted.seal(&world.key("done"), 2, "cluster-1", b"").await, Ok(None));
    is_sealed(restarted.ensure(world.ensure("done", 2, "exit 0")).await);
}

#[tokio::test]
async fn sealing_does_not_touch_what_exists() {
    let world = World::new();
    let (old, new) = (world.manager().await, world.manager().await);
    let made = old.ensure(world.ensure("t", 1, "exec sleep 1000")).await.unwrap();
    let key = world.key("t");
    assert!(
        matches!(new.seal(&key, 2, "cluster-2", b"").await, Err(RemoteError::WrongRequest(_))),
        "it belongs to another cluster"
    );
    for _ in 0..2 {
        let (handle, seen) = new.seal(&key, 2, "cluster-1", b"").await.unwrap().unwrap();
        assert_eq!(handle, made.handle);
        assert_eq!((seen.state, seen.epoch), (InstanceState::Running, 2));
        assert_eq!(seen.attributes["pid"], made.observed.attributes["pid"]);
    }
    assert_eq!(
        old.seal(&key, 1, "cluster-1", b"").await.unwrap_err(),
        RemoteError::StaleEpoch { given: 1, accepted: 2 }
    );
    let got = new.ensure(world.ensure("t", 2, "exec sleep 1000")).await.unwrap();
    assert_eq!((got.created, &got.handle, got.observed.state), (false, &made.handle, InstanceState::Running));
    let stopped = new.stop(&made.handle, 2, now()).await.unwrap();
    let (_, seen) = new.seal(&key, 2, "cluster-1", b"").await.unwrap().unwrap();
    assert_eq!(seen, stopped, "the result stays until it is acknowledged");
    new.acknowledge(&made.handle, 2).await.unwrap();
    assert_eq!(new.seal(&key, 2, "cluster-1", b"").await, Ok(None));
}

#[tokio::test]
async fn a_seal_that_crashed_is_completed_and_what_came_too_late_is_removed() {
    let world = World::new();
    let manager = world.manager().await;
    let intent = |name: &str| {
        serde_json::json!({ "key": world.key(name), "owner": "cluster-1", "slot": "s", "task_name": name }).to_string()
    };
    let dir = |name: &str| world.root().join("instances").join(world.key(name));
    // After the directories; after the decision; a create that writes its intent after the mark; one that has written
    // it before.
    std::fs::create_dir_all(dir("a").join("executor")).unwrap();
    for name in ["b", "c"] {
        assert_eq!(manager.seal(&world.key(name), 1, "cluster-1", b"").await, Ok(None));
    }
    std::fs::remove_file(dir("b").join("retired")).unwrap();
    std::fs::write(dir("c").join("instance.json"), intent("c")).unwrap();
    std::fs::create_dir_all(dir("d").join("executor")).unwrap();
    std::fs::write(dir("d").join("instance.json"), intent("d")).unwrap();

    let restarted = world.manager().await;
    assert!(matches!(restarted.find(&world.key("c"), "cluster-1").await, Err(RemoteError::Gone(_))));
    for name in ["a", "b", "c"] {
        assert_eq!(restarted.seal(&world.key(name), 2, "cluster-1", b"").await, Ok(None), "{name}");
        is_sealed(restarted.ensure(world.ensure(name, 2, "exit 0")).await);
        assert_eq!(left(&world, name), ["executor", "retired"]);
    }
    // An intent is an instance: it ends, and is acknowledged like any other.
    let (handle, seen) = restarted.seal(&world.key("d"), 2, "cluster-1", b"").await.unwrap().unwrap();
    assert_eq!((seen.state, seen.reason.as_str()), (InstanceState::Exited, "sealed before it was started"));
    let late = restarted.ensure(world.ensure("d", 2, "exit 0")).await.unwrap();
    assert_eq!((late.created, late.observed), (false, seen));
    restarted.acknowledge(&handle, 2).await.unwrap();
    is_sealed(restarted.ensure(world.ensure("d", 2, "exit 0")).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_a_seal_and_a_create_at_the_same_time_one_comes_first() {
    let world = World::new();
    let (stopper, creator) = (world.manager().await, world.manager().await);
    let (mut sealed, mut created) = (0, 0);
    for round in 0..32u64 {
        let name = format!("t{round}");
        let key = world.key(&name);
        // Different moments of the two calls meet.
        let create = async {
            tokio::time::sleep(Duration::from_micros(100 * (round % 8))).await;
            creator.ensure(world.ensure(&name, 1, "exec sleep 1000")).await
        };
        let seal = async {
            tokio::time::sleep(Duration::from_micros(700 * (round / 8))).await;
            stopper.seal(&key, 1, "cluster-1", b"").await.unwrap()
        };
        let (made, found) = tokio::join!(create, seal);
        match found {
            None => {
                sealed += 1;
                is_sealed(creator.ensure(world.ensure(&name, 1, "exec sleep 1000")).await);
                assert_eq!(left(&world, &name), ["executor", "retired"]);
                // It may have seen the decision before the mark was there, but it has started nothing.
                assert!(!made.is_ok_and(|m| m.created));
            }
            Some((handle, seen)) => {
                created += usize::from(seen.state == InstanceState::Running);
                let made = made.unwrap();
                assert_eq!((made.created, &made.handle), (seen.state == InstanceState::Running, &handle));
                stopper.stop(&handle, 1, now()).await.unwrap();
                stopper.acknowledge(&handle, 1).await.unwrap();
            }
        }
    }
    eprintln!("sealed first {sealed}, created first {created}");
    assert!(stopper.list("cluster-1", "", 100).await.unwrap().instances.is_empty());
}

#[tokio::test]
async fn what_cannot_be_had_is_refused_before_anything_is_made() {
    use driver_sdk::proto::driver::{NetworkIsolationSpec, network_isolation_spec::NetworkIsolationMode as Mode};
    let world = World::new();
    let manager = world.manager().await;
    for (mode, refused) in [(Mode::Host, false), (Mode::Group, true), (Mode::Task, true), (Mode::None, true)] {
        let name = format!("n{}", mode as i32);
        let mut request = world.ensure(&name, 1, "exit 0");
        request.task.network_isolation_spec =
            Some(NetworkIsolationSpec { mode: mode as i32, ..NetworkIsolationSpec::default() });
        match manager.ensure(request).await {
            Err(RemoteError::WrongRequest(why)) if refused => assert!(why.contains("network"), "{why}"),
            other => assert!(!refused && other.is_ok(), "{mode:?}: {other:?}"),
        }
        assert_eq!(manager.find(&world.key(&name), "cluster-1").await.is_err(), refused, "{mode:?}");
    }
    let mut damaged = world.ensure("damaged", 1, "exit 0");
    damaged.bundle = Bundle::new(vec![BundleFile { path: "local/data".into(), mode: 0o644, data: b"whole".to_vec() }]);
    damaged.bundle.files[0].data.pop();
    assert!(matches!(manager.ensure(damaged).await, Err(RemoteError::WrongRequest(why)) if why.contains("digest")));
    assert!(matches!(manager.find(&world.key("damaged"), "cluster-1").await, Err(RemoteError::Gone(_))));
}

/// A small disk below a directory.
struct Disk(PathBuf);

impl Disk {
    /// `None` where this process may not mount.
    fn new(at: PathBuf) -> Option<Disk> {
        std::fs::create_dir_all(&at).unwrap();
        let mount = std::process::Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=256k,mode=0700", "drover-test"])
            .arg(&at)
            .output();
        mount.is_ok_and(|mount| mount.status.success()).then_some(Disk(at))
    }

    /// Writes until nothing more fits.
    fn fill(&self) {
        let mut file = std::fs::OpenOptions::new().append(true).create(true).open(self.0.join("filler")).unwrap();
        while std::io::Write::write_all(&mut file, &[1; 512]).is_ok() {}
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

#[tokio::test]
async fn a_task_that_has_filled_its_disk_is_stopped_and_forgotten_by_its_next_manager() {
    let world = World::new();
    let Some(disk) = Disk::new(world.root().join("instances")) else {
        return skip::cannot("a file system cannot be mounted");
    };
    let first = world.manager().await;
    let made = first.ensure(world.ensure("t", 1, "dd if=/dev/zero of=big bs=1k 2>/dev/null; exec sleep 1000")).await;
    let made = made.unwrap();
    let big = world.root().join("instances").join(world.key("t"));
    let full = || {
        let free = rustix::fs::statvfs(&big).unwrap().f_bfree;
        if free == 0 { Ok(()) } else { Err(free) }
    };
    testkit::eventually("a full disk", full).await;
    disk.fill();
    drop(first);

    let next = world.manager().await;
    let seen = soon(next.stop(&made.handle, 2, now())).await.unwrap();
    assert_eq!((seen.state, seen.epoch, seen.exit.signal), (InstanceState::Exited, 2, 9), "{seen:?}");
    let stale = RemoteError::StaleEpoch { given: 1, accepted: 2 };
    assert_eq!(next.acknowledge(&made.handle, 1).await.unwrap_err(), stale);
    next.acknowledge(&made.handle, 2).await.unwrap();
    assert_eq!(left(&world, "t"), ["executor", "retired"]);
    is_sealed(next.ensure(world.ensure("t", 2, "exit 0")).await);
}

//! Transport `ssh` with a program in ssh's place that runs the far end on this machine, each host in a home directory
//! of its own. The real thing is `cargo xtask interop ssh`.

#[path = "ssh/hanging.rs"]
mod hanging;
mod shared;

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use driver_sdk::config::Config;
use driver_sdk::{
    AgentConfig, Bundle, BundleFile, Ensure, Health, InstanceState, Lookup, Observation, RemoteDriver as _,
    RemoteError, RemoteHandle, Verdict,
};
use remote_exec::Driver;
use rustix::process::Signal;
use serde_json::{Value, json};
use shared::{now, observe, read_log};
use tempfile::TempDir;
use testkit::{eventually, poll};
use tokio::sync::mpsc;

/// Behaves as the files beside it say: `NAME.says` = refuse with these words, `NAME.limit` = cut after so many bytes
/// from the manager, `NAME.noise` = what the login shell writes first, `NAME.key` = who shows another identity file is
/// refused, `NAME.path` = directory that is searched for programs first.
const FAKE_SSH: &str = r#"#!/bin/sh
here=${0%/*}
while [ "$1" != -- ]; do [ "$1" = -i ] && key=$2; shift; done
name=$2 command=$3
echo >> "$here/$name.calls"
if [ -e "$here/$name.key" ] && ! cmp -s "$key" "$here/$name.key"; then echo "ops@$name: Permission denied (publickey)." >&2; exit 255; fi
if [ -e "$here/$name.says" ]; then cat "$here/$name.says" >&2; exit 255; fi
[ -e "$here/$name.path" ] && PATH=$(cat "$here/$name.path"):$PATH
mkdir -p "$here/$name" && cd "$here/$name" || exit 255
[ -e "$here/$name.noise" ] && cat "$here/$name.noise"
if [ -e "$here/$name.limit" ]; then
  limit=$(cat "$here/$name.limit")
  # What passes the cut must pass at once; many bytes come in one piece anyway.
  if [ "$limit" -lt 200000 ]; then pass="dd bs=1 status=none count=$limit"; else pass="head -c $limit"; fi
  $pass | sh -c "$command"
  exit 255
fi
echo $$ > "$here/$name.pid"
exec sh -c "$command"
"#;

struct World {
    dir: TempDir,
    keepalive: u64,
}

impl World {
    fn new() -> World {
        let world = World { dir: tempfile::tempdir().unwrap(), keepalive: 30 };
        testkit::program(&world.ssh(), FAKE_SSH);
        world
    }

    fn ssh(&self) -> PathBuf {
        self.dir.path().join("ssh")
    }

    fn set(&self, host: &str, what: &str, text: &str) {
        std::fs::write(self.dir.path().join(format!("{host}.{what}")), text).unwrap();
    }

    fn unset(&self, host: &str, what: &str) {
        std::fs::remove_file(self.dir.path().join(format!("{host}.{what}"))).unwrap();
    }

    fn root(&self, host: &str) -> PathBuf {
        self.dir.path().join(host).join(".drover")
    }

    fn calls(&self, host: &str) -> usize {
        std::fs::read_to_string(self.dir.path().join(format!("{host}.calls"))).map_or(0, |t| t.lines().count())
    }

    /// Ends the channel to a host, from the far side.
    fn cut(&self, host: &str) {
        let pid = std::fs::read_to_string(self.dir.path().join(format!("{host}.pid"))).unwrap();
        testkit::signal(pid.trim().parse::<i32>().unwrap(), Signal::KILL);
    }

    async fn manager(&self, hosts: Value) -> Driver {
        let driver = Driver::new();
        driver.set_config(self.config(hosts), Some(AgentConfig::default())).await.unwrap();
        driver
    }

    fn config(&self, hosts: Value) -> Config {
        let config = json!({ "transport": "ssh", "pool": "test", "ssh": self.ssh(), "host": hosts,
                "keepalive_seconds": self.keepalive });
        Config::new(rmp_serde::to_vec_named(&config).unwrap())
    }

    fn key(&self, name: &str) -> String {
        shared::key(self.dir.path(), name)
    }

    fn ensure(&self, name: &str, epoch: u64, script: &str) -> Ensure {
        self.ensure_with(name, epoch, json!({ "command": "sh", "args": ["-c", script] }))
    }

    fn ensure_with(&self, name: &str, epoch: u64, options: Value) -> Ensure {
        shared::ensure(self.dir.path(), name, epoch, &options)
    }

    /// Intents of a key on all hosts.
    fn intents(&self, name: &str) -> Vec<PathBuf> {
        let key = self.key(name);
        let homes = std::fs::read_dir(self.dir.path())
            .unwrap()
            .flatten()
            .map(|e| e.path().join(".drover/instances").join(&key));
        homes.filter(|dir| dir.join("instance.json").exists()).collect()
    }

    fn records(&self) -> Vec<(PathBuf, Value)> {
        let homes = std::fs::read_dir(self.dir.path()).into_iter().flatten().flatten();
        let instances = homes
            .flat_map(|home| std::fs::read_dir(home.path().join(".drover/instances")).into_iter().flatten().flatten());
        let states = instances.map(|instance| instance.path().join("executor"));
        states.map(|state| (state.clone(), shared::record(&state))).collect()
    }
}

/// Whatever a failing test leaves running ends with it.
impl Drop for World {
    fn drop(&mut self) {
        for (state, _) in self.records() {
            shared::end_workload(&state);
        }
    }
}

const SLEEP: &str = "exec sleep 1000";

async fn until_state(driver: &Driver, handle: &RemoteHandle, state: InstanceState) -> Observation {
    poll(&format!("{state:?}"), async || {
        let seen = observe(driver, handle).await;
        if seen.state == state { Ok(seen) } else { Err(seen) }
    })
    .await
}

/// Tries until the hosts have been reached.
async fn made(driver: &Driver, request: Ensure) -> driver_sdk::Ensured {
    poll("the create", async || driver.ensure(request.clone()).await).await
}

async fn output(driver: &Driver, handle: &RemoteHandle) -> String {
    read_log(driver, handle, 0, false).await.1
}

async fn end(driver: &Driver, handle: &RemoteHandle, epoch: u64) {
    driver.stop(handle, epoch, now()).await.unwrap();
    driver.acknowledge(handle, epoch).await.unwrap();
}

fn why(error: RemoteError) -> String {
    match error {
        RemoteError::CouldNotAsk(why) => why,
        other => panic!("not a CouldNotAsk: {other:?}"),
    }
}

#[tokio::test]
async fn one_channel_per_host_carries_everything() {
    let world = World::new();
    world.set("a", "noise", "Welcome!\nDROVER is not this line\n\u{1b}[1mlast login: never\u{1b}[0m $ ");
    let manager = world.manager(json!({ "a": {} })).await;
    assert_eq!(manager.describe().provider, "remote_exec/ssh:test");
    let file = |path: &str, mode: u32, data: Vec<u8>| BundleFile { path: path.into(), mode, data };
    let big: Vec<u8> = (0..3_000_000u32).map(|n| (n % 251) as u8).collect();
    let mut request = world.ensure("t", 1, "cat local/small; cksum < local/big; cat secrets/token; pwd; sleep 1000");
    request.bundle = Bundle::new(vec![
        file("local/small", 0o644, b"small\n".to_vec()),
        file("local/big", 0o600, big.clone()),
        file("secrets/token", 0o644, b"hush\n".to_vec()),
    ]);
    let ensured = manager.ensure(request).await.unwrap();
    assert!(ensured.created);
    assert_eq!(ensured.observed.provider_id, format!("pid {} on a", ensured.observed.attributes["pid"]));
    let (handles, more): (Vec<_>, Vec<_>) = (0..8).map(|n| (n, world.ensure(&format!("m{n}"), 1, SLEEP))).unzip();
    assert_eq!(handles.len(), 8);
    let all = futures::future::join_all(more.into_iter().map(|request| manager.ensure(request))).await;
    let all: Vec<_> = all.into_iter().map(|e| e.unwrap().handle).collect();
    assert!(manager.observe(&all).await.unwrap().iter().all(|o| o.state == InstanceState::Running));
    let whole = async || Some(output(&manager, &ensured.handle).await).filter(|text| text.lines().count() == 4);
    let text = poll("four lines", whole).await;
    let task = world.root("a").join("instances").join(world.key("t")).join("task");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!((lines[0], lines[2], lines[3]), ("small", "hush", &*task.to_string_lossy()));
    assert!(lines[1].ends_with(" 3000000"), "{text}");
    let mode = |path: &str| std::fs::metadata(task.join(path)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("secrets"), mode("secrets/token")), (0o700, 0o600), "a secret is nobody else's");
    assert_eq!(std::fs::read(task.join("local/big")).unwrap(), big);
    let memory = async || manager.stats(&ensured.handle).await.unwrap().unwrap().total.memory.rss.unwrap() > 0;
    poll("its memory is counted, which it is not during an exec", memory).await;
    assert_eq!(world.calls("a"), 1, "one ssh for all of it");

    // The next manager finds the executor where it is.
    let executors = world.root("a").join("executors");
    let installed = || {
        std::fs::read_dir(&executors).unwrap().flatten().map(|e| (e.path(), e.metadata().unwrap().modified().unwrap()))
    };
    let before: Vec<_> = installed().collect();
    assert_eq!(before.len(), 1);
    drop(manager);
    let next = world.manager(json!({ "a": {} })).await;
    for handle in all.iter().chain([&ensured.handle]) {
        assert_eq!(observe(&next, handle).await.state, InstanceState::Running);
        end(&next, handle, 2).await;
        assert_eq!(observe(&next, handle).await.state, InstanceState::Gone);
    }
    assert_eq!(installed().collect::<Vec<_>>(), before);
    assert_eq!(std::fs::read_dir(world.root("a").join("uploads")).unwrap().count(), 0);
}

#[tokio::test]
async fn a_cut_anywhere_in_a_create_leaves_one_instance_or_none() {
    let world = World::new();
    let size = executor_client::binary().len();
    let mut request = world.ensure("t", 1, SLEEP);
    request.bundle = Bundle::new(vec![BundleFile { path: "local/f".into(), mode: 0o644, data: vec![7; 100_000] }]);
    // In the executor; once it is there: before the request, in it, in the files, at their end.
    for limit in [0, size / 2, size, 5, 20, 100, 250, 300, 350, 400, 1000, 30_000, 66_000, 100_200, 100_300, 100_400] {
        world.set("a", "limit", &limit.to_string());
        let manager = world.manager(json!({ "a": {} })).await;
        let _ = tokio::time::timeout(Duration::from_secs(2), manager.ensure(request.clone())).await;
        assert!(world.intents("t").len() <= 1);
    }
    world.unset("a", "limit");
    let manager = world.manager(json!({ "a": {} })).await;
    let first = made(&manager, request.clone()).await;
    let again = manager.ensure(request).await.unwrap();
    assert_eq!((again.created, &again.handle), (false, &first.handle));
    assert_eq!(world.records().len(), 1);
    assert_eq!(manager.list("cluster-1", "", 10).await.unwrap().instances.len(), 1);
    // There may be secrets among what had arrived.
    eventually("no upload that stays", || {
        let left: Vec<_> = std::fs::read_dir(world.root("a").join("uploads")).unwrap().flatten().collect();
        if left.is_empty() { Ok(()) } else { Err(left) }
    })
    .await;
    end(&manager, &first.handle, 1).await;
}

#[tokio::test]
async fn a_host_that_cannot_be_asked_is_unknown_with_the_reason_and_since_when() {
    let world = World::new();
    let manager = world.manager(json!({ "a": { "address": "10.9.9.9" } })).await;
    // The address is what ssh is given; the fake takes it for the host's name.
    let ensured = made(&manager, world.ensure("t", 1, SLEEP)).await;
    assert_eq!(ensured.observed.address, "10.9.9.9");
    let pid = ensured.observed.attributes["pid"].clone();
    let (sink, mut changes) = mpsc::channel::<Observation>(16);
    let watching = async {
        assert_eq!(changes.recv().await.unwrap().state, InstanceState::Running);
        world.set("10.9.9.9", "says", "ssh: connect to host 10.9.9.9 port 22: Connection timed out\n");
        world.cut("10.9.9.9");
        let mut seen = changes.recv().await.unwrap();
        assert_eq!(seen.state, InstanceState::Unknown);
        while !seen.reason.contains("does not answer") {
            seen = changes.recv().await.unwrap();
            assert_eq!(seen.state, InstanceState::Unknown);
        }
        assert!(seen.reason.contains("host a (10.9.9.9)") && seen.reason.contains("since"), "{}", seen.reason);
        // It neither creates nor kills, and says so at once.
        let begun = Instant::now();
        assert!(why(manager.ensure(world.ensure("u", 1, SLEEP)).await.unwrap_err()).contains("10.9.9.9"));
        why(manager.stop(&ensured.handle, 1, now()).await.unwrap_err());
        why(manager.find(&world.key("t"), "cluster-1").await.unwrap_err());
        why(manager.list("cluster-1", "", 10).await.unwrap_err());
        assert!(begun.elapsed() < Duration::from_secs(20));
        assert_eq!(manager.fingerprint().await.health, Health::Unhealthy);
        world.unset("10.9.9.9", "says");
        // An attempt that is under way then may fail for another reason.
        let mut back = changes.recv().await.unwrap();
        while back.state == InstanceState::Unknown {
            back = changes.recv().await.unwrap();
        }
        assert_eq!((back.state, &back.attributes["pid"]), (InstanceState::Running, &pid));
        drop(changes);
    };
    let (watch, ()) = tokio::join!(manager.watch(vec![ensured.handle.clone()], sink), watching);
    watch.unwrap();
    end(&manager, &ensured.handle, 1).await;
}

#[tokio::test]
async fn a30_a_renewed_key_opens_a_new_channel_to_the_same_instances() {
    let world = World::new();
    let key = world.dir.path().join("id");
    std::fs::write(&key, "first").unwrap();
    world.set("a", "key", "first");
    let manager = world.manager(json!({ "a": { "identity_file": key } })).await;
    let ensured = made(&manager, world.ensure("t", 1, SLEEP)).await;
    let pid = ensured.observed.attributes["pid"].clone();
    // The host takes another key from now on, which only the next connection meets.
    world.set("a", "key", "second");
    assert_eq!(observe(&manager, &ensured.handle).await.state, InstanceState::Running);
    world.cut("a");
    until_state(&manager, &ensured.handle, InstanceState::Unknown).await;
    let denied = |reason: &str| reason.contains("the credentials were refused") && reason.contains("since");
    poll("the reason", async || {
        let reason = observe(&manager, &ensured.handle).await.reason;
        if denied(&reason) { Ok(()) } else { Err(reason) }
    })
    .await;
    assert!(denied(&why(manager.ensure(world.ensure("u", 1, SLEEP)).await.unwrap_err())));
    assert!(denied(&why(manager.stop(&ensured.handle, 1, now()).await.unwrap_err())));
    // The file is read by each attempt: nobody has to reload anything.
    std::fs::write(&key, "second").unwrap();
    let back = until_state(&manager, &ensured.handle, InstanceState::Running).await;
    assert_eq!(back.attributes["pid"], pid);
    assert_eq!((world.intents("t").len(), world.intents("u").len()), (1, 0));
    end(&manager, &ensured.handle, 1).await;
}

#[tokio::test]
async fn what_is_wrong_with_a_host_is_said_in_words() {
    let world = World::new();
    let fake = world.dir.path().join("bin");
    std::fs::create_dir(&fake).unwrap();
    let program = |name: &str, text: &str| {
        testkit::program(&fake.join(name), &format!("#!/bin/sh\n{text}\n"));
    };
    program("uname", "case $1 in -m) echo riscv64 ;; *) PATH=${PATH#*:}; exec uname $* ;; esac");
    program("head", "echo head: No space left on device >&2; exit 1");
    world.set("a", "says", "ops@a: Permission denied (publickey).\n");
    world.set("b", "says", "@@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @@\nHost key verification failed.\n");
    world.set("c", "path", fake.to_str().unwrap());
    world.set("e", "noise", &"garbage ".repeat(100_000));
    world.set("f", "says", "");
    let dir = |name: &str| json!({ "dir": format!("{}/{name}/x", world.dir.path().display()) });
    let manager = world
        .manager(
            json!({ "a": {}, "b": {}, "c": {}, "e": {}, "f": {}, "h": { "dir": "/proc/no/such" }, "i": dir("ssh") }),
        )
        .await;
    for (host, words) in [
        ("a", "the credentials were refused"),
        ("b", "the host's key has changed"),
        ("c", "the host is riscv64"),
        ("e", "writes without end"),
        ("f", "the connection ended"),
        ("h", "cannot make the directory /proc/no/such"),
        ("i", "cannot make the directory"),
    ] {
        let request = world.ensure_with("t", 1, json!({ "command": "sh", "host": host }));
        let why = why(manager.ensure(request).await.unwrap_err());
        assert!(why.contains(words) && why.contains(&format!("host {host} cannot be reached since")), "{host}: {why}");
    }
    // A try that was killed while it stored the executor: its process is gone, this file is not. One that is under way
    // is left alone.
    let half = |pid: u32| {
        let host = rustix::system::uname();
        let name = format!(".drover-executor-0123.{}.{pid}", host.nodename().to_string_lossy());
        world.root("c").join("executors").join(name)
    };
    let mut ended = std::process::Command::new("true").spawn().unwrap();
    ended.wait().unwrap();
    let (left, under_way) = (half(ended.id()), half(std::process::id()));
    std::fs::write(&left, "half").unwrap();
    std::fs::write(&under_way, "half").unwrap();
    // A disk that is full before the executor is there.
    std::fs::remove_file(fake.join("uname")).unwrap();
    let manager = world.manager(json!({ "c": {} })).await;
    let why = why(manager.ensure(world.ensure("t", 1, SLEEP)).await.unwrap_err());
    assert!(why.contains("a disk of the host is full") && why.contains("cannot store the executor"), "{why}");
    // The next try is under way already, and what it has stored goes with it; so does what a killed try has left.
    let alone = || !left.exists() && std::fs::read_dir(world.root("c").join("executors")).unwrap().count() <= 1;
    eventually("the end of everything half", alone).await;
    assert!(under_way.exists(), "another's file was removed while it is written");
    // No ssh at all.
    let driver = Driver::new();
    let config = json!({ "transport": "ssh", "pool": "p", "ssh": "/no/such/ssh", "host": { "a": {} } });
    driver
        .set_config(Config::new(rmp_serde::to_vec_named(&config).unwrap()), Some(AgentConfig::default()))
        .await
        .unwrap();
    let why = match driver.find("k", "o").await {
        Err(RemoteError::CouldNotAsk(why)) => why,
        other => panic!("{other:?}"),
    };
    assert!(why.contains("cannot run /no/such/ssh"), "{why}");
}

#[tokio::test]
async fn the_doctor_reaches_every_host_and_says_what_is_wrong_with_it() {
    let world = World::new();
    world.set("b", "says", "ops@b: Permission denied (publickey).\n");
    let hosts = json!({ "a": { "capacity": { "memory": 1_u64 << 40 } }, "b": {} });
    let findings = world.manager(hosts).await.examine().await;
    let told: Vec<(&str, Verdict)> = findings.iter().map(|f| (f.what.as_str(), f.verdict)).collect();
    assert!(told.contains(&("host a", Verdict::Pass)), "{findings:#?}");
    assert!(told.contains(&("capacity of host a", Verdict::Warning)), "{findings:#?}");
    let refused = findings.iter().find(|f| f.what == "host b").expect("a finding");
    assert!(refused.verdict == Verdict::Fail && refused.found.contains("the credentials were refused"), "{refused:?}");
    assert_eq!(world.records(), [], "the doctor made an instance");
}

#[tokio::test]
async fn another_runtime_under_the_same_name_knows_nothing() {
    let world = World::new();
    let manager = world.manager(json!({ "a": {} })).await;
    let ensured = made(&manager, world.ensure("t", 1, SLEEP)).await;
    std::fs::rename(world.dir.path().join("a"), world.dir.path().join("away")).unwrap();
    let other = world.manager(json!({ "a": {} })).await;
    let seen = observe(&other, &ensured.handle).await;
    assert_eq!(seen.state, InstanceState::Unknown);
    assert!(seen.reason.contains("now holds the runtime"), "{}", seen.reason);
    why(other.stop(&ensured.handle, 2, now()).await.unwrap_err());
    // The first one sees that its ground was taken away, too.
    assert_eq!(observe(&manager, &ensured.handle).await.state, InstanceState::Unknown);
    // A host that the inventory has no more.
    let without = world.manager(json!({ "b": {} })).await;
    let seen = observe(&without, &ensured.handle).await;
    assert!(seen.state == InstanceState::Unknown && seen.reason.contains("host a, which is not in"), "{}", seen.reason);
    std::fs::remove_dir_all(world.dir.path().join("a")).unwrap();
    std::fs::rename(world.dir.path().join("away"), world.dir.path().join("a")).unwrap();
    let back = world.manager(json!({ "a": {} })).await;
    end(&back, &ensured.handle, 2).await;
}

#[tokio::test]
async fn a_pool_makes_each_instance_once_whoever_asks_with_whatever_inventory() {
    let world = World::new();
    let small = world.manager(json!({ "a": {}, "b": {} })).await;
    let large = world.manager(json!({ "a": {}, "b": {}, "c": {} })).await;
    let mut on: BTreeMap<String, usize> = BTreeMap::new();
    // Which host a key prefers depends on the key, which is new at each run: until both were preferred.
    let mut keys = 0;
    while keys < 12 || on.len() < 2 {
        assert!(keys < 60, "all on one host: {on:?}");
        let name = format!("t{keys}");
        keys += 1;
        let first = made(&small, world.ensure(&name, 1, SLEEP)).await;
        *on.entry(first.observed.attributes["host"].clone()).or_default() += 1;
        // A host more, an attempt more: the same instance.
        let second = made(&large, world.ensure(&name, 2, SLEEP)).await;
        assert_eq!((second.created, &second.handle), (false, &first.handle));
        assert_eq!(world.intents(&name).len(), 1);
        let (found, seen) = large.find(&world.key(&name), "cluster-1").await.unwrap();
        assert_eq!((&found, seen.epoch), (&first.handle, 2));
    }
    let mut token = String::new();
    let mut listed = Vec::new();
    loop {
        let page = large.list("cluster-1", &token, 5).await.unwrap();
        assert!(page.instances.len() <= 5);
        listed.extend(page.instances.into_iter().map(|i| i.handle));
        token = page.next_page_token;
        if token.is_empty() {
            break;
        }
    }
    assert_eq!(listed.len(), keys);
    for handle in &listed {
        end(&large, handle, 3).await;
    }
    // With one host away nothing is made where it might be, but a task that names another host is.
    world.set("c", "says", "ssh: connect to host c port 22: Connection refused\n");
    world.cut("c");
    until_state(&large, &RemoteHandle { schema: 99, data: Vec::new() }, InstanceState::Unknown).await;
    let in_doubt = async || !large.find("absent", "cluster-1").await.is_err_and(|e| matches!(e, RemoteError::Gone(_)));
    poll("the doubt about a host that is away", in_doubt).await;
    let refused = why(large.ensure(world.ensure("u", 1, SLEEP)).await.unwrap_err());
    assert!(refused.contains("may be on a host that cannot be asked") && refused.contains("host c"), "{refused}");
    assert!(world.intents("u").is_empty());
    let named = large
        .ensure(world.ensure_with("v", 1, json!({ "command": "sh", "args": ["-c", SLEEP], "host": "a" })))
        .await
        .unwrap();
    assert_eq!(named.observed.attributes["host"], "a");
    end(&large, &named.handle, 1).await;
    // The first create of a key goes on with the hosts that answer, and so does its repetition, which finds it there.
    let first = large.ensure(Ensure { first: true, ..world.ensure("w", 1, SLEEP) }).await.unwrap();
    assert_ne!(first.observed.attributes["host"], "c");
    let again = large.ensure(world.ensure("w", 2, SLEEP)).await.unwrap();
    assert_eq!((again.created, &again.handle), (false, &first.handle));
    let nowhere = json!({ "command": "sh", "args": ["-c", SLEEP], "labels": { "only": "c" } });
    let refused = large.ensure(Ensure { first: true, ..world.ensure_with("x", 1, nowhere) }).await.unwrap_err();
    assert!(matches!(refused, RemoteError::WrongRequest(_) | RemoteError::CouldNotAsk(_)), "{refused:?}");
    // What the others have is listed, and that it is not all.
    let page = large.list("cluster-1", "", 100).await.unwrap();
    assert_eq!(page.instances.iter().map(|i| &i.handle).collect::<Vec<_>>(), [&first.handle]);
    assert!(page.incomplete.contains("host c"), "{page:?}");
    // Back again it is told before anything else can be made with that key.
    world.unset("c", "says");
    poll("a list of all hosts", async || {
        large.list("cluster-1", "", 100).await.is_ok_and(|page| page.incomplete.is_empty())
    })
    .await;
    let third = large.ensure(world.ensure("w", 3, SLEEP)).await.unwrap();
    assert_eq!((third.created, &third.handle), (false, &first.handle));
    end(&large, &first.handle, 3).await;
}

#[tokio::test]
async fn managers_that_race_over_a_pool_make_one_instance() {
    let world = World::new();
    let managers = [
        world.manager(json!({ "a": {}, "b": {}, "c": {} })).await,
        world.manager(json!({ "c": {}, "b": {}, "a": {} })).await,
    ];
    made(&managers[0], world.ensure("first", 1, "exit 0")).await;
    made(&managers[1], world.ensure("first", 1, "exit 0")).await;
    for n in 0..8 {
        let name = format!("t{n}");
        let both = futures::future::join_all(managers.iter().map(|m| m.ensure(world.ensure(&name, 1, SLEEP)))).await;
        assert!(both.iter().any(Result::is_ok), "{both:?}");
        let made = made(&managers[n % 2], world.ensure(&name, 1, SLEEP)).await;
        assert_eq!(world.intents(&name).len(), 1);
        end(&managers[0], &made.handle, 1).await;
        // A stop of what may not exist is one on all hosts, and final.
        assert_eq!(managers[1].seal(&world.key(&name), 2, "cluster-1", b"").await, Ok(None));
        let late = managers[0].ensure(world.ensure(&name, 2, SLEEP)).await;
        assert!(matches!(late, Err(RemoteError::Sealed(_))), "{late:?}");
    }
}

#[tokio::test]
async fn hosts_take_what_they_have_room_for() {
    let world = World::new();
    let one = json!({ "capacity": { "sessions": 1, "memory": 100, "cpu": 1000 }, "labels": { "zone": "1" } });
    let manager = world.manager(json!({ "a": one, "b": one, "c": { "capacity": { "memory": 10, "cpu": 500 } } })).await;
    let described = manager.describe();
    assert_eq!((described.pool_cpu_mhz, described.pool_memory_mib), (2500, 210));
    let request = |name: &str| {
        let options = json!({ "command": "sh", "args": ["-c", SLEEP], "labels": { "zone": "1" } });
        world.ensure_with(name, 1, options)
    };
    let first = made(&manager, request("t1")).await;
    let second = made(&manager, request("t2")).await;
    assert_ne!(first.observed.attributes["host"], second.observed.attributes["host"]);
    let refused = why(manager.ensure(request("t3")).await.unwrap_err());
    assert!(
        refused.contains("no host of pool test has room") && refused.contains("1 of 1 sessions taken"),
        "{refused}"
    );
    let named = world.ensure_with("t4", 1, json!({ "command": "sh", "host": "a" }));
    assert!(why(manager.ensure(named).await.unwrap_err()).contains("1 of its 1 instances are taken"));
    assert!(world.intents("t3").is_empty() && world.intents("t4").is_empty());
    // Once one has ended there is room again, before it is acknowledged.
    manager.stop(&first.handle, 1, now()).await.unwrap();
    let third = made(&manager, request("t3")).await;
    assert_eq!(third.observed.attributes["host"], first.observed.attributes["host"]);
    for made in [&first, &second, &third] {
        end(&manager, &made.handle, 1).await;
    }
    let nowhere = world.ensure_with("t5", 1, json!({ "command": "sh", "labels": { "zone": "9" } }));
    assert!(matches!(manager.ensure(nowhere).await, Err(RemoteError::WrongRequest(why)) if why.contains("zone")));
}

#[tokio::test]
async fn a_restart_of_the_host_is_an_end_with_the_reason_and_not_a_new_start() {
    let world = World::new();
    let manager = world.manager(json!({ "a": {} })).await;
    let cases = ["whole", "of the beginning", "empty", "lost", "lost, and asked for by its key only"];
    let mark = |n: usize| world.dir.path().join(format!("starts{n}"));
    let script = |n: usize| format!("echo >> {}; {SLEEP}", mark(n).display());
    let mut handles = Vec::new();
    for n in 0..cases.len() {
        let ensured = made(&manager, world.ensure(&format!("t{n}"), 1, &script(n))).await;
        eventually("the first start", || std::fs::read_to_string(mark(n)).is_ok_and(|text| text == "\n")).await;
        for pid in ["executor_pid", "pid"] {
            testkit::try_signal(ensured.observed.attributes[pid].parse::<i32>().unwrap(), Signal::KILL).unwrap();
        }
        handles.push(ensured.handle);
    }
    drop(manager);
    // What a machine leaves that lost its power: no processes, what was synced, and of the executor's record whatever
    // was on its disk by then.
    for (n, case) in cases.iter().enumerate() {
        let dir = world.root("a").join("instances").join(world.key(&format!("t{n}")));
        let edit = |file: &str, change: &dyn Fn(&mut Value)| {
            let mut value: Value = serde_json::from_slice(&std::fs::read(dir.join(file)).unwrap()).unwrap();
            change(&mut value);
            std::fs::write(dir.join(file), value.to_string()).unwrap();
        };
        let (record, boot) = ("executor/executor.json", json!("00000000-0000-0000-0000-000000000000"));
        edit("instance.json", &|intent| intent["boot"] = boot.clone());
        edit(record, &|record| record["boot_id"] = boot.clone());
        match *case {
            "whole" => {}
            "of the beginning" => edit(record, &|record| {
                for (field, value) in [("launching", json!(true)), ("workload_pid", json!(0))] {
                    record[field] = value;
                }
            }),
            "empty" => std::fs::write(dir.join(record), "").unwrap(),
            _ => std::fs::remove_file(dir.join(record)).unwrap(),
        }
    }
    let manager = world.manager(json!({ "a": {} })).await;
    for (n, (case, handle)) in cases.iter().zip(&handles).enumerate() {
        if !case.contains("its key only") {
            let seen = until_state(&manager, handle, InstanceState::Exited).await;
            assert!(seen.exit.exit_code == -1 && seen.reason.contains("restart of the machine"), "{case}: {seen:?}");
        }
        let again = made(&manager, world.ensure(&format!("t{n}"), 2, &script(n))).await;
        assert_eq!((again.created, again.observed.state), (false, InstanceState::Exited), "{case}");
        assert_eq!(std::fs::read_to_string(mark(n)).unwrap().lines().count(), 1, "{case}");
        manager.acknowledge(handle, 2).await.unwrap();
    }
}

#[tokio::test]
async fn a_refused_create_leaves_nothing_to_be_listed() {
    let world = World::new();
    let manager = world.manager(json!({ "a": {} })).await;
    made(&manager, world.ensure("other", 1, "exit 0")).await;
    for (n, (options, user, words)) in [
        (json!({ "command": "no-such-program" }), "", "no-such-program"),
        (json!({ "command": "sh", "work_dir": "/no/such/dir" }), "", "work_dir"),
        (json!({ "command": "sh", "work_dir": "../.." }), "", "leaves"),
        (json!({ "command": "sh" }), "no-such-user", "no-such-user"),
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("t{n}");
        let mut request = world.ensure_with(&name, 1, options);
        request.task.user = user.into();
        let refused = manager.ensure(request).await;
        assert!(matches!(&refused, Err(RemoteError::WrongRequest(why)) if why.contains(words)), "{refused:?}");
        assert!(matches!(manager.find(&world.key(&name), "cluster-1").await, Err(RemoteError::Gone(_))));
        // A manager that was replaced before that cannot make it either.
        let mut late = world.ensure(&name, 1, SLEEP);
        late.epoch = 0;
        assert!(matches!(manager.ensure(late).await, Err(RemoteError::StaleEpoch { given: 0, accepted: 1 })));
    }
    let listed = manager.list("cluster-1", "", 10).await.unwrap();
    assert_eq!(listed.instances.len(), 1);
    // The next attempt with the same key is a new one.
    let good = manager.ensure(world.ensure("t0", 2, SLEEP)).await.unwrap();
    assert!(good.created);
    end(&manager, &good.handle, 2).await;
}

#[tokio::test]
async fn a_hanging_host_is_given_up_and_found_again() {
    let mut world = World::new();
    world.keepalive = 1;
    let manager = world.manager(json!({ "a": {} })).await;
    let ensured = made(&manager, world.ensure("t", 1, SLEEP)).await;
    let channel = || std::fs::read_to_string(world.dir.path().join("a.pid")).unwrap().trim().parse::<i32>().ok();
    poll("its silence", async || {
        let stopped = channel().ok_or_else(|| "a channel that begins".to_owned())?;
        // As behind a cut that nobody tells of: open, and silent.
        testkit::try_signal(stopped, Signal::STOP).unwrap();
        let seen = observe(&manager, &ensured.handle).await;
        // One that was taken for hanging just before, being busy, is reached over another channel.
        assert!(seen.state != InstanceState::Running || channel() != Some(stopped), "it was silent: {seen:?}");
        let told = seen.state == InstanceState::Unknown && seen.reason.contains("has not answered for");
        told.then_some(()).ok_or(seen.reason)
    })
    .await;
    let seen = until_state(&manager, &ensured.handle, InstanceState::Running).await;
    assert_eq!(seen.attributes["pid"], ensured.observed.attributes["pid"]);
    // With so little patience a busy machine is taken for a hanging host once more.
    poll("the stop", async || manager.stop(&ensured.handle, 1, now()).await).await;
    poll("the acknowledgement", async || manager.acknowledge(&ensured.handle, 1).await).await;
}

/// As a node does it that keeps what a create is about to do: decides where it goes, and goes there.
async fn kept(driver: &Driver, request: &Ensure) -> Vec<u8> {
    poll("the intent", async || driver.intent(request).await).await.expect("a choice")
}

fn host_in(intent: &[u8]) -> String {
    let intent: Option<Value> = driver_sdk::handle::decode_intent(1, intent).unwrap();
    intent.expect("a choice")["host"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn two_names_of_one_host_are_one_host() {
    let world = World::new();
    let manager = world.manager(json!({ "a": {}, "b": { "address": "a" }, "c": {} })).await;
    let mut handles = Vec::new();
    for n in 0..6 {
        let name = format!("t{n}");
        let request = world.ensure(&name, 1, SLEEP);
        // With and without what the servers keep.
        let intent = if n % 2 == 0 { kept(&manager, &request).await } else { Vec::new() };
        let ensured = made(&manager, Ensure { intent, ..request }).await;
        assert_eq!((ensured.created, world.intents(&name).len()), (true, 1));
        handles.push(ensured.handle);
    }
    // A label that only the second name has.
    let request = Ensure {
        first: true,
        ..world.ensure_with("u", 1, json!({ "command": "sh", "args": ["-c", SLEEP], "host": "b" }))
    };
    handles.push(made(&manager, request).await.handle);
    assert_eq!(manager.list("cluster-1", "", 100).await.unwrap().instances.len(), 7, "each is listed once");
    assert_eq!(manager.seal(&world.key("never"), 1, "cluster-1", b"").await, Ok(None));
    let said = manager.fingerprint().await.description;
    assert!(said.contains("host b is the same host as a"), "{said}");
    // What it offers counts once: from the start where the names have one address, and where they are seen to lead to
    // one host.
    let size = json!({ "cpu": 1000, "memory": 100 });
    std::os::unix::fs::symlink("a", world.dir.path().join("z")).unwrap();
    let hosts =
        json!({ "a": { "capacity": size }, "b": { "address": "a", "capacity": size }, "z": { "capacity": size } });
    let sized = world.manager(hosts).await;
    assert!(sized.describe().pool_cpu_mhz <= 2000, "{:?}", sized.describe());
    sized.list("cluster-1", "", 100).await.unwrap();
    assert_eq!((sized.describe().pool_cpu_mhz, sized.describe().pool_memory_mib), (1000, 100));
    drop(sized);
    // Whoever knows the host by another name finds what is on it.
    let other = world.manager(json!({ "x": { "address": "a" }, "y": { "address": "c" } })).await;
    made(&other, world.ensure("t0", 2, SLEEP)).await;
    for handle in &handles {
        assert_eq!(until_state(&other, handle, InstanceState::Running).await.state, InstanceState::Running);
        end(&other, handle, 3).await;
    }
}

#[tokio::test]
async fn a_name_that_leads_to_another_host_starts_nothing_there() {
    let world = World::new();
    let first = world.manager(json!({ "a": {} })).await;
    let request = world.ensure("t", 1, SLEEP);
    let intent = kept(&first, &request).await;
    drop(first);
    // The create may have been sent. Then another machine gets the name.
    std::fs::rename(world.dir.path().join("a"), world.dir.path().join("away")).unwrap();
    let again = Ensure { epoch: 2, intent: intent.clone(), ..request };
    let lookup = Lookup { key: again.key.clone(), owner: again.owner.clone(), intent, epoch: 2, create_follows: true };
    let next = world.manager(json!({ "a": {} })).await;
    for said in [
        why(next.intent(&again).await.unwrap_err()),
        why(next.ensure(again.clone()).await.unwrap_err()),
        why(next.look_up(lookup.clone()).await.unwrap_err()),
        why(next.seal(&again.key, 2, "cluster-1", &again.intent).await.unwrap_err()),
    ] {
        assert!(said.contains("the name now leads to another host") && said.contains("remote forget"), "{said}");
    }
    assert!(world.intents("t").is_empty());
    // Under another name it is the same host.
    let knows = world.manager(json!({ "a": {}, "z": { "address": "away" } })).await;
    poll("its absence", async || matches!(knows.look_up(lookup.clone()).await, Err(RemoteError::Gone(_)))).await;
    let ensured = made(&knows, again).await;
    assert_eq!((ensured.observed.attributes["host"].as_str(), world.intents("t").len()), ("z", 1));
    // Back under its name, it is found by the handle that names the other.
    std::fs::remove_dir_all(world.dir.path().join("a")).unwrap();
    std::fs::create_dir(world.dir.path().join("a")).unwrap();
    let renamed = world.manager(json!({ "away": {} })).await;
    until_state(&renamed, &ensured.handle, InstanceState::Running).await;
    end(&renamed, &ensured.handle, 3).await;
}

#[tokio::test]
async fn nodes_with_differing_inventories_make_an_instance_on_one_host() {
    let world = World::new();
    let here = world.manager(json!({ "a": {}, "b": {}, "c": {} })).await;
    let there = world.manager(json!({ "c": {}, "d": {} })).await;
    // Which host a key prefers depends on the key, which is new at each run: until keys of both kinds were met, sent
    // and not sent.
    let (mut held, mut followed) = (0, 0);
    for n in 0.. {
        if n >= 4 && held > 0 && followed > 0 {
            break;
        }
        assert!(n < 60, "{held} keys prefer a host that only one of them has, {followed} the one that both have");
        let name = format!("t{n}");
        let request = Ensure { first: true, ..world.ensure(&name, 1, SLEEP) };
        let intent = kept(&here, &request).await;
        let chosen = host_in(&intent);
        // The first manager has sent it, or not yet, when the second one follows.
        let sent = n % 2 == 0;
        if sent {
            here.ensure(Ensure { intent: intent.clone(), ..request.clone() }).await.unwrap();
        }
        let next = Ensure { epoch: 2, first: false, intent: intent.clone(), ..request.clone() };
        if chosen == "c" {
            followed += 1;
            made(&there, next).await;
        } else {
            held += 1;
            let said = why(there.ensure(next).await.unwrap_err());
            assert!(
                said.contains("inventory of pool test has no host with it") && said.contains(&format!("host {chosen}")),
                "{said}"
            );
            let lookup = Lookup {
                key: request.key.clone(),
                owner: request.owner.clone(),
                intent: intent.clone(),
                ..Lookup::default()
            };
            why(there.look_up(lookup).await.unwrap_err());
            // A stop that has no handle: it may live on a host that this node does not know.
            let said = why(there.seal(&request.key, 2, "cluster-1", &intent).await.unwrap_err());
            assert!(said.contains(&format!("host {chosen}")), "{said}");
        }
        assert_eq!(world.intents(&name).len(), usize::from(sent || chosen == "c"), "{chosen}");
        let last = made(&here, Ensure { epoch: 3, first: false, intent: intent.clone(), ..request.clone() }).await;
        assert_eq!((last.observed.attributes["host"].as_str(), world.intents(&name).len()), (chosen.as_str(), 1));
        let (sealed, _) = here.seal(&request.key, 3, "cluster-1", &intent).await.unwrap().expect("it lives there");
        assert_eq!(sealed, last.handle);
        end(&here, &last.handle, 3).await;
        assert_eq!(here.seal(&request.key, 3, "cluster-1", &intent).await, Ok(None));
    }
}

#[tokio::test]
async fn a_key_waits_for_room_on_the_host_that_was_chosen() {
    let world = World::new();
    let one = json!({ "capacity": { "sessions": 1 } });
    let manager = world.manager(json!({ "a": one, "b": one })).await;
    let request = Ensure { first: true, ..world.ensure("t", 1, SLEEP) };
    let intent = kept(&manager, &request).await;
    let full = host_in(&intent);
    let other = manager
        .ensure(world.ensure_with("other", 1, json!({ "command": "sh", "args": ["-c", SLEEP], "host": full })))
        .await
        .unwrap();
    let request = Ensure { intent, ..request };
    why(manager.ensure(request.clone()).await.unwrap_err());
    // The other host was sealed for the one that was chosen.
    assert_eq!(manager.intent(&Ensure { first: false, ..request.clone() }).await, Ok(None));
    end(&manager, &other.handle, 1).await;
    let ensured = made(&manager, Ensure { first: false, ..request }).await;
    assert_eq!(ensured.observed.attributes["host"], full);
    end(&manager, &ensured.handle, 1).await;
}

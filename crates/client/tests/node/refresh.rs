//! Tokens of remote tasks: renewed where the task runs, by whichever node manages it now, and by no other.

use std::{path::Path, time::Duration};

use client::{Client, ClientConfig, PluginCommand, PluginSettings};
use mock::fake::{FakeProvider, Outcome};
use model::{Allocation, GoDuration, Job, RemoteOrder, task::Identity};
use serde_json::json;

use crate::fixture::{Rig, eventually, managed, nothing_left, nth, plugin, running, task};

const FILE: &str = "secrets/nomad_x.jwt";

struct World {
    rig: Rig,
    provider: FakeProvider,
}

impl World {
    async fn new() -> Self {
        let rig = Rig::new().await;
        let provider = FakeProvider::open(&rig.dir.path().join("provider")).expect("opens");
        Self { rig, provider }
    }

    /// A node with directories of its own.
    async fn node(&self, name: &str, without: &[&str]) -> Client {
        let ClientConfig { artifacts, .. } = self.rig.config();
        let mut config = ClientConfig::new(&self.rig.dir.path().join(name), name);
        config.network_interface = "lo".into();
        config.servers = vec![self.rig.server.addr.to_string()];
        config.artifacts = artifacts;
        config.builtin_drivers =
            vec![PluginCommand { name: "mock_remote".into(), program: plugin(), args: vec!["mock_remote".into()] }];
        let settings =
            json!({"dir": self.rig.dir.path().join("provider"), "record": true, "caller": name, "without": without});
        config.plugins.insert("mock_remote".into(), PluginSettings { args: Vec::new(), config: Some(settings) });
        let node = self.rig.node_with(config).await;
        self.rig.driver_ready("mock_remote").await;
        node
    }

    fn token(&self, order: &RemoteOrder) -> Option<String> {
        let data = self.provider.file(&order.incarnation.to_string(), FILE).expect("reads")?;
        Some(String::from_utf8(data).expect("text"))
    }

    /// Waits for another token than this one.
    async fn renewed(&self, what: &str, order: &RemoteOrder, former: &str) -> String {
        eventually(what, || self.token(order).is_some_and(|token| token != former)).await;
        self.token(order).expect("it has one")
    }

    /// Calls that have come to the provider.
    fn refreshes(&self, caller: &str, outcome: Outcome) -> usize {
        let calls = self.provider.calls().expect("reads");
        calls.iter().filter(|c| c.call == "refresh" && c.caller == caller && c.outcome == outcome).count()
    }

    /// Waits for events of a task with these words; answers how many there are.
    async fn told(&self, a: &Allocation, words: &str) -> usize {
        let count = |u: &model::AllocClientUpdate| {
            u.task_states.get("t").map_or(0, |t| t.events.iter().filter(|e| e.display_message.contains(words)).count())
        };
        let update = self.rig.server.alloc(a.id, &format!("an event {words:?}"), |u| count(u) > 0).await;
        count(&update)
    }

    async fn end(self, node: Client) {
        node.stop().await;
        nothing_left(&self.rig).await;
    }
}

fn identity(ttl: u64, change_mode: &str) -> Identity {
    let change_signal = if change_mode == "signal" { "SIGHUP".into() } else { String::new() };
    let ttl = GoDuration::from_secs(i64::try_from(ttl).expect("short"));
    Identity {
        name: "x".into(),
        file: true,
        ttl,
        change_mode: change_mode.into(),
        change_signal,
        ..Identity::default()
    }
}

fn remote(identity: Identity) -> (Allocation, Job, RemoteOrder) {
    let mut t = task("t", "mock_remote", json!({"run_for": "1h", "kill_after": "10ms"}));
    t.identities = vec![identity];
    managed("service", t)
}

/// When a token of the played server was given, in nanoseconds.
fn given(token: &str) -> u64 {
    token.strip_prefix("x-").and_then(|ns| ns.parse().ok()).expect("a token of the played server")
}

/// The files below a directory, but for one directory, that hold a text.
fn holding(dir: &Path, but: &Path, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let (path, kind) = (entry.path(), entry.file_type().expect("a kind"));
        if kind.is_dir() && path != but {
            found.extend(holding(&path, but, text));
        } else if kind.is_file() {
            let data = std::fs::read(&path).unwrap_or_default();
            if data.windows(text.len()).any(|w| w == text.as_bytes()) {
                found.push(path.display().to_string());
            }
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a30_tokens_are_renewed_where_the_task_runs_and_nobody_else_sees_them() {
    let world = World::new().await;
    let server = &world.rig.server;
    server.tokens(Duration::from_secs(2));
    server.lease(Duration::from_secs(3));
    let node = world.node("n1", &[]).await;
    let (a, job, order) = remote(identity(2, "signal"));
    let id = order.incarnation.to_string();
    server.manages(&a, &job, &order).await;
    let first = world.token(&order).expect("it came with the create");
    let second = world.renewed("a renewal", &order, &first).await;
    let after = Duration::from_nanos(given(&second) - given(&first));
    assert!(after >= Duration::from_millis(900), "not before half of its life is about over: {after:?}");
    let third = world.renewed("the next renewal", &order, &second).await;
    let instance = || world.provider.live().expect("reads").into_iter().find(|i| i.id == id).expect("it runs");
    eventually("a signal for each", || instance().signals.len() >= 2).await;
    assert!(instance().signals.iter().all(|s| s == "SIGHUP"));
    world.told(&a, "Token of identity \"x\" renewed").await;
    assert_eq!(world.provider.count("ensure").expect("reads"), 1, "it is the same instance");

    // Without a lease nothing is renewed, however old the token is. No heartbeat for a long time: the session stands,
    // and the lease ends.
    node.stop().await;
    server.heartbeat(Duration::from_secs(600));
    let node = world.node("n1", &[]).await;
    eventually("a session", || node.handle().connected()).await;
    eventually("the lease to end", || !node.handle().lease_held()).await;
    let ended =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_nanos() as u64;
    tokio::time::sleep(Duration::from_millis(2500)).await;
    let last = world.token(&order).expect("it has one");
    assert!(given(&last) <= ended, "renewed without a lease");
    node.stop().await;
    server.heartbeat(Duration::ZERO);
    let node = world.node("n1", &[]).await;
    let next = world.renewed("a renewal under the next lease", &order, &last).await;
    assert!(given(&next) > ended);

    let but = world.rig.dir.path().join("provider/files");
    for token in [&first, &second, &third] {
        assert_eq!(
            holding(world.rig.dir.path(), &but, token),
            Vec::<String>::new(),
            "{token} lies with the instance only"
        );
    }
    let heard = format!("{:?}", server.now());
    assert!(
        [&first, &second, &third].iter().all(|token| !heard.contains(token.as_str())),
        "no token in reports and updates"
    );
    world.end(node).await;
}

/// The next manager does not know when the one before has renewed: it does soon. A former one is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a30_after_a_hand_over_the_next_manager_renews() {
    let world = World::new().await;
    let server = &world.rig.server;
    server.tokens(Duration::from_secs(300));
    let node = world.node("n1", &[]).await;
    let (a, job, order) = remote(identity(300, "noop"));
    let slot = order.slot.to_string();
    let made = server.manages(&a, &job, &order).await;
    let first = world.token(&order).expect("it came with the create");
    node.stop().await;
    assert_eq!(world.refreshes("n1", Outcome::Done), 0);

    // Another node, with an allocation of its own.
    server.collect(a.id);
    server.forget_reports();
    let (b, job, mut adopt) = remote(identity(300, "noop"));
    (adopt.incarnation, adopt.epoch, adopt.adopt) = (order.incarnation, 7, true);
    adopt.handle.clone_from(&made.handle);
    server.set_order(&adopt);
    let node = world.node("n2", &[]).await;
    server.place(&b, &job);
    server.report(&slot, "the adopted instance", |r| running(r) && r.epoch == 7).await;
    let second = world.renewed("a renewal by the next manager", &adopt, &first).await;
    let after = Duration::from_nanos(given(&second) - given(&first));
    assert!(after < Duration::from_secs(135), "soon, not at half of its life: {after:?}");
    // The provider notes the call when the file is there.
    eventually("one renewal by the next manager", || world.refreshes("n2", Outcome::Done) == 1).await;
    assert_eq!(world.provider.count("ensure").expect("reads"), 1, "it is the same instance");
    node.stop().await;

    // One with an older epoch, which may look and must not change anything.
    server.collect(b.id);
    server.forget_reports();
    let (c, job, mut stale) = remote(identity(300, "noop"));
    (stale.incarnation, stale.epoch, stale.adopt) = (order.incarnation, 6, true);
    stale.handle.clone_from(&made.handle);
    server.set_order(&stale);
    let node = world.node("n3", &[]).await;
    server.place(&c, &job);
    world.told(&c, "are not renewed, the node goes on trying: the epoch is stale").await;
    assert!(world.refreshes("n3", Outcome::Stale) > 0);
    assert_eq!(world.token(&adopt).as_ref(), Some(&second), "the task keeps its token");
    world.end(node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_that_fails_is_told_once_and_made_later() {
    let world = World::new().await;
    let server = &world.rig.server;
    server.tokens(Duration::from_secs(2));
    let node = world.node("n1", &[]).await;
    let (a, job, order) = remote(identity(2, "noop"));
    world.provider.fault(None, &json!({"fail": ["refresh"]})).expect("writes");
    server.manages(&a, &job, &order).await;
    let first = world.token(&order).expect("it came with the create");
    world.told(&a, "Tokens of x are not renewed, the node goes on trying: ").await;
    assert_eq!(world.token(&order).as_ref(), Some(&first), "it keeps the token that it has");

    // It takes effect, and nobody is told.
    world.provider.fault(None, &json!({"lose": ["refresh"]})).expect("writes");
    eventually("two tries", || world.refreshes("n1", Outcome::Done) >= 2).await;
    world.told(&a, "is asked to be lost").await;
    world.provider.fault(None, &json!({})).expect("writes");
    let lost = world.token(&order).expect("it has one");
    world.renewed("a renewal that is answered", &order, &lost).await;
    let told = world.told(&a, "are not renewed").await;
    assert_eq!(told, 2, "once for each reason");
    world.end(node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_renewed_is_refused_by_name() {
    let world = World::new().await;
    let server = &world.rig.server;
    server.tokens(Duration::from_secs(60));
    let node = world.node("n1", &["refresh"]).await;
    let (a, job, order) = remote(identity(60, "noop"));
    server.place(&a, &job);
    server.order(&order);
    let report = server.report(&order.slot.to_string(), "a refusal", |r| !r.refused.is_empty()).await;
    assert!(report.refused.contains("identity \"x\": ttl: this runtime renews no files"), "{}", report.refused);
    assert_eq!(world.provider.instances().expect("reads").len(), 0, "nothing was made");
    // Tokens without an end need no renewal.
    let (b, job, order) = nth(7, remote(identity(0, "")));
    server.manages(&b, &job, &order).await;
    assert!(world.token(&order).is_some());
    world.end(node).await;
}

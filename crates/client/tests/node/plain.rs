//! Remote tasks through a driver that knows the plain driver protocol only: the same rules, a weaker guarantee, and
//! nothing done in doubt.

use std::fs;

use client::{Client, PluginCommand, PluginSettings};
use mock::fake::FakeProvider;
use model::{Allocation, GoDuration, Job, Observed, RemoteOrder};
use serde_json::json;

use crate::fixture::{Rig, bare, eventually, managed, nothing_left, nth, plugin, poll, running, task};

async fn node(rig: &Rig) -> Client {
    let mut config = rig.config();
    config.builtin_drivers.push(PluginCommand {
        name: "mock_remote".into(),
        program: plugin(),
        args: vec!["mock_remote_plain".into()],
    });
    let settings = json!({"dir": rig.dir.path().join("provider"), "record": true, "caller": "n1"});
    config.plugins.insert("mock_remote".into(), PluginSettings { args: Vec::new(), config: Some(settings) });
    let client = rig.node_with(config).await;
    rig.driver_ready("mock_remote").await;
    client
}

fn remote_alloc(index: usize) -> (Allocation, Job, RemoteOrder) {
    let mut t = task("t", "mock_remote", json!({"run_for": "1h", "kill_after": "10ms", "exit_code": 7}));
    t.env.insert("TOKEN".into(), "a-secret".into());
    let (a, job, mut order) = nth(index, managed("service", t));
    order.kill_timeout = GoDuration::from_secs(5);
    (a, job, order)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_plain_protocol_under_the_same_rules() {
    let rig = Rig::new().await;
    let client = node(&rig).await;
    let provider = FakeProvider::open(&rig.dir.path().join("provider")).expect("opens");
    let declared =
        rig.server.now().node.as_ref().and_then(|n| n.drivers["mock_remote"].remote.clone()).expect("a remote driver");
    assert!(declared.plain_protocol && !declared.keyed_create && !declared.find && !declared.list, "{declared:?}");

    let (a, job, order) = remote_alloc(0);
    let slot = order.slot.to_string();
    let first = rig.server.manages(&a, &job, &order).await;
    let handle = first.handle.clone().expect("a handle");
    assert!(!String::from_utf8_lossy(&handle.data).contains("a-secret"), "no secret in a handle");
    let id = provider.live().expect("reads")[0].id.clone();

    // Its plugin dies, its node ends and comes back: RecoverTask finds the instance, nothing is created or stopped.
    crate::faults::plugin_pids(&rig).into_iter().for_each(crate::faults::kill);
    client.stop().await;
    rig.server.forget_reports();
    let adopt = RemoteOrder { adopt: true, epoch: 2, handle: Some(handle.clone()), ..order.clone() };
    rig.server.set_order(&adopt);
    let client = node(&rig).await;
    rig.server.report(&slot, "the same instance", |r| r.epoch == 2 && r.observed == Observed::Running).await;

    // What cannot be asked is unknown, with the reason; afterwards it is as before.
    provider.fault(None, &json!({"cut": true})).expect("writes");
    rig.server
        .report(
            &slot,
            "that it is unknown",
            |r| matches!(&r.observed, Observed::Unknown { why, .. } if why.contains("cut off")),
        )
        .await;
    provider.fault(None, &json!({})).expect("writes");
    rig.server.report(&slot, "that it runs", |r| r.observed == Observed::Running).await;

    // Let go: the driver is told to detach, the instance goes on.
    let observed = || provider.calls().expect("reads").iter().filter(|c| c.call == "observe").count();
    rig.server.release(&slot);
    rig.server.stop_alloc(a.id);
    rig.server.collect(a.id);
    eventually("the allocation to go", || !client.handle().has_alloc(a.id)).await;
    let counts = |calls: [&str; 3]| calls.map(|call| provider.count(call).expect("reads"));
    assert_eq!(counts(["ensure", "stop", "acknowledge"]), [1, 0, 0]);
    assert_eq!(provider.live().expect("reads").len(), 1, "it was not touched");
    assert!(observed() > 0);

    // A bare stop by the next manager: confirmed with the exact result, then forgotten.
    rig.server.forget_reports();
    let mut stop = RemoteOrder { epoch: 3, ..bare(&adopt) };
    rig.server.order(&stop);
    let ended = rig.server.report(&slot, "the end", |r| r.observed.ended()).await;
    assert!(matches!(ended.observed, Observed::Exited { code: 7, .. }), "{:?}", ended.observed);
    assert!(provider.live().expect("reads").is_empty());
    rig.server.forgets(&mut stop).await;
    assert_eq!(counts(["ensure", "stop", "acknowledge"]), [1, 1, 1]);
    assert!(!provider.instances().expect("reads").iter().any(|i| i.id == id && i.known));
    client.stop().await;
    nothing_left(&rig).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_create_reply_is_held_and_never_repeated() {
    let rig = Rig::new().await;
    let client = node(&rig).await;
    let provider = FakeProvider::open(&rig.dir.path().join("provider")).expect("opens");
    provider.fault(None, &json!({"lose": ["ensure"]})).expect("writes");
    let (a, job, order) = remote_alloc(1);
    let slot = order.slot.to_string();
    rig.server.place(&a, &job);
    rig.server.order(&order);
    rig.server.report(&slot, "that it is unknown", |r| matches!(&r.observed, Observed::Unknown { .. })).await;
    provider.fault(None, &json!({})).expect("writes");
    let why = "neither be asked by key nor list";
    rig.server
        .report(
            &slot,
            "that it is held",
            |r| matches!(&r.observed, Observed::Unknown { why: w, .. } if w.contains(why)),
        )
        .await;
    // Another order under a later epoch does not make it braver.
    rig.server.forget_reports();
    rig.server.order(&RemoteOrder { epoch: 2, adopt: true, ..order });
    rig.server
        .report(&slot, "that it is held still", |r| r.epoch == 2 && matches!(r.observed, Observed::Unknown { .. }))
        .await;
    assert_eq!(provider.calls().expect("reads").iter().filter(|c| c.call == "ensure").count(), 1);
    assert_eq!(provider.live().expect("reads").len(), 1, "what was created lives; a person decides");
    client.stop().await;
    nothing_left(&rig).await;
}

/// A node with the driver that writes output.
async fn cloud_node(rig: &Rig) -> Client {
    let mut config = rig.config();
    config.builtin_drivers.push(PluginCommand { name: "cloud".into(), program: plugin(), args: vec!["cloud".into()] });
    let client = rig.node_with(config).await;
    rig.driver_ready("cloud").await;
    client
}

async fn shown(client: &Client, a: &Allocation) -> String {
    crate::http::text(client, &format!("/v1/client/fs/logs/{}?task=t&type=stdout&plain=true", a.id)).await
}

/// Waits until the log of the allocation holds just that.
async fn shows(client: &Client, a: &Allocation, what: &str) {
    poll(&format!("{what:?}"), async || match shown(client, a).await {
        text if text == what => Ok(()),
        text => Err(text),
    })
    .await;
}

/// The instance writes.
fn says(instance: &std::path::Path, text: &str) {
    use std::io::Write;
    fs::File::options()
        .append(true)
        .open(instance.join("output"))
        .expect("there")
        .write_all(text.as_bytes())
        .expect("written");
}

/// Waits until the driver has noted what it has passed on: after a kill before that, it passes it on again.
async fn noted(instance: &std::path::Path) {
    eventually("a note of what was passed on", || {
        let said = fs::metadata(instance.join("output")).expect("there").len();
        fs::read_to_string(instance.join("read")).is_ok_and(|noted| noted == said.to_string())
    })
    .await;
}

/// What a task says while it is handed over is in the log of the former allocation, of which `begin` is known, or in
/// that of the next one, and nothing is lost or twice there. Returns the log of the next one.
async fn goes_on(
    former: (&Client, &Allocation),
    begin: &str,
    next: (&Client, &Allocation),
    say: &(dyn Fn(&str) + Sync),
) -> String {
    let patience = std::time::Instant::now();
    let mut said = 0;
    // Until its log is begun the answer says that there is none.
    while !shown(next.0, next.1).await.starts_with(|c: char| c.is_ascii_digit()) {
        assert!(patience.elapsed() < crate::fixture::PATIENCE, "nothing comes to the next allocation");
        say(&format!("{said}\n"));
        said += 1;
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    say("after the hand-over\n");
    let wanted: String = (0..said).map(|n| format!("{n}\n")).chain(["after the hand-over\n".to_owned()]).collect();
    poll("all that was said", async || {
        let (before, after) = (shown(former.0, former.1).await, shown(next.0, next.1).await);
        let rest = before.strip_prefix(begin).expect("the former one keeps what it has");
        if format!("{rest}{after}") == wanted { Ok(after) } else { Err((before, after)) }
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_remote_task_of_the_plain_protocol_writes_goes_on_at_the_next_node() {
    let (one, two, far) = (Rig::new().await, Rig::new().await, tempfile::tempdir().expect("temp dir"));
    let instance = far.path().join("instance");
    let say = |text: &str| says(&instance, text);
    let (first, second) = (cloud_node(&one).await, cloud_node(&two).await);
    let (a, job, order) = managed("service", task("t", "cloud", json!({"instance": instance})));
    let slot = order.slot.to_string();
    let report = one.server.manages(&a, &job, &order).await;
    one.server.status(a.id, model::ClientStatus::Running).await;
    shows(&first, &a, "begin\n").await;

    // The servers give it to the other node.
    let mut next = a.clone();
    next.id = model::AllocId(uuid::Uuid::new_v4());
    one.server.release(&slot);
    one.server.stop_alloc(a.id);
    two.server.place(&next, &job);
    two.server.order(&RemoteOrder { alloc_id: next.id, epoch: 2, adopt: true, handle: report.handle.clone(), ..order });
    two.server.report(&slot, "the same instance under its new manager", |r| r.epoch == 2 && running(r)).await;
    two.server.status(next.id, model::ClientStatus::Running).await;
    let after = goes_on((&first, &a), "begin\n", (&second, &next), &say).await;

    // The former node goes for good, and the output does not mind.
    one.server.collect(a.id);
    eventually("the allocation to go", || !first.handle().has_alloc(a.id)).await;
    first.stop().await;
    nothing_left(&one).await;
    say("the end\n");
    fs::write(instance.join("ended"), "0").expect("written");
    two.server.report(&slot, "the end", |r| r.observed.ended()).await;
    shows(&second, &next, &format!("{after}the end\n")).await;
    two.server.stop_alloc(next.id);
    two.server.collect(next.id);
    eventually("the allocation to go", || !second.handle().has_alloc(next.id)).await;
    two.server.release(&slot);
    second.stop().await;
    nothing_left(&two).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_remote_task_of_the_plain_protocol_writes_is_its_log_over_deaths_and_hand_overs() {
    let rig = Rig::new().await;
    let instance = rig.dir.path().join("instance");
    let say = |text: &str| says(&instance, text);
    let first = cloud_node(&rig).await;
    let (a, job, order) = managed("service", task("t", "cloud", json!({"instance": instance})));
    let slot = order.slot.to_string();
    let report = rig.server.manages(&a, &job, &order).await;
    rig.server.status(a.id, model::ClientStatus::Running).await;
    shows(&first, &a, "begin\n").await;
    let audit = first.handle().audit(false).await;
    assert!(audit.balanced, "what collects the output is claimed: {audit:#?}");

    // Its plugin dies: the next process goes on where it was.
    noted(&instance).await;
    crate::faults::plugin_pids(&rig).into_iter().for_each(crate::faults::kill);
    say("after the plugin's death\n");
    shows(&first, &a, "begin\nafter the plugin's death\n").await;

    // The agent goes, with its plugins, and the next one goes on with the same log.
    noted(&instance).await;
    first.stop().await;
    say("between agents\n");
    let adopt = RemoteOrder { adopt: true, handle: report.handle.clone(), ..order.clone() };
    rig.server.set_order(&adopt);
    rig.server.forget_reports();
    let first = cloud_node(&rig).await;
    rig.server.report(&slot, "the same instance", running).await;
    shows(&first, &a, "begin\nafter the plugin's death\nbetween agents\n").await;

    // The task is handed to another allocation of this node: its plugin knows the task and is told of the new place.
    noted(&instance).await;
    let mut next = a.clone();
    next.id = model::AllocId(uuid::Uuid::new_v4());
    rig.server.forget_reports();
    rig.server.place(&next, &job);
    rig.server.release_and_order(&RemoteOrder { alloc_id: next.id, epoch: 2, ..adopt.clone() });
    rig.server.report(&slot, "the same instance under its new manager", |r| r.epoch == 2 && running(r)).await;
    rig.server.status(next.id, model::ClientStatus::Running).await;
    let after = goes_on((&first, &a), "begin\nafter the plugin's death\nbetween agents\n", (&first, &next), &say).await;

    // It ends: what it said last is there.
    say("the end\n");
    fs::write(instance.join("ended"), "0").expect("written");
    rig.server.report(&slot, "the end", |r| r.observed.ended()).await;
    shows(&first, &next, &format!("{after}the end\n")).await;
    // An allocation that is collected takes along what has collected its output, whatever is known of the task.
    for id in [a.id, next.id] {
        rig.server.stop_alloc(id);
        rig.server.collect(id);
        eventually("the allocation to go", || !first.handle().has_alloc(id)).await;
    }
    rig.server.release(&slot);
    first.stop().await;
    nothing_left(&rig).await;
}

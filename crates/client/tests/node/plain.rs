//! Remote tasks through a driver that knows the plain driver protocol only: the same rules, a weaker guarantee, and nothing done in doubt.

use std::{fs, sync::Arc};

use client::{Client, PluginCommand, PluginSettings};
use mock::fake::FakeProvider;
use model::{
    Allocation, DesiredRemote, GoDuration, Job, Observed, RemoteOrder,
    remote::{RemoteRole, slot_of},
};
use serde_json::json;

use crate::fixture::{Rig, eventually, managed, nothing_left, plugin, task};

async fn node(rig: &Rig) -> Client {
    let mut config = rig.config();
    config.builtin_drivers.push(PluginCommand { name: "mock_remote".into(), program: plugin(), args: vec!["mock_remote_plain".into()] });
    let settings = json!({"dir": rig.dir.path().join("provider"), "record": true, "caller": "n1"});
    config.plugins.insert("mock_remote".into(), PluginSettings { args: Vec::new(), config: Some(settings) });
    let sessions = rig.server.now().sessions;
    let client = Client::start(config).await.expect("start");
    rig.server.heard("a session", |h| (h.sessions > sessions).then_some(())).await;
    rig.driver_ready("mock_remote").await;
    client
}

fn remote_alloc(index: u32) -> (Allocation, Job, RemoteOrder) {
    let mut t = task("t", "mock_remote", json!({"run_for": "1h", "kill_after": "10ms", "exit_code": 7}));
    t.env.insert("TOKEN".into(), "a-secret".into());
    let (mut a, job, mut order) = managed("service", t);
    a.name = format!("job.g[{index}]").into();
    order.slot = slot_of(&a, &Arc::from("t"));
    order.kill_timeout = GoDuration::from_secs(5);
    (a, job, order)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_plain_protocol_under_the_same_rules() {
    let rig = Rig::new().await;
    let client = node(&rig).await;
    let provider = FakeProvider::open(&rig.dir.path().join("provider")).expect("opens");
    let declared = rig.server.now().node.as_ref().and_then(|n| n.drivers["mock_remote"].remote.clone()).expect("a remote driver");
    assert!(declared.plain_protocol && !declared.keyed_create && !declared.find && !declared.list, "{declared:?}");

    let (a, job, order) = remote_alloc(0);
    let slot = order.slot.to_string();
    rig.server.order(&order);
    rig.server.place(&a, &job);
    let first = rig.server.report(&slot, "a running instance", |r| r.observed == Observed::Running && r.handle.is_some()).await;
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
        .report(&slot, "that it is unknown", |r| matches!(&r.observed, Observed::Unknown { why, .. } if why.contains("cut off")))
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
    let mut stop = RemoteOrder { role: RemoteRole::Stop, desired: DesiredRemote::Stop, epoch: 3, alloc_id: model::AllocId::NIL, ..adopt };
    rig.server.order(&stop);
    let ended = rig.server.report(&slot, "the end", |r| r.observed.ended()).await;
    assert!(matches!(ended.observed, Observed::Exited { code: 7, .. }), "{:?}", ended.observed);
    assert!(provider.live().expect("reads").is_empty());
    stop.acknowledge = true;
    rig.server.order(&stop);
    rig.server.report(&slot, "that it is forgotten", |r| r.forgotten).await;
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
    rig.server.report(&slot, "that it is held", |r| matches!(&r.observed, Observed::Unknown { why: w, .. } if w.contains(why))).await;
    // Another order under a later epoch does not make it braver.
    rig.server.forget_reports();
    rig.server.order(&RemoteOrder { epoch: 2, adopt: true, ..order });
    rig.server.report(&slot, "that it is held still", |r| r.epoch == 2 && matches!(r.observed, Observed::Unknown { .. })).await;
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
    let begin = std::time::Instant::now();
    loop {
        let text = shown(client, a).await;
        if text == what {
            return;
        }
        assert!(begin.elapsed() < crate::fixture::PATIENCE, "the log is {text:?}, not {what:?}");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_remote_task_of_the_plain_protocol_writes_is_its_log_over_deaths_and_hand_overs() {
    let rig = Rig::new().await;
    let instance = rig.dir.path().join("instance");
    let say = |text: &str| {
        use std::io::Write;
        fs::File::options().append(true).open(instance.join("output")).expect("there").write_all(text.as_bytes()).expect("written");
    };
    let first = cloud_node(&rig).await;
    let (a, job, order) = managed("service", task("t", "cloud", json!({"instance": instance})));
    let slot = order.slot.to_string();
    rig.server.order(&order);
    rig.server.place(&a, &job);
    let running = |r: &model::RemoteReport| r.observed == Observed::Running && r.handle.is_some();
    let report = rig.server.report(&slot, "a running instance", running).await;
    rig.server.status(a.id, model::ClientStatus::Running).await;
    shows(&first, &a, "begin\n").await;
    let audit = first.handle().audit(false).await;
    assert!(audit.balanced, "what collects the output is claimed: {audit:#?}");

    // Its plugin dies: the next process goes on where it was.
    crate::faults::plugin_pids(&rig).into_iter().for_each(crate::faults::kill);
    say("after the plugin's death\n");
    shows(&first, &a, "begin\nafter the plugin's death\n").await;

    // The agent goes, with its plugins, and the next one goes on with the same log.
    first.stop().await;
    say("between agents\n");
    let adopt = RemoteOrder { adopt: true, handle: report.handle.clone(), ..order.clone() };
    rig.server.set_order(&adopt);
    rig.server.forget_reports();
    let first = cloud_node(&rig).await;
    rig.server.report(&slot, "the same instance", running).await;
    shows(&first, &a, "begin\nafter the plugin's death\nbetween agents\n").await;

    // The task is handed to another allocation of this node: its plugin knows the task and is told of the new place.
    let mut next = a.clone();
    next.id = model::AllocId(uuid::Uuid::new_v4());
    rig.server.forget_reports();
    rig.server.place(&next, &job);
    rig.server.release_and_order(&RemoteOrder { alloc_id: next.id, epoch: 2, ..adopt.clone() });
    rig.server.report(&slot, "the same instance under its new manager", |r| r.epoch == 2 && running(r)).await;
    rig.server.status(next.id, model::ClientStatus::Running).await;
    // What it says meanwhile is in the one log or in the other.
    let begin = std::time::Instant::now();
    let mut said = 0;
    // Until its log is begun the answer says that there is none.
    while !shown(&first, &next).await.starts_with(|c: char| c.is_ascii_digit()) {
        assert!(begin.elapsed() < crate::fixture::PATIENCE, "nothing comes to the next allocation");
        say(&format!("{said}\n"));
        said += 1;
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    say("after the hand-over\n");
    let wanted: String = (0..said).map(|n| format!("{n}\n")).chain(["after the hand-over\n".to_owned()]).collect();
    loop {
        let (before, after) = (shown(&first, &a).await, shown(&first, &next).await);
        let former = before.strip_prefix("begin\nafter the plugin's death\nbetween agents\n").expect("the former one keeps what it has");
        if format!("{former}{after}") == wanted {
            break;
        }
        assert!(begin.elapsed() < crate::fixture::PATIENCE, "{before:?} and {after:?} are not all that was said");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let after = shown(&first, &next).await;

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

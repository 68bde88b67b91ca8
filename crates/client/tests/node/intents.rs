//! What a driver wants to be kept of a create is with the servers before the create is sent, and comes back with the
//! order: to the next process of the plugin, and to the next node.

use client::{Client, ClientConfig, PluginCommand, PluginSettings};
use mock::fake::FakeProvider;
use model::{Observed, RemoteOrder};
use serde_json::json;

use crate::{
    faults::{kill, plugin_pids},
    fixture::{Rig, bare, eventually, managed, nothing_left, plugin, running, task},
};

/// A node whose provider takes each key in the form in which it came first, and can be asked for nothing but creates.
async fn node(rig: &Rig, name: &str) -> Client {
    let mut config = ClientConfig::new(&rig.dir.path().join(name), name);
    config.network_interface = "lo".into();
    config.servers = vec![rig.server.addr.to_string()];
    config.builtin_drivers =
        vec![PluginCommand { name: "mock_remote".into(), program: plugin(), args: vec!["mock_remote".into()] }];
    let settings = json!({
        "dir": rig.dir.path().join("provider"), "record": true, "caller": name, "intents": true,
        "without": ["find", "list"],
    });
    config.plugins.insert("mock_remote".into(), PluginSettings { args: Vec::new(), config: Some(settings) });
    let node = rig.node_with(config).await;
    rig.driver_ready("mock_remote").await;
    node
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_create_is_sent_when_the_servers_have_stored_it_and_repeated_as_it_was() {
    let rig = Rig::new().await;
    let provider = FakeProvider::open(&rig.dir.path().join("provider")).expect("opens");
    let first = node(&rig, "n1").await;
    let (a, job, order) = managed("service", task("t", "mock_remote", json!({"run_for": "1h", "kill_after": "10ms"})));
    let slot = order.slot.to_string();
    rig.server.order(&order);
    rig.server.place(&a, &job);
    let report = rig.server.report(&slot, "what is about to be sent", |r| r.intent.is_some()).await;
    assert_eq!(report.observed, Observed::Intended);
    assert_eq!(provider.calls().expect("reads"), [], "nothing was sent before it is stored");

    // Stored. The create takes effect, its answer is lost, and the plugin dies: the next process sends the same.
    provider.fault(None, &json!({"lose": ["ensure"]})).expect("set");
    let stored = RemoteOrder { intent: report.intent.clone(), ..order.clone() };
    rig.server.order(&stored);
    eventually("an instance", || provider.live().expect("reads").len() == 1).await;
    plugin_pids(&rig).into_iter().for_each(kill);
    provider.fault(None, &json!({})).expect("set");
    let seen = rig.server.report(&slot, "the instance", running).await;
    assert_eq!(provider.instances().expect("reads").len(), 1);

    // The next node has neither handle nor instance in sight, only what the servers have kept.
    first.stop().await;
    rig.server.forget_reports();
    let adopt = RemoteOrder { epoch: 2, adopt: true, handle: None, ..stored };
    rig.server.set_order(&adopt);
    let next = node(&rig, "n2").await;
    rig.server.place(&a, &job);
    let adopted = rig.server.report(&slot, "the same instance", |r| running(r) && r.epoch == 2).await;
    assert_eq!((adopted.handle, adopted.incarnation), (seen.handle, order.incarnation));
    assert_eq!((provider.instances().expect("reads").len(), provider.live().expect("reads").len()), (1, 1));

    // Nor has the one that stops it.
    next.stop().await;
    rig.server.forget_reports();
    rig.server.set_order(&RemoteOrder { epoch: 3, ..bare(&adopt) });
    let last = node(&rig, "n3").await;
    rig.server.report(&slot, "the end", |r| r.observed.ended()).await;
    last.stop().await;
    nothing_left(&rig).await;
}

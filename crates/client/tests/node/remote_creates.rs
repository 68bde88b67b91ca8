//! Thousands of creates: a driver has a limited number of them at a time, and nothing else waits for that.

use std::collections::BTreeSet;

use client::{PluginCommand, PluginSettings};
use mock::fake::{FakeProvider, Outcome};
use model::{DesiredRemote, Observed, RemoteOrder};
use serde_json::json;

use crate::fixture::{Rig, eventually, leave, managed, nth, plugin, task};

/// What the node sends of creates at the same time.
const AT_ONCE: usize = 128;

fn create(rig: &Rig, index: usize) -> RemoteOrder {
    let (a, job, order) =
        nth(index, managed("service", task("t", "mock_remote", json!({"run_for": "1h", "kill_after": "1ms"}))));
    rig.server.order(&order);
    rig.server.place(&a, &job);
    order
}

fn stop(rig: &Rig, order: &RemoteOrder) {
    rig.server.order(&RemoteOrder { desired: DesiredRemote::Stop, epoch: 2, ..order.clone() });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn creates_beyond_the_limit_wait_stops_do_not_and_what_is_let_go_was_never_sent() {
    let rig = Rig::new().await;
    let mut config = rig.config();
    config.builtin_drivers.push(PluginCommand {
        name: "mock_remote".into(),
        program: plugin(),
        args: vec!["mock_remote".into()],
    });
    // The plugin makes calls as often as it looks.
    let settings = json!({"dir": rig.dir.path().join("provider"), "record": true, "watch_interval": "1ms"});
    config.plugins.insert("mock_remote".into(), PluginSettings { args: Vec::new(), config: Some(settings) });
    let node = rig.node_with(config).await;
    rig.driver_ready("mock_remote").await;
    let provider = FakeProvider::open(&rig.dir.path().join("provider")).expect("opens");
    let running = |r: &model::RemoteReport| r.observed == Observed::Running;
    let early = create(&rig, 0);
    rig.server.report(&early.slot.to_string(), "a running instance", running).await;

    // The provider takes its time with creates.
    provider.fault(None, &json!({"hold": ["ensure"]})).expect("writes");
    let orders: Vec<RemoteOrder> = (1..=AT_ONCE + 2).map(|index| create(&rig, index)).collect();
    let held = || -> BTreeSet<String> {
        let calls = provider.calls().expect("reads");
        calls.into_iter().filter(|c| c.outcome == Outcome::Held).flat_map(|c| c.instances).collect()
    };
    eventually("as many creates as may be", || held().len() >= AT_ONCE).await;

    // A stop overtakes them all.
    stop(&rig, &early);
    rig.server.report(&early.slot.to_string(), "the end", |r| r.observed.ended()).await;
    let sent = held();
    assert_eq!(sent.len(), AT_ONCE, "two wait");

    // One of those that wait is not wanted any more: there is nothing to stop, and nobody is asked.
    let waits: Vec<&RemoteOrder> =
        orders.iter().filter(|order| !sent.contains(&order.incarnation.to_string())).collect();
    let [let_go, next] = waits[..] else { panic!("{} wait", waits.len()) };
    stop(&rig, let_go);
    let gone = rig
        .server
        .report(&let_go.slot.to_string(), "that there is none", |r| r.epoch == 2 && r.observed == Observed::Gone)
        .await;
    assert_eq!(gone.handle, None);

    // The others are created, the one that has waited among them.
    provider.fault(None, &json!({})).expect("writes");
    for order in orders.iter().filter(|order| order.slot != let_go.slot) {
        rig.server.report(&order.slot.to_string(), "a running instance", running).await;
    }
    let about = |order: &RemoteOrder| {
        let key = order.incarnation.to_string();
        provider.calls().expect("reads").iter().filter(|c| c.mutates() && c.instances.contains(&key)).count()
    };
    assert_eq!((about(let_go), about(next)), (0, 1));
    assert_eq!(provider.live().expect("reads").len(), AT_ONCE + 1);
    leave(&rig, node).await;
}

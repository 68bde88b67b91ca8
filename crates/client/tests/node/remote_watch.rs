//! What a node says of remote tasks whose driver pushes no news of them.

use std::fs;

use client::PluginCommand;
use model::{Observed, RemoteReport};
use serde_json::json;

use crate::fixture::{Rig, leave, managed, plugin, running, task};

/// A provider that is out of reach refuses the stream as well as questions. The task is unknown then, and seen again by
/// whichever works first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_whose_watch_is_refused_is_unknown_until_it_can_be_asked_or_watched() {
    let rig = Rig::new().await;
    let mut config = rig.config();
    config.builtin_drivers =
        vec![PluginCommand { name: "pushing".into(), program: plugin(), args: vec!["pushing".into()] }];
    let node = rig.node_with(config).await;
    rig.driver_ready("pushing").await;
    let instance = rig.dir.path().join("instance");
    let (a, job, order) = managed("service", task("t", "pushing", json!({"instance": instance})));
    let slot = order.slot.to_string();
    let set = |name: &str| fs::write(instance.join(name), "").expect("written");
    let unset = |name: &str| fs::remove_file(instance.join(name)).expect("removed");
    rig.server.manages(&a, &job, &order).await;

    set("away");
    set("deaf");
    let unknown = |r: &RemoteReport| matches!(&r.observed, Observed::Unknown { why, .. } if why.contains("is away"));
    rig.server.report(&slot, "that it is unknown", unknown).await;
    unset("away");
    rig.server.report(&slot, "that it runs, though nobody can watch it", running).await;

    set("away");
    rig.server.report(&slot, "that it is unknown again", unknown).await;
    unset("away");
    unset("deaf");
    rig.server.report(&slot, "that it runs", running).await;

    // The stream is back: nobody has to ask.
    fs::write(instance.join("ended"), "7").expect("written");
    rig.server.report(&slot, "its end", |r| matches!(r.observed, Observed::Exited { code: 7, .. })).await;
    leave(&rig, node).await;
}

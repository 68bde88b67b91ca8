//! Restarts of tasks that have ended, while what their last run had is still being cleaned up.

use std::{fs, path::PathBuf, time::Duration};

use client::{Client, PluginCommand};
use model::{AllocClientUpdate, AllocId, ClientStatus, TaskRunState};
use rustix::process::Signal;
use serde_json::json;
use testkit::signal;

use crate::{
    fixture::{Rig, end, eventually, plugin, poll, processes, task},
    task_api::{answer, hello, socket},
};

const DRIVER: &str = "go_like";

/// A node with a batch task that has ended and is to start again, while its log collector answers nobody, so that its
/// clean-up is not done: the path of the file that its runs leave lines in, and the collector.
async fn half_restarted(rig: &Rig) -> (Client, AllocId, PathBuf, i32) {
    // Its driver leaves the output to the node.
    let mut config = rig.config();
    config.builtin_drivers = vec![PluginCommand { name: DRIVER.into(), program: plugin(), args: vec![DRIVER.into()] }];
    let node = rig.node_with(config).await;
    node.handle().answer_task_api(hello());
    rig.driver_ready(DRIVER).await;
    let dir = rig.dir.path();
    let script = format!(
        "test -S ${{NOMAD_SECRETS_DIR}}/api.sock && echo ran >> {0}/runs; if [ -e {0}/ends ]; then exec sleep 600; fi; \
         while [ ! -e {0}/ends ]; do sleep 0.05; done",
        dir.display()
    );
    let (a, _) = rig.run("batch", vec![task("t", DRIVER, json!({"script": script}))]).await;
    let collectors = || processes(dir).into_iter().filter(|(_, line)| line.contains(" collect "));
    eventually("its log collector", || collectors().count() == 1).await;
    let collector = collectors().next().expect("there is one").0;
    signal(collector, Signal::STOP);
    fs::write(dir.join("ends"), "").expect("writes");
    rig.server.status(a.id, ClientStatus::Complete).await;
    assert!(socket(rig, a.id).exists(), "it is not cleaned up yet");
    // As soon as its driver has freed it.
    let asked = async || {
        node.handle().restart(a.id, None, true).await.expect("all tasks, ended ones too");
        node.handle().alloc_update(a.id).is_some_and(|u| u.task_states["t"].restarts == 1)
    };
    poll("the restart", asked).await;
    (node, a.id, dir.join("runs"), collector)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_waits_until_the_last_run_is_cleaned_up() {
    let rig = Rig::new().await;
    let (node, id, runs, collector) = half_restarted(&rig).await;
    // As long as a start takes that does not wait.
    tokio::time::sleep(Duration::from_millis(700)).await;
    signal(collector, Signal::CONT);
    let again =
        |u: &AllocClientUpdate| u.task_states["t"].restarts == 1 && u.task_states["t"].state == TaskRunState::Running;
    rig.server.alloc(id, "its second run", again).await;
    eventually("a line of its second run", || fs::read_to_string(&runs).expect("runs") == "ran\nran\n").await;
    assert_eq!(answer(&rig, id).await, "hello", "nobody takes its socket away");
    assert!(node.handle().audit(false).await.balanced, "and it has a cgroup and a collector");
    end(&rig, node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_ends_a_restart_that_still_waits() {
    let rig = Rig::new().await;
    let (node, id, runs, collector) = half_restarted(&rig).await;
    rig.server.stop_alloc(id);
    tokio::time::sleep(Duration::from_millis(700)).await;
    signal(collector, Signal::CONT);
    rig.server.status(id, ClientStatus::Complete).await;
    eventually("the socket gone", || !socket(&rig, id).exists()).await;
    assert_eq!(fs::read_to_string(&runs).expect("runs"), "ran\n", "it does not run again");
    end(&rig, node).await;
}

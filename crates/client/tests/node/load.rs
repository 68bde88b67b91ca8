//! More tasks at once than a plugin can stand, and starts that break its connections.

use std::{fs, path::PathBuf};

use client::{Client, ClientConfig, PluginCommand};
use model::{AllocId, ClientStatus};
use serde_json::json;

use crate::{
    faults::plugin_pids,
    fixture::{Rig, alloc, end, eventually, kinds, plugin, task},
};

/// What a task says that is started once, and has run since.
const STARTED: [&str; 3] = ["Received", "Task Setup", "Started"];

struct Play {
    rig: Rig,
    node: Client,
    /// What the plugin notes, and is told.
    notes: PathBuf,
}

impl Play {
    async fn begin() -> Self {
        let rig = Rig::new().await;
        let mut config: ClientConfig = rig.config();
        config.builtin_drivers =
            vec![PluginCommand { name: "fragile".into(), program: plugin(), args: vec!["fragile".into()] }];
        let notes = config.plugin_socket_dir();
        let node = rig.node_with(config).await;
        rig.driver_ready("fragile").await;
        Self { rig, node, notes }
    }

    fn tell(&self, what: &str) {
        fs::write(self.notes.join(what), "").expect("written");
    }

    fn place(&self, tasks: usize) -> Vec<AllocId> {
        let place = |_| {
            // No restarts: a failed start is a failed allocation.
            let (alloc, job) = alloc("service", vec![task("t", "fragile", json!({}))]);
            self.rig.server.place(&alloc, &job);
            alloc.id
        };
        (0..tasks).map(place).collect()
    }

    async fn run(&self, placed: &[AllocId]) {
        for id in placed {
            let update = self.rig.server.status(*id, ClientStatus::Running).await;
            assert_eq!(kinds(&update.task_states["t"]), STARTED);
        }
    }

    /// The one process of the plugin; a former one may be ending.
    async fn pid(&self) -> i32 {
        eventually("one process of the plugin", || match plugin_pids(&self.rig)[..] {
            [pid] => Ok(pid),
            ref others => Err(others.to_vec()),
        })
        .await
    }

    /// How often a process of the plugin was asked for the end of a task.
    fn waits(&self, pid: i32, id: AllocId) -> usize {
        let begins = format!("wait.{pid}.{id}.");
        let names = fs::read_dir(&self.notes).expect("readable").flatten().map(|entry| entry.file_name());
        names.filter(|name| name.to_string_lossy().starts_with(&begins)).count()
    }

    fn falls(&self) -> u64 {
        fs::metadata(self.notes.join("falls")).map_or(0, |meta| meta.len())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plugin_that_falls_over_under_many_starts_costs_no_allocation_anything() {
    let play = Play::begin().await;
    let mut placed = play.place(5);
    play.run(&placed).await;
    // From here on starts are under way until it falls over, twice.
    play.tell("hold");
    placed.extend(play.place(55));
    play.run(&placed).await;
    // From 32 at once it takes two falls to what it stands.
    assert!((2..=4).contains(&play.falls()), "{} falls", play.falls());
    // Those that ran at a fall are waited for at the process that serves now, as all others.
    let pid = play.pid().await;
    eventually("a wait for each task", || placed.iter().all(|id| play.waits(pid, *id) > 0)).await;

    // Nothing is under way, and the connections break: each task is waited for anew, at the same process.
    let before: Vec<usize> = placed.iter().map(|id| play.waits(pid, *id)).collect();
    play.tell("break");
    eventually("another wait for each", || {
        placed.iter().zip(&before).all(|(id, before)| play.waits(pid, *id) > *before)
    })
    .await;
    assert_eq!(play.pid().await, pid);
    for id in &placed {
        let update = play.node.handle().alloc_update(*id).expect("there");
        assert_eq!((update.client_status, kinds(&update.task_states["t"])), (ClientStatus::Running, STARTED.to_vec()));
    }
    end(&play.rig, play.node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_that_broke_its_connection_is_over_before_the_task_is_started_again() {
    let play = Play::begin().await;
    let ran = play.place(1);
    play.run(&ran).await;
    let pid = play.pid().await;
    // The next start breaks all connections and goes on, for so long that another one meets it.
    play.tell("cut");
    let cut = play.place(1);
    play.run(&cut).await;
    assert!(!play.notes.join("two").exists(), "two starts of one task were under way at once");
    assert!(!play.notes.join("cut").exists() && play.pid().await != pid, "another process has started it");
    // The one that ran has lost nothing by that.
    let pid = play.pid().await;
    eventually("a wait for it", || play.waits(pid, ran[0]) > 0).await;
    let update = play.node.handle().alloc_update(ran[0]).expect("there");
    assert_eq!((update.client_status, kinds(&update.task_states["t"])), (ClientStatus::Running, STARTED.to_vec()));
    end(&play.rig, play.node).await;
}

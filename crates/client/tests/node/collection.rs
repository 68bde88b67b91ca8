//! What the node collects by itself: nothing whose end no server has stored, for it would be run again.

use std::{fs, path::PathBuf, time::Duration};

use client::{Client, ClientConfig};
use model::{AllocId, ClientStatus};

use crate::fixture::{Rig, end, eventually, poll, sh};

/// A node that keeps no ended allocation, with one whose task ends on command, and leaves a line of each of its runs.
struct Ending {
    rig: Rig,
    id: AllocId,
}

/// Keeps no ended allocation.
fn config(rig: &Rig) -> ClientConfig {
    let mut config = rig.config();
    config.gc.max_allocs = 0;
    config.gc.interval = Duration::from_secs(1);
    config
}

impl Ending {
    /// Ended while no server was heard.
    async fn unheard() -> (Self, Client) {
        let rig = Rig::new().await;
        let node = rig.node_with(config(&rig)).await;
        rig.driver_ready("raw_exec").await;
        let dir = rig.dir.path().display().to_string();
        let script = format!("echo ran >> {dir}/runs; while [ ! -e {dir}/ends ]; do sleep 0.05; done");
        let (a, _) = rig.run("batch", vec![sh("t", &script)]).await;
        let ending = Self { rig, id: a.id };
        ending.rig.server.goes_away();
        eventually("the session to end", || !node.handle().connected()).await;
        fs::write(ending.rig.dir.path().join("ends"), "").expect("writes");
        let ended = || node.handle().alloc_update(a.id).is_some_and(|u| u.client_status == ClientStatus::Complete);
        eventually("its end", ended).await;
        (ending, node)
    }

    fn runs(&self) -> PathBuf {
        self.rig.dir.path().join("runs")
    }

    /// It is not collected, whoever asks. That waits for a server meanwhile; the node looks by itself each second.
    async fn stays(&self, node: &Client) {
        let refused = poll("its processes to be freed", async || match node.handle().collect(Some(self.id)).await {
            Err(why) if why.to_string().contains("still runs") => None,
            answer => Some(answer.err().map(|why| why.to_string()).unwrap_or_default()),
        });
        let refused = refused.await;
        node.handle().collect(None).await.expect("what can be");
        let here = node.handle().has_alloc(self.id) && self.rig.alloc_dir(self.id).exists();
        assert!(here && refused.contains("no server has stored its end"), "{here} {refused:?}");
    }

    /// The server comes back, and hears how it has ended; only now it is collected.
    async fn heard_at_last(self, node: Client) {
        self.rig.server.comes_back();
        let told = self.rig.server.alloc(self.id, "its end", |u| u.client_status.terminal()).await;
        assert_eq!((told.client_status, told.task_states["t"].failed), (ClientStatus::Complete, false), "{told:#?}");
        eventually("it to be collected", || !node.handle().has_alloc(self.id)).await;
        assert_eq!(fs::read_to_string(self.runs()).expect("runs"), "ran\n", "its task has run once");
        assert!(!self.rig.alloc_dir(self.id).exists(), "its directory is gone");
        end(&self.rig, node).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_end_that_no_server_has_stored_is_not_collected() {
    let (ending, node) = Ending::unheard().await;
    ending.stays(&node).await;
    ending.heard_at_last(node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_an_allocation_is_told_by_the_next_agent() {
    let (ending, node) = Ending::unheard().await;
    // Dies with all that it has not written.
    drop(node);
    let node = ending.rig.start_again(config(&ending.rig)).await;
    eventually("the allocation to be known", || node.handle().has_alloc(ending.id)).await;
    ending.stays(&node).await;
    ending.heard_at_last(node).await;
}

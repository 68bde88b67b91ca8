//! What `drover demo -ui` goes on with: one manager after the other is killed and comes back, until the person has seen
//! enough.

use std::time::Duration;

use anyhow::{Context as _, Result};
use api::call;
use model::{NodeStatus, Observed};
use rustix::process::Signal;

use super::{
    cluster::Cluster,
    story::{STEP, node_id, until},
};
use crate::{commands::ui, output};

/// How long a manager is left alone.
const REST: Duration = Duration::from_secs(10);

/// Page of the demo's remote task, below `/ui/`.
const PAGE: &str = "remote/default/counter.counter%5B0%5D/count";

/// Opens the page of the remote task in the person's browser, and says where it is.
pub(super) fn open(cluster: &Cluster) {
    let url = format!("{}/ui/{PAGE}", cluster.address());
    let opened = ui::open(&url);
    output::line(&format!("          {}: {url}", if opened { "in your browser" } else { "open it in a browser" }));
}

/// Kills managers, one after the other.
///
/// # Errors
/// When a round does not end: the task was not handed over, or a node does not come back.
pub(super) async fn go_on(cluster: &mut Cluster) -> Result<()> {
    let conn = cluster.conn()?;
    // The story leaves one node.
    cluster.start_node("node-1")?;
    loop {
        node_id(&conn, "node-1", NodeStatus::Ready).await?;
        tokio::time::sleep(REST).await;
        let task = cluster.remote_task().await?;
        let id = task.manager.as_ref().context("nobody manages the remote task")?.node_id;
        let manager = conn.ask(call::node(id)).await?.name.to_string();
        output::line(&format!("kill -9 {manager}, which manages the task in epoch {}", task.epoch));
        cluster.end_agent(&manager, Signal::KILL).await?;
        let seen = &*cluster;
        let next = until("the hand-over of the remote task", STEP, || async {
            let now = seen.remote_task().await?;
            let done = now.epoch > task.epoch && now.manager.is_some() && now.observed == Observed::Running;
            Ok(done.then_some(now))
        })
        .await?;
        output::line(&format!("  epoch {}; {manager} starts again", next.epoch));
        cluster.start_node(&manager)?;
        node_id(&conn, &manager, NodeStatus::Ready).await?;
    }
}

//! What `drover demo -ui` goes on with: one manager after the other is killed and comes back, until the person has seen
//! enough.

use std::time::Duration;

use anyhow::{Context as _, Result};
use api::call;
use model::NodeStatus;
use rustix::process::Signal;

use super::{
    cluster::Cluster,
    story::{managed, node_id},
};
use crate::{commands::pages, output};

/// How long a manager is left alone.
const REST: Duration = Duration::from_secs(10);

/// Page of the demo's remote task, below `/ui/`.
const PAGE: &str = "remote/default/counter.counter%5B0%5D/count";

/// One line. Nobody who reads is an error like others: the cluster is ended before this process.
fn say(text: &str) -> Result<()> {
    output::try_line(text).context("could not write to standard output")
}

/// Opens the page of the remote task in the person's browser, and says where it is.
///
/// # Errors
/// When nobody reads what is said.
pub(super) fn open(cluster: &Cluster) -> Result<()> {
    let url = format!("{}/ui/{PAGE}", cluster.address());
    let opened = pages::open(&url);
    say(&format!("          {}: {url}", if opened { "in your browser" } else { "open it in a browser" }))
}

/// Kills managers, one after the other.
///
/// # Errors
/// When a round does not end: the task was not handed over, or a node does not come back.
pub(super) async fn go_on(cluster: &mut Cluster) -> Result<()> {
    say("\nManagers go on to be killed, one after the other. Ctrl-C ends it.")?;
    let conn = cluster.conn()?;
    // The story leaves one node.
    cluster.start_node("node-1")?;
    node_id(&conn, "node-1", NodeStatus::Ready).await?;
    let mut task = managed(cluster, 0).await?;
    loop {
        tokio::time::sleep(REST).await;
        let id = task.manager.as_ref().context("nobody manages the remote task")?.node_id;
        let manager = conn.ask(call::node(id)).await?.name.to_string();
        say(&format!("kill -9 {manager}, which manages the task in epoch {}", task.epoch))?;
        cluster.end_agent(&manager, Signal::KILL).await?;
        task = managed(cluster, task.epoch).await?;
        say(&format!("  epoch {}; {manager} starts again", task.epoch))?;
        cluster.start_node(&manager)?;
        node_id(&conn, &manager, NodeStatus::Ready).await?;
    }
}

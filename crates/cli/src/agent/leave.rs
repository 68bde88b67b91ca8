//! A node that drains itself before its agent ends.

use std::time::Duration;

use anyhow::{Context, Result};
use model::{GoDuration, Node, NodeId};
use serde_json::{Value, json};

use crate::conn::Conn;

/// `client.drain_on_shutdown`, and the signals that mean it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Leave {
    /// SIGINT.
    pub(crate) on_interrupt: bool,
    /// SIGTERM.
    pub(crate) on_terminate: bool,
    /// After this long the rest is stopped; None = at once.
    pub(crate) deadline: Option<Duration>,
    /// System jobs stay.
    pub(crate) ignore_system_jobs: bool,
}

impl Leave {
    /// Drains the node by the agent's own API and returns when everything has moved. Cancel safe: the drain goes on at the servers.
    pub(crate) async fn drain(&self, api: &str, node: NodeId) -> Result<()> {
        let conn = Conn::to(api)?;
        let deadline = self.deadline.map_or(GoDuration(-1), GoDuration::from);
        let spec = json!({"DrainSpec": {"Deadline": deadline.nanos(), "IgnoreSystemJobs": self.ignore_system_jobs}, "MarkEligible": false,
            "Meta": {"message": "the agent of the node is shutting down"}});
        let path = format!("/v1/node/{node}");
        let _: Value = conn.put(&format!("{path}/drain"), &spec).await.context("start the drain")?;
        let mut index = 0;
        loop {
            let (now, next): (Node, u64) = conn.get_at(&path, index).await.context("follow the drain")?;
            if now.drain.is_none() {
                return Ok(());
            }
            index = next;
        }
    }
}

//! A node that drains itself before its agent ends.

use std::time::Duration;

use anyhow::{Context, Result};
use api::{call, shapes::NodeDrainRequest};
use model::{DrainSpec, GoDuration, NodeId};

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
    /// Drains the node by the agent's own API and returns when everything has moved. Cancel safe: the drain goes on
    /// at the servers.
    /// `identity`: what the node shows where the cluster has ACLs.
    pub(crate) async fn drain(
        &self,
        api: &str,
        tls: Option<tls::Dialer>,
        node: NodeId,
        identity: Option<String>,
    ) -> Result<()> {
        let conn = Conn::to(api, tls, identity)?;
        let deadline = self.deadline.map_or(GoDuration(-1), GoDuration::from);
        let request = NodeDrainRequest {
            node_id: node.to_string(),
            drain_spec: Some(DrainSpec { deadline, ignore_system_jobs: self.ignore_system_jobs }),
            mark_eligible: false,
            meta: [("message".to_owned(), "the agent of the node is shutting down".to_owned())].into(),
            // A person may have ordered another drain, which goes on as ordered.
            only_if_not_draining: true,
        };
        conn.ask(call::node_drain(node, &request)).await.context("start the drain")?;
        let mut index = 0;
        loop {
            let (now, next) = conn.ask_at(call::node(node), index).await.context("follow the drain")?;
            if now.drain.is_none() {
                return Ok(());
            }
            index = next;
        }
    }
}

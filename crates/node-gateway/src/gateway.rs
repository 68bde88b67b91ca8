//! The shared state of one server's sessions.

use std::{sync::Arc, time::Duration};

use model::ClusterId;
use tokio_util::sync::CancellationToken;

use crate::{backend::Backend, incoming::Limits, join::JoinSecret, registry::Sessions};

/// Settings of sessions.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Identity of the cluster.
    pub cluster_id: ClusterId,
    /// Region of the servers.
    pub region: String,
    /// Advertised address of this server's HTTP API; empty = none.
    pub http_advertise: String,
    /// How long a node may act without word from the servers.
    pub lease: Duration,
    /// How long the servers wait for a node: its lease and a margin.
    pub lease_wait: Duration,
    /// How often nodes renew.
    pub heartbeat_interval: Duration,
    /// The secret that nodes must show; `None` = none.
    pub join: Option<JoinSecret>,
    /// Limits of the listener.
    pub limits: Limits,
}

/// The shared state of one server's sessions.
#[derive(Debug)]
pub struct Gateway {
    /// Settings of the sessions.
    pub settings: Settings,
    /// The open sessions.
    pub sessions: Arc<Sessions>,
    /// Decides on what nodes report.
    pub backend: Arc<dyn Backend>,
    /// Cancelled when the server stops.
    pub stopping: CancellationToken,
}

//! What the sessions of one server have in common.

use std::{sync::Arc, time::Duration};

use model::ClusterId;
use tokio_util::sync::CancellationToken;

use crate::{backend::Backend, incoming::Limits, join::JoinSecret, registry::Sessions};

/// What sessions go by.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Identity of the cluster.
    pub cluster_id: ClusterId,
    /// Region of the servers.
    pub region: String,
    /// Where the HTTP API of this server is reached; empty = not told.
    pub http_advertise: String,
    /// How long a node may act without hearing from the servers.
    pub lease: Duration,
    /// How long the servers wait for a node: its lease and a margin.
    pub lease_wait: Duration,
    /// How often nodes renew.
    pub heartbeat_interval: Duration,
    /// What nodes show before they are listened to; None = nothing.
    pub join: Option<JoinSecret>,
    /// Limits of the listener.
    pub limits: Limits,
}

/// What the sessions of one server have in common.
#[derive(Debug)]
pub struct Gateway {
    /// What they go by.
    pub settings: Settings,
    /// The open ones.
    pub sessions: Arc<Sessions>,
    /// Who decides what becomes of what nodes say.
    pub backend: Arc<dyn Backend>,
    /// Cancelled when the server stops.
    pub stopping: CancellationToken,
}

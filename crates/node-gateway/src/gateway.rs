//! The shared state of one server's sessions.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

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
    /// How long the servers wait for a node: its lease and a margin.
    pub lease_wait: Duration,
    /// How often nodes renew.
    pub heartbeat_interval: Duration,
    /// The secret that nodes must show; `None` = none.
    pub join: Option<JoinSecret>,
    /// Claims of tokens for Vault (`vault.default_identity.extra_claims`), with placeholders.
    pub vault_claims: BTreeMap<String, String>,
    /// How long the identity of a node is valid.
    pub identity_ttl: Duration,
    /// Certificates of this server; None = no TLS.
    pub tls: Option<tls::Agent>,
    /// Requests of clients need rights.
    pub acl: bool,
    /// Limits of the listener.
    pub limits: Limits,
    /// The servers that nodes may connect to.
    pub servers: AllServers,
}

/// The RPC addresses of all servers of the cluster, `host:port`, the leader first; none where there is only this one.
/// Asked at each heartbeat of each node: it must not wait for anything.
#[derive(Clone, Default)]
pub struct AllServers(Option<Arc<dyn Fn() -> Vec<String> + Send + Sync>>);

impl AllServers {
    /// As this says each time.
    pub fn told_by(list: impl Fn() -> Vec<String> + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(list)))
    }

    /// They are these now.
    #[must_use]
    pub fn now(&self) -> Vec<String> {
        self.0.as_ref().map(|list| list()).unwrap_or_default()
    }
}

impl fmt::Debug for AllServers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.now()).finish()
    }
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

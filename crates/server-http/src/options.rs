//! What the agent around the server tells the API.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use api::shapes::StoreMember;
use axum::Router;
use futures::{future::BoxFuture, stream::BoxStream};
use http::{HeaderName, HeaderValue};
use model::NodeId;
use tracing::level_filters::LevelFilter;

use crate::{audit::Audit, contact::Contact, guard::Guard, prometheus::History};

/// What the agent around the server tells the API.
#[derive(Clone)]
pub struct HttpOptions {
    /// The node in the same process, if there is one.
    pub local: Option<LocalNode>,
    /// Version of the agent, such as `0.1.0`.
    pub version: String,
    /// The agent's settings for `/v1/agent/self`, in Go's field names, secrets replaced by `<redacted>`.
    pub agent_config: serde_json::Value,
    /// Answer `/v1/metrics?format=prometheus`.
    pub prometheus: bool,
    /// Where the past beyond the last hour is read; None = nowhere.
    pub history: Option<History>,
    /// Serve the web UI.
    pub ui: bool,
    /// Commands tell where the page of what they show is.
    pub cli_hints: bool,
    /// What a person should know of who can reach this agent; None = nobody but this machine.
    pub exposed: Option<String>,
    /// Whom the API answers.
    pub guard: Guard,
    /// Who is told of every request; None = nobody.
    pub audit: Option<Audit>,
    /// Put on every answer.
    pub response_headers: Vec<(HeaderName, HeaderValue)>,
    /// Largest body of a request.
    pub max_body_bytes: usize,
    /// What the bodies of all requests that are larger than 64 KiB may take together.
    pub bodies_bytes: usize,
    /// Time between two signs of life of an event stream.
    pub event_heartbeat: Duration,
    /// The servers that share the store; None = this one is alone.
    pub servers: Option<Servers>,
    /// Asks the shared store how it and its servers are; None = this server is alone.
    pub store: Option<AskStore>,
    /// Has this server lead no longer; None = it is alone.
    pub step_down: Option<StepDown>,
    /// What is known of the leader, for the answers to reads; None = this server leads, and no other can.
    pub contacts: Option<Contacts>,
    /// Reads the agent's configuration again, for `/v1/agent/reload`.
    pub reload: Option<Reload>,
    /// Certificates of the agent; None = no TLS.
    pub tls: Option<tls::Agent>,
    /// TLS to the shared store, for metrics; None = it is plain, or this server is alone.
    pub store_tls: Option<tls::Service>,
    /// Follows the agent's log, for `/v1/agent/monitor`.
    pub follow_log: Option<FollowLog>,
}

impl Default for HttpOptions {
    fn default() -> Self {
        Self {
            local: None,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            agent_config: serde_json::Value::Object(serde_json::Map::new()),
            prometheus: true,
            history: None,
            ui: true,
            cli_hints: true,
            exposed: None,
            guard: Guard::default(),
            audit: None,
            response_headers: Vec::new(),
            max_body_bytes: 16 << 20,
            bodies_bytes: 256 << 20,
            event_heartbeat: Duration::from_secs(30),
            servers: None,
            store: None,
            step_down: None,
            contacts: None,
            reload: None,
            tls: None,
            store_tls: None,
            follow_log: None,
        }
    }
}

impl fmt::Debug for HttpOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpOptions")
            .field("local", &self.local.is_some())
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

/// The node in the same process: its endpoints are called, not dialled.
#[derive(Clone)]
pub struct LocalNode {
    /// Its id.
    pub node_id: NodeId,
    /// Its endpoints, `/v1/client/…`.
    pub router: Router,
    /// Numbers for `/v1/agent/self`, group `client`.
    pub stats: Option<NodeStats>,
    /// Figures for `/v1/metrics`.
    pub metrics: Option<NodeMetrics>,
}

/// Has the agent read its configuration again, as SIGHUP does; the error says why nothing was taken over.
pub type Reload = Arc<dyn Fn() -> BoxFuture<'static, Result<(), String>> + Send + Sync>;

/// A server of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerMember {
    /// Its id.
    pub id: String,
    /// Its name, without the region.
    pub name: String,
    /// Address of its node RPC, `host:port`.
    pub rpc: String,
    /// Its release; empty = it does not tell.
    pub version: String,
    /// It leads.
    pub leader: bool,
}

/// Asked at each request for the servers that share the store.
pub type Servers = Arc<dyn Fn() -> Vec<ServerMember> + Send + Sync>;

/// What the shared store says of itself and of the servers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreStanding {
    /// Its members.
    pub members: Vec<StoreMember>,
    /// The format of the state that the leader writes.
    pub format: u32,
    /// How long ago each server has shown that it lives, by its id; None = that could not be found out.
    pub servers: BTreeMap<String, Option<Duration>>,
}

/// Asks the shared store; the error says why it gives no answer.
pub type AskStore = Arc<dyn Fn() -> BoxFuture<'static, Result<StoreStanding, String>> + Send + Sync>;

/// Has a server that leads make room for another one, soon after the call.
pub type StepDown = Arc<dyn Fn() + Send + Sync>;

/// Asked at each answer to a read.
pub type Contacts = Arc<dyn Fn() -> Contact + Send + Sync>;

/// Asked at each request for a node's numbers.
pub type NodeStats = Arc<dyn Fn() -> BTreeMap<String, String> + Send + Sync>;

/// Asked at each request for a node's metrics.
pub type NodeMetrics = Arc<dyn Fn() -> BoxFuture<'static, Vec<api::shapes::Gauge>> + Send + Sync>;

/// Which lines of the log somebody wants, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogQuery {
    /// The least severe level.
    pub level: LevelFilter,
    /// One JSON object per line.
    pub json: bool,
    /// With the place in the program.
    pub location: bool,
}

/// Follows the agent's log from now on: pieces of whole lines. The error says why it cannot be.
pub type FollowLog = Arc<dyn Fn(LogQuery) -> Result<BoxStream<'static, Vec<u8>>, String> + Send + Sync>;

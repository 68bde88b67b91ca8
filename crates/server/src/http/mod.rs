//! The HTTP API of a server, port 4646 by default.
//!
//! One line of [`routes`] per endpoint; its handler is in the file of its noun. A request becomes a [`request::Ctx`], a handler gives a
//! [`reply::Reply`] or a [`reply::HttpError`], and what all answers share (headers, gzip, redirects, 404 and 405) is in [`dispatch`].
//! Status codes, headers and texts are those that existing clients compare with.

mod agent;
mod allocs;
mod blocking;
mod compress;
mod deployments;
mod dispatch;
mod evals;
mod event_stream;
mod exec;
mod job_writes;
mod jobs;
mod keyring;
mod metrics;
mod nodes;
mod operator;
mod proxy;
mod refused;
mod remote;
mod reply;
mod request;
mod routes;
mod scaling;
mod search;
mod serve;
mod services;
mod ui;

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use axum::Router;
use http::{HeaderName, HeaderValue};
use model::NodeId;

use crate::handle::ServerHandle;

pub use dispatch::as_every_answer;
pub use metrics::metrics_of_node;
pub use serve::{Limits, serve, serve_unix};

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
    /// Put on every answer.
    pub response_headers: Vec<(HeaderName, HeaderValue)>,
    /// Largest body of a request.
    pub max_body_bytes: usize,
    /// Time between two signs of life of an event stream.
    pub event_heartbeat: Duration,
}

impl Default for HttpOptions {
    fn default() -> Self {
        Self {
            local: None,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            agent_config: serde_json::Value::Object(serde_json::Map::new()),
            prometheus: true,
            response_headers: Vec::new(),
            max_body_bytes: 16 << 20,
            event_heartbeat: Duration::from_secs(30),
        }
    }
}

impl fmt::Debug for HttpOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpOptions").field("local", &self.local.is_some()).field("version", &self.version).finish_non_exhaustive()
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

/// Asked at each request for a node's numbers.
pub type NodeStats = Arc<dyn Fn() -> BTreeMap<String, String> + Send + Sync>;

/// Asked at each request for a node's metrics.
pub type NodeMetrics = Arc<dyn Fn() -> Vec<api::shapes::Gauge> + Send + Sync>;

/// Everything that handlers share.
pub(crate) struct App {
    pub(crate) server: ServerHandle,
    pub(crate) options: HttpOptions,
}

/// The endpoints of a server. To be served by [`serve`], or called directly in tests.
pub fn router(server: ServerHandle, options: HttpOptions) -> Router {
    let app = Arc::new(App { server, options });
    Router::new().fallback(dispatch::dispatch).with_state(app)
}

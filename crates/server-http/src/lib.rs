//! The HTTP API of a server, port 4646 by default.
//!
//! One line of [`routes`] per endpoint; its handler is in the file of its noun. A request becomes a
//! [`request::Ctx`], a handler gives a [`reply::Reply`] or a [`reply::HttpError`], and what all answers share
//! (headers, gzip, redirects, 404 and 405) is in [`dispatch`]. Status codes, headers and texts are those that
//! existing clients compare with.
//!
//! What a server knows and does comes from its handle; this crate knows nothing of how. Begin reading at
//! [`router`], then [`dispatch`].

mod acl_policies;
mod acl_roles;
mod acl_tokens;
mod agent;
mod allocs;
mod attempts;
mod audit;
mod auth_methods;
mod authority;
mod autopilot;
mod binding_rules;
mod blocking;
mod bodies;
mod caller;
mod compress;
mod connections;
mod contact;
mod deployments;
mod dispatch;
mod drivers;
mod evals;
mod event_stream;
mod exec;
mod explain;
mod follow;
mod guard;
mod history;
mod job_statuses;
mod job_writes;
mod jobs;
mod keyring;
mod limits;
mod login;
mod members;
mod metrics;
mod monitor;
mod needs;
mod nodes;
mod operator;
mod options;
mod pages;
mod prometheus;
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
mod stale;
mod ui;
mod variables;
mod volumes;

use std::sync::Arc;

use axum::Router;
use server::ServerHandle;

pub use audit::{Audit, Counts, Filter, Guarantee, Order, Orders, Sink, Stage};
pub use contact::Contact;
pub use dispatch::{as_every_answer, audited};
pub use guard::{Guard, NotFromBrowser};
pub use limits::Limits;
pub use metrics::{metric_of_relay, metrics_of_audit, metrics_of_node, metrics_of_tls};
pub use monitor::MonitorQuery;
pub use options::{
    AskStore, Contacts, FollowLog, HttpOptions, LocalNode, LogQuery, NodeMetrics, NodeStats, Reload, ServerMember,
    Servers, StepDown, StoreStanding,
};
pub use prometheus::History;
pub use routes::{Answered, Endpoint, endpoints};
pub use serve::{serve, serve_unix};
pub use stale::may_be_stale;

/// The endpoints of a server. To be served by [`serve`], or called directly in tests.
pub fn router(server: ServerHandle, options: HttpOptions) -> Router {
    Router::new().fallback(dispatch::dispatch).with_state(Arc::new(request::App::new(server, options)))
}

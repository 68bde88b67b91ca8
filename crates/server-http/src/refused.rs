//! Endpoints that are answered by their stated refusal: enterprise features, switched-off ACLs, and what this
//! release does not have, by name.

use http::StatusCode;

use crate::{
    reply::{HttpError, Reply},
    request::Ctx,
};

macro_rules! unsupported {
    ($($name:ident: $feature:literal, $reason:literal;)*) => {
        $(
            pub(crate) async fn $name(_: Ctx) -> Result<Reply, HttpError> {
                Err(HttpError::unsupported($feature, $reason))
            }
        )*
        /// What each refuses, and the reason, as its answer has them.
        const SAID: &[(&str, &str)] = &[$((stringify!($name), concat!($feature, "; ", $reason))),*];
    };
}

/// Those with an answer of their own.
const OWN: &[(&str, &str)] = &[
    ("enterprise", "it is a Nomad Enterprise feature"),
    ("alloc_pause", "it is a Nomad Enterprise feature"),
    ("license", "no licence is needed; the answer is empty"),
    ("acl", "there is no such endpoint of access control"),
];

/// What is refused and why, by the path of its handler.
pub(crate) fn reason(handler: &str) -> &'static str {
    let name = handler.rsplit("::").next().unwrap_or_default().trim();
    SAID.iter().chain(OWN).find(|(known, _)| *known == name).map_or("", |(_, why)| why)
}

unsupported! {
    volumes: "CSI volumes and plugins", "create a dynamic host volume, or use one of the node's configuration";
    monitor_export: "the agent's older log", "read its log_file or its journal; /v1/agent/monitor follows the log \
        from now on";
    host: "facts of an agent's machine", "those of a node are in GET /v1/node/:id; look at a server's on the machine";
    debug: "profiling over HTTP", "use the system's profilers on the agent's process";
    set_servers: "changing the list of servers at run time", "the agent's configuration names them";
    schedulers_config: "changing the number of workers at run time", "set server.num_schedulers in the configuration";
    gossip_keyring: "the gossip keyring", "servers do not gossip";
    autopilot: "configuring autopilot", "there is nothing to configure: etcd decides which server leads, and whoever \
        has its own store is alone";
    restore: "restoring a snapshot into a running server", "stop its agent, move its directory aside and run `drover \
        operator snapshot restore`; for servers that share an etcd stop all of them, and run it with -config and \
        another server.prefix";
    upgrade_check: "upgrade checks", "there is nothing to migrate from";
    deployment_unblock: "unblocking deployments", "they wait for other regions, and there is one";
}

/// The stated answer of a community edition.
pub(crate) async fn enterprise(_: Ctx) -> Result<Reply, HttpError> {
    Err(HttpError::new(StatusCode::NOT_IMPLEMENTED, "Nomad Enterprise only endpoint"))
}

pub(crate) async fn alloc_pause(_: Ctx) -> Result<Reply, HttpError> {
    Err(HttpError::internal("Enterprise only"))
}

pub(crate) async fn license(_: Ctx) -> Result<Reply, HttpError> {
    Ok(Reply::empty(StatusCode::NO_CONTENT))
}

/// Other endpoints of access control.
pub(crate) async fn acl(_: Ctx) -> Result<Reply, HttpError> {
    Err(HttpError::not_found("no such endpoint of access control"))
}

/// Plugins that clients ask for in passing: there are none, truthfully.
pub(crate) async fn empty_list(ctx: Ctx) -> Result<Reply, HttpError> {
    ctx.read(1, &Vec::<()>::new())
}

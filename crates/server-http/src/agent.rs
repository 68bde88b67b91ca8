//! The agent about itself.

use std::collections::BTreeMap;

use api::shapes::{AgentFeatures, AgentSelf, Health, HealthPart, Members};
use http::StatusCode;
use model::NodeStatus;
use serde_json::{Value, json};

use crate::{
    members::{all_members, all_servers, member, rpc_address},
    reply::{HttpError, Reply},
    request::Ctx,
};

/// The same as SIGHUP to the agent's process.
pub(crate) async fn reload(ctx: Ctx) -> Result<Reply, HttpError> {
    match &ctx.app.options.reload {
        Some(reload) => reload().await.map(|()| Reply::empty(StatusCode::OK)).map_err(HttpError::internal),
        None => Err(HttpError::unsupported(
            "reloading the agent's configuration over HTTP",
            "this server has no agent around it",
        )),
    }
}

pub(crate) async fn agent_self(ctx: Ctx) -> Result<Reply, HttpError> {
    let server = ctx.server();
    let state = server.snapshot();
    let numbers = server.stats();
    let group = |entries: &[(&str, String)]| {
        entries.iter().map(|(k, v)| ((*k).to_owned(), v.clone())).collect::<BTreeMap<_, _>>()
    };
    let mut stats = BTreeMap::from([
        (
            "nomad".to_owned(),
            group(&[
                ("server", "true".to_owned()),
                ("leader", "true".to_owned()),
                ("leader_addr", rpc_address(server)),
                ("bootstrap", "true".to_owned()),
                ("known_regions", "1".to_owned()),
            ]),
        ),
        (
            "raft".to_owned(),
            group(&[
                ("state", "Leader".to_owned()),
                ("num_peers", (all_servers(&ctx).len() - 1).to_string()),
                ("applied_index", state.latest_index().to_string()),
                ("commit_index", state.latest_index().to_string()),
                ("last_log_index", state.latest_index().to_string()),
            ]),
        ),
        (
            "store".to_owned(),
            group(&[
                ("commits", numbers.commits.to_string()),
                ("syncs", numbers.syncs.to_string()),
                ("bytes_written", numbers.bytes_written.to_string()),
            ]),
        ),
    ]);
    if let Some(local) = &ctx.app.options.local {
        let mut client = local.stats.as_ref().map(|stats| stats()).unwrap_or_default();
        client.insert("node_id".to_owned(), local.node_id.to_string());
        stats.insert("client".to_owned(), client);
    }
    ctx.plain(&AgentSelf { config: config_view(&ctx), member: member(&ctx), stats })
}

/// The agent's settings; what clients steer by is there even when the agent gave none.
fn config_view(ctx: &Ctx) -> Value {
    let mut config = ctx.app.options.agent_config.clone();
    let server = ctx.server().config();
    if let Value::Object(config) = &mut config {
        config.entry("Region").or_insert_with(|| json!(server.region));
        config.entry("Datacenter").or_insert_with(|| json!(server.datacenter));
        config.entry("NodeName").or_insert_with(|| json!(server.name));
        config.entry("Version").or_insert_with(|| {
            json!({"Version": ctx.app.options.version, "Revision": "", "VersionPrerelease": "",
                "VersionMetadata": ""})
        });
        config.entry("ACL").or_insert_with(|| json!({"Enabled": false}));
        config.entry("Server").or_insert_with(|| json!({"Enabled": true}));
        config.entry("Client").or_insert_with(|| json!({"Enabled": ctx.app.options.local.is_some()}));
    }
    config
}

pub(crate) async fn members(ctx: Ctx) -> Result<Reply, HttpError> {
    let config = ctx.server().config();
    ctx.plain(&Members {
        server_name: config.name.clone(),
        server_region: config.region.clone(),
        server_dc: config.datacenter.clone(),
        members: all_members(&ctx),
    })
}

pub(crate) async fn servers(ctx: Ctx) -> Result<Reply, HttpError> {
    ctx.plain(&addresses(&ctx))
}

/// Of the RPC of each server, this one first.
fn addresses(ctx: &Ctx) -> Vec<String> {
    all_servers(ctx).into_iter().map(|server| server.rpc).collect()
}

/// 200 even when nothing was joined: what clients expect.
pub(crate) async fn join(ctx: Ctx) -> Result<Reply, HttpError> {
    if ctx.query.all("address").next().is_none() {
        return Err(HttpError::bad_request("missing address to join"));
    }
    ctx.plain(&json!({"num_joined": 0, "error": "servers do not join each other: those with the same etcd store are \
        one cluster (server.store)"}))
}

pub(crate) async fn force_leave(ctx: Ctx) -> Result<Reply, HttpError> {
    let name = ctx.query.text("node");
    if name.is_empty() {
        return Err(HttpError::bad_request("missing node to force leave"));
    }
    if name == member(&ctx).name {
        return Err(HttpError::internal("a server is not made to leave; stop its agent instead"));
    }
    Ok(Reply::empty(StatusCode::OK))
}

pub(crate) async fn health(ctx: Ctx) -> Result<Reply, HttpError> {
    let kind = ctx.query.text("type");
    if !matches!(kind, "" | "server" | "client") {
        return Err(HttpError::bad_request(format_args!("unknown type {kind:?}: use server or client")));
    }
    let mut health = Health::default();
    if kind != "client" {
        let stopping = ctx.server().stopping().is_cancelled();
        let refused = ctx.server().writes_refused().map(|why| format!("writes are refused: {why}"));
        let recovers = ctx
            .server()
            .recovery_status()
            .map(|status| format!("the servers recover ({}) and wait for {}", status.cause, status.waits_for()));
        let trouble = recovers.or(refused);
        let ok = !stopping && trouble.is_none();
        let message = if stopping {
            "the server is shutting down".to_owned()
        } else {
            trouble.unwrap_or_else(|| "ok".to_owned())
        };
        let (loops, mut notes) = (ctx.server().progress(), ctx.server().notes());
        notes.extend(ctx.app.options.exposed.clone());
        health.server = Some(HealthPart { ok, message, loops, notes });
    }
    if kind != "server"
        && let Some(local) = &ctx.app.options.local
    {
        let status = ctx.server().snapshot().node(local.node_id).map(|n| n.status);
        let (ok, message) = match status {
            Some(NodeStatus::Ready) => (true, "ok"),
            Some(_) => (false, "the node holds no lease"),
            None => (false, "the node is not registered"),
        };
        health.client = Some(HealthPart { ok, message: message.to_owned(), ..HealthPart::default() });
    } else if kind == "client" {
        health.client =
            Some(HealthPart { ok: false, message: "client not enabled".to_owned(), ..HealthPart::default() });
    }
    let ok = health.server.iter().chain(&health.client).all(|p| p.ok);
    if ok {
        return ctx.plain(&health);
    }
    let text = api::go_json::to_string(&health, false).map_err(HttpError::internal)?;
    Err(HttpError::internal(text))
}

pub(crate) async fn schedulers(ctx: Ctx) -> Result<Reply, HttpError> {
    let server = ctx.server();
    let workers: Vec<Value> = (0..server.config().workers)
        .map(|i| {
            json!({"id": format!("worker-{i}"), "enabled_schedulers": ["service", "batch", "system", "sysbatch"],
            "started": "", "status": "", "workload_status": ""})
        })
        .collect();
    ctx.plain(&json!({"server_id": server.cluster_id().to_string(), "schedulers": workers}))
}

/// What a client can know of this release before it tries: which endpoints say only why they are not there, and what is
/// switched on.
pub(crate) async fn features(ctx: Ctx) -> Result<Reply, HttpError> {
    let refused = crate::endpoints()
        .flat_map(|endpoint| endpoint.verbs.into_iter().map(move |verb| (verb, endpoint.pattern)))
        .filter(|(verb, _)| verb.refused)
        .map(|(verb, pattern)| format!("{} {}", verb.method, pattern.replace('*', ":")))
        .collect();
    let options = &ctx.app.options;
    ctx.plain(&AgentFeatures {
        version: options.version.clone(),
        acl: ctx.app.authority.is_some(),
        prometheus: options.prometheus,
        cli_hints: options.cli_hints,
        history: options.history.is_some(),
        ui: options.ui,
        refused,
    })
}

pub(crate) async fn regions(ctx: Ctx) -> Result<Reply, HttpError> {
    ctx.plain(&[&ctx.server().config().region])
}

pub(crate) async fn leader(ctx: Ctx) -> Result<Reply, HttpError> {
    ctx.plain(&rpc_address(ctx.server()))
}

pub(crate) async fn peers(ctx: Ctx) -> Result<Reply, HttpError> {
    ctx.plain(&addresses(&ctx))
}

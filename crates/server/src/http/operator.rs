//! System and operator endpoints, and namespaces.

use api::{
    paging::page,
    shapes::{NamespaceView, RaftConfiguration, RaftServer, SchedulerConfigResponse, SchedulerConfigUpdate},
};
use http::StatusCode;
use model::{Namespace, SchedulerConfig};
use state::{NamespaceRecord, Table};

use super::{
    reply::{HttpError, Reply},
    request::Ctx,
};
use crate::requests::SetSchedulerConfig;

pub(super) async fn gc(ctx: Ctx) -> Result<Reply, HttpError> {
    ctx.server().collect_garbage().await?;
    Ok(Reply::empty(StatusCode::OK))
}

/// Summaries change in the same step as what they count: there is never anything to reconcile.
pub(super) async fn reconcile_summaries(_: Ctx) -> Result<Reply, HttpError> {
    Ok(Reply::empty(StatusCode::OK))
}

pub(super) async fn scheduler_config(ctx: Ctx) -> Result<Reply, HttpError> {
    let (state, index) = ctx.watch_table(Table::SchedulerConfig).await?;
    let response = SchedulerConfigResponse {
        scheduler_config: (**state.scheduler_config()).clone(),
        index,
        known_leader: true,
        ..SchedulerConfigResponse::default()
    };
    ctx.read(index, &response)
}

pub(super) async fn set_scheduler_config(ctx: Ctx) -> Result<Reply, HttpError> {
    let config: SchedulerConfig = ctx.json().await?;
    if !matches!(config.scheduler_algorithm.as_str(), "" | "binpack" | "spread") {
        return Err(HttpError::bad_request(format_args!(
            "invalid scheduler algorithm {:?}: use binpack or spread",
            config.scheduler_algorithm
        )));
    }
    if config.node_limit_for_feasibility_checks != 0 {
        return Err(HttpError::bad_request(
            "NodeLimitForFeasibilityChecks is not supported: every node that fits is scored; leave it out, or 0",
        ));
    }
    let cas = ctx.query.number("cas")?;
    let set = ctx.server().set_scheduler_config(SetSchedulerConfig { config, cas }).await?;
    ctx.written(set.index, &SchedulerConfigUpdate { updated: set.updated, index: set.index })
}

/// The one server, which leads and has the only vote.
pub(super) async fn raft_configuration(ctx: Ctx) -> Result<Reply, HttpError> {
    let server = ctx.server();
    let config = server.config();
    let index = server.snapshot().latest_index();
    ctx.read(
        index,
        &RaftConfiguration {
            index: 1,
            servers: vec![RaftServer {
                id: server.cluster_id().to_string(),
                node: format!("{}.{}", config.name, config.region),
                address: super::agent::rpc_address(server),
                leader: true,
                voter: true,
                raft_protocol: "3".to_owned(),
            }],
        },
    )
}

pub(super) async fn raft_remove_peer(ctx: Ctx) -> Result<Reply, HttpError> {
    let (id, address) = (ctx.query.text("id"), ctx.query.text("address"));
    let value = match (id.is_empty(), address.is_empty()) {
        (true, true) => {
            return Err(HttpError::bad_request("Must specify ?id with the server's ID of the peer to remove"));
        }
        (false, false) => {
            return Err(HttpError::bad_request("Must specify only one of ?id or ?address"));
        }
        (false, true) => id,
        (true, false) => {
            // As 2.0 refuses it, with the words that clients of 1.9 look for.
            let text = format_args!(
                "address {address:?} was not found in the Raft configuration: peers are not removed by address, name the server with ?id"
            );
            return Err(HttpError::bad_request(text));
        }
    };
    let server = ctx.server();
    if value == server.cluster_id().to_string() {
        return Err(HttpError::internal(format_args!("id {value:?} is the only server; a cluster cannot be without one")));
    }
    Err(HttpError::internal(format_args!("id {value:?} was not found in the Raft configuration")))
}

fn namespace_view(n: &NamespaceRecord) -> NamespaceView {
    NamespaceView {
        name: n.name.to_string(),
        description: n.description.clone(),
        quota: n.quota.clone(),
        capabilities: n.capabilities.as_ref().and_then(|c| serde_json::to_value(c).ok()),
        node_pool_configuration: n.node_pool_configuration.clone(),
        vault_configuration: n.vault_configuration.clone(),
        consul_configuration: n.consul_configuration.clone(),
        meta: n.meta.clone(),
        create_index: n.create_index,
        modify_index: n.modify_index,
    }
}

pub(super) async fn namespaces(ctx: Ctx) -> Result<Reply, HttpError> {
    let options = ctx.list_options()?;
    let (state, index) = ctx.watch_table(Table::Namespaces).await?;
    let rows = state.namespaces().filter(|n| n.name.as_str().starts_with(&options.prefix)).map(|n| namespace_view(n));
    let page = page(rows, &options, |n| n.name.clone())?;
    Ok(ctx.read(index, &page.rows)?.next_token(page.next_token.as_deref()))
}

pub(super) async fn namespace(ctx: Ctx) -> Result<Reply, HttpError> {
    let name = Namespace::from(ctx.param("name"));
    let (found, index, _) = ctx.watch_object(Table::Namespaces, |s| s.namespace(&name).cloned(), |n| n.modify_index).await?;
    let found = found.ok_or_else(|| HttpError::not_found("Namespace not found").read_at(index))?;
    ctx.read(index, &namespace_view(&found))
}

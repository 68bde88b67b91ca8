//! System and operator endpoints, and namespaces.

use access::Need;
use api::{
    go_json,
    paging::page,
    shapes::{
        RaftConfiguration, RaftServer, RecoveryClaims, RecoveryNode, RecoveryView, SchedulerConfigResponse,
        SchedulerConfigUpdate,
    },
};
use http::{HeaderName, HeaderValue, StatusCode};
use model::{Namespace, SchedulerConfig};
use server::{Unproven, requests::SetSchedulerConfig};
use state::{NamespaceRecord, Table};

use crate::{
    caller::Unchecked,
    members::all_servers,
    options::ServerMember,
    reply::{HttpError, Reply},
    request::Ctx,
};

/// Checksum of the body, as stock clients expect it.
const DIGEST: HeaderName = HeaderName::from_static("digest");

pub(crate) async fn gc(ctx: Ctx) -> Result<Reply, HttpError> {
    ctx.server().collect_garbage().await?;
    Ok(Reply::empty(StatusCode::OK))
}

/// Summaries change in the same step as what they count: there is never anything to reconcile.
pub(crate) async fn reconcile_summaries(_: Ctx) -> Result<Reply, HttpError> {
    Ok(Reply::empty(StatusCode::OK))
}

pub(crate) async fn scheduler_config(ctx: Ctx) -> Result<Reply, HttpError> {
    let (state, index) = ctx.watch_table(Table::SchedulerConfig).await?;
    let response = SchedulerConfigResponse {
        scheduler_config: (**state.scheduler_config()).clone(),
        index,
        known_leader: true,
        ..SchedulerConfigResponse::default()
    };
    ctx.read(index, &response)
}

pub(crate) async fn set_scheduler_config(ctx: Ctx) -> Result<Reply, HttpError> {
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

/// Everything that the server has stored, as one file.
pub(crate) async fn snapshot(ctx: Ctx) -> Result<Reply, HttpError> {
    let snapshot = ctx.server().save_snapshot(&ctx.app.options.version).await?;
    let digest = HeaderValue::from_str(&format!("sha-256={}", snapshot.digest)).map_err(HttpError::internal)?;
    Ok(Reply::bytes("application/octet-stream", snapshot.bytes).with_header(DIGEST, digest).read_at(snapshot.index))
}

/// The servers. Any of them may lead, so each counts as a voter.
pub(crate) async fn raft_configuration(ctx: Ctx) -> Result<Reply, HttpError> {
    let index = ctx.server().snapshot().latest_index();
    let region = &ctx.server().config().region;
    let server = |of: ServerMember| RaftServer {
        id: of.id,
        node: format!("{}.{region}", of.name),
        address: of.rpc,
        leader: of.leader,
        voter: true,
        raft_protocol: "3".to_owned(),
    };
    let servers = all_servers(&ctx).into_iter().map(server).collect();
    ctx.read(index, &RaftConfiguration { index: 1, servers })
}

pub(crate) async fn raft_remove_peer(ctx: Ctx) -> Result<Reply, HttpError> {
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
                "address {address:?} was not found in the Raft configuration: peers are not removed by address, name \
                    the server with ?id"
            );
            return Err(HttpError::bad_request(text));
        }
    };
    let server = ctx.server();
    if value == server.cluster_id().to_string() {
        return Err(HttpError::internal(format_args!(
            "id {value:?} is the only server; a cluster cannot be without one"
        )));
    }
    Err(HttpError::internal(format_args!("id {value:?} was not found in the Raft configuration")))
}

/// A recovery as its events tell it: without what it waits for.
pub(crate) fn recovery_view(meta: &state::ClusterMeta) -> RecoveryView {
    let view = RecoveryView { cluster_id: meta.cluster_id, generation: meta.generation, ..RecoveryView::default() };
    match &meta.recovery {
        Some(r) => {
            RecoveryView { recovering: true, cause: r.cause.clone(), since: r.since, by_hand: r.by_hand, ..view }
        }
        None => view,
    }
}

/// What a node says to have and nothing proves.
fn claims(node: RecoveryNode, Unproven { peer, claims, .. }: Unproven) -> RecoveryClaims {
    RecoveryClaims {
        id: node.id,
        name: node.name,
        address: peer.map(|peer| peer.to_string()).unwrap_or_default(),
        allocations: claims.allocs,
        remote_tasks: claims.orders,
        host_volumes: claims.volumes,
        examples: claims.examples,
        reasons: claims.why.into_iter().collect(),
    }
}

/// What the recovery waits for.
pub(crate) async fn recovery(ctx: Ctx) -> Result<Reply, HttpError> {
    let server = ctx.server();
    let state = server.snapshot();
    let meta = state.cluster();
    let name = |id: model::NodeId| RecoveryNode {
        id,
        name: state.node(id).map(|node| node.name.to_string()).unwrap_or_default(),
    };
    let status = server.recovery_status();
    let view = RecoveryView {
        cluster_id: meta.cluster_id,
        generation: meta.generation,
        recovering: status.is_some(),
        waits_for: status.as_ref().map(|status| status.waits_for()).unwrap_or_default(),
        ..RecoveryView::default()
    };
    let Some(status) = status else { return ctx.plain(&view) };
    ctx.plain(&RecoveryView {
        cause: status.cause,
        since: status.since,
        by_hand: status.by_hand,
        answered: status.answered.into_iter().map(name).collect(),
        waiting_for: status.waiting_for.into_iter().map(name).collect(),
        unproven: status.unproven.into_iter().map(|unproven| claims(name(unproven.node), unproven)).collect(),
        unswept: status.unswept,
        unbound: status.unbound,
        ..view
    })
}

/// Ends the recovery, whoever has not answered.
pub(crate) async fn end_recovery(ctx: Ctx) -> Result<Reply, HttpError> {
    ctx.server().end_recovery().await?;
    Ok(Reply::empty(StatusCode::OK))
}

/// The node of a request.
fn whole_id(ctx: &Ctx) -> Result<model::NodeId, HttpError> {
    ctx.param("node").parse().map_err(|_| HttpError::bad_request("the node must be given with its whole id"))
}

/// Waits for a node no longer.
pub(crate) async fn excuse(ctx: Ctx) -> Result<Reply, HttpError> {
    ctx.server().excuse_node(whole_id(&ctx)?).await?;
    Ok(Reply::empty(StatusCode::OK))
}

/// Believes what a node says to have.
pub(crate) async fn accept(ctx: Ctx) -> Result<Reply, HttpError> {
    ctx.server().accept_node(whole_id(&ctx)?).await?;
    Ok(Reply::empty(StatusCode::OK))
}

pub(crate) async fn namespaces(ctx: Unchecked) -> Result<Reply, HttpError> {
    // As of a stock server: without a right anywhere the list is empty.
    let ctx = ctx.filtering(|_| true)?;
    let options = ctx.list_options()?;
    let (state, index) = ctx.watch_table(Table::Namespaces).await?;
    let may = |name: &Namespace| ctx.caller.may(&Need::AnyIn(name.as_str()));
    let wanted = |n: &NamespaceRecord| n.name.as_str().starts_with(&options.prefix) && may(&n.name);
    let rows = state.namespaces().filter(|n| wanted(n)).cloned();
    let page = page(rows, &options, |n| n.name.to_string())?;
    Ok(ctx.read(index, &page.rows)?.next_token(page.next_token.as_deref()))
}

pub(crate) async fn namespace(ctx: Ctx) -> Result<Reply, HttpError> {
    let name = Namespace::from(ctx.param("name"));
    let (found, index, state) =
        ctx.watch_object(Table::Namespaces, &name, |s| s.namespace(&name).cloned(), |n| n.modify_index).await?;
    let found = found.ok_or_else(|| HttpError::not_found("Namespace not found").read_at(index))?;
    if found.limits.is_none() {
        return ctx.read(index, &*found);
    }
    // What its limits count stands beside them.
    let json = go_json::to_vec(&*found, false).map_err(HttpError::internal)?;
    let mut shown: serde_json::Value = serde_json::from_slice(&json).map_err(HttpError::internal)?;
    shown["Usage"] = serde_json::to_value(state.namespace_use(&name)).map_err(HttpError::internal)?;
    ctx.read(index, &shown)
}

pub(crate) async fn put_namespace(ctx: Ctx) -> Result<Reply, HttpError> {
    store_namespace(ctx, None).await
}

pub(crate) async fn put_namespace_named(ctx: Ctx) -> Result<Reply, HttpError> {
    let name = ctx.param("name").to_owned();
    store_namespace(ctx, Some(name)).await
}

async fn store_namespace(ctx: Ctx, named: Option<String>) -> Result<Reply, HttpError> {
    let record: NamespaceRecord = ctx.json().await?;
    ctx.about.says("namespace", &record.name, "");
    if named.is_some_and(|named| record.name.as_str() != named) {
        return Err(HttpError::bad_request("Namespace name does not match request path"));
    }
    let index = ctx.server().put_namespace(record).await?;
    Ok(Reply::empty(StatusCode::OK).written_at(index))
}

pub(crate) async fn delete_namespace(ctx: Ctx) -> Result<Reply, HttpError> {
    let index = ctx.server().delete_namespace(Namespace::from(ctx.param("name"))).await?;
    Ok(Reply::empty(StatusCode::OK).written_at(index))
}

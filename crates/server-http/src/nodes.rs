//! Nodes and node pools.

use std::{sync::Arc, time::Duration};

use access::{Level, Need, NodePoolCapability};
use api::{
    paging::page,
    shapes::{
        AllocDetail, AllocListStub, IntroductionRequest, IntroductionToken, NodeDrainRequest, NodeEligibilityRequest,
        NodeListStub, NodePoolView, NodePreview, NodeUpdateResponse, PreviewedAlloc, node_detail,
    },
};
use http::StatusCode;
use model::{Eligibility, GoDuration, Node, NodeId, Secret, node::Attributes};
use server::requests::{Affected, DrainNode, Fate, Happens, NodeChanged};
use state::{ALL_NODE_POOL, NodePool, Table};
use uuid::Uuid;

use crate::{
    allocs,
    caller::READS_JOBS,
    pages,
    reply::{HttpError, Reply},
    request::{Ctx, uuid_prefix},
};

fn stub(node: &Node, resources: bool, os: bool) -> NodeListStub {
    let version = node
        .attributes
        .get("nomad.version")
        .or_else(|| node.attributes.get("drover.version"))
        .map(ToString::to_string)
        .unwrap_or_default();
    let mut attributes = Attributes::new();
    if os && let Some(name) = node.attributes.get("os.name") {
        attributes.insert("os.name".into(), name.clone());
    }
    NodeListStub {
        address: node.http_addr.rsplit_once(':').map_or("", |(host, _)| host).trim_matches(['[', ']']).to_owned(),
        id: node.id,
        attributes,
        datacenter: node.datacenter.clone(),
        name: node.name.clone(),
        node_pool: node.pool.clone(),
        node_class: node.class.clone(),
        version,
        drain: node.drain.is_some(),
        scheduling_eligibility: node.eligibility,
        status: node.status,
        status_description: node.status_description.clone(),
        drivers: node.drivers.clone(),
        host_volumes: node.host_volumes.clone(),
        node_resources: resources.then(|| node.resources.clone()),
        reserved_resources: resources.then(|| node.reserved.clone()),
        last_drain: node.last_drain.clone(),
        create_index: node.create_index,
        modify_index: node.modify_index,
    }
}

pub(crate) async fn list(ctx: Ctx) -> Result<Reply, HttpError> {
    list_where(ctx, |_| true).await
}

async fn list_where(ctx: Ctx, wanted: impl Fn(&Node) -> bool + Send + 'static) -> Result<Reply, HttpError> {
    let options = ctx.list_options()?;
    let prefix = uuid_prefix(&options.prefix, "node")?;
    let (resources, os) = (ctx.query.bool("resources")?, ctx.query.bool("os")?);
    let (state, index) = ctx.watch_table(Table::Nodes).await?;
    ctx.beside(move |ctx| {
        // The secret takes no part in filters either.
        let shown = |n: &Arc<Node>| Node { secret_id: Secret::none(), ..(**n).clone() };
        let rows = |from: Option<Uuid>, reverse| state.nodes_onward(from.map(NodeId), reverse).map(shown);
        let page = pages::by_id(&options, &prefix, rows, |n| n.id.0, wanted)?;
        let stubs: Vec<NodeListStub> = page.rows.iter().map(|n| stub(n, resources, os)).collect();
        Ok(ctx.read(index, &stubs)?.next_token(page.next_token.as_deref()))
    })
    .await
}

pub(crate) async fn get(ctx: Ctx) -> Result<Reply, HttpError> {
    let id = ctx.node_id("id")?;
    let (node, index, _) = ctx.watch_object(Table::Nodes, &id, |s| s.node(id).cloned(), |n| n.modify_index).await?;
    let node = node.ok_or_else(|| HttpError::not_found("node not found").read_at(index))?;
    ctx.read(index, &node_detail(&node))
}

pub(crate) async fn allocations(ctx: Ctx) -> Result<Reply, HttpError> {
    let (state, index) = ctx.watch_table(Table::Allocs).await?;
    // What is no id of a node has no allocations, as in Nomad.
    let Ok(id) = ctx.node_id("id") else { return ctx.read(index, &Vec::<AllocDetail>::new()) };
    let namespace = ctx.query.get("namespace").map_or_else(|| "*".into(), |_| ctx.query.namespace());
    let visible = ctx.visible_where(&state, namespace, |namespace| Need::Namespace { namespace, any_of: READS_JOBS });
    let wanted = |a: &model::Allocation| visible.shows(&a.namespace);
    // Ours: rows without their jobs, for whoever shows hundreds of them.
    if ctx.query.bool("stubs")? {
        let rows = state.allocs_by_node(id).filter(|a| wanted(a));
        return ctx.read(index, &rows.map(|a| AllocListStub::new(a, true, false)).collect::<Vec<_>>());
    }
    let times = ctx.server().config().times();
    let list: Vec<AllocDetail> =
        state.allocs_by_node(id).filter(|a| wanted(a)).map(|a| allocs::detail(&state, a, &times)).collect();
    ctx.read(index, &list)
}

/// What a drain or the loss of a node would do. Nothing is changed.
pub(crate) async fn preview(ctx: Ctx) -> Result<Reply, HttpError> {
    let id = ctx.node_id("id")?;
    let event = ctx.query.text("event").to_owned();
    let happens = match event.as_str() {
        "drain" => Happens::Drain { ignore_system_jobs: ctx.query.bool("ignore_system_jobs")? },
        "lost" => Happens::Lost,
        other => return Err(HttpError::bad_request(format_args!("event={other}: use drain or lost"))),
    };
    let (state, found) = ctx.server().preview_node(id, happens).await?;
    let namespace = ctx.query.get("namespace").map_or_else(|| "*".into(), |_| ctx.query.namespace());
    let visible = ctx.visible_where(&state, namespace, |namespace| Need::Namespace { namespace, any_of: READS_JOBS });
    let row = |affected: Affected| {
        let next = affected.next.and_then(|id| state.node(id));
        PreviewedAlloc {
            id: affected.alloc.id,
            namespace: affected.alloc.namespace.clone(),
            job_id: affected.alloc.job_id.clone(),
            task_group: affected.alloc.task_group.to_string(),
            name: affected.alloc.name.to_string(),
            fate: fate(affected.fate).to_owned(),
            next_node_id: affected.next.unwrap_or_default(),
            next_node_name: next.map(|node| node.name.to_string()).unwrap_or_default(),
            failure: affected.failure,
        }
    };
    let allocs = found.into_iter().filter(|found| visible.shows(&found.alloc.namespace)).map(row).collect();
    let config = ctx.server().config();
    let after = if happens == Happens::Lost { config.lease + config.lease_margin } else { Duration::ZERO };
    let after = GoDuration::from(after);
    ctx.read(state.latest_index(), &NodePreview { node_id: id, event, after, allocs })
}

fn fate(fate: Fate) -> &'static str {
    match fate {
        Fate::HandedOver => "handed over",
        Fate::Unmanaged => "unmanaged",
        Fate::Moved => "moved",
        Fate::Waits => "waits",
        Fate::Ends => "ends",
        Fate::Stays => "stays",
    }
}

fn changed(ctx: &Ctx, change: &NodeChanged) -> Result<Reply, HttpError> {
    ctx.written(
        change.index,
        &NodeUpdateResponse {
            eval_ids: change.eval_ids.clone(),
            eval_create_index: change.eval_create_index,
            node_modify_index: change.node_modify_index,
            index: change.index,
        },
    )
}

fn same_node(ctx: &Ctx, named: &str) -> Result<(), HttpError> {
    if named.is_empty() || named == ctx.param("id") {
        Ok(())
    } else {
        Err(HttpError::bad_request("Node ID does not match"))
    }
}

/// Decides what only an operator may. The node itself, which its identity may have brought this far, could undo with it
/// what an operator has ordered.
fn by_operator(ctx: &Ctx) -> Result<(), HttpError> {
    ctx.caller.check(&Need::Node(Level::Write))
}

pub(crate) async fn drain(ctx: Ctx) -> Result<Reply, HttpError> {
    let request: NodeDrainRequest = ctx.json().await?;
    if request.drain_spec.is_none() {
        by_operator(&ctx)?;
    }
    same_node(&ctx, &request.node_id)?;
    let node_id = ctx.node_id("id")?;
    let state = ctx.server().snapshot();
    // A node that shuts down while it drains waits for the end of that drain, as it was ordered.
    if let Some(node) = state.node(node_id).filter(|node| node.drain.is_some())
        && (request.only_if_not_draining || by_operator(&ctx).is_err())
    {
        let index = state.latest_index();
        return changed(&ctx, &NodeChanged { node_modify_index: node.modify_index, index, ..NodeChanged::default() });
    }
    drop(state);
    let change = ctx
        .server()
        .drain_node(DrainNode {
            node_id,
            spec: request.drain_spec,
            mark_eligible: request.mark_eligible,
            meta: request.meta,
        })
        .await?;
    changed(&ctx, &change)
}

pub(crate) async fn eligibility(ctx: Ctx) -> Result<Reply, HttpError> {
    let request: NodeEligibilityRequest = ctx.json().await?;
    same_node(&ctx, &request.node_id)?;
    let eligibility = match request.eligibility.as_str() {
        "eligible" => {
            by_operator(&ctx)?;
            Eligibility::Eligible
        }
        "ineligible" => Eligibility::Ineligible,
        other => {
            return Err(HttpError::internal(format_args!(
                "invalid scheduling eligibility {other:?}: use eligible or ineligible"
            )));
        }
    };
    let change = ctx.server().set_node_eligibility(ctx.node_id("id")?, eligibility).await?;
    changed(&ctx, &change)
}

pub(crate) async fn evaluate(ctx: Ctx) -> Result<Reply, HttpError> {
    let change = ctx.server().evaluate_node(ctx.node_id("id")?).await?;
    changed(&ctx, &change)
}

pub(crate) async fn purge(ctx: Ctx) -> Result<Reply, HttpError> {
    let change = ctx.server().purge_node(ctx.node_id("id")?).await?;
    changed(&ctx, &change)
}

pub(crate) fn pool_view(p: &NodePool) -> NodePoolView {
    NodePoolView {
        name: p.name.to_string(),
        description: p.description.clone(),
        meta: p.meta.clone(),
        node_identity_ttl: p.node_identity_ttl,
        scheduler_configuration: p.scheduler_configuration.as_ref().and_then(|c| serde_json::to_value(c).ok()),
        hash: None,
        create_index: p.create_index,
        modify_index: p.modify_index,
    }
}

pub(crate) async fn pools(ctx: Ctx) -> Result<Reply, HttpError> {
    let options = ctx.list_options()?;
    let (state, index) = ctx.watch_table(Table::NodePools).await?;
    let may = |name| ctx.caller.may(&Need::NodePool { name, capability: NodePoolCapability::Read });
    let wanted = state.node_pools().filter(|p| p.name.starts_with(&options.prefix) && may(&p.name));
    let rows = wanted.map(|p| pool_view(p));
    let page = page(rows, &options, |p| p.name.clone())?;
    Ok(ctx.read(index, &page.rows)?.next_token(page.next_token.as_deref()))
}

fn pool_not_found() -> HttpError {
    HttpError::not_found("node pool not found")
}

pub(crate) async fn pool(ctx: Ctx) -> Result<Reply, HttpError> {
    let name = ctx.param("name").to_owned();
    let (pool, index, _) =
        ctx.watch_object(Table::NodePools, &name, |s| s.node_pool(&name).cloned(), |p| p.modify_index).await?;
    let pool = pool.ok_or_else(|| pool_not_found().read_at(index))?;
    ctx.read(index, &pool_view(&pool))
}

pub(crate) async fn put_pool(ctx: Ctx) -> Result<Reply, HttpError> {
    store_pool(ctx, None).await
}

pub(crate) async fn put_pool_named(ctx: Ctx) -> Result<Reply, HttpError> {
    let name = ctx.param("name").to_owned();
    store_pool(ctx, Some(name)).await
}

async fn store_pool(ctx: Ctx, named: Option<String>) -> Result<Reply, HttpError> {
    let pool: NodePool = ctx.json().await?;
    ctx.about.says("node_pool", &pool.name, "");
    if named.is_some_and(|named| *pool.name != *named) {
        return Err(HttpError::bad_request("Node pool name does not match request path"));
    }
    let index = ctx.server().put_node_pool(pool).await?;
    Ok(Reply::empty(StatusCode::OK).written_at(index))
}

pub(crate) async fn delete_pool(ctx: Ctx) -> Result<Reply, HttpError> {
    let index = ctx.server().delete_node_pool(ctx.param("name").into()).await?;
    Ok(Reply::empty(StatusCode::OK).written_at(index))
}

pub(crate) async fn pool_nodes(ctx: Ctx) -> Result<Reply, HttpError> {
    let name = ctx.param("name").to_owned();
    if ctx.server().snapshot().node_pool(&name).is_none() {
        return Err(pool_not_found());
    }
    list_where(ctx, move |n| name == ALL_NODE_POOL || n.pool == name).await
}

pub(crate) async fn pool_jobs(ctx: Ctx) -> Result<Reply, HttpError> {
    let name = ctx.param("name").to_owned();
    if ctx.server().snapshot().node_pool(&name).is_none() {
        return Err(pool_not_found());
    }
    crate::jobs::list_where(ctx, move |j| j.node_pool == name).await
}

/// `PUT /v1/acl/identity/client-introduction-token`.
pub(crate) async fn introduce(ctx: Ctx) -> Result<Reply, HttpError> {
    let asked: IntroductionRequest = ctx.json().await?;
    if asked.ttl.nanos() < 0 {
        return Err(HttpError::bad_request(format_args!("TTL must not be below 0, it is {}", asked.ttl)));
    }
    let ttl = (asked.ttl.nanos() > 0).then(|| asked.ttl.to_std());
    let jwt = ctx.server().introduce(&asked.node_name, &asked.node_pool, ttl)?;
    ctx.plain(&IntroductionToken { jwt })
}

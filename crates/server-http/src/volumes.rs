//! Dynamic host volumes, and the claims of groups on them.

use std::sync::Arc;

use access::{Capability, Need};
use api::shapes::{
    AllocListStub, HostVolumeDetail, HostVolumeRequest, HostVolumeResponse, HostVolumeStub, HostVolumeUsers,
};
use model::{ClaimId, DynamicVolume, Namespace, NodeId, VolumeClaim, VolumeId, volume::use_of};
use server::Volumed;
use state::{State, Table, TableSet};
use uuid::Uuid;

use crate::{
    caller::Unchecked,
    pages,
    reply::{HttpError, Reply},
    request::{Ctx, uuid_prefix},
};

const READS: &[Capability] = &[Capability::HostVolumeRead];

/// `GET /v1/volumes`: of type `host`, those; of `csi` and without a type none, as there are none.
pub(crate) async fn list(ctx: Ctx) -> Result<Reply, HttpError> {
    match ctx.query.text("type") {
        "host" => hosts(ctx).await,
        "" | "csi" => ctx.read(1, &Vec::<()>::new()),
        other => Err(HttpError::bad_request(format_args!("no volumes have type {other:?}: there are host and csi"))),
    }
}

async fn hosts(ctx: Ctx) -> Result<Reply, HttpError> {
    let options = ctx.list_options()?;
    let prefix = uuid_prefix(&options.prefix, "volume")?;
    let pool = ctx.query.text("node_pool").to_owned();
    let node = match ctx.query.text("node_id") {
        "" => None,
        text => {
            let bad = |why| HttpError::bad_request(format_args!("invalid node_id {text:?}: {why}"));
            Some(text.parse::<NodeId>().map_err(bad)?)
        }
    };
    // A row says whether its node is there.
    let tables: TableSet = [Table::Volumes, Table::Nodes].into_iter().collect();
    let (state, index) = ctx.watch_tables(tables).await?;
    let visible = ctx.visible(&state, READS);
    let wanted = |v: &&Arc<DynamicVolume>| {
        visible.shows(&v.namespace)
            && (pool.is_empty() || v.node_pool == pool)
            && node.is_none_or(|node| v.node_id == node)
    };
    let rows = |from: Option<Uuid>, reverse| state.volumes_onward(from.map(VolumeId), reverse);
    let page = pages::by_id(&options, &prefix, rows, |v| v.id.0, wanted)?;
    let stubs: Vec<_> =
        page.rows.into_iter().map(|volume| HostVolumeStub::new(volume, state.volume_state(volume))).collect();
    Ok(ctx.read(index, &stubs)?.next_token(page.next_token.as_deref()))
}

/// The id in the path.
fn id(ctx: &Ctx) -> Result<VolumeId, HttpError> {
    let text = ctx.param("id");
    text.parse().map_err(|why| HttpError::bad_request(format_args!("invalid volume ID {text:?}: {why}")))
}

/// A volume as people see it.
fn shown(state: &State, volume: &DynamicVolume) -> DynamicVolume {
    DynamicVolume { state: state.volume_state(volume), ..volume.clone() }
}

/// `GET /v1/volume/host/:id`.
pub(crate) async fn get(ctx: Ctx) -> Result<Reply, HttpError> {
    let (id, namespace) = (id(&ctx)?, ctx.query.namespace());
    let of_namespace = |s: &State| s.volume(id).filter(|volume| volume.namespace == namespace).cloned();
    let (volume, index, state) = ctx.watch_object(Table::Volumes, &id, of_namespace, |v| v.modify_index).await?;
    let volume = volume.ok_or_else(|| HttpError::not_found("host volume not found").read_at(index))?;
    let live = state.allocs_by_node(volume.node_id).filter(|alloc| alloc.occupies());
    let users = live.filter(|alloc| use_of(alloc, &volume.namespace, &volume.name).is_some());
    let allocations = users.map(|alloc| AllocListStub::new(alloc, false, false)).collect();
    ctx.read(index, &HostVolumeDetail::new(shown(&state, &volume), HostVolumeUsers { allocations }))
}

/// `PUT /v1/volume/host/create`: a plugin of a node makes it.
pub(crate) async fn create(ctx: Unchecked) -> Result<Reply, HttpError> {
    put(ctx, false).await
}

/// `PUT /v1/volume/host/register`: it is there already.
pub(crate) async fn register(ctx: Unchecked) -> Result<Reply, HttpError> {
    put(ctx, true).await
}

async fn put(ctx: Unchecked, registered: bool) -> Result<Reply, HttpError> {
    let request: HostVolumeRequest = ctx.said().json().await?;
    let given = request.volume.is_some();
    let mut asked = request.volume.unwrap_or_default();
    if asked.namespace.is_empty() {
        asked.namespace = ctx.said().query.namespace();
    }
    let any_of: &[Capability] =
        if registered { &[Capability::HostVolumeRegister] } else { &[Capability::HostVolumeCreate] };
    let ctx = ctx.check(&Need::Namespace { namespace: asked.namespace.as_str(), any_of })?;
    if !given {
        return Err(HttpError::bad_request("missing volume definition"));
    }
    let (volume, warnings) = match ctx.server().put_volume(asked, registered).await? {
        Volumed::Done(volume) => (volume, String::new()),
        Volumed::Waits(volume) => {
            let node = volume.node_id.short();
            let warning = format!("node {node} has not answered yet: the volume is pending until it does");
            (volume, warning)
        }
        Volumed::Failed(why) => return Err(HttpError::internal(format_args!("could not create volume: {why}"))),
    };
    let shown = shown(&ctx.server().snapshot(), &volume);
    ctx.written(volume.modify_index, &HostVolumeResponse { volume: Some(shown), warnings })
}

/// `DELETE /v1/volume/host/:id`.
pub(crate) async fn delete(ctx: Ctx) -> Result<Reply, HttpError> {
    let (id, namespace) = (id(&ctx)?, ctx.query.namespace());
    match ctx.server().delete_volume(namespace, id, ctx.query.bool("force")?).await? {
        None => ctx.written(ctx.server().snapshot().latest_index(), &serde_json::json!({})),
        Some(why) => Err(HttpError::internal(format_args!("could not delete volume: {why}"))),
    }
}

/// `GET /v1/volumes/claims`.
pub(crate) async fn claims(ctx: Ctx) -> Result<Reply, HttpError> {
    let options = ctx.list_options()?;
    let prefix = uuid_prefix(&options.prefix, "claim")?;
    let filters = ["job_id", "task_group", "volume_name"].map(|name| ctx.query.text(name).to_owned());
    let (state, index) = ctx.watch_table(Table::VolumeClaims).await?;
    let visible = ctx.visible(&state, READS);
    let wanted = |c: &&Arc<VolumeClaim>| {
        let has = [c.job_id.as_str(), &c.task_group_name, &c.volume_name];
        visible.shows(&c.namespace) && filters.iter().zip(has).all(|(asked, has)| asked.is_empty() || asked == has)
    };
    let rows = |from: Option<Uuid>, reverse| state.volume_claims_onward(from.map(ClaimId), reverse);
    let page = pages::by_id(&options, &prefix, rows, |c| c.id.0, wanted)?;
    Ok(ctx.read(index, &page.rows)?.next_token(page.next_token.as_deref()))
}

/// `DELETE /v1/volumes/claim/:id`.
pub(crate) async fn delete_claim(ctx: Ctx) -> Result<Reply, HttpError> {
    let text = ctx.param("id");
    let id = text.parse().map_err(|why| HttpError::bad_request(format_args!("invalid claim ID {text:?}: {why}")))?;
    let namespace: Namespace = ctx.query.namespace();
    let index = ctx.server().delete_volume_claim(namespace, id).await?;
    ctx.written(index, &serde_json::json!({}))
}

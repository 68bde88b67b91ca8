//! Deployments.

use std::sync::Arc;

use api::shapes::{
    AllocListStub, DeploymentHealthRequest, DeploymentPauseRequest, DeploymentPromoteRequest, DeploymentUpdateResponse,
};
use model::{Deployment, DeploymentId};
use server::requests::{DeploymentChanged, SetHealth};
use state::Table;
use uuid::Uuid;

use crate::{
    caller::READS_JOBS,
    pages,
    reply::{HttpError, Reply},
    request::{Ctx, uuid_prefix},
};

pub(crate) async fn list(ctx: Ctx) -> Result<Reply, HttpError> {
    let options = ctx.list_options()?;
    let prefix = uuid_prefix(&options.prefix, "deployment")?;
    let (state, index) = ctx.watch_table(Table::Deployments).await?;
    let visible = ctx.visible(&state, READS_JOBS);
    ctx.beside(move |ctx| {
        let wanted = |d: &&Arc<Deployment>| visible.shows(&d.namespace);
        let page = if prefix.is_empty() {
            let rows = |from: Option<(u64, Uuid)>, reverse| {
                state.deployments_by_creation(from.map(|(index, id)| (index, DeploymentId(id))), reverse)
            };
            pages::by_creation(&options, rows, |d| (d.create_index, d.id.0), wanted)?
        } else {
            let rows = |from: Option<Uuid>, reverse| state.deployments_onward(from.map(DeploymentId), reverse);
            pages::by_id(&options, &prefix, rows, |d| d.id.0, wanted)?
        };
        Ok(ctx.read(index, &page.rows)?.next_token(page.next_token.as_deref()))
    })
    .await
}

pub(crate) async fn get(ctx: Ctx) -> Result<Reply, HttpError> {
    let id = ctx.deployment_id("id")?;
    let (deployment, index, _) =
        ctx.watch_object(Table::Deployments, &id, |s| s.deployment(id).cloned(), |d| d.modify_index).await?;
    let deployment = deployment.ok_or_else(|| HttpError::not_found("deployment not found").read_at(index))?;
    ctx.read(index, &deployment)
}

pub(crate) async fn allocations(ctx: Ctx) -> Result<Reply, HttpError> {
    let id = ctx.deployment_id("id")?;
    let (state, index) = ctx.watch_table(Table::Allocs).await?;
    let stubs: Vec<AllocListStub> =
        state.allocs_by_deployment(id).map(|a| AllocListStub::new(a, false, true)).collect();
    ctx.read(index, &stubs)
}

fn same_deployment(ctx: &Ctx, named: &str) -> Result<(), HttpError> {
    if named.is_empty() || named == ctx.param("id") {
        Ok(())
    } else {
        Err(HttpError::bad_request("Deployment ID does not match"))
    }
}

fn changed(ctx: &Ctx, change: &DeploymentChanged) -> Result<Reply, HttpError> {
    ctx.written(
        change.index,
        &DeploymentUpdateResponse {
            eval_id: change.eval_id,
            eval_create_index: change.eval_create_index,
            deployment_modify_index: change.deployment_modify_index,
            reverted_job_version: change.reverted_job_version,
            index: change.index,
        },
    )
}

pub(crate) async fn fail(ctx: Ctx) -> Result<Reply, HttpError> {
    let id = ctx.deployment_id("id")?;
    let change = ctx.server().fail_deployment(id).await?;
    changed(&ctx, &change)
}

pub(crate) async fn pause(ctx: Ctx) -> Result<Reply, HttpError> {
    let request: DeploymentPauseRequest = ctx.json().await?;
    if request.deployment_id.is_empty() {
        return Err(HttpError::bad_request("DeploymentID must be specified"));
    }
    same_deployment(&ctx, &request.deployment_id)?;
    let id = ctx.deployment_id("id")?;
    let change = ctx.server().pause_deployment(id, request.pause).await?;
    changed(&ctx, &change)
}

pub(crate) async fn promote(ctx: Ctx) -> Result<Reply, HttpError> {
    let request: DeploymentPromoteRequest = ctx.json().await?;
    if request.deployment_id.is_empty() {
        return Err(HttpError::bad_request("DeploymentID must be specified"));
    }
    same_deployment(&ctx, &request.deployment_id)?;
    let id = ctx.deployment_id("id")?;
    if request.all != request.groups.is_empty() {
        return Err(HttpError::bad_request("either All or Groups must be specified, and not both"));
    }
    let groups = (!request.all).then_some(request.groups);
    let change = ctx.server().promote_deployment(id, groups).await?;
    changed(&ctx, &change)
}

pub(crate) async fn set_health(ctx: Ctx) -> Result<Reply, HttpError> {
    let request: DeploymentHealthRequest = ctx.json().await?;
    if request.deployment_id.is_empty() {
        return Err(HttpError::bad_request("DeploymentID must be specified"));
    }
    same_deployment(&ctx, &request.deployment_id)?;
    if request.healthy.is_empty() && request.unhealthy.is_empty() {
        return Err(HttpError::bad_request("must specify at least one healthy/unhealthy allocation ID"));
    }
    let id = ctx.deployment_id("id")?;
    let change = ctx
        .server()
        .set_deployment_health(SetHealth { deployment_id: id, healthy: request.healthy, unhealthy: request.unhealthy })
        .await?;
    changed(&ctx, &change)
}

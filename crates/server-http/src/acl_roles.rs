//! ACL roles: everybody reads those of its own token, management tokens read and write all.

use std::sync::Arc;

use access::Need;
use api::paging::page;
use http::StatusCode;
use model::AclRole;
use state::{State, Table};

use crate::{
    caller::{Caller, Unchecked},
    reply::{HttpError, Reply},
    request::Ctx,
};

/// Whether the caller may read a role: its token has it, or it is a manager.
fn reads(caller: &Caller, id: &str) -> bool {
    let token = caller.known().and_then(|known| known.token.as_ref());
    caller.may(&Need::Management) || token.is_some_and(|token| token.roles.iter().any(|role| *role.id == *id))
}

/// `GET /v1/acl/roles`.
pub(crate) async fn list(ctx: Unchecked) -> Result<Reply, HttpError> {
    let ctx = ctx.filtering(|_| true)?;
    let options = ctx.list_options()?;
    let (state, index) = ctx.watch_table(Table::AclRoles).await?;
    let wanted = |role: &&Arc<AclRole>| role.id.starts_with(&options.prefix) && reads(&ctx.caller, &role.id);
    let page = page(state.acl_roles().filter(wanted).map(|role| &**role), &options, |role| role.id.to_string())?;
    Ok(ctx.read(index, &page.rows)?.next_token(page.next_token.as_deref()))
}

/// `GET /v1/acl/role/:id`.
pub(crate) async fn get(ctx: Unchecked) -> Result<Reply, HttpError> {
    let id = ctx.said().param("id").to_owned();
    one(ctx, |state: &State| state.acl_role(&id).cloned()).await
}

/// `GET /v1/acl/role/name/:name`.
pub(crate) async fn by_name(ctx: Unchecked) -> Result<Reply, HttpError> {
    let name = ctx.said().param("name").to_owned();
    one(ctx, |state: &State| state.acl_role_by_name(&name).cloned()).await
}

/// Who may not read a role hears the same whether it exists or not.
async fn one(ctx: Unchecked, find: impl Fn(&State) -> Option<Arc<AclRole>>) -> Result<Reply, HttpError> {
    let state = ctx.said().server().snapshot();
    let now = find(&state).map(|role| role.id.clone());
    let ctx = ctx.filtering(|caller| match &now {
        Some(id) => reads(caller, id),
        None => caller.may(&Need::Management),
    })?;
    let (state, index) = ctx.watch_table(Table::AclRoles).await?;
    let role = find(&state).ok_or_else(|| HttpError::not_found("ACL role not found").read_at(index))?;
    ctx.read(role.modify_index, &*role)
}

/// `PUT /v1/acl/role`: a new one, or the one that the body names.
pub(crate) async fn put(ctx: Ctx) -> Result<Reply, HttpError> {
    let role = ctx.json().await?;
    written(&ctx, role).await
}

/// `PUT /v1/acl/role/:id`.
pub(crate) async fn put_named(ctx: Ctx) -> Result<Reply, HttpError> {
    let role: AclRole = ctx.json().await?;
    if *role.id != *ctx.param("id") {
        return Err(HttpError::bad_request("ACL role ID does not match request path"));
    }
    written(&ctx, role).await
}

async fn written(ctx: &Ctx, role: AclRole) -> Result<Reply, HttpError> {
    ctx.about.names("acl_role", &role.id, &role.name);
    let role = ctx.server().put_acl_role(role).await?;
    ctx.about.names("acl_role", &role.id, &role.name);
    ctx.written(role.modify_index, &*role)
}

/// `DELETE /v1/acl/role/:id`.
pub(crate) async fn delete(ctx: Ctx) -> Result<Reply, HttpError> {
    let index = ctx.server().delete_acl_role(ctx.param("id").to_owned()).await?;
    Ok(Reply::empty(StatusCode::OK).written_at(index))
}

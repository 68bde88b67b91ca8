//! Methods to log in. Their secrets are written and never read.

use api::{paging::page, shapes::AclAuthMethodStub};
use http::StatusCode;
use model::AclAuthMethod;
use state::Table;

use crate::{
    reply::{HttpError, Reply},
    request::Ctx,
};

/// What a method is in the audit log.
pub(crate) const METHOD: &str = "acl_auth_method";

/// `GET /v1/acl/auth-methods`: open to all, as a client has to know how to log in.
pub(crate) async fn list(ctx: Ctx) -> Result<Reply, HttpError> {
    let options = ctx.list_options()?;
    let (state, index) = ctx.watch_table(Table::AclAuthMethods).await?;
    let methods = state.acl_auth_methods().filter(|method| method.name.starts_with(&options.prefix));
    let rows = methods.map(|method| AclAuthMethodStub {
        name: method.name.clone(),
        kind: method.kind.clone(),
        default: method.default,
        hash: method.hash.clone(),
        create_index: method.create_index,
        modify_index: method.modify_index,
    });
    let page = page(rows, &options, |method| method.name.to_string())?;
    Ok(ctx.read(index, &page.rows)?.next_token(page.next_token.as_deref()))
}

/// `GET /v1/acl/auth-method/:name`.
pub(crate) async fn get(ctx: Ctx) -> Result<Reply, HttpError> {
    let name = ctx.param("name");
    let find = |state: &state::State| state.acl_auth_method(name).cloned();
    let (method, index, _) = ctx.watch_object(Table::AclAuthMethods, &name, find, |m| m.modify_index).await?;
    let method = method.ok_or_else(|| HttpError::not_found("ACL auth-method not found").read_at(index))?;
    ctx.read(index, &method.redacted())
}

/// `PUT /v1/acl/auth-method`.
pub(crate) async fn put(ctx: Ctx) -> Result<Reply, HttpError> {
    let method = ctx.json().await?;
    write(&ctx, method).await
}

/// `PUT /v1/acl/auth-method/:name`.
pub(crate) async fn put_named(ctx: Ctx) -> Result<Reply, HttpError> {
    let method: AclAuthMethod = ctx.json().await?;
    if *method.name != *ctx.param("name") {
        return Err(HttpError::bad_request("ACL auth-method name does not match request path"));
    }
    write(&ctx, method).await
}

async fn write(ctx: &Ctx, method: AclAuthMethod) -> Result<Reply, HttpError> {
    ctx.about.names(METHOD, "", &method.name);
    let written = ctx.server().put_acl_auth_method(method).await?;
    ctx.written(written.modify_index, &written.redacted())
}

/// `DELETE /v1/acl/auth-method/:name`.
pub(crate) async fn delete(ctx: Ctx) -> Result<Reply, HttpError> {
    let index = ctx.server().delete_acl_auth_method(ctx.param("name").to_owned()).await?;
    Ok(Reply::empty(StatusCode::OK).written_at(index))
}

//! Binding rules: what logins of a method may do.

use api::{paging::page, shapes::AclBindingRuleStub};
use http::StatusCode;
use model::AclBindingRule;
use state::Table;

use crate::{
    auth_methods::METHOD,
    reply::{HttpError, Reply},
    request::Ctx,
};

/// `GET /v1/acl/binding-rules`.
pub(crate) async fn list(ctx: Ctx) -> Result<Reply, HttpError> {
    let options = ctx.list_options()?;
    let (state, index) = ctx.watch_table(Table::AclBindingRules).await?;
    let rules = state.acl_binding_rules().filter(|rule| rule.id.starts_with(&options.prefix));
    let rows = rules.map(|rule| AclBindingRuleStub {
        id: rule.id.clone(),
        description: rule.description.clone(),
        auth_method: rule.auth_method.clone(),
        hash: rule.hash.clone(),
        create_index: rule.create_index,
        modify_index: rule.modify_index,
    });
    let page = page(rows, &options, |rule| rule.id.to_string())?;
    Ok(ctx.read(index, &page.rows)?.next_token(page.next_token.as_deref()))
}

/// `GET /v1/acl/binding-rule/:id`.
pub(crate) async fn get(ctx: Ctx) -> Result<Reply, HttpError> {
    let id = ctx.param("id");
    let find = |state: &state::State| state.acl_binding_rule(id).cloned();
    let (rule, index, _) = ctx.watch_object(Table::AclBindingRules, &id, find, |rule| rule.modify_index).await?;
    let rule = rule.ok_or_else(|| HttpError::not_found("ACL binding rule not found").read_at(index))?;
    ctx.read(index, &*rule)
}

/// `PUT /v1/acl/binding-rule`.
pub(crate) async fn put(ctx: Ctx) -> Result<Reply, HttpError> {
    let rule = ctx.json().await?;
    write(&ctx, rule).await
}

/// `PUT /v1/acl/binding-rule/:id`.
pub(crate) async fn put_named(ctx: Ctx) -> Result<Reply, HttpError> {
    let rule: AclBindingRule = ctx.json().await?;
    if *rule.id != *ctx.param("id") {
        return Err(HttpError::bad_request("ACL binding rule ID does not match request path"));
    }
    write(&ctx, rule).await
}

async fn write(ctx: &Ctx, rule: AclBindingRule) -> Result<Reply, HttpError> {
    // A rule has no name: until it has an id, its method stands for it.
    match &*rule.id {
        "" => ctx.about.names(METHOD, "", &rule.auth_method),
        id => ctx.about.names("acl_binding_rule", id, ""),
    }
    let written = ctx.server().put_acl_binding_rule(rule).await?;
    ctx.about.names("acl_binding_rule", &written.id, "");
    ctx.written(written.modify_index, &*written)
}

/// `DELETE /v1/acl/binding-rule/:id`.
pub(crate) async fn delete(ctx: Ctx) -> Result<Reply, HttpError> {
    let index = ctx.server().delete_acl_binding_rule(ctx.param("id").to_owned()).await?;
    Ok(Reply::empty(StatusCode::OK).written_at(index))
}

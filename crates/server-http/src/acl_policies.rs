//! ACL policies: everybody reads those that give their own rights, management tokens read and write all.

use std::sync::Arc;

use access::Need;
use api::{
    paging::page,
    shapes::{AclPolicyStub, AclPolicyView},
};
use http::StatusCode;
use model::{AclPolicy, acl::ANONYMOUS};
use state::Table;

use crate::{
    caller::{Caller, Unchecked, denied},
    reply::{HttpError, Reply},
    request::Ctx,
};

/// Whether the caller may read a policy: it gives its own rights, or it is a manager.
fn reads(caller: &Caller, name: &str) -> bool {
    caller.may(&Need::Management) || caller.known().is_some_and(|known| known.policies.contains(name))
}

/// `GET /v1/acl/policies`.
pub(crate) async fn list(ctx: Unchecked) -> Result<Reply, HttpError> {
    let ctx = ctx.filtering(|_| true)?;
    let options = ctx.list_options()?;
    let (state, index) = ctx.watch_table(Table::AclPolicies).await?;
    let wanted =
        |policy: &&Arc<AclPolicy>| policy.name.starts_with(&options.prefix) && reads(&ctx.caller, &policy.name);
    let rows = state.acl_policies().filter(wanted).map(|policy| AclPolicyStub::from(&**policy));
    let page = page(rows, &options, |policy| policy.name.to_string())?;
    Ok(ctx.read(index, &page.rows)?.next_token(page.next_token.as_deref()))
}

/// `GET /v1/acl/policy/self`: the policies that give the caller its rights.
pub(crate) async fn own(ctx: Ctx) -> Result<Reply, HttpError> {
    let (state, index) = ctx.watch_table(Table::AclPolicies).await?;
    let known = ctx.caller.known();
    let names = known.into_iter().flat_map(|known| &known.policies);
    let rows: Vec<AclPolicyStub> =
        names.filter_map(|name| state.acl_policy(name)).map(|policy| AclPolicyStub::from(&**policy)).collect();
    ctx.read(index, &rows)
}

/// `GET /v1/acl/policy/:name`. Everybody reads the policy of requests without a token.
pub(crate) async fn get(ctx: Unchecked) -> Result<Reply, HttpError> {
    let name = ctx.said().param("name").to_owned();
    let ctx = ctx.filtering(|caller| name == ANONYMOUS || reads(caller, &name))?;
    let (found, index, _) = ctx
        .watch_object(Table::AclPolicies, &name, |s| s.acl_policy(&name).cloned(), |policy| policy.modify_index)
        .await?;
    let policy = found.ok_or_else(|| HttpError::not_found("ACL policy not found").read_at(index))?;
    let rules = access::parse(&policy.rules).map_err(HttpError::internal)?;
    ctx.read(index, &AclPolicyView { policy: (*policy).clone(), rules_json: rules.to_json() })
}

/// `PUT /v1/acl/policy/:name`.
pub(crate) async fn put(ctx: Ctx) -> Result<Reply, HttpError> {
    let policy: AclPolicy = ctx.json().await?;
    if *policy.name != *ctx.param("name") {
        return Err(HttpError::bad_request("ACL policy name does not match request path"));
    }
    ctx.about.names("acl_policy", "", &policy.name);
    let index = ctx.server().put_acl_policy(policy).await?;
    Ok(Reply::empty(StatusCode::OK).written_at(index))
}

/// `DELETE /v1/acl/policy/:name`; one that does not exist is no error.
pub(crate) async fn delete(ctx: Ctx) -> Result<Reply, HttpError> {
    let name = ctx.param("name").to_owned();
    if name.is_empty() {
        return Err(denied());
    }
    let index = ctx.server().delete_acl_policy(name).await?;
    Ok(Reply::empty(StatusCode::OK).written_at(index))
}

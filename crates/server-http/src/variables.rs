//! Variables: small secrets and settings by path, encrypted at the servers.

use access::{Need, VariableCapability};
use api::{
    paging::{cut, start},
    shapes::VariableView,
};
use http::StatusCode;
use model::{
    Namespace,
    variables::{Variable, VariableKey},
};
use server::{VariableWritten, Watched};
use state::Table;

use crate::{
    caller::{Caller, Unchecked},
    reply::{HttpError, Reply},
    request::Ctx,
};

/// Operations on locks, which this release does not have.
const LOCKS: [&str; 3] = ["lock-acquire", "lock-renew", "lock-release"];

/// A variable without its items.
fn stub(variable: &Variable) -> VariableView {
    VariableView {
        namespace: variable.namespace.clone(),
        path: variable.path.to_string(),
        create_index: variable.create_index,
        modify_index: variable.modify_index,
        create_time: variable.create_time,
        modify_time: variable.modify_time,
        ..VariableView::default()
    }
}

/// A variable with its items.
fn whole(ctx: &Ctx, variable: &Variable) -> Result<VariableView, HttpError> {
    Ok(VariableView { items: Some(ctx.server().variable_items(variable)?), ..stub(variable) })
}

/// The variable that the request names.
fn key(ctx: &Ctx) -> Result<VariableKey, HttpError> {
    match ctx.param("path") {
        "" => Err(HttpError::bad_request("missing variable path")),
        path => Ok(VariableKey::new(ctx.query.namespace(), path)),
    }
}

/// `cas`: the index that the variable has to have.
fn cas(ctx: &Ctx) -> Result<Option<u64>, HttpError> {
    match ctx.query.get("cas") {
        None => Ok(None),
        Some(text) => {
            let bad = |why| HttpError::bad_request(format_args!("can not parse cas: {text:?}: {why}"));
            text.parse().map(Some).map_err(bad)
        }
    }
}

fn no_locks(ctx: &Ctx) -> Result<(), HttpError> {
    match LOCKS.into_iter().find(|name| ctx.query.get(name).is_some()) {
        Some(name) => Err(HttpError::unsupported(name, "variables have no locks yet; use cas to write after a read")),
        None => Ok(()),
    }
}

/// The right to do something to a variable.
fn right<'k>(namespace: &'k str, path: &'k str, capability: VariableCapability) -> Need<'k> {
    Need::Variable { namespace, path, capability }
}

/// Whether the caller may do this to a variable.
fn may(caller: &Caller, key: &VariableKey, capability: VariableCapability) -> bool {
    caller.may(&right(key.namespace.as_str(), &key.path, capability))
}

/// `GET /v1/vars`: the metadata, by namespace and path. A page costs what it holds.
pub(crate) async fn list(ctx: Unchecked) -> Result<Reply, HttpError> {
    let asked = ctx.said().query.namespace();
    let ctx = ctx.filtering(|caller| {
        caller.may(&Need::AnyVariable { namespace: asked.as_str(), capability: VariableCapability::List })
    })?;
    let options = ctx.list_options()?;
    let (state, index) = ctx.watch_table(Table::Variables).await?;
    let (namespace, prefix) = (ctx.query.namespace(), options.prefix.clone());
    let wanted = |v: &&std::sync::Arc<Variable>| {
        (namespace.as_str() == "*" || namespace == v.namespace)
            && v.path.starts_with(&prefix)
            && may(&ctx.caller, &v.key(), VariableCapability::List)
    };
    let from = start::<(String, String)>(&options)?;
    let from = from.map(|(namespace, path)| VariableKey::new(Namespace::from(namespace), &path));
    let rows = state.variables_onward(from, options.reverse).filter(wanted).map(|v| stub(v));
    let page = cut(rows, &options, |v| (v.namespace.to_string(), v.path.clone()))?;
    Ok(ctx.read(index, &page.rows)?.next_token(page.next_token.as_deref()))
}

/// `GET /v1/var/:path`.
pub(crate) async fn get(ctx: Unchecked) -> Result<Reply, HttpError> {
    let key = key(ctx.said())?;
    let ctx = ctx.check(&right(key.namespace.as_str(), &key.path, VariableCapability::Read))?;
    let index_of = |s: &state::State| s.variable(&key).map_or_else(|| s.index(Table::Variables), |v| v.modify_index);
    let watched = |_: &state::State| Watched::object(Table::Variables, &(&key.namespace, &key.path));
    let state = ctx.watch(watched, index_of).await?;
    match state.variable(&key) {
        Some(variable) => ctx.read(variable.modify_index, &whole(&ctx, variable)?),
        None => Err(HttpError::not_found("variable not found").read_at(index_of(&state))),
    }
}

/// `PUT /v1/var/:path`. The URL's path and the body's namespace count.
pub(crate) async fn put(ctx: Unchecked) -> Result<Reply, HttpError> {
    let named = key(ctx.said())?;
    let body: VariableView = ctx.said().json().await?;
    let namespace = if body.namespace.as_str().is_empty() { named.namespace } else { body.namespace.clone() };
    let key = VariableKey { namespace: namespace.clone(), path: named.path };
    let ctx = ctx.check(&right(key.namespace.as_str(), &key.path, VariableCapability::Write))?;
    no_locks(&ctx)?;
    let cas = cas(&ctx)?;
    if body.lock.is_some_and(|lock| !lock.is_null()) {
        return Err(HttpError::unsupported("Lock", "variables have no locks yet; use cas to write after a read"));
    }
    let items = body.items.unwrap_or_default();
    match ctx.server().put_variable(namespace.clone(), key.path.to_string(), items, cas).await? {
        VariableWritten::Done(variable) => ctx.written(variable.modify_index, &whole(&ctx, &variable)?),
        VariableWritten::Conflict(current) => {
            conflict(&ctx, &VariableKey { namespace, path: key.path }, current.as_deref())
        }
    }
}

/// `DELETE /v1/var/:path`.
pub(crate) async fn delete(ctx: Unchecked) -> Result<Reply, HttpError> {
    let key = key(ctx.said())?;
    let ctx = ctx.check(&right(key.namespace.as_str(), &key.path, VariableCapability::Destroy))?;
    no_locks(&ctx)?;
    let cas = cas(&ctx)?;
    match ctx.server().delete_variable(key.clone(), cas).await? {
        None => Ok(Reply::empty(StatusCode::NO_CONTENT)),
        Some(current) => conflict(&ctx, &key, current.as_deref()),
    }
}

/// 409 with the variable as it is, its items only for those who may read them; zeros where there is none.
fn conflict(ctx: &Ctx, key: &VariableKey, current: Option<&Variable>) -> Result<Reply, HttpError> {
    let view = match current {
        Some(variable) if may(&ctx.caller, key, VariableCapability::Read) => whole(ctx, variable)?,
        Some(variable) => stub(variable),
        None => {
            VariableView { namespace: key.namespace.clone(), path: key.path.to_string(), ..VariableView::default() }
        }
    };
    Ok(ctx.written(view.modify_index, &view)?.with_status(StatusCode::CONFLICT))
}

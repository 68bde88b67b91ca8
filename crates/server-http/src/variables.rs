//! Variables: small secrets and settings by path, encrypted at the servers.

use access::{Need, VariableCapability};
use api::{
    paging::{cut, start},
    shapes::{LockView, VariableView},
};
use http::StatusCode;
use model::{
    GoDuration, Namespace,
    variables::{Variable, VariableKey},
};
use server::{NotRenewed, Watched, Written};
use state::Table;

use crate::{
    caller::{Caller, Unchecked},
    reply::{HttpError, Reply},
    request::Ctx,
};

/// What a request does with the lock of its variable.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Operation {
    Acquire,
    Renew,
    Release,
}

/// A variable without its items and its lock.
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

/// The lock of a variable, for those who may see its id.
fn lock_of(variable: &Variable) -> Option<LockView> {
    variable.lock.as_ref().map(|lock| LockView {
        id: lock.id.reveal().to_owned(),
        ttl: lock.ttl,
        lock_delay: lock.lock_delay,
    })
}

/// A variable without its items. Who knows the id of a lock holds it, so only those see it who may do everything.
fn seen(caller: &Caller, variable: &Variable) -> VariableView {
    VariableView { lock: lock_of(variable).filter(|_| caller.sees_all()), ..stub(variable) }
}

/// A variable with its items.
fn whole(ctx: &Ctx, variable: &Variable) -> Result<VariableView, HttpError> {
    Ok(VariableView { items: Some(ctx.server().variable_items(variable)?), ..seen(&ctx.caller, variable) })
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

fn operation(ctx: &Ctx) -> Result<Option<Operation>, HttpError> {
    let all =
        [("lock-acquire", Operation::Acquire), ("lock-renew", Operation::Renew), ("lock-release", Operation::Release)];
    let mut asked = all.into_iter().filter(|(name, _)| ctx.query.get(name).is_some()).map(|(_, operation)| operation);
    let first = asked.next();
    match (asked.next(), first.is_some() && ctx.query.get("cas").is_some()) {
        (Some(_), _) => Err(HttpError::bad_request("multiple lock operations")),
        (_, true) => Err(HttpError::bad_request("CAS can't be used with lock operations")),
        (None, false) => Ok(first),
    }
}

/// The id of the lock that the writer says to hold.
fn id(lock: Option<&LockView>) -> Option<String> {
    lock.map(|lock| lock.id.clone()).filter(|id| !id.is_empty())
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
    let rows = state.variables_onward(from, options.reverse).filter(wanted).map(|v| seen(&ctx.caller, v));
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
    let key = VariableKey { namespace, path: named.path };
    let ctx = ctx.check(&right(key.namespace.as_str(), &key.path, VariableCapability::Write))?;
    match operation(&ctx)? {
        None => set(&ctx, key, body).await,
        Some(Operation::Acquire) => acquire(&ctx, key, body).await,
        Some(Operation::Renew) => renew(&ctx, &key, &body),
        Some(Operation::Release) => release(&ctx, key, body).await,
    }
}

async fn set(ctx: &Ctx, key: VariableKey, body: VariableView) -> Result<Reply, HttpError> {
    let cas = cas(ctx)?;
    let zero = GoDuration::ZERO;
    if body.lock.as_ref().is_some_and(|lock| lock.ttl != zero || lock.lock_delay != zero) {
        return Err(HttpError::bad_request("variable should not contain lock definition"));
    }
    let lock = id(body.lock.as_ref());
    let written = ctx.server().put_variable(key.clone(), body.items.unwrap_or_default(), cas, lock).await?;
    answer(ctx, &key, written, |variable| held(ctx, variable))
}

async fn acquire(ctx: &Ctx, key: VariableKey, body: VariableView) -> Result<Reply, HttpError> {
    let lock = body.lock.unwrap_or_default();
    let id = id(Some(&lock));
    // The lock alone needs `write`, which is no right to read what the variable holds.
    let shown = body.items.is_some() || may(&ctx.caller, &key, VariableCapability::Read);
    let written = ctx.server().acquire_lock(key.clone(), body.items, id.as_deref(), lock.ttl, lock.lock_delay).await?;
    answer(ctx, &key, written, |variable| match shown {
        true => held(ctx, variable),
        false => Ok(VariableView { lock: lock_of(variable), ..stub(variable) }),
    })
}

/// Nothing is stored: the agent answers with that only while no other server can have begun to lead.
fn renew(ctx: &Ctx, key: &VariableKey, body: &VariableView) -> Result<Reply, HttpError> {
    let Some(id) = id(body.lock.as_ref()) else {
        return Err(HttpError::new(StatusCode::INTERNAL_SERVER_ERROR, "missing lock ID"));
    };
    let (status, why) = match ctx.server().renew_lock(key, &id) {
        Ok(variable) => {
            let view = VariableView { lock: lock_of(&variable), ..stub(&variable) };
            return ctx.written(variable.modify_index, &view);
        }
        Err(NotRenewed::Absent) => (StatusCode::NOT_FOUND, NO_VARIABLE),
        Err(NotRenewed::Unlocked) => (StatusCode::CONFLICT, NO_LOCK),
        Err(NotRenewed::Locked) => (StatusCode::CONFLICT, "attempting to modify locked variable"),
    };
    Err(HttpError::new(status, why))
}

async fn release(ctx: &Ctx, key: VariableKey, body: VariableView) -> Result<Reply, HttpError> {
    let Some(id) = id(body.lock.as_ref()) else {
        return Err(HttpError::bad_request("missing lock information"));
    };
    if body.items.is_some_and(|items| !items.is_empty()) {
        return Err(HttpError::bad_request("lock release operation doesn't take variable items"));
    }
    match ctx.server().release_lock(key.clone(), id).await? {
        Written::Unlocked => Err(HttpError::new(StatusCode::INTERNAL_SERVER_ERROR, NO_LOCK)),
        written => answer(ctx, &key, written, |variable| Ok(stub(variable))),
    }
}

/// `DELETE /v1/var/:path`. The body may name the lock that the writer holds.
pub(crate) async fn delete(ctx: Unchecked) -> Result<Reply, HttpError> {
    let key = key(ctx.said())?;
    let body: VariableView = ctx.said().json_or_default().await?;
    let ctx = ctx.check(&right(key.namespace.as_str(), &key.path, VariableCapability::Destroy))?;
    if operation(&ctx)?.is_some() {
        return Err(HttpError::bad_request("lock operations need the method PUT; DELETE takes the variable away"));
    }
    let cas = cas(&ctx)?;
    let written = ctx.server().delete_variable(key.clone(), cas, id(body.lock.as_ref())).await?;
    answer(&ctx, &key, written, |variable| Ok(stub(variable)))
}

const NO_VARIABLE: &str = "variable doesn't exist";
const NO_LOCK: &str = "variable doesn't hold a lock";

/// A variable as the holder of its lock sees it.
fn held(ctx: &Ctx, variable: &Variable) -> Result<VariableView, HttpError> {
    Ok(VariableView { lock: lock_of(variable), ..whole(ctx, variable)? })
}

/// What became of a write. Conflicts are 409 with the variable as it is, its items only for those who may read them;
/// with zeros where there is none, and where somebody else holds its lock.
fn answer(
    ctx: &Ctx,
    key: &VariableKey,
    written: Written,
    done: impl FnOnce(&Variable) -> Result<VariableView, HttpError>,
) -> Result<Reply, HttpError> {
    let view = match written {
        Written::Done(variable) => return ctx.written(variable.modify_index, &done(&variable)?),
        Written::Gone => return Ok(Reply::empty(StatusCode::NO_CONTENT)),
        Written::Absent => return Err(HttpError::new(StatusCode::INTERNAL_SERVER_ERROR, NO_VARIABLE)),
        Written::Unlocked => return Err(HttpError::new(StatusCode::CONFLICT, NO_LOCK)),
        Written::Conflict(Some(current)) if may(&ctx.caller, key, VariableCapability::Read) => whole(ctx, &current)?,
        Written::Conflict(Some(current)) => stub(&current),
        Written::Conflict(None) | Written::Locked => {
            VariableView { namespace: key.namespace.clone(), path: key.path.to_string(), ..VariableView::default() }
        }
    };
    Ok(ctx.written(view.modify_index, &view)?.with_status(StatusCode::CONFLICT))
}

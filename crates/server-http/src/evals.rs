//! Evaluations.

use std::{collections::BTreeSet, sync::Arc};

use api::filter::Filter;
use api::shapes::{AllocListStub, Count, EvalDeleteRequest, EvalDeleteResponse, EvalDetail, EvalStub, eval_detail};
use model::{EvalId, Evaluation, eval::EvalStatus};
use state::{State, Table};
use uuid::Uuid;

use crate::{
    caller::READS_JOBS,
    pages,
    reply::{HttpError, Reply},
    request::{Ctx, uuid, uuid_prefix},
};

/// Most evaluations of a chain that are shown as related.
const MAX_RELATED: usize = 64;

/// What `status`, `job` and the namespace select.
fn selected(ctx: &Ctx, state: &State) -> Result<impl Fn(&&Arc<Evaluation>) -> bool + Send + 'static, HttpError> {
    let (status, job) = (ctx.query.text("status").to_owned(), ctx.query.text("job").to_owned());
    let selected = !status.is_empty() || !job.is_empty();
    if selected && !ctx.query.text("filter").is_empty() {
        return Err(HttpError::bad_request(
            "query parameters 'job' and 'status' can't be used with the filter expression",
        ));
    }
    let visible = ctx.visible(state, READS_JOBS);
    // None = a status that no evaluation has.
    let known: Option<EvalStatus> = serde_json::from_value(status.as_str().into()).ok();
    Ok(move |e: &&Arc<Evaluation>| {
        visible.shows(&e.namespace)
            && (job.is_empty() || e.job_id == job.as_str())
            && (status.is_empty() || known == Some(e.status))
    })
}

pub(crate) async fn list(ctx: Ctx) -> Result<Reply, HttpError> {
    let options = ctx.list_options()?;
    let prefix = uuid_prefix(&options.prefix, "eval")?;
    let (state, index) = ctx.watch_table(Table::Evals).await?;
    let wanted = selected(&ctx, &state)?;
    ctx.beside(move |ctx| {
        let page = if prefix.is_empty() {
            let rows = |from: Option<(u64, Uuid)>, reverse| {
                state.evals_by_creation(from.map(|(index, id)| (index, EvalId(id))), reverse)
            };
            pages::by_creation(&options, rows, |e| (e.create_index, e.id.0), wanted)?
        } else {
            let rows = |from: Option<Uuid>, reverse| state.evals_onward(from.map(EvalId), reverse);
            pages::by_id(&options, &prefix, rows, |e| e.id.0, wanted)?
        };
        let evals: Vec<EvalDetail> = page.rows.into_iter().map(eval_detail).collect();
        Ok(ctx.read(index, &evals)?.next_token(page.next_token.as_deref()))
    })
    .await
}

pub(crate) async fn count(ctx: Ctx) -> Result<Reply, HttpError> {
    let options = ctx.list_options()?;
    let prefix = uuid_prefix(&options.prefix, "eval")?;
    let (state, index) = ctx.watch_table(Table::Evals).await?;
    let wanted = selected(&ctx, &state)?;
    ctx.beside(move |ctx| {
        let mut count = 0;
        for eval in state.evals().filter(wanted) {
            let kept = match &options.filter {
                Some(filter) => filter.matches(eval).map_err(api::paging::PageError::from)?,
                None => true,
            };
            count += usize::from(kept && eval.id.to_string().starts_with(&prefix));
        }
        ctx.read(index, &Count { count })
    })
    .await
}

/// Most ids of one request.
const MAX_DELETED: usize = 7281;
/// Evaluations of one commit.
const AT_ONCE: usize = 1000;

/// Deletes evaluations: these, or those that pass a filter.
pub(crate) async fn delete(ctx: Ctx) -> Result<Reply, HttpError> {
    let request: EvalDeleteRequest = ctx.json().await?;
    let (ids, filter) = (request.eval_ids, request.filter);
    if ids.is_empty() == filter.is_empty() {
        return Err(HttpError::bad_request("evals are deleted by their ids or by a filter: name one of both"));
    }
    if ids.len() > MAX_DELETED {
        return Err(HttpError::bad_request(format_args!(
            "{} evals are named, and one request deletes at most {MAX_DELETED}",
            ids.len()
        )));
    }
    let server = ctx.server();
    if filter.is_empty() {
        let ids: Vec<EvalId> = ids.iter().map(|id| uuid(id, "eval").map(EvalId)).collect::<Result<_, HttpError>>()?;
        let done = server.delete_evals(ids, true).await?;
        return ctx.written(done.index, &EvalDeleteResponse { count: done.evals, index: done.index });
    }
    let filter = Filter::parse(&filter).map_err(|e| HttpError::bad_request(format_args!("filter: {e}")))?;
    let state = server.snapshot();
    let mut found = Vec::new();
    for eval in state.evals() {
        if filter.matches(eval).map_err(api::paging::PageError::from)? {
            found.push(eval.id);
        }
    }
    // Asked once even for none: a broker that works is told.
    let mut done = EvalDeleteResponse::default();
    for ids in found.chunks(AT_ONCE).map(<[EvalId]>::to_vec).chain(found.is_empty().then(Vec::new)) {
        let some = server.delete_evals(ids, false).await?;
        done = EvalDeleteResponse { count: done.count + some.evals, index: some.index };
    }
    ctx.written(done.index, &done)
}

fn not_found() -> HttpError {
    HttpError::not_found("eval not found")
}

pub(crate) async fn get(ctx: Ctx) -> Result<Reply, HttpError> {
    let id = ctx.eval_id("id")?;
    let related = ctx.query.bool("related")?;
    let (eval, index, state) = ctx.watch_object(Table::Evals, &id, |s| s.eval(id).cloned(), |e| e.modify_index).await?;
    let eval = eval.ok_or_else(|| not_found().read_at(index))?;
    let mut detail = eval_detail(&eval);
    if related {
        detail.extra.related_evals = Some(related_to(&state, &eval));
    }
    ctx.read(index, &detail)
}

/// The chain that the evaluation belongs to, without itself.
fn related_to(state: &State, eval: &Evaluation) -> Vec<EvalStub> {
    let links = |e: &Evaluation| [e.next_eval, e.previous_eval, e.blocked_eval];
    let mut seen = BTreeSet::from([eval.id, EvalId::NIL]);
    let mut todo = links(eval).to_vec();
    let mut found = Vec::new();
    while let Some(id) = todo.pop() {
        if found.len() < MAX_RELATED
            && seen.insert(id)
            && let Some(e) = state.eval(id)
        {
            todo.extend(links(e));
            found.push(EvalStub::from(e));
        }
    }
    found.sort_by_key(|e| (e.create_index, e.id));
    found
}

pub(crate) async fn allocations(ctx: Ctx) -> Result<Reply, HttpError> {
    let id = ctx.eval_id("id")?;
    let (state, index) = ctx.watch_table(Table::Allocs).await?;
    let stubs: Vec<AllocListStub> = state.allocs_by_eval(id).map(|a| AllocListStub::new(a, false, true)).collect();
    ctx.read(index, &stubs)
}

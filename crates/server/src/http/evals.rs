//! Evaluations.

use std::{collections::BTreeSet, sync::Arc};

use api::{
    paging::page,
    shapes::{AllocListStub, Count, EvalDetail, EvalStub, eval_detail},
};
use model::{EvalId, Evaluation};
use state::{State, Table};

use super::{
    jobs::in_namespace,
    reply::{HttpError, Reply},
    request::{Ctx, uuid_prefix},
};

/// Most evaluations of a chain that are shown as related.
const MAX_RELATED: usize = 64;

/// The rows that `status`, `job` and the namespace select.
fn selected(ctx: &Ctx, state: &State) -> Result<Vec<Arc<Evaluation>>, HttpError> {
    let (status, job) = (ctx.query.text("status"), ctx.query.text("job"));
    let selected = !status.is_empty() || !job.is_empty();
    if selected && !ctx.query.text("filter").is_empty() {
        return Err(HttpError::bad_request("query parameters 'job' and 'status' can't be used with the filter expression"));
    }
    let namespace = ctx.query.namespace();
    let wanted = |e: &&Arc<Evaluation>| {
        in_namespace(&namespace, &e.namespace)
            && (job.is_empty() || e.job_id == job)
            && (status.is_empty() || serde_json::to_value(e.status).is_ok_and(|s| s == status))
    };
    Ok(state.evals().filter(wanted).cloned().collect())
}

pub(super) async fn list(ctx: Ctx) -> Result<Reply, HttpError> {
    let options = ctx.list_options()?;
    let prefix = uuid_prefix(&options.prefix, "eval")?;
    let (state, index) = ctx.watch_table(Table::Evals).await?;
    let rows = selected(&ctx, &state)?.into_iter();
    let page = if prefix.is_empty() {
        page(rows, &options, |e| (e.create_index, e.id.to_string()))?
    } else {
        page(rows.filter(|e| e.id.to_string().starts_with(&prefix)), &options, |e| e.id.to_string())?
    };
    let evals: Vec<EvalDetail> = page.rows.iter().map(eval_detail).collect();
    Ok(ctx.read(index, &evals)?.next_token(page.next_token.as_deref()))
}

pub(super) async fn count(ctx: Ctx) -> Result<Reply, HttpError> {
    let options = ctx.list_options()?;
    let prefix = uuid_prefix(&options.prefix, "eval")?;
    let (state, index) = ctx.watch_table(Table::Evals).await?;
    let mut count = 0;
    for eval in selected(&ctx, &state)? {
        let kept = match &options.filter {
            Some(filter) => filter.matches(&eval).map_err(api::paging::PageError::from)?,
            None => true,
        };
        count += usize::from(kept && eval.id.to_string().starts_with(&prefix));
    }
    ctx.read(index, &Count { count })
}

fn not_found() -> HttpError {
    HttpError::not_found("eval not found")
}

pub(super) async fn get(ctx: Ctx) -> Result<Reply, HttpError> {
    let id = ctx.eval_id("id")?;
    let related = ctx.query.bool("related")?;
    let (eval, index, state) = ctx.watch_object(Table::Evals, |s| s.eval(id).cloned(), |e| e.modify_index).await?;
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

pub(super) async fn allocations(ctx: Ctx) -> Result<Reply, HttpError> {
    let id = ctx.eval_id("id")?;
    let (state, index) = ctx.watch_table(Table::Allocs).await?;
    let stubs: Vec<AllocListStub> = state.allocs_by_eval(id).map(|a| AllocListStub::new(a, false, true)).collect();
    ctx.read(index, &stubs)
}

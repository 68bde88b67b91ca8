//! Allocations.

use std::sync::Arc;

use api::{
    With,
    paging::page,
    shapes::{AllocDetail, AllocExtra, AllocListStub, AllocStopResponse, RemoteTaskView},
};
use model::{Allocation, RemoteTask};
use state::{State, Table};

use super::{
    jobs::in_namespace,
    remote,
    reply::{HttpError, Reply},
    request::{Ctx, uuid_prefix},
};

pub(super) async fn list(ctx: Ctx) -> Result<Reply, HttpError> {
    let options = ctx.list_options()?;
    let prefix = uuid_prefix(&options.prefix, "alloc")?;
    let resources = ctx.query.bool("resources")?;
    let task_states = ctx.query.bool_or("task_states", true)?;
    let (state, index) = ctx.watch_table(Table::Allocs).await?;
    let namespace = ctx.query.namespace();
    let rows = state.allocs().filter(|a| in_namespace(&namespace, &a.namespace)).cloned();
    // With a prefix people look for an id, else for what came last.
    let page = if prefix.is_empty() {
        page(rows, &options, |a| (a.create_index, a.id.to_string()))?
    } else {
        page(rows.filter(|a| a.id.to_string().starts_with(&prefix)), &options, |a| a.id.to_string())?
    };
    let stubs: Vec<AllocListStub> = page.rows.iter().map(|a| AllocListStub::new(a, resources, task_states)).collect();
    Ok(ctx.read(index, &stubs)?.next_token(page.next_token.as_deref()))
}

/// An allocation as the API shows it.
pub(super) fn detail(state: &State, alloc: &Arc<Allocation>) -> AllocDetail {
    // The slot may serve another allocation by now: then its record is shown with that one.
    let mine = |r: &&Arc<RemoteTask>| {
        let managers = r.manager.iter().chain(&r.successor);
        r.alloc_id == alloc.id || managers.into_iter().any(|m| m.alloc_id == alloc.id)
    };
    let remote_tasks: Vec<RemoteTaskView> = alloc
        .resources
        .tasks
        .iter()
        .filter(|(_, given)| given.remote)
        .filter_map(|(task, _)| state.remote_task(&model::remote::slot_of(alloc, task)))
        .filter(mine)
        .map(|r| remote::view(state, r))
        .collect();
    // What an allocation was placed with is what it takes over; what it has now is on the records.
    let mut shown = alloc.clone();
    if remote_tasks.iter().any(|r| alloc.remote.get(&r.base.slot.task) != Some(&r.base.incarnation)) {
        let remote = &mut Arc::make_mut(&mut shown).remote;
        for r in &remote_tasks {
            remote.insert(r.base.slot.task.clone(), r.base.incarnation);
        }
    }
    With::new(shown, AllocExtra::new(alloc, remote_tasks))
}

pub(super) async fn get(ctx: Ctx) -> Result<Reply, HttpError> {
    let id = ctx.alloc_id("id")?;
    let (alloc, index, state) = ctx.watch_object(Table::Allocs, |s| s.alloc(id).cloned(), |a| a.modify_index).await?;
    let alloc = alloc.ok_or_else(|| HttpError::not_found("alloc not found").read_at(index))?;
    ctx.read(index, &detail(&state, &alloc))
}

pub(super) async fn stop(ctx: Ctx) -> Result<Reply, HttpError> {
    let id = ctx.alloc_id("id")?;
    let made = ctx.server().stop_alloc(id, ctx.query.bool("no_shutdown_delay")?, ctx.query.bool("reschedule")?).await?;
    ctx.written(made.index, &AllocStopResponse { eval_id: made.eval_id, index: made.index })
}

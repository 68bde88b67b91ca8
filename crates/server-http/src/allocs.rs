//! Allocations.

use std::sync::Arc;

use api::{
    With,
    shapes::{AllocDetail, AllocExtra, AllocListStub, AllocStopResponse, RemoteTaskView},
};
use lifecycle::remote::Times;
use model::{AllocId, Allocation, RemoteTask};
use state::{State, Table};
use uuid::Uuid;

use crate::{
    caller::READS_JOBS,
    pages, remote,
    reply::{HttpError, Reply},
    request::{Ctx, uuid_prefix},
};

pub(crate) async fn list(ctx: Ctx) -> Result<Reply, HttpError> {
    let options = ctx.list_options()?;
    let prefix = uuid_prefix(&options.prefix, "alloc")?;
    let resources = ctx.query.bool("resources")?;
    let task_states = ctx.query.bool_or("task_states", true)?;
    let (state, index) = ctx.watch_table(Table::Allocs).await?;
    let visible = ctx.visible(&state, READS_JOBS);
    ctx.beside(move |ctx| {
        let wanted = |a: &&Arc<Allocation>| visible.shows(&a.namespace);
        // With a prefix people look for an id, else for what came last.
        let page = if prefix.is_empty() {
            let rows = |from: Option<(u64, Uuid)>, reverse| {
                state.allocs_by_creation(from.map(|(index, id)| (index, AllocId(id))), reverse)
            };
            pages::by_creation(&options, rows, |a| (a.create_index, a.id.0), wanted)?
        } else {
            let rows = |from: Option<Uuid>, reverse| state.allocs_onward(from.map(AllocId), reverse);
            pages::by_id(&options, &prefix, rows, |a| a.id.0, wanted)?
        };
        let stubs: Vec<AllocListStub> =
            page.rows.into_iter().map(|a| AllocListStub::new(a, resources, task_states)).collect();
        Ok(ctx.read(index, &stubs)?.next_token(page.next_token.as_deref()))
    })
    .await
}

/// An allocation as the API shows it.
pub(crate) fn detail(state: &State, alloc: &Arc<Allocation>, times: &Times) -> AllocDetail {
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
        .map(|r| remote::view(state, r, times))
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

pub(crate) async fn get(ctx: Ctx) -> Result<Reply, HttpError> {
    let id = ctx.alloc_id("id")?;
    let (alloc, index, state) =
        ctx.watch_object(Table::Allocs, &id, |s| s.alloc(id).cloned(), |a| a.modify_index).await?;
    let alloc = alloc.ok_or_else(|| HttpError::not_found("alloc not found").read_at(index))?;
    ctx.read(index, &detail(&state, &alloc, &ctx.server().config().times()))
}

pub(crate) async fn stop(ctx: Ctx) -> Result<Reply, HttpError> {
    let id = ctx.alloc_id("id")?;
    let made = ctx.server().stop_alloc(id, ctx.query.bool("no_shutdown_delay")?, ctx.query.bool("reschedule")?).await?;
    ctx.written(made.index, &AllocStopResponse { eval_id: made.eval_id, index: made.index })
}

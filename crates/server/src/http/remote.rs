//! Remote tasks: the records themselves, what is promised of them, and who manages them.

use std::sync::Arc;

use api::{
    With,
    paging::page,
    shapes::{IndexResponse, RemoteExtra, RemoteSweep, RemoteTaskView},
};
use model::{RemoteInstance, RemoteTask, SlotKey};
use serde::{Serialize, Serializer};
use state::{State, Table};

use super::{
    jobs::in_namespace,
    reply::{HttpError, Reply},
    request::Ctx,
};

/// A record as the API shows it.
pub(super) fn view(state: &State, record: &Arc<RemoteTask>) -> RemoteTaskView {
    let manager = record.manager.as_ref().and_then(|m| state.node(m.node_id));
    let extra = RemoteExtra {
        slot_name: record.slot.to_string(),
        manager_name: manager.map(|n| n.name.to_string()).unwrap_or_default(),
        unmanaged: record.manager.is_none(),
        guarantee: crate::remote::guarantee_of(state, record),
    };
    With::new(record.clone(), extra)
}

/// A record on its way into an answer. What the API adds to it is made when it is written: not for thousands of records at once, in pieces between what
/// lives on.
struct Row<'a> {
    state: &'a State,
    record: &'a Arc<RemoteTask>,
}

impl Serialize for Row<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        view(self.state, self.record).serialize(serializer)
    }
}

pub(super) async fn list(ctx: Ctx) -> Result<Reply, HttpError> {
    let options = ctx.list_options()?;
    let (state, index) = ctx.watch_table(Table::RemoteTasks).await?;
    let namespace = ctx.query.namespace();
    let job = ctx.query.text("job");
    let rows = state
        .remote_tasks()
        .filter(|r| in_namespace(&namespace, &r.slot.namespace) && (job.is_empty() || r.slot.job_id == job))
        .filter(|r| options.prefix.is_empty() || r.slot.to_string().starts_with(&options.prefix))
        .map(|record| Row { state: &state, record });
    let page = page(rows, &options, |row| row.record.slot.to_string())?;
    Ok(ctx.read(index, &page.rows)?.next_token(page.next_token.as_deref()))
}

/// The slot that a path names: `namespace/job.group[index]/task`.
fn slot(ctx: &Ctx) -> Result<SlotKey, HttpError> {
    let text = ctx.param("slot");
    text.parse().map_err(|_| {
        HttpError::bad_request(format_args!("{text:?} is not the name of a slot: it has the form namespace/job.group[index]/task"))
    })
}

pub(super) async fn get(ctx: Ctx) -> Result<Reply, HttpError> {
    let slot = slot(&ctx)?;
    let (record, index, state) = ctx.watch_object(Table::RemoteTasks, |s| s.remote_task(&slot).cloned(), |r| r.modify_index).await?;
    let record = record.ok_or_else(|| HttpError::not_found("remote task not found").read_at(index))?;
    ctx.read(index, &view(&state, &record))
}

/// What lives at the providers in this cluster's name and is in no record; with `sweep=true` after looking anew.
pub(super) async fn unbound(ctx: Ctx) -> Result<Reply, HttpError> {
    let sweeps = if ctx.query.flag("sweep")? { ctx.server().sweep_remote().await } else { ctx.server().remote_sweeps() };
    let sweeps: Vec<RemoteSweep> = sweeps
        .into_iter()
        .map(|s| RemoteSweep {
            driver: s.driver,
            provider: s.provider,
            node_id: s.node_id,
            at: s.at,
            error: s.error,
            instances: s.instances,
            unbound: s.unbound.into_iter().map(|i| RemoteInstance { handle: None, ..i }).collect(),
        })
        .collect();
    ctx.plain(&sweeps)
}

/// Takes an unbound instance for what its slot's job wants.
pub(super) async fn adopt(ctx: Ctx) -> Result<Reply, HttpError> {
    let index = ctx.server().adopt_remote(ctx.param("key")).await?;
    ctx.written(index, &IndexResponse { index })
}

/// Orders the stop of an unbound instance.
pub(super) async fn stop_unbound(ctx: Ctx) -> Result<Reply, HttpError> {
    let index = ctx.server().stop_unbound_remote(ctx.param("key")).await?;
    ctx.written(index, &IndexResponse { index })
}

/// Reports an unbound instance no more.
pub(super) async fn forget_unbound(ctx: Ctx) -> Result<Reply, HttpError> {
    ctx.server().forget_unbound_remote(ctx.param("key"))?;
    let index = ctx.server().snapshot().latest_index();
    ctx.written(index, &IndexResponse { index })
}

/// Gives up a record although the absence of its instance is not confirmed.
pub(super) async fn forget(ctx: Ctx) -> Result<Reply, HttpError> {
    let index = ctx.server().forget_remote(slot(&ctx)?).await?;
    ctx.written(index, &IndexResponse { index })
}

/// Declares that no instance exists: the way out when the provider cannot tell.
pub(super) async fn gone(ctx: Ctx) -> Result<Reply, HttpError> {
    let index = ctx.server().declare_remote_gone(slot(&ctx)?).await?;
    ctx.written(index, &IndexResponse { index })
}

/// Stops the instance; another one of the same specification follows.
pub(super) async fn restart(ctx: Ctx) -> Result<Reply, HttpError> {
    let index = ctx.server().restart_remote(slot(&ctx)?).await?;
    ctx.written(index, &IndexResponse { index })
}

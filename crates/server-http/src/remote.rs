//! Remote tasks: the records themselves, what is promised of them, and who manages them.

use std::sync::Arc;

use api::{
    With,
    paging::page,
    shapes::{IndexResponse, RemoteAdopted, RemoteExtra, RemoteTaskView},
};
use lifecycle::remote::Times;
use model::{RemoteTask, SlotKey};
use serde::{Serialize, Serializer};
use server::sweep::{Adopted, Which};
use state::{State, Table};

use crate::{
    caller::READS_JOBS,
    reply::{HttpError, Reply},
    request::Ctx,
};

/// A record as the API shows it.
pub(crate) fn view(state: &State, record: &Arc<RemoteTask>, times: &Times) -> RemoteTaskView {
    let manager = record.manager.as_ref().and_then(|m| state.node(m.node_id));
    let extra = RemoteExtra {
        slot_name: record.slot.to_string(),
        manager_name: manager.map(|n| n.name.to_string()).unwrap_or_default(),
        unmanaged: record.manager.is_none(),
        guarantee: control::runtimes::guarantee_of(state, record, times),
    };
    With::new(record.clone(), extra)
}

/// A record on its way into an answer. What the API adds to it is made when it is written: not for thousands of
/// records at once, in pieces between what lives on.
struct Row<'a> {
    state: &'a State,
    record: &'a Arc<RemoteTask>,
    times: Times,
}

impl Serialize for Row<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        view(self.state, self.record, &self.times).serialize(serializer)
    }
}

pub(crate) async fn list(ctx: Ctx) -> Result<Reply, HttpError> {
    let options = ctx.list_options()?;
    let (state, index) = ctx.watch_table(Table::RemoteTasks).await?;
    // By the text of the slot, which is not the order of the state: all are sorted.
    ctx.beside(move |ctx| {
        let visible = ctx.visible(&state, READS_JOBS);
        let job = ctx.query.text("job");
        let times = ctx.server().config().times();
        let rows = state
            .remote_tasks()
            .filter(|r| visible.shows(&r.slot.namespace) && (job.is_empty() || r.slot.job_id == job))
            .filter(|r| options.prefix.is_empty() || r.slot.to_string().starts_with(&options.prefix))
            .map(|record| Row { state: &state, record, times });
        let page = page(rows, &options, |row| row.record.slot.to_string())?;
        Ok(ctx.read(index, &page.rows)?.next_token(page.next_token.as_deref()))
    })
    .await
}

/// The slot that a path names: `namespace/job.group[index]/task`.
fn slot(ctx: &Ctx) -> Result<SlotKey, HttpError> {
    let text = ctx.param("slot");
    text.parse().map_err(|_| {
        HttpError::bad_request(format_args!(
            "{text:?} is not the name of a slot: it has the form namespace/job.group[index]/task"
        ))
    })
}

pub(crate) async fn get(ctx: Ctx) -> Result<Reply, HttpError> {
    let slot = slot(&ctx)?;
    let (record, index, state) =
        ctx.watch_object(Table::RemoteTasks, &slot, |s| s.remote_task(&slot).cloned(), |r| r.modify_index).await?;
    let record = record.ok_or_else(|| HttpError::not_found("remote task not found").read_at(index))?;
    ctx.read(index, &view(&state, &record, &ctx.server().config().times()))
}

/// What lives at the providers in this cluster's name and is in no record; with `sweep=true` after looking anew.
/// With `all_owners=true` what other clusters have there comes with it.
pub(crate) async fn unbound(ctx: Ctx) -> Result<Reply, HttpError> {
    let (anew, all_owners) = (ctx.query.flag("sweep")?, ctx.query.flag("all_owners")?);
    let mut sweeps = if anew { ctx.server().sweep_remote().await } else { ctx.server().remote_sweeps() };
    if anew && all_owners {
        sweeps = ctx.server().sweep_all_owners().await;
    }
    for sweep in &mut sweeps {
        if !all_owners {
            (sweep.others, sweep.others_error) = (Vec::new(), String::new());
        }
        sweep.unbound.iter_mut().chain(&mut sweep.others).for_each(|instance| instance.handle = None);
    }
    ctx.plain(&sweeps)
}

/// The instance that a request names; `owner` where it belongs to another cluster, `provider` where several list
/// its key.
fn which(ctx: &Ctx) -> Which {
    let given = |name| Some(ctx.query.text(name)).filter(|text| !text.is_empty()).map(str::to_owned);
    Which { key: ctx.param("key").to_owned(), owner: given("owner"), provider: given("provider") }
}

/// Takes an instance that no record knows for what its slot's job wants.
pub(crate) async fn adopt(ctx: Ctx) -> Result<Reply, HttpError> {
    let Adopted { index, kept } = ctx.server().adopt_remote(&which(&ctx)).await?;
    ctx.written(index, &RemoteAdopted { index, kept })
}

/// Orders the stop of an instance that no record knows.
pub(crate) async fn stop_unbound(ctx: Ctx) -> Result<Reply, HttpError> {
    let index = ctx.server().stop_unbound_remote(&which(&ctx)).await?;
    ctx.written(index, &IndexResponse { index })
}

/// Reports an unbound instance no more.
pub(crate) async fn forget_unbound(ctx: Ctx) -> Result<Reply, HttpError> {
    ctx.server().forget_unbound_remote(ctx.param("key"))?;
    let index = ctx.server().snapshot().latest_index();
    ctx.written(index, &IndexResponse { index })
}

/// Gives up a record although the absence of its instance is not confirmed.
pub(crate) async fn forget(ctx: Ctx) -> Result<Reply, HttpError> {
    let index = ctx.server().forget_remote(slot(&ctx)?).await?;
    ctx.written(index, &IndexResponse { index })
}

/// Declares that no instance exists: the way out when the provider cannot tell.
pub(crate) async fn gone(ctx: Ctx) -> Result<Reply, HttpError> {
    let index = ctx.server().declare_remote_gone(slot(&ctx)?).await?;
    ctx.written(index, &IndexResponse { index })
}

/// Stops the instance; another one of the same specification follows.
pub(crate) async fn restart(ctx: Ctx) -> Result<Reply, HttpError> {
    let index = ctx.server().restart_remote(slot(&ctx)?).await?;
    ctx.written(index, &IndexResponse { index })
}

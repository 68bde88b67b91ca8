//! Scaling policies: what autoscalers read of jobs.

use access::Need;
use api::{
    paging::page,
    shapes::{ScalingPolicyDetail, ScalingPolicyStub},
};
use model::{Job, job::Scaling, scaling::policies};
use server::Watched;
use state::{State, Table};

use crate::{
    needs::LISTS_SCALING as SCALING,
    reply::{HttpError, Reply},
    request::Ctx,
};

/// The policies in the state. A policy is part of its job: purging the job forgets it.
fn all(state: &State) -> impl Iterator<Item = (&Job, &Scaling)> {
    state.jobs().flat_map(|job| policies(job).map(move |policy| (&**job, policy)))
}

pub(crate) async fn list(ctx: Ctx) -> Result<Reply, HttpError> {
    let options = ctx.list_options()?;
    let (state, index) = ctx.watch_table(Table::Jobs).await?;
    let (job, kind) = (ctx.query.text("job"), ctx.query.text("type"));
    let visible = SCALING.map(|all_of| {
        ctx.visible_where(&state, ctx.query.namespace(), |namespace| Need::NamespaceAll { namespace, all_of })
    });
    let wanted = |(of, policy): &(&Job, &Scaling)| {
        visible.iter().any(|visible| visible.shows(&of.namespace))
            && (job.is_empty() || of.id == *job)
            && policy.kind.starts_with(kind)
            && policy.id.starts_with(&options.prefix)
    };
    let stubs = all(&state).filter(wanted).map(|(_, policy)| ScalingPolicyStub {
        id: policy.id.clone(),
        enabled: policy.enabled != Some(false),
        kind: policy.kind.clone(),
        target: policy.target.clone(),
        create_index: policy.create_index,
        modify_index: policy.modify_index,
    });
    let page = page(stubs, &options, |stub| stub.id.clone())?;
    Ok(ctx.read(index, &page.rows)?.next_token(page.next_token.as_deref()))
}

pub(crate) async fn get(ctx: Ctx) -> Result<Reply, HttpError> {
    let id = ctx.param("id").to_owned();
    let find = |state: &State| all(state).find(|(_, policy)| policy.id == id).map(|(_, policy)| policy.clone());
    let index_of = |state: &State| find(state).map_or_else(|| state.index(Table::Jobs), |policy| policy.modify_index);
    // It changes with its job.
    let watched = |state: &State| match all(state).find(|(_, policy)| policy.id == id) {
        Some((job, _)) => Watched::object(Table::Jobs, &job.key()),
        None => Watched::table(Table::Jobs),
    };
    let state = ctx.watch(watched, index_of).await?;
    let (policy, index) = (find(&state), index_of(&state));
    let policy = policy.ok_or_else(|| HttpError::not_found("policy not found").read_at(index))?;
    ctx.read(
        index,
        &ScalingPolicyDetail {
            id: policy.id,
            kind: policy.kind,
            target: policy.target,
            policy: policy.policy,
            min: policy.min.unwrap_or(0),
            max: policy.max.unwrap_or(0),
            enabled: policy.enabled != Some(false),
            create_index: policy.create_index,
            modify_index: policy.modify_index,
        },
    )
}

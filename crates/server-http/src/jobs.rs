//! Reading jobs.

use std::{collections::BTreeMap, sync::Arc};

use api::{
    With,
    paging::cut,
    shapes::{
        AllocListStub, EvalDetail, GroupScaleStatus, JobDetail, JobExtra, JobListStub, JobScaleStatus, JobSummary,
        JobVersions, eval_detail,
    },
};
use model::{Allocation, Job, job::job_status, records::JobChildren};
use state::{State, Table, TableSet};

use crate::{
    caller::LISTS_JOBS,
    pages, remote,
    reply::{HttpError, Reply},
    request::Ctx,
};

pub(crate) async fn list(ctx: Ctx) -> Result<Reply, HttpError> {
    list_where(ctx, |_| true).await
}

/// The list of those jobs that `wanted` keeps.
pub(crate) async fn list_where(ctx: Ctx, wanted: impl Fn(&Job) -> bool + Send + 'static) -> Result<Reply, HttpError> {
    let options = ctx.list_options()?;
    let with_meta = ctx.query.bool("meta")?;
    let tables = TableSet::from_iter([Table::Jobs, Table::JobSummaries]);
    let (state, index) = ctx.watch_tables(tables).await?;
    let visible = ctx.visible(&state, LISTS_JOBS);
    ctx.beside(move |ctx| {
        let page = pages::of_jobs(&state, &options, &visible, wanted)?;
        let stubs: Vec<JobListStub> = page.rows.iter().map(|job| stub(&state, job, with_meta)).collect();
        Ok(ctx.read(index, &stubs)?.next_token(page.next_token.as_deref()))
    })
    .await
}

fn stub(state: &State, job: &Job, with_meta: bool) -> JobListStub {
    let key = job.key();
    let unmanaged = state.remote_tasks_by_job(&key).filter(|r| r.stands() && r.manager.is_none()).count();
    JobListStub {
        id: job.id.clone(),
        parent_id: job.parent_id.clone(),
        name: job.name.clone(),
        namespace: job.namespace.clone(),
        datacenters: job.datacenters.clone(),
        node_pool: job.node_pool.clone(),
        kind: job.kind.clone(),
        priority: job.priority,
        periodic: job.periodic.is_some(),
        parameterized_job: job.parameterized_job.is_some() && !job.dispatched,
        stop: job.stop,
        status: job.status.clone(),
        status_description: job.status_description.clone(),
        job_summary: state.job_summary(&key).map(|s| summary_view(state, s)),
        version: job.version,
        create_index: job.create_index,
        modify_index: job.modify_index,
        job_modify_index: job.job_modify_index,
        submit_time: job.submit_time,
        meta: with_meta.then(|| job.meta.clone()),
        unmanaged: u32::try_from(unmanaged).unwrap_or(u32::MAX),
        deploying: state.latest_deployment(&key).is_some_and(|d| d.status.active()),
    }
}

/// The jobs made from one, by their status.
fn children(state: &State, s: &JobSummary) -> JobChildren {
    let mut counts = JobChildren::default();
    let key = model::JobKey::new(s.namespace.clone(), s.job_id.clone());
    if !state.job(&key).is_some_and(|job| job.is_template()) {
        return counts;
    }
    let beginning = format!("{}/", s.job_id);
    for child in state.jobs_in(&s.namespace, &beginning).filter(|job| job.parent_id == s.job_id.as_str()) {
        match child.status.as_str() {
            job_status::PENDING => counts.pending += 1,
            job_status::RUNNING => counts.running += 1,
            _ => counts.dead += 1,
        }
    }
    counts
}

/// What is unmanaged runs: it neither waits for room nor is lost.
fn summary_view(state: &State, s: &JobSummary) -> JobSummary {
    let mut view = JobSummary { children: Some(children(state, s)), last_launch: 0, ..s.clone() };
    for (name, remote) in state.unmanaged(&model::JobKey::new(s.namespace.clone(), s.job_id.clone())) {
        if let Some(group) = view.summary.get_mut(&name) {
            group.queued = (group.queued - remote.running).max(0);
            group.running += remote.running;
            group.lost = (group.lost - remote.kept).max(0);
        }
    }
    view
}

pub(crate) fn not_found() -> HttpError {
    HttpError::not_found("job not found")
}

pub(crate) async fn get(ctx: Ctx) -> Result<Reply, HttpError> {
    let key = ctx.job_key();
    let (job, index, state) = ctx.watch_object(Table::Jobs, &key, |s| s.job(&key).cloned(), |j| j.modify_index).await?;
    let job = job.ok_or_else(|| not_found().read_at(index))?;
    let times = ctx.server().config().times();
    let remote_tasks = state.remote_tasks_by_job(&key).map(|r| remote::view(&state, r, &times)).collect();
    let detail: JobDetail = With::new(job, JobExtra { remote_tasks });
    ctx.read(index, &detail)
}

pub(crate) async fn summary(ctx: Ctx) -> Result<Reply, HttpError> {
    let key = ctx.job_key();
    let (summary, index, state) =
        ctx.watch_object(Table::JobSummaries, &key, |s| s.job_summary(&key).cloned(), |s| s.modify_index).await?;
    let summary = summary.ok_or_else(|| not_found().read_at(index))?;
    ctx.read(index, &summary_view(&state, &summary))
}

/// Allocations and deployments of the job that has the name now; with `all=true` also of earlier ones.
fn created_index(state: &State, ctx: &Ctx) -> Result<Option<u64>, HttpError> {
    Ok(if ctx.query.bool("all")? { None } else { state.job(&ctx.job_key()).map(|j| j.create_index) })
}

pub(crate) async fn allocations(ctx: Ctx) -> Result<Reply, HttpError> {
    let key = ctx.job_key();
    let task_states = ctx.query.bool_or("task_states", true)?;
    let options = ctx.list_options()?;
    let (state, index) = ctx.watch_table(Table::Allocs).await?;
    let created = created_index(&state, &ctx)?;
    // An allocation belongs to the job in the incarnation that it was placed for.
    let current = move |a: &Allocation| created.is_none_or(|c| a.job.as_ref().is_none_or(|j| j.create_index == c));
    ctx.beside(move |ctx| {
        let allocs = state.allocs_by_job(&key).filter(|a| current(a));
        let stub = |a: &Arc<Allocation>| AllocListStub::new(a, false, task_states);
        if options.whole() {
            return ctx.read(index, &allocs.map(stub).collect::<Vec<_>>());
        }
        // Ours: filters and pages, in the order of the list of all allocations. A stock server gives everything.
        let mut allocs: Vec<_> = allocs.collect();
        // The order of the ids is that of their texts, which cost more.
        allocs.sort_unstable_by_key(|a| (a.create_index, a.id));
        if options.reverse {
            allocs.reverse();
        }
        let page = cut(allocs, &options, |a| (a.create_index, a.id.to_string()))?;
        let stubs: Vec<_> = page.rows.into_iter().map(stub).collect();
        Ok(ctx.read(index, &stubs)?.next_token(page.next_token.as_deref()))
    })
    .await
}

pub(crate) async fn evaluations(ctx: Ctx) -> Result<Reply, HttpError> {
    let key = ctx.job_key();
    let (state, index) = ctx.watch_table(Table::Evals).await?;
    let mut evals: Vec<EvalDetail> = state.evals_by_job(&key).map(eval_detail).collect();
    // Newest first, as people look for the last one.
    evals.sort_by_key(|e| std::cmp::Reverse((e.create_index, e.id)));
    ctx.read(index, &evals)
}

pub(crate) async fn deployments(ctx: Ctx) -> Result<Reply, HttpError> {
    let key = ctx.job_key();
    let (state, index) = ctx.watch_table(Table::Deployments).await?;
    let created = created_index(&state, &ctx)?;
    let list: Vec<_> =
        state.deployments_by_job(&key).filter(|d| created.is_none_or(|c| d.job_create_index == c)).cloned().collect();
    ctx.read(index, &list)
}

pub(crate) async fn latest_deployment(ctx: Ctx) -> Result<Reply, HttpError> {
    let key = ctx.job_key();
    let (deployment, index, _) =
        ctx.watch_object(Table::Deployments, &key, |s| s.latest_deployment(&key).cloned(), |d| d.modify_index).await?;
    ctx.read(index, &deployment)
}

pub(crate) async fn versions(ctx: Ctx) -> Result<Reply, HttpError> {
    let key = ctx.job_key();
    let diffs = ctx.query.bool("diffs")?;
    let against: Option<u64> = ctx.query.number("diff_version")?;
    let tag = ctx.query.text("diff_tag");
    if against.is_some() && !tag.is_empty() {
        return Err(HttpError::bad_request("diff_version and diff_tag name two versions: leave one of them out"));
    }
    let (state, index) = ctx.watch_table(Table::JobVersions).await?;
    let versions: Vec<Arc<Job>> = state.job_versions(&key).cloned().collect();
    if versions.is_empty() {
        return Err(HttpError::not_found("job versions not found").read_at(index));
    }
    let diffs = if diffs {
        let tagged = |job: &&Arc<Job>| job.version_tag.as_ref().is_some_and(|of| of.name == tag);
        let base = match against {
            None if !tag.is_empty() => Some(
                versions
                    .iter()
                    .find(tagged)
                    .ok_or_else(|| HttpError::internal(format_args!("tag {tag:?} not found")))?,
            ),
            None => None,
            Some(v) => Some(
                state.job_version(&key, v).ok_or_else(|| HttpError::internal(format_args!("version {v} not found")))?,
            ),
        };
        let pairs: Vec<(&Job, &Job)> = match base {
            Some(base) => versions.iter().map(|v| (&**base, &**v)).collect(),
            None => versions.windows(2).map(|w| (&*w[1], &*w[0])).collect(),
        };
        pairs.into_iter().map(|(old, new)| model::diff::diff(Some(old), Some(new), false)).collect()
    } else {
        Vec::new()
    };
    ctx.read(index, &JobVersions { versions, diffs })
}

pub(crate) async fn submission(ctx: Ctx) -> Result<Reply, HttpError> {
    let key = ctx.job_key();
    let asked: Option<u64> = ctx.query.number("version")?;
    let find = |s: &State| {
        let version = asked.or_else(|| s.job(&key).map(|j| j.version))?;
        s.job_submission(&key, version).cloned()
    };
    let (state, index) = ctx.watch_table(Table::JobSubmissions).await?;
    let s = find(&state).ok_or_else(|| HttpError::not_found("job source not found").read_at(index))?;
    ctx.read(index, &*s)
}

pub(crate) async fn scale_status(ctx: Ctx) -> Result<Reply, HttpError> {
    let key = ctx.job_key();
    let tables = TableSet::from_iter([Table::Jobs, Table::Allocs, Table::Deployments, Table::ScalingEvents]);
    let (state, index) = ctx.watch_tables(tables).await?;
    let job = state.job(&key).ok_or_else(|| not_found().read_at(index))?;
    let events =
        |group: &Arc<str>| state.scaling_events(&key).and_then(|e| e.events.get(group)).cloned().unwrap_or_default();
    let mut groups: BTreeMap<Arc<str>, GroupScaleStatus> = job
        .task_groups
        .iter()
        .map(|g| {
            (
                g.name.clone(),
                GroupScaleStatus {
                    desired: i64::from(g.count()),
                    events: events(&g.name),
                    ..GroupScaleStatus::default()
                },
            )
        })
        .collect();
    // A canary is beside what the group has.
    for alloc in
        state.allocs_by_job(&key).filter(|a| !a.terminal() && !a.deployment_status.as_ref().is_some_and(|d| d.canary))
    {
        let Some(group) = groups.get_mut(&alloc.task_group) else {
            continue;
        };
        group.placed += 1;
        group.running += i64::from(alloc.client_status == model::ClientStatus::Running);
        match alloc.healthy() {
            Some(true) => group.healthy += 1,
            Some(false) => group.unhealthy += 1,
            None => {}
        }
    }
    ctx.read(
        index,
        &JobScaleStatus {
            job_id: job.id.clone(),
            namespace: job.namespace.clone(),
            job_create_index: job.create_index,
            job_modify_index: job.modify_index,
            job_stopped: job.stop,
            task_groups: groups,
        },
    )
}

/// The commands that the job's tasks offer.
pub(crate) async fn actions(ctx: Ctx) -> Result<Reply, HttpError> {
    #[derive(serde::Serialize)]
    #[serde(rename_all = "PascalCase")]
    struct JobAction<'a> {
        name: &'a str,
        command: &'a str,
        args: &'a [String],
        task_name: &'a str,
        task_group_name: &'a str,
    }
    let key = ctx.job_key();
    let (job, index, _) = ctx.watch_object(Table::Jobs, &key, |s| s.job(&key).cloned(), |j| j.modify_index).await?;
    let job = job.ok_or_else(|| not_found().read_at(index))?;
    let actions: Vec<JobAction<'_>> = job
        .task_groups
        .iter()
        .flat_map(|g| g.tasks.iter().map(move |t| (g, t)))
        .flat_map(|(g, t)| {
            t.actions.iter().map(move |a| JobAction {
                name: &a.name,
                command: &a.command,
                args: &a.args,
                task_name: &t.name,
                task_group_name: &g.name,
            })
        })
        .collect();
    ctx.read(index, &actions)
}

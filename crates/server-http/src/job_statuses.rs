//! How jobs are at one look: `/v1/jobs/statuses`, the one that changed last first.

use std::{
    cmp::Reverse,
    collections::HashSet,
    sync::{Arc, Mutex, PoisonError},
};

use access::Need;
use api::{
    paging::{Page, PageError, cut},
    query::ListOptions,
    shapes::{JobStatusAlloc, JobStatusDeployment, JobStatusRow, JobStatusesRequest},
};
use model::{Allocation, Job, JobKey, Namespace};
use server::Watched;
use state::{DEFAULT_NAMESPACE, State, Table, TableSet};

use crate::{
    caller::{READS_JOBS, Unchecked, Visible},
    reply::{HttpError, Reply},
    request::decoded,
};

/// The path: the only read whose body says what is asked for.
pub(crate) const PATTERN: &str = "/v1/jobs/statuses";

/// What decides an answer.
const TABLES: [Table; 3] = [Table::Jobs, Table::Allocs, Table::Deployments];

/// Which jobs an answer is about.
struct Asked {
    /// These; None = all.
    named: Option<HashSet<JobKey>>,
    children: bool,
    options: ListOptions,
}

pub(crate) async fn read(ctx: Unchecked) -> Result<Reply, HttpError> {
    let body = ctx.said().bytes().await?;
    let request: Option<JobStatusesRequest> = if body.is_empty() { None } else { Some(decoded(&body)?) };
    let mut options = ctx.said().list_options()?;
    // The list as it stands is the one that runs backwards: what changed last is wanted first.
    options.reverse = !options.reverse;
    let children = ctx.said().query.bool("include_children")? || request.as_ref().is_some_and(|r| r.include_children);
    let named = request.map(|request| request.jobs.into_iter().map(key).collect::<HashSet<JobKey>>());
    let requested = ctx.said().query.namespace();
    let some = named.as_ref().is_some_and(|named| !named.is_empty());
    let wanted = if some { Namespace::from("*") } else { requested };
    let ctx = match &named {
        None => ctx.check(&reads(wanted.as_str()))?,
        Some(keys) if keys.is_empty() => {
            ctx.check(&reads(wanted.as_str()))?;
            return Err(HttpError::bad_request("no jobs in request body: name some in Jobs, or send no body"));
        }
        Some(keys) => ctx.filtering(|caller| keys.iter().any(|key| caller.may(&reads(key.namespace.as_str()))))?,
    };
    let asked = Asked { named, children, options };
    let tables = TableSet::from_iter(TABLES);
    let visible = ctx.visible_where(&ctx.server().snapshot(), wanted.clone(), reads);
    let page = Remembered::default();
    ctx.watch(|_| Watched::Tables(tables), |state| page.index(state, &asked, &visible)).await.map(drop)?;
    ctx.beside(move |ctx| {
        let state = ctx.server().snapshot();
        let visible = ctx.visible_where(&state, wanted, reads);
        let page = page_of(&state, &asked, &visible)?;
        let index = index_of(&state, page.rows.iter().map(|job| job.key()));
        let rows: Vec<JobStatusRow> = page.rows.iter().map(|job| row(&state, job)).collect();
        Ok(ctx.read(index, &rows)?.next_token(page.next_token.as_deref()))
    })
    .await
}

fn reads(namespace: &str) -> Need<'_> {
    Need::Namespace { namespace, any_of: READS_JOBS }
}

fn key(named: api::shapes::NamedJob) -> JobKey {
    match named.namespace.is_empty() {
        true => JobKey::new(DEFAULT_NAMESPACE, named.id),
        false => JobKey::new(named.namespace, named.id),
    }
}

/// The jobs of a page.
fn page_of<'s>(state: &'s State, asked: &Asked, visible: &Visible) -> Result<Page<&'s Arc<Job>>, PageError> {
    let wanted = |job: &&Arc<Job>| {
        visible.shows(&job.namespace)
            && (asked.children || job.parent_id.is_empty())
            && job.id.as_str().starts_with(&asked.options.prefix)
    };
    let mut jobs: Vec<&Arc<Job>> = match &asked.named {
        Some(keys) => keys.iter().filter_map(|key| state.job(key)).filter(wanted).collect(),
        None => state.jobs().filter(wanted).collect(),
    };
    let place = |job: &Arc<Job>| (job.modify_index, format!("{}.{}", job.namespace, job.id));
    match asked.options.reverse {
        true => jobs.sort_by_cached_key(|job| Reverse(place(job))),
        false => jobs.sort_by_cached_key(|job| place(job)),
    }
    cut(jobs, &asked.options, |job| place(job))
}

/// The newest change of what a page of these jobs shows. The table of jobs stands for the page itself: a job that goes,
/// or that moves to another page, changes that table and no row of the page.
fn index_of(state: &State, page: impl Iterator<Item = JobKey>) -> u64 {
    let of_job = |key: JobKey| {
        let allocs = state.allocs_by_job(&key).map(|alloc| alloc.modify_index).max();
        let deployment = state.latest_deployment(&key).map(|deployment| deployment.modify_index);
        allocs.max(deployment).unwrap_or(0)
    };
    page.map(of_job).max().unwrap_or(0).max(state.index(Table::Jobs))
}

/// The jobs of the page, as long as no job changes: a query that waits looks at its own rows only.
#[derive(Default)]
struct Remembered(Mutex<Option<(u64, Vec<JobKey>)>>);

impl Remembered {
    fn index(&self, state: &State, asked: &Asked, visible: &Visible) -> u64 {
        let mut page = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let jobs = state.index(Table::Jobs);
        if page.as_ref().is_none_or(|(at, _)| *at != jobs) {
            // A filter that fails is told with the answer.
            let keys = page_of(state, asked, visible).map(|page| page.rows.iter().map(|job| job.key()).collect());
            *page = Some((jobs, keys.unwrap_or_default()));
        }
        index_of(state, page.iter().flat_map(|(_, keys)| keys.iter().cloned()))
    }
}

fn row(state: &State, job: &Job) -> JobStatusRow {
    let (key, mut row) = (job.key(), JobStatusRow::of(job));
    row.latest_deployment = state.latest_deployment(&key).map(|deployment| JobStatusDeployment::new(deployment));
    if job.is_template() {
        let beginning = format!("{}/", job.id);
        let children = state.jobs_in(&job.namespace, &beginning).filter(|child| child.parent_id == job.id.as_str());
        row.child_statuses = Some(children.map(|child| child.status.clone()).collect());
    } else {
        // An allocation belongs to the job in the incarnation that it was placed for.
        let of_this =
            |alloc: &&Arc<Allocation>| alloc.job.as_ref().is_none_or(|placed| placed.create_index == job.create_index);
        row.allocs = state.allocs_by_job(&key).filter(of_this).map(|alloc| JobStatusAlloc::from(&**alloc)).collect();
    }
    row
}

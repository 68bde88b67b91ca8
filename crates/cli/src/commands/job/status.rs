//! `drover job status`.

use std::process::ExitCode;

use anyhow::Result;
use api::{
    call,
    shapes::{JobListStub, RemoteTaskView},
};
use futures::{StreamExt as _, TryStreamExt as _};
use model::{Allocation, ClientStatus, Evaluation, Job, records::JobChildren};
use serde_json::{Value, json};

use super::periodic;
use crate::{
    commands::{Shape, alloc_table, cause, deployment, eval, newest_first, placement, remote as remote_tasks, rolling},
    conn::Conn,
    output::{self, Table, lower},
    when,
};

/// Lists the jobs.
pub(crate) async fn list(conn: &Conn, shape: &Shape) -> Result<ExitCode> {
    let jobs = conn.ask(call::jobs()).await?;
    if shape.format.wanted() {
        let asked = jobs.iter().map(|job| collected(conn, &job.id, &job.namespace, false));
        let all: Vec<Value> = futures::stream::iter(asked).buffered(AT_ONCE).try_collect().await?;
        shape.format.print(&all)?;
        return Ok(ExitCode::SUCCESS);
    }
    let table = table(conn, &jobs);
    if table.is_empty() {
        output::line("No running jobs")
    } else {
        table.print()
    }
    Ok(ExitCode::SUCCESS)
}

/// Jobs that are asked about at once.
const AT_ONCE: usize = 8;

/// What programs read of a job: all that belongs to it in one document, as Nomad's command line has it, and the job.
async fn collected(
    conn: &Conn,
    id: impl std::fmt::Display,
    namespace: impl std::fmt::Display,
    all: bool,
) -> Result<Value> {
    let allocs = call::job_allocations(&id).with("all", all).in_namespace(&namespace).reading::<Value>();
    let mut allocs = conn.ask(allocs).await?;
    newest_first(&mut allocs);
    let mut evals = conn.ask(call::job_evaluations(&id).in_namespace(&namespace).reading::<Value>()).await?;
    newest_first(&mut evals);
    Ok(json!({
        "Summary": conn.ask(call::job_summary(&id).in_namespace(&namespace).reading::<Value>()).await?,
        "Allocations": allocs,
        "LatestDeployment": conn.ask(call::job_deployment(&id).in_namespace(&namespace).reading::<Value>()).await?,
        "Evaluations": evals,
        "Job": conn.ask(call::job(&id).in_namespace(&namespace).reading::<Value>()).await?,
    }))
}

/// Jobs as rows.
pub(crate) fn table(conn: &Conn, jobs: &[JobListStub]) -> Table {
    let several = conn.namespace() == "*";
    let namespace: &[&str] = if several { &["Namespace"] } else { &[] };
    let mut table = Table::new([&["ID"], namespace, &["Type", "Priority", "Status", "Submit Date"]].concat());
    for j in jobs {
        let status = if j.stop { format!("{} (stopped)", j.status) } else { j.status.clone() };
        let ids = [Some(j.id.to_string()), several.then(|| j.namespace.to_string())].into_iter().flatten();
        let kind = kind(&j.kind, j.periodic, j.parameterized_job);
        table.row(ids.chain([kind, j.priority.to_string(), status, when::stamp(j.submit_time)]));
    }
    table
}

/// The type of a job, and what makes jobs of it.
fn kind(kind: &str, periodic: bool, parameterized: bool) -> String {
    let periodic = if periodic { "/periodic" } else { "" };
    format!("{kind}{periodic}{}", if parameterized { "/parameterized" } else { "" })
}

/// What of a job is shown.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Parts {
    /// Only what the job itself is.
    pub(crate) short: bool,
    /// Also allocations of earlier jobs of that name.
    pub(crate) all_allocs: bool,
    /// Also evaluations.
    pub(crate) evals: bool,
}

/// Shows a job; the id is complete.
pub(crate) async fn show(conn: &Conn, shape: &Shape, id: &str, parts: Parts) -> Result<ExitCode> {
    if shape.format.wanted() {
        let all = collected(conn, id, conn.namespace(), parts.all_allocs).await?;
        shape.format.print(&[all])?;
        return Ok(ExitCode::SUCCESS);
    }
    let job = conn.ask(call::job(id)).await?;
    let remote = conn.ask(call::remote_tasks().with("job", &job.id)).await?;
    let status = match unmanaged_since(&remote) {
        _ if job.stop => format!("{} (stopped)", job.status),
        Some(since) => format!("running (unmanaged, {})", when::span(when::now_ns() - since)),
        None => job.status.clone(),
    };
    let mut rows = vec![
        ("ID", job.id.to_string()),
        ("Name", job.name.clone()),
        ("Submit Date", when::stamp(job.submit_time)),
        ("Type", job.kind.clone()),
        ("Priority", job.priority.to_string()),
        ("Datacenters", job.datacenters.join(",")),
        ("Namespace", job.namespace.to_string()),
        ("Node Pool", job.node_pool.clone()),
        ("Status", status),
        ("Periodic", job.periodic.is_some().to_string()),
        ("Parameterized", (job.parameterized_job.is_some() && !job.dispatched).to_string()),
    ];
    if let Some(next) = periodic::next_launch(&job, when::now_ns()) {
        rows.push(("Next Periodic Launch", next));
    }
    rows.push(("Version", job.version.to_string()));
    output::pairs(&rows);
    if parts.short {
        return Ok(ExitCode::SUCCESS);
    }
    let summary = conn.ask(call::job_summary(id)).await?;
    if job.is_template() {
        return children(conn, &job, summary.children.unwrap_or_default()).await;
    }
    let allocs = conn.ask(call::job_allocations(id).with("all", parts.all_allocs)).await?;
    output::heading("Summary");
    let mut table =
        Table::new(["Task Group", "Queued", "Starting", "Running", "Failed", "Complete", "Lost", "Unknown"]);
    for (group, s) in &summary.summary {
        let counts = [s.queued, s.starting, s.running, s.failed, s.complete, s.lost, s.unknown];
        table.row(std::iter::once(group.to_string()).chain(counts.iter().map(i64::to_string)));
    }
    table.print();

    let evals = conn.ask(call::job_evaluations(id)).await?;
    if shape.verbose || parts.evals {
        output::heading("Evaluations");
        evaluations(&evals, shape).print();
    }
    if let Some(failed) = placement::waiting(&evals) {
        output::heading("Placement Failure");
        for text in placement::explained(conn, failed).await {
            output::line(&text);
        }
    }
    if let Some(d) = conn.ask(call::job_deployment(id)).await?.filter(|d| !d.id.is_nil()) {
        output::heading("Latest Deployment");
        deployment::show_latest(&d, shape);
    }
    if let Some(table) = rolling::of_job(&allocs) {
        output::heading("Rolling Restarts");
        table.print();
    }
    if !remote.is_empty() {
        output::heading("Remote Tasks");
        let mut table = Table::new([
            "Group",
            "Index",
            "Task",
            "Instance",
            "Provider ID",
            "Observed",
            "Manager",
            "Epoch",
            "Guarantee",
        ]);
        for t in &remote {
            table.row([
                t.slot.group.to_string(),
                t.slot.index.to_string(),
                t.slot.task.to_string(),
                shape.id(t.incarnation),
                t.provider_id.clone(),
                remote_tasks::observed(&t.observed),
                remote_tasks::manager(t, shape),
                t.epoch.to_string(),
                t.extra.guarantee.level.to_string(),
            ]);
        }
        table.print();
    }
    if !job.stop {
        failures(conn, &job, &allocs, shape).await;
    }
    output::heading("Allocations");
    let table = alloc_table::table(&allocs, shape);
    if table.is_empty() {
        output::line("No allocations placed")
    } else {
        table.print()
    }
    Ok(ExitCode::SUCCESS)
}

fn evaluations(evals: &[Evaluation], shape: &Shape) -> Table {
    let mut table = Table::new(["ID", "Priority", "Triggered By", "Status", "Placement Failures"]);
    for e in evals {
        table.row([
            shape.id(e.id),
            e.priority.to_string(),
            lower(&e.trigger),
            lower(&e.status),
            eval::placement_failures(e),
        ]);
    }
    table
}

/// Allocations whose troubles are shown; more of the same help nobody.
const EXPLAINED: usize = 5;

/// Why allocations are not well, those that were replaced left out.
async fn failures(conn: &Conn, job: &Job, allocs: &[Allocation], shape: &Shape) {
    let mut last: Vec<&Allocation> =
        allocs.iter().filter(|a| a.next_allocation.is_nil() && a.job_version == job.version).collect();
    last.sort_by_key(|a| std::cmp::Reverse(a.create_index));
    let mut shown = 0;
    for a in last {
        let troubled = !cause::causes(a).is_empty();
        // Its node is asked about checks, so only about those that may have any trouble.
        let unwell = a.client_status == ClientStatus::Running && a.healthy() != Some(true);
        if shown == EXPLAINED || !(troubled || unwell) {
            continue;
        }
        let lines = cause::of_alloc(conn, a).await;
        if lines.is_empty() {
            continue;
        }
        if shown == 0 {
            output::heading("Failures");
        }
        shown += 1;
        for (i, text) in lines.iter().enumerate() {
            output::line(&if i == 0 {
                format!("{} ({}): {text}", shape.id(a.id), a.name)
            } else {
                format!("  {text}")
            });
        }
    }
}

/// Since when a remote task of a job runs that no node manages at present, Unix ns: the earliest.
fn unmanaged_since(tasks: &[RemoteTaskView]) -> Option<i64> {
    let runs = |t: &&RemoteTaskView| t.manager.is_none() && t.unmanaged_since > 0 && t.stands();
    tasks.iter().filter(runs).map(|t| t.unmanaged_since).min()
}

/// What was made from a parameterized or periodic job.
async fn children(conn: &Conn, job: &Job, counts: JobChildren) -> Result<ExitCode> {
    let rules = job.parameterized_job.as_ref().filter(|_| !job.dispatched);
    if let Some(rules) = rules {
        output::heading("Parameterized Job");
        output::pairs(&[
            ("Payload", rules.payload.clone()),
            ("Required Metadata", rules.meta_required.join(", ")),
            ("Optional Metadata", rules.meta_optional.join(", ")),
        ]);
    }
    let (summary, list, none) = match rules {
        Some(_) => {
            ("Parameterized Job Summary", "Dispatched Jobs", "No dispatched instances of parameterized job found")
        }
        None => ("Children Job Summary", "Previously Launched Jobs", "No instances of periodic job found"),
    };
    output::heading(summary);
    let mut table = Table::new(["Pending", "Running", "Dead"]);
    table.row([counts.pending, counts.running, counts.dead].map(|n| n.to_string()));
    table.print();
    let found = conn.ask(call::jobs().with("prefix", format!("{}/", job.id))).await?;
    let mut table = Table::new(["ID", "Status", "Submit Date"]);
    for j in found.iter().filter(|j| j.parent_id == job.id.as_str()) {
        table.row([j.id.to_string(), j.status.clone(), when::stamp(j.submit_time)]);
    }
    if table.is_empty() {
        output::line("");
        output::line(none);
    } else {
        output::heading(list);
        table.print();
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use api::shapes::RemoteExtra;
    use model::{Observed, RemoteTask, remote::Manager};

    use super::*;

    #[test]
    fn what_runs_unmanaged_is_known_by_its_longest() {
        let task = |since, observed, manager| {
            let task = RemoteTask { unmanaged_since: since, observed, manager, started_at: 1, ..RemoteTask::default() };
            RemoteTaskView::new(task.into(), RemoteExtra::default())
        };
        let tasks = [
            task(7, Observed::Running, None),
            task(5, Observed::Running, None),
            task(0, Observed::Running, Some(Manager::default())),
            task(1, Observed::Gone, None),
        ];
        assert_eq!(unmanaged_since(&tasks), Some(5));
        assert_eq!(unmanaged_since(&tasks[2..]), None);
    }
}

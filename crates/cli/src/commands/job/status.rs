//! `drover job status`.

use std::process::ExitCode;

use anyhow::Result;
use api::shapes::RemoteTaskView;
use model::{Allocation, Deployment, Evaluation, Job};
use serde_json::Value;

use super::Stub;
use crate::{
    commands::{Shape, alloc, deployment, eval::lower, monitor, remote as remote_tasks},
    conn::{Conn, encode},
    output::{self, Table},
    when,
};

/// Lists the jobs.
pub(crate) async fn list(conn: &Conn, shape: &Shape) -> Result<ExitCode> {
    if shape.json {
        return conn.print("/v1/jobs").await;
    }
    let jobs: Vec<Stub> = conn.get("/v1/jobs").await?;
    let mut table = Table::new(["ID", "Namespace", "Type", "Priority", "Status", "Submit Date"]);
    for j in &jobs {
        let status = if j.stop { format!("{} (stopped)", j.status) } else { j.status.clone() };
        table.row([j.id.clone(), j.namespace.clone(), j.kind.clone(), j.priority.to_string(), status, when::stamp(j.submit_time)]);
    }
    if table.is_empty() {
        output::line("No running jobs")
    } else {
        table.print()
    }
    Ok(ExitCode::SUCCESS)
}

/// Shows a job; the id is complete.
pub(crate) async fn show(conn: &Conn, shape: &Shape, id: &str, short: bool) -> Result<ExitCode> {
    let path = format!("/v1/job/{}", encode(id));
    if shape.json {
        return conn.print(&path).await;
    }
    let job: Job = conn.get(&path).await?;
    let status = if job.stop { format!("{} (stopped)", job.status) } else { job.status.clone() };
    output::pairs(&[
        ("ID", job.id.to_string()),
        ("Name", job.name.clone()),
        ("Submit Date", when::stamp(job.submit_time)),
        ("Type", job.kind.clone()),
        ("Priority", job.priority.to_string()),
        ("Datacenters", job.datacenters.join(",")),
        ("Namespace", job.namespace.to_string()),
        ("Node Pool", job.node_pool.clone()),
        ("Status", status),
        ("Version", job.version.to_string()),
    ]);
    if short {
        return Ok(ExitCode::SUCCESS);
    }
    let summary: Value = conn.get(&format!("{path}/summary")).await?;
    if job.is_template() {
        return children(conn, &job, &summary["Children"]).await;
    }
    output::heading("Summary");
    let mut table = Table::new(["Task Group", "Queued", "Starting", "Running", "Failed", "Complete", "Lost", "Unknown"]);
    for (group, s) in summary["Summary"].as_object().into_iter().flatten() {
        let n = |k: &str| s[k].as_u64().unwrap_or(0).to_string();
        table.row([group.clone(), n("Queued"), n("Starting"), n("Running"), n("Failed"), n("Complete"), n("Lost"), n("Unknown")]);
    }
    table.print();

    let evals: Vec<Evaluation> = conn.get(&format!("{path}/evaluations")).await?;
    if let Some(blocked) = evals.iter().find(|e| e.status == model::EvalStatus::Blocked && !e.failed_groups.is_empty()) {
        output::heading("Placement Failure");
        for (group, metric) in &blocked.failed_groups {
            for text in monitor::placement_failure(group, metric) {
                output::line(&text);
            }
        }
    }
    let deployment: Option<Deployment> = conn.get(&format!("{path}/deployment")).await?;
    if let Some(d) = deployment.filter(|d| !d.id.is_nil()) {
        output::heading("Latest Deployment");
        deployment::show(&d, shape);
    }
    let remote: Vec<RemoteTaskView> = conn.get(&format!("/v1/remote/tasks?job={}", encode(job.id.as_str()))).await?;
    if !remote.is_empty() {
        output::heading("Remote Tasks");
        let mut table = Table::new(["Group", "Index", "Task", "Instance", "Provider ID", "Observed", "Manager", "Epoch", "Guarantee"]);
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
    let allocs: Vec<Allocation> = conn.get(&format!("{path}/allocations")).await?;
    output::heading("Allocations");
    let table = alloc::table(&allocs, shape);
    if table.is_empty() {
        output::line("No allocations placed")
    } else {
        table.print()
    }
    if shape.verbose {
        output::heading("Evaluations");
        let mut table = Table::new(["ID", "Priority", "Triggered By", "Status", "Placement Failures"]);
        for e in &evals {
            table.row([
                shape.id(e.id),
                e.priority.to_string(),
                lower(&e.trigger),
                lower(&e.status),
                (!e.failed_groups.is_empty()).to_string(),
            ]);
        }
        table.print();
    }
    Ok(ExitCode::SUCCESS)
}

/// What was made from a parameterized job.
async fn children(conn: &Conn, job: &Job, counts: &Value) -> Result<ExitCode> {
    let rules = job.parameterized_job.clone().unwrap_or_default();
    output::heading("Parameterized Job");
    output::pairs(&[
        ("Payload", rules.payload),
        ("Required Metadata", rules.meta_required.join(", ")),
        ("Optional Metadata", rules.meta_optional.join(", ")),
    ]);
    output::heading("Parameterized Job Summary");
    let n = |k: &str| counts[k].as_u64().unwrap_or(0).to_string();
    let mut table = Table::new(["Pending", "Running", "Dead"]);
    table.row([n("Pending"), n("Running"), n("Dead")]);
    table.print();
    output::heading("Dispatched Jobs");
    let found: Vec<Stub> = conn.get(&format!("/v1/jobs?prefix={}", encode(&format!("{}/", job.id)))).await?;
    let mut table = Table::new(["ID", "Status", "Submit Date"]);
    for j in found.iter().filter(|j| j.parent_id == job.id.as_str()) {
        table.row([j.id.clone(), j.status.clone(), when::stamp(j.submit_time)]);
    }
    if table.is_empty() {
        output::line("No dispatched instances of parameterized job")
    } else {
        table.print()
    }
    Ok(ExitCode::SUCCESS)
}

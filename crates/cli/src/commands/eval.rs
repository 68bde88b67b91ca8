//! `drover eval status|list`.

use std::process::ExitCode;

use anyhow::Result;
use model::{Allocation, Evaluation};

use super::{ApiArgs, Page, Shape, find_by_prefix};
use crate::{
    conn::Conn,
    output::{self, Table},
    when,
};

/// Verbs.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// List evaluations
    List {
        #[command(flatten)]
        api: ApiArgs,
        #[command(flatten)]
        shape: Shape,
        #[command(flatten)]
        page: Page,
        /// Only those of a job
        #[arg(long)]
        job: Option<String>,
        /// Only those in a status: pending, blocked, complete, failed, canceled
        #[arg(long)]
        status: Option<String>,
    },
    /// Show one evaluation, or follow it to its end
    Status {
        #[command(flatten)]
        api: ApiArgs,
        #[command(flatten)]
        shape: Shape,
        /// Follow it until it has ended
        #[arg(long)]
        monitor: bool,
        /// The evaluation; without one, all are listed
        id: Option<String>,
    },
}

/// Runs a verb.
pub(crate) async fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::List { api, shape, page, job, status } => list(&api.conn()?, &shape, &page, job.as_deref(), status.as_deref()).await,
        Command::Status { api, shape, id: None, .. } => list(&api.conn()?, &shape, &Page::default(), None, None).await,
        Command::Status { api, shape, id: Some(id), monitor } => {
            let conn = api.conn()?;
            let eval = find(&conn, &id).await?;
            if monitor {
                return super::monitor::follow(&conn, eval.id, &shape).await;
            }
            show(&conn, &shape, eval.id.to_string()).await
        }
    }
}

/// The evaluation that begins with a prefix.
pub(crate) async fn find(conn: &Conn, prefix: &str) -> Result<Evaluation> {
    // In full: what people are to do is give more of an id.
    let shape = Shape { verbose: true, ..Shape::default() };
    find_by_prefix(conn, "/v1/evaluations", prefix, "evaluation", |e: &Evaluation| e.id.to_string(), |all| table(&all, &shape)).await
}

/// A unit enum's wire name.
pub(crate) fn lower<T: serde::Serialize>(value: &T) -> String {
    serde_json::to_value(value).ok().and_then(|v| v.as_str().map(str::to_owned)).unwrap_or_default()
}

async fn list(conn: &Conn, shape: &Shape, page: &Page, job: Option<&str>, status: Option<&str>) -> Result<ExitCode> {
    let mut path = "/v1/evaluations?".to_owned();
    for (key, value) in [("job", job), ("status", status)] {
        if let Some(value) = value {
            path.push_str(&format!("{key}={}&", crate::conn::encode(value)));
        }
    }
    let path = path.trim_end_matches(['&', '?']);
    if shape.json {
        let (evals, next): (Vec<serde_json::Value>, String) = page.of(conn, path).await?;
        output::json(&evals)?;
        Page::rest(&next);
        return Ok(ExitCode::SUCCESS);
    }
    let (evals, next): (Vec<Evaluation>, String) = page.of(conn, path).await?;
    let table = table(&evals, shape);
    if table.is_empty() {
        output::line("No evaluations found")
    } else {
        table.print()
    }
    Page::rest(&next);
    Ok(ExitCode::SUCCESS)
}

/// Evaluations as rows.
fn table(evals: &[Evaluation], shape: &Shape) -> Table {
    let mut table = Table::new(["ID", "Priority", "Triggered By", "Job ID", "Namespace", "Node ID", "Status", "Placement Failures"]);
    for e in evals {
        table.row([
            shape.id(e.id),
            e.priority.to_string(),
            lower(&e.trigger),
            e.job_id.to_string(),
            e.namespace.to_string(),
            shape.id(e.node_id),
            lower(&e.status),
            (!e.failed_groups.is_empty()).to_string(),
        ]);
    }
    table
}

/// Shows an evaluation; the id is complete.
pub(crate) async fn show(conn: &Conn, shape: &Shape, id: String) -> Result<ExitCode> {
    let path = format!("/v1/evaluation/{id}");
    if shape.json {
        return conn.print(&path).await;
    }
    let eval: Evaluation = conn.get(&path).await?;
    output::pairs(&[
        ("ID", shape.id(eval.id)),
        ("Create Time", when::ago(eval.create_time, when::now_ns())),
        ("Modify Time", when::ago(eval.modify_time, when::now_ns())),
        ("Status", lower(&eval.status)),
        ("Status Description", eval.status_description.clone()),
        ("Type", eval.kind.clone()),
        ("TriggeredBy", lower(&eval.trigger)),
        ("Job ID", eval.job_id.to_string()),
        ("Namespace", eval.namespace.to_string()),
        ("Priority", eval.priority.to_string()),
        ("Placement Failures", (!eval.failed_groups.is_empty()).to_string()),
        ("Previous Eval", shape.id(eval.previous_eval)),
        ("Next Eval", shape.id(eval.next_eval)),
        ("Blocked Eval", shape.id(eval.blocked_eval)),
    ]);
    if !eval.failed_groups.is_empty() {
        output::heading("Failed Placements");
        for text in super::placement::explained(conn, &eval.failed_groups).await {
            output::line(&text);
        }
    }
    let allocs: Vec<Allocation> = conn.get(&format!("/v1/evaluation/{id}/allocations")).await?;
    if !allocs.is_empty() {
        output::heading("Allocations");
        super::alloc::table(&allocs, shape).print();
    }
    Ok(ExitCode::SUCCESS)
}

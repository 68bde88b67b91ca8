//! `drover eval delete|explain|status|list`.

use std::process::ExitCode;

use anyhow::Result;
use api::{call, shapes::EvalDeleteRequest};
use model::{EvalStatus, Evaluation};

use super::{
    ApiArgs, Page, Shape, confirm, find_by_prefix,
    pages::{Also, eval_page},
};
use crate::{
    conn::Conn,
    output::{self, Table, lower},
    when,
};

/// Verbs.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Delete evaluations with their allocations, while the broker is paused
    Delete {
        #[command(flatten)]
        api: ApiArgs,
        /// Those that pass this filter, but for what is still needed
        #[arg(long, conflicts_with = "ids")]
        filter: Option<String>,
        /// Do not ask
        #[arg(long)]
        yes: bool,
        /// Their ids, or prefixes of them
        #[arg(value_name = "ID", required_unless_present = "filter")]
        ids: Vec<String>,
    },
    /// Tell what an evaluation has decided, and why
    Explain(super::eval_explain::Args),
    /// List evaluations
    List {
        #[command(flatten)]
        api: ApiArgs,
        #[command(flatten)]
        shape: Shape,
        #[command(flatten)]
        page: Page,
        /// Only evaluations of this job
        #[arg(long)]
        job: Option<String>,
        /// Only evaluations in this status: pending, blocked, complete, failed or canceled
        #[arg(long)]
        status: Option<String>,
        #[command(flatten)]
        also: Also,
    },
    /// Show one evaluation, or follow it to its end
    Status {
        #[command(flatten)]
        api: ApiArgs,
        #[command(flatten)]
        shape: Shape,
        /// Follow it to its end
        #[arg(long)]
        monitor: bool,
        #[command(flatten)]
        also: Also,
        /// Evaluation id or its prefix; default: list all
        id: Option<String>,
    },
}

/// Runs a verb.
pub(crate) async fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::Delete { api, filter, yes, ids } => delete(&api.conn()?, filter, &ids, yes).await,
        Command::Explain(args) => super::eval_explain::run(args).await,
        Command::List { api, shape, page, job, status, also } => {
            let conn = api.conn()?;
            also.open(&conn, "evaluations").await;
            list(&conn, &shape, &page, job.as_deref(), status.as_deref()).await
        }
        Command::Status { api, shape, id: None, also, .. } => {
            let conn = api.conn()?;
            also.open(&conn, "evaluations").await;
            list(&conn, &shape, &Page::default(), None, None).await
        }
        Command::Status { api, shape, id: Some(id), monitor, also } => {
            let conn = api.conn()?;
            let eval = find(&conn, &id).await?;
            also.open(&conn, &eval_page(&eval.id.to_string())).await;
            if monitor {
                return super::monitor::follow(&conn, eval.id, &shape).await;
            }
            show(&conn, &shape, eval.id.to_string()).await
        }
    }
}

/// Deletes evaluations after it has asked.
async fn delete(conn: &Conn, filter: Option<String>, ids: &[String], yes: bool) -> Result<ExitCode> {
    let mut request = EvalDeleteRequest { filter: filter.unwrap_or_default(), ..EvalDeleteRequest::default() };
    for id in ids {
        request.eval_ids.push(find(conn, id).await?.id.to_string());
    }
    let count = match request.eval_ids.len() {
        0 => conn.ask(call::eval_count().with("filter", &request.filter).in_namespace("*")).await?.count,
        named => named,
    };
    if count == 0 {
        output::line("No evaluation passes the filter");
        return Ok(ExitCode::SUCCESS);
    }
    if !yes && !confirm(&format!("Are you sure you want to delete {}?", evaluations(count)))? {
        output::line("Cancelled: nothing is deleted");
        return Ok(ExitCode::SUCCESS);
    }
    let done = conn.ask(call::evals_delete(&request)).await?;
    output::line(&format!("Successfully deleted {}", evaluations(done.count)));
    if done.count < count {
        output::line(&format!(
            "{} stay: they are still needed, or others were faster",
            evaluations(count - done.count)
        ));
    }
    Ok(ExitCode::SUCCESS)
}

fn evaluations(count: usize) -> String {
    match count {
        1 => "1 evaluation".to_owned(),
        _ => format!("{count} evaluations"),
    }
}

/// The evaluation that begins with a prefix.
pub(crate) async fn find(conn: &Conn, prefix: &str) -> Result<Evaluation> {
    // In full: what people are to do is give more of an id.
    let shape = Shape { verbose: true, ..Shape::default() };
    find_by_prefix(
        conn,
        call::evals(),
        prefix,
        "evaluation",
        |e: &Evaluation| e.id.to_string(),
        |all| table(&all, &shape),
    )
    .await
}

async fn list(conn: &Conn, shape: &Shape, page: &Page, job: Option<&str>, status: Option<&str>) -> Result<ExitCode> {
    // The newest first.
    let evals = call::evals().with_some("job", job).with_some("status", status).with("reverse", true);
    if shape.format.wanted() {
        Page::rest(&page.show(conn, &shape.format, evals).await?);
        return Ok(ExitCode::SUCCESS);
    }
    let (evals, next) = page.of(conn, evals).await?;
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
    let mut table = Table::new([
        "ID",
        "Priority",
        "Triggered By",
        "Job ID",
        "Namespace",
        "Node ID",
        "Status",
        "Placement Failures",
    ]);
    for e in evals {
        table.row([
            shape.id(e.id),
            e.priority.to_string(),
            lower(&e.trigger),
            e.job_id.to_string(),
            e.namespace.to_string(),
            shape.id(e.node_id),
            lower(&e.status),
            placement_failures(e),
        ]);
    }
    table
}

/// Whether something could not be placed, as far as it is known.
pub(crate) fn placement_failures(eval: &Evaluation) -> String {
    match eval.status {
        EvalStatus::Blocked => "N/A - In Progress".to_owned(),
        _ => (!eval.failed_groups.is_empty()).to_string(),
    }
}

/// Shows an evaluation; the id is complete.
pub(crate) async fn show(conn: &Conn, shape: &Shape, id: String) -> Result<ExitCode> {
    if shape.format.wanted() {
        return conn.show(&shape.format, call::eval(id)).await;
    }
    let eval = conn.ask(call::eval(&id)).await?;
    let time = |ns| if shape.verbose { when::stamp(ns) } else { when::ago(ns, when::now_ns()) };
    let described = Some(&eval.status_description).filter(|text| !text.is_empty()).cloned();
    output::pairs(&[
        ("ID", shape.id(eval.id)),
        ("Create Time", time(eval.create_time)),
        ("Modify Time", time(eval.modify_time)),
        ("Status", lower(&eval.status)),
        ("Status Description", described.unwrap_or_else(|| lower(&eval.status))),
        ("Type", eval.kind.clone()),
        ("TriggeredBy", lower(&eval.trigger)),
        ("Job ID", eval.job_id.to_string()),
        ("Namespace", eval.namespace.to_string()),
        ("Priority", eval.priority.to_string()),
        ("Placement Failures", placement_failures(&eval)),
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
    let allocs = conn.ask(call::eval_allocations(&id)).await?;
    if !allocs.is_empty() {
        output::heading("Allocations");
        super::alloc_table::table(&allocs, shape).print();
    }
    Ok(ExitCode::SUCCESS)
}

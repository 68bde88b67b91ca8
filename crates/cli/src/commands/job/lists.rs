//! `drover job allocs|deployments|scaling-events`.

use std::process::ExitCode;

use anyhow::Result;
use api::call;
use serde_json::Value;

use super::common::find;
use crate::{
    commands::{ApiArgs, Shape, alloc_table, deployment, newest_first},
    output::{self, Table},
    when,
};

/// Arguments of `job allocs`.
#[derive(Debug, clap::Args)]
pub(crate) struct Allocs {
    #[command(flatten)]
    api: ApiArgs,
    #[command(flatten)]
    shape: Shape,
    /// Include those of earlier jobs with the same name
    #[arg(long)]
    all: bool,
    /// The job
    id: String,
}

/// Arguments of `job deployments`.
#[derive(Debug, clap::Args)]
pub(crate) struct Deployments {
    #[command(flatten)]
    api: ApiArgs,
    #[command(flatten)]
    shape: Shape,
    /// Show only the latest deployment
    #[arg(long)]
    latest: bool,
    /// Include those of earlier jobs with the same name
    #[arg(long)]
    all: bool,
    /// The job
    id: String,
}

/// Arguments of `job scaling-events`.
#[derive(Debug, clap::Args)]
pub(crate) struct ScalingEvents {
    #[command(flatten)]
    api: ApiArgs,
    /// Include messages, errors and evaluations
    #[arg(long)]
    verbose: bool,
    /// The job
    id: String,
}

/// Lists a job's allocations.
pub(crate) async fn allocs(args: Allocs) -> Result<ExitCode> {
    let conn = args.api.conn()?;
    let (conn, id) = find(&conn, &args.id).await?;
    let all = call::job_allocations(&id).with("all", args.all);
    if args.shape.format.wanted() {
        let mut all = conn.ask(all.reading::<Value>()).await?;
        newest_first(&mut all);
        args.shape.format.print(&all)?;
        return Ok(ExitCode::SUCCESS);
    }
    let all = conn.ask(all).await?;
    if all.is_empty() {
        output::line("No allocations placed");
    } else {
        alloc_table::table(&all, &args.shape).print();
    }
    Ok(ExitCode::SUCCESS)
}

/// Lists a job's deployments, or shows the latest.
pub(crate) async fn deployments(args: Deployments) -> Result<ExitCode> {
    let conn = args.api.conn()?;
    let (conn, id) = find(&conn, &args.id).await?;
    let all = call::job_deployments(&id).with("all", args.all);
    if args.shape.format.wanted() {
        let mut found = match args.latest {
            true => conn.ask(call::job_deployment(&id).reading::<Value>()).await?,
            false => conn.ask(all.reading::<Value>()).await?,
        };
        newest_first(&mut found);
        args.shape.format.print(&found)?;
        return Ok(ExitCode::SUCCESS);
    }
    if !args.latest {
        deployment::table(conn.ask(all).await?, &args.shape);
        return Ok(ExitCode::SUCCESS);
    }
    match conn.ask(call::job_deployment(&id)).await?.filter(|d| !d.id.is_nil()) {
        None => output::line("No deployment found"),
        Some(d) => deployment::show(&d, &args.shape),
    }
    Ok(ExitCode::SUCCESS)
}

/// Lists how a job's counts were changed, the newest change first.
pub(crate) async fn scaling_events(args: ScalingEvents) -> Result<ExitCode> {
    let conn = args.api.conn()?;
    let (conn, id) = find(&conn, &args.id).await?;
    let status = conn.ask(call::job_scale_status(&id)).await?;
    let mut all: Vec<_> =
        status.task_groups.iter().flat_map(|(group, s)| s.events.iter().map(move |e| (group, e))).collect();
    all.sort_by_key(|(_, e)| std::cmp::Reverse((e.time, e.create_index)));
    if all.is_empty() {
        output::line("No events found");
        return Ok(ExitCode::SUCCESS);
    }
    let shape = Shape { verbose: true, ..Shape::default() };
    let more: &[&str] = if args.verbose { &["Error", "Message", "Eval ID"] } else { &[] };
    let mut table = Table::new([&["Task Group", "Count", "PrevCount"], more, &["Date"]].concat());
    for (group, e) in all {
        let mut row =
            vec![group.to_string(), e.count.map(|c| c.to_string()).unwrap_or_default(), e.previous_count.to_string()];
        if args.verbose {
            row.extend([e.error.to_string(), e.message.clone(), e.eval_id.map(|id| shape.id(id)).unwrap_or_default()]);
        }
        row.push(when::stamp(e.time));
        table.row(row);
    }
    table.print();
    Ok(ExitCode::SUCCESS)
}

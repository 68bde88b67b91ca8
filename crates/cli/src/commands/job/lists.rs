//! `drover job allocs|deployments|scaling-events`.

use std::process::ExitCode;

use anyhow::Result;
use api::shapes::JobScaleStatus;
use model::{Allocation, Deployment};

use super::find;
use crate::{
    commands::{ApiArgs, Shape, alloc, deployment},
    conn::encode,
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
    /// Also those of earlier jobs of that name
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
    /// Show the latest one
    #[arg(long)]
    latest: bool,
    /// Also those of earlier jobs of that name
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
    /// Also messages, errors and evaluations
    #[arg(long)]
    verbose: bool,
    /// The job
    id: String,
}

/// Lists a job's allocations.
pub(crate) async fn allocs(args: Allocs) -> Result<ExitCode> {
    let conn = args.api.conn()?;
    let id = find(&conn, &args.id).await?;
    let path = format!("/v1/job/{}/allocations?all={}", encode(&id), args.all);
    if args.shape.json {
        return conn.print(&path).await;
    }
    let all: Vec<Allocation> = conn.get(&path).await?;
    if all.is_empty() {
        output::line("No allocations placed");
    } else {
        alloc::table(&all, &args.shape).print();
    }
    Ok(ExitCode::SUCCESS)
}

/// Lists a job's deployments, or shows the latest.
pub(crate) async fn deployments(args: Deployments) -> Result<ExitCode> {
    let conn = args.api.conn()?;
    let id = find(&conn, &args.id).await?;
    let path = format!("/v1/job/{}", encode(&id));
    let path = if args.latest { format!("{path}/deployment") } else { format!("{path}/deployments?all={}", args.all) };
    if args.shape.json {
        return conn.print(&path).await;
    }
    if !args.latest {
        let all: Vec<Deployment> = conn.get(&path).await?;
        deployment::table(all, &args.shape);
        return Ok(ExitCode::SUCCESS);
    }
    match conn.get::<Option<Deployment>>(&path).await?.filter(|d| !d.id.is_nil()) {
        None => output::line("No deployment found"),
        Some(d) => deployment::show(&d, &args.shape),
    }
    Ok(ExitCode::SUCCESS)
}

/// Lists how a job's counts were changed, the newest change first.
pub(crate) async fn scaling_events(args: ScalingEvents) -> Result<ExitCode> {
    let conn = args.api.conn()?;
    let id = find(&conn, &args.id).await?;
    let status: JobScaleStatus = conn.get(&format!("/v1/job/{}/scale", encode(&id))).await?;
    let mut all: Vec<_> = status.task_groups.iter().flat_map(|(group, s)| s.events.iter().map(move |e| (group, e))).collect();
    all.sort_by_key(|(_, e)| std::cmp::Reverse((e.time, e.create_index)));
    if all.is_empty() {
        output::line("No events found");
        return Ok(ExitCode::SUCCESS);
    }
    let shape = Shape { json: false, verbose: true };
    let more: &[&str] = if args.verbose { &["Error", "Message", "Eval ID"] } else { &[] };
    let mut table = Table::new([&["Task Group", "Count", "PrevCount"], more, &["Date"]].concat());
    for (group, e) in all {
        let mut row = vec![group.to_string(), e.count.map(|c| c.to_string()).unwrap_or_default(), e.previous_count.to_string()];
        if args.verbose {
            row.extend([e.error.to_string(), e.message.clone(), e.eval_id.map(|id| shape.id(id)).unwrap_or_default()]);
        }
        row.push(when::stamp(e.time));
        table.row(row);
    }
    table.print();
    Ok(ExitCode::SUCCESS)
}

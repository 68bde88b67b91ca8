//! `drover remote list|status`: the records of remote tasks.

use std::process::ExitCode;

use anyhow::{Result, bail};
use model::{Observed, RemoteTask};

use super::{ApiArgs, Shape, eval::lower};
use crate::{
    conn::Conn,
    output::{self, Table},
    when,
};

/// Verbs.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// List remote tasks
    List {
        #[command(flatten)]
        api: ApiArgs,
        #[command(flatten)]
        shape: Shape,
        /// Only those that no node manages now
        #[arg(long)]
        unmanaged: bool,
        /// Only those whose runtime could not be asked
        #[arg(long)]
        unknown: bool,
    },
    /// Show one remote task, or all of a job
    Status {
        #[command(flatten)]
        api: ApiArgs,
        #[command(flatten)]
        shape: Shape,
        /// A job, a slot (`namespace/job.group[index]/task`) or the beginning of an incarnation's id
        what: String,
    },
}

/// Runs a verb.
pub(crate) async fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::List { api, shape, unmanaged, unknown } => {
            let mut tasks = all(&api.conn()?).await?;
            tasks.retain(|t| (!unmanaged || t.manager.is_none()) && (!unknown || matches!(t.observed, Observed::Unknown { .. })));
            if shape.json {
                output::json(&tasks)?;
            } else if tasks.is_empty() {
                output::line("No remote tasks");
            } else {
                table(&tasks, &shape).print();
            }
            Ok(ExitCode::SUCCESS)
        }
        Command::Status { api, shape, what } => {
            let tasks: Vec<RemoteTask> = all(&api.conn()?)
                .await?
                .into_iter()
                .filter(|t| t.slot.job_id == *what || t.slot.to_string() == what || t.incarnation.to_string().starts_with(&what))
                .collect();
            if tasks.is_empty() {
                bail!("no remote task of a job, slot or incarnation {what:?}");
            }
            if shape.json {
                output::json(&tasks)?;
                return Ok(ExitCode::SUCCESS);
            }
            for (i, task) in tasks.iter().enumerate() {
                if i > 0 {
                    output::line("");
                }
                show(task, &shape);
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

async fn all(conn: &Conn) -> Result<Vec<RemoteTask>> {
    conn.get("/v1/remote/tasks?namespace=*").await
}

/// An observation in one word or two.
pub(crate) fn observed(o: &Observed) -> String {
    match o {
        Observed::Intended => "intended".into(),
        Observed::Creating => "creating".into(),
        Observed::Running => "running".into(),
        Observed::Exited { code, signal: 0, .. } => format!("exited ({code})"),
        Observed::Exited { signal, .. } => format!("exited (signal {signal})"),
        Observed::Gone => "gone".into(),
        Observed::Unknown { .. } => "unknown".into(),
    }
}

fn table(tasks: &[RemoteTask], shape: &Shape) -> Table {
    let mut table = Table::new(["Slot", "Incarnation", "Driver", "Desired", "Observed", "Manager", "Epoch", "Hand-overs"]);
    for t in tasks {
        table.row([
            t.slot.to_string(),
            shape.id(t.incarnation),
            t.driver.clone(),
            lower(&t.desired),
            observed(&t.observed),
            manager(t, shape),
            t.epoch.to_string(),
            t.handovers.to_string(),
        ]);
    }
    table
}

fn manager(t: &RemoteTask, shape: &Shape) -> String {
    match &t.manager {
        Some(m) => shape.id(m.node_id),
        None if t.unmanaged_since > 0 => format!("none, for {}", when::span(when::now_ns() - t.unmanaged_since)),
        None => "none".into(),
    }
}

fn show(t: &RemoteTask, shape: &Shape) {
    let unknown = match &t.observed {
        Observed::Unknown { since, why } => format!("unknown since {}: {why}", when::stamp(*since)),
        Observed::Exited { reason, at, .. } => {
            format!("{} at {} {reason}", observed(&t.observed), when::stamp(*at))
        }
        other => observed(other),
    };
    output::pairs(&[
        ("Slot", t.slot.to_string()),
        ("Incarnation", t.incarnation.to_string()),
        ("Driver", t.driver.clone()),
        ("Provider", t.provider.clone()),
        ("Provider ID", t.provider_id.clone()),
        ("Job Version", t.job_version.to_string()),
        ("Desired", lower(&t.desired)),
        ("Observed", unknown),
        ("Started", when::ago(t.started_at, when::now_ns())),
        ("Manager", manager(t, shape)),
        ("Epoch", t.epoch.to_string()),
        ("Hand-overs", t.handovers.to_string()),
        ("Restarts", t.restarts.to_string()),
        ("Address", t.address.clone()),
    ]);
    if !t.attributes.is_empty() {
        output::heading("Attributes");
        for (k, v) in &t.attributes {
            output::line(&format!("{k} = {v}"));
        }
    }
    if !t.history.is_empty() {
        output::heading("History");
        let mut table = Table::new(["Time", "Epoch", "What"]);
        for e in t.history.iter().rev() {
            table.row([when::stamp(e.time), e.epoch.to_string(), e.message.clone()]);
        }
        table.print();
    }
}

//! `drover alloc checks`, and the checks in `alloc status`.

use std::{collections::BTreeMap, process::ExitCode};

use anyhow::Result;
use api::call;
use model::CheckResult;

use super::{
    ApiArgs, Shape,
    resolve::{Intent, Operand, allocation},
};
use crate::{
    conn::Conn,
    output::{self, Table},
    when,
};

/// Arguments of `alloc checks`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    api: ApiArgs,
    #[command(flatten)]
    shape: Shape,
    /// An allocation id or its prefix, or a job name for the job's newest running allocation
    #[arg(value_name = "ALLOC|JOB")]
    id: String,
}

/// Sorted as people look for them: by service, then by check.
fn sorted(results: BTreeMap<String, CheckResult>) -> Vec<CheckResult> {
    let mut all: Vec<CheckResult> = results.into_values().collect();
    all.sort_by(|a, b| (&a.service, &a.check, &a.task).cmp(&(&b.service, &b.check, &b.task)));
    all
}

/// Runs the verb.
pub(crate) async fn run(args: Args) -> Result<ExitCode> {
    let conn = args.api.conn()?;
    let alloc = allocation(&conn, Operand::new(&args.id, Intent::Read)).await?;
    if args.shape.format.wanted() {
        return conn.show(&args.shape.format, call::alloc_node_checks(alloc.id)).await;
    }
    let results = sorted(conn.ask(call::alloc_node_checks(alloc.id)).await?);
    output::line(&output::bold(&format!("Status of {} Nomad Service Checks", results.len())));
    for r in &results {
        output::line("");
        output::pairs(&[
            ("ID", r.id.clone()),
            ("Name", r.check.clone()),
            ("Group", r.group.clone()),
            ("Task", if r.task.is_empty() { "(group)".to_owned() } else { r.task.clone() }),
            ("Service", r.service.clone()),
            ("Status", r.status.as_str().to_owned()),
            ("StatusCode", if r.status_code == 0 { "N/A".to_owned() } else { r.status_code.to_string() }),
            ("Mode", r.mode.clone()),
            (
                "Timestamp",
                if r.timestamp == 0 {
                    "never run".to_owned()
                } else {
                    when::stamp(r.timestamp.saturating_mul(1_000_000_000))
                },
            ),
            ("Output", r.output.trim_end().to_owned()),
        ]);
    }
    Ok(ExitCode::SUCCESS)
}

/// The checks of an allocation in short. Its node may be away: then nothing is said of them.
pub(crate) async fn summary(conn: &Conn, alloc: model::AllocId) {
    let Ok(results) = conn.ask(call::alloc_node_checks(alloc)).await else { return };
    if results.is_empty() {
        return;
    }
    output::heading("Nomad Service Checks:");
    let mut table = Table::new(["Service", "Task", "Name", "Mode", "Status"]);
    for r in sorted(results) {
        let task = if r.task.is_empty() { "(group)".to_owned() } else { r.task };
        table.row([r.service, task, r.check, r.mode, r.status.as_str().to_owned()]);
    }
    table.print();
}

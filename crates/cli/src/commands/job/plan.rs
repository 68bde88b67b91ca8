//! `drover job plan`.

use std::process::ExitCode;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::diff::diff_lines;
use crate::{
    commands::{
        ApiArgs,
        job_file::{JobFile, JobFileArgs},
        placement,
    },
    conn::encode,
    output,
};

/// Arguments of `job plan`.
#[derive(Debug, clap::Args)]
pub(crate) struct Plan {
    #[command(flatten)]
    api: ApiArgs,
    #[command(flatten)]
    file: JobFileArgs,
    /// Do not show what changes
    #[arg(long)]
    no_diff: bool,
    /// Show unchanged fields as well
    #[arg(long)]
    verbose: bool,
}

/// Shows what submitting would do.
pub(crate) async fn run(args: Plan) -> Result<ExitCode> {
    let conn = args.api.conn()?;
    let file = JobFile::read(&args.file)?;
    let id = file.job["ID"].as_str().context("the job has no id")?.to_owned();
    let answer: Value = conn.put(&format!("/v1/job/{}/plan", encode(&id)), &json!({"Job": file.job, "Diff": !args.no_diff})).await?;
    if !args.no_diff {
        for text in diff_lines(&answer["Diff"], args.verbose) {
            output::line(&text);
        }
        output::line("");
    }
    output::line("Scheduler dry-run:");
    let failed: std::collections::BTreeMap<String, model::AllocMetric> =
        api::go_json::from_value(answer["FailedTGAllocs"].clone()).context("the agent's account of what could not be placed")?;
    if failed.is_empty() {
        output::line("- All tasks successfully allocated.");
    } else {
        output::line("- WARNING: Failed to place all allocations.");
        for text in placement::explained(&conn, &failed).await {
            output::line(&format!("  {text}"));
        }
    }
    let warnings = answer["Warnings"].as_str().unwrap_or_default();
    if !warnings.is_empty() {
        output::line(&format!("\nJob Warnings:\n{warnings}"));
    }
    output::line(&format!("\nJob Modify Index: {}", answer["JobModifyIndex"]));
    output::line(&format!(
        "To submit the job if it is still as shown:\n\ndrover job run -check-index {} {}",
        answer["JobModifyIndex"],
        args.file.path()
    ));
    let changes = answer["Annotations"]["DesiredTGUpdates"].as_object().into_iter().flatten().any(|(_, u)| {
        ["Place", "Migrate", "Stop", "InPlaceUpdate", "DestructiveUpdate", "Canary"].iter().any(|k| u[*k].as_u64().unwrap_or(0) > 0)
    });
    // Exit codes as in Nomad: 0 nothing would change, 1 something would, 255 an error.
    Ok(if changes { ExitCode::from(1) } else { ExitCode::SUCCESS })
}

//! `drover job plan`.

use std::process::ExitCode;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::{defaults::left_out, diff::diff_lines};
use crate::{
    commands::{
        ApiArgs,
        job_file::{JobFile, JobFileArgs},
        placement,
    },
    conn::encode,
    failure, output,
};

/// Arguments of `job plan`.
#[derive(Debug, clap::Args)]
pub(crate) struct Plan {
    #[command(flatten)]
    api: ApiArgs,
    #[command(flatten)]
    file: JobFileArgs,
    /// Whether what changes is shown
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    diff: bool,
    /// The older name of -diff=false
    #[arg(long, hide = true)]
    no_diff: bool,
    /// Print the servers' answer as JSON
    #[arg(long)]
    json_output: bool,
    /// Also what does not change, and what is the default
    #[arg(long)]
    verbose: bool,
}

/// Exit code when it cannot be told what would happen.
const ERROR: u8 = 255;

/// Shows what submitting would do. Its errors have an exit code of their own, because 1 means that something would change.
pub(crate) async fn run(args: Plan) -> Result<ExitCode> {
    match plan(args).await {
        Ok(changes) => Ok(ExitCode::from(u8::from(changes))),
        Err(error) => {
            output::note(&failure::text(&error));
            Ok(ExitCode::from(ERROR))
        }
    }
}

/// Whether the change would create or destroy allocations: one in place, or none at all, needs no second look.
fn changes(answer: &Value) -> bool {
    if answer["Diff"]["Type"] == "None" {
        return false;
    }
    answer["Annotations"]["DesiredTGUpdates"]
        .as_object()
        .into_iter()
        .flatten()
        .any(|(_, u)| ["Place", "Migrate", "Stop", "DestructiveUpdate", "Canary"].iter().any(|k| u[*k].as_u64().unwrap_or(0) > 0))
}

async fn plan(args: Plan) -> Result<bool> {
    let conn = args.api.conn()?;
    let file = JobFile::read(&args.file)?;
    let id = file.job["ID"].as_str().context("the job has no id")?.to_owned();
    let diff = args.diff && !args.no_diff;
    let answer: Value = conn.put(&format!("/v1/job/{}/plan", encode(&id)), &json!({"Job": file.job, "Diff": diff})).await?;
    if args.json_output {
        output::json(&answer)?;
        return Ok(changes(&answer));
    }
    if diff {
        let new = answer["Diff"]["Type"] == "Added" && !args.verbose;
        let shown = if new { left_out(&file.job, answer["Diff"].clone()) } else { answer["Diff"].clone() };
        for text in diff_lines(&shown, args.verbose) {
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
    Ok(changes(&answer))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_created_or_destroyed_counts() {
        for (what, wanted) in [
            ("Place", true),
            ("Stop", true),
            ("DestructiveUpdate", true),
            ("Canary", true),
            ("Migrate", true),
            ("InPlaceUpdate", false),
            ("Ignore", false),
        ] {
            let mut answer = json!({"Annotations": {"DesiredTGUpdates": {"a": {"Ignore": 1}, "g": {}}}});
            answer["Annotations"]["DesiredTGUpdates"]["g"][what] = 1.into();
            assert_eq!(changes(&answer), wanted, "{what}");
        }
        assert!(!changes(&json!({"Annotations": null})));
        assert!(!changes(&json!({"Diff": {"Type": "None"}, "Annotations": {"DesiredTGUpdates": {"g": {"Place": 1}}}})));
    }
}

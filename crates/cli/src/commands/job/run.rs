//! `drover job run`.

use std::process::ExitCode;

use anyhow::Result;
use serde_json::{Value, json};

use super::followed;
use crate::{
    commands::{
        ApiArgs, Shape,
        job_file::{JobFile, JobFileArgs},
    },
    output,
};

/// Arguments of `job run`.
#[derive(Debug, clap::Args)]
pub(crate) struct Run {
    #[command(flatten)]
    api: ApiArgs,
    #[command(flatten)]
    file: JobFileArgs,
    /// Only when the job's modify index is this one; 0 = only when the job does not exist
    #[arg(long, value_name = "INDEX")]
    check_index: Option<u64>,
    /// Do not follow the work
    #[arg(long)]
    detach: bool,
    /// Print the job as the API's JSON and submit nothing
    #[arg(long)]
    output: bool,
    /// Keep the counts that were scaled
    #[arg(long)]
    preserve_counts: bool,
    /// Priority of the evaluation
    #[arg(long)]
    eval_priority: Option<i32>,
    /// Print identifiers in full
    #[arg(long)]
    verbose: bool,
}

/// Submits, and follows the work.
pub(crate) async fn run(args: Run) -> Result<ExitCode> {
    let conn = args.api.conn()?;
    let file = JobFile::read(&args.file)?;
    if args.output {
        output::json(&json!({"Job": file.job}))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut body = json!({"Job": file.job, "PreserveCounts": args.preserve_counts, "Submission": file.submission});
    if let Some(index) = args.check_index {
        body["EnforceIndex"] = true.into();
        body["JobModifyIndex"] = index.into();
    }
    if let Some(priority) = args.eval_priority {
        body["EvalPriority"] = priority.into();
    }
    let answer: Value = conn.put("/v1/jobs", &body).await?;
    let warnings = answer["Warnings"].as_str().unwrap_or_default();
    if !warnings.is_empty() {
        output::line(&format!("Job Warnings:\n{warnings}\n"));
    }
    let shape = Shape { json: false, verbose: args.verbose };
    if args.detach {
        output::line(&format!("Job registration successful\nEvaluation ID: {}", answer["EvalID"].as_str().unwrap_or_default()));
        return Ok(ExitCode::SUCCESS);
    }
    followed(&conn, &answer, false, &shape).await
}

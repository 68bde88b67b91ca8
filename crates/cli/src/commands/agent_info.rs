//! `drover agent-info`.

use std::process::ExitCode;

use anyhow::Result;
use serde_json::Value;

use super::{ApiArgs, Shape};
use crate::output;

/// Arguments.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    api: ApiArgs,
    #[command(flatten)]
    shape: Shape,
}

/// Prints the agent's own statistics, grouped as it groups them.
pub(crate) async fn run(args: Args) -> Result<ExitCode> {
    let me: Value = args.api.conn()?.get("/v1/agent/self").await?;
    if args.shape.json {
        output::json(&me)?;
        return Ok(ExitCode::SUCCESS);
    }
    for (group, values) in me["stats"].as_object().into_iter().flatten() {
        output::line(group);
        for (name, value) in values.as_object().into_iter().flatten() {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            output::line(&format!("  {name} = {text}"));
        }
    }
    Ok(ExitCode::SUCCESS)
}

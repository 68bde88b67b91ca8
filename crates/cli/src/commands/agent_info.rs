//! `drover agent-info`.

use std::process::ExitCode;

use anyhow::{Context, Result};
use api::{call, go_json::from_value, shapes::AgentSelf};
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
    let me: Value = args.api.conn()?.ask(call::agent_self().reading()).await?;
    if args.shape.format.wanted() {
        args.shape.format.print(&me)?;
        return Ok(ExitCode::SUCCESS);
    }
    for (group, values) in from_value::<AgentSelf>(me).context("the agent's figures")?.stats {
        output::line(&group);
        for (name, value) in values {
            output::line(&format!("  {name} = {value}"));
        }
    }
    Ok(ExitCode::SUCCESS)
}

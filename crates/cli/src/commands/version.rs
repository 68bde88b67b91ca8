//! `drover version`.

use std::process::ExitCode;

use anyhow::Result;
use serde_json::json;

use crate::output;

/// Arguments.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print it as JSON
    #[arg(long)]
    json: bool,
}

/// Prints the version.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let version = env!("CARGO_PKG_VERSION");
    if args.json {
        output::json(&json!({"Version": version}))?;
    } else {
        output::line(&format!("Drover v{version}"));
    }
    Ok(ExitCode::SUCCESS)
}

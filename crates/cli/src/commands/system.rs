//! `drover system gc`.

use std::process::ExitCode;

use anyhow::Result;

use super::ApiArgs;
use crate::output;

/// Verbs.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Collect everything that has ended, whatever its age
    Gc {
        #[command(flatten)]
        api: ApiArgs,
    },
}

/// Runs a verb.
pub(crate) async fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::Gc { api } => {
            api.conn()?.put_empty("/v1/system/gc").await?;
            output::line("Collected what has ended. Remote tasks that are still to be stopped are kept until their absence is confirmed.");
            Ok(ExitCode::SUCCESS)
        }
    }
}

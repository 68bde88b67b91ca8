//! `drover system gc|reconcile`.

use std::process::ExitCode;

use anyhow::Result;
use api::call;

use super::ApiArgs;
use crate::output;

/// Verbs.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Collect everything that has ended, regardless of its age
    Gc {
        #[command(flatten)]
        api: ApiArgs,
    },
    /// Recount what the servers count
    #[command(subcommand)]
    Reconcile(Reconcile),
}

/// Verbs of `system reconcile`.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Reconcile {
    /// Recount the allocations of all jobs by status
    Summaries {
        #[command(flatten)]
        api: ApiArgs,
    },
}

/// Runs a verb.
pub(crate) async fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::Reconcile(Reconcile::Summaries { api }) => {
            api.conn()?.tell(call::reconcile_summaries()).await?;
            output::line("The allocations of all jobs are counted anew");
            Ok(ExitCode::SUCCESS)
        }
        Command::Gc { api } => {
            api.conn()?.tell(call::system_gc()).await?;
            output::line(
                "Collected what has ended. Remote tasks that are still to be stopped are kept until their absence is \
                    confirmed.",
            );
            Ok(ExitCode::SUCCESS)
        }
    }
}

//! `drover config validate PATH …`.

use std::{path::PathBuf, process::ExitCode};

use anyhow::Result;

use crate::{agent, output};

/// Verbs.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Check agent configuration files without starting anything
    Validate {
        /// Files and directories, merged in the given order
        #[arg(required = true)]
        paths: Vec<PathBuf>,
    },
}

/// Runs a verb.
pub(crate) fn run(command: Command) -> Result<ExitCode> {
    let Command::Validate { paths } = command;
    agent::check(paths)?;
    output::line("Configuration is valid!");
    Ok(ExitCode::SUCCESS)
}

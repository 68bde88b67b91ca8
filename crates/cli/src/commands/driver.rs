//! `drover driver NAME`: a built-in driver as a plugin process, over the same protocol as anyone's.

use std::process::ExitCode;

use anyhow::{Result, bail};

/// Drivers that ship in this binary.
pub(crate) const BUILT_IN: &[&str] = &["mock", "raw_exec", "remote_exec"];

/// Arguments.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The driver
    name: String,
}

/// Serves the driver until the host ends it.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    Ok(match args.name.as_str() {
        "mock" => driver_sdk::block_on(mock::serve()),
        "raw_exec" => driver_sdk::block_on(raw_exec::serve()),
        "remote_exec" => driver_sdk::block_on(remote_exec::serve()),
        other => bail!("no built-in driver {other:?}; there are {}", BUILT_IN.join(", ")),
    })
}

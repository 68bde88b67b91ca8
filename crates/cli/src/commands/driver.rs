//! `drover driver …`: a built-in driver or device plugin as a plugin process, over the same protocol as anyone's, and
//! what helps with drivers.

pub(crate) mod check;
pub(crate) mod doctor;
mod schema;

use std::process::ExitCode;

use anyhow::{Result, bail};
use driver_sdk::block_on;

/// Drivers that ship in this binary.
pub(crate) const BUILT_IN: &[&str] =
    &["docker", "docker_remote", "exec", "mock", "mock_remote", "raw_exec", "remote_exec"];

/// Device plugins that ship in this binary.
pub(crate) const DEVICES: &[&str] = &["mock_device"];

/// Arguments.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Option<Verb>,
    /// The built-in driver to serve
    #[arg(required = true)]
    name: Option<String>,
    /// Serve mock_remote over the plain driver protocol only, without the remote extension
    #[arg(long)]
    plain_protocol: bool,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Run the conformance suite against a driver plugin
    Check(check::Args),
    /// Look whether a driver finds what tasks will need: configuration, credentials, rights, versions, clocks
    Doctor(doctor::Args),
    /// List the checks, and what a failure of each means
    ListChecks(check::ListArgs),
    /// Show a driver's configuration schema: keys, types, defaults, descriptions
    Schema(schema::Args),
}

/// Serves the driver until the host ends it, or does what the verb says.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    match &args.verb {
        Some(Verb::Check(args)) => return check::run(args),
        Some(Verb::Doctor(args)) => return doctor::run(args),
        Some(Verb::ListChecks(args)) => return check::list(args),
        Some(Verb::Schema(args)) => return schema::run(args),
        None => {}
    }
    open_files::raise();
    if args.plain_protocol {
        return match args.name.as_deref() {
            Some("mock_remote") => Ok(block_on(mock::serve_remote_as_plain())),
            other => {
                bail!(
                    "-plain-protocol works only with mock_remote, not with {:?}; leave it out",
                    other.unwrap_or_default()
                )
            }
        };
    }
    Ok(match args.name.as_deref().unwrap_or_default() {
        "docker" => block_on(docker::serve()),
        "docker_remote" => block_on(docker::serve_remote()),
        "exec" => block_on(exec::serve()),
        "mock" => block_on(mock::serve()),
        "mock_device" => block_on(mock::serve_devices()),
        "mock_remote" => block_on(mock::serve_remote()),
        "raw_exec" => block_on(raw_exec::serve()),
        "remote_exec" => block_on(remote_exec::serve()),
        other => bail!(
            "no built-in driver {other:?}; the built-in drivers are {}, the built-in device plugin is {}",
            BUILT_IN.join(", "),
            DEVICES.join(", ")
        ),
    })
}

//! `drover operator store`.

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Context, Result};
use server::store_copy::{Copied, to_own, to_shared};

use crate::{
    agent::{self, Stores},
    output,
};

/// Verbs.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Copy the state of a cluster from SQLite to etcd or back, while no server runs
    Copy(Copy),
}

/// Arguments of `operator store copy`.
#[derive(Debug, clap::Args)]
pub(crate) struct Copy {
    /// Configuration of a server with `store = "etcd"`, as for `drover agent`; a file or directory; later ones win
    #[arg(long, value_name = "PATH", required = true)]
    config: Vec<PathBuf>,
    /// The agent's `data_dir`, which has the SQLite state or gets it; default: that of the configuration
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Where the state is copied to
    #[arg(long, value_name = "STORE")]
    to: To,
}

/// A store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum To {
    /// The etcd that the configuration names.
    Etcd,
    /// The server's directory.
    Sqlite,
}

/// Runs a verb.
pub(crate) async fn run(command: Command) -> Result<ExitCode> {
    let Command::Copy(Copy { config, data_dir, to }) = command;
    let Stores { etcd, key, wrapping, dir, join_kept } = agent::stores(config, data_dir)?;
    let (own, shared) = (dir.display().to_string(), format!("etcd {} {}", etcd.endpoints.join(","), etcd.prefix));
    let copied = tokio::task::spawn_blocking(move || match to {
        To::Etcd => to_shared(&dir, etcd, &key, &wrapping),
        To::Sqlite => to_own(etcd, &key, &wrapping, &dir),
    });
    let copied = copied.await.context("the copy has panicked")?.context("the state was not copied")?;
    let (from, into) = if to == To::Etcd { (&own, &shared) } else { (&shared, &own) };
    let Copied { cluster, index, rows, keys, other_join_secret } = copied;
    output::line(&format!("Copied cluster {cluster} at index {index} from {from} to {into}"));
    output::line(&format!("Read back and compared: {rows} rows, {keys} signing keys; {from} stays as it was"));
    if to == To::Etcd && join_kept && other_join_secret {
        output::note(
            "Nodes need another join secret from now on: each server writes it to the file join-secret of its data \
                directory when it starts.",
        );
    }
    Ok(ExitCode::SUCCESS)
}

//! `drover operator snapshot`.

use std::{
    io::Write as _,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, Result};
use filter::Filter;
use serde_json::{Value, json};
use server::snapshot::{Snapshot, SnapshotError, SnapshotMeta, decode, restore_into_etcd, state_of};

use super::ApiArgs;
use crate::output;

/// Verbs.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Save a snapshot of the server's state to a file while the server runs
    Save {
        #[command(flatten)]
        api: Box<ApiArgs>,
        /// Save the state of the server that answers, also if it does not lead or no server leads
        #[arg(long)]
        stale: bool,
        /// The file
        file: PathBuf,
    },
    /// Verify a snapshot and show its contents
    Inspect {
        /// Print it as JSON
        #[arg(long)]
        json: bool,
        /// The file
        file: PathBuf,
    },
    /// Print the state in a snapshot as JSON, without keys and node secrets
    State {
        /// Only objects that match this expression, such as `ClientStatus == "running"`
        #[arg(long, value_name = "EXPRESSION")]
        filter: Option<String>,
        /// The file
        file: PathBuf,
    },
    /// Restore a server's state from a snapshot into an empty data directory or etcd; stop the agents first
    Restore {
        /// The agent's `data_dir`
        #[arg(long, value_name = "DIR", required_unless_present = "config")]
        data_dir: Option<PathBuf>,
        /// Configuration of a server with `store = "etcd"`: restore into its etcd; a file or directory; later ones win
        #[arg(long, value_name = "PATH")]
        config: Vec<PathBuf>,
        /// The file
        file: PathBuf,
    },
}

/// Runs a verb.
pub(crate) async fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::Save { api, stale, file } => {
            let ask = api::call::snapshot().with_some("stale", stale.then_some(true));
            let bytes = api.conn()?.bytes(ask).await?;
            // What arrived is whole, or it is not kept.
            let snapshot = decode(&bytes)?;
            write(&file, &bytes).with_context(|| format!("could not write {}", file.display()))?;
            output::line(&format!("Snapshot of index {} written to {}", snapshot.meta.index, file.display()));
        }
        Command::Inspect { json, file } => {
            let bytes = read(&file)?;
            show(&decode(&bytes).with_context(|| file.display().to_string())?, bytes.len(), json)?;
        }
        Command::State { filter, file } => {
            let filter = filter.as_deref().map(Filter::parse).transpose().context("-filter")?;
            let mut state = decode(&read(&file)?)
                .and_then(|snapshot| state_of(&snapshot))
                .with_context(|| file.display().to_string())?;
            if let Some(filter) = filter {
                filtered(&mut state, &filter);
            }
            output::line(&serde_json::to_string_pretty(&state)?);
        }
        Command::Restore { data_dir, config, file } => {
            let bytes = read(&file)?;
            let place = match data_dir {
                Some(dir) if config.is_empty() => Place::Own(dir.join("server")),
                data_dir => Place::Shared(Box::new(crate::agent::stores(config, data_dir)?)),
            };
            let restored = tokio::task::spawn_blocking(move || place.restore(&bytes)).await;
            let (meta, place) =
                restored.context("the restore has panicked")?.with_context(|| file.display().to_string())?;
            output::line(&format!("State of index {} restored to {place}", meta.index));
            output::note(
                "Before you start the agent, read docs/guides/snapshots.md: what has happened since the snapshot is \
                    not known to the server.",
            );
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Keeps the objects that match. One without the fields that are asked for does not.
fn filtered(state: &mut Value, filter: &Filter) {
    for objects in state.as_object_mut().into_iter().flat_map(|tables| tables.values_mut()) {
        if let Some(objects) = objects.as_array_mut() {
            objects.retain(|object| filter.matches(object).unwrap_or(false));
        }
    }
}

/// Where a snapshot is restored to.
enum Place {
    /// The directory of a server.
    Own(PathBuf),
    /// The etcd that servers share.
    Shared(Box<crate::agent::Stores>),
}

impl Place {
    /// Waits for the store; its name.
    fn restore(self, bytes: &[u8]) -> Result<(SnapshotMeta, String), SnapshotError> {
        match self {
            Self::Own(dir) => Ok((server::snapshot::restore(bytes, &dir)?, dir.display().to_string())),
            Self::Shared(stores) => {
                let etcd = &stores.etcd;
                let name = format!("etcd {} {}", etcd.endpoints.join(","), etcd.prefix);
                let meta = restore_into_etcd(bytes, stores.etcd, &stores.key, &stores.wrapping)?;
                Ok((meta, name))
            }
        }
    }
}

fn read(file: &Path) -> Result<Vec<u8>> {
    std::fs::read(file).with_context(|| format!("could not read {}", file.display()))
}

/// There are secrets of nodes and jobs in it: for its owner alone, and there at once or not at all.
fn write(file: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut name = file.as_os_str().to_owned();
    name.push(".part");
    let part = PathBuf::from(name);
    // What a broken off one has left. A file that somebody else has put there, or a link, is not written into: it would
    // keep its owner, or lie elsewhere.
    match std::fs::remove_file(&part) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut out = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&part)?;
    out.write_all(bytes)?;
    out.sync_all()?;
    std::fs::rename(part, file)
}

fn show(snapshot: &Snapshot, size: usize, as_json: bool) -> Result<()> {
    let meta = &snapshot.meta;
    let tables = snapshot.tables();
    if as_json {
        let tables: serde_json::Map<_, _> = tables
            .iter()
            .map(|(name, (rows, bytes))| ((*name).to_owned(), json!({"Rows": rows, "Bytes": bytes})))
            .collect();
        let shown = json!({
            "ClusterID": meta.cluster, "Index": meta.index, "Created": meta.created, "Release": meta.release,
            "Size": size, "Keys": snapshot.files.len(),
            "Tables": tables
        });
        output::line(&serde_json::to_string_pretty(&shown)?);
        return Ok(());
    }
    output::pairs(&[
        ("Cluster ID", meta.cluster.clone()),
        ("Index", meta.index.to_string()),
        ("Created", meta.created.clone()),
        ("Release", meta.release.clone()),
        ("Size", format!("{size} B")),
        ("Signing Keys", snapshot.files.len().to_string()),
    ]);
    output::line("");
    let mut table = output::Table::new(["Table", "Rows", "Bytes"]);
    for (name, (rows, bytes)) in tables {
        table.row([name.to_owned(), rows.to_string(), bytes.to_string()]);
    }
    table.print();
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::write;

    #[test]
    fn a_snapshot_is_not_written_into_what_lies_in_its_way() {
        let dir = tempfile::tempdir().expect("a directory");
        let (file, part, other) = (dir.path().join("s"), dir.path().join("s.part"), dir.path().join("other"));
        std::fs::write(&other, "theirs").expect("writes");
        symlink(&other, &part).expect("links");
        write(&file, b"secret").expect("writes");
        assert_eq!(std::fs::read_to_string(&other).expect("reads"), "theirs", "through the link");
        // One that somebody else can read, as they have made it.
        std::fs::write(&part, "left").expect("writes");
        std::fs::set_permissions(&part, std::fs::Permissions::from_mode(0o666)).expect("sets");
        write(&file, b"secret").expect("writes");
        let mode = std::fs::metadata(&file).expect("it is there").permissions().mode();
        assert_eq!((mode & 0o777, std::fs::read(&file).expect("reads")), (0o600, b"secret".to_vec()));
    }
}

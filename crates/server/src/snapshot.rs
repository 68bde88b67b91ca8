//! Snapshots of a server's state: saved while it runs, restored into a directory before it starts.

use std::{path::Path, sync::Arc};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::{Value, json};
use state::{Change, ClusterMeta, Recovery, State};
use store::snapshot::SavedFile;
pub use store::snapshot::{Snapshot, SnapshotError, SnapshotMeta, decode};

use crate::{
    clock::{new_id, now_ns, rfc3339},
    error::ServerError,
    handle::ServerHandle,
    keyring,
};

/// A snapshot as it is sent.
#[derive(Debug)]
pub struct Saved {
    /// The file.
    pub bytes: Vec<u8>,
    /// SHA-256 of it, in base64.
    pub digest: String,
    /// Index of the state.
    pub index: u64,
}

impl ServerHandle {
    /// Everything that is stored, at one index, and the signing keys. Each row is compared with its checksum on the
    /// way. Writes wait while the rows are read.
    ///
    /// # Errors
    /// When the store cannot be read, or is damaged.
    pub async fn save_snapshot(&self, release: &str) -> Result<Saved, ServerError> {
        let (inner, cluster, release) = (self.inner.clone(), self.cluster_id().to_string(), release.to_owned());
        let made = tokio::task::spawn_blocking(move || {
            let contents = inner.store.load().map_err(|error| ServerError::Store(error.to_string()))?;
            let keys = inner.keyring.export()?.into_iter();
            let keys: Vec<SavedFile> =
                keys.map(|(name, content)| SavedFile { name: format!("{}/{name}", keyring::DIR), content }).collect();
            let index = contents.index;
            let meta = SnapshotMeta { index, cluster, created: rfc3339(now_ns()), release };
            let bytes = store::snapshot::encode(&meta, contents, &keys);
            let digest = BASE64_STANDARD.encode(aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &bytes));
            Ok(Saved { bytes, digest, index })
        });
        made.await.map_err(|_| ServerError::ShuttingDown)?
    }
}

/// Restores a snapshot into the directory of a server that does not run and has no state. The server recovers when it
/// starts on it: what has happened since is known to nodes and providers only.
///
/// # Errors
/// When the snapshot is damaged or no state, or the directory cannot be used.
pub fn restore(bytes: &[u8], dir: &Path) -> Result<SnapshotMeta, SnapshotError> {
    let mut snapshot = decode(bytes)?;
    let damaged = |error: &dyn std::fmt::Display| SnapshotError::Damaged(error.to_string());
    // What a start would refuse is refused now.
    let mut state = State::load(snapshot.contents.rows.iter().cloned()).map_err(|error| damaged(&error))?;
    let (saved, now) = (snapshot.meta.index, now_ns());
    let index = saved.max(state.latest_index()) + 1;
    let cause = format!("a snapshot of index {saved}, made at {}, was restored", snapshot.meta.created);
    let recovery = Recovery { generation: new_id(), since: now, cause, highest: saved, ..Recovery::default() };
    let cluster = ClusterMeta { recovery: Some(Arc::new(recovery)), ..ClusterMeta::clone(state.cluster()) };
    let applied = state.apply(index, now, Change::SetClusterMeta(Box::new(cluster)).into()).map_err(|error| damaged(&error))?;
    snapshot.put(index, applied.rows(&state));
    snapshot.restore(dir)
}

/// What a snapshot holds, as the API shows it: for people. Neither keys nor secrets of nodes are in it.
///
/// # Errors
/// When its rows are no state.
pub fn state_of(snapshot: &Snapshot) -> Result<Value, SnapshotError> {
    let state = State::load(snapshot.contents.rows.iter().cloned()).map_err(|error| SnapshotError::Damaged(error.to_string()))?;
    Ok(json!({
        "ClusterID": snapshot.meta.cluster,
        "Index": snapshot.meta.index,
        "Jobs": state.jobs().collect::<Vec<_>>(),
        "Nodes": state.nodes().map(|node| api::shapes::node_detail(node)).collect::<Vec<_>>(),
        "Allocs": state.allocs().collect::<Vec<_>>(),
        "Evals": state.evals().collect::<Vec<_>>(),
        "Deployments": state.deployments().collect::<Vec<_>>(),
        "RemoteTasks": state.remote_tasks().collect::<Vec<_>>(),
        "Services": state.services().collect::<Vec<_>>(),
        "Namespaces": state.namespaces().collect::<Vec<_>>(),
        "NodePools": state.node_pools().collect::<Vec<_>>(),
        "SchedulerConfig": state.scheduler_config(),
    }))
}

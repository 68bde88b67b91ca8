//! Snapshots of a server's state: saved while it runs, restored into a directory or a shared store before it starts.
//!
//! Signing keys are files of a snapshot wherever the server keeps them. They are encrypted only where the configuration
//! has a `keyring` block, and a server with the same block opens them. Otherwise the snapshot can be restored for a
//! server of either kind, also for one whose `server.encrypt` is another one.

use std::{path::Path, sync::Arc};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use model::signing::SigningKey;
use serde_json::{Value, json};
use state::{Batch, Change, ClusterMeta, Recovery, State, Table};
pub use store::snapshot::{Snapshot, SnapshotError, SnapshotMeta, decode};
use store::{EtcdOptions, EtcdStore, Offline, Store, snapshot::SavedFile};

use crate::{
    clock::{new_id, now_ns, rfc3339},
    error::ServerError,
    handle::ServerHandle,
    keyring::{self, Wrapping},
    shared::SharedKey,
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
    /// way. Writes wait while the rows are read. The handle of a [`crate::Follower`] saves the state that it has.
    ///
    /// # Errors
    /// When the store cannot be read, or is damaged.
    pub async fn save_snapshot(&self, release: &str) -> Result<Saved, ServerError> {
        let (inner, cluster, release) = (self.inner.clone(), self.cluster_id().to_string(), release.to_owned());
        let made = blocking::spawn(move || {
            let mut contents = inner.store.load().map_err(|error| ServerError::Store(error.to_string()))?;
            contents.rows.retain(|row| row.table != Table::SigningKeys);
            let keys = inner.keyring.export()?.into_iter();
            let keys: Vec<SavedFile> =
                keys.map(|(name, content)| SavedFile { name: format!("{}/{name}", keyring::DIR), content }).collect();
            let index = contents.index;
            let format = inner.store.format();
            let meta = SnapshotMeta { index, cluster, created: rfc3339(now_ns()), release, format };
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
    recovering(decode(bytes)?, Vec::new())?.restore(dir)
}

/// The same into an empty store that servers share, for servers with this key. Waits for the store.
///
/// # Errors
/// When the snapshot is damaged or no state, or the store has a state or refuses.
pub fn restore_into(
    bytes: &[u8],
    store: &dyn Store,
    shared: &SharedKey,
    wrapping: &Wrapping,
) -> Result<SnapshotMeta, SnapshotError> {
    let mut snapshot = decode(bytes)?;
    let files = std::mem::take(&mut snapshot.files);
    let keys = keyring::rows_of_files(shared, wrapping, files.iter().map(|file| (file.name.as_str(), &*file.content)))
        .map_err(SnapshotError::Damaged)?;
    recovering(snapshot, keys)?.restore_into(store)
}

/// The same into an etcd that no server uses. A server starts on it when it is complete.
///
/// # Errors
/// As [`restore_into`]; also when a server uses it.
pub fn restore_into_etcd(
    bytes: &[u8],
    options: EtcdOptions,
    shared: &SharedKey,
    wrapping: &Wrapping,
) -> Result<SnapshotMeta, SnapshotError> {
    // What this server knows of another etcd does not count there.
    let store = EtcdStore::open_offline(EtcdOptions { mark: None, ..options }, Offline::Fill)?;
    let meta = restore_into(bytes, &store, shared, wrapping)?;
    store.filled()?;
    Ok(meta)
}

/// Its state as of a restore: with these keys, and to be recovered.
fn recovering(mut snapshot: Snapshot, keys: Vec<SigningKey>) -> Result<Snapshot, SnapshotError> {
    let damaged = |error: &dyn std::fmt::Display| SnapshotError::Damaged(error.to_string());
    // What a start would refuse is refused now.
    let mut state = State::load(snapshot.contents.rows.iter().cloned()).map_err(|error| damaged(&error))?;
    let (saved, now) = (snapshot.meta.index, now_ns());
    let index = saved.max(state.latest_index()) + 1;
    let cause = format!("a snapshot of index {saved}, made at {}, was restored", snapshot.meta.created);
    let recovery = Recovery { generation: new_id(), since: now, cause, highest: saved, ..Recovery::default() };
    let cluster = ClusterMeta { recovery: Some(Arc::new(recovery)), ..ClusterMeta::clone(state.cluster()) };
    let mut batch = Batch::from(Change::SetClusterMeta(Box::new(cluster)));
    batch.changes.extend(keys.into_iter().map(|key| Change::PutSigningKey(Box::new(key))));
    let applied = state.apply(index, now, batch).map_err(|error| damaged(&error))?;
    snapshot.put(index, applied.rows(&state));
    Ok(snapshot)
}

/// What a snapshot holds, as the API shows it: for people. Neither keys nor secrets of nodes are in it.
///
/// # Errors
/// When its rows are no state.
pub fn state_of(snapshot: &Snapshot) -> Result<Value, SnapshotError> {
    let state = State::load(snapshot.contents.rows.iter().cloned())
        .map_err(|error| SnapshotError::Damaged(error.to_string()))?;
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
        "HostVolumes": state.volumes_onward(None, false).collect::<Vec<_>>(),
        "VolumeClaims": state.volume_claims_onward(None, false).collect::<Vec<_>>(),
        "SchedulerConfig": state.scheduler_config(),
    }))
}

//! Moves a cluster from a server's own store to one that servers share, and back, while no server runs.
//!
//! Everything keeps its index, and the cluster its identity. Signing keys are files beside a server's own store and
//! encrypted rows of a shared one; a copy turns the ones into the others. The source stays as it is. A copy is there as
//! a whole, read back and compared, or servers do not start on it. Begin reading at [`to_shared`].

use std::{
    collections::{BTreeMap, HashMap},
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use model::{ClusterId, signing::SigningKey};
use node_gateway::join::JOIN_SECRET_FILE;
use state::{Batch, Change, Row, State, Table};
use store::{
    Contents, DataDirLock, EtcdOptions, EtcdStore, Lost, Offline, SqliteOptions, SqliteStore, Store, StoreError,
    snapshot::{SavedFile, Snapshot, SnapshotError, SnapshotMeta},
};

use crate::{
    keyring::{self, Damaged, Keyring, KeyringError, Wrapping},
    shared::SharedKey,
};

/// What was copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copied {
    /// The cluster.
    pub cluster: ClusterId,
    /// Its index.
    pub index: u64,
    /// Rows that the copy has.
    pub rows: usize,
    /// Signing keys that it has.
    pub keys: usize,
    /// Nodes need another join secret than before, unless one is configured.
    pub other_join_secret: bool,
}

/// Why nothing was copied.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// The source has no state.
    #[error("{0} has no state to copy; check the place: no server has ever led on it")]
    Empty(
        /// The store.
        String,
    ),
    /// The source lacks what was acknowledged.
    #[error("{place} is not copied: {lost}; start its server, let it recover, and stop it again")]
    Lost {
        /// The store.
        place: String,
        /// What it lacks.
        lost: Lost,
    },
    /// The target has a state.
    #[error("{place} has a state already, of cluster {cluster} at index {index}: nothing is written there; {way_out}")]
    Inhabited {
        /// The store.
        place: String,
        /// Its cluster.
        cluster: ClusterId,
        /// Its index.
        index: u64,
        /// What to do.
        way_out: String,
    },
    /// A signing key beside the source cannot be read.
    #[error(
        "the signing key {} cannot be read ({why}), and what it has signed could not be verified any more: restore \
            the file, or delete it to give that up",
        .path.display()
    )]
    DamagedKey {
        /// Its file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// Beside the target are other signing keys.
    #[error("{} is not a signing key of this cluster as it is now: move the directory {} aside", .0.display(),
        .0.parent().unwrap_or(.0).display())]
    OtherKey(
        /// Its file.
        PathBuf,
    ),
    /// The keys that were read back are not those that were written.
    #[error("the signing keys at {0} are not those that were written; look at its disk before you try again")]
    KeysDiffer(
        /// Where they are.
        String,
    ),
    /// A file could not be read or written.
    #[error("{attempt} {path} failed: {source}", path = .path.display())]
    File {
        /// What was attempted.
        attempt: &'static str,
        /// With which file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The source's rows are not a state.
    #[error(transparent)]
    Load(#[from] state::LoadError),
    /// The keys cannot be put into the state.
    #[error(transparent)]
    Apply(#[from] state::ApplyError),
    /// Keys could not be encrypted or opened.
    #[error(transparent)]
    Keyring(#[from] KeyringError),
    /// The target could not be made.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// A store cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Copies the store in a server's directory to etcd, for servers with this key. Waits for both stores.
///
/// # Errors
/// See [`CopyError`]; etcd then has nothing that a server starts on.
pub fn to_shared(dir: &Path, options: EtcdOptions, key: &SharedKey, wrapping: &Wrapping) -> Result<Copied, CopyError> {
    let place = dir.join(SqliteStore::FILE).display().to_string();
    if !dir.join(SqliteStore::FILE).exists() {
        return Err(CopyError::Empty(place));
    }
    // Locks the directory until the end.
    let own = SqliteStore::open(dir, &SqliteOptions::default())?;
    if let Some(lost) = own.lost() {
        return Err(CopyError::Lost { place, lost });
    }
    let contents = own.load()?;
    let state = state_of(&contents, place)?;
    let keys_dir = dir.join(keyring::DIR);
    let keys = if keys_dir.is_dir() { keyring::rows_of_dir(key, wrapping, &keys_dir)? } else { Ok(Vec::new()) };
    let keys = keys.map_err(|Damaged { path, why }| CopyError::DamagedKey { path, why })?;
    let mut snapshot = snapshot_of(&state, contents, Vec::new());
    snapshot.put(snapshot.meta.index, rows_of_keys(&keys, snapshot.meta.index)?);
    // What a server would find: each key opens.
    let found =
        Keyring::of_state(key.clone(), Wrapping::default(), &State::load(snapshot.contents.rows.iter().cloned())?)?;

    let mark = options.mark.clone();
    let shared = EtcdStore::open_offline(EtcdOptions { mark: None, ..options }, Offline::Fill)?;
    let there = shared.load()?;
    if there.index != 0 {
        let place = shared.path().display().to_string();
        let way_out = "take another server.prefix, or delete the keys under this one (`etcdctl del --prefix`) if \
            nobody needs that cluster any more";
        return Err(inhabited(place, &there, way_out.to_owned()));
    }
    let (rows, keys) = (snapshot.contents.rows.len(), found.keys().0.len());
    let meta = snapshot.restore_into(&shared)?;
    // What this directory knows of an etcd is of another history.
    mark.map_or(Ok(()), |mark| forget(&mark))?;
    shared.filled()?;
    let other_join_secret = key.join_secret().ok().map(|secret| secret.expose().to_owned())
        != fs::read_to_string(dir.join(JOIN_SECRET_FILE)).ok().map(|text| text.trim().to_owned());
    Ok(Copied { cluster: state.cluster().cluster_id, index: meta.index, rows, keys, other_join_secret })
}

/// Copies what servers with this key share in etcd into the directory of a server. Waits for both stores.
///
/// # Errors
/// See [`CopyError`]; the directory then has no store.
pub fn to_own(options: EtcdOptions, key: &SharedKey, wrapping: &Wrapping, dir: &Path) -> Result<Copied, CopyError> {
    let database = dir.join(SqliteStore::FILE);
    if database.exists() {
        let there = SqliteStore::open(dir, &SqliteOptions::default())?.load()?;
        let way_out = format!("move {} aside if nobody needs that state any more", dir.display());
        return Err(inhabited(database.display().to_string(), &there, way_out));
    }
    let lock = DataDirLock::acquire(dir).map_err(|error| StoreError::Lock(Arc::new(error)))?;
    let mark = options.mark.clone().filter(|mark| mark.exists());
    let shared = EtcdStore::open_offline(EtcdOptions { mark: mark.clone(), ..options }, Offline::Read)?;
    let place = shared.path().display().to_string();
    if let Some(lost) = shared.lost() {
        return Err(CopyError::Lost { place, lost });
    }
    // Servers that start meanwhile wait.
    shared.acquire()?;
    let mut contents = shared.load()?;
    let state = state_of(&contents, place)?;
    let keys = Keyring::of_state(key.clone(), wrapping.clone(), &state)?;
    let names = |(name, content)| SavedFile { name: format!("{}/{name}", keyring::DIR), content };
    let files: Vec<SavedFile> = keys.export()?.into_iter().map(names).collect();
    let keys_dir = dir.join(keyring::DIR);
    only_these(&keys_dir, &files, wrapping)?;
    contents.rows.retain(|row| row.table != Table::SigningKeys);
    let copied = Copied {
        cluster: state.cluster().cluster_id,
        index: contents.index,
        rows: contents.rows.len(),
        keys: files.len(),
        other_join_secret: false,
    };
    let fail = |attempt, path: &Path| {
        let path = path.to_owned();
        move |source| CopyError::File { attempt, path, source }
    };
    // Nodes show what they have shown so far.
    if !dir.join(JOIN_SECRET_FILE).exists() {
        let secret = key.join_secret().map_err(|_| KeyringError::Crypto("deriving the join secret"))?;
        secret.keep_in(dir).map_err(fail("writing the join secret to", dir))?;
    }
    // The database comes last, and with it the copy is there.
    for file in &files {
        let path = dir.join(&file.name);
        file.write(dir).map_err(fail("writing", &path))?;
        let there = fs::read(&path).map_err(fail("reading", &path))?;
        if !keyring::same_key(&file.name, &there, &file.content, wrapping) {
            return Err(CopyError::KeysDiffer(keys_dir.display().to_string()));
        }
    }
    snapshot_of(&state, contents, Vec::new()).restore_locked(dir, &lock)?;
    mark.map_or(Ok(()), |mark| forget(&mark))?;
    Ok(copied)
}

fn state_of(contents: &Contents, place: String) -> Result<State, CopyError> {
    let state = State::load(contents.rows.iter().cloned())?;
    if contents.index == 0 || state.cluster().cluster_id.is_nil() { Err(CopyError::Empty(place)) } else { Ok(state) }
}

fn snapshot_of(state: &State, contents: Contents, files: Vec<SavedFile>) -> Snapshot {
    let cluster = state.cluster().cluster_id.to_string();
    let meta = SnapshotMeta { index: contents.index, cluster, ..SnapshotMeta::default() };
    Snapshot { meta, contents, files }
}

/// What is there belongs to a cluster, or is no state at all.
fn inhabited(place: String, there: &Contents, way_out: String) -> CopyError {
    match State::load(there.rows.iter().cloned()) {
        Ok(state) => CopyError::Inhabited { place, cluster: state.cluster().cluster_id, index: there.index, way_out },
        Err(error) => error.into(),
    }
}

/// The rows of keys in a state of that index, each with the index of its last change.
fn rows_of_keys(keys: &[SigningKey], newest: u64) -> Result<Vec<Row>, CopyError> {
    // A state of its own, because the rows come from changes.
    let (mut state, mut rows) = (State::new(), HashMap::new());
    let first = state.latest_index() + 1;
    let mut by_index = BTreeMap::<u64, Vec<SigningKey>>::new();
    for key in keys {
        by_index.entry(key.modify_index.clamp(first, newest.max(first))).or_default().push(key.clone());
    }
    for (index, keys) in by_index {
        let changes = keys.into_iter().map(|key| Change::PutSigningKey(Box::new(key))).collect();
        let applied = state.apply(index, 0, Batch::new(changes))?;
        rows.extend(applied.rows(&state).into_iter().map(|row| ((row.table, row.key.clone()), row)));
    }
    Ok(rows.into_values().collect())
}

/// Beside the target lies no key but these, as they are: another copy that did not come to its end has left them.
fn only_these(dir: &Path, files: &[SavedFile], wrapping: &Wrapping) -> Result<(), CopyError> {
    let listed = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        listed => listed,
    };
    let fail = |source| CopyError::File { attempt: "listing", path: dir.to_owned(), source };
    for entry in listed.map_err(fail)? {
        let path = entry.map_err(fail)?.path();
        let name = path.file_name().map(|name| format!("{}/{}", keyring::DIR, name.to_string_lossy()));
        let file = files.iter().find(|file| Some(&file.name) == name.as_ref());
        let same = file.is_some_and(|file| {
            fs::read(&path).is_ok_and(|there| keyring::same_key(&file.name, &there, &file.content, wrapping))
        });
        if !same && path.extension().is_some_and(|of| of == "json") {
            return Err(CopyError::OtherKey(path));
        }
    }
    Ok(())
}

fn forget(mark: &Path) -> Result<(), CopyError> {
    match fs::remove_file(mark) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(CopyError::File { attempt: "deleting", path: mark.to_owned(), source })
        }
        _ => Ok(()),
    }
}

//! A store in one file, for backups: its content at one index, files beside it, and a checksum over everything.
//!
//! ```text
//! drover-snapshot 2⏎   the format; 1 had no files
//! index 4711⏎          and further lines `name value`
//! ⏎
//! rows                 each: table, key and value, each with its length before it (u32, little endian);
//!                      of a file `file`, its name, its content
//! SHA-256              of everything before it
//! ```

use std::{
    collections::{BTreeMap, HashSet},
    fs,
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::{Arc, mpsc},
};

use sha2::{Digest as _, Sha256};
use state::{FORMATS, Format, Row, Table};

use crate::{
    contract::{Batch, Contents, Store, StoreError},
    formats::refused,
    mark::Mark,
    sqlite::{SqliteOptions, SqliteStore},
};

const FORMAT: &str = "drover-snapshot 2";
/// Readable formats.
const READ: [&[u8]; 2] = [b"drover-snapshot 1\n", b"drover-snapshot 2\n"];
/// Marks a file in place of a table: no table has that name.
const FILE: &str = "file";
/// The longest path of a file.
const MAX_NAME: usize = 200;
const SUM: usize = 32;
/// Directory in which a restored database is made before it moves to its place.
const RESTORING: &str = "restoring";

/// Header of a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SnapshotMeta {
    /// Index of the store.
    pub index: u64,
    /// The cluster.
    pub cluster: String,
    /// When it was made.
    pub created: String,
    /// Release that made it.
    pub release: String,
    /// Format of its rows; 0 = the first, as in snapshots that name none.
    pub format: Format,
}

/// A complete snapshot.
#[derive(Debug)]
pub struct Snapshot {
    /// Its header.
    pub meta: SnapshotMeta,
    /// Its rows.
    pub contents: Contents,
    /// Its files.
    pub files: Vec<SavedFile>,
}

/// A file beside the store, for its owner alone: keys.
#[derive(Clone, PartialEq, Eq)]
pub struct SavedFile {
    /// Path within the store's directory: `directory/name`.
    pub name: String,
    /// Its content.
    pub content: Vec<u8>,
}

impl std::fmt::Debug for SavedFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SavedFile").field("name", &self.name).finish_non_exhaustive()
    }
}

impl SavedFile {
    /// Writes it below the store's directory, for its owner alone, atomically. An existing one stays: it is no older.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn write(&self, dir: &Path) -> io::Result<()> {
        restore_file(&dir.join(&self.name), &self.content)
    }
}

/// Whether a snapshot may write that file: in a directory of its own below the store's, with a plain name.
fn plain(name: &str) -> bool {
    let part = |part: &str| {
        !part.is_empty()
            && !part.starts_with('.')
            && part.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_'))
    };
    name.len() <= MAX_NAME
        && name.split_once('/').is_some_and(|(dir, file)| part(dir) && part(file) && dir != RESTORING)
}

/// Why a snapshot is unusable.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// It is not a snapshot.
    #[error("this is not a snapshot of drover: {0}; `drover operator snapshot save` makes one")]
    Foreign(String),
    /// Its rows are in a format that this release does not read.
    #[error("the rows of the snapshot are in format {format}; {why}")]
    Format {
        /// Their format.
        format: Format,
        /// What this release reads, and which release to start.
        why: String,
    },
    /// It is damaged.
    #[error("the snapshot is damaged: {0}; use another one")]
    Damaged(String),
    /// The target exists already.
    #[error("{} is there already: a snapshot is restored into a directory without a state; stop the agent and move \
        that directory aside", .0.display())]
    Occupied(PathBuf),
    /// The target store has a state.
    #[error(
        "the store has a state already, of index {0}: a snapshot is restored into an empty store; stop its servers, \
            and use a place that nothing is stored in"
    )]
    Inhabited(
        /// Index of its state.
        u64,
    ),
    /// What was read back is not what was written.
    #[error(
        "what was written to {place} was read back, and is something else: nothing of it is used; look at the disk or \
            at etcd's members before you try again"
    )]
    Different {
        /// The store.
        place: &'static str,
    },
    /// Files cannot be made.
    #[error("restoring to {} failed: {reason}", .path.display())]
    Io {
        /// The path.
        path: PathBuf,
        /// The cause.
        reason: io::Error,
    },
    /// The new store cannot be written.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The bytes of a snapshot. Frees rows as it encodes them.
#[must_use]
pub fn encode(meta: &SnapshotMeta, contents: Contents, files: &[SavedFile]) -> Vec<u8> {
    let line = |text: &str| text.replace(['\n', '\r'], " ");
    let mut out = format!(
        "{FORMAT}\nindex {}\ncluster {}\ncreated {}\nrelease {}\nformat {}\n\n",
        contents.index,
        line(&meta.cluster),
        line(&meta.created),
        line(&meta.release),
        meta.format.max(1)
    )
    .into_bytes();
    let mut put = |parts: [&[u8]; 3]| {
        for part in parts {
            // No row comes near the limit: rows come from request bodies of a few MiB.
            out.extend(u32::try_from(part.len()).unwrap_or(u32::MAX).to_le_bytes());
            out.extend(part);
        }
    };
    for row in contents.rows {
        put([row.table.as_str().as_bytes(), &row.key, row.value.as_deref().unwrap_or_default()]);
    }
    for file in files {
        put([FILE.as_bytes(), file.name.as_bytes(), &file.content]);
    }
    let sum = Sha256::digest(&out);
    out.extend_from_slice(&sum);
    out
}

/// Reads a snapshot and checks that it is complete.
///
/// # Errors
/// When it is something else, damaged, or of a newer release.
pub fn decode(bytes: &[u8]) -> Result<Snapshot, SnapshotError> {
    if !READ.iter().any(|format| bytes.starts_with(format)) {
        let newer = bytes.starts_with(b"drover-snapshot ");
        let why = if newer { "it was made by a release with another format" } else { "it does not begin as one" };
        return Err(SnapshotError::Foreign(why.to_owned()));
    }
    let damaged = |why: &str| SnapshotError::Damaged(why.to_owned());
    let (content, sum) =
        bytes.split_at_checked(bytes.len().saturating_sub(SUM)).ok_or_else(|| damaged("it is cut off"))?;
    if Sha256::digest(content).as_slice() != sum {
        return Err(damaged("its checksum is not that of its content, it is cut off or was changed"));
    }
    let end = content.windows(2).position(|w| w == b"\n\n").ok_or_else(|| damaged("its head does not end"))?;
    let head = String::from_utf8_lossy(&content[..end]);
    let field = |name: &str| {
        head.lines().filter_map(|l| l.split_once(' ')).find(|(n, _)| *n == name).map_or("", |(_, v)| v).to_owned()
    };
    let index = field("index").parse().map_err(|_| damaged("its head has no index"))?;
    let (cluster, created, release) = (field("cluster"), field("created"), field("release"));
    let format = match &*field("format") {
        "" => 1,
        number => number.parse().map_err(|_| damaged("the format in its head is no number"))?,
    };
    if let Some(why) = refused(format, &release, FORMATS, env!("CARGO_PKG_VERSION")) {
        return Err(SnapshotError::Format { format, why });
    }
    let meta = SnapshotMeta { index, cluster, created, release, format };
    let mut rest = &content[end + 2..];
    let mut part = || -> Option<&[u8]> {
        let (length, after) = rest.split_first_chunk::<4>()?;
        let (part, after) = after.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        rest = after;
        Some(part)
    };
    let (mut rows, mut files) = (Vec::new(), Vec::new());
    while let Some(table) = part() {
        let (Some(key), Some(value)) = (part(), part()) else { return Err(damaged("its last row is cut off")) };
        let name = String::from_utf8_lossy(table);
        if name == FILE {
            let name = String::from_utf8_lossy(key).into_owned();
            if !plain(&name) {
                return Err(damaged(&format!("it has a file {name:?}, which is none that belongs to a state")));
            }
            files.push(SavedFile { name, content: value.to_vec() });
            continue;
        }
        let table = Table::from_name(&name)
            .ok_or_else(|| damaged(&format!("it has rows in the table {name:?}, which this release does not know")))?;
        rows.push(Row { table, key: key.to_vec(), value: Some(value.to_vec()) });
    }
    if !rest.is_empty() {
        return Err(damaged("its last row is cut off"));
    }
    Ok(Snapshot { meta, contents: Contents { index, rows }, files })
}

impl Snapshot {
    /// Number of rows and their bytes by table.
    #[must_use]
    pub fn tables(&self) -> BTreeMap<&'static str, (usize, usize)> {
        let mut tables = BTreeMap::<_, (usize, usize)>::new();
        for row in &self.contents.rows {
            let entry = tables.entry(row.table.as_str()).or_default();
            *entry = (entry.0 + 1, entry.1 + row.key.len() + row.value.as_ref().map_or(0, Vec::len));
        }
        tables
    }

    /// Adds rows at a later index.
    pub fn put(&mut self, index: u64, rows: Vec<Row>) {
        let new: HashSet<(Table, &[u8])> = rows.iter().map(|row| (row.table, &*row.key)).collect();
        self.contents.rows.retain(|row| !new.contains(&(row.table, &*row.key)));
        drop(new);
        self.contents.rows.extend(rows.into_iter().filter(|row| row.value.is_some()));
        (self.contents.index, self.meta.index) = (index, index);
    }

    /// Makes a server's store from it, in a directory without one, atomically, and after it was read back.
    ///
    /// # Errors
    /// When there is a store already, another process uses the directory, or the disk refuses.
    pub fn restore(self, dir: &Path) -> Result<SnapshotMeta, SnapshotError> {
        occupied(dir)?;
        // Held until the end: no agent starts on an incomplete store.
        let lock = crate::DataDirLock::acquire(dir).map_err(|e| StoreError::Lock(Arc::new(e)))?;
        self.restore_locked(dir, &lock)
    }

    /// The same for somebody who holds the lock of the directory already.
    ///
    /// # Errors
    /// As [`Self::restore`].
    pub fn restore_locked(self, dir: &Path, _lock: &crate::DataDirLock) -> Result<SnapshotMeta, SnapshotError> {
        let io = |path: &Path| {
            let path = path.to_owned();
            move |reason| SnapshotError::Io { path, reason }
        };
        occupied(dir)?;
        let target = dir.join(SqliteStore::FILE);
        let making = dir.join(RESTORING);
        if making.exists() {
            // The mark of an interrupted one comes before the rest.
            match fs::remove_file(Mark::path(&target)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(io(&target)(error)),
                _ => fs::remove_dir_all(&making).map_err(io(&making))?,
            }
        }
        let store = SqliteStore::open(&making, &SqliteOptions::default())?;
        commit(&store, self.contents, "the database")?;
        // Copies the write-ahead log into the database, and removes it.
        drop(store);
        // Before the database, which completes the store.
        for file in &self.files {
            let path = dir.join(&file.name);
            restore_file(&path, &file.content).map_err(io(&path))?;
        }
        let made = making.join(SqliteStore::FILE);
        fs::File::open(&made).and_then(|file| file.sync_all()).map_err(io(&made))?;
        // The mark first: the store refuses an empty database beside a mark, but accepts a database without one.
        fs::rename(Mark::path(&made), Mark::path(&target)).map_err(io(&target))?;
        fs::rename(&made, &target).map_err(io(&target))?;
        fs::remove_dir_all(&making).map_err(io(&making))?;
        fs::File::open(dir).and_then(|dir| dir.sync_all()).map_err(io(dir))?;
        Ok(self.meta)
    }

    /// Makes it the content of an empty store, as one batch, and reads it back. Its files are the caller's: a store has
    /// none.
    ///
    /// # Errors
    /// When the store has a state, or refuses.
    pub fn restore_into(self, store: &dyn Store) -> Result<SnapshotMeta, SnapshotError> {
        // Before it is acquired: servers that work on it are left alone.
        let found = store.load()?.index;
        if found != 0 {
            return Err(SnapshotError::Inhabited(found));
        }
        commit(store, self.contents, "the store")?;
        Ok(self.meta)
    }
}

/// Whether the directory has a store, also one that has lost its database; an interrupted restore is none.
fn occupied(dir: &Path) -> Result<(), SnapshotError> {
    let target = dir.join(SqliteStore::FILE);
    let mark = Mark::path(&target);
    let interrupted = dir.join(RESTORING).join(SqliteStore::FILE).exists();
    let occupied = [(&target, true), (&mark, !interrupted)].into_iter().find(|(path, counts)| *counts && path.exists());
    occupied.map_or(Ok(()), |(path, _)| Err(SnapshotError::Occupied(path.clone())))
}

/// Stores the rows as the first batch, and reads them back.
fn commit(store: &dyn Store, contents: Contents, place: &'static str) -> Result<(), SnapshotError> {
    let (index, expected) = (contents.index, digest(&contents));
    let fence = store.acquire()?;
    let (tx, rx) = mpsc::channel();
    let batch = Batch { fence, base: 0, index, rows: Box::new(move |_| contents.rows), more: false };
    store.submit(batch, Box::new(move |result| drop(tx.send(result))));
    rx.recv().map_err(|_| StoreError::Closed)??;
    if digest(&store.load()?) != expected { Err(SnapshotError::Different { place }) } else { Ok(()) }
}

/// SHA-256 of the index and all rows, whatever their order.
fn digest(contents: &Contents) -> [u8; SUM] {
    let mut rows: Vec<&Row> = contents.rows.iter().collect();
    rows.sort_by(|a, b| (a.table.as_str(), &a.key).cmp(&(b.table.as_str(), &b.key)));
    let mut sum = Sha256::new();
    sum.update(contents.index.to_le_bytes());
    for row in rows {
        for part in [row.table.as_str().as_bytes(), &row.key, row.value.as_deref().unwrap_or_default()] {
            sum.update((part.len() as u64).to_le_bytes());
            sum.update(part);
        }
    }
    sum.finalize().into()
}

/// For its owner alone, atomically. An existing one stays: it is no older.
fn restore_file(path: &Path, content: &[u8]) -> io::Result<()> {
    if path.exists() {
        return Ok(());
    }
    let dir = path.parent().unwrap_or(path);
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let mut part = path.as_os_str().to_owned();
    part.push(".tmp");
    let part = PathBuf::from(part);
    let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&part)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&part, path)?;
    fs::File::open(dir)?.sync_all()
}

//! The contract that every backend fulfils.

use std::{fmt, path::PathBuf, sync::Arc, time::Duration};

use state::{FORMATS, Format, Row};

use crate::recent::Watch;

/// Approximate bytes that a row adds to a batch.
pub(crate) fn row_bytes(row: &Row) -> usize {
    row.key.len() + row.value.as_ref().map_or(0, Vec::len) + 16
}

/// Right to write. A newer fence invalidates all older ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fence(pub u64);

/// Rows to commit together.
pub struct Batch {
    /// Fence of the writer.
    pub fence: Fence,
    /// Index that the batch was built on. The store refuses it at any other index, because the batch's base was not
    /// committed.
    pub base: u64,
    /// Index of the store after the commit; above `base`.
    pub index: u64,
    /// Makes the rows when the batch's turn has come, in the format that the store then has: the encoding happens off
    /// the path that decides.
    pub rows: Box<dyn FnOnce(Format) -> Vec<Row> + Send>,
    /// Another batch follows at once, as a plan follows its evaluation. A hint: the store may wait for a moment, so
    /// that one transaction takes both.
    pub more: bool,
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch")
            .field("fence", &self.fence)
            .field("base", &self.base)
            .field("index", &self.index)
            .finish_non_exhaustive()
    }
}

/// Acknowledged batches that a store has lost: those with indexes above `found`, up to `acknowledged`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost {
    /// Index of the newest batch in the store.
    pub found: u64,
    /// Highest acknowledged index.
    pub acknowledged: u64,
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { found, acknowledged } = self;
        write!(
            f,
            "the database has lost changes that were acknowledged, those of the indexes {} to {acknowledged}: its \
                write-ahead log was cut off or \
             deleted, or an older copy was put in its place",
            found + 1
        )
    }
}

/// Called when a batch is durable or refused, in the order of submission, on a thread of the store: keep it short.
pub type Done = Box<dyn FnOnce(Result<(), StoreError>) + Send>;

/// Everything in a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// Index of the newest batch; 0 = none was ever committed.
    pub index: u64,
    /// All rows, each with a value.
    pub rows: Vec<Row>,
}

/// A committed batch as watchers see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// Index of the batch.
    pub index: u64,
    /// Its rows.
    pub rows: Vec<Row>,
}

/// Numbers for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreStats {
    /// Batches committed.
    pub batches: u64,
    /// Their transactions: one fsync each.
    pub transactions: u64,
    /// Bytes of rows.
    pub bytes: u64,
}

/// The contract of a backend.
pub trait Store: Send + Sync + fmt::Debug {
    /// Everything committed.
    ///
    /// # Errors
    /// When the backend cannot be read.
    fn load(&self) -> Result<Contents, StoreError>;

    /// Takes over writing: the returned fence is durably newer than any before.
    ///
    /// # Errors
    /// When the backend cannot be written.
    fn acquire(&self) -> Result<Fence, StoreError>;

    /// Queues a batch. The store commits it if its fence is the newest and its base is the store's index; otherwise it
    /// refuses the whole batch. Batches queued during an fsync share the next one.
    fn submit(&self, batch: Batch, done: Done);

    /// The batches after `index`, in order.
    ///
    /// # Errors
    /// [`StoreError::Compacted`] when batches after `index` are no longer kept: load again and watch from there.
    fn watch(&self, index: u64) -> Result<Watch, StoreError>;

    /// Whether others follow the batches with [`Self::watch`]: then they carry what followers tell people.
    fn followed(&self) -> bool {
        false
    }

    /// When the right to write was last seen to be ours, as the boot clock's time at which that was asked; None =
    /// nobody else can take it while this store is open. What a server grants to others ends with this right: a grant
    /// must not outlast this moment by more than a successor waits.
    fn confirmed(&self) -> Option<Duration> {
        None
    }

    /// Whether the servers have yet to recover from a loss that was found when this store was opened; asked after
    /// [`Self::acquire`]. Another one may have led since, and have ended the recovery.
    fn still_lost(&self, _: Lost) -> bool {
        true
    }

    /// A recovery has ended with the batch of this index: those who share the store and have found the same loss do not
    /// begin it again.
    ///
    /// # Errors
    /// When that could not be written down. Another server may begin the recovery again then, which costs time alone.
    fn note_recovery(&self, _: u64) -> Result<(), StoreError> {
        Ok(())
    }

    /// The format that batches are written in: all that use the store read it.
    fn format(&self) -> Format {
        FORMATS.highest
    }

    /// Makes a write without effect, to check whether the backend accepts writes (again).
    ///
    /// # Errors
    /// When it does not, with the reason.
    fn probe(&self) -> Result<(), StoreError>;

    /// Commits queued batches and releases everything. Refuses later calls.
    fn close(&self);

    /// Numbers for metrics.
    fn stats(&self) -> StoreStats;
}

/// Why the store failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// Another writer has taken over.
    #[error("another server has taken over writing (fence {newest}, ours is {ours})")]
    Fenced {
        /// The newest fence.
        newest: u64,
        /// The batch's fence.
        ours: u64,
    },
    /// Another server leads, and this one has not taken over.
    #[error("the server {leader} leads")]
    Held {
        /// Name of that server.
        leader: Arc<str>,
    },
    /// The batch was built on an index that was not committed.
    #[error("the batch was built on index {base}, but the store is at {actual}")]
    WrongBase {
        /// Base of the batch.
        base: u64,
        /// Index of the store.
        actual: u64,
    },
    /// There is no room.
    #[error("no space left for {}: {reason}; free some space, nothing is corrupted and reads go on", .path.display())]
    Full {
        /// Path of the store.
        path: PathBuf,
        /// The backend's message.
        reason: Arc<str>,
    },
    /// The backend failed in another way; the batch was rolled back.
    #[error("{attempt} in {} failed: {reason}", .path.display())]
    Backend {
        /// What was attempted.
        attempt: &'static str,
        /// Path of the store.
        path: PathBuf,
        /// The backend's message.
        reason: Arc<str>,
    },
    /// What the store has is unknown: the process must end and read it again.
    #[error("writing to {} failed, its content is no longer certain: {reason}; the server must restart and read it \
        again", .path.display())]
    Fatal {
        /// Path of the store.
        path: PathBuf,
        /// The backend's message.
        reason: Arc<str>,
    },
    /// The content of the disk differs from what was written.
    #[error(
        "the database {} is damaged ({what}), nothing of it is used: stop the agent, move its directory aside, and \
            restore a snapshot with \
         `drover operator snapshot restore`, or a copy from before",
        .path.display()
    )]
    Damaged {
        /// Path of the store.
        path: PathBuf,
        /// The damage.
        what: Arc<str>,
    },
    /// All acknowledged changes are missing.
    #[error(
        "the database {} is empty, but changes up to index {acknowledged} were acknowledged: it or its write-ahead \
            log was deleted or emptied. Bring \
         back its files as they were, or a copy, or restore a snapshot; to have the nodes tell what they have \
         instead, set server.cluster_id to the \
         cluster of the nodes, which their logs name",
        .path.display()
    )]
    Emptied {
        /// Path of the store.
        path: PathBuf,
        /// Highest acknowledged index.
        acknowledged: u64,
    },
    /// A store that servers share has no cluster, and this server knows of one there.
    #[error(
        "{} has no cluster, but this server knows of changes up to index {acknowledged} that were acknowledged there, \
            and nothing is begun in their place: its keys were deleted, or server.endpoints or server.prefix name \
            another place. Correct these, or restore a copy of etcd's data, or a snapshot with `drover operator \
            snapshot restore`; to have the nodes tell what they have instead, set server.cluster_id to the cluster of \
            the nodes, which their logs name; to begin another cluster, delete the file server/etcd in the data_dir \
            of each server",
        .path.display()
    )]
    NoCluster {
        /// Path of the store.
        path: PathBuf,
        /// Highest index that this server knows of.
        acknowledged: u64,
    },
    /// Another process has the database open.
    #[error("the database {} is in use by {holder}: stop that process; each agent needs a data directory \
        of its own", .path.display())]
    Locked {
        /// Path of the store.
        path: PathBuf,
        /// The process.
        holder: Arc<str>,
    },
    /// Another release wrote the database.
    #[error("{} has schema version {found}, this release reads {supported}: use a release that \
        knows it", .path.display())]
    Schema {
        /// Path of the store.
        path: PathBuf,
        /// Version in the database.
        found: i64,
        /// Version of this release.
        supported: i64,
    },
    /// It is in a format that this release does not read.
    #[error("{} is in format {in_use}; {why}", .path.display())]
    Format {
        /// Path of the store.
        path: PathBuf,
        /// Its format.
        in_use: Format,
        /// What this release reads, and which release to start.
        why: Arc<str>,
    },
    /// The database has a table unknown to this release.
    #[error("{} has rows in the table {table:?}, which this release does not know: use a release \
        that does", .path.display())]
    UnknownTable {
        /// Path of the store.
        path: PathBuf,
        /// Name of the table.
        table: String,
    },
    /// The data directory cannot be used.
    #[error(transparent)]
    Lock(Arc<crate::lock::LockError>),
    /// The store no longer keeps batches in between.
    #[error("changes after index {asked} are no longer kept, the oldest kept is {oldest}: load everything again")]
    Compacted {
        /// Requested index.
        asked: u64,
        /// Index of the oldest batch kept.
        oldest: u64,
    },
    /// A server uses it, and nobody else may.
    #[error(
        "{} is used by {by}: stop it and try again; the traces of one that was killed end by themselves within 10 s",
        .path.display()
    )]
    InUse {
        /// Path of the store.
        path: PathBuf,
        /// The servers.
        by: Arc<str>,
    },
    /// It was being filled from elsewhere, and that has not come to its end.
    #[error(
        "{} is being filled, or was and that was interrupted: no server uses it before that is done; run `drover \
            operator store copy` or `drover operator snapshot restore` again",
        .path.display()
    )]
    Unfinished {
        /// Path of the store.
        path: PathBuf,
    },
    /// The store was closed.
    #[error("the store is closed")]
    Closed,
}

impl StoreError {
    /// Whether the process has to end.
    #[must_use]
    pub fn fatal(&self) -> bool {
        matches!(self, Self::Fatal { .. } | Self::Damaged { .. } | Self::Fenced { .. } | Self::Format { .. })
    }
}

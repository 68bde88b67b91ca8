//! The contract that every backend fulfils.

use std::{fmt, path::PathBuf, sync::Arc};

use state::Row;

use crate::recent::Watch;

/// About how much a row adds to a batch.
pub(crate) fn row_bytes(row: &Row) -> usize {
    row.key.len() + row.value.as_ref().map_or(0, Vec::len) + 16
}

/// Right to write. A newer fence makes all older ones worthless.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fence(pub u64);

/// What is committed together.
pub struct Batch {
    /// The writer's right to write.
    pub fence: Fence,
    /// Index that the batch was built on; it is refused when the store is elsewhere, because what it was built on was not committed.
    pub base: u64,
    /// Index of the store after the commit; above `base`.
    pub index: u64,
    /// The rows, made when the batch's turn has come: turning objects into bytes happens off the path that decides.
    pub rows: Box<dyn FnOnce() -> Vec<Row> + Send>,
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("fence", &self.fence).field("base", &self.base).field("index", &self.index).finish_non_exhaustive()
    }
}

/// What a store has lost although it was acknowledged: the batches with the indexes above `found`, up to `acknowledged`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost {
    /// Index of the newest batch that is there.
    pub found: u64,
    /// Highest index that was acknowledged.
    pub acknowledged: u64,
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { found, acknowledged } = self;
        write!(
            f,
            "the database has lost changes that were acknowledged, those of the indexes {} to {acknowledged}: its write-ahead log was cut off or \
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
    /// Index of the newest batch; 0 = nothing was ever committed.
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
    /// Transactions that this took: one fsync each.
    pub transactions: u64,
    /// Bytes of rows.
    pub bytes: u64,
}

/// The contract.
pub trait Store: Send + Sync + fmt::Debug {
    /// Everything that is committed.
    ///
    /// # Errors
    /// When the backend cannot be read.
    fn load(&self) -> Result<Contents, StoreError>;

    /// Takes over writing: the returned fence is newer than any before, durably.
    ///
    /// # Errors
    /// When the backend cannot be written.
    fn acquire(&self) -> Result<Fence, StoreError>;

    /// Queues a batch. It is committed when its fence is the newest and its base is the store's index; else it is refused and nothing of it is
    /// kept. Whatever is queued while an fsync runs shares the next one.
    fn submit(&self, batch: Batch, done: Done);

    /// What is committed after `index`, in order.
    ///
    /// # Errors
    /// [`StoreError::Compacted`] when batches after `index` are no longer kept: load again and watch from there.
    fn watch(&self, index: u64) -> Result<Watch, StoreError>;

    /// Writes something that changes nothing, to see whether the backend takes writes (again).
    ///
    /// # Errors
    /// When it does not, with the reason.
    fn probe(&self) -> Result<(), StoreError>;

    /// Commits what is queued and lets go of everything. What comes later is refused.
    fn close(&self);

    /// Numbers for metrics.
    fn stats(&self) -> StoreStats;
}

/// Why the store did not do what it was asked.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// Another writer has taken over.
    #[error("another server has taken over writing (fence {newest}, ours is {ours})")]
    Fenced {
        /// The newest fence.
        newest: u64,
        /// That of the batch.
        ours: u64,
    },
    /// The batch was built on something that was not committed.
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
        /// Where.
        path: PathBuf,
        /// What the backend says.
        reason: Arc<str>,
    },
    /// The backend failed in another way; the batch was rolled back.
    #[error("{attempt} in {} failed: {reason}", .path.display())]
    Backend {
        /// What was attempted.
        attempt: &'static str,
        /// Where.
        path: PathBuf,
        /// What the backend says.
        reason: Arc<str>,
    },
    /// It is not known what is on the disk: the process must end and read it again.
    #[error("writing {} to the disk failed, its content is no longer certain: {reason}; the server must restart", .path.display())]
    Fatal {
        /// Where.
        path: PathBuf,
        /// What the backend says.
        reason: Arc<str>,
    },
    /// What is on the disk is not what was written.
    #[error(
        "the database {} is damaged ({what}), nothing of it is used: stop the agent, move its directory aside, and restore a snapshot with \
         `drover operator snapshot restore`, or a copy from before",
        .path.display()
    )]
    Damaged {
        /// Where.
        path: PathBuf,
        /// What was found.
        what: Arc<str>,
    },
    /// Nothing is left of what was acknowledged.
    #[error(
        "the database {} is empty, but changes up to index {acknowledged} were acknowledged: it or its write-ahead log was deleted or emptied. Bring \
         back its files as they were, or a copy, or restore a snapshot; to have the nodes tell what they have instead, set server.cluster_id to the \
         cluster of the nodes, which their logs name",
        .path.display()
    )]
    Emptied {
        /// Where.
        path: PathBuf,
        /// Highest index that was acknowledged.
        acknowledged: u64,
    },
    /// Another process has the database open.
    #[error("the database {} is in use by {holder}: stop that process; each agent needs a data directory of its own", .path.display())]
    Locked {
        /// Where.
        path: PathBuf,
        /// Who.
        holder: Arc<str>,
    },
    /// Written by another release.
    #[error("{} has schema version {found}, this release reads {supported}: use a release that knows it", .path.display())]
    Schema {
        /// Where.
        path: PathBuf,
        /// Version found.
        found: i64,
        /// Version of this release.
        supported: i64,
    },
    /// Holds a table that this release does not know.
    #[error("{} has rows in the table {table:?}, which this release does not know: use a release that does", .path.display())]
    UnknownTable {
        /// Where.
        path: PathBuf,
        /// Name of the table.
        table: String,
    },
    /// The data directory cannot be used.
    #[error(transparent)]
    Lock(Arc<crate::lock::LockError>),
    /// Batches in between are no longer kept.
    #[error("changes after index {asked} are no longer kept, the oldest kept is {oldest}: load everything again")]
    Compacted {
        /// Index that was asked for.
        asked: u64,
        /// Oldest batch that is kept.
        oldest: u64,
    },
    /// The store was closed.
    #[error("the store is closed")]
    Closed,
}

impl StoreError {
    /// True when the process has to end.
    #[must_use]
    pub fn fatal(&self) -> bool {
        matches!(self, Self::Fatal { .. } | Self::Damaged { .. } | Self::Fenced { .. })
    }
}

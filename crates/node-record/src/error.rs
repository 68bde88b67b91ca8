//! Why the node's records cannot be read or written.

use std::path::PathBuf;

/// Why the local store refused.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// SQLite refused.
    #[error("{doing} in the node's store {}: {why}; check free space and permissions of its directory", path.display())]
    Database {
        /// What was attempted.
        doing: &'static str,
        /// The database file.
        path: PathBuf,
        /// Error text of SQLite.
        why: String,
    },
    /// What tells who the node is, is not what was written.
    #[error(
        "the node's store {} is damaged: {what}. Without it this would be another node: bring back a copy of the directory from before, or delete it; the \
         agent is a new node then, and ends what this one has left running",
        path.display()
    )]
    Damaged {
        /// The database file.
        path: PathBuf,
        /// Which record.
        what: String,
    },
    /// The store was written by a newer release.
    #[error("the node's store {} has format {found}, this release reads up to {known}; start the newer release again or give the agent another data_dir", path.display())]
    TooNew {
        /// The database file.
        path: PathBuf,
        /// Its format.
        found: i64,
        /// Ours.
        known: i64,
    },
    /// The node is stopping.
    #[error("the node is stopping")]
    Closed,
}

//! Errors of the node's store.

use std::path::PathBuf;

/// Why the local store failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// SQLite reports an error.
    #[error("{doing} in the node's store {}: {why}; check free space and permissions of its directory", path.display())]
    Database {
        /// What was attempted.
        doing: &'static str,
        /// The database file.
        path: PathBuf,
        /// Error text of SQLite.
        why: String,
    },
    /// A record of the node's identity is damaged.
    #[error(
        "the node's store {} is damaged: {what}. Without it this would be another node: bring back a copy of the \
            directory from before, or delete it; the \
         agent is a new node then, and ends what this one has left running",
        path.display()
    )]
    Damaged {
        /// The database file.
        path: PathBuf,
        /// Name of the record.
        what: String,
    },
    /// A newer release wrote the store.
    #[error("the node's store {} has format {found}, this release reads up to {known}; start the newer release again \
        or give the agent another data_dir", path.display())]
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

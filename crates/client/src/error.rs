//! Errors of the node, by who can do something about them.

use std::path::{Path, PathBuf};

/// Why a node could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Another agent uses the same data directory.
    #[error("{} is in use by the agent with pid {pid}; stop that agent or give this one a data_dir of its own", dir.display())]
    InUse {
        /// The directory.
        dir: PathBuf,
        /// The holder.
        pid: String,
    },
    /// A file operation failed.
    #[error("{doing} {}: {source}", path.display())]
    Io {
        /// What was attempted.
        doing: &'static str,
        /// On what.
        path: PathBuf,
        /// Why it failed.
        source: std::io::Error,
    },
    /// The local store cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The configuration makes no sense.
    #[error("client configuration: {0}")]
    Config(String),
    /// The plugin host could not be set up.
    #[error("set up the driver plugins: {0}")]
    Drivers(String),
}

impl StartError {
    pub(crate) fn io(doing: &'static str, path: impl AsRef<Path>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.as_ref().to_owned();
        move |source| Self::Io { doing, path, source }
    }
}

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
        /// SQLite's words.
        why: String,
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

/// Why a request to the node was not carried out; the HTTP layer turns it into a status.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// 404.
    #[error("{0}")]
    NotFound(String),
    /// 400.
    #[error("{0}")]
    Invalid(String),
    /// 500.
    #[error("{0}")]
    Failed(String),
}

impl RequestError {
    pub(crate) fn unknown_alloc(id: impl std::fmt::Display) -> Self {
        Self::NotFound(format!("Unknown allocation {id:?}", id = id.to_string()))
    }
    pub(crate) fn unknown_task(task: &str) -> Self {
        Self::NotFound(format!("unknown task name {task:?}"))
    }
}

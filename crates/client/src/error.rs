//! Errors of the node, by who can do something about them.

use std::path::{Path, PathBuf};

use hooks::drivers::ReloadError;
use node_record::StoreError;

/// Why a node could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Another agent uses the same data directory.
    #[error("{} is in use by the agent with pid {pid}; stop that agent or give this one a data_dir \
        of its own", dir.display())]
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

impl From<ReloadError> for RequestError {
    fn from(error: ReloadError) -> Self {
        match error {
            ReloadError::Unknown(why) => Self::NotFound(why),
            ReloadError::Refused(why) => Self::Invalid(why),
            ReloadError::Failed(why) => Self::Failed(why),
        }
    }
}

impl RequestError {
    pub(crate) fn unknown_alloc(id: impl std::fmt::Display) -> Self {
        Self::NotFound(format!("Unknown allocation {id:?}", id = id.to_string()))
    }
    pub(crate) fn unknown_task(task: &str) -> Self {
        Self::NotFound(format!("unknown task name {task:?}"))
    }
}

//! Why certificates and keys cannot be used.

use std::{io, path::PathBuf};

/// Why files or settings of TLS cannot be used. `setting` is the name by which the person has given the file.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file is needed and not named.
    #[error("{setting} is missing: {why}")]
    Missing {
        /// Name of the setting.
        setting: &'static str,
        /// What needs it.
        why: &'static str,
    },
    /// A file cannot be read.
    #[error("{setting} {}: cannot be read: {source}", .path.display())]
    Read {
        /// Name of the setting.
        setting: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file does not hold what it should.
    #[error("{setting} {}: {why}", .path.display())]
    Content {
        /// Name of the setting.
        setting: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong, and what to do.
        why: String,
    },
    /// This system has no root certificates.
    #[error("this system has no root certificates ({0}); install them, or name the authority (-ca-cert, ca_file)")]
    NoRoots(String),
    /// Settings that exclude each other, or that no configuration can be made from.
    #[error("{0}")]
    Settings(String),
}

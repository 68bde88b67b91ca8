//! Why a fetch has failed, by what another attempt can do about it.

use std::io;

/// Why a fetch has failed.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The server answered, and not with the artifact.
    #[error("{url} answered {status}")]
    Status {
        /// What was asked for, without secrets.
        url: String,
        /// Its answer.
        status: u16,
    },
    /// The server did not answer, or not to the end.
    #[error("download {url}: {why}")]
    Network {
        /// What was asked for, without secrets.
        url: String,
        /// What happened.
        why: String,
    },
    /// The server is not who it should be, or the address cannot be one.
    #[error("download {url}: {why}")]
    Untrusted {
        /// What was asked for, without secrets.
        url: String,
        /// What happened.
        why: String,
    },
    /// More bytes than the operator allows.
    #[error("it is larger than {limit} bytes ({option} of the agent's artifact block)")]
    TooLarge {
        /// The bound.
        limit: u64,
        /// Where it is set.
        option: &'static str,
    },
    /// Not what the job asks for.
    #[error("checksum mismatch: the job wants {wanted}, the file has {found}")]
    Checksum {
        /// Of the job.
        wanted: String,
        /// Of what was fetched.
        found: String,
    },
    /// The file of digests has none for it.
    #[error("{list} has no checksum for {name:?}")]
    NoChecksum {
        /// The file of digests.
        list: String,
        /// What was looked for.
        name: String,
    },
    /// The archive is damaged, or has what may not be unpacked.
    #[error("unpack the archive: {0}")]
    Archive(String),
    /// It would leave the destination, or something is in its way.
    #[error("{0}")]
    Place(String),
    /// The job or the operator does not allow it.
    #[error("{0}")]
    Refused(String),
    /// git has failed.
    #[error("git {verb}: {why}")]
    Git {
        /// clone, checkout, …
        verb: &'static str,
        /// The end of what it has written.
        why: String,
        /// The network, rather than what the job asks for.
        transient: bool,
    },
    /// The host refuses.
    #[error("{doing}: {source}")]
    Io {
        /// What was attempted.
        doing: String,
        /// Why it failed.
        source: io::Error,
    },
}

impl FetchError {
    /// Another attempt may succeed.
    #[must_use]
    pub fn recoverable(&self) -> bool {
        match self {
            Self::Status { status, .. } => *status >= 500 || matches!(status, 408 | 425 | 429),
            Self::Network { .. } | Self::Io { .. } => true,
            Self::Git { transient, .. } => *transient,
            Self::Untrusted { .. }
            | Self::TooLarge { .. }
            | Self::Checksum { .. }
            | Self::NoChecksum { .. }
            | Self::Archive(_)
            | Self::Place(_)
            | Self::Refused(_) => false,
        }
    }

    pub(crate) fn io(doing: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let doing = doing.into();
        move |source| Self::Io { doing, source }
    }
}

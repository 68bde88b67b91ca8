//! What the fetching process is told on stdin, and what it answers on stdout: one JSON value each.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    isolation::ExtraPath,
    source::{Getter, Mode, Source},
};

/// Bounds of one fetch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// An HTTP download must be complete after this long.
    pub http_timeout: Duration,
    /// Bytes of an HTTP or S3 download.
    pub http_max_bytes: u64,
    /// All of git's work must be done after this long.
    pub git_timeout: Duration,
    /// An S3 download must be complete after this long.
    pub s3_timeout: Duration,
    /// Entries of an archive; 0 = any number.
    pub unpacked_files: u64,
    /// Bytes that come out of an archive; 0 = any number.
    pub unpacked_bytes: u64,
}

impl Default for Limits {
    /// As Nomad documents them.
    fn default() -> Self {
        let half_an_hour = Duration::from_secs(30 * 60);
        Self {
            http_timeout: half_an_hour,
            http_max_bytes: 100_000_000_000,
            git_timeout: half_an_hour,
            s3_timeout: half_an_hour,
            unpacked_files: 4096,
            unpacked_bytes: 100_000_000_000,
        }
    }
}

/// One fetch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spec {
    /// From where.
    pub source: Source,
    /// What the destination becomes.
    pub mode: Mode,
    /// Sent with HTTP requests, and to no other host than the source's.
    pub headers: BTreeMap<String, String>,
    /// Certificates are not verified.
    pub insecure: bool,
    /// The directory that nothing of the artifact may leave. Links in it are not followed.
    pub root: PathBuf,
    /// Below the root, names only.
    pub destination: Vec<String>,
    /// An empty directory that nobody else uses, below the root, names only. It is left with what was not placed.
    pub staging: Vec<String>,
    /// Who gets the files; `None` = they stay the node's.
    pub owner: Option<(u32, u32)>,
    /// Bounds.
    pub limits: Limits,
    /// Restrict the process to the directories that it needs, where the kernel can.
    pub isolate: bool,
    /// Further paths that it may use; the readable directories among them are what file sources may name.
    pub extra_paths: Vec<ExtraPath>,
}

impl Spec {
    /// After this long it has failed, whatever it is at; with the option that says so. The caller ends the process
    /// then.
    #[must_use]
    pub fn timeout(&self) -> (Duration, &'static str) {
        match self.source.getter {
            Getter::Git { .. } => (self.limits.git_timeout, "git_timeout"),
            Getter::S3(_) => (self.limits.s3_timeout, "s3_timeout"),
            Getter::Http { .. } | Getter::File { .. } => (self.limits.http_timeout, "http_read_timeout"),
        }
    }
}

/// What became of a fetch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Report {
    /// Everything is in its place and on disk.
    Done {
        /// Files placed.
        files: u64,
        /// Their bytes.
        bytes: u64,
        /// Why the process was not confined as the operator wants; empty = it was, or was not to be.
        not_isolated: String,
    },
    /// Nothing was placed, or not everything.
    Failed {
        /// For people.
        why: String,
        /// Another attempt may succeed.
        recoverable: bool,
    },
}

//! What can go wrong between a controller and its executors. Here, because both of them contain what a killed executor leaves.

use std::path::{Path, PathBuf};

use executor_proto::{ErrorCode, Failure, FrameError};

/// Failure of an operation on an executor. The kinds are for decisions, the text is for people.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file operation of the controller itself.
    #[error("{doing} {}: {source}", path.display())]
    Io {
        /// What was attempted.
        doing: &'static str,
        /// On what.
        path: PathBuf,
        /// Why it failed.
        source: std::io::Error,
    },
    /// The program of the workload could not be executed. Trying again on this host gives the same answer.
    #[error("cannot run {}: {message}", command.display())]
    Exec {
        /// The program.
        command: PathBuf,
        /// What the kernel said.
        message: String,
        /// Operating-system error number.
        errno: i32,
    },
    /// The executor could not set up what was asked.
    #[error("the executor in {} could not start: {message}", state_dir.display())]
    Launch {
        /// Its state directory.
        state_dir: PathBuf,
        /// What it said.
        message: String,
        /// Operating-system error number, 0 when there is none.
        errno: i32,
    },
    /// The executor was killed, or broke off, while it started its workload. Nothing of that is left; trying again may help.
    #[error("the executor in {} ended without a word while it was starting; the file executor.panic there may say why", state_dir.display())]
    Vanished {
        /// Its state directory.
        state_dir: PathBuf,
    },
    /// A newer manager has taken over; this call changed nothing.
    #[error("epoch {given} is stale: epoch {current} has been accepted by the workload in {}", state_dir.display())]
    StaleEpoch {
        /// Its state directory.
        state_dir: PathBuf,
        /// The call's epoch.
        given: u64,
        /// The epoch that holds.
        current: u64,
    },
    /// The workload has already ended.
    #[error("the workload in {} has already ended", state_dir.display())]
    NotRunning {
        /// Its state directory.
        state_dir: PathBuf,
    },
    /// A job names a user that this host does not have.
    #[error("unknown user {}: this host has no account of that name", name.escape_debug())]
    NoSuchUser {
        /// The name.
        name: String,
    },
    /// Nothing was ever started in this state directory.
    #[error("no executor was started in {}", state_dir.display())]
    Absent {
        /// The directory.
        state_dir: PathBuf,
    },
    /// The executor refused the request.
    #[error("the executor in {} refused: {message}", state_dir.display())]
    Refused {
        /// Its state directory.
        state_dir: PathBuf,
        /// Kind given by the executor.
        code: ErrorCode,
        /// What it said.
        message: String,
    },
    /// The executor is of an earlier release, which does not know the request.
    #[error("the executor in {} is of an earlier release that cannot {wanted}; tasks that are started from now on can", state_dir.display())]
    Outdated {
        /// Its state directory.
        state_dir: PathBuf,
        /// What was wanted.
        wanted: &'static str,
    },
    /// The executor lives but does not answer.
    #[error("no answer from the executor in {} within {seconds} s; it is stopped, swapped out or its disk hangs", state_dir.display())]
    Unresponsive {
        /// Its state directory.
        state_dir: PathBuf,
        /// How long was waited.
        seconds: u64,
    },
    /// The other side does not speak the executor protocol.
    #[error("connection to the executor in {}: {source}", state_dir.display())]
    Protocol {
        /// Its state directory.
        state_dir: PathBuf,
        /// What is wrong.
        source: FrameError,
    },
    /// A record on disk cannot be understood. Nothing was killed on its account.
    #[error("{} is damaged ({why}); move it away after making sure that no process of the workload is left", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// How the workload ended cannot be told, because of an earlier failure.
    #[error("the workload's end is unknown: {0}")]
    Fate(std::sync::Arc<Error>),
    /// Processes of a workload whose executor is gone resist being killed.
    #[error("{} processes of the workload in {} are still there after SIGKILL (pids {pids:?}); they hang in the kernel", pids.len(), state_dir.display())]
    Uncontained {
        /// Its state directory.
        state_dir: PathBuf,
        /// Who is left.
        pids: Vec<i32>,
    },
}

impl Error {
    /// An [`Error::Io`] for `map_err`.
    pub fn io(doing: &'static str, path: impl AsRef<Path>) -> impl FnOnce(std::io::Error) -> Error {
        let path = path.as_ref().to_owned();
        move |source| Error::Io { doing, path, source }
    }

    /// Names the program in an error that came without it.
    pub fn in_starting(self, program: &std::ffi::OsStr) -> Error {
        match self {
            Error::Exec { message, errno, .. } => Error::Exec { command: program.into(), message, errno },
            e => e,
        }
    }

    /// What an executor's refusal means to the controller that asked with epoch `given`.
    pub fn refused(state_dir: &Path, given: Option<u64>, failure: Failure) -> Error {
        let state_dir = state_dir.to_owned();
        match failure.code() {
            ErrorCode::StaleEpoch => Error::StaleEpoch { state_dir, given: given.unwrap_or(0), current: failure.epoch },
            ErrorCode::NotRunning => Error::NotRunning { state_dir },
            ErrorCode::Exec => Error::Exec { command: PathBuf::new(), message: failure.message, errno: failure.errno },
            code => Error::Refused { state_dir, code, message: failure.message },
        }
    }
}

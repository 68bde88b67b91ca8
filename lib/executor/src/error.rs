//! Errors between a controller and its executors. Here, because both end a killed executor's leftovers.

use std::path::{Path, PathBuf};

use executor_proto::{ErrorCode, Failure, FrameError};

/// Failure of an operation on an executor. Decide by the variant; the text is for people.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file operation of the controller failed.
    #[error("{doing} {}: {source}", path.display())]
    Io {
        /// The attempted operation.
        doing: &'static str,
        /// Its path.
        path: PathBuf,
        /// Its cause.
        source: std::io::Error,
    },
    /// The kernel could not execute the workload's program. Another attempt on this host gives the same answer.
    #[error("cannot run {}: {message}", command.display())]
    Exec {
        /// The program.
        command: PathBuf,
        /// The kernel's message.
        message: String,
        /// Operating-system error number.
        errno: i32,
    },
    /// The executor could not set the workload up.
    #[error("the executor in {} could not start: {message}", state_dir.display())]
    Launch {
        /// Its state directory.
        state_dir: PathBuf,
        /// The executor's message.
        message: String,
        /// Operating-system error number; 0 when there is none.
        errno: i32,
    },
    /// The executor was killed, or gave up, during the start of its workload. Nothing remains; another attempt may
    /// help.
    #[error("the executor in {} ended without a word while it was starting; the file executor.panic there \
        may say why", state_dir.display())]
    Vanished {
        /// Its state directory.
        state_dir: PathBuf,
    },
    /// A newer manager has taken over; this call changed nothing.
    #[error("epoch {given} is stale: epoch {current} has been accepted by the workload in {}", state_dir.display())]
    StaleEpoch {
        /// Its state directory.
        state_dir: PathBuf,
        /// Epoch of the call.
        given: u64,
        /// The accepted epoch.
        current: u64,
    },
    /// The workload has already ended.
    #[error("the workload in {} has already ended", state_dir.display())]
    NotRunning {
        /// Its state directory.
        state_dir: PathBuf,
    },
    /// A job names a user unknown to this host.
    #[error("unknown user {}: this host has no account of that name", name.escape_debug())]
    NoSuchUser {
        /// The name.
        name: String,
    },
    /// Nothing ever started in this state directory.
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
        /// The executor's error code.
        code: ErrorCode,
        /// The executor's message.
        message: String,
    },
    /// The executor is of an earlier release without this request.
    #[error("the executor in {} is of an earlier release that cannot {wanted}; tasks that are started from \
        now on can", state_dir.display())]
    Outdated {
        /// Its state directory.
        state_dir: PathBuf,
        /// The request.
        wanted: &'static str,
    },
    /// The executor lives but does not answer.
    #[error("no answer from the executor in {} within {seconds} s; it is stopped, swapped out or its \
        disk hangs", state_dir.display())]
    Unresponsive {
        /// Its state directory.
        state_dir: PathBuf,
        /// How long the controller waited.
        seconds: u64,
    },
    /// The other side does not speak the executor protocol.
    #[error("connection to the executor in {}: {source}", state_dir.display())]
    Protocol {
        /// Its state directory.
        state_dir: PathBuf,
        /// The fault.
        source: FrameError,
    },
    /// A record on disk is damaged. It caused no kill.
    #[error("{} is damaged ({why}); move it away after making sure that no process of the \
        workload is left", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The fault.
        why: String,
    },
    /// How the workload ended is unknown, because of an earlier failure.
    #[error("the workload's end is unknown: {0}")]
    Fate(std::sync::Arc<Error>),
    /// Processes of a workload without an executor resist SIGKILL.
    #[error("{} processes of the workload in {} are still there after SIGKILL (pids {pids:?}); they hang in \
        the kernel", pids.len(), state_dir.display())]
    Uncontained {
        /// Its state directory.
        state_dir: PathBuf,
        /// Their pids.
        pids: Vec<i32>,
    },
}

impl Error {
    /// An [`Error::Io`] for `map_err`.
    pub fn io(doing: &'static str, path: impl AsRef<Path>) -> impl FnOnce(std::io::Error) -> Error {
        let path = path.as_ref().to_owned();
        move |source| Error::Io { doing, path, source }
    }

    /// Adds the program's name to an error that lacks it.
    pub fn in_starting(self, program: &std::ffi::OsStr) -> Error {
        match self {
            Error::Exec { message, errno, .. } => Error::Exec { command: program.into(), message, errno },
            e => e,
        }
    }

    /// Translates an executor's refusal for the controller that asked with epoch `given`.
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

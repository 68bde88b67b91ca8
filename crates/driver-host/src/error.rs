//! Errors, by the reactions of the node.

use std::path::PathBuf;
use std::time::Duration;

use driver_proto::errors;
use driver_proto::handshake::HandshakeError;
use tonic::{Code, Status};

/// Why the host cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartHostError {
    /// A directory cannot be used.
    #[error("cannot prepare {path:?} for driver plugins: {source}")]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The paths of sockets below it would exceed the kernel's limit.
    #[error(
        "the plugin socket directory {path:?} has {len} bytes, at most {max} leave room for a socket's name; choose a \
            shorter one"
    )]
    SocketDirTooLong {
        /// The directory.
        path: PathBuf,
        /// Its length.
        len: usize,
        /// The limit.
        max: usize,
    },
    /// Two plugins with one file name.
    #[error("two plugins are called {0:?}; remove one of them")]
    DuplicatePlugin(String),
    /// A name that cannot be a file name.
    #[error("{0:?} cannot be the name of a plugin; use letters, digits, '-', '_' and '.'")]
    BadPluginName(String),
}

/// A plugin did not come up. The text is what people see at the node.
#[derive(Debug, Clone, thiserror::Error)]
pub enum LaunchError {
    /// The program cannot be executed.
    #[error("cannot start {command:?}: {reason}")]
    Spawn {
        /// The program.
        command: PathBuf,
        /// The cause.
        reason: String,
    },
    /// The process ended before it said where it listens.
    #[error("the plugin ended ({status}) before its handshake{}", tail(.stderr))]
    EarlyExit {
        /// Exit status.
        status: String,
        /// The end of what it wrote to standard error.
        stderr: String,
    },
    /// Nothing came in time.
    #[error("the plugin did not send its handshake within {after:?}{}", tail(.stderr))]
    Silent {
        /// The deadline.
        after: Duration,
        /// The end of what it wrote to standard error.
        stderr: String,
    },
    /// Its first line is not a usable handshake.
    #[error("{error}{}", tail(.stderr))]
    Handshake {
        /// What is wrong with it.
        error: HandshakeError,
        /// The end of what it wrote to standard error.
        stderr: String,
    },
    /// It does not answer at its announced address.
    #[error("cannot connect to the plugin at {address}: {reason}")]
    Connect {
        /// Announced address.
        address: String,
        /// The cause.
        reason: String,
    },
    /// A call of the set-up failed.
    #[error("{call} failed while the plugin was set up: {reason}")]
    Setup {
        /// Name of the call.
        call: &'static str,
        /// The cause.
        reason: String,
    },
    /// It is not a usable plugin.
    #[error("the plugin cannot be used: {0}")]
    Unsuitable(String),
    /// The operator's configuration does not fit the plugin's schema.
    #[error("the plugin's configuration is not valid: {0}")]
    Config(String),
    /// The plugin refuses its configuration; a missing dependency may come later.
    #[error("the plugin refuses its configuration: {0}")]
    Refused(String),
    /// Another plugin of the same driver name is preferred.
    #[error("driver {driver:?} is served by plugin {other:?} with version {version}, the higher one")]
    Displaced {
        /// Driver name.
        driver: String,
        /// The preferred plugin.
        other: String,
        /// Its version.
        version: String,
    },
    /// The host is ending.
    #[error("the host is shutting down")]
    Ending,
}

impl LaunchError {
    /// Whether another attempt with the same files and configuration may succeed.
    pub fn retryable(&self) -> bool {
        !matches!(self, LaunchError::Config(_) | LaunchError::Displaced { .. } | LaunchError::Ending)
    }
}

fn tail(stderr: &str) -> String {
    match stderr.trim() {
        "" => "; it wrote nothing to standard error".into(),
        text => format!("; the end of its standard error: {text}"),
    }
}

/// Whether our side made the status because the connection broke, rather than the driver.
pub(crate) fn broken_connection(status: &Status) -> bool {
    std::error::Error::source(status).is_some()
}

/// An error with its causes.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        next = cause.source();
    }
    bounded(&text)
}

/// Why a call to a driver failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CallError {
    /// The plugin is not running now; nothing was sent.
    #[error("driver {driver:?} is not available: {reason}")]
    NotReady {
        /// Driver name.
        driver: String,
        /// The cause.
        reason: String,
    },
    /// The plugin process ended during the call, which may or may not have taken effect. Wait for
    /// [`crate::Driver::wait_ready`] and recover the task.
    #[error("the plugin of driver {driver:?} ended during {call}")]
    PluginGone {
        /// Driver name.
        driver: String,
        /// Name of the call.
        call: &'static str,
        /// Generation of the process that ended.
        generation: u64,
    },
    /// The connection to the plugin broke or could not be made, but its process lives. The call may or may not have
    /// taken effect.
    #[error("the connection to the plugin of driver {driver:?} broke during {call}: {reason}")]
    Disconnected {
        /// Driver name.
        driver: String,
        /// Name of the call.
        call: &'static str,
        /// Error text of the connection.
        reason: String,
    },
    /// The driver does not know the task.
    #[error("driver {driver:?} does not know task {task:?}")]
    TaskNotFound {
        /// Driver name.
        driver: String,
        /// Task id.
        task: String,
    },
    /// No answer in time; the call may still take effect.
    #[error("driver {driver:?} did not answer {call} within {after:?}")]
    Timeout {
        /// Driver name.
        driver: String,
        /// Name of the call.
        call: &'static str,
        /// The deadline.
        after: Duration,
    },
    /// The driver does not offer the call.
    #[error("driver {driver:?} does not support {call}: {message}")]
    Unsupported {
        /// Driver name.
        driver: String,
        /// Name of the call.
        call: &'static str,
        /// The driver's message.
        message: String,
    },
    /// The driver answered with an error.
    #[error("{message}")]
    Failed {
        /// Driver name.
        driver: String,
        /// Name of the call.
        call: &'static str,
        /// The status code of the answer.
        code: Code,
        /// The driver's message.
        message: String,
        /// Whether the driver says that the same call may succeed later; `None`: it does not say, which is final.
        recoverable: Option<bool>,
    },
    /// The answer lacks a required part.
    #[error("driver {driver:?} answered {call} without {missing}")]
    BadAnswer {
        /// Driver name.
        driver: String,
        /// Name of the call.
        call: &'static str,
        /// What is missing.
        missing: &'static str,
    },
}

impl CallError {
    /// Whether the job's restart policy applies: the driver says so, or the plugin is at fault and not the task.
    pub fn recoverable(&self) -> bool {
        match self {
            CallError::Failed { recoverable, .. } => *recoverable == Some(true),
            CallError::NotReady { .. }
            | CallError::PluginGone { .. }
            | CallError::Disconnected { .. }
            | CallError::Timeout { .. } => true,
            CallError::TaskNotFound { .. } | CallError::Unsupported { .. } | CallError::BadAnswer { .. } => false,
        }
    }

    /// The driver does not know the task.
    pub fn is_task_not_found(&self) -> bool {
        matches!(self, CallError::TaskNotFound { .. })
    }

    /// Whether the plugin is gone: wait for a new process and recover.
    pub fn is_plugin_gone(&self) -> bool {
        matches!(self, CallError::PluginGone { .. } | CallError::NotReady { .. })
    }

    /// Whether the plugin lives but cannot be reached: try again later.
    pub fn is_disconnected(&self) -> bool {
        matches!(self, CallError::Disconnected { .. })
    }

    pub(crate) fn from_status(driver: &str, call: &'static str, task: &str, status: &Status) -> Self {
        let driver = driver.to_owned();
        if broken_connection(status) {
            let reason = std::error::Error::source(status).map(chain).unwrap_or_default();
            return CallError::Disconnected { driver, call, reason };
        }
        if errors::is_task_not_found(status) {
            return CallError::TaskNotFound { driver, task: task.to_owned() };
        }
        let message = bounded(status.message());
        if status.code() == Code::Unimplemented {
            return CallError::Unsupported { driver, call, message };
        }
        let recoverable = errors::recoverable(status);
        CallError::Failed { driver, call, code: status.code(), message, recoverable }
    }
}

/// Why a call about a remote task failed. The kinds decide what the servers may do, so they must never be confused.
#[derive(Debug, Clone, thiserror::Error)]
pub enum RemoteError {
    /// The provider has positively answered that there is no such instance.
    #[error("the instance is gone: {0}")]
    Gone(String),
    /// Nothing is known: no answer, an unclear one, throttling, bad credentials, a dead plugin.
    #[error("the provider could not be asked: {0}")]
    CouldNotAsk(String),
    /// The request cannot succeed in this form.
    #[error("the request is wrong: {0}")]
    WrongRequest(String),
    /// A manager with a newer epoch has the instance.
    #[error("the epoch is stale: {message}")]
    StaleEpoch {
        /// The newest accepted epoch, if the driver names it.
        accepted: Option<u64>,
        /// The driver's message.
        message: String,
    },
}

impl RemoteError {
    pub(crate) fn from_status(status: &Status) -> Self {
        let message = bounded(status.message());
        match status.code() {
            Code::NotFound => RemoteError::Gone(message),
            Code::Aborted => RemoteError::StaleEpoch { accepted: errors::accepted_epoch(status), message },
            Code::InvalidArgument | Code::FailedPrecondition | Code::Unimplemented => {
                RemoteError::WrongRequest(message)
            }
            // An unclear failure must never look like an answer. OutOfRange is one: tonic makes it of an answer that is
            // too large, and the call may have taken effect.
            _ => RemoteError::CouldNotAsk(message),
        }
    }
}

/// Cuts untrusted text to a bounded length.
pub(crate) fn bounded(text: &str) -> String {
    const MAX: usize = 4096;
    if text.len() <= MAX {
        return text.to_owned();
    }
    format!("{}…", &text[..text.floor_char_boundary(MAX)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_of_remote_calls_fall_into_four_kinds() {
        let kind = |code| match RemoteError::from_status(&Status::new(code, "x")) {
            RemoteError::Gone(_) => "gone",
            RemoteError::CouldNotAsk(_) => "could not ask",
            RemoteError::WrongRequest(_) => "wrong",
            RemoteError::StaleEpoch { .. } => "stale",
        };
        let cases = [
            (Code::NotFound, "gone"),
            (Code::Aborted, "stale"),
            (Code::InvalidArgument, "wrong"),
            (Code::FailedPrecondition, "wrong"),
            (Code::Unimplemented, "wrong"),
            (Code::OutOfRange, "could not ask"),
            (Code::Unavailable, "could not ask"),
            (Code::DeadlineExceeded, "could not ask"),
            (Code::ResourceExhausted, "could not ask"),
            (Code::Unknown, "could not ask"),
            (Code::Internal, "could not ask"),
            (Code::Cancelled, "could not ask"),
            (Code::PermissionDenied, "could not ask"),
            (Code::Unauthenticated, "could not ask"),
        ];
        for (code, expected) in cases {
            assert_eq!(kind(code), expected, "{code:?}");
        }
        let stale = RemoteError::from_status(&errors::stale_epoch(3, 7));
        assert!(matches!(stale, RemoteError::StaleEpoch { accepted: Some(7), .. }), "{stale}");
    }

    #[test]
    fn start_errors_are_final_unless_the_driver_says_otherwise() {
        let from = |status: &Status| CallError::from_status("d", "StartTask", "t", status);
        assert!(from(&errors::recoverable_status("full", true)).recoverable());
        assert!(!from(&errors::recoverable_status("bad", false)).recoverable());
        assert!(!from(&Status::unknown("bad")).recoverable());
        assert_eq!(from(&Status::unknown("image not there")).to_string(), "image not there");
        assert!(from(&Status::unknown("x: task not found for given id")).is_task_not_found());
        assert!(matches!(from(&Status::unimplemented("")), CallError::Unsupported { .. }));
        let long = from(&Status::unknown("é".repeat(1 << 20))).to_string();
        assert!(long.len() < 5000);
    }
}

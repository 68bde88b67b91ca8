//! Why a request to the server was not carried out.

use std::fmt;

use model::{JobKey, StoreIndex, validate::ValidationErrors};

/// What a request asked for and did not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A job.
    Job,
    /// A group of a job.
    Group,
    /// An allocation.
    Alloc,
    /// An evaluation.
    Eval,
    /// A deployment.
    Deployment,
    /// A node.
    Node,
    /// A remote task.
    RemoteTask,
    /// An instance at a provider that no record knows.
    RemoteInstance,
    /// A registration of a service.
    Service,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Job => "job",
            Self::Group => "task group",
            Self::Alloc => "alloc",
            Self::Eval => "eval",
            Self::Deployment => "deployment",
            Self::Node => "node",
            Self::Service => "service registration",
            Self::RemoteTask => "remote task",
            Self::RemoteInstance => "unbound remote instance",
        })
    }
}

/// How an error is to be answered; the transport decides about numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorClass {
    /// There is no such object.
    NotFound,
    /// The request itself is wrong.
    Invalid,
    /// The request contradicts the current state.
    Conflict,
    /// The server cannot serve it at present.
    Unavailable,
    /// Something is broken.
    Internal,
}

/// Why a request to the server was not carried out. `Display` is the text for the outside.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ServerError {
    /// There is no such object.
    #[error("{kind} not found")]
    NotFound {
        /// What.
        kind: Kind,
        /// Its name as the request gave it.
        name: String,
    },
    /// The job breaks rules.
    #[error("{0}")]
    InvalidJob(
        /// Each rule that it breaks.
        ValidationErrors,
    ),
    /// An argument breaks a rule.
    #[error("{0}")]
    InvalidArgument(
        /// Which, and why.
        String,
    ),
    /// As [`ServerError::InvalidArgument`], where clients know it by its status.
    #[error("{0}")]
    BadRequest(
        /// Which rule, and why.
        String,
    ),
    /// A job cannot be dispatched so.
    #[error(transparent)]
    Dispatch(#[from] model::dispatch::DispatchError),
    /// The job asks for something that this release refuses.
    #[error("{feature} is not supported by this release: {reason}")]
    Unsupported {
        /// What.
        feature: String,
        /// Why, and what to do instead.
        reason: String,
    },
    /// `EnforceIndex` was given and the job is at another index (None: the job does not exist).
    #[error("{}", enforce_text(*.expected, *.actual))]
    EnforceIndex {
        /// Index that the request demands.
        expected: StoreIndex,
        /// Index of the job.
        actual: Option<StoreIndex>,
    },
    /// The version that a revert enforces is not the current one.
    #[error("Current job has version {actual}; enforcing version {expected}")]
    EnforceVersion {
        /// Version that the request demands.
        expected: u64,
        /// Version of the job.
        actual: u64,
    },
    /// A deployment that has ended cannot be changed.
    #[error("can't {verb} terminal deployment")]
    TerminalDeployment {
        /// What was asked.
        verb: &'static str,
    },
    /// The request contradicts the current state.
    #[error("{0}")]
    Conflict(
        /// What contradicts what.
        String,
    ),
    /// Registrations are switched off.
    #[error("job {0}: job registration, dispatch and scaling are disabled in the scheduler configuration (RejectJobRegistration)")]
    RegistrationDisabled(
        /// The job.
        JobKey,
    ),
    /// The server stops.
    #[error("the server is shutting down; ask another one or try again after its restart")]
    ShuttingDown,
    /// The store refused the write; nothing was changed.
    #[error("the write was not stored, nothing was changed: {0}")]
    Store(
        /// Why.
        String,
    ),
    /// A part of the server failed.
    #[error("{what} failed inside the server: {why}")]
    Internal {
        /// What was attempted.
        what: &'static str,
        /// Why it failed.
        why: String,
    },
}

impl ServerError {
    /// Shorthand for [`ServerError::NotFound`].
    pub fn not_found(kind: Kind, name: impl fmt::Display) -> Self {
        Self::NotFound { kind, name: name.to_string() }
    }
    /// How it is to be answered.
    #[must_use]
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::NotFound { .. } => ErrorClass::NotFound,
            Self::InvalidJob(_) | Self::InvalidArgument(_) | Self::BadRequest(_) | Self::Dispatch(_) | Self::Unsupported { .. } => {
                ErrorClass::Invalid
            }
            Self::EnforceIndex { .. }
            | Self::EnforceVersion { .. }
            | Self::TerminalDeployment { .. }
            | Self::Conflict(_)
            | Self::RegistrationDisabled(_) => ErrorClass::Conflict,
            Self::ShuttingDown => ErrorClass::Unavailable,
            Self::Store(_) | Self::Internal { .. } => ErrorClass::Internal,
        }
    }
}

fn enforce_text(expected: StoreIndex, actual: Option<StoreIndex>) -> String {
    match actual {
        None => format!("Enforcing job modify index {expected}: job does not exist"),
        Some(_) if expected == 0 => "Enforcing job modify index 0: job already exists".to_owned(),
        Some(at) => format!("Enforcing job modify index {expected}: job exists with conflicting job modify index: {at}"),
    }
}

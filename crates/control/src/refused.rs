//! Refusals of requests.

use std::fmt;

use model::{JobKey, StoreIndex, dispatch::DispatchError, validate::ValidationErrors};

/// Kind of an object that a request named and that does not exist.
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
    /// An orphaned instance at a provider.
    RemoteInstance,
    /// A registration of a service.
    Service,
    /// A dynamic host volume.
    Volume,
    /// A claim on one.
    VolumeClaim,
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
            Self::Volume => "host volume",
            Self::VolumeClaim => "host volume claim",
            Self::RemoteTask => "remote task",
            Self::RemoteInstance => "unbound remote instance",
        })
    }
}

/// A refused request; nothing changes. `Display` is the text for people.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// There is no such object.
    #[error("{kind} not found")]
    NotFound {
        /// Its kind.
        kind: Kind,
        /// Its name as the request gave it.
        name: String,
    },
    /// The job breaks rules.
    #[error("{0}")]
    Job(
        /// Each rule that it breaks.
        ValidationErrors,
    ),
    /// The request breaks a rule.
    #[error("{0}")]
    Invalid(
        /// Which rule, and why.
        String,
    ),
    /// As [`Refused::Invalid`], where clients rely on status 400.
    #[error("{0}")]
    BadRequest(
        /// Which rule, and why.
        String,
    ),
    /// The job cannot be dispatched with this request.
    #[error(transparent)]
    Dispatch(#[from] DispatchError),
    /// `EnforceIndex` names another index than the job's (`None`: the job does not exist).
    #[error("{}", enforce_text(*.expected, *.actual))]
    EnforceIndex {
        /// Index that the request requires.
        expected: StoreIndex,
        /// Index of the job.
        actual: Option<StoreIndex>,
    },
    /// The version that a revert enforces is not the current one.
    #[error("Current job has version {actual}; enforcing version {expected}")]
    EnforceVersion {
        /// Version that the request requires.
        expected: u64,
        /// Version of the job.
        actual: u64,
    },
    /// A deployment that has ended cannot be changed.
    #[error("can't {verb} terminal deployment")]
    TerminalDeployment {
        /// The requested action.
        verb: &'static str,
    },
    /// Larger than the servers keep or read.
    #[error("{0}")]
    TooLarge(
        /// What is too large, and the limit.
        String,
    ),
    /// A connected node cannot be forgotten.
    #[error("node {name} is connected: stop its agent, then purge it (a node that only shall get no work is drained)")]
    Connected {
        /// The node.
        name: String,
    },
    /// The request contradicts the current state.
    #[error("{0}")]
    Conflict(
        /// Which parts contradict each other.
        String,
    ),
    /// Registrations are switched off.
    #[error(
        "job {0}: job registration, dispatch and scaling are disabled in the scheduler configuration \
            (RejectJobRegistration)"
    )]
    RegistrationDisabled(
        /// The job.
        JobKey,
    ),
}

impl Refused {
    /// Shorthand for [`Refused::NotFound`].
    pub fn not_found(kind: Kind, name: impl fmt::Display) -> Self {
        Self::NotFound { kind, name: name.to_string() }
    }
    /// [`Refused::Invalid`] for one or more reasons, in the layout that stock clients print.
    pub(crate) fn several(reasons: &[String]) -> Self {
        Self::Invalid(list(reasons))
    }
}

/// Reasons in the layout that stock clients print.
pub(crate) fn list(reasons: &[String]) -> String {
    let head =
        if reasons.len() == 1 { "1 error occurred:".to_owned() } else { format!("{} errors occurred:", reasons.len()) };
    let lines: String = reasons.iter().map(|why| format!("\n\t* {why}")).collect();
    format!("{head}{lines}\n\n")
}

fn enforce_text(expected: StoreIndex, actual: Option<StoreIndex>) -> String {
    match actual {
        None => format!("Enforcing job modify index {expected}: job does not exist"),
        Some(_) if expected == 0 => "Enforcing job modify index 0: job already exists".to_owned(),
        Some(at) => {
            format!("Enforcing job modify index {expected}: job exists with conflicting job modify index: {at}")
        }
    }
}

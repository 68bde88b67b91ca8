//! Errors of drivers, by what the host has to do about them.

use driver_proto::errors;
use tonic::Status;

/// Error of a call of [`crate::Driver`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The driver does not know the task (any more).
    #[error("{}", errors::TASK_NOT_FOUND)]
    TaskNotFound,
    /// The call failed, but may succeed later: the job's restart policy applies.
    #[error("{0}")]
    Recoverable(String),
    /// The call failed and will fail again.
    #[error("{0}")]
    Failed(String),
    /// The configuration or an argument is wrong.
    #[error("{0}")]
    Invalid(String),
    /// The driver does not offer this call.
    #[error("this driver does not support {0}")]
    Unsupported(String),
}

impl Error {
    /// Makes an [`Error::Failed`].
    pub fn failed(message: impl ToString) -> Self {
        Error::Failed(message.to_string())
    }

    /// Makes an [`Error::Recoverable`].
    pub fn recoverable(message: impl ToString) -> Self {
        Error::Recoverable(message.to_string())
    }

    /// Makes an [`Error::Invalid`].
    pub fn invalid(message: impl ToString) -> Self {
        Error::Invalid(message.to_string())
    }

    /// Makes an [`Error::Unsupported`].
    pub fn unsupported(what: impl ToString) -> Self {
        Error::Unsupported(what.to_string())
    }
}

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        let text = error.to_string();
        match error {
            Error::TaskNotFound => errors::task_not_found(),
            Error::Recoverable(_) => errors::recoverable_status(text, true),
            Error::Failed(_) => Status::unknown(text),
            Error::Invalid(_) => Status::invalid_argument(text),
            Error::Unsupported(_) => Status::unimplemented(text),
        }
    }
}

/// Error of a call of [`crate::RemoteDriver`]. The variant decides what the servers do next. Only [`RemoteError::Gone`]
/// may lead to a new instance, so return it only on a positive answer of the provider.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RemoteError {
    /// The provider has answered that the instance does not exist.
    #[error("the instance is gone: {0}")]
    Gone(String),
    /// The state is unknown: no answer, an unclear answer, throttling, bad credentials.
    #[error("the provider could not be asked: {0}")]
    CouldNotAsk(String),
    /// The request is wrong and fails for every manager.
    #[error("the request is wrong: {0}")]
    WrongRequest(String),
    /// The key is sealed and has no instance: no later call creates one.
    #[error("the key is sealed: {0}")]
    Sealed(String),
    /// A manager with a newer epoch drives the instance.
    #[error("epoch {given} is stale, {accepted} was accepted already")]
    StaleEpoch {
        /// The epoch of the refused call.
        given: u64,
        /// The newest epoch that the provider has accepted.
        accepted: u64,
    },
}

impl RemoteError {
    /// Makes a [`RemoteError::Gone`].
    pub fn gone(message: impl ToString) -> Self {
        RemoteError::Gone(message.to_string())
    }

    /// Makes a [`RemoteError::CouldNotAsk`].
    pub fn could_not_ask(message: impl ToString) -> Self {
        RemoteError::CouldNotAsk(message.to_string())
    }

    /// Makes a [`RemoteError::Sealed`].
    pub fn sealed(message: impl ToString) -> Self {
        RemoteError::Sealed(message.to_string())
    }

    /// Makes a [`RemoteError::WrongRequest`].
    pub fn wrong_request(message: impl ToString) -> Self {
        RemoteError::WrongRequest(message.to_string())
    }
}

impl From<RemoteError> for Status {
    fn from(error: RemoteError) -> Self {
        // The prefix of Display names the kind; on the wire the code does.
        match error {
            RemoteError::Gone(text) => Status::not_found(text),
            RemoteError::CouldNotAsk(text) => Status::unavailable(text),
            RemoteError::WrongRequest(text) => Status::invalid_argument(text),
            sealed @ RemoteError::Sealed(_) => Status::failed_precondition(sealed.to_string()),
            RemoteError::StaleEpoch { given, accepted } => errors::stale_epoch(given, accepted),
        }
    }
}

//! What can go wrong inside a driver, as the host needs to know it.

use driver_proto::errors;
use tonic::Status;

/// Failure of a call of [`crate::Driver`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The driver does not know the task (any more).
    #[error("{}", errors::TASK_NOT_FOUND)]
    TaskNotFound,
    /// Failed now, the same call may succeed later: the job's restart policy applies.
    #[error("{0}")]
    Recoverable(String),
    /// Failed for good.
    #[error("{0}")]
    Failed(String),
    /// The configuration or an argument cannot work.
    #[error("{0}")]
    Invalid(String),
    /// This driver does not do that.
    #[error("this driver does not support {0}")]
    Unsupported(String),
}

impl Error {
    /// Failed for good.
    pub fn failed(message: impl ToString) -> Self {
        Error::Failed(message.to_string())
    }

    /// May succeed later.
    pub fn recoverable(message: impl ToString) -> Self {
        Error::Recoverable(message.to_string())
    }

    /// Cannot work as asked.
    pub fn invalid(message: impl ToString) -> Self {
        Error::Invalid(message.to_string())
    }

    /// Not offered by this driver.
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

/// Failure of a call of [`crate::RemoteDriver`]. The kinds decide what the servers do, so they must never be mixed up:
/// only a positive "there is none" may lead to a new instance.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RemoteError {
    /// The provider has positively answered that the instance does not exist.
    #[error("the instance is gone: {0}")]
    Gone(String),
    /// No answer, an unclear answer, throttling, bad credentials: nothing is known.
    #[error("the provider could not be asked: {0}")]
    CouldNotAsk(String),
    /// The request cannot succeed in this form, whoever sends it.
    #[error("the request is wrong: {0}")]
    WrongRequest(String),
    /// The key is sealed and has no instance: nothing is created with it, now or later.
    #[error("the key is sealed: {0}")]
    Sealed(String),
    /// Someone with a newer epoch manages the instance.
    #[error("epoch {given} is stale, {accepted} was accepted already")]
    StaleEpoch {
        /// The epoch of the refused call.
        given: u64,
        /// The newest epoch that the provider has accepted.
        accepted: u64,
    },
}

impl RemoteError {
    /// The provider says that there is none.
    pub fn gone(message: impl ToString) -> Self {
        RemoteError::Gone(message.to_string())
    }

    /// Nothing is known.
    pub fn could_not_ask(message: impl ToString) -> Self {
        RemoteError::CouldNotAsk(message.to_string())
    }

    /// Nothing is created with this key any more.
    pub fn sealed(message: impl ToString) -> Self {
        RemoteError::Sealed(message.to_string())
    }

    /// It cannot succeed like this.
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

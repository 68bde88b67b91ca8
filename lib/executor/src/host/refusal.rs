//! Why something was not done: the answers that must never be mixed up.

use std::io;
use std::path::Path;

use executor_proto::host::{HostErrorCode, HostFailure};

use crate::error::Error;

/// A request's result.
pub(super) type Answer<T> = Result<T, Refusal>;

/// Why a request was not carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// Positively absent.
    Gone(String),
    /// Nothing is known.
    CouldNotAsk(String),
    /// It cannot succeed in this form.
    WrongRequest(String),
    /// Nothing is created with the key any more.
    Sealed,
    /// A newer manager has taken over.
    StaleEpoch {
        /// Of the call.
        given: u64,
        /// That holds.
        accepted: u64,
    },
    /// The host is full.
    NoRoom(String),
}

impl Refusal {
    pub(super) fn into_wire(self) -> HostFailure {
        let (code, message, epoch) = match self {
            Refusal::Gone(text) => (HostErrorCode::Gone, text, 0),
            Refusal::CouldNotAsk(text) => (HostErrorCode::CouldNotAsk, text, 0),
            Refusal::WrongRequest(text) => (HostErrorCode::WrongRequest, text, 0),
            Refusal::Sealed => {
                let text =
                    "it was stopped before it was created, or its instance has ended and was acknowledged; a new start needs a new key";
                (HostErrorCode::Sealed, text.to_owned(), 0)
            }
            Refusal::StaleEpoch { given, accepted } => {
                (HostErrorCode::StaleEpoch, format!("epoch {given} is stale: {accepted} has been accepted"), accepted)
            }
            Refusal::NoRoom(text) => (HostErrorCode::NoRoom, text, 0),
        };
        HostFailure { code: code.into(), message, epoch }
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Refusal {
        match error {
            Error::StaleEpoch { given, current, .. } => Refusal::StaleEpoch { given, accepted: current },
            Error::Exec { .. } | Error::NoSuchUser { .. } | Error::Outdated { .. } => Refusal::WrongRequest(error.to_string()),
            e => Refusal::CouldNotAsk(e.to_string()),
        }
    }
}

/// What could not be done with files of the runtime says nothing about the instance.
pub(super) fn unclear(doing: &str, path: &Path) -> impl FnOnce(io::Error) -> Refusal {
    let text = format!("{doing} {}", path.display());
    move |e| Refusal::CouldNotAsk(format!("{text}: {e}"))
}

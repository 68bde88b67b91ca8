//! Reasons of failures: answers that must never be confused.

use std::io;
use std::path::Path;

use executor_proto::host::{HostErrorCode, HostFailure};

use crate::error::Error;

/// A request's result.
pub(super) type Answer<T> = Result<T, Refusal>;

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// Positively absent.
    Gone(String),
    /// Nothing is known.
    CouldNotAsk(String),
    /// It cannot succeed in this form.
    WrongRequest(String),
    /// The key is sealed: nothing starts with it any more.
    Sealed,
    /// A newer manager has taken over.
    StaleEpoch {
        /// Epoch of the call.
        given: u64,
        /// The accepted epoch.
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
                let text = "it was stopped before it was created, or its instance has ended and was acknowledged; a \
                    new start needs a new key";
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
            Error::Exec { .. } | Error::NoSuchUser { .. } | Error::Outdated { .. } => {
                Refusal::WrongRequest(error.to_string())
            }
            e => Refusal::CouldNotAsk(e.to_string()),
        }
    }
}

/// A failed file operation of the runtime says nothing about the instance.
pub(super) fn unclear(doing: &str, path: &Path) -> impl FnOnce(io::Error) -> Refusal {
    let text = format!("{doing} {}", path.display());
    move |e| Refusal::CouldNotAsk(format!("{text}: {e}"))
}

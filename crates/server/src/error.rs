//! Why a request to the server was not carried out.

use std::fmt;

pub use control::{Kind, Refused};

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
    /// It breaks a rule, or the state forbids it.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// The server stops.
    #[error("the server is shutting down; ask another one or try again after its restart")]
    ShuttingDown,
    /// The state is from the past and is being recovered.
    #[error(
        "the servers recover, nothing was changed: {0}. Until every node and provider has answered nothing is \
            created, stopped or changed; \
         drover operator recover -status says who has not, and ends it when you are sure"
    )]
    Recovering(
        /// Why they recover.
        String,
    ),
    /// The store refused the write; nothing was changed.
    #[error("the write was not stored, nothing was changed: {0}")]
    Store(
        /// Why.
        String,
    ),
    /// Another server of the cluster does not read what would be written.
    #[error(
        "nothing was changed: this needs format {needs} of the servers' state, which is in format {in_use} while a \
         server of the cluster reads no higher one; replace that server by this release, or take it out, then try \
         again (`drover operator servers` lists them)"
    )]
    Format {
        /// The format that has what would be written.
        needs: state::Format,
        /// The format in use.
        in_use: state::Format,
    },
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
    /// Shorthand for [`Refused::NotFound`].
    pub fn not_found(kind: Kind, name: impl fmt::Display) -> Self {
        Refused::not_found(kind, name).into()
    }

    /// Shorthand for [`Refused::Invalid`].
    pub fn invalid(why: String) -> Self {
        Refused::Invalid(why).into()
    }

    /// Shorthand for [`Refused::Conflict`].
    pub fn conflict(why: String) -> Self {
        Refused::Conflict(why).into()
    }

    /// How it is to be answered.
    #[must_use]
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Refused(Refused::NotFound { .. }) => ErrorClass::NotFound,
            Self::Refused(
                Refused::Job(_)
                | Refused::TooLarge(_)
                | Refused::Invalid(_)
                | Refused::BadRequest(_)
                | Refused::Dispatch(_),
            ) => ErrorClass::Invalid,
            Self::Refused(
                Refused::EnforceIndex { .. }
                | Refused::EnforceVersion { .. }
                | Refused::TerminalDeployment { .. }
                | Refused::Connected { .. }
                | Refused::Conflict(_)
                | Refused::RegistrationDisabled(_),
            ) => ErrorClass::Conflict,
            Self::ShuttingDown | Self::Recovering(_) | Self::Format { .. } => ErrorClass::Unavailable,
            Self::Store(_) | Self::Internal { .. } => ErrorClass::Internal,
        }
    }
}

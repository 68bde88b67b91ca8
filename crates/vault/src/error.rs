//! Why Vault did not do what it was asked.

/// Why there is no answer as it was wanted. No variant holds anything of the request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Nobody knows whether it was done: no connection, no answer in time, an answer that broke off.
    #[error("Vault at {address} cannot be asked: {why}")]
    Unreachable {
        /// Host and port.
        address: String,
        /// What failed.
        why: String,
    },
    /// The token, or the identity of a login, has no right to it (403), or is not valid any more.
    #[error("Vault denies it: {0}")]
    Denied(String),
    /// Vault is sealed or not initialized, or its storage fails (5xx): later it may answer.
    #[error("Vault cannot answer now: {0}")]
    Unable(String),
    /// Vault refuses the request (another 4xx).
    #[error("Vault refuses it: {0}")]
    Refused(String),
}

impl Error {
    /// Vault has decided, and would decide so again until somebody changes something there.
    #[must_use]
    pub fn decided(&self) -> bool {
        matches!(self, Self::Denied(_) | Self::Refused(_))
    }
}

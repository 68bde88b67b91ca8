//! What is known of a call that gave no result.

use std::{error::Error as _, fmt::Write as _};

use tonic::{Code, ConnectError, Status};

/// Why a call gave no result. What the first three mean for a write differs: it did not happen, it may have happened or
/// may still happen, it did not happen.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// etcd has refused the call, which changed nothing. One exception: a write refused for [`Reason::NoSpace`] may
    /// have been done.
    #[error("etcd refuses the call: {text} ({code:?})")]
    Refused {
        /// What the refusal means.
        reason: Reason,
        /// The code of gRPC.
        code: Code,
        /// etcd's words.
        text: String,
    },
    /// The call was sent, and no answer came that says what became of it. A write may still happen.
    #[error("etcd at {endpoint} gave no answer: {why}")]
    Unanswered {
        /// Where it was sent.
        endpoint: String,
        /// How the wait ended.
        why: String,
    },
    /// The call was not sent, because no endpoint could be reached.
    #[error("no endpoint of etcd can be reached: {0}")]
    Unreachable(String),
    /// The options name no endpoint that can be used.
    #[error("{0}")]
    Options(String),
}

/// What a refusal means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The quota is used up: only deletions and compaction go on. The write that uses it up gets this answer, too, when
    /// the member that was asked let it pass and etcd found no room when it applied it: it was done.
    NoSpace,
    /// The members' data differ: nothing is written any more.
    Corrupt,
    /// The revision was compacted.
    Compacted,
    /// The lease has ended.
    NoLease,
    /// The token has ended, or the rights have changed since it was made.
    Token,
    /// The request exceeds a limit of etcd.
    TooLarge,
    /// Another one; the text says which.
    Other,
}

impl Error {
    /// What a refusal means; None for the other errors.
    #[must_use]
    pub fn refused(&self) -> Option<Reason> {
        match self {
            Self::Refused { reason, .. } => Some(*reason),
            _ => None,
        }
    }
}

/// What a status says of its call.
pub(crate) enum Said {
    Refused(Reason),
    Unanswered,
    NotSent,
}

pub(crate) fn said(status: &Status) -> Said {
    if let Some(source) = status.source() {
        // Made on this side: by a connection that could not be made, or by one that broke.
        return if is_connect(source) { Said::NotSent } else { Said::Unanswered };
    }
    // etcd gives several reasons the same code; its texts are constants (api/v3rpc/rpctypes/error.go).
    let has = |text: &str| status.message().contains(text);
    match status.code() {
        Code::ResourceExhausted if has("database space exceeded") => Said::Refused(Reason::NoSpace),
        Code::ResourceExhausted => Said::Refused(Reason::TooLarge),
        Code::InvalidArgument if has("too large") || has("too many operations") => Said::Refused(Reason::TooLarge),
        Code::InvalidArgument if has("revision of auth store is old") => Said::Refused(Reason::Token),
        Code::Unauthenticated => Said::Refused(Reason::Token),
        Code::OutOfRange if has("compacted") => Said::Refused(Reason::Compacted),
        Code::NotFound if has("lease not found") => Said::Refused(Reason::NoLease),
        Code::DataLoss => Said::Refused(Reason::Corrupt),
        Code::InvalidArgument
        | Code::NotFound
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::FailedPrecondition
        | Code::OutOfRange
        | Code::Unimplemented => Said::Refused(Reason::Other),
        // Among them lost leaders and deadlines of etcd's own, after which the call may still take effect.
        Code::Ok
        | Code::Cancelled
        | Code::Unknown
        | Code::DeadlineExceeded
        | Code::Aborted
        | Code::Internal
        | Code::Unavailable => Said::Unanswered,
    }
}

fn is_connect(mut error: &(dyn std::error::Error + 'static)) -> bool {
    loop {
        if error.is::<ConnectError>() {
            return true;
        }
        match error.source() {
            Some(source) => error = source,
            None => return false,
        }
    }
}

/// A status in words, with what caused it.
pub(crate) fn words(status: &Status) -> String {
    let mut text = if status.message().is_empty() { status.code().to_string() } else { status.message().to_owned() };
    let mut source = status.source();
    while let Some(error) = source {
        let cause = error.to_string();
        if !text.contains(&cause) {
            let _ = write!(text, ": {cause}");
        }
        source = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(code: Code, text: &str) -> Option<Reason> {
        match said(&Status::new(code, text)) {
            Said::Refused(reason) => Some(reason),
            Said::Unanswered | Said::NotSent => None,
        }
    }

    #[test]
    fn refusals_are_told_from_missing_answers() {
        let space = "etcdserver: mvcc: database space exceeded";
        assert_eq!(reason(Code::ResourceExhausted, space), Some(Reason::NoSpace));
        let compacted = "etcdserver: mvcc: required revision has been compacted";
        assert_eq!(reason(Code::OutOfRange, compacted), Some(Reason::Compacted));
        assert_eq!(
            reason(Code::OutOfRange, "etcdserver: mvcc: required revision is a future revision"),
            Some(Reason::Other)
        );
        assert_eq!(reason(Code::InvalidArgument, "etcdserver: request is too large"), Some(Reason::TooLarge));
        assert_eq!(reason(Code::Unauthenticated, "etcdserver: invalid auth token"), Some(Reason::Token));
        for (code, text) in [
            (Code::Unavailable, "etcdserver: request timed out"),
            (Code::Unavailable, "etcdserver: leader changed"),
            (Code::Unknown, "context deadline exceeded"),
            (Code::Cancelled, ""),
        ] {
            assert_eq!(reason(code, text), None, "{code:?} {text}: it may have happened");
        }
    }

    #[test]
    fn a_broken_connection_is_no_refusal_whatever_its_code() {
        let broken = Status::from_error(Box::new(std::io::Error::from(std::io::ErrorKind::ConnectionReset)));
        assert!(matches!(said(&broken), Said::Unanswered), "{broken:?}");
        let absent = ConnectError(Box::new(std::io::Error::from(std::io::ErrorKind::ConnectionRefused)));
        assert!(matches!(said(&Status::from_error(Box::new(absent))), Said::NotSent));
    }
}

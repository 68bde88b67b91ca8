//! Errors of the service as one of the three answers. Codes decide; only where one code has several meanings does its
//! text.

use std::error::Error as StdError;
use std::fmt;

use aws_sdk_cloudwatchlogs::error::{ProvideErrorMetadata, SdkError};
use driver_sdk::RemoteError;

/// What went wrong with a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// What was attempted, as an infinitive: `look at tasks`.
    pub doing: &'static str,
    /// The driver's page, which lists the permissions that it needs.
    pub page: &'static str,
    /// What came of it.
    pub what: What,
}

/// What came of a call that did not succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// The service has answered with an error.
    Refused {
        /// The code, which decides.
        code: String,
        /// Its text.
        message: String,
    },
    /// No answer, or one that is none: whether the call took effect is not known.
    NoAnswer(String),
}

/// What an error means for the instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// It cannot succeed in this form, whoever sends it.
    WrongRequest,
    /// There is no room or no quota for it now; nothing was made.
    NoRoom,
    /// Too many requests.
    Throttled,
    /// Not with these credentials.
    Credentials,
    /// The cluster does not exist.
    NoCluster,
    /// Nothing is known.
    CouldNotAsk,
}

/// What a code means. `message` is consulted where the service has one code for many things.
pub fn meaning(code: &str, message: &str) -> Meaning {
    match code {
        "ClientException"
            if message.contains("Capacity is unavailable") || message.contains("Too many concurrent attempts") =>
        {
            Meaning::NoRoom
        }
        "ClientException"
        | "InvalidParameterException"
        | "UnsupportedFeatureException"
        | "PlatformUnknownException"
        | "PlatformTaskDefinitionIncompatibilityException"
        | "ValidationException"
        | "SerializationException" => Meaning::WrongRequest,
        "LimitExceededException" | "ServiceQuotaExceededException" => Meaning::NoRoom,
        "ThrottlingException"
        | "Throttling"
        | "ThrottledException"
        | "TooManyRequestsException"
        | "RequestLimitExceeded"
        | "SlowDown" => Meaning::Throttled,
        "AccessDeniedException"
        | "AccessDenied"
        | "UnrecognizedClientException"
        | "InvalidClientTokenId"
        | "InvalidSignatureException"
        | "SignatureDoesNotMatch"
        | "IncompleteSignature"
        | "IncompleteSignatureException"
        | "MissingAuthenticationToken"
        | "MissingAuthenticationTokenException"
        | "ExpiredToken"
        | "ExpiredTokenException"
        | "RequestExpired"
        | "NotAuthorized"
        | "OptInRequired"
        | "BlockedException" => Meaning::Credentials,
        "ClusterNotFoundException" => Meaning::NoCluster,
        // ServerException, InternalError and whatever comes later: an error that is not understood is no answer.
        _ => Meaning::CouldNotAsk,
    }
}

/// The causes of an error, outermost first, each once.
fn chain(error: &dyn StdError) -> String {
    let mut out = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let text = inner.to_string();
        if !out.contains(&text) {
            out = format!("{out}: {text}");
        }
        cause = inner.source();
    }
    out
}

impl Trouble {
    /// From the error of a call.
    pub fn of<E>(doing: &'static str, page: &'static str, error: SdkError<E>) -> Self
    where
        E: ProvideErrorMetadata + StdError + 'static,
    {
        let what = match &error {
            SdkError::ServiceError(context) => {
                let status = context.raw().status();
                match context.err().code() {
                    Some(code) => What::Refused {
                        code: code.to_owned(),
                        message: context.err().message().unwrap_or("no explanation").to_owned(),
                    },
                    None => What::NoAnswer(format!("the answer has status {status} and no error code")),
                }
            }
            // Connecting, credentials, time-outs, and answers that cannot be read.
            _ => What::NoAnswer(chain(&error)),
        };
        Self { doing, page, what }
    }

    /// What it means.
    pub fn meaning(&self) -> Meaning {
        match &self.what {
            What::Refused { code, message } => meaning(code, message),
            What::NoAnswer(_) => Meaning::CouldNotAsk,
        }
    }

    /// Whether the service has refused for certain, so that the call took no effect. An answer that is not understood
    /// is none.
    pub fn is_refusal(&self) -> bool {
        self.meaning() != Meaning::CouldNotAsk
    }

    /// Whether the service answered with this code.
    pub fn is(&self, wanted: &str) -> bool {
        matches!(&self.what, What::Refused { code, .. } if code == wanted)
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { doing, page, what } = self;
        match what {
            What::NoAnswer(why) => write!(f, "could not {doing}: {why}"),
            What::Refused { code, message } => match self.meaning() {
                Meaning::Credentials => write!(
                    f,
                    "could not {doing}: AWS refuses this node's credentials ({code}: {message}); check them and their \
                        permissions ({page})"
                ),
                Meaning::NoCluster => {
                    write!(
                        f,
                        "could not {doing}: the cluster does not exist ({message}); check `cluster` and `region` of \
                            the plugin"
                    )
                }
                Meaning::Throttled => {
                    write!(
                        f,
                        "could not {doing}: too many requests ({code}: {message}); it is tried again, see \
                            requests_per_second"
                    )
                }
                Meaning::NoRoom => {
                    write!(f, "could not place the task: {code}: {message}; nothing was started, it is tried again")
                }
                Meaning::WrongRequest | Meaning::CouldNotAsk => write!(f, "could not {doing}: {code}: {message}"),
            },
        }
    }
}

impl From<Trouble> for RemoteError {
    fn from(trouble: Trouble) -> Self {
        match trouble.meaning() {
            Meaning::WrongRequest => RemoteError::WrongRequest(trouble.to_string()),
            _ => RemoteError::CouldNotAsk(trouble.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(code: &str, message: &str) -> RemoteError {
        Trouble {
            doing: "start the task",
            page: "docs/x.md",
            what: What::Refused { code: code.into(), message: message.into() },
        }
        .into()
    }

    #[test]
    fn codes_are_one_of_the_three_answers() {
        let wrong =
            ["ClientException", "InvalidParameterException", "PlatformUnknownException", "UnsupportedFeatureException"];
        for code in wrong {
            assert!(matches!(refused(code, "m"), RemoteError::WrongRequest(_)), "{code}");
        }
        let unknown = [
            ("ThrottlingException", "too many requests"),
            ("ServerException", "ServerException: m"),
            ("UnrecognizedClientException", "credentials"),
            ("AccessDeniedException", "permissions"),
            ("ExpiredTokenException", "credentials"),
            ("ClusterNotFoundException", "does not exist"),
            ("LimitExceededException", "could not place"),
            ("SomethingNew", "SomethingNew: m"),
        ];
        for (code, text) in unknown {
            let RemoteError::CouldNotAsk(said) = refused(code, "m") else { panic!("{code}") };
            assert!(said.contains(text), "{code}: {said}");
        }
        let full = refused("ClientException", "Capacity is unavailable at this time. Please try again later");
        assert!(matches!(&full, RemoteError::CouldNotAsk(why) if why.contains("could not place")), "{full}");
    }

    #[test]
    fn silence_and_rubbish_say_nothing() {
        let silent = Trouble { doing: "look at tasks", page: "docs/x.md", what: What::NoAnswer("timeout".into()) };
        assert_eq!(RemoteError::from(silent), RemoteError::could_not_ask("could not look at tasks: timeout"));
    }
}

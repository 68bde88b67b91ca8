//! Errors of the API as one of the three answers: gone, could not ask, wrong request.

use driver_sdk::RemoteError;
use kube::core::Status;

pub(crate) type Answer<T> = Result<T, RemoteError>;

/// What an error means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// The API server itself says that it has no such object.
    Absent,
    /// The name is taken.
    Taken,
    /// A precondition does not hold: somebody has changed the object.
    Moved,
    /// A test of a patch does not hold, or the object would not be valid.
    Invalid(String),
    /// The listing or the watch has to begin anew.
    Expired,
    /// Refused for every manager.
    Wrong(String),
    /// No answer, an unclear one, throttling, no room, no permission.
    CouldNotAsk(String),
}

impl Trouble {
    pub(crate) fn could_not_ask(why: impl ToString) -> Self {
        Trouble::CouldNotAsk(why.to_string())
    }
}

impl From<Trouble> for RemoteError {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::Absent => RemoteError::could_not_ask("the API server does not know the object"),
            Trouble::Taken => RemoteError::could_not_ask("the name is taken, and the API server does not show by what"),
            Trouble::Moved => RemoteError::could_not_ask("the object has changed meanwhile; ask again"),
            Trouble::Expired => RemoteError::could_not_ask("the listing has become too old; begin anew"),
            Trouble::Invalid(why) | Trouble::Wrong(why) => {
                RemoteError::wrong_request(format!("the API server refuses it: {why}"))
            }
            Trouble::CouldNotAsk(why) => RemoteError::could_not_ask(why),
        }
    }
}

/// The innermost reason of an error: outer ones say only "service error".
pub(crate) fn reason(error: &dyn std::error::Error) -> String {
    let mut parts = vec![error.to_string()];
    let mut next = error.source();
    while let Some(inner) = next {
        let text = inner.to_string();
        if !parts.last().is_some_and(|last| last.contains(&text)) {
            parts.push(text);
        }
        next = inner.source();
    }
    parts.join(": ")
}

/// Of a status; `name` is the object that was asked for, if one was.
pub(crate) fn status(status: &Status, name: Option<&str>) -> Trouble {
    let message = status.message.trim();
    let told = || if message.is_empty() { format!("status {}", status.code) } else { message.to_owned() };
    match (status.code, status.reason.as_str()) {
        (404, "NotFound") => {
            // A proxy says 404 as well, of everything.
            let named = status.details.as_ref().is_some_and(|d| Some(d.name.as_str()) == name && !d.kind.is_empty());
            if named { Trouble::Absent } else { Trouble::could_not_ask(told()) }
        }
        (409, "AlreadyExists") => Trouble::Taken,
        (409, "Conflict") => Trouble::Moved,
        (410, _) | (_, "Expired" | "Gone") => Trouble::Expired,
        (422, _) | (_, "Invalid") => Trouble::Invalid(told()),
        (400 | 413, _) => Trouble::Wrong(told()),
        (401, _) => Trouble::could_not_ask(format!("the API server refuses this node's credentials ({})", told())),
        (403, _) if message.contains("exceeded quota") => {
            Trouble::could_not_ask(format!("there is no room now, it is tried again: {message}"))
        }
        // "User x cannot create resource pods": no permission. All else is what an admission plugin says of the object.
        (403, _) if message.contains(" cannot ") || message.is_empty() => {
            Trouble::could_not_ask(format!("this node's account may not do this: {}", told()))
        }
        // A namespace that is being removed, for example.
        (403, _) if message.contains("being terminated") => Trouble::could_not_ask(told()),
        (403, "Forbidden") => Trouble::Wrong(told()),
        (code, _) => Trouble::could_not_ask(format!("the API server answers {code}: {}", told())),
    }
}

/// Of an error of the client.
pub(crate) fn trouble(error: &kube::Error, name: Option<&str>) -> Trouble {
    match error {
        kube::Error::Api(answer) => status(answer, name),
        kube::Error::SerdeError(why) => Trouble::could_not_ask(format!("the answer cannot be read: {why}")),
        other => Trouble::could_not_ask(reason(other)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(code: u16, reason: &str, message: &str) -> Trouble {
        let details = json!({"name": "p", "kind": "pods"});
        let answer = json!({"code": code, "reason": reason, "message": message, "details": details});
        status(&serde_json::from_value(answer).expect("a status"), Some("p"))
    }

    #[test]
    fn only_the_server_itself_says_that_something_is_absent() {
        assert_eq!(of(404, "NotFound", "pods \"p\" not found"), Trouble::Absent);
        // Of a proxy: plain text becomes a status without details.
        let plain: Status =
            serde_json::from_value(json!({"code": 404, "message": "404 page not found"})).expect("read");
        assert!(matches!(status(&plain, Some("p")), Trouble::CouldNotAsk(_)));
        let other = json!({"code": 404, "reason": "NotFound", "details": {"name": "n", "kind": "namespaces"}});
        let other: Status = serde_json::from_value(other).expect("read");
        assert!(matches!(status(&other, Some("p")), Trouble::CouldNotAsk(_)));
    }

    #[test]
    fn each_answer_has_its_meaning() {
        assert_eq!(of(409, "AlreadyExists", ""), Trouble::Taken);
        assert_eq!(of(409, "Conflict", ""), Trouble::Moved);
        assert_eq!(of(410, "Expired", ""), Trouble::Expired);
        assert!(matches!(of(422, "Invalid", "x"), Trouble::Invalid(_)));
        assert!(matches!(of(400, "BadRequest", "x"), Trouble::Wrong(_)));
        assert!(matches!(of(403, "Forbidden", "pods \"p\" is forbidden: violates PodSecurity"), Trouble::Wrong(_)));
        for (code, reason, message) in [
            (401, "Unauthorized", "Unauthorized"),
            (403, "Forbidden", "pods is forbidden: User \"x\" cannot create resource \"pods\""),
            (403, "Forbidden", "pods \"p\" is forbidden: exceeded quota: q"),
            (403, "Forbidden", "because it is being terminated"),
            (429, "TooManyRequests", "slow down"),
            (500, "InternalError", "failed calling webhook"),
            (504, "Timeout", "Too large resource version"),
            (502, "", "bad gateway"),
        ] {
            assert!(matches!(of(code, reason, message), Trouble::CouldNotAsk(_)), "{code} {message}");
        }
    }
}

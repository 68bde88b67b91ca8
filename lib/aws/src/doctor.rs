//! Rights, looked at for `drover driver doctor`.

use driver_sdk::Finding;

use crate::answer::{Meaning, Trouble, What, meaning};
use crate::{LogPlace, Session};

/// The place cannot be asked for, so nothing else is looked at. `option` names it in the plugin's configuration.
pub fn no_place(what: &str, option: &str, why: Trouble) -> Vec<Finding> {
    let remedy = format!(
        "check `{option}` and `region`, the credentials of the agent's user, and its clock: AWS refuses what is signed \
            some minutes ahead or late"
    );
    vec![Finding::fail(what, why, remedy)]
}

/// The right to read logs, looked at with a stream that there is not.
pub async fn logs<C>(session: &Session<C>, group: &str, stream: &str) -> Finding {
    let place = LogPlace { group: group.into(), region: String::new(), stream: stream.into() };
    right("logs:GetLogEvents", session.events(&place, None).await.err(), Some("`drover alloc logs` of its tasks"))
}

/// What a call about nothing says of the right to make it. Rights are looked at before there is anything to
/// find. Without a right that is `of_use` for something, all but that works.
pub fn right(name: &str, trouble: Option<Trouble>, of_use: Option<&str>) -> Finding {
    let what = format!("rights: {name}");
    let Some(why) = trouble else { return Finding::pass(what, "allowed") };
    let denied = match &why.what {
        What::Refused { code, message } => meaning(code, message) == Meaning::Credentials,
        // The service has answered before.
        What::NoAnswer(_) => {
            let remedy = format!("look for {name} in the policy of the agent's role");
            return Finding::warning(what, format!("not known: {why}"), remedy);
        }
    };
    match of_use {
        _ if !denied => Finding::pass(what, "allowed"),
        None => Finding::fail(what, why, format!("allow {name} in the policy of the agent's role")),
        Some(of_use) => {
            let remedy = format!("allow {name} in the policy of the agent's role; without it no {of_use}");
            Finding::warning(what, why, remedy)
        }
    }
}

#[cfg(test)]
mod tests {
    use driver_sdk::Verdict;

    use super::*;

    #[test]
    fn only_a_refusal_of_the_credentials_is_a_missing_right() {
        let refused = |code: &str| {
            let what = What::Refused { code: code.into(), message: "the referenced task was not found".into() };
            Some(Trouble { doing: "stop the task", page: "docs/x.md", what })
        };
        for (trouble, of_use, verdict) in [
            (None, None, Verdict::Pass),
            (refused("InvalidParameterException"), None, Verdict::Pass),
            (refused("ResourceNotFoundException"), Some("logs"), Verdict::Pass),
            (refused("AccessDeniedException"), None, Verdict::Fail),
            (refused("AccessDeniedException"), Some("logs"), Verdict::Warning),
            (
                Some(Trouble { doing: "x", page: "docs/x.md", what: What::NoAnswer("away".into()) }),
                None,
                Verdict::Warning,
            ),
        ] {
            let found = right("ecs:StopTask", trouble.clone(), of_use);
            assert_eq!(found.verdict, verdict, "{trouble:?}");
            assert_eq!(found.remedy.is_empty(), verdict == Verdict::Pass, "{found:?}");
        }
    }
}

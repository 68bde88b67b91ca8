//! What an answer of RunTask says that has started nothing.

use aws_sdk_ecs::types::Failure;
use driver_sdk::RemoteError;

/// Why RunTask, answered with success, has started nothing.
pub(crate) fn not_placed(failures: &[Failure]) -> RemoteError {
    if failures.is_empty() {
        return RemoteError::could_not_ask(
            "RunTask was answered with neither a task nor a reason; whether one was started is not known",
        );
    }
    let texts: Vec<String> = failures
        .iter()
        .map(|failure| {
            let reason = failure.reason().unwrap_or("no reason given");
            failure.detail().map_or_else(|| reason.to_owned(), |detail| format!("{reason} ({detail})"))
        })
        .collect();
    let text = texts.join(", ");
    // What the task needs and no instance of the cluster has is not had later either, unless somebody adds one: that is
    // room, too.
    RemoteError::could_not_ask(format!("could not place the task: {text}; nothing was started, it is tried again"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_without_a_place_says_why() {
        let failure = Failure::builder().reason("RESOURCE:MEMORY").detail("2 of 3 instances").build();
        let RemoteError::CouldNotAsk(why) = not_placed(&[failure]) else { panic!() };
        assert!(why.starts_with("could not place the task: RESOURCE:MEMORY (2 of 3 instances)"), "{why}");
        assert!(matches!(not_placed(&[]), RemoteError::CouldNotAsk(why) if why.contains("not known")));
    }
}

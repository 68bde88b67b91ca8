//! Errors as they travel: status codes, texts that peers compare, typed details.

use prost::Message;
use tonic::{Code, Status};

use crate::{rpc, structs};

/// How a driver says that it does not know a task. Peers recognise the text, not the code.
pub const TASK_NOT_FOUND: &str = "task not found for given id";

/// Type of the one status detail that drivers send.
pub const RECOVERABLE_TYPE_URL: &str = "type.googleapis.com/hashicorp.nomad.plugins.shared.structs.RecoverableError";

/// The status for an unknown task.
pub fn task_not_found() -> Status {
    Status::not_found(TASK_NOT_FOUND)
}

/// Whether a status means that the driver does not know the task. The text counts where it is the last cause (`recover:
/// task not found for given id`), with the id behind it (`"a/t/1"`, `: a/t/1`) or without, and as the only line of a
/// list of errors as Go's drivers print it; not where it is mentioned on the way to another failure.
pub fn is_task_not_found(status: &Status) -> bool {
    matches!(status.code(), Code::Unknown | Code::NotFound) && ends_in_not_found(status.message().trim())
}

fn ends_in_not_found(message: &str) -> bool {
    let Some(at) = message.rfind(TASK_NOT_FOUND) else { return false };
    let (before, after) = (message[..at].trim_end(), message[at + TASK_NOT_FOUND.len()..].trim());
    // Of several errors the others say that more has happened.
    let only_of_list = before.strip_suffix('*').is_some_and(|list| list.trim_end().ends_with("1 error occurred:"));
    // What was quoted is what somebody else has said.
    (before.is_empty() || before.ends_with([':', '=']) || only_of_list) && is_id(after)
}

/// Whether it is nothing, or one word as an id stands behind a text: quoted, or after a colon.
fn is_id(after: &str) -> bool {
    let word = after.strip_prefix(':').map_or(after, str::trim_start);
    !word.contains(char::is_whitespace)
        && (after.is_empty() || after.starts_with(['"', '\'', ':']) && !word.ends_with(':'))
}

/// A status which says whether the same call may succeed later.
pub fn recoverable_status(message: impl Into<String>, recoverable: bool) -> Status {
    let message = message.into();
    let detail = prost_types::Any {
        type_url: RECOVERABLE_TYPE_URL.into(),
        value: structs::RecoverableError { recoverable }.encode_to_vec(),
    };
    let inner = rpc::Status { code: Code::FailedPrecondition as i32, message: message.clone(), details: vec![detail] };
    Status::with_details(Code::FailedPrecondition, message, inner.encode_to_vec().into())
}

/// What the detail says; `None` without a (readable) detail, which counts as final.
pub fn recoverable(status: &Status) -> Option<bool> {
    let inner = rpc::Status::decode(status.details()).ok()?;
    inner.details.iter().find_map(|any| {
        // Only the part after the last slash names the type.
        let name = any.type_url.rsplit('/').next()?;
        if name != "hashicorp.nomad.plugins.shared.structs.RecoverableError" {
            return None;
        }
        Some(structs::RecoverableError::decode(any.value.as_slice()).ok()?.recoverable)
    })
}

/// Metadata key that carries the accepted epoch of a refusal.
pub const EPOCH_METADATA: &str = "drover-epoch";

/// The refusal of a mutation whose epoch is older than one already accepted.
pub fn stale_epoch(given: u64, accepted: u64) -> Status {
    let mut status = Status::aborted(format!("epoch {given} is stale, {accepted} was accepted already"));
    status.metadata_mut().insert(EPOCH_METADATA, accepted.into());
    status
}

/// The accepted epoch in a refusal.
pub fn accepted_epoch(status: &Status) -> Option<u64> {
    status.metadata().get(EPOCH_METADATA)?.to_str().ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_recoverable_detail_survives_the_round_trip() {
        for flag in [true, false] {
            let status = recoverable_status("no room", flag);
            assert_eq!(status.code(), Code::FailedPrecondition);
            assert_eq!(recoverable(&status), Some(flag));
            let inner = rpc::Status::decode(status.details()).expect("details decode");
            assert_eq!((inner.code, inner.message.as_str()), (9, "no room"));
        }
    }

    #[test]
    fn missing_or_broken_details_are_final() {
        assert_eq!(recoverable(&Status::unknown("x")), None);
        let junk = Status::with_details(Code::FailedPrecondition, "x", vec![0xff; 9].into());
        assert_eq!(recoverable(&junk), None);
    }

    #[test]
    fn an_unknown_task_is_recognised_by_text() {
        let cases = [
            (Status::unknown("task not found for given id"), true),
            (Status::not_found("rpc failed: task not found for given id \"a\""), true),
            (Status::internal("task not found for given id"), false),
            (Status::not_found("image not found"), false),
            (Status::unknown("task not found for given id: a/t/1"), true),
            (Status::unknown("task not found for given id:  \"a/t/1\""), true),
            (Status::unknown("task not found for given id: 503 from the provider"), false),
            (Status::unknown("task not found for given id: timeout:"), false),
            (Status::unknown("1 error occurred:\n\t* task not found for given id\n\n"), true),
            (
                Status::unknown(
                    "rpc error: code = Unknown desc = 1 error occurred:\n\t* task not found for given id: a/t/1\n\n",
                ),
                true,
            ),
            (
                Status::unknown(
                    "2 errors occurred:\n\t* the provider answered 503\n\t* task not found for given id\n\n",
                ),
                false,
            ),
            (
                Status::unknown(
                    "2 errors occurred:\n\t* task not found for given id\n\t* the provider answered 503\n\n",
                ),
                false,
            ),
            (Status::unknown("* task not found for given id"), false),
            (Status::unknown("task not found for given id:a/t/1"), true),
            (Status::unknown("rpc error: code = Unknown desc = task not found for given id"), true),
            (
                Status::unknown(
                    "the cache says (task not found for given id), and the provider could not be asked: 503",
                ),
                false,
            ),
            (Status::unknown("after task not found for given id: the provider answered 503"), false),
            (Status::unknown("task not found for given id, asking again failed: connection refused"), false),
            (Status::not_found("cluster not found"), false),
        ];
        for (status, expected) in cases {
            assert_eq!(is_task_not_found(&status), expected, "{status:?}");
        }
    }
}

//! What an instance is called at the engine, by what it is told apart, and what the engine's errors mean.

use std::collections::BTreeMap;

use driver_sdk::{Error, RemoteError};

use crate::engine::{EngineError, encode};

/// Whose an instance is.
pub(super) const LABEL_OWNER: &str = "drover.owner";
/// Its idempotency key.
pub(super) const LABEL_KEY: &str = "drover.key";
/// What it is an instance of, for people.
pub(super) const LABEL_SLOT: &str = "drover.slot";
/// The epoch under which it was made.
pub(super) const LABEL_EPOCH: &str = "drover.epoch";
/// Port label → port inside, as JSON.
pub(super) const LABEL_PORTS: &str = "drover.ports";

/// An engine's error as one of the three answers. That an instance is gone is never concluded from a call that did
/// something else.
pub(super) fn answer(error: EngineError) -> RemoteError {
    match error {
        e if e.is_wrong_request() => RemoteError::wrong_request(e),
        e => RemoteError::could_not_ask(e),
    }
}

/// The job's own fault, or something that may be different later.
pub(super) fn driver_error(error: Error) -> RemoteError {
    match error {
        Error::Recoverable(_) | Error::TaskNotFound => RemoteError::could_not_ask(error),
        Error::Failed(_) | Error::Invalid(_) | Error::Unsupported(_) => RemoteError::wrong_request(error),
    }
}

/// Name of what belongs to a key; different keys have different names.
pub(super) fn object_name(key: &str) -> String {
    use std::fmt::Write;
    let mut name = String::from("drover-");
    for byte in key.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' => name.push(char::from(byte)),
            _ => {
                let _ = write!(name, "_{byte:02x}");
            }
        }
    }
    name
}

/// Containers of other clusters are never touched.
pub(super) fn owned(labels: &BTreeMap<String, String>, key: &str, owner: &str) -> Result<(), RemoteError> {
    match labels.get(LABEL_OWNER) {
        Some(found) if found == owner => Ok(()),
        Some(found) => {
            Err(RemoteError::wrong_request(format!("instance {key} belongs to {found:?}, not to {owner:?}")))
        }
        None => Err(RemoteError::wrong_request(format!(
            "a container called {:?} exists and is not ours; remove or rename it",
            object_name(key)
        ))),
    }
}

/// Path of a container by name or id.
pub(super) fn container_path(container: &str) -> String {
    format!("/containers/{}", encode(container))
}

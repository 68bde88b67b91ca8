//! Containers that may run although their engine says that they were only created.
//!
//! An engine that is killed between the first instruction of a container and its own note of it has lost sight of that
//! when it is back: it says "created", starts nothing ("id already in use": its containerd has a task of that name
//! which lives), has no call that would end what runs, and removes the container without ending it (seen with engine
//! 20.10 and `live-restore`, five times of 36). Such a container is therefore not removed: nothing would keep its slot
//! from being filled a second time. Whoever wants to know whether one runs has to start it; so that this is never done
//! to one that nobody has started yet, a mark is made before each start, and taken away when the engine refuses it: an
//! engine that answers was not killed.

use driver_sdk::RemoteError;

use super::marks;
use super::names::{answer, container_path, driver_error};
use crate::engine::{Engine, EngineError};
use crate::local::start;

/// What containerd's client says in engines since 18.09 of a task that lives under the name of a container which is to
/// be started.
const IN_USE: &str = "id already in use";

/// Whether an engine's words about a start, or about a container that it says was only created, mean that.
pub(crate) fn runs_unseen(words: &str) -> bool {
    words.contains(IN_USE)
}

/// The words for the person: what is known, and what ends it.
pub(crate) fn explain(container: &str) -> String {
    format!(
        "the engine has lost sight of container {container}: it was killed while it started it, what it started runs \
            or may run, and the engine can neither \
         see nor end it. Nothing is started in its place. End it on the engine's machine: ctr --namespace moby tasks \
         kill --signal SIGKILL {container}"
    )
}

/// An answer to a start that was refused.
pub(crate) fn refused(container: &str, error: EngineError) -> RemoteError {
    if runs_unseen(&error.to_string()) { RemoteError::could_not_ask(explain(container)) } else { answer(error) }
}

/// Takes away a container that is not wanted and of which the engine says that it was only created. One whose start was
/// asked for is started, so that the engine sees what it takes away: that is no more than what that start would have
/// done.
pub(crate) async fn discard(engine: &Engine, key: &str, container: &str) -> Result<(), RemoteError> {
    if marks::start_noted(engine, key, container).await? {
        match engine.act("see whether the container runs", &format!("{}/start", container_path(container))).await {
            Ok(_) => {}
            // It may be refused for another reason before the engine comes to what would show that it runs.
            Err(e) if e.is_away() => return Err(refused(container, e)),
            // It cannot run as it is, or there is none.
            Err(_) => {}
        }
    }
    start::remove(engine, container).await.map_err(driver_error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_person_is_told_what_to_end() {
        assert!(runs_unseen("start the container: the engine answered 500: id already in use"));
        assert!(!runs_unseen("Conflict. The container name \"/drover-k\" is already in use by container 1"));
        assert!(explain("0a1b").ends_with("tasks kill --signal SIGKILL 0a1b"));
    }
}

//! Sessions of nodes in the order of the decisions: what a former session has said late is not decided on.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use control::sessions::{Newest, SessionId};

use crate::error::ServerError;

/// The newest session of each node. To be asked within a decision: so is everything that the next session says decided
/// after its registration, and what the former one says before, or not at all. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct SessionOrder(Arc<Mutex<Newest>>);

impl SessionOrder {
    fn lock(&self) -> MutexGuard<'_, Newest> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The session registers its node.
    pub(crate) fn registers(&self, session: SessionId) -> Result<(), ServerError> {
        if self.lock().registers(session) { Ok(()) } else { Err(late(session)) }
    }

    /// Refuses what a former session says.
    pub(crate) fn check(&self, session: SessionId) -> Result<(), ServerError> {
        if self.lock().is_present(session) { Ok(()) } else { Err(late(session)) }
    }
}

fn late(session: SessionId) -> ServerError {
    ServerError::conflict(format!(
        "node {} has opened another session: what this one says is not heard any more",
        session.node.short()
    ))
}

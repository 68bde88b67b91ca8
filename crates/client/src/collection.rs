//! What the node collects: ended allocations whose end the servers have stored. Until then they take an allocation for
//! one that runs: a node without a record of it would run it again.

use std::{sync::Arc, time::Duration};

use model::AllocId;
use node_record::outbox::Outbox;
use tokio::time::Instant;

use crate::{
    alloc::{AllocCommand, AllocHandle, AllocView},
    error::RequestError,
};

/// How long a request to collect waits for the servers to store an end: they may have heard it a moment ago.
const STORED_IN: Duration = Duration::from_secs(5);
/// Pause between two looks whether they have.
const LOOK: Duration = Duration::from_millis(20);

/// What of an allocation decides whether it is collected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Standing {
    /// Nothing is left to do for it here.
    over: bool,
    /// This agent has told the servers of it, or is about to: what a former agent has told is not known.
    told: bool,
    /// The servers have yet to store something of it.
    unstored: bool,
}

/// Why an allocation is not collected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stays {
    Runs,
    /// No server has stored its end.
    Unheard,
}

impl Standing {
    pub(crate) fn of(view: &AllocView) -> Self {
        Self { over: view.over, told: view.told, unstored: false }
    }

    /// What is shown of an allocation is in the outbox before: it is asked after the view. Not while the view is
    /// borrowed, for the two are locked the other way round where something is shown.
    pub(crate) fn with(self, outbox: &Outbox, id: AllocId) -> Self {
        Self { unstored: self.over && outbox.holds(id), ..self }
    }

    /// Why it is not collected, if so.
    pub(crate) fn stays(self) -> Option<Stays> {
        match self {
            Self { over: false, .. } => Some(Stays::Runs),
            Self { told: true, unstored: false, .. } => None,
            _ => Some(Stays::Unheard),
        }
    }
}

impl From<Stays> for RequestError {
    fn from(stays: Stays) -> Self {
        Self::Failed(
            match stays {
                Stays::Runs => "the allocation still runs; stop it before it is collected",
                Stays::Unheard => {
                    "the allocation has ended, but no server has stored its end, and they would have it run again; \
                     collect it when this node has a session with a server"
                }
            }
            .into(),
        )
    }
}

/// Why this one is not collected, if so.
pub(crate) fn stays(id: AllocId, handle: &AllocHandle, outbox: &Outbox) -> Option<Stays> {
    let shown = Standing::of(&handle.view.borrow());
    shown.with(outbox, id).stays()
}

/// Collects one allocation because somebody asks for it.
///
/// # Errors
/// When it has to stay.
pub(crate) async fn collect(id: AllocId, handle: AllocHandle, outbox: Arc<Outbox>) -> Result<(), RequestError> {
    take(id, &handle, &outbox, Instant::now() + STORED_IN).await.map_err(Into::into)
}

/// The same with all that can be.
pub(crate) async fn collect_all(all: Vec<(AllocId, AllocHandle)>, outbox: Arc<Outbox>) {
    let until = Instant::now() + STORED_IN;
    for (id, handle) in all {
        // What has to stay is collected another time.
        let _ = take(id, &handle, &outbox, until).await;
    }
}

async fn take(id: AllocId, handle: &AllocHandle, outbox: &Outbox, until: Instant) -> Result<(), Stays> {
    while let Some(why) = stays(id, handle, outbox) {
        if why == Stays::Runs || Instant::now() >= until {
            return Err(why);
        }
        tokio::time::sleep(LOOK).await;
    }
    // Its loop may have ended: then it is gone.
    let _ = handle.commands.send(AllocCommand::Collect);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_servers_know_to_have_ended_goes() {
        let standing = |over, told, unstored| Standing { over, told, unstored };
        for (standing, expected) in [
            (standing(false, true, false), Some(Stays::Runs)),
            (standing(false, true, true), Some(Stays::Runs)),
            (standing(true, true, true), Some(Stays::Unheard)),
            // Restored a moment ago.
            (standing(true, false, false), Some(Stays::Unheard)),
            (standing(true, true, false), None),
        ] {
            assert_eq!(standing.stays(), expected, "{standing:?}");
        }
    }

    #[test]
    fn an_update_counts_until_a_server_has_stored_it() {
        let (id, outbox) = (AllocId(uuid::Uuid::new_v4()), Outbox::default());
        let stays = || Standing { over: true, told: true, unstored: false }.with(&outbox, id).stays();
        assert_eq!(stays(), None);
        let client_status = model::ClientStatus::Complete;
        let update = |id| model::AllocClientUpdate { id, client_status, ..model::AllocClientUpdate::default() };
        outbox.alloc(update(id));
        outbox.alloc(update(AllocId(uuid::Uuid::new_v4())));
        assert_eq!(stays(), Some(Stays::Unheard), "it waits");
        outbox.take();
        assert_eq!(stays(), Some(Stays::Unheard), "it was sent");
        outbox.session_ended();
        outbox.take();
        outbox.stored(1);
        assert_eq!(stays(), Some(Stays::Unheard), "what was stored was another message");
        outbox.stored(2);
        assert_eq!(stays(), None);
    }
}

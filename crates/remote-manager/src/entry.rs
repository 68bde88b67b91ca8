//! The loop's state of a slot.

use std::sync::Arc;

use lifecycle::{alloc::machine::RemoteView, identities::Due, remote::node::Slot};
use model::{AllocId, IncarnationId, remote::RemoteHandle};
use tokio::sync::Mutex;
use tokio_util::{sync::DropGuard, task::TaskTracker};

use crate::{preparing::Preparing, renew::Renewing};

/// A slot that has an order here, or had one. There are thousands, and most are in peace: what a slot has only now and
/// then is boxed.
#[derive(Default)]
pub(crate) struct Entry {
    pub(crate) slot: Slot,
    /// Failed attempts in a row.
    pub(crate) failures: u32,
    /// The preparation of its create.
    pub(crate) preparing: Option<Box<Preparing>>,
    /// The call whose answer it waits for.
    pub(crate) call: Option<u64>,
    /// The incarnation whose create is under way, and whether this is its only create.
    pub(crate) ensuring: Option<(IncarnationId, bool)>,
    /// Keeps that create in the queue; without it an unsent create is dropped.
    pub(crate) wish: Option<DropGuard>,
    /// When the tokens of an instance that this node has created are due for renewal.
    pub(crate) due: Option<Box<(IncarnationId, Due)>>,
    /// The renewal of its tokens; ends with the entry.
    pub(crate) renewing: Option<Box<Renewing>>,
    /// Output to keep for an allocation that has not arrived yet.
    pub(crate) wants_keeping: Option<Box<(IncarnationId, AllocId, RemoteHandle)>>,
    /// The fetch of output; ends with the entry.
    pub(crate) keeping: Option<DropGuard>,
    /// What its allocation heard last.
    pub(crate) shown: Option<(AllocId, Arc<RemoteView>)>,
    /// The incarnation under watch.
    pub(crate) watched: Option<IncarnationId>,
    /// The driver and instance, if the driver must hear that the instance is let go.
    pub(crate) plain: Option<Box<(String, RemoteHandle)>>,
}

/// Writes of output into an allocation's directory.
#[derive(Default)]
pub(crate) struct Writing {
    /// Allows to wait for their end.
    pub(crate) tasks: TaskTracker,
    /// Serialises the writers.
    pub(crate) one_by_one: Arc<Mutex<()>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_in_peace_is_small() {
        assert!(size_of::<Entry>() <= 600, "{}", size_of::<Entry>());
    }
}

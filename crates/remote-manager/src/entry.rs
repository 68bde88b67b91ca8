//! What the loop keeps of a slot.

use std::sync::Arc;

use lifecycle::{alloc::machine::RemoteView, identities::Due, remote::node::Slot};
use model::{AllocId, IncarnationId, remote::RemoteHandle};
use tokio::sync::Mutex;
use tokio_util::{sync::DropGuard, task::TaskTracker};

use crate::{preparing::Preparing, renew::Renewing};

/// A slot that has an order here, or had one.
#[derive(Default)]
pub(crate) struct Entry {
    pub(crate) slot: Slot,
    /// Attempts in a row that have failed.
    pub(crate) failures: u32,
    /// What its create takes along.
    pub(crate) preparing: Option<Preparing>,
    /// The call whose answer is waited for.
    pub(crate) call: Option<u64>,
    /// The incarnation whose create is under way, and whether that is the only one there was.
    pub(crate) ensuring: Option<(IncarnationId, bool)>,
    /// The wish for that create: without it one that has not been sent yet is let go.
    pub(crate) wish: Option<DropGuard>,
    /// When the tokens of the instance that this node has created are due to be renewed.
    pub(crate) due: Option<Box<(IncarnationId, Due)>>,
    /// Its tokens are renewed; ends with the entry.
    pub(crate) renewing: Option<Box<Renewing>>,
    /// Output is to be kept for an allocation that has not come yet.
    pub(crate) wants_keeping: Option<(IncarnationId, AllocId, RemoteHandle)>,
    /// Output is being fetched; ends with the entry.
    pub(crate) keeping: Option<DropGuard>,
    /// What its allocation was told last.
    pub(crate) shown: Option<(AllocId, RemoteView)>,
    /// The incarnation that is watched.
    pub(crate) watched: Option<IncarnationId>,
    /// The instance, when its driver has to be told that it is let go.
    pub(crate) plain: Option<(String, RemoteHandle)>,
}

/// Output that is written into the directory of an allocation.
#[derive(Default)]
pub(crate) struct Writing {
    /// To wait for its end.
    pub(crate) tasks: TaskTracker,
    /// One writes at a time.
    pub(crate) one_by_one: Arc<Mutex<()>>,
}

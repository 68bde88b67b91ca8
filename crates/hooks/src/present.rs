//! The other allocations of the node, as a task sees them that waits for one.

use std::pin::Pin;

use model::{AllocId, Namespace};

/// The end of an allocation on this node.
pub struct End {
    /// It has ended.
    pub over: bool,
    /// Resolves at its end.
    pub wait: Pin<Box<dyn Future<Output = ()> + Send>>,
}

/// The allocations of this node.
pub trait Present: Send + Sync {
    /// The end of an allocation of this node; `None` for others.
    fn end_of(&self, alloc: AllocId) -> Option<End>;

    /// Other allocations of this node that have not ended and have one of these devices (the group's id, the device's).
    fn holders(&self, devices: &[(String, String)], other_than: AllocId) -> Vec<(AllocId, End)>;

    /// Other allocations of this node that have not ended and write to the host volume of that name.
    fn writers(&self, namespace: &Namespace, volume: &str, other_than: AllocId) -> Vec<(AllocId, End)>;
}

//! The owner of a process, cgroup or directory on this machine.

use model::AllocId;

/// The task that a process or cgroup serves.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Owner {
    /// Id of the allocation.
    pub alloc: AllocId,
    /// Name of the task.
    pub task: String,
}

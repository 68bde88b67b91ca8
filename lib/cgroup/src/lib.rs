//! Cgroups by file reads and writes, version 2, version 1 and both beside each other: which hierarchies a host has,
//! the directories and limits of a workload, its members, counters, end and removal.
//!
//! ```text
//! hierarchy.rs  what /proc says: mounted hierarchies, the cgroups of a process
//! dir.rs        one directory: make, members, kill, remove
//! workload.rs   the directories of one workload: limits, entry, counters
//! host.rs       what this host offers to workloads
//! ```
//!
//! Everything works on plain directories, so tests use a simulated tree. The executor links this: it allocates little
//! and starts no thread. Must never know: drivers, tasks, the names that a node gives. Begin reading at [`CgroupHost`].

mod dir;
mod hierarchy;
mod host;
mod workload;

pub use crate::dir::{errno, inherit_cpuset, kill_below, members_below, remove_below};
pub use crate::hierarchy::{Mount, memberships, mounts};
pub use crate::host::{CgroupHost, CgroupMode, CgroupPolicy};
pub use crate::workload::{
    Counters, Paths, counters, create, entries, gather, is_populated, kill, members, needs_gathering, oom_kills,
    open_unified, remove,
};

//! The state of a cluster as one immutable value: cheap to clone, changed only by applying batches.
//!
//! A writer clones the newest [`State`], calls [`State::apply`] on the clone, makes the [`Row`]s of the resulting
//! [`AppliedSet`] durable, and only then publishes the clone. Readers hold a clone for as long as they like.
//! [`State::load`] makes the same value from the rows.
//!
//! This crate must never know: time of day, randomness, files, network, an async runtime. `now` and new ids are
//! arguments.
//!
//! Begin reading at [`State`], then [`Change`] (everything that can happen) and [`AppliedSet`] (what did happen).

mod acl;
mod acl_tables;
mod applied;
mod apply;
mod batch;
mod class;
mod codec;
mod column;
mod fleet;
mod follow;
mod format;
mod lineage;
mod load;
mod namespace_use;
mod row;
mod runtimes;
mod services;
mod system_jobs;
mod table;
mod tables;
#[cfg(test)]
mod tests;
mod unmanaged;
mod usage;
mod volume_tables;
mod volumes;

pub use applied::{AppliedSet, Cause, Changed, Object};
pub use batch::{ApplyError, Batch, Change, Expect};
pub use class::computed_class;
pub use fleet::{Fleet, HostNetwork, NodeCapacity, NodeFacts, NodeSlot, NodeTaken, PortRanges, parse_ports};
pub use format::{
    DEVICES, FORMATS, Format, LIMITS, MAX_RUN, PACKED, PREEMPTION, SECRETS, VARIABLES, VOLUMES, Versions,
};
pub use lineage::{Ancestor, ClusterMeta, Mark, Recovery};
pub use load::LoadError;
pub use model::records::{
    GroupSummary, JobChildren, JobScalingEvents, JobSummary, NamespaceCapabilities, NamespaceLimits, NamespaceRecord,
    NamespaceUse, NodePool, NodePoolScheduler, Submission,
};
pub use row::Row;
pub use runtimes::Runtime;
pub use table::{Table, TableSet};
pub use tables::{Rows, State};
pub use unmanaged::Unmanaged;
pub use usage::{NodeUse, PortSet};

/// Versions kept of a job, besides tagged ones and the last stable one, unless the server says otherwise.
pub const JOB_VERSIONS_KEPT: usize = 6;

/// Name of the namespace that always exists.
pub const DEFAULT_NAMESPACE: &str = "default";
/// Name of the default node pool of jobs and nodes.
pub const DEFAULT_NODE_POOL: &str = "default";
/// Name of the node pool of all nodes; no node can join it.
pub const ALL_NODE_POOL: &str = "all";

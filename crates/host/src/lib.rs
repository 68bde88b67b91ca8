//! This machine: what it is and has, and the traces that a node and its tasks leave on it.
//!
//! [`fingerprint`] tells what there is. [`dirs`], [`secrets`], [`cgroup`], [`cpuset`] and [`network`] make what tasks
//! need, and remove it. [`node_env`] tells tasks of the node. [`leftovers`] finds the processes of tasks and ends them.
//!
//! This crate must never know: allocations' loops, drivers, servers, the node's records.

pub mod cgroup;
pub mod cgroup_names;
pub mod clock;
pub mod cpuset;
pub mod dirs;
pub mod env;
pub mod fingerprint;
pub mod ledger;
pub mod leftovers;
pub mod network;
pub mod node_env;
pub mod output;
pub mod owner;
pub mod secrets;
pub mod seeds;
pub mod stats;

//! This machine: its facts, and the traces that a node and its tasks leave on it.
//!
//! [`fingerprint`] collects facts. [`dirs`], [`secrets`], [`cgroup`], [`cpuset`] and [`network`] make and remove what
//! tasks need. [`node_env`] describes the node to tasks. [`leftovers`] finds and ends the processes of tasks.
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

//! Records of a node: its identity, allocations, created items, and reports that its servers have not stored yet.
//!
//! Begin reading at [`store`]. The other modules keep one fact each: [`identity`], [`metadata`] of the node,
//! [`membership`] in a cluster, its [`servers`], the [`lease`], and the [`outbox`]. This crate must never know:
//! allocations' loops, drivers, the machine that the node runs on.

mod error;
pub mod identity;
pub mod lease;
pub mod membership;
pub mod metadata;
pub mod outbox;
pub mod servers;
pub mod store;

pub use error::StoreError;

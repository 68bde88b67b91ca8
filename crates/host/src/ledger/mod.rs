//! The audit of the node: processes, cgroups, mounts, network namespaces, sockets, FIFOs and directories that exist,
//! compared with those that a record claims.
//!
//! [`compare`] is pure. What exists is found by [`look()`], what is claimed is told by whoever keeps the records
//! ([`Claims`]), and ends what nobody claims.
//!
//! Why a sweep never hits what is just being started: a record is written before the effect that it announces and
//! dropped after that effect is gone, and the records are read *after* the look. So whatever was seen had its claim
//! at the moment of the look; if the claim is not there any more a moment later, then the thing is gone as well – and
//! before anything is ended it is checked that it still is the very thing that was seen. Two looks must agree all the
//! same: that costs a minute and covers a record that is wrong for a moment.
//!
//! Ours is only what proves it: it lies in this node's directories, says so in its command line or environment, or
//! its cgroup is named by an allocation that this node knows. Other agents of the machine have other directories and
//! other allocations.

mod books;
mod look;

pub use books::{AllocClaim, Belongs, Claims, Finding, Handle, Role, TaskClaim, Thing, compare, confirm, unbalanced};
pub use look::{Plugins, identity_of, look};

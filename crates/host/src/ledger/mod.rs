//! The audit of the node: processes, cgroups, mounts, network namespaces, sockets, FIFOs and directories, compared with
//! the claims of records.
//!
//! [`compare`] is pure. [`look()`] finds the existing items. The keeper of the records supplies the [`Claims`] and ends
//! unclaimed items.
//!
//! Why a sweep never hits an item that is being started:
//! - The node writes a record before the effect that it announces, and drops it after that effect is gone.
//! - The audit reads the records *after* the look. So each item seen had its claim at the moment of the look. If the
//!   claim has gone since, so has the item.
//! - Before the sweep ends an item, it checks that this is still the same item.
//! - Two looks must agree. That costs a minute, and covers a record that is wrong for a moment.
//!
//! The audit counts an item as the node's own only on proof. The item lies in this node's directories, names them in
//! its command line or environment, or its cgroup names an allocation of this node. Other agents of the machine have
//! other directories and other allocations.

mod books;
mod look;

pub use books::{AllocClaim, Belongs, Claims, Finding, Handle, Role, TaskClaim, Thing, compare, confirm, unbalanced};
pub use look::{Plugins, identity_of, look};

//! The manager of remote tasks on a node: one loop that follows the servers' orders and nothing else.
//!
//! What an order, a lease and a sighting mean is decided by `lifecycle::remote::node`; here its effects are carried
//! out. A mutation is sent only while the lease is held and is given up when the lease ends. Nothing here runs
//! because an allocation stops, a node drains or the agent ends: the loop then simply ends, and the instances live
//! on.
//!
//! The node tells [`RemoteManager`] the orders and asks it about instances. [`RemoteLoop`] does the work. What it needs
//! of the node stands in [`Means`]: the traits [`Drivers`] and [`Supplies`] are the node's to implement. This crate
//! must never know: allocations' loops, hooks, sessions. Begin reading at `run`.

mod attached;
mod calls;
mod commands;
mod creates;
mod entry;
mod evidence;
mod fetched;
mod keep;
mod manager;
mod perform;
mod plain;
mod ports;
mod prepare;
mod prepared;
mod preparing;
mod renew;
mod run;
mod unshown;
mod watch;
mod wire;

pub use attached::Output;
pub use manager::{Commands, Instance, Interest, RemoteManager};
pub use ports::{Drivers, Rendered, Supplies, Tokens, Unprepared};
pub use run::{Means, RemoteLoop, Restored};
pub use wire::wire_handle;

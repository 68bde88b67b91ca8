//! The manager of remote tasks on a node: one loop that follows the servers' orders and nothing else.
//!
//! `lifecycle::remote::node` decides what an order, a lease and a sighting mean; this crate carries out the effects. It
//! sends a mutation only while the node holds the lease, and gives it up when the lease ends. The stop of an
//! allocation, a drain, or the agent's end triggers nothing here. The loop ends then, and the instances live on.
//!
//! The node passes orders to [`RemoteManager`] and asks it about instances. [`RemoteLoop`] does the work. Its inputs
//! from the node are in [`Means`]; the node implements the traits [`Drivers`] and [`Supplies`]. This crate must never
//! know: allocations' loops, hooks, sessions. Begin reading at `run`.

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

//! Life cycles as pure state machines, for servers and nodes.
//!
//! Every decision here is a function from values to values, with the reasons beside the result. This crate must never
//! know: the clock, randomness, files, network, an async runtime. `now`, new ids and seeds are arguments.
//!
//! Begin reading at [`remote`] (the record of a remote task; its README states the problem and the properties), then
//! [`task_order`].

pub mod alloc;
pub mod checks;
pub mod collection;
pub mod cores;
pub mod health;
pub mod identities;
pub mod membership;
pub mod mutation;
pub mod remote;
pub mod restart;
pub mod services;
pub mod task_order;

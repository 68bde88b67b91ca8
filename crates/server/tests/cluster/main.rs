//! A server in this process with fake nodes that speak the real session protocol.

mod durability;
mod fake;
mod jobs;
mod nodes;
mod remote;
mod speed;

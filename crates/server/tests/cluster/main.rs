//! A server in this process with fake nodes that speak the real session protocol.

#![allow(clippy::print_stdout, reason = "measurements, and how fake sessions ended, for whoever reads a failed test")]

mod apart;
mod broken;
mod canaries;
mod disconnect;
mod durability;
mod fake;
mod fake_jobs;
mod fake_volumes;
mod follower;
mod formats;
mod identities;
mod introductions;
mod jobs;
mod leases;
mod many;
mod nodes;
mod pauses;
mod recovery;
mod remote;
mod restore;
mod run_mark;
mod services;
mod shared;
mod speed;
mod system;
mod test_store;
mod turns;
mod volumes;

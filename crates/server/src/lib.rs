//! The server: state, scheduling, node sessions, and the loops that keep both in step.
//!
//! Everything that changes goes through one pipeline (`commit`): a decision on the newest state, applied, made
//! durable, published. Around it are loops that own nothing but the memory of what to look at next. What they
//! decide is a function of the snapshot, and each of them is filled again from a snapshot after a start or a
//! refused commit.
//!
//! [`loops`] lists them; `reconciler` runs those that carry out a decision of `control`. `server` puts everything
//! together: each part holds what it needs of others, and `runner` starts what runs in the background. Nodes come in
//! through the crate `node-gateway`, whose backend is `gateway`.
//!
//! This crate must never know how a node runs anything. The HTTP API is a crate of its own, `server-http`, which
//! sees the [`ServerHandle`]. Begin reading at [`Server`], then `commit`, then `worker`; the write API is in
//! `commands`.

mod answering;
mod blocked;
mod broker;
mod clock;
mod commands;
mod commit;
pub mod config;
mod disk;
pub mod error;
pub mod events;
mod follower;
mod gateway;
mod handle;
mod haste;
mod introductions;
pub mod keyring;
mod known;
pub mod loops;
mod observer;
mod parts;
mod progress;
mod published;
mod reconciler;
mod recovery;
pub mod requests;
mod root_keys;
mod run_mark;
mod runner;
pub mod samples;
mod schemas;
mod server;
mod session_order;
mod sessions;
pub mod shared;
pub mod snapshot;
pub mod store_copy;
pub mod sweep;
mod threads;
mod trends;
mod updates;
mod watchdog;
mod watches;
mod worker;

pub use answering::Answering;
pub use commands::login::{LoginError, LoginReturn};
pub use commands::variables::{Items, NotRenewed, Written};
pub use commands::volumes::Volumed;
pub use config::{AclConfig, GcConfig, IntroductionConfig, RootKeyConfig, SearchLimits, ServerConfig};
pub use control::{admission::VaultRules, extra_claims::mistakes_of as claim_mistakes, introduction::Enforcement};
pub use error::{ErrorClass, Kind, ServerError};
pub use follower::{FollowError, Follower};
pub use handle::ServerHandle;
pub use known::Known;
pub use node_gateway::{AllServers, Relay, join};
pub use progress::Fault;
pub use recovery::{RecoveryStatus, Unproven};
pub use server::{Server, StartError, Surroundings};
pub use threads::Threads;
pub use watches::Watched;

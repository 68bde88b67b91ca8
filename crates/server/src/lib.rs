//! The server: state, scheduling, node sessions, the loops that keep both in step, and the HTTP API.
//!
//! Everything that changes goes through one pipeline (`commit`): a decision on the newest state, applied, made durable, published. Around it are
//! loops that own nothing but the memory of what to look at next; what they decide is a function of the snapshot, and each of them is filled
//! again from a snapshot after a start or a refused commit.
//!
//! | loop | wakes on | owns | on error | on shutdown |
//! |---|---|---|---|---|
//! | `commit` | a decision in its queue | newest state, order of commits | refuses the decision; a refused batch voids what was built on it | ends after the decision at hand |
//! | store writer (crate `store`) | a batch in its queue | the database | refuses the batches; a failed fsync ends the process | commits what is queued |
//! | `worker` (several) | an evaluation of the broker | nothing | gives the evaluation back; too often = failed, with a follow-up | ends after the evaluation at hand |
//! | `evals` broker | chores, times of waiting evaluations | nothing (the broker follows the commits) | fills the broker again | ends |
//! | `evals` blocked | room that has appeared | nothing (the tracker follows the commits) | wakes everything again | ends |
//! | `nodes` leases | the next lease that runs out | until when nodes are waited for | tries again in a second | ends |
//! | `drainer` | changed nodes and allocations, deadlines | nothing | tries again in a second | ends |
//! | `deployments` | changed deployments and jobs, deadlines | nothing | tries again in a second | ends |
//! | `remote` supervision | changed slots, jobs and nodes, times of restarts | which slots to look at | looks at everything again in a second | ends |
//! | `collect` | the clock | nothing | tries again at the next interval | ends |
//! | `rpc` session (one per node) | messages of the node, changes that concern it | what it has sent | ends; the node opens another | says goodbye |
//!
//! This crate must never know how a node runs anything. Begin reading at [`Server`], then `commit`, then `worker`; the write API is in `commands`.

mod blocked;
mod broker;
mod clock;
mod collect;
mod commands;
mod commit;
pub mod config;
mod deployments;
mod drainer;
pub mod error;
mod evals;
pub mod events;
mod handle;
pub mod http;
pub mod keyring;
mod leases;
mod nodes;
mod remote;
pub mod requests;
mod rpc;
mod server;
mod shared;
pub mod sweep;
mod worker;

pub use config::{GcConfig, ServerConfig};
pub use error::{ErrorClass, Kind, ServerError};
pub use handle::ServerHandle;
pub use server::{Server, StartError};

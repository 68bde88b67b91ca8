//! Allocations: one loop each, which owns the state; see `machine` for what it decides and `effects` for what it does.

pub(crate) mod artifacts;
mod check_grpc;
mod check_tls;
pub(crate) mod checks;
pub(crate) mod effects;
pub(crate) mod identities;
pub(crate) mod kept;
pub(crate) mod machine;
#[cfg(test)]
mod machine_tests;
pub(crate) mod migrate;
pub(crate) mod record;
pub(crate) mod run;
pub(crate) mod services;
pub(crate) mod sticky;
pub(crate) mod task_config;
pub(crate) mod templates;

pub(crate) use machine::{Event as AllocEvent, RemoteView};
pub(crate) use run::{AllocCommand, AllocCommands, AllocHandle, AllocLoop, AllocView};

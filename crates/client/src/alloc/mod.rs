//! Allocations: one loop each, which owns the state; see `lifecycle::alloc` for what it decides, `start` and `effects`
//! for what it does, the crate `hooks` for what is made ready before a start.

mod cleaning;
pub(crate) mod effects;
pub(crate) mod outputs;
pub(crate) mod parts;
mod queue;
pub(crate) mod remote_exec;
pub(crate) mod run;
pub(crate) mod start;
mod timers;
mod works;

pub(crate) use lifecycle::alloc::machine::Event as AllocEvent;
pub(crate) use run::{AllocCommand, AllocHandle, AllocLoop, AllocView};

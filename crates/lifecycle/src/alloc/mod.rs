//! An allocation on its node: the state machine of its tasks, its durable records, and the texts of its events.
//!
//! Begin with [`machine`].

pub mod events;
pub mod inbox;
pub mod kept;
pub mod machine;
#[cfg(test)]
mod machine_tests;
pub mod record;
pub mod refusal;

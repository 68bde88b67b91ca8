//! The parts of a network namespace: `plan` decides, `cni` asks plugins, `netns` makes namespaces, `record` keeps what
//! must be known to end it.

pub mod cni;
pub mod netns;
pub mod plan;
pub mod record;

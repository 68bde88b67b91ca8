//! The parts of a network namespace: `plan` decides, `cni` calls plugins, `netns` makes namespaces, `record` keeps what
//! a removal needs.

pub mod cni;
pub mod netns;
pub mod plan;
pub mod record;

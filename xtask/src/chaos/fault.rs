//! A fault: what is done to a node, and what to look for.

use anyhow::Result;

use super::world::World;

/// Something that goes wrong.
pub(super) struct Fault {
    pub(super) name: &'static str,
    /// What is done.
    pub(super) what: &'static str,
    /// What a node without its counter-measure would show: the run must be able to fail.
    pub(super) would_show: &'static str,
    pub(super) run: fn(&mut World, usize) -> Result<()>,
}

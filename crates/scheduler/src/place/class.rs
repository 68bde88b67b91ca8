//! What a group needs on the nodes of a class.

use std::sync::Arc;

use model::resources::AllocatedResources;

use crate::pools::PoolAsk;

/// What one allocation needs on a node of a class.
pub(crate) struct Ask {
    pub(in crate::place) cpu: i64,
    pub(in crate::place) cores: i64,
    pub(in crate::place) memory_mb: i64,
    pub(in crate::place) disk_mb: i64,
    /// Remote tasks that the node would manage.
    pub(in crate::place) sessions: i64,
    /// By task, in the group's order: whether it is remote there.
    pub(in crate::place) remote: Vec<bool>,
    pub(in crate::place) pool: PoolAsk,
    /// The grant of every allocation on such nodes, if it has no individual parts.
    pub(in crate::place) given: Arc<AllocatedResources>,
}

impl Ask {
    pub(in crate::place) fn only_remote(&self) -> bool {
        !self.remote.is_empty() && self.remote.iter().all(|r| *r)
    }
}

/// A class's answer to the rules.
pub(crate) enum Class {
    Unknown,
    OutOfScope,
    Filtered(String),
    Feasible { ask: Ask, affinity: f64 },
}

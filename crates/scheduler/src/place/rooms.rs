//! What placements displace: what of it is decided, and where more room could be made.

use std::{collections::HashMap, sync::Arc};

use model::{alloc::Allocation, ids::JobKey, metrics::AllocMetric, plan::PlannedStop};

/// Placements of a group that share one ranking account, at first and later: an account for each would outweigh the
/// allocations.
pub(super) const SHARED_FIRST: usize = 16;
pub(super) const SHARED_LATER: usize = 64;

/// The group of a job.
pub(super) type Group = (JobKey, Arc<str>);

/// What the plan under way displaces.
#[derive(Default)]
pub(super) struct Displaced {
    pub(super) stops: Vec<PlannedStop>,
    /// How many of each group.
    pub(super) of_groups: HashMap<Group, i32>,
}

/// How a node would get room.
#[derive(Clone)]
pub(super) struct Made {
    pub(super) leaving: Vec<Arc<Allocation>>,
    /// The node's score without the weight of its spread, and the number of its parts.
    pub(super) sum: f64,
    pub(super) parts: u8,
    /// The part of it for the displacement.
    pub(super) part: f64,
}

/// What is known of a candidate.
#[derive(Clone, Default)]
pub(super) enum Known {
    #[default]
    Nothing,
    No,
    Yes(Box<Made>),
}

/// The nodes where room could be made.
#[derive(Default)]
pub(super) struct Rooms {
    /// By candidate; empty until the first is asked for.
    pub(super) known: Vec<Known>,
    /// Candidates in the order of their ties; empty until the first is looked at.
    pub(super) order: Vec<usize>,
    /// How many of them have been.
    pub(super) looked_at: usize,
    /// Those where room could be made.
    pub(super) found: Vec<usize>,
    pub(super) account: Option<(Arc<AllocMetric>, usize)>,
    pub(super) placed: usize,
}

pub(super) fn group_of(alloc: &Allocation) -> Group {
    (alloc.job_key(), alloc.task_group.clone())
}

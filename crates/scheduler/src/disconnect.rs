//! Allocations on disconnected nodes: how long the scheduler waits, and which one stays when a replaced one comes back.
//!
//! The scheduler does not wait for an allocation of remote tasks only. Its tasks run elsewhere and lose nothing when
//! another node manages them. So their management moves with the node's lease, whatever the job says, and there is
//! never a second instance to choose from.

use std::sync::Arc;

use model::{
    alloc::{AllocStateChange, Allocation, ClientStatus, TaskRunState},
    go_duration::GoDuration,
    ids::{NodeId, TimestampNs},
    job::TaskGroup,
    node::NodeStatus,
    policy::{Patience, Pick},
};
use state::State;

use crate::{outcome, remote};

/// An allocation's state with regard to its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Contact {
    /// Its node is connected and has reported on it.
    Present,
    /// Its node is connected again and has not reported on it yet.
    Returning,
    /// Its node is gone, or the wait for it is over.
    Lost,
    /// Its node is disconnected, and the scheduler waits for it.
    Away {
        /// A replacement runs meanwhile.
        replace: bool,
        /// End of the wait; `None` = no end.
        until: Option<TimestampNs>,
    },
}

/// The state of a live allocation with regard to its node. A wait that ends within `window` from now counts as over.
pub(crate) fn contact(
    state: &State,
    group: &TaskGroup,
    a: &Allocation,
    now: TimestampNs,
    window: TimestampNs,
) -> Contact {
    let Some(node) = state.node(a.node_id) else { return Contact::Lost };
    match node.status {
        NodeStatus::Down => Contact::Lost,
        NodeStatus::Disconnected if node.drain.is_some() => Contact::Lost,
        NodeStatus::Disconnected => match waits(group, a, now) {
            Some((_, Some(until))) if until <= now.saturating_add(window) => Contact::Lost,
            Some((patience, until)) => Contact::Away { replace: patience.replace, until },
            None => Contact::Lost,
        },
        NodeStatus::Initializing | NodeStatus::Ready if a.client_status == ClientStatus::Unknown => Contact::Returning,
        NodeStatus::Initializing | NodeStatus::Ready => Contact::Present,
    }
}

/// The job's patience for the allocation, and the end of the wait.
fn waits(group: &TaskGroup, a: &Allocation, now: TimestampNs) -> Option<(Patience, Option<TimestampNs>)> {
    let patience = group.patience()?;
    // An allocation that may not have started can start elsewhere.
    let idle = a.client_status == ClientStatus::Pending && patience.replace;
    if a.terminal() || idle || remote::only_remote(a) {
        return None;
    }
    let since = unknown_since(a).unwrap_or(now);
    Some((patience, patience.lost_after.map(|d| since.saturating_add(d.nanos()))))
}

/// Since when its node is disconnected; `None` when it is not.
fn unknown_since(a: &Allocation) -> Option<TimestampNs> {
    let last = a.alloc_states.iter().rev().find(|s| s.field == AllocStateChange::CLIENT_STATUS)?;
    (a.client_status == ClientStatus::Unknown && last.value == AllocStateChange::UNKNOWN)
        .then(|| last.time.ns())
        .flatten()
}

/// How long the servers wait for a silent node. `None` = not at all, it is down; `Some(None)` = without end.
#[must_use]
pub fn node_patience(state: &State, node: NodeId, now: TimestampNs) -> Option<Option<TimestampNs>> {
    if state.node(node).is_none_or(|n| n.drain.is_some()) {
        return None;
    }
    let until = |a: &Arc<Allocation>| {
        let job = state.job(&a.job_key()).filter(|j| !j.stopped())?;
        let (_, until) = waits(job.group(&a.task_group)?, a, now)?;
        until.is_none_or(|at| at > now).then_some(until)
    };
    // `None` is later than any time.
    state.allocs_by_node(node).filter_map(until).max_by_key(|until| until.unwrap_or(TimestampNs::MAX))
}

/// How long a lost allocation gets no replacement, because its node may still be about to stop it.
pub(crate) fn stops_by_itself(group: &TaskGroup, a: &Allocation) -> Option<GoDuration> {
    let after = group.stop_on_client_after().filter(|_| !remote::only_remote(a))?;
    let kill =
        group.tasks.iter().map(|t| t.kill_timeout.unwrap_or(GoDuration::from_secs(5)).nanos()).max().unwrap_or(0);
    Some(GoDuration(after.nanos().saturating_add(kill)))
}

/// Whether the disconnected original stays rather than its replacement.
pub(crate) fn original_stays(state: &State, pick: Pick, original: &Allocation, replacement: &Allocation) -> bool {
    let version = |a: &Allocation| a.job.as_ref().map(|j| (j.create_index, j.version));
    if outcome::done(state, replacement) || version(replacement) > version(original) {
        return false;
    }
    if outcome::done(state, original) || replacement.client_status != ClientStatus::Running {
        return true;
    }
    match pick {
        Pick::KeepOriginal => true,
        Pick::KeepReplacement => false,
        Pick::BestScore => score(original) >= score(replacement),
        Pick::LongestRunning => match (running_since(original), running_since(replacement)) {
            (Some(original), Some(replacement)) => original <= replacement,
            (original, _) => original.is_some(),
        },
    }
}

/// The ranking's score of its placement. Placements share an account, which shows the few best nodes of its first one:
/// for a node that it does not show, the best score stands.
fn score(a: &Allocation) -> f64 {
    let shown = || a.metrics.iter().flat_map(|m| &m.score_meta_data);
    let own = shown().find(|s| s.node_id == a.node_id).map(|s| s.norm_score);
    own.or_else(|| shown().map(|s| s.norm_score).max_by(f64::total_cmp)).unwrap_or(0.0)
}

/// Since when the leader runs, or else the longest-running task.
fn running_since(a: &Allocation) -> Option<TimestampNs> {
    let leader = a.job.as_deref().and_then(|j| j.group(&a.task_group)).and_then(|g| g.tasks.iter().find(|t| t.leader));
    let counts = |name: &str| leader.is_none_or(|l| *l.name == *name);
    let running = a.task_states.iter().filter(|(name, t)| counts(name) && t.state == TaskRunState::Running);
    running.filter_map(|(_, t)| t.started_at.ns()).min()
}

//! Allocations whose node is cut off: how long they are waited for, and which one stays when one comes back that was replaced meanwhile.
//!
//! An allocation of nothing but remote tasks is not waited for: its tasks run elsewhere and lose nothing when another node manages them, so
//! management moves with the node's lease, whatever the job says, and there is never a second instance to choose from.

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

/// What becomes of an allocation because of its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Contact {
    /// Its node is there, and has said so.
    Present,
    /// Its node is there again, and has not spoken of it yet.
    Returning,
    /// Its node is gone, or was waited for long enough.
    Lost,
    /// Its node is cut off, and it is waited for.
    Away {
        /// It is replaced meanwhile.
        replace: bool,
        /// Until then; None = as long as it takes.
        until: Option<TimestampNs>,
    },
}

/// What the node's silence means for a live allocation. What ends within `window` from now has ended.
pub(crate) fn contact(state: &State, group: &TaskGroup, a: &Allocation, now: TimestampNs, window: TimestampNs) -> Contact {
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

/// What the job says about waiting for it, and until when.
fn waits(group: &TaskGroup, a: &Allocation, now: TimestampNs) -> Option<(Patience, Option<TimestampNs>)> {
    let patience = group.patience()?;
    // What may not have started can start elsewhere as well.
    let idle = a.client_status == ClientStatus::Pending && patience.replace;
    if a.terminal() || idle || remote::only_remote(a) {
        return None;
    }
    let since = unknown_since(a).unwrap_or(now);
    Some((patience, patience.lost_after.map(|d| since.saturating_add(d.nanos()))))
}

/// When its node was found to be cut off; None when it is not.
fn unknown_since(a: &Allocation) -> Option<TimestampNs> {
    let last = a.alloc_states.iter().rev().find(|s| s.field == AllocStateChange::CLIENT_STATUS)?;
    (a.client_status == ClientStatus::Unknown && last.value == AllocStateChange::UNKNOWN).then(|| last.time.ns()).flatten()
}

/// How long a node that is not heard from is waited for: None = not at all, it is down; otherwise until then, or as long as it takes.
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
    // None is later than any time.
    state.allocs_by_node(node).filter_map(until).max_by_key(|until| until.unwrap_or(TimestampNs::MAX))
}

/// How long a lost allocation is not replaced because its node may still be about to stop it.
pub(crate) fn stops_by_itself(group: &TaskGroup, a: &Allocation) -> Option<GoDuration> {
    let after = group.stop_on_client_after().filter(|_| !remote::only_remote(a))?;
    let kill = group.tasks.iter().map(|t| t.kill_timeout.unwrap_or(GoDuration::from_secs(5)).nanos()).max().unwrap_or(0);
    Some(GoDuration(after.nanos().saturating_add(kill)))
}

/// Does the one that was cut off stay, rather than what was placed instead of it?
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

/// What the ranking thought of the node that it was placed on.
fn score(a: &Allocation) -> f64 {
    let own = a.metrics.iter().flat_map(|m| &m.score_meta_data).find(|s| s.node_id == a.node_id);
    own.map_or(0.0, |s| s.norm_score)
}

/// Since when the leader runs, or else the task that has run longest.
fn running_since(a: &Allocation) -> Option<TimestampNs> {
    let leader = a.job.as_deref().and_then(|j| j.group(&a.task_group)).and_then(|g| g.tasks.iter().find(|t| t.leader));
    let counts = |name: &str| leader.is_none_or(|l| *l.name == *name);
    let running = a.task_states.iter().filter(|(name, t)| counts(name) && t.state == TaskRunState::Running);
    running.filter_map(|(_, t)| t.started_at.ns()).min()
}

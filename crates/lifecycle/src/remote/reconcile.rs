//! From a snapshot to events: the servers' loop over remote tasks is a reconciler that remembers nothing between runs.
//!
//! For each slot that has a record or is wanted by an allocation, gather [`SlotFacts`] from the snapshot, feed each
//! of [`events_for`] to [`super::transition`], carry the effects out. Doing it twice changes nothing.

use model::{AllocId, Job, NodeId, RemoteTask, RemoteWanted, SlotKey, TimestampNs, remote::Manager};

use super::{
    Event,
    transition::{awaits_finisher, wake_at},
};

/// What a snapshot says about a slot.
#[derive(Clone)]
pub struct SlotFacts<'a> {
    /// What the newest allocation of the slot wants whose desired status is run and whose client status is not
    /// terminal, provided that its node holds a lease and is not draining; None when there is no such allocation.
    pub wanted: Option<RemoteWanted>,
    /// Why the job does not want the slot (see [`slot_covered`]); `Ok` when it does.
    pub covered: Result<(), String>,
    /// The node holds a lease (servers' view: not expired including the margin).
    pub leased: &'a dyn Fn(NodeId) -> bool,
    /// A drain of the node is under way; `Some(true)` when it waits no longer: its deadline has passed, or the
    /// scheduler has found no room *for this slot* (with a successor named, "no room" must not be said: it would take
    /// over before it has observed).
    pub draining: &'a dyn Fn(NodeId) -> Option<bool>,
    /// The allocation exists, is wanted to run and is not terminal.
    pub alloc_live: &'a dyn Fn(AllocId) -> bool,
    /// Who may let the provider forget an instance of which nothing else is left to do ([`awaits_finisher`]): the
    /// allocation that it served with its node, while that holds a lease; any capable node (with no allocation) when
    /// the allocation is no more; None to wait.
    pub finisher: &'a dyn Fn() -> Option<Manager>,
}

/// Does the job want this slot? The error says why not.
///
/// # Errors
/// The reason for a tombstone.
pub fn slot_covered(job: Option<&Job>, slot: &SlotKey) -> Result<(), String> {
    let Some(job) = job else {
        return Err(format!("job {} was purged", slot.job()));
    };
    if job.stopped() {
        return Err(format!("job {} was stopped", slot.job()));
    }
    let Some(group) = job.group(&slot.group) else {
        return Err(format!("group {:?} was removed in version {} of the job", &*slot.group, job.version));
    };
    if slot.index >= group.count() {
        return Err(format!("group {:?} was scaled down to {}", &*slot.group, group.count()));
    }
    if group.task(&slot.task).is_none() {
        return Err(format!("task {:?} was removed in version {} of the job", &*slot.task, job.version));
    }
    Ok(())
}

/// The events that follow from the facts, in the order in which they are to be fed: management that is lost first,
/// then what is wanted, then what is not. An allocation that wants the slot outweighs a job that no longer counts it:
/// the scheduler stops allocations, not indexes.
#[must_use]
pub fn events_for(record: Option<&RemoteTask>, facts: &SlotFacts<'_>, now: TimestampNs) -> Vec<Event> {
    let mut events = Vec::new();
    if let Some(r) = record {
        for m in [r.manager, r.successor].into_iter().flatten() {
            if !(facts.leased)(m.node_id) {
                events.push(Event::LeaseLost { node: m.node_id });
            }
        }
    }
    if let Some(wanted) = &facts.wanted {
        events.push(Event::Wanted(Box::new(wanted.clone())));
    }
    let Some(r) = record else { return events };
    if facts.wanted.is_none()
        && let Err(why) = &facts.covered
        && ![r.manager, r.successor].into_iter().flatten().any(|m| (facts.alloc_live)(m.alloc_id))
    {
        events.push(Event::Unwanted { why: why.clone() });
    } else {
        for m in [r.manager, r.successor, r.next.as_ref().and_then(|n| n.manager)].into_iter().flatten() {
            if !m.alloc_id.is_nil() && !(facts.alloc_live)(m.alloc_id) {
                events.push(Event::Released { alloc_id: m.alloc_id });
            }
        }
    }
    if let Some(m) = r.manager
        && let Some(force) = (facts.draining)(m.node_id)
    {
        events.push(Event::Drain { node: m.node_id, force });
    }
    if facts.wanted.is_none()
        && facts.covered.is_ok()
        && awaits_finisher(r)
        && let Some(manager) = (facts.finisher)()
    {
        events.push(Event::Finisher(manager));
    }
    // What follows may have been held up, and is asked for again.
    let follows = r.settled() && r.next.as_ref().is_some_and(|next| next.manager.is_some());
    if follows || wake_at(r).is_some_and(|at| at <= now) {
        events.push(Event::Tick);
    }
    events
}

/// True when the record waits for any capable node: [`Event::CapableNode`] is to be fed with one that reaches its
/// provider.
#[must_use]
pub fn needs_executor(r: &RemoteTask) -> bool {
    r.manager.is_none() && !r.settled() && (r.desired == model::DesiredRemote::Stop || r.next.is_some())
}

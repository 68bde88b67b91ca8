//! From a snapshot to events: the servers' loop over remote tasks is a reconciler without memory between runs.
//!
//! For each slot that has a record or that an allocation wants, gather [`SlotFacts`] from the snapshot. Feed each of
//! [`events_for`] to [`super::transition()`] and carry out the effects. Doing it twice changes nothing.

use model::{AllocId, Job, NodeId, RemoteTask, RemoteWanted, SlotKey, TimestampNs, remote::Manager};

use super::{
    Event,
    transition::{awaits_finisher, stops_at_its_time, wake_at},
};

/// A snapshot's facts about a slot.
#[derive(Clone)]
pub struct SlotFacts<'a> {
    /// The wish of the slot's newest allocation with desired status run and a client status that is not terminal. Its
    /// node must hold a lease and must not be draining. `None` when there is no such allocation.
    pub wanted: Option<RemoteWanted>,
    /// Why the job does not want the slot (see [`slot_covered`]); `Ok` when it does.
    pub covered: Result<(), String>,
    /// Whether the node holds a lease (servers' view: not expired including the margin).
    pub leased: &'a dyn Fn(NodeId) -> bool,
    /// Whether a drain of the node is under way. `Some(true)` when it waits no longer: its deadline has passed, or the
    /// scheduler has found no room *for this slot*. With a successor named, it must not report "no room": the successor
    /// would take over before it has observed.
    pub draining: &'a dyn Fn(NodeId) -> Option<bool>,
    /// Whether the allocation exists, should run and is not terminal.
    pub alloc_live: &'a dyn Fn(AllocId) -> bool,
    /// The manager that may make the provider forget an instance with nothing else left to do ([`awaits_finisher`]).
    /// That is its allocation with its node, while that node holds a lease. Once the allocation is gone, it is any
    /// capable node, with no allocation. `None` = wait.
    pub finisher: &'a dyn Fn() -> Option<Manager>,
}

/// Whether the job wants this slot; the error says why not.
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

/// The events that follow from the facts, in feeding order: lost management first, then wanted slots, then unwanted
/// ones. An allocation that wants the slot outweighs a job that no longer counts it: the scheduler stops allocations,
/// not indexes.
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
    // A held successor asks again.
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
    let stops = r.desired == model::DesiredRemote::Stop || r.next.is_some() || stops_at_its_time(r);
    r.manager.is_none() && !r.settled() && stops
}

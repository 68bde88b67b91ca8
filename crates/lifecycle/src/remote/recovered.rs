//! What becomes of a slot's record when somebody knows more of the slot than the servers, whose state is from the
//! past: a node with the orders that it follows, or a provider with the instances that it has.

use std::collections::BTreeMap;

use model::{
    DesiredRemote, IncarnationId, Observed, RemoteExit, RemoteInstance, RemoteOrder, RemotePolicy, RemoteTask, RemoteVerdict, SlotKey,
    Text, TimestampNs,
    common::Common,
    remote::{MAX_HANDLE_BYTES, RemoteHandle, RemoteIntent},
};

use super::{
    Context,
    transition::{install, may_create, note},
};

/// What somebody else knows of a slot.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Known {
    /// The incarnation; nil = only the epoch is known.
    pub incarnation: IncarnationId,
    /// The highest epoch under which somebody has acted.
    pub epoch: u64,
    /// Driver of the task.
    pub driver: Text,
    /// Identity of the runtime.
    pub provider: Text,
    /// Its handle.
    pub handle: Option<RemoteHandle>,
    /// What its driver keeps of the create.
    pub intent: Option<RemoteIntent>,
    /// Wanted: a stop that was ordered goes on.
    pub desired: DesiredRemote,
    /// The end of the incarnation was counted: what followed from it, and the result.
    pub ended: Option<(RemoteVerdict, Option<RemoteExit>)>,
    /// What the incarnation was made from; None when no copy of its job is known.
    pub made_from: Option<MadeFrom>,
    /// Who knows it, for people.
    pub source: String,
}

/// What of a job an incarnation was made from.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MadeFrom {
    /// Version of the job.
    pub job_version: u64,
    /// Hash of all that the provider sees.
    pub spec_hash: Text,
    /// What governs restarts and stops.
    pub policy: Common<RemotePolicy>,
}

impl Known {
    /// What a node tells by an order that it follows. `source` names it, for people.
    #[must_use]
    pub fn of_order(order: &RemoteOrder, made_from: Option<MadeFrom>, source: String) -> Self {
        // One that has outlived its agent's restart names no driver: then only the epoch of what is known counts.
        let incarnation = if order.driver.is_empty() { IncarnationId::NIL } else { order.incarnation };
        Self {
            incarnation,
            epoch: order.epoch,
            driver: order.driver.as_str().into(),
            provider: order.provider.as_str().into(),
            handle: order.handle.clone(),
            intent: order.intent.clone(),
            // Whoever only lets the provider forget an ended instance has the role of one that stops, and no stop was
            // ordered.
            desired: order.desired,
            ended: order.acknowledge.then(|| (order.verdict.clone(), order.result.clone())),
            made_from,
            source,
        }
    }

    /// What a provider tells by an instance of the slot that no record knows. `made_from` when a job wants its slot
    /// with that driver.
    #[must_use]
    pub fn of_instance(instance: &RemoteInstance, incarnation: IncarnationId, provider: (&str, &str), made_from: Option<MadeFrom>) -> Self {
        let (driver, provider) = provider;
        Self {
            incarnation,
            epoch: instance.epoch,
            driver: driver.into(),
            provider: provider.into(),
            handle: instance.handle.clone(),
            made_from,
            source: format!("provider {provider}"),
            ..Self::default()
        }
    }
}

/// Of the instances that providers tell of, those that are the slots': the one of the highest epoch in each. Others
/// stay unbound, and nothing begins in their slot before a person has decided.
#[must_use]
pub fn of_each_slot(found: impl IntoIterator<Item = (SlotKey, Known)>) -> BTreeMap<SlotKey, Known> {
    let mut best: BTreeMap<SlotKey, Known> = BTreeMap::new();
    for (slot, found) in found {
        if best.get(&slot).is_none_or(|other| other.epoch < found.epoch) {
            best.insert(slot, found);
        }
    }
    best
}

/// The record with what is known taken over; None = it knows as much already, or it cannot be taken over (the sweep
/// lists the instance then).
///
/// The slot is unmanaged afterwards: whoever manages it next does so under an epoch above the highest that anybody
/// has acted under. An incarnation that was committed under a later epoch is the slot's: the one before it had
/// confirmedly ended.
#[must_use]
pub fn take_over(slot: &SlotKey, record: Option<&RemoteTask>, known: &Known, cx: Context) -> Option<RemoteTask> {
    let Some(before) = record else {
        let stop = known.desired == DesiredRemote::Stop;
        if known.incarnation.is_nil() || (known.made_from.is_none() && !stop) {
            return None;
        }
        let mut r = RemoteTask { slot: slot.clone(), ..RemoteTask::default() };
        incarnate(&mut r, known, cx);
        return Some(r);
    };
    let mut r = before.clone();
    if known.incarnation.is_nil() || known.incarnation == before.incarnation {
        if known.epoch <= before.epoch && (before.handle.is_some() || known.handle.is_none()) {
            return None;
        }
        if r.handle.is_none() || known.epoch > before.epoch {
            r.handle = usable(known).or(r.handle);
        }
        if known.epoch > before.epoch {
            r.epoch = known.epoch;
            r.intent = known.intent.clone().map(Box::new).or(r.intent);
            unmanage(&mut r, cx.now);
            if known.desired == DesiredRemote::Stop && r.desired == DesiredRemote::Run {
                (r.desired, r.stop_reason) = (DesiredRemote::Stop, format!("a stop that was under way: told by {}", known.source).into());
            }
            end(&mut r, known);
        }
        note(&mut r, cx, format!("{} knows epoch {}, the servers had lost it", known.source, known.epoch));
        return Some(r);
    }
    // Under one epoch two histories have gone on: the instance that there is counts, not the one that nobody has seen.
    let counts = known.epoch == before.epoch && known.handle.is_some() && !before.seen();
    if known.epoch <= before.epoch && !counts {
        return None;
    }
    incarnate(&mut r, known, cx);
    Some(r)
}

/// The record at the end of a recovery, when its incarnation was committed and nobody has ever seen it: its manager
/// is named anew, so that [`Context::held`](super::Context) decides whether it is created. What has followed it may
/// live. None = it stays as it is.
#[must_use]
pub fn named_anew(record: &RemoteTask, cx: Context) -> Option<RemoteTask> {
    if record.manager.is_none() || !may_create(record) {
        return None;
    }
    let mut r = record.clone();
    unmanage(&mut r, cx.now);
    note(&mut r, cx, "unmanaged: nobody has seen it, and the servers have recovered".to_owned());
    Some(r)
}

fn usable(known: &Known) -> Option<RemoteHandle> {
    known.handle.clone().filter(|handle| handle.data.len() <= MAX_HANDLE_BYTES)
}

fn unmanage(r: &mut RemoteTask, now: TimestampNs) {
    (r.manager, r.successor) = (None, None);
    r.unmanaged_since = now;
}

/// An end that was counted is not counted again, and nothing is made anew for it.
fn end(r: &mut RemoteTask, known: &Known) {
    let Some((verdict, result)) = known.ended.clone().filter(|_| !r.exit_acknowledged) else { return };
    r.observed = match &result {
        Some(RemoteExit { code, signal, oom_killed, reason, at, vanished: false }) => {
            Observed::Exited { code: *code, signal: *signal, oom_killed: *oom_killed, reason: reason.clone(), at: *at }
        }
        _ => Observed::Gone,
    };
    (r.exit_acknowledged, r.verdict, r.result) = (true, verdict, result.map(Box::new));
}

/// Puts the incarnation that is known into the record.
fn incarnate(r: &mut RemoteTask, known: &Known, cx: Context) {
    // What belongs to the incarnation before begins anew, with the counters of the slot kept.
    install(
        r,
        &model::RemoteWanted {
            job_version: known.made_from.as_ref().map_or(r.job_version, |made| made.job_version),
            spec_hash: known.made_from.as_ref().map_or_else(|| r.spec_hash.clone(), |made| made.spec_hash.clone()),
            driver: known.driver.clone(),
            provider: known.provider.clone(),
            policy: known.made_from.as_ref().map_or_else(|| r.policy.clone(), |made| made.policy.clone()),
            keep_counters: true,
            ..model::RemoteWanted::default()
        },
        model::remote::Manager::default(),
        Context { fresh: known.incarnation, ..cx },
    );
    unmanage(r, cx.now);
    r.epoch = known.epoch.max(1);
    // Whoever has acted may have created it under any epoch up to this one: it is looked for before anything else.
    r.incarnation_epoch = 0;
    r.handle = usable(known);
    r.intent = known.intent.clone().map(Box::new);
    r.observed =
        Observed::Unknown { since: cx.now, why: format!("told by {}, not observed since the servers recovered", known.source).into() };
    if known.desired == DesiredRemote::Stop {
        (r.desired, r.stop_reason) = (DesiredRemote::Stop, format!("a stop that was under way: told by {}", known.source).into());
    }
    end(r, known);
    note(r, cx, format!("incarnation {} of epoch {} is told by {}: the servers had lost it", r.incarnation.short(), r.epoch, known.source));
}

#[cfg(test)]
mod tests {
    use model::{NodeId, SlotParts, remote::Manager};
    use uuid::Uuid;

    use super::*;

    fn id(n: u128) -> IncarnationId {
        IncarnationId(Uuid::from_u128(n))
    }

    fn handle(text: &str) -> RemoteHandle {
        RemoteHandle { schema: 1, data: text.as_bytes().to_vec() }
    }

    fn known(incarnation: u128, epoch: u64) -> Known {
        Known {
            incarnation: id(incarnation),
            epoch,
            driver: "far".into(),
            handle: Some(handle("h")),
            intent: Some(RemoteIntent(vec![7])),
            made_from: Some(MadeFrom { job_version: 3, spec_hash: "s".into(), ..MadeFrom::default() }),
            source: "node a".to_owned(),
            ..Known::default()
        }
    }

    #[test]
    fn what_is_known_better_elsewhere_is_taken_over_and_nothing_else() {
        let slot: SlotKey =
            SlotParts { namespace: "default".into(), job_id: "j".into(), group: "g".into(), index: 0, task: "t".into() }.into();
        let cx = Context { now: 9, fresh: id(99), held: false };
        let manager = Some(Manager { node_id: NodeId(Uuid::from_u128(7)), ..Manager::default() });
        let record = RemoteTask {
            slot: slot.clone(),
            incarnation: id(1),
            epoch: 4,
            manager,
            restarts: 2,
            handle: Some(handle("old")),
            observed: Observed::Running,
            ..RemoteTask::default()
        };
        // Same incarnation, later epoch: unmanaged, nothing else of the instance changes.
        let same = take_over(&slot, Some(&record), &known(1, 6), cx).expect("taken over");
        assert_eq!((same.incarnation, same.epoch, same.manager, same.observed.clone()), (id(1), 6, None, Observed::Running));
        // A later incarnation takes the place of the one that had ended; the counters are the slot's.
        let later = take_over(&slot, Some(&record), &known(2, 5), cx).expect("taken over");
        assert_eq!((later.incarnation, later.epoch, later.restarts, later.handle.clone()), (id(2), 5, 2, Some(handle("h"))));
        assert_eq!((same.intent, later.intent.clone()), (known(1, 6).intent.map(Box::new), known(2, 5).intent.map(Box::new)));
        assert!(later.adopt() && later.manager.is_none() && matches!(later.observed, Observed::Unknown { .. }));
        // No record at all.
        let new = take_over(&slot, None, &known(2, 5), cx).expect("taken over");
        assert_eq!((new.incarnation, new.epoch, new.job_version, new.desired), (id(2), 5, 3, DesiredRemote::Run));
        let stop = Known { desired: DesiredRemote::Stop, made_from: None, ..known(2, 5) };
        assert_eq!(take_over(&slot, None, &stop, cx).expect("a tombstone").desired, DesiredRemote::Stop);
        assert_eq!(
            take_over(&slot, Some(&record), &Known { incarnation: IncarnationId::NIL, ..known(0, 8) }, cx).expect("an epoch").epoch,
            8
        );
        // Of two histories with the same epoch the one counts that has an instance.
        let unseen = RemoteTask { handle: None, observed: Observed::Intended, ..record.clone() };
        let seen = take_over(&slot, Some(&unseen), &known(2, 4), cx).expect("taken over");
        assert_eq!((seen.incarnation, seen.epoch, seen.handle.clone()), (id(2), 4, Some(handle("h"))));
        assert_eq!(take_over(&slot, Some(&unseen), &Known { handle: None, ..known(2, 4) }, cx), None, "neither has been seen");
        // An end that was counted stays counted.
        let done = RemoteExit { code: 0, at: 5, ..RemoteExit::default() };
        let ended = Known { ended: Some((RemoteVerdict::Complete, Some(done))), ..known(2, 5) };
        let ended = take_over(&slot, None, &ended, cx).expect("taken over");
        assert!(ended.exit_acknowledged && ended.observed.ended() && ended.verdict == RemoteVerdict::Complete);
        for (case, record, known) in [
            ("an older epoch", Some(&record), known(1, 4)),
            ("an older incarnation", Some(&record), known(2, 4)),
            ("an instance of no known job", None, Known { made_from: None, ..known(2, 5) }),
            ("an epoch of nothing", None, Known { incarnation: IncarnationId::NIL, ..known(0, 5) }),
        ] {
            assert_eq!(take_over(&slot, record, &known, cx), None, "{case}");
        }
    }
}

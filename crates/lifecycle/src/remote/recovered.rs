//! Merges newer knowledge of a slot into a record when the servers' state is from the past. The source is a node with
//! its orders in force, or a provider with its instances.

use std::collections::BTreeMap;

use model::{
    DesiredRemote, IncarnationId, Observed, RemoteExit, RemoteInstance, RemoteOrder, RemotePolicy, RemoteTask,
    RemoteVerdict, SlotKey, Text, TimestampNs,
    common::Common,
    remote::{MAX_HANDLE_BYTES, RemoteEventKind as Kind, RemoteHandle, RemoteIntent},
};

use super::{
    Context,
    transition::{What, install, may_create, note},
};
use crate::mutation::{Mutation, mutated};

/// Knowledge of a slot from elsewhere.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Known {
    /// The incarnation; nil = only the epoch is known.
    pub incarnation: IncarnationId,
    /// The highest epoch under which a manager has acted.
    pub epoch: u64,
    /// Driver of the task.
    pub driver: Text,
    /// Identity of the provider.
    pub provider: Text,
    /// Its handle.
    pub handle: Option<RemoteHandle>,
    /// The stored intent of its create.
    pub intent: Option<RemoteIntent>,
    /// The wish: an ordered stop continues.
    pub desired: DesiredRemote,
    /// The counted end of the incarnation: verdict and result.
    pub ended: Option<(RemoteVerdict, Option<RemoteExit>)>,
    /// Source of the incarnation; `None` when no copy of its job is known.
    pub made_from: Option<MadeFrom>,
    /// Origin of this knowledge, for people.
    pub source: String,
}

/// The parts of a job that an incarnation was made from.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MadeFrom {
    /// Version of the job.
    pub job_version: u64,
    /// Hash of everything that the provider sees.
    pub spec_hash: Text,
    /// Restart and stop policy.
    pub policy: Common<RemotePolicy>,
}

impl Known {
    /// From an order that a node follows. `source` names the node, for people.
    #[must_use]
    pub fn of_order(order: &RemoteOrder, made_from: Option<MadeFrom>, source: String) -> Self {
        // An order that only survived its agent's restart names no driver: then only its epoch counts.
        let incarnation = if order.driver.is_empty() { IncarnationId::NIL } else { order.incarnation };
        Self {
            incarnation,
            epoch: order.epoch,
            driver: order.driver.as_str().into(),
            provider: order.provider.as_str().into(),
            handle: order.handle.clone(),
            intent: order.intent.clone(),
            // A manager that only acknowledges an ended instance has the stop role, without an ordered stop.
            desired: order.desired,
            ended: order.acknowledge.then(|| (order.verdict.clone(), order.result.clone())),
            made_from,
            source,
        }
    }

    /// From an orphaned instance of the slot at a provider. `made_from` when a job wants its slot with that driver.
    #[must_use]
    pub fn of_instance(
        instance: &RemoteInstance,
        incarnation: IncarnationId,
        provider: (&str, &str),
        made_from: Option<MadeFrom>,
    ) -> Self {
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

/// Assigns the instances of providers to their slots: in each slot, the one with the highest epoch. Others stay
/// unbound, and nothing begins in their slot before a person has decided.
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

/// The record with the knowledge merged; `None` = it knows as much already, or cannot take it over (then the sweep
/// lists the instance).
///
/// The slot is unmanaged afterwards: its next manager gets an epoch above the highest under which any has acted. An
/// incarnation committed under a later epoch is the slot's, because the earlier one had confirmedly ended.
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
            if !mutated(Mutation::RecoveryBelowEpoch) {
                r.epoch = known.epoch;
            }
            r.intent = known.intent.clone().map(Box::new).or(r.intent);
            unmanage(&mut r, cx.now);
            if known.desired == DesiredRemote::Stop && r.desired == DesiredRemote::Run {
                (r.desired, r.stop_reason) =
                    (DesiredRemote::Stop, format!("a stop that was under way: told by {}", known.source).into());
            }
            end(&mut r, known);
        }
        note(
            &mut r,
            cx,
            What::of(Kind::Unmanaged),
            format!("{} knows epoch {}, the servers had lost it", known.source, known.epoch),
        );
        return Some(r);
    }
    // Two histories continued under one epoch: the existing instance counts, not the unseen one.
    let counts = known.epoch == before.epoch && known.handle.is_some() && !before.seen();
    if known.epoch <= before.epoch && !counts {
        return None;
    }
    incarnate(&mut r, known, cx);
    Some(r)
}

/// The record at the end of a recovery, if nobody has ever seen its committed incarnation. It names the manager anew,
/// so that [`Context::held`](super::Context) decides on the create: a lost successor may live. `None` = it stays as it
/// is.
#[must_use]
pub fn named_anew(record: &RemoteTask, cx: Context) -> Option<RemoteTask> {
    if record.manager.is_none() || !may_create(record) {
        return None;
    }
    let mut r = record.clone();
    unmanage(&mut r, cx.now);
    note(
        &mut r,
        cx,
        What::from(Kind::Unmanaged, record.manager),
        "unmanaged: nobody has seen it, and the servers have recovered".to_owned(),
    );
    Some(r)
}

fn usable(known: &Known) -> Option<RemoteHandle> {
    known.handle.clone().filter(|handle| handle.data.len() <= MAX_HANDLE_BYTES)
}

fn unmanage(r: &mut RemoteTask, now: TimestampNs) {
    (r.manager, r.successor) = (None, None);
    r.unmanaged_since = now;
}

/// A counted end is not counted again, and causes nothing new.
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

/// Puts the known incarnation into the record.
fn incarnate(r: &mut RemoteTask, known: &Known, cx: Context) {
    // The incarnation's own fields begin anew; the slot's counters stay.
    install(
        r,
        &model::RemoteWanted {
            job_version: known.made_from.as_ref().map_or(r.job_version, |made| made.job_version),
            spec_hash: known.made_from.as_ref().map_or_else(|| r.spec_hash.clone(), |made| made.spec_hash.clone()),
            driver: known.driver.clone(),
            provider: known.provider.clone(),
            policy: known.made_from.as_ref().map_or_else(|| r.policy.clone(), |made| made.policy.clone()),
            keep_counters: true,
            created_at: r.began,
            ..model::RemoteWanted::default()
        },
        model::remote::Manager::default(),
        Context { fresh: known.incarnation, ..cx },
    );
    unmanage(r, cx.now);
    r.epoch = if mutated(Mutation::RecoveryBelowEpoch) { 1 } else { known.epoch.max(1) };
    // A manager may have created it under any epoch up to this one: it must be looked for first.
    r.incarnation_epoch = 0;
    r.handle = usable(known);
    r.intent = known.intent.clone().map(Box::new);
    r.observed = Observed::Unknown {
        since: cx.now,
        why: format!("told by {}, not observed since the servers recovered", known.source).into(),
    };
    if known.desired == DesiredRemote::Stop {
        (r.desired, r.stop_reason) =
            (DesiredRemote::Stop, format!("a stop that was under way: told by {}", known.source).into());
    }
    end(r, known);
    note(
        r,
        cx,
        What::of(Kind::Unmanaged),
        format!(
            "incarnation {} of epoch {} is told by {}: the servers had lost it",
            r.incarnation.short(),
            r.epoch,
            known.source
        ),
    );
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
        RemoteHandle { schema: 1, data: text.as_bytes().into() }
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
        let slot: SlotKey = SlotParts {
            namespace: "default".into(),
            job_id: "j".into(),
            group: "g".into(),
            index: 0,
            task: "t".into(),
        }
        .into();
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
        assert_eq!(
            (same.incarnation, same.epoch, same.manager, same.observed.clone()),
            (id(1), 6, None, Observed::Running)
        );
        // A later incarnation replaces the ended one; the counters are the slot's.
        let later = take_over(&slot, Some(&record), &known(2, 5), cx).expect("taken over");
        assert_eq!(
            (later.incarnation, later.epoch, later.restarts, later.handle.clone()),
            (id(2), 5, 2, Some(handle("h")))
        );
        assert_eq!(
            (same.intent, later.intent.clone()),
            (known(1, 6).intent.map(Box::new), known(2, 5).intent.map(Box::new))
        );
        assert!(later.adopt() && later.manager.is_none() && matches!(later.observed, Observed::Unknown { .. }));
        // No record at all.
        let new = take_over(&slot, None, &known(2, 5), cx).expect("taken over");
        assert_eq!((new.incarnation, new.epoch, new.job_version, new.desired), (id(2), 5, 3, DesiredRemote::Run));
        let stop = Known { desired: DesiredRemote::Stop, made_from: None, ..known(2, 5) };
        assert_eq!(take_over(&slot, None, &stop, cx).expect("a tombstone").desired, DesiredRemote::Stop);
        assert_eq!(
            take_over(&slot, Some(&record), &Known { incarnation: IncarnationId::NIL, ..known(0, 8) }, cx)
                .expect("an epoch")
                .epoch,
            8
        );
        // Of two histories with the same epoch, the one with an instance counts.
        let unseen = RemoteTask { handle: None, observed: Observed::Intended, ..record.clone() };
        let seen = take_over(&slot, Some(&unseen), &known(2, 4), cx).expect("taken over");
        assert_eq!((seen.incarnation, seen.epoch, seen.handle.clone()), (id(2), 4, Some(handle("h"))));
        assert_eq!(
            take_over(&slot, Some(&unseen), &Known { handle: None, ..known(2, 4) }, cx),
            None,
            "neither has been seen"
        );
        // A counted end stays counted.
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

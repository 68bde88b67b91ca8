//! The servers' transition function. The module above has the picture, README.md the numbered rules.

use model::{
    AllocId, DesiredRemote, Map, NodeId, Observed, RemoteImport, RemoteOrder, RemoteTask, RemoteVerdict, RemoteWanted,
    SlotKey, Text, TimestampNs,
    remote::{MAX_HANDLE_BYTES, Manager, RemoteEvent, RemoteEventKind as Kind, RemoteRole},
};

use super::{Context, Effect, Event, Step};
use crate::mutation::{Mutation, mutated};

/// The reason for a held create.
pub(super) const HELD: &str = "no incarnation begins now: one may live that no record knows";

/// Entries in a record's history.
const HISTORY: usize = 50;

/// The transition function: the slot's next record, the effects, and the reasons.
///
/// Total and deterministic: any event may come in any state, twice or late. One that does not apply changes nothing and
/// says so.
#[must_use]
pub fn transition(slot: &SlotKey, record: Option<&RemoteTask>, event: &Event, cx: Context) -> Step {
    let Some(before) = record else {
        return without_record(slot, event, cx);
    };
    let mut work = Work {
        r: before.clone(),
        cx,
        deleted: false,
        declared_gone: false,
        out: Vec::new(),
        evaluate: Vec::new(),
        reasons: Vec::new(),
    };
    match event {
        Event::Wanted(wanted) => work.wanted(wanted),
        Event::Released { alloc_id } => work.released(*alloc_id),
        Event::Unwanted { why } => work.unwanted(why),
        Event::LeaseLost { node } => work.lease_lost(*node),
        Event::LeaseGranted { node } => work.lease_granted(*node),
        Event::Drain { node, force } => work.drain(*node, *force),
        Event::CapableNode { node, provider } => work.capable_node(*node, provider),
        Event::Finisher(manager) => work.finisher(*manager),
        Event::Report { from, report } => work.report(*from, report),
        Event::Restart { why } => work.restart(why),
        Event::DeclareGone { why } => work.declare_gone(why),
        Event::Forget { why } => work.forget(why),
        Event::Import(import) => work.because(format!(
            "refused: the slot has a record of its own, of incarnation {}; instance {} cannot take its place",
            before.incarnation.short(),
            import.instance.key
        )),
        Event::Tick => {}
    }
    work.advance();
    work.finish(before)
}

/// The node's order for this slot, if any: a full refresh sends these.
#[must_use]
pub fn order_for_node(r: &RemoteTask, node: NodeId) -> Option<RemoteOrder> {
    let (who, role) = match (&r.manager, &r.successor) {
        (Some(m), _) if m.node_id == node => {
            (*m, if m.alloc_id.is_nil() { RemoteRole::Stop } else { RemoteRole::Manage })
        }
        (_, Some(s)) if s.node_id == node => (*s, RemoteRole::Observe),
        _ => return None,
    };
    Some(RemoteOrder {
        slot: r.slot.clone(),
        role,
        incarnation: r.incarnation,
        epoch: r.epoch,
        // An unhealthy task is still wanted: this incarnation ends, and the restart policy decides. One whose time is
        // over has its allocation until the end is told.
        desired: if r.unhealthy.is_empty() && !r.expired { r.desired } else { DesiredRemote::Stop },
        driver: r.driver.to_string(),
        provider: r.provider.to_string(),
        alloc_id: who.alloc_id,
        handle: r.handle.clone(),
        intent: r.intent.as_deref().cloned(),
        adopt: r.adopt(),
        acknowledge: r.exit_acknowledged && role != RemoteRole::Observe,
        verdict: verdict_for(r, who),
        expired: r.expired,
        result: r.result.as_deref().cloned(),
        restarts: r.restarts,
        kill_signal: r.policy.kill_signal.clone(),
        kill_timeout: r.policy.kill_timeout,
        proof: None,
    })
}

/// The verdict for an allocation. A stop in order to make the instance anew is no end for the next one's allocation.
/// Otherwise it would count its task as killed, and the slot would move.
fn verdict_for(r: &RemoteTask, who: Manager) -> RemoteVerdict {
    let follows = r.next.as_ref().and_then(|next| next.manager).is_some_and(|m| m.alloc_id == who.alloc_id);
    match &r.verdict {
        RemoteVerdict::Stopped if follows => RemoteVerdict::Restarting { at: 0, reason: r.stop_reason.clone() },
        verdict => verdict.clone(),
    }
}

/// Every order that follows from the record.
#[must_use]
pub fn orders(r: &RemoteTask) -> Vec<(NodeId, RemoteOrder)> {
    [r.manager, r.successor]
        .into_iter()
        .flatten()
        .filter_map(|m| Some((m.node_id, order_for_node(r, m.node_id)?)))
        .collect()
}

/// When [`Event::Tick`] is due, if ever.
#[must_use]
pub fn wake_at(r: &RemoteTask) -> Option<TimestampNs> {
    let restart = match &r.verdict {
        RemoteVerdict::Restarting { at, .. }
            if r.settled() && r.manager.is_some() && r.desired == DesiredRemote::Run =>
        {
            Some(*at)
        }
        _ => None,
    };
    [restart, expires_at(r)].into_iter().flatten().min()
}

/// When the record's `max_run_duration` is over, while that still matters: the task is wanted, and has not ended for
/// good. An ordered restart goes on with the same duration.
pub(super) fn expires_at(r: &RemoteTask) -> Option<TimestampNs> {
    let wanted = match &r.next {
        Some(next) => next.keep_counters,
        None => r.desired == DesiredRemote::Run,
    };
    let over = matches!(r.verdict, RemoteVerdict::Complete | RemoteVerdict::Failed { .. });
    r.deadline().filter(|_| wanted && !over && !r.expired)
}

/// The instance has ended for good and is counted, but the provider still keeps it, and the node that was to
/// acknowledge it is lost. [`Event::Finisher`] names the next manager. That is the allocation's node once it is back,
/// because the output is read there. After the allocation's collection, it is any capable node.
#[must_use]
pub fn awaits_finisher(r: &RemoteTask) -> bool {
    r.manager.is_none()
        && r.desired == DesiredRemote::Run
        && r.next.is_none()
        && r.exit_acknowledged
        && !r.settled()
        && matches!(r.verdict, RemoteVerdict::Complete | RemoteVerdict::Failed { .. })
}

/// Whether its instance is to be stopped because its time is over.
pub(super) fn stops_at_its_time(r: &RemoteTask) -> bool {
    r.expired && !r.observed.ended()
}

/// Whether a manager of this record would create its instance: it is wanted and unseen.
pub(super) fn may_create(r: &RemoteTask) -> bool {
    r.desired == DesiredRemote::Run && r.next.is_none() && !r.seen() && !r.observed.ended()
}

/// Whether the step between two records asks a node for a create that it did not ask for before. Such a step needs
/// [`Context::held`].
#[must_use]
pub fn begins(before: Option<&RemoteTask>, after: &RemoteTask) -> bool {
    let Some(manager) = after.manager else { return false };
    before.is_none_or(|before| {
        let moved = before.manager.is_none_or(|m| m.node_id != manager.node_id);
        before.incarnation != after.incarnation || (moved && may_create(after))
    })
}

fn without_record(slot: &SlotKey, event: &Event, cx: Context) -> Step {
    let mut step = Step::default();
    match event {
        Event::Wanted(wanted) => {
            let Some(manager) = wanted.manager else {
                step.reasons.push("the slot is wanted but no node is named to manage it".to_owned());
                return step;
            };
            if cx.held && !mutated(Mutation::HoldIgnored) {
                step.reasons.push(HELD.to_owned());
                return step;
            }
            let mut r = RemoteTask { slot: slot.clone(), ..RemoteTask::default() };
            install(&mut r, wanted, manager, cx);
            let message =
                format!("incarnation {} committed for node {}", r.incarnation.short(), manager.node_id.short());
            note(&mut r, cx, What::to(Kind::Began, manager.node_id), message);
            // Rule 1: the incarnation is committed before anyone is asked to create it.
            step.effects.push(Effect::Commit(Box::new(r.clone())));
            step.effects
                .extend(orders(&r).into_iter().map(|(node, order)| Effect::Order { node, order: Box::new(order) }));
            if mutated(Mutation::OrderBeforeCommit) {
                step.effects.rotate_left(1);
            }
            step.reasons.push("the slot is wanted for the first time: intent is committed, then created".to_owned());
            step.record = Some(r);
        }
        Event::Import(import) => {
            let r = imported(slot, import, cx);
            let asks = import.as_wanted.is_some();
            step.effects.push(Effect::Commit(Box::new(r.clone())));
            if asks {
                // An allocation that has the slot takes it over when its node is next looked at; otherwise the
                // scheduler places one.
                step.effects
                    .push(Effect::Evaluate { job: slot.job(), why: format!("{slot} was adopted and is unmanaged") });
            }
            step.reasons.push(import.why.clone());
            step.record = Some(r);
        }
        Event::Report { from, .. } => {
            // Rules 5 and 10: nobody may kill an instance without a record; the sweep reports it.
            step.effects.push(Effect::Release { node: *from, slot: slot.clone() });
            step.reasons.push(
                "report ignored: the slot has no record; the node is told to let go, the sweep lists what is unbound"
                    .to_owned(),
            );
        }
        Event::Released { .. }
        | Event::Unwanted { .. }
        | Event::LeaseLost { .. }
        | Event::LeaseGranted { .. }
        | Event::Drain { .. }
        | Event::CapableNode { .. }
        | Event::Finisher(_)
        | Event::Restart { .. }
        | Event::DeclareGone { .. }
        | Event::Forget { .. }
        | Event::Tick => step.reasons.push("the slot has no record: nothing to do".to_owned()),
    }
    step
}

/// The record of an orphaned instance: unmanaged, under an epoch new to its provider, adopted or a tombstone.
fn imported(slot: &SlotKey, import: &RemoteImport, cx: Context) -> RemoteTask {
    let RemoteImport { instance, incarnation, driver, provider, as_wanted, why } = import;
    let mut r = RemoteTask {
        slot: slot.clone(),
        driver: driver.into(),
        provider: provider.into(),
        incarnation: *incarnation,
        // A manager has acted under the epoch that the provider knows; the next one acts under a later epoch.
        epoch: instance.epoch.max(1),
        incarnation_epoch: 0,
        unmanaged_since: cx.now,
        handle: instance.handle.clone().filter(|h| h.data.len() <= MAX_HANDLE_BYTES),
        // A manager's report counts a result, not a listing.
        observed: if instance.alive() {
            instance.observed.clone()
        } else {
            Observed::Unknown { since: cx.now, why: "listed by its provider, not observed by a manager yet".into() }
        },
        provider_id: instance.provider_id.clone(),
        attributes: shared_keys(&instance.attributes),
        address: instance.address.as_str().into(),
        port_map: shared_keys(&instance.port_map),
        started_at: instance.started_at,
        ..RemoteTask::default()
    };
    if let Some(wanted) = as_wanted {
        r.job_version = wanted.job_version;
        r.spec_hash.clone_from(&wanted.spec_hash);
        r.policy = wanted.policy.clone();
        r.began = wanted.created_at;
    } else {
        r.desired = DesiredRemote::Stop;
        r.stop_reason = why.into();
    }
    note(&mut r, cx, What::default(), why.clone());
    r
}

/// Puts a new incarnation into the record, under a new epoch.
pub(super) fn install(r: &mut RemoteTask, wanted: &RemoteWanted, manager: Manager, cx: Context) {
    let RemoteWanted {
        job_version,
        spec_hash,
        driver,
        provider,
        policy,
        keep_counters,
        created_at,
        // Who decides that a new incarnation may be has read these.
        manager: _,
        previous_ended: _,
    } = wanted;
    r.job_version = *job_version;
    r.spec_hash.clone_from(spec_hash);
    r.driver.clone_from(driver);
    r.provider.clone_from(provider);
    r.policy = policy.clone();
    r.incarnation = cx.fresh;
    r.epoch = r.epoch.saturating_add(1);
    r.incarnation_epoch = r.epoch;
    r.manager = Some(manager);
    r.alloc_id = manager.alloc_id;
    r.unmanaged_since = 0;
    r.successor = None;
    r.desired = DesiredRemote::Run;
    r.stop_reason = Text::default();
    r.unhealthy = Text::default();
    r.expired = false;
    r.next = None;
    // The instance's own fields begin anew. Only here a handle is forgotten, and its instance has confirmedly ended.
    r.handle = None;
    r.intent = None;
    r.observed = Observed::Intended;
    r.exit_acknowledged = false;
    r.forgotten = false;
    r.verdict = RemoteVerdict::Active;
    r.provider_id.clear();
    r.attributes.clear();
    r.address = Text::default();
    r.port_map.clear();
    r.started_at = 0;
    r.waiting = Text::default();
    if !keep_counters {
        r.began = *created_at;
        r.restarts = 0;
        r.restart_window_start = cx.now;
        r.restarts_in_window = 0;
        r.restart_charges.clear();
        r.result = None;
    }
}

/// The facts of one instance, with keys shared among instances.
pub(super) fn shared_keys<'a, V: Clone + 'a>(said: impl IntoIterator<Item = (&'a String, &'a V)>) -> Map<Text, V> {
    said.into_iter().map(|(k, v)| (k.into(), v.clone())).collect()
}

/// What kind of change a note is about, and whose management it ends and begins.
#[derive(Clone, Copy, Default)]
pub(super) struct What {
    pub(super) kind: Kind,
    pub(super) from: NodeId,
    pub(super) to: NodeId,
}

impl What {
    pub(super) fn of(kind: Kind) -> Self {
        Self { kind, ..Self::default() }
    }

    pub(super) fn to(kind: Kind, to: NodeId) -> Self {
        Self { kind, to, ..Self::default() }
    }

    pub(super) fn from(kind: Kind, from: Option<Manager>) -> Self {
        Self { kind, from: from.map_or(NodeId::NIL, |manager| manager.node_id), ..Self::default() }
    }
}

pub(super) fn note(r: &mut RemoteTask, cx: Context, what: What, message: String) {
    if r.history.len() >= HISTORY {
        r.history.remove(0);
    }
    // There are thousands of records: no room for more.
    r.history.reserve_exact(1);
    r.history.push(RemoteEvent {
        time: cx.now,
        epoch: r.epoch,
        kind: what.kind,
        from: what.from,
        to: what.to,
        message: message.into(),
    });
}

/// A record being changed.
pub(super) struct Work {
    pub(super) r: RemoteTask,
    pub(super) cx: Context,
    pub(super) deleted: bool,
    /// A person has declared that there is no instance.
    pub(super) declared_gone: bool,
    /// Releases and repeated orders that do not follow from comparing the record before and after.
    pub(super) out: Vec<Effect>,
    pub(super) evaluate: Vec<String>,
    pub(super) reasons: Vec<String>,
}

impl Work {
    pub(super) fn because(&mut self, why: impl Into<String>) {
        self.reasons.push(why.into());
    }

    /// A reason that the record's history also keeps.
    pub(super) fn changed(&mut self, why: impl Into<String>) {
        self.changed_as(What::default(), why);
    }

    /// The same, with what kind of change it is.
    pub(super) fn changed_as(&mut self, what: What, why: impl Into<String>) {
        let why = why.into();
        note(&mut self.r, self.cx, what, why.clone());
        self.reasons.push(why);
    }

    /// Whether a node at that provider can reach the instance. (The record's provider constrains every later manager.)
    pub(super) fn reaches(&self, provider: &str) -> bool {
        self.r.provider.is_empty() || self.r.provider == provider
    }

    /// Whether nothing follows for the task: its incarnation has ended and no restart is due.
    fn finished(&self) -> bool {
        self.r.observed.ended() && matches!(self.r.verdict, RemoteVerdict::Complete | RemoteVerdict::Failed { .. })
    }

    /// Whether a manager now would create an instance that nobody has ever seen while creates are held. Its order may
    /// come from a state of the past, which did not know a later incarnation.
    fn create_is_held(&self) -> bool {
        self.cx.held && may_create(&self.r) && !mutated(Mutation::HoldIgnored)
    }

    /// Moves management: the only place besides [`install`] where the epoch grows.
    pub(super) fn take_over(&mut self, manager: Manager, why: &str) {
        let before = self.r.manager;
        let kind = if before.is_some() { Kind::Handover } else { Kind::Adopted };
        if !mutated(Mutation::EpochNotRaised) {
            // A runtime tells the epoch of what is adopted, and may tell any number.
            self.r.epoch = self.r.epoch.saturating_add(1);
        }
        if mutated(Mutation::IntentForgotten) {
            self.r.intent = None;
        }
        self.r.manager = Some(manager);
        self.r.unmanaged_since = 0;
        if !manager.alloc_id.is_nil() {
            self.r.alloc_id = manager.alloc_id;
        }
        if self.r.successor.is_some_and(|s| s.node_id == manager.node_id) {
            self.r.successor = None;
        }
        self.r.handovers += 1;
        let what = What { to: manager.node_id, ..What::from(kind, before) };
        self.changed_as(
            what,
            format!(
                "{} by node {} under epoch {}: {why}",
                if before.is_some() { "handed over" } else { "adopted" },
                manager.node_id.short(),
                self.r.epoch
            ),
        );
    }

    /// Leaves it without a manager. The record, the handle and the instance stay as they are (rules 2, 5 and 8).
    fn unmanage(&mut self, why: &str) {
        let before = self.r.manager.take();
        if !self.finished() {
            self.r.unmanaged_since = self.cx.now;
            self.changed_as(What::from(Kind::Unmanaged, before), format!("unmanaged: {why}"));
            if self.r.desired == DesiredRemote::Run {
                self.evaluate.push(format!("{} is unmanaged: {why}", self.r.slot));
            }
        }
    }

    fn wanted(&mut self, w: &RemoteWanted) {
        let Some(manager) = w.manager else {
            return self.because("the slot is wanted but no node is named to manage it");
        };
        if self.r.desired == DesiredRemote::Stop || self.r.next.is_some() {
            return self.wanted_while_ending(w, manager);
        }
        if w.spec_hash != self.r.spec_hash && !mutated(Mutation::SpecificationIgnored) {
            return self.replace(w, manager);
        }
        if w.previous_ended && self.finished() && manager.alloc_id != self.r.alloc_id {
            // The failure has been delivered to its allocation and the reschedule policy has placed a new one: a new
            // incarnation.
            self.because("the previous allocation has ended; a new incarnation follows the reschedule");
            self.r.next = Some(Box::new(w.clone()));
            if self.r.manager.is_none() && !self.r.settled() && self.reaches(&w.provider) {
                self.take_over(
                    Manager { alloc_id: AllocId::NIL, ..manager },
                    "to let the provider forget the ended instance",
                );
            }
            return;
        }
        if !self.reaches(&w.provider) {
            self.because(format!(
                "node {} reaches provider {:?} but the instance lives at {:?}: not managed from there",
                manager.node_id.short(),
                w.provider,
                self.r.provider
            ));
            return;
        }
        if self.r.job_version != w.job_version || self.r.policy != w.policy {
            self.changed(format!("job version {} applies in place", w.job_version));
            self.r.job_version = w.job_version;
            self.r.policy = w.policy.clone();
        }
        match self.r.manager {
            None if self.create_is_held() => self.because(HELD),
            None => self.take_over(manager, "adopt first: the instance stays as it is"),
            Some(m) if m == manager => self.because("already managed for that allocation"),
            Some(m) if m.node_id == manager.node_id => {
                self.r.manager = Some(manager);
                self.r.alloc_id = manager.alloc_id;
                self.changed(format!("the same node manages it for allocation {} now", manager.alloc_id.short()));
            }
            Some(_) if self.r.observed.ended() => {
                self.take_over(manager, "the instance has ended: there is nothing to keep watching during the move");
            }
            Some(_) if mutated(Mutation::BreakBeforeMake) => self.take_over(manager, "without a look"),
            // Rule 8: make before break. The new node looks first; the old one continues until then.
            Some(_) if self.r.successor == Some(manager) => {
                self.because("the successor has not observed the instance yet")
            }
            Some(old) => {
                if let Some(other) = self.r.successor.filter(|s| s.node_id != manager.node_id) {
                    self.changed(format!("node {} is no longer the successor", other.node_id.short()));
                }
                self.r.successor = Some(manager);
                self.changed(format!(
                    "node {} observes it before node {} lets go (make before break)",
                    manager.node_id.short(),
                    old.node_id.short()
                ));
            }
        }
    }

    /// The slot is wanted while its incarnation stops or is let go: the wish follows once that is confirmed (I1).
    fn wanted_while_ending(&mut self, w: &RemoteWanted, manager: Manager) {
        // An ordered restart stays one, whichever manager follows: the budget is unchanged.
        let same = self.r.next.as_ref().is_some_and(|next| next.keep_counters && next.spec_hash == w.spec_hash);
        let w = &RemoteWanted { keep_counters: w.keep_counters || same, ..w.clone() };
        if self.r.next.as_deref() != Some(w) {
            self.changed(format!(
                "version {} follows on node {} once the present incarnation has confirmedly ended",
                w.job_version,
                manager.node_id.short()
            ));
            self.r.next = Some(Box::new(w.clone()));
        } else {
            self.because("the present incarnation has not confirmedly ended yet");
        }
        self.need_executor_for_stop(w, manager);
    }

    /// Rule 9: a manager adopts an instance of another specification only to replace it.
    fn replace(&mut self, w: &RemoteWanted, manager: Manager) {
        self.drop_successor();
        self.r.next = Some(Box::new(w.clone()));
        self.r.desired = DesiredRemote::Stop;
        self.r.stop_reason =
            format!("replaced by version {} of the job, whose specification differs", w.job_version).into();
        self.changed_as(What::of(Kind::Stopping), format!("stopping: {}", self.r.stop_reason));
        self.need_executor_for_stop(w, manager);
    }

    fn need_executor_for_stop(&mut self, w: &RemoteWanted, manager: Manager) {
        if self.r.manager.is_some() || self.r.settled() {
            return;
        }
        if self.reaches(&w.provider) {
            // No allocation: the new one must never show the old instance as its own.
            self.take_over(Manager { alloc_id: AllocId::NIL, ..manager }, "to stop what is there");
        } else {
            self.because(
                "the node of the new version does not reach the provider of the old instance: another \
                capable node must stop it",
            );
        }
    }

    pub(super) fn drop_successor(&mut self) {
        if let Some(s) = self.r.successor.take() {
            self.because(format!("node {} need not observe any more", s.node_id.short()));
        }
    }

    fn released(&mut self, alloc_id: AllocId) {
        if self.r.successor.is_some_and(|s| s.alloc_id == alloc_id) {
            self.drop_successor();
        }
        if let Some(next) = &mut self.r.next
            && next.manager.is_some_and(|m| m.alloc_id == alloc_id)
        {
            next.manager = None;
            self.because("the allocation that was to follow is gone: the next one of the slot takes its place");
        }
        if self.r.manager.is_none_or(|m| m.alloc_id != alloc_id) {
            return self.because("the allocation does not manage the slot");
        }
        if self.r.desired == DesiredRemote::Stop {
            return self.because("the stop goes on without the allocation (rule 6)");
        }
        if self.finished() {
            if !self.r.forgotten {
                return self.because(
                    "the result is delivered; its node keeps the output and lets the provider forget \
                    the instance first",
                );
            }
            self.r.manager = None;
            return self.because("the result is delivered; nothing is left to manage");
        }
        if self.r.successor.is_some() {
            return self.because("the old manager goes on until the successor has observed the instance (rule 8)");
        }
        self.unmanage("its allocation was moved and no other node has room");
    }

    fn unwanted(&mut self, why: &str) {
        self.r.next = None;
        self.drop_successor();
        if self.r.desired == DesiredRemote::Stop {
            return self.because("already being stopped");
        }
        // Rule 6: from here on the record is a tombstone that outlives job and allocation.
        self.r.desired = DesiredRemote::Stop;
        self.r.stop_reason = why.into();
        self.changed_as(What::of(Kind::Stopping), format!("stopping: {why}"));
        if self.r.manager.is_none() && !self.r.settled() {
            self.because("no node manages it: the tombstone waits for a capable node");
            self.deleted = mutated(Mutation::TombstoneDropped);
        }
    }

    fn lease_lost(&mut self, node: NodeId) {
        if self.r.successor.is_some_and(|s| s.node_id == node) {
            self.r.successor = None;
            self.changed(format!("the successor, node {}, was lost", node.short()));
            self.evaluate.push(format!("{} needs another successor", self.r.slot));
        }
        if let Some(next) = &mut self.r.next
            && next.manager.is_some_and(|m| m.node_id == node)
        {
            next.manager = None;
        }
        if self.r.manager.is_none_or(|m| m.node_id != node) {
            return self.because("the node does not manage the slot");
        }
        match self.r.successor {
            Some(s) => {
                self.r.manager = None;
                if self.create_is_held() {
                    self.r.successor = None;
                    self.unmanage(HELD);
                } else {
                    self.take_over(s, "the old manager lost its lease");
                }
            }
            None => self.unmanage(&format!("node {} lost its lease", node.short())),
        }
    }

    fn lease_granted(&mut self, node: NodeId) {
        if order_for_node(&self.r, node).is_some() {
            self.resend(node);
            return self.because("the node is told its order again");
        }
        if self.r.manager.is_none() && self.r.desired == DesiredRemote::Run && !self.finished() {
            self.evaluate.push(format!("{} is unmanaged and a node has come", self.r.slot));
        }
        self.because("the node has no part in the slot");
    }

    fn drain(&mut self, node: NodeId, force: bool) {
        if self.r.successor.is_some_and(|s| s.node_id == node) {
            self.drop_successor();
            self.evaluate.push(format!("{} needs another successor", self.r.slot));
        }
        if self.r.manager.is_none_or(|m| m.node_id != node) {
            return self.because("the node does not manage the slot");
        }
        if self.finished() {
            return self.because("the instance has ended: nothing holds the drain up");
        }
        match (self.r.successor, force) {
            (Some(_), false) => self.because("the drain waits for the successor to observe the instance (rule 8)"),
            (Some(_), true) if self.create_is_held() => {
                self.drop_successor();
                self.unmanage(HELD);
            }
            (Some(s), true) => self.take_over(s, "the drain waits no longer for the observation"),
            (None, false) if self.r.desired == DesiredRemote::Run => {
                self.because("the drain asks for a successor");
                self.evaluate.push(format!("{} is on a draining node", self.r.slot));
            }
            (None, false) => self.because("the drain waits for the stop to be confirmed"),
            (None, true) => self.unmanage("the drain ends and no other node has room"),
        }
    }

    fn capable_node(&mut self, node: NodeId, provider: &str) {
        if self.r.manager.is_some() {
            return self.because("the slot is managed");
        }
        if !self.reaches(provider) {
            return self.because(format!(
                "the node reaches provider {provider:?}, the instance lives at {:?}",
                self.r.provider
            ));
        }
        let executor = Manager { node_id: node, alloc_id: AllocId::NIL };
        if self.r.desired == DesiredRemote::Stop || self.r.next.is_some() {
            if !self.r.settled() {
                self.take_over(executor, "to stop it (any capable node executes a tombstone)");
            }
        } else if stops_at_its_time(&self.r) {
            self.take_over(executor, "to stop it: its time is over, and no allocation is needed for that");
        } else if !self.finished() {
            self.because("the slot is unmanaged: the scheduler is asked for an allocation");
            self.evaluate.push(format!("{} is unmanaged and a capable node has room", self.r.slot));
        }
    }

    fn finisher(&mut self, manager: Manager) {
        if !awaits_finisher(&self.r) {
            return self.because("nothing is left at the provider that would wait for a node");
        }
        self.take_over(
            manager,
            if manager.alloc_id.is_nil() {
                "to let the provider forget the ended instance, whose allocation was collected"
            } else {
                "to keep the output of the ended instance for its allocation and let the provider forget it"
            },
        );
    }

    fn restart(&mut self, why: &str) {
        if self.r.desired == DesiredRemote::Stop || self.r.expired {
            return self.because("it is already being stopped");
        }
        if self.r.observed.ended() {
            return self.because("the instance has ended already: its restart policy decides");
        }
        self.drop_successor();
        self.r.next = Some(Box::new(RemoteWanted {
            job_version: self.r.job_version,
            spec_hash: self.r.spec_hash.clone(),
            driver: self.r.driver.clone(),
            provider: self.r.provider.clone(),
            policy: self.r.policy.clone(),
            manager: self.r.manager.filter(|m| !m.alloc_id.is_nil()),
            previous_ended: false,
            keep_counters: true,
            created_at: self.r.began,
        }));
        self.r.desired = DesiredRemote::Stop;
        self.r.stop_reason = format!("restart ordered: {why}").into();
        self.changed_as(What::of(Kind::Stopping), format!("stopping: {}", self.r.stop_reason));
    }

    fn declare_gone(&mut self, why: &str) {
        match self.r.observed {
            Observed::Exited { .. } | Observed::Gone => self.because("the instance has ended already"),
            Observed::Running | Observed::Creating if self.r.manager.is_some() => {
                self.because("refused: the instance is observed alive; stop it instead of declaring it gone");
            }
            Observed::Running | Observed::Creating | Observed::Intended | Observed::Unknown { .. } => {
                self.r.observed = Observed::Gone;
                self.declared_gone = true;
                self.changed(format!("declared gone: {why}"));
            }
        }
    }

    fn forget(&mut self, why: &str) {
        self.changed(format!("forgotten without confirmation: {why}"));
        self.deleted = true;
    }

    pub(super) fn resend(&mut self, node: NodeId) {
        if let Some(order) = order_for_node(&self.r, node) {
            self.out.push(Effect::Order { node, order: Box::new(order) });
        }
    }

    /// Compares before and after: the commit first, then releases, then orders, then evaluations.
    fn finish(self, before: &RemoteTask) -> Step {
        let Self { r, cx: _, deleted, declared_gone: _, out, evaluate, reasons } = self;
        let mut effects = Vec::new();
        let job = r.slot.job();
        let old: Vec<NodeId> = [before.manager, before.successor].into_iter().flatten().map(|m| m.node_id).collect();
        if deleted {
            effects.push(Effect::Delete(r.slot.clone()));
            effects.extend(old.into_iter().map(|node| Effect::Release { node, slot: r.slot.clone() }));
            return Step { record: None, effects, reasons };
        }
        if &r != before {
            effects.push(Effect::Commit(Box::new(r.clone())));
            let now: Vec<NodeId> = [r.manager, r.successor].into_iter().flatten().map(|m| m.node_id).collect();
            for node in old {
                if !now.contains(&node) {
                    effects.push(Effect::Release { node, slot: r.slot.clone() });
                }
            }
            for (node, order) in orders(&r) {
                // A node that has just reported a handle knows it.
                let told = order_for_node(before, node).map(|mut o| {
                    if o.epoch == order.epoch && o.incarnation == order.incarnation {
                        o.handle.clone_from(&order.handle);
                    }
                    o
                });
                if told.as_ref() != Some(&order) {
                    effects.push(Effect::Order { node, order: Box::new(order) });
                }
            }
        }
        for effect in out {
            if !effects.contains(&effect) {
                effects.push(effect);
            }
        }
        effects.extend(evaluate.into_iter().map(|why| Effect::Evaluate { job: job.clone(), why }));
        Step { record: Some(r), effects, reasons }
    }
}

//! The node's side: what a manager may do about one slot now.
//!
//! The machine knows one order, one lease and this node's sightings. It never decides that a task should stop or start
//! elsewhere: only a server order with the current epoch kills (rule 5). Calls are effects; their results come back as
//! events. A slot has at most one call under way.
//!
//! ```text
//! no order, or released ────────────► let go: nothing at all
//! lease lost ───────────────────────► looking only, until the order has been confirmed by a new session (rule 3)
//! order Observe ────────────────────► look
//! order Manage, desired Run ────────► look (adopt first, rule 7) ─► absent ─► prepare ─► create or get by key (rule 1)
//! order Manage or Stop, desired Stop ► look ─► stop ─► confirmed ─► report
//! order with acknowledge ───────────► keep its output ─► let the provider forget ─► report forgotten
//! ```

use std::sync::Arc;

use model::{
    AllocId, DesiredRemote, GoDuration, IncarnationId, Observed, RemoteOrder, RemoteReport, SlotKey, Text, TimestampNs,
    node::RemoteProvider,
    remote::{RemoteHandle, RemoteIntent, RemoteRole},
};
use serde::Serialize;

use crate::mutation::{Mutation, mutated};

/// The state of an instance in a provider's answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Sighting {
    /// State.
    pub observed: Observed,
    /// The provider's name for it.
    pub provider_id: String,
    /// Attributes.
    pub attributes: model::Map<Text, String>,
    /// Address.
    pub address: String,
    /// Ports.
    pub port_map: std::collections::BTreeMap<String, i32>,
    /// Start, 0 = unknown.
    pub started_at: TimestampNs,
    /// What an instance that is being created waits for, in the provider's words; empty = it says nothing.
    pub waiting: String,
}

/// A call to the driver. All but the read-only ones carry the epoch (rule 4).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Call {
    /// Look the instance up by its key (`find`, or `list` by owner if the driver has only that).
    Find {
        /// Key.
        incarnation: IncarnationId,
    },
    /// Stop by key, without a handle: refuse every create with the key from now on, and say whether an instance exists.
    /// Only for drivers that declare `seal`. It closes a gap: a create sent long ago could arrive after the stop was
    /// confirmed.
    Seal {
        /// Key.
        incarnation: IncarnationId,
        /// Epoch.
        epoch: u64,
    },
    /// Look at a known instance.
    Observe {
        /// Handle of the instance.
        handle: RemoteHandle,
    },
    /// Create or get.
    Ensure {
        /// Key.
        incarnation: IncarnationId,
        /// Epoch.
        epoch: u64,
        /// No create with this key was sent before, under this epoch or an earlier one. At most one create of a key is
        /// the first. All others come later or from later managers, and must check the whole provider. So the first one
        /// need not wait for a part of the provider that does not answer.
        first: bool,
    },
    /// Stop and confirm.
    Stop {
        /// Handle of the instance.
        handle: RemoteHandle,
        /// Epoch.
        epoch: u64,
        /// First signal; empty = the driver's default.
        signal: String,
        /// Time between the signal and the kill.
        timeout: GoDuration,
    },
    /// Let the provider forget the ended instance.
    Acknowledge {
        /// Handle of the instance.
        handle: RemoteHandle,
        /// Epoch.
        epoch: u64,
    },
}

impl Call {
    /// True for calls that change something at the provider.
    #[must_use]
    pub fn mutates(&self) -> bool {
        matches!(self, Self::Seal { .. } | Self::Ensure { .. } | Self::Stop { .. } | Self::Acknowledge { .. })
    }
}

/// How a call ended. The first three kinds of trouble must never be confused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Answer {
    /// An instance, as found, created, observed or stopped.
    Instance {
        /// Its handle.
        handle: RemoteHandle,
        /// Its state.
        sighting: Box<Sighting>,
    },
    /// The provider positively says that there is no such instance (also: acknowledged and forgotten).
    Absent,
    /// It could not be asked: unreachable, throttled, credentials, a lost reply, a plugin that died.
    CouldNotAsk(String),
    /// A create was not sent: the servers must store this first, see [`RemoteOrder::intent`].
    Intent(RemoteIntent),
    /// The call never left this node: no plugin, no lease, or it was let go while it waited. Nothing has happened. The
    /// node tries again, or does what the order says by then.
    NotSent(String),
    /// The request is wrong and nothing has happened.
    WrongRequest(String),
    /// The provider has accepted a higher epoch.
    StaleEpoch {
        /// That epoch; 0 when the provider does not say.
        accepted: u64,
    },
}

/// Something that has happened on the node.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// An order of the servers. A refresh confirms it after a lapse of the lease.
    Order(Box<RemoteOrder>),
    /// The servers have moved the slot elsewhere, or a full set of orders omits it.
    Released,
    /// The lease has lapsed by the node's own monotonic clock.
    LeaseLost,
    /// The lease is held. Mutations also need a confirmed order: open a new session so that the servers send it.
    LeaseHeld,
    /// The call of this slot has ended.
    Done(Answer),
    /// A pushed or polled observation of the instance with that incarnation.
    Seen {
        /// Its incarnation.
        incarnation: IncarnationId,
        /// The observation.
        sighting: Box<Sighting>,
    },
    /// A check of that instance asks for its restart.
    Unhealthy {
        /// Its incarnation.
        incarnation: IncarnationId,
        /// The reason.
        why: String,
    },
    /// Node-local preparation for a create is done.
    Prepared,
    /// The output of the ended instance is kept here, or never will be: [`Effect::Keep`] is done.
    Kept {
        /// Its incarnation.
        incarnation: IncarnationId,
        /// The allocation of the output.
        alloc_id: AllocId,
    },
    /// The pause after [`Effect::RetryLater`] is over.
    Retry,
    /// The agent has restarted: no call is under way, and sightings are old. Feed it once after loading the stored
    /// state.
    Restarted,
}

/// Effects of the node, in this order.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Store [`Slot`] durably before the calls that follow.
    Persist,
    /// Do the node-local preparation for a create (artifacts, templates, environment), then feed [`Event::Prepared`].
    /// Failures are retried there.
    Prepare,
    /// Call the driver, then feed [`Event::Done`]. A mutation must not outlast the lease: bound it by the remaining
    /// time.
    Call(Call),
    /// Keep watching the instance, feed [`Event::Seen`]; idempotent.
    Watch(RemoteHandle),
    /// Fetch the output of the ended instance into the directory of the order's allocation, then feed [`Event::Kept`].
    /// Changes nothing at the provider. Idempotent.
    Keep {
        /// Its incarnation.
        incarnation: IncarnationId,
        /// The allocation of the output.
        alloc_id: AllocId,
        /// Its handle.
        handle: RemoteHandle,
    },
    /// Tell the servers.
    Report(Box<RemoteReport>),
    /// Forget the slot; cancel the watch. Touch nothing at the provider.
    LetGo,
    /// Feed [`Event::Retry`] after a growing pause.
    RetryLater,
}

/// This node's knowledge of one incarnation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
struct Local {
    incarnation: IncarnationId,
    /// A create may have reached the provider. Stored before the call.
    attempted: bool,
    /// A create may have reached the provider without a trace in the store; unsettled until the driver has declared its
    /// abilities.
    doubted: bool,
    prepared: bool,
    /// A create of this node was answered with an instance: the provider completes it.
    created: bool,
    /// The driver's intent, to be stored under the order's epoch before the create.
    intent: Option<RemoteIntent>,
    handle: Option<RemoteHandle>,
    /// The last answer; `None` = this node has not looked under this order. `Gone` = positively absent.
    sighting: Option<Arc<Sighting>>,
    /// The fetch of its output for the allocation is under way.
    keeping: bool,
    /// The output is kept, or there is none: the provider may forget it.
    kept: bool,
    forgotten: bool,
    refused: String,
    /// The higher epoch that the provider has accepted, 0 = none.
    stale_epoch: u64,
    /// Why a check asks for a restart.
    unhealthy: String,
}

/// One slot on a node. [`Slot::stored`] is the part that must survive the agent.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Slot {
    order: Option<RemoteOrder>,
    lease: bool,
    /// The order came after the last loss of the lease.
    confirmed: bool,
    local: Local,
    highest_epoch: u64,
    /// The store's record of attempts is doubtful for the next order, see [`Slot::doubt_store`].
    doubted: bool,
    /// Boxed: in peace there is none, and a node has thousands of slots.
    in_flight: Option<Box<Call>>,
    /// The order (epoch, role, wish) under which that call was sent. Its answer "absent" says nothing about later
    /// calls.
    asked_under: Option<(u64, RemoteRole, DesiredRemote)>,
    preparing: bool,
    /// The last report, so that only changes are sent.
    told: Option<Arc<Told>>,
}

/// The parts of a report that change. As long as nothing does, they share the memory of [`Local`].
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Told {
    incarnation: IncarnationId,
    epoch: u64,
    desired: DesiredRemote,
    provider: Text,
    handle: Option<RemoteHandle>,
    intent: Option<RemoteIntent>,
    sighting: Arc<Sighting>,
    forgotten: bool,
    refused: String,
    stale_epoch: u64,
    unhealthy: String,
}

/// The part of a slot that must survive the agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Stored {
    /// The incarnation of an attempted create.
    pub attempted: Option<IncarnationId>,
    /// Highest epoch seen.
    pub highest_epoch: u64,
}

/// The result of a transition.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Step {
    /// The slot afterwards.
    pub slot: Slot,
    /// To carry out in order.
    pub effects: Vec<Effect>,
    /// The decisions and their reasons.
    pub reasons: Vec<String>,
}

impl Slot {
    /// A slot as a restarted agent restores it: without a lease, and without an order until the servers have spoken.
    #[must_use]
    pub fn restore(stored: &Stored) -> Self {
        Self {
            local: Local {
                incarnation: stored.attempted.unwrap_or_default(),
                attempted: stored.attempted.is_some(),
                ..Local::default()
            },
            highest_epoch: stored.highest_epoch,
            ..Self::default()
        }
    }
    /// Doubts the store for the next order, which comes with a full set. This agent has no knowledge of earlier acts:
    /// its store or the servers' state may be an older copy. So the node assumes an attempted create, where it can look
    /// the instance up and repeat a create.
    pub fn doubt_store(&mut self) {
        self.doubted = true;
    }
    /// The record that must survive the agent.
    #[must_use]
    pub fn stored(&self) -> Stored {
        Stored { attempted: self.local.attempted.then_some(self.local.incarnation), highest_epoch: self.highest_epoch }
    }
    /// Orders under an epoch below this one are refused.
    #[must_use]
    pub fn highest_epoch(&self) -> u64 {
        self.highest_epoch
    }
    /// The order in force.
    #[must_use]
    pub fn order(&self) -> Option<&RemoteOrder> {
        self.order.as_ref()
    }
    /// This node's knowledge of the slot as an order: the order in force with the handle found since. Without an order,
    /// the part that has survived the agent.
    #[must_use]
    pub fn known(&self, key: &SlotKey) -> RemoteOrder {
        let order = self.order.clone().unwrap_or_else(|| RemoteOrder {
            slot: key.clone(),
            role: RemoteRole::Observe,
            incarnation: self.local.incarnation,
            ..RemoteOrder::default()
        });
        let own = self.local.handle.clone().filter(|_| self.local.incarnation == order.incarnation);
        RemoteOrder { handle: own.or(order.handle), epoch: order.epoch.max(self.highest_epoch), ..order }
    }
    /// The handle of the present incarnation, for logs, stats, signals and exec.
    #[must_use]
    pub fn handle(&self) -> Option<&RemoteHandle> {
        self.local.handle.as_ref()
    }
    /// The latest sighting of the present incarnation.
    #[must_use]
    pub fn sighting(&self) -> Option<&Sighting> {
        self.local.sighting.as_deref()
    }
    /// The call under way.
    #[must_use]
    pub fn in_flight(&self) -> Option<&Call> {
        self.in_flight.as_deref()
    }
    /// Whether the servers still want the create under way. Otherwise it is let go if it was not sent yet, and answered
    /// with [`Answer::NotSent`].
    #[must_use]
    pub fn wants_create(&self) -> bool {
        let of = |order: &RemoteOrder| {
            matches!(self.in_flight.as_deref(),
            Some(Call::Ensure { incarnation, .. }) if *incarnation == order.incarnation)
        };
        self.order.as_ref().is_some_and(of) && self.may_mutate() && self.asked_under == self.under()
    }
    /// The incarnation that this node is to create if it is absent, and the allocation that prepares it. Any other
    /// preparation is unwanted.
    #[must_use]
    pub fn prepares(&self) -> Option<(IncarnationId, AllocId)> {
        self.order.as_ref().and_then(Self::prepares_under)
    }
    fn prepares_under(order: &RemoteOrder) -> Option<(IncarnationId, AllocId)> {
        (order.role == RemoteRole::Manage && order.desired == DesiredRemote::Run)
            .then_some((order.incarnation, order.alloc_id))
    }
    /// The parts of the order in force that affect calls.
    fn under(&self) -> Option<(u64, RemoteRole, DesiredRemote)> {
        self.order.as_ref().map(|o| (o.epoch, o.role, o.desired))
    }
    /// Whether mutations are allowed now: they need a lease, and an order confirmed since the lease was last lost (rule
    /// 3). Check again right before a call.
    #[must_use]
    pub fn may_mutate(&self) -> bool {
        let free = (self.lease && self.confirmed) || mutated(Mutation::LeaseIgnored);
        free && self.order.as_ref().is_some_and(|o| o.role != RemoteRole::Observe)
    }
}

impl Told {
    fn report(&self, slot: &SlotKey) -> RemoteReport {
        let Sighting { observed, provider_id, attributes, address, port_map, started_at, waiting } =
            (*self.sighting).clone();
        RemoteReport {
            slot: slot.clone(),
            incarnation: self.incarnation,
            epoch: self.epoch,
            desired: self.desired,
            provider: self.provider.to_string(),
            handle: self.handle.clone(),
            intent: self.intent.clone(),
            observed,
            provider_id,
            attributes: attributes.iter().map(|(name, value)| (name.to_string(), value.clone())).collect(),
            address,
            port_map,
            started_at,
            waiting,
            forgotten: self.forgotten,
            refused: self.refused.clone(),
            stale_epoch: self.stale_epoch,
            unhealthy: self.unhealthy.clone(),
        }
    }
}

/// The abilities assumed of a driver that has declared none yet, because its plugin is starting. A lookup is possible:
/// it waits for the driver and touches nothing. Nothing is assumed about creates.
#[must_use]
pub fn undeclared() -> RemoteProvider {
    RemoteProvider { find: true, ..RemoteProvider::default() }
}

/// The epoch that a call carries, 0 = none.
fn call_epoch(call: &Call) -> u64 {
    match call {
        Call::Seal { epoch, .. }
        | Call::Ensure { epoch, .. }
        | Call::Stop { epoch, .. }
        | Call::Acknowledge { epoch, .. } => *epoch,
        Call::Find { .. } | Call::Observe { .. } => 0,
    }
}

/// The node's transition function. `key` is the slot's name; `caps` are the driver's declared abilities.
#[must_use]
pub fn transition(key: &SlotKey, before: &Slot, event: &Event, caps: &RemoteProvider, now: TimestampNs) -> Step {
    let mut work = Work { key, s: before.clone(), caps, now, effects: Vec::new(), reasons: Vec::new() };
    let decide = match event {
        Event::Order(order) => work.order(order),
        Event::Released => work.released(),
        Event::LeaseLost => {
            work.s.lease = false;
            work.s.confirmed &= mutated(Mutation::OrderOutlivesLease);
            work.because("the lease is lost: no mutation until the servers have confirmed the order (rule 3)");
            false
        }
        Event::LeaseHeld => {
            work.s.lease = true;
            true
        }
        Event::Done(answer) => work.done(answer),
        Event::Seen { incarnation, sighting } => work.seen(*incarnation, sighting),
        Event::Unhealthy { incarnation, why } => {
            work.unhealthy(*incarnation, why);
            false
        }
        Event::Prepared => {
            work.s.preparing = false;
            work.s.local.prepared = true;
            true
        }
        Event::Kept { incarnation, alloc_id } => work.kept(*incarnation, *alloc_id),
        Event::Retry => true,
        Event::Restarted => {
            let stored = work.s.stored();
            work.s = Slot::restore(&stored);
            work.because("the agent has restarted: the servers' orders come with the session");
            false
        }
    };
    if decide {
        work.decide();
    }
    Step { slot: work.s, effects: work.effects, reasons: work.reasons }
}

struct Work<'a> {
    key: &'a SlotKey,
    s: Slot,
    caps: &'a RemoteProvider,
    now: TimestampNs,
    effects: Vec<Effect>,
    reasons: Vec<String>,
}

impl Work<'_> {
    fn because(&mut self, why: impl Into<String>) {
        self.reasons.push(why.into());
    }

    fn order(&mut self, order: &RemoteOrder) -> bool {
        if order.epoch < self.s.highest_epoch && !mutated(Mutation::StaleOrderFollowed) {
            self.refuse(order);
            return false;
        }
        let moved = self
            .s
            .order
            .as_ref()
            .is_none_or(|o| o.epoch != order.epoch || o.role != order.role || o.desired != order.desired);
        let unheard = self.s.order.as_ref().is_none_or(|o| o.incarnation != order.incarnation);
        if self.s.local.incarnation != order.incarnation {
            self.s.local = Local { incarnation: order.incarnation, ..Local::default() };
            self.s.preparing = false;
        }
        self.s.local.doubted |= std::mem::take(&mut self.s.doubted) && unheard;
        if self.s.prepares() != Slot::prepares_under(order) {
            // A preparation belongs to one allocation and to a create; without a create it is let go.
            (self.s.preparing, self.s.local.prepared) = (false, false);
        }
        if self.s.order.as_ref().is_some_and(|o| o.alloc_id != order.alloc_id) {
            // Kept output lies in the directory of one allocation.
            (self.s.local.keeping, self.s.local.kept) = (false, false);
        }
        if self.s.order.as_ref().is_some_and(|o| o.epoch != order.epoch) {
            // Another manager may have stored a newer intent. That one counts, and the driver decides what to store
            // now.
            self.s.local.intent = None;
        }
        if moved {
            // Under a new epoch, role or wish this node must look again. Its answer lets another manager let go, or
            // confirms a stop. "Absent" may date from before a create arrived.
            if self.s.local.sighting.as_ref().is_some_and(|s| !matches!(s.observed, Observed::Exited { .. })) {
                self.s.local.sighting = None;
            }
        }
        if self.s.local.handle.is_none() && order.handle.is_some() {
            self.s.local.handle.clone_from(&order.handle);
            // Absence by key dates from before another manager's create: look by the handle.
            if self.s.local.sighting.as_ref().is_some_and(|s| s.observed == Observed::Gone) {
                self.s.local.sighting = None;
            }
        }
        let persist = order.epoch > self.s.highest_epoch;
        self.s.highest_epoch = order.epoch;
        // Every order asks for a report: the last session may have lost ours.
        self.s.told = None;
        self.s.local.stale_epoch = 0;
        self.s.order = Some(order.clone());
        self.s.confirmed = self.s.lease;
        if persist {
            self.effects.push(Effect::Persist);
        }
        true
    }

    /// The servers have lost an epoch: they were restored from a backup, or the slot has another record. This report
    /// lets them continue above it.
    fn refuse(&mut self, order: &RemoteOrder) {
        let why =
            format!("order refused: epoch {}, this node has acted under epoch {}", order.epoch, self.s.highest_epoch);
        self.because(why.clone());
        self.effects.push(Effect::Report(Box::new(RemoteReport {
            slot: self.key.clone(),
            incarnation: order.incarnation,
            epoch: order.epoch,
            desired: order.desired,
            provider: self.caps.provider.clone(),
            observed: Observed::Unknown { since: self.now, why: why.into() },
            stale_epoch: self.s.highest_epoch,
            ..RemoteReport::default()
        })));
    }

    fn released(&mut self) -> bool {
        if mutated(Mutation::ReleaseStops)
            && let Some(order) = self.s.order.clone()
        {
            self.stop(&order);
        }
        self.s.order = None;
        self.s.confirmed = false;
        self.s.preparing = false;
        self.s.told = None;
        self.s.local =
            Local { incarnation: self.s.local.incarnation, attempted: self.s.local.attempted, ..Local::default() };
        self.effects.push(Effect::LetGo);
        self.because("released: the slot belongs elsewhere, nothing is touched (rule 5)");
        false
    }

    fn done(&mut self, answer: &Answer) -> bool {
        let Some(call) = self.s.in_flight.take().map(|call| *call) else {
            self.because("answer ignored: no call is under way");
            return false;
        };
        let asked = self.s.asked_under.take();
        let about = match &call {
            Call::Find { incarnation } | Call::Seal { incarnation, .. } | Call::Ensure { incarnation, .. } => {
                *incarnation == self.s.local.incarnation
            }
            Call::Observe { handle } | Call::Stop { handle, .. } | Call::Acknowledge { handle, .. } => {
                self.s.local.handle.as_ref() == Some(handle)
            }
        };
        if self.s.order.is_none() || !about {
            self.because("answer ignored: it is about an instance that this node has let go");
            return self.s.order.is_some();
        }
        match answer {
            Answer::Instance { handle, sighting } => {
                self.s.local.handle = Some(handle.clone());
                self.sees(sighting);
                self.s.local.created |= matches!(call, Call::Ensure { .. });
                true
            }
            Answer::Absent if matches!(call, Call::Acknowledge { .. }) => {
                self.s.local.forgotten = true;
                true
            }
            Answer::Absent
                if matches!(call, Call::Find { .. } | Call::Seal { .. })
                    && asked != self.s.under()
                    && !mutated(Mutation::StaleAbsence) =>
            {
                self.because("absence seen under an earlier order is not enough: looked for again");
                true
            }
            Answer::Absent
                if matches!(call, Call::Find { .. } | Call::Seal { .. }) && self.s.local.handle.is_some() =>
            {
                self.because("absence by key was seen before a handle was known: looked for again by that");
                true
            }
            Answer::Absent => {
                self.sees(&Sighting { observed: Observed::Gone, ..Sighting::default() });
                true
            }
            // For a repeated create of an existing instance this does not mean that nothing was created: look again.
            Answer::WrongRequest(why) if matches!(call, Call::Ensure { .. }) && self.s.local.handle.is_none() => {
                self.s.local.refused.clone_from(why);
                self.s.local.attempted = false;
                self.because(format!("the provider refuses the request, nothing was created: {why}"));
                self.effects.push(Effect::Persist);
                true
            }
            // Asking again would give the same intent for ever.
            Answer::Intent(intent) if self.s.order.as_ref().is_some_and(|o| o.intent.as_ref() == Some(intent)) => {
                self.not_tried(&call);
                self.unknown("the driver wants to have stored what is stored already, and creates nothing");
                self.effects.push(Effect::RetryLater);
                false
            }
            Answer::Intent(intent) => {
                self.not_tried(&call);
                if asked == self.s.under() {
                    self.s.local.intent = Some(intent.clone());
                }
                true
            }
            Answer::NotSent(why) => {
                self.not_tried(&call);
                if asked != self.s.under() {
                    self.because(format!(
                        "a call of an earlier order was not sent, the present order is followed: {why}"
                    ));
                    return true;
                }
                self.unknown(why);
                self.effects.push(Effect::RetryLater);
                false
            }
            Answer::CouldNotAsk(_) if mutated(Mutation::UnknownIsAbsent) => {
                self.sees(&Sighting { observed: Observed::Gone, ..Sighting::default() });
                true
            }
            Answer::CouldNotAsk(why) | Answer::WrongRequest(why) => {
                self.unknown(why);
                self.effects.push(Effect::RetryLater);
                false
            }
            Answer::StaleEpoch { .. } if asked != self.s.under() => {
                self.because("a call of an earlier order was refused as stale: the present order is followed");
                true
            }
            Answer::StaleEpoch { accepted } => {
                // Either another node manages it and the release is on its way, or the servers have lost an epoch
                // (restored from a backup). The report names the accepted epoch, and they answer with an order.
                self.s.confirmed = false;
                // The provider does not name the epoch: take the next one, until it is high enough.
                self.s.local.stale_epoch = if *accepted == 0 { call_epoch(&call).saturating_add(1) } else { *accepted };
                self.unknown("the provider has accepted a higher epoch: this node waits for the servers");
                // Also for an instance whose end is known.
                self.report();
                false
            }
        }
    }

    /// The first create of a key was not sent: it counts as not tried.
    fn not_tried(&mut self, call: &Call) {
        if matches!(call, Call::Ensure { first: true, .. }) {
            self.s.local.attempted = false;
            self.effects.push(Effect::Persist);
        }
    }

    fn seen(&mut self, incarnation: IncarnationId, sighting: &Sighting) -> bool {
        if self.s.order.is_none() || incarnation != self.s.local.incarnation {
            self.because("observation ignored: it is about another instance");
            return false;
        }
        if self.s.local.sighting.as_ref().is_some_and(|s| matches!(s.observed, Observed::Exited { .. })) {
            return true;
        }
        if let Observed::Unknown { why, .. } = &sighting.observed {
            self.unknown(why);
            return false;
        }
        self.sees(sighting);
        true
    }

    /// Takes over a sighting. One that is no news takes no memory of its own.
    fn sees(&mut self, sighting: &Sighting) {
        if self.s.local.sighting.as_deref() != Some(sighting) {
            self.s.local.sighting = Some(Arc::new(sighting.clone()));
        }
    }

    fn kept(&mut self, incarnation: IncarnationId, alloc_id: AllocId) -> bool {
        if incarnation != self.s.local.incarnation || self.s.order.as_ref().is_none_or(|o| o.alloc_id != alloc_id) {
            self.because(
                "kept output ignored: it is of an instance that this node has let go, or of another allocation",
            );
            return false;
        }
        self.s.local.keeping = false;
        self.s.local.kept = true;
        true
    }

    /// Only a report: the servers decide whether to stop it (rule 5).
    fn unhealthy(&mut self, incarnation: IncarnationId, why: &str) {
        let manages =
            self.s.order.as_ref().is_some_and(|o| o.role == RemoteRole::Manage && o.desired == DesiredRemote::Run);
        let runs = self.s.local.sighting.as_ref().is_some_and(|s| s.observed == Observed::Running);
        if !manages || incarnation != self.s.local.incarnation || !runs {
            return self.because(
                "a check asks for a restart of what this node does not manage or does not see running: not told",
            );
        }
        why.clone_into(&mut self.s.local.unhealthy);
        self.report();
    }

    /// Rule 2: neither an exit nor an absence. Report it and try again; nothing else.
    fn unknown(&mut self, why: &str) {
        let Some(old) = self.s.local.sighting.as_ref().map(|s| s.observed.clone()) else {
            return self.say_unknown(self.now, why);
        };
        match old {
            Observed::Exited { .. } => self.because(format!("could not ask, but the end is known: {why}")),
            Observed::Unknown { since, .. } => self.say_unknown(since, why),
            _ => self.say_unknown(self.now, why),
        }
    }

    fn say_unknown(&mut self, since: TimestampNs, why: &str) {
        let known = self.s.local.sighting.as_deref().cloned().unwrap_or_default();
        self.sees(&Sighting { observed: Observed::Unknown { since, why: why.into() }, ..known });
        // The earlier finding may be over when the instance is seen again; then the check asks anew.
        self.s.local.unhealthy.clear();
        self.because(format!("unknown: {why}"));
        self.report();
    }

    fn report(&mut self) {
        let Some(order) = &self.s.order else { return };
        let l = &self.s.local;
        let told = Told {
            incarnation: l.incarnation,
            epoch: order.epoch,
            desired: order.desired,
            provider: self.caps.provider.as_str().into(),
            handle: l.handle.clone(),
            intent: l.intent.clone(),
            sighting: l.sighting.clone().unwrap_or_default(),
            forgotten: l.forgotten,
            refused: l.refused.clone(),
            stale_epoch: l.stale_epoch,
            unhealthy: l.unhealthy.clone(),
        };
        if self.s.told.as_deref() != Some(&told) {
            self.effects.push(Effect::Report(Box::new(told.report(self.key))));
            self.s.told = Some(Arc::new(told));
        }
    }

    fn call(&mut self, call: Call) {
        if call.mutates() && !self.s.may_mutate() {
            self.because("a mutation waits for the lease and a confirmed order (rule 3)");
            return;
        }
        if matches!(call, Call::Ensure { .. }) && !self.s.local.attempted && !mutated(Mutation::CreateUnrecorded) {
            // Intent before effect on this side, too: after a crash this node must look before it creates.
            self.s.local.attempted = true;
            self.effects.push(Effect::Persist);
        }
        self.s.in_flight = Some(Box::new(call.clone()));
        self.s.asked_under = self.s.under();
        self.effects.push(Effect::Call(call));
    }

    /// Whether a create with the key may have been sent before.
    fn may_exist(&self, order: &RemoteOrder) -> bool {
        order.adopt || self.s.local.attempted || self.s.local.doubted
    }
}

mod next;

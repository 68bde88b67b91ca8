//! Faults that a world can be given: a decider of the product, or the provider, that does one thing wrong. They show
//! that the rules catch something.

use lifecycle::remote::{
    Effect, Step,
    node::{self, Call},
};
use model::{DesiredRemote, IncarnationId, Observed, RemoteTask};

use super::{BESIDE, Pending, World};

/// What is done wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The servers: a new manager gets an older epoch, or the one before.
    EpochFalls,
    EpochStays,
    HandleErased,
    CountsTwice,
    RestartsWithoutEnd,
    OrdersAnotherVersion,
    EffectsDiffer,
    NextTooEarly,
    RecordStays,
    TombstoneStays,
    OrdersBeforeCommit,
    /// They hold nothing back; they let everything through while they recover.
    HoldsNothing,
    CommitsInRecovery,
    RecoveryGoesOn,
    RecoversBelow,
    RecoveryStops,
    /// A sweep forgets nothing that it has found, and nobody is told.
    FindingsStay,
    TicksForEver,
    TakesEveryAgent,
    /// A new leader waits for no lease; a former one goes on granting them.
    LeasesNotAwaited,
    FormerLeaderGrants,
    /// Nodes hear of what is not durable; a leader takes a commit for done whose answer it has not had.
    TellsBeforeDurable,
    DoubtIsYes,
    /// The store takes what a former leader writes.
    FenceAdmits,
    /// What is promised is more, or less is said of it, than holds.
    PromisesTooMuch,
    SaysNoLimits,
    /// The node.
    TakesEveryCluster,
    LeaseLastsForEver,
    EveryCreateIsTheFirst,
    StopIsNotSent,
    CallsTwice,
    KeepsNoOutput,
    DrainStops,
    /// The provider.
    IgnoresKeys,
    ForgetsSeals,
    ForgetsNoEnds,
    CarriesOutTwice,
    CarriesOutLater,
}

fn change(step: &mut Step, change: impl Fn(&mut RemoteTask)) {
    step.record.as_mut().map(&change);
    for effect in &mut step.effects {
        if let Effect::Commit(r) = effect {
            change(r);
        }
    }
}

impl World {
    pub(super) fn has(&self, fault: Fault) -> bool {
        self.cfg.fault == Some(fault)
    }

    /// A step of the servers, as a faulty decider would have made it.
    pub(super) fn spoil_servers(&self, slot: u32, before: Option<&RemoteTask>, fresh: IncarnationId, step: &mut Step) {
        let Some(fault) = self.cfg.fault else { return };
        let Some(after) = &step.record else {
            if (fault == Fault::RecordStays && slot < BESIDE) || (fault == Fault::TombstoneStays && slot >= BESIDE) {
                (step.record, step.effects) = (before.cloned(), Vec::new());
            }
            return;
        };
        let Some(b) = before else {
            match fault {
                Fault::RestartsWithoutEnd => change(step, |r| r.restarts = 1),
                Fault::OrdersAnotherVersion => change(step, |r| r.job_version += 1),
                Fault::EffectsDiffer => step.record.iter_mut().for_each(|r| r.restarts = 1),
                Fault::OrdersBeforeCommit => {
                    step.record = None;
                    step.effects.retain(|effect| !matches!(effect, Effect::Commit(_)));
                }
                _ => {}
            }
            return;
        };
        let commits = step.effects.iter().any(|effect| matches!(effect, Effect::Commit(_)));
        let same = commits && after.incarnation == b.incarnation;
        let moves = same
            && after.epoch > b.epoch
            && after.manager.is_some()
            && after.manager.map(|m| m.node_id) != b.manager.map(|m| m.node_id);
        match fault {
            Fault::EpochFalls if moves => change(step, |r| r.epoch = b.epoch - 1),
            Fault::EpochStays if moves => change(step, |r| r.epoch = b.epoch),
            Fault::HandleErased if same && b.handle.is_some() => change(step, |r| r.handle = None),
            Fault::CountsTwice if same && b.exit_acknowledged => change(step, |r| r.restarts = b.restarts + 1),
            Fault::NextTooEarly if same && b.observed == Observed::Running => change(step, |r| r.incarnation = fresh),
            _ => {}
        }
    }

    /// A step of a node, as a faulty decider would have made it.
    pub(super) fn spoil_node(&self, step: &mut node::Step) {
        match self.cfg.fault {
            Some(Fault::EveryCreateIsTheFirst) => {
                for effect in &mut step.effects {
                    if let node::Effect::Call(Call::Ensure { first, .. }) = effect {
                        *first = true;
                    }
                }
            }
            Some(Fault::StopIsNotSent) => {
                step.effects.retain(|effect| !matches!(effect, node::Effect::Call(Call::Stop { .. })))
            }
            Some(Fault::CallsTwice) => {
                // Of a create another rule speaks.
                let twice = |effect: &&node::Effect| {
                    matches!(effect,
                        node::Effect::Call(call) if !matches!(call, Call::Ensure { .. }))
                };
                let calls: Vec<_> = step.effects.iter().filter(twice).cloned().collect();
                step.effects.extend(calls);
            }
            _ => {}
        }
    }

    /// What a recovery takes over.
    pub(super) fn spoil_taken_over(&self, r: &mut RemoteTask) {
        match self.cfg.fault {
            Some(Fault::RecoversBelow) => r.epoch = 0,
            Some(Fault::RecoveryStops) => r.desired = DesiredRemote::Stop,
            _ => {}
        }
    }

    /// A node that takes a drain for an order to stop what it manages.
    pub(super) fn spoil_drain(&mut self, n: usize) {
        if !self.has(Fault::DrainStops) {
            return;
        }
        let stops: Vec<Pending> = self.nodes[n]
            .slots
            .iter()
            .filter_map(|(slot, s)| {
                let (handle, order) = (s.handle()?.clone(), s.order()?);
                let call =
                    Call::Stop { handle, epoch: order.epoch, signal: String::new(), timeout: model::GoDuration::ZERO };
                Some(Pending { slot: *slot, call, version: 0, alloc: order.alloc_id, answer: None, since: 0 })
            })
            .collect();
        self.nodes[n].calls.extend(stops);
    }
}

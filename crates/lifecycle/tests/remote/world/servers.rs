//! The servers: their loop over slots, what they commit, what sweeps tell them.

use std::time::Duration;

use lifecycle::remote::{
    Context, Effect, Event, begins,
    reconcile::{SlotFacts, events_for},
    recovering::{SweepFacts, holds, place_beside, sweeps_count_after, waits_for},
    transition,
};
use model::{
    AllocId, DesiredRemote, IncarnationId, Observed, RemoteImport, RemoteInstance, RemoteTask, RemoteWanted,
    remote::Manager,
};
use state::{Batch, Change};

use super::{Alloc, AllocState, Fault, INCARNATIONS, Rule, ToNode, World, id_in, node_id, node_index, slot_key};

/// Slots from here on are places of their own for tombstones of what no record knew.
pub(crate) const BESIDE: u32 = 1000;

impl World {
    /// The servers' loop for one slot: facts from the snapshot, events, transitions.
    pub(crate) fn reconcile(&mut self, slot: u32) {
        let served = self.records.get(&slot).map(|r| r.alloc_id);
        let ended = |a: &Alloc| Some(a.id) == served && matches!(a.state, AllocState::Failed | AllocState::Complete);
        let wanted = self
            .live_alloc(slot)
            .filter(|a| self.leased.contains(&a.node) && !self.nodes[a.node].draining)
            .map(|a| RemoteWanted {
                job_version: a.version,
                spec_hash: format!("hash-{}", a.version).into(),
                driver: "fake".into(),
                provider: "fake".into(),
                policy: self.policy().into(),
                manager: Some(Manager { node_id: node_id(a.node), alloc_id: a.id }),
                previous_ended: self.allocs.iter().any(ended),
                keep_counters: false,
                created_at: 0,
            });
        let leased = self.leased.clone();
        let draining: Vec<bool> = self.nodes.iter().map(|n| n.draining).collect();
        let live: Vec<AllocId> =
            self.allocs.iter().filter(|a| a.slot == slot && a.state == AllocState::Live).map(|a| a.id).collect();
        let finisher = || {
            let served = served?;
            match self.allocs.iter().find(|a| a.id == served && !a.collected) {
                Some(a) => leased.contains(&a.node).then(|| Manager { node_id: node_id(a.node), alloc_id: a.id }),
                // Any capable node then: see `Action::Executor`.
                None => None,
            }
        };
        let facts = SlotFacts {
            wanted,
            covered: self.wanted_by_job(slot),
            leased: &|n| leased.contains(&node_index(n)),
            draining: &|n| draining[node_index(n)].then_some(false),
            alloc_live: &|id| live.contains(&id),
            finisher: &finisher,
        };
        let events = events_for(self.records.get(&slot), &facts, self.wall());
        for event in events {
            self.server(slot, &event);
        }
    }

    /// Why no incarnation may begin in the slot.
    pub(super) fn held(&self, slot: u32) -> Option<String> {
        if self.has(Fault::HoldsNothing) {
            return None;
        }
        let key = self.unbound.iter().find(|(_, of)| **of == slot).map(|(key, _)| key.to_string());
        holds(&SweepFacts {
            unbound: key.as_deref(),
            stopping: self.records.values().filter(|r| r.slot.index >= BESIDE).any(|r| self.beside_of(r) == Some(slot)),
            new_cluster: self.new_cluster,
            can_list: self.cfg.find,
            swept: self.swept,
            early: !self.sweep_counts(),
            waited: false,
        })
    }

    /// The slot that waits for the end of what is being stopped beside it. A place has a number of its own here, so
    /// its slot is looked up.
    fn beside_of(&self, r: &RemoteTask) -> Option<u32> {
        let of = *self.places.get(&r.slot.index)?;
        let named = RemoteTask { slot: place_beside(&slot_key(of), r.incarnation), ..r.clone() };
        waits_for(&named).map(|slot| slot.index)
    }

    pub(crate) fn server(&mut self, slot: u32, event: &Event) {
        let begun = self.begun.get(&slot).copied().unwrap_or_default();
        let fresh = IncarnationId(id_in(INCARNATIONS, slot, begun + 1));
        let before = self.records.get(&slot).cloned();
        let key = slot_key(slot);
        let cx = Context { now: self.wall(), fresh, held: false };
        let mut step = transition(&key, before.as_ref(), event, cx);
        let begins = step.record.as_ref().is_some_and(|after| begins(before.as_ref(), after));
        if begins && !matches!(event, Event::Import(_)) && self.held(slot).is_some() {
            self.met.held += 1;
            step = transition(&key, before.as_ref(), event, Context { held: true, ..cx });
        }
        self.spoil_servers(slot, before.as_ref(), fresh, &mut step);
        // The commit refuses what waits for the end of a recovery.
        let changes = step.effects.iter().filter_map(|effect| match effect {
            Effect::Commit(r) => Some(Change::PutRemoteTask(r.clone())),
            Effect::Delete(slot) => Some(Change::DeleteRemoteTask(slot.clone())),
            _ => None,
        });
        let gated = self.meta.recovery.is_some() && !self.has(Fault::CommitsInRecovery);
        if gated && Batch::new(changes.collect()).waits_for_recovery() {
            self.met.refused_in_recovery += 1;
            return;
        }
        for effect in step.effects {
            match effect {
                Effect::Commit(r) => self.commit(slot, before.as_ref(), *r),
                Effect::Delete(_) => self.delete(slot, event),
                Effect::Order { node, order } => {
                    let committed = self.records.get(&slot).map(|r| (r.incarnation, r.epoch));
                    if committed != Some((order.incarnation, order.epoch)) {
                        let text = format!("rule 1: an order leaves before its commit: {committed:?}, {order:?}");
                        self.violation(Rule::IntentFirst, text);
                    }
                    self.send(node_index(node), ToNode::Order(order));
                }
                Effect::Release { node, slot } => self.send(node_index(node), ToNode::Released(slot)),
                Effect::Evaluate { .. } => self.evaluations += 1,
            }
        }
        match (self.records.get(&slot), &step.record) {
            (a, b) if a == b.as_ref() => {}
            _ => self.violation(
                Rule::EffectsAgree,
                format!("the effects of {event:?} do not lead to the record that the step returns"),
            ),
        }
    }

    fn delete(&mut self, slot: u32, event: &Event) {
        self.index += 1;
        let Some(r) = self.records.remove(&slot) else { return };
        if !matches!(event, Event::Forget { .. }) {
            self.moves_on(slot, &r, "the record was deleted");
        }
        if let Some(waits) = self.places.get(&slot).copied() {
            self.reconcile(waits);
        }
    }

    /// The incarnation has confirmedly ended for the servers. Does it live, the create must have come late, or the
    /// provider does not show at once what there is.
    fn moves_on(&mut self, slot: u32, r: &RemoteTask, what: &str) {
        let incarnation = r.incarnation;
        self.confirmed.insert(incarnation, self.now);
        let declared = self.declared.contains(&incarnation);
        let Some(at) = self.provider.instances.iter().position(|i| i.key == incarnation) else { return };
        // It came after its end had been seen, or was shown after it had been looked for.
        let late = !(self.cfg.seal && self.cfg.fenced) && self.provider.instances[at].late;
        if !self.provider.instances[at].alive {
            // It has lived and ended since it was looked for: what is left of it no record knows.
            if late {
                self.provider.instances[at].stray = Some(self.now);
            }
            return;
        }
        if declared || late || (self.cfg.stale && r.handle.is_none()) {
            self.stray(at);
        } else {
            self.violation(Rule::EndsBeforeNext, format!("I1, I2: {what} while the instance of slot {slot} lives"));
        }
    }

    pub(super) fn commit(&mut self, slot: u32, before: Option<&RemoteTask>, r: RemoteTask) {
        self.index += 1;
        if let Some(b) = before {
            if r.epoch < b.epoch {
                self.violation(
                    Rule::EpochNeverFalls,
                    format!("the epoch of slot {slot} fell from {} to {}", b.epoch, r.epoch),
                );
            }
            if r.manager.map(|m| m.node_id) != b.manager.map(|m| m.node_id) && r.manager.is_some() && r.epoch == b.epoch
            {
                self.violation(
                    Rule::EpochOfAManager,
                    format!("the manager of slot {slot} changed within epoch {}", r.epoch),
                );
            }
            if r.incarnation == b.incarnation {
                if b.handle.is_some() && r.handle.is_none() {
                    self.violation(Rule::HandleStays, format!("the handle of slot {slot} was erased"));
                }
                let told = r.result.as_ref().is_some_and(|result| !result.vanished);
                if !b.exit_acknowledged && r.exit_acknowledged && !told && self.ended_itself.contains(&r.incarnation) {
                    self.met.codes_lost += 1;
                }
                if b.exit_acknowledged && (r.restarts != b.restarts || (r.result != b.result)) {
                    self.violation(Rule::CountedOnce, format!("the end of slot {slot} was counted twice"));
                }
            } else {
                self.moves_on(slot, b, "a new incarnation follows");
            }
        }
        if before.is_none_or(|b| b.incarnation != r.incarnation) {
            *self.begun.entry(slot).or_default() += 1;
            if r.manager.is_some() {
                self.begins(slot, r.incarnation);
            }
        }
        let stop = r.desired == DesiredRemote::Stop || !r.unhealthy.is_empty();
        self.remember((r.incarnation, r.job_version, stop));
        let ends = self.ends.get(&slot).copied().unwrap_or(0);
        if r.restarts > ends {
            self.violation(
                Rule::RestartHasAnEnd,
                format!("slot {slot} counts {} restarts after {ends} ends: {r:#?}", r.restarts),
            );
        }
        self.records.insert(slot, r);
    }

    /// No incarnation begins beside one that lives, whether the servers know it or not: only what came, or was shown,
    /// after its end was believed.
    fn begins(&mut self, slot: u32, incarnation: IncarnationId) {
        let beside = self
            .provider
            .instances
            .iter()
            .find(|i| i.slot == slot && i.alive && i.key != incarnation && i.stray.is_none());
        if let Some(key) = beside.filter(|i| i.shown).map(|i| i.key) {
            self.violation(
                Rule::BeginsAlone,
                format!("incarnation {} of slot {slot} begins while {} lives", incarnation.short(), key.short()),
            );
        }
        if self.unbound.values().any(|of| *of == slot) {
            self.violation(
                Rule::BeginsBesideNothingUnbound,
                format!(
                    "incarnation {} of slot {slot} begins while an instance of the slot is unbound",
                    incarnation.short()
                ),
            );
        }
        if self.cfg.find && !self.swept && !self.new_cluster {
            self.violation(
                Rule::SweptFirst,
                format!("incarnation {} of slot {slot} begins before the provider was swept", incarnation.short()),
            );
        }
        if self.meta.recovery.is_some() {
            self.violation(
                Rule::NotInARecovery,
                format!("incarnation {} of slot {slot} begins in a recovery", incarnation.short()),
            );
        }
    }

    /// What the provider lists of this cluster.
    fn list(&self) -> Vec<(IncarnationId, u32)> {
        self.provider.instances.iter().filter(|i| i.alive && i.shown).map(|i| (i.key, i.slot)).collect()
    }

    /// What the next sweep would find.
    pub(super) fn unknown(&self) -> std::collections::BTreeMap<IncarnationId, u32> {
        let known = |key: &IncarnationId| self.records.values().any(|r| r.incarnation == *key);
        self.list().into_iter().filter(|(key, _)| !known(key)).collect()
    }

    pub(super) fn can_sweep(&self) -> bool {
        self.cfg.find && !self.provider.unreachable && self.nodes.iter().any(|n| n.session)
    }

    /// Whether the servers count a sweep that begins now. They do when the time has passed that the provider takes to
    /// show what was made before their start; time passes with [`super::Action::Show`].
    pub(super) fn sweep_counts(&self) -> bool {
        const TIME: Duration = Duration::from_secs(1);
        let hides = self.provider.instances.iter().any(|i| i.alive && i.older && !i.shown);
        let passed = if hides { Duration::ZERO } else { TIME };
        passed >= sweeps_count_after(Duration::ZERO, if self.cfg.stale { TIME } else { Duration::ZERO })
    }

    pub(super) fn sweep_provider(&mut self) {
        let found = self.unknown();
        if self.has(Fault::FindingsStay) {
            self.unbound.extend(found);
        } else {
            self.unbound = found.into();
        }
        let stray = |i: &super::Instance| i.alive && i.stray.is_some() && self.unbound.contains_key(&i.key);
        self.met.strays_found += u64::from(self.provider.instances.iter().any(stray));
        self.swept |= self.sweep_counts();
        if self.meta.recovery.is_some() {
            self.bind();
        } else {
            self.reconcile_all();
        }
    }

    pub(super) fn listed(&self, key: IncarnationId) -> Option<RemoteInstance> {
        let i = self.provider.instances.iter().find(|i| i.key == key)?;
        Some(RemoteInstance {
            key: key.to_string(),
            slot: slot_key(i.slot).to_string(),
            epoch: self.provider.accepted.get(&key).copied().unwrap_or_default(),
            handle: Some(super::provider::handle_of(key)),
            observed: Observed::Running,
            ..RemoteInstance::default()
        })
    }

    /// A person orders the stop of what the sweep has found: in the slot, or beside what the slot has.
    pub(super) fn stop_unbound(&mut self, key: IncarnationId) {
        let Some(instance) = self.listed(key) else {
            self.unbound.remove(&key);
            return;
        };
        let slot = self.unbound.remove(&key).unwrap_or_default();
        let place = if self.records.contains_key(&slot) {
            let place = BESIDE + self.places.len() as u32;
            self.places.insert(place, slot);
            place
        } else {
            slot
        };
        let import = RemoteImport {
            instance,
            incarnation: key,
            driver: "fake".to_owned(),
            provider: "fake".to_owned(),
            as_wanted: None,
            why: "a person orders it stopped".to_owned(),
        };
        self.server(place, &Event::Import(Box::new(import)));
    }
}

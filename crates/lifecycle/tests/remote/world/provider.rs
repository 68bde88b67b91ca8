//! The fake provider: what a call does there and what an observation shows.

use lifecycle::remote::node::{Answer, Call, Sighting};
use model::{IncarnationId, Observed, remote::RemoteHandle};
use uuid::Uuid;

use super::{Fault, Instance, LATE, Node, Pending, Rule, World};

pub(super) fn handle_of(key: IncarnationId) -> RemoteHandle {
    RemoteHandle { schema: 1, data: key.0.as_bytes().as_slice().into() }
}

fn key_in(handle: &RemoteHandle) -> IncarnationId {
    IncarnationId(Uuid::from_slice(&handle.data).expect("a handle of the fake provider"))
}

/// The key that a call is about.
pub(super) fn key_of(call: &Call) -> IncarnationId {
    match call {
        Call::Find { incarnation } | Call::Seal { incarnation, .. } | Call::Ensure { incarnation, .. } => *incarnation,
        Call::Observe { handle } | Call::Stop { handle, .. } | Call::Acknowledge { handle, .. } => key_in(handle),
    }
}

impl World {
    /// What the provider says when it is asked for a time.
    fn provider_time(&self) -> i64 {
        1 - 7 * self.cfg.skew
    }

    pub(super) fn sighting(&self, key: IncarnationId) -> Option<Sighting> {
        let i = self.provider.instances.iter().find(|i| i.key == key)?;
        let observed = if i.alive {
            Observed::Running
        } else {
            Observed::Exited { code: i.code, signal: 0, oom_killed: false, reason: "".into(), at: self.provider_time() }
        };
        Some(Sighting { observed, started_at: self.provider_time(), ..Sighting::default() })
    }

    /// What the node's watch would tell it now, if that is news.
    pub(super) fn observation_of(&self, node: &Node, slot: u32) -> Option<(IncarnationId, Sighting)> {
        let s = node.slots.get(&slot)?;
        let key = s.order()?.incarnation;
        s.handle().filter(|h| key_in(h) == key)?;
        let hidden = self.provider.instances.iter().any(|i| i.key == key && !i.shown);
        let now = if self.provider.unreachable || hidden {
            Sighting { observed: Observed::Unknown { since: 0, why: "unreachable".into() }, ..Sighting::default() }
        } else {
            self.sighting(key).unwrap_or(Sighting { observed: Observed::Gone, ..Sighting::default() })
        };
        let old = s.sighting().map(|s| s.observed.clone());
        let same = match (&old, &now.observed) {
            (Some(Observed::Unknown { .. }), Observed::Unknown { .. }) => true,
            (Some(a), b) => a == b,
            (None, _) => false,
        };
        let ended = old.is_some_and(|o| matches!(o, Observed::Exited { .. }));
        (!same && !ended && s.in_flight().is_none()).then_some((key, now))
    }

    pub(crate) fn exit(&mut self, i: usize, code: i32) {
        let instance = &mut self.provider.instances[i];
        instance.alive = false;
        instance.code = code;
        let slot = instance.slot;
        *self.ends.entry(slot).or_default() += 1;
    }

    /// The provider carries a call out. `late`: its caller has given up, or has lost the lease meanwhile.
    pub(super) fn execute(&mut self, pending: &Pending, late: bool) -> Answer {
        if self.provider.unreachable {
            return Answer::CouldNotAsk("the provider is unreachable".to_owned());
        }
        let key = key_of(&pending.call);
        let epoch = match &pending.call {
            Call::Find { .. } | Call::Observe { .. } => None,
            Call::Seal { epoch, .. }
            | Call::Ensure { epoch, .. }
            | Call::Stop { epoch, .. }
            | Call::Acknowledge { epoch, .. } => Some(*epoch),
        };
        if let Some(epoch) = epoch {
            let accepted = self.provider.accepted.get(&key).copied().unwrap_or_default();
            if epoch < accepted {
                if self.cfg.fenced {
                    self.provider.refused_stale += 1;
                    let accepted = if self.provider.names_no_epoch { 0 } else { accepted };
                    return Answer::StaleEpoch { accepted };
                }
                self.met.stale_taken += 1;
            }
            self.provider.accepted.insert(key, epoch.max(accepted));
        }
        self.provider.looks += u64::from(!pending.call.mutates());
        let found = self.provider.instances.iter().position(|i| i.key == key);
        let instance = |w: &Self| Answer::Instance {
            handle: handle_of(key),
            sighting: Box::new(w.sighting(key).expect("the instance exists")),
        };
        match &pending.call {
            // A search does not know what it does not see yet; who has a handle knows that there was something.
            Call::Find { .. } if found.is_some_and(|i| !self.provider.instances[i].shown) => Answer::Absent,
            Call::Observe { .. } if found.is_some_and(|i| !self.provider.instances[i].shown) => {
                Answer::CouldNotAsk("the provider does not show yet what was created a moment ago".to_owned())
            }
            Call::Find { .. } | Call::Observe { .. } => found.map_or(Answer::Absent, |_| instance(self)),
            Call::Seal { .. } => {
                self.provider.sealed.insert(key, self.now);
                found.map_or(Answer::Absent, |_| instance(self))
            }
            Call::Ensure { .. } => {
                if found.is_some() && self.cfg.keyed && !self.has(Fault::IgnoresKeys) {
                    return instance(self);
                }
                if self.is_sealed(key) || self.provider.refuse_creates {
                    return Answer::WrongRequest("refused by the provider".to_owned());
                }
                self.create(pending, key, epoch.unwrap_or_default(), late);
                instance(self)
            }
            Call::Stop { .. } => match found {
                Some(i) => {
                    if self.provider.instances[i].alive {
                        self.provider.stops += 1;
                        if !self.stop_ordered.contains(&key) {
                            self.violation(
                                Rule::StoppedByOrder,
                                format!("I4: instance {} was stopped without an order", key.short()),
                            );
                        }
                        self.exit(i, 143);
                    }
                    instance(self)
                }
                None => Answer::Absent,
            },
            Call::Acknowledge { .. } => {
                if let Some(i) = found {
                    if self.provider.instances[i].alive {
                        return Answer::WrongRequest("it is alive".to_owned());
                    }
                    // It may have gone again with the node's directory.
                    let on_disk = || self.ever_kept.contains(&(pending.alloc, key));
                    let read =
                        self.allocs.iter().any(|a| a.id == pending.alloc) && !self.collected.contains(&pending.alloc);
                    if read && !on_disk() {
                        let what = format!(
                            "the output of instance {key} is taken away before allocation {} has it",
                            pending.alloc
                        );
                        self.violation(
                            Rule::OutputFirst,
                            format!("{what}: {:?}, kept were {:?}", self.allocs, self.ever_kept),
                        );
                    }
                    if !self.has(Fault::ForgetsNoEnds) {
                        self.provider.instances.remove(i);
                    }
                }
                if self.cfg.seal {
                    // A key that has ended is remembered: a create that was sent long ago must not bring it back.
                    self.provider.sealed.insert(key, self.now);
                } else {
                    self.provider.accepted.remove(&key);
                }
                Answer::Absent
            }
        }
    }

    /// Is a create with that key refused? A provider that keeps epochs keeps them for good; seals of others last as
    /// long as a call may be on its way.
    pub(super) fn is_sealed(&self, key: IncarnationId) -> bool {
        !self.has(Fault::ForgetsSeals)
            && self.provider.sealed.get(&key).is_some_and(|at| self.cfg.fenced || self.now - at <= LATE)
    }

    fn create(&mut self, pending: &Pending, key: IncarnationId, epoch: u64, late: bool) {
        self.provider.creates += 1;
        match self.version_of.get(&key) {
            None => self.violation(
                Rule::IntentFirst,
                format!("rule 1: instance {} was created before its intent was committed", key.short()),
            ),
            Some(v) if *v != pending.version => {
                let v = *v;
                self.violation(
                    Rule::OfItsVersion,
                    format!("incarnation {} of version {v} was created from version {}", key.short(), pending.version),
                );
            }
            Some(_) => {}
        }
        if !self.cfg.keyed && self.provider.instances.iter().any(|i| i.key == key) {
            self.violation(
                Rule::OneCreate,
                format!("a second create of {} took effect at a provider without keys", key.short()),
            );
        }
        let (slot, version) = (pending.slot, pending.version);
        self.provider.instances.push(Instance {
            slot,
            key,
            version,
            alive: true,
            code: 0,
            epoch,
            shown: !self.cfg.stale,
            older: false,
            late,
            stray: None,
        });
        let at = self.provider.instances.len() - 1;
        if self.records.values().any(|r| r.incarnation == key && !r.observed.ended()) {
            // It is the slot's, also when a state that was lost knew of its end.
        } else if self.confirmed.contains_key(&key) {
            self.stray(at);
        } else if self.met.restores > 0 {
            // It was under way when the state was lost that knew of it. The next sweep finds it, and nothing begins
            // beside it from then on.
            self.provider.instances[at].stray = Some(self.now);
            self.met.lost += 1;
        }
    }
}

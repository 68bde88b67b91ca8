//! The fake provider: what a call does there and what an observation shows.

use lifecycle::remote::node::{Answer, Call, Sighting};
use model::{IncarnationId, Observed, remote::RemoteHandle};
use uuid::Uuid;

use super::{Instance, Pending, World};

fn handle_of(key: IncarnationId) -> RemoteHandle {
    RemoteHandle { schema: 1, data: key.0.as_bytes().to_vec() }
}

fn key_of(handle: &RemoteHandle) -> IncarnationId {
    IncarnationId(Uuid::from_slice(&handle.data).expect("a handle of the fake provider"))
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
    pub(super) fn observation_for(&self, n: usize, slot: u32) -> Option<(IncarnationId, Sighting)> {
        let s = self.nodes[n].slots.get(&slot)?;
        let key = s.order()?.incarnation;
        s.handle().filter(|h| key_of(h) == key)?;
        let now = if self.provider.unreachable {
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

    /// The provider carries a call out.
    pub(super) fn execute(&mut self, pending: &Pending) -> Answer {
        if self.provider.unreachable {
            return Answer::CouldNotAsk("the provider is unreachable".to_owned());
        }
        let (key, epoch) = match &pending.call {
            Call::Find { incarnation } => (*incarnation, None),
            Call::Seal { incarnation, epoch } | Call::Ensure { incarnation, epoch, .. } => (*incarnation, Some(*epoch)),
            Call::Observe { handle } => (key_of(handle), None),
            Call::Stop { handle, epoch, .. } | Call::Acknowledge { handle, epoch } => (key_of(handle), Some(*epoch)),
        };
        if let Some(epoch) = epoch {
            let accepted = self.provider.accepted.entry(key).or_default();
            if epoch < *accepted {
                self.provider.refused_stale += 1;
                return Answer::StaleEpoch { accepted: *accepted };
            }
            *accepted = epoch;
        }
        let found = self.provider.instances.iter().position(|i| i.key == key);
        let instance =
            |w: &Self| Answer::Instance { handle: handle_of(key), sighting: Box::new(w.sighting(key).expect("the instance exists")) };
        match &pending.call {
            Call::Find { .. } | Call::Observe { .. } => found.map_or(Answer::Absent, |_| instance(self)),
            Call::Seal { .. } => {
                self.provider.sealed.insert(key);
                found.map_or(Answer::Absent, |_| instance(self))
            }
            Call::Ensure { .. } => {
                if found.is_some() && self.cfg.keyed {
                    return instance(self);
                }
                if self.provider.sealed.contains(&key) || self.provider.refuse_creates {
                    return Answer::WrongRequest("refused by the provider".to_owned());
                }
                self.create(pending, key, epoch.unwrap_or_default());
                instance(self)
            }
            Call::Stop { .. } => match found {
                Some(i) => {
                    if self.provider.instances[i].alive {
                        self.provider.stops += 1;
                        if !self.stop_ordered.contains(&key) {
                            self.violation(format!("I4: instance {} was stopped without an order", key.short()));
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
                    let on_disk = || self.nodes.iter().any(|n| n.kept.contains(&(pending.alloc, key)));
                    let read = self.allocs.iter().any(|a| a.id == pending.alloc && !a.collected);
                    if read && !on_disk() {
                        self.violation(format!("the output of instance {} is taken away before its allocation has it", key.short()));
                    }
                    self.provider.instances.remove(i);
                }
                // A key that has ended is remembered: a create that was sent long ago must not bring it back.
                self.provider.sealed.insert(key);
                Answer::Absent
            }
        }
    }

    fn create(&mut self, pending: &Pending, key: IncarnationId, epoch: u64) {
        self.provider.creates += 1;
        match self.version_of.get(&key) {
            None => self.violation(format!("rule 1: instance {} was created before its intent was committed", key.short())),
            Some(v) if *v != pending.version => {
                let v = *v;
                self.violation(format!("incarnation {} of version {v} was created from version {}", key.short(), pending.version));
            }
            Some(_) => {}
        }
        self.provider.instances.push(Instance { slot: pending.slot, key, version: pending.version, alive: true, code: 0, epoch });
    }
}

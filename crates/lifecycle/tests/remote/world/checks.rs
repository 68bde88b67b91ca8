//! What must be true of a world, at each step and when nothing is left to happen.

use model::{Observed, RemoteTask};

use super::{AllocState, BESIDE, LATE, Rule, World};

impl World {
    pub(super) fn check(&mut self) {
        let mut live = vec![(0u32, 0u32); self.cfg.slots as usize];
        for i in self.provider.instances.iter().filter(|i| i.alive) {
            let (all, own) = &mut live[i.slot as usize];
            *all += 1;
            *own += u32::from(i.stray.is_none());
        }
        let unknown = |r: &&RemoteTask| matches!(&r.observed, Observed::Unknown { why, .. } if why.contains("declare"));
        self.met.unknown += u64::from(self.records.values().any(|r| unknown(&r)));
        for (slot, (all, own)) in live.into_iter().enumerate().filter(|(_, (all, _))| *all > 1) {
            if own > 1 {
                self.violation(Rule::OneLives, format!("I1: slot {slot} has {own} live instances"));
            }
            self.met.doubled += 1;
            if self.guarantee.exactly_one && self.declared.is_empty() && self.met.lost == 0 {
                self.violation(
                    Rule::OneLivesAsPromised,
                    format!(
                        "I1: slot {slot} has {all} live instances, although the guarantee is {:?}",
                        self.guarantee.level
                    ),
                );
            }
        }
    }

    /// An instance lives although the servers take its incarnation for ended. The guarantee must have said that this
    /// may be, and for how long.
    pub(super) fn stray(&mut self, at: usize) {
        let key = self.provider.instances[at].key;
        let since = self.confirmed.get(&key).copied().unwrap_or(self.now);
        let late = self.now - since;
        self.provider.instances[at].stray = Some(self.now);
        self.met.strays += 1;
        self.met.latest = self.met.latest.max(late);
        let says = |text: &str| self.guarantee.limits.iter().any(|limit| limit.contains(text));
        let said = says("after its stop was confirmed") || says("cannot refuse it") || self.declared.contains(&key);
        if !said {
            let text = format!(
                "instance {} lives after its end was believed; the guarantee {:?} says nothing of it; {:#?}",
                key,
                self.guarantee,
                self.records.get(&self.provider.instances[at].slot)
            );
            self.violation(Rule::StrayIsSaid, text);
        }
        if late > LATE && !self.cfg.frozen {
            self.violation(
                Rule::StrayInTime,
                format!("instance {} came {} s after its end was believed", key.short(), late / super::SECOND),
            );
        }
    }

    /// I2, for a world in which nothing is left to happen.
    pub(crate) fn check_quiet(&mut self) {
        if let Some(recovery) = self.meta.recovery.clone() {
            self.violation(Rule::RecoveryEnds, format!("the recovery does not end: {}", recovery.cause));
        }
        // What is not listed is found by nobody; what is, was found and stopped by a person.
        let strays_go = self.cfg.find;
        for slot in 0..self.cfg.slots {
            let own = self
                .provider
                .instances
                .iter()
                .filter(|i| i.slot == slot && i.alive && (strays_go || i.stray.is_none()));
            let assumed = |key| self.assumed.contains(&key);
            let live: Vec<u64> = own.map(|i| if assumed(i.key) { self.job.version } else { i.version }).collect();
            let last = self.allocs.iter().rev().find(|a| a.slot == slot).map(|a| a.state);
            let unwanted = self.wanted_by_job(slot).is_err();
            let expected: Vec<u64> =
                if unwanted || last == Some(AllocState::Complete) { Vec::new() } else { vec![self.job.version] };
            let record = self.records.get(&slot).cloned();
            // Without keys or a search nothing is created or believed gone in doubt: that is said, and a person
            // decides.
            let held = |r: &RemoteTask| matches!(&r.observed, Observed::Unknown { why, .. } if why.contains("declare"));
            // A person's word against an instance that lives: it is not touched, and nothing begins beside it.
            let denied = |r: &RemoteTask| self.declared.contains(&r.incarnation) && !r.settled();
            let waits = |r: &RemoteTask| ((!self.cfg.keyed || !self.cfg.find) && held(r)) || denied(r);
            if live.len() <= 1 && record.as_ref().is_some_and(waits) {
                self.met.waits_for_a_person += 1;
                continue;
            }
            if live != expected {
                self.violation(
                    Rule::WantedLives,
                    format!(
                        "I2: slot {slot} is quiet with live versions {live:?}, wanted {expected:?}; record {record:#?}"
                    ),
                );
            }
            if let Some(i) = self.provider.instances.iter().find(|i| i.slot == slot && !i.alive && i.stray.is_none()) {
                let known = self.records.values().any(|r| r.incarnation == i.key);
                // What has ended and no record knows is the provider's to forget in its time.
                if known || !(self.met_restore() || self.cfg.stale || self.declared.contains(&i.key)) {
                    let text = format!("I2: the ended instance {} stays at the provider: {record:#?}", i.key.short());
                    self.violation(Rule::EndedGoes, text);
                }
            }
            if let Some(r) = record.filter(|_| unwanted) {
                self.violation(Rule::RecordGoes, format!("I2: a record of the unwanted slot {slot} remains: {r:#?}"));
            }
        }
        if let Some((slot, r)) = self.records.iter().find(|(slot, _)| **slot >= BESIDE) {
            let text = format!("I2: what a person has ordered stopped, {slot}, remains: {r:#?}");
            self.violation(Rule::StopBesideEnds, text);
        }
        if !self.unbound.is_empty() {
            let text = format!("what no record knows remains: {:?}", self.unbound);
            self.violation(Rule::NothingIsUnbound, text);
        }
    }

    fn met_restore(&self) -> bool {
        self.met.restores > 0
    }
}

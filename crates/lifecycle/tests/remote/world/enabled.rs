//! What may happen next.

use lifecycle::remote::{awaits_finisher, reconcile::needs_executor, wake_at};
use model::{ClusterId, Observed, RemoteTask, RemoteVerdict};

use super::{Action, Alloc, AllocState, Fault, LATE, World, node_id};

impl World {
    pub(crate) fn enabled(&self) -> Vec<Action> {
        let mut out = Vec::new();
        self.of_servers(&mut out);
        for n in (0..self.nodes.len()).filter(|n| !self.nodes[*n].dead) {
            self.of_node(n, &mut out);
        }
        self.of_twins(&mut out);
        let dead = (0..self.nodes.len()).filter(|n| self.nodes[*n].dead && self.leased.contains(n));
        out.extend(
            dead.map(|n| if self.meta.recovery.is_some() { Action::Excuse(n) } else { Action::Expire(n) })
                .filter(|_| self.foreign.is_none()),
        );
        out.extend((0..self.stragglers.len()).map(Action::Straggler));
        let late = |i: &usize| self.has(Fault::CarriesOutLater) || self.now - self.zombies[*i].since <= LATE;
        out.extend((0..self.zombies.len()).filter(late).map(Action::Late));
        if self.foreign.is_none() {
            let slots: Vec<u32> = (0..self.cfg.slots)
                .chain(self.records.keys().copied().filter(|slot| *slot >= self.cfg.slots))
                .collect();
            for slot in slots {
                self.of_slot(slot, &mut out);
            }
        }
        self.of_provider(&mut out);
        if self.foreign.is_none() && self.meta.recovery.is_none() {
            self.of_people(&mut out);
        }
        out
    }

    /// With each order of two slots, where a step has one.
    pub(crate) fn enabled_in_each_order(&self) -> Vec<Action> {
        let mut out = self.enabled();
        if self.cfg.slots > 1 {
            let both: Vec<Action> = out.iter().filter(|action| action.goes_through_slots()).cloned().collect();
            out.extend(both.into_iter().map(|action| Action::Downwards(Box::new(action))));
        }
        out
    }

    fn of_servers(&self, out: &mut Vec<Action>) {
        let left = self.left;
        if self.foreign.is_some() {
            return out.push(Action::SwapBack);
        }
        let stays = self.has(Fault::FindingsStay);
        let news = || {
            if stays {
                self.unknown().keys().any(|key| !self.unbound.contains_key(key))
            } else {
                self.unknown() != *self.unbound
            }
        };
        if let Some(slow) = &self.slow {
            out.push(Action::Durable);
            if left.take_overs > 0 {
                out.extend((0..=slow.transactions()).map(Action::TakeOver));
            }
        } else {
            self.of_store(out);
        }
        if self.former.is_some() {
            out.push(Action::FormerEnds);
        }
        if self.can_sweep() && ((!self.swept && self.sweep_counts()) || news()) {
            out.push(Action::Sweep);
        }
        if !stays && self.meta.recovery.is_none() && self.nodes.iter().all(|n| n.dead || (n.session && !n.holds)) {
            out.extend(self.unbound.keys().copied().map(Action::StopUnbound));
        }
        if left.waits > 0 {
            out.push(Action::Wait);
        }
    }

    /// What waits for a slow store.
    fn of_store(&self, out: &mut Vec<Action>) {
        let left = self.left;
        if self.may_end() {
            out.push(Action::EndRecovery);
        }
        if left.server_restarts > 0 {
            out.push(Action::RestartServers);
        }
        if left.restores > 0 {
            if self.meta.recovery.is_none() {
                out.push(Action::BackUp);
            }
            if self.backup.is_some() {
                out.push(Action::Restore);
                if left.take_overs > 0 {
                    out.extend([false, true].map(Action::TakeOverPast));
                }
            }
        }
        if left.empties > 0 {
            out.push(Action::Empty);
        }
        if left.swaps > 0 {
            out.push(Action::Swap);
        }
        if left.slow > 0 && self.meta.recovery.is_none() {
            out.push(Action::Slow);
        }
        if left.take_overs > 0 {
            out.push(Action::TakeOver(0));
        }
    }

    fn of_node(&self, n: usize, out: &mut Vec<Action>) {
        let (node, left) = (&self.nodes[n], self.left);
        let recovering = self.meta.recovery.is_some();
        let ours = self.foreign.is_none();
        if !node.session {
            // Nothing comes of it with another cluster but a refusal, which is looked at once.
            if node.former {
                out.push(Action::LeaveFormer(n));
            } else {
                // Whoever registers a node waits for the store.
                if (ours && self.slow.is_none()) || (!ours && !node.refused && node.member.cluster != ClusterId::NIL) {
                    out.push(Action::Connect(n));
                }
                if left.formers > 0 && ours && self.former_takes(n) {
                    out.push(Action::ConnectFormer(n));
                }
            }
            if node.lease {
                out.push(Action::Lapse(n));
            }
            if self.may_expire(n) && self.leased.contains(&n) && ours && !recovering {
                out.push(Action::Expire(n));
            }
        } else {
            if node.holds && recovering && !node.told {
                out.push(Action::Tell(n));
            }
            if left.partitions > 0 {
                out.push(Action::Disconnect(n));
            }
            if left.drains > 0 && !node.draining && !recovering {
                out.push(Action::Drain(n));
            }
        }
        if node.up && left.crashes > 0 {
            out.push(Action::Crash(n));
        }
        if left.node_resets > 0 && self.nodes.len() < self.cfg.nodes + 2 {
            out.push(Action::EmptyNode(n));
        }
        if left.node_olds + left.twins > 0 && node.copy.is_none() {
            out.push(Action::CopyDisk(n));
        }
        if left.node_olds > 0 && node.copy.is_some() {
            out.push(Action::OldNode(n));
        }
        if left.twins > 0 && node.copy.is_some() {
            out.push(Action::StartTwin(n));
        }
        let manages = || self.records.values().any(|r| r.manager.is_some_and(|m| m.node_id == node_id(n)));
        if node.draining && ours && !recovering && manages() {
            out.push(Action::ForceDrain(n));
        }
        if !node.inbox.is_empty() {
            out.push(Action::ToNode(n));
            if left.doubles > 0 {
                out.push(Action::ToNodeTwice(n));
            }
        }
        if !node.outbox.is_empty() {
            out.push(Action::ToServers(n));
            if left.doubles > 0 {
                out.push(Action::ToServersTwice(n));
            }
            if left.stragglers > 0 {
                out.push(Action::Straggle(n));
            }
        }
        self.of_agent(n, node, out);
    }

    fn of_slot(&self, slot: u32, out: &mut Vec<Action>) {
        let left = self.left;
        if slot < self.cfg.slots
            && self.meta.recovery.is_none()
            && self.needs_place(slot)
            && self.placed.get(&slot).is_none_or(|placed| *placed < self.cfg.placements)
        {
            let ok = |n: &usize| {
                self.leased.contains(n) && self.nodes[*n].session && !self.nodes[*n].holds && !self.nodes[*n].draining
            };
            out.extend((0..self.nodes.len()).filter(ok).map(|n| Action::Place(slot, n)));
        }
        let Some(r) = self.records.get(&slot) else { return };
        if needs_executor(r) || self.any_node_may_finish(slot, r) {
            out.extend(
                (0..self.nodes.len())
                    .filter(|n| self.nodes[*n].session && !self.nodes[*n].holds && !self.nodes[*n].draining)
                    .map(|n| Action::Executor(slot, n)),
            );
        }
        if self.meta.recovery.is_none()
            && matches!(r.verdict, RemoteVerdict::Complete | RemoteVerdict::Failed { .. })
            && self
                .live_alloc(slot)
                .is_some_and(|a| a.id == r.alloc_id && r.manager.is_some_and(|m| m.alloc_id == a.id))
        {
            out.push(Action::AllocEnded(slot));
        }
        if left.clock_steps > 0 && (r.restart_window_start > 0 || wake_at(r).is_some()) {
            out.extend(self.clock_steps(r).map(Action::ClockStep));
        }
        // One that is held up is asked for again when what holds it up is over.
        if (wake_at(r).is_some() && self.held(slot).is_none()) || self.has(Fault::TicksForEver) {
            out.push(Action::Tick(slot));
        }
        if left.restarts > 0 {
            out.push(Action::RestartOrder(slot));
        }
        if left.gones > 0 && self.slow.is_none() && matches!(r.observed, Observed::Unknown { .. }) {
            out.push(Action::DeclareGone(slot));
        }
    }

    /// The allocation that would keep the output is gone.
    fn any_node_may_finish(&self, slot: u32, r: &RemoteTask) -> bool {
        slot < self.cfg.slots
            && awaits_finisher(r)
            && self.live_alloc(slot).is_none()
            && !self.allocs.iter().any(|a| a.id == r.alloc_id && !a.collected)
    }

    /// The servers' wall clock is set back or forward, past the interval of restarts.
    fn clock_steps(&self, r: &RemoteTask) -> impl Iterator<Item = i64> {
        let by = 2 * r.policy.restart.interval().nanos();
        [-by, by].into_iter()
    }

    fn of_provider(&self, out: &mut Vec<Action>) {
        if self.provider.unreachable {
            out.push(Action::Recover);
        } else if self.left.outages > 0 {
            out.push(Action::Outage);
        }
        out.extend((0..self.provider.instances.len()).filter(|i| !self.provider.instances[*i].shown).map(Action::Show));
        if self.left.forgets > 0 {
            out.extend(
                (0..self.provider.instances.len()).filter(|i| !self.provider.instances[*i].alive).map(Action::Forget),
            );
        }
        if self.left.exits > 0 {
            out.extend(
                (0..self.provider.instances.len()).filter(|i| self.provider.instances[*i].alive).map(Action::Exit),
            );
        }
    }

    fn of_people(&self, out: &mut Vec<Action>) {
        let left = self.left;
        if left.collects > 0 && self.slow.is_none() {
            let ended = |a: &&Alloc| a.state != AllocState::Live && !a.collected;
            out.extend(self.allocs.iter().filter(ended).map(|a| Action::Collect(a.slot)));
        }
        if !self.job.known || self.job.stopped {
            return;
        }
        if left.stops > 0 {
            out.push(Action::StopJob);
            if self.job.count > 1 {
                out.push(Action::ScaleDown);
            }
        }
        if left.updates > 0 {
            out.push(Action::UpdateJob);
        }
    }
}

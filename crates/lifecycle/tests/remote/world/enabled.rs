//! What may happen next.

use lifecycle::remote::{reconcile::needs_executor, wake_at};
use model::{ClusterId, Observed, RemoteVerdict};

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
        let late = |i: &usize| self.has(Fault::CarriesOutLater) || self.now - self.zombies[*i].since <= LATE;
        out.extend((0..self.zombies.len()).filter(late).map(Action::Late));
        if self.foreign.is_none() {
            let slots: Vec<u32> = (0..self.cfg.slots).chain(self.records.keys().copied().filter(|slot| *slot >= self.cfg.slots)).collect();
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

    fn of_servers(&self, out: &mut Vec<Action>) {
        let left = self.left;
        if self.foreign.is_some() {
            return out.push(Action::SwapBack);
        }
        let stays = self.has(Fault::FindingsStay);
        let news = || if stays { self.unknown().keys().any(|key| !self.unbound.contains_key(key)) } else { self.unknown() != self.unbound };
        if self.can_sweep() && (!self.swept || news()) {
            out.push(Action::Sweep);
        }
        if self.may_end() {
            out.push(Action::EndRecovery);
        }
        if !stays && self.meta.recovery.is_none() && self.nodes.iter().all(|n| n.dead || (n.session && !n.holds)) {
            out.extend(self.unbound.keys().copied().map(Action::StopUnbound));
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
            }
        }
        if left.empties > 0 {
            out.push(Action::Empty);
        }
        if left.swaps > 0 {
            out.push(Action::Swap);
        }
        if left.waits > 0 {
            out.push(Action::Wait);
        }
    }

    fn of_node(&self, n: usize, out: &mut Vec<Action>) {
        let (node, left) = (&self.nodes[n], self.left);
        let recovering = self.meta.recovery.is_some();
        let ours = self.foreign.is_none();
        if !node.session {
            // Nothing comes of it with another cluster but a refusal, which is looked at once.
            if ours || (!node.refused && node.member.cluster != ClusterId::NIL) {
                out.push(Action::Connect(n));
            }
            if node.lease {
                out.push(Action::Lapse(n));
            } else if self.leased.contains(&n) && ours && !recovering {
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
        }
        if !node.outbox.is_empty() {
            out.push(Action::ToServers(n));
        }
        self.of_agent(n, node, out);
    }

    fn of_slot(&self, slot: u32, out: &mut Vec<Action>) {
        let left = self.left;
        if slot < self.cfg.slots && self.meta.recovery.is_none() && self.needs_place(slot) && self.placed < self.cfg.placements {
            let ok = |n: &usize| self.leased.contains(n) && self.nodes[*n].session && !self.nodes[*n].holds && !self.nodes[*n].draining;
            out.extend((0..self.nodes.len()).filter(ok).map(|n| Action::Place(slot, n)));
        }
        let Some(r) = self.records.get(&slot) else { return };
        if needs_executor(r) {
            out.extend(
                (0..self.nodes.len())
                    .filter(|n| self.nodes[*n].session && !self.nodes[*n].holds && !self.nodes[*n].draining)
                    .map(|n| Action::Executor(slot, n)),
            );
        }
        if self.meta.recovery.is_none()
            && matches!(r.verdict, RemoteVerdict::Complete | RemoteVerdict::Failed { .. })
            && self.live_alloc(slot).is_some_and(|a| a.id == r.alloc_id && r.manager.is_some_and(|m| m.alloc_id == a.id))
        {
            out.push(Action::AllocEnded(slot));
        }
        // One that is held up is asked for again when what holds it up is over.
        if (wake_at(r).is_some() && self.held(slot).is_none()) || self.has(Fault::TicksForEver) {
            out.push(Action::Tick(slot));
        }
        if left.restarts > 0 {
            out.push(Action::RestartOrder(slot));
        }
        if left.gones > 0 && matches!(r.observed, Observed::Unknown { .. }) {
            out.push(Action::DeclareGone(slot));
        }
    }

    fn of_provider(&self, out: &mut Vec<Action>) {
        if self.provider.unreachable {
            out.push(Action::Recover);
        } else if self.left.outages > 0 {
            out.push(Action::Outage);
        }
        out.extend((0..self.provider.instances.len()).filter(|i| !self.provider.instances[*i].shown).map(Action::Show));
        if self.left.exits > 0 {
            out.extend((0..self.provider.instances.len()).filter(|i| self.provider.instances[*i].alive).map(Action::Exit));
        }
    }

    fn of_people(&self, out: &mut Vec<Action>) {
        let left = self.left;
        if left.collects > 0 {
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

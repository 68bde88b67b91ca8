//! The agents of nodes: what comes to them, and what follows from `remote::node::transition`.

use lifecycle::remote::node::{self, Answer, Call, Slot};
use model::remote::RemoteRole;

use super::{Fault, Pending, Rule, ToNode, World, slot_key};

impl World {
    /// The caller has given up; the call may take effect still.
    pub(super) fn lose_answer(&mut self, n: usize, i: usize) {
        let pending = self.nodes[n].calls.remove(i);
        let slot = pending.slot;
        if pending.answer.is_none() && pending.call.mutates() && self.cfg.late_calls {
            self.zombies.push(Pending { since: self.now, ..pending });
        }
        self.feed(n, slot, &node::Event::Done(Answer::CouldNotAsk("reply lost".to_owned())));
    }

    /// The next message comes to the node, which remembers what it acts on before it does.
    pub(super) fn deliver(&mut self, n: usize) {
        let Some((index, message)) = self.nodes[n].inbox.pop_front() else { return };
        let node = &mut *self.nodes[n];
        node.member.acts_on(index);
        self.met.told_by_former += u64::from(node.former);
        let node = &mut *self.nodes[n];
        match message {
            ToNode::Order(order) => {
                let slot = order.slot.index;
                node.has.retain(|_, of| *of != slot);
                if matches!(order.role, RemoteRole::Manage | RemoteRole::Observe)
                    && !self.collected.contains(&order.alloc_id)
                {
                    node.has.insert(order.alloc_id, slot);
                }
                if node.full_set.remove(&slot) {
                    self.slot_of(n, slot).doubt_store();
                }
                self.feed(n, slot, &node::Event::Order(order));
            }
            ToNode::Released(key) => {
                node.has.retain(|_, of| *of != key.index);
                self.feed(n, key.index, &node::Event::Released);
            }
        }
    }

    pub(super) fn all_slots(&mut self, n: usize, event: &node::Event) {
        for slot in self.in_order(self.nodes[n].slots.keys().copied()) {
            self.feed(n, slot, event);
        }
    }

    /// The slot as the node has it, which may be what its disk has of it.
    fn slot_of(&mut self, n: usize, slot: u32) -> &mut Slot {
        if !self.nodes[n].slots.contains_key(&slot) {
            let mut restored = Slot::restore(&self.nodes[n].disk.get(&slot).cloned().unwrap_or_default());
            if self.nodes[n].lease {
                restored = node::transition(
                    &slot_key(slot),
                    &restored,
                    &node::Event::LeaseHeld,
                    &self.cfg.caps(),
                    self.clock_of(n),
                )
                .slot;
            }
            self.nodes[n].slots.insert(slot, restored);
        }
        self.nodes[n].slots.get_mut(&slot).expect("it is there now")
    }

    pub(super) fn feed(&mut self, n: usize, slot: u32, event: &node::Event) {
        let before = self.slot_of(n, slot).clone();
        let mut step = node::transition(&slot_key(slot), &before, event, &self.cfg.caps(), self.clock_of(n));
        self.spoil_node(&mut step);
        let may_mutate = step.slot.may_mutate() && self.nodes[n].lease;
        let order = step.slot.order().cloned();
        self.nodes[n].slots.insert(slot, step.slot);
        for effect in step.effects {
            match effect {
                node::Effect::Persist => {
                    let stored = self.nodes[n].slots[&slot].stored();
                    self.nodes[n].disk.insert(slot, stored);
                }
                node::Effect::Prepare => {
                    self.nodes[n].prepare.insert(slot);
                }
                node::Effect::Call(call) => {
                    if call.mutates() && !may_mutate {
                        self.violation(
                            Rule::LeaseBeforeChange,
                            format!("rule 3: node {n} sends {call:?} without a lease and a confirmed order"),
                        );
                    }
                    if let Call::Ensure { incarnation, first: true, .. } = &call
                        && !self.firsts.insert(*incarnation)
                    {
                        self.violation(
                            Rule::OneIsTheFirst,
                            format!("two creates of {} are called the first one", incarnation.short()),
                        );
                    }
                    if self.nodes[n].calls.iter().any(|c| c.slot == slot) {
                        self.violation(Rule::OneCall, format!("node {n} has two calls of slot {slot} under way"));
                    }
                    let alloc = order.as_ref().map(|o| o.alloc_id).unwrap_or_default();
                    let version = self.versions.get(&alloc).copied().unwrap_or_default();
                    self.nodes[n].calls.push(Pending { slot, call, version, alloc, answer: None, since: 0 });
                }
                node::Effect::Keep { incarnation, alloc_id, .. } => {
                    self.nodes[n].keep.insert(slot, (incarnation, alloc_id));
                }
                node::Effect::Watch(_) => {
                    self.nodes[n].watching.insert(slot);
                }
                node::Effect::Report(report) => {
                    // What it says of slots waits for the session after the recovery.
                    // What a former leader hears comes to nothing.
                    let heard = self.nodes[n].session || (self.nodes[n].former && self.has(Fault::FenceAdmits));
                    if heard && !self.nodes[n].holds {
                        self.nodes[n].outbox.push_back(*report);
                    }
                }
                node::Effect::LetGo => {
                    self.nodes[n].watching.remove(&slot);
                    self.nodes[n].retry.remove(&slot);
                    self.nodes[n].prepare.remove(&slot);
                    self.nodes[n].keep.remove(&slot);
                }
                node::Effect::RetryLater => {
                    self.nodes[n].retry.insert(slot);
                }
            }
        }
    }
}

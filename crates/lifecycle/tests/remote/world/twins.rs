//! Second agents: the directory of a node was copied while it was in use, and an agent runs on the copy as well. It
//! has the node's identity, and an instance nonce of its own. Who decides whether it gets the node's session is the
//! product.

use std::time::Duration;

use lifecycle::{
    membership::{Standing, rivals},
    remote::node::{Call, Slot},
};

use super::{Action, Fault, LEASE, MARGIN, Node, Rule, World};

impl World {
    /// An agent starts on the copy of a node's directory.
    pub(super) fn start_twin(&mut self, n: usize) {
        let Some(copy) = self.nodes[n].copy.clone() else { return };
        let (disk, member, has) = *copy;
        let instance = self.new_instance();
        self.twins.push((n, Node { disk, member, has, instance, ..Node::default() }.into()));
    }

    /// A start of an agent.
    pub(super) fn new_instance(&mut self) -> u32 {
        self.instances += 1;
        self.instances
    }

    /// Something happens to the agent that has not got the session of its node.
    pub(super) fn of_twin(&mut self, i: usize, action: &Action) {
        if matches!(action, Action::Connect(_)) {
            return self.connect_twin(i);
        }
        // Without a session nobody else hears of it.
        let n = self.twins[i].0;
        std::mem::swap(&mut self.nodes[n], &mut self.twins[i].1);
        self.apply(action);
        std::mem::swap(&mut self.nodes[n], &mut self.twins[i].1);
    }

    fn connect_twin(&mut self, i: usize) {
        let (n, twin) = (self.twins[i].0, &mut self.twins[i].1);
        let first = &self.nodes[n];
        // While it has a session it is heard all the time.
        let (known, newcomer) = (first.instance.to_string(), twin.instance.to_string());
        let standing = first.session.then_some(Standing { instance: &known, silent: Duration::ZERO });
        let within = Duration::from_nanos((LEASE + MARGIN).unsigned_abs());
        if standing.is_some_and(|standing| rivals(&standing, &newcomer, within))
            && self.cfg.fault != Some(Fault::TakesEveryAgent)
        {
            twin.refused = true;
            self.met.rivals += 1;
            return;
        }
        if first.session {
            self.violation(
                Rule::OneAgent,
                format!("a second agent of node {n} gets its session while the first one has it"),
            );
            self.disconnect(n);
        }
        self.met.displaced += 1;
        std::mem::swap(&mut self.nodes[n], &mut self.twins[i].1);
        // What the servers have said of the node, and when they have heard of it, is not the agent's.
        self.nodes[n].draining = std::mem::take(&mut self.twins[i].1.draining);
        self.nodes[n].heard = self.twins[i].1.heard;
        self.twins[i].1.refused = false;
        self.connect(n);
    }

    /// What an agent can do by itself.
    pub(super) fn of_agent(&self, n: usize, node: &Node, out: &mut Vec<Action>) {
        for (i, call) in node.calls.iter().enumerate() {
            match &call.answer {
                None => {
                    out.push(Action::Execute(n, i));
                    // Who has no keys must see to it that a create is sent once.
                    let once = matches!(call.call, Call::Ensure { .. }) && !self.cfg.keyed;
                    if self.left.doubles > 0 && call.call.mutates() && !once {
                        out.push(Action::ExecuteTwice(n, i));
                    }
                }
                Some(_) => out.push(Action::Answer(n, i)),
            }
            let waits = call.answer.is_none() && matches!(call.call, Call::Ensure { .. });
            if waits && !node.slots.get(&call.slot).is_some_and(Slot::wants_create) {
                out.push(Action::LetGo(n, i));
            }
            if self.left.lost_replies > 0 {
                out.push(Action::LoseAnswer(n, i));
            }
        }
        out.extend(node.prepare.iter().map(|s| Action::Prepared(n, *s)));
        out.extend(node.keep.keys().map(|s| Action::Kept(n, *s)));
        out.extend(node.retry.iter().map(|s| Action::Retry(n, *s)));
        if self.left.unhealthy > 0 {
            out.extend(node.slots.iter().filter(|(_, s)| s.order().is_some()).map(|(s, _)| Action::Unhealthy(n, *s)));
        }
        out.extend(
            node.watching.iter().filter(|s| self.observation_of(node, **s).is_some()).map(|s| Action::Observe(n, *s)),
        );
    }

    pub(super) fn of_twins(&self, out: &mut Vec<Action>) {
        for (i, (n, twin)) in self.twins.iter().enumerate() {
            let mut own = Vec::new();
            let first = &self.nodes[*n];
            // A refusal is looked at once.
            if self.foreign.is_none() && self.slow.is_none() && !first.dead && (!first.session || !twin.refused) {
                own.push(Action::Connect(*n));
            }
            if twin.lease {
                own.push(Action::Lapse(*n));
            }
            self.of_agent(*n, twin, &mut own);
            out.extend(own.into_iter().map(|action| Action::Twin(i, Box::new(action))));
        }
    }
}

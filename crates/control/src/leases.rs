//! Node leases: which nodes were heard, and how long the servers wait.
//!
//! A node counts its lease from the moment when it *sent* a message. The servers count from its receipt, plus a margin.
//! So a node has let go by its own clock before its lease ends here. Both use the boot clock, which continues while a
//! machine sleeps.
//!
//! A server that stood still has heard nobody meanwhile and does not count its nodes as lost. See `suspicion`.

mod suspicion;

use std::{
    collections::{BTreeSet, HashMap, HashSet, hash_map::Entry},
    time::Duration,
};

use model::NodeId;

use crate::Boot;
use suspicion::{Decision, Seen, decide, most};

/// The leases of all nodes.
#[derive(Debug, Default)]
pub struct Leases {
    until: HashMap<NodeId, Boot>,
    /// Nodes without a lease: only the end of the wait for them matters.
    cut_off: HashSet<NodeId>,
    order: BTreeSet<(Boot, NodeId)>,
    /// How many decisions that make a node ready wait for the disk. While there is one, the node is not gone: it would
    /// get its lease after it was lost.
    expected: HashMap<NodeId, usize>,
    /// Until when the servers suspected themselves, while most nodes stay silent.
    suspected_until: Option<Boot>,
    /// When and why leases last got their full time again.
    given_again: Option<(Boot, String)>,
}

/// Time limits of leases.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// How long the servers wait for a node.
    pub wait: Duration,
    /// A node that has not renewed for this long has missed heartbeats.
    pub quiet: Duration,
    /// Longest pause of the servers that does not make them suspect themselves.
    pub longest_gap: Duration,
}

/// Result of a look at the leases.
#[derive(Debug)]
pub struct Looked {
    /// Nodes whose lease, or the wait for them, is over; they hold none from now on.
    pub gone: Vec<NodeId>,
    /// When the next lease or wait ends.
    pub next: Option<Boot>,
    /// Why leases got their full time again, and the nodes that would have been lost.
    pub spared: Option<(String, Vec<NodeId>)>,
}

impl Leases {
    fn set(&mut self, node: NodeId, until: Boot) {
        if let Some(old) = self.until.insert(node, until) {
            self.order.remove(&(old, node));
        }
        self.order.insert((until, node));
    }
    fn seen(&self, now: Boot, gap: Duration, rules: &Rules) -> Seen {
        let held = |node: &NodeId| !self.cut_off.contains(node);
        // A lease renewed just now has its full time left.
        let heard = now + (rules.wait - rules.quiet);
        let due = self.order.iter().take_while(|(until, _)| *until <= now).filter(|(_, node)| held(node)).count();
        let silent = match due {
            0 => self.suspected_until.map_or(0, |_| self.silent(heard)),
            _ => self.silent(heard),
        };
        Seen {
            gap,
            due,
            silent,
            total: self.until.len() - self.cut_off.len(),
            suspected_until: self.suspected_until,
            now,
        }
    }
    fn silent(&self, heard: Boot) -> usize {
        self.order
            .iter()
            .take_while(|(until, _)| *until < heard)
            .filter(|(_, node)| !self.cut_off.contains(node))
            .count()
    }
    fn due(&self, now: Boot) -> Vec<NodeId> {
        self.order.iter().take_while(|(until, _)| *until <= now).map(|(_, node)| *node).collect()
    }
    fn give_again(&mut self, at_least: Boot) {
        let short: Vec<NodeId> =
            self.order.iter().take_while(|(until, _)| *until < at_least).map(|(_, node)| *node).collect();
        for node in short {
            self.set(node, at_least);
        }
    }
    /// Waits once more for the nodes that cannot have their lease yet.
    fn await_expected(&mut self, now: Boot, wait: Duration) {
        for node in self.due(now) {
            if self.expected.contains_key(&node) {
                self.set(node, now + wait);
            }
        }
    }
    fn remove(&mut self, node: NodeId) {
        self.cut_off.remove(&node);
        if let Some(old) = self.until.remove(&node) {
            self.order.remove(&(old, node));
        }
    }

    /// Grants a lease to a node whose status is ready. True if it is the only lease, so that no timer runs yet.
    pub fn grant(&mut self, node: NodeId, until: Boot) -> bool {
        let first = self.order.is_empty();
        self.cut_off.remove(&node);
        self.set(node, until);
        first
    }

    /// Waits for a disconnected node: it holds no lease and cannot renew one, and is gone after the wait.
    pub fn watch(&mut self, node: NodeId, until: Boot) {
        self.cut_off.insert(node);
        self.set(node, until);
    }

    /// Renews a lease. False when there is none: the node must become ready first.
    pub fn renew(&mut self, node: NodeId, until: Boot) -> bool {
        let held = self.until.contains_key(&node) && !self.cut_off.contains(&node);
        if held {
            self.set(node, until);
        }
        held
    }

    /// The node is about to be ready, and gets its lease once that is stored. It keeps a present lease; without one,
    /// the servers wait for it, in either case no shorter than before. It is not gone until
    /// [`Leases::expect_no_more`] has followed each call.
    pub fn expect(&mut self, node: NodeId, until: Boot) {
        *self.expected.entry(node).or_default() += 1;
        let until = self.until.get(&node).map_or(until, |old| until.max(*old));
        if !self.renew(node, until) {
            self.watch(node, until);
        }
    }

    /// What [`Leases::expect`] has told of is stored, or refused: from now on the node is gone when its time is over.
    pub fn expect_no_more(&mut self, node: NodeId) {
        if let Entry::Occupied(mut expected) = self.expected.entry(node) {
            *expected.get_mut() -= 1;
            if *expected.get() == 0 {
                expected.remove();
            }
        }
    }

    /// Whether the node holds a lease, the servers wait for it, or it is about to be ready.
    #[must_use]
    pub fn knows(&self, node: NodeId) -> bool {
        self.until.contains_key(&node) || self.expected.contains_key(&node)
    }

    /// Forgets the lease of a node. One that is about to be ready gets another.
    pub fn forget(&mut self, node: NodeId) {
        self.remove(node);
    }

    /// Ends the leases that have run out, or extends them on suspicion (see `suspicion`). `gap` is the delay of this
    /// look beyond its due time.
    pub fn look(&mut self, now: Boot, gap: Duration, rules: &Rules) -> Looked {
        self.await_expected(now, rules.wait);
        let seen = self.seen(now, gap, rules);
        if self.suspected_until.is_some_and(|until| now >= until) && !most(seen.silent, seen.total) {
            self.suspected_until = None;
        }
        let decision = decide(seen, rules.longest_gap);
        let mut spared = None;
        if let Some(reason) = decision.reason() {
            spared = Some((reason.clone(), self.due(now)));
            self.give_again(now + rules.wait);
            self.given_again = Some((now, reason));
            if let Decision::Suspect { .. } = decision {
                self.suspected_until = Some(now + rules.wait);
            }
        }
        let gone = self.due(now);
        for node in &gone {
            self.remove(*node);
        }
        Looked { gone, next: self.order.first().map(|(until, _)| *until), spared }
    }

    /// When leases last got their full time again, and why.
    #[must_use]
    pub fn given_again(&self) -> Option<(Boot, &str)> {
        self.given_again.as_ref().map(|(at, why)| (*at, why.as_str()))
    }
}

#[cfg(test)]
mod tests;

//! Node leases: who has been heard from, and until when the servers wait.
//!
//! A node counts its lease from when it *sent* a message, the servers from when they received it and with a margin on
//! top: when a lease runs out here, the node has let go by its own clock before. Both count on the boot clock, which
//! goes on while a machine sleeps.
//!
//! A server that stood still has heard nobody meanwhile: its nodes are not lost for it. See `suspicion`.

mod suspicion;

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    time::Duration,
};

use model::NodeId;

use crate::Boot;
use suspicion::{Decision, Seen, decide, most};

/// The leases.
#[derive(Debug, Default)]
pub struct Leases {
    until: HashMap<NodeId, Boot>,
    /// Nodes that hold no lease: only the end of the wait for them is of interest.
    cut_off: HashSet<NodeId>,
    order: BTreeSet<(Boot, NodeId)>,
    /// Until when the servers suspected themselves, while most nodes stay silent.
    suspected_until: Option<Boot>,
    /// Why leases were last given their time again, and when.
    given_again: Option<(Boot, String)>,
}

/// Time limits of leases.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// How long the servers wait for a node.
    pub wait: Duration,
    /// Without a renewal for this long a node has missed heartbeats.
    pub quiet: Duration,
    /// The longest that the servers may stand still without asking themselves.
    pub longest_gap: Duration,
}

/// Result of a look at the leases.
#[derive(Debug)]
pub struct Looked {
    /// Nodes whose leases have run out, or the wait for them; they hold none from now on.
    pub gone: Vec<NodeId>,
    /// When the next one runs out.
    pub next: Option<Boot>,
    /// Why leases were given their time again, and the nodes that would have been lost.
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
        // A lease that was renewed just now has all of its time left.
        let heard = now + (rules.wait - rules.quiet);
        let due = self.order.iter().take_while(|(until, _)| *until <= now).filter(|(_, node)| held(node)).count();
        let silent = match due {
            0 => self.suspected_until.map_or(0, |_| self.silent(heard)),
            _ => self.silent(heard),
        };
        Seen { gap, due, silent, total: self.until.len() - self.cut_off.len(), suspected_until: self.suspected_until, now }
    }
    fn silent(&self, heard: Boot) -> usize {
        self.order.iter().take_while(|(until, _)| *until < heard).filter(|(_, node)| !self.cut_off.contains(node)).count()
    }
    fn due(&self, now: Boot) -> Vec<NodeId> {
        self.order.iter().take_while(|(until, _)| *until <= now).map(|(_, node)| *node).collect()
    }
    fn give_again(&mut self, at_least: Boot) {
        let short: Vec<NodeId> = self.order.iter().take_while(|(until, _)| *until < at_least).map(|(_, node)| *node).collect();
        for node in short {
            self.set(node, at_least);
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

    /// Waits for a node that is cut off: it holds no lease and cannot prolong one, and is gone when the wait is over.
    pub fn watch(&mut self, node: NodeId, until: Boot) {
        self.cut_off.insert(node);
        self.set(node, until);
    }

    /// Prolongs a lease. False when there is none (any more): the node must become ready first.
    pub fn renew(&mut self, node: NodeId, until: Boot) -> bool {
        let held = self.until.contains_key(&node) && !self.cut_off.contains(&node);
        if held {
            self.set(node, until);
        }
        held
    }

    /// It is about to be ready, and gets its lease when that is stored. It keeps what it holds; without a lease it is
    /// waited for.
    pub fn expect(&mut self, node: NodeId, until: Boot) {
        if !self.renew(node, until) {
            self.watch(node, until);
        }
    }

    /// Whether the node holds a lease, or the servers wait for it.
    #[must_use]
    pub fn knows(&self, node: NodeId) -> bool {
        self.until.contains_key(&node)
    }

    /// Forgets the lease of a node.
    pub fn forget(&mut self, node: NodeId) {
        self.remove(node);
    }

    /// Ends the leases that have run out, or renews them on suspicion (see `suspicion`). `gap` is the delay of this
    /// look beyond its due time.
    pub fn look(&mut self, now: Boot, gap: Duration, rules: &Rules) -> Looked {
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

    /// When leases were last given their time again, and why.
    #[must_use]
    pub fn given_again(&self) -> Option<(Boot, &str)> {
        self.given_again.as_ref().map(|(at, why)| (*at, why.as_str()))
    }
}

#[cfg(test)]
mod tests;

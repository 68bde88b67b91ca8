//! The servers store a driver's intent before its create is sent, and each later manager of the slot gets it. Wherever
//! the first manager dies, the next one repeats exactly that create, also at a provider that does not show its result
//! yet.

use std::collections::VecDeque;

use lifecycle::remote::{
    Effect, Event,
    node::{self, Answer, Call, Sighting},
    transition,
};
use model::{
    AllocId, IncarnationId, Observed, RemoteOrder, RemoteReport, RemoteTask, RemoteWanted,
    node::RemoteProvider,
    remote::{MAX_INTENT_BYTES, Manager, RemoteHandle, RemoteIntent},
};
use uuid::Uuid;

use crate::{
    mutations,
    scenarios::cx,
    world::{node_id, slot_key},
};

/// What is under way.
enum Act {
    ToNode(usize, Box<RemoteOrder>),
    ToServers(usize, Box<RemoteReport>),
    Call(usize, Call),
    Reply(usize, Answer),
}

/// Servers, two nodes, and a provider that creates by key and shows nothing of it: its listings are old.
struct Play {
    record: Option<RemoteTask>,
    nodes: [node::Slot; 2],
    orders: [Option<RemoteOrder>; 2],
    under_way: VecDeque<Act>,
    made: Vec<(IncarnationId, RemoteIntent)>,
    repeated: usize,
}

impl Default for Play {
    fn default() -> Self {
        mutations::begin();
        Self {
            record: None,
            nodes: Default::default(),
            orders: Default::default(),
            under_way: VecDeque::new(),
            made: Vec::new(),
            repeated: 0,
        }
    }
}

fn manager(n: usize) -> Manager {
    Manager { node_id: node_id(n), alloc_id: AllocId(Uuid::from_u128(100 + n as u128)) }
}

impl Play {
    fn servers(&mut self, event: &Event) {
        let step = transition(&slot_key(0), self.record.as_ref(), event, cx());
        self.record = step.record;
        for effect in step.effects {
            if let Effect::Order { node, order } = effect {
                let n = (0..2).find(|n| node_id(*n) == node).expect("one of the two");
                self.under_way.push_back(Act::ToNode(n, order));
            }
        }
    }

    fn node(&mut self, n: usize, event: &node::Event) {
        let caps = RemoteProvider {
            keyed_create: true,
            find: true,
            list: true,
            stale_seconds: 300,
            ..RemoteProvider::default()
        };
        let step = node::transition(&slot_key(0), &self.nodes[n], event, &caps, 1);
        self.nodes[n] = step.slot;
        for effect in step.effects {
            match effect {
                node::Effect::Call(call) => self.under_way.push_back(Act::Call(n, call)),
                node::Effect::Report(report) => self.under_way.push_back(Act::ToServers(n, report)),
                node::Effect::Prepare => self.node(n, &node::Event::Prepared),
                _ => {}
            }
        }
    }

    /// The driver and its provider.
    fn provider(&mut self, n: usize, call: &Call) -> Answer {
        let running = || {
            let sighting = Sighting { observed: Observed::Running, ..Sighting::default() };
            Answer::Instance { handle: RemoteHandle { schema: 1, data: [1].into() }, sighting: Box::new(sighting) }
        };
        let incarnation = match call {
            Call::Ensure { incarnation, .. } => incarnation,
            Call::Observe { .. } => return running(),
            _ => return Answer::Absent,
        };
        let Some(intent) = self.orders[n].as_ref().and_then(|order| order.intent.clone()) else {
            return Answer::Intent(RemoteIntent(format!("chosen by {n}").into_bytes()));
        };
        let stored = self.record.as_ref().and_then(|r| r.intent.as_deref()).expect("stored before it is sent");
        assert_eq!(*stored, intent, "what is sent is what the servers have");
        match self.made.iter().find(|(key, _)| key == incarnation) {
            Some((_, made_with)) => {
                assert_eq!(*made_with, intent, "the same create is repeated");
                self.repeated += 1;
            }
            None => self.made.push((*incarnation, intent)),
        }
        running()
    }

    /// False when nothing is under way.
    fn step(&mut self) -> bool {
        match self.under_way.pop_front() {
            None => return false,
            Some(Act::ToNode(n, order)) => {
                self.orders[n] = Some((*order).clone());
                self.node(n, &node::Event::Order(order));
            }
            Some(Act::ToServers(n, report)) => self.servers(&Event::Report { from: node_id(n), report }),
            Some(Act::Call(n, call)) => {
                let answer = self.provider(n, &call);
                self.under_way.push_back(Act::Reply(n, answer));
            }
            Some(Act::Reply(n, answer)) => self.node(n, &node::Event::Done(answer)),
        }
        true
    }

    fn wanted_on(&mut self, n: usize) {
        let wanted = RemoteWanted {
            spec_hash: "s".into(),
            driver: "d".into(),
            manager: Some(manager(n)),
            ..RemoteWanted::default()
        };
        self.servers(&Event::Wanted(Box::new(wanted)));
    }
}

#[test]
fn wherever_a_manager_dies_the_next_one_repeats_the_same_create() {
    let (mut deaths, mut repeated) = (0, 0);
    for steps in 0.. {
        let mut play = Play::default();
        (0..2).for_each(|n| play.node(n, &node::Event::LeaseHeld));
        play.wanted_on(0);
        let over = (0..steps).any(|_| !play.step());
        // All that was on its way from or to the first manager is lost with it, also the answer to what it has sent.
        play.under_way.clear();
        play.servers(&Event::LeaseLost { node: node_id(0) });
        play.wanted_on(1);
        while play.step() {}
        assert_eq!(play.made.len(), 1, "the first manager dies after {steps} steps");
        let record = play.record.expect("a record");
        assert_eq!((record.observed, record.manager), (Observed::Running, Some(manager(1))), "after {steps} steps");
        assert_eq!(record.intent.as_deref(), Some(&play.made[0].1));
        repeated += play.repeated;
        if over {
            break;
        }
        deaths += 1;
    }
    assert!(deaths >= 7 && repeated >= 1, "{deaths} moments, {repeated} of them between sending and hearing");
}

#[test]
fn what_is_too_large_or_of_another_manager_is_not_stored() {
    let mut play = Play::default();
    play.node(0, &node::Event::LeaseHeld);
    play.wanted_on(0);
    let record = play.record.clone().expect("a record");
    let report = |epoch, size| RemoteReport {
        slot: slot_key(0),
        incarnation: record.incarnation,
        epoch,
        intent: Some(RemoteIntent(vec![1; size])),
        ..RemoteReport::default()
    };
    for (case, from, report, stored) in [
        ("too large", 0, report(1, MAX_INTENT_BYTES + 1), None),
        ("of an older epoch", 0, report(0, 3), None),
        ("of a node that does not manage it", 1, report(1, 3), None),
        ("of its manager", 0, report(1, 3), Some(3)),
    ] {
        let step = transition(
            &slot_key(0),
            Some(&record),
            &Event::Report { from: node_id(from), report: Box::new(report) },
            cx(),
        );
        assert_eq!(step.record.expect("a record").intent.map(|intent| intent.0.len()), stored, "{case}");
    }
}

/// A driver that asks for the same again and again creates nothing: that is trouble, and no loop.
#[test]
fn a_driver_that_wants_stored_what_is_stored_is_asked_again_after_a_pause() {
    let mut play = Play::default();
    play.node(0, &node::Event::LeaseHeld);
    play.wanted_on(0);
    while play.nodes[0].in_flight().is_none() || play.orders[0].as_ref().is_some_and(|order| order.intent.is_none()) {
        assert!(play.step());
    }
    let stored = play.orders[0].as_ref().and_then(|order| order.intent.clone()).expect("stored");
    let caps = RemoteProvider { keyed_create: true, find: true, ..RemoteProvider::default() };
    let step = node::transition(&slot_key(0), &play.nodes[0], &node::Event::Done(Answer::Intent(stored)), &caps, 1);
    assert!(step.effects.contains(&node::Effect::RetryLater), "{:?}", step.effects);
    assert!(step.slot.in_flight().is_none());
}

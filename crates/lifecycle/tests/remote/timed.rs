//! Scenarios with bounds in time, by the model's clock.

use lifecycle::remote::node::Call;
use model::{DesiredRemote, Observed, RemoteVerdict};

use crate::{
    scenarios::running,
    world::{Action, Config, LEASE, MARGIN, SECOND, World, node_id},
};

/// How many instances a provider is asked about in one request, and how many requests a second it allows: the
/// defaults of the drivers' poller.
const BATCH: u64 = 100;
const RATE: u64 = 20;

#[test]
fn a33_one_of_three_managers_is_lost_and_each_of_its_tasks_is_looked_at_once() {
    const SLOTS: u32 = 990;
    let mut w = World::new(Config { slots: SLOTS, nodes: 3, ..Config::default() });
    for slot in 0..SLOTS {
        w.place(slot, slot as usize % 3);
    }
    w.sweep();
    let (creates, looks) = (w.provider.creates, w.provider.looks);
    let since = w.now;
    w.kill_and_expire(0);
    assert!(w.now - since <= LEASE + MARGIN, "lost after {} s", (w.now - since) / SECOND);
    let lost: Vec<u32> = (0..SLOTS).filter(|slot| slot % 3 == 0).collect();
    for slot in &lost {
        w.apply(&Action::Place(*slot, 1 + *slot as usize / 3 % 2));
    }
    w.sweep();
    for slot in &lost {
        let r = &w.records[slot];
        assert!(r.observed == Observed::Running && r.manager.is_some_and(|m| m.node_id != node_id(0)), "{r:?}");
    }
    let looks = w.provider.looks - looks;
    assert_eq!(looks, lost.len() as u64, "one look at each, none at the others");
    // So many managers' tasks as one of three of 10,000 are seen again within the minute.
    let seconds = (10_000 / 3 * looks / lost.len() as u64).div_ceil(BATCH * RATE);
    assert!(seconds <= 60, "{seconds} s");
    w.assert_calls(creates, 0);
}

#[test]
fn a34_a_stop_of_ninety_seconds_that_errs_twice_and_hangs_is_finished_by_the_next_manager() {
    let stopping = |w: &World, n: usize| {
        w.nodes[n].slots.get(&0).and_then(|s| s.in_flight()).is_some_and(|c| matches!(c, Call::Stop { .. }))
    };
    let mut w = running(Config { late_calls: false, ..Config::default() });
    w.apply(&Action::StopJob);
    for round in 0..3 {
        while !stopping(&w, 0) {
            let next = w.enabled().into_iter().find(|a| !a.is_fault() && !matches!(a, Action::Execute(..)));
            w.apply(&next.expect("the stop is tried again"));
        }
        w.now += 90 * SECOND;
        assert_eq!((w.records[&0].desired, w.alive(0).len()), (DesiredRemote::Stop, 1), "round {round}");
        assert_eq!(w.records[&0].verdict, RemoteVerdict::Active, "round {round}: not complete before it is gone");
        if round < 2 {
            w.apply(&Action::LoseAnswer(0, 0));
        }
    }
    // The third one hangs, and its manager dies with it.
    let since = w.now;
    w.lose(0);
    assert!(w.now - since <= LEASE + MARGIN, "stopped {} s after the manager was heard last", (w.now - since) / SECOND);
    assert_eq!((w.alive(0).len(), w.provider.stops), (0, 1));
    assert!(w.records.is_empty());
    w.assert_ok();
}

#[test]
fn a1_a_lost_manager_is_replaced_within_the_lease_and_its_margin() {
    let mut w = running(Config::default());
    w.now += 1_000 * SECOND;
    let since = w.now;
    w.lose(0);
    let r = &w.records[&0];
    assert!(
        r.manager.is_some_and(|m| m.node_id == node_id(1)) && w.now - since <= LEASE + MARGIN,
        "{} s",
        (w.now - since) / SECOND
    );
    assert!(w.now - since >= LEASE, "never before the old one has let go by its own clock");
    w.assert_ok();
}

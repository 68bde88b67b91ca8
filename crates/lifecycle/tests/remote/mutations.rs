//! The break that a run of this program is made with: `cargo xtask mutations` names it in DROVER_MUTATION, and some
//! test has to fail. Some rules are kept twice, so that a world shows nothing when one of the two goes: they are
//! tested here, each alone.

use lifecycle::{
    membership::{Meaning, Member, Servers},
    remote::{Event, node, transition},
};
use model::{DesiredRemote, GenerationId, Observed, RemoteReport};
use uuid::Uuid;

use crate::{
    scenarios::{cx, running, start_until},
    world::{Action, Config, node_id, slot_key},
};

/// Chooses it. Every world begins with this, so that no test runs without it.
#[cfg(feature = "mutations")]
pub(crate) fn begin() {
    use std::sync::Once;

    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let name = std::env::var("DROVER_MUTATION").unwrap_or_default();
        lifecycle::mutation::choose(&name).unwrap_or_else(|why| panic!("DROVER_MUTATION: {why}"));
    });
}

#[cfg(not(feature = "mutations"))]
pub(crate) fn begin() {}

/// A manager looks, and sees nothing. The job is stopped, and a create of the same manager may be under way by then.
#[test]
fn an_absence_from_before_a_stop_does_not_confirm_it() {
    let w = start_until(Config { nodes: 1, ..Config::default() }, |w| w.enabled().contains(&Action::Execute(0, 0)));
    let unwanted = Event::Unwanted { why: "stopped".to_owned() };
    let stopping = transition(&slot_key(0), w.records.get(&0), &unwanted, cx()).record.expect("a tombstone");
    let report = |desired| {
        let report = RemoteReport {
            slot: slot_key(0),
            incarnation: stopping.incarnation,
            epoch: stopping.epoch,
            desired,
            observed: Observed::Gone,
            ..RemoteReport::default()
        };
        let event = Event::Report { from: node_id(0), report: Box::new(report) };
        transition(&slot_key(0), Some(&stopping), &event, cx()).record.expect("its manager is to acknowledge").observed
    };
    assert_eq!(report(DesiredRemote::Run), Observed::Intended);
    assert_eq!(report(DesiredRemote::Stop), Observed::Gone);
}

/// Another manager may have been named while the node was away: only the servers know.
#[test]
fn a_lease_alone_does_not_bring_an_order_back() {
    let mut w = running(Config { nodes: 1, ..Config::default() });
    let caps = w.cfg.caps();
    let mut feed = |event| {
        let before = w.nodes[0].slots[&0].clone();
        let after = node::transition(&slot_key(0), &before, &event, &caps, 5).slot;
        w.nodes[0].slots.insert(0, after.clone());
        after
    };
    let order = feed(node::Event::Retry).order().cloned().expect("it manages the slot");
    assert!(!feed(node::Event::LeaseLost).may_mutate());
    assert!(!feed(node::Event::LeaseHeld).may_mutate(), "the order is from before");
    assert!(feed(node::Event::Order(Box::new(order))).may_mutate());
}

#[test]
fn a26_a_node_holds_on_servers_that_have_lost_what_it_acted_on() {
    begin();
    let generation = Some(GenerationId(Uuid::from_u128(1)));
    let mut member = Member::default();
    let servers = |history_index| Servers { generation, history_index, ..Servers::default() };
    assert_eq!(member.welcomed(&servers(0)), Meaning::Follows);
    assert!(member.acts_on(7));
    assert_eq!(member.welcomed(&servers(7)), Meaning::Follows);
    assert!(matches!(member.welcomed(&servers(6)), Meaning::Holds(_)));
}

//! Two managers, two slots, a runtime of each kind, and every fault that the assumptions allow: one by one, and all of
//! them at any moment. `cargo xtask model` looks at more states than a test does: REMOTE_STATES=2000000.
//!
//! What the transports can do bounds what messages may do here. Orders and reports of a session come in their order, or
//! not at all: one stream carries them. One may come twice, as a later session repeats it, and a report may be read
//! when its session has ended. Calls to a runtime may be lost, with or without effect, take effect late, or twice. A
//! runtime without keys is asked once by whoever speaks to it, so there a create does not come twice.

use crate::{
    explore::{Explored, Search, explore},
    levels::level,
    model_check::{number, seed},
    world::{Budget, Config},
};

/// States that are looked at with all faults together, for each kind.
fn states() -> usize {
    number("REMOTE_STATES").unwrap_or(3_000)
}

/// So many worlds wait at most. One takes some kilobytes.
fn waiting() -> usize {
    number("REMOTE_WAITING").unwrap_or(100_000)
}

/// Each fault of the list by itself.
fn faults(forgetful: bool) -> Vec<(&'static str, Budget)> {
    let none = Budget::default;
    let mut faults = vec![
        ("nothing", none()),
        ("a crash", Budget { crashes: 1, ..none() }),
        // The manager goes on with its calls while others take it for lost, until no call of others is on its way.
        ("a pause", Budget { partitions: 1, waits: 1, ..none() }),
        ("a lost answer", Budget { lost_replies: 1, ..none() }),
        ("a message twice", Budget { doubles: 1, ..none() }),
        ("a late report", Budget { stragglers: 1, ..none() }),
        ("a backup restored", Budget { restores: 1, ..none() }),
        // A former leader goes on; what the store has of its last decisions is open.
        ("a take-over", Budget { take_overs: 1, slow: 1, formers: 1, ..none() }),
        ("a take-over from the past", Budget { take_overs: 1, restores: 1, ..none() }),
        ("an end, and the clock set", Budget { exits: 1, clock_steps: 1, ..none() }),
    ];
    if forgetful {
        // With each of them something ends and is forgotten.
        faults.remove(0);
        faults.iter_mut().for_each(|(_, budget)| (budget.exits, budget.forgets) = (1, 1));
    }
    faults
}

/// All of them, with an update of the job and an end.
fn every_fault(forgetful: bool) -> Budget {
    Budget {
        crashes: 1,
        partitions: 1,
        waits: 1,
        lost_replies: 1,
        doubles: 1,
        stragglers: 1,
        restores: 1,
        clock_steps: 1,
        slow: 1,
        take_overs: 1,
        formers: 1,
        exits: 1,
        updates: 1,
        forgets: forgetful.into(),
        ..Budget::default()
    }
}

fn look(kind: &str, fault: &str, cfg: Config, states: usize) -> Explored {
    let found = explore(Search { cfg, states, waiting: waiting(), seed: seed() }, |_| false)
        .unwrap_or_else(|broken| panic!("{kind}, {fault} (REMOTE_SEED_FROM={}): {broken}", seed()));
    eprintln!("{kind}, {fault}: {found}");
    assert!(found.all || found.states >= states, "{kind}, {fault}: {found}");
    found
}

fn holds(kind: &str, cfg: Config) {
    let two = Config { nodes: 2, slots: 2, placements: 2, ..cfg };
    let mut sum = 0;
    for (fault, budget) in faults(two.forgetful) {
        sum += look(kind, fault, Config { budget, ..two.clone() }, states() / 4).states;
    }
    let budget = every_fault(two.forgetful);
    sum += look(kind, "every fault at any moment", Config { budget, placements: 3, ..two }, states()).states;
    eprintln!("{kind}: {sum} states from seed {}", seed());
}

#[test]
fn a_fenced_runtime() {
    holds("fenced", level("keys, seals and epochs"));
}

#[test]
fn a_runtime_with_keys_only() {
    holds("keyed only", level("keys without seals"));
}

#[test]
fn an_unfenced_runtime() {
    holds("unfenced", level("search"));
}

#[test]
fn an_eventually_consistent_runtime() {
    holds("eventually consistent", level("keys, search is stale"));
}

#[test]
fn a_forgetful_runtime() {
    holds("forgetful", level("keys, forgetful"));
}

/// Servers are restored from a backup that is older than a create, and sweep before the runtime's list shows its
/// instance. Such a sweep does not count, so nothing begins beside the instance.
#[test]
fn a_backup_that_is_restored_where_a_search_is_stale_begins_nothing_beside_what_is_not_shown_yet() {
    let budget = Budget { restores: 1, ..Budget::default() };
    let cfg = Config { nodes: 2, slots: 1, placements: 2, budget, ..level("keys, search is stale") };
    look("stale", "a backup restored", cfg, 60_000);
}

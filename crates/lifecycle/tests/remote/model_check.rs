//! Every order of events on small configurations: two managers, one slot, a few faults.

use crate::{
    explore::{Explored, Search, explore},
    world::{Budget, Config},
};

/// States looked at per configuration: `cargo xtask model` takes more of them, REMOTE_STATES=300000, and others,
/// REMOTE_SEED_FROM=n.
fn limit() -> usize {
    number("REMOTE_STATES").map_or(5_000, |states| states.min(100_000))
}

/// So many worlds wait at most.
const WAITING: usize = 100_000;

pub(crate) fn number(name: &str) -> Option<usize> {
    std::env::var(name).ok().and_then(|s| s.parse().ok())
}

pub(crate) fn seed() -> u64 {
    number("REMOTE_SEED_FROM").unwrap_or(1) as u64
}

fn holds(name: &str, budget: Budget, cfg: Config) -> Explored {
    let cfg = Config { budget, placements: 3, ..cfg };
    let found = explore(Search { cfg, states: limit(), waiting: WAITING, seed: seed() }, |_| false)
        .unwrap_or_else(|violation| panic!("{name} (REMOTE_SEED_FROM={}): {violation}", seed()));
    assert!(
        found.states > 100,
        "{name}: only {} states were reached, the configuration is too small to mean anything",
        found.states
    );
    eprintln!("{name}: {found}, {} with two instances, {} strays", found.met.doubled, found.met.strays);
    found
}

/// Two slots share managers, sessions and leases: what happens to one must not reach the other.
#[test]
fn two_slots_and_two_faults() {
    let two = || Config { slots: 2, ..Config::default() };
    holds("two slots, crash and stop", Budget { crashes: 1, stops: 1, ..Budget::default() }, two());
    holds("two slots, partition and update", Budget { partitions: 1, updates: 1, ..Budget::default() }, two());
    holds("two slots, drain and lost reply", Budget { drains: 1, lost_replies: 1, ..Budget::default() }, two());
}

/// A state from the past meets everything at any moment.
#[test]
fn a26_a_state_from_the_past_at_any_moment() {
    let none = Budget::default;
    let one = Config::default;
    holds("restore and crash", Budget { restores: 1, crashes: 1, ..none() }, one());
    holds("restore and partition", Budget { restores: 1, partitions: 1, ..none() }, one());
    holds("emptied and crash", Budget { empties: 1, crashes: 1, ..none() }, one());
    holds("another cluster and exit", Budget { swaps: 1, exits: 1, ..none() }, one());
    holds("restart of the servers and crash", Budget { server_restarts: 1, crashes: 1, ..none() }, one());
}

#[test]
fn a26_a_node_s_directory_from_the_past_at_any_moment() {
    let none = Budget::default;
    let one = Config::default;
    holds("older node and stop", Budget { node_olds: 1, stops: 1, ..none() }, one());
    holds("older node and update", Budget { node_olds: 1, updates: 1, ..none() }, one());
    holds("emptied node and exit", Budget { node_resets: 1, exits: 1, ..none() }, one());
}

/// The directory of a node is copied, and an agent runs on each. One has the node's session; either may come first when
/// it loses that.
#[test]
fn a26_two_agents_of_one_directory_at_any_moment() {
    let none = Budget::default;
    let one = || Config { nodes: 1, ..Config::default() };
    holds("copied node", Budget { twins: 1, ..none() }, one());
    holds("copied node and crash", Budget { twins: 1, crashes: 1, ..none() }, one());
    holds("copied node and partition", Budget { twins: 1, partitions: 1, ..none() }, one());
    holds("copied node, partition and stop", Budget { twins: 1, partitions: 1, stops: 1, ..none() }, one());
    holds("copied node, partition and exit", Budget { twins: 1, partitions: 1, exits: 1, ..none() }, one());
}

/// Another server takes over at any moment, while the former one goes on and what it has decided may be lost.
#[test]
fn a_take_over_at_any_moment() {
    let take_over = || Budget { take_overs: 1, slow: 1, formers: 1, ..Budget::default() };
    let one = Config::default;
    let Explored { met, .. } = holds("take-over", take_over(), one());
    assert!(met.voided > 0 && met.told_by_former > 0, "no decision was lost, or nobody told of one late: {met:?}");
    holds("two take-overs", Budget { take_overs: 2, ..take_over() }, one());
    holds("take-over and crash", Budget { crashes: 1, ..take_over() }, one());
    holds("take-over and partition", Budget { partitions: 1, ..take_over() }, one());
    holds("take-over and stop", Budget { stops: 1, ..take_over() }, one());
    holds("take-over and update", Budget { updates: 1, ..take_over() }, one());
    holds("take-over, exit and drain", Budget { exits: 1, drains: 1, ..take_over() }, one());
    holds("take-over and restore", Budget { restores: 1, ..take_over() }, one());
    holds("take-over and copied node", Budget { twins: 1, ..take_over() }, Config { nodes: 1, ..one() });
}

#[test]
fn crash_of_a_manager_at_any_moment() {
    holds("crash", Budget { crashes: 1, ..Budget::default() }, Config::default());
}

#[test]
fn partition_and_return_at_any_moment() {
    holds("partition", Budget { partitions: 1, ..Budget::default() }, Config::default());
}

#[test]
fn crash_and_lost_reply() {
    holds("crash and lost reply", Budget { crashes: 1, lost_replies: 1, ..Budget::default() }, Config::default());
}

#[test]
fn exit_during_a_crash() {
    holds("exit and crash", Budget { crashes: 1, exits: 1, ..Budget::default() }, Config::default());
}

#[test]
fn drain_and_stop() {
    holds("drain and stop", Budget { drains: 1, stops: 1, ..Budget::default() }, Config::default());
}

#[test]
fn stop_and_crash_and_late_create() {
    holds("stop, crash", Budget { stops: 1, crashes: 1, ..Budget::default() }, Config::default());
}

#[test]
fn update_and_partition() {
    holds("update and partition", Budget { updates: 1, partitions: 1, ..Budget::default() }, Config::default());
}

#[test]
fn outage_of_the_provider_and_drain() {
    holds("outage and drain", Budget { outages: 1, drains: 1, ..Budget::default() }, Config::default());
}

#[test]
fn ordered_restart_and_drain() {
    holds("restart and drain", Budget { restarts: 1, drains: 1, ..Budget::default() }, Config::default());
}

#[test]
fn an_unhealthy_instance_and_a_crash() {
    holds("unhealthy and crash", Budget { unhealthy: 1, crashes: 1, ..Budget::default() }, Config::default());
}

#[test]
fn batch_exit_and_partition() {
    holds(
        "batch",
        Budget { exits: 1, partitions: 1, ..Budget::default() },
        Config { batch: true, restart_attempts: 0, ..Config::default() },
    );
}

/// The end of a task, the copy of its output, and the collection of its allocation, with its node killed anywhere.
#[test]
fn the_end_of_a_task_and_a_crash_and_the_collection() {
    holds(
        "end, crash and collection",
        Budget { exits: 1, crashes: 1, collects: 1, ..Budget::default() },
        Config { batch: true, restart_attempts: 0, ..Config::default() },
    );
}

/// A provider that can only create by key and find: the same holds unless calls take effect after their caller has
/// given up.
#[test]
fn without_sealing_when_calls_are_not_late() {
    let cfg = Config { seal: false, late_calls: false, ..Config::default() };
    holds("no seal", Budget { stops: 1, crashes: 1, ..Budget::default() }, cfg);
}

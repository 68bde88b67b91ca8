//! Every order of events on small configurations: two managers, one slot, a few faults.

use std::{
    collections::{HashSet, VecDeque},
    fmt,
};

use lifecycle::restart::mix;

use crate::{
    levels::levels,
    world::{Action, Budget, Config, Met, Violation, World},
};

/// What was looked at.
pub(crate) struct Explored {
    pub(crate) states: usize,
    all: bool,
    /// Steps in which two instances lived in a slot, and instances that lived although their end was believed.
    doubled: u64,
    strays: u64,
}

/// A rule that was broken, and what has led there.
pub(crate) struct Broken {
    pub(crate) violation: Violation,
    trace: Vec<Action>,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\nafter {:#?}", self.violation, self.trace)
    }
}

/// Breadth first, so that a violation comes with a shortest trace. Once half of the states are spent, continues from
/// random states, to reach long traces. The seed selects them.
pub(crate) fn explore(cfg: Config, limit: usize, seed: u64, enough: impl Fn(&Explored) -> bool) -> Result<Explored, Box<Broken>> {
    let start = World::new(cfg);
    let mut seen: HashSet<u64> = HashSet::new();
    let mut steps: Vec<(usize, Option<Action>)> = vec![(0, None)];
    let mut queue: VecDeque<(World, usize)> = VecDeque::new();
    let mut dice = seed;
    let mut found = Explored { states: 0, all: false, doubled: 0, strays: 0 };
    seen.insert(start.fingerprint());
    queue.push_back((start, 0));
    loop {
        let next = if seen.len() < limit / 2 || queue.is_empty() {
            queue.pop_front()
        } else {
            dice = mix(dice);
            let at = usize::try_from(dice % queue.len() as u64).expect("below the length");
            queue.swap_remove_back(at)
        };
        let Some((world, at)) = next else {
            found.all = true;
            break;
        };
        let actions = world.enabled();
        if actions.iter().all(Action::is_fault) && (0..world.cfg.slots).all(|s| !world.needs_place(s)) {
            let mut quiet = world.clone();
            quiet.check_quiet();
            if let Some(violation) = quiet.violations.first() {
                return Err(Box::new(Broken { violation: violation.clone(), trace: trace(&steps, at, None) }));
            }
        }
        for action in actions {
            let mut next = world.clone();
            next.met = Met { restores: next.met.restores, lost: next.met.lost, ..Met::default() };
            next.apply(&action);
            found.doubled += next.met.doubled;
            found.strays += next.met.strays;
            if let Some(violation) = next.violations.first() {
                return Err(Box::new(Broken { violation: violation.clone(), trace: trace(&steps, at, Some(action)) }));
            }
            if seen.insert(next.fingerprint()) {
                steps.push((at, Some(action)));
                queue.push_back((next, steps.len() - 1));
            }
        }
        if seen.len() > limit || enough(&found) {
            break;
        }
    }
    found.states = seen.len();
    Ok(found)
}

/// What has led there.
fn trace(steps: &[(usize, Option<Action>)], mut at: usize, last: Option<Action>) -> Vec<Action> {
    let mut taken: Vec<Action> = last.into_iter().collect();
    while let (before, Some(action)) = &steps[at] {
        taken.push(action.clone());
        at = *before;
    }
    taken.reverse();
    taken
}

/// States looked at per configuration: `cargo xtask model` takes more of them, REMOTE_STATES=300000, and others,
/// REMOTE_SEED_FROM=n.
fn limit() -> usize {
    std::env::var("REMOTE_STATES").ok().and_then(|s| s.parse().ok()).unwrap_or(5_000)
}

/// The levels are many, and each meets what the others meet as well.
fn limit_of_a_level() -> usize {
    limit() * 2 / 5
}

fn seed() -> u64 {
    std::env::var("REMOTE_SEED_FROM").ok().and_then(|s| s.parse().ok()).unwrap_or(1)
}

fn holds(name: &str, budget: Budget, cfg: Config) -> Explored {
    holds_in(limit(), name, budget, cfg)
}

fn holds_in(limit: usize, name: &str, budget: Budget, cfg: Config) -> Explored {
    let cfg = Config { budget, placements: 3 * cfg.slots as usize, ..cfg };
    let found =
        explore(cfg, limit, seed(), |_| false).unwrap_or_else(|violation| panic!("{name} (REMOTE_SEED_FROM={}): {violation}", seed()));
    assert!(found.states > 100, "{name}: only {} states were reached, the configuration is too small to mean anything", found.states);
    let all = if found.all { "all" } else { "the first" };
    eprintln!("{name}: {all} {} states, {} with two instances, {} strays", found.states, found.doubled, found.strays);
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

/// Two instances live in a slot only where, and only as long as, the guarantee says so: [`World`] holds each to the
/// limits. Where the guarantee says so, the checker meets them: no level promises less than it could.
#[test]
fn two_instances_live_where_the_level_says_so_and_nowhere_else() {
    // A replacement at any moment of a create whose manager is lost.
    let replaced = Budget { updates: 1, crashes: 1, ..Budget::default() };
    let frozen = Budget { updates: 1, partitions: 1, waits: 1, ..Budget::default() };
    for (name, _, cfg) in levels() {
        let searches = cfg.find || cfg.keyed;
        let late = holds_in(limit_of_a_level(), &format!("{name}: replaced"), replaced, cfg.clone());
        assert!(searches || late.strays == 0, "{name}: without a person's word nothing is begun or stopped in doubt");
        if cfg.seal {
            let long = holds_in(limit_of_a_level(), &format!("{name}: frozen"), frozen, cfg.clone());
            let never = cfg.fenced || !cfg.frozen;
            assert!(late.strays == 0 && (long.strays == 0 || !never), "{name}: never two");
        }
    }
    // The known gaps show, each with the smallest set of faults: this tests the test.
    let all = levels();
    let of = |name: &str| all.iter().find(|(n, _, _)| *n == name).map(|(_, _, cfg)| cfg.clone()).expect("a level");
    let gap = |cfg: Config, budget: Budget| {
        let found = explore(Config { budget, placements: 3, ..cfg }, 60_000, 1, |found| found.strays > 0)
            .unwrap_or_else(|violation| panic!("{violation}"));
        found.strays
    };
    assert!(gap(of("keys and epochs"), replaced) > 0, "a create that comes after its stop was confirmed");
    assert!(
        gap(of("keys and seals"), Budget { stops: 1, partitions: 1, waits: 1, ..Budget::default() }) > 0,
        "a manager frozen in a create"
    );
    assert!(gap(of("stale search"), Budget { stops: 1, crashes: 1, ..Budget::default() }) > 0, "a search that does not show what there is");
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

/// The known gap shows: without sealing, a create that arrives after the stop was confirmed leaves an instance
/// behind. The README says so of such providers.
#[test]
fn the_checker_finds_the_gap_of_a_provider_that_cannot_seal() {
    let budget = Budget { stops: 1, crashes: 1, ..Budget::default() };
    let found = explore(Config { seal: false, budget, placements: 3, ..Config::default() }, 30_000, 1, |found| found.strays > 0)
        .unwrap_or_else(|v| panic!("{v}"));
    assert!(found.strays > 0, "the late create must show");
}

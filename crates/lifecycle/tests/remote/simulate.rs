//! Random walks from seeds on larger configurations, then quiet: I1, I3 and I4 at every step, I2 at the end.

use lifecycle::restart::mix;

use crate::{
    levels::levels,
    world::{Action, Budget, Config, Instance, World},
};

/// A small generator: the seed is the whole story of a run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 = mix(self.0);
        usize::try_from(self.0 % n as u64).expect("below n")
    }
}

/// What the walks have met, so that a walk that meets nothing is noticed.
#[derive(Default, Debug)]
struct Met {
    steps: usize,
    handovers: u64,
    stale_refused: u64,
    stale_taken: u64,
    restarts: u64,
    stops: u64,
    creates: u64,
    strays: u64,
    held: u64,
    waits_for_a_person: u64,
    restores: u64,
    recoveries: u64,
    taken_over: u64,
    refused_in_recovery: u64,
    rivals: u64,
    displaced: u64,
    take_overs: u64,
    voided: u64,
    told_by_former: u64,
}

/// What happened at a step, when by the servers' clock, and what then was at the provider.
type Step = (Action, i64, Vec<Instance>);

/// What may go wrong in every walk.
fn usual(dice: &mut Dice) -> Budget {
    Budget {
        crashes: dice.below(4) as u32,
        partitions: dice.below(4) as u32,
        lost_replies: dice.below(5) as u32,
        exits: dice.below(4) as u32,
        drains: dice.below(2) as u32,
        stops: dice.below(2) as u32,
        updates: dice.below(3) as u32,
        restarts: dice.below(2) as u32,
        outages: dice.below(3) as u32,
        unhealthy: dice.below(3) as u32,
        collects: dice.below(2) as u32,
        server_restarts: dice.below(2) as u32,
        ..Budget::default()
    }
}

/// Directories of servers and nodes that are older, empty or of another cluster, beside everything else.
fn past(dice: &mut Dice) -> Budget {
    let usual = usual(dice);
    Budget {
        restores: dice.below(3) as u32,
        empties: (dice.below(4) == 0).into(),
        swaps: (dice.below(4) == 0).into(),
        node_resets: dice.below(2) as u32,
        node_olds: dice.below(2) as u32,
        twins: dice.below(2) as u32,
        ..usual
    }
}

/// Several servers that share a store, beside everything else.
fn servers(dice: &mut Dice) -> Budget {
    let past = if dice.below(2) == 0 { past(dice) } else { usual(dice) };
    Budget {
        slow: 1 + dice.below(4) as u32,
        take_overs: 1 + dice.below(3) as u32,
        formers: dice.below(3) as u32,
        ..past
    }
}

/// A person says that there is no instance without having looked, and managers are frozen for long.
fn doubtful(dice: &mut Dice) -> Budget {
    let usual = usual(dice);
    Budget { gones: dice.below(2) as u32, waits: dice.below(2) as u32, ..usual }
}

/// One walk of so many steps.
fn run(
    seed: u64,
    steps: usize,
    base: &Config,
    budget: fn(&mut Dice) -> Budget,
    met: &mut Met,
) -> Result<Vec<Step>, String> {
    let mut taken = Vec::new();
    let mut dice = Dice(seed);
    let budget = budget(&mut dice);
    let cfg = Config {
        nodes: 2 + dice.below(3),
        slots: 1 + dice.below(4) as u32,
        batch: dice.below(4) == 0,
        restart_attempts: dice.below(4) as i32,
        budget,
        ..base.clone()
    };
    let mut w = World::new(cfg);
    let mut last = Vec::new();
    for _ in 0..steps {
        let actions = w.enabled();
        if actions.is_empty() {
            break;
        }
        // Faults have time to come late: mostly what happens is what would happen anyway.
        let calm: Vec<&Action> = actions.iter().filter(|a| !a.is_fault()).collect();
        let action = if calm.is_empty() || dice.below(5) == 0 {
            actions[dice.below(actions.len())].clone()
        } else {
            calm[dice.below(calm.len())].clone()
        };
        w.apply(&action);
        met.steps += 1;
        last.push(action.clone());
        if let Some(v) = w.violations.first() {
            let from = last.len().saturating_sub(number("REMOTE_TRACE").map_or(25, |n| n as usize));
            return Err(format!("{v}\nafter {} steps, the last of which are {:#?}", last.len(), &last[from..]));
        }
        taken.push((action, w.now, w.provider.instances.clone()));
    }
    // A drain may leave no node to go to; people then bring a node back.
    for node in &mut w.nodes {
        node.draining = false;
    }
    w.settle(|n| dice.below(n));
    if w.violations.is_empty() {
        w.check_quiet();
    }
    met.handovers += w.records.values().map(|r| r.handovers).sum::<u64>();
    met.restarts += w.records.values().map(|r| r.restarts).sum::<u64>();
    met.stale_refused += w.provider.refused_stale;
    met.stops += w.provider.stops;
    met.creates += w.provider.creates;
    met.stale_taken += w.met.stale_taken;
    met.strays += w.met.strays;
    met.held += w.met.held;
    met.waits_for_a_person += w.met.waits_for_a_person;
    met.restores += w.met.restores;
    met.recoveries += w.met.recoveries;
    met.taken_over += w.met.taken_over;
    met.refused_in_recovery += w.met.refused_in_recovery;
    met.rivals += w.met.rivals;
    met.displaced += w.met.displaced;
    met.take_overs += w.met.take_overs;
    met.voided += w.met.voided;
    met.told_by_former += w.met.told_by_former;
    let Some(violation) = w.violations.first() else { return Ok(taken) };
    Err(format!(
        "{violation}\nwith {:?}, after {:#?}\nand a quiet end",
        w.met,
        &last[last.len().saturating_sub(number("REMOTE_TRACE").map_or(25, |n| n as usize))..]
    ))
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|s| s.parse::<u64>().ok())
}

/// The same seeds at each run, so that it says something of the change. The seed of a failure is enough to replay it:
/// REMOTE_SEED=n. Others, and more of them: `cargo xtask model` draws a first one and prints it, REMOTE_SEED_FROM=n
/// REMOTE_SEEDS=100000.
fn seeds(few: u64) -> Vec<u64> {
    if let Some(seed) = number("REMOTE_SEED") {
        return vec![seed];
    }
    let from = number("REMOTE_SEED_FROM").unwrap_or(0);
    (from..from.saturating_add(number("REMOTE_SEEDS").unwrap_or(few))).collect()
}

fn walk(name: &str, few: u64, steps: usize, base: &Config, budget: fn(&mut Dice) -> Budget) -> (u64, Met) {
    let seeds = seeds(few);
    let mut met = Met::default();
    for seed in &seeds {
        if let Err(violation) = run(*seed, steps, base, budget, &mut met) {
            panic!("{name}, seed {seed} (REMOTE_SEED={seed}): {violation}");
        }
    }
    eprintln!("{name}: {} seeds from {} met {met:?}", seeds.len(), seeds[0]);
    (if seeds.len() as u64 >= few { seeds.len() as u64 } else { 0 }, met)
}

#[test]
fn invariants_hold_from_many_seeds() {
    let (n, met) = walk("usual", 600, 400, &Config::default(), usual);
    if n > 0 {
        assert!(
            met.handovers > n / 4 && met.creates > n && met.restarts > n / 10 && met.stops > n / 10,
            "the walks meet too little: {met:?}"
        );
        assert!(met.stale_refused > 0, "no stale call was ever tried: {met:?}");
    }
}

/// Servers on an older copy of their state, on none, on another cluster's; nodes on older and emptied directories;
/// with all other faults.
#[test]
fn a26_states_from_the_past_kill_double_and_forget_nothing_from_many_seeds() {
    let (n, met) = walk("past", 600, 500, &Config::default(), past);
    if n > 0 {
        let enough = met.restores > n / 2
            && met.recoveries > n / 4
            && met.taken_over > n / 4
            && met.held > 0
            && met.refused_in_recovery > 0;
        let copies = met.rivals > 0 && met.displaced > 0;
        assert!(enough && copies, "the walks meet too little: {met:?}");
    }
}

/// Servers take over from each other, at any moment and with whatever else goes wrong.
#[test]
fn several_servers_kill_double_and_forget_nothing_from_many_seeds() {
    let (n, met) = walk("servers", 400, 500, &Config::default(), servers);
    if n > 0 {
        let enough = met.take_overs > n / 2 && met.voided > 0 && met.told_by_former > n / 20;
        assert!(enough && met.handovers > n / 4, "the walks meet too little: {met:?}");
    }
}

/// What is promised of each kind of provider holds, and what is not promised is met: no level says less than it could.
#[test]
fn what_each_level_promises_holds_from_many_seeds() {
    let mut stale_taken = 0;
    for (name, _, base) in levels() {
        let (n, met) = walk(name, 120, 400, &base, doubtful);
        if n > 0 {
            assert!(base.keyed || met.waits_for_a_person > 0, "{name}: nothing was ever held for a person: {met:?}");
            assert!(base.seal || !base.keyed || met.strays > 0, "{name}: no create ever came after its stop: {met:?}");
        }
        assert!(!base.fenced || met.stale_taken == 0, "{name}: {met:?}");
        stale_taken += met.stale_taken;
    }
    assert!(stale_taken > 0 || number("REMOTE_SEED").is_some(), "no stale call ever took effect where none is refused");
}

/// Nothing may hang on the clocks of nodes and providers: the same walk with clocks that are days off is the same,
/// step by step.
#[test]
fn a35_wrong_clocks_change_nothing() {
    const DAY: i64 = 86_400_000_000_000;
    let mut met = Met::default();
    for seed in 0..60 {
        let right = run(seed, 400, &Config::default(), usual, &mut met)
            .unwrap_or_else(|violation| panic!("seed {seed}: {violation}"));
        for skew in [DAY, -DAY, 3_000_000_000] {
            let wrong = run(seed, 400, &Config { skew, ..Config::default() }, usual, &mut met)
                .unwrap_or_else(|violation| panic!("seed {seed}, skew {skew}: {violation}"));
            let first = right.iter().zip(&wrong).position(|(a, b)| a != b);
            assert_eq!(first, None, "seed {seed}, skew {skew}: the first step that differs");
            assert_eq!(right.len(), wrong.len(), "seed {seed}, skew {skew}");
        }
    }
    assert!(met.restarts > 0 && met.handovers > 0, "the walks meet too little: {met:?}");
}

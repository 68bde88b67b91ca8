//! Random walks from seeds on larger configurations, then quiet: I1, I3 and I4 at every step, I2 at the end.

use lifecycle::restart::mix;

use crate::world::{Action, Budget, Config, Instance, World};

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
    restarts: u64,
    stops: u64,
    creates: u64,
}

/// What happened at a step, when by the servers' clock, and what then was at the provider.
type Step = (Action, i64, Vec<Instance>);

/// One walk, with clocks that are wrong by `skew` nanoseconds and more.
fn run(seed: u64, skew: i64, met: &mut Met) -> Result<Vec<Step>, String> {
    let mut steps = Vec::new();
    let mut dice = Dice(seed);
    let budget = Budget {
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
    };
    let cfg = Config {
        nodes: 2 + dice.below(3),
        slots: 1 + dice.below(4) as u32,
        batch: dice.below(4) == 0,
        restart_attempts: dice.below(4) as i32,
        skew,
        budget,
        ..Config::default()
    };
    let mut w = World::new(cfg);
    for _ in 0..400 {
        let actions = w.enabled();
        if actions.is_empty() {
            break;
        }
        let action = actions[dice.below(actions.len())].clone();
        w.apply(&action);
        met.steps += 1;
        if let Some(v) = w.violations.first() {
            return Err(format!("{v}\nlast action {action:?}"));
        }
        steps.push((action, w.now, w.provider.instances.clone()));
    }
    met.handovers += w.records.values().map(|r| r.handovers).sum::<u64>();
    met.restarts += w.records.values().map(|r| r.restarts).sum::<u64>();
    met.stale_refused += w.provider.refused_stale;
    met.stops += w.provider.stops;
    met.creates += w.provider.creates;
    // A drain may leave no node to go to; people then bring a node back.
    for node in &mut w.nodes {
        node.draining = false;
    }
    w.settle(|n| dice.below(n));
    if w.violations.is_empty() {
        w.check_quiet();
    }
    w.violations.first().map_or(Ok(steps), |v| Err(v.clone()))
}

#[test]
fn invariants_hold_from_many_seeds() {
    // The seed of a failure is enough to replay it: REMOTE_SEED=n; a soak takes more of them: REMOTE_SEEDS=100000.
    let number = |name: &str| std::env::var(name).ok().and_then(|s| s.parse::<u64>().ok());
    let seeds: Vec<u64> = match number("REMOTE_SEED") {
        Some(seed) => vec![seed],
        None => (0..number("REMOTE_SEEDS").unwrap_or(600)).collect(),
    };
    let mut met = Met::default();
    for seed in &seeds {
        if let Err(violation) = run(*seed, 0, &mut met) {
            panic!("seed {seed}: {violation}");
        }
    }
    eprintln!("{} seeds met {met:?}", seeds.len());
    if seeds.len() > 100 {
        let n = seeds.len() as u64;
        assert!(
            met.handovers > n / 4 && met.creates > n && met.restarts > n / 10 && met.stops > n / 10,
            "the walks meet too little: {met:?}"
        );
        assert!(met.stale_refused > 0, "no stale call was ever tried: {met:?}");
    }
}

/// Nothing may hang on the clocks of nodes and providers: the same walk with clocks that are days off is the same, step by step.
#[test]
fn a35_wrong_clocks_change_nothing() {
    const DAY: i64 = 86_400_000_000_000;
    let mut met = Met::default();
    for seed in 0..60 {
        let right = run(seed, 0, &mut met).unwrap_or_else(|violation| panic!("seed {seed}: {violation}"));
        for skew in [DAY, -DAY, 3_000_000_000] {
            let wrong = run(seed, skew, &mut met).unwrap_or_else(|violation| panic!("seed {seed}, skew {skew}: {violation}"));
            let first = right.iter().zip(&wrong).position(|(a, b)| a != b);
            assert_eq!(first, None, "seed {seed}, skew {skew}: the first step that differs");
            assert_eq!(right.len(), wrong.len(), "seed {seed}, skew {skew}");
        }
    }
    assert!(met.restarts > 0 && met.handovers > 0, "the walks meet too little: {met:?}");
}

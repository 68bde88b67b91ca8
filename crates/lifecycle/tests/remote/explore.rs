//! Looks at the states that a small configuration can reach, at each once, by a fingerprint of 128 bits. Worlds that
//! wait to be looked at have most of their parts in common, and so many wait at most. A state that was looked at costs
//! some forty bytes. So the memory is bounded.

use std::{
    collections::{HashSet, VecDeque},
    fmt,
    hash::{BuildHasherDefault, Hasher},
    time::{Duration, Instant},
};

use lifecycle::restart::mix;

use crate::world::{Action, Budget, Config, Met, Rule, Violation, World};

/// What to look at.
pub(crate) struct Search {
    pub(crate) cfg: Config,
    /// So many states at most.
    pub(crate) states: usize,
    /// So many worlds wait at most, but for those of one depth-first descent.
    pub(crate) waiting: usize,
    /// Selects the states to continue from when not all can be looked at.
    pub(crate) seed: u64,
}

/// What was looked at.
#[derive(Debug, Default)]
pub(crate) struct Explored {
    pub(crate) states: usize,
    /// There are no others.
    pub(crate) all: bool,
    pub(crate) steps: u64,
    /// The longest way on which a state was reached first.
    pub(crate) deepest: u32,
    pub(crate) took: Duration,
    /// What all steps together have met.
    pub(crate) met: Met,
}

impl fmt::Display for Explored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = if self.all { "all" } else { "the first" };
        let rate = self.states as f64 / self.took.as_secs_f64().max(1e-9);
        write!(
            f,
            "{all} {} states in {:.1} s ({rate:.0} a second), {} steps, ways of up to {}",
            self.states,
            self.took.as_secs_f64(),
            self.steps,
            self.deepest
        )
    }
}

/// A rule that was broken, and what has led there.
pub(crate) struct Broken {
    pub(crate) violation: Violation,
    trace: Vec<Action>,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\nafter {} steps: {:#?}", self.violation, self.trace.len(), self.trace)
    }
}

/// Fingerprints are mixed already.
#[derive(Default)]
struct AsItIs(u64);

impl Hasher for AsItIs {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.0 ^= u64::from_le_bytes(word);
        }
    }
}

/// How a state was reached first: from which one, by which of the actions that were enabled there.
#[derive(Clone, Copy)]
struct Way {
    from: u32,
    action: u16,
    depth: u16,
}

struct Explorer {
    search: Search,
    seen: HashSet<u128, BuildHasherDefault<AsItIs>>,
    ways: Vec<Way>,
    waiting: VecDeque<(World, u32)>,
    /// So many of the last ones follow from the state that was looked at last.
    following: usize,
    dice: u64,
    found: Explored,
}

/// Looks at states until `enough` has been found, all or as many as the search allows. Breadth first, so that a
/// violation comes with a shortest way. Once half of the states or of the worlds are spent, it goes from random ones
/// down to where nothing new follows, to reach long ways, and depth first while no more worlds may wait. A longer way
/// is shortened.
#[expect(clippy::disallowed_methods, reason = "how long it takes is printed and decides nothing")]
pub(crate) fn explore(search: Search, enough: impl Fn(&Explored) -> bool) -> Result<Explored, Box<Broken>> {
    let began = Instant::now();
    let start = World::new(search.cfg.clone());
    let mut e = Explorer {
        dice: search.seed,
        seen: HashSet::default(),
        ways: vec![Way { from: 0, action: 0, depth: 0 }],
        waiting: VecDeque::new(),
        following: 0,
        found: Explored::default(),
        search,
    };
    e.seen.insert(start.fingerprint());
    e.waiting.push_back((start, 0));
    loop {
        let Some((world, at)) = e.next() else {
            e.found.all = true;
            break;
        };
        e.look(&world, at)?;
        if e.seen.len() >= e.search.states || enough(&e.found) {
            break;
        }
    }
    (e.found.states, e.found.took) = (e.seen.len(), began.elapsed());
    Ok(e.found)
}

impl Explorer {
    fn next(&mut self) -> Option<(World, u32)> {
        let n = self.waiting.len();
        if n >= self.search.waiting {
            return self.waiting.pop_back();
        }
        if n == 0 || (self.seen.len() < self.search.states / 2 && n < self.search.waiting / 2) {
            return self.waiting.pop_front();
        }
        self.dice = mix(self.dice);
        let dice = usize::try_from(self.dice >> 1).expect("an index");
        let at = if self.following > 0 { n - 1 - dice % self.following } else { dice % n };
        self.waiting.swap_remove_back(at)
    }

    fn look(&mut self, world: &World, at: u32) -> Result<(), Box<Broken>> {
        let actions = world.enabled_in_each_order();
        if world.is_quiet(&actions) {
            let mut quiet = world.clone();
            quiet.check_quiet();
            if let Some(violation) = quiet.violations.into_iter().next() {
                return Err(self.broken(violation, at, None));
            }
        }
        let depth = self.ways[at as usize].depth.saturating_add(1);
        let before = self.waiting.len();
        for (i, action) in actions.iter().enumerate() {
            let mut next = world.clone();
            next.met = Met { restores: next.met.restores, lost: next.met.lost, ..Met::default() };
            next.apply(action);
            self.found.steps += 1;
            self.found.met.add(&next.met);
            if let Some(violation) = next.violations.first().cloned() {
                return Err(self.broken(violation, at, Some(action.clone())));
            }
            if self.seen.insert(next.fingerprint()) {
                self.found.deepest = self.found.deepest.max(depth.into());
                let action = u16::try_from(i).expect("few actions are enabled");
                self.ways.push(Way { from: at, action, depth });
                let way = u32::try_from(self.ways.len() - 1).expect("states are fewer");
                self.waiting.push_back((next, way));
            }
        }
        self.following = self.waiting.len() - before;
        Ok(())
    }

    fn broken(&self, violation: Violation, mut at: u32, last: Option<Action>) -> Box<Broken> {
        let mut choices = Vec::new();
        while at != 0 {
            let way = self.ways[at as usize];
            choices.push(way.action);
            at = way.from;
        }
        let mut world = World::new(self.search.cfg.clone());
        let mut trace = Vec::new();
        for choice in choices.into_iter().rev() {
            let action = world.enabled_in_each_order().swap_remove(choice.into());
            world.apply(&action);
            trace.push(action);
        }
        trace.extend(last);
        let trace = shortened(&self.search.cfg, trace, violation.rule);
        Box::new(Broken { violation, trace })
    }
}

/// Leaves out whatever the violation does not need.
fn shortened(cfg: &Config, mut trace: Vec<Action>, rule: Rule) -> Vec<Action> {
    loop {
        let shorter = (0..trace.len()).rev().find_map(|i| {
            let without: Vec<Action> = trace[..i].iter().chain(&trace[i + 1..]).cloned().collect();
            leads_to(cfg, &without, rule).then_some(without)
        });
        match shorter {
            Some(shorter) => trace = shorter,
            None => return trace,
        }
    }
}

/// Whether these actions can be taken, one after the other, and break the rule.
fn leads_to(cfg: &Config, trace: &[Action], rule: Rule) -> bool {
    let mut world = World::new(cfg.clone());
    for action in trace {
        if !world.violations.is_empty() || !world.enabled_in_each_order().contains(action) {
            return false;
        }
        world.apply(action);
    }
    if world.violations.is_empty() && world.is_quiet(&world.enabled_in_each_order()) {
        world.check_quiet();
    }
    world.violations.iter().any(|violation| violation.rule == rule)
}

/// Every state that can be reached, up to names. `by_names`: the search continues from each of the worlds that differ
/// in names alone.
fn reached(cfg: Config, by_names: bool) -> (usize, HashSet<u128>) {
    let of = |world: &World| if by_names { world.fingerprint_by_names() } else { world.fingerprint() };
    let start = World::new(cfg);
    let (mut seen, mut states) = (HashSet::from([of(&start)]), HashSet::from([start.fingerprint()]));
    let mut waiting = vec![start];
    while let Some(world) = waiting.pop() {
        for action in world.enabled_in_each_order() {
            let mut next = world.clone();
            next.met = Met { restores: next.met.restores, lost: next.met.lost, ..Met::default() };
            next.apply(&action);
            if seen.insert(of(&next)) {
                states.insert(next.fingerprint());
                waiting.push(next);
            }
        }
    }
    (seen.len(), states)
}

/// Whatever can be reached can be reached from one of the worlds that differ in names alone, up to names.
#[test]
fn interchangeable_nodes_and_slots_hide_no_state() {
    let one = |budget: Budget| Config { budget, placements: 2, ..Config::default() };
    let two = |budget: Budget| Config { slots: 2, placements: 1, ..one(budget) };
    let none = Budget::default;
    for (name, cfg, fewer) in [
        ("crash", one(Budget { crashes: 1, ..none() }), 1.5),
        ("drain", one(Budget { drains: 1, ..none() }), 1.5),
        ("restore", Config { placements: 1, ..one(Budget { restores: 1, ..none() }) }, 1.2),
        ("take-over", Config { placements: 1, ..one(Budget { take_overs: 1, slow: 1, ..none() }) }, 1.2),
        ("two slots, one node", Config { nodes: 1, ..two(Budget { exits: 1, ..none() }) }, 1.5),
        ("two slots", two(none()), 2.0),
    ] {
        let (all, by_names) = reached(cfg.clone(), true);
        let (some, up_to_names) = reached(cfg, false);
        let missing = by_names.difference(&up_to_names).count();
        assert_eq!((missing, by_names.len()), (0, up_to_names.len()), "{name}: of {all} states");
        eprintln!("{name}: {all} states, {some} up to names");
        assert!(all as f64 > some as f64 * fewer, "{name}: {some} of {all} states differ in more than names");
    }
}

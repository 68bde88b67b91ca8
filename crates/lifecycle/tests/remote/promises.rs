//! What people read of the levels of a guarantee is what the model shows. Each promise is looked for in every state of
//! small configurations: where it can be broken, a way to that is met; where none is met, there is none. The table in
//! docs/concepts/remote-tasks.md and the limits that the product names say the same.

use std::fmt;

use lifecycle::remote::guarantee;
use model::remote::Guarantee;

use crate::{
    explore::{Search, explore},
    levels::levels,
    model_check::number,
    world::{Budget, Config, Met},
};

/// Where people read it.
const PAGE: &str = include_str!("../../../../docs/concepts/remote-tasks.md");

/// When two instances may live in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Two {
    Never,
    /// Only when a person has said that one is gone.
    AfterAWord,
    Possible,
}

/// What can be met with a runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shown {
    two: Two,
    /// A call of a replaced manager takes effect.
    late: bool,
    /// A slot waits, as nobody can tell what a create has done.
    waits: bool,
    /// The code of an end is lost.
    code: bool,
    /// Instances remain whose end was believed, and whether a sweep finds them.
    left: Option<bool>,
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let two = match self.two {
            Two::Never => "never",
            Two::AfterAWord => "after a wrong `remote gone`",
            Two::Possible => "possible",
        };
        let left = match self.left {
            None => "nothing",
            Some(true) => "the sweep finds it",
            Some(false) => "no sweep finds it",
        };
        let late = if self.late { "may take effect" } else { "has no effect" };
        let waits = if self.waits { "held when in doubt" } else { "asked again" };
        let code = if self.code { "may be lost" } else { "exact" };
        write!(f, "{two} | {late} | {waits} | {code} | {left}")
    }
}

/// Whether it is met in any state, with one of these faults.
fn is_met(cfg: &Config, faults: &[Budget], is: fn(&Met) -> bool) -> bool {
    faults.iter().any(|budget| {
        let cfg = Config { budget: *budget, slots: 1, placements: 2, restart_attempts: 1, ..cfg.clone() };
        let search = Search { cfg, states: 400_000, waiting: 50_000, seed: 1 };
        let found = explore(search, |found| is(&found.met)).unwrap_or_else(|broken| panic!("{budget:?}: {broken}"));
        let met = is(&found.met);
        assert!(met || found.all, "{budget:?}: neither met nor shown to be impossible in {found}");
        met
    })
}

/// What the model shows of a runtime.
fn shown(cfg: &Config) -> Shown {
    let none = Budget::default;
    // A manager dies with its calls on their way, or is frozen in one for long.
    let lost = |change: Budget| {
        [Budget { crashes: 1, ..change }, Budget { partitions: 1, waits: u32::from(cfg.frozen), ..change }]
    };
    let update = |gones| lost(Budget { updates: 1, gones, ..none() });
    let stop = |gones| lost(Budget { stops: 1, gones, ..none() });
    let blind = u32::from(!cfg.keyed && !cfg.find);
    let forgets = u32::from(cfg.forgetful || cfg.plain);
    let two = if is_met(cfg, &update(0), |met| met.doubled > 0) {
        Two::Possible
    } else if blind > 0 && is_met(cfg, &update(1), |met| met.doubled > 0) {
        Two::AfterAWord
    } else {
        Two::Never
    };
    let crash = Budget { crashes: 1, ..none() };
    Shown {
        two,
        late: is_met(cfg, &stop(0), |met| met.stale_taken > 0),
        waits: is_met(cfg, &[crash], |met| met.unknown > 0),
        code: is_met(cfg, &[Budget { exits: 1, forgets, ..crash }], |met| met.codes_lost > 0),
        left: is_met(cfg, &stop(blind), |met| met.strays > 0)
            .then(|| is_met(cfg, &stop(blind), |met| met.strays_found > 0)),
    }
}

/// The same by what the product says of a runtime.
fn said(cfg: &Config, g: &Guarantee) -> Shown {
    let says = |text: &str| g.limits.iter().any(|limit| limit.contains(text));
    let left = says("leaves an instance") || says("cannot refuse it");
    Shown {
        two: match g.exactly_one {
            true => Two::Never,
            false if !cfg.keyed && !cfg.find => Two::AfterAWord,
            false => Two::Possible,
        },
        late: says("cannot refuse it"),
        waits: says("after a create whose answer was lost"),
        code: says("exit code"),
        left: left.then(|| !says("no sweep finds") && !says("not found by the sweep")),
    }
}

/// That calls end with the lease is an assumption about a node, which no runtime can declare.
fn runtimes() -> impl Iterator<Item = (&'static str, Config)> {
    levels().into_iter().filter(|(_, _, cfg)| cfg.frozen || cfg.stale).map(|(name, _, cfg)| (name, cfg))
}

#[test]
fn the_table_of_the_page_is_what_the_product_says() {
    for (name, cfg) in runtimes() {
        let g = guarantee(Some(&cfg.caps()));
        let row = format!("| {name} | {} | {} |", g.level, said(&cfg, &g));
        assert!(PAGE.lines().any(|line| line == row), "docs/concepts/remote-tasks.md has no line {row}");
    }
}

/// Every runtime in `cargo xtask model` and in CI, which set REMOTE_STATES. Each test run looks at the best of them and
/// at one that lacks what the best one has, as the states are many.
#[test]
fn what_people_read_of_the_levels_is_what_the_model_shows() {
    let all = number("REMOTE_STATES").is_some();
    let mut wrong = Vec::new();
    for (name, cfg) in
        runtimes().filter(|(name, _)| all || ["keys, seals and epochs", "keys and epochs"].contains(name))
    {
        let g = guarantee(Some(&cfg.caps()));
        let (shown, said) = (shown(&cfg), said(&cfg, &g));
        eprintln!("{name}, {}: {shown}", g.level);
        if shown != said {
            wrong.push(format!("{name}: the model shows {shown:?}, the product says {said:?} by {g:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

//! `cargo xtask differ`: the same jobs and the same events on a stock Nomad and on Drover, both asked over the HTTP API, and what a client sees of
//! them compared. Real agents: on each system one server and nine nodes, three of them for everybody, the others for one scenario at a time.
//!
//! A difference is mended, or it stands on one of two lists: `lists/exceptions.rs` for what is meant, with the reason, `lists/open.rs` for known
//! defects. An entry that no longer differs fails the run, and so does a difference on neither list.

mod health;
mod job;
mod lists;
mod normal;
mod observe;
mod play;
mod random;
mod scenario;
mod scenarios;
mod settle;
mod system;
mod tree;

use std::{
    collections::BTreeSet,
    sync::{Mutex, PoisonError},
    time::{Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result, bail, ensure};

use self::{
    lists::Known,
    scenario::{Place, Scenario},
    system::{Kind, LANES, SHARED, System},
    tree::Difference,
};
use crate::{packages, peer, process::Run, workspace};

/// So many scenarios live on the shared nodes at once.
const AT_ONCE: usize = 8;

/// How one scenario went.
struct Played {
    name: String,
    seconds: f64,
    outcome: Result<Vec<Difference>, String>,
}

impl Played {
    /// Broken, or with a difference on neither list.
    fn is_wrong(&self) -> bool {
        self.outcome.as_ref().map_or(true, |found| found.iter().any(|d| explained(&self.name, d).is_none()))
    }
}

/// So often a scenario that fails is played again. Both systems have races of their own: who is first differs with the load of the machine, and is no
/// difference between the two unless it shows each time.
const REPLAYS: usize = 2;

/// So many random scenarios a usual run has, and a long one.
const RANDOM: u64 = 16;
const LONG: u64 = 2_000;

/// What is to be played.
struct Chosen {
    scenarios: Vec<Scenario>,
    /// All that are written by hand are among them: the lists can be judged.
    all: bool,
}

/// Reads `[--list] [--long] [--random N] [--seed S] [SCENARIO…]`; none when the list was asked for.
fn choose(args: &[&str]) -> Result<Option<Chosen>> {
    let mut wanted = Vec::new();
    let mut random = None;
    // Fresh each time, unless one is given.
    let mut seed = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs() % 1_000_000;
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut number = || -> Result<u64> {
            let text = args.next().copied().unwrap_or_default();
            text.parse().with_context(|| format!("{arg} takes a number, not {text:?}"))
        };
        match *arg {
            "--list" => return Ok(None),
            "--long" => random = Some(LONG),
            "--random" => random = Some(number()?),
            "--seed" => seed = number()?,
            flag if flag.starts_with('-') => {
                bail!("differ does not know {flag:?}; it takes --list, --long, --random N, --seed S and names of scenarios")
            }
            name => wanted.push(name),
        }
    }
    let by_hand = scenarios::all();
    let mut chosen = Vec::new();
    for name in &wanted {
        let before = chosen.len();
        chosen.extend(by_hand.iter().filter(|s| s.name.starts_with(name)).cloned());
        chosen.extend(random::named(name));
        ensure!(chosen.len() > before, "no scenario is called {name:?}; `--list` names them");
    }
    let all = wanted.is_empty();
    if all {
        chosen = by_hand;
    }
    let random = random.unwrap_or(if all { RANDOM } else { 0 });
    if random > 0 {
        println!("differ: {random} random scenarios of seed {seed}; `cargo xtask differ random-{seed}-N` plays one of them again");
    }
    chosen.extend((0..random).map(|n| random::scenario(seed, n)));
    Ok(Some(Chosen { scenarios: chosen, all }))
}

/// `differ [--list] [--long] [--random N] [--seed S] [SCENARIO…]`.
pub(crate) fn run(args: &[&str]) -> Result<()> {
    let Some(Chosen { scenarios: chosen, all }) = choose(args)? else {
        scenarios::all().iter().for_each(|s| println!("{}", s.name));
        return Ok(());
    };
    ensure!(packages::is_root(), "a stock Nomad runs tasks as root only");
    let stock = peer::nomad_cached(&peer::NOMAD_1_9)?;
    Run::new("cargo", ["build", "-p", "cli"]).dir(workspace::root()).run()?;
    let begun = Instant::now();
    let (stock, ours) = std::thread::scope(|scope| {
        let other = scope.spawn(|| System::start(Kind::Stock, &stock));
        let ours = System::start(Kind::Drover, &stock);
        (other.join(), ours)
    });
    let stock = stock.map_err(|_| anyhow::anyhow!("starting the stock panicked"))??;
    let ours = ours?;
    eprintln!("differ: both systems are up after {:.0} s; {} scenarios", begun.elapsed().as_secs_f64(), chosen.len());
    let mut played = play_all(&chosen, [&stock, &ours]);
    for _ in 0..REPLAYS {
        let again: Vec<Scenario> = chosen.iter().filter(|s| played.iter().any(|p| p.name == s.name && p.is_wrong())).cloned().collect();
        if again.is_empty() {
            break;
        }
        eprintln!("differ: {} scenarios are played again, with the machine to themselves", again.len());
        let second = play_all(&again, [&stock, &ours]);
        played.retain(|p| again.iter().all(|s| s.name != p.name));
        played.extend(second);
    }
    let verdict = judge(&played, all);
    println!("differ: {} scenarios in {:.0} s", played.len(), begun.elapsed().as_secs_f64());
    verdict
}

/// Plays them, many at once.
fn play_all(chosen: &[Scenario], systems: [&System; 2]) -> Vec<Played> {
    let played = Mutex::new(Vec::new());
    let queue = |place: Place| Mutex::new(chosen.iter().filter(|s| s.place == place).collect::<std::collections::VecDeque<_>>());
    let (shared, nodes, alone) = (queue(Place::Shared), queue(Place::Nodes), queue(Place::Alone));
    let work = |queue: &Mutex<std::collections::VecDeque<&Scenario>>, lane: &str| {
        loop {
            let next = queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            let Some(scenario) = next else { return };
            let begun = Instant::now();
            let outcome = play::play(scenario, lane, systems).map_err(|e| format!("{e:#}"));
            let one = Played { name: scenario.name.clone(), seconds: begun.elapsed().as_secs_f64(), outcome };
            print(&one);
            played.lock().unwrap_or_else(PoisonError::into_inner).push(one);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| work(&shared, SHARED));
        }
        for lane in LANES {
            let (work, nodes) = (&work, &nodes);
            scope.spawn(move || work(nodes, lane));
        }
    });
    work(&alone, SHARED);
    played.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// The entry that explains a difference.
fn explained(scenario: &str, difference: &Difference) -> Option<(&'static str, &'static Known)> {
    let find = |list: &'static [Known]| list.iter().find(|known| known.explains(scenario, difference));
    find(lists::exceptions()).map(|k| ("exception", k)).or_else(|| find(lists::open()).map(|k| ("OPEN", k)))
}

/// One scenario's result, as it comes.
fn print(played: &Played) {
    let Played { name, seconds, outcome } = played;
    let mut text = match outcome {
        Err(why) => format!("differ {name}: BROKEN after {seconds:.0} s: {why}\n"),
        Ok(found) if found.is_empty() => format!("differ {name}: the same ({seconds:.0} s)\n"),
        Ok(found) => {
            let unexplained = found.iter().filter(|d| explained(name, d).is_none()).count();
            format!("differ {name}: {} differences, {unexplained} of them unexplained ({seconds:.0} s)\n", found.len())
        }
    };
    for difference in outcome.iter().flatten().filter(|d| explained(name, d).is_none()) {
        let side = |side: &Option<String>| side.clone().unwrap_or_else(|| "(nothing)".into());
        text.push_str(&format!(
            "  {}\n      stock: {}\n      ours:  {}\n",
            difference.path,
            side(&difference.stock),
            side(&difference.ours)
        ));
    }
    print!("{text}");
}

/// Whether the run passes. After all scenarios the lists must be true, too.
fn judge(played: &[Played], all: bool) -> Result<()> {
    let (mut used, mut wrong, mut open) = (BTreeSet::new(), Vec::new(), BTreeSet::new());
    for one in played {
        match &one.outcome {
            Err(why) => wrong.push(format!("{}: {why}", one.name)),
            Ok(found) => {
                for difference in found {
                    match explained(&one.name, difference) {
                        Some((list, known)) => {
                            used.insert(known.label());
                            if list == "OPEN" {
                                open.insert(format!("{}: {}", known.label(), known.why));
                            }
                        }
                        None => wrong.push(format!("{}: {}", one.name, difference.path)),
                    }
                }
            }
        }
    }
    for known in &open {
        println!("differ OPEN DEFECT: {known}");
    }
    if all {
        let unused = |list: &'static [Known]| {
            list.iter().filter(|k| k.always).map(Known::label).filter(|label| !used.contains(label)).collect::<Vec<_>>()
        };
        wrong.extend(
            unused(lists::exceptions()).iter().map(|label| format!("an exception, but nothing differs (take it off the list): {label}")),
        );
        for label in unused(lists::open()) {
            println!("differ: MENDED, it seems (take it off the list of open defects): {label}");
        }
    }
    ensure!(wrong.is_empty(), "{} unexplained:\n  {}", wrong.len(), wrong.join("\n  "));
    Ok(())
}

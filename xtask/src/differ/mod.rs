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
mod scenario;
mod scenarios;
mod settle;
mod system;
mod tree;

use std::{
    collections::BTreeSet,
    sync::{Mutex, PoisonError},
    time::Instant,
};

use anyhow::{Result, bail, ensure};

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

/// `differ [--list] [SCENARIO…]`.
pub(crate) fn run(args: &[&str]) -> Result<()> {
    let mut wanted = Vec::new();
    for arg in args {
        match *arg {
            "--list" => {
                scenarios::all().iter().for_each(|s| println!("{}", s.name));
                return Ok(());
            }
            flag if flag.starts_with('-') => bail!("differ does not know {flag:?}; it takes --list and names of scenarios"),
            name => wanted.push(name),
        }
    }
    ensure!(packages::is_root(), "a stock Nomad runs tasks as root only");
    let all = scenarios::all();
    for name in &wanted {
        ensure!(all.iter().any(|s| s.name.starts_with(name)), "no scenario is called {name:?}; `--list` names them");
    }
    let chosen: Vec<Scenario> =
        all.into_iter().filter(|s| wanted.is_empty() || wanted.iter().any(|name| s.name.starts_with(name))).collect();
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
    let played = play_all(&chosen, [&stock, &ours]);
    let verdict = judge(&played, wanted.is_empty());
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
        let unused = lists::exceptions().iter().chain(lists::open()).map(Known::label).filter(|label| !used.contains(label));
        wrong.extend(unused.map(|label| format!("listed, but nothing differs there (take it off the list): {label}")));
    }
    ensure!(wrong.is_empty(), "{} unexplained:\n  {}", wrong.len(), wrong.join("\n  "));
    Ok(())
}

//! `cargo xtask differ`: the same jobs and the same events on a stock Nomad and on Drover, both asked over the HTTP
//! API, and what a client sees of them compared. Real agents: on each system one server and nine nodes, three of them
//! for everybody, the others for one scenario at a time.
//!
//! A difference is mended, or it stands in `lists/exceptions.rs` with the reason why ours is better. An entry that no
//! longer differs fails the run, and so does a difference that is not on the list.

#[cfg(test)]
mod blocks;
mod health;
mod job;
mod lists;
mod normal;
mod observe;
mod placement;
mod play;
mod played;
mod random;
mod scenario;
mod scenarios;
mod settle;
mod system;
mod tree;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result, bail, ensure};

use self::{
    lists::Known,
    played::Played,
    scenario::{Place, Scenario},
    system::{Kind, LANES, SHARED, System},
};
use crate::{builds, ends, packages, peer};

/// So many scenarios live on the shared nodes at once.
const AT_ONCE: usize = 8;

/// So often a scenario that fails is played again. Both systems have races of their own: who is first differs with the
/// load of the machine, and is no difference between the two unless it shows each time.
const REPLAYS: usize = 2;

/// So many random scenarios a usual run has, and a long one.
const RANDOM: u64 = 16;
const LONG: u64 = 2_000;
/// A long run has rounds of so many, each of the next seed and on systems of its own: what a round leaves behind is not
/// before the next one.
const ROUND: u64 = 100;
/// Of an entry of the lists for many scenarios so many are played again where none has needed it: all that come from a
/// seed in a usual run, and some more.
const PLAYED_AGAIN: usize = 24;

/// What is to be played.
struct Chosen {
    /// One round after the other.
    rounds: Vec<Vec<Scenario>>,
    /// All that are written by hand are among them: the lists can be judged.
    all: bool,
    /// Cases of placement: these, by the beginning of their names; none at all when there are scenarios and no case was
    /// named.
    cases: Option<Vec<String>>,
    /// The run ends after so many minutes.
    minutes: Option<u64>,
}

/// Reads `[--list] [--long] [--random N] [--seed S] [--minutes M] [SCENARIO…]`; none when the list was asked for.
fn choose(args: &[&str]) -> Result<Option<Chosen>> {
    let mut wanted = Vec::new();
    let (mut random, mut minutes) = (None, None);
    let mut long = false;
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
            "--long" => long = true,
            "--random" => random = Some(number()?),
            "--seed" => seed = number()?,
            "--minutes" => minutes = Some(number()?),
            flag if flag.starts_with('-') => {
                bail!(
                    "differ does not know {flag:?}; it takes --list, --long, --random N, --seed S, --minutes M and \
                        names of scenarios"
                )
            }
            name => wanted.push(name),
        }
    }
    let by_hand = scenarios::all();
    let (mut chosen, mut cases) = (Vec::new(), Vec::new());
    for name in &wanted {
        let before = chosen.len();
        chosen.extend(by_hand.iter().filter(|s| s.name.starts_with(name)).cloned());
        chosen.extend(random::named(name).filter(|dice| by_hand.iter().all(|s| s.name != dice.name)));
        if placement::names().iter().any(|case| case.starts_with(name)) {
            cases.push((*name).to_owned());
            continue;
        }
        ensure!(chosen.len() > before, "no scenario is called {name:?}; `--list` names them");
    }
    if long {
        let random = random.unwrap_or(LONG);
        let seeds = seed..seed + random.div_ceil(ROUND);
        println!(
            "differ: {random} random scenarios of the seeds {seeds:?}; `cargo xtask differ random-SEED-N` plays one \
                of them again"
        );
        let round = |seed: u64| {
            let before = (seed - seeds.start) * ROUND;
            (0..ROUND.min(random - before)).map(|n| random::scenario(seed, n)).collect::<Vec<_>>()
        };
        let mut rounds: Vec<_> = seeds.clone().map(round).collect();
        if let Some(first) = rounds.first_mut() {
            first.extend(chosen);
        }
        return Ok(Some(Chosen { rounds, all: false, cases: (!cases.is_empty()).then_some(cases), minutes }));
    }
    let all = wanted.is_empty();
    if all {
        chosen = by_hand;
    }
    let random = random.unwrap_or(if all { RANDOM } else { 0 });
    if random > 0 {
        println!(
            "differ: {random} random scenarios of seed {seed}; `cargo xtask differ random-{seed}-N` plays one of \
                them again"
        );
    }
    chosen.extend((0..random).map(|n| random::scenario(seed, n)));
    Ok(Some(Chosen { rounds: vec![chosen], all, cases: (all || !cases.is_empty()).then_some(cases), minutes }))
}

/// `differ [--list] [--long] [--random N] [--seed S] [--minutes M] [SCENARIO…]`.
pub(crate) fn run(args: &[&str]) -> Result<()> {
    let Some(Chosen { rounds, all, cases, minutes }) = choose(args)? else {
        scenarios::all().iter().for_each(|s| println!("{}", s.name));
        placement::names().iter().for_each(|name| println!("{name}"));
        return Ok(());
    };
    ensure!(packages::is_root(), "a stock Nomad runs tasks as root only");
    let stock = peer::nomad_cached(&peer::NOMAD_1_9)?;
    builds::build(&["drover"])?;
    let time = minutes.map(|minutes| Duration::from_secs(minutes.saturating_mul(60)));
    ends::watch(time, "differ begins no further scenario, and those under way may end")?;
    let begun = Instant::now();
    let mut played = Vec::new();
    if let Some(cases) = cases {
        let cases: Vec<&str> = cases.iter().map(String::as_str).collect();
        played = placement::play(&stock, &cases).context("comparing placements")?;
        played.iter().for_each(print);
        for _ in 0..REPLAYS {
            let wrong = played.iter().filter(|one| one.is_wrong());
            let again: Vec<String> = wrong.map(|one| one.name.clone()).collect();
            if again.is_empty() || ends::asked() {
                break;
            }
            eprintln!("differ: {} cases of placement are played again", again.len());
            let again: Vec<&str> = again.iter().map(String::as_str).collect();
            let second = placement::play(&stock, &again).context("comparing placements")?;
            second.iter().for_each(print);
            replace(&mut played, second);
        }
        println!("differ: {} cases of placement in {:.0} s", played.len(), begun.elapsed().as_secs_f64());
    }
    let chosen: usize = played.len() + rounds.iter().map(Vec::len).sum::<usize>();
    let (mut broken, mut used) = (Ok(()), BTreeSet::new());
    used.extend(labels(&played));
    for (n, round) in rounds.iter().filter(|round| !round.is_empty()).enumerate() {
        if ends::asked() {
            break;
        }
        match play_round(round, &stock, all, &mut used).with_context(|| format!("round {}", n + 1)) {
            Ok(more) => played.extend(more),
            Err(error) => {
                broken = Err(error);
                break;
            }
        }
        if rounds.len() > 1 {
            summary(&played, chosen, begun.elapsed());
        }
    }
    // What was not played says nothing of the list.
    let whole = played.len() == chosen;
    let verdict = judge(&played, (all && whole).then_some(&used));
    unneeded(&played);
    summary(&played, chosen, begun.elapsed());
    verdict.and(broken)?;
    ensure!(whole || !all, "the run has ended before all scenarios were played");
    Ok(())
}

/// Starts the two systems, again when something on the machine was in the way.
fn start(stock: &Path) -> Result<[System; 2]> {
    system::started(|| {
        std::thread::scope(|scope| {
            let other = scope.spawn(|| System::start(Kind::Stock, stock));
            let ours = System::start(Kind::Drover, stock);
            let theirs = other.join().map_err(|_| anyhow::anyhow!("starting the stock panicked"))??;
            Ok([theirs, ours?])
        })
    })
}

/// What was played again stands for what was played before.
fn replace(played: &mut Vec<Played>, again: Vec<Played>) {
    played.retain(|p| again.iter().all(|s| s.name != p.name));
    played.extend(again);
}

/// The entries of the lists that these have needed.
fn labels(played: &[Played]) -> BTreeSet<String> {
    let found = |one: &Played| {
        let all = one.outcome.as_deref().unwrap_or_default();
        all.iter().filter_map(|d| lists::explain(&one.name, all, d)).map(Known::label).collect::<Vec<_>>()
    };
    played.iter().flat_map(found).collect()
}

/// Plays scenarios on systems that are started for them, and those that fail again; with `all` also those in which an
/// entry of the lists is always needed, and was not. `used` gets the entries that any of it has needed.
fn play_round(chosen: &[Scenario], stock: &Path, all: bool, used: &mut BTreeSet<String>) -> Result<Vec<Played>> {
    let begun = Instant::now();
    let [theirs, ours] = start(stock)?;
    eprintln!("differ: both systems are up after {:.0} s; {} scenarios", begun.elapsed().as_secs_f64(), chosen.len());
    let mut played = play_all(chosen, [&theirs, &ours], 0);
    for time in 1..=REPLAYS {
        used.extend(labels(&played));
        let unused: Vec<&Known> = lists::all().filter(|k| all && k.always && !used.contains(&k.label())).collect();
        let wrong = |s: &Scenario| played.iter().any(|p| p.name == s.name && p.is_wrong());
        // Of an entry for many scenarios a few are enough.
        let missed: BTreeSet<&str> = unused
            .iter()
            .flat_map(|k| chosen.iter().filter(|s| k.is_of(&s.name)).take(PLAYED_AGAIN))
            .map(|s| &*s.name)
            .collect();
        let again: Vec<Scenario> = chosen.iter().filter(|s| wrong(s) || missed.contains(&*s.name)).cloned().collect();
        if again.is_empty() || ends::asked() {
            break;
        }
        eprintln!("differ: {} scenarios are played again, with the machine to themselves", again.len());
        let second = play_all(&again, [&theirs, &ours], time);
        replace(&mut played, second);
    }
    used.extend(labels(&played));
    Ok(played)
}

/// How all went, and how often each entry of the lists was needed: one that is needed nowhere, or everywhere, is worth
/// a look.
fn summary(played: &[Played], chosen: usize, took: Duration) {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let mut needed: BTreeMap<String, (&str, BTreeSet<&str>)> = BTreeMap::new();
    for one in played {
        let kind = match &one.outcome {
            Err(_) => "broken",
            Ok(found) if found.is_empty() => "the same",
            Ok(_) if one.is_wrong() => "different",
            Ok(_) => "different as listed",
        };
        *counts.entry(kind).or_default() += 1;
        let found = one.outcome.as_deref().unwrap_or_default();
        for known in found.iter().filter_map(|d| lists::explain(&one.name, found, d)) {
            needed.entry(known.label()).or_insert_with(|| (known.why, BTreeSet::new())).1.insert(&one.name);
        }
    }
    for (label, (why, scenarios)) in &needed {
        let some: Vec<&str> = scenarios.iter().take(6).copied().collect();
        let more = if scenarios.len() > 6 { ", …" } else { "" };
        println!("differ: needed in {}: {label} ({}{more}): {why}", scenarios.len(), some.join(", "));
    }
    let counts: Vec<String> = counts.iter().map(|(kind, n)| format!("{n} {kind}")).collect();
    let of = if played.len() == chosen { String::new() } else { format!(" of {chosen}") };
    println!("differ: {}{of} scenarios in {:.0} s: {}", played.len(), took.as_secs_f64(), counts.join(", "));
}

/// Entries for what is chance that nothing has needed this time. One that is never needed is to be taken off the list.
fn unneeded(played: &[Played]) {
    let mut needed = BTreeSet::new();
    for (one, found) in played.iter().filter_map(|one| Some((one, one.outcome.as_ref().ok()?))) {
        needed.extend(found.iter().filter_map(|d| lists::explain(&one.name, found, d)).map(Known::label));
    }
    for label in lists::all().filter(|known| !known.always).map(Known::label).filter(|label| !needed.contains(label)) {
        println!("differ: not needed this time: {label}");
    }
}

/// Plays them, many at once.
fn play_all(chosen: &[Scenario], systems: [&System; 2], time: usize) -> Vec<Played> {
    let played = Mutex::new(Vec::new());
    let queue = |place: Place| {
        Mutex::new(chosen.iter().filter(|s| s.place == place).collect::<std::collections::VecDeque<_>>())
    };
    let (shared, nodes, alone) = (queue(Place::Shared), queue(Place::Nodes), queue(Place::Alone));
    let displacing = queue(Place::Displacing);
    let work = |queue: &Mutex<std::collections::VecDeque<&Scenario>>, lane: &str| {
        loop {
            let next = queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            let Some(scenario) = next.filter(|_| !ends::asked()) else { return };
            let begun = Instant::now();
            let outcome = play::play(scenario, lane, systems, time).map_err(|e| format!("{e:#}"));
            if outcome.is_err() && ends::asked() {
                // The end was the end of the agents as well.
                return;
            }
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
    // The switch is one for a system, and would change what the others show.
    let switched = |on: bool| systems.iter().try_for_each(|system| system.let_jobs_displace(on));
    if chosen.iter().any(|s| s.place == Place::Displacing) {
        let result = switched(true).map(|()| {
            std::thread::scope(|scope| {
                for lane in LANES {
                    let (work, displacing) = (&work, &displacing);
                    scope.spawn(move || work(displacing, lane));
                }
            });
        });
        if let Err(error) = result.and_then(|()| switched(false)) {
            let outcome = Err(format!("{error:#}"));
            let one = Played { name: "the switches of preemption".to_owned(), seconds: 0.0, outcome };
            print(&one);
            played.lock().unwrap_or_else(PoisonError::into_inner).push(one);
        }
    }
    played.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// One scenario's result, as it comes.
fn print(played: &Played) {
    let Played { name, seconds, outcome } = played;
    let mut text = match outcome {
        Err(why) => format!("differ {name}: BROKEN after {seconds:.0} s: {why}\n"),
        Ok(found) if found.is_empty() => format!("differ {name}: the same ({seconds:.0} s)\n"),
        Ok(found) => {
            let unexplained = found.iter().filter(|d| lists::explain(name, found, d).is_none()).count();
            format!("differ {name}: {} differences, {unexplained} of them unexplained ({seconds:.0} s)\n", found.len())
        }
    };
    let found = outcome.as_deref().unwrap_or_default();
    for difference in found.iter().filter(|d| lists::explain(name, found, d).is_none()) {
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

/// Whether the run passes. After all scenarios the list must be true, too: `used` are the entries that were needed.
fn judge(played: &[Played], used: Option<&BTreeSet<String>>) -> Result<()> {
    let mut wrong = Vec::new();
    for one in played {
        match &one.outcome {
            Err(why) => wrong.push(format!("{}: {why}", one.name)),
            Ok(found) => {
                let unexplained = found.iter().filter(|d| lists::explain(&one.name, found, d).is_none());
                wrong.extend(unexplained.map(|difference| format!("{}: {}", one.name, difference.path)));
            }
        }
    }
    if let Some(used) = used {
        let unused = lists::all().filter(|k| k.always).map(Known::label).filter(|label| !used.contains(label));
        wrong.extend(unused.map(|label| format!("an exception, but nothing differs (take it off the list): {label}")));
    }
    ensure!(wrong.is_empty(), "{} unexplained:\n  {}", wrong.len(), wrong.join("\n  "));
    Ok(())
}

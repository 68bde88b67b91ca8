//! `cargo xtask chaos`: faults on a real node with real processes, each many times, and what they cost: a table of
//! fault × runs × lost, duplicated, leaked, wrong exit codes. All zeros or it fails.
//!
//! One server and one node, as processes of the debug build. After every run everything is stopped and purged, and
//! nothing may be left: by the node's own books (`node audit`), and by a look of our own at processes, cgroups, mounts
//! and directories. With `--for` the faults and their moments are drawn from the seed; `mixed` lets several overlap.
//! What once failed (`xtask/regressions/chaos.txt`) is replayed first.
//!
//! What is not covered here: jumps of the wall clock (no namespace shifts it, and it belongs to the whole machine:
//! decisions take the time as an argument, and tests of `lifecycle` and of the allocation's machine give them any) and
//! a real loss of power (a disk image is taken instead, at the block layer, see `state::power_loss`; lies of a disk
//! about what it has stored are not played).

mod artifacts;
pub(crate) mod cluster;
mod cycles;
mod dice;
mod fault;
mod kills;
mod mixed;
mod past;
mod regressions;
pub(crate) mod remote;
mod state;
mod upgrade;
mod workloads;
mod world;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use self::{dice::Dice, fault::Fault, regressions::Once, world::World};
use crate::{
    builds,
    local::seed,
    packages::{self, Wanted},
};

/// What one fault has cost.
#[derive(Default)]
struct Row {
    runs: usize,
    /// Ran and does not any more.
    lost: usize,
    /// Runs, or has run, more than once.
    duplicated: usize,
    leaked: usize,
    /// Exit codes and reasons that are not the true ones.
    wrong: usize,
    /// Runs that did not come to their end.
    broken: usize,
    seconds: f64,
}

impl Row {
    fn is_clean(&self) -> bool {
        self.lost + self.duplicated + self.leaked + self.wrong + self.broken == 0
    }
}

fn faults() -> Vec<&'static Fault> {
    [kills::FAULTS, artifacts::FAULTS, state::FAULTS, past::FAULTS, workloads::FAULTS, cycles::FAULTS, mixed::FAULTS]
        .into_iter()
        .flatten()
        .collect()
}

/// What `--only` takes.
pub(crate) fn names() -> Vec<&'static str> {
    faults().into_iter().map(|fault| fault.name).collect()
}

/// How often.
#[derive(Clone, Copy)]
struct Amount {
    runs: usize,
    /// Starts and stops in a run of cycles.
    cycles: usize,
    /// The number of the first run, which says at which moments things go wrong.
    seed: usize,
}

const FULL: Amount = Amount { runs: 20, cycles: 100, seed: 0 };
const SHORT: Amount = Amount { runs: 1, cycles: 5, seed: 0 };

/// `chaos [--runs N | --for DURATION] [--seed S] [--only FAULT]… [--short] [--list]`, or `chaos remote …`,
/// `chaos cluster …` or `chaos upgrade`.
pub(crate) fn run(args: &[&str]) -> Result<()> {
    match args {
        ["remote", args @ ..] => return remote::run(args),
        ["cluster", args @ ..] => return cluster::run(args),
        ["upgrade", args @ ..] => return upgrade::run(args),
        _ => {}
    }
    let (mut amount, mut wanted, mut drawn) = (FULL, None, None);
    let mut only = Vec::new();
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match *arg {
            "--short" => (amount.runs, amount.cycles) = (SHORT.runs, SHORT.cycles),
            "--runs" => {
                let text = args.next().copied().unwrap_or_default();
                let Ok(runs) = text.parse() else { bail!("--runs takes a number, not {text:?}") };
                amount.runs = runs;
            }
            "--seed" => {
                let text = args.next().copied().unwrap_or_default();
                let Ok(seed) = text.parse::<u32>() else { bail!("--seed takes a number below 2^32, not {text:?}") };
                wanted = Some(seed);
            }
            "--for" => drawn = Some(length(args.next().copied().unwrap_or_default())?),
            "--only" => only.push(args.next().copied().unwrap_or_default()),
            "--list" => {
                for fault in faults() {
                    println!("{:26} {}\n{:26} it would show: {}", fault.name, fault.what, "", fault.would_show);
                }
                return Ok(());
            }
            other => {
                bail!(
                    "chaos does not know {other:?}; it takes --runs N, --for DURATION, --seed S, --only FAULT, --short \
                    and --list"
                )
            }
        }
    }
    amount.seed = usize::try_from(wanted.map_or_else(fresh, u64::from))?;
    builds::build(&["drover"])?;
    play(amount, &only, drawn)
}

/// How long `chaos NAME` goes on, and its seed, from its arguments; `usual`, or `short` with `--short`.
fn asked(name: &str, args: &[&str], (usual, short): (Duration, Duration), seed: u64) -> Result<(Duration, u64)> {
    let (mut time, mut seed) = (usual, seed);
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut number = || -> Result<u64> {
            let text = args.next().copied().unwrap_or_default();
            text.parse().with_context(|| format!("{arg} takes a number, not {text:?}"))
        };
        match *arg {
            "--for" => time = length(args.next().copied().unwrap_or_default())?,
            "--minutes" => time = Duration::from_secs(number()? * 60),
            "--seed" => seed = number()?,
            "--short" => time = short,
            other => bail!(
                "chaos {name} does not know {other:?}; it takes --for DURATION, --minutes N, --seed S and --short"
            ),
        }
    }
    Ok((time, seed))
}

/// A seed short enough to be typed again.
fn fresh() -> u64 {
    seed() % 1_000_000
}

/// A length of time as people write it: `90s`, `10m`, `1h`.
fn length(text: &str) -> Result<Duration> {
    let wrong = || format!("--for takes a length of time such as 10m or 1h, not {text:?}");
    let unit = text.chars().last().with_context(wrong)?;
    let seconds = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3_600,
        _ => bail!(wrong()),
    };
    let number: u64 = text[..text.len() - 1].parse().with_context(wrong)?;
    Ok(Duration::from_secs(number * seconds))
}

/// The short form, as a check of `cargo xtask interop`. Its seed is another one each time, and printed.
pub(crate) fn check() -> Result<()> {
    packages::need_root("isolation, mounts and cgroups need root")?;
    packages::need(&[Wanted::new("sqlite3", "sqlite3")]).context("a record cannot be damaged")?;
    play(Amount { seed: usize::try_from(fresh())?, ..SHORT }, &[], None)
}

/// Every fault so often, or for a while what is drawn from the seed.
fn play(amount: Amount, only: &[&str], drawn: Option<Duration>) -> Result<()> {
    for name in only {
        let all = names();
        ensure!(all.contains(name), "no fault {name:?}; there are {}", all.join(", "));
    }
    println!("chaos: seed {}", amount.seed);
    let wanted: Vec<&Fault> = faults().into_iter().filter(|f| only.is_empty() || only.contains(&f.name)).collect();
    let mut played = Played { world: World::start(amount.cycles)?, rows: Vec::new(), told: Vec::new() };
    for once in if only.is_empty() { regressions::read()? } else { Vec::new() } {
        if let Once::Fault(name, seed) = once
            && let Some(fault) = wanted.iter().find(|fault| fault.name == name)
        {
            played.one(fault, usize::try_from(seed)?)?;
        }
    }
    match drawn {
        Some(length) => {
            let (begun, mut dice) = (Instant::now(), Dice::new(amount.seed as u64));
            while begun.elapsed() < length {
                // Half of them are those that overlap, where they are wanted.
                let both = dice.below(2) == 0;
                let at = dice.index(wanted.len());
                let mixed = wanted.iter().find(|fault| both && fault.name == mixed::FAULTS[0].name);
                let seed = dice.index(1_000_000);
                played.one(mixed.unwrap_or(&wanted[at]), seed)?;
            }
        }
        None => {
            for fault in wanted {
                for n in 0..amount.runs {
                    played.one(fault, amount.seed + n)?;
                }
                played.report(fault.name);
            }
        }
    }
    played.close()
}

/// What has been played.
struct Played {
    world: World,
    rows: Vec<(&'static str, Row)>,
    told: Vec<String>,
}

impl Played {
    /// One run of a fault. Its seed says at which moments things go wrong.
    fn one(&mut self, fault: &Fault, seed: usize) -> Result<()> {
        let at = self.rows.iter().position(|(name, _)| *name == fault.name).unwrap_or_else(|| {
            self.rows.push((fault.name, Row::default()));
            self.rows.len() - 1
        });
        let (world, begun) = (&mut self.world, Instant::now());
        let row = &mut self.rows[at].1;
        row.runs += 1;
        let run = row.runs;
        let before = world.violations().len();
        let done = world.rest().and_then(|()| (fault.run)(world, seed)).and_then(|()| world.clean_up());
        if let Err(error) = done {
            row.broken += 1;
            world.note(format!("it did not come to its end: {error:#}"));
        }
        let tally = world.take_tally();
        row.lost += tally.lost;
        row.duplicated += tally.duplicated;
        row.leaked += tally.leaked;
        row.wrong += tally.wrong;
        for violation in &world.violations()[before..] {
            let what = format!("{} run {run} (--only {} --runs 1 --seed {seed}): {violation}", fault.name, fault.name);
            println!("chaos {what}");
            self.told.push(what);
        }
        if world.violations().len() > before {
            self.told.push(format!("the end of its node's log:\n{}", world.node.log_tail()));
            let kept = world.keep_logs(fault.name, run)?;
            println!("chaos {} run {run}: logs are kept in {}", fault.name, kept.display());
            // What it has left must not be blamed on the next one.
            world.start_over()?;
        }
        self.rows[at].1.seconds += begun.elapsed().as_secs_f64();
        Ok(())
    }

    /// How a fault has done so far.
    fn report(&self, name: &str) {
        for (_, row) in self.rows.iter().filter(|(played, _)| *played == name) {
            let bad = if row.is_clean() { "" } else { ", VIOLATIONS" };
            eprintln!("chaos {name}: {} runs in {:.1} s{bad}", row.runs, row.seconds);
        }
    }

    /// The table, and whether all is well.
    fn close(self) -> Result<()> {
        let balanced = self.world.audit_by_command();
        print(&self.rows);
        balanced?;
        let bad = self.rows.iter().filter(|(_, row)| !row.is_clean()).map(|(name, _)| *name).collect::<Vec<_>>();
        // What was seen is said again at the end: of a long output only that may be kept.
        ensure!(bad.is_empty(), "faults that cost something: {}:\n  {}", bad.join(", "), self.told.join("\n  "));
        Ok(())
    }
}

fn print(rows: &[(&str, Row)]) {
    println!(
        "{:26} {:>5} {:>5} {:>10} {:>6} {:>10} {:>8} {:>8}",
        "fault", "runs", "lost", "duplicated", "leaked", "wrong code", "unended", "seconds"
    );
    for (name, row) in rows {
        println!(
            "{name:26} {:>5} {:>5} {:>10} {:>6} {:>10} {:>8} {:>8.1}",
            row.runs, row.lost, row.duplicated, row.leaked, row.wrong, row.broken, row.seconds
        );
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    #[test]
    fn lengths_of_time_are_read_as_people_write_them() {
        for (text, seconds) in [("90s", 90), ("10m", 600), ("1h", 3_600)] {
            assert_eq!(super::length(text).expect(text), Duration::from_secs(seconds));
        }
        for wrong in ["", "10", "m", "1d", "-1m"] {
            assert!(super::length(wrong).is_err(), "{wrong}");
        }
    }
}

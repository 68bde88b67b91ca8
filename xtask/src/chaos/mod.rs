//! `cargo xtask chaos`: faults on a real node with real processes, each many times, and what they cost: a table of fault × runs × lost, duplicated,
//! leaked, wrong exit codes. All zeros or it fails.
//!
//! One server and one node, as processes of the debug build. After every run everything is stopped and purged, and nothing may be left: by the
//! node's own books (`node audit`), and by a look of our own at processes, cgroups, mounts and directories.
//!
//! What is not covered here: jumps of the wall clock (no namespace shifts it, and it belongs to the whole machine: decisions take the time as an
//! argument, and tests of `lifecycle` and of the allocation's machine give them any) and a real loss of power (a disk image is taken instead, at the
//! block layer, see `state::power_loss`; lies of a disk about what it has stored are not played).

mod artifacts;
mod cycles;
mod fault;
mod kills;
mod past;
pub(crate) mod remote;
mod state;
mod workloads;
mod world;

use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};

use self::{fault::Fault, world::World};
use crate::{
    builds,
    local::seed_from_clock,
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
    [kills::FAULTS, artifacts::FAULTS, state::FAULTS, past::FAULTS, workloads::FAULTS, cycles::FAULTS].into_iter().flatten().collect()
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

/// `chaos [--runs N] [--seed S] [--only FAULT]… [--short] [--list]`, or `chaos remote …`.
pub(crate) fn run(args: &[&str]) -> Result<()> {
    if let ["remote", args @ ..] = args {
        return remote::run(args);
    }
    let (mut amount, mut wanted) = (FULL, None);
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
            "--only" => only.push(args.next().copied().unwrap_or_default()),
            "--list" => {
                for fault in faults() {
                    println!("{:26} {}\n{:26} it would show: {}", fault.name, fault.what, "", fault.would_show);
                }
                return Ok(());
            }
            other => bail!("chaos does not know {other:?}; it takes --runs N, --seed S, --only FAULT, --short and --list"),
        }
    }
    amount.seed = usize::try_from(wanted.map_or(seed_from_clock() % 1_000_000, u64::from))?;
    builds::build(&["drover"])?;
    play(amount, &only)
}

/// The short form, as a check of `cargo xtask interop`.
pub(crate) fn check() -> Result<()> {
    packages::need_root("isolation, mounts and cgroups need root")?;
    packages::need(&[Wanted::new("sqlite3", "sqlite3")]).context("a record cannot be damaged")?;
    play(SHORT, &[])
}

fn play(amount: Amount, only: &[&str]) -> Result<()> {
    for name in only {
        let all = faults().iter().map(|f| f.name).collect::<Vec<_>>();
        ensure!(all.contains(name), "no fault {name:?}; there are {}", all.join(", "));
    }
    println!("chaos: seed {}", amount.seed);
    let mut rows: Vec<(&str, Row)> = Vec::new();
    let mut world = World::start(amount.cycles)?;
    let mut told = Vec::new();
    for fault in faults().into_iter().filter(|f| only.is_empty() || only.contains(&f.name)) {
        let begun = Instant::now();
        let mut row = Row::default();
        for n in 0..amount.runs {
            row.runs += 1;
            let before = world.violations().len();
            let done = world.rest().and_then(|()| (fault.run)(&mut world, amount.seed + n)).and_then(|()| world.clean_up());
            if let Err(error) = done {
                row.broken += 1;
                world.note(format!("it did not come to its end: {error:#}"));
            }
            for violation in &world.violations()[before..] {
                let again = amount.seed + n;
                let what = format!("{} run {} (--only {} --runs 1 --seed {again}): {violation}", fault.name, n + 1, fault.name);
                println!("chaos {what}");
                told.push(what);
            }
            if world.violations().len() > before {
                told.push(format!("the end of its node's log:\n{}", world.node.log_tail()));
                let kept = world.keep_logs(fault.name, n + 1)?;
                println!("chaos {} run {}: logs are kept in {}", fault.name, n + 1, kept.display());
                // What it has left must not be blamed on the next one.
                world.start_over()?;
            }
        }
        let tally = world.take_tally();
        row.lost = tally.lost;
        row.duplicated = tally.duplicated;
        row.leaked = tally.leaked;
        row.wrong = tally.wrong;
        row.seconds = begun.elapsed().as_secs_f64();
        eprintln!("chaos {}: {} runs in {:.1} s{}", fault.name, row.runs, row.seconds, if row.is_clean() { "" } else { ", VIOLATIONS" });
        rows.push((fault.name, row));
    }
    let balanced = world.audit_by_command();
    print(&rows);
    balanced?;
    let bad = rows.iter().filter(|(_, row)| !row.is_clean()).map(|(name, _)| *name).collect::<Vec<_>>();
    // What was seen is said again at the end: of a long output only that may be kept.
    ensure!(bad.is_empty(), "faults that cost something: {}:\n  {}", bad.join(", "), told.join("\n  "));
    Ok(())
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

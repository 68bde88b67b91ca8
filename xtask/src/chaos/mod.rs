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
mod kills;
pub(crate) mod remote;
mod state;
mod workloads;
mod world;

use std::time::Instant;

use anyhow::{Result, bail, ensure};

use self::world::World;
use crate::{
    interop::Verdict,
    packages::{self, Wanted},
    process::Run,
    workspace,
};

/// Something that goes wrong.
struct Fault {
    name: &'static str,
    /// What is done.
    what: &'static str,
    /// What a node without its counter-measure would show: the run must be able to fail.
    would_show: &'static str,
    run: fn(&mut World, usize) -> Result<()>,
}

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
    [kills::FAULTS, artifacts::FAULTS, state::FAULTS, workloads::FAULTS, cycles::FAULTS].into_iter().flatten().collect()
}

/// How often.
#[derive(Clone, Copy)]
struct Amount {
    runs: usize,
    /// Starts and stops in a run of cycles.
    cycles: usize,
}

const FULL: Amount = Amount { runs: 20, cycles: 100 };
const SHORT: Amount = Amount { runs: 1, cycles: 5 };

/// `chaos [--runs N] [--only FAULT]… [--short] [--list]`, or `chaos remote …`.
pub(crate) fn run(args: &[&str]) -> Result<()> {
    if let ["remote", args @ ..] = args {
        return remote::run(args);
    }
    let mut amount = FULL;
    let mut only = Vec::new();
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match *arg {
            "--short" => amount = SHORT,
            "--runs" => {
                let text = args.next().copied().unwrap_or_default();
                let Ok(runs) = text.parse() else { bail!("--runs takes a number, not {text:?}") };
                amount.runs = runs;
            }
            "--only" => only.push(args.next().copied().unwrap_or_default()),
            "--list" => {
                for fault in faults() {
                    println!("{:26} {}\n{:26} it would show: {}", fault.name, fault.what, "", fault.would_show);
                }
                return Ok(());
            }
            other => bail!("chaos does not know {other:?}; it takes --runs N, --only FAULT, --short and --list"),
        }
    }
    Run::new("cargo", ["build", "-p", "cli"]).dir(workspace::root()).run()?;
    play(amount, &only)
}

/// The short form, as a check of `cargo xtask interop`.
pub(crate) fn check() -> Result<Verdict> {
    if !packages::is_root() {
        return Ok(Verdict::Skipped("isolation, mounts and cgroups need root".into()));
    }
    if let Some(why) = packages::install(&[Wanted::new("sqlite3", "sqlite3")]) {
        return Ok(Verdict::Skipped(format!("a record cannot be damaged: {why}")));
    }
    play(SHORT, &[]).map(|()| Verdict::Passed)
}

fn play(amount: Amount, only: &[&str]) -> Result<()> {
    for name in only {
        let all = faults().iter().map(|f| f.name).collect::<Vec<_>>();
        ensure!(all.contains(name), "no fault {name:?}; there are {}", all.join(", "));
    }
    let mut rows: Vec<(&str, Row)> = Vec::new();
    let mut world = World::start(amount.cycles)?;
    let mut told = Vec::new();
    for fault in faults().into_iter().filter(|f| only.is_empty() || only.contains(&f.name)) {
        let begun = Instant::now();
        let mut row = Row::default();
        for n in 0..amount.runs {
            row.runs += 1;
            let before = world.violations().len();
            let done = world.rest().and_then(|()| (fault.run)(&mut world, n)).and_then(|()| world.clean_up());
            if let Err(error) = done {
                row.broken += 1;
                world.note(format!("it did not come to its end: {error:#}"));
            }
            for violation in &world.violations()[before..] {
                let what = format!("{} run {}: {violation}", fault.name, n + 1);
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

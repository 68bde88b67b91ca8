//! Plays hours of servers and nodes: first the seeds that have once failed, then fresh ones.
#![allow(clippy::print_stdout, reason = "the results are what this program prints")]

use std::{
    process::{Command, ExitCode},
    sync::{Mutex, PoisonError},
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use sim::{Outcome, Plan, play, shorten};

const USAGE: &str = "usage: simulate [--seed S] [--hours N] [--seconds T] [--two] [--whole]

  --seed S     begin with this seed, without the regressions; default: a fresh one
  --hours N    play so many hours; default: 1 with --seed, else as many as fit
  --seconds T  begin no hour after so many seconds; default: 160
  --two        play hours of two servers on a shared store, without the regressions; default: of one server
  --whole      print the whole history of a failure, and do not shorten it";

/// Plays that a failure may cost to be shortened.
const PLAYS: usize = 150;

struct Options {
    seed: Option<u64>,
    hours: Option<u64>,
    seconds: u64,
    two: bool,
    whole: bool,
}

fn options() -> Result<Options, String> {
    let mut options = Options { seed: None, hours: None, seconds: 160, two: false, whole: false };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut number = || {
            let text = args.next().unwrap_or_default();
            text.parse().map_err(|_| format!("{arg} takes a number, not {text:?}\n\n{USAGE}"))
        };
        match arg.as_str() {
            "--seed" => options.seed = Some(number()?),
            "--hours" => options.hours = Some(number()?),
            "--seconds" => options.seconds = number()?,
            "--two" => options.two = true,
            "--whole" => options.whole = true,
            other => return Err(format!("no such option: {other}\n\n{USAGE}")),
        }
    }
    Ok(options)
}

fn main() -> ExitCode {
    let options = match options() {
        Ok(options) => options,
        Err(error) => {
            println!("{error}");
            return ExitCode::FAILURE;
        }
    };
    if let (Some(seed), None | Some(1)) = (options.seed, options.hours) {
        return one(&Plan::with(seed, options.two), options.whole);
    }
    let fresh = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |now| now.as_nanos() as u64 % 1_000_000_000_000);
    let first = options.seed.unwrap_or(fresh);
    let hours = options.hours.unwrap_or(u64::MAX);
    let known = if options.seed.is_some() || options.two { Vec::new() } else { sim::regressions() };
    println!("simulate: {} regressions, then seeds from {first}", known.len());
    let begun = Instant::now();
    let seeds = known.iter().copied().chain((0..hours).map(|n| first.wrapping_add(n)));
    let queue = Mutex::new(seeds.enumerate());
    let sum = Mutex::new(Sum::default());
    // The next seed, unless the time is over or something failed.
    let next = || {
        let late = begun.elapsed() > Duration::from_secs(options.seconds);
        let (n, seed) = lock(&queue).next()?;
        let ends = lock(&sum).failed || (late && n >= known.len().max(1));
        (!ends).then_some(seed)
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(seed) = next() {
                    let outcome = again(seed, &options);
                    lock(&sum).add(seed, outcome, &options);
                }
            });
        }
    });
    let sum = sum.into_inner().unwrap_or_else(PoisonError::into_inner);
    if sum.failed {
        return ExitCode::FAILURE;
    }
    println!(
        "simulate: {} hours with {} faults and {} events, {:.1} h of virtual time in {:.0} s: all that must hold held",
        sum.played,
        sum.faults,
        sum.events,
        sum.seconds as f64 / 3600.0,
        begun.elapsed().as_secs_f64()
    );
    ExitCode::SUCCESS
}

fn lock<T>(shared: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What has been played.
#[derive(Default)]
struct Sum {
    played: u64,
    /// Of virtual time.
    seconds: u64,
    faults: usize,
    events: usize,
    failed: bool,
}

impl Sum {
    /// Tells how an hour went, if a person would want to know, and counts it.
    fn add(&mut self, seed: u64, outcome: std::io::Result<(bool, String)>, options: &Options) {
        let (held, text) = match outcome {
            Ok(told) => told,
            Err(error) => {
                println!("seed {seed} could not be played: {error}");
                self.failed = true;
                return;
            }
        };
        if !held || options.seed.is_some() {
            print!("{text}");
        }
        let Some(seconds) = virtual_time(&text).filter(|_| held) else {
            println!("seed {seed} did not end as it must");
            self.failed = true;
            return;
        };
        let (faults, events) = Plan::with(seed, options.two).counts();
        (self.played, self.seconds) = (self.played + 1, self.seconds + seconds);
        (self.faults, self.events) = (self.faults + faults, self.events + events);
    }
}

/// Plays one seed in this process and tells how it went.
fn one(plan: &Plan, whole: bool) -> ExitCode {
    let outcome = play(plan);
    if let Some(violation) = &outcome.violation {
        tell(plan, &outcome, violation, whole);
        return ExitCode::FAILURE;
    }
    let (took, simulated) = (outcome.took.as_secs_f64(), outcome.simulated.as_secs());
    println!("seed {}: {took:.1} s, history {}, {simulated}{VIRTUAL}", plan.seed, outcome.digest);
    ExitCode::SUCCESS
}

/// What follows the seconds that an hour had under virtual time.
const VIRTUAL: &str = " s of virtual time";

fn virtual_time(text: &str) -> Option<u64> {
    text.trim_end().strip_suffix(VIRTUAL)?.rsplit(' ').next()?.parse().ok()
}

/// Plays one seed by the command that replays it, and gives whether all held and what it printed. Only the first play
/// of a process has the same history each time: tokio seeds each of its runtimes from a count of the process.
fn again(seed: u64, options: &Options) -> std::io::Result<(bool, String)> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--seed", &seed.to_string()]);
    command.args(options.two.then_some("--two")).args(options.whole.then_some("--whole"));
    let output = command.stderr(std::process::Stdio::inherit()).output()?;
    Ok((output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned()))
}

/// Tells of a failure, as short as it gets.
fn tell(plan: &Plan, outcome: &Outcome, violation: &str, whole: bool) {
    println!("seed {}: {violation}", plan.seed);
    let two = if plan.two { " --two" } else { "" };
    println!("play it again with: cargo xtask simulate --seed {}{two}", plan.seed);
    let shortest = if whole { None } else { shorten(plan, PLAYS) };
    let (plan, outcome) = shortest.unwrap_or_else(|| (plan.clone(), outcome.clone()));
    println!("\nwith these {} steps: {}", plan.steps.len(), outcome.violation.unwrap_or_default());
    plan.steps.iter().for_each(|step| println!("  {step}"));
    println!("\nits history:");
    outcome.lines.iter().for_each(|line| println!("  {line}"));
}

//! `cargo xtask model`: the model of remote tasks for longer than its tests take, from a seed that is drawn and
//! printed. It is built with every optimisation: most of the time goes into states.

use anyhow::{Context, Result, bail};

use crate::{local::seed, process::Run, test_programs, workspace};

/// How much is looked at.
struct Size {
    /// Walks of each kind.
    walks: &'static str,
    /// States of each kind of runtime with every fault at any moment; a quarter of them with each fault by itself.
    states: &'static str,
    /// Worlds that wait to be looked at, some kilobytes each.
    waiting: &'static str,
}

/// A quarter of an hour of processor time.
const USUAL: Size = Size { walks: "20000", states: "1000000", waiting: "100000" };
/// Hours; more than ten million states, in 6 GiB.
const LONG: Size = Size { walks: "400000", states: "4000000", waiting: "400000" };
/// More than a million states, in three minutes of processor time.
const CHECK: Size = Size { walks: "0", states: "200000", waiting: "50000" };

/// What [`check`] plays, as the tests of the workspace are built.
pub(crate) const BUILT: [&str; 3] = ["--workspace", "--test", "remote"];

/// `model [--long] [--seed S]`.
pub(crate) fn run(args: &[&str]) -> Result<()> {
    let (size, mut seed) = (if args.contains(&"--long") { &LONG } else { &USUAL }, seed());
    let mut args = args.iter().filter(|arg| **arg != "--long");
    while let Some(arg) = args.next() {
        match *arg {
            "--seed" => {
                let text = args.next().copied().unwrap_or_default();
                seed = text.parse().with_context(|| format!("--seed takes a number, not {text:?}"))?;
            }
            other => bail!("model does not know {other:?}; it takes --long and --seed S"),
        }
    }
    let words = ["test", "--profile", "model", "-p", "lifecycle", "--test", "remote", "--"];
    let modules = options(&["kinds::", "promises::", "model_check::", "simulate::"]);
    play(size, seed, Run::new("cargo", words.into_iter().chain(modules)).dir(workspace::root()))
}

/// Each kind of runtime with every fault, as a check of `cargo xtask interop`: with the tests as they are built. To
/// build them once more, as the long runs do, would take more time than it saves here.
pub(crate) fn check() -> Result<()> {
    let programs = test_programs::build(BUILT)?;
    let program = programs.iter().find(|program| program.name == "remote").context("cargo has built no tests")?;
    play(&CHECK, seed(), Run::new(&program.path, options(&["kinds::", "promises::"])).dir(&program.dir))
}

/// What the tests of these modules are called with: one after the other, because the memory is bounded for one search.
fn options<'a>(modules: &[&'a str]) -> Vec<&'a str> {
    modules.iter().copied().chain(["--nocapture", "--test-threads", "1"]).collect()
}

fn play(size: &Size, seed: u64, tests: Run) -> Result<()> {
    println!(
        "model: seed {seed}, {} walks of each kind, {} states of each runtime with every fault",
        size.walks, size.states
    );
    tests
        .env("REMOTE_SEED_FROM", seed.to_string())
        .env("REMOTE_SEEDS", size.walks)
        .env("REMOTE_STATES", size.states)
        .env("REMOTE_WAITING", size.waiting)
        .run()
}

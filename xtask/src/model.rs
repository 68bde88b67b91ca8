//! `cargo xtask model`: the model of remote tasks for longer than its tests take, from a seed that is drawn and printed.

use anyhow::{Context, Result, bail};

use crate::{local::seed_from_clock, process::Run, workspace};

/// What is looked at in a run of a quarter of an hour (of processor time; 2 GB of memory), and in one of hours. A state takes some
/// kilobytes while what follows from it is to be looked at.
const USUAL: (&str, &str) = ("20000", "100000");
const LONG: (&str, &str) = ("400000", "300000");

/// `model [--long] [--seed S]`.
pub(crate) fn run(args: &[&str]) -> Result<()> {
    let ((seeds, states), mut seed) = (if args.contains(&"--long") { LONG } else { USUAL }, seed_from_clock());
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
    println!("model: {seeds} walks of each kind from seed {seed}, {states} states of each configuration");
    Run::new("cargo", ["test", "-p", "lifecycle", "--test", "remote", "--", "model_check", "simulate"])
        .env("REMOTE_SEED_FROM", seed.to_string())
        .env("REMOTE_SEEDS", seeds)
        .env("REMOTE_STATES", states)
        .dir(workspace::root())
        .run()
}

//! `cargo xtask simulate`: hours of the real servers and nodes under virtual time (`crates/sim`).

use anyhow::Result;

use crate::{builds, local::target_dir, process::Run, workspace};

/// `simulate [--release] [--seed S] [--hours N] [--seconds T] [--two] [--whole]`: the options but the first are those
/// of the program. The tests have built it; the release build plays more hours in the same time, and is built for that.
pub(crate) fn run(args: &[&str]) -> Result<()> {
    let release = args.contains(&"--release");
    let profile = if release { "release" } else { "debug" };
    if release {
        let words = ["build", "-q", "--workspace", "--bin", "simulate", "--release"];
        Run::new("cargo", words).dir(workspace::root()).run()?;
    } else {
        builds::build(&["simulate"])?;
    }
    let program = target_dir().join(profile).join("simulate");
    let own: Vec<&str> = args.iter().copied().filter(|arg| *arg != "--release").collect();
    Run::new(program, own).dir(workspace::root()).run()
}

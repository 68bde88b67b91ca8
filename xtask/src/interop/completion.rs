//! Completion in the shells that few machines have: they are installed, and the tests that look at them run once more.

use std::time::Duration;

use anyhow::{Result, ensure};

use crate::{
    packages::{self, Wanted},
    process::Run,
    workspace,
};

/// The tests that look at zsh and fish where they are.
const TESTS: [&str; 2] =
    ["completion::names_that_a_shell_would_act_on_are_only_names", "completion::zsh_and_fish_offer_the_same"];
/// How they are chosen: as the test command builds them, so that nothing is compiled anew after that one.
pub(crate) const CHOSEN: [&str; 3] = ["--workspace", "--test", "e2e"];
/// How long they may take, with what cargo has still to build.
const BOUND: Duration = Duration::from_secs(1200);

/// The check.
pub(crate) fn check() -> Result<()> {
    packages::need(&[Wanted::new("zsh", "zsh"), Wanted::new("fish", "fish")])?;
    let cargo = ["cargo", "test"].into_iter().chain(CHOSEN).chain(["--", "--exact", "--format", "pretty"]).chain(TESTS);
    let words = [BOUND.as_secs().to_string()].into_iter().chain(cargo.map(str::to_owned));
    let printed = Run::new("timeout", words).dir(workspace::root()).env("DROVER_TEST_SHELLS", "1").output()?;
    for test in TESTS {
        ensure!(
            printed.lines().any(|line| line.starts_with(&format!("test {test} ")) && line.ends_with(" ok")),
            "{test} was not run:\n{printed}"
        );
    }
    Ok(())
}

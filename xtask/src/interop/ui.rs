//! What the web UI decides without a browser – addresses, states, reasons, lanes of managers – under Node.js.

use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::{
    packages::{self, Wanted},
    workspace,
};

/// The check.
pub(super) fn check() -> Result<()> {
    packages::need(&[Wanted::new("node", "nodejs")])?;
    let test = workspace::root().join("crates/ui/tests/lib.test.mjs");
    let output = Command::new(packages::find("node").context("node")?).arg("--test").arg(test).output()?;
    let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    ensure!(output.status.success(), "the web UI's own functions are wrong:\n{said}");
    Ok(())
}

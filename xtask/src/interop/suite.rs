//! `drover driver check` as the checks of real peers use it.

use std::{collections::BTreeMap, ffi::OsString, path::Path, process::Command};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::cluster::program;

/// What the conformance suite found: ids of checks with what was seen, or why they could not be asked.
pub(super) struct Report {
    pub(super) passed: u64,
    pub(super) failed: BTreeMap<String, String>,
    pub(super) not_applicable: BTreeMap<String, String>,
}

/// Runs the suite with these arguments.
pub(super) fn run(args: impl IntoIterator<Item = OsString>) -> Result<Report> {
    // Its exit code only says that something failed. SIGHUP reaches its tasks also when all of this was started with
    // nohup.
    let mut command = Command::new("env");
    command.arg("--default-signal=HUP").arg(program()).args(["driver", "check", "-json", "-slack", "5"]).args(args);
    let output = command.output().context("could not run the suite")?;
    let report: Value = serde_json::from_slice(&output.stdout)
        .with_context(|| format!("the suite printed no report, but: {}", String::from_utf8_lossy(&output.stderr)))?;
    let checks = report["checks"].as_array().context("the report has no checks")?;
    let of = |verdict: &str| -> BTreeMap<String, String> {
        let these = checks.iter().filter(|check| check["verdict"] == verdict);
        these.filter_map(|check| Some((check["id"].as_str()?.to_owned(), check["text"].as_str()?.to_owned()))).collect()
    };
    let passed = report["passed"].as_u64().context("the report does not say how many checks passed")?;
    Ok(Report { passed, failed: of("fail"), not_applicable: of("not_applicable") })
}

/// `drover driver doctor` finds nothing that fails, and has looked at all of these.
pub(super) fn doctor(config: &Path, plugin: &Path, looked_at: &[&str]) -> Result<()> {
    let mut command = Command::new(program());
    let output = command.args(["driver", "doctor", "-json", "-config"]).arg(config).arg(plugin).output()?;
    let findings: Vec<Value> = serde_json::from_slice(&output.stdout)
        .with_context(|| format!("no findings, but: {}", String::from_utf8_lossy(&output.stderr)))?;
    ensure!(output.status.success(), "the doctor is not content: {findings:#?}");
    for what in looked_at {
        let passed = findings.iter().any(|finding| finding["What"] == *what && finding["Verdict"] == "pass");
        ensure!(passed, "{what:?} did not pass: {findings:#?}");
    }
    Ok(())
}

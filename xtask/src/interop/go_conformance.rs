//! A Go driver under the conformance suite: what Nomad's own raw_exec does otherwise than the suite asks is a list, and
//! the list must be right.

use std::{collections::BTreeSet, path::Path};

use anyhow::{Context, Result, bail, ensure};

use super::{go_driver, suite};

/// Where a fault shows.
#[derive(Clone, Copy, PartialEq)]
enum Shows {
    Everywhere,
    /// Its executor kills by cgroup where there is one hierarchy; there either outcome is right.
    CgroupsV1,
}

/// Checks that fail, why they do, and where.
const KNOWN: &[(&str, &str, Shows)] = &[
    ("launch/closed-stderr", "a log line with nobody reading ends the process by SIGPIPE", Shows::Everywhere),
    ("base/junk-requests", "RecoverTask without a handle dereferences nil, and the process ends", Shows::Everywhere),
    ("config/decimal-strings", "its decoder takes no text for a number", Shows::Everywhere),
    (
        "stop/signal",
        "StopTask closes the executor before the result is fetched: exit code 0 and an error",
        Shows::Everywhere,
    ),
    ("stop/timeout", "the same: the result of a task that was killed is lost", Shows::Everywhere),
    ("stop/ended", "the same: StopTask replaces the result of a task that has ended", Shows::Everywhere),
    ("stop/tree", "children in sessions of their own live on", Shows::CgroupsV1),
    ("destroy/force", "children in sessions of their own live on", Shows::CgroupsV1),
    ("destroy/again", "the second DestroyTask says that the task is not found", Shows::Everywhere),
    ("recover/other-version", "the version of a handle is not looked at", Shows::Everywhere),
    ("env/clean", "with an empty environment the task inherits the executor's, cookie included", Shows::Everywhere),
    ("exec/streaming", "the session does not end while the client keeps its side open", Shows::Everywhere),
];

/// The check.
pub(crate) fn check() -> Result<()> {
    let plugin = go_driver::plugin()?;
    let config = std::env::temp_dir().join(format!("drover-go-raw-exec-{}.hcl", std::process::id()));
    std::fs::write(&config, "enabled = true\n").with_context(|| format!("could not write {}", config.display()))?;
    let report = suite::run(["-config".into(), config.clone().into(), plugin.into()]);
    std::fs::remove_file(&config).with_context(|| format!("could not remove {}", config.display()))?;
    let report = report?;
    ensure!(report.passed > 50, "too few checks passed: {}; {:?}", report.passed, report.failed);
    let failed = report.failed;
    let one_hierarchy = Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
    let known: BTreeSet<&str> = KNOWN.iter().map(|(id, ..)| *id).collect();
    let unknown = failed.iter().filter(|(id, _)| !known.contains(id.as_str()));
    let mut wrong: Vec<String> =
        unknown.map(|(id, seen)| format!("{id} fails and is not in the list: {seen}")).collect();
    let absent = KNOWN
        .iter()
        .filter(|(id, _, shows)| !failed.contains_key(*id) && (!one_hierarchy || *shows != Shows::CgroupsV1));
    wrong.extend(absent.map(|(id, why, _)| format!("{id} is in the list ({why}) and did not fail")));
    if !wrong.is_empty() {
        bail!("{}", wrong.join("\n"));
    }
    Ok(())
}

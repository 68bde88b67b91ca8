//! The drivers `docker` and `docker_remote` under the conformance suite, with a real engine.

use std::{collections::BTreeSet, fs, path::Path};

use anyhow::{Context, Result, ensure};

use super::{
    dockerd::{self, Daemon},
    suite,
};

/// What the suite cannot ask of each driver: one leaves logs to the host, the other makes no networks.
const DRIVERS: [(&str, &[&str]); 2] = [
    ("docker", &["logs/fifos-untouched"]),
    ("docker_remote", &["network/create", "network/destroy", "remote/refresh"]),
];

/// The check.
pub(crate) fn check() -> Result<()> {
    dockerd::need(&[])?;
    let mut daemon = Daemon::new(9)?;
    daemon.up()?;
    daemon.import_image()?;
    // Holds the network of a group.
    let tree = daemon.dir().join("tree.tar").display().to_string();
    daemon.docker(&["import", "-c", "CMD [\"/bin/sleep\", \"1000000\"]", &tree, "holder:1"])?;
    for (driver, not_applicable) in DRIVERS {
        one(&daemon, driver, not_applicable).with_context(|| daemon.log_tail())?;
    }
    daemon.end()?;
    Ok(())
}

fn one(daemon: &Daemon, driver: &str, not_applicable: &[&str]) -> Result<()> {
    let config = daemon.dir().join(format!("{driver}.hcl"));
    // A unix socket says nothing about which engine it is.
    let more = if driver == "docker_remote" { "provider = \"check\"\n" } else { "infra_image = \"holder:1\"\n" };
    fs::write(&config, format!("endpoint = {:?}\n{more}", daemon.url()))?;
    if driver == "docker_remote" {
        suite::doctor(&config, Path::new(driver), &["engine", "clock"])?;
    }
    let report = suite::run(["-config".into(), config.into(), driver.into()])?;
    let failed: Vec<String> = report.failed.iter().map(|(id, seen)| format!("{id}: {seen}")).collect();
    ensure!(failed.is_empty(), "{driver} does not pass:\n{}", failed.join("\n"));
    let left_out: BTreeSet<&str> =
        report.not_applicable.keys().map(String::as_str).filter(|id| remote_too(driver, id)).collect();
    ensure!(
        left_out == not_applicable.iter().copied().collect(),
        "{driver}: other checks than expected could not be asked: {:?}",
        report.not_applicable
    );
    ensure!(report.passed > 80, "{driver}: only {} checks passed", report.passed);
    let containers = daemon.containers(true)?;
    ensure!(containers.is_empty(), "{driver}: containers are left: {containers:?}");
    Ok(())
}

/// Our remote extension is of no concern to a driver of local tasks.
fn remote_too(driver: &str, id: &str) -> bool {
    driver == "docker_remote" || !id.starts_with("remote/")
}

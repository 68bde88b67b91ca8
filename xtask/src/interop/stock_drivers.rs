//! The stock project's own tests of raw_exec and exec, unedited, against our plugins.
//!
//! They hold the driver in their own process, behind the harness that stock drivers are tested with. Its place takes a
//! small driver of ours (`xtask/interop/go-driver-proxy`), which launches `drover driver <name>` through the stock
//! plugin client and hands every call on.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result};

use super::{
    cluster::program,
    stock_suites::{Place, Results, judge},
};
use crate::{packages, peer};

/// Limit of one package.
const BOUND: Duration = Duration::from_secs(300);
/// Runs a test program with processes and mounts of its own and a directory of ours as /tmp, where tests make their
/// directories: what they leave behind ends with it. Its cgroups are those of the machine and are removed at the end.
const ALONE: &str = r#"#!/bin/sh
unset TMPDIR
exec unshare --mount --pid --fork --kill-child --mount-proc --propagation private sh -c '
mount --bind "$0" /tmp || exit 2
/tmp/tests "$@"
groups=$(cat /proc/[0-9]*/cgroup 2>/dev/null | grep -o "/drover/task-[^/]*" | sort -u)
kill -9 -1
for group in $groups; do
    for dir in /sys/fs/cgroup"$group" /sys/fs/cgroup/*"$group"; do
        for try in 1 2 3 4 5; do
            [ ! -d "$dir" ] || rmdir "$dir" 2>/dev/null || sleep 0.1
        done
    done
done
' PLACE "$@"
"#;

/// The check.
pub(crate) fn check() -> Result<()> {
    packages::need_go()?;
    packages::need_root("the drivers and their tests need root")?;
    let tests = peer::driver_tests(&peer::NOMAD_1_9)?;
    let mut results = Results::default();
    for package in peer::DRIVER_PACKAGES {
        let events = run(package, &tests).with_context(|| format!("package {package}"))?;
        results.read(&events, &format!("{package}."))?;
    }
    judge(&results, "stock-driver-tests.txt", 60)
}

/// Runs the tests of one package and returns their events.
fn run(package: &str, tests: &Path) -> Result<String> {
    let place = Place::new(&format!("drivers-{package}"))?;
    let tmp = place.path("tmp");
    // What is not /tmp/… any more inside is found there under these names.
    fs::set_permissions(&tmp, fs::Permissions::from_mode(0o1777))?;
    for (from, name) in [(tests.join(format!("{package}.test")), "tests"), (program(), "drover")] {
        fs::copy(&from, tmp.join(name)).with_context(|| format!("could not copy {}", from.display()))?;
    }
    let alone: PathBuf = place.path("alone");
    testkit::program(&alone, &ALONE.replace("PLACE", &tmp.display().to_string()));
    let env = [("DROVER_PROGRAM", "/tmp/drover"), ("NOMAD_TEST_LOG_LEVEL", "OFF")];
    place.run(&alone, Path::new("/"), &["-test.parallel=4"], &env, BOUND)
}

//! The driver as a plugin process under the conformance suite.

use driver_check::{Pace, Selection, Subject};
use driver_sdk::{Driver as _, Health};

/// What the suite can ask where the driver may not isolate tasks: everything that needs none.
const WITHOUT_TASKS: &[&str] = &[
    "launch/no-cookie",
    "launch/handshake",
    "launch/health",
    "launch/sigterm",
    "launch/shutdown",
    "base/info",
    "base/config-schema",
    "base/task-schema",
    "base/set-config-junk",
    "stream",
    "config/junk",
];

#[tokio::test(flavor = "multi_thread")]
async fn the_conformance_suite_passes() {
    let mut subject = Subject::new(env!("CARGO_BIN_EXE_drover-driver-exec"));
    subject.pace = Pace::relaxed();
    let fingerprint = exec::Driver::new().fingerprint().await;
    if fingerprint.health == Health::Undetected {
        let why = fingerprint.description;
        assert!(!why.is_empty(), "a driver that is not to be had here says why");
        let only = WITHOUT_TASKS.iter().map(|id| (*id).to_owned()).collect();
        let report = driver_check::run(subject, &Selection { only, parallel: 0 }).await;
        assert!(report.passed() && report.not_applicable().is_empty(), "{report}");
        skip::cannot(&format!("exec is not to be had on this machine ({why}); only what needs no tasks was checked"));
        return;
    }
    let report = driver_check::run(subject, &Selection::default()).await;
    assert!(report.passed(), "{report}");
    let left_out: Vec<&str> = report
        .not_applicable()
        .into_iter()
        .filter(|id| !id.starts_with("remote/") && !id.starts_with("network/"))
        .collect();
    assert!(left_out.is_empty(), "{report}");
}

//! The driver as a plugin process under the conformance suite, with a Slurm that is a directory and processes.

use driver_check::{Pace, Selection, Subject, TaskKit};
use serde_json::json;

/// What the suite cannot ask of this driver.
const NOT_APPLICABLE: &[&str] = &["network/create", "network/destroy"];

#[tokio::test(flavor = "multi_thread")]
async fn the_conformance_suite_passes() {
    let mut subject = Subject::new(env!("CARGO_BIN_EXE_drover-driver-slurm"));
    subject.pace = Pace::relaxed();
    let fake = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fake");
    let kit = json!({
        "script": {"command": "/bin/sh", "args": ["-c", "@SCRIPT@"]},
        "fails": {"command": "/bin/true", "partition": "nope"},
        "plugin": {"base": "@DIR@/runs", "bin_dir": fake, "conf": "@DIR@/fake", "poll_interval": "500ms"},
    });
    subject.kit = Some(TaskKit::from_json(kit).expect("a kit"));
    let report = driver_check::run(subject, &Selection::default()).await;
    assert_eq!(report.failures(), [""; 0], "{report}");
    assert_eq!(report.not_applicable(), NOT_APPLICABLE, "{report}");
}

//! The driver as a plugin process under the conformance suite.

use driver_check::{Pace, Selection, Subject};

/// What the suite cannot ask of this driver, whose tasks have no options that are numbers, and no networks of their
/// own.
const NOT_APPLICABLE: &[&str] = &["config/int-widths", "config/decimal-strings", "network/create", "network/destroy"];

#[tokio::test(flavor = "multi_thread")]
async fn the_conformance_suite_passes() {
    let mut subject = Subject::new(env!("CARGO_BIN_EXE_drover-driver-remote-exec"));
    subject.pace = Pace::relaxed();
    let report = driver_check::run(subject, &Selection::default()).await;
    assert!(report.passed(), "{report}");
    assert_eq!(report.not_applicable(), NOT_APPLICABLE, "{report}");
}

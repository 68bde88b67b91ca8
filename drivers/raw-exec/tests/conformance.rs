//! The driver as a plugin process under the conformance suite.

use driver_check::{Pace, Selection, Subject};

#[tokio::test(flavor = "multi_thread")]
async fn the_conformance_suite_passes() {
    let mut subject = Subject::new(env!("CARGO_BIN_EXE_drover-driver-raw-exec"));
    subject.pace = Pace::relaxed();
    let report = driver_check::run(subject, &Selection::default()).await;
    assert!(report.passed(), "{report}");
    let left_out: Vec<&str> = report
        .not_applicable()
        .into_iter()
        .filter(|id| !id.starts_with("remote/") && !id.starts_with("network/"))
        .collect();
    assert!(left_out.is_empty(), "{report}");
}

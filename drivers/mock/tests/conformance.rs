//! The drivers as plugin processes under the conformance suite.

use driver_check::{Pace, Selection, Subject};

/// What the suite cannot ask of `mock`. Its tasks run no commands, and it leaves logs to the host.
const NOT_APPLICABLE: &[&str] = &[
    "stop/signal",
    "stop/tree",
    "stop/result",
    "stats/units",
    "logs/after-exit",
    "logs/fifos-untouched",
    "env/given",
    "env/clean",
    "env/sigpipe",
    "exec/streaming",
    "exec/tty-resize",
    "exec/no-program",
    "exec/abort",
    "network/create",
    "network/destroy",
];

/// What the suite cannot ask of `mock_remote`. Its instances run no commands, neither as tasks nor beside them, and
/// have no statistics.
const NOT_APPLICABLE_REMOTE: &[&str] = &[
    "stop/signal",
    "stop/tree",
    "stop/result",
    "stats/goes-on",
    "stats/units",
    "stats/ends",
    "logs/after-exit",
    "env/given",
    "env/clean",
    "env/sigpipe",
    "exec/plain",
    "exec/streaming",
    "exec/stdin",
    "exec/tty-resize",
    "exec/no-setup",
    "exec/no-program",
    "exec/abort",
    "network/create",
    "network/destroy",
];

#[tokio::test(flavor = "multi_thread")]
async fn the_conformance_suite_passes() {
    let mut subject = Subject::new(env!("CARGO_BIN_EXE_drover-driver-mock"));
    subject.pace = Pace::relaxed();
    let report = driver_check::run(subject, &Selection::default()).await;
    assert!(report.passed(), "{report}");
    let left_out: Vec<&str> = report.not_applicable().into_iter().filter(|id| !id.starts_with("remote/")).collect();
    assert_eq!(left_out, NOT_APPLICABLE, "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_conformance_suite_passes_for_remote_tasks() {
    let mut subject = Subject::new(env!("CARGO_BIN_EXE_drover-driver-mock-remote"));
    subject.pace = Pace::relaxed();
    let report = driver_check::run(subject, &Selection::default()).await;
    assert!(report.passed(), "{report}");
    assert_eq!(report.not_applicable(), NOT_APPLICABLE_REMOTE, "{report}");
}

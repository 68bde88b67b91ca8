//! The driver as a plugin process under the conformance suite, with an HTCondor that is a directory and processes.

use driver_check::{Pace, Selection, Subject, TaskKit};
use serde_json::json;

/// What the suite cannot ask of this driver.
const NOT_APPLICABLE: &[&str] = &[
    "signal/delivers",
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

/// Makes the pool of a check in the check's own directory, which the user of the jobs has to enter.
const BEFORE: &str = r#"dir=${TMPDIR%/*}
[ ! -d "$dir/fake" ] || exec "$0"
umask 0
mkdir "$dir/fake"
mkdir -m 755 "$dir/runs"
chmod o+x "$dir" "$TMPDIR"
: > "$dir/fake/lock"
: > "$dir/fake/calls"
umask 022
exec "$0""#;

#[tokio::test(flavor = "multi_thread")]
async fn the_conformance_suite_passes() {
    let bin = testkit::Dir::for_all("condor-bin");
    // Where it was built, the user of the jobs may be unable to enter.
    let fake = bin.at("fake_condor");
    testkit::program(&fake, &std::fs::read(testkit::beside_the_tests("fake_condor")).expect("read"));
    for name in ["condor_submit", "condor_q", "condor_qedit", "condor_release", "condor_rm", "condor_version"] {
        let text = format!("#!/bin/sh\nexec '{}' {name} \"$@\"\n", fake.display());
        testkit::program(&bin.at(name), &text);
    }
    let mut subject = Subject::new("/bin/sh");
    subject.args = ["-c", BEFORE, env!("CARGO_BIN_EXE_drover-driver-htcondor")].map(Into::into).into();
    subject.pace = Pace::relaxed();
    let user = if rustix::process::geteuid().is_root() { "nobody" } else { "" };
    let kit = json!({
        "script": {"command": "/bin/sh", "args": ["-c", "@SCRIPT@"]},
        "fails": {"command": "/bin/true", "requirements": "Arch =="},
        "plugin": {
            "base": "@DIR@/runs", "bin_dir": bin.path(), "conf": "@DIR@/fake", "schedd": "submit-1", "user": user,
            "poll_interval": "500ms",
        },
    });
    subject.kit = Some(TaskKit::from_json(kit).expect("a kit"));
    let report = driver_check::run(subject, &Selection::default()).await;
    assert_eq!(report.failures(), [""; 0], "{report}");
    assert_eq!(report.not_applicable(), NOT_APPLICABLE, "{report}");
}

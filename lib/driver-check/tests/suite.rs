//! The suite against a driver that is in order, and against the same driver with each of its faults: every check can
//! fail, for its reason.

use std::collections::BTreeSet;
use std::time::Duration;

use driver_check::{Pace, Selection, Subject, TaskKit, Verdict};
use futures::StreamExt;
use serde_json::json;

/// Check, fault of the driver, and a part of what the check must then have seen.
const FAULTS: &[(&str, &str, &str)] = &[
    ("launch/no-cookie", "launch/no-cookie", "went on running"),
    ("launch/handshake", "launch/handshake", "5 fields"),
    ("launch/handshake", "launch/handshake#banner", "not a plugin handshake"),
    ("launch/socket-dir", "launch/socket-dir", "asked for was a place in"),
    ("launch/seventh-field", "launch/seventh-field", "asked for a seventh field"),
    ("launch/other-version", "launch/other-version", "version \"99\""),
    ("launch/stdout-quiet", "launch/stdout-quiet", "configured"),
    ("launch/health", "launch/health", "ServiceUnknown"),
    ("launch/sigint", "launch/sigint", "SIGINT ended it"),
    ("launch/sigterm", "launch/sigterm", "still runs"),
    ("launch/closed-stderr", "launch/closed-stderr", "exit status: 4"),
    ("launch/bare-probe", "launch/bare-probe", "does not listen"),
    ("launch/shutdown", "launch/shutdown", "still runs"),
    ("launch/shutdown-keeps-tasks", "launch/shutdown-keeps-tasks", ""),
    ("base/info", "base/info", "is empty"),
    ("base/config-schema", "base/config-schema", "is empty"),
    ("base/task-schema", "base/task-schema", "differently after SetConfig"),
    ("base/set-config-twice", "base/set-config-twice", "sleep 60"),
    ("base/set-config-live", "base/set-config-live", "running task is answered"),
    ("base/set-config-junk", "base/set-config-junk", "was accepted"),
    ("base/init-shutdown", "base/init-shutdown", "Init was answered"),
    ("base/unknown-call", "base/unknown-call", "Internal"),
    ("base/unknown-fields", "base/unknown-fields", "unknown field 4711"),
    ("base/oversized", "base/oversized", "five MiB"),
    ("base/junk-requests", "base/junk-requests", "StartTask with an empty request"),
    ("stream/fingerprint-first", "stream/fingerprint-first", "health is 9"),
    ("stream/fingerprint-open", "stream/fingerprint-open", "was ended by the plugin"),
    ("stream/fingerprint-attributes", "stream/fingerprint-attributes", "has no value"),
    ("stream/events-open", "stream/events-open", "was ended by the plugin"),
    ("stream/stdio-open", "stream/stdio-open", "was ended by the plugin"),
    ("stream/cancel", "stream/cancel", "more open files"),
    ("config/nil", "config/nil", "note is nil"),
    ("config/int-widths", "config/int-widths", "as int 64"),
    ("config/decimal-strings", "config/decimal-strings", "as text"),
    ("config/text-forms", "config/text-forms", "texts as bin"),
    ("config/unknown-key", "config/unknown-key", "what is zz_option"),
    ("config/junk", "config/junk", "exit status: 3"),
    ("start/handle", "start/handle", "version is 0"),
    ("start/two-tasks", "start/two-tasks", "another task ended"),
    ("start/twice", "start/twice", "answered as a success"),
    ("start/failure", "start/failure", "failed task do not go away"),
    ("start/after-failure", "start/after-failure", "has failed already"),
    ("start/network", "start/network", "is 0"),
    ("start/inspect", "start/inspect", "result is missing"),
    ("wait/exit-code", "wait/exit-code", "without a result"),
    ("wait/concurrent", "wait/concurrent", "of 10"),
    ("wait/cancelled", "wait/cancelled", "somebody went away"),
    ("wait/after-exit", "wait/after-exit", "task not found"),
    ("wait/unknown", "wait/unknown", "who is that"),
    ("wait/destroyed", "wait/destroyed", "answered as a success"),
    ("stop/ends", "stop/ends", "while the task has the state"),
    ("stop/signal", "stop/signal", "exits with 33"),
    ("stop/timeout", "stop/timeout", "was answered after"),
    ("stop/tree", "stop/tree", "there are processes"),
    ("stop/ended", "stop/ended", "it has ended"),
    ("stop/result", "stop/result", "killed by signal 9"),
    ("signal/delivers", "signal/delivers", "got-usr1"),
    ("destroy/again", "destroy/again", "the second DestroyTask"),
    ("destroy/running", "destroy/running", "was answered as a success"),
    ("destroy/force", "destroy/force", "there are processes"),
    ("recover/running", "recover/running", "has become"),
    ("recover/empty-config", "recover/empty-config", "how is the task configured"),
    ("recover/finished", "recover/finished", "run again"),
    ("recover/known", "recover/known", "it is here already"),
    ("recover/other-version", "recover/other-version", "answered as a success"),
    ("recover/junk", "recover/junk", "exit status: 6"),
    ("recover/twice-killed", "recover/twice-killed", "has become"),
    ("stats/first", "stats/first", "has the time"),
    ("stats/goes-on", "stats/goes-on", "did not come"),
    ("stats/units", "stats/units", "at most 0.5 percent"),
    ("stats/ends", "stats/ends", "still open"),
    ("logs/complete", "logs/complete", "differs from line"),
    ("logs/after-exit", "logs/after-exit", "last words"),
    ("logs/fifos-untouched", "logs/fifos-untouched", "opened a fifo"),
    ("logs/disabled", "logs/disabled", "is no fifo"),
    ("env/given", "env/given", "is not in the environment"),
    ("env/clean", "env/clean", "PLUGIN_"),
    ("env/sigpipe", "env/sigpipe", "SIGPIPE ignored"),
    ("log/hclog", "log/hclog", "no JSON object"),
    ("exec/plain", "exec/plain", "without a result"),
    ("exec/streaming", "exec/streaming", "exit code 5"),
    ("exec/stdin", "exec/stdin", "input was open"),
    ("exec/tty-resize", "exec/tty-resize", "sent nothing more"),
    ("exec/no-setup", "exec/no-setup", "without set-up"),
    ("exec/no-program", "exec/no-program", "does not exist ended"),
    ("exec/abort", "exec/abort", "still runs"),
    ("network/create", "network/create", "asked again it is"),
    ("network/destroy", "network/destroy", "the second DestroyNetwork"),
    ("remote/describe", "remote/describe", "no range"),
    ("remote/ensure-twice", "remote/ensure-twice", "created an instance"),
    ("remote/ensure-racing", "remote/ensure-racing", "created"),
    ("remote/stale-epoch", "remote/stale-epoch", "answered as a success"),
    ("remote/observe", "remote/observe", "expected is"),
    ("remote/unknown-handle", "remote/unknown-handle", "expected is UNKNOWN"),
    ("remote/find", "remote/find", "expected is NOT_FOUND"),
    ("remote/list", "remote/list", "another owner"),
    ("remote/watch", "remote/watch", "ended before"),
    ("remote/stop", "remote/stop", "expected is EXITED"),
    ("remote/exit-result", "remote/exit-result", "it ended with code 7"),
    ("remote/acknowledge", "remote/acknowledge", "runs was answered as a success"),
    ("remote/seal", "remote/seal", "a sealed key"),
    ("remote/seal-acknowledged", "remote/seal-acknowledged", "an acknowledged key"),
    ("remote/survives", "remote/survives", "the same runtime is called"),
    ("remote/logs", "remote/logs", "offset"),
    ("remote/refresh", "remote/refresh", "that nobody has sent"),
    ("remote/refresh", "remote/refresh#ended", "has ended was answered as a success"),
    ("remote/detach", "remote/detach", "RecoverTask"),
    ("stream/events-open", "leaves-process", "left behind after the check: processes"),
    ("base/info", "leaves-socket", "left behind after the check: sockets"),
];

/// Declared only with their faults; drivers that are in order with it are raw_exec and docker.
const NOT_APPLICABLE: &[&str] = &["logs/fifos-untouched", "network/create", "network/destroy"];

fn subject(fault: &str, pace: Pace) -> Subject {
    let mut subject = Subject::new(env!("CARGO_BIN_EXE_driver-check-faulty"));
    subject.env = vec![("DRIVER_CHECK_FAULT".into(), fault.into())];
    subject.config = Some(json!({"root": "@DIR@/runtime"}));
    subject.kit = TaskKit::preset("command").ok();
    subject.pace = pace;
    subject
}

#[tokio::test(flavor = "multi_thread")]
async fn a_driver_that_is_in_order_passes() {
    let report = driver_check::run(subject("", Pace::relaxed()), &Selection::default()).await;
    assert!(report.passed(), "{report}");
    assert_eq!(report.not_applicable(), NOT_APPLICABLE, "{report}");
}

/// Some faults are things that never happen: patience is what they cost. Others happen at once, which may take a busy
/// machine a while.
fn pace_of(fault: &str) -> Pace {
    let pace = Pace { patience: Duration::from_secs(20), hold: Duration::from_secs(3), slack: 2.0 };
    match fault {
        // These two end early what would take so long: where they do, it costs nothing.
        "stop/timeout" => Pace { slack: 15.0, ..pace },
        "base/set-config-live" => Pace { hold: Duration::from_secs(15), ..pace },
        _ => pace,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_check_fails_on_its_fault_and_says_what_it_saw() {
    let runs = FAULTS.iter().map(|(check, fault, part)| async move {
        let selection = Selection { only: vec![(*check).to_owned()], parallel: 1 };
        let report = driver_check::run(subject(fault, pace_of(fault)), &selection).await;
        match report.findings.as_slice() {
            [finding] => match &finding.verdict {
                Verdict::Failed(seen) if seen.contains(part) => None,
                other => Some(format!("{check} with fault {fault}: {other:?}, expected to be seen: {part:?}")),
            },
            _ => Some(format!("{check}: {report}")),
        }
    });
    let wrong: Vec<String> =
        futures::stream::iter(runs).buffer_unordered(8).filter_map(std::future::ready).collect().await;
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_check_has_a_fault() {
    let shown: BTreeSet<&str> = FAULTS.iter().map(|(check, ..)| *check).collect();
    let all: BTreeSet<&str> = driver_check::all().map(|check| check.id).collect();
    assert_eq!(shown, all);
}

#[tokio::test]
async fn a_program_that_is_no_plugin_fails_everything_and_the_report_says_why() {
    let mut subject = Subject::new("/bin/true");
    subject.pace = Pace::relaxed();
    let report = driver_check::run(subject, &Selection { only: vec!["base".into()], parallel: 4 }).await;
    assert!(!report.passed() && report.count().0 == 0, "{report}");
    assert!(report.trouble.is_some_and(|why| why.contains("ended")));
}

#[test]
fn selections_are_by_id_group_or_section_and_name_what_they_do_not_know() {
    let count = |only: &[&str]| {
        let selection = Selection { only: only.iter().map(|s| (*s).to_owned()).collect(), parallel: 0 };
        (driver_check::all().filter(|check| selection.has(check)).count(), selection.unknown())
    };
    assert_eq!(count(&["launch/sigint"]), (1, vec![]));
    assert!(count(&["launch"]).0 > 10 && count(&["h39"]).0 > 5);
    assert_eq!(count(&["launch/sigint", "nonsense"]), (1, vec!["nonsense".to_owned()]));
    assert_eq!(count(&[]).0, driver_check::all().count());
}

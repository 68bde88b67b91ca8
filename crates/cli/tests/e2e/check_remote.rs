//! `drover check remote`: it passes a provider that keeps the contract, fails a driver that does not by the name of the
//! failure, and leaves nothing behind.

use std::{
    ffi::OsStr,
    fs,
    path::PathBuf,
    process::{Command, Output, Stdio},
};

use rustix::process::Signal;
use serde_json::Value;

use crate::agent::{drover, printed, processes_of, signal, until};

/// Runs the check in a directory for its temporary files; a busy machine needs a longer lease than the default.
fn check<S: AsRef<OsStr>>(dir: &tempfile::TempDir, words: &[S]) -> Command {
    let mut command = Command::new(drover());
    command.args(["check", "remote", "-lease", "4s"]).args(words).env("TMPDIR", dir.path()).stdin(Stdio::null());
    command
}

/// Nothing of the check is there any more.
#[track_caller]
fn nothing_is_left(dir: &tempfile::TempDir) {
    let left: Vec<PathBuf> = fs::read_dir(dir.path()).expect("reads").flatten().map(|entry| entry.path()).collect();
    let left: Vec<_> = left.iter().filter(|path| path.to_string_lossy().contains("drover-check-")).collect();
    assert!(left.is_empty() && processes_of(dir.path()).is_empty(), "{left:?} {:?}", processes_of(dir.path()));
}

fn findings(output: &Output) -> Vec<(String, String, String)> {
    let told: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {}", printed(output)));
    let rows = told["failures"].as_array().expect("findings").iter();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    rows.map(|row| (text(&row["id"]), text(&row["verdict"]), text(&row["text"]))).collect()
}

#[test]
fn the_mock_provider_keeps_the_contract() {
    let dir = tempfile::tempdir().expect("a directory");
    let rows = ["-only", "manager-killed", "-only", "create-answer-lost", "-only", "end-unmanaged", "-json"];
    let output = check(&dir, &rows).output().expect("drover check");
    let found = findings(&output);
    let passed = found.iter().filter(|(_, verdict, _)| verdict == "pass").count();
    assert!(output.status.success() && passed == 3, "{found:#?}\n{}", printed(&output));
    nothing_is_left(&dir);
}

#[test]
fn what_a_driver_does_not_declare_is_not_asked_of_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let config = dir.path().join("config.hcl");
    fs::write(&config, "dir = \"@DIR@/provider\"\nwithout = [\"keyed_create\"]\n").expect("written");
    let words = [OsStr::new("-config"), config.as_os_str(), "-only".as_ref(), "late-create".as_ref()];
    let output = check(&dir, &words).output().expect("drover check");
    let told = printed(&output);
    assert!(
        output.status.success() && told.contains("n.a.  late-create") && told.contains("no keyed create"),
        "{told}"
    );
    nothing_is_left(&dir);
}

#[test]
fn a_driver_that_breaks_the_contract_fails_by_name() {
    let faulty = drover().with_file_name("driver-check-faulty");
    if !faulty.exists() {
        skip::cannot("there is no driver-check-faulty beside drover: `cargo build --workspace` makes it");
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let config = dir.path().join("config.hcl");
    fs::write(&config, "root = \"@DIR@/runtime\"\n").expect("written");
    let mut words: Vec<&OsStr> =
        vec!["-driver".as_ref(), "/usr/bin/env".as_ref(), "-preset".as_ref(), "command".as_ref()];
    words.extend(["-config".as_ref(), config.as_os_str(), "-only".as_ref(), "end-unmanaged".as_ref(), "--".as_ref()]);
    // It tells another exit code than the true one.
    words.extend(["DRIVER_CHECK_FAULT=remote/exit-result".as_ref(), faulty.as_os_str()]);
    let output = check(&dir, &words).output().expect("drover check");
    let told = printed(&output);
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains("FAIL  end-unmanaged") && told.contains("the servers know the codes [0]"), "{told}");
    nothing_is_left(&dir);
}

#[test]
fn an_interrupted_check_leaves_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut command = check(&dir, &["-only", "manager-killed"]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("drover check");
    until("a node of the check", || {
        let all = processes_of(dir.path());
        all.values().any(|line| line.contains("check-line")).then_some(())
    });
    signal(i32::try_from(child.id()).expect("a pid"), Signal::INT);
    let status = until("the end of the check", || child.try_wait().expect("wait"));
    assert!(!status.success());
    nothing_is_left(&dir);
}

#[test]
fn a_failure_that_does_not_exist_is_refused_by_name() {
    let dir = tempfile::tempdir().expect("a directory");
    let output = check(&dir, &["-only", "manager-kiled"]).output().expect("drover check");
    assert!(!output.status.success());
    assert!(printed(&output).contains("no failure is called \"manager-kiled\""), "{}", printed(&output));
    let listed = printed(&check(&dir, &["-list"]).output().expect("drover check"));
    assert!(listed.contains("manager-killed") && listed.contains("otherwise: "), "{listed}");
}

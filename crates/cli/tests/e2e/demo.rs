//! The demo holds, and leaves nothing behind.

use std::{
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Command, Stdio},
};

use rustix::process::Signal;

use crate::agent::{drover, processes_of, signal, until};

/// The directory that the first line of the timeline names.
fn directory(line: &str) -> PathBuf {
    PathBuf::from(line.split("cluster in ").nth(1).expect("the first line names the directory").trim())
}

#[test]
fn the_demo_holds() {
    let out = Command::new(drover()).args(["demo", "-lease", "1s"]).stdin(Stdio::null()).output().expect("drover demo");
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{text}\n{}", String::from_utf8_lossy(&out.stderr));
    assert!(text.contains("without a gap or a repetition"), "{text}");
    let dir = directory(text.lines().next().expect("a timeline"));
    assert!(processes_of(&dir).is_empty(), "left running: {:?}", processes_of(&dir));
    assert!(!dir.exists(), "{} is still there", dir.display());
}

#[test]
fn an_interrupted_demo_leaves_nothing() {
    let mut child =
        Command::new(drover()).arg("demo").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("drover demo");
    let mut lines = BufReader::new(child.stdout.take().expect("stdout")).lines();
    let dir = directory(&lines.next().expect("a line").expect("text"));
    // In the middle of things: agents run, a workload runs.
    lines.find(|l| l.as_ref().is_ok_and(|l| l.contains("local job hello runs"))).expect("the local job").expect("text");
    assert!(!processes_of(&dir).is_empty());
    signal(i32::try_from(child.id()).expect("a pid"), Signal::INT);
    drop(lines);
    let status = until("the end of the demo", || child.try_wait().expect("wait"));
    assert!(!status.success());
    assert!(processes_of(&dir).is_empty(), "left running: {:?}", processes_of(&dir));
    assert!(!dir.exists());
}

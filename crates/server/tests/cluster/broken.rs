//! A part of the server that panics or stands still is the end of the process, and says which part it was.

use std::{
    process::{Command, Stdio},
    time::Duration,
};

use server::{Fault, ServerConfig};

use crate::fake::*;

/// The victim of the next test: a server with a fault in one of its loops, and work for all of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "run by `a_broken_part_ends_the_process_by_name` as a process of its own"]
async fn victim() {
    let Ok(fault) = std::env::var("SERVER_TEST_FAULT") else { return };
    let (name, fault) = fault.split_once(' ').unwrap();
    // A panic is noticed at once; a bound that is too short for a busy machine would name another loop.
    let (fault, bound) = if fault == "hang" { (Fault::Hang, 8) } else { (Fault::Panic, 60) };
    let dir = tempfile::tempdir().unwrap();
    let server = start_with(ServerConfig {
        data_dir: Some(dir.path().to_owned()),
        end_process_when_broken: true,
        stuck_after: Duration::from_secs(bound),
        ..ServerConfig::default()
    })
    .await;
    let s = server.handle();
    let _a = FakeNode::join(s, remote_node(1), Fate::Runs, &Provider::default()).await;
    // A loop makes itself known when it first runs.
    eventually(name, || s.break_loop(name, fault)).await;
    for number in 0.. {
        // What waits for a broken part is not answered.
        let _ =
            tokio::time::timeout(Duration::from_millis(200), submit(s, remote_job(&format!("job-{number}"), 1))).await;
        // The machine is left to the parts that must not stand still, and to other tests.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[test]
fn a_broken_part_ends_the_process_by_name() {
    let faults = [
        ("commit panic", "deciding thread (commit) has panicked: a fault was put here"),
        ("commit hang", "commit has stood still for"),
        ("store hang", "store has stood still for"),
        ("store panic", "store writer has ended with a batch in its hands"),
        ("leases panic", "leases has panicked: a fault was put here"),
        ("leases hang", "leases has stood still for"),
        ("deployments panic", "deployments has panicked"),
        ("supervision hang", "supervision has stood still"),
        ("workers panic", "worker has panicked"),
        ("session panic", "session has panicked"),
        ("recovery panic", "recovery has panicked"),
        ("recovery hang", "recovery has stood still for"),
    ];
    // What the victims cannot clean up any more goes with it.
    let dir = tempfile::tempdir().unwrap();
    let start = |(fault, words): (&'static str, &'static str)| {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["broken::victim", "--exact", "--ignored", "--nocapture"])
            .env("SERVER_TEST_FAULT", fault)
            .env("TMPDIR", dir.path())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        (fault, words, child)
    };
    for (fault, words, child) in faults.map(start) {
        let out = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(70), "{fault}: {said}");
        assert!(said.contains(words) && said.contains("the process ends"), "{fault}: {said}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_does_not_own_its_process_tells_its_owner() {
    let server = start().await.0;
    let s = server.handle();
    let all = s.progress();
    let commit = all.iter().find(|turns| turns.name == "commit").unwrap();
    assert!(commit.turns > 0 && commit.status.ends_with("a decision"), "{commit:?}");
    assert!(!s.break_loop("no such loop", Fault::Panic));
    let _a = FakeNode::join(s, node(1), Fate::Runs, &Provider::default()).await;
    submit(s, job("web", 1)).await;
    assert!(s.break_loop("leases", Fault::Panic));
    let reason = soon(server.failed()).await;
    assert!(reason.contains("leases has panicked"), "{reason}");
}

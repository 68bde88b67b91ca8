//! A part of the server that stands still while the API asks for its work is the end of the process, by name.

use std::{
    process::{Command, Stdio},
    time::Duration,
};

use server::{Fault, ServerConfig};
use server_http::{HttpOptions, Limits};

use crate::cluster::{Cluster, FakeNode, job, node};

/// The victim of the next test: a server whose commits hang, and requests that wait for them.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "run by `commits_that_hang_end_the_process_by_name` as a process of its own"]
async fn victim() {
    if std::env::var_os("SERVER_TEST_FAULT").is_none() {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let config = ServerConfig {
        data_dir: Some(dir.path().to_owned()),
        end_process_when_broken: true,
        // A bound that is too short for a busy machine would name another loop.
        stuck_after: Duration::from_secs(8),
        ..ServerConfig::default()
    };
    let c = Cluster::of(config, HttpOptions::default(), Limits::default()).await;
    let _node = FakeNode::join(&c, node("n")).await;
    assert!(c.server.handle().break_loop("commit", Fault::Hang));
    for number in 0.. {
        // What waits for a broken part is not answered.
        let _ = tokio::time::timeout(Duration::from_millis(200), c.register(&job(&format!("job-{number}"), 1))).await;
    }
}

#[test]
fn commits_that_hang_end_the_process_by_name() {
    // What the victim cannot clean up any more goes with it.
    let dir = tempfile::tempdir().expect("a directory");
    let out = Command::new(std::env::current_exe().expect("this program"))
        .args(["broken::victim", "--exact", "--ignored", "--nocapture"])
        .env("SERVER_TEST_FAULT", "commit hang")
        .env("TMPDIR", dir.path())
        .stdout(Stdio::null())
        .output()
        .expect("the victim starts");
    let said = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(70), "{said}");
    assert!(said.contains("commit has stood still for") && said.contains("the process ends"), "{said}");
}

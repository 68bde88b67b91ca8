//! What a plugin built with the SDK shows to any host.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

use driver_host::proto::handshake;
use rustix::process::Signal;
use testkit::Guard;

use crate::support::{Fixture, fake_plugin, signal};

fn plugin(dir: &Path) -> Command {
    let mut command = Command::new(fake_plugin());
    command
        .arg("mock")
        .env("TMPDIR", dir)
        .env(handshake::COOKIE_KEY, handshake::COOKIE_VALUE)
        .env(handshake::PROTOCOL_VERSIONS_KEY, "2")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn first_line(child: &mut Child) -> String {
    let mut line = String::new();
    let mut stdout = BufReader::new(child.stdout.take().expect("piped"));
    stdout.read_line(&mut line).expect("reads");
    line
}

fn ends(child: &mut Child) -> ExitStatus {
    testkit::until("the end of the plugin", || child.try_wait().expect("asked"))
}

#[test]
fn run_by_hand_it_explains_itself() {
    let dir = tempfile::tempdir().expect("temporary directory");
    for cookie in [None, Some("wrong")] {
        let mut command = plugin(dir.path());
        match cookie {
            None => command.env_remove(handshake::COOKIE_KEY),
            Some(cookie) => command.env(handshake::COOKIE_KEY, cookie),
        };
        let output = command.output().expect("runs");
        assert_eq!(output.status.code(), Some(1));
        assert!(output.stdout.is_empty());
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(text.contains("driver plugin \"mock\"") && text.contains("plugin directory"), "{text}");
    }
}

#[test]
fn the_handshake_is_exact_and_the_plugin_is_hardy() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let sockets = dir.path().join("own");
    std::fs::create_dir(&sockets).expect("creates");
    let mut child = Guard(plugin(dir.path()).env(handshake::SOCKET_DIR_KEY, &sockets).spawn().expect("starts"));
    let line = first_line(&mut child);
    let fields: Vec<&str> = line.trim_end_matches('\n').split('|').collect();
    assert_eq!(
        (fields.len(), fields[0], fields[1], fields[2], fields[4], fields[5]),
        (6, "1", "2", "unix", "grpc", "")
    );
    let socket = Path::new(fields[3]);
    assert_eq!(socket.parent(), Some(sockets.as_path()));
    assert_eq!(std::fs::metadata(socket).expect("exists").permissions().mode() & 0o777, 0o600);
    // It listens already; a connection that says nothing harms nobody; Ctrl-C is for the agent; logs may go unread.
    for _ in 0..3 {
        drop(UnixStream::connect(socket).expect("listens"));
    }
    signal(child.id(), Signal::INT);
    drop(child.stderr.take());
    drop(UnixStream::connect(socket).expect("still listens"));
    signal(child.id(), Signal::TERM);
    assert!(ends(&mut child).success());
    assert!(!socket.exists(), "the socket is removed at an orderly end");
}

#[test]
fn the_seventh_field_comes_only_on_request_and_the_directory_has_a_default() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let mut child = Guard(plugin(dir.path()).env(handshake::MULTIPLEX_KEY, "true").spawn().expect("starts"));
    let line = first_line(&mut child);
    assert!(line.ends_with("|grpc||false\n"), "{line}");
    assert!(line.contains(&format!("|{}/plugin", dir.path().display())), "{line}");
    signal(child.id(), Signal::TERM);
    ends(&mut child);
}

#[test]
fn a_socket_that_cannot_be_made_is_explained() {
    let dir = tempfile::tempdir().expect("temporary directory");
    for (socket_dir, part) in
        [(dir.path().join("missing"), "cannot listen"), (dir.path().join("x".repeat(120)), "longer than")]
    {
        let mut child = Guard(plugin(dir.path()).env(handshake::SOCKET_DIR_KEY, &socket_dir).spawn().expect("starts"));
        assert_eq!(first_line(&mut child), "");
        assert_eq!(ends(&mut child).code(), Some(1));
        let mut text = String::new();
        child.stderr.take().expect("piped").read_to_string(&mut text).expect("reads");
        assert!(text.contains(part), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_plugin_is_small() {
    let (fixture, _driver) = Fixture::mock().await;
    let pid = fixture.fingerprint("mock", |f| f.healthy).await.pid.expect("runs");
    let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).expect("readable");
    let kib = |name: &str| {
        let line = rollup.lines().find(|line| line.starts_with(name)).expect("line");
        line.split_whitespace().nth(1).expect("number").parse::<u64>().expect("number")
    };
    let private = kib("Private_Dirty:") + kib("Private_Clean:");
    // Without optimisation; the bound for the release build is in the benches.
    assert!(kib("Pss:") < 20 << 10, "{} KiB PSS, {private} KiB private", kib("Pss:"));
    fixture.finish().await;
}

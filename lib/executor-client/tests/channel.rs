//! The runtime of a host through its channel, with the real program at the other end of the pipes.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use executor_client::host::host_request::Op;
use executor_client::host::{
    HOST_WINDOW, HostAcknowledge, HostEnsure, HostErrorCode, HostExec, HostInput, HostKeys, HostLogs, HostOutput,
    HostState, HostStop, host_reply::Body,
};
use executor_client::{CallError, HostCall, HostChannel, OpenError, Patience, install};
use tempfile::TempDir;
use testkit::{eventually, soon};
use tokio::process::Command;

const PATIENCE: Patience = Patience { greeting: Duration::from_secs(30), silence: Duration::from_secs(30) };

struct Host {
    dir: TempDir,
    channel: HostChannel,
}

impl Host {
    async fn new() -> Host {
        let dir = tempfile::tempdir().unwrap();
        let channel = connect(dir.path()).await;
        Host { dir, channel }
    }

    /// Keys are unique on the machine because they name cgroups.
    fn key(&self, name: &str) -> String {
        format!("{}-{name}", self.dir.path().file_name().unwrap().to_string_lossy().trim_start_matches('.'))
    }

    async fn ensure(&self, name: &str, script: &str) -> String {
        let request = HostEnsure {
            key: self.key(name),
            epoch: 2,
            owner: "o".into(),
            task_name: name.into(),
            command: "sh".into(),
            args: vec!["-c".into(), script.into()],
            env: [("GREETING".to_owned(), "hello".to_owned())].into(),
            ..HostEnsure::default()
        };
        match self.channel.ask(Op::Ensure(Box::new(request))).await.unwrap() {
            Body::Ensured(ensured) => assert!(ensured.created),
            other => panic!("{other:?}"),
        }
        self.key(name)
    }

    async fn end(&self, key: &str) {
        let stop = HostStop { key: key.into(), epoch: 2, signal: 9, grace_ms: 0 };
        self.channel.ask(Op::Stop(stop)).await.unwrap();
        self.channel.ask(Op::Acknowledge(HostAcknowledge { key: key.into(), epoch: 2 })).await.unwrap();
    }

    fn exec(&self, key: &str, tty: bool, command: &[&str]) -> HostCall {
        let command = command.iter().map(|c| (*c).to_owned()).collect();
        self.channel.call(Op::Exec(HostExec { key: key.into(), epoch: 2, command, tty }))
    }
}

impl Drop for Host {
    /// A failing test leaves nothing running either: instances outlive their channel.
    fn drop(&mut self) {
        testkit::end_everything_of(self.dir.path());
    }
}

async fn connect(root: &Path) -> HostChannel {
    let mut command = Command::new(install(&root.join("executors")).unwrap());
    command.args([Path::new("serve-host"), root, Path::new("n")]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    HostChannel::open(command.spawn().unwrap(), "n", PATIENCE).await.unwrap()
}

/// The output of a command by stream, and its exit code.
async fn collect(call: &mut HostCall) -> (String, String, i32) {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    loop {
        match soon(call.next()).await.unwrap() {
            Body::Output(HostOutput { stderr, data }) => {
                call.taken(data.len());
                if stderr { err.extend(data) } else { out.extend(data) }
            }
            Body::Exited(exit) => {
                return (String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap(), exit.exit_code);
            }
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn commands_run_beside_an_instance() {
    let host = Host::new().await;
    let key = host.ensure("t", "exec sleep 1000").await;
    let mut call = host.exec(&key, false, &["sh", "-c", "echo $GREETING; cat; echo oops >&2; exit 7"]);
    // More than either side may send without a grant.
    let typed = "x".repeat(2 * HOST_WINDOW as usize) + "\n";
    let feed = async {
        let mut sent = 0;
        let (mut out, mut err) = (Vec::new(), Vec::new());
        loop {
            if sent < typed.len() {
                sent += call.send_some(&typed.as_bytes()[sent..]);
                if sent == typed.len() {
                    call.input(HostInput { end: true, ..HostInput::default() });
                }
            }
            match call.step().await.unwrap() {
                None => {}
                Some(Body::Output(HostOutput { stderr, data })) => {
                    call.taken(data.len());
                    if stderr { err.extend(data) } else { out.extend(data) }
                }
                Some(Body::Exited(exit)) => break (out, err, exit.exit_code),
                Some(other) => panic!("{other:?}"),
            }
        }
    };
    let (out, err, code) = soon(feed).await;
    assert_eq!(String::from_utf8(out).unwrap(), format!("hello\n{typed}"));
    assert_eq!((String::from_utf8(err).unwrap().as_str(), code), ("oops\n", 7));

    let mut call =
        host.exec(&key, true, &["sh", "-c", "stty size; read line; stty size; tty >/dev/null && echo $line"]);
    call.input(HostInput { columns: 100, rows: 40, ..HostInput::default() });
    call.input(HostInput { data: b"typed\n".to_vec(), ..HostInput::default() });
    let (out, _, code) = collect(&mut call).await;
    assert!(out.contains("40 100") && out.trim_end().ends_with("typed") && code == 0, "{out:?} {code}");

    let missing = host.exec(&key, false, &["no-such-program"]).next().await;
    assert!(matches!(&missing, Err(CallError::Refused(f)) if f.code() == HostErrorCode::WrongRequest), "{missing:?}");
    let stale = Op::Exec(HostExec { key: key.clone(), epoch: 1, command: vec!["true".into()], tty: false });
    assert!(
        matches!(host.channel.ask(stale).await, Err(CallError::Refused(f)) if f.code() == HostErrorCode::StaleEpoch
            && f.epoch == 2)
    );
    host.end(&key).await;
}

#[tokio::test]
async fn a_command_ends_with_whoever_wants_it() {
    let host = Host::new().await;
    let key = host.ensure("t", "exec sleep 1000").await;
    let mark = host.dir.path().join("mark");
    let script = format!("echo $$ > {0}.new; mv {0}.new {0}; exec sleep 1000", mark.display());
    let call = host.exec(&key, false, &["sh", "-c", &script]);
    eventually("the command's start", || mark.exists()).await;
    let pid = std::fs::read_to_string(&mark).unwrap();
    let runs = || std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).is_ok_and(|s| !s.contains(") Z "));
    assert!(runs());
    drop(call);
    eventually("the command's end", || !runs()).await;
    host.end(&key).await;
}

#[tokio::test]
async fn a_reader_that_waits_holds_up_nobody_else() {
    let host = Host::new().await;
    let key = host.ensure("t", "yes 0123456789 | head -c 4000000; exec sleep 1000").await;
    let logs = HostLogs { key: key.clone(), follow: true, ..HostLogs::default() };
    let mut slow = host.channel.call(Op::Logs(logs));
    // Without a grant the host stops at the window, and still answers.
    for _ in 0..50 {
        match host.channel.ask(Op::Observe(HostKeys { keys: vec![key.clone()] })).await.unwrap() {
            Body::Observed(observed) => assert_eq!(observed.seen[0].state(), HostState::Running),
            other => panic!("{other:?}"),
        }
    }
    let mut text = Vec::new();
    while text.len() < 4_000_000 {
        match soon(slow.next()).await.unwrap() {
            Body::Chunk(chunk) => {
                assert_eq!(chunk.offset, text.len() as u64);
                slow.taken(chunk.data.len());
                text.extend(chunk.data);
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(text.chunks_exact(11).all(|line| line == b"0123456789\n"));
    drop(slow);
    host.end(&key).await;
}

#[tokio::test]
async fn a_far_end_that_closes_its_output_and_lives_on_is_given_up() {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", "exec >&-; exec sleep 600"]).kill_on_drop(true);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let pid = child.id().unwrap();
    let patience = Patience { greeting: Duration::from_secs(10), ..PATIENCE };
    let opened = soon(HostChannel::open(child, "n", patience)).await;
    assert!(matches!(&opened, Err(OpenError::Ended(why)) if why.contains("runs on")), "{opened:?}");
    eventually("its end", || !Path::new(&format!("/proc/{pid}/exe")).exists()).await;
}

#[tokio::test]
async fn another_channel_sees_the_same_and_the_end_of_one_is_said() {
    let host = Host::new().await;
    let key = host.ensure("t", "exec sleep 1000").await;
    let other = connect(host.dir.path()).await;
    assert_eq!(other.hello().runtime, host.channel.hello().runtime);
    let mut watch = other.call(Op::Watch(HostKeys { keys: vec![key.clone()] }));
    assert!(matches!(watch.next().await, Ok(Body::Seen(seen)) if seen.state() == HostState::Running));
    host.end(&key).await;
    // Perhaps ended first, finally gone.
    loop {
        match soon(watch.next()).await.unwrap() {
            Body::Seen(seen) if seen.state() == HostState::Gone => break,
            Body::Seen(seen) => assert_eq!(seen.state(), HostState::Exited),
            other => panic!("{other:?}"),
        }
    }
    let silent = Command::new("sh")
        .args(["-c", "echo first words; echo last words >&2; exit 3"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    match HostChannel::open(silent.unwrap(), "n", PATIENCE).await {
        Err(OpenError::Ended(why)) => {
            assert!(why.contains("last words") && why.contains("first words") && why.contains('3'), "{why}")
        }
        other => panic!("{other:?}"),
    }
}

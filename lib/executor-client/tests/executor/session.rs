//! Programs in a workload.

use executor_client::{Error, ExecExit, ExecSession, ExecSpec, Executor, SessionOutput};

use super::{Bench, eventually, exists, kill};

fn shell(script: &str, tty: bool) -> ExecSpec {
    ExecSpec { command: "sh".into(), args: vec!["-c".into(), script.into()], tty }
}

async fn read_all(output: &mut SessionOutput) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        let chunk = testkit::soon(output.read(4096)).await.unwrap();
        if chunk.is_empty() {
            return all;
        }
        all.extend(chunk);
    }
}

/// Output, errors and end of a session that reads nothing.
pub(crate) async fn finish(mut session: ExecSession) -> (String, String, ExecExit) {
    session.stdin.close().await.unwrap();
    let (out, err) = tokio::join!(read_all(&mut session.stdout), read_all(&mut session.stderr));
    let exit = session.end.wait().await.unwrap();
    (String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap(), exit)
}

#[tokio::test]
async fn it_runs_as_the_workload_does() {
    for bench in Bench::both() {
        let mut spec = bench.spec("t", "exec sleep 1000");
        spec.env.push(("GREETING".into(), "hello".into()));
        let root = rustix::process::geteuid().is_root();
        spec.user = root.then(|| executor_client::User { uid: 4321, gid: 4322, groups: vec![4323] });
        std::os::unix::fs::chown(bench.dir.path(), root.then_some(4321), None).unwrap();
        let executor = bench.launcher.launch(&bench.state("t"), spec).await.unwrap().executor;
        let script = "pwd; echo $GREETING; id -u; readlink /proc/self/fd/* | grep -c .; cat /proc/self/cgroup; exit 7";
        let (out, err, exit) = finish(executor.exec(shell(script, false)).await.unwrap()).await;
        assert_eq!((exit, err.as_str()), (ExecExit { exit_code: 7, signal: 0 }, ""));
        let id = if root { "4321".to_owned() } else { rustix::process::geteuid().as_raw().to_string() };
        assert!(out.starts_with(&format!("{}\nhello\n{id}\n", bench.dir.path().display())), "{out}");
        let own = std::fs::read_to_string(format!("/proc/{}/cgroup", executor.pid())).unwrap();
        let unified = own.lines().find(|l| l.starts_with("0::"));
        assert!(unified.is_none_or(|l| out.contains(l)), "{own} {out}");
        let (_, err, exit) = finish(executor.exec(shell("echo e >&2; kill -9 $$", false)).await.unwrap()).await;
        assert_eq!((exit, err.as_str()), (ExecExit { exit_code: 137, signal: 9 }, "e\n"));
        executor.destroy().await.unwrap();
    }
}

#[tokio::test]
async fn every_byte_passes_in_both_directions() {
    let bench = Bench::new();
    let executor = bench.launch("t", "exec sleep 1000").await;
    let session = executor.exec(ExecSpec { command: "/bin/cat".into(), ..ExecSpec::default() }).await.unwrap();
    let ExecSession { mut stdin, mut stdout, mut end, .. } = session;
    let data: Vec<u8> = (0..3_000_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let sent = data.clone();
    let writer = tokio::spawn(async move {
        stdin.write(&sent).await.unwrap();
        stdin.close().await.unwrap();
    });
    let received = read_all(&mut stdout).await;
    assert!(received == data, "{} of {} bytes", received.len(), data.len());
    writer.await.unwrap();
    assert_eq!(end.wait().await.unwrap(), ExecExit::default());
    executor.destroy().await.unwrap();
}

#[tokio::test]
async fn a_terminal_is_one() {
    let bench = Bench::new();
    let executor = bench.launch("t", "exec sleep 1000").await;
    let mut session = executor
        .exec(shell("tty; stty size; echo $TERM; read line; stty size; echo got $line; read more", true))
        .await
        .unwrap();
    let mut seen = String::new();
    while !seen.contains("xterm") {
        let more = session.stdout.read(100).await.unwrap();
        assert!(!more.is_empty(), "{seen}");
        seen.push_str(std::str::from_utf8(&more).unwrap());
    }
    assert!(seen.starts_with("/dev/pts/") && seen.contains("24 80"), "{seen}");
    session.stdin.resize(133, 44).unwrap();
    session.stdin.write(b"hi\n").await.unwrap();
    let (out, err, exit) = finish(session).await;
    assert!(out.contains("44 133") && out.contains("got hi"), "{out}");
    assert_eq!((err.as_str(), exit.exit_code), ("", 1), "the character for the end of input ends `read`");
    // Ctrl-C reaches the foreground job. It replaces the shell: a shell that is just starting a child may swallow the
    // signal.
    let mut session = executor.exec(shell("echo up; exec sleep 1000", true)).await.unwrap();
    assert!(!session.stdout.read(100).await.unwrap().is_empty());
    session.stdin.write(&[3]).await.unwrap();
    assert_eq!(session.end.wait().await.unwrap().signal, 2);
    executor.destroy().await.unwrap();
}

#[tokio::test]
async fn it_ends_when_its_client_goes() {
    for bench in Bench::both() {
        let executor = bench.launch("t", "exec sleep 1000").await;
        for tty in [false, true] {
            let mut session =
                executor.exec(shell("trap '' HUP TERM; sleep 1001 & echo $$ $!; wait", tty)).await.unwrap();
            let line = String::from_utf8(session.stdout.read(100).await.unwrap()).unwrap();
            let pids: Vec<i32> = line.split_ascii_whitespace().map(|p| p.parse().unwrap()).collect();
            assert!(pids.len() == 2 && pids.iter().all(|pid| exists(*pid)), "{line}");
            drop(session);
            eventually("the session has ended", || !pids.iter().any(|pid| exists(*pid))).await;
        }
        assert!(exists(executor.pid()), "the workload goes on");
        executor.destroy().await.unwrap();
    }
}

#[tokio::test]
async fn it_ends_with_the_workload() {
    for bench in Bench::both() {
        let executor = bench.launch("t", "exec sleep 1000").await;
        let mut session = executor.exec(shell("exec sleep 1000", false)).await.unwrap();
        kill(executor.pid(), rustix::process::Signal::TERM);
        assert_eq!(session.end.wait().await.unwrap(), ExecExit { exit_code: 137, signal: 9 });
        assert_eq!(executor.wait().await.unwrap().signal, 15);
        assert!(matches!(executor.exec(shell("true", false)).await, Err(Error::NotRunning { .. })));
        executor.destroy().await.unwrap();
    }
}

#[tokio::test]
async fn what_cannot_be_run_is_said() {
    let bench = Bench::new();
    let executor = bench.launch("t", "exec sleep 1000").await;
    for command in ["no-such-program", "/no/such/program"] {
        let error = executor.exec(ExecSpec { command: command.into(), ..ExecSpec::default() }).await.unwrap_err();
        assert!(matches!(error, Error::Exec { errno: 2, .. }) && error.to_string().contains(command), "{error}");
    }
    let sessions: Vec<ExecSession> =
        futures(64, || async { executor.exec(shell("exec sleep 1000", false)).await.unwrap() }).await;
    let error = executor.exec(shell("true", false)).await.unwrap_err();
    assert!(error.to_string().contains("64"), "{error}");
    drop(sessions);
    executor.destroy().await.unwrap();
}

async fn futures<T, F: Future<Output = T>>(count: usize, mut make: impl FnMut() -> F) -> Vec<T> {
    let mut made = Vec::new();
    for _ in 0..count {
        made.push(make().await);
    }
    made
}

#[tokio::test]
async fn it_works_after_the_first_controller_has_gone() {
    let bench = Bench::new();
    let executor = bench.launch("t", "exec sleep 1000").await;
    let state = executor.state_dir().to_owned();
    drop(executor);
    let executor = Executor::attach(&state).await.unwrap();
    let (out, _, exit) = finish(executor.exec(shell("echo again", false)).await.unwrap()).await;
    assert_eq!((out.as_str(), exit.exit_code), ("again\n", 0));
    executor.destroy().await.unwrap();
}

/// Prints what a session costs. Run with `--ignored --nocapture`, best in release mode.
#[tokio::test]
#[ignore = "a measurement"]
async fn cost_of_true() {
    let bench = Bench::new();
    let executor = bench.launch("t", "exec sleep 1000").await;
    let mut took = Vec::new();
    for _ in 0..200 {
        let begun = std::time::Instant::now();
        finish(executor.exec(ExecSpec { command: "true".into(), ..ExecSpec::default() }).await.unwrap()).await;
        took.push(begun.elapsed());
    }
    took.sort_unstable();
    eprintln!("exec true: p50 {:?}, p99 {:?}", took[100], took[198]);
    executor.destroy().await.unwrap();
}

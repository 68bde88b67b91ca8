//! Executors with real processes.

mod isolation;
mod limits;
mod robustness;
mod session;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use executor_client::{
    CgroupHost, CgroupPolicy, Error, Executor, Follow, LaunchSpec, Launcher, LogPolicy, RotatedLog, destroy,
};
use rustix::process::{Pid, Signal, test_kill_process};
use tempfile::TempDir;
use testkit::{eventually, signal as kill, soon};

/// One test's directories; a drop ends a failing test's processes.
struct Bench {
    dir: TempDir,
    launcher: Launcher,
}

impl Bench {
    fn new() -> Bench {
        let launcher = Launcher::new(Path::new(env!("CARGO_TARGET_TMPDIR")).join("executors")).unwrap();
        Bench { dir: tempfile::tempdir().unwrap(), launcher }
    }

    fn without_cgroups() -> Bench {
        let mut bench = Bench::new();
        bench.launcher = bench.launcher.clone().with_cgroups(CgroupHost::off());
        bench
    }

    /// Both kinds of boundary; one if the host has no cgroups.
    fn both() -> Vec<Bench> {
        vec![Bench::new(), Bench::without_cgroups()]
    }

    fn state(&self, name: &str) -> PathBuf {
        self.dir.path().join("state").join(name)
    }

    fn logs(&self) -> PathBuf {
        let logs = self.dir.path().join("logs");
        std::fs::create_dir_all(&logs).unwrap();
        logs
    }

    fn log_policy(&self, name: &str, max_files: u32, max_file_bytes: u64) -> LogPolicy {
        LogPolicy {
            dir: self.logs(),
            stdout_name: format!("{name}.stdout"),
            stderr_name: format!("{name}.stderr"),
            max_files,
            max_file_bytes,
        }
    }

    fn spec(&self, name: &str, script: &str) -> LaunchSpec {
        let unique = self.dir.path().file_name().unwrap().to_string_lossy().into_owned();
        LaunchSpec {
            id: format!("{unique}-{name}"),
            command: "/bin/sh".into(),
            args: vec!["-c".into(), script.into()],
            env: vec![("PATH".into(), "/usr/bin:/bin".into())],
            cwd: self.dir.path().to_owned(),
            log: Some(self.log_policy(name, 10, 10 << 20)),
            cgroup: Some(CgroupPolicy { name: format!("{unique}-{name}"), ..CgroupPolicy::default() }),
            ..LaunchSpec::default()
        }
    }

    async fn launch(&self, name: &str, script: &str) -> Executor {
        self.launcher.launch(&self.state(name), self.spec(name, script)).await.unwrap().executor
    }

    fn output(&self, name: &str) -> String {
        let log = RotatedLog::new(self.logs(), name);
        String::from_utf8(log.read(0, 1 << 20).unwrap().data).unwrap()
    }
}

impl Drop for Bench {
    /// A failing test leaves nothing running either.
    fn drop(&mut self) {
        testkit::end_everything_of(self.dir.path());
    }
}

fn exists(pid: i32) -> bool {
    let alive = |text: String| !text.rsplit_once(") ").unwrap().1.starts_with(['Z', 'X']);
    test_kill_process(Pid::from_raw(pid).unwrap()).is_ok()
        && std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(alive)
}

/// Waits for a file that a script writes, and returns the number in it.
async fn pid_in(path: &Path) -> i32 {
    let pid = || std::fs::read_to_string(path).ok().filter(|t| t.ends_with('\n')).and_then(|t| t.trim().parse().ok());
    eventually(&format!("a pid in {}", path.display()), pid).await
}

/// Waits for the end of a destroyed executor. A destroy waits for the end of its lock, which comes a moment before.
async fn left(executor: i32) {
    eventually("the executor is gone", || !exists(executor)).await;
}

#[tokio::test]
async fn exit_codes_and_signals_are_exact() {
    let bench = Bench::new();
    for (n, (script, code, signal)) in
        [("exit 0", 0, 0), ("exit 3", 3, 0), ("exit 255", 255, 0), ("kill -9 $$", 137, 9), ("kill -TERM $$", 143, 15)]
            .into_iter()
            .enumerate()
    {
        let executor = bench.launch(&format!("t{n}"), script).await;
        let (first, second) = tokio::join!(executor.wait(), executor.wait());
        let result = first.unwrap();
        assert_eq!((result.exit_code, result.signal, result.lost), (code, signal, false), "{script}");
        assert!(result.finished_at_ns >= result.started_at_ns);
        assert_eq!(second.unwrap(), result);
        assert_eq!(Executor::attach(executor.state_dir()).await.unwrap().wait().await.unwrap(), result);
    }
}

#[tokio::test]
async fn the_workload_gets_what_the_spec_says() {
    let bench = Bench::new();
    let mut spec = bench.spec(
        "t",
        "pwd; echo $0 $1; echo A=$A; env; cat /proc/self/oom_score_adj; id -u; id -G; \
        umask; echo e >&2; readlink /proc/self/fd/* | grep -c .",
    );
    spec.args.extend(["zero".into(), "one".into()]);
    spec.env.push(("A".into(), "b=c".into()));
    spec.oom_score_adj = Some(17);
    let root = rustix::process::geteuid().is_root();
    spec.user = root.then(|| executor_client::User { uid: 4321, gid: 4322, groups: vec![4323] });
    std::os::unix::fs::chown(bench.dir.path(), root.then_some(4321), None).unwrap();
    let executor = bench.launcher.launch(&bench.state("t"), spec).await.unwrap().executor;
    assert_eq!(executor.wait().await.unwrap().exit_code, 0, "{}", bench.output("t.stderr"));
    let output = bench.output("t.stdout");
    let lines: Vec<&str> = output.lines().collect();
    assert_eq!(lines[..2], [bench.dir.path().to_str().unwrap(), "zero one"]);
    assert!(output.contains("\nA=b=c\n") && output.contains("\n17\n"), "{output}");
    if root {
        assert!(output.contains("\n4321\n4322 4323\n"), "{output}");
    }
    assert!(!output.contains("DROVER_EXECUTOR_ID"), "no marker is needed in a cgroup: {output}");
    assert_eq!(bench.output("t.stderr"), "e\n");
}

#[tokio::test]
async fn nobody_is_its_parent_and_nothing_of_it_dies_with_us() {
    let bench = Bench::new();
    let executor = bench.launch("t", "exec sleep 1000").await;
    let (pid, executor_pid) = (executor.pid(), executor.executor_pid());
    let status = std::fs::read_to_string(format!("/proc/{executor_pid}/stat")).unwrap();
    let ppid: u32 = status.rsplit_once(") ").unwrap().1.split(' ').nth(1).unwrap().parse().unwrap();
    assert_ne!(ppid, std::process::id());
    for signal in [Signal::TERM, Signal::INT, Signal::PIPE, Signal::QUIT] {
        kill(executor_pid, signal);
    }
    let state = executor.state_dir().to_owned();
    drop(executor);
    let again = Executor::attach(&state).await.unwrap();
    assert_eq!((again.pid(), again.executor_pid(), again.ended()), (pid, executor_pid, None));
    assert!(exists(pid));
    let spec = std::fs::read_dir(&state).unwrap().flatten().any(|f| f.file_name() == "spec");
    assert!(!spec, "the spec may hold secrets");
    again.destroy().await.unwrap();
    assert!(!exists(pid) && !state.exists());
    left(executor_pid).await;
}

#[tokio::test]
async fn a_killed_executor_takes_its_tree_along() {
    for bench in Bench::both() {
        let (daemon, child) = (bench.dir.path().join("daemon"), bench.dir.path().join("child"));
        let script = "(setsid sh -c 'echo $$ > daemon; exec sleep 1000' &) ; sh -c 'echo $$ > child; exec sleep 1000' \
            & sleep 1000";
        let executor = bench.launch("t", script).await;
        let pids = [pid_in(&daemon).await, pid_in(&child).await, executor.pid()];
        kill(executor.executor_pid(), Signal::KILL);
        let result = soon(executor.wait()).await.unwrap();
        assert!(result.lost && result.exit_code == -1 && result.reason.contains("executor lost"), "{result:?}");
        assert_eq!(pids.map(exists), [false; 3]);
        let found = Executor::attach(executor.state_dir()).await.unwrap();
        assert_eq!(found.ended(), Some(result));
        executor.destroy().await.unwrap();
    }
}

#[tokio::test]
async fn what_a_killed_executor_left_is_ended_by_whoever_finds_it() {
    for bench in Bench::both() {
        let executor =
            bench.launch("t", "(setsid sh -c 'echo $$ > daemon; exec sleep 1000' &) ; exec sleep 1000").await;
        let daemon = pid_in(&bench.dir.path().join("daemon")).await;
        let (state, pid) = (executor.state_dir().to_owned(), executor.executor_pid());
        drop(executor);
        kill(pid, Signal::KILL);
        eventually("the executor is gone", || !exists(pid)).await;
        // Many find it at once, one acts, all report the same.
        let (a, b) = tokio::join!(Executor::attach(&state), Executor::attach(&state));
        let (a, b) = (a.unwrap().wait().await.unwrap(), b.unwrap().wait().await.unwrap());
        assert!(a.lost);
        assert_eq!(a, b);
        assert!(!exists(daemon));
        destroy(&state).await.unwrap();
        assert!(!state.exists());
    }
}

#[tokio::test]
async fn the_tree_ends_with_its_first_process() {
    for bench in Bench::both() {
        let script = "(setsid sh -c 'echo $$ > daemon; trap \"\" TERM INT HUP; while :; do sleep 1; done' &) ; \
                      while [ ! -s daemon ]; do sleep 0.01; done; exit 5";
        let executor = bench.launch("t", script).await;
        let daemon = pid_in(&bench.dir.path().join("daemon")).await;
        assert_eq!(executor.wait().await.unwrap().exit_code, 5);
        assert!(!exists(daemon));
        executor.destroy().await.unwrap();
        left(executor.executor_pid()).await;
    }
}

#[tokio::test]
async fn a_stop_is_a_signal_then_grace_then_death() {
    for bench in Bench::both() {
        let polite =
            bench.launch("polite", "trap 'echo bye; exit 4' TERM; echo up; while :; do sleep 0.01; done").await;
        eventually("it listens", || bench.output("polite.stdout") == "up\n").await;
        let result = polite.stop(15, Duration::from_secs(20)).await.unwrap();
        assert_eq!((result.exit_code, result.signal), (4, 0));
        assert_eq!(bench.output("polite.stdout"), "up\nbye\n");
        assert_eq!(polite.stop(15, Duration::ZERO).await.unwrap(), result, "a second stop finds it done");

        let deaf =
            bench.launch("deaf", "trap '' TERM; echo up; sh -c 'echo $$ > child; while :; do sleep 1; done'").await;
        eventually("it is deaf", || bench.output("deaf.stdout") == "up\n").await;
        let child = pid_in(&bench.dir.path().join("child")).await;
        let begun = Instant::now();
        let result = deaf.stop(15, Duration::from_millis(300)).await.unwrap();
        assert!(begun.elapsed() >= Duration::from_millis(300));
        assert_eq!((result.exit_code, result.signal), (137, 9));
        assert!(!exists(child));
    }
}

#[tokio::test]
async fn signals_arrive_and_nonsense_is_refused() {
    let bench = Bench::new();
    let executor = bench.launch("t", "trap 'echo usr1' USR1; echo up; while :; do sleep 0.01; done").await;
    eventually("it listens", || bench.output("t.stdout") == "up\n").await;
    executor.signal(executor_client::signal_number("SIGUSR1").unwrap()).await.unwrap();
    eventually("the signal is answered", || bench.output("t.stdout") == "up\nusr1\n").await;
    assert!(matches!(executor.signal(999).await, Err(Error::Refused { .. })));
    executor.kill().await.unwrap();
    assert!(matches!(executor.signal(1).await, Err(Error::NotRunning { .. })));
}

#[tokio::test]
async fn every_byte_of_output_is_kept_once() {
    let bench = Bench::new();
    let mut spec = bench.spec("t", "seq 1 200000; seq 1 1000 >&2");
    spec.log = Some(bench.log_policy("t", 1000, 50_000));
    let executor = bench.launcher.launch(&bench.state("t"), spec).await.unwrap().executor;
    executor.wait().await.unwrap();
    let expected: String = (1..=200_000).map(|n| format!("{n}\n")).collect();
    let log = RotatedLog::new(bench.logs(), "t.stdout");
    let segments = log.segments().unwrap();
    assert!(segments.len() > 25 && segments.iter().all(|s| s.size <= 50_000), "{segments:?}");
    let mut got = Vec::new();
    loop {
        let chunk = log.read(got.len() as u64, 7919).unwrap();
        assert_eq!(chunk.offset, got.len() as u64);
        if chunk.data.is_empty() {
            break;
        }
        got.extend(chunk.data);
    }
    assert!(got == expected.as_bytes());
    for segment in &segments {
        let end = (segment.base + segment.size) as usize;
        assert_eq!(got[end - 1], b'\n', "file {} ends within a line", segment.number);
    }
    assert_eq!(bench.output("t.stderr"), (1..=1000).map(|n| format!("{n}\n")).collect::<String>());
}

#[tokio::test]
async fn offsets_survive_the_purge_of_old_files() {
    let bench = Bench::new();
    let mut spec = bench.spec("t", "seq 1 300000");
    spec.log = Some(bench.log_policy("t", 3, 200_000));
    let executor = bench.launcher.launch(&bench.state("t"), spec).await.unwrap().executor;
    executor.wait().await.unwrap();
    let expected: Vec<u8> = (1..=300_000).flat_map(|n| format!("{n}\n").into_bytes()).collect();
    let log = RotatedLog::new(bench.logs(), "t.stdout");
    assert_eq!(log.segments().unwrap().len(), 3);
    assert_eq!(log.end().unwrap(), expected.len() as u64);
    let chunk = log.read(0, 1 << 20).unwrap();
    assert_eq!(chunk.offset, log.start().unwrap());
    assert!(chunk.offset > 0 && chunk.data == expected[chunk.offset as usize..][..chunk.data.len()]);
}

#[tokio::test]
async fn followers_hear_each_line_while_the_workload_waits() {
    let bench = Bench::new();
    // The workload writes a line only after the previous one was read: only the line itself can wake the follower.
    let executor =
        bench.launch("t", "for i in 1 2 3 4 5; do echo $i; while [ ! -e heard$i ]; do sleep 0.02; done; done").await;
    let mut follow = Follow::new(RotatedLog::new(bench.logs(), "t.stdout"), 0).unwrap();
    for line in 1..=5 {
        let chunk = soon(follow.next(4096)).await.unwrap();
        assert_eq!(chunk.data, format!("{line}\n").into_bytes());
        std::fs::write(bench.dir.path().join(format!("heard{line}")), "").unwrap();
    }
    executor.wait().await.unwrap();
}

#[tokio::test]
async fn lower_epochs_change_nothing() {
    let bench = Bench::new();
    let mut spec = bench.spec("t", "exec sleep 1000");
    spec.epoch = Some(5);
    let executor = bench.launcher.launch(&bench.state("t"), spec).await.unwrap().executor;
    let old = executor.at_epoch(4);
    let new = executor.at_epoch(9);
    for refused in [old.signal(9).await.unwrap_err(), old.kill().await.unwrap_err(), old.claim().await.unwrap_err()] {
        assert!(matches!(refused, Error::StaleEpoch { given: 4, current: 5, .. }), "{refused}");
    }
    new.claim().await.unwrap();
    assert!(matches!(executor.at_epoch(5).kill().await, Err(Error::StaleEpoch { given: 5, current: 9, .. })));
    assert!(executor.ended().is_none());
    // It outlives the executor.
    new.kill().await.unwrap();
    let found = Executor::attach(executor.state_dir()).await.unwrap();
    assert_eq!(found.accepted_epoch().unwrap(), 9);
    assert!(matches!(found.at_epoch(8).claim().await, Err(Error::StaleEpoch { given: 8, current: 9, .. })));
    found.at_epoch(10).claim().await.unwrap();
    assert_eq!(found.accepted_epoch().unwrap(), 10);
    let mut again = bench.spec("t", "exec sleep 1000");
    again.epoch = Some(7);
    assert!(matches!(bench.launcher.launch(&bench.state("t"), again).await, Err(Error::StaleEpoch { .. })));
}

#[tokio::test]
async fn a_directory_holds_one_workload_whoever_starts_it() {
    let bench = Bench::new();
    let state = bench.state("t");
    let start = || bench.launcher.launch(&state, bench.spec("t", "echo x; exec sleep 1000"));
    let (mut created, mut pids) = (0, Vec::new());
    let (a, b, c, d) = tokio::join!(start(), start(), start(), start());
    for launched in [a, b, c, d] {
        let launched = launched.unwrap();
        created += usize::from(launched.created);
        pids.push(launched.executor.pid());
    }
    pids.dedup();
    assert_eq!((created, pids.len()), (1, 1));
    let executor = Executor::attach(&state).await.unwrap();
    eventually("it has spoken", || bench.output("t.stdout") == "x\n").await;
    executor.kill().await.unwrap();
    let after = bench.launcher.launch(&state, bench.spec("t", "echo x; exit 0")).await.unwrap();
    assert!(!after.created && after.executor.ended().unwrap().signal == 9, "what has ended is not run again");
    assert_eq!(bench.output("t.stdout"), "x\n");
}

#[tokio::test]
async fn a_start_that_fails_says_why_and_leaves_nothing() {
    let bench = Bench::new();
    let mut missing = bench.spec("missing", "");
    missing.command = "/nonexistent/program".into();
    let error = bench.launcher.launch(&bench.state("missing"), missing).await.unwrap_err();
    assert!(matches!(error, Error::Exec { errno: 2, .. }), "{error}");
    let mut wrong_dir = bench.spec("cwd", "");
    wrong_dir.cwd = "/nonexistent".into();
    let error = bench.launcher.launch(&bench.state("cwd"), wrong_dir).await.unwrap_err();
    assert!(
        matches!(error, Error::Launch { errno: 2, .. }) && error.to_string().contains("working directory"),
        "{error}"
    );
    let mut no_logs = bench.spec("logs", "");
    no_logs.log.as_mut().unwrap().dir = "/nonexistent".into();
    let error = bench.launcher.launch(&bench.state("logs"), no_logs).await.unwrap_err();
    assert!(error.to_string().contains("/nonexistent"), "{error}");
    for name in ["missing", "cwd", "logs"] {
        assert!(matches!(Executor::attach(&bench.state(name)).await, Err(Error::Absent { .. })));
        destroy(&bench.state(name)).await.unwrap();
        assert!(!bench.state(name).exists());
        // The same directory serves for another attempt.
        let again = bench.launcher.launch(&bench.state(name), bench.spec(name, "exit 6")).await.unwrap();
        assert_eq!((again.created, again.executor.wait().await.unwrap().exit_code), (true, 6));
    }
}

/// What was just written may be open for writing in a process that another thread is starting.
#[tokio::test]
async fn a_program_that_is_busy_for_a_moment_is_waited_for() {
    let bench = Bench::new();
    let program = bench.dir.path().join("program");
    testkit::program(&program, "#!/bin/sh\nexit 7\n");
    let writer = std::fs::OpenOptions::new().write(true).open(&program).unwrap();
    let mut spec = bench.spec("t", "");
    spec.command = program;
    let state = bench.state("t");
    let written = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        drop(writer);
    };
    let (launched, ()) = tokio::join!(bench.launcher.launch(&state, spec), written);
    assert_eq!(launched.unwrap().executor.wait().await.unwrap().exit_code, 7);
}

#[tokio::test]
async fn a_deleted_socket_comes_back() {
    let bench = Bench::new();
    let executor = bench.launch("t", "exec sleep 1000").await;
    let (state, pid) = (executor.state_dir().to_owned(), executor.pid());
    drop(executor);
    // It listens as soon as nobody is connected.
    eventually("there is a socket", || state.join("sock").exists()).await;
    std::fs::remove_file(state.join("sock")).unwrap();
    let again = Executor::attach(&state).await.unwrap();
    assert_eq!(again.pid(), pid);
    again.destroy().await.unwrap();
}

#[tokio::test]
async fn a_damaged_record_costs_this_workload_only() {
    let bench = Bench::new();
    let executor = bench.launch("t", "exec sleep 1000").await;
    let (state, pid) = (executor.state_dir().to_owned(), executor.pid());
    std::fs::write(state.join("executor.json"), "{\"id\":").unwrap();
    // While the executor lives the record is not needed.
    let again = Executor::attach(&state).await.unwrap();
    assert_eq!(again.pid(), pid);
    // And the earlier handle remembers it.
    kill(executor.executor_pid(), Signal::KILL);
    assert!(executor.wait().await.unwrap().lost);
    std::fs::remove_file(state.join("result.json")).unwrap();
    assert!(matches!(Executor::attach(&state).await, Err(Error::Damaged { .. })));
}

#[tokio::test]
async fn a_hanging_executor_is_replaced_by_death() {
    let bench = Bench::new();
    let executor = bench.launch("t", "exec sleep 1000").await;
    let pid = executor.pid();
    kill(executor.executor_pid(), Signal::STOP);
    let stop = executor.kill();
    let resume = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(exists(pid));
        kill(executor.executor_pid(), Signal::KILL);
    };
    let (result, ()) = tokio::join!(stop, resume);
    assert!(result.unwrap().lost && !exists(pid));
}

#[tokio::test]
async fn use_of_the_whole_tree_is_measured() {
    for bench in Bench::both() {
        let script =
            "sh -c 'i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done'; sh -c 'exec sleep 1000' & echo up; sleep 1000";
        let executor = bench.launch("t", script).await;
        eventually("work is done", || bench.output("t.stdout") == "up\n").await;
        // A process that is executing another program has no memory that the kernel counts.
        let whole = async || {
            let stats = executor.stats().await.unwrap();
            Some(stats).filter(|stats| stats.pids.len() == 3 && stats.pids.iter().all(|p| p.rss > 0))
        };
        let stats = testkit::poll("all three are there", whole).await;
        assert!(stats.pids.iter().any(|p| p.pid == executor.pid()), "{stats:?}");
        assert!(stats.user_ns + stats.system_ns >= 10_000_000, "the ended child counts: {stats:?}");
        assert!(stats.rss > 500_000 && stats.rss == stats.pids.iter().map(|p| p.rss).sum::<u64>());
        executor.destroy().await.unwrap();
    }
}

#[tokio::test]
async fn memory_limits_kill_and_are_reported() {
    let bench = Bench::new();
    if !limits::enforced(&bench, "memory") {
        return;
    }
    let mut spec = bench.spec("t", "sleep 0.2; head -c 200000000 /dev/zero | tail -n 1 >/dev/null");
    let policy = spec.cgroup.as_mut().unwrap();
    // With a limit of processes everything is entered before the first instruction.
    (policy.memory_max, policy.pids_max) = (Some(16 << 20), Some(100));
    let executor = bench.launcher.launch(&bench.state("t"), spec).await.unwrap().executor;
    let result = executor.wait().await.unwrap();
    assert!(result.oom_killed && result.exit_code == 137, "{result:?}");
    executor.destroy().await.unwrap();
}

/// An immediate fork loop must meet its limit there: nobody could bring such a tree into it afterwards.
#[tokio::test]
async fn the_first_instruction_is_within_the_limit_of_processes() {
    let bench = Bench::new();
    if !limits::enforced(&bench, "pids") {
        return;
    }
    // Many rounds, because a move right after the start would sometimes win.
    for n in 0..20 {
        let name = format!("t{n}");
        let mut spec = bench.spec(&name, "while read -r line; do echo $line; done < /proc/self/cgroup");
        let policy = spec.cgroup.as_mut().unwrap();
        policy.pids_max = Some(7);
        let group = policy.name.clone();
        let executor = bench.launcher.launch(&bench.state(&name), spec).await.unwrap().executor;
        assert_eq!(executor.wait().await.unwrap().exit_code, 0);
        let seen = bench.output(&format!("{name}.stdout"));
        let limiting =
            seen.lines().find(|line| line.contains(":pids:")).or(seen.lines().find(|line| line.starts_with("0::")));
        assert!(limiting.is_some_and(|line| line.ends_with(&group)), "{group}: {seen}");
        executor.destroy().await.unwrap();
    }
}

#[tokio::test]
async fn two_hundred_at_once_and_nothing_is_left() {
    let bench = Bench::new();
    let begun = Instant::now();
    let mut starts = tokio::task::JoinSet::new();
    for n in 0..200 {
        let name = format!("t{n}");
        let (launcher, state, spec) =
            (bench.launcher.clone(), bench.state(&name), bench.spec(&name, "exec sleep 1000"));
        starts.spawn(async move { launcher.launch(&state, spec).await.unwrap().executor });
    }
    let executors = starts.join_all().await;
    eprintln!("200 launched in {:?}", begun.elapsed());
    let sum = |key: &str| -> u64 {
        let of = |pid: i32| {
            let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
            let line = text.lines().find(|l| l.starts_with(key)).unwrap();
            line.split_ascii_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
        };
        executors.iter().map(|e| of(e.executor_pid())).sum()
    };
    let (pss, private) = (sum("Pss:") / 200, (sum("Private_Dirty:") + sum("Private_Clean:")) / 200);
    eprintln!("per executor: PSS {pss} KiB, private {private} KiB");
    assert!(pss <= 160, "PSS {pss} KiB");
    let pids: Vec<i32> = executors.iter().map(Executor::pid).collect();
    let executor_pids: Vec<i32> = executors.iter().map(Executor::executor_pid).collect();
    let states: Vec<PathBuf> = executors.iter().map(|e| e.state_dir().to_owned()).collect();
    // As after a kill of the process that held all of them.
    drop(executors);
    let begun = Instant::now();
    let mut attaches = tokio::task::JoinSet::new();
    for state in states {
        attaches.spawn(async move { Executor::attach(&state).await.unwrap() });
    }
    let executors = attaches.join_all().await;
    eprintln!("200 attached in {:?}", begun.elapsed());
    let mut ends = tokio::task::JoinSet::new();
    for executor in executors {
        ends.spawn(async move { executor.destroy().await.unwrap() });
    }
    ends.join_all().await;
    assert!(!pids.into_iter().any(exists));
    for pid in executor_pids {
        left(pid).await;
    }
    assert_eq!(std::fs::read_dir(bench.dir.path().join("state")).unwrap().count(), 0);
    let cgroups = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let unified = cgroups.lines().find(|l| l.contains(" - cgroup2 ")).map(|l| l.split(' ').nth(4).unwrap().to_owned());
    if let Some(unified) = unified {
        let unique = bench.dir.path().file_name().unwrap().to_string_lossy().into_owned();
        let left = std::fs::read_dir(Path::new(&unified).join("drover")).into_iter().flatten().flatten();
        assert_eq!(left.filter(|d| d.file_name().to_string_lossy().starts_with(&unique)).count(), 0);
    }
}

/// Prints what a flood of output costs beside `seq | cat`. Run with `--ignored --nocapture`.
#[tokio::test]
#[ignore = "a measurement"]
async fn cost_of_a_flood() {
    let bench = Bench::new();
    let last = 115_000_000;
    let file = bench.dir.path().join("cat");
    let begun = Instant::now();
    let script = format!("seq 1 {last} | cat > {}", file.display());
    assert!(std::process::Command::new("sh").args(["-c", &script]).status().unwrap().success());
    let by_cat = begun.elapsed();
    let bytes = std::fs::metadata(&file).unwrap().len();
    std::fs::remove_file(&file).unwrap();
    let mut spec = bench.spec("t", &format!("exec seq 1 {last}"));
    spec.log = Some(bench.log_policy("t", 10, 10 << 20));
    let begun = Instant::now();
    let executor = bench.launcher.launch(&bench.state("t"), spec).await.unwrap().executor;
    let pid = executor.executor_pid();
    let ticks = move || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let fields: Vec<u64> =
            stat.rsplit_once(") ")?.1.split(' ').skip(11).take(2).map_while(|f| f.parse().ok()).collect();
        Some(fields.iter().sum::<u64>())
    };
    let mut used = 0;
    while executor.ended().is_none() {
        used = ticks().unwrap_or(used);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let by_executor = begun.elapsed();
    let log = RotatedLog::new(bench.logs(), "t.stdout");
    assert_eq!(log.end().unwrap(), bytes);
    eprintln!(
        "{} MiB: cat {by_cat:?}, executor {by_executor:?} ({:.2} times), CPU of the executor {} ms",
        bytes >> 20,
        by_executor.as_secs_f64() / by_cat.as_secs_f64(),
        used * 10
    );
}

//! Workloads with a root, processes and rights of their own.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use executor::{capabilities, seccomp};
use executor_client::{Bind, Error, ExecSpec, Isolation, LaunchSpec, Propagation, User};

use super::session::finish;
use super::{Bench, eventually, exists, kill, pid_in};

fn bytes(path: impl AsRef<Path>) -> Vec<u8> {
    path.as_ref().as_os_str().as_bytes().to_vec()
}

fn bind(source: impl AsRef<Path>, target: &str, read_only: bool) -> Bind {
    Bind { source: bytes(source), target: bytes(target), read_only, ..Bind::default() }
}

/// The directory that becomes the root.
fn root(bench: &Bench) -> PathBuf {
    let root = bench.dir.path().join("task");
    for dir in ["local", "private", "tmp"] {
        std::fs::create_dir_all(root.join(dir)).unwrap();
    }
    std::fs::set_permissions(root.join("tmp"), std::fs::Permissions::from_mode(0o1777)).unwrap();
    std::fs::set_permissions(bench.dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    root
}

fn isolation(bench: &Bench) -> Isolation {
    let host = ["/bin", "/etc", "/lib", "/lib64", "/sbin", "/usr", "/no/such/directory"];
    let capabilities = capabilities::set(capabilities::DEFAULT).unwrap();
    Isolation {
        root: bytes(root(bench)),
        mounts: host.map(|dir| Bind { optional: true, ..bind(dir, dir, true) }).to_vec(),
        hidden: vec![b"/private".to_vec()],
        private_pids: true,
        private_ipc: true,
        capabilities,
        no_new_privs: true,
        seccomp: seccomp::default_filter(capabilities),
        ..Isolation::default()
    }
}

fn spec(bench: &Bench, script: &str) -> LaunchSpec {
    let mut spec = bench.spec("t", script);
    spec.command = "sh".into();
    spec.cwd = "/".into();
    spec.isolation = Some(isolation(bench));
    spec
}

/// Whether anything can be isolated here; prints it if not.
#[track_caller]
fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        skip::cannot("isolation needs root");
    }
    root
}

/// Output of an isolated script.
async fn run(bench: &Bench, name: &str, script: &str, change: impl FnOnce(&mut LaunchSpec)) -> String {
    let mut spec = spec(bench, script);
    spec.id = format!("{}-{name}", spec.id);
    spec.log = Some(bench.log_policy(name, 10, 10 << 20));
    spec.cgroup.as_mut().unwrap().name.push_str(name);
    change(&mut spec);
    let executor = bench.launcher.launch(&bench.state(name), spec).await.unwrap().executor;
    let result = testkit::soon(executor.wait()).await.unwrap();
    let output = bench.output(&format!("{name}.stdout")) + &bench.output(&format!("{name}.stderr"));
    assert_eq!(result.exit_code, 0, "{output}");
    executor.destroy().await.unwrap();
    output
}

#[tokio::test]
async fn the_task_directory_is_all_there_is() {
    if !is_root() {
        return;
    }
    for bench in Bench::both() {
        std::fs::create_dir_all(root(&bench).join("private/executor")).unwrap();
        std::fs::write(root(&bench).join("private/executor/secret"), "x").unwrap();
        let script = "echo hello > /local/out; pwd; ls -a /private | wc -l; ls / | tr '\\n' ' '; test -e /root && \
            echo root; \
                      echo x > /usr/x; echo x > /dev/x; echo x > /proc/sys/kernel/domainname; echo ok > /dev/null && \
                      echo ok; \
                      set -- /proc/[0-9]*; echo $#; cat /proc/kcore | wc -c; ls /sys/firmware | wc -l; cat \
                      /proc/self/mountinfo | wc -l";
        let seen = run(&bench, "a", script, |_| {}).await;
        let lines: Vec<&str> = seen.lines().collect();
        assert_eq!(lines[..2], ["/", "2"], "{seen}");
        assert!(lines[2].contains("local ") && lines[2].contains("usr ") && !lines[2].contains("work"), "{seen}");
        assert!(!seen.contains("root\n"), "{seen}");
        assert!(lines[2].ends_with(" ok"), "{seen}");
        assert_eq!(lines[3..6], ["2", "0", "0"], "its init and itself: {seen}");
        assert_eq!(seen.matches("Read-only file system").count(), 3, "{seen}");
        assert_eq!(std::fs::read_to_string(root(&bench).join("local/out")).unwrap(), "hello\n");
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.contains(bench.dir.path().to_str().unwrap()), "nothing is mounted on the host");
    }
}

#[tokio::test]
async fn rights_are_given_up() {
    if !is_root() {
        return;
    }
    let bench = Bench::new();
    let script = "grep -E 'Cap|NoNew|Seccomp:' /proc/self/status | tr -s '\\t' ' '; id -u; mknod /local/sda b 8 0 && \
        cat /local/sda; \
                  mount -t tmpfs x /tmp; unshare -U true; /usr/sbin/chroot / true && echo chroot; true";
    let seen = run(&bench, "root", script, |_| {}).await;
    let usual = format!("{:016x}", capabilities::set(capabilities::DEFAULT).unwrap());
    for name in ["CapPrm", "CapEff", "CapBnd"] {
        assert!(seen.contains(&format!("{name}: {usual}")), "{seen}");
    }
    assert!(
        seen.contains("NoNewPrivs: 1")
            && seen.contains("Seccomp: 2")
            && seen.contains("\n0\n")
            && seen.contains("chroot\n"),
        "{seen}"
    );
    // A device file can be made but does not work; mounts and namespaces are refused.
    assert!(
        seen.contains("/local/sda: Permission denied") && seen.contains("unshare failed: Operation not permitted"),
        "{seen}"
    );
    assert!(seen.contains("mount") && seen.contains("permission denied"), "{seen}");
    let user = User { uid: 4321, gid: 4322, groups: vec![4323] };
    let seen = run(&bench, "user", "grep Cap /proc/self/status | tr -s '\\t' ' '; id -u; id -G", |spec| {
        spec.user = Some(user.clone());
    })
    .await;
    assert!(seen.contains("CapPrm: 0000000000000000") && seen.contains(&format!("CapBnd: {usual}")), "{seen}");
    assert!(seen.ends_with("4321\n4322 4323\n"), "{seen}");
    let bind_service = capabilities::bit("net_bind_service").unwrap();
    let seen = run(&bench, "ambient", "grep Cap /proc/self/status | tr -s '\\t' ' '", |spec| {
        spec.user = Some(user);
        spec.isolation.as_mut().unwrap().ambient = bind_service;
    })
    .await;
    assert!(
        seen.contains(&format!("CapEff: {bind_service:016x}"))
            && seen.contains(&format!("CapAmb: {bind_service:016x}")),
        "{seen}"
    );
    let seen = run(&bench, "open", "grep -E 'NoNew|Seccomp:' /proc/self/status | tr -s '\\t' ' '", |spec| {
        let isolation = spec.isolation.as_mut().unwrap();
        (isolation.no_new_privs, isolation.seccomp) = (false, Vec::new());
    })
    .await;
    assert_eq!(seen, "NoNewPrivs: 0\nSeccomp: 0\n");
}

#[tokio::test]
async fn it_has_its_own_processes() {
    if !is_root() {
        return;
    }
    for bench in Bench::both() {
        let executor = bench
            .launcher
            .launch(
                &bench.state("t"),
                spec(&bench, "(setsid sh -c 'sleep 1000' &); sleep 0.1; echo $$ > /local/up; exec sleep 1001"),
            )
            .await;
        let executor = executor.unwrap().executor;
        eventually("it is up", || root(&bench).join("local/up").exists()).await;
        // The task's init adopts an orphan, and no zombie stays.
        let script = "tr '\\0' ' ' < /proc/1/cmdline; echo; ls -d /proc/[0-9]* | wc -l; kill -9 1; kill -TERM 1; \
                      (sh -c 'exit 0' & echo $! > /local/orphan; exec sh -c 'exit 0') & wait; \
                      orphan=/proc/$(cat /local/orphan); n=0; \
                      while test -e $orphan && [ $n -lt 600 ]; do n=$((n+1)); sleep 0.1; done; \
                      grep -l 'State:.Z' /proc/[0-9]*/status | wc -l";
        let exec = ExecSpec { command: "sh".into(), args: vec!["-c".into(), script.into()], tty: false };
        let (out, err, exit) = finish(executor.exec(exec).await.unwrap()).await;
        assert_eq!(exit.exit_code, 0, "{out}{err}");
        assert!(
            out.starts_with(executor.state_dir().parent().unwrap().to_str().unwrap())
                || out.contains("drover-executor"),
            "{out}"
        );
        assert!(out.ends_with("\n0\n"), "{out}");
        // The orphan may be on its way out.
        let alone = async || Some(executor.stats().await.unwrap()).filter(|stats| stats.pids.len() == 3);
        let stats = testkit::poll("the end of the session's processes", alone).await;
        let tree: Vec<i32> = stats.pids.iter().map(|p| p.pid).collect();
        kill(executor.executor_pid(), rustix::process::Signal::KILL);
        assert!(executor.wait().await.unwrap().lost);
        assert!(!tree.into_iter().any(exists));
        executor.destroy().await.unwrap();
    }
}

/// The kernel takes that number for no change.
#[tokio::test]
async fn a_user_of_no_number_does_not_stay_root() {
    if !is_root() {
        return;
    }
    let bench = Bench::new();
    for (n, (uid, gid)) in [(u32::MAX, u32::MAX), (4321, u32::MAX), (u32::MAX, 4322)].into_iter().enumerate() {
        let mut spec = spec(&bench, "id -u");
        spec.user = Some(User { uid, gid, groups: Vec::new() });
        let why = bench.launcher.launch(&bench.state(&format!("t{n}")), spec).await.map(|_| ()).unwrap_err();
        assert!(why.to_string().contains("changing to the user"), "{uid}:{gid}: {why}");
    }
}

#[tokio::test]
async fn sessions_see_what_the_workload_sees() {
    if !is_root() {
        return;
    }
    let bench = Bench::new();
    let mut spec = spec(&bench, "exec sleep 1000");
    spec.cwd = "/tmp".into();
    spec.user = Some(User { uid: 4321, gid: 4322, groups: Vec::new() });
    let executor = bench.launcher.launch(&bench.state("t"), spec).await.unwrap().executor;
    let script = "pwd; id -u; ls -a /private | wc -l; tty; grep -E 'CapBnd|Seccomp:' /proc/self/status | tr -s '\\t' \
        ' '; ls /proc | grep -c '^[0-9]'";
    let exec = |tty| ExecSpec { command: "sh".into(), args: vec!["-c".into(), script.into()], tty };
    let (out, err, exit) = finish(executor.exec(exec(false)).await.unwrap()).await;
    assert_eq!((exit.exit_code, err.as_str()), (0, ""), "{out}");
    let usual = format!("{:016x}", capabilities::set(capabilities::DEFAULT).unwrap());
    assert!(out.starts_with(&format!("/tmp\n4321\n2\nnot a tty\nCapBnd: {usual}\nSeccomp: 2\n")), "{out}");
    let (out, _, exit) = finish(executor.exec(exec(true)).await.unwrap()).await;
    assert!(exit.exit_code == 0 && out.contains("/dev/pts/0\r\n"), "{out}");
    executor.destroy().await.unwrap();
}

#[tokio::test]
async fn binds_and_links_stay_inside() {
    if !is_root() {
        return;
    }
    let bench = Bench::new();
    let (data, outside) = (bench.dir.path().join("data"), bench.dir.path().join("outside"));
    std::fs::create_dir_all(data.join("sub")).unwrap();
    std::fs::create_dir_all(&outside).unwrap();
    std::fs::write(data.join("file"), "data\n").unwrap();
    // Links by which a task may redirect a mount or write of its next start.
    symlink(&outside, root(&bench).join("volume")).unwrap();
    symlink("/", root(&bench).join("proc")).unwrap();
    let script =
        "cat /file /volume/file; echo x > /volume/file; echo x > /rw/new; ls -l /dev/mine | cut -c1; cat /etc/hosts";
    let seen = run(&bench, "b", script, |spec| {
        let mounts = &mut spec.isolation.as_mut().unwrap().mounts;
        mounts.push(bind(data.join("file"), "/file", true));
        mounts.push(bind(&data, "/volume", true));
        mounts.push(Bind { propagation: Propagation::HostToTask.into(), ..bind(data.join("sub"), "/rw", false) });
        mounts.push(bind(data.join("file"), "/etc/hosts", true));
        mounts.push(Bind { devices: true, ..bind("/dev/zero", "/dev/mine", false) });
    })
    .await;
    assert!(seen.starts_with("data\ndata\nc\ndata\n") && seen.contains("Read-only"), "{seen}");
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0, "the link was followed inside only");
    assert_eq!(std::fs::read_to_string(data.join("sub/new")).unwrap(), "x\n");
    assert_eq!(std::fs::metadata(data.join("sub/new")).unwrap().uid(), 0);
}

#[tokio::test]
async fn without_namespaces_of_pids_and_ipc() {
    if !is_root() {
        return;
    }
    for bench in Bench::both() {
        let mut spec = spec(
            &bench,
            "(setsid sleep 1000 &); readlink /proc/self/ns/pid /proc/self/ns/ipc; echo $$ > /local/pid; exec \
                sleep 1000",
        );
        let isolation = spec.isolation.as_mut().unwrap();
        (isolation.private_pids, isolation.private_ipc, isolation.no_pivot_root) = (false, false, true);
        let executor = bench.launcher.launch(&bench.state("t"), spec).await.unwrap().executor;
        assert_eq!(pid_in(&root(&bench).join("local/pid")).await, executor.pid());
        let own = |name: &str| std::fs::read_link(format!("/proc/self/ns/{name}")).unwrap().display().to_string();
        let expected = format!("{}\n{}\n", own("pid"), own("ipc"));
        eventually("it has told its namespaces", || bench.output("t.stdout") == expected).await;
        let tree: Vec<i32> = executor.stats().await.unwrap().pids.iter().map(|p| p.pid).collect();
        executor.destroy().await.unwrap();
        assert!(tree.len() >= 2 && !tree.into_iter().any(exists));
    }
}

#[tokio::test]
async fn what_cannot_be_isolated_does_not_run() {
    if !is_root() {
        return;
    }
    let bench = Bench::new();
    type Case<'a> = (&'a str, &'a dyn Fn(&mut LaunchSpec));
    let cases: [Case<'_>; 5] = [
        ("/no/such/source", &|s| s.isolation.as_mut().unwrap().mounts.push(bind("/no/such/source", "/x", true))),
        ("/no/such/namespace", &|s| s.isolation.as_mut().unwrap().network = b"/no/such/namespace".to_vec()),
        ("/no/such/root", &|s| s.isolation.as_mut().unwrap().root = b"/no/such/root".to_vec()),
        ("working directory", &|s| s.cwd = "/no/such/directory".into()),
        ("filter", &|s| s.isolation.as_mut().unwrap().seccomp = vec![0xff; 16]),
    ];
    for (named, change) in cases {
        let mut spec = spec(&bench, "true");
        change(&mut spec);
        let error = bench.launcher.launch(&bench.state("t"), spec).await.unwrap_err();
        assert!(error.to_string().contains(named), "{named}: {error}");
    }
    let mut missing = spec(&bench, "true");
    missing.command = "no-such-program".into();
    let error = bench.launcher.launch(&bench.state("t"), missing).await.unwrap_err();
    assert!(matches!(error, Error::Exec { errno: 2, .. }), "{error}");
}

/// Prints what isolation costs. Run with `--ignored --nocapture`.
#[tokio::test]
#[ignore = "a measurement"]
async fn cost_of_isolation() {
    let bench = Bench::new();
    for isolated in [false, true] {
        let (mut starts, mut whole, mut sessions) = (Vec::new(), Vec::new(), Vec::new());
        for n in 0..100 {
            let mut spec = spec(&bench, "");
            spec.args = vec!["-c".into(), "exec sleep 1000".into()];
            if !isolated {
                (spec.isolation, spec.command) = (None, "/bin/sh".into());
            }
            let begun = std::time::Instant::now();
            let executor = bench.launcher.launch(&bench.state(&format!("{isolated}{n}")), spec).await.unwrap().executor;
            starts.push(begun.elapsed());
            let at = std::time::Instant::now();
            finish(executor.exec(ExecSpec { command: "true".into(), ..ExecSpec::default() }).await.unwrap()).await;
            sessions.push(at.elapsed());
            executor.destroy().await.unwrap();
            whole.push(begun.elapsed());
        }
        for (what, times) in
            [("start", &mut starts), ("exec true", &mut sessions), ("start, exec, destroy", &mut whole)]
        {
            times.sort_unstable();
            eprintln!("isolated {isolated}: {what} p50 {:?} p95 {:?}", times[50], times[95]);
        }
    }
    let mut forks = Vec::new();
    for _ in 0..100 {
        let begun = std::time::Instant::now();
        let mut child = std::process::Command::new("/bin/sh").args(["-c", "exec sleep 1000"]).spawn().unwrap();
        forks.push(begun.elapsed());
        child.kill().unwrap();
        child.wait().unwrap();
    }
    forks.sort_unstable();
    eprintln!("fork and exec: p50 {:?} p95 {:?}", forks[50], forks[95]);
}

/// Prints what the helpers of isolated workloads hold in memory. Run with `--ignored --nocapture`.
#[tokio::test]
#[ignore = "a measurement"]
async fn memory_of_helpers() {
    let bench = Bench::new();
    let mut executors = Vec::new();
    for n in 0..200 {
        let mut spec = spec(&bench, "exec sleep 1000");
        spec.cgroup.as_mut().unwrap().name.push_str(&n.to_string());
        executors.push(bench.launcher.launch(&bench.state(&n.to_string()), spec).await.unwrap().executor);
    }
    let pss = |pid: i32| -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
        text.lines().find(|l| l.starts_with("Pss:")).unwrap().split_ascii_whitespace().nth(1).unwrap().parse().unwrap()
    };
    let children = |pid: i32| std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    let (mut own, mut holders) = (0, 0);
    for executor in &executors {
        own += pss(executor.executor_pid());
        let holder = children(executor.executor_pid())
            .split_ascii_whitespace()
            .map(|p| p.parse().unwrap())
            .find(|p| *p != executor.pid());
        holders += pss(holder.unwrap());
    }
    eprintln!("PSS per isolated task: executor {} KiB, holder {} KiB", own / 200, holders / 200);
    for executor in executors {
        executor.destroy().await.unwrap();
    }
}

//! Workloads and helpers when something else fails.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use executor_client::{CgroupHost, Error, ExecSpec, Executor, RotatedLog, destroy};
use executor_proto::{Reply, Request, encode_frame, reply, request, split_frame};
use rustix::fs::{FlockOperation, flock};
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_remount, unmount};
use rustix::process::Signal;

use super::{Bench, eventually, exists, kill, pid_in};

/// Directories of this test's cgroups, in every hierarchy.
fn cgroups(bench: &Bench) -> Vec<PathBuf> {
    let unique = bench.dir.path().file_name().unwrap().to_string_lossy().into_owned();
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let roots = mounts.lines().filter(|l| l.contains(" - cgroup")).filter_map(|l| l.split(' ').nth(4));
    let all = roots.flat_map(|root| std::fs::read_dir(Path::new(root).join("drover")).into_iter().flatten().flatten());
    all.map(|entry| entry.path()).filter(|path| path.to_string_lossy().contains(&unique)).collect()
}

/// Executors that were started with this state directory.
fn executors(state: &Path) -> Vec<i32> {
    let name = state.to_str().unwrap().as_bytes();
    let ours = |pid: &i32| {
        std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.split(|b| *b == 0).nth(2) == Some(name))
    };
    testkit::pids().filter(ours).collect()
}

#[tokio::test]
async fn a_start_that_was_cut_short_leaves_nothing() {
    let bench = Bench::new();
    let state = bench.state("t");
    // The state after an executor was killed between making its cgroup and its workload.
    let host = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let unified = host.lines().find(|l| l.contains(" - cgroup2 ")).and_then(|l| l.split(' ').nth(4)).map(PathBuf::from);
    let Some(unified) = unified.filter(|_| CgroupHost::detect().mode().name() != "off") else {
        skip::elsewhere("there is no cgroup of version 2", "interop cgroup-v2");
        return;
    };
    let unique = bench.dir.path().file_name().unwrap().to_string_lossy().into_owned();
    let cgroup = unified.join("drover").join(format!("{unique}-t"));
    let leave = || {
        std::fs::create_dir_all(&state).unwrap();
        std::fs::create_dir_all(&cgroup).unwrap();
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
        let record = format!(
            r#"{{"protocol":2,"id":"t","boot_id":"{}","executor_pid":1,"launching":true,"cgroup":"{}"}}"#,
            boot.trim(),
            cgroup.display()
        );
        std::fs::write(state.join("executor.json"), record).unwrap();
    };
    leave();
    assert!(matches!(Executor::attach(&state).await, Err(Error::Absent { .. })));
    assert!(!cgroup.exists() && !state.join("executor.json").exists());
    leave();
    let launched = bench.launcher.launch(&state, bench.spec("t", "exit 4")).await.unwrap();
    assert_eq!((launched.created, launched.executor.wait().await.unwrap().exit_code), (true, 4));
    launched.executor.destroy().await.unwrap();
    assert_eq!(cgroups(&bench), [] as [PathBuf; 0]);
}

#[tokio::test]
async fn executors_killed_while_they_start_leave_nothing() {
    for bench in Bench::both() {
        for n in 0..20u64 {
            let state = bench.state("t");
            let launch = bench
                .launcher
                .launch(&state, bench.spec("t", "(setsid sleep 1000 &); echo $$ >> started; exec sleep 1000"));
            let killer = async {
                tokio::time::sleep(Duration::from_micros(n * 250)).await;
                for pid in executors(&state) {
                    testkit::try_signal(pid, Signal::KILL).unwrap();
                }
            };
            let (launched, ()) = tokio::join!(launch, killer);
            // One kill costs one attempt: the start is repeated, or the begun workload is reported as lost.
            let launched = launched.unwrap_or_else(|e| panic!("round {n}: {e}"));
            let _ = tokio::time::timeout(Duration::from_millis(1), launched.executor.wait()).await;
            destroy(&state).await.unwrap();
            eventually("its executors are gone", || executors(&state).is_empty()).await;
            assert_eq!(cgroups(&bench), [] as [PathBuf; 0], "round {n}");
        }
        let started = std::fs::read_to_string(bench.dir.path().join("started")).unwrap_or_default();
        // Somebody else may have the number by now.
        let here = |pid: i32| {
            std::fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd.starts_with(bench.dir.path()))
        };
        for pid in started.lines().map(|line| line.parse().unwrap()) {
            assert!(!exists(pid) || !here(pid), "workload {pid} runs on");
        }
    }
}

#[tokio::test]
async fn a_damaged_record_keeps_nothing_alive() {
    for bench in Bench::both() {
        let spec = bench.spec("t", "(setsid sh -c 'echo $$ > daemon; exec sleep 1000' &); exec sleep 1000");
        let (id, policy) = (spec.id.clone(), spec.cgroup.clone().unwrap());
        let state = bench.state("t");
        let executor = bench.launcher.launch(&state, spec).await.unwrap().executor;
        let daemon = pid_in(&bench.dir.path().join("daemon")).await;
        let pid = executor.executor_pid();
        drop(executor);
        std::fs::write(state.join("executor.json"), "{\"id\":").unwrap();
        // While the executor lives nothing is lost.
        assert!(bench.launcher.recover(&state, &id, &policy).await.unwrap().ended().is_none());
        kill(pid, Signal::KILL);
        eventually("the executor is gone", || !exists(pid)).await;
        let found = bench.launcher.recover(&state, &id, &policy).await.unwrap();
        assert!(found.ended().unwrap().lost);
        assert!(!exists(daemon));
        found.destroy().await.unwrap();
        assert_eq!(cgroups(&bench), [] as [PathBuf; 0]);
    }
}

/// The answers of an executor of protocol 1, byte for byte: `HelloReply` and `Done`.
const OLD_HELLO: &[u8] =
    b"\x1a\x20\x08\x01\x12\x03old\x18\xd2\x09\x20\xd3\x09\x28\x80\x80\x9c\xcb\xd0\xd0\xdb\x8b\x18\x30\x00\x3a\x050.1.0";

#[tokio::test]
async fn executors_of_the_first_protocol_are_driven() {
    let bench = Bench::new();
    let state = bench.state("t");
    std::fs::create_dir_all(&state).unwrap();
    let lock = std::fs::File::open(&state).unwrap();
    flock(lock.as_fd(), FlockOperation::LockExclusive).unwrap();
    // Its record has no field about a launch.
    let record = "{\"protocol\":1,\"id\":\"old\",\"boot_id\":\"x\",\"executor_pid\":1234,\"executor_start\":1,\
                  \"workload_pid\":1235,\"workload_start\":1,\"started_at_ns\":1,\"cgroup\":\"\",\"cgroup_v1\":[]}";
    std::fs::write(state.join("executor.json"), record).unwrap();
    let socket = UnixListener::bind(state.join("sock")).unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = socket.accept().unwrap();
        let (mut received, mut buffer) = (Vec::new(), [0; 1024]);
        while let Ok(n @ 1..) = stream.read(&mut buffer) {
            received.extend_from_slice(&buffer[..n]);
            while let Some(Request { id, op, .. }) = split_frame(&mut received).unwrap() {
                let mut frame = Vec::new();
                match op {
                    Some(request::Op::Hello(_)) => {
                        frame.extend((OLD_HELLO.len() as u32).to_le_bytes());
                        frame.extend(OLD_HELLO);
                    }
                    Some(request::Op::Signal(_)) => {
                        encode_frame(&Reply { id, body: Some(reply::Body::Done(Default::default())) }, &mut frame);
                    }
                    _ => {}
                }
                stream.write_all(&frame).unwrap();
            }
        }
    });
    let executor = Executor::attach(&state).await.unwrap();
    assert_eq!((executor.protocol(), executor.id(), executor.executor_pid(), executor.pid()), (1, "old", 1234, 1235));
    executor.signal(1).await.unwrap();
    let error = executor.exec(ExecSpec { command: "true".into(), ..ExecSpec::default() }).await.unwrap_err();
    assert!(matches!(error, Error::Outdated { .. }), "{error}");
}

#[tokio::test]
async fn a_workload_may_close_its_output() {
    for bench in Bench::both() {
        let executor = bench.launch("t", "echo last; exec 1>&- 2>&-; sleep 0.2; exit 6").await;
        assert_eq!(executor.wait().await.unwrap().exit_code, 6);
        assert_eq!(bench.output("t.stdout"), "last\n");
        executor.destroy().await.unwrap();
    }
}

/// A small disk, removed with the test.
struct Disk(PathBuf);

impl Disk {
    fn new(path: PathBuf) -> Disk {
        mount(c"tmpfs", &path, c"tmpfs", MountFlags::empty(), c"size=256k").unwrap();
        Disk(path)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = unmount(&self.0, UnmountFlags::DETACH);
    }
}

#[tokio::test]
async fn a_full_disk_makes_the_workload_wait_and_loses_nothing() {
    if !rustix::process::geteuid().is_root() {
        skip::cannot("mounting a small file system needs root");
        return;
    }
    let bench = Bench::new();
    let disk = Disk::new(bench.logs());
    let executor = bench.launch("t", "seq 1 300000; echo $$ > done; exec sleep 1000").await;
    let log = RotatedLog::new(bench.logs(), "t.stdout");
    eventually("the disk is full", || log.end().unwrap() > 200_000).await;
    let status = std::fs::read_to_string(format!("/proc/{}/status", executor.executor_pid())).unwrap();
    let resident: u64 = status
        .lines()
        .find(|l| l.starts_with("VmRSS"))
        .unwrap()
        .split_ascii_whitespace()
        .nth(1)
        .unwrap()
        .parse()
        .unwrap();
    assert!(resident < 2048, "{resident} KiB of memory instead of back-pressure");
    assert!(!bench.dir.path().join("done").exists(), "the workload waits");
    mount_remount(&disk.0, MountFlags::empty(), c"size=16m").unwrap();
    pid_in(&bench.dir.path().join("done")).await;
    let expected: String = (1..=300_000).map(|n| format!("{n}\n")).collect();
    eventually("all is stored", || log.end().unwrap() == expected.len() as u64).await;
    assert!(log.read(0, 8 << 20).unwrap().data == expected.as_bytes());
    executor.destroy().await.unwrap();
}

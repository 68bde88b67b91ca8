//! The driver trait with real processes.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use driver_sdk::config::Config;
use driver_sdk::proto::driver::Mount;
use driver_sdk::{Driver as _, Error, LogPolicy, StopTask, TaskConfig, TaskHandle, TaskStatus};
use raw_exec::Driver;
use rustix::process::Signal;
use tempfile::TempDir;
use testkit::{eventually, soon};

struct Node {
    dir: TempDir,
    driver: Driver,
}

impl Node {
    fn new() -> Node {
        Node { dir: tempfile::tempdir().unwrap(), driver: Driver::new() }
    }

    /// A task as our own host describes it.
    fn task(&self, name: &str, command: &str, args: &[&str]) -> TaskConfig {
        let alloc = self.dir.path().join("alloc1");
        let logs = alloc.join("alloc/logs");
        for dir in [&logs, &alloc.join(name).join("local")] {
            std::fs::create_dir_all(dir).unwrap();
        }
        #[derive(serde::Serialize)]
        struct Options<'a> {
            command: &'a str,
            args: &'a [&'a str],
            work_dir: Option<&'a str>,
        }
        let unique = self.dir.path().file_name().unwrap().to_string_lossy().trim_start_matches('.').to_owned();
        TaskConfig {
            id: format!("{unique}/{name}/0123abcd"),
            name: name.into(),
            alloc_id: "alloc1".into(),
            alloc_dir: alloc.display().to_string(),
            msgpack_driver_config: rmp_serde::to_vec_named(&Options { command, args, work_dir: None }).unwrap(),
            env: [("PATH".to_owned(), "/usr/bin:/bin".to_owned())].into(),
            drover_log: Some(LogPolicy {
                dir: logs.display().to_string(),
                stdout_name: format!("{name}.stdout"),
                stderr_name: format!("{name}.stderr"),
                max_files: 3,
                max_file_size_bytes: 1 << 20,
                disabled: false,
            }),
            ..TaskConfig::default()
        }
    }

    fn shell(&self, name: &str, script: &str) -> TaskConfig {
        self.task(name, "/bin/sh", &["-c", script])
    }

    async fn start(&self, task: TaskConfig) -> TaskHandle {
        let started = self.driver.start_task(task.clone()).await.unwrap();
        TaskHandle {
            version: started.version.into(),
            config: Some(task),
            driver_state: started.driver_state,
            ..TaskHandle::default()
        }
    }

    fn log(&self, file: &str) -> String {
        std::fs::read_to_string(self.dir.path().join("alloc1/alloc/logs").join(file)).unwrap_or_default()
    }
}

fn id(handle: &TaskHandle) -> String {
    handle.config.as_ref().unwrap().id.clone()
}

fn kill(pid: &str) {
    testkit::signal(pid.parse::<i32>().unwrap(), Signal::KILL);
}

#[tokio::test]
async fn a_task_runs_in_its_directory_and_ends_with_its_code() {
    let node = Node::new();
    let handle = node.start(node.shell("web", "pwd; echo $PATH; exit 3")).await;
    let web = id(&handle);
    let (a, b) = tokio::join!(node.driver.wait_task(&web), node.driver.wait_task(&web));
    assert_eq!((a.clone().unwrap().exit_code, a), (3, b));
    let dir = node.dir.path().join("alloc1/web");
    assert_eq!(node.log("web.stdout.0"), format!("{}\n/usr/bin:/bin\n", dir.display()));
    let seen = node.driver.inspect_task(&id(&handle)).await.unwrap();
    assert_eq!((seen.status, seen.exit.unwrap().exit_code), (TaskStatus::Exited, 3));
    assert!(seen.completed_at >= seen.started_at);
    for _ in 0..2 {
        node.driver.destroy_task(&id(&handle), true).await.unwrap();
    }
    assert_eq!(node.driver.wait_task(&id(&handle)).await, Err(Error::TaskNotFound));
    assert!(!dir.join("private/executor").exists());
    assert!(!node.log("web.stdout.0").is_empty(), "logs outlive the task");
}

#[tokio::test]
async fn another_process_takes_over_what_runs_and_what_has_ended() {
    let node = Node::new();
    let runs = node.start(node.shell("runs", "exec sleep 1000")).await;
    let ends = node.start(node.shell("ends", "exit 7")).await;
    node.driver.wait_task(&id(&ends)).await.unwrap();
    let pid = node.driver.inspect_task(&id(&runs)).await.unwrap().attributes["pid"].clone();
    let next = Driver::new();
    for handle in [&runs, &ends] {
        let mut handle = handle.clone();
        // After a restart of the agent some hosts no longer have it.
        handle.config.as_mut().unwrap().msgpack_driver_config.clear();
        next.recover_task(handle.clone()).await.unwrap();
        next.recover_task(handle).await.unwrap();
    }
    assert_eq!(next.inspect_task(&id(&runs)).await.unwrap().attributes["pid"], pid);
    assert_eq!(next.wait_task(&id(&ends)).await.unwrap().exit_code, 7);
    // The same start again, as after a crash in the middle of the first one: no second workload.
    let third = Driver::new();
    third.start_task(node.shell("runs", "exec sleep 1000")).await.unwrap();
    assert_eq!(third.inspect_task(&id(&runs)).await.unwrap().attributes["pid"], pid);
    next.destroy_task(&id(&runs), true).await.unwrap();
    assert_eq!(next.recover_task(runs.clone()).await, Err(Error::TaskNotFound));
    let mut newer = runs;
    newer.version = 99;
    assert!(matches!(next.recover_task(newer).await, Err(Error::Invalid(_))));
}

#[tokio::test]
async fn a_killed_executor_is_reported_and_its_tree_gone() {
    let node = Node::new();
    let handle = node.start(node.shell("t", "sleep 1000 & echo $!; wait")).await;
    eventually("the child is named", || node.log("t.stdout.0").ends_with('\n')).await;
    let child = node.log("t.stdout.0").trim().to_owned();
    kill(&node.driver.inspect_task(&id(&handle)).await.unwrap().attributes["executor_pid"]);
    let exit = soon(node.driver.wait_task(&id(&handle))).await.unwrap();
    assert_eq!(exit.exit_code, -1);
    assert!(exit.error.unwrap().starts_with("executor lost"));
    let state = std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
    assert!(state.is_empty() || state.contains(") Z "), "{state}");
    node.driver.destroy_task(&id(&handle), true).await.unwrap();
}

#[tokio::test]
async fn stopping_signalling_destroying() {
    let node = Node::new();
    let script = "trap 'echo int; exit 9' INT; trap 'echo hup' HUP; echo up; while :; do sleep 0.01; done";
    let handle = node.start(node.shell("t", script)).await;
    eventually("it listens", || node.log("t.stdout.0") == "up\n").await;
    let id = id(&handle);
    node.driver.signal_task(&id, "SIGHUP").await.unwrap();
    eventually("it answers", || node.log("t.stdout.0") == "up\nhup\n").await;
    assert!(matches!(node.driver.signal_task(&id, "SIGNONSENSE").await, Err(Error::Invalid(_))));
    assert!(matches!(node.driver.destroy_task(&id, false).await, Err(Error::Failed(_))));
    let detach = StopTask { signal: driver_sdk::DETACH_SIGNAL.into(), timeout: Duration::ZERO };
    assert!(matches!(node.driver.stop_task(&id, detach).await, Err(Error::Unsupported(_))));
    let first = node.driver.task_stats(&id).await.unwrap().unwrap();
    assert!(first.total.memory.rss.unwrap() > 0 && !first.by_pid.is_empty());
    node.driver.stop_task(&id, StopTask { signal: String::new(), timeout: Duration::from_secs(20) }).await.unwrap();
    assert_eq!(node.driver.wait_task(&id).await.unwrap().exit_code, 9);
    assert_eq!(node.log("t.stdout.0"), "up\nhup\nint\n");
    node.driver.destroy_task(&id, false).await.unwrap();
    // A kill signal that nobody knows still stops.
    let handle = node.start(node.shell("u", "exec sleep 1000")).await;
    let stop = StopTask { signal: "SIGNONSENSE".into(), timeout: Duration::from_secs(20) };
    node.driver.stop_task(&self::id(&handle), stop).await.unwrap();
    assert_eq!(node.driver.wait_task(&self::id(&handle)).await.unwrap().signal, 2);
    // A wait that is pending when the task is destroyed ends.
    let handle = node.start(node.shell("v", "exec sleep 1000")).await;
    let id = self::id(&handle);
    let (waited, destroyed) = tokio::join!(node.driver.wait_task(&id), node.driver.destroy_task(&id, true));
    destroyed.unwrap();
    assert_eq!(waited.unwrap().signal, 9);
    node.driver.destroy_task(&id, true).await.unwrap();
}

#[tokio::test]
async fn programs_of_the_task_directory_come_first() {
    let node = Node::new();
    let task = node.task("t", "tool", &["x"]);
    // Without the right to be executed, as downloads come.
    let tool = Path::new(&task.alloc_dir).join("t/local/tool");
    testkit::program(&tool, "#!/bin/sh\necho tool $1\n");
    std::fs::set_permissions(&tool, std::fs::Permissions::from_mode(0o644)).unwrap();
    let handle = node.start(task).await;
    assert_eq!(node.driver.wait_task(&id(&handle)).await.unwrap().exit_code, 0);
    assert_eq!(node.log("t.stdout.0"), "tool x\n");
}

#[tokio::test]
async fn a_stock_host_names_only_fifos() {
    let node = Node::new();
    let mut task = node.shell("t", "echo out; echo err >&2");
    task.drover_log = None;
    let logs = node.dir.path().join("alloc1/alloc/logs");
    task.stdout_path = logs.join(".t.stdout.fifo").display().to_string();
    task.stderr_path = logs.join(".t.stderr.fifo").display().to_string();
    let handle = node.start(task).await;
    node.driver.wait_task(&id(&handle)).await.unwrap();
    assert_eq!((node.log("t.stdout.0"), node.log("t.stderr.0")), ("out\n".into(), "err\n".into()));
    let mut quiet = node.shell("q", "echo out");
    quiet.drover_log = None;
    quiet.stdout_path = "/dev/null".into();
    quiet.stderr_path = "/dev/null".into();
    let handle = node.start(quiet).await;
    assert_eq!(node.driver.wait_task(&id(&handle)).await.unwrap().exit_code, 0);
    assert_eq!(node.log("q.stdout.0"), "");
}

#[tokio::test]
async fn what_cannot_be_had_is_refused_with_the_reason() {
    let node = Node::new();
    let with = |change: &dyn Fn(&mut TaskConfig)| {
        let mut task = node.shell("t", "exit 0");
        change(&mut task);
        task
    };
    let cases = [
        (with(&|t| t.mounts.push(Mount::default())), "mounts"),
        (with(&|t| t.user = "no-such-user-here".into()), "no-such-user-here"),
        (node.task("t", "no-such-program", &[]), "no-such-program"),
        (node.task("t", "", &[]), "command"),
    ];
    for (task, named) in cases {
        let error = node.driver.start_task(task).await.unwrap_err();
        assert!(error.to_string().contains(named), "{named}: {error}");
        assert!(!matches!(error, Error::Recoverable(_)), "trying again cannot help: {error}");
    }
    let config = |fields: &[(&str, &str)]| {
        let map: BTreeMap<&str, &str> = fields.iter().copied().collect();
        Config::new(rmp_serde::to_vec(&map).unwrap())
    };
    assert!(node.driver.set_config(config(&[("denied_host_uids", "x")]), None).await.is_err());
    node.driver.set_config(config(&[("denied_host_uids", "0-10")]), None).await.unwrap();
    let error = node.driver.start_task(with(&|t| t.user = "0".into())).await.unwrap_err();
    assert!(error.to_string().contains("denied_host_uids"), "{error}");
    // A task without a user would run as the plugin does.
    let own = rustix::process::geteuid().as_raw().to_string();
    node.driver.set_config(config(&[("denied_host_uids", &own)]), None).await.unwrap();
    let error = node.driver.start_task(node.shell("t", "exit 0")).await.unwrap_err();
    assert!(error.to_string().contains("names no user") && error.to_string().contains("denied_host_uids"), "{error}");
    node.driver.set_config(config(&[("enabled", "false")]), None).await.unwrap();
    assert!(node.driver.start_task(node.shell("t", "exit 0")).await.unwrap_err().to_string().contains("disabled"));
    assert_eq!(node.driver.fingerprint().await.health, driver_sdk::Health::Undetected);
}

#[tokio::test]
async fn two_hundred_short_tasks_at_once_end_exactly() {
    let node = Node::new();
    let begun = Instant::now();
    let tasks: Vec<TaskConfig> = (0..200).map(|n| node.task(&format!("t{n}"), "/bin/true", &[])).collect();
    let all = tasks.into_iter().map(|task| async {
        let handle = node.start(task).await;
        let exit = node.driver.wait_task(&id(&handle)).await.unwrap();
        node.driver.destroy_task(&id(&handle), true).await.unwrap();
        exit
    });
    let exits = futures::future::join_all(all).await;
    assert!(exits.iter().all(|e| *e == driver_sdk::TaskExit::default()), "{exits:?}");
    eprintln!("200 × true in {:?}", begun.elapsed());
}

#[tokio::test]
async fn commands_run_beside_a_task() {
    let node = Node::new();
    let mut task = node.shell("t", "exec sleep 1000");
    task.env.insert("WHO".into(), "task".into());
    let handle = node.start(task).await;
    let id = id(&handle);
    let run = |script: &str, timeout| {
        let command = ["sh", "-c", script].map(String::from).to_vec();
        node.driver.exec_task(&id, command, Duration::from_secs(timeout))
    };
    let seen = run("echo $WHO; echo e >&2; cat; exit 3", 20).await.unwrap();
    // Both streams as one, as hosts expect it that show standard output alone. Which comes first nobody knows.
    let mut lines: Vec<&str> = std::str::from_utf8(&seen.stdout).unwrap().lines().collect();
    lines.sort_unstable();
    assert_eq!((lines.as_slice(), seen.stderr.as_slice(), seen.exit.exit_code), (&["e", "task"][..], &b""[..], 3));
    let seen = run("seq 1 100000; sleep 1000 &", 20).await.unwrap();
    assert!(seen.stdout.ends_with(b"\n100000\n") && seen.stdout.len() <= 64 * 1024, "its end is kept");
    let error = run("exec sleep 1000", 0).await.unwrap_err();
    assert!(error.to_string().contains("did not end within"), "{error}");
    let error = node.driver.exec_task(&id, vec!["no-such-program".into()], Duration::from_secs(20)).await.unwrap_err();
    assert!(error.to_string().contains("no-such-program"), "{error}");
    assert!(node.driver.exec_task(&id, Vec::new(), Duration::from_secs(20)).await.is_err());
    assert_eq!(node.driver.exec_task("other", vec!["true".into()], Duration::ZERO).await, Err(Error::TaskNotFound));
    node.driver.destroy_task(&id, true).await.unwrap();
}

//! The driver trait with real, isolated processes. Isolation needs root: elsewhere only the refusals are looked at.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use driver_sdk::config::Config;
use driver_sdk::proto::driver::{
    AllocatedMemoryResources, AllocatedTaskResources, Device, DnsConfig, LinuxResources, Mount, NetworkIsolationSpec,
    Resources,
};
use driver_sdk::{Driver as _, Error, Health, LogPolicy, TaskConfig, TaskExit, TaskHandle};
use exec::Driver;
use tempfile::TempDir;

struct Node {
    dir: TempDir,
    driver: Driver,
}

#[derive(Default, serde::Serialize)]
struct Options<'a> {
    command: &'a str,
    args: Vec<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    work_dir: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pid_mode: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    cap_add: Vec<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pids_limit: Option<i64>,
}

impl Node {
    /// `None` where this process may not isolate others.
    #[track_caller]
    fn new() -> Option<Node> {
        if let Err(why) = executor_client::isolation_supported() {
            skip::cannot(&format!("nothing can be isolated: {why}"));
            return None;
        }
        Some(Node { dir: tempfile::tempdir().unwrap(), driver: Driver::new() })
    }

    /// A task as our own host describes it.
    fn task(&self, name: &str, options: &Options<'_>) -> TaskConfig {
        let alloc = self.dir.path().join("alloc1");
        let logs = alloc.join("alloc/logs");
        let (local, tmp) = (alloc.join(name).join("local"), alloc.join(name).join("tmp"));
        for dir in [&logs, &alloc.join("alloc"), &local, &tmp, &alloc.join(name).join("private")] {
            std::fs::create_dir_all(dir).unwrap();
            std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o777)).unwrap();
        }
        let unique = self.dir.path().file_name().unwrap().to_string_lossy().trim_start_matches('.').to_owned();
        TaskConfig {
            id: format!("{unique}/{name}/0123abcd"),
            name: name.into(),
            alloc_id: "alloc1".into(),
            alloc_dir: alloc.display().to_string(),
            msgpack_driver_config: rmp_serde::to_vec_named(options).unwrap(),
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
        self.task(name, &Options { command: "sh", args: vec!["-c", script], ..Options::default() })
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

    /// Runs a task to its end: exit and output.
    async fn run(&self, task: TaskConfig) -> (TaskExit, String) {
        let (id, name) = (task.id.clone(), task.name.clone());
        self.start(task).await;
        let exit = testkit::soon(self.driver.wait_task(&id)).await.unwrap();
        self.driver.destroy_task(&id, true).await.unwrap();
        (exit, self.log(&format!("{name}.stdout.0")) + &self.log(&format!("{name}.stderr.0")))
    }

    fn log(&self, file: &str) -> String {
        std::fs::read_to_string(self.dir.path().join("alloc1/alloc/logs").join(file)).unwrap_or_default()
    }

    fn left(&self) -> usize {
        let all = std::fs::read_dir("/proc").unwrap().flatten();
        let root = |pid: std::fs::DirEntry| std::fs::read_link(pid.path().join("root")).ok();
        all.filter_map(root).filter(|root| root.starts_with(self.dir.path())).count()
    }
}

#[tokio::test]
async fn a_task_sees_its_directory_and_is_nobody() {
    let Some(node) = Node::new() else { return };
    let script = "pwd; id -un; ls /; echo $$ > /alloc/pid; echo mine > /local/file; ls -A /private | wc -l; cat \
        /proc/1/cmdline | tr '\\0' ' '; exit 3";
    let (exit, seen) = node.run(node.shell("t", script)).await;
    assert_eq!(exit.exit_code, 3, "{seen}");
    assert!(seen.starts_with("/\nnobody\nalloc\n"), "{seen}");
    assert!(!seen.contains("home\n") && seen.contains("\n0\n"), "{seen}");
    let alloc = node.dir.path().join("alloc1");
    assert_eq!(std::fs::read_to_string(alloc.join("t/local/file")).unwrap(), "mine\n");
    assert!(alloc.join("alloc/pid").exists());
    std::fs::remove_dir_all(&alloc).unwrap();
    assert_eq!(node.left(), 0);
}

#[tokio::test]
async fn options_are_honoured() {
    let Some(node) = Node::new() else { return };
    let sh = |script: &'static str| Options { command: "/bin/sh", args: vec!["-c", script], ..Options::default() };
    let (_, seen) = node.run(node.task("w", &Options { work_dir: Some("/tmp"), ..sh("pwd") })).await;
    assert_eq!(seen, "/tmp\n");
    let (_, seen) = node
        .run(
            node.task(
                "p",
                &Options { pid_mode: Some("host"), ..sh("test -d /proc/$PPID && readlink /proc/self/ns/pid") },
            ),
        )
        .await;
    assert_eq!(seen.trim(), std::fs::read_link("/proc/self/ns/pid").unwrap().to_str().unwrap());
    let ambient = Options { cap_add: vec!["net_bind_service"], ..sh("grep CapEff /proc/self/status") };
    let (_, seen) = node.run(node.task("c", &ambient)).await;
    assert!(seen.contains("0000000000000400"), "{seen}");
    let mut task = node.task(
        "u",
        &sh("id -u; cat /etc/resolv.conf; cat /data/x; echo y > /data/x; echo $((0x$(head -c 1 /dev/nothing | od -An \
            -tx1 | tr -d ' ')))"),
    );
    let data = node.dir.path().join("data");
    std::fs::create_dir(&data).unwrap();
    std::fs::write(data.join("x"), "data\n").unwrap();
    task.user = "root".into();
    task.dns = Some(DnsConfig { servers: vec!["192.0.2.1".into()], ..DnsConfig::default() });
    task.mounts = vec![Mount {
        task_path: "/data".into(),
        host_path: data.display().to_string(),
        readonly: true,
        ..Mount::default()
    }];
    task.devices = vec![Device {
        task_path: "/dev/nothing".into(),
        host_path: "/dev/zero".into(),
        cgroup_permissions: "rwm".into(),
    }];
    let (_, seen) = node.run(task).await;
    assert!(seen.starts_with("0\nnameserver 192.0.2.1\ndata\n0\n") && seen.contains("Read-only"), "{seen}");
    // A program of the task directory comes first and is made executable; a link there is followed inside only.
    let own = node.task("own", &Options { command: "tool", ..Options::default() });
    let tool = node.dir.path().join("alloc1/own/local/tool");
    testkit::program(&tool, "#!/bin/sh\necho own\n");
    std::fs::set_permissions(&tool, std::fs::Permissions::from_mode(0o644)).unwrap();
    assert_eq!(node.run(own).await.1, "own\n");
    let link = node.task("link", &Options { command: "trap", ..Options::default() });
    let outside = node.dir.path().join("outside");
    std::fs::write(&outside, "").unwrap();
    std::os::unix::fs::symlink(&outside, node.dir.path().join("alloc1/link/local/trap")).unwrap();
    assert!(node.driver.start_task(link).await.unwrap_err().to_string().contains("trap"));
    assert_eq!(std::fs::metadata(&outside).unwrap().permissions().mode() & 0o111, 0);
}

#[tokio::test]
async fn limits_hold() {
    let Some(node) = Node::new() else { return };
    let resources = |linux: LinuxResources| {
        let memory = AllocatedMemoryResources { memory_mb: 16, memory_max_mb: 0 };
        let allocated = AllocatedTaskResources { memory: Some(memory), ..AllocatedTaskResources::default() };
        Some(Resources { allocated_resources: Some(allocated), linux_resources: Some(linux), ports: Vec::new() })
    };
    // The plugin limits the processes of each task, and such a task is within all limits before its first instruction.
    let mut hungry = node.shell("m", "head -c 200000000 /dev/zero | tail -n 1 > /dev/null");
    hungry.resources =
        resources(LinuxResources { memory_limit_bytes: 24 << 20, cpu_shares: 100, ..LinuxResources::default() });
    let (exit, seen) = node.run(hungry).await;
    assert!(exit.oom_killed, "{exit:?} {seen}");
    let host = executor_client::CgroupHost::detect();
    if host.enforces("pids") {
        let options = Options {
            command: "sh",
            args: vec!["-c", "sleep 0.3; f() { f | f & }; f 2>/dev/null; sleep 0.5; echo over"],
            pids_limit: Some(20),
            ..Options::default()
        };
        let bomb = node.task("b", &options);
        let id = bomb.id.clone();
        node.start(bomb).await;
        testkit::soon(node.driver.destroy_task(&id, true)).await.unwrap();
        assert_eq!(node.left(), 0, "every process of the bomb is gone");
    }
    if host.enforces("cpuset") {
        let mut task = node.shell("c", "grep Cpus_allowed_list /proc/self/status");
        task.resources = resources(LinuxResources { cpuset_cpus: "0".into(), ..LinuxResources::default() });
        assert_eq!(node.run(task).await.1.split_ascii_whitespace().last(), Some("0"));
    }
}

#[tokio::test]
async fn it_is_found_again_and_commands_run_in_it() {
    let Some(node) = Node::new() else { return };
    let handle = node.start(node.shell("t", "exec sleep 1000")).await;
    let id = handle.config.as_ref().unwrap().id.clone();
    let next = Driver::new();
    next.recover_task(handle).await.unwrap();
    let command =
        ["sh", "-c", "id -un; pwd; ls / | head -n 1; set -- /proc/[0-9]*; echo $#"].map(String::from).to_vec();
    let seen = next.exec_task(&id, command, Duration::from_secs(20)).await.unwrap();
    assert_eq!(String::from_utf8(seen.stdout).unwrap(), "nobody\n/\nalloc\n3\n");
    next.destroy_task(&id, true).await.unwrap();
    assert_eq!(node.left(), 0);
}

#[tokio::test]
async fn what_cannot_be_had_is_refused_with_the_reason() {
    let driver = Driver::new();
    let fingerprint = driver.fingerprint().await;
    if executor_client::isolation_supported().is_err() {
        assert_eq!(fingerprint.health, Health::Undetected);
        assert!(!fingerprint.description.is_empty());
    }
    let Some(node) = Node::new() else { return };
    let with = |change: &dyn Fn(&mut TaskConfig)| {
        let mut task = node.shell("t", "exit 0");
        change(&mut task);
        task
    };
    let cases = [
        (node.task("t", &Options { command: "no-such-program", ..Options::default() }), "no-such-program"),
        (node.task("t", &Options { command: "true", cap_add: vec!["sys_admin"], ..Options::default() }), "sys_admin"),
        (node.task("t", &Options { command: "true", pid_mode: Some("shared"), ..Options::default() }), "pid_mode"),
        (
            node.task("t", &Options { command: "true", work_dir: Some("/no/such"), ..Options::default() }),
            "working directory",
        ),
        (with(&|t| t.user = "no-such-user-here".into()), "no-such-user-here"),
        (
            with(&|t| t.mounts.push(Mount { task_path: "/".into(), host_path: "/tmp".into(), ..Mount::default() })),
            "below the task's root",
        ),
        (
            with(&|t| {
                t.mounts.push(Mount { task_path: "/x".into(), host_path: "/no/such".into(), ..Mount::default() })
            }),
            "/no/such",
        ),
        (
            with(&|t| {
                t.mounts.push(Mount {
                    task_path: "/x".into(),
                    host_path: "/tmp".into(),
                    selinux_label: "z".into(),
                    ..Mount::default()
                })
            }),
            "SELinux",
        ),
        (
            with(&|t| {
                t.devices.push(Device {
                    task_path: "/dev/x".into(),
                    host_path: "/dev/null".into(),
                    cgroup_permissions: "r".into(),
                })
            }),
            "rw",
        ),
        (
            with(&|t| {
                t.network_isolation_spec = Some(NetworkIsolationSpec { mode: 1, ..NetworkIsolationSpec::default() })
            }),
            "namespace",
        ),
    ];
    for (task, named) in cases {
        let error = node.driver.start_task(task).await.unwrap_err();
        assert!(error.to_string().contains(named), "{named}: {error}");
    }
    assert_eq!(node.left(), 0);
    #[derive(serde::Serialize)]
    struct Denied {
        denied_host_uids: &'static str,
    }
    let config = Config::new(rmp_serde::to_vec_named(&Denied { denied_host_uids: "0" }).unwrap());
    node.driver.set_config(config, None).await.unwrap();
    let error = node.driver.start_task(with(&|t| t.user = "root".into())).await.unwrap_err();
    assert!(matches!(error, Error::Failed(_)) && error.to_string().contains("denied_host_uids"), "{error}");
    if fingerprint.health != Health::Healthy {
        assert!(fingerprint.description.contains("cgroup"), "{}", fingerprint.description);
    }
}

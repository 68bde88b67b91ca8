//! An unmodified driver written in Go, for the interop run: `GO_RAW_EXEC=<binary> cargo test -p driver-host --
//! --ignored go_`.
//!
//! `xtask/interop/go-raw-exec` holds the program; it is the Go agent's own raw_exec, served as an external plugin.

use std::io::Read;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use driver_host::proto::driver::{
    AllocatedCpuResources, AllocatedMemoryResources, AllocatedTaskResources, LinuxResources, Resources,
};
use driver_host::{CallError, Driver, ExecOutput, PluginSpec, TaskConfig};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{Fixture, eventually, signal, soon, task, with_environment};

fn plugin() -> PluginSpec {
    let command = std::env::var_os("GO_RAW_EXEC").expect("GO_RAW_EXEC names the plugin binary");
    PluginSpec {
        name: "go-raw-exec".into(),
        command: command.into(),
        config: Some(json!({"enabled": true})),
        ..PluginSpec::default()
    }
}

/// A task as the node prepares it: directories, fifos with a reader, resources.
fn prepared(dir: &Path, driver: &Driver, config: &Value) -> (TaskConfig, std::sync::mpsc::Receiver<Vec<u8>>) {
    let mut config = task(driver, config);
    let alloc_dir = dir.join(config.id.replace('/', "-"));
    for sub in ["alloc/logs", "task/local", "task/secrets", "task/tmp"] {
        std::fs::create_dir_all(alloc_dir.join(sub)).expect("directory");
    }
    let fifo = |name: &str| {
        let path = alloc_dir.join("alloc/logs").join(name);
        let made = Command::new("mkfifo").arg(&path).status().expect("mkfifo runs");
        assert!(made.success());
        path
    };
    let (stdout, stderr) = (fifo(".task.stdout.fifo"), fifo(".task.stderr.fifo"));
    let (sender, received) = std::sync::mpsc::channel();
    let read = |path: std::path::PathBuf, sender: Option<std::sync::mpsc::Sender<Vec<u8>>>| {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = std::fs::File::open(path).and_then(|mut file| file.read_to_end(&mut bytes));
            if let Some(sender) = sender {
                let _ = sender.send(bytes);
            }
        });
    };
    read(stdout.clone(), Some(sender));
    read(stderr.clone(), None);
    config.stdout_path = stdout.to_string_lossy().into();
    config.stderr_path = stderr.to_string_lossy().into();
    config.alloc_dir = alloc_dir.to_string_lossy().into();
    config.job_name = "job".into();
    config.task_group_name = "group".into();
    config.env = [("PATH".to_owned(), "/usr/bin:/bin".to_owned()), ("GREETING".to_owned(), "hello".to_owned())].into();
    config.resources = Some(Resources {
        allocated_resources: Some(AllocatedTaskResources {
            cpu: Some(AllocatedCpuResources { cpu_shares: 100 }),
            memory: Some(AllocatedMemoryResources { memory_mb: 64, memory_max_mb: 0 }),
            networks: vec![],
        }),
        linux_resources: Some(LinuxResources {
            cpu_shares: 100,
            memory_limit_bytes: 64 << 20,
            percent_ticks: 0.05,
            ..LinuxResources::default()
        }),
        ports: vec![],
    });
    (config, received)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a plugin built from Go modules"]
async fn go_raw_exec_runs_tasks_unmodified() {
    let fixture = Fixture::new(vec![plugin()]);
    let marker = fixture.dir.path().join("s").to_string_lossy().into_owned();
    let seen = fixture.fingerprint("raw_exec", |f| f.healthy).await;
    assert_eq!(seen.attributes["driver.raw_exec"], "1");
    assert!(seen.remote.is_none(), "it knows nothing of our extension");
    let driver = fixture.host.driver("raw_exec").expect("it is healthy");
    let capabilities = driver.capabilities().expect("has run");
    assert!(capabilities.exec && capabilities.send_signals, "{capabilities:?}");

    // Output, environment and exit code.
    let config = json!({"command": "/bin/sh", "args": ["-c", "echo $GREETING ${NOMAD_NOTHING:-world}; exit 3"]});
    let error = driver.encode_task_config(&config, &Default::default()).expect_err("a template must be complete");
    assert!(!error.diagnostics().is_empty());
    let config = json!({"command": "/bin/sh", "args": ["-c", "echo $GREETING; exit 3"]});
    let (short, output) = prepared(fixture.dir.path(), &driver, &config);
    soon(driver.start_task(short.clone())).await.expect("starts");
    let exit = soon(driver.wait_task(&short.id)).await.expect("ends");
    assert_eq!((exit.exit_code, exit.signal, exit.error), (3, 0, None));
    let text = output.recv_timeout(Duration::from_secs(10)).expect("the log ends");
    assert_eq!(text, b"hello\n");
    soon(driver.destroy_task(&short.id, true)).await.expect("destroyed");
    let error = soon(driver.wait_task(&short.id)).await.expect_err("forgotten");
    assert!(error.is_task_not_found(), "{error:?}");

    // A program that is not there.
    let (missing, _output) = prepared(fixture.dir.path(), &driver, &json!({"command": "/no/such/program"}));
    let error = soon(driver.start_task(missing)).await.expect_err("cannot start");
    assert!(matches!(&error, CallError::Failed { .. }) && !error.recoverable(), "{error:?}");

    // A long one: stats, exec, then the plugin is killed and the task is recovered by its handle.
    let (long, _output) = prepared(fixture.dir.path(), &driver, &json!({"command": "/bin/sleep", "args": ["300"]}));
    let started = soon(driver.start_task(long.clone())).await.expect("starts");
    let mut stats = driver.stats(&long.id, Duration::from_millis(200)).expect("opens");
    assert!(soon(stats.next()).await.expect("a sample").expect("fine").agg_resource_usage.is_some());
    let result =
        soon(driver.exec_task(&long.id, vec!["/bin/echo".into(), "inside".into()], Duration::from_secs(10))).await;
    let result = result.expect("runs");
    assert_eq!((result.stdout.as_slice(), result.exit.exit_code), (b"inside\n".as_slice(), 0));
    let mut session = driver.exec_streaming(&long.id, vec!["/bin/echo".into(), "stream".into()], false).expect("opens");
    // This driver waits for the end of the input even when the command has ended.
    session.input.send(driver_host::ExecInput::CloseStdin).await.expect("sent");
    let mut text = Vec::new();
    let exit = loop {
        match soon(session.next()).await.expect("ends with an exit").expect("fine") {
            ExecOutput::Stdout(data) => text.extend(data),
            ExecOutput::Exited(exit) => break exit,
            _ => {}
        }
    };
    assert_eq!((text.as_slice(), exit.exit_code), (b"stream\n".as_slice(), 0));

    let killed = Instant::now();
    signal(seen.pid.expect("runs"), Signal::KILL);
    soon(driver.wait_ready(1)).await;
    soon(driver.recover_task(started.handle)).await.expect("recovers");
    let seconds = killed.elapsed();
    assert!(seconds < Duration::from_secs(10), "{seconds:?}");
    soon(driver.signal_task(&long.id, "SIGCONT")).await.expect("is signalled");
    soon(driver.stop_task(&long.id, "SIGTERM", Duration::from_secs(5))).await.expect("stops");
    let exit = soon(driver.wait_task(&long.id)).await.expect("ended");
    // This driver drops its connection to the executor while it still waits for the status, so the result is either the
    // signal or the error of that wait. Neither may look like success.
    assert!(!exit.successful() && (exit.signal == 15 || exit.error.is_some()), "{exit:?}");
    soon(driver.destroy_task(&long.id, true)).await.expect("destroyed");

    // Without a cgroup path from the node this driver writes its process id into the working directory.
    let _ = std::fs::remove_file("cgroup.procs");
    fixture.host.shutdown(driver_host::Ending::Stop).await;
    eventually("all its processes end", || with_environment(&marker).is_empty()).await;
}

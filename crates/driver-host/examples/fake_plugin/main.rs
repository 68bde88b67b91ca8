//! Plugins for the tests of the host: a good one, one for remote tasks, and bad ones.
//!
//! The first argument names the behaviour, see `main`.

use std::collections::{HashMap, HashSet};
use std::io::Write;
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use driver_host::proto::handshake::{self, Address};
use driver_sdk::{
    Description, Driver, Ensure, Ensured, Error, Instance, InstanceState, LogChunk, LogsQuery, Observation, Page,
    PluginInfo, RemoteDriver, RemoteError, RemoteHandle, Started, StopTask, TaskConfig, TaskExit, TaskHandle, schema,
};
use tokio::sync::mpsc;

mod raw;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let argument = args.get(1).cloned().unwrap_or_default();
    // Tests check that no process stays; TMPDIR is the host's socket directory.
    let _ = std::fs::write(std::env::temp_dir().join(format!("pid.{}", std::process::id())), "");
    // And its initial environment.
    let environment: String = std::env::vars().map(|(name, value)| format!("{name}={value}\n")).collect();
    let _ = std::fs::write(std::env::temp_dir().join("environment"), environment);
    match args.first().map(String::as_str).unwrap_or_default() {
        "mock" => driver_sdk::block_on(mock::serve()),
        "remote" => driver_sdk::block_on(driver_sdk::serve_remote(Remote::default())),
        "versioned" => driver_sdk::block_on(driver_sdk::serve(Versioned(argument))),
        "print" => {
            say(&argument);
            wait_for_ever()
        }
        "flood-before" => {
            say(&"x".repeat(10 << 20));
            wait_for_ever()
        }
        "silent" => wait_for_ever(),
        "exit" => {
            let _ = writeln!(std::io::stderr(), "cannot find libmissing.so");
            ExitCode::from(3)
        }
        "nobody-listens" => {
            say(&handshake::line(&Address::Unix("/nonexistent/socket".into()), false));
            wait_for_ever()
        }
        "noisy" => {
            noise();
            driver_sdk::block_on(mock::serve())
        }
        "helpers" => {
            helpers();
            driver_sdk::block_on(mock::serve())
        }
        "helpers-then-exit" => {
            helpers();
            ExitCode::from(3)
        }
        "executor" => wait_for_ever(),
        "flood" => {
            flood();
            driver_sdk::block_on(mock::serve())
        }
        "raw" => driver_sdk::block_on(raw::serve(argument)),
        other => {
            let _ = writeln!(std::io::stderr(), "no behaviour is called {other:?}");
            ExitCode::FAILURE
        }
    }
}

fn say(line: &str) {
    let mut stdout = std::io::stdout();
    let _ = writeln!(stdout, "{line}");
    let _ = stdout.flush();
}

fn wait_for_ever() -> ExitCode {
    loop {
        std::thread::park();
    }
}

/// Starts the usual children of plugins: a helper, an executor, a workload, and an independent process.
fn helpers() {
    use std::os::unix::process::CommandExt;
    use std::process::Command;
    let me = std::env::current_exe().expect("own path");
    let mut workload = Command::new("sleep");
    workload.arg("600").env("NOMAD_ALLOC_ID", "a");
    let mut helper = Command::new("sleep");
    helper.arg("600");
    let mut executor = Command::new(me);
    executor.args(["executor", r#"{"LogFile":"/x/executor.out"}"#]);
    let mut independent = Command::new("sleep");
    independent.arg("600").process_group(0);
    let pids = [helper, executor, workload, independent].map(|mut command| {
        let child = command
            .stdin(std::process::Stdio::null())
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null());
        child.spawn().expect("starts").id().to_string()
    });
    let _ = std::fs::write(std::env::temp_dir().join("helpers"), pids.join(" "));
}

/// Four GiB of standard output and 128 MiB of standard error right after the handshake.
fn flood() {
    const MIB: usize = 1 << 20;
    let stdout = rustix::io::dup(rustix::stdio::stdout()).expect("dup");
    let write = |descriptor: rustix::fd::OwnedFd, block: Vec<u8>, mib: usize, done: &'static str| {
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(200));
            let mut file = std::fs::File::from(descriptor);
            for _ in 0..mib {
                if file.write_all(&block).is_err() {
                    return;
                }
            }
            let _ = std::fs::write(std::env::temp_dir().join(done), "");
        });
    };
    write(stdout, vec![b'z'; MIB], 4096, "stdout.done");
    let stderr = rustix::io::dup(rustix::stdio::stderr()).expect("dup");
    // Short lines, and an endless one.
    let lines = "[INFO] a line of a plugin that has too much to say\n".repeat(MIB / 2 / 50);
    let mut block = lines.into_bytes();
    block.resize(MIB, b'y');
    write(stderr, block, 128, "stderr.done");
}

/// Log lines that have crashed hosts, and a flood of standard output after the handshake.
fn noise() {
    let mut stderr = std::io::stderr();
    let _ = writeln!(stderr, "{}", "y".repeat(1 << 20));
    for line in [
        r#"{"@message":{"not":"a string"},"@level":17,"@timestamp":[]}"#,
        r#"{"@message":"fine","@level":"info","@timestamp":"2024-01-01T00:00:00.1Z"}"#,
        "[ERROR] plain",
        "{broken",
        "",
    ] {
        let _ = writeln!(stderr, "{line}");
    }
    let _ = stderr.write_all(b"\xff\xfe\x00\n");
    // The SDK redirects descriptor 1; this copy still leads to the pipe.
    let stdout = rustix::io::dup(rustix::stdio::stdout()).expect("dup");
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(200));
        let mut file = std::fs::File::from(stdout);
        for _ in 0..10 {
            if file.write_all(&vec![b'z'; 1 << 20]).is_err() {
                return;
            }
        }
        let _ = std::fs::write(std::env::temp_dir().join("flood.done"), "");
    });
}

/// A driver with nothing but a version.
struct Versioned(String);

#[driver_sdk::async_trait]
impl Driver for Versioned {
    fn info(&self) -> PluginInfo {
        PluginInfo::new("versioned", &self.0)
    }
    fn task_config_schema(&self) -> schema::Spec {
        schema::object::<&str>([])
    }
    async fn start_task(&self, _: TaskConfig) -> Result<Started, Error> {
        Err(Error::unsupported("tasks"))
    }
    async fn recover_task(&self, _: TaskHandle) -> Result<(), Error> {
        Err(Error::TaskNotFound)
    }
    async fn wait_task(&self, _: &str) -> Result<TaskExit, Error> {
        Err(Error::TaskNotFound)
    }
    async fn stop_task(&self, _: &str, _: StopTask) -> Result<(), Error> {
        Err(Error::TaskNotFound)
    }
    async fn destroy_task(&self, _: &str, _: bool) -> Result<(), Error> {
        Ok(())
    }
    async fn inspect_task(&self, _: &str) -> Result<driver_sdk::Inspection, Error> {
        Err(Error::TaskNotFound)
    }
}

/// Instances in memory.
#[derive(Default)]
struct Remote {
    instances: Mutex<HashMap<String, Instance>>,
    sealed: Mutex<HashSet<String>>,
}

impl Remote {
    fn change<T>(
        &self,
        handle: &RemoteHandle,
        epoch: Option<u64>,
        change: impl FnOnce(&mut Instance) -> T,
    ) -> Result<T, RemoteError> {
        let key = String::from_utf8_lossy(&handle.data).into_owned();
        let mut instances = self.instances.lock().expect("lock");
        let instance = instances.get_mut(&key).ok_or_else(|| RemoteError::gone("no such instance"))?;
        if let Some(given) = epoch {
            if given < instance.epoch {
                return Err(RemoteError::StaleEpoch { given, accepted: instance.epoch });
            }
            instance.epoch = given;
            instance.observed.epoch = given;
        }
        Ok(change(instance))
    }
}

#[driver_sdk::async_trait]
impl RemoteDriver for Remote {
    fn info(&self) -> PluginInfo {
        PluginInfo::new("remote", "1.0.0")
    }
    fn task_config_schema(&self) -> schema::Spec {
        schema::object([("fail", schema::string())])
    }
    fn describe(&self) -> Description {
        Description {
            provider: "memory".into(),
            keyed_create: true,
            find: true,
            list: true,
            seal: true,
            logs: true,
            handle_schema_min: 1,
            handle_schema_max: 1,
            ..Description::default()
        }
    }
    fn watch_interval(&self) -> Duration {
        Duration::from_millis(20)
    }
    async fn ensure(&self, request: Ensure) -> Result<Ensured, RemoteError> {
        match request.task.env.get("FAIL").map(String::as_str) {
            Some("ask") => return Err(RemoteError::could_not_ask("throttled")),
            Some("wrong") => return Err(RemoteError::wrong_request("no such image")),
            Some("panic") => panic!("asked for"),
            _ => {}
        }
        let handle = RemoteHandle { schema: 1, data: request.key.clone().into_bytes() };
        let mut instances = self.instances.lock().expect("lock");
        let created = !instances.contains_key(&request.key);
        if created && self.sealed.lock().expect("lock").contains(&request.key) {
            return Err(RemoteError::sealed("it was stopped before"));
        }
        let instance = instances.entry(request.key.clone()).or_insert_with(|| Instance {
            key: request.key.clone(),
            owner: request.owner,
            slot: request.slot,
            epoch: request.epoch,
            handle: handle.clone(),
            observed: Observation {
                key: request.key.clone(),
                state: InstanceState::Running,
                provider_id: format!("memory-{}", request.key),
                started_at: Some(SystemTime::now()),
                epoch: request.epoch,
                ..Observation::default()
            },
        });
        if request.epoch < instance.epoch {
            return Err(RemoteError::StaleEpoch { given: request.epoch, accepted: instance.epoch });
        }
        Ok(Ensured { handle, observed: instance.observed.clone(), created })
    }
    async fn find(&self, key: &str, owner: &str) -> Result<(RemoteHandle, Observation), RemoteError> {
        let instances = self.instances.lock().expect("lock");
        let found = instances.get(key).filter(|instance| instance.owner == owner);
        let found = found.ok_or_else(|| RemoteError::gone("no such key"))?;
        Ok((found.handle.clone(), found.observed.clone()))
    }
    async fn list(&self, owner: &str, _: &str, _: usize) -> Result<Page, RemoteError> {
        let instances = self.instances.lock().expect("lock");
        let mine = instances.values().filter(|instance| instance.owner == owner).cloned();
        Ok(Page { instances: mine.collect(), ..Page::default() })
    }
    async fn observe(&self, handles: &[RemoteHandle]) -> Result<Vec<Observation>, RemoteError> {
        let see = |handle: &RemoteHandle| match self.change(handle, None, |instance| instance.observed.clone()) {
            Ok(seen) => seen,
            Err(_) => Observation {
                key: String::from_utf8_lossy(&handle.data).into_owned(),
                state: InstanceState::Gone,
                ..Observation::default()
            },
        };
        Ok(handles.iter().map(see).collect())
    }
    async fn stop(&self, handle: &RemoteHandle, epoch: u64, _: StopTask) -> Result<Observation, RemoteError> {
        self.change(handle, Some(epoch), |instance| {
            instance.observed.state = InstanceState::Exited;
            instance.observed.exit = TaskExit::signal(15);
            instance.observed.finished_at = Some(SystemTime::now());
            instance.observed.clone()
        })
    }
    async fn seal(
        &self,
        key: &str,
        epoch: u64,
        owner: &str,
        _intent: &[u8],
    ) -> Result<Option<(RemoteHandle, Observation)>, RemoteError> {
        self.sealed.lock().expect("lock").insert(key.to_owned());
        match self.find(key, owner).await {
            Ok((handle, _)) => {
                self.change(&handle, Some(epoch), |instance| Some((instance.handle.clone(), instance.observed.clone())))
            }
            Err(_) => Ok(None),
        }
    }
    async fn acknowledge(&self, handle: &RemoteHandle, epoch: u64) -> Result<(), RemoteError> {
        self.change(handle, Some(epoch), |_| ())?;
        let key = String::from_utf8_lossy(&handle.data).into_owned();
        self.instances.lock().expect("lock").remove(&key);
        self.sealed.lock().expect("lock").insert(key);
        Ok(())
    }
    async fn logs(
        &self,
        handle: &RemoteHandle,
        query: LogsQuery,
        sink: mpsc::Sender<LogChunk>,
    ) -> Result<(), RemoteError> {
        self.change(handle, None, |_| ())?;
        let text = b"one\ntwo\n";
        let offset = query.offset.min(text.len() as u64);
        let data = text[offset as usize..].to_vec();
        let _ = sink.send(LogChunk { offset, data, file: "t.stdout.0".into() }).await;
        if query.follow {
            sink.closed().await;
        }
        Ok(())
    }
}

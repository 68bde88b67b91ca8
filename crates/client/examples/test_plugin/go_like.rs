//! A driver that does what drivers written in Go with Nomad's libraries do, faults included: it runs itself as an
//! executor for each task, in a session of its own, and leaves it behind in all the ways that such drivers have.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use driver_sdk::{
    Capabilities, Error, Inspection, PluginInfo, Started, StopTask, TaskConfig, TaskExit, TaskHandle, TaskStatus,
    async_trait, handle, schema,
};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde::{Deserialize, Serialize};

const POLL: Duration = Duration::from_millis(5);

/// A task's `config`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
struct Options {
    /// For `sh -c`.
    script: String,
    /// What goes wrong, see `start_task` and the others.
    faults: Vec<String>,
    /// Whether the workload is moved into the task's cgroup.
    in_cgroup: bool,
    /// `given` (what the host says), `inherit` (the driver's) or `none`.
    env: String,
}

/// What is found again after a restart.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct State {
    executor: u32,
    task_dir: PathBuf,
    options: Options,
}

impl State {
    fn fault(&self, name: &str) -> bool {
        self.options.faults.iter().any(|fault| fault == name)
    }

    /// Faults that happen so many times in the life of an allocation.
    fn fault_times(&self, name: &str, times: u64) -> bool {
        let path = self.task_dir.join(format!("count.{name}"));
        let count = fs::metadata(&path).map_or(0, |meta| meta.len());
        let happens = self.fault(name) && count < times;
        if happens {
            fs::write(&path, "x".repeat(count as usize + 1)).expect("writable");
        }
        happens
    }

    fn status(&self) -> String {
        fs::read_to_string(self.task_dir.join(format!("status.{}", self.executor))).unwrap_or_default()
    }

    fn workload(&self) -> Option<Pid> {
        Pid::from_raw(self.status().split_whitespace().nth(1)?.parse().ok()?)
    }

    fn exit(&self) -> Option<i32> {
        self.status().split_whitespace().nth(3)?.parse().ok()
    }

    fn executor_lives(&self) -> bool {
        fs::read(format!("/proc/{}/cmdline", self.executor)).is_ok_and(|line| line.windows(8).any(|w| w == b"executor"))
    }

    fn kill_workload(&self) {
        if let Some(pid) = self.workload() {
            let _ = kill_process_group(pid, Signal::KILL);
        }
    }

    fn kill_executor(&self) {
        if let Some(pid) = Pid::from_raw(self.executor.cast_signed()).filter(|_| self.executor_lives()) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

/// The driver. Faults of the whole plugin are switched by files in its socket directory, which is its temporary
/// directory.
pub(crate) struct Driver {
    tasks: Mutex<HashMap<String, State>>,
}

fn switched(name: &str) -> bool {
    std::env::temp_dir().join(name).exists()
}

impl Driver {
    pub(crate) fn new() -> Self {
        if std::env::args().any(|arg| arg == "helper") {
            let helper = Command::new("sleep")
                .arg("600")
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn();
            fs::write(std::env::temp_dir().join("helper"), helper.expect("starts").id().to_string()).expect("writable");
        }
        Self { tasks: Mutex::default() }
    }

    fn task(&self, id: &str) -> Result<State, Error> {
        self.tasks.lock().expect("lock").get(id).cloned().ok_or(Error::TaskNotFound)
    }
}

#[async_trait]
impl driver_sdk::Driver for Driver {
    fn info(&self) -> PluginInfo {
        assert!(!switched("info-fails"), "PluginInfo fails");
        PluginInfo::new("go_like", "1.0.0")
    }

    fn config_schema(&self) -> Option<schema::Spec> {
        Some(schema::object::<&str>([]))
    }

    async fn set_config(&self, _: driver_sdk::config::Config, _: Option<driver_sdk::AgentConfig>) -> Result<(), Error> {
        if switched("config-fails") { Err(Error::failed("the region is not set")) } else { Ok(()) }
    }

    fn task_config_schema(&self) -> schema::Spec {
        schema::object([
            ("script", schema::string()),
            ("faults", schema::list("string")),
            ("in_cgroup", schema::bool()),
            ("env", schema::string().default("\"given\"")),
        ])
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    async fn start_task(&self, task: TaskConfig) -> Result<Started, Error> {
        let options: Options = driver_sdk::config::Config::new(task.msgpack_driver_config.clone()).decode()?;
        let task_dir = Path::new(&task.alloc_dir).join(&task.name);
        let mut state = State { executor: 0, task_dir: task_dir.clone(), options: options.clone() };
        if state.fault_times("die-before-spawn", 1) {
            std::process::exit(9);
        }
        let connect_fails = state.fault_times("connect-fails", 1);
        let spec = ExecutorSpec {
            log_file: task_dir.join("executor.out"),
            script: if connect_fails { String::new() } else { options.script.clone() },
            stdout: task.stdout_path.clone(),
            stderr: task.stderr_path.clone(),
            env: (options.env != "inherit")
                .then(|| if options.env == "none" { BTreeMap::new() } else { task.env.clone() }),
            cgroup: options.in_cgroup.then(|| cgroup_of(&task)),
        };
        let me = std::env::current_exe().map_err(Error::failed)?;
        let mut command = Command::new(me);
        command.args(["executor", &serde_json::to_string(&spec).map_err(Error::failed)?]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).current_dir(&task_dir);
        let mut executor = command.spawn().map_err(Error::failed)?;
        state.executor = executor.id();
        // Dead executors must not look alive.
        std::thread::spawn(move || executor.wait());
        if connect_fails {
            return Err(Error::recoverable("connecting to the executor failed"));
        }
        while state.workload().is_none() {
            tokio::time::sleep(POLL).await;
        }
        if state.fault("answers-late") {
            // After two processes have said that they are there.
            let noted = Path::new(&task.alloc_dir).join("alloc/data/pids");
            while fs::read_to_string(&noted).map_or(0, |text| text.lines().count()) < 2 {
                tokio::time::sleep(POLL).await;
            }
        }
        if state.fault_times("start-error-after-launch", 1) {
            return Err(Error::recoverable("encoding the state failed"));
        }
        if state.fault_times("executor-killed-in-start", 1) {
            // Tests count workloads by what they note, which on a slow machine comes later than their process.
            let noted = Path::new(&task.alloc_dir).join("alloc/data/pids");
            while !fs::metadata(&noted).is_ok_and(|m| m.len() > 0) {
                tokio::time::sleep(POLL).await;
            }
            state.kill_executor();
            return Err(Error::recoverable("moving the executor failed"));
        }
        if state.fault_times("container-left", 1) {
            fs::create_dir_all(task_dir.join("container-state")).map_err(Error::failed)?;
            fs::create_dir_all(Path::new(&cgroup_of(&task)).join("container")).map_err(Error::failed)?;
            return Err(Error::recoverable("the container did not come up"));
        }
        if state.fault_times("die-in-start", 1) {
            std::process::exit(9);
        }
        let driver_state = handle::encode(&state)?;
        self.tasks.lock().expect("lock").insert(task.id, state);
        Ok(Started { driver_state, version: 1, network: None })
    }

    async fn recover_task(&self, task: TaskHandle) -> Result<(), Error> {
        let state: State = handle::decode(&task.driver_state)?;
        if state.fault("recover-fails") {
            return Err(Error::failed("the driver's configuration is not in the handle"));
        }
        let id = task.config.unwrap_or_default().id;
        self.tasks.lock().expect("lock").insert(id, state);
        Ok(())
    }

    async fn wait_task(&self, id: &str) -> Result<TaskExit, Error> {
        loop {
            let state = self.task(id)?;
            if let Some(code) = state.exit() {
                return Ok(TaskExit::code(code));
            }
            if !state.executor_lives() {
                return Ok(TaskExit {
                    exit_code: -1,
                    error: Some("the executor is gone".into()),
                    ..TaskExit::default()
                });
            }
            tokio::time::sleep(POLL).await;
        }
    }

    async fn stop_task(&self, id: &str, stop: StopTask) -> Result<(), Error> {
        let state = self.task(id)?;
        if !["", "SIGINT", "SIGTERM", "SIGKILL"].contains(&stop.signal.as_str()) {
            return Err(Error::failed(format!("unknown signal {:?}", stop.signal)));
        }
        // The executor idles on.
        state.kill_workload();
        while state.exit().is_none() && state.executor_lives() {
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }

    async fn destroy_task(&self, id: &str, _: bool) -> Result<(), Error> {
        let state = self.task(id)?;
        if state.fault_times("destroy-crashes", 2) {
            std::process::exit(7);
        }
        if state.fault("destroy-fails") && !state.task_dir.join("local/allow").exists() {
            return Err(Error::failed("the transport is closing"));
        }
        if !state.fault("destroy-forgets") && state.executor_lives() {
            state.kill_workload();
            state.kill_executor();
        }
        fs::write(state.task_dir.join("destroyed"), "").map_err(Error::failed)?;
        self.tasks.lock().expect("lock").remove(id);
        Ok(())
    }

    async fn inspect_task(&self, id: &str) -> Result<Inspection, Error> {
        let state = self.task(id)?;
        let status = if state.exit().is_some() { TaskStatus::Exited } else { TaskStatus::Running };
        Ok(Inspection { status, ..Inspection::default() })
    }
}

/// The host's cgroup for the task, in the hierarchy that can end processes.
fn cgroup_of(task: &TaskConfig) -> String {
    let given = task
        .resources
        .as_ref()
        .and_then(|r| r.linux_resources.as_ref())
        .map(|r| r.cpuset_cgroup.clone())
        .unwrap_or_default();
    if given.ends_with(".scope") {
        given
    } else {
        format!("/sys/fs/cgroup/freezer/nomad/{}.{}", task.alloc_id, task.name)
    }
}

/// The third argument of an executor.
#[derive(Debug, Serialize, Deserialize)]
struct ExecutorSpec {
    #[serde(rename = "LogFile")]
    log_file: PathBuf,
    script: String,
    stdout: String,
    stderr: String,
    env: Option<BTreeMap<String, String>>,
    cgroup: Option<String>,
}

/// Runs one workload and then idles until somebody ends it.
pub(crate) fn executor() -> ExitCode {
    let _ = rustix::process::setsid();
    let spec: ExecutorSpec = serde_json::from_str(&std::env::args().nth(2).unwrap_or_default()).expect("specification");
    fs::write(&spec.log_file, "").expect("the task's directory exists");
    let status = spec.log_file.with_file_name(format!("status.{}", std::process::id()));
    if !spec.script.is_empty() {
        // Blocks until the log collector reads, as its model does.
        let output = |path: &str| fs::File::options().write(true).open(path).expect("output");
        let mut command = Command::new("sh");
        command.args(["-c", &spec.script]).process_group(0).stdin(Stdio::null());
        command.stdout(output(&spec.stdout)).stderr(output(&spec.stderr));
        if let Some(env) = &spec.env {
            command.env_clear().envs(env);
        }
        let mut workload = command.spawn().expect("starts");
        if let Some(cgroup) = &spec.cgroup {
            fs::write(Path::new(cgroup).join("cgroup.procs"), workload.id().to_string())
                .expect("the host has made the cgroup");
        }
        let write = |text: String| {
            let draft = status.with_extension("draft");
            fs::write(&draft, text).and_then(|()| fs::rename(&draft, &status)).expect("writable");
        };
        write(format!("started {}", workload.id()));
        let exit = workload.wait().expect("a child");
        let code = exit.code().unwrap_or_else(|| 128 + exit.signal().unwrap_or(0));
        write(format!("started {} exited {code}", workload.id()));
    }
    loop {
        std::thread::park();
    }
}

//! Tasks and instances: real processes, and what is known of them on disk.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use driver_proto::driver::{ExitResult, TaskConfig};
use rmpv::Value;
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tonic::Status;

use crate::fault;

/// In the environment of every process of a task.
const MARK: &str = "FAULTY_TASK";
/// Holds the workload; not in its environment, so not killed with it.
const HOLDER: &str = r#"
dir=$1; out=$2; err=$3; shift 3
"$@" >"$out" 2>"$err" </dev/null
echo $? >"$dir/exit.new"; /bin/mv "$dir/exit.new" "$dir/exit"
"#;
/// The same with the fault of mixing the streams.
const MIXING_HOLDER: &str = r#"
dir=$1; out=$2; err=$3; shift 3
"$@" >"$out" 2>&1 </dev/null
echo $? >"$dir/exit.new"; /bin/mv "$dir/exit.new" "$dir/exit"
"#;

/// What a job asks for.
#[derive(Debug, Clone, Default)]
pub(crate) struct Options {
    pub(crate) command: String,
    pub(crate) args: Vec<String>,
}

fn text(value: &Value) -> Result<String, Status> {
    match value {
        Value::Nil => Ok(String::new()),
        Value::String(text) => Ok(text.as_str().unwrap_or_default().to_owned()),
        Value::Binary(bytes) if !fault("config/text-forms") => Ok(String::from_utf8_lossy(bytes).into_owned()),
        other => Err(Status::unknown(format!("{other} is no text"))),
    }
}

impl Options {
    pub(crate) fn decode(bytes: &[u8]) -> Result<Options, Status> {
        let mut rest = bytes;
        let decoded = rmpv::decode::read_value_with_max_depth(&mut rest, 100);
        let Ok(Value::Map(fields)) = decoded else {
            if fault("config/junk") {
                std::process::exit(3);
            }
            return Err(Status::unknown("the task's configuration cannot be read"));
        };
        if fault("config/int-widths") && bytes.windows(6).any(|w| w == b"count\xd3") {
            return Err(Status::unknown("int 64 is not expected"));
        }
        let mut options = Options::default();
        for (key, value) in &fields {
            match key.as_str().unwrap_or_default() {
                "command" => options.command = text(value)?,
                "args" => {
                    let items = value.as_array().into_iter().flatten();
                    options.args = items.map(text).collect::<Result<_, _>>()?;
                }
                "note" if *value == Value::Nil && fault("config/nil") => return Err(Status::unknown("note is nil")),
                "note" => drop(text(value)?),
                "count" if value.is_str() && fault("config/decimal-strings") => {
                    return Err(Status::unknown("count is text"));
                }
                "count" => {}
                other if fault("config/unknown-key") => return Err(Status::unknown(format!("what is {other}?"))),
                _ => {}
            }
        }
        Ok(options)
    }
}

/// What is kept of an instance.
#[derive(Debug, Clone, Default, Serialize, Deserialize, PartialEq)]
pub(crate) struct Meta {
    pub(crate) key: String,
    pub(crate) owner: String,
    pub(crate) slot: String,
    pub(crate) task_id: String,
    pub(crate) epoch: u64,
    pub(crate) started_ns: u64,
}

/// A process with its record.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Instance {
    pub(crate) dir: PathBuf,
}

impl Instance {
    pub(crate) fn meta(&self) -> Option<Meta> {
        serde_json::from_slice(&std::fs::read(self.dir.join("meta.json")).ok()?).ok()
    }

    pub(crate) fn write(&self, meta: &Meta) -> io::Result<()> {
        let fresh = self.dir.join("meta.new");
        std::fs::write(&fresh, serde_json::to_vec(meta)?)?;
        std::fs::rename(fresh, self.dir.join("meta.json"))
    }

    pub(crate) fn sealed(&self) -> bool {
        self.dir.join("sealed").exists()
    }

    pub(crate) fn pid(&self) -> Option<i32> {
        std::fs::read_to_string(self.dir.join("pid")).ok()?.trim().parse().ok()
    }

    pub(crate) fn exit(&self) -> Option<ExitResult> {
        let code: i32 = std::fs::read_to_string(self.dir.join("exit")).ok()?.trim().parse().ok()?;
        let signal = if (129..160).contains(&code) { code - 128 } else { 0 };
        let signal = if fault("stop/result") { 0 } else { signal };
        Some(ExitResult { exit_code: code, signal, oom_killed: false })
    }

    /// All of its processes.
    pub(crate) fn processes(&self) -> Vec<i32> {
        let Some(meta) = self.meta() else { return Vec::new() };
        let entry = format!("{MARK}={}", meta.key);
        let pids = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let marked = |pid: &i32| {
            let environ = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environ.split(|byte| *byte == 0).any(|variable| variable == entry.as_bytes())
        };
        pids.filter(marked).collect()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        if let Some(pid) = self.pid().and_then(Pid::from_raw).filter(|_| self.exit().is_none()) {
            let _ = kill_process(pid, signal);
        }
    }

    /// Kills all of its processes until there are none.
    pub(crate) async fn kill(&self) {
        if fault("stop/tree") || fault("destroy/force") {
            self.signal(Signal::KILL);
            return self.wait().await;
        }
        loop {
            let processes = self.processes();
            for pid in processes.iter().filter_map(|pid| Pid::from_raw(*pid)) {
                let _ = kill_process(pid, Signal::KILL);
            }
            if processes.is_empty() && (self.exit().is_some() || self.pid().is_none()) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(15)).await;
        }
    }

    /// Until its exit is written down.
    pub(crate) async fn wait(&self) {
        while self.exit().is_none() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// A signal, patience, SIGKILL for whoever is left.
    pub(crate) async fn stop(&self, name: &str, timeout: Duration) {
        if self.exit().is_none() {
            self.signal(number(if fault("stop/signal") { "SIGTERM" } else { name }));
            let timeout = if fault("stop/timeout") { Duration::from_millis(10) } else { timeout };
            drop(tokio::time::timeout(timeout, self.wait()).await);
        }
        self.kill().await;
    }
}

pub(crate) fn number(name: &str) -> Signal {
    match name {
        "SIGTERM" => Signal::TERM,
        "SIGKILL" => Signal::KILL,
        "SIGHUP" => Signal::HUP,
        "SIGUSR1" => Signal::USR1,
        _ => Signal::INT,
    }
}

/// A task of the plain protocol.
#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) config: TaskConfig,
    pub(crate) instance: Instance,
    pub(crate) gone: watch::Sender<bool>,
    pub(crate) detached: watch::Sender<bool>,
    pub(crate) waited: std::sync::atomic::AtomicUsize,
    pub(crate) disturbed: watch::Sender<bool>,
}

/// Everything.
#[derive(Default)]
pub(crate) struct World {
    root: Mutex<PathBuf>,
    configured: Mutex<bool>,
    pub(crate) tasks: Mutex<HashMap<String, Arc<Task>>>,
    pub(crate) failed: Mutex<HashSet<String>>,
    /// A wait has seen the end of a task, which may be destroyed by now.
    pub(crate) one_has_ended: watch::Sender<bool>,
    /// Epochs are compared and written one at a time.
    pub(crate) epochs: Mutex<()>,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl World {
    pub(crate) fn configure(&self, root: Option<&str>) {
        *lock(&self.root) = root.map(PathBuf::from).unwrap_or_default();
        *lock(&self.configured) = true;
    }

    pub(crate) fn configured(&self) -> bool {
        *lock(&self.configured)
    }

    pub(crate) fn root(&self) -> PathBuf {
        lock(&self.root).clone()
    }

    pub(crate) fn instance(&self, key: &str) -> Instance {
        Instance { dir: self.root().join(key) }
    }

    pub(crate) fn task(&self, id: &str) -> Result<Arc<Task>, Status> {
        let found = lock(&self.tasks).get(id).cloned();
        found.ok_or_else(|| {
            if fault("wait/unknown") {
                Status::unknown("who is that?")
            } else {
                Status::unknown("task not found for given id")
            }
        })
    }

    pub(crate) fn manage(&self, config: TaskConfig, instance: Instance) -> Arc<Task> {
        let id = config.id.clone();
        let task = Arc::new(Task {
            config,
            instance,
            gone: watch::Sender::new(false),
            detached: watch::Sender::new(false),
            waited: Default::default(),
            disturbed: watch::Sender::new(false),
        });
        lock(&self.tasks).insert(id, task.clone());
        task
    }

    /// For faults.
    pub(crate) fn kill_all(&self) {
        for task in lock(&self.tasks).values() {
            task.instance.signal(Signal::KILL);
        }
    }

    pub(crate) fn instances(&self) -> BTreeMap<String, Instance> {
        let entries = std::fs::read_dir(self.root()).into_iter().flatten().flatten();
        let instances = entries.map(|entry| Instance { dir: entry.path() });
        instances.filter_map(|instance| Some((instance.meta()?.key, instance))).collect()
    }

    /// Makes the instance of a key. `false` when there is one, an error when it cannot be or must not be made.
    pub(crate) async fn create(&self, key: &str, meta: Meta, task: &TaskConfig) -> Result<bool, Status> {
        let options = Options::decode(&task.msgpack_driver_config)?;
        if !Path::new(&options.command).exists() {
            if fault("start/failure") {
                drop(Command::new("sleep").arg("60").envs(&task.env).spawn());
            }
            return Err(Status::unknown(format!("{:?} does not exist", options.command)));
        }
        let instance = self.instance(key);
        let failed = |error: io::Error| Status::unavailable(error.to_string());
        std::fs::create_dir_all(self.root()).map_err(failed)?;
        if fault("remote/ensure-racing") && instance.dir.exists() {
            // Too late to notice.
            drop(std::fs::remove_dir_all(&instance.dir));
        }
        match std::fs::create_dir(&instance.dir) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                if instance.sealed() {
                    return Err(Status::failed_precondition("the key is sealed"));
                }
                // Whoever makes it is about to write who it is.
                let begun = Instant::now();
                while instance.pid().is_none() && begun.elapsed() < Duration::from_secs(10) {
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
                return Ok(false);
            }
            other => other.map_err(failed)?,
        }
        self.launch(&instance, Meta { started_ns: now_ns(), ..meta }, &options, task).await.map_err(failed)?;
        Ok(true)
    }

    pub(crate) async fn launch(
        &self,
        instance: &Instance,
        meta: Meta,
        options: &Options,
        task: &TaskConfig,
    ) -> io::Result<()> {
        instance.write(&meta)?;
        let path = |path: &str| if path.is_empty() { "/dev/null".to_owned() } else { path.to_owned() };
        let (mut out, err) = (path(&task.stdout_path), path(&task.stderr_path));
        if meta.owner != PLAIN {
            // Nobody reads fifos for instances: their logs are asked for.
            out = instance.dir.join("stdout").display().to_string();
        }
        if fault("logs/after-exit") {
            out = "/dev/null".into();
        }
        let err = if meta.owner == PLAIN { err } else { "/dev/null".into() };
        let mut env: Vec<String> = task.env.iter().map(|(name, value)| format!("{name}={value}")).collect();
        if fault("env/given") {
            env.retain(|variable| !variable.contains('"'));
        }
        if fault("env/clean") {
            env.extend(
                std::env::vars()
                    .filter(|(name, _)| name.starts_with("PLUGIN_"))
                    .map(|(name, value)| format!("{name}={value}")),
            );
        }
        let holder = if fault("logs/complete") { MIXING_HOLDER } else { HOLDER };
        let holder = if fault("env/sigpipe") { format!("trap '' PIPE\n{holder}") } else { holder.to_owned() };
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", &holder, "holder"])
            .args([&instance.dir.display().to_string(), &out, &err])
            // Whoever runs the tests under nohup ignores SIGHUP, and so would the task.
            .args(["/usr/bin/env", "--default-signal=HUP", "-i"])
            .args(env)
            .arg(format!("{MARK}={}", meta.key))
            .args(["/bin/sh", "-c", "echo $$ >\"$0\"; exec \"$@\"", &instance.dir.join("pid").display().to_string()])
            .arg(&options.command)
            .args(&options.args)
            // Whoever outlives a plugin in the plugin's own group is ended with it.
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let mut child = command.spawn()?;
        // Reaped by whoever is there; without us, by init.
        std::thread::spawn(move || child.wait());
        let begun = Instant::now();
        while instance.pid().is_none() && instance.exit().is_none() && begun.elapsed() < Duration::from_secs(20) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        Ok(())
    }
}

/// Owner of the tasks of the plain protocol.
pub(crate) const PLAIN: &str = "plain";

fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or_default()
}

pub(crate) fn time(ns: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_nanos(ns)
}

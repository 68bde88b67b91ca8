//! A remote driver over a toy provider: a directory on a machine that outlives the nodes. Any process with access to it
//! can manage the instances.
//!
//! ```text
//! <dir>/lock                       held during each change
//! <dir>/<key>/epoch                the newest that was accepted
//! <dir>/<key>/began pid out exit   written by the instance: a shell with its script
//! ```
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::time::{Duration, Instant};

use driver_sdk::{config::Config, schema::Spec, *};
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use serde::{Deserialize, Serialize};

#[derive(DriverConfig)]
struct Operator {
    /// The directory that is the provider, the same for all nodes.
    dir: PathBuf,
}

#[derive(DriverConfig)]
struct Options {
    /// The shell script to run.
    script: String,
}

#[derive(Serialize, Deserialize)]
struct State(String);

impl DriverState for State {
    const VERSION: u16 = 1;
}

/// The creation of `began` is atomic, so only one of several such shells runs. It leads a process group, the target of
/// signals, which come again until `exit` is there: what writes that ignores them, as its children do.
const WRAPPER: &str = "mkdir began 2>/dev/null || exit 0; trap : TERM; echo $$ >pid; sh -c \"$1\" >out 2>&1; code=$?; \
    trap '' TERM; echo $code >exit.new; mv exit.new exit";

#[derive(Default)]
struct Spool(std::sync::OnceLock<PathBuf>);

type Answer<T> = Result<T, RemoteError>;

/// A number in a file; `None` without the file.
fn number(path: PathBuf) -> Answer<Option<i32>> {
    match fs::read_to_string(&path) {
        Ok(text) => Ok(text.trim().parse().ok()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(RemoteError::could_not_ask(format!("cannot read {path:?}: {error}"))),
    }
}

impl Spool {
    fn dir(&self, handle: &RemoteHandle) -> Answer<PathBuf> {
        State::from_remote_handle(handle).and_then(|state| Ok(self.root()?.join(state.0)))
    }
    /// If the common directory is absent, the absence of an instance says nothing.
    fn root(&self) -> Answer<&Path> {
        let root = self.0.get().filter(|root| root.is_dir());
        root.map(PathBuf::as_path).ok_or_else(|| RemoteError::could_not_ask("the provider's directory is not there"))
    }
    /// Takes the lock and refuses a stale epoch: every mutation needs both.
    fn accept(&self, instance: &Path, epoch: u64) -> Answer<File> {
        let lock = File::create(self.root()?.join("lock")).map_err(RemoteError::could_not_ask)?;
        lock.lock().map_err(RemoteError::could_not_ask)?;
        match number(instance.join("epoch"))?.unwrap_or(0) as u64 {
            accepted if epoch < accepted => Err(RemoteError::StaleEpoch { given: epoch, accepted }),
            _ => {
                fs::write(instance.join("epoch"), epoch.to_string()).map(|()| lock).map_err(RemoteError::could_not_ask)
            }
        }
    }
    fn look(&self, dir: &Path) -> Answer<Observation> {
        self.root()?;
        let (state, exit) = match (number(dir.join("exit"))?, number(dir.join("pid"))?.and_then(Pid::from_raw)) {
            _ if !dir.is_dir() => (InstanceState::Gone, TaskExit::default()),
            (Some(code), _) => (InstanceState::Exited, TaskExit::code(code)),
            (None, None) => (InstanceState::Creating, TaskExit::default()),
            (None, Some(pid)) if test_kill_process_group(pid).is_ok() => (InstanceState::Running, TaskExit::default()),
            // Only now the exit code is certain to be there, unless its shell was killed.
            (None, Some(_)) => {
                (InstanceState::Exited, number(dir.join("exit"))?.map_or(TaskExit::signal(9), TaskExit::code))
            }
        };
        let key = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Observation {
            key,
            state,
            exit,
            epoch: number(dir.join("epoch"))?.unwrap_or(0) as u64,
            ..Observation::default()
        })
    }
}

#[async_trait]
impl RemoteDriver for Spool {
    fn info(&self) -> PluginInfo {
        PluginInfo::new("spool", env!("CARGO_PKG_VERSION"))
    }
    fn config_schema(&self) -> Option<Spec> {
        Some(Operator::schema())
    }
    async fn set_config(&self, config: Config, _: Option<AgentConfig>) -> Result<(), Error> {
        Operator::decode(config).map(|operator| drop(self.0.set(operator.dir)))
    }
    fn task_config_schema(&self) -> Spec {
        Options::schema()
    }
    fn describe(&self) -> Description {
        let provider = format!("spool:{:?}", self.0.get());
        let handles = Description { handle_schema_min: 1, handle_schema_max: 1, ..Description::default() };
        Description { provider, keyed_create: true, conditional_writes: true, retained_exit_results: true, ..handles }
    }
    async fn ensure(&self, request: Ensure) -> Answer<Ensured> {
        let options = Options::decode(&request.task.msgpack_driver_config).map_err(RemoteError::wrong_request)?;
        let dir = self.root()?.join(&request.key);
        let created = fs::create_dir(&dir).is_ok();
        let _lock = self.accept(&dir, request.epoch)?;
        // Also for an existing one: its creator may have died before this line, and one shell wins.
        let mut shell = tokio::process::Command::new("/bin/sh");
        shell.args(["-c", WRAPPER, "spool", &options.script]).current_dir(&dir).env_clear().envs(&request.task.env);
        shell.process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        shell.spawn().map_err(RemoteError::could_not_ask)?;
        Ok(Ensured { handle: State(request.key).remote_handle()?, observed: self.look(&dir)?, created })
    }
    async fn observe(&self, handles: &[RemoteHandle]) -> Answer<Vec<Observation>> {
        let look = |handle| self.dir(handle).and_then(|dir| self.look(&dir));
        Ok(handles.iter().map(|handle| look(handle).unwrap_or_else(|error| Observation::unknown("", error))).collect())
    }
    async fn stop(&self, handle: &RemoteHandle, epoch: u64, stop: StopTask) -> Answer<Observation> {
        let (dir, begun, mut signal) = (self.dir(handle)?, Instant::now(), Signal::TERM);
        drop(self.accept(&dir, epoch)?);
        loop {
            let seen = self.look(&dir)?;
            match number(dir.join("pid"))?.and_then(Pid::from_raw) {
                _ if matches!(seen.state, InstanceState::Exited | InstanceState::Gone) => return Ok(seen),
                Some(pid) => drop(kill_process_group(pid, signal)),
                None => {}
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
            signal = if begun.elapsed() < stop.timeout { Signal::TERM } else { Signal::KILL };
        }
    }
    async fn acknowledge(&self, handle: &RemoteHandle, epoch: u64) -> Answer<()> {
        let dir = self.dir(handle)?;
        match self.look(&dir)?.state {
            InstanceState::Gone => Ok(()),
            InstanceState::Exited => {
                self.accept(&dir, epoch).and_then(|_lock| fs::remove_dir_all(&dir).map_err(RemoteError::could_not_ask))
            }
            _ => Err(RemoteError::wrong_request("the instance runs; stop it first")),
        }
    }
}

fn main() -> ExitCode {
    driver_sdk::block_on(driver_sdk::serve_remote(Spool::default()))
}

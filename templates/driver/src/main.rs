//! A complete driver: runs a script that stands in the job file. `docs/guides/writing-a-driver.md` goes through it.
//!
//! An executor holds the script, a tiny process that survives plugin and agent and keeps output and exit: nothing can
//! be lost here.

use std::{path::Path, path::PathBuf, process::ExitCode};

use driver_sdk::{schema::Spec, tasks, *};
use executor_client::{CgroupPolicy, Executor, ExitResult, LaunchSpec, Launcher, LogPolicy, destroy, signal_number};
use serde::{Deserialize, Serialize};

/// The driver's name: the program's, with `_` for `-`.
const NAME: &str = env!("CARGO_CRATE_NAME");

/// A task's `config`.
#[derive(DriverConfig)]
struct Options {
    /// The script.
    script: String,
    /// The shell that runs it.
    #[config(default = "/bin/sh")]
    shell: PathBuf,
}

/// What the host keeps for us: all that finds a task again.
#[derive(Serialize, Deserialize)]
struct State {
    dir: PathBuf,
}

impl DriverState for State {
    const VERSION: u16 = 1;
}

#[derive(Default)]
struct Script(Tasks<Executor>);

fn exit(result: ExitResult) -> TaskExit {
    let error = (!result.reason.is_empty()).then_some(result.reason);
    TaskExit { exit_code: result.exit_code, signal: result.signal, oom_killed: result.oom_killed, error }
}

fn signal(name: &str) -> Result<i32, Error> {
    signal_number(name)
        .ok_or_else(|| Error::invalid(format!("{name:?} is not the name of a signal; use one such as SIGHUP")))
}

#[async_trait]
impl Driver for Script {
    fn info(&self) -> PluginInfo {
        PluginInfo::new(NAME, env!("CARGO_PKG_VERSION"))
    }

    fn task_config_schema(&self) -> Spec {
        Options::schema()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { send_signals: true, no_mounts: true, disable_log_collection: true, ..Capabilities::default() }
    }

    async fn start_task(&self, task: TaskConfig) -> Result<Started, Error> {
        let options = Options::decode(&task.msgpack_driver_config)?;
        let state = State { dir: tasks::task_dir(&task).join("private").join(NAME).join(tasks::start_name(&task)) };
        let spec = LaunchSpec {
            id: task.id.clone(),
            command: options.shell,
            args: vec!["-c".into(), options.script.into()],
            env: task.env.iter().map(|(name, value)| (name.into(), value.into())).collect(),
            cwd: tasks::task_dir(&task),
            log: tasks::log_policy(&task)?.map(|log| LogPolicy {
                dir: log.dir.into(),
                stdout_name: log.stdout_name,
                stderr_name: log.stderr_name,
                max_files: log.max_files,
                max_file_bytes: log.max_file_size_bytes,
            }),
            cgroup: Some(CgroupPolicy { name: task.id.replace('/', "."), ..CgroupPolicy::default() }),
            ..LaunchSpec::default()
        };
        // Beside the allocations: the executor's program must outlive this plugin's.
        let launcher =
            Launcher::new(Path::new(&task.alloc_dir).with_file_name(".executors")).map_err(Error::recoverable)?;
        // Create or get: the same start, repeated after a crash, finds the workload of the first.
        let launched = launcher.launch(&state.dir, spec).await.map_err(Error::failed)?;
        self.0.insert(&task.id, launched.executor)?;
        state.started()
    }

    async fn recover_task(&self, handle: TaskHandle) -> Result<(), Error> {
        let id = handle.config.as_ref().map(|config| config.id.clone()).unwrap_or_default();
        if !self.0.contains(&id) {
            let executor = Executor::attach(&State::recover(&handle)?.dir).await.map_err(Error::failed)?;
            self.0.insert(&id, executor)?;
        }
        Ok(())
    }

    async fn wait_task(&self, id: &str) -> Result<TaskExit, Error> {
        let executor = self.0.get(id)?;
        self.0.while_known(id, async { executor.wait().await.map(exit).map_err(Error::failed) }).await
    }

    async fn stop_task(&self, id: &str, stop: StopTask) -> Result<(), Error> {
        let number = signal(if stop.signal.is_empty() { "SIGINT" } else { &stop.signal })?;
        self.0.get(id)?.stop(number, stop.timeout).await.map(drop).map_err(Error::failed)
    }

    async fn destroy_task(&self, id: &str, force: bool) -> Result<(), Error> {
        let Ok(executor) = self.0.get(id) else { return Ok(()) };
        if !force && executor.ended().is_none() {
            return Err(Error::failed("cannot destroy running task; stop it first or use force"));
        }
        destroy(executor.state_dir()).await.map_err(Error::failed)?;
        self.0.remove(id);
        Ok(())
    }

    async fn signal_task(&self, id: &str, name: &str) -> Result<(), Error> {
        self.0.get(id)?.signal(signal(name)?).await.map_err(Error::failed)
    }
}

fn main() -> ExitCode {
    driver_sdk::block_on(driver_sdk::serve(Script::default()))
}

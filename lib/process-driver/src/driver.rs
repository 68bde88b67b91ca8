//! The driver trait over executors: the same for every kind of local process.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use driver_sdk::config::Config;
use driver_sdk::exec::ExecIo;
use driver_sdk::schema::Spec;
use driver_sdk::{
    AgentConfig, Capabilities, Context, DETACH_SIGNAL, DriverConfig, Error, ExecOutput, Fingerprint, Inspection,
    PluginInfo, Started, StopTask, TaskConfig, TaskEvent, TaskExit, TaskHandle, TaskStatus, TaskUsage, async_trait,
    handle,
};
use executor_client::{CgroupHost, Executor, ExitResult, Launcher, Meter, destroy, signal_number};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::exec;
use crate::kind::{Kind, ProcessConfig};
use crate::task::{cgroup_policy, state_dir};
use crate::usage::{core_mhz, usage};

/// Layout of [`State`].
const VERSION: u16 = 1;
/// What ends a task when its job does not say.
const DEFAULT_STOP_SIGNAL: &str = "SIGINT";
/// Where the executor is installed, when the host wants it elsewhere than beside the allocations.
const EXECUTOR_DIR_VARIABLE: &str = "DROVER_EXECUTOR_DIR";

/// How long an empty cgroup must have existed to belong to nobody.
const SWEEP_AGE: Duration = Duration::from_secs(600);

/// What a host keeps for a task.
#[derive(Debug, Serialize, Deserialize)]
struct State {
    state_dir: PathBuf,
}

/// A task that this process knows.
struct Task {
    id: String,
    name: String,
    alloc_id: String,
    state_dir: PathBuf,
    /// Absent when the executor could not be reached: such a task can only be destroyed.
    executor: Option<Executor>,
    meter: Meter,
    destroyed: watch::Sender<bool>,
}

/// A driver for processes of one kind.
pub struct ProcessDriver<K: Kind> {
    config: Mutex<K::Config>,
    core_mhz: Mutex<Option<f64>>,
    context: OnceLock<Context>,
    launchers: Mutex<HashMap<PathBuf, Launcher>>,
    tasks: Mutex<HashMap<String, Arc<Task>>>,
}

impl<K: Kind> Default for ProcessDriver<K> {
    fn default() -> ProcessDriver<K> {
        ProcessDriver {
            config: Mutex::default(),
            core_mhz: Mutex::default(),
            context: OnceLock::new(),
            launchers: Mutex::default(),
            tasks: Mutex::default(),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn time(ns: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_nanos(ns)
}

fn task_exit(result: &ExitResult) -> TaskExit {
    TaskExit {
        exit_code: result.exit_code,
        signal: result.signal,
        oom_killed: result.oom_killed,
        error: (!result.reason.is_empty()).then(|| result.reason.clone()),
    }
}

fn start_error(error: executor_client::Error) -> Error {
    match error {
        // Nothing about the task is wrong; the node may be short of something for a while.
        e @ (executor_client::Error::Io { .. }
        | executor_client::Error::Unresponsive { .. }
        | executor_client::Error::Vanished { .. }) => Error::recoverable(e),
        e => Error::failed(e),
    }
}

impl<K: Kind> ProcessDriver<K> {
    /// A driver that holds no tasks.
    pub fn new() -> ProcessDriver<K> {
        ProcessDriver::default()
    }

    fn task(&self, id: &str) -> Result<Arc<Task>, Error> {
        lock(&self.tasks).get(id).cloned().ok_or(Error::TaskNotFound)
    }

    fn executor(&self, id: &str) -> Result<(Arc<Task>, Executor), Error> {
        let task = self.task(id)?;
        let executor = task.executor.clone().ok_or_else(|| {
            Error::failed("the task's executor did not answer when the task was recovered; it can only be destroyed")
        })?;
        Ok((task, executor))
    }

    /// The executor is a file that must outlive this plugin's: it lies beside the allocations, or where the host says.
    fn launcher(&self, alloc_dir: &Path) -> Result<Launcher, Error> {
        let dir = match std::env::var_os(EXECUTOR_DIR_VARIABLE) {
            Some(dir) if !dir.is_empty() => PathBuf::from(dir),
            _ => alloc_dir.parent().unwrap_or(alloc_dir).join(".executors"),
        };
        let no_cgroups = lock(&self.config).no_cgroups();
        let mut launchers = lock(&self.launchers);
        if let Some(launcher) = launchers.get(&dir) {
            return Ok(launcher.clone());
        }
        let mut launcher = Launcher::new(&dir).map_err(Error::recoverable)?;
        if no_cgroups {
            launcher = launcher.with_cgroups(CgroupHost::off());
        }
        launchers.insert(dir, launcher.clone());
        Ok(launcher)
    }

    fn manage(&self, config: &TaskConfig, state_dir: PathBuf, executor: Option<Executor>) {
        let task = Arc::new(Task {
            id: config.id.clone(),
            name: config.name.clone(),
            alloc_id: config.alloc_id.clone(),
            state_dir,
            executor,
            meter: Meter::default(),
            destroyed: watch::Sender::new(false),
        });
        lock(&self.tasks).insert(config.id.clone(), task);
    }

    fn tell(&self, task: &Task, message: String) {
        if let Some(context) = self.context.get() {
            context.emit(TaskEvent {
                task_id: task.id.clone(),
                alloc_id: task.alloc_id.clone(),
                task_name: task.name.clone(),
                message,
                ..TaskEvent::default()
            });
        }
    }
}

#[async_trait]
impl<K: Kind> driver_sdk::Driver for ProcessDriver<K> {
    fn info(&self) -> PluginInfo {
        PluginInfo::new(K::NAME, env!("CARGO_PKG_VERSION"))
    }

    fn attach(&self, context: Context) {
        let _ = self.context.set(context);
    }

    fn config_schema(&self) -> Option<Spec> {
        Some(K::Config::schema())
    }

    async fn set_config(&self, config: Config, agent: Option<AgentConfig>) -> Result<(), Error> {
        let config = K::Config::decode(&config)?;
        config.validate()?;
        *lock(&self.config) = config;
        *lock(&self.core_mhz) = agent.map(|agent| core_mhz(agent.topology.as_ref()));
        lock(&self.launchers).clear();
        Ok(())
    }

    fn task_config_schema(&self) -> Spec {
        K::task_schema()
    }

    fn capabilities(&self) -> Capabilities {
        K::capabilities()
    }

    async fn fingerprint(&self) -> Fingerprint {
        let config = lock(&self.config).clone();
        if !config.enabled() {
            return Fingerprint::undetected(format!(
                "disabled; plugin \"{}\" {{ config {{ enabled = true }} }} offers it",
                K::NAME
            ));
        }
        let host = if config.no_cgroups() { CgroupHost::off() } else { CgroupHost::detect() };
        let swept = host.sweep(SWEEP_AGE);
        if swept > 0 {
            tracing::info!(cgroups = swept, "removed empty cgroups that no executor claims");
        }
        let name = K::NAME;
        let limits = ["memory", "cpu", "pids", "cpuset"];
        let seen = K::fingerprint(&config, &host).await.with(format!("driver.{name}.cgroups"), host.mode().name());
        limits.iter().fold(seen, |seen, limit| seen.with(format!("driver.{name}.limits.{limit}"), host.enforces(limit)))
    }

    async fn start_task(&self, config: TaskConfig) -> Result<Started, Error> {
        if lock(&self.tasks).contains_key(&config.id) {
            return Err(Error::failed(format!("task {} is already running here", config.id)));
        }
        let plugin = lock(&self.config).clone();
        if !plugin.enabled() {
            return Err(Error::failed(format!("{} is disabled by the plugin's configuration on this node", K::NAME)));
        }
        let launcher = self.launcher(Path::new(&config.alloc_dir))?;
        let spec = K::launch_spec(&config, &plugin, launcher.cgroups()).await?;
        let state_dir = state_dir(&config);
        let driver_state = handle::encode(&State { state_dir: state_dir.clone() })?;
        let launched = launcher.launch(&state_dir, spec).await.map_err(start_error)?;
        self.manage(&config, state_dir, Some(launched.executor));
        Ok(Started { driver_state, version: VERSION, network: None })
    }

    async fn recover_task(&self, task: TaskHandle) -> Result<(), Error> {
        let config = task.config.unwrap_or_default();
        if lock(&self.tasks).get(&config.id).is_some_and(|t| t.executor.is_some()) {
            return Ok(());
        }
        if task.version != i32::from(VERSION) {
            return Err(handle::unknown_version(task.version, i32::from(VERSION)..=i32::from(VERSION)));
        }
        let State { state_dir } = handle::decode(&task.driver_state)?;
        // Should the record there be damaged, this says what belongs to the task, so that it can be ended.
        let launcher = self.launcher(Path::new(&config.alloc_dir))?;
        match launcher.recover(&state_dir, &config.id, &cgroup_policy(&config)).await {
            Ok(executor) => {
                self.manage(&config, state_dir, Some(executor));
                Ok(())
            }
            Err(executor_client::Error::Absent { .. }) => Err(Error::TaskNotFound),
            Err(e) => {
                // The host will ask to destroy it, and then it must be known.
                self.manage(&config, state_dir, None);
                Err(Error::failed(e))
            }
        }
    }

    async fn wait_task(&self, id: &str) -> Result<TaskExit, Error> {
        let (task, executor) = self.executor(id)?;
        let mut destroyed = task.destroyed.subscribe();
        tokio::select! {
            biased;
            result = executor.wait() => {
                let result = result.map_err(Error::failed)?;
                if result.lost {
                    self.tell(&task, result.reason.clone());
                }
                if result.log_bytes_lost > 0 {
                    self.tell(&task, format!("{} bytes of output were lost because the disk did not \
                        take them", result.log_bytes_lost));
                }
                Ok(task_exit(&result))
            }
            _ = destroyed.wait_for(|destroyed| *destroyed) => Err(Error::TaskNotFound),
        }
    }

    async fn stop_task(&self, id: &str, stop: StopTask) -> Result<(), Error> {
        let (_, executor) = self.executor(id)?;
        if stop.signal == DETACH_SIGNAL {
            return Err(Error::unsupported("detaching: its tasks live on this node"));
        }
        let name = if stop.signal.is_empty() { DEFAULT_STOP_SIGNAL } else { &stop.signal };
        // A stop must stop: with a name that nobody knows the task still ends.
        let signal = signal_number(name).or_else(|| {
            tracing::warn!(signal = name, "unknown kill signal, using {DEFAULT_STOP_SIGNAL}");
            signal_number(DEFAULT_STOP_SIGNAL)
        });
        executor.stop(signal.unwrap_or(0), stop.timeout).await.map_err(Error::failed)?;
        Ok(())
    }

    async fn destroy_task(&self, id: &str, force: bool) -> Result<(), Error> {
        let Ok(task) = self.task(id) else {
            return Ok(());
        };
        let running = task.executor.as_ref().is_none_or(|e| e.ended().is_none());
        if running && !force {
            return Err(Error::failed("cannot destroy running task; stop it first or use force"));
        }
        match &task.executor {
            Some(executor) => executor.destroy().await.map_err(Error::failed)?,
            None => destroy(&task.state_dir).await.map_err(Error::failed)?,
        }
        // Goes with the last start of the task.
        if let Some(parent) = task.state_dir.parent() {
            let _ = std::fs::remove_dir(parent);
        }
        lock(&self.tasks).remove(id);
        task.destroyed.send_replace(true);
        Ok(())
    }

    async fn inspect_task(&self, id: &str) -> Result<Inspection, Error> {
        let (task, executor) = self.executor(id)?;
        let ended = executor.ended();
        Ok(Inspection {
            id: task.id.clone(),
            name: task.name.clone(),
            status: if ended.is_some() { TaskStatus::Exited } else { TaskStatus::Running },
            started_at: Some(time(executor.started_at_ns())),
            completed_at: ended.as_ref().map(|r| time(r.finished_at_ns)),
            exit: ended.as_ref().map(task_exit),
            attributes: [
                ("pid".to_owned(), executor.pid().to_string()),
                ("executor_pid".to_owned(), executor.executor_pid().to_string()),
            ]
            .into(),
            network: None,
        })
    }

    async fn task_stats(&self, id: &str) -> Result<Option<TaskUsage>, Error> {
        let (task, executor) = self.executor(id)?;
        let stats = match executor.stats().await {
            Ok(stats) => stats,
            Err(executor_client::Error::NotRunning { .. }) => return Err(Error::TaskNotFound),
            Err(e) => return Err(Error::failed(e)),
        };
        let mhz = *lock(&self.core_mhz).get_or_insert_with(|| core_mhz(None));
        Ok(Some(usage(&stats, &task.meter, mhz)))
    }

    async fn signal_task(&self, id: &str, signal: &str) -> Result<(), Error> {
        let (_, executor) = self.executor(id)?;
        let number = signal_number(signal).ok_or_else(|| {
            Error::invalid(format!("{signal:?} is not the name of a signal; use one such as SIGHUP or SIGUSR1"))
        })?;
        executor.signal(number).await.map_err(Error::failed)
    }

    async fn exec_task(&self, id: &str, command: Vec<String>, timeout: Duration) -> Result<ExecOutput, Error> {
        let (_, executor) = self.executor(id)?;
        exec::collect(&executor, command, timeout).await
    }

    async fn exec_streaming(&self, id: &str, command: Vec<String>, tty: bool, io: ExecIo) -> Result<TaskExit, Error> {
        let (_, executor) = self.executor(id)?;
        exec::stream(&executor, command, tty, io).await
    }
}

//! The driver over its tasks.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use driver_sdk::config::Config;
use driver_sdk::exec::{ClientGone, ExecInput, ExecIo, ExecOutputSink};
use driver_sdk::schema::Spec;
use driver_sdk::{
    AgentConfig, Capabilities, Context, CpuUsage, Driver, DriverConfig, DriverState, Error, ExecOutput, Fingerprint,
    FsIsolation, Inspection, MemoryUsage, NetworkOverride, PluginInfo, Started, StopTask, TaskConfig, TaskEvent,
    TaskExit, TaskHandle, TaskStatus, TaskUsage, Usage, async_trait,
};
use tokio::io::AsyncWriteExt;

use crate::options::{ExecOptions, PluginOptions, TaskOptions};
use crate::starts;
use crate::task::{Life, StateV1, Task};

const SIGKILL: i32 = 9;
/// Size of the pieces of a flood.
const FLOOD_PIECE: usize = 64 << 10;
/// Bound of what one answer holds.
const EXEC_REPEAT_MAX: usize = 10_000;
/// Exit code of a plugin that was asked to crash.
const CRASH_CODE: i32 = 7;

/// The driver.
#[derive(Debug)]
pub struct Mock {
    tasks: Mutex<HashMap<String, Arc<Task>>>,
    options: Mutex<PluginOptions>,
    context: OnceLock<Context>,
    began: Instant,
    starts: starts::Starts,
}

impl Default for Mock {
    fn default() -> Self {
        Self {
            tasks: Mutex::default(),
            options: Mutex::default(),
            context: OnceLock::new(),
            began: Instant::now(),
            starts: starts::Starts::default(),
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Does to a call what the job asks for.
async fn misbehave(options: &TaskOptions, call: &str) {
    if options.panic.iter().any(|name| name == call) {
        panic!("the job asked for a panic in {call}");
    }
    if options.crash.iter().any(|name| name == call) {
        tracing::warn!(call, "the job asked for the end of the plugin");
        std::process::exit(CRASH_CODE);
    }
    if options.hang.iter().any(|name| name == call) {
        std::future::pending::<()>().await;
    }
}

impl Mock {
    fn task(&self, id: &str) -> Result<Arc<Task>, Error> {
        locked(&self.tasks).get(id).cloned().ok_or(Error::TaskNotFound)
    }

    fn options(&self) -> PluginOptions {
        locked(&self.options).clone()
    }

    fn manage(&self, config: &TaskConfig, task: Task) -> Arc<Task> {
        let task = Arc::new(task);
        locked(&self.tasks).insert(config.id.clone(), task.clone());
        let runner = task.clone();
        tokio::spawn(async move { runner.run().await });
        task
    }

    fn report(&self, config: &TaskConfig, count: u64) {
        let Some(context) = self.context.get() else {
            return;
        };
        for n in 1..=count {
            context.emit(TaskEvent::new(config, format!("event {n} of {count}")).with("n", n));
        }
    }
}

/// Writes a text to a log of the task; the path may be a fifo, whose reader is waited for.
async fn write_log(path: String, text: String, repeat: u64, pause: Duration) {
    let mut options = tokio::fs::OpenOptions::new();
    let mut file = match options.append(true).open(&path).await {
        Ok(file) => file,
        Err(error) => return tracing::warn!(path, %error, "cannot open the task's log"),
    };
    // Without a pause in large pieces: a flood is to be as fast as the disk or the reader.
    let piece = if pause.is_zero() { (FLOOD_PIECE / text.len().max(1)).max(1) as u64 } else { 1 };
    let mut left = repeat.saturating_add(1);
    while left > 0 && !text.is_empty() {
        let times = left.min(piece);
        let written = async {
            file.write_all(text.repeat(times as usize).as_bytes()).await?;
            file.flush().await
        };
        if let Err(error) = written.await {
            return tracing::debug!(path, %error, "nobody reads the task's log any more");
        }
        left -= times;
        if left > 0 {
            tokio::time::sleep(pause).await;
        }
    }
}

/// How a command beside the task ends.
fn exec_exit(plan: &ExecOptions) -> Result<TaskExit, Error> {
    match (plan.exit_err_msg.as_str(), plan.exit_signal) {
        ("", 0) => Ok(TaskExit::code(plan.exit_code)),
        ("", signal) => Ok(TaskExit::signal(signal)),
        (text, _) => Err(Error::failed(text)),
    }
}

/// What an interactive command shows, in its time.
async fn play(plan: &ExecOptions, output: &ExecOutputSink) -> Result<(), ClientGone> {
    let runs = tokio::time::sleep(plan.run_for);
    let out = async {
        for n in 0..=plan.stdout_repeat {
            if n > 0 {
                tokio::time::sleep(plan.stdout_repeat_duration).await;
            }
            output.stdout(plan.stdout_string.clone().into_bytes()).await?;
        }
        Ok(())
    };
    let err = async {
        for n in 0..=plan.stderr_repeat {
            if n > 0 {
                tokio::time::sleep(plan.stderr_repeat_duration).await;
            }
            output.stderr(plan.stderr_string.clone().into_bytes()).await?;
        }
        Ok(())
    };
    tokio::try_join!(out, err)?;
    runs.await;
    Ok(())
}

fn spawn_logs(config: &TaskConfig, options: &TaskOptions, task: &Arc<Task>) {
    let logs = [
        (&config.stdout_path, &options.stdout_string, options.stdout_repeat, options.stdout_repeat_duration),
        (&config.stderr_path, &options.stderr_string, options.stderr_repeat, options.stderr_repeat_duration),
    ];
    for (path, text, repeat, pause) in logs {
        if path.is_empty() || path == "/dev/null" {
            continue;
        }
        // Both are opened even when there is nothing to say: their reader waits for that.
        let write = write_log(path.clone(), text.clone(), repeat, pause);
        let task = task.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = write => {}
                // A moment for the text of a task that ends at once.
                () = async { task.ended().await; tokio::time::sleep(Duration::from_secs(1)).await } => {}
            }
        });
    }
}

#[async_trait]
impl Driver for Mock {
    fn info(&self) -> PluginInfo {
        PluginInfo::new("mock", env!("CARGO_PKG_VERSION"))
    }

    fn attach(&self, context: Context) {
        let _ = self.context.set(context);
    }

    fn config_schema(&self) -> Option<Spec> {
        Some(PluginOptions::schema())
    }

    async fn set_config(&self, config: Config, _agent: Option<AgentConfig>) -> Result<(), Error> {
        let options = PluginOptions::decode(&config)?;
        if !matches!(options.fs_isolation.as_str(), "" | "none" | "chroot" | "image" | "unveil") {
            let given = &options.fs_isolation;
            return Err(Error::invalid(format!("fs_isolation {given:?} is not none, chroot, image or unveil")));
        }
        *locked(&self.options) = options;
        Ok(())
    }

    fn task_config_schema(&self) -> Spec {
        TaskOptions::schema()
    }

    fn capabilities(&self) -> Capabilities {
        let fs_isolation = match self.options().fs_isolation.as_str() {
            "chroot" => FsIsolation::Chroot,
            "image" => FsIsolation::Image,
            "unveil" => FsIsolation::Unveil,
            _ => FsIsolation::None,
        };
        Capabilities { send_signals: true, exec: true, fs_isolation, ..Capabilities::default() }
    }

    async fn fingerprint(&self) -> Fingerprint {
        let PluginOptions { shutdown_periodic_after: after, shutdown_periodic_duration: down, .. } = self.options();
        let period = after + down;
        if !after.is_zero() && !period.is_zero() {
            let phase = self.began.elapsed().as_nanos() % period.as_nanos();
            if phase >= after.as_nanos() {
                return Fingerprint::unhealthy("a planned outage of the mock driver");
            }
        }
        Fingerprint::healthy().with("driver.mock.version", env!("CARGO_PKG_VERSION"))
    }

    fn fingerprint_interval(&self) -> Duration {
        match self.options().shutdown_periodic_after {
            Duration::ZERO => Duration::from_secs(30),
            after => (after / 4).clamp(Duration::from_millis(50), Duration::from_secs(30)),
        }
    }

    async fn start_task(&self, config: TaskConfig) -> Result<Started, Error> {
        let options = TaskOptions::decode(&config.msgpack_driver_config)?;
        options.validate()?;
        let fails = options.start_failures == 0 || self.starts.count(&config) <= options.start_failures;
        if fails {
            misbehave(&options, "start").await;
        }
        if locked(&self.tasks).contains_key(&config.id) {
            return Err(Error::failed(format!("task {:?} exists already", config.id)));
        }
        tokio::time::sleep(options.start_block_for).await;
        if fails && !options.start_error.is_empty() {
            let text = options.start_error;
            return Err(if options.start_error_recoverable { Error::Recoverable(text) } else { Error::Failed(text) });
        }
        for n in 1..=options.log_lines {
            tracing::info!(n, task = config.id, "a log line that the job asked for");
        }
        let state = StateV1 { config: config.msgpack_driver_config.clone(), started_at: SystemTime::now() };
        let started = state.started()?;
        let task = self.manage(&config, Task::new(&config, &state)?);
        spawn_logs(&config, &options, &task);
        self.report(&config, options.events);
        if !options.plugin_exit_after.is_zero() {
            tokio::spawn(async move {
                tokio::time::sleep(options.plugin_exit_after).await;
                tracing::warn!("the job asked for the end of the plugin");
                std::process::exit(CRASH_CODE);
            });
        }
        let port_map = options.ports()?;
        let network = (!options.driver_ip.is_empty()).then(|| NetworkOverride {
            port_map,
            address: options.driver_ip.clone(),
            auto_advertise: options.driver_advertise,
        });
        Ok(Started { network, ..started })
    }

    async fn recover_task(&self, task: TaskHandle) -> Result<(), Error> {
        let config = task.config.clone().unwrap_or_default();
        if locked(&self.tasks).contains_key(&config.id) {
            return Ok(());
        }
        let state = StateV1::recover(&task)?;
        let known = Task::new(&config, &state)?;
        known.options.validate()?;
        misbehave(&known.options, "recover").await;
        self.manage(&config, known);
        Ok(())
    }

    async fn wait_task(&self, id: &str) -> Result<TaskExit, Error> {
        let task = self.task(id)?;
        misbehave(&task.options, "wait").await;
        match task.ended().await {
            Life::Ended { exit, .. } => Ok(exit),
            Life::Running | Life::Destroyed => Err(Error::TaskNotFound),
        }
    }

    async fn stop_task(&self, id: &str, stop: StopTask) -> Result<(), Error> {
        let task = self.task(id)?;
        misbehave(&task.options, "stop").await;
        let kill_after = task.options.kill_after;
        let exit = if kill_after > stop.timeout { TaskExit::signal(SIGKILL) } else { task.natural_exit() };
        tokio::select! {
            () = tokio::time::sleep(kill_after.min(stop.timeout)) => task.end(exit, SystemTime::now()),
            _ = task.ended() => {}
        }
        Ok(())
    }

    async fn destroy_task(&self, id: &str, force: bool) -> Result<(), Error> {
        let Ok(task) = self.task(id) else {
            return Ok(());
        };
        misbehave(&task.options, "destroy").await;
        if !force && *task.life.borrow() == Life::Running {
            return Err(Error::failed("cannot destroy running task; stop it first or use force"));
        }
        locked(&self.tasks).remove(id);
        task.life.send_replace(Life::Destroyed);
        Ok(())
    }

    async fn inspect_task(&self, id: &str) -> Result<Inspection, Error> {
        let task = self.task(id)?;
        misbehave(&task.options, "inspect").await;
        let life = task.life.borrow().clone();
        let (status, exit, completed_at) = match life {
            Life::Running => (TaskStatus::Running, None, None),
            Life::Ended { exit, at } => (TaskStatus::Exited, Some(exit), Some(at)),
            Life::Destroyed => return Err(Error::TaskNotFound),
        };
        Ok(Inspection {
            id: task.id.clone(),
            name: task.name.clone(),
            status,
            started_at: Some(task.started_at),
            completed_at,
            exit,
            ..Inspection::default()
        })
    }

    async fn task_stats(&self, id: &str) -> Result<Option<TaskUsage>, Error> {
        let task = self.task(id)?;
        misbehave(&task.options, "stats").await;
        let cpu = CpuUsage { percent: Some(task.options.cpu_percent), ..CpuUsage::default() };
        let bytes = task.options.memory_mb.saturating_mul(1 << 20);
        let memory = MemoryUsage { rss: Some(bytes), usage: Some(bytes), ..MemoryUsage::default() };
        Ok(Some(TaskUsage { total: Usage { cpu, memory }, ..TaskUsage::default() }))
    }

    async fn signal_task(&self, id: &str, _signal: &str) -> Result<(), Error> {
        let task = self.task(id)?;
        misbehave(&task.options, "signal").await;
        match task.options.signal_error.as_str() {
            "" => Ok(()),
            text => Err(Error::failed(text)),
        }
    }

    async fn exec_task(&self, id: &str, command: Vec<String>, timeout: Duration) -> Result<ExecOutput, Error> {
        let task = self.task(id)?;
        misbehave(&task.options, "exec").await;
        let plan = task
            .options
            .exec_command
            .clone()
            .unwrap_or_else(|| ExecOptions { stdout_string: command.join(" "), ..ExecOptions::default() });
        if plan.run_for > timeout {
            tokio::time::sleep(timeout).await;
            return Err(Error::failed(format!("the command did not end within {timeout:?}")));
        }
        tokio::time::sleep(plan.run_for).await;
        let times = |repeat| usize::try_from(repeat).unwrap_or(usize::MAX).saturating_add(1).min(EXEC_REPEAT_MAX);
        Ok(ExecOutput {
            stdout: plan.stdout_string.repeat(times(plan.stdout_repeat)).into_bytes(),
            stderr: plan.stderr_string.repeat(times(plan.stderr_repeat)).into_bytes(),
            exit: exec_exit(&plan)?,
        })
    }

    async fn exec_streaming(
        &self,
        id: &str,
        _command: Vec<String>,
        _tty: bool,
        mut io: ExecIo,
    ) -> Result<TaskExit, Error> {
        let task = self.task(id)?;
        misbehave(&task.options, "exec").await;
        let gone = |_| Error::failed("the client has gone");
        if let Some(plan) = &task.options.exec_command {
            play(plan, &io.output).await.map_err(gone)?;
            return exec_exit(plan);
        }
        while let Some(input) = io.input.recv().await {
            match input {
                ExecInput::Stdin(data) => io.output.stdout(data).await.map_err(gone)?,
                ExecInput::Resize { width, height } => {
                    io.output.stdout(format!("[{width}x{height}]").into_bytes()).await.map_err(gone)?;
                }
                ExecInput::StdinClosed => break,
            }
        }
        io.output.stdout_closed().await.map_err(gone)?;
        Ok(TaskExit::code(0))
    }
}

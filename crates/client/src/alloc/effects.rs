//! What the machine asks for, carried out: thin, each a future that ends in one event. All of them may be repeated after a crash.

use std::{path::Path, sync::Arc, time::Duration};

use base64::{Engine, prelude::BASE64_STANDARD};
use driver_host::{CallError, Driver, TaskHandle, handle_from_bytes, handle_to_bytes};
use executor_client::{CollectSpec, LogCollector, LogPolicy};
use model::{Allocation, GoDuration, Job, Task};
use tokio_util::sync::CancellationToken;

use super::{
    machine::{Exit, StartFailure},
    task_config,
};
use crate::{
    cgroup::{self, TaskCgroup},
    context::NodeContext,
    dirs::{AllocDirs, find_user},
    store::Write,
};

/// How long a start waits for a driver whose plugin is coming up.
const DRIVER_PATIENCE: Duration = Duration::from_secs(20);
/// Pauses between attempts to stop a task.
const STOP_PAUSES: [u64; 5] = [5, 20, 80, 120, 120];

/// An allocation and its task, for effects.
#[derive(Clone)]
pub(crate) struct Subject {
    pub(crate) ctx: Arc<NodeContext>,
    pub(crate) alloc: Arc<Allocation>,
    pub(crate) job: Arc<Job>,
    pub(crate) task: Arc<str>,
}

impl Subject {
    fn task(&self) -> Option<&Task> {
        self.job.group(&self.alloc.task_group)?.task(&self.task)
    }

    fn driver_name(&self) -> String {
        self.task().map(|t| t.driver.clone()).unwrap_or_default()
    }

    fn cgroup(&self) -> Option<TaskCgroup> {
        if self.ctx.drivers.is_builtin(&self.driver_name()) || cgroup::mode() == cgroup::Mode::Off {
            return None;
        }
        let cores = self.alloc.resources.tasks.get(&self.task).map(|t| t.cpu.reserved_cores.clone()).unwrap_or_default();
        Some(TaskCgroup::new(self.alloc.id, &self.task, &cores))
    }

    fn dirs(&self) -> AllocDirs {
        AllocDirs::new(&self.ctx.config.alloc_dir, self.alloc.id)
    }

    /// Waits as long as it takes: a record of a run is only dropped when its driver has answered.
    async fn driver_for_ever(&self) -> Driver {
        loop {
            if let Ok(driver) = self.ctx.drivers.get(&self.driver_name(), Duration::from_secs(60)).await {
                driver.wait_ready(0).await;
                return driver;
            }
            // Not allowed here (any more): ask again rarely, the configuration may come back with the next start.
            tokio::time::sleep(Duration::from_secs(60)).await;
        }
    }
}

fn blocking_failed(e: &tokio::task::JoinError) -> StartFailure {
    StartFailure::Setup { why: format!("the preparation broke off: {e}"), recoverable: true }
}

/// Prepares and starts a run; answers with the handle.
pub(crate) async fn start(subject: &Subject, run: &str) -> Result<Vec<u8>, StartFailure> {
    let ctx = &subject.ctx;
    let setup = |why: String| StartFailure::Setup { why, recoverable: false };
    let (Some(group), Some(task)) = (subject.job.group(&subject.alloc.task_group), subject.task()) else {
        return Err(setup("the job has no such task".into()));
    };
    if let Some(why) = task_config::refused(task) {
        return Err(setup(why));
    }
    let driver_failed = |why: String, recoverable| StartFailure::Driver { why, recoverable };
    let driver = ctx.drivers.get(&task.driver, DRIVER_PATIENCE).await.map_err(|why| driver_failed(why, true))?;
    if tokio::time::timeout(DRIVER_PATIENCE, driver.wait_ready(0)).await.is_err() {
        return Err(driver_failed(format!("driver {:?} has not become ready within {DRIVER_PATIENCE:?}", task.driver), true));
    }
    let begin = std::time::Instant::now();
    let capabilities = driver.capabilities().unwrap_or_default();
    let cgroup = subject.cgroup();
    prepare(subject, task, cgroup.clone()).await?;
    let prepared = begin.elapsed();
    let node = ctx.node();
    let (config, _vars) = task_config::build(&task_config::Input {
        config: &ctx.config,
        node: &node,
        cpu: &ctx.cpu,
        inherited: &ctx.inherited,
        alloc: &subject.alloc,
        job: &subject.job,
        group,
        task,
        run,
        driver: &driver,
        capabilities: &capabilities,
        cgroup: cgroup.as_ref(),
    })?;
    if !capabilities.disable_log_collection && !task_config::logs_disabled(task) {
        collect(subject, task).await.map_err(|why| StartFailure::Setup { why, recoverable: true })?;
    }
    let built = begin.elapsed();
    // One more attempt after each death of the plugin, on a clean table.
    let mut attempts = 0;
    loop {
        attempts += 1;
        let generation = driver.generation();
        match driver.start_task(config.clone()).await {
            Ok(started) => {
                tracing::debug!(run, ?prepared, ?built, started = ?begin.elapsed(), "task started");
                return Ok(handle_to_bytes(&started.handle));
            }
            Err(e) if (e.is_plugin_gone() || matches!(e, CallError::Timeout { .. })) && attempts < 3 => {
                tracing::warn!(run, error = %e, "start was cut off, cleaning up before the next attempt");
                if e.is_plugin_gone() {
                    driver.wait_ready(generation).await;
                }
                let _ = driver.destroy_task(run, true).await;
                kill_members(subject).await;
            }
            Err(e) => return Err(driver_failed(e.to_string(), e.recoverable())),
        }
    }
}

/// Directories, payload and cgroups. Records first what is made outside the allocation's directory.
async fn prepare(subject: &Subject, task: &Task, cgroup: Option<TaskCgroup>) -> Result<(), StartFailure> {
    if cgroup.is_some() {
        let key = format!("{}.{}", subject.alloc.id, subject.task);
        let claim = subject.ctx.store.commit(vec![Write::Claim { kind: "cgroup", key }]).await;
        claim.map_err(|e| StartFailure::Setup { why: e.to_string(), recoverable: true })?;
    }
    let dirs = subject.dirs();
    let task_dirs = dirs.task(&subject.task);
    let user = task.user.clone();
    let payload = task.dispatch_payload.clone().map(|p| (p.file, subject.job.payload.clone().unwrap_or_default()));
    let work = move || -> Result<(), String> {
        let owner = if user.is_empty() || !rustix::process::geteuid().is_root() { None } else { find_user(&user) };
        dirs.create().map_err(|e| e.to_string())?;
        task_dirs.create(owner).map_err(|e| e.to_string())?;
        if let Some((file, payload)) = payload {
            write_payload(&task_dirs.local, &file, &payload)?;
        }
        if let Some(cgroup) = cgroup {
            cgroup.create().map_err(|e| format!("create the task's cgroups: {e}"))?;
        }
        Ok(())
    };
    tokio::task::spawn_blocking(work).await.map_err(|e| blocking_failed(&e))?.map_err(|why| StartFailure::Setup { why, recoverable: true })
}

fn write_payload(local: &std::path::Path, file: &str, payload: &str) -> Result<(), String> {
    let relative = std::path::Path::new(file);
    if file.is_empty() || !relative.components().all(|c| matches!(c, std::path::Component::Normal(_))) {
        return Err(format!("dispatch_payload.file {file:?} must be a path below local/"));
    }
    let bytes = BASE64_STANDARD.decode(payload).map_err(|e| format!("the dispatch payload is not base64: {e}"))?;
    let path = local.join(relative);
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).map_err(|e| format!("create {}: {e}", parent.display()))?;
    }
    std::fs::write(&path, bytes).map_err(|e| format!("write {}: {e}", path.display()))
}

fn dir_name(dir: &Path) -> String {
    dir.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Starts the process that stores what the task writes, or finds it.
async fn collect(subject: &Subject, task: &Task) -> Result<(), String> {
    let ctx = &subject.ctx;
    let state_dir = ctx.collector_dir(subject.alloc.id, &subject.task);
    let key = dir_name(&state_dir);
    ctx.store.commit(vec![Write::Claim { kind: "collector", key }]).await.map_err(|e| e.to_string())?;
    let dirs = subject.dirs();
    let (stdout_fifo, stderr_fifo) = task_config::fifos(&dirs, &subject.task);
    let (max_files, max_file_bytes) = task_config::rotation(task.logs.as_ref());
    let spec = CollectSpec {
        id: format!("{}/{}", subject.alloc.id, subject.task),
        stdout_fifo,
        stderr_fifo,
        log: LogPolicy {
            dir: dirs.logs(),
            stdout_name: format!("{}.stdout", subject.task),
            stderr_name: format!("{}.stderr", subject.task),
            max_files,
            max_file_bytes,
        },
    };
    let parent = ctx.config.run_dir().join("c");
    std::fs::create_dir_all(&parent).map_err(|e| format!("create {}: {e}", parent.display()))?;
    LogCollector::start(ctx.launcher().await?, &state_dir, spec).await.map(drop).map_err(|e| format!("start the log collector: {e}"))
}

/// Makes the driver know a run of a former agent again.
pub(crate) async fn recover(subject: &Subject, handle: &[u8]) -> Result<(), String> {
    let handle = decode(handle)?;
    if let Some(task) = subject.task() {
        let driver = subject.driver_for_ever().await;
        if !driver.capabilities().unwrap_or_default().disable_log_collection && !task_config::logs_disabled(task) {
            // The collector outlives the agent; one that was killed begins again.
            if let Err(error) = collect(subject, task).await {
                tracing::warn!(alloc = %subject.alloc.id, task = %subject.task, error, "logs are not collected");
            }
        }
    }
    loop {
        let driver = subject.driver_for_ever().await;
        let generation = driver.generation();
        match driver.recover_task(handle.clone()).await {
            Ok(()) => return Ok(()),
            Err(e) if e.is_plugin_gone() => {
                driver.wait_ready(generation).await;
            }
            Err(e) => return Err(e.to_string()),
        }
    }
}

fn decode(handle: &[u8]) -> Result<TaskHandle, String> {
    handle_from_bytes(handle).ok_or_else(|| "the stored handle is damaged".to_owned())
}

/// Waits for the end of a run over any number of plugin processes.
pub(crate) async fn wait(subject: &Subject, run: &str, handle: &[u8]) -> Exit {
    let lost = |message: String| Exit { code: -1, message, ..Exit::default() };
    let handle = match decode(handle) {
        Ok(handle) => handle,
        Err(why) => return lost(why),
    };
    let mut tried_again = false;
    loop {
        let driver = subject.driver_for_ever().await;
        let generation = driver.generation();
        match driver.wait_task(run).await {
            Ok(exit) => {
                return Exit {
                    code: exit.exit_code,
                    signal: exit.signal,
                    oom_killed: exit.oom_killed,
                    message: exit.error.unwrap_or_default(),
                };
            }
            Err(e) if e.is_plugin_gone() => {
                driver.wait_ready(generation).await;
            }
            // A new process of the plugin may have come up between two calls.
            Err(e) if e.is_task_not_found() && !tried_again => tried_again = true,
            Err(e) => return lost(e.to_string()),
        }
        // Whatever interrupted the wait: the task is only over when a driver that has recovered it says so.
        let driver = subject.driver_for_ever().await;
        let generation = driver.generation();
        match driver.recover_task(handle.clone()).await {
            Ok(()) => {}
            Err(e) if e.is_plugin_gone() => {
                driver.wait_ready(generation).await;
            }
            Err(e) => return lost(format!("the task was lost with its driver's process: {e}")),
        }
    }
}

/// Stops a run; the end itself is seen by [`wait`]. `over` ends the attempts.
pub(crate) async fn stop(subject: &Subject, run: &str, signal: &str, timeout: GoDuration, over: CancellationToken) -> Option<String> {
    let attempts = async {
        let mut last = String::new();
        for pause in [0].into_iter().chain(STOP_PAUSES) {
            tokio::time::sleep(Duration::from_secs(pause)).await;
            let driver = subject.driver_for_ever().await;
            let generation = driver.generation();
            match driver.stop_task(run, signal, timeout.to_std()).await {
                Ok(()) => return None,
                Err(e) if e.is_task_not_found() => return None,
                Err(e) if e.is_plugin_gone() => {
                    // Not the task's fault: at once again, when the new process has had time to recover it.
                    driver.wait_ready(generation).await;
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    match driver.stop_task(run, signal, timeout.to_std()).await {
                        Ok(()) => return None,
                        Err(e) => last = e.to_string(),
                    }
                }
                Err(e) => last = e.to_string(),
            }
            tracing::warn!(run, error = last, "the driver could not stop the task, will try again");
        }
        let driver = subject.driver_for_ever().await;
        let _ = driver.destroy_task(run, true).await;
        kill_members(subject).await;
        Some(last)
    };
    tokio::select! {
        failed = attempts => failed,
        () = over.cancelled() => None,
    }
}

/// Frees an ended run at its driver and ends whatever it has left.
pub(crate) async fn free(subject: &Subject, run: &str, handle: Option<&[u8]>, mut known: bool) {
    for attempt in 0..4_u32 {
        let driver = subject.driver_for_ever().await;
        let generation = driver.generation();
        if !known && let Some(handle) = handle.and_then(|h| decode(h).ok()) {
            // Without this a fresh driver process has nothing to destroy. A failure means that there is nothing to find.
            if let Err(e) = driver.recover_task(handle).await
                && e.is_plugin_gone()
            {
                driver.wait_ready(generation).await;
                continue;
            }
        }
        match driver.destroy_task(run, true).await {
            Ok(()) => break,
            Err(e) if e.is_plugin_gone() => {
                known = false;
                driver.wait_ready(generation).await;
            }
            Err(e) => {
                tracing::warn!(run, error = %e, attempt, "the driver could not free the task");
                tokio::time::sleep(Duration::from_millis(200 << attempt)).await;
            }
        }
    }
    kill_members(subject).await;
    // A start that was never confirmed may have got as far as a workload that no driver process knows.
    if handle.is_none() {
        let task_dir = subject.dirs().task(&subject.task).root;
        crate::leftovers::end_own_executors(&task_dir, None).await;
        crate::leftovers::end_executors_below(&task_dir).await;
    }
}

/// Ends what a driver has left in the cgroups that were made for the task.
async fn kill_members(subject: &Subject) {
    let Some(cgroup) = subject.cgroup() else {
        return;
    };
    match tokio::task::spawn_blocking(move || cgroup.kill_members()).await {
        Ok(Ok(0)) | Err(_) => {}
        Ok(Ok(count)) => {
            tracing::warn!(alloc = %subject.alloc.id, task = %subject.task, count, "processes left behind by the driver were killed")
        }
        Ok(Err(error)) => {
            tracing::error!(alloc = %subject.alloc.id, task = %subject.task, %error, "processes left behind by the driver resist")
        }
    }
}

/// The task is dead: collector and cgroups go.
pub(crate) async fn task_over(subject: &Subject) {
    let ctx = &subject.ctx;
    let mut released = Vec::new();
    let state_dir = ctx.collector_dir(subject.alloc.id, &subject.task);
    if state_dir.exists() {
        match end_collector(&state_dir).await {
            Ok(()) => released.push(Write::Release { kind: "collector", key: dir_name(&state_dir) }),
            Err(error) => {
                tracing::warn!(alloc = %subject.alloc.id, task = %subject.task, error, "the log collector was not ended, the next sweep tries again");
            }
        }
    }
    if let Some(cgroup) = subject.cgroup() {
        match tokio::task::spawn_blocking(move || cgroup.destroy()).await {
            Ok(Ok(_)) => released.push(Write::Release { kind: "cgroup", key: format!("{}.{}", subject.alloc.id, subject.task) }),
            Ok(Err(error)) => {
                tracing::warn!(%error, "task cgroups stay, the next sweep tries again")
            }
            Err(_) => {}
        }
    }
    if !released.is_empty() {
        let _ = ctx.store.commit(released).await;
    }
}

/// Ends the collector of a state directory, if there is one.
pub(crate) async fn end_collector(state_dir: &Path) -> Result<(), String> {
    if !state_dir.exists() {
        return Ok(());
    }
    if let Some(collector) = LogCollector::attach(state_dir).await.map_err(|e| e.to_string())? {
        collector.stop(Duration::from_secs(2)).await.map_err(|e| e.to_string())?;
    }
    executor_client::destroy(state_dir).await.map_err(|e| e.to_string())
}

/// Directories of the allocation go.
pub(crate) async fn destroy(subject: &Subject) {
    let dirs = subject.dirs();
    crate::leftovers::end_all(&dirs.root).await;
    match tokio::task::spawn_blocking(move || dirs.destroy()).await {
        Ok(Ok(())) | Err(_) => {}
        Ok(Err(error)) => {
            tracing::warn!(alloc = %subject.alloc.id, %error, "the allocation's directory was not removed, the next sweep tries again")
        }
    }
}

/// Sends a signal to a run.
pub(crate) async fn signal(subject: &Subject, run: &str, signal: &str) -> Result<(), String> {
    let driver = subject.ctx.drivers.get(&subject.driver_name(), DRIVER_PATIENCE).await?;
    driver.signal_task(run, signal).await.map_err(|e| e.to_string())
}

//! What the machine asks for, carried out: thin, each a future that ends in one event. All of them may be repeated after a crash.

use std::{collections::BTreeMap, path::Path, sync::Arc, time::Duration};

use base64::{Engine, prelude::BASE64_STANDARD};
use driver_host::{CallError, Capabilities, Driver, FsIsolation, TaskHandle, handle_from_bytes, handle_to_bytes};
use executor_client::{CollectSpec, LogCollector, LogPolicy};
use model::{Allocation, GoDuration, Job, Task, network::DriverNetwork, remote::slot_of};
use tokio_util::sync::CancellationToken;

use super::{
    artifacts::{self, Fetching},
    identities,
    machine::{Event, Exit, Launched, StartFailure},
    migrate::Moved,
    run::{AllocCommand, AllocCommands},
    sticky, task_config,
    templates::{
        self,
        files::{Look, Root},
    },
};
use crate::{
    cgroup::{self, TaskCgroup},
    context::NodeContext,
    cpuset,
    dirs::{AllocDirs, find_user},
    network::{AllocNetwork, SharedNetwork},
    remote::Output,
    secrets,
    store::Write,
};

/// Until the place of a remote task's output is tried to be made again.
const OUTPUT_RETRY: Duration = Duration::from_secs(5);
/// Attempts to free a run before its driver owes that.
const FREE_ATTEMPTS: u32 = 4;
/// How often and how long to wait for a driver that does not know a task yet.
const UNKNOWN_TRIES: u32 = 30;
const UNKNOWN_PAUSE: Duration = Duration::from_millis(100);

/// An allocation and its task, for effects.
#[derive(Clone)]
pub(crate) struct Subject {
    pub(crate) ctx: Arc<NodeContext>,
    pub(crate) alloc: Arc<Allocation>,
    pub(crate) job: Arc<Job>,
    pub(crate) task: Arc<str>,
    /// To the allocation's loop: what people should read among the task's events.
    pub(crate) notes: AllocCommands,
    /// Of the allocation.
    pub(crate) network: SharedNetwork,
    /// Of the allocation: its data is taken over once.
    pub(crate) moved: Moved,
}

impl Subject {
    /// Tells people. The loop may have ended.
    fn note(&self, message: String) {
        tracing::warn!(alloc = %self.alloc.id, task = %self.task, message, "told on the task");
        let _ = self.notes.send(AllocCommand::Event(Event::DriverSaid { task: self.task.clone(), message, annotations: BTreeMap::new() }));
    }

    fn patience(&self) -> Duration {
        self.ctx.config.patience.driver
    }

    /// The driver, when its plugin takes calls now or within the patience that this node has; else why it does not.
    pub(super) async fn driver_in_time(&self) -> Result<Driver, String> {
        self.ready_driver(&self.driver_name()).await
    }

    /// As [`Subject::driver_in_time`], for any driver.
    pub(crate) async fn ready_driver(&self, name: &str) -> Result<Driver, String> {
        let driver = self.ctx.drivers.get(name, self.patience()).await?;
        self.ready(&driver, 0).await.map(|()| driver)
    }

    /// Waits for a process of the plugin that is newer than `generation`; says why, when none comes in time.
    async fn ready(&self, driver: &Driver, generation: u64) -> Result<(), String> {
        let ready = tokio::time::timeout(self.patience(), driver.wait_ready(generation)).await;
        let why = || driver.unavailable().unwrap_or_else(|| "its plugin does not come up".into());
        ready.map(drop).map_err(|_| format!("driver {:?} is not available: {}", driver.name(), why()))
    }

    /// As [`Subject::ready`] without an end; people are told once.
    async fn ready_for_ever(&self, driver: &Driver, generation: u64) {
        if let Err(why) = self.ready(driver, generation).await {
            self.note(format!("{why}; the task runs on unattended until the plugin is back"));
            driver.wait_ready(generation).await;
        }
    }

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

    pub(crate) fn dirs(&self) -> AllocDirs {
        AllocDirs::new(&self.ctx.config.alloc_dir, self.alloc.id)
    }

    /// Gives the task its way to the HTTP API; it has to do without where there is none.
    async fn listen_for(&self, owner: Option<(u32, u32)>) {
        let secrets = self.dirs().task(&self.task).secrets;
        if let Err(why) = self.ctx.task_apis.listen(self.alloc.id, self.task.clone(), secrets, owner).await {
            self.note(format!("The task has no Task API socket: {why}"));
        }
    }

    /// Waits as long as it takes: a record of a run is only dropped when its driver has answered.
    pub(super) async fn driver_for_ever(&self) -> Driver {
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

/// Prepares and starts a run; answers with the handle and where the task is reached.
pub(crate) async fn start(subject: &Subject, run: &str, interrupted: &CancellationToken) -> Result<Launched, StartFailure> {
    let ctx = &subject.ctx;
    let setup = |why: String| StartFailure::Setup { why, recoverable: false };
    let (Some(group), Some(task)) = (subject.job.group(&subject.alloc.task_group), subject.task()) else {
        return Err(setup("the job has no such task".into()));
    };
    if let Some(why) = task_config::refused(task) {
        return Err(setup(why));
    }
    let driver_failed = |why: String, recoverable| StartFailure::Driver { why, recoverable };
    let driver = subject.driver_in_time().await.map_err(|why| driver_failed(why, true))?;
    let begin = std::time::Instant::now();
    let capabilities = driver.capabilities().unwrap_or_default();
    let cgroup = subject.cgroup();
    sticky::take_over(subject, group, interrupted).await?;
    let owner = owner_of(task, &capabilities);
    prepare(subject, task, owner, cgroup.clone()).await?;
    subject.listen_for(owner).await;
    // What was begun is ended with the allocation, or by the next agent.
    let network = interrupted.run_until_cancelled(subject.network.ensure(subject, group)).await.ok_or(StartFailure::Interrupted)??;
    let fetching = Fetching {
        ctx,
        alloc: &subject.alloc,
        job: &subject.job,
        group,
        task,
        dirs: subject.dirs(),
        isolation: capabilities.fs_isolation,
        travels: false,
        tell: Some(&subject.notes),
    };
    artifacts::fetch(&fetching, run, interrupted).await?;
    let view = task_config::path_view(&capabilities);
    let mut template_env = identities::issue(subject, task, view, owner, interrupted).await?;
    template_env.extend(templates::render(subject, group, task, &capabilities, interrupted).await?);
    if interrupted.is_cancelled() {
        return Err(StartFailure::Interrupted);
    }
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
        template_env: &template_env,
        network: &network,
        elsewhere: false,
    })?;
    if !capabilities.disable_log_collection && !task_config::logs_disabled(task) {
        collect(subject, task).await.map_err(|why| StartFailure::Setup { why, recoverable: true })?;
    }
    let has_cores = subject.alloc.resources.tasks.get(&subject.task).is_some_and(|t| !t.cpu.reserved_cores.is_empty());
    if has_cores {
        // Whoever shares its cores until now leaves them before it comes.
        for why in cpuset::settle(ctx).await {
            subject.note(format!("The task may not have its cores for itself: {why}"));
        }
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
                if !has_cores {
                    cpuset::settle(ctx).await;
                }
                let network =
                    started.network.map(|n| DriverNetwork { address: n.address, port_map: n.port_map, auto_advertise: n.auto_advertise });
                return Ok(Launched { handle: handle_to_bytes(&started.handle), network });
            }
            Err(e) if (e.is_plugin_gone() || matches!(e, CallError::Timeout { .. })) && attempts < 3 => {
                tracing::warn!(run, error = %e, "start was cut off, cleaning up before the next attempt");
                if e.is_plugin_gone() {
                    subject.ready(&driver, generation).await.map_err(|why| driver_failed(why, true))?;
                }
                let _ = driver.destroy_task(run, true).await;
                // It may have come as far as a workload that no process of the driver knows.
                contain(subject).await.map_err(|why| driver_failed(why, false))?;
            }
            Err(e) => return Err(driver_failed(e.to_string(), e.recoverable())),
        }
    }
}

/// Whom what only the task may read belongs to; None = the agent's user. Tasks in a root of their own run as nobody unless their job says otherwise.
pub(super) fn owner_of(task: &Task, capabilities: &Capabilities) -> Option<(u32, u32)> {
    let user = match task.user.as_str() {
        "" if capabilities.fs_isolation == FsIsolation::Chroot => "nobody",
        user => user,
    };
    if user.is_empty() || !rustix::process::geteuid().is_root() { None } else { find_user(user) }
}

/// Directories, payload and cgroups. Records first what is made outside the allocation's directory.
async fn prepare(subject: &Subject, task: &Task, owner: Option<(u32, u32)>, cgroup: Option<TaskCgroup>) -> Result<(), StartFailure> {
    if cgroup.is_some() {
        let key = format!("{}.{}", subject.alloc.id, subject.task);
        let claim = subject.ctx.store.commit(vec![Write::Claim { kind: "cgroup", key }]).await;
        claim.map_err(|e| StartFailure::Setup { why: e.to_string(), recoverable: true })?;
    }
    let dirs = subject.dirs();
    let task_dirs = dirs.task(&subject.task);
    let size = task.resources.secrets_mb;
    let payload = task.dispatch_payload.clone().map(|p| (p.file, subject.job.payload.clone().unwrap_or_default()));
    let work = move || -> Result<(), String> {
        dirs.create().map_err(|e| e.to_string())?;
        task_dirs.create(owner).map_err(|e| e.to_string())?;
        secrets::mount_at(&task_dirs.secrets, size, owner, || artifacts::forget_secret(&task_dirs.root)).map_err(|e| e.to_string())?;
        if let Some((file, payload)) = payload {
            write_payload(&task_dirs.root, &file, &payload)?;
        }
        if let Some(cgroup) = cgroup {
            cgroup.create().map_err(|e| format!("create the task's cgroups: {e}"))?;
        }
        Ok(())
    };
    tokio::task::spawn_blocking(work).await.map_err(|e| blocking_failed(&e))?.map_err(|why| StartFailure::Setup { why, recoverable: true })
}

/// The task may have run before and have put links in the way.
fn write_payload(task_root: &Path, file: &str, payload: &str) -> Result<(), String> {
    let relative = Path::new(file);
    if file.is_empty() || !relative.components().all(|c| matches!(c, std::path::Component::Normal(_))) {
        return Err(format!("dispatch_payload.file {file:?} must be a path below local/"));
    }
    let bytes = BASE64_STANDARD.decode(payload).map_err(|e| format!("the dispatch payload is not base64: {e}"))?;
    let write = |root: Root| root.write(&Path::new("local").join(relative), &bytes, Look { mode: 0o644, uid: None, gid: None });
    Root::open(task_root).and_then(write).map(drop).map_err(|e| e.to_string())
}

/// Last part of a path.
pub(crate) fn dir_name(dir: &Path) -> String {
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
    let parent = ctx.config.collectors_dir();
    std::fs::create_dir_all(&parent).map_err(|e| format!("create {}: {e}", parent.display()))?;
    LogCollector::start(ctx.launcher().await?, &state_dir, spec).await.map(drop).map_err(|e| format!("start the log collector: {e}"))
}

/// Makes the driver know a run of a former agent again.
pub(crate) async fn recover(subject: &Subject, handle: &[u8]) -> Result<(), String> {
    let handle = decode(handle)?;
    if let Some(task) = subject.task() {
        let driver = subject.driver_for_ever().await;
        subject.listen_for(owner_of(task, &driver.capabilities().unwrap_or_default())).await;
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
            Err(e) if e.is_plugin_gone() => subject.ready_for_ever(&driver, generation).await,
            Err(e) => return Err(e.to_string()),
        }
    }
}

fn decode(handle: &[u8]) -> Result<TaskHandle, String> {
    handle_from_bytes(handle).ok_or_else(|| "the stored handle is damaged".to_owned())
}

/// Waits for the end of a run over any number of plugin processes.
pub(crate) async fn wait(subject: &Subject, run: &str, handle: &[u8]) -> Exit {
    let lost = |message: String| Exit { code: -1, message, lost: true, ..Exit::default() };
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
                    lost: false,
                };
            }
            Err(e) if e.is_plugin_gone() => subject.ready_for_ever(&driver, generation).await,
            // A new process of the plugin may have come up between two calls.
            Err(e) if e.is_task_not_found() && !tried_again => tried_again = true,
            Err(e) => return lost(e.to_string()),
        }
        // Whatever interrupted the wait: the task is only over when a driver that has recovered it says so.
        let driver = subject.driver_for_ever().await;
        let generation = driver.generation();
        match driver.recover_task(handle.clone()).await {
            Ok(()) => {}
            Err(e) if e.is_plugin_gone() => subject.ready_for_ever(&driver, generation).await,
            Err(e) => return lost(format!("the task was lost with its driver's process: {e}")),
        }
    }
}

/// What became of a stop.
#[derive(Debug)]
pub(crate) enum Stopped {
    /// The end is seen by [`wait`].
    ByDriver,
    /// The driver has destroyed it after it could not stop it; the end is seen by [`wait`].
    Refused(String),
    /// Its driver was not there: this node has ended its processes by itself, and nobody else sees the end.
    Contained(Exit),
}

/// Stops a run. Cancelled when its end is known.
pub(crate) async fn stop(subject: &Subject, run: &str, signal: &str, timeout: GoDuration) -> Stopped {
    let mut last = String::new();
    let mut signal = signal;
    for pause in [Duration::ZERO].iter().chain(&subject.ctx.config.patience.stop) {
        tokio::time::sleep(*pause).await;
        let driver = match subject.driver_in_time().await {
            Ok(driver) => driver,
            Err(why) => match without_driver(subject, &why, run, signal, timeout).await {
                Some(exit) => return Stopped::Contained(exit),
                None => subject.driver_for_ever().await,
            },
        };
        let generation = driver.generation();
        let mut answer = driver.stop_task(run, signal, timeout.to_std()).await;
        if let Err(e) = &answer {
            if e.is_plugin_gone() && subject.ready(&driver, generation).await.is_ok() {
                // Not the task's fault: at once again, when the new process has had time to recover it.
                tokio::time::sleep(Duration::from_millis(100)).await;
                answer = driver.stop_task(run, signal, timeout.to_std()).await;
            } else if !e.is_plugin_gone() && !e.is_task_not_found() && !signal.is_empty() && !crate::fingerprint::is_signal(signal) {
                subject
                    .note(format!("The driver refuses kill_signal {signal:?}, which is no signal of this node ({e}); its default is sent"));
                signal = "";
                answer = driver.stop_task(run, signal, timeout.to_std()).await;
            }
        }
        // A process that has just been started may not have recovered the task yet; whether it is over is for the wait to say, and that ends this call.
        for _ in 0..UNKNOWN_TRIES {
            if !matches!(&answer, Err(e) if e.is_task_not_found()) {
                break;
            }
            tokio::time::sleep(UNKNOWN_PAUSE).await;
            answer = driver.stop_task(run, signal, timeout.to_std()).await;
        }
        match answer {
            Ok(()) => return Stopped::ByDriver,
            Err(e) if e.is_task_not_found() => return Stopped::ByDriver,
            Err(e) => last = e.to_string(),
        }
        tracing::warn!(run, error = last, "the driver could not stop the task, will try again");
    }
    subject.note(format!("The driver could not stop the task: {last}. It is destroyed"));
    let driver = subject.driver_for_ever().await;
    if let Err(error) = driver.destroy_task(run, true).await {
        tracing::warn!(run, %error, "the driver could not destroy what it could not stop");
    }
    if let Err(why) = contain(subject).await {
        subject.note(why);
    }
    Stopped::Refused(last)
}

/// Ends a run that its driver has not recovered: with the driver as soon as that is there (then nothing is to be done here), else without it.
pub(crate) async fn end_unattended(subject: &Subject, run: &str) -> Option<Exit> {
    let why = subject.driver_in_time().await.err()?;
    let asked = subject.task().and_then(|task| task.kill_timeout).unwrap_or(GoDuration::from_secs(5));
    let timeout = asked.min(GoDuration::from(subject.ctx.config.max_kill_timeout));
    let signal = subject.task().map(|task| task.kill_signal.clone()).unwrap_or_default();
    without_driver(subject, &why, run, &signal, timeout).await
}

/// Stops a run at its executor, where it has one of ours: signal, grace and exit code are as if its driver were there. What is left of it stays for
/// the driver to free.
async fn stop_at_executor(subject: &Subject, run: &str, signal: &str, timeout: GoDuration) -> Option<Exit> {
    let state_dir = subject.dirs().task(&subject.task).root.join("private/executor").join(run.rsplit('/').next()?);
    let executor = executor_client::Executor::attach(&state_dir).await.ok()?;
    let number = executor_client::signal_number(signal).or_else(|| executor_client::signal_number("SIGINT"))?;
    match executor.stop(number, timeout.to_std()).await {
        Ok(result) => {
            Some(Exit { code: result.exit_code, signal: result.signal, oom_killed: result.oom_killed, message: result.reason, lost: false })
        }
        Err(error) => {
            tracing::warn!(run, %error, "the executor of a task whose driver is not there could not stop it");
            None
        }
    }
}

/// Ends the processes of a task whose driver is not there. `None` when there were none: it may live where this node cannot look.
async fn without_driver(subject: &Subject, why: &str, run: &str, signal: &str, timeout: GoDuration) -> Option<Exit> {
    if let Some(exit) = stop_at_executor(subject, run, signal, timeout).await {
        subject.note(format!("{why}. The task was stopped at its executor"));
        return Some(exit);
    }
    match contain(subject).await {
        Ok(0) => {
            subject.note(format!("{why}. No process of the task was found on this node; it is stopped as soon as its driver is back"));
            None
        }
        Ok(killed) => {
            let message = format!("{why}; {killed} processes of the task were killed by the node, the exit code is not known");
            Some(Exit { code: 137, signal: 9, message, ..Exit::default() })
        }
        Err(resisting) => {
            subject.note(format!("{why}; {resisting}"));
            None
        }
    }
}

/// Frees an ended run at its driver and ends whatever it has left. True when the driver still owes that.
pub(crate) async fn free(subject: &Subject, run: &str, handle: Option<&[u8]>, known: bool, mut lost: bool) -> bool {
    let mut known = known;
    for attempt in 1.. {
        let Err(why) = destroy_at_driver(subject, run, handle, &mut known).await else {
            break;
        };
        tracing::warn!(run, why, attempt, "the driver could not free the task");
        match contain(subject).await {
            // What was lost has been found.
            Ok(1..) => lost = false,
            Ok(0) => {}
            Err(resisting) => {
                lost = true;
                subject.note(resisting);
            }
        }
        if attempt >= FREE_ATTEMPTS && !lost {
            subject.note(format!("The driver could not free what it holds for the task: {why}. The node goes on trying"));
            return true;
        }
        if attempt == FREE_ATTEMPTS {
            let held = "and nobody knows whether the task still runs, so it is not started again before";
            subject.note(format!("The driver could not free what it holds for the task: {why}. The node goes on trying, {held}"));
        }
        tokio::time::sleep(Duration::from_millis(200 << (attempt - 1).min(7))).await;
    }
    while let Err(resisting) = contain(subject).await {
        // A successor beside what resists would be a duplicate.
        subject.note(resisting);
        tokio::time::sleep(subject.ctx.config.patience.owed.0).await;
    }
    false
}

/// Frees a run that its driver could not free before.
pub(crate) async fn settle(subject: &Subject, run: &str, handle: Option<&[u8]>) {
    let (mut pause, longest) = subject.ctx.config.patience.owed;
    let mut known = false;
    while let Err(why) = destroy_at_driver(subject, run, handle, &mut known).await {
        tracing::debug!(run, why, "the driver still cannot free the task");
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(longest);
    }
    tracing::info!(run, "the driver has freed the task at last");
}

/// One attempt. A process of the driver that does not know the run is told of it first: without that it would have nothing to destroy.
async fn destroy_at_driver(subject: &Subject, run: &str, handle: Option<&[u8]>, known: &mut bool) -> Result<(), String> {
    // Whatever comes up meanwhile is a new process.
    *known &= subject.ctx.drivers.now(&subject.driver_name()).is_some_and(|driver| driver.is_ready());
    let driver = subject.driver_in_time().await?;
    let handle = handle.and_then(|h| decode(h).ok());
    let tell = async || match handle.clone() {
        // Another failure means that there is nothing to find, or that it can only be destroyed.
        Some(handle) => driver.recover_task(handle).await.or_else(|e| if e.is_plugin_gone() { Err(e.to_string()) } else { Ok(()) }),
        None => Ok(()),
    };
    if !*known {
        tell().await?;
    }
    let mut destroyed = driver.destroy_task(run, true).await;
    if matches!(destroyed, Ok(false)) && *known {
        // Not the process that has seen the end.
        tell().await?;
        destroyed = driver.destroy_task(run, true).await;
    }
    *known = !destroyed.as_ref().is_err_and(driver_host::CallError::is_plugin_gone);
    destroyed.map(drop).map_err(|e| e.to_string())
}

/// Ends whatever a driver has left of a task: in the cgroups made for it, under its executors, by environment and directory. Answers how many
/// processes there were; people are told.
async fn contain(subject: &Subject) -> Result<usize, String> {
    let task_dir = subject.dirs().task(&subject.task).root;
    crate::leftovers::end_own_executors(&task_dir).await;
    // Drivers that come with the agent leave nothing but executors of our own.
    if subject.ctx.drivers.is_builtin(&subject.driver_name()) {
        return Ok(0);
    }
    let mut killed = 0;
    // Both ways, because each finds what the other one misses; executors first, which might start something anew.
    let ended = crate::leftovers::end_task(&subject.ctx.places, subject.alloc.id, &subject.task).await;
    killed += ended.killed;
    if !ended.resisting.is_empty() {
        return Err(format!("processes {:?} of the task resist SIGKILL", ended.resisting));
    }
    if let Some(cgroup) = subject.cgroup() {
        let cleared = tokio::task::spawn_blocking(move || cgroup.clear()).await.map_err(|e| e.to_string())?;
        killed += cleared.map_err(|e| format!("the task's cgroups could not be emptied: {e}"))?;
    }
    if killed > 0 {
        subject.note(format!("{killed} processes that the driver left behind were killed"));
    }
    Ok(killed)
}

/// The task is dead: collector, fifos, secrets and cgroups go.
pub(crate) async fn task_over(subject: &Subject) {
    let ctx = &subject.ctx;
    let mut released = end_collection(subject).await;
    cpuset::sweep(ctx).await;
    let secrets = subject.dirs().task(&subject.task).secrets;
    let over = subject.clone();
    let end = move || {
        over.ctx.task_apis.end(over.alloc.id, &over.task, &secrets);
        secrets::unmount_at(&secrets)
    };
    if let Ok(Err(error)) = tokio::task::spawn_blocking(end).await {
        tracing::warn!(alloc = %subject.alloc.id, task = %subject.task, %error, "the secrets of a dead task stay until its directory goes");
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

/// The collector of a task and its FIFOs go; answers what is no longer claimed.
async fn end_collection(subject: &Subject) -> Vec<Write> {
    let mut released = Vec::new();
    let state_dir = subject.ctx.collector_dir(subject.alloc.id, &subject.task);
    if state_dir.exists() {
        match end_collector(&state_dir).await {
            Ok(()) => released.push(Write::Release { kind: "collector", key: dir_name(&state_dir) }),
            Err(error) => {
                tracing::warn!(alloc = %subject.alloc.id, task = %subject.task, error, "the log collector was not ended, the next sweep tries again");
            }
        }
    }
    let (stdout, stderr) = task_config::fifos(&subject.dirs(), &subject.task);
    for fifo in [stdout, stderr] {
        // A task of a driver that collects by itself has none.
        let _ = std::fs::remove_file(fifo);
    }
    released
}

/// Gives the output of a remote task its place, where its driver knows the plain driver protocol only: that has nothing but FIFOs to write to.
pub(crate) async fn place_output(subject: &Subject) {
    let driver = subject.driver_for_ever().await;
    let capabilities = driver.capabilities().unwrap_or_default();
    let Some(task) = subject.task().filter(|_| driver.remote().is_none() && capabilities.remote_tasks) else { return };
    let (dirs, alloc) = (subject.dirs(), subject.alloc.id);
    let output = if capabilities.disable_log_collection || task_config::logs_disabled(task) {
        Output::nowhere(alloc)
    } else {
        let mut told = false;
        while let Err(why) = make_place(subject, task).await {
            if !std::mem::replace(&mut told, true) {
                subject.note(format!("The output of the task is not kept for now: {why}"));
            }
            tokio::time::sleep(OUTPUT_RETRY).await;
        }
        let (stdout, stderr) = task_config::fifos(&dirs, &subject.task);
        Output { alloc, stdout: stdout.display().to_string(), stderr: stderr.display().to_string() }
    };
    subject.ctx.remote.output_to(slot_of(&subject.alloc, &subject.task), output);
}

async fn make_place(subject: &Subject, task: &Task) -> Result<(), String> {
    let dirs = subject.dirs();
    tokio::task::spawn_blocking(move || dirs.create()).await.map_err(|e| e.to_string())?.map_err(|e| e.to_string())?;
    collect(subject, task).await
}

/// The remote task is over for this allocation: what [`place_output`] has made goes, after what was written has been read.
pub(crate) async fn output_over(subject: &Subject) {
    subject.ctx.remote.no_output_to(&slot_of(&subject.alloc, &subject.task), subject.alloc.id).await;
    let released = end_collection(subject).await;
    if !released.is_empty() {
        let _ = subject.ctx.store.commit(released).await;
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

/// Nothing of the allocation runs: its network goes.
pub(crate) async fn network_over(ctx: &NodeContext, network: &AllocNetwork) {
    if let Err(error) = network.end(ctx).await {
        tracing::warn!(error, "the network of an allocation stays, the next sweep tries again");
    }
}

/// Directories of the allocation go.
pub(crate) async fn destroy(subject: &Subject) {
    let dirs = subject.dirs();
    crate::leftovers::end_alloc(&subject.ctx.places, subject.alloc.id).await;
    subject.network.release();
    network_over(&subject.ctx, &subject.network).await;
    match tokio::task::spawn_blocking(move || dirs.destroy()).await {
        Ok(Ok(())) | Err(_) => {}
        Ok(Err(error)) => {
            tracing::warn!(alloc = %subject.alloc.id, %error, "the allocation's directory was not removed, the next sweep tries again")
        }
    }
}

/// Sends a signal to a run.
pub(crate) async fn signal(subject: &Subject, run: &str, signal: &str) -> Result<(), String> {
    let driver = subject.ctx.drivers.get(&subject.driver_name(), subject.patience()).await?;
    driver.signal_task(run, signal).await.map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_is_written_through_no_link() {
        let dir = tempfile::tempdir().expect("a directory");
        let (task, host) = (dir.path().join("t"), dir.path().join("host"));
        std::fs::create_dir_all(task.join("local/sub")).expect("directories");
        std::fs::write(&host, "the host's").expect("a file");
        std::os::unix::fs::symlink(&host, task.join("local/in.json")).expect("a link");
        std::os::unix::fs::symlink(dir.path(), task.join("local/up")).expect("a link");
        write_payload(&task, "in.json", "e30=").expect("put in the place of the link");
        assert_eq!(std::fs::read_to_string(task.join("local/in.json")).expect("there"), "{}");
        write_payload(&task, "sub/new/in.json", "e30=").expect("below directories of its own");
        assert!(write_payload(&task, "up/host", "e30=").is_err_and(|why| why.contains("links are not followed")));
        assert_eq!(std::fs::read_to_string(&host).expect("there"), "the host's");
        for bad in ["", "/etc/x", "../x", "a/../../x"] {
            assert!(write_payload(&task, bad, "e30=").is_err(), "{bad:?}");
        }
    }
}

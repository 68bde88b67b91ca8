//! The driver `docker`: tasks as containers of the node's own engine.

mod dangling;
pub(crate) mod start;
mod task;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use driver_sdk::config::Config;
use driver_sdk::exec::ExecIo;
use driver_sdk::proto::driver::NetworkIsolationSpec;
use driver_sdk::schema::Spec;
use driver_sdk::{
    AgentConfig, Capabilities, Context, DETACH_SIGNAL, DriverConfig, Error, ExecOutput, Fingerprint, FsIsolation,
    Inspection, NetworkMode, PluginInfo, Started, StopTask, TaskConfig, TaskEvent, TaskExit, TaskHandle, TaskStatus,
    TaskUsage, async_trait, handle,
};

use crate::config::PluginConfig;
use crate::create::Place;
use crate::engine::types::{Container, Info, time};
use crate::engine::{Engine, EngineError, encode};
use crate::image::Images;
use crate::options::TaskOptions;
use crate::watch::{self, Monitor, inspect};
use crate::{exec, network, stats};
use task::{State, Task, VERSION};

/// How long the end of a task waits for the last of its log.
const LOG_WITHIN: Duration = Duration::from_secs(5);

/// An engine and what belongs to it.
pub(crate) struct Site {
    pub(crate) engine: Arc<Engine>,
    pub(crate) plugin: PluginConfig,
    pub(crate) monitor: Arc<Monitor>,
    /// Ends with the site.
    _sweeper: Option<dangling::Sweeper>,
}

/// What is shared with activities in the background.
#[derive(Default)]
pub(crate) struct Shared {
    pub(crate) tasks: Mutex<HashMap<String, Arc<Task>>>,
    pub(crate) images: Arc<Images>,
    pub(crate) context: OnceLock<Context>,
    /// Nodes that tasks were seen of: what belongs to another is another agent's.
    pub(crate) nodes: Mutex<std::collections::BTreeSet<String>>,
}

/// The driver `docker`.
#[derive(Default)]
pub struct Driver {
    shared: Arc<Shared>,
    config: Mutex<PluginConfig>,
    site: Mutex<Option<Arc<Site>>>,
    core_mhz: Mutex<Option<f64>>,
    /// The engine has answered at least once.
    met: std::sync::atomic::AtomicBool,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// Shows something in the task's history.
    pub(crate) fn tell(&self, id: &str, alloc_id: &str, name: &str, message: String) {
        if let Some(context) = self.context.get() {
            let (task_id, alloc_id, task_name) = (id.to_owned(), alloc_id.to_owned(), name.to_owned());
            context.emit(TaskEvent { task_id, alloc_id, task_name, message, ..TaskEvent::default() });
        }
    }
}

/// How a container has ended.
pub(crate) fn task_exit(container: &Container) -> TaskExit {
    let state = &container.state;
    let exit_code = i32::try_from(state.exit_code).unwrap_or(-1);
    TaskExit {
        exit_code,
        // The engine does not say; shells and engines agree on this sum.
        signal: if (129..=128 + 64).contains(&exit_code) { exit_code - 128 } else { 0 },
        oom_killed: state.oom_killed,
        error: Some(state.error.clone()).filter(|e| !e.is_empty()),
    }
}

pub(crate) fn failure(error: EngineError) -> Error {
    match error {
        e if e.is_away() => Error::recoverable(e),
        e if e.is_absent() => Error::TaskNotFound,
        e => Error::failed(e),
    }
}

/// Speed of one core as the host tells it, in MHz.
fn core_mhz(agent: &AgentConfig) -> Option<f64> {
    let cores = agent.topology.iter().flat_map(|t| &t.cores);
    let speeds: Vec<u64> =
        cores.filter_map(|c| [c.base_speed, c.max_speed, c.guess_speed].into_iter().find(|s| *s > 0)).collect();
    (!speeds.is_empty()).then(|| speeds.iter().sum::<u64>() as f64 / speeds.len() as f64)
}

impl Driver {
    /// A driver that holds no tasks; `set_config` connects it to an engine.
    pub fn new() -> Driver {
        Driver::default()
    }

    fn site(&self) -> Result<Arc<Site>, Error> {
        lock(&self.site).clone().ok_or_else(|| Error::recoverable("the plugin was not configured yet"))
    }

    fn task(&self, id: &str) -> Result<Arc<Task>, Error> {
        lock(&self.shared.tasks).get(id).cloned().ok_or(Error::TaskNotFound)
    }

    fn manage(&self, site: &Arc<Site>, config: &TaskConfig, state: State) -> Arc<Task> {
        let task = Arc::new(Task::new(config, state));
        self.shared.images.acquire(&task.state.image, &task.id);
        lock(&self.shared.nodes).insert(config.node_id.clone());
        lock(&self.shared.tasks).insert(task.id.clone(), task.clone());
        // With collection switched off the fifos have no reader, and nobody made them.
        if !site.plugin.disable_log_collection {
            task.copy_log(site, config);
        } else {
            task.no_log();
        }
        task
    }

    /// Removes the container; returns when the engine has none any more.
    async fn remove(site: &Site, container: &str) -> Result<(), Error> {
        start::remove(&site.engine, container).await
    }
}

#[async_trait]
impl driver_sdk::Driver for Driver {
    fn info(&self) -> PluginInfo {
        PluginInfo::new("docker", env!("CARGO_PKG_VERSION"))
    }

    fn attach(&self, context: Context) {
        let _ = self.shared.context.set(context);
    }

    fn config_schema(&self) -> Option<Spec> {
        Some(PluginConfig::local_schema())
    }

    async fn set_config(&self, config: Config, agent: Option<AgentConfig>) -> Result<(), Error> {
        let config = PluginConfig::decode(&config)?;
        config.validate()?;
        let engine = Arc::new(config.engine()?);
        *lock(&self.config) = config.clone();
        // Without a node the configuration is only being checked.
        let Some(agent) = agent else {
            return Ok(());
        };
        *lock(&self.core_mhz) = core_mhz(&agent);
        let shared = Arc::downgrade(&self.shared);
        let monitor = Arc::new(Monitor::start(engine.clone(), move || {
            if let Some(context) = shared.upgrade().as_ref().and_then(|s| s.context.get()) {
                context.refingerprint();
            }
        }));
        let sweeper = dangling::Sweeper::start(engine.clone(), &config.gc.dangling_containers, self.shared.clone());
        *lock(&self.site) = Some(Arc::new(Site { engine, plugin: config, monitor, _sweeper: sweeper }));
        Ok(())
    }

    fn task_config_schema(&self) -> Spec {
        TaskOptions::schema()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            send_signals: true,
            exec: true,
            fs_isolation: FsIsolation::Image,
            network_modes: vec![NetworkMode::Host, NetworkMode::Group, NetworkMode::Task],
            must_create_network: true,
            disable_log_collection: lock(&self.config).disable_log_collection,
            ..Capabilities::default()
        }
    }

    async fn fingerprint(&self) -> Fingerprint {
        let Ok(site) = self.site() else {
            return Fingerprint::undetected("the plugin was not configured yet");
        };
        let look = async {
            let (api, version) = site.engine.version().await?;
            let info: Info = site.engine.get("ask about the engine", "/info").await?;
            Ok::<_, EngineError>((api, version, info))
        };
        let (api, version, info) = match look.await {
            Ok(seen) => seen,
            Err(e) if self.met.load(std::sync::atomic::Ordering::Relaxed) => {
                return Fingerprint::unhealthy(e.to_string());
            }
            Err(e) => return Fingerprint::undetected(e.to_string()),
        };
        self.met.store(true, std::sync::atomic::Ordering::Relaxed);
        let runtimes: Vec<&str> = info.runtimes.keys().map(String::as_str).collect();
        let mut seen = Fingerprint::healthy()
            .with("driver.docker.version", version.version)
            .with("driver.docker.api", api)
            .with("driver.docker.os_type", if info.os_type.is_empty() { version.os } else { info.os_type })
            .with("driver.docker.runtimes", runtimes.join(","))
            .with("driver.docker.storage", info.driver)
            .with("driver.docker.privileged.enabled", site.plugin.allow_privileged)
            .with("driver.docker.volumes.enabled", site.plugin.volumes.enabled);
        if !info.cgroup_version.is_empty() {
            seen = seen.with("driver.docker.cgroup_version", info.cgroup_version);
        }
        seen
    }

    async fn start_task(&self, config: TaskConfig) -> Result<Started, Error> {
        if lock(&self.shared.tasks).contains_key(&config.id) {
            return Err(Error::failed(format!("task {} is already running here", config.id)));
        }
        let site = self.site()?;
        let started = start::start(&site, &self.shared, &config).await?;
        let driver_state = handle::encode(&started.state)?;
        self.manage(&site, &config, started.state);
        Ok(Started { driver_state, version: VERSION, network: started.network })
    }

    async fn recover_task(&self, task: TaskHandle) -> Result<(), Error> {
        let config = task.config.unwrap_or_default();
        if lock(&self.shared.tasks).contains_key(&config.id) {
            return Ok(());
        }
        if task.version != i32::from(VERSION) {
            return Err(handle::unknown_version(task.version, i32::from(VERSION)..=i32::from(VERSION)));
        }
        let state: State = handle::decode(&task.driver_state)?;
        let site = self.site()?;
        match inspect(&site.engine, &state.container).await {
            Err(e) if e.is_absent() => return Err(Error::TaskNotFound),
            // An engine that is away says nothing about the task; it is waited for.
            Err(e) if e.is_away() => {
                tracing::warn!(task = config.id, error = %e, "recovered without having seen the container")
            }
            Err(e) => return Err(Error::failed(e)),
            Ok(_) => {}
        }
        self.manage(&site, &config, state);
        Ok(())
    }

    async fn wait_task(&self, id: &str) -> Result<TaskExit, Error> {
        let (task, site) = (self.task(id)?, self.site()?);
        let mut destroyed = task.destroyed();
        let end = async {
            let exit = match watch::ended(&site.engine, &site.monitor, &task.state.container).await {
                Ok(container) => task_exit(&container),
                Err(e) if e.is_absent() => {
                    let error = format!(
                        "container {} was removed by somebody else; how the task ended is not known",
                        task.state.container
                    );
                    TaskExit { exit_code: -1, error: Some(error), ..TaskExit::default() }
                }
                Err(e) => return Err(Error::failed(e)),
            };
            // What it has written is there when its end is told.
            if tokio::time::timeout(LOG_WITHIN, task.log_copied()).await.is_err() {
                tracing::warn!(task = task.id, "the end of the task's log has not been taken by its reader yet");
            }
            Ok(exit)
        };
        tokio::select! {
            biased;
            exit = end => exit,
            _ = destroyed.wait_for(|destroyed| *destroyed) => Err(Error::TaskNotFound),
        }
    }

    async fn stop_task(&self, id: &str, stop: StopTask) -> Result<(), Error> {
        let (task, site) = (self.task(id)?, self.site()?);
        if stop.signal == DETACH_SIGNAL {
            return Err(Error::unsupported(
                "detaching: its tasks live on this node; docker_remote has tasks that do not",
            ));
        }
        match start::stop(&site.engine, &site.monitor, &task.state.container, &stop).await {
            Err(e) if e.is_absent() => Ok(()),
            other => other.map(drop).map_err(failure),
        }
    }

    async fn destroy_task(&self, id: &str, force: bool) -> Result<(), Error> {
        let Ok(task) = self.task(id) else {
            // A start that was cut off may have left a container that only its label ties to the task.
            if force && let Ok(site) = self.site() {
                return start::remove_by_label(&site.engine, id).await;
            }
            return Ok(());
        };
        let site = self.site()?;
        let running = match inspect(&site.engine, &task.state.container).await {
            Ok(seen) => Some(seen.state.running),
            Err(e) if e.is_absent() => None,
            Err(e) => return Err(failure(e)),
        };
        if running == Some(true) && !force {
            return Err(Error::failed("cannot destroy running task; stop it first or use force"));
        }
        if running == Some(true) || (running == Some(false) && site.plugin.gc.container) {
            Self::remove(&site, &task.state.container).await?;
        }
        task.forget();
        lock(&self.shared.tasks).remove(id);
        if self.shared.images.release(&task.state.image, id) && site.plugin.gc.image && task.state.fetched {
            let delay = site.plugin.gc.image_delay;
            self.shared.images.remove_later(site.engine.clone(), task.state.image.clone(), delay);
        }
        Ok(())
    }

    async fn inspect_task(&self, id: &str) -> Result<Inspection, Error> {
        let (task, site) = (self.task(id)?, self.site()?);
        let seen = inspect(&site.engine, &task.state.container).await.map_err(failure)?;
        let ended = watch::has_ended(&seen);
        let attributes = [
            ("container_id", seen.id.clone()),
            ("image_id", seen.image.clone()),
            ("pid", seen.state.pid.to_string()),
            ("network_mode", seen.host_config.network_mode.clone()),
        ];
        Ok(Inspection {
            id: task.id.clone(),
            name: task.name.clone(),
            status: if ended { TaskStatus::Exited } else { TaskStatus::Running },
            started_at: time(&seen.state.started_at),
            completed_at: time(&seen.state.finished_at).filter(|_| ended),
            exit: ended.then(|| task_exit(&seen)),
            attributes: attributes.map(|(k, v)| (k.to_owned(), v)).into(),
            network: None,
        })
    }

    async fn task_stats(&self, id: &str) -> Result<Option<TaskUsage>, Error> {
        let (task, site) = (self.task(id)?, self.site()?);
        let sample = match stats::sample(&site.engine, &task.state.container).await {
            Ok(sample) => sample,
            // A missing sample is no reason to end the stream.
            Err(e) if e.is_away() => return Ok(Some(TaskUsage::default())),
            Err(e) => return Err(failure(e)),
        };
        task.meter.usage(&sample, *lock(&self.core_mhz)).map(Some).ok_or(Error::TaskNotFound)
    }

    async fn signal_task(&self, id: &str, signal: &str) -> Result<(), Error> {
        let (task, site) = (self.task(id)?, self.site()?);
        start::signal(&site.engine, &task.state.container, signal).await.map_err(|e| match e {
            e if e.is_wrong_request() => Error::invalid(e),
            e => failure(e),
        })
    }

    async fn exec_task(&self, id: &str, command: Vec<String>, timeout: Duration) -> Result<ExecOutput, Error> {
        let (task, site) = (self.task(id)?, self.site()?);
        let begun = Instant::now();
        let run = exec::collect(&site.engine, &task.state.container, &command, Place::Local);
        let limit = if timeout.is_zero() { Duration::from_secs(3600) } else { timeout };
        match tokio::time::timeout(limit, run).await {
            Ok(result) => result.map_err(failure),
            Err(_) => {
                Err(Error::failed(format!("the command has not ended within {:?} and was ended", begun.elapsed())))
            }
        }
    }

    async fn exec_streaming(&self, id: &str, command: Vec<String>, tty: bool, io: ExecIo) -> Result<TaskExit, Error> {
        let (task, site) = (self.task(id)?, self.site()?);
        exec::stream(&site.engine, &task.state.container, &command, tty, io, Place::Local).await.map_err(failure)
    }

    async fn create_network(&self, alloc_id: &str, hostname: &str) -> Result<(NetworkIsolationSpec, bool), Error> {
        let site = self.site()?;
        let shared = self.shared.clone();
        let tell = |message: String| shared.tell("", alloc_id, "", message);
        network::create(&site.engine, &site.plugin, alloc_id, hostname, &tell).await
    }

    async fn destroy_network(&self, alloc_id: &str, spec: Option<NetworkIsolationSpec>) -> Result<(), Error> {
        let site = self.site()?;
        // Hosts that do not repeat the allocation still have the label.
        match spec.and_then(|s| s.labels.get(crate::create::NETWORK_LABEL).cloned()) {
            Some(container) if alloc_id.is_empty() => start::remove(&site.engine, &encode(&container)).await,
            _ => network::destroy(&site.engine, alloc_id).await,
        }
    }
}

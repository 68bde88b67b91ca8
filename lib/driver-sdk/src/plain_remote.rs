//! A remote driver as a plain one: handle, RecoverTask and `DETACH`, for hosts without the remote extension.
//!
//! ```text
//! start ── ensure(key = task id) ──▶ managed ── exited / gone ──▶ ended ── destroy ──▶ acknowledged, forgotten
//! recover ── observe ──────────────▶ managed ── stop ───────────▶ ended
//!                                    managed ── DETACH ─────────▶ detached ── destroy ──▶ forgotten, instance
//! untouched
//! ```

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::exec::{self, ExecIo};
use crate::log_copy::{LogCopy, Place};
use crate::observer::Observer;
use crate::remote::{Ensure, InstanceState, LogStream, LogsQuery, Observation, RemoteHandle};
use crate::schema::Spec;
use crate::types::{
    AgentConfig, Capabilities, ExecOutput, Fingerprint, Inspection, NetworkOverride, PluginInfo, Started, StopTask,
    TaskExit, TaskStatus, TaskUsage,
};
use crate::{
    Context, DETACH_SIGNAL, Driver, DriverState, Error, LogChunk, RemoteDriver, RemoteError, TaskConfig, TaskHandle,
    handle, log_policy,
};

/// Hosts of the plain protocol have no cluster identity.
const OWNER: &str = "plain-driver-protocol";
const RETRY_AFTER: Duration = Duration::from_secs(2);
/// How long a start waits for an instance that the runtime has accepted. One that waits for room begins later.
const START_PATIENCE: Duration = Duration::from_secs(10);
const START_LOOK: Duration = Duration::from_millis(200);
/// Time limit for the rest of the log after the task's end.
const LAST_LINES: Duration = Duration::from_secs(5);

/// The state for RecoverTask.
#[derive(Debug, Serialize, Deserialize)]
struct StateV1 {
    key: String,
    schema: u32,
    #[serde(with = "handle::bytes")]
    data: Vec<u8>,
}

impl DriverState for StateV1 {
    const VERSION: u16 = 1;
}

/// One task that this process manages.
#[derive(Debug)]
struct Managed {
    id: String,
    name: String,
    key: String,
    handle: RemoteHandle,
    epoch: u64,
    /// Cancelled when the instance continues without us.
    detached: CancellationToken,
    /// Cancelled at the task's end: only the rest of its logs remains to read.
    over: CancellationToken,
    /// Cancelled when the host has forgotten the task.
    destroyed: CancellationToken,
    /// The copies of its logs.
    copying: Mutex<Vec<JoinHandle<()>>>,
}

/// The adapter.
pub(crate) struct PlainRemote {
    remote: Arc<dyn RemoteDriver>,
    observer: Arc<Observer>,
    tasks: Mutex<HashMap<String, Arc<Managed>>>,
}

fn error(error: RemoteError) -> Error {
    match error {
        RemoteError::CouldNotAsk(_) => Error::Recoverable(error.to_string()),
        RemoteError::WrongRequest(_) => Error::Invalid(error.to_string()),
        RemoteError::Gone(_) | RemoteError::Sealed(_) | RemoteError::StaleEpoch { .. } => {
            Error::Failed(error.to_string())
        }
    }
}

fn network(seen: &Observation) -> Option<NetworkOverride> {
    (!seen.address.is_empty()).then(|| NetworkOverride {
        port_map: seen.port_map.clone(),
        address: seen.address.clone(),
        auto_advertise: true,
    })
}

/// The end of an instance, if it has ended.
fn ended(seen: &Observation) -> Option<TaskExit> {
    match seen.state {
        InstanceState::Exited => Some(seen.exit.clone()),
        InstanceState::Gone => {
            let error = Some("the provider says that the instance is gone; how it ended is not known".to_owned());
            Some(TaskExit { exit_code: -1, error, ..TaskExit::default() })
        }
        InstanceState::Unknown | InstanceState::Creating | InstanceState::Running => None,
    }
}

impl PlainRemote {
    pub(crate) fn new(remote: Arc<dyn RemoteDriver>, observer: Arc<Observer>) -> Self {
        Self { remote, observer, tasks: Mutex::default() }
    }

    fn tasks(&self) -> std::sync::MutexGuard<'_, HashMap<String, Arc<Managed>>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn task(&self, id: &str) -> Result<Arc<Managed>, Error> {
        self.tasks().get(id).cloned().ok_or(Error::TaskNotFound)
    }

    fn manage(
        &self,
        task: &TaskConfig,
        key: String,
        handle: RemoteHandle,
        epoch: u64,
        logs: Logs,
    ) -> Result<(), Error> {
        let managed = Arc::new(Managed {
            id: task.id.clone(),
            name: task.name.clone(),
            key,
            handle,
            epoch: epoch.max(1),
            detached: CancellationToken::new(),
            over: CancellationToken::new(),
            destroyed: CancellationToken::new(),
            copying: Mutex::default(),
        });
        self.tasks().insert(task.id.clone(), managed.clone());
        if self.remote.describe().logs
            && let Some(policy) = log_policy(task)?
        {
            for (stream, name) in [(LogStream::Stdout, policy.stdout_name), (LogStream::Stderr, policy.stderr_name)] {
                let (max_files, max_file_bytes) = (policy.max_files, policy.max_file_size_bytes.max(1));
                let place = Place { dir: policy.dir.clone().into(), name, max_files, max_file_bytes };
                let copying = tokio::spawn(copy_log(self.remote.clone(), managed.clone(), stream, place, logs));
                managed.copying.lock().unwrap_or_else(PoisonError::into_inner).push(copying);
            }
        }
        Ok(())
    }

    async fn observe(&self, task: &Managed) -> Result<Observation, RemoteError> {
        let seen = self.observer.observe(vec![task.handle.clone()]).await?;
        seen.into_iter().next().ok_or_else(|| RemoteError::could_not_ask("the driver answered without an observation"))
    }

    /// Waits until the instance has ended, and asks again after each failure.
    async fn end(&self, task: &Managed) -> Result<TaskExit, Error> {
        loop {
            let (sink, mut pushed) = mpsc::channel(16);
            let watching = self.observer.watch(vec![task.handle.clone()], sink);
            let mut watching = std::pin::pin!(watching);
            let first_end = async {
                while let Some(seen) = pushed.recv().await {
                    if let Some(exit) = ended(&seen) {
                        return Some(exit);
                    }
                }
                None
            };
            let mut first_end = std::pin::pin!(first_end);
            let outcome = tokio::select! {
                exit = &mut first_end => Ok(exit),
                result = &mut watching => match result {
                    // An end pushed before the stream's end still counts.
                    Ok(()) => Ok(first_end.await),
                    Err(error) => Err(error),
                },
            };
            match outcome {
                Ok(Some(exit)) => return Ok(exit),
                Ok(None) | Err(RemoteError::CouldNotAsk(_)) => tokio::time::sleep(RETRY_AFTER).await,
                Err(other) => return Err(error(other)),
            }
        }
    }
}

/// Where the copy of a log begins if this node has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Logs {
    /// A new task.
    FromStart,
    /// An adopted one: its earlier output was copied elsewhere.
    FromNow,
}

/// Runs blocking disk work.
async fn on_disk<T: Send + 'static>(work: impl FnOnce() -> std::io::Result<T> + Send + 'static) -> std::io::Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|e| Err(std::io::Error::other(e)))
}

async fn open_copy(place: &Place, key: &str, logs: Logs) -> std::io::Result<Option<LogCopy>> {
    let (place, key) = (place.clone(), key.to_owned());
    on_disk(move || match (place.clone().resume(&key)?, logs) {
        (None, Logs::FromStart) => place.begin(&key, 0).map(Some),
        (found, _) => Ok(found),
    })
    .await
}

async fn append(copy: Option<LogCopy>, place: &Place, key: &str, chunk: LogChunk) -> std::io::Result<LogCopy> {
    let (place, key) = (place.clone(), key.to_owned());
    on_disk(move || {
        let mut copy = match copy {
            Some(copy) => copy,
            None => place.begin(&key, chunk.offset)?,
        };
        copy.append(chunk.offset, &chunk.data)?;
        Ok(copy)
    })
    .await
}

/// Copies one log into the node's files, until the task's last output is read or the task is let go. The provider keeps
/// the log, so every failure is retried and nothing is lost.
async fn copy_log(remote: Arc<dyn RemoteDriver>, task: Arc<Managed>, stream: LogStream, place: Place, logs: Logs) {
    loop {
        match copy_log_once(&*remote, &task, stream, &place, logs).await {
            Ok(()) => return,
            Err(why) => tracing::warn!(
                task = task.id,
                name = place.name,
                why,
                "the log is not copied at the moment, trying again"
            ),
        }
        tokio::select! {
            () = tokio::time::sleep(RETRY_AFTER) => {}
            () = task.detached.cancelled() => return,
            () = task.destroyed.cancelled() => return,
        }
    }
}

async fn copy_log_once(
    remote: &dyn RemoteDriver,
    task: &Managed,
    stream: LogStream,
    place: &Place,
    logs: Logs,
) -> Result<(), String> {
    loop {
        let last = task.over.is_cancelled();
        let mut copy = open_copy(place, &task.key, logs).await.map_err(|e| e.to_string())?;
        let (sink, mut chunks) = mpsc::channel(16);
        let query = LogsQuery {
            stream,
            offset: copy.as_ref().map_or(0, LogCopy::position),
            follow: !last,
            from_end: copy.is_none(),
        };
        let reading = remote.logs(&task.handle, query, sink);
        let mut reading = std::pin::pin!(reading);
        let mut outcome = None;
        loop {
            tokio::select! {
                biased;
                () = task.detached.cancelled() => return Ok(()),
                () = task.destroyed.cancelled() => return Ok(()),
                // From here on, copy what is there without waiting for more.
                () = task.over.cancelled(), if !last => break,
                result = &mut reading, if outcome.is_none() => outcome = Some(result),
                chunk = chunks.recv() => match chunk {
                    Some(chunk) => copy =
                        Some(append(copy.take(), place, &task.key, chunk).await.map_err(|e| e.to_string())?),
                    None => break,
                },
            }
        }
        match outcome {
            Some(Err(RemoteError::CouldNotAsk(why))) => return Err(why),
            Some(Err(_)) => return Ok(()),
            Some(Ok(())) if last => return Ok(()),
            // It has ended unexpectedly: try again after a pause.
            Some(Ok(())) => tokio::select! {
                () = tokio::time::sleep(RETRY_AFTER) => {}
                () = task.over.cancelled() => {}
                () = task.detached.cancelled() => return Ok(()),
            },
            None => {}
        }
    }
}

#[async_trait]
impl Driver for PlainRemote {
    fn info(&self) -> PluginInfo {
        self.remote.info()
    }

    fn attach(&self, context: Context) {
        self.remote.attach(context);
    }

    fn config_schema(&self) -> Option<Spec> {
        self.remote.config_schema()
    }

    async fn set_config(&self, config: Config, agent: Option<AgentConfig>) -> Result<(), Error> {
        self.remote.set_config(config, agent).await
    }

    async fn init(&self) -> Result<(), Error> {
        self.remote.init().await
    }

    fn task_config_schema(&self) -> Spec {
        self.remote.task_config_schema()
    }

    fn capabilities(&self) -> Capabilities {
        // The logs are copied into files: a FIFO would lose its only writer with this process.
        Capabilities { remote_tasks: true, disable_log_collection: true, ..self.remote.capabilities() }
    }

    async fn fingerprint(&self) -> Fingerprint {
        self.remote.fingerprint().await
    }

    fn fingerprint_interval(&self) -> Duration {
        self.remote.fingerprint_interval()
    }

    async fn start_task(&self, task: TaskConfig) -> Result<Started, Error> {
        if self.tasks().contains_key(&task.id) {
            return Err(Error::failed(format!("task {} is already managed here", task.id)));
        }
        // New at each start and repeated only with the same start: an idempotency key.
        let key = task.id.replace('/', "-");
        let ensure = Ensure {
            key: key.clone(),
            epoch: 1,
            owner: OWNER.into(),
            slot: format!("{}/{}.{}/{}", task.namespace, task.job_id, task.task_group_name, task.name),
            task: task.clone(),
            bundle: Default::default(),
            // The host may repeat a start after a lost answer.
            first: false,
            intent: Vec::new(),
        };
        self.observer.create_turn().await.map_err(error)?;
        let mut ensured = self.remote.ensure(ensure).await.map_err(error)?;
        // Hosts of this protocol take the answer for the beginning of the task.
        let asked = Instant::now();
        while ensured.observed.state == InstanceState::Creating && asked.elapsed() < START_PATIENCE {
            tokio::time::sleep(START_LOOK).await;
            match self.observer.observe(vec![ensured.handle.clone()]).await.map(|mut seen| seen.pop()) {
                Ok(Some(seen)) if seen.state != InstanceState::Unknown => ensured.observed = seen,
                _ => break,
            }
        }
        let state = StateV1 { key: key.clone(), schema: ensured.handle.schema, data: ensured.handle.data.clone() };
        let started = state.started()?;
        let network = network(&ensured.observed);
        self.manage(&task, key, ensured.handle, ensured.observed.epoch, Logs::FromStart)?;
        Ok(Started { network, ..started })
    }

    async fn recover_task(&self, task: TaskHandle) -> Result<(), Error> {
        let config = task.config.clone().unwrap_or_default();
        if self.tasks().contains_key(&config.id) {
            return Ok(());
        }
        let state = StateV1::recover(&task)?;
        let handle = RemoteHandle { schema: state.schema, data: state.data };
        let seen = self.observer.observe(vec![handle.clone()]).await.map_err(error)?;
        match seen.into_iter().next() {
            Some(seen) if seen.state == InstanceState::Gone => Err(Error::TaskNotFound),
            Some(seen) => self.manage(&config, state.key, handle, seen.epoch, Logs::FromNow),
            None => Err(Error::recoverable("the driver answered without an observation")),
        }
    }

    async fn wait_task(&self, id: &str) -> Result<TaskExit, Error> {
        let task = self.task(id)?;
        tokio::select! {
            exit = self.end(&task) => exit,
            () = task.detached.cancelled() => Ok(TaskExit::default()),
            () = task.destroyed.cancelled() => Err(Error::TaskNotFound),
        }
    }

    async fn stop_task(&self, id: &str, stop: StopTask) -> Result<(), Error> {
        let task = self.task(id)?;
        if stop.signal == DETACH_SIGNAL {
            task.detached.cancel();
            return Ok(());
        }
        match self.remote.stop(&task.handle, task.epoch, stop).await {
            Ok(_) | Err(RemoteError::Gone(_)) => Ok(()),
            Err(other) => Err(error(other)),
        }
    }

    async fn destroy_task(&self, id: &str, force: bool) -> Result<(), Error> {
        let Ok(task) = self.task(id) else {
            return Ok(());
        };
        if !task.detached.is_cancelled() {
            let seen = self.observe(&task).await.map_err(error)?;
            let over = ended(&seen).is_some();
            if !over && !force {
                return Err(Error::failed("cannot destroy running task; stop it first or use force"));
            }
            if !over {
                let now = StopTask { signal: "SIGKILL".into(), timeout: Duration::ZERO };
                self.stop_task(id, now).await?;
            }
            // The provider may forget the log with the instance.
            task.over.cancel();
            let copying = std::mem::take(&mut *task.copying.lock().unwrap_or_else(PoisonError::into_inner));
            if tokio::time::timeout(LAST_LINES, futures::future::join_all(copying)).await.is_err() {
                tracing::warn!(task = task.id, "the last lines of the task's log could not be read in time");
            }
            match self.remote.acknowledge(&task.handle, task.epoch).await {
                Ok(()) | Err(RemoteError::Gone(_)) => {}
                Err(other) => return Err(error(other)),
            }
        }
        task.destroyed.cancel();
        self.tasks().remove(id);
        Ok(())
    }

    async fn inspect_task(&self, id: &str) -> Result<Inspection, Error> {
        let task = self.task(id)?;
        let seen = self.observe(&task).await.map_err(error)?;
        let status = match seen.state {
            InstanceState::Unknown => TaskStatus::Unknown,
            InstanceState::Creating | InstanceState::Running => TaskStatus::Running,
            InstanceState::Exited | InstanceState::Gone => TaskStatus::Exited,
        };
        let mut attributes = seen.attributes.clone();
        attributes.insert("remote.key".into(), task.key.clone());
        attributes.insert("remote.provider_id".into(), seen.provider_id.clone());
        Ok(Inspection {
            id: task.id.clone(),
            name: task.name.clone(),
            status,
            started_at: seen.started_at,
            completed_at: seen.finished_at,
            exit: ended(&seen),
            attributes,
            network: network(&seen),
        })
    }

    async fn task_stats(&self, id: &str) -> Result<Option<TaskUsage>, Error> {
        let task = self.task(id)?;
        match self.remote.stats(&task.handle).await {
            Ok(usage) => Ok(usage),
            // A missing sample does not end the stream.
            Err(RemoteError::CouldNotAsk(_)) => Ok(Some(TaskUsage::default())),
            Err(other) => Err(error(other)),
        }
    }

    async fn signal_task(&self, id: &str, signal: &str) -> Result<(), Error> {
        let task = self.task(id)?;
        self.remote.signal(&task.handle, task.epoch, signal).await.map_err(error)
    }

    async fn exec_task(&self, id: &str, command: Vec<String>, timeout: Duration) -> Result<ExecOutput, Error> {
        let task = self.task(id)?;
        if !self.remote.describe().exec {
            return Err(Error::unsupported("exec"));
        }
        let run = exec::collect(|io| self.remote.exec(&task.handle, task.epoch, command, false, io));
        let (exit, stdout, stderr) = tokio::time::timeout(timeout, run)
            .await
            .map_err(|_| Error::failed(format!("the command did not end within {timeout:?} and was ended")))?;
        Ok(ExecOutput { stdout, stderr, exit: exit.map_err(error)? })
    }

    async fn exec_streaming(&self, id: &str, command: Vec<String>, tty: bool, io: ExecIo) -> Result<TaskExit, Error> {
        let task = self.task(id)?;
        self.remote.exec(&task.handle, task.epoch, command, tty, io).await.map_err(error)
    }

    async fn shutdown(&self) {
        self.remote.shutdown().await;
    }
}

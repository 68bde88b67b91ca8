//! A remote driver as a plain one: handle, RecoverTask and `DETACH`, for hosts that do not know the remote extension.
//!
//! ```text
//! start ── ensure(key = task id) ──▶ managed ── exited / gone ──▶ ended ── destroy ──▶ acknowledged, forgotten
//! recover ── observe ──────────────▶ managed ── stop ───────────▶ ended
//!                                    managed ── DETACH ─────────▶ detached ── destroy ──▶ forgotten, instance untouched
//! ```

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tokio::io::AsyncWriteExt;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::exec::ExecIo;
use crate::remote::{Ensure, InstanceState, LogStream, LogsQuery, Observation, RemoteHandle};
use crate::schema::Spec;
use crate::types::{
    AgentConfig, Capabilities, Fingerprint, Inspection, NetworkOverride, PluginInfo, Started, StopTask, TaskExit, TaskStatus, TaskUsage,
};
use crate::{Context, DETACH_SIGNAL, Driver, DriverState, Error, RemoteDriver, RemoteError, TaskConfig, TaskHandle, handle};

/// Hosts of the plain protocol have no cluster identity to offer.
const OWNER: &str = "plain-driver-protocol";
const RETRY_AFTER: Duration = Duration::from_secs(2);

/// What RecoverTask needs.
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

/// One task under management here.
#[derive(Debug)]
struct Managed {
    id: String,
    name: String,
    key: String,
    handle: RemoteHandle,
    epoch: u64,
    /// The instance goes on without us.
    detached: CancellationToken,
    /// The host has forgotten the task.
    destroyed: CancellationToken,
}

/// The adapter.
pub(crate) struct PlainRemote {
    remote: Arc<dyn RemoteDriver>,
    tasks: Mutex<HashMap<String, Arc<Managed>>>,
}

fn error(error: RemoteError) -> Error {
    match error {
        RemoteError::CouldNotAsk(_) => Error::Recoverable(error.to_string()),
        RemoteError::WrongRequest(_) => Error::Invalid(error.to_string()),
        RemoteError::Gone(_) | RemoteError::Sealed(_) | RemoteError::StaleEpoch { .. } => Error::Failed(error.to_string()),
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
    pub(crate) fn new(remote: Arc<dyn RemoteDriver>) -> Self {
        Self { remote, tasks: Mutex::default() }
    }

    fn tasks(&self) -> std::sync::MutexGuard<'_, HashMap<String, Arc<Managed>>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn task(&self, id: &str) -> Result<Arc<Managed>, Error> {
        self.tasks().get(id).cloned().ok_or(Error::TaskNotFound)
    }

    fn manage(&self, task: &TaskConfig, key: String, handle: RemoteHandle, epoch: u64, from_end: bool) {
        let managed = Arc::new(Managed {
            id: task.id.clone(),
            name: task.name.clone(),
            key,
            handle,
            epoch: epoch.max(1),
            detached: CancellationToken::new(),
            destroyed: CancellationToken::new(),
        });
        self.tasks().insert(task.id.clone(), managed.clone());
        if self.remote.describe().logs {
            for (stream, path) in [(LogStream::Stdout, &task.stdout_path), (LogStream::Stderr, &task.stderr_path)] {
                if !path.is_empty() && path != "/dev/null" {
                    tokio::spawn(copy_log(self.remote.clone(), managed.clone(), stream, path.clone(), from_end));
                }
            }
        }
    }

    async fn observe(&self, task: &Managed) -> Result<Observation, RemoteError> {
        let seen = self.remote.observe(std::slice::from_ref(&task.handle)).await?;
        seen.into_iter().next().ok_or_else(|| RemoteError::could_not_ask("the driver answered without an observation"))
    }

    /// Until the instance has ended; what cannot be asked is asked again.
    async fn end(&self, task: &Managed) -> Result<TaskExit, Error> {
        loop {
            let (sink, mut pushed) = mpsc::channel(16);
            let watching = self.remote.watch(vec![task.handle.clone()], sink);
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
                    // What was pushed before the stream ended still counts.
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

/// Follows one log into the file that the host reads.
async fn copy_log(remote: Arc<dyn RemoteDriver>, task: Arc<Managed>, stream: LogStream, path: String, from_end: bool) {
    // Opening a fifo waits for its reader; tokio does that on its blocking threads.
    let mut options = tokio::fs::OpenOptions::new();
    let opened = options.append(true).open(&path);
    let mut file = tokio::select! {
        file = opened => match file {
            Ok(file) => file,
            Err(error) => return tracing::warn!(path, %error, "cannot open the task's log"),
        },
        () = task.detached.cancelled() => return,
        () = task.destroyed.cancelled() => return,
    };
    let (mut offset, mut from_end) = (0, from_end);
    let copy = async {
        loop {
            let (sink, mut chunks) = mpsc::channel(16);
            let query = LogsQuery { stream, offset, follow: true, from_end };
            let reading = remote.logs(&task.handle, query, sink);
            let writing = async {
                while let Some(chunk) = chunks.recv().await {
                    (offset, from_end) = (chunk.offset + chunk.data.len() as u64, false);
                    file.write_all(&chunk.data).await?;
                    file.flush().await?;
                }
                std::io::Result::Ok(())
            };
            match tokio::join!(reading, writing) {
                (Err(RemoteError::CouldNotAsk(_)), Ok(())) => tokio::time::sleep(RETRY_AFTER).await,
                _ => return,
            }
        }
    };
    tokio::select! {
        () = copy => {}
        () = task.detached.cancelled() => {}
        () = task.destroyed.cancelled() => {}
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
        Capabilities { remote_tasks: true, ..self.remote.capabilities() }
    }

    async fn fingerprint(&self) -> Fingerprint {
        self.remote.fingerprint().await
    }

    fn fingerprint_interval(&self) -> Duration {
        self.remote.fingerprint_interval()
    }

    async fn start_task(&self, task: TaskConfig) -> Result<Started, Error> {
        // Fresh per start and repeated only when the same start is repeated: an idempotency key.
        let key = task.id.replace('/', "-");
        let ensure = Ensure {
            key: key.clone(),
            epoch: 1,
            owner: OWNER.into(),
            slot: format!("{}/{}.{}/{}", task.namespace, task.job_id, task.task_group_name, task.name),
            task: task.clone(),
            bundle: Default::default(),
        };
        let ensured = self.remote.ensure(ensure).await.map_err(error)?;
        let state = StateV1 { key: key.clone(), schema: ensured.handle.schema, data: ensured.handle.data.clone() };
        let started = state.started()?;
        let network = network(&ensured.observed);
        self.manage(&task, key, ensured.handle, ensured.observed.epoch, false);
        Ok(Started { network, ..started })
    }

    async fn recover_task(&self, task: TaskHandle) -> Result<(), Error> {
        let config = task.config.clone().unwrap_or_default();
        if self.tasks().contains_key(&config.id) {
            return Ok(());
        }
        let state = StateV1::recover(&task)?;
        let handle = RemoteHandle { schema: state.schema, data: state.data };
        let seen = self.remote.observe(std::slice::from_ref(&handle)).await.map_err(error)?;
        match seen.into_iter().next() {
            Some(seen) if seen.state == InstanceState::Gone => Err(Error::failed("the provider says that the instance is gone")),
            Some(seen) => {
                self.manage(&config, state.key, handle, seen.epoch, true);
                Ok(())
            }
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
            // A missing sample is no reason to end the stream.
            Err(RemoteError::CouldNotAsk(_)) => Ok(Some(TaskUsage::default())),
            Err(other) => Err(error(other)),
        }
    }

    async fn signal_task(&self, id: &str, signal: &str) -> Result<(), Error> {
        let task = self.task(id)?;
        self.remote.signal(&task.handle, task.epoch, signal).await.map_err(error)
    }

    async fn exec_streaming(&self, id: &str, command: Vec<String>, tty: bool, io: ExecIo) -> Result<TaskExit, Error> {
        let task = self.task(id)?;
        self.remote.exec(&task.handle, task.epoch, command, tty, io).await.map_err(error)
    }

    async fn shutdown(&self) {
        self.remote.shutdown().await;
    }
}

//! The remote driver trait over the runtime's directories.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use driver_sdk::config::Config;
use driver_sdk::schema::Spec;
use driver_sdk::{
    AgentConfig, Description, Ensure, Ensured, Error, Fingerprint, Instance, InstanceState, LogChunk, LogStream, LogsQuery, Observation,
    ObservationSink, Page, PluginInfo, RemoteDriver, RemoteError, RemoteHandle, StopTask, TaskExit, TaskUsage, async_trait, handle,
};
use executor_client::{Executor, ExitResult, Meter, signal_number};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use crate::config::{PluginConfig, TaskOptions};
use crate::runtime::{Intent, Place, Runtime, answer, owned};
use crate::usage::{core_mhz, usage};

/// Layout of [`HandleV1`].
const SCHEMA: u32 = 1;
const DEFAULT_STOP_SIGNAL: &str = "SIGINT";
/// Bytes of a log that travel at once.
const CHUNK: usize = 64 * 1024;
/// When to look again at an instance that could not be asked while it is watched.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// How long a seal waits for a start that is being decided.
const DECIDED_WITHIN: Duration = Duration::from_secs(20);

/// The token that finds an instance again.
#[derive(Debug, Serialize, Deserialize)]
struct HandleV1 {
    provider: String,
    key: String,
}

/// A connection to a running instance, kept so that observing costs no connecting.
#[derive(Clone)]
struct Known {
    executor: Executor,
    meter: Arc<Meter>,
}

/// The driver `remote_exec`.
#[derive(Default)]
pub struct Driver {
    config: Mutex<PluginConfig>,
    runtime: Mutex<Option<Runtime>>,
    known: Mutex<HashMap<String, Known>>,
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

impl Driver {
    /// A driver without a runtime; `set_config` names it.
    pub fn new() -> Driver {
        Driver::default()
    }

    fn runtime(&self) -> Result<Runtime, RemoteError> {
        lock(&self.runtime)
            .clone()
            .ok_or_else(|| RemoteError::could_not_ask("no runtime is configured on this node; set `root` in the plugin's configuration"))
    }

    fn handle(&self, runtime: &Runtime, key: &str) -> Result<RemoteHandle, RemoteError> {
        let handle = HandleV1 { provider: runtime.provider(), key: key.to_owned() };
        let data = handle::encode(&handle).map_err(RemoteError::wrong_request)?;
        Ok(RemoteHandle { schema: SCHEMA, data })
    }

    /// The runtime and key of a handle. One of another runtime can be asked for nothing here.
    fn resolve(&self, handle: &RemoteHandle) -> Result<(Runtime, String), RemoteError> {
        if handle.schema != SCHEMA {
            return Err(RemoteError::wrong_request(format!(
                "the handle has schema {}, this driver knows {SCHEMA}; use the driver release that wrote it or a newer one",
                handle.schema
            )));
        }
        let HandleV1 { provider, key } = handle::decode(&handle.data).map_err(RemoteError::wrong_request)?;
        let runtime = self.runtime()?;
        if provider != runtime.provider() {
            return Err(RemoteError::could_not_ask(format!("the instance lives in {provider}, this node reaches {}", runtime.provider())));
        }
        Ok((runtime, key))
    }

    /// The executor of an instance; `None` when it was never started.
    async fn executor(&self, key: &str, place: &Place) -> Result<Option<Known>, RemoteError> {
        let known = lock(&self.known).get(key).cloned();
        match known {
            Some(known) if known.executor.is_stale() => {
                lock(&self.known).remove(key);
            }
            Some(known) => return Ok(Some(known)),
            None => {}
        }
        match Executor::attach(&place.state_dir()).await {
            Ok(executor) => Ok(Some(self.remember(key, executor))),
            Err(executor_client::Error::Absent { .. }) => Ok(None),
            Err(e) => Err(answer(e)),
        }
    }

    fn remember(&self, key: &str, executor: Executor) -> Known {
        let known = Known { executor, meter: Arc::default() };
        lock(&self.known).entry(key.to_owned()).or_insert(known).clone()
    }

    fn running(&self, known: Option<Known>) -> Result<Known, RemoteError> {
        known.ok_or_else(|| RemoteError::wrong_request("the instance has not been started yet"))
    }

    async fn look(&self, runtime: &Runtime, key: &str) -> Result<Observation, RemoteError> {
        let (place, _) = match runtime.find(key) {
            Err(RemoteError::Gone(_)) => {
                lock(&self.known).remove(key);
                return Ok(Observation { key: key.to_owned(), state: InstanceState::Gone, ..Observation::default() });
            }
            other => other?,
        };
        let known = self.executor(key, &place).await?;
        observation(key, known.as_ref().map(|k| &k.executor))
    }

    /// Waits until something about the instance changes, then says what.
    async fn change(&self, runtime: Runtime, key: String, last: Observation) -> Observation {
        loop {
            let known = lock(&self.known).get(&key).cloned();
            match known.filter(|known| last.state == InstanceState::Running && known.executor.ended().is_none()) {
                Some(known) => drop(known.executor.wait().await),
                // Ended ones only disappear, unclear ones have nobody who would tell.
                None => tokio::time::sleep(ASK_AGAIN).await,
            }
            let now = self.look(&runtime, &key).await.unwrap_or_else(|e| Observation::unknown(&key, e));
            if now != last {
                return now;
            }
        }
    }
}

fn observation(key: &str, executor: Option<&Executor>) -> Result<Observation, RemoteError> {
    let mut seen = Observation { key: key.to_owned(), state: InstanceState::Creating, ..Observation::default() };
    let Some(executor) = executor else {
        return Ok(seen);
    };
    seen.epoch = executor.accepted_epoch().map_err(answer)?;
    seen.started_at = Some(time(executor.started_at_ns()));
    if executor.pid() > 0 {
        seen.provider_id = format!("pid {}", executor.pid());
        seen.attributes.insert("pid".into(), executor.pid().to_string());
        seen.attributes.insert("executor_pid".into(), executor.executor_pid().to_string());
    }
    match executor.look().map_err(answer)? {
        Some(result) => {
            seen.state = InstanceState::Exited;
            seen.exit = task_exit(&result);
            seen.reason = result.reason.clone();
            seen.finished_at = Some(time(result.finished_at_ns));
        }
        None => seen.state = InstanceState::Running,
    }
    Ok(seen)
}

#[async_trait]
impl RemoteDriver for Driver {
    fn info(&self) -> PluginInfo {
        PluginInfo::new("remote_exec", env!("CARGO_PKG_VERSION"))
    }

    fn config_schema(&self) -> Option<Spec> {
        Some(PluginConfig::schema())
    }

    async fn set_config(&self, config: Config, agent: Option<AgentConfig>) -> Result<(), Error> {
        let config: PluginConfig = config.decode()?;
        config.validate()?;
        // Without a node the configuration is only being checked, which must leave nothing behind.
        if let (Some(root), Some(_)) = (&config.root, &agent) {
            let runtime = Runtime::open(root).map_err(Error::failed)?;
            *lock(&self.runtime) = Some(runtime);
        }
        *lock(&self.config) = config;
        Ok(())
    }

    fn task_config_schema(&self) -> Spec {
        TaskOptions::schema()
    }

    async fn fingerprint(&self) -> Fingerprint {
        match self.runtime().and_then(|runtime| runtime.keys().map(|keys| (runtime, keys))) {
            Ok((runtime, _)) => Fingerprint::healthy().with("driver.remote_exec.provider", runtime.provider()),
            Err(e) if lock(&self.runtime).is_some() => Fingerprint::unhealthy(e.to_string()),
            Err(e) => Fingerprint::undetected(e.to_string()),
        }
    }

    fn describe(&self) -> Description {
        let config = lock(&self.config).clone();
        Description {
            provider: lock(&self.runtime).as_ref().map(Runtime::provider).unwrap_or_default(),
            keyed_create: true,
            find: true,
            list: true,
            conditional_writes: true,
            seal: true,
            retained_exit_results: true,
            logs: true,
            exec: false,
            signals: true,
            stats: true,
            file_upload: true,
            watch: true,
            handle_schema_min: SCHEMA,
            handle_schema_max: SCHEMA,
            pool_cpu_mhz: config.pool_cpu_mhz,
            pool_memory_mib: config.pool_memory_mib,
        }
    }

    async fn ensure(&self, request: Ensure) -> Result<Ensured, RemoteError> {
        let runtime = self.runtime()?;
        let (_, launched) = runtime.ensure(&request).await?;
        let known = self.remember(&request.key, launched.executor);
        Ok(Ensured {
            handle: self.handle(&runtime, &request.key)?,
            observed: observation(&request.key, Some(&known.executor))?,
            created: launched.created,
        })
    }

    async fn find(&self, key: &str, owner: &str) -> Result<(RemoteHandle, Observation), RemoteError> {
        let runtime = self.runtime()?;
        let (_, intent) = runtime.find(key)?;
        owned(&intent, owner)?;
        let seen = self.look(&runtime, key).await?;
        match seen.state {
            InstanceState::Gone => Err(RemoteError::gone(format!("instance {key} has just been acknowledged"))),
            _ => Ok((self.handle(&runtime, key)?, seen)),
        }
    }

    async fn list(&self, owner: &str, page_token: &str, page_size: usize) -> Result<Page, RemoteError> {
        let runtime = self.runtime()?;
        let mut page = Page::default();
        for key in runtime.keys()?.into_iter().filter(|key| key.as_str() > page_token) {
            let intent: Intent = match runtime.find(&key) {
                Ok((_, intent)) => intent,
                // Just being made or just acknowledged.
                Err(RemoteError::Gone(_)) => continue,
                Err(e) => return Err(e),
            };
            if intent.owner != owner {
                continue;
            }
            if page.instances.len() == page_size.max(1) {
                page.next_page_token = page.instances.last().map(|i| i.key.clone()).unwrap_or_default();
                break;
            }
            let observed = self.look(&runtime, &key).await.unwrap_or_else(|e| Observation::unknown(&key, e));
            page.instances.push(Instance {
                handle: self.handle(&runtime, &key)?,
                epoch: observed.epoch,
                key,
                owner: intent.owner,
                slot: intent.slot,
                observed,
            });
        }
        Ok(page)
    }

    async fn observe(&self, handles: &[RemoteHandle]) -> Result<Vec<Observation>, RemoteError> {
        let mut seen = Vec::with_capacity(handles.len());
        for handle in handles {
            seen.push(match self.resolve(handle) {
                Ok((runtime, key)) => self.look(&runtime, &key).await.unwrap_or_else(|e| Observation::unknown(&key, e)),
                Err(e) => {
                    let key = handle::decode::<HandleV1>(&handle.data).map(|h| h.key).unwrap_or_default();
                    Observation::unknown(key, e)
                }
            });
        }
        Ok(seen)
    }

    async fn watch(&self, handles: Vec<RemoteHandle>, sink: ObservationSink) -> Result<(), RemoteError> {
        let first = self.observe(&handles).await?;
        let mut changes = FuturesUnordered::new();
        for (handle, seen) in handles.iter().zip(first) {
            if let Ok((runtime, key)) = self.resolve(handle) {
                changes.push(self.change(runtime, key, seen.clone()));
            }
            if sink.send(seen).await.is_err() {
                return Ok(());
            }
        }
        loop {
            tokio::select! {
                Some(seen) = changes.next() => {
                    if seen.state != InstanceState::Gone {
                        changes.push(self.change(self.runtime()?, seen.key.clone(), seen.clone()));
                    }
                    if sink.send(seen).await.is_err() {
                        return Ok(());
                    }
                }
                () = sink.closed() => return Ok(()),
            }
        }
    }

    async fn stop(&self, handle: &RemoteHandle, epoch: u64, stop: StopTask) -> Result<Observation, RemoteError> {
        let (runtime, key) = self.resolve(handle)?;
        let (place, _) = match runtime.find(&key) {
            Err(RemoteError::Gone(_)) => return self.look(&runtime, &key).await,
            other => other?,
        };
        let name = if stop.signal.is_empty() { DEFAULT_STOP_SIGNAL } else { &stop.signal };
        let signal = signal_number(name)
            .ok_or_else(|| RemoteError::wrong_request(format!("{name:?} is not the name of a signal; use one such as SIGTERM")))?;
        let mut known = self.executor(&key, &place).await?;
        if known.is_none() {
            // An intent without a start: from now on it cannot be started any more.
            let reason = "stopped before it was started";
            executor_client::retire(&place.state_dir(), Some(epoch), reason).map_err(answer)?;
            known = self.executor(&key, &place).await?;
        }
        let known = self.running(known)?;
        known.executor.at_epoch(epoch).stop(signal, stop.timeout).await.map_err(answer)?;
        self.look(&runtime, &key).await
    }

    async fn seal(&self, key: &str, epoch: u64, owner: &str) -> Result<Option<(RemoteHandle, Observation)>, RemoteError> {
        let runtime = self.runtime()?;
        match runtime.find(key) {
            Ok((_, intent)) => owned(&intent, owner)?,
            Err(RemoteError::Gone(_)) => {}
            Err(e) => return Err(e),
        }
        let place = runtime.reserve(key)?;
        let begun = Instant::now();
        // From here on either something has been started or nothing can be.
        let known = loop {
            if let Some(known) = self.executor(key, &place).await? {
                break known;
            }
            let decided = executor_client::retire(&place.state_dir(), Some(epoch), "sealed before it was started").map_err(answer)?;
            if decided.is_none() {
                // A start holds the lock. When it fails it leaves nothing behind, which is not yet a decision.
                if begun.elapsed() > DECIDED_WITHIN {
                    return Err(RemoteError::could_not_ask(format!(
                        "instance {key} is being started for {DECIDED_WITHIN:?}; seal it again"
                    )));
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        known.executor.at_epoch(epoch).claim().await.map_err(answer)?;
        match runtime.find(key) {
            Ok((_, intent)) => owned(&intent, owner)?,
            Err(RemoteError::Gone(_)) => {
                lock(&self.known).remove(key);
                return runtime.retire(&place, epoch).map(|()| None);
            }
            Err(e) => return Err(e),
        }
        let seen = self.look(&runtime, key).await?;
        match seen.state {
            InstanceState::Gone => Ok(None),
            _ => Ok(Some((self.handle(&runtime, key)?, seen))),
        }
    }

    async fn acknowledge(&self, handle: &RemoteHandle, epoch: u64) -> Result<(), RemoteError> {
        let (runtime, key) = self.resolve(handle)?;
        let (place, _) = match runtime.find(&key) {
            Err(RemoteError::Gone(_)) => return runtime.finish_retirement(&key),
            other => other?,
        };
        let executor = match self.executor(&key, &place).await? {
            Some(known) if known.executor.look().map_err(answer)?.is_some() => known.executor,
            _ => {
                return Err(RemoteError::wrong_request(format!("instance {key} has not ended; stop it before its result is acknowledged")));
            }
        };
        executor.at_epoch(epoch).claim().await.map_err(answer)?;
        lock(&self.known).remove(&key);
        runtime.retire(&place, epoch)
    }

    async fn logs(&self, handle: &RemoteHandle, query: LogsQuery, sink: mpsc::Sender<LogChunk>) -> Result<(), RemoteError> {
        let (runtime, key) = self.resolve(handle)?;
        let (place, intent) = runtime.find(&key)?;
        let stream = match query.stream {
            LogStream::Stdout => "stdout",
            LogStream::Stderr => "stderr",
        };
        let log = place.log(&format!("{}.{stream}", intent.task_name));
        let unclear = |e: std::io::Error| RemoteError::could_not_ask(format!("read the log in {}: {e}", log.dir().display()));
        if !log.dir().exists() {
            // Not started yet, or gone since.
            return runtime.find(&key).map(drop);
        }
        let offset = match query.from_end {
            true => log.end().map_err(unclear)?.saturating_sub(query.offset),
            false => query.offset,
        };
        let mut reader = executor_client::Follow::new(log.clone(), offset).map_err(unclear)?;
        loop {
            let chunk = match reader.available(CHUNK).map_err(unclear)? {
                Some(chunk) => chunk,
                None if !query.follow => return Ok(()),
                None => tokio::select! {
                    chunk = reader.next(CHUNK) => chunk.map_err(unclear)?,
                    () = sink.closed() => return Ok(()),
                },
            };
            let chunk = LogChunk { offset: chunk.offset, data: chunk.data, file: chunk.file };
            if sink.send(chunk).await.is_err() {
                return Ok(());
            }
        }
    }

    async fn signal(&self, handle: &RemoteHandle, epoch: u64, signal: &str) -> Result<(), RemoteError> {
        let (runtime, key) = self.resolve(handle)?;
        let (place, _) = runtime.find(&key)?;
        let number = signal_number(signal)
            .ok_or_else(|| RemoteError::wrong_request(format!("{signal:?} is not the name of a signal; use one such as SIGHUP")))?;
        let known = self.running(self.executor(&key, &place).await?)?;
        match known.executor.at_epoch(epoch).signal(number).await {
            Err(e @ executor_client::Error::NotRunning { .. }) => Err(RemoteError::wrong_request(e)),
            other => other.map_err(answer),
        }
    }

    async fn stats(&self, handle: &RemoteHandle) -> Result<Option<TaskUsage>, RemoteError> {
        let (runtime, key) = self.resolve(handle)?;
        let (place, _) = runtime.find(&key)?;
        let Some(known) = self.executor(&key, &place).await? else {
            return Ok(None);
        };
        match known.executor.stats().await {
            Ok(stats) => Ok(Some(usage(&stats, &known.meter, core_mhz()))),
            Err(executor_client::Error::NotRunning { .. }) => Ok(None),
            Err(e) => Err(answer(e)),
        }
    }
}

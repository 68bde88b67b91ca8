//! The remote driver over [`Provider`].

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use driver_sdk::config::Config;
use driver_sdk::schema::Spec;
use driver_sdk::{
    AgentConfig, Description, DriverConfig, DriverState, Ensure, Ensured, Error, Fingerprint, Instance, InstanceState, LogChunk, LogStream,
    LogsQuery, Observation, Page, PluginInfo, RemoteDriver, RemoteError, RemoteHandle, StopTask, async_trait,
};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use crate::options::{RemoteOptions, RemoteTaskOptions};
use crate::provider::{Locked, Provider, Record, Stop, millis};

const CHUNK_MAX: usize = 32 << 10;
/// How often a stop or a log looks whether something has changed.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// What finds an instance again.
#[derive(Debug, Deserialize, Serialize)]
struct StateV1 {
    key: String,
}

impl DriverState for StateV1 {
    const VERSION: u16 = 1;
}

#[derive(Debug, Clone)]
struct Opened {
    provider: Provider,
    id: String,
    options: RemoteOptions,
}

/// The driver.
#[derive(Debug, Default)]
pub struct MockRemote {
    opened: Mutex<Option<Opened>>,
}

fn now_ms() -> u64 {
    millis(SystemTime::now())
}

fn wire_handle(key: &str) -> Result<RemoteHandle, RemoteError> {
    StateV1 { key: key.to_owned() }.remote_handle()
}

fn key_of(handle: &RemoteHandle) -> Result<String, RemoteError> {
    StateV1::from_remote_handle(handle).map(|state| state.key)
}

/// Keys are file names here.
fn check_key(key: &str) -> Result<(), RemoteError> {
    let fits =
        key.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c)) && !key.starts_with('.') && (1..=200).contains(&key.len());
    if fits { Ok(()) } else { Err(RemoteError::wrong_request(format!("the key {key:?} cannot be a name here"))) }
}

/// A mutation with this epoch; newer ones are remembered.
fn accept(record: &mut Record, epoch: u64) -> Result<(), RemoteError> {
    if epoch < record.epoch {
        return Err(RemoteError::StaleEpoch { given: epoch, accepted: record.epoch });
    }
    record.epoch = epoch;
    Ok(())
}

fn known(locked: &Locked<'_>, key: &str) -> Result<Record, RemoteError> {
    locked.get(key)?.ok_or_else(|| RemoteError::gone(format!("there is no instance with the key {key:?}")))
}

/// Files block, and so does the lock.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, RemoteError> + Send + 'static) -> Result<T, RemoteError> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(RemoteError::could_not_ask(error)))
}

impl MockRemote {
    fn opened(&self) -> Result<Opened, RemoteError> {
        let opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner).clone();
        opened.ok_or_else(|| RemoteError::could_not_ask("the driver has no configuration; set `dir` in its plugin block"))
    }

    /// One call of the provider, with what goes wrong on the way.
    async fn call<T: Send + 'static>(
        &self,
        name: &str,
        work: impl FnOnce(&Provider) -> Result<T, RemoteError> + Send + 'static,
    ) -> Result<T, RemoteError> {
        let Opened { provider, options, .. } = self.opened()?;
        let asked = provider.clone();
        let faults = options.faults.and(blocking(move || asked.faults()).await?);
        tokio::time::sleep(faults.latency).await;
        if faults.fail.iter().any(|fault| fault == name) {
            return Err(RemoteError::could_not_ask(format!("{name} is asked to fail")));
        }
        let answer = blocking(move || work(&provider)).await;
        if faults.lose.iter().any(|fault| fault == name) {
            return Err(RemoteError::could_not_ask(format!("the answer of {name} is asked to be lost")));
        }
        answer
    }

    async fn change(
        &self,
        name: &str,
        handle: &RemoteHandle,
        epoch: u64,
        change: impl FnOnce(&mut Record) -> Result<(), RemoteError> + Send + 'static,
    ) -> Result<Observation, RemoteError> {
        let key = key_of(handle)?;
        let work = move |provider: &Provider| {
            let locked = provider.lock()?;
            let mut record = known(&locked, &key)?;
            accept(&mut record, epoch)?;
            change(&mut record)?;
            locked.put(&record)?;
            record.at(now_ms())
        };
        self.call(name, work).await
    }
}

fn observe_one(locked: &Locked<'_>, handle: &RemoteHandle) -> Observation {
    let seen = || {
        let key = key_of(handle)?;
        Ok(match locked.get(&key)? {
            Some(record) => record.at(now_ms())?,
            None => Observation { key, state: InstanceState::Gone, ..Observation::default() },
        })
    };
    seen().unwrap_or_else(|error: RemoteError| Observation::unknown("", error))
}

#[async_trait]
impl RemoteDriver for MockRemote {
    fn info(&self) -> PluginInfo {
        PluginInfo::new("mock_remote", env!("CARGO_PKG_VERSION"))
    }

    fn config_schema(&self) -> Option<Spec> {
        Some(RemoteOptions::schema())
    }

    async fn set_config(&self, config: Config, _agent: Option<AgentConfig>) -> Result<(), Error> {
        let options = RemoteOptions::decode(&config)?;
        options.faults.validate()?;
        if !options.dir.is_absolute() {
            return Err(Error::invalid(format!("dir {:?} is not an absolute path; every node must see the same directory", options.dir)));
        }
        let dir = options.dir.clone();
        let (provider, id) = blocking(move || Provider::open(&dir)).await.map_err(Error::failed)?;
        *self.opened.lock().unwrap_or_else(PoisonError::into_inner) = Some(Opened { provider, id, options });
        Ok(())
    }

    fn task_config_schema(&self) -> Spec {
        RemoteTaskOptions::schema()
    }

    async fn fingerprint(&self) -> Fingerprint {
        match self.opened() {
            Ok(opened) => Fingerprint::healthy().with("driver.mock_remote.provider", opened.id),
            Err(error) => Fingerprint::undetected(error.to_string()),
        }
    }

    fn describe(&self) -> Description {
        let Ok(Opened { id, options, .. }) = self.opened() else {
            return Description::default();
        };
        Description {
            provider: id,
            keyed_create: true,
            find: true,
            list: true,
            conditional_writes: true,
            seal: true,
            retained_exit_results: true,
            logs: true,
            signals: true,
            handle_schema_min: StateV1::VERSION.into(),
            handle_schema_max: StateV1::VERSION.into(),
            pool_cpu_mhz: options.pool_cpu_mhz,
            pool_memory_mib: options.pool_memory_mib,
            ..Description::default()
        }
    }

    async fn ensure(&self, request: Ensure) -> Result<Ensured, RemoteError> {
        check_key(&request.key)?;
        let options = RemoteTaskOptions::decode(&request.task.msgpack_driver_config).map_err(RemoteError::wrong_request)?;
        request.bundle.verify()?;
        if !request.bundle.files.is_empty() {
            return Err(RemoteError::wrong_request("instances of the mock have no files; the job must not have any"));
        }
        let work = move |provider: &Provider| {
            let locked = provider.lock()?;
            let (record, created) = match locked.get(&request.key)? {
                Some(mut record) => {
                    accept(&mut record, request.epoch)?;
                    (record, false)
                }
                None if locked.is_sealed(&request.key) => {
                    return Err(RemoteError::sealed(format!("nothing is created with the key {:?}", request.key)));
                }
                None if !options.start_error.is_empty() => return Err(RemoteError::wrong_request(options.start_error)),
                None => {
                    let record = Record {
                        key: request.key,
                        owner: request.owner,
                        slot: request.slot,
                        epoch: request.epoch,
                        created_ms: now_ms(),
                        config: request.task.msgpack_driver_config,
                        stop: None,
                        signals: Vec::new(),
                    };
                    (record, true)
                }
            };
            locked.put(&record)?;
            Ok(Ensured { handle: wire_handle(&record.key)?, observed: record.at(now_ms())?, created })
        };
        self.call("ensure", work).await
    }

    async fn find(&self, key: &str, _owner: &str) -> Result<(RemoteHandle, Observation), RemoteError> {
        check_key(key)?;
        let key = key.to_owned();
        let work = move |provider: &Provider| {
            let record = known(&provider.lock()?, &key)?;
            Ok((wire_handle(&key)?, record.at(now_ms())?))
        };
        self.call("find", work).await
    }

    async fn list(&self, owner: &str, page_token: &str, page_size: usize) -> Result<Page, RemoteError> {
        let (owner, after) = (owner.to_owned(), page_token.to_owned());
        let work = move |provider: &Provider| {
            let locked = provider.lock()?;
            let mut page = Page::default();
            for key in locked.keys()?.into_iter().filter(|key| *key > after) {
                let Some(record) = locked.get(&key)?.filter(|record| record.owner == owner) else { continue };
                if page.instances.len() == page_size.max(1) {
                    page.next_page_token = page.instances.last().map(|last| last.key.clone()).unwrap_or_default();
                    break;
                }
                page.instances.push(Instance {
                    handle: wire_handle(&key)?,
                    observed: record.at(now_ms())?,
                    key: record.key,
                    owner: record.owner,
                    slot: record.slot,
                    epoch: record.epoch,
                });
            }
            Ok(page)
        };
        self.call("list", work).await
    }

    async fn observe(&self, handles: &[RemoteHandle]) -> Result<Vec<Observation>, RemoteError> {
        let handles = handles.to_vec();
        let work = move |provider: &Provider| {
            let locked = provider.lock()?;
            Ok(handles.iter().map(|handle| observe_one(&locked, handle)).collect())
        };
        self.call("observe", work).await
    }

    fn watch_interval(&self) -> Duration {
        LOOK_EVERY
    }

    async fn stop(&self, handle: &RemoteHandle, epoch: u64, stop: StopTask) -> Result<Observation, RemoteError> {
        let order = move |record: &mut Record| {
            let kill_after = record.options()?.kill_after;
            let at_ms = now_ms().saturating_add(kill_after.min(stop.timeout).as_millis().try_into().unwrap_or(u64::MAX));
            let new = Stop { at_ms, killed: kill_after > stop.timeout };
            // A second order may only hasten the end.
            if record.stop.is_none_or(|old| new.at_ms < old.at_ms) {
                record.stop = Some(new);
            }
            Ok(())
        };
        let mut seen = self.change("stop", handle, epoch, order).await?;
        while seen.state != InstanceState::Exited {
            tokio::time::sleep(LOOK_EVERY).await;
            seen = self.change("stop", handle, epoch, |_| Ok(())).await?;
        }
        Ok(seen)
    }

    async fn seal(&self, key: &str, epoch: u64, _owner: &str) -> Result<Option<(RemoteHandle, Observation)>, RemoteError> {
        check_key(key)?;
        let key = key.to_owned();
        let work = move |provider: &Provider| {
            let locked = provider.lock()?;
            let Some(mut record) = locked.get(&key)? else {
                locked.seal(&key)?;
                return Ok(None);
            };
            accept(&mut record, epoch)?;
            locked.put(&record)?;
            locked.seal(&key)?;
            Ok(Some((wire_handle(&key)?, record.at(now_ms())?)))
        };
        self.call("seal", work).await
    }

    async fn acknowledge(&self, handle: &RemoteHandle, epoch: u64) -> Result<(), RemoteError> {
        let key = key_of(handle)?;
        let work = move |provider: &Provider| {
            let locked = provider.lock()?;
            let Some(mut record) = locked.get(&key)? else { return Ok(()) };
            accept(&mut record, epoch)?;
            if record.at(now_ms())?.state != InstanceState::Exited {
                return Err(RemoteError::wrong_request(format!("the instance {key:?} runs; stop it first")));
            }
            locked.seal(&key)?;
            locked.remove(&key)
        };
        self.call("acknowledge", work).await
    }

    async fn logs(&self, handle: &RemoteHandle, query: LogsQuery, sink: mpsc::Sender<LogChunk>) -> Result<(), RemoteError> {
        let key = key_of(handle)?;
        let stream = query.stream;
        let file = match stream {
            LogStream::Stderr => "stderr.0",
            LogStream::Stdout => "stdout.0",
        };
        let mut offset = query.offset;
        let mut from_end = query.from_end;
        loop {
            let key = key.clone();
            let work = move |provider: &Provider| {
                let record = known(&provider.lock()?, &key)?;
                let start = if from_end { record.log_length(stream, now_ms())?.saturating_sub(offset) } else { offset };
                Ok((start, record.log(stream, now_ms(), start, CHUNK_MAX)?))
            };
            let (start, (data, more)) = self.call("logs", work).await?;
            (offset, from_end) = (start + data.len() as u64, false);
            let full = data.len() == CHUNK_MAX;
            if !data.is_empty() && sink.send(LogChunk { offset: start, data, file: file.into() }).await.is_err() {
                return Ok(());
            }
            if full {
                continue;
            }
            if query.follow && !more && offset == 0 && stream == LogStream::Stderr {
                // Nothing is ever written there; a follower waits in vain.
                sink.closed().await;
                return Ok(());
            }
            if !query.follow || !more {
                return Ok(());
            }
            tokio::select! {
                () = tokio::time::sleep(LOOK_EVERY) => {}
                () = sink.closed() => return Ok(()),
            }
        }
    }

    async fn signal(&self, handle: &RemoteHandle, epoch: u64, signal: &str) -> Result<(), RemoteError> {
        let signal = signal.to_owned();
        let note = move |record: &mut Record| {
            record.signals.push(signal);
            Ok(())
        };
        self.change("signal", handle, epoch, note).await.map(drop)
    }
}

//! The remote driver over [`Provider`].

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use driver_sdk::config::Config;
use driver_sdk::schema::Spec;
use driver_sdk::{
    AgentConfig, Bundle, Description, DriverConfig, DriverState, Ensure, Ensured, Error, Fingerprint, Instance,
    InstanceState, LogChunk, LogStream, LogsQuery, Observation, Page, PluginInfo, RemoteDriver, RemoteError,
    RemoteHandle, StopTask, async_trait,
};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use crate::fake::{Outcome, RecordedCall};
use crate::options::{RemoteOptions, RemoteTaskOptions};
use crate::provider::{CALLS, Locked, Provider, Record, Stop, millis};

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
    let fits = key.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
        && !key.starts_with('.')
        && (1..=200).contains(&key.len());
    if fits { Ok(()) } else { Err(RemoteError::wrong_request(format!("the key {key:?} cannot be a name here"))) }
}

/// A mutation with this epoch; newer ones are remembered, older ones refused by a provider that can.
fn accept(record: &mut Record, epoch: u64, options: &RemoteOptions) -> Result<(), RemoteError> {
    if epoch < record.epoch && options.has("conditional_writes") {
        return Err(RemoteError::StaleEpoch { given: epoch, accepted: record.epoch });
    }
    record.epoch = record.epoch.max(epoch);
    Ok(())
}

fn known(locked: &Locked<'_>, id: &str) -> Result<Record, RemoteError> {
    locked.get(id)?.ok_or_else(|| RemoteError::gone(format!("there is no instance {id:?}")))
}

/// How an instance looks to whoever asks this provider.
fn shown(record: &Record, options: &RemoteOptions) -> Result<Observation, RemoteError> {
    let seen = record.at(now_ms())?;
    if seen.state == InstanceState::Exited && !options.has("retained_exit_results") {
        return Ok(Observation { key: seen.key, state: InstanceState::Gone, ..Observation::default() });
    }
    Ok(seen)
}

/// What the operator has given it to show to the provider.
fn credentials(options: &RemoteOptions) -> Result<String, RemoteError> {
    let Some(file) = &options.credentials_file else { return Ok(options.credentials.clone()) };
    let text = std::fs::read_to_string(file)
        .map_err(|e| RemoteError::could_not_ask(format!("cannot read the credentials file {file:?}: {e}")))?;
    Ok(text.trim().to_owned())
}

/// Files block, and so does the lock.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, RemoteError> + Send + 'static,
) -> Result<T, RemoteError> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(RemoteError::could_not_ask(error)))
}

impl MockRemote {
    fn opened(&self) -> Result<Opened, RemoteError> {
        let opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner).clone();
        opened
            .ok_or_else(|| RemoteError::could_not_ask("the driver has no configuration; set `dir` in its plugin block"))
    }

    /// One call of the provider, with what goes wrong on the way.
    async fn call<T: Send + 'static>(
        &self,
        name: &'static str,
        about: About,
        work: impl FnOnce(&Provider, &RemoteOptions) -> Result<T, RemoteError> + Send + 'static,
    ) -> Result<T, RemoteError> {
        let Opened { provider, options, .. } = self.opened()?;
        let (asked, caller) = (provider.clone(), options.caller.clone());
        let faults = options.faults.clone().and(blocking(move || asked.faults(&caller)).await?);
        tokio::time::sleep(faults.latency).await;
        let hit = |list: &[String]| list.iter().any(|fault| fault == name);
        if faults.cut {
            return Err(RemoteError::could_not_ask(format!("cut off from the provider ({name})")));
        }
        if hit(&faults.fail) {
            return Err(RemoteError::could_not_ask(format!("{name} is asked to fail")));
        }
        if hit(&faults.hold) {
            held(&provider, &options, name, &about).await?;
        }
        let rate = faults.requests_per_second;
        let taken_in = move || {
            let (at_ms, within) = provider.take_in(rate)?;
            if !within {
                record(&provider, &options, at_ms, name, &about, Outcome::Throttled)?;
                return Err(RemoteError::could_not_ask(format!("throttled: more than {rate} requests a second")));
            }
            if !provider.admits(&credentials(&options)?)? {
                record(&provider, &options, at_ms, name, &about, Outcome::Denied)?;
                let what = "renew `credentials` or the file that `credentials_file` names";
                return Err(RemoteError::could_not_ask(format!(
                    "denied: the provider does not take this node's credentials; {what}"
                )));
            }
            let answer = work(&provider, &options);
            record(&provider, &options, at_ms, name, &about, Outcome::of(&answer))?;
            answer
        };
        if hit(&faults.late) {
            // Nobody waits for it any more; what it does, it does.
            tokio::spawn(async move {
                tokio::time::sleep(faults.late_by).await;
                if let Err(error) = blocking(taken_in).await {
                    tracing::info!(call = name, %error, "a late call was refused");
                }
            });
            return Err(RemoteError::could_not_ask(format!("{name} is asked to be late")));
        }
        let answer = blocking(taken_in).await;
        if hit(&faults.lose) {
            return Err(RemoteError::could_not_ask(format!("the answer of {name} is asked to be lost")));
        }
        answer
    }

    /// Looks at what a stop has been ordered for. Whoever was replaced meanwhile is told so.
    async fn wait(&self, handle: &RemoteHandle, epoch: u64) -> Result<Observation, RemoteError> {
        let id = key_of(handle)?;
        let about = About::one(&id, epoch);
        let work = move |provider: &Provider, options: &RemoteOptions| {
            let mut record = known(&provider.lock()?, &id)?;
            accept(&mut record, epoch, options)?;
            shown(&record, options)
        };
        self.call("observe", about, work).await
    }

    async fn change(
        &self,
        name: &'static str,
        handle: &RemoteHandle,
        epoch: u64,
        change: impl FnOnce(&Locked<'_>, &mut Record) -> Result<(), RemoteError> + Send + 'static,
    ) -> Result<Observation, RemoteError> {
        let id = key_of(handle)?;
        let about = About::one(&id, epoch);
        let work = move |provider: &Provider, options: &RemoteOptions| {
            let locked = provider.lock()?;
            let mut record = known(&locked, &id)?;
            accept(&mut record, epoch, options)?;
            change(&locked, &mut record)?;
            locked.put(&record)?;
            shown(&record, options)
        };
        self.call(name, about, work).await
    }
}

/// What a call is about, for the record.
#[derive(Debug, Clone, Default)]
struct About {
    instances: Vec<String>,
    epoch: u64,
}

impl About {
    fn one(instance: &str, epoch: u64) -> Self {
        Self { instances: vec![instance.to_owned()], epoch }
    }
}

fn record(
    provider: &Provider,
    options: &RemoteOptions,
    at_ms: u64,
    call: &str,
    about: &About,
    outcome: Outcome,
) -> Result<(), RemoteError> {
    if !options.record {
        return Ok(());
    }
    let caller = if options.caller.is_empty() { std::process::id().to_string() } else { options.caller.clone() };
    let About { instances, epoch } = about.clone();
    provider.note(CALLS, &RecordedCall { at_ms, caller, call: call.to_owned(), instances, epoch, outcome })
}

/// Returns when calls of that name are not held any more.
async fn held(
    provider: &Provider,
    options: &RemoteOptions,
    name: &'static str,
    about: &About,
) -> Result<(), RemoteError> {
    let (noted, own, whose) = (provider.clone(), options.clone(), about.clone());
    blocking(move || record(&noted, &own, now_ms(), name, &whose, Outcome::Held)).await?;
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let (asked, caller) = (provider.clone(), options.caller.clone());
        let faults = options.faults.clone().and(blocking(move || asked.faults(&caller)).await?);
        if !faults.hold.iter().any(|held| held == name) {
            return Ok(());
        }
    }
}

fn observe_one(locked: &Locked<'_>, handle: &RemoteHandle, options: &RemoteOptions) -> Observation {
    let seen = || {
        let id = key_of(handle)?;
        Ok(match locked.get(&id)? {
            Some(record) => shown(&record, options)?,
            None => Observation {
                key: id.split('~').next().unwrap_or(&id).to_owned(),
                state: InstanceState::Gone,
                ..Observation::default()
            },
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
        options.validate()?;
        if !options.dir.is_absolute() {
            return Err(Error::invalid(format!(
                "dir {:?} is not an absolute path; every node must see the same directory",
                options.dir
            )));
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
            keyed_create: options.has("keyed_create"),
            find: options.has("find"),
            list: options.has("list"),
            list_owners: options.has("list"),
            conditional_writes: options.has("conditional_writes"),
            seal: options.has("seal"),
            retained_exit_results: options.has("retained_exit_results"),
            logs: true,
            signals: true,
            file_upload: true,
            refresh: options.has("refresh"),
            handle_schema_min: StateV1::VERSION.into(),
            handle_schema_max: StateV1::VERSION.into(),
            pool_cpu_mhz: options.pool_cpu_mhz,
            pool_memory_mib: options.pool_memory_mib,
            ..Description::default()
        }
    }

    async fn intent(&self, request: &Ensure) -> Result<Option<Vec<u8>>, RemoteError> {
        // No two processes send the same by chance.
        let own = || format!("{} at {}", std::process::id(), now_ms()).into_bytes();
        Ok((self.opened()?.options.intents && request.intent.is_empty()).then(own))
    }

    async fn ensure(&self, request: Ensure) -> Result<Ensured, RemoteError> {
        check_key(&request.key)?;
        let options =
            RemoteTaskOptions::decode(&request.task.msgpack_driver_config).map_err(RemoteError::wrong_request)?;
        request.bundle.verify()?;
        let about = About::one(&request.key, request.epoch);
        let work = move |provider: &Provider, own: &RemoteOptions| {
            let locked = provider.lock()?;
            let (record, created) = match locked.get(&request.key)? {
                Some(record) if own.has("keyed_create") && own.intents && record.intent != request.intent => {
                    return Err(RemoteError::wrong_request(format!(
                        "the key {:?} was used with another request",
                        request.key
                    )));
                }
                Some(mut record) if own.has("keyed_create") => {
                    accept(&mut record, request.epoch, own)?;
                    (record, false)
                }
                _ if locked.is_sealed(&request.key) => {
                    return Err(RemoteError::sealed(format!("nothing is created with the key {:?}", request.key)));
                }
                _ if !options.start_error.is_empty() => return Err(RemoteError::wrong_request(options.start_error)),
                _ => {
                    let record = Record {
                        id: locked.another_id(&request.key)?,
                        key: request.key,
                        owner: request.owner,
                        slot: request.slot,
                        epoch: request.epoch,
                        created_ms: now_ms(),
                        config: request.task.msgpack_driver_config,
                        stop: None,
                        signals: Vec::new(),
                        intent: request.intent,
                    };
                    locked.deliver(&record.id, &request.bundle.files)?;
                    (record, true)
                }
            };
            locked.put(&record)?;
            Ok(Ensured { handle: wire_handle(&record.id)?, observed: shown(&record, own)?, created })
        };
        self.call("ensure", about, work).await
    }

    async fn find(&self, key: &str, _owner: &str) -> Result<(RemoteHandle, Observation), RemoteError> {
        check_key(key)?;
        if !self.opened()?.options.has("find") {
            return Err(RemoteError::wrong_request("this provider finds nothing by key"));
        }
        let key = key.to_owned();
        let about = About::one(&key, 0);
        let work = move |provider: &Provider, options: &RemoteOptions| {
            let record = provider.lock()?.by_key(&key, options.has("keyed_create"))?;
            let record =
                record.ok_or_else(|| RemoteError::gone(format!("there is no instance with the key {key:?}")))?;
            Ok((wire_handle(&record.id)?, shown(&record, options)?))
        };
        self.call("find", about, work).await
    }

    async fn list(&self, owner: &str, page_token: &str, page_size: usize) -> Result<Page, RemoteError> {
        if !self.opened()?.options.has("list") {
            return Err(RemoteError::wrong_request("this provider lists nothing"));
        }
        let (owner, after) = (owner.to_owned(), page_token.to_owned());
        let work = move |provider: &Provider, options: &RemoteOptions| {
            let locked = provider.lock()?;
            let (mut page, mut last) = (Page::default(), String::new());
            for id in locked.ids()?.into_iter().filter(|id| *id > after) {
                let Some(record) = locked.get(&id)?.filter(|record| owner.is_empty() || record.owner == owner) else {
                    continue;
                };
                if page.instances.len() == page_size.max(1) {
                    page.next_page_token = last;
                    break;
                }
                last.clone_from(&record.id);
                page.instances.push(Instance {
                    handle: wire_handle(&record.id)?,
                    observed: shown(&record, options)?,
                    key: record.key,
                    owner: record.owner,
                    slot: record.slot,
                    epoch: record.epoch,
                });
            }
            Ok(page)
        };
        self.call("list", About::default(), work).await
    }

    async fn observe(&self, handles: &[RemoteHandle]) -> Result<Vec<Observation>, RemoteError> {
        let handles = handles.to_vec();
        let about = About { instances: handles.iter().filter_map(|handle| key_of(handle).ok()).collect(), epoch: 0 };
        let work = move |provider: &Provider, options: &RemoteOptions| {
            let locked = provider.lock()?;
            Ok(handles.iter().map(|handle| observe_one(&locked, handle, options)).collect())
        };
        self.call("observe", about, work).await
    }

    fn watch_interval(&self) -> Duration {
        self.opened().map_or(LOOK_EVERY, |opened| opened.options.watch_interval)
    }

    fn watch_patience(&self) -> Duration {
        self.opened().map_or(LOOK_EVERY, |opened| opened.options.watch_patience)
    }

    async fn stop(&self, handle: &RemoteHandle, epoch: u64, stop: StopTask) -> Result<Observation, RemoteError> {
        let order = move |_: &Locked<'_>, record: &mut Record| {
            let kill_after = record.options()?.kill_after;
            let at_ms =
                now_ms().saturating_add(kill_after.min(stop.timeout).as_millis().try_into().unwrap_or(u64::MAX));
            let new = Stop { at_ms, killed: kill_after > stop.timeout };
            // A second order may only hasten the end.
            if record.stop.is_none_or(|old| new.at_ms < old.at_ms) {
                record.stop = Some(new);
            }
            Ok(())
        };
        let mut seen = self.change("stop", handle, epoch, order).await?;
        while !matches!(seen.state, InstanceState::Exited | InstanceState::Gone) {
            tokio::time::sleep(LOOK_EVERY).await;
            seen = self.wait(handle, epoch).await?;
        }
        Ok(seen)
    }

    async fn seal(
        &self,
        key: &str,
        epoch: u64,
        _owner: &str,
        intent: &[u8],
    ) -> Result<Option<(RemoteHandle, Observation)>, RemoteError> {
        check_key(key)?;
        if !self.opened()?.options.has("seal") {
            return Err(RemoteError::wrong_request("this provider seals no keys"));
        }
        let (key, intent) = (key.to_owned(), intent.to_owned());
        let about = About::one(&key, epoch);
        let work = move |provider: &Provider, options: &RemoteOptions| {
            let locked = provider.lock()?;
            let Some(mut record) = locked.by_key(&key, options.has("keyed_create"))? else {
                locked.seal(&key)?;
                return Ok(None);
            };
            if options.intents && record.intent != intent {
                // As where the create went to a place that only the intent tells.
                return Err(RemoteError::could_not_ask(format!("the key {key:?} was used with another request")));
            }
            accept(&mut record, epoch, options)?;
            locked.put(&record)?;
            locked.seal(&key)?;
            Ok(Some((wire_handle(&record.id)?, shown(&record, options)?)))
        };
        self.call("seal", about, work).await
    }

    async fn acknowledge(&self, handle: &RemoteHandle, epoch: u64) -> Result<(), RemoteError> {
        let id = key_of(handle)?;
        let about = About::one(&id, epoch);
        let work = move |provider: &Provider, options: &RemoteOptions| {
            let locked = provider.lock()?;
            let Some(mut record) = locked.get(&id)? else { return Ok(()) };
            accept(&mut record, epoch, options)?;
            if record.at(now_ms())?.state != InstanceState::Exited {
                return Err(RemoteError::wrong_request(format!("the instance {id:?} runs; stop it first")));
            }
            if options.has("seal") {
                locked.seal(&record.key)?;
            }
            locked.remove(&record)
        };
        self.call("acknowledge", about, work).await
    }

    async fn logs(
        &self,
        handle: &RemoteHandle,
        query: LogsQuery,
        sink: mpsc::Sender<LogChunk>,
    ) -> Result<(), RemoteError> {
        let key = key_of(handle)?;
        let about = key.clone();
        let stream = query.stream;
        let file = match stream {
            LogStream::Stderr => "stderr.0",
            LogStream::Stdout => "stdout.0",
        };
        let mut offset = query.offset;
        let mut from_end = query.from_end;
        loop {
            let key = key.clone();
            let work = move |provider: &Provider, _: &RemoteOptions| {
                let record = known(&provider.lock()?, &key)?;
                let start = if from_end { record.log_length(stream, now_ms())?.saturating_sub(offset) } else { offset };
                Ok((start, record.log(stream, now_ms(), start, CHUNK_MAX)?))
            };
            let (start, (data, more)) = self.call("logs", About::one(&about, 0), work).await?;
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
        let note = move |_: &Locked<'_>, record: &mut Record| {
            record.signals.push(signal);
            Ok(())
        };
        self.change("signal", handle, epoch, note).await.map(drop)
    }

    async fn refresh(&self, handle: &RemoteHandle, epoch: u64, bundle: Bundle) -> Result<(), RemoteError> {
        if !self.opened()?.options.has("refresh") {
            return Err(RemoteError::wrong_request("this provider renews no files"));
        }
        let renew = move |locked: &Locked<'_>, record: &mut Record| {
            if record.at(now_ms())?.state == InstanceState::Exited {
                return Err(RemoteError::wrong_request(format!("the instance {:?} has ended", record.id)));
            }
            locked.deliver(&record.id, &bundle.files)
        };
        self.change("refresh", handle, epoch, renew).await.map(drop)
    }
}

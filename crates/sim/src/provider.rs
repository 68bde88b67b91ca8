//! The provider: instances that outlive every node, and the driver through which each node reaches them.
//!
//! It creates by key, finds, lists, seals, keeps exit results and refuses stale epochs. It is judged here that a slot
//! never has two instances, and that none is stopped or created that nobody asked for.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use driver_sdk::{
    Description, Ensure, Ensured, Fingerprint, Instance, InstanceState, Observation, Page, PluginInfo, RemoteDriver,
    RemoteError, RemoteHandle, StopTask, TaskExit, async_trait,
    schema::{Spec, object, string},
};
use model::SlotKey;

use crate::{agents::Lease, history::History, machine::mix, wanted::Wanted};

/// An instance.
#[derive(Clone, Debug)]
struct Record {
    key: String,
    owner: String,
    slot: SlotKey,
    revision: u32,
    epoch: u64,
    /// None = it lives.
    exit: Option<i32>,
}

/// What the provider does to one caller, or to all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Trouble {
    /// It answers nothing.
    pub(crate) out: bool,
    /// It does what it is asked and the answer is lost.
    pub(crate) deaf: bool,
    /// Calls arrive late, by so many seconds.
    pub(crate) late: u64,
    /// One of so many calls is refused for being too many; 0 = none.
    pub(crate) throttle: u64,
}

#[derive(Debug, Default)]
struct Inner {
    instances: BTreeMap<String, Record>,
    sealed: BTreeSet<String>,
    drawn: u64,
    trouble: BTreeMap<usize, Trouble>,
    slow_stops: Duration,
}

/// The provider.
#[derive(Debug)]
pub(crate) struct Provider {
    inner: Mutex<Inner>,
    history: Arc<History>,
    wanted: Arc<Wanted>,
}

/// A live instance, as the checks see it.
#[derive(Clone, Debug)]
pub(crate) struct Live {
    pub(crate) key: String,
    pub(crate) slot: SlotKey,
    pub(crate) revision: u32,
}

impl Provider {
    pub(crate) fn new(seed: u64, history: Arc<History>, wanted: Arc<Wanted>) -> Arc<Self> {
        let inner = Inner { drawn: mix(seed ^ 0x70), ..Inner::default() };
        Arc::new(Self { inner: Mutex::new(inner), history, wanted })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the trouble of one caller.
    pub(crate) fn trouble(&self, caller: usize, change: impl FnOnce(&mut Trouble)) {
        change(self.lock().trouble.entry(caller).or_default());
    }

    /// How long an instance takes to stop.
    pub(crate) fn set_slow_stops(&self, slow: Duration) {
        self.lock().slow_stops = slow;
    }

    /// The live instances.
    pub(crate) fn live(&self) -> Vec<Live> {
        let live =
            |record: &Record| Live { key: record.key.clone(), slot: record.slot.clone(), revision: record.revision };
        self.lock().instances.values().filter(|record| record.exit.is_none()).map(live).collect()
    }

    /// The nth live instance ends by itself.
    pub(crate) fn exits(&self, nth: usize, code: i32) {
        let mut inner = self.lock();
        let mut live: Vec<&mut Record> = inner.instances.values_mut().filter(|r| r.exit.is_none()).collect();
        let count = live.len();
        if let Some(record) = live.get_mut(nth % count.max(1)) {
            record.exit = Some(code);
            self.history.note(format!("{} {} exits with {code}", record.slot, short(&record.key)));
        }
    }

    fn draw(&self, below: u64) -> u64 {
        let mut inner = self.lock();
        inner.drawn = mix(inner.drawn);
        inner.drawn % below.max(1)
    }
}

fn short(key: &str) -> &str {
    key.get(..8).unwrap_or(key)
}

/// The driver of one agent.
#[derive(Clone)]
pub(crate) struct Far {
    pub(crate) provider: Arc<Provider>,
    pub(crate) caller: usize,
    /// The agent was killed: nothing leaves it any more.
    pub(crate) killed: Arc<AtomicBool>,
    pub(crate) lease: Lease,
}

impl Far {
    fn trouble(&self) -> Trouble {
        self.provider.lock().trouble.get(&self.caller).copied().unwrap_or_default()
    }

    /// One call that changes something: sent with a lease, or never.
    async fn mutate<T>(
        &self,
        name: &'static str,
        work: impl FnOnce(&Provider, &mut Inner) -> Result<T, RemoteError>,
    ) -> Result<T, RemoteError> {
        if !self.killed.load(Ordering::Relaxed) && self.lease.held() == Some(false) {
            self.provider.history.violated(format!("I3: node {} sends a {name} without a lease", self.caller));
        }
        self.call(name, work).await
    }

    /// One call over there: what is on its way when the agent is killed may arrive or not.
    async fn call<T>(
        &self,
        name: &'static str,
        work: impl FnOnce(&Provider, &mut Inner) -> Result<T, RemoteError>,
    ) -> Result<T, RemoteError> {
        let dead = || self.killed.load(Ordering::Relaxed);
        if dead() {
            return std::future::pending().await;
        }
        let trouble = self.trouble();
        if trouble.throttle > 0 && self.provider.draw(trouble.throttle) == 0 {
            return Err(RemoteError::could_not_ask("too many requests"));
        }
        if trouble.out {
            tokio::time::sleep(Duration::from_millis(100 + self.provider.draw(4_900))).await;
            return Err(RemoteError::could_not_ask("no answer"));
        }
        tokio::time::sleep(Duration::from_micros(500 + self.provider.draw(30_000))).await;
        tokio::time::sleep(Duration::from_secs(trouble.late)).await;
        if dead() && self.provider.draw(2) == 0 {
            return std::future::pending().await;
        }
        let done = work(&self.provider, &mut self.provider.lock());
        if trouble.deaf {
            self.provider.history.note(format!("node {}: the answer to {name} is lost", self.caller));
            return Err(RemoteError::could_not_ask("the connection broke before the answer"));
        }
        tokio::time::sleep(Duration::from_micros(500 + self.provider.draw(10_000))).await;
        if dead() { std::future::pending().await } else { done }
    }
}

fn accept(record: &mut Record, epoch: u64) -> Result<(), RemoteError> {
    if epoch < record.epoch {
        return Err(RemoteError::StaleEpoch { given: epoch, accepted: record.epoch });
    }
    record.epoch = epoch;
    Ok(())
}

fn key_of(handle: &RemoteHandle) -> String {
    String::from_utf8_lossy(&handle.data).into_owned()
}

fn handle_of(record: &Record) -> RemoteHandle {
    RemoteHandle { schema: 1, data: record.key.clone().into_bytes() }
}

fn shown(record: &Record) -> Observation {
    Observation {
        key: record.key.clone(),
        state: if record.exit.is_some() { InstanceState::Exited } else { InstanceState::Running },
        exit: TaskExit { exit_code: record.exit.unwrap_or(0), ..TaskExit::default() },
        provider_id: record.key.clone(),
        epoch: record.epoch,
        ..Observation::default()
    }
}

fn known<'a>(inner: &'a mut Inner, key: &str) -> Result<&'a mut Record, RemoteError> {
    inner.instances.get_mut(key).ok_or_else(|| RemoteError::gone(format!("there is no instance {key:?}")))
}

#[async_trait]
impl RemoteDriver for Far {
    fn info(&self) -> PluginInfo {
        PluginInfo::new("far", "1.0.0")
    }

    fn task_config_schema(&self) -> Spec {
        object([("image", string())])
    }

    async fn fingerprint(&self) -> Fingerprint {
        Fingerprint::healthy()
    }

    fn fingerprint_interval(&self) -> Duration {
        Duration::from_secs(600)
    }

    fn describe(&self) -> Description {
        Description {
            provider: "far-1".into(),
            keyed_create: true,
            find: true,
            list: true,
            conditional_writes: true,
            seal: true,
            retained_exit_results: true,
            handle_schema_min: 1,
            handle_schema_max: 1,
            ..Description::default()
        }
    }

    fn watch_interval(&self) -> Duration {
        Duration::from_secs(2)
    }

    async fn ensure(&self, request: Ensure) -> Result<Ensured, RemoteError> {
        let caller = self.caller;
        self.mutate("ensure", move |provider, inner| {
            if let Some(record) = inner.instances.get_mut(&request.key) {
                accept(record, request.epoch)?;
                return Ok(Ensured { handle: handle_of(record), observed: shown(record), created: false });
            }
            if inner.sealed.contains(&request.key) {
                return Err(RemoteError::Sealed(format!("nothing is created with the key {:?}", request.key)));
            }
            let slot: SlotKey = request.slot.parse().map_err(RemoteError::wrong_request)?;
            let revision = request.task.env.get("REVISION").and_then(|r| r.parse().ok()).unwrap_or(0);
            let (key, epoch) = (request.key.clone(), request.epoch);
            let what = format!("{slot} {} revision {revision}", short(&key));
            provider.history.note(format!("node {caller} creates {what} with epoch {epoch}"));
            for other in inner.instances.values().filter(|other| other.exit.is_none() && other.slot == slot) {
                let why = format!("I1: {what} is created while {} of this slot lives", short(&other.key));
                provider.history.violated(why);
            }
            if !provider.wanted.perhaps(&slot, revision) {
                // It was asked for when the create was sent; its end must follow. Told, and judged by its end.
                provider.history.note(format!("{what} is not asked for any more"));
            }
            let record = Record { key: key.clone(), owner: request.owner.clone(), slot, revision, epoch, exit: None };
            let ensured = Ensured { handle: handle_of(&record), observed: shown(&record), created: true };
            inner.instances.insert(key, record);
            Ok(ensured)
        })
        .await
    }

    async fn find(&self, key: &str, _owner: &str) -> Result<(RemoteHandle, Observation), RemoteError> {
        let key = key.to_owned();
        self.call("find", move |_, inner| known(inner, &key).map(|record| (handle_of(record), shown(record)))).await
    }

    async fn list(&self, owner: &str, _page_token: &str, _page_size: usize) -> Result<Page, RemoteError> {
        let owner = owner.to_owned();
        let instance = |record: &Record| Instance {
            key: record.key.clone(),
            owner: record.owner.clone(),
            slot: record.slot.to_string(),
            epoch: record.epoch,
            handle: handle_of(record),
            observed: shown(record),
        };
        self.call("list", move |_, inner| {
            let instances = inner.instances.values().filter(|record| record.owner == owner).map(instance).collect();
            Ok(Page { instances, ..Page::default() })
        })
        .await
    }

    async fn observe(&self, handles: &[RemoteHandle]) -> Result<Vec<Observation>, RemoteError> {
        let keys: Vec<String> = handles.iter().map(key_of).collect();
        self.call("observe", move |_, inner| {
            let seen = |key: &String| match inner.instances.get(key) {
                Some(record) => shown(record),
                None => Observation { key: key.clone(), state: InstanceState::Gone, ..Observation::default() },
            };
            Ok(keys.iter().map(seen).collect())
        })
        .await
    }

    async fn stop(&self, handle: &RemoteHandle, epoch: u64, _stop: StopTask) -> Result<Observation, RemoteError> {
        let (key, caller) = (key_of(handle), self.caller);
        let asked = key.clone();
        let slow = self
            .mutate("stop", move |provider, inner| {
                let slow = inner.slow_stops;
                let record = known(inner, &asked)?;
                accept(record, epoch)?;
                if record.exit.is_some() {
                    return Ok(None);
                }
                let what = format!("{} {} revision {}", record.slot, short(&record.key), record.revision);
                provider.history.note(format!("node {caller} stops {what} with epoch {epoch}"));
                if provider.wanted.surely(&record.slot, record.revision) {
                    provider.history.violated(format!("I4: {what} is stopped, and everybody wants it"));
                }
                if slow.is_zero() {
                    record.exit = Some(143);
                    return Ok(None);
                }
                Ok(Some(slow))
            })
            .await?;
        if let Some(slow) = slow {
            // Over there it goes on without the caller.
            let (provider, ending) = (self.provider.clone(), key.clone());
            let ended = tokio::spawn(async move {
                tokio::time::sleep(slow).await;
                if let Ok(record) = known(&mut provider.lock(), &ending) {
                    record.exit.get_or_insert(143);
                }
            });
            let _ = ended.await;
        }
        self.call("stop", move |_, inner| known(inner, &key).map(|record| shown(record))).await
    }

    async fn seal(
        &self,
        key: &str,
        epoch: u64,
        _owner: &str,
        _intent: &[u8],
    ) -> Result<Option<(RemoteHandle, Observation)>, RemoteError> {
        let key = key.to_owned();
        self.mutate("seal", move |provider, inner| {
            provider.history.note(format!("{} is sealed", short(&key)));
            inner.sealed.insert(key.clone());
            let Some(record) = inner.instances.get_mut(&key) else { return Ok(None) };
            accept(record, epoch)?;
            Ok(Some((handle_of(record), shown(record))))
        })
        .await
    }

    async fn acknowledge(&self, handle: &RemoteHandle, epoch: u64) -> Result<(), RemoteError> {
        let key = key_of(handle);
        self.mutate("acknowledge", move |provider, inner| {
            let Ok(record) = known(inner, &key) else { return Ok(()) };
            accept(record, epoch)?;
            if record.exit.is_none() {
                return Err(RemoteError::wrong_request("the instance runs"));
            }
            provider.history.note(format!("{} {} is forgotten", record.slot, short(&key)));
            inner.instances.remove(&key);
            inner.sealed.insert(key);
            Ok(())
        })
        .await
    }
}

//! The driver `docker_remote`: tasks as containers of an engine that is not the node's, and that outlive the node.
//!
//! The container's name is made of the key, so the engine itself refuses a second instance. Labels say whose it is. An
//! exit stays with the container until it is acknowledged. What the engine cannot keep with a container is kept in
//! marks (`marks.rs`).

mod bundle;
mod doctor;
mod ensure;
mod follow;
mod marks;
mod names;
mod pulse;
mod read;
mod unseen;
mod volumes;
mod whereabouts;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use driver_sdk::config::Config;
use driver_sdk::exec::ExecIo;
use driver_sdk::schema::Spec;
use driver_sdk::{
    AgentConfig, Context, Description, DriverConfig, Ensure, Ensured, Error, Finding, Fingerprint, Instance,
    InstanceState, LogChunk, LogsQuery, Lookup, Observation, ObservationSink, Page, PluginInfo, RemoteError,
    RemoteHandle, StopTask, TaskUsage, async_trait, handle,
};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use crate::config::PluginConfig;
use crate::create::Place;
use crate::engine::types::{Container, Info, Listed, time};
use crate::engine::{Engine, filters};
use crate::exec;
use crate::local::{lock, start, task_exit};
use crate::options::TaskOptions;
use crate::stats::{self, Meter};
use crate::watch::{self, Monitor, inspect};
use marks::Marks;
use names::{
    LABEL_EPOCH, LABEL_KEY, LABEL_OWNER, LABEL_PORTS, LABEL_SLOT, answer, container_path, driver_error, object_name,
    owned,
};
use pulse::Pulse;

/// Layout of [`HandleV1`].
const SCHEMA: u32 = 1;
const SWEEP_EVERY: Duration = Duration::from_secs(3600);
/// After an event an engine's listings show the former state for about as long as a container takes to be put away.
const LISTING_SETTLES: Duration = Duration::from_secs(2);

/// The token that finds an instance again.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
struct HandleV1 {
    /// Identity that the engine tells of itself: an empty engine at the same address is another one.
    engine: String,
    key: String,
    container: String,
}

/// An engine and what belongs to it.
struct Site {
    engine: Arc<Engine>,
    plugin: PluginConfig,
    monitor: Monitor,
    pulse: Pulse,
    _sweeper: Sweeper,
}

struct Sweeper(tokio::task::JoinHandle<()>);

impl Drop for Sweeper {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// What does not change while a container is in one state.
#[derive(Clone)]
struct Seen {
    state: String,
    observation: Observation,
}

/// The driver `docker_remote`.
#[derive(Default)]
pub struct RemoteDriver {
    context: Arc<OnceLock<Context>>,
    config: Mutex<PluginConfig>,
    site: Mutex<Option<Arc<Site>>>,
    /// Identity of the engine, until the connection to it breaks.
    identity: Arc<Mutex<Option<String>>>,
    seen: Mutex<HashMap<String, Seen>>,
    meters: Mutex<HashMap<String, Arc<Meter>>>,
    places: read::Places,
    met: std::sync::atomic::AtomicBool,
}

fn gone(key: &str) -> Observation {
    Observation { key: key.to_owned(), state: InstanceState::Gone, ..Observation::default() }
}

/// What a container says about its instance.
fn observation(key: &str, seen: &Container, address: &str) -> Observation {
    let state = match seen.state.status.as_str() {
        "created" => InstanceState::Creating,
        _ if watch::has_ended(seen) => InstanceState::Exited,
        _ => InstanceState::Running,
    };
    let ended = state == InstanceState::Exited;
    let exit = if ended { task_exit(seen) } else { Default::default() };
    let inside: BTreeMap<String, u16> =
        seen.config.labels.get(LABEL_PORTS).and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    let published = |port: u16| {
        let bindings = seen.network_settings.ports.get(&format!("{port}/tcp")).cloned().flatten().unwrap_or_default();
        bindings.first().and_then(|b| b.host_port.parse::<i32>().ok()).unwrap_or(i32::from(port))
    };
    let attributes = [
        ("container_id", seen.id.as_str()),
        ("image_id", seen.image.as_str()),
        ("network_mode", seen.host_config.network_mode.as_str()),
    ];
    Observation {
        key: key.to_owned(),
        state,
        // Whoever manages what is being created tries to start it until that succeeds, and so finds out when the
        // operator has ended what ran.
        reason: if state == InstanceState::Creating && unseen::runs_unseen(&seen.state.error) {
            unseen::explain(&seen.id)
        } else {
            exit.error.clone().unwrap_or_default()
        },
        exit,
        started_at: time(&seen.state.started_at),
        finished_at: time(&seen.state.finished_at).filter(|_| ended),
        provider_id: seen.id.clone(),
        address: address.to_owned(),
        port_map: inside.into_iter().map(|(label, port)| (label, published(port))).collect(),
        attributes: attributes.map(|(k, v)| (k.to_owned(), v.to_owned())).into(),
        epoch: seen.config.labels.get(LABEL_EPOCH).and_then(|e| e.parse().ok()).unwrap_or(0),
    }
}

fn with_marks(mut seen: Observation, marks: Option<&Marks>) -> Observation {
    seen.epoch = seen.epoch.max(marks.map_or(0, |m| m.epoch));
    seen
}

/// Somebody else has told the engine to start this container by itself: we make all of them with `no`.
fn starts_by_itself(seen: &Container) -> bool {
    !matches!(seen.host_config.restart_policy.name.as_str(), "" | "no")
}

/// From now on the engine starts the container when it is told to, and never when it is started itself.
async fn keep_down(engine: &Engine, seen: &Container) -> Result<(), RemoteError> {
    if !starts_by_itself(seen) {
        return Ok(());
    }
    tracing::warn!(
        container = seen.id,
        policy = seen.host_config.restart_policy.name,
        "somebody has given the container a restart policy; it is taken away"
    );
    let body = serde_json::json!({"RestartPolicy": {"Name": "no"}});
    let path = format!("{}/update", container_path(&seen.id));
    engine
        .post::<serde_json::Value>("take its restart policy from the container", &path, &body)
        .await
        .map(drop)
        .map_err(answer)
}

/// Identity of the runtime as all nodes see it.
fn provider(config: &PluginConfig) -> String {
    match (config.provider.as_str(), config.endpoint()) {
        ("", Ok(endpoint)) => format!("docker/{endpoint}"),
        ("", Err(_)) => String::new(),
        (name, _) => format!("docker/{name}"),
    }
}

impl RemoteDriver {
    /// A driver without an engine; `set_config` names it.
    pub fn new() -> RemoteDriver {
        RemoteDriver::default()
    }

    fn site(&self) -> Result<Arc<Site>, RemoteError> {
        lock(&self.site).clone().ok_or_else(|| {
            RemoteError::could_not_ask(
                "no engine is configured on this node; set `endpoint` in the plugin's configuration",
            )
        })
    }

    /// Who the engine is; asked again after each break of the connection, and when it matters.
    async fn identity(&self, site: &Site, fresh: bool) -> Result<String, RemoteError> {
        if let Some(known) = lock(&self.identity).clone().filter(|_| !fresh) {
            return Ok(known);
        }
        let info: Info = site.engine.get("ask who the engine is", "/info").await.map_err(answer)?;
        *lock(&self.identity) = Some(info.id.clone());
        Ok(info.id)
    }

    fn handle(&self, engine: String, key: &str, container: &str) -> Result<RemoteHandle, RemoteError> {
        let handle = HandleV1 { engine, key: key.to_owned(), container: container.to_owned() };
        let data = handle::encode(&handle).map_err(RemoteError::wrong_request)?;
        Ok(RemoteHandle { schema: SCHEMA, data })
    }

    fn read_handle(handle: &RemoteHandle) -> Result<HandleV1, RemoteError> {
        if handle.schema != SCHEMA {
            return Err(RemoteError::wrong_request(format!(
                "the handle has schema {}, this driver knows {SCHEMA}; use the driver release that wrote it or a \
                    newer one",
                handle.schema
            )));
        }
        handle::decode(&handle.data).map_err(RemoteError::wrong_request)
    }

    fn same_engine(site: &Site, handle: &HandleV1, found: &str) -> Result<(), RemoteError> {
        if handle.engine == found {
            return Ok(());
        }
        Err(RemoteError::could_not_ask(format!(
            "the instance lives in the engine {}, at {} answers the engine {found}",
            handle.engine,
            site.engine.endpoint()
        )))
    }

    /// The engine and container of a handle. One of another engine can be asked for nothing here.
    async fn resolve(&self, handle: &RemoteHandle) -> Result<(Arc<Site>, HandleV1), RemoteError> {
        let handle = Self::read_handle(handle)?;
        let site = self.site()?;
        Self::same_engine(&site, &handle, &self.identity(&site, false).await?)?;
        Ok((site, handle))
    }

    /// Absence counts only when the engine is still the one that had it.
    async fn confirmed_gone(&self, site: &Site, handle: &HandleV1) -> Result<Observation, RemoteError> {
        Self::same_engine(site, handle, &self.identity(site, true).await?)?;
        lock(&self.seen).remove(&handle.container);
        lock(&self.meters).remove(&handle.container);
        self.places.forget(&handle.container);
        Ok(gone(&handle.key))
    }

    fn address(site: &Site) -> String {
        if site.plugin.address.is_empty() {
            site.engine.endpoint().host().to_owned()
        } else {
            site.plugin.address.clone()
        }
    }

    /// Looks at one container.
    async fn look(&self, site: &Site, handle: &HandleV1) -> Result<Observation, RemoteError> {
        match inspect(&site.engine, &handle.container).await {
            Ok(seen) => {
                let marks = marks::of_key(&site.engine, &handle.key).await?;
                Ok(with_marks(observation(&handle.key, &seen, &Self::address(site)), Some(&marks)))
            }
            Err(e) if e.is_absent() => self.confirmed_gone(site, handle).await,
            Err(e) => Err(answer(e)),
        }
    }

    /// From a listing: what is in the same state as before is not asked again.
    async fn of_listed(&self, site: &Site, key: &str, listed: &Listed) -> Result<Observation, RemoteError> {
        let known = lock(&self.seen).get(&listed.id).cloned();
        // What is being created may turn out not to be seen.
        if let Some(known) = known.filter(|k| k.state == listed.state && k.state != "created") {
            return Ok(known.observation);
        }
        match inspect(&site.engine, &listed.id).await {
            Ok(container) => {
                let seen = observation(key, &container, &Self::address(site));
                let kept = Seen { state: container.state.status, observation: seen.clone() };
                lock(&self.seen).insert(listed.id.clone(), kept);
                Ok(seen)
            }
            Err(e) if e.is_absent() => Ok(gone(key)),
            Err(e) => Err(answer(e)),
        }
    }

    async fn listed(&self, site: &Site, label: &str) -> Result<Vec<Listed>, RemoteError> {
        let path = format!("/containers/json?all=true&filters={}", filters(&[("label", label)]));
        site.engine.get("list the instances", &path).await.map_err(answer)
    }

    async fn claim(&self, site: &Site, handle: &HandleV1, epoch: u64) -> Result<(), RemoteError> {
        let owner = match inspect(&site.engine, &handle.container).await {
            Ok(seen) => seen.config.labels.get(LABEL_OWNER).cloned().unwrap_or_default(),
            // Nothing is left that could be taken over.
            Err(e) if e.is_absent() => return Ok(()),
            Err(e) => return Err(answer(e)),
        };
        marks::claim(&site.engine, &handle.key, &owner, epoch).await.map(drop)
    }
}

#[async_trait]
impl driver_sdk::RemoteDriver for RemoteDriver {
    fn info(&self) -> PluginInfo {
        PluginInfo::new("docker_remote", env!("CARGO_PKG_VERSION"))
    }

    fn attach(&self, context: Context) {
        let _ = self.context.set(context);
    }

    fn config_schema(&self) -> Option<Spec> {
        Some(PluginConfig::remote_schema())
    }

    async fn set_config(&self, config: Config, agent: Option<AgentConfig>) -> Result<(), Error> {
        let config = PluginConfig::decode(&config)?;
        config.validate()?;
        let configured = !config.endpoint.is_empty();
        if configured && config.endpoint()?.is_local_socket() && config.provider.is_empty() {
            return Err(Error::invalid(
                "a unix endpoint means another engine on every node, but remote tasks are handed from node to node; \
                    name the engine with \
                 `provider`, the same name wherever this socket reaches the same engine",
            ));
        }
        let engine = Arc::new(config.engine()?);
        *lock(&self.config) = config.clone();
        // Without a node the configuration is only being checked.
        if agent.is_none() || !configured {
            return Ok(());
        }
        let (context, identity) = (self.context.clone(), self.identity.clone());
        let monitor = Monitor::start(engine.clone(), move || {
            // Behind a new connection may be another engine.
            *lock(&identity) = None;
            if let Some(context) = context.get() {
                context.refingerprint();
            }
        });
        let sweeping = engine.clone();
        let sweeper = Sweeper(tokio::spawn(async move {
            loop {
                tokio::time::sleep(SWEEP_EVERY).await;
                let path = format!("/containers/json?all=true&filters={}", filters(&[("label", LABEL_KEY)]));
                // Only with a full list is it known which marks have lost their container.
                if let Ok(listed) = sweeping.get::<Vec<Listed>>("list the instances", &path).await {
                    let live: Vec<String> = listed.iter().filter_map(|c| c.labels.get(LABEL_KEY).cloned()).collect();
                    let _ = marks::sweep(&sweeping, &live).await;
                }
            }
        }));
        let pulse = Pulse::start(engine.clone());
        *lock(&self.site) = Some(Arc::new(Site { engine, plugin: config, monitor, pulse, _sweeper: sweeper }));
        Ok(())
    }

    fn task_config_schema(&self) -> Spec {
        TaskOptions::schema()
    }

    async fn fingerprint(&self) -> Fingerprint {
        let site = match self.site() {
            Ok(site) => site,
            Err(e) => return Fingerprint::undetected(e.to_string()),
        };
        let look = async {
            let (api, version) = site.engine.version().await.map_err(answer)?;
            Ok::<_, RemoteError>((api, version, self.identity(&site, false).await?))
        };
        match look.await {
            Ok((api, version, id)) => {
                self.met.store(true, std::sync::atomic::Ordering::Relaxed);
                Fingerprint::healthy()
                    .with("driver.docker_remote.version", version.version)
                    .with("driver.docker_remote.api", api)
                    .with("driver.docker_remote.engine_id", id)
                    .with("driver.docker_remote.provider", provider(&site.plugin))
            }
            Err(e) => Fingerprint::unhealthy(e.to_string()),
        }
    }

    fn describe(&self) -> Description {
        let config = lock(&self.config).clone();
        Description {
            provider: if config.endpoint.is_empty() { String::new() } else { provider(&config) },
            keyed_create: true,
            find: true,
            list: true,
            list_owners: true,
            // Stale epochs are refused when the newer one has been seen; the engine itself compares nothing.
            conditional_writes: false,
            seal: true,
            retained_exit_results: true,
            logs: true,
            exec: true,
            signals: true,
            stats: true,
            file_upload: true,
            // An engine takes the old file away before it writes the new one.
            refresh: false,
            volumes: true,
            watch: true,
            handle_schema_min: SCHEMA,
            handle_schema_max: SCHEMA,
            pool_cpu_mhz: config.pool_cpu_mhz,
            pool_memory_mib: config.pool_memory_mib,
            staleness: Duration::ZERO,
        }
    }

    async fn examine(&self) -> Vec<Finding> {
        match self.site() {
            Ok(site) => doctor::examine(&site.engine).await,
            // The fingerprint says so.
            Err(_) => Vec::new(),
        }
    }

    async fn intent(&self, request: &Ensure) -> Result<Option<Vec<u8>>, RemoteError> {
        self.intent_of(&*self.site()?, request).await
    }

    async fn ensure(&self, request: Ensure) -> Result<Ensured, RemoteError> {
        let site = self.site()?;
        self.goes_here(&site, &request.intent).await?;
        let (container, created) = ensure::ensure(&site.engine, &site.plugin, &request).await?;
        let marks = marks::of_key(&site.engine, &request.key).await?;
        Ok(Ensured {
            handle: self.handle(self.identity(&site, false).await?, &request.key, &container.id)?,
            observed: with_marks(observation(&request.key, &container, &Self::address(&site)), Some(&marks)),
            created,
        })
    }

    async fn find(&self, key: &str, owner: &str) -> Result<(RemoteHandle, Observation), RemoteError> {
        self.look_up(Lookup { key: key.to_owned(), owner: owner.to_owned(), ..Lookup::default() }).await
    }

    async fn look_up(&self, lookup: Lookup) -> Result<(RemoteHandle, Observation), RemoteError> {
        let site = self.site()?;
        let Lookup { key, owner, intent, .. } = &lookup;
        let found = inspect(&site.engine, &object_name(key)).await;
        self.goes_here(&site, intent).await?;
        match found {
            Ok(seen) => {
                owned(&seen.config.labels, key, owner)?;
                let handle = self.handle(self.identity(&site, false).await?, key, &seen.id)?;
                let marks = marks::of_key(&site.engine, key).await?;
                Ok((handle, with_marks(observation(key, &seen, &Self::address(&site)), Some(&marks))))
            }
            Err(e) if e.is_absent() => {
                Err(RemoteError::gone(format!("{} has no instance {key}", provider(&site.plugin))))
            }
            Err(e) => Err(answer(e)),
        }
    }

    async fn list(&self, owner: &str, page_token: &str, page_size: usize) -> Result<Page, RemoteError> {
        let site = self.site()?;
        let engine = self.identity(&site, false).await?;
        let label = if owner.is_empty() { LABEL_OWNER.to_owned() } else { format!("{LABEL_OWNER}={owner}") };
        let mut listed = self.listed(&site, &label).await?;
        let all_marks = marks::all(&site.engine).await?;
        let key_of = |c: &Listed| c.labels.get(LABEL_KEY).cloned().unwrap_or_default();
        listed.retain(|c| key_of(c).as_str() > page_token);
        listed.sort_by_key(key_of);
        let mut page = Page::default();
        let size = page_size.max(1);
        if listed.len() > size {
            page.next_page_token = key_of(&listed[size - 1]);
        }
        for container in listed.iter().take(size) {
            let key = key_of(container);
            let seen = self.of_listed(&site, &key, container).await.unwrap_or_else(|e| Observation::unknown(&key, e));
            let observed = with_marks(seen, all_marks.get(&key));
            page.instances.push(Instance {
                handle: self.handle(engine.clone(), &key, &container.id)?,
                epoch: observed.epoch,
                owner: container.labels.get(LABEL_OWNER).cloned().unwrap_or_default(),
                slot: container.labels.get(LABEL_SLOT).cloned().unwrap_or_default(),
                key,
                observed,
            });
        }
        Ok(page)
    }

    async fn observe(&self, handles: &[RemoteHandle]) -> Result<Vec<Observation>, RemoteError> {
        let site = self.site()?;
        let engine = self.identity(&site, false).await?;
        let listed: HashMap<String, Listed> =
            self.listed(&site, LABEL_KEY).await?.into_iter().map(|c| (c.id.clone(), c)).collect();
        let all_marks = marks::all(&site.engine).await?;
        let mut seen = Vec::with_capacity(handles.len());
        for handle in handles {
            let handle = match Self::read_handle(handle) {
                Ok(handle) => handle,
                Err(e) => {
                    seen.push(Observation::unknown("", e));
                    continue;
                }
            };
            let look = async {
                Self::same_engine(&site, &handle, &engine)?;
                match listed.get(&handle.container) {
                    Some(container) => self.of_listed(&site, &handle.key, container).await,
                    None => self.confirmed_gone(&site, &handle).await,
                }
            };
            let one = look.await.unwrap_or_else(|e| Observation::unknown(&handle.key, e));
            seen.push(with_marks(one, all_marks.get(&handle.key)));
        }
        Ok(seen)
    }

    async fn watch(&self, handles: Vec<RemoteHandle>, sink: ObservationSink) -> Result<(), RemoteError> {
        let site = self.site()?;
        self.follow(&site, &handles, sink).await
    }

    async fn stop(&self, handle: &RemoteHandle, epoch: u64, stop: StopTask) -> Result<Observation, RemoteError> {
        let (site, handle) = self.resolve(handle).await?;
        self.claim(&site, &handle, epoch).await?;
        let ended = match inspect(&site.engine, &handle.container).await {
            // Made and not started: it is taken away before anyone can.
            Ok(seen) if seen.state.status == "created" => {
                unseen::discard(&site.engine, &handle.key, &seen.id).await?;
                return self.look(&site, &handle).await;
            }
            Ok(seen) => {
                // An engine that is started anew would start again what was stopped.
                keep_down(&site.engine, &seen).await?;
                start::stop(&site.engine, &site.monitor, &handle.container, &stop).await
            }
            Err(e) => Err(e),
        };
        match ended {
            Ok(_) => self.look(&site, &handle).await,
            Err(e) if e.is_absent() => self.confirmed_gone(&site, &handle).await,
            Err(e) => Err(answer(e)),
        }
    }

    async fn seal(
        &self,
        key: &str,
        epoch: u64,
        owner: &str,
        intent: &[u8],
    ) -> Result<Option<(RemoteHandle, Observation)>, RemoteError> {
        let site = self.site()?;
        // Before a mark is left at an engine that has never heard of the key.
        self.goes_here(&site, intent).await?;
        let name = object_name(key);
        if let Ok(seen) = inspect(&site.engine, &name).await {
            owned(&seen.config.labels, key, owner)?;
        }
        let marks = marks::claim(&site.engine, key, owner, epoch).await?;
        if !marks.sealed {
            marks::seal(&site.engine, key, owner, epoch).await?;
        }
        // A create that comes after the seal sees it before it starts anything; one that came before is seen here.
        match inspect(&site.engine, &name).await {
            Ok(seen) => {
                owned(&seen.config.labels, key, owner)?;
                let handle = self.handle(self.identity(&site, false).await?, key, &seen.id)?;
                let mut observed = observation(key, &seen, &Self::address(&site));
                observed.epoch = observed.epoch.max(epoch);
                Ok(Some((handle, observed)))
            }
            Err(e) if e.is_absent() => {
                self.goes_here(&site, intent).await?;
                marks::retire(&site.engine, key).await?;
                Ok(None)
            }
            Err(e) => Err(answer(e)),
        }
    }

    async fn acknowledge(&self, handle: &RemoteHandle, epoch: u64) -> Result<(), RemoteError> {
        let (site, handle) = self.resolve(handle).await?;
        let seen = match inspect(&site.engine, &handle.container).await {
            Ok(seen) => seen,
            Err(e) if e.is_absent() => {
                self.confirmed_gone(&site, &handle).await?;
                return marks::retire(&site.engine, &handle.key).await;
            }
            Err(e) => return Err(answer(e)),
        };
        // The end was counted. What the engine has started since by itself is nobody's, and goes with the container.
        if !watch::has_ended(&seen) && !starts_by_itself(&seen) {
            return Err(RemoteError::wrong_request(format!(
                "instance {} has not ended; stop it before its result is acknowledged",
                handle.key
            )));
        }
        let owner = seen.config.labels.get(LABEL_OWNER).cloned().unwrap_or_default();
        marks::claim(&site.engine, &handle.key, &owner, epoch).await?;
        // Its restart policy stays until the container goes: it tells the next attempt that this is no instance that
        // has not ended. Sealed before the name is free again.
        marks::seal(&site.engine, &handle.key, &owner, epoch).await?;
        start::remove(&site.engine, &handle.container).await.map_err(driver_error)?;
        self.confirmed_gone(&site, &handle).await?;
        marks::retire(&site.engine, &handle.key).await
    }

    async fn logs(
        &self,
        handle: &RemoteHandle,
        query: LogsQuery,
        sink: mpsc::Sender<LogChunk>,
    ) -> Result<(), RemoteError> {
        let (site, handle) = self.resolve(handle).await?;
        let seen = match inspect(&site.engine, &handle.container).await {
            Ok(seen) => seen,
            Err(e) if e.is_absent() => {
                self.confirmed_gone(&site, &handle).await?;
                return Err(RemoteError::gone(format!("instance {} is gone, and its log with it", handle.key)));
            }
            Err(e) => return Err(answer(e)),
        };
        self.places.send(&site.engine, &seen, query, sink).await
    }

    async fn signal(&self, handle: &RemoteHandle, epoch: u64, signal: &str) -> Result<(), RemoteError> {
        let (site, handle) = self.resolve(handle).await?;
        self.claim(&site, &handle, epoch).await?;
        match start::signal(&site.engine, &handle.container, signal).await {
            Err(e) if e.is_conflict() => Err(RemoteError::wrong_request(e)),
            Err(e) if e.is_absent() => Err(RemoteError::gone(e)),
            other => other.map_err(answer),
        }
    }

    async fn stats(&self, handle: &RemoteHandle) -> Result<Option<TaskUsage>, RemoteError> {
        let (site, handle) = self.resolve(handle).await?;
        let sample = match stats::sample(&site.engine, &handle.container).await {
            Ok(sample) => sample,
            Err(e) if e.is_absent() || e.is_conflict() => return Ok(None),
            Err(e) => return Err(answer(e)),
        };
        let meter = lock(&self.meters).entry(handle.container.clone()).or_default().clone();
        // The speed of processors elsewhere is not known.
        Ok(meter.usage(&sample, None))
    }

    async fn exec(
        &self,
        handle: &RemoteHandle,
        epoch: u64,
        command: Vec<String>,
        tty: bool,
        io: ExecIo,
    ) -> Result<driver_sdk::TaskExit, RemoteError> {
        let (site, handle) = self.resolve(handle).await?;
        self.claim(&site, &handle, epoch).await?;
        match exec::stream(&site.engine, &handle.container, &command, tty, io, Place::Remote).await {
            Err(e) if e.is_conflict() => Err(RemoteError::wrong_request(e)),
            Err(e) if e.is_absent() => Err(RemoteError::gone(e)),
            other => other.map_err(answer),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn different_keys_have_different_names() {
        for (key, wanted) in
            [("0a-1b", "drover-0a-1b"), ("a/b", "drover-a_2fb"), ("a_b", "drover-a_5fb"), ("a.b", "drover-a.b")]
        {
            assert_eq!(object_name(key), wanted);
        }
    }

    #[test]
    fn a_container_says_how_its_instance_is() {
        let seen = |status: &str, running: bool| {
            let value = serde_json::json!({
                "Id": "c1",
                "State": {"Status": status, "Running": running, "ExitCode": 137, "OOMKilled": true,
                    "FinishedAt": "2026-11-20T09:00:00Z"},
                "Config": {"Labels": {LABEL_EPOCH: "3", LABEL_PORTS: "{\"http\":80,\"raw\":90}"}},
                "NetworkSettings": {"Ports": {"80/tcp": [{"HostPort": "32768"}]}},
            });
            observation("k", &serde_json::from_value(value).expect("a container"), "host")
        };
        assert_eq!(seen("created", false).state, InstanceState::Creating);
        let running = seen("running", true);
        assert_eq!((running.state, running.finished_at, running.epoch), (InstanceState::Running, None, 3));
        assert_eq!(running.port_map, [("http".to_owned(), 32_768), ("raw".to_owned(), 90)].into());
        let ended = seen("exited", false);
        assert_eq!(
            (ended.state, ended.exit.exit_code, ended.exit.signal, ended.exit.oom_killed),
            (InstanceState::Exited, 137, 9, true)
        );
        assert_eq!(with_marks(ended, Some(&Marks { epoch: 7, sealed: false })).epoch, 7);
    }

    #[test]
    fn what_is_not_ours_is_refused() {
        let labels = |owner: &str| BTreeMap::from([(LABEL_OWNER.to_owned(), owner.to_owned())]);
        assert!(owned(&labels("me"), "k", "me").is_ok());
        assert!(matches!(owned(&labels("you"), "k", "me"), Err(RemoteError::WrongRequest(_))));
        assert!(matches!(owned(&BTreeMap::new(), "k", "me"), Err(RemoteError::WrongRequest(_))));
    }
}

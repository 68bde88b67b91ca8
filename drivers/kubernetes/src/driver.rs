//! The driver.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, SystemTime};

use driver_sdk::config::Config;
use driver_sdk::exec::ExecIo;
use driver_sdk::health::{Health, for_fingerprint};
use driver_sdk::schema::Spec;
use driver_sdk::{
    AgentConfig, Bundle, Context, Description, DriverConfig, DriverState as _, Ensure, Ensured, Error, Finding,
    Fingerprint, LogChunk, LogsQuery, Lookup, Observation, ObservationSink, Page, PluginInfo, RemoteDriver,
    RemoteError, RemoteHandle, StopTask, TaskExit, TaskUsage, async_trait,
};
use tokio::sync::mpsc;

use crate::access::Access;
use crate::answer::Answer;
use crate::api::Api;
use crate::config::PluginConfig;
use crate::exec;
use crate::feed::Feeds;
use crate::options::TaskOptions;
use crate::site::lock;
use crate::site::{HandleV1, Site};
use crate::{cluster, doctor, usage};

/// A site and what runs for it, which ends when another one takes its place.
struct Managed {
    site: Arc<Site>,
    feeds: Feeds,
    sweeping: tokio::task::JoinHandle<()>,
}

impl Drop for Managed {
    fn drop(&mut self) {
        self.sweeping.abort();
    }
}

/// The driver `kubernetes`.
#[derive(Default)]
pub struct Driver {
    context: OnceLock<Context>,
    config: Mutex<PluginConfig>,
    managed: Mutex<Option<Arc<Managed>>>,
    /// Why there is no site.
    missing: Mutex<String>,
    health: Mutex<Arc<Health<()>>>,
    /// A fingerprint after an unhealthy one is on its way.
    looks_again: Arc<AtomicBool>,
}

impl Driver {
    /// A driver without a cluster; `set_config` names it.
    pub fn new() -> Self {
        Self::default()
    }

    /// Lets the names go of acknowledged and sealed keys whose time is over at `now`; says of how many. The driver does
    /// so by itself every few minutes.
    ///
    /// # Errors
    /// The API server could not be asked.
    pub async fn sweep(&self, now: SystemTime) -> Result<usize, RemoteError> {
        let now = jiff::Timestamp::try_from(now).map_err(RemoteError::wrong_request)?;
        self.site()?.sweep(now).await
    }

    fn managed(&self) -> Answer<Arc<Managed>> {
        let managed = lock(&self.managed).clone();
        managed.ok_or_else(|| RemoteError::could_not_ask(lock(&self.missing).clone()))
    }

    fn site(&self) -> Answer<Arc<Site>> {
        self.managed().map(|managed| managed.site.clone())
    }

    fn resolve(&self, handle: &RemoteHandle) -> Answer<(Arc<Site>, HandleV1)> {
        let site = self.site()?;
        let handle = site.resolve(handle)?;
        Ok((site, handle))
    }

    /// The pod of a handle under this epoch, for calls that the server cannot refuse by it.
    async fn beside(&self, handle: &RemoteHandle, epoch: u64) -> Answer<(Arc<Site>, HandleV1)> {
        let (site, handle) = self.resolve(handle)?;
        site.claim(&handle, epoch).await?;
        Ok((site, handle))
    }
}

/// The site of a configuration. Its identity is asked for here, because a host asks what a driver reaches only once;
/// hosts try again for as long as this fails.
async fn open(config: &PluginConfig) -> Answer<Site> {
    let reached = cluster::reach(config).await?;
    let (client, limit) = (reached.client, config.request_timeout);
    let api = Api::new(Access::fixed(client.clone()), reached.namespace, limit);
    let (cluster, verified) = cluster::identify(&api, config, &reached.server).await?;
    let provider = cluster::provider(&cluster, &api.namespace);
    let access = Access::renewed(client, config.clone(), provider, reached.server);
    let api = Api::new(access, api.namespace, limit);
    Ok(Site::new(api, config.clone(), cluster, verified))
}

#[async_trait]
impl RemoteDriver for Driver {
    fn info(&self) -> PluginInfo {
        PluginInfo::new("kubernetes", env!("CARGO_PKG_VERSION"))
    }

    fn attach(&self, context: Context) {
        let _ = self.context.set(context);
    }

    fn config_schema(&self) -> Option<Spec> {
        Some(PluginConfig::schema())
    }

    async fn set_config(&self, config: Config, agent: Option<AgentConfig>) -> Result<(), Error> {
        let config = PluginConfig::decode(config)?;
        config.check()?;
        let nowhere = |why: &str| {
            *lock(&self.managed) = None;
            why.clone_into(&mut lock(&self.missing));
        };
        *lock(&self.config) = config.clone();
        if !config.enabled {
            nowhere("the driver is disabled on this node; set `enabled = true` in the plugin's configuration");
            return Ok(());
        }
        // Without a node the configuration is only being checked.
        if agent.is_none() {
            nowhere("the plugin's configuration was checked and not put into force");
            return Ok(());
        }
        match open(&config).await {
            Ok(site) => {
                let site = Arc::new(site);
                let looking = site.clone();
                let sweeping = tokio::spawn(async move { looking.sweep_on().await });
                *lock(&self.health) = Arc::default();
                *lock(&self.managed) = Some(Arc::new(Managed { site, feeds: Feeds::default(), sweeping }));
                Ok(())
            }
            Err(why) => {
                nowhere(&why.to_string());
                Err(Error::recoverable(why))
            }
        }
    }

    fn task_config_schema(&self) -> Spec {
        TaskOptions::schema()
    }

    async fn fingerprint(&self) -> Fingerprint {
        let Ok(site) = self.site() else {
            return Fingerprint::undetected(lock(&self.missing).clone());
        };
        let (asked, health) = (site.clone(), lock(&self.health).clone());
        let asking = health.clone();
        let ask = async move {
            let look = async {
                asked.same_cluster().await?;
                // Whether this account may look at pods of this namespace.
                asked.api.list_pods(&crate::site::selector(""), 1, "").await?;
                Ok(())
            };
            asking.answer(true, look).await
        };
        match for_fingerprint(ask, || health.known(), self.context.get().cloned(), &self.looks_again).await {
            Some(Err(why)) => Fingerprint::unhealthy(why.to_string()),
            None => Fingerprint::unhealthy("the API server has not answered yet"),
            Some(Ok(())) => Fingerprint::healthy()
                .with("driver.kubernetes", "true")
                .with("driver.kubernetes.cluster", &site.cluster)
                .with("driver.kubernetes.namespace", &site.api.namespace)
                .with("driver.kubernetes.provider", site.provider()),
        }
    }

    async fn examine(&self) -> Vec<Finding> {
        let config = lock(&self.config).clone();
        match config.enabled {
            true => doctor::examine(&config).await,
            // The fingerprint says so.
            false => Vec::new(),
        }
    }

    fn fingerprint_interval(&self) -> Duration {
        Duration::from_secs(15)
    }

    fn describe(&self) -> Description {
        let config = lock(&self.config).clone();
        Description {
            provider: self.site().map(|site| site.provider()).unwrap_or_default(),
            keyed_create: true,
            find: true,
            list: true,
            list_owners: true,
            // Epoch and effect travel in one request, which the API server refuses when the epoch has moved.
            conditional_writes: true,
            seal: true,
            retained_exit_results: true,
            logs: true,
            exec: true,
            signals: true,
            stats: true,
            file_upload: true,
            refresh: true,
            volumes: true,
            watch: true,
            handle_schema_min: HandleV1::VERSION.into(),
            handle_schema_max: HandleV1::VERSION.into(),
            pool_cpu_mhz: config.pool_cpu_mhz,
            pool_memory_mib: config.pool_memory_mib,
            staleness: Duration::ZERO,
        }
    }

    async fn intent(&self, request: &Ensure) -> Answer<Option<Vec<u8>>> {
        self.site()?.intent(request)
    }

    async fn ensure(&self, request: Ensure) -> Answer<Ensured> {
        self.site()?.ensure(request).await
    }

    async fn find(&self, key: &str, owner: &str) -> Answer<(RemoteHandle, Observation)> {
        self.site()?.find(key, owner, &[]).await
    }

    async fn look_up(&self, lookup: Lookup) -> Answer<(RemoteHandle, Observation)> {
        self.site()?.find(&lookup.key, &lookup.owner, &lookup.intent).await
    }

    async fn list(&self, owner: &str, page_token: &str, page_size: usize) -> Answer<Page> {
        self.site()?.list(owner, page_token, page_size).await
    }

    async fn observe(&self, handles: &[RemoteHandle]) -> Answer<Vec<Observation>> {
        let site = self.site()?;
        let read: Vec<Answer<HandleV1>> = handles.iter().map(|handle| site.resolve(handle)).collect();
        let asked: Vec<HandleV1> = read.iter().flatten().cloned().collect();
        let mut seen = site.observe(&asked).await.into_iter();
        let mut answer = |handle: Answer<HandleV1>| match handle {
            Ok(handle) => seen.next().unwrap_or_else(|| Observation::unknown(handle.key, "it was not looked at")),
            Err(why) => Observation::unknown("", why),
        };
        Ok(read.into_iter().map(&mut answer).collect())
    }

    async fn watch(&self, handles: Vec<RemoteHandle>, sink: ObservationSink) -> Answer<()> {
        let managed = self.managed()?;
        let mut by_owner: std::collections::HashMap<String, Vec<HandleV1>> = std::collections::HashMap::new();
        let mut elsewhere = Vec::new();
        // They are not kept for as long as the watch goes on.
        for handle in handles {
            match managed.site.resolve(&handle) {
                Ok(handle) => by_owner.entry(handle.owner.clone()).or_default().push(handle),
                // The others are watched all the same.
                Err(why) => {
                    let key = HandleV1::from_remote_handle(&handle).map(|handle| handle.key).unwrap_or_default();
                    elsewhere.push(Observation::unknown(key, why));
                }
            }
        }
        let strangers = async {
            for unknown in elsewhere {
                if sink.send(unknown).await.is_err() {
                    return;
                }
            }
            sink.closed().await;
        };
        let watches = by_owner.into_iter().map(|(owner, handles)| {
            let (feed, sink) = (managed.feeds.of(&managed.site, &owner), sink.clone());
            async move { feed.watch(handles, sink).await }
        });
        tokio::join!(strangers, futures::future::join_all(watches));
        Ok(())
    }

    async fn stop(&self, handle: &RemoteHandle, epoch: u64, stop: StopTask) -> Answer<Observation> {
        let (site, handle) = self.resolve(handle)?;
        site.stop(&handle, epoch, &stop).await
    }

    async fn seal(
        &self,
        key: &str,
        epoch: u64,
        owner: &str,
        intent: &[u8],
    ) -> Answer<Option<(RemoteHandle, Observation)>> {
        self.site()?.seal(key, epoch, owner, intent).await
    }

    async fn acknowledge(&self, handle: &RemoteHandle, epoch: u64) -> Answer<()> {
        let (site, handle) = self.resolve(handle)?;
        site.acknowledge(&handle, epoch).await
    }

    async fn logs(&self, handle: &RemoteHandle, query: LogsQuery, sink: mpsc::Sender<LogChunk>) -> Answer<()> {
        let (site, handle) = self.resolve(handle)?;
        site.logs(&handle, query, &sink).await
    }

    async fn signal(&self, handle: &RemoteHandle, epoch: u64, signal: &str) -> Answer<()> {
        let name = signal.trim_start_matches("SIG");
        if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric()) {
            return Err(RemoteError::wrong_request(format!(
                "{signal:?} is not the name of a signal; use one such as SIGHUP"
            )));
        }
        if name == "KILL" {
            return Err(RemoteError::wrong_request(
                "the first process of a container takes no SIGKILL from inside, and Kubernetes sends none by itself; \
                    stop the task",
            ));
        }
        let (site, handle) = self.beside(handle, epoch).await?;
        exec::signal(&site.api, &handle.name, name).await
    }

    async fn refresh(&self, handle: &RemoteHandle, epoch: u64, bundle: Bundle) -> Answer<()> {
        let (site, handle) = self.resolve(handle)?;
        site.refresh(&handle, epoch, &bundle).await
    }

    async fn stats(&self, handle: &RemoteHandle) -> Answer<Option<TaskUsage>> {
        let (site, handle) = self.resolve(handle)?;
        let measured = site.api.pod_metrics(&handle.name).await?;
        Ok(measured.and_then(|pod| usage::sample(&pod, site.config.cpu_mhz)))
    }

    async fn exec(
        &self,
        handle: &RemoteHandle,
        epoch: u64,
        command: Vec<String>,
        tty: bool,
        io: ExecIo,
    ) -> Answer<TaskExit> {
        let (site, handle) = self.beside(handle, epoch).await?;
        exec::run(&site.api, &handle.name, command, tty, io).await
    }
}

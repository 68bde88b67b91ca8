//! The driver.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use aws_sdk_ecs::types::Task;
use driver_sdk::config::Config;
use driver_sdk::schema::Spec;
use driver_sdk::{
    AgentConfig, Context, Description, DriverConfig, DriverState as _, Ensure, Ensured, Error, Finding, Fingerprint,
    Instance, LogChunk, LogsQuery, Lookup, Observation, ObservationSink, Page, PluginInfo, RemoteDriver, RemoteError,
    RemoteHandle, StopTask, async_trait,
};
use tokio::sync::mpsc;

use crate::api::{self, Api, Listing};
use crate::config::PluginConfig;
use crate::doctor;
use crate::handle::HandleV1;
use crate::look::observation;
use crate::marks::{self, Marks};
use crate::options::TaskOptions;
use crate::poll::{Look as _, Poller};
use crate::sent::Unlisted;
use crate::site::{Answer, OneTask, Site, lock};

/// How soon a cluster that is not well is asked for again.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// What hosts wait for a fingerprint.
const FINGERPRINT_WITHIN: Duration = Duration::from_millis(800);

/// The loop of a site, which ends when another one takes its place.
struct Loop {
    looking: tokio::task::JoinHandle<()>,
    poller: Arc<Poller>,
}

impl Drop for Loop {
    fn drop(&mut self) {
        self.looking.abort();
        self.poller.close();
    }
}

/// The driver `ecs`.
#[derive(Default)]
pub struct Driver {
    context: OnceLock<Context>,
    config: Mutex<PluginConfig>,
    provider: Mutex<String>,
    site: Mutex<Option<(Arc<Site>, Loop)>>,
    /// Why there is no site.
    missing: Mutex<String>,
    /// A fingerprint after an unhealthy one is on its way.
    looks_again: Arc<AtomicBool>,
}

impl Driver {
    /// A driver without a cluster; `set_config` names it.
    pub fn new() -> Self {
        Self::default()
    }

    fn site(&self) -> Answer<Arc<Site>> {
        let site = lock(&self.site).as_ref().map(|(site, _)| site.clone());
        site.ok_or_else(|| RemoteError::could_not_ask(lock(&self.missing).clone()))
    }

    fn resolve(&self, handle: &RemoteHandle) -> Answer<(Arc<Site>, HandleV1)> {
        Ok((self.site()?, HandleV1::from_remote_handle(handle)?))
    }
}

#[async_trait]
impl RemoteDriver for Driver {
    fn info(&self) -> PluginInfo {
        PluginInfo::new("ecs", env!("CARGO_PKG_VERSION"))
    }

    fn attach(&self, context: Context) {
        let _ = self.context.set(context);
    }

    fn config_schema(&self) -> Option<Spec> {
        Some(PluginConfig::schema())
    }

    async fn set_config(&self, config: Config, agent: Option<AgentConfig>) -> Result<(), Error> {
        let config = PluginConfig::decode(config)?;
        let cluster = config.cluster()?;
        *lock(&self.config) = config.clone();
        let nowhere = |why: &str| {
            *lock(&self.site) = None;
            lock(&self.provider).clear();
            why.clone_into(&mut lock(&self.missing));
        };
        if !config.enabled {
            nowhere("the driver is disabled on this node; set `enabled = true` in the plugin's configuration");
            return Ok(());
        }
        // Without a node the configuration is only being checked.
        if agent.is_none() {
            nowhere("the plugin's configuration was checked and not put into force");
            return Ok(());
        }
        let Some(region) = api::region(&config, &cluster).await else {
            nowhere("no region is known for the cluster; set `region` in the plugin's configuration, or AWS_REGION");
            return Ok(());
        };
        *lock(&self.provider) = config.provider(&cluster, &region);
        let every = config.poll_interval;
        let api = Api::new(&config, cluster, region).await;
        let site = Arc::new(Site::new(api, config));
        let looking = site.clone();
        let poller = site.poller.clone();
        let looking = tokio::spawn(async move { looking.poller.run(looking.clone(), every).await });
        *lock(&self.site) = Some((site, Loop { looking, poller }));
        Ok(())
    }

    fn task_config_schema(&self) -> Spec {
        TaskOptions::schema()
    }

    async fn fingerprint(&self) -> Fingerprint {
        let Ok(site) = self.site() else {
            return Fingerprint::undetected(lock(&self.missing).clone());
        };
        let (asked, context) = (site.clone(), self.context.get().cloned());
        let (answered, answer) = tokio::sync::oneshot::channel();
        tokio::spawn(async move {
            let seen = asked.cluster(true).await;
            // Whoever has given up waiting asks again, and then it is known.
            if answered.send(seen).is_err()
                && let Some(context) = context
            {
                context.refingerprint();
            }
        });
        let fresh = tokio::time::timeout(FINGERPRINT_WITHIN, answer).await.ok().and_then(Result::ok);
        let known = lock(&site.health).clone().map(|h| h.answer);
        if matches!(fresh, Some(Err(_)))
            && let Some(context) = self.context.get().cloned()
            && !self.looks_again.swap(true, Ordering::Relaxed)
        {
            let again = self.looks_again.clone();
            tokio::spawn(async move {
                tokio::time::sleep(LOOK_AGAIN).await;
                again.store(false, Ordering::Relaxed);
                context.refingerprint();
            });
        }
        let cluster = match (fresh, known) {
            (Some(Err(why)), _) | (_, Some(Err(why))) => return Fingerprint::unhealthy(why.to_string()),
            (_, None) => {
                return Fingerprint::unhealthy(format!("the cluster {} has not answered yet", site.api.cluster.given));
            }
            (_, Some(Ok(cluster))) => cluster,
        };
        if cluster.status != "ACTIVE" {
            return Fingerprint::unhealthy(format!("the cluster {} is {}", cluster.arn, cluster.status));
        }
        Fingerprint::healthy()
            .with("driver.ecs", "true")
            .with("driver.ecs.cluster", cluster.arn)
            .with("driver.ecs.region", &site.api.region)
            .with("driver.ecs.container_instances", cluster.instances)
            .with("driver.ecs.provider", lock(&self.provider).clone())
    }

    fn describe(&self) -> Description {
        let config = lock(&self.config).clone();
        Description {
            provider: lock(&self.provider).clone(),
            keyed_create: true,
            find: true,
            list: true,
            list_owners: true,
            // Stale epochs are refused when the newer one has been seen; the service compares nothing.
            conditional_writes: false,
            // The service cannot be told in advance that nothing is to be started with a token.
            seal: false,
            // For about an hour, not until they are acknowledged.
            retained_exit_results: false,
            logs: true,
            exec: false,
            signals: false,
            stats: false,
            file_upload: false,
            refresh: false,
            // A task definition that exists has its own.
            volumes: false,
            watch: true,
            handle_schema_min: HandleV1::VERSION.into(),
            handle_schema_max: HandleV1::VERSION.into(),
            pool_cpu_mhz: config.pool_cpu_mhz,
            pool_memory_mib: config.pool_memory_mib,
            staleness: config.consistency_window,
        }
    }

    async fn intent(&self, request: &Ensure) -> Answer<Option<Vec<u8>>> {
        self.site()?.intent(request).await
    }

    async fn examine(&self) -> Vec<Finding> {
        match self.site() {
            Ok(site) => doctor::examine(&site.api).await,
            // The fingerprint says so.
            Err(_) => Vec::new(),
        }
    }

    async fn ensure(&self, request: Ensure) -> Answer<Ensured> {
        self.site()?.ensure(request).await
    }

    async fn find(&self, key: &str, owner: &str) -> Answer<(RemoteHandle, Observation)> {
        self.look_up(Lookup { key: key.to_owned(), owner: owner.to_owned(), ..Lookup::default() }).await
    }

    async fn look_up(&self, lookup: Lookup) -> Answer<(RemoteHandle, Observation)> {
        let site = self.site()?;
        let window = site.config.consistency_window;
        if let Some((task, marks)) = site.search(&lookup.key, &lookup.owner).await? {
            lock(&site.sent).found(&lookup.key);
            return Ok((site.handle(&task, &marks).await?.remote_handle()?, observation(&task, &marks)));
        }
        match lock(&site.sent).unlisted(&lookup, window) {
            Unlisted::Absent => {
                Err(RemoteError::gone(format!("{} has no task of the key {}", lock(&self.provider), lookup.key)))
            }
            Unlisted::NotYet => Err(RemoteError::could_not_ask(format!(
                "a start of the task may have been sent, and ECS may show it up to {} s later: until then that it is \
                    not listed says nothing",
                window.as_secs()
            ))),
        }
    }

    async fn list(&self, owner: &str, page_token: &str, page_size: usize) -> Answer<Page> {
        let site = self.site()?;
        // A page of ours is one of the service's. What has ended lives no more, and is found by key and by handle.
        let from = (!page_token.is_empty()).then(|| page_token.to_owned());
        let (arns, next) = site.api.list(Listing::Live, from, page_size).await?;
        let mut page = Page { next_page_token: next.unwrap_or_default(), ..Page::default() };
        let tasks = site.tasks(&arns).await?.into_iter().filter_map(|task| {
            let marks = site.marks(&task, None).filter(|m| owner.is_empty() || m.owner == owner)?;
            Some((task, marks))
        });
        let tasks: Vec<(Task, Marks)> = tasks.collect();
        // ECS may have started two tasks for a key, against its word. Each gets a key of its own here: the servers see
        // which one their record means, and show the other to a person, whose stop reaches it by its handle.
        let doubled = site.doubled(&tasks).await?;
        for (task, mut marks) in tasks {
            if let Some(arn) = task.task_arn().filter(|arn| doubled.contains(*arn)) {
                marks.key = marks::key_of_one(&marks.key, arn);
            }
            let observed = observation(&task, &marks);
            page.instances.push(Instance {
                handle: site.handle(&task, &marks).await?.remote_handle()?,
                epoch: marks.epoch,
                owner: marks.owner,
                slot: marks.slot,
                key: marks.key,
                observed,
            });
        }
        let unsettled = lock(&site.sent).unsettled(owner, site.config.consistency_window);
        if page.next_page_token.is_empty() && unsettled > 0 {
            page.incomplete =
                format!("the answers to {unsettled} starts are unknown; ECS may not list yet what they have started");
        }
        Ok(page)
    }

    async fn observe(&self, handles: &[RemoteHandle]) -> Answer<Vec<Observation>> {
        let site = self.site()?;
        let read: Vec<Answer<HandleV1>> = handles.iter().map(HandleV1::from_remote_handle).collect();
        let asked: Vec<HandleV1> = read.iter().flatten().cloned().collect();
        let mut seen = site.look(&asked).await.into_iter();
        let mut answer = |handle: Answer<HandleV1>| match handle {
            Ok(handle) => seen.next().unwrap_or_else(|| Observation::unknown(handle.key, "it was not looked at")),
            Err(why) => Observation::unknown("", why),
        };
        Ok(read.into_iter().map(&mut answer).collect())
    }

    async fn watch(&self, handles: Vec<RemoteHandle>, sink: ObservationSink) -> Answer<()> {
        let site = self.site()?;
        let handles: Vec<HandleV1> = handles.iter().map(HandleV1::from_remote_handle).collect::<Answer<_>>()?;
        site.poller.watch(handles, sink).await;
        Ok(())
    }

    async fn stop(&self, handle: &RemoteHandle, epoch: u64, stop: StopTask) -> Answer<Observation> {
        let (site, handle) = self.resolve(handle)?;
        site.stop(&handle, epoch, &stop).await
    }

    async fn acknowledge(&self, handle: &RemoteHandle, epoch: u64) -> Answer<()> {
        let (site, handle) = self.resolve(handle)?;
        site.acknowledge(&handle, epoch).await
    }

    async fn logs(&self, handle: &RemoteHandle, query: LogsQuery, sink: mpsc::Sender<LogChunk>) -> Answer<()> {
        let (site, handle) = self.resolve(handle)?;
        let log = match &handle.log {
            Some(log) => Some(log.clone()),
            None => match site.look_at(&handle).await? {
                Some((task, marks)) => site.log_of(&task, &marks.container).await?,
                None => None,
            },
        };
        let log = log.ok_or_else(|| {
            RemoteError::wrong_request(
                "the container's output goes to no log group that is known: its definition needs the log driver \
                    awslogs with \
                 awslogs-group and awslogs-stream-prefix, or config.task.container a log_group",
            )
        })?;
        site.places.send(&site.api, &log, query, &sink, &OneTask(&site, &handle)).await
    }
}

//! The driver.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use driver_sdk::config::Config;
use driver_sdk::exec::ExecIo;
use driver_sdk::schema::Spec;
use driver_sdk::{
    AgentConfig, Bundle, CpuUsage, Description, DriverConfig, DriverState as _, Ensure, Ensured, Error, Finding,
    Fingerprint, InstanceState, LogChunk, LogStream, LogsQuery, Lookup, MemoryUsage, Observation, Page, PluginInfo,
    RemoteDriver, RemoteError, RemoteHandle, StopTask, TaskExit, TaskUsage, Usage, async_trait,
};
use hpc::Answer;
use hpc::rights::as_owner;
use hpc::{files, logs};
use tokio::sync::mpsc;

use crate::config::{PluginConfig, TaskOptions};
use crate::place::Claim;
use crate::site::{HandleV1, Site, is_signal, lock, on_disk};
use crate::{doctor, exec, tables};

/// How old a sample of use may be: `sstat` asks a node, and that is not for every second.
const SAMPLE: Duration = Duration::from_secs(5);

/// A sample, and when it was taken.
type Sample = (Instant, f64, Option<TaskUsage>);

/// The driver `slurm`.
#[derive(Default)]
pub struct Driver {
    config: Mutex<PluginConfig>,
    site: Mutex<Option<Arc<Site>>>,
    /// Why there is no site.
    missing: Mutex<String>,
    samples: Mutex<HashMap<String, Sample>>,
}

impl Driver {
    /// A driver without a cluster; `set_config` names it.
    pub fn new() -> Self {
        Self::default()
    }

    fn site(&self) -> Answer<Arc<Site>> {
        let site = lock(&self.site).clone();
        site.ok_or_else(|| RemoteError::could_not_ask(lock(&self.missing).clone()))
    }

    fn resolve(&self, handle: &RemoteHandle) -> Answer<(Arc<Site>, HandleV1)> {
        let site = self.site()?;
        let (handle, _) = site.resolve(handle)?;
        Ok((site, handle))
    }
}

#[async_trait]
impl RemoteDriver for Driver {
    fn info(&self) -> PluginInfo {
        PluginInfo::new("slurm", env!("CARGO_PKG_VERSION"))
    }

    fn config_schema(&self) -> Option<Spec> {
        Some(PluginConfig::schema())
    }

    async fn set_config(&self, config: Config, agent: Option<AgentConfig>) -> Result<(), Error> {
        let config = PluginConfig::decode(config)?;
        config.check()?;
        let (site, why) = match (&config.base, agent) {
            (None, _) => (None, "the driver has no directory; set `base` in the plugin's configuration".to_owned()),
            // Without a node the configuration is only being checked.
            (Some(_), None) => (None, "the plugin's configuration was checked and not put into force".to_owned()),
            (Some(base), Some(_)) => {
                let (config, base) = (config.clone(), base.clone());
                match on_disk(move || Site::open(&config, &base)).await {
                    Ok(site) => (Some(Arc::new(site)), String::new()),
                    Err(why) => (None, format!("{why}; then run `drover node drivers reload`")),
                }
            }
        };
        *lock(&self.site) = site;
        *lock(&self.missing) = why;
        *lock(&self.config) = config;
        Ok(())
    }

    fn task_config_schema(&self) -> Spec {
        TaskOptions::schema()
    }

    async fn fingerprint(&self) -> Fingerprint {
        let Ok(site) = self.site() else {
            return Fingerprint::undetected(lock(&self.missing).clone());
        };
        let base = site.base.clone();
        if let Err(why) = on_disk(move || base.here()).await {
            return Fingerprint::unhealthy(why.to_string());
        }
        match site.ping().await {
            Err(why) => Fingerprint::unhealthy(why.to_string()),
            Ok(()) => {
                let found = Fingerprint::healthy()
                    .with("driver.slurm", "true")
                    .with("driver.slurm.base", site.base.root.display())
                    .with("driver.slurm.provider", site.provider());
                match site.tracking().await {
                    None => found,
                    Some(kind) if kind == tables::WHOLE_TREE => found.with("driver.slurm.proctrack", kind),
                    Some(kind) => Fingerprint {
                        description: format!(
                            "Healthy. The cluster tracks processes by {kind}: what leaves the session of its task \
                                outlives a stop; set ProctrackType={} in slurm.conf",
                            tables::WHOLE_TREE
                        ),
                        ..found.with("driver.slurm.proctrack", kind)
                    },
                }
            }
        }
    }

    async fn examine(&self) -> Vec<Finding> {
        match self.site() {
            Ok(site) => doctor::examine(&site).await,
            // The fingerprint says why.
            Err(_) => Vec::new(),
        }
    }

    fn fingerprint_interval(&self) -> Duration {
        Duration::from_secs(15)
    }

    fn describe(&self) -> Description {
        let config = lock(&self.config).clone();
        let site = lock(&self.site).clone();
        Description {
            provider: site.map(|site| site.provider()).unwrap_or_default(),
            keyed_create: true,
            find: true,
            list: true,
            list_owners: true,
            // Epochs are compared under a lock of the run directory. The controller compares nothing: a `scancel` that
            // was sent before a hand-over still takes effect after it.
            conditional_writes: false,
            seal: true,
            retained_exit_results: true,
            logs: true,
            exec: true,
            signals: true,
            stats: true,
            file_upload: true,
            refresh: true,
            volumes: false,
            watch: false,
            handle_schema_min: HandleV1::VERSION.into(),
            handle_schema_max: HandleV1::VERSION.into(),
            pool_cpu_mhz: config.pool_cpu_mhz,
            pool_memory_mib: config.pool_memory_mib,
            staleness: Duration::ZERO,
        }
    }

    async fn ensure(&self, request: Ensure) -> Answer<Ensured> {
        self.site()?.ensure(request).await
    }

    async fn find(&self, key: &str, owner: &str) -> Answer<(RemoteHandle, Observation)> {
        self.site()?.find(key, owner, false).await
    }

    async fn look_up(&self, lookup: Lookup) -> Answer<(RemoteHandle, Observation)> {
        self.site()?.find(&lookup.key, &lookup.owner, lookup.create_follows).await
    }

    async fn list(&self, owner: &str, page_token: &str, page_size: usize) -> Answer<Page> {
        self.site()?.list(owner, page_token, page_size).await
    }

    async fn observe(&self, handles: &[RemoteHandle]) -> Answer<Vec<Observation>> {
        let site = self.site()?;
        let read: Vec<Answer<HandleV1>> = handles.iter().map(|h| site.resolve(h).map(|(handle, _)| handle)).collect();
        let asked: Vec<HandleV1> = read.iter().flatten().cloned().collect();
        let mut seen = site.look(&asked).await.into_iter();
        let mut answer = |handle: Answer<HandleV1>| match handle {
            Ok(handle) => seen.next().unwrap_or_else(|| Observation::unknown(handle.key, "it was not looked at")),
            Err(why) => Observation::unknown("", why),
        };
        Ok(read.into_iter().map(&mut answer).collect())
    }

    fn watch_interval(&self) -> Duration {
        self.site().map_or_else(|_| lock(&self.config).poll_interval, |site| site.pace())
    }

    fn observe_rate(&self) -> f64 {
        // Looks need no limit: whoever asks, the queue is read at most twice a second.
        lock(&self.config).submissions_per_second
    }

    fn observe_batch(&self) -> usize {
        // One call of squeue shows all.
        10_000
    }

    fn watch_patience(&self) -> Duration {
        // The commands themselves wait for a controller for up to 18 s.
        Duration::from_secs(20)
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
        _intent: &[u8],
    ) -> Answer<Option<(RemoteHandle, Observation)>> {
        self.site()?.seal(key, epoch, owner).await
    }

    async fn acknowledge(&self, handle: &RemoteHandle, epoch: u64) -> Answer<()> {
        let (site, handle) = self.resolve(handle)?;
        site.acknowledge(&handle, epoch).await?;
        lock(&self.samples).remove(&handle.key);
        Ok(())
    }

    async fn logs(&self, handle: &RemoteHandle, query: LogsQuery, sink: mpsc::Sender<LogChunk>) -> Answer<()> {
        let (site, handle) = self.resolve(handle)?;
        let Some((about, files)) = site.files(&handle).await?.filter(|(_, files)| !files.acknowledged) else {
            return Err(RemoteError::gone(format!("there is no instance {}", handle.key)));
        };
        drop(files);
        let (file, stream) = match query.stream {
            LogStream::Stdout => ("out", "stdout"),
            LogStream::Stderr => ("err", "stderr"),
        };
        let path = site.place(&handle.key).dir.join(file);
        let name = format!("{}.{stream}.0", about.task);
        logs::send(&path, &name, query.offset, query.from_end, query.follow, &sink).await
    }

    async fn signal(&self, handle: &RemoteHandle, epoch: u64, signal: &str) -> Answer<()> {
        let (site, handle) = self.resolve(handle)?;
        let name = signal.trim_start_matches("SIG");
        if !is_signal(name) {
            return Err(RemoteError::wrong_request(format!(
                "{signal:?} is not the name of a signal; use one such as SIGHUP"
            )));
        }
        let (job, _) = site.claimant(&handle, epoch).await?;
        site.send(&site.place(&handle.key), job, name).await
    }

    async fn refresh(&self, handle: &RemoteHandle, epoch: u64, bundle: Bundle) -> Answer<()> {
        let (site, handle) = self.resolve(handle)?;
        let Some((_, found)) = site.files(&handle).await?.filter(|(_, files)| !files.acknowledged) else {
            return Err(RemoteError::gone(format!("there is no instance {}", handle.key)));
        };
        drop(found);
        let seen = site.look(std::slice::from_ref(&handle)).await.pop().unwrap_or_default();
        match seen.state {
            InstanceState::Exited => {
                return Err(RemoteError::wrong_request(format!("the instance {} has ended", handle.key)));
            }
            InstanceState::Gone => return Err(RemoteError::gone(seen.reason)),
            InstanceState::Unknown => return Err(RemoteError::could_not_ask(seen.reason)),
            InstanceState::Creating | InstanceState::Running => {}
        }
        let place = site.place(&handle.key);
        on_disk(move || place.under(epoch, || as_owner(&place.dir, || files::renew(&place.dir, &bundle)))).await
    }

    async fn stats(&self, handle: &RemoteHandle) -> Answer<Option<TaskUsage>> {
        let (site, handle) = self.resolve(handle)?;
        let last = lock(&self.samples).get(&handle.key).cloned();
        if let Some((at, _, sample)) = &last
            && at.elapsed() < SAMPLE
        {
            return Ok(sample.clone());
        }
        let Some((_, files)) = site.files(&handle).await? else { return Ok(None) };
        let Some(Claim::Job { number, .. }) = files.claim.filter(|_| files.exit.is_none()) else {
            return Ok(None);
        };
        let now = Instant::now();
        let used = site.usage(number).await?;
        // Just after its start Slurm has measured nothing.
        let Some((seconds, memory)) = used else { return Ok(Some(TaskUsage::default())) };
        let percent = last
            .map(|(at, before, _)| (seconds - before).max(0.0) / now.duration_since(at).as_secs_f64().max(0.1) * 100.0);
        let memory = MemoryUsage { rss: Some(memory), usage: Some(memory), ..MemoryUsage::default() };
        let total = Usage { cpu: CpuUsage { percent, ..CpuUsage::default() }, memory };
        let sample = Some(TaskUsage { total, ..TaskUsage::default() });
        lock(&self.samples).insert(handle.key, (now, seconds, sample.clone()));
        Ok(sample)
    }

    async fn exec(
        &self,
        handle: &RemoteHandle,
        epoch: u64,
        command: Vec<String>,
        tty: bool,
        io: ExecIo,
    ) -> Answer<TaskExit> {
        let (site, handle) = self.resolve(handle)?;
        let (_, job) = site.claimant(&handle, epoch).await?;
        exec::run(&site, &site.place(&handle.key), job, &command, tty, io).await
    }
}

//! The driver.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use driver_sdk::config::Config;
use driver_sdk::schema::Spec;
use driver_sdk::{
    AgentConfig, Bundle, CpuUsage, Description, DriverConfig as _, DriverState as _, Ensure, Ensured, Error, Finding,
    Fingerprint, InstanceState, LogChunk, LogStream, LogsQuery, MemoryUsage, Observation, Page, PluginInfo,
    RemoteDriver, RemoteError, RemoteHandle, StopTask, TaskUsage, Usage, async_trait,
};
use hpc::rights::as_owner;
use hpc::{Answer, files, logs};
use tokio::sync::mpsc;

use crate::config::{PluginConfig, TaskOptions};
use crate::doctor;
use crate::pool::{HandleV1, Pool, on_disk};

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The driver `htcondor`.
#[derive(Default)]
pub struct Driver {
    config: Mutex<PluginConfig>,
    pool: Mutex<Option<Arc<Pool>>>,
    /// Why there is no pool.
    missing: Mutex<String>,
    /// What execute nodes have told of the use of instances.
    samples: Mutex<HashMap<String, Sample>>,
}

/// The use of an instance. Its node tells of it now and then: what counts is from one change to the next.
#[derive(Debug, Clone, Copy)]
struct Sample {
    /// Seconds of processor time.
    seconds: f64,
    /// When that was first seen; `None`: it was there before anybody looked.
    since: Option<Instant>,
    percent: Option<f64>,
}

impl Sample {
    fn next(last: Option<Self>, seconds: f64, now: Instant) -> Self {
        match last {
            None => Self { seconds, since: None, percent: None },
            Some(last) if last.seconds >= seconds => last,
            Some(last) => {
                let over = |since: Instant| now.duration_since(since).as_secs_f64().max(0.1);
                let percent = last.since.map(|since| (seconds - last.seconds) / over(since) * 100.0);
                Self { seconds, since: Some(now), percent: percent.or(last.percent) }
            }
        }
    }
}

impl Driver {
    /// A driver without a pool; `set_config` names it.
    pub fn new() -> Self {
        Self::default()
    }

    fn pool(&self) -> Answer<Arc<Pool>> {
        lock(&self.pool).clone().ok_or_else(|| RemoteError::could_not_ask(lock(&self.missing).clone()))
    }

    fn resolve(&self, handle: &RemoteHandle) -> Answer<(Arc<Pool>, HandleV1)> {
        let pool = self.pool()?;
        let handle = pool.resolve(handle)?;
        Ok((pool, handle))
    }
}

#[async_trait]
impl RemoteDriver for Driver {
    fn info(&self) -> PluginInfo {
        PluginInfo::new("htcondor", env!("CARGO_PKG_VERSION"))
    }

    fn config_schema(&self) -> Option<Spec> {
        Some(PluginConfig::schema())
    }

    async fn set_config(&self, config: Config, agent: Option<AgentConfig>) -> Result<(), Error> {
        let config = PluginConfig::decode(config)?;
        config.check()?;
        let named = (config.base.clone(), config.schedd.clone().filter(|schedd| !schedd.is_empty()));
        let (pool, why) = match (named, agent) {
            // Without a node the configuration is only being checked.
            (_, None) => (None, "the plugin's configuration was checked and not put into force".to_owned()),
            ((Some(base), Some(schedd)), Some(_)) => match Pool::open(&config, &base, &schedd).await {
                Ok(pool) => (Some(Arc::new(pool)), String::new()),
                Err(why) => (None, format!("{why}; then run `drover node drivers reload`")),
            },
            _ => (None, "set `base` and `schedd` in the plugin's configuration".to_owned()),
        };
        *lock(&self.pool) = pool;
        *lock(&self.missing) = why;
        *lock(&self.config) = config;
        Ok(())
    }

    fn task_config_schema(&self) -> Spec {
        TaskOptions::schema()
    }

    async fn fingerprint(&self) -> Fingerprint {
        let Ok(pool) = self.pool() else {
            return Fingerprint::undetected(lock(&self.missing).clone());
        };
        let base = pool.base.clone();
        let there = on_disk(move || base.here()).await;
        match there.and(pool.ping().await) {
            Err(why) => Fingerprint::unhealthy(why.to_string()),
            Ok(()) => Fingerprint::healthy()
                .with("driver.htcondor", "true")
                .with("driver.htcondor.provider", &pool.provider)
                .with("driver.htcondor.schedd", &pool.schedd),
        }
    }

    async fn examine(&self) -> Vec<Finding> {
        match self.pool() {
            Ok(pool) => doctor::examine(&pool).await,
            // The fingerprint says why.
            Err(_) => Vec::new(),
        }
    }

    fn fingerprint_interval(&self) -> Duration {
        Duration::from_secs(15)
    }

    fn describe(&self) -> Description {
        let config = lock(&self.config).clone();
        let provider = lock(&self.pool).as_ref().map(|pool| pool.provider.clone());
        Description {
            provider: provider.unwrap_or_default(),
            keyed_create: true,
            find: true,
            list: true,
            list_owners: true,
            // The schedd compares the epoch when it removes a job or changes it.
            conditional_writes: true,
            seal: true,
            retained_exit_results: true,
            logs: true,
            exec: false,
            signals: false,
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
        self.pool()?.ensure(request).await
    }

    async fn find(&self, key: &str, owner: &str) -> Answer<(RemoteHandle, Observation)> {
        self.pool()?.find(key, owner).await
    }

    async fn list(&self, owner: &str, page_token: &str, page_size: usize) -> Answer<Page> {
        self.pool()?.list(owner, page_token, page_size).await
    }

    async fn observe(&self, handles: &[RemoteHandle]) -> Answer<Vec<Observation>> {
        let pool = self.pool()?;
        let read: Vec<Answer<HandleV1>> = handles.iter().map(|handle| pool.resolve(handle)).collect();
        let asked: Vec<HandleV1> = read.iter().flatten().cloned().collect();
        let mut seen = pool.look(&asked).await.into_iter();
        let mut answer = |handle: Answer<HandleV1>| match handle {
            Ok(handle) => seen.next().unwrap_or_else(|| Observation::unknown(handle.key, "it was not looked at")),
            Err(why) => Observation::unknown("", why),
        };
        Ok(read.into_iter().map(&mut answer).collect())
    }

    fn watch_interval(&self) -> Duration {
        lock(&self.config).poll_interval
    }

    fn observe_batch(&self) -> usize {
        // One call of condor_q shows all.
        10_000
    }

    fn watch_patience(&self) -> Duration {
        // The commands themselves wait for a silent schedd for 20 s.
        Duration::from_secs(25)
    }

    async fn stop(&self, handle: &RemoteHandle, epoch: u64, stop: StopTask) -> Answer<Observation> {
        let (pool, handle) = self.resolve(handle)?;
        pool.stop(&handle, epoch, &stop).await
    }

    async fn seal(
        &self,
        key: &str,
        epoch: u64,
        owner: &str,
        _intent: &[u8],
    ) -> Answer<Option<(RemoteHandle, Observation)>> {
        self.pool()?.seal(key, epoch, owner).await
    }

    async fn acknowledge(&self, handle: &RemoteHandle, epoch: u64) -> Answer<()> {
        let (pool, handle) = self.resolve(handle)?;
        lock(&self.samples).remove(&handle.key);
        pool.acknowledge(&handle, epoch).await
    }

    async fn logs(&self, handle: &RemoteHandle, query: LogsQuery, sink: mpsc::Sender<LogChunk>) -> Answer<()> {
        let (pool, handle) = self.resolve(handle)?;
        let job = pool.job(&handle).await?;
        let dir = pool.base.place(&handle.key).dir;
        // Somebody may have taken the job out of the queue: the files are there until the end is acknowledged.
        let task = match &job {
            Some(job) if !job.acknowledged() => job.task(),
            None if dir.exists() => "task",
            _ => return Err(RemoteError::gone(format!("there is no instance {}", handle.key))),
        };
        let (file, stream) = match query.stream {
            LogStream::Stdout => ("out", "stdout"),
            LogStream::Stderr => ("err", "stderr"),
        };
        let (path, name) = (dir.join(file), format!("{task}.{stream}.0"));
        logs::send(&path, &name, query.offset, query.from_end, query.follow, &sink).await
    }

    async fn refresh(&self, handle: &RemoteHandle, epoch: u64, bundle: Bundle) -> Answer<()> {
        let (pool, handle) = self.resolve(handle)?;
        pool.under(&handle, epoch).await?;
        let seen = pool.look(std::slice::from_ref(&handle)).await.pop().unwrap_or_default();
        match seen.state {
            InstanceState::Exited => {
                return Err(RemoteError::wrong_request(format!("the instance {} has ended", handle.key)));
            }
            InstanceState::Gone => return Err(RemoteError::gone(seen.reason)),
            InstanceState::Unknown => return Err(RemoteError::could_not_ask(seen.reason)),
            InstanceState::Creating | InstanceState::Running => {}
        }
        let dir = pool.base.place(&handle.key).dir;
        on_disk(move || as_owner(&dir, || files::renew(&dir, &bundle))).await
    }

    async fn stats(&self, handle: &RemoteHandle) -> Answer<Option<TaskUsage>> {
        let (pool, handle) = self.resolve(handle)?;
        let Some(job) = pool.job(&handle).await?.filter(|job| job.host().is_some()) else { return Ok(None) };
        let (seconds, memory) = job.usage();
        let mut samples = lock(&self.samples);
        let sample = Sample::next(samples.get(&handle.key).copied(), seconds, Instant::now());
        samples.insert(handle.key, sample);
        let percent = sample.percent;
        let memory = MemoryUsage { rss: memory, usage: memory, ..MemoryUsage::default() };
        let total = Usage { cpu: CpuUsage { percent, ..CpuUsage::default() }, memory };
        Ok(Some(TaskUsage { total, ..TaskUsage::default() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn use_is_measured_from_one_report_of_the_node_to_the_next() {
        let begun = Instant::now();
        let told = [(0, 50.0), (1, 50.0), (2, 55.0), (3, 55.0), (7, 60.0), (8, 60.0)];
        let (mut last, mut percent) = (None, Vec::new());
        for (second, seconds) in told {
            let sample = Sample::next(last, seconds, begun + Duration::from_secs(second));
            percent.push(sample.percent);
            last = Some(sample);
        }
        assert_eq!(percent, [None, None, None, None, Some(100.0), Some(100.0)]);
    }
}

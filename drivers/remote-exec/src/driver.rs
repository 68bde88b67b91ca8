//! The remote driver trait over channels to hosts.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use driver_sdk::DriverConfig as _;
use driver_sdk::config::Config;
use driver_sdk::exec::ExecIo;
use driver_sdk::schema::Spec;
use driver_sdk::{
    AgentConfig, Bundle, Description, Ensure, Ensured, Error, Finding, Fingerprint, Instance, LogChunk, LogStream,
    LogsQuery, Lookup, Observation, ObservationSink, Page, PluginInfo, RemoteDriver, RemoteError, RemoteHandle,
    StopTask, TaskExit, TaskUsage, async_trait,
};
use executor_client::host::host_request::Op;
use executor_client::host::{
    HostAcknowledge, HostKey, HostKeys, HostList, HostLogs, HostRefresh, HostSignal, HostStop, host_reply::Body,
};
use executor_client::{HostCall, HostChannel, Meter, signal_number};
use futures::future::join_all;
use futures::stream::{FuturesUnordered, StreamExt};
use process_driver::usage;
use tokio::sync::mpsc;

use crate::beside;
use crate::config::{PluginConfig, TaskOptions, Transport};
use crate::doctor;
use crate::host::{Host, Status};
use crate::pool::{ANSWER, Pool, SCHEMA, Target, answer, key_of, late, with_files};
use crate::whereabouts::{Leads, shared};
use crate::wire;

const DEFAULT_STOP_SIGNAL: &str = "SIGINT";
/// Hosts that are asked for a list at the same time. Those that hang are waited for together.
const LISTED_AT_ONCE: usize = 16;
/// After so long a page ends with the hosts that were asked: the servers wait 30 s for one, and 15 s is what a host
/// that hangs takes.
const LISTED_WITHIN: Duration = Duration::from_secs(5);
/// Interval of looks at a host that is watched.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// How long a fingerprint waits for hosts that are being connected to for the first time.
const NEWS: Duration = Duration::from_secs(2);

/// The driver `remote_exec`.
#[derive(Default)]
pub struct Driver {
    config: Mutex<PluginConfig>,
    pool: Mutex<Option<Pool>>,
    meters: Mutex<HashMap<String, Arc<Meter>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Driver {
    /// A driver without a runtime; `set_config` names it.
    pub fn new() -> Driver {
        Driver::default()
    }

    fn pool(&self) -> Result<Pool, RemoteError> {
        lock(&self.pool).clone().ok_or_else(|| {
            RemoteError::could_not_ask(
                "no runtime is configured on this node; set `root`, or transport \"ssh\" with hosts, in the plugin's \
                    configuration",
            )
        })
    }

    /// One answer about the instance of a handle.
    async fn ask(&self, target: &Target, epoch: u64, op: Op) -> Result<(Body, i64), RemoteError> {
        let channel = target.channel().await?;
        let body = answer(&channel, &target.host, epoch, op).await?;
        Ok((body, channel.clock_ahead_ms()))
    }

    /// One look at each of some instances on one host.
    async fn look(&self, host: &Arc<Host>, targets: &[Target]) -> Vec<Observation> {
        let mut seen: Vec<Observation> = Vec::with_capacity(targets.len());
        let (mut asked, mut keys) = (Vec::new(), Vec::new());
        for (n, target) in targets.iter().enumerate() {
            match target.channel().await {
                Ok(channel) => {
                    asked.push((n, channel));
                    keys.push(target.key.clone());
                    seen.push(Observation::unknown(&target.key, "the host left it out"));
                }
                Err(e) => seen.push(Observation::unknown(&target.key, e)),
            }
        }
        let Some((_, channel)) = asked.first() else {
            return seen;
        };
        match answer(channel, host, 0, Op::Observe(HostKeys { keys })).await {
            Ok(Body::Observed(observed)) => {
                for ((n, channel), found) in asked.iter().zip(observed.seen) {
                    seen[*n] = wire::observation(host, found, channel.clock_ahead_ms());
                }
            }
            Ok(_) => asked
                .iter()
                .for_each(|(n, _)| seen[*n] = Observation::unknown(&targets[*n].key, wire::unexpected(host))),
            Err(e) => asked.iter().for_each(|(n, _)| seen[*n] = Observation::unknown(&targets[*n].key, &e)),
        }
        seen
    }
}

/// What people should know of a name in the inventory.
fn said(name: &str, leads: &Leads) -> Option<String> {
    match leads {
        Leads::Own => None,
        Leads::Same(other) => Some(format!("host {name} is the same host as {other}")),
        Leads::Shared(other) => Some(shared(name, other)),
    }
}

/// Looks at an instance now and then, and returns the look that the host has not answered in time: a watch says nothing
/// while nothing changes, nor while the host's disk hangs.
async fn unanswered(channel: &HostChannel, key: String) -> HostCall {
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let mut look = channel.call(Op::Observe(HostKeys { keys: vec![key.clone()] }));
        if tokio::time::timeout(ANSWER, look.next()).await.is_err() {
            return look;
        }
    }
}

/// Pushes what one host says about some instances, and that it says nothing while it cannot be asked. Ends when nobody
/// listens.
async fn watch_host(host: Arc<Host>, targets: Vec<Target>, sink: ObservationSink) {
    let mut last: HashMap<String, Observation> = HashMap::new();
    let mut tell = async |seen: Observation| -> bool {
        if last.get(&seen.key) == Some(&seen) {
            return true;
        }
        last.insert(seen.key.clone(), seen.clone());
        sink.send(seen).await.is_ok()
    };
    let mut status = host.subscribe();
    loop {
        status.mark_unchanged();
        let (mut keys, mut up) = (Vec::new(), None);
        for target in &targets {
            match target.channel().await {
                Ok(channel) => {
                    keys.push(target.key.clone());
                    up = Some(channel);
                }
                Err(e) => {
                    if !tell(Observation::unknown(&target.key, e)).await {
                        return;
                    }
                }
            }
        }
        let Some(channel) = up else {
            tokio::select! {
                // The sender lives as long as the host.
                _ = status.changed() => {}
                () = sink.closed() => return,
            }
            continue;
        };
        let looks = unanswered(&channel, keys[0].clone());
        tokio::pin!(looks);
        let mut call = channel.call(Op::Watch(HostKeys { keys }));
        loop {
            let next = tokio::select! {
                next = call.next() => next,
                mut look = &mut looks => {
                    for target in &targets {
                        if !tell(Observation::unknown(&target.key, late(&host, ANSWER))).await {
                            return;
                        }
                    }
                    tokio::select! {
                        _ = look.next() => break,
                        () = sink.closed() => return,
                    }
                }
                () = sink.closed() => return,
            };
            match next {
                Ok(Body::Seen(seen)) => {
                    if !tell(wire::observation(&host, seen, channel.clock_ahead_ms())).await {
                        return;
                    }
                }
                // The channel has ended: what is known of the host says why.
                _ => break,
            }
        }
        // The keeper of the channel has to notice, too.
        while matches!(host.status(), Status::Up(known) if known.is_closed()) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
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
        let config = PluginConfig::decode(&config)?;
        let transport = config.transport()?;
        // Without a node the configuration is only being checked, which must leave nothing behind and reach nobody.
        if agent.is_some() {
            let pool = match transport {
                Transport::None => None,
                Transport::Local(root) => Some(Pool::local(&root).await.map_err(Error::failed)?),
                Transport::Ssh(inventory) => Some(Pool::ssh(inventory)),
            };
            *lock(&self.pool) = pool;
        }
        *lock(&self.config) = config;
        Ok(())
    }

    fn task_config_schema(&self) -> Spec {
        TaskOptions::schema()
    }

    async fn fingerprint(&self) -> Fingerprint {
        let pool = match self.pool() {
            Ok(pool) => pool,
            Err(e) => return Fingerprint::undetected(e.to_string()),
        };
        // A host that does not answer must not keep the others from being used.
        let answers = join_all(pool.hosts.values().map(|host| host.channel_within(NEWS))).await;
        let total = answers.len();
        let missing: Vec<String> = answers.into_iter().filter_map(Result::err).map(|e| e.to_string()).collect();
        let mut fingerprint = match missing.len() {
            0 => Fingerprint::healthy(),
            n if n < total => Fingerprint {
                description: format!("{} of {total} hosts: {}", total - n, missing.join("; ")),
                ..Fingerprint::healthy()
            },
            _ => Fingerprint::unhealthy(missing.join("; ")),
        };
        let told: Vec<String> = pool.leads_now().iter().filter_map(|(name, leads)| said(name, leads)).collect();
        if !told.is_empty() {
            let before = if fingerprint.description.is_empty() {
                String::new()
            } else {
                format!("{}; ", fingerprint.description)
            };
            fingerprint.description = format!("{before}{}", told.join("; "));
        }
        fingerprint = fingerprint.with("driver.remote_exec.provider", &pool.provider);
        if pool.inventory.is_some() {
            fingerprint = fingerprint.with("driver.remote_exec.hosts", total);
        }
        fingerprint
    }

    fn fingerprint_interval(&self) -> Duration {
        Duration::from_secs(5)
    }

    fn describe(&self) -> Description {
        let config = lock(&self.config).clone();
        let pool = lock(&self.pool).clone();
        let capacity = pool.as_ref().map(Pool::capacity).unwrap_or_default();
        Description {
            provider: pool.map(|pool| pool.provider).unwrap_or_default(),
            keyed_create: true,
            find: true,
            list: true,
            list_owners: true,
            conditional_writes: true,
            seal: true,
            retained_exit_results: true,
            logs: true,
            exec: true,
            signals: true,
            stats: true,
            file_upload: true,
            refresh: true,
            // A task sees the host's own directories.
            volumes: false,
            watch: true,
            handle_schema_min: SCHEMA,
            handle_schema_max: SCHEMA,
            pool_cpu_mhz: config.pool_cpu_mhz + capacity.cpu_mhz,
            pool_memory_mib: config.pool_memory_mib + capacity.memory_mib,
            staleness: Duration::ZERO,
        }
    }

    async fn examine(&self) -> Vec<Finding> {
        match self.pool() {
            Ok(pool) => doctor::examine(&pool).await,
            // The fingerprint says so.
            Err(_) => Vec::new(),
        }
    }

    async fn ensure(&self, request: Ensure) -> Result<Ensured, RemoteError> {
        let options = TaskOptions::read(&request.task.msgpack_driver_config).map_err(RemoteError::wrong_request)?;
        let pool = self.pool()?;
        let (host, channel, ensured) = pool.ensure(&request, options).await?;
        let observed = ensured.observed.ok_or_else(|| wire::unexpected(&host))?;
        Ok(Ensured {
            handle: pool.handle(&host, &channel, &request.key)?,
            observed: wire::observation(&host, observed, channel.clock_ahead_ms()),
            created: ensured.created,
        })
    }

    async fn intent(&self, request: &Ensure) -> Result<Option<Vec<u8>>, RemoteError> {
        let options = TaskOptions::read(&request.task.msgpack_driver_config).map_err(RemoteError::wrong_request)?;
        self.pool()?.intent(request, &options).await
    }

    async fn find(&self, key: &str, owner: &str) -> Result<(RemoteHandle, Observation), RemoteError> {
        self.look_up(Lookup { key: key.to_owned(), owner: owner.to_owned(), ..Lookup::default() }).await
    }

    async fn look_up(
        &self,
        Lookup { key, owner, intent, .. }: Lookup,
    ) -> Result<(RemoteHandle, Observation), RemoteError> {
        let pool = self.pool()?;
        let (host, channel, seen) = pool.find(&key, &owner, &intent).await?;
        Ok((pool.handle(&host, &channel, &key)?, wire::observation(&host, seen, channel.clock_ahead_ms())))
    }

    async fn list(&self, owner: &str, page_token: &str, page_size: usize) -> Result<Page, RemoteError> {
        let pool = self.pool()?;
        let (from, after) = page_token.split_once('/').unwrap_or((page_token, ""));
        let mut page = Page::default();
        // A host that cannot be asked takes nothing from what the others say, but the list says that it is not all.
        let mut missing = Vec::new();
        let hosts: BTreeMap<String, _> =
            pool.distinct().await.into_iter().map(|(host, usable)| (host.name.clone(), (host, usable))).collect();
        let asked: Vec<_> = hosts.range(from.to_owned()..).collect();
        let size = page_size.max(1);
        let begun = Instant::now();
        'hosts: for some in asked.chunks(LISTED_AT_ONCE) {
            // Whoever asks waits for a page, and comes back for the rest.
            if begun.elapsed() > LISTED_WITHIN {
                page.next_page_token = some.first().map(|(name, _)| format!("{name}/")).unwrap_or_default();
                break;
            }
            let answers = join_all(some.iter().map(async |(name, (host, usable))| {
                usable.clone()?;
                let op = Op::List(HostList {
                    owner: owner.to_owned(),
                    after: if *name == from { after } else { "" }.to_owned(),
                    limit: u32::try_from(size).unwrap_or(u32::MAX),
                });
                pool.ask(host, 0, op).await
            }));
            for ((name, (host, _)), answer) in some.iter().zip(answers.await) {
                let (channel, mut listed) = match answer {
                    Ok((channel, Body::Listed(listed))) => (channel, listed),
                    Ok(_) => return Err(wire::unexpected(host)),
                    Err(RemoteError::CouldNotAsk(why)) => {
                        missing.push(why);
                        continue;
                    }
                    Err(e) => return Err(e),
                };
                let left = size - page.instances.len();
                if left == 0 {
                    page.next_page_token = format!("{name}/");
                    break 'hosts;
                }
                listed.more |= listed.instances.len() > left;
                listed.instances.truncate(left);
                for instance in listed.instances {
                    let observed =
                        wire::observation(host, instance.observed.unwrap_or_default(), channel.clock_ahead_ms());
                    page.instances.push(Instance {
                        handle: pool.handle(host, &channel, &observed.key)?,
                        epoch: observed.epoch,
                        key: observed.key.clone(),
                        owner: if instance.owner.is_empty() { owner.to_owned() } else { instance.owner },
                        slot: instance.slot,
                        observed,
                    });
                }
                if listed.more {
                    page.next_page_token =
                        page.instances.last().map(|i| format!("{name}/{}", i.key)).unwrap_or_default();
                    break 'hosts;
                }
            }
        }
        if missing.len() == hosts.len() {
            return Err(RemoteError::could_not_ask(missing.join("; ")));
        }
        page.incomplete = missing.join("; ");
        Ok(page)
    }

    async fn observe(&self, handles: &[RemoteHandle]) -> Result<Vec<Observation>, RemoteError> {
        let pool = self.pool()?;
        let mut seen: Vec<Observation> = Vec::with_capacity(handles.len());
        let mut by_host: HashMap<String, (Arc<Host>, Vec<usize>, Vec<Target>)> = HashMap::new();
        for (n, handle) in handles.iter().enumerate() {
            seen.push(match pool.resolve(handle) {
                Ok(target) => {
                    let key = target.key.clone();
                    let (_, places, targets) = by_host
                        .entry(target.host.name.clone())
                        .or_insert_with(|| (target.host.clone(), vec![], vec![]));
                    places.push(n);
                    targets.push(target);
                    Observation::unknown(key, "it has not been looked at")
                }
                Err(e) => Observation::unknown(key_of(handle), e),
            });
        }
        let looks = by_host.values().map(async |(host, places, targets)| (places, self.look(host, targets).await));
        for (places, found) in join_all(looks).await {
            for (place, observation) in places.iter().zip(found) {
                seen[*place] = observation;
            }
        }
        Ok(seen)
    }

    async fn watch(&self, handles: Vec<RemoteHandle>, sink: ObservationSink) -> Result<(), RemoteError> {
        let pool = self.pool()?;
        let mut by_host: HashMap<String, (Arc<Host>, Vec<Target>)> = HashMap::new();
        for handle in &handles {
            match pool.resolve(handle) {
                Ok(target) => {
                    by_host
                        .entry(target.host.name.clone())
                        .or_insert_with(|| (target.host.clone(), vec![]))
                        .1
                        .push(target);
                }
                Err(e) => {
                    if sink.send(Observation::unknown(key_of(handle), e)).await.is_err() {
                        return Ok(());
                    }
                }
            }
        }
        let mut hosts: FuturesUnordered<_> =
            by_host.into_values().map(|(host, targets)| watch_host(host, targets, sink.clone())).collect();
        while hosts.next().await.is_some() {}
        sink.closed().await;
        Ok(())
    }

    async fn stop(&self, handle: &RemoteHandle, epoch: u64, stop: StopTask) -> Result<Observation, RemoteError> {
        let target = self.pool()?.resolve(handle)?;
        let name = if stop.signal.is_empty() { DEFAULT_STOP_SIGNAL } else { &stop.signal };
        let signal = signal_number(name).ok_or_else(|| {
            RemoteError::wrong_request(format!("{name:?} is not the name of a signal; use one such as SIGTERM"))
        })?;
        let grace_ms = u64::try_from(stop.timeout.as_millis()).unwrap_or(u64::MAX);
        let op = Op::Stop(HostStop { key: target.key.clone(), epoch, signal, grace_ms });
        let (body, ahead) = self.ask(&target, epoch, op).await?;
        let seen = Pool::seen(&target.host, body)?.ok_or_else(|| wire::unexpected(&target.host))?;
        Ok(wire::observation(&target.host, seen, ahead))
    }

    async fn seal(
        &self,
        key: &str,
        epoch: u64,
        owner: &str,
        intent: &[u8],
    ) -> Result<Option<(RemoteHandle, Observation)>, RemoteError> {
        let pool = self.pool()?;
        let Some((host, channel, seen)) = pool.seal(key, epoch, owner, intent).await? else { return Ok(None) };
        Ok(Some((pool.handle(&host, &channel, key)?, wire::observation(&host, seen, channel.clock_ahead_ms()))))
    }

    async fn acknowledge(&self, handle: &RemoteHandle, epoch: u64) -> Result<(), RemoteError> {
        let target = self.pool()?.resolve(handle)?;
        self.ask(&target, epoch, Op::Acknowledge(HostAcknowledge { key: target.key.clone(), epoch })).await?;
        lock(&self.meters).remove(&target.key);
        Ok(())
    }

    async fn logs(
        &self,
        handle: &RemoteHandle,
        query: LogsQuery,
        sink: mpsc::Sender<LogChunk>,
    ) -> Result<(), RemoteError> {
        let target = self.pool()?.resolve(handle)?;
        let channel = target.channel().await?;
        let mut call = channel.call(Op::Logs(HostLogs {
            key: target.key.clone(),
            stderr: query.stream == LogStream::Stderr,
            offset: query.offset,
            from_end: query.from_end,
            follow: query.follow,
        }));
        loop {
            let next = tokio::select! {
                next = call.next() => next,
                () = sink.closed() => return Ok(()),
            };
            match next.map_err(|e| wire::failed(&target.host, 0, e))? {
                Body::Chunk(chunk) => {
                    let length = chunk.data.len();
                    if sink.send(LogChunk { offset: chunk.offset, data: chunk.data, file: chunk.file }).await.is_err() {
                        return Ok(());
                    }
                    call.taken(length);
                }
                Body::Done(_) => return Ok(()),
                _ => return Err(wire::unexpected(&target.host)),
            }
        }
    }

    async fn signal(&self, handle: &RemoteHandle, epoch: u64, signal: &str) -> Result<(), RemoteError> {
        let target = self.pool()?.resolve(handle)?;
        let number = signal_number(signal).ok_or_else(|| {
            RemoteError::wrong_request(format!("{signal:?} is not the name of a signal; use one such as SIGHUP"))
        })?;
        self.ask(&target, epoch, Op::Signal(HostSignal { key: target.key.clone(), epoch, signal: number }))
            .await
            .map(drop)
    }

    async fn refresh(&self, handle: &RemoteHandle, epoch: u64, bundle: Bundle) -> Result<(), RemoteError> {
        let target = self.pool()?.resolve(handle)?;
        let channel = target.channel().await?;
        let (key, files, digest) = (target.key.clone(), wire::listed(&bundle), bundle.digest.clone());
        let op = Op::Refresh(HostRefresh { key, epoch, files, digest });
        match with_files(&channel, &bundle, op).await.map_err(|e| wire::failed(&target.host, epoch, e))? {
            Body::Done(_) => Ok(()),
            _ => Err(wire::unexpected(&target.host)),
        }
    }

    async fn stats(&self, handle: &RemoteHandle) -> Result<Option<TaskUsage>, RemoteError> {
        let target = self.pool()?.resolve(handle)?;
        let channel = target.channel().await?;
        let op = Op::Stats(HostKey { key: target.key.clone() });
        let Body::Stats(answer) = channel.ask(op).await.map_err(|e| wire::failed(&target.host, 0, e))? else {
            return Err(wire::unexpected(&target.host));
        };
        let Some(stats) = answer.stats else {
            lock(&self.meters).remove(&target.key);
            return Ok(None);
        };
        let meter = lock(&self.meters).entry(target.key.clone()).or_default().clone();
        Ok(Some(usage(&stats, &meter, channel.hello().core_mhz)))
    }

    async fn exec(
        &self,
        handle: &RemoteHandle,
        epoch: u64,
        command: Vec<String>,
        tty: bool,
        io: ExecIo,
    ) -> Result<TaskExit, RemoteError> {
        let target = self.pool()?.resolve(handle)?;
        beside::run(&target, epoch, command, tty, io).await
    }
}

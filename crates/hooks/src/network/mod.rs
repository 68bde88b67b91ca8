//! The network namespace of an allocation: made before its first task starts, removed after its last one has ended.
//!
//! ```text
//! <state_dir>/networks/<alloc id>/record.json   all that an end needs, durable before anything is made
//!                                 ns            the namespace, unless a driver holds it
//!                                 plugins.log   what CNI plugins say; locked while one of them runs
//! ```
//!
//! The directory is the claim. Any agent that finds one ends what it names, however far the creation had come. Every
//! end may be repeated. While a plugin of a killed agent still runs, no other is called for the same namespace.
//!
//! Begin reading at [`AllocNetwork`]; `plan` decides, `cni` calls plugins, `netns` makes namespaces.

pub mod check;
pub mod hook;

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use driver_host::{Driver, proto::driver as wire};
use hcl_lang::interpolate;
use host::{
    network::{
        cni::{self, NetworkList, Runner},
        netns,
        plan::{self, Mode, Wanted},
        record::{self, Record},
    },
    node_env::NodeEnv,
};
use lifecycle::alloc::machine::{StartFailure, is_remote};
use model::{AllocId, Allocation, Job, TaskGroup, alloc::NetworkStatus, network::Dns};
use node_config::ClientConfig;
use tokio_util::sync::CancellationToken;
use wire::network_isolation_spec::NetworkIsolationMode;

use self::check::Verdict;
use crate::drivers::Drivers;

/// Attempts to make a network before the start fails: others may change firewall rules at the same moment.
const ATTEMPTS: u32 = 3;
/// Files of the host's resolver configuration: the host's own, and the upstream of its local resolver.
const HOST_RESOLVER: &str = "/etc/resolv.conf";
const UPSTREAM_RESOLVER: &str = "/run/systemd/resolve/resolv.conf";

/// The network settings in a task's start message.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TaskNetwork {
    /// `None` for the host's network.
    pub isolation: Option<wire::NetworkIsolationSpec>,
    /// `None` where the host's resolver configuration serves.
    pub dns: Option<wire::DnsConfig>,
}

#[derive(Debug, Default)]
struct Standing {
    /// Tasks need it: no call may end it.
    wanted: bool,
    /// An end is under way.
    ending: bool,
    /// Addresses found at its creation; they stay after its end, for the allocation's status.
    status: Option<NetworkStatus>,
    /// Verdict on the network of a former agent, once known.
    verdict: Option<Verdict>,
    /// This agent made the present network.
    own: bool,
}

/// The network of one allocation on this node.
#[derive(Debug)]
pub struct AllocNetwork {
    dir: PathBuf,
    /// Held while a call makes or ends the network.
    changing: tokio::sync::Mutex<()>,
    standing: Mutex<Standing>,
}

impl AllocNetwork {
    /// The network of an allocation that has none.
    #[cfg(test)]
    pub(crate) fn none() -> Self {
        Self { dir: PathBuf::new(), changing: tokio::sync::Mutex::default(), standing: Mutex::default() }
    }

    /// The network as a former agent has left it, or none yet.
    pub fn open(with: &Networks, alloc: AllocId) -> Self {
        let dir = with.config.networks_dir().join(alloc.to_string());
        let status = Record::read(&dir).ok().flatten().and_then(|r| r.up.then_some(r.status));
        let standing = Standing { wanted: dir.exists(), status, ..Standing::default() };
        Self { dir, changing: tokio::sync::Mutex::default(), standing: Mutex::new(standing) }
    }

    fn standing(&self) -> std::sync::MutexGuard<'_, Standing> {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its addresses, once it is up.
    pub fn status(&self) -> Option<NetworkStatus> {
        self.standing().status.clone()
    }

    /// For the node's books: the network may exist.
    pub fn claimed(&self) -> bool {
        let standing = self.standing();
        standing.wanted || standing.ending
    }

    /// Tells that no task needs it any more. True when the caller has to end it.
    pub fn release(&self) -> bool {
        let mut standing = self.standing();
        let due = standing.wanted;
        standing.wanted = false;
        standing.ending |= due;
        due
    }

    /// Makes the network that the group wants, or finds it. Tasks of an allocation may call this at the same time.
    ///
    /// # Errors
    /// Why the network is not up, and whether another attempt may succeed. A half-made network ends with the
    /// allocation.
    #[expect(clippy::await_holding_invalid_type, reason = "a network is changed or looked at by one at a time")]
    pub async fn ensure(
        self: &Arc<Self>,
        with: &Networks,
        alloc: &Allocation,
        job: &Job,
        group: &TaskGroup,
    ) -> Result<TaskNetwork, StartFailure> {
        let job_dns = group.networks.first().and_then(|n| n.dns.as_ref());
        let validation = StartFailure::Validation;
        let text = |text: &str| with.group_text(alloc, job, group, text);
        let Some(wanted) = plan::wanted(group, alloc, text).map_err(validation)? else {
            return Ok(TaskNetwork { isolation: None, dns: job_dns.map(to_wire) });
        };
        let holder = with.holder(alloc, group, &wanted).await?;
        self.standing().wanted = true;
        let _changing = self.changing.lock().await;
        let record = match self.found(with, holder.as_ref(), &alloc.id, &wanted).await? {
            Some(record) => record,
            None => {
                let made = self.make(with, holder.as_ref(), alloc.id, &wanted).await?;
                self.standing().own = true;
                if made.list.is_some() {
                    let (network, with) = (self.clone(), with.clone());
                    // In the background: no start waits for it.
                    drop(tokio::spawn(async move { with.stop.run_until_cancelled(network.learn(&with)).await }));
                }
                made
            }
        };
        self.standing().status = Some(record.status.clone());
        let read = |file: &str| fs::read_to_string(file).unwrap_or_default();
        // Containers share the files of the one that holds their network, and their driver refuses settings that it
        // cannot write there. So it gets only the job's settings, not those of the network's plugins or the host.
        let dns = match record.driver.is_empty() {
            true => plan::resolver(job_dns, record.status.dns.as_ref(), &read(HOST_RESOLVER), &read(UPSTREAM_RESOLVER)),
            false => job_dns.cloned(),
        };
        Ok(TaskNetwork { isolation: Some(isolation(&record)), dns: dns.as_ref().map(to_wire) })
    }

    /// The existing network, if it is up. Ends one that a former agent did not finish, or that a reboot has left.
    async fn found(
        &self,
        with: &Networks,
        holder: Option<&Driver>,
        alloc: &AllocId,
        wanted: &Wanted,
    ) -> Result<Option<Record>, StartFailure> {
        if !self.dir.exists() {
            return Ok(None);
        }
        // The agent inspects a former agent's network before another task joins it.
        if !self.standing().own && Record::read(&self.dir).is_ok_and(|r| r.is_some_and(|r| r.up)) {
            self.inspect_changing(with).await;
        }
        if let Ok(Some(mut record)) = Record::read(&self.dir)
            && record.up
        {
            let stands = match holder {
                None => netns::is_namespace(Path::new(&record.path)),
                // Creation is idempotent: for the same allocation, the driver returns the same namespace.
                Some(driver) => {
                    let (spec, created) = create_at(driver, *alloc, &wanted.hostname).await?;
                    let same = !created && spec.path == record.path;
                    record.labels = spec.labels.into_iter().collect();
                    same
                }
            };
            if stands {
                return Ok(Some(record));
            }
        }
        end(with, &self.dir)
            .await
            .map_err(|why| setup(format!("end what is left of an earlier network of the allocation: {why}")))?;
        Ok(None)
    }

    async fn make(
        &self,
        with: &Networks,
        holder: Option<&Driver>,
        alloc: AllocId,
        wanted: &Wanted,
    ) -> Result<Record, StartFailure> {
        let list = chain(with, &wanted.mode).map_err(setup)?;
        let mut attempt = 1;
        loop {
            match self.attempt(with, holder, alloc, wanted, list.as_ref()).await {
                Ok(record) => return Ok(record),
                Err(why) => {
                    tracing::warn!(%alloc, ?why, attempt, "the network of an allocation could not be made");
                    let ended = end(with, &self.dir).await;
                    if attempt == ATTEMPTS || ended.is_err() {
                        if let Err(error) = ended {
                            tracing::warn!(%alloc, error, "what there is of it stays until the next sweep");
                        }
                        return Err(why);
                    }
                    attempt += 1;
                    tokio::time::sleep(Duration::from_millis(u64::from(attempt) * 100)).await;
                }
            }
        }
    }

    async fn attempt(
        &self,
        with: &Networks,
        holder: Option<&Driver>,
        alloc: AllocId,
        wanted: &Wanted,
        list: Option<&NetworkList>,
    ) -> Result<Record, StartFailure> {
        let own = self.dir.join("ns");
        let mut record = Record {
            driver: holder.map(|d| d.name().to_owned()).unwrap_or_default(),
            path: if holder.is_none() { own.display().to_string() } else { String::new() },
            hostname: wanted.hostname.clone(),
            args: wanted.args.clone(),
            ports: if list.is_some() { wanted.ports.clone() } else { Vec::new() },
            list: list.cloned(),
            ..Record::default()
        };
        self.write(&record).await?;
        match holder {
            Some(driver) => {
                let (spec, _) = create_at(driver, alloc, &wanted.hostname).await?;
                record.path = spec.path;
                record.labels = spec.labels.into_iter().collect();
                self.write(&record).await?;
            }
            None => {
                let made = blocking::spawn(move || netns::create(&own)).await;
                let made = made.unwrap_or_else(|e| Err(std::io::Error::other(e)));
                made.map_err(|e| {
                    setup(format!("make a network namespace: {e}; it needs root and a kernel with network namespaces"))
                })?;
            }
        }
        if let Some(list) = list {
            let log = record::lock(&self.dir).await.map_err(setup)?;
            let container = alloc.to_string();
            let runner = Runner {
                dirs: &with.config.network.cni_path,
                container: &container,
                netns: Some(Path::new(&record.path)),
                args: &record.args,
                ports: &record.ports,
                log: &log,
            };
            let result = runner.add(list).await.map_err(|e| setup(format!("join the network {:?}: {e}", list.name)))?;
            record.status = cni::status(&result);
            record.result = Some(result);
        }
        record.up = true;
        self.write(&record).await?;
        Ok(record)
    }

    async fn write(&self, record: &Record) -> Result<(), StartFailure> {
        let (record, dir) = (record.clone(), self.dir.clone());
        let written = blocking::spawn(move || record.write(&dir)).await;
        let written = written.unwrap_or_else(|e| Err(std::io::Error::other(e)));
        written.map_err(|e| setup(format!("write the record of the network in {}: {e}", self.dir.display())))
    }

    /// Ends it, unless a task wants it again. Idempotent.
    ///
    /// # Errors
    /// What could not be ended; it stays recorded.
    #[expect(clippy::await_holding_invalid_type, reason = "a network is changed or looked at by one at a time")]
    pub async fn end(&self, with: &Networks) -> Result<(), String> {
        let _changing = self.changing.lock().await;
        let done = if self.standing().wanted { Ok(()) } else { end(with, &self.dir).await };
        self.standing().ending = false;
        done
    }
}

fn setup(why: String) -> StartFailure {
    StartFailure::Setup { why, recoverable: true }
}

fn to_wire(dns: &Dns) -> wire::DnsConfig {
    wire::DnsConfig { servers: dns.servers.clone(), searches: dns.searches.clone(), options: dns.options.clone() }
}

fn isolation(record: &Record) -> wire::NetworkIsolationSpec {
    let hosts = wire::HostsConfig { hostname: record.hostname.clone(), address: record.status.address.clone() };
    wire::NetworkIsolationSpec {
        mode: NetworkIsolationMode::Group.into(),
        path: record.path.clone(),
        labels: record.labels.clone().into_iter().collect(),
        hosts_config: (hosts != wire::HostsConfig::default()).then_some(hosts),
    }
}

/// The means to make and end networks on this node. Cheap to clone.
#[derive(Clone)]
pub struct Networks {
    /// Where networks are recorded, and their limits.
    pub config: Arc<ClientConfig>,
    /// Drivers, some of which make the namespace themselves.
    pub drivers: Arc<Drivers>,
    /// Resolves the names in hostnames.
    pub env: NodeEnv,
    /// Cancelled when the node stops; waiting calls give up.
    pub stop: CancellationToken,
}

impl Networks {
    /// Replaces `${…}` by the names that are valid in a group.
    fn group_text(&self, alloc: &Allocation, job: &Job, group: &TaskGroup, text: &str) -> String {
        if text.contains("${") { interpolate(text, &self.env.group_vars(alloc, job, group)) } else { text.to_owned() }
    }

    /// The driver that holds the namespaces of the group itself, if there is one. Refuses drivers whose tasks could not
    /// join.
    async fn holder(
        &self,
        alloc: &Allocation,
        group: &TaskGroup,
        wanted: &Wanted,
    ) -> Result<Option<Driver>, StartFailure> {
        let mut holder: Option<Driver> = None;
        for task in group.tasks.iter().filter(|t| !is_remote(alloc, &t.name)) {
            let driver = self
                .drivers
                .in_time(&task.driver)
                .await
                .map_err(|why| StartFailure::Driver { why, recoverable: true })?;
            let offered = driver.capabilities().unwrap_or_default();
            if !offered.network_modes.contains(&driver_host::NetworkMode::Group) {
                return Err(StartFailure::Validation(format!(
                    "the network of group {:?} has a namespace of its own ({:?}), which driver {:?} of task {:?} \
                        cannot join; use network mode \
                     \"host\", or another driver",
                    &*group.name, wanted.mode, task.driver, &*task.name
                )));
            }
            match &holder {
                _ if !offered.must_create_network => {}
                Some(other) if other.name() != driver.name() => {
                    return Err(StartFailure::Validation(format!(
                        "drivers {:?} and {:?} both make the network of their group themselves; tasks of both cannot \
                            share a group with a network \
                         of its own",
                        other.name(),
                        driver.name()
                    )));
                }
                _ => holder = Some(driver),
            }
        }
        Ok(holder)
    }
}

/// The namespace that a driver holds; true when it is new.
async fn create_at(
    driver: &Driver,
    alloc: AllocId,
    hostname: &str,
) -> Result<(wire::NetworkIsolationSpec, bool), StartFailure> {
    let failed = |why: String, recoverable| StartFailure::Driver { why, recoverable };
    let (spec, created) = driver.create_network(&alloc.to_string(), hostname).await.map_err(|e| {
        failed(format!("driver {:?} makes no network for the group: {e}", driver.name()), e.recoverable())
    })?;
    let spec = spec.filter(|s| !s.path.is_empty());
    spec.map(|s| (s, created))
        .ok_or_else(|| failed(format!("driver {:?} has made a network without a namespace", driver.name()), false))
}

/// The plugins of the mode; `None` = no plugin at all.
fn chain(with: &Networks, mode: &Mode) -> Result<Option<NetworkList>, String> {
    let config = &with.config.network;
    match mode {
        Mode::None => Ok(None),
        Mode::Bridge => Ok(Some(plan::bridge(config, |plugin| cni::find(&config.cni_path, plugin).is_some()))),
        Mode::Cni(name) => {
            let dir = &config.cni_config_dir;
            let (mut known, wrong) = cni::networks(dir);
            let wrong = if wrong.is_empty() { String::new() } else { format!("; not readable: {}", wrong.join(", ")) };
            known
                .remove(name)
                .map(Some)
                .ok_or_else(|| format!("there is no CNI network {name:?} in {}{wrong}", dir.display()))
        }
    }
}

/// Ends the network that a directory records, then removes the directory. Idempotent; a failed part stays recorded.
///
/// # Errors
/// What could not be ended.
pub async fn end(with: &Networks, dir: &Path) -> Result<(), String> {
    if !dir.exists() {
        return Ok(());
    }
    let alloc = dir.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    // A plugin of a killed agent may still run.
    let log = record::lock(dir).await?;
    let record =
        Record::read(dir).map_err(|e| format!("the record in {} is damaged: {e}", dir.display()))?.unwrap_or_default();
    let mut spec = wire::NetworkIsolationSpec {
        mode: NetworkIsolationMode::Group.into(),
        path: record.path.clone(),
        labels: record.labels.clone().into_iter().collect(),
        hosts_config: None,
    };
    let mut driver = None;
    if !record.driver.is_empty() {
        let patience = with.config.patience.driver;
        let held = with.drivers.get(&record.driver, patience).await?;
        let ready = tokio::time::timeout(patience, held.wait_ready(0)).await;
        ready.map_err(|_| format!("driver {:?}, which holds the namespace, is not available", record.driver))?;
        if spec.path.is_empty() {
            // The agent was killed before it recorded the answer. The driver returns the same namespace again.
            let (found, _) = held.create_network(&alloc, &record.hostname).await.map_err(|e| e.to_string())?;
            spec = found.unwrap_or(spec);
        }
        driver = Some(held);
    }
    if let Some(list) = &record.list {
        let path = Path::new(&spec.path);
        let runner = Runner {
            dirs: &with.config.network.cni_path,
            container: &alloc,
            netns: netns::is_namespace(path).then_some(path),
            args: &record.args,
            ports: &record.ports,
            log: &log,
        };
        runner
            .del(list, record.result.as_ref())
            .await
            .map_err(|e| format!("leave the network {:?}: {e}", list.name))?;
    }
    if let Some(driver) = driver {
        driver.destroy_network(&alloc, Some(spec)).await.map_err(|e| e.to_string())?;
    }
    drop(log);
    let dir = dir.to_owned();
    let removed = blocking::spawn(move || {
        netns::remove(&dir.join("ns"))?;
        record::remove(&dir)
    });
    removed.await.map_err(|e| e.to_string())?.map_err(|e| format!("remove the network namespace: {e}"))
}

/// As [`end`], without waiting for a driver: a namespace that a driver holds stays for later.
///
/// # Errors
/// As those of [`end`].
pub async fn end_without_driver(with: &Networks, dir: &Path) -> Result<(), String> {
    match Record::read(dir) {
        Ok(Some(record)) if !record.driver.is_empty() => Err(format!("driver {:?} holds it", record.driver)),
        _ => end(with, dir).await,
    }
}

/// The addresses of an allocation, for the servers: from its own network, or those that they know already. On the
/// host's network, interface and address stay empty. The group's resolver settings apply where the network has none.
pub fn reached(own: Option<NetworkStatus>, known: Option<&NetworkStatus>, group: Option<&TaskGroup>) -> NetworkStatus {
    let mut status = own.or_else(|| known.cloned()).unwrap_or_default();
    if status.dns.is_none() {
        status.dns = group.and_then(|g| g.networks.first()).and_then(|n| n.dns.clone());
    }
    status
}

/// A network that an allocation's loop shares with its readers.
pub type SharedNetwork = Arc<AllocNetwork>;

#[cfg(test)]
mod tests {
    use model::Network;

    use super::*;

    #[test]
    fn where_an_allocation_is_reached_is_told_of_every_network() {
        let dns = |server: &str| Some(Dns { servers: vec![server.to_owned()], ..Dns::default() });
        let group = |dns| TaskGroup { networks: vec![Network { dns, ..Network::default() }], ..TaskGroup::default() };
        let status =
            |address: &str, dns| NetworkStatus { address: address.to_owned(), dns, ..NetworkStatus::default() };
        for (own, known, group, expected) in [
            (None, None, None, status("", None)),
            (None, None, Some(TaskGroup::default()), status("", None)),
            (None, None, Some(group(None)), status("", None)),
            (None, None, Some(group(dns("1.1.1.1"))), status("", dns("1.1.1.1"))),
            (
                Some(status("10.0.0.2", None)),
                Some(status("10.0.0.1", None)),
                Some(group(dns("1.1.1.1"))),
                status("10.0.0.2", dns("1.1.1.1")),
            ),
            (
                Some(status("10.0.0.2", dns("2.2.2.2"))),
                None,
                Some(group(dns("1.1.1.1"))),
                status("10.0.0.2", dns("2.2.2.2")),
            ),
            (None, Some(status("10.0.0.1", None)), None, status("10.0.0.1", None)),
        ] {
            assert_eq!(reached(own.clone(), known.as_ref(), group.as_ref()), expected, "{own:?} {known:?} {group:?}");
        }
    }
}

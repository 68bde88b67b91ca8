//! What the driver is configured with: one runtime of this machine, or the hosts of a pool.
//!
//! An instance is on one host, and a handle says on which. By its key alone it is looked for on all of them. Making one
//! in a pool is fenced by sealing: before a key is created on one host it is sealed on all others, so that a manager
//! with another view (an older inventory, an earlier attempt whose answer was lost) finds it refused wherever it tries.
//! A host that cannot be asked, or does not answer in time, may hold the key, so nothing is made until it can, or
//! until the operator takes it out of the inventory. Only the first create of a key does without: no earlier one can
//! have made anything, and a later one, which asks all hosts, finds what it has made, or waits, or has sealed its
//! place.
//!
//! Names say nothing of who a host is: that is kept on the host (`whereabouts.rs`). Several names of one host are one
//! host. Where the servers keep what a create is about to do, they keep the identity of the host that was chosen: every
//! later create of the key goes there, whatever the inventory of its manager, and is held while no
//! name leads there.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use driver_sdk::{Bundle, Ensure, RemoteError, RemoteHandle, handle};
use executor_client::host::host_request::Op;
use executor_client::host::{
    HostAmount, HostEnsured, HostFind, HostInput, HostNothing, HostObservation, HostSeal, host_reply::Body,
};
use executor_client::{CallError, HostChannel};
use futures::future::join_all;
use serde::{Deserialize, Serialize};

use crate::config::{HostConfig, Inventory, TaskOptions};
use crate::host::{Host, Way};
use crate::place::{Candidate, choose};
use crate::whereabouts::{Holder, Identity, Intent, Leads, holder, leads, shared};
use crate::wire;

/// Layout of [`HandleV1`].
pub(crate) const SCHEMA: u32 = 1;

/// The token that finds an instance again.
#[derive(Debug, Default, Serialize, Deserialize)]
struct HandleV1 {
    provider: String,
    key: String,
    /// Name of the host in the pool; empty with transport `local`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    host: String,
    /// Identity of the runtime on that host.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    runtime: String,
}

/// The key in a handle, when it can be read.
pub(crate) fn key_of(handle: &RemoteHandle) -> String {
    handle::decode::<HandleV1>(&handle.data).map(|h| h.key).unwrap_or_default()
}

/// Where a handle leads.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) host: Arc<Host>,
    pub(crate) key: String,
    /// Identity that the runtime must have; empty with transport `local`, where the provider says it.
    runtime: String,
}

impl Target {
    /// A channel to where the instance was made. The same name on another runtime knows nothing of it.
    pub(crate) async fn channel(&self) -> Result<HostChannel, RemoteError> {
        let channel = self.host.channel().await?;
        let found = &channel.hello().runtime;
        if self.runtime.is_empty() || self.runtime == *found {
            return Ok(channel);
        }
        Err(RemoteError::could_not_ask(format!(
            "{} now holds the runtime {found}, the instance was made in {}: its directory was emptied or moved, or \
                the name belongs to another \
             machine; bring it back, or forget the instance if it is lost for good",
            self.host.describe(),
            self.runtime
        )))
    }
}

/// Everything that is reached.
#[derive(Clone, Debug)]
pub(crate) struct Pool {
    pub(crate) provider: String,
    pub(crate) inventory: Option<Arc<Inventory>>,
    pub(crate) hosts: BTreeMap<String, Arc<Host>>,
}

impl Pool {
    /// The runtime in a directory of this machine.
    pub(crate) async fn local(root: &std::path::Path) -> Result<Pool, RemoteError> {
        let host = Host::keep(String::new(), Way::Local { root: root.to_owned() });
        let channel = host.channel().await?;
        let provider = format!("remote_exec/local:{}", channel.hello().runtime);
        Ok(Pool { provider, inventory: None, hosts: BTreeMap::from([(String::new(), host)]) })
    }

    /// The hosts of an inventory. None has been asked yet.
    pub(crate) fn ssh(inventory: Inventory) -> Pool {
        let inventory = Arc::new(inventory);
        let keep = |(name, config): (&String, &crate::config::HostConfig)| {
            (name.clone(), Host::keep(name.clone(), Way::Ssh { inventory: inventory.clone(), config: config.clone() }))
        };
        let hosts = inventory.hosts.iter().map(keep).collect();
        Pool { provider: format!("remote_exec/ssh:{}", inventory.pool), inventory: Some(inventory), hosts }
    }

    /// What all hosts together offer; 0 in a dimension that some host does not limit.
    pub(crate) fn capacity(&self) -> HostAmount {
        let (leads, mut counted) = (self.leads_now(), BTreeSet::new());
        let hosts = self.inventory.iter().flat_map(|i| &i.hosts);
        // A host with several names offers what it has once: names with one address from the start, others as soon as
        // they are known.
        let own = |(name, host): &(&String, &HostConfig)| {
            matches!(leads.get(*name), None | Some(Leads::Own)) && counted.insert(host.reached_by(name))
        };
        let all: Vec<HostAmount> = hosts.filter(own).map(|(_, host)| host.capacity()).collect();
        let sum = |of: fn(&HostAmount) -> u64| if all.iter().all(|c| of(c) > 0) { all.iter().map(of).sum() } else { 0 };
        HostAmount { cpu_mhz: sum(|c| c.cpu_mhz), memory_mib: sum(|c| c.memory_mib), sessions: sum(|c| c.sessions) }
    }

    /// Where a handle leads. One of another provider can be asked for nothing here.
    pub(crate) fn resolve(&self, handle: &RemoteHandle) -> Result<Target, RemoteError> {
        if handle.schema != SCHEMA {
            return Err(RemoteError::wrong_request(format!(
                "the handle has schema {}, this driver knows {SCHEMA}; use the driver release that wrote it or a \
                    newer one",
                handle.schema
            )));
        }
        let HandleV1 { provider, key, host, runtime } =
            handle::decode(&handle.data).map_err(RemoteError::wrong_request)?;
        if provider != self.provider {
            return Err(RemoteError::could_not_ask(format!(
                "the instance lives in {provider}, this node reaches {}",
                self.provider
            )));
        }
        // The host has another name here, or its name leads to another one.
        let there = |host: &&Arc<Host>| host.identity().is_some_and(|known| known.runtime == runtime);
        let named = self.hosts.get(&host);
        let found = match named {
            Some(host) if runtime.is_empty() || host.identity().is_none() => named,
            _ => named.filter(there).or_else(|| self.hosts.values().find(there)).or(named),
        };
        match found {
            Some(found) => Ok(Target { host: found.clone(), key, runtime }),
            None => Err(RemoteError::could_not_ask(format!(
                "the instance lives on host {host}, which is not in this node's inventory of pool {}; add it again",
                self.inventory.as_ref().map_or("", |i| &i.pool)
            ))),
        }
    }

    /// The handle of an instance on a host.
    pub(crate) fn handle(&self, host: &Host, channel: &HostChannel, key: &str) -> Result<RemoteHandle, RemoteError> {
        let runtime = if self.inventory.is_some() { channel.hello().runtime.clone() } else { String::new() };
        let handle =
            HandleV1 { provider: self.provider.clone(), key: key.to_owned(), host: host.name.clone(), runtime };
        let data = handle::encode(&handle).map_err(RemoteError::wrong_request)?;
        Ok(RemoteHandle { schema: SCHEMA, data })
    }

    /// One answer of one host.
    pub(crate) async fn ask(&self, host: &Host, epoch: u64, op: Op) -> Result<(HostChannel, Body), RemoteError> {
        let channel = host.channel().await?;
        let body = answer(&channel, host, epoch, op).await?;
        Ok((channel, body))
    }

    /// The one look in an answer.
    pub(crate) fn seen(host: &Host, body: Body) -> Result<Option<HostObservation>, RemoteError> {
        match body {
            Body::Observed(mut observed) if observed.seen.len() <= 1 => Ok(observed.seen.pop()),
            _ => Err(wire::unexpected(host)),
        }
    }

    /// What the names lead to, once each host has been reached or has turned out not to be.
    pub(crate) async fn leads(&self) -> BTreeMap<String, Leads> {
        drop(join_all(self.hosts.values().map(|host| host.channel())).await);
        self.leads_now()
    }

    /// What the names lead to, as far as it is known.
    pub(crate) fn leads_now(&self) -> BTreeMap<String, Leads> {
        leads(&self.identities())
    }

    fn identities(&self) -> BTreeMap<String, Option<Identity>> {
        self.hosts.iter().map(|(name, host)| (name.clone(), host.identity())).collect()
    }

    /// The hosts, each once. One that shares its directory with another machine can be asked for nothing.
    pub(crate) async fn distinct(&self) -> Vec<(Arc<Host>, Result<(), RemoteError>)> {
        self.distinct_of(&self.leads().await)
    }

    fn distinct_of(&self, leads: &BTreeMap<String, Leads>) -> Vec<(Arc<Host>, Result<(), RemoteError>)> {
        let hosts = self.hosts.iter().filter_map(|(name, host)| match leads.get(name) {
            Some(Leads::Same(_)) => None,
            Some(Leads::Shared(other)) => Some((host.clone(), Err(RemoteError::could_not_ask(shared(name, other))))),
            Some(Leads::Own) | None => Some((host.clone(), Ok(()))),
        });
        hosts.collect()
    }

    /// The host to which the create of a key was sent, or is about to be.
    async fn holding(&self, kept: &Intent) -> Result<Arc<Host>, RemoteError> {
        let Intent { host: name, runtime, .. } = kept;
        let named = match self.hosts.get(name) {
            Some(host) => Some(host.channel().await),
            None => None,
        };
        match holder(&self.identities(), kept) {
            Some(Holder::Host(name)) => {
                let removed = || RemoteError::could_not_ask(format!("host {name} has just been removed"));
                return self.hosts.get(&name).cloned().ok_or_else(removed);
            }
            Some(Holder::Shared(name, other)) => return Err(RemoteError::could_not_ask(shared(&name, &other))),
            None => {}
        }
        let what = match named {
            Some(Err(why)) => return Err(why),
            // It was there a moment ago.
            Some(Ok(channel)) if channel.hello().runtime == *runtime => {
                return Err(RemoteError::could_not_ask(format!("the channel to host {name} has just broken")));
            }
            Some(Ok(channel)) => {
                format!("the name now leads to another host, with the runtime {}", channel.hello().runtime)
            }
            None => format!(
                "this node's inventory of pool {} has no host with it",
                self.inventory.as_ref().map_or("", |i| &i.pool)
            ),
        };
        Err(RemoteError::could_not_ask(format!(
            "the create went to host {name} with the runtime {runtime}, or was about to; {what}. Nothing is made \
                anywhere else: add that host to the inventory, or \
             forget the task if the host is lost for good (drover remote forget)"
        )))
    }

    /// What is to be kept before the create of this request is sent: the host. `None` when it is kept already, or there
    /// is no choice.
    pub(crate) async fn intent(&self, request: &Ensure, options: &TaskOptions) -> Result<Option<Vec<u8>>, RemoteError> {
        if self.inventory.is_none() {
            return Ok(None);
        }
        // On all others it is sealed.
        if let Some(kept) = Intent::read(&request.intent)? {
            return self.holding(&kept).await.map(|_| None);
        }
        let host = self.place(request, options).await?;
        let channel = host.channel().await?;
        Intent::new(&host.name, &channel.hello().runtime).write().map(Some)
    }

    /// Looks for a key where its create went; on every host when that is not known. `Gone` or `Sealed` only when each
    /// of them has positively answered.
    pub(crate) async fn find(
        &self,
        key: &str,
        owner: &str,
        intent: &[u8],
    ) -> Result<(Arc<Host>, HostChannel, HostObservation), RemoteError> {
        if self.inventory.is_some()
            && let Some(kept) = Intent::read(intent)?
        {
            let host = self.holding(&kept).await?;
            let op = Op::Find(HostFind { key: key.to_owned(), owner: owner.to_owned() });
            return match self.ask(&host, 0, op).await {
                Ok((channel, body)) => {
                    let seen = Pool::seen(&host, body)?.ok_or_else(|| wire::unexpected(&host))?;
                    Ok((host, channel, seen))
                }
                Err(RemoteError::Sealed(_)) => {
                    Err(RemoteError::gone(format!("{} has no instance {key}; the key is sealed", host.describe())))
                }
                Err(e) => Err(e),
            };
        }
        let mut missing = Vec::new();
        let mut sealed = 0;
        for (host, answer) in self.find_everywhere(&self.leads().await, key, owner).await {
            match answer {
                Ok((channel, seen)) => return Ok((host, channel, seen)),
                Err(RemoteError::Gone(_)) => {}
                Err(RemoteError::Sealed(_)) => sealed += 1,
                // Another cluster's instance is there, whatever the others say.
                Err(e @ RemoteError::WrongRequest(_)) => return Err(e),
                Err(e) => missing.push(e),
            }
        }
        if let Some(e) = missing.into_iter().next() {
            return Err(e);
        }
        let what = if sealed > 0 { "; the key is sealed" } else { "" };
        Err(RemoteError::gone(format!("{} has no instance {key}{what}", self.provider)))
    }

    async fn find_everywhere(
        &self,
        leads: &BTreeMap<String, Leads>,
        key: &str,
        owner: &str,
    ) -> Vec<(Arc<Host>, Result<(HostChannel, HostObservation), RemoteError>)> {
        let hosts = self.distinct_of(leads);
        let asked = hosts.iter().map(async |(host, usable)| {
            let op = Op::Find(HostFind { key: key.to_owned(), owner: owner.to_owned() });
            let answer = async {
                usable.clone()?;
                let (channel, body) = self.ask(host, 0, op).await?;
                let seen = Pool::seen(host, body)?.ok_or_else(|| wire::unexpected(host))?;
                Ok((channel, seen))
            };
            (host.clone(), answer.await)
        });
        join_all(asked).await
    }

    /// Seals a key where its create went; on every host when that is not known. `None` only when each of them has
    /// positively answered.
    pub(crate) async fn seal(
        &self,
        key: &str,
        epoch: u64,
        owner: &str,
        intent: &[u8],
    ) -> Result<Option<(Arc<Host>, HostChannel, HostObservation)>, RemoteError> {
        let one = async |host: Arc<Host>| {
            let op = Op::Seal(HostSeal { key: key.to_owned(), epoch, owner: owner.to_owned() });
            let (channel, body) = self.ask(&host, epoch, op).await?;
            let seen = Pool::seen(&host, body)?;
            Ok::<_, RemoteError>(seen.map(|seen| (host, channel, seen)))
        };
        // Another node's inventory may have had hosts that this one has not. The instance may live on one of them.
        if self.inventory.is_some()
            && let Some(kept) = Intent::read(intent)?
        {
            return one(self.holding(&kept).await?).await;
        }
        let sealed = join_all(self.distinct().await.into_iter().map(async |(host, usable)| {
            usable?;
            one(host).await
        }))
        .await;
        let (found, refused): (Vec<_>, Vec<_>) = sealed.into_iter().partition(Result::is_ok);
        // It is at most on one host; the others matter only when it was found on none.
        match found.into_iter().filter_map(Result::ok).flatten().next() {
            Some(found) => Ok(Some(found)),
            None => refused.into_iter().find_map(Result::err).map_or(Ok(None), Err),
        }
    }

    /// Creates or gets.
    pub(crate) async fn ensure(
        &self,
        request: &Ensure,
        options: TaskOptions,
    ) -> Result<(Arc<Host>, HostChannel, HostEnsured), RemoteError> {
        let host = match Intent::read(&request.intent)? {
            Some(kept) if self.inventory.is_some() => self.holding(&kept).await?,
            _ => self.place(request, &options).await?,
        };
        let capacity = match &host.way {
            Way::Local { .. } => HostAmount::default(),
            Way::Ssh { config, .. } => config.capacity(),
        };
        let wanted = wire::ensure(request, options, capacity)?;
        let channel = host.channel().await?;
        let ensured = with_files(&channel, &request.bundle, Op::Ensure(Box::new(wanted)))
            .await
            .map_err(|e| wire::failed(&host, request.epoch, e))?;
        match ensured {
            Body::Ensured(ensured) => Ok((host, channel, ensured)),
            _ => Err(wire::unexpected(&host)),
        }
    }

    /// The host on which the key is or is to be; on all others it is sealed when this returns.
    async fn place(&self, request: &Ensure, options: &TaskOptions) -> Result<Arc<Host>, RemoteError> {
        let Some(inventory) = &self.inventory else {
            if options.host.is_some() || !options.labels.is_empty() {
                return Err(RemoteError::wrong_request(
                    "host and labels choose among the hosts of transport \"ssh\"; this node has transport \"local\"",
                ));
            }
            return self
                .hosts
                .values()
                .next()
                .cloned()
                .ok_or_else(|| RemoteError::could_not_ask("no runtime is configured"));
        };
        let candidates = options.candidates(inventory).map_err(RemoteError::wrong_request)?;
        let known = |name: &str| {
            self.hosts
                .get(name)
                .cloned()
                .ok_or_else(|| RemoteError::could_not_ask(format!("host {name} has just been removed")))
        };
        // With a host in the task's own configuration this key can never have been meant for another one.
        if let Some(name) = &options.host {
            return known(name);
        }
        if self.hosts.len() == 1 {
            return candidates.iter().next().map_or_else(|| known(""), |name| known(name));
        }
        // What cannot be had is refused before any host is told anything.
        drop(wire::ensure(request, options.clone(), HostAmount::default())?);
        let (mut free, mut missing, mut taken) = (BTreeSet::new(), Vec::new(), BTreeSet::new());
        let leads = self.leads().await;
        // The name under which a host was asked.
        let own = |name: &String| match leads.get(name) {
            Some(Leads::Same(first)) => first.clone(),
            _ => name.clone(),
        };
        for (host, answer) in self.find_everywhere(&leads, &request.key, &request.owner).await {
            match answer {
                Ok(_) => return Ok(host),
                Err(RemoteError::Gone(_)) => drop(free.insert(host.name.clone())),
                Err(RemoteError::Sealed(_)) => {}
                Err(RemoteError::CouldNotAsk(why)) => missing.push(why),
                Err(e) => return Err(e),
            }
        }
        if !missing.is_empty() {
            let why = missing.join("; ");
            if !request.first {
                return Err(RemoteError::could_not_ask(format!(
                    "the instance may be on a host that cannot be asked, so none is made: {why}"
                )));
            }
            if !candidates.iter().any(|name| free.contains(&own(name))) {
                return Err(RemoteError::could_not_ask(format!("no host that fits can be asked: {why}")));
            }
            tracing::info!(key = request.key, why, "the first create goes on without a host");
        }
        let fitting = candidates.iter().filter(|name| free.contains(&own(name)) && taken.insert(own(name)));
        let sized = join_all(fitting.map(async |name| {
            let (host, capacity) = (known(name)?, inventory.hosts[name].capacity());
            let used = match capacity == HostAmount::default() {
                true => HostAmount::default(),
                false => match self.ask(&host, 0, Op::Used(HostNothing {})).await?.1 {
                    Body::Used(used) => used,
                    _ => return Err(wire::unexpected(&host)),
                },
            };
            Ok::<_, RemoteError>(Candidate { name: name.clone(), capacity, used })
        }));
        let (mut possible, mut uncounted) = (Vec::new(), Vec::new());
        for candidate in sized.await {
            match candidate {
                Ok(candidate) => possible.push(candidate),
                Err(RemoteError::CouldNotAsk(why)) => uncounted.push(why),
                Err(e) => return Err(e),
            }
        }
        if possible.is_empty() {
            if !uncounted.is_empty() {
                let why = uncounted.join("; ");
                return Err(RemoteError::could_not_ask(format!("no host that fits can be asked: {why}")));
            }
            return Err(RemoteError::sealed(
                "on every host that fits, the key was stopped before it was created, or its instance was acknowledged",
            ));
        }
        let chosen = choose(&request.key, &wire::takes(&request.task), possible)
            .map_err(|why| RemoteError::could_not_ask(format!("no host of pool {} has room: {why}", inventory.pool)))?;
        let others = free.iter().filter(|name| **name != own(&chosen)).map(async |name| {
            let host = known(name)?;
            let op =
                Op::Seal(HostSeal { key: request.key.clone(), epoch: request.epoch, owner: request.owner.clone() });
            let (_, body) = self.ask(&host, request.epoch, op).await?;
            Pool::seen(&host, body).map(|seen| seen.map(|_| host))
        });
        for answer in join_all(others).await {
            match answer {
                Ok(None) => {}
                // Somebody was faster, with another choice.
                Ok(Some(host)) => return Ok(host),
                // It has just had nothing, and is no different from one that was not reached at all.
                Err(RemoteError::CouldNotAsk(why)) if request.first => {
                    tracing::info!(key = request.key, why, "the first create goes on without a host");
                }
                Err(e) => return Err(e),
            }
        }
        known(&chosen)
    }
}

/// How long one host may take over what only looks at its files, or marks them. That takes it milliseconds, and a
/// killed executor's leftovers five seconds to end. A host whose disk hangs has a channel that answers, and must not
/// keep the others from being asked: the caller of all of them gives up after 60 s.
pub(crate) const ANSWER: Duration = Duration::from_secs(10);
/// How long a page of a list may take: many instances, and the hosts are asked some at a time.
const PAGE: Duration = Duration::from_secs(15);

/// The answer on a channel. A host that takes too long could not be asked; a call that changes something may take
/// effect later.
pub(crate) async fn answer(channel: &HostChannel, host: &Host, epoch: u64, op: Op) -> Result<Body, RemoteError> {
    let limit = match &op {
        Op::Find(_) | Op::Observe(_) | Op::Seal(_) | Op::Used(_) => Some(ANSWER),
        Op::List(_) => Some(PAGE),
        // They end what takes its time, or concern one instance only: their callers know how long.
        _ => None,
    };
    let asked = channel.ask(op);
    let answered = match limit {
        None => asked.await,
        Some(limit) => tokio::time::timeout(limit, asked).await.map_err(|_| late(host, limit))?,
    };
    answered.map_err(|e| wire::failed(host, epoch, e))
}

/// What is said of a host that has not answered in time.
pub(crate) fn late(host: &Host, limit: Duration) -> RemoteError {
    RemoteError::could_not_ask(format!(
        "{} is connected but has not answered for {} s; its disk may hang",
        host.describe(),
        limit.as_secs()
    ))
}

/// Asks, and sends the files when the host wants them.
pub(crate) async fn with_files(channel: &HostChannel, bundle: &Bundle, op: Op) -> Result<Body, CallError> {
    let mut call = channel.call(op);
    loop {
        match call.next().await? {
            Body::SendFiles(_) => {
                for file in &bundle.files {
                    if let Some(early) = call.send_all(&file.data).await? {
                        return Ok(early);
                    }
                }
                call.input(HostInput { end: true, ..HostInput::default() });
            }
            body => return Ok(body),
        }
    }
}

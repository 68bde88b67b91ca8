//! The sweep: asks every provider what this cluster has there and finds what no record knows (rule 10).
//!
//! An unbound instance is reported and left alone: adopting, stopping and forgetting it are a person's verbs. While it lives, the slot that it was
//! created for gets no first incarnation: it may be the one that a restored history has forgotten. For the same reason no slot gets its first
//! incarnation after a start before its provider has been swept once, unless the cluster is new or the provider cannot be listed for a minute.
//!
//! Nothing here is stored: a restart sweeps again.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use model::{IncarnationId, NodeId, NodeStatus, RemoteImport, RemoteInstance, RemoteWanted, SlotKey, SlotParts, StoreIndex, TimestampNs};
use state::{Object, State};
use tokio::sync::{Notify, oneshot};

use crate::{
    clock::now_ns,
    commit::{Commit, Decided},
    error::{Kind, ServerError},
    remote,
    shared::Shared,
};

/// A sweep that failed is tried again after this time.
const RETRY: Duration = Duration::from_secs(5);
/// A page behind the first one is tried again after this time, so often in a row: a provider that turns one call away is not listed from the beginning.
const PAGE_RETRY: Duration = Duration::from_secs(1);
const PAGE_RETRIES: u32 = 5;
/// How long first incarnations wait for a provider that cannot be listed.
const FIRST_SWEEP: Duration = Duration::from_secs(60);

/// A driver and the runtime that it reaches.
type Provider = (String, String);

/// What the last sweep of a provider has found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProviderSweep {
    /// Driver.
    pub driver: String,
    /// Identity of the runtime.
    pub provider: String,
    /// The node that was asked; nil = none that reaches it is ready.
    pub node_id: NodeId,
    /// When it was last tried, Unix ns.
    pub at: TimestampNs,
    /// Why it could not be asked the last time; empty = it was. What is below is from the last time that it was.
    pub error: String,
    /// Instances of this cluster.
    pub instances: usize,
    /// Those that no record knows.
    pub unbound: Vec<RemoteInstance>,
}

#[derive(Debug, Default)]
struct Found {
    sweeps: BTreeMap<Provider, ProviderSweep>,
    /// Providers that have been swept since the start.
    swept: HashSet<Provider>,
    /// Since when first incarnations wait for a provider.
    waiting: HashMap<Provider, Instant>,
    /// Keys that a person wants to hear no more of.
    forgotten: HashSet<String>,
    asked: Vec<oneshot::Sender<()>>,
}

/// What sweeps have found, and the signals of the loop.
#[derive(Debug)]
pub(crate) struct Sweeps {
    found: Mutex<Found>,
    wake: Notify,
    /// The cluster was made by this process: there is no history that could have been lost.
    new_cluster: bool,
}

impl Sweeps {
    pub(crate) fn new(new_cluster: bool) -> Self {
        Self { found: Mutex::default(), wake: Notify::new(), new_cluster }
    }

    fn lock(&self) -> MutexGuard<'_, Found> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Follows an applied commit: a provider that can be reached for the first time is swept at once.
    pub(crate) fn follow(&self, commit: &Commit) {
        let swept = &self.lock().swept;
        let news = commit.applied.changes.iter().any(|change| match &change.object {
            Object::Node(node) if !change.deleted && node.status == NodeStatus::Ready => {
                providers_of(node).any(|(driver, p)| p.list && !swept.contains(&(driver.to_owned(), p.provider.clone())))
            }
            _ => false,
        });
        if news {
            self.wake.notify_one();
        }
    }

    /// What the last sweeps have found, by driver and provider.
    pub(crate) fn found(&self) -> Vec<ProviderSweep> {
        self.lock().sweeps.values().cloned().collect()
    }

    /// Sweeps now and waits for the end.
    pub(crate) async fn now(&self) {
        let (done, swept) = oneshot::channel();
        self.lock().asked.push(done);
        self.wake.notify_one();
        // The loop has ended: there will be no sweep.
        let _ = swept.await;
    }

    /// Why a slot must not get its first incarnation now, if so.
    pub(crate) fn holds(&self, slot: &SlotKey, wanted: &RemoteWanted, can_list: bool) -> Option<String> {
        let mut found = self.lock();
        let name = slot.to_string();
        let unbound = found.sweeps.values().flat_map(|s| &s.unbound).find(|i| i.alive() && i.slot == name);
        if let Some(instance) = unbound {
            return Some(format!(
                "instance {} was created for this slot and lives, but no record knows it: adopt, stop or forget it",
                instance.key
            ));
        }
        let provider = (wanted.driver.to_string(), wanted.provider.to_string());
        if self.new_cluster || !can_list || found.swept.contains(&provider) {
            return None;
        }
        let since = *found.waiting.entry(provider).or_insert_with(Instant::now);
        (since.elapsed() < FIRST_SWEEP).then(|| "the provider has not been swept since the servers started".to_owned())
    }

    fn unbound(&self, key: &str) -> Option<(Provider, RemoteInstance)> {
        let found = self.lock();
        found.sweeps.iter().find_map(|(p, s)| Some((p.clone(), s.unbound.iter().find(|i| i.key == key)?.clone())))
    }

    fn bound(&self, key: &str) {
        for sweep in self.lock().sweeps.values_mut() {
            sweep.unbound.retain(|i| i.key != key);
        }
    }
}

/// The runtimes that a node reaches: a driver that is not healthy reaches none, and says why itself.
fn providers_of(node: &model::Node) -> impl Iterator<Item = (&str, &model::node::RemoteProvider)> {
    node.drivers.iter().filter(|(_, info)| info.healthy).filter_map(|(name, info)| Some((&**name, info.remote.as_ref()?)))
}

/// The providers that can be listed, each with the node to ask: not draining before draining, fewest slots first.
fn to_ask(state: &State) -> BTreeMap<Provider, NodeId> {
    let mut best: BTreeMap<Provider, ((bool, usize, NodeId), NodeId)> = BTreeMap::new();
    for node in state.nodes().filter(|n| n.status == NodeStatus::Ready) {
        let rank = (node.drain.is_some(), state.remote_tasks_by_node(node.id).count(), node.id);
        for (driver, p) in providers_of(node).filter(|(_, p)| p.list) {
            let entry = best.entry((driver.to_owned(), p.provider.clone())).or_insert((rank, node.id));
            if rank < entry.0 {
                *entry = (rank, node.id);
            }
        }
    }
    best.into_iter().map(|(provider, (_, node))| (provider, node)).collect()
}

/// The loop: at its period, when a provider comes, when a person asks.
pub(crate) async fn sweep_loop(shared: Arc<Shared>) {
    let mut next = tokio::time::Instant::now() + shared.config.sweep_interval;
    loop {
        tokio::select! {
            () = tokio::time::sleep_until(next) => {}
            () = shared.sweeps.wake.notified() => {}
            () = shared.stopping.cancelled() => {
                shared.sweeps.lock().asked.clear();
                return;
            }
        }
        let asked = std::mem::take(&mut shared.sweeps.lock().asked);
        let work = async {
            let mut failed = false;
            for (provider, node) in to_ask(&shared.queue().newest()) {
                failed |= sweep(&shared, provider, node).await.is_err();
            }
            failed
        };
        let failed = tokio::select! {
            failed = work => failed,
            () = shared.stopping.cancelled() => return,
        };
        forget_absent(&shared);
        for done in asked {
            // Whoever asked may have gone.
            let _ = done.send(());
        }
        next = tokio::time::Instant::now() + if failed { RETRY.min(shared.config.sweep_interval) } else { shared.config.sweep_interval };
        // What waited for the sweep, or for its patience.
        if !shared.sweeps.lock().waiting.is_empty() {
            shared.remote.fill();
        }
    }
}

/// Providers that no ready node reaches stay in the report, with the reason.
fn forget_absent(shared: &Shared) {
    let reachable = to_ask(&shared.queue().newest());
    let mut found = shared.sweeps.lock();
    for (provider, sweep) in &mut found.sweeps {
        if !reachable.contains_key(provider) {
            sweep.node_id = NodeId::NIL;
            sweep.error = "no ready node reaches it".to_owned();
        }
    }
}

async fn sweep(shared: &Shared, provider: Provider, node: NodeId) -> Result<(), ()> {
    let result = unbound_of(shared, &provider, node).await;
    let newest = shared.queue().newest();
    let mut found = shared.sweeps.lock();
    let forgotten = &found.forgotten;
    let result = result.map(|mut swept| {
        swept.unbound.retain(|i| !forgotten.contains(&i.key));
        swept
    });
    let entry = found.sweeps.entry(provider.clone()).or_default();
    (entry.driver, entry.provider, entry.node_id, entry.at) = (provider.0.clone(), provider.1.clone(), node, now_ns());
    match result {
        Ok(Swept { instances, mut unbound, incomplete }) => {
            if !incomplete.is_empty() {
                // What was found before in the part that cannot be asked now is still there for all that is known.
                let before = unknown_to(&newest, entry.unbound.clone());
                let missing = before.into_iter().filter(|old| !unbound.iter().any(|i| i.key == old.key)).collect::<Vec<_>>();
                unbound.extend(missing);
            }
            for new in unbound.iter().filter(|i| i.alive() && !entry.unbound.iter().any(|known| known.key == i.key)) {
                tracing::warn!(driver = provider.0, provider = provider.1, key = new.key, slot = new.slot, "no record knows this instance");
            }
            let changed = entry.unbound != unbound;
            if !incomplete.is_empty() && entry.error != incomplete {
                tracing::warn!(driver = provider.0, provider = provider.1, why = incomplete, "the provider could be swept in part only");
            }
            (entry.instances, entry.unbound, entry.error) = (instances, unbound, incomplete.clone());
            if !incomplete.is_empty() {
                drop(found);
                if changed {
                    shared.remote.fill();
                }
                return Err(());
            }
            found.waiting.remove(&provider);
            let first = found.swept.insert(provider);
            drop(found);
            if first || changed {
                shared.remote.fill();
            }
            Ok(())
        }
        Err(why) => {
            // Once: it is tried again every few seconds.
            if entry.error != why {
                tracing::warn!(driver = provider.0, provider = provider.1, why, "the provider could not be swept");
            }
            entry.error = why;
            Err(())
        }
    }
}

/// What a sweep has found.
struct Swept {
    /// How many instances there are.
    instances: usize,
    /// Those that no record knows.
    unbound: Vec<RemoteInstance>,
    /// Why it is not all; empty = it is.
    incomplete: String,
}

async fn unbound_of(shared: &Shared, provider: &Provider, node: NodeId) -> Result<Swept, String> {
    let (first, incomplete) = list(shared, provider, node).await?;
    let instances = first.len();
    let unbound = unknown_to(&shared.queue().newest(), first);
    if unbound.is_empty() {
        return Ok(Swept { instances, unbound, incomplete });
    }
    // One that has ended, was counted and forgotten while it was being listed has left the records in between: it is not there the second time.
    let again: HashMap<String, RemoteInstance> = list(shared, provider, node).await?.0.into_iter().map(|i| (i.key.clone(), i)).collect();
    let again: Vec<RemoteInstance> = unbound.into_iter().filter_map(|i| again.get(&i.key).cloned()).collect();
    Ok(Swept { instances, unbound: unknown_to(&shared.queue().newest(), again), incomplete })
}

fn unknown_to(state: &State, mut instances: Vec<RemoteInstance>) -> Vec<RemoteInstance> {
    let known: HashSet<IncarnationId> = state.remote_tasks().map(|record| record.incarnation).collect();
    instances.retain(|i| i.observed != model::Observed::Gone && i.key.parse().map_or(true, |key| !known.contains(&key)));
    instances
}

/// Everything of the cluster, and why that is not all.
async fn list(shared: &Shared, (driver, provider): &Provider, node: NodeId) -> Result<(Vec<RemoteInstance>, String), String> {
    let (mut all, mut missing) = (Vec::new(), Vec::new());
    let mut token = String::new();
    let mut failures = 0;
    loop {
        let page = shared.sessions.list_remote(node, driver, provider, token.clone()).await?;
        if !page.error.is_empty() {
            if token.is_empty() || failures == PAGE_RETRIES {
                return Err(page.error);
            }
            failures += 1;
            tokio::time::sleep(PAGE_RETRY).await;
            continue;
        }
        failures = 0;
        for json in &page.instances_json {
            all.push(api::node_rpc::from_json::<RemoteInstance>("a listed instance", json).map_err(|e| e.to_string())?);
        }
        if !page.incomplete.is_empty() {
            missing.push(page.incomplete);
        }
        if page.next_page_token.is_empty() {
            return Ok((all, missing.join("; ")));
        }
        token = page.next_page_token;
    }
}

/// Takes an unbound instance for what its slot's job wants there: it is managed from then on, untouched.
pub(crate) async fn adopt(shared: &Arc<Shared>, key: &str) -> Result<StoreIndex, ServerError> {
    let (provider, instance, incarnation, slot) = known(shared, key)?;
    import(shared, key, move |state| {
        let job = state.job(&slot.job()).filter(|job| !job.stopped());
        let wanted = job.and_then(|job| {
            let group = job.group(&slot.group).filter(|g| slot.index < g.count())?;
            let task = group.task(&slot.task).filter(|t| t.driver == provider.0)?;
            Some(RemoteWanted {
                job_version: job.version,
                spec_hash: model::updates::spec_hash(job, group, task).into(),
                policy: model::RemotePolicy::of(job, task).into(),
                ..RemoteWanted::default()
            })
        });
        let Some(wanted) = wanted else {
            return Err(ServerError::InvalidArgument(format!(
                "no job wants slot {slot} with driver {:?} now: register the job first, or stop the instance",
                provider.0
            )));
        };
        if state.remote_task(&slot).is_some() {
            return Err(ServerError::Conflict(format!("slot {slot} has another instance: stop one of the two")));
        }
        let (driver, provider) = provider;
        let why = "adopted by an operator's order: no record knew it".to_owned();
        Ok((slot, RemoteImport { instance, incarnation, driver, provider, as_wanted: Some(Box::new(wanted)), why }))
    })
    .await
}

/// Orders the stop of an unbound instance: durable, by any node that reaches it, until its absence is confirmed.
pub(crate) async fn stop(shared: &Arc<Shared>, key: &str) -> Result<StoreIndex, ServerError> {
    let (provider, instance, incarnation, slot) = known(shared, key)?;
    import(shared, key, move |state| {
        // Beside the slot's own instance there is no place in the slot: a tombstone gets one of its own.
        let place = if state.remote_task(&slot).is_some() {
            SlotParts { task: format!("{}#{incarnation}", slot.task).into(), ..SlotParts::clone(&slot) }.into()
        } else {
            slot
        };
        let (driver, provider) = provider;
        let why = "stopped by an operator's order: no record knew it".to_owned();
        Ok((place, RemoteImport { instance, incarnation, driver, provider, as_wanted: None, why }))
    })
    .await
}

/// Reports an unbound instance no more and lets its slot go on without it, until the servers start again.
pub(crate) fn forget(shared: &Shared, key: &str) -> Result<(), ServerError> {
    if shared.sweeps.unbound(key).is_none() {
        return Err(ServerError::not_found(Kind::RemoteInstance, key));
    }
    shared.sweeps.lock().forgotten.insert(key.to_owned());
    shared.sweeps.bound(key);
    shared.remote.fill();
    Ok(())
}

fn known(shared: &Shared, key: &str) -> Result<(Provider, RemoteInstance, IncarnationId, SlotKey), ServerError> {
    let (provider, instance) = shared.sweeps.unbound(key).ok_or_else(|| ServerError::not_found(Kind::RemoteInstance, key))?;
    let incarnation = key.parse().map_err(|_| {
        ServerError::InvalidArgument(format!(
            "instance {key:?} was not created by this cluster's servers: its key is not the id of an incarnation"
        ))
    })?;
    let slot = instance.slot.parse().map_err(|e: model::ids::NotASlot| ServerError::InvalidArgument(format!("instance {key}: {e}")))?;
    Ok((provider, instance, incarnation, slot))
}

async fn import(
    shared: &Arc<Shared>,
    key: &str,
    decide: impl FnOnce(&State) -> Result<(SlotKey, RemoteImport), ServerError> + Send + 'static,
) -> Result<StoreIndex, ServerError> {
    let index = shared
        .queue()
        .commit(move |state, stamp| {
            let (slot, import) = decide(state)?;
            if state.remote_tasks().any(|record| record.incarnation == import.incarnation) {
                return Err(ServerError::Conflict(format!("instance {} has a record by now", import.incarnation)));
            }
            let batch = remote::import(state, stamp, &slot, import)?;
            Ok(Decided { batch, answer: stamp.index })
        })
        .await?;
    shared.sweeps.bound(key);
    Ok(index)
}

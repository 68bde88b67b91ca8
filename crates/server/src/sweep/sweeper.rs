//! The sweeper: asks providers through the nodes that reach them, and carries out what people order for what it finds.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use api::node_rpc::from_json;
use lifecycle::remote::{Event, recovering::place_beside};
use model::{ClusterId, IncarnationId, NodeId, RemoteImport, RemoteInstance, RemoteWanted, SlotKey, StoreIndex};
use state::State;

use super::{
    Adopted, Provider, Sweeps, Which, staleness,
    times::{Outcome, Times},
    to_ask, unknown_to,
};
use crate::{
    clock::now_ns,
    commit::{CommitQueue, Decided},
    error::{Kind, ServerError},
    loops,
    reconciler::Supervision,
    runner::Runner,
    sessions::NodeSessions,
};

/// A page behind the first one is tried again after this time, so often in a row: a provider that turns one call away
/// is not listed from the beginning.
const PAGE_RETRY: Duration = Duration::from_secs(1);
const PAGE_RETRIES: u32 = 5;

/// Sweeps, and has at hand what it takes.
#[derive(Debug)]
pub(crate) struct Sweeper {
    pub(crate) sweeps: Arc<Sweeps>,
    pub(crate) supervision: Arc<Supervision>,
    pub(crate) queue: CommitQueue,
    pub(crate) sessions: Arc<dyn NodeSessions>,
    pub(crate) cluster_id: ClusterId,
    /// How often providers are asked.
    pub(crate) interval: Duration,
    pub(crate) runner: Arc<Runner>,
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

/// What the newest version of a job wants in a slot.
fn wanted(state: &State, slot: &SlotKey, driver: &str) -> Option<RemoteWanted> {
    let job = state.job(&slot.job()).filter(|job| !job.stopped())?;
    let group = job.group(&slot.group).filter(|g| slot.index < g.count())?;
    let task = group.task(&slot.task).filter(|t| t.driver == driver)?;
    Some(RemoteWanted {
        job_version: job.version,
        spec_hash: model::updates::spec_hash(job, group, task).into(),
        policy: model::RemotePolicy::of(job, group, task).into(),
        ..RemoteWanted::default()
    })
}

/// Whose it was, for people.
fn origin(instance: &RemoteInstance) -> String {
    match &*instance.owner {
        "" => "no record knew it".to_owned(),
        owner => format!("it belonged to cluster {owner}"),
    }
}

impl Sweeper {
    /// The loop: at the times of the providers, when one comes, when a person asks.
    pub(crate) async fn run(self: Arc<Self>) {
        let mut times = Times::new(self.interval);
        let mut next = Instant::now() + self.interval;
        let turns = self.runner.turns(&loops::SWEEP);
        loop {
            turns.waits("its period, or a provider that is reached");
            let mut woken = true;
            tokio::select! {
                () = tokio::time::sleep_until(next.into()) => woken = false,
                () = self.sweeps.wake.notified() => {}
                () = self.runner.stopping().cancelled() => {
                    self.sweeps.lock().asked.clear();
                    return;
                }
            }
            let asked = std::mem::take(&mut self.sweeps.lock().asked);
            turns.works("providers");
            let work = async {
                for (provider, node) in to_ask(&self.queue.newest(), |node| self.sessions.has(node)) {
                    let began = Instant::now();
                    // Who woke this loop may reach what nobody did before, or has put the state back.
                    let wanted = !asked.is_empty() || woken && !self.sweeps.lock().is_listed(&provider);
                    if wanted || times.is_due(&provider, began) {
                        let outcome = self.sweep(provider.clone(), node).await;
                        times.note(&provider, began, Instant::now(), outcome);
                    }
                }
            };
            tokio::select! {
                () = work => {}
                () = self.runner.stopping().cancelled() => return,
            }
            let reachable = to_ask(&self.queue.newest(), |_| true);
            self.forget_absent(|provider| reachable.contains_key(provider));
            for done in asked {
                // Whoever asked may have gone.
                let _ = done.send(());
            }
            next = times.next(Instant::now(), |provider| reachable.contains_key(provider));
            // What waited for the sweep, or for its patience.
            if !self.sweeps.lock().waiting.is_empty() {
                self.supervision.again();
            }
        }
    }

    /// Providers that no ready node reaches stay in the report, with the reason.
    fn forget_absent(&self, reachable: impl Fn(&Provider) -> bool) {
        let mut found = self.sweeps.lock();
        for (provider, sweep) in &mut found.sweeps {
            if !reachable(provider) {
                sweep.node_id = NodeId::NIL;
                sweep.error = "no ready node reaches it".to_owned();
            }
        }
    }

    /// Sweeps a provider.
    async fn sweep(&self, provider: Provider, node: NodeId) -> Outcome {
        let began = Instant::now();
        let result = self.unbound_of(&provider, node).await;
        let newest = self.queue.newest();
        let counts_from = self.sweeps.counts_from(staleness(&newest, &provider));
        let mut found = self.sweeps.lock();
        let forgotten = &found.forgotten;
        let result = result.map(|mut swept| {
            swept.unbound.retain(|i| !forgotten.contains(&i.key));
            swept
        });
        let entry = found.sweeps.entry(provider.clone()).or_default();
        (entry.driver, entry.provider, entry.node_id, entry.at) =
            (provider.0.clone(), provider.1.clone(), node, now_ns());
        match result {
            Ok(Swept { instances, mut unbound, incomplete }) => {
                if !incomplete.is_empty() {
                    // What was found before in the part that cannot be asked now is still there for all that is known.
                    let before = unknown_to(&newest, &provider, entry.unbound.clone());
                    let missing =
                        before.into_iter().filter(|old| !unbound.iter().any(|i| i.key == old.key)).collect::<Vec<_>>();
                    unbound.extend(missing);
                }
                for new in unbound.iter().filter(|i| i.alive() && !entry.unbound.iter().any(|known| known.key == i.key))
                {
                    tracing::warn!(
                        driver = provider.0,
                        provider = provider.1,
                        key = new.key,
                        slot = new.slot,
                        "no record knows this instance"
                    );
                }
                let changed = entry.unbound != unbound;
                if !incomplete.is_empty() && entry.error != incomplete {
                    tracing::warn!(
                        driver = provider.0,
                        provider = provider.1,
                        why = incomplete,
                        "the provider could be swept in part only"
                    );
                }
                (entry.instances, entry.unbound, entry.error) = (instances, unbound, incomplete.clone());
                if !incomplete.is_empty() {
                    drop(found);
                    if changed {
                        self.supervision.again();
                    }
                    return Outcome::Failed;
                }
                let counts = began >= counts_from;
                let first = if counts {
                    found.waiting.remove(&provider);
                    found.early.remove(&provider);
                    found.swept.insert(provider)
                } else {
                    !found.swept.contains(&provider) && found.early.insert(provider, counts_from).is_none()
                };
                drop(found);
                if first || changed {
                    self.supervision.again();
                }
                if counts { Outcome::Swept } else { Outcome::Early(counts_from) }
            }
            Err(why) => {
                // Once: it is tried again every few seconds.
                if entry.error != why {
                    tracing::warn!(driver = provider.0, provider = provider.1, why, "the provider could not be swept");
                }
                entry.error = why;
                Outcome::Failed
            }
        }
    }

    async fn unbound_of(&self, provider: &Provider, node: NodeId) -> Result<Swept, String> {
        let (first, incomplete) = self.list(provider, node, false).await?;
        let instances = first.len();
        let unbound = unknown_to(&self.queue.newest(), provider, first);
        if unbound.is_empty() {
            return Ok(Swept { instances, unbound, incomplete });
        }
        // One that has ended, was counted and forgotten while it was being listed has left the records in between: it
        // is not there the second time.
        let again: HashMap<String, RemoteInstance> =
            self.list(provider, node, false).await?.0.into_iter().map(|i| (i.key.clone(), i)).collect();
        let again: Vec<RemoteInstance> = unbound.into_iter().filter_map(|i| again.get(&i.key).cloned()).collect();
        Ok(Swept { instances, unbound: unknown_to(&self.queue.newest(), provider, again), incomplete })
    }

    /// Asks every provider what other clusters have there: a person wants to know. Nothing follows from it.
    pub(crate) async fn others(&self) {
        let state = self.queue.newest();
        for (provider, node) in to_ask(&state, |node| self.sessions.has(node)) {
            let can = state
                .node(node)
                .and_then(|node| node.drivers.get(&provider.0)?.remote.clone())
                .is_some_and(|p| p.list_owners);
            let listed = if can {
                self.list(&provider, node, true).await
            } else {
                Err("its driver lists the instances of one owner only".to_owned())
            };
            let newest = self.queue.newest();
            let mut found = self.sweeps.lock();
            let entry = found.sweeps.entry(provider.clone()).or_default();
            (entry.driver, entry.provider) = provider.clone();
            match listed {
                Ok((instances, incomplete)) => {
                    entry.others =
                        unknown_to(&newest, &provider, instances.into_iter().filter(|i| !i.owner.is_empty()).collect());
                    entry.others_error = incomplete;
                }
                Err(why) => entry.others_error = why,
            }
        }
    }

    /// Everything of the cluster, or of every one, and why that is not all.
    async fn list(
        &self,
        (driver, provider): &Provider,
        node: NodeId,
        all_owners: bool,
    ) -> Result<(Vec<RemoteInstance>, String), String> {
        let (mut all, mut missing) = (Vec::new(), Vec::new());
        let mut token = String::new();
        let mut failures = 0;
        loop {
            let page = self.sessions.list_remote(node, (driver, provider), token.clone(), all_owners).await?;
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
                all.push(from_json::<RemoteInstance>("a listed instance", json).map_err(|e| e.to_string())?);
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

    /// Takes an unbound instance, or one of another cluster, for what its slot's job wants there: it is managed from
    /// then on, untouched.
    pub(crate) async fn adopt(&self, which: &Which) -> Result<Adopted, ServerError> {
        let (provider, instance, incarnation, slot) = self.known(which)?;
        let (foreign, kept) = (!instance.owner.is_empty(), slot.clone());
        let state = self.queue.newest();
        if foreign && state.remote_task(&slot).is_none() && wanted(&state, &slot, &provider.0).is_none() {
            // An own instance keeps its slot free by being there; one of another cluster does so by a person's word.
            self.sweeps.lock().kept.insert(which.key.clone(), kept);
            return Ok(Adopted { index: state.latest_index(), kept: true });
        }
        let index = self
            .import(&which.key, move |state| {
                let Some(wanted) = wanted(state, &slot, &provider.0) else {
                    return Err(ServerError::invalid(format!(
                        "no job wants slot {slot} with driver {:?} now: register the job first, or stop the instance",
                        provider.0
                    )));
                };
                if state.remote_task(&slot).is_some() {
                    return Err(ServerError::conflict(format!(
                        "slot {slot} has another instance: stop one of the two"
                    )));
                }
                let (driver, provider) = provider;
                let why = format!("adopted by an operator's order: {}", origin(&instance));
                Ok((
                    slot,
                    RemoteImport { instance, incarnation, driver, provider, as_wanted: Some(Box::new(wanted)), why },
                ))
            })
            .await?;
        Ok(Adopted { index, kept: false })
    }

    /// Orders the stop of an unbound instance, or of one of another cluster: durable, by any node that reaches it,
    /// until its absence is confirmed.
    pub(crate) async fn stop(&self, which: &Which) -> Result<StoreIndex, ServerError> {
        let (provider, instance, incarnation, slot) = self.known(which)?;
        self.import(&which.key, move |state| {
            // Beside the slot's own instance there is no place in the slot: a tombstone gets one of its own. What
            // another cluster had may have the slot of a job that is still to come.
            let place = if state.remote_task(&slot).is_some() || !instance.owner.is_empty() {
                place_beside(&slot, incarnation)
            } else {
                slot
            };
            let (driver, provider) = provider;
            let why = format!("stopped by an operator's order: {}", origin(&instance));
            Ok((place, RemoteImport { instance, incarnation, driver, provider, as_wanted: None, why }))
        })
        .await
    }

    /// Reports an unbound instance no more and lets its slot go on without it, until the servers start again. One of
    /// another cluster is left to that.
    pub(crate) fn forget(&self, key: &str) -> Result<(), ServerError> {
        let mut found = self.sweeps.lock();
        let unbound = found.sweeps.values().any(|s| s.unbound.iter().any(|i| i.key == key));
        if !unbound && !found.kept.contains_key(key) {
            return Err(ServerError::not_found(Kind::RemoteInstance, key));
        }
        if unbound {
            found.forgotten.insert(key.to_owned());
        }
        drop(found);
        self.sweeps.bound(key);
        self.supervision.again();
        Ok(())
    }

    fn known(&self, which: &Which) -> Result<(Provider, RemoteInstance, IncarnationId, SlotKey), ServerError> {
        let (provider, instance) = self.sweeps.meant(which, &self.cluster_id.to_string())?;
        let key = &which.key;
        let incarnation = key.parse().map_err(|_| {
            ServerError::invalid(format!(
                "instance {key:?} was not created by servers of ours: its key is not the id of an incarnation"
            ))
        })?;
        let slot = instance
            .slot
            .parse()
            .map_err(|e: model::ids::NotASlot| ServerError::invalid(format!("instance {key}: {e}")))?;
        Ok((provider, instance, incarnation, slot))
    }

    async fn import(
        &self,
        key: &str,
        decide: impl FnOnce(&State) -> Result<(SlotKey, RemoteImport), ServerError> + Send + 'static,
    ) -> Result<StoreIndex, ServerError> {
        let supervision = self.supervision.clone();
        let index = self
            .queue
            .commit(move |state, stamp| {
                let (slot, import) = decide(state)?;
                if state.remote_tasks().any(|record| record.incarnation == import.incarnation) {
                    return Err(ServerError::conflict(format!("instance {} has a record by now", import.incarnation)));
                }
                let batch = supervision.ordered(state, &slot, &Event::Import(Box::new(import)), stamp)?;
                Ok(Decided { batch, answer: stamp.index })
            })
            .await?;
        self.sweeps.bound(key);
        Ok(index)
    }
}

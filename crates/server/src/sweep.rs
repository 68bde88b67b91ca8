//! The sweep: asks every provider what this cluster has there and finds what no record knows (rule 10).
//!
//! An unbound instance is reported and left alone: adopting, stopping and forgetting it are a person's verbs. While
//! it lives, the slot that it was created for gets no incarnation, neither a first one nor one that follows: it may
//! be the one that a restored history has forgotten. For the same reason no slot gets one after a start before its
//! provider has been swept once, unless the cluster is new or the provider cannot be listed for a minute. A provider
//! that shows new instances late has to be swept when it shows all that former servers may have had created, unless the
//! mark of the server before proves that this state has all of it (`run_mark`).
//!
//! What other clusters have at a provider is listed when a person asks, and touched only by a person who names the
//! owner.
//!
//! Nothing here is stored: a restart sweeps again.

pub(crate) mod sweeper;
mod times;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use api::shapes::RemoteSweep;
use lifecycle::remote::recovering::{EARLY, SweepFacts, holds, sweeps_count_after};
use model::{IncarnationId, NodeId, NodeStatus, RemoteInstance, SlotKey, StoreIndex};
use state::{Object, State};
use tokio::sync::{Notify, oneshot};

use crate::{
    commit::Commit,
    error::{Kind, ServerError},
    run_mark::Keeper,
};

/// How long incarnations wait for a provider that cannot be listed: the least that a server waits at its start.
pub(crate) const FIRST_SWEEP: Duration = Duration::from_secs(60);

/// No driver is believed that says more, in seconds.
const STALE_MAX: u64 = 365 * 24 * 3600;

/// A driver and the runtime that it reaches.
type Provider = (String, String);

/// Which instance a person means.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Which {
    /// Its key.
    pub key: String,
    /// The cluster that it belongs to: to be named where that is another one.
    pub owner: Option<String>,
    /// Where it lives, if several providers list the key.
    pub provider: Option<String>,
}

impl Which {
    /// An instance of this cluster.
    #[must_use]
    pub fn own(key: &str) -> Self {
        Self { key: key.to_owned(), ..Self::default() }
    }
}

/// What has become of an adoption.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Adopted {
    /// Index of the commit, or the newest one when there was none.
    pub index: StoreIndex,
    /// No job wants the slot yet: until the servers start again it gets no other instance, so that the job can be
    /// registered.
    pub kept: bool,
}

#[derive(Debug, Default)]
struct Found {
    sweeps: BTreeMap<Provider, RemoteSweep>,
    /// Providers that have been swept since the start.
    swept: HashSet<Provider>,
    /// Those that have been swept, but too early to show all that there may be; from when on a sweep counts.
    early: HashMap<Provider, Instant>,
    /// Since when incarnations wait for a provider.
    waiting: HashMap<Provider, Instant>,
    /// Keys that a person wants to hear no more of.
    forgotten: HashSet<String>,
    /// Slots that a person keeps free for an instance of another cluster, by its key.
    kept: HashMap<String, SlotKey>,
    asked: Vec<oneshot::Sender<()>>,
    /// For how long the state had gone on unbroken when this process began.
    unbroken: Duration,
}

/// What sweeps have found, and the signals of the loop.
#[derive(Debug)]
pub(crate) struct Sweeps {
    found: Mutex<Found>,
    wake: Notify,
    /// The cluster was made by this process: there is no history that could have been lost.
    new_cluster: bool,
    started: Instant,
    /// How long managers of former servers may act.
    unheard: Duration,
    run_mark: Arc<Keeper>,
}

impl Found {
    /// One of the runtimes that a node reaches has not been swept at all.
    fn misses_one_of(&self, node: &model::Node) -> bool {
        providers_of(node).filter(|(_, p)| p.list).any(|(driver, p)| {
            let provider = (driver.to_owned(), p.provider.clone());
            !self.is_listed(&provider)
        })
    }

    /// It has been swept since the start, if too early to show all.
    fn is_listed(&self, provider: &Provider) -> bool {
        self.swept.contains(provider) || self.early.contains_key(provider)
    }
}

impl Sweeps {
    pub(crate) fn new(new_cluster: bool, unheard: Duration, run_mark: Arc<Keeper>) -> Self {
        let found = Mutex::new(Found { unbroken: run_mark.unbroken(), ..Found::default() });
        Self { found, wake: Notify::new(), new_cluster, started: Instant::now(), unheard, run_mark }
    }

    /// From when on a sweep of a provider counts that shows new instances so late.
    fn counts_from(&self, stale: Duration) -> Instant {
        let after = if self.new_cluster { Duration::ZERO } else { sweeps_count_after(self.unheard, stale) };
        self.started + after.saturating_sub(self.lock().unbroken)
    }

    fn lock(&self) -> MutexGuard<'_, Found> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A node can be asked from now on: what it reaches and nobody has swept is swept at once. After a start nodes
    /// come back without any change of the state.
    pub(crate) fn reachable(&self, node: &model::Node) {
        if self.lock().misses_one_of(node) {
            self.wake.notify_one();
        }
    }

    /// The state is from the past: every provider counts as not swept, and is swept at once.
    pub(crate) fn anew(&self) {
        self.run_mark.doubt();
        let mut found = self.lock();
        found.unbroken = Duration::ZERO;
        found.swept.clear();
        found.early.clear();
        drop(found);
        self.wake.notify_one();
    }

    /// The providers that can be listed and have not been, with the reason, and the unbound instances that live.
    pub(crate) fn left(&self, state: &State) -> (Vec<String>, Vec<String>) {
        let found = self.lock();
        let unswept =
            to_ask(state, |_| true).into_keys().filter(|provider| !found.swept.contains(provider)).map(|provider| {
                let why = found.sweeps.get(&provider).map(|sweep| &*sweep.error).filter(|error| !error.is_empty());
                let why = why.or(found.early.contains_key(&provider).then_some(EARLY));
                let name = if provider.1.is_empty() { provider.0 } else { provider.1 };
                why.map_or_else(|| name.clone(), |why| format!("{name}: {why}"))
            });
        let unbound = found.sweeps.values().flat_map(|s| &s.unbound).filter(|i| i.alive()).map(|i| i.key.clone());
        (unswept.collect(), unbound.collect())
    }

    /// Follows an applied commit: a provider that can be reached for the first time is swept at once.
    pub(crate) fn follow(&self, commit: &Commit) {
        let found = self.lock();
        let news = commit.applied.changes.iter().any(|change| match &change.object {
            Object::Node(node) => !change.deleted && node.status == NodeStatus::Ready && found.misses_one_of(node),
            _ => false,
        });
        drop(found);
        if news {
            self.wake.notify_one();
        }
    }

    /// What the last sweeps have found, by driver and provider.
    pub(crate) fn found(&self) -> Vec<RemoteSweep> {
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

    /// Why a slot must not get an incarnation now, if so: not its first one, nor any that follows. `stopping`: an
    /// instance of it is being stopped by a person's order, beside its record.
    pub(crate) fn holds(
        &self,
        slot: &SlotKey,
        (driver, provider): (&str, &str),
        can_list: bool,
        stopping: bool,
    ) -> Option<String> {
        let mut found = self.lock();
        let name = slot.to_string();
        let unbound = found.sweeps.values().flat_map(|s| &s.unbound).find(|i| i.alive() && i.slot == name);
        let kept = found.kept.iter().find(|(_, kept)| *kept == slot).filter(|_| unbound.is_none());
        if let Some((key, _)) = kept {
            return Some(format!("the slot is kept for instance {key} of another cluster: adopt, stop or forget it"));
        }
        let unbound = unbound.map(|instance| instance.key.clone());
        let provider = (driver.to_owned(), provider.to_owned());
        let swept = found.swept.contains(&provider);
        let early = found.early.get(&provider).copied();
        let known = SweepFacts {
            unbound: unbound.as_deref(),
            stopping,
            new_cluster: self.new_cluster,
            can_list,
            swept,
            early: early.is_some(),
            waited: false,
        };
        let why = holds(&known)?;
        if unbound.is_some() || stopping {
            return Some(why);
        }
        let since = *found.waiting.entry(provider).or_insert_with(Instant::now);
        // It has been listed, and will be when that counts.
        let since = early.map_or(since, |counts_from| since.max(counts_from));
        holds(&SweepFacts { waited: since.elapsed() >= FIRST_SWEEP, ..known })
    }

    /// The one instance that is meant.
    fn meant(&self, which: &Which, own: &str) -> Result<(Provider, RemoteInstance), ServerError> {
        let found = self.lock();
        let mut fitting = found
            .sweeps
            .iter()
            .filter(|((_, provider), _)| which.provider.as_ref().is_none_or(|named| named == provider))
            .flat_map(|(p, s)| s.unbound.iter().chain(&s.others).map(move |i| (p, i)))
            .filter(|(_, i)| i.key == which.key);
        let Some((provider, instance)) = fitting.next() else {
            return Err(ServerError::not_found(Kind::RemoteInstance, &which.key));
        };
        if let Some((other, _)) = fitting.next() {
            return Err(ServerError::invalid(format!(
                "instance {} is listed by two providers, {:?} and {:?}: name the one that is meant (-provider)",
                which.key, provider.1, other.1
            )));
        }
        let owner = if instance.owner.is_empty() { own } else { &instance.owner };
        match &which.owner {
            Some(named) if named != owner => {
                Err(ServerError::invalid(format!("instance {} belongs to cluster {owner}, not to {named}", which.key)))
            }
            // Nobody here can tell whether a manager of that cluster holds a lease on it.
            None if !instance.owner.is_empty() => Err(ServerError::conflict(format!(
                "instance {} belongs to cluster {owner}, whose servers and nodes may still manage it: they would act \
                    on it beside this cluster, or \
                 start another one. If they are gone for good, name the owner: -owner {owner}",
                which.key
            ))),
            _ => Ok((provider.clone(), instance.clone())),
        }
    }

    pub(crate) fn bound(&self, key: &str) {
        let mut found = self.lock();
        found.kept.remove(key);
        for sweep in found.sweeps.values_mut() {
            sweep.unbound.retain(|i| i.key != key);
            sweep.others.retain(|i| i.key != key);
        }
    }
}

/// The runtimes that a node reaches: a driver that is not healthy reaches none, and says why itself.
fn providers_of(node: &model::Node) -> impl Iterator<Item = (&str, &model::node::RemoteProvider)> {
    node.drivers
        .iter()
        .filter(|(_, info)| info.healthy)
        .filter_map(|(name, info)| Some((&**name, info.remote.as_ref()?)))
}

/// How long a new instance may be missing from what the provider lists, by the most careful of its drivers.
fn staleness(state: &State, (driver, provider): &Provider) -> Duration {
    let declared =
        state.nodes().flat_map(|node| providers_of(node)).filter(|(name, p)| name == driver && p.provider == *provider);
    Duration::from_secs(declared.map(|(_, p)| p.stale_seconds).max().unwrap_or_default().min(STALE_MAX))
}

/// Whom to ask first, the smallest: has it no session, is it draining, how many slots it manages, who it is.
type Rank = (bool, bool, usize, NodeId);

/// The providers that can be listed, each with the node to ask: one with a session first, not draining before
/// draining, fewest slots first.
fn to_ask(state: &State, open: impl Fn(NodeId) -> bool) -> BTreeMap<Provider, NodeId> {
    let mut best: BTreeMap<Provider, (Rank, NodeId)> = BTreeMap::new();
    for node in state.nodes().filter(|n| n.status == NodeStatus::Ready) {
        let rank = (!open(node.id), node.drain.is_some(), state.remote_tasks_by_node(node.id).count(), node.id);
        for (driver, p) in providers_of(node).filter(|(_, p)| p.list) {
            let entry = best.entry((driver.to_owned(), p.provider.clone())).or_insert((rank, node.id));
            if rank < entry.0 {
                *entry = (rank, node.id);
            }
        }
    }
    best.into_iter().map(|(provider, (_, node))| (provider, node)).collect()
}

/// Those that no record means: neither by their key, nor as what its manager sees by the handle. A driver lists several
/// instances of one key by keys of their own.
fn unknown_to(state: &State, (driver, provider): &Provider, mut instances: Vec<RemoteInstance>) -> Vec<RemoteInstance> {
    let known: HashSet<IncarnationId> = state.remote_tasks().map(|record| record.incarnation).collect();
    let managed = |i: &RemoteInstance| {
        let record = i.slot.parse().ok().and_then(|slot| state.remote_task(&slot));
        record.is_some_and(|r| {
            let there = *r.driver == **driver && *r.provider == **provider;
            there && !r.provider_id.is_empty() && *r.provider_id == *i.provider_id && !r.observed.ended()
        })
    };
    instances.retain(|i| {
        i.observed != model::Observed::Gone && i.key.parse().map_or(true, |key| !known.contains(&key)) && !managed(i)
    });
    instances
}

#[cfg(test)]
mod tests {
    use model::{Observed, RemoteTask, SlotParts};
    use state::{Batch, Change};

    use super::*;

    #[test]
    fn of_two_instances_of_a_key_the_one_that_its_manager_sees_is_known_and_the_other_is_not() {
        let slot: SlotKey =
            SlotParts { namespace: "n".into(), job_id: "j".into(), group: "g".into(), index: 0, task: "t".into() }
                .into();
        let key = |n: u128| IncarnationId(uuid::Uuid::from_u128(n));
        let record = RemoteTask {
            slot: slot.clone(),
            incarnation: key(1),
            driver: "far".into(),
            provider: "p".into(),
            provider_id: "arn:1".into(),
            epoch: 1,
            observed: Observed::Running,
            ..RemoteTask::default()
        };
        let with = |record: RemoteTask| {
            let mut state = State::new();
            let batch = Batch::new(vec![Change::PutRemoteTask(Box::new(record))]);
            state.apply(state.latest_index() + 1, 1, batch).expect("applies");
            state
        };
        let listed = |n: u128, id: &str| RemoteInstance {
            key: key(n).to_string(),
            slot: slot.to_string(),
            observed: Observed::Running,
            provider_id: id.to_owned(),
            ..RemoteInstance::default()
        };
        let far = |driver: &str, provider: &str| (driver.to_owned(), provider.to_owned());
        let ended = RemoteTask { observed: Observed::Gone, ..record.clone() };
        let state = with(record);
        for (case, state, provider, instance, known) in [
            ("by its key", &state, far("far", "p"), listed(1, "arn:1"), true),
            ("by what its manager sees", &state, far("far", "p"), listed(2, "arn:1"), true),
            ("the second one of the key", &state, far("far", "p"), listed(3, "arn:2"), false),
            ("no name", &state, far("far", "p"), listed(3, ""), false),
            ("the name is another provider's", &state, far("far", "q"), listed(2, "arn:1"), false),
            ("the record's one has ended", &with(ended), far("far", "p"), listed(2, "arn:1"), false),
        ] {
            assert_eq!(unknown_to(state, &provider, vec![instance]).is_empty(), known, "{case}");
        }
    }
}

//! Recovery of a state that is from the past: a restored backup, an emptied directory, a machine that was set back.
//!
//! ```text
//! a mark that the history does not have ─► entered (durable) ─► every session opens anew, every node tells what it has
//! a deliberate restore ──────────────────►        │              every provider is swept, what is unbound is bound
//!                                                 ▼
//!                       all have answered, or a person ends it
//!                                 ▼
//!                       a new generation, indexes above all that anybody has seen
//! ```
//!
//! What a node has and these servers do not know is taken over when they find their own proof of it (`model::proof`).
//! What nothing proves waits for a person, and the recovery with it.
//!
//! Meanwhile nothing is created, stopped, moved, collected or counted as lost: the commit refuses whatever would
//! (`Batch::waits_for_recovery`), so that no loop can forget it. Reads, sessions, leases and what nodes say of
//! themselves go on. What is left of the recovery is a function of the state, of the sessions and of the sweeps: see
//! [`RecoveryStatus`].

mod doubts;
mod inventory;

use std::{
    collections::BTreeSet,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use api::shapes::RemoteSweep;
use control::{
    nodes, pending,
    sessions::SessionId,
    takeover::{self, Doubted, Has, Taken, Trust, Unbound},
};
use lifecycle::remote::recovering::{Awaited, is_over};
use model::{Evaluation, GenerationId, Node, NodeId, NodeStatus, StoreIndex, TimestampNs, Trigger};
use node_gateway::Said;
use state::{Change, ClusterMeta, Mark, Recovery, State};
use store::Store;
use tokio::sync::Notify;

pub use self::doubts::Unproven;
use self::doubts::{Decision, Doubts};
use crate::{
    clock::{new_id, now_ns, ns},
    commit::{CommitQueue, Decided, Stamp},
    error::{Kind, ServerError},
    keyring::Keyring,
    loops,
    parts::Parts,
    published::Published,
    reconciler::part::Part as _,
    runner::Runner,
    session_order::SessionOrder,
    sessions::NodeSessions,
};

/// How often is looked whether it is over, besides when something has happened.
const LOOK: Duration = Duration::from_millis(500);

/// How long the entry may take to be durable.
const STORED_WITHIN: Duration = Duration::from_secs(5);

/// How long a decision on a node is waited for to have its effect.
const HEARD_WITHIN: Duration = Duration::from_secs(5);

/// Who has answered in which recovery, and what it takes to go through with it.
#[derive(Debug)]
pub(crate) struct Recovering {
    answered: Mutex<(GenerationId, BTreeSet<NodeId>)>,
    /// Who says to have what nothing proves.
    doubts: Arc<Doubts>,
    keyring: Arc<Keyring>,
    wake: Notify,
    queue: CommitQueue,
    published: Published,
    parts: Parts,
    sessions: Arc<dyn NodeSessions>,
    runner: Arc<Runner>,
    store: Arc<dyn Store>,
    started_at: TimestampNs,
    /// How long nodes that the state does not know need to be heard.
    unheard: Duration,
}

/// What a recovery waits for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveryStatus {
    /// Why it was entered.
    pub cause: String,
    /// Since when, Unix ns.
    pub since: TimestampNs,
    /// Only a person can end it.
    pub by_hand: bool,
    /// Nodes that have told what they have.
    pub answered: Vec<NodeId>,
    /// Nodes that have not. Those that were down already are not waited for.
    pub waiting_for: Vec<NodeId>,
    /// Connected nodes that say to have what nothing proves: a person decides on each.
    pub unproven: Vec<Unproven>,
    /// Providers that have not been swept since it began, each with the reason, if known.
    pub unswept: Vec<String>,
    /// Instances that no record knows: their slots get no other one.
    pub unbound: Vec<String>,
    /// It does not end by itself before this time: nodes that the state does not know need as long to be heard, Unix
    /// ns.
    pub not_before: TimestampNs,
}

impl RecoveryStatus {
    /// Everything has answered.
    fn complete(&self, now: TimestampNs) -> bool {
        let Self { by_hand, not_before, .. } = *self;
        let nodes = self.waiting_for.len() + self.unproven.len();
        is_over(&Awaited { by_hand, nodes, providers: self.unswept.len(), not_before }, now)
    }

    /// What it waits for, in a sentence.
    #[must_use]
    pub fn waits_for(&self) -> String {
        let mut parts = Vec::new();
        if !self.waiting_for.is_empty() {
            parts.push(format!(
                "{} ({})",
                count(self.waiting_for.len(), "node"),
                list(self.waiting_for.iter().map(|id| id.short().to_string()))
            ));
        }
        if !self.unproven.is_empty() {
            parts.push(format!(
                "a person, because {} ({}) {} to have what nothing proves (drover operator recover -accept)",
                count(self.unproven.len(), "node"),
                list(self.unproven.iter().map(|unproven| match unproven.peer {
                    Some(peer) => format!("{} at {}", unproven.node.short(), peer.ip()),
                    None => unproven.node.short(),
                })),
                if self.unproven.len() == 1 { "says" } else { "say" }
            ));
        }
        if !self.unswept.is_empty() {
            parts.push(format!(
                "the sweep of {} ({})",
                count(self.unswept.len(), "provider"),
                list(self.unswept.iter().cloned())
            ));
        }
        if self.by_hand {
            parts.push(
                "a person, because the servers began without a list of their nodes (drover operator recover)"
                    .to_owned(),
            );
        }
        if parts.is_empty() {
            parts.push("nodes that it may not know of to be heard, for a moment".to_owned());
        }
        parts.join(", ")
    }
}

/// A node for people, and where it connects from: any machine that has the join secret can be one.
fn who(id: NodeId, name: &str, peer: Option<SocketAddr>) -> String {
    match peer {
        Some(peer) => format!("{} ({name:.64}, at {})", id.short(), peer.ip()),
        None => format!("{} ({name:.64})", id.short()),
    }
}

fn count(n: usize, of: &str) -> String {
    format!("{n} {of}{}", if n == 1 { "" } else { "s" })
}

fn list(items: impl Iterator<Item = String>) -> String {
    let mut items: Vec<String> = items.collect();
    let more = items.len().saturating_sub(5);
    items.truncate(5);
    if more > 0 {
        items.push(format!("and {more} more"));
    }
    items.join(", ")
}

/// What follows from what a node has told.
enum Told {
    Nothing,
    /// It is part of that generation from now on.
    Stored(GenerationId, StoreIndex),
    /// It has what the state does not know.
    KnowsMore(String),
    /// It says to have what nothing proves, in that recovery.
    Doubted(GenerationId, Doubted),
}

/// What sweeps have found that no record knows.
fn unbound(found: &[RemoteSweep]) -> impl Iterator<Item = Unbound<'_>> {
    found.iter().map(|sweep| Unbound { driver: &sweep.driver, provider: &sweep.provider, instances: &sweep.unbound })
}

impl Recovering {
    /// Nobody has answered anything. A recovery does not end by itself before `unheard` has passed.
    pub(crate) fn new(
        (queue, published, store): (CommitQueue, Published, Arc<dyn Store>),
        keyring: Arc<Keyring>,
        parts: Parts,
        sessions: Arc<dyn NodeSessions>,
        runner: Arc<Runner>,
        started_at: TimestampNs,
        unheard: Duration,
    ) -> Self {
        Self {
            answered: Mutex::default(),
            doubts: Arc::default(),
            keyring,
            wake: Notify::new(),
            queue,
            published,
            parts,
            sessions,
            runner,
            store,
            started_at,
            unheard,
        }
    }

    fn answered(&self, recovery: &Recovery) -> BTreeSet<NodeId> {
        let answered = self.answered.lock().unwrap_or_else(PoisonError::into_inner);
        if answered.0 == recovery.generation { answered.1.clone() } else { BTreeSet::new() }
    }

    /// The node has told what it has, that is stored, and its session has been given the word of it: whatever ends
    /// the session comes after that.
    pub(crate) fn has_answered(&self, recovery: GenerationId, node: NodeId) {
        tracing::info!(node = %node, "a node has told what it has");
        let mut answered = self.answered.lock().unwrap_or_else(PoisonError::into_inner);
        if answered.0 != recovery {
            *answered = (recovery, BTreeSet::new());
        }
        answered.1.insert(node);
        drop(answered);
        self.wake.notify_one();
    }

    /// The recovery that is under way, in the newest state.
    pub(crate) fn now(&self) -> Option<Arc<Recovery>> {
        self.queue.newest().cluster().recovery.clone()
    }

    /// What the recovery waits for; None = there is none.
    pub(crate) fn status(&self) -> Option<RecoveryStatus> {
        let state = self.published.load_full();
        let recovery = state.cluster().recovery.clone()?;
        let answered = self.answered(&recovery);
        let unproven = self.doubts.all();
        let doubted = |id: NodeId| unproven.iter().any(|unproven| unproven.node == id);
        let waiting: Vec<NodeId> = state
            .nodes()
            .filter(|node| node.status != NodeStatus::Down && !answered.contains(&node.id) && !doubted(node.id))
            .map(|node| node.id)
            .collect();
        let (unswept, unbound) = self.parts.sweeps.left(&state);
        Some(RecoveryStatus {
            cause: recovery.cause.clone(),
            since: recovery.since,
            by_hand: recovery.by_hand,
            waiting_for: waiting,
            unproven,
            answered: answered.into_iter().collect(),
            unswept,
            unbound,
            // One that a former process has begun, by a clock that was far ahead, counts from the start.
            not_before: if recovery.since > now_ns() { self.started_at } else { recovery.since.max(self.started_at) }
                + ns(self.unheard),
        })
    }

    /// Enters recovery because of a mark that this history does not have.
    pub(crate) async fn enter(&self, node: &Node, peer: Option<SocketAddr>, mark: Mark) -> Result<(), ServerError> {
        let who = who(node.id, &node.name, peer);
        let unknown = move |state: &State| {
            let known = state.cluster().history_of(mark.generation, state.latest_index());
            let cause = || {
                format!(
                    "node {} has acted on index {} of generation {}, of which these servers know {}: their state is \
                        from the past",
                    who,
                    mark.index,
                    mark.generation,
                    if known == 0 { "nothing".to_owned() } else { format!("no more than index {known}") }
                )
            };
            (known < mark.index).then(|| (cause(), mark.index))
        };
        self.enter_for(mark, unknown).await
    }

    /// Enters recovery for the cause and the index that are found, if so.
    async fn enter_for(
        &self,
        mark: Mark,
        unknown: impl FnOnce(&State) -> Option<(String, StoreIndex)> + Send + 'static,
    ) -> Result<(), ServerError> {
        let entered = self
            .queue
            .commit(move |state, stamp| {
                let mut meta = ClusterMeta::clone(state.cluster());
                let before = meta.recovery.is_some();
                let Some((cause, index)) = unknown(state) else {
                    return Ok(Decided { batch: state::Batch::default(), answer: None });
                };
                let batch = if meta.enter_recovery(new_id(), &cause, index, stamp.now) {
                    Change::SetClusterMeta(Box::new(meta)).into()
                } else {
                    state::Batch::default()
                };
                Ok(Decided { batch, answer: (!before).then_some(cause) })
            })
            .await?;
        if let Some(cause) = entered {
            self.begun(&cause);
        }
        // Another node may have brought it about a moment ago, and it is not durable yet.
        let mut published = self.published.subscribe();
        let entered = async {
            loop {
                let state = self.published.load_full();
                if state.cluster().recovery.is_some()
                    || state.cluster().knows(mark, state.latest_index())
                    || published.changed().await.is_err()
                {
                    return;
                }
            }
        };
        let stored = tokio::time::timeout(STORED_WITHIN, entered).await;
        stored.map_err(|_| ServerError::Store("the servers could not write down that they recover".to_owned()))
    }

    /// A recovery begins: also one that a restart, or whoever has restored the state, has left.
    pub(crate) fn begun(&self, cause: &str) {
        tracing::error!(
            cause,
            "RECOVERY: nothing is created, stopped, moved or collected until every node and provider has answered; \
                see drover operator recover -status"
        );
        self.parts.sweeps.anew();
        // Each opens another one and tells what it has.
        self.sessions.end_all();
    }

    /// Takes over what a node has told.
    ///
    /// Of a node whose mark is lost (`lost`) what it has says whether it has acted on more than these servers know:
    /// then they recover, and otherwise the node is given the mark of their state.
    pub(crate) fn told(
        self: &Arc<Self>,
        (from, order): (SessionId, SessionOrder),
        said: Said,
    ) -> impl Future<Output = Result<Option<(GenerationId, StoreIndex)>, ServerError>> + Send + 'static {
        let Said { mark, lost, peer, pieces } = said;
        let (own, node) = (self.clone(), from.node);
        let state = self.published.load_full();
        let (keyring, cluster) = (self.keyring.clone(), state.cluster().cluster_id);
        async move {
            // It may be half a GiB.
            let read = blocking::spawn(move || inventory::read(pieces, &keyring, cluster, node)).await;
            let has = Arc::new(read.map_err(|ended| ServerError::Store(ended.to_string()))??);
            let mut told = own.take((from, order.clone()), (mark, lost), has.clone()).await?;
            if let Told::Doubted(recovery, claims) = told {
                let unproven = Unproven { node, peer, claims };
                own.doubted(&unproven);
                told = match own.doubts.clone().decide(from.number, unproven, &own.wake).await {
                    Some(Decision::Accepted) => own.take((from, order), (mark, lost), has).await?,
                    // The recovery ends without it. The node is given a mark of what comes then, and follows.
                    Some(Decision::Ended) => Told::Stored(recovery, own.queue.newest().latest_index()),
                    None => return Err(ServerError::conflict("the node has opened another session".to_owned())),
                };
            }
            match told {
                Told::Stored(generation, index) => Ok(Some((generation, index))),
                // It says more than it has said before: its next session tells.
                Told::Doubted(..) => Err(ServerError::conflict("what the node has is still not proven".to_owned())),
                Told::Nothing => Ok(None),
                Told::KnowsMore(what) => {
                    let state = own.published.load_full();
                    let name = state.node(node).map(|node| node.name.to_string()).unwrap_or_default();
                    let cause = format!(
                        "node {} has lost the record of what it has acted on, and has {what}, which these servers do \
                            not know: their state may be from \
                         the past",
                        who(node, &name, peer)
                    );
                    own.enter_for(mark, move |state| Some((cause, state.latest_index()))).await.map(|()| None)
                }
            }
        }
    }

    /// Takes over what these servers believe of what a node has.
    async fn take(
        self: &Arc<Self>,
        (from, order): (SessionId, SessionOrder),
        (mark, lost): (Mark, bool),
        has: Arc<Has>,
    ) -> Result<Told, ServerError> {
        let (doubts, node) = (self.doubts.clone(), from.node);
        let taken = self.queue.commit(move |state, stamp| {
            order.check(from)?;
            let Some(recovery) = state.cluster().recovery.clone() else {
                let answer = match takeover::unknown_of(state, node, &has) {
                    _ if !lost => Told::Nothing,
                    Some(what) => Told::KnowsMore(what),
                    None => Told::Stored(state.cluster().generation, state.latest_index()),
                };
                return Ok(Decided { batch: state::Batch::default(), answer });
            };
            // One whose mark is part of the history, or that has told already, has nothing that the servers do
            // not know better.
            let knows_more = !state.cluster().knows(mark, state.latest_index());
            // Servers that began empty have no keys to know their own word by. A person ends that recovery.
            let trust = match recovery.by_hand || doubts.accepts(recovery.generation, node) {
                true => Trust::All,
                false => Trust::Proofs,
            };
            let Taken { mut batch, doubted } = match knows_more {
                true => takeover::of_node(state, node, &has, trust, stamp, &mut new_id),
                false => Taken::default(),
            };
            batch.recovers = true;
            let answer = match doubted.is_empty() {
                true => Told::Stored(recovery.generation, stamp.index),
                false => Told::Doubted(recovery.generation, doubted),
            };
            Ok(Decided { batch, answer })
        });
        taken.await
    }

    /// Says what a node claims without a proof.
    fn doubted(&self, Unproven { node, peer, claims }: &Unproven) {
        tracing::warn!(node = %node, peer = ?peer, allocations = claims.allocs, remote_tasks = claims.orders,
            host_volumes = claims.volumes, examples = ?claims.examples, why = ?claims.why, "a node says to have what \
            nothing proves: nothing of it is taken over before a person accepts it; see drover operator recover \
            -status");
    }

    /// A person believes what a node says to have. Waits until it is taken over.
    pub(crate) async fn accept(&self, id: NodeId) -> Result<(), ServerError> {
        let Some(recovery) = self.now() else {
            return Err(ServerError::conflict("the servers do not recover: no node has to be believed".to_owned()));
        };
        if !self.doubts.accept(recovery.generation, id) {
            return Err(ServerError::conflict(format!(
                "node {} is not connected, or says to have nothing that is not proven",
                id.short()
            )));
        }
        tracing::warn!(node = %id, "what the node says to have is believed, by an operator's order");
        self.have_answered(&[id]).await;
        Ok(())
    }

    /// Waits for a while until these nodes have the word that what they have is taken over, or is not.
    async fn have_answered(&self, nodes: &[NodeId]) {
        let answered = async {
            while let Some(recovery) = self.now() {
                let answered = self.answered(&recovery);
                if nodes.iter().all(|node| answered.contains(node)) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        // One whose connection is gone tells again.
        let _ = tokio::time::timeout(HEARD_WITHIN, answered).await;
    }

    /// Binds what sweeps have found and no record knows.
    async fn bind(&self) -> Result<(), ServerError> {
        let found = self.parts.sweeps.found();
        let state = self.queue.newest();
        let bound = takeover::of_sweeps(&state, unbound(&found), Stamp { index: 0, now: now_ns() }, &mut new_id);
        if bound.is_empty() {
            return Ok(());
        }
        let keys = self
            .queue
            .commit(move |state, stamp| {
                if state.cluster().recovery.is_none() {
                    return Ok(Decided { batch: state::Batch::default(), answer: Vec::new() });
                }
                let bound = takeover::of_sweeps(state, unbound(&found), stamp, &mut new_id);
                let keys: Vec<String> = bound.iter().map(|record| record.incarnation.to_string()).collect();
                let changes = bound.into_iter().map(|record| Change::PutRemoteTask(Box::new(record))).collect();
                Ok(Decided { batch: state::Batch { recovers: true, ..state::Batch::new(changes) }, answer: keys })
            })
            .await?;
        for key in keys {
            tracing::warn!(key, "an instance that no record knew is bound to its slot");
            self.parts.sweeps.bound(&key);
        }
        Ok(())
    }

    /// Ends the recovery. `by_order` ends it although not all have answered.
    pub(crate) async fn end(&self, by_order: bool) -> Result<(), ServerError> {
        // Also by a person's order nothing that was found stays behind: its slot would wait for another order.
        self.bind().await?;
        let Some(status) = self.status() else {
            return Err(ServerError::conflict("the servers do not recover: there is nothing to end".to_owned()));
        };
        if !by_order && !status.complete(now_ns()) {
            return Ok(());
        }
        if by_order {
            // They follow what comes then. One that does not know would begin the next recovery.
            let without = self.doubts.end();
            self.have_answered(&without).await;
        }
        let newest = self.queue.newest();
        let Some(floor) = ClusterMeta::clone(newest.cluster()).end_recovery(newest.latest_index()) else {
            return Ok(());
        };
        self.queue.raise(floor);
        let index = self
            .queue
            .commit(move |state, stamp| {
                let mut meta = ClusterMeta::clone(state.cluster());
                meta.end_recovery(state.latest_index());
                let mut changes = vec![Change::SetClusterMeta(Box::new(meta))];
                let unseen = takeover::of_the_unseen(state, stamp, &mut new_id);
                changes.extend(unseen.into_iter().map(|record| Change::PutRemoteTask(Box::new(record))));
                // What is wanted is compared with what there is, once for each job that may have something.
                let jobs = state.jobs().filter(|job| !job.is_template());
                let evals: Vec<Evaluation> =
                    jobs.map(|job| pending(job, Trigger::NodeUpdate, stamp, &mut new_id)).collect();
                if !evals.is_empty() {
                    changes.push(Change::UpsertEvals(evals));
                }
                let batch = state::Batch { recovers: true, ..state::Batch::new(changes) };
                Ok(Decided { batch, answer: stamp.index })
            })
            .await?;
        tracing::warn!(by_order, waited_for = status.waits_for(), "the recovery is over");
        let state = self.published.load_full();
        self.parts.fill(&state);
        self.parts.leases.fill(&state);
        self.sessions.end_all();
        let store = self.store.clone();
        if let Ok(Err(error)) = blocking::spawn(move || store.note_recovery(index)).await {
            tracing::warn!(error = %error, "the end of the recovery was not written down for the other servers: one \
                that has found the same loss may begin it again");
        }
        Ok(())
    }

    /// A person says that a node is not to be waited for: it is taken for down.
    pub(crate) async fn excuse(&self, id: NodeId) -> Result<(), ServerError> {
        self.queue
            .commit(move |state, stamp| {
                if state.cluster().recovery.is_none() {
                    return Err(ServerError::conflict(
                        "the servers do not recover: no node has to be excused".to_owned(),
                    ));
                }
                let node = state.node(id).ok_or_else(|| ServerError::not_found(Kind::Node, id))?;
                if node.status == NodeStatus::Down {
                    return Err(ServerError::conflict(format!("node {} is down: it is not waited for", id.short())));
                }
                let event =
                    nodes::event("Excused from the recovery of the servers by an operator's order", "Cluster", stamp);
                let description = "excused from the recovery of the servers: taken for down".to_owned();
                let down = Change::NodeStatus { id, status: NodeStatus::Down, description, event: Some(event) };
                let evals = nodes::evals_for(state, id, Trigger::NodeUpdate, stamp, &mut new_id);
                Ok(Decided { batch: vec![down, Change::UpsertEvals(evals)].into(), answer: () })
            })
            .await?;
        self.parts.leases.forget(id);
        self.sessions.end(id);
        self.wake.notify_one();
        Ok(())
    }

    /// The loop: binds what sweeps find, ends the recovery when everything has answered.
    pub(crate) async fn run(self: Arc<Self>) {
        let mut published = self.published.subscribe();
        let mut said = String::new();
        let turns = self.runner.turns(&loops::RECOVERY);
        loop {
            turns.works("a look at what there is to recover");
            if self.now().is_some() {
                if let Err(error) = self.end(false).await {
                    tracing::error!(error = %error, "a step of the recovery failed; trying again");
                }
                if let Some(status) = self.status() {
                    let waits = status.waits_for();
                    if waits != said {
                        tracing::warn!(waits_for = waits, "recovering");
                        said = waits;
                    }
                }
                turns.waits("nodes and providers");
                tokio::select! {
                    () = tokio::time::sleep(LOOK) => {}
                    () = self.wake.notified() => {}
                    () = self.runner.stopping().cancelled() => return,
                }
            } else {
                turns.waits("a state from the past");
                tokio::select! {
                    changed = published.changed() => if changed.is_err() { return },
                    () = self.runner.stopping().cancelled() => return,
                }
            }
        }
    }
}

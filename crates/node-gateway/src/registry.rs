//! The registry of open sessions, and what is queued for each.

use std::{
    collections::{BTreeSet, HashMap},
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use api::node_rpc::{ListRemote, RemoteListed};
use control::sessions::SessionId;
use lifecycle::membership::{self, Standing};
use model::{NodeId, SlotKey};
use state::{AppliedSet, Object, State};
use tokio::sync::{Notify, oneshot};

use crate::sent::{self, Changes};

/// Changes in one message. A node gets a job of thousands in pieces at its own pace, and the server never builds it up
/// in memory at once.
const PIECE: usize = 128;

/// How long a node may take to list a page of a provider: its driver's call has a limit of its own.
const LIST_PATIENCE: Duration = Duration::from_secs(30);

/// The server's view of an open session, and the queue to it. Small, without channels of its own: there are thousands.
#[derive(Debug)]
pub(crate) struct SessionEntry {
    pub(crate) serial: u64,
    /// Identifies one start of one agent.
    instance: String,
    /// Address of the node's connection.
    peer: String,
    /// When the node's last message came.
    heard: Mutex<Instant>,
    /// Wakes the session: allocations or orders may have changed, a question waits, or it must end.
    pub(crate) wake: Notify,
    /// The session must end; the node gets the reason.
    ended: AtomicBool,
    told: Mutex<Told>,
}

/// What waits for a session.
#[derive(Debug, Default)]
pub(crate) struct Told {
    changes: Changes,
    /// Slots whose order the session must send again.
    resend: BTreeSet<SlotKey>,
    /// Questions to the node.
    pub(crate) questions: Vec<Ask>,
}

impl SessionEntry {
    /// Records a message of the node.
    pub(crate) fn hears(&self) {
        *self.heard.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// Whether another agent than `instance` sent a message within that time.
    fn rivals(&self, instance: &str, within: Duration) -> bool {
        let silent = self.heard.lock().unwrap_or_else(PoisonError::into_inner).elapsed();
        !self.ended() && membership::rivals(&Standing { instance: &self.instance, silent }, instance, within)
    }

    pub(crate) fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.wake.notify_one();
    }

    pub(crate) fn ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    pub(crate) fn resend(&self, slots: impl IntoIterator<Item = SlotKey>) {
        self.told().resend.extend(slots);
        self.wake.notify_one();
    }

    fn changed(&self, changes: Changes) {
        self.told().changes.add(changes);
        self.wake.notify_one();
    }

    /// Takes all possible changes, and the slots whose order is to be sent again.
    pub(crate) fn take_changes(&self) -> (Changes, BTreeSet<SlotKey>) {
        let mut told = self.told();
        (std::mem::take(&mut told.changes), std::mem::take(&mut told.resend))
    }

    /// As [`Self::take_changes`], but at most one piece; the rest wakes the session again.
    pub(crate) fn take_piece(&self) -> (Changes, BTreeSet<SlotKey>) {
        let mut told = self.told();
        let changes = told.changes.take_piece(PIECE);
        // With the last of the orders, which follow the allocations that they refer to.
        if told.changes.is_empty() {
            return (changes, std::mem::take(&mut told.resend));
        }
        self.wake.notify_one();
        (changes, BTreeSet::new())
    }

    fn ask(&self, question: Ask) {
        self.told().questions.push(question);
        self.wake.notify_one();
    }
}

/// A question that a session carries to its node.
#[derive(Debug)]
pub(crate) struct Ask {
    pub(crate) question: ListRemote,
    pub(crate) answer: oneshot::Sender<RemoteListed>,
}

/// The open sessions, one per node.
#[derive(Debug, Default)]
pub struct Sessions {
    open: Mutex<HashMap<NodeId, Arc<SessionEntry>>>,
    serials: AtomicU64,
    /// Number of allocations and remote tasks that the sessions have looked at.
    looks: AtomicU64,
}

impl Sessions {
    fn lock(&self) -> MutexGuard<'_, HashMap<NodeId, Arc<SessionEntry>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Address of another agent with this node's identity, if one sent a message within that time.
    pub(crate) fn rival(&self, node: NodeId, instance: &str, within: Duration) -> Option<String> {
        self.lock().get(&node).filter(|entry| entry.rivals(instance, within)).map(|entry| entry.peer.clone())
    }

    /// Ends all sessions; each node opens a new one.
    pub fn end_all(&self) {
        self.lock().values().for_each(|entry| entry.end());
    }

    /// The next session of a node.
    pub(crate) fn next(&self, node: NodeId) -> SessionId {
        SessionId { node, number: self.serials.fetch_add(1, Ordering::Relaxed) }
    }

    /// Opens a session and ends an older one of the same node. The caller checks for a rival first.
    pub(crate) fn open(
        &self,
        SessionId { node, number: serial }: SessionId,
        instance: String,
        peer: Option<SocketAddr>,
    ) -> Arc<SessionEntry> {
        let entry = Arc::new(SessionEntry {
            serial,
            instance,
            peer: peer.map_or_else(|| "an unknown address".to_owned(), |peer| peer.to_string()),
            heard: Mutex::new(Instant::now()),
            wake: Notify::new(),
            ended: AtomicBool::new(false),
            told: Mutex::default(),
        });
        if let Some(old) = self.lock().insert(node, entry.clone()) {
            old.end();
        }
        entry
    }

    /// Asks a node for one page of the instances at a driver's provider: this cluster's, or those of every cluster.
    ///
    /// # Errors
    /// Why there is no answer.
    pub async fn list_remote(
        &self,
        node: NodeId,
        (driver, provider): (&str, &str),
        page_token: String,
        all_owners: bool,
    ) -> Result<RemoteListed, String> {
        let question =
            ListRemote { seq: 0, driver: driver.to_owned(), provider: provider.to_owned(), page_token, all_owners };
        let (answer, answered) = oneshot::channel();
        // The question goes with the entry, so the asker hears of the session's end at once.
        match self.lock().get(&node) {
            Some(entry) => entry.ask(Ask { question, answer }),
            None => return Err(format!("node {} has no session", node.short())),
        }
        match tokio::time::timeout(LIST_PATIENCE, answered).await {
            Ok(Ok(page)) => Ok(page),
            Ok(Err(_)) => Err(format!("the session of node {} ended before it answered", node.short())),
            Err(_) => Err(format!("node {} did not answer within {} s", node.short(), LIST_PATIENCE.as_secs())),
        }
    }

    pub(crate) fn close(&self, node: NodeId, serial: u64) {
        let mut open = self.lock();
        if open.get(&node).is_some_and(|entry| entry.serial == serial) {
            open.remove(&node);
        }
    }

    /// Ends the session of a node, if it has one.
    pub fn end(&self, node: NodeId) {
        if let Some(entry) = self.lock().get(&node) {
            entry.end();
        }
    }

    /// Whether this node has a session.
    #[must_use]
    pub fn has(&self, node: NodeId) -> bool {
        self.lock().contains_key(&node)
    }

    /// Number of open sessions.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    /// Whether no session is open.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Number of allocations and remote tasks that the sessions have looked at since the start.
    #[must_use]
    pub fn looks(&self) -> u64 {
        self.looks.load(Ordering::Relaxed)
    }

    /// Counts `many` looks of a session.
    pub(crate) fn looked(&self, many: u64) {
        self.looks.fetch_add(many, Ordering::Relaxed);
    }

    /// Tells the sessions what a published commit may have changed for their nodes. `before` is the state before the
    /// commit.
    pub fn follow(&self, before: &State, applied: &AppliedSet) {
        let concerns = sent::concerns(before, applied);
        let gone = applied.changes.iter().filter(|change| change.deleted).filter_map(|change| match &change.object {
            Object::Node(node) => Some(node.id),
            _ => None,
        });
        let end: Vec<NodeId> = gone.collect();
        if concerns.is_empty() && end.is_empty() {
            return;
        }
        let open = self.lock();
        for (node, changes) in concerns {
            if let Some(entry) = open.get(&node) {
                entry.changed(changes);
            }
        }
        for node in end {
            if let Some(entry) = open.get(&node) {
                entry.end();
            }
        }
    }
}

//! What the loops of one opened store share.

use std::{
    collections::BTreeMap,
    fmt::Display,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use etcd::{Client, Error, Reason};
use tokio::sync::watch;
use uuid::Uuid;

use super::{
    layout::{Entry, Keys, Member, Meta, Recovered},
    mark::{Known, Mark, is_recovered},
    offline::Offline,
};
use crate::{
    contract::{Committed, Lost, StoreError},
    recent::Recent,
};

/// How long etcd may give no answer before a call that reads or that was not sent fails.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
/// Between two tries.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// This server leads.
#[derive(Clone, Copy, Debug)]
pub(super) struct Leading {
    pub(super) fence: i64,
    pub(super) lease: i64,
    /// When the others have last seen a change by this leader.
    pub(super) seen: Instant,
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) client: Client,
    pub(super) keys: Keys,
    /// In errors.
    pub(super) path: PathBuf,
    /// Of this opened store.
    pub(super) run: String,
    pub(super) generation: Uuid,
    pub(super) cluster: u64,
    /// With the format in use; it never goes down.
    pub(super) meta: Mutex<Meta>,
    /// So long all servers have to read a higher format before it is written.
    pub(super) settle: Duration,
    pub(super) lease: Duration,
    pub(super) member: Mutex<Member>,
    /// Changes when the member has to be written again.
    pub(super) member_changed: watch::Sender<u64>,
    pub(super) members: Mutex<BTreeMap<String, Member>>,
    pub(super) leading: Mutex<Option<Leading>>,
    /// The highest fence that was seen.
    pub(super) newest_fence: AtomicI64,
    /// The revision of the newest sign of life of a leader that the view has seen.
    pub(super) newest_sign: AtomicI64,
    pub(super) leader: watch::Sender<Option<Member>>,
    pub(super) vacant: watch::Sender<bool>,
    pub(super) fenced: watch::Sender<Option<u64>>,
    /// When the newest check of the fence that held was sent, by the boot clock.
    pub(super) checked: watch::Sender<Option<Duration>>,
    /// When the newest sign of the leader was seen after which nothing is missing here, by the boot clock.
    pub(super) heard: watch::Sender<Option<Duration>>,
    /// Why the store can no longer be used.
    pub(super) broken: watch::Sender<Option<StoreError>>,
    pub(super) closing: watch::Sender<bool>,
    pub(super) recent: Arc<Recent>,
    /// The highest index that went to `recent`.
    published: Mutex<Newest>,
    /// The highest revision in an answer.
    revision: AtomicI64,
    /// None = no mark is kept; false = the mark tells of a loss, and waits for a commit.
    mark: Mutex<Option<(Mark, bool)>>,
    /// What the mark has told at the opening, until the servers have recovered from it.
    pub(super) missing: Mutex<Option<Missing>>,
    pub(super) counters: Counters,
    /// Records of batches since the newest snapshot, and their bytes as etcd has them.
    pub(super) since_snapshot: AtomicU64,
    pub(super) bytes_since_snapshot: AtomicU64,
    pub(super) snapshot_bytes: AtomicU64,
    /// None = a server has opened it.
    pub(super) offline: Option<Offline>,
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) batches: AtomicU64,
    pub(super) transactions: AtomicU64,
    pub(super) bytes: AtomicU64,
}

/// The newest batch that watchers were told.
#[derive(Clone, Copy, Debug)]
struct Newest {
    index: u64,
    /// Whose it was; None where this server has not read it. No two histories of an index have it in common: whoever
    /// writes after a restore has a fence of its own.
    fence: Option<u64>,
}

/// What a store lacks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Missing {
    pub(super) known: Known,
    pub(super) lost: Lost,
    /// The newest recovery when that was found.
    pub(super) recovered: Recovered,
}

/// What [`Shared`] begins with.
pub(super) struct Begin {
    pub(super) client: Client,
    pub(super) keys: Keys,
    pub(super) path: PathBuf,
    pub(super) meta: Meta,
    pub(super) settle: Duration,
    pub(super) cluster: u64,
    pub(super) lease: Duration,
    pub(super) member: Member,
    pub(super) mark: Option<(Mark, bool)>,
    pub(super) missing: Option<Missing>,
    pub(super) index: u64,
    pub(super) revision: i64,
    pub(super) offline: Option<Offline>,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub(super) fn new(begin: Begin) -> Self {
        let Begin { client, keys, path, meta, settle, cluster, lease, member, .. } = begin;
        let Begin { mark, missing, index, revision, offline, .. } = begin;
        Self {
            client,
            keys,
            path,
            run: Uuid::new_v4().to_string(),
            generation: meta.generation,
            cluster,
            meta: Mutex::new(meta),
            settle,
            lease,
            member: Mutex::new(member),
            member_changed: watch::Sender::new(0),
            members: Mutex::default(),
            leading: Mutex::default(),
            newest_fence: AtomicI64::new(0),
            newest_sign: AtomicI64::new(0),
            leader: watch::Sender::new(None),
            vacant: watch::Sender::new(false),
            fenced: watch::Sender::new(None),
            checked: watch::Sender::new(None),
            heard: watch::Sender::new(None),
            broken: watch::Sender::new(None),
            closing: watch::Sender::new(false),
            recent: Recent::new(index),
            published: Mutex::new(Newest { index, fence: None }),
            revision: AtomicI64::new(revision),
            mark: Mutex::new(mark),
            missing: Mutex::new(missing),
            counters: Counters::default(),
            since_snapshot: AtomicU64::new(0),
            bytes_since_snapshot: AtomicU64::new(0),
            snapshot_bytes: AtomicU64::new(0),
            offline,
        }
    }

    pub(super) fn leading(&self) -> Option<Leading> {
        *lock(&self.leading)
    }

    /// A check that was sent then has found this fence in place. `seen`: the others see by it that this leader lives.
    pub(super) fn check_held(&self, fence: i64, sent: Duration, seen: bool) {
        {
            let mut leading = lock(&self.leading);
            // An answer may come after the news that the fence is gone: it grants nothing any more.
            let Some(leading) = leading.as_mut().filter(|leading| leading.fence == fence) else { return };
            if seen {
                // As of when it was sent: while late answers come in, the next beat is due all the same.
                let age = clock::boot_now().saturating_sub(sent);
                let at = Instant::now().checked_sub(age).unwrap_or(leading.seen);
                leading.seen = leading.seen.max(at);
            }
        }
        self.checked.send_if_modified(|checked| {
            let newer = checked.is_none_or(|checked| checked < sent);
            if newer {
                *checked = Some(sent);
            }
            newer
        });
    }

    /// Nothing that was committed until then is missing here.
    pub(super) fn hear(&self, at: Duration) {
        self.heard.send_if_modified(|heard| {
            let newer = heard.is_none_or(|heard| heard < at);
            if newer {
                *heard = Some(at);
            }
            newer
        });
    }

    /// Nothing is granted any more by what was true until the newest check. Until then nothing was missing here.
    pub(super) fn uncheck(&self) {
        if let Some(checked) = self.checked.send_replace(None) {
            self.hear(checked);
        }
    }

    /// The fence of this leader is no more.
    pub(super) fn lose(&self, fence: i64, newest: i64) {
        self.newest_fence.fetch_max(newest, Ordering::Relaxed);
        {
            let mut leading = lock(&self.leading);
            if leading.is_none_or(|leading| leading.fence != fence) {
                return;
            }
            *leading = None;
        }
        tracing::warn!(ours = fence, newest, "another server has taken over, or the lease of this one has ended");
        // At once: whoever learns that the fence is lost finds it unconfirmed, and whoever finds that learns the cause.
        self.fenced.send_modify(|fenced| {
            self.uncheck();
            *fenced = Some(newest.unsigned_abs());
        });
        self.leader.send_if_modified(|leader| {
            let ours = leader.as_ref() == Some(&*lock(&self.member));
            if ours {
                *leader = None;
            }
            ours
        });
    }

    /// The highest index that watchers were told.
    pub(super) fn published(&self) -> u64 {
        lock(&self.published).index
    }

    /// Tells watchers of batches that one transaction has written under a fence, each once. Nobody who looks in between
    /// finds a part of them: what comes next follows on the newest.
    pub(super) fn publish(&self, batches: impl IntoIterator<Item = (Committed, usize)>, fence: u64) {
        let mut published = lock(&self.published);
        for (batch, bytes) in batches {
            if batch.index > published.index {
                *published = Newest { index: batch.index, fence: Some(fence) };
                self.recent.push(batch, bytes);
            }
        }
    }

    /// Batches up to this index were missed.
    pub(super) fn skip_to(&self, index: u64) {
        let mut published = lock(&self.published);
        if index > published.index {
            *published = Newest { index, fence: None };
            self.recent.restart(index);
        }
    }

    /// Whether the batch that was published last can be told from one of another history.
    pub(super) fn knows_its_newest(&self) -> bool {
        lock(&self.published).fence.is_some()
    }

    pub(super) fn revision(&self) -> i64 {
        self.revision.load(Ordering::Relaxed)
    }

    /// Notes the revision of an answer. `before` is what was known when the call was sent: a lower one means that
    /// etcd's data were replaced by older ones.
    pub(super) fn note_revision(&self, before: i64, revision: i64) -> Result<(), StoreError> {
        self.revision.fetch_max(revision, Ordering::Relaxed);
        if revision >= before {
            return Ok(());
        }
        Err(self.went_back("revision", before, revision))
    }

    /// Ends the store: what it has shown is not what etcd has.
    pub(super) fn went_back(&self, what: &str, from: impl Display, to: impl Display) -> StoreError {
        self.replaced(&format!("its {what} went back from {from} to {to}"))
    }

    /// Ends the store: another one is in its place.
    pub(super) fn replaced(&self, seen: &str) -> StoreError {
        let reason = format!("{seen}: an older copy or another store was put in its place");
        let error = StoreError::Fatal { path: self.path.clone(), reason: reason.into() };
        self.broken.send_if_modified(|broken| {
            let first = broken.is_none();
            if first {
                tracing::error!(error = %error, "the store stops");
                *broken = Some(error.clone());
            }
            first
        });
        error
    }

    /// Whether a batch that is to be published follows on what was published last. One that begins before it belongs to
    /// another history, of a copy that was put in etcd's place meanwhile.
    pub(super) fn follows(&self, entry: &Entry) -> Result<(), StoreError> {
        let published = self.published();
        if entry.base < published && published < entry.index {
            return Err(self.went_back("index", published, entry.base));
        }
        self.is_as_published(entry.index, entry.fence)
    }

    /// Whether the batch of an index is the one that was published, as far as that is known here.
    pub(super) fn is_as_published(&self, index: u64, fence: u64) -> Result<(), StoreError> {
        let newest = *lock(&self.published);
        match newest.fence {
            Some(known) if newest.index == index && known != fence => {
                Err(self.replaced(&format!("its batch of index {index} is not the one that this server has read")))
            }
            _ => Ok(()),
        }
    }

    /// Everything up to this index is durable. A mark that tells of a loss waits for a commit of this server.
    pub(super) fn set_mark(&self, index: u64, own: bool) {
        if let Some((mark, current)) = &mut *lock(&self.mark)
            && (*current || own)
        {
            *current = true;
            let known = Known { generation: self.generation, cluster: self.cluster, revision: self.revision(), index };
            mark.set(&known);
        }
    }

    /// Another leader has ended a recovery: whether it was from what is missing here.
    pub(super) fn see_recovered(&self, value: &[u8]) {
        let now = Recovered::read(value);
        {
            let mut missing = lock(&self.missing);
            let Some(Missing { known, recovered, .. }) = &*missing else { return };
            if !is_recovered(known, &lock(&self.meta), now, Some(*recovered)) {
                return;
            }
            *missing = None;
        }
        tracing::info!(index = now.index, "the servers have recovered from the loss that this one has found");
        // From here on it tells of the next loss.
        self.set_mark(self.published(), true);
    }

    pub(super) fn sync_mark(&self) {
        if let Some((mark, _)) = &*lock(&self.mark) {
            mark.sync();
        }
    }

    pub(super) fn closing(&self) -> bool {
        *self.closing.borrow()
    }

    /// The store's error for an error of the client.
    pub(super) fn failure(&self, attempt: &'static str, error: &Error) -> StoreError {
        failure(&self.path, attempt, error)
    }

    /// What is to be written could not be compressed: there is no memory for it.
    pub(super) fn unpackable(&self, error: &std::io::Error) -> StoreError {
        StoreError::Backend { attempt: "compressing", path: self.path.clone(), reason: error.to_string().into() }
    }

    pub(super) fn damaged(&self, what: impl Into<String>) -> StoreError {
        StoreError::Damaged { path: self.path.clone(), what: what.into().into() }
    }

    /// Calls again while nothing says that etcd refuses, for a bounded time.
    pub(super) async fn patiently<T>(
        &self,
        attempt: &'static str,
        mut call: impl AsyncFnMut() -> Result<T, Error>,
    ) -> Result<T, StoreError> {
        let (begun, mut pause) = (Instant::now(), Pause::default());
        loop {
            match call().await {
                Ok(answer) => return Ok(answer),
                Err(error) if error.refused().is_some() || begun.elapsed() > PATIENCE || self.closing() => {
                    return Err(self.failure(attempt, &error));
                }
                Err(_) => pause.wait().await,
            }
        }
    }
}

/// The store's error for an error of the client.
pub(super) fn failure(path: &std::path::Path, attempt: &'static str, error: &Error) -> StoreError {
    let (path, reason) = (path.to_owned(), Arc::<str>::from(error.to_string()));
    match error.refused() {
        Some(Reason::NoSpace) => StoreError::Full { path, reason },
        Some(Reason::Corrupt) => StoreError::Fatal { path, reason },
        _ => StoreError::Backend { attempt, path, reason },
    }
}

/// Grows from try to try.
pub(super) struct Pause(Duration);

impl Default for Pause {
    fn default() -> Self {
        Self(FIRST_PAUSE)
    }
}

impl Pause {
    pub(super) async fn wait(&mut self) {
        tokio::time::sleep(self.0).await;
        self.0 = (self.0 * 2).min(LONGEST_PAUSE);
    }
}

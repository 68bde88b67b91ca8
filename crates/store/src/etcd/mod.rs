//! The store that several servers share: etcd.
//!
//! One server leads: it holds the fence, a key with a lease, whose create revision is the [`Fence`]. Each commit is one
//! transaction that compares the fence and the tip. The others follow: they see the leader's batches, and may take over
//! when it falls silent. `layout` has the keys, `write` the leader's side, `view` the followers', `read` the loading,
//! `snapshot` the upkeep.
//!
//! The store has a thread with a small runtime of its own. Begin reading at [`EtcdStore`].

mod format;
mod keep;
mod layout;
mod mark;
mod offline;
mod pack;
mod peers;
mod read;
mod shared;
mod snapshot;
mod view;
mod write;

use std::{
    fmt,
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::Ordering,
        mpsc::{SyncSender, sync_channel},
    },
    thread,
    time::Duration,
};

use ::etcd::{Client, Options, ops};
use state::Format;
use tokio::sync::{mpsc, watch};
use uuid::Uuid;

pub use self::{
    layout::Member,
    offline::Offline,
    peers::{Peer, Sign, Standing},
    view::SILENT,
};
use self::{
    layout::{Keys, Meta, Recovered, Tip},
    mark::{Known, Mark, is_recovered, missing},
    read::ranges,
    shared::{Begin, Missing, Pause, Shared, failure, lock},
    write::Writer,
};
use crate::{
    contract::{Batch, Contents, Done, Fence, Lost, Store, StoreError, StoreStats},
    recent::Watch,
};

/// How the shared store is reached, and what the others are told of this server.
#[derive(Clone)]
pub struct EtcdOptions {
    /// etcd's members: `http://HOST:PORT`, `https://HOST:PORT` or `HOST:PORT`.
    pub endpoints: Vec<String>,
    /// All keys begin with it; `drover` if it is empty. Servers with the same one are one cluster.
    pub prefix: String,
    /// For endpoints with `https://`: see [`tls::Dialer::of_service`].
    pub tls: Option<tls::Dialer>,
    /// Name and password of a user of etcd.
    pub user: Option<(String, String)>,
    /// This server, with the formats of the state that it reads.
    pub member: Member,
    /// A file of this server's own, which finds out that etcd has lost what was acknowledged; None: no mark is kept.
    pub mark: Option<PathBuf>,
    /// A leader raises the format in use after all registered servers have read a higher one for so long: one that only
    /// restarts meanwhile is not locked out. 0 = 30 s.
    pub settle: Duration,
    /// After a leader has ended without a word, etcd itself deletes its fence after this time. At least 2 s; 0 = 10 s.
    pub lease: Duration,
}

impl Default for EtcdOptions {
    fn default() -> Self {
        Self {
            endpoints: Vec::new(),
            prefix: String::new(),
            tls: None,
            user: None,
            member: Member::default(),
            mark: None,
            settle: DEFAULT_SETTLE,
            lease: DEFAULT_LEASE,
        }
    }
}

const DEFAULT_SETTLE: Duration = Duration::from_secs(30);
const DEFAULT_LEASE: Duration = Duration::from_secs(10);
/// Of somebody who is no server: what is left of one that was killed is gone soon.
const OFFLINE_LEASE: Duration = Duration::from_secs(4);

impl fmt::Debug for EtcdOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdOptions")
            .field("endpoints", &self.endpoints)
            .field("prefix", &self.prefix)
            .field("user", &self.user.as_ref().map(|(name, _)| name))
            .field("member", &self.member)
            .finish_non_exhaustive()
    }
}

enum Work {
    Commit(Batch, Done),
    Load(SyncSender<Result<Contents, StoreError>>),
    Acquire(SyncSender<Result<Fence, StoreError>>),
    Probe(SyncSender<Result<(), StoreError>>),
    Filled(SyncSender<Result<(), StoreError>>),
    Recovered(u64, SyncSender<Result<(), StoreError>>),
}

/// The shared store.
pub struct EtcdStore {
    shared: Arc<Shared>,
    queue: Mutex<Option<mpsc::UnboundedSender<Work>>>,
    asked: mpsc::UnboundedSender<keep::Asked>,
    thread: Mutex<Option<thread::JoinHandle<()>>>,
}

impl fmt::Debug for EtcdStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdStore").field("path", &self.shared.path).finish_non_exhaustive()
    }
}

/// What an opened store begins with.
type Opened = Result<(Arc<Shared>, Tip), StoreError>;

impl EtcdStore {
    /// Connects, reads where the store stands, and registers this server. Blocks until etcd has answered, 10 s at most.
    /// Makes the store where there is none, unless this server's mark knows of one.
    ///
    /// # Errors
    /// When etcd cannot be reached or refuses, or when another release has written the keys;
    /// [`StoreError::NoCluster`] when there is nothing of what the mark knows.
    pub fn open(options: EtcdOptions) -> Result<Self, StoreError> {
        Self::open_as(options, None, Vacancy::Told)
    }

    /// The same for a server that may begin with nothing: makes a new store also in the place of one that this server
    /// knows of. [`Self::lost`] tells of the loss then.
    ///
    /// # Errors
    /// When etcd cannot be reached or refuses, or when another release has written the keys.
    pub fn open_anew(options: EtcdOptions) -> Result<Self, StoreError> {
        Self::open_as(options, None, Vacancy::Filled)
    }

    /// Opens it for somebody who is no server, while no server uses it: for all of its content at once. This one is
    /// not registered; it keeps servers from leading from its [`Store::acquire`] on. Blocks as [`Self::open`] does.
    ///
    /// # Errors
    /// As [`Self::open`]; [`StoreError::InUse`] when a server is registered or leads.
    pub fn open_offline(options: EtcdOptions, purpose: Offline) -> Result<Self, StoreError> {
        let id = Uuid::new_v4().to_string();
        let name = format!("drover operator (process {})", std::process::id());
        let Member { version, formats, protocols, .. } = options.member.clone();
        let member = Member { id, name, version, formats, protocols, ..Member::default() };
        let vacancy = if purpose == Offline::Fill { Vacancy::Filled } else { Vacancy::Told };
        Self::open_as(EtcdOptions { member, lease: OFFLINE_LEASE, ..options }, Some(purpose), vacancy)
    }

    /// Ends the filling of a store that was opened for it: servers may use it from now on.
    ///
    /// # Errors
    /// When etcd does not answer, or somebody else has taken over.
    pub fn filled(&self) -> Result<(), StoreError> {
        self.ask(Work::Filled)
    }

    fn open_as(options: EtcdOptions, offline: Option<Offline>, vacancy: Vacancy) -> Result<Self, StoreError> {
        let (reply, opened) = sync_channel::<Opened>(1);
        let (queue, mut work) = mpsc::unbounded_channel();
        let (asked, mut asks) = mpsc::unbounded_channel();
        let (probe, mut probes) = mpsc::unbounded_channel();
        let path = PathBuf::from(format!("etcd {} {}", options.endpoints.join(","), options.prefix));
        let run = move || {
            let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime,
                Err(error) => {
                    let (attempt, reason) = ("making a runtime", error.to_string().into());
                    let _ = reply.send(Err(StoreError::Backend { attempt, path: PathBuf::from("etcd"), reason }));
                    return;
                }
            };
            runtime.block_on(async move {
                let (shared, tip) = match open(options, offline, vacancy).await {
                    Ok((shared, tip)) => {
                        let _ = reply.send(Ok((shared.clone(), tip)));
                        (shared, tip)
                    }
                    Err(error) => {
                        let _ = reply.send(Err(error));
                        return;
                    }
                };
                let mut writer = Writer::new(&shared, tip, probe);
                tokio::join!(
                    writer.run(&mut work),
                    keep::beats(&shared),
                    keep::fence_lease(&shared),
                    keep::registration(&shared),
                    keep::upkeep(&shared),
                    format::raise(&shared),
                    keep::answers(&shared, &mut asks),
                    keep::probes(&shared, &mut probes),
                    view::follow(&shared),
                );
            });
        };
        let thread =
            thread::Builder::new().name("store-etcd".to_owned()).spawn(run).map_err(|error| StoreError::Backend {
                attempt: "starting the thread of the store",
                path: path.clone(),
                reason: error.to_string().into(),
            })?;
        let (shared, _) = opened.recv().map_err(|_| StoreError::Closed)??;
        Ok(Self { shared, queue: Mutex::new(Some(queue)), asked, thread: Mutex::new(Some(thread)) })
    }

    /// The acknowledged batches that were missing at the opening: this server's mark is ahead of the store, or etcd's
    /// revision went back. A commit of this server clears it at the next opening, and the end of a recovery under
    /// another leader at once. With equal indexes, only changes that this server never saw can be missing.
    #[must_use]
    pub fn lost(&self) -> Option<Lost> {
        lock(&self.shared.missing).map(|missing| missing.lost)
    }

    /// Names the store in errors.
    #[must_use]
    pub fn path(&self) -> &std::path::Path {
        &self.shared.path
    }

    /// Who leads; None = nobody, as far as is known.
    #[must_use]
    pub fn leader(&self) -> watch::Receiver<Option<Member>> {
        self.shared.leader.subscribe()
    }

    /// Becomes a higher fence, or the revision that its own was found deleted at, once this server has lost the fence
    /// that it held; None before that, and again from the next [`Store::acquire`] on. It is known within a second while
    /// etcd can be reached, also without a commit.
    #[must_use]
    pub fn fenced(&self) -> watch::Receiver<Option<u64>> {
        self.shared.fenced.subscribe()
    }

    /// When the newest check was *sent* that found this server's fence in place, by [`clock::boot_now`]. Each commit is
    /// one, and there is one every half second at least while etcd answers. Until that time nobody else led. None once
    /// the fence is lost or given back: what was true before grants nothing any more.
    #[must_use]
    pub fn checked(&self) -> watch::Receiver<Option<Duration>> {
        self.shared.checked.subscribe()
    }

    /// Until when this server has seen everything that was committed, by [`clock::boot_now`]: the leader's newest sign
    /// of life, once the batches before it were published to watchers; None before the first.
    #[must_use]
    pub fn heard(&self) -> watch::Receiver<Option<Duration>> {
        self.shared.heard.subscribe()
    }

    /// The batches after `index`, for one follower that has everything up to it in memory. As [`Store::watch`], but the
    /// store keeps much more for it.
    ///
    /// # Errors
    /// As [`Store::watch`].
    pub fn follow(&self, index: u64) -> Result<Watch, StoreError> {
        self.shared.recent.follow(index)
    }

    /// Waits until nobody leads, or until nothing was seen of the leader for [`SILENT`] while etcd itself answered.
    /// Cancel safe.
    ///
    /// # Errors
    /// When the store was closed, or can no longer be used.
    pub async fn vacant(&self) -> Result<(), StoreError> {
        let (mut vacant, mut broken) = (self.shared.vacant.subscribe(), self.shared.broken.subscribe());
        let mut closing = self.shared.closing.subscribe();
        tokio::select! {
            biased;
            _ = closing.wait_for(|closing| *closing) => Err(StoreError::Closed),
            broken = broken.wait_for(Option::is_some) => {
                Err(broken.ok().and_then(|broken| broken.clone()).unwrap_or(StoreError::Closed))
            }
            _ = vacant.wait_for(|vacant| *vacant) => Ok(()),
        }
    }

    /// Replaces what the others are told of this server; its id stays. The fence tells it from the next take-over on.
    pub fn set_member(&self, member: Member) {
        {
            let mut now = lock(&self.shared.member);
            let id = now.id.clone();
            *now = Member { id, ..member };
        }
        self.shared.member_changed.send_modify(|changes| *changes += 1);
    }

    /// The servers that are registered now, this one too, by their ids.
    #[must_use]
    pub fn members(&self) -> Vec<Member> {
        lock(&self.shared.members).values().cloned().collect()
    }

    /// etcd's own members and how they are. Blocking: a member that does not answer takes 1.5 s.
    ///
    /// # Errors
    /// When no member answers.
    pub fn peers(&self) -> Result<Vec<Peer>, StoreError> {
        self.standing().map(|standing| standing.peers)
    }

    /// etcd's own members and the servers, and how they are. Blocking: a member that does not answer takes 1.5 s.
    ///
    /// # Errors
    /// When no member answers.
    pub fn standing(&self) -> Result<Standing, StoreError> {
        let (reply, answer) = sync_channel(1);
        self.asked.send(reply).map_err(|_| StoreError::Closed)?;
        answer.recv().map_err(|_| StoreError::Closed)?
    }

    fn send(&self, work: Work) -> Result<(), Work> {
        match &*lock(&self.queue) {
            Some(queue) => queue.send(work).map_err(|error| error.0),
            None => Err(work),
        }
    }

    fn ask<T>(&self, make: impl FnOnce(SyncSender<Result<T, StoreError>>) -> Work) -> Result<T, StoreError> {
        let (reply, answer) = sync_channel(1);
        self.send(make(reply)).map_err(|_| StoreError::Closed)?;
        answer.recv().map_err(|_| StoreError::Closed)?
    }
}

/// What is done where the store is not there that this server's mark knows of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Vacancy {
    /// It is told: whoever makes another one destroys the proof of the loss, and what runs is begun once more.
    Told,
    /// A new one is made.
    Filled,
}

/// Reads where the store stands; makes it where there is none.
async fn open(options: EtcdOptions, offline: Option<Offline>, vacancy: Vacancy) -> Opened {
    let EtcdOptions { endpoints, prefix, tls, user, member, mark, settle, lease } = options;
    let keys = Keys::new(&prefix);
    let path = PathBuf::from(format!("etcd {} {}", endpoints.join(","), keys.name_of_all()));
    let client = Client::new(&Options { endpoints, tls, user }).map_err(|error| failure(&path, "opening", &error))?;
    if let Some(purpose) = offline {
        offline::alone(&client, &keys, &path, purpose).await?;
    }
    let known = mark.as_deref().and_then(Known::read);
    let acknowledged = known.map(|known| known.index).filter(|index| *index > 0 && vacancy == Vacancy::Told);
    let stand = stand(&client, &keys, &path, member.formats.lowest, acknowledged).await?;
    let Stand { meta, tip, recovered, cluster, revision } = stand;
    format::check(&path, &meta, &member)?;
    let (mut lacks, mut marked) = (None, None);
    if let Some(file) = mark {
        let known = known.filter(|known| !is_recovered(known, &meta, recovered, None));
        lacks = known.and_then(|known| {
            let lost = missing(&known, &meta, &tip, cluster, revision)?;
            Some(Missing { known, lost, recovered })
        });
        if let Some(Missing { lost, .. }) = lacks {
            tracing::error!(store = %path.display(), found = lost.found, acknowledged = lost.acknowledged, "{lost}");
        }
        let opened = Mark::open(&file).map_err(|error| StoreError::Backend {
            attempt: "opening the mark of etcd",
            path: file.clone(),
            reason: error.to_string().into(),
        })?;
        marked = Some((opened, lacks.is_none()));
    }
    let lease = if lease.is_zero() { DEFAULT_LEASE } else { lease };
    let settle = if settle.is_zero() { DEFAULT_SETTLE } else { settle };
    let shared = Shared::new(Begin {
        client,
        keys,
        path,
        meta,
        settle,
        cluster,
        lease,
        member,
        mark: marked,
        missing: lacks,
        index: tip.index,
        revision,
        offline,
    });
    shared.refuse_unfinished().await?;
    shared.set_mark(tip.index, false);
    Ok((Arc::new(shared), tip))
}

/// Where the store stands.
struct Stand {
    meta: Meta,
    tip: Tip,
    recovered: Recovered,
    /// etcd's id of its cluster.
    cluster: u64,
    revision: i64,
}

/// Reads it. A new store begins with `format`: others may come that know no higher one. None is made where
/// `acknowledged` says up to which index there was one.
async fn stand(
    client: &Client,
    keys: &Keys,
    path: &std::path::Path,
    format: Format,
    acknowledged: Option<u64>,
) -> Result<Stand, StoreError> {
    let reads: Vec<_> = ["meta", "tip", "loss"].map(|name| ops::get(ops::key(keys.at(name)))).into();
    let read = ops::when(Vec::new(), reads.clone(), Vec::new());
    let (begun, mut pause) = (std::time::Instant::now(), Pause::default());
    let mut made = None;
    loop {
        let answer = client.txn(made.clone().unwrap_or_else(|| read.clone())).await;
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) if error.refused().is_some() || begun.elapsed() > shared::PATIENCE => {
                return Err(failure(path, "opening", &error));
            }
            Err(_) => {
                pause.wait().await;
                continue;
            }
        };
        let header = answer.header.unwrap_or_default();
        if made.is_some() && answer.succeeded {
            made = None;
            continue;
        }
        let [metas, tips, losses] = ranges(answer);
        let damaged = |what: &str| StoreError::Damaged { path: path.to_owned(), what: what.into() };
        match (metas.first(), tips.first()) {
            (Some(meta), Some(tip)) => {
                let meta = serde_json::from_slice(&meta.value).map_err(|_| damaged("its meta record is unreadable"))?;
                let tip = Tip::decode(&tip.value).ok_or_else(|| damaged("its tip is unreadable"))?;
                let recovered = losses.first().map_or_else(Recovered::default, |kv| Recovered::read(&kv.value));
                return Ok(Stand { meta, tip, recovered, cluster: header.cluster_id, revision: header.revision });
            }
            (None, None) => {
                if let Some(acknowledged) = acknowledged {
                    return Err(StoreError::NoCluster { path: path.to_owned(), acknowledged });
                }
                let generation = Uuid::new_v4();
                let cluster = format!("{:x}", header.cluster_id);
                let meta = Meta { format, since: String::new(), generation, cluster };
                let tip = Tip { generation: generation.as_u128(), ..Tip::default() };
                let puts = vec![
                    ops::put(keys.at("meta"), serde_json::to_vec(&meta).unwrap_or_default(), 0),
                    ops::put(keys.at("tip"), tip.encode(), 0),
                ];
                let absent = vec![ops::created_at(keys.at("meta"), 0), ops::created_at(keys.at("tip"), 0)];
                made = Some(ops::when(absent, puts, reads.clone()));
            }
            _ => return Err(damaged("its meta record or its tip is missing")),
        }
    }
}

impl Store for EtcdStore {
    fn load(&self) -> Result<Contents, StoreError> {
        self.ask(Work::Load)
    }

    /// Takes over writing if nobody else leads.
    ///
    /// # Errors
    /// [`StoreError::Held`]: another server leads, or has won.
    fn acquire(&self) -> Result<Fence, StoreError> {
        self.ask(Work::Acquire)
    }

    fn submit(&self, batch: Batch, done: Done) {
        if let Err(Work::Commit(_, done)) = self.send(Work::Commit(batch, done)) {
            done(Err(StoreError::Closed));
        }
    }

    fn watch(&self, index: u64) -> Result<Watch, StoreError> {
        self.shared.recent.watch(index)
    }

    fn followed(&self) -> bool {
        true
    }

    fn confirmed(&self) -> Option<Duration> {
        // Before the first check nobody may be granted anything.
        Some((*self.shared.checked.borrow()).unwrap_or_default())
    }

    fn still_lost(&self, _: Lost) -> bool {
        self.lost().is_some()
    }

    fn note_recovery(&self, index: u64) -> Result<(), StoreError> {
        self.ask(|reply| Work::Recovered(index, reply))
    }

    fn format(&self) -> Format {
        self.shared.format()
    }

    fn probe(&self) -> Result<(), StoreError> {
        self.ask(Work::Probe)
    }

    fn close(&self) {
        // The writer commits what is queued, gives the fence back, and ends the others.
        lock(&self.queue).take();
        self.shared.closing.send_replace(true);
        let thread = lock(&self.thread).take();
        if let Some(thread) = thread
            // A callback on the thread itself may drop the last reference.
            && thread.thread().id() != thread::current().id()
            && thread.join().is_err()
        {
            tracing::error!(path = %self.shared.path.display(), "the store's thread has panicked");
        }
        self.shared.recent.close();
    }

    fn stats(&self) -> StoreStats {
        let counters = &self.shared.counters;
        StoreStats {
            batches: counters.batches.load(Ordering::Relaxed),
            transactions: counters.transactions.load(Ordering::Relaxed),
            bytes: counters.bytes.load(Ordering::Relaxed),
        }
    }
}

impl Drop for EtcdStore {
    fn drop(&mut self) {
        self.close();
    }
}

//! The processes of two servers that share a store: each leads, or follows and waits for its turn, as the agent has
//! it. What decides, follows and begins with the followed state is the real code; the loop around it is this one.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use server::{
    AllServers, FollowError, Follower, Server, ServerConfig, ServerHandle, StartError, Surroundings, Threads, shared,
};
use state::State;
use store::StoreError;
use tokio::{
    sync::{Notify, mpsc, watch},
    task::JoinHandle,
};

use crate::{history::History, net, shared::SharedStore, truth::Truth};

/// Between two attempts that fail.
const PAUSE: Duration = Duration::from_secs(1);
/// A leader that the store has not confirmed for so long waits for its turn again.
const UNCONFIRMED: Duration = Duration::from_secs(15);
/// Encrypts the signing keys in the store.
const KEY: &str = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";

/// Who answers people: the server, or those of the two that lead or believe that they do.
#[derive(Clone, Default)]
pub(crate) struct Doors {
    open: Arc<Mutex<BTreeMap<usize, Door>>>,
    /// The newest index that people have read.
    read: Arc<AtomicU64>,
}

#[derive(Clone)]
struct Door {
    handle: ServerHandle,
    /// None = nobody else can lead.
    store: Option<Arc<SharedStore>>,
}

impl Doors {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<usize, Door>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn open(&self, server: usize, handle: ServerHandle, store: Option<Arc<SharedStore>>) {
        self.lock().insert(server, Door { handle, store });
    }

    pub(crate) fn shut(&self, server: usize) {
        // Dropped outside of the lock.
        let door = self.lock().remove(&server);
        drop(door);
    }

    /// Those that answer now: a leader does while nobody else can have taken over.
    pub(crate) fn answering(&self) -> Vec<(usize, ServerHandle)> {
        let answers = |door: &Door| door.store.as_ref().is_none_or(|store| store.surely_leads());
        self.lock().iter().filter(|(_, door)| answers(door)).map(|(n, door)| (*n, door.handle.clone())).collect()
    }

    /// The one that answers now.
    pub(crate) fn now(&self) -> Option<ServerHandle> {
        self.answering().pop().map(|(_, handle)| handle)
    }

    /// The one that answers now, if what it shows is not lost.
    pub(crate) fn present(&self) -> Option<ServerHandle> {
        let (number, handle) = self.answering().pop()?;
        self.shows_the_present(number).then_some(handle)
    }

    /// Whether what a server shows is not lost.
    pub(crate) fn shows_the_present(&self, number: usize) -> bool {
        let store = self.lock().get(&number).and_then(|door| door.store.clone());
        store.is_none_or(|store| store.shows_the_present())
    }

    /// What people have read is lost.
    pub(crate) fn lost(&self) {
        self.read.store(0, Ordering::Relaxed);
    }

    /// Somebody reads the newest index from a server. The answer is what was read before, if that is newer: an index
    /// that goes back.
    pub(crate) fn read(&self, number: usize, from: &ServerHandle) -> Option<(u64, u64)> {
        if !self.shows_the_present(number) {
            return None;
        }
        let index = from.snapshot().latest_index();
        let before = self.read.fetch_max(index, Ordering::Relaxed);
        (index < before).then_some((before, index))
    }

    /// The one that leads or believes so, the surest first.
    pub(crate) fn leader(&self) -> Option<usize> {
        self.answering().first().map(|(n, _)| *n).or_else(|| self.lock().keys().next().copied())
    }
}

/// What a server has around it, whichever of its processes runs.
#[derive(Clone)]
pub(crate) struct Place {
    pub(crate) number: usize,
    pub(crate) truth: Arc<Truth>,
    pub(crate) doors: Doors,
    pub(crate) net: net::Server,
    pub(crate) history: Arc<History>,
}

/// A process of a server.
pub(crate) struct Process {
    place: Place,
    task: JoinHandle<()>,
    store: Arc<Mutex<Option<Arc<SharedStore>>>>,
    make_room: Arc<Notify>,
}

impl Process {
    pub(crate) fn start(place: Place) -> Self {
        let (store, make_room) = (Arc::default(), Arc::new(Notify::new()));
        let turns = Turns { place: place.clone(), store: Arc::clone(&store), make_room: make_room.clone() };
        Self { place, task: tokio::spawn(turns.run()), store, make_room }
    }

    /// Somebody asks it to make room for another leader.
    pub(crate) fn make_room(&self) {
        self.make_room.notify_one();
    }

    /// Kills it. What it has sent to the store may still arrive.
    pub(crate) fn kill(self) {
        self.place.net.listens(None);
        self.place.net.break_all();
        self.place.doors.shut(self.place.number);
        let store = self.store.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(store) = store {
            store.crash();
        }
        self.task.abort();
    }
}

/// The addresses of both.
pub(crate) fn addresses() -> Vec<String> {
    (0..crate::truth::SERVERS).map(|n| format!("server{n}:4647")).collect()
}

fn config() -> ServerConfig {
    let shared = shared::SharedKey::read(KEY).ok();
    ServerConfig { workers: 2, shared, ..ServerConfig::default() }
}

/// That of a leader which counts what another one has granted as over at once.
fn impatient() -> ServerConfig {
    let grace = Duration::ZERO;
    ServerConfig { startup_grace: grace, ..config().with_lease(Duration::from_secs(1)) }
}

struct Turns {
    place: Place,
    store: Arc<Mutex<Option<Arc<SharedStore>>>>,
    make_room: Arc<Notify>,
}

impl Turns {
    fn note(&self, what: impl AsRef<str>) {
        self.place.history.note(format!("server {}: {}", self.place.number, what.as_ref()));
    }

    async fn run(self) {
        loop {
            let store = loop {
                match SharedStore::open(&self.place.truth, self.place.number).await {
                    Ok(store) => break store,
                    Err(_) => tokio::time::sleep(PAUSE).await,
                }
            };
            *self.store.lock().unwrap_or_else(PoisonError::into_inner) = Some(store.clone());
            let why = self.turns(&store).await;
            self.note(format!("it waits for its turn again: {why}"));
            store.end().await;
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Waits for its turn and leads, until something ends that; why.
    async fn turns(&self, store: &Arc<SharedStore>) -> String {
        let mut follower = None;
        loop {
            tokio::select! {
                biased;
                vacant = store.vacant() => if let Err(error) = vacant {
                    return error.to_string();
                },
                () = follow(store, &mut follower, self) => {}
            }
            match store.take_over().await {
                Ok(()) => {}
                Err(StoreError::Held { .. }) => {
                    tokio::time::sleep(PAUSE / 10).await;
                    continue;
                }
                Err(error) => return error.to_string(),
            }
            let (connections, nodes) = mpsc::unbounded_channel();
            let known = follower.as_ref().map(Follower::known);
            let from = known.as_ref().map_or(0, server::Known::index);
            let around = Surroundings {
                store: Some(store.clone()),
                lost: store.lost().filter(|_| !self.place.truth.unrecovering()),
                servers: AllServers::told_by(addresses),
                known,
                nodes: Some(nodes),
                threads: Threads::Runtime,
                ..Surroundings::default()
            };
            let recovers = self.place.truth.loss().is_known_to(self.place.number) && store.shows_the_present();
            let config = match from {
                1.. if self.place.truth.impatient() => impatient(),
                _ => config(),
            };
            match Server::start_in(config, around).await {
                Err(StartError::Store(StoreError::Held { .. })) => {}
                Err(error) => return error.to_string(),
                Ok(server) => {
                    let state = server.handle().snapshot();
                    let index = state.latest_index();
                    judge_state(&self.place, &state);
                    if recovers && store.shows_the_present() && state.cluster().recovery.is_none() {
                        let why = "a server leads that has seen what the store has lost, and does not recover";
                        self.place.history.violated(format!("{why}: {}", self.place.number));
                    }
                    self.note(format!("it leads, from index {index} on; it knew those up to {from}"));
                    return self.lead(server, store, connections).await;
                }
            }
        }
    }

    async fn lead(
        &self,
        server: Server,
        store: &Arc<SharedStore>,
        connections: mpsc::UnboundedSender<tokio::io::DuplexStream>,
    ) -> String {
        let Place { number, doors, net, .. } = &self.place;
        net.listens(Some(connections));
        doors.open(*number, server.handle().clone(), Some(store.clone()));
        let mut fenced = store.fenced();
        let why = tokio::select! {
            biased;
            _ = fenced.wait_for(Option::is_some) => "another server leads now".to_owned(),
            () = unconfirmed(store.checked()) => "the store has not confirmed for long that it leads".to_owned(),
            () = self.make_room.notified() => "somebody has asked it to make room".to_owned(),
            why = server.failed() => why,
        };
        // A server that stands still does not get to this before it goes on.
        self.place.truth.thawed(*number).await;
        doors.shut(*number);
        net.listens(None);
        server.shutdown().await;
        why
    }
}

/// Judges that a server has what the store has, where both are at one index.
fn judge_state(place: &Place, state: &State) {
    let there = place.truth.contents();
    let index = there.index;
    if index != state.latest_index() {
        return;
    }
    let there = match State::load(there.rows) {
        Ok(there) => there,
        Err(error) => return place.history.violated(format!("the store has no state at index {index}: {error}")),
    };
    let by_key = |state: &State| {
        let mut rows = state.all_rows();
        rows.sort_by(|a, b| (a.table, &a.key).cmp(&(b.table, &b.key)));
        rows
    };
    let (own, there) = (by_key(state), by_key(&there));
    if own != there {
        let differs =
            own.iter().filter(|row| !there.contains(row)).chain(there.iter().filter(|row| !own.contains(row)));
        let differs: Vec<String> = differs.map(|row| format!("{:?} {}", row.table, row.key.escape_ascii())).collect();
        let number = place.number;
        place.history.violated(format!("server {number} differs from the store at index {index}: {differs:?}"));
    }
}

/// Has the state of the store and follows it. Cancel safe: it goes on where it was.
async fn follow(store: &Arc<SharedStore>, follower: &mut Option<Follower>, of: &Turns) {
    // Where nobody leads, this server is about to.
    let _ = store.leader().wait_for(Option::is_some).await;
    loop {
        of.place.truth.thawed(of.place.number).await;
        let following = match follower.as_ref() {
            Some(following) => following,
            None => match Follower::load(config(), &**store) {
                Ok(Some(loaded)) => &*follower.insert(loaded),
                Ok(None) => {
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
                Err(FollowError::Store(_)) => {
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
                Err(error) => {
                    of.place.history.violated(format!("a server cannot follow: {error}"));
                    return std::future::pending().await;
                }
            },
        };
        let Ok(mut batches) = store::Store::watch(&**store, following.index()) else {
            *follower = None;
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        loop {
            match batches.next().await {
                Ok(batch) => {
                    if let Err(error) = following.follow(&batch) {
                        of.place.history.violated(format!("a server cannot follow index {}: {error}", batch.index));
                        return std::future::pending().await;
                    }
                }
                Err(StoreError::Compacted { .. }) => break,
                Err(_) => return std::future::pending().await,
            }
        }
        *follower = None;
        tokio::time::sleep(PAUSE).await;
    }
}

/// Resolves when the store has not confirmed for [`UNCONFIRMED`] that this server leads. Cancel safe.
async fn unconfirmed(mut checked: watch::Receiver<Option<Duration>>) {
    loop {
        let age = checked.borrow_and_update().map(|at| clock::boot_now().saturating_sub(at)).unwrap_or_default();
        let left = UNCONFIRMED.saturating_sub(age);
        if left.is_zero() {
            return;
        }
        // Either way it is looked at again.
        drop(tokio::time::timeout(left, checked.changed()).await);
    }
}

//! A server that does not lead has the state as well: it follows the leader's batches in the shared store, and answers
//! reads whose clients say `stale`.
//!
//! It keeps what it has while etcd does not answer, and when it led until then. Who reads from it never sees an index
//! go back: a state that was loaded anew replaces an older one only.

use std::{
    sync::{
        Arc,
        atomic::{
            AtomicU64,
            Ordering::{AcqRel, Acquire},
        },
    },
    time::Duration,
};

use arc_swap::ArcSwapOption;
use axum::{Router, extract::Request};
use http::HeaderMap;
use server::{FollowError, Follower, Known, ServerConfig, ServerHandle, keyring::KeyringError};
use server_http::{Contact, Contacts, HttpOptions, may_be_stale};
use store::{Committed, EtcdStore, Member, SILENT, StoreError};
use tokio::sync::watch;

/// Between two attempts to load the state, which grows from one to the next.
const PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// What answers stale reads now. Cheap to clone; all clones answer alike.
#[derive(Clone, Default)]
pub(crate) struct Stale(Arc<Shown>);

#[derive(Default)]
struct Shown {
    here: ArcSwapOption<Here>,
    /// The newest index of a stale read that another server has answered.
    passed_on: AtomicU64,
}

struct Here {
    router: Router,
    follower: Arc<Follower>,
}

/// Who answers a read.
pub(crate) enum Answers {
    /// This server, from what it knows.
    Here(Router),
    /// Another one; what it says of a stale read is noted.
    Elsewhere(Option<Stale>),
}

impl Stale {
    /// Who answers this request. A server that has passed stale reads on, before it had the state, goes on with that
    /// until it knows as much as these answers told.
    pub(crate) fn answers(&self, request: &Request) -> Answers {
        if !may_be_stale(request.method(), request.uri()) {
            return Answers::Elsewhere(None);
        }
        let knows = |here: &Arc<Here>| here.follower.handle().known().index() >= self.0.passed_on.load(Acquire);
        let here = self.0.here.load_full().filter(knows);
        here.map_or_else(|| Answers::Elsewhere(Some(self.clone())), |here| Answers::Here(here.router.clone()))
    }

    /// Notes the index of another server's answer to a stale read.
    pub(crate) fn note(&self, headers: &HeaderMap) {
        let index = headers.get("x-nomad-index").and_then(|index| index.to_str().ok()?.parse().ok());
        self.0.passed_on.fetch_max(index.unwrap_or(0), AcqRel);
    }
}

/// When the leader was last heard of, by [`clock::boot_now`], and how long ago that is.
pub(crate) fn age(at: Option<Duration>) -> Duration {
    at.map_or(Duration::MAX, |at| clock::boot_now().saturating_sub(at))
}

/// What a server that follows says of the leader.
pub(crate) fn contacts(leader: watch::Receiver<Option<Member>>, heard: watch::Receiver<Option<Duration>>) -> Contacts {
    Arc::new(move || {
        let last = age(*heard.borrow());
        Contact { known_leader: last < SILENT && leader.borrow().is_some(), last }
    })
}

/// What the leader says of itself: nothing is missing while etcd confirms that it leads.
pub(crate) fn contacts_of_leader(checked: watch::Receiver<Option<Duration>>) -> Contacts {
    Arc::new(move || {
        let last = age(*checked.borrow());
        let known_leader = last < SILENT;
        Contact { known_leader, last: if known_leader { Duration::ZERO } else { last } }
    })
}

/// The state of a server that does not lead.
pub(crate) struct Following {
    config: ServerConfig,
    http: HttpOptions,
    stale: Stale,
    heard: watch::Sender<Option<Duration>>,
    follower: Option<Arc<Follower>>,
    /// It has all batches of the open store up to its index.
    current: bool,
    /// No older state is shown.
    least: u64,
    /// Until the next attempt, should this one come to nothing.
    pause: Duration,
}

impl Following {
    /// `http`: with what is said of the leader. `heard`: until when everything is known that was committed.
    pub(crate) fn new(
        config: ServerConfig,
        http: HttpOptions,
        stale: Stale,
        heard: watch::Sender<Option<Duration>>,
    ) -> Self {
        Self { config, http, stale, heard, follower: None, current: false, least: 0, pause: PAUSE }
    }

    /// Has the state of this store and follows it. Resolves when its signing keys do not open with this server's key,
    /// which no other try mends: such a server could never lead. Cancel safe: it goes on where it was.
    pub(crate) async fn follow(&mut self, store: &Arc<EtcdStore>) -> KeyringError {
        loop {
            // Where nobody leads, this server is about to.
            if store.leader().wait_for(Option::is_some).await.is_err() {
                return std::future::pending().await;
            }
            match self.turn(store).await {
                Ok(()) => {}
                Err(FollowError::Store(StoreError::Closed)) => return std::future::pending().await,
                Err(FollowError::Keyring(error)) => return error,
                Err(error) => {
                    self.current = false;
                    tracing::warn!(error = %error, retry_in = ?self.pause, "this server cannot follow the state; the \
                        leader answers all reads");
                    self.wait().await;
                }
            }
        }
    }

    /// Loads the state if it has none of this store, and follows until it has to load again.
    async fn turn(&mut self, store: &Arc<EtcdStore>) -> Result<(), FollowError> {
        let follower = match self.follower.clone().filter(|_| self.current) {
            Some(follower) => follower,
            None => match self.load(store).await? {
                Some(follower) => follower,
                None => {
                    self.wait().await;
                    return Ok(());
                }
            },
        };
        let mut batches = match store.follow(follower.index()) {
            Ok(batches) => batches,
            Err(error) => return self.again(error),
        };
        let mut heard = store.heard();
        loop {
            // First the time: what is ready after that is all of it.
            let until = *heard.borrow_and_update();
            match batches.ready() {
                Ok(ready) => take_in(&follower, ready).await?,
                Err(error) => return self.again(error),
            }
            if let Some(until) = until {
                self.hear(until);
            }
            tokio::select! {
                batch = batches.next() => match batch {
                    Ok(batch) => take_in(&follower, vec![batch]).await?,
                    Err(error) => return self.again(error),
                },
                changed = heard.changed() => if changed.is_err() {
                    return self.again(StoreError::Closed);
                },
            }
        }
    }

    /// The state that is shown has all that was committed until then.
    fn hear(&self, at: Duration) {
        self.heard.send_if_modified(|heard| {
            let newer = heard.is_none_or(|heard| heard < at);
            if newer {
                *heard = Some(at);
            }
            newer
        });
    }

    async fn wait(&mut self) {
        tokio::time::sleep(self.pause).await;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
    }

    /// What was missed is loaded with everything.
    fn again(&mut self, error: StoreError) -> Result<(), FollowError> {
        match error {
            StoreError::Compacted { .. } => {
                self.current = false;
                Ok(())
            }
            error => Err(error.into()),
        }
    }

    /// Loads everything; None = there is nothing yet, or only what is older than what was shown.
    async fn load(&mut self, store: &Arc<EtcdStore>) -> Result<Option<Arc<Follower>>, FollowError> {
        let (config, from, begun) = (self.config.clone(), store.clone(), clock::boot_now());
        let loaded = joined(tokio::task::spawn_blocking(move || Follower::load(config, &*from)).await)?;
        let Some(loaded) = loaded else {
            // Somebody is about to lead for the first time.
            self.pause = PAUSE;
            return Ok(None);
        };
        self.least = self.least.max(self.follower.as_ref().map_or(0, |follower| follower.index()));
        if loaded.index() < self.least {
            tracing::warn!(
                found = loaded.index(),
                shown = self.least,
                "the shared state is older than what this \
                server has answered stale reads from; the leader answers all reads until it is not"
            );
            self.none();
            return Ok(None);
        }
        self.hear(begun);
        tracing::debug!(index = loaded.index(), "this server follows the state");
        (self.current, self.pause) = (true, PAUSE);
        Ok(Some(self.answer_from(loaded)))
    }

    fn answer_from(&mut self, follower: Follower) -> Arc<Follower> {
        let (follower, http) = (Arc::new(follower), self.http.clone());
        let router = server_http::router(follower.handle().clone(), http);
        self.stale.0.here.store(Some(Arc::new(Here { router, follower: follower.clone() })));
        self.follower = Some(follower.clone());
        follower
    }

    /// The state, if it is that of the open store.
    pub(crate) fn known(&self) -> Option<Known> {
        self.follower.as_ref().filter(|_| self.current).map(|follower| follower.known())
    }

    /// Answers from what this server knows that has led until now.
    pub(crate) fn keep(&mut self, led: &ServerHandle) {
        match Follower::new(self.config.clone(), led.known()) {
            Ok(follower) => drop(self.answer_from(follower)),
            Err(error) => tracing::warn!(error = %error, "the state of the time as a leader is not kept"),
        }
        self.current = false;
    }

    /// The store was opened anew: what has happened meanwhile is loaded, and until then the state stays.
    pub(crate) fn reopened(&mut self) {
        self.current = false;
    }

    /// Forgets the state: this server leads and has its own, or shows none.
    pub(crate) fn none(&mut self) {
        self.stale.0.here.store(None);
        self.least = self.least.max(self.follower.take().map_or(0, |follower| follower.index()));
        self.current = false;
    }
}

/// Applies batches one after the other; they take the time of a thread.
async fn take_in(follower: &Arc<Follower>, batches: Vec<Arc<Committed>>) -> Result<(), FollowError> {
    if batches.is_empty() {
        return Ok(());
    }
    let own = follower.clone();
    joined(tokio::task::spawn_blocking(move || batches.iter().try_for_each(|batch| own.follow(batch))).await)
}

/// What a task that nobody cancels has come to.
fn joined<T>(ended: Result<T, tokio::task::JoinError>) -> T {
    ended.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use server::{Server, Surroundings};
    use server_http::HttpOptions;
    use store::MemoryStore;

    use super::*;

    fn told(index: u64) -> HeaderMap {
        HeaderMap::from_iter([(http::HeaderName::from_static("x-nomad-index"), index.into())])
    }

    #[tokio::test]
    async fn a_server_answers_stale_reads_once_it_knows_what_others_have_answered_them_with() {
        let config = ServerConfig { rpc_bind: ([127, 0, 0, 1], 0).into(), ..ServerConfig::default() };
        let around = Surroundings { store: Some(Arc::new(MemoryStore::default())), ..Surroundings::default() };
        let server = Server::start_in(config.clone(), around).await.expect("a server");
        let follower = Arc::new(Follower::new(config, server.handle().known()).expect("a follower"));
        let (index, stale) = (follower.handle().known().index(), Stale::default());
        let ask = |uri: &str| stale.answers(&Request::get(uri).body(Body::empty()).expect("a request"));
        assert!(matches!(ask("/v1/jobs?stale"), Answers::Elsewhere(Some(_))), "it knows nothing");
        stale.note(&told(index));
        let router = server_http::router(follower.handle().clone(), HttpOptions::default());
        stale.0.here.store(Some(Arc::new(Here { router, follower })));
        assert!(matches!(ask("/v1/jobs?stale"), Answers::Here(_)), "as much as was told");
        assert!(matches!(ask("/v1/jobs"), Answers::Elsewhere(None)), "the leader's");
        stale.note(&told(index + 1));
        stale.note(&HeaderMap::new());
        assert!(matches!(ask("/v1/jobs?stale"), Answers::Elsewhere(Some(_))), "another server has told of a newer one");
        server.shutdown().await;
    }
}

//! A running server: what starts and stops it.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::Duration,
};

use control::continuity::Doubt;
use model::{ClusterId, signing::SigningKey};
use node_gateway::{
    AllServers, Connections, Sessions,
    join::{Join, JoinSecret},
};
use state::{Batch, Change, ClusterMeta, State};
use store::{Lost, MemoryStore, SqliteOptions, SqliteStore, Store};
use tokio::net::TcpListener;

use crate::{
    clock::{go_on_from, new_id, now_ns, ns},
    commands::keyring::RootKeys,
    commit::{self, CommitQueue, CommitThread, Decided},
    config::ServerConfig,
    disk,
    error::ServerError,
    gateway,
    handle::{Given, Inner, ServerHandle},
    haste::Haste,
    keyring::{self, Keyring, KeyringError, Wrapping},
    known::Known,
    loops,
    observer::Followers,
    parts::Parts,
    published::Published,
    reconciler::Reconciler,
    root_keys,
    run_mark::{self, Keeper},
    runner::Runner,
    sessions::NodeSessions,
    shared::SharedKey,
    sweep::FIRST_SWEEP,
    threads::Threads,
    trends, watchdog,
    worker::Worker,
};

/// What does not end by itself within this time at a shutdown is left behind, or made to end.
const SHUTDOWN_PATIENCE: Duration = Duration::from_secs(5);

/// Why a server could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The store could not be opened or read.
    #[error("opening the server's state failed: {0}")]
    Store(#[from] store::StoreError),
    /// The signing keys could not be read or made.
    #[error("opening the server's keyring failed: {0}")]
    Keyring(#[from] KeyringError),
    /// The join secret could not be read or made.
    #[error("reading or making the join secret in {dir} failed: {source}")]
    Join {
        /// Of the server's data.
        dir: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The stored rows are not a state.
    #[error("reading the server's state failed: {0}")]
    Load(#[from] state::LoadError),
    /// The state is of another cluster than the configuration names.
    #[error(
        "the data directory has the state of cluster {found}, the configuration names cluster {configured} \
            (server.cluster_id): mount the right \
         directory, or take the setting out"
    )]
    OtherCluster {
        /// Of the state.
        found: ClusterId,
        /// Of the configuration.
        configured: ClusterId,
    },
    /// The address of the node RPC is not to be had.
    #[error(
        "listening for nodes on {address} failed: {source}; another agent may use the port, or the address is not \
            this machine's"
    )]
    Listen {
        /// The address.
        address: std::net::SocketAddr,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The system gave no thread.
    #[error("starting a thread of the server failed: {0}")]
    Thread(
        /// Why.
        #[source]
        std::io::Error,
    ),
    /// The first commit failed.
    #[error("writing the server's first state failed: {0}")]
    Write(#[from] ServerError),
}

/// What a server has around it: by default this machine, with a disk, a network and threads.
#[derive(Debug, Default)]
pub struct Surroundings {
    /// Where the state is kept; None = as the configuration says.
    pub store: Option<Arc<dyn Store>>,
    /// Acknowledged changes that this store has lost: the server recovers.
    pub lost: Option<Lost>,
    /// The servers that share the store, for nodes.
    pub servers: AllServers,
    /// What is known of this store already, of a [`Follower`](crate::Follower): only the rest is read.
    pub known: Option<Known>,
    /// Nodes connect here; None = at the configured address.
    pub nodes: Option<Connections>,
    /// A listener at the configured address, non-blocking; None = the server binds it.
    pub listener: Option<std::net::TcpListener>,
    /// Where deciding and scheduling run.
    pub threads: Threads,
}

/// A running server. Dropping it stops it at once; [`Server::shutdown`] takes leave of the nodes first.
#[derive(Debug)]
pub struct Server {
    handle: ServerHandle,
    workers: Vec<thread::JoinHandle<()>>,
    /// Ends the pipeline when it is dropped.
    commits: Option<CommitThread>,
    watchdog: Option<thread::JoinHandle<()>>,
}

impl Server {
    /// Starts a server: opens and reads the state, listens for nodes, starts the loops. Must be called inside a
    /// multi-threaded tokio runtime.
    ///
    /// # Errors
    /// See [`StartError`]; nothing is left running then.
    pub async fn start(config: ServerConfig) -> Result<Self, StartError> {
        Self::start_in(config, Surroundings::default()).await
    }

    /// As [`Server::start`], with other surroundings. A server with [`Threads::Runtime`] has no watchdog: it tells how
    /// long threads stand still, and there are none.
    ///
    /// # Errors
    /// As [`Server::start`].
    pub async fn start_in(config: ServerConfig, around: Surroundings) -> Result<Self, StartError> {
        let threads = around.threads;
        let (given, servers) = (around.store.is_some(), around.servers);
        let (store, lost): (Arc<dyn Store>, _) = match (around.store, &config.data_dir) {
            (Some(store), _) => (store, around.lost),
            (None, Some(dir)) => {
                let dir = dir.clone();
                let options = SqliteOptions { max_bytes: config.max_stored_bytes, ..SqliteOptions::default() };
                let store = blocking(move || SqliteStore::open(&dir, &options)).await?;
                let lost = store.lost();
                if let Some(lost) = lost.filter(|lost| lost.found == 0 && config.cluster_id.is_none()) {
                    // Not even the cluster is known: whatever this server would begin, the nodes would refuse it.
                    return Err(store::StoreError::Emptied {
                        path: store.path().to_owned(),
                        acknowledged: lost.acknowledged,
                    }
                    .into());
                }
                (Arc::new(store), lost)
            }
            (None, None) => (Arc::new(MemoryStore::default()), None),
        };
        let takes_over = around.known.is_some();
        let (opened, known) = (store.clone(), around.known);
        let (fence, Known { state, index: tip }) = blocking(move || {
            let fence = opened.acquire()?;
            let known = known.and_then(|known| known.caught_up(&*opened));
            Ok::<_, StartError>((fence, known.map_or_else(|| Ok(Known::read(opened.load()?)?), Ok::<_, StartError>)?))
        })
        .await?;
        // Another server may have led in the meantime, and have recovered from it.
        let lost = lost.filter(|lost| store.still_lost(*lost));
        if let Some(Lost { acknowledged, .. }) = lost
            && state.cluster().cluster_id.is_nil()
            && config.cluster_id.is_none()
        {
            // What another server has just made in the place of what is lost: to found a cluster in it would hide that.
            return Err(store::StoreError::NoCluster { path: "the servers' store".into(), acknowledged }.into());
        }
        go_on_from(&state);
        // After the store, whose lock guards the directory of the keys too.
        let encrypts = store.format() >= state::VARIABLES;
        let (keys, shared, of) = (config.data_dir.clone(), config.shared.clone(), state.clone());
        let wrapping = config.wrapping.clone();
        let (keyring, first_keys) = blocking(move || keyring_of(encrypts, keys, shared, wrapping, &of)).await?;
        let (kind, shared, dir) = (config.join.clone(), config.shared.clone(), config.data_dir.clone());
        let join = blocking(move || join_secret(kind, shared.as_ref(), dir)).await?;
        let listen = |source| StartError::Listen { address: config.rpc_bind, source };
        let (nodes, bound) = match around.nodes {
            Some(nodes) => (Ok(nodes), config.rpc_bind),
            None => {
                let (address, given) = (config.rpc_bind, around.listener);
                let listening = async move {
                    match given {
                        Some(bound) => TcpListener::from_std(bound),
                        None => TcpListener::bind(address).await,
                    }
                };
                // Connections are driven by the runtime of their listener.
                let listening = match &config.runtime {
                    Some(runtime) => joined(runtime.spawn(listening).await),
                    None => listening.await,
                };
                let listener = listening.map_err(listen)?;
                let bound = listener.local_addr().map_err(listen)?;
                (Err(listener), bound)
            }
        };
        let rpc_addr = config.rpc_advertise.unwrap_or(bound);
        let known = state.cluster().cluster_id;
        let cluster_id = match config.cluster_id {
            Some(configured) if !known.is_nil() && configured != known => {
                return Err(StartError::OtherCluster { found: known, configured });
            }
            Some(configured) => configured,
            None if known.is_nil() => new_id(),
            None => known,
        };
        // Under an identity that it was given it may have a history elsewhere.
        let new_cluster = known.is_nil() && config.cluster_id.is_none();
        let published = Published::new(state.clone());
        let (queue, queued) = CommitQueue::new(state.clone());
        let runner = Arc::new(Runner::new(config.end_process_when_broken, config.runtime.clone()));
        let open = Arc::new(Sessions::default());
        let sessions: Arc<dyn NodeSessions> = open.clone();
        // A store of its own says nothing of a directory.
        let places = config.run_dir.clone().zip(config.data_dir.clone()).filter(|_| !given);
        let run_mark = match places {
            Some((dir, data_dir)) => {
                let state = state.clone();
                blocking(move || run_mark_in(&dir, &data_dir, cluster_id, &state, tip, new_cluster)).await
            }
            None => Arc::default(),
        };
        let parts = Parts::new(&config, &queue, &published, &runner, new_cluster, &run_mark);
        let started_at = now_ns();
        let keyring = Arc::new(keyring);
        let given = Given {
            cluster_id,
            rpc_addr,
            started_at,
            join,
            store: store.clone(),
            keyring: keyring.clone(),
            queue: queue.clone(),
            published: published.clone(),
            sessions: sessions.clone(),
            parts: parts.clone(),
            runner: runner.clone(),
        };
        let inner = Arc::new(Inner::new(config, given));
        let observer = Arc::new(Followers {
            parts,
            events: inner.events.clone(),
            schemas: inner.schemas.clone(),
            keyring,
            sessions,
            published: published.clone(),
            watches: inner.watches.clone(),
            disk: inner.disk.clone(),
            haste: Haste::new(inner.config.lease, inner.samples.clone()),
            run_mark: run_mark.clone(),
            runner: runner.clone(),
        });
        let turns = commit::turns(runner.progress());
        let versions = inner.config.job_tracked_versions;
        let commits = commit::start(commit::Start {
            queue,
            queued,
            store,
            fence,
            tip,
            published,
            observer,
            turns,
            threads,
            versions,
        });
        let commits = commits.map_err(StartError::Thread)?;
        let mut server = Self {
            handle: ServerHandle { inner: inner.clone() },
            workers: Vec::new(),
            commits: Some(commits),
            watchdog: None,
        };
        // Before a node hears anything: what is committed from now on is told from what another server may have made
        // of the same state.
        let begun = move |state: &Arc<State>, stamp: commit::Stamp| {
            let mut meta = ClusterMeta::clone(state.cluster());
            if known.is_nil() {
                (meta.cluster_id, meta.create_time, meta.began_empty) = (cluster_id, started_at, !new_cluster);
            }
            // Up to the newest commit of the store, also one that no row is left of.
            meta.begin_generation(new_id(), stamp.index - 1);
            if let Some(lost) = lost {
                // With the first commit, so that the loss is not forgotten before it is known what to do about it.
                meta.enter_recovery(new_id(), &lost.to_string(), lost.acknowledged, stamp.now);
            }
            let keys = first_keys.into_iter().map(|key| Change::PutSigningKey(Box::new(key)));
            let changes = std::iter::once(Change::SetClusterMeta(Box::new(meta))).chain(keys);
            Ok(Decided { batch: Batch::new(changes.collect()), answer: () })
        };
        inner.queue.commit(begun).await?;
        if let Some(recovery) = inner.recovering.now() {
            inner.recovering.begun(&recovery.cause);
        }
        server.start_loops(&state, takes_over, threads)?;
        runner.spawn_loop(&loops::RUN_MARK, run_mark.run(runner.clone()));
        let gateway = gateway::compose(&inner, open, servers);
        match nodes {
            Ok(nodes) => runner.spawn_loop(&loops::SESSIONS, node_gateway::serve_connections(gateway, nodes)),
            Err(listener) => runner.spawn_loop(&loops::SESSIONS, node_gateway::serve(gateway, listener)),
        }
        if threads == Threads::Own {
            let trends = trends::trends_loop(inner.trends.clone(), inner.published.clone(), runner.clone());
            runner.spawn_loop(&loops::TRENDS, trends);
            server.watchdog = Some(watchdog::watch(&runner, inner.config.stuck_after).map_err(StartError::Thread)?);
        }
        tracing::info!(cluster = %cluster_id, rpc = %rpc_addr, index = state.latest_index(), "server started");
        Ok(server)
    }

    /// What the loops remember for speed is filled from this snapshot; what is applied from now on they follow.
    fn start_loops(&mut self, state: &State, takes_over: bool, threads: Threads) -> Result<(), StartError> {
        let inner = &self.handle.inner;
        let runner = &inner.runner;
        let reconciler = Reconciler::new(runner.clone(), inner.queue.clone(), inner.published.clone());
        inner.parts.start(state, inner.config.grace(takes_over), &reconciler);
        let keys = &inner.config.root_keys;
        let config = root_keys::KeyConfig {
            times: control::root_keys::Times {
                rotation: ns(keys.rotation_threshold),
                gc: ns(keys.gc_threshold),
                node_identity: ns(inner.config.introduction.identity_ttl),
            },
            gc_interval: keys.gc_interval,
        };
        let root_keys = root_keys::root_keys_loop(RootKeys::of(inner), config, inner.rotated.clone(), runner.clone());
        runner.spawn_loop(&loops::ROOT_KEYS, root_keys);
        runner.spawn_loop(&loops::SWEEP, inner.sweeper.clone().run());
        runner.spawn_loop(&loops::RECOVERY, inner.recovering.clone().run());
        runner.spawn_loop(&loops::DISK, disk::disk_loop(inner.disk.clone(), inner.store.clone(), runner.clone()));
        let worker = Arc::new(Worker {
            broker: inner.parts.broker.clone(),
            queue: inner.queue.clone(),
            samples: inner.samples.clone(),
            counts: inner.plans.clone(),
            store: inner.store.clone(),
            most_of_a_job: inner.config.most_of_a_job(),
        });
        runner.progress().starts(&loops::WORKERS);
        for number in 0..inner.config.workers.max(1) {
            let (worker, turns) = (worker.clone(), runner.turns(&loops::WORKERS));
            let builder = thread::Builder::new().name(format!("worker-{number}"));
            let own = runner.clone();
            let thread = threads.start(builder, worker.run(turns), move |why| own.broken("worker", &why));
            self.workers.extend(thread.map_err(StartError::Thread)?);
        }
        Ok(())
    }

    /// The handle through which it is used.
    #[must_use]
    pub fn handle(&self) -> &ServerHandle {
        &self.handle
    }

    /// Resolves with the reason when the server can no longer trust its store: the process must end then. Cancel safe.
    pub async fn failed(&self) -> String {
        self.handle.inner.runner.failed().await
    }

    /// Ends the sessions of the nodes, stops the loops and closes the store.
    pub async fn shutdown(mut self) {
        let inner = self.handle.inner.clone();
        inner.runner.stopping().cancel();
        inner.parts.broker.close();
        if !inner.runner.ended(SHUTDOWN_PATIENCE).await {
            tracing::warn!("some tasks of the server did not end in time");
        }
        let (workers, commits) = (std::mem::take(&mut self.workers), self.commits.take());
        if let Some(watchdog) = self.watchdog.take() {
            watchdog.thread().unpark();
        }
        // Threads are joined away from the runtime; the store commits what was handed to it before it closes.
        let store = inner.store.clone();
        blocking(move || {
            if let Some(commits) = commits
                && !commits.end(SHUTDOWN_PATIENCE)
            {
                // It waits for a store that does not answer. One that closes answers everything.
                tracing::warn!("the store takes no batches; those that wait for it are given up");
                store.close();
            }
            for worker in workers {
                if worker.join().is_err() {
                    tracing::error!("a worker has panicked");
                }
            }
        })
        .await;
        blocking(move || inner.store.close()).await;
        tracing::info!("server stopped");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let inner = &self.handle.inner;
        inner.runner.stopping().cancel();
        inner.parts.broker.close();
        if let Some(watchdog) = &self.watchdog {
            watchdog.thread().unpark();
        }
    }
}

/// The mark of this server; says whether that of the one before proves that the state is the newest.
fn run_mark_in(
    dir: &Path,
    data_dir: &Path,
    cluster: ClusterId,
    state: &State,
    tip: model::StoreIndex,
    founded: bool,
) -> Arc<Keeper> {
    let place = run_mark::Place { dir, data_dir, cluster };
    let (keeper, verdict) = Keeper::begin(place, (state.cluster(), tip), founded, FIRST_SWEEP);
    match verdict {
        Ok(_) => {}
        Err(doubt @ Doubt::Behind { .. }) => tracing::warn!(why = %doubt, "the server's state is from the past; new \
            remote tasks wait until their providers show all that there is"),
        Err(doubt) => tracing::info!(why = %doubt, "the server's state may be from the past; new remote tasks wait \
            until their providers show all that there is"),
    }
    Arc::new(keeper)
}

/// The keys that identities are signed with, and those that the first commit has to add to the state.
fn keyring_of(
    encrypts: bool,
    data_dir: Option<PathBuf>,
    shared: Option<SharedKey>,
    wrapping: Wrapping,
    state: &State,
) -> Result<(Keyring, Vec<SigningKey>), KeyringError> {
    let dir = data_dir.map(|dir| dir.join(keyring::DIR));
    match (shared, state.signing_keys().next()) {
        (Some(shared), _) => {
            let keyring = Keyring::of_state(shared, wrapping, state)?;
            let first = keyring.first(dir.as_deref(), now_ns(), encrypts)?;
            Ok((keyring, first))
        }
        (None, Some(key)) => Err(KeyringError::Unshared { id: key.id }),
        (None, None) => Ok((Keyring::open(dir, wrapping, now_ns(), state.latest_index())?, Vec::new())),
    }
}

/// What nodes show; None = nothing.
fn join_secret(
    kind: Join,
    shared: Option<&SharedKey>,
    data_dir: Option<PathBuf>,
) -> Result<Option<JoinSecret>, StartError> {
    match (kind, shared, data_dir) {
        (Join::Secret(secret), ..) => Ok(Some(secret)),
        (Join::Kept, Some(shared), dir) => {
            let secret = shared.join_secret().map_err(|_| KeyringError::Crypto("deriving the join secret"))?;
            if let Some(dir) = dir
                && secret.keep_in(&dir).map_err(|source| StartError::Join { dir: dir.clone(), source })?
            {
                tracing::warn!(
                    "the join secret in the data directory was another one and is replaced: servers that \
                    share a store have one that follows from server.encrypt; nodes need that one"
                );
            }
            Ok(Some(secret))
        }
        (Join::Kept, None, Some(dir)) => {
            JoinSecret::kept_in(&dir).map(Some).map_err(|source| StartError::Join { dir, source })
        }
        (Join::Kept, None, None) | (Join::Open, ..) => Ok(None),
    }
}

/// Runs what waits for the disk or for threads away from the runtime's own threads.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    joined(blocking::spawn(work).await)
}

/// What a task that nobody cancels has come to.
fn joined<T>(ended: Result<T, tokio::task::JoinError>) -> T {
    ended.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    };

    use store::{Batch, Contents, Done, Fence, StoreError, StoreStats, Watch};

    use super::*;

    /// A store that at some time answers nothing any more, until it is closed.
    #[derive(Default)]
    struct Silent {
        store: MemoryStore,
        silent: AtomicBool,
        waiting: Mutex<Vec<Done>>,
    }

    impl std::fmt::Debug for Silent {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("Silent")
        }
    }

    impl Silent {
        fn waiting(&self) -> std::sync::MutexGuard<'_, Vec<Done>> {
            self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
        }
    }

    impl Store for Silent {
        fn load(&self) -> Result<Contents, StoreError> {
            self.store.load()
        }
        fn acquire(&self) -> Result<Fence, StoreError> {
            self.store.acquire()
        }
        fn submit(&self, batch: Batch, done: Done) {
            if self.silent.load(Ordering::SeqCst) { self.waiting().push(done) } else { self.store.submit(batch, done) }
        }
        fn watch(&self, index: u64) -> Result<Watch, StoreError> {
            self.store.watch(index)
        }
        fn probe(&self) -> Result<(), StoreError> {
            self.store.probe()
        }
        fn close(&self) {
            self.silent.store(false, Ordering::SeqCst);
            self.store.close();
            let waiting = std::mem::take(&mut *self.waiting());
            waiting.into_iter().for_each(|done| done(Err(StoreError::Closed)));
        }
        fn stats(&self) -> StoreStats {
            self.store.stats()
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_server_whose_store_does_not_answer_ends_in_time_and_is_not_broken() {
        // The second is more than may wait for a store.
        for writes in [1, 100] {
            let store = Arc::new(Silent::default());
            let around = Surroundings { store: Some(store.clone()), ..Surroundings::default() };
            let server = Server::start_in(ServerConfig::default(), around).await.expect("the server starts");
            store.silent.store(true, Ordering::SeqCst);
            let (handle, runner) = (server.handle().clone(), server.handle().inner.runner.clone());
            let write = |n: usize| {
                let (handle, name) = (handle.clone(), format!("waits-{n}"));
                let record = state::NamespaceRecord { name: name.into(), ..Default::default() };
                tokio::spawn(async move { handle.put_namespace(record).await })
            };
            let answers: Vec<_> = (0..writes).map(write).collect();
            testkit::eventually("writes that wait", || store.waiting().len() >= writes.min(32)).await;
            testkit::soon(server.shutdown()).await;
            for answer in answers {
                answer.await.expect("it ends").expect_err("it was not stored");
            }
            let failed = std::pin::pin!(runner.failed());
            assert!(futures::poll!(failed).is_pending(), "the process would end with another code");
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn every_loop_that_is_started_tells_its_progress() {
        let server = Server::start(ServerConfig::default()).await.expect("the server starts");
        let progress = server.handle().inner.runner.progress();
        let told = async {
            while !progress.silent().is_empty() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let in_time = tokio::time::timeout(Duration::from_secs(30), told).await;
        assert!(in_time.is_ok(), "{:?} tell nothing of themselves", progress.silent());
        let started = progress.started();
        // None is started past the one way that keeps its name.
        for name in ["broker", "leases", "sessions", "supervision", "recovery", "watchdog", "workers"] {
            assert!(started.contains(&name), "{name} was not started by its name: {started:?}");
        }
        let health: Vec<String> = server.handle().progress().into_iter().map(|told| told.name).collect();
        // These two begin with what they serve.
        for of in loops::LOOPS.iter().filter(|of| !["http", "session"].contains(&of.name)) {
            assert!(health.iter().any(|told| told == of.name), "health does not tell of {}: {health:?}", of.name);
        }
        server.shutdown().await;
    }
}

//! A running server: what starts and stops it.

use std::{
    sync::{Arc, atomic::AtomicU64},
    thread,
    time::Duration,
};

use model::ClusterId;
use node_gateway::{
    Sessions,
    join::{Join, JoinSecret},
};
use state::{Change, ClusterMeta, State};
use store::{MemoryStore, SqliteOptions, SqliteStore, Store};
use tokio::net::TcpListener;

use crate::{
    clock::{new_id, now_ns},
    commit::{self, CommitQueue, CommitThread, Decided},
    config::ServerConfig,
    disk,
    error::ServerError,
    events::EventLog,
    gateway,
    handle::{Inner, ServerHandle},
    keyring::{self, Keyring, KeyringError},
    loops,
    observer::Followers,
    parts::Parts,
    published::Published,
    reconciler::{Collection, Reconciler},
    recovery::Recovering,
    runner::Runner,
    sessions::NodeSessions,
    sweep::sweeper::Sweeper,
    watchdog,
    worker::Worker,
};

/// What does not end by itself within this time at a shutdown is left behind.
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
        dir: std::path::PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The stored rows are not a state.
    #[error("reading the server's state failed: {0}")]
    Load(#[from] state::LoadError),
    /// The state is of another cluster than the configuration names.
    #[error(
        "the data directory has the state of cluster {found}, the configuration names cluster {configured} (server.cluster_id): mount the right \
         directory, or take the setting out"
    )]
    OtherCluster {
        /// Of the state.
        found: ClusterId,
        /// Of the configuration.
        configured: ClusterId,
    },
    /// The address of the node RPC is not to be had.
    #[error("listening for nodes on {address} failed: {source}; another agent may use the port, or the address is not this machine's")]
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
        let (store, lost): (Arc<dyn Store>, _) = match &config.data_dir {
            Some(dir) => {
                let dir = dir.clone();
                let options = SqliteOptions { max_bytes: config.max_stored_bytes };
                let store = blocking(move || SqliteStore::open(&dir, &options)).await?;
                let lost = store.lost();
                if let Some(lost) = lost.filter(|lost| lost.found == 0 && config.cluster_id.is_none()) {
                    // Not even the cluster is known: whatever this server would begin, the nodes would refuse it.
                    return Err(store::StoreError::Emptied { path: store.path().to_owned(), acknowledged: lost.acknowledged }.into());
                }
                (Arc::new(store), lost)
            }
            None => (Arc::new(MemoryStore::default()), None),
        };
        let opened = store.clone();
        let (fence, contents) = blocking(move || Ok::<_, store::StoreError>((opened.acquire()?, opened.load()?))).await?;
        let tip = contents.index;
        let state = Arc::new(blocking(move || State::load(contents.rows)).await?);
        // After the store, whose lock guards the directory of the keys too.
        let (keys, index) = (config.data_dir.as_ref().map(|dir| dir.join(keyring::DIR)), state.latest_index());
        let keyring = blocking(move || Keyring::open(keys, now_ns(), index)).await?;
        let join = match (&config.join, &config.data_dir) {
            (Join::Secret(secret), _) => Some(secret.clone()),
            (Join::Kept, Some(dir)) => {
                let own = dir.clone();
                let kept = blocking(move || JoinSecret::kept_in(&own).map_err(|source| StartError::Join { dir: own, source }));
                Some(kept.await?)
            }
            (Join::Kept, None) | (Join::Open, _) => None,
        };
        let listen = |source| StartError::Listen { address: config.rpc_bind, source };
        let listener = TcpListener::bind(config.rpc_bind).await.map_err(listen)?;
        let rpc_addr = match config.rpc_advertise {
            Some(address) => address,
            None => listener.local_addr().map_err(listen)?,
        };
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
        let runner = Arc::new(Runner::new(config.end_process_when_broken));
        let open = Arc::new(Sessions::default());
        let sessions: Arc<dyn NodeSessions> = open.clone();
        let parts = Parts::new(&config, &queue, &published, &runner, new_cluster);
        let started_at = now_ns();
        let recovering = Arc::new(Recovering::new(
            queue.clone(),
            published.clone(),
            parts.clone(),
            sessions.clone(),
            runner.clone(),
            started_at,
            config.lease_wait() + config.startup_grace,
        ));
        let sweeper = Sweeper {
            sweeps: parts.sweeps.clone(),
            supervision: parts.supervision.clone(),
            queue: queue.clone(),
            sessions: sessions.clone(),
            cluster_id,
            interval: config.sweep_interval,
            runner: runner.clone(),
        };
        let inner = Arc::new(Inner {
            cluster_id,
            rpc_addr,
            started_at,
            join,
            store: store.clone(),
            keyring: Arc::new(keyring),
            queue: queue.clone(),
            published: published.clone(),
            events: Arc::new(EventLog::new(config.event_batches)),
            schemas: Arc::default(),
            disk: Arc::default(),
            sessions: sessions.clone(),
            parts: parts.clone(),
            sweeper: Arc::new(sweeper),
            recovering,
            runner: runner.clone(),
            samples: Arc::default(),
            plans: Arc::default(),
            handler_panics: AtomicU64::default(),
            config,
        });
        let observer = Arc::new(Followers {
            parts,
            events: inner.events.clone(),
            schemas: inner.schemas.clone(),
            sessions,
            published: published.clone(),
            disk: inner.disk.clone(),
            runner: runner.clone(),
        });
        let turns = commit::turns(runner.progress());
        let commits = commit::start(commit::Start { queue, queued, store, fence, tip, published, observer, turns });
        let commits = commits.map_err(StartError::Thread)?;
        let mut server =
            Self { handle: ServerHandle { inner: inner.clone() }, workers: Vec::new(), commits: Some(commits), watchdog: None };
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
            Ok(Decided { batch: Change::SetClusterMeta(Box::new(meta)).into(), answer: () })
        };
        inner.queue.commit(begun).await?;
        if let Some(recovery) = inner.recovering.now() {
            inner.recovering.begun(&recovery.cause);
        }
        server.start_loops(&state)?;
        runner.spawn_loop(&loops::SESSIONS, node_gateway::serve(gateway::compose(&inner, open), listener));
        server.watchdog = Some(watchdog::watch(&runner, inner.config.stuck_after).map_err(StartError::Thread)?);
        tracing::info!(cluster = %cluster_id, rpc = %rpc_addr, index = state.latest_index(), "server started");
        Ok(server)
    }

    /// What the loops remember for speed is filled from this snapshot; what is applied from now on they follow.
    fn start_loops(&mut self, state: &State) -> Result<(), StartError> {
        let inner = &self.handle.inner;
        let runner = &inner.runner;
        let reconciler = Reconciler::new(runner.clone(), inner.queue.clone(), inner.published.clone());
        inner.parts.start(state, Collection::new(&inner.config.gc), &reconciler);
        runner.spawn_loop(&loops::SWEEP, inner.sweeper.clone().run());
        runner.spawn_loop(&loops::RECOVERY, inner.recovering.clone().run());
        runner.spawn_loop(&loops::DISK, disk::disk_loop(inner.disk.clone(), inner.store.clone(), runner.clone()));
        let worker = Arc::new(Worker {
            broker: inner.parts.broker.clone(),
            queue: inner.queue.clone(),
            samples: inner.samples.clone(),
            counts: inner.plans.clone(),
            most_of_a_job: inner.config.most_of_a_job(),
        });
        runner.progress().starts(&loops::WORKERS);
        for number in 0..inner.config.workers.max(1) {
            let (worker, turns) = (worker.clone(), runner.turns(&loops::WORKERS));
            let builder = thread::Builder::new().name(format!("worker-{number}"));
            let thread = runner.thread("worker", builder, move || worker.run(&turns));
            self.workers.push(thread.map_err(StartError::Thread)?);
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
        blocking(move || {
            drop(commits);
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

/// Runs what waits for the disk or for threads away from the runtime's own threads.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(value) => value,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

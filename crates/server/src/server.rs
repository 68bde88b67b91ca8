//! A running server: what starts and stops it.

use std::{
    sync::{Arc, OnceLock},
    thread,
    time::Duration,
};

use arc_swap::ArcSwap;
use model::ClusterId;
use state::{Change, ClusterMeta, State};
use store::{MemoryStore, SqliteOptions, SqliteStore, Store};
use tokio::{net::TcpListener, sync::watch};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    blocked::Blocked,
    broker::Broker,
    clock::{new_id, now_ns},
    collect,
    commit::{self, CommitThread, Decided},
    config::ServerConfig,
    deployments,
    drainer::{self, Drains},
    error::ServerError,
    evals,
    events::EventLog,
    handle::ServerHandle,
    keyring::{self, Keyring, KeyringError},
    leases::Leases,
    nodes,
    remote::{self, Supervision},
    rpc::{self, ClientUpdates, Sessions},
    shared::{Counters, Shared},
    sweep::{self, Sweeps},
    worker,
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
    /// The stored rows are not a state.
    #[error("reading the server's state failed: {0}")]
    Load(#[from] state::LoadError),
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
}

impl Server {
    /// Starts a server: opens and reads the state, listens for nodes, starts the loops. Must be called inside a multi-threaded tokio runtime.
    ///
    /// # Errors
    /// See [`StartError`]; nothing is left running then.
    pub async fn start(config: ServerConfig) -> Result<Self, StartError> {
        let store: Arc<dyn Store> = match &config.data_dir {
            Some(dir) => {
                let dir = dir.clone();
                let options = SqliteOptions { max_bytes: config.max_stored_bytes };
                blocking(move || SqliteStore::open(&dir, &options)).await.map(Arc::new)?
            }
            None => Arc::new(MemoryStore::default()),
        };
        let opened = store.clone();
        let (fence, contents) = blocking(move || Ok::<_, store::StoreError>((opened.acquire()?, opened.load()?))).await?;
        let tip = contents.index;
        let state = Arc::new(blocking(move || State::load(contents.rows)).await?);
        // After the store, whose lock guards the directory of the keys too.
        let (keys, index) = (config.data_dir.as_ref().map(|dir| dir.join(keyring::DIR)), state.latest_index());
        let keyring = blocking(move || Keyring::open(keys, now_ns(), index)).await?;
        let listen = |source| StartError::Listen { address: config.rpc_bind, source };
        let listener = TcpListener::bind(config.rpc_bind).await.map_err(listen)?;
        let rpc_addr = match config.rpc_advertise {
            Some(address) => address,
            None => listener.local_addr().map_err(listen)?,
        };
        let known = state.cluster().cluster_id;
        let cluster_id: ClusterId = if known.is_nil() { new_id() } else { known };
        let published = Arc::new(ArcSwap::new(state.clone()));
        let shared = Arc::new(Shared {
            cluster_id,
            rpc_addr,
            started_at: now_ns(),
            store: store.clone(),
            keyring,
            published: published.clone(),
            published_index: watch::Sender::new(state.latest_index()),
            events: Arc::new(EventLog::new(config.event_batches)),
            stopping: CancellationToken::new(),
            fatal: watch::Sender::new(None),
            tasks: TaskTracker::new(),
            broker: Broker::new(config.nack_timeout, config.delivery_limit),
            blocked: Blocked::default(),
            leases: Leases::default(),
            sessions: Sessions::default(),
            updates: ClientUpdates::default(),
            remote: Supervision::default(),
            sweeps: Sweeps::new(known.is_nil()),
            drains: Drains::default(),
            deploy: tokio::sync::Notify::new(),
            counters: Counters::default(),
            queue: OnceLock::new(),
            config,
        });
        let start = commit::Start { store, fence, state: state.clone(), tip, published, observer: shared.clone() };
        let (queue, commits) = commit::start(start).map_err(StartError::Thread)?;
        // Set once, here: nothing that uses it runs yet.
        let _ = shared.queue.set(queue);
        let mut server = Self { handle: ServerHandle { shared: shared.clone() }, workers: Vec::new(), commits: Some(commits) };
        if known.is_nil() {
            let meta = ClusterMeta { cluster_id, create_time: shared.started_at };
            shared.queue().commit(move |_, _| Ok(Decided { batch: Change::SetClusterMeta(meta).into(), answer: () })).await?;
        }
        // What the loops remember for speed is filled from the snapshot; what is applied from now on they follow.
        shared.broker.fill(&state);
        shared.blocked.fill(&state);
        shared.remote.fill();
        shared.drains.fill(&state);
        nodes::wait_for_all(&shared, &state);
        server.start_workers()?;
        shared.tasks.spawn(evals::broker_loop(shared.clone()));
        shared.tasks.spawn(evals::blocked_loop(shared.clone()));
        shared.tasks.spawn(nodes::lease_loop(shared.clone()));
        shared.tasks.spawn(drainer::drain_loop(shared.clone()));
        shared.tasks.spawn(deployments::deployment_loop(shared.clone()));
        shared.tasks.spawn(remote::supervision_loop(shared.clone()));
        shared.tasks.spawn(sweep::sweep_loop(shared.clone()));
        shared.tasks.spawn(collect::collection_loop(shared.clone()));
        shared.tasks.spawn(rpc::serve(shared.clone(), listener));
        tracing::info!(cluster = %cluster_id, rpc = %rpc_addr, index = state.latest_index(), "server started");
        Ok(server)
    }

    fn start_workers(&mut self) -> Result<(), StartError> {
        for number in 0..self.handle.shared.config.workers.max(1) {
            let shared = self.handle.shared.clone();
            let thread = thread::Builder::new().name(format!("worker-{number}")).spawn(move || worker::run(&shared));
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
        let mut fatal = self.handle.shared.fatal.subscribe();
        match fatal.wait_for(Option::is_some).await {
            Ok(reason) => reason.clone().unwrap_or_default(),
            Err(_) => std::future::pending().await,
        }
    }

    /// Ends the sessions of the nodes, stops the loops and closes the store.
    pub async fn shutdown(mut self) {
        let shared = self.handle.shared.clone();
        shared.stopping.cancel();
        shared.broker.close();
        shared.tasks.close();
        if tokio::time::timeout(SHUTDOWN_PATIENCE, shared.tasks.wait()).await.is_err() {
            tracing::warn!("some tasks of the server did not end in time");
        }
        let (workers, commits) = (std::mem::take(&mut self.workers), self.commits.take());
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
        blocking(move || shared.store.close()).await;
        tracing::info!("server stopped");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let shared = &self.handle.shared;
        shared.stopping.cancel();
        shared.broker.close();
    }
}

/// Runs what waits for the disk or for threads away from the runtime's own threads.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(value) => value,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

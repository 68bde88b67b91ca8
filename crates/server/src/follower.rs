//! A server that does not lead, as far as it answers reads: it has the state that another server changes, and a handle
//! whose snapshots, also those for backups, blocking queries and events work. Nothing is decided here, no loop runs,
//! and commits are refused.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use model::StoreIndex;
use node_gateway::Sessions;
use state::{LoadError, State, Table};
use store::{Batch, Committed, Contents, Done, Fence, Store, StoreError, StoreStats, Watch};

use crate::{
    clock::now_ns,
    commit::{Commit, CommitQueue},
    config::ServerConfig,
    handle::{Given, Inner, ServerHandle},
    keyring::{Keyring, KeyringError},
    known::Known,
    parts::Parts,
    published::Published,
    runner::Runner,
    sessions::NodeSessions,
};

/// Why there is nothing to answer from.
#[derive(Debug, thiserror::Error)]
pub enum FollowError {
    /// The store could not be read.
    #[error("reading the shared state failed: {0}")]
    Store(#[from] StoreError),
    /// Its rows are not a state.
    #[error("reading the shared state failed: {0}")]
    Load(#[from] LoadError),
    /// The signing keys in it do not open.
    #[error("reading the signing keys of the shared state failed: {0}")]
    Keyring(#[from] KeyringError),
}

/// A state that follows the batches of another server. Who waits at its handle is let go when it is dropped.
#[derive(Debug)]
pub struct Follower {
    handle: ServerHandle,
    known: Mutex<Known>,
}

impl Follower {
    /// Reads everything from a store; None = no server has ever led. Waits for the store.
    ///
    /// # Errors
    /// See [`FollowError`].
    pub fn load(config: ServerConfig, store: &dyn Store) -> Result<Option<Self>, FollowError> {
        let known = Known::read(store.load()?)?;
        if known.state.cluster().cluster_id.is_nil() {
            return Ok(None);
        }
        Self::new(config, known).map(Some)
    }

    /// With a state that is known already. `config` is that of the server.
    ///
    /// # Errors
    /// When the signing keys of the state do not open with the key of the configuration.
    pub fn new(config: ServerConfig, known: Known) -> Result<Self, FollowError> {
        let Known { state, index } = known;
        let mut state = state;
        if state.latest_index() < index {
            // No row is left of the newest batches; indexes must not go back for that.
            let mut same = State::clone(&state);
            same.follow(index, &[])?;
            state = Arc::new(same);
        }
        let (published, runner) = (Published::new(state.clone()), Arc::new(Runner::new(false, None)));
        // Nobody takes decisions from this queue: they are refused.
        let (queue, _) = CommitQueue::new(state.clone());
        let sessions: Arc<dyn NodeSessions> = Arc::new(Sessions::default());
        let keyring = match config.shared.clone() {
            Some(shared) => Keyring::of_state(shared, config.wrapping.clone(), &state)?,
            None => Keyring::open(None, config.wrapping.clone(), now_ns(), state.latest_index())?,
        };
        // It begins nothing, so nobody asks how old its state is.
        let parts = Parts::new(&config, &queue, &published, &runner, false, &Arc::default());
        let (started_at, cluster_id) = (now_ns(), state.cluster().cluster_id);
        let given = Given {
            cluster_id,
            rpc_addr: config.rpc_advertise.unwrap_or(config.rpc_bind),
            started_at,
            join: None,
            store: Arc::new(OwnState(published.clone())),
            keyring: Arc::new(keyring),
            queue,
            published,
            sessions,
            parts,
            runner,
        };
        let inner = Inner::new(config, given);
        let known = Mutex::new(Known { state, index });
        Ok(Self { handle: ServerHandle { inner: Arc::new(inner) }, known })
    }

    /// The handle for reads.
    #[must_use]
    pub fn handle(&self) -> &ServerHandle {
        &self.handle
    }

    /// The state with its place in the store.
    #[must_use]
    pub fn known(&self) -> Known {
        self.lock().clone()
    }

    /// Index of the newest batch that it has.
    #[must_use]
    pub fn index(&self) -> StoreIndex {
        self.lock().index
    }

    /// Takes over the next batch and tells who waits for it. One that it has already changes nothing.
    ///
    /// # Errors
    /// When the batch cannot be read; nothing has changed then.
    pub fn follow(&self, batch: &Committed) -> Result<(), FollowError> {
        let mut known = self.lock();
        if batch.index <= known.index {
            return Ok(());
        }
        let (next, applied) = known.after(batch)?;
        let before = std::mem::replace(&mut *known, next).state;
        let (inner, state) = (&self.handle.inner, known.state.clone());
        inner.queue.follow(state.clone());
        // First, so that a snapshot of the state has its keys.
        if applied.tables.contains(Table::SigningKeys) {
            inner.keyring.follow(&state);
        }
        inner.published.set(state.clone());
        let commit = Commit { before, state, applied };
        inner.events.follow(&commit);
        inner.watches.follow(&commit.applied);
        inner.published.tell(commit.applied.index);
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The state in place of a store: for snapshots. Nothing is written.
#[derive(Debug)]
struct OwnState(Published);

impl Store for OwnState {
    fn load(&self) -> Result<Contents, StoreError> {
        let state = self.0.load_full();
        Ok(Contents { index: state.latest_index(), rows: state.all_rows() })
    }
    fn acquire(&self) -> Result<Fence, StoreError> {
        Err(StoreError::Closed)
    }
    fn submit(&self, _: Batch, done: Done) {
        done(Err(StoreError::Closed));
    }
    fn watch(&self, _: StoreIndex) -> Result<Watch, StoreError> {
        Err(StoreError::Closed)
    }
    fn probe(&self) -> Result<(), StoreError> {
        Ok(())
    }
    fn close(&self) {}
    fn stats(&self) -> StoreStats {
        StoreStats::default()
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.handle.inner.runner.stopping().cancel();
    }
}

impl ServerHandle {
    /// The durable state of a server that ends, for a [`Follower`] in its place.
    #[must_use]
    pub fn known(&self) -> Known {
        let state = self.snapshot();
        Known { index: state.latest_index(), state }
    }
}

//! The newest durable state: what everything outside of the scheduling side reads, and waits for.

use std::sync::Arc;

use arc_swap::ArcSwap;
use model::StoreIndex;
use state::State;
use tokio::sync::watch;

/// The newest durable state. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Published {
    state: Arc<ArcSwap<State>>,
    index: Arc<watch::Sender<StoreIndex>>,
}

impl Published {
    /// Begins with this state.
    pub(crate) fn new(state: Arc<State>) -> Self {
        let index = Arc::new(watch::Sender::new(state.latest_index()));
        Self { state: Arc::new(ArcSwap::new(state)), index }
    }

    /// The state.
    pub(crate) fn load_full(&self) -> Arc<State> {
        self.state.load_full()
    }

    /// This one is durable. Whoever waits is told afterwards, by [`Self::tell`].
    pub(crate) fn set(&self, state: Arc<State>) {
        self.state.store(state);
    }

    /// Wakes whoever waits for a newer state.
    pub(crate) fn tell(&self, index: StoreIndex) {
        self.index.send_replace(index);
    }

    /// Changes with each commit.
    pub(crate) fn subscribe(&self) -> watch::Receiver<StoreIndex> {
        self.index.subscribe()
    }
}

//! The cheap handle through which everything outside the loops uses a server: snapshots, waiting for change, events. The write API is in
//! `commands`.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use model::{ClusterId, StoreIndex};
use state::State;
use tokio_util::sync::CancellationToken;

use crate::{
    config::ServerConfig,
    events::{EventFilter, EventSubscription},
    requests::ServerStats,
    shared::Shared,
};

/// A server, as seen from the outside. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ServerHandle {
    pub(crate) shared: Arc<Shared>,
}

/// Reading.
impl ServerHandle {
    /// The newest durable state.
    #[must_use]
    pub fn snapshot(&self) -> Arc<State> {
        self.shared.published.load_full()
    }
    /// The settings that the server runs with.
    #[must_use]
    pub fn config(&self) -> &ServerConfig {
        &self.shared.config
    }
    /// Identity of the cluster; the owner tag at every provider.
    #[must_use]
    pub fn cluster_id(&self) -> ClusterId {
        self.shared.cluster_id
    }
    /// Where nodes reach the server.
    #[must_use]
    pub fn rpc_addr(&self) -> SocketAddr {
        self.shared.rpc_addr
    }
    /// Cancelled when the server stops: long answers end then.
    #[must_use]
    pub fn stopping(&self) -> CancellationToken {
        self.shared.stopping.clone()
    }
    /// Numbers about the server at work.
    #[must_use]
    pub fn stats(&self) -> ServerStats {
        self.shared.stats()
    }

    /// A blocking query: waits until `index_of` (the index of the watched table or object) is above `min_index`, at most for `wait`, and gives
    /// the newest snapshot either way. Returns at once when `min_index` is 0 or the server stops. Cancel safe.
    pub async fn wait_for(&self, min_index: StoreIndex, wait: Duration, index_of: impl Fn(&State) -> StoreIndex) -> Arc<State> {
        if min_index == 0 {
            return self.snapshot();
        }
        self.wait_until(wait, |state| index_of(state) > min_index).await.unwrap_or_else(|state| state)
    }

    /// Waits until the state meets a condition; the newest state as an error when it did not in time. Cancel safe.
    ///
    /// # Errors
    /// The newest snapshot when the time is up or the server stops.
    pub async fn wait_until(&self, wait: Duration, condition: impl Fn(&State) -> bool) -> Result<Arc<State>, Arc<State>> {
        let mut changed = self.shared.published_index.subscribe();
        let deadline = tokio::time::sleep(wait);
        tokio::pin!(deadline);
        loop {
            changed.mark_unchanged();
            let state = self.snapshot();
            if condition(&state) {
                return Ok(state);
            }
            tokio::select! {
                result = changed.changed() => if result.is_err() { return Err(state) },
                () = &mut deadline => return Err(self.snapshot()),
                () = self.shared.stopping.cancelled() => return Err(state),
            }
        }
    }

    /// Subscribes to events from `index` on; 0 = all that is kept.
    #[must_use]
    pub fn subscribe(&self, filter: EventFilter, index: StoreIndex) -> EventSubscription {
        EventSubscription::new(self.shared.events.clone(), filter, index, self.shared.stopping.clone())
    }
}

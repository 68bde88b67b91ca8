//! Commands on the keys that workload identities are signed with. Keys are not part of the state, but each change of
//! them takes an index of it: a server that may no longer write is refused, and those who wait for an index see the
//! change.

use std::{sync::Arc, time::Duration};

use model::StoreIndex;
use state::Change;
use uuid::Uuid;

use crate::{
    commit::{Decided, Stamp},
    error::ServerError,
    handle::ServerHandle,
    keyring::{KeyMeta, Keyring, KeyringError},
};

impl ServerHandle {
    /// The keys that workload identities are signed with.
    #[must_use]
    pub fn keyring(&self) -> &Keyring {
        &self.inner.keyring
    }

    /// Waits until the keys have changed after `min_index`, at most for `wait`; returns at once when `min_index` is 0
    /// or the server stops. Cancel safe.
    pub async fn wait_for_keys(&self, min_index: StoreIndex, wait: Duration) {
        if min_index == 0 {
            return;
        }
        tokio::select! {
            () = self.keyring().changed_after(min_index) => {}
            () = tokio::time::sleep(wait) => {}
            () = self.inner.runner.stopping().cancelled() => {}
        }
    }

    /// Makes a new active key; the others stay published.
    ///
    /// # Errors
    /// When the key could not be made or kept; nothing has changed then.
    pub async fn rotate_key(&self) -> Result<KeyMeta, ServerError> {
        let stamp = self.take_index().await?;
        self.change_keys(move |keyring| keyring.rotate(stamp.now, stamp.index)).await
    }

    /// Deletes an inactive key; the index of the change, or of the last one when there is no such key.
    ///
    /// # Errors
    /// When the key is the active one or could not be removed; nothing has changed then.
    pub async fn delete_key(&self, id: Uuid) -> Result<StoreIndex, ServerError> {
        let mut deleted = None;
        if self.keyring().deletable(id)? {
            let stamp = self.take_index().await?;
            deleted = self.change_keys(move |keyring| keyring.delete(id, stamp.index)).await?;
        }
        Ok(deleted.unwrap_or_else(|| self.keyring().keys().1))
    }

    /// A commit that changes nothing but the index.
    async fn take_index(&self) -> Result<Stamp, ServerError> {
        let decide = |state: &Arc<state::State>, stamp| {
            Ok(Decided { batch: Change::SetClusterMeta(Box::new((**state.cluster()).clone())).into(), answer: stamp })
        };
        self.inner.queue.commit(decide).await
    }

    /// Changes the keys away from the runtime: files are written.
    async fn change_keys<T: Send + 'static>(
        &self,
        change: impl FnOnce(&Keyring) -> Result<T, KeyringError> + Send + 'static,
    ) -> Result<T, ServerError> {
        let keyring = self.inner.keyring.clone();
        match tokio::task::spawn_blocking(move || change(&keyring)).await {
            Ok(changed) => changed.map_err(ServerError::from),
            Err(error) => Err(ServerError::Internal { what: "changing the signing keys", why: error.to_string() }),
        }
    }
}

impl From<KeyringError> for ServerError {
    fn from(error: KeyringError) -> Self {
        match error {
            KeyringError::Active => Self::conflict(error.to_string()),
            other => Self::Internal { what: "changing the signing keys", why: other.to_string() },
        }
    }
}

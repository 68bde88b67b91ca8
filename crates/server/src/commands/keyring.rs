//! Commands on the keys that workload identities are signed with. Keys of a server that shares them are part of the
//! state. Those in files are not, but each change of them takes an index of the state as well: a server that may no
//! longer write is refused, and those who wait for an index see the change.

use std::{sync::Arc, time::Duration};

use model::{
    StoreIndex,
    signing::{KeyState, SigningKey},
};
use state::{Batch, Change, State, Table};
use uuid::Uuid;

use crate::{
    clock::now_ns,
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
        if let Some((row, made)) = self.keyring().to_commit(now_ns())? {
            return self.inner.queue.commit(move |state, stamp| Ok(rotated(state, row, made, stamp))).await;
        }
        let stamp = self.take_index().await?;
        self.change_keys(move |keyring| keyring.rotate(stamp.now, stamp.index)).await
    }

    /// Deletes an inactive key; the index of the change, or of the last one when there is no such key.
    ///
    /// # Errors
    /// When the key is the active one or could not be removed; nothing has changed then.
    pub async fn delete_key(&self, id: Uuid) -> Result<StoreIndex, ServerError> {
        if self.keyring().in_state() {
            return self.inner.queue.commit(move |state, stamp| deleted(state, id, stamp)).await;
        }
        let mut deleted = None;
        if self.keyring().deletable(id)? {
            let stamp = self.take_index().await?;
            deleted = self.change_keys(move |keyring| keyring.delete(id, stamp.index)).await?;
        }
        Ok(deleted.unwrap_or_else(|| self.keyring().keys().1))
    }

    /// A commit that changes nothing but the index.
    async fn take_index(&self) -> Result<Stamp, ServerError> {
        let decide = |state: &Arc<State>, stamp| {
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
        match blocking::spawn(move || change(&keyring)).await {
            Ok(changed) => changed.map_err(ServerError::from),
            Err(error) => Err(ServerError::Internal { what: "changing the signing keys", why: error.to_string() }),
        }
    }
}

/// Adds the key to the state; the others are inactive from now on.
fn rotated(state: &State, row: SigningKey, made: KeyMeta, stamp: Stamp) -> Decided<KeyMeta> {
    let active = state.signing_keys().filter(|key| key.state == KeyState::Active);
    let before = active.map(|key| SigningKey { state: KeyState::Inactive, ..SigningKey::clone(key) });
    let row = SigningKey { create_time: stamp.now, ..row };
    let changes = std::iter::once(row).chain(before).map(|key| Change::PutSigningKey(Box::new(key)));
    let answer = KeyMeta { create_time: stamp.now, create_index: stamp.index, modify_index: stamp.index, ..made };
    Decided { batch: Batch::new(changes.collect()), answer }
}

/// Takes the key out of the state; the index of that, or of the last change when there is no such key.
fn deleted(state: &State, id: Uuid, stamp: Stamp) -> Result<Decided<StoreIndex>, ServerError> {
    match state.signing_key(id).map(|key| key.state) {
        None => Ok(Decided { batch: Batch::default(), answer: state.index(Table::SigningKeys) }),
        Some(KeyState::Inactive) => Ok(Decided { batch: Change::DeleteSigningKey(id).into(), answer: stamp.index }),
        Some(KeyState::Active) => Err(KeyringError::Active.into()),
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

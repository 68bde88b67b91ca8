//! Commands on root keys. Keys of a server that shares them are part of the
//! state. Those in files are not, but each change of them takes an index of the state as well: a server that may no
//! longer write is refused, and those who wait for an index see the change.

use std::{sync::Arc, time::Duration};

use control::root_keys::{Standing, Times, beside_a_new_one, encrypts_any, unneeded};
use model::{
    StoreIndex, TimestampNs,
    signing::{KeyState, SigningKey},
};
use state::{Batch, Change, State, Table};
use store::Store;
use uuid::Uuid;

use crate::{
    clock::now_ns,
    commit::{CommitQueue, Decided, Stamp},
    error::ServerError,
    handle::{Inner, ServerHandle},
    keyring::{KeyMeta, Keyring, KeyringError, Made},
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
        self.rotate_root_key(false, 0).await
    }

    /// Makes a new root key. `full`: the variables are encrypted with it in the background. `publish_time` (Unix ns):
    /// it is published now and becomes active then; 0 = at once.
    ///
    /// # Errors
    /// When both are asked for, or the key could not be made or kept; nothing has changed then.
    pub async fn rotate_root_key(&self, full: bool, publish_time: TimestampNs) -> Result<KeyMeta, ServerError> {
        if full && publish_time != 0 {
            let why = "keyring cannot be prepublished and full rotated at the same time";
            return Err(ServerError::invalid(why.to_owned()));
        }
        let keys = RootKeys::of(&self.inner);
        let made = keys.make(full, publish_time).await?;
        self.inner.rotated.notify_one();
        Ok(made)
    }

    /// Deletes a key that is not active and that no variable needs; the index of the change, or of the last one when
    /// there is no such key.
    ///
    /// # Errors
    /// When the key is the active one, is needed or could not be removed; nothing has changed then.
    pub async fn delete_key(&self, id: Uuid) -> Result<StoreIndex, ServerError> {
        RootKeys::of(&self.inner).delete(id).await
    }
}

/// Changes of the root keys, for commands and for the loop.
#[derive(Clone, Debug)]
pub(crate) struct RootKeys {
    pub(crate) keyring: Arc<Keyring>,
    pub(crate) queue: CommitQueue,
    pub(crate) store: Arc<dyn Store>,
}

impl RootKeys {
    pub(crate) fn of(inner: &Inner) -> Self {
        Self { keyring: inner.keyring.clone(), queue: inner.queue.clone(), store: inner.store.clone() }
    }

    /// Whether all servers of the store read keys that encrypt, and variables.
    pub(crate) fn may_encrypt(&self) -> bool {
        self.store.format() >= state::VARIABLES
    }

    /// The keys as `control` decides on them.
    pub(crate) fn standing(&self) -> Vec<Standing> {
        self.keyring.keys().0.iter().map(standing).collect()
    }

    /// Makes a key.
    pub(crate) async fn make(&self, full: bool, publish_time: TimestampNs) -> Result<KeyMeta, ServerError> {
        let made = Made { now: now_ns(), publish_time, encrypts: self.may_encrypt() };
        let keyring = self.keyring.clone();
        if let Some((row, meta)) = away(move || keyring.to_commit(&made)).await? {
            return self.queue.commit(move |state, stamp| Ok(rotated(state, row, meta, full, stamp))).await;
        }
        let stamp = self.queue.commit(|state, stamp| Ok(index_only(state, stamp))).await?;
        let changes = beside_a_new_one(&self.standing(), full, publish_time != 0);
        let keyring = self.keyring.clone();
        away(move || keyring.rotate(&Made { now: stamp.now, ..made }, &changes, stamp.index)).await
    }

    /// Deletes a key that is not active and that no variable needs; the index of the change, or of the last one when
    /// there is no such key.
    pub(crate) async fn delete(&self, id: Uuid) -> Result<StoreIndex, ServerError> {
        if self.keyring.in_state() {
            return self.queue.commit(move |state, stamp| deleted(state, id, stamp)).await;
        }
        let mut deleted = None;
        if self.keyring.deletable(id)? {
            // Writes of variables take the active key, so no new one will need this key.
            let stamp =
                self.queue.commit(move |state, stamp| unused(state, id).map(|()| index_only(state, stamp))).await?;
            let keyring = self.keyring.clone();
            deleted = away(move || keyring.delete(id, stamp.index)).await?;
        }
        Ok(deleted.unwrap_or_else(|| self.keyring.keys().1))
    }

    /// The keys that nobody needs any more.
    pub(crate) fn unneeded(&self, times: &Times) -> Vec<Uuid> {
        let state = self.queue.newest();
        let pools = state.node_pools().map(|pool| pool.node_identity_ttl.nanos()).max().unwrap_or_default();
        let times = Times { node_identity: times.node_identity.max(pools), ..*times };
        unneeded(&state, &self.standing(), &times, now_ns())
    }

    /// Gives keys other states.
    pub(crate) async fn set_states(&self, changes: Vec<(Uuid, KeyState)>) -> Result<(), ServerError> {
        if self.keyring.in_state() {
            let decide = move |state: &Arc<State>, _| {
                let row = |(id, next): (Uuid, KeyState)| {
                    let key = state.signing_key(id)?;
                    Some(Change::PutSigningKey(Box::new(SigningKey { state: next, ..SigningKey::clone(key) })))
                };
                Ok(Decided { batch: Batch::new(changes.into_iter().filter_map(row).collect()), answer: () })
            };
            return self.queue.commit(decide).await;
        }
        let stamp = self.queue.commit(|state, stamp| Ok(index_only(state, stamp))).await?;
        let keyring = self.keyring.clone();
        away(move || Ok(keyring.set_states(&changes, stamp.index))).await.map(|_| ())
    }
}

fn standing(key: &KeyMeta) -> Standing {
    Standing {
        id: key.id,
        state: key.state,
        create_time: key.create_time,
        publish_time: key.publish_time,
        encrypts: key.encrypts,
    }
}

/// A commit that changes nothing but the index.
fn index_only(state: &State, stamp: Stamp) -> Decided<Stamp> {
    Decided { batch: Change::SetClusterMeta(Box::new((**state.cluster()).clone())).into(), answer: stamp }
}

/// Works on keys away from the runtime: files are written, and keys take their time to be made.
async fn away<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, KeyringError> + Send + 'static,
) -> Result<T, ServerError> {
    match blocking::spawn(work).await {
        Ok(done) => done.map_err(ServerError::from),
        Err(error) => Err(ServerError::Internal { what: "changing the root keys", why: error.to_string() }),
    }
}

/// Whether no variable is encrypted with the key.
fn unused(state: &State, id: Uuid) -> Result<(), ServerError> {
    match encrypts_any(state, id) {
        true => Err(KeyringError::InUse.into()),
        false => Ok(()),
    }
}

/// Adds the key to the state, and gives the others the states that follow.
fn rotated(state: &State, row: SigningKey, made: KeyMeta, full: bool, stamp: Stamp) -> Decided<KeyMeta> {
    let keys: Vec<Standing> = state
        .signing_keys()
        .map(|key| Standing {
            id: key.id,
            state: key.state,
            create_time: key.create_time,
            publish_time: key.publish_time,
            encrypts: key.wrapped_data_key.is_some(),
        })
        .collect();
    let others = beside_a_new_one(&keys, full, made.publish_time != 0);
    let before = others
        .into_iter()
        .filter_map(|(id, next)| Some(SigningKey { state: next, ..SigningKey::clone(state.signing_key(id)?) }));
    let row = SigningKey { create_time: stamp.now, ..row };
    let changes = std::iter::once(row).chain(before).map(|key| Change::PutSigningKey(Box::new(key)));
    let answer = KeyMeta { create_time: stamp.now, create_index: stamp.index, modify_index: stamp.index, ..made };
    Decided { batch: Batch::new(changes.collect()), answer }
}

/// Takes the key out of the state; the index of that, or of the last change when there is no such key.
fn deleted(state: &State, id: Uuid, stamp: Stamp) -> Result<Decided<StoreIndex>, ServerError> {
    match state.signing_key(id).map(|key| key.state) {
        None => Ok(Decided { batch: Batch::default(), answer: state.index(Table::SigningKeys) }),
        Some(KeyState::Active) => Err(KeyringError::Active.into()),
        Some(_) => {
            unused(state, id)?;
            Ok(Decided { batch: Change::DeleteSigningKey(id).into(), answer: stamp.index })
        }
    }
}

impl From<KeyringError> for ServerError {
    fn from(error: KeyringError) -> Self {
        match error {
            KeyringError::Active | KeyringError::InUse | KeyringError::NoDataKey => Self::conflict(error.to_string()),
            other => Self::Internal { what: "working with the root keys", why: other.to_string() },
        }
    }
}

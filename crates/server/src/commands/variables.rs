//! Commands on variables. They are encrypted before their turn in the commits comes, and decrypted for who reads them:
//! neither store nor state, log or event has them in the clear.

use std::{collections::BTreeMap, sync::Arc};

use base64::{Engine as _, engine::general_purpose::STANDARD};
pub use control::variables::Written;
use control::{
    locks::{acquire, asked, release},
    variables::{Sealed, check_items, check_path, delete, put},
};
use model::{
    GoDuration, StoreIndex,
    signing::KeyState,
    variables::{Variable, VariableKey, VariableLock},
};
use state::{Change, State};
use uuid::Uuid;

use crate::{
    clock::new_id,
    commit::{CommitQueue, Decided, Stamp},
    error::ServerError,
    handle::ServerHandle,
    keyring::{Keyring, KeyringError},
};

/// The items of a variable.
pub type Items = BTreeMap<String, String>;

/// What a write does to a variable.
#[derive(Debug)]
enum Write {
    /// Sets the items.
    Items {
        /// Only if that is its modify index.
        cas: Option<StoreIndex>,
        /// Of the lock that the writer holds.
        lock: Option<String>,
    },
    /// Acquires its lock.
    Acquire(VariableLock),
}

/// Why a lock was not renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotRenewed {
    /// There is no such variable.
    Absent,
    /// Nobody holds its lock.
    Unlocked,
    /// It is not that lock, or its time is over.
    Locked,
}

impl ServerHandle {
    /// The items of a variable. A secret: for whoever may read it.
    ///
    /// # Errors
    /// When its key is not there, or it is damaged.
    pub fn variable_items(&self, variable: &Variable) -> Result<Items, ServerError> {
        open(&self.inner.keyring, variable)
    }

    /// Writes a variable. `cas`: only if that is its modify index; 0 = only if there is none. `lock`: the id of the
    /// lock that the writer holds.
    ///
    /// # Errors
    /// When path or items break a rule, the namespace does not exist, or no key encrypts yet.
    pub async fn put_variable(
        &self,
        key: VariableKey,
        items: Items,
        cas: Option<StoreIndex>,
        lock: Option<String>,
    ) -> Result<Written, ServerError> {
        check_path(&key.path)?;
        check_items(&items)?;
        self.write(key, Some(items), Write::Items { cas, lock }).await
    }

    /// Acquires the lock of a variable, which is made when there is none. Without `items` it keeps its own. `id`: what
    /// the holder wants to show, or shows already. Zero times are the defaults.
    ///
    /// # Errors
    /// As [`ServerHandle::put_variable`], and when a time or the id is out of its bounds.
    pub async fn acquire_lock(
        &self,
        key: VariableKey,
        items: Option<Items>,
        id: Option<&str>,
        ttl: GoDuration,
        delay: GoDuration,
    ) -> Result<Written, ServerError> {
        check_path(&key.path)?;
        if let Some(items) = items.as_ref().filter(|items| !items.is_empty()) {
            check_items(items)?;
        }
        let id = id.map_or_else(|| new_id::<Uuid>().to_string(), str::to_owned);
        self.write(key, items, Write::Acquire(asked(&id, ttl, delay)?)).await
    }

    async fn write(&self, key: VariableKey, items: Option<Items>, what: Write) -> Result<Written, ServerError> {
        let keep = items.is_none();
        let clear = serde_json::to_vec(&items.unwrap_or_default()).map_err(KeyringError::from)?;
        let what = Arc::new(what);
        loop {
            let (key_id, data) = self.inner.keyring.seal(&clear)?;
            let sealed = Sealed { key_id, data: STANDARD.encode(data) };
            let (keyring, locks) = (self.inner.keyring.clone(), self.inner.parts.locks.clone());
            let (key, what) = (key.clone(), what.clone());
            let decide = move |state: &Arc<State>, stamp: Stamp| {
                // A key that is not active any more may be deleted at any time.
                if !active(&keyring, state, key_id) {
                    return Ok(Decided { batch: state::Batch::default(), answer: None });
                }
                let Decided { batch, answer } = match &*what {
                    Write::Items { cas, lock } => put(state, stamp, &key, sealed, *cas, lock.as_deref())?,
                    Write::Acquire(lock) => {
                        let renewed = locks.renew(&key, lock.id.reveal());
                        let items = (!keep).then(|| sealed.clone());
                        acquire(state, stamp, &key, items, sealed, lock.clone(), renewed)?
                    }
                };
                Ok(Decided { batch, answer: Some(answer) })
            };
            if let Some(written) = self.inner.queue.commit(decide).await? {
                return Ok(written);
            }
        }
    }

    /// Gives the lock of that id its whole time again; the variable. Nothing is stored: only the server that leads may
    /// answer with that, and only while no other one can have begun to lead.
    ///
    /// # Errors
    /// When that lock does not stand any more.
    pub fn renew_lock(&self, key: &VariableKey, id: &str) -> Result<Arc<Variable>, NotRenewed> {
        let state = self.snapshot();
        let variable = state.variable(key).ok_or(NotRenewed::Absent)?;
        let lock = variable.lock.as_ref().ok_or(NotRenewed::Unlocked)?;
        if lock.id.matches(id) && self.inner.parts.locks.renew(key, id) {
            return Ok(variable.clone());
        }
        Err(NotRenewed::Locked)
    }

    /// Gives up the lock of a variable.
    ///
    /// # Errors
    /// When the change is not stored.
    pub async fn release_lock(&self, key: VariableKey, id: String) -> Result<Written, ServerError> {
        self.inner.queue.commit(move |state, stamp| Ok(release(state, stamp, &key, &id))).await
    }

    /// Deletes a variable; one that does not exist is deleted. `cas`: only if that is its modify index. `lock`: the id
    /// of the lock that the writer holds.
    ///
    /// # Errors
    /// When the change is not stored.
    pub async fn delete_variable(
        &self,
        key: VariableKey,
        cas: Option<StoreIndex>,
        lock: Option<String>,
    ) -> Result<Written, ServerError> {
        self.inner.queue.commit(move |state, _| Ok(delete(state, key, cas, lock.as_deref()))).await
    }
}

/// Whether new variables are encrypted with the key.
fn active(keyring: &Keyring, state: &State, id: Uuid) -> bool {
    match keyring.in_state() {
        true => state.signing_key(id).is_some_and(|key| key.state == KeyState::Active),
        false => keyring.keys().0.first().is_some_and(|key| key.id == id && key.state == KeyState::Active),
    }
}

fn open(keyring: &Keyring, variable: &Variable) -> Result<Items, ServerError> {
    let wrong = |why| KeyringError::Sealed { id: variable.key_id, path: variable.path.to_string(), why };
    let sealed = STANDARD.decode(&variable.data).map_err(|_| wrong("what the store has of it is not base64"))?;
    let clear = keyring.unseal(variable.key_id, &sealed, &variable.path)?;
    Ok(serde_json::from_slice(&clear).map_err(|_| wrong("what it holds is not a map of texts"))?)
}

/// Encrypts up to `most` variables again that one of these keys has encrypted. True = there are none left.
///
/// # Errors
/// When one of them does not open, or the change is not stored.
pub(crate) async fn reseal(
    keyring: &Arc<Keyring>,
    queue: &CommitQueue,
    old: &[Uuid],
    most: usize,
) -> Result<bool, ServerError> {
    let state = queue.newest();
    let mut sealed = Vec::new();
    for variable in state.variables().filter(|variable| old.contains(&variable.key_id)).take(most) {
        let clear = serde_json::to_vec(&open(keyring, variable)?).map_err(KeyringError::from)?;
        let (key_id, data) = keyring.seal(&clear)?;
        sealed.push((variable.clone(), key_id, STANDARD.encode(data)));
    }
    if sealed.is_empty() {
        return Ok(true);
    }
    let keyring = keyring.clone();
    let decide = move |state: &Arc<State>, _| {
        // What has been written meanwhile has a newer key already.
        let stands = |(before, key_id, data): (Arc<Variable>, Uuid, String)| {
            let key = before.key();
            let same = state.variable(&key).is_some_and(|now| **now == *before) && active(&keyring, state, key_id);
            same.then_some(Change::ResealVariable { key, key_id, data })
        };
        Ok(Decided { batch: sealed.into_iter().filter_map(stands).collect::<Vec<_>>().into(), answer: () })
    };
    queue.commit(decide).await?;
    Ok(false)
}

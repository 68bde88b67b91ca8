//! Commands on variables. They are encrypted before their turn in the commits comes, and decrypted for who reads them:
//! neither store nor state, log or event has them in the clear.

use std::{collections::BTreeMap, sync::Arc};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use control::variables::{Written, check_items, check_path, delete, put};
use model::{
    Namespace, StoreIndex,
    signing::KeyState,
    variables::{Variable, VariableKey},
};
use state::{Change, State};
use uuid::Uuid;

use crate::{
    commit::{CommitQueue, Decided, Stamp},
    error::ServerError,
    handle::ServerHandle,
    keyring::{Keyring, KeyringError},
};

/// The items of a variable.
pub type Items = BTreeMap<String, String>;

/// What became of a write of a variable.
#[derive(Debug)]
pub enum VariableWritten {
    /// It is written; as it is now.
    Done(Box<Variable>),
    /// It is not as the writer expects it: as it is; None = there is none.
    Conflict(Option<Box<Variable>>),
}

impl ServerHandle {
    /// The items of a variable. A secret: for whoever may read it.
    ///
    /// # Errors
    /// When its key is not there, or it is damaged.
    pub fn variable_items(&self, variable: &Variable) -> Result<Items, ServerError> {
        open(&self.inner.keyring, variable)
    }

    /// Writes a variable. `cas`: only if that is its modify index; 0 = only if there is none.
    ///
    /// # Errors
    /// When path or items break a rule, the namespace does not exist, or no key encrypts yet.
    pub async fn put_variable(
        &self,
        namespace: Namespace,
        path: String,
        items: Items,
        cas: Option<StoreIndex>,
    ) -> Result<VariableWritten, ServerError> {
        check_path(&path)?;
        check_items(&items)?;
        if namespace == "*" {
            let why = "can not target wildcard (\"*\")namespace".to_owned();
            return Err(control::Refused::BadRequest(why).into());
        }
        let key = VariableKey::new(namespace, &path);
        let clear = serde_json::to_vec(&items).map_err(KeyringError::from)?;
        loop {
            let (key_id, sealed) = self.inner.keyring.seal(&clear)?;
            let variable = Variable {
                namespace: key.namespace.clone(),
                path: key.path.clone(),
                key_id,
                data: STANDARD.encode(sealed),
                create_index: 0,
                create_time: 0,
                modify_index: 0,
                modify_time: 0,
                lock: None,
            };
            let keyring = self.inner.keyring.clone();
            let decide = move |state: &Arc<State>, stamp: Stamp| {
                // A key that is not active any more may be deleted at any time.
                if !active(&keyring, state, key_id) {
                    return Ok(Decided { batch: state::Batch::default(), answer: None });
                }
                let before = state.variable(&variable.key()).map(|before| (before.create_index, before.create_time));
                let (create_index, create_time) = before.unwrap_or((stamp.index, stamp.now));
                let (modify_index, modify_time) = (stamp.index, stamp.now);
                let after = Variable { create_index, create_time, modify_index, modify_time, ..variable.clone() };
                let Decided { batch, answer } = put(state, variable, cas)?;
                let answer = match answer {
                    Written::Done => VariableWritten::Done(Box::new(after)),
                    Written::Conflict(current) => VariableWritten::Conflict(current),
                };
                Ok(Decided { batch, answer: Some(answer) })
            };
            if let Some(written) = self.inner.queue.commit(decide).await? {
                return Ok(written);
            }
        }
    }

    /// Deletes a variable; one that does not exist is deleted. `cas`: only if that is its modify index. None = done;
    /// else how it is, if there is one.
    ///
    /// # Errors
    /// When the change is not stored.
    pub async fn delete_variable(
        &self,
        key: VariableKey,
        cas: Option<StoreIndex>,
    ) -> Result<Option<Option<Box<Variable>>>, ServerError> {
        let written = self.inner.queue.commit(move |state, _| Ok(delete(state, key, cas))).await?;
        Ok(match written {
            Written::Done => None,
            Written::Conflict(current) => Some(current),
        })
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

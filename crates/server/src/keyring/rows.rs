//! Keys in the state: their secrets are encrypted under the key that the servers share.

use std::sync::Arc;

use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair as _};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use model::signing::{KeyState, SigningKey};

use super::key::{Key, KeyMeta, KeyringError, sort};
use crate::shared::SharedKey;

/// What the state keeps of a key.
pub(super) fn row_of(shared: &SharedKey, key: &Key) -> Result<SigningKey, KeyringError> {
    let meta = &key.meta;
    let wrapped = shared.wrap(meta.id, &key.secret()?).map_err(|_| KeyringError::Crypto("encrypting a private key"))?;
    Ok(SigningKey {
        id: meta.id,
        algorithm: meta.algorithm,
        state: meta.state,
        create_time: meta.create_time,
        create_index: meta.create_index,
        modify_index: meta.modify_index,
        wrapped_key: STANDARD.encode(wrapped),
    })
}

/// The key that the state has.
pub(super) fn key_of(shared: &SharedKey, row: &SigningKey) -> Result<Key, KeyringError> {
    let wrong = |why| KeyringError::Wrapped { id: row.id, why };
    let wrapped = STANDARD.decode(&row.wrapped_key).map_err(|_| wrong("what the store has of it is not base64"))?;
    let der = shared.open(row.id, &wrapped).map_err(|_| wrong("it was encrypted under another key, or is damaged"))?;
    let pair = Ed25519KeyPair::from_pkcs8(&der).map_err(|_| wrong("it is not an Ed25519 key in PKCS #8"))?;
    Ok(with_pair(row, Arc::new(pair)))
}

/// The key that the state has, of which the secret is known.
pub(super) fn with_pair(row: &SigningKey, pair: Arc<Ed25519KeyPair>) -> Key {
    let meta = KeyMeta {
        id: row.id,
        algorithm: row.algorithm,
        state: row.state,
        create_time: row.create_time,
        create_index: row.create_index,
        modify_index: row.modify_index,
        public: pair.public_key().as_ref().to_vec(),
    };
    Key { meta, pair }
}

/// Rows of keys that were kept in files. The newest is the active one if it was, all others are inactive.
pub(super) fn rows_of(shared: &SharedKey, mut keys: Vec<Key>) -> Result<Vec<SigningKey>, KeyringError> {
    sort(&mut keys);
    keys.iter_mut().skip(1).for_each(|key| key.meta.state = KeyState::Inactive);
    keys.iter().map(|key| row_of(shared, key)).collect()
}

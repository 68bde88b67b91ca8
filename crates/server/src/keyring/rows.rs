//! Keys in the state: their secrets are encrypted under the key that the servers share.

use aws_lc_rs::hmac;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use model::signing::{KeyState, SigningKey};

use super::{
    key::{Key, KeyMeta, KeyringError, sort},
    secret::{DataKey, Signer, proof_key},
};
use crate::shared::SharedKey;

/// What the state keeps of a key.
pub(super) fn row_of(shared: &SharedKey, key: &Key) -> Result<SigningKey, KeyringError> {
    let meta = &key.meta;
    let wrap = |secret: &[u8]| match shared.wrap(meta.id, secret) {
        Ok(wrapped) => Ok(STANDARD.encode(wrapped)),
        Err(_) => Err(KeyringError::Crypto("encrypting a private key")),
    };
    Ok(SigningKey {
        id: meta.id,
        algorithm: meta.algorithm,
        state: meta.state,
        create_time: meta.create_time,
        create_index: meta.create_index,
        modify_index: meta.modify_index,
        wrapped_key: wrap(&key.signer.secret()?)?,
        wrapped_data_key: key.data.as_ref().map(|data| wrap(data.bytes())).transpose()?,
        publish_time: meta.publish_time,
    })
}

/// The key that the state has.
pub(super) fn key_of(shared: &SharedKey, row: &SigningKey) -> Result<Key, KeyringError> {
    let wrong = |why| KeyringError::Wrapped { id: row.id, why };
    let open = |text: &str| {
        let wrapped = STANDARD.decode(text).map_err(|_| wrong("what the store has of it is not base64"))?;
        shared.open(row.id, &wrapped).map_err(|_| wrong("it was encrypted under another key, or is damaged"))
    };
    let signer = Signer::read(row.algorithm, &open(&row.wrapped_key)?);
    let signer = signer.map_err(|_| wrong("it is not a private key of its algorithm in PKCS #8"))?;
    let data = match &row.wrapped_data_key {
        Some(text) => Some(DataKey::read(&open(text)?).ok_or_else(|| wrong("its data key is not 32 bytes"))?),
        None => None,
    };
    let proofs = proof_key(&signer, data.as_ref())?;
    Ok(with_secrets(row, signer, data, proofs))
}

/// The key that the state has, of which the secrets are known.
pub(super) fn with_secrets(row: &SigningKey, signer: Signer, data: Option<DataKey>, proofs: hmac::Key) -> Key {
    let meta = KeyMeta {
        id: row.id,
        algorithm: row.algorithm,
        state: row.state,
        create_time: row.create_time,
        create_index: row.create_index,
        modify_index: row.modify_index,
        publish_time: row.publish_time,
        encrypts: data.is_some(),
        public: signer.public(),
    };
    Key { meta, signer, data, proofs }
}

/// Rows of keys that were kept in files. The newest is the active one if it was; others are not active.
pub(super) fn rows_of(shared: &SharedKey, mut keys: Vec<Key>) -> Result<Vec<SigningKey>, KeyringError> {
    sort(&mut keys);
    let others = keys.iter_mut().skip(1).filter(|key| key.meta.state == KeyState::Active);
    others.for_each(|key| key.meta.state = KeyState::Inactive);
    keys.iter().map(|key| row_of(shared, key)).collect()
}

//! A signing key, the text of its file, and why something could not be done with keys.

use std::{io, path::PathBuf, sync::Arc};

use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair as _};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use model::{
    StoreIndex, TimestampNs,
    signing::{Algorithm, KeyState},
};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Why the keyring did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum KeyringError {
    /// The directory or a file of it.
    #[error("{attempt} {path} failed: {source}; the server's user must own the directory, with room on \
        its disk", path = path.display())]
    File {
        /// What was attempted.
        attempt: &'static str,
        /// With which file.
        path: PathBuf,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// The crypto library made no key or no signature.
    #[error("{0} failed in the crypto library")]
    Crypto(
        /// What was attempted.
        &'static str,
    ),
    /// The claims are not JSON.
    #[error("writing the claims of a token as JSON failed: {0}")]
    Claims(
        /// Why.
        #[from]
        serde_json::Error,
    ),
    /// The active key cannot be deleted.
    #[error("active root key cannot be deleted: rotate first")]
    Active,
    /// A key of the store cannot be read with the key of this server.
    #[error(
        "the signing key {id} in the store does not open with this server's server.encrypt ({why}); give it the key \
            that the other servers of this store have"
    )]
    Wrapped {
        /// The signing key.
        id: Uuid,
        /// What is wrong.
        why: &'static str,
    },
    /// The store has keys that servers share, and this server has not what opens them.
    #[error(
        "the store has the signing key {id}, which is encrypted, and this server has no server.encrypt; give it the \
            key that the other servers of this store have"
    )]
    Unshared {
        /// The signing key.
        id: Uuid,
    },
}

/// A key without its secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyMeta {
    /// Id; `kid` of its tokens.
    pub id: Uuid,
    /// What it signs with.
    pub algorithm: Algorithm,
    /// What it is used for.
    pub state: KeyState,
    /// When it was made.
    pub create_time: TimestampNs,
    /// Index of its making; orders the keys.
    pub create_index: StoreIndex,
    /// Index of the last change of its state.
    pub modify_index: StoreIndex,
    /// The public half: the 32 bytes of RFC 8032.
    pub public: Vec<u8>,
}

/// A key with its secret.
#[derive(Clone)]
pub(super) struct Key {
    pub(super) meta: KeyMeta,
    pub(super) pair: Arc<Ed25519KeyPair>,
}

/// What a file holds. Unknown fields make it unreadable: they would be lost when the state changes.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
struct KeyFile {
    #[serde(rename = "KeyID")]
    key_id: Uuid,
    algorithm: Algorithm,
    state: KeyState,
    create_time: TimestampNs,
    create_index: StoreIndex,
    modify_index: StoreIndex,
    /// PKCS #8 with the public half (RFC 5958), base64: a damaged secret does not fit its public half.
    private_key: String,
}

impl Key {
    /// Makes an active key.
    pub(super) fn generate(id: Uuid, now: TimestampNs, index: StoreIndex) -> Result<Self, KeyringError> {
        let pair = Ed25519KeyPair::generate().map_err(|_| KeyringError::Crypto("making a key"))?;
        let meta = KeyMeta {
            id,
            algorithm: Algorithm::EdDsa,
            state: KeyState::Active,
            create_time: now,
            create_index: index,
            modify_index: index,
            public: pair.public_key().as_ref().to_vec(),
        };
        Ok(Self { meta, pair: Arc::new(pair) })
    }

    /// The private key: PKCS #8 with the public half.
    pub(super) fn secret(&self) -> Result<Vec<u8>, KeyringError> {
        let der = self.pair.to_pkcs8().map_err(|_| KeyringError::Crypto("encoding a private key"))?;
        Ok(der.as_ref().to_vec())
    }

    /// What is in its file.
    pub(super) fn text(&self) -> Result<Vec<u8>, KeyringError> {
        let meta = &self.meta;
        let file = KeyFile {
            key_id: meta.id,
            algorithm: meta.algorithm,
            state: meta.state,
            create_time: meta.create_time,
            create_index: meta.create_index,
            modify_index: meta.modify_index,
            private_key: STANDARD.encode(self.secret()?),
        };
        Ok(serde_json::to_vec_pretty(&file)?)
    }

    /// Reads the text of the file that has that name, without its ending. Reasons are made of positions, never of what
    /// the text holds.
    pub(super) fn read(text: &[u8], name: &str) -> Result<Self, String> {
        let file: KeyFile = serde_json::from_slice(text).map_err(|e| {
            let (line, column) = (e.line(), e.column());
            format!("it is not the record of a key ({:?} error at line {line} column {column})", e.classify())
        })?;
        if file.key_id.to_string() != name {
            return Err(format!("it holds the key {}: a key's file has the name of its key", file.key_id));
        }
        let der = STANDARD.decode(&file.private_key).map_err(|_| "its private key is not base64".to_owned())?;
        let pair = Ed25519KeyPair::from_pkcs8(&der)
            .map_err(|e| format!("its private key is not a whole Ed25519 key in PKCS #8: {e}"))?;
        let meta = KeyMeta {
            id: file.key_id,
            algorithm: file.algorithm,
            state: file.state,
            create_time: file.create_time,
            create_index: file.create_index,
            modify_index: file.modify_index,
            public: pair.public_key().as_ref().to_vec(),
        };
        Ok(Self { meta, pair: Arc::new(pair) })
    }
}

/// Puts the newest key first.
pub(super) fn sort(keys: &mut [Key]) {
    keys.sort_by_key(|k| std::cmp::Reverse((k.meta.create_index, k.meta.create_time, k.meta.id)));
}

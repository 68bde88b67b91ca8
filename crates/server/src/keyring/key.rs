//! A signing key, the text of its file, and why something could not be done with keys.

use std::{io, path::PathBuf};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use model::{
    StoreIndex, TimestampNs,
    signing::{Algorithm, KeyState},
};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::secret::{DataKey, Signer};

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
    /// Nothing can be encrypted now.
    #[error(
        "no root key encrypts variables yet: the servers of this store do not all run a release that has them; upgrade \
            the others and try again"
    )]
    NoDataKey,
    /// A variable needs the key.
    #[error("root key in use, cannot delete: variables are encrypted with it; rotate with -full first")]
    InUse,
    /// A variable cannot be read.
    #[error("the variable {path:?} does not open with the root key {id}: {why}")]
    Sealed {
        /// The key.
        id: Uuid,
        /// The variable.
        path: String,
        /// What is wrong.
        why: &'static str,
    },
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
    /// When a prepublished key becomes active, Unix ns; 0 = it was active from the beginning.
    pub publish_time: TimestampNs,
    /// Whether it encrypts variables. Keys of releases before format 2 do not.
    pub encrypts: bool,
    /// The public half: the 32 bytes of RFC 8032, or `RSAPublicKey` of RFC 8017 in DER.
    pub public: Vec<u8>,
}

/// A key with its secret.
#[derive(Clone)]
pub(super) struct Key {
    pub(super) meta: KeyMeta,
    pub(super) signer: Signer,
    pub(super) data: Option<DataKey>,
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
    /// The data key, base64. Absent from keys that encrypt nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    data_key: Option<String>,
    #[serde(default)]
    publish_time: TimestampNs,
}

impl Key {
    /// Makes a key: RSA with a data key, or one that releases of format 1 read.
    pub(super) fn generate(id: Uuid, made: &Made, index: StoreIndex) -> Result<Self, KeyringError> {
        let (algorithm, data) = match made.encrypts {
            true => (Algorithm::Rs256, Some(DataKey::generate()?)),
            false => (Algorithm::EdDsa, None),
        };
        let signer = Signer::generate(algorithm)?;
        let meta = KeyMeta {
            id,
            algorithm,
            state: if made.publish_time == 0 { KeyState::Active } else { KeyState::Prepublished },
            create_time: made.now,
            create_index: index,
            modify_index: index,
            publish_time: made.publish_time,
            encrypts: data.is_some(),
            public: signer.public(),
        };
        Ok(Self { meta, signer, data })
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
            private_key: STANDARD.encode(self.signer.secret()?),
            data_key: self.data.as_ref().map(|data| STANDARD.encode(data.bytes())),
            publish_time: meta.publish_time,
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
        let signer = Signer::read(file.algorithm, &der)?;
        let data = match &file.data_key {
            None => None,
            Some(text) => {
                let data = STANDARD.decode(text).ok().and_then(|bytes| DataKey::read(&bytes));
                Some(data.ok_or_else(|| "its data key is not 32 bytes in base64".to_owned())?)
            }
        };
        let meta = KeyMeta {
            id: file.key_id,
            algorithm: file.algorithm,
            state: file.state,
            create_time: file.create_time,
            create_index: file.create_index,
            modify_index: file.modify_index,
            publish_time: file.publish_time,
            encrypts: data.is_some(),
            public: signer.public(),
        };
        Ok(Self { meta, signer, data })
    }
}

/// What a new key is to be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Made {
    /// When it is made.
    pub(crate) now: TimestampNs,
    /// When it becomes active; 0 = at once.
    pub(crate) publish_time: TimestampNs,
    /// With RSA and a data key, which servers of format 1 do not read.
    pub(crate) encrypts: bool,
}

/// Puts the active key first, then the newest one.
pub(super) fn sort(keys: &mut [Key]) {
    let ahead = |k: &Key| k.meta.state == KeyState::Prepublished;
    keys.sort_by_key(|k| (ahead(k), std::cmp::Reverse((k.meta.create_index, k.meta.create_time, k.meta.id))));
}

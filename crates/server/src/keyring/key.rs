//! A signing key, the text of its file, and why something could not be done with keys.

use std::{io, path::PathBuf};

use aws_lc_rs::hmac;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use model::{
    Secret, StoreIndex, TimestampNs,
    signing::{Algorithm, KeyState},
};
use serde::{Deserialize, Serialize};
use uuid::Uuid;
use zeroize::Zeroizing;

use super::{
    secret::{DataKey, Signer, proof_key},
    wrapping::Wrapping,
};
use crate::shared::SharedKey;

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
    /// A file of a key is encrypted, and this server has not what opens it.
    #[error(
        "the root key in {path} is encrypted, and {why}; without it identities that it has signed and variables that \
            it has encrypted are lost, so nothing was started",
        path = path.display()
    )]
    Locked {
        /// The file.
        path: PathBuf,
        /// What this server lacks, and what to do.
        why: &'static str,
    },
    /// A key of the store cannot be read with the key of this server.
    #[error(
        "the signing key {id} in the store does not open with this server's key, from server.encrypt or its keyring \
            block ({why}); give it the key that the other servers of this store have"
    )]
    Wrapped {
        /// The signing key.
        id: Uuid,
        /// What is wrong.
        why: &'static str,
    },
    /// The store has keys that servers share, and this server has not what opens them.
    #[error(
        "the store has the signing key {id}, which is encrypted, and this server has neither server.encrypt nor a \
            keyring block; give it the key that the other servers of this store have"
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
    /// Of the proofs that nodes keep.
    pub(super) proofs: hmac::Key,
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
    private_key: Secret,
    /// The data key, base64. Absent from keys that encrypt nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    data_key: Option<Secret>,
    #[serde(default)]
    publish_time: TimestampNs,
    /// The two secrets are encrypted under the key of a `keyring` block.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    wrapped: bool,
}

/// Why a text gives no key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Unread {
    /// It is not one, or not whole.
    Damaged(String),
    /// It is encrypted, and what opens it is not here: what that is, and what to do.
    Locked(&'static str),
}

impl From<String> for Unread {
    fn from(why: String) -> Self {
        Self::Damaged(why)
    }
}

impl From<Unread> for String {
    fn from(why: Unread) -> Self {
        match why {
            Unread::Damaged(why) => why,
            Unread::Locked(why) => format!("it is encrypted, and {why}"),
        }
    }
}

/// More than the text of a key has, in bytes: 2.5 KiB for RSA of 2048 bits.
const LONGEST: usize = 8 * 1024;

const NO_WRAPPING: &str = "the configuration has no keyring block: write the one again that it had";
const OTHER_WRAPPING: &str = "no keyring block of the configuration gives the key that it was encrypted under, or the \
    file is damaged: write the block of the former key beside the new one, with active = false";

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
        let proofs = proof_key(&signer, data.as_ref())?;
        Ok(Self { meta, signer, data, proofs })
    }

    /// What is in its file, which is a secret as long as it is not wrapped.
    pub(super) fn text(&self, wrapping: &Wrapping) -> Result<Zeroizing<Vec<u8>>, KeyringError> {
        let meta = &self.meta;
        let encoded = |secret: &[u8]| match &wrapping.active {
            None => Ok(Secret::from(STANDARD.encode(secret))),
            Some(key) => match key.wrap(meta.id, secret) {
                Ok(wrapped) => Ok(Secret::from(STANDARD.encode(wrapped))),
                Err(_) => Err(KeyringError::Crypto("encrypting a private key")),
            },
        };
        let file = KeyFile {
            key_id: meta.id,
            algorithm: meta.algorithm,
            state: meta.state,
            create_time: meta.create_time,
            create_index: meta.create_index,
            modify_index: meta.modify_index,
            private_key: encoded(&self.signer.secret()?)?,
            data_key: self.data.as_ref().map(|data| encoded(data.bytes())).transpose()?,
            publish_time: meta.publish_time,
            wrapped: wrapping.active.is_some(),
        };
        // It does not grow: what a buffer was before stays in memory.
        let mut text = Zeroizing::new(Vec::with_capacity(LONGEST));
        serde_json::to_writer_pretty(&mut *text, &file)?;
        Ok(text)
    }

    /// Reads the text of the file that has that name, without its ending; says whether it is wrapped as new ones are.
    /// Reasons are made of positions, never of what the text holds.
    pub(super) fn read(text: &[u8], name: &str, wrapping: &Wrapping) -> Result<(Self, bool), Unread> {
        let file: KeyFile = serde_json::from_slice(text).map_err(|e| {
            let (line, column) = (e.line(), e.column());
            format!("it is not the record of a key ({:?} error at line {line} column {column})", e.classify())
        })?;
        if file.key_id.to_string() != name {
            return Err(format!("it holds the key {}: a key's file has the name of its key", file.key_id).into());
        }
        let der = STANDARD.decode(file.private_key.reveal()).map_err(|_| "its private key is not base64".to_owned())?;
        let mut der = Zeroizing::new(der);
        let no_data = || "its data key is not 32 bytes in base64".to_owned();
        let mut data =
            file.data_key.as_ref().map(|text| STANDARD.decode(text.reveal()).map(Zeroizing::new)).transpose();
        let mut data = data.as_mut().map_err(|_| no_data())?.take();
        let mut fits = !file.wrapped && wrapping.active.is_none();
        if file.wrapped {
            let open = |key: &SharedKey| {
                let opened = data.as_ref().map(|data| key.open(file.key_id, data)).transpose().ok()?;
                Some((key.open(file.key_id, &der).ok()?, opened))
            };
            let why = if wrapping.is_none() { NO_WRAPPING } else { OTHER_WRAPPING };
            let (at, opened) = wrapping.find(open).ok_or(Unread::Locked(why))?;
            (der, data) = opened;
            fits = at == 0 && wrapping.active.is_some();
        }
        let signer = Signer::read(file.algorithm, &der)?;
        let data = data.map(|bytes| DataKey::read(&bytes).ok_or_else(no_data)).transpose()?;
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
        let proofs = proof_key(&signer, data.as_ref()).map_err(|error| error.to_string())?;
        Ok((Self { meta, signer, data, proofs }, fits))
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

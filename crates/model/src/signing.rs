//! Root keys: they sign workload identities and encrypt variables. As servers that share a store keep them in it.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::ids::{StoreIndex, TimestampNs};

/// What a key signs with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Algorithm {
    /// Ed25519.
    #[serde(rename = "EdDSA")]
    EdDsa,
    /// RSA with 2048 bits and SHA-256 (PKCS #1 v1.5), which every verifier of OpenID Connect knows.
    #[serde(rename = "RS256")]
    Rs256,
}

impl Algorithm {
    /// Its name in tokens, key lists and files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::EdDsa => "EdDSA",
            Self::Rs256 => "RS256",
        }
    }
}

/// What a key is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KeyState {
    /// New tokens are signed and variables encrypted with it.
    Active,
    /// It is published for the tokens that it has signed, and opens the variables that it has encrypted.
    Inactive,
    /// As inactive, while its variables are encrypted again with the active key.
    Rekeying,
    /// It is published, so that verifiers know it before it signs.
    Prepublished,
}

impl KeyState {
    /// Its name in key lists and files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Inactive => "inactive",
            Self::Rekeying => "rekeying",
            Self::Prepublished => "prepublished",
        }
    }
}

/// A key as the state has it: without the key of the servers nobody can sign with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct SigningKey {
    /// Id; `kid` of its tokens. Never used twice.
    #[serde(rename = "KeyID")]
    pub id: Uuid,
    /// What it signs with.
    pub algorithm: Algorithm,
    /// What it is used for. At most one key is active: the newest that is not prepublished.
    pub state: KeyState,
    /// When it was made, Unix ns.
    pub create_time: TimestampNs,
    /// Index of its making; orders the keys.
    pub create_index: StoreIndex,
    /// Index of the last change of its state.
    pub modify_index: StoreIndex,
    /// The private key (PKCS #8), encrypted under the key that the servers share, base64.
    pub wrapped_key: String,
    /// The key that variables are encrypted with, encrypted like the private key, base64. None = it encrypts none: a
    /// release of format 1 has made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wrapped_data_key: Option<String>,
    /// When a prepublished key becomes active, Unix ns; 0 = it was active from the beginning.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub publish_time: TimestampNs,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes fields by reference")]
fn is_zero(time: &TimestampNs) -> bool {
    *time == 0
}

//! The keys that workload identities are signed with, as servers that share a store keep them in it.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::ids::{StoreIndex, TimestampNs};

/// What a key signs with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Algorithm {
    /// Ed25519.
    #[serde(rename = "EdDSA")]
    EdDsa,
}

impl Algorithm {
    /// Its name in tokens, key lists and files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::EdDsa => "EdDSA",
        }
    }
}

/// What a key is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KeyState {
    /// New tokens are signed with it.
    Active,
    /// It is published for the tokens that it has signed.
    Inactive,
}

impl KeyState {
    /// Its name in key lists and files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Inactive => "inactive",
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
    /// What it is used for. At most one key is active, the newest.
    pub state: KeyState,
    /// When it was made, Unix ns.
    pub create_time: TimestampNs,
    /// Index of its making; orders the keys.
    pub create_index: StoreIndex,
    /// Index of the last change of its state.
    pub modify_index: StoreIndex,
    /// The private key (PKCS #8), encrypted under the key that the servers share, base64.
    pub wrapped_key: String,
}

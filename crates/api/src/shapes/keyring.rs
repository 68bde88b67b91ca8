//! The keys that workload identities are signed with, as the outside sees them.

use model::StoreIndex;
use serde::{Deserialize, Serialize};

/// A row of `GET /v1/operator/keyring/keys`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct RootKeyMeta {
    /// Id, a UUID; tokens name it as `kid`.
    #[serde(rename = "KeyID")]
    pub key_id: String,
    /// What it signs with: `EdDSA`.
    pub algorithm: String,
    /// `active` (new tokens are signed with it) or `inactive` (published for the tokens that it has signed).
    pub state: String,
    /// When it was made, Unix ns.
    pub create_time: i64,
    /// Index of its making.
    pub create_index: StoreIndex,
    /// Index of the last change of its state.
    pub modify_index: StoreIndex,
    /// When a key that is published ahead becomes active, Unix ns; 0 = it was from the beginning.
    pub publish_time: i64,
}

/// The answer to `PUT /v1/operator/keyring/rotate`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct KeyRotated {
    /// The new active key.
    pub key: RootKeyMeta,
    /// Index of the change.
    pub index: StoreIndex,
}

/// The answer to `DELETE /v1/operator/keyring/key/:id`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct KeyDeleted {
    /// Index of the change.
    pub index: StoreIndex,
}

/// The answer to `GET /.well-known/jwks.json`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JsonWebKeys {
    /// The newest first.
    pub keys: Vec<JsonWebKey>,
}

/// A public Ed25519 key (RFC 8037).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JsonWebKey {
    /// `OKP`.
    pub kty: String,
    /// `Ed25519`.
    pub crv: String,
    /// `EdDSA`.
    pub alg: String,
    /// `sig`.
    #[serde(rename = "use")]
    pub usage: String,
    /// Id of the key.
    pub kid: String,
    /// The public key, base64url without padding.
    pub x: String,
}

//! Root keys, as the outside sees them.

use model::StoreIndex;
use serde::{Deserialize, Serialize};

/// A row of `GET /v1/operator/keyring/keys`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct RootKeyMeta {
    /// Id, a UUID; tokens name it as `kid`.
    #[serde(rename = "KeyID")]
    pub key_id: String,
    /// What it encrypts variables with: `aes256-gcm`. `EdDSA` = it encrypts none: an older release has made it.
    pub algorithm: String,
    /// `active` (signs and encrypts), `inactive` (published for the tokens that it has signed, opens what it has
    /// encrypted), `rekeying` (its variables are being encrypted again) or `prepublished` (not used yet).
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

/// A public key: RSA (RFC 7518, 6.3) or Ed25519 (RFC 8037).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct JsonWebKey {
    /// `RSA` or `OKP`.
    pub kty: String,
    /// `Ed25519`; empty for RSA.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub crv: String,
    /// `RS256` or `EdDSA`.
    pub alg: String,
    /// `sig`.
    #[serde(rename = "use")]
    pub usage: String,
    /// Id of the key.
    pub kid: String,
    /// The public key of Ed25519, base64url without padding; empty for RSA.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub x: String,
    /// The modulus of RSA, base64url without padding.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub n: String,
    /// The exponent of RSA, base64url without padding.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub e: String,
}

/// The answer to `GET /.well-known/openid-configuration` (OpenID Connect Discovery 1.0, section 3).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenIdConfiguration {
    /// `iss` of the tokens.
    pub issuer: String,
    /// Where the public keys are.
    pub jwks_uri: String,
    /// What tokens are signed with.
    pub id_token_signing_alg_values_supported: Vec<String>,
    /// `code`: the document needs one, and nobody logs in here.
    pub response_types_supported: Vec<String>,
    /// `public`.
    pub subject_types_supported: Vec<String>,
}

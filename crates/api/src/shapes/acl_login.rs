//! Logins, their methods and binding rules, as the outside sees them.

use std::sync::Arc;

use model::{Secret, StoreIndex};
use serde::{Deserialize, Serialize};

/// A method to log in, in lists.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct AclAuthMethodStub {
    /// Name.
    pub name: Arc<str>,
    /// `JWT` or `OIDC`.
    #[serde(rename = "Type")]
    pub kind: String,
    /// Logins that name no method use it.
    pub default: bool,
    /// Digest over what the method says.
    pub hash: String,
    /// Index of its creation.
    pub create_index: StoreIndex,
    /// Index of its last change.
    pub modify_index: StoreIndex,
}

/// A binding rule, in lists.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct AclBindingRuleStub {
    /// Id; a UUID.
    #[serde(rename = "ID")]
    pub id: Arc<str>,
    /// Free text.
    pub description: String,
    /// Name of its method.
    pub auth_method: Arc<str>,
    /// Digest over what the rule says.
    pub hash: String,
    /// Index of its creation.
    pub create_index: StoreIndex,
    /// Index of its last change.
    pub modify_index: StoreIndex,
}

/// `PUT /v1/acl/login`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct AclLoginRequest {
    /// Name of the method.
    pub auth_method_name: String,
    /// Token of the identity provider.
    pub login_token: Secret,
}

/// `PUT /v1/acl/oidc/auth-url`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct OidcAuthUrlRequest {
    /// Name of the method.
    pub auth_method_name: String,
    /// Where the login leads back to.
    #[serde(rename = "RedirectURI")]
    pub redirect_uri: String,
    /// What the client alone knows; the ID token repeats it.
    pub client_nonce: String,
}

/// Where a person logs in.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct OidcAuthUrl {
    /// The address for the browser.
    #[serde(rename = "AuthURL")]
    pub auth_url: String,
}

/// `PUT /v1/acl/oidc/complete-auth`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct OidcCompleteAuthRequest {
    /// Name of the method.
    pub auth_method_name: String,
    /// As the login was begun.
    pub client_nonce: String,
    /// As the provider has given it back.
    pub state: Secret,
    /// What the provider gives for the login.
    pub code: Secret,
    /// The issuer that the provider has named with it (RFC 9207); empty = none.
    pub iss: String,
    /// As the login was begun.
    #[serde(rename = "RedirectURI")]
    pub redirect_uri: String,
}

//! Methods by which others' identities become tokens, and the rules that say what such a token may do.

use std::{collections::BTreeMap, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::{
    acl::{hash_of, ttl},
    go_duration::GoDuration,
    go_time::GoTime,
    ids::StoreIndex,
    secret::Secret,
};

/// What a method can be.
pub const METHOD_TYPES: [&str; 2] = ["JWT", "OIDC"];
/// Where tokens of a method can count.
pub const LOCALITIES: [&str; 2] = ["local", "global"];

/// A method to log in.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct AclAuthMethod {
    /// Name.
    pub name: Arc<str>,
    /// `JWT` or `OIDC`.
    #[serde(rename = "Type")]
    pub kind: String,
    /// `local` or `global`: whether tokens of it are global.
    pub token_locality: String,
    /// Template of the names of its tokens.
    pub token_name_format: String,
    /// How long its tokens are valid.
    #[serde(rename = "MaxTokenTTL", with = "ttl")]
    pub max_token_ttl: GoDuration,
    /// Logins that name no method of this type use it. At most one method is.
    pub default: bool,
    /// How the identity provider is asked.
    pub config: Option<AclAuthMethodConfig>,
    /// When it was made.
    pub create_time: GoTime,
    /// When it was last changed.
    pub modify_time: GoTime,
    /// Digest over what the method says.
    pub hash: String,
    /// Index of its creation.
    pub create_index: StoreIndex,
    /// Index of its last change.
    pub modify_index: StoreIndex,
}

/// How an identity provider is asked and its answers are read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct AclAuthMethodConfig {
    /// Public keys, PEM.
    #[serde(rename = "JWTValidationPubKeys")]
    pub jwt_validation_pub_keys: Vec<String>,
    /// Where the keys are published.
    #[serde(rename = "JWKSURL")]
    pub jwks_url: String,
    /// CA of that server, PEM.
    #[serde(rename = "JWKSCACert")]
    pub jwks_ca_cert: String,
    /// The provider, without `.well-known`.
    #[serde(rename = "OIDCDiscoveryURL")]
    pub oidc_discovery_url: String,
    /// Id of the servers at the provider.
    #[serde(rename = "OIDCClientID")]
    pub oidc_client_id: String,
    /// Their secret there.
    #[serde(rename = "OIDCClientSecret")]
    pub oidc_client_secret: Secret,
    /// Signed statements instead of that secret.
    #[serde(rename = "OIDCClientAssertion")]
    pub oidc_client_assertion: Option<OidcClientAssertion>,
    /// Proof key for code exchange.
    #[serde(rename = "OIDCEnablePKCE")]
    pub oidc_enable_pkce: bool,
    /// Do not ask the provider for further claims.
    #[serde(rename = "OIDCDisableUserInfo")]
    pub oidc_disable_user_info: bool,
    /// Scopes to ask for.
    #[serde(rename = "OIDCScopes")]
    pub oidc_scopes: Vec<String>,
    /// Accepted audiences; empty = any.
    pub bound_audiences: Vec<String>,
    /// Accepted issuers; empty = any.
    pub bound_issuer: Vec<String>,
    /// Where a login may lead back to.
    #[serde(rename = "AllowedRedirectURIs")]
    pub allowed_redirect_uris: Vec<String>,
    /// CAs of the provider, PEM.
    pub discovery_ca_pem: Vec<String>,
    /// Accepted algorithms.
    pub signing_algs: Vec<String>,
    /// Leeway of `exp`.
    #[serde(with = "ttl")]
    pub expiration_leeway: GoDuration,
    /// Leeway of `nbf`.
    #[serde(with = "ttl")]
    pub not_before_leeway: GoDuration,
    /// Leeway of every time.
    #[serde(with = "ttl")]
    pub clock_skew_leeway: GoDuration,
    /// Claim (or JSON pointer) to name of a value.
    pub claim_mappings: BTreeMap<String, String>,
    /// Claim (or JSON pointer) to name of a list.
    pub list_claim_mappings: BTreeMap<String, String>,
    /// Log the claims of logins.
    pub verbose_logging: bool,
}

/// How the servers prove who they are to a provider, instead of by a secret.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct OidcClientAssertion {
    /// `nomad`, `client_secret` or `private_key`.
    pub key_source: String,
    /// Audience of the statement.
    pub audience: Vec<String>,
    /// Key and certificate for `private_key`.
    pub private_key: Option<OidcClientAssertionKey>,
    /// Further headers of the statement.
    pub extra_headers: BTreeMap<String, String>,
    /// Algorithm of the key.
    pub key_algorithm: String,
}

/// A private key that statements are signed with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct OidcClientAssertionKey {
    /// The key, PEM.
    pub pem_key: Secret,
    /// File with the key.
    pub pem_key_file: String,
    /// The certificate, PEM.
    pub pem_cert: String,
    /// File with the certificate.
    pub pem_cert_file: String,
    /// Header that names the key.
    pub key_id_header: String,
    /// Its value.
    #[serde(rename = "KeyID")]
    pub key_id: String,
}

/// What stands for a secret wherever people read it.
pub const REDACTED: &str = "redacted";

impl AclAuthMethod {
    /// The digest over everything but times and indexes.
    #[must_use]
    pub fn digest(&self) -> String {
        let said = Self {
            hash: String::new(),
            create_time: GoTime::default(),
            modify_time: GoTime::default(),
            create_index: 0,
            modify_index: 0,
            ..self.clone()
        };
        // Plain data with text keys.
        hash_of([&*serde_json::to_vec(&said).unwrap_or_default()])
    }

    /// The method with [`REDACTED`] in place of each secret.
    #[must_use]
    pub fn redacted(&self) -> Self {
        let mut shown = self.clone();
        if let Some(config) = &mut shown.config {
            let key = config.oidc_client_assertion.as_mut().and_then(|assertion| assertion.private_key.as_mut());
            let secrets = [Some(&mut config.oidc_client_secret), key.map(|key| &mut key.pem_key)];
            for secret in secrets.into_iter().flatten().filter(|secret| !secret.is_empty()) {
                *secret = REDACTED.into();
            }
        }
        shown
    }
}

/// A rule that gives logins of a method a role, a policy or everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct AclBindingRule {
    /// Id; a UUID.
    #[serde(rename = "ID")]
    pub id: Arc<str>,
    /// Free text.
    pub description: String,
    /// Name of the method.
    pub auth_method: Arc<str>,
    /// Which logins; empty = all of them.
    pub selector: String,
    /// `role`, `policy` or `management`.
    pub bind_type: String,
    /// Template of the name of the role or policy.
    pub bind_name: String,
    /// When it was made.
    pub create_time: GoTime,
    /// When it was last changed.
    pub modify_time: GoTime,
    /// Digest over what the rule says.
    pub hash: String,
    /// Index of its creation.
    pub create_index: StoreIndex,
    /// Index of its last change.
    pub modify_index: StoreIndex,
}

impl AclBindingRule {
    /// The digest over everything but times and indexes.
    #[must_use]
    pub fn digest(&self) -> String {
        hash_of(
            [&*self.id, &*self.description, &*self.auth_method, &*self.selector, &*self.bind_type, &*self.bind_name]
                .map(str::as_bytes),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_of_a_method_are_neither_shown_nor_logged() {
        let key = OidcClientAssertionKey { pem_key: "pem-of-mine".into(), ..OidcClientAssertionKey::default() };
        let assertion = OidcClientAssertion { private_key: Some(key), ..OidcClientAssertion::default() };
        let config = AclAuthMethodConfig {
            oidc_client_secret: "mine".into(),
            oidc_client_assertion: Some(assertion),
            ..AclAuthMethodConfig::default()
        };
        let method = AclAuthMethod { name: "m".into(), config: Some(config), ..AclAuthMethod::default() };
        let shown = serde_json::to_string(&method.redacted()).unwrap();
        assert!(!shown.contains("mine") && shown.matches("\"redacted\"").count() == 2, "{shown}");
        assert!(!format!("{method:?}").contains("mine"));
        let known: AclAuthMethod = serde_json::from_str(&serde_json::to_string(&method).unwrap()).unwrap();
        assert_eq!(known, method, "the record itself keeps them");
        assert_ne!(method.digest(), method.redacted().digest());
        assert_eq!(method.digest(), AclAuthMethod { modify_index: 3, ..method.clone() }.digest());
    }
}

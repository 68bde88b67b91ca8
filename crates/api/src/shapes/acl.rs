//! Access control: policies, tokens and roles as lists and answers show them.

use std::sync::Arc;

use model::{AclPolicy, AclToken, AclTokenRole, GoTime, JobAcl, OneTimeToken, Secret, StoreIndex, go_time};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// `PUT /v1/acl/bootstrap`; the whole body may be missing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct AclBootstrapRequest {
    /// The secret of the token, a UUID; empty = a new one.
    pub bootstrap_secret: Secret,
}

/// A policy in a list: without its rules.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct AclPolicyStub {
    /// Name.
    pub name: Arc<str>,
    /// Free text.
    pub description: String,
    /// Whose workload identities have it without a token.
    #[serde(rename = "JobACL")]
    pub job_acl: Option<JobAcl>,
    /// Digest over what the policy says.
    pub hash: String,
    /// Index of its creation.
    pub create_index: StoreIndex,
    /// Index of its last change.
    pub modify_index: StoreIndex,
}

impl From<&AclPolicy> for AclPolicyStub {
    fn from(policy: &AclPolicy) -> Self {
        Self {
            name: policy.name.clone(),
            description: policy.description.clone(),
            job_acl: policy.job_acl.clone(),
            hash: policy.hash.clone(),
            create_index: policy.create_index,
            modify_index: policy.modify_index,
        }
    }
}

/// A policy, with its rules also as the servers have read them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct AclPolicyView {
    /// The policy.
    #[serde(flatten)]
    pub policy: AclPolicy,
    /// The rules, with the capabilities that the shorthands stand for.
    #[serde(rename = "RulesJSON")]
    pub rules_json: Value,
}

/// A token in a list: without its secret.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct AclTokenStub {
    /// Public id.
    #[serde(rename = "AccessorID")]
    pub accessor_id: Arc<str>,
    /// Name for people.
    pub name: String,
    /// `client` or `management`.
    #[serde(rename = "Type")]
    pub kind: String,
    /// Names of policies.
    pub policies: Vec<String>,
    /// Roles.
    pub roles: Vec<AclTokenRole>,
    /// Nomad copies such a token to other regions.
    pub global: bool,
    /// Digest over what the token allows.
    pub hash: String,
    /// When it was made.
    pub create_time: GoTime,
    /// When it stops to be valid; unset = never.
    #[serde(serialize_with = "go_time::or_null")]
    pub expiration_time: GoTime,
    /// Index of its creation.
    pub create_index: StoreIndex,
    /// Index of its last change.
    pub modify_index: StoreIndex,
}

impl From<&AclToken> for AclTokenStub {
    fn from(token: &AclToken) -> Self {
        Self {
            accessor_id: token.accessor_id.clone(),
            name: token.name.clone(),
            kind: token.kind.clone(),
            policies: token.policies.clone(),
            roles: token.roles.clone(),
            global: token.global,
            hash: token.hash.clone(),
            create_time: token.create_time.clone(),
            expiration_time: token.expiration_time.clone(),
            create_index: token.create_index,
            modify_index: token.modify_index,
        }
    }
}

/// `PUT /v1/acl/token/onetime`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct OneTimeTokenMade {
    /// Index of its creation.
    pub index: StoreIndex,
    /// The one-time token.
    pub one_time_token: OneTimeToken,
}

/// `PUT /v1/acl/token/onetime/exchange`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct OneTimeTokenExchange {
    /// The secret of the one-time token.
    #[serde(rename = "OneTimeSecretID")]
    pub one_time_secret_id: Secret,
}

/// The token that a one-time token stands for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct OneTimeTokenExchanged {
    /// Index of the exchange.
    pub index: StoreIndex,
    /// The token, with its secret.
    pub token: AclToken,
}

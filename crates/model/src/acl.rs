//! Access control as the servers keep it: policies, roles, tokens and one-time tokens. Methods to log in and the rules
//! that bind logins are in [`crate::acl_login`]. What a policy allows is no matter of this crate: rules are text here.

use std::sync::Arc;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest as _, Sha256};

use crate::{
    go_duration::GoDuration,
    go_time::{self, GoTime},
    ids::StoreIndex,
    secret::Secret,
};

/// Name of the policy that requests without a token have, when it exists.
pub const ANONYMOUS: &str = "anonymous";

/// Name of the token that a bootstrap makes.
pub const BOOTSTRAP_NAME: &str = "Bootstrap Token";

/// A digest over parts, each with its length so that no two lists of parts are read as the same. Base64, as Go writes
/// bytes.
pub(crate) fn hash_of<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> String {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update((part.len() as u64).to_be_bytes());
        hasher.update(part);
    }
    STANDARD.encode(hasher.finalize())
}

/// A length of time as the API writes it for ACL objects: `"1h0m0s"`, and `""` for none. Nanoseconds are read as well.
pub mod ttl {
    use super::{Deserialize, Deserializer, GoDuration, Serializer};

    /// Writes `""` for zero.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(ttl: &GoDuration, s: S) -> Result<S::Ok, S::Error> {
        match *ttl {
            GoDuration::ZERO => s.serialize_str(""),
            ttl => s.collect_str(&ttl),
        }
    }

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Given {
        Nanos(i64),
        Text(String),
    }

    /// Reads text or nanoseconds; `""` is zero.
    ///
    /// # Errors
    /// When a text is no duration of Go.
    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<GoDuration, D::Error> {
        match Given::deserialize(d)? {
            Given::Nanos(ns) => Ok(GoDuration(ns)),
            Given::Text(text) if text.is_empty() => Ok(GoDuration::ZERO),
            Given::Text(text) => text.parse().map_err(serde::de::Error::custom),
        }
    }
}

/// A policy: a named set of rules.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct AclPolicy {
    /// Name.
    pub name: Arc<str>,
    /// Free text.
    pub description: String,
    /// The rules: HCL or JSON, as they were given.
    pub rules: String,
    /// Whose workload identities have it without a token; None = nobody's.
    #[serde(rename = "JobACL")]
    pub job_acl: Option<JobAcl>,
    /// Digest over what the policy says.
    pub hash: String,
    /// Index of its creation.
    pub create_index: StoreIndex,
    /// Index of its last change.
    pub modify_index: StoreIndex,
}

/// Allocations whose identities a policy is attached to. Each empty field names all there are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct JobAcl {
    /// Namespace of the job.
    pub namespace: String,
    /// Job; a dispatched or launched job counts as its parent.
    #[serde(rename = "JobID")]
    pub job_id: String,
    /// Task group.
    pub group: String,
    /// Task.
    pub task: String,
}

impl AclPolicy {
    /// The digest over everything but the indexes.
    #[must_use]
    pub fn digest(&self) -> String {
        let job = self.job_acl.as_ref();
        let of_job = |part: fn(&JobAcl) -> &String| job.map_or(&b""[..], |j| part(j).as_bytes());
        hash_of([
            self.name.as_bytes(),
            self.description.as_bytes(),
            self.rules.as_bytes(),
            of_job(|j| &j.namespace),
            of_job(|j| &j.job_id),
            of_job(|j| &j.group),
            of_job(|j| &j.task),
        ])
    }
}

/// What a token may do.
pub mod token_type {
    /// What its policies and roles allow.
    pub const CLIENT: &str = "client";
    /// Everything.
    pub const MANAGEMENT: &str = "management";
}

/// A token: who holds its secret may do what its policies and roles allow.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct AclToken {
    /// Public id; a UUID.
    #[serde(rename = "AccessorID")]
    pub accessor_id: Arc<str>,
    /// What requests show; a UUID. Lists and events leave it out.
    #[serde(rename = "SecretID")]
    pub secret_id: Secret,
    /// Name for people; need not be unique.
    pub name: String,
    /// One of [`token_type`].
    #[serde(rename = "Type")]
    pub kind: String,
    /// Names of policies. One that does not exist allows nothing.
    pub policies: Vec<String>,
    /// Roles.
    pub roles: Vec<AclTokenRole>,
    /// Nomad copies such a token to other regions. Kept and shown.
    pub global: bool,
    /// When it was made.
    pub create_time: GoTime,
    /// When it stops to be valid; unset = never.
    #[serde(serialize_with = "go_time::or_null")]
    pub expiration_time: GoTime,
    /// Its time to live as it was asked for; zero = none was.
    #[serde(rename = "ExpirationTTL", with = "ttl")]
    pub expiration_ttl: GoDuration,
    /// Digest over what the token allows.
    pub hash: String,
    /// Index of its creation.
    pub create_index: StoreIndex,
    /// Index of its last change.
    pub modify_index: StoreIndex,
}

/// A token's link to a role.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct AclTokenRole {
    /// Id of the role.
    #[serde(rename = "ID")]
    pub id: Arc<str>,
    /// Its name when the token was last read.
    pub name: String,
}

impl AclToken {
    /// Whether it allows everything.
    #[must_use]
    pub fn management(&self) -> bool {
        self.kind == token_type::MANAGEMENT
    }
    /// Whether it is no longer valid at this time, Unix ns.
    #[must_use]
    pub fn expired(&self, now: i64) -> bool {
        self.expiration_time.ns().is_some_and(|at| at <= now)
    }
    /// The digest over everything but the indexes, the secret and names of roles.
    #[must_use]
    pub fn digest(&self) -> String {
        let (global, roles) = ([u8::from(self.global)], self.roles.len().to_be_bytes());
        let head = [self.name.as_bytes(), self.kind.as_bytes(), &global, &roles];
        let roles = self.roles.iter().map(|role| role.id.as_bytes());
        hash_of(head.into_iter().chain(roles).chain(self.policies.iter().map(String::as_bytes)))
    }
    /// The token without its secret.
    #[must_use]
    pub fn redacted(&self) -> Self {
        Self { secret_id: Secret::default(), ..self.clone() }
    }
}

/// A role: a named list of policies.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct AclRole {
    /// Id; a UUID.
    #[serde(rename = "ID")]
    pub id: Arc<str>,
    /// Name, unique.
    pub name: String,
    /// Free text.
    pub description: String,
    /// Its policies.
    pub policies: Vec<AclRolePolicy>,
    /// Digest over what the role says.
    pub hash: String,
    /// Index of its creation.
    pub create_index: StoreIndex,
    /// Index of its last change.
    pub modify_index: StoreIndex,
}

/// A role's link to a policy.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct AclRolePolicy {
    /// Name of the policy.
    pub name: String,
}

impl AclRole {
    /// The digest over everything but id and indexes.
    #[must_use]
    pub fn digest(&self) -> String {
        let head = [self.name.as_bytes(), self.description.as_bytes()];
        hash_of(head.into_iter().chain(self.policies.iter().map(|policy| policy.name.as_bytes())))
    }
}

/// A secret that is exchanged once for the token of the one who has asked for it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct OneTimeToken {
    /// What the exchange shows; a UUID.
    #[serde(rename = "OneTimeSecretID")]
    pub one_time_secret_id: Secret,
    /// Accessor of the token that it is exchanged for.
    #[serde(rename = "AccessorID")]
    pub accessor_id: Arc<str>,
    /// When it stops to be valid.
    pub expires_at: GoTime,
    /// Index of its creation.
    pub create_index: StoreIndex,
    /// Index of its last change.
    pub modify_index: StoreIndex,
}

impl OneTimeToken {
    /// Whether it is no longer valid at this time, Unix ns.
    #[must_use]
    pub fn expired(&self, now: i64) -> bool {
        self.expires_at.ns().is_none_or(|at| at <= now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_has_nomads_names() {
        let token = AclToken {
            accessor_id: "a".into(),
            secret_id: "s".into(),
            kind: token_type::CLIENT.into(),
            policies: vec!["p".into()],
            roles: vec![AclTokenRole { id: "r".into(), name: "n".into() }],
            expiration_ttl: GoDuration::from_secs(3600),
            ..AclToken::default()
        };
        let json = serde_json::to_value(&token).unwrap();
        assert_eq!(
            json,
            serde_json::json!({
                "AccessorID": "a", "SecretID": "s", "Name": "", "Type": "client", "Policies": ["p"],
                "Roles": [{"ID": "r", "Name": "n"}], "Global": false, "CreateTime": "0001-01-01T00:00:00Z",
                "ExpirationTime": null, "ExpirationTTL": "1h0m0s", "Hash": "", "CreateIndex": 0, "ModifyIndex": 0,
            })
        );
        assert_eq!(serde_json::from_value::<AclToken>(json).unwrap(), token);
        for (given, ns) in [("\"\"", 0), ("\"90s\"", 90_000_000_000), ("5000000000", 5_000_000_000)] {
            let read: AclToken = serde_json::from_str(&format!("{{\"ExpirationTTL\":{given}}}")).unwrap();
            assert_eq!(read.expiration_ttl, GoDuration(ns), "{given}");
        }
        assert!(!format!("{token:?} {:?}", token.redacted()).contains("\"s\""), "secrets stay out of logs");
    }

    #[test]
    fn a_digest_tells_what_is_said_from_where_it_is_said() {
        let policy = |name: &str, description: &str| AclPolicy {
            name: name.into(),
            description: description.into(),
            ..AclPolicy::default()
        };
        assert_ne!(policy("ab", "c").digest(), policy("a", "bc").digest());
        assert_eq!(policy("a", "b").digest(), AclPolicy { modify_index: 9, ..policy("a", "b") }.digest());
        let token = |policies: &[&str]| AclToken {
            policies: policies.iter().map(|p| (*p).to_owned()).collect(),
            ..AclToken::default()
        };
        let of_role =
            AclToken { roles: vec![AclTokenRole { id: "a".into(), ..AclTokenRole::default() }], ..token(&[]) };
        assert_ne!(token(&["a"]).digest(), of_role.digest());
    }

    #[test]
    fn a_token_is_valid_until_its_time() {
        let token = AclToken { expiration_time: 10.into(), ..AclToken::default() };
        assert!(!token.expired(9) && token.expired(10) && !AclToken::default().expired(i64::MAX));
    }
}

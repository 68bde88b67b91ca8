//! Variables: small secrets and settings by path, which the servers keep encrypted.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{
    go_duration::GoDuration,
    ids::{Namespace, StoreIndex, TimestampNs},
    secret::Secret,
};

/// Where a variable is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VariableKey {
    /// Namespace.
    pub namespace: Namespace,
    /// Path within it.
    pub path: Arc<str>,
}

impl VariableKey {
    /// The variable at that path of a namespace.
    #[must_use]
    pub fn new(namespace: impl Into<Namespace>, path: &str) -> Self {
        Self { namespace: namespace.into(), path: Arc::from(path) }
    }
}

/// A lock that somebody holds on a variable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct VariableLock {
    /// What its holder shows: whoever knows it holds the lock.
    #[serde(rename = "ID")]
    pub id: Secret,
    /// The holder has to renew it within twice that time.
    #[serde(rename = "TTL")]
    pub ttl: GoDuration,
    /// How long nobody gets the lock after that.
    pub lock_delay: GoDuration,
}

/// A variable as the state has it: its items are encrypted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Variable {
    /// Namespace.
    pub namespace: Namespace,
    /// Path.
    pub path: Arc<str>,
    /// The root key that its items are encrypted with.
    #[serde(rename = "KeyID")]
    pub key_id: Uuid,
    /// The items: nonce, ciphertext and tag of AES-256-GCM, base64.
    pub data: String,
    /// Index of its creation.
    pub create_index: StoreIndex,
    /// When it was created, Unix ns.
    pub create_time: TimestampNs,
    /// Index of its last change.
    pub modify_index: StoreIndex,
    /// When it was last changed, Unix ns.
    pub modify_time: TimestampNs,
    /// The lock, while somebody holds one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lock: Option<VariableLock>,
}

impl Variable {
    /// Where it is.
    #[must_use]
    pub fn key(&self) -> VariableKey {
        VariableKey { namespace: self.namespace.clone(), path: self.path.clone() }
    }
}

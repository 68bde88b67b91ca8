//! What templates ask of Vault.

use std::{collections::BTreeMap, fmt};

/// A secret that a template asks for.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SecretQuery {
    /// Its path, as the template has it.
    pub path: String,
    /// What is written there to get it; empty = it is read.
    pub data: BTreeMap<String, String>,
}

/// Without the values that are written: they may be secret.
impl fmt::Debug for SecretQuery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&String> = self.data.keys().collect();
        f.debug_struct("SecretQuery").field("path", &self.path).field("data", &names).finish()
    }
}

/// A secret.
#[derive(Clone, Default, PartialEq)]
pub struct SecretData {
    /// Id of its lease; empty = it has none.
    pub lease_id: String,
    /// Length of the lease in seconds, as Vault said when the secret was read.
    pub lease_seconds: u64,
    /// The lease may be renewed.
    pub renewable: bool,
    /// What it holds.
    pub data: serde_json::Map<String, serde_json::Value>,
    /// What Vault has said of the request.
    pub warnings: Vec<String>,
}

impl Eq for SecretData {}

/// Without what it holds.
impl fmt::Debug for SecretData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SecretData").field("data", &self.data.len()).finish_non_exhaustive()
    }
}

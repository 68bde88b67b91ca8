//! What Vault answers, as far as a node needs it.

use std::time::Duration;

use model::Secret;
use serde::Deserialize;
use serde_json::Value;

/// What `sys/health` says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Health {
    /// It has been set up.
    pub initialized: bool,
    /// It cannot read its own storage yet.
    pub sealed: bool,
    /// Version of the server.
    pub version: String,
    /// Name of the cluster; empty while it is sealed.
    pub cluster_name: String,
    /// Id of the cluster; empty while it is sealed.
    pub cluster_id: String,
}

/// A token that Vault has given or renewed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Granted {
    /// The token; empty where a renewal does not repeat it.
    pub token: Secret,
    /// How long it is valid from now on; zero = until it is revoked.
    pub lease: Duration,
    /// It may be renewed.
    pub renewable: bool,
}

/// A secret.
#[derive(Clone, Default, PartialEq)]
pub struct Reading {
    /// Id of its lease; empty: there is none, it lasts until somebody changes it.
    pub lease_id: String,
    /// How long it is valid from now on, or how long it is good to keep it; may be zero.
    pub lease: Duration,
    /// Its lease may be renewed.
    pub renewable: bool,
    /// What it holds.
    pub data: serde_json::Map<String, Value>,
    /// What Vault says of the request.
    pub warnings: Vec<String>,
}

/// Without what it holds.
impl std::fmt::Debug for Reading {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reading")
            .field("lease", &self.lease)
            .field("renewable", &self.renewable)
            .finish_non_exhaustive()
    }
}

/// Where a secrets engine is mounted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mount {
    /// Its path, with a slash at its end.
    pub path: String,
    /// It is version 2 of the key-value engine.
    pub versioned: bool,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct Body {
    lease_id: Option<String>,
    lease_duration: Option<u64>,
    renewable: Option<bool>,
    data: Option<Value>,
    warnings: Option<Vec<String>>,
    auth: Option<Auth>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Auth {
    client_token: Secret,
    lease_duration: u64,
    renewable: bool,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct MountBody {
    path: String,
    #[serde(rename = "type")]
    kind: String,
    options: Option<serde_json::Map<String, Value>>,
}

/// Reads a body; the error says what is wrong with it and nothing of its content.
pub(crate) fn body(bytes: &[u8]) -> Result<Body, String> {
    // The messages of the reader quote what they do not expect, which may be a secret.
    serde_json::from_slice(bytes)
        .map_err(|e| format!("the answer is not what Vault's API describes (line {} column {})", e.line(), e.column()))
}

impl Body {
    /// The token of a login or renewal.
    pub(crate) fn granted(self) -> Result<Granted, String> {
        let auth = self.auth.ok_or("the answer holds no token")?;
        let lease = Duration::from_secs(auth.lease_duration);
        Ok(Granted { token: auth.client_token, lease, renewable: auth.renewable })
    }

    /// A secret; `None`: it holds nothing, as a deleted version does.
    pub(crate) fn reading(self) -> Option<Reading> {
        let Some(Value::Object(data)) = self.data else { return None };
        // A deleted version of a versioned secret still has its metadata.
        if data.get("data").is_some_and(Value::is_null) && data.contains_key("metadata") {
            return None;
        }
        Some(Reading {
            lease_id: self.lease_id.unwrap_or_default(),
            lease: Duration::from_secs(self.lease_duration.unwrap_or(0)),
            renewable: self.renewable.unwrap_or(false),
            data,
            warnings: self.warnings.unwrap_or_default(),
        })
    }

    /// The lease of a renewal.
    pub(crate) fn lease(&self) -> (Duration, bool) {
        (Duration::from_secs(self.lease_duration.unwrap_or(0)), self.renewable.unwrap_or(false))
    }

    /// The names of a list.
    pub(crate) fn keys(self) -> Vec<String> {
        let keys = self.data.and_then(|mut data| data.get_mut("keys").map(Value::take));
        serde_json::from_value(keys.unwrap_or_default()).unwrap_or_default()
    }

    /// Where the path is mounted.
    pub(crate) fn mount(self) -> Option<Mount> {
        let body: MountBody = serde_json::from_value(self.data?).ok()?;
        let version = body.options.as_ref().and_then(|o| o.get("version")).and_then(Value::as_str);
        let versioned = body.kind == "kv" && version == Some("2");
        Some(Mount { path: body.path, versioned }).filter(|mount| !mount.path.is_empty())
    }
}

/// The errors of an answer, for people: bounded, and only what Vault calls errors.
pub(crate) fn errors(status: http::StatusCode, bytes: &[u8]) -> String {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Errors {
        errors: Vec<String>,
    }
    let said: Errors = serde_json::from_slice(bytes).unwrap_or_default();
    let said: Vec<String> =
        said.errors.iter().take(3).map(|e| e.trim().replace('\n', " ").chars().take(200).collect()).collect();
    if said.is_empty() { status.to_string() } else { format!("{} ({})", said.join("; "), status.as_u16()) }
}

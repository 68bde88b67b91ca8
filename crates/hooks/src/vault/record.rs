//! The recorded token of Vault that a task on this node has.

use std::{io, path::Path, time::Duration};

use model::Secret;
use serde::{Deserialize, Serialize};
use vault::{Caller, Granted, lease::Life};

use crate::files::{Look, Root};

/// Where the node keeps it, below the task's directory.
const RECORD: &str = "private/vault.json";

/// A token of a task; times by this node's clock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Held {
    pub(super) token: Secret,
    /// The namespace that it belongs to.
    pub(super) namespace: String,
    pub(super) since_ns: i64,
    pub(super) lease_seconds: u64,
    pub(super) first_seconds: u64,
    pub(super) renewable: bool,
    /// The change that the job asks for with a new token has not been made yet.
    pub(super) untold: bool,
}

impl Held {
    /// A new token.
    pub(super) fn new(granted: Granted, namespace: String, now: i64) -> Self {
        let lease = granted.lease.as_secs();
        Self {
            token: granted.token,
            namespace,
            since_ns: now,
            lease_seconds: lease,
            first_seconds: lease,
            renewable: granted.renewable,
            untold: false,
        }
    }

    /// The same token after a renewal.
    pub(super) fn renewed(&self, granted: &Granted, now: i64) -> Self {
        let life = self.life().renewed(now, granted.lease, granted.renewable);
        Self { since_ns: life.since_ns, lease_seconds: life.lease.as_secs(), renewable: life.renewable, ..self.clone() }
    }

    pub(super) fn life(&self) -> Life {
        Life {
            since_ns: self.since_ns,
            lease: Duration::from_secs(self.lease_seconds),
            first: Duration::from_secs(self.first_seconds),
            renewable: self.renewable,
        }
    }

    pub(super) fn caller(&self) -> Caller {
        Caller { token: self.token.clone(), namespace: self.namespace.clone() }
    }
}

/// Reads the record; `None` when it is missing or damaged. Blocking.
pub(super) fn load(task_dir: &Path) -> Option<Held> {
    let (bytes, _) = Root::open(task_dir).and_then(|root| root.read(Path::new(RECORD))).ok()?;
    serde_json::from_slice(&bytes).ok().filter(|held: &Held| !held.token.is_empty())
}

/// Writes the record atomically, readable by the agent only. Blocking.
pub(super) fn save(task_dir: &Path, held: &Held) -> io::Result<()> {
    let look = Look { mode: 0o600, uid: None, gid: None };
    Root::open(task_dir)?.write(Path::new(RECORD), &serde_json::to_vec(held).unwrap_or_default(), look).map(drop)
}

/// The token alone. Blocking.
pub(crate) fn token(task_dir: &Path) -> Option<String> {
    load(task_dir).map(|held| held.token.reveal().to_owned())
}

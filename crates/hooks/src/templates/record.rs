//! The node's record of a task's templates, by which the next agent sees changes.

use std::{collections::BTreeMap, io, path::Path};

use serde::{Deserialize, Serialize};

use crate::files::{Look, Root};

/// One template: its last result that has had its effect.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Applied {
    /// Digest of the content.
    pub(super) digest: String,
    /// The time of that rendering, in Unix nanoseconds: with it, the same inputs give the same content.
    pub(super) now_ns: i64,
    /// The script for the first rendering has run for the present start.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) begun: bool,
}

/// Records by template name.
pub(super) type Applications = BTreeMap<String, Applied>;

const FILE: &str = "private/templates.json";

/// Reads the record. Empty when the file is missing or damaged; then the present files count as applied. Blocking.
pub(super) fn load(task_dir: &Path) -> Applications {
    let read = Root::open(task_dir).and_then(|root| root.read(Path::new(FILE)));
    read.ok().and_then(|(bytes, _)| serde_json::from_slice(&bytes).ok()).unwrap_or_default()
}

/// Writes the record atomically. Blocking.
pub(super) fn save(task_dir: &Path, applied: &Applications) -> io::Result<()> {
    let look = Look { mode: 0o600, uid: None, gid: None };
    Root::open(task_dir)?.write(Path::new(FILE), &serde_json::to_vec(applied).unwrap_or_default(), look).map(drop)
}

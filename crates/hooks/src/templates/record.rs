//! What the node remembers of a task's templates, so that the next agent knows whether anything has changed.

use std::{collections::BTreeMap, io, path::Path};

use serde::{Deserialize, Serialize};

use crate::files::{Look, Root};

/// One template: what was rendered last and has had its effect.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Applied {
    /// Of the content.
    pub(super) digest: String,
    /// The time that it was rendered with: the same inputs give the same content.
    pub(super) now_ns: i64,
}

/// By name of the template.
pub(super) type Applications = BTreeMap<String, Applied>;

const FILE: &str = "private/templates.json";

/// What is known; nothing when the file is missing or damaged, which means that everything counts as it is. Blocking.
pub(super) fn load(task_dir: &Path) -> Applications {
    let read = Root::open(task_dir).and_then(|root| root.read(Path::new(FILE)));
    read.ok().and_then(|(bytes, _)| serde_json::from_slice(&bytes).ok()).unwrap_or_default()
}

/// Puts it in place, whole or not at all. Blocking.
pub(super) fn save(task_dir: &Path, applied: &Applications) -> io::Result<()> {
    let look = Look { mode: 0o600, uid: None, gid: None };
    Root::open(task_dir)?.write(Path::new(FILE), &serde_json::to_vec(applied).unwrap_or_default(), look).map(drop)
}

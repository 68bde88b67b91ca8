//! Which driver a plugin serves, remembered over any end of the agent: tasks are recovered by the plugin that
//! started them, however long it takes to come up. Without this, the first of two plugins that serve a driver would
//! be asked about the tasks of the other, and would know none.

use std::{
    io::{self, Write},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

const SUFFIX: &str = ".serves.json";

/// What a plugin was granted last.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Serves {
    pub(crate) driver: String,
    /// The version that it was granted for.
    version: String,
}

impl Serves {
    pub(crate) fn new(driver: &str, version: &semver::Version) -> Self {
        Self { driver: driver.to_owned(), version: version.to_string() }
    }

    /// The lowest where it cannot be read.
    pub(crate) fn version(&self) -> semver::Version {
        self.version.parse().unwrap_or(semver::Version::new(0, 0, 0))
    }
}

fn path(dir: &Path, plugin: &str) -> PathBuf {
    dir.join(format!("{plugin}{SUFFIX}"))
}

/// What the plugin served last; a damaged file counts as none.
pub(crate) fn load(dir: &Path, plugin: &str) -> Option<Serves> {
    serde_json::from_slice(&std::fs::read(path(dir, plugin)).ok()?).ok()
}

/// Writes so that a crash leaves the old or the new answer; nothing is written that is there already.
pub(crate) fn save(dir: &Path, plugin: &str, serves: &Serves) -> io::Result<()> {
    if load(dir, plugin).as_ref() == Some(serves) {
        return Ok(());
    }
    let target = path(dir, plugin);
    let draft = target.with_extension("draft");
    let mut file = std::fs::File::create(&draft)?;
    file.write_all(&serde_json::to_vec(serves)?)?;
    file.sync_all()?;
    std::fs::rename(&draft, &target)
}

/// The plugin serves nothing any more.
pub(crate) fn remove(dir: &Path, plugin: &str) {
    let _ = std::fs::remove_file(path(dir, plugin));
}

/// Names of the plugins that have served something.
pub(crate) fn recorded(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.strip_suffix(SUFFIX).map(str::to_owned)).collect()
}

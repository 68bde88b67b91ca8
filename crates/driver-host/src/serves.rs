//! The driver that a plugin serves, stored over any end of the agent. Only the plugin that started a task can recover
//! it, however slowly it comes up. Otherwise the first of two plugins with one driver would be asked about the other's
//! tasks and know none.

use std::{io, path::Path};

use serde::{Deserialize, Serialize};

use crate::records::Records;

const RECORDS: Records = Records(".serves.json");

/// A plugin's last grant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Serves {
    pub(crate) driver: String,
    /// The plugin's version at the grant.
    version: String,
}

impl Serves {
    pub(crate) fn new(driver: &str, version: &semver::Version) -> Self {
        Self { driver: driver.to_owned(), version: version.to_string() }
    }

    /// The lowest version if it is unreadable.
    pub(crate) fn version(&self) -> semver::Version {
        self.version.parse().unwrap_or(semver::Version::new(0, 0, 0))
    }
}

/// The plugin's last grant; a damaged file counts as none.
pub(crate) fn load(dir: &Path, plugin: &str) -> Option<Serves> {
    RECORDS.load(dir, plugin)
}

/// Writes atomically; writes nothing if it is unchanged.
pub(crate) fn save(dir: &Path, plugin: &str, serves: &Serves) -> io::Result<()> {
    if load(dir, plugin).as_ref() == Some(serves) {
        return Ok(());
    }
    RECORDS.save(dir, plugin, serves)
}

/// Deletes the plugin's grant.
pub(crate) fn remove(dir: &Path, plugin: &str) {
    RECORDS.remove(dir, plugin);
}

/// Names of the plugins with a grant.
pub(crate) fn recorded(dir: &Path) -> Vec<String> {
    RECORDS.plugins(dir)
}

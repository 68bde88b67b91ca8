//! Records of plugins, one file for each. A crash of the agent or the machine leaves the old record or the new one.

use std::{
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use serde::{Serialize, de::DeserializeOwned};

/// One kind of record. The suffix of its file names identifies it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Records(pub(crate) &'static str);

impl Records {
    fn path(self, dir: &Path, plugin: &str) -> PathBuf {
        dir.join(format!("{plugin}{}", self.0))
    }

    /// The record of a plugin; a damaged one counts as none.
    pub(crate) fn load<T: DeserializeOwned>(self, dir: &Path, plugin: &str) -> Option<T> {
        serde_json::from_slice(&std::fs::read(self.path(dir, plugin)).ok()?).ok()
    }

    /// Replaces the record of a plugin.
    pub(crate) fn save(self, dir: &Path, plugin: &str, record: &impl Serialize) -> io::Result<()> {
        let target = self.path(dir, plugin);
        let draft = target.with_extension("draft");
        let mut file = std::fs::File::create(&draft)?;
        file.write_all(&serde_json::to_vec_pretty(record)?)?;
        file.sync_all()?;
        std::fs::rename(&draft, &target)
    }

    /// Forgets a plugin.
    pub(crate) fn remove(self, dir: &Path, plugin: &str) {
        let _ = std::fs::remove_file(self.path(dir, plugin));
    }

    /// Names of all plugins that have a record, damaged or not.
    pub(crate) fn plugins(self, dir: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().to_str()?.strip_suffix(self.0).map(str::to_owned)).collect()
    }
}

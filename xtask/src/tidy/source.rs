//! The texts of the tree.

use std::{fs, path::PathBuf};

use anyhow::{Context as _, Result};

use crate::workspace;

/// A file of the tree.
pub(super) struct Source {
    /// Path from the root, with slashes.
    pub(super) path: String,
    pub(super) text: String,
}

impl Source {
    #[cfg(test)]
    pub(super) fn new(path: &str, text: &str) -> Self {
        Self { path: path.into(), text: text.into() }
    }
    pub(super) fn is(&self, extension: &str) -> bool {
        self.path.rsplit('.').next() == Some(extension)
    }
}

/// Texts that people write, below the root; nothing that is built.
pub(super) fn sources() -> Result<Vec<Source>> {
    const KINDS: &[&str] = &["rs", "md", "py", "go", "sh", "hcl", "toml"];
    let root = workspace::root();
    let (mut dirs, mut found) = (vec![PathBuf::new()], Vec::new());
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(root.join(&dir))? {
            let entry = entry?;
            let name = entry.file_name();
            let path = dir.join(&name);
            let kind = entry.file_type()?;
            if kind.is_dir() {
                let built = name == "target"
                    || name == "corpus"
                    || name == "artifacts"
                    || name.to_string_lossy().starts_with('.');
                dirs.extend((!built).then_some(path));
            } else if kind.is_file() && path.extension().and_then(|e| e.to_str()).is_some_and(|e| KINDS.contains(&e)) {
                let text = fs::read_to_string(entry.path())?;
                found.push(Source { path: path.to_string_lossy().into_owned(), text });
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

pub(super) fn read(path: &str) -> Result<String> {
    fs::read_to_string(workspace::root().join(path)).with_context(|| format!("could not read {path}"))
}

//! The workspace itself: its root, its packages.

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::process::Run;

/// The root of the workspace.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}

/// What `cargo metadata` says of our own packages.
pub(crate) fn metadata() -> Result<serde_json::Value> {
    let out =
        Run::new("cargo", ["metadata", "--format-version", "1", "--no-deps", "--offline"]).dir(root()).output()?;
    Ok(serde_json::from_str(&out)?)
}

/// Directories of our packages, from the root.
pub(crate) fn members() -> Result<Vec<String>> {
    let metadata = metadata()?;
    let manifests =
        metadata["packages"].as_array().into_iter().flatten().filter_map(|package| package["manifest_path"].as_str());
    let dirs = manifests.filter_map(|manifest| {
        Path::new(manifest).parent()?.strip_prefix(root()).ok().map(|dir| dir.display().to_string())
    });
    Ok(dirs.collect())
}

//! The workspace itself: its root, its packages, its lints.

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::process::Run;

/// The root of the workspace.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}

/// What `cargo metadata` says of our own packages.
#[cfg(test)]
pub(crate) fn metadata() -> Result<serde_json::Value> {
    let out = Run::new("cargo", ["metadata", "--format-version", "1", "--no-deps", "--offline"]).dir(root()).output()?;
    Ok(serde_json::from_str(&out)?)
}

/// Formatting, clippy, supply chain.
pub(crate) fn lint() -> Result<()> {
    let root = root();
    Run::new("cargo", ["fmt", "--all", "--check"]).dir(&root).run()?;
    Run::new("cargo", ["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]).dir(&root).run()?;
    if !Run::new("cargo", ["deny", "--version"]).dir(&root).succeeds() {
        eprintln!("xtask: cargo-deny is missing, installing it");
        Run::new("cargo", ["install", "--locked", "cargo-deny"]).dir(&root).run()?;
    }
    // It looks at the crates of every platform; a cache that has only built for this one lacks some.
    Run::new("cargo", ["fetch", "--locked"]).dir(&root).run()?;
    // The advisory database lives outside the package registries: it is checked where it can be fetched, and said where it cannot.
    Run::new("cargo", ["deny", "--offline", "check", "bans", "licenses", "sources"]).dir(&root).run()?;
    if !Run::new("cargo", ["deny", "check", "advisories"]).dir(&root).quiet().succeeds() {
        eprintln!(
            "xtask: advisories were not checked (the advisory database could not be fetched, or it has findings: run `cargo deny check advisories`)"
        );
    }
    Ok(())
}

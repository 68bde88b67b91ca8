//! Programs with tests, as cargo builds them.

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::{process::Run, workspace};

/// A test program.
pub(crate) struct TestProgram {
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    /// Its package's directory, where it is to be run.
    pub(crate) dir: PathBuf,
}

/// Builds the test programs that these words of `cargo test` choose.
pub(crate) fn build<'a>(chosen: impl IntoIterator<Item = &'a str>) -> Result<Vec<TestProgram>> {
    let args = ["test", "--no-run", "--message-format=json"].into_iter().chain(chosen);
    let lines = Run::new("cargo", args).dir(workspace::root()).output()?;
    let mut found = Vec::new();
    for line in lines.lines() {
        let Ok(message) = serde_json::from_str::<serde_json::Value>(line) else { continue };
        let (Some(path), true) = (message["executable"].as_str(), message["profile"]["test"] == true) else { continue };
        let manifest = Path::new(message["manifest_path"].as_str().unwrap_or_default());
        found.push(TestProgram {
            name: message["target"]["name"].as_str().unwrap_or_default().to_owned(),
            path: path.into(),
            dir: manifest.parent().map_or_else(workspace::root, Path::to_owned),
        });
    }
    Ok(found)
}

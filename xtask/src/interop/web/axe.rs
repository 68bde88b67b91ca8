//! What axe-core, the checker of accessibility of others, says of a page.

use std::{fmt::Write as _, fs};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::page::Page;
use crate::{
    local,
    packages::{self, Wanted},
    peer::cached,
    process::Run,
};

const VERSION: &str = "4.14.1";
/// SHA-256 of `axe.min.js` in that release.
const HASH: &str = "29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c";

/// Levels A and AA of WCAG 2.2.
const RUN: &str = "axe.run(document, {runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa'], \
    resultTypes: ['violations']}).then((r) => r.violations.map((v) => [v.id, v.help, v.nodes.slice(0, 3) \
    .map((n) => n.html.slice(0, 200))]))";

/// The checker, from the registry of npm.
pub(super) fn source() -> Result<String> {
    packages::need(&[Wanted::new("npm", "npm")])?;
    let file = local::peers()?.join(format!("axe-core-{VERSION}.js"));
    let file = cached(&file, |out| {
        let dir = out.with_extension("unpacked");
        fs::create_dir_all(&dir)?;
        // Silent, it would not say why a registry did not answer.
        Run::new("npm", ["pack", "--loglevel=error", &format!("axe-core@{VERSION}")]).dir(&dir).run_patiently()?;
        let packed = format!("axe-core-{VERSION}.tgz");
        Run::new("tar", ["xzf", packed.as_str(), "package/axe.min.js"]).dir(&dir).run()?;
        fs::rename(dir.join("package/axe.min.js"), out)?;
        Ok(fs::remove_dir_all(dir)?)
    })?;
    let text = fs::read_to_string(&file)?;
    let hash: String = Sha256::digest(&text).iter().fold(String::new(), |mut hash, byte| {
        let _ = write!(hash, "{byte:02x}");
        hash
    });
    ensure!(hash == HASH, "{} is not axe-core {VERSION}: its SHA-256 is {hash}", file.display());
    Ok(text)
}

/// Fails when the page that is shown has something that not everybody can use.
pub(super) fn check(page: &mut Page, source: &str, name: &str) -> Result<()> {
    if page.eval("typeof axe")? == "undefined" {
        page.eval(&format!("{source};true"))?;
    }
    let found = page.eval(RUN)?;
    let found = found.as_array().context("a list of violations")?;
    let told = |violation: &Value| format!("{}: {}\n    {}", violation[0], violation[1], violation[2]);
    let all: Vec<String> = found.iter().map(told).collect();
    ensure!(all.is_empty(), "{name} is not for everybody:\n  {}", all.join("\n  "));
    Ok(())
}

//! The golden cases of our crates, played again by Go: what is recorded is still what the libraries of Nomad do.

use std::fs;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::{
    packages,
    peer::{self, GoProgram},
    process::Run,
    workspace,
};

/// Templates.
pub(crate) fn templates() -> Result<()> {
    same(&peer::GO_TEMPLATES)
}

/// Cron expressions.
pub(crate) fn cron() -> Result<()> {
    same(&peer::GO_CRON)
}

fn same(program: &GoProgram) -> Result<()> {
    packages::need_go()?;
    let golden = workspace::root().join(program.from);
    let now = std::env::temp_dir().join(format!("drover-{}.{}.json", program.name, std::process::id()));
    let program = program.cached()?;
    Run::new(program, [golden.join("cases.txt"), now.clone()]).run()?;
    let read = |path: &std::path::Path| -> Result<Value> {
        let text = fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
        serde_json::from_str(&text).with_context(|| format!("{} is not JSON", path.display()))
    };
    let (recorded, rendered) = (read(&golden.join("golden.json")), read(&now));
    fs::remove_file(&now).with_context(|| format!("remove {}", now.display()))?;
    let (recorded, rendered) = (recorded?, rendered?);
    let cases = |v: &Value| v["Cases"].as_array().cloned().unwrap_or_default();
    let (recorded, rendered) = (cases(&recorded), cases(&rendered));
    ensure!(!rendered.is_empty(), "the Go program has no cases");
    let changed: Vec<String> =
        recorded.iter().zip(&rendered).filter(|(a, b)| a != b).map(|(a, b)| format!("{a}\n  now {b}")).collect();
    if recorded.len() != rendered.len() || !changed.is_empty() {
        bail!(
            "golden.json holds {} cases, Go has {}; {} differ. If cases.txt was changed, write golden.json again \
                with generate.go.\n{}",
            recorded.len(),
            rendered.len(),
            changed.len(),
            changed.join("\n")
        );
    }
    Ok(())
}

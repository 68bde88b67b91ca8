//! Configuration files: HCL (as Nomad reads it: HCL 1) or JSON, a path or a directory of them, merged in order.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value, json};

use super::{config::merge, rules};

/// Blocks below which everything belongs to somebody else: kept as lists of maps, the form that driver schemas read.
const FOREIGN: &[&str] = &["config"];

/// Reads and merges files and directories.
pub(crate) fn load(paths: &[PathBuf]) -> Result<Value> {
    let mut tree = json!({});
    for path in paths {
        must_exist(path)?;
        let mut files = vec![path.clone()];
        if path.is_dir() {
            files = fs::read_dir(path)
                .with_context(|| format!("could not read the directory {}", path.display()))?
                .flatten()
                .map(|e| e.path())
                .filter(|p| p.extension().is_some_and(|e| e == "hcl" || e == "json") && !left_by_an_editor(p))
                .collect();
            files.sort();
        }
        for file in files {
            merge(&mut tree, read(&file)?);
        }
    }
    Ok(tree)
}

/// Editors keep what is being written under such names.
fn left_by_an_editor(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(['.', '#']))
}

fn read(file: &Path) -> Result<Value> {
    let text = fs::read_to_string(file).with_context(|| format!("could not read {}", file.display()))?;
    let name = file.display().to_string();
    let source = hcl_lang::Source::new(&name, &text);
    let findings = match hcl_lang::hcl1::parse(&source) {
        Ok(object) => {
            let findings = rules::findings(&source, &object);
            if findings.is_empty() {
                return flattened(object.to_json()).context(name);
            }
            hcl_lang::tidy(findings)
        }
        Err(finding) => vec![finding],
    };
    Err(crate::failure::of_findings(&findings))
}

fn flattened(tree: Value) -> Result<Value> {
    let Value::Object(map) = tree else { bail!("the configuration must be an object") };
    flatten(map, &mut Vec::new())
}

/// HCL repeats blocks as lists of maps. Here every block is one map: repeated ones are merged, labels become keys.
fn flatten(map: Map<String, Value>, path: &mut Vec<String>) -> Result<Value> {
    let mut out = Map::new();
    for (key, value) in map {
        path.push(key.clone());
        let foreign = FOREIGN.contains(&key.as_str()) && path.len() > 1;
        let value = match value {
            Value::Array(items) if foreign => items.into_iter().next_back().unwrap_or(Value::Null),
            value if foreign => value,
            Value::Array(items) if !items.is_empty() && items.iter().all(Value::is_object) => {
                let mut merged = json!({});
                for item in items {
                    if let Value::Object(item) = item {
                        merge(&mut merged, flatten(item, path)?);
                    }
                }
                merged
            }
            Value::Object(inner) => flatten(inner, path)?,
            other => other,
        };
        path.pop();
        out.insert(key, value);
    }
    Ok(Value::Object(out))
}

/// A path that was given is there; the error says which flag named it.
fn must_exist(path: &Path) -> Result<()> {
    if !path.exists() {
        bail!("-config {}: no such file or directory", path.display());
    }
    Ok(())
}

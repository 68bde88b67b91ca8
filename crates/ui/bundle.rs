//! The own modules of the web UI as one file: a browser that asks for each of them alone waits for each of them.
//!
//! The modules keep to a small part of the language, and whatever is outside it ends the build: imports and exports
//! by name, each on a line of its own, and no circles. So a module becomes a function that returns what it exports.

use std::collections::{BTreeMap, BTreeSet};

/// The module `entry` with all that it imports. `read` gives the text of a module by its path; those below `vendor/`
/// stay files of their own, and the browser gets them beside the bundle.
///
/// # Errors
/// A sentence about the line that the bundle cannot express.
pub(crate) fn bundle(entry: &str, read: &dyn Fn(&str) -> Option<String>) -> Result<Bundle, String> {
    let mut bundle = Bundle::default();
    let mut scripts = String::new();
    add(entry, read, &mut Vec::new(), &mut bundle, &mut scripts)?;
    for (file, imported) in &bundle.vendored {
        if let Some(name) = &imported.whole {
            bundle.text.push_str(&format!("import {name} from \"./{file}\";\n"));
        }
        if !imported.names.is_empty() {
            let names: Vec<&str> = imported.names.iter().map(String::as_str).collect();
            bundle.text.push_str(&format!("import {{ {} }} from \"./{file}\";\n", names.join(", ")));
        }
    }
    bundle.text.push_str(&scripts);
    Ok(bundle)
}

/// Modules as one.
#[derive(Debug, Default)]
pub(crate) struct Bundle {
    /// The text.
    pub(crate) text: String,
    /// The paths of the modules in it, each after those that it imports.
    pub(crate) modules: Vec<String>,
    /// What is imported of files below `vendor/`.
    vendored: BTreeMap<String, Imported>,
}

/// What modules import of a file.
#[derive(Debug, Default)]
struct Imported {
    /// What they call its default.
    whole: Option<String>,
    names: BTreeSet<String>,
}

fn add(
    path: &str,
    read: &dyn Fn(&str) -> Option<String>,
    above: &mut Vec<String>,
    bundle: &mut Bundle,
    scripts: &mut String,
) -> Result<(), String> {
    if bundle.modules.iter().any(|module| module == path) {
        return Ok(());
    }
    if above.iter().any(|module| module == path) {
        return Err(format!(
            "{path} imports itself by way of {}: move what both need to a third module",
            above.join(", ")
        ));
    }
    let text = read(path).ok_or_else(|| format!("{path} is imported and does not exist"))?;
    above.push(path.to_owned());
    let (mut body, mut exports) = (String::new(), Vec::new());
    for (n, line) in text.lines().enumerate() {
        let wrong = |why: &str| format!("web/{path}:{}: {why}: {line}", n + 1);
        if line.starts_with("import ") {
            let (what, from) = import(line).ok_or_else(|| wrong("an import is one line, by name, from a file"))?;
            let from = resolve(path, from).ok_or_else(|| wrong("a file outside web/"))?;
            if from.starts_with("vendor/") {
                let of_file = bundle.vendored.entry(from).or_default();
                match what.strip_prefix('{').and_then(|names| names.strip_suffix('}')) {
                    Some(names) => of_file.names.extend(names.split(',').map(|name| name.trim().to_owned())),
                    None if of_file.whole.as_deref().is_none_or(|name| name == what) => {
                        of_file.whole = Some(what.to_owned());
                    }
                    None => return Err(wrong("another module calls it by another name")),
                }
                continue;
            }
            if !what.starts_with('{') {
                return Err(wrong("own modules are imported by name"));
            }
            add(&from, read, above, bundle, scripts)?;
            body.push_str(&format!("const {what} = {};\n", variable(&from)));
        } else if let Some(rest) = line.strip_prefix("export ") {
            exports.push(declared(rest).ok_or_else(|| wrong("an export is a function, a class or one const"))?);
            body.push_str(rest);
            body.push('\n');
        } else {
            body.push_str(line);
            body.push('\n');
        }
    }
    above.pop();
    // Of files beside the bundle it is the bundle that is asked for them.
    let body = body.replace("\"../vendor/", "\"./vendor/");
    if above.is_empty() {
        scripts.push_str(&format!("// {path}\n{body}"));
    } else {
        let exports = exports.join(", ");
        scripts.push_str(&format!(
            "// {path}\nconst {} = (() => {{\n{body}return {{ {exports} }};\n}})();\n",
            variable(path)
        ));
    }
    bundle.modules.push(path.to_owned());
    Ok(())
}

/// What a line imports, and from where.
fn import(line: &str) -> Option<(&str, &str)> {
    let (what, from) = line.strip_prefix("import ")?.split_once(" from ")?;
    let from = from.strip_prefix('"')?.strip_suffix("\";")?;
    (!what.contains(" as ") && !what.contains('*')).then_some((what, from))
}

/// The name that a line declares.
fn declared(line: &str) -> Option<&str> {
    let kinds = ["const ", "async function* ", "async function ", "function* ", "function ", "class "];
    let rest = kinds.iter().find_map(|kind| line.strip_prefix(kind))?;
    let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '$')?;
    (end > 0).then(|| &rest[..end])
}

/// The path below `web/` that a module at `at` means by `from`.
fn resolve(at: &str, from: &str) -> Option<String> {
    let mut parts: Vec<&str> = at.split('/').collect();
    parts.pop();
    for part in from.split('/') {
        match part {
            "." => {}
            ".." => drop(parts.pop()?),
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

/// What the bundle calls a module.
fn variable(path: &str) -> String {
    let name: String =
        path.trim_end_matches(".js").chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    format!("${name}")
}

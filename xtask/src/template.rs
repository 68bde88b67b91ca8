//! `templates/driver`: a driver project to begin with, filled in as `cargo generate` would.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::workspace;

/// Files of the template; `cargo-generate.toml` is about it, not of it.
const FILES: &[&str] = &["Cargo.toml", "README.md", "agent.hcl", "job.nomad.hcl", "src/main.rs"];

/// Makes a project of this name in a directory.
///
/// # Errors
/// A file cannot be read or written, or has a placeholder that nothing fills.
pub(crate) fn instantiate(name: &str, to: &Path) -> Result<()> {
    let root = workspace::root();
    let values = [
        ("{{project-name}}", name.to_owned()),
        ("{{crate_name}}", name.replace('-', "_")),
        ("{{drover}}", root.display().to_string()),
    ];
    for file in FILES {
        let from = root.join("templates/driver").join(file);
        let mut text = fs::read_to_string(&from).with_context(|| format!("could not read {}", from.display()))?;
        for (placeholder, value) in &values {
            text = text.replace(placeholder, value);
        }
        ensure!(!text.contains("{{"), "{} has a placeholder that is not filled", from.display());
        let to = to.join(file);
        fs::create_dir_all(to.parent().unwrap_or(&to))?;
        fs::write(&to, text).with_context(|| format!("could not write {}", to.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_project_has_its_name_everywhere() {
        let dir = std::env::temp_dir().join(format!("drover-template-{}", std::process::id()));
        instantiate("hello-driver", &dir).expect("instantiates");
        let read = |path: &Path| fs::read_to_string(path).expect("reads");
        let made: Vec<String> = FILES.iter().map(|file| read(&dir.join(file))).collect();
        fs::remove_dir_all(&dir).expect("removes");
        assert!(made[0].contains("name = \"hello-driver\"") && made[3].contains("driver = \"hello_driver\""));
        // The SDK's example `script` is built from this very file.
        assert_eq!(
            made[4],
            read(&workspace::root().join("templates/driver/src/main.rs")),
            "the program needs nothing filled in"
        );
    }

    #[test]
    fn every_file_of_the_template_is_known() {
        let listed = |dir: &Path| -> Vec<String> {
            let entries = fs::read_dir(workspace::root().join("templates/driver").join(dir)).expect("lists");
            let files = entries.flatten().filter(|entry| entry.path().is_file());
            files.map(|entry| dir.join(entry.file_name()).display().to_string()).collect()
        };
        for file in listed(Path::new("")).into_iter().chain(listed(Path::new("src"))) {
            assert!(FILES.contains(&file.as_str()) || file == "cargo-generate.toml", "{file} is not instantiated");
        }
    }
}

//! Documents drift: every path that one names in backticks must exist.

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs};

    use crate::workspace;

    const DOCUMENTS: &[&str] = &["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"];

    /// Words in backticks that look like paths of this repository: a known top folder followed by a slash.
    fn paths(text: &str) -> BTreeSet<String> {
        const TOP: &[&str] = &["crates/", "lib/", "drivers/", "xtask/", "examples/", "docs/", "templates/", "tests/", "packaging/", ".ci/"];
        text.split('`')
            .skip(1)
            .step_by(2)
            .filter(|w| TOP.iter().any(|t| w.starts_with(t)) && !w.contains(['*', ' ', '<', '{', '…']))
            .map(|w| w.trim_end_matches('/').to_owned())
            .collect()
    }

    #[test]
    fn every_named_path_exists() {
        let root = workspace::root();
        let mut missing = Vec::new();
        let mut files: Vec<_> = DOCUMENTS.iter().map(|d| root.join(d)).collect();
        if let Ok(dir) = fs::read_dir(root.join("docs")) {
            files.extend(dir.flatten().map(|e| e.path()).filter(|p| p.extension().is_some_and(|e| e == "md")));
        }
        for file in files {
            let text = fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
            for path in paths(&text) {
                if !root.join(&path).exists() {
                    missing.push(format!("{}: {path}", file.display()));
                }
            }
        }
        assert!(missing.is_empty(), "documents name paths that do not exist: {missing:#?}");
    }

    #[test]
    fn paths_are_found_in_text() {
        let found = paths("see `crates/model/` and `crates/model/src/job.rs`, not `cargo test` or `crates/*`");
        assert_eq!(found.into_iter().collect::<Vec<_>>(), ["crates/model", "crates/model/src/job.rs"]);
    }
}

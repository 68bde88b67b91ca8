//! Documents drift: every path that one names in backticks must exist, and every link must lead somewhere.

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeSet,
        fs,
        path::{Path, PathBuf},
    };

    use crate::workspace;

    const DOCUMENTS: &[&str] =
        &["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "STYLE.md", "templates/driver/README.md"];

    /// The documents at the top, and every page below `docs`.
    fn documents() -> Vec<PathBuf> {
        let root = workspace::root();
        let mut all: Vec<_> = DOCUMENTS.iter().map(|d| root.join(d)).collect();
        let mut dirs = vec![root.join("docs")];
        while let Some(dir) = dirs.pop() {
            for entry in fs::read_dir(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display())).flatten() {
                let path = entry.path();
                if path.is_dir() {
                    dirs.push(path);
                } else if path.extension().is_some_and(|e| e == "md") {
                    all.push(path);
                }
            }
        }
        all
    }

    fn read(file: &Path) -> String {
        fs::read_to_string(file).unwrap_or_else(|e| panic!("{}: {e}", file.display()))
    }

    /// Words in backticks that look like paths of this repository: a known top folder followed by a slash.
    fn paths(text: &str) -> BTreeSet<String> {
        const TOP: &[&str] = &[
            "crates/",
            "lib/",
            "drivers/",
            "xtask/",
            "examples/",
            "docs/",
            "templates/",
            "tests/",
            "packaging/",
            ".ci/",
        ];
        text.split('`')
            .skip(1)
            .step_by(2)
            .filter(|w| TOP.iter().any(|t| w.starts_with(t)) && !w.contains(['*', ' ', '<', '{', '…']))
            .map(|w| w.trim_end_matches('/').to_owned())
            .collect()
    }

    /// The text without its blocks of code.
    fn prose(text: &str) -> String {
        let mut code = false;
        let kept = text.lines().filter(|line| {
            let fence = line.trim_start().starts_with("```");
            code ^= fence;
            !code && !fence
        });
        kept.collect::<Vec<_>>().join("\n")
    }

    /// Targets of links that stay in the repository: the file (empty for the page itself) and the heading.
    fn links(text: &str) -> BTreeSet<(String, String)> {
        let prose = prose(text);
        let targets = prose.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        targets
            .filter(|target| !target.contains("://") && !target.contains(' '))
            .map(|target| target.split_once('#').unwrap_or((target, "")))
            .map(|(file, heading)| (file.to_owned(), heading.to_owned()))
            .collect()
    }

    /// What forges call the headings of a page: lower case, hyphens for spaces, no other punctuation.
    fn headings(text: &str) -> BTreeSet<String> {
        let prose = prose(text);
        let titles = prose
            .lines()
            .filter(|line| line.starts_with('#'))
            .map(|line| line.trim_start_matches('#').trim().to_lowercase());
        let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
        titles.map(|title| title.chars().filter(kept).collect::<String>().replace(' ', "-")).collect()
    }

    #[test]
    fn every_named_path_exists() {
        let root = workspace::root();
        let mut missing = Vec::new();
        for file in documents() {
            for path in paths(&read(&file)) {
                if !root.join(&path).exists() {
                    missing.push(format!("{}: {path}", file.display()));
                }
            }
        }
        assert!(missing.is_empty(), "documents name paths that do not exist: {missing:#?}");
    }

    #[test]
    fn every_link_leads_somewhere() {
        let mut missing = Vec::new();
        // The changelog tells of paths that have gone as well, so only its links are checked.
        for file in documents().into_iter().chain([workspace::root().join("CHANGELOG.md")]) {
            let text = read(&file);
            for (target, heading) in links(&text) {
                let to =
                    if target.is_empty() { file.clone() } else { file.parent().expect("a directory").join(&target) };
                let there = to.exists() && (heading.is_empty() || headings(&read(&to)).contains(&heading));
                if !there {
                    missing.push(format!("{}: {target}#{heading}", file.display()));
                }
            }
        }
        assert!(missing.is_empty(), "links lead nowhere: {missing:#?}");
    }

    /// Pages that others link to, as they lie on the disk.
    fn linked(page: &Path) -> BTreeSet<PathBuf> {
        let dir = page.parent().expect("a directory");
        let targets = links(&read(page)).into_iter().filter(|(file, _)| file.ends_with(".md"));
        targets.filter_map(|(file, _)| dir.join(file).canonicalize().ok()).collect()
    }

    #[test]
    fn the_summary_of_the_book_and_the_index_have_every_page() {
        let docs = workspace::root().join("docs").canonicalize().expect("the documents");
        let pages: Vec<_> = documents().into_iter().filter_map(|page| page.canonicalize().ok()).collect();
        for list in ["SUMMARY.md", "index.md"].map(|name| docs.join(name)) {
            let linked = linked(&list);
            let of_itself = [docs.join("SUMMARY.md"), docs.join("index.md")];
            let missing: Vec<_> = pages
                .iter()
                .filter(|page| page.starts_with(&docs) && !of_itself.contains(page) && !linked.contains(*page))
                .collect();
            assert!(missing.is_empty(), "{} does not link to {missing:#?}", list.display());
        }
    }

    #[test]
    fn paths_are_found_in_text() {
        let found = paths("see `crates/model/` and `crates/model/src/job.rs`, not `cargo test` or `crates/*`");
        assert_eq!(found.into_iter().collect::<Vec<_>>(), ["crates/model", "crates/model/src/job.rs"]);
    }

    #[test]
    fn links_and_headings_are_found_in_text() {
        let page =
            "# Who is it?\n[a](b.md#c-d), [e](#f) and [g](https://h)\n```\n# not [i](j)\n```\n## `-t TEMPLATE`, or not";
        let found: Vec<_> = links(page).into_iter().map(|(file, heading)| format!("{file}#{heading}")).collect();
        assert_eq!(found, ["#f", "b.md#c-d"]);
        assert_eq!(headings(page).into_iter().collect::<Vec<_>>(), ["-t-template-or-not", "who-is-it"]);
    }
}

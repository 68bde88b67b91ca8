//! The page of events lists the topics and causes that the code has, with what their comments say.

use super::source::Source;
use crate::page::placed;

/// The page.
pub(super) const PAGE: &str = "docs/reference/events.md";

/// Causes of changes that are no events, or only say what else is.
const SILENT: &[&str] = &["Collected", "Derived", "NamespaceUpserted", "NamespaceDeleted", "SettingsUpdated"];

/// Names with what the comment before them says, between `begin` and the next line that ends a block.
fn named(code: &str, begin: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut said = String::new();
    let block = code.split_once(begin).map_or("", |(_, rest)| rest);
    for line in block.lines().skip(1).map(str::trim).take_while(|line| *line != "}") {
        match line.strip_prefix("///") {
            Some(comment) => said.push_str(comment),
            None if line.ends_with(',') => {
                found.push((line.trim_end_matches(',').to_owned(), std::mem::take(&mut said).trim().to_owned()))
            }
            None => {}
        }
    }
    found
}

fn table(head: &str, rows: Vec<(String, String)>) -> String {
    let rows = rows.into_iter().map(|(name, said)| format!("| `{name}` | {} |\n", said.replace('|', "\\|")));
    format!("| {head} | what it tells |\n|---|---|\n{}", rows.collect::<String>())
}

/// The page as the code has it; nothing when the page lacks a part or the code has moved.
pub(super) fn current(sources: &[Source], page: &str) -> Option<String> {
    let of = |path: &str| sources.iter().find(|s| s.path == path).map(|s| s.text.as_str());
    let topics = named(of("crates/server/src/events.rs")?, "pub enum Topic {");
    let mut types = named(of("crates/state/src/applied.rs")?, "\ncauses! {");
    types.retain(|(name, _)| !SILENT.contains(&name.as_str()));
    if topics.is_empty() || types.is_empty() {
        return None;
    }
    placed(&placed(page, "topics", &table("topic", topics))?, "types", &table("type", types))
}

/// What is wrong with the page.
pub(super) fn compare(sources: &[Source], page: &str) -> Option<String> {
    match current(sources, page) {
        None => Some(format!(
            "{PAGE}: its parts, or the topics and causes in the code, were not found: see xtask/src/tidy/events.rs"
        )),
        Some(current) if current != page => Some(format!("{PAGE} is out of date: run `cargo xtask lint --update`")),
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_topic_and_a_new_cause_make_the_page_old() {
        let topics = "/// Kinds.\npub enum Topic {\n    /// Jobs.\n    Job,\n}\n";
        let causes = "macro_rules! causes {\n    () => {}\n}\n\ncauses! {\n    /// A job was registered,\n    /// or \
            changed.\n    JobRegistered,\n    /// No event.\n    Derived,\n}\n";
        let sources = |more: &str| {
            let topics = topics.replace("    Job,\n", &format!("    Job,\n{more}"));
            [Source::new("crates/server/src/events.rs", &topics), Source::new("crates/state/src/applied.rs", causes)]
        };
        let empty = "# E\n<!-- generated: topics -->\n<!-- end of topics -->\n<!-- generated: types -->\n<!-- end of \
            types -->\n";
        let page = current(&sources(""), empty).expect("a page");
        assert!(
            page.contains("| `Job` | Jobs. |")
                && page.contains("| `JobRegistered` | A job was registered, or changed. |"),
            "{page}"
        );
        assert!(!page.contains("Derived"), "{page}");
        assert_eq!(compare(&sources(""), &page), None);
        assert!(
            compare(&sources("    /// Nodes.\n    Node,\n"), &page).is_some_and(|wrong| wrong.contains("out of date"))
        );
        assert!(compare(&sources(""), "# E\n").is_some_and(|wrong| wrong.contains("not found")));
    }
}

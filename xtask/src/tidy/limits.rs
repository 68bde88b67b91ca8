//! Limits of size: lines of a file, columns of prose. What is too wide today is counted for each folder, and the count may only shrink.

use std::{collections::BTreeMap, fmt::Write as _};

use anyhow::{Context, Result};

use super::source::Source;

/// Most lines of a file.
const LINES: usize = 900;
/// Most columns of a comment. Code may have what `rustfmt.toml` allows.
const COMMENT: usize = 120;
/// Most columns of prose in Markdown.
const PROSE: usize = 100;
/// The file of today's counts.
pub(super) const FILE: &str = "xtask/limits.txt";
/// What the lines of circles begin with: `circles` compares those.
pub(super) const CIRCLE: &str = "circle ";
/// What the counts of all Markdown stand under.
const MARKDOWN: &str = "markdown";

/// How far a count in the file may stand above the truth: people who work side by side need not touch the file for each line.
pub(super) fn slack(count: usize) -> usize {
    (count / 20).max(10)
}

/// Files with too many lines. The changelog grows for ever, and pages that are generated have as many as there is to tell.
pub(super) fn too_long(sources: &[Source]) -> Vec<String> {
    let lengths = sources
        .iter()
        .filter(|s| s.path != "CHANGELOG.md" && !s.text.contains("\n<!-- generated: "))
        .map(|s| (&s.path, s.text.lines().count()));
    lengths
        .filter(|(_, lines)| *lines > LINES)
        .map(|(path, lines)| format!("{path} has {lines} lines, at most {LINES} fit: split it"))
        .collect()
}

/// Whether a line of Rust is a comment that is too wide. A link that cannot be broken may be.
fn wide_comment(line: &str) -> bool {
    let text = line.trim_start();
    text.starts_with("//") && line.chars().count() > COMMENT && !text.trim_start_matches(['/', '!', ' ']).starts_with("http")
}

/// How many lines of prose in a page are too wide: no tables, code, or targets of links, which cannot be broken.
fn wide_prose(page: &str) -> usize {
    let (mut code, mut wide) = (false, 0);
    for line in page.lines() {
        let fence = line.trim_start().starts_with("```");
        code ^= fence;
        if code || fence || line.trim_start().starts_with('|') || line.trim_start().starts_with('<') {
            continue;
        }
        let mut seen = line.to_owned();
        while let Some(at) = seen.find("](") {
            let end = seen[at..].find(')').map_or(seen.len(), |end| at + end + 1);
            seen.replace_range(at + 1..end, "");
        }
        let unbroken = seen.split_whitespace().any(|word| word.contains("://"));
        wide += usize::from(!unbroken && seen.chars().count() > PROSE);
    }
    wide
}

/// Lines that are too wide, by folder.
pub(super) fn count(sources: &[Source]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::from([(MARKDOWN.to_owned(), 0)]);
    for source in sources {
        let (place, wide) = match () {
            () if source.is("rs") => (source.place(), source.text.lines().filter(|line| wide_comment(line)).count()),
            () if source.is("md") => (MARKDOWN, wide_prose(&source.text)),
            () => continue,
        };
        *counts.entry(place.to_owned()).or_default() += wide;
    }
    counts
}

/// The file of counts.
pub(super) fn parse(text: &str) -> Result<BTreeMap<String, usize>> {
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let (place, count) = line.rsplit_once(' ').with_context(|| format!("{FILE}: {line:?} is no folder with a number"))?;
            Ok((place.to_owned(), count.parse().with_context(|| format!("{FILE}: {line:?}"))?))
        })
        .collect()
}

/// The file for these counts.
pub(super) fn render(counts: &BTreeMap<String, usize>) -> String {
    let mut text = format!(
        "# Comments of more than {COMMENT} columns by folder, lines of prose of more than {PROSE} in all Markdown, and the files of the largest circle of\n\
         # each crate that has one of more than it should. The numbers may only shrink: `cargo xtask lint` fails when there are more, and when there\n\
         # are far fewer; `cargo xtask lint --update` counts anew.\n"
    );
    for (place, count) in counts {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{place} {count}");
    }
    text
}

/// Where the tree has more than the file allows, or so much less that the file is out of date.
pub(super) fn compare(counts: &BTreeMap<String, usize>, file: &BTreeMap<String, usize>) -> Vec<String> {
    let mut wrong = Vec::new();
    for (place, count) in counts {
        let allowed = file.get(place).copied().unwrap_or(0);
        let what =
            if place == MARKDOWN { format!("lines of prose over {PROSE} columns") } else { format!("comments over {COMMENT} columns") };
        if *count > allowed {
            wrong.push(format!("{place} has {count} {what}, {FILE} allows {allowed}: break the new ones"));
        } else if allowed > count + slack(*count) {
            wrong.push(format!("{place} has {count} {what}, and {FILE} still says {allowed}: run `cargo xtask lint --update`"));
        }
    }
    let gone = file.keys().filter(|place| !counts.contains_key(*place) && !place.starts_with(CIRCLE));
    wrong.extend(gone.map(|place| format!("{FILE} names {place}, which is not there: run `cargo xtask lint --update`")));
    wrong
}

/// Lints that are switched off without a word why. `#[expect(clippy::await_holding_invalid_type, reason = …)]` is the list of guards across awaits.
pub(super) fn without_reason(sources: &[Source]) -> Vec<String> {
    let mut wrong = Vec::new();
    for source in sources.iter().filter(|s| s.is("rs")) {
        for start in ["allow(", "expect("] {
            for (at, _) in source.text.match_indices(start) {
                if !source.text[..at].ends_with("#[") && !source.text[..at].ends_with("#![") {
                    continue;
                }
                let end = source.text[at..].find(")]").map_or(source.text.len(), |end| at + end);
                if !source.text[at..end].contains("reason = ") {
                    let line = source.text[..at].matches('\n').count() + 1;
                    wrong.push(format!("{}:{line}: a lint is switched off without a reason", source.path));
                }
            }
        }
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_too_long_is_named() {
        let sources = [Source::new("crates/a/src/b.rs", &"x\n".repeat(901)), Source::new("crates/a/src/c.rs", &"x\n".repeat(900))];
        let wrong = too_long(&sources);
        assert!(wrong.len() == 1 && wrong[0].starts_with("crates/a/src/b.rs has 901 lines"), "{wrong:?}");
    }

    #[test]
    fn wide_comments_and_wide_prose_are_counted_and_nothing_else() {
        let rust =
            format!("// {}\n    /// {}\nlet a = \"{}\"; // x\n// {}\n", "a".repeat(118), "b".repeat(113), "c".repeat(130), "d".repeat(117));
        let long = "word ".repeat(25);
        let page = format!("{long}\n| {long} |\n```\n{long}\n```\nsee [this page]({}) now\n", "p/".repeat(60));
        let counts = count(&[Source::new("crates/a/src/b.rs", &rust), Source::new("docs/c.md", &page)]);
        assert_eq!(counts, BTreeMap::from([("crates/a".into(), 2), (MARKDOWN.into(), 1)]));
    }

    #[test]
    fn more_than_allowed_fails_and_an_old_file_fails() {
        let map = |n| BTreeMap::from([("crates/a".to_owned(), n)]);
        assert_eq!(compare(&map(40), &map(40)), Vec::<String>::new());
        assert_eq!(compare(&map(31), &map(40)), Vec::<String>::new(), "a few fewer need no new file");
        assert!(compare(&map(41), &map(40))[0].contains("allows 40"));
        assert!(compare(&map(29), &map(40))[0].contains("still says 40"));
        assert!(compare(&map(1), &BTreeMap::new())[0].contains("allows 0"));
        assert!(compare(&BTreeMap::new(), &map(1))[0].contains("not there"));
        assert_eq!(parse(&render(&map(40))).expect("its own file"), map(40));
    }

    #[test]
    fn a_lint_that_is_off_says_why() {
        // In parts, so that this file is not found by the check.
        let (off, own) = ("#[al\u{6c}ow", "#![expect");
        let text = format!("{off}(a, reason = \"b\")]\n{off}(\n    a,\n)]\nx.expect(\"y\");\n{own}(c)]\n");
        let wrong = without_reason(&[Source::new("a.rs", &text)]);
        assert_eq!(wrong.iter().map(|w| w.split(':').nth(1).unwrap_or_default()).collect::<Vec<_>>(), ["2", "6"], "{wrong:?}");
    }
}

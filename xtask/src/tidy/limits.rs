//! Limits of size: lines of a file, columns of code and prose. What is too wide in Markdown today is counted, and the
//! count may only shrink.

use std::{collections::BTreeMap, fmt::Write as _};

use anyhow::{Context, Result};

use super::{source::Source, tokens::raw_strings};

/// Most lines of a file.
const LINES: usize = 900;
/// Most columns of a line of Rust, code or comment, as `rustfmt.toml` has it.
const CODE: usize = 120;
/// Most columns of prose in Markdown.
const PROSE: usize = 100;
/// The file of today's counts.
pub(super) const FILE: &str = "xtask/limits.txt";
/// What the lines of circles begin with: `circles` compares those.
pub(super) const CIRCLE: &str = "circle ";
/// What the counts of all Markdown stand under.
const MARKDOWN: &str = "markdown";

/// How far a count in the file may stand above the truth: people who work side by side need not touch the file for each
/// line.
pub(super) fn slack(count: usize) -> usize {
    (count / 20).max(10)
}

/// Files with too many lines. The changelog grows for ever, and pages that are generated have as many as there is to
/// tell.
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

/// Lines of Rust that are too wide. A line may be wide if it has no place to break: part of a raw string, a row of a
/// table in a doc comment, a comment that is one link.
pub(super) fn too_wide(sources: &[Source]) -> Vec<String> {
    let mut wrong = Vec::new();
    for source in sources.iter().filter(|s| s.is("rs")) {
        let raw = raw_strings(&source.text);
        let mut start = 0;
        for (number, line) in source.text.split_inclusive('\n').enumerate() {
            let place = start..start + line.len();
            start = place.end;
            let columns = line.trim_end().chars().count();
            let unbroken = || {
                let row = line.trim_start().strip_prefix("///").or(line.trim_start().strip_prefix("//!"));
                row.is_some_and(|row| row.trim_start().starts_with('|'))
                    || line.trim_start_matches(['/', '!', ' ']).starts_with("http")
                    || raw.iter().any(|raw| raw.start < place.end && place.start < raw.end)
            };
            if columns > CODE && !unbroken() {
                wrong.push(format!("{}:{}: {columns} columns, at most {CODE} fit", source.path, number + 1));
            }
        }
    }
    wrong
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

/// Lines of prose that are too wide, in all Markdown.
pub(super) fn count(sources: &[Source]) -> BTreeMap<String, usize> {
    let wide = sources.iter().filter(|s| s.is("md")).map(|s| wide_prose(&s.text)).sum();
    BTreeMap::from([(MARKDOWN.to_owned(), wide)])
}

/// The file of counts.
pub(super) fn parse(text: &str) -> Result<BTreeMap<String, usize>> {
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let (place, count) =
                line.rsplit_once(' ').with_context(|| format!("{FILE}: {line:?} is no folder with a number"))?;
            Ok((place.to_owned(), count.parse().with_context(|| format!("{FILE}: {line:?}"))?))
        })
        .collect()
}

/// The file for these counts.
pub(super) fn render(counts: &BTreeMap<String, usize>) -> String {
    let mut text = format!(
        "# Lines of prose of more than {PROSE} columns in all Markdown, and the files of the largest circle of each\n\
         # crate that has one of more than it should. The numbers may only shrink: `cargo xtask lint` fails when\n\
         # there are more, and when there are far fewer; `cargo xtask lint --update` counts anew.\n"
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
        let what = format!("lines of prose over {PROSE} columns");
        if *count > allowed {
            wrong.push(format!("{place} has {count} {what}, {FILE} allows {allowed}: break the new ones"));
        } else if allowed > count + slack(*count) {
            wrong.push(format!(
                "{place} has {count} {what}, and {FILE} still says {allowed}: run `cargo xtask lint --update`"
            ));
        }
    }
    let gone = file.keys().filter(|place| !counts.contains_key(*place) && !place.starts_with(CIRCLE));
    wrong
        .extend(gone.map(|place| format!("{FILE} names {place}, which is not there: run `cargo xtask lint --update`")));
    wrong
}

/// Lints that are switched off without a word why. `#[expect(clippy::await_holding_invalid_type, reason = …)]` is the
/// list of guards across awaits.
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
        let sources = [
            Source::new("crates/a/src/b.rs", &"x\n".repeat(901)),
            Source::new("crates/a/src/c.rs", &"x\n".repeat(900)),
        ];
        let wrong = too_long(&sources);
        assert!(wrong.len() == 1 && wrong[0].starts_with("crates/a/src/b.rs has 901 lines"), "{wrong:?}");
    }

    #[test]
    fn a_wide_line_of_rust_is_named_where_it_has_a_place_to_break() {
        let wide = "x".repeat(121);
        let fits = format!("let a = \"{}\";", "ü".repeat(109));
        let rust = format!(
            "{fits}\n// {wide}\n{wide}();\nr#\"\n{wide}\n\"#;\n/// | {wide} |\n// https://{wide}\nf(r\"{wide}\");\n\
             \"{wide}\""
        );
        let wrong = too_wide(&[Source::new("a.rs", &rust), Source::new("a.toml", &wide)]);
        let lines: Vec<&str> = wrong.iter().filter_map(|w| w.split(':').nth(1)).collect();
        assert_eq!(lines, ["2", "3", "10"], "{wrong:?}");
    }

    #[test]
    fn wide_prose_is_counted_and_nothing_else() {
        let long = "word ".repeat(25);
        let page = format!("{long}\n| {long} |\n```\n{long}\n```\nsee [this page]({}) now\n", "p/".repeat(60));
        let counts = count(&[Source::new("crates/a/src/b.rs", &format!("// {long}")), Source::new("docs/c.md", &page)]);
        assert_eq!(counts, BTreeMap::from([(MARKDOWN.into(), 1)]));
    }

    #[test]
    fn more_than_allowed_fails_and_an_old_file_fails() {
        let map = |n| BTreeMap::from([(MARKDOWN.to_owned(), n)]);
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
        assert_eq!(
            wrong.iter().map(|w| w.split(':').nth(1).unwrap_or_default()).collect::<Vec<_>>(),
            ["2", "6"],
            "{wrong:?}"
        );
    }
}

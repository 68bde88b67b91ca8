//! Pages of what Nomad does or was asked for: each line says whether it works here, and names a test that exists.

use std::fmt::Write as _;

use super::source::Source;
use crate::page::placed;

/// A page with a table of such lines.
pub(super) struct Table {
    /// Its path.
    pub(super) page: &'static str,
    /// Where the lines stand.
    file: &'static str,
    lines: &'static str,
    part: &'static str,
    head: &'static str,
}

/// All of them.
pub(super) const TABLES: &[Table] = &[
    Table {
        page: "docs/reference/compatibility/scheduling.md",
        file: "xtask/parity.txt",
        lines: include_str!("../../parity.txt"),
        part: "features",
        head: "| of | what | in Drover | seen by |",
    },
    Table {
        page: "docs/reference/compatibility/web-ui.md",
        file: "xtask/asked.txt",
        lines: include_str!("../../asked.txt"),
        part: "asked",
        head: "| issues | what was asked | in Drover | seen by |",
    },
];

/// One line.
struct Line<'a> {
    section: &'a str,
    what: &'a str,
    fate: &'a str,
    file: &'a str,
    test: &'a str,
}

fn lines(text: &str) -> impl Iterator<Item = Result<Line<'_>, String>> {
    text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).map(|line| {
        let parts: Vec<&str> = line.split(" | ").collect();
        let [section, what, fate, test] = parts[..] else { return Err(format!("not four columns: {line}")) };
        let Some((file, test)) = test.split_once(' ') else { return Err(format!("no file and test: {line}")) };
        if fate != "works" && !fate.starts_with("refused: ") {
            return Err(format!("neither \"works\" nor \"refused: WHY\": {line}"));
        }
        Ok(Line { section, what, fate, file, test })
    })
}

fn table(head: &str, text: &str) -> String {
    let mut out = format!("{head}\n|---|---|---|---|\n");
    for line in lines(text).flatten() {
        // Writing to a string does not fail.
        let _ = writeln!(out, "| {} | {} | {} | `{}` |", line.section, line.what, line.fate, line.test);
    }
    out
}

impl Table {
    /// The page as the lines have it; nothing when it lacks the part.
    pub(super) fn current(&self, page: &str) -> Option<String> {
        placed(page, self.part, &table(self.head, self.lines))
    }

    /// What is wrong with the page and its lines.
    pub(super) fn compare(&self, sources: &[Source], page: &str) -> Vec<String> {
        let mut wrong = without_test(self.file, self.lines, sources);
        match self.current(page) {
            None => wrong.push(format!("{} has no part {:?}", self.page, self.part)),
            Some(current) if current != page => {
                wrong.push(format!("{} is out of date: run `cargo xtask lint --update`", self.page));
            }
            Some(_) => {}
        }
        wrong
    }
}

fn without_test(of: &str, text: &str, sources: &[Source]) -> Vec<String> {
    let exists = |line: &Line<'_>| {
        let source = sources.iter().find(|source| source.path == line.file);
        source.is_some_and(|source| source.text.contains(&format!("fn {}(", line.test)))
    };
    let wrong = |line| match line {
        Ok(line) if exists(&line) => None,
        Ok(line) => Some(format!("{of}: {} has no test {}", line.file, line.test)),
        Err(why) => Some(format!("{of}: {why}")),
    };
    lines(text).filter_map(wrong).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_without_a_test_or_a_fate_is_found() {
        let text = "# head\na | b | works | x.rs seen\na | c | refused: why | x.rs gone\na | d | soon | x.rs seen\n\
            a | e | works\n";
        let sources = [Source::new("x.rs", "#[test]\nfn seen() {}\n")];
        let wrong = without_test("lines.txt", text, &sources);
        let parts = ["x.rs has no test gone", "neither \"works\"", "not four columns"];
        assert!(wrong.len() == 3 && parts.iter().zip(&wrong).all(|(part, line)| line.contains(part)), "{wrong:?}");
        assert!(table("| of |", text).contains("| a | c | refused: why | `gone` |\n"));
    }
}

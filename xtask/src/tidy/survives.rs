//! Each line of the page "What survives what" names what replays it, and that exists: a fault of `chaos`, an attack, or
//! a test of the tree.

use std::collections::BTreeSet;

use super::source::Source;
use crate::{attack, chaos, proofs};

/// The page.
pub(super) const PAGE: &str = "docs/concepts/what-survives.md";
/// The head of the column that names what replays a line.
const COLUMN: &str = "replayed by";

/// What a line may name.
pub(super) struct Known {
    faults: BTreeSet<String>,
    attacks: BTreeSet<String>,
    tests: BTreeSet<String>,
}

impl Known {
    pub(super) fn of(sources: &[Source]) -> Self {
        let texts = sources.iter().filter(|source| source.is("rs"));
        Self {
            faults: chaos::names().into_iter().map(str::to_owned).collect(),
            attacks: attack::names().into_iter().map(str::to_owned).collect(),
            tests: texts.flat_map(|source| proofs::tests_in(&source.text)).collect(),
        }
    }

    /// Why nothing of this name replays anything.
    fn lacks(&self, name: &str) -> Option<String> {
        let (there, what) = match name.split_once(' ') {
            Some(("chaos", fault)) => (self.faults.contains(fault), "fault of that name; see `chaos --list`"),
            Some(("attack", attack)) => (self.attacks.contains(attack), "attack of that name; see `attack --list`"),
            Some(_) => (false, "command that replays it: `chaos NAME` and `attack NAME` do"),
            None => (self.tests.contains(name), "test of that name"),
        };
        (!there).then(|| format!("there is no {what}"))
    }
}

/// The lines of the tables with this column: the first cell and the last one.
fn rows(page: &str) -> Vec<(&str, &str)> {
    let (mut found, mut replayed) = (Vec::new(), false);
    for line in page.lines() {
        let Some(row) = line.strip_prefix('|') else {
            replayed = false;
            continue;
        };
        let cells: Vec<&str> = row.trim_end().trim_end_matches('|').split('|').map(str::trim).collect();
        let (Some(first), Some(last)) = (cells.first(), cells.last()) else { continue };
        if *last == COLUMN {
            replayed = true;
        } else if replayed && !first.starts_with("---") {
            found.push((*first, *last));
        }
    }
    found
}

/// What is wrong with the page.
pub(super) fn compare(page: &str, known: &Known) -> Vec<String> {
    let rows = rows(page);
    if rows.is_empty() {
        return vec![format!("{PAGE} has no table with the column {COLUMN:?}: see xtask/src/tidy/survives.rs")];
    }
    let mut wrong = Vec::new();
    for (line, cell) in rows {
        let names: Vec<&str> = cell.split('`').skip(1).step_by(2).collect();
        if names.is_empty() {
            wrong.push(format!("{PAGE}: nothing replays \"{line}\": name its fault, attack or test"));
        }
        let lacking = names.into_iter().filter_map(|name| Some((name, known.lacks(name)?)));
        wrong.extend(lacking.map(|(name, why)| format!("{PAGE}: \"{line}\" names `{name}`: {why}")));
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_without_a_test_and_one_whose_test_is_gone_are_found() {
        let source = Source::new("crates/a/tests/b.rs", "#[test]\nfn it_is_kept() {}\nfn no_test() {}\n");
        let known = Known::of(&[source]);
        let page = |cell: &str| {
            format!(
                "| metric | value |\n|---|---|\n| a | b |\n\n| event | tasks | replayed by |\n|---|---|---|\n\
                 | power | gone | {cell} |\n"
            )
        };
        for right in ["`chaos power-loss`, `it_is_kept`", "`attack copied-node`"] {
            assert_eq!(compare(&page(right), &known), Vec::<String>::new(), "{right}");
        }
        for (wrong, why) in [
            ("", "nothing replays \"power\""),
            ("chaos power-loss", "nothing replays"),
            ("`chaos power-los`", "no fault"),
            ("`it_is_kept`, `attack copied`", "no attack"),
            ("`no_test`", "no test"),
            ("`pray it_is_kept`", "no command"),
        ] {
            let found = compare(&page(wrong), &known);
            assert!(matches!(found.as_slice(), [one] if one.contains(why)), "{wrong}: {found:?}");
        }
        assert_eq!(compare("| metric | value |\n|---|---|\n| a | b |\n", &known).len(), 1);
    }
}

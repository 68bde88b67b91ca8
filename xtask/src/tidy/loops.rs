//! The tables of ARCHITECTURE agree with the code: the rows of the server's loops are those that the server registers,
//! and each crate has a row.

use std::collections::BTreeSet;

#[allow(dead_code, unreachable_pub, reason = "the server uses the rest of it, and others its names")]
#[path = "../../../crates/server/src/loops.rs"]
mod registered;

/// What a row of the server's loops begins with.
const ROW: &str = "| server ";

/// The page with the rows of the loops that the server registers.
pub(super) fn current(page: &str) -> String {
    let rows = registered::LOOPS.iter().map(|of| of.row() + "\n").collect::<String>();
    let lines = page.split_inclusive('\n');
    let at = page.find(ROW).unwrap_or(page.len());
    let (mut before, mut after, mut read) = (String::new(), String::new(), 0);
    for line in lines {
        let part = if read < at { &mut before } else { &mut after };
        read += line.len();
        part.push_str(if line.starts_with(ROW) { "" } else { line });
    }
    before + &rows + &after
}

/// Is the page as it must be?
pub(super) fn stale(page: &str) -> Option<String> {
    (current(page) != page).then(|| {
        "ARCHITECTURE.md: the rows of the server's loops are not those of crates/server/src/loops.rs: cargo xtask \
            lint --update"
            .to_owned()
    })
}

/// Crates of the workspace without a row in the table of crates.
pub(super) fn crates_without_a_row(members: &[String], page: &str) -> Vec<String> {
    let part = page.split("\n## Crates\n").nth(1).unwrap_or_default().split("\n## ").next().unwrap_or_default();
    let cells = part.lines().filter_map(|line| line.strip_prefix("| ")).filter_map(|row| row.split('|').next());
    let named: BTreeSet<&str> = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
    let lacking = members.iter().filter(|member| !named.contains(member.as_str()));
    lacking.map(|member| format!("ARCHITECTURE.md: the table of crates has no row for {member}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# A\n## Crates\n\n| crate | purpose |\n|---|---|\n| `crates/a`, `lib/b` | c |\n\n## \
        Loops\n\n| loop | wakes on |\n|---|---|\n\
                        | server `commit` | `x` |\n| server `broker` and `blocked` evaluations | y |\n| node: ledger \
                        `z` | w |\n\n## More\n";

    #[test]
    fn rows_that_the_server_does_not_register_are_replaced() {
        let wrong = stale(PAGE).expect("it is stale");
        assert!(wrong.contains("lint --update"), "{wrong}");
        let page = current(PAGE);
        assert_eq!(stale(&page), None);
        let (before, rows) = page
            .split_once("|---|---|\n| server `commit` (thread) | a decision in its queue |")
            .expect("the first row");
        assert!(
            before.contains("`crates/a`")
                && rows.contains("| server `session` (one per node)")
                && !rows.contains("| `x` |"),
            "{page}"
        );
        assert!(rows.ends_with("|\n| node: ledger `z` | w |\n\n## More\n"), "{page}");
    }

    #[test]
    fn a_crate_without_a_row_is_found() {
        let members = ["crates/a", "lib/b", "crates/d"].map(str::to_owned);
        assert_eq!(
            crates_without_a_row(&members, PAGE),
            ["ARCHITECTURE.md: the table of crates has no row for crates/d"]
        );
    }
}

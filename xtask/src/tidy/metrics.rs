//! The page of metrics agrees with the code: it lists every name that an agent reports, and no other.

use std::collections::BTreeSet;

use super::source::Source;

/// The page.
pub(super) const PAGE: &str = "docs/reference/metrics.md";

/// What the name of a metric begins with.
const BEGINNINGS: &[&str] = &["nomad.nomad.", "nomad.client.", "drover."];

fn is_metric(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_lowercase() || matches!(c, '.' | '_' | '{' | '}');
    BEGINNINGS.iter().any(|begin| name.starts_with(begin)) && !name.ends_with('.') && name.chars().all(fits)
}

/// Names in the code of the agents: in files that make metrics, outside of tests.
pub(super) fn in_code(sources: &[Source]) -> BTreeSet<String> {
    let agents = ["crates/server/src/", "crates/server-http/src/", "crates/client/src/"];
    let ours = sources.iter().filter(|s| s.is("rs") && agents.iter().any(|of| s.path.starts_with(of)));
    let code = ours.map(|s| s.text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or_default());
    let making = code.filter(|code| code.contains("Gauge") || code.contains("samples"));
    making.flat_map(|code| code.split('"')).filter(|text| is_metric(text)).map(str::to_owned).collect()
}

/// Names in the first cells of the page's tables.
pub(super) fn in_page(page: &str) -> BTreeSet<String> {
    let cells = page.lines().filter_map(|line| line.strip_prefix("| `")).filter_map(|row| row.split('`').next());
    cells.map(str::to_owned).collect()
}

/// What only one of them names.
pub(super) fn compare(code: &BTreeSet<String>, page: &BTreeSet<String>) -> Vec<String> {
    let missing = code.difference(page).map(|name| format!("{PAGE} does not list `{name}`, which agents report"));
    let gone = page.difference(code).map(|name| format!("{PAGE} lists `{name}`, which no agent reports"));
    missing.chain(gone).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_that_is_not_listed_and_one_that_is_gone_are_found() {
        let code = "fn gauges() -> Vec<Gauge> {\n    add(\"drover.nodes\", 1.0);\n    \
            add(&format!(\"nomad.nomad.job_status.{status}\"), 2.0);\n\
                    facts(\"drover.version\");\n}\n#[cfg(test)]\nmod tests {\n    \"drover.fake\";\n}\n";
        let other = "facts.set(\"drover.version\");";
        let sources =
            [Source::new("crates/server-http/src/metrics.rs", code), Source::new("crates/client/src/facts.rs", other)];
        let page = in_page("| metric | value |\n|---|---|\n| `drover.nodes` | `b` |\n| `drover.old` | c |\n");
        let wrong = compare(&in_code(&sources), &page);
        let names = ["`drover.version`", "`nomad.nomad.job_status.{status}`", "`drover.old`"];
        assert!(wrong.len() == 3 && names.iter().zip(&wrong).all(|(name, line)| line.contains(name)), "{wrong:?}");
    }
}

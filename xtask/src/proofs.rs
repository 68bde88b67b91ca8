//! The table of `docs/internals/remote-tasks.md` that says which test proves which acceptance scenario: every scenario
//! has a line, and every test it names exists. What finds tests in a file serves `tidy` too.

/// Names of the tests in a file.
pub(crate) fn tests_in(text: &str) -> Vec<String> {
    let mut marked = false;
    let mut out = Vec::new();
    for line in text.lines().map(str::trim) {
        if line.starts_with("#[test") || line.starts_with("#[tokio::test") {
            marked = true;
        } else if let Some(rest) = line.strip_prefix("fn ").or_else(|| line.strip_prefix("async fn ")) {
            if std::mem::take(&mut marked) {
                out.extend(rest.split('(').next().map(str::to_owned));
            }
        } else if !line.starts_with("#[") && !line.starts_with("//") {
            marked = false;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use std::{
        collections::{BTreeMap, BTreeSet},
        fs,
        path::Path,
    };

    use super::tests_in;
    use crate::workspace;

    /// What the table's words stand for.
    const SOURCES: &[(&str, &str)] = &[
        ("model", "crates/lifecycle/tests/remote"),
        ("server", "crates/server/tests/cluster"),
        ("node", "crates/client/tests/node"),
        ("fleet", "crates/cli/tests/e2e"),
        ("placement", "crates/scheduler/tests/it"),
        ("ssh", "drivers/remote-exec/tests"),
        ("chaos", "xtask/src/chaos"),
    ];

    /// The scenarios.
    fn scenarios() -> BTreeSet<String> {
        (1..=35).map(|n| format!("A{n}")).collect()
    }

    /// A test as the table names it: where, and its name or the beginning of it.
    #[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
    struct Named {
        place: String,
        name: String,
    }

    /// Names of functions in a cell; each belongs to the word or path that was said last.
    fn named(cell: &str, first: &str) -> Result<Vec<Named>, String> {
        let mut place = first.to_owned();
        let mut out = Vec::new();
        for (i, part) in cell.split('`').enumerate() {
            if i % 2 == 0 {
                let words = part.split(|c: char| !c.is_alphanumeric());
                let said = words.filter_map(|word| SOURCES.iter().find(|(source, _)| *source == word)).next_back();
                if let Some((_, path)) = said {
                    (*path).clone_into(&mut place);
                }
            } else if part.contains('/') {
                part.trim_end_matches('/').clone_into(&mut place);
            } else if part.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_' || c == '…') {
                if place.is_empty() {
                    return Err(format!("it is not said where {part} is"));
                }
                out.push(Named { place: place.clone(), name: part.to_owned() });
            }
        }
        Ok(out)
    }

    /// The lines of the table: the scenario, the cell of the model, that of the real parts.
    fn rows(text: &str) -> BTreeMap<String, (String, String)> {
        let cells =
            |line: &str| line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
        let lines = text.lines().filter(|line| line.starts_with("| A")).map(cells);
        lines.filter_map(|c| Some((c.first()?.clone(), (c.get(1)?.clone(), c.get(2)?.clone())))).collect()
    }

    /// Names of the tests in a file, or in all files below a directory.
    fn tests_of(path: &Path, out: &mut BTreeSet<String>) {
        if path.is_dir() {
            for entry in fs::read_dir(path).into_iter().flatten().flatten() {
                tests_of(&entry.path(), out);
            }
        } else if path.extension().is_some_and(|e| e == "rs") {
            out.extend(tests_in(&fs::read_to_string(path).unwrap_or_default()));
        }
    }

    #[test]
    fn every_scenario_names_tests_that_exist() {
        let root = workspace::root();
        let text = fs::read_to_string(root.join("docs/internals/remote-tasks.md")).expect("the document");
        let rows = rows(&text);
        let mut wrong: Vec<String> =
            scenarios().iter().filter(|s| !rows.contains_key(*s)).map(|s| format!("{s} has no line")).collect();
        let mut known: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (scenario, (model, real)) in &rows {
            let both = named(model, SOURCES[0].1).and_then(|mut all| {
                all.extend(named(real, "")?);
                Ok(all)
            });
            let all = both.unwrap_or_else(|why| {
                wrong.push(format!("{scenario}: {why}"));
                Vec::new()
            });
            if all.is_empty() {
                wrong.push(format!("{scenario} names no test"));
            }
            for Named { place, name } in all {
                let tests = known.entry(place.clone()).or_insert_with(|| {
                    let mut tests = BTreeSet::new();
                    tests_of(&root.join(&place), &mut tests);
                    tests
                });
                let exists = match name.strip_suffix('…') {
                    Some(beginning) => tests.iter().any(|test| test.starts_with(beginning)),
                    None => tests.contains(&name),
                };
                if !exists {
                    wrong.push(format!("{scenario}: no test {name} in {place}"));
                }
            }
        }
        assert!(wrong.is_empty(), "docs/internals/remote-tasks.md says what is not so:\n{}", wrong.join("\n"));
    }

    #[test]
    fn the_table_is_read_as_it_is_meant() {
        let at = |place: &str, name: &str| Named { place: place.into(), name: name.into() };
        assert_eq!(
            named("server `a1_…` (slow); fleet `a2_…`, `x`; `drivers/mock/src/remote.rs` `late`", ""),
            Ok(vec![
                at("crates/server/tests/cluster", "a1_…"),
                at("crates/cli/tests/e2e", "a2_…"),
                at("crates/cli/tests/e2e", "x"),
                at("drivers/mock/src/remote.rs", "late")
            ])
        );
        assert!(named("`a1_…`", "").is_err());
        let rows = rows("| # | model |\n|---|---|\n| A1 | `a1_…` | fleet `x` | |\n");
        assert_eq!(rows, BTreeMap::from([("A1".to_owned(), ("`a1_…`".to_owned(), "fleet `x`".to_owned()))]));
        assert_eq!(
            tests_in(
                "#[test]\n#[ignore]\nfn one() {\n}\nfn two() {}\n#[tokio::test(start_paused = true)]\nasync fn \
                    three() {"
            ),
            ["one", "three"]
        );
    }
}

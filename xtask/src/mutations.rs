//! `cargo xtask mutations`: breaks each rule of remote tasks in turn, in a build of its own, and wants a test to fail.
//!
//! `crates/lifecycle/src/mutation.rs` lists the breaks. Each is played against the tests of the model in order of what
//! they cost, and the first that fails has caught it. A break that nothing catches is a gap of the tests: they get a
//! rule or a story more, and the break stays.

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Command, Stdio},
    time::Instant,
};

use anyhow::{Context, Result, bail, ensure};

use crate::{test_programs, workspace};

/// Chooses the break in a build that has the feature.
const CHOICE: &str = "DROVER_MUTATION";
/// The builds that have breaks. `--workspace`, because the crates below are built with these features already.
const BUILD: [&str; 5] = ["--workspace", "--features", "lifecycle/mutations", "--test", "remote"];
/// Tests of the model, the cheapest first. Not `faults`, which breaks the model itself.
const STAGES: [&[&str]; 3] = [
    &["charges::", "intents::", "levels::", "mutations::", "restored::", "scenarios::", "timed::"],
    &["simulate::"],
    &["model_check::"],
];
/// Letters of what a failed test has said.
const SAID: usize = 110;

/// A break: its name, and the rule that it breaks.
struct Mutation {
    name: String,
    rule: String,
}

/// The test that has caught a break, and what it said.
struct Caught {
    by: String,
    said: String,
    seconds: f64,
}

/// `mutations [--said] [--only NAME]…`. What the tests say is left out unless asked for: a log of CI is searched for
/// failures, and these are none.
pub(crate) fn run(args: &[&str]) -> Result<()> {
    let all = declared(&source()?);
    let (mut only, mut said) = (Vec::new(), false);
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let name = match *arg {
            "--said" => {
                said = true;
                continue;
            }
            "--only" => *args.next().context("--only takes the name of a mutation")?,
            other => bail!("mutations does not know {other:?}; it takes --said and --only NAME"),
        };
        let names = || all.iter().map(|mutation| mutation.name.as_str()).collect::<Vec<_>>().join(", ");
        ensure!(all.iter().any(|mutation| mutation.name == name), "no mutation {name:?}; there are {}", names());
        only.push(name);
    }
    let programs = test_programs::build(BUILD)?;
    let program = programs.iter().find(|program| program.name == "remote").context("cargo has built no tests")?;
    let begun = Instant::now();
    ensure!(caught(&program.path, "", STAGES[0])?.is_none(), "a test of the model fails without any break");
    let mut missed = Vec::new();
    let (title, line) = if said { (" what it says |", "---|") } else { ("", "") };
    println!("| mutation | rule | caught by | seconds |{title}\n|---|---|---|---|{line}");
    for mutation in all.iter().filter(|mutation| only.is_empty() || only.contains(&mutation.name.as_str())) {
        let found = STAGES.iter().find_map(|stage| caught(&program.path, &mutation.name, stage).transpose());
        let Mutation { name, rule } = mutation;
        match found.transpose()? {
            Some(caught) => {
                let Caught { by, seconds, .. } = &caught;
                let words = if said { format!(" {} |", caught.said) } else { String::new() };
                println!("| `{name}` | {rule} | `{by}` | {seconds:.1} |{words}");
            }
            None => {
                println!("| `{name}` | {rule} | NOTHING | |");
                missed.push(name.as_str());
            }
        }
    }
    println!("mutations: {:.0} s", begun.elapsed().as_secs_f64());
    ensure!(missed.is_empty(), "nothing catches {}: the tests lack a rule or a story", missed.join(", "));
    Ok(())
}

fn source() -> Result<String> {
    let path = workspace::root().join("crates/lifecycle/src/mutation.rs");
    std::fs::read_to_string(&path).with_context(|| format!("could not read {}", path.display()))
}

/// The breaks that the file declares: each a comment of one line, and its name.
fn declared(text: &str) -> Vec<Mutation> {
    let list = text.lines().skip_while(|line| *line != "mutations! {").skip(1).take_while(|line| *line != "}");
    let lines: Vec<&str> = list.map(str::trim).collect();
    let pairs = lines.chunks(2).filter_map(|pair| match pair {
        [rule, name] => Some((rule.strip_prefix("/// ")?, name.strip_suffix(',')?)),
        _ => None,
    });
    pairs.map(|(rule, name)| Mutation { name: name.to_owned(), rule: rule.trim_end_matches('.').to_owned() }).collect()
}

/// Runs these tests with a break until the first fails.
fn caught(program: &Path, mutation: &str, tests: &[&str]) -> Result<Option<Caught>> {
    let begun = Instant::now();
    let mut child = Command::new(program)
        .args(["--test-threads=2", "--nocapture"])
        .args(tests)
        .env(CHOICE, mutation)
        .env("RUST_BACKTRACE", "0")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("could not start {}", program.display()))?;
    let lines = BufReader::new(child.stderr.take().context("no stderr")?).lines().map_while(Result::ok);
    let found = first_failure(lines);
    if found.is_some() {
        // The others need not end.
        child.kill()?;
    }
    let status = child.wait()?;
    ensure!(found.is_some() || status.success(), "the tests ended with {status} and said nothing");
    Ok(found.map(|(by, said)| Caught { by, said, seconds: begun.elapsed().as_secs_f64() }))
}

/// The first test that fails, and the beginning of what it says.
fn first_failure(mut lines: impl Iterator<Item = String>) -> Option<(String, String)> {
    let by = lines.by_ref().find_map(|line| {
        let (name, _) = line.strip_prefix("thread '")?.split_once('\'')?;
        line.contains("panicked at").then(|| name.to_owned())
    })?;
    let words = lines.take_while(|line| !line.starts_with("note: ")).take(8).collect::<Vec<_>>().join(" ");
    let said = words.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "/");
    Some((by, said.chars().take(SAID).collect()))
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, fs};

    use serde_json::Value;

    use super::*;
    use crate::process::Run;

    #[test]
    fn each_break_is_in_one_place_and_in_the_table_of_the_documents() {
        let all = declared(&source().expect("the list"));
        assert!(all.len() >= 15, "{} breaks were read", all.len());
        let files =
            Run::new("git", ["ls-files", "--cached", "--others", "--exclude-standard", "crates/*.rs", "lib/*.rs"]);
        let files = files.dir(workspace::root()).output().expect("git lists files");
        let mut places: BTreeMap<&str, usize> = BTreeMap::new();
        for text in files.lines().filter_map(|path| fs::read_to_string(workspace::root().join(path)).ok()) {
            for mutation in &all {
                let used = text.contains(&format!("Mutation::{})", mutation.name));
                *places.entry(&mutation.name).or_default() += usize::from(used);
            }
        }
        let page = fs::read_to_string(workspace::root().join("docs/internals/proof.md")).expect("the page");
        for Mutation { name, rule } in &all {
            assert!(places[name.as_str()] > 0, "{name} breaks nothing");
            assert!(page.contains(&format!("| `{name}` | {rule} |")), "docs/internals/proof.md lacks {name}: {rule}");
        }
        let rows = page.lines().filter(|line| line.starts_with("| `")).count();
        assert_eq!(rows, all.len(), "docs/internals/proof.md names breaks that do not exist");
    }

    /// What ships, as cargo plans to build it: no crate has the feature.
    #[test]
    fn the_shipped_program_has_no_breaks() {
        let plan = |words: &[&str]| {
            let words = words.iter().chain(&["--offline", "-Zunstable-options", "--unit-graph"]).copied();
            let cargo = Run::new("cargo", words).dir(workspace::root()).env("RUSTC_BOOTSTRAP", "1");
            serde_json::from_str::<Value>(&cargo.output().expect("cargo plans")).expect("JSON")
        };
        let with = |plan: &Value| {
            let units = plan["units"].as_array().expect("units").iter();
            let has = |unit: &&Value| unit["features"].as_array().is_some_and(|all| all.contains(&"mutations".into()));
            units.filter(has).count()
        };
        assert_eq!(with(&plan(&["build", "--release", "--bin", "drover"])), 0);
        assert_eq!(with(&plan(&["build", "--release", "--workspace"])), 0);
        assert!(with(&plan(&["test", "--no-run"].iter().chain(&BUILD).copied().collect::<Vec<_>>())) > 0);
    }

    #[test]
    fn the_first_failure_is_told_in_one_line() {
        let lines = "test a ... ok\nthread 'scenarios::b' (7) panicked at a.rs:1:2:\n\
                     assertion failed: x | y\n  left: 1\nnote: run with\nthread 'c' (8) panicked at";
        let found = first_failure(lines.lines().map(str::to_owned));
        assert_eq!(found, Some(("scenarios::b".to_owned(), "assertion failed: x / y left: 1".to_owned())));
        assert_eq!(first_failure(std::iter::once("test result: ok".to_owned())), None);
    }
}

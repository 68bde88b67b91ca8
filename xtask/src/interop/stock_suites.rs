//! The stock project's own tests, unedited, against Drover: what they find is found as they say it.
//!
//! Tests that cannot pass yet stand in a list, each with its reason. A test of the list that passes fails the check as
//! well as one that fails and does not stand there: the list stays true. One whose reason begins with `by chance: ` may
//! do either.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::cluster::program;
use crate::{
    local::{self, until},
    packages, peer,
    process::Run,
    workspace,
};

/// How the reason begins of a test that passes at times, for what lies in the test.
const BY_CHANCE: &str = "by chance: ";

/// What became of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Passed,
    Failed,
    Skipped,
}

/// Tests by their names, and what they printed.
#[derive(Default)]
pub(super) struct Results {
    outcomes: BTreeMap<String, Outcome>,
    output: BTreeMap<String, String>,
}

impl Results {
    /// Reads the events of `go tool test2json`; `prefix` goes before the names.
    pub(super) fn read(&mut self, events: &str, prefix: &str) -> Result<()> {
        for line in events.lines() {
            let event: Value = serde_json::from_str(line).with_context(|| format!("not an event of a test: {line}"))?;
            let Some(test) = event["Test"].as_str() else { continue };
            let name = format!("{prefix}{test}");
            match event["Action"].as_str() {
                Some("run") => {
                    // Until it has ended: a test in whose middle the program dies has failed.
                    self.outcomes.insert(name, Outcome::Failed);
                }
                Some("pass") => {
                    self.outcomes.insert(name, Outcome::Passed);
                }
                Some("fail") => {
                    self.outcomes.insert(name, Outcome::Failed);
                }
                Some("skip") => {
                    self.outcomes.insert(name, Outcome::Skipped);
                }
                Some("output") => {
                    self.output.entry(name).or_default().push_str(event["Output"].as_str().unwrap_or_default())
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Tests that did not pass, without those that only tell of a part of theirs.
    fn not_passed(&self) -> BTreeMap<&str, Outcome> {
        let failed = |outcome: Outcome| outcome != Outcome::Passed;
        let has_part = |name: &str| {
            let parts = format!("{name}/");
            self.outcomes
                .range(parts.clone()..)
                .take_while(|(other, _)| other.starts_with(&parts))
                .any(|(_, outcome)| failed(*outcome))
        };
        self.outcomes
            .iter()
            .filter(|(name, outcome)| failed(**outcome) && !has_part(name))
            .map(|(name, o)| (name.as_str(), *o))
            .collect()
    }

    /// What contradicts the list.
    pub(super) fn against(&self, listed: &BTreeMap<String, String>) -> Vec<String> {
        let not_passed = self.not_passed();
        let mut wrong = Vec::new();
        for (name, outcome) in &not_passed {
            if !listed.contains_key(*name) {
                let output = self.output.get(*name).map_or("", String::as_str);
                let lines: Vec<&str> = output.lines().filter(|line| !line.trim().is_empty()).collect();
                let end = lines[lines.len().saturating_sub(25)..].join("\n    ");
                wrong.push(format!("{name}: {outcome:?}, and it is not listed:\n    {end}"));
            }
        }
        for (name, reason) in listed {
            match self.outcomes.get(name) {
                Some(Outcome::Passed) if reason.starts_with(BY_CHANCE) => {}
                None => wrong.push(format!("{name}: listed, and there is no such test")),
                Some(Outcome::Passed) => wrong.push(format!("{name}: listed, and it passes; take it off the list")),
                Some(_) if !not_passed.contains_key(name.as_str()) => {
                    wrong.push(format!("{name}: listed, and only parts of it fail; list them"));
                }
                Some(_) => {}
            }
        }
        wrong
    }

    /// How many passed of how many, tests with parts not counted twice.
    pub(super) fn summary(&self) -> String {
        let leaves = |wanted: Option<Outcome>| {
            let is_leaf = |name: &str| {
                let parts = format!("{name}/");
                !self.outcomes.range(parts.clone()..).next().is_some_and(|(other, _)| other.starts_with(&parts))
            };
            self.outcomes
                .iter()
                .filter(|(name, outcome)| is_leaf(name) && wanted.is_none_or(|wanted| wanted == **outcome))
                .count()
        };
        format!(
            "{} of {} tests passed, {} skip themselves",
            leaves(Some(Outcome::Passed)),
            leaves(None),
            leaves(Some(Outcome::Skipped))
        )
    }
}

/// Reads a list: a test and the reason why it cannot pass in each line, apart by two blanks; `#` begins a comment.
pub(super) fn read_list(text: &str) -> Result<BTreeMap<String, String>> {
    let mut listed = BTreeMap::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let Some((name, reason)) = line.split_once("  ") else { bail!("no reason in this line of the list: {line}") };
        ensure!(listed.insert(name.to_owned(), reason.trim().to_owned()).is_none(), "listed twice: {name}");
    }
    Ok(listed)
}

/// The list of this name.
pub(super) fn list(name: &str) -> Result<BTreeMap<String, String>> {
    let file = workspace::root().join("xtask/interop").join(name);
    read_list(&fs::read_to_string(&file).with_context(|| format!("could not read {}", file.display()))?)
}

/// A directory of a suite: programs in `bin`, temporary files in `tmp`. Everything that lives there is ended with it.
pub(super) struct Place(PathBuf);

impl Place {
    pub(super) fn new(name: &str) -> Result<Self> {
        let dir = std::env::temp_dir().join(format!("drover-interop-{name}-{}", std::process::id()));
        drop(fs::remove_dir_all(&dir));
        for inner in ["bin", "tmp"] {
            fs::create_dir_all(dir.join(inner))?;
        }
        Ok(Self(dir))
    }
    /// A name in it.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
    /// A program that is found under this name.
    pub(super) fn offer(&self, name: &str, program: &Path) -> Result<()> {
        std::os::unix::fs::symlink(program, self.0.join("bin").join(name))
            .with_context(|| format!("could not offer {name}"))
    }
    /// Runs a compiled test program and returns its events. However it ends: the events say which tests have failed.
    pub(super) fn run(
        &self,
        tests: &Path,
        cwd: &Path,
        args: &[&str],
        env: &[(&str, &str)],
        bound: Duration,
    ) -> Result<String> {
        let printed = self.0.join("printed");
        let path = std::env::join_paths(
            std::iter::once(self.0.join("bin"))
                .chain(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())),
        )?;
        // Not through a pipe: agents that failed tests leave behind would hold it.
        let mut child = Command::new(tests)
            .arg("-test.v=test2json")
            .arg(format!("-test.timeout={}s", bound.as_secs()))
            .args(args)
            .env("PATH", path)
            .env("TMPDIR", self.0.join("tmp"))
            .envs(env.iter().copied())
            .current_dir(cwd)
            .stdin(Stdio::null())
            .stdout(fs::File::create(&printed)?)
            .stderr(fs::File::create(self.0.join("stderr"))?)
            .spawn()
            .with_context(|| format!("could not start {}", tests.display()))?;
        // The tests' own limit comes first and names the test that hangs.
        let ended = until("the end of the tests", bound + Duration::from_secs(30), || Ok(child.try_wait()?));
        if ended.is_err() {
            drop(child.kill());
            drop(child.wait());
        }
        local::end_all(&self.0)?;
        ended?;
        Run::new(packages::go()?, ["tool", "test2json", "-t"]).input(fs::read(&printed)?).output()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        local::remove(&self.0);
    }
}

/// Tests of locks against a server of their own: they measure times, know nothing of an agent, and end the whole
/// program when the machine is busy.
const NO_AGENT: &str = "-test.skip=^(TestAcquireLock_MultipleInstances|TestFailedRenewal|\
    TestStart_ProtectedFunctionError|Test_EarlyReturn)$";

/// Tests that wait for two to five seconds, which six agents at once can take on a busy machine: whether that is what
/// a failure says shows when they are played again. All others count at once.
const HASTY: &[&str] = &["TestAgent_", "TestDeployments_", "TestEvent"];

/// The tests of the Go `api` module.
pub(crate) fn api() -> Result<()> {
    packages::need_go()?;
    let tests = peer::api_tests(&peer::NOMAD_1_9)?;
    let place = Place::new("api-tests")?;
    place.offer("nomad", &program())?;
    // Nothing may answer where a client looks that nobody has told of an agent.
    let env = [("NOMAD_ADDR", "http://127.0.0.1:9")];
    let events = place.run(
        &tests,
        &peer::api_module(&peer::NOMAD_1_9)?,
        &["-test.parallel=6", NO_AGENT],
        &env,
        Duration::from_secs(600),
    )?;
    let mut results = Results::default();
    results.read(&events, "")?;
    let against = results.against(&list("stock-api-tests.txt")?);
    let hasty = |name: &&str| HASTY.iter().any(|prefix| name.starts_with(prefix));
    let again: BTreeSet<&str> = against.iter().filter_map(|text| text.split([':', '/']).next()).filter(hasty).collect();
    if !again.is_empty() {
        let only = format!("-test.run=^({})$", again.into_iter().collect::<Vec<_>>().join("|"));
        eprintln!("  played again, one after the other, for they wait three seconds at most: {only}\n{against:#?}");
        let args = ["-test.parallel=1", only.as_str(), NO_AGENT];
        let module = peer::api_module(&peer::NOMAD_1_9)?;
        results.read(&place.run(&tests, &module, &args, &env, Duration::from_secs(600))?, "")?;
    }
    judge(&results, "stock-api-tests.txt", 200)
}

/// Compares with the list of this name; `least`: how many tests there must be.
pub(super) fn judge(results: &Results, listed: &str, least: usize) -> Result<()> {
    eprintln!("  {}", results.summary());
    ensure!(
        results.outcomes.len() >= least,
        "only {} tests were run, there should be at least {least}",
        results.outcomes.len()
    );
    let wrong = results.against(&list(listed)?);
    ensure!(wrong.is_empty(), "{} contradictions to xtask/interop/{listed}:\n{}", wrong.len(), wrong.join("\n"));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVENTS: &str = r#"{"Action":"start","Package":"api"}
{"Action":"run","Test":"TestA"}
{"Action":"output","Test":"TestA","Output":"bad\n"}
{"Action":"run","Test":"TestA/one"}
{"Action":"pass","Test":"TestA/one"}
{"Action":"run","Test":"TestA/two"}
{"Action":"output","Test":"TestA/two","Output":"why\n"}
{"Action":"fail","Test":"TestA/two"}
{"Action":"fail","Test":"TestA"}
{"Action":"run","Test":"TestB"}
{"Action":"pass","Test":"TestB"}
{"Action":"run","Test":"TestC"}
{"Action":"skip","Test":"TestC"}
{"Action":"run","Test":"TestD"}
"#;

    fn contradictions(list: &str) -> Vec<String> {
        let mut results = Results::default();
        results.read(EVENTS, "").expect("events");
        let wrong = results.against(&read_list(list).expect("a list"));
        wrong.into_iter().map(|text| text.lines().next().unwrap_or_default().to_owned()).collect()
    }

    #[test]
    fn a_true_list_has_every_test_that_did_not_pass_and_no_other() {
        let all = "# why\nTestA/two  a reason\nTestC  it skips itself\nTestD  the program dies in it\n";
        assert_eq!(contradictions(all), <[String; 0]>::default());
        let by_chance = format!("{all}TestB  by chance: it measures time\n").replace("a reason", "by chance: another");
        assert_eq!(contradictions(&by_chance), <[String; 0]>::default());
        assert_eq!(
            contradictions("TestA  whole\nTestB  fine\nTestE  gone\n"),
            [
                "TestA/two: Failed, and it is not listed:",
                "TestC: Skipped, and it is not listed:",
                "TestD: Failed, and it is not listed:",
                "TestA: listed, and only parts of it fail; list them",
                "TestB: listed, and it passes; take it off the list",
                "TestE: listed, and there is no such test",
            ]
        );
    }

    #[test]
    fn a_line_of_the_list_needs_its_reason() {
        assert!(read_list("TestA\n").is_err());
        assert!(read_list("TestA  x\nTestA  y\n").is_err());
    }

    #[test]
    fn tests_with_parts_are_counted_once() {
        let mut results = Results::default();
        results.read(EVENTS, "p.").expect("events");
        assert_eq!(results.summary(), "2 of 5 tests passed, 1 skip themselves");
        assert!(results.outcomes.contains_key("p.TestA/one"));
    }
}

//! What `POST /v1/jobs/parse` answers, against the reference parser: every job file of the stock tree, without and with
//! `Canonicalize`.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::cluster::Agent;
use crate::{packages, peer, process::Run};

/// Files that the tree has at least; fewer were found by looking in the wrong place.
const LEAST: usize = 200;
/// How many places are shown.
const SHOWN: usize = 40;

/// Job files: by their name, and because a job begins in them.
fn job_files(dir: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(dir).with_context(|| format!("could not read {}", dir.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            job_files(&path, found)?;
        } else if path.extension().is_some_and(|e| e == "nomad" || e == "hcl") {
            let text = fs::read_to_string(&path).unwrap_or_default();
            if text.lines().any(|line| {
                line.trim_start().strip_prefix("job").is_some_and(|rest| rest.starts_with([' ', '\t', '"']))
            }) {
                found.push(path);
            }
        }
    }
    Ok(())
}

/// Where two documents differ: place with list positions left out → how often, and the first pair.
#[derive(Default)]
struct Differences(BTreeMap<String, (usize, String)>);

impl Differences {
    fn compare(&mut self, wanted: &Value, got: &Value, place: &str, file: &Path) {
        match (wanted, got) {
            (Value::Object(wanted), Value::Object(got)) => {
                for name in wanted.keys().chain(got.keys().filter(|name| !wanted.contains_key(*name))) {
                    let (wanted, got) = (wanted.get(name), got.get(name));
                    let absent = json!("(not there)");
                    self.compare(wanted.unwrap_or(&absent), got.unwrap_or(&absent), &format!("{place}.{name}"), file);
                }
            }
            (Value::Array(wanted), Value::Array(got)) if wanted.len() == got.len() => {
                for (wanted, got) in wanted.iter().zip(got) {
                    self.compare(wanted, got, &format!("{place}[]"), file);
                }
            }
            _ if wanted == got => {}
            _ => self.note(place, || format!("{}: {got}, the reference says {wanted}", file.display())),
        }
    }
    fn note(&mut self, place: &str, first: impl FnOnce() -> String) {
        self.0.entry(place.to_owned()).or_insert_with(|| (0, first())).0 += 1;
    }
    fn text(&self) -> String {
        let mut lines: Vec<(usize, String)> =
            self.0.iter().map(|(place, (n, first))| (*n, format!("{n} × {place} ({first})"))).collect();
        lines.sort_by(|a, b| b.cmp(a));
        lines
            .into_iter()
            .take(SHOWN)
            .map(|(_, line)| line.chars().take(500).collect())
            .collect::<Vec<String>>()
            .join("\n")
    }
}

/// The check.
pub(crate) fn check() -> Result<()> {
    packages::need_go()?;
    let reference = peer::GO_JOBS_PARSE.cached()?;
    let mut files = Vec::new();
    job_files(&peer::nomad_module(&peer::NOMAD_1_9)?, &mut files)?;
    ensure!(files.len() >= LEAST, "the stock tree has {} job files, there should be at least {LEAST}", files.len());
    files.sort();
    let names: Vec<String> = files.iter().map(|f| f.to_string_lossy().into_owned()).collect();
    let answers = Run::new(reference, Vec::<String>::new()).input(names.join("\n")).output()?;

    let agent = Agent::start("jobs-parse", &[], "")?;
    crate::local::until("an answer of the agent", std::time::Duration::from_secs(60), || {
        agent.get("/v1/status/leader").map(Some)
    })?;
    let (mut equal, mut different, mut unreadable, mut differences) = (0, 0, 0, Differences::default());
    for line in answers.lines() {
        let answer: Value = serde_json::from_str(line).context("the reference printed something that is not JSON")?;
        let file = Path::new(answer["file"].as_str().context("the reference named no file")?);
        let refused = answer["error"].as_str().filter(|e| !e.is_empty());
        unreadable += usize::from(refused.is_some());
        let text = fs::read_to_string(file)?;
        for (which, canonicalize) in [("plain", false), ("canonical", true)] {
            let (status, body) =
                agent.put_text("/v1/jobs/parse", &json!({ "JobHCL": text, "Canonicalize": canonicalize }))?;
            let same = match (refused, status) {
                (Some(_), 400) => continue,
                (None, 200) => {
                    let got: Value =
                        serde_json::from_str(&body).context("the agent answered something that is not JSON")?;
                    differences.compare(&answer[which], &got, which, file);
                    got == answer[which]
                }
                _ => {
                    differences.note("verdict", || {
                        format!("{}: {status} {body}, the reference says {refused:?}", file.display())
                    });
                    false
                }
            };
            *if same { &mut equal } else { &mut different } += 1;
        }
    }
    eprintln!(
        "  {} files, {unreadable} are refused by both; of the documents {equal} are equal, {different} differ",
        files.len()
    );
    ensure!(different == 0, "{different} of {} documents differ:\n{}", equal + different, differences.text());
    Ok(())
}

//! What people and programs are told.

use std::fmt;
use std::time::Duration;

use serde_json::{Value, json};

use crate::check::Check;
use crate::outcome::Verdict;

/// One check and what became of it.
#[derive(Debug, Clone)]
pub struct Finding {
    /// The check.
    pub check: &'static Check,
    /// What became of it.
    pub verdict: Verdict,
    /// How long it took, with launch and sweep.
    pub took: Duration,
}

impl Finding {
    /// One line, and for a failure what was seen and what it means.
    pub fn lines(&self) -> String {
        let Check { id, title, meaning, .. } = self.check;
        match &self.verdict {
            Verdict::Passed => format!("pass  {id:<30} {title}"),
            Verdict::Failed(seen) => {
                format!(
                    "FAIL  {id:<30} {title}\n      seen:  {}\n      means: {meaning}",
                    seen.replace('\n', "\n             ")
                )
            }
            Verdict::NotApplicable(why) => format!("n.a.  {id:<30} {title}: {why}"),
        }
    }
}

/// What became of all checks.
#[derive(Debug, Clone)]
pub struct Report {
    /// Name of the driver, when it told it.
    pub driver: String,
    /// Why the plugin could not be asked who it is; most checks then fail for the same reason.
    pub trouble: Option<String>,
    /// In the order of the list of checks.
    pub findings: Vec<Finding>,
}

impl Report {
    /// Whether no check has failed, and at least one has run.
    pub fn passed(&self) -> bool {
        self.count().1 == 0 && !self.findings.is_empty()
    }

    /// Ids of the checks that failed.
    pub fn failures(&self) -> Vec<&'static str> {
        self.findings.iter().filter(|f| matches!(f.verdict, Verdict::Failed(_))).map(|f| f.check.id).collect()
    }

    /// Ids of the checks that were not applicable.
    pub fn not_applicable(&self) -> Vec<&'static str> {
        self.findings.iter().filter(|f| matches!(f.verdict, Verdict::NotApplicable(_))).map(|f| f.check.id).collect()
    }

    /// Passed, failed, not applicable.
    pub fn count(&self) -> (usize, usize, usize) {
        let count = |wanted: fn(&Verdict) -> bool| self.findings.iter().filter(|f| wanted(&f.verdict)).count();
        (
            count(|v| matches!(v, Verdict::Passed)),
            count(|v| matches!(v, Verdict::Failed(_))),
            count(|v| matches!(v, Verdict::NotApplicable(_))),
        )
    }

    /// The last line.
    pub fn summary(&self) -> String {
        let (passed, failed, other) = self.count();
        let name = if self.driver.is_empty() { "a plugin that did not tell its name" } else { &self.driver };
        format!("driver {name}: {passed} passed, {failed} failed, {other} not applicable")
    }

    /// For programs.
    pub fn to_json(&self) -> Value {
        let finding = |finding: &Finding| {
            let (verdict, text) = match &finding.verdict {
                Verdict::Passed => ("pass", None),
                Verdict::Failed(seen) => ("fail", Some(seen)),
                Verdict::NotApplicable(why) => ("not_applicable", Some(why)),
            };
            json!({
                "id": finding.check.id,
                "section": finding.check.section,
                "title": finding.check.title,
                "meaning": finding.check.meaning,
                "verdict": verdict,
                "text": text,
                "milliseconds": u64::try_from(finding.took.as_millis()).unwrap_or(u64::MAX),
            })
        };
        let (passed, failed, other) = self.count();
        json!({
            "driver": self.driver,
            "trouble": self.trouble,
            "passed": passed,
            "failed": failed,
            "not_applicable": other,
            "checks": self.findings.iter().map(finding).collect::<Vec<_>>(),
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for finding in &self.findings {
            writeln!(f, "{}", finding.lines())?;
        }
        write!(f, "{}", self.summary())
    }
}

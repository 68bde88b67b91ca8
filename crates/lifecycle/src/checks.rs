//! Checks of services: from single runs to a status, from a status to a restart.
//!
//! ```text
//!            success_before_passing good runs in a row
//! pending ─────────────────────────────────────────────► success ◄─┐
//!    │  failures_before_warning bad runs ─► warning ────────────────┤
//!    └─ failures_before_critical bad runs in a row ─► failure ──────┘
//! ```
//!
//! A run without a result changes nothing: the driver's plugin is away, or the agent is still recovering the task. A
//! check restarts its task after as many unhealthy runs in a row as `check_restart` allows. Runs within the grace after
//! the start do not count.

use model::{
    Check, CheckStatus, GoDuration, Service, TaskGroup, TimestampNs,
    service::{CheckRestart, on_update},
};
use serde::{Deserialize, Serialize};

use crate::services::declared;

/// The grace of a `check_restart` that sets none.
const DEFAULT_GRACE: GoDuration = GoDuration::from_secs(1);

/// A check of a group.
#[derive(Clone, Copy, Debug)]
pub struct CheckSpec<'a> {
    /// The service.
    pub service: &'a Service,
    /// The task that the service belongs to; None = the group.
    pub task: Option<&'a str>,
    /// The check.
    pub check: &'a Check,
}

/// Every check of a group and its tasks.
pub fn specs(group: &TaskGroup) -> impl Iterator<Item = CheckSpec<'_>> {
    declared(group)
        .flat_map(|(service, task)| service.checks.iter().map(move |check| CheckSpec { service, task, check }))
}

impl<'a> CheckSpec<'a> {
    /// Key of the check while the job declares it, unique within the group.
    #[must_use]
    pub fn key(&self) -> String {
        format!(
            "{}/{}:{}/{}",
            self.task.unwrap_or_default(),
            self.service.name,
            self.service.port_label,
            self.check.name
        )
    }
    /// Whether deployments ignore it.
    #[must_use]
    pub fn readiness(&self) -> bool {
        self.check.on_update == on_update::IGNORE
    }
    /// Whether that status satisfies a deployment.
    #[must_use]
    pub fn healthy(&self, status: CheckStatus) -> bool {
        match status {
            CheckStatus::Success => true,
            CheckStatus::Warning => self.check.on_update == on_update::IGNORE_WARNINGS,
            CheckStatus::Pending | CheckStatus::Failure => false,
        }
    }
    /// The state before its first run.
    #[must_use]
    pub fn begin(&self, now: TimestampNs) -> CheckState {
        let status = match self.check.initial_status.as_str() {
            "passing" => CheckStatus::Success,
            "warning" => CheckStatus::Warning,
            "critical" => CheckStatus::Failure,
            _ => CheckStatus::Pending,
        };
        CheckState { status, since: now, begun: now, ..CheckState::default() }
    }
    /// The check's own rule, else that of its service; `None` = it restarts nothing.
    #[must_use]
    pub fn restart(&self) -> Option<&'a CheckRestart> {
        self.check.check_restart.as_ref().or(self.service.check_restart.as_ref()).filter(|r| r.limit > 0)
    }
}

/// What a run of a check has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It passes.
    Pass,
    /// It warns.
    Warn,
    /// It fails.
    Fail,
}

/// State of a check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CheckState {
    /// Its status.
    pub status: CheckStatus,
    /// Since when it has this status.
    pub since: TimestampNs,
    /// When it began, with its service's registration.
    pub begun: TimestampNs,
    /// Good runs in a row.
    pub successes: u32,
    /// Bad runs in a row.
    pub failures: u32,
    /// Runs in a row with an unhealthy status, for `check_restart`.
    pub unhealthy: u32,
}

/// Consequence of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing more.
    GoesOn,
    /// The task must restart.
    Restart {
        /// The reason, for people.
        why: String,
    },
}

impl CheckState {
    /// Counts a run and decides.
    pub fn observe(&mut self, spec: &CheckSpec<'_>, outcome: Outcome, now: TimestampNs) -> Verdict {
        let check = spec.check;
        let at_least = |n: i32| u32::try_from(n).unwrap_or(0).max(1);
        let status = match outcome {
            Outcome::Pass => {
                self.failures = 0;
                // Counted only up to the threshold: the state of an unchanged check stays equal.
                self.successes = self.successes.saturating_add(1).min(at_least(check.success_before_passing));
                (self.successes >= at_least(check.success_before_passing)).then_some(CheckStatus::Success)
            }
            Outcome::Warn => {
                // A warning resets both counts.
                self.successes = 0;
                self.failures = 0;
                Some(CheckStatus::Warning)
            }
            Outcome::Fail => {
                self.successes = 0;
                self.failures = self.failures.saturating_add(1).min(at_least(check.failures_before_critical));
                if self.failures >= at_least(check.failures_before_critical) {
                    Some(CheckStatus::Failure)
                } else if check.failures_before_warning > 0 && self.failures >= at_least(check.failures_before_warning)
                {
                    Some(CheckStatus::Warning)
                } else {
                    None
                }
            }
        };
        if let Some(status) = status.filter(|s| *s != self.status) {
            self.status = status;
            self.since = now;
        }
        self.restart(spec, now)
    }

    fn restart(&mut self, spec: &CheckSpec<'_>, now: TimestampNs) -> Verdict {
        let Some(rule) = spec.restart() else { return Verdict::GoesOn };
        let bad = match self.status {
            CheckStatus::Failure => true,
            CheckStatus::Warning => !rule.ignore_warnings,
            CheckStatus::Pending | CheckStatus::Success => false,
        };
        let grace = rule.grace.unwrap_or(DEFAULT_GRACE);
        if !bad || now < self.begun.saturating_add(grace.nanos()) {
            self.unhealthy = 0;
            return Verdict::GoesOn;
        }
        self.unhealthy = self.unhealthy.saturating_add(1);
        if self.unhealthy < u32::try_from(rule.limit).unwrap_or(1) {
            return Verdict::GoesOn;
        }
        self.unhealthy = 0;
        let times = if rule.limit == 1 { "once".to_owned() } else { format!("{} times in a row", rule.limit) };
        Verdict::Restart {
            why: format!("check {:?} of service {:?} was unhealthy {times}", spec.check.name, spec.service.name),
        }
    }
}

/// A check from a deployment's view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckHealth {
    /// For people.
    pub name: String,
    /// Since when it satisfies the deployment; `None` = it does not.
    pub healthy_since: Option<TimestampNs>,
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: i64 = 1_000_000_000;

    /// Runs by letter (p, w, f) a second apart; the first letter of the status after each, `R` where a restart follows.
    fn play(check: Check, runs: &str) -> String {
        let service = Service { name: "s".into(), ..Service::default() };
        let spec = CheckSpec { service: &service, task: None, check: &check };
        let mut state = spec.begin(0);
        let mut said = String::new();
        for (i, run) in (1..).zip(runs.chars()) {
            let outcome = match run {
                'p' => Outcome::Pass,
                'w' => Outcome::Warn,
                _ => Outcome::Fail,
            };
            let verdict = state.observe(&spec, outcome, i * S);
            let status = &state.status.as_str()[..1];
            said.push_str(if verdict == Verdict::GoesOn { status } else { "R" });
        }
        said
    }

    fn restart(limit: i32, grace: i64, ignore_warnings: bool) -> Option<CheckRestart> {
        Some(CheckRestart { limit, grace: Some(GoDuration::from_secs(grace)), ignore_warnings })
    }

    #[test]
    fn statuses_follow_from_runs_in_a_row() {
        let check = |pass: i32, critical: i32, warning: i32, initial: &str| Check {
            name: "c".into(),
            success_before_passing: pass,
            failures_before_critical: critical,
            failures_before_warning: warning,
            initial_status: initial.into(),
            ..Check::default()
        };
        for (check, runs, expected) in [
            (check(0, 0, 0, ""), "pfpw", "sfsw"),
            (check(3, 0, 0, ""), "ppfppp", "ppfffs"),
            (check(0, 3, 0, ""), "pffpfff", "ssssssf"),
            (check(0, 3, 2, ""), "pfff", "sswf"),
            (check(0, 2, 0, "passing"), "ffw", "sfw"),
            (check(2, 0, 0, "critical"), "pp", "fs"),
            // A warning between failures begins the count anew.
            (check(0, 2, 0, ""), "fwff", "pwwf"),
        ] {
            assert_eq!(play(check.clone(), runs), expected, "{runs} of {check:?}");
        }
    }

    #[test]
    fn since_is_the_time_of_the_change() {
        let (service, check) = (Service::default(), Check::default());
        let spec = CheckSpec { service: &service, task: None, check: &check };
        let mut state = spec.begin(5);
        state.observe(&spec, Outcome::Pass, 10);
        state.observe(&spec, Outcome::Pass, 20);
        assert_eq!((state.status, state.since, state.begun), (CheckStatus::Success, 10, 5));
    }

    #[test]
    fn restarts_follow_from_unhealthy_runs_in_a_row_after_the_grace() {
        let check = |restart| Check { name: "c".into(), check_restart: restart, ..Check::default() };
        for (check, runs, expected) in [
            (check(None), "ffffff", "ffffff"),
            (check(restart(0, 0, false)), "ffff", "ffff"),
            (check(restart(1, 0, false)), "pfp", "sRs"),
            (check(restart(3, 0, false)), "ffpfff", "ffsffR"),
            // Runs within the grace are not counted.
            (check(restart(2, 3, false)), "ffffff", "fffRfR"),
            (check(restart(2, 0, false)), "wwp", "wRs"),
            (check(restart(2, 0, true)), "wwwff", "wwwfR"),
        ] {
            assert_eq!(play(check.clone(), runs), expected, "{runs} of {check:?}");
        }
    }

    #[test]
    fn a_check_without_a_rule_has_that_of_its_service() {
        let service = Service { name: "s".into(), check_restart: restart(2, 0, false), ..Service::default() };
        let (own, none) = (Check { check_restart: restart(5, 0, false), ..Check::default() }, Check::default());
        let limit = |check| CheckSpec { service: &service, task: None, check }.restart().map(|r| r.limit);
        assert_eq!((limit(&own), limit(&none)), (Some(5), Some(2)));
    }
}

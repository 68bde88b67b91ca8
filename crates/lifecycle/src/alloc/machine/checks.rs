//! Checks of services: their statuses, their part in health, and the restarts that they ask for.

use std::sync::Arc;

use model::{CheckResult, Job, Observed};
use sha2::{Digest, Sha256};

use super::{After, Effect, Kill, Machine, Now, Phase};
use crate::{
    alloc::{
        events,
        record::{CheckRecord, CheckRun},
    },
    checks::{self, CheckHealth, CheckSpec, Outcome, Verdict},
    services::{members, stands},
};

impl Machine {
    /// Keeps the state of each check while its service is registered. Idempotent.
    pub(super) fn look_at_checks(&mut self, now: Now) {
        let job = self.job.clone();
        // While a remote task's state is unknown, its checks keep their state.
        if !self.services_known() {
            return;
        }
        let specs = specs(&job, &self.record.alloc.task_group);
        if specs.is_empty() && self.record.checks.is_empty() {
            return;
        }
        let (tasks, stopping) = (self.task_views(), self.ending().is_some());
        let mut before = std::mem::take(&mut self.record.checks);
        for spec in specs.iter().filter(|s| stands(s.service, s.task, &tasks, stopping)) {
            let key = spec.key();
            let record = before
                .remove(&key)
                .unwrap_or_else(|| CheckRecord { state: spec.begin(now.time), run: CheckRun::default() });
            self.record.checks.insert(key, record);
        }
        let known = &self.record.checks;
        self.check_runs.retain(|key, _| known.contains_key(key));
    }

    pub(super) fn checked(
        &mut self,
        key: &str,
        outcome: Option<Outcome>,
        run: CheckRun,
        now: Now,
        out: &mut Vec<Effect>,
    ) {
        let job = self.job.clone();
        let specs = specs(&job, &self.record.alloc.task_group);
        let (Some(spec), Some(record)) = (specs.iter().find(|s| s.key() == key), self.record.checks.get_mut(key))
        else {
            return;
        };
        if let Some(outcome) = outcome {
            let before = record.state;
            let verdict = record.state.observe(spec, outcome, now.time);
            if record.state != before {
                record.run = run.clone();
            }
            if let Verdict::Restart { why } = verdict {
                self.restart_unhealthy(spec, &why, now, out);
            }
        }
        self.check_runs.insert(key.to_owned(), run);
    }

    /// Stops the tasks of an unhealthy check and counts them as failed.
    fn restart_unhealthy(&mut self, spec: &CheckSpec<'_>, why: &str, now: Now, out: &mut Vec<Effect>) {
        let tasks = self.task_views();
        let named = Some(&*spec.check.task).filter(|t| !t.is_empty()).or(spec.task);
        let names: Vec<Arc<str>> = members(spec.service, named, &tasks).into_iter().map(|t| t.name.clone()).collect();
        for name in names {
            let Some(slot) = self.slots.get_mut(&name) else { continue };
            if slot.remote {
                let Some(seen) = slot.seen.as_ref().filter(|s| s.epoch > 0 && !s.stopping) else { continue };
                let doubt = seen.observed != Observed::Running;
                let event =
                    if doubt { events::check_in_doubt(now.time, why) } else { events::check_unhealthy(now.time, why) };
                if slot.record.state.events.last().is_none_or(|last| last.display_message != event.display_message) {
                    events::push(&mut slot.record.state, event);
                }
                if !doubt {
                    out.push(Effect::Unhealthy {
                        task: name.clone(),
                        incarnation: seen.incarnation,
                        why: why.to_owned(),
                    });
                }
            } else if slot.phase == Phase::Running && slot.kill.is_none() {
                events::push(&mut slot.record.state, events::check_unhealthy(now.time, why));
                slot.kill = Some(Kill { after: After::Unhealthy, sent: false, error: why.to_owned() });
                self.begin_stop(&name, now, out);
            }
        }
    }

    /// The checks that a deployment waits for. A service whose tasks have all completed has none.
    pub(super) fn check_health(&self) -> Vec<CheckHealth> {
        let tasks = self.task_views();
        specs(&self.job, &self.record.alloc.task_group)
            .iter()
            .filter(|s| !s.readiness() && !members(s.service, s.task, &tasks).iter().all(|t| t.dead))
            .map(|s| {
                let record = self.record.checks.get(&s.key()).filter(|r| s.healthy(r.state.status));
                CheckHealth { name: s.check.name.clone(), healthy_since: record.map(|r| r.state.since) }
            })
            .collect()
    }

    /// The checks with their newest results, for people.
    pub fn check_results(&self) -> Vec<CheckResult> {
        let result = |spec: &CheckSpec<'_>| {
            let key = spec.key();
            let record = self.record.checks.get(&key)?;
            let CheckRun { code, output, at } = self.check_runs.get(&key).unwrap_or(&record.run).clone();
            Some(CheckResult {
                id: self.check_id(&key),
                mode: if spec.readiness() { "readiness" } else { "healthiness" }.to_owned(),
                status: record.state.status,
                status_code: code,
                output,
                timestamp: at.div_euclid(1_000_000_000),
                group: self.record.alloc.name.to_string(),
                task: spec.task.unwrap_or_default().to_owned(),
                service: spec.service.name.clone(),
                check: spec.check.name.clone(),
            })
        };
        specs(&self.job, &self.record.alloc.task_group).iter().filter_map(result).collect()
    }

    /// Whether the check has run before, also under a former agent.
    pub fn check_has_run(&self, key: &str) -> bool {
        self.record.checks.get(key).is_some_and(|r| r.run.at != 0)
    }

    fn check_id(&self, key: &str) -> String {
        let digest = Sha256::digest(format!("{}/{key}", self.id()));
        digest.iter().take(16).map(|b| format!("{b:02x}")).collect()
    }
}

fn specs<'j>(job: &'j Job, group: &str) -> Vec<CheckSpec<'j>> {
    job.group(group).map(|g| checks::specs(g).collect()).unwrap_or_default()
}

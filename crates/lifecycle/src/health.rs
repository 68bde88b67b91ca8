//! Health of an allocation, for deployments and for drains that wait for the replacement.
//!
//! Healthy means:
//! - Every task that should run has run without interruption for `min_healthy_time`.
//! - Every task that should have ended has ended well; a poststart task may do either.
//! - With `health_check = "checks"`, every check of its services has passed for that long, unless its `on_update`
//!   exempts it.
//!
//! Unhealthy means that a task has failed, that a task has ended that should run, or that `healthy_deadline` has
//! passed. With `manual` only a person decides.

use std::{collections::BTreeMap, sync::Arc};

use model::{Migrate, TaskRunState, TaskState, TimestampNs, Update};

use crate::{
    checks::CheckHealth,
    task_order::{Phase, TaskSpec},
};

/// Criteria of health.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Criteria {
    /// Only an operator decides.
    pub manual: bool,
    /// Checks count.
    pub checks: bool,
    /// How long every task must run.
    pub min_healthy_time_ns: i64,
    /// By when, from the start of the watch; 0 = no deadline.
    pub healthy_deadline_ns: i64,
}

impl From<&Update> for Criteria {
    fn from(u: &Update) -> Self {
        Self {
            manual: u.health_check() == "manual",
            checks: u.health_check() == "checks",
            min_healthy_time_ns: u.min_healthy_time().nanos(),
            healthy_deadline_ns: u.healthy_deadline().nanos(),
        }
    }
}

impl From<&Migrate> for Criteria {
    fn from(m: &Migrate) -> Self {
        let checks = m.health_check() == "checks";
        Self {
            manual: false,
            checks,
            min_healthy_time_ns: m.min_healthy_time().nanos(),
            healthy_deadline_ns: m.healthy_deadline().nanos(),
        }
    }
}

/// Health of an allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// Decided: healthy.
    Healthy,
    /// Decided: unhealthy.
    Unhealthy(Cause),
    /// Not decided; ask again when a task changes or at that time, if given.
    Undecided {
        /// Unix ns.
        again_at: Option<TimestampNs>,
    },
}

/// Why an allocation is unhealthy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A task has failed, or ended that should run.
    Task,
    /// The deadline has passed; what it lacked then.
    Late(String),
}

/// What a task contributed to the allocation's unhealthiness, for an event of the task; `None` = nothing.
#[must_use]
pub fn contribution(cause: &Cause, criteria: &Criteria, phase: Phase, state: &TaskState) -> Option<String> {
    if state.failed {
        return Some("Unhealthy because of failed task".to_owned());
    }
    match (state.state, phase) {
        (TaskRunState::Pending, _) => {
            Some(format!("Task not running by healthy_deadline of {}", model::GoDuration(criteria.healthy_deadline_ns)))
        }
        (TaskRunState::Dead, Phase::Prestart | Phase::Poststart | Phase::Poststop) => None,
        (TaskRunState::Dead, _) => Some("Unhealthy because of dead task".to_owned()),
        (TaskRunState::Running, _) => match cause {
            Cause::Task => None,
            Cause::Late(why) => Some(why.clone()),
        },
    }
}

/// Decides. `watched_since`: when the node began to run the allocation in this job version; the deadline counts from
/// there. `checks`: the relevant checks, when checks count.
#[must_use]
pub fn decide(
    criteria: &Criteria,
    specs: &[TaskSpec],
    states: &BTreeMap<Arc<str>, TaskState>,
    checks: &[CheckHealth],
    watched_since: TimestampNs,
    now: TimestampNs,
) -> Health {
    if criteria.manual {
        return Health::Undecided { again_at: None };
    }
    let mut running_since = watched_since;
    let mut waiting = false;
    for spec in specs {
        let Some(state) = states.get(&spec.name) else {
            waiting |= spec.phase != Phase::Poststop;
            continue;
        };
        if state.failed {
            return Health::Unhealthy(Cause::Task);
        }
        match (spec.phase, state.state) {
            (Phase::Poststop, _) | (Phase::Prestart | Phase::Poststart, TaskRunState::Dead) => {}
            // A task after the main tasks counts from its start, like them; it need not end.
            (Phase::Prestart, _) | (_, TaskRunState::Pending) => waiting = true,
            (_, TaskRunState::Dead) => return Health::Unhealthy(Cause::Task),
            (_, TaskRunState::Running) => running_since = running_since.max(started_ns(state).unwrap_or(now)),
        }
    }
    let tasks_wait = waiting;
    for check in checks.iter().filter(|_| criteria.checks) {
        match check.healthy_since {
            Some(since) => running_since = running_since.max(since),
            None => waiting = true,
        }
    }
    let deadline =
        (criteria.healthy_deadline_ns > 0).then(|| watched_since.saturating_add(criteria.healthy_deadline_ns));
    let healthy_at = running_since.saturating_add(criteria.min_healthy_time_ns);
    if !waiting && healthy_at <= now && deadline.is_none_or(|d| healthy_at <= d) {
        return Health::Healthy;
    }
    if let Some(d) = deadline
        && d <= now
    {
        let bad: Vec<_> = checks
            .iter()
            .filter(|c| criteria.checks && c.healthy_since.is_none())
            .map(|c| format!("{:?}", c.name))
            .collect();
        if !tasks_wait && !bad.is_empty() {
            return Health::Unhealthy(Cause::Late(format!(
                "Checks were not healthy by healthy_deadline of {}: {}",
                model::GoDuration(criteria.healthy_deadline_ns),
                bad.join(", ")
            )));
        }
        return Health::Unhealthy(Cause::Late(format!(
            "Not all tasks ran for min_healthy_time of {} by healthy_deadline of {}",
            model::GoDuration(criteria.min_healthy_time_ns),
            model::GoDuration(criteria.healthy_deadline_ns)
        )));
    }
    let next = if waiting { deadline } else { Some(deadline.map_or(healthy_at, |d| d.min(healthy_at))) };
    Health::Undecided { again_at: next }
}

/// When the present or last run of the task began.
pub(crate) fn started_ns(state: &TaskState) -> Option<TimestampNs> {
    state.started_at.ns()
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: i64 = 1_000_000_000;

    fn spec(name: &str, phase: Phase) -> TaskSpec {
        TaskSpec { name: name.into(), phase, leader: false, let_go: false }
    }

    fn state(state: TaskRunState, failed: bool, started_s: i64) -> TaskState {
        TaskState { state, failed, started_at: (started_s * S).into(), ..TaskState::default() }
    }

    const CRITERIA: Criteria =
        Criteria { manual: false, checks: true, min_healthy_time_ns: 10 * S, healthy_deadline_ns: 300 * S };

    #[test]
    fn verdict_by_states_and_time() {
        use TaskRunState::{Dead, Pending, Running};
        let specs = [spec("init", Phase::Prestart), spec("web", Phase::Main), spec("clean", Phase::Poststop)];
        let undecided = |s: i64| Health::Undecided { again_at: Some(s * S) };
        let late = || {
            Health::Unhealthy(Cause::Late(
                "Not all tasks ran for min_healthy_time of 10s by healthy_deadline of 5m0s".to_owned(),
            ))
        };
        let by_task = || Health::Unhealthy(Cause::Task);
        for (init, web, now, expected) in [
            (None, None, 100, undecided(400)),
            (Some((Running, false)), None, 110, undecided(400)),
            (Some((Dead, false)), Some((Pending, false, 0)), 110, undecided(400)),
            (Some((Dead, false)), Some((Running, false, 120)), 125, undecided(130)),
            (Some((Dead, false)), Some((Running, false, 120)), 130, Health::Healthy),
            // A restart resets the time.
            (Some((Dead, false)), Some((Running, false, 129)), 130, undecided(139)),
            (Some((Dead, false)), Some((Running, false, 395)), 396, undecided(400)),
            (Some((Dead, false)), Some((Running, false, 395)), 405, late()),
            (None, None, 400, late()),
            (Some((Dead, true)), None, 110, by_task()),
            (Some((Dead, false)), Some((Dead, true, 110)), 111, by_task()),
            (Some((Dead, false)), Some((Dead, false, 110)), 111, by_task()),
        ] {
            let mut states = BTreeMap::new();
            if let Some((s, failed)) = init {
                states.insert(Arc::from("init"), state(s, failed, 101));
            }
            if let Some((s, failed, at)) = web {
                states.insert(Arc::from("web"), state(s, failed, at));
            }
            assert_eq!(
                decide(&CRITERIA, &specs, &states, &[], 100 * S, now * S),
                expected,
                "init {init:?}, web {web:?} at {now}"
            );
        }
    }

    #[test]
    fn a_poststart_task_must_run_or_have_ended_well() {
        use TaskRunState::{Dead, Pending, Running};
        let specs = [spec("web", Phase::Main), spec("after", Phase::Poststart)];
        for (after, failed, at, now, expected) in [
            (Pending, false, 0, 115, Health::Undecided { again_at: Some(400 * S) }),
            (Running, false, 103, 112, Health::Undecided { again_at: Some(113 * S) }),
            (Running, false, 103, 113, Health::Healthy),
            (Dead, false, 103, 110, Health::Healthy),
            (Dead, true, 103, 110, Health::Unhealthy(Cause::Task)),
        ] {
            let states = BTreeMap::from([
                (Arc::from("web"), state(Running, false, 100)),
                (Arc::from("after"), state(after, failed, at)),
            ]);
            assert_eq!(
                decide(&CRITERIA, &specs, &states, &[], 100 * S, now * S),
                expected,
                "{after:?} {failed} at {now}"
            );
        }
    }

    #[test]
    fn checks_count_when_they_are_to() {
        let specs = [spec("web", Phase::Main)];
        let states = BTreeMap::from([(Arc::from("web"), state(TaskRunState::Running, false, 100))]);
        let check = |since: Option<i64>| CheckHealth { name: "c".into(), healthy_since: since.map(|s| s * S) };
        let undecided = |s: i64| Health::Undecided { again_at: Some(s * S) };
        let late =
            Health::Unhealthy(Cause::Late("Checks were not healthy by healthy_deadline of 5m0s: \"c\"".to_owned()));
        for (counts, checks, now, expected) in [
            (true, vec![check(Some(105))], 110, undecided(115)),
            (true, vec![check(Some(105))], 115, Health::Healthy),
            (true, vec![check(Some(105)), check(None)], 300, undecided(400)),
            (true, vec![check(None)], 400, late),
            (false, vec![check(None)], 110, Health::Healthy),
            (true, vec![], 110, Health::Healthy),
        ] {
            let criteria = Criteria { checks: counts, ..CRITERIA };
            assert_eq!(
                decide(&criteria, &specs, &states, &checks, 100 * S, now * S),
                expected,
                "{counts} {checks:?} at {now}"
            );
        }
    }

    #[test]
    fn each_task_is_told_what_it_has_to_do_with_it() {
        use TaskRunState::{Dead, Pending, Running};
        let late = || Cause::Late("too slow".to_owned());
        for (cause, phase, run, failed, expected) in [
            (Cause::Task, Phase::Main, Dead, true, Some("Unhealthy because of failed task")),
            (Cause::Task, Phase::Prestart, Dead, true, Some("Unhealthy because of failed task")),
            (Cause::Task, Phase::Main, Dead, false, Some("Unhealthy because of dead task")),
            (Cause::Task, Phase::PoststartSidecar, Dead, false, Some("Unhealthy because of dead task")),
            (Cause::Task, Phase::Prestart, Dead, false, None),
            (Cause::Task, Phase::Poststart, Dead, false, None),
            (Cause::Task, Phase::Poststop, Pending, false, Some("Task not running by healthy_deadline of 5m0s")),
            (Cause::Task, Phase::Main, Running, false, None),
            (late(), Phase::Main, Running, false, Some("too slow")),
            (late(), Phase::Main, Pending, false, Some("Task not running by healthy_deadline of 5m0s")),
            (late(), Phase::Prestart, Dead, false, None),
        ] {
            let told = contribution(&cause, &CRITERIA, phase, &state(run, failed, 0));
            assert_eq!(told.as_deref(), expected, "{cause:?} {phase:?} {run:?} {failed}");
        }
    }

    #[test]
    fn manual_is_for_people() {
        let criteria = Criteria { manual: true, ..CRITERIA };
        let specs = [spec("web", Phase::Main)];
        let states = BTreeMap::from([(Arc::from("web"), state(TaskRunState::Running, false, 100))]);
        assert_eq!(decide(&criteria, &specs, &states, &[], 100 * S, 10_000 * S), Health::Undecided { again_at: None });
    }
}

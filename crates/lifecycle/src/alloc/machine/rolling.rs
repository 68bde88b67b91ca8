//! Rolling restarts: a task whose template has changed waits until the servers say that it is its turn, and counts as
//! restarted when the allocation is healthy again.
//!
//! Everything is in the state of the tasks, which the servers see. What an agent had ordered before it ended is ordered
//! again by the next one.

use std::sync::Arc;

use model::{RollingRestart, TaskRunState, TaskState, TimestampNs};

use super::{After, Effect, Kill, Machine, Now, Phase, Timer};
use crate::{
    alloc::events,
    health::{self, Criteria, Health},
};

/// What people read of a task whose turn has not come.
const WAITS: &str = "Template re-rendered, the task waits for its turn to restart among the allocations of its group";

/// A start has read the new data. Whoever waited for its turn needs none any more.
pub(super) fn started(state: &mut TaskState, now: TimestampNs) {
    match &mut state.rolling_restart {
        Some(restart) if restart.begun == 0 => state.rolling_restart = None,
        // Also by a clock that was set back meanwhile.
        Some(restart) => restart.begun = restart.begun.min(now),
        None => {}
    }
}

/// Whether the turn of this restart has come, and the task still runs with its old data.
fn to_restart(state: &TaskState) -> bool {
    let begun = state.rolling_restart.as_ref().map_or(0, |restart| restart.begun);
    begun != 0
        && state.state == TaskRunState::Running
        && health::started_ns(state).is_some_and(|started| started < begun)
}

impl Machine {
    /// A template with `rolling` has changed. Where another restart of the allocation has begun it is out of service
    /// already, or runs with data that do it no good: then there is nothing to wait for. A new agent finds the data
    /// again for which the task waits already: they are no newer for that.
    pub(super) fn turn_asked(&mut self, task: &Arc<str>, run: &str, data: String, now: Now) {
        let begun = |restart: &RollingRestart| restart.begun != 0;
        let at_once = self.slots.values().any(|s| s.record.state.rolling_restart.as_deref().is_some_and(begun));
        // All that wait have one turn, which is not the last one that had come.
        let turn = self.alloc().desired_transition.rolling_restart % u8::MAX + 1;
        let Some(slot) = self.current(task, run).filter(|s| s.phase == Phase::Running && s.kill.is_none()) else {
            return;
        };
        let state = &mut slot.record.state;
        if let Some(restart) = state.rolling_restart.as_deref_mut().filter(|restart| restart.begun == 0) {
            if restart.data != data {
                restart.data = data;
                restart.changed = now.time.max(restart.changed);
            }
            return;
        }
        let (asked, changed) = (now.time, now.time);
        let begun = if at_once { begins(state, now) } else { 0 };
        state.rolling_restart = Some(Box::new(RollingRestart { turn, data, asked, changed, begun, unhealthy: false }));
        if !at_once {
            events::push(state, events::template(now.time, WAITS));
        }
    }

    /// Restarts what has its turn, and follows what has restarted. Idempotent.
    pub(super) fn look_at_turns(&mut self, now: Now, out: &mut Vec<Effect>) {
        if self.ending().is_some()
            || self.over()
            || self.slots.values().all(|s| s.record.state.rolling_restart.is_none())
        {
            return;
        }
        let come = self.alloc().desired_transition.rolling_restart;
        let names: Vec<Arc<str>> = self.slots.keys().cloned().collect();
        for name in names {
            let Some(slot) = self.slots.get_mut(&name) else { continue };
            if slot.record.state.rolling_restart.as_ref().is_some_and(|r| r.begun == 0 && r.turn == come) {
                let state = &mut slot.record.state;
                let begun = begins(state, now);
                if let Some(restart) = &mut state.rolling_restart {
                    restart.begun = begun;
                }
            }
            if to_restart(&slot.record.state)
                && matches!(slot.phase, Phase::Running | Phase::Recovering)
                && slot.kill.is_none()
            {
                events::push(&mut slot.record.state, events::restart_signaled(now.time, events::BY_TEMPLATE));
                slot.kill = Some(Kill { after: After::Restart, sent: false, error: String::new() });
                if slot.phase == Phase::Running {
                    self.begin_stop(&name, now, out);
                }
            }
        }
        self.follow_restarted(now, out);
    }

    /// Decides whether the allocation is healthy with its new data, as in a deployment.
    fn follow_restarted(&mut self, now: Now, out: &mut Vec<Effect>) {
        let restarts = || self.slots.values().filter_map(|s| s.record.state.rolling_restart.as_deref());
        let since = restarts().map(|restart| restart.begun).max().unwrap_or(0);
        // Until the old run has ended, its health means nothing.
        if since == 0 || self.slots.values().any(|s| s.kill.is_some() || to_restart(&s.record.state)) {
            return;
        }
        let late = restarts().any(|restart| restart.unhealthy);
        let update = self.group().and_then(|group| group.update.clone()).unwrap_or_default();
        let criteria = Criteria::from(&update);
        // Nobody is asked about a restart, and who came late may still come.
        let deadline = if late { 0 } else { criteria.healthy_deadline_ns };
        let criteria = Criteria { manual: false, healthy_deadline_ns: deadline, ..criteria };
        let health = health::decide(&criteria, &self.specs, &self.states(), &self.check_health(), since, now.time);
        match health {
            Health::Healthy => self.edit_begun(|state| state.rolling_restart = None),
            Health::Unhealthy(_) if late => {}
            Health::Unhealthy(cause) => {
                self.edit_begun(|state| {
                    if let Some(restart) = &mut state.rolling_restart {
                        restart.unhealthy = true;
                    }
                    let why = match &cause {
                        health::Cause::Task => "a task has failed",
                        health::Cause::Late(why) => why,
                    };
                    let said = format!("Unhealthy with the new template, the rest of the group waits: {why}");
                    events::push(state, events::template(now.time, &said));
                });
            }
            Health::Undecided { again_at: Some(at) } if at != self.turn_timer => {
                self.turn_timer = at;
                out.push(Effect::Wake { at, timer: Timer::Health });
            }
            Health::Undecided { .. } => {}
        }
    }

    fn edit_begun(&mut self, edit: impl Fn(&mut TaskState)) {
        for slot in self.slots.values_mut() {
            if slot.record.state.rolling_restart.as_ref().is_some_and(|restart| restart.begun != 0) {
                edit(&mut slot.record.state);
            }
        }
    }
}

/// When a restart begins: after the start of the present run, also by a clock that was set back.
fn begins(state: &TaskState, now: Now) -> TimestampNs {
    now.time.max(health::started_ns(state).unwrap_or(0).saturating_add(1))
}

//! Remote tasks: their state follows the sightings of the instance and the servers' verdict.

use std::{collections::BTreeMap, sync::Arc};

use model::{GoDuration, GoTime, MAX_RUN_EXCEEDED, Observed, TaskRunState, remote::RemoteVerdict};

use super::{Machine, Now, RemoteView, dead};
use crate::alloc::events;

impl Machine {
    /// Updates a remote task's state from a new view.
    pub(super) fn remote(&mut self, task: &Arc<str>, view: Arc<RemoteView>, now: Now) {
        let Some(slot) = self.slots.get_mut(task).filter(|s| s.remote) else {
            return;
        };
        slot.released = false;
        self.record.expired |= view.expired;
        let known = slot.seen.is_some();
        let before = slot.seen.replace(view.clone()).unwrap_or_default();
        let record = &mut *slot.record;
        let state = &mut record.state;
        // After a restart of the agent the events tell which restarts were counted already.
        let another = state.restarts != view.restarts || (known && before.incarnation != view.incarnation);
        let last_is_restart = state.events.last().is_some_and(|e| e.kind == events::kind::RESTARTING);
        state.restarts = view.restarts;
        let unseen = matches!(view.observed, Observed::Exited { .. })
            && state.started_at.ns().is_none_or(|at| at < view.started_at);
        if unseen && view.started_at > 0 && state.state != TaskRunState::Dead {
            // It ended before the first look, but it has run and has output.
            state.started_at = view.started_at.into();
            events::push(state, events::started(view.started_at));
        }
        if let Some(exit) = &view.result
            && !state.events.iter().any(|e| e.kind == events::kind::TERMINATED && e.time == exit.at)
        {
            events::push(state, events::terminated(exit.at, exit.code, exit.signal, exit.oom_killed, &exit.reason));
        }
        if !view.refused.is_empty() && before.refused != view.refused {
            events::push(state, events::driver_failure(now.time, &view.refused));
        }
        match &view.verdict {
            RemoteVerdict::Active if state.state == TaskRunState::Dead => {}
            RemoteVerdict::Active => match view.observed {
                Observed::Running => {
                    if state.state != TaskRunState::Running || another {
                        let started = if view.started_at == 0 { now.time } else { view.started_at };
                        let adopted = state.started_at.is_unset() && now.time.saturating_sub(started) > 5_000_000_000;
                        state.state = TaskRunState::Running;
                        state.started_at = started.into();
                        state.finished_at = GoTime::default();
                        events::push(
                            state,
                            if adopted { events::adopted(now.time) } else { events::started(now.time) },
                        );
                    }
                    if view.stopping && !before.stopping {
                        let why = if view.expired { MAX_RUN_EXCEEDED } else { "Stopped by order of the servers" };
                        events::push(state, events::killing(now.time, GoDuration::ZERO, why, false));
                    }
                }
                Observed::Unknown { ref why, .. } => {
                    if !matches!(before.observed, Observed::Unknown { .. }) {
                        events::push(
                            state,
                            events::driver(
                                now.time,
                                &format!("The provider could not be asked: {why}"),
                                &BTreeMap::new(),
                            ),
                        );
                    }
                }
                Observed::Creating if !view.waiting.is_empty() && before.waiting != view.waiting => {
                    let said = format!("The instance is being created: {}", view.waiting);
                    // Providers alternate between reasons: each is told once.
                    if !state.events.iter().any(|event| *event.display_message == *said) {
                        events::push(state, events::driver(now.time, &said, &BTreeMap::new()));
                    }
                }
                Observed::Intended | Observed::Creating | Observed::Exited { .. } | Observed::Gone => {}
            },
            RemoteVerdict::Restarting { at, reason } => {
                if before.verdict != view.verdict && (known || !last_is_restart) {
                    state.state = TaskRunState::Pending;
                    state.last_restart = now.time.into();
                    events::push(
                        state,
                        events::restarting(now.time, GoDuration(at.saturating_sub(now.time).max(0)), reason),
                    );
                }
            }
            RemoteVerdict::Complete | RemoteVerdict::Failed { .. } | RemoteVerdict::Stopped => {
                if state.state != TaskRunState::Dead {
                    match &view.verdict {
                        RemoteVerdict::Failed { reason } => {
                            events::push(state, events::not_restarting(now.time, reason))
                        }
                        RemoteVerdict::Stopped => events::push(state, events::killed(now.time, "", false)),
                        _ => {}
                    }
                    dead(state, now);
                    if let Some(exit) = view.result.as_ref().filter(|e| e.at > 0) {
                        state.finished_at = exit.at.into();
                    }
                }
            }
        }
    }
}

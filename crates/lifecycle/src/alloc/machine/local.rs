//! Local tasks: start, end, restart, stop.

use std::{collections::BTreeMap, sync::Arc};

use model::{GoDuration, GoTime, MAX_RUN_EXCEEDED, Restart, RestartCharge, TaskRunState, TimestampNs, job::job_type};

use super::{After, Effect, Exit, Kill, Launched, Machine, Now, Phase, Run, StartFailure, Timer, dead, rolling};
use crate::{
    alloc::events,
    restart::{Decision, End},
    task_order::{Ending, StopReason},
};

impl Machine {
    pub(super) fn start(&mut self, task: &Arc<str>, now: Now, out: &mut Vec<Effect>) -> bool {
        // The servers may have replaced a restored allocation meanwhile: start nothing before they confirm it.
        if !self.contacted {
            return false;
        }
        let id = self.id();
        let Some(slot) = self.slots.get_mut(task) else {
            return false;
        };
        if slot.remote || slot.phase != Phase::Idle || slot.record.run.is_some() || slot.record.restart_at != 0 {
            return false;
        }
        if slot.record.state.restarts == 0 && !slot.record.state.events.iter().any(|e| e.kind == events::kind::SETUP) {
            events::push(&mut slot.record.state, events::setup(now.time, "Building Task Directory"));
        }
        let salt = task.bytes().fold(now.seed, |h, b| crate::restart::mix(h ^ u64::from(b)));
        #[allow(clippy::cast_possible_truncation, reason = "eight hexadecimal digits are wanted")]
        let run = format!("{id}/{task}/{:08x}", salt as u32);
        slot.record.run = Some(Run { id: run.clone(), ..Run::default() });
        slot.phase = Phase::Starting;
        out.push(Effect::Start { task: task.clone(), run });
        true
    }

    pub(super) fn started(
        &mut self,
        task: &Arc<str>,
        run: &str,
        result: Result<Launched, StartFailure>,
        now: Now,
        out: &mut Vec<Effect>,
    ) {
        let Some(slot) = self.current(task, run).filter(|s| s.phase == Phase::Starting) else {
            return;
        };
        match result {
            Ok(Launched { handle, network }) => {
                slot.record.own_address = network.as_ref().is_some_and(|n| !n.address.is_empty());
                if let Some(run) = &mut slot.record.run {
                    run.handle = Some(handle.clone());
                    run.network = network;
                }
                slot.phase = Phase::Running;
                slot.record.state.state = TaskRunState::Running;
                slot.record.state.failed = false;
                slot.record.state.started_at = now.time.into();
                slot.record.state.finished_at = GoTime::default();
                rolling::started(&mut slot.record.state, now.time);
                events::push(&mut slot.record.state, events::started(now.time));
                out.push(Effect::Wait { task: task.clone(), run: run.to_owned(), handle });
                if slot.kill.is_some() {
                    self.begin_stop(task, now, out);
                }
            }
            // The agent ends: the next one finds a start without confirmation.
            Err(StartFailure::Interrupted) if slot.kill.is_none() => slot.phase = Phase::Idle,
            Err(failure) => {
                let (event, why, recoverable) = match &failure {
                    StartFailure::Validation(why) => {
                        (Some(events::failed_validation(now.time, why)), why.as_str(), false)
                    }
                    StartFailure::Setup { why, recoverable } => {
                        (Some(events::setup_failure(now.time, why, false)), why.as_str(), *recoverable)
                    }
                    StartFailure::Artifact { why, recoverable } => {
                        (Some(events::artifact_failed(now.time, why)), why.as_str(), *recoverable)
                    }
                    StartFailure::Driver { why, recoverable } => {
                        (Some(events::driver_failure(now.time, why)), why.as_str(), *recoverable)
                    }
                    // The kill that interrupted it has already told the reason.
                    StartFailure::Interrupted => (None, "interrupted", false),
                };
                if let Some(event) = event {
                    events::push(&mut slot.record.state, event);
                }
                let end = if recoverable { End::StartFailed } else { End::Unrecoverable };
                self.ended(task, end, RestartCharge::not_started(now.time, why), now);
                self.free(task, true, out);
            }
        }
    }

    pub(super) fn recovered(
        &mut self,
        task: &Arc<str>,
        run: &str,
        result: Result<(), String>,
        now: Now,
        out: &mut Vec<Effect>,
    ) {
        let Some(slot) = self.current(task, run).filter(|s| s.phase == Phase::Recovering) else {
            return;
        };
        match result {
            Ok(()) => {
                slot.phase = Phase::Running;
                let handle = slot.record.run.as_ref().and_then(|r| r.handle.clone()).unwrap_or_default();
                out.push(Effect::Wait { task: task.clone(), run: run.to_owned(), handle });
                if slot.kill.is_some() {
                    self.begin_stop(task, now, out);
                }
            }
            Err(why) => {
                events::push(&mut slot.record.state, events::restore_failed(now.time, &why));
                let exit = Exit {
                    code: -1,
                    message: format!("the task could not be found again: {why}"),
                    lost: true,
                    ..Exit::default()
                };
                self.exited(task, run, &exit, now, out);
            }
        }
    }

    pub(super) fn exited(&mut self, task: &Arc<str>, run: &str, exit: &Exit, now: Now, out: &mut Vec<Effect>) {
        let Some(slot) = self.current(task, run).filter(|s| matches!(s.phase, Phase::Running | Phase::Recovering))
        else {
            return;
        };
        events::push(
            &mut slot.record.state,
            events::terminated(now.time, exit.code, exit.signal, exit.oom_killed, &exit.message),
        );
        if let Some(run) = &mut slot.record.run {
            run.lost = exit.lost;
        }
        // Its driver has lost it: its end is unknown and does not count as its own failure.
        let end = if exit.lost { End::Lost } else { End::Exited { successful: exit.successful() } };
        let charge = RestartCharge::exited(now.time, exit.code, exit.signal, exit.oom_killed, &exit.message);
        self.ended(task, end, charge, now);
        self.free(task, true, out);
    }

    /// Counts the end of a run and decides what follows. `charge` is the cause if its policy spends an attempt.
    pub(super) fn ended(&mut self, task: &Arc<str>, end: End, charge: RestartCharge, now: Now) {
        let policy = self.policy(task);
        let once = self.runs_once(task);
        let Some(slot) = self.slots.get_mut(task) else {
            return;
        };
        if let Some(run) = &mut slot.record.run {
            run.ended = true;
        }
        let state = &mut slot.record.state;
        match slot.kill.take() {
            Some(Kill { after: After::Die { cut_off }, error, .. }) => {
                events::push(state, events::killed(now.time, &error, cut_off));
                dead(state, now);
            }
            Some(Kill { after: After::Restart, .. }) => {
                events::push(state, events::restarting(now.time, GoDuration::ZERO, ""));
                state.state = TaskRunState::Pending;
                state.restarts += 1;
                state.last_restart = now.time.into();
                slot.record.restart_at = now.time;
            }
            unhealthy => {
                // Failed checks stopped it: it has failed, whatever its exit code.
                let (end, charge) = match &unhealthy {
                    Some(kill) => (End::Exited { successful: false }, RestartCharge::because(now.time, &kill.error)),
                    None => (end, charge),
                };
                let before = slot.record.tracker();
                let mut tracker = before;
                let decision = tracker.on_end(&policy, once, end, now.time, now.seed);
                tracker.account(before, &mut slot.record.state.restart_charges, || charge);
                slot.record.set_tracker(tracker);
                let state = &mut slot.record.state;
                match decision {
                    Decision::Restart { at, reason } => {
                        let delay = GoDuration(at.saturating_sub(now.time).max(0));
                        events::push(state, events::restarting(now.time, delay, &reason));
                        state.state = TaskRunState::Pending;
                        state.failed = false;
                        state.restarts += 1;
                        state.last_restart = now.time.into();
                        slot.record.restart_at = at.max(1);
                    }
                    Decision::Complete => dead(state, now),
                    Decision::Fail { reason } => {
                        events::push(state, events::not_restarting(now.time, &reason));
                        dead(state, now);
                    }
                }
            }
        }
    }

    pub(super) fn free(&mut self, task: &Arc<str>, known: bool, out: &mut Vec<Effect>) {
        let Some(slot) = self.slots.get_mut(task) else {
            return;
        };
        slot.phase = Phase::Freeing;
        if let Some(run) = &slot.record.run {
            out.push(Effect::Free {
                task: task.clone(),
                run: run.id.clone(),
                handle: run.handle.clone(),
                known,
                lost: run.lost,
            });
        }
    }

    pub(super) fn freed(&mut self, task: &Arc<str>, run: &str, owed: bool, out: &mut Vec<Effect>) {
        let Some(slot) = self.current(task, run).filter(|s| s.phase == Phase::Freeing) else {
            return;
        };
        if let Some(run) = slot.record.run.take().filter(|_| owed) {
            out.push(Effect::Settle { task: task.clone(), run: run.id.clone(), handle: run.handle.clone() });
            slot.record.owed.push(run);
        }
        slot.phase = Phase::Idle;
        if slot.record.state.state == TaskRunState::Dead {
            slot.record.restart_at = 0;
            out.push(Effect::TaskOver { task: task.clone() });
        } else if slot.record.restart_at != 0 {
            slot.phase = Phase::Backoff;
            out.push(Effect::Wake { at: slot.record.restart_at, timer: Timer::Restart { task: task.clone() } });
        }
    }

    pub(super) fn due(&mut self, timer: Timer, out: &mut Vec<Effect>) {
        match timer {
            Timer::Restart { task } => {
                if let Some(slot) = self.slots.get_mut(&task).filter(|s| s.phase == Phase::Backoff) {
                    slot.phase = Phase::Idle;
                    slot.record.restart_at = 0;
                }
            }
            Timer::ShutdownDelay { task, run } => {
                if self.current(&task, &run).is_some_and(|s| s.phase == Phase::Running) {
                    self.send_stop(&task, out);
                }
            }
            Timer::Health => (self.health_timer, self.turn_timer) = (0, 0),
            // The order of tasks stops the tasks next.
            Timer::GroupDelay | Timer::Deadline => {}
            // A timer from before the last contact does not count.
            Timer::CutOff { since } => self.stop_cut_off |= since == self.cut_off_since,
        }
    }

    /// Stops a task. True when this changes the task's state.
    pub(super) fn stop(&mut self, task: &Arc<str>, reason: &StopReason, now: Now, out: &mut Vec<Effect>) -> bool {
        let timeout = self.kill_timeout(task);
        let said = self.kill_reason();
        // What its time or the end of another task has ended, the node has not.
        let cut_off = *reason == StopReason::AllocStopped && self.stop_cut_off && !self.record.expired;
        let killing = || events::killing(now.time, timeout, said, cut_off);
        let Some(slot) = self.slots.get_mut(task) else {
            return false;
        };
        let why = match reason {
            StopReason::AllocStopped | StopReason::Expired => None,
            StopReason::SiblingFailed(sibling) => Some(events::sibling_failed(now.time, sibling)),
            StopReason::LeaderDead(_) => Some(events::leader_dead(now.time)),
            StopReason::MainTasksDead => Some(events::main_dead(now.time)),
        };
        if slot.remote {
            // Rule 5: only a server order ends the instance. For this allocation the task is over with the verdict,
            // or when the slot has moved.
            if !slot.released || slot.record.state.state == TaskRunState::Dead {
                return false;
            }
            let let_go = "Let go: the servers have moved the instance elsewhere, nothing was stopped";
            events::push(&mut slot.record.state, events::driver(now.time, let_go, &BTreeMap::new()));
            dead(&mut slot.record.state, now);
            return true;
        }
        // The leftovers of a start without confirmation are still ending; until then, part of it may run.
        if slot.phase == Phase::Freeing && slot.record.run.as_ref().is_some_and(|run| !run.ended) {
            return false;
        }
        match slot.phase {
            Phase::Idle | Phase::Backoff | Phase::Freeing => {
                if slot.record.state.state == TaskRunState::Dead {
                    return false;
                }
                // Without an event an end from outside would look like one of its own.
                let why = why.unwrap_or_else(killing);
                events::push(&mut slot.record.state, why);
                slot.record.restart_at = 0;
                dead(&mut slot.record.state, now);
                if slot.phase == Phase::Backoff {
                    slot.phase = Phase::Idle;
                }
                if slot.phase == Phase::Idle {
                    out.push(Effect::TaskOver { task: task.clone() });
                }
                true
            }
            Phase::Starting | Phase::Recovering | Phase::Running => {
                // A restart that waits for its driver has stopped nothing yet.
                let begun = slot.kill.is_some() && slot.phase != Phase::Recovering;
                match &mut slot.kill {
                    Some(Kill { after: After::Die { .. }, .. }) => return false,
                    // Its restart is cancelled.
                    Some(kill) => kill.after = After::Die { cut_off },
                    None => slot.kill = Some(Kill { after: After::Die { cut_off }, sent: false, error: String::new() }),
                }
                if let Some(why) = why {
                    events::push(&mut slot.record.state, why);
                }
                if begun {
                    events::push(&mut slot.record.state, killing());
                    return false;
                }
                match (slot.phase, &slot.record.run) {
                    (Phase::Running, _) => self.begin_stop(task, now, out),
                    (Phase::Starting, Some(run)) => out.push(Effect::Interrupt { run: run.id.clone() }),
                    // Its driver may never come back, and nothing else would end it.
                    (Phase::Recovering, Some(run)) => {
                        out.push(Effect::EndUnattended { task: task.clone(), run: run.id.clone() })
                    }
                    _ => {}
                }
                // Its state changes at its end.
                false
            }
        }
    }

    /// Announces the stop of a running task, waits for its shutdown_delay if it has one, then stops it.
    pub(super) fn begin_stop(&mut self, task: &Arc<str>, now: Now, out: &mut Vec<Effect>) {
        let timeout = self.kill_timeout(task);
        let delay = self.task(task).map_or(GoDuration::ZERO, |t| t.shutdown_delay);
        let skip = self.skips_delays();
        let reason = self.kill_reason();
        let Some(slot) = self.slots.get_mut(task) else {
            return;
        };
        let Some(kill) = &slot.kill else { return };
        let Some(run) = slot.record.run.as_ref().map(|r| r.id.clone()) else {
            return;
        };
        if let After::Die { cut_off } = kill.after {
            events::push(&mut slot.record.state, events::killing(now.time, timeout, reason, cut_off));
        }
        if delay.nanos() > 0 {
            events::push(&mut slot.record.state, events::shutdown_delay(now.time, delay, skip));
        }
        if delay.nanos() > 0 && !skip {
            let at = now.time.saturating_add(delay.nanos());
            out.push(Effect::Wake { at, timer: Timer::ShutdownDelay { task: task.clone(), run } });
        } else {
            self.send_stop(task, out);
        }
    }

    pub(super) fn send_stop(&mut self, task: &Arc<str>, out: &mut Vec<Effect>) {
        let timeout = self.kill_timeout(task);
        let signal = self.task(task).map(|t| t.kill_signal.clone()).unwrap_or_default();
        let Some(slot) = self.slots.get_mut(task) else {
            return;
        };
        let (Some(kill), Some(run)) = (&mut slot.kill, &slot.record.run) else {
            return;
        };
        if !kill.sent {
            kill.sent = true;
            out.push(Effect::Stop { task: task.clone(), run: run.id.clone(), signal, timeout });
        }
    }

    /// What the event of a stop says instead of its usual text.
    fn kill_reason(&self) -> &'static str {
        if self.ending() == Some(Ending::Expired) { MAX_RUN_EXCEEDED } else { "" }
    }

    /// Whether to skip the wait between the end of the registration and the signal.
    fn skips_delays(&self) -> bool {
        self.alloc().desired_transition.no_shutdown_delay == Some(true)
    }

    /// Whether the group's `shutdown_delay` still runs: its services are gone, and nothing stops yet. A stopped
    /// allocation waits once, before all stops.
    pub(super) fn group_delays(&mut self, now: Now, out: &mut Vec<Effect>) -> bool {
        let delay = self.group().and_then(|g| g.shutdown_delay).unwrap_or(GoDuration::ZERO).nanos();
        let runs = self.slots.values().any(|s| !s.remote && s.phase == Phase::Running);
        if delay <= 0 || self.skips_delays() || !runs {
            return false;
        }
        if self.stopping_since == 0 {
            self.stopping_since = now.time;
            out.push(Effect::Wake { at: now.time.saturating_add(delay), timer: Timer::GroupDelay });
        }
        // A clock that was set back does not extend it.
        (0..delay).contains(&now.time.saturating_sub(self.stopping_since))
    }

    pub(super) fn restart_asked(
        &mut self,
        task: &Arc<str>,
        also_dead: bool,
        why: &str,
        now: Now,
        out: &mut Vec<Effect>,
    ) {
        let ending = self.ending().is_some();
        let Some(slot) = self.slots.get_mut(task).filter(|s| !s.remote && !ending) else {
            return;
        };
        match slot.phase {
            // What is being recovered stops as soon as its driver has found it.
            Phase::Running | Phase::Recovering if slot.kill.is_none() => {
                events::push(&mut slot.record.state, events::restart_signaled(now.time, why));
                slot.kill = Some(Kill { after: After::Restart, sent: false, error: String::new() });
                if slot.phase == Phase::Running {
                    self.begin_stop(task, now, out);
                }
            }
            Phase::Backoff => {
                events::push(&mut slot.record.state, events::restart_signaled(now.time, why));
                slot.phase = Phase::Idle;
                slot.record.restart_at = 0;
            }
            Phase::Idle if also_dead && slot.record.state.state == TaskRunState::Dead => {
                let state = &mut slot.record.state;
                events::push(state, events::restart_signaled(now.time, why));
                events::push(state, events::restarting(now.time, GoDuration::ZERO, ""));
                state.state = TaskRunState::Pending;
                state.failed = false;
                state.restarts += 1;
                state.last_restart = now.time.into();
                state.finished_at = GoTime::default();
                self.record.ended_at = 0;
            }
            _ => {}
        }
    }

    /// Restarts a run with `change_mode = "restart"`, so that it reads its changed files.
    pub(super) fn data_changed(&mut self, task: &Arc<str>, run: &str, why: &str, now: Now, out: &mut Vec<Effect>) {
        let Some(slot) = self.current(task, run).filter(|s| s.phase == Phase::Running && s.kill.is_none()) else {
            return;
        };
        events::push(&mut slot.record.state, events::restart_signaled(now.time, why));
        slot.kill = Some(Kill { after: After::Restart, sent: false, error: String::new() });
        self.begin_stop(task, now, out);
    }

    /// Ends a run that would continue with an old configuration; the task has failed.
    pub(super) fn template_failed(&mut self, task: &Arc<str>, run: &str, why: &str, now: Now, out: &mut Vec<Effect>) {
        let timeout = self.kill_timeout(task);
        let Some(slot) = self.current(task, run).filter(|s| s.phase == Phase::Running && s.kill.is_none()) else {
            return;
        };
        events::push(&mut slot.record.state, events::killing_failed(now.time, timeout, why));
        slot.kill = Some(Kill { after: After::Die { cut_off: false }, sent: false, error: String::new() });
        self.send_stop(task, out);
    }

    /// How long the node may be cut off before it stops the allocation. It lets remote tasks go and does not stop them.
    pub(super) fn stop_when_cut_off(&self) -> Option<GoDuration> {
        self.group()?.stop_on_client_after()
    }

    pub(super) fn kill_timeout(&self, task: &str) -> GoDuration {
        let asked = self.task(task).and_then(|t| t.kill_timeout).unwrap_or(GoDuration::from_secs(5));
        asked.min(self.max_kill_timeout)
    }

    pub(super) fn policy(&self, task: &str) -> Restart {
        let mut policy = self.task(task).and_then(|t| t.restart.clone()).unwrap_or_default();
        if let Some(outer) = self.group().and_then(|g| g.restart.as_ref()) {
            policy.inherit(outer);
        }
        policy
    }

    /// Whether the task's restart policy lets no start follow the present one, should that fail now.
    pub fn is_last_start(&self, task: &str, now: TimestampNs) -> bool {
        self.slots.get(task).is_some_and(|slot| slot.record.tracker().is_spent(&self.policy(task), now))
    }

    /// Whether a successful end completes the task.
    pub(super) fn runs_once(&self, task: &str) -> bool {
        match self.task(task).and_then(|t| t.lifecycle.as_ref()) {
            Some(l) if l.hook == "prestart" || l.hook == "poststart" => !l.sidecar,
            Some(l) if l.hook == "poststop" => true,
            _ => matches!(self.job.kind.as_str(), job_type::BATCH | job_type::SYSBATCH),
        }
    }
}

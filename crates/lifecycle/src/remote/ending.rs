//! Consequences of a record's state alone: the end of an instance, its verdict, the next incarnation, the end of the
//! record.

use model::{
    DesiredRemote, MAX_RUN_EXCEEDED, Observed, RemoteExit, RemoteVerdict, RemoteWanted, RestartCharge, Text,
    TimestampNs,
    remote::{Manager, RemoteEventKind as Kind},
};

use super::transition::{HELD, What, Work, expires_at, install};
use crate::{
    mutation::{Mutation, mutated},
    restart::{Decision, End, Tracker},
};

impl Work {
    /// Applies the consequences of the state, after any event.
    pub(super) fn advance(&mut self) {
        if self.deleted {
            return;
        }
        // An end that came before the deadline and is told after it is the task's own.
        if !self.ended_in_time() {
            self.expire();
        }
        self.count_exit();
        self.expire();
        let early = mutated(Mutation::NextBeforeEnd) && self.r.next.is_some();
        if !(self.r.settled() || early) {
            return;
        }
        if let Some(next) = self.r.next.clone() {
            match next.manager {
                Some(_) if self.cx.held && !mutated(Mutation::HoldIgnored) => self.because(HELD),
                Some(manager) => self.begin(&next, manager, "the previous incarnation has confirmedly ended"),
                None => {
                    // It has ended and is wanted again, but the next node is lost. The slot is free and needs an
                    // allocation.
                    self.because("what follows waits for an allocation");
                    if self.r.manager.take().is_some() {
                        self.r.unmanaged_since = self.cx.now;
                        self.evaluate.push(format!("{} is free and waits for an allocation", self.r.slot));
                    }
                }
            }
            return;
        }
        if self.r.desired == DesiredRemote::Stop {
            self.changed("stopped and confirmed: the record ends");
            self.deleted = true;
            return;
        }
        if let RemoteVerdict::Restarting { at, .. } = self.r.verdict {
            match self.r.manager {
                Some(_) if self.cx.held && self.cx.now >= at && !mutated(Mutation::HoldIgnored) => self.because(HELD),
                Some(manager) if self.cx.now >= at && !manager.alloc_id.is_nil() => {
                    let same = RemoteWanted {
                        job_version: self.r.job_version,
                        spec_hash: self.r.spec_hash.clone(),
                        driver: self.r.driver.clone(),
                        provider: self.r.provider.clone(),
                        policy: self.r.policy.clone(),
                        manager: Some(manager),
                        previous_ended: false,
                        keep_counters: true,
                        created_at: self.r.began,
                    };
                    self.begin(&same, manager, "restarted by its policy");
                }
                Some(_) => self.because("the restart waits for its time"),
                None => self.because("the restart waits for a manager"),
            }
        }
    }

    fn ended_in_time(&self) -> bool {
        let deadline = self.r.deadline();
        matches!(&self.r.observed, Observed::Exited { at, .. } if *at > 0 && deadline.is_some_and(|end| *at < end))
    }

    /// Ends a task whose `max_run_duration` is over: its instance is stopped, or what would have followed it does not.
    /// The allocation keeps the slot until it has told the end.
    fn expire(&mut self) {
        if expires_at(&self.r).is_none_or(|at| self.cx.now < at) {
            return;
        }
        self.r.expired = true;
        // An ordered restart was under way: the stop goes on, and nothing follows it.
        self.r.next = None;
        self.r.desired = DesiredRemote::Run;
        self.r.stop_reason = Text::default();
        if self.r.exit_acknowledged {
            self.r.verdict = RemoteVerdict::Complete;
            self.changed_as(What::of(Kind::Ended), format!("the task is complete: {MAX_RUN_EXCEEDED}"));
        } else {
            self.changed_as(What::of(Kind::Stopping), format!("stopping: {MAX_RUN_EXCEEDED}"));
        }
    }

    fn begin(&mut self, wanted: &RemoteWanted, manager: Manager, why: &str) {
        let old = self.r.incarnation;
        install(&mut self.r, wanted, manager, self.cx);
        self.changed_as(
            What::to(Kind::Began, manager.node_id),
            format!("incarnation {} follows {}: {why}", self.r.incarnation.short(), old.short()),
        );
    }

    /// Counts the exit exactly once: the flag is committed together with its consequences.
    fn count_exit(&mut self) {
        if self.r.exit_acknowledged && !mutated(Mutation::EndCountedAgain) {
            return;
        }
        let Some(mut exit) = self.r.observed.exit(self.cx.now) else {
            return;
        };
        let refused =
            self.r.observed == Observed::Gone && !self.r.seen() && self.r.result.as_ref().is_some_and(|r| r.vanished);
        if refused && let Some(known) = &self.r.result {
            exit = RemoteExit::clone(known);
        }
        self.r.exit_acknowledged = true;
        self.promote_successor_of_ended();
        self.r.verdict = if self.r.desired == DesiredRemote::Stop {
            RemoteVerdict::Stopped
        } else if self.r.expired {
            RemoteVerdict::Complete
        } else {
            self.restart_verdict(&exit, refused)
        };
        let text = match &self.r.verdict {
            RemoteVerdict::Restarting { reason, .. } => {
                format!("the end is counted; restart {}: {reason}", self.r.restarts)
            }
            RemoteVerdict::Complete if self.r.expired => format!("the end is counted; {MAX_RUN_EXCEEDED}"),
            RemoteVerdict::Complete => "the end is counted; the task is complete".to_owned(),
            RemoteVerdict::Failed { reason } => {
                format!("the end is counted; the task has failed: {reason}")
            }
            RemoteVerdict::Stopped | RemoteVerdict::Active => "the end is counted; it was stopped by order".to_owned(),
        };
        self.changed_as(What::of(Kind::Ended), text);
        self.r.result = Some(Box::new(exit));
    }

    /// An ended instance needs no observation during a hand-over: the successor takes over.
    fn promote_successor_of_ended(&mut self) {
        if let Some(s) = self.r.successor
            && self.r.desired == DesiredRemote::Run
        {
            self.take_over(s, "the instance has ended during the move");
        }
    }

    fn restart_verdict(&mut self, exit: &RemoteExit, refused: bool) -> RemoteVerdict {
        let before = Tracker { window_start: self.r.restart_window_start, in_window: self.r.restarts_in_window };
        let mut tracker = before;
        // It exits well after a stop: it is unhealthy all the same.
        let successful = exit.successful() && self.r.unhealthy.is_empty();
        // An instance that its provider no longer knows counts as a failure, because its end is unknown. Otherwise a
        // runtime that forgets at once would be asked for instances without end. A person's declaration that it is gone
        // says nothing of its end.
        let end = match (refused, self.declared_gone) {
            (true, _) => End::Unrecoverable,
            (false, true) => End::Lost,
            (false, false) => End::Exited { successful },
        };
        // The incarnation id is random. It spreads the jitter, and replays give the same decision.
        let (high, low) = self.r.incarnation.0.as_u64_pair();
        let decision = tracker.on_end(&self.r.policy.restart, self.r.policy.batch, end, self.cx.now, high ^ low);
        tracker.account(before, &mut self.r.restart_charges, || charge(exit, &self.r.unhealthy, self.cx.now));
        self.r.restart_window_start = tracker.window_start;
        self.r.restarts_in_window = tracker.in_window;
        match decision {
            Decision::Restart { at, reason } => {
                self.r.restarts += 1;
                RemoteVerdict::Restarting { at, reason: reason.into() }
            }
            Decision::Complete => RemoteVerdict::Complete,
            Decision::Fail { reason } => {
                RemoteVerdict::Failed { reason: if refused { exit.reason.clone() } else { reason.into() } }
            }
        }
    }
}

/// The cause of a spent attempt.
fn charge(exit: &RemoteExit, unhealthy: &str, now: TimestampNs) -> RestartCharge {
    let RemoteExit { code, signal, oom_killed, reason, at: _, vanished } = exit;
    if !unhealthy.is_empty() {
        return RestartCharge::because(now, unhealthy);
    }
    if *vanished {
        return RestartCharge::because(now, &format!("vanished: {reason}"));
    }
    RestartCharge::exited(now, *code, *signal, *oom_killed, reason)
}

//! The allocation as a state machine: what happened in, what to do out. No clock, no files, no driver: everything comes as an argument, so
//! the whole behaviour is tested as values.
//!
//! ```text
//! task:  Idle ─► Starting ─► Running ─► Freeing ─► Idle (dead)
//!          ▲        │           ▲          └─► Backoff ─► Starting
//!          └────────┘      Recovering
//! ```
//!
//! Which tasks may start and which must stop is decided by `lifecycle::task_order` after every event; restarts by `lifecycle::restart`; health by
//! `lifecycle::health`. A remote task has no phase here: its state follows the servers' verdict and the node's sightings, and no stop, restart or end
//! of the allocation touches its instance.

use std::{collections::BTreeMap, sync::Arc};

use lifecycle::{
    health::{self, Criteria, Health},
    restart::{Decision, End},
    task_order::{self, StopReason, TaskSpec},
};
use model::{
    AllocClientUpdate, AllocDeploymentStatus, AllocId, Allocation, ClientStatus, GoDuration, Job,
    Observed, Restart, Task, TaskGroup, TaskRunState, TaskState, TimestampNs, job::job_type,
    remote::RemoteVerdict,
};

use super::record::{AllocRecord, Run, TaskRecord};
use crate::events;

/// How a workload ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Exit {
    pub(crate) code: i32,
    pub(crate) signal: i32,
    pub(crate) oom_killed: bool,
    pub(crate) message: String,
}

impl Exit {
    fn successful(&self) -> bool {
        self.code == 0 && self.signal == 0 && !self.oom_killed && self.message.is_empty()
    }
}

/// Why a start did not succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StartFailure {
    /// The job's configuration of the task is wrong: never tried again.
    Validation(String),
    /// The node could not prepare it.
    Setup { why: String, recoverable: bool },
    /// The driver could not start it.
    Driver { why: String, recoverable: bool },
}

/// Something that has happened.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Event {
    /// First event of every machine.
    Begin,
    /// The servers have been heard after the start of the agent.
    Contacted,
    /// The servers have changed the allocation.
    Changed(Arc<Allocation>, Arc<Job>),
    /// The servers have collected the allocation.
    Removed,
    /// The agent stops for good and its tasks with it.
    StopLocal,
    /// No server has been heard (true) or one is heard again.
    CutOff(bool),
    Started {
        task: Arc<str>,
        run: String,
        result: Result<Vec<u8>, StartFailure>,
    },
    Recovered {
        task: Arc<str>,
        run: String,
        result: Result<(), String>,
    },
    Exited {
        task: Arc<str>,
        run: String,
        exit: Exit,
    },
    /// The driver could not stop it; the end of the task decides.
    StopFailed {
        task: Arc<str>,
        run: String,
        why: String,
    },
    /// The driver has let the run go.
    Freed {
        task: Arc<str>,
        run: String,
    },
    Due(Timer),
    /// Somebody asks for restarts.
    RestartAsked {
        tasks: Vec<Arc<str>>,
        also_dead: bool,
    },
    /// Somebody sends a signal.
    SignalAsked {
        task: Arc<str>,
        signal: String,
    },
    DriverSaid {
        task: Arc<str>,
        message: String,
        annotations: BTreeMap<String, String>,
    },
    /// What is known of a remote task.
    Remote {
        task: Arc<str>,
        view: Box<RemoteView>,
    },
    /// The servers have moved a remote task elsewhere, or never gave it to this allocation.
    RemoteReleased {
        task: Arc<str>,
    },
}

/// What the allocation is told about one of its remote tasks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RemoteView {
    pub(crate) incarnation: model::IncarnationId,
    pub(crate) observed: Observed,
    pub(crate) verdict: RemoteVerdict,
    pub(crate) result: Option<model::remote::RemoteExit>,
    pub(crate) restarts: u64,
    pub(crate) started_at: TimestampNs,
    pub(crate) refused: String,
    /// The servers want it stopped.
    pub(crate) stopping: bool,
}

/// A moment that was waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Timer {
    Restart {
        task: Arc<str>,
    },
    ShutdownDelay {
        task: Arc<str>,
        run: String,
    },
    Health,
    /// The job wants its tasks stopped when the node is cut off this long.
    CutOff {
        since: TimestampNs,
    },
}

/// What is to be done, after the records have been written.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Effect {
    Start {
        task: Arc<str>,
        run: String,
    },
    Recover {
        task: Arc<str>,
        run: String,
        handle: Vec<u8>,
    },
    Wait {
        task: Arc<str>,
        run: String,
        handle: Vec<u8>,
    },
    Stop {
        task: Arc<str>,
        run: String,
        signal: String,
        timeout: GoDuration,
    },
    /// Free a run that has ended at the driver; `known` = this driver process knows it already. Kills what is left of it.
    Free {
        task: Arc<str>,
        run: String,
        handle: Option<Vec<u8>>,
        known: bool,
    },
    /// The task is dead: its collector and cgroups go.
    TaskOver {
        task: Arc<str>,
    },
    Wake {
        at: TimestampNs,
        timer: Timer,
    },
    /// Everything has ended and the servers have forgotten it: directories and records go.
    Destroy,
}

/// What the caller knows and the machine may not find out by itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Now {
    pub(crate) time: TimestampNs,
    /// Varies with every call: ids of runs, jitter.
    pub(crate) seed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Idle,
    Starting,
    Recovering,
    Running,
    Freeing,
    Backoff,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum After {
    Die,
    Restart,
}

#[derive(Clone, Debug, PartialEq)]
struct Kill {
    after: After,
    sent: bool,
    error: String,
}

/// A local task.
#[derive(Clone, Debug)]
struct Slot {
    record: TaskRecord,
    phase: Phase,
    kill: Option<Kill>,
    remote: bool,
    /// What the state was taken from last.
    seen: Option<RemoteView>,
    /// The servers have moved the slot elsewhere.
    released: bool,
}

/// An allocation on its node.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    record: AllocRecord,
    job: Arc<Job>,
    specs: Vec<TaskSpec>,
    slots: BTreeMap<Arc<str>, Slot>,
    max_kill_timeout: GoDuration,
    contacted: bool,
    stop_local: bool,
    /// Since when no server has been heard; 0 = one is heard.
    cut_off_since: TimestampNs,
    destroyed: bool,
    health_timer: TimestampNs,
}

/// Tasks of an allocation that live in a remote runtime.
pub(crate) fn is_remote(alloc: &Allocation, task: &str) -> bool {
    alloc.remote.contains_key(task) || alloc.resources.tasks.get(task).is_some_and(|t| t.remote)
}

impl Machine {
    /// A new allocation, or one of a former run with its tasks.
    pub(crate) fn new(
        record: AllocRecord,
        job: Arc<Job>,
        tasks: Vec<(Arc<str>, TaskRecord)>,
        max_kill_timeout: GoDuration,
    ) -> Self {
        let restored = !tasks.is_empty();
        let specs = job
            .group(&record.alloc.task_group)
            .map(task_order::specs)
            .unwrap_or_default();
        let mut tasks: BTreeMap<Arc<str>, TaskRecord> = tasks.into_iter().collect();
        let slots = specs
            .iter()
            .map(|spec| {
                let record_of_task = tasks.remove(&spec.name).unwrap_or_else(|| TaskRecord {
                    // What the servers know of a task is never undone by a node that has lost its records.
                    state: record
                        .alloc
                        .task_states
                        .get(&spec.name)
                        .cloned()
                        .unwrap_or_default(),
                    ..TaskRecord::default()
                });
                let remote = is_remote(&record.alloc, &spec.name);
                (
                    spec.name.clone(),
                    Slot {
                        record: record_of_task,
                        phase: Phase::Idle,
                        kill: None,
                        remote,
                        seen: None,
                        released: false,
                    },
                )
            })
            .collect();
        Self {
            record,
            job,
            specs,
            slots,
            max_kill_timeout,
            contacted: !restored,
            stop_local: false,
            cut_off_since: 0,
            destroyed: false,
            health_timer: 0,
        }
    }

    pub(crate) fn record(&self) -> &AllocRecord {
        &self.record
    }

    pub(crate) fn alloc(&self) -> &Allocation {
        &self.record.alloc
    }

    pub(crate) fn job(&self) -> &Arc<Job> {
        &self.job
    }

    pub(crate) fn id(&self) -> AllocId {
        self.record.alloc.id
    }

    pub(crate) fn group(&self) -> Option<&TaskGroup> {
        self.job.group(&self.record.alloc.task_group)
    }

    /// Records of the tasks.
    pub(crate) fn tasks(&self) -> impl Iterator<Item = (&Arc<str>, &TaskRecord)> {
        self.slots.iter().map(|(name, slot)| (name, &slot.record))
    }

    /// The driver's id of a task that runs now.
    pub(crate) fn running(&self, task: &str) -> Option<&Run> {
        let slot = self.slots.get(task)?;
        (slot.phase == Phase::Running)
            .then_some(slot.record.run.as_ref())
            .flatten()
    }

    /// A driver is starting something.
    pub(crate) fn starting(&self) -> bool {
        self.slots.values().any(|s| s.phase == Phase::Starting)
    }

    pub(crate) fn is_remote_task(&self, task: &str) -> bool {
        self.slots.get(task).is_some_and(|s| s.remote)
    }

    pub(crate) fn has_task(&self, task: &str) -> bool {
        self.slots.contains_key(task)
    }

    /// Everything has ended here: no local run is left and every task is dead.
    pub(crate) fn over(&self) -> bool {
        self.slots.values().all(|s| {
            s.record.state.state == TaskRunState::Dead
                && s.phase == Phase::Idle
                && s.record.run.is_none()
        })
    }

    /// Nothing of this allocation is left to this node to do: local runs are gone. Remote tasks live on elsewhere.
    pub(crate) fn local_over(&self) -> bool {
        self.slots
            .values()
            .filter(|s| !s.remote)
            .all(|s| s.phase == Phase::Idle && s.record.run.is_none())
    }

    fn stopping(&self) -> bool {
        self.record.removed || self.stop_local || self.record.alloc.server_terminal()
    }

    fn task(&self, name: &str) -> Option<&Task> {
        self.group()?.task(name)
    }

    fn states(&self) -> BTreeMap<Arc<str>, TaskState> {
        self.slots
            .iter()
            .map(|(n, s)| (n.clone(), s.record.state.clone()))
            .collect()
    }

    /// What the servers are told.
    pub(crate) fn update(&self) -> AllocClientUpdate {
        let states = self.states();
        let (client_status, description) = if self.specs.is_empty() {
            (ClientStatus::Failed, "The job has no such task group")
        } else {
            task_order::client_status(&self.specs, &states)
        };
        AllocClientUpdate {
            id: self.id(),
            client_status,
            client_description: description.to_owned(),
            task_states: states,
            deployment_status: self
                .record
                .health
                .clone()
                .or_else(|| self.alloc().deployment_status.clone()),
            network_status: None,
        }
    }

    /// Takes an event, answers with what to do. The caller writes the records first.
    pub(crate) fn apply(&mut self, event: Event, now: Now) -> Vec<Effect> {
        let mut out = Vec::new();
        match event {
            Event::Begin => self.begin(now, &mut out),
            Event::Contacted => self.contacted = true,
            Event::Changed(alloc, job) => self.changed(&alloc, job, now),
            Event::Removed => {
                self.record.removed = true;
                self.contacted = true;
            }
            Event::StopLocal => self.stop_local = true,
            Event::CutOff(true) if self.cut_off_since == 0 => {
                self.cut_off_since = now.time;
                if let Some(after) = self.stop_when_cut_off() {
                    let at = now.time.saturating_add(after.nanos());
                    out.push(Effect::Wake {
                        at,
                        timer: Timer::CutOff { since: now.time },
                    });
                }
            }
            Event::CutOff(true) => {}
            Event::CutOff(false) => self.cut_off_since = 0,
            Event::Started { task, run, result } => {
                self.started(&task, &run, result, now, &mut out)
            }
            Event::Recovered { task, run, result } => {
                self.recovered(&task, &run, result, now, &mut out)
            }
            Event::Exited { task, run, exit } => self.exited(&task, &run, &exit, now, &mut out),
            Event::StopFailed { task, run, why } => {
                if let Some(kill) = self.current(&task, &run).and_then(|s| s.kill.as_mut()) {
                    kill.error = why;
                }
            }
            Event::Freed { task, run } => self.freed(&task, &run, &mut out),
            Event::Due(timer) => self.due(timer, &mut out),
            Event::RestartAsked { tasks, also_dead } => {
                for task in tasks {
                    self.restart_asked(&task, also_dead, now, &mut out);
                }
            }
            Event::SignalAsked { task, signal } => {
                self.note(&task, events::signaling(now.time, &signal))
            }
            Event::DriverSaid {
                task,
                message,
                annotations,
            } => self.note(&task, events::driver(now.time, &message, &annotations)),
            Event::Remote { task, view } => self.remote(&task, *view, now),
            Event::RemoteReleased { task } => {
                if let Some(slot) = self.slots.get_mut(&task) {
                    slot.released = true;
                }
            }
        }
        self.drive(now, &mut out);
        out
    }

    fn note(&mut self, task: &str, event: model::TaskEvent) {
        if let Some(slot) = self.slots.get_mut(task) {
            events::push(&mut slot.record.state, event);
        }
    }

    /// The slot, when `run` is its present run.
    fn current(&mut self, task: &str, run: &str) -> Option<&mut Slot> {
        self.slots
            .get_mut(task)
            .filter(|s| s.record.run.as_ref().is_some_and(|r| r.id == run))
    }

    fn begin(&mut self, now: Now, out: &mut Vec<Effect>) {
        if self.record.watched_since == 0 {
            self.record.watched_since = now.time;
        }
        for (name, slot) in &mut self.slots {
            if slot.record.state.events.is_empty()
                && slot.record.run.is_none()
                && slot.record.state.state == TaskRunState::Pending
            {
                events::push(&mut slot.record.state, events::received(now.time));
            }
            if slot.remote {
                continue;
            }
            match slot.record.run.clone() {
                Some(Run {
                    id,
                    handle,
                    ended: true,
                }) => {
                    slot.phase = Phase::Freeing;
                    out.push(Effect::Free {
                        task: name.clone(),
                        run: id,
                        handle,
                        known: false,
                    });
                }
                Some(Run {
                    id,
                    handle: Some(handle),
                    ..
                }) => {
                    slot.phase = Phase::Recovering;
                    out.push(Effect::Recover {
                        task: name.clone(),
                        run: id,
                        handle,
                    });
                }
                // The start was announced and never confirmed: whatever it has left is ended before anything else.
                Some(Run {
                    id, handle: None, ..
                }) => {
                    slot.phase = Phase::Freeing;
                    out.push(Effect::Free {
                        task: name.clone(),
                        run: id,
                        handle: None,
                        known: false,
                    });
                }
                None if slot.record.state.state == TaskRunState::Dead => {
                    out.push(Effect::TaskOver { task: name.clone() })
                }
                None if slot.record.restart_at != 0 => {
                    slot.phase = Phase::Backoff;
                    out.push(Effect::Wake {
                        at: slot.record.restart_at,
                        timer: Timer::Restart { task: name.clone() },
                    });
                }
                None => {}
            }
        }
    }

    fn changed(&mut self, alloc: &Arc<Allocation>, job: Arc<Job>, now: Now) {
        self.contacted = true;
        if alloc.deployment_id != self.record.alloc.deployment_id {
            self.record.watched_since = now.time;
            self.record.health = None;
        }
        self.record.alloc = (**alloc).clone();
        self.job = job;
        if let Some(group) = self.job.group(&self.record.alloc.task_group) {
            let specs = task_order::specs(group);
            // An in-place update never adds or removes tasks; a job that does so means a new allocation.
            if specs
                .iter()
                .map(|s| &s.name)
                .eq(self.specs.iter().map(|s| &s.name))
            {
                self.specs = specs;
            }
        }
        for (name, slot) in &mut self.slots {
            slot.remote = is_remote(&self.record.alloc, name);
        }
    }

    /// Brings the tasks in line with what the order of tasks says now. Idempotent.
    fn drive(&mut self, now: Now, out: &mut Vec<Effect>) {
        if self.destroyed {
            return;
        }
        // An order may make the next one possible (a pending task that is to stop is dead at once), so it is asked until nothing changes.
        for _ in 0..=self.specs.len() {
            let orders = task_order::next(&self.specs, &self.states(), self.stopping());
            let mut changed = false;
            for (task, reason) in &orders.stop {
                changed |= self.stop(task, reason, now, out);
            }
            for task in &orders.start {
                changed |= self.start(task, now, out);
            }
            if !changed {
                break;
            }
        }
        self.look_at_health(now, out);
        if self.over() && self.record.ended_at == 0 {
            self.record.ended_at = now.time;
        }
        if self.record.removed && self.local_over() {
            self.destroyed = true;
            out.push(Effect::Destroy);
        }
    }

    fn start(&mut self, task: &Arc<str>, now: Now, out: &mut Vec<Effect>) -> bool {
        // A restored allocation may have been replaced meanwhile: nothing is started before the servers have said that it is still wanted.
        if !self.contacted {
            return false;
        }
        let id = self.id();
        let Some(slot) = self.slots.get_mut(task) else {
            return false;
        };
        if slot.remote
            || slot.phase != Phase::Idle
            || slot.record.run.is_some()
            || slot.record.restart_at != 0
        {
            return false;
        }
        if slot.record.state.restarts == 0
            && !slot
                .record
                .state
                .events
                .iter()
                .any(|e| e.kind == events::kind::SETUP)
        {
            events::push(
                &mut slot.record.state,
                events::setup(now.time, "Building Task Directory"),
            );
        }
        let salt = task
            .bytes()
            .fold(now.seed, |h, b| lifecycle::restart::mix(h ^ u64::from(b)));
        #[allow(
            clippy::cast_possible_truncation,
            reason = "eight hexadecimal digits are wanted"
        )]
        let run = format!("{id}/{task}/{:08x}", salt as u32);
        slot.record.run = Some(Run {
            id: run.clone(),
            handle: None,
            ended: false,
        });
        slot.phase = Phase::Starting;
        out.push(Effect::Start {
            task: task.clone(),
            run,
        });
        true
    }

    fn started(
        &mut self,
        task: &Arc<str>,
        run: &str,
        result: Result<Vec<u8>, StartFailure>,
        now: Now,
        out: &mut Vec<Effect>,
    ) {
        let Some(slot) = self
            .current(task, run)
            .filter(|s| s.phase == Phase::Starting)
        else {
            return;
        };
        match result {
            Ok(handle) => {
                if let Some(run) = &mut slot.record.run {
                    run.handle = Some(handle.clone());
                }
                slot.phase = Phase::Running;
                slot.record.state.state = TaskRunState::Running;
                slot.record.state.failed = false;
                slot.record.state.started_at = rfc3339(now.time);
                slot.record.state.finished_at = String::new();
                events::push(&mut slot.record.state, events::started(now.time));
                out.push(Effect::Wait {
                    task: task.clone(),
                    run: run.to_owned(),
                    handle,
                });
                if slot.kill.is_some() {
                    self.begin_stop(task, now, out);
                }
            }
            Err(failure) => {
                let (event, end) = match &failure {
                    StartFailure::Validation(why) => {
                        (events::failed_validation(now.time, why), End::Unrecoverable)
                    }
                    StartFailure::Setup { why, recoverable } => (
                        events::setup_failure(now.time, why, false),
                        if *recoverable {
                            End::StartFailed
                        } else {
                            End::Unrecoverable
                        },
                    ),
                    StartFailure::Driver { why, recoverable } => (
                        events::driver_failure(now.time, why),
                        if *recoverable {
                            End::StartFailed
                        } else {
                            End::Unrecoverable
                        },
                    ),
                };
                events::push(&mut slot.record.state, event);
                self.ended(task, end, now);
                self.free(task, true, out);
            }
        }
    }

    fn recovered(
        &mut self,
        task: &Arc<str>,
        run: &str,
        result: Result<(), String>,
        now: Now,
        out: &mut Vec<Effect>,
    ) {
        let Some(slot) = self
            .current(task, run)
            .filter(|s| s.phase == Phase::Recovering)
        else {
            return;
        };
        match result {
            Ok(()) => {
                slot.phase = Phase::Running;
                let handle = slot
                    .record
                    .run
                    .as_ref()
                    .and_then(|r| r.handle.clone())
                    .unwrap_or_default();
                out.push(Effect::Wait {
                    task: task.clone(),
                    run: run.to_owned(),
                    handle,
                });
                if slot.kill.is_some() {
                    self.begin_stop(task, now, out);
                }
            }
            Err(why) => {
                events::push(
                    &mut slot.record.state,
                    events::restore_failed(now.time, &why),
                );
                let exit = Exit {
                    code: -1,
                    message: format!("the task could not be found again: {why}"),
                    ..Exit::default()
                };
                self.exited(task, run, &exit, now, out);
            }
        }
    }

    fn exited(&mut self, task: &Arc<str>, run: &str, exit: &Exit, now: Now, out: &mut Vec<Effect>) {
        let Some(slot) = self
            .current(task, run)
            .filter(|s| matches!(s.phase, Phase::Running | Phase::Recovering))
        else {
            return;
        };
        events::push(
            &mut slot.record.state,
            events::terminated(
                now.time,
                exit.code,
                exit.signal,
                exit.oom_killed,
                &exit.message,
            ),
        );
        self.ended(
            task,
            End::Exited {
                successful: exit.successful(),
            },
            now,
        );
        self.free(task, true, out);
    }

    /// Counts the end of a run and decides what follows.
    fn ended(&mut self, task: &Arc<str>, end: End, now: Now) {
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
            Some(Kill {
                after: After::Die,
                error,
                ..
            }) => {
                events::push(state, events::killed(now.time, &error));
                dead(state, now);
            }
            Some(Kill {
                after: After::Restart,
                ..
            }) => {
                events::push(state, events::restarting(now.time, GoDuration::ZERO, ""));
                state.state = TaskRunState::Pending;
                state.restarts += 1;
                state.last_restart = rfc3339(now.time);
                slot.record.restart_at = now.time;
            }
            None => {
                let mut tracker = slot.record.tracker();
                let decision = tracker.on_end(&policy, once, end, now.time, now.seed);
                slot.record.set_tracker(tracker);
                let state = &mut slot.record.state;
                match decision {
                    Decision::Restart { at, reason } => {
                        let delay = GoDuration(at.saturating_sub(now.time).max(0));
                        events::push(state, events::restarting(now.time, delay, &reason));
                        state.state = TaskRunState::Pending;
                        state.failed = false;
                        state.restarts += 1;
                        state.last_restart = rfc3339(now.time);
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

    fn free(&mut self, task: &Arc<str>, known: bool, out: &mut Vec<Effect>) {
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
            });
        }
    }

    fn freed(&mut self, task: &Arc<str>, run: &str, out: &mut Vec<Effect>) {
        let Some(slot) = self
            .current(task, run)
            .filter(|s| s.phase == Phase::Freeing)
        else {
            return;
        };
        slot.record.run = None;
        slot.phase = Phase::Idle;
        if slot.record.state.state == TaskRunState::Dead {
            slot.record.restart_at = 0;
            out.push(Effect::TaskOver { task: task.clone() });
        } else if slot.record.restart_at != 0 {
            slot.phase = Phase::Backoff;
            out.push(Effect::Wake {
                at: slot.record.restart_at,
                timer: Timer::Restart { task: task.clone() },
            });
        }
    }

    fn due(&mut self, timer: Timer, out: &mut Vec<Effect>) {
        match timer {
            Timer::Restart { task } => {
                if let Some(slot) = self
                    .slots
                    .get_mut(&task)
                    .filter(|s| s.phase == Phase::Backoff)
                {
                    slot.phase = Phase::Idle;
                    slot.record.restart_at = 0;
                }
            }
            Timer::ShutdownDelay { task, run } => {
                if self
                    .current(&task, &run)
                    .is_some_and(|s| s.phase == Phase::Running)
                {
                    self.send_stop(&task, out);
                }
            }
            Timer::Health => self.health_timer = 0,
            // Heard and lost again since then: another timer counts.
            Timer::CutOff { since } => self.stop_local |= since == self.cut_off_since,
        }
    }

    /// True when the task's state has changed by it.
    fn stop(
        &mut self,
        task: &Arc<str>,
        reason: &StopReason,
        now: Now,
        out: &mut Vec<Effect>,
    ) -> bool {
        let Some(slot) = self.slots.get_mut(task) else {
            return false;
        };
        let why = match reason {
            StopReason::AllocStopped => None,
            StopReason::SiblingFailed(sibling) => Some(events::sibling_failed(now.time, sibling)),
            StopReason::LeaderDead(_) => Some(events::leader_dead(now.time)),
            StopReason::MainTasksDead => Some(events::main_dead(now.time)),
        };
        if slot.remote {
            // Rule 5: only a server order ends the instance. For this allocation the task is over with the verdict, or when the slot has moved.
            if !slot.released || slot.record.state.state == TaskRunState::Dead {
                return false;
            }
            let let_go =
                "Let go: the servers have moved the instance elsewhere, nothing was stopped";
            events::push(
                &mut slot.record.state,
                events::driver(now.time, let_go, &BTreeMap::new()),
            );
            dead(&mut slot.record.state, now);
            return true;
        }
        match slot.phase {
            Phase::Idle | Phase::Backoff | Phase::Freeing => {
                if slot.record.state.state == TaskRunState::Dead {
                    return false;
                }
                if let Some(why) = why {
                    events::push(&mut slot.record.state, why);
                }
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
                match &mut slot.kill {
                    Some(kill) => {
                        kill.after = After::Die;
                        return false;
                    }
                    None => {
                        slot.kill = Some(Kill {
                            after: After::Die,
                            sent: false,
                            error: String::new(),
                        })
                    }
                }
                if let Some(why) = why {
                    events::push(&mut slot.record.state, why);
                }
                if slot.phase == Phase::Running {
                    self.begin_stop(task, now, out);
                }
                // Its state changes when it has ended.
                false
            }
        }
    }

    /// Announces the stop of a running task, waits for its shutdown_delay if it has one, then stops it.
    fn begin_stop(&mut self, task: &Arc<str>, now: Now, out: &mut Vec<Effect>) {
        let timeout = self.kill_timeout(task);
        let task_delay = self
            .task(task)
            .map_or(GoDuration::ZERO, |t| t.shutdown_delay);
        let group_delay = self
            .group()
            .and_then(|g| g.shutdown_delay)
            .unwrap_or(GoDuration::ZERO);
        let skip = self.alloc().desired_transition.no_shutdown_delay == Some(true);
        let stopping = self.stopping();
        let Some(slot) = self.slots.get_mut(task) else {
            return;
        };
        let Some(kill) = &slot.kill else { return };
        // The group's delay is for stops of the whole allocation.
        let delay = if stopping && kill.after == After::Die {
            task_delay.max(group_delay)
        } else {
            task_delay
        };
        let Some(run) = slot.record.run.as_ref().map(|r| r.id.clone()) else {
            return;
        };
        events::push(
            &mut slot.record.state,
            events::killing(now.time, timeout, ""),
        );
        if delay.nanos() > 0 && skip {
            events::push(
                &mut slot.record.state,
                events::skip_shutdown_delay(now.time),
            );
        }
        if delay.nanos() > 0 && !skip {
            let at = now.time.saturating_add(delay.nanos());
            out.push(Effect::Wake {
                at,
                timer: Timer::ShutdownDelay {
                    task: task.clone(),
                    run,
                },
            });
        } else {
            self.send_stop(task, out);
        }
    }

    fn send_stop(&mut self, task: &Arc<str>, out: &mut Vec<Effect>) {
        let timeout = self.kill_timeout(task);
        let signal = self
            .task(task)
            .map(|t| t.kill_signal.clone())
            .unwrap_or_default();
        let Some(slot) = self.slots.get_mut(task) else {
            return;
        };
        let (Some(kill), Some(run)) = (&mut slot.kill, &slot.record.run) else {
            return;
        };
        if !kill.sent {
            kill.sent = true;
            out.push(Effect::Stop {
                task: task.clone(),
                run: run.id.clone(),
                signal,
                timeout,
            });
        }
    }

    fn restart_asked(&mut self, task: &Arc<str>, also_dead: bool, now: Now, out: &mut Vec<Effect>) {
        let stopping = self.stopping();
        let Some(slot) = self.slots.get_mut(task).filter(|s| !s.remote && !stopping) else {
            return;
        };
        match slot.phase {
            Phase::Running if slot.kill.is_none() => {
                events::push(&mut slot.record.state, events::restart_signaled(now.time));
                slot.kill = Some(Kill {
                    after: After::Restart,
                    sent: false,
                    error: String::new(),
                });
                self.begin_stop(task, now, out);
            }
            Phase::Backoff => {
                events::push(&mut slot.record.state, events::restart_signaled(now.time));
                slot.phase = Phase::Idle;
                slot.record.restart_at = 0;
            }
            Phase::Idle if also_dead && slot.record.state.state == TaskRunState::Dead => {
                let state = &mut slot.record.state;
                events::push(state, events::restart_signaled(now.time));
                state.state = TaskRunState::Pending;
                state.failed = false;
                state.restarts += 1;
                state.last_restart = rfc3339(now.time);
                state.finished_at = String::new();
                self.record.ended_at = 0;
            }
            _ => {}
        }
    }

    /// The state of a remote task follows what is seen of its instance and what the servers make of it.
    fn remote(&mut self, task: &Arc<str>, view: RemoteView, now: Now) {
        let Some(slot) = self.slots.get_mut(task).filter(|s| s.remote) else {
            return;
        };
        slot.released = false;
        let known = slot.seen.is_some();
        let before = slot.seen.replace(view.clone()).unwrap_or_default();
        let state = &mut slot.record.state;
        // After a restart of the agent the events tell what has been counted already.
        let another =
            state.restarts != view.restarts || (known && before.incarnation != view.incarnation);
        let last_is_restart = state
            .events
            .last()
            .is_some_and(|e| e.kind == events::kind::RESTARTING);
        state.restarts = view.restarts;
        if let Some(exit) = &view.result
            && !state
                .events
                .iter()
                .any(|e| e.kind == events::kind::TERMINATED && e.time == exit.at)
        {
            events::push(
                state,
                events::terminated(
                    exit.at,
                    exit.code,
                    exit.signal,
                    exit.oom_killed,
                    &exit.reason,
                ),
            );
        }
        if !view.refused.is_empty() && before.refused != view.refused {
            events::push(state, events::driver_failure(now.time, &view.refused));
        }
        match &view.verdict {
            RemoteVerdict::Active if state.state == TaskRunState::Dead => {}
            RemoteVerdict::Active => match view.observed {
                Observed::Running => {
                    if state.state != TaskRunState::Running || another {
                        let started = if view.started_at == 0 {
                            now.time
                        } else {
                            view.started_at
                        };
                        let adopted = state.started_at.is_empty()
                            && now.time.saturating_sub(started) > 5_000_000_000;
                        state.state = TaskRunState::Running;
                        state.started_at = rfc3339(started);
                        state.finished_at = String::new();
                        let mut event = events::started(now.time);
                        if adopted {
                            event.display_message =
                                "Task adopted: its instance runs since before this allocation"
                                    .to_owned();
                        }
                        events::push(state, event);
                    }
                    if view.stopping && !before.stopping {
                        events::push(
                            state,
                            events::killing(
                                now.time,
                                GoDuration::ZERO,
                                "Stopped by order of the servers",
                            ),
                        );
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
                Observed::Intended
                | Observed::Creating
                | Observed::Exited { .. }
                | Observed::Gone => {}
            },
            RemoteVerdict::Restarting { at, reason } => {
                if before.verdict != view.verdict && (known || !last_is_restart) {
                    state.state = TaskRunState::Pending;
                    state.last_restart = rfc3339(now.time);
                    events::push(
                        state,
                        events::restarting(
                            now.time,
                            GoDuration(at.saturating_sub(now.time).max(0)),
                            reason,
                        ),
                    );
                }
            }
            RemoteVerdict::Complete | RemoteVerdict::Failed { .. } | RemoteVerdict::Stopped => {
                if state.state != TaskRunState::Dead {
                    match &view.verdict {
                        RemoteVerdict::Failed { reason } => {
                            events::push(state, events::not_restarting(now.time, reason))
                        }
                        RemoteVerdict::Stopped => events::push(state, events::killed(now.time, "")),
                        _ => {}
                    }
                    dead(state, now);
                    if let Some(exit) = view.result.as_ref().filter(|e| e.at > 0) {
                        state.finished_at = rfc3339(exit.at);
                    }
                }
            }
        }
    }

    fn look_at_health(&mut self, now: Now, out: &mut Vec<Effect>) {
        let alloc = &self.record.alloc;
        if self.record.health.is_some() || alloc.healthy().is_some() || self.stopping() {
            return;
        }
        let Some(group) = self.job.group(&alloc.task_group) else {
            return;
        };
        let criteria = if !alloc.deployment_id.is_nil() {
            group.update.as_ref().map(Criteria::from)
        } else if self.job.kind == job_type::SERVICE {
            group.migrate.as_ref().map(Criteria::from)
        } else {
            None
        };
        let Some(criteria) = criteria else { return };
        let deployment = !alloc.deployment_id.is_nil();
        let canary = alloc.deployment_status.as_ref().is_some_and(|d| d.canary);
        match health::decide(
            &criteria,
            &self.specs,
            &self.states(),
            self.record.watched_since,
            now.time,
        ) {
            Health::Healthy => self.decided(true, canary, now),
            Health::Unhealthy { why } => {
                if deployment {
                    for slot in self
                        .slots
                        .values_mut()
                        .filter(|s| s.record.state.state != TaskRunState::Dead)
                    {
                        events::push(
                            &mut slot.record.state,
                            events::alloc_unhealthy(now.time, &why),
                        );
                    }
                }
                self.decided(false, canary, now);
            }
            Health::Undecided { again_at: Some(at) } if at != self.health_timer => {
                self.health_timer = at;
                out.push(Effect::Wake {
                    at,
                    timer: Timer::Health,
                });
            }
            Health::Undecided { .. } => {}
        }
    }

    fn decided(&mut self, healthy: bool, canary: bool, now: Now) {
        self.record.health = Some(AllocDeploymentStatus {
            healthy: Some(healthy),
            timestamp: rfc3339(now.time),
            canary,
            modify_index: 0,
        });
    }

    /// How long the node may be cut off before it stops the allocation by itself; remote tasks are let go, not stopped.
    fn stop_when_cut_off(&self) -> Option<GoDuration> {
        let group = self.group()?;
        let newer = group
            .disconnect
            .as_ref()
            .and_then(|d| d.stop_on_client_after);
        newer
            .or(group.stop_after_client_disconnect)
            .filter(|d| d.nanos() > 0)
    }

    fn kill_timeout(&self, task: &str) -> GoDuration {
        let asked = self
            .task(task)
            .and_then(|t| t.kill_timeout)
            .unwrap_or(GoDuration::from_secs(5));
        asked.min(self.max_kill_timeout)
    }

    fn policy(&self, task: &str) -> Restart {
        let mut policy = self
            .task(task)
            .and_then(|t| t.restart.clone())
            .unwrap_or_default();
        if let Some(outer) = self.group().and_then(|g| g.restart.as_ref()) {
            policy.inherit(outer);
        }
        policy
    }

    /// A successful end completes the task instead of restarting it.
    fn runs_once(&self, task: &str) -> bool {
        match self.task(task).and_then(|t| t.lifecycle.as_ref()) {
            Some(l) if l.hook == "prestart" || l.hook == "poststart" => !l.sidecar,
            Some(l) if l.hook == "poststop" => true,
            _ => matches!(self.job.kind.as_str(), job_type::BATCH | job_type::SYSBATCH),
        }
    }
}

fn dead(state: &mut TaskState, now: Now) {
    state.state = TaskRunState::Dead;
    state.finished_at = rfc3339(now.time);
}

/// Unix ns as RFC 3339.
pub(crate) fn rfc3339(ns: TimestampNs) -> String {
    jiff::Timestamp::from_nanosecond(i128::from(ns))
        .map(|t| t.to_string())
        .unwrap_or_default()
}

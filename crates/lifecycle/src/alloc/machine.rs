//! The allocation as a state machine: events in, effects out. It uses no clock, files or drivers, so tests cover all of
//! its behaviour as values.
//!
//! ```text
//! task:  Idle ─► Starting ─► Running ─► Freeing ─► Idle (dead)
//!          ▲        │           ▲          └─► Backoff ─► Starting
//!          └────────┘      Recovering
//! ```
//!
//! After every event `crate::task_order` decides which tasks may start and which must stop. `crate::restart` decides on
//! restarts, and `crate::health` on health. A remote task has no phase here: its state follows the servers' verdict and
//! the node's sightings. No stop, restart or end of the allocation touches its instance.

mod checks;
mod health;
mod local;
mod remote;
mod rolling;
mod services;

use std::{collections::BTreeMap, sync::Arc};

use model::{
    AllocClientUpdate, AllocId, Allocation, ClientStatus, GoDuration, Job, MAX_RUN_EXCEEDED, Observed, Task, TaskGroup,
    TaskRunState, TaskState, TimestampNs, network::DriverNetwork, remote::RemoteVerdict,
};

use super::{
    kept::Kept,
    record::{AllocRecord, CheckRun, Run, TaskRecord},
};
use crate::{
    alloc::events,
    checks::Outcome,
    task_order::{self, Ending, TaskSpec},
};

/// How a workload ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exit {
    /// Exit code; 0 as well when a signal ended it.
    pub code: i32,
    /// Signal, 0 = none.
    pub signal: i32,
    /// The kernel killed it because it ran out of memory.
    pub oom_killed: bool,
    /// Further error of the driver; not empty = the run has failed.
    pub message: String,
    /// The end was not seen: the driver no longer knows the run.
    pub lost: bool,
}

impl Exit {
    fn successful(&self) -> bool {
        self.code == 0 && self.signal == 0 && !self.oom_killed && self.message.is_empty()
    }
}

/// Answer of a driver that has started a task.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Launched {
    /// Handle of the task, with its whole configuration.
    pub handle: Vec<u8>,
    /// Address of the task, if it differs from the node's.
    pub network: Option<DriverNetwork>,
}

/// Why a start failed. `why` is for people; `recoverable` = another attempt may succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are explained once, above")]
pub enum StartFailure {
    /// The job's configuration of the task is wrong: never tried again.
    Validation(String),
    /// The node could not prepare it.
    Setup { why: String, recoverable: bool },
    /// An artifact could not be fetched.
    Artifact { why: String, recoverable: bool },
    /// A stop or the end of the agent came before the call of the driver.
    Interrupted,
    /// The driver could not start it.
    Driver { why: String, recoverable: bool },
}

/// Something that has happened. `task` is the task's name and `run` the id of its start: a late event of a former run
/// changes nothing. `why` is for people.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "the fields are explained once, above")]
pub enum Event {
    /// First event of every machine.
    Begin,
    /// The first contact with the servers since the start of the agent.
    Contacted,
    /// The servers have changed the allocation.
    Changed(Arc<Allocation>, Arc<Job>),
    /// The servers have collected the allocation.
    Removed,
    /// The agent stops for good and its tasks with it.
    StopLocal,
    /// True: no server answers the node; false: one answers again.
    CutOff(bool),
    /// Outcome of a start.
    Started { task: Arc<str>, run: String, result: Result<Launched, StartFailure> },
    /// Outcome of the recovery of a former agent's run.
    Recovered { task: Arc<str>, run: String, result: Result<(), String> },
    /// The workload has ended.
    Exited { task: Arc<str>, run: String, exit: Exit },
    /// The driver could not stop it; the end of the task decides.
    StopFailed { task: Arc<str>, run: String, why: String },
    /// The driver has freed the run; or it could not (`owed`), and nothing of the run is left on this node.
    Freed { task: Arc<str>, run: String, owed: bool },
    /// The driver has freed a run that it could not free before.
    Settled { task: Arc<str>, run: String },
    /// A timer that [`Effect::Wake`] asked for.
    Due(Timer),
    /// An operator asks for restarts.
    RestartAsked { tasks: Vec<Arc<str>>, also_dead: bool, why: &'static str },
    /// An operator sends a signal.
    SignalAsked { task: Arc<str>, signal: String },
    /// A message of the driver for the task's history.
    DriverSaid { task: Arc<str>, message: String, annotations: BTreeMap<String, String> },
    /// An event of the node for the task's history.
    Noted { task: Arc<str>, event: Box<model::TaskEvent> },
    /// Files of the run (templates, tokens) have changed, and the job asks for a restart.
    DataChanged { task: Arc<str>, run: String, why: String },
    /// A template of the run with `rolling` has changed. `data` is a digest of all that such templates have rendered.
    RollingRestartAsked { task: Arc<str>, run: String, data: String },
    /// The change of a template could not be announced to the run.
    TemplateFailed { task: Arc<str>, run: String, why: String },
    /// A check has run; without an outcome it could not run.
    Checked { key: String, outcome: Option<Outcome>, run: CheckRun },
    /// A service that should stand cannot be registered.
    ServiceProblem { service: String, why: String },
    /// New facts about a remote task.
    Remote { task: Arc<str>, view: Arc<RemoteView> },
    /// The servers have moved a remote task elsewhere, or never gave it to this allocation.
    RemoteReleased { task: Arc<str> },
}

/// State of a remote task, as its allocation sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RemoteView {
    /// The instance that the servers want now.
    pub incarnation: model::IncarnationId,
    /// Last observation of it.
    pub observed: Observed,
    /// What the servers have decided about the task.
    pub verdict: RemoteVerdict,
    /// How it ended, once it has.
    pub result: Option<model::remote::RemoteExit>,
    /// Restarts so far, under all managers.
    pub restarts: u64,
    /// When the instance started.
    pub started_at: TimestampNs,
    /// What an instance that is being created waits for, in the provider's words.
    pub waiting: String,
    /// Why the driver refuses the instance; empty = it does not.
    pub refused: String,
    /// The servers want it stopped.
    pub stopping: bool,
    /// They end it because its group's `max_run_duration` is over.
    pub expired: bool,
    /// Epoch under which this node manages it; 0 = it does not.
    pub epoch: u64,
    /// Address of the instance, as its runtime reports it.
    pub network: DriverNetwork,
}

/// A timer that is due. `task` and `run` as in [`Event`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are explained once, above")]
pub enum Timer {
    /// The pause before the next start is over.
    Restart { task: Arc<str> },
    /// The task's `shutdown_delay` is over.
    ShutdownDelay { task: Arc<str>, run: String },
    /// Time alone may have changed the allocation's health.
    Health,
    /// The group's `shutdown_delay` is over.
    GroupDelay,
    /// The job wants its tasks stopped when the node is cut off this long.
    CutOff { since: TimestampNs },
    /// The group's `max_run_duration` is over.
    Deadline,
}

/// An effect to carry out after the records have been written. `task` and `run` as in [`Event`]; `handle` is the
/// driver's, as it gave it.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "the fields are explained once, above")]
pub enum Effect {
    /// Prepare the task, and have its driver start it.
    Start { task: Arc<str>, run: String },
    /// Have the driver recover a run of a former agent.
    Recover { task: Arc<str>, run: String, handle: Vec<u8> },
    /// Wait for its end at the driver.
    Wait { task: Arc<str>, run: String, handle: Vec<u8> },
    /// Have the driver end it: `signal`, then by force after `timeout`.
    Stop { task: Arc<str>, run: String, signal: String, timeout: GoDuration },
    /// End a run whose driver has not recovered it, without the driver if that does not come back.
    EndUnattended { task: Arc<str>, run: String },
    /// Free a run that has ended at the driver; `known` = this driver process knows it already. Kills what is left of
    /// it.
    Free { task: Arc<str>, run: String, handle: Option<Vec<u8>>, known: bool, lost: bool },
    /// Free a run that its driver could not free before, however long that takes.
    Settle { task: Arc<str>, run: String, handle: Option<Vec<u8>> },
    /// The task is dead: its collector and cgroups go.
    TaskOver { task: Arc<str> },
    /// A check asks for a restart of a remote task: the servers decide.
    Unhealthy { task: Arc<str>, incarnation: model::IncarnationId, why: String },
    /// A start is no longer wanted: end its preparation.
    Interrupt { run: String },
    /// Send [`Event::Due`] at that time.
    Wake { at: TimestampNs, timer: Timer },
    /// Delete directories and records: everything has ended, and the servers have forgotten the allocation.
    Destroy,
}

impl Effect {
    /// Whether the effect begins nothing and is harmless when repeated: it needs no record beforehand.
    pub fn only_ends(&self) -> bool {
        match self {
            Self::Stop { .. }
            | Self::EndUnattended { .. }
            | Self::Unhealthy { .. }
            | Self::Interrupt { .. }
            | Self::Wake { .. } => true,
            Self::Start { .. }
            | Self::Recover { .. }
            | Self::Wait { .. }
            | Self::Free { .. }
            | Self::Settle { .. }
            | Self::TaskOver { .. }
            | Self::Destroy => false,
        }
    }
}

/// Time and seed of an event: the machine has neither clock nor randomness.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// The time of the event.
    pub time: TimestampNs,
    /// A different seed for each call: for ids of runs, and jitter.
    pub seed: u64,
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
    Die {
        /// Its node stops it without an order, because it is cut off.
        cut_off: bool,
    },
    Restart,
    /// A failed check stopped it. It counts as failed, and the restart policy decides.
    Unhealthy,
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
    record: Kept<TaskRecord>,
    phase: Phase,
    kill: Option<Kill>,
    remote: bool,
    /// The view behind the present state, which the loop of remote tasks has as well.
    seen: Option<Arc<RemoteView>>,
    /// The servers have moved the slot elsewhere.
    released: bool,
}

/// An allocation on its node.
#[derive(Clone, Debug)]
pub struct Machine {
    record: Kept<AllocRecord>,
    job: Arc<Job>,
    specs: Vec<TaskSpec>,
    slots: model::Map<Arc<str>, Slot>,
    max_kill_timeout: GoDuration,
    contacted: bool,
    stop_local: bool,
    /// No server has answered for the group's `stop_on_client_after`: therefore it is stopped.
    stop_cut_off: bool,
    /// Since when no server has answered; 0 = one answers.
    cut_off_since: TimestampNs,
    /// Since when the group's `shutdown_delay` runs; 0 = it does not.
    stopping_since: TimestampNs,
    destroyed: bool,
    health_timer: TimestampNs,
    turn_timer: TimestampNs,
    /// The deadline for which a timer runs; 0 = none does.
    deadline_timer: TimestampNs,
    /// The last run of each check.
    check_runs: BTreeMap<String, CheckRun>,
}

/// Whether the task runs in a remote runtime.
pub fn is_remote(alloc: &Allocation, task: &str) -> bool {
    alloc.remote.contains_key(task) || alloc.resources.tasks.get(task).is_some_and(|t| t.remote)
}

impl Machine {
    /// A new allocation, or one of a former run with its tasks.
    pub fn new(
        record: impl Into<Kept<AllocRecord>>,
        job: Arc<Job>,
        tasks: Vec<(Arc<str>, Kept<TaskRecord>)>,
        max_kill_timeout: GoDuration,
    ) -> Self {
        let record = record.into();
        let restored = !tasks.is_empty();
        let specs = job.group(&record.alloc.task_group).map(task_order::specs).unwrap_or_default();
        let mut tasks: BTreeMap<Arc<str>, Kept<TaskRecord>> = tasks.into_iter().collect();
        let slots = specs
            .iter()
            .map(|spec| {
                let remote = is_remote(&record.alloc, &spec.name);
                let known = record.alloc.task_states.get(&spec.name);
                let record = tasks.remove(&spec.name).unwrap_or_else(|| unrecorded(known, remote).into());
                (
                    spec.name.clone(),
                    Slot { record, phase: Phase::Idle, kill: None, remote, seen: None, released: false },
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
            stop_cut_off: false,
            cut_off_since: 0,
            stopping_since: 0,
            destroyed: false,
            health_timer: 0,
            turn_timer: 0,
            deadline_timer: 0,
            check_runs: BTreeMap::new(),
        }
    }

    /// The record that must survive the agent.
    pub fn record(&self) -> &Kept<AllocRecord> {
        &self.record
    }

    /// Shares the records as written, so that each exists once until it changes.
    pub fn saved(&mut self, record: &Kept<AllocRecord>, tasks: &model::Map<Arc<str>, Kept<TaskRecord>>) {
        self.record = record.clone();
        for (name, record) in tasks.iter() {
            if let Some(slot) = self.slots.get_mut(name) {
                slot.record = record.clone();
            }
        }
    }

    /// Keeps the servers' proof of the allocation as they sent it last.
    pub fn prove(&mut self, proof: Option<Arc<str>>) {
        if self.record.proof != proof {
            self.record.proof = proof;
        }
    }

    /// The allocation as the servers sent it last.
    pub fn alloc(&self) -> &Kept<Allocation> {
        &self.record.alloc
    }

    /// The version of the job that it runs.
    pub fn job(&self) -> &Arc<Job> {
        &self.job
    }

    /// Its id.
    pub fn id(&self) -> AllocId {
        self.record.alloc.id
    }

    /// Its task group; `None` when the job has no such group.
    pub fn group(&self) -> Option<&TaskGroup> {
        self.job.group(&self.record.alloc.task_group)
    }

    /// Records of the tasks.
    pub fn tasks(&self) -> impl Iterator<Item = (&Arc<str>, &Kept<TaskRecord>)> {
        self.slots.iter().map(|(name, slot)| (name, &slot.record))
    }

    /// The driver's id of a task that runs now.
    pub fn running(&self, task: &str) -> Option<&Run> {
        let slot = self.slots.get(task)?;
        (slot.phase == Phase::Running).then_some(slot.record.run.as_ref()).flatten()
    }

    /// The run of a task that runs, also while its driver is still to find it again.
    pub fn alive(&self, task: &str) -> Option<&Run> {
        let slot = self.slots.get(task)?;
        matches!(slot.phase, Phase::Running | Phase::Recovering).then_some(slot.record.run.as_ref()).flatten()
    }

    /// Whether a driver call that starts or frees something is under way; it ends soon.
    pub fn unsettled(&self) -> bool {
        self.slots.values().any(|s| matches!(s.phase, Phase::Starting | Phase::Freeing))
    }

    /// Whether the task is remote; false for unknown names.
    pub fn is_remote_task(&self, task: &str) -> bool {
        self.slots.get(task).is_some_and(|s| s.remote)
    }

    /// It has a task of this name.
    pub fn has_task(&self, task: &str) -> bool {
        self.slots.contains_key(task)
    }

    /// Everything has ended here: no local run is left and every task is dead.
    pub fn over(&self) -> bool {
        self.slots
            .values()
            .all(|s| s.record.state.state == TaskRunState::Dead && s.phase == Phase::Idle && s.record.run.is_none())
    }

    /// Whether this node has nothing left to do: no local run is left. Remote tasks live on elsewhere.
    pub fn local_over(&self) -> bool {
        self.slots.values().filter(|s| !s.remote).all(|s| s.phase == Phase::Idle && s.record.run.is_none())
    }

    /// Whether every local task has ended for good.
    pub fn local_dead(&self) -> bool {
        let ended =
            |s: &Slot| s.phase == Phase::Idle && s.record.run.is_none() && s.record.state.state == TaskRunState::Dead;
        self.slots.values().filter(|s| !s.remote).all(ended)
    }

    /// Why everything of it is to end, if it is.
    fn ending(&self) -> Option<Ending> {
        if self.record.removed || self.stop_local || self.stop_cut_off || self.record.alloc.server_terminal() {
            return Some(Ending::Stopped);
        }
        self.record.expired.then_some(Ending::Expired)
    }

    /// When its group's `max_run_duration` is over, whatever restarts it has had.
    fn deadline(&self) -> Option<TimestampNs> {
        let max = self.group()?.max_run_duration.filter(|max| max.nanos() > 0)?;
        model::job::job_type::finite(&self.job.kind).then(|| self.record.alloc.create_time.saturating_add(max.nanos()))
    }

    /// Ends the allocation at its deadline. What has ended before stays as it ended; a later deadline comes too late.
    fn look_at_deadline(&mut self, now: Now, out: &mut Vec<Effect>) {
        if self.ending().is_some() || self.over() {
            return;
        }
        match self.deadline() {
            Some(at) if at <= now.time => self.record.expired = true,
            Some(at) if self.deadline_timer != at => {
                self.deadline_timer = at;
                out.push(Effect::Wake { at, timer: Timer::Deadline });
            }
            Some(_) => {}
            None => self.deadline_timer = 0,
        }
    }

    fn task(&self, name: &str) -> Option<&Task> {
        self.group()?.task(name)
    }

    fn states(&self) -> BTreeMap<Arc<str>, TaskState> {
        self.slots.iter().map(|(n, s)| (n.clone(), s.record.state.clone())).collect()
    }

    /// The report for the servers.
    pub fn update(&self) -> AllocClientUpdate {
        let states = self.states();
        let (client_status, description) = if self.specs.is_empty() {
            (ClientStatus::Failed, "The job has no such task group")
        } else {
            match task_order::client_status(&self.specs, &states) {
                (ClientStatus::Complete, _) if self.record.expired => (ClientStatus::Complete, MAX_RUN_EXCEEDED),
                status => status,
            }
        };
        AllocClientUpdate {
            id: self.id(),
            client_status,
            client_description: description.into(),
            task_states: states.into_iter().collect(),
            deployment_status: self.record.health.clone().or_else(|| self.alloc().deployment_status.clone()),
            network_status: None,
            services: None,
            remote_services: model::Map::default(),
        }
    }

    /// Takes an event and returns the effects. The caller writes the records first.
    pub fn apply(&mut self, event: Event, now: Now) -> Vec<Effect> {
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
                    out.push(Effect::Wake { at, timer: Timer::CutOff { since: now.time } });
                }
            }
            Event::CutOff(true) => {}
            Event::CutOff(false) => self.cut_off_since = 0,
            Event::Started { task, run, result } => self.started(&task, &run, result, now, &mut out),
            Event::Recovered { task, run, result } => self.recovered(&task, &run, result, now, &mut out),
            Event::Exited { task, run, exit } => self.exited(&task, &run, &exit, now, &mut out),
            Event::StopFailed { task, run, why } => {
                if let Some(kill) = self.current(&task, &run).and_then(|s| s.kill.as_mut()) {
                    kill.error = why;
                }
            }
            Event::Freed { task, run, owed } => self.freed(&task, &run, owed, &mut out),
            Event::Settled { task, run } => {
                if let Some(slot) = self.slots.get_mut(&task) {
                    slot.record.owed.retain(|owed| owed.id != run);
                }
            }
            Event::Due(timer) => self.due(timer, &mut out),
            Event::RestartAsked { tasks, also_dead, why } => {
                for task in tasks {
                    self.restart_asked(&task, also_dead, why, now, &mut out);
                }
            }
            Event::SignalAsked { task, signal } => self.note(&task, events::signaling(now.time, &signal)),
            Event::DriverSaid { task, message, annotations } => {
                self.note(&task, events::driver(now.time, &message, &annotations))
            }
            Event::Noted { task, event } => self.note(&task, *event),
            Event::DataChanged { task, run, why } => self.data_changed(&task, &run, &why, now, &mut out),
            Event::RollingRestartAsked { task, run, data } => self.turn_asked(&task, &run, data, now),
            Event::TemplateFailed { task, run, why } => self.template_failed(&task, &run, &why, now, &mut out),
            Event::Checked { key, outcome, run } => self.checked(&key, outcome, run, now, &mut out),
            Event::ServiceProblem { service, why } => self.service_problem(&service, &why, now),
            Event::Remote { task, view } => self.remote(&task, view, now),
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
        self.slots.get_mut(task).filter(|s| s.record.run.as_ref().is_some_and(|r| r.id == run))
    }

    fn begin(&mut self, now: Now, out: &mut Vec<Effect>) {
        if self.record.watched_since == 0 {
            self.record.watched_since = now.time;
        }
        // A recorded restart later than any policy allows comes from a clock that has been set back since.
        let latest: BTreeMap<Arc<str>, TimestampNs> = self
            .slots
            .keys()
            .map(|name| {
                (name.clone(), now.time.saturating_add(crate::restart::longest_pause(&self.policy(name)).nanos()))
            })
            .collect();
        for (name, slot) in self.slots.iter_mut() {
            if slot.record.state.events.is_empty()
                && slot.record.run.is_none()
                && slot.record.state.state == TaskRunState::Pending
            {
                events::push(&mut slot.record.state, events::received(now.time));
                slot.record.window_start = now.time;
            }
            if slot.remote {
                continue;
            }
            for Run { id, handle, .. } in slot.record.owed.clone() {
                out.push(Effect::Settle { task: name.clone(), run: id, handle });
            }
            match slot.record.run.clone() {
                Some(Run { id, handle, ended: true, lost, .. }) => {
                    slot.phase = Phase::Freeing;
                    out.push(Effect::Free { task: name.clone(), run: id, handle, known: false, lost });
                }
                Some(Run { id, handle: Some(handle), .. }) => {
                    slot.phase = Phase::Recovering;
                    out.push(Effect::Recover { task: name.clone(), run: id, handle });
                }
                // The start was recorded but never confirmed: its leftovers end before anything else.
                Some(Run { id, handle: None, .. }) => {
                    slot.phase = Phase::Freeing;
                    out.push(Effect::Free { task: name.clone(), run: id, handle: None, known: false, lost: false });
                }
                None if slot.record.state.state == TaskRunState::Dead => {
                    out.push(Effect::TaskOver { task: name.clone() })
                }
                None if slot.record.restart_at != 0 => {
                    slot.phase = Phase::Backoff;
                    if let Some(latest) = latest.get(name) {
                        slot.record.restart_at = slot.record.restart_at.min(*latest);
                    }
                    out.push(Effect::Wake { at: slot.record.restart_at, timer: Timer::Restart { task: name.clone() } });
                }
                None => {}
            }
        }
    }

    fn changed(&mut self, alloc: &Arc<Allocation>, job: Arc<Job>, now: Now) {
        self.contacted = true;
        // The servers counted this node as lost. It is connected again, and its tasks are as before.
        let reconnected = alloc.client_status == ClientStatus::Unknown && !alloc.server_terminal();
        let news = alloc.alloc_modify_index > self.record.alloc.alloc_modify_index;
        if reconnected && news {
            for slot in self.slots.values_mut() {
                events::push(&mut slot.record.state, events::reconnected(now.time));
            }
        }
        if alloc.deployment_id != self.record.alloc.deployment_id {
            self.record.watched_since = now.time;
            self.record.health = None;
            self.record.unhealthy_untold = false;
        }
        self.record.alloc = alloc.clone().into();
        self.job = job;
        if let Some(group) = self.job.group(&self.record.alloc.task_group) {
            let specs = task_order::specs(group);
            // An in-place update never adds or removes tasks; a job that does so means a new allocation.
            if specs.iter().map(|s| &s.name).eq(self.specs.iter().map(|s| &s.name)) {
                self.specs = specs;
            }
        }
        for (name, slot) in self.slots.iter_mut() {
            slot.remote = is_remote(&self.record.alloc, name);
        }
    }

    /// The tasks as their order depends on them now. This node only lets go of remote tasks, so nothing waits for their
    /// end.
    fn specs(&self) -> std::borrow::Cow<'_, [TaskSpec]> {
        if !self.stop_local && !self.stop_cut_off && !self.record.removed {
            return (&self.specs).into();
        }
        let mut specs = self.specs.clone();
        for spec in &mut specs {
            spec.let_go = self.is_remote_task(&spec.name);
        }
        specs.into()
    }

    /// Brings the tasks in line with the present order of tasks. Idempotent.
    fn drive(&mut self, now: Now, out: &mut Vec<Effect>) {
        if self.destroyed {
            return;
        }
        self.look_at_deadline(now, out);
        // One order may make the next possible: a pending task that is to stop is dead at once. So the loop asks until
        // nothing changes.
        for _ in 0..=self.specs.len() {
            let ending = self.ending();
            if ending.is_some() && self.group_delays(now, out) {
                break;
            }
            let orders = task_order::next(&self.specs(), &self.states(), ending);
            let mut changed = false;
            for (task, reason) in &orders.stop {
                changed |= self.stop(task, reason, now, out);
            }
            // The verdict covers what ran before the poststop tasks.
            if !orders.start.is_empty()
                && self.specs.iter().any(|s| s.phase == task_order::Phase::Poststop && orders.start.contains(&s.name))
            {
                self.look_at_health(now, out);
            }
            for task in &orders.start {
                changed |= self.start(task, now, out);
            }
            if !changed {
                break;
            }
        }
        self.look_at_checks(now);
        self.look_at_health(now, out);
        self.look_at_turns(now, out);
        if self.over() && self.record.ended_at == 0 {
            self.record.ended_at = now.time;
        }
        if self.record.removed && self.local_over() {
            self.destroyed = true;
            out.push(Effect::Destroy);
        }
    }
}

/// A task without a record on this node. If the servers know its end, that end stands, even on a node that has lost its
/// records. Their belief that it runs here does not count.
fn unrecorded(known: Option<&TaskState>, remote: bool) -> TaskRecord {
    let mut state = known.cloned().unwrap_or_default();
    if !remote && state.state == TaskRunState::Running {
        state.state = TaskRunState::Pending;
    }
    TaskRecord { state, ..TaskRecord::default() }
}

fn dead(state: &mut TaskState, now: Now) {
    state.state = TaskRunState::Dead;
    state.finished_at = now.time.into();
}

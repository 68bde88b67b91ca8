//! The machine as values: events in, effects out.

use std::{collections::BTreeMap, sync::Arc};

use model::{
    Allocation, ClientStatus, DesiredStatus, GoDuration, IncarnationId, Job, Observed, Restart, Task, TaskGroup,
    TaskRunState, Update,
    remote::{RemoteExit, RemoteVerdict},
    task::Lifecycle,
};

use super::{
    kept::Kept,
    machine::{Effect, Event, Exit, Launched, Machine, Now, RemoteView, StartFailure, Timer},
    record::{AllocRecord, Run, TaskRecord},
};

mod cut_off;
mod deadline;
mod order;
mod rolling;
mod services;

const S: i64 = 1_000_000_000;

fn now(time: i64) -> Now {
    Now { time, seed: u64::try_from(time).unwrap_or(0) }
}

fn policy(attempts: i32) -> Restart {
    Restart {
        attempts: Some(attempts),
        interval: Some(GoDuration::from_secs(60)),
        delay: Some(GoDuration::from_secs(1)),
        mode: Some("fail".into()),
        render_templates: Some(false),
    }
}

fn task(name: &str) -> Task {
    Task { name: name.into(), driver: "d".into(), restart: Some(policy(1)), ..Task::default() }
}

fn job(kind: &str, tasks: Vec<Task>) -> Arc<Job> {
    let group = TaskGroup { name: "g".into(), tasks, ..TaskGroup::default() };
    Arc::new(Job { id: "j".into(), kind: kind.into(), task_groups: vec![group].into(), ..Job::default() })
}

fn record() -> AllocRecord {
    let alloc = Allocation {
        id: "11111111-2222-3333-4444-555555555555".parse().expect("uuid"),
        name: "j.g[0]".into(),
        task_group: "g".into(),
        ..Allocation::default()
    };
    AllocRecord { alloc: alloc.into(), ..AllocRecord::default() }
}

fn fresh(kind: &str, tasks: Vec<Task>) -> Machine {
    Machine::new(record(), job(kind, tasks), Vec::new(), GoDuration::from_secs(30))
}

/// Names of effects with their task.
fn short(effects: &[Effect]) -> Vec<String> {
    effects
        .iter()
        .map(|e| match e {
            Effect::Start { task, .. } => format!("start {task}"),
            Effect::Recover { task, .. } => format!("recover {task}"),
            Effect::Wait { task, .. } => format!("wait {task}"),
            Effect::Stop { task, .. } => format!("stop {task}"),
            Effect::Free { task, known, .. } => {
                format!("free {task}{}", if *known { "" } else { " anew" })
            }
            Effect::Settle { task, .. } => format!("settle {task}"),
            Effect::EndUnattended { task, .. } => format!("end unattended {task}"),
            Effect::TaskOver { task } => format!("over {task}"),
            Effect::Unhealthy { task, .. } => format!("unhealthy {task}"),
            Effect::Interrupt { .. } => "interrupt".into(),
            Effect::Wake { at, timer } => match timer {
                Timer::Restart { task } => format!("restart {task} at {}", at / S),
                Timer::ShutdownDelay { task, .. } => format!("delay {task} until {}", at / S),
                Timer::GroupDelay => format!("group delay until {}", at / S),
                Timer::Health => format!("health at {}", at / S),
                Timer::CutOff { .. } => format!("cut off until {}", at / S),
                Timer::Deadline => format!("deadline at {}", at / S),
            },
            Effect::Destroy => "destroy".into(),
        })
        .collect()
}

/// A machine with its runs under way, by task.
struct Play {
    machine: Machine,
    runs: BTreeMap<String, String>,
}

impl Play {
    fn begin(machine: Machine, at: i64) -> (Self, Vec<String>) {
        let mut play = Self { machine, runs: BTreeMap::new() };
        let effects = play.apply(Event::Begin, at);
        (play, effects)
    }

    fn apply(&mut self, event: Event, at: i64) -> Vec<String> {
        let effects = self.machine.apply(event, now(at));
        for effect in &effects {
            if let Effect::Start { task, run } | Effect::Recover { task, run, .. } | Effect::Free { task, run, .. } =
                effect
            {
                self.runs.insert(task.to_string(), run.clone());
            }
        }
        short(&effects)
    }

    fn run(&self, task: &str) -> (Arc<str>, String) {
        (Arc::from(task), self.runs[task].clone())
    }

    fn started(&mut self, task: &str, at: i64) -> Vec<String> {
        let (task, run) = self.run(task);
        self.apply(Event::Started { task, run, result: Ok(Launched { handle: b"h".to_vec(), network: None }) }, at)
    }

    fn failed_start(&mut self, task: &str, failure: StartFailure, at: i64) -> Vec<String> {
        let (task, run) = self.run(task);
        self.apply(Event::Started { task, run, result: Err(failure) }, at)
    }

    fn exited(&mut self, task: &str, code: i32, at: i64) -> Vec<String> {
        let (task, run) = self.run(task);
        self.apply(Event::Exited { task, run, exit: Exit { code, ..Exit::default() } }, at)
    }

    fn freed(&mut self, task: &str, at: i64) -> Vec<String> {
        let (task, run) = self.run(task);
        self.apply(Event::Freed { task, run, owed: false }, at)
    }

    fn last_event(&self, task: &str) -> String {
        self.machine.update().task_states[task].events.last().map(|e| e.kind.clone()).unwrap_or_default()
    }

    fn state(&self, task: &str) -> TaskRunState {
        self.machine.update().task_states[task].state
    }

    fn stop(&mut self, at: i64) -> Vec<String> {
        let mut alloc = self.machine.alloc().clone();
        alloc.desired_status = DesiredStatus::Stop;
        let job = self.machine.job().clone();
        self.apply(Event::Changed(alloc.share(), job), at)
    }
}

#[test]
fn a_run_is_recorded_before_the_driver_is_called_and_kept_until_it_is_freed() {
    let (mut p, effects) = Play::begin(fresh("batch", vec![task("t")]), S);
    assert_eq!(effects, ["start t"]);
    let run = |p: &Play| p.machine.tasks().next().expect("task").1.run.clone();
    assert_eq!(run(&p).map(|r| (r.handle, r.ended)), Some((None, false)));
    assert_eq!(p.started("t", 2 * S), ["wait t"]);
    assert!(run(&p).expect("run").handle.is_some());
    assert_eq!(p.exited("t", 0, 3 * S), ["free t"]);
    assert!(run(&p).expect("run").ended);
    assert_eq!(p.state("t"), TaskRunState::Dead);
    assert!(!p.machine.over(), "the driver still holds it");
    assert_eq!(p.freed("t", 4 * S), ["over t"]);
    assert_eq!(run(&p), None);
    assert!(p.machine.over());
    assert_eq!(p.machine.update().client_status, ClientStatus::Complete);
}

#[test]
fn a_failed_task_waits_frees_and_starts_under_a_new_id() {
    let (mut p, _) = Play::begin(fresh("batch", vec![task("t")]), S);
    p.started("t", S);
    let first = p.runs["t"].clone();
    p.exited("t", 1, 10 * S);
    let wake = p.freed("t", 10 * S);
    assert_eq!(wake, ["restart t at 11"]);
    assert_eq!(p.state("t"), TaskRunState::Pending);
    assert_eq!(p.apply(Event::Due(Timer::Restart { task: "t".into() }), 11 * S), ["start t"]);
    assert_ne!(p.runs["t"], first);
    p.started("t", 12 * S);
    p.exited("t", 1, 13 * S);
    assert_eq!(p.freed("t", 13 * S), ["over t"]);
    let update = p.machine.update();
    assert_eq!((update.client_status, update.task_states["t"].restarts), (ClientStatus::Failed, 1));
}

#[test]
fn failures_to_start_by_kind() {
    for (failure, retried) in [
        (StartFailure::Validation("v".into()), false),
        (StartFailure::Setup { why: "s".into(), recoverable: true }, true),
        (StartFailure::Setup { why: "s".into(), recoverable: false }, false),
        (StartFailure::Artifact { why: "a".into(), recoverable: true }, true),
        (StartFailure::Artifact { why: "a".into(), recoverable: false }, false),
        (StartFailure::Driver { why: "d".into(), recoverable: true }, true),
        (StartFailure::Driver { why: "d".into(), recoverable: false }, false),
    ] {
        let (mut p, _) = Play::begin(fresh("service", vec![task("t")]), S);
        assert_eq!(p.failed_start("t", failure.clone(), 2 * S), ["free t"], "{failure:?}");
        let after = p.freed("t", 2 * S);
        assert_eq!(after.iter().any(|e| e.starts_with("restart")), retried, "{failure:?}: {after:?}");
    }
}

#[test]
fn a_stop_in_each_phase() {
    // Starting: the stop follows the start, unless the preparation can be interrupted.
    let (mut p, _) = Play::begin(fresh("service", vec![task("t")]), S);
    assert_eq!(p.stop(2 * S), ["interrupt"]);
    assert_eq!(p.started("t", 3 * S), ["wait t", "stop t"]);
    let (mut p, _) = Play::begin(fresh("service", vec![task("t")]), S);
    p.stop(2 * S);
    assert_eq!(p.failed_start("t", StartFailure::Interrupted, 3 * S), ["free t"]);
    assert_eq!(p.freed("t", 3 * S), ["over t"]);
    assert_eq!(p.machine.update().client_status, ClientStatus::Complete, "a stopped task has not failed");
    // The agent ends: the next one finds the recorded start.
    let (mut p, _) = Play::begin(fresh("service", vec![task("t")]), S);
    assert_eq!(p.failed_start("t", StartFailure::Interrupted, 3 * S), Vec::<String>::new());
    assert!(
        !p.machine.unsettled()
            && p.machine.tasks().all(|(_, r)| r.run.is_some() && r.state.state == TaskRunState::Pending)
    );
    // Running.
    let (mut p, _) = Play::begin(fresh("service", vec![task("t")]), S);
    p.started("t", S);
    assert_eq!(p.stop(2 * S), ["stop t"]);
    assert_eq!(p.stop(2 * S), Vec::<String>::new(), "asked once");
    assert_eq!(p.exited("t", 143, 3 * S), ["free t"]);
    assert_eq!(p.machine.update().client_status, ClientStatus::Complete, "a stopped task has not failed");
    // Waiting for its restart.
    let (mut p, _) = Play::begin(fresh("service", vec![task("t")]), S);
    p.started("t", S);
    p.exited("t", 1, 2 * S);
    p.freed("t", 2 * S);
    assert_eq!(p.stop(3 * S), ["over t"]);
    assert_eq!(p.last_event("t"), "Killing", "it does not look like an end of its own");
    assert_eq!(p.apply(Event::Due(Timer::Restart { task: "t".into() }), 4 * S), Vec::<String>::new());
    // Being freed: no restart follows.
    let (mut p, _) = Play::begin(fresh("service", vec![task("t")]), S);
    p.started("t", S);
    p.exited("t", 1, 2 * S);
    p.stop(2 * S);
    assert_eq!(p.last_event("t"), "Killing");
    assert_eq!(p.freed("t", 3 * S), ["over t"]);
    // Not begun yet.
    let before = Lifecycle { hook: "prestart".into(), sidecar: false };
    let first = Task { lifecycle: Some(before), ..task("first") };
    let (mut p, _) = Play::begin(fresh("batch", vec![first, task("t")]), S);
    p.started("first", S);
    assert_eq!(p.stop(2 * S), ["stop first", "over t"]);
    assert_eq!(p.last_event("t"), "Killing");
}

#[test]
fn shutdown_delay_is_waited_for_unless_it_is_to_be_skipped() {
    let delayed = || Task { shutdown_delay: GoDuration::from_secs(3), ..task("t") };
    let (mut p, _) = Play::begin(fresh("service", vec![delayed()]), S);
    p.started("t", S);
    assert_eq!(p.stop(2 * S), ["delay t until 5"]);
    let (task, run) = p.run("t");
    assert_eq!(p.apply(Event::Due(Timer::ShutdownDelay { task, run }), 5 * S), ["stop t"]);

    let mut record = record();
    record.alloc.desired_transition.no_shutdown_delay = Some(true);
    let machine = Machine::new(record, job("service", vec![delayed()]), Vec::new(), GoDuration::from_secs(30));
    let (mut p, _) = Play::begin(machine, S);
    p.started("t", S);
    assert_eq!(p.stop(2 * S), ["stop t"]);
}

fn restored(record_of_task: impl Into<Kept<TaskRecord>>) -> Machine {
    Machine::new(
        record(),
        job("service", vec![task("t")]),
        vec![("t".into(), record_of_task.into())],
        GoDuration::from_secs(30),
    )
}

fn task_record(run: Option<Run>, state: TaskRunState) -> TaskRecord {
    let mut record = TaskRecord { run, ..TaskRecord::default() };
    record.state.state = state;
    record.state.events.push(crate::alloc::events::received(1));
    record
}

#[test]
fn restored_runs_by_how_far_they_had_come() {
    let run = |handle: Option<&[u8]>, ended| {
        Some(Run { id: "a/t/1".into(), handle: handle.map(<[u8]>::to_vec), ended, ..Run::default() })
    };
    for (record, expected) in [
        (task_record(run(Some(b"h"), false), TaskRunState::Running), "recover t"),
        (task_record(run(Some(b"h"), true), TaskRunState::Dead), "free t anew"),
        (task_record(run(None, false), TaskRunState::Pending), "free t anew"),
        (task_record(None, TaskRunState::Dead), "over t"),
        (TaskRecord { restart_at: 9 * S, ..task_record(None, TaskRunState::Pending) }, "restart t at 9"),
        // The clock has been set back by an hour: no policy waits longer than its interval.
        (TaskRecord { restart_at: 3_600 * S, ..task_record(None, TaskRunState::Pending) }, "restart t at 62"),
    ] {
        let (_, effects) = Play::begin(restored(record.clone()), 2 * S);
        assert_eq!(effects, [expected], "{record:?}");
    }
}

#[test]
fn a_start_that_was_never_confirmed_is_not_over_before_what_it_left_is_ended() {
    let run = Run { id: "a/t/1".into(), ..Run::default() };
    let (mut p, effects) = Play::begin(restored(task_record(Some(run), TaskRunState::Pending)), S);
    assert_eq!(effects, ["free t anew"]);
    assert_eq!(p.apply(Event::Removed, 2 * S), Vec::<String>::new());
    assert_ne!(p.machine.update().client_status, ClientStatus::Complete, "something of it may run");
    let effects = p.freed("t", 3 * S);
    assert!(effects.contains(&"over t".to_owned()) && effects.contains(&"destroy".to_owned()), "{effects:?}");
    assert_eq!(p.machine.update().client_status, ClientStatus::Complete);
}

#[test]
fn nothing_is_started_again_before_the_servers_have_been_heard() {
    let record = task_record(
        Some(Run { id: "a/t/1".into(), handle: Some(b"h".to_vec()), ..Run::default() }),
        TaskRunState::Running,
    );
    let (mut p, _) = Play::begin(restored(record), S);
    let (task, run) = p.run("t");
    assert_eq!(p.apply(Event::Recovered { task, run, result: Err("gone".into()) }, 2 * S), ["free t"]);
    assert_eq!(p.freed("t", 2 * S), ["restart t at 3"]);
    assert_eq!(p.apply(Event::Due(Timer::Restart { task: "t".into() }), 3 * S), Vec::<String>::new());
    assert_eq!(p.apply(Event::Contacted, 4 * S), ["start t"]);
}

#[test]
fn a_run_that_its_driver_could_not_free_is_owed_and_holds_nothing_up() {
    let (mut p, _) = Play::begin(fresh("service", vec![task("t")]), S);
    p.started("t", S);
    p.exited("t", 1, 2 * S);
    let (task, run) = p.run("t");
    let owed = Event::Freed { task: task.clone(), run: run.clone(), owed: true };
    assert_eq!(p.apply(owed, 2 * S), ["settle t", "restart t at 3"]);
    // The record keeps it over a restart of the agent, until the driver has answered.
    let kept = p.machine.tasks().next().expect("one").1.clone();
    assert_eq!(kept.owed.len(), 1);
    let (mut again, effects) = Play::begin(restored(kept), 3 * S);
    assert_eq!(effects, ["settle t", "restart t at 3"]);
    assert_eq!(again.apply(Event::Settled { task, run }, 4 * S), Vec::<String>::new());
    assert!(again.machine.tasks().next().expect("one").1.owed.is_empty());
}

#[test]
fn a_task_that_nobody_has_recovered_can_be_stopped() {
    let record = task_record(
        Some(Run { id: "a/t/1".into(), handle: Some(b"h".to_vec()), ..Run::default() }),
        TaskRunState::Running,
    );
    let (mut p, _) = Play::begin(restored(record), S);
    assert_eq!(p.apply(Event::Removed, 2 * S), ["end unattended t"]);
    let mut second = Play { machine: p.machine.clone(), runs: p.runs.clone() };
    // The node found and killed it without its driver …
    assert_eq!(p.exited("t", -1, 3 * S), ["free t"]);
    assert_eq!(p.state("t"), TaskRunState::Dead);
    // … or its driver has come back after all.
    let (task, run) = second.run("t");
    assert_eq!(second.apply(Event::Recovered { task, run, result: Ok(()) }, 3 * S), ["wait t", "stop t"]);
}

#[test]
fn what_comes_late_changes_nothing() {
    let (mut p, _) = Play::begin(fresh("service", vec![task("t")]), S);
    p.started("t", S);
    let old = Event::Exited { task: "t".into(), run: "a/t/other".into(), exit: Exit::default() };
    let before = p.machine.update();
    assert_eq!(p.apply(old, 2 * S), Vec::<String>::new());
    assert_eq!(
        p.apply(Event::Freed { task: "t".into(), run: p.runs["t"].clone(), owed: false }, 2 * S),
        Vec::<String>::new()
    );
    assert_eq!(p.machine.update(), before);
}

#[test]
fn a_removed_allocation_goes_when_its_runs_are_gone() {
    let (mut p, _) = Play::begin(fresh("service", vec![task("t")]), S);
    p.started("t", S);
    assert_eq!(p.apply(Event::Removed, 2 * S), ["stop t"]);
    assert_eq!(p.exited("t", 0, 3 * S), ["free t"]);
    assert_eq!(p.freed("t", 4 * S), ["over t", "destroy"]);
    assert_eq!(p.apply(Event::Contacted, 5 * S), Vec::<String>::new(), "once");
}

#[test]
fn a_prestart_task_of_a_service_runs_once() {
    let before = Task { lifecycle: Some(Lifecycle { hook: "prestart".into(), sidecar: false }), ..task("before") };
    let (mut p, effects) = Play::begin(fresh("service", vec![task("main"), before]), S);
    assert_eq!(effects, ["start before"]);
    p.started("before", S);
    assert_eq!(p.exited("before", 0, 2 * S), ["free before", "start main"]);
    assert_eq!(p.state("before"), TaskRunState::Dead);
}

/// Whatever has spent the attempts, under whichever agent.
#[test]
fn which_start_is_the_last_that_its_policy_allows() {
    for (attempts, in_window, last) in [(0, 0, true), (1, 0, false), (1, 1, true), (3, 2, false), (3, 3, true)] {
        let mut job = Job::clone(&job("batch", vec![Task { restart: None, ..task("t") }]));
        job.task_groups[0].restart = Some(policy(attempts));
        let known = TaskRecord { window_start: S, in_window, ..task_record(None, TaskRunState::Pending) };
        let tasks = vec![("t".into(), known.into())];
        let machine = Machine::new(record(), Arc::new(job), tasks, GoDuration::from_secs(30));
        assert_eq!(machine.is_last_start("t", 30 * S), last, "{in_window} of {attempts} attempts");
        assert_eq!(machine.is_last_start("t", 62 * S), attempts == 0, "in the next interval");
    }
}

#[test]
fn what_was_written_exists_once() {
    let (mut p, _) = Play::begin(fresh("service", vec![task("t")]), S);
    let kept = |p: &Play| {
        (
            p.machine.record().clone(),
            p.machine.tasks().map(|(n, r)| (n.clone(), r.clone())).collect::<model::Map<_, _>>(),
        )
    };
    let (record, tasks) = kept(&p);
    p.machine.apply(
        Event::DriverSaid { task: "t".into(), message: "x".into(), annotations: BTreeMap::new() },
        Now { time: S, seed: 1 },
    );
    let (_, changed) = kept(&p);
    assert!(!changed["t"].is(&tasks["t"]) && changed["t"] != tasks["t"]);
    p.machine.saved(&record, &tasks);
    let (again, back) = kept(&p);
    assert!(again.is(&record) && back["t"].is(&tasks["t"]), "the loop's copy is the machine's");
}

#[test]
fn health_is_decided_once_and_reported() {
    let update = Update {
        min_healthy_time: Some(GoDuration::from_secs(5)),
        healthy_deadline: Some(GoDuration::from_secs(20)),
        ..Update::default()
    };
    let with_update = |record: AllocRecord| {
        let mut job = (*job("service", vec![task("t")])).clone();
        job.task_groups[0].update = Some(update.clone());
        Machine::new(record, Arc::new(job), Vec::new(), GoDuration::from_secs(30))
    };
    let in_deployment = || {
        let mut record = record();
        record.alloc.deployment_id = "99999999-2222-3333-4444-555555555555".parse().expect("uuid");
        record
    };
    let healthy = |p: &Play| p.machine.update().deployment_status.and_then(|d| d.healthy);
    let (mut p, effects) = Play::begin(with_update(in_deployment()), 100 * S);
    assert_eq!(effects, ["start t", "health at 120"]);
    assert_eq!(p.started("t", 101 * S), ["wait t", "health at 106"]);
    assert_eq!(healthy(&p), None);
    p.apply(Event::Due(Timer::Health), 106 * S);
    assert_eq!(healthy(&p), Some(true));
    // Never up: the deadline decides.
    let (mut p, _) = Play::begin(with_update(in_deployment()), 100 * S);
    p.apply(Event::Due(Timer::Health), 120 * S);
    assert_eq!(healthy(&p), Some(false));
    assert!(p.machine.update().task_states["t"].events.iter().any(|e| e.kind == "Alloc Unhealthy"));
}

fn remote() -> Machine {
    let mut record = record();
    record.alloc.remote.insert("t".into(), IncarnationId::NIL);
    Machine::new(record, job("service", vec![task("t")]), Vec::new(), GoDuration::from_secs(30))
}

fn view(observed: Observed, verdict: RemoteVerdict) -> Event {
    Event::Remote { task: "t".into(), view: Arc::new(RemoteView { observed, verdict, ..RemoteView::default() }) }
}

#[test]
fn what_a_remote_instance_waits_for_is_told_once() {
    let (mut p, _) = Play::begin(remote(), S);
    let mut told = |waiting: &str, at| {
        let view = RemoteView { observed: Observed::Creating, waiting: waiting.to_owned(), ..RemoteView::default() };
        p.apply(Event::Remote { task: "t".into(), view: Arc::new(view) }, at * S);
        let events = &p.machine.update().task_states["t"].events;
        events.iter().filter(|e| e.kind == "Driver").map(|e| e.display_message.to_string()).collect::<Vec<_>>()
    };
    let (pull, pause) = ("The instance is being created: no such image", "The instance is being created: a pause");
    assert!(told("", 2).is_empty());
    assert_eq!(told("no such image", 3), [pull]);
    assert_eq!(told("a pause", 4), [pull, pause]);
    assert_eq!(told("no such image", 5), [pull, pause]);
}

#[test]
fn a_remote_task_follows_sightings_and_verdicts() {
    let exit = RemoteExit { code: 3, at: 5 * S, ..RemoteExit::default() };
    let ended = |verdict| {
        let result = Some(exit.clone());
        let view = RemoteView { observed: Observed::Gone, verdict, result, ..RemoteView::default() };
        Event::Remote { task: "t".into(), view: Arc::new(view) }
    };
    for (verdict, state, failed, last) in [
        (RemoteVerdict::Complete, TaskRunState::Dead, false, "Terminated"),
        (RemoteVerdict::Failed { reason: "r".into() }, TaskRunState::Dead, true, "Not Restarting"),
        (RemoteVerdict::Stopped, TaskRunState::Dead, false, "Killed"),
        (RemoteVerdict::Restarting { at: 9 * S, reason: "r".into() }, TaskRunState::Pending, false, "Restarting"),
    ] {
        let (mut p, effects) = Play::begin(remote(), S);
        assert_eq!(effects, Vec::<String>::new(), "orders start remote tasks, not allocations");
        p.apply(view(Observed::Creating, RemoteVerdict::Active), 2 * S);
        assert_eq!(p.state("t"), TaskRunState::Pending);
        p.apply(view(Observed::Running, RemoteVerdict::Active), 3 * S);
        assert_eq!(p.state("t"), TaskRunState::Running);
        let unknown = Observed::Unknown { since: 4 * S, why: "throttled".into() };
        p.apply(view(unknown, RemoteVerdict::Active), 4 * S);
        assert_eq!(p.state("t"), TaskRunState::Running, "unknown is not an end");
        assert_eq!(p.apply(ended(verdict.clone()), 5 * S), Vec::<String>::new());
        let update = p.machine.update();
        let task = &update.task_states["t"];
        assert_eq!((task.state, task.failed), (state, failed), "{verdict:?}");
        assert_eq!(task.events.last().map(|e| e.kind.as_str()), Some(last), "{verdict:?}");
    }
}

#[test]
fn a_remote_task_that_ends_before_anybody_looks_has_run() {
    let exited = Observed::Exited { code: 0, signal: 0, oom_killed: false, reason: "".into(), at: 5 * S };
    let result = Some(RemoteExit { at: 5 * S, ..RemoteExit::default() });
    let (mut p, _) = Play::begin(remote(), S);
    let seen = |verdict, result| {
        let view = RemoteView { observed: exited.clone(), started_at: 4 * S, verdict, result, ..RemoteView::default() };
        Event::Remote { task: "t".into(), view: Arc::new(view) }
    };
    p.apply(seen(RemoteVerdict::Active, None), 6 * S);
    p.apply(seen(RemoteVerdict::Complete, result), 7 * S);
    let task = p.machine.update().task_states["t"].clone();
    assert_eq!(
        (task.state, task.started_at.ns(), task.finished_at.ns()),
        (TaskRunState::Dead, Some(4 * S), Some(5 * S))
    );
    let kinds: Vec<(&str, i64)> = task.events.iter().map(|e| (e.kind.as_str(), e.time)).collect();
    assert_eq!(kinds[kinds.len() - 2..], [("Started", 4 * S), ("Terminated", 5 * S)], "once each: {kinds:?}");
    assert_eq!(kinds.iter().filter(|(kind, _)| *kind == "Started").count(), 1);
}

#[test]
fn no_stop_restart_or_removal_touches_a_remote_instance() {
    let (mut p, _) = Play::begin(remote(), S);
    p.apply(view(Observed::Running, RemoteVerdict::Active), 2 * S);
    assert_eq!(p.stop(3 * S), Vec::<String>::new());
    assert_eq!(p.apply(Event::StopLocal, 3 * S), Vec::<String>::new());
    let asked =
        Event::RestartAsked { tasks: vec!["t".into()], also_dead: true, why: crate::alloc::events::ALL_BY_USER };
    assert_eq!(p.apply(asked, 3 * S), Vec::<String>::new());
    assert_eq!(p.state("t"), TaskRunState::Running, "it runs until the servers say otherwise");
    p.apply(Event::RemoteReleased { task: "t".into() }, 4 * S);
    assert_eq!(p.state("t"), TaskRunState::Dead, "for this allocation it is over");
    assert_eq!(p.machine.update().client_status, ClientStatus::Complete);
    assert_eq!(p.apply(Event::Removed, 5 * S), ["destroy"]);
}

#[test]
fn a_job_may_ask_to_be_stopped_when_its_node_is_cut_off() {
    let mut job = (*job("service", vec![task("t")])).clone();
    job.task_groups[0].disconnect = Some(model::Disconnect {
        stop_on_client_after: Some(GoDuration::from_secs(10)),
        ..model::Disconnect::default()
    });
    let machine = Machine::new(record(), Arc::new(job), Vec::new(), GoDuration::from_secs(30));
    let (mut p, _) = Play::begin(machine, S);
    p.started("t", S);
    assert_eq!(p.apply(Event::CutOff(true), 2 * S), ["cut off until 12"]);
    assert_eq!(p.apply(Event::CutOff(false), 5 * S), Vec::<String>::new());
    assert_eq!(
        p.apply(Event::Due(Timer::CutOff { since: 2 * S }), 12 * S),
        Vec::<String>::new(),
        "it was heard in between"
    );
    assert_eq!(p.apply(Event::CutOff(true), 20 * S), ["cut off until 30"]);
    assert_eq!(p.apply(Event::Due(Timer::CutOff { since: 20 * S }), 30 * S), ["stop t"]);
}

#[test]
fn a_restart_of_the_agent_repeats_no_event_of_a_remote_task() {
    let result = Some(RemoteExit { code: 1, at: 2 * S, ..RemoteExit::default() });
    let seen = |restarts| {
        let view =
            RemoteView { observed: Observed::Running, restarts, result: result.clone(), ..RemoteView::default() };
        Event::Remote { task: "t".into(), view: Arc::new(view) }
    };
    let (mut p, _) = Play::begin(remote(), S);
    p.apply(seen(1), 3 * S);
    let before = p.machine.update();
    let tasks: Vec<_> = p.machine.tasks().map(|(n, r)| (n.clone(), r.clone())).collect();
    let again = Machine::new(p.machine.record().clone(), p.machine.job().clone(), tasks, GoDuration::from_secs(30));
    let (mut p, _) = Play::begin(again, 9 * S);
    p.apply(seen(1), 10 * S);
    assert_eq!(p.machine.update(), before);
    p.apply(seen(2), 11 * S);
    assert_eq!(p.machine.update().task_states["t"].events.last().map(|e| e.kind.clone()), Some("Started".into()));
}

#[test]
fn without_records_the_servers_copy_says_what_has_ended_and_nothing_runs() {
    for (state, expected) in [
        (TaskRunState::Pending, vec!["start t"]),
        (TaskRunState::Running, vec!["start t"]),
        (TaskRunState::Dead, vec!["over t"]),
    ] {
        let mut record = record();
        record.alloc.task_states.insert("t".into(), model::TaskState { state, ..model::TaskState::default() });
        let machine = Machine::new(record, job("batch", vec![task("t")]), Vec::new(), GoDuration::from_secs(30));
        let (p, effects) = Play::begin(machine, S);
        assert_eq!(effects, expected, "{state:?}");
        assert_eq!(p.machine.over(), state == TaskRunState::Dead);
    }
}

#[test]
fn changed_templates_restart_their_own_run_only() {
    let (mut p, _) = Play::begin(fresh("service", vec![task("t")]), S);
    p.started("t", S);
    let changed = |run: &str| Event::DataChanged { task: "t".into(), run: run.into(), why: "re-rendered".into() };
    assert_eq!(p.apply(changed("another"), 2 * S), Vec::<String>::new());
    let run = p.runs["t"].clone();
    assert_eq!(p.apply(changed(&run), 2 * S), ["stop t"]);
    assert_eq!(p.apply(changed(&run), 2 * S), Vec::<String>::new(), "it is on its way");
    p.exited("t", 143, 3 * S);
    assert_eq!(p.freed("t", 3 * S), ["restart t at 3"], "at once, and without counting against its policy");
    assert_eq!(p.state("t"), TaskRunState::Pending);
    let (mut p, _) = Play::begin(fresh("service", vec![task("t")]), S);
    p.started("t", S);
    let (task, run) = p.run("t");
    assert_eq!(p.apply(Event::TemplateFailed { task, run, why: "the script failed".into() }, 2 * S), ["stop t"]);
    p.exited("t", 143, 3 * S);
    assert_eq!(p.freed("t", 3 * S), ["over t"]);
    let update = p.machine.update();
    assert_eq!((update.client_status, update.task_states["t"].failed), (ClientStatus::Failed, true));
}

//! The end of an allocation whose node has been cut off for `stop_on_client_after`: marked in each phase, and no other
//! end is.

use model::alloc::CUT_OFF;

use super::*;

/// Created at second 10, with 60 seconds; stopped when its node is cut off for 10 seconds.
fn machine(group: TaskGroup, records: Vec<(Arc<str>, Kept<TaskRecord>)>) -> Machine {
    let disconnect =
        model::Disconnect { stop_on_client_after: Some(GoDuration::from_secs(10)), ..model::Disconnect::default() };
    let group = TaskGroup {
        name: "g".into(),
        disconnect: Some(disconnect),
        max_run_duration: Some(GoDuration::from_secs(60)),
        ..group
    };
    let job = Job { id: "j".into(), kind: "batch".into(), task_groups: vec![group].into(), ..Job::default() };
    let mut record = record();
    record.alloc.create_time = 10 * S;
    Machine::new(record, Arc::new(job), records, GoDuration::from_secs(30))
}

fn of(tasks: Vec<Task>) -> Play {
    Play::begin(machine(TaskGroup { tasks, ..TaskGroup::default() }, Vec::new()), 12 * S).0
}

/// Of a former agent, with such a run.
fn found(handle: Option<&[u8]>, state: TaskRunState) -> Play {
    let run = Run { id: "a/t/1".into(), handle: handle.map(<[u8]>::to_vec), ..Run::default() };
    let records = vec![("t".into(), Kept::from(task_record(Some(run), state)))];
    Play::begin(machine(TaskGroup { tasks: vec![task("t")], ..TaskGroup::default() }, records), 12 * S).0
}

fn delayed() -> Task {
    Task { shutdown_delay: GoDuration::from_secs(3), ..task("t") }
}

fn running(task: Task) -> Play {
    let mut p = of(vec![task]);
    p.started("t", 12 * S);
    p
}

fn cut_off(p: &mut Play) {
    p.apply(Event::CutOff(true), 20 * S);
    p.apply(Event::Due(Timer::CutOff { since: 20 * S }), 30 * S);
}

fn recovers(p: &mut Play, at: i64) {
    let (task, run) = p.run("t");
    p.apply(Event::Recovered { task, run, result: Ok(()) }, at);
}

impl Play {
    /// The newest event that tells how a task has ended, and whether that has the mark.
    fn end_of(&self, task: &str) -> (String, bool) {
        let update = self.machine.update();
        let ends = |e: &&model::TaskEvent| matches!(e.kind.as_str(), "Terminated" | "Killing" | "Killed");
        let newest = update.task_states[task].events.iter().rev().find(ends).expect("it has ended");
        (newest.kind.clone(), newest.details.contains_key(CUT_OFF))
    }
}

/// What stops the task, and whether its end has the mark.
type Reason = (&'static str, fn(&mut Play), bool);

/// How far the task has come when it is stopped, and how it ends then.
type Phase = (&'static str, fn() -> Play, fn(&mut Play));

fn phases() -> [Phase; 13] {
    let nothing: fn(&mut Play) = |_| {};
    [
        ("running", || running(task("t")), |p| drop(p.exited("t", 143, 75 * S))),
        (
            "running, with a delay of its own",
            || running(delayed()),
            |p| {
                let (task, run) = p.run("t");
                p.apply(Event::Due(Timer::ShutdownDelay { task, run }), 73 * S);
                p.exited("t", 143, 75 * S);
            },
        ),
        (
            "running, to be restarted",
            || {
                let mut p = running(task("t"));
                p.apply(Event::RestartAsked { tasks: vec!["t".into()], also_dead: false, why: "asked" }, 13 * S);
                p
            },
            |p| drop(p.exited("t", 143, 75 * S)),
        ),
        (
            "to be restarted after a delay of its own",
            || {
                let mut p = running(delayed());
                p.apply(Event::RestartAsked { tasks: vec!["t".into()], also_dead: false, why: "asked" }, 13 * S);
                p
            },
            |p| drop(p.exited("t", 143, 75 * S)),
        ),
        (
            "starting, interrupted",
            || of(vec![task("t")]),
            |p| drop(p.failed_start("t", StartFailure::Interrupted, 75 * S)),
        ),
        (
            "starting, and fails",
            || of(vec![task("t")]),
            |p| drop(p.failed_start("t", StartFailure::Driver { why: "w".into(), recoverable: true }, 75 * S)),
        ),
        (
            "starting, too late to be interrupted",
            || of(vec![task("t")]),
            |p| {
                p.started("t", 74 * S);
                p.exited("t", 143, 75 * S);
            },
        ),
        (
            "recovering, ended without its driver",
            || found(Some(b"h"), TaskRunState::Running),
            |p| drop(p.exited("t", 143, 75 * S)),
        ),
        (
            "recovering, and found",
            || found(Some(b"h"), TaskRunState::Running),
            |p| {
                recovers(p, 74 * S);
                p.exited("t", 143, 75 * S);
            },
        ),
        ("a start without confirmation", || found(None, TaskRunState::Pending), |p| drop(p.freed("t", 75 * S))),
        (
            "being freed after a failure",
            || {
                let mut p = running(task("t"));
                p.exited("t", 1, 13 * S);
                p
            },
            |p| drop(p.freed("t", 75 * S)),
        ),
        (
            "waiting for its restart",
            || {
                let long = Restart { delay: Some(GoDuration::from_secs(300)), ..policy(1) };
                let mut p = running(Task { restart: Some(long), ..task("t") });
                p.exited("t", 1, 13 * S);
                p.freed("t", 13 * S);
                p
            },
            nothing,
        ),
        (
            "not begun yet",
            || {
                let before = Lifecycle { hook: "prestart".into(), sidecar: false };
                let mut p = of(vec![Task { lifecycle: Some(before), ..task("first") }, task("t")]);
                p.started("first", 12 * S);
                p
            },
            nothing,
        ),
    ]
}

#[test]
fn an_end_is_marked_in_each_phase_when_its_node_is_cut_off_and_never_otherwise() {
    let reasons: [Reason; 5] = [
        ("cut off", cut_off, true),
        ("its time", |p| drop(p.apply(Event::Due(Timer::Deadline), 70 * S)), false),
        (
            "its time, and cut off",
            |p| {
                p.apply(Event::CutOff(true), 65 * S);
                p.apply(Event::Due(Timer::Deadline), 70 * S);
                p.apply(Event::Due(Timer::CutOff { since: 65 * S }), 75 * S);
            },
            false,
        ),
        ("the servers", |p| drop(p.stop(30 * S)), false),
        ("its agent", |p| drop(p.apply(Event::StopLocal, 30 * S)), false),
    ];
    for (phase, begin, end) in phases() {
        for (reason, stop, marked) in reasons {
            let mut p = begin();
            stop(&mut p);
            end(&mut p);
            assert_eq!(p.state("t"), TaskRunState::Dead, "{phase}; {reason}");
            assert_eq!(p.end_of("t").1, marked, "{phase}; {reason}: {:?}", p.machine.update().task_states["t"].events);
        }
    }
}

/// The announced stop of a former agent is not the end.
#[test]
fn what_ends_by_itself_under_another_agent_has_no_mark() {
    let mut p = running(delayed());
    cut_off(&mut p);
    assert_eq!(p.end_of("t"), ("Killing".to_owned(), true));
    let tasks: Vec<_> = p.machine.tasks().map(|(n, r)| (n.clone(), r.clone())).collect();
    let again = Machine::new(p.machine.record().clone(), p.machine.job().clone(), tasks, GoDuration::from_secs(30));
    let (mut p, effects) = Play::begin(again, 31 * S);
    assert_eq!(effects, ["recover t", "deadline at 70"]);
    p.apply(Event::Contacted, 32 * S);
    recovers(&mut p, 32 * S);
    p.exited("t", 0, 40 * S);
    assert_eq!((p.state("t"), p.end_of("t")), (TaskRunState::Dead, ("Terminated".to_owned(), false)));
}

/// The delay of the group is still running when its node has been cut off for long enough.
#[test]
fn what_its_time_has_ended_is_not_ended_by_the_node_afterwards() {
    let delay = Some(GoDuration::from_secs(30));
    let group = TaskGroup { tasks: vec![task("t")], shutdown_delay: delay, ..TaskGroup::default() };
    let (mut p, _) = Play::begin(machine(group, Vec::new()), 12 * S);
    p.started("t", 12 * S);
    p.apply(Event::CutOff(true), 65 * S);
    assert_eq!(p.apply(Event::Due(Timer::Deadline), 70 * S), ["group delay until 100"]);
    assert_eq!(p.apply(Event::Due(Timer::CutOff { since: 65 * S }), 75 * S), Vec::<String>::new());
    assert_eq!(p.apply(Event::Due(Timer::GroupDelay), 100 * S), ["stop t"]);
    p.exited("t", 143, 101 * S);
    assert_eq!(p.end_of("t"), ("Killed".to_owned(), false));
}

/// Its work is done, whatever ends the others; of a leader that is stopped it is not.
#[test]
fn followers_of_a_leader_that_has_ended_have_no_mark() {
    for (leader_ends_first, marked) in [(true, false), (false, true)] {
        let mut p = of(vec![Task { leader: true, ..task("lead") }, task("t")]);
        p.started("lead", 12 * S);
        p.started("t", 12 * S);
        if leader_ends_first {
            p.exited("lead", 0, 13 * S);
        }
        cut_off(&mut p);
        if !leader_ends_first {
            p.exited("lead", 143, 31 * S);
        }
        p.exited("t", 143, 32 * S);
        assert_eq!((p.end_of("lead").1, p.end_of("t").1), (marked, false));
    }
}

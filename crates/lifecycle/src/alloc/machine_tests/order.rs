//! Ends, stops and restarts of a group's tasks: their order, and the events for people.

use super::*;

fn hooked(name: &str, hook: &str, sidecar: bool) -> Task {
    Task { lifecycle: Some(Lifecycle { hook: hook.into(), sidecar }), ..task(name) }
}

fn leader(name: &str) -> Task {
    Task { leader: true, ..task(name) }
}

impl Play {
    /// Kinds of a task's events.
    fn told(&self, task: &str) -> Vec<String> {
        self.machine.update().task_states[task].events.iter().map(|e| e.kind.clone()).collect()
    }
}

#[test]
fn a_service_without_restarts_fails_whatever_its_exit_code() {
    for (kind, code, status) in [
        ("service", 0, ClientStatus::Failed),
        ("system", 0, ClientStatus::Failed),
        ("service", 1, ClientStatus::Failed),
        ("batch", 0, ClientStatus::Complete),
        ("sysbatch", 0, ClientStatus::Complete),
        ("batch", 1, ClientStatus::Failed),
    ] {
        let (mut p, _) = Play::begin(fresh(kind, vec![Task { restart: Some(policy(0)), ..task("t") }]), S);
        p.started("t", S);
        p.exited("t", code, 2 * S);
        assert_eq!(p.machine.update().client_status, status, "{kind} job, exit code {code}");
        let last = if status == ClientStatus::Failed { "Not Restarting" } else { "Terminated" };
        assert_eq!(p.told("t").last().map(String::as_str), Some(last), "{kind} job, exit code {code}");
    }
}

#[test]
fn sidecars_are_stopped_when_what_they_accompany_has_ended() {
    let before = Task { kill_timeout: Some(GoDuration::from_secs(20)), ..hooked("proxy", "prestart", true) };
    let tasks = vec![task("web"), before, hooked("tail", "poststart", true), hooked("clean", "poststop", false)];
    let (mut p, effects) = Play::begin(fresh("service", tasks), 0);
    assert_eq!(effects, ["start proxy"]);
    assert_eq!(p.started("proxy", S), ["wait proxy", "start web"]);
    assert_eq!(p.started("web", S), ["wait web", "start tail"]);
    p.started("tail", S);
    assert_eq!(p.stop(2 * S), ["stop web"]);
    assert_eq!(p.apply(Event::Contacted, 3 * S), Vec::<String>::new(), "they wait");
    let ordered = {
        let (task, run) = p.run("web");
        p.machine.apply(Event::Exited { task, run, exit: Exit::default() }, now(6 * S))
    };
    assert_eq!(short(&ordered), ["free web", "stop proxy", "stop tail"]);
    let timeouts = ordered.iter().filter_map(|e| match e {
        Effect::Stop { timeout, .. } => Some(*timeout),
        _ => None,
    });
    assert_eq!(timeouts.collect::<Vec<_>>(), [GoDuration::from_secs(20), GoDuration::from_secs(5)], "each has its own");
    p.freed("web", 6 * S);
    p.exited("proxy", 0, 7 * S);
    assert_eq!(p.exited("tail", 0, 7 * S), ["free tail", "start clean"]);
    assert_eq!(p.told("web"), ["Received", "Task Setup", "Started", "Killing", "Terminated", "Killed"]);
    assert_eq!(
        p.told("tail"),
        ["Received", "Task Setup", "Started", "Main Tasks Dead", "Killing", "Terminated", "Killed"]
    );
}

#[test]
fn a_failed_task_and_a_dead_leader_leave_the_sidecars_for_last() {
    for (first, code, event) in [(task("first"), 1, "Sibling Task Failed"), (leader("first"), 0, "Leader Task Dead")] {
        let first = Task { restart: Some(policy(0)), ..first };
        let (mut p, _) = Play::begin(fresh("batch", vec![first, task("other"), hooked("side", "poststart", true)]), 0);
        for name in ["first", "other", "side"] {
            p.started(name, S);
        }
        assert_eq!(p.exited("first", code, 2 * S), ["free first", "stop other"], "{event}");
        assert_eq!(p.exited("other", 0, 3 * S), ["free other", "stop side"], "{event}");
        assert_eq!(p.told("side"), ["Received", "Task Setup", "Started", event, "Killing"]);
    }
}

#[test]
fn a_stop_is_told_to_followers_by_their_leader() {
    let (mut p, _) = Play::begin(fresh("service", vec![leader("lead"), task("web")]), 0);
    p.started("lead", S);
    p.started("web", S);
    assert_eq!(p.stop(2 * S), ["stop lead"]);
    assert_eq!(p.exited("lead", 0, 3 * S), ["free lead", "stop web"]);
    assert_eq!(p.told("web"), ["Received", "Task Setup", "Started", "Leader Task Dead", "Killing"]);
}

#[test]
fn nothing_waits_for_a_remote_task_that_is_let_go() {
    let group = || {
        let mut record = record();
        record.alloc.remote.insert("lead".into(), IncarnationId::NIL);
        let tasks = vec![leader("lead"), hooked("side", "poststart", true)];
        let (mut p, _) =
            Play::begin(Machine::new(record, job("service", tasks), Vec::new(), GoDuration::from_secs(30)), 0);
        let view = RemoteView { observed: Observed::Running, ..RemoteView::default() };
        p.apply(Event::Remote { task: "lead".into(), view: Arc::new(view) }, S);
        p.started("side", S);
        p
    };
    assert_eq!(
        group().stop(2 * S),
        Vec::<String>::new(),
        "the servers end it, and the sidecar accompanies it until then"
    );
    assert_eq!(group().apply(Event::StopLocal, 2 * S), ["stop side"]);
    assert_eq!(group().apply(Event::Removed, 2 * S), ["stop side"]);
}

#[test]
fn the_delay_of_a_group_is_waited_for_once() {
    let group = |skip: bool| {
        let own = Task { shutdown_delay: GoDuration::from_secs(2), ..leader("lead") };
        let mut job = Job::clone(&job("service", vec![own, task("web")]));
        job.task_groups[0].shutdown_delay = Some(GoDuration::from_secs(3));
        let mut record = record();
        record.alloc.desired_transition.no_shutdown_delay = Some(skip);
        let (mut p, _) = Play::begin(Machine::new(record, Arc::new(job), Vec::new(), GoDuration::from_secs(30)), 0);
        p.started("lead", S);
        p.started("web", S);
        p
    };
    let mut p = group(false);
    assert_eq!(p.stop(10 * S), ["group delay until 13"]);
    assert_eq!(p.told("lead").last().map(String::as_str), Some("Started"), "nothing is stopped yet");
    assert_eq!(p.apply(Event::Due(Timer::GroupDelay), 13 * S), ["delay lead until 15"]);
    assert_eq!(p.told("lead")[3..], ["Killing", "Waiting for shutdown delay"]);
    let (task, run) = p.run("lead");
    assert_eq!(p.apply(Event::Due(Timer::ShutdownDelay { task, run }), 15 * S), ["stop lead"]);
    assert_eq!(p.exited("lead", 0, 16 * S), ["free lead", "stop web"], "not again for the others");
    let mut p = group(true);
    assert_eq!(p.stop(10 * S), ["stop lead"]);
    assert_eq!(p.told("lead")[3..], ["Killing", "Skipping shutdown delay"]);
}

#[test]
fn restarts_tell_why_and_of_no_kill() {
    let (mut p, _) = Play::begin(fresh("service", vec![task("t"), hooked("before", "prestart", false)]), 0);
    p.started("before", S);
    p.exited("before", 0, S);
    p.freed("before", S);
    p.started("t", S);
    let asked = Event::RestartAsked {
        tasks: vec!["t".into(), "before".into()],
        also_dead: true,
        why: crate::alloc::events::ALL_BY_USER,
    };
    assert_eq!(p.apply(asked, 2 * S), ["stop t", "start before"]);
    p.exited("t", 0, 3 * S);
    assert_eq!(p.told("t")[2..], ["Started", "Restart Signaled", "Terminated", "Restarting"]);
    assert_eq!(p.told("before")[3..], ["Terminated", "Restart Signaled", "Restarting"]);
    let update = p.machine.update();
    let why = |task: &str| {
        update.task_states[task].events.iter().find(|e| e.kind == "Restart Signaled").map(|e| e.display_message.clone())
    };
    assert_eq!(why("t").as_deref(), Some("User requested all tasks to restart"));
    // A stop in between gets an event.
    let (mut p, _) = Play::begin(fresh("service", vec![task("t")]), 0);
    p.started("t", S);
    p.apply(
        Event::RestartAsked { tasks: vec!["t".into()], also_dead: false, why: crate::alloc::events::BY_USER },
        2 * S,
    );
    assert_eq!(p.stop(3 * S), Vec::<String>::new(), "it is on its way");
    p.exited("t", 0, 4 * S);
    assert_eq!(p.told("t")[3..], ["Restart Signaled", "Killing", "Terminated", "Killed"]);
}

#[test]
fn a_restart_waits_for_the_driver_that_finds_the_task_again() {
    let record = task_record(
        Some(Run { id: "a/t/1".into(), handle: Some(b"h".to_vec()), ..Run::default() }),
        TaskRunState::Running,
    );
    let (mut p, _) = Play::begin(restored(record), S);
    let ask = || Event::RestartAsked { tasks: vec!["t".into()], also_dead: false, why: "asked" };
    assert_eq!(p.apply(ask(), 2 * S), Vec::<String>::new());
    let mut stopped = Play { machine: p.machine.clone(), runs: p.runs.clone() };
    let (task, run) = p.run("t");
    let found = || Event::Recovered { task: task.clone(), run: run.clone(), result: Ok(()) };
    assert_eq!(p.apply(found(), 3 * S), ["wait t", "stop t"]);
    p.exited("t", 0, 4 * S);
    assert_eq!(p.told("t")[1..], ["Restart Signaled", "Terminated", "Restarting"]);
    // What is stopped meanwhile does not start again, and is not left to a driver that may never come.
    assert_eq!(stopped.apply(Event::Removed, 3 * S), ["end unattended t"]);
    assert_eq!(stopped.apply(found(), 4 * S), ["wait t", "stop t"]);
    stopped.exited("t", 0, 5 * S);
    assert_eq!(stopped.state("t"), TaskRunState::Dead);
}

#[test]
fn whoever_comes_back_says_so_once() {
    let (mut p, _) = Play::begin(fresh("service", vec![task("t")]), 0);
    p.started("t", S);
    let mut alloc = p.machine.alloc().clone();
    alloc.client_status = ClientStatus::Unknown;
    alloc.alloc_modify_index += 1;
    let (alloc, job) = (alloc.share(), p.machine.job().clone());
    p.apply(Event::Changed(alloc.clone(), job.clone()), 2 * S);
    p.apply(Event::Changed(alloc, job), 3 * S);
    assert_eq!(p.told("t"), ["Received", "Task Setup", "Started", "Reconnected"]);
}

#[test]
fn the_first_interval_of_restarts_begins_with_the_task() {
    let restart = Restart { attempts: Some(1), interval: Some(GoDuration::from_secs(5)), ..policy(1) };
    let (mut p, _) = Play::begin(fresh("service", vec![Task { restart: Some(restart), ..task("t") }]), 100 * S);
    let mut restarts = 0;
    for at in [103, 107, 110] {
        p.started("t", (at - 3) * S);
        p.exited("t", 1, at * S);
        let after = p.freed("t", at * S);
        if after.iter().any(|e| e.starts_with("restart")) {
            restarts += 1;
            p.apply(Event::Due(Timer::Restart { task: "t".into() }), at * S);
        }
    }
    assert_eq!((restarts, p.state("t")), (2, TaskRunState::Dead), "one in each of two intervals");
}

/// In a deployment, each task with a policy without restarts.
fn deployed(tasks: Vec<Task>) -> Machine {
    let mut record = record();
    record.alloc.deployment_id = "99999999-2222-3333-4444-555555555555".parse().expect("uuid");
    let tasks = tasks.into_iter().map(|t| Task { restart: Some(policy(0)), ..t }).collect();
    let mut job = Job::clone(&job("service", tasks));
    job.task_groups[0].update = Some(Update { healthy_deadline: Some(GoDuration::from_secs(20)), ..Update::default() });
    Machine::new(record, Arc::new(job), Vec::new(), GoDuration::from_secs(30))
}

#[test]
fn what_fails_without_a_deployment_is_not_called_unhealthy() {
    for (deployment, expected) in [("99999999-2222-3333-4444-555555555555", Some(false)), ("", None)] {
        let mut record = record();
        record.alloc.deployment_id = deployment.parse().unwrap_or_default();
        let mut job = Job::clone(&job("service", vec![Task { restart: Some(policy(0)), ..task("t") }]));
        job.task_groups[0].update = Some(Update::default());
        job.task_groups[0].migrate = Some(model::Migrate::default());
        let (mut p, _) = Play::begin(Machine::new(record, Arc::new(job), Vec::new(), GoDuration::from_secs(30)), 0);
        p.started("t", S);
        p.exited("t", 1, 2 * S);
        assert_eq!(p.machine.update().deployment_status.and_then(|d| d.healthy), expected, "{deployment}");
    }
}

#[test]
fn why_an_allocation_is_unhealthy_is_told_when_what_ends_because_of_it_has_ended() {
    const FAILED: &str = "Unhealthy because of failed task";
    const DEAD: &str = "Unhealthy because of dead task";
    let why = |p: &Play, task: &str| {
        let events = &p.machine.update().task_states[task].events;
        events.iter().filter(|e| e.kind == "Alloc Unhealthy").map(|e| e.display_message.clone()).collect::<Vec<_>>()
    };
    let (mut p, _) = Play::begin(deployed(vec![task("t"), task("other"), hooked("last", "poststop", false)]), 0);
    p.started("t", S);
    p.started("other", S);
    assert_eq!(p.exited("t", 1, 2 * S), ["free t", "stop other"]);
    assert_eq!(p.machine.update().deployment_status.and_then(|d| d.healthy), Some(false), "decided at once");
    assert!(why(&p, "t").is_empty() && why(&p, "other").is_empty());
    assert_eq!(p.exited("other", 0, 3 * S), ["free other", "start last"]);
    assert_eq!((why(&p, "t"), why(&p, "other")), (vec![FAILED.to_owned()], vec![DEAD.to_owned()]));
    let order = [
        "Received",
        "Task Setup",
        "Started",
        "Sibling Task Failed",
        "Killing",
        "Terminated",
        "Killed",
        "Alloc Unhealthy",
    ];
    assert_eq!(p.told("other"), order);
    assert_eq!(why(&p, "last"), ["Task not running by healthy_deadline of 20s"]);
    assert_eq!(p.told("last"), ["Received", "Alloc Unhealthy", "Task Setup"]);
    p.started("last", 4 * S);
    p.exited("last", 0, 5 * S);
    assert_eq!(why(&p, "t").len() + why(&p, "other").len() + why(&p, "last").len(), 3, "once");

    // A task that has not begun ends with the failed one. The servers' stop of all tasks comes too late for the reason.
    let (mut p, _) = Play::begin(
        deployed(vec![task("t"), hooked("before", "prestart", false), hooked("side", "prestart", true)]),
        0,
    );
    p.started("side", S);
    p.started("before", S);
    p.exited("before", 5, 2 * S);
    assert!(why(&p, "before").is_empty() && why(&p, "t").is_empty());
    p.stop(3 * S);
    p.exited("side", 0, 4 * S);
    assert_eq!(
        (why(&p, "before"), why(&p, "t"), why(&p, "side")),
        (vec![FAILED.to_owned()], vec![DEAD.to_owned()], vec![DEAD.to_owned()])
    );
}

/// Each end of a run, and the attempt that it spends.
#[test]
fn only_failures_of_the_task_spend_attempts_and_each_keeps_its_cause() {
    type Ends = fn(&mut Play, i64);
    let ends: [(&str, Ends, Option<&str>); 8] = [
        ("it fails", |p, at| drop(p.exited("t", 3, at)), Some("exit code 3")),
        (
            "a person restarts it",
            |p, at| {
                p.apply(
                    Event::RestartAsked {
                        tasks: vec!["t".into()],
                        also_dead: false,
                        why: crate::alloc::events::BY_USER,
                    },
                    at,
                );
                p.exited("t", 143, at);
            },
            None,
        ),
        (
            "its templates change",
            |p, at| {
                let (task, run) = p.run("t");
                p.apply(Event::DataChanged { task, run, why: "re-rendered".into() }, at);
                p.exited("t", 143, at);
            },
            None,
        ),
        (
            "it is lost with its driver's process",
            |p, at| {
                let (task, run) = p.run("t");
                let exit = Exit {
                    code: -1,
                    message: "the task was lost with its driver's process".into(),
                    lost: true,
                    ..Exit::default()
                };
                p.apply(Event::Exited { task, run, exit }, at);
            },
            None,
        ),
        (
            "it is killed for want of memory",
            |p, at| {
                let (task, run) = p.run("t");
                let exit = Exit { code: 137, signal: 9, oom_killed: true, ..Exit::default() };
                p.apply(Event::Exited { task, run, exit }, at);
            },
            Some("killed by signal 9, out of memory"),
        ),
        (
            "a new agent does not find it again",
            |p, at| {
                let tasks: Vec<_> = p.machine.tasks().map(|(n, r)| (n.clone(), r.clone())).collect();
                let again =
                    Machine::new(p.machine.record().clone(), p.machine.job().clone(), tasks, GoDuration::from_secs(30));
                *p = Play::begin(again, at).0;
                let (task, run) = p.run("t");
                p.apply(Event::Recovered { task, run, result: Err("there is no such task".into()) }, at);
            },
            None,
        ),
        ("it ends well, and services are to run", |p, at| drop(p.exited("t", 0, at)), Some("exit code 0")),
        ("it fails when nothing is left", |p, at| drop(p.exited("t", 5, at)), None),
    ];
    let restart = Restart { interval: Some(GoDuration::from_secs(3600)), ..policy(3) };
    let (mut p, _) = Play::begin(fresh("service", vec![Task { restart: Some(restart), ..task("t") }]), S);
    let mut expected: Vec<(i64, String)> = Vec::new();
    for (at, (name, end, cause)) in (10..).step_by(10).map(|at| at * S).zip(ends) {
        p.started("t", at - S);
        end(&mut p, at);
        expected.extend(cause.map(|cause| (at, cause.to_owned())));
        let charges = |p: &Play| -> Vec<(i64, String)> {
            p.machine.update().task_states["t"].restart_charges.iter().map(|c| (c.time, c.cause.to_string())).collect()
        };
        assert_eq!(charges(&p), expected, "{name}");
        p.freed("t", at);
        p.apply(Event::Due(Timer::Restart { task: "t".into() }), at + S);
        p.apply(Event::Contacted, at + S);
        assert_eq!(charges(&p), expected, "{name}, afterwards");
    }
    assert_eq!((p.state("t"), p.told("t").last().map(String::as_str)), (TaskRunState::Dead, Some("Not Restarting")));
    // A failed start as well.
    let (mut p, _) = Play::begin(fresh("service", vec![task("t")]), S);
    p.failed_start("t", StartFailure::Driver { why: "no such image".into(), recoverable: true }, 2 * S);
    assert_eq!(p.machine.update().task_states["t"].restart_charges[0].cause, "not started: no such image");
}

//! Services and checks of a machine: when each is up, and the effects of checks.

use model::{Check, CheckStatus, DeploymentId, Service, service::CheckRestart};

use super::*;
use crate::{alloc::record::CheckRun, checks::Outcome};

fn checked(kind: &str, restart: Option<CheckRestart>) -> Machine {
    let check = Check { name: "c".into(), kind: "tcp".into(), on_update: "require_healthy".into(), ..Check::default() };
    let service = Service {
        name: "s".into(),
        provider: "nomad".into(),
        checks: vec![check],
        check_restart: restart,
        ..Service::default()
    };
    let mut t = task("t");
    t.services = vec![service];
    fresh(kind, vec![t])
}

const KEY: &str = "t/s:/c";

impl Play {
    fn up(&self, task: &str) -> bool {
        self.machine.task_views().iter().any(|v| *v.name == *task && v.up)
    }
    fn found(&mut self, outcome: Option<Outcome>, at: i64) -> Vec<String> {
        let run = CheckRun { code: 0, output: format!("{outcome:?}"), at };
        self.apply(Event::Checked { key: KEY.into(), outcome, run }, at)
    }
    fn status(&self) -> Option<CheckStatus> {
        self.machine.check_results().first().map(|r| r.status)
    }
}

#[test]
fn a_task_is_up_from_its_start_to_the_decision_to_stop_it() {
    let mut t = task("t");
    t.shutdown_delay = GoDuration::from_secs(5);
    let (mut play, _) = Play::begin(fresh("service", vec![t]), 0);
    assert!(!play.up("t"), "not while it is being started");
    play.started("t", S);
    assert!(play.up("t"));
    let stopped =
        Arc::new(Allocation { desired_status: DesiredStatus::Stop, ..Allocation::clone(play.machine.alloc()) });
    let job = play.machine.job().clone();
    assert_eq!(play.apply(Event::Changed(stopped, job), 2 * S), ["delay t until 7"]);
    assert!(!play.up("t"), "from the decision on, although it runs");
}

#[test]
fn a_task_of_a_former_agent_is_up_while_it_is_looked_for() {
    let run = Run { id: "r".into(), handle: Some(b"h".to_vec()), ..Run::default() };
    let mut known = TaskRecord { run: Some(run), ..TaskRecord::default() };
    known.state.state = TaskRunState::Running;
    let machine = Machine::new(
        record(),
        job("service", vec![task("t")]),
        vec![("t".into(), known.into())],
        GoDuration::from_secs(30),
    );
    let (mut play, _) = Play::begin(machine, 0);
    assert!(play.up("t"));
    let (task, run) = play.run("t");
    play.apply(Event::Recovered { task, run, result: Err("gone".into()) }, S);
    assert!(!play.up("t"));
}

#[test]
fn a_remote_task_is_up_while_this_node_manages_it_and_cannot_say_that_it_ended() {
    let mut record = record();
    record.alloc.remote.insert("t".into(), IncarnationId::default());
    let machine = Machine::new(record, job("service", vec![task("t")]), Vec::new(), GoDuration::from_secs(30));
    let (mut play, _) = Play::begin(machine, 0);
    assert!(!play.machine.services_known(), "nothing is known of it yet");
    let unknown = || Observed::Unknown { since: 1, why: "x".into() };
    for (observed, epoch, started_at, stopping, up) in [
        (Observed::Running, 0, 1, false, false),
        (Observed::Running, 3, 1, false, true),
        (unknown(), 3, 1, false, true),
        (unknown(), 3, 0, false, false),
        (Observed::Running, 4, 1, true, false),
    ] {
        let view = RemoteView { observed: observed.clone(), epoch, started_at, stopping, ..RemoteView::default() };
        play.apply(Event::Remote { task: "t".into(), view: Arc::new(view) }, S);
        assert_eq!(
            (play.up("t"), play.machine.epoch("t")),
            (up, epoch),
            "{observed:?} {epoch} {started_at} {stopping}"
        );
        assert!(play.machine.services_known());
    }
}

#[test]
fn checks_live_as_long_as_their_service_stands() {
    let (mut play, _) = Play::begin(checked("service", None), 0);
    assert_eq!(play.status(), None);
    play.found(Some(Outcome::Pass), S);
    assert_eq!(play.status(), None, "a late answer of nothing is no check");
    play.started("t", S);
    assert_eq!(play.status(), Some(CheckStatus::Pending));
    play.found(Some(Outcome::Pass), 2 * S);
    let stored = play.machine.record().clone();
    play.found(Some(Outcome::Pass), 3 * S);
    assert_eq!(*play.machine.record(), stored, "what goes on as it was needs no write");
    assert_eq!(play.machine.check_results()[0].timestamp, 3, "people see the newest run all the same");
    play.found(None, 4 * S);
    assert_eq!(
        (play.status(), &*play.machine.check_results()[0].output),
        (Some(CheckStatus::Success), "None"),
        "no run, no verdict"
    );
    play.exited("t", 1, 5 * S);
    assert_eq!(play.status(), None);
}

#[test]
fn an_unhealthy_task_is_stopped_and_its_policy_decides() {
    let rule = CheckRestart { limit: 2, grace: Some(GoDuration::from_secs(10)), ignore_warnings: false };
    let (mut play, _) = Play::begin(checked("service", Some(rule)), 0);
    for round in 0..2_i64 {
        let start = 100 * (round + 1) * S;
        play.started("t", start);
        assert!(play.found(Some(Outcome::Fail), start + S).is_empty(), "within the grace");
        assert!(play.found(Some(Outcome::Fail), start + 11 * S).is_empty());
        assert_eq!(play.found(Some(Outcome::Fail), start + 12 * S), ["stop t"]);
        assert!(!play.up("t"));
        assert!(play.found(Some(Outcome::Fail), start + 13 * S).is_empty(), "once is enough");
        // It exits well after a stop: it is unhealthy all the same.
        play.exited("t", 0, start + 14 * S);
        let state = &play.machine.update().task_states["t"];
        if round == 0 {
            assert_eq!((state.state, state.restarts), (TaskRunState::Pending, 1));
            let (task, run) = play.run("t");
            play.apply(Event::Freed { task, run, owed: false }, start + 14 * S);
            play.apply(Event::Due(Timer::Restart { task: "t".into() }), start + 16 * S);
        } else {
            // A minute later the policy's interval is over, and its attempts no longer count.
            assert_eq!((state.state, state.restarts), (TaskRunState::Pending, 2));
        }
    }
}

#[test]
fn an_unhealthy_remote_task_is_told_of_and_not_touched() {
    let rule = CheckRestart { limit: 1, grace: Some(GoDuration::ZERO), ignore_warnings: false };
    let machine = checked("service", Some(rule));
    let mut record = machine.record().clone();
    record.alloc.remote.insert("t".into(), IncarnationId::default());
    let machine = Machine::new(record, machine.job().clone(), Vec::new(), GoDuration::from_secs(30));
    let (mut play, _) = Play::begin(machine, 0);
    let see = |play: &mut Play, observed: Observed, stopping: bool| {
        let view = RemoteView { observed, epoch: 3, started_at: 1, stopping, ..RemoteView::default() };
        play.apply(Event::Remote { task: "t".into(), view: Arc::new(view) }, S);
    };
    see(&mut play, Observed::Running, false);
    assert_eq!(play.found(Some(Outcome::Fail), 2 * S), ["unhealthy t"]);
    see(&mut play, Observed::Unknown { since: 1, why: "x".into() }, false);
    assert!(play.found(Some(Outcome::Fail), 3 * S).is_empty(), "nothing is stopped in doubt");
    let said =
        |play: &Play| play.machine.update().task_states["t"].events.last().expect("an event").display_message.clone();
    assert!(said(&play).contains("cannot say how it is"), "{}", said(&play));
    see(&mut play, Observed::Running, true);
    assert!(play.found(Some(Outcome::Fail), 4 * S).is_empty(), "once is enough");
}

#[test]
fn health_waits_for_checks_and_begins_anew_with_them() {
    let mut machine = checked("service", None);
    let mut alloc = machine.alloc().clone();
    alloc.deployment_id = DeploymentId(uuid::Uuid::from_u128(1));
    let mut job = Job::clone(machine.job());
    job.task_groups[0].update = Some(Update {
        health_check: Some("checks".into()),
        min_healthy_time: Some(GoDuration::from_secs(10)),
        healthy_deadline: Some(GoDuration::from_secs(300)),
        ..Update::default()
    });
    let job = Arc::new(job);
    machine = Machine::new(
        AllocRecord { alloc, ..AllocRecord::clone(machine.record()) },
        job,
        Vec::new(),
        GoDuration::from_secs(30),
    );
    let (mut play, _) = Play::begin(machine, S);
    let healthy = |play: &Play| play.machine.update().deployment_status.and_then(|d| d.healthy);
    play.started("t", 2 * S);
    play.apply(Event::Due(Timer::Health), 20 * S);
    assert_eq!(healthy(&play), None, "it runs, but nothing has been checked");
    play.found(Some(Outcome::Pass), 21 * S);
    play.found(Some(Outcome::Fail), 25 * S);
    assert_eq!(play.found(Some(Outcome::Pass), 26 * S), ["health at 36"]);
    play.apply(Event::Due(Timer::Health), 36 * S);
    assert_eq!(healthy(&play), Some(true));
}

//! The end of an allocation by its group's `max_run_duration`.

use super::*;

/// Created at second 10, with 60 seconds.
fn limited(kind: &str, tasks: Vec<Task>, records: Vec<(Arc<str>, Kept<TaskRecord>)>) -> Machine {
    of_record(record(), kind, tasks, records)
}

fn of_record(
    mut record: AllocRecord,
    kind: &str,
    tasks: Vec<Task>,
    records: Vec<(Arc<str>, Kept<TaskRecord>)>,
) -> Machine {
    record.alloc.create_time = 10 * S;
    let mut job = Job::clone(&job(kind, tasks));
    job.task_groups[0].max_run_duration = Some(GoDuration::from_secs(60));
    Machine::new(record, Arc::new(job), records, GoDuration::from_secs(30))
}

fn with_poststop() -> Vec<Task> {
    let lifecycle = Some(Lifecycle { hook: "poststop".into(), sidecar: false });
    vec![task("t"), Task { lifecycle, ..task("after") }]
}

/// The changed job reaches the node.
fn changed(p: &mut Play, seconds: Option<i64>, at: i64) -> Vec<String> {
    let mut job = Job::clone(p.machine.job());
    job.task_groups[0].max_run_duration = seconds.map(GoDuration::from_secs);
    let mut alloc = Allocation::clone(p.machine.alloc());
    alloc.alloc_modify_index += 1;
    p.apply(Event::Changed(Arc::new(alloc), Arc::new(job)), at)
}

#[test]
fn its_time_ends_it_well_and_without_poststop_tasks() {
    let (mut p, effects) = Play::begin(limited("batch", with_poststop(), Vec::new()), 12 * S);
    assert_eq!(effects, ["deadline at 70", "start t"]);
    p.started("t", 12 * S);
    assert_eq!(p.apply(Event::Due(Timer::Deadline), 70 * S), ["stop t", "over after"]);
    // A restart that somebody asks for now comes too late.
    let ask = Event::RestartAsked { tasks: vec!["t".into()], also_dead: true, why: "asked" };
    assert_eq!(p.apply(ask, 70 * S), Vec::<String>::new());
    assert_eq!(p.exited("t", 143, 71 * S), ["free t"]);
    assert_eq!(p.freed("t", 71 * S), ["over t"]);
    let update = p.machine.update();
    let shown = (update.client_status, &*update.client_description);
    assert_eq!(shown, (ClientStatus::Complete, "allocation exceeded max_run_duration"));
    let killing = update.task_states["t"].events.iter().find(|e| e.kind == "Killing").expect("it was stopped");
    assert_eq!(&*killing.display_message, "allocation exceeded max_run_duration");
    assert!(update.task_states["after"].started_at.is_unset(), "poststop tasks do not start");
}

#[test]
fn restarts_do_not_extend_it_and_an_end_before_it_is_the_tasks_own() {
    let (mut p, _) = Play::begin(limited("batch", vec![task("t")], Vec::new()), 12 * S);
    p.started("t", 12 * S);
    assert_eq!(p.exited("t", 1, 60 * S), ["free t"]);
    assert_eq!(p.freed("t", 60 * S), ["restart t at 61"]);
    // It waits for its restart: nothing is left to stop.
    assert_eq!(p.apply(Event::Due(Timer::Deadline), 70 * S), ["over t"]);
    assert_eq!(&*p.machine.update().client_description, "allocation exceeded max_run_duration");

    for (code, status) in [(0, ClientStatus::Complete), (1, ClientStatus::Failed)] {
        let once = Task { restart: Some(policy(0)), ..task("t") };
        let (mut p, _) = Play::begin(limited("batch", vec![once], Vec::new()), 12 * S);
        p.started("t", 12 * S);
        p.exited("t", code, 69 * S);
        p.freed("t", 69 * S);
        p.apply(Event::Due(Timer::Deadline), 70 * S);
        let update = p.machine.update();
        assert_eq!(update.client_status, status, "exit code {code}");
        assert_ne!(&*update.client_description, "allocation exceeded max_run_duration");
    }
}

#[test]
fn a_new_agent_ends_at_once_what_is_past_its_time() {
    let run = Run { id: "r".into(), handle: Some(b"h".to_vec()), ..Run::default() };
    let mut known = TaskRecord { run: Some(run), ..TaskRecord::default() };
    known.state.state = TaskRunState::Running;
    let (mut p, effects) = Play::begin(limited("batch", vec![task("t")], vec![("t".into(), known.into())]), 100 * S);
    assert_eq!(effects, ["recover t", "end unattended t"]);
    p.exited("t", 0, 101 * S);
    p.freed("t", 101 * S);
    // What it was ended for outlives a further agent.
    let record = serde_json::to_string(p.machine.record()).expect("text");
    assert!(serde_json::from_str::<AllocRecord>(&record).expect("a record").expired);
}

#[test]
fn a_changed_duration_counts_from_the_creation() {
    let (mut p, _) = Play::begin(limited("batch", vec![task("t")], Vec::new()), 12 * S);
    p.started("t", 12 * S);
    assert_eq!(changed(&mut p, Some(100), 20 * S), ["deadline at 110"]);
    assert_eq!(p.apply(Event::Due(Timer::Deadline), 70 * S), Vec::<String>::new(), "the former one");
    assert_eq!(changed(&mut p, None, 71 * S), Vec::<String>::new());
    assert_eq!(p.apply(Event::Due(Timer::Deadline), 110 * S), Vec::<String>::new(), "none any more");
    assert_eq!(changed(&mut p, Some(5), 120 * S), ["stop t"], "that one is past");
}

#[test]
fn it_is_for_jobs_that_end() {
    let (_, effects) = Play::begin(limited("service", vec![task("t")], Vec::new()), 100 * S);
    assert_eq!(effects, ["start t"]);
}

#[test]
fn a_remote_task_ends_by_the_servers_order_and_takes_its_siblings_along() {
    let mut record = record();
    record.alloc.remote.insert("far".into(), IncarnationId::NIL);
    let machine = of_record(record, "batch", vec![task("far"), task("near")], Vec::new());
    let (mut p, _) = Play::begin(machine, 12 * S);
    p.started("near", 12 * S);
    let view = |verdict, observed, expired| {
        let view = RemoteView { verdict, observed, expired, stopping: expired, ..RemoteView::default() };
        Event::Remote { task: "far".into(), view: Arc::new(view) }
    };
    p.apply(view(RemoteVerdict::Active, Observed::Running, false), 12 * S);
    // The servers count from an earlier allocation of the slot.
    assert_eq!(p.apply(view(RemoteVerdict::Active, Observed::Running, true), 40 * S), ["stop near"]);
    assert!(p.machine.update().task_states["far"].events.iter().any(|e| e.kind == "Killing"));
    p.exited("near", 143, 41 * S);
    p.freed("near", 41 * S);
    assert_eq!(p.machine.update().client_status, ClientStatus::Running, "the instance still runs");
    p.apply(view(RemoteVerdict::Complete, Observed::Gone, true), 42 * S);
    let update = p.machine.update();
    let shown = (update.client_status, &*update.client_description);
    assert_eq!(shown, (ClientStatus::Complete, "allocation exceeded max_run_duration"));
}

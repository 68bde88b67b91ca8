//! Admission of jobs, without a server.

use model::{Task, TaskGroup};

use super::*;

const RULES: Rules<'static> =
    Rules { region: "global", default_priority: 50, max_priority: 80, max_count: 10, zones: |_| None, vault: None };

fn job() -> Job {
    let task = Task { name: "t".into(), driver: "mock".into(), ..Task::default() };
    let group = TaskGroup { name: "g".into(), count: Some(1), tasks: vec![task], ..TaskGroup::default() };
    Job { id: "web".into(), datacenters: vec!["dc1".into()], task_groups: vec![group].into(), ..Job::default() }
}

fn refused(edit: impl FnOnce(&mut Job)) -> Option<String> {
    let mut job = job();
    edit(&mut job);
    admit(job, &RULES).err().map(|refused| refused.to_string())
}

#[test]
fn a_job_is_filled_in_and_keeps_nothing_that_belongs_to_the_servers() {
    let mut sent = job();
    (sent.version, sent.stable, sent.status) = (7, true, "running".to_owned());
    sent.task_groups[0].tasks[0].kill_signal = "SIGUSR1".to_owned();
    let job = admit(sent, &RULES).unwrap().job;
    assert_eq!((job.version, job.stable, &*job.status, job.priority), (0, false, "pending", 50));
    assert_eq!(job.task_groups[0].constraints[0].right, "SIGUSR1", "its node must know the signal");
}

#[test]
fn what_breaks_a_rule_is_refused_by_name() {
    assert_eq!(refused(|_| {}), None);
    type Case = (fn(&mut Job), &'static str);
    let cases: [Case; 5] = [
        (|job| job.region = "mars".to_owned(), "is for region \"mars\""),
        (|job| job.priority = 81, "the highest that this cluster allows is 80"),
        (|job| job.task_groups[0].count = Some(11), "asks for 11 allocations"),
        (|job| job.task_groups[0].tasks = vec![Task::default(); MAX_PARTS], "groups and tasks"),
        (|job| job.task_groups[0].tasks[0].driver.clear(), "driver"),
    ];
    for (edit, expected) in cases {
        let why = refused(edit);
        assert!(why.as_ref().is_some_and(|why| why.contains(expected)), "{expected}: {why:?}");
    }
}

#[test]
fn a_job_belongs_to_a_namespace_and_a_pool_that_are_there() {
    let state = State::new();
    let admitted = |edit: fn(&mut Job)| {
        let mut job = job();
        edit(&mut job);
        check_references(&state, &admit(job, &RULES).unwrap().job).err().map(|refused| refused.to_string())
    };
    assert_eq!(admitted(|_| {}), None);
    assert_eq!(
        admitted(|job| job.namespace = "ops".into()).unwrap(),
        "1 error occurred:\n\t* job \"web\" is in nonexistent namespace \"ops\"\n\n"
    );
    assert_eq!(
        admitted(|job| job.node_pool = "gpu".into()).unwrap(),
        "job \"web\" is in nonexistent node pool \"gpu\""
    );
}

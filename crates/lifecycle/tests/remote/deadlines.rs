//! The end of a remote task by its group's `max_run_duration`: the servers keep the time.

use lifecycle::remote::{Context, Event, order_for_node, reconcile::needs_executor, transition, wake_at};
use model::{
    DesiredRemote, GoDuration, Observed, RemotePolicy, RemoteReport, RemoteTask, RemoteVerdict, RemoteWanted, Restart,
    remote::RemoteRole,
};

use crate::{
    scenarios::{cx, running, wanted},
    world::{Config, node_id, slot_key},
};

/// A record whose task began at second 10 and has 60 seconds.
fn limited() -> RemoteTask {
    let mut r = running(Config::default()).records[&0].clone();
    r.began = 10_000_000_000;
    r.policy = RemotePolicy { max_run: Some(GoDuration::from_secs(60)), ..RemotePolicy::clone(&r.policy) }.into();
    r
}

fn tick(r: &RemoteTask, second: i64) -> Option<RemoteTask> {
    transition(&slot_key(0), Some(r), &Event::Tick, Context { now: second * 1_000_000_000, ..cx() }).record
}

#[test]
fn the_time_of_a_task_ends_its_instance_and_completes_it() {
    let r = limited();
    let manager = r.manager.expect("it is managed").node_id;
    assert_eq!(wake_at(&r), Some(70_000_000_000));
    assert_eq!(tick(&r, 69).as_ref(), Some(&r), "not yet");
    let r = tick(&r, 70).expect("a record");
    let order = order_for_node(&r, manager).expect("an order");
    assert_eq!((order.desired, order.expired, &order.verdict), (DesiredRemote::Stop, true, &RemoteVerdict::Active));
    assert_eq!((r.desired, wake_at(&r)), (DesiredRemote::Run, None), "its allocation has the slot");
    let ended = RemoteReport {
        slot: slot_key(0),
        incarnation: r.incarnation,
        epoch: r.epoch,
        provider: "fake".to_owned(),
        observed: Observed::Exited { code: 143, signal: 0, oom_killed: false, reason: "".into(), at: 71 },
        ..RemoteReport::default()
    };
    let r = transition(&slot_key(0), Some(&r), &Event::Report { from: manager, report: Box::new(ended) }, cx()).record;
    let r = r.expect("a record");
    assert_eq!((&r.verdict, r.exit_acknowledged, r.restarts), (&RemoteVerdict::Complete, true, 0));
    assert!(order_for_node(&r, manager).expect("an order").expired, "its allocation says why");
}

#[test]
fn without_its_manager_any_node_that_reaches_the_provider_ends_it() {
    let r = limited();
    let manager = r.manager.expect("it is managed").node_id;
    let r = transition(&slot_key(0), Some(&r), &Event::LeaseLost { node: manager }, cx()).record.expect("a record");
    assert!(!needs_executor(&r));
    let r = tick(&r, 70).expect("a record");
    assert!(needs_executor(&r), "no allocation and no room is needed for a stop");
    let capable = Event::CapableNode { node: node_id(1), provider: "fake".to_owned() };
    let r = transition(&slot_key(0), Some(&r), &capable, cx()).record.expect("a record");
    let order = order_for_node(&r, node_id(1)).expect("an order");
    assert_eq!((order.role, order.desired), (RemoteRole::Stop, DesiredRemote::Stop));
}

#[test]
fn a_restart_does_not_extend_the_time_of_a_task() {
    // Ordered, and still under way at the deadline: nothing follows.
    let r = limited();
    let order = Event::Restart { why: "a person".to_owned() };
    let restarting = transition(&slot_key(0), Some(&r), &order, cx()).record.expect("a record");
    assert!(restarting.next.is_some());
    let r = tick(&restarting, 70).expect("a record");
    assert!(r.next.is_none() && r.expired && r.desired == DesiredRemote::Run);
    assert_eq!(order_for_node(&r, r.manager.expect("managed").node_id).map(|o| o.desired), Some(DesiredRemote::Stop));
    // Waiting for its time after a failure: it is complete.
    let mut waiting = limited();
    (waiting.observed, waiting.exit_acknowledged, waiting.forgotten) = (Observed::Gone, true, true);
    waiting.verdict = RemoteVerdict::Restarting { at: 71_000_000_000, reason: "".into() };
    let r = tick(&waiting, 70).expect("a record");
    assert_eq!((&r.verdict, r.expired), (&RemoteVerdict::Complete, true));
    // A new version of the job has its own time.
    let replaced = Event::Wanted(Box::new(RemoteWanted {
        spec_hash: "other".into(),
        created_at: 60_000_000_000,
        ..wanted(0, 5, "fake")
    }));
    let r = transition(&slot_key(0), Some(&limited()), &replaced, cx()).record.expect("a record");
    assert_eq!(wake_at(&r), None, "it is being replaced");
}

#[test]
fn an_end_before_the_deadline_is_the_tasks_own_also_when_it_is_told_late() {
    let ends = |attempts, code| {
        let mut r = limited();
        r.policy = RemotePolicy {
            batch: true,
            restart: Restart { attempts: Some(attempts), mode: Some("fail".into()), ..Restart::default() },
            ..RemotePolicy::clone(&r.policy)
        }
        .into();
        let exited = Observed::Exited { code, signal: 0, oom_killed: false, reason: "".into(), at: 69_000_000_000 };
        let report = RemoteReport {
            slot: slot_key(0),
            incarnation: r.incarnation,
            epoch: r.epoch,
            provider: "fake".to_owned(),
            observed: exited,
            ..RemoteReport::default()
        };
        let from = r.manager.expect("it is managed").node_id;
        let late = Context { now: 75_000_000_000, ..cx() };
        transition(&slot_key(0), Some(&r), &Event::Report { from, report: Box::new(report) }, late)
            .record
            .expect("a record")
    };
    let failed = ends(0, 1);
    assert!(matches!(failed.verdict, RemoteVerdict::Failed { .. }) && !failed.expired, "{:?}", failed.verdict);
    let done = ends(0, 0);
    assert_eq!((&done.verdict, done.expired), (&RemoteVerdict::Complete, false));
    // It would be restarted, and there is no time left for that.
    let restarts = ends(3, 1);
    assert_eq!((&restarts.verdict, restarts.expired), (&RemoteVerdict::Complete, true));
}

//! A26: servers whose state is from the past. What they no longer know is taken over, or waits for a person; nothing
//! is created beside it.

use lifecycle::remote::{Context, Effect, Event, begins, node, order_for_node, recovered::Known, transition};
use model::{
    DesiredRemote, IncarnationId, NodeId, Observed, RemoteImport, RemoteInstance, RemoteOrder, RemoteReport,
    RemoteTask, RemoteVerdict, RemoteWanted,
    node::RemoteProvider,
    remote::{Manager, RemoteRole},
};
use uuid::Uuid;

use crate::{
    levels::levels,
    scenarios::{cx, running},
    world::{Action, Config, World, node_id, slot_key},
};

#[test]
fn a26_bound_but_gone_restarts_and_unbound_is_not_touched() {
    let mut w = running(Config::default());
    let first = w.records[&0].incarnation;
    w.exit(0, 0);
    w.provider.instances.clear();
    w.run_as_is();
    assert_ne!(w.records[&0].incarnation, first, "bound but gone: its restart policy decides");
    assert_eq!(w.alive(0).len(), 1);
    w.assert_ok();
    // The servers were restored to a time before the slot: the instance is reported, nobody is told to stop it.
    let report = RemoteReport { slot: slot_key(0), observed: Observed::Running, ..RemoteReport::default() };
    let step = transition(&slot_key(0), None, &Event::Report { from: node_id(0), report: Box::new(report) }, cx());
    assert_eq!(step.effects, [Effect::Release { node: node_id(0), slot: slot_key(0) }]);
    assert!(step.record.is_none());
}

#[test]
fn a26_what_no_record_knows_is_adopted_or_stopped_by_order_only() {
    for adopted in [true, false] {
        let mut w = running(Config { nodes: 2, ..Config::default() });
        let before = w.records.remove(&0).expect("the record that the restored servers have lost");
        let instance = RemoteInstance {
            key: before.incarnation.to_string(),
            slot: slot_key(0).to_string(),
            epoch: before.epoch,
            handle: before.handle.clone(),
            observed: Observed::Running,
            ..RemoteInstance::default()
        };
        let wanted = RemoteWanted {
            job_version: before.job_version,
            spec_hash: before.spec_hash.clone(),
            policy: before.policy.clone(),
            ..RemoteWanted::default()
        };
        let import = RemoteImport {
            instance,
            incarnation: before.incarnation,
            driver: before.driver.to_string(),
            provider: before.provider.to_string(),
            as_wanted: adopted.then(|| Box::new(wanted)),
            why: "a test".to_owned(),
        };
        let step = transition(&slot_key(0), None, &Event::Import(Box::new(import.clone())), cx());
        let record = step.record.expect("a record");
        assert!(record.manager.is_none() && record.adopt(), "whoever manages it looks first");
        let again = transition(&slot_key(0), Some(&record), &Event::Import(Box::new(import)), cx());
        assert_eq!(
            again.record.as_ref(),
            Some(&record),
            "a slot that has a record takes no other instance: {:?}",
            again.reasons
        );
        w.records.insert(0, record);
        if adopted {
            w.place(0, 1);
        } else {
            w.apply(&Action::StopJob);
        }
        w.run_as_is();
        if adopted {
            assert_eq!(w.records[&0].incarnation, before.incarnation, "the same instance, managed again");
            assert!(w.records[&0].epoch > before.epoch && w.records[&0].manager.is_some());
            assert_eq!(w.alive(0).len(), 1);
        } else {
            assert!(w.records.is_empty() && w.alive(0).is_empty(), "stopped, confirmed, forgotten");
        }
        w.assert_ok();
    }
}

#[test]
fn a26_servers_restored_to_an_older_epoch_go_on_from_the_provider_s() {
    // What is at a provider may be anybody's: no number stops the servers.
    for accepted in [40, u64::MAX] {
        let mut w = running(Config { nodes: 1, ..Config::default() });
        w.provider.accepted.insert(w.records[&0].incarnation, accepted);
        w.apply(&Action::StopJob);
        w.run_as_is();
        assert!(w.records.is_empty() && w.alive(0).is_empty(), "stopped under an epoch that the provider accepts");
        w.assert_ok();
    }
}

#[test]
fn a26_a_refusal_that_names_no_epoch_takes_the_servers_above_it_step_by_step() {
    let mut w = running(Config { nodes: 1, ..Config::default() });
    let (incarnation, before) = (w.records[&0].incarnation, w.records[&0].epoch);
    w.provider.names_no_epoch = true;
    w.provider.accepted.insert(incarnation, before + 5);
    w.apply(&Action::StopJob);
    w.run_as_is();
    assert!(w.records.is_empty() && w.alive(0).is_empty(), "stopped under an epoch that the provider accepts");
    // Each refusal takes the record above the epoch that was refused, under a new epoch of the servers' own: before,
    // + 2, + 4 are refused.
    assert_eq!(w.provider.refused_stale, 3);
    w.assert_ok();
}

#[test]
fn a26_servers_restored_to_an_older_epoch_let_an_ended_instance_go_too() {
    let mut w = running(Config { nodes: 1, ..Config::default() });
    let first = w.records[&0].incarnation;
    w.provider.accepted.insert(first, 40);
    w.exit(0, 3);
    w.run_as_is();
    assert_ne!(
        w.records[&0].incarnation, first,
        "acknowledged under an epoch that the provider accepts, and made anew"
    );
    assert_eq!(w.alive(0).len(), 1);
    w.assert_ok();
}

#[test]
fn a26_a_node_on_an_older_directory_looks_before_it_believes_that_it_has_created_nothing() {
    let mut w = World::new(Config { nodes: 1, ..Config::default() });
    w.left.node_olds = 1;
    w.apply(&Action::CopyDisk(0));
    w.place(0, 0);
    w.run(|a| !matches!(a, Action::Execute(..)));
    // The create is on its way; the directory is set back to before it was sent, and the job is stopped.
    w.apply(&Action::OldNode(0));
    w.apply(&Action::Connect(0));
    w.apply(&Action::Late(0));
    w.apply(&Action::StopJob);
    w.run_as_is();
    assert!(w.alive(0).is_empty() && w.records.is_empty(), "{:?}", w.records);
    w.assert_calls(1, 1);
}

#[test]
fn nothing_begins_in_a_slot_while_a_person_s_stop_beside_it_is_under_way() {
    let mut w = running(Config { nodes: 1, ..Config::default() });
    let record = w.records[&0].clone();
    // The servers know another incarnation than the one that runs, which the sweep finds.
    let other = IncarnationId(Uuid::from_u128(77));
    let ended = Observed::Exited { code: 1, signal: 0, oom_killed: false, reason: "".into(), at: 1 };
    let verdict = RemoteVerdict::Restarting { at: 1, reason: "".into() };
    let restarting = RemoteTask {
        incarnation: other,
        observed: ended,
        exit_acknowledged: true,
        forgotten: true,
        verdict,
        handle: None,
        ..record.clone()
    };
    w.records.insert(0, restarting);
    w.apply(&Action::Sweep);
    assert_eq!(w.unbound.keys().copied().collect::<Vec<_>>(), [record.incarnation]);
    w.apply(&Action::StopUnbound(record.incarnation));
    w.apply(&Action::Tick(0));
    assert_eq!(w.records[&0].incarnation, other, "it waits for the end of the other one");
    w.run_as_is();
    assert_ne!(w.records[&0].incarnation, other, "and begins then");
    assert_eq!((w.alive(0).len(), w.provider.stops, w.records.len()), (1, 1, 1));
    w.assert_ok();
}

#[test]
fn a26_who_finishes_an_ended_task_tells_of_no_stop() {
    let finishing = RemoteOrder {
        slot: slot_key(0),
        role: RemoteRole::Stop,
        desired: DesiredRemote::Run,
        acknowledge: true,
        verdict: RemoteVerdict::Complete,
        driver: "fake".to_owned(),
        ..RemoteOrder::default()
    };
    let known = Known::of_order(&finishing, None, "node a".to_owned());
    assert_eq!((known.desired, known.ended), (DesiredRemote::Run, Some((RemoteVerdict::Complete, None))));
}

#[test]
fn what_a_person_declares_gone_at_a_provider_that_cannot_be_asked_is_followed_by_another() {
    for (name, _, cfg) in levels().into_iter().filter(|(_, _, cfg)| !cfg.find) {
        let mut w = World::new(Config { late_calls: false, frozen: false, ..cfg });
        w.place(0, 0);
        w.run(|a| !matches!(a, Action::Execute(..)));
        // Before the provider was asked, but who could know?
        w.kill_and_expire(0);
        w.place(0, 1);
        w.run_as_is();
        if w.cfg.keyed {
            assert_eq!(w.alive(0).len(), 1, "{name}: repeating it is safe");
            continue;
        }
        assert!(matches!(w.records[&0].observed, Observed::Unknown { .. }), "{name}: {:?}", w.records[&0].observed);
        w.apply(&Action::DeclareGone(0));
        w.run_as_is();
        assert_eq!((w.alive(0).len(), w.provider.creates), (1, 1), "{name}: {:?}", w.records[&0]);
        w.assert_ok();
    }
}

#[test]
fn a26_an_order_of_an_older_epoch_is_refused_and_the_servers_go_on_above_it() {
    let w = running(Config { nodes: 1, ..Config::default() });
    // The servers are restored to the first epoch of the slot; its node has acted under the fourth.
    let record = w.records[&0].clone();
    let at = record.epoch + 3;
    let slot = node::Slot::restore(&node::Stored { attempted: Some(record.incarnation), highest_epoch: at });
    let caps = RemoteProvider { provider: "fake".to_owned(), ..RemoteProvider::default() };
    let order = order_for_node(&record, node_id(0)).expect("an order");
    let refused = node::transition(&slot_key(0), &slot, &node::Event::Order(Box::new(order)), &caps, 5);
    let [node::Effect::Report(report)] = &refused.effects[..] else { panic!("only said: {:?}", refused.effects) };
    assert_eq!((report.epoch, report.stale_epoch, refused.slot.order()), (record.epoch, at, None));
    assert!(refused.reasons.iter().any(|why| why.contains("order refused")), "{:?}", refused.reasons);
    let step =
        transition(&slot_key(0), Some(&record), &Event::Report { from: node_id(0), report: report.clone() }, cx());
    let after = step.record.expect("a record");
    assert_eq!((after.epoch, after.incarnation), (at + 1, record.incarnation));
    let order = order_for_node(&after, node_id(0)).expect("an order");
    let taken = node::transition(&slot_key(0), &refused.slot, &node::Event::Order(Box::new(order)), &caps, 6);
    assert_eq!(taken.slot.order().map(|order| order.epoch), Some(at + 1));
}

#[test]
fn a26_no_incarnation_of_any_kind_begins_while_one_may_live_that_no_record_knows() {
    let w = running(Config { nodes: 1, ..Config::default() });
    let running = w.records[&0].clone();
    let ended = RemoteTask {
        observed: Observed::Exited { code: 1, signal: 0, oom_killed: false, reason: "".into(), at: 1 },
        exit_acknowledged: true,
        forgotten: true,
        ..running.clone()
    };
    let next = RemoteWanted { manager: running.manager, driver: running.driver.clone(), ..RemoteWanted::default() };
    let restarting = RemoteTask { verdict: RemoteVerdict::Restarting { at: 1, reason: "".into() }, ..ended.clone() };
    let replaced = RemoteTask {
        desired: DesiredRemote::Stop,
        verdict: RemoteVerdict::Stopped,
        next: Some(Box::new(next.clone())),
        ..ended
    };
    for (case, record, event) in [
        ("the first", None, Event::Wanted(Box::new(next))),
        ("a restart", Some(restarting), Event::Tick),
        ("a replacement", Some(replaced), Event::Tick),
    ] {
        let step = transition(&slot_key(0), record.as_ref(), &event, Context { held: true, ..cx() });
        assert_eq!(step.record, record, "{case}: {:?}", step.effects);
        assert!(step.reasons.iter().any(|why| why.contains("no incarnation begins now")), "{case}: {:?}", step.reasons);
        let step = transition(&slot_key(0), record.as_ref(), &event, cx());
        assert_eq!(step.record.map(|record| record.incarnation), Some(cx().fresh), "{case}");
    }
}

#[test]
fn a26_what_nobody_has_seen_gets_no_other_manager_while_its_successor_may_live() {
    let w = running(Config { nodes: 1, ..Config::default() });
    let seen = RemoteTask { manager: None, ..w.records[&0].clone() };
    let never = RemoteTask { handle: None, started_at: 0, observed: Observed::Intended, ..seen.clone() };
    let manager = w.records[&0].manager.expect("managed");
    let wanted = RemoteWanted {
        manager: Some(manager),
        driver: seen.driver.clone(),
        provider: seen.provider.clone(),
        spec_hash: seen.spec_hash.clone(),
        job_version: seen.job_version,
        policy: seen.policy.clone(),
        ..RemoteWanted::default()
    };
    let successor = Manager { node_id: NodeId(Uuid::from_u128(77)), ..manager };
    let handed =
        |record: &RemoteTask| RemoteTask { manager: Some(manager), successor: Some(successor), ..record.clone() };
    let lost = Event::LeaseLost { node: manager.node_id };
    let drained = Event::Drain { node: manager.node_id, force: true };
    for (case, record, event) in [
        ("unmanaged", never.clone(), Event::Wanted(Box::new(wanted.clone()))),
        ("its manager is lost", handed(&never), lost.clone()),
        ("its manager is drained", handed(&never), drained.clone()),
    ] {
        let held = transition(&slot_key(0), Some(&record), &event, Context { held: true, ..cx() });
        let after = held.record.expect("it stays");
        assert_eq!(
            (after.manager, after.successor, after.incarnation),
            (None, None, never.incarnation),
            "{case}: {:?}",
            held.reasons
        );
        let free = transition(&slot_key(0), Some(&record), &event, cx()).record.expect("it stays");
        assert!(free.manager.is_some() && begins(Some(&record), &free), "{case}");
    }
    // What has been seen is adopted, whatever else may live: nothing is created for it.
    for (record, event) in
        [(seen.clone(), Event::Wanted(Box::new(wanted))), (handed(&seen), lost), (handed(&seen), drained)]
    {
        let step =
            transition(&slot_key(0), Some(&record), &event, Context { held: true, ..cx() }).record.expect("it stays");
        assert!(step.manager.is_some() && !begins(Some(&record), &step), "{event:?}");
    }
}

#[test]
fn a_directory_from_before_an_unanswered_create_never_claims_the_first_one_whenever_the_driver_comes_up() {
    let declared =
        RemoteProvider { provider: "pool".to_owned(), keyed_create: true, find: true, ..RemoteProvider::default() };
    let incarnation = IncarnationId(Uuid::from_u128(5));
    let order = RemoteOrder {
        slot: slot_key(0),
        role: RemoteRole::Manage,
        incarnation,
        epoch: 1,
        driver: "d".to_owned(),
        ..RemoteOrder::default()
    };
    // The plugin is there when the servers say all that there is, or it comes up later.
    for at_order in [declared.clone(), node::undeclared()] {
        let mut slot = node::Slot::restore(&node::Stored::default());
        slot.doubt_store();
        let mut calls = Vec::new();
        let mut feed = |slot: node::Slot, event: node::Event, caps: &RemoteProvider| {
            let step = node::transition(&slot_key(0), &slot, &event, caps, 1);
            calls.extend(step.effects.into_iter().filter_map(|effect| match effect {
                node::Effect::Call(call) => Some(call),
                _ => None,
            }));
            step.slot
        };
        slot = feed(slot, node::Event::LeaseHeld, &at_order);
        slot = feed(slot, node::Event::Order(Box::new(order.clone())), &at_order);
        slot = feed(slot, node::Event::Done(node::Answer::Absent), &declared);
        slot = feed(slot, node::Event::Prepared, &declared);
        assert_eq!(slot.stored().attempted, Some(incarnation));
        assert_eq!(
            calls,
            [node::Call::Find { incarnation }, node::Call::Ensure { incarnation, epoch: 1, first: false }],
            "{at_order:?}"
        );
    }
}

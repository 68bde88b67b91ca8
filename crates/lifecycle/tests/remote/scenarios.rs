//! The acceptance scenarios of the remote-task page that can be told without processes, named after its lines.

use lifecycle::remote::{Context, Effect, Event, node, orders, reconcile::needs_executor, transition};
use lifecycle::restart::mix;
use model::{
    DesiredRemote, IncarnationId, Observed, RemoteOrder, RemoteReport, RemoteVerdict, RemoteWanted,
    remote::{MAX_HANDLE_BYTES, Manager, RemoteHandle, RemoteRole},
};
use uuid::Uuid;

use crate::world::{Action, AllocState, Config, World, node_id, slot_key};

/// A quiet world in which every slot runs on node 0, the other nodes being there but idle.
pub(crate) fn running(cfg: Config) -> World {
    let mut w = World::new(cfg);
    for slot in 0..w.cfg.slots {
        w.place(slot, 0);
    }
    w.run_as_is();
    for slot in 0..w.cfg.slots {
        assert_eq!(w.alive(slot).len(), 1, "slot {slot} runs at the start");
        assert_eq!(w.records[&slot].observed, Observed::Running);
    }
    w
}

/// What must not change when only management moves.
fn identity(w: &World, slot: u32) -> (IncarnationId, Option<RemoteHandle>, u64) {
    let r = &w.records[&slot];
    (r.incarnation, r.handle.clone(), r.restarts)
}

pub(crate) fn manager(w: &World, slot: u32) -> Option<usize> {
    let m = w.records[&slot].manager?;
    (0..w.nodes.len()).find(|n| node_id(*n) == m.node_id)
}

#[test]
fn a1_kill_the_manager_with_another_ready() {
    let mut w = running(Config::default());
    let before = identity(&w, 0);
    w.lose(0);
    assert_eq!(manager(&w, 0), Some(1));
    assert_eq!(identity(&w, 0), before, "same instance, same handle, counters unchanged");
    w.assert_calls(1, 0);
}

#[test]
fn a2_a_new_node_adopts_after_any_delay() {
    let mut w = running(Config { nodes: 1, ..Config::default() });
    let before = identity(&w, 0);
    w.lose(0);
    assert!(w.records[&0].manager.is_none() && w.records[&0].unmanaged_since > 0, "shown as unmanaged meanwhile");
    w.now += 30 * 24 * 3600 * crate::world::SECOND;
    w.allocs.clear(); // collected long ago
    w.come(0);
    assert_eq!(manager(&w, 0), Some(0));
    assert_eq!(w.records[&0].unmanaged_since, 0);
    assert_eq!(identity(&w, 0), before);
    w.assert_calls(1, 0);
}

#[test]
fn a3_the_only_manager_away_beyond_its_lease_returns() {
    let mut w = running(Config { nodes: 1, ..Config::default() });
    let before = identity(&w, 0);
    w.disconnect(0);
    w.apply(&Action::Lapse(0));
    w.apply(&Action::Expire(0));
    w.run_as_is();
    w.come(0);
    assert_eq!(manager(&w, 0), Some(0));
    assert_eq!(identity(&w, 0), before);
    w.assert_calls(1, 0);
}

#[test]
fn a4_drain_with_room_makes_before_it_breaks() {
    let mut w = running(Config::default());
    let before = identity(&w, 0);
    w.apply(&Action::Drain(0));
    w.apply(&Action::Place(0, 1));
    assert_eq!(manager(&w, 0), Some(0), "the old manager goes on");
    assert_eq!(w.records[&0].successor.map(|s| s.node_id), Some(node_id(1)));
    let mut observed = false;
    while let Some(a) = w.enabled().into_iter().find(|a| !a.is_fault() && !matches!(a, Action::Retry(..))) {
        observed |= w.nodes[1].slots.get(&0).and_then(node::Slot::sighting).is_some();
        assert!(observed || manager(&w, 0) == Some(0), "management moves only after the successor has observed");
        assert!(observed || w.nodes[0].slots[&0].order().is_some(), "the old manager has not let go before");
        w.apply(&a);
    }
    assert_eq!(manager(&w, 0), Some(1));
    assert_eq!(identity(&w, 0), before);
    w.assert_calls(1, 0);
}

#[test]
fn a4_a_successor_s_search_from_before_the_create_does_not_deny_what_the_handle_names() {
    let mut w = start_until(Config::default(), |w| {
        w.nodes[0].slots.get(&0).and_then(node::Slot::in_flight).is_some_and(|c| matches!(c, node::Call::Ensure { .. }))
    });
    let first = w.records[&0].incarnation;
    w.apply(&Action::Drain(0));
    w.apply(&Action::Place(0, 1));
    w.run(|a| matches!(a, Action::ToNode(1)));
    let searched = w.nodes[1].slots[&0].in_flight().cloned();
    assert_eq!(searched, Some(node::Call::Find { incarnation: first }), "by key: nobody has a handle yet");
    // It finds nothing; before its answer comes the create takes effect, and a new session brings the successor the
    // handle.
    w.apply(&Action::Execute(1, 0));
    w.run(|a| matches!(a, Action::Execute(0, _) | Action::Answer(0, _) | Action::ToServers(0)));
    w.disconnect(1);
    w.apply(&Action::Connect(1));
    w.run(|a| matches!(a, Action::ToNode(1)));
    assert!(w.nodes[1].slots[&0].handle().is_some() && w.nodes[1].slots[&0].in_flight().is_some());
    w.apply(&Action::Answer(1, 0));
    w.run_as_is();
    assert_eq!((w.alive(0).len(), w.provider.creates, manager(&w, 0)), (1, 1, Some(1)));
    assert_eq!((w.records[&0].incarnation, w.records[&0].restarts), (first, 0));
    w.assert_ok();
}

#[test]
fn a5_drain_without_room() {
    let mut w = running(Config { nodes: 1, ..Config::default() });
    let before = identity(&w, 0);
    w.apply(&Action::Drain(0));
    w.run_as_is();
    assert_eq!(manager(&w, 0), Some(0), "it waits for a successor while there is time");
    w.apply(&Action::ForceDrain(0));
    w.run_as_is();
    assert!(w.records[&0].manager.is_none() && w.records[&0].unmanaged_since > 0);
    assert!(w.nodes[0].slots[&0].order().is_none(), "the drained node has let go");
    w.nodes[0].draining = false;
    w.run_as_is();
    assert_eq!(manager(&w, 0), Some(0), "a later capable node adopts");
    assert_eq!(identity(&w, 0), before);
    w.assert_calls(1, 0);
}

#[test]
fn a6_five_hundred_tasks_leave_one_manager() {
    let mut w = World::new(Config { slots: 500, nodes: 3, ..Config::default() });
    for slot in 0..500 {
        w.place(slot, 0);
    }
    w.sweep();
    assert_eq!(w.provider.creates, 500);
    let before: Vec<_> = (0..500).map(|s| identity(&w, s)).collect();
    w.apply(&Action::Drain(0));
    // No max_parallel: every slot may be placed at once, and each needs one observation only.
    for slot in 0..500 {
        w.apply(&Action::Place(slot, 1 + slot as usize % 2));
    }
    w.sweep();
    for slot in 0..500 {
        assert_eq!(manager(&w, slot), Some(1 + slot as usize % 2));
        assert_eq!(identity(&w, slot), before[slot as usize]);
    }
    w.assert_calls(500, 0);
}

/// Applies the ordinary steps of a first placement until `stop` says so.
pub(crate) fn start_until(cfg: Config, stop: impl Fn(&World) -> bool) -> World {
    let mut w = World::new(cfg);
    w.place(0, 0);
    while !stop(&w) {
        let a = w.enabled().into_iter().find(|a| !a.is_fault()).expect("the start has further steps");
        w.apply(&a);
    }
    w
}

type Moment = (&'static str, fn(&World) -> bool);

const MOMENTS: [Moment; 4] = [
    ("before the create is sent", |w| w.records.contains_key(&0)),
    ("while it is on its way", |w| w.enabled().contains(&Action::Execute(0, 0))),
    ("after it took effect", |w| w.enabled().contains(&Action::Answer(0, 0))),
    ("after its reply, before the servers know", |w| w.enabled().contains(&Action::ToServers(0))),
];

#[test]
fn a7_kill_around_the_create() {
    for late in [false, true] {
        for (name, moment) in MOMENTS {
            for other_adopts in [false, true] {
                let mut w = start_until(Config { late_calls: late, ..Config::default() }, moment);
                let key = w.records[&0].incarnation;
                if other_adopts {
                    w.kill_and_expire(0);
                } else {
                    w.crash(0);
                    w.apply(&Action::Connect(0));
                }
                w.run_as_is();
                while w.enabled().contains(&Action::Late(0)) {
                    w.apply(&Action::Late(0));
                }
                w.run_as_is();
                let live = w.alive(0);
                assert_eq!(live.len(), 1, "{name}, late {late}");
                assert_eq!(live[0].key, key, "{name}: the intended incarnation, found by key");
                assert_eq!(w.provider.creates, 1, "{name}");
                assert_eq!(w.records[&0].observed, Observed::Running, "{name}");
                w.assert_ok();
            }
        }
    }
}

#[test]
fn a8_without_keyed_create_but_with_list() {
    for (name, moment) in MOMENTS {
        let cfg = Config { keyed: false, late_calls: false, ..Config::default() };
        let mut w = start_until(cfg, moment);
        w.lose(0);
        for _ in 0..3 {
            w.retry_all();
        }
        match w.alive(0).len() {
            1 => assert_eq!(w.records[&0].observed, Observed::Running, "{name}: bound to the one that exists"),
            0 => {
                let Observed::Unknown { why, .. } = &w.records[&0].observed else {
                    panic!("{name}: held in Unknown, not {:?}", w.records[&0].observed)
                };
                assert!(why.contains("declares it gone"), "{name}: the reason says what to do: {why}");
                // A person decides; the slot goes on with a new key.
                w.server(0, &Event::DeclareGone { why: "looked at the provider".to_owned() });
                w.run_as_is();
                assert_eq!(w.alive(0).len(), 1, "{name}");
            }
            n => panic!("{name}: {n} instances"),
        }
        assert!(w.provider.creates <= 1, "{name}: never a second create");
    }
}

#[test]
fn a9_create_reply_lost() {
    let mut w = start_until(Config::default(), |w| w.enabled().contains(&Action::Answer(0, 0)));
    w.apply(&Action::LoseAnswer(0, 0));
    w.run_as_is();
    assert!(matches!(w.records[&0].observed, Observed::Unknown { .. }), "the servers are told that it is not known");
    w.retry_all();
    assert_eq!((w.alive(0).len(), w.provider.creates), (1, 1));
    assert_eq!(w.records[&0].observed, Observed::Running);
    w.assert_ok();
}

#[test]
fn a10_plugin_dies_inside_the_create() {
    // Dead before it had asked the provider: the retry uses the same key.
    let mut w = start_until(Config { late_calls: false, ..Config::default() }, |w| {
        w.nodes[0].slots.get(&0).and_then(node::Slot::in_flight).is_some_and(|c| matches!(c, node::Call::Ensure { .. }))
    });
    let key = w.records[&0].incarnation;
    w.apply(&Action::LoseAnswer(0, 0));
    w.run_as_is();
    w.retry_all();
    w.run_as_is();
    assert_eq!(w.alive(0).iter().map(|i| i.key).collect::<Vec<_>>(), [key]);
    assert_eq!(w.provider.creates, 1);
    assert_eq!(w.records[&0].restarts, 0, "no restart is counted");
    w.assert_ok();
}

#[test]
fn a11_cut_off_manager_mutates_nothing_after_its_lease() {
    let mut w = running(Config::default());
    w.disconnect(0);
    w.job.stopped = true;
    w.allocs[0].state = AllocState::Gone;
    w.reconcile(0);
    w.apply(&Action::Lapse(0));
    w.apply(&Action::Expire(0));
    assert!(!w.nodes[0].slots[&0].may_mutate());
    // Whatever happens on the old node, it sends no mutation (the world checks each call); the new one stops it, once.
    w.run_as_is();
    assert_eq!((w.alive(0).len(), w.provider.stops), (0, 1));
    assert!(w.records.is_empty(), "stopped, acknowledged, forgotten");
    w.assert_ok();
}

#[test]
fn a12_cut_off_manager_returns_after_its_allocation_was_collected() {
    let mut w = running(Config::default());
    w.disconnect(0);
    w.apply(&Action::Lapse(0));
    w.apply(&Action::Expire(0));
    w.run_as_is();
    let first = w.allocs[0].id;
    w.allocs.retain(|a| a.id != first);
    w.come(0);
    assert!(w.nodes[0].slots[&0].order().is_none(), "it lets go");
    assert_eq!(manager(&w, 0), Some(1));
    assert_eq!((w.alive(0).len(), w.provider.creates, w.provider.stops), (1, 1, 0));
    w.assert_ok();
}

#[test]
fn a13_a_paused_call_is_refused_when_it_resumes() {
    // Node 0 has sent its create and is paused; node 1 adopts under the next epoch; then the first call arrives.
    let mut w = start_until(Config::default(), |w| w.enabled().contains(&Action::Execute(0, 0)));
    w.disconnect(0);
    w.apply(&Action::Lapse(0));
    w.apply(&Action::Expire(0));
    w.run(|a| !matches!(a, Action::Connect(_) | Action::Execute(0, _) | Action::LetGo(0, _)));
    assert_eq!((w.alive(0).len(), manager(&w, 0)), (1, Some(1)));
    w.apply(&Action::Execute(0, 0));
    w.run_as_is();
    assert_eq!(w.provider.refused_stale, 1, "the provider has accepted a higher epoch");
    assert_eq!((w.alive(0).len(), w.provider.creates), (1, 1));
    w.assert_ok();
}

#[test]
fn a14_provider_in_trouble_for_ten_minutes_also_during_adoption() {
    let mut w = running(Config::default());
    let before = identity(&w, 0);
    w.provider.unreachable = true;
    w.run_as_is();
    let Observed::Unknown { since, .. } = w.records[&0].observed else { panic!("{:?}", w.records[&0].observed) };
    w.kill_and_expire(0);
    for _ in 0..60 {
        w.now += 10 * crate::world::SECOND;
        w.run_as_is();
        w.retry_all();
    }
    let Observed::Unknown { since: still, .. } = w.records[&0].observed else { panic!("{:?}", w.records[&0].observed) };
    assert_eq!(since, still, "unknown since the trouble began");
    assert_eq!(manager(&w, 0), Some(1));
    w.provider.unreachable = false;
    w.retry_all();
    assert_eq!(w.records[&0].observed, Observed::Running);
    assert_eq!(identity(&w, 0), before, "the restart budget is untouched");
    w.assert_calls(1, 0);
}

#[test]
fn a15_exit_while_unmanaged() {
    for (batch, code, expected_restarts) in [(true, 0, 0), (true, 3, 1), (false, 0, 1), (false, 3, 1)] {
        let mut w = running(Config { batch, nodes: 1, ..Config::default() });
        let first = w.records[&0].incarnation;
        w.kill_and_expire(0);
        w.exit(0, code);
        w.come(0);
        let r = w.records[&0].clone();
        assert_eq!(r.result.as_ref().map(|x| x.code), Some(code), "the exact code is recorded");
        assert_eq!(r.restarts, expected_restarts, "counted once");
        if expected_restarts == 0 {
            assert_eq!(r.verdict, RemoteVerdict::Complete);
            assert_eq!(w.allocs.last().map(|a| a.state), Some(AllocState::Complete));
            assert_eq!(w.alive(0).len(), 0);
        } else {
            assert_eq!(w.alive(0).len(), 1);
            assert_ne!(r.incarnation, first, "the corpse is not adopted again");
        }
        assert!(w.provider.instances.iter().all(|i| i.alive), "the provider was told that the result is stored");
        w.assert_ok();
    }
}

#[test]
fn a16_kill_between_observation_and_acknowledgement() {
    let moments: [Moment; 3] = [
        ("seen by the node only", |w| w.enabled().contains(&Action::ToServers(0))),
        ("counted by the servers", |w| w.records[&0].exit_acknowledged && w.enabled().contains(&Action::ToNode(0))),
        ("acknowledged at the provider, not reported", |w| {
            w.records[&0].exit_acknowledged
                && w.provider.instances.is_empty()
                && w.enabled().contains(&Action::Answer(0, 0))
        }),
    ];
    for (name, moment) in moments {
        for code in [0, 3] {
            let mut w = running(Config { batch: true, restart_attempts: 0, ..Config::default() });
            w.exit(0, code);
            while !moment(&w) {
                let a = w.enabled().into_iter().find(|a| !a.is_fault()).expect("further steps");
                w.apply(&a);
            }
            w.kill_and_expire(0);
            // The lost allocation is replaced; its replacement learns the result, it does not run the task again.
            w.run(|a| !matches!(a, Action::Connect(_) | Action::AllocEnded(_)));
            let r = &w.records[&0];
            assert_eq!(r.result.as_ref().map(|x| x.code), Some(code), "{name}: not lost");
            assert!(r.verdict.final_for_task(), "{name}");
            assert_eq!(w.provider.creates, 1, "{name}: not run again");
            w.assert_ok();
        }
    }
}

/// A batch task has ended, its result is counted and delivered, and its manager is about to fetch the output or to
/// acknowledge.
fn ended_for_good(fetched: bool) -> World {
    // The scheduler would place the failed task anew; here it is left as it is.
    let mut w = running(Config { batch: true, restart_attempts: 0, placements: 1, ..Config::default() });
    w.exit(0, 3);
    w.run(|a| !matches!(a, Action::Kept(..) | Action::Connect(_)));
    assert!(matches!(w.records[&0].verdict, RemoteVerdict::Failed { .. }));
    assert_eq!(w.allocs[0].state, AllocState::Failed);
    if fetched {
        w.apply(&Action::Kept(0, 0));
    }
    assert_eq!(
        manager(&w, 0),
        Some(0),
        "its node goes on until the provider has forgotten the instance, although the allocation has ended"
    );
    assert_eq!(w.provider.instances.len(), 1, "the provider keeps it meanwhile");
    w
}

#[test]
fn the_output_of_an_ended_task_is_kept_before_the_provider_forgets_it() {
    let mut w = ended_for_good(false);
    w.run_as_is();
    let r = &w.records[&0];
    assert!(r.forgotten && w.provider.instances.is_empty() && r.manager.is_none());
    assert!(w.nodes[0].kept.contains(&(w.allocs[0].id, r.incarnation)));
    w.assert_ok();
}

#[test]
fn a_node_that_was_killed_at_the_end_of_a_task_keeps_the_output_when_it_is_back() {
    for fetched in [false, true] {
        let mut w = ended_for_good(fetched);
        w.lose(0);
        assert!(manager(&w, 0).is_none() && w.provider.instances.len() == 1, "nobody else takes the output away");
        w.come(0);
        let r = &w.records[&0];
        assert!(r.forgotten && w.provider.instances.is_empty() && r.manager.is_none());
        assert!(w.nodes[0].kept.contains(&(w.allocs[0].id, r.incarnation)));
        w.assert_ok();
    }
}

#[test]
fn what_an_ended_task_left_at_the_provider_goes_with_its_allocation_when_its_node_does_not_come_back() {
    let mut w = ended_for_good(false);
    w.lose(0);
    assert_eq!(w.provider.instances.len(), 1);
    w.left.collects = 1;
    w.apply(&Action::Collect(0));
    w.run_as_is();
    assert!(w.records[&0].forgotten && w.provider.instances.is_empty(), "another node has let the provider forget it");
    w.assert_ok();
}

#[test]
fn the_collection_of_an_allocation_does_not_wait_for_its_output() {
    let mut w = ended_for_good(false);
    w.left.collects = 1;
    w.apply(&Action::Collect(0));
    w.run_as_is();
    assert!(w.records[&0].forgotten && w.provider.instances.is_empty());
    w.assert_ok();
}

#[test]
fn a17_node_down_then_stop() {
    // With another node: it executes the stop. Without: a visible tombstone until one comes.
    for nodes in [2, 1] {
        let mut w = running(Config { nodes, ..Config::default() });
        w.kill_and_expire(0);
        w.apply(&Action::StopJob);
        w.allocs.clear();
        w.run_as_is();
        if nodes == 1 {
            let r = &w.records[&0];
            assert!(
                needs_executor(r) && r.desired == DesiredRemote::Stop && r.unmanaged_since > 0,
                "a visible tombstone"
            );
            assert_eq!(r.stop_reason, "the job was stopped");
            w.come(0);
        }
        assert_eq!((w.alive(0).len(), w.provider.stops), (0, 1));
        assert!(w.records.is_empty());
        w.assert_ok();
    }
}

#[test]
fn a18_drain_and_scale_down_at_once_in_200_interleavings() {
    for seed in 0..200u64 {
        let mut state = seed;
        let mut pick = |n: usize| {
            state = mix(state);
            usize::try_from(state % n as u64).expect("small")
        };
        let mut w = running(Config { slots: 4, nodes: 3, ..Config::default() });
        let before: Vec<_> = (0..4).map(|s| identity(&w, s)).collect();
        // The drain and two scale-downs happen anywhere among the first steps.
        let mut todo = vec![Action::Drain(0), Action::ScaleDown, Action::ScaleDown];
        while !todo.is_empty() {
            let steps: Vec<Action> = w.enabled().into_iter().filter(|a| !a.is_fault()).collect();
            let i = pick(steps.len() + todo.len());
            let a = if i < steps.len() { steps[i].clone() } else { todo.remove(i - steps.len()) };
            w.apply(&a);
        }
        w.settle(&mut pick);
        w.check_quiet();
        assert!(w.violations.is_empty(), "seed {seed}: {:#?}", w.violations);
        for slot in 0..2 {
            assert_eq!(
                identity(&w, slot),
                before[slot as usize],
                "seed {seed}: slot {slot} was handed over, not touched"
            );
            assert!(manager(&w, slot).is_some_and(|n| n != 0), "seed {seed}: slot {slot} left the draining node");
        }
        assert_eq!(
            (w.provider.creates, w.provider.stops),
            (4, 2),
            "seed {seed}: removed slots stopped, none forgotten"
        );
    }
}

#[test]
fn a19_node_down_then_update() {
    let mut w = running(Config::default());
    let v1 = w.records[&0].incarnation;
    w.kill_and_expire(0);
    w.apply(&Action::UpdateJob);
    w.apply(&Action::Place(0, 1));
    let order = orders(&w.records[&0]).remove(0).1;
    assert_eq!(order.desired, DesiredRemote::Stop);
    assert!(order.alloc_id.is_nil(), "the new allocation is never shown for the old instance");
    w.run_as_is();
    let live = w.alive(0);
    assert_eq!(live.iter().map(|i| i.version).collect::<Vec<_>>(), [2], "version 1 was replaced");
    assert_ne!(live[0].key, v1);
    w.assert_calls(2, 1);
}

#[test]
fn a19_group_removed_or_scaled_down() {
    let mut w = running(Config { slots: 2, ..Config::default() });
    w.kill_and_expire(0);
    w.apply(&Action::ScaleDown);
    w.run_as_is();
    assert_eq!((w.alive(0).len(), w.alive(1).len()), (1, 0));
    w.assert_calls(2, 1);
}

#[test]
fn a23_twenty_restarts_of_the_manager_then_its_loss() {
    let mut w = running(Config::default());
    let before = identity(&w, 0);
    for _ in 0..20 {
        w.crash(0);
        w.come(0);
        assert_eq!(identity(&w, 0), before, "the servers still hold the handle");
    }
    w.lose(0);
    assert_eq!(manager(&w, 0), Some(1));
    assert_eq!(identity(&w, 0), before);
    w.assert_calls(1, 0);
}

pub(crate) fn wanted(n: usize, alloc: u128, provider: &str) -> RemoteWanted {
    RemoteWanted {
        job_version: 1,
        spec_hash: "hash-1".into(),
        driver: "fake".into(),
        provider: provider.into(),
        manager: Some(Manager { node_id: node_id(n), alloc_id: model::AllocId(Uuid::from_u128(alloc)) }),
        ..RemoteWanted::default()
    }
}

pub(crate) fn cx() -> Context {
    Context { now: 5, fresh: IncarnationId(Uuid::from_u128(0xabc)), held: false }
}

#[test]
fn a24_a_node_without_the_provider_is_not_chosen() {
    let mut w = running(Config::default());
    w.kill_and_expire(0);
    let before = w.records[&0].clone();
    let step =
        transition(&slot_key(0), Some(&before), &Event::Wanted(Box::new(wanted(1, 99, "another account"))), cx());
    assert_eq!(step.record.as_ref(), Some(&before), "it stays unmanaged");
    assert!(step.reasons[0].contains("another account"), "and says why: {:?}", step.reasons);
    let step = transition(&slot_key(0), Some(&before), &Event::Wanted(Box::new(wanted(1, 99, "fake"))), cx());
    assert_eq!(step.record.and_then(|r| r.manager).map(|m| m.node_id), Some(node_id(1)), "the third is chosen");
}

#[test]
fn a25_adoption_does_not_wait_for_preparation() {
    let mut w = running(Config::default());
    w.kill_and_expire(0);
    // Preparation never succeeds on the new node.
    w.run(|a| !matches!(a, Action::Connect(_) | Action::Prepared(..)));
    assert_eq!((manager(&w, 0), &w.records[&0].observed), (Some(1), &Observed::Running));
    assert!(w.nodes[1].slots[&0].handle().is_some());
    // A create does wait.
    let mut w = World::new(Config::default());
    w.place(0, 0);
    w.run(|a| !matches!(a, Action::Prepared(..)));
    assert_eq!((w.provider.creates, &w.records[&0].observed), (0, &Observed::Intended));
    w.assert_ok();
}

#[test]
fn a_create_that_is_let_go_before_it_was_sent_was_never_tried() {
    let mut w = start_until(Config::default(), |w| w.enabled().contains(&Action::Execute(0, 0)));
    assert!(!w.enabled().contains(&Action::LetGo(0, 0)), "it is wanted");
    w.left.stops = 1;
    w.apply(&Action::StopJob);
    while !w.enabled().contains(&Action::LetGo(0, 0)) {
        let next = w.enabled().into_iter().find(|a| matches!(a, Action::ToNode(0) | Action::ToServers(0)));
        w.apply(&next.expect("the stop comes to the node"));
    }
    w.apply(&Action::LetGo(0, 0));
    assert!(
        !w.enabled().iter().any(|a| matches!(a, Action::Execute(..) | Action::Retry(..))),
        "nobody needs to be asked"
    );
    w.run_as_is();
    assert_eq!((w.provider.creates, w.provider.stops), (0, 0));
    assert!(w.records.get(&0).is_none_or(|r| r.observed.ended() || r.observed == Observed::Gone), "{:?}", w.records);
    w.assert_ok();
}

#[test]
fn a31_a_handle_over_the_limit_is_refused_and_absence_erases_nothing() {
    let w = running(Config::default());
    let r = w.records[&0].clone();
    let report = |handle| RemoteReport {
        slot: slot_key(0),
        incarnation: r.incarnation,
        epoch: r.epoch,
        provider: "fake".to_owned(),
        handle,
        observed: Observed::Running,
        ..RemoteReport::default()
    };
    let big = RemoteHandle { schema: 1, data: vec![0; MAX_HANDLE_BYTES + 1].into() };
    for (handle, reason) in [(Some(big), "refused"), (None, "")] {
        let step = transition(
            &slot_key(0),
            Some(&r),
            &Event::Report { from: node_id(0), report: Box::new(report(handle)) },
            cx(),
        );
        assert_eq!(step.record.and_then(|n| n.handle), r.handle);
        assert!(reason.is_empty() || step.reasons.iter().any(|x| x.contains(reason)), "{:?}", step.reasons);
    }
}

#[test]
fn what_an_instance_waits_for_is_kept_until_it_runs_and_each_reason_is_told_once() {
    let mut r = running(Config::default()).records[&0].clone();
    r.observed = Observed::Intended;
    let mut report = |observed, waiting: &str| {
        let report = RemoteReport {
            slot: slot_key(0),
            incarnation: r.incarnation,
            epoch: r.epoch,
            provider: "fake".to_owned(),
            observed,
            waiting: waiting.to_owned(),
            ..RemoteReport::default()
        };
        let event = Event::Report { from: node_id(0), report: Box::new(report) };
        r = transition(&slot_key(0), Some(&r), &event, cx()).record.expect("it goes on");
        let told = r.history.iter().filter(|event| event.message.starts_with("being created: ")).count();
        (r.waiting.to_string(), told)
    };
    for (waiting, told) in [("", 0), ("a pull has failed", 1), ("the next pull waits", 2), ("a pull has failed", 2)] {
        assert_eq!(report(Observed::Creating, waiting), (waiting.to_owned(), told));
    }
    assert_eq!(report(Observed::Running, "late words"), (String::new(), 2));
}

#[test]
fn a34_a_stop_that_errs_is_retried_and_never_done_before_it_is_gone() {
    let mut w = running(Config::default());
    w.apply(&Action::StopJob);
    w.provider.unreachable = true;
    for _ in 0..5 {
        w.run_as_is();
        w.retry_all();
        assert_eq!(w.records[&0].desired, DesiredRemote::Stop);
        assert!(!w.records[&0].verdict.final_for_task(), "not complete before it is gone");
    }
    w.lose(0);
    assert_eq!(manager(&w, 0), Some(1), "the next manager goes on with the stop");
    let stuck = w.records[&0].clone();
    w.provider.unreachable = false;
    w.retry_all();
    assert!(w.records.is_empty() && w.alive(0).is_empty());
    w.assert_ok();
    // Forgetting is a verb of its own.
    let step = transition(&slot_key(0), Some(&stuck), &Event::Forget { why: "the account is closed".to_owned() }, cx());
    assert!(step.record.is_none() && matches!(step.effects[0], Effect::Delete(_)));
}

#[test]
fn a_refused_create_fails_the_task_without_restarts() {
    let mut w = World::new(Config::default());
    w.provider.refuse_creates = true;
    w.place(0, 0);
    w.run(|a| !matches!(a, Action::AllocEnded(_)));
    let RemoteVerdict::Failed { reason } = &w.records[&0].verdict else { panic!("{:?}", w.records[&0].verdict) };
    assert_eq!(reason, "refused by the provider");
    assert_eq!((w.provider.creates, w.records[&0].restarts), (0, 0));
    w.assert_ok();
}

#[test]
fn a_failed_task_is_rescheduled_as_a_new_incarnation_with_new_counters() {
    let mut w = running(Config { restart_attempts: 1, ..Config::default() });
    for _ in 0..2 {
        let i = w.provider.instances.iter().position(|i| i.alive).expect("it runs");
        w.exit(i, 3);
        w.run(|a| !matches!(a, Action::AllocEnded(_)));
    }
    assert!(matches!(w.records[&0].verdict, RemoteVerdict::Failed { .. }), "one restart, then the policy gives up");
    let (failed, allocs) = (w.records[&0].incarnation, w.allocs.len());
    w.run_as_is();
    assert_eq!(w.allocs.len(), allocs + 1, "a new allocation follows the failed one");
    let r = &w.records[&0];
    assert_ne!(r.incarnation, failed);
    assert_eq!((r.restarts, &r.observed), (0, &Observed::Running));
    assert_eq!(w.alive(0).len(), 1);
    w.assert_ok();
}

#[test]
fn an_ordered_restart_is_no_end_for_the_allocation_that_goes_on() {
    let w = running(Config::default());
    let step =
        transition(&slot_key(0), Some(&w.records[&0]), &Event::Restart { why: "a person asks".to_owned() }, cx());
    let stopping = step.record.expect("it is being stopped");
    let report = RemoteReport {
        slot: slot_key(0),
        incarnation: stopping.incarnation,
        epoch: stopping.epoch,
        provider: "fake".to_owned(),
        observed: Observed::Exited { code: 143, signal: 0, oom_killed: false, reason: "".into(), at: 4 },
        ..RemoteReport::default()
    };
    let ended = Event::Report { from: node_id(0), report: Box::new(report) };
    // Between the end and the next incarnation the node is told of the end by an order.
    let told = |record: &model::RemoteTask| {
        let step = transition(&slot_key(0), Some(record), &ended, cx());
        let record = step.record.expect("the provider has not let it go yet");
        assert!(record.exit_acknowledged && record.verdict == RemoteVerdict::Stopped);
        orders(&record).remove(0).1.verdict
    };
    assert!(
        matches!(told(&stopping), RemoteVerdict::Restarting { .. }),
        "its task would be taken for killed, and the slot would move"
    );
    // With another allocation to follow, it is the end of this one.
    let mut replaced = stopping.clone();
    replaced.next = Some(Box::new(wanted(1, 99, "fake")));
    assert_eq!(told(&replaced), RemoteVerdict::Stopped);
}

#[test]
fn a7_a_create_that_its_maker_left_half_done_is_finished_by_the_next() {
    let (slot, incarnation) = (slot_key(0), IncarnationId(Uuid::from_u128(7)));
    let handle = RemoteHandle { schema: 1, data: [1].into() };
    let order = |adopt, desired| RemoteOrder {
        slot: slot.clone(),
        role: RemoteRole::Manage,
        incarnation,
        epoch: 2,
        desired,
        adopt,
        ..RemoteOrder::default()
    };
    let found = |observed| node::Answer::Instance {
        handle: handle.clone(),
        sighting: Box::new(node::Sighting { observed, ..node::Sighting::default() }),
    };
    let caps = Config::default().caps();
    let play = |caps: &model::node::RemoteProvider, events: &[node::Event]| -> Vec<node::Call> {
        let mut at = node::Slot::default();
        let mut calls = Vec::new();
        for event in events {
            let step = node::transition(&slot, &at, event, caps, 1);
            at = step.slot;
            calls.extend(step.effects.into_iter().filter_map(|effect| match effect {
                node::Effect::Call(call) => Some(call),
                _ => None,
            }));
        }
        calls
    };
    let run = node::Event::Order(Box::new(order(true, DesiredRemote::Run)));
    let find = node::Call::Find { incarnation };
    let again = node::Call::Ensure { incarnation, epoch: 2, first: false };
    let half_done =
        [node::Event::LeaseHeld, run.clone(), node::Event::Done(found(Observed::Creating)), node::Event::Prepared];
    assert_eq!(play(&caps, &half_done), [find.clone(), again.clone()]);
    // Once a create was answered the provider is at it: seeing it half done is no reason to ask again.
    let seen = node::Event::Seen {
        incarnation,
        sighting: Box::new(node::Sighting { observed: Observed::Creating, ..node::Sighting::default() }),
    };
    let answered = [&half_done[..], &[node::Event::Done(found(Observed::Creating)), seen]].concat();
    assert_eq!(play(&caps, &answered), [find.clone(), again.clone()]);
    // A refusal of what is there already does not say that nothing was created: it is looked at again, not given up.
    let refused =
        [&half_done[..], &[node::Event::Done(node::Answer::WrongRequest("no".into())), node::Event::Retry]].concat();
    assert_eq!(play(&caps, &refused), [find.clone(), again, node::Call::Observe { handle: handle.clone() }]);
    // Nothing is repeated without keys, for an observer, or for what is to be stopped.
    let unkeyed = model::node::RemoteProvider { keyed_create: false, ..caps.clone() };
    assert_eq!(play(&unkeyed, &half_done), [find]);
    let stop =
        node::Event::Order(Box::new(RemoteOrder { handle: Some(handle.clone()), ..order(true, DesiredRemote::Stop) }));
    let stopping = play(&caps, &[node::Event::LeaseHeld, stop, node::Event::Done(found(Observed::Creating))]);
    assert!(stopping.iter().all(|call| matches!(call, node::Call::Stop { .. })), "{stopping:?}");
}

#[test]
fn an_unhealthy_instance_is_stopped_once_whoever_manages_it_and_its_policy_goes_on() {
    let mut w = running(Config { restart_attempts: 1, ..Config::default() });
    let first = identity(&w, 0);
    w.apply(&Action::Unhealthy(0, 0));
    while w.records[&0].unhealthy.is_empty() {
        w.apply(&Action::ToServers(0));
    }
    assert_eq!(w.records[&0].desired, DesiredRemote::Run, "the slot is still wanted");
    // Its manager dies before it hears of it: the next one stops the instance, and nobody does so again.
    w.lose(0);
    let second = identity(&w, 0);
    assert_eq!((manager(&w, 0), second.2, w.records[&0].unhealthy.as_str()), (Some(1), 1, ""));
    assert!(second.0 != first.0 && w.alive(0).len() == 1);
    assert_eq!((w.provider.creates, w.provider.stops), (2, 1));
    // The policy's attempts are used up: the task has failed, and a new allocation follows.
    w.apply(&Action::Unhealthy(1, 0));
    w.run_as_is();
    assert_eq!((w.provider.creates, w.provider.stops, w.alive(0).len()), (3, 2, 1));
    w.assert_ok();
}

#[test]
fn nothing_is_found_unhealthy_in_doubt_or_by_who_does_not_manage_it() {
    let mut w = running(Config::default());
    let before = identity(&w, 0);
    let r = w.records[&0].clone();
    let report = |observed, epoch| RemoteReport {
        slot: slot_key(0),
        incarnation: r.incarnation,
        epoch,
        observed,
        unhealthy: "its check fails".to_owned(),
        ..RemoteReport::default()
    };
    let unknown = Observed::Unknown { since: 1, why: "cut off".into() };
    for (from, report) in [
        (0, report(unknown, r.epoch)),
        (0, report(Observed::Running, r.epoch - 1)),
        (1, report(Observed::Running, r.epoch)),
    ] {
        w.server(0, &Event::Report { from: node_id(from), report: Box::new(report) });
        assert_eq!(w.records[&0].unhealthy, "");
    }
    // Nor does a node tell of what it does not see running.
    let unseen = node::Slot::restore(&node::Stored::default());
    let event = node::Event::Unhealthy { incarnation: r.incarnation, why: "its check fails".to_owned() };
    let step = node::transition(&slot_key(0), &unseen, &event, &w.cfg.caps(), w.now);
    assert!(step.effects.is_empty() && step.slot == unseen);
    w.run_as_is();
    assert_eq!(identity(&w, 0), before);
    assert_eq!((w.provider.creates, w.provider.stops), (1, 0));
}
